"""Builds the embedded data set of digits from scikit-learn's.

Usage: python scripts/build_digits.py DIGITS_CSV_GZ OUTPUT

DIGITS_CSV_GZ is `sklearn/datasets/data/digits.csv.gz` of scikit-learn: 64 pixels and a label on
each line; OUTPUT is `src/fedax/data/digits.bin.bz2`: all pixels, image after image, then all
labels, a byte each, packed with bzip2. The output depends on nothing but the input.
"""

import bz2
import hashlib
import sys
from pathlib import Path

import numpy as np


def main(table: Path, output: Path) -> None:
    rows = np.loadtxt(table, delimiter=",")
    pixels, labels = rows[:, :-1].astype(np.uint8), rows[:, -1].astype(np.uint8)
    assert (np.column_stack([pixels, labels]) == rows).all()
    packed = bz2.compress(pixels.tobytes() + labels.tobytes(), 9)
    output.write_bytes(packed)
    print(f"{output}: {len(packed):,} bytes, sha256 {hashlib.sha256(packed).hexdigest()}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
