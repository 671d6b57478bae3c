"""What is stacked is made in its place.

    p[b, d] = u[b, d] * c[d] - v[b, d] * s[d]
    q[b, d] = u[b, d] * s[d] + v[b, d] * c[d]
    y = stack([p, q], 2)

has ``p`` and ``q`` with a last dimension of 1 where operators have been written out, and ``cat``
joins them. Local tensors that nothing else reads need not be: ``y[b, d, 0]`` and ``y[b, d, 1]`` are
what the two statements make.
"""

from __future__ import annotations

from collections.abc import Iterator

from loma.core import sizes
from loma.core.effects import blanks, written
from loma.core.ir import (
    Declare, Expr, Function, Index, IndexAssign, IntConst, Module, Op, Return, Stmt, TensorType,
    Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    exchanged, free_variables, map_expressions, map_tensor_functions, nodes, own_names,
    statements,
)  # fmt: skip


def stacks(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, _changed)


def _changed(function: Function) -> Function:
    seen: set[Op] = set()
    for join in _joins(function.body):
        if join not in seen:
            seen.add(join)
            function = _in_place(function, join) or function
    return function


def _joins(body: tuple[Stmt, ...]) -> Iterator[Op]:
    for stmt in body:
        if isinstance(stmt, Declare | Return):
            yield from (n for n in nodes((stmt,)) if isinstance(n, Op) and n.name == "cat")


def _in_place(function: Function, join: Op) -> Function | None:
    """The function in which statements write the elements of what is joined; None where parts are
    anything but local tensors that nothing else reads, of size 1 in the dimension."""
    dim = dict(join.attrs)["dim"]
    type_ = join.type
    if isinstance(dim, tuple) or not isinstance(type_, TensorType) or type_.dims is None:
        return None
    along = sizes.constant(dim)
    parts = [part.name for part in join.args if isinstance(part, Var)]
    if along is None or len(set(parts)) < len(join.args) or type_.element != "float":
        return None
    along %= len(type_.dims)
    declared = set(blanks(function.body))
    ones = all(_dims(part)[along : along + 1] == (IntConst(1),) for part in join.args)
    if not ones or not declared.issuperset(parts):
        return None
    places = {name: place for place, name in enumerate(parts)}
    users = [s for s in statements(function.body) if not places.keys().isdisjoint(own_names(s))]
    joining = [s for s in users if any(node == join for node in nodes((s,)))]
    makers = [s for s in users if isinstance(s, IndexAssign)]
    if len(joining) != 1 or len(joining) + len(makers) + len(parts) != len(users):
        return None
    once = [n.name for n in nodes((joining[0],)) if isinstance(n, Var) and n.name in places]
    if sorted(once) != sorted(parts) or not all(_only_writes(s, places, along) for s in makers):
        return None
    if joining[0] not in function.body or not set(makers) <= set(function.body):
        return None
    whole = Var(Names(names_of(function)).fresh("_stack"), type_)
    out: list[Stmt] = []
    for stmt in function.body:
        if isinstance(stmt, Declare) and stmt.target.name in places:
            continue
        if stmt in users and not any(whole.name in own_names(s) for s in out):
            out.append(Declare(whole, None, stmt.span))
        if isinstance(stmt, IndexAssign) and stmt in makers:
            out.append(replace(stmt, target=_moved(stmt.element, whole, places, along)))
        elif stmt is joining[0]:
            out.append(map_expressions(stmt, lambda expr: exchanged(expr, join, whole)))
        else:
            out.append(stmt)
    return replace(function, body=tuple(out))


def _dims(part: Expr) -> tuple[Expr, ...]:
    dims = part.type.dims if isinstance(part.type, TensorType) else None
    return dims or ()


def _only_writes(stmt: Stmt, places: dict[str, int], along: int) -> bool:
    """Whether a statement writes a part, and mentions it nowhere else."""
    match stmt:
        case IndexAssign(Index(Var(name), subscripts), _, value):
            reads = free_variables(value).union(*map(free_variables, subscripts))
            return (
                written((stmt,)) == {name}
                and places.keys().isdisjoint(reads)
                and subscripts[along] == IntConst(0)
            )
        case _:
            return False


def _moved(element: Index, whole: Var, places: dict[str, int], along: int) -> Index:
    place = IntConst(places[element.tensor.name])
    subscripts = (*element.subscripts[:along], place, *element.subscripts[along + 1 :])
    return replace(element, base=whole, subscripts=subscripts)
