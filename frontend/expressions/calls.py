"""Calls: functions of the module, reductions, operators and built-in functions.

A name before parentheses is, in this order: a reduction when its argument is ``... for i in N``, a
function of the module, a tensor operator when an argument is a tensor, a built-in scalar function.
With ``loma.`` before it, it is one of the last two: derivatives say ``loma.cosh(x)`` where the
program has a function ``cosh`` of its own.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import replace

from loma import errors
from loma.core import builder as b, sizes
from loma.core.builtins import BUILTINS
from loma.core.definitions import OPERATORS
from loma.core.differentials import primal_name
from loma.core.ir import (
    FLOAT, INT, Builtin, Call, Expr, FloatConst, Function, Index, IntConst, NoDiff, Op, Param,
    TensorType, TupleType, Type, Var, ZeroPad, is_tensor_function,
)  # fmt: skip
from loma.core.walk import free_variables, substitute_type
from loma.errors.spans import Span
from loma.frontend.arguments import passed
from loma.frontend.expressions import expression as ex
from loma.frontend.expressions.counting import range_bounds, range_of
from loma.frontend.expressions.invariants import check_number
from loma.frontend.expressions.operators import USAGE, argument_of, operator
from loma.frontend.expressions.reductions import REDUCTIONS, mean, reduction
from loma.frontend.foreign import INFINITY, instead, is_foreign
from loma.frontend.scope import Scope, span_of
from loma.frontend.syntax.attributes import method, misused_stack
from loma.frontend.syntax.unsupported import unsupported
from loma.frontend.types import fixed_sizes, has_dimensions
from loma.frontend.writable import argument_place, check_no_element

_CONVERSIONS = {"int": "float2int", "float": "int2float"}
_SCALAR_HINTS = {
    "where": "on scalars write a if cond else b",
    "sum": "write sum(X[i] for i in N), or sum(x, dims) of a tensor",
    "argmax": "write argmax(X[i] for i in N), or argmax(x, dim) of a tensor",
    "softmax": "write the quotient out: exp(X[i] - M) / sum(exp(X[j] - M) for j in N)",
    "mean": "on scalars write sum(... for i in N) / N",
    "amax": "on scalars write max(a, b) or max(... for i in N)",
    "amin": "on scalars write min(a, b) or min(... for i in N)",
    "norm": "write sqrt(sum(X[i] * X[i] for i in N)), or norm(x, dims) of a tensor",
}


def call(scope: Scope, node: ast.Call) -> Expr:
    """A call as an expression."""
    span = span_of(node)
    own = False  # the language's, also where the program has a function of that name
    match node.func:
        case ast.Name(id=name):
            pass
        case ast.Attribute(value=ast.Name(id="loma"), attr=name) if name in OPERATORS:
            own = True
        case ast.Attribute() as stack if (error := misused_stack(scope, stack)) is not None:
            raise error
        case _:
            raise method(scope, node)
    if len(node.args) == 1 and isinstance(node.args[0], ast.GeneratorExp):
        if name in REDUCTIONS and not node.keywords:
            return reduction(scope, node, REDUCTIONS[name], node.args[0])
        if name == "mean" and not node.keywords:
            return mean(scope, node, node.args[0])
        raise unsupported(node.args[0])
    if name in ("rev_diff", "fwd_diff"):
        raise errors.SyntaxNotSupported(
            f"'{name}' stands at the top level of the file only", span,
            hint=f"write d_f = {name}(f) there, and call d_f",
        )  # fmt: skip
    if name == "thread_id" and not scope.header.simd:
        raise errors.SimdMisuse(
            "'thread_id()' is known only in a @simd function", span,
            hint="pass it as an argument: i : In[int]",
        )  # fmt: skip
    if name == "len" and len(node.args) == 1 and not node.keywords:
        counted = range_of(node.args[0])
        if counted is not None:
            bounds = range_bounds(scope, counted[0], "a bound of a range")
            return Builtin("len", bounds, INT, span)
    if name == "zero_pad":
        return _zero_pad(scope, node)
    if name == "no_diff":
        if node.keywords or len(node.args) != 1:
            found = len(node.args) + len(node.keywords)
            raise errors.CallTypeMismatch(f"'no_diff' takes 1 argument, found {found}", span)
        operand = ex.expression(scope, node.args[0])
        return NoDiff(operand, operand.type, span)
    callee = None if own else scope.program.functions.get(name)
    if callee is None or (name in OPERATORS and _for_operator(scope, node, callee)):
        return _named(scope, node, name)
    result = user_call(scope, node, callee)
    check_value(callee, span)
    return result


def _zero_pad(scope: Scope, node: ast.Call) -> Expr:
    if len(node.args) == 1 and not node.keywords and isinstance(node.args[0], ast.Subscript):
        read = ex.subscript(scope, node.args[0], padded=True)
        if isinstance(read, Index) and isinstance(read.base.type, TensorType):
            return ZeroPad(read, span_of(node))
    raise errors.OperatorArguments(
        "'zero_pad' takes one element of a tensor", span_of(node), hint="zero_pad(X[i + 1, j])"
    )


# ----------------------------------------------------------------------- functions of the module


def _for_operator(scope: Scope, node: ast.Call, callee: Function) -> bool:
    """Whether a scalar function's name is meant as the operator: an argument is a tensor."""
    if is_tensor_function(callee):
        return False
    return any(isinstance(arg, ast.List) for arg in node.args) or _has_tensor(scope, node)


