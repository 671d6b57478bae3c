"""The text of generated C++: names, storage, checks, choice of loops. Nothing is compiled here."""

from __future__ import annotations

import keyword
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loma import errors
from loma.backends.cfamily.names import cpp_name, cpp_string
from loma.backends.registry import CPU
from loma.backends import torch as libtorch
from loma.backends.torch import codegen
from loma.backends.torch.ops import ROWS
from loma.core.ops import OPS
from loma.frontend import parse

CAPSNET = Path(__file__).resolve().parents[2] / "capsnet_loma"


def body(text: str, name: str = "f") -> str:
    module = parse(text)
    return codegen.lower_function(module.function(name), module, CPU).text


def code(text: str, name: str = "f") -> str:
    """The generated text without its comments."""
    lines = body(text, name).split("\n")
    return "\n".join(line for line in lines if not line.strip().startswith("//"))


# ----------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["x", "d_routing", "_d_S", "L_at", "C_1", "I", "squash__forward"])
def test_ordinary_names_stay(name: str) -> None:
    assert cpp_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["new", "template", "NAN", "π", "_B", "u_x", "x_", "__x", "f__body", "real", "at", "LOG"],
)
def test_dangerous_names_are_changed(name: str) -> None:
    changed = cpp_name(name)
    assert changed != name
    assert changed.isascii()
    assert changed.isidentifier()
    assert not keyword.iskeyword(changed)


@settings(max_examples=30)
@given(st.lists(st.from_regex(r"[a-zA-Z_éπ][a-zA-Z_é0-9π]{0,8}", fullmatch=True), unique=True))
def test_different_names_stay_different(names: list[str]) -> None:
    assert len({cpp_name(name) for name in names}) == len(names)


def test_strings_are_escaped() -> None:
    assert cpp_string('a"b\\c?\né') == r'"a\"b\\c\077\012\303\251"'


# ---------------------------------------------------------------------------------------- tables


def test_every_operator_has_a_row() -> None:
    assert sorted(ROWS) == sorted(OPS)


def test_headers_are_those_of_the_operators_used() -> None:
    """Small ones only: those of functions, ATen/ops/NAME.h, cost each file some seconds."""
    module = parse("""
def f(x : In[Tensor[N]], y : In[Tensor[N]]) -> Tensor[N]:
    return softplus(relu(x) + exp(y))
""")
    assert codegen.includes(module, CPU) == ("ATen/ops/log_sigmoid_ops.h",)
    functions = {name for row in ROWS.values() for name in row.headers if "_ops.h" not in name}
    assert functions == {"convolution_choice.h"}


def test_the_device_says_which_header_generated_code_needs() -> None:
    module = parse("def f(x : In[Tensor[N]]) -> Tensor[N]:\n    return relu(x)\n")
    other = replace(CPU, prelude="other.h")
    whole = libtorch.generate(module, other)
    special = libtorch.generate_specialised(module, other, "f", "f::f", {"N": 3}, "float")
    assert all('#include "other.h"' in source.text for source in (whole, special))


def test_what_calls_no_operator_of_aten_needs_nothing_of_torch() -> None:
    loops, operator = ("    y[i] = x[i] + 1.0\n", "    y = cumsum(x, 0)\n")
    head, declared = "def f(x : In[Tensor[N]]) -> Tensor[N]:\n", "    y : Tensor[N]\n"
    light = parse(f"{head}{declared}{loops}    return y\n")
    whole = parse(f"{head}{operator}    return y\n")
    assert not codegen.calls_aten(light)
    assert codegen.calls_aten(whole)
    generated = libtorch.generate(light, CPU)
    assert generated.metadata["parts"]["prelude"] == "light_prelude.h"
    assert '#ifdef LOMA_SOME\n#include "light_prelude.h"\n#else\n' in generated.text
    generated = libtorch.generate(whole, CPU)
    assert generated.metadata["parts"]["prelude"] == "prelude.h"
    assert "light_prelude.h" not in generated.text


def test_an_operator_without_a_row_is_refused_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(ROWS, "relu")
    with pytest.raises(errors.BackendLacksOperator, match="'relu'") as caught:
        body("def f(x : In[Tensor[N]]) -> Tensor[N]:\n    return relu(x)\n")
    assert caught.value.span.line == 2


# --------------------------------------------------------------------------------- whole functions


@pytest.mark.parametrize(
    ("file", "name"), [("squash", "squash"), ("digit_capsules", "predictions")]
)
def test_golden(file: str, name: str, golden: Callable[[str, str], None]) -> None:
    text = (CAPSNET / f"{file}.loma").read_text(encoding="utf-8")
    golden(f"codegen_{name}.cpp", body(text, name))


