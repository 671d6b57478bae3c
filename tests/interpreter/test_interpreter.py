"""The interpreter: meaning of statements and numbers, and what a wrong call gets."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from index_cases import CASES as INDEX_CASES
from operator_cases import CASES as OPERATOR_CASES
from oracle import as_tuple, close, plain
from trap_cases import TRAPS

from loma import errors
from loma.backends.interpreter import Interpreter, ops
from loma.core import printer
from loma.core.verify import verify
from loma.frontend import parse

NAN = math.nan


def run(text: str, *args: Any) -> tuple[Any, ...]:
    """Calls the last function of the text."""
    module = parse(text)
    verify(module)
    return Interpreter(module).call(text.rsplit("def ", 1)[1].partition("(")[0], *args)


def test_statements() -> None:
    text = """
def collatz(n : In[int], last : Out[float]) -> int:
    steps : int
    while (n != 1, max_iter := 200):
        if n % 2 == 0:
            n = n / 2
        else:
            n = 3 * n + 1
        steps += 1
    last = n
    for i in range(3):
        last = last * 10.0 + i
    return steps

def f(n : In[int], last : Out[float]) -> int:
    return n
"""
    module = parse(text)
    assert Interpreter(module).call("collatz", 27, 0.5) == (111, 1012.0)
    # the caller's argument stays
    assert Interpreter(module).call("f", 27, 0.5) == (27, 0.5)


def test_max_iter() -> None:
    text = (
        "def f(n : In[int]) -> int:\n    i : int\n"
        "    while (i < n, max_iter := 5):\n        i += 1\n    return i\n"
    )
    assert run(text, 5) == (5,)
    with pytest.raises(RuntimeError, match=r"f: line 3: .* max_iter = 5"):
        run(text, 6)


def test_conversions() -> None:
    text = (
        "def f(a : In[float]) -> int:\n    n : int = a * 2.0\n    n += 0.9\n"
        "    x : float = n\n    return x + 0.9\n"
    )
    assert run(text, -1.7) == (-1,)


def test_out_arguments_and_call_statements() -> None:
    text = """
def add(x : In[Tensor[N]], a : In[float], y : Out[Tensor[N]], n : Out[int]):
    y[i] += a * x[i]
    n = n + 1

def f(x : In[Tensor[N]], y : Out[Tensor[N]]) -> int:
    count : int
    add(x, 2.0, y, count)
    add(x, 1.0, y, count)
    return count
"""
    x, y = np.arange(3.0), np.ones(3)
    count, out = run(text, x, y)
    assert count == 2
    np.testing.assert_array_equal(out, 1.0 + 3.0 * x)
    np.testing.assert_array_equal(y, np.ones(3))


def test_arguments_results_and_variables_do_not_alias() -> None:
    text = """
def f(x : In[Tensor[N]]) -> tuple[Tensor[N], Tensor[N], Tensor[N, 1]]:
    y : Tensor[N] = x
    z : Tensor[N] = y
    r = reshape(y, [N, 1])
    y[i] = 7.0
    return y, z, r
"""
    x = np.arange(3.0)
    y, z, r = run(text, x)
    np.testing.assert_array_equal(x, np.arange(3.0))
    np.testing.assert_array_equal(y, np.full(3, 7.0))
    np.testing.assert_array_equal(z, x)
    np.testing.assert_array_equal(r, x[:, None])


def test_a_range_may_depend_on_an_index() -> None:
    text = """
def f(x : In[Tensor[N, M]]) -> tuple[Tensor[N], Tensor[N], Tensor[N]]:
    a : Tensor[N]
    a[i] = sum(x[i, j] for j in range(i))
    b : Tensor[N]
    b[i] = prod(x[i, j] for j in range(i))
    c : Tensor[N]
    c[i] = max(x[i, j] for j in range(i + 1))
    return a, b, c
"""
    x = np.random.default_rng(0).normal(size=(4, 4)) - 3.0
    a, b, c = run(text, x)
    for i in range(4):
        close(a[i], x[i, :i].sum())
        close(b[i], x[i, :i].prod())
        close(c[i], x[i, : i + 1].max())


def test_reductions_over_nothing() -> None:
    text = """
