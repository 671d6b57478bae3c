"""The pool: what is used again, what is given back, and that it stays out of everybody's way."""

from __future__ import annotations

import gc
import os
import subprocess
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fresh
import pytest
import torch

import loma
from conftest import ROOT
from loma import config
from loma.backends import compilers, toolchain
from loma.backends.torch.files import RUNTIME_FOLDERS, quoted, runtime_file

pytestmark = pytest.mark.cpu  # GPUs use torch's allocator

PROGRAM = """
def half(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = 0.5 * x[i]
    return y

def wave(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = sin(x[i])
    z = half(y)
    return exp(z) * y

def pick(x : In[Tensor[N]], order : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = 2.0 * x[i]
    z : Tensor[N]
    z[i] = y[order[i]]
    return z
"""
SIZE = 100_000  # elements: 400 KB


def wave(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(0.5 * torch.sin(x)) * torch.sin(x)


@pytest.fixture(scope="module")
def program() -> Any:
    return loma.compile(PROGRAM)


@pytest.fixture(autouse=True)
def empty_pool(program: Any) -> Iterator[None]:
    gc.collect()
    gc.freeze()  # the next test need not go through this again
    loma.memory.limit(None)
    loma.memory.release()
    yield
    loma.memory.limit(None)


def run(code: str, **environment: str) -> str:
    """What a Python process of its own prints; PROGRAM and SIZE are known there."""
    head = f"import gc, os, sys, torch, loma\nPROGRAM = {PROGRAM!r}\nSIZE = {SIZE}\n"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = fresh.run(
        ["-c", head + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


# ---------------------------------------------------------------------------------- using again


def test_the_next_result_lies_where_the_last_one_lay(program: Any) -> None:
    x = torch.randn(SIZE)
    first = program.half(x)
    place = first.data_ptr()
    assert place % 64 == 0
    second = program.half(x)
    assert second.data_ptr() != place
    del first
    assert program.half(x).data_ptr() == place


def test_a_warm_step_gets_nothing_from_the_system(program: Any) -> None:
    x = torch.randn(SIZE, requires_grad=True)
    for step in range(6):
        if step == 3:
            before = loma.memory.stats()
        x.grad = None
        program.wave(x).sum().backward()
    after = loma.memory.stats()
    assert after.obtained == before.obtained
    assert after.requests > before.requests
    torch.testing.assert_close(x.grad, torch.autograd.grad(wave(x).sum(), x)[0])


def test_what_is_in_use_is_counted(program: Any) -> None:
    before = loma.memory.stats()
    y = program.half(torch.randn(SIZE))
    during = loma.memory.stats()
    assert during.blocks == before.blocks + 1
    assert 0 <= during.in_use - before.in_use - y.nbytes < 4096
    assert during.held >= during.in_use
    assert during.peak >= during.in_use
    view = y[:10]
    del y
    assert loma.memory.stats().blocks == during.blocks
    del view
    assert loma.memory.stats().in_use == before.in_use


def test_autograd_gives_back_what_it_saved(program: Any) -> None:
    before = loma.memory.stats().in_use
    x = torch.randn(SIZE, requires_grad=True)
    y = program.wave(x)
    saved = loma.memory.stats().in_use - before
    assert saved > y.nbytes
    y.sum().backward()
    x.grad = None
    assert loma.memory.stats().in_use - before < saved
    del y
    assert loma.memory.stats().in_use == before


def test_release_and_limit(program: Any) -> None:
    x = torch.randn(10 * SIZE)
    start = loma.memory.stats()
    kept = program.half(x)
    del kept
    held = loma.memory.stats().held
    assert held >= start.held + x.nbytes
    assert loma.memory.release() >= x.nbytes
    assert loma.memory.stats().held <= held - x.nbytes
    assert loma.memory.release() == 0
    assert loma.memory.stats().peak == loma.memory.stats().in_use

    loma.memory.limit("1M")
    assert loma.memory.stats().limit == 2**20
    results = [program.half(x) for _ in range(3)]
    del results
    bound = max(2**20, start.held - start.in_use)  # part of a page that others use cannot go
    assert loma.memory.stats().held - loma.memory.stats().in_use <= bound
    loma.memory.limit(None)
    assert loma.memory.stats().limit is None


def test_the_limit_takes_what_lies_unused_the_longest(program: Any) -> None:
    """A hole below a result that a loop frees and takes again: the loop keeps its memory."""
    megabytes = 2**18  # elements
    hole = program.half(torch.randn(8 * megabytes))
    between = program.half(torch.randn(8 * megabytes))
    x = torch.randn(16 * megabytes)
    program.half(x)
    del hole
    loma.memory.limit(loma.memory.stats().held - loma.memory.stats().in_use - 2**22)
    before = loma.memory.stats().obtained
    for _ in range(5):
        program.half(x)
    assert loma.memory.stats().obtained == before
    del between


def test_a_wrong_limit() -> None:
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        loma.memory.limit(-1)
    with pytest.raises(ValueError, match="ends in K, M, G or T, got 'much'"):
        loma.memory.limit("much")
    assert config.parse_size("1.5 GiB") == 3 * 2**29
    assert config.parse_size("12") == 12


# --------------------------------------------------------------------------- out of others' way


def test_other_tensors_are_not_the_pool_s(program: Any) -> None:
    before = loma.memory.stats()
    other = torch.ones(SIZE) * 2.0
    assert loma.memory.stats() == before
    del other


def test_a_call_that_fails_gives_everything_back(program: Any) -> None:
    x = torch.randn(SIZE, requires_grad=True)
    order = torch.arange(SIZE)
    order[SIZE // 2] = SIZE
    before = loma.memory.stats()
    for _ in range(5):
        with pytest.raises(ValueError, match="outside dimension 0"):
            program.pick(x, order)
    assert loma.memory.stats().blocks == before.blocks
    assert loma.memory.stats().requests > before.requests
    test_other_tensors_are_not_the_pool_s(program)


def test_more_memory_than_there_is(program: Any) -> None:
    wide = torch.zeros(1).expand(2**45)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="allocate memory"):
            program.half(wide)
    assert program.half(torch.ones(SIZE)).sum() == SIZE / 2
    assert program.half(torch.ones(0)).shape == (0,)


def test_resize_share_and_copy(program: Any) -> None:
    x = torch.randn(SIZE)
    expected = 0.5 * x
    y = program.half(x)
    y.resize_(2 * SIZE)
    assert torch.equal(y[:SIZE], expected)
    y = program.half(x)
    y.untyped_storage().resize_(0)
    y.set_(torch.ones(3))
    assert y.sum() == 3
    y = program.half(x).share_memory_()
    assert y.is_shared()
    assert torch.equal(y, expected)
    array = program.half(x).numpy()
    gc.collect()
    program.half(-x)
    assert torch.equal(torch.from_numpy(array), expected)


def test_results_travel_to_other_processes(program: Any) -> None:
    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    queue.put(program.half(torch.ones(SIZE)))
    assert queue.get().sum() == SIZE / 2


def test_the_profiler_sees_the_pool(program: Any) -> None:
    x = torch.randn(SIZE)
    with torch.profiler.profile(profile_memory=True) as profile:
        program.half(x)
    assert max(event.cpu_memory_usage for event in profile.events()) >= x.nbytes


# ----------------------------------------------------------------- threads, forks, ends of things


def test_calls_from_many_threads(program: Any) -> None:
    """Each frees tensors of another, too."""
    failures: list[BaseException] = []
    shelf: list[torch.Tensor] = []

    def work(seed: int) -> None:
        try:
            x = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))
            x.requires_grad_()
            for _ in range(20):
                y = program.wave(x)
                (g,) = torch.autograd.grad(y.sum(), x)
                torch.testing.assert_close(y, wave(x))
                torch.testing.assert_close(g, torch.autograd.grad(wave(x).sum(), x)[0])
                shelf.append(y)
                if len(shelf) > 5:
                    shelf.pop(0)
        except BaseException as error:
            failures.append(error)

    before = loma.memory.stats().blocks
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    shelf.clear()
    assert loma.memory.stats().blocks == before


def test_a_fork_has_a_pool_of_its_own() -> None:
    code = """
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
        m = loma.compile(PROGRAM)
        x = torch.arange(SIZE, dtype=torch.float32)
        y, free = m.half(x), m.half(x)
        del free
        child = os.fork()
        if child == 0:
            assert torch.equal(y, 0.5 * x)
            z = m.half(y)
            y.zero_()
            assert torch.equal(z, 0.25 * x)
            del y, z
            assert loma.memory.stats().blocks == 0
            assert loma.memory.release() > 0
            os._exit(0)
        z = m.half(x)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(y, 0.5 * x) and torch.equal(z, 0.5 * x)
        print("ok")
        """
    assert run(code) == "ok"


def test_tensors_outlive_the_module_and_the_process() -> None:
    code = """
        import sys
        m = loma.compile(PROGRAM)
        y = m.half(torch.ones(SIZE))
        sys.kept = m.half(torch.ones(SIZE))  # freed at the very end, if at all
        del m
        gc.collect()
        assert y.sum() == SIZE / 2
        class Last:
            def __init__(self, tensor):
                self.tensor = tensor
            def __del__(self):
                self.tensor = None
        last = Last(y)
        print("ok")
        """
    assert run(code) == "ok"


@pytest.mark.full
def test_modules_share_one_pool(program: Any) -> None:
    other = loma.compile("def third(x : In[Tensor[N]]) -> Tensor[N]:\n    return x / 3.0\n")
    x = torch.randn(SIZE)
    place = program.half(x).data_ptr()
    assert other.third(x).data_ptr() == place


# -------------------------------------------------------------------------------------- settings


@pytest.mark.full
def test_without_the_pool() -> None:
    code = """
        m = loma.compile(PROGRAM)
        x = torch.randn(SIZE, requires_grad=True)
        y = m.wave(x)
        y.sum().backward()
        assert torch.allclose(y, torch.exp(0.5 * torch.sin(x)) * torch.sin(x), atol=1e-6)
        s = loma.memory.stats()
        print(s.held, s.in_use, s.requests, loma.memory.release())
        """
    assert run(code, LOMA_OPT="-pool") == "0 0 0 0"


@pytest.mark.full
def test_the_limit_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
        m = loma.compile(PROGRAM)
        x = torch.ones(10 * SIZE)
        m.half(x)
        s = loma.memory.stats()
        print(s.limit, s.held - s.in_use <= s.limit, s.obtained >= x.nbytes)
        """
    assert run(code, LOMA_POOL_LIMIT="2M") == f"{2**21} True True"
    assert run("print(loma.memory.stats().limit)", LOMA_POOL_LIMIT="0") == "0"
    monkeypatch.setenv("LOMA_POOL_LIMIT", "2X")
    with pytest.raises(ValueError, match="LOMA_POOL_LIMIT: a size is a number of bytes"):
        config.pool_limit()


# -------------------------------------------------------------------------------------- from C++


@pytest.mark.full
def test_workspaces_and_tensors_from_cpp(tmp_path: Path) -> None:
    source = Path(__file__).with_name("memory_program.cpp")
    made = toolchain.build_executable([source], tmp_path / "memory_program")
    done = subprocess.run([made], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def stress(folder: Path, sources: list[Path], flags: list[str], *args: str) -> tuple[int, str]:
    """Compiles and runs a program; its status and what it said."""
    made = folder / "program"
    compiler = compilers.find_compiler(config.CXX)
    command = [*compiler, "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    command += [*flags, *quoted(RUNTIME_FOLDERS), *map(str, sources)]
    command += ["-o", str(made)]
    # what another library preloads must not come before the sanitizer's own
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    for step in (command, [str(made), *args]):
        done = subprocess.run(step, capture_output=True, text=True, timeout=300, env=environment)
        if done.returncode != 0:
            break
    return done.returncode, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    "sanitizer",
    ["", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("address,undefined", "thread"))],
)
def test_stress(tmp_path: Path, sanitizer: str) -> None:
    """The pool without torch. Sanitizers have locks of their own, which do not survive a fork."""
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []
    empty = tmp_path / "empty.cpp"
    empty.write_text("int main() { return 0; }\n")
    status, said = stress(tmp_path, [empty], flags)
    if status != 0:
        pytest.skip(f"no sanitizer {sanitizer} here: {said.splitlines()[:1]}")
    driver = Path(__file__).with_name("pool_stress.cpp")
    sources = [driver, runtime_file("heap.cpp"), runtime_file("pool.cpp")]
    forks = "0" if sanitizer else "20"
    assert stress(tmp_path, sources, flags, "1000", forks) == (0, "ok\n")
