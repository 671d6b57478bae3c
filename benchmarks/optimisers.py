"""One step of an optimiser: loma.optim beside torch.optim at its fastest.

The parameters of the default CapsNet (8.2 million, float32), with the gradients of a batch; and
1,000 parameters of 20 elements each, where a step is the overhead of its calls. PyTorch's peers are
tried as ``fused``, ``foreach`` and one parameter at a time, and under torch.compile. All start from
the same numbers, and have to be at the same place after the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from capsnet import TINY
from forms import COMPILE, COMPILE_OPTIONS, EAGER, LOMA, Case, Form, Settings, Step
from harness import main
from torch import Tensor

import loma
from capsnet_loma import reference
from capsnet_loma.config import CapsNetConfig

SMALL, COUNT = (5, 4), 1000
BATCH = 2
OPTIMISERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("Adam", {"lr": 1e-3}),
    "adamw": ("AdamW", {"lr": 1e-3}),
    "momentum": ("SGD", {"lr": 1e-3, "momentum": 0.9}),
}
VARIANTS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "one by one": {"foreach": False, "fused": False},
}

Parameters = Callable[[], list[Tensor]]


def of_capsnet(quick: bool) -> Parameters:
    """The network's parameters, with the gradients of a small batch."""

    def make() -> list[Tensor]:
        config = TINY if quick else CapsNetConfig()
        torch.manual_seed(0)
        network = reference.CapsNet(config)
        shape = (BATCH, config.image_channels, config.image_size, config.image_size)
        images, targets = torch.rand(shape), torch.eye(config.classes)[:BATCH]
        reference.capsule_loss(images, targets, *network(images, targets)).backward()
        return list(network.parameters())

    return make


def many(count: int) -> Parameters:
    def make() -> list[Tensor]:
        params = [torch.randn(SMALL, requires_grad=True) for _ in range(count)]
        for param in params:
            param.grad = torch.randn(SMALL)
        return params

    return make


def stepping(parameters: Parameters, make: Callable[[list[Tensor]], Any], **options: Any) -> Step:
    params = parameters()
    optimizer = make(params)
    step = torch.compile(optimizer.step, **options) if options else optimizer.step
    first = True

    def run() -> Mapping[str, Any]:
        nonlocal first
        step()
        if not first:
            return {}
        first = False
        return {f"parameter {k}": param.detach() for k, param in enumerate(params[:20])}

    return run


def cases(settings: Settings) -> Sequence[Case]:
    found = []
    sets = {
        "capsnet": ("CapsNet's parameters, 8.2 million", of_capsnet(settings.quick)),
        "many": (
            f"{COUNT:,} parameters of 20 elements",
            many(3 if settings.quick else COUNT),
        ),
    }
    names = ("momentum",) if settings.quick else OPTIMISERS
    for name in names:
        cls, arguments = OPTIMISERS[name]
        for key, (title, parameters) in sets.items():
            found.append(_case(settings, name, cls, arguments, key, title, parameters))
    return found


def _case(
    settings: Settings,
    name: str,
    cls: str,
    arguments: dict[str, Any],
    key: str,
    title: str,
    parameters: Parameters,
) -> Case:
    def of(module: Any, **more: Any) -> Callable[[list[Tensor]], Any]:
        return lambda params: getattr(module, cls)(params, **arguments, **more)

    forms = [
        Form(EAGER, variant, partial(stepping, parameters, of(torch.optim, **more)))
        for variant, more in VARIANTS.items()
    ]
    # Compiling a step over a thousand parameters takes minutes; nobody would.
    if key == "capsnet":
        forms += [
            Form(
                COMPILE,
                mode,
                partial(
                    stepping,
                    parameters,
                    of(torch.optim, foreach=True),
                    **(COMPILE_OPTIONS[mode] or {"mode": "default"}),
                ),
            )
            for mode in settings.compile_modes
        ]
    forms.append(Form(LOMA, f"loma.optim.{cls}", lambda: stepping(parameters, of(loma.optim))))
    goals = {group: 1.0 for group in dict.fromkeys(form.group for form in forms) if group != LOMA}
    return Case(f"{name} {key}", f"{cls} step, {title}", forms, goals)


if __name__ == "__main__":
    main(__doc__ or "", cases)
