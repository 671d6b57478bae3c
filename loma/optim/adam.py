"""Adam and AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from loma.optim.base import Optimizer, check_learning_rate, program, zeros_like

if TYPE_CHECKING:
    from loma.functions import LomaModule


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, arxiv.org/abs/1412.6980), as :class:`torch.optim.Adam`.

    ``params``: tensors, groups of them (dicts), or pairs of names and tensors. ``state[p]`` has
    ``exp_avg`` and ``exp_avg_sq``, running averages of the gradient and of its square, which keep
    ``betas`` of themselves in a step, and ``step``, a tensor with the number of steps. With
    ``amsgrad``, ``max_exp_avg_sq`` is the largest ``exp_avg_sq`` so far (Reddi et al. 2018,
    arxiv.org/abs/1904.09237). ``weight_decay`` times the parameter is added to the gradient, or,
    ``decoupled_weight_decay``, shrinks the parameter as in :class:`AdamW`; ``maximize`` turns the
    gradient's sign. ``lr`` may be a tensor of one element. ``capturable``: a step may be captured
    as a CUDA graph; ``step`` lies beside its parameter then, and so may ``lr``, which the graph
    reads each time. ValueError for other values, as in torch; RuntimeError where a step is captured
    without it.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        capturable: bool = False,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
    ) -> None:
        check_learning_rate(lr)
        if not eps >= 0.0:
            raise ValueError(f"Invalid epsilon value: {eps}")
        for number, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {number}: {beta}")
        if not weight_decay >= 0.0:
            raise ValueError(f"Invalid weight_decay value: {weight_decay}")
        program("adam")
        beta1, beta2 = betas
        defaults = {
            "lr": lr,
            "betas": (float(beta1), float(beta2)),
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "capturable": capturable,
            "maximize": maximize,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for option in ("amsgrad", "capturable", "maximize", "decoupled_weight_decay"):
                group.setdefault(option, False)
            for param in group["params"]:
                own = self.state.get(param)
                if own and not isinstance(own["step"], Tensor):  # as old versions of torch kept it
                    own["step"] = torch.tensor(float(own["step"]), dtype=_step_dtype())
                elif own:  # some of torch's optimisers have a GPU count, which would be waited for;
                    # others give out the very tensor that they count in
                    place = _place_of_step(group, param)
                    own["step"] = own["step"].to(place, copy=True)

    def update(self, group: dict[str, Any]) -> None:
        params, grads = self.with_gradients(group)
        if not params:
            return
        self._check_capture(group, params)
        functions, amsgrad = program("adam"), group["amsgrad"]
        names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if amsgrad else [])]
        states = [self.state[param] for param in params]
        for param, state in zip(params, states, strict=True):
            if len(state) <= len(names):  # of its first step, or of one without amsgrad
                if "step" not in state:
                    place = _place_of_step(group, param)
                    state["step"] = torch.zeros((), dtype=_step_dtype(), device=place)
                for name in names:
                    if name not in state:
                        state[name] = zeros_like(param, functions)
        steps = [state["step"] for state in states]
        function = functions.amsgrad if amsgrad else functions.adam
        lists = [params, *([state[name] for state in states] for name in names)]
        lists.append(grads)
        if group["capturable"]:
            for positions in _by_device(steps):
                own = [[one[k] for k in positions] for one in lists]
                corrections = _corrected(functions, group, [steps[k] for k in positions])
                function.each(*own, *_numbers(group, *corrections))
            return
        functions.count.each(steps)
        for step, chosen in _by_step(steps):
            own = lists if chosen is None else [[one[k] for k in chosen] for one in lists]
            function.each(*own, *_numbers(group, *_corrections(group, step)))

    def _check_capture(self, group: dict[str, Any], params: list[Tensor]) -> None:
        if group["capturable"] or not any(param.is_cuda for param in params):
            return
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{type(self).__name__}: this step is captured as a CUDA graph, which would take"
                " the step of this number each time; make the optimiser with capturable=True"
            )


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arxiv.org/abs/1711.05101), as
    :class:`torch.optim.AdamW`: in a step a parameter first shrinks to 1 - lr * ``weight_decay`` of
    itself. Everything else is as in :class:`Adam`."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        *,
        capturable: bool = False,
        maximize: bool = False,
    ) -> None:
        options = {
            "capturable": capturable, "maximize": maximize, "decoupled_weight_decay": True,
        }  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True


def _step_dtype() -> torch.dtype:
    """That of ``step``, as torch.optim keeps it."""
    return torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32


def _place_of_step(group: dict[str, Any], param: Tensor) -> torch.device:
    return param.device if group["capturable"] else torch.device("cpu")


def _numbers(group: dict[str, Any], shrink: Any, step: Any, scale: Any) -> tuple[Any, ...]:
    """The numbers of adam.loma."""
    beta1, beta2 = map(float, group["betas"])
    return (
        -1.0 if group["maximize"] else 1.0,
        0.0 if group["decoupled_weight_decay"] else float(group["weight_decay"]),
        shrink,
        1.0 - beta1,
        beta2,
        1.0 - beta2,
        step,
        scale,
        float(group["eps"]),
    )


def _corrections(group: dict[str, Any], step: float) -> tuple[float, float, float]:
    """Those that depend on the number of the step or on its size, computed in double."""
    beta1, beta2 = map(float, group["betas"])
    lr = float(group["lr"])
    shrink = 1.0 - lr * _decoupled_decay(group)
    return shrink, lr / (1.0 - beta1**step), (1.0 - beta2**step) ** -0.5


def _corrected(
    functions: LomaModule, group: dict[str, Any], steps: list[Tensor]
) -> tuple[Any, ...]:
    """The same of the next step, for each position, where the steps are; nothing is waited for."""
    made = torch.empty((2, len(steps)), dtype=steps[0].dtype, device=steps[0].device)
    step, scale = (list(row.unbind()) for row in made)
    logs = (math.log(beta) if beta > 0.0 else -math.inf for beta in map(float, group["betas"]))
    lr, decay = group["lr"], _decoupled_decay(group)
    shrink = 1.0 - lr * decay if decay else 1.0
    of_all = [[one] * len(steps) if isinstance(one, Tensor) else one for one in (lr, shrink)]
    functions.corrected.each(steps, step, scale, of_all[0], *logs)
    return of_all[1], step, scale


def _decoupled_decay(group: dict[str, Any]) -> float:
    return float(group["weight_decay"]) if group["decoupled_weight_decay"] else 0.0


def _by_device(steps: list[Tensor]) -> Iterator[list[int]]:
    """The positions on each device, and of each dtype."""
    kinds = [(step.device, step.dtype) for step in steps]
    for kind in dict.fromkeys(kinds):
        yield [k for k, own in enumerate(kinds) if own == kind]


def _by_step(steps: list[Tensor]) -> Iterator[tuple[float, list[int] | None]]:
    """The numbers of steps, and the positions of those that have each; None for all."""
    values = torch.stack(steps).tolist() if len(steps) > 1 else [steps[0].item()]
    if values.count(values[0]) == len(values):
        yield values[0], None
        return
    for value in dict.fromkeys(values):
        yield value, [k for k, own in enumerate(values) if own == value]
