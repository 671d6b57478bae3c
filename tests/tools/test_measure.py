"""loma.tools.measure: the statistics against known values, the kernel's counters for
plausibility."""

from __future__ import annotations

import gc
import mmap
import subprocess
import sys
import time

import pytest

from conftest import ROOT
from loma.tools import measure


class Clock:
    """Stands in for the module ``time``: passes only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(measure, "time", self)

    def perf_counter(self) -> float:
        return self.now


def test_interleaved_medians_give_medians_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    calls: list[str] = []

    def short() -> None:
        calls.append("short")
        clock.now += 2

    def long() -> None:
        calls.append("long")
        clock.now += 20 if calls.count("long") < 5 else 1000

    timings = measure.interleaved_medians({"short": short, "long": long}, rounds=4, warmup=1)
    assert calls == ["short", "long", *["short", "long", "long", "short"] * 2]
    assert [len(samples) for samples in timings.samples.values()] == [4, 4]
    assert timings.samples["long"] == (20, 20, 20, 1000)
    assert (timings.median("short"), timings.median("long")) == (2, 20)
    assert timings.ratio("long", "short") == 10.0
    assert timings.ratio("short", "short") == 1.0


def test_short_calls_are_repeated_within_a_sample_and_collection_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    calls = 0
    enabled: list[bool] = []

    def call() -> None:
        nonlocal calls
        calls += 1
        clock.now += 2**-20
        enabled.append(gc.isenabled())

    timings = measure.interleaved_medians({"call": call}, rounds=2, min_seconds=2**-10)
    assert calls > 2 * 2**10  # of each sample, beside those that find out how many it takes
    assert timings.median("call") == 2**-20
    assert not enabled[-1]
    assert gc.isenabled()


def test_rounds_must_be_positive() -> None:
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        measure.interleaved_medians({"call": time.time}, rounds=0)


def test_page_faults_count_touched_pages() -> None:
    before = measure.page_faults()
    pages = 512
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as block:
        for page in range(pages):
            block[page * mmap.PAGESIZE] = 1
        faults = measure.page_faults() - before
    if faults.minor + faults.major == 0:
        pytest.skip("this kernel does not count page faults")
    # Huge pages may make it one fault.
    assert faults.minor >= 1


def test_peak_memory_is_that_of_this_process_alone() -> None:
    block = bytearray(64 * 2**20)
    mine = measure.peak_memory()
    assert mine >= len(block)
    code = "from loma.tools import measure; print(measure.peak_memory())"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert 2**20 < int(child.stdout) < 64 * 2**20 + 2**25


def test_machine_describes_itself() -> None:
    machine = measure.machine()
    assert machine.processor
    assert machine.system
    assert machine.cores >= 1
    assert machine.cpus >= 1
    assert machine.memory > 2**20


def test_cache_counters_count_or_say_why_not() -> None:
    with measure.cache_counts() as counts:
        sum(bytearray(2**20))
    if counts.references is None:
        assert counts.misses is None
        assert counts.reason.startswith("cache counters are not available on this machine: ")
    else:
        assert counts.references >= 0.0
        assert counts.misses is not None
        assert counts.misses >= 0.0
        assert counts.reason == ""


def test_another_process_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page faults stand for cache references: every machine counts these."""
    monkeypatch.setattr(measure, "_HARDWARE", 1)  # PERF_TYPE_SOFTWARE
    monkeypatch.setattr(measure, "_CACHE_REFERENCES", 2)  # PERF_COUNT_SW_PAGE_FAULTS
    code = "input(); block = b'1' * 2**25; print(len(block), flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as p:
        assert p.stdin is not None
        assert p.stdout is not None
        before, peak = measure.page_faults(p.pid), measure.peak_memory(p.pid)
        with measure.cache_counts(p.pid) as counts:
            p.stdin.write(b"\n")
            p.stdout.readline()
        faults = measure.page_faults(p.pid) - before
        assert measure.peak_memory(p.pid) - peak > 2**24
        p.stdin.write(b"\n")
    if counts.references is not None and faults.minor:
        assert 1 <= counts.references <= faults.minor + faults.major


def test_measuring_imports_neither_torch_nor_numpy() -> None:
    code = "import sys; import loma.tools.measure; "
    code += "print({'torch', 'numpy'} & set(sys.modules) or 'none')"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert child.stdout.strip() == "none"