def test_golden_zero_pad(golden: Callable[[str, str], None]) -> None:
    text = """
def blur(X : In[Tensor[B, H, W]], K : In[Tensor[3, 3, H, W]]) -> Tensor[B, H, W]:
    Z : Tensor[B, H, W]
    Z[b, h, w] += zero_pad(X[b, h + p - 1, w + q - 1]) * K[p, q, h, w]
    return Z
"""
    golden("codegen_zero_pad.cpp", body(text, "blur"))


# ---------------------------------------------------------------------------------------- storage

HEAD = "def f(x : In[Tensor[N, M]], n : In[int]) -> Tensor[N, M]:\n    y : Tensor[N, M]\n"


def test_a_tensor_that_is_overwritten_is_not_zeroed() -> None:
    text = code(HEAD + "    y[i, j] = 2.0 * x[i, j]\n    return y\n")
    assert "y = loma::empty(" in text
    assert "loma::zeros" not in text


def test_a_sum_into_a_new_tensor_assigns() -> None:
    text = code(
        "def f(x : In[Tensor[N, M]]) -> Tensor[N]:\n    y : Tensor[N]\n"
        "    y[i] += x[i, j]\n    return y\n"
    )
    assert "y = loma::empty(" in text
    assert "y_data_[i] = acc1_" in text


def test_a_tensor_that_may_stay_untouched_is_zero() -> None:
    text = code(HEAD + "    if n > 0:\n        y[i, j] = x[i, j]\n    return y\n")
    assert "if (!y.defined()) y = loma::zeros(" in text


def test_a_part_written_first_needs_zeros() -> None:
    text = code(HEAD + "    y[0, j] = x[0, j]\n    return y\n")
    assert "y = loma::zeros(" in text


DIGITS = (
    "def f(x : In[Tensor[N, P, K]]) -> Tensor[N * P]:\n"
    "    y : Tensor[N * P]\n    {}\n    return y\n"
)


@pytest.mark.parametrize(
    "statement", ["y[i * P + p] = x[i, p, 0]", "y[p * N + i] += x[i, p, k] * x[i, p, k]"]
)
def test_digits_of_a_number_overwrite_and_run_in_parallel(statement: str) -> None:
    text = code(DIGITS.format(statement))
    assert "y = loma::empty(" in text
    assert "loma::zeros" not in text
    assert "loma::parallel(1, " not in text


@pytest.mark.parametrize("statement", ["y[i + p] += x[i, p, 0]", "y[i * K + p] += x[i, p, 0]"])
def test_other_subscripts_with_two_indices_may_meet(statement: str) -> None:
    text = code(DIGITS.format(statement))
    assert "y = loma::zeros(" in text
    assert "loma::parallel(1, " in text


def test_digits_that_leave_gaps_run_in_parallel_between_zeros() -> None:
    text = code(
        "def f(x : In[Tensor[N, 2]]) -> Tensor[3 * N]:\n    y : Tensor[3 * N]\n"
        "    y[2 * i + p] = x[i, p]\n    return y\n"
    )
    assert "y = loma::zeros(" in text
    assert "loma::parallel(1, " not in text


def test_zeroing_before_an_overwrite_is_left_out() -> None:
    text = code(
        HEAD + "    y[i, j] = x[i, j]\n    y[i, j] += x[i, j]\n    zero(y)\n"
        "    y[i, j] += x[i, j] * 2.0\n    return y\n"
    )
    assert "zero_()" not in text
    assert text.count(" = x_data_[") == 1  # and nothing of what the zeros would have hidden


def test_a_view_of_a_tensor_that_is_written_is_copied() -> None:
    head = "def f(x : In[Tensor[N, M]]) -> Tensor[M, N]:\n    y = transpose(x, 0, 1)\n"
    assert "loma::copy" not in code(head + "    return y\n")
    assert "loma::copy" in code(head + "    y[j, i] += 1.0\n    return y\n")


# ----------------------------------------------------------------------------------------- checks


def test_ranges_that_the_sizes_prove_are_not_checked() -> None:
    text = """
def f(X : In[Tensor[N, H]], F : In[Tensor[P]]) -> Tensor[N, H - P + 1]:
    Y : Tensor[N, H - P + 1]
    Y[n, h] += X[n, h + p] * F[p]
    return Y
"""
    assert "loma::Interval" not in code(text)
    assert "loma::Interval" in code(text.replace("h + p]", "2*h + p]"))


def test_a_padded_read_is_not_checked() -> None:
    text = """
def f(X : In[Tensor[N]]) -> Tensor[N]:
    Y : Tensor[N]
    Y[i] = zero_pad(X[i - 3])
    return Y
"""
    assert "loma::Interval" not in code(text)
    assert "loma::narrow(" in code(text)


