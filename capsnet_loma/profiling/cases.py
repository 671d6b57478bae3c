"""What ``capsnet-loma compare`` compares: functions, shapes, and points where they are hard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from capsnet_loma.config import CapsNetConfig

Argument = Tensor | int
Maker = Callable[[torch.Generator], tuple[Argument, ...]]

SMALL_NETWORK = CapsNetConfig(
    image_size=14,
    conv_channels=6,
    conv_kernel=5,
    primary_types=3,
    primary_dim=4,
    primary_kernel=3,
    classes=4,
    digit_dim=5,
    decoder_hidden=(12, 9),
)


@dataclass(frozen=True, slots=True)
class FunctionCase:
    """Arguments of one layer. ``make`` gives float64 tensors (and ints), the same every time."""

    function: str
    point: str
    make: Maker


@dataclass(frozen=True, slots=True)
class NetworkCase:
    """The whole network with its loss. ``decode_longest``: without targets for the decoder."""

    point: str
    config: CapsNetConfig
    batch: int
    weight_scale: float = 1.0
    decode_longest: bool = False
    zero_images: bool = False
    function: str = "network"


def _normal(*shape: int, scale: float = 1.0) -> Callable[[torch.Generator], Tensor]:
    return lambda g: scale * torch.randn(shape, generator=g, dtype=torch.float64)


def _uniform(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda g: torch.rand(shape, generator=g, dtype=torch.float64)


def _one_hot(batch: int, classes: int) -> Callable[[torch.Generator], Tensor]:
    def make(generator: torch.Generator) -> Tensor:
        labels = torch.randint(classes, (batch,), generator=generator)
        return torch.nn.functional.one_hot(labels, classes).double()

    return make


def _all(*makers: Callable[[torch.Generator], Tensor] | int) -> Maker:
    return lambda g: tuple(m if isinstance(m, int) else m(g) for m in makers)


def _with_zero_rows(*shape: int) -> Callable[[torch.Generator], Tensor]:
    """Capsules [.., D] of which every other one is exactly zero."""

    def make(generator: torch.Generator) -> Tensor:
        capsules = torch.randn(shape, generator=generator, dtype=torch.float64)
        capsules.view(-1, shape[-1])[::2] = 0.0
        return capsules

    return make


def _at_the_margins(generator: torch.Generator) -> tuple[Argument, ...]:
    """Lengths exactly at m+ and m-, where the margin loss has its kinks, and around them."""
    lengths = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.9, 1.0]], dtype=torch.float64)
    targets = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    return lengths, targets


def function_cases() -> Iterator[FunctionCase]:
    """Every layer at several shapes and hard points."""
    for batch, c, size, f, k in ((3, 2, 9, 4, 3), (1, 1, 28, 16, 9), (2, 3, 6, 7, 5)):
        yield FunctionCase(
            "convolution",
            f"[{batch}, {c}, {size}, {size}], kernel {k}",
            _all(_normal(batch, c, size, size), _normal(f, c, k, k), _normal(f)),
        )
    for batch, c, size, f, k, dim, step in ((3, 4, 9, 6, 3, 3, 2), (1, 16, 20, 32, 9, 8, 2)):
        yield FunctionCase(
            "primary",
            f"[{batch}, {c}, {size}, {size}], stride {step}",
            _all(_normal(batch, c, size, size), _normal(f, c, k, k), _normal(f), dim, step),
        )
    yield FunctionCase(
        "primary",
        "[2, 3, 6, 5], stride 1",
        _all(_normal(2, 3, 6, 5), _normal(4, 3, 2, 3), _normal(4), 2, 1),
    )
    for shape in ((3, 7, 4), (1, 1152, 8), (2, 1, 1)):
        yield FunctionCase("squash", str(list(shape)), _all(_normal(*shape)))
    yield FunctionCase("squash", "zero capsules", _all(_with_zero_rows(3, 6, 4)))
    yield FunctionCase("squash", "tiny capsules, 1e-12", _all(_normal(3, 6, 4, scale=1e-12)))
    yield FunctionCase("squash", "huge capsules, 1e6", _all(_normal(3, 6, 4, scale=1e6)))
    for i, r, o, k, batch in ((4, 9, 5, 3, 3), (10, 72, 16, 8, 1), (1, 1, 1, 1, 2)):
        yield FunctionCase(
            "predictions",
            f"I={i} R={r} O={o} K={k}, batch {batch}",
            _all(_normal(i, r, o, k), _normal(batch, r, k)),
        )
    yield from _routing_cases()
    for over_inputs in (0, 1):
        yield FunctionCase(
            "digit_capsules",
            f"I=4 R=9 O=5 K=3, batch 3, softmax {over_inputs}",
            _all(_normal(4, 9, 5, 3, scale=0.3), _normal(3, 9, 3), 3, over_inputs),
        )
    yield FunctionCase(
        "digit_capsules", "one image", _all(_normal(10, 72, 16, 8), _normal(1, 72, 8), 3, 0)
    )
    for shape in ((3, 4, 5), (1, 10, 16)):
        yield FunctionCase("lengths", str(list(shape)), _all(_normal(*shape)))
    yield FunctionCase("lengths", "zero capsules", _all(_with_zero_rows(3, 4, 5)))
    for batch, i, o, h1, h2, p in ((3, 4, 5, 7, 6, 9), (1, 10, 16, 64, 32, 49)):
        yield FunctionCase(
            "decoder",
            f"[{batch}, {i}, {o}] -> [{batch}, {p}]",
            _all(
                _normal(batch, i, o),
                _one_hot(batch, i),
                *(_normal(h1, i * o, scale=0.3), _normal(h1)),
                *(_normal(h2, h1, scale=0.3), _normal(h2)),
                *(_normal(p, h2, scale=0.3), _normal(p)),
            ),
        )
    for batch, i in ((5, 4), (1, 10)):
        yield FunctionCase(
            "margin_loss", f"[{batch}, {i}]", _all(_uniform(batch, i), _one_hot(batch, i))
        )
    yield FunctionCase("margin_loss", "lengths at the margins", _at_the_margins)
    for batch, p in ((5, 6), (1, 784)):
        yield FunctionCase(
            "reconstruction_loss", f"[{batch}, {p}]", _all(_uniform(batch, p), _uniform(batch, p))
        )


def _routing_cases() -> Iterator[FunctionCase]:
    for over_inputs, name in ((0, "digits"), (1, "inputs")):
        for shape, iterations in (((3, 4, 9, 5), 3), ((1, 10, 72, 16), 3), ((2, 3, 5, 4), 1)):
            yield FunctionCase(
                "routing",
                f"{list(shape)}, {iterations} it., over {name}",
                _all(_normal(*shape, scale=0.3), iterations, over_inputs),
            )
        yield FunctionCase(
            "routing", f"zero capsules, over {name}", _all(_zero_predictions, 3, over_inputs)
        )
        # exp of these logits overflows in float32 (beyond 88) unless the largest is taken off
        yield FunctionCase(
            "routing",
            f"large logits, over {name}",
            _all(_normal(2, 3, 6, 8, scale=60.0), 3, over_inputs),
        )
    yield FunctionCase("routing", "[2, 3, 5, 4], 5 it.", _all(_normal(2, 3, 5, 4), 5, 0))


def _zero_predictions(generator: torch.Generator) -> Tensor:
    """Predictions whose first digit capsule is zero in every iteration."""
    predicted = torch.randn((2, 3, 5, 4), generator=generator, dtype=torch.float64)
    predicted[:, 0] = 0.0
    return predicted


def network_cases() -> Iterator[NetworkCase]:
    """The network with its loss: small in every option, then with the sizes of the paper."""
    small = SMALL_NETWORK
    inputs = CapsNetConfig(
        image_size=12,
        conv_channels=4,
        conv_kernel=3,
        primary_types=2,
        primary_dim=3,
        primary_kernel=3,
        classes=3,
        digit_dim=4,
        routing_softmax="inputs",
        routing_iterations=2,
        decoder_hidden=(8, 8),
    )
    yield NetworkCase("small, batch 3", small, 3)
    yield NetworkCase("small, batch 1", small, 1)
    yield NetworkCase("small, longest decoded", small, 3, decode_longest=True)
    yield NetworkCase("small, black images", small, 2, zero_images=True)
    yield NetworkCase("small, over inputs", inputs, 3)
    yield NetworkCase("small, weights x 4", small, 3, weight_scale=4.0)
    yield NetworkCase("MNIST sizes, batch 2", CapsNetConfig(), 2)
