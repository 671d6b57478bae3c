"""Forward mode on scalar functions: the partial derivative as a function of the same arguments.

Index statements call scalar functions; the adjoint of such a call is the adjoint of its value times
the partial derivative, computed by a function made here. Tangents are pushed along with the values,
so loops and branches need no tape, and partial derivatives are scalar functions again: they can be
differentiated in turn. A function that has arrays, structs or stacks goes through ``fwd_diff``.
"""

from __future__ import annotations

from loma import errors
from loma.ad.activity import active_variables
from loma.ad.contributions import PartialName
from loma.ad.tangents import Tangents
from loma.core import builder as b
from loma.core.differentials import DFLOAT
from loma.core.ir import (
    FLOAT, Assign, Call, Declare, FloatType, For, Function, If, IntType, MakeStruct, Member, Place,
    Return, Stmt, Type, Var, While, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import expressions, map_blocks, statements, walk


def partial_derivative(
    function: Function, position: int, name: str, partial_name: PartialName
) -> Function:
    """The function ``name`` whose value is the derivative of ``function`` in one argument."""
    check_is_value(function)
    param = function.params[position]
    types: dict[str, Type] = {p.name: p.type for p in function.params}
    for stmt in statements(function.body):
        if isinstance(stmt, Declare):
            types[stmt.target.name] = stmt.target.type
    *body, last = function.body
    assert isinstance(last, Return)
    # The returned value is given a name, so that activity has a variable to aim at.
    result = Var("return", FLOAT)
    types[result.name] = FLOAT
    probe = replace(function, body=(*body, Declare(result, last.values[0])))
    active = active_variables(probe, types, {param.name}, {result.name})
    names = Names(names_of(function))
    tangents = {v: Var(names.fresh(f"_t_{v}"), FLOAT) for v in sorted(active - {result.name})}
    # Another argument that is assigned to has a tangent, too, which is 0 until then.
    seed = tuple(
        Declare(tangents[p.name], b.flt(1 if p is param else 0))
        for p in function.params
        if p.name in tangents
    )
    pushed = _Pusher(tangents, partial_name).block(function.body)
    doc = f"The derivative of {function.name} in {param.name}."
    return replace(function, name=name, body=seed + pushed, doc=doc)


def check_is_value(function: Function) -> None:
    """Refuses a function that is no value of its arguments alone."""
    if function.results != (FLOAT,) or any(p.mode == "Out" for p in function.params):
        raise errors.NotDifferentiable(
            f"'{function.name}' is called in an index statement that is differentiated, so it must "
            "take In arguments and return one float",
            function.span,
        )


def has_only_numbers(function: Function) -> bool:
    """Whether the function does nothing but compute with numbers, as partial_derivative wants."""
    return all(
        isinstance(stmt, Declare | If | For | While | Return)
        or (isinstance(stmt, Assign) and isinstance(stmt.target, Var))
        for stmt in statements(function.body)
    ) and all(
        isinstance(node.type, FloatType | IntType)
        for stmt in statements(function.body)
        for expr in expressions(stmt)
        for node in walk(expr)
    )


def partial_from_forward(
    function: Function, position: int, name: str, derivative: Function
) -> Function:
    """As :func:`partial_derivative`, for any function: ``derivative`` is its forward derivative."""
    check_is_value(function)
    args = tuple(
        MakeStruct((Var(param.name, param.type), b.flt(1 if k == position else 0)), DFLOAT)
        if isinstance(param.type, FloatType)
        else Var(param.name, param.type)
        for k, param in enumerate(function.params)
    )
    dual = Var(Names(param.name for param in function.params).fresh("dual"), DFLOAT)
    body = (
        Declare(dual, Call(derivative.name, args, DFLOAT)),
        Return((Member(dual, "dval", FLOAT),)),
    )
    doc = f"The derivative of {function.name} in {function.params[position].name}."
    return replace(function, name=name, body=body, doc=doc, defaults=())


class _Pusher:
    """Puts the statement that computes a variable's tangent before each that gives it a value."""

    def __init__(self, tangents: dict[str, Var], partial_name: PartialName) -> None:
        self._tangents = tangents
        self.tangent = Tangents(self._place, partial_name).of

    def _place(self, place: Place) -> Place | None:
        return self._tangents.get(place.name) if isinstance(place, Var) else None

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(new for stmt in body for new in self.statement(stmt))

    def statement(self, stmt: Stmt) -> tuple[Stmt, ...]:
        match stmt:
            case Declare(Var(name), value) if name in self._tangents:
                slope = None if value is None else self.tangent(value)
                return (Declare(self._tangents[name], slope), stmt)
            case Assign(Var(name), op, value) if name in self._tangents:
                return (Assign(self._tangents[name], op, self.tangent(value)), stmt)
            case Return(values):
                return (Return((self.tangent(values[0]),)),)
            case _:
                return (map_blocks(stmt, self.block),)
