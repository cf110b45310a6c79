"""Grids as text, what a sweep runs of them, and the best setting as a file."""

import dataclasses
import doctest
import re
import shlex
import tomllib
from pathlib import Path

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

import fedax
from fedax.cli.main import run_command
from fedax.cli.parsing import parsed
from fedax.cli.sweeps import asked, describe, print_outcome, require_alone
from fedax.experiment.config import SOURCES, RunConfig, changed_since, resolve
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import for_shell
from fedax.sweeps.choosing import choose
from fedax.sweeps.record import Record
from fedax.tasks.registry import load_task, presets
from fedax.tuning.best import as_toml, best_toml
from fedax.tuning.building import built, possible
from fedax.tuning.config import sweep_config
from fedax.tuning.grids import parse_grid, parse_values

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "sweeps.md"
METHODS = str(ROOT / "examples" / "methods.py")


def sweep(algorithms="fedavg,fedavgm", *words, task="quadratics", **options):
    return sweep_config(task, algorithms.split(","), words, **options)


def recorded(config, losses):
    """What the sweep came to if its runs had these losses, with one seed."""
    count = len(config.settings)
    return Record(config.settings, np.arange(count), np.full(count, config.seeds[0]),
                  np.zeros(count, int), np.ones(count, int),
                  {"train_loss": np.asarray(losses, float)[:, None]})


@pytest.mark.quick
@pytest.mark.parametrize(("text", "values"), [
    ("0.1,0.316,1", [0.1, 0.316, 1.0]),
    ("1,2,5", [1, 2, 5]),
    ("logspace(-3, 0.5, 8)", [10.0 ** (-3 + half / 2) for half in range(8)]),
    ("linspace(0,1,5)", [0.0, 0.25, 0.5, 0.75, 1.0]),
    ("0,logspace(-1,1,3)", [0.0, 0.1, 1.0, 10.0]),
    ("sgdm(0.9),adam(0.001, 0.9),sgd", ["sgdm(0.9)", "adam(0.001, 0.9)", "sgd"]),
    ("(1, 0.5),[1,2]", ["(1, 0.5)", "[1,2]"]),
    ("true,false,none", [True, False, None]),
    ("small, large", ["small", "large"]),
    ("1e-3", [0.001]),
    ("logspace", ["logspace"]),
])
def test_values_are_read(text, values):
    found = parse_values(text)
    assert found == pytest.approx(values, rel=1e-15) if isinstance(values[0], float) else (
        found == values
    )
    assert list(map(type, found)) == list(map(type, values))


@pytest.mark.quick
@pytest.mark.parametrize(("words", "message"), [
    (["rate=0.1,"], r"--grid rate=0\.1, has an empty value. .* without spaces or in quotes"),
    (["rate="], r"has an empty value"),
    (["rate=0.1,", "0.2"], r"has an empty value"),
    (["rate=1,2,1.0"], r"--grid rate has the value 1\.0 twice"),
    (["rate=logspace(0,0,2)"], r"has the value 1\.0 twice"),
    (["rate=logspace(-3,1)"], r"read. logspace\(FIRST, LAST, COUNT\) gives powers of ten"),
    (["rate=linspace(0,one,3)"], r"linspace\(FIRST, LAST, COUNT\) gives evenly spaced"),
    (["rate=logspace(0,400,3)"], r"cannot be read"),
    (["rate=logspace(0,1,0)"], r"cannot be read"),
    (["rate=logspace(0,1,9999999999)"], r"cannot be read"),
    (["rate=sgdm(0.9"], r"a '\(' is not closed"),
    (["rate=sgdm)0.9"], r"unmatched '\)'"),
    (["rate=(1]"], r"unmatched '\]'"),
    (["rate=1", "rate=2"], r"--grid has rate twice; give all of its values at once"),
    (["=1"], r"--grid takes KEY=VALUE,VALUE,\.\.\. .* but got '=1'"),
    (["0.3"], r"--grid takes KEY=VALUE"),
    ([""], r"--grid takes KEY=VALUE"),
    (["reddi2021", "quick"], r"--grid has two presets, reddi2021 and quick"),
])
def test_words_that_are_no_grid(words, message):
    with pytest.raises(ConfigError, match=message):
        parse_grid(words)