def _has_tensor(scope: Scope, node: ast.Call) -> bool:
    """Whether an argument is a variable that is a whole tensor."""
    symbols = filter(None, map(scope.named, node.args))
    return any(has_dimensions(symbol.type) for symbol in symbols)


def user_call(scope: Scope, node: ast.Call, callee: Function) -> Call:
    """A call of a function of the module, with the types of its results at this place."""
    span, name = span_of(node), callee.name
    if callee.simd:
        raise errors.SimdMisuse(
            f"'{name}' is a @simd function, which only the host calls", span,
            hint="put what both need into an ordinary function",
            related=((callee.span, "defined here"),),
        )  # fmt: skip
    check_number(scope, node, callee)
    given = _given(node, callee)
    for item, param in zip(given, callee.params, strict=True):
        if param.mode == "Out" and isinstance(item, ast.expr):
            check_no_element(scope, item, f"argument '{param.name}' of '{name}'")
    args = tuple(
        _argument(scope, item, param, callee) if isinstance(item, ast.expr) else item
        for item, param in zip(given, callee.params, strict=True)
    )
    values = _bind_sizes(callee, args)
    results = tuple(_result(scope, type_, values) for type_ in callee.results)
    scope.calls.setdefault(name, span)
    return Call(name, args, results[0] if len(results) == 1 else TupleType(results), span)


def _given(node: ast.Call, callee: Function) -> list[ast.expr | IntConst | FloatConst]:
    """What a call passes for each argument: by position, by name, or the default value."""
    names = [param.name for param in callee.params]
    found: dict[str, ast.expr | IntConst | FloatConst] = {**passed(node, callee, names)}
    for name, default in zip(reversed(names), reversed(callee.defaults), strict=False):
        found.setdefault(name, replace(default, span=span_of(node)))
    return [found[name] for name in names]


def check_value(callee: Function, span: Span) -> None:
    """Refuses a call as an expression of a function that has no value."""
    if any(param.mode == "Out" for param in callee.params):
        raise errors.CallWithOutArgNotInCallStmt(
            f"'{callee.name}' has Out arguments, so its call is a statement of its own", span,
            related=((callee.span, "defined here"),),
        )  # fmt: skip
    if not callee.results:
        raise errors.CallTypeMismatch(
            f"'{callee.name}' has no result", span, hint="call it as a statement of its own",
            related=((callee.span, "defined here"),),
        )  # fmt: skip


def _argument(scope: Scope, node: ast.expr, param: Param, callee: Function) -> Expr:
    arg, wanted = ex.expression(scope, node), param.type
    what = f"argument '{param.name}' of '{callee.name}'"
    if param.mode == "In":
        if b.is_scalar(wanted):
            arg = b.as_scalar(arg)
        if b.passable(arg.type, wanted):
            return b.same_ints(arg, wanted)
    else:
        argument_place(scope, arg, what)
        # The function writes through: no conversion can stand between.
        kept = not b.is_scalar(wanted) and b.passable(arg.type, wanted)
        if arg.type == wanted or (kept and b.same_ints(arg, wanted) is arg):
            return arg
    error: type[errors.UserError] = errors.CallTypeMismatch
    rank = ""
    if isinstance(arg.type, TensorType) and isinstance(wanted, TensorType):
        error = errors.DtypeMismatch
        if arg.type.integer == wanted.integer and b.same_ints(arg, wanted) is arg:
            error, rank = errors.RankMismatch, f", of rank {len(wanted.dims or ())}"
    raise error(
        f"{what} must be {b.show_type(wanted)}{rank}, found {b.show_type(arg.type)}", span_of(node)
    )


