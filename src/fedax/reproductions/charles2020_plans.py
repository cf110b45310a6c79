"""Charles and Konečný 2020: the tasks of section 8, their stand-ins, and what is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedax.algorithms.plateau import plateau_lengths
from fedax.reproductions.experiment import Part, Plan, Scale, name_of
from fedax.reproductions.partial import Partial
from fedax.reproductions.results import Results

# (23): the server rates; and those client rates among which section 8 varies.
SERVER_RATES = tuple(10 ** (power / 2) for power in range(-6, 3))
CLIENT_RATES = (0.0, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
# Sections 8.1 and 8.4: the server rate where it is not tuned.
FIXED = 0.01
# LocalUpdateDecay whose rates do not fall is LocalUpdate; it reports the loss of the round's
# clients on all of their examples before they train, `full_loss`, which estimates f(x_t).
METHOD = "local_update_decay"
LOSS = "full_loss"
CONSTANT: Mapping[str, Any] = {"client_decay": 1.0, "server_decay": 1.0}
NORM = "pseudo_gradient_norm"
COHORT = 10
# Rounds of Figures 8 and 9 at the scale "small", enough for rates to fall.
LONG = 800


class Small(NamedTuple):
    """The small scale of a task, on a stand-in for the paper's data.

    Attributes:
      panel: its name.
      task, preset, settings: of all runs.
      client_rates, server_rates: that are tried; client rates of LocalUpdateDecay.
      reduce_rates: client rates of LocalUpdateDecay that are tried.
      fixed: the server rate where it is not tuned.
      seconds: a round, on one core.
      words: the stand-in, and what is reduced besides rounds.
      at_fixed: the server rate where it is not tuned, and why.
      begun: constant client rates that LocalUpdateDecay may begin with, and that are not among
        those above.
      num_clients: N, of which W = P = C = ceil(N / 10) of LocalUpdateDecay are made.
      long_server_rates: that are tried in the longer runs of Figures 8 and 9; empty: those above.
    """

    panel: str
    task: str
    preset: str
    settings: Mapping[str, Any]
    client_rates: tuple[float, ...]
    server_rates: tuple[float, ...]
    reduce_rates: tuple[float, ...]
    fixed: float
    seconds: float
    words: str
    at_fixed: str
    begun: tuple[float, ...] = ()
    num_clients: int = 300
    long_server_rates: tuple[float, ...] = ()


class Data(NamedTuple):
    """A task of the paper.

    Attributes:
      best: client rate -> best server rate, of Tables 3 to 7.
      reduce: client and server rate of LocalUpdateDecay, of Table 2.
      task: with the paper's data.
      rounds: that the preset has.
      seconds: a round, on 2 cores and guessed on a GPU.
      monotone: the best server rate does not fall up to this client rate in Tables 3 to 7.
      unit: what client rates are multiplied by, where the released code sums over a batch.
      small: None: there is none.
      partial: what replaces the data at the scale "paper": the panel's name, the data, and their
        clients; None: nothing does.
    """

    best: Mapping[float, float]
    reduce: tuple[float, float]
    task: str
    rounds: int
    seconds: tuple[float, float]
    monotone: float
    unit: float = 1.0
    small: Small | None = None
    partial: tuple[str, Partial, int] | None = None


# 10^-3/2, 10^-1/2 and so on, exactly as in SERVER_RATES.
_R = {power: 10 ** (power / 2) for power in range(-6, 3)}
_STEPS = {
    "num_local_steps": 10, "weighting": "uniform", "order": "iid", "cohort_size": COHORT,
    "evaluate_every": 0, "threshold": 1e-4,
}
_IMAGES = {**_STEPS, "num_local_epochs": None, "batch_size": 20, "loss_batch_size": 100}
_PLAYS = {**_STEPS, "task.model": "small", "batch_size": 4, "loss_batch_size": 20,
          "num_rounds": 200}
# As in the preset charles2020 of Stack Overflow.
_YOGI = {"server_optimizer": "yogi(1e-05, 0.9, 0.99, 0.0)"}
_OF_PLAYS = (
    "the plays that fedax carries, batches of 4, one LSTM layer of a tenth of the parameters"
)

DATA = {
    "FEMNIST": Data(
        {0.1: _R[-4], 0.01: _R[-3], 0.001: _R[-3], 0.0: _R[-3]}, (0.1, _R[-2]), "emnist", 1500,
        (1.5, 0.05), 0.01, small=Small(
            "Fashion-MNIST for FEMNIST", "fashion-mnist", "quick",
            {**_IMAGES, "task.model": "mlp", "task.partition": "dirichlet(0.3)",
             "task.num_clients": 300, "num_rounds": 300},
            (0.0, 0.01, 0.1), (_R[-4], _R[-3], _R[-2]), (1.0, 0.1), FIXED, 0.06,
            "For FEMNIST Fashion-MNIST dealt to 300 clients by Dirichlet(0.3), batches of 20, an "
            "MLP", "0.01 as in section 8.1",
            long_server_rates=(_R[-4], _R[-3], _R[-2], _R[-1]),
        ),
        partial=(
            "femnist-328 (300 rounds) for FEMNIST",
            Partial("femnist-328", 300, (0.15, 0.01), evaluate_every=0), 328,
        ),
    ),
    "CIFAR-100": Data(
        {1.0: _R[-2], 0.1: _R[-2], 0.01: _R[-3], 0.001: _R[-3], 0.0: _R[-3]}, (1.0, _R[-2]),
        "cifar100-tff", 4000, (30.0, 0.2), 1.0, small=Small(
            "Fashion-MNIST for CIFAR-100", "fashion-mnist", "quick",
            {**_IMAGES, "task.model": "logistic", "task.partition": "dirichlet(0.1)",
             "task.num_clients": 500, "num_rounds": 600},
            (0.0, 0.001, 0.01, 0.1, 1.0), (_R[-5], _R[-4], _R[-3], _R[-2], _R[-1]),
            (100.0, 10.0, 1.0),
            FIXED, 0.01,
            "For CIFAR-100, on which large client rates ended clearly worse, Fashion-MNIST dealt "
            "to 500 clients by Dirichlet(0.1), batches of 20, a logistic model",
            "0.01 as in section 8.1",
            num_clients=500,
        ),
        partial=(
            "cifar100-resplit (200 rounds) for CIFAR-100",
            Partial("cifar100-resplit", 200, (0.25, 0.02), evaluate_every=0), 500,
        ),
    ),
    "Shakespeare": Data(
        {1.0: _R[-1], 0.1: _R[0], 0.01: _R[-2], 0.001: _R[-2], 0.0: _R[-2]}, (1.0, _R[-3]),
        "shakespeare-tff", 1200, (0.8, 0.1), 0.1, small=Small(
            "plays for Shakespeare", "shakespeare", "charles2020",
            _PLAYS, (0.0, 0.1, 1.0), (_R[-2], _R[-1], _R[0]), (100.0, 10.0, 1.0), _R[-1], 0.3,
            f"For Shakespeare {_OF_PLAYS}", "10^-0.5 for 0.01, as these are few: with 0.1 no gamma "
            "comes far in them", num_clients=1219,
            long_server_rates=(_R[-1], _R[0], _R[1]),
        ),
        partial=(
            "plays (1,200 rounds) for Shakespeare", Partial("shakespeare", evaluate_every=0), 1219,
        ),
    ),
    "StackOverflow NWP": Data(
        {0.1: _R[-3], 0.01: _R[-3], 0.001: _R[-4], 0.0: _R[-4]}, (0.1, _R[-3]),
        "stackoverflow-words", 1500, (60.0, 1.0), 0.1, small=Small(
            "plays for StackOverflow NWP", "shakespeare", "charles2020", {**_PLAYS, **_YOGI},
            (0.0, 0.01, 0.1), (_R[-4], _R[-3], _R[-2]), (100.0, 10.0, 1.0, 0.1), _R[-3], 0.4,
            f"For next words of Stack Overflow next characters: {_OF_PLAYS}",
            "10^-1.5 for 0.01, as these are few", num_clients=1219,
        ),
    ),
    "StackOverflow TP": Data(
        {100.0: _R[-1], 10.0: _R[-1], 1.0: _R[-1], 0.1: _R[-1], 0.01: _R[-1], 0.0: _R[-1]},
        (100.0, _R[0]), "stackoverflow-tags", 1500, (10.0, 0.3), 100.0, 16.0, Small(
            "Fashion-MNIST for StackOverflow TP", "fashion-mnist", "quick",
            {**_IMAGES, **_YOGI, "task.model": "logistic", "task.partition": "dirichlet(0.3)",
             "task.num_clients": 300, "num_rounds": 600},
            (0.0, 0.01, 0.1, 1.0), (_R[-6], _R[-5], _R[-4], _R[-3]),
            (100.0, 10.0, 1.0, 0.1), FIXED, 0.01,
            "For tags of Stack Overflow, a logistic model too, Fashion-MNIST dealt to 300 clients "
            "by Dirichlet(0.3), batches of 20", "0.01 as in section 8.4", (10.0, 100.0),
        ),
    ),
}
BY_SGD = ("FEMNIST", "CIFAR-100", "Shakespeare")
BY_YOGI = ("StackOverflow NWP", "StackOverflow TP")

_PAPER = (
    "The presets charles2020: sections 8 and 9, Tables 2 to 7 (docs/tasks.md); the text does not "
    "say how many rounds there were: those of Reddi et al. 2021. Constant rates are "
    "LocalUpdateDecay's with alpha = beta = 1, which is LocalUpdate and reports the loss of the "
    "round's clients before they train (section 9). Its mean over cohorts is the loss of all "
    "clients, which the paper shows but of Stack Overflow, and which takes a pass over all data. "
    "3 seeds for 1."
)
_ALL_ROUNDS = (
    " Shakespeare has all its rounds in every plan: gamma = 0 is not level with larger ones until "
    "near the end of training (section 8.3)."
)
_PARTIAL = (
    " The plays that fedax carries, in place of TensorFlow Federated's. femnist-328: 328 of LEAF's "
    "3,597 writers, in place of the 3,400 of TensorFlow Federated, for 300 rounds of 1,500. "
    "cifar100-resplit: all images with another split, dealt to 500 clients of 100 by Pachinko "
    "allocation, for 200 rounds of 4,000. Where rounds are fewer, LocalUpdateDecay has section "
    "9.1's default W = P = C = ceil(N / M), 33 and 50, in place of 100."
)
_SMALL = (
    "10 local steps, 10 clients a round, all of one weight (section 8); the loss is that of the "
    "round's clients on all their examples before they train (section 9), where the paper has all "
    "clients' but of Stack Overflow. Reduced: grids, rounds and models."
)
_LONG = (
    f" {LONG} rounds are enough for rates to fall. "
    "LocalUpdateDecay with section 9.1's default W = P = C = ceil(N / M), which is {} with all "
    "clients for its N, where the paper has 100; it begins with the largest gamma tried that does "
    "not diverge: with its best eta no window of the first C rounds, in which no rate can fall "
    "yet, has a mean loss above 1.2 times that of the untrained model."
)


def constant(rate: float) -> str:
    """What LocalUpdate with a client rate is called.

    Example:
      >>> constant(0.001), tied(0.1), reduced(1.0)
      ('gamma = 0.001', 'gamma = eta = 0.1', 'ReduceLR, gamma = 1')
    """
    return f"gamma = {rate:g}"


def tied(rate: float) -> str:
    """What LocalUpdate with one rate for both is called."""
    return f"gamma = eta = {rate:g}"


def reduced(rate: float) -> str:
    """What LocalUpdateDecay from a client rate is called, with the paper's "ReduceLR"."""
    return f"ReduceLR, gamma = {rate:g}"


