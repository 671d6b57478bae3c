"""Calls: functions of the module, reductions, operators and built-in functions.

A name before parentheses is, in this order: a reduction when its argument is ``... for i in N``, a
function of the module, a tensor operator when an argument is a tensor, a built-in scalar function.
"""

from __future__ import annotations

import ast

from loma import builder as b
from loma import errors, sizes
from loma.builtins import BUILTINS
from loma.differentials import primal_name
from loma.frontend import expressions as ex
from loma.frontend import stacks
from loma.frontend.foreign import instead, is_foreign
from loma.frontend.operators import argument_of, operator
from loma.frontend.places import argument_place
from loma.frontend.reductions import REDUCTIONS, reduction
from loma.frontend.scope import Scope, span_of
from loma.frontend.types import fixed_sizes
from loma.frontend.unsupported import unsupported
from loma.ir import (
    INT, Call, Expr, Function, NoDiff, Param, Span, TensorType, TupleType, Type, Var, ZeroPad,
    is_tensor_function,
)  # fmt: skip
from loma.ops import OPS
from loma.walk import free_variables, substitute_type

_SCALAR_HINTS = {
    "relu": "on scalars write max(x, 0.0)",
    "sigmoid": "on scalars write 1.0 / (1.0 + exp(-x))",
    "where": "on scalars write a if cond else b",
    "sum": "write sum(X[i] for i in N), or sum(x, dims) of a tensor",
    "argmax": "write argmax(X[i] for i in N), or argmax(x, dim) of a tensor",
    "softmax": "write the quotient out: exp(X[i] - M) / sum(exp(X[j] - M) for j in N)",
    "mean": "on scalars write sum(... for i in N) / N",
    "amax": "on scalars write max(a, b) or max(... for i in N)",
}


def call(scope: Scope, node: ast.Call) -> Expr:
    """A call as an expression."""
    match node.func:
        case ast.Name(id=name):
            pass
        case ast.Attribute() as method if (error := stacks.misused(scope, method)) is not None:
            raise error
        case _:
            hint = "methods are functions in loma: relu(x) instead of x.relu()"
            match node.func:
                case ast.Attribute(value=ast.Name(id=base), attr=attr) if base not in scope.symbols:
                    hint = f"functions belong to no module: {attr}(...)"
            raise errors.SyntaxNotSupported(
                "only functions that have a name can be called", span_of(node.func), hint=hint
            )
    if len(node.args) == 1 and isinstance(node.args[0], ast.GeneratorExp):
        if name in REDUCTIONS and not node.keywords:
            return reduction(scope, node, REDUCTIONS[name], node.args[0])
        raise unsupported(node.args[0])
    if name in ("rev_diff", "fwd_diff"):
        raise errors.SyntaxNotSupported(
            f"'{name}' stands at the top level of the file only", span_of(node),
            hint=f"write d_f = {name}(f) there, and call d_f",
        )  # fmt: skip
    if name == "thread_id" and not scope.header.simd:
        raise errors.SimdMisuse(
            "'thread_id()' is known only in a @simd function", span_of(node),
            hint="pass it as an argument: i : In[int]",
        )  # fmt: skip
    if name == "zero_pad":
        return _zero_pad(scope, node)
    if name == "no_diff":
        (operand,) = _exactly(scope, node, 1)
        return NoDiff(operand, operand.type, span_of(node))
    callee = scope.program.functions.get(name)
    if callee is not None and not (name in OPS and _for_operator(scope, node, callee)):
        result = user_call(scope, node, callee)
        _check_value(result, callee, span_of(node))
        return result
    return _named(scope, node, name)


def _exactly(scope: Scope, node: ast.Call, count: int) -> list[Expr]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if node.keywords or len(node.args) != count:
        raise errors.CallTypeMismatch(
            f"'{name}' takes {count} argument{'' if count == 1 else 's'}, found "
            f"{len(node.args) + len(node.keywords)}",
            span_of(node),
        )
    return [ex.expression(scope, arg) for arg in node.args]


def _zero_pad(scope: Scope, node: ast.Call) -> Expr:
    if len(node.args) == 1 and not node.keywords and isinstance(node.args[0], ast.Subscript):
        read = ex.subscript(scope, node.args[0], padded=True)
        if isinstance(read.base.type, TensorType):
            return ZeroPad(read, span_of(node))
    raise errors.OperatorArguments(
        "'zero_pad' takes one element of a tensor", span_of(node), hint="zero_pad(X[i + 1, j])"
    )


# ----------------------------------------------------------------------- functions of the module


def _for_operator(scope: Scope, node: ast.Call, callee: Function) -> bool:
    """Whether a scalar function's name is meant as the operator: an argument is a tensor."""
    if is_tensor_function(callee):
        return False
    names = [arg.id for arg in node.args if isinstance(arg, ast.Name)]
    return any(isinstance(arg, ast.List) for arg in node.args) or any(
        n in scope.symbols and isinstance(scope.symbols[n].type, TensorType) for n in names
    )


