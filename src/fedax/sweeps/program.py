"""The compiled rounds of many settings together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedax.algorithm import Array, PyTree, at_round
from fedax.data.cohort_data import CohortData
from fedax.devices.compiling import jit
from fedax.factories import PROGRAMS, Structure
from fedax.mistakes.algorithm import like_twin
from fedax.rounds.cohort import RoundInfo, run_round

# The axis of a mesh along which settings are spread.
AXIS = "settings"


class BatchInfo(NamedTuple):
    """Reports of rounds of several settings.

    Attributes:
      info: as a single run's, leaves [rounds, settings, ...].
      ran: bool [rounds, settings], False after the round in which the setting diverged.
      sound: bool [rounds, settings], whether it ran and can continue.
    """

    info: RoundInfo
    ran: Array
    sound: Array


class Batch(NamedTuple):
    """The settings that train together: numbers that vary, and numbers they share.

    Attributes:
      numbers: of the structure, in order; [settings] where they vary, else scalars.
      varies: which of them do.
    """

    numbers: list[Array]
    varies: tuple[bool, ...]


def stacked(numbers: Sequence[Sequence[Array]], varies: Sequence[bool]) -> Batch:
    """The numbers of several settings of one structure as a batch's.

    What is the same for all stays one number, so that loops over a common number of local steps
    end for all settings at once, and what depends on it is computed once.
    """
    return Batch([
        jnp.stack(of_all) if varying else of_all[0]  # weak types are kept by both
        for of_all, varying in zip(zip(*numbers, strict=True), varies, strict=True)
    ], tuple(varies))


def stack_states(states: Sequence[Any]) -> Any:
    """Server states of one round as a batch's: leaves [settings, ...], but one `round_index`."""
    return _but_round(lambda *leaves: _stacked(leaves), *states)


def _stacked(leaves: Sequence[Any]) -> Any:
    """Leaves side by side, by NumPy where it can: JAX compiles a program for each shape."""
    of_jax = any(
        getattr(leaf, "weak_type", False) or jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        for leaf in leaves
    )
    return jnp.stack(leaves) if of_jax else jnp.asarray(np.stack(leaves))


def take_state(batch: Any, place: int) -> Any:
    """One setting's server state out of a batch's."""
    return _but_round(lambda leaf: leaf[place], batch)


def _but_round(function: Callable[..., Array], *states: Any) -> Any:
    """The function of all leaves but `round_index`, which is the first state's."""
    first, *others = (at_round(state, ()) for state in states)
    done = jax.tree.map(function, first, *(like_twin(first, other) for other in others))
    return at_round(done, states[0].round_index)


