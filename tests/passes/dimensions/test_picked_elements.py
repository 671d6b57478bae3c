"""Elements that data point at: sums of which one value counts, values read at positions, and
``gather``."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes import canonical

PARAMS = "x : In[Tensor[N, M]], w : In[Tensor[M]], p : In[IntTensor[N]], q : In[IntTensor[M]]"

# What a function returns, its body, and what is left of that.
PICKED = {
    "a label": ("float", "t += -x[n, d] * w[d] if d == p[n] else 0.0",
                "t += -x[n, p[n]] * w[p[n]] if 0 <= p[n] and p[n] < M else 0.0"),
    "turned around": ("float", "t += x[n, d] if p[n] == d else 0.0", "t += zero_pad(x[n, p[n]])"),
    "with a number": ("float", "t += x[n, d] * d if d == p[n] else 0.0",
                      "t += x[n, p[n]] * p[n] if 0 <= p[n] and p[n] < M else 0.0"),
    "and more": ("float", "t += x[n, d] if d == p[n] and n > 0 and x[n, d] > 0.0 else 0.0",
                 "t += x[n, p[n]] "
                 "if 0 <= p[n] and p[n] < M and n > 0 and x[n, p[n]] > 0.0 else 0.0"),
    "a diagonal": ("float", "t += x[n, d] if n == d else 0.0",
                   "t += zero_pad(x[d + 0, d])"),
    "a part": ("Tensor[N]", "t[n] = 1.0 + sum(w[d] if d == 2 * n else 0.0 for d in M) * x[n, 0]",
               "t[n] = 1.0 + zero_pad(w[2 * n]) * x[n, 0]"),
    "one of two": ("Tensor[N]", "t[n] = sum(x[n, d] * w[e] if e == q[d] else 0.0 "
                   "for d in M for e in M)",
                   "t[n] = sum(x[n, d] * w[q[d]] if 0 <= q[d] and q[d] < M else 0.0 for d in M)"),
    "twice": ("Tensor[N]", "t[n] = sum(x[n, d] if d == p[n] and d == q[e] else 0.0 "
              "for d in M for e in M)",
              "t[n] = sum(x[n, p[n]] if 0 <= p[n] and p[n] < M and p[n] == q[e] else 0.0 "
              "for e in M)"),
}  # fmt: skip

AS_THEY_ARE = {
    "itself": ("float", "t += x[n, d] if d == d * n else 0.0"),
    "a float": ("float", "t += x[n, d] if d == w[d] else 0.0"),
    "something else": ("float", "t += x[n, d] if d == p[n] else 1.0"),
    "either": ("float", "t += x[n, d] if d == p[n] or d == 0 else 0.0"),
    "a largest one": ("Tensor[N]", "t[n] = max(x[n, d] if d == p[n] else 0.0 for d in M)"),
    "outside": ("float", "t += x[n, d] if n > 0 and d == p[n - 1] else 0.0"),
}  # fmt: skip


def program(result: str, body: str) -> str:
    return f"def f({PARAMS}) -> {result}:\n    t : {result}\n    {body}\n    return t\n"


def left(text: str) -> str:
    module = canonical.conditions(parse(text))
    assert canonical.conditions(module) == module
    return print_function(module.function("f")).strip().split("\n")[-2].strip()


@pytest.mark.parametrize("name", PICKED)
def test_what_is_picked(name: str) -> None:
    result, body, expected = PICKED[name]
    assert left(program(result, body)) == expected


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_what_stays_a_sum(name: str) -> None:
    result, body = AS_THEY_ARE[name]
    assert left(program(result, body)) == body


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (name, shape)
        for name, (_, body, *_) in {**PICKED, **AS_THEY_ARE}.items()
        for shape in ((4, 3), (1, 1), (0, 3), (3, 0))
        if shape[1] or not ("x[n, 0]" in body or "max(" in body)
    ],
)
def test_values_and_derivatives(name: str, shape: tuple[int, int]) -> None:
    """Positions may lie outside."""
    rows, columns = shape
    result, body = {**PICKED, **AS_THEY_ARE}[name][:2]
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    w = torch.randn(columns, generator=generator, dtype=torch.float64)
    at = torch.tensor([1, -1, 2, 3, 0])
    args = (x, w, at[:rows].int(), at[:columns].int())
    text = with_derivative(program(result, body))
    point = Point(f"{name}{shape}", text, "f", args)
    compare(point, Changed(text, verified(canonical.conditions)))
    compare(point, Changed(text, verified(passes.optimise)))


def test_what_is_not_picked_may_be_anything() -> None:
    module = passes.canonical_form(parse(program(*PICKED["a label"][:2])))
    x = torch.full((2, 3), float("nan"))
    x[0, 1], x[1, 0] = 2.0, 3.0
    args = (
        x.numpy(),
        torch.ones(3).numpy(),
        torch.tensor([1, 0]).numpy(),
        torch.zeros(3).int().numpy(),
    )
    assert float(Interpreter(module).call("f", *args)[0]) == -5.0


# What a tensor c holds, and whether that is computed where it is read.
VALUES = {
    "x[n, d] - 2.0 * w[d]": True,
    "w[d] * d": True,
    "exp(x[n, d]) + (w[d] if n > 0 else 0.0)": True,
    "w[d] * x[n, d] if n > 0 else 0.0": False,  # nothing is read in row 0
    "x[n, 0] * d": False,
    "zero_pad(w[d + n])": False,
}
READ = """
def f({params}) -> float:
    c : Tensor[N, M]
    c[n, d] = {value}
    t : float
    t += c[n, p[n]] * c[n, p[n]]
    return t
