"""What goes wrong while C code runs: the same exceptions as on the interpreter, a sound process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
from c_host import OPTIONS, STRICT, CProgram, compiled, differentiated

from loma.backends.c import Options, generate
from loma.backends.interpreter import Interpreter


FAILURES = """
def loop(n : In[int]) -> int:
    i : int
    while (i < n, max_iter := 10):
        i += 1
    return i

def element(i : In[int]) -> float:
    a : Array[float, 3]
    a[0] = 2.0
    return (
        a[i]
    )

def inner(b : In[Array[Array[float, 2], 3]], i : In[int], j : In[int]) -> float:
    return b[i][j]

def divide(a : In[int], b : In[int]) -> int:
    return a / b

def floor_divide(a : In[int], b : In[int]) -> int:
    c : int = 1
    if a > 0:
        c = a // b
    return c

def remainder_of(a : In[int], b : In[int]) -> int:
    return a % b

def outer(a : In[int], out : Out[float]) -> int:
    out = 5.0
    out = divide(6, a)
    return loop(a)

def short_circuit(a : In[int]) -> int:
    return 1 if a == 0 or 6 / a > 1 else 0

def nested(n : In[int]) -> int:
    i : int
    j : int
    while (i < 1000000, max_iter := 1000000):
        j = 0
        while (j < n, max_iter := 1000000):
            j += 1
        i += 1000000
    return j

def full(n : In[int]) -> float:
    tape : Stack[float, 2]
    x : float
    y : float
    for i in range(n):
        tape.push(int2float(i))
    for i in range(n):
        y = tape.pop()
        x = x * 10.0 + y
    return x

def empty(n : In[int]) -> float:
    tape : Stack[float]
    x : float
    tape.push(1.0)
    for i in range(n):
        x = tape.pop()
    return x

def long(n : In[int]) -> float:
    tape : Stack[Array[float, 3], 5000]
    a : Array[float, 3]
    x : float
    for i in range(n):
        a[i % 3] = i
        tape.push(a)
    for i in range(n):
        a = tape.pop()
        x += a[0] - a[1] + a[2]
    return x

def memory(n : In[int]) -> float:
    a : Array[Array[float, 1000000000], 1000000000]
    a[0][0] = 1.0
    return a[0][0]

def add(x : In[Array[float, 2]], y : Out[Array[float, 2]]):
    y[0] += x[0]

def together(b : Out[Array[Array[float, 2], 3]], i : In[int], j : In[int]):
    add(b[i], b[j])