@pytest.mark.quick
def test_each_method_takes_the_keys_that_it_has():
    config = sweep("fedavg,fedavgm,minibatch_sgd", "client_learning_rate=0.1,1", "momentum=0,0.9",
                   task="shakespeare")
    assert config.grid == {
        "fedavg": {"client_learning_rate": [0.1, 1.0]},
        "fedavgm": {"client_learning_rate": [0.1, 1.0], "momentum": [0.0, 0.9]},
        "minibatch_sgd": {},
    }
    assert [(one.number, one.algorithm, *one.values.values()) for one in config.settings] == [
        (0, "fedavg", 0.1), (1, "fedavg", 1.0), (2, "fedavgm", 0.1, 0.0), (3, "fedavgm", 0.1, 0.9),
        (4, "fedavgm", 1.0, 0.0), (5, "fedavgm", 1.0, 0.9), (6, "minibatch_sgd"),
    ]


@pytest.mark.quick
def test_a_method_can_have_a_grid_of_its_own():
    config = sweep("fedavg,elastic+fedavg", "client_learning_rate=0.1,1",
                   "elastic+fedavg.client_learning_rate=0.3", "elastic+fedavg.elasticity=0.5,1",
                   settings={"fedavg.num_local_steps": 3, "cohort_size": 4})
    assert config.grid == {
        "fedavg": {"client_learning_rate": [0.1, 1.0]},
        "elastic+fedavg": {"client_learning_rate": [0.3], "elasticity": [0.5, 1.0]},
    }
    runs = [config.run(setting) for setting in config.settings]
    assert [run.algorithm_options["num_local_steps"] == 3 for run in runs] == [1, 1, 0, 0]
    assert {run.cohort_size for run in runs} == {4}


@pytest.mark.quick
def test_a_run_has_its_settings_values_and_its_seed():
    config = sweep("fedavgm", "momentum=0,0.9", "task.model=random,two_clients",
                   num_seeds=3, settings={"run.seed": 5, "num_rounds": 7, "cohort_size": 2})
    assert config.seeds == (5, 6, 7)
    assert config.num_rounds == 7
    last = config.run(config.settings[-1], 7)
    assert (last.seed, last.task_options["model"]) == (7, "two_clients")
    assert last == resolve(task="quadratics", algorithm="fedavgm", settings={
        "run.seed": 7, "num_rounds": 7, "cohort_size": 2, "momentum": 0.9, "model": "two_clients",
    })
    assert list(config.grid["fedavgm"]) == ["momentum", "model"]


@pytest.mark.quick
def test_the_papers_grid_is_that_of_its_preset():
    methods = "fedavg,fedavgm,fedyogi"
    config = sweep(methods, "reddi2021", task="shakespeare")
    rates = 8 * 9  # 10^-3, ..., 10^0.5 and 10^-3, ..., 10^1 (Reddi et al. 2021, D.2)
    assert len(config.settings) == 2 * rates + 5 * rates  # adaptivity 10^-5, ..., 10^-1
    assert {base.preset for base in config.bases.values()} == {"reddi2021"}
    assert config.grid["fedyogi"] == presets("shakespeare")["reddi2021"]["grid"]
    written = sweep(methods, "reddi2021", "server_learning_rate=0.1,1", "momentum=0,0.9",
                    task="shakespeare", settings={"adaptivity": 1e-3}, preset="quick")
    assert {key: len(values) for key, values in written.grid["fedyogi"].items()} == {
        "client_learning_rate": 8, "server_learning_rate": 2, "momentum": 2
    }
    assert written.bases["fedyogi"].preset == "quick"
    assert written.bases["fedyogi"].algorithm_options["adaptivity"] == 1e-3