def f(x : In[Tensor[N, M]]) -> tuple[Tensor[N], Tensor[N]]:
    a : Tensor[N]
    a[i] = sum(x[i, j] for j in M)
    b : Tensor[N]
    b[i] = prod(x[i, j] for j in M)
    return a, b
"""
    a, b = run(text, np.zeros((2, 0)))
    np.testing.assert_array_equal(a, [0.0, 0.0])
    np.testing.assert_array_equal(b, [1.0, 1.0])
    for kind in ("max", "min", "argmax", "argmin"):
        text = (
            "def f(x : In[Tensor[M]]) -> float:\n"
            f"    return {kind}(x[j] for j in M)\n"
        )  # fmt: skip
        with pytest.raises(ValueError, match=f"f: line 2: '{kind}' of no elements"):
            run(text, np.zeros(0))


def test_extremes_take_the_first_of_equals_and_nan() -> None:
    text = """
def f(x : In[Tensor[N, M]]) -> tuple[int, int, float]:
    a : int = argmax(x[i, j] for i in N for j in M)
    b : int = argmin(x[i, j] for i in N for j in M)
    return a, b, max(x[i, j] for i in N for j in M)
"""
    assert run(text, np.array([[1.0, 3.0], [3.0, 1.0]])) == (1, 0, 3.0)
    a, b, c = run(text, np.array([[1.0, 3.0], [NAN, 5.0]]))
    assert (a, b) == (2, 2)
    assert math.isnan(c)


def test_an_unused_branch_is_not_evaluated() -> None:
    text = """
def slow(v : In[float]) -> float:
    r : float = v
    while (r > 1.0, max_iter := 3):
        r = r - 1.0
    return r

