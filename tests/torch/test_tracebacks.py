"""What is printed when a program is wrong: the line that calls loma and the report, not the frames
inside the compiler. A defect of the compiler keeps them all."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fresh
import pytest
import torch

import loma
import loma.compat
from conftest import ROOT
from loma import errors
from loma.ad.tensor.derivatives import TensorDerivatives

WRONG = "def f(x : In[Tensor[N]]) -> Tensor[N]:\n    return y\n"
REPORT = """\
<text>:2:12: error: variable 'y' is not declared
    2 |     return y
      |            ^
  hint: declare it first: y : Tensor[N]"""
RIGHT = """
def f(x : In[Tensor[N]]) -> Tensor[N]:
    return x * x * x
def g(x : In[float]) -> float:
    return x
"""


def _run(*arguments: str | Path, **variables: str) -> str:
    """What Python prints to standard error and output, with these arguments."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    run = fresh.run(arguments, env={**os.environ, "PYTHONPATH": path, **variables})
    assert run.returncode == 1
    return run.stderr + run.stdout


def _script(folder: Path, text: str) -> Path:
    file = folder / "script.py"
    file.write_text(text, encoding="utf-8")
    return file


SCRIPTS = {
    "compile": f"import loma\nloma.compile({WRONG!r})\n",
    "compile_many": f"import loma\nloma.compile_many([{WRONG!r}, {WRONG!r}])\n",
    "compat": "import loma.compat as c\n"
    f"c.compile({WRONG.replace('Tensor[N]', 'float')!r}, print_error=False)\n",
    "show": f"import loma\nm = loma.compile({RIGHT!r})\nm.__source__ = {WRONG!r}\nm.show()\n",
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full if n != "compile" else ()) for n in SCRIPTS]
)
def test_a_script_ends_with_its_line_and_the_report(name: str, tmp_path: Path) -> None:
    file = _script(tmp_path, SCRIPTS[name])
    printed = _run(file)
    lines = printed.rstrip().split("\n")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{file}", line {SCRIPTS[name].count(chr(10))}, in <module>'
    report = REPORT.replace("Tensor[N]", "float") if name == "compat" else REPORT
    assert printed.rstrip().endswith(f"loma.errors.UndeclaredVariable: {report}")
    # its line with carets, and one frame of loma's
    assert len(lines) <= 6 + REPORT.count("\n") + 1
    assert "compiler.py" not in printed


def test_python_with_a_command_and_with_a_module(tmp_path: Path) -> None:
    printed = _run("-c", SCRIPTS["compile"])
    assert printed.startswith('Traceback (most recent call last):\n  File "<string>", line 2')
    assert printed.rstrip().endswith(REPORT)
    assert printed.count("  File ") == 2
    _script(tmp_path, SCRIPTS["compile"])
    printed = _run("-m", "script", PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert f'File "{tmp_path / "script.py"}", line 2, in <module>\n' in printed
    assert printed.rstrip().endswith(REPORT)
    assert "compiler.py" not in printed


def test_an_embedded_program(tmp_path: Path) -> None:
    text = (
        "import loma\n\n\n@loma.module\ndef layers():\n"
        "    def f(x: In[Tensor[N]]) -> Tensor[N]:\n        return y\n"
    )
    file = _script(tmp_path, text)
    printed = _run(file)
    assert f'  File "{file}", line 4, in <module>\n' in printed
    assert f"{file}:7:16: error: variable 'y' is not declared\n" in printed
    assert printed.count("  File ") == 2


def test_pytest_ends_at_the_line_of_the_test(tmp_path: Path) -> None:
    text = f"import loma\n\n\ndef test_it():\n    loma.compile({WRONG!r})\n"
    file = tmp_path / "test_it.py"
    file.write_text(text, encoding="utf-8")
    printed = _run("-m", "pytest", "-p", "no:cacheprovider", "-q", file)
    assert ">       loma.compile(" in printed
    assert "E       loma.errors.UndeclaredVariable: <text>:2:12: error: " in printed
    assert "test_it.py:5: UndeclaredVariable" in printed
    assert "reports.py" not in printed
    assert "compiler.py" not in printed


def test_a_variable_shows_the_compiler_too(tmp_path: Path) -> None:
    printed = _run(_script(tmp_path, SCRIPTS["compile"]), LOMA_TRACEBACK="1")
    assert printed.rstrip().endswith(REPORT)
    assert printed.count("  File ") > 6
    assert "compiler.py" in printed


def test_a_defect_of_the_compiler_keeps_its_traceback(tmp_path: Path) -> None:
    text = (
        "import loma\nimport loma.frontend.module as m\n\n\ndef broken(*_):\n    return {}[1]\n\n\n"
        f"m._module = broken\nloma.compile({RIGHT!r} + '# changed')\n"
    )
    file = _script(tmp_path, text)
    printed = _run(file)
    assert printed.rstrip().endswith("KeyError: 1")
    assert f'  File "{file}", line 6, in broken\n    return {{}}[1]' in printed
    assert "compiler.py" in printed


# -------------------------------------------------------------------------- in the same process


def _frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_it_stays_the_exception_that_it_is() -> None:
    with pytest.raises(errors.UndeclaredVariable) as caught:
        loma.compile(WRONG)
    error = caught.value
    assert _frames(error) == ["test_it_stays_the_exception_that_it_is", "call"]
    assert error.to_string() == REPORT
    assert (error.var, error.lineno, error.hint) == ("y", 2, "declare it first: y : Tensor[N]")
    assert error.__cause__ is None
    assert error.__suppress_context__


def _wrong_calls(module: Any) -> list[tuple[Callable[[], Any], type[Exception], int]]:
    return [
        (lambda: module.f(), TypeError, 1),
        (lambda: module.f(torch.ones(2, 2)), ValueError, 1),
        (lambda: module.g("a"), TypeError, 0),
        (lambda: module.h, AttributeError, 1),
        (lambda: loma.check_gradients(module.g, [1.0]), TypeError, 3),
        (lambda: loma.compile(RIGHT, save="what"), ValueError, 3),  # type: ignore[arg-type]
    ]


@pytest.mark.cpu
@pytest.mark.parametrize("case", range(6))
def test_wrong_calls_show_few_frames(case: int) -> None:
    call, kind, inside = _wrong_calls(loma.compile(RIGHT))[case]
    with pytest.raises(kind) as caught:
        call()
    assert len(_frames(caught.value)) - 2 <= inside


@pytest.mark.full
def test_a_derivative_that_is_made_in_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report comes through torch's engine; of loma's frames there is one."""
    module = loma.compile(RIGHT.replace("x * x * x", "x * x * x * x * x"))
    x = torch.ones(3, requires_grad=True)
    y = module.f(x).sum()

    def refused(self: TensorDerivatives, primal: Any) -> Any:
        raise errors.NotDifferentiable("no derivative of this", primal.span)

    monkeypatch.setattr(TensorDerivatives, "_joint", refused)
    (grad,) = torch.autograd.grad(y, x, create_graph=True)  # which does not ask for it yet
    with pytest.raises(errors.NotDifferentiable, match="no derivative of this") as caught:
        torch.autograd.grad(grad.sum(), x)
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files[0] == __file__
    assert [name for name in files if f"{os.sep}loma{os.sep}" in name] == files[-1:]
    assert caught.value.path == "<text>"
    assert "2 | def f(x : In[Tensor[N]])" in str(caught.value)
