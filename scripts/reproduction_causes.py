"""Looks into why a reproduction disagrees: its runs again, with one thing changed at a time.

    python scripts/reproduction_causes.py --storage DIR [NAME ...] [--only WORDS]

Prints their tables; with neither it also writes the page that has all. What it means stands in
the notes docs/notebook/reproductions/NAME-SCALE.txt. Runs are kept in DIR by their
settings, so that none is trained twice; with --no-training a table whose runs DIR lacks stays as
the page has it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import RunError
from fedax.reproductions import EXPERIMENTS
from fedax.reproductions.experiment import Part
from fedax.reproductions.jobs import jobs_of
from fedax.reproductions.outcome import judged, verdict
from fedax.reproductions.results import Results, spread, traces_of
from fedax.reproductions.results_file import read
from fedax.tasks import mnist

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "notebook" / "reproductions"
PAGE = RESULTS.parent / "reproduction-causes.md"
RATES = {"client_learning_rate", "server_learning_rate"}
ABOVE = """# Reproductions run again with one thing changed

Runs of the [pages of reproductions](reproductions.md) that disagree, made again with one thing \
changed. The notes there say what follows from it; here are all tables, written by \
`python scripts/reproduction_causes.py --storage DIR`, which trains what DIR does not have.

Everything is as in the small plan of `fedax reproduce NAME`, with `--stand-in` where other data \
replace the paper's, except for what the heading says. The best setting is chosen again where a \
grid was tried (in brackets: the best server rate for each client rate); otherwise, and where the \
cell is empty, it is the plan's. Values are means over the first third of the rounds and over the \
last 100, or the last third if that is less, \
with the standard deviation over the seeds."""
DECAYS = ("server_decay", "client_decay", "steps_decay")


class Probe(NamedTuple):
    """Runs of an experiment with something changed.

    Attributes:
      experiment, panel: whose runs.
      words: what is changed.
      settings: of all runs.
      labels: of the methods that are run; none: all.
      grid: what takes the place of keys of the experiment's grid; None: its best setting is taken.
      seeds: how many.
      metrics: that are printed.
      beyond: (label, settings) of methods that the experiment does not have, like its first.
    """

    experiment: str
    panel: str
    words: str
    settings: Mapping[str, Any] = {}
    labels: tuple[str, ...] = ()
    grid: Mapping[str, Sequence[Any]] | None = None
    seeds: int = 1
    metrics: tuple[str, ...] = ("test_accuracy",)
    beyond: tuple[tuple[str, Mapping[str, Any]], ...] = ()


_FEMNIST, _CIFAR = "Fashion-MNIST for FEMNIST", "Fashion-MNIST for CIFAR-100"
_PLAYS, _EMNIST = "plays for Shakespeare", "Fashion-MNIST for EMNIST62"
_WORDS, _TAGS = "plays for StackOverflow NWP", "Fashion-MNIST for StackOverflow TP"
_LOSS = ("full_loss",)
_ALIKE = {"task.partition": "dirichlet(100)"}
_FALLING = ("ReduceLR, gamma = 10", "ReduceLR, gamma = 1")
_WAITS = {"window": 100, "patience": 100, "cooldown": 100}


def _beyond(*rates: float) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    return tuple((f"gamma = {rate:g}", {"client_learning_rate": rate}) for rate in rates)


def _best_rate(table: int, panel: str, words: str, **more: Any) -> Probe:
    return Probe(f"charles2020-table-{table}", panel, words, metrics=_LOSS, **more)


PROBES: Sequence[Probe] = (
    # Do all methods end alike on an easy task, given rounds?
    Probe("reddi2021-table-1", "Fashion-MNIST for EMNIST CR", "1,000 rounds",
          {"num_rounds": 1000}, seeds=3),
    Probe("reddi2021-table-1", _PLAYS, "500 rounds", {"num_rounds": 500}),
    # Does the grid end too early for small client rates?
    *(Probe("reddi2021-figure-4", "Fashion-MNIST for EMNIST CR", "the server rate 0.1 alone",
            labels=(label,), grid={"server_learning_rate": [0.1]}, seeds=3,
            metrics=("train_loss",)) for label in ("Adam", "Yogi")),
    # Does the average of updates cost Adam and Yogi their first rounds, unlike Adagrad?
    Probe("reddi2021-figure-1", "CIFAR-10", "without momentum", {"momentum": 0.0},
          ("Adam", "Yogi"), seeds=3),
    # Is an adaptivity of 0.001 above the means of squares in the first rounds, as they begin at
    # zero and take in 1% a round, so that Adam and Yogi do not adapt yet? Rates: Figure 3's best.
    *(Probe("reddi2021-figure-1", "CIFAR-10", "adaptivity 1e-05 and its best rates in Figure 3",
            {"adaptivity": 1e-5}, labels, seeds=3,
            grid={"client_learning_rate": [0.0316], "server_learning_rate": [server]})
      for labels, server in ((("Adagrad",), 0.01), (("Adam", "Yogi"), 0.001))),
    # Is Figure 3's grid too short for an adaptivity of 0.1?
    Probe("reddi2021-figure-1", "Fashion-MNIST for EMNIST CR",
          "adaptivity 0.1 and larger server rates", {"adaptivity": 0.1}, ("Adam", "Yogi"),
          {"client_learning_rate": [0.1, 10**-0.5],
           "server_learning_rate": [10**-0.25, 1.0, 10**0.5]}, seeds=3),
    # Does the best server rate fall less with it, as published?
    *(Probe("reddi2021-figure-4", panel, "adaptivity 1e-05", {"adaptivity": 1e-5},
            ("Adam", "Yogi"), {"server_learning_rate": [10 ** (k / 2) for k in steps]}, seeds=3,
            metrics=("train_loss",))
      for panel, steps in (("CIFAR-10", range(-8, -4)),
                           ("Fashion-MNIST for EMNIST CR", range(-6, -2)))),
    # By how much do the best server rates fall, with steps of a quarter of a decade?
    *(Probe("reddi2021-figure-4", panel, "a finer grid", labels=labels, metrics=("train_loss",),
            grid={"server_learning_rate": [lowest * 10 ** (k / 4) for k in range(7)]})
      for panel, labels, lowest in (
          ("Fashion-MNIST for EMNIST CR", ("Avg",), 10**-0.5),
          ("Fashion-MNIST for EMNIST CR", ("Adam", "Yogi"), 10**-3.0),
          ("CIFAR-10", ("Avg",), 10**-0.5),
      )),
    # Is gamma = 1 too large for the stand-in, so that up to 1/L all is as published?
    Probe("charles2020-figure-3", _CIFAR, "client rates between 0.1 and 1",
          labels=("gamma = 0", "gamma = 0.01", "gamma = 0.1", "gamma = 1"), seeds=3,
          metrics=("pseudo_gradient_norm", "full_loss"), beyond=_beyond(0.2, 0.3, 0.5)),
    _best_rate(3, _CIFAR, "client rates between 0.1 and 1", labels=("gamma = 0.1",),
               grid={}, seeds=3, beyond=_beyond(0.2, 0.3, 0.5)),
    # Is the grid too short at the top?
    _best_rate(4, _FEMNIST, "two larger server rates", seeds=3,
               grid={"server_learning_rate": [10**-1.5, 0.1, 10**-0.5, 1.0]}),
    # Does the best server rate fall at larger client rates?
    _best_rate(4, _FEMNIST, "larger client rates", labels=("gamma = 0.1",),
               grid={"server_learning_rate": [10**-2.5, 0.01, 10**-1.5, 0.1, 10**-0.5]},
               beyond=_beyond(0.3, 0.5, 1.0)),
    _best_rate(5, _PLAYS, "two larger server rates", labels=("gamma = 0.1", "gamma = 1"),
               grid={"server_learning_rate": [10**-0.5, 1.0, 10**0.5, 10.0]}),
    # Does it fall at larger client rates, as for FEMNIST, or given rounds? Does it rise given them?
    _best_rate(5, _PLAYS, "larger client rates", labels=("gamma = 1",), grid={},
               beyond=_beyond(2.0, 3.0)),
    _best_rate(5, _PLAYS, "600 rounds", labels=("gamma = 0.1", "gamma = 1"), grid={},
               settings={"num_rounds": 600}),
    _best_rate(6, _WORDS, "600 rounds", labels=("gamma = 0", "gamma = 0.1"), grid={},
               settings={"num_rounds": 600}),
    # Do the curves cross later? Is gamma = 0 comparable later?
    *(Probe(f"charles2020-figure-{figure}", panel, f"{rounds:,} rounds",
            {"num_rounds": rounds}, seeds=seeds, metrics=_LOSS)
      for figure, panel, rounds, seeds in (
          (2, _CIFAR, 6000, 1), (2, _FEMNIST, 1500, 3),
          (5, _CIFAR, 6000, 1), (5, _FEMNIST, 1500, 1),
      )),
    Probe("charles2020-figure-5", _PLAYS, "600 rounds", {"num_rounds": 600}, metrics=_LOSS),
    *(Probe("charles2020-figure-5", panel, f"{rounds:,} rounds", {"num_rounds": rounds},
            ("gamma = 0", best), metrics=_LOSS)
      for panel, rounds, best in ((_FEMNIST, 6000, "gamma = 0.1"), (_PLAYS, 1800, "gamma = 1"))),
    # And with rates tuned for that many?
    Probe("charles2020-figure-5", _FEMNIST, "6,000 rounds, rates tuned again",
          {"num_rounds": 6000}, ("gamma = 0", "gamma = 0.1"), {}, metrics=_LOSS),
    Probe("charles2020-figure-5", _FEMNIST, "6,000 rounds, the server rate between", {
        "num_rounds": 6000}, ("gamma = 0",), {"server_learning_rate": [10**-1.25]}, metrics=_LOSS),
    Probe("charles2020-figure-6", _WORDS, "600 rounds", {"num_rounds": 600},
          ("gamma = 0", "gamma = 0.1"), metrics=_LOSS),
    # Does LocalUpdateDecay fall too early, with waits a quarter of the published ones? And the
    # same waits as a share of the rounds?
    Probe("charles2020-figure-8", _CIFAR, "W = P = C = 100 as published",
          _WAITS, _FALLING, {}, seeds=5, metrics=_LOSS),
    *(Probe("charles2020-figure-8", _CIFAR, f"2,400 rounds{words}",
            {"num_rounds": 2400, **change}, labels,
            {"server_learning_rate": [0.01, 10**-1.5, 0.1]}, seeds=3, metrics=_LOSS)
      for words, change, labels in (
          ("", {}, ("gamma = 0.01", "gamma = 0.1", "ReduceLR, gamma = 100", _FALLING[1])),
          (", W = P = C = 100 as published", _WAITS, ("ReduceLR, gamma = 100",)),
      )),
    # Are 200 rounds too few, of which the first 50 are lost to gamma = 100?
    Probe("charles2020-figure-8", _PLAYS, "600 rounds", {"num_rounds": 600},
          ("gamma = 1", "ReduceLR, gamma = 100"), metrics=_LOSS),
    # Is 600 rounds too few to come down from gamma = 100?
    Probe("charles2020-figure-9", _TAGS, "2,400 rounds", {"num_rounds": 2400},
          ("gamma = 0.01", "gamma = 0.1", "ReduceLR, gamma = 100"), {}, metrics=_LOSS),
    # Are 200 rounds too few to come down from it on the plays?
    Probe("charles2020-figure-9", _WORDS, "600 rounds", {"num_rounds": 600},
          ("gamma = 0.1", "ReduceLR, gamma = 100"), metrics=_LOSS),
    # Or does Yogi not forget the large updates, as its second moment falls by small ones' squares?
    Probe("charles2020-figure-9", _TAGS, "Adam in place of Yogi",
          {"server_optimizer": "adam(1e-05, 0.9, 0.99, 0.0)"},
          ("gamma = 0.01", "gamma = 0.1", "ReduceLR, gamma = 100"), {}, metrics=_LOSS),
    # Does the best server rate rise within half a decade?
    _best_rate(6, _WORDS, "the server rates between", labels=("gamma = 0", "gamma = 0.1"),
               grid={"server_learning_rate": [10**-1.75, 10**-1.25]}),
    # More rounds, and clients that are alike.
    Probe("decay2021-figure-3", _FEMNIST, "1,200 rounds", {"num_rounds": 1200},
          tuple(f"K = {k}, {scheme}" for scheme in ("constant", "decaying gamma", "decaying K")
                for k in (10, 33)),
          seeds=3, metrics=("test_accuracy", "train_loss")),
    Probe("decay2021-figure-3", _FEMNIST, "clients alike", _ALIKE, ("K = 33, constant",),
          seeds=5),
    # Where nothing breaks down, is decaying K behind decaying gamma with K = 33 still?
    *(Probe("decay2021-figure-3", _FEMNIST, f"clients alike, {rounds:,} rounds",
            {**_ALIKE, "num_rounds": rounds},
            tuple(f"K = 33, {scheme}" for scheme in ("decaying gamma", "decaying K")), seeds=3)
      for rounds in (300, 1200, 4000)),
    *(Probe("decay2021-figure-4", _PLAYS, f"{rounds:,} rounds",
            {"num_rounds": rounds, "evaluate_every": rounds // 80},
            metrics=("test_accuracy", "train_loss")) for rounds in (800, 4000)),
    # Does decaying K gain where clients are more unlike, or given rounds?
    *(Probe("decay2021-figure-2", "Fashion-MNIST for StackOverflow", words, change)
      for words, change in (("1,200 rounds", {"num_rounds": 1200}),
                            ("clients more unlike", {"task.partition": "dirichlet(0.1)"}))),
    Probe("decay2021-figure-2", "Fashion-MNIST for StackOverflow",
          "FedSGD with Table 5's eta_0 in place of FedAdam",
          {"server_optimizer": "sgd", "weighting": "num_examples"},
          grid={"server_learning_rate": [0.3]}, seeds=3),
    # Are unlike clients what limits the server rate, whatever the clients' is?
    Probe("reddi2021-figure-4", "CIFAR-10", "clients alike", _ALIKE, ("Avg",),
          {"server_learning_rate": [0.316, 1.0, 3.16, 10.0]}, metrics=("train_loss",)),
    # Fewer local steps, of clients unlike and alike.
    *(Probe(f"mime2020-figure-{figure}", _EMNIST, f"3 local steps in place of 30{words}",
            {"num_local_epochs": 1, **change}, grid={}, seeds=seeds)
      for figure in (3, 4, 5)
      for words, change, seeds in (("", {}, 1), (", clients alike", _ALIKE, 3))),
    # Is the largest client rate, which is the best of four of them, too small?
    Probe("mime2020-figure-3", _EMNIST, "3 local steps, clients alike, larger rates",
          {"num_local_epochs": 1, **_ALIKE},
          ("Server-only SGDm", "FedAvg SGDm", "Mime SGDm", "MimeLite SGDm"),
          {"client_learning_rate": [0.1, 1.0, 10**0.5, 10.0],
           "server_learning_rate": [0.1, 1.0, 10**0.5, 10.0]}, seeds=3),
    # Alike clients alone, and more of them a round.
    Probe("mime2020-figure-3", _EMNIST, "30 local steps, clients alike", _ALIKE, grid={}),
    Probe("mime2020-figure-3", _EMNIST, "50 clients a round", {"cohort_size": 50},
          ("FedAvg SGDm", "Mime SGDm"), {}),
    Probe("mime2020-figure-3", "plays, not in the paper", "50 clients a round", {"cohort_size": 50},
          ("FedAvg SGDm", "Mime SGDm"), {"client_learning_rate": [1.0, 3.16]}),
    Probe("mime2020-table-3", f"{_EMNIST} logistic", "30 local steps, clients alike", _ALIKE,
          grid={}, seeds=3),
    # As many steps as those with 30 local ones take in 80 rounds.
    Probe("mime2020-figure-4", _EMNIST, "2,400 rounds", {"num_rounds": 2400, "evaluate_every": 100},
          ("Server-only SGDm", "Server-only Adam")),
    # Fewer local steps on the plays.
    *(Probe(f"mime2020-figure-{figure}", "plays, not in the paper",
            "3 local steps in place of 20", {"num_local_steps": 3}, seeds=3)
      for figure in (3, 5)),
    # And as many local steps in all, with rates tuned again.
    *(Probe(f"mime2020-figure-{figure}", "plays, not in the paper",
            "3 local steps in place of 20, 400 rounds in place of 60",
            {"num_local_steps": 3, "num_rounds": 400, "evaluate_every": 20}, grid={})
      for figure in (3, 5)),
    # Do other batches of the held-out examples, or another tau, make the two ways differ?
    *(Probe("elastic2023-figure-1", "MNIST, not in the paper", words, change,
            metrics=("boosted_share", "test_accuracy"))
      for words, change in (
          ("sensitivity example by example", {"sensitivity_batch_size": 1}),
          ("tau = 0.01", {"elasticity": 0.01}),
          ("both", {"sensitivity_batch_size": 1, "elasticity": 0.01}),
      )),
    # Do longer steps alone cost what elastic aggregation loses with perceptrons on CIFAR-10?
    Probe("elastic2023-figure-2", "CIFAR-10", "the server rate 1.5", {"server_learning_rate": 1.5},
          ("FedAvg, MLP",), seeds=5),
    # Are the grids too short?
    Probe("elastic2023-table-1", "MNIST, not in the paper", "two larger client rates", seeds=3,
          grid={"client_learning_rate": [0.3, 0.6, 1.0]}, metrics=("test_accuracy", "train_loss")),
    *(Probe(f"mime2020-figure-{figure}", _EMNIST, "two smaller client rates",
            labels=tuple(f"{name} {base}" for name in names),
            grid={"client_learning_rate": [rate, 3 * rate, 10 * rate]})
      for figure, base, rate, names in (
          (3, "Adam", 1e-5, ("FedAvg", "Mime", "MimeLite")), (4, "Adam", 1e-5, ("C-Mime",)),
          (3, "SGDm", 1e-3, ("Mime", "MimeLite")), (4, "SGDm", 1e-3, ("C-Mime",)),
          (3, "SGD", 1e-3, ("Mime",)),
      )),
    *(Probe("mime2020-table-3", f"{_EMNIST} logistic", "wider grids", seeds=3,
            labels=tuple(f"{name} {base}" for name in ("FedAvg", "Mime", "MimeLite")),
            grid={"client_learning_rate": client, "server_learning_rate": server})
      for base, client, server in (
          ("SGD", [0.005, 0.02, 0.1, 0.4, 1.0, 3.0], [0.4, 0.8, 1.6]),
          ("SGDm", [0.005, 0.02, 0.1, 0.4, 1.0, 3.0], [0.4, 0.8, 1.6, 3.2]),
          ("Adam", [0.0001, 0.0005, 0.002, 0.01, 0.05, 0.2, 0.5], [0.002, 0.01, 0.05]),
      )),
    # Fewer local steps, of clients unlike and alike.
    *(Probe("mime2020-table-3", f"{_EMNIST} logistic", f"3 local steps in place of 30{words}",
            {"num_local_epochs": 1, **change},
            tuple(f"{name} {base}" for name in ("FedAvg", "Mime", "MimeLite")),
            {"client_learning_rate": client, "server_learning_rate": server}, seeds=3)
      for words, change in (("", {}), (", clients alike", _ALIKE))
      for base, client, server in (
          ("SGD", [0.02, 0.1, 0.4, 1.0, 3.0], [0.4, 0.8, 1.6, 3.2]),
          ("SGDm", [0.02, 0.1, 0.4, 1.0, 3.0], [0.8, 1.6, 3.2, 6.4, 12.8]),
          ("Adam", [0.0005, 0.002, 0.01, 0.05, 0.2, 0.5, 1.0], [0.003, 0.01, 0.03, 0.1]),
      )),
)


def parts_of(probe: Probe) -> Iterator[Part]:
    """What a probe trains."""
    experiment = EXPERIMENTS[probe.experiment]
    stand_in = " for " in probe.panel or "mime" in probe.experiment
    plan = experiment.plan("small", stand_in)
    if plan is None:
        raise SystemExit(f"{probe.experiment} has no small plan.")
    known = [part for part in plan.parts if part.panel == probe.panel]
    chosen = [part for part in known if not probe.labels or part.label in probe.labels]
    chosen += [chosen[0]._replace(label=label, settings={**chosen[0].settings, **own})
               for label, own in probe.beyond]
    (path,) = RESULTS.glob(f"{probe.experiment}-small{'-stand-in' * stand_in}.json")
    found = read(path).results
    for part in chosen:
        settings, grid = {**part.settings, **probe.settings}, {}
        if probe.grid is not None:
            grid = {key: probe.grid.get(key, values) for key, values in part.grid.items()}
        elif part.grid and part.panel in found.panels:
            settings |= found.best(part.panel, part.label)
        else:  # the experiment itself is still to be run
            grid = dict(part.grid)
        if part.algorithm == "fedsgd" and "num_rounds" in probe.settings:
            longer = part.settings["num_rounds"] / settings["num_rounds"]
            settings |= {name: part.settings[name] ** longer for name in DECAYS}
        yield part._replace(settings=settings, grid=grid, num_seeds=max(3, probe.seeds))


def title(probe: Probe) -> str:
    """The heading of its table, of which no two are the same."""
    some = f" ({', '.join(probe.labels)})" if probe.labels else ""
    return f"{probe.experiment}, {probe.panel}{some}: {probe.words}"


def section(page: str, heading: str) -> str:
    """What a page has under a heading, which is with it; nothing: that it was not run."""
    start = f"## {heading}\n"
    for text in f"\n{page}".split("\n## "):
        if f"## {text}\n".startswith(start):
            return f"## {text.strip()}\n"
    return f"{start}\nNot run yet.\n"


def look(probe: Probe, storage: Path, page: str | None = None) -> str:
    """A heading and a table with a row for each method of a probe, whose runs are trained.

    With the text of a page none is trained: where one lacks, it is what the page has.
    """
    experiment = EXPERIMENTS[probe.experiment]
    traces = []
    for job in jobs_of(list(parts_of(probe))):
        record = job.record(storage) if job.seed < probe.seeds else None
        if job.seed < probe.seeds and record is None:
            if page is not None:
                return section(page, title(probe))
            job.train(storage)
            record = job.record(storage)
        if record is not None:
            traces += traces_of(probe.panel, job.part.label, record, job.config.num_rounds)
    results = Results(traces, experiment.by, maximise=experiment.maximise)
    heads = [f"{name}, {when}" for name in probe.metrics for when in ("first third", "last")]
    lines = [f"## {title(probe)}", "", f"Seeds: {probe.seeds}.", "",
             f"| | best setting | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for label in results.labels(probe.panel):
        cells = [cell for name in probe.metrics for cell in (
            _first(results, probe.panel, label, name),
            spread(results.final(probe.panel, label, name), 4),
        )]
        lines += [f"| {label} | {_best(results, probe.panel, label)} | {' | '.join(cells)} |"]
    if not probe.labels and not probe.beyond:
        lines += ["", f"Verdict of these runs: {verdict(judged(experiment, results))}."]
    return "\n".join(lines) + "\n"


def _best(results: Results, panel: str, label: str) -> str:
    """The best setting; where both rates are tuned, the best server rate for each client rate too.
    """
    found: dict[float, tuple[float, float]] = {}
    for setting in results.settings(panel, label):
        if setting.keys() >= RATES:
            client, server = (setting[key] for key in sorted(RATES))
            sign = -1 if results.maximise else 1
            score = sign * results.final(panel, label, results.by, setting).mean()
            found[client] = min(found.get(client, (np.inf, 0.0)), (score, server))
    try:
        best = ", ".join(f"{value:.3g}" if isinstance(value, float) else str(value)
                         for value in results.best(panel, label).values())
    except LookupError:
        return "all diverged"
    rates = ", ".join(f"{server:g} at {client:g}" for client, (_, server) in found.items())
    return f"{best} ({rates})" if rates else best


def _first(results: Results, panel: str, label: str, metric: str) -> str:
    rounds, values = results.curve(panel, label, metric)
    return spread(np.nanmean(values[:, : -(-len(rounds) // 3)], 1), 4) if len(rounds) else ""


def what_is_left(probes: Sequence[Probe], storage: Path) -> str:
    """How many sweeps are to be trained, and of how many rounds in all."""
    left = {job.key: job for probe in probes for job in jobs_of(list(parts_of(probe)))
            if job.seed < probe.seeds and not job.is_done(storage)}
    rounds = sum(job.config.num_rounds for job in left.values())
    return (f"{len(left)} sweeps of {rounds:,} rounds in all are to be trained. A core does about "
            "a hundred rounds of a logistic model in a second and three of the plays, for each "
            "setting of a grid.")


def smoothness(every: int = 10) -> float:
    """1/10 of the largest eigenvalue of the mean of x x^T, mean over some of CIFAR-100's stand-in.

    The softmax of ten classes at zero weights has the Hessian (I / 10 - 1 1^T / 100) times x x^T,
    so this is the L of a client's loss there.
    """
    clients = mnist.load("fashion-mnist", "logistic", "dirichlet(0.1)", 500).train
    largest = []
    for client in range(0, clients.num_clients, every):
        images = next(v for v in clients.client_at(client).values() if np.ndim(v) > 1)
        x = np.asarray(images, float).reshape(len(images), -1) / 255
        x = np.column_stack([x, np.ones(len(x))])  # the bias
        largest.append(np.linalg.eigvalsh(x @ x.T / len(x))[-1])
    return float(np.mean(largest) / 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments; default: all")
    parser.add_argument("--only", default="", metavar="WORDS", help="tables whose heading has them")
    parser.add_argument("--storage", type=Path, required=True)
    parser.add_argument("--no-training", action="store_true",
                        help="what is not there stays as the page has it")
    asked = parser.parse_args()
    known = {probe.experiment for probe in PROBES}
    if unknown := set(asked.names) - known:
        parser.error(f"nothing was looked into of {', '.join(sorted(unknown))}; "
                     f"of {', '.join(sorted(known))}")
    page = PAGE.read_text() if asked.no_training else None
    wanted = [probe for probe in PROBES
              if probe.experiment in (asked.names or known) and asked.only in title(probe)]
    if page is None:
        print(f"{what_is_left(wanted, asked.storage)}\n", flush=True)
    texts = []
    if not asked.names or "charles2020-figure-3" in asked.names:
        texts.append(f"L of a client of {_CIFAR} at the start, mean: {smoothness():.1f}.\n")
        print(texts[-1])
    for probe in wanted:
        try:
            texts.append(look(probe, asked.storage, page))
        except (ConfigError, RunError) as error:
            raise SystemExit(f"{probe.experiment}, {probe.words}: {error}") from None
        print(texts[-1], flush=True)
    if len(wanted) == len(PROBES):
        PAGE.write_text("\n".join([f"{ABOVE}\n", *texts]))


if __name__ == "__main__":
    main()
