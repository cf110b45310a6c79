"""The reference's pages: every public name under one heading, shown by mkdocstrings."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from typing import Any

import fedax
from fedax.algorithms import registry

# Page -> title, what it says first, modules or names that it shows. A name stands for fedax.NAME.
PAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "training": ("Training", "Train a model, follow each round, keep the history.", (
        "train", "TrainResult", "simulate", "SimulateOptions", "RoundReport", "History",
        "EarlyStopping", "sampler", "part_of_the_day", "run_round", "RoundInfo", "TrainingState",
        "initial_state", "DivergedError",
    )),
    "evaluating": ("Evaluating", "Measure a model over all examples, or client by client.", (
        "evaluate", "evaluate_clients", "predict", "evaluate_personalized",
        "evaluate_own_models", "ClientMetrics",
        "fedax.scores",
        "communication", "dissimilarity", "quadratic_model", "advise",
    )),
    "runs": ("Runs on disk", "Load runs, save parameters, make tables and pages.", (
        "load_run", "RunError", "save_params", "load_params", "table", "ResultsTable", "TableError",
        "fedax.experiment.pages.read_run", "fedax.experiment.pages.report_page",
        "fedax.report.comparison.comparison_page",
    )),
    "tuning": ("Tuning", "Train many settings in one call and find the best one.", (
        "sweep", "SweepResult", "load_sweep", "LoadedSweep", "search", "SearchResult",
        "fedax.sweeps.choosing", "fedax.sweeps.record", "fedax.tuning.grids.parse_values",
        "fedax.sweeps.grid.settings_of",
    )),
    "problems": ("Tasks and models", "Load a task by name, or make one from a model of your own.", (
        "load_task", "Task", "quadratic_task", "Model", "classification", "regression",
        "next_token", "ModelError",
    )),
    "data": ("Data", "Read your own data, load known data sets, and hold out test examples.", (
        "FederatedDataset", "read_data", "fit_table", "Table", "Vocabulary", "ClientData",
        "CohortReader", "DataError",
        *(f"fedax.data.{name}" for name in (
            "ClientExamples", "CohortData", "Splits", "StoreWriter", "check_data", "check_store",
            "convert", "data_folder", "get_dataset", "hold_out", "load_dataset", "open_store",
        )),
    )),
    "partitions": ("Partitions", "Deal examples to clients.", ("fedax.data.partitions",)),
    "methods": ("Methods", "", (
        "LocalOptions", "FederatedAlgorithm", "Exchange", "Reply", "ModelUpdate", "Participation",
        "LocalTraining", "LocalMessage", "LocalResult", "factory", "partition", "check_algorithm",
        "AlgorithmError", "batch_statistics", "local_adaptive", "plateau_lengths",
    )),
    "optimizers": ("Optimizers and schedules", "Choose a server optimizer or a schedule.", (
        "BaseOptimizer", "fedax.optimizers", "fedax.schedules", "fedax.base_optimizers",
    )),
    "codecs": ("Codecs", "Choose what clients send in place of their uploads.", (
        "fedax.codecs",
    )),
    "robust-means": ("Robust means", "Choose what a server takes in place of the mean.", (
        "fedax.robust_means",
    )),
    "attacks": ("Attacks", "Choose what hostile clients do in a simulation.", ("fedax.attacks",)),
    "privacy": ("Differential privacy", "Find the noise for a guarantee, and audit a wrapper.", (
        "fedax.privacy", "audit_privacy", "fedax.contract.PrivacyAudit",
    )),
    "models": ("Models and layers", "Use a model by name, or build one from layers.", (
        "fedax.models",
    )),
    "devices": ("Devices", "Train a cohort on several devices or CPU cores.", (
        "client_mesh", "cores_as_devices",
    )),
    "pictures": ("Pictures", "Draw runs and sweeps with Matplotlib.", ("fedax.pictures",)),
    "theory": ("Theory", "Compute where FedAvg goes on quadratic losses.", (
        "fedax.theory", "fedax.theory.dynamics", "fedax.theory.prescriptions",
        "fedax.theory.charles2020", "fedax.theory.decay2021", "fedax.theory.elastic2023",
        "fedax.theory.mime2020",
    )),
}
# Modules that are public names, shown under their full ones.
MODULES = {
    "attacks", "base_optimizers", "codecs", "optimizers", "pictures", "privacy", "robust_means",
    "schedules", "scores", "theory",
}


def navigation() -> list[str]:
    """The pages, the list of all names first."""
    return ["reference/index.md", *(f"reference/{page}.md" for page in PAGES)]


def pages() -> dict[str, str]:
    """Path -> page.

    Raises:
      ValueError: a public name is on no page.
    """
    named = {name for _, _, names in PAGES.values() for name in names}
    shown = named | set(registry.ALGORITHMS) | set(registry.WRAPPERS) | MODULES
    if missing := set(fedax.__all__) - shown:
        raise ValueError(f"The reference lacks {', '.join(sorted(missing))}.")
    made = {f"reference/{page}.md": _page(page) for page in PAGES}
    return {"reference/index.md": index(), **made}


def names() -> set[str]:
    """The full names that the reference or a method's page shows, and those of modules' members."""
    found = {f"fedax.{name}" for name in fedax.__all__}
    for _, _, own in PAGES.values():
        for name in own:
            full = name if "." in name else f"fedax.{name}"
            found |= {full, *(f"{full}.{member}" for member in _members(named(full)))}
    return found


def named(name: str) -> Any:
    """What has a full name; a function may be called like the module that it is in."""
    home, _, last = name.rpartition(".")
    return getattr(sys.modules[home] if home in sys.modules else named(home), last)


def _members(thing: Any) -> list[str]:
    """The public names of a module, but for modules: that it exports, or else defines."""
    if not inspect.ismodule(thing):
        return []
    own = [name for name, one in vars(thing).items()
           if not name.startswith("_") and getattr(one, "__module__", None) == thing.__name__]
    return [name for name in getattr(thing, "__all__", own)
            if not inspect.ismodule(getattr(thing, name)) and not _hidden(thing, name)]


def _hidden(package: Any, name: str) -> bool:
    """Whether a name is that of a module, too, which mkdocstrings takes it for."""
    inside = hasattr(package, "__path__")
    return inside and importlib.util.find_spec(f"{package.__name__}.{name}") is not None


def index() -> str:
    """All public names, each with a link."""
    lines = ["# Reference: the API", "Look up any public name of `import fedax` by its purpose."]
    for page, (title, words, names) in PAGES.items():
        own = [f"[`{name}`][fedax.{name}]" for name in names if "." not in name]
        if page == "methods":
            own += [f"[`{name}`][fedax.{name}]"
                    for name in sorted([*registry.ALGORITHMS, *registry.WRAPPERS])]
        own += [f"`{name}`" for name in names if "." in name]
        lines.append(f"**[{title}]({page}.md)** {words}\n\n{', '.join(own)}")
    return "\n\n".join(lines) + "\n"


def _page(page: str) -> str:
    title, words, names = PAGES[page]
    lines = [f"# {title}", words]
    if page == "methods":
        links = ", ".join(f"[`{name}`][fedax.{name}]"
                          for name in sorted([*registry.ALGORITHMS, *registry.WRAPPERS]))
        lines = [f"# {title}", f"Each method has [a page of its own](../methods.md): {links}.",
                 "Below: the parts that methods are made of, for a method of your own."]
    for name in names:
        lines.append(_shown(name if "." in name else f"fedax.{name}"))
    return "\n\n".join(line for line in lines if line) + "\n"


def _shown(name: str) -> str:
    """The directive of a name; of a module with its public names, of a package those it exports.

    A function that is called like the module that it is in has a directive of its own.
    """
    directive = f"::: {name}"
    try:
        module = importlib.import_module(name)
    except ImportError:
        return directive
    if not hasattr(module, "__all__"):
        return directive
    listed = "".join(f"\n        - {one}" for one in _members(module))
    own = [f"::: {name}.{one}.{one}" for one in module.__all__
           if _hidden(module, one) and not inspect.ismodule(getattr(module, one))]
    return "\n\n".join([f"{directive}\n    options:\n      members:{listed}", *own])
