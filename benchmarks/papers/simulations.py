"""Differentiable simulations, forward and with backward, in loma, PyTorch, NVIDIA Warp and Taichi.

A net of masses and springs, a wave on a grid, and balls that bounce, after examples of DiffTaichi
(Hu et al. 2020) and of Warp. Gradients go from the places after the last step to the first places
and speeds, and to the lengths of springs. In loma (simulations.loma) a simulation is a function
with a loop, whose tape the compiler makes. In Warp and Taichi a step is a kernel, and the program
keeps the states of all steps (warp_simulations.py, taichi_simulations.py).

    python benchmarks/papers/simulations.py --json FILE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from gpu_work.work import Function, Work, part_of
from papers import measured
from papers.libraries import length_in, length_of, length_of_named, library, under_autograd
from papers.measured import Entry, Session
from torch import Tensor

import loma

PROGRAM = Path(__file__).with_suffix(".loma")
Step = Callable[..., tuple[Tensor, ...]]


def text_of(name: str) -> str:
    """The function of a simulation, and what it calls."""
    called = part_of(PROGRAM, "travel") if name == "balls" else ""
    return called + part_of(PROGRAM, name)


@cache
def compiled(name: str) -> Function:
    function: Function = getattr(loma.compile(text_of(name)), name)
    return function


def own(name: str, numbers: Mapping[str, float]) -> Callable[[], Function]:
    return lambda: partial(compiled(name), **numbers)


# ------------------------------------------------------------------------------------- in PyTorch


def springs_step(
    x: Tensor, v: Tensor, rest: Tensor, ends: Tensor, stiffness: float, decay: float,
    gravity: float, dt: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    i, j = ends.unbind(1)
    e = x[j] - x[i]
    n = e.norm(dim=1)
    force = (stiffness * (n - rest) / n)[:, None] * e
    f = torch.zeros_like(x).index_add(0, i, force).index_add(0, j, -force)
    f = f - gravity * F.one_hot(torch.ones((), dtype=torch.long, device=x.device), x.shape[1])
    v = decay * v + dt * f
    return x + dt * v, v


def springs(
    step: Step, x: Tensor, v: Tensor, rest: Tensor, ends: Tensor, *, T: int, **numbers: float
) -> Tensor:
    for _ in range(T):
        x, v = step(x, v, rest, ends, **numbers)
    return x


def bend(u: Tensor) -> Tensor:
    """The sum of a point's neighbours, which are 0 outside of the grid, less 4 times the point."""
    wide = F.pad(u, (1, 1, 1, 1))
    return wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:] - 4 * u


def wave_step(
    before: Tensor, bent: Tensor, u: Tensor, a: float, b: float
) -> tuple[Tensor, Tensor, Tensor]:
    now = bend(u)
    return u, now, 2 * u - before + a * now - b * bent


def wave(step: Step, first: Tensor, *, T: int, **numbers: float) -> Tensor:
    before, bent, u = torch.zeros_like(first), torch.zeros_like(first), first
    for _ in range(T):
        before, bent, u = step(before, bent, u, **numbers)
    return u


def balls_step(x: Tensor, v: Tensor, g: Tensor, bounce: float, dt: float) -> tuple[Tensor, Tensor]:
    v = v + dt * g
    free = x + dt * v
    hits = free < 0
    impact = -x / torch.where(hits, v, 1.0)  # else the branch that is not taken divides by zero
    back = -bounce * v
    return torch.where(hits, (dt - impact) * back, free), torch.where(hits, back, v)


def balls(step: Step, x: Tensor, v: Tensor, g: Tensor, *, T: int, **numbers: float) -> Tensor:
    for _ in range(T):
        x, v = step(x, v, g, **numbers)
    return x


# ------------------------------------------------------------------------------------- the table

# By name: all steps and one in PyTorch, how many arguments are differentiated, numbers, and sizes:
# points of a side, or balls, and steps.
SIMULATIONS: dict[str, tuple[Function, Step, int, dict[str, float], tuple[int, int]]] = {
    "springs": (
        springs, springs_step, 3,
        {"stiffness": 100.0, "decay": 0.999, "gravity": 1.0, "dt": 0.005}, (32, 200),
    ),
    "wave": (wave, wave_step, 1, {"a": 0.2, "b": 0.01}, (256, 256)),
    "balls": (balls, balls_step, 2, {"bounce": 0.9, "dt": 0.005}, (4096, 300)),
}  # fmt: skip
CLASSES = {"springs": "Springs", "wave": "Wave", "balls": "Balls"}


