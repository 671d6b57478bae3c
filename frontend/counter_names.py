"""Counters as the program names them, in messages: a ``k`` in ``range(1, N)`` is ``_k + 1``."""

from __future__ import annotations

import ast
import re

from loma import errors
from loma.core import builder as b, sizes
from loma.core.ir import INT, Expr, IntConst, Var
from loma.core.printer import print_expr
from loma.core.walk import substitute, variables
from loma.frontend.syntax.python_syntax import SYMBOLS

_OPERAND = r"\(*\w+\)*"
_SIZE = re.compile(rf"{_OPERAND}(?: (?:[-+*%]|//) {_OPERAND})*")


def say(report: errors.UserError | errors.UserWarning, hidden: str, name: str, value: Expr) -> None:
    """Says a report with the ``name`` that stands for a ``value`` of the ``hidden`` counter."""

    def said(text: str) -> str:
        text = re.sub(rf"'{hidden}'|\b{hidden}(?= in )", lambda m: m[0].replace(hidden, name), text)
        return _SIZE.sub(lambda m: _size(m[0], hidden, name, value), text)

    report.reword(said)


def _size(text: str, hidden: str, name: str, value: Expr) -> str:
    """An int expression of a message in terms of ``name``."""
    if hidden not in re.findall(r"\w+", text):
        return text
    head = "(" * (text.count("(") - text.count(")"))
    tail = ")" * (text.count(")") - text.count("("))
    inner = text[len(head) : len(text) - len(tail)]
    try:
        expr = _expression(ast.parse(inner, mode="eval").body)
    except (SyntaxError, ValueError):
        return re.sub(rf"\b{hidden}\b", name, text)
    count, new = Var(hidden, INT), Var(name, INT)
    step = sizes.polynomial(value).get((count,), 1)
    start = sizes.simplify(b.binary("-", value, b.binary("*", IntConst(step), count)))
    passed = b.binary("-", new, start)
    factor = sizes.polynomial(expr).get((count,), 0)
    if factor % step == 0:  # a multiple of step * count, which is name - start
        known = b.binary("*", IntConst(factor // step), passed)
        rest = b.binary("-", expr, b.binary("*", IntConst(factor), count))
        expr = sizes.simplify(b.binary("+", rest, known))
    if hidden in variables(expr):
        exact = passed if step == 1 else b.binary("//", passed, IntConst(step))
        expr = sizes.simplify(substitute(expr, {hidden: exact}))
    found = print_expr(expr)
    whole = inner.startswith("(") and inner.endswith(")") and inner.count("(") == 1
    return f"{head}({found}){tail}" if whole else f"{head}{found}{tail}"


def _expression(node: ast.expr) -> Expr:
    match node:
        case ast.Name(id=name):
            return Var(name, INT)
        case ast.Constant(value=int(value)):
            return IntConst(value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SYMBOLS:
            return b.binary(SYMBOLS[type(op)], _expression(left), _expression(right))
        case _:
            raise ValueError
