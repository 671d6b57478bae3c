"""Reading the scalar layer: types, places, calls, derivatives and their order, stacks, @simd."""

from __future__ import annotations

import pytest

from loma import errors
from loma.core.differentials import (
    differential, forward_signature, in_order, primal_name, reverse_signature, with_differentials,
)  # fmt: skip
from loma.core.ir import (
    FLOAT, INT, ArrayType, Assign, AtomicAdd, Binary, Builtin, Call, CallStmt, Declare, Expr,
    FloatConst, Function, If, Index, IntConst, MakeStruct, Member, Module, Param, Pop, Push, Return,
    Stmt, Struct, StructType, Type, Var, While,
)  # fmt: skip
from loma.core.printer import print_expr, print_module, print_stmt, print_type
from loma.core.verify import verify
from loma.core.walk import statements, walk
from loma.frontend import parse

HEAD = """
class Foo:
    x : int
    y : float
    v : Array[float, 3]

class Bar:
    foos : Array[Foo, 2]
    t : float

def make(x : In[float]) -> Foo:
    foo : Foo
    foo.y = x
    return foo

def g(x : In[float]) -> float:
    return x * x

def put(x : In[float], y : Out[float]):
    y = x

d_g = fwd_diff(g)
r_g = rev_diff(g)
d_make = fwd_diff(make)
"""
SIGNATURE = (
    "x : In[float], n : In[int], a : In[Array[float]], bar : In[Bar], o : Out[Array[Bar, 4]]"
)


def _checked(text: str) -> Module:
    """The module; it is well formed, and what is printed of it is the same."""
    module = parse(text)
    verify(module)
    assert parse(print_module(module)) == module
    return module


def _body(*lines: str) -> tuple[Stmt, ...]:
    text = "".join(f"    {line}\n" for line in lines)
    return _checked(f"{HEAD}\ndef f({SIGNATURE}):\n{text}").function("f").body


def _lines(*lines: str) -> list[str]:
    return [print_stmt(stmt) for stmt in _body(*lines)]


# ------------------------------------------------------------------------- statements and places


@pytest.mark.parametrize(
    "place",
    ["x", "bar.t", "bar.foos[n].y", "bar.foos[1].v[n + 1]", "o[n].foos[0].v[2]", "o[0].t"],
)
@pytest.mark.parametrize("op", ["+", "-", "*", "/"])
def test_augmented_assignment_of_every_place(place: str, op: str) -> None:
    (stmt,) = _lines(f"{place} {op}= 2.0 * x")
    value = "2.0 * x" if op in "+-" else "(2.0 * x)"
    expected = f"{place} += {value}" if op == "+" else f"{place} = {place} {op} {value}"
    assert stmt == expected


@pytest.mark.parametrize(
    "line",
    [
        "bar.foos[0] = bar.foos[1]",
        "bar.foos[n].v = bar.foos[n].v",
        "bar.foos = o[0].foos",
        "o[n] = bar",
        "o[0].foos[1].v = make(x).v",
        "bar.foos[0] = make(g(x))",
        "x = make(x).v[n] + make(2.0).y",
        "zero(bar)",
        "zero(o[n].foos[0].v)",
        "zero(x)",
        "atomic_add(o[n].t, x)",
        "atomic_add(n, 1)",
        "put(x, bar.foos[0].v[n])",
        "put(n, o[1].foos[n].y)",
        "n = n // 2 % 3",
        "x = x ** 2 + x ** -n",
        "x = -x if not n else x",
        "n = n != 3",
        "x = no_diff(x)",
    ],
)
def test_lines_that_print_as_they_were_written(line: str) -> None:
    assert _lines(line) == [line]


def test_declarations_copy_and_convert() -> None:
    lines = _lines("foo : Foo = bar.foos[0]", "v : Array[float, 3] = foo.v", "k : int = x",
                   "y : float = n")  # fmt: skip
    assert lines == ["foo : Foo = bar.foos[0]", "v : Array[float, 3] = foo.v", "k : int = x",
                     "y : float = n"]  # fmt: skip


