r"""Matched averaging of multi-layer perceptrons by the assignment problem, in NumPy and SciPy.

Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni, "Bayesian Nonparametric Federated Learning
of Neural Networks", ICML 2019 (PFNM), and github.com/IBM/probabilistic-federated-neural-matching.

The hidden units of a network have no order, so those of J clients must be paired up before they
can be averaged. The model: there are global units with weights theta_i ~ N(0, sigma_0^2); client j
has a random subset of them, drawn from a Beta-Bernoulli process of mass gamma_0, and each of its
units is one of those with noise, v_jl ~ N(theta_i, sigma_j^2). What is sought is the assignment of
the clients' units to global ones, and the global units, of largest posterior probability.

| symbol                          | name                                                       |
|---------------------------------|------------------------------------------------------------|
| v_jl [D]                        | `units[j, l]`, all the weights of a unit                   |
| 1/sigma_j^2 [D]                 | `precisions[j]`                                            |
| 1/sigma_0^2                     | `prior_precision`                                          |
| gamma_0                         | `mass`                                                     |
| m_i, how many clients have i    | `counts[i]`                                                |
| S_i = sum v_jl/sigma_j^2 [D]    | `Atoms.sums[i]`, over the units assigned to i              |
| Q_i = 1/sigma_0^2 + sum 1/s_j^2 | `Atoms.precisions[i]`; theta_i = S_i / Q_i                 |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

Popularity: TypeAlias = Literal["derived", "released"]
Network: TypeAlias = Sequence[Mapping[str, np.ndarray]]


class Matching(NamedTuple):
    """What the matching is done with.

    Attributes:
      variance: sigma^2 > 0, of a client's weights around the global ones.
      prior_variance: sigma_0^2 > 0, of the global weights around 0.
      mass: gamma_0 > 0; the larger, the more readily a unit becomes a new global one.
      num_sweeps: how many times every client is matched again, >= 0.
      popularity: see `match_scores`.
    """

    variance: float = 1.0
    prior_variance: float = 1.0
    mass: float = 1.0
    num_sweeps: int = 5
    popularity: Popularity = "derived"


class Atoms(NamedTuple):
    """Global units in a fixed number of places, of which those with a count of 0 are free.

    Attributes:
      sums: S [places, D].
      precisions: Q [places, D].
      counts: m, integer [places].
    """

    sums: np.ndarray
    precisions: np.ndarray
    counts: np.ndarray


def match_scores(
    units: np.ndarray,
    precision: np.ndarray,
    atoms: Atoms,
    num_new: int,
    *,
    num_clients: int,
    prior_precision: float,
    mass: float,
    popularity: Popularity = "derived",
) -> np.ndarray:
    r"""Twice the log posterior that each choice for each unit of a client adds.

    With S, Q and m from the other clients' units, to be unit l the i-th global unit scores

    .. math::
        \sum_d \frac{(S_{id} + v_{ld}/\sigma_{jd}^2)^2}{Q_{id} + 1/\sigma_{jd}^2}
        - \frac{S_{id}^2}{Q_{id}} + 2 \log \frac{m_i}{J - m_i}

    and to be the k-th new one, k = 1, 2, ...,

    .. math::
        \sum_d \frac{(v_{ld}/\sigma_{jd}^2)^2}{1/\sigma_0^2 + 1/\sigma_{jd}^2}
        + 2 \log \frac{\gamma_0}{J} - 2 \log k

    The factor 2 before the first logarithm is what the model gives ("derived"). The released code
    has 1 there and counts no unit more than 10 times, min(m_i, 10) ("released").

    Args:
      units: v_j [L, D].
      precision: 1/sigma_j^2 [D], >= 0.
      atoms: the global units that other clients have; 1 <= counts < num_clients.
      num_new: how many new ones may be opened.
      num_clients: J.
      prior_precision: 1/sigma_0^2 > 0.
      mass: gamma_0 > 0.
      popularity: "derived" or "released".

    Returns:
      [L, len(atoms.counts) + num_new], to be maximised.

    Example:
      >>> atoms = Atoms(np.array([[2.0]]), np.array([[2.0]]), np.array([1]))
      >>> match_scores(np.array([[2.0]]), np.ones(1), atoms, 1, num_clients=2,
      ...              prior_precision=1.0, mass=2.0).round(4).tolist()  # 16/3 - 2 and 4/2
      [[3.3333, 2.0]]
    """
    weighted = units * precision
    total = atoms.precisions + precision
    fit = weighted**2 @ (1 / total).T + 2 * weighted @ (atoms.sums / total).T
    fit += (atoms.sums**2 * (1 / total - 1 / atoms.precisions)).sum(1)
    if popularity == "derived":
        fit += 2 * np.log(atoms.counts / (num_clients - atoms.counts))
    else:
        counts = np.minimum(atoms.counts, 10)
        fit += np.log(counts / (num_clients - counts))
    alone = (weighted**2 / (prior_precision + precision)).sum(1)
    opened = 2 * np.log(mass / num_clients) - 2 * np.log(np.arange(1, num_new + 1))
    return np.hstack([fit, alone[:, None] + opened])


def match_units(
    units: np.ndarray,
    precisions: np.ndarray,
    capacity: int,
    matching: Matching,
    random: np.random.Generator,
) -> tuple[np.ndarray, Atoms]:
    """Assigns every client's units to global ones, and averages those that share one.

    The clients are matched one after the other, in the given order and then, `num_sweeps` times,
    each again in a random order: its units are taken out and assigned so that the `match_scores`
    are largest in total, no two of them to the same global unit.

    Args:
      units: v [J, L, D].
      precisions: 1/sigma_j^2 [J, D].
      capacity: the largest number of global units, >= L. A client opens no unit beyond it, so
        once all places are taken its units share those that there are.
      matching: variances, mass and sweeps.
      random: draws the order of the sweeps.

    Returns:
      The global unit of each client's units, integer [J, L], and the `Atoms` [capacity], the
      most popular first, so that those in use come before those that are free.
    """
    num_clients, num_units, size = units.shape
    prior_precision = 1 / matching.prior_variance
    atoms = Atoms(
        np.zeros((capacity, size)), np.full((capacity, size), prior_precision),
        np.zeros(capacity, int),
    )
    places = np.zeros((num_clients, num_units), int)

    def add(j: int) -> None:
        used, free = np.flatnonzero(atoms.counts), np.flatnonzero(atoms.counts == 0)[:num_units]
        scores = match_scores(
            units[j], precisions[j], Atoms(*(leaf[used] for leaf in atoms)), len(free),
            num_clients=num_clients, prior_precision=prior_precision, mass=matching.mass,
            popularity=matching.popularity,
        )
        choices = _assign(-scores)
        places[j] = np.concatenate([used, free])[choices]
        atoms.sums[places[j]] += units[j] * precisions[j]
        atoms.precisions[places[j]] += precisions[j]
        atoms.counts[places[j]] += 1

    def remove(j: int) -> None:
        atoms.sums[places[j]] -= units[j] * precisions[j]
        atoms.precisions[places[j]] -= precisions[j]
        atoms.counts[places[j]] -= 1
        free = atoms.counts == 0
        atoms.sums[free], atoms.precisions[free] = 0, prior_precision  # exactly, not by rounding

    for j in range(num_clients):
        add(j)
    for _ in range(matching.num_sweeps):
        for j in random.permutation(num_clients):
            remove(j)
            add(j)
    order = np.argsort(-atoms.counts, kind="stable")
    return np.argsort(order)[places], Atoms(*(leaf[order] for leaf in atoms))


def match_networks(
    networks: Sequence[Network],
    output_weights: np.ndarray,
    capacity: Sequence[int],
    matching: Matching,
    random: np.random.Generator,
) -> tuple[list[dict[str, np.ndarray]], list[int]]:
    r"""Matched averaging of networks of the same sizes, from the top hidden layer down.

    The weights of a unit are its bias and its outgoing weights and, in the first hidden layer,
    its incoming ones. Below the top hidden layer the outgoing weights are put in the order of the
    global units above, with 0 for those that the client does not have.

    Args:
      networks: of the J clients; layers {'w': [in, out], 'b': [out]}, at least two.
      output_weights: p [J, outputs] >= 0; the precision of client j's weights and bias into
        output k is p_jk / sigma^2. The released code takes client j's share of the examples of
        class k.
      capacity: the largest number of global units of every hidden layer, see `match_units`.
      matching: variances, mass and sweeps.
      random: draws the order of the sweeps.

    Returns:
      The global network, with `capacity` units in its hidden layers, those that are not in use
      being 0 throughout, and how many are in use in each of them. Shrinking towards 0 belongs to
      the method: a weight that one client alone has is divided by 1 + sigma^2/sigma_0^2. A large
      prior_variance gives plain averages.
    """
    num_hidden, num_inputs = len(networks[0]) - 1, len(networks[0][0]["w"])
    num_outputs = output_weights.shape[1]
    outputs = output_weights / matching.variance
    total = outputs.sum(0) + 1 / matching.prior_variance
    bias = sum((s * net[-1]["b"] for s, net in zip(outputs, networks, strict=True)), np.zeros(1))
    layers = [{"b": bias / total} for _ in range(num_hidden + 1)]
    num_used = [0] * num_hidden
    places = np.tile(np.arange(num_outputs), (len(networks), 1))
    width = num_outputs
    for h in reversed(range(num_hidden)):
        units = np.stack([
            _unit_weights(net, h, place, width) for net, place in zip(networks, places, strict=True)
        ])
        precisions = np.full((len(networks), units.shape[2]), 1 / matching.variance)
        if h == num_hidden - 1:
            precisions[:, -num_outputs:] = outputs
        places, atoms = match_units(units, precisions, capacity[h], matching, random)
        means = atoms.sums / atoms.precisions
        layers[h + 1]["w"] = means[:, -width:]
        layers[h]["b"] = means[:, -width - 1]
        if h == 0:
            layers[0]["w"] = means[:, :num_inputs].T
        width = capacity[h]
        num_used[h] = int((atoms.counts > 0).sum())
    return layers, num_used


def match_cohort(
    stacked: Network,
    class_counts: np.ndarray | None,
    counted: np.ndarray,
    capacity: Sequence[int],
    matching: Matching,
    random: np.random.Generator,
) -> tuple[tuple[dict[str, np.ndarray], ...], np.ndarray]:
    """`match_networks` of those clients of a cohort that count.

    Args:
      stacked: layers {'w': [cohort, in, out], 'b': [cohort, out]}.
      class_counts: [cohort, outputs], every client's number of examples of each class, whose
        share is its output weight; None gives all clients the output weight 1.
      counted: bool [cohort]. If no client counts, the result is that for the first one alone.
      capacity, matching, random: as for `match_networks`.

    Returns:
      The global network, in the dtype of the clients', and the units in use, int32.
    """
    rows = np.flatnonzero(counted) if counted.any() else np.arange(1)
    networks = [[{name: leaf[j] for name, leaf in layer.items()} for layer in stacked]
                for j in rows]
    shares = np.ones((len(rows), stacked[-1]["b"].shape[1]))
    if class_counts is not None:
        counts = class_counts[rows].astype(np.float64)
        shares = counts / np.maximum(counts.sum(0), 1)
    layers, num_used = match_networks(networks, shares, capacity, matching, random)
    dtype = stacked[0]["b"].dtype
    network = tuple({name: leaf.astype(dtype) for name, leaf in layer.items()} for layer in layers)
    return network, np.array(num_used, np.int32)


def nearest_units(
    network: Network,
    global_network: Network,
    num_used: Sequence[int] | np.ndarray,
    output_weights: np.ndarray,
) -> list[np.ndarray]:
    r"""Which global unit each unit of a network is, given the global network.

    The assignment with the least :math:`\sum_l \sum_d p_d (v_{ld} - \theta_{il,d})^2`, which is
    the most probable one given theta, from the top hidden layer down.

    Args:
      network: layers {'w': [in, out], 'b': [out]}.
      global_network: the same, at least as wide.
      num_used: the units in use in each of its hidden layers; they come first.
      output_weights: [outputs], p of the weights into the output, as `match_networks` had it for
        this client; the others' is 1.

    Returns:
      For every hidden layer, int32 [units], all different.
    """
    num_hidden, num_outputs = len(network) - 1, len(output_weights)
    places, width = np.arange(num_outputs), num_outputs
    all_places = []
    for h in reversed(range(num_hidden)):
        units = _unit_weights(network, h, places, width)
        candidates = _unit_weights(global_network, h, np.arange(width), width)[: num_used[h]]
        precision = np.ones(units.shape[1])
        if h == num_hidden - 1:
            precision[-num_outputs:] = output_weights
        distances = (candidates**2 @ precision)[None, :] - 2 * (units * precision) @ candidates.T
        places = _assign(distances).astype(np.int32)
        width = len(global_network[h]["b"])
        all_places.insert(0, places)
    return all_places


def _unit_weights(network: Network, h: int, places: np.ndarray, width: int) -> np.ndarray:
    """All weights of the units of hidden layer h, float64 [units, D], outgoing ones at `places`."""
    bias, outgoing = network[h]["b"], network[h + 1]["w"]
    spread = np.zeros((len(bias), width))
    spread[:, places] = outgoing
    incoming = [network[0]["w"].T] if h == 0 else []
    return np.hstack([*incoming, bias[:, None], spread])


def _assign(costs: np.ndarray) -> np.ndarray:
    """The column for each row, all different, for which the sum of the costs is least."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - slow to import

    return linear_sum_assignment(costs)[1]