@functools.lru_cache(maxsize=PROGRAMS)
def program(
    structure: Structure,
    varies: tuple[bool, ...],
    num_exchanges: int,
    clients_per_chunk: int,
    diagnostics: bool,
    mesh: Mesh | None,
    sparse: bool,
) -> Callable[..., tuple[Any, PyTree, BatchInfo]]:
    """The rounds of all batches of a structure.

    The program takes a batch's server state (given away), its numbers, bool [settings] for those
    that still run, the cohort's client states [cohort_size, settings, ...], cohorts, their count
    and the run's key, as `run_rounds` does; over a mesh each device has as many settings.
    """

    def one(server_state: Any, numbers: list[Array], states: PyTree, *others: Any) -> Any:
        state, states, info = run_round(
            structure(numbers), server_state, states, *others,
            clients_per_chunk=clients_per_chunk, diagnostics=diagnostics,
        )
        return at_round(state, server_state.round_index + 1), states, info

    def rounds(
        server_state: Any, numbers: list[Array], alive: Array, client_states: PyTree,
        cohorts: CohortData, count: Array, key: Array,
    ) -> Any:
        state_axes, number_axes = _axes(server_state), [0 if v else None for v in varies]
        if alive.shape[0] == 1:  # no batching, which costs where it gains nothing
            of_all = functools.partial(_alone, one, number_axes)
        else:
            of_all = jax.vmap(
                one, (state_axes, number_axes, 1, None, None), (state_axes, 1, 0)
            )

        @functools.partial(jax.jit, inline=True)  # traced once, for its shapes and in the loop
        def round_of_all(state: Any, states: PyTree, index: Array) -> Any:
            return of_all(state, numbers, states, cohorts.of_round(index), key)

        shapes = jax.eval_shape(round_of_all, server_state, client_states, jnp.int32(0))[2]
        length = cohorts.client_ids.shape[0]
        ran = jnp.zeros((length, alive.shape[0]), bool)
        infos = BatchInfo(
            jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), shapes),
            ran, ran,
        )

        def body(carry: Any) -> Any:
            index, alive, state, states, infos = carry
            new, new_states, info = round_of_all(state, states, index)
            done = info.accepted & (cohorts.dropped_at[index] >= num_exchanges)[None]
            sound = alive & info.finite & (info.accepted.all(1) | done.any(1))
            state = _but_round(_chosen(alive, 0), new, state)
            states = jax.tree.map(_chosen(alive, 1), new_states, states)
            found = BatchInfo(info, alive, sound)
            infos = jax.tree.map(lambda all_, leaf: all_.at[index].set(leaf), infos, found)
            return index + 1, sound, state, states, infos

        after = jax.lax.while_loop(
            lambda carry: (carry[0] < count) & carry[1].any(), body,
            (jnp.int32(0), alive, server_state, client_states, infos),
        )
        return after[2], after[3], after[4]

    rounds.__name__ = "rounds_of_settings"  # as which profiles and kept programs have it
    if mesh is None:
        return jit(rounds, newer_loops=sparse, donate_argnums=(0,))

    def spread(server_state: Any, *others: Any) -> Any:
        of_states = jax.tree.map(
            lambda axis: PartitionSpec() if axis is None else PartitionSpec(AXIS),
            _axes(server_state), is_leaf=lambda axis: axis is None,
        )
        of_numbers = [PartitionSpec(AXIS) if v else PartitionSpec() for v in varies]
        along = PartitionSpec(None, AXIS)
        return jax.shard_map(
            rounds, mesh=mesh,
            in_specs=(of_states, of_numbers, PartitionSpec(AXIS), along, PartitionSpec(),
                      PartitionSpec(), PartitionSpec()),
            out_specs=(of_states, along, along), check_vma=False,
        )(server_state, *others)

    spread.__name__ = rounds.__name__
    return jit(spread, newer_loops=sparse, donate_argnums=(0,))


def _alone(
    one: Callable[..., Any], number_axes: list[int | None], server_state: Any,
    numbers: list[Array], client_states: PyTree, *others: Any,
) -> Any:
    """`one` on the only setting of a batch, as `vmap` would have it."""
    state = take_state(server_state, 0)
    own = [n if axis is None else n[0] for n, axis in zip(numbers, number_axes, strict=True)]
    states = jax.tree.map(lambda leaf: leaf[:, 0], client_states)
    state, states, info = one(state, own, states, *others)
    return (
        _but_round(lambda leaf: leaf[None], state),
        jax.tree.map(lambda leaf: leaf[:, None], states),
        jax.tree.map(lambda leaf: leaf[None], info),
    )


def _axes(server_state: Any) -> Any:
    """Where the settings are along a batch's server state: a tree of 0, None for `round_index`."""
    return at_round(jax.tree.map(lambda _: 0, server_state), None)


def _chosen(alive: Array, axis: int) -> Callable[[Array, Array], Array]:
    """(new, old) -> the new numbers of the settings that run, the old ones of the others."""

    def choose(new: Array, old: Array) -> Array:
        shape = [1] * new.ndim
        shape[axis] = -1
        return jnp.where(alive.reshape(shape), new, old)

    return choose
