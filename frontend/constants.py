"""Constants at the top level: ``EPS : float = 1e-6``. Each use of the name becomes the value.

That is done to the syntax, before anything else reads it, so that a constant stands wherever a
number does: in types, ranges, subscripts and ``max_iter``. Nothing in a function may have its name.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loma import errors
from loma.arithmetic.integers import truncated_quotient
from loma.errors.spans import Span
from loma.frontend.scope import span_of
from loma.frontend.syntax.python_syntax import elts

Number = int | float
LARGEST = 2**63 - 1


def _divide(a: Number, b: Number) -> Number:
    return truncated_quotient(a, b) if isinstance(a, int) and isinstance(b, int) else a / b


def _power(a: Number, b: Number) -> Number:
    if isinstance(b, int) and b < 0:
        a = float(a)
    elif isinstance(b, int) and isinstance(a, int) and abs(a) > 1 and b > 64:
        raise OverflowError
    found = a**b
    if isinstance(found, complex):
        raise ValueError
    return found


_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: _divide,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: _power,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Constant:
    value: Number
    span: Span


def read_constants(
    nodes: list[ast.AnnAssign], imported: Mapping[str, Constant]
) -> dict[str, Constant]:
    """The constants, whose values may be made of each other and of those that are imported."""
    defined: dict[str, ast.AnnAssign] = {}
    for node in nodes:
        if not isinstance(node.target, ast.Name):
            raise errors.SyntaxNotSupported("a constant has a name", span_of(node.target))
        defined[node.target.id] = node
    found = dict(imported)
    open_: list[str] = []

    def lookup(node: ast.Name) -> Number:
        name = node.id
        if name in found:
            return found[name].value
        if name not in defined:
            raise errors.UndeclaredVariable(
                f"there is no constant '{name}'", span_of(node), var=name,
                hint=errors.suggest(name, [*defined, *imported])
                or "a constant is made of numbers and constants",
            )  # fmt: skip
        if name in open_:
            raise errors.SyntaxNotSupported(
                f"the value of '{name}' depends on itself", span_of(node),
                related=((span_of(defined[name].target), "defined here"),),
            )  # fmt: skip
        open_.append(name)
        found[name] = _constant(defined[name], name, lookup)
        open_.pop()
        return found[name].value

    for node in defined.values():
        assert isinstance(node.target, ast.Name)
        lookup(node.target)
    return found


def _constant(node: ast.AnnAssign, name: str, lookup: Callable[[ast.Name], Number]) -> Constant:
    span = span_of(node.target)
    match node.annotation:
        case ast.Name(id="int" | "float" as type_):
            pass
        case other:
            raise errors.UnknownType(
                "a constant is an int or a float", span_of(other), hint=f"{name} : float = 1.0"
            )
    if node.value is None:
        raise errors.SyntaxNotSupported(
            f"constant '{name}' has no value", span_of(node), hint=f"{name} : {type_} = 1"
        )
    return Constant(converted(value(node.value, lookup), type_, node.value), span)


def converted(number: Number, type_: str, node: ast.expr) -> Number:
    """The number as an int or a float, as at a declaration."""
    if type_ == "float":
        try:
            return float(number)
        except OverflowError:
            return math.inf if number > 0 else -math.inf
    if isinstance(number, float) and not math.isfinite(number):
        raise errors.DeclareTypeMismatch(f"{number} is no int", span_of(node))
    number = int(number)
    if not -LARGEST <= number <= LARGEST:
        raise errors.SyntaxNotSupported(
            "this whole number needs more than 64 bits", span_of(node),
            hint="as a float it may stand",
        )  # fmt: skip
    return number


def _unknown(node: ast.Name) -> Number:
    raise errors.UndeclaredVariable(
        f"there is no constant '{node.id}'", span_of(node), var=node.id,
        hint=f"define it at the top level of the file: {node.id} : int = 1",
    )  # fmt: skip


def value(node: ast.expr, lookup: Callable[[ast.Name], Number] = _unknown) -> Number:
    """What a constant expression comes to: numbers, constants and ``+ - * / // % **``."""
    match node:
        case ast.Constant(value=bool(truth)):
            return int(truth)
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name():
            return lookup(node)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            number = value(operand, lookup)
            return -number if isinstance(sign, ast.USub) else number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            a, b = value(left, lookup), value(right, lookup)
            try:
                number = _OPERATIONS[type(op)](a, b)
                if isinstance(number, int) and abs(number) > LARGEST:
                    raise OverflowError
                return number
            except ZeroDivisionError:
                raise errors.SyntaxNotSupported(
                    "this constant divides by zero", span_of(node)
                ) from None
            except (OverflowError, ValueError):
                raise errors.SyntaxNotSupported(
                    "this constant is no number that an int or a float holds", span_of(node)
                ) from None
        case _:
            raise errors.SyntaxNotSupported(
                "a constant is made of numbers, other constants and + - * / // % **", span_of(node)
            )


def whole_number(node: ast.expr) -> int | None:
    """The value of a constant expression that is an int; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return None
    try:
        found = value(node)
    except errors.UserError:
        return None
    return found if isinstance(found, int) else None


class _Uses(ast.NodeTransformer):
    def __init__(self, constants: Mapping[str, Constant]) -> None:
        self._constants = constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = self._constants.get(node.id)
        if found is None or not isinstance(node.ctx, ast.Load):
            return node
        return literal(found.value, node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if not isinstance(node.func, ast.Name):
            node.func = self.visit(node.func)
        node.args = [self.visit(arg) for arg in node.args]
        node.keywords = [self.visit(keyword) for keyword in node.keywords]
        return node


def literal(number: Number, place: ast.expr) -> ast.expr:
    """A number as it is written."""
    text: ast.expr = ast.Constant(abs(number))
    if math.copysign(1, number) < 0:
        text = ast.UnaryOp(ast.USub(), ast.copy_location(text, place))
    return ast.copy_location(text, place)


def replace_constants(
    nodes: Sequence[ast.ClassDef | ast.FunctionDef], constants: Mapping[str, Constant]
) -> None:
    """Puts the values where the names stand, in place. DuplicateVariable where a name of a function
    hides a constant."""
    if not constants:
        return
    uses = _Uses(constants)
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.AnnAssign):
                    member.annotation = uses.visit(member.annotation)
            continue
        for name, span, what in _bound(node):
            if name in constants:
                raise errors.DuplicateVariable(
                    f"{what} '{name}' would hide the constant of that name", span, var=name,
                    hint="use another name",
                    related=((constants[name].span, "the constant is defined here"),),
                )  # fmt: skip
        uses.visit(node)


def _bound(node: ast.FunctionDef) -> Iterator[tuple[str, Span, str]]:
    """The names that a function gives to something, with what it is."""
    for inner in ast.walk(node):
        match inner:
            case ast.arg(arg=name):
                yield name, span_of(inner), "argument"
            case ast.For(target=ast.Name(id=name) as target):
                yield name, span_of(target), "loop counter"
            case ast.comprehension(target=ast.Name(id=name) as target):
                yield name, span_of(target), "index"
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                for item in (item for target in targets for item in elts(target)):
                    if isinstance(item, ast.Name):
                        yield item.id, span_of(item), "variable"
