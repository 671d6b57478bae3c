"""Index statements: which names are indices, their ranges, and what each statement becomes."""

from __future__ import annotations

import pytest

from loma import errors
from loma.core.distinct import told_apart
from loma.core.ir import (
    INT, Assign, Axis, Expr, Index, IndexAssign, IntConst, Reduce, Stmt, Var, ZeroPad,
)  # fmt: skip
from loma.core.printer import print_expr, print_stmt
from loma.core.walk import walk
from loma.frontend import parse
from loma.frontend.expressions.ranges import escape

HEAD = (
    "def f(X : In[Tensor[N, M]], V : In[Tensor[M]], I : In[IntTensor[N]], P : In[int],\n"
    "      F : In[Tensor[3, 3]], Y : Out[Tensor[N, M]], Z : Out[Tensor[N * M]], s : Out[float]):\n"
)


def _parse(line: str) -> Stmt:
    return parse(f"{HEAD}    {line}\n").functions[0].body[-1]


def _axes(line: str) -> dict[str, str]:
    stmt = _parse(line)
    assert isinstance(stmt, IndexAssign)
    return {axis.name: print_expr(axis.extent) for axis in stmt.axes}


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("Y[i, j] = X[i, -1] * V[-2]", "Y[i, j] = X[i, M - 1] * V[M - 2]"),
        ("Y[-1, j] = F[-3, 1 - 2]", "Y[N - 1, j] = F[0, 2]"),
        ("Y[0, -P] = V[I[-1]]", "Y[0, -P] = V[I[N - 1]]"),
        ("Y[-1, -1] += V[-1]", "Y[N - 1, M - 1] += V[M - 1]"),
        ("s = X[-1, -1] + F[-1, 0]", "s = X[N - 1, M - 1] + F[2, 0]"),
    ],
)
def test_negative_constants_count_from_the_end(line: str, same: str) -> None:
    assert _parse(line) == _parse(same)


def test_outside_means_zero_for_zero_pad() -> None:
    assert "zero_pad(V[-1])" in print_stmt(_parse("Y[i, j] = zero_pad(V[-1])"))


@pytest.mark.parametrize(
    ("line", "axes"),
    [
        ("Y[i, j] = X[i, j]", {"i": "N", "j": "M"}),
        ("Y[j, i] = X[j, i]", {"j": "N", "i": "M"}),
        # the target's first, then those that are summed over, in order of appearance
        ("Y[i, j] += V[k] * X[l, j]", {"i": "N", "j": "M", "k": "M", "l": "N"}),
        ("s += X[i, j] * V[j]", {"i": "N", "j": "M"}),
        # affine subscripts give no range, a bare one elsewhere does
        ("Y[i, j] += zero_pad(X[i + p - 1, j + q - 1]) * F[p, q]",
         {"i": "N", "j": "M", "p": "3", "q": "3"}),
        # under zero_pad only when nothing else gives one
        ("s += zero_pad(X[i, 0])", {"i": "N"}),
        ("Z[k] = zero_pad(V[k])", {"k": "N * M"}),
        # data-dependent subscripts: n stands alone in I
        ("Y[I[n], j] += X[n, j]", {"n": "N", "j": "M"}),
        ("s += V[I[n]]", {"n": "N"}),
        # names of variables, arguments and sizes are no indices
        ("Y[P, j] = V[j]", {"j": "M"}),
        ("Y[N - 1, j] += 1.0", {"j": "M"}),
        # bound by a reduction
        ("Y[i, j] = sum(X[k, j] for k in N)", {"i": "N", "j": "M"}),
        ("Y[i, j] = sum(X[k, j] for k in N) + max(X[k, j] for k in range(P))",
         {"i": "N", "j": "M"}),
        # in conditions, calls and other positions of an expression
        ("Y[i, j] = X[i, j] if V[j] > 0.0 and i < j else 0.0", {"i": "N", "j": "M"}),
        ("Y[i, j] = max(exp(X[i, j]), -V[j]) ** 2", {"i": "N", "j": "M"}),
        ("Y[i, j] = i * M + j", {"i": "N", "j": "M"}),
        # mixed radix
        ("Z[i * M + j] = X[i, j]", {"i": "N", "j": "M"}),
        ("Y[0, 1] = s", {}),
    ],
)  # fmt: skip
def test_axes(line: str, axes: dict[str, str]) -> None:
    assert list(_axes(line).items()) == list(axes.items())


