"""Options that are numbers: what cannot be meant is refused, with the option and its range."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import capsnet_loma.commands.cli
import loma.tools.cli
from conftest import ROOT
from loma.tools.cli_numbers import Real, Whole

PROGRAM = """\
def scale(x : In[Tensor[N]], c : In[float], n : In[int]) -> Tensor[N]:
    return x * c + n
"""


def options() -> Iterator[tuple[click.Group, list[str], click.Option]]:
    """Every option of both commands whose value is a number, by type or by default."""
    for main in (loma.tools.cli.main, capsnet_loma.commands.cli.main):
        for name, command in [("", main), *main.commands.items()]:
            for option in command.params:
                types = click.IntRange | click.FloatRange
                numbers = click.types.IntParamType | click.types.FloatParamType
                if isinstance(option, click.Option) and isinstance(option.type, types | numbers):
                    yield main, [name] if name else [], option


OPTIONS = list(options())
NAMES = {f"{' '.join(path)} {option.opts[0]}".strip() for _, path, option in OPTIONS}


def run(main: click.Command, *arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def refused(done: Result, *said: str) -> None:
    """One message, no traceback."""
    assert done.exit_code == 2, done.output
    message = " ".join(done.stderr.split())
    assert message.count("Error: ") == 1
    for part in said:
        assert part in message


def test_all_are_found() -> None:
    assert {
        "--threads", "--batch", "--seconds", "profile --threads", "train --threads",
        "train --momentum", "train --decay", "train --epochs", "train --lr", "train --weight-decay",
        "train --shift", "train --routing", "train --seed", "train --checkpoint-every",
        "train --batch", "evaluate --threads", "evaluate --batch", "figures --threads",
        "figures --digit", "bench --threads", "bench --seed", "check --tolerance",
        "check --max-elements", "check --seed",
    } <= NAMES  # fmt: skip


@pytest.mark.parametrize(
    ("main", "path", "option"),
    [pytest.param(*found, id=" ".join([*found[1], found[2].opts[0]])) for found in OPTIONS],
)
def test_every_number_has_a_range(main: click.Group, path: list[str], option: click.Option) -> None:
    kind = option.type
    assert isinstance(kind, Whole | Real)
    name = option.opts[0]
    wrong = ["nan", "inf", "-inf", "1e400", "-1", "1e39", "9" * 40, "9" * 5000, "x", "", "-"]
    wrong += ["1.5", "0x10"] if isinstance(kind, Whole) else []
    wrong += ["0"] if kind.low > 0 or kind.min_open else []
    command = main.commands[path[0]] if path else main
    for given in wrong:
        with pytest.raises(click.BadParameter) as caught:
            command.make_context("", [f"{name}={given}"])  # reads the options and runs nothing
        message = caught.value.format_message()
        assert message.startswith(f"Invalid value for '{name}': {given[:20]}")
        assert message.endswith(f"in the range {kind.range}.")
        assert len(message) < 200
    assert kind.convert(str(kind.high if not kind.max_open else kind.low), None, None) is not None
    assert kind.convert(str(kind.low if not kind.min_open else kind.high), None, None) is not None


@pytest.mark.parametrize(
    "command", [[], ["profile"], ["train"], ["evaluate"], ["figures"]], ids=" ".join
)
def test_a_hundred_thousand_threads_are_refused(command: list[str]) -> None:
    """They crashed the process."""
    done = run(capsnet_loma.commands.cli.main, *command, "--threads", "100000")
    refused(done, "Invalid value for '--threads': 100000 is not in the range 1<=x<=1024.")


# ------------------------------------------------------------------------ points of a function


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "scale.loma"
    path.write_text(PROGRAM)
    return str(path)


@pytest.mark.parametrize("given", ["nan", "inf", "-1", "1e3", "1.5", "9" * 30, "9" * 5000, "x", ""])
@pytest.mark.parametrize("command", ["check", "bench", "show"])
def test_sizes_and_shapes(file: str, command: str, given: str) -> None:
    options = ["--saved"] if command == "show" else []
    done = run(loma.tools.cli.main, command, *options, file, "scale", "--size", f"N={given}")
    refused(
        done, "Invalid value for --size", f"'N={given[:20]}", "an integer in the range 0<=x<=9223"
    )
    if command != "show" and given:
        done = run(loma.tools.cli.main, command, file, "scale", "--shapes", f"x={given}")
        refused(done, "Invalid value for --shapes", f"'x={given[:20]}", "in the range 0<=x<=9223")


@pytest.mark.parametrize("given", ["nan", "inf", "-inf", "1e400", "9" * 400, "x", ""])
def test_values_of_arguments(file: str, given: str) -> None:
    for name in ("c", "n"):
        done = run(loma.tools.cli.main, "check", file, "scale", "--arg", f"{name}={given}")
        refused(
            done, "Invalid value for --arg", f"'{name}={given[:20]}", "a number, which must be f"
        )


def test_whole_arguments_are_exact(file: str) -> None:
    """A float has 53 bits."""
    from loma.pipeline import find, parsed
    from loma.tools.cli_point import point_arguments

    function = find(parsed(PROGRAM, file), "scale")
    given: dict[str, Any] = {"shapes": "", "sizes": (), "seed": 0, "positive": False}
    found = point_arguments(function, scalars=("n=9007199254740993", "c=-3e5"), **given)
    assert (found["n"], found["c"]) == (9007199254740993, -3e5)


def test_sizes_that_no_memory_holds(file: str) -> None:
    for arguments in (["--size", "N=999999999999"], ["--shapes", f"x={2**62}"]):
        for command in ("check", "bench"):
            done = run(loma.tools.cli.main, command, file, "scale", *arguments)
            refused(done, "scale: with 'x' of shape", "GiB", "give smaller sizes")


@pytest.mark.parametrize("command", ["check", "bench"])
def test_a_result_that_no_memory_holds_is_one_line(tmp_path: Path, command: str) -> None:
    file = tmp_path / "outer.loma"
    file.write_text("""\
def outer(x : In[Tensor[N]]) -> Tensor[N, N]:
    y : Tensor[N, N]
    y[i, j] = x[i] * x[j]
    return y
""")
    done = run(
        loma.tools.cli.main, command, str(file), "outer", "--size", "N=10000000"
    )  # more than addresses
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert done.stderr.startswith("error: ")
    assert "can't allocate memory" in done.stderr or "CUDA out of memory" in done.stderr
    assert done.stderr.count("\n") == 1


# -------------------------------------------------------------------------------- benchmarks


@pytest.mark.parametrize("script", ["capsules", "specialisation"])
def test_benchmarks_have_the_same_ranges(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    file = ROOT / "benchmarks" / f"{script}.py"
    for option, given, allowed in (
        ("--threads", "100000", "1<=x<=1024"), ("--threads", "nan", "1<=x<=1024"),
        ("--rounds", "0", "1<=x<=10000"),
    ):  # fmt: skip
        monkeypatch.setattr(sys, "argv", [file.name, option, given])
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(str(file), run_name="__main__")
        assert caught.value.code == 2
        said = capsys.readouterr().err
        assert f"argument {option}: {given} is not " in said
        assert f"in the range {allowed}." in said