@pytest.mark.quick
def test_what_is_no_hyperparameter_is_left_out_of_a_presets_grid():
    assert "best_rates" in presets("shakespeare")["charles2020"]["grid"]
    config = sweep("local_update", "charles2020", task="shakespeare")
    assert list(config.grid["local_update"]) == ["client_learning_rate", "server_learning_rate"]


@pytest.mark.quick
def test_without_a_grid_methods_and_seeds_are_compared():
    config = sweep("fedavg,fedavgm", num_seeds=2)
    assert [dict(setting.values) for setting in config.settings] == [{}, {}]


@pytest.mark.quick
def test_a_grid_of_python_values():
    config = sweep_config("quadratics", ["fedavgm"], {"momentum": np.linspace(0, 0.5, 2)})
    assert [setting.values["momentum"] for setting in config.settings] == [0, 0.5]
    for grid, message in (({"momentum": []}, "is empty"), ({"momentum": [0.0, 0]}, "twice")):
        with pytest.raises(ConfigError, match=message):
            sweep_config("quadratics", ["fedavgm"], grid)


@pytest.mark.quick
@pytest.mark.parametrize(("methods", "words", "options", "message"), [
    ("fedavg", ["momentun=0,1"], {}, r"Unknown setting 'momentun' of runs of fedavg in --grid"),
    ("fedavg,fedavgm", ["momentun=0,1"], {}, r"Did you mean 'momentum'\?"),
    ("fedavg,fedavgm", ["fedavg.momentum=0,1"], {}, r"setting 'momentum' of runs of fedavg"),
    ("fedavg", ["fedavgm.momentum=0,1"], {}, r"Unknown prefix 'fedavgm'.*Before a setting's name"),
    ("fedavgm", ["momentum=0,1", "algorithm.momentum=0"], {}, r"are the same for fedavgm"),
    ("fedavgm", ["momentum=0,1"], {"settings": {"momentum": 1}}, r"by both --grid and --set"),
    ("fedavg", ["rate=1"], {"settings": {"momentum": 1}}, r"'momentum' of runs of fedavg in --set"),
    ("fedavg", ["seed=1,2"], {}, r"cannot vary seed: --seeds N runs every setting"),
    ("fedavg", ["num_rounds=1,2"], {}, r"cannot vary num_rounds: --rounds sets"),
    ("fedavg", ["diagnostics=true,false"], {}, r"cannot vary diagnostics: all settings share"),
    ("fedavg", ["task.model=random,x"], {}, r"Unknown model 'x' of the task quadratics"),
    ("fedavg", ["cohort_size=1,0"], {}, r"cohort_size must be a whole number of at least 1"),
    ("mime", ["base=sgdm(0.9),adm"], {}, r"Unknown base optimizer 'adm'\. Did you mean 'adam'"),
    ("fedavg", ["reddi2021"], {},
     r"Unknown preset 'reddi2021' of task quadratics.*values: --grid KEY="),
    ("fedavg", ["quick"], {}, r"quick of task quadratics does not have a grid \(.*mnist.*\)"),
    ("fedavg", ["none"], {}, r"Preset none of task quadratics does not have a grid"),
    ("fedavg", [], {}, r"only one run: one method, one setting, one seed"),
    ("fedavg", [], {"num_seeds": 0}, r"seeds must be a whole number of at least 1"),
    ("fedavg,fedavg", [], {}, r"Method fedavg is given twice"),
    ("fedavg,", [], {}, r"The name of a method is empty"),
    ("fedavgg", [], {}, r"Unknown algorithm 'fedavgg'\. Did you mean 'fedavg'\?"),
    ("fedavg", ["cohort_size=1,2"], {"choose": "lift"}, r"'lift' does not say whether"),
    ("fedavg", ["cohort_size=1,2"], {"settings": {"keep_best": "test_loss"}},
     r"keep_best is for single runs"),
    ("fedavg", [f"{key}=linspace(1,2,400)" for key in ("client_learning_rate", "availability")],
     {}, r"The grids have 160,000 settings, more than the maximum of 100,000"),
])
def test_what_cannot_be_swept_says_why(methods, words, options, message):
    with pytest.raises(ConfigError, match=message):
        sweep(methods, *words, **options)


