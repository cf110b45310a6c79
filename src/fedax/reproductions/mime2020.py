"""Karimireddy et al. 2020 (Mime): Figures 3 to 5, by training; Table 3 is `mime2020_table`'s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedax.report.tables import Table
from fedax.reproductions import criteria, mime2020_table
from fedax.reproductions.drawing import draw_curves
from fedax.reproductions.experiment import Criterion, Experiment, Part, Plan, Scale, name_of
from fedax.reproductions.mime2020_table import FEMNIST, on_partial_data
from fedax.reproductions.partial import Partial
from fedax.reproductions.results import Results, spread

if TYPE_CHECKING:  # matplotlib is slow to import, and only drawing needs it
    from matplotlib.figure import Figure

SOURCE = "Karimireddy et al. 2020"
EMNIST, CIFAR, PLAYS = "EMNIST62", "CIFAR100", "plays, not in the paper"
SMALL_PANEL = f"Fashion-MNIST for {EMNIST}"
TASKS = {EMNIST: "emnist", CIFAR: "cifar100-tff"}
WRITERS = f"MNIST by writers for {EMNIST}"
# Panel -> what replaces its data at the scale "paper".
PARTIAL = {
    WRITERS: Partial("mnist-writers", hours=(0.009, 0.0005)),
    f"femnist-328 (300 rounds) for {EMNIST}": Partial("femnist-328", 300, (0.06, 0.003)),
    f"cifar100-resplit (40 rounds) for {CIFAR}": Partial("cifar100-resplit", 40, (0.3, 0.02)),
}


class Method(NamedTuple):
    """A method with a base optimizer, as the command line has it; rates are those of A.3.

    Attributes:
      algorithm, settings: what is trained.
      rate: the hyperparameter that is tuned.
      grid: its values at the scale "small", of the paper's powers of ten, and others tuned over.
      plays: the values of `rate` on the plays; empty: it is not trained there.
    """

    algorithm: str
    settings: Mapping[str, Any]
    grid: Mapping[str, Sequence[Any]]
    rate: str = "client_learning_rate"
    plays: Sequence[float] = ()


_CLIENT, _SERVER = "client_learning_rate", "server_learning_rate"
_LARGE, _MIDDLE, _LITTLE = [0.1, 1.0, 10.0], [0.01, 0.1, 1.0], [0.001, 0.01, 0.1]
_TINY = [0.0001, 0.001, 0.01]
# On the plays: steps of half a decade around docs/notebook/quick-rates.md; with Adam about
# the best one of four powers of ten with one seed, and server-only's with SGDm about that of three.
_ROLES, _STATISTICS = [1.0, 3.16, 10.0], [0.00316, 0.01, 0.0316]
SGDM, ADAM = "sgdm(0.9)", "adam(0.9, 0.99, 0.001)"
# Figure 5: the paper has 0.99 as well.
MOMENTA = {"none": "mime_sgd", "0.9": "mime_sgdm(0.9)", "0.99": "mime_sgdm(0.99)"}
_TUNED = {"server_optimizer": [MOMENTA["none"], MOMENTA["0.9"]]}
METHODS = {
    "Server-only SGDm": Method(
        "server_only", {"base": SGDM}, {_SERVER: _LARGE}, _SERVER, [10.0, 31.6, 100.0]
    ),
    "FedAvg SGDm": Method(
        "fedopt", {"server_optimizer": f"mime_{SGDM}", _SERVER: 1.0}, {_CLIENT: _MIDDLE},
        plays=_ROLES,
    ),
    "Mime SGDm": Method("mime", {"base": SGDM}, {_CLIENT: _MIDDLE}, plays=_ROLES),
    "MimeLite SGDm": Method("mimelite", {"base": SGDM}, {_CLIENT: _MIDDLE}, plays=_ROLES),
    "Server-only Adam": Method(
        "server_only", {"base": ADAM}, {_SERVER: _LITTLE}, _SERVER, [0.0316, 0.1, 0.316]
    ),
    "FedAvg Adam": Method(
        "fedopt", {"server_optimizer": f"mime_{ADAM}", _SERVER: 1.0}, {_CLIENT: _TINY},
        plays=[0.001, 0.00316, 0.01],
    ),
    "Mime Adam": Method("mime", {"base": ADAM}, {_CLIENT: _TINY}, plays=_STATISTICS),
    "MimeLite Adam": Method("mimelite", {"base": ADAM}, {_CLIENT: _TINY}, plays=_STATISTICS),
    "FedAvg SGD": Method(
        "fedopt", {"server_optimizer": "mime_sgd", _SERVER: 1.0}, {_CLIENT: _MIDDLE}, plays=_ROLES
    ),
    "Mime SGD": Method("mime", {"base": "sgd"}, {_CLIENT: _MIDDLE}, plays=_ROLES),
    "C-Mime SGDm": Method("cmime", {"base": SGDM}, {_CLIENT: _MIDDLE}),
    "C-Mime Adam": Method("cmime", {"base": ADAM}, {_CLIENT: _TINY}),
    "SCAFFOLD": Method(
        "scaffold", {_SERVER: 1.0}, {_CLIENT: _MIDDLE, **_TUNED}, plays=_ROLES
    ),
    "FedProx": Method(
        "fedprox", {_SERVER: 1.0}, {_CLIENT: _MIDDLE, **_TUNED}, plays=_ROLES
    ),
}
FIGURE_3 = [
    *(f"{method} {base}" for base in ("SGDm", "Adam")
      for method in ("Server-only", "FedAvg", "Mime", "MimeLite")), "FedAvg SGD", "Mime SGD",
]
FIGURE_4 = [
    f"{method} {base}" for base in ("SGDm", "Adam")
    for method in ("Server-only", "FedAvg", "Mime", "C-Mime")
]
FIGURE_5 = ["Mime SGDm", "SCAFFOLD", "FedProx", "FedAvg SGD"]

# A.3.
GRID = [10.0, 1.0, 0.1, 0.01, 0.001, 0.0001, 0.00001]
WEIGHTS = [0.1, 0.5, 1.0]

# Where the data of the paper are not to be had. At the scale "small" a client has so few images
# that 10 local epochs are not too long.
_FASHION: Mapping[str, Any] = {
    "task.model": "mlp", "task.partition": "dirichlet(0.3)", "task.num_clients": 1000,
    "batch_size": 20, "num_local_epochs": 10, "num_rounds": 80, "cohort_size": 10,
    "evaluate_every": 5,
}
_PLAYS: Mapping[str, Any] = {
    "task.model": "small", "batch_size": 4, "num_local_epochs": 10, "num_local_steps": 20,
    "weighting": "num_tokens", "num_rounds": 60, "cohort_size": 10, "evaluate_every": 5,
    "evaluation_sample": 1000,
}
_SETTINGS = {
    "paper": "The preset `mime2020` (appendix A): 20 clients a round, batches of 20, 10 local "
    "epochs, 1,000 rounds, momentum 0.9, Adam's 0.9, 0.99 and 0.001, FedAvg's server rate 1; "
    "rates tuned by the test accuracy, as in A.3, over its seven powers of ten. In CIFAR-100 the "
    "network is section 6's ResNet-20.",
    "stand-in": "MNIST by the 539 persons who wrote it, in place of EMNIST62, from the same forms; "
    "accuracy on the digits of 297 other persons; logistic regression, which Table 3 has, in place "
    f"of the MLP. {FEMNIST}, with the MLP. The preset `mime2020` (appendix A): 20 clients a round, "
    "batches of 20, 10 local epochs, 1,000 rounds, of femnist-328 300; momentum 0.9, Adam's 0.9, "
    "0.99 and 0.001, FedAvg's server rate 1; rates tuned by the test accuracy over A.3's seven "
    "powers of ten; of SCAFFOLD and FedProx the server's momentum too, over 0, 0.9 and 0.99, and "
    "FedProx's weight is 0.1, not tuned. Means over the last 100 rounds.",
    "small": "Fashion-MNIST dealt to 1,000 clients of 60 images by Dirichlet(0.3), and an MLP, in "
    "place of EMNIST62: 10 clients a round, batches of 20, 10 local epochs, so 30 local steps, 80 "
    "rounds; momentum 0.9, Adam's 0.9, 0.99 and 0.001 and FedAvg's server rate 1 as in A.3; rates "
    "tuned by the test accuracy over three neighbours of A.3's powers of ten for every method "
    "alike; of SCAFFOLD and FedProx the server's momentum over 0 and 0.9, not 0.99, and FedProx's "
    "weight is 0.1, not tuned. Accuracy every 5 rounds on 2,000 test images, on all after the "
    "last; means over the last third of the rounds.",
    "plays": " The plays that fedax carries, a second task that the paper does not have: the "
    "small LSTM, 10 roles a round, batches of 4, at most 20 local steps, 60 rounds; rates tuned by "
    "the test accuracy over three neighbours half a decade apart, about the best ones of "
    "docs/notebook/quick-rates.md; with Adam about the best of four powers of ten with one seed, "
    "server-only's with SGDm about the best of 3.16, 10 and 31.6 with one seed.",
}
_RESPLIT = (
    " cifar100-resplit is all of CIFAR-100's images with another split, dealt to 500 clients of "
    "100 by Pachinko allocation, with section 6's ResNet-20 and 40 rounds."
)


def _small(label: str) -> Part:
    method = METHODS[label]
    settings = {**_FASHION, **method.settings}
    if label == "FedProx":
        settings["proximal_weight"] = 0.1
    return Part(
        SMALL_PANEL, label, "fashion-mnist", method.algorithm, "none", settings, method.grid
    )


def _paper(label: str, panel: str) -> Part:
    """A method with A.3's grid: a part that several figures share."""
    method, used = METHODS[label], PARTIAL.get(panel, Partial(TASKS[name_of(panel)]))
    grid = {**method.grid, method.rate: GRID}
    if "server_optimizer" in grid:
        grid["server_optimizer"] = list(MOMENTA.values())
    settings = {**method.settings, **used.settings}
    if label == "FedProx" and panel in PARTIAL:
        settings["proximal_weight"] = 0.1
    elif label == "FedProx":
        grid["proximal_weight"] = WEIGHTS
    return Part(panel, label, used.task, method.algorithm, "mime2020", settings, grid)


