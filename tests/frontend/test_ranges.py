"""``range`` is Python's: bounds, steps, directions and derivatives through them, in both layers."""

from __future__ import annotations

import itertools
import textwrap
from typing import Any

import pytest
from sampled import one_in
import torch
from c_host import CProgram
from index_cases import Case, Indices
from oracle import Program, check_case, entry
from scalar_oracle import check_derivatives
from torch import Tensor

from loma import errors, pipeline
from loma.backends.interpreter.interpreter import Interpreter
from loma.core.ir import For
from loma.core.printer import print_module
from loma.frontend import parse

LARGEST, SMALLEST = 2**31 - 1, -(2**31)
SIGNATURE = "a : In[int], b : In[int], s : In[int], out : Out[Array[int, 64]]"
RANGES = [
    "range(a, b)", "range(a, b, s)", "reversed(range(a, b))", "reversed(range(a, b, s))",
    *(f"range({bounds}, {step})" for step in (1, -1, 2, -3)
      for bounds in ("a, b", "1, b", "a + 1, -1")),
    "reversed(range(a, b, -1))", "reversed(range(1, b, -2))", "range(7, -2, -4)",
]  # fmt: skip


def _values(k: int, ranged: str) -> str:
    """A function that writes the values of a range; it changes the bounds on the way."""
    return f"""
def values_{k}({SIGNATURE}) -> int:
    n : int
    for i in {ranged}:
        out[n] = i
        n += 1
        a = 17
        b = n
        s = 99
    return n
"""


LENGTH = """
def length(a : In[int], b : In[int], s : In[int]) -> int:
    return len(range(a, b, s))

def from_one(b : In[int]) -> int:
    n : int
    for i in range(1, b):
        n += 1
    return n
"""


@pytest.fixture(scope="module")
def ways() -> list[Any]:
    module = parse("".join(_values(k, ranged) for k, ranged in enumerate(RANGES)) + LENGTH)
    assert parse(print_module(module)) == module
    return [Interpreter(module), CProgram(module)]


@pytest.mark.parametrize("k", one_in(2, range(len(RANGES))))
def test_values_are_those_of_python(ways: list[Any], k: int) -> None:
    for a, b, s in itertools.product((-4, -1, 0, 1, 2, 9), repeat=3):
        if s == 0 and "s" in RANGES[k].replace("reversed", ""):
            continue
        wanted = list(eval(RANGES[k], {"a": a, "b": b, "s": s}))
        for way in ways:
            count, found = way.call(f"values_{k}", a, b, s, [0] * 64)
            assert (count, list(found[:count])) == (len(wanted), wanted)


def test_lengths_at_the_ends_of_an_int(ways: list[Any]) -> None:
    ends = (SMALLEST, SMALLEST + 2, -1, 0, 1, LARGEST - 2, LARGEST)
    for a, b, s in itertools.product(ends, repeat=3):
        for way in ways:
            if s == 0:
                with pytest.raises(ValueError, match=r"length: line .*the step of a range is 0"):
                    way.call("length", a, b, s)
            elif len(range(a, b, s)) > LARGEST:
                with pytest.raises(OverflowError, match="more than 2147483647 values"):
                    way.call("length", a, b, s)
            else:
                assert way.call("length", a, b, s)[0] == len(range(a, b, s))
    for way in ways:
        assert way.call("from_one", SMALLEST)[0] == 0


SCALAR = {
    "recurrence": (
        """
        def f(x : In[Array[float, 6]], n : In[int], y : Out[Array[float, 6]]) -> float:
            y[0] = x[0]
            for i in range(1, 6):
                y[i] = sin(x[i]) * y[i - 1]
            s : float = 1.0
            for i in range(n - 1, -1, -1):
                s = s * x[i] + x[i]
            for i in range(5, 0, -2):
                s = s * cos(x[i])
            return s
        """,
        ([0.3, 1.2, -0.7, 0.9, 0.5, -1.1], 4, [0.0] * 6),
    ),
    "triangle": (
        """
        def f(x : In[Array[float]], n : In[int], step : In[int]) -> float:
            s : float
            first : int = 1
            for i in range(n):
                for j in range(i + first, n):
                    s = s * x[i] + x[i] * x[j]
                first += 1
                for j in reversed(range(first, n, step)):
                    s += s * x[j] * i
            return s
        """,
        ([0.3, 1.2, -0.7, 0.9, 0.5], 5, 2),
    ),
}


@pytest.mark.parametrize("name", SCALAR)
def test_derivatives_of_scalar_functions(name: str) -> None:
    text, args = SCALAR[name]
    check_derivatives(textwrap.dedent(text), args)


