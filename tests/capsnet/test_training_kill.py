"""Trainings that are killed at random moments lose nothing but the steps since a checkpoint.

Some are killed by the clock while they start. In the others a thread waits until something has
happened so many times, and kills the process a random moment later: in a step, in validation, while
a file is written, or between two files.
"""

from __future__ import annotations

import csv
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from trainings import STEPS, arguments, assert_same, start, write_images

from capsnet_loma.training import checkpoint
from capsnet_loma.training.metrics import COLUMNS

# What a moment may follow: where it is, how often it may come in an epoch, and after how many
# seconds the process is killed.
EVENTS = {
    "a step begins": ("capsnet_loma.training.loop", "Trainer._step", STEPS, 0.02),
    "validation begins": ("capsnet_loma.training.loop", "Trainer._validated", 1, 0.02),
    "the epoch's row is added": ("capsnet_loma.training.metrics", "Metrics.add", 1, 0.02),
    "a checkpoint is made": ("capsnet_loma.training.loop", "Trainer.checkpoint", 3, 0.01),
    "a file is synced": ("os", "fsync", 6, 0.002),
    "a file is replaced": ("os", "replace", 3, 0.0005),
    "a name is linked": ("os", "link", 1, 0.0005),
}
CODE = """
import importlib, os, signal, threading, time
happened = threading.Event()
def wait():
    happened.wait()
    time.sleep({delay})
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=wait, daemon=True).start()
*path, name = {name!r}.split(".")
owner = importlib.import_module({module!r})
for part in path:
    owner = getattr(owner, part)
real, count = getattr(owner, name), 0
def counted(*arguments, **named):
    global count
    count += 1
    if count == {times}:
        happened.set()
    return real(*arguments, **named)
setattr(owner, name, counted)
"""

# It does not get beyond its first steps, however fast the machine is.
HELD = """
import threading
from capsnet_loma.training.loop import Trainer
steps = [Trainer._step] * 3
Trainer._step = lambda *rest: steps.pop()(*rest) if steps else threading.Event().wait()
"""


@pytest.mark.full
def test_killed_at_random_moments(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    kills: int = request.config.getoption("--kills")
    generator = random.Random(5)
    data = write_images(tmp_path / "images")
    # A process is killed within its first epoch: so many of them cannot reach the end.
    options = ("--epochs", str(kills + 1), "--threads", "1")
    whole, output = tmp_path / "whole", tmp_path / "run"
    begun = time.monotonic()
    process = start(arguments(data, whole, *options))
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    start_up = time.monotonic() - begun - float(_last_seconds(whole))
    names = [*EVENTS, "the clock"]
    order = generator.sample(names, len(names))  # each comes before one comes again
    reached = 0
    for number in range(kills):
        name = order[number % len(order)]
        words = arguments(data, output, *options, *(["--resume"] if number else []))
        if name == "the clock":
            moment = f"{(delay := generator.uniform(0, start_up)):.2f} s after its start"
            process = start(words, HELD)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(delay)
            process.kill()
        else:
            module, function, most, longest = EVENTS[name]
            times, delay = generator.randint(1, most), generator.uniform(0, longest)
            moment = f"{1e3 * delay:.2f} ms after this: {name}, for the {times}. time"
            code = CODE.format(module=module, name=function, times=times, delay=delay)
            process = start(words, code)
        printed, errors = process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL, (moment, printed, errors)
        now = _check(output)
        print(f"kill {number + 1}, {moment}: {now} steps are kept")
        assert now >= reached, moment
        reached = now
    process = start(arguments(data, output, *options, "--resume"))
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    assert_same(output, whole)
    assert sorted(path.name for path in output.iterdir() if path.name != ".lock") == [
        "best.pt", "last.pt", "metrics.csv", "tensorboard",
    ]  # fmt: skip


def _check(output: Path) -> int:
    """All that is there can be read; the steps that the last checkpoint has."""
    last, best = output / "last.pt", output / "best.pt"
    if not last.exists():
        assert not best.exists()
        return 0
    found = checkpoint.read(last)
    if found.best:
        assert checkpoint.read(best).epoch >= found.best["epoch"]
    if (output / "metrics.csv").exists():
        with (output / "metrics.csv").open(newline="") as file:
            _check_rows(list(csv.reader(file, strict=True)), found.epoch)
    return found.epoch * STEPS + found.step


def _check_rows(lines: Sequence[Sequence[str]], epochs: int) -> None:
    """A row for each epoch, and at most one for an epoch whose checkpoint was not written."""
    assert tuple(lines[0]) == COLUMNS
    found = [int(line[0]) for line in lines[1:]]
    assert found == list(range(1, len(found) + 1))
    assert epochs <= len(found) <= epochs + 1
    assert all(len(line) == len(COLUMNS) for line in lines)


def _last_seconds(output: Path) -> str:
    with (output / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))[-1]["seconds"]