def _plays(label: str) -> Part:
    method = METHODS[label]
    settings: dict[str, Any] = {**_PLAYS, **method.settings}
    grid = {**method.grid, method.rate: method.plays}
    if label == "FedProx":
        settings["proximal_weight"] = 0.1
    return Part(PLAYS, label, "shakespeare", method.algorithm, "none", settings, grid)


def _figure(
    labels: Sequence[str], scale: Scale, stand_in: bool, *, cifar: bool = False,
    plays: bool = False, hours: tuple[float, float], small: tuple[float, float],
) -> Plan | None:
    if scale == "small":
        return _small_figure(labels, cifar=cifar, plays=plays, hours=small) if stand_in else None
    chosen = [*PARTIAL] if stand_in else [EMNIST, CIFAR]
    panels = [panel for panel in chosen if cifar or name_of(panel) != CIFAR]
    parts = [_paper(label, panel) for panel in panels for label in labels]
    if stand_in:
        # There the network is another; and FedProx's weight, in Figure 5, is not searched.
        changed = {panel for panel in panels if panel == WRITERS or "FedProx" in labels}
        words = _SETTINGS["stand-in"] + _RESPLIT * cifar
        return on_partial_data(parts, words, PARTIAL, changed)
    times = {EMNIST: hours, CIFAR: (10_000.0, 150.0)}
    return Plan(tuple(parts), _SETTINGS["paper"], {panel: times[panel] for panel in panels})


