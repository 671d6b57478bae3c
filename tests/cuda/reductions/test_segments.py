"""Loops over segments whose places data say, side by side where no two of these meet: values and
gradients, in the interpreter and on the shim."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import oracle
import pytest
from sampled import diagonals, one_in
import shim
import torch
from torch import Tensor

from loma import pipeline
from loma.backends.interpreter import Interpreter
from loma.core.verify import verify
from loma.passes.device.numbers import on_device

HEAD = "(x : In[Tensor[L, D]], start : In[IntTensor[B + 1]])"
SUMS = f"""
def sums{HEAD} -> Tensor[B, D]:
    y : Tensor[B, D]
    y[b, d] = sum(x[l, d] * x[l, d] for l in range(start[b + 0], start[b + 1]))
    return y

def totals{HEAD} -> Tensor[B, D]:
    y : Tensor[B, D]
    for b in range(B):
        for l in range(start[b], start[b + 1]):
            y[b, d] += x[l, d] * x[l, d]
    return y
"""
SPREAD = f"""
def shares{HEAD} -> Tensor[L, D]:
    y : Tensor[L, D]
    s : Tensor[B, D]
    s[b, d] = sum(exp(x[l, d]) for l in range(start[b + 0], start[b + 1]))
    for b in range(B):
        for l in range(start[b], start[b + 1]):
            y[l, d] = exp(x[l, d]) / s[b, d]
    return y

def several{HEAD} -> Tensor[L, D]:
    y : Tensor[L, D]
    t : Tensor[B, D]
    for b in range(B):
        a : float = 2.0 + b
        t[b, d] = 0.5
        for l in range(start[b], start[b + 1]):
            y[l, d] += a * x[l, d]
            t[b, d] += x[l, d]
        for l in range(start[b], start[b + 1]):
            y[l, d] = y[l, d] + t[b, d]
    return y
"""
OWN = f"""
def centred{HEAD} -> Tensor[L, D]:
    y : Tensor[L, D]
    for b in range(B):
        m : Tensor[D]
        n : float
        for l in range(start[b], start[b + 1]):
            m[d] += x[l, d]
            n += 1.0
        for l in range(start[b], start[b + 1]):
            y[l, d] = x[l, d] * exp(-m[d] / (n + 1.0))
    return y

def softmax{HEAD} -> Tensor[L, D]:
    y : Tensor[L, D]
    for b in range(B):
        if start[b + 1] > start[b]:
            m : Tensor[D]
            s : Tensor[D]
            m[d] = max(x[l, d] for l in range(start[b], start[b + 1]))
            s[d] = sum(exp(x[l, d] - m[d]) for l in range(start[b], start[b + 1]))
            for l in range(start[b], start[b + 1]):
                y[l, d] = exp(x[l, d] - m[d]) / s[d]
    return y

def softmaxes{HEAD} -> Tensor[L, D]:
    y : Tensor[L, D]
    for b in range(B):
        m : Tensor[D]
        s : Tensor[D]
        m[d] = max(x[l, d] for l in range(start[b], start[b + 1]))
        s[d] = sum(exp(x[l, d] - m[d]) for l in range(start[b], start[b + 1]))
        for l in range(start[b], start[b + 1]):
            y[l, d] = exp(x[l, d] - m[d]) / s[d]
    return y

def sines{HEAD} -> Tensor[L, D]:
    y : Tensor[L, D]
    for b in range(B):
        if start[b + 1] > start[b]:
            s : Tensor[D]
            for l in range(start[b], start[b + 1]):
                s[d] += 1.5 - x[l, d]
                s[d] += sin(x[l, d])
            for l in range(start[b], start[b + 1]):
                y[l, d] += sin(s[d]) * x[l, d]
            s[d] = 2.0 * s[d]
            for l in range(start[b], start[b + 1]):
                y[l, d] += s[d]
    return y

def last{HEAD} -> Tensor[D]:
    y : Tensor[L, D]
    z : Tensor[D]
    for b in range(B):
        s : Tensor[D]
        s[d] = sum(x[l, d] * x[l, d] for l in range(start[b], start[b + 1]))
        z[d] = s[d]
        for l in range(start[b], start[b + 1]):
            y[l, d] = s[d] * x[l, d]
    z[d] += y[l, d]
    return z
