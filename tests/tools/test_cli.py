"""The ``loma`` command as a user and as a program sees it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import loma
from conftest import ROOT
from loma import pipeline
from loma.tools import cli
from loma.tools.check import GradientReport, check_gradients

PROGRAM = """\
def halve(x : In[float]) -> float:
    return x / 2.0

def scale(x : In[Tensor[N, M]], w : In[Tensor[M]], c : In[float], n : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] += halve(x[i, j] * w[j]) * c
    return y

def shifted(x : In[Tensor[N]], y : In[Tensor[M]]) -> Tensor[N]:
    z : Tensor[N]
    z[i] = x[i] + y[i + 1]
    return z

d_scale = rev_diff(scale)
"""

WRONG = """\
def f(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i] * z
    return y
"""

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """``run("show", file)``: the command in this process, as if in a pipe."""
    return lambda *arguments: CliRunner().invoke(cli.main, [str(a) for a in arguments])


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "scale.loma"
    file.write_text(PROGRAM, encoding="utf-8")
    return file


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    file = tmp_path / "wrong.loma"
    file.write_text(WRONG, encoding="utf-8")
    return file


# ----------------------------------------------------------------------------------- commands


def test_build_lists_what_can_be_called(run: Run, program: Path) -> None:
    result = run("build", program)
    assert result.exit_code == 0, result.output
    first, *functions, last = result.output.splitlines()
    assert first == str(program)
    assert last.startswith("built in ")
    assert [line.split("(")[0] for line in functions] == [
        "  def halve",
        "  def scale",
        "  def shifted",
        "  def d_scale",
    ]
    assert functions[1].endswith("-> Tensor[N]")


def test_build_json(run: Run, program: Path) -> None:
    record = json.loads(run("build", "--json", program).stdout)
    assert record["ok"] is True
    (module,) = record["modules"]
    assert module["path"] == str(program)
    assert list(module["functions"]) == ["halve", "scale", "shifted", "d_scale"]


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("parsed", "def scale("),
        ("adjoint", "def d_scale("),
        ("optimised", "def d_scale("),
        ("cpp", "#include"),
    ],
)
def test_show_every_stage(run: Run, program: Path, stage: str, expected: str) -> None:
    result = run("show", "--stage", stage, program)
    assert result.exit_code == 0, result.output
    assert expected in result.output
    assert "\x1b[" not in result.output


def test_show_one_function(run: Run, program: Path) -> None:
    text = run("show", "--stage", "adjoint", program, "d_scale").output
    assert "def d_scale(" in text
    assert "def halve(" not in text
    record = json.loads(run("show", "--json", program, "scale").stdout)
    assert record["stage"] == "parsed"
    assert record["function"] == "scale"
    assert record["text"].lstrip().startswith("def scale(")


UNASKED = """\
def inner(x : In[Tensor[N]]) -> Tensor[N]:
    return tanh(x)

def outer(x : In[Tensor[N]], d_inner : In[float]) -> Tensor[N]:
    return d_inner * inner(x)

def number(n : In[int]) -> int:
    return 2 * n

def started(x : In[float], y : Out[float]):
    y = x * y
