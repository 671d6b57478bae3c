"""Arguments made up for a function from its signature, for a check that needs some point to run at.

Sizes come from the given shapes, from given sizes, or are small and all different, so that two
dimensions never agree by accident.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from loma.arithmetic.grids import INT_BINARY
from loma.core.distinct import unproved
from loma.core.ir import (
    INT, Binary, Expr, FloatType, Function, Index, IndexAssign, IntConst, IntType, Param,
    TensorType, Unary, Var,
)  # fmt: skip
from loma.core.ops import INFIX
from loma.core.printer import print_type
from loma.core.sizes import bindings, dims_of, scaled_size
from loma.core.walk import statements, walk
from loma.errors import suggest


class SampleError(ValueError):
    """The given shapes, sizes and values do not fit the function, or leave something open."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a user fixed: shapes of tensors, values of size variables, values of scalars."""

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)


def sample_arguments(
    function: Function,
    given: Given | None = None,
    *,
    seed: int = 0,
    positive: bool = False,
    complete: bool = False,
) -> dict[str, Any]:
    """A value for each argument that Python passes, by name, in order.

    Tensors are float64 and standard normal (``positive``: uniform in [0.5, 1.5]), integer tensors
    hold 0 and 1, or the numbers from 0 in any order where an assignment to distinct elements takes
    its subscripts from them; an ``int`` is 2. The ``Out`` arguments of a derivative are left out,
    as in a call.

    Raises SampleError for names that the function lacks, shapes that contradict one another, and
    what cannot be made up (the shape of a tensor of any rank, arrays, structs; any size, if the
    given ones have to be ``complete``).
    """
    given = given or Given()
    params = [p for p in function.params if p.mode == "In" or function.primal is None]
    _refuse_unknown(function, params, given)
    generator = torch.Generator().manual_seed(seed)
    ints = {p.name: _int_value(function, p, given) for p in params if isinstance(p.type, IntType)}
    sizes = bind_sizes(function, params, given, ints, complete)

    def draw(shape: Sequence[int]) -> torch.Tensor:
        if positive:
            return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    places = _places(function)
    arguments: dict[str, Any] = {}
    total = 0
    for param in params:
        match param.type:
            case IntType():
                arguments[param.name] = ints[param.name]
            case FloatType():
                value = given.scalars.get(param.name)
                arguments[param.name] = float(draw(())) if value is None else float(value)
            case TensorType() as tensor:
                shape = _shape(function, param, tensor, given, sizes | ints)
                total += 8 * math.prod(shape)  # bytes, in float64
                _refuse_huge(function, param, shape, total)
                if param.name in places and shape:
                    order = torch.rand(shape, generator=generator)
                    arguments[param.name] = torch.argsort(order, -1)
                elif tensor.integer:
                    made = torch.randint(0, 2, shape, generator=generator)
                    arguments[param.name] = made.bool() if tensor.element == "bool" else made
                else:
                    arguments[param.name] = draw(shape)
            case _:
                raise SampleError(
                    f"{function.name}: no value can be made up for '{param.name}', "
                    "which is neither a tensor nor a number"
                )
    return arguments


def _places(function: Function) -> set[str]:
    """The IntTensors that tell which elements are assigned, each at most once."""
    return {
        node.base.name
        for stmt in statements(function.body)
        if isinstance(stmt, IndexAssign) and unproved(stmt)
        for node in walk(stmt.target)
        if isinstance(node, Index) and node != stmt.target and isinstance(node.base, Var)
    }


def bind_sizes(
    function: Function,
    params: Sequence[Param],
    given: Given,
    ints: Mapping[str, int],
    complete: bool = False,
) -> dict[str, int]:
    """Every size variable of the signature with its value; SampleError where one is not given and
    the given ones have to be ``complete``."""
    bound: dict[str, tuple[int, str]] = {
        name: (value, "the given size") for name, value in given.sizes.items()
    }
    for param in params:
        if not isinstance(param.type, TensorType) or param.type.dims is None:
            continue
        shape = given.shapes.get(param.name)
        if shape is None:
            continue
        if len(shape) != len(param.type.dims):
            raise SampleError(
                f"{function.name}: '{param.name}' has {len(param.type.dims)} dimensions, "
                f"but the given shape has {len(shape)}: {_joined(shape)}"
            )
        for position, dim in enumerate(param.type.dims):
            parts = scaled_size(dim)
            if parts is None or parts[0] in ints:
                continue
            name, scale, offset = parts
            own, rest = divmod(shape[position] - offset, scale)
            if rest or own < 0:
                raise SampleError(
                    f"{function.name}: '{param.name}' is {print_type(param.type)}, so its "
                    f"dimension {position} cannot be {shape[position]}"
                )
            value, source = bound.setdefault(name, (own, f"dimension {position} of '{param.name}'"))
            if value != own:
                raise SampleError(
                    f"{function.name}: size {name} is {value} by {source}, "
                    f"but {own} by dimension {position} of '{param.name}'"
                )
    sizes = {name: value for name, (value, _) in bound.items()}
    missing = [name for name in bindings(params) if name not in sizes]
    if complete and missing:
        raise SampleError(f"{function.name}: give a value for the size {', '.join(missing)}")
    for name in missing:
        least = _least(name, params)
        sizes[name] = next(n for n in itertools.count(least) if n not in sizes.values())
    return sizes


