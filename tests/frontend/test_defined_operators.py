"""Operators that are written out as others: the interpreter and PyTorch agree on values and
derivatives, and libtorch on those of a network made of them."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from defined_cases import CASES
from oracle import Program, check, close

import loma
from loma import errors
from loma.ad import differentiate, split_pairs
from loma.backends.interpreter import Interpreter
from loma.core.definitions import DEFINED
from loma.core.printer import print_module
from loma.frontend import parse
from loma.frontend.expressions.parts import RESULTS

BY_NAME = {case.name: case for case in CASES}
NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def program() -> Program:
    return Program([case.text for case in CASES], first=())


def test_every_definition_is_tested_here() -> None:
    tested = {*BY_NAME, "split"}  # which is among the operators
    assert [name for name in (*DEFINED, *RESULTS) if name not in tested] == []


@pytest.mark.parametrize("name", BY_NAME)
def test_definition(program: Program, name: str) -> None:
    case = BY_NAME[name]
    check(program, f"op_{name}", case.arguments(), case.reference, libtorch=False)


@pytest.mark.full
@pytest.mark.parametrize("name", BY_NAME)
def test_definition_compiled(program: Program, name: str) -> None:
    case = BY_NAME[name]
    check(program, f"op_{name}", case.arguments(), case.reference, second=False)


CHECKED = """
def row(x : In[Tensor[N, M]], k : In[int]) -> Tensor[M]:
    return x[k]

def part(x : In[Tensor[N, M]], k : In[int]) -> Tensor[N, k]:
    return x[:, :k]

def last(x : In[Tensor[N, M]]) -> Tensor[N]:
    return x[:, -2]

def best(x : In[Tensor[N]]) -> Tensor[3]:
    v, i = topk(x, 3)
    return v

def normal(x : In[Tensor[N]], w : In[Tensor[M]]) -> Tensor[N]:
    return layer_norm(x, [N], w)

def steps(x : In[Tensor[N, M]]) -> Tensor[M]:
    h = x[0]
    for t in range(N):
        h = tanh(h) + x[t] * x[t:t + 1][0, 1]
    return h
"""

NETWORK = """
def network(x : In[Tensor[B, T, D]], w : In[Tensor[D]], k : In[Tensor[D, D, 2]]) -> Tensor[B]:
    h = silu(layer_norm(x, [D], w))
    c = conv1d(permute(h, [0, 2, 1]), k, padding=[1])
    e = elu(c[:, :, 1:] - c[..., :-1])
    v, i = topk(logsumexp(e, 1), 2)
    s = stack([v[:, 0], std(e, [1, 2]), norm(e[:, -1], [1])], 1)
    a, b, c2 = unbind(tril(cumsum(s, 1)), 1)
    return a + b * c2 + prod(leaky_relu(s), [1]) + amin(s, [1])
