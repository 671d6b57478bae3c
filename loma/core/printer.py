"""IR to loma text: what ``show`` prints, and what parses back to an equal module.

The text has as few parentheses as Python's precedence allows, leaves out operator attributes that
have their default value, and is the same for equal IR. A statement too long for a line is broken
inside parentheses at its sums and products, or between a call's arguments.
"""

from __future__ import annotations

import math
from typing import assert_never

from loma.core.axes import unsaid
from loma.core.differentials import primal_name
from loma.core.ir import (
    ArrayType, Assign, AtomicAdd, Attr, Axis, Binary, Builtin, Call, CallStmt, Declare, Expr,
    FloatConst, FloatType, For, Function, If, Index, IndexAssign, IntConst, IntType, MakeStruct,
    Member, Module, NoDiff, Op, Param, Pop, Push, Reduce, Return, Select, StackType, Stmt, Struct,
    StructType, TensorType, TupleType, Type, Unary, Unpack, Var, While, Zero, ZeroPad, replace,
)  # fmt: skip
from loma.core.ops import OPS, AttrInfo
from loma.core.walk import map_children, map_expressions

OWN = "loma."  # before a built-in function whose name a function of the program has
WIDTH = 100
_INDENT = "    "

# Python's precedence, loosest first. A node is put in parentheses where a tighter one is needed.
_TERNARY, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _NEGATION, _POWER, _ATOM = range(10)
_LEVELS = {
    "or": _OR, "and": _AND,
    "<": _COMPARE, "<=": _COMPARE, ">": _COMPARE, ">=": _COMPARE, "==": _COMPARE, "!=": _COMPARE,
    "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT,
    "**": _POWER,
}  # fmt: skip
# Attributes that read well without their names, as in reshape(x, [B, 8]) and transpose(x, 0, 1).
_POSITIONAL = {"shape", "dims", "kernel_size", "size", "dim0", "dim1"}
_TENSOR_NAMES = {
    "float": "Tensor", "float32": "TorchTensorFloat", "int": "IntTensor", "bool": "BoolTensor",
}  # fmt: skip


# ----------------------------------------------------------------------------------------- types


def print_type(type_: Type) -> str:
    """A type as it stands in an annotation, without ``In`` or ``Out``."""
    match type_:
        case IntType():
            return "int"
        case FloatType():
            return "float"
        case ArrayType(element, count):
            return f"Array[{_counted(element, count)}]"
        case StructType(name):
            return name
        case StackType(element, count):
            return f"Stack[{_counted(element, count)}]"
        case TensorType(dims, name):
            sizes = "" if dims is None else f"[{_subscripts(dims)}]"
            return f"{_TENSOR_NAMES[name]}{sizes}"
        case TupleType(items):
            return f"tuple[{', '.join(map(print_type, items)) or '()'}]"
        case _:
            assert_never(type_)


def _counted(element: Type, count: int | None) -> str:
    return print_type(element) + ("" if count is None else f", {count}")


# ----------------------------------------------------------------------------------- expressions


def print_expr(expr: Expr) -> str:
    """An expression on one line."""
    return _expr(expr, _TERNARY)


def _expr(expr: Expr, least: int) -> str:
    """The expression, in parentheses if it binds less tightly than ``least``."""
    text, level = _render(expr)
    return text if level >= least else f"({text})"


