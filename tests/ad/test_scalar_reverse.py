"""Reverse mode on the scalar layer, against central differences on the interpreter."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from reverse_cases import CASES, NEEDED_ON_ENTRY, REFUSED, WRITTEN_FIRST
from sampled import one_in
from scalar_oracle import Scalars, close

from loma import errors
from loma.ad import differentiate
from loma.core.printer import print_function, print_module
from loma.core.verify import verify
from loma.frontend import parse
from loma.passes import dead_code


def jacobian_transposed(
    program: Scalars, name: str, args: list[Any], weights: np.ndarray
) -> np.ndarray:
    """w^T J for the floats of the ``In`` arguments, by central differences."""
    at = program.inputs(name, args)
    columns = [program.difference(name, args, unit) @ weights for unit in np.eye(len(at))]
    wanted: list[float] = []
    left = iter(columns)
    for arg, param in zip(args, program.params(name), strict=True):
        for _ in program.floats(arg, param.type):
            column = next(left)
            if param.mode == "In":
                wanted.append(column)
    return np.array(wanted)


def check_reverse(
    program: Scalars, name: str, derivative: str, args: list[Any], tolerance: float = 1e-6
) -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=program.run(name, args).shape)
    expected = jacobian_transposed(program, name, args, weights)
    close(program.reverse(name, derivative, args, weights), expected, tolerance, derivative)
    # what the caller passed is added to
    close(program.reverse(name, derivative, args, weights, 2.5), expected, tolerance, "added to")


@pytest.mark.parametrize("case", CASES)
def test_against_differences(case: str) -> None:
    text, args = CASES[case]
    program = Scalars(text + "\nd_f = rev_diff(f)\n")
    check_reverse(program, "f", "d_f", args)


@pytest.mark.parametrize("case", one_in(2, CASES, 1))
def test_reverse_of_reverse(case: str) -> None:
    text, args = CASES[case]
    program = Scalars(text + "\nd_f = rev_diff(f)\ndd_f = rev_diff(d_f)\n")
    weights = np.random.default_rng(1).normal(size=program.run("f", args).shape)
    check_reverse(program, "d_f", "dd_f", program.adjoint_arguments("f", args, weights), 1e-5)


@pytest.mark.parametrize("case", one_in(2, CASES))
def test_reverse_of_forward_and_forward_of_reverse(case: str) -> None:
    text, args = CASES[case]
    program = Scalars(
        text + "\nd_f = rev_diff(f)\nt_f = fwd_diff(f)\nr_t = rev_diff(t_f)\nt_d = fwd_diff(d_f)\n"
    )
    weights = np.random.default_rng(1).normal(size=program.run("f", args).shape)
    given = program.adjoint_arguments("f", args, weights)
    along = np.random.default_rng(2).normal(size=program.inputs("d_f", given).shape)
    values, tangent = program.forward("d_f", "t_d", given, along)
    close(values, program.run("d_f", given), 1e-12)
    close(tangent, program.difference("d_f", given, along), 1e-5, "forward of reverse")
    along = np.random.default_rng(3).normal(size=program.inputs("f", args).shape)
    left = iter(along.tolist())
    duals = [program.dual(a, p.type, left) for a, p in zip(args, program.params("f"), strict=True)]
    check_reverse(program, "t_f", "r_t", duals, 1e-5)


@pytest.mark.parametrize("case", one_in(2, CASES, 1))
def test_text_is_a_program_again(case: str) -> None:
    text, _ = CASES[case]
    module = differentiate(parse(text + "\nd_f = rev_diff(f)\ndd_f = rev_diff(d_f)\n"))
    verify(module)
    again = parse(print_module(module))
    assert again.functions == module.functions
    verify(dead_code(module))


def derivative(text: str, name: str = "d_f") -> str:
    return print_function(differentiate(parse(text)).function(name))


@pytest.mark.parametrize("case", WRITTEN_FIRST)
def test_values_that_are_written_before_they_are_read(case: str) -> None:
    text, args = WRITTEN_FIRST[case]
    program = Scalars(text + "\nd_f = rev_diff(f)\n")
    check_reverse(program, "f", "d_f", args)


@pytest.mark.parametrize("case", NEEDED_ON_ENTRY)
def test_values_on_entry_that_are_needed(case: str) -> None:
    with pytest.raises(errors.NotDifferentiable) as caught:
        differentiate(parse(NEEDED_ON_ENTRY[case] + "\nd_f = rev_diff(f)\n"))
    assert "'o' has on entry" in caught.value.message
    assert "zero(o)" in (caught.value.hint or "")


# ------------------------------------------------------------------------------------------ tape


def test_linear_code_records_nothing() -> None:
    text = """
