"""The device side of kernels, by hand-written texts on the shim, against NumPy."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import device_texts as texts
import numpy as np
import pytest
import torch
from sampled import diagonals, one_in
from shim_device import REALS, Form, Kernel, LaunchError, number, seed

from loma.backends.cuda import texts as device
from loma.backends.cuda.texts import headers

Array = np.ndarray[Any, Any]

SIZES = ((0, 5), (1, 0), (1, 1), (3, 31), (40, 32), (33, 33), (2, 1000), (300, 3), (70, 7))
# Threads, team, across.
LAYOUTS = (
    (256, 1, False), (64, 2, False), (64, 8, False), (32, 32, False), (128, 32, False),
    (64, 64, False), (512, 512, False), (1024, 1024, False), (64, 2, True), (256, 8, True),
    (1024, 32, True),
)  # fmt: skip
ALONG = [layout for layout in LAYOUTS if not layout[2]]
FORMS = [
    Form(threads, team, across, slices, blocks=blocks)
    for (threads, team, across), (slices, blocks) in zip(
        LAYOUTS, itertools.cycle(((1, 3), (3, 2), (1, 1))), strict=False
    )
] + [Form(threads, team, across, 5, blocks=2) for threads, team, across in LAYOUTS[1::2]]


def sizes(form: Form) -> list[tuple[int, int]]:
    """Those that many threads are not too long at."""
    return [(n, d) for n, d in SIZES if n * form.threads * form.slices < 60000]


def values(shape: tuple[int, ...], real: str = "float") -> Array:
    random = np.random.default_rng(sum(shape))
    return random.standard_normal(shape).astype(REALS[real])


def written(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array in which what is never written shows."""
    return np.full(shape, -77, dtype)


@pytest.mark.parametrize(("form", "real"), diagonals(12, FORMS, REALS), ids=str)
def test_sums_of_rows(form: Form, real: str) -> None:
    kernel, form = Kernel(texts.ROW_SUMS), replace(form, real=real)
    for n, d in sizes(form):
        x = values((n, d), real)
        y, again = written((n,), x.dtype), written((n,), x.dtype)
        seed(3)
        kernel.launch(form, (y, x, n, d), n)
        np.testing.assert_allclose(y, x.sum(1), rtol=1e-5, atol=1e-5)
        seed(4)
        kernel.launch(form, (again, x, n, d), n)
        assert y.tobytes() == again.tobytes()


@pytest.mark.parametrize("form", one_in(8, FORMS), ids=str)
def test_sums_of_ints_are_exact(form: Form) -> None:
    for n, d in sizes(form):
        x = np.random.default_rng(n).integers(-(2**60), 2**60, (n, d))
        y = written((n,), np.int64)
        Kernel(texts.INT_SUMS).launch(form, (y, x, n, d), n)
        np.testing.assert_array_equal(y, x.sum(1))


