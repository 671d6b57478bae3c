"""The benchmarks run, on tiny sizes: every row is there. What they measure is not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import fresh
import pytest

from conftest import ROOT

from loma.frontend import parse

FOLDER = ROOT / "benchmarks"
EAGER, KEEPING = "eager PyTorch", "eager PyTorch, memory kept"
COMPILE, LOMA, NATIVE = "torch.compile", "loma", "loma, C++ program"
PEERS = {EAGER, KEEPING, COMPILE, LOMA}


def script(name: str, *args: str) -> str:
    done = fresh.run([FOLDER / f"{name}.py", *args], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, str]:
    """(results, folder with the pages, what was printed) of a quick run of everything."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "docs").mkdir()
    for page in ("README.md", "docs/performance.md"):
        text = "before\n<!-- benchmarks -->\nold\n<!-- /benchmarks -->\nbehind\n"
        (root / page).write_text(text, encoding="utf-8")
    file = root / "results.json"
    printed = script("run_all", "--quick", "--json", str(file), "--root", str(root))
    return json.loads(file.read_text(encoding="utf-8")), root, printed


def rows(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        row["key"]: row for name in ("capsules", "layers", "capsnet", "training")
        for row in results["benchmarks"][name]["rows"]
    }  # fmt: skip


@pytest.mark.full
def test_every_figure_is_measured(measured: tuple[dict[str, Any], Path, str]) -> None:
    found = rows(measured[0])
    assert set(found) >= {
        "routing forward", "routing forward + backward", "per_pixel",
        "capsnet forward + backward", "capsnet inference", "capsnet training step",
    }  # fmt: skip
    for key, row in found.items():
        peers = PEERS | ({NATIVE} if key == "capsnet forward + backward" else set())
        assert set(row["groups"]) == peers
        assert set(row["ratios"]) == peers - {LOMA}
        for group in row["groups"].values():
            assert group["seconds"] > 0
            assert group["peak_memory"] > 2**20
            assert len(group["samples"]) == 1


@pytest.mark.full
def test_the_index_statements_are_measured(
    measured: tuple[dict[str, Any], Path, str],
) -> None:
    results, root, _ = measured
    found = results["benchmarks"]["index_statements"]["rows"]
    assert len(found) >= 4  # some statements, each forward and with backward
    for row in found:
        assert set(row["groups"]) == {EAGER, COMPILE, LOMA}
        assert set(row["ratios"]) == set(row["goals"]) == {EAGER, COMPILE}
    summary = f"| {len(found)} index statements, one by one |"
    assert summary in (root / "README.md").read_text(encoding="utf-8")


@pytest.mark.full
def test_the_spellings_are_measured(measured: tuple[dict[str, Any], Path, str]) -> None:
    results, root, _ = measured
    found = results["benchmarks"]["spellings"]["rows"]
    assert len(found) >= 4  # some layers, in inference and with backward
    for row in found:
        times = row["spellings"]
        assert len(times) >= 4
        assert row["fastest"]["seconds"] == min(times.values())
        assert row["groups"][LOMA]["seconds"] == max(times.values())
        assert row["title"] in (root / "docs/performance.md").read_text(encoding="utf-8")


@pytest.mark.full
def test_programs_in_plain_loops_are_those_of_pytorch() -> None:
    """It ends where values or gradients differ."""
    printed = script("loops/plain_loops", "--quick", "--threads", "1")
    text = (FOLDER / "loops" / "plain_loops.loma").read_text(encoding="utf-8")
    assert len(printed.splitlines()) == 1 + 2 * len(parse(text).functions)


def test_every_layer_has_its_spellings() -> None:
    """One file a layer, whose functions that are no helpers take the same arguments."""
    files = sorted((FOLDER / "spellings").glob("*.loma"))
    assert len(files) >= 15
    script = (FOLDER / "spellings.py").read_text(encoding="utf-8")
    for file in files:
        assert f'Layer("{file.stem}"' in script
        module = parse(file.read_text(encoding="utf-8"))
        own = [f for f in module.functions if not f.name.startswith("_")]
        assert len(own) >= 4, file.name
        assert len({(f.params, f.results) for f in own}) == 1, file.name


@pytest.mark.full
def test_results_say_what_they_were_measured_on(
    measured: tuple[dict[str, Any], Path, str],
) -> None:
    found = measured[0]["environment"]
    assert found["cpus"] >= 1
    assert {"torch", "python", "numpy"} <= set(found["versions"])
    assert found["date"]
    assert found["compiler"]


