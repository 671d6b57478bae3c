"""Headers: what a function takes and gives, before any body is read."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Literal

from loma import errors
from loma.core import sizes
from loma.core.differentials import (
    forward_signature,
    reverse_signature,
    tensor_forward_signature,
)
from loma.core.ir import (
    FLOAT, INT, ArrayType, Derivative, Expr, FloatConst, Function, IntConst, Param, TensorType,
    Type, Var, is_tensor_function,
)  # fmt: skip
from loma.core.printer import print_type
from loma.core.unbounded import is_unbounded
from loma.core.walk import variables, walk
from loma.errors.spans import Span
from loma.frontend import types
from loma.frontend.constants import converted, value
from loma.frontend.own_derivatives import decorated
from loma.frontend.scope import Program, Scope, Symbol, span_of, span_of_def
from loma.frontend.syntax.long_chains import identifiers


def function_header(node: ast.FunctionDef, program: Program) -> Function:
    """The function with an empty body."""
    simd, derivative_of = decorated(node)
    _check_form(node)
    scope = Scope(program, Function(node.name, (), (), (), span=span_of_def(node)))
    params = _params(node, scope)
    for symbol in _param_symbols(params):
        scope.add(symbol)
    results = types.read_results(node.returns, program, types.size_in_scope(scope))
    span, place = span_of_def(node), span_of(node.returns or node)
    header = Function(
        node.name, params, results, (), simd=simd, span=span, derivative_of=derivative_of
    )
    if simd:
        _check_simd(header, place)
    for type_ in results:
        types.check_sizes(type_, place)
        if isinstance(type_, ArrayType):
            raise errors.UnknownType(
                "a function cannot return an array", place,
                hint="give it an Out[Array[...]] argument",
            )  # fmt: skip
        if is_unbounded(type_, program.structs):
            text = f"{print_type(type_)} has an array of unknown length in it"
            raise errors.ReturnTypeMismatch(
                f"{text}, so it cannot be returned", place, hint="make it an Out argument"
            )
    return replace(header, defaults=_defaults(node, header))


def _check_form(node: ast.FunctionDef) -> None:
    """Refuses kinds of arguments that there are none of."""
    args = node.args
    if args.vararg or args.kwarg or args.kwonlyargs or args.posonlyargs:
        extra = args.vararg or args.kwarg or (args.kwonlyargs or args.posonlyargs)[0]
        raise errors.SyntaxNotSupported(
            "arguments are plain names: no '*', '**' or '/'",
            span_of(extra),
            hint="name each: def f(x : In[float], y : In[float])",
        )
    if args.defaults and node.decorator_list:
        raise errors.SyntaxNotSupported(
            "an argument of a @simd function and of a derivative has no default value",
            span_of(args.defaults[0]),
        )


def _defaults(node: ast.FunctionDef, header: Function) -> tuple[IntConst | FloatConst, ...]:
    """The values of the last arguments where a call leaves them out."""
    found: list[IntConst | FloatConst] = []
    given = node.args.defaults
    for param, item in zip(header.params[len(header.params) - len(given) :], given, strict=True):
        if param.mode != "In" or param.type not in (INT, FLOAT):
            raise errors.SyntaxNotSupported(
                f"'{param.name}' cannot have a default value: only In[int] and In[float] have one",
                span_of(item), related=((param.span, "the argument"),),
            )  # fmt: skip
        if param.type == FLOAT:
            found.append(FloatConst(float(converted(value(item), "float", item)), span_of(item)))
            continue
        number = int(converted(value(item), "int", item))
        if not is_tensor_function(header) and not -(2**31) <= number < 2**31:
            raise errors.SyntaxNotSupported(
                "this whole number needs more than 32 bits", span_of(item)
            )
        found.append(IntConst(number, span_of(item)))
    return tuple(found)


def _check_simd(header: Function, results: Span) -> None:
    if header.results:
        raise errors.SimdMisuse(
            f"'{header.name}' is a @simd function, which runs once for each work item and has no "
            "result",
            results,
            hint="give it an Out[Array[...]] argument, and write to its element thread_id()",
        )
    for param in header.params:
        if isinstance(param.type, TensorType):
            raise errors.SimdMisuse(
                f"argument '{param.name}' of the @simd function '{header.name}' is a tensor",
                param.span,
                hint="use arrays, or write index statements in an ordinary function",
            )


def _params(node: ast.FunctionDef, scope: Scope) -> tuple[Param, ...]:
    names = [arg.arg for arg in node.args.args]
    ints = {arg.arg for arg in node.args.args if _is_int(arg)}
    out: list[Param] = []
    for arg in node.args.args:
        found = _mode_and_type(arg)
        if found is None:
            raise errors.FuncArgNotAnnotated(
                f"argument '{arg.arg}' of '{node.name}' needs In[...] or Out[...]", span_of(arg),
                hint=f"{arg.arg} : In[{_guess(arg)}]", var=arg.arg,
            )  # fmt: skip
        first = names.index(arg.arg)
        if first != len(out):
            raise errors.DuplicateVariable(
                f"'{arg.arg}' is already an argument", span_of(arg), var=arg.arg,
                related=((out[first].span, "first declared here"),),
            )  # fmt: skip

        def size_of(name: ast.Name) -> Expr:
            if name.id in names and name.id not in ints:
                raise errors.UnknownSizeVariable(
                    f"'{name.id}' is an argument that is no In[int] and cannot be a size",
                    span_of(name), var=name.id,
                )  # fmt: skip
            return Var(name.id, INT, span_of(name))

        mode, annotation = found
        type_ = types.read_type(annotation, scope.program, size_of)
        types.check_sizes(type_, span_of(annotation))
        out.append(Param(arg.arg, type_, mode, span_of(arg)))
    _check_bound(out, ints)
    return tuple(out)


def _check_bound(params: list[Param], ints: set[str]) -> None:
    """Refuses a name in the arguments' sizes that no dimension gives a value."""
    bound = {*sizes.bindings(params), *ints}
    for param in params:
        for dim in sizes.dims_of(param):
            for node in walk(dim):
                if isinstance(node, Var) and node.name not in bound:
                    raise errors.UnknownSizeVariable(
                        f"size variable '{node.name}' is bound by no dimension of an argument",
                        node.span,
                        hint=errors.suggest(node.name, bound)
                        or f"a dimension that is {node.name}, 2 * {node.name} or {node.name} + 1 "
                        f"binds it, or make it an argument: {node.name} : In[int]",
                    )


