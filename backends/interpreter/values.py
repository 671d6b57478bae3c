"""Values of every type: made from what a caller passes, all zero, converted, copied.

An int is a Python int, a float an ``np.float64``, an array a list, a struct a dict by member, a
stack a list that grows, a tensor a NumPy array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, assert_never

import numpy as np

from loma.arithmetic.grids import to_float, to_int
from loma.core.ir import (
    ArrayType, FloatType, IntType, StackType, Struct, StructType, TensorType, TupleType, Type,
)  # fmt: skip
from loma.core.printer import print_type

Value = Any
Structs = Mapping[str, Struct]


# Of reductions, for ints and for floats.
_INITIAL = {
    "sum": (0, 0.0), "prod": (1, 1.0), "max": (-(2**63), -np.inf), "min": (2**63 - 1, np.inf),
}  # fmt: skip


def initial(kind: str, whole: bool) -> Value:
    """The value of a reduction before its first element; ``whole``: of ints."""
    number = _INITIAL[kind.removeprefix("arg")][not whole]
    return number if whole else np.float64(number)


def dtype_of(type_: TensorType) -> type[np.int64 | np.float64]:
    """In which a tensor is computed with; the elements of a BoolTensor are the ints 0 and 1."""
    return np.int64 if type_.integer else np.float64


def to_host(value: Value, type_: Type) -> Value:
    """A result as the caller gets it."""
    return value != 0 if isinstance(type_, TensorType) and type_.element == "bool" else value


def convert(value: Value, type_: Type, bits: int = 64) -> Value:
    """The value as one of that type: scalars change theirs, everything else is copied."""
    match type_:
        case IntType():
            return to_int(value, bits)
        case FloatType():
            return to_float(value)
        case TensorType():
            return np.array(value, dtype=dtype_of(type_))
        case TupleType(items):
            return tuple(convert(v, t, bits) for v, t in zip(value, items, strict=True))
        case _:
            return deepcopy(value)


def zero(type_: Type, shape: tuple[int, ...], structs: Structs) -> Value:
    """The all-zero value of a type; ``shape`` is that of a tensor."""
    match type_:
        case IntType():
            return 0
        case FloatType():
            return np.float64(0.0)
        case TensorType():
            return np.zeros(shape, dtype=dtype_of(type_))
        case ArrayType(element, size):
            return [zero(element, (), structs) for _ in range(size or 0)]
        case StructType(name):
            return {member: zero(t, (), structs) for member, t in structs[name].members}
        case StackType():
            return []
        case TupleType():
            raise AssertionError("no variable has the type of several results")
        case _:
            assert_never(type_)


def zero_like(value: Value) -> Value:
    """The all-zero value of the same type and shape."""
    if isinstance(value, dict):
        return {name: zero_like(item) for name, item in value.items()}
    if isinstance(value, list):
        return [zero_like(item) for item in value]
    return np.zeros_like(value) if isinstance(value, np.ndarray) else type(value)(0)


def from_host(value: Value, type_: Type, structs: Structs, where: str) -> Value:
    """What a caller passed for a scalar-layer type, checked and copied; ``where`` begins messages.

    An array is any sequence, a struct a mapping of its members. TypeError and ValueError for what
    does not fit.
    """
    match type_:
        case IntType():
            if np.ndim(value) != 0 or np.asarray(value).dtype.kind == "f":
                raise TypeError(f"{where} takes an int, found {value!r}")
            return int(value)
        case FloatType():
            if np.ndim(value) != 0:
                raise TypeError(f"{where} takes a number, found one of rank {np.ndim(value)}")
            return np.float64(value)
        case ArrayType(element, size):
            if not isinstance(value, Sequence | np.ndarray):
                raise TypeError(f"{where} takes {print_type(type_)}, found {value!r}")
            if size is not None and len(value) != size:
                raise ValueError(f"{where} takes {print_type(type_)}, found {len(value)} elements")
            return [
                from_host(item, element, structs, f"{where}[{k}]") for k, item in enumerate(value)
            ]
        case StructType(name):
            members = dict(structs[name].members)
            if not isinstance(value, Mapping) or set(value) != set(members):
                listed = ", ".join(members) or "none"
                raise TypeError(f"{where} takes a dict of the members of {name}: {listed}")
            return {
                member: from_host(value[member], t, structs, f"{where}.{member}")
                for member, t in members.items()
            }
        case _:
            raise AssertionError(type_)
