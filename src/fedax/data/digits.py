"""1,797 handwritten digits of 8 x 8 pixels, as in scikit-learn; included in fedax.

They are the test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998):
pixels count ink, from 0 to 16, and 13 persons wrote them. `scripts/build_digits.py` made the file;
`digits.LICENSE.md` has the terms. Embedded, they need neither scikit-learn nor a network.

scikit-learn divides them into no parts. Here the first 80 % (rounded down) are for training, in
the published order, so that the test part comes from other writers as far as the order goes.
"""

from __future__ import annotations

import bz2
import hashlib
from importlib import resources
from importlib.resources.abc import Traversable

import numpy as np

from fedax.data.errors import DataError

PATH = resources.files("fedax.data") / "digits.bin.bz2"  # also where fedax is imported from a zip
SHA256 = "3ce0592364cdd21bf52e487ae2aa7e55df596a6a15611858c057739dfe702ea4"
NUM_EXAMPLES = 1797
NUM_TRAIN = NUM_EXAMPLES * 4 // 5
SIDE = 8


def load(path: Traversable = PATH) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The arrays for training and those for testing: `x` uint8 [n, 8, 8, 1] and `y` int32 [n].

    Args:
      path: the compact file: all pixels, image after image, then all labels, a byte each.

    Raises:
      DataError: if it is missing or differs from the one that this version of fedax expects.
    """
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"The data file {path} cannot be read ({error.strerror}). Reinstall fedax."
        ) from error
    if hashlib.sha256(packed).hexdigest() != SHA256:
        raise DataError(f"The data file {path} is truncated or changed. Reinstall fedax.")
    content = np.frombuffer(bz2.decompress(packed), np.uint8)
    x = content[:-NUM_EXAMPLES].reshape(NUM_EXAMPLES, SIDE, SIDE, 1)
    y = content[-NUM_EXAMPLES:].astype(np.int32)
    return {"x": x[:NUM_TRAIN], "y": y[:NUM_TRAIN]}, {"x": x[NUM_TRAIN:], "y": y[NUM_TRAIN:]}