def _render(expr: Expr) -> tuple[str, int]:
    """Text and precedence of an expression."""
    match expr:
        case IntConst(value):
            return str(value), _ATOM if value >= 0 else _NEGATION
        case FloatConst(value):
            return _float(value)
        case Var(name):
            return name, _ATOM
        case Index(base, subscripts):
            return f"{_expr(base, _ATOM)}[{_subscripts(subscripts)}]", _ATOM
        case Member(base, name):
            return f"{_expr(base, _ATOM)}.{name}", _ATOM
        case Unary("-", operand):
            return f"-{_expr(operand, _POWER)}", _NEGATION  # -(-x) reads better than --x
        case Unary(_, operand):
            return f"not {_expr(operand, _NOT)}", _NOT
        case Binary(op, left, right):
            return _infix(op, left, right)
        case Select(cond, then, other):
            parts = _expr(then, _OR), _expr(cond, _OR), _expr(other, _TERNARY)
            return "{} if {} else {}".format(*parts), _TERNARY
        case Builtin("len", args):
            return f"len({_range(*args)})", _ATOM
        case Builtin(name, args) | Call(name, args):
            return f"{name}({', '.join(map(print_expr, args))})", _ATOM
        case MakeStruct(args, type_):
            return f"make_{type_.name}({', '.join(map(print_expr, args))})", _ATOM
        case Op():
            return _operator(expr)
        case Reduce(kind, body, axes):
            return f"{kind}({print_expr(body)} {' '.join(map(_loop, axes))})", _ATOM
        case ZeroPad(read):
            return f"zero_pad({print_expr(read)})", _ATOM
        case NoDiff(operand):
            return f"no_diff({print_expr(operand)})", _ATOM
        case _:
            assert_never(expr)


def _float(value: float) -> tuple[str, int]:
    if math.isnan(value):
        return "1e999 - 1e999", _SUM
    text = "1e999" if math.isinf(value) else repr(abs(value))
    return (f"-{text}", _NEGATION) if math.copysign(1.0, value) < 0 else (text, _ATOM)


def _infix(op: str, left: Expr, right: Expr) -> tuple[str, int]:
    level = _LEVELS[op]
    if op == "**":
        return f"{_expr(left, _ATOM)} ** {_expr(right, _NEGATION)}", level
    # Python chains comparisons, so neither side of one may be another without parentheses.
    first = level + 1 if level == _COMPARE else level
    return f"{_expr(left, first)} {op} {_expr(right, level + 1)}", level


def _subscripts(items: tuple[Expr, ...]) -> str:
    return ", ".join(map(print_expr, items)) or "()"


def _range(start: Expr, stop: Expr, step: Expr) -> str:
    items = [start, stop, step]
    if step == IntConst(1):
        items = [stop] if start == IntConst(0) else [start, stop]
    return f"range({', '.join(map(print_expr, items))})"


def _loop(axis: Axis) -> str:
    extent = print_expr(axis.extent)
    return f"for {axis.name} in {extent if isinstance(axis.extent, Var) else f'range({extent})'}"


def _operator(op: Op) -> tuple[str, int]:
    info = OPS[op.name.removeprefix(OWN)]
    # On scalars alone the infix form would be scalar arithmetic, so the name is spelt out.
    if info.infix and any(isinstance(arg.type, TensorType) for arg in op.args):
        if info.infix == "not":
            return f"not {_expr(op.args[0], _NOT)}", _NOT
        if len(op.args) == 1:
            return f"-{_expr(op.args[0], _POWER)}", _NEGATION
        return _infix(info.infix, *op.args)
    return f"{op.name}({', '.join(_arguments(op))})", _ATOM


def _arguments(op: Op) -> list[str]:
    """What stands between an operator's parentheses."""
    info = OPS[op.name.removeprefix(OWN)]
    items = list(map(print_expr, op.args))
    if info.takes_list:
        items = [f"[{', '.join(items)}]"]
    positional = not info.optional
    for attr, (name, value) in zip(info.attrs, op.attrs, strict=True):
        if _is_default(op, attr, value):
            positional = False
            continue
        positional = positional and name in _POSITIONAL
        text = _attribute(attr, value)
        items.append(text if positional else f"{name}={text}")
    return items


def _is_default(op: Op, attr: AttrInfo, value: Attr) -> bool:
    if attr.default is None:
        return False
    if isinstance(attr.default, str):
        return value == dict(op.attrs)[attr.default]
    if isinstance(attr.default, tuple):
        return value == tuple(map(IntConst, attr.default))
    return isinstance(attr.default, int) and value == IntConst(attr.default)


def _attribute(attr: AttrInfo, value: Attr) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(print_expr, value))}]"
    if attr.kind == "flag" and value in (IntConst(0), IntConst(1)):
        return str(value == IntConst(1))
    return print_expr(value)


# ------------------------------------------------------------------------------------ statements


def print_stmt(stmt: Stmt, indent: int = 0) -> str:
    """A statement with its nested blocks, ``indent`` levels in; no line end after it."""
    return "\n".join(_stmt(stmt, _INDENT * indent))


