"""Python's own parser, one thread at a time, and its names of operations.

CPython 3.11 counts the depth of the tree that it converts in one place for all threads: two that
parse at once can make each other fail with a SystemError.
"""

from __future__ import annotations

import ast
import threading
import warnings

from loma.core.ir import BinaryOp

SYMBOLS: dict[type[ast.operator], BinaryOp] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**",
}  # fmt: skip
_lock = threading.Lock()


def elts(node: ast.expr) -> list[ast.expr]:
    """What commas separate between brackets or on a side of ``=``; none for ``()``."""
    return node.elts if isinstance(node, ast.Tuple) else [node]


def parse_python(source: str) -> ast.Module:
    """``ast.parse`` without warnings, safe to call from several threads."""
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)
