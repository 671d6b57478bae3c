"""Programs that stand in a Python file, under the decorator. Linters and mypy read this file, too,
and accept it."""

from __future__ import annotations

import importlib
import inspect
import linecache
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import loma
from conftest import ROOT
from loma import In, Tensor, rev_diff, softmax
from loma.core.builtins import BUILTINS
from loma.core.definitions import OPERATORS
from loma.embedded import words
from loma.frontend.types import TYPE_NAMES

B, N, M, i, j = loma.names("B N M, i j")


@pytest.fixture(scope="module")
def programs() -> ModuleType:
    """Imported when they are needed: importing compiles them, which no collection waits for."""
    return importlib.import_module("embedded_programs")


def test_a_function_without_arguments_holds_a_program(programs: ModuleType) -> None:
    layers = programs.layers
    assert layers.double(torch.ones(3)).tolist() == [2.0] * 3
    (dx,) = layers.d_double(torch.ones(3), torch.ones(3))
    assert dx.tolist() == [2.0] * 3


def test_a_class_holds_a_program(programs: ModuleType) -> None:
    assert programs.More.neighbours(torch.zeros(1, 2)).tolist() == [[0.5, 0.75]]


def test_a_function_with_arguments_is_a_program(programs: ModuleType) -> None:
    assert programs.total.total(torch.ones(2, 3)).item() == 6.0


def test_errors_point_into_the_python_file() -> None:
    def wrong() -> None:
        def double(x: In[Tensor[N]]) -> Tensor[N]:
            return undeclared  # type: ignore[name-defined]  # noqa: F821  the line of the error

    with pytest.raises(loma.UserError) as caught:
        loma.module(wrong)
    lines, first = inspect.getsourcelines(wrong)
    at, text = next((k, text) for k, text in enumerate(lines) if "the line of the error" in text)
    assert caught.value.lineno == first + at
    assert caught.value.path == __file__
    column = text.index("undeclared") + 1
    assert str(caught.value).startswith(f"{__file__}:{first + at}:{column}: error:")
    assert f"| {text.rstrip()}" in str(caught.value)


