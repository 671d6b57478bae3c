"""Reductions over triangles: their ranges, loops along them, values and derivatives."""

from __future__ import annotations

from typing import Any

import pytest
from sampled import one_in
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.ir import For, IndexAssign, Module, Reduce
from loma.core.printer import print_function
from loma.core.verify import verify
from loma.passes import canonical
from loma.passes.canonical.recurrences.running import running
from loma.core.walk import map_tensor_functions, nodes, statements
from loma.frontend import parse


def program(params: str, result: str, *lines: str) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"def f({params}) -> Tensor[{result}]:\n    y : Tensor[{result}]\n{body}    return y\n"


def in_loops(module: Module) -> Module:
    """The module as a backend runs it."""
    every = ("sum", "prod", "max", "min")
    return map_tensor_functions(passes.optimise(module), lambda f: canonical.scans(f, every))


def triangle(text: str) -> list[str]:
    """The body of ``f`` with ranges, without its declaration of y and its return."""
    module = passes.first_write(canonical.triangles(canonical.loops(parse(text))))
    verify(module)
    printed = print_function(module.function("f")).strip().split("\n")
    return [line.strip() for line in printed[2:-1]]


X = "x : In[Tensor[B, T]]"
SUM = "y[b, t] = sum(x[b, q] for q in range(t + 1))"

# The same running sums in other words.
SPELLINGS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("conditional", SUM, ("y[b, t] = sum(x[b, q] if q <= t else 0.0 for q in T)",)),
    ("other_branch", SUM, ("y[b, t] = sum(0.0 if t < q else x[b, q] for q in T)",)),
    ("negated", SUM, ("y[b, t] = sum(x[b, q] if not (q > t) else 0.0 for q in T)",)),
    ("added", SUM, ("y[b, t] += x[b, q] if q <= t else 0.0",)),
    ("loop", SUM, ("for t in range(T):", "    y[b, t] = sum(x[b, q] for q in range(t + 1))")),
    ("loops", SUM,
     ("for t in range(T):", "    for q in range(t + 1):", "        y[b, t] += x[b, q]")),
    ("if", SUM, (
        "for t in range(T):", "    for q in range(T):", "        if t >= q:",
        "            y[b, t] += x[b, q]",
    )),
    ("exclusive", "y[b, t] = sum(x[b, q] for q in t)", (
        "for t in range(T):", "    for q in range(t):", "        y[b, t] += x[b, q]",
    )),
    ("backwards", "y[b, t] = sum(x[b, q + t] for q in range(T - t))",
     ("y[b, t] = sum(x[b, q] if q >= t else 0.0 for q in T)",)),
    ("across", "y[b, q] = sum(x[b, q + t] for t in range(T - q))",
     ("for t in range(T):", "    for q in range(t + 1):", "        y[b, q] += x[b, t]")),
    ("window", "y[b, t] = sum(x[b, t - q] if t - q >= 0 else 0.0 for q in range(3))",
     ("y[b, t] = sum(x[b, q] if q <= t and q >= t - 2 else 0.0 for q in T)",)),
    ("window_that_is_added_to",
     "y[b, _p_2] = sum(x[b, _p_2 + t] if T - _p_2 - t - 1 >= 0 else 0.0 for t in range(3))",
     ("for t in range(T):", "    for q in range(3):", "        if t - q >= 0:",
      "            y[b, t - q] += x[b, t]")),
    ("behind", "y[b, _p] = sum(x[b, t] for t in range(_p + 1))",
     ("for t in range(T):", "    for q in range(T - t):", "        y[b, t + q] += x[b, t]")),
)  # fmt: skip


@pytest.mark.parametrize("case", SPELLINGS, ids=lambda case: case[0])
def test_one_form(case: Any) -> None:
    _, expected, spelled = case
    assert triangle(program(X, "B, T", *spelled)) == [expected]