def rates_of(
    results: Results, panel: str, called: Callable[[float], str] = constant
) -> list[float]:
    """The client rates that have runs in a panel, the smallest first."""
    known = results.labels(panel)
    return [rate for rate in CLIENT_RATES if called(rate) in known]


def shown(results: Results, panel: str) -> list[float]:
    """Those of them that the paper shows, as they did not diverge."""
    return [rate for rate in rates_of(results, panel) if rate in DATA[name_of(panel)].best]


def lengths_of(panel: str) -> Mapping[str, int]:
    """W = P = C of LocalUpdateDecay where rounds are fewer (section 9.1); empty: the preset's 100.

    Example:
      >>> lengths_of("Shakespeare"), lengths_of("femnist-328 (300 rounds) for FEMNIST")["cooldown"]
      ({}, 33)
    """
    data = DATA[name_of(panel)]
    if data.small and panel == data.small.panel:
        return plateau_lengths(data.small.num_clients, COHORT)
    if data.partial and panel == data.partial[0] and data.partial[1].rounds:
        return plateau_lengths(data.partial[2], COHORT)
    return {}


class Kind(NamedTuple):
    """What is trained on a task.

    Attributes:
      client_rates: that are tried.
      called: a client rate's label.
      settings: (client rate, fixed server rate) -> more settings.
      tuned: whether the server rate is.
      long: whether a small run has LONG rounds.
    """

    client_rates: Callable[[Small | None], Sequence[float]]
    called: Callable[[float], str]
    settings: Callable[[float, float], Mapping[str, Any]]
    tuned: bool
    long: bool = False


