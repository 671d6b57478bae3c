"""Values of a second axis that share a tile's registers: any extents, any number of threads."""

from __future__ import annotations


import pytest
import torch
from sampled import diagonals, one_in
import torch.nn.functional as F
from torch import Tensor

import loma
from loma.backends.registry import CPU
from loma.backends.torch import codegen
from loma.frontend import parse

VALUES = (0, 1, 3, 4, 5, 8, 9, 13)  # of the second axis
ROWS = (7, 16, 33)
SUMMED = (0, 1, 8, 9, 70)
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}

# The third factors keep the products from the library. The length of a row is known. What is under
# no_diff is the same loop, without the backward functions that nothing here calls.
PRODUCTS = """
def products_{row}(
    w : In[Tensor[R, K, {row}]], x : In[Tensor[B, R, K]], c : In[Tensor[{row}]],
    y0 : In[Tensor[B, R, {row}]]
) -> tuple[Tensor[B, R, {row}], Tensor[B, R, {row}]]:
    u : Tensor[B, R, {row}]
    y : Tensor[B, R, {row}] = no_diff(y0)
    u[b, r, o] = no_diff(sum(w[r, k, o] * x[b, r, k] * c[o] for k in K))
    y[b, r, o] += no_diff(w[r, k, o] * x[b, r, k] * c[o])
    return u, y
"""

OTHERS = """
def extremes(
    w : In[Tensor[K, 17]], x : In[Tensor[B, K]]
) -> tuple[Tensor[B, 17], Tensor[B, 17], Tensor[B, 17]]:
    a : Tensor[B, 17]
    b : Tensor[B, 17]
    c : Tensor[B, 17]
    a[i, o] = no_diff(max(w[k, o] * x[i, k] for k in K))
    b[i, o] = no_diff(min(w[k, o] * x[i, k] for k in K))
    c[i, o] = no_diff(prod(w[k, o] * x[i, k] for k in K))
    return a, b, c

def windows(x : In[Tensor[C, H, 41]], f : In[Tensor[3, 3, H, 41]]) -> Tensor[C, H, 41]:
    z : Tensor[C, H, 41]
    z[c, h, w] += no_diff(zero_pad(x[c, h + p - 1, w + q - 1]) * f[p, q, h, w])
    return z
"""
ANY = "".join(PRODUCTS.format(row=row) for row in ROWS) + OTHERS

# Sizes that the compiler knows: of the second axis and of the row.
KNOWN = """
def known_{n}_{m}(
    d : In[Tensor[B, 5, {n}]], x : In[Tensor[B, 5, {m}]], c : In[Tensor[B]],
    y0 : In[Tensor[5, {n}, {m}]]
) -> tuple[Tensor[5, {n}, {m}], Tensor[5, {n}, {m}]]:
    g : Tensor[5, {n}, {m}]
    y : Tensor[5, {n}, {m}] = no_diff(y0)
    g[r, o, k] = no_diff(sum(d[b, r, o] * x[b, r, k] * c[b] for b in B))
    y[r, o, k] += no_diff(d[b, r, o] * x[b, r, k] * c[b])
    return g, y
"""
SIZES = ((5, 16), (13, 7), (16, 8))


@pytest.fixture(scope="module")
def program() -> loma.LomaModule:
    return loma.compile(ANY)


@pytest.fixture(scope="module")
def known() -> loma.LomaModule:
    return loma.compile("".join(KNOWN.format(n=n, m=m) for n, m in SIZES))


