"""Training in several processes, started by torchrun."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import fresh
import pytest
import shared_training
import torch
from conftest import ROOT
from idx_files import write_folder

from capsnet_loma.training import checkpoint
from capsnet_loma.training.distributed import Job
from capsnet_loma.training.settings import Engine

SCRIPTS = ROOT / "tests" / "support"
LONG = 300.0  # seconds; for machines that do something else, too
BATCH = 4
TRAIN = ["-m", "capsnet_loma", "train", "--engine", "pytorch", "--network", "tiny",
         "--batch", str(BATCH), "--checkpoint-every", "2"]  # fmt: skip

# The same in a process that has torch already; its own threads compute nothing.
TORCHRUN = """
import os, sys
from torch.distributed.run import main
os.environ["OMP_NUM_THREADS"] = "1"
main(sys.argv[1:])
"""


@contextmanager
def started(processes: int, *command: str) -> Iterator[subprocess.Popen[str]]:
    """``torchrun`` with its processes; all of them have ended afterwards."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [*torchrun, "--nproc-per-node", str(processes), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            process.communicate()


def run(processes: int, *command: str) -> tuple[int, str, str]:
    """Exit code, standard output, and standard error without what torchrun writes."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    words = ["--standalone", "--nproc-per-node", processes, *command]
    return finished(fresh.start(["-c", TORCHRUN, *words], {**os.environ, "PYTHONPATH": path}))


def finished(process: subprocess.Popen[str] | fresh.Process) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=LONG)
    # torchrun logs with a letter and a date, and ends with a traceback of its own and a summary.
    own = re.split(r"^Traceback ", errors, maxsplit=1, flags=re.MULTILINE)[0]
    lines = own.splitlines(keepends=True)
    assert process.returncode is not None
    return process.returncode, output, "".join(x for x in lines if not re.match(r"[WE]\d{4} ", x))


def rank_of(process: subprocess.Popen[str], rank: int) -> psutil.Process:
    for child in psutil.Process(process.pid).children():
        if child.environ().get("RANK") == str(rank):
            found: psutil.Process = child
            return found
    raise AssertionError(f"no rank {rank}")


def wait_for(process: subprocess.Popen[str], is_there: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not is_there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_folder(folder, train=40, test=9, size=20)
    return folder


# ------------------------------------------------------------------------------------- equality


def test_two_processes_compute_what_one_does(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    full = pytestconfig.getoption("--full")
    engines: tuple[Engine, ...] = ("loma", "pytorch") if full else ("loma",)
    code, _, errors = run(2, str(SCRIPTS / "shared_training.py"), str(tmp_path), *engines)
    assert code == 0, errors
    assert errors == ""  # nothing warns
    for engine in engines:
        first, second = (torch.load(tmp_path / f"{engine}-{rank}-2.pt") for rank in range(2))
        alone = shared_training.trained(engine, Job(), tmp_path / "alone")
        assert_equal_bits(first, second)
        assert len(alone["gradients"]) == len(first["gradients"]) == shared_training.STEPS
        assert alone["gradients"][0].keys() == alone["weights"].keys()
        # Both add up the same numbers in another order.
        torch.testing.assert_close(first["gradients"], alone["gradients"], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(first["weights"], alone["weights"], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(first["rows"], alone["rows"], rtol=1e-5, atol=0.0)


def assert_equal_bits(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0.0, atol=0.0)


# --------------------------------------------------------------------------------------- endings


@pytest.mark.full
def test_an_error_of_all_processes_is_printed_once() -> None:
    code, output, errors = run(2, str(SCRIPTS / "failing_job.py"), "error")
    assert (code, output) == (1, "")
    assert errors == "capsnet-loma: the same for all\n"


@pytest.mark.full
def test_an_unexpected_error_of_one_process_ends_all() -> None:
    code, output, errors = run(2, str(SCRIPTS / "failing_job.py"), "bug")
    assert (code, output) == (1, "")
    assert errors.count("ValueError: nobody expected this") == 1
    assert "capsnet-loma:" not in errors


@pytest.mark.full
def test_the_others_name_the_process_that_was_killed() -> None:
    """Once, and not the one that is still computing when the first notices."""
    code, output, errors = run(3, str(SCRIPTS / "failing_job.py"), "killed")
    assert (code, output) == (1, "")
    assert errors == (
        "capsnet-loma: rank 1 of 3 processes has ended without a message (killed? out of memory?), "
        "and the others cannot go on alone. Start the same command again with --resume: it goes on "
        "from the last checkpoint.\n"
    )


@pytest.mark.full
def test_wrong_options_are_reported_once() -> None:
    code, output, errors = run(2, *TRAIN, "--device", "cuda:99")  # there are not so many GPUs
    assert (code, output) == (1, "")
    assert errors.count("--device cuda:99: ") == 1
    assert errors.count("Usage:") == 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("engine", ["loma", "pytorch"])
def test_two_gpus(tmp_path: Path, engine: Engine) -> None:
    """Over NCCL; the checkpoint goes on on the CPU."""
    command = [*TRAIN, "--engine", engine, "--batch", "64", "--output", str(tmp_path)]
    code, _, errors = run(2, *command, "--device", "cuda", "--epochs", "2")
    assert code == 0, errors
    code, _, errors = run(1, *command, "--resume", "--epochs", "3")
    assert code == 0, errors
    rows = (tmp_path / "metrics.csv").read_text("ascii").splitlines()
    assert len(rows) == 4


# ---------------------------------------------------------------------------------- the command


@pytest.mark.full
def test_a_batch_that_cannot_be_shared_is_reported_once(images: Path, tmp_path: Path) -> None:
    options = ["--data", str(images), "--output", str(tmp_path), "--batch", "5"]
    code, output, errors = run(2, *TRAIN, *options)
    assert (code, output) == (1, "")
    assert errors == (
        "capsnet-loma: a batch of 5 images cannot be shared equally by 2 processes: give a "
        "multiple of 2, or start another number of processes\n"
    )


@pytest.mark.full
def test_a_killed_process_leaves_a_checkpoint_that_any_number_goes_on_from(
    images: Path, tmp_path: Path
) -> None:
    options = ["--data", str(images), "--output", str(tmp_path)]
    with started(2, *TRAIN, *options, "--epochs", "1000") as process:
        wait_for(process, lambda: row_count(tmp_path) >= 2)
        rank_of(process, 0).send_signal(signal.SIGKILL)
        code, _, errors = finished(process)
    assert code == 1
    assert errors.count("capsnet-loma: rank 0 of 2 processes has ended without a message") == 1
    assert errors.count("capsnet-loma:") == 1
    epochs = checkpoint.read(tmp_path / "last.pt").epoch

    with started(2, *TRAIN, *options, "--epochs", "1000", "--resume") as process:
        wait_for(process, lambda: row_count(tmp_path) >= epochs + 2)
        process.send_signal(signal.SIGINT)
        code, output, errors = finished(process)
    assert code != 0
    assert output.count("Going on from") == 1
    assert "2 processes with 1 thread each" in output
    stopped = re.findall(r"Stopped in epoch (\d+) after step (\d+) of 10; .*", errors)
    assert len(stopped) == 1
    assert "Go on with: torchrun --nproc-per-node 2 -m capsnet_loma train " in errors
    found = checkpoint.read(tmp_path / "last.pt")
    assert (found.epoch + 1, found.step) == tuple(map(int, stopped[0]))

    command = [sys.executable, *TRAIN, *options, "--resume", "--json"]
    wanted = found.epoch + 2
    alone = subprocess.run(
        [*command, "--epochs", str(wanted)], capture_output=True, text=True, cwd=ROOT
    )
    assert alone.returncode == 0, alone.stderr
    assert json.loads(alone.stdout)["epoch"] == wanted
    assert row_count(tmp_path) == wanted


def row_count(folder: Path) -> int:
    """Epochs that the metrics have."""
    try:
        return len((folder / "metrics.csv").read_text().splitlines()) - 1
    except FileNotFoundError:
        return -1
