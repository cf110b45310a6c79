"""Random inputs of every reader: settings, configuration files, data sets, questions to the theory.

Every outcome is success or one sentence, within a time and a memory limit. Each fuzzer takes a seed
and a count and returns what broke the rule, an empty list at best; all of them by

    python tests/attack/fuzz.py SEED COUNT
"""

import contextlib
import functools
import io
import json
import sys
import tempfile
import time
import traceback
import zipfile
from pathlib import Path

import hypothesis
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import fedax
from fedax import FederatedDataset, Task
from fedax.algorithms.registry import ALGORITHMS, WRAPPERS
from fedax.cli.main import run_command
from fedax.experiment import run
from fedax.experiment.build import algorithm_settings
from fedax.experiment.config import RUN_KEYS
from fedax.measures.communication import communication
from fedax.rounds.checks import check_examples
from fedax.tasks.registry import TASKS

MOST_SECONDS = 20
MOST_MIB = 1024
LONGEST_SENTENCE = 4000
FEDAX = str(Path(fedax.__file__).parent)

BIG = 10**400
NUMBERS = st.one_of(
    st.integers(-3, 100), st.floats(), st.sampled_from([
        0, -1, 2**31 - 1, 2**31, 2**32 + 1, 2**63, 2**64, -(2**63) - 1, BIG, -BIG, 1e308, -1e308,
        5e-324, 1e-300,
    ]),
)
NESTS = st.sampled_from([3, 40, 60, 500, 5000]).flatmap(
    lambda deep: st.sampled_from(["(" * deep + ")" * deep, "[" * deep, "(" + "-" * deep + "1)",
                                  "sgdm(" + "(" * deep + "1" + ")" * deep + ")"])
)
CALLS = st.builds(
    "{}({})".format,
    st.sampled_from(["constant", "staircase_decay", "exponential_decay", "inverse_time_decay",
                     "sgdm", "adam", "yogi", "heavy_ball", "mime_adam", "nothing"]),
    st.lists(st.one_of(NUMBERS.map(str), st.sampled_from(["'a'", "x=1", "[1]", "None", "__"])),
             max_size=4).map(", ".join),
)
WORDS = st.one_of(
    NUMBERS.map(str), CALLS, NESTS, st.text(max_size=8),
    st.sampled_from(["none", "true", "false", "", "nan", "inf", "9" * 5000, "1_0", "0x10", "1e999",
                     "(1, 2)", "[1]", "{}", "sgd", "iid", "shuffled", "test_loss", "uniform"]),
)


def _quiet(text: str) -> str:
    return text if len(text) < 300 else f"{text[:300]}... ({len(text)} letters)"


def _peak() -> float:
    """The most memory that this process ever had, in MiB; 0 where that is not known."""
    try:
        import resource
    except ImportError:  # on Windows
        return 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _limits(what, function):
    """What is wrong with an outcome, or with the time and memory that it took."""
    before, began = _peak(), time.perf_counter()
    wrong = function()
    seconds, grown = time.perf_counter() - began, _peak() - before
    if wrong is None and seconds > MOST_SECONDS:
        wrong = f"took {seconds:.0f} s"
    if wrong is None and grown > MOST_MIB:
        wrong = f"took {grown:,.0f} MiB"
    return None if wrong is None else f"{_quiet(str(what))}: {wrong}"


def _sentence(error):
    """What is wrong with an error of a call from Python."""
    expected = (TypeError, ValueError, KeyError, fedax.DivergedError)
    frames = traceback.extract_tb(error.__traceback__)
    text = str(error)
    if not isinstance(error, expected) or not frames[-1].filename.startswith(FEDAX):
        place = f"{frames[-1].filename}, line {frames[-1].lineno}"
        return f"{type(error).__name__} from {place}: {text}"
    if len(text) > LONGEST_SENTENCE or not text.strip():
        return f"a sentence of {len(text)} letters"
    return None


