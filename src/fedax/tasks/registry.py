"""Tasks and data sets by name."""

from __future__ import annotations

import functools
import importlib.resources
import inspect
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedax.data.task import Task
from fedax.tasks import cifar, emnist, mnist, quadratics, shakespeare, stackoverflow
from fedax.tasks import tables as own_tables
from fedax.validate import check_choice, plain_options, quoted, unknown_option


class TaskInfo(NamedTuple):
    """A task's description, available without loading it.

    Attributes:
      description: one line.
      dataset: the data set's name.
      models: the available models; the first is the default.
      load: (model name, **settings) -> task; `--set` and `--help` use its keyword arguments, their
          annotations and its docstring.
      presets_of: the task whose presets it shares; empty: its own.
      own: settings of the task in which it differs from the shared presets, by the presets' names
        up to a first "-".
      algorithm: the default method.
      files: the settings that hold paths of a user's files.
    """

    description: str
    dataset: str
    models: tuple[str, ...]
    load: Callable[..., Task]
    presets_of: str = ""
    own: Mapping[str, Mapping[str, Any]] = {}
    algorithm: str = "fedyogi"
    files: tuple[str, ...] = ()


class DatasetInfo(NamedTuple):
    """A data set's description, available without loading it."""

    description: str
    source: str


def load_task(name: str, model: str | None = None, **settings: Any) -> Task:
    """Loads a task by name.

    Args:
      name: one of `fedax list tasks`; shakespeare, digits and quadratics need no download. A
        function of your own that returns a task is simply called.
      model: one of the task's models; None: its first.
      **settings: the task's own settings, such as `partition`; `fedax list tasks NAME` shows them.
      Also `validation`, the fraction of each client's training examples to hold out, see
      `Task.with_validation`; None or 0: none.

    Raises:
      ValueError: if the task or model is unknown (the message suggests the nearest name), a setting
          is out of range, or the task's data are not available or damaged.
      TypeError: if the task does not have one of the settings.

    Example:
      >>> task = load_task("shakespeare", model="small")
      >>> task.train.num_clients == task.test.num_clients
      True
    """
    _refuse_files(name)
    check_choice("task", name, TASKS)
    info = TASKS[name]
    if model is None:
        model = info.models[0]
    check_choice(f"model of the task {name}", model, info.models)
    known = [*inspect.signature(info.load).parameters][1:]
    validation = settings.pop("validation", None)
    for setting in settings:
        if setting not in known:
            known = ["model", *known, "validation"]
            raise TypeError(unknown_option(f"setting of the task {name}", setting, known))
    task = info.load(model, **plain_options(settings))
    return task if validation in (None, 0) else task.with_validation(validation)


def _refuse_files(name: Any) -> None:
    """Raises a clear error for a user's own task as the command line names it."""
    if not isinstance(name, str):
        return
    place, colon, function = name.rpartition(":")
    if own_tables.names_table(name):
        raise ValueError(
            f"{quoted(name)} is a table. Load it with fedax.load_task('table', file={name!r}, "
            "client='COLUMN', label='COLUMN'), or prepare it for your own model with "
            "fedax.fit_table."
        )
    if colon:
        raise ValueError(
            f"{quoted(name)} is how the command line names a function. In Python, import "
            f"{function} from {place} and call it: it returns the task."
        )


def presets(name: str) -> dict[str, Any]:
    """The presets of a task: preset -> table -> setting -> value.

    They are in a .toml file next to the task's module. A preset has the tables of `SHARED` and one
    for each method with settings of its own. A preset with `like` extends the preset of that name.
    A task without a file has no presets.
    """
    info = TASKS[name]
    file = importlib.resources.files("fedax.tasks").joinpath(f"{info.presets_of or name}.toml")
    written = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
    found: dict[str, Any] = {}
    for preset, tables in written.items():
        begun = found[tables.pop("like")] if "like" in tables else {}
        both: dict[str, Any] = {key: {} for key in SHARED} | begun
        found[preset] = both | {key: both.get(key, {}) | own for key, own in tables.items()}
        own = info.own.get(preset.partition("-")[0], {})
        found[preset]["task"] = found[preset]["task"] | own
    return found


# The tables of a preset that are no method's: settings of the run, of the task, of local training,
# and the values among which the settings were searched.
SHARED = ("run", "task", "local", "grid")

