"""Derivatives of one's own: ``@derivative(f)`` before a function that takes what ``rev_diff(f)``
takes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import replace

from loma import errors
from loma.core.differentials import reverse_signature
from loma.core.ir import Derivative, Function, is_tensor_function
from loma.core.printer import print_param
from loma.errors.spans import Span
from loma.frontend.scope import Program, span_of


def decorated(node: ast.FunctionDef) -> tuple[bool, str | None]:
    """Whether a function is ``@simd``, and the function that it is the derivative of."""
    simd, of = False, None
    for decorator in node.decorator_list:
        match decorator:
            case ast.Name(id="simd") if not simd:
                simd = True
            case ast.Call(
                func=ast.Name(id="derivative"), args=[ast.Name(id=name)], keywords=[]
            ) if of is None:
                of = name
            case ast.Name(id="derivative") | ast.Call(func=ast.Name(id="derivative")) if of is None:
                raise errors.SyntaxNotSupported(
                    "'@derivative' takes the name of one function", span_of(decorator),
                    hint="@derivative(f)",
                )  # fmt: skip
            case _:
                raise errors.SyntaxNotSupported(
                    "the only decorators of a function are '@simd' and '@derivative(f)', each once",
                    span_of(decorator),
                )
    return simd, of


def check_own_derivatives(
    nodes: Iterable[ast.FunctionDef], program: Program, requests: Iterable[Derivative]
) -> dict[str, str]:
    """Refuses what is no derivative; by function, its own one."""
    made = {request.name: request for request in requests}
    found: dict[str, str] = {}
    for node in nodes:
        own = program.functions[node.name]
        if own.derivative_of is None:
            continue
        span = span_of(node.decorator_list[-1])
        of = own.derivative_of
        _check_primal(own, span, program, made)
        if of in found:
            first = program.functions[found[of]]
            raise errors.DuplicateFunction(
                f"'{of}' has a derivative of its own already, '{first.name}'", span, var=of,
                related=((first.span, "first defined here"),),
            )  # fmt: skip
        found[of] = own.name
        _check_signature(own, program.functions[of])
    return found


def _check_primal(
    own: Function, span: Span, program: Program, made: Mapping[str, Derivative]
) -> None:
    of = own.derivative_of
    assert of is not None
    if of == own.name:
        raise errors.NotDifferentiable(
            f"'{of}' is given as its own derivative", span,
            hint="name the function that this one is the derivative of",
        )  # fmt: skip
    if of in made:
        raise errors.NotDifferentiable(
            f"'{of}' is made by {made[of].mode}({made[of].of}), and so is its derivative", span,
            related=((made[of].span, "defined here"),),
            hint=f"@derivative takes a function that the program defines, such as {made[of].of}",
        )  # fmt: skip
    if of not in program.functions:
        raise errors.CallIDNotFound(
            f"there is no function '{of}'", span,
            hint=errors.suggest(of, program.functions), var=of,
        )  # fmt: skip
    primal = program.functions[of]
    if primal.derivative_of is not None:
        raise errors.NotDifferentiable(
            f"'{of}' is itself the derivative of '{primal.derivative_of}', and rev_diff makes its "
            "derivative",
            span,
            related=((primal.span, "defined here"),),
        )
    if (
        is_tensor_function(primal)
        and primal.results
        and any(p.mode == "Out" for p in primal.params)
    ):
        raise errors.NotDifferentiable(
            f"'{of}' returns something and writes to an Out argument, and a function of tensors "
            "with a derivative of its own does one of both",
            span,
            related=((primal.span, "defined here"),),
            hint="return all that it computes",
        )


def _check_signature(own: Function, primal: Function) -> None:
    expected = reverse_signature(primal)
    hint = f"def {own.name}({', '.join(map(print_param, expected))}):"
    related = ((primal.span, f"'{primal.name}' is defined here"),)
    what = f"'{own.name}' must take what rev_diff({primal.name}) takes"
    for position, (found, wanted) in enumerate(zip(own.params, expected, strict=False), 1):
        if (found.type, found.mode) != (wanted.type, wanted.mode):
            asked = print_param(replace(wanted, name=found.name))
            raise errors.TypeMismatch(
                f"{what}: argument {position} is {asked}, found {print_param(found)}",
                found.span, hint=hint, related=related,
            )  # fmt: skip
    wrong = None
    if len(own.params) != len(expected):
        wrong = f": {len(expected)} arguments, found {len(own.params)}"
    elif own.results:
        wrong = ", and returns nothing: it adds to its Out arguments"
    elif own.simd != primal.simd:
        which = (own, primal) if primal.simd else (primal, own)
        wrong = f": '{which[1].name}' is @simd, and '{which[0].name}' is not"
    if wrong is not None:
        raise errors.TypeMismatch(f"{what}{wrong}", own.span, hint=hint, related=related)


def unused_by_forward_mode(
    requests: Iterable[Derivative], own: Mapping[str, str], program: Program,
    calls: Mapping[str, Iterable[str]],
) -> errors.Warnings:  # fmt: skip
    """A warning for each forward derivative that has to differentiate what has a derivative of its
    own: that serves reverse mode only."""
    for request in requests:
        if request.mode != "fwd_diff":
            continue
        layer = is_tensor_function(program.functions[request.of])
        reached, waiting = set(), [request.of]
        while waiting:
            name = waiting.pop()
            if name not in reached and is_tensor_function(program.functions[name]) == layer:
                reached.add(name)
                waiting += calls.get(name, ())
        for name in sorted(reached & own.keys()):
            yield errors.UserWarning(
                f"{request.mode}({request.of}) differentiates '{name}' itself: '{own[name]}', its "
                "derivative, serves reverse mode only",
                request.span,
                related=((program.functions[own[name]].span, "defined here"),),
                hint=f"call rev_diff({request.of}), or see that both agree",
            )