def test_an_indented_text_has_its_own_places() -> None:
    function = """
        # what is said here
        def double(x : In[Tensor[N]]) -> Tensor[N]:
            return x + {}
        """
    assert loma.compile(function.format("x")).double(torch.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(loma.UserError, match=r"<text>:4:24: error: variable 'z' is not declared"):
        loma.compile(function.format("z"))
    with pytest.raises(loma.UserError, match=r"<text>:2:\d+: error: this is not Python syntax: un"):
        loma.compile("\n    def f(x : In[float]) -> float:\n        return x\ny = 3\n")


CELL = """\
import loma
from loma import In, Tensor, rev_diff
N, i = loma.names("N i")

@loma.module
class layers:
    def half(x: In[Tensor[N]]) -> Tensor[2 * N - N]:
        y: Tensor[N]
        y[i] = x[i] / 2.0
        return y

    d_half = rev_diff(half)

def make(factor):
    @loma.module
    def times(x: In[Tensor[N]]) -> Tensor[N]:
        return 3.0 * x
    return times

times = make(3)
"""


def _run_cell(text: str, name: str) -> dict[str, Any]:
    """As notebooks do: the text is in linecache only, and the module is not a file's."""
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec", dont_inherit=True), namespace)
    return namespace


def test_cells_of_a_notebook() -> None:
    """Python evaluates the annotations of the class there, with the words of the language."""
    cell = _run_cell(CELL, "<ipython-input-1-loma>")
    assert cell["layers"].half(torch.ones(2)).tolist() == [0.5, 0.5]
    assert cell["times"].times(torch.ones(2)).tolist() == [3.0, 3.0]
    with pytest.raises(loma.UserError) as caught:
        _run_cell(CELL.replace("x[i] / 2.0", "z[i] / 2.0"), "<ipython-input-2-loma>")
    assert str(caught.value).startswith("<ipython-input-2-loma>:9:16: error:")


def test_without_source_text() -> None:
    message = r"the source text of .* is not available: give the text to loma.compile"
    with pytest.raises(TypeError, match=message):
        loma.module(eval("lambda: None"))
    with pytest.raises(TypeError, match=message):
        loma.module(type("Empty", (), {}))


# ------------------------------------------------------------------------------------- checkers

# A user's file, which declares its sizes and indices once, and the same without their declarations.
LAYERS = '''\
"""Layers."""

import loma
import torch
from loma import (
    Array,
    BoolTensor,
    Diff,
    In,
    IntTensor,
    Out,
    Tensor,
    rev_diff,
    simd,
    where,
    zeros,
)

B, N, i, j = loma.names("B N i j")


@loma.module
class layers:
    def masked(x: In[Tensor[B, N]], mask: In[BoolTensor[B, N]]) -> Tensor[B, N]:
        y: Tensor[B, N] = where(mask, x, 0.0)
        return y

    def picked(x: In[Tensor[B, 2 * N]], k: In[IntTensor[N]], p: In[float] = 2.0) -> Tensor[B, N]:
        y: Tensor[B, N] = zeros([B, N])
        y[i, j] = x[i, k[j]] ** p
        return y

    d_picked = rev_diff(picked)


@loma.module
def scalars():
    @simd
    def doubled(x: In[Array[float]], y: Out[Array[float]]):
        y[0] = 2.0 * x[0]

    def dual(x: In[Diff[float]]) -> float:
        return x.dval


print(layers.picked(torch.ones(2, 6), torch.tensor([0, 5, 1])), scalars)
'''
UNDECLARED = "\n".join(line for line in LAYERS.splitlines() if "names(" not in line) + "\n"


def _checked(folder: Path, text: str, *command: str) -> tuple[int, str]:
    """The exit code of a checker for a user's file, and what it prints."""
    (folder / "layers.py").write_text(text, encoding="utf-8")
    command = (sys.executable, "-m", *command, "layers.py")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_ruff_accepts_a_program(tmp_path: Path) -> None:
    """By its own rules, and by those of this project."""
    pytest.importorskip("ruff", reason="ruff is not installed: pip install '.[test]'")
    ruff = ("ruff", "check", "--no-cache", "--output-format=concise")
    own = ("--config", str(ROOT / "pyproject.toml"))
    for options in (("--isolated",), own):
        assert _checked(tmp_path, LAYERS, *ruff, *options) == (0, "All checks passed!\n")
    code, said = _checked(tmp_path, UNDECLARED, *ruff, "--isolated")
    assert code == 1
    assert "F821 Undefined name `B`" in said
    assert _checked(tmp_path, LAYERS, "ruff", "format", "--no-cache", "--check", *own)[0] == 0


@pytest.mark.full
def test_mypy_accepts_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed: pip install '.[test]'")
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    mypy = ("mypy", "--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent")
    code, said = _checked(tmp_path, LAYERS, *mypy)
    assert code == 0, said
    code, said = _checked(tmp_path, UNDECLARED, *mypy)
    assert code == 1
    assert 'Name "B" is not defined' in said


def test_what_checkers_accept_runs(capsys: pytest.CaptureFixture[str]) -> None:
    _run_cell(LAYERS, "<layers>")
    assert "tensor([[1., 1., 1.],\n        [1., 1., 1.]])" in capsys.readouterr().out


# --------------------------------------------------------------------------------------- words


def test_every_word_of_the_language_is_there() -> None:
    in_python = {"float", "int", "abs", "len", "max", "min", "pow", "round", "slice", "sum"}
    assert {*TYPE_NAMES, "In", "Out"} - in_python == words.TYPES
    own = {name for name in {*BUILTINS, *OPERATORS} if name not in ("and", "or", "not")}
    assert own - in_python == words.FUNCTIONS - {"zero_pad", "no_diff", "atomic_add"}
    for name in words.TYPES | words.FUNCTIONS | words.DECLARATIONS:
        assert repr(getattr(loma, name)) == name


def test_words_print_as_they_were_written() -> None:
    shown = In[Tensor[B, 2 * N, (N + 1) // 2, -(B - 1), 2 - (N - B), N - 2 - B, 2**N]]
    text = "In[Tensor[B, 2 * N, (N + 1) // 2, -(B - 1), 2 - (N - B), N - 2 - B, 2 ** N]]"
    assert repr(shown) == text
    assert repr(rev_diff(test_without_source_text)) == "rev_diff(test_without_source_text)"


def test_words_are_not_run() -> None:
    for run in (lambda: softmax(1.0, 0), lambda: list(N), lambda: bool(N)):
        with pytest.raises(TypeError, match=r"write it in a function under @loma.module, or in a "):
            run()


@pytest.mark.parametrize("text", ["B 3", "", "B class"])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(ValueError, match=textwrap.dedent("loma.names takes names")):
        loma.names(text)
