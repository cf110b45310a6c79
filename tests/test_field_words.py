"""Options by the names that papers and other libraries give them lead to fedax's own."""

import inspect

import pytest

import fedax
from fedax.algorithms.registry import ALGORITHMS, WRAPPERS
from fedax.cli.main import run_command
from fedax.outside import guesses

# Word -> what must be suggested, and the function in whose call it is typed. The words are those
# of McMahan et al. 2017, Li et al. 2020 and Reddi et al. 2021, and of Flower, pfl-research, PFLlib,
# FedML, scikit-learn, Keras and PyTorch.
METHOD = {
    "lr": "client_learning_rate", "learning_rate": "client_learning_rate",
    "eta": "client_learning_rate", "eta_l": "client_learning_rate",
    "client_lr": "client_learning_rate", "local_learning_rate": "client_learning_rate",
    "learningRate": "client_learning_rate", "server_lr": "server_learning_rate",
    "central_lr": "server_learning_rate", "global_lr": "server_learning_rate",
    "epochs": "num_local_epochs", "E": "num_local_epochs", "local_epochs": "num_local_epochs",
    "n_epochs": "num_local_epochs", "local_num_epochs": "num_local_epochs",
    "K": "num_local_steps", "local_steps": "num_local_steps", "bs": "batch_size",
    "B": "batch_size", "local_batch_size": "batch_size", "mu": "proximal_weight",
    "proximal_mu": "proximal_weight",
}
TRAINING = {
    "rounds": "num_rounds", "n_rounds": "num_rounds", "comm_round": "num_rounds",
    "global_rounds": "num_rounds", "T": "num_rounds", "max_iter": "num_rounds",
    "clients_per_round": "cohort_size", "num_clients_per_round": "cohort_size",
    "client_num_per_round": "cohort_size", "fraction": "cohort_size",
    "fraction_fit": "cohort_size", "C": "cohort_size", "join_ratio": "cohort_size",
    "random_state": "seed", "eval_every": "evaluate_every",
    "frequency_of_the_test": "evaluate_every", "restore_best_weights": "keep_best",
    "save_every": "checkpoint_every", "client_drop_rate": "dropout",
}
PYTHON_ALONE = {
    "callbacks": "on_round", "verbose": "progress", "patience": "early_stopping",
    "num_clients": "cohort_size", "output_dir": "out", "initial_parameters": "initial_params",
    "device": "JAX_PLATFORMS", "optimizer": "fedopt", "num_workers": "clients_per_chunk",
    "lr_scheduler": "schedule", "weight_decay": "fedopt", "dataset": "task",
}
COMMAND_ALONE = {
    "callbacks": "on_round", "verbose": "progress", "patience": "early_stopping_patience",
    "n_clients": "num_clients", "alpha": "partition", "output_dir": "out",
    "device": "JAX_PLATFORMS", "optimizer": "fedopt", "strategy": "fedax run TASK METHOD",
    "dataset": "first word", "momentum": "fedavgm",
}


@pytest.fixture(scope="module")
def task() -> fedax.Task:
    return fedax.load_task("digits")


@pytest.mark.parametrize(("word", "name"), METHOD.items())
def test_a_method_knows_the_word(task: fedax.Task, word: str, name: str) -> None:
    with pytest.raises(TypeError, match=rf"option '{word}' of fedavg. Did you mean '{name}'"):
        fedax.fedavg(task.model, **{word: 1})
    with pytest.raises(TypeError, match=rf"In fedax it is '{name}', an option of the method"):
        fedax.train(task, fedax.fedavg(task.model, 0.1), num_rounds=1, **{word: 1})


@pytest.mark.parametrize(("word", "name"), TRAINING.items())
def test_training_knows_the_word(task: fedax.Task, word: str, name: str) -> None:
    method = fedax.fedavg(task.model, 0.1)
    with pytest.raises(TypeError, match=rf"option '{word}' of train. Did you mean '{name}'"):
        fedax.train(task, method, **{word: 1})  # num_rounds is not there, which is the rest
    if name not in ("keep_best", "checkpoint_every"):
        with pytest.raises(TypeError, match=rf"option '{word}' of simulate. Did you mean '{name}'"):
            fedax.simulate(task, method, **{word: 1})
    with pytest.raises(TypeError, match=rf"In fedax it is '{name}', an option of fedax.train"):
        fedax.fedavg(task.model, 0.1, **{word: 1})


@pytest.mark.parametrize(("word", "words"), PYTHON_ALONE.items())
def test_training_says_where_it_is(task: fedax.Task, word: str, words: str) -> None:
    with pytest.raises(TypeError, match=rf"option '{word}' of train. .*{words}.* Known:"):
        fedax.train(task, fedax.fedavg(task.model, 0.1), num_rounds=1, **{word: 1})


@pytest.mark.parametrize(("word", "name"), {**METHOD, **TRAINING, **COMMAND_ALONE}.items())
@pytest.mark.parametrize("way", ["option", "set"])
def test_the_command_line_knows_the_word(
    capsys: pytest.CaptureFixture[str], word: str, name: str, way: str
) -> None:
    if way == "option" and word == "rounds":
        return  # it is one
    typed = ["--" + word.replace("_", "-"), "3"] if way == "option" else ["--set", f"{word}=3"]
    assert run_command(["run", "digits", "fedavg", *typed]) == 2
    said = capsys.readouterr().err
    said = said.partition("Known:")[0]
    option = {"num_rounds": "--rounds", "cohort_size": "--cohort-size"}.get(name, name)
    assert option in said if way == "option" else name in said


def test_there_are_forty_words() -> None:
    assert len({**METHOD, **TRAINING}) >= 40


