"""What the optimisers share: their programs, which parameters they take, and where state lies."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from loma import compiler

if TYPE_CHECKING:
    from loma.functions import LomaModule

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@functools.cache
def program(name: str) -> LomaModule:
    """The compiled ``name.loma`` of this folder, one for all optimisers of the process."""
    # Every operation rounds by itself: a step does not depend on how elements fall into vectors.
    return compiler.compile(Path(__file__).with_name(f"{name}.loma"), contract=False)


class Optimizer(torch.optim.Optimizer):
    """An optimiser whose :meth:`update` steps the parameters of one group.

    Parameters are dense tensors, on CPUs or with CUDA, of float32, float64, bfloat16 or float16
    (the last two are computed in float32 and rounded at the end of a step). Others are refused when
    they are added, with TypeError or ValueError.
    """

    # Calls update, into which torch.compile does not trace: of calls of compiled kernels there is
    # nothing to compile. Made with the first optimiser: it imports torch.compile, as torch.optim
    # does then, too.
    _untraced: ClassVar[Callable[[Optimizer, dict[str, Any]], None]]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, or of what was unpickled, maybe by a process that has made no optimiser."""
        super().__setstate__(state)
        _make_untraced()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch.optim's; the group is not added where a parameter is refused."""
        super().add_param_group(param_group)
        _make_untraced()
        try:
            for number, param in enumerate(self.param_groups[-1]["params"]):
                self._check(param, number)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def _check(self, param: Tensor, number: int) -> None:
        name = f"{type(self).__name__}: parameter {number} of group {len(self.param_groups) - 1}"
        if param.dtype not in DTYPES:
            raise TypeError(
                f"{name} is {param.dtype}; loma's optimisers take float32, float64, bfloat16 and "
                "float16"
            )
        if param.device.type not in ("cpu", "cuda") or param.layout is not torch.strided:
            kind = f"{param.layout} on {param.device}"
            raise ValueError(
                f"{name} is {kind}; loma's optimisers take dense tensors on CPUs and with CUDA, "
                f"torch.optim.{type(self).__name__} takes others"
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step. ``closure``: computes the loss and the gradients again; its value is
        returned. Parameters without a gradient stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            Optimizer._untraced(self, group)
        return loss

    def update(self, group: dict[str, Any]) -> None:
        """Steps the parameters of a group that have a gradient."""
        raise NotImplementedError

    def with_gradients(self, group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters of a group that have a gradient, and these, each of which is looked up
        once. RuntimeError where one is sparse."""
        params, grads = [], []
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            if grad.layout is not torch.strided:
                raise RuntimeError(
                    f"{type(self).__name__}: the gradient of a parameter of shape "
                    f"{tuple(param.shape)} is sparse, and loma's optimisers take dense gradients: "
                    "use an embedding with sparse=False, or torch.optim.SparseAdam"
                )
            params.append(param)
            grads.append(grad)
        return params, grads


def _make_untraced() -> None:
    if not hasattr(Optimizer, "_untraced"):
        update = torch.compiler.disable(lambda optimizer, group: optimizer.update(group))
        Optimizer._untraced = staticmethod(update)


def zeros_like(param: Tensor, program: LomaModule) -> Tensor:
    """State for a parameter: zeros with its shape, strides and dtype, in memory of loma's pool,
    which is on huge pages where there are any."""
    assert program.__native__ is not None
    state: Tensor = program.__native__.zeros_like(param)
    return state


def check_learning_rate(lr: float | Tensor) -> None:
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not lr >= 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")
