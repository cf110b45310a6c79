"""Continuous integration: which versions of Python it tries."""

import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from test_rooms import QUICK

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parent.parent
RUN = (ROOT / ".ci" / "run").read_text("utf-8")
(NEWEST,) = re.findall(r"^newest\(\) \{\n.*?^\}\n", RUN, re.MULTILINE | re.DOTALL)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SUPPORTED = [name.split(" :: ")[-1] for name in PROJECT["classifiers"] if "Python ::" in name]


def test_the_public_hosts_have_every_supported_python():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    matrices = re.findall(r"python: \[(.*)\]", workflow)
    assert len(matrices) == 2
    for matrix in matrices:
        assert re.findall(r'"([\d.]+)"', matrix) == SUPPORTED


def test_the_newer_pythons_are_those_that_are_supported():
    assert re.findall(r"for version in ([\d. ]+);", NEWEST) == [" ".join(SUPPORTED[:0:-1])]


def python(path, version):
    """A Python of a version; one without it does not run, as a shim of a version that is off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if version is None:
        path.write_text("#!/bin/sh\nexit 127\n")
    else:
        path.write_text(
            "#!/bin/sh\n"
            f'exec "{sys.executable}" -c "import sys; sys.version_info = {version}; $2"\n'
        )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(("there", "found"), [
    ({"bin/python3": (3, 11, 7)}, ""),
    ({"bin/python3": (3, 11, 7), "bin/python3.13": (3, 13, 0)}, "python3.13"),
    ({"bin/python3": (3, 11, 7), "bin/python3.12": (3, 12, 1)}, "python3.12"),
    ({"bin/python3": (3, 11, 7), "bin/python3.13": None, "bin/python3.12": (3, 12, 1)},
     "python3.12"),
    ({"bin/python3": (3, 11, 7), "bin/python3.13": None, "pyenv/versions/3.13.0/bin/python":
      (3, 13, 0), "bin/python3.12": (3, 12, 1)}, "pyenv/versions/3.13.0/bin/python"),
    ({"bin/python3": (3, 12, 1), "bin/python3.12": (3, 12, 1), "bin/python3.13": (3, 13, 0)},
     "python3.13"),
    ({"bin/python3": (3, 13, 0), "bin/python3.13": (3, 13, 0), "bin/python3.12": (3, 12, 1)}, ""),
    ({"bin/python3": (3, 14, 0), "bin/python3.13": (3, 13, 0)}, ""),
], ids=["alone", "newest", "newer", "a shim that fails", "of pyenv", "of two", "itself", "older"])
def test_the_newest_python_that_runs_is_found(there, found, tmp_path):
    for name, version in there.items():
        python(tmp_path / name, version)
    done = subprocess.run(
        [shutil.which("bash"), "-euc", NEWEST + "newest"], capture_output=True, text=True,
        env={"PATH": f"{tmp_path}/bin", "PYENV_ROOT": f"{tmp_path}/pyenv"}, check=False, timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().removeprefix(f"{tmp_path}/") == found


def test_it_stops_where_something_fails():
    assert "set -euo pipefail" in RUN.splitlines()
    assert " || true" not in RUN


def test_the_newest_python_tries_a_file_of_each_room_and_all_internals():
    start = RUN.index("files=$(")
    command = RUN[start:RUN.index("sort -u)", start)] + "sort -u); echo $files"
    done = subprocess.run(
        [shutil.which("bash"), "-euc", command.replace("python -c", f"{sys.executable} -c")],
        capture_output=True, text=True, check=True, timeout=60, cwd=ROOT,
    )
    files = done.stdout.split()
    assert {f"tests/{name}.py" for name in QUICK.values()} <= set(files)
    internals = {f"tests/{path.name}" for path in (ROOT / "tests").glob("test_*.py")
                 if "mark.internals" in path.read_text("utf-8")}
    assert len(internals) > 10
    assert internals <= set(files)
    assert all((ROOT / file).is_file() for file in files)