def f(x : In[Tensor[N]], t : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = (slow(x[i]) if x[i] < 3.0 else -1.0) + (x[t[i]] if t[i] >= 0 and 10 / t[i] > 1 else 0.0)
    return y
"""
    x, t = np.array([0.5, 2.5, 99.0]), np.array([-4, 1, 2])
    (y,) = run(text, x, t)
    np.testing.assert_array_equal(y, [0.5, 0.5 + 2.5, -1.0 + 99.0])


def test_division_of_an_int_by_zero() -> None:
    text = (
        "def f(n : In[IntTensor[N]]) -> IntTensor[N]:\n    y : IntTensor[N]\n"
        "    y[i] = 6 // n[i]\n    return y\n"
    )
    np.testing.assert_array_equal(run(text, np.array([2, -4]))[0], [3, -2])
    with pytest.raises(ValueError, match="f: line 3: division of an int by zero"):
        run(text, np.array([1, 0]))


WRONG_CALLS: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    ("x : In[Tensor[N]], y : In[Tensor[N]]", (np.zeros(2), np.zeros(3)), ValueError,
     "f: argument 'y' has size 3 in dimension 0, expected N = 2"),
    ("x : In[Tensor[N, 4]]", (np.zeros((2, 3)),), ValueError,
     "f: argument 'x' has size 3 in dimension 1, expected 4 = 4"),
    ("x : In[Tensor[N]], n : In[int], y : In[Tensor[n]]", (np.zeros(2), 3, np.zeros(2)),
     ValueError, "argument 'y' has size 2 in dimension 0, expected n = 3"),
    ("x : In[Tensor[N, M]]", (np.zeros(3),), ValueError,
     r"argument 'x' is Tensor\[N, M\], of rank 2; found the shape \[3\]"),
    ("x : In[Tensor[N]]", (np.zeros(3, dtype=np.int64),), TypeError,
     "argument 'x' takes floats, found int64"),
    ("x : In[IntTensor[N]]", (np.zeros(3),), TypeError,
     "argument 'x' takes integers, found float64"),
    ("x : In[Tensor[N]]", (), TypeError, "f takes 1 arguments, found 0"),
    ("x : In[Tensor[N]], a : In[float]", (np.zeros(2), np.zeros(2)), TypeError,
     "argument 'a' takes a number, found one of rank 1"),
    ("x : In[Tensor[N]], n : In[int]", (np.zeros(2), 1.5), TypeError,
     "argument 'n' takes an int, found 1.5"),
]  # fmt: skip


@pytest.mark.parametrize(("params", "args", "kind", "message"), WRONG_CALLS)
def test_wrong_calls(
    params: str, args: tuple[Any, ...], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        run(f"def f({params}) -> int:\n    return 1\n", *args)


def test_messages_of_subscripts_and_shapes() -> None:
    text = (
        "def f(x : In[Tensor[N]], k : In[int]) -> Tensor[N]:\n    y : Tensor[N]\n"
        "    y[i] = x[2*i + k]\n    return y\n"
    )
    with pytest.raises(ValueError, match=r"f: line 3: subscript '.*' of 'x' runs from -1 to 3, "
                                         "outside dimension 0 of size 3"):  # fmt: skip
        run(text, np.zeros(3), -1)
    text = "def f(x : In[Tensor], n : In[int]) -> Tensor[n]:\n    return x * x\n"
    np.testing.assert_array_equal(run(text, np.full(2, 3.0), 2)[0], [9.0, 9.0])
    with pytest.raises(ValueError, match=r"f: line 2: the result must be Tensor\[n\], found "
                              r"Tensor, which has sizes \[2\], expected \[3\]"):  # fmt: skip
        run(text, np.zeros(2), 3)


def test_a_missing_operator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ops.OPS, "relu")
    with pytest.raises(errors.BackendLacksOperator, match="no operator 'relu'"):
        run("def f(x : In[Tensor[N]]) -> Tensor[N]:\n    return relu(x)\n", np.zeros(2))


def test_no_torch_is_imported() -> None:
    code = "import sys, loma.backends.interpreter, loma.core.verify; "
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "case", [*OPERATOR_CASES, *INDEX_CASES, *TRAPS], ids=lambda case: case.name
)
def test_values_against_torch_and_after_printing(case: Any) -> None:
    """A program and its printed text verify and compute what PyTorch does."""
    module = parse(case.text)
    verify(module)
    again = parse(printer.print_module(module))
    verify(again)
    assert again == module
    args = case.arguments()
    name = case.text.rsplit("def ", 1)[1].partition("(")[0]
    values = Interpreter(module).call(name, *map(plain, args))
    expected = as_tuple(case.reference(*args))
    for value, right in zip(values, expected, strict=True):
        close(value, right)
    for value, other in zip(values, Interpreter(again).call(name, *map(plain, args)), strict=True):
        np.testing.assert_array_equal(value, other)


# -------------------------------------------------------------------------------- the scalar layer

STRUCTS = """
class Ray:
    origin : Array[float, 2]
    t : float

class Scene:
    rays : Array[Ray, 2]
    n : int
"""


def test_structs_and_arrays_are_copied() -> None:
    text = f"""{STRUCTS}
def change(ray : In[Ray], s : In[Scene], out : Out[Ray], scenes : Out[Array[Scene]]) -> Ray:
    ray.t = 5.0
    s.rays[1] = ray
    out = s.rays[1]
    s.rays[1].origin[0] = 9.0
    a : Array[float, 2] = ray.origin
    ray.origin[1] = 7.0
    out.origin[1] += a[1]
    scenes[1] = s
    scenes[0].rays = s.rays
    s.n += 1
    zero(s.rays)
    zero(out.origin[0])
    return ray

def f(ray : In[Ray], s : In[Scene], out : Out[Ray], scenes : Out[Array[Scene]]) -> float:
    r : Ray = change_once(ray)
    return r.t + ray.t + 10.0 * r.origin[0]

def change_once(ray : In[Ray]) -> Ray:
    ray.t += 1.0
    ray.origin[0] = 3.0
    return ray
"""
    module = parse(text)
    verify(module)
    interpreter = Interpreter(module)
    ray = {"origin": [1.0, 2.0], "t": 0.5}
    scene = {"rays": [ray, ray], "n": 3}
    args = (ray, scene, ray, [scene, scene])
    result, out, scenes = interpreter.call("change", *args)
    assert result == {"origin": [1.0, 7.0], "t": 5.0}
    assert out == {"origin": [0.0, 4.0], "t": 5.0}
    assert scenes[1]["rays"][1] == {"origin": [9.0, 2.0], "t": 5.0}
    assert scenes[0] == {"rays": scenes[1]["rays"], "n": 3}
    assert (ray, scene["n"]) == ({"origin": [1.0, 2.0], "t": 0.5}, 3)
    assert interpreter.call("f", *args)[0] == 1.5 + 0.5 + 30.0


def test_stacks_hold_copies() -> None:
    text = f"""{STRUCTS}
def f(ray : In[Ray], n : In[int]) -> float:
    tape : Stack[Ray]
    scene : Scene
    s : float
    for i in range(n):
        tape.push(ray)
        ray.t *= 2.0
    for i in range(n):
        scene.rays[i % 2] = tape.pop()
        s = 10.0 * s + scene.rays[i % 2].t
    return s
"""
    assert run(text, {"origin": [0.0, 0.0], "t": 1.0}, 3) == (421.0,)


def test_differentials_are_structs() -> None:
    text = (
        "def f(x : In[Diff[float]], n : In[int]) -> Diff[float]:\n"
        "    y : _dfloat = make__dfloat(n, x.dval)\n    y.val += x.val\n    return y\n"
    )
    assert run(text, {"val": 2.0, "dval": 1.0}, 3) == ({"val": 5.0, "dval": 1.0},)


def test_work_items_run_one_after_the_other() -> None:
    text = f"""{STRUCTS}
@simd
def f(x : In[Array[float]], a : In[int], ray : In[Ray], y : Out[Array[float]], s : Out[float]):
    t : float
    t += x[thread_id()]
    a += thread_id()
    ray.t += 1.0
    y[thread_id()] = t * a + ray.t
    atomic_add(s, y[thread_id()])
    atomic_add(y[0], 1.0)
"""
    ray = {"origin": [0.0, 0.0], "t": 1.0}
    args = ([1.0, 2.0, 3.0], 10, ray, [0.0] * 4, 100.0)
    assert run(text, *args, 3) == ([15.0, 24.0, 38.0, 0.0], 100.0 + 12.0 + 24.0 + 38.0)
    assert run(text, *args, 0) == ([0.0] * 4, 100.0)
    with pytest.raises(IndexError, match="f: line 13: subscript 3 is outside an array of 3 elem"):
        run(text, *args, 4)
    with pytest.raises(TypeError, match="f takes the number of work items last"):
        run(text)


def test_ints_have_32_bits_and_wrap_around() -> None:
    text = """
def f(a : In[int], x : In[float]) -> int:
    b : int = x
    b += 1
    return a * a + b
"""
    module = parse(text)
    interpreter = Interpreter(module)
    assert interpreter.call("f", 65536, 2.9) == (3,)
    assert interpreter.call("f", 2**31 - 1, 0.0) == (2,)
    assert interpreter.call("f", 0, 1e20) == (-(2**31),)
    assert interpreter.call("f", 0, -1e20) == (-(2**31) + 1,)
    assert interpreter.call("f", 0, NAN) == (1,)


WRONG_VALUES: list[tuple[str, Any, type[Exception], str]] = [
    ("Array[float, 2]", [1.0], ValueError, r"argument 'x' takes Array\[float, 2\], found 1 elem"),
    ("Array[float]", 1.0, TypeError, r"argument 'x' takes Array\[float\], found 1.0"),
    ("Array[int]", [1, 2.5], TypeError, r"argument 'x'\[1\] takes an int, found 2.5"),
    ("Ray", {"t": 1.0}, TypeError, "argument 'x' takes a dict of the members of Ray: origin, t"),
    ("Ray", {"t": 1.0, "origin": [1.0]}, ValueError, r"argument 'x'.origin takes Array\[float, 2"),
    ("Array[Ray]", [3.0], TypeError, r"argument 'x'\[0\] takes a dict of the members of Ray"),
]


@pytest.mark.parametrize(("type_", "value", "kind", "message"), WRONG_VALUES)
def test_wrong_values(type_: str, value: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        run(f"{STRUCTS}\ndef f(x : In[{type_}]) -> int:\n    return 1\n", value)