def test_elif_is_nested_if() -> None:
    (stmt,) = _body("if n:", "    x = 1", "elif n == 2:", "    x = 2", "else:", "    x = 3")
    assert isinstance(stmt, If)
    assert isinstance(stmt.other[0], If)


def test_nested_loops_have_their_own_bounds() -> None:
    (outer,) = _body("while (n < 3, max_iter := 7):", "    while (x, max_iter := 9):",
                     "        x = x - 1", "    n += 1")  # fmt: skip
    assert isinstance(outer, While)
    assert isinstance(outer.body[0], While)
    assert (outer.max_iter, outer.body[0].max_iter) == (7, 9)


@pytest.mark.parametrize("word", ["and", "or"])
@pytest.mark.parametrize("length", [2, 3, 50, 51, 52, 53, 101, 102, 103, 1000])
def test_chains_of_any_length(word: str, length: int) -> None:
    names = [("x", "n", "a[n]")[k % 3] for k in range(length)]
    text = f" {word} ".join(names)
    module = _checked(f"def f(x : In[float], n : In[int], a : In[Array[float]]) -> int:\n"
                      f"    return {text}\n")  # fmt: skip
    (last,) = module.functions[0].body
    assert isinstance(last, Return)
    assert print_expr(last.values[0]).replace("(", "").replace(")", "") == text
    assert _depth(last.values[0]) < 80


def _depth(expr: Expr) -> int:
    return 1 + max(_depth(expr.left), _depth(expr.right)) if isinstance(expr, Binary) else 1


def test_chained_comparisons() -> None:
    (stmt,) = _lines("n = 0 < x <= 1.0 < n")
    assert stmt == "n = 0 < x and x <= 1.0 and 1.0 < n"


def test_whole_numbers_have_32_bits() -> None:
    low, high = (s.value for s in _body("n = -2147483648", "n = 2147483647")
                 if isinstance(s, Assign))  # fmt: skip
    assert (low, high) == (IntConst(-(2**31)), IntConst(2**31 - 1))


def test_names_of_the_language_that_a_program_may_use() -> None:
    text = (
        "class Stack:\n    x : float\n\n"
        "class Tensor:\n    s : Stack\n\n"
        "def max(a : In[float], b : In[float], c : In[float]) -> float:\n"
        "    return a if a > b and a > c else b if b > c else c\n\n"
        "def zero(relu : Out[float]):\n    relu = 0.0\n\n"
        "def softmax(range : In[Tensor]) -> float:\n"
        "    In : Tensor = range\n    tape : Stack[float, 3]\n    float : float = 1.0\n"
        "    zero(float)\n    tape.push(float)\n"
        "    return max(In.s.x, float, 2)\n"
    )
    *_, zeroed, _, last = _checked(text).function("softmax").body
    assert isinstance(zeroed, CallStmt)
    assert isinstance(last, Return)
    assert isinstance(last.values[0], Call)


# ------------------------------------------------------------------------------------ simd


def test_simd_functions() -> None:
    module = _checked(
        "@simd\ndef f(x : In[Array[float]], z : Out[float]):\n"
        "    i : int = thread_id()\n    atomic_add(z, x[i] * thread_id())\n\n"
        "d = rev_diff(f)\ne = fwd_diff(f)\n"
    )
    (f,) = module.functions
    assert f.simd
    declared, added = f.body
    assert isinstance(declared, Declare)
    assert declared.value == Builtin("thread_id", (), INT)
    assert isinstance(added, AtomicAdd)
    assert added.target == Var("z", FLOAT)


# ----------------------------------------------------------------------------------- stacks


def test_stacks() -> None:
    lines = (
        "s : Stack[float, 300]", "b : Stack[Bar]", "v : Stack[Array[float, 3], 4]",
        "s.push(x)", "b.push(bar)", "v.push(bar.foos[n].v)", "s.push(2.0 * a[0])",
        "x = s.pop()", "bar = b.pop()", "o[n].foos[1].v = v.pop()", "bar.foos[0].v[n] = s.pop()",
    )  # fmt: skip
    body = _body(*lines)
    assert [print_stmt(stmt) for stmt in body] == list(lines)
    assert [type(stmt) for stmt in body] == [Declare] * 3 + [Push] * 4 + [Pop] * 4


