"""The decorator ``loma.module``: programs that stand in Python files and notebooks."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable
from types import CodeType
from typing import Any

from loma.frontend.syntax.python_syntax import parse_python
from loma.functions import LomaModule
from loma.reports import public, show_warnings


@public
def module(decorated: type | Callable[..., Any]) -> LomaModule:
    """Compiles the program that stands in a Python file under this decorator.

    The program is the body of a class, or of a function without arguments (which is never called,
    so its names need not exist in Python)::

        @loma.module
        def layers():
            def double(x : In[Tensor[N]]) -> Tensor[N]:
                return x + x

    A function with arguments is itself the program's one function. Python evaluates the annotations
    of a class body's functions, and of such a function, unless the file starts with
    ``from __future__ import annotations``; ``from loma import In, Tensor`` and :func:`loma.names`
    give it, linters and type checkers the names. Places in error messages are those of the Python
    file.

    TypeError where Python does not keep the text, as at its own prompt before Python 3.13.
    """
    from loma.compiler import load, warnings_of
    from loma.program import Program, with_imports

    text, path = _program(decorated)
    text = with_imports(text, path)
    loaded = load(Program(text, path, decorated.__name__))
    show_warnings(warnings_of(loaded))
    return loaded


def _program(decorated: type | Callable[..., Any]) -> tuple[str, str]:
    """The program, indented as it is and behind as many empty lines as make its places those of the
    file; and the file."""
    code = _code(decorated)
    path = inspect.getsourcefile(decorated) or "<text>" if code is None else code.co_filename
    lines = linecache.getlines(path)
    node = None if code is None else _definition(lines, decorated, code)
    if node is None:
        raise TypeError(
            f"loma.module: the source text of {getattr(decorated, '__name__', decorated)!r} is not "
            "available: give the text to loma.compile"
        )
    start = node.lineno
    if isinstance(node, ast.ClassDef) or not _takes_arguments(node):
        documented = ast.get_docstring(node, clean=False) is not None and len(node.body) > 1
        head = node.body[1 if documented else 0]
        decorators = getattr(head, "decorator_list", [])
        start = min([head.lineno, *(item.lineno for item in decorators)])
        if start == node.lineno:
            raise TypeError(f"loma.module: the body of {node.name} must start on a line of its own")
    return "\n" * (start - 1) + "".join(lines[start - 1 : node.end_lineno]), path


def _takes_arguments(node: ast.FunctionDef) -> bool:
    return bool(node.args.args or node.args.posonlyargs or node.args.kwonlyargs)


def _code(decorated: type | Callable[..., Any]) -> CodeType | None:
    """Of the function, or of one in the class: it knows its file and line in a notebook, too, whose
    classes inspect does not find."""
    members = vars(decorated).values() if isinstance(decorated, type) else [decorated]
    for member in members:
        code = getattr(inspect.unwrap(member), "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None


def _definition(
    lines: list[str], decorated: type | Callable[..., Any], code: CodeType
) -> ast.ClassDef | ast.FunctionDef | None:
    """The innermost definition of that name around the code."""
    found = None
    for node in ast.walk(parse_python("".join(lines))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == decorated.__name__:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            if first <= code.co_firstlineno <= (node.end_lineno or first):
                found = node
    return found
