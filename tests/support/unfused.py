"""Fused steps as a plain function again, with everything that fusion must not rely on made visible.

Kernels become loops over their index (in either direction: a parallel loop has no order), panels
and blocks loops over parts of a few values, of which the last one may be smaller. A private tensor
has no value (NaN, or an int far outside) at the start of an iteration unless the kernel says that
it starts at zero, and again behind its lifetime, when others may have its memory. So do the scalars
that every thread has for itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loma.backends.kernels.fuse import fuse
from loma.backends.kernels.ir import (
    Carrying, Chain, Kernel, Nested, Step, Panels, Sweep, temporaries,
)  # fmt: skip
from loma.backends.kernels.pairs import Pairs
from loma.backends.kernels.lifetimes import lifetimes
from loma.backends.kernels.sharing import Library
from loma.core import builder as b
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Declare, Expr, FloatConst, For, Function, If, Index, IndexAssign,
    IntConst, Module, Select, Stmt, TensorType, Var, Zero, is_tensor_function,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import blocks, map_blocks, map_children, map_expressions, statements

_FAR = -(1 << 40)  # no subscript and no size
_ROWS = 12  # elements of all rows of a block, where it sums over them


@dataclass(frozen=True, slots=True)
class Order:
    """How many values a block and a panel have, and whether the last iterations run first."""

    block: int = 2
    panel: int = 2
    backwards: bool = False


@dataclass(slots=True)
class Seen:
    """What was fused: a test that sees no kernels tests nothing."""

    kernels: int = 0
    private: int = 0
    blocks: int = 0
    panels: int = 0
    sums: int = 0
    functions: set[str] = field(default_factory=set)


def unfused_module(module: Module, library: Library, order: Order, seen: Seen) -> Module:
    """The module with every tensor function fused and made plain again."""
    functions = (
        unfused(f, library, order, seen) if is_tensor_function(f) else f for f in module.functions
    )
    return replace(module, functions=tuple(functions))


def unfused(function: Function, library: Library, order: Order, seen: Seen) -> Function:
    """The function's steps as statements that the interpreter runs."""
    steps = fuse(function, library, _ROWS)
    body = _Plain(Names(_all_names(function, steps)), temporaries(steps), order, seen).steps(steps)
    return replace(function, body=body)


def _all_names(function: Function, steps: tuple[Step, ...]) -> set[str]:
    found = set(names_of(function))
    for step in steps:
        match step:
            case Kernel():
                found |= {step.axis.name}
                number = None if step.blocks is None else step.blocks.number
                used = (step.count, step.first, number, *step.parts)
                found |= {var.name for var in used if var is not None}
                found |= names_of(replace(function, body=step.body))
            case Panels():
                found |= {step.axis.name, step.count.name, step.first.name}
                found |= _all_names(function, step.body)
            case Nested():
                for block in step.blocks:
                    found |= _all_names(function, block)
            case Sweep() | Chain() | Carrying():
                found |= _all_names(function, step.otherwise)
            case Pairs():
                raise AssertionError(step)
            case _:
                found |= names_of(replace(function, body=(step,)))
    return found