# -------------------------------------------------------------------------- differential types


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("Diff[float]", "_dfloat"),
        ("Diff[int]", "int"),
        ("Diff[Foo]", "_dFoo"),
        ("_dBar", "_dBar"),
        ("Diff[Array[Bar, 3]]", "Array[_dBar, 3]"),
        ("Array[Diff[Array[float, 2]], 3]", "Array[Array[_dfloat, 2], 3]"),
        ("Diff[Diff[float]]", "_d_dfloat"),
        ("Diff[_dFoo]", "_d_dFoo"),
        ("_d_d_dFoo", "_d_d_dFoo"),
    ],
)
def test_differential_types(written: str, printed: str) -> None:
    (stmt,) = _body(f"b : {written}")
    assert isinstance(stmt, Declare)
    assert print_type(stmt.target.type) == printed


def test_members_of_differentials() -> None:
    lines = [
        "d : _dBar",
        "e : _d_dfloat",
        "d.foos[n].v[0].dval = x",
        "x = d.foos[0].y.val + d.t.dval",
        "e.val = d.t",
        "x = e.dval.val + d.foos[n].x",
        "d.foos[0] = d_make(make__dfloat(x, 1))",
        "x = d_g(make__dfloat(x, 1.0)).dval",
    ]
    assert _lines(*lines) == lines


def test_making_differentials() -> None:
    (stmt, other) = _body("d : _dfloat = make__dfloat(n, 2.0)",
                          "e : _d_dfloat = make__d_dfloat(d, make__dfloat(x, 0))")  # fmt: skip
    assert isinstance(stmt, Declare)
    assert stmt.value == MakeStruct((Var("n", INT), FloatConst(2.0)), StructType("_dfloat"))
    assert isinstance(other, Declare)
    assert isinstance(other.value, MakeStruct)
    assert [arg.type for arg in other.value.args] == [StructType("_dfloat")] * 2


def test_a_function_of_the_program_comes_before_make() -> None:
    module = _checked(
        "def make__dfloat(x : In[float]) -> float:\n    return x\n\n"
        "def f(x : In[float]) -> float:\n    return make__dfloat(x)\n"
    )
    (last,) = module.function("f").body
    assert isinstance(last, Return)
    assert isinstance(last.values[0], Call)


def test_structs_of_a_module_have_one_order() -> None:
    text = (
        "class B:\n    d : _dA\n\nclass C:\n    x : float\n\nclass A:\n    c : C\n\n"
        "def f(c : In[C], a : In[A]) -> float:\n    return c.x\n\nd = fwd_diff(f)\n"
    )
    names = [s.name for s in _checked(text).structs]
    assert names == ["C", "A", "_dfloat", "_dC", "_dA", "B"]
    assert [s.name for s in parse("def f(x : In[float]) -> float:\n    return x\n").structs] == []


def test_what_is_a_differential() -> None:
    structs = {"Foo", "_dBaz"}
    names = ["_dfloat", "_d_dfloat", "_dFoo", "_d_dFoo", "_dBaz", "_d_dBaz", "_dint", "dfloat"]
    assert [primal_name(name, structs) for name in names] == [
        "float", "_dfloat", "Foo", "_dFoo", None, "_dBaz", None, None,
    ]  # fmt: skip


def test_differentials_of_types() -> None:
    inner = Struct("P", (("k", INT), ("v", ArrayType(FLOAT, 2))))
    outer = Struct("Q", (("p", StructType("P")),))
    found = with_differentials((StructType("_dQ"),), {"P": inner, "Q": outer})
    assert list(found) == ["P", "Q", "_dfloat", "_dP", "_dQ", "_d_dfloat", "_d_dP", "_d_dQ"]
    assert found["_dP"].members == (("k", INT), ("v", ArrayType(StructType("_dfloat"), 2)))
    assert list(in_order(dict(reversed(found.items())))) == list(found)
    assert print_type(differential(ArrayType(ArrayType(FLOAT, 3), None))) == (
        "Array[Array[_dfloat, 3]]"
    )


