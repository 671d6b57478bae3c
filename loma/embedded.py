"""Programs in Python files: the decorator ``loma.module``."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
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
    ``from __future__ import annotations``. Lines in error messages are those of the Python file.
    """
    from loma.compiler import Program, load, warnings_of, with_imports

    try:
        lines, first = inspect.getsourcelines(decorated)
    except (OSError, TypeError) as error:
        raise TypeError(
            f"loma.module: the source text of {decorated!r} is not available"
        ) from error
    path = inspect.getsourcefile(decorated) or "<text>"
    text = with_imports(_program_text(lines, first), path)
    loaded = load(Program(text, path, decorated.__name__))
    show_warnings(warnings_of(loaded))
    return loaded


def _program_text(lines: list[str], first: int) -> str:
    """The program, behind as many empty lines as make its line numbers those of the file.

    ``first`` is the number of the first of ``lines``, that of the decorator.
    """
    lines = textwrap.dedent("".join(lines)).splitlines(keepends=True)
    node = parse_python("".join(lines)).body[0]
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    if isinstance(node, ast.FunctionDef) and (
        node.args.args or node.args.posonlyargs or node.args.kwonlyargs
    ):
        start = node.lineno
    else:
        documented = ast.get_docstring(node, clean=False) is not None and len(node.body) > 1
        head = node.body[1 if documented else 0]
        decorators = getattr(head, "decorator_list", [])
        start = min([head.lineno, *(item.lineno for item in decorators)])
        if start == node.lineno:
            raise TypeError(f"loma.module: the body of {node.name} must start on a line of its own")
    return "\n" * (first + start - 2) + textwrap.dedent("".join(lines[start - 1 :]))
