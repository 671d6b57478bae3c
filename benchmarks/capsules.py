"""The digit capsules of CapsNet: predictions and routing in one function, against PyTorch.

10 digit capsules of 16 components from 1152 input capsules of 8, 3 routing iterations, batch 100,
float32: without gradients, and forward and backward. The PyTorch peers are tried in several forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from forms import (
    COMPILE, EAGER, LOMA, Case, Form, Settings, Step, backward_step, forward_step, leaf,
    torch_forms,
)  # fmt: skip
from harness import main
from torch import Tensor

from capsnet_loma import layers, reference

ITERATIONS = 3


# -------------------------------------------------------------------------- the same in PyTorch


def einsum(weight: Tensor, x: Tensor) -> Tensor:
    """As :mod:`capsnet_loma.reference` has it."""
    return reference.routing(reference.predictions(weight, x), ITERATIONS, 0)


def einsum_in_place(weight: Tensor, x: Tensor) -> Tensor:
    """The predictions left in the order in which einsum gives them."""
    return reference.routing(torch.einsum("irok,brk->biro", weight, x), ITERATIONS, 0)


def matmul(weight: Tensor, x: Tensor) -> Tensor:
    """Sums over input capsules and over components as batched matrix products."""
    u = reference.predictions(weight, x)

    def total(coupling: Tensor) -> Tensor:
        return (coupling.unsqueeze(2) @ u).squeeze(2)

    def agreement(v: Tensor) -> Tensor:
        return (u @ v.unsqueeze(3)).squeeze(3)

    return _routing(u, total, agreement)


def broadcast(weight: Tensor, x: Tensor) -> Tensor:
    """Products by broadcasting, then sums, which a compiler can fuse."""
    u = (weight * x[:, None, :, None, :]).sum(-1)

    def total(coupling: Tensor) -> Tensor:
        return (coupling.unsqueeze(3) * u).sum(2)

    def agreement(v: Tensor) -> Tensor:
        return (u * v.unsqueeze(2)).sum(3)

    return _routing(u, total, agreement)


def einsum_broadcast(weight: Tensor, x: Tensor) -> Tensor:
    """The predictions as a matrix product, the routing by broadcasting."""
    u = reference.predictions(weight, x)
    return _routing(u, lambda c: (c.unsqueeze(3) * u).sum(2), lambda v: (u * v.unsqueeze(2)).sum(3))


def _routing(
    u: Tensor, total: Callable[[Tensor], Tensor], agreement: Callable[[Tensor], Tensor]
) -> Tensor:
    logits = u.new_zeros(u.shape[:3])
    v = u.new_zeros(())
    for iteration in range(ITERATIONS):
        v = reference.squash(total(logits.softmax(dim=1)))
        if iteration + 1 < ITERATIONS:
            logits = logits + agreement(v)
    return v


FORMS: dict[str, Callable[..., Tensor]] = {
    "einsum": einsum,
    "einsum in place": einsum_in_place,
    "matmul": matmul,
    "broadcast": broadcast,
    "einsum, broadcast": einsum_broadcast,
}
EAGER_FORMS = ("einsum", "einsum in place", "matmul")  # broadcasting makes 590 MB of products


def cases(settings: Settings) -> Sequence[Case]:
    batch, digits, inputs, out, components = (
        (2, 3, 5, 4, 2) if settings.quick else (100, 10, 1152, 16, 8)
    )

    def case(key: str, begin: Callable[..., Step], goals: dict[str, float]) -> Case:
        def make(function: Callable[..., Any], *more: int) -> Step:
            weight = leaf(digits, inputs, out, components)
            return begin(function, weight, leaf(batch, inputs, components), *more)

        forms = torch_forms(
            {"einsum": einsum} if settings.quick else FORMS,
            make,
            eager=None if settings.quick else EAGER_FORMS,
            modes=settings.compile_modes,
        )
        mine = Form(
            LOMA,
            "digit_capsules.loma",
            lambda: make(layers.module("digit_capsules").digit_capsules, ITERATIONS, 0),
        )
        sizes = f"{digits}x{inputs}x{out}x{components}, {ITERATIONS} iterations"
        return Case(
            f"routing {key}", f"routing, batch {batch}, {sizes}: {key}", [*forms, mine], goals
        )

    return [
        case("forward", forward_step, {EAGER: 5.0, COMPILE: 2.5}),
        case("forward + backward", backward_step, {EAGER: 5.0, COMPILE: 2.2}),
    ]


if __name__ == "__main__":
    main(__doc__ or "", cases)
