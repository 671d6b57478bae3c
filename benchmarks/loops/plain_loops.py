"""Programs in plain loops, as one first writes them, against PyTorch without a loop.

``plain_loops.loma`` has twelve: loops over elements around scalar arithmetic, branches and
numbers that have names. Eager PyTorch and torch.compile have the same mathematics in operators on
whole tensors, those that PyTorch has a function for by that. Float32: loma's milliseconds and its
speed as a ratio to each peer's (above 1: loma is faster), medians of interleaved runs. Values and
gradients are compared before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from calls import both, inference, prepare, side_by_side
from forms import COMPILE, EAGER, LOMA
from harness import settings_of, settings_parser
from torch import Tensor

import loma

PROGRAM = Path(__file__).with_suffix(".loma")


def accelerations(x: Tensor, mass: Tensor) -> Tensor:
    off = x[None] - x[:, None]
    r2 = off.square().sum(-1, keepdim=True) + 1e-3
    return (mass[None, :, None] * off / (r2 * r2.sqrt())).sum(1)


def bilateral(image: Tensor) -> Tensor:
    height, width = image.shape
    padded = F.pad(image, (1, 1, 1, 1))
    inside = F.pad(torch.ones_like(image), (1, 1, 1, 1))
    total, weight = torch.zeros_like(image), torch.zeros_like(image)
    for y in range(3):
        for x in range(3):
            part = slice(y, y + height), slice(x, x + width)
            far = 0.5 * ((y - 1) ** 2 + (x - 1) ** 2)
            w = inside[part] * torch.exp(-far - 2.0 * (padded[part] - image).square())
            total, weight = total + w * padded[part], weight + w
    return total / weight


def heat(u: Tensor, k: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        around = u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1)
        u = u + 0.1 * k * (around - 4.0 * u)
    return u


def render(density: Tensor, colour: Tensor, step: Tensor) -> Tensor:
    alpha = 1.0 - torch.exp(-density.relu() * step)
    left = torch.cat([torch.ones_like(alpha[:, :1]), (1.0 - alpha[:, :-1]).cumprod(1)], 1)
    return ((left * alpha)[:, :, None] * colour).sum(1)


def warp(image: Tensor, flow: Tensor) -> Tensor:
    _, height, width = image.shape
    i, j = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    y, x = (i + flow[0]).clamp(0, height - 1.001), (j + flow[1]).clamp(0, width - 1.001)
    y0, x0 = y.floor().long(), x.floor().long()
    fy, fx = y - y0, x - x0
    top = image[:, y0, x0] * (1.0 - fx) + image[:, y0, x0 + 1] * fx
    low = image[:, y0 + 1, x0] * (1.0 - fx) + image[:, y0 + 1, x0 + 1] * fx
    return top * (1.0 - fy) + low * fy


def convolution(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, w, b).relu()


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, w.shape, w, b)


def overlap(a: Tensor, b: Tensor) -> Tensor:
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    both = (high - low).clamp(min=0.0).prod(-1)
    own, other = ((box[:, 2:] - box[:, :2]).prod(-1) for box in (a, b))
    return both / (own[:, None] + other[None] - both)


def selective_scan(u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    h, rows = torch.zeros(()), []
    for step in range(u.shape[1]):
        d = delta[:, step, :, None]
        h = torch.exp(d * a) * h + d * b[:, step, None] * u[:, step, :, None]
        rows.append((h * c[:, step, None]).sum(-1))
    return torch.stack(rows, 1)


def nearest(x: Tensor, centre: Tensor, height: Tensor) -> Tensor:
    best, which = (x[:, None] - centre).square().sum(2).min(1)
    return best * height[which]


def kepler(anomaly: Tensor, e: Tensor) -> Tensor:
    x, step = anomaly, torch.ones_like(anomaly)
    for _ in range(20):
        far = step.abs() > 1e-4
        if not far.any():
            break
        step = torch.where(far, (x - e * x.sin() - anomaly) / (1.0 - e * x.cos()), step)
        x = torch.where(far, x - step, x)
    return x


def _boxes(count: int) -> Tensor:
    return torch.cat([torch.rand(count, 2), 1.0 + torch.rand(count, 2)], 1)


PEERS: dict[str, Callable[..., Tensor]] = {
    "accelerations": accelerations, "bilateral": bilateral, "heat": heat, "render": render,
    "warp": warp, "convolution": convolution, "layer_norm": layer_norm,
    "cross_entropy": F.cross_entropy, "overlap": overlap, "selective_scan": selective_scan,
    "nearest": nearest, "kepler": kepler,
}  # fmt: skip


def arguments(name: str, quick: bool) -> list[Any]:
    """Of a size that takes some tenths of a millisecond at least; small ones if ``quick``."""
    n = 1 if quick else 8

    def pixels(*before: int) -> Tensor:
        return torch.randn(*before, 8 * n, 9 * n)

    match name:
        case "accelerations":
            return [torch.randn(50 * n, 3), torch.rand(50 * n)]
        case "bilateral":
            return [torch.randn(25 * n, 25 * n)]
        case "heat":
            return [pixels(), torch.rand(8 * n, 9 * n), 3 * n]
        case "render":
            return [torch.randn(250 * n, 8 * n), torch.rand(250 * n, 8 * n, 3),
                    0.1 * torch.rand(250 * n, 8 * n)]  # fmt: skip
        case "warp":
            return [pixels(8), torch.randn(2, 8 * n, 9 * n)]
        case "convolution":
            return [pixels(4, n), torch.randn(2 * n, n, 3, 3), torch.randn(2 * n)]
        case "layer_norm":
            return [torch.randn(64 * n, 64 * n), torch.randn(64 * n), torch.randn(64 * n)]
        case "cross_entropy":
            return [torch.randn(64 * n, 32 * n), torch.randint(32 * n, (64 * n,))]
        case "overlap":
            return [_boxes(60 * n), _boxes(50 * n)]
        case "nearest":
            return [torch.randn(500 * n, 4), torch.randn(4 * n, 4), torch.rand(4 * n)]
        case "kepler":
            return [3.0 * torch.rand(2500 * n), 0.8 * torch.rand(2500 * n)]
        case _:
            steps, channels, states = 12 * n, 8 * n, 2 * n
            u, delta = torch.randn(4, steps, channels), torch.rand(4, steps, channels)
            b, c = torch.randn(4, steps, states), torch.randn(4, steps, states)
            return [u, delta, -torch.rand(channels, states), b, c]


def check(name: str, function: Callable[..., Tensor], args: list[Any]) -> None:
    """SystemExit where value or gradients are not those of the peer."""
    leaves = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
    found, right = function(*args), PEERS[name](*args)
    weight = torch.randn_like(right)
    pairs = zip(
        [found, *torch.autograd.grad(found, leaves, weight.reshape(found.shape))],
        [right, *torch.autograd.grad(right, leaves, weight)],
        strict=True,
    )
    for k, (got, wanted) in enumerate(pairs):
        got, wanted = got.detach().double(), wanted.detach().double()
        off = float((got - wanted).norm() / wanted.norm())
        if not off <= 1e-4:
            raise SystemExit(f"{name}: loma is not PyTorch: result {k} is off by {off}")


def main() -> None:
    parser = settings_parser(__doc__ or "")
    parser.add_argument("names", nargs="*", help="programs to run; default: all of them")
    parser.add_argument("--eager-only", action="store_true", help="without torch.compile")
    options = parser.parse_args()
    settings = settings_of(options)
    if unknown := [name for name in options.names if name not in PEERS]:
        parser.error(f"no program {', '.join(unknown)}; there are {', '.join(PEERS)}")
    prepare(options.threads)
    module = loma.compile(PROGRAM)
    compiled = not (options.eager_only or options.quick)
    print(f"{'':36s} {'loma ms':>9s} {EAGER:>14s} {COMPILE:>14s}")
    for name in options.names or PEERS:
        function, args = getattr(module, name), arguments(name, options.quick)
        for arg in args:
            if isinstance(arg, Tensor) and arg.is_floating_point():
                arg.requires_grad_()
        check(name, function, args)
        for what, make in (("inference", inference), ("forward + backward", both)):
            calls = {LOMA: make(function, args), EAGER: make(PEERS[name], args)}
            if compiled:
                torch.compiler.reset()
                calls[COMPILE] = make(torch.compile(PEERS[name], dynamic=False), args)
            times = side_by_side(calls, [LOMA], settings)
            ratios = (
                f"{times.ratio(n, LOMA):.2f}x" if n in calls else "-" for n in (EAGER, COMPILE)
            )
            cells = "".join(f" {cell:>14s}" for cell in ratios)
            title = f"{name.replace('_', ' ')}: {what}"
            print(f"{title:36s} {1e3 * times.median(LOMA):9.3f}{cells}", flush=True)


if __name__ == "__main__":
    main()
