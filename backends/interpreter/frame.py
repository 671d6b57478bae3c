"""A function being run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loma.core.ir import Builtin, Function, Struct
from loma.errors.spans import Span, line_in_file
from loma.runtime_errors import Kind, exception

Value = Any


@dataclass(slots=True)
class Frame:
    """A function's variables, and how it calls others.

    ``invoke(frame, function, arguments)`` gives the results, then the final values of Out
    arguments. ``bits`` is the size of an int: 32, but 64 in functions that work on tensors and in
    those that they call. ``inner`` is whether another function called this one. ``line`` is that of
    the statement being run, ``item`` the work item of a @simd function. ``own`` are functions that
    loop trees have beside the language's.
    """

    function: Function
    functions: Mapping[str, Function]
    structs: Mapping[str, Struct]
    invoke: Callable[[Frame, Function, Sequence[Value]], tuple[Value, ...]]
    bits: int
    inner: bool = False
    line: int = 0
    item: int = 0
    env: dict[str, Value] = field(default_factory=dict)
    own: Mapping[str, Callable[[Frame, Builtin], Value]] = field(default_factory=dict)

    def called(self, function: Function) -> Frame:
        """The frame of a function that this one calls."""
        return Frame(function, self.functions, self.structs, self.invoke, self.bits, inner=True)

    def place(self, span: Span) -> str:
        """Where a run-time error happened, for its message."""
        return f"{self.function.name}: line {self._line(span)}"

    def failure(self, kind: Kind, span: Span, first: int = 0, second: int = 0) -> Exception:
        """What a scalar function raises at that place."""
        return exception(kind, self.function.name, self._line(span), first, second)

    def _line(self, span: Span) -> int:
        """What AD adds may have no place of its own: then that of the statement or function."""
        return line_in_file(span.line or self.line or self.function.span.line)