def _close(found: Tensor, right: Tensor) -> bool:
    tolerance = TOLERANCE[found.dtype]
    scale = 1 + float(right.abs().max()) if right.numel() else 1.0
    return torch.allclose(found, right, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.full
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("row", ROWS)
def test_any_sizes(program: loma.LomaModule, row: int, dtype: torch.dtype) -> None:
    for values in VALUES:
        for summed in SUMMED:
            w = torch.randn(2, summed, row, dtype=dtype)
            x, c = torch.randn(values, 2, summed, dtype=dtype), torch.randn(row, dtype=dtype)
            before = torch.randn(values, 2, row, dtype=dtype)
            right = torch.einsum("rko,brk,o->bro", w, x, c)
            u, y = getattr(program, f"products_{row}")(w, x, c, before)
            assert _close(u, right), (values, summed)
            assert _close(y, before + right), (values, summed)


@pytest.mark.full
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_other_reductions(program: loma.LomaModule, dtype: torch.dtype) -> None:
    for values in VALUES:
        w, x = torch.randn(9, 17, dtype=dtype), torch.randn(values, 9, dtype=dtype)
        terms = w * x[:, :, None]
        found = program.extremes(w, x)
        assert torch.equal(found[0], terms.amax(1))
        assert torch.equal(found[1], terms.amin(1))
        assert _close(found[2], terms.prod(1))


@pytest.mark.parametrize("dtype", one_in(2, TOLERANCE))
def test_windows(program: loma.LomaModule, dtype: torch.dtype) -> None:
    for values in VALUES:
        x = torch.randn(values, 4, 41, dtype=dtype)
        f = torch.randn(3, 3, 4, 41, dtype=dtype)
        around = F.pad(x, (1, 1, 1, 1))
        shifted = [around[:, p : p + 4, q : q + 41] for p in range(3) for q in range(3)]
        right = (torch.stack(shifted, 1) * f.reshape(1, 9, 4, 41)).sum(1)
        assert _close(program.windows(x, f), right), values


@pytest.mark.full
@pytest.mark.parametrize(("sizes", "dtype"), diagonals(4, SIZES, TOLERANCE), ids=str)
def test_known_sizes(known: loma.LomaModule, sizes: tuple[int, int], dtype: torch.dtype) -> None:
    values, row = sizes
    for summed in SUMMED:
        d, x = torch.randn(summed, 5, values, dtype=dtype), torch.randn(summed, 5, row, dtype=dtype)
        c, before = torch.randn(summed, dtype=dtype), torch.randn(5, values, row, dtype=dtype)
        right = torch.einsum("bro,brk,b->rok", d, x, c)
        g, y = getattr(known, f"known_{values}_{row}")(d, x, c, before)
        assert _close(g, right), summed
        assert _close(y, before + right), summed


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("values", [9, 37])
def test_any_number_of_threads(program: loma.LomaModule, values: int) -> None:
    w, x, c = torch.randn(40, 70, 33), torch.randn(values, 40, 70), torch.randn(33)
    before = torch.randn(values, 40, 33)
    image, filters = torch.randn(values, 30, 41), torch.randn(3, 3, 30, 41)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append([*program.products_33(w, x, c, before), program.windows(image, filters)])
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))


def test_nan_stays_with_its_value(program: loma.LomaModule) -> None:
    w, x, c = torch.randn(2, 9, 16), torch.randn(8, 2, 9), torch.randn(16)
    x[5, 1, 3] = torch.nan
    u, _ = program.products_16(w, x, c, torch.zeros(8, 2, 16))
    assert torch.isnan(u[5, 1]).all()
    assert torch.isnan(u).sum() == 16


def _text(source: str) -> str:
    module = parse(source)
    return "\n".join(codegen.lower_function(f, module, CPU).text for f in module.functions)


def test_what_shares_no_operand_has_no_second_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    own = """
def f(w : In[Tensor[B, K, 8]], x : In[Tensor[B, K, 8]]) -> Tensor[B, 8]:
    y : Tensor[B, 8]
    y[b, o] += w[b, k, o] * x[b, k, o]
    return y
"""
    assert "loma::groups" not in _text(own)
    assert "loma::groups" in _text(ANY)
    assert "loma::groups" not in _text(PRODUCTS.format(row="M"))
    monkeypatch.setenv("LOMA_OPT", "-registers")
    assert "loma::groups" not in _text(ANY)


def test_the_second_axis_divides_a_known_size() -> None:
    text = _text("".join(KNOWN.format(n=n, m=m) for n, m in SIZES))
    assert {"<5, 0>", "<8, 0>", "<8, 5>"} <= {
        line.split("loma::groups")[1].split("(")[0]
        for line in text.splitlines()
        if "loma::groups" in line
    }
