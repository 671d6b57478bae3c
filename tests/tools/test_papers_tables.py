"""The published tables are measured, on tiny sizes: every row is there, and every form is right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fresh
import pytest

from conftest import ROOT

FOLDER = ROOT / "benchmarks" / "papers"


def rows(
    name: str, tmp_path: Path, *args: str, others: Mapping[str, str] = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    """The rows of a quick run, by their keys. What was wrong in one has ended the script, and no
    form but torch.compile's, which a quick run leaves out, has a note; and ``others``, of libraries
    that are not installed."""
    file = tmp_path / "results.json"
    done = fresh.run([FOLDER / f"{name}.py", "--quick", "--json", file, *args], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["key"]: row for row in json.loads(file.read_text(encoding="utf-8"))["rows"]}
    for row in found.values():
        assert "loma" in row["milliseconds"], row
        missing = {form for form, module in others.items() if find_spec(module) is None}
        assert set(row["notes"]) == missing, row
        assert all("is not installed" in note for note in row["notes"].values()), row
    return found


def both(*names: str) -> set[str]:
    return {f"{name} {which}" for name in names for which in ("forward", "forward + backward")}


@pytest.mark.full
@pytest.mark.cpu
def test_kernels_of_capsnet(tmp_path: Path) -> None:
    found = rows("capsnet_kernels", tmp_path, "--rows", "S", "TSQUASH", "training")
    assert set(found) == both("S 2", "TSQUASH 2") | {"network training"}
    network = found["network training"]["milliseconds"]
    assert len([form for form in network if form.startswith("eager")]) == 5  # 4 of them published


@pytest.mark.full
@pytest.mark.cpu
def test_all_kernels_of_capsnet(tmp_path: Path) -> None:
    found = rows("capsnet_kernels", tmp_path)
    kernels = [f"{name} 2" for name in ("CONV1", "PCAPS", "U", "S", "B", "SQUASH", "TSQUASH")]
    assert set(found) == both(*kernels) | {"network inference", "network training"}


@pytest.mark.cpu
def test_high_order_convolution(tmp_path: Path) -> None:
    picture = tmp_path / "curves.png"
    found = rows("high_order_convolution", tmp_path, "--plot", str(picture))
    assert set(found) == both("batch 1", "batch 2")
    for file in (picture, picture.with_stem("curves-dark")):
        assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
@pytest.mark.cpu
def test_multi_scale_dense(tmp_path: Path) -> None:
    found = rows("multi_scale_dense", tmp_path, "--rows", "size", "network", "training")
    assert set(found) == both("layer 9 2 2", "network 2 7") | {"training"}
    assert set(found["layer 9 2 2 forward"]["intervals"]) == {
        "loma", "loma, in place", "eager conv2d"
    }  # fmt: skip


@pytest.mark.cpu
def test_curves_have_a_line_for_each_form_of_loma(tmp_path: Path) -> None:
    times = {"loma": 1.0, "loma, graph": 0.5, "loma, in place": 2.0, "eager conv2d": 3.0,
             "compile conv2d": 4.0, "compile conv2d, graph": 2.5}  # fmt: skip
    rows = [
        {"key": f"layer {sizes} 1 {which}", "milliseconds": times}
        for sizes in ("8 8", "2048 8", "256 256")
        for which in ("forward", "forward + backward")
    ]
    results = tmp_path / "results.json"
    results.write_text(json.dumps({"machine": "a machine", "rows": rows}), encoding="utf-8")
    picture = tmp_path / "curves.png"
    script = FOLDER / "multi_scale_dense.py"
    fresh.run([script, "--draw", results, "--plot", picture], cwd=ROOT, check=True)
    assert picture.read_bytes().startswith(b"\x89PNG")
    code = """
import json, sys
sys.path.append("benchmarks")
from papers.curves import lines_of
print(json.dumps(lines_of(json.load(open(sys.argv[1]))["rows"][::2], "milliseconds", 1.0)))
"""
    lines = json.loads(fresh.run(["-c", code, results], cwd=ROOT, check=True).stdout)
    assert {name: min(line.values()) for name, line in lines.items()} == {
        "loma": 0.5, "loma, in place": 2.0, "eager conv2d": 3.0, "torch.compile": 2.5
    }  # fmt: skip


@pytest.mark.cpu
def test_tensor_comprehensions(tmp_path: Path) -> None:
    found = rows("tensor_comprehensions", tmp_path, "--rows", "2LUT", "MLP3")
    assert set(found) == both("2LUT 3x4x5x7", "MLP3 3x5x4x3x2")


@pytest.mark.full
@pytest.mark.cpu
def test_all_of_tensor_comprehensions(tmp_path: Path) -> None:
    assert len(rows("tensor_comprehensions", tmp_path)) == 2 * 12


def test_an_unknown_row_is_refused() -> None:
    done = fresh.run([FOLDER / "capsnet_kernels.py", "--rows", "nothing"], cwd=ROOT)
    assert done.returncode == 1
    assert "no row nothing: there are CONV1" in done.stderr
