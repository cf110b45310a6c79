"""Headers of NumPy's .npy files, which may be anybody's."""

from __future__ import annotations

import warnings
from typing import IO

import numpy as np

# NumPy's own headers have 128 bytes. Python's parser takes long for large ones.
_LONGEST = 2**12
_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0,
}


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether columns come first, and dtype of an array; the file is then behind its header.

    Raises:
      ValueError: if it has no such header; the message is for users.
      OSError: if the file cannot be read.

    Example:
      >>> import io
      >>> file = io.BytesIO()
      >>> np.save(file, np.ones((3, 2), np.float32))
      >>> _ = file.seek(0)
      >>> read_header(file)
      ((3, 2), False, dtype('float32'))
    """
    try:
        version = np.lib.format.read_magic(file)
    except ValueError:
        raise ValueError("it does not begin like a .npy file") from None
    if version not in _READERS:
        raise ValueError(
            f"it has the version {version[0]}.{version[1]} of NumPy's format, but fedax reads 1.0 "
            "and 2.0"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            shape, in_columns, dtype = _READERS[version](file, max_header_size=_LONGEST)
    except OSError:
        raise
    except Exception:  # NumPy asks Python's tokenizer and parser, which have many errors
        raise ValueError(
            "its header does not hold a dtype and shape as NumPy writes them"
        ) from None
    if any(type(length) is not int or not 0 <= length < 2**63 for length in shape):
        raise ValueError("its header has an impossible shape")
    return shape, in_columns, dtype