"""
ELEMENTS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
FAILING: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    ("loop", (11,), RuntimeError, "loop: line 4: the loop runs more than max_iter = 10 times"),
    (
        "element",
        (3,),
        IndexError,
        "element: line 12: subscript 3 is outside an array of 3 elements",
    ),
    ("element", (-1,), IndexError, "element: line 12: subscript -1 is outside an array of 3 el"),
    ("inner", (ELEMENTS, 0, 2), IndexError, "inner: line 16: subscript 2 is outside an array of 2"),
    ("inner", (ELEMENTS, 3, 0), IndexError, "inner: line 16: subscript 3 is outside an array of 3"),
    ("divide", (1, 0), ZeroDivisionError, "divide: line 19: division of an int by zero"),
    ("floor_divide", (1, 0), ZeroDivisionError, "floor_divide: line 24: division of an int by z"),
    ("remainder_of", (1, 0), ZeroDivisionError, "remainder_of: line 28: division of an int by z"),
    ("outer", (0, 0.0), ZeroDivisionError, "divide: line 19: division of an int by zero"),
    ("outer", (11, 0.0), RuntimeError, "loop: line 4: the loop runs more than max_iter = 10 times"),
    (
        "nested",
        (2**31 - 1,),
        RuntimeError,
        "nested: line 43: the loop runs more than max_iter = 10",
    ),
    ("full", (3,), RuntimeError, "full: line 53: push on a full stack of 2"),
    ("empty", (2,), RuntimeError, "empty: line 64: pop from an empty stack"),
    ("long", (5001,), RuntimeError, "long: line 73: push on a full stack of 5000"),
    ("memory", (1,), MemoryError, "memory: line 80: out of memory"),
    ("together", (ELEMENTS, 1, 1), ValueError, "together: line 88: arguments 1 and 2 are the same"),
]
WORKING: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = [
    ("loop", (10,), (10,)),
    ("element", (0,), (2.0,)),
    ("inner", (ELEMENTS, 2, 1), (6.0,)),
    ("divide", (-7, 2), (-3,)),
    ("outer", (3, 1.0), (3, 2.0)),
    ("short_circuit", (0,), (1,)),
    ("short_circuit", (7,), (0,)),
    ("full", (2,), (10.0,)),
    ("empty", (1,), (1.0,)),
    ("together", (ELEMENTS, 1, 2), ([[1.0, 2.0], [3.0, 4.0], [8.0, 6.0]],)),
]


@pytest.fixture(scope="module", params=OPTIONS[:2], ids=lambda o: o.arrays)
def failures(request: pytest.FixtureRequest) -> tuple[Interpreter, CProgram]:
    made = differentiated(FAILURES)
    return Interpreter(made), CProgram(made, request.param)


@pytest.mark.parametrize(("name", "args", "kind", "message"), FAILING)
def test_failures(
    failures: tuple[Interpreter, CProgram],
    name: str,
    args: tuple[Any, ...],
    kind: type[Exception],
    message: str,
) -> None:
    """A failure ends the call with the same exception everywhere; the next call works."""
    interpreter, program = failures
    runs: list[Callable[..., Any]] = [program.call, program.call]
    if name not in ("nested", "memory"):
        runs.append(interpreter.call)
    for run in runs:
        with pytest.raises(kind) as caught:
            run(name, *args)
        assert type(caught.value) is kind
        assert str(caught.value).startswith(message)
    assert program.call("loop", 3) == (3,)


def test_no_failures(failures: tuple[Interpreter, CProgram]) -> None:
    interpreter, program = failures
    for name, args, expected in WORKING:
        assert interpreter.call(name, *args) == expected
        assert program.call(name, *args) == expected
    assert interpreter.call("long", 200) == program.call("long", 200)


def test_unknown_lengths_are_checked_in_slices() -> None:
    text = (
        "def f(x : In[Array[float]], i : In[int]) -> float:\n    return x[i]\n"
        "def g(x : Out[Array[Array[int]]], i : In[int], j : In[int]):\n    x[i][j] += i\n"
    )
    program = CProgram(differentiated(text), Options("float", "slices"))
    assert program.call("f", [1.0, 2.0], 1) == (2.0,)
    assert program.call("g", [[1, 2], [3]], 1, 0) == ([[1, 2], [4]],)
    for args in (([1.0, 2.0], 2), ([], 0)):
        with pytest.raises(IndexError, match=f"outside an array of {len(args[0])} elements"):
            program.call("f", *args)
    with pytest.raises(IndexError, match="g: line 4: subscript 1 is outside an array of 1 el"):
        program.call("g", [[1, 2], [3]], 1, 1)


SIMD = """
@simd
def failing(limit : In[Array[int]], done : Out[Array[int]]):
    i : int
    while (i < limit[thread_id()], max_iter := 10):
        i += 1
    done[thread_id()] = i
"""


def test_the_first_failing_item_is_told() -> None:
    made = differentiated(SIMD)
    program = CProgram(made)
    limits = [3] * 10_000
    limits[7777] = limits[1234] = 11
    message = "^failing: line 5: the loop runs more than max_iter = 10 times$"
    for run in (program.call, program.call, Interpreter(made).call):
        with pytest.raises(RuntimeError, match=message):
            run("failing", limits, [0] * len(limits), len(limits))
    (done,) = program.call("failing", limits, [0] * len(limits), 1234)
    assert done == [3] * 1234 + [0] * (len(limits) - 1234)


def test_the_record_of_a_failure_is_told_once() -> None:
    text = generate(differentiated(FAILURES)).text
    library = ctypes.CDLL(str(compiled(text, *STRICT)))
    record = (ctypes.c_int * 16)()
    library.loop(11)
    assert library.loma_error_take(record) == 1
    assert library.loma_error_take(record) == 0
