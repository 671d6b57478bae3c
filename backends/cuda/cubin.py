"""What a cubin says of its kernel. It is an ELF file, whose sections NVIDIA's tools read alike from
CUDA 12 to 13."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

# Attributes in the section .nv.info: a symbol, and a number of it.
_REGISTERS, _FRAME = 0x2F, 0x11
_OF_SIZE = 4  # the format of an attribute that has its size before it
_RESERVED = 1024  # bytes of shared memory that CUDA keeps for itself
_RESERVES = 90  # the first architecture where the section counts them


@dataclass(frozen=True, slots=True)
class Needs:
    """Of a kernel: registers of a thread; bytes of shared memory of a block, but for those that a
    launch asks for; bytes of a thread on the stack: arrays, and registers that were too few."""

    registers: int
    shared: int
    stack: int


def needs(image: bytes, name: str, architecture: int) -> Needs | None:
    """None for what is no cubin, such as text in PTX."""
    if not image.startswith(b"\x7fELF"):
        return None
    registers = stack = shared = 0
    for section, body, size in _sections(image):
        if section == ".nv.info":
            found = dict(_attributes(body))
            registers, stack = found.get(_REGISTERS, 0), found.get(_FRAME, 0)
        elif section == f".nv.shared.{name}":
            shared = size - _RESERVED * (architecture >= _RESERVES)
    return Needs(registers, max(shared, 0), stack)


def _sections(image: bytes) -> Iterator[tuple[str, bytes, int]]:
    """Names, contents and sizes."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    each, count, of_names = struct.unpack_from("<HHH", image, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", image, table + k * each) for k in range(count)]
    names = heads[of_names][4]
    for name, _, _, _, offset, size in heads:
        start = names + name
        text = image[start : image.index(b"\0", start)].decode()
        yield text, image[offset : offset + size], size


def _attributes(body: bytes) -> Iterator[tuple[int, int]]:
    """Those of a kernel that have one number."""
    at = 0
    while at + 4 <= len(body):
        form, kind, size = struct.unpack_from("<BBH", body, at)
        at += 4
        if form == _OF_SIZE:
            if kind in (_REGISTERS, _FRAME):
                yield kind, struct.unpack_from("<II", body, at)[1]
            at += size
