"""Training steps of the whole CapsNet on a batch of 100: forward, backward and Adam's step.

Sizes of Sabour, Frosst and Hinton 2017, float32. Peers: eager PyTorch and torch.compile with
``torch.optim.Adam``, fused or foreach, and under torch.compile the optimiser's step compiled, too;
loma with ``loma.optim.Adam``. The data is one batch that lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from capsnet import TINY, Wrap, as_it_is, compiled, prepared
from forms import COMPILE, EAGER, KEEPING, LOMA, Case, Form, Settings, Step, keeping_allocators
from harness import main

from capsnet_loma import network, reference
from capsnet_loma.config import CapsNetConfig

Optimiser = Callable[[Any], torch.optim.Optimizer]
RATE = 1e-3
# The ways of torch.optim.Adam that are fast.
OPTIMISERS: dict[str, Optimiser] = {
    "fused": partial(torch.optim.Adam, lr=RATE, fused=True),
    "foreach": partial(torch.optim.Adam, lr=RATE, foreach=True),
}


def loma_adam(parameters: Any) -> torch.optim.Optimizer:
    from loma.optim import Adam

    return Adam(parameters, lr=RATE)


def training(
    config: CapsNetConfig,
    batch: int,
    twin: Any,
    optimiser: Optimiser,
    wrap: Wrap = as_it_is,
    layout: str = "",
    whole: bool = False,
) -> Step:
    """``whole``: the optimiser's step is wrapped, too."""
    net, images, targets = prepared(config, batch, twin, layout)
    adam = optimiser(net.parameters())

    def loss_of(images: Any, targets: Any) -> Any:
        return twin.capsule_loss(images, targets, *net(images, targets))

    loss_function = wrap(loss_of)
    update = wrap(adam.step) if whole else adam.step

    def step() -> Mapping[str, Any]:
        adam.zero_grad(set_to_none=True)
        loss = loss_function(images, targets)
        loss.backward()
        update()
        return {"loss": loss, **dict(net.named_parameters())}

    return step


def cases(settings: Settings) -> Sequence[Case]:
    config, batch = (TINY, 2) if settings.quick else (CapsNetConfig(), 100)
    layouts = ("",) if settings.quick else ("", "channels last")

    def form(
        group: str, words: Sequence[str], adam: str, wrap: Wrap, layout: str, whole: bool = False,
        **more: Any,
    ) -> Form:  # fmt: skip
        begin = partial(training, config, batch, reference, OPTIMISERS[adam], wrap, layout, whole)
        return Form(group, ", ".join(filter(None, [adam, *words])), begin, **more)

    forms = [form(EAGER, [at], adam, as_it_is, at) for at in layouts for adam in OPTIMISERS]
    forms += [
        form(KEEPING, [allocator, at], adam, as_it_is, at, environment=environment)
        for allocator, environment in keeping_allocators().items()
        for at in layouts
        for adam in OPTIMISERS
    ]
    forms += [
        form(COMPILE, [mode, at], "fused", compiled(mode, False), at)
        for mode in settings.compile_modes
        for at in layouts
    ]
    mode = settings.compile_modes[0]
    forms += [
        form(COMPILE, [mode, at, "optimiser compiled"], "foreach", compiled(mode, False), at, True)
        for at in layouts
    ]
    forms.append(Form(LOMA, "from Python", lambda: training(config, batch, network, loma_adam)))
    # The same bounds as for forward and backward alone.
    title = f"CapsNet, batch {batch}: training step with Adam"
    return [Case("capsnet training step", title, forms, {EAGER: 1.7, COMPILE: 1.35})]


if __name__ == "__main__":
    main(__doc__ or "", cases)