def f(x : In[Array[float, 8]], c : In[float]) -> float:
    s : float
    for i in range(8):
        s = s * 2.0 + x[i] * 3.0
        s = s - x[i]
    return s
d_f = rev_diff(f)
"""
    assert "Stack" not in derivative(text)
    assert "_old" not in derivative(text)


def test_the_value_of_the_function_is_not_computed() -> None:
    text = (
        "def f(x : In[float]) -> float:\n    y : float = sin(x)\n    return y\nd_f = rev_diff(f)\n"
    )
    assert "sin" not in derivative(text)


def test_tape_is_as_long_as_the_loops_may_run() -> None:
    text = """
def f(x : In[float], n : In[int]) -> float:
    i : int = 0
    j : int
    s : float = x
    while (i < n, max_iter := 7):
        j = 0
        while (j < n, max_iter := 11):
            s = sin(s)
            j = j + 1
        i = i + 1
    return s
d_f = rev_diff(f)
dd_f = rev_diff(d_f)
"""
    tapes = dict(re.findall(r"(\w+) : (Stack\[.*\])", derivative(text)))
    assert tapes == {"_tape_s": "Stack[float, 77]", "_tape_count": "Stack[int, 7]"}
    # nothing in the second derivative is without a bound
    assert not re.search(r"Stack\[\w+\]", derivative(text, "dd_f"))


def test_what_only_the_code_before_a_loop_needs_is_kept_once() -> None:
    text = """
def f(x : In[float]) -> float:
    s : float = x * x
    t : float = s * s
    for i in range(100):
        s = s * 0.5 + t
    return s * s
d_f = rev_diff(f)
"""
    assert "Stack" not in derivative(text)
    assert "_s_old = s" in derivative(text)


def test_counters_are_stepped_back_and_not_recorded() -> None:
    text = """
def f(x : In[Array[float]], n : In[int]) -> float:
    i : int = 0
    s : float
    while (i < n, max_iter := 100):
        s = s + x[i] * x[i]
        i = i + 1
    return s
d_f = rev_diff(f)
"""
    assert "Stack" not in derivative(text)
    assert "i = i - 1" in derivative(text)


# ------------------------------------------------------------------------------------------ size


@pytest.mark.full
def test_a_thousand_statements() -> None:
    lines = [
        "def f(x : In[float], y : In[float]) -> float:",
        "    a : float = x",
        "    b : float = y",
    ]
    for k in range(500):
        lines += [f"    a = sin(a * b) + {k}.5 * b", "    b = b * cos(a) + a"]
    text = "\n".join([*lines, "    return a * b", "d_f = rev_diff(f)", "t_f = fwd_diff(f)", ""])
    module = differentiate(parse(text))
    verify(module)
    assert len(print_function(module.function("d_f")).split("\n")) < 9000


def size_of(text: str) -> int:
    return sum(len(print_function(f)) for f in differentiate(parse(text)).functions)


@pytest.mark.parametrize("mode", ["rev_diff", "fwd_diff"])
@pytest.mark.parametrize("grow", ["sin({})", "({} * x)", "g({})", "({} * {})"])
def test_derivatives_are_linear_in_the_size_of_an_expression(mode: str, grow: str) -> None:
    def text(depth: int) -> str:
        value = "x"
        for _ in range(depth):
            value = grow.format(value, "y")
        return (
            "def g(x : In[float]) -> float:\n    return x * sin(x)\n"
            f"def f(x : In[float], y : In[float]) -> float:\n    return {value}\nd_f = {mode}(f)\n"
        )

    small, large = size_of(text(20)), size_of(text(60))
    assert large < 4.5 * small


@pytest.mark.parametrize("mode", ["rev_diff", "fwd_diff"])
def test_chained_calls_have_one_derivative_each(mode: str) -> None:
    lines = ["def f0(x : In[float]) -> float:", "    return x * sin(x)"]
    for k in range(1, 80):
        lines += [
            f"def f{k}(x : In[float]) -> float:",
            f"    return f{k - 1}(x) * f{k - 1}(2.0 * x)",
        ]
    module = differentiate(parse("\n".join([*lines, f"d_f = {mode}(f79)", ""])))
    assert len(module.functions) == 160
    verify(module)


def test_a_derivative_that_the_program_names_serves_its_callers() -> None:
    text = """
def g(x : In[float]) -> float:
    return x * x
def f(x : In[float]) -> float:
    return g(g(x))
d_f = rev_diff(f)
d_g = rev_diff(g)
"""
    assert [f.name for f in differentiate(parse(text)).functions] == ["g", "f", "d_g", "d_f"]


# ------------------------------------------------------------------------------------------ simd


SIMD = """
def square(x : In[float], a : In[Array[float]]) -> float:
    return x * x * a[0]