def _small_figure(
    labels: Sequence[str], *, cifar: bool, plays: bool, hours: tuple[float, float]
) -> Plan:
    parts = [_small(label) for label in labels]
    text, times = _SETTINGS["small"], {SMALL_PANEL: (hours[0], 0.1)}
    if cifar:
        text += " CIFAR-100, which the figure has too, is left out."
    if plays:
        parts += [_plays(label) for label in labels if METHODS[label].plays]
        text += _SETTINGS["plays"]
        times[PLAYS] = (hours[1], 0.1)
    return Plan(tuple(parts), text, times)


def figure_3_plan(scale: Scale, stand_in: bool) -> Plan | None:
    """Server-only, FedAvg, Mime and MimeLite with two bases, and two of them without momentum."""
    return _figure(
        FIGURE_3, scale, stand_in, cifar=True, plays=True, hours=(40.0, 5.0), small=(0.4, 0.55)
    )


def figure_4_plan(scale: Scale, stand_in: bool) -> Plan | None:
    """C-Mime, whose clients change the statistics, among the methods of Figure 3."""
    return _figure(FIGURE_4, scale, stand_in, hours=(40.0, 5.0), small=(0.4, 0.0))


def figure_5_plan(scale: Scale, stand_in: bool) -> Plan | None:
    """Mime beside SCAFFOLD and FedProx, whose server momentum is tuned."""
    return _figure(
        FIGURE_5, scale, stand_in, plays=True, hours=(60.0, 7.0), small=(0.15, 0.35)
    )