# Figures 2, 3 and 6; the norms of updates are Figure 3's.
AT_FIXED = Kind(
    lambda small: small.client_rates if small else CLIENT_RATES, constant,
    lambda _, fixed: {**CONSTANT, "server_learning_rate": fixed, "diagnostics": True}, False,
)
# Figure 4; the run with both rates 0.01 is one of Figure 2.
TIED = Kind(
    lambda small: [r for r in (small.client_rates if small else CLIENT_RATES) if r], tied,
    lambda rate, _: {**CONSTANT, "server_learning_rate": rate, "diagnostics": True}, False,
)
# Figures 5 and 7, Tables 3 to 7.
TUNED = Kind(
    lambda small: small.client_rates if small else CLIENT_RATES, constant,
    lambda *_: CONSTANT, True,
)
# Figures 8 and 9.
LONG_TUNED = TUNED._replace(long=True)
# Figures 8 and 9, Table 2. Section 9.2: 10^2 to 10^-2.
REDUCED = Kind(
    lambda small: small.reduce_rates if small else CLIENT_RATES[2:], reduced,
    lambda *_: {"client_decay": 0.1, "server_decay": 0.9}, True, long=True,
)
# Figures 8 and 9.
BEGUN = Kind(
    lambda small: small.begun if small else (), constant, lambda *_: CONSTANT, True, long=True
)