def check_shapes(
    function: Function, shapes: Mapping[str, Sequence[int]], scalars: Mapping[str, float]
) -> None:
    """SampleError where the shapes of some arguments, with the values of some numbers, contradict
    their types or one another."""
    params = [param for param in function.params if param.name in shapes]
    ints = {p.name: int(scalars.get(p.name, 0)) for p in function.params if p.type == INT}
    sizes = bind_sizes(function, params, Given(shapes=shapes), ints)
    known = sizes | {name: value for name, value in ints.items() if name in scalars}
    for param in params:
        shape = shapes[param.name]
        if not isinstance(param.type, TensorType) and shape:
            raise SampleError(f"{function.name}: '{param.name}' is a number, got {_joined(shape)}")
        for position, dim in enumerate(dims_of(param)):
            if not {node.name for node in walk(dim) if isinstance(node, Var)} <= known.keys():
                continue
            if (size := _evaluate(function, dim, known)) != shape[position]:
                raise SampleError(
                    f"{function.name}: '{param.name}' is {print_type(param.type)}, so its "
                    f"dimension {position} is {size}, not {shape[position]}"
                )


def _least(name: str, params: Sequence[Param]) -> int:
    """A value of a size variable from which on no dimension that is made of it alone is below 2."""
    found = 2
    for param in params:
        for dim in dims_of(param):
            if (scaled := scaled_size(dim)) is not None and scaled[0] == name:
                found = max(found, -((scaled[2] - 2) // scaled[1]))
    return found


def _shape(
    function: Function, param: Param, tensor: TensorType, given: Given, env: Mapping[str, int]
) -> tuple[int, ...]:
    shape = given.shapes.get(param.name)
    if tensor.dims is None:
        if shape is None:
            raise SampleError(
                f"{function.name}: '{param.name}' may have any rank, so its shape must be given"
            )
        return tuple(shape)
    declared = tuple(_evaluate(function, dim, env) for dim in tensor.dims)
    if shape is not None and tuple(shape) != declared:
        raise SampleError(
            f"{function.name}: the given shape of '{param.name}' is {_joined(shape)}, "
            f"but its type makes it {_joined(declared)}"
        )
    if any(size < 0 for size in declared):
        raise SampleError(
            f"{function.name}: the sizes make '{param.name}' a tensor of shape "
            f"{_joined(declared)}: give other sizes"
        )
    return declared


def _refuse_huge(function: Function, param: Param, shape: Sequence[int], total: int) -> None:
    """SampleError where the tensors so far take more than half of the memory: the system would
    end the process that calls a function with them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if total > memory // 2:
        raise SampleError(
            f"{function.name}: with '{param.name}' of shape {_joined(shape)} the arguments take "
            f"{total >> 30:,} GiB, and a call needs room in the {memory >> 30:,} GiB of this "
            "machine, too: give smaller sizes"
        )


def _evaluate(function: Function, expr: Expr, env: Mapping[str, int]) -> int:
    """The value of a dimension."""
    match expr:
        case IntConst(value):
            return value
        case Var(name):
            if name not in env:
                raise SampleError(f"{function.name}: size {name} is not known: give it a value")
            return env[name]
        case Unary("-", operand):
            return -_evaluate(function, operand, env)
        case Binary("+" | "-" | "*" | "/" | "//" | "%" as op, left, right):
            a, b = _evaluate(function, left, env), _evaluate(function, right, env)
            if INFIX[op].divides and b == 0:
                raise SampleError(f"{function.name}: the sizes divide by zero in a dimension")
            return int(INT_BINARY[op](a, b))
    raise SampleError(f"{function.name}: a dimension is more than int arithmetic: give all shapes")


def _int_value(function: Function, param: Param, given: Given) -> int:
    value = given.scalars.get(param.name, 2)
    if not math.isfinite(value) or value != int(value):
        raise SampleError(f"{function.name}: '{param.name}' is an int, got {value}")
    return int(value)


def belonging(functions: Sequence[Function], given: Given) -> list[Given]:
    """What is given for each of several functions. SampleError for what fits none of them."""
    parts = []
    used: set[str] = set()
    for function in functions:
        params = [p for p in function.params if p.mode == "In" or function.primal is None]
        known = _known(params, given)
        parts.append(Given(*({n: v for n, v in values.items() if n in names}
                             for _, values, names in known)))  # fmt: skip
        used |= {name for _, values, names in known for name in values if name in names}
    for name in (*given.shapes, *given.sizes, *given.scalars):
        if name not in used:
            raise SampleError(f"no function has an argument or a size '{name}'")
    return parts


def _refuse_unknown(function: Function, params: Sequence[Param], given: Given) -> None:
    for kind, values, names in _known(params, given):
        for name in values:
            if name not in names:
                hint = suggest(name, names) or f"it has {', '.join(dict.fromkeys(names)) or 'none'}"
                raise SampleError(f"{function.name} has no {kind} '{name}': {hint}")


def _known(
    params: Sequence[Param], given: Given
) -> tuple[tuple[str, Mapping[str, Any], list[str]], ...]:
    """Kinds of what may be given, with what is given of each, and what there is of it."""
    tensors = [p for p in params if isinstance(p.type, TensorType)]
    scalars = [p for p in params if isinstance(p.type, IntType | FloatType)]
    return (
        ("tensor argument", given.shapes, [p.name for p in tensors]),
        ("size variable", given.sizes, list(bindings(params))),
        ("int or float argument", given.scalars, [p.name for p in scalars]),
    )


def _joined(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
