"""Sums of products in steps: their text, and that values and derivatives are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

import loma
from loma import passes, pipeline
from loma.backends.interpreter import Interpreter
from loma.core.ir import Module
from loma.core.printer import print_function
from loma.core.verify import verify
from loma.passes import canonical
from loma.frontend import parse


def program(params: str, result: str, *lines: str) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"def f({params}) -> Tensor[{result}]:\n    y : Tensor[{result}]\n{body}    return y\n"


def factored(text: str) -> Module:
    module = canonical.factor(parse(text))
    verify(module)
    assert parse(print_function(module.function("f"))).functions == module.functions
    assert canonical.factor(module) == module
    return module


def lines(text: str) -> list[str]:
    """The body of ``f`` behind the pass, without its declaration of y and its return."""
    printed = print_function(factored(text).function("f"))
    body = [line.strip() for line in printed.strip().split("\n")]
    start = next(k for k, line in enumerate(body) if line.startswith("y :"))
    return body[start + 1 : -1]


def arguments(shapes: tuple[tuple[int, ...], ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(2)
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)


CHAIN = "a : In[Tensor[N, K]], b : In[Tensor[K, L]], c : In[Tensor[L, M]]"
SQUARE = "a : In[Tensor[N, N]]"

# name, parameters, result, statement, steps, shapes of the arguments
SPLIT: tuple[tuple[str, str, str, str, list[str], tuple[tuple[int, ...], ...]], ...] = (
    ("chain", CHAIN, "N, M", "y[i, j] += a[i, k] * b[k, l] * c[l, j]", [
        "_t : Tensor[N, L]",
        "_t[i, l] = sum(a[i, k] * b[k, l] for k in K)",
        "y[i, j] += _t[i, l] * c[l, j]",
    ], ((3, 4), (4, 5), (5, 2))),
    ("parentheses", CHAIN, "N, M", "y[i, j] += a[i, k] * (b[k, l] * c[l, j])", [
        "_t : Tensor[K, M]",
        "_t[k, j] = sum(b[k, l] * c[l, j] for l in L)",
        "y[i, j] += a[i, k] * _t[k, j]",
    ], ((3, 4), (4, 5), (5, 2))),
    ("assigned", CHAIN, "N, M",
     "y[i, j] = sum(a[i, k] * b[k, l] * c[l, j] for l in L for k in K)", [
        "_t : Tensor[N, L]",
        "_t[i, l] = sum(a[i, k] * b[k, l] for k in K)",
        "y[i, j] = sum(_t[i, l] * c[l, j] for l in L)",
    ], ((3, 4), (4, 5), (5, 2))),
    ("vector_last", "a : In[Tensor[N, K]], b : In[Tensor[K, L]], x : In[Tensor[L]]", "N",
     "y[i] += a[i, k] * b[k, l] * x[l]", [
        "_t : Tensor[K]",
        "_t[k] = sum(b[k, l] * x[l] for l in L)",
        "y[i] += a[i, k] * _t[k]",
    ], ((3, 4), (4, 5), (5,))),
    ("known_sizes", "a : In[Tensor[N, 100]], b : In[Tensor[100, 4]], c : In[Tensor[4, 100]]",
     "N, 100", "y[i, j] += a[i, k] * b[k, l] * c[l, j]", [
        "_t : Tensor[N, 4]",
        "_t[i, l] = sum(a[i, k] * b[k, l] for k in range(100))",
        "y[i, j] += _t[i, l] * c[l, j]",
    ], ((3, 100), (100, 4), (4, 100))),
    ("known_order", "a : In[Tensor[100, 4]], b : In[Tensor[4, 100]], c : In[Tensor[100, 4]]",
     "100, 4", "y[i, j] += a[i, k] * b[k, l] * c[l, j]", [
        "_t : Tensor[4, 4]",
        "_t[k, j] = sum(b[k, l] * c[l, j] for l in range(100))",
        "y[i, j] += a[i, k] * _t[k, j]",
    ], ((100, 4), (4, 100), (100, 4))),
    ("four", CHAIN + ", d : In[Tensor[M, O]]", "N, O",
     "y[i, m] += a[i, k] * b[k, l] * (c[l, j] * d[j, m])", [
        "_t : Tensor[N, L]",
        "_t_1 : Tensor[L, O]",
        "_t[i, l] = sum(a[i, k] * b[k, l] for k in K)",
        "_t_1[l, m] = sum(c[l, j] * d[j, m] for j in M)",
        "y[i, m] += _t[i, l] * _t_1[l, m]",
    ], ((3, 4), (4, 5), (5, 2), (2, 3))),
    ("batch", "a : In[Tensor[N, B, K]], b : In[Tensor[B, K, L]], c : In[Tensor[B, L, M]]",
     "N, B, M", "y[i, n, j] += a[i, n, k] * b[n, k, l] * c[n, l, j]", [
        "_t : Tensor[B, N, L]",
        "_t[n, i, l] = sum(a[i, n, k] * b[n, k, l] for k in K)",
        "y[i, n, j] += _t[n, i, l] * c[n, l, j]",
    ], ((3, 2, 4), (2, 4, 5), (2, 5, 2))),
    ("repeated", SQUARE, "N, N", "y[i, j] += a[i, k] * a[k, l] * a[l, j]", [
        "_t : Tensor[N, N]",
        "_t[i, l] = sum(a[i, k] * a[k, l] for k in N)",
        "y[i, j] += _t[i, l] * a[l, j]",
    ], ((3, 3),)),
    ("scaled", CHAIN, "N, M", "y[i, j] += 2.0 * exp(a[i, k]) * (b[k, l] / (l + 1)) * c[l, j]", [
        "_t : Tensor[N, L]",
        "_t[i, l] = sum(exp(a[i, k]) * (b[k, l] / (l + 1)) for k in K)",
        "y[i, j] += 2.0 * _t[i, l] * c[l, j]",
    ], ((3, 4), (4, 5), (5, 2))),
    ("sums_of_one", "a : In[Tensor[N, K]], b : In[Tensor[M, L]]", "N, M",
     "y[i, j] += a[i, k] * b[j, l]", [
        "_t : Tensor[N]",
        "_t_1 : Tensor[M]",
        "_t[i] = sum(a[i, k] for k in K)",
        "_t_1[j] = sum(b[j, l] for l in L)",
        "y[i, j] += _t[i] * _t_1[j]",
    ], ((3, 4), (2, 5))),
    ("windows", "x : In[Tensor[B, C, H]], k : In[Tensor[C, P]], m : In[Tensor[O, C]]",
     "B, O, H - P + 1", "y[b, o, h] += x[b, c, h + p] * k[c, p] * m[o, c]", [
        "_t : Tensor[C, B, H - P + 1]",
        "_t[c, b, h] = sum(x[b, c, h + p] * k[c, p] for p in P)",
        "y[b, o, h] += _t[c, b, h] * m[o, c]",
    ], ((2, 3, 6), (3, 2), (4, 3))),
    ("padded", "x : In[Tensor[B, C, H]], k : In[Tensor[C, P]], m : In[Tensor[O, C]]",
     "B, O, H", "y[b, o, h] += zero_pad(x[b, c, h + p - P // 2]) * k[c, p] * m[o, c]", [
        "_t : Tensor[C, B, H]",
        "_t[c, b, h] = sum(zero_pad(x[b, c, h + p - P // 2]) * k[c, p] for p in P)",
        "y[b, o, h] += _t[c, b, h] * m[o, c]",
    ], ((2, 3, 6), (3, 3), (4, 3))),
    ("in_blocks", CHAIN, "N, M", """for t in range(2):
        if N > 1:
            y[i, j] += a[i, k] * b[k, l] * c[l, j] * (t + 1)""", [
        "_t : Tensor[N, L]",
        "for t in range(2):",
        "if N > 1:",
        "_t[i, l] = sum(a[i, k] * b[k, l] for k in K)",
        "y[i, j] += _t[i, l] * c[l, j] * (t + 1)",
    ], ((3, 4), (4, 5), (5, 2))),
)  # fmt: skip


@pytest.mark.parametrize("case", SPLIT, ids=lambda case: case[0])
def test_steps(case: Any) -> None:
    _, params, result, statement, steps, _ = case
    assert lines(program(params, result, statement)) == steps


@pytest.mark.parametrize("case", SPLIT, ids=lambda case: case[0])
def test_values_and_derivatives(case: Any) -> None:
    name, params, result, statement, _, shapes = case
    text = with_derivative(program(params, result, statement))
    for change in (canonical.factor, passes.optimise):
        program_ = Changed(text, verified(change))
        compare(Point(name, text, "f", arguments(shapes)), program_)


@pytest.mark.parametrize("sizes", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (1, 1, 1, 1)])
def test_empty_and_single(sizes: tuple[int, ...]) -> None:
    n, k, l, m = sizes  # noqa: E741
    text = with_derivative(program(*SPLIT[0][1:4]))
    point = Point("sizes", text, "f", arguments(((n, k), (k, l), (l, m))))
    compare(point, Changed(text, verified(canonical.factor)))
    compare(point, Changed(text, verified(passes.optimise)))


def test_ints() -> None:
    text = """