def plan(names: Sequence[str], kinds: Sequence[Kind]) -> Callable[[Scale, bool], Plan | None]:
    """The plans of some tasks and of what is trained on them."""
    def of(scale: Scale, stand_in: bool) -> Plan | None:
        if scale == "small":
            chosen = [name for name in names if DATA[name].small] if stand_in else []
        else:
            chosen = [name for name in names if not stand_in or DATA[name].partial]
        parts, hours = [], {}
        for name in chosen:
            own = list(_parts(name, kinds, scale == "small", stand_in))
            parts += own
            hours[own[0].panel] = _hours(name, own, scale == "small", stand_in)
        if scale == "small":
            reduced_to = [small for name in chosen if (small := DATA[name].small)]
            words = " ".join([_SMALL, *(_in_words(small, kinds) for small in reduced_to)])
            if REDUCED in kinds:
                lengths = (str(lengths_of(small.panel)["window"]) for small in reduced_to)
                words += _LONG.format(", ".join(lengths))
        else:
            words = _PAPER + _ALL_ROUNDS * ("Shakespeare" in chosen) + _PARTIAL * stand_in
        return Plan(tuple(parts), words, hours) if parts else None

    return of


def _in_words(small: Small, kinds: Sequence[Kind]) -> str:
    rounds = LONG if REDUCED in kinds else small.settings["num_rounds"]
    fixed = f"; the fixed server rate is {small.at_fixed}" if AT_FIXED in kinds else ""
    return f"{small.words}, {rounds} rounds{fixed}."


def _parts(name: str, kinds: Sequence[Kind], is_small: bool, stand_in: bool) -> Iterator[Part]:
    data = DATA[name]
    reduced_to = data.small if is_small else None
    if reduced_to:
        panel, task, preset, common = reduced_to[:4]
    elif stand_in and data.partial:
        panel, used, _ = data.partial
        task, preset, common = used.task, "charles2020", used.settings
    else:
        panel, task, preset, common = name, data.task, "charles2020", {"evaluate_every": 0}
    for kind in kinds:
        for rate in kind.client_rates(reduced_to):
            settings = {
                **common, "client_learning_rate": rate * (1.0 if reduced_to else data.unit),
                **kind.settings(rate, reduced_to.fixed if reduced_to else FIXED),
            }
            servers = reduced_to.server_rates if reduced_to else SERVER_RATES
            if kind.long:
                settings |= lengths_of(panel)
            if reduced_to and kind.long:
                settings |= {"num_rounds": LONG}
                servers = reduced_to.long_server_rates or servers
            yield Part(panel, kind.called(rate), task, METHOD, preset, settings,
                       {"server_learning_rate": servers} if kind.tuned else {})


def _hours(
    name: str, parts: Sequence[Part], is_small: bool, stand_in: bool
) -> tuple[float, float]:
    """On 2 cores, and guessed on a GPU."""
    data = DATA[name]
    runs = [part.num_seeds * math.prod(map(len, part.grid.values())) for part in parts]
    of_a_run = data.partial[1].hours if data.partial else None
    if is_small and data.small:
        rounds = sum(
            count * part.settings["num_rounds"] for count, part in zip(runs, parts, strict=True)
        )
        times = (rounds * data.small.seconds / 2, rounds * data.small.seconds / 8)
    elif stand_in and of_a_run:
        times = tuple(3600 * sum(runs) * one for one in of_a_run)
    else:
        times = tuple(sum(runs) * data.rounds * seconds for seconds in data.seconds)
    cpu, gpu = (float(f"{time / 3600:.1g}") for time in times)
    return cpu, gpu
