""".ci/matrix: which rows would run here, and why others would not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT

ROWS = {"python3.12", "python3.13", "torch2.6", "torch-newest", "clang", "baseline", "aarch64"}
(PINNED,) = re.findall("(?m)^torch==(.+)$", (ROOT / "constraints.txt").read_text())
NEEDED = ("bash", "sed", "readlink", "uname", "dirname", "cat")


def listed(path: Path | str, *rows: str) -> list[tuple[str, str]]:
    environment = {"PATH": str(path), "HOME": "/nowhere"}
    command = [shutil.which("bash") or "bash", str(ROOT / ".ci" / "matrix"), "--list", *rows]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("== ").split(": ", 1) for line in done.stdout.splitlines()]
    return [(row, what) for row, what in lines]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A PATH with nothing on it that a row is about."""
    for tool in NEEDED:
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def test_a_machine_without_anything(bare: Path) -> None:
    found = dict(listed(bare))
    assert set(found) == ROWS
    assert found["python3.12"] == "skipped: no python3.12, on the PATH or of pyenv"
    assert found["clang"] == "skipped: no clang++ on the PATH"
    if os.uname().machine == "x86_64":
        assert found["aarch64"] == "skipped: no aarch64-linux-gnu-g++ on the PATH"
        assert found["baseline"].startswith("would run")
    else:
        assert found["baseline"].startswith("skipped")


def test_what_is_there_would_run(bare: Path) -> None:
    """Each compiler once, whatever names it has; no Python that does not run."""
    for tool, status in (("clang++-17", 0), ("python3.13", 0), ("python3.12", 1)):
        (bare / tool).write_text(f"#!/bin/sh\nexit {status}\n")
        (bare / tool).chmod(0o755)
    (bare / "clang++").symlink_to(bare / "clang++-17")
    found = listed(bare, "clang", "python3.13", "python3.12")
    assert found == [
        ("clang", "would run: clang++"),
        ("python3.13", f"would run: {bare / 'python3.13'}, torch {PINNED}"),
        ("python3.12", "skipped: no python3.12, on the PATH or of pyenv"),
    ]


def test_no_row_of_that_name() -> None:
    command = ["bash", str(ROOT / ".ci" / "matrix"), "--list", "python2.7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("no row is called python2.7; there are: python3.12 ")