def _stmt(stmt: Stmt, pad: str) -> list[str]:
    match stmt:
        case Declare(target, None):
            return [f"{pad}{target.name} : {print_type(target.type)}"]
        case Declare(target, value) if value is not None:
            return _assignment(f"{pad}{target.name} : {print_type(target.type)} =", value, pad)
        case IndexAssign() if loops := unsaid(stmt):
            rest = tuple(axis for axis in stmt.axes if axis not in loops)
            inner: Stmt = replace(stmt, axes=rest)
            for axis in reversed(loops):
                inner = For(axis.name, axis.extent, (inner,))
            return _stmt(inner, pad)
        case Assign(target, op, value) | IndexAssign(target, op, value):
            return _assignment(f"{pad}{print_expr(target)} {op}", value, pad)
        case Unpack(targets, call):
            names = ", ".join(target.name for target in targets)
            return [f"{pad}{names}{',' if len(targets) == 1 else ''} = {print_expr(call)}"]
        case Zero(target):
            return [f"{pad}zero({print_expr(target)})"]
        case Push(stack, value):
            return _called(f"{pad}{stack.name}.push", (value,), pad)
        case Pop(stack, target):
            return [f"{pad}{print_expr(target)} = {stack.name}.pop()"]
        case AtomicAdd(target, value):
            return _called(f"{pad}atomic_add", (target, value), pad)
        case CallStmt(call):
            return _called(f"{pad}{call.function}", call.args, pad)
        case Return(values):
            line = f"{pad}return {', '.join(map(print_expr, values))}".rstrip()
            if len(line) <= WIDTH or len(values) < 2:
                return [line]
            return _called(f"{pad}return ", values, pad)
        case For(counter, extent, body, backwards):
            steps = f"range({print_expr(extent)})"
            steps = f"reversed({steps})" if backwards else steps
            return [f"{pad}for {counter} in {steps}:", *_block(body, pad)]
        case While(cond, max_iter, body):
            head = f"{pad}while ({print_expr(cond)}, max_iter := {max_iter}):"
            return [head, *_block(body, pad)]
        case If():
            return _if(stmt, pad, "if")
        case _:
            raise AssertionError(stmt)


def _if(stmt: If, pad: str, word: str) -> list[str]:
    lines = [f"{pad}{word} {print_expr(stmt.cond)}:", *_block(stmt.then, pad)]
    match stmt.other:
        case ():
            return lines
        case (If() as inner,):
            return lines + _if(inner, pad, "elif")
        case other:
            return [*lines, f"{pad}else:", *_block(other, pad)]


def _block(body: tuple[Stmt, ...], pad: str) -> list[str]:
    inner = pad + _INDENT
    return [line for stmt in body for line in _stmt(stmt, inner)] or [f"{inner}pass"]


def _assignment(head: str, value: Expr, pad: str) -> list[str]:
    line = f"{head} {print_expr(value)}"
    if len(line) <= WIDTH:
        return [line]
    match value:
        case Call(name, args):
            return _called(f"{head} {name}", args, pad)
        case MakeStruct(args, type_):
            return _called(f"{head} make_{type_.name}", args, pad)
        case Op(name) if line.endswith(")") and line.startswith(f"{head} {name}("):
            return _wrapped(f"{head} {name}(", tuple(_arguments(value)), ")", pad)
        case _:
            terms = _terms(value)
    if len(terms) == 1:
        return [line]
    return [f"{head} (", *(f"{pad}{_INDENT}{term}" for term in terms), f"{pad})"]


def _terms(value: Expr) -> list[str]:
    """The terms of a long sum, or the factors of a long product, each with its sign before it."""
    if not (isinstance(value, Binary) and _LEVELS[value.op] in (_SUM, _PRODUCT)):
        return [print_expr(value)]
    level = _LEVELS[value.op]
    parts: list[str] = []
    rest: Expr = value
    while isinstance(rest, Binary) and _LEVELS[rest.op] == level:
        parts.append(f"{rest.op} {_expr(rest.right, level + 1)}")
        rest = rest.left
    return [_expr(rest, level), *reversed(parts)]


