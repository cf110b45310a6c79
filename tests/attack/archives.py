"""Archives of NumPy that promise anything: members of zeros without end, and members that share."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Packed(NamedTuple):
    """A deflated member: its content, checksum and true size."""

    content: bytes
    checksum: int
    size: int


def header(kind: str, shape: tuple[int, ...]) -> bytes:
    """The beginning of a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array_header_2_0(
        file, {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


@functools.lru_cache(8)
def packed(start: bytes, zeros: int = 0) -> Packed:
    """The start and so many zeros, deflated; the same block again and again, which is fast."""
    block = bytes(2**24)
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = [deflate.compress(start), deflate.flush(zlib.Z_FULL_FLUSH)]
    again = deflate.compress(block) + deflate.flush(zlib.Z_FULL_FLUSH)
    content += [again] * (zeros // len(block))
    content += [deflate.compress(bytes(zeros % len(block))), deflate.flush()]
    checksum = zlib.crc32(start)
    for _ in range(zeros // len(block)):
        checksum = zlib.crc32(block, checksum)
    checksum = zlib.crc32(bytes(zeros % len(block)), checksum)
    return Packed(b"".join(content), checksum, len(start) + zeros)


def npz(path: Path, arrays: dict[str, Packed], sharing: dict[str, Packed] | None = None) -> None:
    """Writes an archive.

    Args:
      path: the file.
      arrays: name -> member.
      sharing: members that all have the same content, which is there once: the header of each is
        an extra field of the one before (Fifield 2019).
    """
    body, directory = bytearray(), bytearray()

    def note(name: bytes, member: Packed, offset: int) -> None:
        directory.extend(struct.pack(
            "<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, 0, 8, 0, 0x21, member.checksum,
            len(member.content), member.size, len(name), 0, 0, 0, 0, 0, offset) + name)

    def local(name: bytes, member: Packed, extra: int = 0) -> bytes:
        return struct.pack(
            "<IHHHHHIIIHH", 0x04034B50, 20, 0, 8, 0, 0x21, member.checksum, len(member.content),
            member.size, len(name), extra) + name

    for name, member in arrays.items():
        file = f"{name}.npy".encode()
        note(file, member, len(body))
        body += local(file, member) + member.content
    chain, lengths = b"", []
    for name, member in reversed((sharing or {}).items()):
        chain = local(f"{name}.npy".encode(), member, len(chain)) + chain
        lengths.append(len(chain))
    for (name, member), length in zip(reversed((sharing or {}).items()), lengths, strict=True):
        note(f"{name}.npy".encode(), member, len(body) + len(chain) - length)
    if sharing:
        body += chain + next(iter(sharing.values())).content
    count = len(arrays) + len(sharing or {})
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count % 2**16, count % 2**16, len(directory),
                      len(body), 0)
    path.write_bytes(body + directory + end)
