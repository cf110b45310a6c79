"""Clauses about the results of rounds."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import FederatedAlgorithm, Individual
from fedax.algorithms.elastic import elastic
from fedax.algorithms.elastic_upload import require_scalable
from fedax.algorithms.local_update_decay import local_update_decay
from fedax.contract.bench import (
    COHORTS,
    ROUNDS,
    Bench,
    Broken,
    NotApplicable,
    difference,
    quadratics,
    quick_jit,
    rounds,
    tolerance,
)
from fedax.contract.structure import last_upload
from fedax.data.cohort_data import NOBODY
from fedax.mistakes.errors import AlgorithmError

RATES = ("client_learning_rate", "server_learning_rate")
MANY_ROUNDS = 300
# The largest share of the loss above its minimum that may be left after these rounds.
LEFT = 0.1


def gives_numbers(bench: Bench) -> str:
    """Rounds return finite parameters, and the engine counts them."""
    server_state, _, accepted = bench.run()
    if not accepted.all():
        raise Broken(
            f"After {ROUNDS} rounds on small quadratics a client's upload, state or info is not "
            "finite; look for a division by 0, or use smaller learning rates in these checks."
        )
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(server_state.params)):
        raise Broken(
            f"After {ROUNDS} rounds on small quadratics the server's parameters are not finite; "
            "use smaller learning rates in these checks."
        )
    if int(server_state.round_index) != ROUNDS:
        raise Broken(
            f"After {ROUNDS} rounds round_index is {int(server_state.round_index)}; the engine "
            "counts rounds, so `server` must not change round_index."
        )
    return f"{ROUNDS} rounds give finite parameters."


def compiles_once(bench: Bench) -> str:
    """A different seed, cohort or round does not compile again."""
    first = bench.run()
    programs = bench.num_traces
    if not _identical(first, bench.run()):
        raise Broken("The same round with the same key gave different bits the second time.")
    bench.run(key=jax.random.key(2), cohorts=bench.cohorts[::-1], states=first[:2])
    if bench.num_traces > programs:
        raise Broken(
            "A second round compiles again: an array of the state changes its type from round to "
            "round. Start with arrays, such as jnp.zeros((), jnp.int32), not with Python numbers."
        )
    return "Another round, seed or cohort does not compile again; the same one gives the same bits."


def maps_over_settings(bench: Bench) -> str:
    """A vmap over two settings gives the same results as separate runs."""
    if not bench.numbers:
        raise NotApplicable("No setting is a floating point number.")
    lanes = jax.tree.map(lambda value: jnp.stack([value, value * 0.75]), bench.numbers)


    def run(numbers: Any) -> Any:
        states = _begun(bench, bench.build(numbers))
        return rounds(bench.build)(
            numbers, states, bench.everyone(), bench.cohorts, jax.random.key(1), ROUNDS
        )

    together = quick_jit(jax.vmap(run))(lanes)
    _agree(
        jax.tree.map(lambda leaf: leaf[0], together), bench.run(),
        "One of two settings that run together under jax.vmap differs by {} from its own run.",
    )
    return f"Settings run together under jax.vmap as they run alone: {', '.join(bench.numbers)}."


def keeps_to_chunks(bench: Bench) -> str:
    """Clients that train three at a time give the same results as one at a time."""
    if bench.algorithm.pooled:
        raise NotApplicable("It trains on all examples in one place.")
    together = quick_jit(rounds(bench.build, clients_per_chunk=3))(
        {}, bench.first_states, bench.everyone(), bench.cohorts, jax.random.key(1), ROUNDS
    )
    _agree(
        together, bench.run(),
        "Three clients at a time give numbers that differ by {} from one at a time.",
    )
    return "The number of clients that train at a time changes rounding only."


def keeps_to_cohorts(bench: Bench) -> str:
    """The order of a cohort changes rounding only."""
    if bench.algorithm.pooled:
        raise NotApplicable("It trains on all examples in one place.")
    turned = bench.run(cohorts=COHORTS[:, ::-1])
    _agree(
        turned[:2], bench.run()[:2],
        "A cohort in another order gives numbers that differ by {}: what a client does must depend "
        "on its own key, data and state only.",
    )
    return "The order of a cohort changes rounding only."


def keeps_to_its_examples(bench: Bench) -> str:
    """Examples next to a client's own in the arrays change nothing."""
    if bench.algorithm.pooled:
        raise NotApplicable("It trains on all examples in one place.")
    everyone = bench.everyone()
    others = int(everyone.starts[COHORTS[0].max() + 1])  # rows of who is not in the first cohort
    spoiled = {name: array.at[others:].set(jnp.nan) for name, array in everyone.arrays.items()}
    changed = bench.run(everyone=dataclasses.replace(everyone, arrays=spoiled), count=1)
    if not _identical(changed, bench.run(count=1)):
        raise Broken(
            "The numbers change with examples of clients that do not take part: a client reads "
            "beyond its own. data.examples(indices) takes indices from 0 to data.num_examples - 1."
        )
    return "A client reads its own examples only."


