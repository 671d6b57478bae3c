"""Activity: which variables carry a derivative from the arguments to the results.

A variable is *varied* when it depends on a differentiable argument, *useful* when a result depends
on it; only a variable that is both is active and gets an adjoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from loma.core import builder as b
from loma.core.effects import effects
from loma.core.ir import (
    POSITIONS, ArrayType, Expr, FloatType, Function, Index, IntType, NoDiff, Op, Reduce, Select,
    StackType, Stmt, StructType, TensorType, Type, Var,
)  # fmt: skip
from loma.core.ops import OPS
from loma.core.walk import children, root, statements


def carries_derivative(type_: Type) -> bool:
    """Whether values of the type have a derivative: floats, float tensors, and what holds floats
    (every struct counts)."""
    match type_:
        case FloatType() | StructType():
            return True
        case ArrayType(element) | StackType(element):
            return carries_derivative(element)
        case TensorType():
            return not type_.integer
        case _:
            return False


def zeros_like(value: Expr) -> Expr | None:
    """The zeros that an adjoint or tangent of the value starts with; None where its type tells its
    shape."""
    unknown = isinstance(value.type, TensorType) and value.type.dims is None
    return b.operator("zeros_like", (value,)) if unknown else None


def differentiable_reads(expr: Expr) -> Iterator[str]:
    """Names of the variables that the expression's value may depend on differentiably."""
    match expr:
        case _ if isinstance(expr.type, IntType):
            parts: tuple[Expr, ...] = ()
        case Var(name):
            if carries_derivative(expr.type):
                yield name
            parts = ()
        case NoDiff():
            parts = ()
        case Index(base):
            parts = (base,)
        case Select(_, then, other):
            parts = (then, other)
        case Op(name, args):
            info = OPS[name]
            passing = (arg for k, arg in enumerate(args) if info.passes(k))
            parts = tuple(passing) if info.differentiable else ()
        case Reduce(kind, body):
            parts = () if kind in POSITIONS else (body,)
        case _:
            parts = children(expr)
    for part in parts:
        yield from differentiable_reads(part)


def reaches(expr: Expr, active: Callable[[str], bool]) -> bool:
    """Whether the expression's value may depend on an active variable."""
    return any(map(active, differentiable_reads(expr)))


def _flows(
    body: tuple[Stmt, ...], functions: dict[str, Function] | None
) -> Iterator[tuple[set[str], set[str]]]:
    """(written variables, variables that their values depend on differentiably), by statement."""
    for stmt in statements(body):
        own = effects(stmt, functions)
        written = {root(place) for place in (*own.declares, *own.stacks, *own.writes)}
        yield written, {name for expr in own.reads for name in differentiable_reads(expr)}


def active_variables(
    function: Function,
    types: dict[str, Type],
    inputs: set[str],
    outputs: set[str],
    functions: dict[str, Function] | None = None,
    still: Collection[str] = (),
) -> set[str]:
    """Variables on a differentiable path from ``inputs`` to ``outputs``, which does not go through
    ``still``.

    ``functions`` are those that are called as statements; a function in normal form calls none.
    """
    flows = [
        (written.difference(still), read) for written, read in _flows(function.body, functions)
    ]
    varied, useful = set(inputs), set(outputs)
    changed = True
    while changed:
        before = len(varied) + len(useful)
        for every, read in flows:
            written = every.difference(still)
            if read & varied:
                varied |= {name for name in written if carries_derivative(types[name])}
            if written & useful:
                useful |= read
        changed = len(varied) + len(useful) != before
    return varied & useful