def figure_3_criteria(results: Results) -> Sequence[Criterion]:
    """Section 6.2: Mime > MimeLite > server-only > FedAvg, and what momentum gains."""
    return [one for panel in results.panels for one in _orderings(panel)]


def _orderings(panel: str) -> Iterator[Criterion]:
    accuracy = "test_accuracy"
    for base in ("SGDm", "Adam"):
        yield criteria.within(
            "Mime and MimeLite have very similar performance", panel,
            [f"Mime {base}", f"MimeLite {base}"], accuracy, 2.0,
        )
        for ours in ("Mime", "MimeLite"):
            for other in ("Server-only", "FedAvg"):
                yield criteria.at_least(
                    f"{ours} is consistently better than {other}", panel, f"{ours} {base}",
                    f"{other} {base}", accuracy,
                )
        yield criteria.sooner(
            "FedAvg is slower than even the server-only method", panel, f"Server-only {base}",
            f"FedAvg {base}", accuracy,
        )
    yield criteria.at_least(
        "momentum has a significant impact on Mime", panel, "Mime SGDm", "Mime SGD", accuracy
    )
    yield criteria.gains_more(
        "Mime makes better use of momentum than FedAvg", panel, ("Mime SGDm", "Mime SGD"),
        ("FedAvg SGDm", "FedAvg SGD"), accuracy,
    )


def figure_4_criteria(results: Results) -> Sequence[Criterion]:
    """B.1: C-Mime is always worse than Mime, so at the end and on the way."""
    return [one for panel in results.panels for base in ("SGDm", "Adam") for one in (
        criteria.at_least(
            "C-Mime is always worse than Mime", panel, f"Mime {base}", f"C-Mime {base}",
            "test_accuracy",
        ),
        criteria.sooner(
            "C-Mime is always worse than Mime", panel, f"Mime {base}", f"C-Mime {base}",
            "test_accuracy",
        ),
    )]


def figure_5_criteria(results: Results) -> Sequence[Criterion]:
    """The caption: FedProx is the slowest, slower than FedAvg; SCAFFOLD is slower than Mime."""
    return [one for panel in results.panels for one in (
        criteria.at_least(
            "SCAFFOLD is outperformed by Mime", panel, "Mime SGDm", "SCAFFOLD", "test_accuracy"
        ),
        criteria.at_least(
            "FedProx is the slowest method, so behind Mime", panel, "Mime SGDm", "FedProx",
            "test_accuracy",
        ),
        criteria.sooner(
            "SCAFFOLD is slower than Mime", panel, "Mime SGDm", "SCAFFOLD", "test_accuracy"
        ),
        criteria.sooner(
            "FedProx is the slowest method", panel, "SCAFFOLD", "FedProx", "test_accuracy"
        ),
        criteria.sooner(
            "FedProx is even slower than FedAvg", panel, "FedAvg SGD", "FedProx", "test_accuracy"
        ),
        *(criteria.chosen(
            "the best server momentum is 0 for both", panel, label, "server_optimizer",
            MOMENTA["none"],
        ) for label in ("SCAFFOLD", "FedProx")),
        *([criteria.chosen(
            "the best weight of FedProx is 0.1", panel, "FedProx", "proximal_weight", 0.1
        )] if "proximal_weight" in results.settings(panel, "FedProx")[0] else []),
    )]