"""
PLACES = """
def told(x : In[Tensor[L, D]], start : In[IntTensor[B + 1]], kept : Out[Tensor[D]]) -> Tensor[L, D]:
    y : Tensor[L, D]
    for b in range(B):
        kept[d] = 2.0 + b
        for l in range(start[b], start[b + 1]):
            y[l, d] = kept[d] * x[l, d]
    return y

def places(x : In[Tensor[L]], at : In[IntTensor[L]], start : In[IntTensor[B + 1]],
           scale : In[Tensor[B]]) -> Tensor[5]:
    z : Tensor[5]
    for b in range(B):
        for l in range(start[b], start[b + 1]):
            z[at[l]] += scale[b] * x[l]
    return z

def counted(x : In[Tensor[L, D]], at : In[IntTensor[L]], start : In[IntTensor[B + 1]],
            z : Out[Tensor[K]], total : Out[Tensor[D]]):
    for b in range(B):
        for l in range(start[b], start[b + 1]):
            z[at[l]] += x[l, 0]
    for b in range(B):
        for l in range(start[b], start[b + 1]):
            total[d] += x[l, d]

def spans(x : In[Tensor[L, D]], low : In[IntTensor[B]], high : In[IntTensor[B]],
          w : In[Tensor[B]]) -> Tensor[B, D]:
    y : Tensor[B, D]
    y[b, d] = w[b] * sum(sin(x[l, d]) for l in range(low[b + 0], high[b + 0]))
    return y

def painted(x : In[Tensor[L, D]], low : In[IntTensor[B]], high : In[IntTensor[B]],
            w : In[Tensor[B]]) -> Tensor[L, D]:
    y : Tensor[L, D]
    for b in range(B):
        s : Tensor[D]
        s[d] = sum(x[l, d] for l in range(low[b], high[b]))
        for l in range(low[b], high[b]):
            y[l, d] = s[d] + w[b] * x[l, d]
    return y

def moving(x : In[Tensor[L, D]], length : In[IntTensor[B]]) -> Tensor[L, D]:
    y : Tensor[L, D]
    start : IntTensor[B]
    for b in range(1, B):
        start[b] = start[b - 1] + length[b - 1]
    for b in range(B):
        for l in range(start[b], start[b] + length[b]):
            y[l, d] = x[l, d] * x[l, d] * b
    return y
