"""The ``capsnet-loma`` command."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

import capsnet_loma.commands.cli as cli
from capsnet_loma.commands.device import check_processes
from capsnet_loma.profiling.compare import Comparison, Report
from capsnet_loma.profiling.processes import Checksums, Sample, Version
from capsnet_loma.profiling.profile import Measurement, Profile
from capsnet_loma.profiling.fit import linear_fit

GOOD = Comparison("squash", "[2, 3, 4]", "float64", "autograd", "d S", 1e-16, 1e-16, 1e-9)
BAD = Comparison("squash", "zero capsules", "float64", "d_f", "d S", 1e-3, 1e-3, 1e-9)


def _measurement(key: str, label: str, seconds: float) -> Measurement:
    samples = tuple(Sample(n, n * seconds, 10 * n, 0, None, None) for n in (1, 2, 3, 4))
    counts = [s.iterations for s in samples]
    return Measurement(
        Version(key, label, ()),
        Checksums(0.5, {}),
        samples,
        400 * 2**20,
        linear_fit(counts, [s.seconds for s in samples]),
        linear_fit(counts, [s.minor_faults for s in samples]),
        linear_fit(counts, [0.0] * 4),
        None,
        None,
    )


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[Comparison]:
    """Stands for compiler and processes; the comparisons that compare() returns."""
    import capsnet_loma.profiling.compare
    import capsnet_loma.layers
    import capsnet_loma.native_program
    import capsnet_loma.profiling.profile
    from capsnet_loma.config import CapsNetConfig

    found = [GOOD]
    torch_, loma_ = _measurement("torch", "PyTorch", 0.2), _measurement("loma", "loma", 0.1)

    def profile(program: Path, *, batch: int, threads: int | None, **_: Any) -> Profile:
        return Profile(batch, threads or 2, CapsNetConfig(), (torch_, loma_))

    monkeypatch.setattr(capsnet_loma.layers, "compile_layers", lambda names, progress: None)
    monkeypatch.setattr(
        capsnet_loma.profiling.compare, "compare", lambda *a, **k: Report(tuple(found))
    )
    monkeypatch.setattr(capsnet_loma.native_program, "build", lambda folder: folder / "program")
    monkeypatch.setattr(capsnet_loma.profiling.profile, "profile", profile)
    return found


def test_main_job(results: list[Comparison], tmp_path: Path) -> None:
    folder = tmp_path / "results"
    done = CliRunner().invoke(cli.main, ["--output", str(folder), "--batch", "7"])
    assert done.exit_code == 0, done.output
    assert "All 1 tensors agree within the tolerance." in done.stdout
    assert "one batch of 7" in done.stdout
    assert "0.50x" in done.stdout
    assert "Cache references and misses: not available on this machine." in done.stdout
    assert "\x1b" not in done.stdout
    for name in ("profile.png", "profile.json", "compare.json"):
        assert str(folder / name) in done.stdout
        assert (folder / name).exists()


def test_json_alone(results: list[Comparison], tmp_path: Path) -> None:
    for command in ([], ["compare"], ["profile"]):
        options = [] if command == ["compare"] else ["--output", str(tmp_path)]
        done = CliRunner().invoke(cli.main, [*command, "--json", *options])
        assert done.exit_code == 0, done.output
        json.loads(done.stdout)


def test_wrong_gradient_ends_with_1(results: list[Comparison], tmp_path: Path) -> None:
    results.append(BAD)
    done = CliRunner().invoke(cli.main, ["compare"])
    assert done.exit_code == 1
    assert "1 of 2 tensors are beyond the tolerance:" in done.stdout
    assert "squash (zero capsules, float64, d_f): d S is off by 1.0e-03" in done.stdout
    assert CliRunner().invoke(cli.main, ["--output", str(tmp_path)]).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "3", "compare"], "--batch belongs after 'compare'"),
        (["--json", "profile"], "--json belongs after 'profile'"),
        (["profile", "--device", "gpu"], "'gpu' is no device: give cpu, cuda, or cuda:N"),
        (["compare", "--device", "cuda:x"], "'cuda:x' is no device"),
        (["compare", "--function", "squish"], "there is no such layer; there are convolution,"),
        (["profile", "--batch", "0"], "0 is not in the range 1<=x<=1000000"),
    ],
)
def test_wrong_use_ends_with_2(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(cli.main, arguments)
    assert done.exit_code == 2
    assert message in done.stderr


COMMANDS = [[], ["compare"], ["profile"], ["train"], ["evaluate"], ["figures"]]


def test_what_the_extra_brings_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in ("matplotlib", "sklearn") else find(name, *rest),
    )
    done = CliRunner().invoke(cli.main, ["compare"])
    assert done.exit_code == 1
    assert "not installed: matplotlib, scikit-learn; install it by" in done.stderr
    assert "'loma-torch[capsnet]'" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_no_gpu(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One message, before anything is done."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for is_built, reason in ((False, "is built without CUDA"), (True, "sees no GPU here")):
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda found=is_built: found)
        done = CliRunner().invoke(cli.main, [*command, "--device", "cuda"])
        assert done.exit_code == 2
        assert f"--device cuda: torch {torch.__version__} {reason}" in done.stderr
        assert "Run it with --device cpu" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_no_such_gpu(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for count, there in ((1, "cuda:0 only"), (4, "cuda:0 to cuda:3")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda found=count: found)
        done = CliRunner().invoke(cli.main, [*command, "--device", "cuda:7"])
        assert done.exit_code == 2
        assert f"--device cuda:7: there is no such GPU here, there is {there}." in done.stderr


def test_processes_do_not_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for processes, device in (("1", "cuda:1"), ("2", "cuda"), ("4", "cpu")):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        check_processes(device)
    for processes, device, message in (
        ("2", "cuda:1", "2 processes cannot share a GPU"),
        ("3", "cuda", "3 processes on a machine with 2 GPUs"),
    ):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        with pytest.raises(click.UsageError, match=f"--device {device}: {message}"):
            check_processes(device)


@pytest.mark.parametrize("command", [[], ["compare"], ["profile"]])
def test_help(command: list[str]) -> None:
    done = CliRunner().invoke(cli.main, [*command, "--help"])
    assert done.exit_code == 0
    assert "--json" in done.stdout


def test_interrupted_while_modules_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading torch takes a second or two, in which Ctrl-C is no less likely than later."""

    class Interrupting:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "capsnet_loma.data":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "capsnet_loma.data", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    done = CliRunner().invoke(cli.main, ["compare"])
    assert done.exit_code == 130
    assert done.stderr == "capsnet-loma: interrupted\n"
