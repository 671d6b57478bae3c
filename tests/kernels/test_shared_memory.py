"""Private tensors whose memory is shared, in a loop that several statements run in."""

from __future__ import annotations

from pathlib import Path

import oracle
import pytest
import torch
from torch.nn.functional import layer_norm
from tree_runs import run_program

from loma.backends import registry
from loma.backends.cfamily.device import Device

TEXT = """
def f(x : In[Tensor[N, D]], w : In[Tensor[D]], b : In[Tensor[D]]) -> Tensor[N, D]:
    y : Tensor[N, D]
    t : Tensor[N]
    m : Tensor[N]
    q : Tensor[N]
    r : Tensor[N]
    t[i] = sum(x[i, k] for k in D)
    m[i] = t[i] / int2float(D)
    q[i] = sum((x[i, k] - m[i]) * (x[i, k] - m[i]) for k in D)
    r[i] = rsqrt(q[i] / int2float(D) + 1e-5)
    y[i, k] = (x[i, k] - m[i]) * r[i] * w[k] + b[k]
    return y
"""


def test_what_a_vector_loop_reads_is_not_where_it_writes(tmp_path: Path) -> None:
    file = tmp_path / "rows.loma"
    file.write_text(TEXT, encoding="utf-8")
    program = oracle.compiled(file)
    generator = torch.Generator().manual_seed(3)
    for dtype, off in ((torch.float32, 1e-4), (torch.float64, 1e-9)):
        args = [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()
                for shape in ((64, 32), (32,), (32,))]  # fmt: skip
        weight = torch.randn(64, 32, generator=generator, dtype=dtype)
        found = torch.autograd.grad(program.f(*args), args, weight)
        right = torch.autograd.grad(
            layer_norm(args[0], (32,), args[1], args[2], 1e-5), args, weight
        )
        for mine, wanted in zip(found, right, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=off, atol=off)


SUMS = """
def f(x : In[Tensor[N, K]], u : In[Tensor[N, K, M]]) -> Tensor[N, M]:
    c : Tensor[N]
    y : Tensor[N, K]
    a : Tensor[N, M]
    b : Tensor[N, M]
    z : Tensor[N, M]
    c[n] = sum(x[n, k] * x[n, k] for k in K)
    y[n, k] = x[n, k] * c[n]
    a[n, j] = sum(abs(x[n, k] - u[n, k, j]) * y[n, k] for k in K)
    b[n, j] = sum(abs(x[n, k] - u[n, k, j]) for k in K)
    z[n, j] = a[n, j] * b[n, j]
    return z
"""


@pytest.mark.parametrize("device", [registry.CPU, registry.CUDA], ids=["cpu", "gpu"])
def test_what_sums_in_one_loop_read_is_not_where_they_write(device: Device) -> None:
    """``y`` is read for the last time in the loop in which ``b`` is written for the first time."""
    assert all(run_program(SUMS, "sums", tries=8, device=device).values())


def test_sums_in_one_loop() -> None:
    program = oracle.compiled(SUMS)
    x, u = torch.randn(8, 12, dtype=torch.double), torch.randn(8, 12, 9, dtype=torch.double)
    y = x * (x * x).sum(1, keepdim=True)
    away = (x[:, :, None] - u).abs()
    right = (away * y[:, :, None]).sum(1) * away.sum(1)
    torch.testing.assert_close(program.f(x, u), right)