"""


def _network(x: torch.Tensor, w: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    h = F.silu(F.layer_norm(x, w.shape, w))
    c = F.conv1d(h.permute(0, 2, 1), k, padding=1)
    e = F.elu(c[:, :, 1:] - c[..., :-1])
    v, _ = e.logsumexp(1).topk(2)
    s = torch.stack([v[:, 0], e.std((1, 2)), e[:, -1].norm(dim=1)], 1)
    a, b, c2 = s.cumsum(1).tril().unbind(1)
    return a + b * c2 + F.leaky_relu(s).prod(1) + s.amin(1)


@pytest.fixture(scope="module")
def checked(pytestconfig: pytest.Config) -> Program:
    network = NETWORK if pytestconfig.getoption("--full") else ""
    return Program([CHECKED + network], first=())


@pytest.mark.full
def test_network_of_them(checked: Program) -> None:
    """On libtorch in double, and in bfloat16, whose results are near those of double."""
    torch.manual_seed(0)
    args = [torch.randn(*s, dtype=torch.float64) for s in ((3, 5, 4), (4,), (4, 4, 2))]
    check(checked, "network", args, _network, second=False, tolerance=1e-8)
    half = [arg.bfloat16().requires_grad_() for arg in args]
    exact = [arg.detach().double().requires_grad_() for arg in half]
    y, expected = checked.compiled("network")(*half), _network(*exact)
    assert y.dtype == torch.bfloat16
    close(y.double(), expected, 0.02)
    found = torch.autograd.grad(y.sum(), half)
    for one, other in zip(found, torch.autograd.grad(expected.sum(), exact), strict=True):
        close(one.double(), other, 0.05)


# ------------------------------------------------------------------------------- special points

SPECIAL: list[tuple[str, list[float], list[float], list[float]]] = [
    # expression over x : Tensor[N], the point, the values, the derivative with weights 1
    ("norm(x)", [0.0, 0.0], [0.0], [0.0, 0.0]),
    ("std(x)", [2.0, 2.0], [0.0], [0.0, 0.0]),
    ("var(x)", [2.0], [NAN], [NAN]),
    ("var(x, correction=0)", [2.0], [0.0], [0.0]),
    ("logsumexp(x, 0)", [-INF, -INF], [-INF], [0.0, 0.0]),
    ("logsumexp(x, 0)", [1000.0, 1000.0], [1000.0 + math.log(2.0)], [0.5, 0.5]),
    ("logsumexp(x, 0)", [-INF, 1.0], [1.0], [0.0, 1.0]),
    ("logsumexp(x, 0)", [INF, 1.0], [INF], [0.0, 0.0]),
    ("logsumexp(x, 0)", [NAN, 1.0], [NAN], [NAN, NAN]),
    ("elu(x)", [-800.0, 0.0, 800.0, NAN], [-1.0, 0.0, 800.0, NAN], [0.0, 1.0, 1.0, NAN]),
    ("leaky_relu(x)", [-1.0, 0.0, 2.0], [-0.01, 0.0, 2.0], [0.01, 0.01, 1.0]),
    ("silu(x)", [-800.0, 0.0, 800.0], [0.0, 0.0, 800.0], [0.0, 0.5, 1.0]),
    ("amin(x)", [3.0, 1.0, 1.0], [1.0], [0.0, 1.0, 0.0]),
    ("amin(x)", [3.0, NAN, 1.0], [NAN], [0.0, 1.0, 0.0]),
    ("prod(x)", [0.0, 3.0, 2.0], [0.0], [6.0, 0.0, 0.0]),
    ("prod(x)", [0.0, 3.0, 0.0], [0.0], [0.0, 0.0, 0.0]),
    ("prod(x)", [], [1.0], []),
    ("cumprod(x, 0)", [2.0, 0.0, 3.0], [2.0, 0.0, 0.0], [1.0, 8.0, 0.0]),
    ("cumprod(x, 0)", [], [], []),
    ("cumsum(x, 0)", [], [], []),
    ("roll(x, 1)", [], [], []),
    ("flip(x, [0])", [], [], []),
    ("layer_norm(x, [N])", [5.0], [0.0], [0.0]),
    ("tril(reshape(x, [1, 2]))", [NAN, NAN], [NAN, 0.0], [1.0, 0.0]),
    ("x[1:1]", [2.0, 3.0], [], [0.0, 0.0]),
    ("x[0:N] * x[...]", [2.0], [4.0], [4.0]),
    ("gather(x, argsort(x, 0), 0)", [2.0, NAN, 1.0], [1.0, 2.0, NAN], [1.0, 1.0, 1.0]),
]


@pytest.fixture(scope="module")
def special() -> Program:
    header = "def special_{}(x : In[Tensor[N]]) -> Tensor:\n    return {}\n"
    return Program([header.format(k, row[0]) for k, row in enumerate(SPECIAL)], first=())


@pytest.mark.parametrize("k", range(len(SPECIAL)), ids=lambda k: SPECIAL[k][0])
def test_special_point(special: Program, k: int) -> None:
    _, point, wanted, slope = SPECIAL[k]
    x = torch.tensor(point, dtype=torch.float64)
    with np.errstate(all="ignore"):
        (value,) = special.value(f"special_{k}", [x])
        np.testing.assert_allclose(np.ravel(value), wanted)
        weight = torch.ones(np.shape(value), dtype=torch.float64)
        (found,) = special.adjoint(f"special_{k}", [x], [weight])
    np.testing.assert_allclose(found, slope)


@pytest.mark.full
@pytest.mark.parametrize("k", range(len(SPECIAL)), ids=lambda k: SPECIAL[k][0])
def test_special_point_compiled(special: Program, k: int) -> None:
    _, point, wanted, slope = SPECIAL[k]
    x = torch.tensor(point, dtype=torch.float64, requires_grad=True)
    value = special.compiled(f"special_{k}")(x)
    np.testing.assert_allclose(value.detach().flatten().numpy(), wanted)
    (found,) = torch.autograd.grad(value.sum(), x, allow_unused=True)
    found = torch.zeros_like(x) if found is None else found
    np.testing.assert_allclose(found.numpy(), slope)


# ------------------------------------------------------------------------------ what a call checks


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("row(x, 2)", IndexError),
        ("row(x, -1)", IndexError),
        ("part(x, 3)", IndexError),
        ("last(x[:, :1])", IndexError),
        ("best(x[0])", IndexError),
        ("normal(x[0], x[0, :1])", (ValueError, RuntimeError)),
    ],
)
def test_sizes_that_a_call_refuses(checked: Program, call: str, error: type[Exception]) -> None:
    x = torch.arange(4.0, dtype=torch.float64).reshape(2, 2)
    name = call.partition("(")[0]
    with pytest.raises(error, match=f"{name}: line"):
        eval(call, {name: checked.compiled(name), "x": x})
    args = eval(f"({call.partition('(')[2][:-1]},)", {"x": x.numpy()})
    with pytest.raises(error, match=f"{name}: line"):
        checked.interpreter.call(name, *args)


def test_slices_in_a_loop_add_to_their_part_of_the_adjoint(checked: Program) -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    h = x[0]
    for row in x:
        h = torch.tanh(h) + row * row[1]
    y = checked.compiled("steps")(x)
    close(y, h)
    (found,), (wanted,) = (torch.autograd.grad(value.sum(), x) for value in (y, h))
    close(found, wanted)


def test_a_size_that_varies_in_a_loop_has_no_derivative() -> None:
    text = """
