"""The same training in two engines: loma's network and optimisers, or plain PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import nn

from capsnet_loma.config import CapsNetConfig
from capsnet_loma.parameters import CapsNetParameters
from capsnet_loma.training.settings import Engine, Optimiser, Settings


def network(engine: Engine, config: CapsNetConfig) -> CapsNetParameters:
    """loma's CapsNet or its PyTorch twin; from the same seed both start with the same weights."""
    if engine == "loma":
        from capsnet_loma.network import CapsNet

        return CapsNet(config)
    from capsnet_loma import reference

    return reference.CapsNet(config)


def optimiser(settings: Settings, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimiser of the settings: that of :mod:`loma.optim`, or torch's fused one."""
    s = settings
    options: dict[str, Any] = {"lr": s.learning_rate, "weight_decay": s.weight_decay}
    if s.optimiser == "sgd":
        options |= {"momentum": s.momentum, "nesterov": s.nesterov}
    if s.engine == "loma":
        from loma import optim

        return _named(optim, s.optimiser)(parameters, **options)
    return _named(torch.optim, s.optimiser)(parameters, fused=True, **options)


def _named(library: Any, name: Optimiser) -> Callable[..., torch.optim.Optimizer]:
    names = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}
    return cast(Callable[..., torch.optim.Optimizer], getattr(library, names[name]))
