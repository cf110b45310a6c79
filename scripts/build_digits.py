"""Builds the embedded data set of digits from scikit-learn's.

Usage: python scripts/build_digits.py OUTPUT

OUTPUT is `src/fedax/data/digits.bin.bz2`. Needs scikit-learn. The output depends on nothing else:
all pixels, image after image, then all labels, a byte each, packed with bzip2.
"""

import bz2
import hashlib
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def main(output: Path) -> None:
    data = load_digits()
    pixels, labels = data.images.astype(np.uint8), data.target.astype(np.uint8)
    assert (pixels == data.images).all()
    packed = bz2.compress(pixels.tobytes() + labels.tobytes(), 9)
    output.write_bytes(packed)
    print(f"{output}: {len(packed):,} bytes, sha256 {hashlib.sha256(packed).hexdigest()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
