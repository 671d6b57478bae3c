"""The whole CapsNet on one batch of 100: a training step's forward and backward, and inference.

Sizes of Sabour, Frosst and Hinton 2017, float32. Peers: eager PyTorch, with the allocator as it is
and told to keep its memory; torch.compile of the whole network; loma from Python; and, for forward
and backward, the generated C++ in a program without Python. Of PyTorch, images in both memory
layouts are tried, and for inference freezing, which lets torch.compile rearrange the weights once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from forms import (
    COMPILE, COMPILE_OPTIONS, EAGER, KEEPING, LOMA, Case, Form, Settings, Step, keeping_allocators,
)  # fmt: skip
from harness import main

from capsnet_loma import network, reference
from capsnet_loma.config import CapsNetConfig
from capsnet_loma.profiling.profile import make_inputs

NATIVE = "loma, C++ program"
TINY = CapsNetConfig(
    image_size=18, conv_channels=4, primary_types=2, primary_dim=2, classes=3, digit_dim=4,
    decoder_hidden=(5, 6),
)  # fmt: skip


def prepared(
    config: CapsNetConfig, batch: int, twin: Any, layout: str = ""
) -> tuple[Any, Any, Any]:
    """A network, images and targets: the same numbers in every process.

    With a ``layout`` network and images are in channels last.
    """
    tensors = make_inputs(config, batch)
    images, targets = tensors.pop("images"), tensors.pop("targets")
    net = twin.CapsNet(config)
    net.load_state_dict(tensors)
    if layout:
        net, images = channels_last(net), channels_last(images)
    return net, images, targets


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def training(
    config: CapsNetConfig, batch: int, twin: Any, wrap: Wrap = as_it_is, layout: str = ""
) -> Step:
    net, images, targets = prepared(config, batch, twin, layout)

    def loss_of(images: Any, targets: Any) -> Any:
        return twin.capsule_loss(images, targets, *net(images, targets))

    loss_function = wrap(loss_of)

    def step() -> Mapping[str, Any]:
        net.zero_grad(set_to_none=True)
        loss = loss_function(images, targets)
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in net.named_parameters()}
        return {"loss": loss, **gradients}

    return step


def inference(
    config: CapsNetConfig, batch: int, twin: Any, wrap: Wrap = as_it_is, layout: str = ""
) -> Step:
    """Capsules, and the image of the longest."""
    net, images, _ = prepared(config, batch, twin, layout)
    function = wrap(net.eval())

    def step() -> Mapping[str, Any]:
        with torch.no_grad():
            capsules, reconstruction = function(images)
        return {"capsules": capsules, "reconstruction": reconstruction}

    return step


def channels_last(value: Any) -> Any:
    return value.to(memory_format=torch.channels_last)


def compiled(mode: str, freezing: bool) -> Wrap:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        if freezing:
            import torch._inductor.config as inductor

            inductor.freezing = True
        return torch.compile(function, **COMPILE_OPTIONS[mode])

    return wrap


def native(config: CapsNetConfig, batch: int, threads: int) -> Callable[[Path], tuple[str, ...]]:
    """The command of the C++ program, which reads the inputs from a file."""

    def command(folder: Path) -> tuple[str, ...]:
        from capsnet_loma.native_program import build
        from capsnet_loma.profiling.processes import native_version

        inputs = folder / "inputs"
        torch.save(make_inputs(config, batch), inputs)
        return native_version(inputs, config, threads, build(folder)).command

    return command


def cases(settings: Settings) -> Sequence[Case]:
    config, batch = (TINY, 2) if settings.quick else (CapsNetConfig(), 100)
    layouts = ("",) if settings.quick else ("", "channels last")

    def forms(make: Callable[..., Step], freezing: Sequence[bool]) -> list[Form]:
        def form(group: str, words: Sequence[str], wrap: Wrap, layout: str, **more: Any) -> Form:
            begin = partial(make, config, batch, reference, wrap, layout)
            return Form(group, ", ".join(filter(None, words)) or "reference", begin, **more)

        out = [form(EAGER, [layout], as_it_is, layout) for layout in layouts]
        out += [
            form(KEEPING, [allocator, layout], as_it_is, layout, environment=environment)
            for allocator, environment in keeping_allocators().items()
            for layout in layouts
        ]
        out += [
            form(COMPILE, [mode, layout, "freezing" * frozen], compiled(mode, frozen), layout)
            for mode in settings.compile_modes
            for layout in layouts
            for frozen in freezing
        ]
        return [*out, Form(LOMA, "from Python", lambda: make(config, batch, network))]

    step = forms(training, [False])
    step.append(Form(NATIVE, "no Python", command=native(config, batch, settings.threads)))
    return [
        Case(
            "capsnet forward + backward", f"CapsNet, batch {batch}: forward + backward", step,
            {EAGER: 1.7, COMPILE: 1.35},
        ),
        Case(
            "capsnet inference", f"CapsNet, batch {batch}: inference",
            forms(inference, [False] if settings.quick else [False, True]),
            {EAGER: 1.3, COMPILE: 1.15},
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main(__doc__ or "", cases)