"""


@pytest.mark.parametrize("value", VALUES)
def test_a_value_at_a_position(value: str) -> None:
    text = READ.format(params=PARAMS, value=value).replace("c[n, p[n]] * c", "x[n, 0] * c")
    printed = print_function(canonical.temporaries(parse(text)).function("f"))
    assert ("c[n, d] =" not in printed) == VALUES[value]


@pytest.mark.parametrize("value", VALUES)
def test_a_position_outside_stays_an_error(value: str) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    text = with_derivative(READ.format(params=PARAMS, value=value))
    inside = (x, x[0], torch.tensor([3, 0, 1]).int(), torch.zeros(4).int())
    point = Point(value, text, "f", inside)
    compare(point, Changed(text, verified(canonical.temporaries)))
    compare(point, Changed(text, verified(passes.optimise)))
    for module in (canonical.temporaries(parse(text)), passes.optimise(parse(text))):
        for position in (4, -1):
            args = (x.numpy(), x[0].numpy(), torch.tensor([3, position, 1]).int().numpy())
            with pytest.raises(ValueError, match=r"line 6: subscript 'p\[n\]' of"):
                Interpreter(module).call("f", *args, torch.zeros(4).int().numpy())


GATHERED = {
    "along rows": ("gather(x, 1, reshape(p, [N, 1]))", "Tensor[N, 1]", True),
    "of a value": ("gather(x * x - w, reshape(p, [N, 1]), 1)", "Tensor[N, 1]", True),
    "in an expression": ("sum(gather(x, reshape(p, [N, 1]), 1) * 2.0, 1)", "Tensor[N]", True),
    "along columns": ("gather(x, 0, reshape(q, [1, M]))", "Tensor[1, M]", True),
    "of fewer rows": ("gather(x, 1, reshape(p[1:], [N - 1, 1]))", "Tensor[N - 1, 1]", False),
    "of no order": ("gather(x, 1, argsort(x, 1))", "Tensor[N, M]", False),
}


@pytest.mark.parametrize("name", GATHERED)
def test_gather_reads_at_positions(name: str) -> None:
    value, result, written_out = GATHERED[name]
    text = with_derivative(f"def f({PARAMS}) -> {result}:\n    return {value}\n")
    module = passes.canonical_form(parse(text))
    assert ("gather(" not in print_function(module.function("f"))) == written_out
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    at = torch.tensor([2, 0, 1, 2]).int()
    point = Point(name, text, "f", (x, x[0] * 2.0, at[:3], at))
    compare(point, Changed(text, verified(canonical.operators)))
    compare(point, Changed(text, verified(passes.optimise)))
