"""loma.errors: what a user sees, to the letter."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys

import pytest

from conftest import ROOT
from loma import errors
from loma.errors import UserError, suggest
from loma.errors.spans import NOWHERE, Span

SOURCE = """\
def f(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y : Tensor[N]
    y[i] = (x[i] +
            q)
    return y
"""


def test_place_line_carets_related_and_hint() -> None:
    error = errors.DuplicateVariable(
        "variable 'y' is already declared",
        Span(3, 4, 3, 17),
        related=((Span(2, 4, 2, 5), "declared here first"),),
        hint="drop one declaration",
    ).locate(SOURCE, "f.loma")
    assert str(error) == error.to_string() == error.render(color=False)
    assert str(error) == (
        "f.loma:3:5: error: variable 'y' is already declared\n"
        "    3 |     y : Tensor[N]\n"
        "      |     ^^^^^^^^^^^^^\n"
        "  f.loma:2:5: note: declared here first\n"
        "    2 |     y : Tensor[N]\n"
        "      |     ^\n"
        "  hint: drop one declaration"
    )


def test_a_span_of_several_lines_is_underlined_to_the_end_of_the_first() -> None:
    error = UserError("too long", Span(4, 11, 5, 14)).locate(SOURCE, "f.loma")
    assert str(error) == (
        "f.loma:4:12: error: too long\n    4 |     y[i] = (x[i] +\n      |            ^^^^^^^"
    )


def test_an_empty_span_has_one_caret() -> None:
    error = UserError("here", Span(2, 4, 2, 4)).locate(SOURCE, "f.loma")
    assert str(error).endswith("\n      |     ^")


def test_columns_count_bytes_as_the_parser_does_and_carets_stand_under_the_characters() -> None:
    # In UTF-8, é has two bytes; 数 has three and takes two columns of a terminal.
    error = UserError("unknown", Span(1, 9, 1, 10)).locate("é = 数 + q", "u.loma")
    assert error.var == "+"
    assert str(error).endswith("    1 | é = 数 + q\n      |        ^")


def test_tabs_stay_so_that_carets_line_up() -> None:
    error = UserError("unknown", Span(1, 1, 1, 2)).locate("\tq = 1", "t.loma")
    assert str(error).endswith("    1 | \tq = 1\n      | \t^")


@pytest.mark.parametrize("source", ["a\rb\rq", "a\r\nb\r\nq", "a\fa\nb\nq"])
def test_lines_are_counted_as_the_parser_counts_them(source: str) -> None:
    assert "    3 | q\n" in str(UserError("unknown", Span(3, 0, 3, 1)).locate(source, "n.loma"))


def test_of_a_long_line_only_a_window_is_shown() -> None:
    line = "a" * 500 + " = é1 + " + "b" * 500
    for col, end, before, after in (
        (0, 1, "", "..."),
        (503, 505, "...", "..."),
        (1007, 1009, "...", ""),
    ):
        error = UserError("m", Span(1, col, 1, end)).locate(line, "f.loma")
        _, shown, carets = str(error).split("\n")
        assert len(shown) <= 8 + 120 + 6
        text = shown[8:]
        assert text.startswith(before + line[0 if not before else 900 if not after else 470])
        assert text.endswith(after or "b")
        under = carets.index("^")
        marked = shown[under : under + carets.count("^")]
        assert marked == line.encode()[col:end].decode()


def test_without_text_or_place_only_the_message_remains() -> None:
    assert str(UserError("nothing known")) == "<text>: error: nothing known"
    assert str(UserError("no text", Span(2, 3, 2, 4))) == "<text>:2:4: error: no text"
    beyond = UserError("beyond the end", Span(99, 0, 99, 1)).locate(SOURCE, "f.loma")
    assert str(beyond) == "f.loma:99:1: error: beyond the end"


def test_the_innermost_text_wins() -> None:
    error = UserError("m", Span(1, 0, 1, 3)).locate(SOURCE, "inner.loma")
    assert error.locate("other", "outer.loma") is error
    assert error.path == "inner.loma"


def test_colour_adds_only_escapes() -> None:
    error = errors.UnboundIndex("index 'k'", Span(4, 4, 4, 5), hint="use +=").locate(SOURCE, "f")
    coloured = error.render(color=True)
    assert "\x1b[1;31merror: \x1b[0m" in coloured
    plain = coloured
    for code in ("\x1b[1m", "\x1b[1;31m", "\x1b[1;36m", "\x1b[1;32m", "\x1b[2m", "\x1b[0m"):
        plain = plain.replace(code, "")
    assert plain == str(error)


def test_errors_survive_pickling_and_copying() -> None:
    error = errors.UnknownName("no 'rleu'", Span(1, 0, 1, 3), hint="h", var="rleu")
    error.locate(SOURCE, "f.loma")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is errors.UnknownName
        assert str(twin) == str(error)
        assert twin.var == "rleu"


def test_the_teaching_compilers_attributes() -> None:
    error = errors.DuplicateVariable(
        "twice", Span(3, 4, 3, 5), related=((Span(2, 4, 2, 5), "first"),)
    ).locate(SOURCE, "f.loma")
    assert error.var == "y"
    assert error.var.lineno == error.lineno == 3
    assert error.first_declare_stmt.lineno == 2
    assert error.duplicate_declare_stmt.lineno == 3
    assert error.stmt.lineno == error.expr.lineno == error.node.lineno == 3
    assert error.node.col_offset == 4


def test_suggest() -> None:
    assert suggest("rleu", ["relu", "exp"]) == "did you mean 'relu'?"
    assert suggest("wibble", ["relu", "exp"]) is None
    assert suggest("x", []) is None


@pytest.mark.parametrize(
    "name",
    [
        "FuncArgNotAnnotated",
        "DuplicateVariable",
        "UndeclaredVariable",
        "ReturnNotLastStmt",
        "DeclareUnboundedArray",
        "DeclarationNotOutmostLevel",
        "CallWithOutArgNotInCallStmt",
        "DeclareTypeMismatch",
        "AssignTypeMismatch",
        "ReturnTypeMismatch",
        "UnaryOpTypeMismatch",
        "BinaryOpTypeMismatch",
        "CallTypeMismatch",
        "CallIDNotFound",
        "CallArgNotLHS",
        "ArrayAccessTypeMismatch",
        "StructMemberNotFound",
        "StructAccessTypeMismatch",
        "IfElseCondTypeMismatch",
        "WhileCondTypeMismatch",
    ],
)
def test_the_teaching_compilers_classes_exist(name: str) -> None:
    assert issubclass(getattr(errors, name), UserError)


def test_every_class_is_documented_and_toolchain_errors_are_no_user_errors() -> None:
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        if kind.__module__ == errors.__name__:
            assert kind.__doc__, kind
            assert not (issubclass(kind, errors.ToolchainError) and issubclass(kind, UserError))
    assert issubclass(errors.CompilerNotFound, RuntimeError)
    assert issubclass(errors.CompilationFailed, RuntimeError)


def test_errors_import_without_torch() -> None:
    code = "import sys; import loma.errors; print('torch' in sys.modules)"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert child.stdout.strip() == "False"


def test_nowhere_is_the_default() -> None:
    assert UserError("m").span == NOWHERE