KEPT = {
    "box": ("y[b, t] = sum(x[b, q] if q <= 2 else 0.0 for q in T)",),
    "half": ("y[b, t] = sum(x[b, q] if 2 * q <= t else 0.0 for q in T)",),
    "data": ("y[b, t] = sum(x[b, q] if x[b, q] <= x[b, t] else 0.0 for q in T)",),
    "own": ("y[b, t] = x[b, t]", "for t in range(T):", "    for q in range(t):",
            "        y[b, t] += y[b, q]"),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    text = program(X, "B, T", *KEPT[name])
    assert canonical.triangles(parse(text)) == parse(text)
    if name != "own":
        assert not any(
            isinstance(s, For) for s in statements(in_loops(parse(text)).functions[0].body)
        )


QKV = "q : In[Tensor[T, D]], k : In[Tensor[T, D]], v : In[Tensor[T, E]]"
ONE = "x : In[Tensor[T]]"

# name, parameters, result, statements, shapes of the arguments for T
CASES: tuple[tuple[str, str, str, tuple[str, ...], Any], ...] = (
    *((name, X, "B, T", lines, lambda t: ((2, t),)) for name, _, lines in SPELLINGS),
    ("operator", X, "B, T", ("y = cumsum(x * x, 1) * cumprod(x, -1) + x",), lambda t: ((2, t),)),
    ("operator_alone", X, "B, T", ("y = cumsum(x, 0)",), lambda t: ((t, 2),)),
    ("rows_last", "x : In[Tensor[T, B]]", "T, B",
     ("y[t, b] = sum(x[q, b] for q in range(t + 1))",), lambda t: ((t, 3),)),
    ("alone", ONE, "T", ("y[t] = sum(x[q] for q in range(t, T))",), lambda t: ((t,),)),
    ("descending", ONE, "T", ("y[t] = sum(x[q] for q in range(T - t))",), lambda t: ((t,),)),
    ("mirrored", ONE, "T", ("y[t] = sum(x[T - 1 - q] for q in range(t + 1))",), lambda t: ((t,),)),
    ("longer", "x : In[Tensor[T + 2]]", "T", ("y[t] = sum(x[q + 0] for q in range(t + 3))",),
     lambda t: ((t + 2,),)),
    ("late", ONE, "T", ("y[t] = sum(x[q] for q in range(t - 1))",), lambda t: ((t,),)),
    ("mean", X, "B, T", ("y[b, t] = sum(x[b, q] for q in range(t + 1)) / (t + 1)",),
     lambda t: ((2, t),)),
    ("inside", X, "B, T",
     ("y[b, t] = exp(sum(x[b, q] for q in t)) * x[b, t] + sum(x[b, q] for q in range(t, T))",),
     lambda t: ((2, t),)),
    ("added_to", X, "B, T",
     ("y[b, t] = x[b, t]", "if B > 1:", "    y[b, t] += sum(x[b, q] for q in range(t + 1))"),
     lambda t: ((2, t),)),
    ("factors", "x : In[Tensor[B, T]], a : In[Tensor[T]], c : In[Tensor[B]]", "B, T",
     ("y[b, t] = sum(-a[t] * x[b, q] * c[b] / (2.0 + a[q] * a[q]) for q in range(t + 1))",),
     lambda t: ((2, t), (t,), (2,))),
    ("functions", X, "B, T", ("y[b, t] = sum(x[b, q] * exp(x[b, q]) for q in range(t + 1))",),
     lambda t: ((2, t),)),
    ("summed_too", "x : In[Tensor[B, T]]", "T",
     ("y[t] = sum(x[b, q] for q in range(t + 1) for b in B)",), lambda t: ((2, t),)),
    ("causal", QKV, "T, E",
     ("y[t, e] = sum(q[t, d] * k[s, d] * v[s, e] for s in range(t + 1) for d in D)",),
     lambda t: ((t, 2), (t, 2), (t, 3))),
    ("causal_exclusive", QKV, "T, E",
     ("y[t, e] = sum(q[t, d] * k[s, d] * v[s, e] if s < t else 0.0 for d in D for s in T)",),
     lambda t: ((t, 2), (t, 2), (t, 3))),
    ("causal_backwards", QKV, "T, E",
     ("y[t, e] += q[t, d] * (k[s, d] * v[s, e]) if s >= t else 0.0",),
     lambda t: ((t, 2), (t, 2), (t, 3))),
    ("products", X, "B, T", ("y[b, t] = prod(x[b, q] for q in range(t + 1))",),
     lambda t: ((2, t),)),
    ("products_of_others", X, "B, T", ("y[b, t] = prod(x[b, q] for q in range(t + 1, T))",),
     lambda t: ((2, t),)),
    ("largest", X, "B, T", ("y[b, t] = max(x[b, q] for q in range(t + 1))",), lambda t: ((2, t),)),
    ("smallest", X, "B, T", ("y[b, t] = min(x[b, q] for q in range(t, T))",), lambda t: ((2, t),)),
)  # fmt: skip


def arguments(shapes: tuple[tuple[int, ...], ...]) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(4)
    found = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return tuple(value if value.ndim else float(value) for value in found)


@pytest.mark.parametrize("case", one_in(3, CASES), ids=lambda case: case[0])
def test_values_and_derivatives(case: Any) -> None:
    name, params, result, spelled, shapes = case
    text = with_derivative(program(params, result, *spelled))
    made = in_loops(parse(text)).functions[0]
    assert any(isinstance(s, For) for s in statements(made.body))
    assert not any(
        isinstance(n, Reduce) and running(n, {a.name: a for a in s.axes})
        for s in statements(made.body) if isinstance(s, IndexAssign)
        for n in nodes((s,))
    )  # fmt: skip
    changed = Changed(text, verified(in_loops))
    for t in (5, 1, 0):
        compare(Point(f"{name}, {t} steps", text, "f", arguments(shapes(t))), changed)