def _accuracies(labels: Sequence[str], results: Results) -> list[Table]:
    rows = []
    for label in labels:
        row = [label]
        for panel in results.panels:
            if label not in results.labels(panel):
                planned = panel != PLAYS or METHODS[label].plays
                row += ["not run" if planned else "", ""]
                continue
            row.append(spread(results.final(panel, label, "test_accuracy"), 2, 100))
            row.append(_best(results, panel, label))
        rows.append(row)
    title = (
        "Test accuracy in per cent at the end of training, of the best setting; the text has no "
        "numbers of this figure."
    )
    heads = [cell for panel in results.panels for cell in (panel, "best setting")]
    return [Table(title, ["", *heads], rows)]


def _best(results: Results, panel: str, label: str) -> str:
    try:
        values = results.best(panel, label)
    except LookupError:
        return ""
    return ", ".join(f"{key} {value}" for key, value in values.items())


def figure_3_tables(results: Results) -> list[Table]:
    """Final accuracies."""
    return _accuracies(FIGURE_3, results)


def figure_4_tables(results: Results) -> list[Table]:
    """Final accuracies."""
    return _accuracies(FIGURE_4, results)


def figure_5_tables(results: Results) -> list[Table]:
    """Final accuracies."""
    return _accuracies(FIGURE_5, results)


COLOURS = {
    "Server-only": "black", "FedAvg": "#d95f02", "Mime": "#1f6fb2", "MimeLite": "#2ca25f",
    "C-Mime": "#8856a7", "SCAFFOLD": "#2ca25f", "FedProx": "#8856a7",
}


def draw_figure_3(figure: Figure, results: Results) -> None:
    """Accuracy against rounds: SGDm, Adam, and with and without momentum; a row a task."""
    momentum = ["FedAvg SGD", "FedAvg SGDm", "Mime SGD", "Mime SGDm"]
    _draw(figure, results, {
        "SGDm": [label for label in FIGURE_3 if label.endswith("SGDm")],
        "Adam": [label for label in FIGURE_3 if label.endswith("Adam")],
        "with and without momentum": momentum,
    })


def draw_figure_4(figure: Figure, results: Results) -> None:
    """Accuracy against rounds: SGDm and Adam."""
    _draw(figure, results, {
        base: [label for label in FIGURE_4 if label.endswith(base)] for base in ("SGDm", "Adam")
    })


def draw_figure_5(figure: Figure, results: Results) -> None:
    """Accuracy against rounds."""
    _draw(figure, results, {"momentum methods": FIGURE_5})


def _draw(figure: Figure, results: Results, columns: Mapping[str, Sequence[str]]) -> None:
    panels = results.panels
    figure.set_size_inches(5 * len(columns), 4 * max(len(panels), 1))
    axes = figure.subplots(max(len(panels), 1), len(columns), squeeze=False)
    for row, panel in zip(axes, panels, strict=False):
        for place, (title, labels) in zip(row, columns.items(), strict=True):
            draw_curves(place, results, panel, "test_accuracy", scale=100, styles={
                label: (COLOURS[label.partition(" ")[0]], "--" if label.endswith("SGD") else "-")
                for label in labels
            })
            place.set_title(f"{panel}\n{title}")
            place.set_ylabel("test accuracy (%)")


figure_3 = Experiment(
    "Mime and MimeLite are ahead of server-only methods and FedAvg, and make more of momentum",
    f"{SOURCE}, Figure 3", figure_3_plan, figure_3_criteria, figure_3_tables, draw_figure_3,
    "test_accuracy", maximise=True,
)
figure_4 = Experiment(
    "Mime with statistics that change within a round is worse",
    f"{SOURCE}, Figure 4", figure_4_plan, figure_4_criteria, figure_4_tables, draw_figure_4,
    "test_accuracy", maximise=True,
)
figure_5 = Experiment(
    "Mime is ahead of SCAFFOLD and FedProx where clients seldom take part",
    f"{SOURCE}, Figure 5", figure_5_plan, figure_5_criteria, figure_5_tables, draw_figure_5,
    "test_accuracy", maximise=True,
)

EXPERIMENTS: dict[str, Experiment] = {
    "mime2020-figure-3": figure_3,
    "mime2020-figure-4": figure_4,
    "mime2020-figure-5": figure_5,
    "mime2020-table-3": mime2020_table.table_3,
}
