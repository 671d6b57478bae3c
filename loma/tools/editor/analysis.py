"""What an editor asks about a program's text: what is wrong, what is this, where is it from.

Nothing here knows of a protocol. Lines count from 1, columns from 0 in characters.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from loma import pipeline
from loma.core.builtins import BUILTINS
from loma.core.definitions import OPERATORS
from loma.core.ir import (
    POSITIONS,
    Axis,
    Builtin,
    Declare,
    Expr,
    For,
    Function,
    IndexAssign,
    Module,
    Op,
    Param,
    Reduce,
    Stmt,
    TensorType,
    Unpack,
    Var,
)
from loma.core.printer import print_expr, print_head, print_param, print_type
from loma.core.walk import expressions, statements, walk
from loma.errors import UserError, UserWarning
from loma.errors.excerpts import Text
from loma.errors.spans import FILE, NOWHERE, Span, line_in_file
from loma.frontend.imports import gather


@dataclass(frozen=True, slots=True)
class Place:
    """A stretch of the file ``path``."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Diagnostic:
    severity: Literal["error", "warning"]
    message: str
    place: Place
    related: tuple[tuple[Place, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Hover:
    """``code`` is loma, ``text`` a sentence or nothing."""

    code: str
    text: str = ""


class Analysis:
    """Of one text. ``module`` and ``adjoint`` are None where the text has an error."""

    def __init__(self, source: str, path: str) -> None:
        self.path = path
        self.text: str = source
        self.module: Module | None = None
        self.adjoint: Module | None = None
        self.diagnostics: list[Diagnostic] = []
        try:
            self.text = gather(source, path)
            self.module = pipeline.parsed(self.text, path)
            self.diagnostics += (self._diagnostic(w, "warning") for w in self.module.warnings)
            self.adjoint = pipeline.adjoint(self.module)
        except UserError as error:
            self.text = error.source or self.text
            self.diagnostics.append(self._diagnostic(error, "error"))

    def hover(self, line: int, column: int) -> Hover | None:
        """What is said about the name at a place."""
        name = self._word(line, column)
        if self.module is None or not name:
            return None
        function = self._function(line)
        found = None if function is None else _expression(function, self._bytes(line, column))
        match found:
            case Builtin(name=known) if known == name:
                return Hover(f"{name}({', '.join(BUILTINS[name].args)})", BUILTINS[name].doc)
            case Op(name=known) if known == name and name in OPERATORS:
                row = OPERATORS[name]
                listed = (*row.args, *(attr.name for attr in row.attrs))
                return Hover(f"{name}({', '.join(listed)})  # {print_type(found.type)}", row.doc)
            case Reduce(kind=known) if known == name:
                said = "the place of an extreme" if known in POSITIONS else "over all values of i"
                return Hover(f"{name}(x[i] for i in N)  # {print_type(found.type)}", said)
            case _:
                pass
        own = self._known_function(name)
        if own is not None and (function is None or not _declares(function, name)):
            head = print_head(replace(own, doc=""))
            return Hover("\n".join(head).removesuffix(":"), own.doc)
        top = self._top_level(name)
        if top is not None and (function is None or not _declares(function, name)):
            return Hover(top[1])
        if function is None:
            return None
        param = next((p for p in function.params if p.name == name), None)
        if param is not None:
            return Hover(print_param(param))
        if (size := _size_of(function, name)) is not None:
            return Hover(f"{name} : int", f"size: dimension {size[1]} of '{size[0].name}'")
        axis = _axis(function, name, line)
        if axis is not None:
            return Hover(f"{name} : int", f"index: 0 to {print_expr(axis.extent)} - 1")
        if isinstance(found, Var) and found.name == name:
            return Hover(f"{name} : {print_type(found.type)}")
        for stmt in statements(function.body):
            if isinstance(stmt, Declare) and stmt.target.name == name:
                return Hover(f"{name} : {print_type(stmt.target.type)}")
        return None

    def definition(self, line: int, column: int) -> Place | None:
        """Where the name at a place is declared."""
        name = self._word(line, column)
        if self.module is None or not name:
            return None
        function = self._function(line)
        if function is not None:
            for param in function.params:
                if param.name == name:
                    return self._place(param.span)
            for stmt in statements(function.body):
                if name in _targets(stmt):
                    return self._place(stmt.span)
        for derivative in self.module.derivatives:
            if derivative.name == name:
                return self._place(derivative.span)
        own = self._known_function(name)
        if own is not None and own.span != NOWHERE:
            return self._place(own.span)
        if (top := self._top_level(name)) is not None:
            return top[0]
        size = None if function is None else _size_of(function, name)
        return None if size is None else self._place(size[0].span)

    def symbols(self) -> list[tuple[str, Place]]:
        """The functions and derivatives of the file."""
        if self.module is None:
            return []
        named = [(f.name, f.span) for f in self.module.functions]
        named += [(d.name, d.span) for d in self.module.derivatives]
        found = [(name, span) for name, span in named if 0 < span.line < FILE]
        return [(name, self._place(span)) for name, span in sorted(found, key=lambda f: f[1].line)]

    # ------------------------------------------------------------------------------------ places

    def _lines(self, line: int) -> list[str]:
        """The lines of the file that a line is in."""
        number, text = line // FILE, self.text
        if number and isinstance(self.text, Text):
            text = self.text.imports[number - 1][1]
        return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")

    def _place(self, span: Span) -> Place:
        number, path = span.line // FILE, self.path
        if number and isinstance(self.text, Text):
            path = self.text.imports[number - 1][0]
        lines = self._lines(span.line)

        def characters(line: int, column: int) -> int:
            inside = 0 < line <= len(lines)
            return len(lines[line - 1].encode()[:column].decode(errors="ignore")) if inside else 0

        first, last = line_in_file(span.line), line_in_file(span.end_line)
        start, end = characters(first, span.col), characters(last, span.end_col)
        return Place(path, max(first, 1), start, max(last, 1), max(end, start + (first == last)))

    def _bytes(self, line: int, column: int) -> tuple[int, int]:
        """A place as spans have it."""
        return line, len(self._lines(line)[line - 1][:column].encode())

    def _word(self, line: int, column: int) -> str:
        lines = self._lines(line)
        if not 0 < line <= len(lines):
            return ""
        text = lines[line - 1]
        start = end = column
        while start > 0 and _in_name(text[start - 1 : start]):
            start -= 1
        while _in_name(text[end : end + 1]):
            end += 1
        return text[start:end]

    def _diagnostic(
        self, report: UserError | UserWarning, severity: Literal["error", "warning"]
    ) -> Diagnostic:
        message = report.message + (f"\nhint: {report.hint}" if report.hint else "")
        related = tuple((self._place(span), note) for span, note in report.related)
        return Diagnostic(severity, message, self._place(report.span), related)

    # --------------------------------------------------------------------------------- functions

    def _top_level(self, name: str) -> tuple[Place, str] | None:
        """A constant or a struct of the program, which is nowhere else: its place and its text."""
        imports = self.text.imports if isinstance(self.text, Text) else ()
        for path, text in ((self.path, str(self.text)), *imports):
            for node in ast.parse(text).body:
                match node:
                    case ast.ClassDef(name=known) | ast.AnnAssign(target=ast.Name(id=known)) if (
                        known == name
                    ):
                        place = Place(path, node.lineno, 0, node.lineno, len(name))
                        if isinstance(node, ast.ClassDef):
                            start = len("class ")
                            place = replace(place, column=start, end_column=start + len(name))
                        return place, ast.get_source_segment(text, node) or name
                    case _:
                        pass
        return None

    def _function(self, line: int) -> Function | None:
        """The function of this file whose text a line belongs to: the last that begins before."""
        assert self.module is not None
        before = [f for f in self.module.functions if 0 < f.span.line <= line]
        return max(before, key=lambda f: f.span.line, default=None)

    def _known_function(self, name: str) -> Function | None:
        """Of the program, or made of one."""
        for module in (self.module, self.adjoint):
            for function in () if module is None else module.functions:
                if function.name == name:
                    return function
        return None


def _in_name(text: str) -> bool:
    return bool(text) and (text.isalnum() or text == "_")


def _declares(function: Function, name: str) -> bool:
    return any(p.name == name for p in function.params) or any(
        name in _targets(stmt) for stmt in statements(function.body)
    )


def _size_of(function: Function, name: str) -> tuple[Param, int] | None:
    """The argument, and its dimension, that a size variable comes from."""
    for param in function.params:
        dims = param.type.dims if isinstance(param.type, TensorType) else None
        for number, dim in enumerate(dims or ()):
            if any(isinstance(node, Var) and node.name == name for node in walk(dim)):
                return param, number
    return None


def _targets(stmt: Stmt) -> list[str]:
    """The variables that a statement declares."""
    match stmt:
        case Declare(Var(name)):
            return [name]
        case For(counter):
            return [counter]
        case Unpack(targets):
            return [target.name for target in targets if isinstance(target, Var)]
        case _:
            return []


def _around(span: Span, place: tuple[int, int]) -> bool:
    return (span.line, span.col) <= place < (span.end_line, span.end_col)


def _expression(function: Function, place: tuple[int, int]) -> Expr | None:
    """The innermost expression at a place."""
    found: Expr | None = None
    for expr in _expressions(function):
        if _around(expr.span, place) and (found is None or _size(expr.span) <= _size(found.span)):
            found = expr
    return found


def _expressions(function: Function) -> Iterator[Expr]:
    for stmt in statements(function.body):
        for expr in expressions(stmt):
            yield from walk(expr)


def _size(span: Span) -> tuple[int, int]:
    return span.end_line - span.line, span.end_col - span.col


def _axis(function: Function, name: str, line: int) -> Axis | None:
    """The index of that name in the statement at a line."""
    for stmt in statements(function.body):
        if not stmt.span.line <= line <= stmt.span.end_line:
            continue
        axes = list(stmt.axes) if isinstance(stmt, IndexAssign) else []
        for expr in expressions(stmt):
            axes += (a for node in walk(expr) if isinstance(node, Reduce) for a in node.axes)
        for axis in axes:
            if axis.name == name:
                return axis
    return None