@pytest.mark.quick
def test_a_user_task_has_no_grid():
    with pytest.raises(ConfigError, match=r"The task sensors does not have presets, so the grid"):
        sweep_config(f"{ROOT / 'examples' / 'tasks.py'}:sensors", ["fedavg"], ["reddi2021"])


def test_every_setting_is_built_and_each_structure_tried_once():
    config = sweep("fedavg,fedavgm", "client_learning_rate=0.1,0.2,0.3", "fedavgm.momentum=0,0.9",
                   "fedavg.num_local_epochs=none", "fedavg.batch_size=1,2")
    found = built(config)
    assert len(found) == len(config.settings) == 6 + 6
    assert len({id(of.task) for of in found}) == 1
    assert len({id(of.sent) for of in found}) == 3  # fedavg with batches of 1 and of 2, fedavgm
    with pytest.raises(ConfigError, match=r"momentum must be a finite number .* but is 1\.5"):
        built(sweep("fedavgm", "momentum=0.9,1.5"))
    with pytest.raises(ConfigError, match=r"cohort_size is 101, but the task .* has only 100"):
        built(sweep("fedavgm", "cohort_size=10,101"))


@pytest.mark.quick
@pytest.mark.parametrize(("rule", "settings", "message"), [
    ("test_loss", {"evaluate_every": 0}, r"Cannot choose by test_loss: evaluate_every is 0"),
    ("distance", {}, r"Cannot choose by distance: .* Choose by test_distance, or by validation_"),
    ("test_accuracy", {}, r"Unknown metric 'test_accuracy' to choose by.* Known: 'train_loss', "
                          r"'test_loss', 'test_distance'"),
])
def test_a_rule_that_cannot_be_followed_is_refused_before_training(rule, settings, message):
    with pytest.raises(ConfigError, match=message):
        built(sweep("fedavg", "cohort_size=1,2", choose=rule, settings=settings))
    built(sweep("fedavg", "cohort_size=1,2", choose="test_worst_tenth_loss"))
    with pytest.raises(ValueError, match=message):
        fedax.sweep(load_task("quadratics"), fedax.fedavg, {"client_learning_rate": [1.0, 2.0]},
                    num_rounds=2, choose=rule, **settings)


@pytest.mark.slow
def test_a_sweep_with_halving_is_not_told_to_extend_its_grid(tmp_path, capsys):
    words = "quadratics fedavg --grid client_learning_rate=0.01,0.02,0.03 --rounds 9"
    for more, told in ((["--halving", "3"], False), ([], True)):
        out = str(tmp_path / str(told))
        assert run_command(["sweep", *words.split(), *more, "--out", out]) == 0
        assert ("fedax sweep --extend" in capsys.readouterr().out) == told


@pytest.mark.quick
def test_a_method_that_is_made_already_is_refused_with_a_sentence():
    task = load_task("quadratics")
    with pytest.raises(TypeError, match="must be a function that makes a method, such as"):
        fedax.sweep(task, fedax.fedavg(task.model, 0.1), {"client_learning_rate": [0.1, 1.0]},
                    num_rounds=1)


