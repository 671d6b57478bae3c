"""Scalar functions with arrays, structs, loops and stacks, called from index statements."""

from __future__ import annotations

from collections.abc import Iterator

import oracle
import pytest
from sampled import one_in
import torch
from index_cases import Case
from oracle import Program, check_case
from torch import Tensor

import loma
from loma import pipeline
from loma.backends.interpreter import Interpreter
from loma.errors import BackendLacksOperator, NotDifferentiable

PROGRAM = """
class Sums:
    parts : Array[float, 2]
    n : int

def bump(s : Out[Sums], x : In[float], w : In[Array[float, 2]]):
    s.parts[s.n] += x * w[s.n]
    s.n = s.n + 1

def clear(w : Out[Array[float]]):
    w[0] = 0.0

def both(x : In[float]) -> tuple[float, Sums]:
    s : Sums
    s.parts[1] = x
    return x, s

def mixed(x : In[float], k : In[int]) -> float:
    a : Sums
    b : Sums
    w : Array[float, 2]
    m : Array[Array[float, 2], 2]
    tape : Stack[float, 4]
    t : float
    w[0] = 2.0
    w[1] = 3.0
    bump(a, x, w)
    b = a
    bump(b, x * x, w)
    m[k] = b.parts
    tape.push(m[k][0])
    tape.push(x)
    x = 0.0
    x = tape.pop()
    t = tape.pop()
    u, c = both(t)
    clear(m[k])
    i : int
    while (i < 3, max_iter := 5):
        i += 1
    return m[k][0] + m[k][1] * 100.0 + u * c.parts[1] + x + i

def cube(x : In[float]) -> float:
    p : Array[float, 3]
    p[0] = x
    for i in range(2):
        p[i + 1] = p[i] * x
    return p[2] + 0.001 * mixed(x, 1)

d_cube = rev_diff(cube)

def slope(x : In[float]) -> float:
    dx : float
    d_cube(x, dx, 1.0)
    return dx

def values(x : In[Tensor[N]], k : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = mixed(x[i], k)
    return y

def cubes(x : In[Tensor[N]], w : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = cube(x[i] * w[i]) * w[i]
    return y

def slopes(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = slope(x[i])
    return y
"""


@pytest.fixture(scope="module", params=["stack", "heap"])
def m(request: pytest.FixtureRequest) -> Iterator[loma.LomaModule]:
    """With variables where they are otherwise, and with all of them on the heap."""
    if request.param == "stack":
        yield oracle.compiled(PROGRAM)
        return
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("BY_VALUE", "LIMIT"):
            patch.setattr(f"loma.backends.torch.scalars.{limit}", 0)
        yield oracle.compiled(f"{PROGRAM}# on the heap, in the cache, too\n")


X = torch.tensor([0.5, -1.5, 2.0], dtype=torch.float64)


def test_values(m: loma.LomaModule) -> None:
    oracle = Interpreter(pipeline.adjoint(pipeline.parsed(PROGRAM)))
    for name, arguments in {"values": (1,), "slopes": ()}.items():
        (expected,) = oracle.call(name, X.numpy(), *arguments)
        found = getattr(m, name)(X, *arguments)
        torch.testing.assert_close(found, torch.from_numpy(expected))
        rough = getattr(m, name)(X.float(), *arguments)
        torch.testing.assert_close(rough, found.float())


@pytest.mark.parametrize("m", one_in(2, ["stack", "heap"]), indirect=True)
def test_derivatives_of_first_and_second_order(m: loma.LomaModule) -> None:
    x = X.clone().requires_grad_()
    w = torch.tensor([1.5, -0.5, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: m.values(x, 0), x)
    assert torch.autograd.gradcheck(m.cubes, (x, w))
    assert torch.autograd.gradgradcheck(m.cubes, (x, w))
    assert torch.autograd.gradcheck(m.slopes, x)


def test_a_subscript_outside_its_array(m: loma.LomaModule) -> None:
    line = 1 + next(k for k, text in enumerate(PROGRAM.split("\n")) if "m[k] = b.parts" in text)
    message = f"mixed: line {line}: subscript 2 is outside an array of 2 elements"
    with pytest.raises(IndexError) as caught:
        m.values(X, 2)
    assert message in str(caught.value)
    with pytest.raises(IndexError) as caught:
        m.values(torch.ones(100_000), -1)
    assert "subscript -1 is outside" in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "lines"),
    [
        ("", "    a : Array[float, 2]\n    y[i] = a[0] * x[i]\n"),
        ("", "    a : Array[float, 2]\n    a[0] = 1.0\n    y[i] = a[0] * x[i]\n"),
        ("", "    p : Point\n    y[i] = p.t * x[i]\n"),
        ("", "    y[i] = point(x[i]).t\n"),
        (", a : In[Array[float]]", "    y[i] = a[0] * x[i]\n"),
        (", p : In[Point]", "    y[i] = x[i]\n"),
    ],
)
def test_tensor_functions_have_no_arrays_and_structs(argument: str, lines: str) -> None:
    program = (
        "class Point:\n    t : float\n\n"
        "def point(x : In[float]) -> Point:\n    p : Point\n    p.t = x\n    return p\n\n"
        f"def f(x : In[Tensor[N]]{argument}) -> Tensor[N]:\n"
        f"    y : Tensor[N]\n{lines}    return y\n"
    )
    for text, error in (
        (program, BackendLacksOperator),
        (f"{program}d_f = rev_diff(f)\n", NotDifferentiable),
    ):
        with pytest.raises(error, match=r"'f' works on tensors, and .* belongs to") as caught:
            loma.compile(text)
        assert caught.value.lineno >= 9


ASSIGNED = """
def drift(x : In[float], v : In[float], n : In[int]) -> float:
    y : float
    for t in range(n):
        y += sin(x)
        x += v * v
    return y

def drifts(x : In[Tensor[N]], v : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = drift(x[i], v[i], n)
    return y
"""


def test_an_argument_that_depends_on_another_one_later() -> None:
    """When the derivative in v begins, x does not depend on v, and what is read there is x."""

    def drifts(x: Tensor, v: Tensor, n: int) -> Tensor:
        y = torch.zeros_like(x)
        for _ in range(n):
            y, x = y + torch.sin(x), x + v * v
        return y

    case = Case("drifts", ASSIGNED, drifts, ((3,), (3,), 4))
    check_case(Program([ASSIGNED], second=("drifts",)), case, libtorch=False)