def net(n: int) -> tuple[Tensor, Tensor]:
    """Places of n by n masses in space, and the pairs that springs connect: neighbours in rows, in
    columns and across."""
    at = torch.arange(n * n).view(n, n)
    pairs = [(at[:, 1:], at[:, :-1]), (at[1:], at[:-1]), (at[1:, 1:], at[:-1, :-1]),
             (at[1:, :-1], at[:-1, 1:])]  # fmt: skip
    ends = torch.cat([torch.stack([i.reshape(-1), j.reshape(-1)], 1) for i, j in pairs])
    flat = at.reshape(-1)
    return torch.stack([flat % n, flat // n, torch.zeros_like(flat)], 1).float(), ends


def inputs(name: str, n: int, device: str) -> tuple[Tensor, ...]:
    made: tuple[Tensor, ...]
    if name == "springs":
        x, ends = net(n)
        x = x + 0.1 * torch.randn_like(x)
        made = x, 0.1 * torch.randn_like(x), 1.0 + 0.1 * torch.rand(len(ends)), ends
    elif name == "wave":
        made = (torch.randn(n, n),)
    else:
        made = torch.rand(n, 2), torch.randn(n, 2), torch.tensor([0.0, -9.8])
    count = SIMULATIONS[name][2]
    moved = [part.to(device) for part in made]
    return *(part.requires_grad_() for part in moved[:count]), *moved[count:]


def step_compiled(name: str, steps: int) -> Callable[[], Function]:
    """With torch.compile of a step: of hundreds in one graph it would take minutes."""

    def make() -> Function:
        whole, step, _, numbers, _ = SIMULATIONS[name]
        return partial(whole, torch.compile(step), **numbers, T=steps)

    return make


def in_library(kind: str, name: str, steps: int, device: str) -> Callable[[], Function]:
    def make() -> Function:
        if device != "cpu":
            raise ValueError("written for a CPU")
        steps_of = getattr(library(f"papers.{kind}_simulations"), CLASSES[name])
        _, _, count, numbers, _ = SIMULATIONS[name]
        every = {**numbers, "T": steps}
        return lambda *args: under_autograd(steps_of, count, args, every)

    return make


def work(name: str, n: int, steps: int, session: Session) -> Work:
    whole, step, _, numbers, _ = SIMULATIONS[name]
    every = {**numbers, "T": steps}
    others = {
        kind.capitalize(): in_library(kind, name, steps, session.device)
        for kind in ("warp", "taichi")
    }
    if session.settings.compile:
        others["compile a step"] = step_compiled(name, steps)
    return Work(f"{name} {n}x{steps}", f"{name}, {n}, {steps} steps", partial(inputs, name, n),
                {"steps": partial(whole, step, **every)}, own(name, every), "1 time",
                compiles=False, others=others)  # fmt: skip


def lengths(name: str) -> dict[str, int]:
    """Warp's and Taichi's are those of kernels alone, without memory and launches."""
    whole, step, _, _, _ = SIMULATIONS[name]
    helpers = {"wave": [bend]}
    own = (name, "travel") if name == "balls" else (name,)
    kernels = {"springs": ["pull", "move"], "wave": ["at", "bend", "oscillate"], "balls": ["fly"]}
    found = {
        "loma": length_in(PROGRAM, *own),
        "PyTorch": length_of(whole, step, *helpers.get(name, [])),
    }
    for kind in ("warp", "taichi"):
        file = PROGRAM.with_name(f"{kind}_simulations.py")
        found[kind.capitalize()] = length_of_named(file, *kernels[name])
    return found


def entries(session: Session) -> Iterator[Entry]:
    for name, (_, _, _, _, size) in SIMULATIONS.items():
        if session.wants(name):
            small = work(name, 3, 7, session)
            full = small if session.settings.quick else work(name, *size, session)
            yield Entry(full, small, lengths=lengths(name))


if __name__ == "__main__":
    measured.main(__doc__ or "", tuple(SIMULATIONS), entries)