def command(words):
    """What is wrong with the outcome of a command line, if anything."""
    out, err = io.StringIO(), io.StringIO()
    parsed = True
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = run_command(list(words))
        except SystemExit as stop:
            status, parsed = stop.code, False
        except BaseException as error:
            return f"{type(error).__name__} came out: {error}"
    said = err.getvalue()
    for word in ("bug in fedax", "Traceback", "Warning", "Out of memory", "<class"):
        if word in said + out.getvalue():
            return f"{word!r} in: {_quiet(said)}"
    if status not in (0, 1, 2):
        return f"exit status {status}"
    if status and parsed and not (said.startswith("fedax: ") and said.count("\n") == 1):
        return f"no sentence: {_quiet(said)!r}"
    if not status and said:
        return f"succeeded, but said: {_quiet(said)!r}"
    return f"a sentence of {len(said)} letters" if len(said) > LONGEST_SENTENCE else None


def _each(strategy, look, seed, count):
    """The problems that `look` finds in so many examples of a strategy."""
    problems = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, database=None, deadline=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def one(given):
        wrong = _limits(given, lambda: look(given))
        if wrong is not None:
            problems.append(wrong)

    one()
    return problems


@contextlib.contextmanager
def _without_training():
    """A run is built and its shapes are looked at; then it ends."""
    start, before = run.start, TASKS["quadratics"]
    loaded = functools.cache(before.load)

    def build_only(config, out=None, *, fit_cohort=False, **others):
        del out, others
        if fit_cohort:
            run.fitted_cohort(config, run.build, run.smaller_cohort)
        else:
            run.build(config)
        return Path()

    run.start = build_only
    TASKS["quadratics"] = before._replace(load=loaded)
    try:
        yield
    finally:
        run.start, TASKS["quadratics"] = start, before


def _keys(method):
    return sorted({*RUN_KEYS, *algorithm_settings(method), "model"})


METHODS = st.sampled_from(
    sorted({*ALGORITHMS, *(f"{name}+fedavg" for name in WRAPPERS)} - {"pfnm"})
)


def settings(seed, count):
    """Words after --set, and the run's options."""
    def line(method):
        pairs = st.builds(
            "{}={}".format,
            st.one_of(st.sampled_from(_keys(method)), st.text(max_size=4)), WORDS,
        )
        options = st.tuples(
            st.sampled_from(["--rounds", "--seed", "--cohort-size", "--preset"]), WORDS
        ).filter(lambda pair: not pair[1].startswith("-"))
        return st.builds(
            lambda sets, option, preset: [
                "run", "quadratics", method, *(["--preset", "none"] if preset else []), *option,
                *(word for one in sets for word in ("--set", one)),
            ],
            st.lists(pairs, max_size=3), st.one_of(st.just(()), options), st.booleans(),
        )

    with _without_training():
        return _each(METHODS.flatmap(line), command, seed, count)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, WORDS, st.just("staircase_decay(0.1, 0.1, 5)")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ), max_leaves=5,
)


