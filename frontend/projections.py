"""Scalar functions that give one result of a function with several.

``_f_1`` has the statements of f that its second result needs. An index statement computes one
value, so that ``r[i], t[i] = f(x[i])`` is two of them, of ``_f_0`` and ``_f_1``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from loma import errors
from loma.core.differentials import reverse_signature
from loma.core.ir import (
    FLOAT, INT, Call, CallStmt, Expr, FloatConst, Function, IntConst, Return, TupleType, Var, While,
)  # fmt: skip
from loma.core.walk import statements
from loma.frontend.scope import Program
from loma.passes.liveness import Liveness


def projections(
    program: Program, functions: Mapping[str, Function], own: dict[str, str]
) -> Iterator[Function]:
    """The functions that statements need, with derivatives of those whose originals the program
    gives one (``own``, which gets them, too)."""
    for (of, position), name in program.parts.items():
        if of not in functions:
            raise errors.SyntaxNotSupported(
                f"'{of}' is a derivative, and the results of one are taken apart into variables",
                program.functions[of].span, hint="assign these to the elements afterwards",
            )  # fmt: skip
        part = _projection(functions[of], position, name, functions.values())
        yield part
        if of in own and part.results == (FLOAT,):
            derivative = program.names.fresh(f"_d{name}")
            own[name] = derivative
            yield _derivative(part, functions[of], position, functions[own[of]], derivative)


def _projection(
    function: Function, position: int, name: str, functions: Iterable[Function]
) -> Function:
    returned = function.body[-1]
    assert isinstance(returned, Return)
    body = (*function.body[:-1], Return((returned.values[position],), returned.span))
    # A loop that runs too often is an error that the program is owed, whoever reads its values.
    if not any(isinstance(stmt, While) for stmt in statements(body)):
        body, _ = Liveness(tuple(functions)).block(body, frozenset())
    return replace(
        function, name=name, results=(function.results[position],), body=body, defaults=(),
        doc=f"Result {position + 1} of {function.name}.",
    )  # fmt: skip


def _derivative(part: Function, of: Function, position: int, own: Function, name: str) -> Function:
    """The derivative of a projection of ``of`` that follows from the program's own one: the other
    results have no adjoint."""
    params = reverse_signature(part, own.span)
    *arguments, seed = (Var(param.name, param.type) for param in params)
    seeds: list[Expr] = [IntConst(0) if type_ == INT else FloatConst(0.0) for type_ in of.results]
    seeds[position] = seed
    call = Call(own.name, (*arguments, *seeds), TupleType(()))
    return Function(
        name, params, (), (CallStmt(call),), span=own.span, derivative_of=part.name,
        doc=f"The derivative of {part.name}, by {own.name}.",
    )  # fmt: skip
