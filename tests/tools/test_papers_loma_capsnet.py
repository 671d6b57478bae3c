"""The figure of the student project, of results that are there; and a quick run of all versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fresh
import pytest

from conftest import ROOT

SCRIPT = ROOT / "benchmarks" / "papers" / "loma_capsnet.py"


def version(label: str, seconds: float, faults: float, peak: int) -> dict[str, Any]:
    return {
        "label": label, "peak_memory_bytes": peak, "seconds_per_iteration": {"slope": seconds},
        "minor_faults_per_iteration": {"slope": faults},
        "cache_references_per_iteration": "not available on this machine",
    }  # fmt: skip


@pytest.mark.cpu
def test_the_table_and_the_picture_of_results(tmp_path: Path) -> None:
    results = {
        "batch": 100, "threads": 2, "machine": {"processor": "a processor", "torch": "2.13.0"},
        "versions": [
            version("PyTorch", 0.2, 50_000, 1_200_000_000),
            version("loma, native C++", 0.05, -0.5, 600_000_000),
        ],
    }  # fmt: skip
    file, picture = tmp_path / "results.json", tmp_path / "picture.png"
    file.write_text(json.dumps(results), encoding="utf-8")
    done = fresh.run([SCRIPT, "--draw", file, "--plot", picture], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "| time, s | 1.368 | 3.246 (2.37x) |" in done.stdout
    assert "| time, s | 2.000 | 0.500 (0.25x) |" in done.stdout
    assert "| memory, MB | 1,200 | 600 (0.50x) |" in done.stdout
    assert "| soft page faults, thousands | 500 | 0.000 (0.00x) |" in done.stdout
    assert "| cache references, millions | – | – |" in done.stdout
    for path in (picture, picture.with_stem("picture-dark")):
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
@pytest.mark.cpu
def test_all_versions(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    done = fresh.run([SCRIPT, "--quick", "--json", file], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text(encoding="utf-8"))["versions"]
    keys = [
        each["key"] for each in found if each["key"] in ("torch", "torch-kept", "loma", "native")
    ]
    assert keys == ["torch", "torch-kept", "loma", "native"]
    assert all(each["seconds_per_iteration"]["slope"] > 0 for each in found)
