"""Choices that change the text."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from loma.backends.cfamily.stack import BY_VALUE, LIMIT


@dataclass(frozen=True, slots=True)
class Options:
    """``real`` is the C type of a loma float, in structs too; "double" serves the tests.

    ``arrays`` says how an array argument travels. "pointers" is the C ABI: the callee does not know
    how long an ``Array[T]`` is, so its subscripts are not checked. With "slices" it is a struct of
    a pointer and a size, ``{T *data; int size;}``, and every subscript is checked.

    ``entries``: a function that takes or returns structs by value gets a second exported function,
    which has pointers to them. Not every host can pass structs by value (libffi 3.4.4 cannot).

    ``by_value`` and ``stack`` are bytes: functions that take and return structs of more than
    ``by_value`` have pointers to them instead, and along a chain of calls arrays, structs and tapes
    take no more than ``stack`` of the C stack; see :mod:`loma.backends.cfamily.stack`.

    ``device``: the text is CUDA C++, of functions and of a kernel for each @simd function. What a
    failure does, and where memory comes from, ``backends/cuda/device/items.h`` says there.
    """

    real: Literal["float", "double"] = "float"
    arrays: Literal["pointers", "slices"] = "pointers"
    entries: bool = False
    by_value: int = BY_VALUE
    stack: int = LIMIT
    device: bool = False


# Of a device's threads, all of which have their stacks at a time. Structs stay values, which the
# compiler of kernels keeps in registers.
DEVICE = Options(arrays="slices", by_value=sys.maxsize, stack=4 * 1024, device=True)
