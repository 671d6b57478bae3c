"""Every error that a loma program can earn, and the one renderer that shows them.

An error says what was found and what was expected (``message``), where (``span``), what to do about
it (``hint``) and which other places take part (``related``)::

    raise UndeclaredVariable("variable 'y' is not declared", span, hint=suggest("y", names))

Whoever knows the program's text calls :meth:`UserError.locate`, once, near the top; ``str(error)``
is then the whole report::

    squash.loma:4:9: error: variable 'y' is not declared
        4 |     x = y + 1.0
          |         ^
      hint: declare it first: y : float

The classes of the teaching language's compiler keep their names and their attributes (``var``,
``stmt``, ``expr``, ``node``, ``first_declare_stmt``, ``duplicate_declare_stmt``), so that a host
script written for it can catch and read them here. A wrong *call* of a compiled function is no
``UserError``: it is a ``TypeError`` or ``ValueError``, as for any Python function.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import Any, Self, TypeAlias

from loma.errors.excerpts import ansi, excerpt, place, plain, text_under
from loma.errors.spans import NOWHERE, Span, line_in_file
from loma.errors.spelling import suggest as suggest

Related: TypeAlias = tuple[tuple[Span, str], ...]


# ------------------------------------------------------------------------------- user errors


@dataclass(frozen=True, slots=True)
class Node:
    """The offending place as the teaching compiler's scripts read it."""

    span: Span

    @property
    def lineno(self) -> int:
        return line_in_file(self.span.line)

    @property
    def col_offset(self) -> int:
        return self.span.col


class Name(str):
    """The offending name: equal to the plain string, and it knows its line.

    ``id`` and ``arg`` are the string too, as on the nodes of variables and arguments.
    """

    lineno: int

    def __new__(cls, text: str, lineno: int = 0) -> Self:
        name = super().__new__(cls, text)
        name.lineno = lineno
        return name

    @property
    def id(self) -> str:
        return str(self)

    arg = id


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def renamed(text: str, shown: Mapping[str, str]) -> str:
    """A text with other names for those in ``shown``."""
    return re.sub(r"\w+", lambda word: shown.get(word[0], word[0]), text)


class _Report(Exception):
    """What is to be said of a place in a program's text."""

    _word = "error"

    def __init__(
        self,
        message: str,
        span: Span = NOWHERE,
        *,
        hint: str | None = None,
        related: Related = (),
        var: str | None = None,
    ) -> None:
        super().__init__(message, span)
        self.message = message
        self.span = span
        self.hint = hint
        self.related = related
        self._var = var
        self.source = ""
        self.path = "<text>"

    def locate(self, source: str, path: str) -> Self:
        """Says which text the spans point into, unless that is known; returns the report."""
        if not self.source:
            self.source, self.path = source, path
        return self

    def rename(self, shown: Mapping[str, str]) -> Self:
        """Says names as the program has them, where the compiler has others; returns the report."""
        return self.reword(lambda text: renamed(text, shown)) if shown else self

    def reword(self, said: Callable[[str], str]) -> Self:
        """Says all of it in other words; returns the report."""
        self.message = said(self.message)
        self.hint = None if self.hint is None else said(self.hint)
        self.related = tuple((span, said(note)) for span, note in self.related)
        return self

    def to_string(self) -> str:
        return self.render(color=False)

    def render(self, color: bool = False) -> str:
        """The report: head line, source line, carets, hint, related places."""
        paint = ansi if color else plain
        lines = [
            paint("bold", f"{place(self.path, self.span, self.source)}: ")
            + paint(self._word, f"{self._word}: ")
            + paint("bold", self.message),
            *excerpt(self.source, self.span, paint, "caret"),
        ]
        for span, note in self.related:
            where = place(self.path, span, self.source)
            lines.append(f"  {where}: {paint('note', 'note: ')}{note}")
            lines += excerpt(self.source, span, paint, "note")
        if self.hint:
            lines.append(f"  {paint('hint', 'hint: ')}{self.hint}")
        return "\n".join(lines)

    __str__ = to_string

    def _render_traceback_(self) -> list[str]:
        """What IPython and notebooks show of it: the report, in colours."""
        return self.render(color=True).splitlines()


class UserError(_Report):
    """A mistake in a loma program.

    ``related`` are further places with a note each ("declared here"). ``var`` is the name that the
    error is about, where there is one; left out, it is the text under ``span``.
    """

    _stmt: Span | None = None

    def inside(self, stmt: Span) -> None:
        """Says which statement the error is in; the innermost says it first."""
        self._stmt = self._stmt or stmt

    @property
    def var(self) -> Name:
        text = self._var if self._var is not None else text_under(self.source, self.span)
        return Name(text, line_in_file(self.span.line))

    arg = var

    @property
    def node(self) -> Node:
        return Node(self.span)

    expr = node

    @property
    def stmt(self) -> Node:
        return Node(self._stmt or self.span)

    duplicate_declare_stmt = stmt

    @property
    def lineno(self) -> int:
        return line_in_file(self.span.line)

    @property
    def first_declare_stmt(self) -> Node:
        return Node(self.related[0][0] if self.related else self.span)


class UserWarning(_Report, builtins.UserWarning):
    """What a loma program says and may not mean. Python's filters of warnings apply to it."""

    _word = "warning"

    def record(self) -> dict[str, Any]:
        """As JSON values; see :meth:`of`."""
        related = [[astuple(span), note] for span, note in self.related]
        return {"message": self.message, "span": astuple(self.span), "hint": self.hint,
                "related": related}  # fmt: skip

    @classmethod
    def of(cls, record: dict[str, Any], source: str, path: str) -> Self:
        """The warning of a record, in a text."""
        related = tuple((Span(*span), note) for span, note in record["related"])
        span = Span(*record["span"])
        return cls(record["message"], span, hint=record["hint"], related=related).locate(
            source, path
        )