# ----------------------------------------------------------------------------------- derivatives


def _shown(params: tuple[Param, ...], results: tuple[Type, ...] = ()) -> str:
    listed = ", ".join(f"{p.name} : {p.mode}[{print_type(p.type)}]" for p in params)
    return f"{listed} -> {', '.join(map(print_type, results))}"


def test_signatures_of_derivatives() -> None:
    foo = StructType("Foo")
    params = (Param("x", FLOAT, "In"), Param("n", INT, "In"), Param("_y", foo, "Out"))
    primal = Function("f", params, (FLOAT,), ())
    assert _shown(*forward_signature(primal)) == (
        "x : In[_dfloat], n : In[int], _y : Out[_dFoo] -> _dfloat"
    )
    assert _shown(reverse_signature(primal)) == (
        "x : In[float], _d_x : Out[float], n : In[int], _d_n : Out[int], _d_y : In[Foo], "
        "_d_result : In[float] -> "
    )
    again = Function("d", reverse_signature(primal), (), ())
    assert _shown(reverse_signature(again)) == (
        "x : In[float], _d_x_1 : Out[float], _d_d_x : In[float], n : In[int], _d_n_1 : Out[int], "
        "_d_d_n : In[int], _d_y : In[Foo], _d_d_y : Out[Foo], _d_result : In[float], "
        "_d_d_result : Out[float] -> "
    )


CALLS = """
def user(x : In[float]) -> float:
    y : float
    d_outer(x, y, 1.0)
    return y + d_user2(make__dfloat(x, 1.0)).dval

dd = rev_diff(user)
d_outer = rev_diff(outer)
d_user2 = fwd_diff(user2)

def user2(x : In[float]) -> float:
    y : float
    d_outer(x, y, 2.0)
    return y

def outer(x : In[float]) -> float:
    return inner(x)

def inner(x : In[float]) -> float:
    return x
"""


def test_who_calls_a_derivative_comes_after_all_that_it_is_made_of() -> None:
    module = _checked(CALLS)
    assert [f.name for f in module.functions] == ["inner", "outer", "user2", "user"]
    assert [d.name for d in module.derivatives] == ["d_outer", "d_user2", "dd"]


def test_results_of_calls_have_their_types() -> None:
    body = _body("x = d_make(make__dfloat(x, 1.0)).v[n].dval")
    (stmt,) = body
    assert isinstance(stmt, Assign)
    nodes = list(walk(stmt.value))
    assert [type(node) for node in nodes[:4]] == [Member, Index, Member, Call]
    assert nodes[3].type == StructType("_dFoo")


def test_arrays_are_passed_with_and_without_their_length() -> None:
    head = (
        "def any(v : In[Array[Array[float, 2]]]) -> float:\n    return v[0][0]\n\n"
        "def four(v : In[Array[Array[float, 2], 4]]) -> float:\n    return any(v)\n\n"
    )
    assert _checked(head)
    with pytest.raises(errors.CallTypeMismatch, match="must be Array"):
        parse(head + "def f(v : In[Array[Array[float, 2]]]) -> float:\n    return four(v)\n")
    with pytest.raises(errors.CallTypeMismatch, match="must be Array"):
        parse(
            "def g(v : In[Array[Array[float]]]) -> float:\n    return v[0][0]\n\n"
            "def f(v : In[Array[Array[float, 2], 4]]) -> float:\n    return g(v)\n"
        )


def test_every_statement_has_its_line() -> None:
    module = parse(f"{HEAD}\ndef f({SIGNATURE}):\n    s : Stack[float]\n    s.push(x)\n"
                   "    x = s.pop()\n    zero(x)\n    atomic_add(x, 1)\n")  # fmt: skip
    first = HEAD.count("\n") + 2
    assert [s.span.line for s in statements(module.function("f").body)] == [
        first + k for k in range(1, 6)
    ]