def f(x : In[Tensor[N]]) -> float:
    s : float = 0.0
    for t in range(N):
        s = s + norm(silu(x[:t]))
    return s
d_f = rev_diff(f)
"""
    module = parse(text)
    np.testing.assert_allclose(Interpreter(module).call("f", np.zeros(3)), 0.0)
    with pytest.raises(errors.NotDifferentiable, match="whose size varies in a loop") as e:
        differentiate(module)
    assert "for j in range(k)" in str(e.value.hint)


def test_extremes_of_several_take_the_first_of_equals() -> None:
    text = """
def f(x : In[Tensor[N]], y : In[Tensor[M]], a : In[float]) -> Tensor[max(N, M, 2)]:
    z : Tensor[max(N, M, 2)]
    z[0] = max(a, x[0], y[0], 1) + 2.0 * min(x[0], 1.0, a, y[0])
    return z
d_f = rev_diff(f)
"""
    interpreter = Interpreter(differentiate(parse(text)))
    (z,) = interpreter.call("f", np.ones(1), np.ones(1), 1.0)
    assert z.tolist() == [3.0, 0.0]
    gradients = interpreter.call("d_f", np.ones(1), np.zeros(1), np.ones(1), np.zeros(1), 1.0,
                                 0.0, np.ones(2))  # fmt: skip
    assert [np.asarray(g).tolist() for g in gradients] == [[2.0], [0.0], 1.0]


# ------------------------------------------------------------------------------------------ names


def test_programs_may_use_the_names() -> None:
    """A function, an argument and a variable of the program's own."""
    text = """
def norm(x : In[Tensor[N]]) -> float:
    return sum(x)

def silu(x : In[float]) -> float:
    return 2.0 * x

def sort(x : In[Tensor[N]]) -> tuple[Tensor[N], Tensor[N]]:
    return x, -x

def f(x : In[Tensor[N]], flip : In[float]) -> float:
    stack, var = sort(x)
    y : Tensor[N]
    y[i] = silu(x[i]) + flip * var[i]
    return norm(y) + silu(flip)
"""
    x = np.array([1.0, 2.0])
    (found,) = Interpreter(parse(text)).call("f", x, 3.0)
    assert found == 2.0 * 3.0 - 3.0 * 3.0 + 6.0


def test_an_argument_is_computed_once() -> None:
    """However deep calls nest, a program grows with its text."""
    nested = "silu(" * 12 + "x" + ")" * 12
    module = parse(f"def f(x : In[Tensor[N]]) -> Tensor[N]:\n    return {nested}\n")
    assert len(module.function("f").body) < 30


def test_a_result_may_take_the_name_of_what_is_sorted() -> None:
    text = (
        "def f(x : In[Tensor[N]]) -> Tensor[N]:\n    y = x * x\n    y, i = sort(y)\n    return y\n"
    )
    (found,) = Interpreter(parse(text)).call("f", np.array([3.0, -1.0, 2.0]))
    np.testing.assert_array_equal(found, [1.0, 4.0, 9.0])
    head = "def f(x : In[Tensor[2]]) -> Tensor[2]:\n    y = x * x\n"
    with pytest.raises(errors.SyntaxNotSupported, match="'y' is taken apart"):
        parse(f"{head}    y, z = split(y, 1)\n    return x\n")


FIRST = """
def rows(x : In[Tensor[N, M]]) -> tuple[Tensor[N, 3], IntTensor[N, 3]]:
    v, k = topk(x, 3, 1)
    return v, k

def columns(x : In[Tensor[N, M]]) -> tuple[Tensor[3, M], IntTensor[3, M]]:
    v, k = topk(x, 3, 0, False)
    return v, k
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [(40, 50), (13, 11), (3, 3), (100, 12)])
def test_the_first_of_an_order_are_those_of_the_whole_order(
    dtype: torch.dtype, size: tuple[int, int]
) -> None:
    module = loma.compile(FIRST)
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-4, 4, size, generator=generator).to(dtype)
    x[torch.rand(size, generator=generator) < 0.1] = math.nan
    largest = x.argsort(dim=1, descending=True, stable=True)[:, :3]
    smallest = x.argsort(dim=0, stable=True)[:3]
    for (value, place), wanted, dim in (
        (module.rows(x), largest, 1), (module.columns(x), smallest, 0),
    ):  # fmt: skip
        assert torch.equal(place, wanted)
        torch.testing.assert_close(value, x.gather(dim, wanted), equal_nan=True, rtol=0, atol=0)


def test_no_derivative_needs_the_whole_order() -> None:
    shown = print_module(split_pairs(parse(FIRST))[0])
    assert len(re.findall(r"slice\(argsort\(", shown)) == shown.count("argsort(") > 0


def test_more_than_a_dimension_has_cannot_be_taken() -> None:
    with pytest.raises(IndexError, match="leaves dimension 1 of size 2"):
        loma.compile(FIRST).rows(torch.zeros(20, 2))