def f(a : In[IntTensor[N, K]], b : In[IntTensor[K, L]], c : In[IntTensor[L, M]]) -> IntTensor[N, M]:
    y : IntTensor[N, M]
    y[i, j] += a[i, k] * b[k, l] * c[l, j]
    return y
"""
    assert "_t : IntTensor[N, L]" in print_function(factored(text).function("f"))
    a, b, c = (np.arange(9).reshape(3, 3) - k for k in (1, 4, 6))
    (found,) = Interpreter(factored(text)).call("f", a, b, c)
    np.testing.assert_array_equal(found, a @ b @ c)


def test_sums_into_a_scalar() -> None:
    text = """
def f(a : In[Tensor[N, K]], b : In[Tensor[K, L]], c : In[Tensor[L, N]]) -> float:
    s : float
    s += a[i, k] * b[k, l] * c[l, j]
    return s
"""
    printed = print_function(factored(text).function("f"))
    assert "s += a[i, k] * b[k, l] * c[l, j]" not in printed
    args = arguments(((3, 4), (4, 5), (5, 3)))
    (found,) = Interpreter(factored(text)).call("f", *(arg.numpy() for arg in args))
    a, b, c = args
    oracle.close(found, (a @ b @ c).sum().numpy(), 1e-12)


# What stays as it is, and why.
KEPT = {
    "nothing_gained": ("a : In[Tensor[N, R]], b : In[Tensor[M, R]], x : In[Tensor[N, M, K]]",
                       "K, R", "y[k, r] += x[i, j, k] * a[i, r] * b[j, r]"),
    "small": ("a : In[Tensor[N, 2]], b : In[Tensor[2, 2]], c : In[Tensor[2, 2]]", "N, 2",
              "y[i, j] += a[i, k] * b[k, l] * c[l, j]"),
    "one_index": ("a : In[Tensor[N, K]], b : In[Tensor[N, K]], c : In[Tensor[K]]", "N",
                  "y[i] += a[i, k] * b[i, k] * c[k]"),
    "other_reductions": (CHAIN, "N, M",
                         "y[i, j] = max(a[i, k] * b[k, l] * c[l, j] for k in K for l in L)"),
    "may_leave": ("a : In[Tensor[N, K]], b : In[Tensor[O, L]], c : In[Tensor[L, M]]", "N, M",
                  "y[i, j] += a[i, k] * b[k, l] * c[l, j]"),
    "may_leave_by_one": ("a : In[Tensor[N, K]], b : In[Tensor[K, O]], c : In[Tensor[L, M]]", "N, M",
                         "y[i, j] += a[i, k] * b[k, l + 1] * c[l, j]"),
    "gathers": (CHAIN + ", at : In[IntTensor[N]]", "N, M",
                "y[i, j] += a[at[i], k] * b[k, l] * c[l, j]"),
    "triangular": (SQUARE, "N, N",
                   "y[i, j] = sum(a[i, k] * a[k, l] * a[l, j] for k in N for l in range(i))"),
    "reads_itself": (SQUARE, "N, N", "y[i, j] += a[i, k] * a[k, l] * y[i, j]"),
    "divides_ints": (CHAIN, "N, M",
                     "y[i, j] += a[i, k] * b[k, l] * c[l, j] * (1 // (N - 1))"),
    "divides_toward_zero": (CHAIN, "N, M",
                            "y[i, j] += a[i, k] * b[k, l] * c[l, j] * (1 / (N - 1))"),
    "guarded": (CHAIN, "N, M",
                "y[i, j] += a[i, k] * b[k, l] * c[l, j] if i > j else 0.0"),
    "loop_range": (SQUARE, "N, N", """for t in range(N):
        y[i, j] = sum(a[i, k] * a[k, l] * a[l, j] for k in N for l in range(t))"""),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    text = program(*KEPT[name])
    assert factored(text).functions == parse(text).functions


CALLS = """
def g(a : In[Tensor[N, K]], b : In[Tensor[O, L]], c : In[Tensor[L, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] += a[i, k] * b[k, l] * c[l, j]
    return y
"""


@pytest.mark.full
def test_compiled() -> None:
    """Strides, sizes, float and double; and the message where a read leaves its tensor."""
    module = loma.compile(program(*SPLIT[0][1:4]) + CALLS)
    for n, k, l, m in ((3, 4, 5, 6), (1, 1, 1, 1), (3, 0, 5, 6), (3, 4, 0, 6), (0, 4, 5, 6)):  # noqa: E741
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
            a, b, c = (x.to(dtype) for x in arguments(((k, n), (k, 2 * l), (m, l))))
            args = [x.requires_grad_() for x in (a.t(), b[:, ::2], c.t())]
            found, right = module.f(*args), args[0] @ args[1] @ args[2]
            torch.testing.assert_close(found, right, rtol=tolerance, atol=tolerance)
            weight = torch.ones_like(right)
            for one, other in zip(
                torch.autograd.grad(found, args, weight),
                torch.autograd.grad(right, args, weight),
                strict=True,
            ):
                torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    with pytest.raises(ValueError, match=r"g: line 8: index 'k' runs over 4 values"):
        module.g(*arguments(((3, 4), (2, 5), (5, 2))))


def test_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    text = program(*SPLIT[0][1:4])
    assert "_t" in pipeline.stage_text(text, "optimised", "f")
    monkeypatch.setenv("LOMA_OPT", "-factor")
    assert "_t" not in pipeline.stage_text(text, "optimised", "f")


def test_the_backward_part_uses_the_steps() -> None:
    """Its products are those of ``(a @ b) @ c``: one for each argument, and one for the step."""
    text = pipeline.stage_text(program(*SPLIT[0][1:4]), "optimised", "f__backward")
    assert text.count("sum(") == 4
