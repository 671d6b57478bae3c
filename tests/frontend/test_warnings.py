"""Programs that say what they may not mean: which warn, where, and who sees it."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import fresh
import pytest
import torch
from click.testing import CliRunner
from corpus import scalar_programs, tensor_programs

import loma
from conftest import GOLDEN, ROOT
from loma import errors
from loma.frontend import parse
from loma.tools import cli

MISSPELT = """\
def f(X : In[Tensor[N, M]]) -> Tensor[N, M]:
    Y : Tensor[N, M]
    Y[n, m] += X[n, mm]
    return Y
"""
REPORT = """\
<text>:3:21: warning: this sums over 'mm', while index 'm' of the target is not on the right
    3 |     Y[n, m] += X[n, mm]
      |                     ^^
  <text>:3:10: note: 'm' is here only
    3 |     Y[n, m] += X[n, mm]
      |          ^
  hint: write 'm' if that is meant; else give 'mm' a name that is less like 'm'"""

# ------------------------------------------------------------------------------------- which warn


def test_every_warning(request: pytest.FixtureRequest) -> None:
    """tests/golden/program_warnings.txt: ``=== name``, a program, ``---`` and what it warns of."""
    path = GOLDEN / "program_warnings.txt"
    blocks = []
    text = path.read_text(encoding="utf-8")
    for block in re.split(r"^=== ", text, flags=re.M)[1:]:
        head, _, _ = block.partition("\n---\n")
        program = head.partition("\n")[2] + "\n"
        found = "\n".join(map(str, parse(program, "program.loma").warnings))
        blocks.append(f"=== {head}\n---\n{found}\n")
    if request.config.getoption("--update-golden"):
        path.write_text("\n".join(blocks), encoding="utf-8")
    else:
        assert "\n".join(blocks) == text


def test_no_program_of_the_project_warns() -> None:
    corpus = tensor_programs() + scalar_programs()
    assert len(corpus) > 250
    for name, text in corpus:
        if name != "conversions":  # which has a quotient of ints
            assert not parse(text).warnings, name


# ------------------------------------------------------------------------- warnings of Python


def _compile_it() -> Any:
    return loma.compile(MISSPELT)  # the line


def _line() -> int:
    lines = Path(__file__).read_text("utf-8").splitlines()
    return next(k for k, line in enumerate(lines, 1) if line.endswith("# the line"))


def test_it_is_a_warning_of_the_line_that_calls() -> None:
    with pytest.warns(loma.UserWarning) as caught:
        _compile_it()
    (record,) = caught
    assert (record.filename, record.lineno) == (__file__, _line())
    assert str(record.message) == REPORT
    assert issubclass(loma.UserWarning, UserWarning)
    warning = record.message
    assert isinstance(warning, errors.UserWarning)
    assert (warning.span.line, warning.path) == (3, "<text>")
    assert warning.hint is not None


def test_each_line_warns_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            _compile_it()
        loma.compile(MISSPELT)
    assert len(caught) == 2


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, False),
        ({"category": loma.UserWarning}, False),
        ({"category": DeprecationWarning}, True),
        ({"message": r"<text>:3:21: warning: this sums over 'mm'"}, False),
        ({"message": "this sums over"}, True),
        ({"module": re.escape(__name__) + "$"}, False),
        ({"module": "loma"}, True),
    ],
)
def test_filters(options: dict[str, Any], shown: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", **options)
        _compile_it()
    assert len(caught) == shown


def test_a_filter_makes_an_error_of_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", loma.UserWarning)
        with pytest.raises(loma.UserWarning, match="this sums over 'mm'"):
            _compile_it()


@pytest.mark.full
def test_several_programs_and_embedded_ones_warn(tmp_path: Path) -> None:
    files = [tmp_path / "a.loma", tmp_path / "b.loma"]
    for file in files:
        file.write_text(MISSPELT, encoding="utf-8")
    with pytest.warns(loma.UserWarning) as caught:
        loma.compile_many(files)
    assert [str(record.message).partition(":3:")[0] for record in caught] == list(map(str, files))
    assert {record.filename for record in caught} == {__file__}
    with pytest.warns(loma.UserWarning) as caught:

        @loma.module
        def _embedded() -> None:
            def f(X: In[Tensor[N, M]]) -> Tensor[N]:  # type: ignore[name-defined]  # noqa: F821
                y: Tensor[N]  # type: ignore[name-defined]  # noqa: F821
                y[row] += X[rwo, 0]  # type: ignore[name-defined]  # noqa: F821
                return y  # noqa: F821

    (record,) = caught
    assert record.filename == __file__
    assert str(record.message).startswith(f"{__file__}:")
    assert "y[row] += X[rwo, 0]" in str(record.message)


def test_derivatives_that_are_compiled_later_do_not_warn_again() -> None:
    text = MISSPELT.replace("X[n, mm]", "X[n, mm] * X[n, mm] * X[n, mm]")
    with pytest.warns(loma.UserWarning):
        module = loma.compile(text)
    x = torch.ones(2, 3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (dx,) = torch.autograd.grad(module.f(x).sum(), x, create_graph=True)
        (ddx,) = torch.autograd.grad(dx.sum(), x)
    assert ddx.tolist() == [[18.0] * 3] * 2


@pytest.mark.full
def test_a_program_from_the_cache_warns_again(tmp_path: Path) -> None:
    """In a process that finds what another one has compiled."""
    script = tmp_path / "script.py"
    script.write_text(
        "import loma\nfrom loma import compiler\nbuilt = []\nbuild = compiler._build\n"
        "compiler._build = lambda program: built.append(program) or build(program)\n"
        f"loma.compile({MISSPELT!r})\nprint(len(built))\n",
        encoding="utf-8",
    )
    runs = [fresh.run([script], cwd=ROOT, check=True) for _ in range(2)]
    assert runs[1].stdout == "0\n"
    for run in runs:
        assert f"{script}:6: UserWarning: {REPORT}\n" in run.stderr
        assert run.stderr.count("UserWarning") == 1


# ------------------------------------------------------------------------------ on the command line


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "sums.loma"
    file.write_text(MISSPELT, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("build FILE", marks=pytest.mark.full),
        pytest.param("show FILE", marks=pytest.mark.full),
        "show --stage kernels FILE f",
        pytest.param("show --saved FILE f", marks=pytest.mark.full),
        pytest.param("check FILE f", marks=pytest.mark.full),
        pytest.param("bench FILE f --shapes X=2,3", marks=pytest.mark.full),
    ],
)
def test_commands_show_warnings(program: Path, command: str) -> None:
    words = command.replace("FILE", str(program)).split()
    for _ in range(2):  # also when it comes from the cache
        run = fresh.run(["-m", "loma", *words], cwd=ROOT)
        assert run.returncode == 0, run.stderr
        assert run.stderr.count(REPORT.replace("<text>", str(program))) == 1
        assert run.stderr.count("arning: ") == 1
        assert "arning: " not in run.stdout


@pytest.mark.parametrize("command", [["build"], ["show", "--stage", "adjoint"]])
def test_json_has_warnings(program: Path, command: list[str]) -> None:
    found = CliRunner().invoke(cli.main, [*command, "--json", str(program)])
    assert found.exit_code == 0, found.output
    record = json.loads(found.stdout)
    record = record["modules"][0] if "modules" in record else record
    (warning,) = record["warnings"]
    assert warning == {
        "kind": "UserWarning",
        "message": "this sums over 'mm', while index 'm' of the target is not on the right",
        "path": str(program),
        "line": 3,
        "column": 21,
        "hint": "write 'm' if that is meant; else give 'mm' a name that is less like 'm'",
        "text": REPORT.replace("<text>", str(program)),
    }
    assert found.stderr == ""
