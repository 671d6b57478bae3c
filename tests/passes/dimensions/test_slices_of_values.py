"""Of computed values of which a slice is taken, the slice alone is computed."""

from __future__ import annotations

import re

import pytest
from sampled import diagonals, name_of
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes import canonical

HEAD = "def f(x : In[Tensor[N, M]], w : In[Tensor[M]], n : In[int]) -> Tensor[{}]:\n"

# name, result, body, what the canonical form has
CUT: tuple[tuple[str, str, str, str], ...] = (
    ("column", "N", "return (tanh(x) * 2.0)[:, 0]", "tanh(_t[_i, 0]) * 2.0"),
    ("columns", "N, 2", "return exp(x * w)[:, 1:3]", "exp(_t[_i, _i] * _t[_i])"),
    ("last", "N", "return (x - amax(x, [1], keepdim=True))[:, -1]", "_t[_i, 0] - _amax[_i, 0]"),
    ("row", "M", "return (x / sum(x * x, [1], keepdim=True))[0]", "_t[0, _i] / _t[0, 0]"),
    ("of_both", "1", "return (x + w)[1:2, 2]", "_t[0, 0] + _t[0]"),
    ("transposed", "2, N", "return transpose(exp(x), 0, 1)[:2]", "exp(_t[_i, _i])"),
    ("as_long_as_told", "N, n", "return relu(x)[:, 1:n + 1]", "relu(_t[_i, _i])"),
    ("log_softmax", "N", "return (x - log_softmax(x, 1))[:, 0]", "_t[_i, 0] - _max[_i]"),
    ("below_the_diagonal", "N, 2", "return tril(x * 2.0)[:, 1:3]", "_i + 1 <= _i"),
)  # fmt: skip

# where nothing that is read says whether the slice is there, or somebody else needs the whole, and
# what the canonical form has
LEFT: tuple[tuple[str, str, str, str], ...] = (
    ("ones", "N", "return (ones([N, M]) * 2.0)[:, 0]", "slice(_t, dim=1, start=0, end=1)"),
    ("others", "N, 2", "return exp(x)[:, ::2]", "slice(_t, dim=1, start=0, end=M, step=2)"),
    ("needed", "N", "y = exp(x)\nz = y[:, 0]\nreturn z * sum(y, [1])", "y[_i, _i] = exp("),
    ("of_one", "N, n", "return sum(x * x, [1], keepdim=True)[:, :n]", "dim=1, start=0, end=n"),
    ("of_a_slice", "n, N", "return transpose(exp(cat([x, x], 1))[:, :M], 0, 1)[:n]",
     "slice(_t, dim=0, start=0, end=n)"),
    ("twice", "N, 1", "return exp(x)[:, 1:3][:, 1:n]", "slice(_once, dim=1, start=1, end=n)"),
)  # fmt: skip


def text(result: str, body: str) -> str:
    return HEAD.format(result) + "".join(f"    {line}\n" for line in body.split("\n"))


def shown(source: str) -> str:
    function = canonical.operators(parse(source)).function("f")
    return re.sub(r"\b(_[a-z]+?)\d*(_\d+)?\b", r"\1", print_function(function))


@pytest.mark.parametrize("case", [*CUT, *LEFT], ids=lambda case: case[0])
def test_what_is_computed(case: tuple[str, str, str, str]) -> None:
    assert case[3] in shown(text(*case[1:3]))


@pytest.mark.parametrize(("case", "n"), diagonals(4, [*CUT, *LEFT], [2, 0]), ids=name_of)
def test_values_and_derivatives(case: tuple[str, ...], n: int) -> None:
    source = with_derivative(text(*case[1:3]))
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((n or 2, 3), (3,)))
    given = {"as_long_as_told": n, "of_one": 1}.get(case[0], 2)
    for change in (canonical.operators, passes.canonical_form, passes.optimise):
        compare(Point(case[0], source, "f", (x, w, given)), Changed(source, verified(change)))


@pytest.mark.parametrize("case", [*CUT, *LEFT], ids=lambda case: case[0])
def test_a_slice_that_is_not_there_is_an_error(case: tuple[str, ...]) -> None:
    source = text(*case[1:3])
    x, w = torch.ones(0, 0).numpy(), torch.ones(0).numpy()
    for module in (parse(source), passes.optimise(parse(source))):
        with pytest.raises(Exception, match=r"slice|outside|size"):
            Interpreter(module).call("f", x, w, 2)