def _called(head: str, args: tuple[Expr, ...], pad: str) -> list[str]:
    return _wrapped(f"{head}(", tuple(map(print_expr, args)), ")", pad)


def _wrapped(head: str, items: tuple[str, ...], tail: str, pad: str) -> list[str]:
    """``head a, b, c tail`` on one line, or with the items on lines of their own if too long."""
    line = f"{head}{', '.join(items)}{tail}"
    if len(line) <= WIDTH or not items:
        return [line]
    inner, lines = pad + _INDENT, [head]
    for item in items:
        if lines[-1] is not head and len(lines[-1]) + len(item) + 2 <= WIDTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"{inner}{item},")
    return [*lines, f"{pad}{tail}"]


# ------------------------------------------------------------------------- functions and modules


def print_param(param: Param) -> str:
    return f"{param.name} : {param.mode}[{print_type(param.type)}]"


def print_function(function: Function, module: Module | None = None) -> str:
    """The definition of a function, no line end after it. Functions of the ``module`` hide the
    language's own of the same names, which have a prefix then."""
    if module is not None:
        function = _qualified(function, module)
    lines = print_head(function)
    if function.body or not function.doc:
        lines += _block(function.body, "")
    return "\n".join(lines)


def print_head(function: Function) -> list[str]:
    """The lines of a function's definition before its statements."""
    match function.results:
        case ():
            result = ""
        case (only,):
            result = f" -> {print_type(only)}"
        case several:
            result = f" -> {print_type(TupleType(several))}"
    required = len(function.params) - len(function.defaults)
    params = tuple(
        print_param(param)
        + (f" = {print_expr(function.defaults[k - required])}" if k >= required else "")
        for k, param in enumerate(function.params)
    )
    lines = ["@simd"] if function.simd else []
    lines += [f"@derivative({function.derivative_of})"] if function.derivative_of else []
    lines += _wrapped(f"def {function.name}(", params, f"){result}:", "")
    if len(lines[-1]) > WIDTH and len(function.results) > 1:
        head = lines.pop().removesuffix(f"{result}:")
        types = tuple(map(print_type, function.results))
        lines += _wrapped(f"{head} -> tuple[", types, "]:", "")
    return lines + _doc(function.doc)


def _qualified(function: Function, module: Module) -> Function:
    names = {f.name for f in module.functions} | {d.name for d in module.derivatives}
    hidden = names & OPS.keys()  # every other built-in has a name that no program may redefine
    if not hidden:
        return function

    def qualified(expr: Expr) -> Expr:
        new = map_children(expr, qualified)
        if isinstance(new, Builtin | Op) and new.name in hidden:
            return replace(new, name=OWN + new.name)
        return new

    return replace(function, body=tuple(map_expressions(s, qualified) for s in function.body))


def _doc(doc: str) -> list[str]:
    if not doc:
        return []
    text = doc.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    if text.endswith('"'):
        text = text[:-1] + '\\"'
    first, *rest = text.split("\n")
    lines = [f'{_INDENT}"""{first}', *(f"{_INDENT}{line}".rstrip() for line in rest)]
    if rest:
        return [*lines, f'{_INDENT}"""']
    return [lines[0] + '"""']


def _print_struct(struct: Struct) -> str:
    members = [f"{_INDENT}{name} : {print_type(type_)}" for name, type_ in struct.members]
    return "\n".join([f"class {struct.name}:", *(members or [f"{_INDENT}pass"])])


def print_module(module: Module) -> str:
    """The whole program: its own structs, functions (callees first), derivatives."""
    names = {struct.name for struct in module.structs}
    own = [struct for struct in module.structs if primal_name(struct.name, names) is None]
    parts = [_print_struct(struct) for struct in own]
    for function in module.functions:
        derived = function.primal is not None and not function.half
        note = f"# the adjoint of {function.primal}\n" if derived else ""
        parts.append(note + print_function(function, module))
    # A derivative that is there already as a function needs no line that asks for it.
    made = {function.name for function in module.functions}
    requests = [d for d in module.derivatives if d.name not in made]
    if requests:
        parts.append("\n".join(f"{d.name} = {d.mode}({d.of})" for d in requests))
    return "\n\n\n".join(parts) + "\n" if parts else ""
