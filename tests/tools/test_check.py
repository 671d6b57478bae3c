"""loma.tools.check: it passes right gradients, catches wrong ones, and leaves the arguments
alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from loma.tools.check import GradientError, check_gradients


def affine(x: Tensor, w: Tensor, b: float = 0.0) -> Tensor:
    return x @ w + b


class WrongSine(torch.autograd.Function):
    """sin with a derivative that is off in its last element only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        result = grad * torch.cos(x)
        result.view(-1)[-1] *= 1.1
        return result


def wrong_sine(x: Tensor) -> Tensor:
    return WrongSine.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def test_right_gradients_pass_and_every_argument_is_reported() -> None:
    report = check_gradients(affine, (torch.randn(3, 4), torch.randn(4, 2), 0.5))
    assert report.ok
    assert [argument.name for argument in report.arguments] == ["x", "w", "b"]
    assert [argument.shape for argument in report.arguments] == [(3, 4), (4, 2), ()]
    assert [argument.checked for argument in report.arguments] == [12, 8, 1]
    assert all(argument.rel_error < 1e-8 for argument in report.arguments)
    assert report.dot_error < 1e-8
    assert str(report).startswith("affine: gradients agree with central differences")


def test_arguments_by_name() -> None:
    report = check_gradients(affine, {"w": torch.randn(4, 2), "x": torch.randn(3, 4)})
    assert [argument.name for argument in report.arguments] == ["w", "x"]


def test_a_wrong_gradient_names_argument_and_worst_element() -> None:
    with pytest.raises(GradientError, match=r"wrong gradient of x .*\n.*worst x\[1, 2\]") as caught:
        check_gradients(wrong_sine, (torch.randn(2, 3),))
    assert not caught.value.report.ok


def test_a_wrong_gradient_can_be_returned_instead() -> None:
    report = check_gradients(wrong_sine, (torch.randn(2, 3),), raise_on_error=False)
    assert not report.ok
    assert report.arguments[0].worst == (1, 2)


def test_the_dot_product_reaches_elements_that_were_not_drawn() -> None:
    x = torch.randn(300)
    draws = [
        check_gradients(wrong_sine, (x,), max_elements=2, seed=seed, raise_on_error=False)
        for seed in range(3)
    ]
    assert all(report.arguments[0].checked == 2 for report in draws)
    assert all(not report.ok for report in draws)


def test_nan_is_an_error() -> None:
    def root(x: Tensor) -> Tensor:
        return torch.where(x > 0, x.sqrt(), torch.zeros(()))

    report = check_gradients(root, (torch.tensor([1.0, -1.0]),), raise_on_error=False)
    assert not report.ok
    assert report.arguments[0].worst == (1,)


def test_arguments_are_left_alone_and_integers_passed_on() -> None:
    x = torch.randn(3, requires_grad=True)
    rows = torch.tensor([0, 2])

    def pick(x: Tensor, rows: Tensor, times: int) -> Tensor:
        assert rows.dtype == torch.int64
        assert times == 2
        picked = x[rows] * times
        x.mul_(0.0)
        return picked

    before = x.detach().clone()
    report = check_gradients(pick, (x, rows, 2), raise_on_error=False)
    assert [argument.name for argument in report.arguments] == ["x"]
    assert torch.equal(x, before)
    assert x.grad is None
    assert x.dtype == torch.float32


def test_several_results_and_results_without_gradient() -> None:
    def both(x: Tensor) -> tuple[Tensor, ...]:
        return x.sin(), x.argmax(), x.detach() * 0.0 + 1.0, x.exp()

    assert check_gradients(both, (torch.randn(4),)).ok


def test_written_arguments_count_as_outputs() -> None:
    def accumulate(x: Tensor, out: Tensor) -> None:
        out += x * x

    report = check_gradients(accumulate, (torch.randn(3), torch.randn(3)))
    assert [argument.name for argument in report.arguments] == ["x", "out"]


def test_empty_tensors_are_no_error_beside_others() -> None:
    assert check_gradients(lambda x, y: x.sum() + y, (torch.zeros(0, 3), torch.randn(2))).ok


def test_nothing_to_check() -> None:
    with pytest.raises(ValueError, match="no float argument to check the gradient of"):
        check_gradients(affine, (torch.arange(3), 2))
    with pytest.raises(ValueError, match="no float tensor comes back"):
        check_gradients(torch.argmax, (torch.randn(3),))