"""
# Segments one after the other, of which one is all there is, that meet, in another order with gaps,
# of length 0 and less, none.
STARTS = (
    [0, 3, 3, 7, 20], [0, 20], [4, 9, 2, 20, 18, 20], [12, 15, 3, 5, 0, 2], [0, 0, 0], [5],
)  # fmt: skip
SIZES = ((20, 1), (20, 5), (20, 70))


def _segments(start: list[int]) -> Iterator[range]:
    for begin, end in pairwise(start):
        yield range(begin, max(begin, end))


def _sums(x: Tensor, start: list[int]) -> Tensor:
    rows = [(x[list(rows)] ** 2).sum(0) for rows in _segments(start)]
    return torch.stack(rows) if rows else x.new_zeros(0, x.shape[1])


def _shares(x: Tensor, start: list[int]) -> Tensor:
    """Where segments meet, an element has the value of the last one."""
    y = torch.zeros_like(x)
    for rows in map(list, _segments(start)):
        y = y.index_put((torch.tensor(rows, dtype=torch.long),), x[rows].softmax(0))
    return y


def _centred(x: Tensor, start: list[int]) -> Tensor:
    """Where segments meet, an element has the value of the last one."""
    y = torch.zeros_like(x)
    for rows in map(list, _segments(start)):
        mean = x[rows].sum(0) / (len(rows) + 1.0)
        y = y.index_put((torch.tensor(rows, dtype=torch.long),), x[rows] * (-mean).exp())
    return y


def _sines(x: Tensor, start: list[int]) -> Tensor:
    y = torch.zeros_like(x)
    for rows in map(list, _segments(start)):
        s = (1.5 - x[rows] + x[rows].sin()).sum(0)
        y = y.index_add(0, torch.tensor(rows, dtype=torch.long), s.sin() * x[rows] + 2.0 * s)
    return y


def _last(x: Tensor, start: list[int]) -> Tensor:
    y, z = torch.zeros_like(x), x.new_zeros(x.shape[1])
    for rows in map(list, _segments(start)):
        z = x[rows].square().sum(0)
        y = y.index_put((torch.tensor(rows, dtype=torch.long),), x[rows] * z)
    return z + y.sum(0)


def _several(x: Tensor, start: list[int]) -> Tensor:
    y = list(torch.zeros_like(x))
    for b, rows in enumerate(_segments(start)):
        t = 0.5 + x[list(rows)].sum(0)
        for row in rows:
            y[row] = y[row] + (2.0 + b) * x[row]
        for row in rows:
            y[row] = y[row] + t
    return torch.stack(y)


PEERS: dict[str, Callable[[Tensor, list[int]], Tensor]] = {
    "sums": _sums, "totals": _sums, "shares": _shares, "several": _several, "centred": _centred,
    "softmaxes": _shares, "softmax": _shares, "sines": _sines, "last": _last,
}  # fmt: skip


@pytest.fixture(scope="module")
def module(request: pytest.FixtureRequest) -> Iterator[Any]:
    """On a GPU, or on the shim in its place."""
    program = "\n".join((SUMS, SPREAD, OWN, PLACES))
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--device") != "cpu":
            patch.setenv("LOMA_CHECK", "sync")
            yield oracle.compiled(program)
            return
        with shim.compiled(program) as found:
            patch.setenv("LOMA_CHECK", "sync")
            yield found


@pytest.mark.parametrize(("name", "start"), diagonals(4, PEERS, STARTS), ids=str)
def test_values_and_gradients(module: Any, name: str, start: list[int]) -> None:
    if name == "softmaxes" and any(a >= b for a, b in pairwise(start)):
        return  # there is no largest of none
    for shape in SIZES:
        generator = torch.Generator().manual_seed(shape[1])
        x = torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
        expected = PEERS[name](x, start)
        found = getattr(module, name)(x, torch.tensor(start))
        torch.testing.assert_close(found, expected)
        weight = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
        if not expected.requires_grad:
            assert not expected.any()
            continue
        (wanted,) = torch.autograd.grad(expected, x, weight)
        (gradient,) = torch.autograd.grad(found, x, weight)
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("start", [[0, 69000, 70000], [0, 70000], [0, 3, 69000, 3, 70000]], ids=str)
def test_long_segments(module: Any, start: list[int]) -> None:
    """Blocks share one segment."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(70000, 2, dtype=torch.float64, generator=generator)
    for name in ("sums", "totals"):
        found = getattr(module, name)(x, torch.tensor(start))
        torch.testing.assert_close(found, _sums(x, start))
        assert torch.equal(found, getattr(module, name)(x, torch.tensor(start)))


@pytest.mark.parametrize("start", STARTS, ids=str)
def test_places_that_data_say(module: Any, start: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20, dtype=torch.float64, generator=generator).requires_grad_()
    scale = torch.randn(len(start) - 1, dtype=torch.float64, generator=generator).requires_grad_()
    at = torch.randint(0, 5, (20,), generator=generator)
    at[10:12] = -1  # in no segment but those that would be told of it
    if any(row in rows for rows in _segments(start) for row in (10, 11)):
        at[10:12] = 2
    expected = torch.zeros(5, dtype=torch.float64)
    for b, rows in enumerate(map(list, _segments(start))):
        expected = expected.index_add(0, at[rows], scale[b] * x[rows])
    found = module.places(x, at, torch.tensor(start), scale)
    torch.testing.assert_close(found, expected)
    if expected.requires_grad:
        weight = torch.randn(5, dtype=torch.float64, generator=generator)
        wanted = torch.autograd.grad(expected, (x, scale), weight)
        torch.testing.assert_close(torch.autograd.grad(found, (x, scale), weight), wanted)


