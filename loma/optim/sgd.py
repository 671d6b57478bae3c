"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from loma.optim.base import Optimizer, check_learning_rate, program, zeros_like


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, as :class:`torch.optim.SGD`.

    ``params``: tensors, groups of them (dicts), or pairs of names and tensors. With a momentum,
    ``state[p]["momentum_buffer"]`` is the running sum b = momentum * b + (1 - dampening) * g, which
    starts as the first gradient; a step goes along -lr * b, or, ``nesterov``, along -lr * (g +
    momentum * b) (Sutskever et al. 2013, proceedings.mlr.press/v28/sutskever13). ``weight_decay``
    times the parameter is added to the gradient g; ``maximize`` turns its sign. ``lr`` may be a
    tensor of one element. ValueError for other values, as in torch.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        check_learning_rate(lr)
        if not momentum >= 0.0:
            raise ValueError(f"Invalid momentum value: {momentum}")
        if not weight_decay >= 0.0:
            raise ValueError(f"Invalid weight_decay value: {weight_decay}")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        program("sgd")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("nesterov", False)
            group.setdefault("maximize", False)

    def update(self, group: dict[str, Any]) -> None:
        momentum, (params, grads) = float(group["momentum"]), self.with_gradients(group)
        if momentum == 0.0:
            program("sgd").sgd.each(params, grads, *self._numbers(group))
            return
        buffers = [self.state[param].get("momentum_buffer") for param in params]
        first = [k for k, buffer in enumerate(buffers) if buffer is None]
        for k in first:
            buffers[k] = zeros_like(params[k], program("sgd"))
            self.state[params[k]]["momentum_buffer"] = buffers[k]
        lists: Sequence[list[Tensor]] = (params, buffers, grads)
        if first:
            new = set(first)
            later = [k for k in range(len(params)) if k not in new]
            self._step(group, [[one[k] for k in first] for one in lists], 0.0, 1.0)
            lists = [[one[k] for k in later] for one in lists]
        self._step(group, lists, momentum, 1.0 - float(group["dampening"]))

    def _step(
        self, group: dict[str, Any], lists: Sequence[list[Tensor]], keep: float, take: float
    ) -> None:
        """One step with momentum, of parameters, buffers and gradients."""
        if not lists[0]:
            return
        functions, numbers = program("sgd"), self._numbers(group)
        if group["nesterov"]:
            functions.nesterov.each(*lists, *numbers, keep, take, float(group["momentum"]))
        else:
            functions.momentum.each(*lists, *numbers, keep, take)

    def _numbers(self, group: dict[str, Any]) -> tuple[float, float, float]:
        sign = -1.0 if group["maximize"] else 1.0
        return sign, float(group["lr"]), float(group["weight_decay"])