"""


def test_show_has_adjoints_that_the_program_does_not_ask_for(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "unasked.loma"
    file.write_text(UNASKED, encoding="utf-8")

    def heads(*arguments: object) -> list[str]:
        result = run("show", *arguments)
        assert result.exit_code == 0, result.output
        return re.findall(r"^def (\w+)\(", result.output, re.M)

    own = ["inner", "outer", "number", "started"]
    assert heads(file) == own
    # of what no other function calls, and has a derivative
    called = ["inner__forward", "inner__backward"]
    assert heads("--stage", "adjoint", file) == [*own, *called, "d_outer"]
    assert heads("--stage", "adjoint", file, "inner") == ["inner", "d_inner"]
    assert heads("--stage", "adjoint", file, "d_inner") == ["d_inner"]
    assert heads("--stage", "adjoint", file, "number") == ["number"]
    assert heads("--stage", "kernels", file, "d_outer") == ["d_outer"]
    refused = run("show", "--stage", "adjoint", file, "started")
    assert refused.exit_code == 1
    assert "needs the value that its Out argument 'y' has on entry" in refused.stderr
    early = run("show", file, "d_outer")
    assert early.exit_code == 2
    assert "write d_outer = rev_diff(outer) into it" in " ".join(early.stderr.split())


def test_show_has_a_function_with_the_adjoint_that_the_program_names(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "named.loma"
    file.write_text(
        "class Pair:\n    a : Tensor[N]\n    b : Tensor[N]\n\n"
        "def f(p : In[Pair]) -> Tensor[N]:\n    return p.a * p.b\n\n"
        "def g(p : In[Pair]) -> Tensor[N]:\n    return p.a + p.b\n\nslope = rev_diff(f)\n"
    )
    text = run("show", "--stage", "adjoint", file, "f").output
    assert re.findall(r"^def (\w+)\(", text, re.M) == ["f", "slope"]
    text = run("show", "--stage", "adjoint", file, "g").output
    assert re.findall(r"^def (\w+)\(", text, re.M) == ["g", "d_g"]
    assert "d_g" not in run("show", "--stage", "adjoint", file).output


def test_help_of_show_describes_every_stage(run: Run) -> None:
    text = run("show", "--help").output
    for stage in pipeline.STAGES:
        assert re.search(rf"^ +{stage} +\w", text, re.M), stage
    for example in re.findall(r"^ +loma show .*", text, re.M):
        words = example.split()[2:]
        cli.show.make_context("show", [__file__ if w == "squash.loma" else w for w in words])


def test_show_of_an_unknown_function_names_the_nearest(run: Run, program: Path) -> None:
    result = run("show", program, "scala")
    assert result.exit_code == 2
    assert "has no function 'scala': did you mean 'scale'?" in " ".join(result.stderr.split())


def test_check_passes(run: Run, program: Path) -> None:
    result = run("check", program, "scale", "--shapes", "x=4,3", "--arg", "c=0.5", "--arg", "n=1")
    assert result.exit_code == 0, result.output
    assert "scale: gradients agree with central differences" in result.output
    assert "x: 12 elements" in result.output
    assert "w: 3 elements" in result.output
    assert "c: 1 elements" in result.output


@pytest.mark.full
def test_check_of_a_derivative_checks_second_derivatives(run: Run, program: Path) -> None:
    result = run("check", program, "d_scale")
    assert result.exit_code == 0, result.output


def test_check_json(run: Run, program: Path) -> None:
    result = run("check", "--json", program, "scale", "--size", "N=5")
    record = json.loads(result.stdout)
    assert record["ok"] is True
    assert record["function"] == "scale"
    shapes = {argument["name"]: argument["shape"] for argument in record["arguments"]}
    assert shapes["x"][0] == 5


def test_check_without_a_function_checks_all(run: Run, program: Path) -> None:
    result = run("check", program, "--size", "N=4", "--size", "M=5", "--int", "n=3")
    assert result.exit_code == 0, result.output
    reports = [line for line in result.output.splitlines() if not line.startswith(" ")]
    assert reports == [
        "scale: gradients agree with central differences (relative tolerance 1e-06)",
        "shifted: gradients agree with central differences (relative tolerance 1e-06)",
        "halve: not checked: a scalar function",
    ]
    record = json.loads(run("check", "--json", program, "--size", "M=2", "--size", "N=4").stdout)
    assert [report["function"] for report in record["functions"]] == ["scale"]
    assert record["skipped"].keys() == {"halve", "shifted"}  # M is too small for shifted
    unknown = run("check", program, "--size", "Q=2")
    assert unknown.exit_code == 2
    assert "no function has an argument or a size 'Q'" in unknown.stderr


def test_check_fails_with_exit_code_1(
    run: Run, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strict(
        function: Callable[..., object], arguments: Mapping[str, object], **options: Any
    ) -> GradientReport:
        return check_gradients(function, arguments, **(options | {"tolerance": -1.0}))

    monkeypatch.setattr("loma.tools.check.check_gradients", strict)
    result = run("check", program, "scale")
    assert result.exit_code == 1
    assert "FAIL x" in result.output
    assert json.loads(run("check", "--json", program, "scale").stdout)["ok"] is False
    assert run("check", program, "--size", "M=6").exit_code == 1


# ------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("command", [["build"], ["show"], ["show", "--stage", "cpp"]])
def test_a_wrong_program_is_reported_once_without_traceback(
    run: Run, wrong: Path, command: list[str]
) -> None:
    result = run(*command, wrong)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("error: ") == 1
    assert f"{wrong}:3:19: error: " in result.stderr
    assert "    3 |     y[i] = x[i] * z\n      |                   ^\n" in result.stderr
    assert "Traceback" not in result.output


def test_a_wrong_program_as_json(run: Run, wrong: Path) -> None:
    result = run("build", "--json", wrong)
    assert result.exit_code == 1
    assert result.stderr == ""
    record = json.loads(result.stdout)
    assert record["ok"] is False
    assert record["error"]["path"] == str(wrong)
    assert record["error"]["line"] == 3
    assert record["error"]["column"] == 19
    assert record["error"]["kind"] == "UndeclaredVariable"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "x=2"], "'x' has 2 dimensions, but the given shape has 1: [2]"),
        (["--shapes", "x=2,a"], "'x=2,a' is not of the form name=2,3"),
        (["--shapes", "q=2,3"], "scale has no tensor argument 'q': it has x, w"),
        (["--size", "N=two"], "'N=two' is not name=an integer"),
        (["--arg", "c=half"], "'c=half' is not name=a number"),
        (["--arg", "n=1.5"], "'n' is an int, got 1.5"),
    ],
)
def test_a_wrong_command_line_has_exit_code_2(
    run: Run, program: Path, arguments: list[str], message: str
) -> None:
    result = run("check", program, "scale", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_missing_files_functions_and_options(run: Run, program: Path) -> None:
    missing = run("build", "nowhere.loma")
    assert missing.exit_code == 2
    assert "'nowhere.loma' does not exist" in missing.stderr
    unknown = run("check", program, "scal")
    assert unknown.exit_code == 2
    assert "has no function 'scal': did you mean 'scale'?" in " ".join(unknown.stderr.split())
    assert run("show", "--stage", "lowered", program).exit_code == 2
    assert run("frobnicate").exit_code == 2


def test_text_that_is_not_utf8(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "latin.loma"
    file.write_bytes(b"# caf\xe9\n")
    result = run("show", file)
    assert result.exit_code == 1
    assert f"{file} is not UTF-8 text" in result.stderr


@pytest.mark.parametrize("command", ["show", "build"])
def test_text_with_a_nul(run: Run, tmp_path: Path, command: str) -> None:
    file = tmp_path / "nul.loma"
    file.write_bytes(b"def f():\n    pass\0\n")
    result = run(command, file)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{file}:2:9: error: U+0000 cannot be part of")


def test_check_of_a_scalar_function_says_what_to_do(run: Run, program: Path) -> None:
    result = run("check", program, "halve")
    assert result.exit_code == 2
    assert "'halve' is a scalar function" in " ".join(result.stderr.split())
    unknown = run("check", program, "zzz")
    assert "it has halve, scale, shifted, d_scale" in " ".join(unknown.stderr.split())
    early = run("show", program, "d_scale")
    assert early.exit_code == 2
    assert "'d_scale' = rev_diff(scale) is made after" in " ".join(early.stderr.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["show"]])
def test_a_full_disk_is_one_message(program: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "loma", *arguments]
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*command, str(program)] if arguments == ["show"] else command,
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "No space left" in result.stderr


def test_a_call_that_fails_is_reported_without_traceback(run: Run, program: Path) -> None:
    result = run("check", program, "shifted", "--size", "N=4", "--size", "M=4")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: shifted")
    assert "Traceback" not in result.output
    assert run("check", program, "shifted", "--size", "N=4", "--size", "M=5").exit_code == 0


def test_no_compiler_is_one_clear_message(tmp_path: Path) -> None:
    file = tmp_path / "fresh.loma"
    file.write_text("def f(x : In[Tensor[N]]) -> Tensor[N]:\n    return x + 0.125\n")
    result = subprocess.run(
        [sys.executable, "-m", "loma", "build", str(file)],
        cwd=ROOT,
        env=os.environ | {"LOMA_CXX": "no-such-compiler", "LOMA_CACHE_DIR": str(tmp_path / "c")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "no-such-compiler" in result.stderr
    assert "Traceback" not in result.stderr


# --------------------------------------------------------------------------------------- cache


def test_cache_info_and_clear(
    run: Run, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOMA_CACHE_DIR", str(tmp_path / "cache"))
    empty = json.loads(run("cache", "info", "--json").stdout)
    assert empty["ok"] is True
    assert empty["path"] == str(tmp_path / "cache")
    assert str(tmp_path / "cache") in run("cache", "info").output
    cleared = run("cache", "clear")
    assert cleared.exit_code == 0
    assert cleared.output == "removed 0 entries\n"


# ------------------------------------------------------------------------- terminal and pipe


def _in_terminal(*arguments: str, **environment: str) -> bytes:
    """What ``loma`` writes to a terminal."""
    leader, follower = pty.openpty()
    variables = {"TERM": "xterm-256color", "COLUMNS": "100", **environment}
    inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    child = subprocess.Popen(
        [sys.executable, "-m", "loma", *arguments],
        cwd=ROOT,
        env=inherited | variables,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    output = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        output += chunk
    os.close(leader)
    child.wait()
    return output


def test_colours_on_a_terminal_only_and_not_where_unwanted(program: Path, wrong: Path) -> None:
    assert b"\x1b[" in _in_terminal("show", str(program))
    assert b"\x1b[" not in _in_terminal("show", str(program), NO_COLOR="1")
    assert b"\x1b[1;31merror: \x1b[0m" in _in_terminal("show", str(wrong))


def test_the_tab_key_completes_functions(program: Path, wrong: Path) -> None:
    def completed(command: click.Command, *words: object, incomplete: str = "") -> list[str]:
        found = ShellComplete(cli.main, {}, "loma", "_LOMA_COMPLETE").get_completions(
            [str(command.name), *map(str, words)], incomplete
        )
        return [item.value for item in found]

    for command in (cli.show, cli.check, cli.bench):
        assert completed(command, program) == ["halve", "scale", "shifted", "d_scale"]
        assert completed(command, program, incomplete="s") == ["scale", "shifted"]
        assert completed(command, program.with_name("nowhere.loma")) == []
    assert completed(cli.show, wrong) == ["f"]
    assert "_LOMA_COMPLETE=bash_source loma" in CliRunner().invoke(cli.main, ["--help"]).output


def test_help_is_quick_and_everywhere(run: Run) -> None:
    for command in ([], ["build"], ["show"], ["check"], ["cache"], ["cache", "info"]):
        result = run(*command, "--help")
        assert result.exit_code == 0
        assert result.output.startswith("Usage: ")
    version = run("--version")
    assert version.exit_code == 0
    assert version.output == f"loma, version {loma.__version__}\n"


def test_the_backend_is_not_needed_to_show_a_derivative(
    run: Run, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loma.compiler.load", lambda *_: pytest.fail("compiled"))
    assert run("show", "--stage", "adjoint", program).exit_code == 0