def test_every_read_keeps_its_text() -> None:
    line = "Y[i, j] += zero_pad(X[2 * i + 1, M - 1 - j]) * V[I[i] % M]"
    stmt = _parse(line)
    assert print_stmt(stmt) == line
    assert isinstance(stmt, IndexAssign)
    assert any(isinstance(node, ZeroPad) for node in walk(stmt.value))


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("Y[i, j] -= X[i, j]", "Y[i, j] += -X[i, j]"),
        ("Y[i, j] *= V[j]", "Y[i, j] = Y[i, j] * V[j]"),
        ("Y[i, j] /= 2.0", "Y[i, j] = Y[i, j] / 2.0"),
        ("s -= V[j]", "s += -V[j]"),
        # a target that is read is read as it was before the statement
        ("Y[i, 0] += Y[i, 0] * X[i, j]", "Y[i, 0] += sum(Y[i, 0] * X[i, j] for j in M)"),
        ("s += s * V[j]", "s += sum(s * V[j] for j in M)"),
    ],
)
def test_rewritten_statements(line: str, printed: str) -> None:
    assert print_stmt(_parse(line)) == printed


def test_a_sum_that_reads_its_float_is_an_assignment() -> None:
    stmt = _parse("s += s * V[j]")
    assert isinstance(stmt, Assign)
    assert isinstance(stmt.value, Reduce)


def test_element_without_indices_has_no_axes() -> None:
    stmt = parse(
        "def f(X : In[Tensor[N]]) -> Tensor[N]:\n    Y : Tensor[N]\n    for t in range(N):\n"
        "        Y[t] = X[t]\n    return Y\n"
    ).functions[0]
    (inner,) = stmt.body[1].body  # type: ignore[union-attr]
    assert isinstance(inner, IndexAssign)
    assert inner.axes == ()


def test_rank_0_tensors_are_one_element() -> None:
    module = parse(
        "def f(X : In[Tensor[N]], a : In[Tensor[()]]) -> Tensor[()]:\n    Y : Tensor[()]\n"
        "    Y[()] = 2.0 * a[()]\n    Y += X[i] * a\n    return Y\n"
    )
    _, first, second, _ = module.functions[0].body
    assert print_stmt(first) == "Y[()] = 2.0 * a[()]"
    assert print_stmt(second) == "Y[()] += X[i] * a[()]"


@pytest.mark.parametrize(
    "line",
    [
        "Y[i, j] = X[i, j + 1] if j + 1 < M else 0.0",  # guarded: not evaluated outside
        "s += V[j - 1] * V[j] if j > 0 else 0.0",
        "Y[i, j] = X[i % 3, j]",  # a call has to check it
        "Y[i, j] = F[i - i % 2, j % 3]",  # i is 0 at both places, or at neither
        "Y[i, j] = X[i, j + P]",
        "Y[i, j] = zero_pad(X[i + 99, j - 99])",
    ],
)
def test_subscripts_that_may_be_inside(line: str) -> None:
    _parse(line)


@pytest.mark.parametrize(
    "line",
    [
        "Y[i, j] = X[i, j + 1]",
        "Y[i, j] = X[i, j - 1]",
        "s += F[i, 2 * i]",
        "s += F[i, i // 2 + 2]",
        "s += F[i, 2 - i % 3] * F[i, 3 - i % 3]",
        "s += F[i, 3] if i > 1 else 0.0",  # outside whatever the condition is
        "s = sum(V[k] for k in range(M + 1))",
    ],
)
def test_subscripts_that_leave_their_tensor(line: str) -> None:
    with pytest.raises(errors.SubscriptOutOfRange):
        _parse(line)


# ---------------------------------------------------------------------------- what can be proved

i, j, n = Var("i", INT), Var("j", INT), Var("N", INT)


def _subscript(text: str) -> Expr:
    """An int expression over the indices i, j and k and the size N."""
    stmt = parse(
        "def f(A : In[Tensor[N, N, N, N]], B : Out[Tensor[N]]):\n"
        f"    B[0] += A[i, j, k, 0] * zero_pad(A[{text}, 0, 0, 0])\n"
    ).functions[0].body[0]  # fmt: skip
    assert isinstance(stmt, IndexAssign)
    pad = next(node for node in walk(stmt.value) if isinstance(node, ZeroPad))
    assert isinstance(pad.read, Index)
    return pad.read.subscripts[0]