def user_call(scope: Scope, node: ast.Call, callee: Function) -> Call:
    """A call of a function of the module, with the types of its results at this place."""
    span, name = span_of(node), callee.name
    if callee.simd:
        raise errors.SimdMisuse(
            f"'{name}' is a @simd function, which only the host calls", span,
            hint="put what both need into an ordinary function",
            related=((callee.span, "defined here"),),
        )  # fmt: skip
    if node.keywords:
        raise errors.CallTypeMismatch(
            f"'{name}' takes its arguments by position", span_of(node.keywords[0])
        )
    if len(node.args) != len(callee.params):
        listed = ", ".join(p.name for p in callee.params) or "none"
        raise errors.CallTypeMismatch(
            f"'{name}' takes {len(callee.params)} argument{'' if len(callee.params) == 1 else 's'} "
            f"({listed}), found {len(node.args)}",
            span,
            related=((callee.span, "defined here"),),
        )
    args = tuple(
        _argument(scope, item, param, callee)
        for item, param in zip(node.args, callee.params, strict=True)
    )
    values = _bind_sizes(callee, args)
    results = tuple(_result(scope, type_, values) for type_ in callee.results)
    scope.calls.setdefault(name, span)
    return Call(name, args, results[0] if len(results) == 1 else TupleType(results), span)


def _check_value(result: Call, callee: Function, span: Span) -> None:
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
    arg = ex.expression(scope, node)
    what = f"argument '{param.name}' of '{callee.name}'"
    if param.mode == "In":
        if b.is_scalar(param.type):
            arg = b.as_scalar(arg)
        if b.passable(arg.type, param.type):
            return b.same_ints(arg, param.type)
        ok = False
    else:
        argument_place(scope, arg, what)
        # The function writes through: no conversion can stand between.
        ok = arg.type == param.type or (
            not b.is_scalar(param.type)
            and b.passable(arg.type, param.type)
            and b.same_ints(arg, param.type) is arg
        )
    if ok:
        return arg
    found, wanted = arg.type, param.type
    if isinstance(found, TensorType) and isinstance(wanted, TensorType):
        if found.integer != wanted.integer or b.same_ints(arg, wanted) is not arg:
            raise errors.DtypeMismatch(
                f"{what} must be {b.show_type(wanted)}, found {b.show_type(found)}", span_of(node)
            )
        raise errors.RankMismatch(
            f"{what} must be {b.show_type(wanted)}, of rank {len(wanted.dims or ())}, found "
            f"{b.show_type(found)}",
            span_of(node),
        )
    raise errors.CallTypeMismatch(
        f"{what} must be {b.show_type(wanted)}, found {b.show_type(found)}", span_of(node)
    )


def _bind_sizes(callee: Function, args: tuple[Expr, ...]) -> dict[str, Expr]:
    """The callee's size variables and int arguments as the caller's expressions."""
    values: dict[str, Expr] = {}
    for param, arg in zip(callee.params, args, strict=True):
        if param.type == INT and param.mode == "In" and arg.type == INT:
            values[param.name] = arg
    values |= sizes.bound_sizes(callee.params, args)
    for param, arg in zip(callee.params, args, strict=True):
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
    if name in OPS:
        items = [argument_of(scope, arg) for arg in node.args]
        tensors = any(isinstance(i, list) or isinstance(i.type, TensorType) for i in items)
        if tensors or node.keywords or name not in BUILTINS:
            if items and not tensors and name in _SCALAR_HINTS:
                raise errors.OperatorArguments(
                    f"'{name}' takes tensors, found ints and floats", span,
                    hint=_SCALAR_HINTS[name],
                )  # fmt: skip
            return operator(scope, node, OPS[name], items)
    if name in BUILTINS:
        args = [ex.expression(scope, arg) for arg in node.args]
        if any(isinstance(arg.type, TensorType) and arg.type.dims != () for arg in args):
            raise errors.CallTypeMismatch(
                f"'{name}' takes ints and floats; it is no operator on tensors", span,
                hint="use amax(x, dims)" if name == "max" else "write an index statement",
            )  # fmt: skip
        if node.keywords:
            raise errors.CallTypeMismatch(f"'{name}' takes its arguments by position", span)
        return b.builtin(name, args, span)
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
    raise _unknown(scope, node, name)


def _unknown(scope: Scope, node: ast.Call, name: str) -> errors.UserError:
    """The error for a name that nothing has, with what it may have been meant for."""
    own = list(scope.program.functions)
    operators = [op.name for op in OPS.values() if not op.internal and op.infix is None]
    known = [*BUILTINS, *own, "no_diff", "atomic_add"]
    if scope.has_tensors():
        known += [*operators, *REDUCTIONS, "zero_pad"]
    names = {arg.id for arg in node.args if isinstance(arg, ast.Name)}
    whole = any(isinstance(s.type, TensorType) and s.type.dims != () for s in scope.symbols.values()
                if s.name in names)  # fmt: skip
    hint = errors.suggest(name, own) if is_foreign(name) else errors.suggest(name, known)
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
