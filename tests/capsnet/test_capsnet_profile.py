"""``capsnet-loma profile``: processes, regression, agreement of the results, the picture."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from capsnet_loma.profiling import processes
from capsnet_loma.profiling.cases import SMALL_NETWORK
from capsnet_loma.profiling.plots import plot_profile
from capsnet_loma.profiling.processes import Checksums, Process, ProfileError, Version
from capsnet_loma.profiling.profile import check_agreement, make_inputs, plan, profile


@pytest.mark.parametrize("iteration_seconds", [1e-6, 0.01, 0.5, 2.0, 30.0])
def test_plan_keeps_to_the_time(iteration_seconds: float) -> None:
    counts, rounds = plan(iteration_seconds, 20.0)
    assert len(counts) * rounds >= 6
    shortest = 2 * 6 * iteration_seconds
    assert sum(counts) * rounds * iteration_seconds <= max(20.0, shortest) * 1.01
    assert counts[-1] >= 3 * counts[0]


@pytest.mark.full
@pytest.mark.parametrize("native", [False, True])
def test_all_versions(tmp_path: Path, native: bool) -> None:
    from capsnet_loma.native_program import build

    program = (lambda: build(tmp_path)) if native else None
    result = profile(program, SMALL_NETWORK, batch=4, threads=1, seconds=0.2)
    keys = [m.version.key for m in result.measurements]
    assert keys[0] == "torch"
    assert keys[-1 - native :] == ["loma", "native"][: 1 + native]
    for m in result.measurements:
        assert m.seconds.low <= m.seconds.slope <= m.seconds.high
        assert m.peak_memory > 10 * 2**20
        assert len({s.iterations for s in m.samples}) >= 3  # fewer on a slow machine
    data = json.loads(json.dumps(result.to_json()))
    assert data["versions"][0]["time_ratio"] == 1.0
    plot_profile(result, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_allocator_is_preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where jemalloc is installed, PyTorch runs with it too: here libm stands for it."""
    monkeypatch.setattr(processes, "allocators", lambda: {"jemalloc": "libm.so.6"})
    found = processes.versions(tmp_path / "inputs", SMALL_NETWORK, 1)
    assert [v.label for v in found] == ["PyTorch", "PyTorch + jemalloc", "loma from Python"]
    torch.save(make_inputs(SMALL_NETWORK, 2), tmp_path / "inputs")
    program = (
        "import json, os\n"
        "print(json.dumps({'loss': 'libm' in os.environ['LD_PRELOAD'], 'gradients': {}}))"
    )
    version = dataclasses.replace(found[1], command=(found[1].command[0], "-c", program))
    with Process(version, 1) as process:
        assert process.checksums.loss == 1


def test_another_result_is_refused() -> None:
    first = Checksums(0.5, {"w": (0.1, 2.0)})
    check_agreement([("PyTorch", first), ("loma", Checksums(0.500001, {"w": (0.10001, 2.0)}))])
    for other, message in (
        (Checksums(0.6, {"w": (0.1, 2.0)}), "loss 0.6, not 0.5"),
        (Checksums(0.5, {"w": (0.2, 2.0)}), "gradient of w: sum and absolute sum"),
        (Checksums(0.5, {}), "gradients of w in one of the two only"),
        (Checksums(float("nan"), {"w": (0.1, 2.0)}), "loss nan, not 0.5"),
        (Checksums(0.5, {"w": (float("nan"), 2.0)}), "gradient of w"),
    ):
        with pytest.raises(ProfileError, match="loma does not compute what PyTorch computes") as e:
            check_agreement([("PyTorch", first), ("loma", other)])
        assert message in str(e.value)


def test_a_process_that_fails_is_named() -> None:
    command = (sys.executable, "-c", "raise SystemExit('no weights here')")
    with pytest.raises(ProfileError, match="the process of broken ended with exit code 1") as e:
        Process(Version("broken", "broken", command), 1)
    assert "no weights here" in str(e.value)


def test_torch_worker_measures(tmp_path: Path) -> None:
    torch.save(make_inputs(SMALL_NETWORK, 2), tmp_path / "inputs")
    (version, *_) = processes.versions(tmp_path / "inputs", SMALL_NETWORK, 1)
    with Process(version, 1) as process:
        sample = process.run(3)
        peak = process.end()
    assert sample.iterations == 3
    assert sample.seconds > 0
    assert sample.minor_faults >= 0
    assert (sample.cache_misses is None) == (sample.cache_references is None)
    assert peak > 50 * 2**20


@pytest.mark.parametrize("ask", [lambda process: process.run(1), lambda process: process.end()])
def test_a_process_that_ends_later_is_named(ask: Callable[[Process], object]) -> None:
    code = 'print(\'{"loss": 0.5, "gradients": {}}\'); raise SystemExit(3)'
    with Process(Version("broken", "broken", (sys.executable, "-c", code)), 1) as process:
        process._process.wait(60)
        with pytest.raises(ProfileError, match="the process of broken ended with exit code 3"):
            ask(process)