def _bind_sizes(callee: Function, args: tuple[Expr, ...]) -> dict[str, Expr]:
    """The callee's size variables and int arguments as the caller's expressions."""
    pairs = list(zip(callee.params, args, strict=True))
    values: dict[str, Expr] = {
        param.name: arg
        for param, arg in pairs
        if param.type == INT and param.mode == "In" and arg.type == INT
    }
    values |= sizes.bound_sizes(callee.params, args)
    for param, arg in pairs:
        _check_sizes(callee, param, arg, values)
    return values


def _check_sizes(callee: Function, param: Param, arg: Expr, values: dict[str, Expr]) -> None:
    if not isinstance(param.type, TensorType) or not isinstance(arg.type, TensorType):
        return
    wanted = substitute_type(param.type, values)
    assert isinstance(wanted, TensorType)
    pairs = zip(param.type.dims or (), wanted.dims or (), arg.type.dims or (), strict=False)
    for k, (own, size, found) in enumerate(pairs):
        if not free_variables(own) <= set(values):
            continue
        # what binds a size: 2 * D cannot be 5, nor D + 3 be 2
        binds = [
            name
            for name, at in sizes.bindings(callee.params).items()
            if callee.params[at.param] is param and at.dim == k and not isinstance(own, Var)
        ]
        negative = any((sizes.constant(values[name]) or 0) < 0 for name in binds)
        if negative or sizes.equal(size, found) is False:
            expected = b.show_type(param.type if binds else wanted)
            raise errors.ShapeMismatch(
                f"argument '{param.name}' of '{callee.name}' must be {expected}, found "
                f"{b.show_type(arg.type)}: dimension {k} differs",
                arg.span,
                related=((param.span, "the argument's type is given here"),),
            )


def _result(scope: Scope, type_: Type, values: dict[str, Expr]) -> Type:
    if not isinstance(type_, TensorType) or type_.dims is None:
        return type_
    if any(free_variables(dim) - set(values) for dim in type_.dims):
        return TensorType(None, type_.element)
    bound = substitute_type(type_, values)
    assert isinstance(bound, TensorType)
    dims = tuple(sizes.simplify(fixed_sizes(scope, dim)) for dim in bound.dims or ())
    return TensorType(dims, type_.element)


# ------------------------------------------------------------------ operators, built-in functions


def _named(scope: Scope, node: ast.Call, name: str) -> Expr:
    span = span_of(node)
    items: list[Expr | list[Expr]] = []
    if name in OPERATORS:
        items = [argument_of(scope, arg) for arg in node.args]
        values = [item for item in items if not isinstance(item, list)]
        if name in ("max", "min") and len(values) == len(items) > 2 and not node.keywords:
            return functools.reduce(lambda a, c: _extreme(scope, node, name, a, c), values)
        tensors = any(isinstance(i, list) or isinstance(i.type, TensorType) for i in items)
        reduces = name in REDUCTIONS and name not in _SCALAR_HINTS
        if tensors or node.keywords or not (name in BUILTINS or reduces):
            if items and not tensors and name in _SCALAR_HINTS:
                raise errors.OperatorArguments(
                    f"'{name}' takes tensors, found ints and floats", span,
                    hint=_SCALAR_HINTS[name],
                )  # fmt: skip
            if name in ("max", "min"):
                _check_extreme(node, name, items)
            made = operator(scope, node, OPERATORS[name], items)
            scalar = isinstance(made, Op) and not any(
                isinstance(arg.type, TensorType) for arg in made.args
            )
            if name in BUILTINS and scalar:
                raise errors.CallTypeMismatch(f"'{name}' takes its arguments by position", span)
            return made
    if name in BUILTINS and name != "len":
        if node.keywords:
            raise errors.CallTypeMismatch(f"'{name}' takes its arguments by position", span)
        # those of an operator's name are read already: again would be exponential in the depth
        args = [i for i in items if not isinstance(i, list)] if name in OPERATORS else [
            ex.expression(scope, arg) for arg in node.args
        ]  # fmt: skip
        return b.builtin(name, args, span)
    if name in _CONVERSIONS and len(node.args) == 1 and not node.keywords:
        return _converted(scope, node, name)
    if name in REDUCTIONS:
        raise errors.OperatorArguments(
            f"'{name}' takes '... for i in N'", span, hint=f"{name}(X[i] for i in N)"
        )
    if name.startswith("make_"):
        return _make_struct(scope, node, name.removeprefix("make_"))
    if name == "atomic_add":
        raise errors.SyntaxNotSupported(
            "'atomic_add' is a statement of its own and has no value", span
        )
    if name in USAGE and scope.has_tensors():
        raise errors.OperatorArguments(
            f"'{name}' has several results, which an assignment takes", span, hint=USAGE[name]
        )
    raise _unknown(scope, node, name)


