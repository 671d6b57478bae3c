"""Attention by statements against ``scaled_dot_product_attention``, and the memory that it takes.

With and without a causal mask, forward alone and forward with backward. Float32; the numbers are
loma's speed as a ratio to PyTorch's (above 1: loma is faster), medians of interleaved runs. Then
the most memory that one step holds at once, with its results, while the number of rows T doubles:
the weights alone would be T * T numbers for each head.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from calls import both, inference, prepare, side_by_side
from harness import settings_of, settings_parser
from torch import Tensor

import loma
from loma import memory

_FUNCTION = """
def NAME(
    q : In[Tensor[B, T, D]], k : In[Tensor[B, S, D]], v : In[Tensor[B, S, D]],
) -> Tensor[B, T, D]:
    s : Tensor[B, T, S]
    m : Tensor[B, T]
    e : Tensor[B, T, S]
    z : Tensor[B, T]
    p : Tensor[B, T, S]
    y : Tensor[B, T, D]
    s[b, i, j] = 0.125 * sum(q[b, i, d] * k[b, j, d] for d in D)
    m[b, i] = max(s[b, i, j] for j in S)
    e[b, i, j] = exp(s[b, i, j] - m[b, i])MASK
    z[b, i] = sum(e[b, i, j] for j in S)
    p[b, i, j] = e[b, i, j] / z[b, i]
    y[b, i, d] = sum(p[b, i, j] * v[b, j, d] for j in S)
    return y
"""
PROGRAM = _FUNCTION.replace("NAME", "attention").replace("MASK", "") + _FUNCTION.replace(
    "NAME", "causal"
).replace("MASK", " if j <= i else 0.0")
WIDTH = 64
SIZES = [(16, 256), (8, 2048), (8, 8192)]  # heads, rows
LONG = (4, [2048, 4096, 8192, 16384])


def _arguments(heads: int, rows: int) -> list[Tensor]:
    return [torch.randn(heads, rows, WIDTH, requires_grad=True) for _ in range(3)]


def _peer(causal: bool, *args: Tensor) -> Tensor:
    q, k, v = (x[None] for x in args)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)[0]


def main() -> None:
    options = settings_parser(__doc__ or "").parse_args()
    settings = settings_of(options)
    prepare(options.threads)
    module = loma.compile(PROGRAM)
    print(f"{'':44s} {'loma ms':>9s} {'PyTorch':>9s}")
    for heads, rows in [(2, 16)] if options.quick else SIZES:
        args = _arguments(heads, rows)
        for name in ("attention", "causal"):
            own = getattr(module, name)
            peer = partial(_peer, name == "causal")
            torch.testing.assert_close(own(*args), peer(*args), rtol=1e-3, atol=1e-3)
            for what, make in (("forward", inference), ("forward + backward", both)):
                calls = {"loma": make(own, args), "PyTorch": make(peer, args)}
                times = side_by_side(calls, ["loma"], settings)
                ratio, ms = times.ratio("PyTorch", "loma"), 1e3 * times.median("loma")
                print(f"{f'{name}, {heads}x{rows}x{WIDTH}, {what}':44s} {ms:9.2f} {ratio:8.2f}x")
    heads, lengths = (2, [16, 32]) if options.quick else LONG
    print(f"\nforward + backward, {heads} heads: MiB of memory, beside those of all weights")
    for rows in lengths:
        step = both(module.attention, _arguments(heads, rows))
        memory.release()
        before = memory.stats().in_use
        step()
        taken, weights = memory.stats().peak - before, 4 * heads * rows * rows
        print(f"T = {rows:6d}  {taken / 2**20:8.1f}  {weights / 2**20:8.1f}")


if __name__ == "__main__":
    main()
