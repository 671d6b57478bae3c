"""Programs in the manner of the teaching language that ask for derivatives, and their values.

The arguments of a forward derivative are differentials: ``dual(value, derivative)`` for a float.
Those of a reverse derivative are each ``In`` argument with its adjoint, which is added to, the
adjoint of each ``Out`` argument in its place, and that of the result last.
"""

from __future__ import annotations

import math

from teaching_programs import BINARY, Call, Program, program


def dual(value: float, derivative: float) -> dict[str, float]:
    return {"val": value, "dval": derivative}


OPERATIONS = f"""
def identity(x : In[float]) -> float:
    return x
def constant(x : In[float]) -> float:
    return 2.0
{BINARY}"""

DERIVATIVES: tuple[Program, ...] = (
    # --------------------------------------------------------------- differential types by hand
    program(
        "differential_types",
        """
class Foo:
    x : int
    y : float
    v : Array[float, 2]

def make(x : In[float], d : In[float]) -> Diff[float]:
    return make__dfloat(x, d)
def product(x : In[Diff[float]], y : In[_dfloat]) -> _dfloat:
    z : Diff[float] = make__dfloat(x.val * y.val, x.dval * y.val + x.val * y.dval)
    return z
def member(foo : In[Diff[Foo]], v : In[Diff[Array[float]]], n : In[Diff[int]]) -> float:
    other : _dFoo
    other = foo
    other.v[n].dval += v[n].dval
    return other.y.dval + other.v[n].dval + make(1.0, 2.0).dval + other.x
""",
        Call("make", (3.0, 0.5), dual(3.0, 0.5)),
        Call("product", (dual(2.0, 1.0), dual(3.0, 0.5)), dual(6.0, 4.0)),
        Call(
            "member",
            (
                {"x": 4, "y": dual(1.0, 0.25), "v": [dual(0.0, 0.0), dual(0.0, 10.0)]},
                [dual(0.0, 0.0), dual(0.0, 100.0)],
                1,
            ),
            116.25,
        ),
    ),
    # ----------------------------------------------------------------------------- forward mode
    program(
        "forward_of_operations",
        OPERATIONS
        + """\
def negate(x : In[float]) -> float:
    return -x

d_identity = fwd_diff(identity)
d_constant = fwd_diff(constant)
d_plus = fwd_diff(plus)
d_subtract = fwd_diff(subtract)
d_multiply = fwd_diff(multiply)
d_divide = fwd_diff(divide)
d_negate = fwd_diff(negate)
""",
        Call("d_identity", (dual(0.8, 0.5),), dual(0.8, 0.5)),
        Call("d_constant", (dual(0.8, 0.5),), dual(2.0, 0.0)),
        Call("d_plus", (dual(5.0, 0.5), dual(6.0, 1.5)), dual(11.0, 2.0)),
        Call("d_subtract", (dual(5.0, 0.5), dual(6.0, 1.5)), dual(-1.0, -1.0)),
        Call("d_multiply", (dual(5.0, 0.5), dual(6.0, 1.5)), dual(30.0, 10.5)),
        Call("d_divide", (dual(6.0, 0.5), dual(4.0, 1.0)), dual(1.5, -0.25)),
        Call("d_negate", (dual(6.0, 0.5),), dual(-6.0, -0.5)),
    ),
    program(
        "forward_of_functions",
        """
def functions(x : In[float], y : In[float]) -> float:
    return sin(x) * cos(y) + exp(x) / log(y) + sqrt(x)
def power(x : In[float], y : In[float]) -> float:
    return pow(x, y)

d_functions = fwd_diff(functions)
d_power = fwd_diff(power)
""",
        Call(
            "d_functions",
            (dual(0.5, 1.0), dual(2.0, 0.0)),
            dual(
                math.sin(0.5) * math.cos(2.0) + math.exp(0.5) / math.log(2.0) + math.sqrt(0.5),
                math.cos(0.5) * math.cos(2.0)
                + math.exp(0.5) / math.log(2.0)
                + 0.5 / math.sqrt(0.5),
            ),
        ),
        Call(
            "d_power",
            (dual(2.0, 0.5), dual(3.0, 0.25)),
            dual(8.0, 12.0 * 0.5 + math.log(2.0) * 8.0 * 0.25),
        ),
    ),
    program(
        "forward_of_assignments",
        """
def assigned(x : In[float], y : In[float]) -> float:
    z : float
    w : float = x
    z = w * y
    w = z + 2.0 * w
    return w * w

d_assigned = fwd_diff(assigned)
""",
        Call("d_assigned", (dual(1.0, 1.0), dual(2.0, 0.0)), dual(16.0, 32.0)),
    ),
    program(
        "forward_of_ints",
        """
def to_int(x : In[float]) -> int:
    y : int = 5
    y = x
    return y
def from_int(n : In[int], x : In[float]) -> float:
    y : float = n
    return y * int2float(n) + x * n
def round_trip(x : In[float]) -> float:
    return float2int(x) * x

d_to_int = fwd_diff(to_int)
d_from_int = fwd_diff(from_int)
d_round_trip = fwd_diff(round_trip)
""",
        Call("d_to_int", (dual(3.25, 1.0),), 3),
        Call("d_from_int", (3, dual(2.0, 0.5)), dual(15.0, 1.5)),
        Call("d_round_trip", (dual(2.5, 1.0),), dual(5.0, 2.0)),
    ),
    program(
        "forward_of_arrays",
        """
def inputs(x : In[Array[float]]) -> float:
    return x[0] + x[1] * x[1]
def at(x : In[Array[float]], i : In[int], j : In[float]) -> float:
    return x[i] * j + x[float2int(j)]
def outputs(x : In[float], y : Out[Array[float]]):
    y[0] = x * x
    y[1] = x * x * x
def local(x : In[float]) -> float:
    a : Array[float, 3]
    a[0] = x
    a[1] = a[0] * x
    a[0] = a[1] * x
    return a[0] + a[2]

d_inputs = fwd_diff(inputs)
d_at = fwd_diff(at)
d_outputs = fwd_diff(outputs)
d_local = fwd_diff(local)
""",
        Call("d_inputs", ([dual(0.5, 0.25), dual(3.0, 0.5)],), dual(9.5, 3.25)),
        Call("d_at", ([dual(1.0, 1.0), dual(2.0, 0.5)], 0, dual(1.5, 2.0)), dual(3.5, 4.0)),
        Call(
            "d_outputs",
            (dual(2.0, 0.5), [dual(0.0, 0.0), dual(0.0, 0.0)]),
            None,
            ([dual(4.0, 2.0), dual(8.0, 6.0)],),
        ),
        Call("d_local", (dual(2.0, 1.0),), dual(8.0, 12.0)),
    ),
    program(
        "forward_of_structs",
        """
class Foo:
    x : int
    y : float

class Bar:
    z : Array[float, 2]
    foo : Foo

def struct_input(foo : In[Foo]) -> float:
    return foo.x * foo.y
def struct_output(x : In[float]) -> Foo:
    foo : Foo
    foo.x = 2
    foo.y = x * x
    return foo
def nested(bar : In[Bar]) -> Bar:
    copy : Bar = bar
    copy.z[1] = bar.z[0] * bar.foo.y
    copy.foo = struct_output(copy.z[1])
    return copy

d_struct_input = fwd_diff(struct_input)
d_struct_output = fwd_diff(struct_output)
d_nested = fwd_diff(nested)
""",
        Call("d_struct_input", ({"x": 3, "y": dual(2.0, 0.5)},), dual(6.0, 1.5)),
        Call("d_struct_output", (dual(3.0, 0.5),), {"x": 2, "y": dual(9.0, 3.0)}),
        Call(
            "d_nested",
            (
                {
                    "z": [dual(2.0, 1.0), dual(0.0, 0.0)],
                    "foo": {"x": 1, "y": dual(3.0, 0.5)},
                },
            ),
            {
                "z": [dual(2.0, 1.0), dual(6.0, 4.0)],
                "foo": {"x": 2, "y": dual(36.0, 48.0)},
            },
        ),
    ),
    program(
        "forward_of_branches_and_loops",
        """
def branch(x : In[float]) -> float:
    y : float
    if x > 0.0:
        y = x * x
    elif x < -1.0:
        y = 3.0 * x
    else:
        y = 5.0
    return y
def loop(x : In[float], n : In[int]) -> float:
    i : int
    y : float = x
    while (i < n, max_iter := 10):
        y = y * x
        i = i + 1
    return y
def counted(x : In[float], n : In[int]) -> float:
    y : float
    for i in range(n):
        y += x * i
    return y

d_branch = fwd_diff(branch)
d_loop = fwd_diff(loop)
d_counted = fwd_diff(counted)
""",
        Call("d_branch", (dual(3.0, 0.5),), dual(9.0, 3.0)),
        Call("d_branch", (dual(-3.0, 0.5),), dual(-9.0, 1.5)),
        Call("d_branch", (dual(-0.5, 0.5),), dual(5.0, 0.0)),
        Call("d_loop", (dual(2.0, 1.0), 3), dual(16.0, 32.0)),
        Call("d_counted", (dual(2.0, 1.0), 4), dual(12.0, 6.0)),
    ),
    program(
        "forward_of_calls",
        """
def square(x : In[float]) -> float:
    return x * x
def store(x : In[float], y : Out[float]):
    y = x * y
def calls(x : In[float]) -> float:
    y : float = 3.0
    store(square(x), y)
    return square(square(y)) + x

d_calls = fwd_diff(calls)
""",
        Call("d_calls", (dual(1.0, 1.0),), dual(82.0, 649.0)),
    ),
    program(
        "forward_derivative_called",
        """
def cube(x : In[float]) -> float:
    return x * x * x
d_cube = fwd_diff(cube)
def slope(x : In[float]) -> float:
    dx : Diff[float]
    dx.val = x
    dx.dval = 1.0
    return d_cube(dx).dval
d_slope = fwd_diff(slope)
def solve(x : In[float]) -> float:
    i : int
    while (i < 30, max_iter := 30):
        x = x - (cube(x) - 8.0) / d_cube(make__dfloat(x, 1.0)).dval
        i += 1
    return x
""",
        Call("slope", (2.0,), 12.0),
        Call("d_slope", (dual(2.0, 1.0),), dual(12.0, 12.0)),
        Call("solve", (3.0,), 2.0),
    ),
    program(
        "forward_twice",
        """
def f(x : In[float]) -> float:
    return x * x * x
d_f = fwd_diff(f)
dd_f = fwd_diff(d_f)
""",
        Call(
            "dd_f",
            ({"val": dual(2.0, 1.0), "dval": dual(1.0, 0.0)},),
            {"val": dual(8.0, 12.0), "dval": dual(12.0, 12.0)},
        ),
    ),
    # ----------------------------------------------------------------------------- reverse mode
    program(
        "reverse_of_operations",
        OPERATIONS
        + """\
def square(x : In[float]) -> float:
    return x * x

d_identity = rev_diff(identity)
d_constant = rev_diff(constant)
d_plus = rev_diff(plus)
d_subtract = rev_diff(subtract)
d_multiply = rev_diff(multiply)
d_divide = rev_diff(divide)
d_square = rev_diff(square)
""",
        Call("d_identity", (0.8, 0.0, 0.3), None, (0.3,)),
        Call("d_constant", (0.8, 0.0, 0.3), None, (0.0,)),
        Call("d_plus", (5.0, 0.0, 6.0, 0.0, 0.3), None, (0.3, 0.3)),
        Call("d_subtract", (5.0, 0.0, 6.0, 0.0, 0.3), None, (0.3, -0.3)),
        Call("d_multiply", (5.0, 0.0, 6.0, 0.0, 0.3), None, (1.8, 1.5)),
        Call("d_divide", (5.0, 0.0, 4.0, 0.0, 2.0), None, (0.5, -0.625)),
        Call("d_square", (5.0, 1.0, 0.3), None, (4.0,)),
    ),
    program(
        "reverse_adds_up",
        """
def twice(x : In[float], y : In[float]) -> float:
    return x * y + x

d_twice = rev_diff(twice)
""",
        Call("d_twice", (2.0, 10.0, 3.0, 20.0, 1.0), None, (14.0, 22.0)),
    ),
    program(
        "reverse_of_functions",
        """
def functions(x : In[float], y : In[float]) -> float:
    return sin(x) * cos(y) + exp(x) / log(y) + sqrt(x) + pow(x, y)

d_functions = rev_diff(functions)
""",
        Call(
            "d_functions",
            (0.5, 0.0, 2.0, 0.0, 1.0),
            None,
            (
                math.cos(0.5) * math.cos(2.0)
                + math.exp(0.5) / math.log(2.0)
                + 0.5 / math.sqrt(0.5)
                + 1.0,
                -math.sin(0.5) * math.sin(2.0)
                - math.exp(0.5) / math.log(2.0) ** 2 / 2.0
                + 0.25 * math.log(0.5),
            ),
        ),
    ),
    program(
        "reverse_of_assignments",
        """
def overwritten(x : In[float], y : In[float]) -> float:
    z : float = x * y
    z = z * z
    x = z + x
    z = x * y
    return z

d_overwritten = rev_diff(overwritten)
""",
        Call("d_overwritten", (2.0, 0.0, 3.0, 0.0, 1.0), None, (111.0, 110.0)),
    ),
    program(
        "reverse_of_ints",
        """
def cast(x : In[float]) -> int:
    y : int = x
    return y
def from_int(n : In[int], x : In[float]) -> float:
    y : float = n
    return y * x
def truncated(x : In[float], y : In[float]) -> float:
    i : int = x
    return i * y + x

d_cast = rev_diff(cast)
d_from_int = rev_diff(from_int)
d_truncated = rev_diff(truncated)
""",
        Call("d_cast", (3.5, 0.25, 7), None, (0.25,)),
        Call("d_from_int", (4, 0, 0.5, 0.0, 2.0), None, (0, 8.0)),
        Call("d_truncated", (3.5, 0.0, 2.0, 0.0, 1.0), None, (1.0, 3.0)),
    ),
    program(
        "reverse_of_arrays",
        """
def inputs(x : In[Array[float]]) -> float:
    return x[0] + x[1] * x[1]
def at(x : In[Array[float]], i : In[int], j : In[float]) -> float:
    k : int = j
    return x[i] + x[i + 1] * x[k]
def local(x : In[float]) -> float:
    a : Array[float, 3]
    a[0] = x
    a[1] = a[0] * x
    a[0] = a[1] * x
    return a[0] * a[1] + a[2]

d_inputs = rev_diff(inputs)
d_at = rev_diff(at)
d_local = rev_diff(local)
""",
        Call("d_inputs", ([0.5, 3.0], [0.0, 0.0], 2.0), None, ([2.0, 12.0],)),
        Call(
            "d_at",
            ([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], 1, 0, 2.0, 0.0, 1.0),
            None,
            ([0.0, 1.0, 6.0], None, 0.0),
        ),
        Call("d_local", (2.0, 0.0, 1.0), None, (80.0,)),
    ),
    program(
        "reverse_of_out_arguments",
        """
def scalars(x : In[float], y : Out[float], z : Out[float]):
    y = x * x
    z = y * x
def arrays(x : In[Array[float]], y : Out[Array[float, 2]]):
    y[0] = x[0] * x[1]
    y[1] = y[0] * x[1]
    y[0] = x[0]
def loaded(n : In[int], x : In[Array[float]], y : Out[Array[float]]):
    i : int
    while (i < n, max_iter := 16):
        y[i] = x[i] * x[i]
        i += 1

d_scalars = rev_diff(scalars)
d_arrays = rev_diff(arrays)
d_loaded = rev_diff(loaded)
""",
        Call("d_scalars", (2.0, 0.0, 1.0, 10.0), None, (124.0,)),
        Call("d_arrays", ([2.0, 3.0], [0.0, 0.0], [1.0, 10.0]), None, ([91.0, 120.0],)),
        Call("d_loaded", (2, 0, [2.0, 3.0], [1.0, 1.0], [1.0, 10.0]), None, (None, [5.0, 61.0])),
    ),
    program(
        "reverse_of_structs",
        """
class Foo:
    x : int
    y : float

class Bar:
    z : Array[float, 2]
    foo : Foo

def struct_input(foo : In[Foo]) -> float:
    return foo.x * foo.y * foo.y
def struct_output(x : In[float]) -> Foo:
    foo : Foo
    foo.x = 2
    foo.y = x * x
    return foo
def nested(bar : In[Bar], out : Out[Bar]):
    copy : Bar = bar
    copy.z[1] = bar.z[0] * bar.foo.y
    copy.foo = struct_output(copy.z[1])
    out = copy

d_struct_input = rev_diff(struct_input)
d_struct_output = rev_diff(struct_output)
d_nested = rev_diff(nested)
""",
        Call(
            "d_struct_input",
            ({"x": 3, "y": 2.0}, {"x": 0, "y": 1.0}, 0.5),
            None,
            ({"x": 0, "y": 7.0},),
        ),
        Call("d_struct_output", (3.0, 0.0, {"x": 0, "y": 0.5}), None, (3.0,)),
        Call(
            "d_nested",
            (
                {"z": [2.0, 5.0], "foo": {"x": 1, "y": 3.0}},
                {"z": [0.0, 0.0], "foo": {"x": 0, "y": 0.0}},
                {"z": [1.0, 0.5], "foo": {"x": 0, "y": 0.25}},
            ),
            None,
            ({"z": [11.5, 0.0], "foo": {"x": 0, "y": 7.0}},),
        ),
    ),
    program(
        "reverse_of_branches",
        """
def ifelse(x : In[float]) -> float:
    y : float
    if x > 0.0:
        y = x * x
    elif x < -1.0:
        y = 3.0 * x
    else:
        y = 5.0
    return y
def changed_condition(x : In[float]) -> float:
    y : float = x
    if y > 0.0:
        y = -2.0 * y
    else:
        y = y * y
    if y < 0.0:
        y = y * 3.0
    return y

d_ifelse = rev_diff(ifelse)
d_changed_condition = rev_diff(changed_condition)
""",
        Call("d_ifelse", (3.0, 0.0, 0.5), None, (3.0,)),
        Call("d_ifelse", (-3.0, 0.0, 0.5), None, (1.5,)),
        Call("d_ifelse", (-0.5, 0.0, 0.5), None, (0.0,)),
        Call("d_changed_condition", (3.0, 0.0, 1.0), None, (-6.0,)),
        Call("d_changed_condition", (-3.0, 0.0, 1.0), None, (-6.0,)),
    ),
    program(
        "reverse_of_branches_with_side_effects",
        """
def put(x : In[float], y : Out[float]):
    y = y + x * x
def effects(x : In[float], n : In[int]) -> float:
    a : float = x
    b : float
    if n:
        put(a, b)
        a = a * b
        put(a, b)
    else:
        put(2.0 * a, a)
    return a + b

d_effects = rev_diff(effects)
""",
        Call("d_effects", (2.0, 0.0, 1, 0, 1.0), None, (208.0, None)),
        Call("d_effects", (2.0, 0.0, 0, 0, 1.0), None, (17.0, None)),
    ),
    program(
        "reverse_of_loops",
        """
def power(x : In[float], n : In[int]) -> float:
    i : int
    y : float = 1.0
    while (i < n, max_iter := 10):
        y = y * x
        i = i + 1
    return y
def nested(x : In[float], n : In[int], m : In[int]) -> float:
    i : int
    j : int
    y : float = x
    while (i < n, max_iter := 10):
        j = 0
        while (j < m - i, max_iter := 10):
            y = y * y + x
            j = j + 1
        i = i + 1
    return y
def counted(x : In[Array[float]], n : In[int]) -> float:
    s : float = 1.0
    for i in range(n):
        s = s * x[i]
    return s

d_power = rev_diff(power)
d_nested = rev_diff(nested)
d_counted = rev_diff(counted)
""",
        Call("d_power", (2.0, 0.0, 3, 0, 0.5), None, (6.0, None)),
        Call("d_power", (2.0, 0.0, 0, 0, 0.5), None, (0.0, None)),
        # y = x; three times y = y y + x: 1, 2, 5, 26, with slopes 1, 3, 13, 131
        Call("d_nested", (1.0, 0.0, 2, 0, 2, 0, 1.0), None, (131.0, None, None)),
        Call(
            "d_counted",
            ([2.0, 3.0, 4.0], [0.0, 0.0, 0.0], 3, 0, 1.0),
            None,
            ([12.0, 8.0, 6.0], None),
        ),
    ),
    program(
        "reverse_of_three_loops",
        """
def three(x : In[float], n : In[int]) -> float:
    i : int
    j : int
    k : int
    y : float = x
    while (i < n, max_iter := 4):
        j = 0
        while (j < i, max_iter := 4):
            k = 0
            while (k < j + 1, max_iter := 4):
                y = y * 1.5 + x
                k += 1
            j += 1
        i += 1
    return y

d_three = rev_diff(three)
""",
        # four updates: 1.5 ** 4 + 1.5 ** 3 + 1.5 ** 2 + 1.5 + 1
        Call("d_three", (2.0, 0.0, 3, 0, 1.0), None, (13.1875, None)),
    ),
    program(
        "reverse_of_calls",
        """
def square(x : In[float]) -> float:
    return x * x
def store(x : In[float], y : Out[float]):
    y = x * y
def chained(x : In[float]) -> float:
    return square(square(square(x)))
def statements(x : In[float]) -> float:
    y : float = 3.0
    store(square(x), y)
    store(y + 0.0, y)
    return y + x
def update(a : Out[Array[float, 2]], x : In[float]):
    a[0] = a[0] * x
    a[1] = a[1] + a[0]
def arrays(x : In[float]) -> float:
    a : Array[float, 2]
    a[0] = x
    update(a, x)
    update(a, 2.0 * x)
    return a[1]

d_chained = rev_diff(chained)
d_statements = rev_diff(statements)
d_arrays = rev_diff(arrays)
""",
        Call("d_chained", (1.5, 0.0, 1.0), None, (8.0 * 1.5**7,)),
        # (3 x x) ** 2 + x
        Call("d_statements", (2.0, 0.0, 1.0), None, (36.0 * 8.0 + 1.0,)),
        # x x + 2 x x x
        Call("d_arrays", (2.0, 0.0, 1.0), None, (28.0,)),
    ),
    program(
        "reverse_derivative_called",
        """
def loss(x : In[float], target : In[float]) -> float:
    return (x * x - target) * (x * x - target)

d_loss = rev_diff(loss)

def descend(x : In[float], target : In[float], rate : In[float]) -> float:
    dx : float
    ignored : float
    i : int
    while (i < 100, max_iter := 100):
        dx = 0.0
        d_loss(x, dx, target, ignored, 1.0)
        x = x - rate * dx
        i += 1
    return x
""",
        Call("descend", (1.0, 2.0, 0.05), math.sqrt(2.0)),
    ),
    program(
        "second_derivatives",
        """
def f(x : In[float], y : In[float]) -> float:
    return x * x * x * y

d_f = rev_diff(f)
forward_of_reverse = fwd_diff(d_f)
d_fwd = fwd_diff(f)
reverse_of_forward = rev_diff(d_fwd)
reverse_of_reverse = rev_diff(d_f)
""",
        Call(
            "forward_of_reverse",
            (
                dual(2.0, 1.0),
                dual(0.0, 0.0),
                dual(5.0, 0.0),
                dual(0.0, 0.0),
                dual(1.0, 0.0),
            ),
            None,
            (dual(60.0, 60.0), dual(8.0, 12.0)),
        ),
        Call(
            "reverse_of_forward",
            (
                dual(2.0, 1.0),
                dual(0.0, 0.0),
                dual(5.0, 0.0),
                dual(0.0, 0.0),
                dual(0.0, 1.0),
            ),
            None,
            (dual(60.0, 60.0), dual(12.0, 8.0)),
        ),
        # x, its adjoint, the adjoint of _d_x, y, its adjoint, that of _d_y, seed, its adjoint
        Call(
            "reverse_of_reverse",
            (2.0, 0.0, 1.0, 5.0, 0.0, 0.0, 1.0, 0.0),
            None,
            (60.0, 12.0, 60.0),
        ),
    ),
    # ------------------------------------------------------------------------------------- simd
    program(
        "parallel_derivatives",
        """
@simd
def parallel_copy(x : In[float], y : Out[Array[float]]):
    i : int = thread_id()
    y[i] = x
@simd
def parallel_add(x : In[Array[float]], y : In[Array[float]], z : Out[Array[float]]):
    i : int = thread_id()
    z[i] = x[i] + y[i]
@simd
def parallel_product(x : In[Array[float]], z : Out[float]):
    i : int = thread_id()
    atomic_add(z, x[i] * x[i])

fwd_parallel_add = fwd_diff(parallel_add)
rev_parallel_copy = rev_diff(parallel_copy)
rev_parallel_add = rev_diff(parallel_add)
rev_parallel_product = rev_diff(parallel_product)
""",
        Call(
            "fwd_parallel_add",
            (
                [dual(1.0, 0.5), dual(2.0, 1.5)],
                [dual(3.0, 1.0), dual(4.0, 2.0)],
                [dual(0.0, 0.0), dual(0.0, 0.0)],
            ),
            None,
            ([dual(4.0, 1.5), dual(6.0, 3.5)],),
            2,
        ),
        Call("rev_parallel_copy", (2.0, 0.0, [1.0, 2.0, 4.0]), None, (7.0,), 3),
        Call(
            "rev_parallel_add",
            ([1.0, 2.0], [0.0, 0.0], [3.0, 4.0], [0.0, 1.0], [0.5, 0.25]),
            None,
            ([0.5, 0.25], [0.5, 1.25]),
            2,
        ),
        Call(
            "rev_parallel_product",
            ([1.0, 2.0, 3.0], [0.0, 0.0, 1.0], 0.5),
            None,
            ([1.0, 2.0, 4.0],),
            3,
        ),
    ),
    program(
        "parallel_derivatives_with_functions",
        """
class Material:
    roughness : float
    color : Array[float, 3]

def shade(m : In[Material], channel : In[int]) -> float:
    return m.color[channel] * m.roughness

@simd
def render(materials : In[Array[Material]], which : In[Array[int]], image : Out[Array[float]]):
    i : int = thread_id()
    s : float
    for c in range(3):
        s += shade(materials[which[i]], c)
    image[i] = s

d_render = rev_diff(render)
""",
        Call(
            "d_render",
            (
                [{"roughness": 0.5, "color": [1.0, 2.0, 3.0]}],
                [{"roughness": 0.0, "color": [0.0, 0.0, 0.0]}],
                [0, 0],
                [0, 0],
                [1.0, 10.0],
            ),
            None,
            ([{"roughness": 66.0, "color": [5.5, 5.5, 5.5]}], None),
            2,
        ),
    ),
)
