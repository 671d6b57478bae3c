"""Loops whose counts only running tells, against hand-written PyTorch, in all modes; what is kept
of them, and what happens where ``while`` runs too often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sampled import one_in
import torch
from count_cases import COUNTS
from oracle import Program, check, check_case

import loma
from loma import errors, pipeline

BY_NAME = {case.name: case for case in COUNTS}
COMPILED = ("ragged_means", "ragged_rows", "segments", "square_roots", "nested_whiles", "stopped")

LIMITED = (
    BY_NAME["stopped"]
    .text.replace("stopped", "limited")
    .replace("max_iter := 100", "max_iter := 3")
)


@pytest.fixture(scope="module")
def interpreted() -> Program:
    return Program([case.text for case in COUNTS], first=())


@pytest.fixture(scope="module")
def compiled() -> Program:
    texts = [*(BY_NAME[name].text for name in COMPILED), LIMITED]
    return Program(texts, first=("nested_whiles", "limited"))


@pytest.fixture(scope="module")
def everything() -> Program:
    return Program([case.text for case in COUNTS], second=BY_NAME)


@pytest.mark.parametrize("name", one_in(2, BY_NAME))
def test_interpreted(interpreted: Program, name: str) -> None:
    check_case(interpreted, BY_NAME[name], libtorch=False)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(compiled: Program, name: str) -> None:
    check_case(compiled, BY_NAME[name], second=False)


@pytest.mark.full
@pytest.mark.parametrize("name", BY_NAME)
def test_derivatives_compiled(everything: Program, name: str) -> None:
    check_case(everything, BY_NAME[name])


def test_loops_that_never_run(interpreted: Program) -> None:
    x = torch.ones(3, dtype=torch.float64)
    given: dict[str, list[Any]] = {
        "segments": [x, torch.tensor([2, 2, 1])],
        "two_levels": [x, torch.zeros(2, dtype=torch.int64), torch.tensor([-1, 2, 0])],
        "nested_whiles": [x, torch.tensor([0, 2])],
        "conjugate_gradients": [torch.ones(0, 0, dtype=x.dtype), x[:0]],
        "collatz": [x, 1],
        "in_place_while": [x * 0.1],
    }
    for name, args in given.items():
        check(interpreted, name, args, BY_NAME[name].reference, libtorch=False)


# -------------------------------------------------------------------------- what is run, and kept


def test_the_forward_part_runs_a_while_once_and_saves_its_count() -> None:
    stage = pipeline.program(BY_NAME["square_roots"].text)
    (pair,) = stage.pairs
    forward, backward = (
        pipeline.stage_text(stage.module.source, "optimised", name)
        for name in (pair.forward, pair.backward)
    )
    assert forward.count("while") == 1
    assert "for _pass" not in forward
    assert "while" not in backward
    assert "_trips : int = _box_trips[()]" in backward
    assert "_tape_y : Tensor[_trips, N]" in backward


@pytest.mark.full
def test_a_tape_whose_length_is_made_again_under_a_condition_is_a_tensor() -> None:
    """No adjoint of ``tol`` is made, so the backward part runs only where that of ``a`` is wanted:
    the length of the tape gets its value there, and no kernel may hold the tape."""
    text = """
def f(a : In[Tensor[N]], tol : In[float]) -> Tensor[N]:
    y : Tensor[N]
    err : float = 1.0
    y[i] = a[i] + 1.0
    while (err > tol, max_iter := 50):
        y[i] = 0.5 * (y[i] + a[i] / y[i])
        err = max(abs(y[i] * y[i] - a[i]) for i in N)
    return y
"""
    a = torch.tensor([0.25, 1.0, 4.0], dtype=torch.float64, requires_grad=True)
    loma.compile(text, save="inputs").f(a, 1e-12).sum().backward()
    assert a.grad is not None
    torch.testing.assert_close(a.grad, 0.5 / torch.sqrt(a.detach()))


def test_of_what_a_while_overwrites_the_part_is_kept() -> None:
    text = BY_NAME["stopped"].text + "d_stopped = rev_diff(stopped)\n"
    found = pipeline.stage_text(text, "adjoint", "d_stopped")
    assert "_tape_h : Tensor[_trips]\n" in found
    assert "h_at[t_at] = _tape_h[_pass]" in found


def test_statements_in_a_while_are_fused() -> None:
    text = """
def f(x : In[Tensor[N, M]], n : In[int]) -> Tensor[N, M]:
    y = x
    while (n > 0, max_iter := 50):
        top : Tensor[N]
        top[i] = max(y[i, j] for j in M)
        y[i, j] = y[i, j] - top[i]
        n = n / 2
    return y
"""
    found = pipeline.stage_text(text, "kernels", "f")
    assert "    while (n > 0, max_iter := 50):\n        parallel i in range(N):" in found


def test_a_while_on_ints_alone_is_not_run_backwards() -> None:
    text = """
def f(x : In[Tensor[N]], n : In[int]) -> float:
    k : int
    while (k * k < n, max_iter := 50):
        k += 1
    return x[k] * x[k]

d_f = rev_diff(f)
"""
    found = pipeline.stage_text(text, "adjoint", "d_f")
    assert found.count("while") == 1
    assert "_count" not in found


# ------------------------------------------------------------------------------------- max_iter


def test_passing_max_iter_names_the_loop_and_its_line(compiled: Program) -> None:
    run, adjoint = compiled.compiled("limited"), compiled.compiled("d_limited")
    x = torch.ones(4, requires_grad=True)
    run(x, 9.0).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor([4.0, 3.0, 3.4, 2.4]))
    x = torch.ones(5, requires_grad=True)
    line = compiled.function("limited").span.line + 4
    calls: list[Callable[[], Any]] = [
        lambda: run(x.detach(), 9.0),
        lambda: run(x, 9.0),
        lambda: adjoint(x.detach(), 9.0, x.detach()),
    ]
    for call in calls:
        with pytest.raises(
            RuntimeError, match=r"^limited: line \d+: the while loop passed its max_"
        ):
            call()
    with pytest.raises(RuntimeError, match=f"^limited: line {line}: the loop runs more than max_"):
        compiled.value("limited", [x.detach(), 9.0])


# ------------------------------------------------------------------------------ what is refused


def test_a_state_of_unknown_rank_is_refused_with_the_line_of_its_loop() -> None:
    text = """
def f(x : In[Tensor], c : In[float]) -> Tensor:
    y = x
    while (c < 1.0, max_iter := 7):
        y = tanh(y)
        c = c * 2.0
    return y
"""
    with pytest.raises(errors.NotDifferentiable) as caught:
        pipeline.program(text, "f.loma")
    assert str(caught.value).startswith(
        "f.loma:4:5: error: 'y' is overwritten in a loop and its rank is not known"
    )
    assert caught.value.hint == "declare it with its sizes: y : Tensor[N, ...]"