@simd
def f(x : In[Array[float]], c : In[float], y : Out[Array[float]], total : Out[float]):
    i : int = thread_id()
    t : float = x[i] * c
    y[i] = t * t + square(x[0], x) * square(c, x)
    atomic_add(total, t * x[(i + 1) % 3])

d_f = rev_diff(f)
t_f = fwd_diff(f)
dd_f = rev_diff(d_f)
"""


def test_simd() -> None:
    program = Scalars(SIMD)
    text = print_function(program.function("d_f"))
    assert "atomic_add(_d_x[i]" in text
    assert "atomic_add(_d_c, _d_c_local)" in text
    rng = np.random.default_rng(0)
    x, c, wy, wt = rng.normal(size=3), 0.7, rng.normal(size=3), 1.3

    def value(x: np.ndarray, c: float) -> float:
        y, total = program.interpreter.call("f", list(x), c, [0.0] * 3, 0.0, 3)
        return float(np.dot(y, wy) + total * wt)

    d_x, d_c = program.interpreter.call("d_f", list(x), [0.5] * 3, c, 0.5, list(wy), wt, 3)
    step = 1e-6
    for k, unit in enumerate(np.eye(3)):
        expected = (value(x + step * unit, c) - value(x - step * unit, c)) / (2 * step)
        assert d_x[k] - 0.5 == pytest.approx(expected, rel=1e-6)
    expected = (value(x, c + step) - value(x, c - step)) / (2 * step)
    assert d_c - 0.5 == pytest.approx(expected, rel=1e-6)


# ---------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    text, message, var = REFUSED[case]
    with pytest.raises(errors.NotDifferentiable) as caught:
        differentiate(parse(text))
    assert message in caught.value.message
    assert caught.value.var == var
    assert caught.value.span.line
    assert caught.value.hint


def test_loop_that_runs_too_long_is_an_error_in_the_derivative_too() -> None:
    text = """
def f(x : In[float], n : In[int]) -> float:
    i : int = 0
    while (i < n, max_iter := 5):
        x = sin(x)
        i = i + 1
    return x
d_f = rev_diff(f)
"""
    program = Scalars(text)
    assert program.interpreter.call("d_f", 0.3, 0.0, 5, 0, 1.0)
    with pytest.raises(RuntimeError, match=r"line 4: .* max_iter = 5"):
        program.interpreter.call("d_f", 0.3, 0.0, 6, 0, 1.0)


@pytest.mark.parametrize(("count", "stack"), [("0", "1"), ("70000", "")])
def test_a_tape_has_a_capacity_that_a_program_can_name(count: str, stack: str) -> None:
    """One, where the loops never run; none, where there may be more values than an int counts."""
    module = differentiate(
        parse(f"""
def f(x : In[float]) -> float:
    for i in range({count}):
        for j in range(70000):
            x = x * x
    return x
d_f = rev_diff(f)
dd_f = rev_diff(d_f)
""")
    )
    verify(module)
    text = print_module(module)
    assert parse(text) == module
    assert f"_tape_x_local : Stack[float{', ' if stack else ''}{stack}]" in text


def test_arguments_that_turn_out_to_be_one_place_are_an_error() -> None:
    text, (a, i, _) = CASES["places that only subscripts tell apart"]
    program = Scalars(text + "\nd_f = rev_diff(f)\n")
    message = r"line 14: arguments 1 and 2 are the same storage, and one of them is Out"
    with pytest.raises(ValueError, match="f: " + message):
        program.interpreter.call("f", a, i, i)
    with pytest.raises(ValueError, match="d_f: " + message):
        program.interpreter.call("d_f", a, [0.0] * 3, i, 0, i, 0, 1.0)


def test_same_text_every_time() -> None:
    text, _ = CASES["structs in arrays in structs"]
    text += "\nd_f = rev_diff(f)\ndd_f = rev_diff(d_f)\nt_f = fwd_diff(d_f)\n"
    first = print_module(differentiate(parse(text)))
    assert all(print_module(differentiate(parse(text))) == first for _ in range(3))


def test_signature() -> None:
    text = """
def f(x : In[float], n : In[int], y : Out[Array[float, 2]], _d_x : In[float]) -> float:
    y[0] = x
    return x * _d_x
d_f = rev_diff(f)
"""
    params = differentiate(parse(text)).function("d_f").params
    listed = [(p.mode, p.name) for p in params]
    assert listed == [
        ("In", "x"), ("Out", "_d_x_1"), ("In", "n"), ("Out", "_d_n"), ("In", "_d_y"),
        ("In", "_d_x"), ("Out", "_d_d_x"), ("In", "_d_result"),
    ]  # fmt: skip