Warnings: TypeAlias = Iterator[UserWarning]


# ------------------------------------------------- shared with the teaching language's compiler


class FuncArgNotAnnotated(UserError):
    """An argument without ``In[...]`` or ``Out[...]``."""


class DuplicateVariable(UserError):
    """A name declared twice; ``related[0]`` is the first declaration."""


class UndeclaredVariable(UserError):
    """A name used before any declaration."""


class ReturnNotLastStmt(UserError):
    """A ``return`` anywhere but at the end of the function."""


class DeclareUnboundedArray(UserError):
    """A local ``Array[T]`` without a size."""


class DeclarationNotOutmostLevel(UserError):
    """A declaration inside ``if``, ``for`` or ``while``."""


class CallWithOutArgNotInCallStmt(UserError):
    """A function with ``Out`` arguments called inside an expression."""


class TypeMismatch(UserError):
    """A value of one type where another is needed; the subclasses say where."""


class DeclareTypeMismatch(TypeMismatch):
    """The value of a declaration does not fit the declared type."""


class AssignTypeMismatch(TypeMismatch):
    """The value of an assignment does not fit its target."""


class ReturnTypeMismatch(TypeMismatch):
    """A returned value does not fit the function's result type."""


class UnaryOpTypeMismatch(TypeMismatch):
    """An operand that a unary operator cannot take."""


class BinaryOpTypeMismatch(TypeMismatch):
    """Operands that a binary operator cannot take."""


class CallTypeMismatch(TypeMismatch):
    """Wrong number or types of the arguments of a call."""


class ArrayAccessTypeMismatch(TypeMismatch):
    """A subscript on something that has none, or one that is not an int."""


class StructAccessTypeMismatch(TypeMismatch):
    """``x.member`` of something that is no struct."""


class IfCondTypeMismatch(TypeMismatch):
    """The condition of ``if`` is neither an int nor a float."""


IfElseCondTypeMismatch = IfCondTypeMismatch


class WhileCondTypeMismatch(TypeMismatch):
    """The condition of ``while`` is neither an int nor a float."""


class StructMemberNotFound(UserError):
    """``x.member`` with a member that the struct does not have."""


class CallIDNotFound(UserError):
    """A call of a function that does not exist."""


class CallArgNotLHS(UserError):
    """An ``Out`` argument that cannot be written to, such as ``x + 1``."""


class ArgOutNotLValue(CallArgNotLHS):
    """The same mistake for a place that exists but is read only, such as an ``In`` array."""


class AliasedOutArgument(UserError):
    """One storage passed to two arguments of which one is ``Out``."""


class SimdMisuse(UserError):
    """``thread_id()`` outside a ``@simd`` function; a result, a tensor or a call of one."""


class ReturnMissing(UserError):
    """A function with a result type that does not return."""


# --------------------------------------------------------------------------------- names, syntax


class SyntaxNotSupported(UserError):
    """Python that is not loma, or text that is not even Python."""


class UnknownName(UserError):
    """A name of a type, operator or attribute that does not exist; see :func:`suggest`."""


class UnknownType(UnknownName):
    """An annotation that is no type of the language."""


class DuplicateFunction(UserError):
    """Two functions, structs or derivatives of one name in a file."""


class RecursionNotSupported(UserError):
    """A function that calls itself, directly or through others."""


# ---------------------------------------------------------------------------------- tensor layer


class UnknownSizeVariable(UserError):
    """A size in a result's or local's type that no argument binds."""


class IndexRangeUnknown(UserError):
    """An index that stands alone in no subscript and has no explicit range."""


class IndexRangeMismatch(UserError):
    """An index that stands alone in dimensions of different sizes."""


class SubscriptOutOfRange(UserError):
    """A subscript that is known to leave its tensor."""


class UnboundIndex(UserError):
    """An index on the right of ``=`` that is neither on the left nor bound by a reduction."""


class TargetNotInjective(UserError):
    """Subscripts under ``=`` that write one element twice."""


class RankMismatch(UserError):
    """A tensor with another number of dimensions than it is used with."""


class ShapeMismatch(UserError):
    """Sizes that have to agree and do not."""


class DtypeMismatch(UserError):
    """An IntTensor where a float tensor is needed, or the other way round."""


class WriteToInArgument(UserError):
    """An assignment to an ``In`` tensor or array, which is read only."""


class WriteToSize(UserError):
    """An assignment to a size variable or a loop counter."""


class OperatorArguments(UserError):
    """Wrong arguments or attributes of a tensor operator."""


# -------------------------------------------------------------------- derivatives and backends


class NotDifferentiable(UserError):
    """A derivative that does not exist, or that there is no rule for."""


class BackendLacksOperator(UserError):
    """An operator or type that the chosen backend cannot compile."""


# ------------------------------------------------------------------------------------- toolchain


class ToolchainError(RuntimeError):
    """Something outside the program failed: the C++ compiler or what it needs."""


class CompilerNotFound(ToolchainError):
    """There is no C++ compiler to run."""


class SettingError(ToolchainError, ValueError):
    """An environment variable says something that cannot be followed; the message names it."""


class CacheError(ToolchainError):
    """The cache on disk cannot be used: its folder is not safe, is full, or cannot be written."""


class CompilationFailed(ToolchainError):
    """The C++ compiler refused the generated code: a defect of loma, or of the installation."""
