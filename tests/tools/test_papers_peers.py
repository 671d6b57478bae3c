"""Examples of other systems, as benchmarks/papers has them: values and gradients of each program,
at odd sizes and at sizes of 1, are those of PyTorch in float64; and the tables are measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import Program, check

from conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from gpu_work.work import part_of
from papers import kernel_sums, simulations, tutorial_kernels
from papers.libraries import length
from test_papers_tables import both, rows


@cache
def program(text: str) -> Program:
    return Program([text], first=())


def compare(
    text: str, name: str, args: Sequence[Any], reference: Callable[..., Any], compiled: bool
) -> None:  # fmt: skip
    exact = [
        arg.detach().double() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg
        for arg in args
    ]
    check(program(text), name, exact, reference, second=False, smooth=False, libtorch=compiled)


TIERS = pytest.mark.parametrize("compiled", [
    pytest.param(False, id="interpreted"),
    pytest.param(True, id="compiled", marks=pytest.mark.full),
])  # fmt: skip


@TIERS
@pytest.mark.parametrize("size", [(7, 5, 3), (1, 1, 1), (3, 1, 2), (1, 4, 1)], ids=str)
@pytest.mark.parametrize("name", kernel_sums.SUMS)
def test_kernel_sums(name: str, size: tuple[int, int, int], compiled: bool) -> None:
    torch.manual_seed(0)
    args = kernel_sums.work(name, *size).inputs("cpu")
    form = next(iter(kernel_sums.SUMS[name][0].values()))
    reference = partial(form, kernel_sums.squares)
    compare(part_of(kernel_sums.PROGRAM, name), name, args, reference, compiled)


@TIERS
@pytest.mark.parametrize(("n", "steps"), [(3, 9), (2, 1), (1, 3), (2, 0)])
@pytest.mark.parametrize("name", simulations.SIMULATIONS)
def test_simulations(name: str, n: int, steps: int, compiled: bool) -> None:
    torch.manual_seed(0)
    whole, step, _, numbers, _ = simulations.SIMULATIONS[name]
    numbers = {**numbers, "dt": 0.05} if "dt" in numbers else numbers  # so that balls bounce
    tensors = simulations.inputs(name, n, "cpu")
    exact = [torch.tensor(value, dtype=torch.float64) for value in numbers.values()]
    args = [*tensors, *exact, steps]

    def reference(*args: Any) -> Any:
        given = dict(zip(numbers, args[len(tensors) : -1], strict=True))
        return whole(step, *args[: len(tensors)], T=args[-1], **given)

    compare(simulations.text_of(name), name, args, reference, compiled)


def test_a_ball_bounces_where_it_should() -> None:
    """One impact, by hand: the first speed's derivative has the restitution and a sign."""
    bounce, dt, steps = 0.5, 0.1, 10
    x, v, g = (torch.tensor(value, dtype=torch.float64) for value in ([[1.0]], [[-2.0]], [0.0]))
    args = [x, v, g, bounce, dt, steps]
    found = program(simulations.text_of("balls"))
    (y,) = found.value("balls", args)
    assert y[0, 0] == pytest.approx(bounce * (2.0 * dt * steps - 1.0))
    gradients = found.adjoint("balls", args, [torch.ones(1, 1, dtype=torch.float64).numpy()])
    assert float(gradients[0][0, 0]) == pytest.approx(-bounce)
    assert float(gradients[1][0, 0]) == pytest.approx(-bounce * dt * steps)


SIZES: dict[str, list[tuple[int, ...]]] = {
    "grouped_gemm": [(7, 4, 8, 3), (1, 1, 1, 1)],
    "jagged_sum": [(4, 3, 5), (1, 4, 1)],
    "jagged_mean": [(4, 3, 5), (1, 4, 1)],
    "attention": [(2, 5, 3), (1, 1, 1)],
}


@TIERS
@pytest.mark.parametrize(
    ("name", "size"),
    [(name, size) for name in tutorial_kernels.KERNELS
     for size in SIZES.get(name, [(3, 5), (1, 1), (5, 1)])],
)  # fmt: skip
def test_tutorial_kernels(name: str, size: tuple[int, ...], compiled: bool) -> None:
    torch.manual_seed(0)
    kernel = tutorial_kernels.KERNELS[name]
    text = part_of(tutorial_kernels.PROGRAM, kernel.name)
    reference = list(kernel.peers.values())[0 if name == "grouped_gemm" else 1]
    compare(text, kernel.name, kernel.inputs(*size), reference, compiled)


INTERPRETED = """
import torch
from papers import triton_kernels, tutorial_kernels

torch.manual_seed(0)
for name, kernel in tutorial_kernels.KERNELS.items():
    for size in ((3, 5), (1, 1), (2, 5000)) if kernel.triton else ():
        args = kernel.inputs(*size)
        exact = [arg.double() if arg.is_floating_point() else arg for arg in args]
        right = list(kernel.peers.values())[1](*exact).float()
        torch.testing.assert_close(getattr(triton_kernels, kernel.triton)(*args), right)
"""


@pytest.mark.full
@pytest.mark.cpu
def test_kernels_of_triton() -> None:
    """By Triton's own interpreter, which needs no GPU."""
    pytest.importorskip("triton")
    code = f"import sys\nsys.path.append({str(ROOT / 'benchmarks')!r})\n{INTERPRETED}"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment)


# --------------------------------------------------------------------------------- the tables

OTHERS = {
    "kernel_sums": {"KeOps": "pykeops"}, "simulations": {"Warp": "warp", "Taichi": "taichi"},
    "tutorial_kernels": {},
}  # fmt: skip
ROWS = {
    "kernel_sums": ["nearest 7x5x3"], "simulations": ["balls 3x7"],
    "tutorial_kernels": ["jagged_mean 4x3x5"],
}  # fmt: skip


@pytest.mark.cpu
@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_each_table(name: str, tmp_path: Path) -> None:
    wanted = [row.split()[0] for row in ROWS[name]]
    assert set(measured(name, tmp_path, "--rows", *wanted)) == both(*ROWS[name])


@pytest.mark.full
@pytest.mark.cpu
@pytest.mark.parametrize(("name", "count"), [("kernel_sums", 7), ("simulations", 6),
                                             ("tutorial_kernels", 16)])  # fmt: skip
def test_all_rows(name: str, count: int, tmp_path: Path) -> None:
    assert len(measured(name, tmp_path)) == count


def measured(name: str, tmp_path: Path, *args: str) -> dict[str, dict[str, Any]]:
    """Rows, in which nothing is missing but libraries that are not installed."""
    found = rows(name, tmp_path, *args, others=OTHERS[name])
    for row in found.values():
        assert all(value > 0 for value in row["results"].values())
    return found


def test_lines_of_code_are_counted_alike() -> None:
    loma = "# remark\n\ndef f(x : In[float]) -> float:\n    # remark\n    return (x\n        + x)\n"
    assert length(loma) == 3
    assert length('def f(x):\n    """Text.\n\n    More."""\n\n    return x  # remark\n') == 2