@pytest.mark.slow
def test_a_sweep_chooses_anew(tmp_path, capsys):
    out = str(tmp_path / "sweep")
    words = "quadratics fedavg --grid client_learning_rate=0.01,1 --rounds 2 --cohort-size 2 --out"
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        assert run_command(["sweep", *words.split(), out, "--choose", "drift"]) == 2
        said = capsys.readouterr().err
        assert "Unknown metric 'drift' to choose by" in said
        assert f"fedax sweep --resume {for_shell(Path(out))} --choose METRIC" in said
        assert run_command(["sweep", "--resume", out, "--choose", "num_reports:max"]) == 0
    assert "chosen by the last num_reports; higher" in " ".join(capsys.readouterr().out.split())
    assert run_command(["sweep", "--resume", out, "--choose", "nosuch"]) == 2
    said = capsys.readouterr().err
    assert "the name 'nosuch' does not say whether it should be high or low" in said
    assert f"fedax sweep --resume {for_shell(Path(out))} --choose METRIC" in said
    chosen = fedax.load_sweep(out)
    assert chosen.choice.rule == chosen.summary["choose"] == "num_reports"
    assert (tmp_path / "sweep" / "best" / "fedavg.toml").exists()


@pytest.mark.quick
def test_a_wider_sweep_keeps_its_settings_and_adds_to_the_grid():
    config = sweep("fedavg,fedavgm", "client_learning_rate=0.1,1", "momentum=0.5,0.9,0.99")
    losses = [3, 1, 5, 5, 5, 5, 2, 5]
    wider = config.wider(choose(recorded(config, losses)))
    assert wider.settings[:8] == config.settings
    assert wider.grid == {
        "fedavg": {"client_learning_rate": [0.1, 1.0, 10.0, 100.0]},
        "fedavgm": {"client_learning_rate": [0.1, 1.0, 10.0, 100.0], "momentum": [0.5, 0.9, 0.99]},
    }
    assert [one.number for one in wider.settings[8:]] == list(range(8, 8 + 2 + 6))
    assert wider.run(wider.settings[8]).algorithm_options["client_learning_rate"] == 10.0


