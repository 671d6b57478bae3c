"""What the scalar layer costs.

* A call of a scalar function from Python, against one addition of Python floats in a function and
  against an eager PyTorch operator on 0-dim tensors.
* A gradient through a time loop: the generated reverse derivative against the function itself, and
  against PyTorch's autograd on the same loop, eager and compiled, on the same numbers.
* Differentiating and compiling a function of 1,000 statements.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import loma
from loma.ad import differentiate
from loma.backends import toolchain
from loma.frontend import parse
from loma.tools.measure import interleaved_medians

STEPS = 50
PENDULUM = f"""
def add(x : In[float], y : In[float]) -> float:
    return x + y

def swing(angle : In[float], speed : In[float], damping : In[float]) -> float:
    t : int = 0
    while (t < {STEPS}, max_iter := {STEPS}):
        speed = speed - 0.01 * (9.81 * sin(angle) + damping * speed)
        angle = angle + 0.01 * speed
        t = t + 1
    return angle * angle

d_swing = rev_diff(swing)
"""


def swing(angle: torch.Tensor, speed: torch.Tensor, damping: torch.Tensor) -> torch.Tensor:
    for _ in range(STEPS):
        speed = speed - 0.01 * (9.81 * torch.sin(angle) + damping * speed)
        angle = angle + 0.01 * speed
    return angle * angle


def long_program(count: int) -> str:
    lines = ["def f(x : In[float], y : In[float]) -> float:"]
    lines += ["    a : float = x", "    b : float = y"]
    for k in range(count // 2):
        lines += [f"    a = sin(a * b) + {k}.5 * b", "    b = b * cos(a) + a"]
    return "\n".join([*lines, "    return a * b", "d_f = rev_diff(f)", ""])


def add(x: float, y: float) -> float:
    return x + y


def calls(m: loma.LomaModule) -> None:
    x = torch.tensor(1.0)
    times = interleaved_medians(
        {
            "Python function": lambda: add(1.0, 2.0),
            "eager PyTorch x + x": lambda: x + x,
            "loma scalar function": lambda: m.add(1.0, 2.0),
        },
        min_seconds=0.01,
    )
    print("a call")
    for name in times.samples:
        ratio = times.ratio(name, "eager PyTorch x + x")
        print(f"  {name:32s} {1e6 * times.median(name):10.2f} us  {ratio:8.3f}x")


def gradients(m: loma.LomaModule) -> None:
    values = (0.8, 0.1, 0.2)
    tensors = [torch.tensor(v, requires_grad=True) for v in values]
    compiled = torch.compile(swing)

    def gradient(function: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(function(*tensors), tensors)

    found = m.d_swing(*values, 1.0)
    expected = gradient(swing)
    for mine, other in zip(found, expected, strict=True):
        assert abs(mine - float(other)) < 1e-3 * (1 + abs(float(other)))
    times = interleaved_medians(
        {
            "loma function": lambda: m.swing(*values),
            "loma gradient": lambda: m.d_swing(*values, 1.0),
            "eager PyTorch gradient": lambda: gradient(swing),
            "torch.compile gradient": lambda: gradient(compiled),
        },
        rounds=7,
        min_seconds=0.01,
    )
    print(f"a gradient through {STEPS} steps")
    for name in times.samples:
        ratio = times.ratio(name, "loma function")
        print(f"  {name:32s} {1e6 * times.median(name):10.2f} us  {ratio:8.1f}x")


def compile_times() -> None:
    text = long_program(1000)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        differentiate(parse(text))
        seconds.append(time.perf_counter() - start)
    print("1,000 statements")
    print(f"  {'parse and differentiate':32s} {statistics.median(seconds):10.2f} s")
    toolchain.detect()
    start = time.perf_counter()
    loma.compile(text + f"# {time.time()}\n")
    print(f"  {'compile, not in the cache':32s} {time.perf_counter() - start:10.2f} s")


def main() -> None:
    torch.set_num_threads(1)
    m = loma.compile(PENDULUM)
    calls(m)
    gradients(m)
    compile_times()


if __name__ == "__main__":
    main()