def leaves_out_the_empty(bench: Bench) -> str:
    """A client without examples has weight 0."""
    if bench.algorithm.pooled:
        raise NotApplicable("It trains on all examples in one place.")
    everyone = bench.everyone()
    empty = COHORTS[0, 2]
    absent = dataclasses.replace(
        everyone, num_examples=everyone.num_examples.at[empty].set(0),
        dropped_at=everyone.dropped_at.at[empty].set(NOBODY),
    )
    with_it = bench.run(everyone=absent, count=1)
    without = bench.run(cohorts=np.delete(COHORTS, 2, axis=1), count=1)
    _agree(
        with_it[:2], without[:2],
        "An empty place in the cohort changes the numbers by {}: count "
        "participation.num_reports clients.",
    )
    return "An empty place in the cohort changes nothing."


def rejects_the_infinite(bench: Bench) -> str:
    """A client whose data make its upload infinite or NaN gets weight 0 and keeps its state."""
    if bench.algorithm.pooled:
        raise NotApplicable("It trains on all examples in one place.")
    everyone = bench.everyone()
    bad = COHORTS[0, 3]
    start = int(everyone.starts[bad])
    rows = slice(start, start + int(everyone.num_examples[bad]))
    spoiled = {name: array.at[rows].set(jnp.nan) for name, array in everyone.arrays.items()}
    server, clients, accepted = bench.run(
        everyone=dataclasses.replace(everyone, arrays=spoiled), count=1
    )
    if bool(accepted[3]):
        raise Broken(
            "A client whose examples contain NaN was counted, as its whole upload was finite. "
            "Report its training loss in `info` (local.reply does), so that the engine sees it."
        )
    gone = everyone.dropped_at.at[bad].set(0)
    dropped = bench.run(everyone=dataclasses.replace(everyone, dropped_at=gone), count=1)
    _agree(
        (server, clients), dropped[:2],
        "After a client sent NaN the numbers differ by {} from those without it.",
    )
    return "A client that sends NaN gets weight 0, keeps its state and is reported by name."


def resumes(bench: Bench) -> str:
    """Continued from the state after two rounds, as NumPy arrays, training is bit-identical."""
    whole = bench.run()
    server_state, clients, _ = bench.run(count=2)
    saved = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path((server_state, clients)):
        try:
            saved[path] = np.array(leaf)
        except TypeError:
            raise Broken(
                f"The state has a {leaf.dtype} array, which cannot be saved to a file. For a key, "
                "store jax.random.key_data(key)."
            ) from None
    structure = jax.tree.structure((server_state, clients))
    restored = jax.tree.unflatten(structure, map(jnp.asarray, saved.values()))
    after = bench.run(states=restored, count=ROUNDS - 2)
    if not _identical(after[:2], whole[:2]):
        raise Broken(
            "Saved after two rounds and restored, training gives different bits; everything that "
            "changes from round to round must be in the server's state or the clients' states."
        )
    return "Saved and restored, training gives the same bits."


def learns(bench: Bench) -> str:
    """If all clients have the same quadratic, its minimum is found."""
    equal = quadratics(equal=True)
    batch = {name: jnp.asarray(array[:1]) for name, array in equal.arrays.items()}

    def above(params: Any) -> float:
        return float(bench.model.loss(params, batch, jax.random.key(0))[0][0])

    end = bench.run(everyone=bench.everyone(equal), count=MANY_ROUNDS)[0].params
    before, after = above(bench.model.init(jax.random.key(0))), above(end)
    left = after / before
    if not left <= LEFT:
        raise Broken(
            f"After {MANY_ROUNDS} rounds on clients that share one quadratic (curvature 0.3 to 2) "
            f"the loss is {left:.3g} of its initial value. If the settings are too cautious, "
            "pass others to these checks: check_algorithm(factory, client_learning_rate=...)."
        )
    return f"On clients that share one quadratic {MANY_ROUNDS} rounds leave {left:.1g} of the loss."


