"""The printer: readable text with no needless parentheses, which parses back to an equal module."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from sampled import one_in
from hypothesis import given

from loma.ad import differentiate, split_pairs
from loma.core import builder as b
from loma.core.ir import (
    FLOAT, INT, ArrayType, AtomicAdd, Axis, Declare, Expr, FloatConst, For, Function, If, Index,
    IntConst, MakeStruct, Member, Module, Op, Param, Pop, Push, Reduce, Return, StackType, Stmt,
    StructType, TensorType, TupleType, Type, Var, While, Zero, ZeroPad,
)  # fmt: skip
from loma.core.printer import WIDTH, print_expr, print_module, print_stmt, print_type
from loma.errors.spans import NOWHERE
from loma.frontend import parse

PROGRAMS = Path(__file__).resolve().parents[2] / "capsnet_loma"
N, M = Var("N", INT), Var("M", INT)
X = Var("X", TensorType((N, M)))
x, y, n = Var("x", FLOAT), Var("y", FLOAT), Var("n", INT)


def _op(name: str, *args: Expr, **attrs: object) -> Op:
    return b.operator(name, args, attrs)


def _two(text: str) -> str:
    """The text of an expression over x, y, n and X after parsing and printing."""
    head = "x : In[float], y : In[float], n : In[int], X : In[Tensor[N, M]], I : In[IntTensor[N]]"
    module = parse(f"def f({head}) -> float:\n    return {text}\n")
    (last,) = module.functions[0].body
    assert isinstance(last, Return)
    return print_expr(last.values[0])


@pytest.mark.parametrize(
    "text",
    [
        "x + y * 2.0 - 1.0",
        "(x + y) * (x - y)",
        "x - (y - x)",
        "x - y - x",
        "x / (y / x)",
        "n // 2 % 3",
        "-x * y",
        "-(x * y)",
        "-(-x)",
        "-x ** 2",
        "(-x) ** 2",
        "(-2.0) ** x",
        "x ** -y",
        "x ** y ** x",
        "(x ** y) ** x",
        "2.0 - -3.0",
        "x < y",
        "(x < y) < n",
        "x == (y < x)",
        "x < y and y < 1.0 or not x",
        "(x or y) and n",
        "x and (y and n)",
        "not (x and y)",
        "-(not x)",
        "x if n else y",
        "x if n > 0 else y if n < 0 else 0.0",
        "(x if n else y) + 1.0",
        "1.0 if (x if n else y) else 2.0",
        "max(x, min(y, 1e-05))",
        "X[0, n % 2]",
        "sum(X[i, n] for i in N)",
        "max(X[i, j] * x for i in N for j in range(M - 1))",
        "no_diff(x * y) + 1e+20",
        "zero_pad(X[n - 1, I[n]])",
        "sum(X)[()]",
        "float2int(x) // 2",
        "mul_no_nan(x, y)",
        "argmax(X[i, n] for i in N)",
        "1e999",
    ],
)
def test_expressions_print_as_they_were_written(text: str) -> None:
    assert _two(text) == text


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("((x)) + (y)", "x + y"),
        ("x < y < 1.0", "x < y and y < 1.0"),
        ("+x", "x"),
        ("True + False", "1 + 0"),
        ("0x10 + n", "16 + n"),
        ("sum(X[(i), n] for i in range(N))", "sum(X[i, n] for i in N)"),
    ],
)
def test_other_spellings_print_in_normal_form(text: str, printed: str) -> None:
    assert _two(text) == printed


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (_op("add", X, x), "X + x"),
        (_op("neg", _op("mul", X, X)), "-(X * X)"),
        (_op("mul", _op("add", X, X), X), "(X + X) * X"),
        (_op("lt", X, FloatConst(0.0)), "X < 0.0"),
        (_op("sum", X), "sum(X)"),
        (_op("sum", X, dims=[-1], keepdim=1), "sum(X, [1], keepdim=True)"),
        (_op("mean", X, keepdim=1), "mean(X, keepdim=True)"),
        (_op("softmax", X, dim=-1), "softmax(X, dim=1)"),
        (_op("reshape", X, shape=[M, N]), "reshape(X, [M, N])"),
        (_op("reshape", X, shape=[]), "reshape(X, [])"),
        (_op("permute", X, dims=[1, 0]), "permute(X, [1, 0])"),
        (_op("transpose", X, dim0=0, dim1=1), "transpose(X, 0, 1)"),
        (_op("cat", X, X, dim=1), "cat([X, X], dim=1)"),
        (_op("cat", X), "cat([X])"),
        (_op("slice", X, dim=0, start=0, end=n), "slice(X, dim=0, start=0, end=n)"),
        (_op("zeros", shape=[N, IntConst(2)]), "zeros([N, 2])"),
        (_op("where", _op("gt", X, x), X, FloatConst(0.0)), "where(X > x, X, 0.0)"),
        (_op("add", x, y), "add(x, y)"),
        (Reduce("sum", x, (Axis("i", IntConst(3)),), FLOAT), "sum(x for i in range(3))"),
        (ZeroPad(Index(X, (n, IntConst(-1)), FLOAT)), "zero_pad(X[n, -1])"),
        (FloatConst(float("-inf")), "-1e999"),
        (MakeStruct((x, FloatConst(-1.0)), StructType("_dfloat")), "make__dfloat(x, -1.0)"),
    ],
)
def test_operators(expr: Expr, text: str) -> None:
    assert print_expr(expr) == text


def test_convolution_and_pooling_leave_defaults_out() -> None:
    image = Var("x", TensorType((N, M, IntConst(9), IntConst(9))))
    kernel = Var("w", TensorType((IntConst(4), M, IntConst(3), IntConst(3))))
    assert print_expr(_op("conv2d", image, kernel)) == "conv2d(x, w)"
    strided = _op("conv2d", image, kernel, stride=2, groups=1)
    assert print_expr(strided) == "conv2d(x, w, stride=[2, 2])"
    assert print_expr(_op("max_pool2d", image, kernel_size=2)) == "max_pool2d(x, [2, 2])"
    pool = _op("max_pool2d", image, kernel_size=2, stride=[1, 1])
    assert print_expr(pool) == "max_pool2d(x, [2, 2], stride=[1, 1])"


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (INT, "int"),
        (FLOAT, "float"),
        (ArrayType(FLOAT, None), "Array[float]"),
        (ArrayType(ArrayType(INT, 3), 4), "Array[Array[int, 3], 4]"),
        (StructType("Ray"), "Ray"),
        (StackType(StructType("_dRay"), None), "Stack[_dRay]"),
        (StackType(ArrayType(FLOAT, 3), 12), "Stack[Array[float, 3], 12]"),
        (TensorType(None), "Tensor"),
        (TensorType(()), "Tensor[()]"),
        (TensorType((b.binary("*", N, IntConst(2)), M)), "Tensor[N * 2, M]"),
        (TensorType(None, "float32"), "TorchTensorFloat"),
        (TensorType((N,), "int"), "IntTensor[N]"),
        (TupleType((FLOAT, TensorType((N,)))), "tuple[float, Tensor[N]]"),
    ],
)
def test_types(type_: Type, text: str) -> None:
    assert print_type(type_) == text


# ------------------------------------------------------------------------------------- statements


def test_blocks() -> None:
    inner: tuple[Stmt, ...] = (Zero(x),)
    stmt = If(n, (), (If(x, inner, inner),))
    assert print_stmt(stmt) == "if n:\n    pass\nelif x:\n    zero(x)\nelse:\n    zero(x)"
    loop = For("t", n, (While(n, 9, inner),), backwards=True)
    assert print_stmt(loop, 1) == (
        "    for t in reversed(range(n)):\n        while (n, max_iter := 9):\n            zero(x)"
    )


def test_long_lines_are_broken() -> None:
    long = x
    total: Expr = x
    for k in range(12):
        total = b.binary("+", total, b.binary("*", long, FloatConst(k + 0.125)))
    lines = print_stmt(Declare(y, total)).split("\n")
    assert lines[0] == "y : float = ("
    assert lines[1:3] == ["    x", "    + x * 0.125"]
    assert lines[-1] == ")"
    wide = _op("reshape", X, shape=[N] * 28)
    call = print_stmt(Declare(Var("t", TensorType(None)), wide))
    assert call.startswith("t : Tensor = reshape(\n    X, [N, N,")
    params = tuple(Param(f"argument_{k}", FLOAT, "In") for k in range(9))
    results = (TensorType((N, M)),) * 12
    text = print_module(Module("m", (), (Function("f", params, results, ()),)))
    assert all(len(line) <= WIDTH for line in text.split("\n"))
    assert ") -> tuple[" in text


def test_statements_of_stacks_and_places() -> None:
    foo = Var("foo", StructType("_dFoo"))
    tape = Var("tape", StackType(FLOAT, 300))
    place = Member(Index(Member(foo, "v", ArrayType(FLOAT, 3)), (n,), FLOAT), "val", FLOAT)
    assert print_stmt(Declare(tape, None)) == "tape : Stack[float, 300]"
    assert print_stmt(Push(tape, b.binary("+", x, y))) == "tape.push(x + y)"
    assert print_stmt(Pop(tape, place)) == "foo.v[n].val = tape.pop()"
    assert print_stmt(AtomicAdd(place, x)) == "atomic_add(foo.v[n].val, x)"
    assert print_stmt(Zero(place)) == "zero(foo.v[n].val)"


def test_long_statements_of_the_scalar_layer_are_broken() -> None:
    names = [f"a_rather_long_name_{k}" for k in range(4)]
    members = "".join(f"    m{k} : float\n" for k in range(4))
    text = (
        f"class Q:\n{members}\n\ndef f({', '.join(f'{n} : In[float]' for n in names)}):\n"
        f"    q : _dQ = make__dQ({', '.join(f'make__dfloat({n}, {n})' for n in names)})\n"
        "    tape : Stack[_dQ, 3]\n"
        f"    tape.push(make__dQ({', '.join(f'make__dfloat({n}, {n})' for n in names)}))\n"
        f"    atomic_add({names[0]}, {' * '.join(names * 2)})\n"
    )
    module = parse(text)
    printed = print_module(module)
    assert parse(printed) == module
    assert "    q : _dQ = make__dQ(\n" in printed
    assert "    tape.push(\n" in printed
    assert "    atomic_add(\n" in printed


def test_docstrings_survive() -> None:
    doc = '    """A "quoted" \\\\ word.\n\n    More of it"\\"\\"\\"\n    """\n'
    text = f"def f() -> int:\n{doc}    return 1\n"
    module = parse(text)
    again = parse(print_module(module))
    assert again.functions[0].doc == module.functions[0].doc != ""


EVERYTHING = '''
class Inner:
    v : Array[float, 3]


class Ray:
    inner : Inner
    t : float


def length(a : In[Array[float]], n : In[int]) -> float:
    """The sum of squares."""
    i : int
    s : float
    while (i < n, max_iter := 100):
        s += a[i] * a[i]
        i += 1
    return sqrt(s)


def move(ray : In[Ray], out : Out[Ray], t : In[float]):
    out = ray
    out.inner.v[0] = ray.inner.v[0] + t
    out.t += t
    tape : Stack[Inner, 8]
    tape.push(out.inner)
    zero(out.inner.v)
    out.inner = tape.pop()


def moved(ray : In[Ray], t : In[Diff[float]]) -> Ray:
    other : Ray
    n : int
    move(ray, other, t.val)
    other.inner = other.inner
    dray : Diff[Ray]
    dray.inner.v[1] = make__dfloat(d_move2(dray, t).inner.v[1].dval, 2.0)
    d_length(ray.inner.v, other.inner.v, 3, n, other.t)
    return other


def move2(ray : In[Ray], t : In[float]) -> Ray:
    ray.t *= t
    return ray


@simd
def each(rays : Out[Array[Ray]], sum : Out[float]):
    atomic_add(sum, rays[thread_id()].t)


def both(x : In[Tensor[N, M]], k : In[int]) -> tuple[Tensor[N * k, M], Tensor[()], int]:
    y : Tensor[N * k, M]
    best : int = argmax(x[i, 0] for i in N)
    for p in range(k):
        y[p * N + i, j] = x[i, j] if i != best else -0.5
    for p in reversed(range(k)):
        if p % 2 == 0:
            y[p, j] += 1.0
        elif p > 3 and not best:
            zero(y)
        else:
            pass
    return y, sum(x), best


def use(x : In[Tensor[N, M]], dx : Out[Tensor[N, M]], d_n : Out[int]) -> Tensor[N, M]:
    a, s, best = both(x, 1)
    top, rest = split(a, [1, N - 1], 0)
    z = cat([top, rest])
    d_both(x, dx, 1, d_n, z, s, best)
    t : float = s
    t += x[i, j] * z[i, j]
    return relu(z * t)


d_both = rev_diff(both)
dd_both = rev_diff(d_both)
df_length = fwd_diff(length)
d_length = rev_diff(length)
d_move2 = fwd_diff(move2)
d_each = rev_diff(each)
dd_each = fwd_diff(d_each)
'''


def test_a_module_of_everything() -> None:
    module = parse(EVERYTHING, "everything.loma")
    text = print_module(module)
    assert parse(text) == module
    assert print_module(parse(text)) == text


@pytest.mark.parametrize("path", one_in(3, sorted(PROGRAMS.glob("*.loma"))), ids=lambda p: p.stem)
def test_adjoints_parse_back(path: Path) -> None:
    module = differentiate(parse(path.read_text(encoding="utf-8"), str(path)))
    pairs, _ = split_pairs(module)
    for each in (module, pairs):
        again = parse(print_module(each), str(path))
        assert again.functions == each.functions
        assert again.structs == each.structs


# ------------------------------------------------------------------------------------ random ones

_LEAVES = st.one_of(
    st.sampled_from([x, y, n]),
    st.integers(-9, 99).map(IntConst),
    st.floats(allow_nan=False).map(FloatConst),
)
_BINARY = ["+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=", "and", "or"]


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.tuples(st.sampled_from(_BINARY), inner, inner).map(lambda t: b.binary(*t)),
        st.tuples(st.sampled_from(["-", "not"]), inner).map(lambda t: b.unary(*t)),
        st.tuples(inner, inner, inner).map(lambda t: b.select(*t)),
        st.tuples(inner, inner).map(lambda t: b.builtin("max", t)),
        inner.map(lambda e: b.builtin("sin", (e,))),
    )


@given(st.recursive(_LEAVES, _grow, max_leaves=12))
def test_random_expressions_parse_back(expr: Expr) -> None:
    params = (Param("x", FLOAT, "In"), Param("y", FLOAT, "In"), Param("n", INT, "In"))
    function = Function("f", params, (FLOAT,), (Return((expr,)),), span=NOWHERE)
    text = print_module(Module("m", (), (function,)))
    assert parse(text).functions == (function,)
