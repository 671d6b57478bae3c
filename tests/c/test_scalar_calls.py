"""Scalar functions called from Python: what goes in, what comes out, what a wrong call gets."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import loma
from conftest import ROOT
from loma import pipeline
from loma.backends.interpreter import Interpreter

PROGRAM = '''
class Ray:
    origin : Array[float, 3]
    t : float
    hits : int

class Pair:
    near : Ray
    rays : Array[Ray, 2]

def add(x : In[float], k : In[int]) -> float:
    """Adds a float
    and an int."""
    return x + k

def count(n : In[int]) -> int:
    return n + 1

def split(x : In[float]) -> tuple[int, float]:
    n : int = x
    return n, x - n

def scale(x : In[Array[float]], n : In[int], a : In[float], y : Out[Array[float]]):
    for i in range(n):
        y[i] = a * x[i]

def shift(k : In[Array[int, 3]], by : In[int], to : Out[Array[int, 3]]):
    for i in range(3):
        to[i] = k[i] + by

def total(m : In[Array[Array[float]]], n : In[int], sizes : In[Array[int]]) -> float:
    s : float
    for i in range(n):
        for j in range(sizes[i]):
            s += m[i][j]
    return s

def negate(m : Out[Array[Array[float, 2], 2]]):
    for i in range(2):
        for j in range(2):
            m[i][j] = -m[i][j]

def move(r : In[Ray], by : In[float]) -> Ray:
    s : Ray = r
    s.origin[1] = s.origin[1] + by
    s.hits = s.hits + 1
    return s

def hit(r : Out[Ray], seen : Out[int], t : Out[float]):
    r.t = r.t + 1.0
    r.origin[2] = 5.0
    r.hits = 7
    seen = r.hits
    t = r.t / 2

def advance(rays : Out[Array[Ray]], n : In[int], dt : In[float]):
    for i in range(n):
        rays[i].t = rays[i].t + dt
        rays[i].origin[0] = i

def nearest(p : In[Pair]) -> float:
    return min(p.near.t, min(p.rays[0].t, p.rays[1].t))

def tidy(p : Out[Pair]):
    p.rays[1].t = p.near.t
    p.near.t = 0.0

def halve(n : In[int]) -> int:
    k : int
    while (n > 1, max_iter := 5):
        n = n // 2
        k += 1
    return k

def divide(a : In[int], b : In[int]) -> int:
    return a / b

def outer(a : In[int], b : In[int]) -> int:
    return divide(a, b)
'''


@pytest.fixture(scope="module")
def m() -> loma.LomaModule:
    return loma.compile(PROGRAM)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


# -------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    "x", [1.5, np.float64(1.5), np.float32(1.5), np.array(1.5), Fraction(3, 2), torch.tensor(1.5)]
)
@pytest.mark.parametrize("k", [2, np.int8(2), np.array(2), torch.tensor(2)])
def test_numbers(m: loma.LomaModule, x: Any, k: Any) -> None:
    result = m.add(x, k)
    assert type(result) is float
    assert result == 3.5


def test_ints_and_bools_are_floats(m: loma.LomaModule) -> None:
    assert m.add(2, True) == 3.0
    assert m.add(x=True, k=np.int64(0)) == 1.0


def test_arithmetic_has_32_bits(m: loma.LomaModule) -> None:
    assert m.add(0.1, 0) == float(np.float32(0.1))
    assert m.add(1e300, 0) == float("inf")
    assert m.count(2**31 - 1) == -(2**31)
    assert type(m.count(1)) is int


def test_several_results(m: loma.LomaModule) -> None:
    assert m.split(2.75) == (2, 0.75)


def test_a_number_that_is_written_stands_in_an_array(m: loma.LomaModule) -> None:
    for seen, t in (
        (ints(0), np.zeros((), np.float32)),
        (torch.zeros(1, dtype=torch.int32), torch.zeros(())),
    ):
        assert m.hit(m.Ray(t=2.0), seen, t) is None
        assert (seen.item(), t.item()) == (7, 1.5)


# --------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize("x", [[1, 2.5], (1.0, 2.5), floats(1, 2.5), torch.tensor([1.0, 2.5])])
@pytest.mark.parametrize("y", [np.zeros(2, np.float32), torch.zeros(2), [0.0, 0.0]])
def test_arrays(m: loma.LomaModule, x: Any, y: Any) -> None:
    assert m.scale(x, 2, 2.0, y) is None
    assert list(map(float, y)) == [2.0, 5.0]


def test_only_what_is_written_changes(m: loma.LomaModule) -> None:
    x, y = floats(1, 2, 3), floats(7, 8, 9)
    m.scale(x, 2, 2.0, y)
    assert y.tolist() == [2.0, 4.0, 9.0]
    assert x.tolist() == [1.0, 2.0, 3.0]
    whole = floats(1, 2, 0, 0)
    m.scale(whole[:2], 2, 3.0, whole[2:])
    assert whole.tolist() == [1.0, 2.0, 3.0, 6.0]


def test_arrays_of_known_size(m: loma.LomaModule) -> None:
    to = ints(0, 0, 0)
    m.shift([1, 2, 3], 10, to)
    assert to.tolist() == [11, 12, 13]


@pytest.mark.parametrize(
    "rows", [[[1, 2], [3]], [floats(1, 2), (3,)], [torch.tensor([1.0, 2.0]), floats(3)]]
)
def test_arrays_of_arrays(m: loma.LomaModule, rows: Any) -> None:
    assert m.total(rows, 2, [2, 1]) == 6.0
    assert m.total(np.ones((2, 3), np.float32), 2, [3, 3]) == 6.0
    assert m.total(torch.ones(2, 3), 2, [3, 3]) == 6.0


@pytest.mark.parametrize(
    "matrix",
    [np.ones((2, 2), np.float32), torch.ones(2, 2), [[1.0, 1.0], [1.0, 1.0]], [floats(1, 1)] * 1],
)
def test_nested_arrays_of_known_size(m: loma.LomaModule, matrix: Any) -> None:
    if len(matrix) == 1:
        matrix = [floats(1, 1), [1.0, 1.0]]
    m.negate(matrix)
    assert [[float(x) for x in row] for row in matrix] == [[-1.0, -1.0], [-1.0, -1.0]]


# -------------------------------------------------------------------------------------- structs


def test_structs(m: loma.LomaModule) -> None:
    ray = m.Ray(origin=[1, 2, 3], t=1.0)
    moved = m.move(ray, 10)
    assert moved == m.Ray(origin=[1.0, 12.0, 3.0], t=1.0, hits=1)
    assert type(moved) is m.Ray
    assert repr(moved) == "Ray(origin=[1.0, 12.0, 3.0], t=1.0, hits=1)"
    assert moved != ray
    assert ray.origin == [1, 2, 3]


def test_members_are_zero_by_default(m: loma.LomaModule) -> None:
    pair = m.Pair()
    assert pair == m.Pair(near=m.Ray(), rays=[m.Ray(origin=floats(0, 0, 0)), m.Ray()])
    assert pair.rays[0] is not pair.rays[1]
    assert pair != m.Ray()
    assert m.Ray([1, 2, 3], hits=2) == m.Ray(origin=[1, 2, 3], t=0.0, hits=2)
    with pytest.raises(TypeError, match="Ray has no member 'tt': it has origin, t, hits"):
        m.Ray(tt=1.0)
    with pytest.raises(TypeError, match="Ray has 3 members, got 4 values"):
        m.Ray(1, 2, 3, 4)
    with pytest.raises(TypeError, match="Ray: member 'origin' is given twice"):
        m.Ray([1, 2, 3], origin=[1, 2, 3])
    with pytest.raises(AttributeError):
        pair.far = 1


@pytest.mark.parametrize(
    "origin", [[1.0, 2.0, 3.0], floats(1, 2, 3), torch.tensor([1.0, 2.0, 3.0])]
)
def test_any_object_with_the_members(m: loma.LomaModule, origin: Any) -> None:
    ray = types.SimpleNamespace(origin=origin, t=1, hits=np.int16(2), more="than that")
    assert m.move(ray, 1.0).origin.tolist() == [1.0, 3.0, 3.0]
    m.hit(ray, ints(0), floats(0))
    assert (ray.t, ray.hits, ray.more) == (2.0, 7, "than that")
    assert ray.origin is origin
    assert [float(x) for x in origin] == [1.0, 2.0, 5.0]


def test_a_tuple_is_replaced(m: loma.LomaModule) -> None:
    ray = types.SimpleNamespace(origin=(1, 2, 3), t=0, hits=0)
    m.hit(ray, ints(0), floats(0))
    assert list(ray.origin) == [1.0, 2.0, 5.0]


def test_structs_in_structs(m: loma.LomaModule) -> None:
    pair = m.Pair(near=m.Ray(t=3.0), rays=(m.Ray(t=2.0), m.Ray(t=5.0)))
    second = pair.rays[1]
    assert m.nearest(pair) == 2.0
    m.tidy(pair)
    assert (pair.near.t, second.t) == (0.0, 3.0)


def test_arrays_of_structs(m: loma.LomaModule) -> None:
    rays = [m.Ray(t=1.0), m.Ray(t=2.0)]
    first = rays[0]
    m.advance(rays, 2, 0.5)
    assert rays == [m.Ray(t=1.5), m.Ray(t=2.5, origin=[1.0, 0.0, 0.0])]
    assert rays[0] is first
    table = np.zeros(2, m.Ray)
    m.advance(table, 2, 0.5)
    assert table["t"].tolist() == [0.5, 0.5]
    assert table["origin"][:, 0].tolist() == [0.0, 1.0]
    m.advance((first,), 1, 1.0)
    assert first.t == 2.5


def test_the_layout_in_memory(m: loma.LomaModule) -> None:
    expected = [("origin", "f4", 3), ("t", "f4"), ("hits", "i4")]
    assert m.Ray.dtype == np.dtype(expected)
    assert m.Pair.dtype == np.dtype([("near", expected), ("rays", expected, 2)])


def test_copies_and_pickles(m: loma.LomaModule) -> None:
    pair = m.Pair(near=m.Ray(t=3.0))
    for other in (copy.deepcopy(pair), pickle.loads(pickle.dumps(pair))):
        assert other == pair
        assert other.near is not pair.near
        assert type(other) is m.Pair


# ---------------------------------------------------------------------------------- wrong calls

RAY = types.SimpleNamespace(origin=[0.0] * 3, t=0.0, hits=0)
X = floats(1, 2, 3, 4)


class Row(NamedTuple):
    origin: object
    t: float
    hits: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    origin: np.ndarray
    t: float
    hits: int


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


READ_ONLY = floats(1, 2)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.add(1.0), TypeError, "add() misses argument 'k'; its arguments are: x, k"),
        (lambda m: m.add(1.0, 2, 3), TypeError, "add() takes 2 arguments (x, k), got 3"),
        (lambda m: m.count(), TypeError, "count() misses argument 'n'"),
        (lambda m: m.count(1, 2), TypeError, "count() takes 1 argument (n), got 2"),
        (lambda m: m.add(1.0, j=2), TypeError, "add() has no argument 'j'; its arguments are: x"),
        (lambda m: m.add(1.0, 2, x=1), TypeError, "add() got argument 'x' twice"),
        (lambda m: m.add("1", 2), TypeError, "add: argument 'x' must be a number, got str"),
        (lambda m: m.add(1j, 2), TypeError, "'x' must be a number, got complex"),
        (lambda m: m.add(np.complex64(1), 2), TypeError, "must be a number, got numpy.complex64"),
        (lambda m: m.add(X, 2), TypeError, "'x' must be a number, got an array of float32 and "
         "shape (4,)"),
        (lambda m: m.add(torch.ones(1), 2), ValueError, "a 0-dimensional tensor, got a tensor of "
         "torch.float32 and shape (1,)"),
        (lambda m: m.add(torch.ones((), requires_grad=True), 2), TypeError, "'x' requires grad, "
         "but a scalar function takes no part in autograd"),
        (lambda m: m.add(10**400, 2), ValueError, "'x' is too large for a float"),
        (lambda m: m.add(1.0, 2.0), TypeError, "add: argument 'k' must be an int, got float"),
        (lambda m: m.add(1.0, X), TypeError, "'k' must be an int, got an array of float32"),
        (lambda m: m.add(1.0, 2**31), ValueError, "'k' does not fit in 32 bits"),
        (lambda m: m.add(1.0, -(2**70)), ValueError, "'k' does not fit in 32 bits"),
        (lambda m: m.scale(1.0, 1, 1.0, X), TypeError, "scale: argument 'x' must be Array[float], "
         "a NumPy array, a torch tensor or a list, got float"),
        (lambda m: m.scale(["a"], 1, 1.0, X), TypeError, "'x[0]' must be a number, got str"),
        (lambda m: m.scale(X.astype(float), 1, 1.0, X), TypeError, "'x' must be float32, got an "
         "array of float64 and shape (4,)"),
        (lambda m: m.scale(X.astype(">f4"), 1, 1.0, X), TypeError, "'x' must be float32, got"),
        (lambda m: m.scale(np.zeros(2, "M8[s]"), 1, 1.0, X), TypeError, "'x' must be float32, got "
         "an array of datetime64[s]"),
        (lambda m: m.scale(X[::2], 1, 1.0, X), ValueError, "'x' must be contiguous"),
        (lambda m: m.scale(np.frombuffer(bytes(9), "f4", 2, 1), 1, 1.0, X), ValueError,
         "'x' must be aligned in memory"),
        (lambda m: m.scale(X.reshape(2, 2), 1, 1.0, X), ValueError, "'x' must be Array[float], got "
         "an array of shape (2, 2)"),
        (lambda m: m.scale([1], 1, 1.0, READ_ONLY), ValueError, "'y' is written, but the array is "
         "read-only"),
        (lambda m: m.scale([1], 1, 1.0, (1.0,)), TypeError, "'y' is written, so it must be a NumPy "
         "array, a torch tensor or a list, got a tuple of 1"),
        (lambda m: m.scale(torch.ones(2).double(), 1, 1.0, X), TypeError, "'x' must be float32, "
         "got a tensor of torch.float64 and shape (2,)"),
        (lambda m: m.scale(torch.ones(2).bfloat16(), 1, 1.0, X), TypeError, "'x' must be float32"),
        (lambda m: m.scale(torch.ones(2, device="meta"), 1, 1.0, X), ValueError, "'x' must be on "
         "the CPU, got a tensor on meta"),
        (lambda m: m.scale(torch.ones(2).to_sparse(), 1, 1.0, X), ValueError, "'x' must be a dense "
         "tensor, got layout torch.sparse_coo"),
        (lambda m: m.scale(torch.ones(4)[::2], 1, 1.0, X), ValueError, "'x' must be contiguous"),
        (lambda m: m.scale(torch.ones(2, requires_grad=True), 1, 1.0, X), TypeError, "'x' requires "
         "grad, but a scalar function takes no part in autograd"),
        (lambda m: m.scale(X, 1, 1.0, X), ValueError, "scale: arguments 'x' and 'y' share memory, "
         "and 'y' is written"),
        (lambda m: m.scale(X[:3], 1, 1.0, torch.from_numpy(X[2:])), ValueError, "share memory"),
        (lambda m: m.shift([1, 2], 1, ints(0, 0, 0)), ValueError, "shift: argument 'k' must be "
         "Array[int, 3], got 2 elements"),
        (lambda m: m.shift([1, 2, 3], 1, ints(0)), ValueError, "'to' must be Array[int, 3], got an "
         "array of shape (1,)"),
        (lambda m: m.shift([1, 2.5, 3], 1, ints(0)), TypeError, "'k[1]' must be an int, got float"),
        (lambda m: m.shift(X[:3], 1, ints(0)), TypeError, "'k' must be int32, got an array of"),
        (lambda m: m.total(X, 1, [1]), ValueError, "'m' must be Array[Array[float]], got an array "
         "of shape (4,)"),
        (lambda m: m.total([1.0], 1, [1]), TypeError, "'m[0]' must be Array[float], a NumPy array"),
        (lambda m: m.negate([[1.0, 1.0], [1.0]]), ValueError, "'m[1]' must be Array[float, 2], got "
         "1 elements"),
        (lambda m: m.negate([X[:2], X[1:3]]), ValueError, "negate: argument 'm' is written, but "
         "parts of it share memory"),
        (lambda m: m.move(1.0, 2.0), TypeError, "move: argument 'r' must be an object with the "
         "attributes origin, t, hits (the struct Ray), got float without 'origin'"),
        (lambda m: m.move(m.Ray(t="x"), 2.0), TypeError, "'r.t' must be a number, got str"),
        (lambda m: m.move(m.Ray(origin=[1, 2]), 2.0), ValueError, "'r.origin' must be "
         "Array[float, 3], got 2 elements"),
        (lambda m: m.nearest(m.Pair(rays=[m.Ray(), 3])), TypeError, "'p.rays[1]' must be an"),
        (lambda m: m.advance([RAY, RAY], 2, 1.0), ValueError, "advance: argument 'rays' is "
         "written, but the same object is in it twice"),
        (lambda m: m.advance(np.zeros(2), 2, 1.0), TypeError, "'rays' must be of the structure "
         "Ray, got an array of float64"),
        (lambda m: m.hit(RAY, 1, floats(0)), TypeError, "hit: argument 'seen' is written, and a "
         "Python number cannot change: it must be a NumPy array or a torch tensor of one element, "
         "got int"),
        (lambda m: m.hit(RAY, ints(0, 1), floats(0)), ValueError, "'seen' must have one element"),
        (lambda m: m.hit(RAY, ints(0), ints(0)), TypeError, "'t' must be float32, got an array of"),
        (lambda m: m.hit(RAY, ints(0), RAY), TypeError, "'t' is written, and a Python number"),
        (lambda m: m.hit(Frozen(floats(0, 0, 0), 1.0, 0), ints(0), floats(0)), TypeError, "hit: "
         "argument 'r' is written, but 't' cannot be set, got Frozen"),
        (lambda m: m.hit(Row(floats(0, 0, 0), 1.0, 0), ints(0), floats(0)), TypeError, "argument "
         "'r' is written, but 't' cannot be set"),
        (lambda m: m.advance([RAY, Row([0.0] * 3, 1.0, 0)], 2, 1.0), TypeError, "'rays[1]' is "),
        (lambda m: m.scale(torch._neg_view(torch.ones(2)), 1, 1.0, X), ValueError, "'x' is a view "
         "whose numbers are negated when they are read: pass resolve_neg() of it"),
        (lambda m: m.scale(torch.ones(2, dtype=torch.complex64).conj().imag, 1, 1.0, X), ValueError,
         "pass resolve_neg()"),
        (lambda m: m.scale(nested(), 1, 1.0, X), TypeError, "'x' must be a dense tensor, got a "
         "nested tensor"),
        (lambda m: m.add(nested(), 1), TypeError, "'x' must be a dense tensor, got a nested"),
        (lambda m: m.ad, AttributeError, "has no function 'ad': did you mean 'add'?"),
    ],
)  # fmt: skip
def test_wrong_calls(
    m: loma.LomaModule, call: Callable[[Any], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        call(m)
    assert message in str(caught.value)
    assert X.tolist() == [1.0, 2.0, 3.0, 4.0]


def line(text: str) -> int:
    return 1 + next(k for k, code in enumerate(PROGRAM.split("\n")) if text in code)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.halve(10**9), RuntimeError,
         f"halve: line {line('max_iter')}: the loop runs more than max_iter = 5 times"),
        (lambda m: m.divide(1, 0), ZeroDivisionError,
         f"divide: line {line('a / b')}: division of an int by zero"),
        (lambda m: m.outer(1, 0), ZeroDivisionError, f"divide: line {line('a / b')}: division"),
        (lambda m: m.scale([1, 2], 3, 1.0, floats(0, 0, 0)), IndexError,
         f"scale: line {line('a * x[i]')}: subscript 2 is outside an array of 2 elements"),
        (lambda m: m.total([[1, 2], [3]], 2, [2, 2]), IndexError,
         f"total: line {line('m[i][j]')}: subscript 1 is outside an array of 1 elements"),
        (lambda m: m.advance([m.Ray()], 2, 1.0), IndexError, "subscript 1 is outside an array of"),
    ],
)  # fmt: skip
def test_failures_at_run_time(
    m: loma.LomaModule, call: Callable[[Any], object], error: type[Exception], message: str
) -> None:
    for _ in range(2):  # nothing is left over from the one before
        with pytest.raises(error) as caught:
            call(m)
        assert message in str(caught.value)
        assert m.halve(32) == 5
        assert m.divide(-7, 2) == -3


def test_the_interpreter_agrees(m: loma.LomaModule) -> None:
    oracle = Interpreter(pipeline.parsed(PROGRAM))
    ray = {"origin": [1.0, 2.0, 3.0], "t": 4.0, "hits": 5}
    (moved,) = oracle.call("move", ray, 0.5)
    given = m.move(m.Ray(**ray), 0.5)
    assert {"origin": list(given.origin), "t": given.t, "hits": given.hits} == moved
    for x in (-2.75, 0.0, 3.5):
        assert m.split(x) == oracle.call("split", x)


# ---------------------------------------------------------------------------------- derivatives

DERIVATIVES = """
class Spring:
    ends : Array[float, 2]
    k : float
    n : int

