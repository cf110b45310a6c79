"""Builds the virtual environments of the benchmark: fedax's own and one for each peer.

    python benchmarks/environments.py [NAME ...] [--into FOLDER]

Needs Python 3.11, which is what fedjax's JAX goes up to with wheels that are known to work. Of
PyTorch any build of the version will do; on Linux the usual one has CUDA in it (several GB). With
PyTorch's own index of CPU builds in `PIP_EXTRA_INDEX_URL` pip finds the small one.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE / ".environments"

ENVIRONMENTS = {
    "fedax": ["--editable", str(HERE.parent)],
    "pfl": ["pfl==0.6.0", "torch==2.13.0", "numpy==2.4.6"],
    "flwr": ["flwr[simulation]==1.41.0", "ray==2.55.1", "torch==2.13.0", "numpy==2.4.6"],
    # jax.tree_map, which fedjax calls, is gone from JAX 0.4.26 on; Haiku 0.0.12 is of that time.
    "fedjax": [
        "fedjax==0.0.17", "jax==0.4.25", "jaxlib==0.4.25", "dm-haiku==0.0.12", "chex==0.1.86",
        "optax==0.2.2", "numpy==1.26.4", "scipy==1.12.0",
    ],
}


def build(name: str, folder: Path) -> None:
    place = folder / name
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    subprocess.run([*pip, "--quiet", *ENVIRONMENTS[name]], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(ENVIRONMENTS)}; default all")
    parser.add_argument("--into", type=Path, default=FOLDER)
    options = parser.parse_args()
    for wanted in options.names or ENVIRONMENTS:
        print(f"{wanted}: {' '.join(ENVIRONMENTS[wanted])}", flush=True)
        build(wanted, options.into)
