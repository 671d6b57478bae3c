"""Kernels for sizes that are seen: the same results and errors, a bound, a switch, processes."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fresh
import pytest

import loma
from conftest import ROOT
from loma import config, specialise

pytestmark = pytest.mark.cpu  # those of GPUs are in tests/cuda

PROGRAM = """
def half(x : In[float]) -> float:
    return 0.5 * x

def sums(x : In[Tensor[N, M]]) -> Tensor[N]:
    s : Tensor[N]
    s[i] = sum(exp(half(x[i, j])) for j in M)
    return s

def soft(x : In[Tensor[N, M]], n : In[int], more : In[int]) -> Tensor[N, M]:
    y : Tensor[N, M]
    s : Tensor[N]
    y[i, j] = x[i, j] * M
    for t in range(n):
        s = sums(y)
        if more != 0:
            y[i, j] = exp(half(y[i, j])) / s[i]
        else:
            y[i, j] = sin(y[i, j])
    return y

def pick(x : In[Tensor[N]], order : In[IntTensor[M]]) -> Tensor[M]:
    y : Tensor[M]
    y[i] = x[order[i]]
    return y

def put(x : In[Tensor[N]], order : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[order[i]] = x[i]
    return y

def add(x : In[Tensor[N]], y : Out[Tensor[N]]) -> Tensor[2 * N]:
    z : Tensor[2 * N]
    y[i] += 2.0 * x[i]
    z[i] = y[i // 2]
    return z
"""
HEAD = """
import os, threading, time, warnings
import torch
import loma, loma.specialise
from loma import specialise
specialise.use(specialise.Thresholds(*THRESHOLDS))

m = loma.compile(PROGRAM)

def reach(count, call):
    "Calls until so many kernels are there."
    for _ in range(20):
        value = call()
        specialise.wait()
        if len(specialise.made()) >= count:
            break
    assert len(specialise.made()) >= count, specialise.made()
    return value

def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
"""


@pytest.fixture(autouse=True)
def nothing_is_known() -> None:
    """What earlier tests have made is forgotten, though the objects are still there."""
    key = specialise._notes_key(loma.compile(PROGRAM).__folder__)
    shutil.rmtree(config.cache_dir() / "notes" / key, ignore_errors=True)


def start(
    code: str, thresholds: tuple[int, float, float] = (2, 0.0, 0.0), **environment: str
) -> fresh.Process | subprocess.Popen[str]:
    head = f"PROGRAM, THRESHOLDS = {PROGRAM!r}, {thresholds}"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return fresh.start(
        ["-c", f"{head}\n{HEAD}\n{code}"],
        env={**os.environ, "PYTHONPATH": paths, "LOMA_SPECIALISATIONS": "8", **environment},
    )


def run(code: str, thresholds: tuple[int, float, float] = (2, 0.0, 0.0), **environment: str) -> str:
    """What a process of its own prints."""
    process = start(code, thresholds, **environment)
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors[-3000:]
    return output.strip()


@pytest.mark.full
def test_no_kernels_under_deterministic_algorithms() -> None:
    """Which calls have one depends on time, and it may round otherwise."""
    run(
        """
torch.use_deterministic_algorithms(True)
x = torch.randn(7, 5)
for _ in range(5):
    m.soft(x, 2, 1)
    specialise.wait()
assert not specialise.made()
torch.use_deterministic_algorithms(False)
reach(1, lambda: m.soft(x, 2, 1))
"""
    )


TWICE = """
# second derivatives run what they ran before; a kernel may come while they are compared
assert torch.autograd.gradcheck(lambda x: m.soft(x, 2, 1), x.requires_grad_(), nondet_tol=1e-9)
assert torch.autograd.gradgradcheck(lambda x: m.soft(x, 2, 1), x, nondet_tol=1e-9)
"""


def test_results_gradients_and_parts(pytestconfig: pytest.Config) -> None:
    full = pytestconfig.getoption("--full")
    run(
        """
x = torch.randn(7, 5, dtype=torch.float64)
w = torch.randn(7, 5, dtype=torch.float64)

def gradient(x):
    x = x.clone().requires_grad_()
    (m.soft(x, 3, 1) * w).sum().backward()
    return x.grad

value, slope = m.soft(x, 3, 1), gradient(x)
reach(1, lambda: m.soft(x, 3, 1))
reach(3, lambda: gradient(x))
names = {k.function for k in specialise.made()}
assert names == {"soft", "soft__forward", "soft__backward"}, names
for k in specialise.made():
    assert k.dtype == "float64" and k.seconds > 0
    assert (k.sizes["N"], k.sizes["M"], k.sizes["n"], k.sizes["more"]) == (7, 5, 3, 1)
close(m.soft(x, 3, 1), value)
close(gradient(x), slope)
# other layouts of the same sizes, and the same sizes with other ints
close(m.soft(x.t().contiguous().t(), 3, 1), value)
close(m.soft(x, 2, 0), torch.sin(torch.sin(5 * x)))
close(m.soft(x[:3], 3, 1), value[:3])
nan = m.soft(torch.full_like(x, float("nan")), 3, 1)
assert nan.isnan().all()
close(m.soft(x.float(), 3, 1), value.float(), 1e-5)
"""
        + (TWICE if full else "")
    )


@pytest.mark.full
def test_floats_bfloat16_and_sizes_zero_and_one() -> None:
    run(
        """
for shape in ((0, 3), (3, 0), (1, 1), (1, 4)):
    x = torch.randn(shape)
    value = m.soft(x, 2, 1)
    count = len(specialise.made())
    reach(count + 1, lambda: m.soft(x, 2, 1))
    assert specialise.made()[-1].dtype == "float32"
    close(m.soft(x, 2, 1), value, 1e-6)
x = torch.randn(1, 4, dtype=torch.bfloat16)  # computed in float32, where there is a kernel
close(m.soft(x, 2, 1), m.soft(x.float(), 2, 1).bfloat16())
"""
    )


@pytest.mark.full
def test_out_arguments() -> None:
    run(
        """
x = torch.randn(6)
for _ in range(6):
    y = torch.ones(6)
    z = m.add(x, y)
    specialise.wait()
    assert torch.equal(y, 1 + 2 * x)
    assert torch.equal(z, y.repeat_interleave(2))
assert [k.function for k in specialise.made()] == ["add"]
"""
    )


def test_errors_say_the_same() -> None:
    run(
        """
def message(*args):
    try:
        m.pick(*args)
    except Exception as error:
        return type(error), str(error).splitlines()[0]

x, order = torch.randn(5), torch.tensor([0, 4, 2])
calls = [(x, torch.tensor([0, 5, 2])), (x, order.float()), (x.view(5, 1), order), (x, None)]
before = [message(*call) for call in calls]
assert None not in before
reach(1, lambda: m.pick(x, order))
assert [k.sizes for k in specialise.made()] == [{"N": 5, "M": 3}]
assert torch.equal(m.pick(x, order), x[order])
assert [message(*call) for call in calls] == before
# a check of the runtime's, from a library of its own
places = torch.tensor([3, 0, 4, 1, 2])
reach(2, lambda: m.put(x, places))
assert torch.equal(m.put(x, places)[places], x)
try:
    m.put(x, torch.tensor([3, 0, 3, 1, 2]))
except ValueError as error:
    assert "line 29" in str(error), error
else:
    raise AssertionError("an element is named twice")
"""
    )


@pytest.mark.full
def test_the_bound() -> None:
    run(
        """
for size in range(2, 8):
    x = torch.randn(size)
    for _ in range(4):
        assert torch.equal(m.pick(x, torch.tensor([1])), x[1:2])
        specialise.wait()
assert [k.sizes["N"] for k in specialise.made()] == [2, 3]
""",
        LOMA_SPECIALISATIONS="2",
    )


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"LOMA_OPT": "-specialise"}, marks=pytest.mark.full),
        {"LOMA_SPECIALISATIONS": "0"},
        pytest.param({"LOMA_OPT": "0"}, marks=pytest.mark.full),
    ],
)
def test_the_switches(environment: dict[str, Any]) -> None:
    run(
        """
x = torch.randn(3)
for _ in range(10):
    assert torch.equal(m.pick(x, torch.tensor([1])), x[1:2])
assert specialise.wait(0.0) and specialise.made() == []
""",
        **environment,
    )


def test_short_calls_are_not_worth_a_kernel() -> None:
    run(
        """
x = torch.randn(3)
for _ in range(1000):
    m.pick(x, torch.tensor([1]))
assert specialise.wait(0.0) and specialise.made() == []
""",
        thresholds=(3, 0.2, 1e6),
    )


def test_a_second_process_finds_them() -> None:
    first = run(
        """
x, order = torch.randn(6), torch.tensor([5, 0])
reach(1, lambda: m.pick(x, order))
print(specialise.made()[0])
"""
    )
    second = run("""
assert specialise.made() == []
x, order = torch.randn(6), torch.tensor([5, 0])
assert torch.equal(m.pick(x, order), x[order])  # the first call, and there it is
print(*specialise.made())
""")
    assert second == first
    # and not where another one is wanted
    other = run("m.pick(torch.randn(9), torch.tensor([0]))\nprint(specialise.made())")
    assert other == "[]"


@pytest.mark.full
def test_processes_at_the_same_time() -> None:
    code = """
x, order = torch.randn(11), torch.tensor([5, 0, 3, 7])
reach(1, lambda: m.pick(x, order))
assert torch.equal(m.pick(x, order), x[order])
"""
    processes = [start(code) for _ in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=500)
        assert process.returncode == 0, errors[-3000:]


@pytest.mark.full
def test_threads() -> None:
    run(
        """
inputs = [torch.randn(3, n, dtype=torch.float64) for n in (2, 3, 4)]
expected = [m.soft(x, 2, 1) for x in inputs]
wrong, stop = [], threading.Event()

def work():
    while not stop.is_set():
        for x, value in zip(inputs, expected):
            found = m.soft(x, 2, 1)
            if not torch.allclose(found, value, rtol=1e-12, atol=1e-12):
                wrong.append((found, value))
        time.sleep(0.001)  # leaves the processor to the compiler that all wait for

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
while len(specialise.made()) < 3:
    time.sleep(0.05)
time.sleep(0.2)
stop.set()
for thread in threads:
    thread.join()
assert not wrong
assert sorted(k.sizes["M"] for k in specialise.made()) == [2, 3, 4]
"""
    )


@pytest.mark.full
def test_fork() -> None:
    run(
        """
def pick(size):
    x, order = torch.randn(size), torch.tensor([1])
    for _ in range(4):
        assert torch.equal(m.pick(x, order), x[1:2])

pick(3)  # maybe under way when the process is forked
child = os.fork()
if child == 0:
    status = 1
    try:
        pick(3)
        pick(4)
        assert specialise.wait(300)
        sizes = {k.sizes["N"] for k in specialise.made()}
        status = 0 if sizes == {3, 4} else 2
        pick(4)
    finally:
        os._exit(status)
specialise.wait()
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert [k.sizes["N"] for k in specialise.made()] == [3]
pick(3)
"""
    )


def test_without_a_compiler_the_general_kernel_stays() -> None:
    run(
        """
os.environ["LOMA_CXX"] = "no-such-compiler"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for size in (3, 4):
        x = torch.randn(size)
        for _ in range(4):
            assert torch.equal(m.pick(x, torch.tensor([1])), x[1:2])
        assert specialise.wait(60)
assert specialise.made() == []
(warning,) = caught
assert "no kernel of 'pick'" in str(warning.message), warning
assert "no-such-compiler" in str(warning.message), warning
"""
    )


def test_what_cannot_be_compiled_leaves_the_general_kernel() -> None:
    run(
        """
from loma.background import Background
from loma.errors import ToolchainError
def make(self, job):
    raise ToolchainError("this is not C++")
Background.make = make
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.randn(3)
    for _ in range(4):
        assert torch.equal(m.pick(x, torch.tensor([1])), x[1:2])
    assert specialise.wait(300)
    assert torch.equal(m.pick(x, torch.tensor([1])), x[1:2])
assert specialise.made() == []
(warning,) = caught
assert "this is not C++" in str(warning.message), warning
"""
    )


def test_a_process_that_nobody_waits_for_ends_quietly() -> None:
    own, other = multiprocessing.Pipe()
    code = "import time; from loma import background\n"
    code += "background.make = lambda job: time.sleep(1)\nbackground.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(other.fileno())],
        pass_fds=[other.fileno()],
        stderr=subprocess.PIPE,
        text=True,
    )
    other.close()
    own.send("job")
    own.close()
    assert process.communicate()[1] == ""
    assert process.returncode == 0


@pytest.mark.full
def test_the_process_that_compiles_tells_what_fails_and_may_end() -> None:
    run(
        """
from dataclasses import replace
from loma.background import Background
from loma.errors import ToolchainError
jobs, make = [], Background.make
Background.make = lambda self, job: (jobs.append(job), make(self, job))
[m.pick(torch.randn(3), torch.tensor([1])) for _ in range(4)]
assert specialise.wait(300) and len(specialise.made()) == 1
own = Background()
for wrong in ({"function": "nothing"}, {"slots": (1,)}):
    try:
        make(own, replace(jobs[0], **wrong))
    except ToolchainError as error:
        print(error)
    else:
        raise AssertionError
os.kill(own.process.pid, 9)
try:
    make(own, jobs[0])
except ToolchainError as error:
    assert "has ended" in str(error), error
make(own, jobs[0])  # in a new one
own.stop()
"""
    )


@pytest.mark.full
def test_the_process_imports_what_it_needs() -> None:
    """Each of these takes longer to import than a small kernel to compile."""
    found = run(
        """
import pickle, subprocess, sys
from loma.background import Background
jobs, make = [], Background.make
Background.make = lambda self, job: (jobs.append(job), make(self, job))
reach(1, lambda: m.pick(torch.randn(3), torch.tensor([1])))
code = "import pickle, sys; from loma import background\\n"
code += "background.make(pickle.load(sys.stdin.buffer)); print(*sys.modules)"
job = pickle.dumps(jobs[0])
modules = subprocess.run([sys.executable, "-c", code], input=job, stdout=subprocess.PIPE)
print(modules.stdout.decode())
"""
    ).split()
    assert "loma.passes.specialise" in found
    assert not {"torch", "numpy", "loma.ad", "loma.frontend"} & set(found)


def test_a_process_does_not_wait_for_its_compiler() -> None:
    size = 1000 + time.time_ns() % 1_000_000  # one that no cache has
    begin = time.monotonic()
    output = run(
        f"""
x = torch.randn({size}, 3)
for _ in range(3):
    m.soft(x, 3, 1)
for _ in range(10000):
    process = specialise._worker.background.process
    if process is not None:
        break
    time.sleep(0.01)
assert process is not None
assert not specialise.wait(0.0)
print(process.pid)
"""
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int(output), 0)
    assert time.monotonic() - begin < 120


@pytest.mark.full
def test_a_program_without_python_links_them(tmp_path: Path) -> None:
    run(
        f"""
from pathlib import Path
from loma.backends import toolchain
x = torch.randn(7, 5)
reach(1, lambda: m.soft(x, 3, 1))
(own,) = specialise.sources(m)
main = Path({str(tmp_path)!r}) / "main.cpp"
main.write_text('''
#include "module.h"
#include "specialise.h"
#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <cstdio>
int main() {{
  auto& made = loma::specialisations_of("NAME::soft");
  const at::Tensor x = at::randn({{7, 5}}), y = at::randn({{8, 5}});
  const auto a = loma_module::soft(x, 3, 1), b = loma_module::soft(x.to(at::kDouble), 3, 1);
  std::printf("%d %d %d\\\\n", made.find({{7, 5, 3, 1}}, at::kFloat) != nullptr,
              made.find({{7, 5, 3, 1}}, at::kDouble) != nullptr,
              at::allclose(a.to(at::kDouble), b) && loma_module::soft(y, 3, 1).size(0) == 8);
}}
'''.replace("NAME", m.__name__))
toolchain.build_executable([main, m.__folder__ / "module.cpp", own], main.with_name("program"))
"""
    )
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0", "1"]


@pytest.mark.full
def test_declined_sizes_keep_the_general_kernel() -> None:
    """Also where the cache has one of their own, made by another process."""
    x = "x = torch.randn(7, 5, dtype=torch.float64)\n"
    run(x + "reach(1, lambda: m.sums(x))")
    run(
        x
        + """
for y in (x, x[1:]):
    with specialise.declined():
        for _ in range(5):
            m.sums(y)
    for _ in range(5):
        m.sums(y)
specialise.wait()
assert not specialise.made()
reach(1, lambda: m.sums(x[2:]))
assert [k.sizes["N"] for k in specialise.made()] == [5]
"""
    )


@pytest.mark.full
def test_thresholds_are_for_modules_that_are_loaded_too() -> None:
    """A training must repeat bit for bit whatever ran in the process before."""
    run(
        """
x = torch.randn(7, 5)
for _ in range(3):
    m.soft(x, 2, 1)
    specialise.wait()
assert not specialise.made()
assert specialise.use(specialise.Thresholds(1, 0.0, 0.0)) == specialise.Thresholds(*THRESHOLDS)
m.soft(x, 2, 1)
specialise.wait()
assert [k.function for k in specialise.made()] == ["soft"]
""",
        thresholds=(1, 1e9, 0.0),
    )
