"""What was probably meant by a name: the words of the field, and names that are alike in letters.

Other libraries and papers call the same option by other names. `FIELD` is the one table of them,
which every "Did you mean" of an option uses, in Python and on the command line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple

_METHOD = "an option of the method: fedax.fedavg(model, {}=...)"
_TRAIN = "an option of fedax.train(..., {}=...)"
_TASK = "a setting of tasks that partition their data: fedax.load_task('digits', {}=...)"
# What is probably alike in letters.
_CUTOFF = 0.5


class Word(NamedTuple):
    """What a word of the field means here.

    Attributes:
      names: what fedax calls it; the first that a function has is suggested.
      note: a sentence that goes with the name.
      instead: a sentence in place of a name: where the function has none of them, or fedax has no
        such option.
      converted: whether fedax's option takes another value.
    """

    names: tuple[str, ...] = ()
    note: str = ""
    instead: str = ""
    converted: bool = False


# Where options are, for a function that does not have them.
HOMES: dict[str, str] = {
    **dict.fromkeys(
        ("client_learning_rate", "server_learning_rate", "num_local_epochs", "num_local_steps",
         "batch_size", "proximal_weight", "weighting"), _METHOD),
    **dict.fromkeys(
        ("num_rounds", "cohort_size", "seed", "evaluate_every", "checkpoint_every", "out",
         "on_round", "early_stopping", "keep_best", "initial_params", "log", "progress", "mesh",
         "dropout", "sampling", "overwrite", "diagnostics", "state"), _TRAIN),
    "validation": "a part of the task: fedax.load_task('digits', {}=0.1)",
    "partition": _TASK,
    "num_clients": _TASK,
    "momentum": "an option of methods with server momentum: fedax.fedavgm(model, {}=...)",
    "second_moment_decay": "an option of adaptive methods: fedax.fedadam(model, {}=...)",
    "adaptivity": "an option of adaptive methods: fedax.fedadam(model, {}=...)",
}

# What papers call a method that is here by another name, or a wrapper's use.
METHODS = {
    "agnosticfl": "afl", "agnosticfedavg": "afl", "dpfedavg": "private", "dpsgd": "private",
    "fedbn": "personal", "fedpaq": "compressed", "fedper": "personal", "krum": "robust",
    "proxskip": "scaffnew", "qffl": "qfedavg", "qsgd": "compressed", "rfa": "robust",
    "tilted": "term", "trimmedmean": "robust",
}

_RATES = Word(("client_learning_rate", "server_learning_rate"))
_ETA = Word(_RATES.names, "Where eta is the server's: 'server_learning_rate'.")
_SERVER_RATE = Word(("server_learning_rate",))
_ROUNDS = Word(("num_rounds",))
_EPOCHS = Word(("num_local_epochs",), "An epoch is a client's, in each round.")
_STEPS = Word(("num_local_steps",))
_COHORT = Word(("cohort_size",))
_FRACTION = Word(
    ("cohort_size",), "It is a number of clients per round, not a fraction.", converted=True,
)
_POPULATION = Word(
    ("num_clients", "cohort_size"),
    "cohort_size is the number of clients per round. The data determine the total; "
    "num_clients is a setting of tasks that partition their data.",
)
_PROXIMAL = Word(("proximal_weight",))
_SEED = Word(("seed",))
_SEEDS = Word(
    ("seeds", "seed"),
    "For several seeds use a sweep: fedax sweep ... --seeds 3, or fedax.sweep.",
)
_EVERY = Word(("evaluate_every",))
_OUT = Word(("out",))
_START = Word(("initial_params",))
_CALLBACKS = Word(
    ("on_round",), "It is a function that is called with the report of every round.",
    converted=True,
)
_STOPPING = Word(
    ("early_stopping_patience", "early_stopping"),
    "In Python it is part of early_stopping=fedax.EarlyStopping('test_accuracy', patience=5).",
)
_BEST = Word(("keep_best",), "It is the name of a metric, such as test_accuracy.", converted=True)
_PARTITION = Word(("partition",), "It is a text, such as dirichlet(0.1).", converted=True)
_SHOWN = Word(
    ("progress",), instead="Progress is shown on a terminal and in a notebook, but not in a pipe; "
    "progress=False of fedax.train turns it off.",
)
_DEVICE = Word(instead=(
    "JAX uses a GPU if it finds one; JAX_PLATFORMS=cpu or cuda, set before Python starts, "
    "chooses. Several devices: mesh=fedax.client_mesh() in Python."
))
_OPTIMIZER = Word(
    ("client_optimizer", "server_optimizer"),
    instead="The optimizer is part of the method: fedadam, fedyogi and fedavgm use one on the "
    "server, and fedax.fedopt accepts any Optax optimizer.",
)
_SCHEDULE = Word(instead=(
    "client_learning_rate takes a schedule: fedax.schedules.exponential_decay(0.1, 0.99), or its "
    "text on the command line."
))
_WORKERS = Word(instead=(
    "Clients are trained in batches in one process, without workers; clients_per_chunk is the "
    "number trained at a time."
))
_WEIGHT_DECAY = Word(instead=(
    "Weight decay is part of a client's optimizer: fedax.fedopt(model, "
    "client_optimizer=optax.add_decayed_weights(1e-4), ...)."
))
_MODEL = Word(("model",), instead="The model is part of the task: fedax.Task(model, train, test).")
_ALGORITHM = Word(
    ("algorithm", "algorithms"), instead="The method comes after the task: fedax run TASK METHOD."
)
_DATA = Word(("task", "dataset"), instead=(
    "The data are part of the task, the first word after fedax run and the first argument of "
    "fedax.train."
))

_WORDS: dict[str, Word] = {
    # Learning rates
    "lr": _RATES, "learning_rate": _RATES, "eta": _ETA, "rate": _RATES, "step_size": _RATES,
    "learning_rate_init": _RATES, "gamma": _RATES,
    "client_lr": _RATES, "local_lr": _RATES, "local_learning_rate": _RATES, "eta_l": _RATES,
    "lr_client": _RATES, "lr_local": _RATES, "eta_c": _RATES,
    "server_lr": _SERVER_RATE, "global_lr": _SERVER_RATE, "lr_server": _SERVER_RATE,
    "global_learning_rate": _SERVER_RATE, "central_lr": _SERVER_RATE, "eta_s": _SERVER_RATE,
    "eta_g": _SERVER_RATE, "lr_global": _SERVER_RATE, "central_learning_rate": _SERVER_RATE,
    "scheduler": _SCHEDULE, "lr_scheduler": _SCHEDULE, "lr_decay": _SCHEDULE,
    "learning_rate_decay": _SCHEDULE, "lr_schedule": _SCHEDULE, "lrd": _SCHEDULE,
    "learning_rate_scheduler": _SCHEDULE, "decay": _SCHEDULE,
    # How long
    "rounds": _ROUNDS, "n_rounds": _ROUNDS, "num_round": _ROUNDS, "comm_round": _ROUNDS,
    "global_rounds": _ROUNDS, "communication_rounds": _ROUNDS, "gr": _ROUNDS, "T": _ROUNDS,
    "n_iter": _ROUNDS, "max_iter": _ROUNDS, "num_iterations": _ROUNDS, "iterations": _ROUNDS,
    "global_epochs": _ROUNDS, "central_num_iterations": _ROUNDS, "num_server_rounds": _ROUNDS,
    "total_rounds": _ROUNDS, "max_rounds": _ROUNDS, "server_rounds": _ROUNDS, "R": _ROUNDS,
    "num_comm_rounds": _ROUNDS, "n_iterations": _ROUNDS,
    "epochs": _EPOCHS, "E": _EPOCHS, "local_epochs": _EPOCHS, "n_epochs": _EPOCHS,
    "num_epochs": _EPOCHS, "local_num_epochs": _EPOCHS, "local_ep": _EPOCHS, "epoch": _EPOCHS,
    "client_epochs": _EPOCHS, "ls": _EPOCHS, "num_local_epoch": _EPOCHS, "max_epochs": _EPOCHS,
    "n_local_epochs": _EPOCHS,
    "K": _STEPS, "local_steps": _STEPS, "num_steps": _STEPS, "steps": _STEPS,
    "local_iterations": _STEPS, "local_updates": _STEPS, "local_iters": _STEPS,
    "steps_per_epoch": _STEPS, "local_num_steps": _STEPS, "n_local_steps": _STEPS,
    # Batches
    "bs": Word(("batch_size",)), "B": Word(("batch_size",)), "lbs": Word(("batch_size",)),
    "local_batch_size": Word(("batch_size",)), "local_bs": Word(("batch_size",)),
    "train_batch_size": Word(("batch_size",)), "minibatch_size": Word(("batch_size",)),
    # Clients
    "clients_per_round": _COHORT, "client_num_per_round": _COHORT, "train_cohort_size": _COHORT,
    "num_clients_per_round": _COHORT, "cohort": _COHORT, "S": _COHORT, "M": _COHORT,
    "participants": _COHORT, "num_sampled_clients": _COHORT, "sampled_clients": _COHORT,
    "min_fit_clients": _COHORT, "num_participants": _COHORT, "n_clients_per_round": _COHORT,
    "fraction": _FRACTION, "fraction_fit": _FRACTION, "frac": _FRACTION, "C": _FRACTION,
    "client_fraction": _FRACTION, "join_ratio": _FRACTION, "participation_rate": _FRACTION,
    "sample_rate": _FRACTION, "sampling_rate": _FRACTION, "participation": _FRACTION,
    "fraction_train": _FRACTION, "jr": _FRACTION, "sample_ratio": _FRACTION,
    "participation_ratio": _FRACTION, "fraction_clients": _FRACTION,
    "num_clients": _POPULATION, "n_clients": _POPULATION, "total_clients": _POPULATION,
    "client_num_in_total": _POPULATION, "num_supernodes": _POPULATION, "N": _POPULATION,
    "population": _POPULATION, "min_available_clients": _POPULATION, "num_users": _POPULATION,
    "clients": _POPULATION, "nc": _POPULATION, "num_parties": _POPULATION,
    "client_drop_rate": Word(("dropout",)), "drop_rate": Word(("dropout",)),
    "stragglers": Word(("dropout",)), "cdr": Word(("dropout",)), "drop_prob": Word(("dropout",)),
    "sampler": Word(("sampling",)), "client_sampling": Word(("sampling",)),
    "client_selection": Word(("sampling",)), "selection": Word(("sampling",)),
    # How the data are dealt
    "dirichlet": _PARTITION, "dirichlet_alpha": _PARTITION, "partition_alpha": _PARTITION,
    "alpha": _PARTITION, "partition_method": _PARTITION, "partitioner": _PARTITION,
    "non_iid": _PARTITION, "iid": _PARTITION, "niid": _PARTITION,
    "test_size": Word(("test_fraction", "validation")),
    "validation_split": Word(("validation",)), "validation_data": Word(("validation",)),
    "validation_fraction": Word(("validation",)), "val_split": Word(("validation",)),
    # Methods
    "mu": _PROXIMAL, "proximal_mu": _PROXIMAL, "prox_mu": _PROXIMAL, "prox": _PROXIMAL,
    "fedprox_mu": _PROXIMAL, "proximal_term": _PROXIMAL, "lambda": _PROXIMAL,
    "beta": Word(("momentum",)), "beta1": Word(("momentum",)), "b1": Word(("momentum",)),
    "momentum": Word(("momentum",)), "server_momentum": Word(("momentum",)),
    "beta2": Word(("second_moment_decay",)), "b2": Word(("second_moment_decay",)),
    "tau": Word(("adaptivity",)), "eps": Word(("adaptivity",)), "epsilon": Word(("adaptivity",)),
    "optimizer": _OPTIMIZER, "opt": _OPTIMIZER, "optim": _OPTIMIZER, "solver": _OPTIMIZER,
    "local_optimizer": Word(("client_optimizer",), instead=_OPTIMIZER.instead),
    "client_optimizer_fn": Word(("client_optimizer",), instead=_OPTIMIZER.instead),
    "client_optimizer": Word(("client_optimizer",), instead=_OPTIMIZER.instead),
    "server_optimizer": Word(("server_optimizer",), instead=_OPTIMIZER.instead),
    "server_optimizer_fn": Word(("server_optimizer",), instead=_OPTIMIZER.instead),
    "central_optimizer": Word(("server_optimizer",), instead=_OPTIMIZER.instead),
    "weight_decay": _WEIGHT_DECAY, "wd": _WEIGHT_DECAY, "l2": _WEIGHT_DECAY,
    "weights": Word(("weighting", "initial_params")),
    # What is said and saved meanwhile
    "callbacks": _CALLBACKS, "callback": _CALLBACKS, "hooks": _CALLBACKS, "on_epoch_end":
    _CALLBACKS, "evaluate_fn": _CALLBACKS, "on_round_end": _CALLBACKS,
    "verbose": _SHOWN, "verbosity": _SHOWN, "quiet": _SHOWN, "silent": _SHOWN,
    "progress_bar": _SHOWN, "progress": _SHOWN, "disp": _SHOWN, "show_progress": _SHOWN,
    "logger": Word(("log",)), "loggers": Word(("log",)), "tensorboard": Word(("log",)),
    "wandb": Word(("log",)), "report_to": Word(("log",)), "mlflow": Word(("log",)),
    "log_dir": _OUT, "output_dir": _OUT, "save_dir": _OUT, "checkpoint_dir": _OUT,
    "out_dir": _OUT, "logdir": _OUT, "output": _OUT, "save_path": _OUT, "results_dir": _OUT,
    "save_every": Word(("checkpoint_every",)), "checkpoint_freq": Word(("checkpoint_every",)),
    "save_freq": Word(("checkpoint_every",)), "checkpoint_frequency": Word(("checkpoint_every",)),
    "save_steps": Word(("checkpoint_every",)), "checkpoint_interval": Word(("checkpoint_every",)),
    "eval_every": _EVERY, "eval_gap": _EVERY, "eg": _EVERY, "evaluation_frequency": _EVERY,
    "frequency_of_the_test": _EVERY, "eval_freq": _EVERY, "test_every": _EVERY,
    "eval_interval": _EVERY, "rounds_per_evaluation": _EVERY, "validation_freq": _EVERY,
    "patience": _STOPPING, "n_iter_no_change": _STOPPING, "earlystopping": _STOPPING,
    "early_stop": _STOPPING, "tol": Word(("early_stopping_min_delta", "early_stopping")),
    "min_delta": Word(("early_stopping_min_delta", "early_stopping")),
    "restore_best_weights": _BEST, "save_best": _BEST, "save_best_only": _BEST, "best": _BEST,
    # How it begins and where it runs
    "random_state": _SEED, "random_seed": _SEED, "rng": _SEED, "rng_seed": _SEED, "key": _SEED,
    "manual_seed": _SEED, "prng_seed": _SEED, "seeds": _SEEDS,
    "initial_parameters": _START, "init_params": _START, "initial_weights": _START,
    "init_weights": _START, "warm_start": _START, "pretrained": _START,
    "device": _DEVICE, "dev": _DEVICE, "gpu": _DEVICE, "use_gpu": _DEVICE, "cuda": _DEVICE,
    "using_gpu": _DEVICE, "accelerator": _DEVICE, "num_gpus": _DEVICE, "backend": _DEVICE,
    "device_id": _DEVICE, "did": _DEVICE, "devices": _DEVICE, "client_resources": _DEVICE,
    "num_workers": _WORKERS, "n_jobs": _WORKERS, "workers": _WORKERS,
    "model": _MODEL, "net": _MODEL, "arch": _MODEL, "architecture": _MODEL, "network": _MODEL,
    "strategy": _ALGORITHM, "algorithm": _ALGORITHM, "algo": _ALGORITHM, "method": _ALGORITHM,
    "federated_optimizer": _ALGORITHM, "aggregator": _ALGORITHM,
    "task": _DATA, "data": _DATA, "dataset": _DATA, "train_data": _DATA, "data_name": _DATA,
    "force": Word(("overwrite",)), "exist_ok": Word(("overwrite",)),
    "clobber": Word(("overwrite",)),
}


def compact(name: str) -> str:
    """A name without what spellings differ in: case, hyphens and underscores.

    Example:
      >>> compact("numRounds") == compact("num-rounds") == compact("num_rounds")
      True
    """
    return name.replace("_", "").replace("-", "").lower()


FIELD: dict[str, Word] = {compact(name): word for name, word in _WORDS.items()}


def nearest(name: str, choices: Iterable[str], cutoff: float = _CUTOFF) -> str | None:
    """The choice that is the same except for its spelling, or else the nearest in letters.

    A method has its name in papers, too.

    Example:
      >>> nearest("FedAvg", ["fedavg", "fedprox"]), nearest("fedprx", ["fedavg", "fedprox"])
      ('fedavg', 'fedprox')
      >>> nearest("ProxSkip", ["fedavg", "fedprox", "scaffnew"])
      'scaffnew'
    """
    choices = list(choices)
    meant_by = {compact(name), METHODS.get(compact(name))}
    same = [choice for choice in choices if compact(choice) in meant_by]
    near = same or difflib.get_close_matches(name, choices, n=1, cutoff=cutoff)
    return near[0] if near else None


def meant(name: str, choices: Iterable[str]) -> str | None:
    """The option that was probably meant: the same in another spelling, the field's, or alike.

    Example:
      >>> meant("E", ["num_local_epochs", "num_local_steps"]), meant("zzz", ["num_rounds"])
      ('num_local_epochs', None)
    """
    choices = list(choices)
    same = [choice for choice in choices if compact(choice) == compact(name)]
    word = FIELD.get(compact(name))
    if same or word is None:
        return nearest(name, choices)
    return next((known for known in word.names if known in choices), None)


def hint(name: str, choices: Iterable[str]) -> str:
    """The sentences for a name that is no option: what was meant, or where that is; may be empty.

    Args:
      name: what was given.
      choices: the options that there are.

    Example:
      >>> hint("lr", ["num_rounds", "client_learning_rate"])
      "Did you mean 'client_learning_rate'?"
      >>> hint("rounds", ["client_learning_rate"])
      "In fedax it is 'num_rounds', an option of fedax.train(..., num_rounds=...)."
    """
    found, word = meant(name, choices), FIELD.get(compact(name), Word())
    if found is not None:
        note = word.note if found in word.names else ""
        return f"Did you mean {found!r}? {note}".strip()
    if word.instead:
        return word.instead
    home = next((known for known in word.names if known in HOMES), None)
    if home is None:
        return ""
    return f"In fedax it is {home!r}, {HOMES[home].format(home)}. {word.note}".strip()
