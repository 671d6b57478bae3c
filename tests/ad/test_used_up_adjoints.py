"""Reverse derivatives that overwrite elements of an ``Out`` array of unknown length: the adjoint of
the array is the caller's, and is turned in place into that of what the array held before."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from c_host import OPTIONS, CProgram
from scalar_oracle import Scalars, check_differences, random_floats
from test_scalar_reverse import check_reverse

import loma
from loma import compat, errors
from loma.ad import differentiate
from loma.backends.c import Options
from loma.core.ir import Module
from loma.core.printer import print_function, print_module
from loma.core.verify import verify
from loma.frontend import parse

# Texts of f, with arguments, and whether rev_diff(rev_diff(f)) exists.
CASES: dict[str, tuple[str, list[Any], bool]] = {
    "an element that a computed subscript may hit again": (
        """
def f(x : In[float], i : In[int], j : In[float], y : Out[Array[float]]):
    y[i] = x
    y[float2int(j)] = x * x
""",
        [0.7, 1, 1.5, [1.0, 2.0, 3.0]],
        False,
    ),
    "another element": (
        """
def f(x : In[float], i : In[int], j : In[float], y : Out[Array[float]]):
    y[i] = x
    y[float2int(j)] = x * x
""",
        [0.7, 0, 2.5, [1.0, 2.0, 3.0]],
        False,
    ),
    "linear in what is passed": (
        """
def f(x : In[float], i : In[int], j : In[int], y : Out[Array[float]]):
    y[i] = x
    y[j] = 2.0 * x
    y[i] += 3.0 * x
""",
        [0.7, 2, 2, [1.0, 2.0, 3.0]],
        True,
    ),
    "subscripts from an array": (
        """
def f(x : In[Array[float]], at : In[Array[int]], n : In[int], y : Out[Array[float]]):
    for k in range(n):
        y[at[k]] = sin(x[k])
""",
        [[0.1, 0.2, 0.3, 0.4], [1, 0, 1, 2], 4, [0.0, 0.0, 0.0, 0.0]],
        False,
    ),
    "an offset that changes in the loop": (
        """
def f(x : In[Array[float]], n : In[int], k : In[int], y : Out[Array[float]]):
    for i in range(n):
        k = k * 2 % 3
        y[i + k] = x[i] * x[i]
""",
        [[0.1, 0.2, 0.3, 0.4], 4, 1, [0.0] * 8],
        False,
    ),
    "elements that are moved": (
        """
def f(x : In[float], i : In[int], j : In[int], y : Out[Array[float]]):
    y[0] = x * x
    y[1] = x
    y[i] = y[j]
    y[j] = y[i] + y[0]
""",
        [0.7, 2, 1, [1.0, 2.0, 3.0]],
        False,
    ),
    "under a condition": (
        """