# In order and meeting, all alike but for the end, disjoint in any order, meeting in no order, with
# empty ones, out of which some are no place, none.
SPANS: tuple[tuple[list[int], list[int]], ...] = (
    ([0, 2, 5, 7], [4, 6, 8, 20]), ([0, 0, 3, 3], [5, 5, 5, 12]), ([9, 4, 0], [20, 9, 2]),
    ([0, 2, 5], [6, 4, 9]), ([3, 3, 9, 9], [3, 7, 9, 20]), ([0, 30, 4], [6, 30, 5]), ([], []),
)  # fmt: skip


@pytest.mark.parametrize(("low", "high"), SPANS, ids=str)
@pytest.mark.parametrize("columns", [1, 70])
def test_segments_that_meet(module: Any, low: list[int], high: list[int], columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    x = torch.randn(20, columns, dtype=torch.float64, generator=generator).requires_grad_()
    w = torch.randn(len(low), dtype=torch.float64, generator=generator).requires_grad_()
    rows = [list(range(a, max(a, b))) for a, b in zip(low, high, strict=True)]
    sums = [w[k] * x[row].sin().sum(0) for k, row in enumerate(rows)]
    painted = torch.zeros_like(x)
    for k, row in enumerate(rows):
        values = x[row].sum(0) + w[k] * x[row]
        painted = painted.index_put((torch.tensor(row, dtype=torch.long),), values)
    wanted = {"spans": torch.stack(sums) if sums else x[:0], "painted": painted}
    for name, expected in wanted.items():
        bounds = torch.tensor(low, dtype=torch.long), torch.tensor(high, dtype=torch.long)
        found = getattr(module, name)(x, *bounds, w)
        torch.testing.assert_close(found, expected)
        weight = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
        if expected.requires_grad and low:
            right = torch.autograd.grad(expected, (x, w), weight)
            torch.testing.assert_close(torch.autograd.grad(found, (x, w), weight), right)


def test_what_the_caller_reads_is_kept(module: Any) -> None:
    x, kept = torch.ones(4, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    found = module.told(x, torch.tensor([0, 1, 4]), kept)
    assert found[:, 0].tolist() == [2.0, 3.0, 3.0, 3.0]
    assert kept.tolist() == [3.0, 3.0]


def test_lengths_whose_sums_are_computed_before(module: Any) -> None:
    x = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    length = torch.tensor([2, 0, 3, 4])
    factor = torch.arange(4.0, dtype=torch.float64).repeat_interleave(length)[:, None]
    found = module.moving(x, length)
    torch.testing.assert_close(found, x * x * factor)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(gradient, 2.0 * x * factor)


@pytest.mark.parametrize("start", [[0, 3, 21], [-1, 3, 4], [30, 31], [5, 5, 40]], ids=str)
@pytest.mark.parametrize("name", ["totals", "several"])
def test_what_is_not_there_is_told(module: Any, name: str, start: list[int]) -> None:
    with pytest.raises(ValueError, match=r"subscript 'l' of '.' .*outside dimension 0"):
        getattr(module, name)(torch.zeros(20, 3, dtype=torch.float64), torch.tensor(start))


def test_without_elements_segments_or_columns(module: Any) -> None:
    for shape, start in (((0, 3), [0, 0]), ((4, 3), [0]), ((4, 0), [0, 2, 4]), ((0, 0), [0])):
        x = torch.zeros(shape, dtype=torch.float64)
        assert module.totals(x, torch.tensor(start)).shape == (len(start) - 1, shape[1])
        assert module.several(x, torch.tensor(start)).shape == shape


def test_into_no_elements(module: Any) -> None:
    """Which is an error where a segment has one."""
    x, z = torch.ones(4, 3, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    at = torch.zeros(4, dtype=torch.long)
    for size, start in ((0, [0, 0, 0]), (0, [2, 1]), (1, [0, 2, 4]), (1, [0, 2, 1])):
        z = torch.zeros(size, dtype=torch.float64)
        total = torch.zeros(3, dtype=torch.float64)
        module.counted(x, at, torch.tensor(start), z, total)
        count = sum(map(len, _segments(start)))
        torch.testing.assert_close(total, torch.full((3,), float(count), dtype=torch.float64))
        torch.testing.assert_close(z, total[:size])
    with pytest.raises(ValueError, match=r"of 'z' .*outside dimension 0"):
        module.counted(x, at, torch.tensor([0, 2]), torch.zeros(0, dtype=torch.float64), total)


@pytest.mark.parametrize("name", ["sums", "several"])
def test_results_are_the_same_each_time(module: Any, name: str) -> None:
    x = torch.randn(20, 70, dtype=torch.float64, requires_grad=True)
    for start in STARTS[:4]:
        at = torch.tensor(start)
        gradients = []
        for _ in range(3):
            value = getattr(module, name)(x, at)
            gradients.append(torch.autograd.grad(value, x, torch.ones_like(value))[0])
        assert torch.equal(gradients[0], gradients[1])
        assert torch.equal(gradients[0], gradients[2])


@pytest.mark.parametrize("start", one_in(2, STARTS), ids=str)
def test_in_the_interpreter(start: list[int]) -> None:
    final = pipeline.program("\n".join((SUMS, SPREAD, OWN)), every=True)
    new = on_device(final.module)
    verify(new)
    both = Interpreter(final.module), Interpreter(new)
    generator = np.random.default_rng(0)
    x, at = generator.normal(size=(20, 5)), np.array(start)
    for name in PEERS:
        if name == "softmaxes" and any(a >= b for a, b in pairwise(start)):
            continue
        (old,), (found,) = (each.call(name, x, at) for each in both)
        np.testing.assert_allclose(found, old, rtol=1e-12)
    weight = generator.normal(size=(len(start) - 1, 5))
    for name in ("sums", "totals"):
        given = [x, at, weight, 1]
        (old,), (found,) = (each.call(f"{name}__backward", *given) for each in both)
        np.testing.assert_allclose(found, old, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "many"),
    [
        ("sums__backward", 1),
        ("totals", 0),
        ("totals__backward", 1),
        ("shares", 1),
        ("several", 2),
        ("centred", 1),
        ("centred__backward", 2),
        ("softmaxes", 1),
        ("softmaxes__backward", 2),
    ],
)
def test_which_loops_are_left(name: str, many: int) -> None:
    """What runs over elements, and that the host waits for nothing."""
    text = pipeline.stage_text("\n".join((SUMS, SPREAD, OWN)), "kernels", name, device="cuda")
    statements = [line for line in text.splitlines() if "_owner[_element" in line]
    assert len([line for line in statements if "_shared[()] +=" not in line]) == many
    lines = text.splitlines()
    loops = [k for k, line in enumerate(lines) if line.strip().startswith("for b in")]
    around = [[line for line in lines[:k] if "private" not in line][-1] for k in loops]
    assert all("parallel d" in line for line in around)
    schedule = pipeline.stage_text("\n".join((SUMS, SPREAD, OWN)), "schedule", name, device="cuda")
    assert not re.search(r"otherwise:\n *for b", schedule)


def test_as_many_segments_as_a_loop_around_says() -> None:
    """Nothing in front of that loop can have a size that its counter tells."""
    text = f"""
def f{HEAD} -> Tensor[L, D]:
    y : Tensor[L, D]
    for t in range(B):
        for b in range(t):
            for l in range(start[b], start[b + 1]):
                y[l, d] += x[l, d]
    return y
"""
    assert "_owner" not in pipeline.stage_text(text, "kernels", "f", device="cuda")
    every = text.replace("range(t)", "range(B)")
    assert "_owner" in pipeline.stage_text(every, "kernels", "f", device="cuda")


@pytest.mark.parametrize(
    "inside",
    [
        "y[l, d] += x[l, d] * y[0, d]",  # reads another segment's element
        "y[l, d] += s[b, d]\n            s[b, d] += x[l, d]",  # and what the rounds before made
        "y[l // 2, d] = x[l, d]",  # goes elsewhere than the segment's elements
        "y[l, d] += n * x[l, d]\n        n = 1.0 + b",  # has another segment's number
    ],
    ids=["others", "running", "places", "before"],
)
def test_what_stays_a_loop(inside: str) -> None:
    text = f"""
def f{HEAD} -> Tensor[L, D]:
    y : Tensor[L, D]
    s : Tensor[B, D]
    n : float
    for b in range(B):
        for l in range(start[b], start[b + 1]):
            {inside}
    return y
"""
    assert "_owner" not in pipeline.stage_text(text, "kernels", "f", device="cuda")
