"""A file of named float32 tensors that Python and the C++ program both read.

A text header, then the raw values: the line ``loma-tensors 1``, one line ``NAME RANK SIZES...`` a
tensor, an empty line, and all elements in that order, row-major, in the machine's byte order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy
import torch
from torch import Tensor

MAGIC = "loma-tensors 1"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    lines = [MAGIC]
    lines += [
        " ".join([name, str(t.dim()), *(str(n) for n in t.shape)]) for name, t in tensors.items()
    ]
    with path.open("wb") as file:
        file.write(("\n".join(lines) + "\n\n").encode())
        for tensor in tensors.values():
            file.write(tensor.detach().to(torch.float32).contiguous().numpy().tobytes())


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors by name; ValueError for another kind of file."""
    tensors: dict[str, Tensor] = {}
    with path.open("rb") as file:
        if file.readline().decode(errors="replace").rstrip("\n") != MAGIC:
            raise ValueError(f"{path} is not a file of tensors")
        shapes: list[tuple[str, list[int]]] = []
        while words := file.readline().decode().split():
            shapes.append((words[0], [int(word) for word in words[2:]]))
        for name, shape in shapes:
            data = numpy.fromfile(file, numpy.float32, math.prod(shape))
            if data.size != math.prod(shape):
                raise ValueError(f"{path} ends before the last value of {name}")
            tensors[name] = torch.from_numpy(data).reshape(shape)
    return tensors