def f(x : In[float], i : In[int], y : Out[Array[float]]):
    k : int
    while (k < 5, max_iter := 6):
        if k % 2 == 0:
            y[i] = x * k
        elif k == 3:
            zero(y[i // 2])
        else:
            y[i // 2] += x * x
        i = (i * 2 + 1) % 4
        k += 1
""",
        [0.7, 3, [1.0, 2.0, 3.0, 4.0]],
        False,
    ),
    "through calls": (
        """
def put(x : In[float], i : In[int], y : Out[Array[float]]):
    y[i] = sin(x)

def f(x : In[float], i : In[int], j : In[int], y : Out[Array[float]]):
    put(x, i, y)
    put(x * x, j, y)
    put(2.0 * x, i, y)
""",
        [0.7, 0, 1, [1.0, 2.0]],
        False,
    ),
    "rows": (
        """
def f(x : In[float], i : In[int], j : In[int], y : Out[Array[Array[float]]]):
    y[i][j] = x
    y[j][i] = x * x
    y[i][i] += x
""",
        [0.7, 1, 0, [[1.0, 2.0], [3.0, 4.0]]],
        False,
    ),
    "structs": (
        """
class P:
    a : float
    b : Array[float, 2]
    n : int

def f(p : In[P], i : In[int], j : In[int], y : Out[Array[P]]):
    y[i] = p
    y[j].b[i] = p.a * p.a
    y[i].n = j
    y[j].a = y[j].b[1]
""",
        [{"a": 0.3, "b": [0.5, 0.7], "n": 2}, 1, 1, [{"a": 1.0, "b": [1.0, 1.0], "n": 0}] * 2],
        False,
    ),
    "two arrays, one of them written once": (
        """
def f(x : In[float], i : In[int], y : Out[Array[float]], z : Out[Array[float]]) -> float:
    y[i] = x
    y[i - 1] = 2.0 * x
    y[i] = 3.0 * x
    z[i] = x * x
    return x * x * x
""",
        [0.7, 1, [1.0, 2.0], [1.0, 2.0]],
        True,
    ),
}


def program(text: str, second: str = "") -> Scalars:
    return Scalars(f"{text}\nd_f = rev_diff(f)\nt_f = fwd_diff(f)\n{second}")


@pytest.mark.parametrize("case", CASES)
def test_adjoints_against_differences(case: str) -> None:
    text, args, _ = CASES[case]
    known = program(text)
    check_reverse(known, "f", "d_f", args)
    function = known.function("d_f")
    (mode,) = {p.mode for p in function.params if p.name == "_d_y"}
    assert mode == "Out"
    assert "_d_y" in function.used_up
    assert "_d_z" not in function.used_up


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("options", OPTIONS[:2], ids=lambda o: o.arrays)
def test_compiled_c(case: str, options: Options) -> None:
    text, args, _ = CASES[case]
    known = program(text)
    given = known.adjoint_arguments("f", args, random_floats(known.run("f", args).size, 4), 0.5)
    c = CProgram(known.module, options, ("-O0",))
    types = known.outputs("d_f")
    np.testing.assert_allclose(
        known.flat(c.call("d_f", *given), types), known.run("d_f", given), rtol=1e-12
    )


@pytest.mark.parametrize("case", CASES)
def test_forward_derivatives_of_them(case: str) -> None:
    text, args, _ = CASES[case]
    known = program(text, "t_d = fwd_diff(d_f)\n")
    given = known.adjoint_arguments("f", args, random_floats(known.run("f", args).size, 4))
    along = random_floats(known.inputs("d_f", given).size, 5)
    check_differences(known, "d_f", "t_d", given, along)


@pytest.mark.parametrize("case", CASES)
def test_reverse_derivatives_of_them_are_right_or_refused(case: str) -> None:
    """What is used up is given back: the adjoint of the adjoint that was passed."""
    text, args, exists = CASES[case]
    text += "\nd_f = rev_diff(f)\nt_d = fwd_diff(d_f)\n"
    text += "dd_f = rev_diff(d_f)\n"
    if not exists:
        with pytest.raises(errors.NotDifferentiable, match="of unknown length") as caught:
            differentiate(parse(text))
        assert caught.value.span.line
        return
    known = Scalars(text)
    given = known.adjoint_arguments("f", args, random_floats(known.run("f", args).size, 4), 0.5)
    along = random_floats(known.inputs("d_f", given).size, 5)
    _, tangent = known.forward("d_f", "t_d", given, along)
    weights = random_floats(tangent.size, 6)
    second = known.adjoint_arguments("d_f", given, weights)
    outs = [p for p in known.params("dd_f") if p.mode == "Out"]
    found = dict(zip((p.name for p in outs), known.call("dd_f", second), strict=True))
    function = known.function("dd_f")
    assert function.used_up == function.given_back == ("_d_d_y",)
    # the arguments of d_f in order: each value, its adjoint where it has one
    left, right, at = float(tangent @ weights), 0.0, 0
    names = iter(p.name for p in outs)
    for value, param in zip(given, known.params("d_f"), strict=True):
        count = len(list(known.floats(value, param.type)))
        if param.mode == "In" or param.name in known.function("d_f").used_up:
            name = "_d_d_y" if param.name == "_d_y" else next(n for n in names if n != "_d_d_y")
            right += float(along[at : at + count] @ known.flat([found[name]], [param.type]))
        else:
            # what an adjoint held at first is added to: its adjoint is that of the sum
            size = sum(len(list(known.floats(v, p.type))) for v, p in _before(given, known, param))
            right += float(along[at : at + count] @ weights[size : size + count])
        at += count
    assert left == pytest.approx(right, rel=1e-9)


def _before(given: list[Any], known: Scalars, last: Any) -> list[tuple[Any, Any]]:
    """The Out arguments of d_f before that one."""
    found: list[tuple[Any, Any]] = []
    for value, param in zip(given, known.params("d_f"), strict=True):
        if param.name == last.name:
            return found
        if param.mode == "Out":
            found.append((value, param))
    raise AssertionError


@pytest.mark.parametrize("case", CASES)
def test_text_is_a_program_again(case: str) -> None:
    module = differentiate(parse(CASES[case][0] + "\nd_f = rev_diff(f)\nt_d = fwd_diff(d_f)\n"))
    verify(module)
    again = parse(print_module(module))
    verify(again)
    assert again.functions == module.functions


TEXT = CASES["another element"][0] + "\nd_f = rev_diff(f)\n"


def test_what_is_printed() -> None:
    text = print_function(differentiate(parse(TEXT)).function("d_f"))
    assert "_d_y : Out[Array[float]]," in text
    assert text.endswith(
        "    _d_x += _d_y[float2int(j)] * (2.0 * x)\n"
        "    _d_y[float2int(j)] = 0.0\n    _d_x += _d_y[i]\n    _d_y[i] = 0.0"
    )


def test_a_c_host_has_its_array_used_up() -> None:
    _, lib = compat.compile(TEXT)
    d_y, d_x = (ctypes.c_float * 3)(1.0, 10.0, 100.0), ctypes.c_float(0.5)
    lib.d_f(3.0, d_x, 0, None, 2.5, ctypes.c_float(), d_y)
    assert (d_x.value, list(d_y)) == (601.5, [0.0, 10.0, 0.0])
    with pytest.raises(ctypes.ArgumentError, match="'_d_y' must not be NULL"):
        lib.d_f(3.0, d_x, 0, None, 2.5, ctypes.c_float(), None)


@pytest.mark.parametrize(
    "d_y",
    [np.array([1, 10, 100], np.float32), torch.tensor([1.0, 10.0, 100.0]), [1.0, 10.0, 100.0],
     (1.0, 10.0, 100.0)],
    ids=["numpy", "torch", "list", "tuple"],
)  # fmt: skip
def test_python_passes_a_copy(d_y: Any) -> None:
    module = loma.compile(TEXT)
    assert module.d_f(3.0, 0, 2.5, d_y) == (601.0, 0, 0.0)
    assert list(d_y) == [1.0, 10.0, 100.0]
    with pytest.raises(IndexError, match="subscript 3 is outside an array of 3 elements"):
        module.d_f(3.0, 0, 3.5, d_y)
    fixed = np.array([1, 10, 100], np.float32)
    fixed.flags.writeable = False
    assert module.d_f(3.0, 0, 2.5, fixed) == (601.0, 0, 0.0)


def test_python_passes_copies_of_rows() -> None:
    module = loma.compile(CASES["rows"][0] + "\nd_f = rev_diff(f)\n")
    rows = np.array([[1, 2], [3, 4]], np.float32)
    nested: list[Any] = [np.array([1, 2], np.float32), [3.0, 4.0]]
    # y[1][1] is read, then y[0][1] and, as y[1][0] has the adjoint of x * x, that
    expected = (4.0 + 2.0 * 2.0 * 0.5 + 3.0, 0, 0)
    assert module.d_f(0.5, 1, 0, rows) == expected
    assert module.d_f(0.5, 1, 0, nested) == expected
    assert rows.tolist() == [[1, 2], [3, 4]]
    assert nested[0].tolist() == [1, 2]
    assert nested[1] == [3.0, 4.0]


def test_python_is_given_back_what_a_derivative_of_it_turns() -> None:
    text = CASES["linear in what is passed"][0] + "d_f = rev_diff(f)\ndd_f = rev_diff(d_f)\n"
    module = loma.compile(text)
    d_d_y = np.zeros(3, np.float32)
    module.dd_f(0.7, 1.0, 0, 0, 2, 0, d_d_y)
    assert d_d_y.tolist() == [4.0, 0.0, 2.0]


def test_work_items() -> None:
    text = """
@simd
def f(x : In[Array[float]], k : In[int], y : Out[Array[float]]):
    y[2 * thread_id() + k] = x[thread_id()]
    y[2 * thread_id() + 1 - k] = x[thread_id()] * x[thread_id()]
    y[2 * thread_id() + k * k] = 3.0 * x[thread_id()]
d_f = rev_diff(f)
"""
    module = loma.compile(text)
    n = 200
    x, d_y = np.linspace(0, 1, n, dtype=np.float32), np.ones(2 * n, np.float32)
    d_x, _ = module.d_f(x, 1, d_y, n)
    np.testing.assert_allclose(d_x, 2 * x + 3, rtol=1e-6)
    assert d_y.tolist() == [1.0] * (2 * n)


# --------------------------------------------------------------------------- calls in a program

CALLS = """
def f(x : In[float], i : In[int], j : In[int], y : Out[Array[float]]):
    y[i] = x
    y[j] = x * x

d_f = rev_diff(f)

def g(x : In[float], d_x : Out[float], w : {}):
    di : int
    {}
"""


def checked(w: str, body: str) -> Module:
    module = differentiate(parse(CALLS.format(w, body.replace("\n", "\n    "))))
    verify(module)
    return module


def test_calls_that_pass_what_may_be_written() -> None:
    for w, body in (
        ("Out[Array[float]]", "dj : int\nd_f(x, d_x, 0, di, 1, dj, w)"),
        ("In[float]", "dj : int\na : Array[float, 2]\na[0] = w\nd_f(x, d_x, 0, di, 1, dj, a)"),
    ):
        known = checked(w, body)
        c = CProgram(known)
        if w == "In[float]":
            assert c.call("g", 0.5, 0.0, 3.0) == (3.0,)
        else:
            assert c.call("g", 0.5, 0.0, [3.0, 4.0]) == (7.0, [0.0, 0.0])


def test_calls_that_pass_what_may_not_be_written() -> None:
    with pytest.raises(errors.ArgOutNotLValue, match="'_d_y' of 'd_f' is an adjoint") as caught:
        checked("In[Array[float]]", "dj : int\nd_f(x, d_x, 0, di, 1, dj, w)")
    assert caught.value.span.line == 11
    assert "pass a copy" in str(caught.value.hint)


def test_calls_that_pass_the_array_twice() -> None:
    text = """
def f(x : In[Array[float]], i : In[int], y : Out[Array[float]]):
    y[i] = x[0]
    y[0] = x[1] * x[1]

d_f = rev_diff(f)

def g(i : In[int], a : Out[Array[float]], d_x : Out[Array[float]]):
    di : int
    d_f(a, d_x, i, di, a)
"""
    with pytest.raises(errors.AliasedOutArgument, match="'_d_y' of 'd_f' is written to"):
        differentiate(parse(text))
