"""Small trainings by ``capsnet-loma train``, and whether two of them are the same."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fresh
import torch
from idx_files import write_folder

from capsnet_loma.training import checkpoint

ROOT = Path(__file__).resolve().parents[2]
TRAIN, TEST, BATCH = 60, 25, 10
STEPS = TRAIN // BATCH  # in an epoch
TIMES = ("seconds", "images_per_second")


def write_images(folder: Path) -> Path:
    """Images of noise that the smallest network takes; it can learn them by heart."""
    write_folder(folder, train=TRAIN, test=TEST, size=20)
    return folder


def arguments(data: Path, output: Path, *options: str) -> list[str]:
    """Of ``capsnet-loma``."""
    return [
        "train", "--network", "tiny", "--data", str(data), "--batch", str(BATCH),
        "--checkpoint-every", "2", "--output", str(output), *options,
    ]  # fmt: skip


def start(
    words: Sequence[str], code: str = "", environment: Mapping[str, str] | None = None
) -> fresh.Process | subprocess.Popen[str]:
    """``capsnet-loma`` in a process of its own, in which ``code`` runs first."""
    program = (
        f"import sys\n{code}\nfrom capsnet_loma.commands.cli import main\n"
        "main(prog_name='capsnet-loma')"
    )
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": path, **(environment or {})}
    return fresh.start(["-c", program, *words], variables)


def rows(output: Path) -> list[dict[str, str]]:
    """The metrics, without what a clock says."""
    with (output / "metrics.csv").open(newline="") as file:
        found = list(csv.DictReader(file, strict=True))
    return [{name: row[name] for name in row if name not in TIMES} for row in found]


def state(file: Path) -> dict[str, Any]:
    """What a checkpoint has, without what a clock says."""
    checkpoint.read(file)
    content: dict[str, Any] = torch.load(file, weights_only=True)
    del content["seconds"]
    content["sums"].pop("seconds")
    return content


def assert_same(output: Path, expected: Path) -> None:
    """Checkpoints and metrics of two runs are equal, to the last bit."""
    pairs = zip(rows(output), rows(expected), strict=True)
    other = [(name, row[name], whole[name]) for row, whole in pairs for name in row
             if row[name] != whole[name]]  # fmt: skip
    assert not other, other
    for name in ("last.pt", "best.pt"):
        assert_equal(state(output / name), state(expected / name), name)


def assert_equal(found: Any, expected: Any, where: str = "") -> None:
    """Dictionaries and lists of tensors and plain values are equal, to the last bit."""
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype, where
        assert torch.equal(found, expected), where
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_equal(found[key], expected[key], f"{where}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, pair in enumerate(zip(found, expected, strict=True)):
            assert_equal(*pair, f"{where}/{number}")
    else:
        assert found == expected, where
