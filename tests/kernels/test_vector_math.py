"""runtime/vector_math.h against NumPy in the next wider format: accuracy, special values, the same
result in every lane. Compiled for this processor, and for the least one without OpenMP."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import loma
from loma.backends import compilers, toolchain
from loma.backends.registry import CPU
from loma.backends.torch import codegen
from loma.backends.torch.files import runtime_file
from loma.frontend import parse

Function = Callable[[str, Any], Any]

SOURCE = """
#include "vector_math.h"
#define FUNCTION(name, real)                                                                    \\
  extern "C" void name##_##real(real* __restrict y, const real* __restrict x, int64_t n) {      \\
    _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) y[i] = loma::vector::name<real>(x[i]);   \\
  }
#define FUNCTIONS(name) FUNCTION(name, float) FUNCTION(name, double)
FUNCTIONS(exp) FUNCTIONS(log) FUNCTIONS(tanh) FUNCTIONS(sin) FUNCTIONS(cos) FUNCTIONS(tan)
FUNCTIONS(asin) FUNCTIONS(acos) FUNCTIONS(atan) FUNCTIONS(sinh) FUNCTIONS(cosh) FUNCTIONS(expm1)
FUNCTIONS(exp2) FUNCTIONS(log1p) FUNCTIONS(log2) FUNCTIONS(erfc)
"""
FLAGS = {
    "native": (*compilers.native_flags(), "-fopenmp-simd"),
    "least": (),
}
# Units in the last place; those of the C library's vector versions are what glibc states.
ALLOWED = {"exp": 1.2, "log": 1.0, "tanh": 2.6, "erfc": 4.7} | dict.fromkeys(
    ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "expm1", "exp2", "log1p", "log2"),
    4.0,
)
OWN = ("exp", "log", "tanh", "erfc")  # the others are the C library's
CASES = [
    pytest.param(name, dtype, marks=() if name in OWN or name == "sin" else pytest.mark.full)
    for name in ALLOWED
    for dtype in (np.float32, np.float64)
    if (name, dtype) != ("erfc", np.float64)  # the C library's, and nothing wider to compare with
]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-310, -1e-310, 1e-45, 1e300, -1e300,
           88.72, 88.73, 89.5, -87.4, -103.9, -104.5, 709.78, 709.79, -708.4, -745.1, -746.5,
           9.0, 20.0, 25.0]  # fmt: skip


@pytest.fixture(scope="module", params=FLAGS)
def call(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Function:
    folder = tmp_path_factory.mktemp("vector_math")
    (folder / "functions.cpp").write_text(SOURCE)
    made = folder / "functions.so"
    command = (
        *toolchain.detect().compiler, "-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math",
        "-shared", "-fPIC", *FLAGS[request.param], "-I", str(runtime_file("vector_math.h").parent),
        str(folder / "functions.cpp"), "-o", str(made),
    )  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    library = ctypes.CDLL(str(made))

    def run(name: str, x: Any) -> Any:
        y = np.empty_like(x)
        function = library[f"{name}_{'float' if x.dtype == np.float32 else 'double'}"]
        pointers = (ctypes.c_void_p(a.ctypes.data) for a in (y, x))
        function(*pointers, ctypes.c_int64(x.size))
        return y

    return run


def reference(name: str) -> Callable[[Any], Any]:
    if name == "erfc":
        return np.vectorize(math.erfc, otypes=[np.float64])
    found: Callable[[Any], Any] = getattr(
        np, f"arc{name[1:]}" if name in ("asin", "acos", "atan") else name
    )
    return found


def samples(name: str, dtype: Any) -> Any:
    """All orders of magnitude, for sin and its like only those of everyday use."""
    generator = np.random.default_rng(1)
    word = np.uint32 if dtype == np.float32 else np.uint64
    some = generator.integers(0, np.iinfo(word).max, 400_000, dtype=word).view(dtype)
    parts = [some] if name in OWN else []
    parts += [generator.uniform(-a, a, 100_000) for a in (0.01, 1.0, 30.0, 120.0, 750.0)]
    parts += [1.0 + generator.normal(size=50_000) * s for s in (1e-6, 0.1)]
    return np.concatenate([part.astype(dtype) for part in parts])


@pytest.mark.parametrize(("name", "dtype"), CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_accuracy(call: Function, name: str, dtype: Any) -> None:
    wide = np.float64 if dtype == np.float32 else np.longdouble
    if np.finfo(wide).eps >= np.finfo(dtype).eps:
        pytest.skip("no wider format to compare with")
    x = samples(name, dtype)
    found, exact = call(name, x), reference(name)(x.astype(wide))
    rounded = exact.astype(dtype)
    finite = np.isfinite(rounded) & np.isfinite(found)
    assert np.array_equal(np.isnan(rounded), np.isnan(found))
    infinite = ~finite & ~np.isnan(rounded)
    assert np.array_equal(rounded[infinite], found[infinite])
    unit = np.spacing(np.abs(rounded[finite])).astype(wide)
    error = np.abs(found[finite].astype(wide) - exact[finite]) / unit
    assert error.max() <= ALLOWED[name]


@pytest.mark.parametrize(("name", "dtype"), [case for case in CASES if case.values[0] in OWN])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values(call: Function, name: str, dtype: Any) -> None:
    x = np.array(SPECIAL, dtype)
    wide = np.float64 if dtype == np.float32 else np.longdouble
    found, right = call(name, x), reference(name)(x.astype(wide)).astype(dtype)
    special = ~np.isfinite(right) | (right == 0)
    assert np.array_equal(found[special], right[special], equal_nan=True)
    known = special & ~np.isnan(right)
    assert np.array_equal(np.signbit(found[known]), np.signbit(right[known]))
    tiny = np.finfo(dtype).smallest_subnormal
    close = np.isclose(found[~special], right[~special], rtol=4 * np.finfo(dtype).eps, atol=tiny)
    assert close.all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", OWN)
def test_every_lane_and_the_remainder_agree(call: Function, name: str, dtype: Any) -> None:
    x = np.random.default_rng(2).uniform(0.01, 5.0, 67).astype(dtype)
    whole = call(name, x)
    for length in (0, 1, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65):
        assert np.array_equal(call(name, x[:length]), whole[:length])
        assert np.array_equal(call(name, x[-length:].copy()), whole[-length:]) or length == 0


def test_the_optimisation_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    module = parse(
        "def f(x : In[Tensor[N]]) -> Tensor[N]:\n"
        "    y : Tensor[N]\n    y[i] = exp(x[i]) * pow(x[i], 0.3) + sigmoid(x[i])\n    return y\n"
    )
    assert (
        "loma::vector::exp<real>" in codegen.lower_function(module.function("f"), module, CPU).text
    )
    monkeypatch.setenv("LOMA_OPT", "-vector_math")
    text = codegen.lower_function(module.function("f"), module, CPU).text
    assert "std::exp" in text
    assert "std::pow" in text
    assert "loma::sigmoid<real, false>" in text
    assert "loma::vector" not in text


CHOICE = """
def f(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i] if x[i] > 0.0 else expm1(x[i])
    return y
"""


def test_functions_that_are_called_stand_in_no_branch() -> None:
    module = parse(CHOICE)
    text = codegen.lower_function(module.function("f"), module, CPU).text
    assert "loma::vector::blend<real>(" in text
    x = torch.tensor([-math.inf, -30.0, -1e-6, -0.0, 0.0, 2.0, 100.0, math.inf, math.nan])
    for own in (x.repeat(3), x.double().repeat(3)):
        expected = torch.where(own > 0, own, torch.expm1(own))
        torch.testing.assert_close(loma.compile(CHOICE).f(own), expected, equal_nan=True)