def _extreme(scope: Scope, node: ast.Call, name: str, left: Expr, right: Expr) -> Expr:
    """The larger or smaller one of two numbers, or of tensors element by element."""
    if isinstance(left.type, TensorType) or isinstance(right.type, TensorType):
        return operator(scope, node, OPERATORS[name], [left, right])
    return b.builtin(name, [left, right], span_of(node))


def _check_extreme(node: ast.Call, name: str, items: list[Expr | list[Expr]]) -> None:
    """Refuses ``max(x, 1)`` of a whole tensor: the 1 may be meant as a dimension."""
    one_each = [i for i in items if not isinstance(i, list)]
    ints = [i for i in one_each if isinstance(i, IntConst)]
    tensors = [i for i in one_each if has_dimensions(i.type)]
    if len(one_each) == len(items) == 2 and not node.keywords and not (ints and tensors):
        return
    number = f"{ints[0].value}" if ints else "1"
    match node.args:
        case [ast.List(elts=elements) | ast.Tuple(elts=elements)] if len(elements) > 1:
            text = ", ".join(map(ast.unparse, elements))
            raise errors.OperatorArguments(
                f"'{name}' takes numbers and tensors, found a list", span_of(node),
                hint=f"write {name}({text})",
            )  # fmt: skip
    raise errors.OperatorArguments(
        f"'{name}' of a whole tensor takes another tensor or a float", span_of(node),
        hint=f"a{name}(x, {number}) is over a dimension, {name}(x, {number}.0) of each element and "
        "a number",
    )  # fmt: skip


def _converted(scope: Scope, node: ast.Call, name: str) -> Expr:
    """``int(x)`` and ``float(n)`` of a number."""
    match node.args[0]:
        case ast.Constant(value=str()):  # of a text, as float("inf")
            raise _unknown(scope, node, name)
    value = b.as_scalar(ex.expression(scope, node.args[0]))
    if not b.is_scalar(value.type):
        raise errors.CallTypeMismatch(
            f"'{name}' takes a number, found {b.show_type(value.type)}", value.span,
            hint=f"write an index statement: y[i] = {name}(x[i])"
            if isinstance(value.type, TensorType) else None,
        )  # fmt: skip
    if value.type == (INT if name == "int" else FLOAT):
        return value
    return b.builtin(_CONVERSIONS[name], (value,), span_of(node))


def _unknown(scope: Scope, node: ast.Call, name: str) -> errors.UserError:
    """The error for a name that nothing has, with what it may have been meant for."""
    own = list(scope.program.functions)
    operators = [op.name for op in OPERATORS.values() if not op.internal and op.infix is None]
    known = [*BUILTINS, *own, "no_diff", "atomic_add"]
    if scope.has_tensors():
        known += [*operators, *USAGE, *REDUCTIONS, "zero_pad"]
    whole = _has_tensor(scope, node)
    hint = errors.suggest(name, own) if is_foreign(name) else errors.suggest(name, known)
    match node:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))]) if (
            "inf" in text.lower()
        ):
            hint = INFINITY
    there = f"the operators are {', '.join(operators)}"
    if not whole:
        there = f"the functions are {', '.join([*own, *BUILTINS])}"
    return errors.CallIDNotFound(
        f"there is no {'operator' if whole else 'function'} '{name}'", span_of(node.func),
        hint=hint or instead(name, whole) or there, var=name,
    )  # fmt: skip


def _make_struct(scope: Scope, node: ast.Call, name: str) -> Expr:
    """``make__dfloat(val, dval)``: every differential struct has such a function."""
    program = scope.program
    struct = program.struct(name)
    if struct is None or primal_name(name, program.structs) is None:
        made = ["make__dfloat", *(f"make__d{s}" for s in program.structs)]
        known = [*program.functions, *(made if name.startswith("_d") else ())]
        hint = errors.suggest(f"make_{name}", known)
        if struct is not None:
            hint = f"declare a variable, x : {name}, and assign its members"
        raise errors.CallIDNotFound(
            f"there is no function 'make_{name}'", span_of(node.func), hint=hint,
            var=f"make_{name}",
        )  # fmt: skip
    if node.keywords:
        raise errors.CallTypeMismatch(
            f"'make_{name}' takes its arguments by position", span_of(node.keywords[0])
        )
    args = [ex.expression(scope, arg) for arg in node.args]
    return b.make_struct(struct, args, span_of(node))
