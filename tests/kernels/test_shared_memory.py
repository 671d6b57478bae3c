"""Private tensors whose memory is shared, in a loop that several statements run in."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import layer_norm

import loma

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
    program = loma.compile(file)
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