@pytest.mark.parametrize(
    ("subscripts", "extents", "expected"),
    [
        (["i", "j"], {"i": "N", "j": "N"}, True),
        (["i"], {"i": "N", "j": "N"}, False),
        (["i", "i + j"], {"i": "N", "j": "N"}, True),
        (["i + j"], {"i": "N", "j": "N"}, False),
        (["i * N + j"], {"i": "N", "j": "N"}, True),
        (["j * 3 + i"], {"i": "3", "j": "N"}, True),
        (["j * 3 + i"], {"i": "4", "j": "N"}, False),
        (["j * 4 + i"], {"i": "3", "j": "N"}, True),
        (["N - 1 - i"], {"i": "N"}, True),
        (["2 * i"], {"i": "N"}, True),
        (["0 * i"], {"i": "N"}, False),
        (["i * i"], {"i": "N"}, False),
        (["i // 2", "i % 2"], {"i": "N"}, True),
        (["i % N", "i // N"], {"i": "3"}, True),
        (["i // N", "i % 3"], {"i": "3"}, True),
        (["i // 2", "i % 3"], {"i": "N"}, False),
        (["i // (2 * N)", "i // 2 % N", "i % 2"], {"i": "N"}, True),
        (["i % 2", "i // 2 // N", "i // 2 % N"], {"i": "N"}, True),
        (["i // (3 * N)", "i // 2 % N", "i % 2"], {"i": "N"}, False),
        (["i // 2 % N", "i % 2"], {"i": "N"}, False),
        (["(i * N + j) % 3", "(i * N + j) // 3"], {"i": "N", "j": "N"}, True),
        (["(i * N + j) % 3", "(i * N + j) // 3"], {"i": "N", "j": "4"}, False),
        (["(i + 1) % N"], {"i": "N"}, True),
        (["(7 - i) % N"], {"i": "N"}, True),
        (["(i + N) % (N + 2) * 2"], {"i": "N"}, True),
        (["i % N"], {"i": "N", "j": "3"}, False),
        (["(i + 1) % 5"], {"i": "N"}, False),
        (["i % (N - 1)"], {"i": "N"}, False),
        (["(i * 3 + j + 4) % (3 * N)"], {"i": "N", "j": "3"}, True),
        (["(i * 3 + j + 4) % (2 * N)"], {"i": "N", "j": "3"}, False),
        (["(i + j) % N", "j"], {"i": "N", "j": "N"}, True),
        (["(i + j) % N", "i + 2 * j"], {"i": "N", "j": "N"}, False),
        (["3 * i % 8"], {"i": "8"}, True),
        (["2 * i % 8"], {"i": "8"}, False),
        (["3 * i % 8"], {"i": "9"}, False),
        (["-3 * i % 8"], {"i": "8"}, True),
        (["(2 * i + 1) % 5 * 3 + j"], {"i": "5", "j": "3"}, True),
        (["i % 5 + 4 * j"], {"i": "5", "j": "N"}, False),
        (["i % 5 + 5 * j"], {"i": "5", "j": "N"}, True),
        (["i // 2 + N * j", "i % 2"], {"i": "N", "j": "N"}, False),
        (["i * i + N * j"], {"i": "N", "j": "N"}, False),
        (["i * i * N + j"], {"i": "1", "j": "N"}, False),
        (["(i * 2 + j) * 5 + k"], {"i": "N", "j": "2", "k": "5"}, True),
        (["3"], {}, True),
    ],
)
def test_told_apart(subscripts: list[str], extents: dict[str, str], expected: bool) -> None:
    axes = tuple(
        Axis(name, IntConst(int(size)) if size.isdigit() else n) for name, size in extents.items()
    )
    told = told_apart(tuple(map(_subscript, subscripts)), axes)
    assert (told == {axis.name for axis in axes}) is expected


@pytest.mark.parametrize(
    ("subscript", "size", "low", "high"),
    [
        ("i + 1", n, "1", "N"),
        ("N - i", n, "1", "N"),
        ("2 * i + j", IntConst(5), "0", "2 * N"),
        ("i - 1", n, "-1", "N - 2"),
        ("-1", n, "-1", "-1"),
    ],
)
def test_escape(subscript: str, size: Expr, low: str, high: str) -> None:
    extents: dict[str, Expr] = {"i": n, "j": IntConst(3)}
    found = escape(_subscript(subscript), size, extents, frozenset({"N"}))
    if size == IntConst(5):
        assert found is None  # 2 * N may or may not be below 5
        return
    assert found is not None
    assert (print_expr(found[0].low), print_expr(found[0].high)) == (low, high)


def test_empty_loops_leave_nothing() -> None:
    assert escape(i, IntConst(0), {"i": IntConst(0)}, frozenset()) is None


# ----------------------------------------------------------------------- sizes of what is returned


@pytest.mark.parametrize(
    "body",
    [
        "    y : Tensor[N]\n    y[i] = x[i] * w[i]\n    return y\n",
        "    y : Tensor[N]\n    for t in range(2):\n        y[i] += x[i] * w[i]\n    return y\n",
        "    s : float = sum(x[i] * w[i] for i in N)\n    return x * s\n",
        "    return x + w\n",
        "    y : Tensor[M] = x\n    return x\n",
        "    y : Tensor[M]\n    y = x\n    return x * 2.0\n",
        "    y : float = same(x, w)\n    return x\n",
        "    y : Tensor[M] = reshape(x, [M])\n    return x\n",
    ],
)
def test_a_result_may_have_a_size_that_must_equal_the_declared_one(body: str) -> None:
    """Whether it does is found out when the function is called."""
    same = (
        "def same(x : In[Tensor[K]], w : In[Tensor[K]]) -> float:\n"
        "    s : float\n    s += x[i] * w[i]\n    return s\n"
    )
    head = "def f(x : In[Tensor[N]], w : In[Tensor[M]]) -> Tensor[M]:\n"
    assert parse(same + head + body)
    with pytest.raises(errors.ReturnTypeMismatch, match="nothing says that the sizes M and N are"):
        parse(head + "    s : float\n    s += x[i] * w[j]\n    return x * s\n")
