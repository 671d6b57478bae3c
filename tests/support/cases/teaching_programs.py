"""Programs in the manner of the teaching language, and what their functions compute.

``PROGRAMS`` has those without derivatives; ``DERIVATIVES`` in ``teaching_derivatives`` the others.
Every backend runs all of them. Arguments and results are numbers, lists (arrays) and dicts
(structs).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function and what comes of it.

    ``args`` has one value for each argument, ``Out`` ones included: what they hold before.
    ``outs`` are the values of the ``Out`` arguments afterwards, in order; None is not compared.
    ``items`` is the number of work items of a ``@simd`` function.
    """

    function: str
    args: tuple[Any, ...] = ()
    result: Any = None
    outs: tuple[Any, ...] = ()
    items: int | None = None


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    source: str
    calls: tuple[Call, ...] = ()


def program(name: str, source: str, *calls: Call) -> Program:
    return Program(name, source.lstrip("\n"), calls)


BINARY = """
def plus(x : In[float], y : In[float]) -> float:
    return x + y
def subtract(x : In[float], y : In[float]) -> float:
    return x - y
def multiply(x : In[float], y : In[float]) -> float:
    return x * y
def divide(x : In[float], y : In[float]) -> float:
    return x / y
"""

PROGRAMS: tuple[Program, ...] = (
    # ------------------------------------------------------------- declarations and expressions
    program(
        "identity",
        """
def identity(x : In[float]) -> float:
    return x
""",
        Call("identity", (1.25,), 1.25),
    ),
    program(
        "constant",
        """
def constant() -> float:
    return 2.0
""",
        Call("constant", (), 2.0),
    ),
    program(
        "declare",
        """
def declare(x : In[float]) -> float:
    a : float = x
    b : float
    c : float = 2.0 * a
    d : int = 4
    b = a + c
    return b + d
""",
        Call("declare", (1.5,), 8.5),
    ),
    program(
        "starts_at_zero",
        """
class Pair:
    a : float
    k : int

def starts_at_zero() -> float:
    x : float
    i : int
    v : Array[float, 4]
    p : Pair
    return x + i + v[3] + p.a + p.k
""",
        Call("starts_at_zero", (), 0.0),
    ),
    program(
        "binary_operations",
        BINARY,
        Call("plus", (3.0, 4.5), 7.5),
        Call("subtract", (3.0, 4.5), -1.5),
        Call("multiply", (3.0, 4.5), 13.5),
        Call("divide", (3.0, 4.0), 0.75),
    ),
    program(
        "precedence",
        """
def precedence(x : In[float], y : In[float]) -> float:
    return -x * y + (x - y) * 2.0 / 4.0 - -y
""",
        Call("precedence", (3.0, 5.0), -11.0),
    ),
    program(
        "assignments",
        """
def assignments(x : In[float]) -> float:
    y : float
    y = x
    y = y + 1.0
    x = y * y
    y = x - y
    return y
""",
        Call("assignments", (2.0,), 6.0),
    ),
    program(
        "augmented",
        """
class Box:
    v : Array[float, 2]

def augmented(x : In[float]) -> float:
    b : Box
    i : int = 1
    b.v[i] += x
    b.v[i] *= 3.0
    b.v[i] -= 1.0
    b.v[i] /= 2.0
    i *= 5
    i -= 2
    i += 1.9
    return b.v[1] + i
""",
        Call("augmented", (3.0,), 8.0),
    ),
    program(
        "integers",
        """
def truncated(a : In[int], b : In[int]) -> int:
    return a / b
def floored(a : In[int], b : In[int]) -> int:
    return a // b
def remainder(a : In[int], b : In[int]) -> int:
    return a % b
def power(a : In[int]) -> int:
    return a ** 3
""",
        Call("truncated", (-7, 2), -3),
        Call("floored", (-7, 2), -4),
        Call("remainder", (-7, 2), 1),
        Call("remainder", (7, -2), -1),
        Call("power", (-3,), -27),
    ),
    program(
        "conversions",
        """
def to_int(x : In[float]) -> int:
    return x
def to_float(n : In[int]) -> float:
    return n
def half(n : In[int]) -> float:
    x : float = n
    return x / 2
def called(x : In[float]) -> float:
    return to_float(to_int(x)) + float2int(x) + int2float(3)
def stored(x : In[float]) -> int:
    i : int = x
    j : int
    j = 2.0 * x
    return 10 * i + j
""",
        Call("to_int", (-2.75,), -2),
        Call("to_float", (3,), 3.0),
        Call("half", (5,), 2.5),
        Call("called", (2.75,), 7.0),
        Call("stored", (1.75,), 13),
    ),
    program(
        "builtin_functions",
        """
def builtins(x : In[float], y : In[float]) -> float:
    a : float = sin(x) + cos(y)
    b : float = sqrt(x) * pow(x, y)
    c : float = exp(y) - log(x)
    return a * b + c
def more(x : In[float], y : In[float]) -> float:
    return tan(x) + tanh(y) + abs(x - y) + min(x, y) + max(x, y) + floor(x)
""",
        Call(
            "builtins",
            (1.5, 0.5),
            (math.sin(1.5) + math.cos(0.5)) * 1.5 + math.exp(0.5) - math.log(1.5),
        ),
        Call("more", (1.25, 0.5), math.tan(1.25) + math.tanh(0.5) + 0.75 + 0.5 + 1.25 + 1.0),
    ),
    program(
        "comparisons",
        """
def count(x : In[float], y : In[float]) -> int:
    return (x < y) + (x <= y) * 10 + (x > y) * 100 + (x >= y) * 1000 + (x == y) * 10000 + (x != y)
def between(x : In[float]) -> int:
    return 0.0 < x <= 1.0 < 2.0
""",
        Call("count", (1.0, 2.0), 12),
        Call("count", (2.0, 2.0), 11010),
        Call("between", (1.0,), 1),
        Call("between", (1.5,), 0),
    ),
    program(
        "logic",
        """
def logic(x : In[float], n : In[int]) -> int:
    return x > 0.0 and n or not n and x < -1.0 and not (x == 3.0 or n > 2)
""",
        Call("logic", (1.0, 1), 1),
        Call("logic", (-2.0, 0), 1),
        Call("logic", (-0.5, 0), 0),
    ),
    program(
        "choice",
        """
def choice(x : In[float], a : In[Array[float]], n : In[int]) -> float:
    return a[n] if n >= 0 else x if x > 0.0 else 1
""",
        Call("choice", (2.5, [7.0, 8.0], 1), 8.0),
        Call("choice", (2.5, [7.0, 8.0], -1), 2.5),
        Call("choice", (-2.5, [7.0, 8.0], -1), 1.0),
    ),
    program(
        "docstrings",
        '''
"""A program with words in it."""

from loma import In, Out, Array

class Point:
    """A place."""
    x : float

def docstrings(p : In[Point]) -> float:
    """The place, as a number."""
    "another"
    return p.x
''',
        Call("docstrings", ({"x": 4.0},), 4.0),
    ),
    program(
        "several_results",
        """
def moments(x : In[Array[float]], n : In[int]) -> tuple[float, float]:
    s : float
    q : float
    for i in range(n):
        s += x[i]
        q += x[i] * x[i]
    return s / n, q / n
def variance(x : In[Array[float]], n : In[int]) -> float:
    m, q = moments(x, n)
    return q - m * m
""",
        Call("variance", ([1.0, 3.0, 5.0, 7.0], 4), 5.0),
    ),
    # ---------------------------------------------------------------------------------- arrays
    program(
        "array_read",
        """
def array_read(x : In[Array[float]]) -> float:
    return x[0]
def array_read_at(x : In[Array[float]], i : In[int]) -> float:
    return x[i + 1] - x[2 * i]
""",
        Call("array_read", ([0.5, 0.25],), 0.5),
        Call("array_read_at", ([1.0, 2.0, 4.0, 8.0], 1), 0.0),
    ),
    program(
        "array_write",
        """
def array_write(x : Out[Array[float]]):
    x[0] = 2.0
    x[1] = x[0] + 1.0
""",
        Call("array_write", ([9.0, 9.0, 9.0],), None, ([2.0, 3.0, 9.0],)),
    ),
    program(
        "local_array",
        """
def local_array(x : In[float]) -> float:
    a : Array[float, 3]
    b : Array[float, 3]
    a[0] = x
    a[1] = 2.0 * x
    b = a
    a[0] = 100.0
    return b[0] + b[1] + b[2]
""",
        Call("local_array", (1.5,), 4.5),
    ),
    program(
        "nested_arrays",
        """
def transpose(m : In[Array[Array[float, 3], 2]], out : Out[Array[Array[float, 2], 3]]):
    for i in range(2):
        for j in range(3):
            out[j][i] = m[i][j]
def trace(x : In[float]) -> float:
    m : Array[Array[float, 2], 2]
    row : Array[float, 2]
    row[0] = x
    row[1] = 2.0
    m[0] = row
    m[1] = m[0]
    m[1][1] *= 4.0
    return m[0][0] + m[1][1]
""",
        Call(
            "transpose",
            ([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]),
            None,
            ([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]],),
        ),
        Call("trace", (1.0,), 9.0),
    ),
    program(
        "array_index_of_an_array",
        """
def pick(values : In[Array[float]], order : In[Array[int]], k : In[int]) -> float:
    return values[order[order[k]]]
""",
        Call("pick", ([1.0, 2.0, 3.0], [2, 0, 1], 0), 2.0),
    ),
    program(
        "arrays_passed_on",
        """
def total(a : In[Array[float]], n : In[int]) -> float:
    i : int
    s : float
    while (i < n, max_iter := 100):
        s = s + a[i]
        i = i + 1
    return s
def fill(a : Out[Array[float]], n : In[int], x : In[float]):
    for i in range(n):
        a[i] = x * i
def both(x : In[float]) -> float:
    a : Array[float, 5]
    fill(a, 5, x)
    return total(a, 5)
""",
        Call("both", (0.5,), 5.0),
        Call("fill", ([0.0, 0.0, 7.0], 2, 3.0), None, ([0.0, 3.0, 7.0],)),
    ),
    # ---------------------------------------------------------------------------- control flow
    program(
        "ifelse",
        """
def ifelse(x : In[float]) -> float:
    z : float
    if x > 0.0:
        z = x * x
    else:
        z = -x
    return z
def only_if(x : In[float]) -> float:
    z : float = x
    if x < 0:
        z = 0
    return z
""",
        Call("ifelse", (3.0,), 9.0),
        Call("ifelse", (-3.0,), 3.0),
        Call("only_if", (-3.0,), 0.0),
        Call("only_if", (3.0,), 3.0),
    ),
    program(
        "nested_ifelse",
        """
def nested(x : In[float], y : In[float]) -> float:
    z : float
    if x > 0.0:
        if y > 0.0:
            z = x + y
        else:
            z = x - y
    elif x == 0.0:
        z = 100.0
    elif y:
        z = 200.0
    else:
        z = 300.0
    return z
""",
        Call("nested", (1.0, 2.0), 3.0),
        Call("nested", (1.0, -2.0), 3.0),
        Call("nested", (0.0, 1.0), 100.0),
        Call("nested", (-1.0, 1.0), 200.0),
        Call("nested", (-1.0, 0.0), 300.0),
    ),
    program(
        "while_loop",
        """
def while_loop(x : In[float], n : In[int]) -> float:
    i : int = 0
    z : float = x
    while (i < n, max_iter := 10):
        z = sin(z)
        i = i + 1
    return z
""",
        Call("while_loop", (1.0, 3), math.sin(math.sin(math.sin(1.0)))),
        Call("while_loop", (1.0, 0), 1.0),
        Call("while_loop", (1.0, 1), math.sin(1.0)),
    ),
    program(
        "nested_while_loops",
        """
def nested(n : In[int], m : In[int]) -> int:
    i : int
    j : int
    s : int
    while (i < n, max_iter := 20):
        j = 0
        while (j < m + i, max_iter := 30):
            if (i + j) % 2 == 0:
                s = s + 1
            j = j + 1
        i = i + 1
    return s
def three(n : In[int]) -> int:
    i : int
    j : int
    k : int
    s : int
    while (i < n, max_iter := 5):
        j = 0
        while (j < i, max_iter := 5):
            k = 0
            while (k < j, max_iter := 5):
                s += 1
                k += 1
            j += 1
        i += 1
    return s
""",
        Call("nested", (3, 2), 4),
        Call("three", (5,), 10),
    ),
    program(
        "for_loop",
        """
def harmonic(n : In[int]) -> float:
    s : float
    for i in range(n):
        s += 1.0 / (i + 1)
    return s
def range_once(n : In[int]) -> int:
    s : int
    for i in range(n):
        n = 0
        s = 10 * s + i
    return s
""",
        Call("harmonic", (3,), 1.0 + 0.5 + 1.0 / 3.0),
        Call("harmonic", (-2,), 0.0),
        Call("range_once", (4,), 123),
    ),
    program(
        "newton",
        """
def root(x : In[float]) -> float:
    y : float = x
    last : float
    while (abs(y - last) > 0.000001 and y > 0, max_iter := 60):
        last = y
        y = 0.5 * (y + x / y)
    return y
""",
        Call("root", (2.0,), math.sqrt(2.0)),
    ),
    # ---------------------------------------------------------------------------------- structs
    program(
        "struct_input",
        """
class Foo:
    x : int
    y : float

def struct_input(foo : In[Foo]) -> float:
    return foo.x + foo.y + foo.x * foo.y
""",
        Call("struct_input", ({"x": 3, "y": 4.5},), 21.0),
    ),
    program(
        "struct_output",
        """
class Foo:
    x : int
    y : float

def struct_output(a : In[float]) -> Foo:
    foo : Foo
    foo.x = float2int(a)
    foo.y = a * 10.0
    return foo
def through(a : In[float]) -> float:
    return struct_output(a).y + struct_output(a).x
""",
        Call("struct_output", (1.25,), {"x": 1, "y": 12.5}),
        Call("through", (1.25,), 13.5),
    ),
    program(
        "struct_is_copied",
        """
class Ray:
    origin : Array[float, 3]
    t : float

def advance(ray : In[Ray], t : In[float]) -> Ray:
    ray.origin[0] += t
    ray.t = t
    return ray
def copies(ray : In[Ray]) -> float:
    other : Ray = ray
    third : Ray
    third = advance(other, 10.0)
    return ray.origin[0] + other.origin[0] * 100.0 + third.origin[0] * 1000.0
""",
        Call(
            "advance",
            ({"origin": [1.0, 2.0, 3.0], "t": 0.0}, 0.5),
            {"origin": [1.5, 2.0, 3.0], "t": 0.5},
        ),
        Call("copies", ({"origin": [1.0, 2.0, 3.0], "t": 0.0},), 11101.0),
    ),
    program(
        "structs_in_arrays_in_structs",
        """
class Point:
    at : Array[float, 2]
    weight : float

class Cloud:
    points : Array[Point, 3]
    n : int

class Sky:
    clouds : Array[Cloud, 2]

def build(x : In[float]) -> Sky:
    sky : Sky
    for c in range(2):
        sky.clouds[c].n = 3 - c
        for i in range(3):
            sky.clouds[c].points[i].at[0] = x * i
            sky.clouds[c].points[i].at[1] = c
            sky.clouds[c].points[i].weight += 1.0
    sky.clouds[1].points[2] = sky.clouds[0].points[1]
    return sky
def weigh(sky : In[Sky]) -> float:
    s : float
    for c in range(2):
        for i in range(sky.clouds[c].n):
            s += sky.clouds[c].points[i].at[0] * sky.clouds[c].points[i].weight
    return s
def all(x : In[float]) -> float:
    return weigh(build(x)) + build(x).clouds[1].points[2].at[0]
""",
        Call("all", (2.0,), 10.0),
    ),
    program(
        "array_of_structs",
        """
class Spring:
    k : float
    length : float

def energy(springs : In[Array[Spring]], x : In[Array[float]], n : In[int]) -> float:
    i : int
    e : float
    while (i < n, max_iter := 1000):
        e += 0.5 * springs[i].k * (x[i] - springs[i].length) ** 2
        i += 1
    return e
def stiffen(springs : Out[Array[Spring]], n : In[int]):
    for i in range(n):
        springs[i].k *= 2.0
""",
        Call(
            "energy",
            ([{"k": 2.0, "length": 1.0}, {"k": 4.0, "length": 0.5}], [2.0, 1.5], 2),
            3.0,
        ),
        Call(
            "stiffen",
            ([{"k": 2.0, "length": 1.0}, {"k": 4.0, "length": 0.5}], 1),
            None,
            ([{"k": 4.0, "length": 1.0}, {"k": 4.0, "length": 0.5}],),
        ),
    ),
    program(
        "in_arguments_are_copies",
        """
class S:
    v : Array[float, 2]
    x : float

def spoil(s : In[S], n : In[int]) -> float:
    n = n + 1
    s.v[n] = 7.0
    s.x = s.x + s.v[1]
    return s.x
def twice(s : In[S]) -> float:
    return spoil(s, 0) + spoil(s, 0) + s.v[1]
""",
        Call("twice", ({"v": [1.0, 2.0], "x": 0.5},), 17.0),
    ),
    # ------------------------------------------------------------------- calls, Out arguments
    program(
        "function_call",
        """
def square(x : In[float]) -> float:
    return x * x
def fourth(x : In[float]) -> float:
    return square(square(x))
def mixed(x : In[float]) -> float:
    y : float = fourth(x) + square(x) * square(2)
    return y
""",
        Call("mixed", (2.0,), 32.0),
    ),
    program(
        "called_before_its_definition",
        """
def outer(x : In[float]) -> float:
    return inner(x) + 1.0

def inner(x : In[float]) -> float:
    return 3.0 * x
""",
        Call("outer", (2.0,), 7.0),
    ),
    program(
        "out_arguments",
        """
def out_scalar(x : In[float], y : Out[float]):
    y = x * x
def out_int(x : In[int], y : Out[int]):
    y = x + y
def several(x : In[float], s : Out[float], c : Out[float]):
    s = sin(x)
    c = cos(x)
""",
        Call("out_scalar", (3.0, 1.0), None, (9.0,)),
        Call("out_int", (3, 4), None, (7,)),
        Call("several", (0.5, 0.0, 0.0), None, (math.sin(0.5), math.cos(0.5))),
    ),
    program(
        "out_struct",
        """
class Foo:
    x : int
    y : float

def out_struct(a : In[float], foo : Out[Foo]):
    foo.x = 2
    foo.y = a + foo.y
def replaced(a : In[float], foo : Out[Foo]):
    other : Foo
    other.y = a
    foo = other
""",
        Call("out_struct", (1.5, {"x": 9, "y": 0.25}), None, ({"x": 2, "y": 1.75},)),
        Call("replaced", (1.5, {"x": 9, "y": 0.25}), None, ({"x": 0, "y": 1.5},)),
    ),
    program(
        "call_statement",
        """
def compute(x : In[float], y : Out[float]):
    y = 10.0 * x
def call_statement(x : In[float]) -> float:
    y : float
    z : float
    compute(x, y)
    compute(y, z)
    return y + z
""",
        Call("call_statement", (0.5,), 55.0),
    ),
    program(
        "call_statement_with_side_effects",
        """
def update(a : Out[float], b : Out[float]):
    a = a + b
    b = a * b
def side_effects(x : In[float]) -> float:
    p : float = x
    q : float = x
    update(p, q)
    update(p, q)
    return p + q
""",
        Call("side_effects", (2.0,), 108.0),
    ),
    program(
        "call_writes_to_parts",
        """
class Acc:
    sum : float
    parts : Array[float, 3]

def put(x : In[float], place : Out[float]):
    place = place + x
def scatter(x : In[float], acc : Out[Acc]):
    put(x, acc.sum)
    put(x * 2.0, acc.parts[1])
    put(acc.sum, acc.parts[2])
""",
        Call(
            "scatter",
            (1.5, {"sum": 1.0, "parts": [0.0, 1.0, 2.0]}),
            None,
            ({"sum": 2.5, "parts": [0.0, 4.0, 4.5]},),
        ),
    ),
    program(
        "call_in_loops_and_branches",
        """
def step(x : In[float], v : Out[float], at : Out[float]):
    v = v - 0.1 * x
    at = at + 0.1 * v
def swing(x : In[float], n : In[int]) -> float:
    v : float
    at : float = x
    i : int
    while (i < n, max_iter := 1000):
        if i % 2 == 0:
            step(at + 0.0, v, at)
        else:
            step(2.0 * at, v, at)
        i += 1
    return at
""",
        Call("swing", (1.0, 2), 0.9602),
    ),
    program(
        "names_of_other_languages",
        """
class template:
    new : float
    class_ : int

def double(int64_t : In[float], sinf : In[template]) -> float:
    delete : float = int64_t * 2.0
    register : float = sinf.new
    π : float = 3.0
    größe : float = π * delete
    return größe + register + sinf.class_
def main(auto : In[float]) -> float:
    static : template
    static.new = auto
    return double(auto, static)
def max(a : In[float], b : In[float]) -> float:
    return a if a > b else b
def abs(printf : In[float]) -> float:
    return max(printf, -printf)
""",
        Call("main", (2.0,), 14.0),
        Call("abs", (-2.0,), 2.0),
    ),
    # ------------------------------------------------------------------------------------- simd
    program(
        "parallel_copy",
        """
@simd
def parallel_copy(x : In[Array[float]], y : Out[Array[float]]):
    i : int = thread_id()
    y[i] = x[i]
""",
        Call("parallel_copy", ([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]), None, ([1.0, 2.0, 3.0],), 3),
        Call("parallel_copy", ([1.0, 2.0, 3.0], [0.0, 0.0, 9.0]), None, ([1.0, 2.0, 9.0],), 2),
    ),
    program(
        "parallel_add",
        """
@simd
def parallel_add(x : In[Array[int]], y : In[Array[int]], z : Out[Array[int]]):
    i : int = thread_id()
    z[i] = x[i] + y[i]
""",
        Call("parallel_add", ([1, 2, 3], [4, 5, 6], [0, 0, 0]), None, ([5, 7, 9],), 3),
    ),
    program(
        "parallel_reduce",
        """
@simd
def parallel_reduce(x : In[Array[float]], z : Out[float]):
    i : int = thread_id()
    atomic_add(z, x[i])
@simd
def histogram(x : In[Array[int]], bins : Out[Array[int]]):
    atomic_add(bins[x[thread_id()]], 1)
""",
        Call("parallel_reduce", ([1.0, 2.0, 4.0], 0.5), None, (7.5,), 3),
        Call("histogram", ([0, 2, 2, 1, 2], [0, 0, 0]), None, ([1, 1, 3],), 5),
    ),
    program(
        "parallel_with_functions",
        """
class Ray:
    d : Array[float, 2]

def shade(r : In[Ray]) -> float:
    s : float
    for k in range(2):
        s += r.d[k] * r.d[k]
    return sqrt(s)

@simd
def image(width : In[int], out : Out[Array[float]]):
    i : int = thread_id()
    r : Ray
    r.d[0] = 3.0 * (i % width)
    r.d[1] = 4.0 * (i // width)
    width = 0
    out[i] = shade(r) + width
""",
        Call("image", (2, [0.0, 0.0, 0.0, 0.0]), None, ([0.0, 3.0, 4.0, 5.0],), 4),
    ),
)