def _mode_and_type(arg: ast.arg) -> tuple[Literal["In", "Out"], ast.expr] | None:
    match arg.annotation:
        case ast.Subscript(value=ast.Name(id="In" | "Out" as mode), slice=inner):
            return "In" if mode == "In" else "Out", inner
        case _:
            return None


def _is_int(arg: ast.arg) -> bool:
    match _mode_and_type(arg):
        case "In", ast.Name(id="int"):
            return True
        case _:
            return False


def _guess(arg: ast.arg) -> str:
    """The type that an argument without In or Out may be meant to have."""
    match arg.annotation:
        case None | ast.Name(id="In" | "Out"):
            return "float"
        case annotation if (meant := types.instead(annotation)) is not None:
            return meant
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name not in types.TYPE_NAMES:
            return ast.unparse(inner)
        case annotation:
            return ast.unparse(annotation)


def _param_symbols(params: tuple[Param, ...]) -> list[Symbol]:
    """The arguments and the size variables as names of the body."""
    symbols = [Symbol(p.name, p.type, p.mode, p.span) for p in params]
    for name, at in sizes.bindings(params).items():
        span = sizes.dims_of(params[at.param])[at.dim].span
        symbols.append(Symbol(name, INT, "size", span))
    return symbols


def function_scope(node: ast.FunctionDef, program: Program) -> Scope:
    """The names at the start of the function's body."""
    header = program.functions[node.name]
    scope = Scope(program, header)
    for symbol in _param_symbols(header.params):
        scope.add(symbol)
    scope.reassigned = _reassigned(node, program)
    scope.names.take(*identifiers(node))
    for type_ in (*(p.type for p in header.params), *header.results):
        for dim in sizes.dims_in(type_):
            for name in variables(dim):
                types.size_value(scope, scope.symbols[name], dim.span)
    return scope


def _reassigned(node: ast.FunctionDef, program: Program) -> dict[str, Span]:
    """Where names get a second value: arguments any value, others one after their declaration."""
    given = {arg.arg for arg in node.args.args}
    found: dict[str, Span] = {}

    def mark(target: ast.expr) -> None:
        match target:
            case ast.Tuple(elts=items) | ast.List(elts=items):
                for item in items:
                    mark(item)
            case ast.Name(id=name):
                if name in given:
                    found.setdefault(name, span_of(target))
                given.add(name)

    def visit(nodes: list[ast.stmt]) -> None:
        for stmt in nodes:
            match stmt:
                case ast.Assign(targets=targets):
                    for target in targets:
                        mark(target)
                case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                    mark(target)
                case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=args)):
                    callee = program.functions.get(name)
                    modes = [p.mode for p in callee.params] if callee else ["Out"] * len(args)
                    for arg, mode in zip(args, modes, strict=False):
                        if mode == "Out":
                            mark(arg)
                case ast.If() | ast.For() | ast.While():
                    visit(stmt.body)
                    visit(stmt.orelse)

    visit(node.body)
    return found


def derivative_header(derivative: Derivative, program: Program) -> Function:
    """The signature of a derivative, which AD makes later."""
    primal = program.functions[derivative.of]
    span, tensors = derivative.span, is_tensor_function(primal)
    results: tuple[Type, ...] = ()
    if derivative.mode == "rev_diff":
        params = reverse_signature(primal, span)
    elif tensors:
        params, results = tensor_forward_signature(primal, span)
    else:
        params, results = forward_signature(primal)
    taken = (*(param.type for param in params), *results)
    for type_ in taken:
        types.check_differential(type_, span)
    program.mention(*taken)
    for type_ in taken:
        types.check_bytes(type_, span, program)
    return Function(derivative.name, params, results, (), simd=primal.simd, span=span)
