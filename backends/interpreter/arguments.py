"""Binds the arguments of a call to a function's parameters, and checks sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loma.backends.interpreter import values
from loma.backends.interpreter.evaluate import evaluate
from loma.backends.interpreter.frame import Frame
from loma.core.ir import ArrayType, Param, TensorType, Type
from loma.core.printer import print_expr, print_type
from loma.core.sizes import Binding, bindings, dims_of
from loma.errors.spans import Span

Value = Any


def bind_arguments(frame: Frame, args: Sequence[Value]) -> None:
    """Sets every parameter and size variable; TypeError or ValueError where they do not fit."""
    function = frame.function
    if len(args) != len(function.params):
        raise TypeError(
            f"{function.name} takes {len(function.params)} arguments, found {len(args)}"
        )
    env = frame.env
    for param, arg in zip(function.params, args, strict=True):
        env[param.name] = _bound(frame, param, arg)
    for name, at in bindings(function.params).items():
        env[name] = _bound_size(frame, name, function.params[at.param], at)
    for param in function.params:
        _check_sizes(frame, param)


def _bound(frame: Frame, param: Param, arg: Value) -> Value:
    where = f"{frame.function.name}: argument '{param.name}'"
    match param.type:
        case TensorType(dims, element):
            array = np.asarray(arg)
            taken = {"bool": "b", "int": "iub"}.get(element, "fc")
            if not frame.inner and array.dtype.kind not in taken and array.size:
                noun = {"bool": "bools", "int": "integers"}.get(element, "floats")
                raise TypeError(f"{where} takes {noun}, found {array.dtype}")
            if dims is not None and len(dims) != array.ndim:
                raise ValueError(
                    f"{where} is {print_type(param.type)}, of rank {len(dims)}; "
                    f"found the shape {list(array.shape)}"
                )
            return values.convert(array, param.type)
        case type_ if frame.inner:
            # an array that is read only need not be copied
            shared = isinstance(type_, ArrayType) and param.mode == "In"
            return arg if shared else values.convert(arg, type_, frame.bits)
        case type_:
            return values.from_host(arg, type_, frame.structs, where)


def _bound_size(frame: Frame, name: str, param: Param, at: Binding) -> int:
    size: int = frame.env[param.name].shape[at.dim]
    value, rest = divmod(size - at.offset, at.scale)
    if rest or value < 0:
        where = f"{frame.function.name}: argument '{param.name}' has size {size}"
        text = print_expr(dims_of(param)[at.dim])
        raise ValueError(
            f"{where} in dimension {at.dim}, expected {text} with a whole {name}, 0 or more"
        )
    return value


def _check_sizes(frame: Frame, param: Param) -> None:
    if not isinstance(param.type, TensorType) or param.type.dims is None:
        return
    shape = frame.env[param.name].shape
    for k, (dim, size) in enumerate(zip(param.type.dims, shape, strict=True)):
        expected = evaluate(frame, dim)
        if expected != size:
            raise ValueError(
                f"{frame.function.name}: argument '{param.name}' has size {size} in dimension "
                f"{k}, expected {print_expr(dim)} = {expected}"
            )


def check_shape(
    frame: Frame, type_: Type, value: Value, label: str, span: Span, found: Type | None = None
) -> None:
    """ValueError when a tensor has not the shape that its type says; ``found`` is its own type."""
    if not isinstance(type_, TensorType) or type_.dims is None:
        return
    expected = tuple(int(evaluate(frame, dim)) for dim in type_.dims)
    if value.shape != expected:
        has = f"{print_type(found)}, which has sizes" if found is not None else "sizes"
        raise ValueError(
            f"{frame.place(span)}: {label} must be {print_type(type_)}, found {has} "
            f"{list(value.shape)}, expected {list(expected)}"
        )