@pytest.mark.slow
def test_an_edge_asks_for_nothing_that_a_users_method_refuses(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("""import fedax
def mine(model, share: float = 0.5):
    if not 0 < share < 1:
        raise ValueError(f"share must be in (0, 1), but is {share}.")
    return fedax.fedavg(model, share)
""")
    for values, added in (("0.4,0.6,0.8", []), ("0.2,0.4", [0.8])):
        config = sweep(f"{path}:mine", f"share={values}", preset="none")
        count = len(config.settings)
        wider = config.wider(choose(recorded(config, -np.arange(count))))
        assert len(wider.settings) == count + 2
        possible_ones, why = possible(wider, count)
        assert [one.values["share"] for one in possible_ones.settings[count:]] == added
        assert [one.number for one in possible_ones.settings] == list(range(count + len(added)))
        assert len(why) == 2 - len(added)
        assert "mine.py:mine: share must be in (0, 1), but is 1" in why[0]
        assert possible_ones.grid["mine"]["share"] == [*config.grid["mine"]["share"], *added]


ODD = 'a "quoted" \\ name\nwith = a line and \x7f, é'


@pytest.mark.quick
@pytest.mark.parametrize("config", [
    resolve(task="shakespeare", algorithm="elastic+fedyogi", settings={
        "run.seed": 3, "clients_per_chunk": 2, "evaluation_sample": "none",
        "bias_correction": "none", "server_learning_rate": "exponential_decay(0.1, 0.99)"}),
    resolve(task="shakespeare", algorithm="mime", preset="quick", settings={
        "base": "adam(0.9, 0.99)", "keep_best": "test_loss", "num_local_epochs": "none"}),
    resolve(task="quadratics", algorithm=f"elastic+{METHODS}:fedexp", preset="none",
            settings={"epsilon": 1e-05, "diagnostics": True}),
    resolve(task="digits", algorithm="fedavg", settings={"partition": ODD}),
], ids=["schedule", "base", "own", "odd"])
def test_a_configuration_reads_back_from_its_toml(config, tmp_path):
    path = tmp_path / "best.toml"
    path.write_text(as_toml(config), "utf-8")
    again = resolve(config_file=path)
    for field in dataclasses.fields(RunConfig):
        if field.name != "preset":
            assert getattr(again, field.name) == getattr(config, field.name), field.name
    assert changed_since(path, again) == []


@pytest.mark.quick
def test_the_best_setting_as_a_file_repeats_its_run(tmp_path):
    config = sweep("fedavg,fedavgm", "client_learning_rate=0.1,1", "momentum=0,0.9", num_seeds=2)
    record = recorded(config, [3, 2, 4, 1, 5, 6])
    choice = choose(record)
    for algorithm, best in (("fedavg", 1), ("fedavgm", 3)):
        path = tmp_path / f"{algorithm}.toml"
        text = best_toml(config, record, choice, algorithm)
        path.write_text(text, "utf-8")
        run = config.run(config.settings[best])
        assert resolve(config_file=path) == dataclasses.replace(run, preset="none")
    assert re.match(r"# Best of 4 settings of fedavgm on quadratics: client_learning_rate=0\.1 "
                    r"momentum=0\.9\.\n# Score: 1 \(one seed\); chosen by the mean train_loss over "
                    r"one round; lower is better\.\n# Train with it: fedax run --config", text)
    lost = choose(record._replace(diverged=np.ones(6, int)))
    assert best_toml(config, record, lost, "fedavg") is None


@pytest.mark.quick
def test_no_text_breaks_out_of_a_remark():
    config = sweep_config("digits", ["fedavg"], {"partition": [ODD, "iid"]})
    record = recorded(config, [1, 2])
    read = tomllib.loads(best_toml(config, record, choose(record), "fedavg"))
    assert read["task_options"]["partition"] == ODD
    assert set(read) == {field.name for field in dataclasses.fields(RunConfig)} - set(SOURCES)


@pytest.mark.quick
def test_a_key_that_fits_two_places_is_told_apart(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import fedax\ndef mine(model, seed: float = 0.1):\n    return fedax.fedavg(model, seed)\n"
    )
    method = f"{path}:mine"
    with pytest.raises(ConfigError, match=r"--grid seed belongs to the run and the algorithm of "
                                          r"mine; write run\.seed or algorithm\.seed"):
        sweep(method, "seed=1,2", preset="none")
    config = sweep(f"{method},fedavg", "algorithm.seed=1,2", preset="none", num_seeds=2)
    assert config.grid == {"mine": {"algorithm.seed": [1, 2]}, "fedavg": {}}
    assert config.run(config.settings[1], 1).algorithm_options == {"seed": 2}
    both = sweep(f"{method},fedavg", f"{method}.algorithm.seed=1,2", "mine.cohort_size=3,4",
                 preset="none")
    assert both.grid["mine"] == {"algorithm.seed": [1, 2], "cohort_size": [3, 4]}


def asked_by(line):
    return asked(parsed(["sweep", *shlex.split(line)]))


@pytest.mark.quick
def test_a_command_line_is_a_sweep():
    config = asked_by(
        'quadratics fedavg,fedavgm --grid client_learning_rate="logspace(-1, 0, 2)" momentum=0,0.9 '
        "--grid fedavg.num_local_steps=1,5 --seeds 2 --rounds 3 --cohort-size 4 --set "
        "fedavgm.num_local_steps=7 --choose test_loss"
    )
    assert config.grid == {
        "fedavg": {"client_learning_rate": [0.1, 1.0], "num_local_steps": [1, 5]},
        "fedavgm": {"client_learning_rate": [0.1, 1.0], "momentum": [0.0, 0.9]},
    }
    base = config.bases["fedavgm"]
    assert (base.num_rounds, base.cohort_size, base.algorithm_options["num_local_steps"]) == (
        3, 4, 7)
    assert (config.seeds, config.choose) == ((0, 1), "test_loss")
    assert describe(config) == [
        "fedavg: 4 settings (2 client_learning_rate x 2 num_local_steps)",
        "fedavgm: 4 settings (2 client_learning_rate x 2 momentum)",
        "16 runs of 3 rounds on quadratics, 2 seeds each",
    ]


@pytest.mark.quick
@pytest.mark.parametrize(("line", "message"), [
    ("", r"fedax sweep needs a task and methods, such as: fedax sweep shakespeare"),
    ("quadratics", r"needs a task and methods"),
    ("quadratics fedavg --grid", r"--grid takes KEY=VALUE,VALUE,\.\.\. .* but got ''"),
    ("quadratics fedavg --set", r"--set takes KEY=VALUE"),
    ("quadratics fedavg --grid cohort_size=1,2 --seeds 0", r"seeds must be a whole number"),
    ("quadratics fedavg --grid cohort_size=1,2 --rounds -1", r"num_rounds must be a whole"),
])
def test_a_wrong_command_line(line, message):
    with pytest.raises(ConfigError, match=message):
        asked_by(line)


@pytest.mark.quick
@pytest.mark.parametrize(("line", "message"), [
    ("--resume a --extend a", r"Finish the sweep with --resume"),
    ("--resume a --rounds 5", r"--resume uses the sweep's own settings"),
    ("--resume a --settings-per-batch 2", r"Only --choose and --log can be given"),
    ("quadratics --extend a", r"--extend uses .* Only --settings-per-batch and --log can be"),
])
def test_what_cannot_go_with_a_folder(line, message):
    with pytest.raises(ConfigError, match=message):
        require_alone(parsed(["sweep", *line.split()]))
    require_alone(parsed(["sweep", "--resume", "a", "--choose", "test_loss", "--debug"]))


@pytest.mark.quick
def test_the_end_of_a_sweep_is_printed(capsys):
    config = asked_by("quadratics fedavg --grid client_learning_rate=0.1,1 num_local_steps=2,3")
    record = recorded(config, [1.5, 2, 2, 2])
    print_outcome(record, choose(record), Path("a sweep"))
    out = " ".join(capsys.readouterr().out.split())
    assert "fedavg 1.5 client_learning_rate=0.1 num_local_steps=2 1 of 4" in out
    assert "best client_learning_rate is 0.1, the smallest of its grid; add 0.01, 0.001." in out
    assert "fedavg: best num_local_steps is 2, the smallest of its grid; add 1." in out
    assert re.search("fedax sweep --extend ['\"]a sweep['\"] ", out)


@pytest.mark.quick
def test_the_page_on_sweeps_prints_what_it_says():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        found = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert found.failed == 0
    assert found.attempted > 5


@pytest.mark.quick
def test_the_commands_of_the_page_on_sweeps_are_read():
    lines = re.findall(r"^fedax sweep (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    sizes = [len(asked_by(line).settings) for line in lines
             if "--resume" not in line and "--extend" not in line]
    assert sizes[:3] == [2 * 3 * 3, 4 * 3 + 4 * 3 * 2 + 4 * 3, 8 * 3 + 8 * 3]
    assert len(sweep("fedsgd", "decay2021", task="shakespeare").settings) == 9216


PIECES = ["=", ",", "(", ")", "[", "]", ".", " ", "logspace(", "linspace(0,1,3)", "0.1", "1e999",
          "nan", "-1", "none", "true", "momentum=", "task.", "fedavgm.", "run.", "quick", "x" * 90,
          "1" * 5000, "\x00", "é"]


@pytest.mark.quick
@hypothesis.given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), max_size=3))
@hypothesis.settings(max_examples=150, derandomize=True, deadline=None)
def test_any_text_is_a_grid_or_a_sentence(words):
    grid, sentence = {}, ""
    try:
        _, grid = parse_grid(words)
    except ConfigError as error:
        sentence = str(error)
    assert all(grid.values())
    assert len(sentence) < 400  # what was typed is cut