def works_inside_elastic(bench: Bench) -> str:
    """Elastic aggregation scales what the server steps along."""
    _needs_what_is_scaled(bench)

    def build(numbers: Any) -> Any:
        return elastic(bench.build(), bench.model, held_out_fraction=0.2, **numbers)

    program = quick_jit(rounds(build))

    def run(elasticity: float) -> Any:
        numbers = {"elasticity": jnp.asarray(elasticity, jnp.result_type(float))}
        return program(
            numbers, _begun(bench, build({})), bench.everyone(), bench.cohorts,
            jax.random.key(1), ROUNDS,
        )[0].params

    one, other = run(0.5), run(0.0)
    if not np.isfinite(difference(one, other)):
        raise Broken("Inside fedax.elastic the parameters do not stay finite.")
    if difference(one, other) < tolerance():
        raise Broken(
            "Inside fedax.elastic the parameters do not depend on the elasticity: `server` must "
            "step along mean.pseudo_gradient, which elastic scales."
        )
    return "Works inside fedax.elastic, which scales its pseudo-gradient."


def works_inside_decay(bench: Bench) -> str:
    """Plateau decay lowers the method's learning rates."""
    names = [name for name in RATES if name in bench.parameters]
    if not names:
        raise NotApplicable(
            "It has neither client_learning_rate nor server_learning_rate as a setting, so "
            "fedax.local_update_decay has nothing to lower."
        )
    if any(exchange.individual for exchange in bench.algorithm.exchanges):
        raise NotApplicable("fedax.local_update_decay needs means.")
    values = {
        name: float(bench.numbers[name]) if name in bench.numbers else 0.1 for name in names
    }

    def inner(client_rate: Any, server_rate: Any) -> Any:
        rates: dict[str, Any] = dict(zip(RATES, (client_rate, server_rate), strict=True))
        return bench.build({name: rates[name] for name in names})

    algorithm = local_update_decay(
        inner, bench.model, *(values.get(name) for name in RATES),
        client_decay=0.5, server_decay=0.5, window=1, patience=1, cooldown=0, threshold=1e6,
    )
    after = quick_jit(rounds(lambda numbers: algorithm))(  # noqa: ARG005
        {}, _begun(bench, algorithm), bench.everyone(), bench.cohorts, jax.random.key(1), ROUNDS
    )[0]
    if int(after.own.num_decays) < 1:
        raise Broken("Inside fedax.local_update_decay the learning rates did not fall.")
    if difference(after.params, bench.run()[0].params) < tolerance():
        raise Broken(
            f"Inside fedax.local_update_decay lower values of {' and '.join(names)} change nothing."
        )
    return f"Works inside fedax.local_update_decay, which lowers {' and '.join(names)}."


def _begun(bench: Bench, algorithm: FederatedAlgorithm) -> tuple[Any, Any]:
    """The states before the first round of an algorithm with the same clients' states."""
    server_state = algorithm.init(bench.model.init(jax.random.key(0)))
    return jax.tree.map(jnp.asarray, server_state), bench.first_states[1]


def _needs_what_is_scaled(bench: Bench) -> None:
    """Raises `NotApplicable` if the last upload has nothing that `fedax.elastic` can scale."""
    upload = last_upload(bench, jnp.result_type(float))
    individual = isinstance(upload, Individual)
    try:
        require_scalable(upload.uploads if individual else upload, individual=individual)
    except AlgorithmError as error:
        raise NotApplicable(str(error)) from None


def _agree(a: Any, b: Any, complaint: str) -> None:
    found = difference(a, b)
    if not found <= tolerance():
        raise Broken(complaint.format(f"{found:.2g}"))


def _identical(a: Any, b: Any) -> bool:
    same = jax.tree.map(lambda x, y: np.asarray(x).tobytes() == np.asarray(y).tobytes(), a, b)
    return all(jax.tree.leaves(same))