@pytest.mark.parametrize("form", one_in(8, FORMS), ids=str)
def test_products_and_extremes(form: Form) -> None:
    for n, d in sizes(form):
        x = values((n, d))
        x[::3, : d // 2] = np.nan
        x[1::3, d // 3 : d // 2] = 1.5
        y = written((n,), x.dtype)
        Kernel(texts.LARGEST).launch(form, (y, x, n, d), n)
        np.testing.assert_array_equal(y, x.max(1, initial=-np.inf))
        Kernel(texts.SMALLEST).launch(form, (y, x, n, d), n)
        np.testing.assert_array_equal(y, x.min(1, initial=np.inf))
        ones = np.sign(values((n, d)))
        Kernel(texts.PRODUCTS).launch(form, (y, ones, n, d), n)
        np.testing.assert_array_equal(y, ones.prod(1))


@pytest.mark.parametrize(("form", "real"), diagonals(12, FORMS, REALS), ids=str)
def test_first_of_the_best_positions(form: Form, real: str) -> None:
    form = replace(form, real=real)
    for n, d in sizes(form):
        if d == 0:
            continue
        x = np.round(values((n, d), real) * 2)
        x[::4, d // 2 :: 3] = np.nan
        y = written((n,), np.int64)
        Kernel(texts.best("Argmax")).launch(form, (y, x, n, d), n)
        np.testing.assert_array_equal(y, x.argmax(1))
        Kernel(texts.best("Argmin")).launch(form, (y, x, n, d), n)
        np.testing.assert_array_equal(y, x.argmin(1))


@pytest.mark.parametrize(("layout", "real"), diagonals(9, LAYOUTS, REALS), ids=str)
def test_two_reductions_of_columns(layout: tuple[int, int, bool], real: str) -> None:
    form = Form(*layout, real=real)
    for n, d in sizes(form):
        if n == 0:
            continue
        x = values((n, d), real)
        y, a = written((d,), x.dtype), np.array(2.5, x.dtype)
        for given in (a, 2.5):
            arguments = (y, x, number(given, real), n, d)
            Kernel(texts.COLUMNS).launch(form, arguments, d)
            np.testing.assert_allclose(y, 2.5 * x.sum(0) + x.max(0), rtol=1e-5, atol=1e-4)
        known = replace(form, known=(n, d))
        again = written((d,), x.dtype)
        if (n, d) == (70, 7):
            Kernel(texts.COLUMNS).launch(known, (again, x, number(a, real), 0, 0), d)
            assert y.tobytes() == again.tobytes()


@pytest.mark.parametrize(("beside", "real"), diagonals(2, [1, 4], REALS))
def test_elements_side_by_side(beside: int, real: str) -> None:
    for n, d in ((3, 16), (5, 6), (7, 1), (1, 4), (300, 8), (2, 0)):
        form = Form(64, real=real, beside=beside)
        x = values((n, d), real)
        y = written((n, d), x.dtype)
        Kernel(texts.PLACES).launch(form, (y, x, n, d), n * d)
        places = 1000 * np.arange(n)[:, None] + np.arange(d)
        np.testing.assert_array_equal(y, x + places.astype(x.dtype))


@pytest.mark.parametrize(("beside", "real"), diagonals(2, [1, 4], REALS))
def test_what_is_added_to_elements(beside: int, real: str) -> None:
    for n, d in ((3, 16), (5, 6), (7, 1), (1, 4), (300, 8), (2, 0)):
        form = Form(64, real=real, beside=beside)
        x, y = (np.round(9 * values((k, n, d), real)[-1]) for k in (1, 2))
        expected = y + x + (1000 * np.arange(n)[:, None] + np.arange(d)).astype(x.dtype)
        Kernel(texts.ADDED).launch(form, (y, x, n, d), n * d)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("layout", "known"),
    diagonals(5, [(64, 8), (64, 1), (32, 32), (64, 64)], [False, True]),
    ids=str,
)
def test_what_teams_add_to_elements(layout: tuple[int, int], known: bool) -> None:
    """Side by side where rows are long enough and multiples of four, several at a time and, at the
    end, fewer."""
    for r, d in ((3, 16), (5, 6), (7, 1), (40, 40), (33, 100), (101, 7), (2, 0)):
        form = Form(*layout, blocks=2, known=(r, d) if known else ())
        x, y = (np.round(9 * values((3 * k, r, d))[-3:]) for k in (1, 2))
        expected = y + x + (1000 * np.arange(r)[:, None] + np.arange(d)).astype(x.dtype)
        Kernel(texts.ADDED_IN_TEAMS).launch(form, (y, x, r, d), 3)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("sums", "real", "known"),
    diagonals(
        7,
        [(4, 1, 4), (1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (4, 2, 1), (1, 3, 1), (2, 4, 1)],
        REALS,
        [False, True],
    ),
    ids=str,
)
def test_several_sums_of_a_thread(sums: tuple[int, int, int], real: str, known: bool) -> None:
    """As many at once as the host says, if the axes have groups of so many."""
    *tile, team = sums
    for b, m, n, k in ((8, 4, 3, 5), (4, 12, 1, 9), (6, 7, 4, 2), (4, 4, 4, 0), (0, 3, 4, 2)):
        w: Array = np.random.default_rng(m).integers(-9, 9, (m, n, k)).astype(REALS[real])
        x: Array = np.random.default_rng(b).integers(-9, 9, (b, m, k)).astype(REALS[real])
        expected = np.einsum("mnk,bmk->bmn", w, x) - w.sum(2)
        sizes = (b, m, n, k) if known else ()
        form = Form(64, team, real=real, tile=(tile[0], tile[1]), known=sizes)
        y, added = written((b, m, n), x.dtype), np.ones((b, m, n), x.dtype)
        Kernel(texts.SEVERAL).launch(form, (y, w, x, b, m, n, k), y.size)
        np.testing.assert_array_equal(y, expected)
        form = Form(64, team, real=real, tile=(tile[0], 1), known=sizes)
        Kernel(texts.SEVERAL_IN_THE_MIDDLE).launch(form, (added, w, x, b, m, n, k), y.size)
        np.testing.assert_array_equal(added, 1 + expected)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("tile", [(5, 1), (4, 3), (3, 1), (1, 1), (5, 4)])
def test_several_sums_of_places_that_may_lie_outside(tile: tuple[int, int], known: bool) -> None:
    for q, n, c in ((5, 7, 3), (20, 3, 2), (3, 1, 1), (5, 4, 0), (5, 8, 2)):
        g, x = (np.random.default_rng(k).integers(-9, 9, (c, n)).astype(np.float32) for k in (1, 2))
        wide = np.pad(x, ((0, 0), (1, q)))
        expected = np.stack(
            [(g * wide[:, k : k + n]).sum(0) + (k > 0) * g[:, :1].sum() for k in range(q)]
        )
        form = Form(64, 1, tile=tile, known=(q, n, c) if known else ())
        y = written((q, n), x.dtype)
        Kernel(texts.SEVERAL_TESTED).launch(form, (y, g, x, q, n, c), y.size)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(("layout", "real"), diagonals(8, ALONG, REALS), ids=str)
def test_columns_of_parts(layout: tuple[int, int, bool], real: str) -> None:
    """Few columns have several threads each, as many have one, and some threads have none."""
    form = Form(*layout, blocks=2, real=real)
    for r, d in ((40, 3), (9, 1), (200, 12), (33, 100), (64, 160), (8, 5), (100, 0), (2, 300)):
        n = 3
        x: Array = np.random.default_rng(r * d).integers(-9, 9, (n, r, d)).astype(REALS[real])
        y, s = written((n, r, d), x.dtype), written((n, d), x.dtype)
        b = written((n, d), np.int64)
        Kernel(texts.COLUMNS_OF_PARTS).launch(form, (y, s, b, x, r, d), n)
        places = (10 * np.arange(r)[:, None] + np.arange(d)).astype(x.dtype)
        np.testing.assert_array_equal(y, x + places)
        np.testing.assert_array_equal(s, y.sum(1))
        np.testing.assert_array_equal(b, x.argmax(1) if x.size else b)


@pytest.mark.parametrize("layout", one_in(3, [(64, 32), (64, 1), (128, 128)]), ids=str)
def test_long_kernels_give_the_same(layout: tuple[int, int]) -> None:
    """The form of a kernel with many loops has each of them once."""
    long = device.LONG + device.INCLUDE + texts.COLUMNS_OF_PARTS
    for r, d in ((3, 33), (40, 12), (2, 600), (70, 64)):
        x = values((2, r, d), "float")
        found = []
        for text in (texts.COLUMNS_OF_PARTS, long):
            y, s = written((2, r, d), x.dtype), written((2, d), x.dtype)
            b = written((2, d), np.int64)
            Kernel(text).launch(Form(*layout), (y, s, b, x, r, d), 2)
            found.append([array.tobytes() for array in (y, s, b)])
        assert found[0] == found[1]
        assert not np.isnan(y).any()


@pytest.mark.parametrize(
    ("layout", "shared", "real"), diagonals(10, ALONG, [True, False], REALS), ids=str
)
def test_fused_softmax(layout: tuple[int, int, bool], shared: bool, real: str) -> None:
    form = Form(*layout, shared=shared, real=real)
    tolerance = 1e-5 if real == "float" else 1e-13
    for n, d, m in ((0, 4, 2), (1, 1, 1), (5, 31, 1), (9, 33, 11), (300, 6, 3), (3, 1000, 500),
                    (2, 1000, 10), (1, 800, 20),
                    (1, 2048, 32), (1, 2100, 33), (1, 1024, 512)):  # fmt: skip
        x = values((n, d), real)
        private = 16 + (d * x.itemsize + 15) // 16 * 16
        if n * form.threads > 60000 or (
            shared and private * (form.threads // form.team) > 200 << 10
        ):
            continue
        y, b, c = (
            written((n, d), x.dtype), written((n,), np.int64), written((n, d // m), x.dtype),
        )  # fmt: skip
        for given in (5, 6):
            seed(given)
            Kernel(texts.SOFTMAX).launch(form, (y, b, c, x, d, m, 16), n, private)
            e = np.exp(x - x.max(1, keepdims=True))
            np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=tolerance)
            np.testing.assert_array_equal(b, x.argmax(1))
            sums = e[:, : d // m * m].reshape(n, d // m, m).sum(2)
            np.testing.assert_allclose(c, sums, rtol=tolerance)


@pytest.mark.parametrize(("layout", "shared"), diagonals(8, ALONG, [True, False]), ids=str)
def test_steps_wait_for_each_other(layout: tuple[int, int, bool], shared: bool) -> None:
    form = Form(*layout, shared=shared)
    for n, d in ((1, 1), (7, 33), (3, 1000), (60, 8)):
        private = (d * 4 + 15) // 16 * 16
        if shared and private * (form.threads // form.team) > 200 << 10:
            continue
        x = values((n, d))
        y, z = written((n, d), x.dtype), written((n, d), x.dtype)
        for given in range(4):
            seed(given)
            Kernel(texts.REVERSED).launch(form, (y, z, x, d), n, private)
            np.testing.assert_array_equal(y, x[:, ::-1])
            np.testing.assert_array_equal(z, x + (x[:, -1:] + 1))


def check(name: str) -> int:
    """The number of a loma::Check: its place among them, from 1."""
    body = headers()["report.h"].partition("enum class Check : int32_t {")[2].partition("}")[0]
    return re.findall(r"^ +(\w+)[ =\d]*,", body, re.MULTILINE).index(name) + 1


def test_first_failure_is_told() -> None:
    kernel, x = Kernel(texts.GATHER), values((8,))
    q = np.arange(100) % 8
    y = written((100,), x.dtype)
    kernel.launch(Form(64), (y, x, q, 8, 2), 100)
    assert kernel.report.state == 0
    np.testing.assert_array_equal(y, x[q] + 3)

    q[41] = -3
    kernel.launch(Form(64), (y, x, q, 8, 2), 100)
    assert (kernel.report.state, kernel.report.kind) == (2, check("outside"))
    assert kernel.report.told() == ["f: line 3: ", "q[p]", "x", ""]
    assert list(kernel.report.numbers)[:4] == [0, 8, -3, 0]
    assert y[41] == x[0] + 3

    q[41] = 0
    kernel.launch(Form(64), (y, x, q, 8, 0), 100)
    assert (kernel.report.state, kernel.report.kind) == (2, check("zero_division"))
    assert kernel.report.told() == ["f: line 2: ", "division of an int by zero", "", ""]


def test_special_functions() -> None:
    x = np.array([0.3, 1.7, 2.5, 11.0, 0.05])
    y = written((5, 10), np.float64)
    Kernel(texts.SPECIAL).launch(Form(64, real="double"), (y, x, 5), 5)
    t = torch.from_numpy(x)
    expected = [
        t.sigmoid(), torch.nn.functional.softplus(t), t.tanh(), t.lgamma(), t.digamma(),
        t.polygamma(1), t.remainder(0.7), t.div(0.7, rounding_mode="floor"), t.round() + t.sign(),
        t.erf() + t.clamp(-1, 2),
    ]  # fmt: skip
    for k, column in enumerate(expected):
        tolerance = 1e-8 if k == 5 else 1e-12  # torch's trigamma is off by that much itself
        np.testing.assert_allclose(y[:, k], column, rtol=tolerance, atol=1e-14)


@pytest.mark.parametrize("real", REALS)
def test_quotients(real: str) -> None:
    """Rounded as IEEE 754 says, also of numbers near the ends of the range, zeros, NaN and
    infinities; the last bit of what comes of the smallest numbers aside."""
    ends = [0.0, -0.0, 1.0, -3.0, 6.0, 1e-30, 1e30, 3e38, -1.2e-38, 1e-44, np.inf, -np.inf, np.nan]
    random = np.random.default_rng(1)
    some = np.exp2(random.uniform(-90, 120, 3000)) * random.choice([-1, 1], 3000)
    pairs = [*((a, b) for a in ends for b in ends), *zip(some[:1500], some[1500:], strict=True)]
    both: Array = np.array(pairs, REALS[real])
    a, b = both[:, 0].copy(), both[:, 1].copy()
    y = written((len(a),), REALS[real])
    Kernel(texts.QUOTIENTS).launch(Form(real=real), (y, a, b, len(a)), len(a))
    with np.errstate(all="ignore"):
        expected = a / b
    normal = ~((np.abs(a) < 1e-30) | (np.abs(expected) < 1e-36)) | (expected == 0)
    np.testing.assert_array_equal(y[normal], expected[normal])
    np.testing.assert_array_equal(np.signbit(y), np.signbit(expected))
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-44)


def test_one_thread() -> None:
    x, s = values((50,), "double"), 0.0
    y = written((50,), np.float64)
    Kernel(texts.SERIAL).launch(Form(1, 1, blocks=1, real="double"), (y, x, 50), 1)
    for i in range(50):
        s = s * 0.5 + x[i]
        assert y[i] == s


def test_missing_barriers_show() -> None:
    """That the tests above would see one: each of these breaks a kernel that is right."""
    reverse = """LOMA_KERNEL kernel(double* y, const double* x, const loma::Grid grid_) {
      LOMA_DYNAMIC_SHARED(memory);
      double* const e = reinterpret_cast<double*>(memory);
      e[threadIdx.x] = x[threadIdx.x];
      BARRIER
      y[threadIdx.x] = e[63 - threadIdx.x];
    }"""
    form, x = Form(64, blocks=1, real="double"), values((64,), "double")
    y = written((64,), np.float64)
    right = Kernel(reverse.replace("BARRIER", "__syncthreads();"))
    for given in range(5):
        seed(given)
        right.launch(form, (y, x), 1, 8)
        np.testing.assert_array_equal(y, x[::-1])
    Kernel(reverse.replace("BARRIER", "")).launch(form, (y, x), 1, 8)
    assert np.isnan(y).any()
    for condition, why in (
        ("if (threadIdx.x < 60) __syncthreads();", "4 are done, 60 wait at a barrier"),
        ("if (threadIdx.x == 5) __syncwarp(0xf0);", "1 for lanes of their warp"),
    ):
        with pytest.raises(LaunchError, match=why):
            Kernel(reverse.replace("BARRIER", condition)).launch(form, (y, x), 1, 8)
    with pytest.raises(LaunchError, match="behind its 512 bytes"):
        Kernel(reverse.replace("BARRIER", "e[64] = 0;")).launch(form, (y, x), 1, 8)
    right.launch(form, (y, x), 1, 8)
    np.testing.assert_array_equal(y, x[::-1])
