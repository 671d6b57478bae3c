"""NVRTC: how it is found, what is said without it, and, where it is, what it makes. It needs no
GPU."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from loma.backends.cuda import images, nvrtc
from loma.errors import CompilationFailed, ToolchainError

OPTIONS = [
    "-DLOMA_REAL=float", "-DLOMA_THREADS=256", "-DLOMA_TEAM=1", "-DLOMA_ACROSS=0", "-DLOMA_STAGE=0",
    "-DLOMA_SHARED=1",
]  # fmt: skip
TEXT = """
LOMA_KERNEL twice(real* __restrict y, const real* __restrict x, LOMA_NUMBER_GIVEN(N),
                  const loma::Grid grid_) {
  LOMA_NUMBER(0, N);
  loma::statement(grid_, [&](const int64_t p_, const auto& part_) {
    y[p_] = 2 * x[p_];
  });
}
"""


@pytest.fixture(autouse=True)
def by_nvrtc() -> Iterator[None]:
    former = images.use(None)
    yield
    images.use(former)


@pytest.fixture
def library() -> nvrtc.Library:
    try:
        return nvrtc.find()
    except ToolchainError:
        pytest.skip("NVRTC is not installed")


def test_without_it_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(["/nowhere/libnvrtc.so.13"]))
    with pytest.raises(ToolchainError, match="pip install nvidia-cuda-nvrtc"):
        images.image("twice", TEXT, OPTIONS, "sm_90")


def test_a_library_that_cannot_be_loaded_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "libnvrtc.so.13"
    broken.write_bytes(b"nothing")
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter([str(broken)]))
    with pytest.raises(ToolchainError, match=r"not found \(.*libnvrtc\.so\.13"):
        nvrtc.find()


def test_torchs_own_version_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder, name in (("cuda_nvrtc", "libnvrtc.so.12"), ("cu13", "libnvrtc.so.13")):
        path = tmp_path / "nvidia" / folder / "lib" / name
        path.parent.mkdir(parents=True)
        path.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for major in (12, 13):
        monkeypatch.setattr(nvrtc, "_cuda_of_torch", lambda major=major: major)
        found = [path for path in nvrtc._candidates() if path.startswith(str(tmp_path))]
        assert [path[-2:] for path in found] == [str(major), str(25 - major)]


def test_a_newer_gpu_gets_what_its_driver_compiles() -> None:
    known = nvrtc.Library(None, "libnvrtc", (12, 9), (75, 80, 90))  # type: ignore[arg-type]
    assert known.target("sm_80") == "sm_80"
    assert known.target("sm_103") == "compute_90"
    with pytest.raises(ToolchainError, match="begins with sm_75"):
        known.target("sm_50")


def test_a_kernel_is_compiled_and_kept(
    library: nvrtc.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = images.image("twice", TEXT, OPTIONS, "sm_90")
    assert made.startswith(b"\x7fELF")
    monkeypatch.setattr(nvrtc.Library, "compile", None)
    assert images.image("twice", TEXT, OPTIONS, "sm_90") == made


def test_what_it_refuses_is_told_with_its_log(library: nvrtc.Library) -> None:
    with pytest.raises(CompilationFailed, match=r"(?s)kernel 'twice' failed.*twice\.cu.*nothing"):
        images.image("twice", TEXT.replace("2 * x", "nothing * x"), OPTIONS, "sm_90")


def test_what_another_thread_makes_can_be_waited_for() -> None:
    release = threading.Event()
    made: list[bytes] = []

    def make(name: str, text: str, options: Sequence[str], architecture: str) -> bytes:
        release.wait(60)
        if name == "bad":
            raise ToolchainError("no compiler")
        return name.encode()

    images.use(make)  # the fixture puts back what was there
    with warnings.catch_warnings(action="ignore"):
        for name in ("one", "bad", "two"):
            images.later(name, "", (), "sm_90", made.append)
        assert not images.wait(0.01)
        release.set()
        assert images.wait(60)
    assert made == [b"one", b"two"]