def energy(s : In[Spring], x : In[Array[float]], n : In[int], a : In[float]) -> float:
    e : float
    for i in range(n):
        e += s.k * x[i] * x[i]
    return e + a * s.ends[0] * s.ends[1]

d_energy = rev_diff(energy)
f_energy = fwd_diff(energy)

def squares(x : In[Array[float]], n : In[int], y : Out[Array[float]]):
    for i in range(n):
        y[i] = x[i] * x[i]

d_squares = rev_diff(squares)

def cube(x : In[float]) -> float:
    return x * x * x

d_cube = rev_diff(cube)
dd_cube = fwd_diff(d_cube)

def rows(m : In[Array[Array[float]]], s : In[Array[Spring]]) -> float:
    return m[0][1] * m[1][0] * s[1].k

d_rows = rev_diff(rows)

@simd
def weigh(x : In[Array[float]], w : In[float], y : Out[Array[float]], sum : Out[float]):
    i : int = thread_id()
    y[i] = w * x[i]
    atomic_add(sum, x[i])

d_weigh = rev_diff(weigh)
"""


@pytest.fixture(scope="module")
def d() -> loma.LomaModule:
    return loma.compile(DERIVATIVES)


@pytest.mark.parametrize("x", [[1.0, 2.0], floats(1, 2), torch.tensor([1.0, 2.0])])
def test_adjoints_of_the_in_arguments(d: loma.LomaModule, x: Any) -> None:
    spring = d.Spring(ends=[3.0, 4.0], k=0.5)
    ds, dx, dn, da = d.d_energy(spring, x, 2, 2.0, 10.0)
    assert ds == d.Spring(ends=[80.0, 60.0], k=50.0)
    assert dx.tolist() == [10.0, 20.0]
    assert type(dx) is (torch.Tensor if isinstance(x, torch.Tensor) else np.ndarray)
    assert (dn, da) == (0, 120.0)
    assert spring == d.Spring(ends=[3.0, 4.0], k=0.5)


def test_adjoints_of_out_arguments_go_in(d: loma.LomaModule) -> None:
    assert str(inspect.signature(d.d_squares)) == "(x, n, _d_y)"
    dx, _ = d.d_squares([1.0, 2.0], 2, [10.0, 100.0])
    assert dx.tolist() == [20.0, 400.0]


def test_one_adjoint_is_a_tuple(d: loma.LomaModule) -> None:
    assert d.d_cube(2.0, 1.0) == (12.0,)


def test_adjoints_of_arrays_of_arrays_and_structs(d: loma.LomaModule) -> None:
    springs = [d.Spring(), d.Spring(k=2.0)]
    dm, ds = d.d_rows([[0, 3], [5]], springs, 1.0)
    assert [row.tolist() for row in dm] == [[0.0, 10.0], [6.0]]
    assert ds == [d.Spring(), d.Spring(k=15.0)]
    table = np.zeros(2, d.Spring)
    table["k"][1] = 2.0
    dm, ds = d.d_rows(floats(0, 3, 5, 0).reshape(2, 2), table, 1.0)
    assert dm.tolist() == [[0.0, 10.0], [6.0, 0.0]]
    assert ds["k"].tolist() == [0.0, 15.0]


def test_forward_derivatives(d: loma.LomaModule) -> None:
    dual = d._dfloat
    spring = d._dSpring([dual(3.0, 1.0), dual(4.0)], dual(val=0.5))
    e = d.f_energy(spring, [dual(1.0), dual(2.0)], 2, dual(2.0))
    assert e == dual(val=26.5, dval=8.0)
    with pytest.raises(TypeError, match="'a' must be an object with the attributes val, dval"):
        d.f_energy(spring, [dual(), dual()], 2, 2.0)


def test_forward_of_reverse(d: loma.LomaModule) -> None:
    dx = d._dfloat()
    assert d.dd_cube(d._dfloat(val=2.0, dval=1.0), dx, d._dfloat(val=1.0)) is None
    assert dx == d._dfloat(val=12.0, dval=12.0)


def test_work_items(d: loma.LomaModule) -> None:
    n = 1000
    x, y, total = np.arange(n, dtype=np.float32), np.zeros(n, np.float32), floats(0)
    assert str(inspect.signature(d.weigh)) == "(x, w, y, sum, items)"
    d.weigh(x, 2.0, y, total, n)
    assert np.array_equal(y, 2 * x)
    assert total[0] == x.sum()
    d.weigh(x, 3.0, y, total, items=0)
    assert y[1] == 2.0
    dx, dw = d.d_weigh(x, 2.0, np.ones(n, np.float32), 1.0, n)
    assert np.array_equal(dx, np.full(n, 3.0))
    assert dw == x.sum()
    with pytest.raises(ValueError, match="'items' is the number of work items: it must not be neg"):
        d.weigh(x, 2.0, y, total, -1)
    with pytest.raises(IndexError, match="subscript 1000 is outside an array of 1000 elements"):
        d.weigh(x, 2.0, y, total, n + 1)


# ----------------------------------------------------------------------------------- the module


def test_the_module_describes_itself(m: loma.LomaModule, d: loma.LomaModule) -> None:
    assert {"add", "Ray", "show"} <= set(dir(m))
    assert {"d_cube", "_dfloat", "_dSpring"} <= set(dir(d))
    assert not any("rev" in name for name in dir(d))
    assert str(inspect.signature(m.add)) == "(x, k)"
    assert m.add.__name__ == "add"
    assert repr(m.add) == "<loma function add>"
    assert m.add.__doc__.startswith("add(x : In[float], k : In[int]) -> float\n\nAdds a float")
    assert d.d_cube.__doc__.startswith("d_cube(x : In[float], _d_result : In[float]) -> tuple[fl")
    assert "split(x : In[float]) -> tuple[int, float]" in m.split.__doc__
    assert "add" in repr(m)
    assert "def add(" in m.show("parsed", "add")


def test_the_same_text_is_the_same_module(m: loma.LomaModule) -> None:
    assert loma.compile(PROGRAM) is m
    assert pickle.loads(pickle.dumps(m)) is m
    assert pickle.loads(pickle.dumps(m.add)) is m.add


def test_names_that_mean_something_elsewhere() -> None:
    module = loma.compile(
        "class new:\n    __template : float\n    self : int\n    dtype : float\n\n"
        "def printf(int32_t : In[new], größe : In[float]) -> new:\n"
        "    int32_t.self += 1\n    int32_t.__template = größe\n    return int32_t\n\n"
        "def _functions(double : In[float]) -> float:\n    return double\n"
    )
    value = module.printf(module.new(self=2, dtype=0.5), größe=1.5)
    assert (value.self, value.dtype, getattr(value, "__template")) == (3, 0.5, 1.5)
    assert module.new.dtype.names == ("__template", "self", "dtype")
    assert module._functions(2.0) == 2.0
    assert str(inspect.signature(module.printf)) == "(int32_t, größe)"


def test_a_struct_without_members() -> None:
    module = loma.compile(
        "class Nothing:\n    pass\n\nclass Box:\n    none : Nothing\n    x : float\n\n"
        "def double(b : In[Box], n : In[Nothing]) -> tuple[Nothing, Box]:\n"
        "    c : Box = b\n    c.x = 2.0 * b.x\n    return n, c\n\n"
        "def fill(a : Out[Array[Box]]):\n    a[1].x = 3.0\n"
    )
    nothing, box = module.double(module.Box(x=2.0), module.Nothing())
    assert (nothing, box) == (module.Nothing(), module.Box(x=4.0))
    boxes = np.zeros(2, module.Box)
    module.fill(boxes)
    assert boxes["x"].tolist() == [0.0, 3.0]


def test_both_layers_in_one_module() -> None:
    module = loma.compile(
        "def square(x : In[float]) -> float:\n    return x * x\n\n"
        "d_square = rev_diff(square)\n\n"
        "def squares(x : In[Tensor[N]]) -> Tensor[N]:\n"
        "    y : Tensor[N]\n    y[i] = square(x[i])\n    return y\n"
    )
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    module.squares(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 6.0]
    assert {"square", "d_square", "squares"} <= set(dir(module))
    assert (module.square(3.0), module.d_square(3.0, 1.0)) == (9.0, (6.0,))
    assert pickle.loads(pickle.dumps(module.square)) is module.square


def test_programs_in_python_files() -> None:
    @loma.module
    def embedded() -> None:
        class Point:
            x: float

        def norm(p: In[Point]) -> float:  # type: ignore[name-defined]  # noqa: F821
            return abs(p.x)  # type: ignore[no-any-return]  # the line of the function

    assert embedded.norm(embedded.Point(x=-2.0)) == 2.0


def test_calls_from_several_threads(m: loma.LomaModule) -> None:
    failures = []

    def work(start: int) -> None:
        try:
            y = np.zeros(100, np.float32)
            for k in range(start, start + 200):
                m.scale(np.full(100, k, np.float32), 100, 2.0, y)
                assert y.tolist() == [2.0 * k] * 100
                with pytest.raises(ZeroDivisionError):
                    m.divide(k, 0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_several_at_once() -> None:
    texts = [f"def f(x : In[float]) -> float:\n    return x + {k}\n" for k in range(3)]
    assert [module.f(0.5) for module in loma.compile_many(texts)] == [0.5, 1.5, 2.5]


def test_neither_torch_nor_numpy_nor_a_parser_is_needed(m: loma.LomaModule) -> None:
    code = f"""
import sys, loma
module = loma.compile({PROGRAM!r})
assert module.add(1.5, 2) == 3.5
heavy = {{"torch", "numpy", "jinja2", "loma.frontend", "loma.ad", "loma.backends.c"}}
print(sorted(heavy & set(sys.modules)))
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate()[0] for process in processes] == ["[]\n", "[]\n"]