@pytest.mark.full
def test_pages_and_picture_are_written(measured: tuple[dict[str, Any], Path, str]) -> None:
    results, root, _ = measured
    for page in ("README.md", "docs/performance.md"):
        text = (root / page).read_text(encoding="utf-8")
        assert text.startswith(
            "before\n<!-- benchmarks -->\n|" if page == "README.md" else "before"
        )
        assert text.endswith("<!-- /benchmarks -->\nbehind\n")
        assert "old" not in text.splitlines()
        for row in rows(results).values():
            assert not row["goals"] or f"| {row['title']} |" in text
        assert results["environment"]["versions"]["torch"] in text
    picture = (root / "docs/images/performance.png").read_bytes()
    assert picture.startswith(b"\x89PNG")


@pytest.mark.full
def test_rendering_again_changes_nothing(measured: tuple[dict[str, Any], Path, str]) -> None:
    _, root, _ = measured
    before = (root / "README.md").read_text(encoding="utf-8")
    script("run_all", "--render", "--json", str(root / "results.json"), "--root", str(root))
    assert (root / "README.md").read_text(encoding="utf-8") == before


@pytest.mark.full
def test_a_script_measures(tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    script("layers", "--quick", "--json", str(file))
    for row in json.loads(file.read_text(encoding="utf-8"))["rows"]:
        assert set(row["groups"]) == PEERS


@pytest.mark.full
def test_an_unknown_case_is_refused() -> None:
    command = [sys.executable, str(FOLDER / "capsules.py"), "--case", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "no case 'nothing': there are routing forward" in done.stderr


@pytest.mark.full
def test_optimisers_are_measured(measured: tuple[dict[str, Any], Path, str]) -> None:
    found = {row["key"]: row for row in measured[0]["benchmarks"]["optimisers"]["rows"]}
    assert set(found["momentum capsnet"]["groups"]) == {EAGER, COMPILE, LOMA}
    assert set(found["momentum many"]["groups"]) == {EAGER, LOMA}


@pytest.mark.full
def test_a_gpu_is_measured_with_right_results(tmp_path: Path) -> None:
    """Without one: the results of all forms, those of the networks' layers apart."""
    file = tmp_path / "gpu.json"
    names = ["softmax", "cross_entropy", "swiglu", "calls"]
    printed = script("gpu", "--quick", "--device", "cpu", "--json", str(file), "--rows", *names)
    found = {row["key"]: row for row in json.loads(file.read_text(encoding="utf-8"))["rows"]}
    assert {"softmax forward", "swiglu forward + backward", "call softmax"} <= set(found)
    for row in found.values():
        assert "loma" in row["errors"], printed
        assert not row["notes"]


def test_scripts_explain_themselves() -> None:
    """All in one process, since each would import torch."""
    names = ["run_all", "capsules", "layers", "capsnet", "training", "optimisers"]
    names += ["convolution", "index_statements"]
    program = f"""
import runpy, sys
sys.path.insert(0, {str(FOLDER)!r})
for name in {names}:
    sys.argv = [name, "--help"]
    try:
        runpy.run_path({str(FOLDER)!r} + f"/{{name}}.py", run_name="__main__")
    except SystemExit as end:
        print(f"<{{end.code}}>")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    pages = done.stdout.split("<0>\n")
    assert len(pages) == len(names) + 1, done.stdout + done.stderr
    for name, page in zip(names, pages, strict=False):
        assert {"--rounds", "--threads", "--json", "--quick"} <= set(page.split()), name


def test_the_tables_and_pictures_of_searches(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one = {
        "program": "softmax", "function": "operator", "sizes": {"N": 8}, "dtype": "float32",
        "choices": {"team of y": 1}, "usual": 2e-3, "tuned": 1.5e-3, "spent": 30.0, "threads": 2,
        "processor": "a CPU", "compiler": "g++", "loma": "", "text": "", "device": "cpu",
        "history": [[3.0, 0.9, 0.9], [8.0, 1.2, 0.9], [15.0, 0.75, 0.75]],
        "peers": {"loma": 1.5e-3, "eager softmax": 4e-3, "torch.compile softmax": 3e-3},
    }  # fmt: skip
    files = [tmp_path / "cpu.json", tmp_path / "gpu.json"]
    files[0].write_text(json.dumps([one]))
    files[1].write_text(json.dumps([{**one, "device": "cuda", "history": []}]))
    plot = tmp_path / "plot.png"
    printed = script("tuning", "--read", *map(str, files), "--plot", str(plot))
    _, _, cpu, gpu = printed.strip().splitlines()
    best = "3 torch.compile softmax"
    assert cpu == f"| CPU | softmax | 2 | 1.8 | 1.5 | 1.5 | 1.5 | {best} | 3 |"
    assert gpu == f"| GPU | softmax | 2 | 2 | 2 | 2 | 1.5 | {best} | 0 |"
    assert plot.exists()
    assert plot.with_stem("plot-dark").exists()