def _toml(value):
    """A value as TOML; what TOML has no word for is text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(str(value), ensure_ascii=True)


def _damaged(content, place, byte, cut):
    """A file with a byte changed, or cut off."""
    if not content or place is None:
        return content
    place %= len(content)
    return content[:place] if cut else content[:place] + bytes([byte]) + content[place + 1:]


DAMAGE = st.tuples(
    st.one_of(st.none(), st.integers(0, 10**6)), st.integers(0, 255), st.booleans()
)


def files(seed, count):
    """Configurations: --config FILE, in TOML and JSON, whole and damaged."""
    keys = st.one_of(
        st.sampled_from([*_keys("fedavg"), "task", "algorithm", "preset", "task_options",
                         "algorithm_options", "task_source", "made_by", "python"]),
        st.text(max_size=4),
    )
    tables = st.one_of(
        st.dictionaries(keys, VALUES, max_size=5),
        st.builds(lambda deep, key: {key: functools.reduce(lambda v, _: [v], range(deep), 1)},
                  st.sampled_from([5, 49, 60, 900]), keys),
    )
    with tempfile.TemporaryDirectory() as folder, _without_training():

        def look(given):
            table, ending, damage = given
            text = json.dumps(table) if ending == ".json" else "".join(
                f"{json.dumps(key)} = {_toml(value)}\n" for key, value in table.items()
            )
            path = Path(folder) / f"settings{ending}"
            path.write_bytes(_damaged(text.encode("utf-8", "surrogatepass"), *damage))
            return command(["run", "quadratics", "fedavg", "--config", str(path)])

        return _each(
            st.tuples(tables, st.sampled_from([".json", ".toml"]), DAMAGE), look, seed, count
        )


DTYPES = st.sampled_from([
    *map(np.dtype, [
        "b1", "i1", "i8", "u4", "u8", "f2", "f4", "f8", ">f8", "c8", "U3", "S2", "M8[D]", "m8[s]",
        "O", "V4", "g", "G",
    ]),
    np.dtype([("a", float)]), np.dtype(jnp.bfloat16), np.dtypes.StringDType(),
])
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
ARRAYS = st.one_of(
    st.builds(lambda shape, kind: np.zeros(shape).astype(kind) if kind.kind != "V" or
              kind.name == "bfloat16" else np.zeros(shape, kind), SHAPES, DTYPES),
    st.builds(lambda n, value: np.full((n, 3), value), st.integers(1, 4),
              st.sampled_from([0.0, np.nan, np.inf, 1e300, -1, 7, 2**40])),
    st.builds(np.full, st.integers(1, 4),
              st.sampled_from([0, 1, 4, 5, -1, 2**31, 2**32 + 1, 2**63])),
    VALUES,
)
LABELS = st.sampled_from(["x", "y", "", "z", 5, None])
TABLES = st.one_of(
    st.dictionaries(st.sampled_from(["x", "y"]), ARRAYS, min_size=1),
    st.dictionaries(LABELS, ARRAYS, max_size=3), ARRAYS,
)


def data_sets(seed, count):
    """What `FederatedDataset` is made of, and what is said of it before the first round."""
    model = fedax.classification(
        lambda key: jnp.zeros((3, 5), jnp.float32), lambda w, x: x.astype(jnp.float32) @ w
    )
    algorithm = fedax.fedavg(model, 0.1)
    names = st.one_of(st.text(max_size=3), st.integers(-2, 2), st.sampled_from([None, 1.5, BIG]))
    clients = st.one_of(
        st.lists(TABLES, max_size=3), st.dictionaries(names, TABLES, max_size=3), VALUES
    )
    ways = st.one_of(
        st.tuples(st.just(FederatedDataset.from_clients), st.tuples(clients)),
        st.tuples(st.just(FederatedDataset.from_arrays), st.tuples(
            TABLES, st.one_of(st.lists(names, max_size=4), ARRAYS))),
        st.tuples(st.just(FederatedDataset), st.tuples(
            TABLES, st.one_of(st.just(np.array([0, 2])), ARRAYS),
            st.one_of(st.none(), st.lists(names, max_size=2), ARRAYS))),
    )

    def look(given):
        make, arguments = given
        try:
            data = make(*arguments)
            repr(data)
            task = Task(model, data)
            fedax.rounds.checks.require_task(task)
            communication(algorithm, model, data.client(0))
            check_examples(model, jnp.zeros((3, 5), jnp.float32), "task.train", data)
        except Exception as error:
            return _sentence(error)
        return None

    return _each(ways, look, seed, count)


def theory(seed, count):
    """`fedax theory`: its options, and files of populations, whole and damaged."""
    floats = NUMBERS.map(str).filter(lambda word: not word.startswith("-"))
    options = st.lists(st.one_of(
        st.tuples(st.sampled_from([
            "--gamma", "--local-steps", "--accuracy", "--start", "--noise", "--batch-size",
            "--seed", "--mu", "--L", "--sigma-A", "--sigma-c", "--density-power", "--ridge",
        ]), floats),
        st.tuples(st.sampled_from(["--curvatures", "--centres", "--probabilities", "--interval",
                                   "--random"]), floats, floats),
    ), max_size=4, unique_by=lambda option: option[0]).map(
        lambda found: [word for option in found for word in option]
    )
    shapes = st.sampled_from([(2,), (2, 1), (2, 2), (2, 2, 2), (3, 2, 2), (0,), (1, 1, 1), ()])
    numbers = st.builds(lambda shape, value, row: np.broadcast_to(
        np.eye(shape[-1]) if len(shape) == 3 and row else value, shape
    ), shapes, st.sampled_from([0.0, 1.0, -1.0, np.nan, np.inf, 1e308, 1e-300]), st.booleans())
    names = st.sampled_from(["matrices", "centres", "linear", "probabilities", "noise",
                             "density_power", "interval", "random", "other"])
    tables = st.one_of(
        st.builds(lambda m, c: {"matrices": m, "centres": c}, numbers, numbers),
        st.dictionaries(names, st.one_of(numbers, VALUES), max_size=4),
        st.builds(lambda table: {"random": table}, st.dictionaries(
            st.sampled_from(["num_clients", "dimension", "mu", "L", "sigma_A", "seed", "x"]),
            NUMBERS, max_size=5)),
    )
    csv = st.lists(st.lists(st.one_of(NUMBERS.map(str), st.sampled_from(
        ["client", "x", "y", "", '"', "\0", "a,b"])), max_size=4), max_size=5)

    with tempfile.TemporaryDirectory() as folder:

        def content(table, ending):
            plain = {key: value.tolist() if isinstance(value, np.ndarray) else value
                     for key, value in table.items()}
            if ending == ".json":
                return json.dumps(plain).encode("utf-8", "surrogatepass")
            if ending == ".toml":
                lines = (f"{json.dumps(key)} = {_toml(value)}\n" for key, value in plain.items())
                return "".join(lines).encode("utf-8", "surrogatepass")
            arrays = {key: value for key, value in table.items() if isinstance(value, np.ndarray)}
            file = io.BytesIO()
            (np.savez_compressed if len(arrays) % 2 else np.savez)(file, **arrays)
            return file.getvalue()

        def of_file(given):
            table, ending, damage, words = given
            path = Path(folder) / f"population{ending}"
            path.write_bytes(_damaged(content(table, ending), *damage))
            return command(["theory", str(path), *words])

        def of_csv(given):
            rows, head = given
            path = Path(folder) / "population.csv"
            text = "\n".join(map(",".join, [*([["client", "x", "y"]] if head else []), *rows]))
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
            return command(["theory", str(path)])

        few = max(count // 3, 1)
        return [
            *_each(options, lambda words: command(["theory", *words]), seed, few),
            *_each(st.tuples(tables, st.sampled_from([".json", ".toml", ".npz"]), DAMAGE,
                             st.just([])), of_file, seed, few),
            *_each(st.tuples(csv, st.booleans()), of_csv, seed, few),
        ]


def forged_npz(path, shape, kind="<f8", name="matrices", held=0):
    """A .npz file of whose array the header promises more than there is."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": kind, "fortran_order": False, "shape": tuple(shape)}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, \
            archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        member.write(head.getvalue())
        block = bytes(2**20)
        for _ in range(held // len(block)):
            member.write(block)
        member.write(bytes(held % len(block)))


FUZZERS = {
    fuzzer.__name__: fuzzer for fuzzer in (settings, files, data_sets, theory)
}

if __name__ == "__main__":
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30,) * 2)
    chosen, tries, *only = (*map(int, sys.argv[1:3]), *sys.argv[3:])
    total = 0
    for label, fuzzer in FUZZERS.items():
        if only and label not in only:
            continue
        began = time.perf_counter()
        found = fuzzer(chosen, tries)
        total += len(found)
        print(f"{label}: {tries} inputs, {len(found)} wrong, {time.perf_counter() - began:.0f} s")
        for line in dict.fromkeys(found):
            print("   ", line)
    sys.exit(bool(total))
