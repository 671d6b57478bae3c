"""CapsNet's layers one by one, and a per-pixel 5x5 convolution: forward and backward.

Float32, the network's own sizes. The PyTorch peers of the per-pixel convolution are tried in
several forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from forms import (
    COMPILE, EAGER, LOMA, Case, Form, Settings, Step, backward_step, leaf, torch_forms,
)  # fmt: skip
from harness import main
from torch import Tensor

import loma
from capsnet_loma import layers, reference

PER_PIXEL = """
def per_pixel(X : In[Tensor[B, C, H, W]], K : In[Tensor[5, 5, B, H, W]]) -> Tensor[B, C, H, W]:
    Z : Tensor[B, C, H, W]
    Z[b, c, h, w] += zero_pad(X[b, c, h + p - 2, w + q - 2]) * K[p, q, b, h, w]
    return Z
"""

# -------------------------------------------------- every pixel has a 5x5 filter of its own


def _windows(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (2, 2, 2, 2)).unfold(2, 5, 1).unfold(3, 5, 1)


def windows_einsum(x: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bchwpq,pqbhw->bchw", _windows(x), k)


def windows_product(x: Tensor, k: Tensor) -> Tensor:
    return (_windows(x) * k.permute(2, 3, 4, 0, 1).unsqueeze(1)).sum((-2, -1))


def unfolded(x: Tensor, k: Tensor) -> Tensor:
    """Windows as im2col makes them: [B, C, 25, H * W]."""
    batch, channels, height, width = x.shape
    columns = torch.nn.functional.unfold(x, 5, padding=2).view(batch, channels, 25, height * width)
    filters = k.view(25, batch, height * width).transpose(0, 1).unsqueeze(1)
    return (columns * filters).sum(2).view_as(x)


def shifted_sum(x: Tensor, k: Tensor) -> Tensor:
    """25 shifted products."""
    height, width = x.shape[2:]
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    total = torch.zeros_like(x)
    for p in range(5):
        for q in range(5):
            total = total + padded[:, :, p : p + height, q : q + width] * k[p, q].unsqueeze(1)
    return total


PER_PIXEL_FORMS: dict[str, Callable[..., Tensor]] = {
    "windows, einsum": windows_einsum,
    "windows, product": windows_product,
    "unfold": unfolded,
    "shifted sum": shifted_sum,
}


def cases(settings: Settings) -> Sequence[Case]:
    def case(
        key: str,
        title: str,
        forms: dict[str, Callable[..., Tensor]],
        compiled: Callable[[], Callable[..., Tensor]],
        shapes: Sequence[tuple[int, ...]],
        rest: Sequence[int] = (),
        goals: dict[str, float] | None = None,
    ) -> Case:
        def make(function: Callable[..., Tensor]) -> Step:
            return backward_step(function, *(leaf(*shape) for shape in shapes), *rest)

        peers = torch_forms(forms, make, modes=settings.compile_modes)
        mine = Form(LOMA, f"{key}.loma", lambda: make(compiled()))
        return Case(key, f"{title}: forward + backward", [*peers, mine], goals or {})

    def of_layer(name: str) -> Callable[[], Callable[..., Tensor]]:
        return lambda: getattr(layers.module(layers.file_of(name)), name)

    def twin(name: str) -> dict[str, Callable[..., Tensor]]:
        return {"reference": getattr(reference, name)}

    b, i, r, o, k = (2, 3, 5, 4, 2) if settings.quick else (100, 10, 1152, 16, 8)
    n, size = (2, 9) if settings.quick else (8, 224)
    found = [
        case(
            "per_pixel", f"per-pixel 5x5 convolution, batch {n}, 3x{size}x{size}",
            PER_PIXEL_FORMS if not settings.quick else {"shifted sum": shifted_sum},
            lambda: loma.compile(PER_PIXEL).per_pixel,
            [(n, 3, size, size), (5, 5, n, size, size)], goals={EAGER: 10.0, COMPILE: 4.0},
        ),
        case("squash", f"squash, {b}x{r}x{k}", twin("squash"), of_layer("squash"), [(b, r, k)]),
        case(
            "predictions", f"predictions, batch {b}, {i}x{r}x{o}x{k}", twin("predictions"),
            of_layer("predictions"), [(i, r, o, k), (b, r, k)],
        ),
        case(
            "routing", f"routing without predictions, batch {b}, {i}x{r}x{o}, 3 iterations",
            twin("routing"), of_layer("routing"), [(b, i, r, o)], [3, 0],
        ),
    ]  # fmt: skip
    return found[:1] if settings.quick else found


if __name__ == "__main__":
    main(__doc__ or "", cases)