def test_sizes_that_only_a_call_can_compare_are_compared() -> None:
    text = """
def f(X : In[Tensor[N]], Z : In[Tensor[M]]) -> Tensor[N]:
    Y : Tensor[N]
    Y[i] = X[i] * Z[i]
    return Y
"""
    assert "loma::extent_error(" in code(text)


# ---------------------------------------------------------------------------------- choice of loops


def test_a_matrix_product_is_one_call() -> None:
    text = """
def f(A : In[Tensor[N, K]], B : In[Tensor[K, M]]) -> Tensor[N, M]:
    C : Tensor[N, M]
    C[i, j] += A[i, k] * B[k, j]
    return C
"""
    generated = code(text)
    assert 'C = loma::product("' in generated
    assert "loma::empty" not in generated
    assert codegen.includes(parse(text), CPU) == ("product.h",)


def test_an_operand_of_a_product_that_nothing_wrote_is_zeros() -> None:
    generated = code("""
def f(w : In[Tensor[K, M]], n : In[int]) -> Tensor[n, M]:
    x : Tensor[n, K]
    y : Tensor[n, M]
    y[i, j] += x[i, k] * w[k, j]
    return y
""")
    assert "x = loma::zeros({n, K}" in generated
    assert 'y = loma::product("' in generated


def test_a_product_without_free_axes_on_both_sides_is_a_loop() -> None:
    text = """
def f(A : In[Tensor[N, K]], x : In[Tensor[K]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] += A[i, k] * x[k]
    return y
"""
    assert "einsum" not in code(text)
    assert "loma::total<real>(acc1_in_.lanes, loma::Sum())" in code(text)


def test_axes_that_all_accesses_walk_as_one_are_merged() -> None:
    text = code(HEAD + "    y[i, j] = 2.0 * x[i, j]\n    return y\n")
    assert "for (int64_t i__j__ = low_; i__j__ < high_; ++i__j__)" in text


def test_an_operand_across_the_rows_is_packed_once() -> None:
    text = """
def f(W : In[Tensor[R, O, K]], X : In[Tensor[B, R, K]]) -> Tensor[B, R, O]:
    U : Tensor[B, R, O]
    U[b, r, o] += W[r, o, k] * X[b, r, k]
    return U
"""
    assert "= loma::permuted(W, {0, 2, 1});" in code(text)


def test_a_loop_that_can_fail_is_not_a_simd_loop() -> None:
    text = """
def g(x : In[float], n : In[int]) -> float:
    y : float = x
    while (y > 1.0, max_iter := 5):
        y = y / 2.0
    return y

def f(X : In[Tensor[N, M]]) -> Tensor[N]:
    Y : Tensor[N]
    Y[i] += g(X[i, j], 3)
    return Y
"""
    assert "omp simd" not in code(text)


def test_padded_reads_stay_behind_their_test() -> None:
    """One that a loop does not change is loaded inside of it: before it, nothing was tested yet."""
    text = code(
        "def f(x : In[Tensor[N]], w : In[Tensor[P]]) -> Tensor[N]:\n"
        "    y : Tensor[N]\n"
        "    y[i] += zero_pad(x[i + p]) * w[p] + zero_pad(x[3 - i])\n"
        "    return y\n"
    )
    assert "sum_ += x_data_[i + p] * w_data_[p] + x_data_[at" in text
    assert " = x_data_[" not in text


def test_a_kernel_looks_its_tensors_up_once() -> None:
    """And not in each round of a recurrence, where that costs more than a row."""
    text = code(
        "def f(x : In[Tensor[B, T, D]]) -> Tensor[B, T, D]:\n    s : Tensor[B, D]\n"
        "    y : Tensor[B, T, D]\n    for t in range(T):\n"
        "        s[b, d] += x[b, t, d]\n        y[b, t, d] = s[b, d]\n    return y\n"
    )
    before, inside = text.split("loma::kernel(")
    assert before.count("x.template const_data_ptr<real>()") == 1
    assert before.count("y.template mutable_data_ptr<real>()") == 1
    assert "data_ptr" not in inside


def test_serial_loops_are_optimised_as_loops() -> None:
    """They stand in the host's part, which is not."""
    text = code(
        "def f(x : In[Tensor[B, T]]) -> Tensor[B, T]:\n    y : Tensor[B, T]\n"
        "    y[b, 0] = x[b, 0]\n    for t in range(1, T):\n"
        "        y[b, t] = 0.5 * y[b, t - 1] + x[b, t]\n    return y\n"
    )
    loop = text.index("for (int64_t _t")
    assert text.rindex("host_begin.h") < loop
    assert "[&](real* __restrict y_data_, const real* __restrict x_data_) LOMA_SERIAL {" in text