def _recurrence(x: Tensor) -> tuple[Tensor, Tensor]:
    y, carry = list(x), torch.ones((), dtype=x.dtype)
    for k in range(1, len(x)):
        carry = x[k] * carry + x[k - 1]
        y[k] = carry
    for k in range(len(x) - 2, -1, -1):
        carry = carry * y[k]
    return torch.stack(y) if y else x, carry


def _rows(x: Tensor, start: Tensor) -> Tensor:
    rows = [(x[a:b] ** 2).sum() * (x[0] if b > a else 0.0) for a, b in itertools.pairwise(start)]
    return torch.stack(rows)


def _parts(x: Tensor, n: int) -> Tensor:
    odd = sum((x[k] * x[k - 1] for k in range(1, len(x), 2)), 0.0 * x.sum())
    back = sum((x[k] ** 3 for k in range(len(x) - 1, n, -2)), 0.0 * x.sum())
    down = sum((x[k] * k for k in reversed(range(n, len(x)))), 0.0 * x.sum())
    return x * odd + back + down * x


def _triangles(x: Tensor) -> Tensor:
    n = len(x)
    pairs = [x[i] * x[j] ** 2 for i in range(n) for j in range(i + 1, n)]
    return sum(pairs, 0.0 * x.sum()) + sum((x[k] for k in range(n - 1, 0, -1)), 0.0) * x


def _sampled(x: Tensor, a: int, b: int, step: int) -> Tensor:
    s = torch.ones((), dtype=x.dtype)
    for k in range(a, b, step):
        s = s * torch.sin(x[k]) + x[k]
    return s * x[list(range(a, b, step))]


def _stepped(x: Tensor, n: Tensor, step: int) -> Tensor:
    y = x.clone()
    for k in range(int(n[0]), int(n[1]), step):
        y = y * x[k] + x
    return y * sum((x[k] for k in range(int(n[0]), int(n[1]), step)), 0.0 * x.sum())


def _extremes(x: Tensor) -> Tensor:
    return x[1:].amax() * x[:-1].amin() + x[1::2].prod() * x


def _nested(x: Tensor) -> Tensor:
    c = torch.ones((), dtype=x.dtype)
    for r in range(1, len(x)):
        for q in reversed(range(r, len(x), 2)):
            c = c + x[q] * c
    return x * c


TEXTS = {
    "nested": """
def nested(X : In[Tensor[N]]) -> Tensor[N]:
    Y : Tensor[N]
    c : float = 1.0
    for r in range(1, N):
        for q in reversed(range(r, N, 2)):
            c = c + X[q] * c
    Y[i] = X[i] * c
    return Y
""",
    "recurrence": """
def recurrence(X : In[Tensor[N]]) -> tuple[Tensor[N], float]:
    Y : Tensor[N]
    carry : float = 1.0
    Y[i] = X[i]
    for t in range(1, N):
        carry = X[t] * carry + X[t - 1]
        Y[t] = carry
    for t in range(N - 2, -1, -1):
        carry = carry * Y[t]
    return Y, carry
""",
    "rows": """
def rows(X : In[Tensor[N]], start : In[IntTensor[M]]) -> Tensor[M - 1]:
    Y : Tensor[M - 1]
    for r in range(1, M):
        Y[r - 1] = sum(X[e] * X[e] for e in range(start[r - 1], start[r]))
        Y[r - 1] = Y[r - 1] * (X[0] if start[r] > start[r - 1] else 0.0)
    return Y
""",
    "parts": """
def parts(X : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    Y : Tensor[N]
    odd : float = sum(X[k] * X[k - 1] for k in range(1, N, 2))
    down : float = sum(X[k] * k for k in reversed(range(n, N)))
    Y[i] = X[i] * odd + sum(X[k] ** 3 for k in range(N - 1, n, -2)) + down * X[i]
    return Y
""",
    "triangles": """
def triangles(X : In[Tensor[N]]) -> Tensor[N]:
    Y : Tensor[N]
    Y[m] = sum(X[i] * X[j] ** 2 for i in N for j in range(i + 1, N))
    s : float
    for i in range(N - 1, 0, -1):
        s += X[i]
    Y[m] += s * X[m]
    return Y
""",
    "stepped": """
def stepped(X : In[Tensor[N]], n : In[IntTensor[2]], step : In[int]) -> Tensor[N]:
    Y : Tensor[N]
    Y[i] = X[i]
    for k in range(n[0], n[1], step):
        Y[i] = Y[i] * X[k] + X[i]
    s : float = sum(X[k] for k in range(n[0], n[1], step))
    Y[i] = Y[i] * s
    return Y
""",
    "sampled": """
def sampled(X : In[Tensor[N]], a : In[int], b : In[int], step : In[int]
            ) -> Tensor[len(range(a, b, step))]:
    Y : Tensor[len(range(a, b, step))]
    s : float = 1.0
    for k in range(a, b, step):
        s = s * sin(X[k]) + X[k]
    Y[i] = s * X[a + step * i]
    return Y
""",
    "extremes": """
def extremes(X : In[Tensor[N]]) -> Tensor[N]:
    Y : Tensor[N]
    least : float = min(X[k] for k in reversed(range(N - 1)))
    most : float = max(X[k] for k in range(1, N))
    Y[i] = most * least + prod(X[k] for k in range(1, N, 2)) * X[i]
    return Y
""",
}
TENSOR = [
    Case("recurrence", TEXTS["recurrence"], _recurrence, ((5,),)),
    Case("recurrence of one", TEXTS["recurrence"], _recurrence, ((1,),)),
    Case("rows", TEXTS["rows"], _rows, ((6,), Indices([0, 2, 2, 5]))),
    Case("parts", TEXTS["parts"], _parts, ((7,), 2)),
    Case("parts of nothing", TEXTS["parts"], _parts, ((2,), 3)),
    Case("triangles", TEXTS["triangles"], _triangles, ((4,),)),
    Case("triangles of one", TEXTS["triangles"], _triangles, ((1,),)),
    Case("nested", TEXTS["nested"], _nested, ((5,),)),
    Case("nested of one", TEXTS["nested"], _nested, ((1,),)),
    Case("stepped", TEXTS["stepped"], _stepped, ((6,), Indices([1, 6]), 2)),
    Case("stepped down", TEXTS["stepped"], _stepped, ((6,), Indices([5, 0]), -3)),
    Case("stepped nowhere", TEXTS["stepped"], _stepped, ((6,), Indices([5, 0]), 1)),
    Case("sampled", TEXTS["sampled"], _sampled, ((6,), 1, 6, 2)),
    Case("sampled down", TEXTS["sampled"], _sampled, ((6,), 5, -1, -2)),
    Case("sampled nowhere", TEXTS["sampled"], _sampled, ((6,), 5, 1, 2)),
    Case("extremes", TEXTS["extremes"], _extremes, ((6,),)),
]


