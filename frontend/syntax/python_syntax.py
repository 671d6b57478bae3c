"""Python's own parser, one thread at a time, and its names of operations.

CPython 3.11 counts the depth of the tree that it converts in one place for all threads: two that
parse at once can make each other fail with a SystemError.
"""

from __future__ import annotations

import ast
import re
import threading
import warnings

from loma.core.ir import BinaryOp

SYMBOLS: dict[type[ast.operator], BinaryOp] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**",
}  # fmt: skip
_INDENTED = re.compile(
    r"(?:[ \t\f]*(?:#.*)?\r?\n)*[ \t]+[^\s#]"
)  # the first line that says something
_lock = threading.Lock()


def elts(node: ast.expr) -> list[ast.expr]:
    """What commas separate between brackets or on a side of ``=``; none for ``()``."""
    return node.elts if isinstance(node, ast.Tuple) else [node]


def is_slice(nodes: list[ast.expr], rank: int) -> bool:
    """Whether the subscripts make a tensor: full rank without ``:`` and ``...`` is an element."""
    marks = (isinstance(n, ast.Slice) or is_ellipsis(n) or is_new_dimension(n) for n in nodes)
    return len(nodes) < rank or any(marks)


def is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def is_new_dimension(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def parse_python(source: str) -> ast.Module:
    """``ast.parse`` without warnings, safe to call from several threads.

    A text may be indented as a whole; places are those of the text as it is.
    """
    if not _INDENTED.match(source):
        return _parse(source)
    try:
        (block,) = _parse(f"if 1:\n{source}").body
    except (SyntaxError, ValueError):  # in Python's words, about the text as it is
        return _parse(source)
    assert isinstance(block, ast.If)
    return ast.Module([ast.increment_lineno(node, -1) for node in block.body], [])


def _parse(source: str) -> ast.Module:
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)