TASKS: dict[str, TaskInfo] = {
    "shakespeare": TaskInfo(
        description="next character of Shakespeare's plays; each role of a play is a client",
        dataset="shakespeare",
        models=tuple(shakespeare.MODELS),
        load=functools.partial(shakespeare.load, "shakespeare"),
        algorithm="fedadagrad",  # by the sweeps of docs/notebook/quick-rates.md
    ),
    "shakespeare-tff": TaskInfo(
        description="the same with the 715 roles of TensorFlow Federated",
        dataset="shakespeare-tff",
        models=tuple(shakespeare.MODELS),
        load=functools.partial(shakespeare.load, "shakespeare-tff"),
        presets_of="shakespeare",
        algorithm="fedadagrad",
    ),
    "shakespeare-leaf": TaskInfo(
        description="the same plays in LEAF's parse: 80 characters of a role predict the next",
        dataset="shakespeare",
        models=tuple(shakespeare.MODELS),
        load=shakespeare.load_leaf,
        presets_of="shakespeare",
        algorithm="fedavg",
    ),
    "digits": TaskInfo(
        description="1,797 handwritten digits of 8 x 8 pixels, partitioned by label",
        dataset="digits",
        models=mnist.MODELS,
        load=mnist.load_digits,
    ),
    "mnist": TaskInfo(
        description="handwritten digits, partitioned by label",
        dataset="mnist",
        models=mnist.MODELS,
        load=functools.partial(mnist.load, "mnist"),
    ),
    "fashion-mnist": TaskInfo(
        description="articles of clothing, partitioned by label",
        dataset="fashion-mnist",
        models=mnist.MODELS,
        load=functools.partial(mnist.load, "fashion-mnist"),
        presets_of="mnist",
    ),
    "mnist-writers": TaskInfo(
        description="MNIST's digits; each of 539 writers is a client, 297 others are the test",
        dataset="mnist-writers",
        models=("logistic", "mlp", "cnn"),
        load=mnist.load_writers,
        algorithm="fedavg",
    ),
    "cifar10": TaskInfo(
        description="photographs of 10 classes, partitioned by label",
        dataset="cifar10",
        models=cifar.MODELS,
        load=cifar.load10,
    ),
    "cinic10": TaskInfo(
        description="photographs of CIFAR-10's classes, most from ImageNet, partitioned by label",
        dataset="cinic10",
        models=cifar.MODELS,
        load=cifar.load_cinic10,
        presets_of="cifar10",
    ),
    "cifar100": TaskInfo(
        description="photographs of 100 classes, partitioned by Pachinko allocation",
        dataset="cifar100",
        models=cifar.MODELS,
        load=functools.partial(cifar.load100, "cifar100"),
    ),
    "cifar100-tff": TaskInfo(
        description="the same with the 500 clients of TensorFlow Federated",
        dataset="cifar100-tff",
        models=cifar.MODELS,
        load=cifar.load100_tff,
        presets_of="cifar100",
    ),
    "cifar100-resplit": TaskInfo(
        description="CIFAR-100's images with another split, partitioned by Pachinko allocation",
        dataset="cifar100-resplit",
        models=cifar.MODELS,
        load=functools.partial(cifar.load100, "cifar100-resplit"),
        presets_of="cifar100",
    ),
    "emnist": TaskInfo(
        description="digits and letters of 62 classes; each writer is a client",
        dataset="emnist",
        models=emnist.MODELS,
        load=emnist.load,
    ),
    "emnist-autoencoder": TaskInfo(
        description="an autoencoder of the same images with a code of 30 numbers",
        dataset="emnist",
        models=("autoencoder",),
        load=functools.partial(emnist.load_autoencoder, "emnist"),
    ),
    **{
        f"femnist-{count}": TaskInfo(
            description=f"the same with {count} of LEAF's 3,597 writers",
            dataset=f"femnist-{count}",
            models=emnist.MODELS,
            load=functools.partial(emnist.load_leaf, f"femnist-{count}"),
            presets_of="emnist",
            own={"decay2021": {"num_clients": count, "held_out": 0.2}},
        )
        for count in (328, 396)
    },
    "femnist-328-autoencoder": TaskInfo(
        description="the autoencoder on 328 of LEAF's 3,597 writers",
        dataset="femnist-328",
        models=("autoencoder",),
        load=functools.partial(emnist.load_autoencoder, "femnist-328"),
        presets_of="emnist-autoencoder",
    ),
    "stackoverflow-words": TaskInfo(
        description="the next word of posts; each user is a client",
        dataset="stackoverflow-words",
        models=("lstm", "small"),
        load=stackoverflow.load_words,
    ),
    "stackoverflow-tags": TaskInfo(
        description="the tags of posts, from their words; each user is a client",
        dataset="stackoverflow-tags",
        models=("logistic",),
        load=stackoverflow.load_tags,
    ),
    "quadratics": TaskInfo(
        description="quadratic losses, with exact predictions by fedax theory",
        dataset="quadratics",
        models=("random", "two_clients"),
        load=quadratics.load,
    ),
    "table": TaskInfo(
        description="your own CSV or Parquet file: fedax run FILE --client COLUMN --label COLUMN",
        dataset="your own",
        models=own_tables.MODELS,
        load=own_tables.load,
        algorithm="fedavg",
        files=("file", "test"),
    ),
}

DATASETS: dict[str, DatasetInfo] = {
    "shakespeare": DatasetInfo(
        description="the roles of 37 plays; the first 80% of each role's lines for training",
        source="embedded",
    ),
    "quadratics": DatasetInfo(
        description="100 random clients in 20 dimensions; or section 4 of Charles and Konečný 2020",
        source="made",
    ),
}