class _Plain:
    def __init__(self, names: Names, inside: set[str], order: Order, seen: Seen) -> None:
        self._names = names
        self._inside = inside  # tensors that are declared where they live
        self._order = order
        self._seen = seen

    def steps(self, steps: tuple[Step, ...]) -> tuple[Stmt, ...]:
        return tuple(stmt for step in steps for stmt in self._step(step))

    def _step(self, step: Step) -> tuple[Stmt, ...]:
        match step:
            case Kernel(count=None):
                return self._kernel(step)
            case Kernel():
                return self._blocks(step)
            case Panels():
                return self._panels(step)
            case Nested(For() as stmt, (body,)):
                return (replace(stmt, body=self.steps(body)),)
            case Nested(If() as stmt, (then, other)):
                return (replace(stmt, then=self.steps(then), other=self.steps(other)),)
            case (
                Sweep(otherwise=otherwise)
                | Chain(otherwise=otherwise)
                | Carrying(otherwise=otherwise)
            ):
                return self.steps(otherwise)
            case Pairs():
                raise AssertionError(step)
            case Nested():
                raise AssertionError(step)
            case Declare(target, None) if target.name in self._inside:
                return ()
            case _:
                return (step,)

    # ------------------------------------------------------------------------------- the loops

    def _kernel(self, kernel: Kernel) -> tuple[Stmt, ...]:
        body = self._iteration(kernel)
        return (For(kernel.axis.name, kernel.axis.extent, body, self._order.backwards),)

    def _blocks(self, kernel: Kernel) -> tuple[Stmt, ...]:
        assert kernel.count is not None
        self._seen.blocks += 1
        body = self._iteration(kernel)
        assert kernel.first is not None
        variables = [kernel.count, kernel.first]
        size: Expr = IntConst(self._order.block)
        if kernel.blocks is not None:
            self._seen.sums += len(kernel.parts)
            variables.append(kernel.blocks.number)
            size = kernel.blocks.size
        loop = self._parts(kernel.axis, variables, kernel.views, body, size)
        declared = [Declare(var, None) for var in kernel.parts]
        return (*declared, *self._spoilt(kernel.parts), *loop)

    def _panels(self, panels: Panels) -> tuple[Stmt, ...]:
        self._seen.panels += 1
        declared = tuple(Declare(var, None) for var in panels.temporaries)
        body = (*declared, *self.steps(panels.body))
        part = panels.count, panels.first
        if panels.until is not None:
            # Those that run the result have numbers that are moderate, unless a size is 0.
            asked = [b.binary(">", size, IntConst(0)) for size in panels.until.moderate.sizes]
            exact = panels.until.exact
            end = Select(exact, panels.until.end, panels.axis.extent, INT)
            inner = tuple(_moved(s, dict(panels.views), panels.first, self._names) for s in body)
            return (
                Assign(exact, "=", b.every(asked)), Assign(panels.first, "=", IntConst(0)),
                Assign(panels.count, "=", end), *inner,
            )  # fmt: skip
        return self._parts(panels.axis, part, panels.views, body, IntConst(self._order.panel))

    def _parts(
        self,
        axis: Axis,
        variables: Sequence[Var],
        views: tuple[tuple[str, int], ...],
        body: tuple[Stmt, ...],
        size: Expr,
    ) -> tuple[Stmt, ...]:
        """A loop over parts of so many values of an axis: the variables are set to the count and
        the first of each one's, and to its own number if that is asked for."""
        count, first, *number = variables
        part = Var(self._names.fresh("part_"), INT)
        rest = b.binary("-", axis.extent, first)
        more = b.binary("-", b.add(axis.extent, size), IntConst(1))
        parts = b.binary("//", more, size)
        head: tuple[Stmt, ...] = (
            Assign(first, "=", b.mul(part, size)),
            Assign(count, "=", b.builtin("min", (rest, size))),
            *(Assign(var, "=", part) for var in number),
        )
        inner = tuple(_moved(stmt, dict(views), first, self._names) for stmt in body)
        return (For(part.name, parts, (*head, *inner), self._order.backwards),)

    # --------------------------------------------------------------------------- one iteration

    def _iteration(self, kernel: Kernel) -> tuple[Stmt, ...]:
        self._seen.kernels += 1
        self._seen.private += len(kernel.private)
        private = {var.name: var for var in kernel.private}
        last: dict[int, list[Var]] = {}
        for name, (_, end) in lifetimes(kernel).items():
            last.setdefault(end, []).append(private[name])
        start: list[Stmt] = [Declare(var, None) for var in kernel.private]
        start += self._spoilt(var for var in kernel.private if var.name not in kernel.zeroed)
        start += self._spoilt(_scalars(kernel))
        body, _ = self._numbered(kernel.body, 1, last)
        return (*start, *body)

    def _numbered(
        self, body: tuple[Stmt, ...], number: int, last: Mapping[int, Iterable[Var]]
    ) -> tuple[tuple[Stmt, ...], int]:
        """A block whose first statement has that number, with tensors spoilt behind the statement
        that is the last of their lifetimes; the next number."""
        out: list[Stmt] = []
        for stmt in body:
            out += self._spoilt(last.get(number - 1, ()))
            number += 1

            def inner(block: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
                nonlocal number
                new, number = self._numbered(block, number, last)
                return new

            out.append(map_blocks(stmt, inner) if blocks(stmt) else stmt)
        return (*out, *self._spoilt(last.get(number - 1, ()))), number

    def _spoilt(self, variables: Iterable[Var]) -> list[Stmt]:
        return [_filled(var, self._names) for var in variables]


def _filled(var: Var, names: Names) -> Stmt:
    """Gives every element of a variable a value that must not be used."""
    if not isinstance(var.type, TensorType):
        return Assign(var, "=", FloatConst(math.nan) if var.type == FLOAT else IntConst(_FAR))
    integer = var.type.element == "int"
    axes = tuple(Axis(names.fresh("_n"), dim) for dim in var.type.dims or ())
    own = tuple(Var(axis.name, INT) for axis in axes)
    value: Expr = IntConst(_FAR) if integer else FloatConst(math.nan)
    return IndexAssign(Index(var, own, INT if integer else FLOAT), "=", value, axes)


def _scalars(kernel: Kernel) -> list[Var]:
    """Scalars that a kernel changes, which every thread has for itself."""
    return list(
        {
            stmt.target.name: stmt.target
            for stmt in statements(kernel.body)
            if isinstance(stmt, Assign) and isinstance(stmt.target, Var)
        }.values()
    )


def _moved(stmt: Stmt, views: Mapping[str, int], first: Var, names: Names) -> Stmt:
    """A statement for a part of the tensors of ``views`` as one for the whole tensors."""

    def visit(expr: Expr) -> Expr:
        new = map_children(expr, visit)
        match new:
            case Index(Var(name), subscripts) if name in views:
                dim = views[name]
                place = b.add(first, subscripts[dim])
                return replace(new, subscripts=(*subscripts[:dim], place, *subscripts[dim + 1 :]))
            case _:
                return new

    match stmt:
        case Zero(Var(name, TensorType(dims)) as target) if name in views:
            axes = tuple(Axis(names.fresh("_z"), dim) for dim in dims or ())
            own = tuple(Var(axis.name, INT) for axis in axes)
            stmt = IndexAssign(Index(target, own, FLOAT), "=", FloatConst(0.0), axes, stmt.span)
        case _ if blocks(stmt):  # conditions and extents look at no tensors
            return map_blocks(
                stmt, lambda body: tuple(_moved(s, views, first, names) for s in body)
            )
        case _:
            pass
    return map_expressions(stmt, visit)