COMPILED = ("stepped", "sampled")  # the rest is arithmetic that the interpreter checks as well


@pytest.fixture(scope="module")
def program() -> Program:
    return Program([text for name, text in TEXTS.items() if name not in COMPILED], first=())


@pytest.fixture(scope="module")
def compiled() -> Program:
    return Program([TEXTS[name] for name in COMPILED], first=())


@pytest.mark.parametrize("case", TENSOR, ids=lambda case: case.name)
def test_tensor_functions(case: Case, request: pytest.FixtureRequest) -> None:
    name = entry(case.text)
    program = request.getfixturevalue("compiled" if name in COMPILED else "program")
    check_case(program, case, libtorch=name in COMPILED)


def test_a_step_of_zero_fails_with_its_line(compiled: Program) -> None:
    x, n = torch.ones(3, dtype=torch.float64), torch.tensor([0, 2])
    for run in (lambda: compiled.compiled("stepped")(x, n, 0),
                lambda: compiled.value("stepped", (x, n, 0))):  # fmt: skip
        with pytest.raises(ValueError, match=r"^stepped: line 5: the step of a range is 0$"):
            run()
    for leaf in (x, x.clone().requires_grad_()):  # the length of a tape and of a result
        with pytest.raises(ValueError, match=r"^sampled: line \d+: the step of a range is 0$"):
            compiled.compiled("sampled")(leaf, 0, 3, 0)


def test_subscripts_are_proved_inside() -> None:
    """Not one is checked when the function runs."""
    text = """
def inside(X : In[Tensor[N]]) -> float:
    s : float = sum(X[i] * X[i - 1] for i in range(1, N))
    s += sum(X[i - 1] for i in range(N, 0, -1)) + sum(X[i] for i in reversed(range(N)))
    return s + sum(X[i] for i in range(1, N, 2)) + sum(X[i] for i in range(0, N, 3))
"""
    assert "loma::range_error" not in pipeline.stage_text(text, "cpp", "inside")


def test_one_name_counts_for_all_loops_over_the_same_name() -> None:
    text = "def f(_i : In[int], n : In[int]) -> int:\n    k : int\n"
    text += "    for i in range(1, n):\n        k += i + _i\n" * 2 + "    return k\n"
    loops = [stmt for stmt in parse(text).function("f").body if isinstance(stmt, For)]
    assert [loop.counter for loop in loops] == ["_i_1", "_i_1"]


def test_long_starts_in_reductions_are_refused() -> None:
    ranges = " ".join(
        f"for {b} in range({a} + {a}, N)" for a, b in itertools.pairwise("abcdefghij")
    )
    text = f"def f(X : In[Tensor[N]]) -> float:\n    return sum(X[j] for a in N {ranges})\n"
    with pytest.raises(errors.SyntaxNotSupported, match="stands for too long an expression"):
        parse(text)