def test_a_method_knows_its_own_options(task: fedax.Task) -> None:
    with pytest.raises(TypeError, match=r"option 'beta2' of fedadam. Did you mean 'second_moment"):
        fedax.fedadam(task.model, 0.1, 0.1, beta2=0.99)
    with pytest.raises(TypeError, match=r"option 'tau' of fedadam. Did you mean 'adaptivity'"):
        fedax.fedadam(task.model, 0.1, 0.1, tau=0.01)
    with pytest.raises(TypeError, match=r"In fedax it is 'momentum'.*fedax.fedavgm"):
        fedax.fedavg(task.model, 0.1, momentum=0.9)


def test_other_functions_know_the_words(task: fedax.Task) -> None:
    with pytest.raises(TypeError, match=r"option 'lr' of sweep"):
        fedax.sweep(task, fedax.fedavg, {"lr": [0.1]}, num_rounds=1, lr=0.1)
    with pytest.raises(ValueError, match=r"hyperparameter 'lr'. Did you mean 'client_learning_r"):
        fedax.sweep(task, fedax.fedavg, {"lr": [0.1]}, num_rounds=1)
    with pytest.raises(TypeError, match=r"option 'n_rounds' of search. Did you mean 'num_rounds'"):
        fedax.search(task, fedax.fedavg, {}, n_rounds=1)
    with pytest.raises(TypeError, match=r"setting 'alpha' of the task digits. Did you mean 'part"):
        fedax.load_task("digits", alpha=0.1)
    with pytest.raises(TypeError, match=r"'lr' of evaluate_personalized. Did you mean 'client_lea"):
        fedax.evaluate_personalized(task, {}, lr=0.1)


def test_train_lists_its_own_options(task: fedax.Task) -> None:
    with pytest.raises(TypeError, match=r"'zzz' of train. Known: 'task'.*'on_round'.*'cohort_s"):
        fedax.train(task, fedax.fedavg(task.model, 0.1), zzz=1)


def test_every_suggestion_is_the_name_of_something() -> None:
    """Of the table: what it suggests is an option of train, a method, a task or the command."""
    known = set(inspect.signature(fedax.train).parameters)
    known |= set(inspect.signature(fedax.sweep).parameters)
    for method in (fedax.fedavg, fedax.fedadam, fedax.fedopt, fedax.load_task):
        known |= set(inspect.signature(method).parameters)
    known |= {"partition", "num_clients", "test_fraction", "validation", "dataset",
              "early_stopping_patience", "early_stopping_min_delta", "overwrite"}
    for word in guesses.FIELD.values():
        assert word.names or word.instead
        assert set(word.names) <= known


WRONG = {
    "run digits fedavg --lr 0.1": "--set client_learning_rate=0.1",
    "run --lr 0.1 digits fedavg": "--set client_learning_rate=0.1",
    "run digits fedavg --lr=0.1 --epochs 2":
        "--set client_learning_rate=0.1? fedax run has no option --epochs. Did you mean --set "
        "num_local_epochs=2",
    "run digits fedavg -lr 0.1": "--set client_learning_rate=0.1",
    "run digits fedavg --n-rounds 3": "--rounds 3",
    "run digits fedavg --fraction 0.1": "--cohort-size VALUE? It is a number",
    "run digits fedavg --batch-size 5": "--set batch_size=5",
    "run digits fedavg momentum=0.3": "--set momentum=0.3",
    "run digits fedavg --zzz": "See fedax run --help",
    "run fedavg digits": "fedax run digits fedavg",
    "run fedavg": "fedax run TASK fedavg",
    "run digits fedavg fedadam": "fedax sweep digits fedavg,fedadam --seeds 3",
    "run digits fedavg,fedadam": "fedax sweep digits fedavg,fedadam --seeds 3",
    "run digits fedavg again": "'again'",
    "sweep fedavg digits": "fedax sweep digits fedavg",
    "sweep digits fedavg fedadam": "fedax sweep digits fedavg,fedadam",
    "sweep digits fedavg --lr 0.1,1": "--grid client_learning_rate=0.1,1",
    "rum": "Unknown command 'rum'. Did you mean 'run'?",
    "train digits fedavg": "fedax run digits fedavg",
    "digits fedavg": "fedax run digits fedavg",
    "data gett mnist": "Did you mean 'get'?",
    "--rounds 3": "Write the command before its options",
    "report --metrics a": "fedax report --help",
}


@pytest.mark.quick
@pytest.mark.parametrize(("line", "meant"), WRONG.items())
def test_a_wrong_line_is_understood(
    capsys: pytest.CaptureFixture[str], line: str, meant: str
) -> None:
    assert run_command(line.split()) == 2
    said = capsys.readouterr()
    assert meant in said.err
    assert said.err.startswith("fedax: ")
    assert said.err.count("\n") == 1
    assert not said.out


def test_only_the_command_that_was_typed_explains_its_options(
    capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_command(["run", "digits", "--rounds", "ten"])
    said = capsys.readouterr().err
    assert "fedax run --help" in said
    assert "sweep" not in said


@pytest.mark.quick
@pytest.mark.parametrize(("typed", "known"), [
    ("fedper", "personal"), ("FedBN", "personal"), ("ProxSkip", "scaffnew"), ("q-ffl", "qfedavg"),
    ("krum", "robust"), ("DP-FedAvg", "private"), ("perFedAvg", "perfedavg"),
])
def test_a_methods_name_in_papers_leads_to_it(typed, known, capsys):
    assert run_command(["run", "digits", typed]) == 2
    assert f"Unknown algorithm {typed!r}. Did you mean {known!r}?" in capsys.readouterr().err
    assert {*guesses.METHODS.values()} <= {*ALGORITHMS, *WRAPPERS}
