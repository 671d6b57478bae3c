"""Mixed-scale dense networks (Pelt and Sethian 2017): the layer over sizes, and a whole network.

The layer is a 3x3 convolution with a dilation, a bias and a ReLU, which reads all channels so far
and adds one. Published were kernels in CUDA by hand, against Conv2d and ReLU of PyTorch: these win
at few channels and large images, and lose at many channels. As there, a time is the slope of a
linear regression over how often the layer runs (0 to 3 times), given with its 90 % interval (Moreno
and Fischmeister 2017); "in place" writes into the dense tensor, which is forward only.

The network has 100 layers of one channel with dilations 1 to 10, as a function with a loop
(multi_scale_dense.loma). --train trains it on a photograph that scikit-learn ships: where the
flower is, from its grey image with noise, and draws input, target and result.

    python benchmarks/papers/multi_scale_dense.py --json FILE --plot PICTURE.png
    python benchmarks/papers/multi_scale_dense.py --device cuda --json FILE
    python benchmarks/papers/multi_scale_dense.py --train PICTURE.png
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("LOMA_SPECIALISATIONS", "64")  # the sizes of a sweep; read by loma.compile

import torch
import torch.nn.functional as F
from calls import warm
from gpu_work.rows import COMPILE, EAGER, LOMA, Row, is_late
from gpu_work.work import BOTH, FORWARD, Function, Work, part_of
from papers import measured
from papers.measured import Entry, Session
from torch import Tensor

import loma

PROGRAM = Path(__file__).with_suffix(".loma")
DEPTH = 100
COUNTS = (0, 1, 2, 3)  # how often a layer runs in a sample of the regression
SWEEPS = ("size", "channels", "dilation")
CROPS = 2  # of the photograph, in a step of the training
IN_PLACE = f"{LOMA}, in place"
NOISE = 0.3  # standard deviation, of grey values from 0 to 1


# ------------------------------------------------------------------------------------- the layer


def conv(x: Tensor, filters: Tensor, bias: Tensor, dilation: int) -> Tensor:
    return F.relu(F.conv2d(x, filters, bias, padding=dilation, dilation=dilation))


@cache
def compiled(name: str) -> Any:
    return getattr(loma.compile(part_of(PROGRAM, name)), name)


def layer(size: int, channels: int, dilation: int, out: int = 1) -> Work:
    def inputs(device: str) -> tuple[Tensor, ...]:
        shapes = ((1, channels, size, size), (out, channels, 3, 3), (out,))
        return tuple(torch.randn(shape, device=device, requires_grad=True) for shape in shapes)

    def own() -> Function:
        return lambda *args: compiled("layer")(*args, dilation)

    title = f"MS-D layer, {channels} channels of {size}x{size}, dilation {dilation}"
    peers = {"conv2d": partial(conv, dilation=dilation)}
    return Work(f"layer {size} {channels} {dilation}", title, inputs, peers, own, "1 time")


def check_in_place(device: str) -> None:
    """ArithmeticError where the layer in place is not PyTorch's, or touches what it reads."""
    torch.manual_seed(0)
    dense = torch.randn(2, 5, 7, 6, device=device, dtype=torch.float64)
    filters = torch.randn(2, 3, 3, 3, device=device, dtype=torch.float64)
    bias = torch.randn(2, device=device, dtype=torch.float64)
    wanted = torch.cat([dense[:, :3], conv(dense[:, :3], filters, bias, 2)], 1)
    compiled("layer_in_place")(dense, filters, bias, 2)
    error = float((dense - wanted).abs().max())
    if not error <= 1e-12:
        raise ArithmeticError(f"layer_in_place is off by {error:.1e}")


# --------------------------------------------------------------------------- slopes as published


def slope(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """The slope of the regression of seconds over counts, and half its 90 % interval."""
    from scipy.stats import t as student

    n = len(points)
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    found = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - found * (x - mean_x)) ** 2 for x, y in points)
    error = math.sqrt(rest / (n - 2) / spread)
    return found, float(student.ppf(0.95, n - 2)) * error


def slopes(
    calls: Mapping[str, Callable[[], object]], trials: int, device: str
) -> dict[str, tuple[float, float]]:
    """Of each call, in milliseconds; the calls take turns."""
    points: dict[str, list[tuple[int, float]]] = {name: [] for name in calls}

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for turn in range(trials):
        for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
            for count in COUNTS:
                wait()
                start = time.perf_counter()
                for _ in range(count):
                    calls[name]()
                wait()
                points[name].append((count, time.perf_counter() - start))
    return {name: tuple(1e3 * v for v in slope(own)) for name, own in points.items()}  # type: ignore[misc]


def sweep(name: str, is_quick: bool, every: bool) -> list[tuple[int, int, int]]:
    """(size, channels, dilation) of the points of a sweep."""
    if is_quick:
        return [(9, 2, 2)]
    sizes = [2**k for k in range(3, 12, 1 if every else 2)]
    channels = [2**k for k in range(0, 9, 1 if every else 2)]
    match name:
        case "size":
            return [(size, 8, 1) for size in sizes]
        case "channels":
            return [(256, count, 1) for count in channels]
        case _:
            return [(256, 8, d) for d in (range(1, 11) if every else (1, 3, 10))]


def measure_layer(work: Work, which: str, session: Session, dilation: int) -> Row:
    """A point of a sweep: loma, Conv2d and ReLU, both compiled, and the layer in place."""
    settings = session.settings
    row = Row(f"{work.key} {which}", f"{work.title}: {which}", work.goal)
    small = layer(9, 3, dilation, out=2)
    row.notes.update(measured.check(small, which, settings))
    if LOMA in row.notes:
        raise ArithmeticError(row.notes[LOMA])
    args = work.inputs(session.device)
    functions: dict[str, Any] = {LOMA: work.own(), f"{EAGER} conv2d": work.peers["conv2d"]}
    if settings.compile and not is_late(settings):
        functions[f"{COMPILE} conv2d"] = torch.compile(work.peers["conv2d"])
    weight = torch.randn_like(work.peers["conv2d"](*args))

    def call(function: Any) -> Callable[[], object]:
        if which == BOTH:
            return lambda: torch.autograd.grad(function(*args), args, weight)
        plain = tuple(arg.detach() for arg in args)
        return lambda: function(*plain)

    calls = {name: call(function) for name, function in functions.items()}
    own = [calls[LOMA]]
    if which == FORWARD:
        x, filters, bias = (arg.detach() for arg in args)
        dense = torch.cat([x, x[:, :1]], 1)
        calls[IN_PLACE] = lambda: compiled("layer_in_place")(dense, filters, bias, dilation)
        own.append(calls[IN_PLACE])
    if not settings.quick:
        warm(own)
    for each in calls.values():
        each()
    trials = 2 if settings.quick else settings.rounds
    for name, (ms, half) in slopes(calls, trials, session.device).items():
        row.times[name] = ms
        row.intervals[name] = half
    return row


# ----------------------------------------------------------------------------------- the network


def network_in_pytorch(
    x: Tensor, filters: Tensor, biases: Tensor, weights: Tensor, bias: Tensor
) -> Tensor:
    """Each layer's channel is joined to those before."""
    inputs = x.shape[1]
    for index in range(len(filters)):
        own = filters[index : index + 1, : inputs + index]
        x = torch.cat([x, conv(x, own, biases[index : index + 1], index % 10 + 1)], 1)
    return F.conv2d(x, weights[:, :, None, None], bias)


def network(batch: int, size: int, depth: int) -> Work:
    def inputs(device: str) -> tuple[Tensor, ...]:
        x = torch.rand(batch, 1, size, size, device=device).requires_grad_()
        return x, *(p.to(device).detach().requires_grad_() for p in parameters(depth))

    title = f"MS-D network of depth {depth}, {batch} images of {size}x{size}"
    return Work(f"network {batch} {size}", title, inputs, {"cat": network_in_pytorch},
                lambda: compiled("network"), "1 time", compiles=False)  # fmt: skip


def parameters(depth: int, inputs: int = 1, results: int = 1) -> tuple[Tensor, ...]:
    """Filters [L, I + L, 3, 3], of which layer l has the first I + l, biases, and the weights and
    biases of the last layer; filters as Pelt and Sethian begin with, the rest 0."""
    deviation = math.sqrt(2.0 / (9 * (inputs + depth) + results))
    filters = deviation * torch.randn(depth, inputs + depth, 3, 3)
    weights = torch.randn(results, inputs + depth) / math.sqrt(inputs + depth)
    return filters, torch.zeros(depth), weights, torch.zeros(results)


def train(session: Session, steps: int, depth: int, size: int, picture: Path | None) -> Row:
    """Trains on crops of the left half of the photograph; the rest has not been seen."""
    torch.manual_seed(0)
    grey, target = photograph()
    device = session.device
    grey, target = grey.to(device), target.to(device)
    weights = [p.to(device).requires_grad_() for p in parameters(depth)]
    adam: Any = loma.optim.Adam(weights, lr=2e-3)
    run: Any = compiled("network")
    half = grey.shape[1] // 2
    start = time.monotonic()
    losses: list[float] = []
    for step in range(steps):
        at = [(int(torch.randint(grey.shape[0] - size, ())), int(torch.randint(half - size, ())))
              for _ in range(CROPS)]  # fmt: skip
        x = torch.stack([grey[i : i + size, j : j + size] for i, j in at])[:, None]
        y = torch.stack([target[i : i + size, j : j + size] for i, j in at])[:, None]
        adam.zero_grad()
        loss = F.binary_cross_entropy_with_logits(run(x, *weights), y)
        loss.backward()
        adam.step()
        losses.append(loss.item())
        if (step + 1) % 10 == 0:
            session.say(f"    step {step + 1}: loss {statistics.fmean(losses[-10:]):.3f}")
    seconds = time.monotonic() - start
    with torch.no_grad():
        seen = torch.sigmoid(run(grey[None, None], *weights))[0, 0].cpu()
    right = ((seen > 0.5).float() == target.cpu()).float()
    unseen = float(right[:, half:].mean())
    title = f"training, {steps} steps of {CROPS} crops of {size}x{size}, depth {depth}"
    row = Row("training", title, "-")
    row.times[LOMA] = 1e3 * seconds / steps
    row.results = {"loss": statistics.fmean(losses[-50:]), "right of unseen pixels": unseen}
    session.say(f"    {unseen:.1%} of the pixels that were not seen are right, "
                f"{float(1 - target[:, half:].mean()):.1%} are background")  # fmt: skip
    if picture is not None:
        draw_training(grey.cpu(), target.cpu(), seen, unseen, picture)
    return row


def photograph() -> tuple[Tensor, Tensor]:
    """Grey values with noise, and where the flower is: both [H, W], every second pixel."""
    from sklearn.datasets import load_sample_image

    image = torch.from_numpy(load_sample_image("flower.jpg").copy()).float()[::2, ::2] / 255.0
    red, green, blue = image.unbind(2)
    petals = ((red - green > 0.15) & (red > 0.35)).float()
    smooth = F.avg_pool2d(petals[None, None], 7, 1, 3)[0, 0]
    grey = 0.3 * red + 0.59 * green + 0.11 * blue
    return grey + NOISE * torch.randn_like(grey), (smooth > 0.5).float()


# ---------------------------------------------------------------------------------- the pictures


def draw(results: Mapping[str, Any], path: Path) -> None:
    from papers import curves

    panels = []
    axes = ("pixels of a side", "channels")
    for position, (name, sizes) in enumerate(zip(SWEEPS[:2], axes, strict=True)):
        points = {" ".join(map(str, p)) for p in sweep(name, False, True)}
        for which in (FORWARD, BOTH):
            rows = [
                {**row, "key": row["key"].split()[position + 1]}
                for row in results["rows"]
                if row["key"].startswith("layer") and row["key"].endswith(f" {which}")
                and " ".join(row["key"].split()[1:4]) in points
            ]  # fmt: skip
            lines = curves.lines_of(rows, "milliseconds", 1.0)
            panels.append(curves.Panel(which, "ms", sizes, lines))
    title = "A layer of a mixed-scale dense network"
    for file in curves.write(panels, title, results["machine"], path):
        print(f"wrote {file}")


def draw_training(grey: Tensor, target: Tensor, seen: Tensor, unseen: float, path: Path) -> None:
    from matplotlib.figure import Figure

    from loma.tools.pictures import DPI, Theme, headed, save_themes

    def drawn(theme: Theme) -> Figure:
        figure = Figure(figsize=(9.6, 3.1), dpi=DPI)
        panels = figure.subplots(1, 3)
        figure.subplots_adjust(left=0.012, right=0.988, bottom=0.02, top=0.70, wspace=0.04)
        for axes, image, title in zip(
            panels, (grey, target, seen), ("input", "target", "result"), strict=True
        ):
            axes.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1)
            axes.axvline(grey.shape[1] // 2, color=theme.loma, linewidth=1)
            axes.set_title(title, fontsize=10, loc="left")
            axes.set_axis_off()
        title = f"A mixed-scale dense network has {unseen:.1%} of the pixels right"
        headed(figure, title, "trained left of the line, counted right of it", theme)
        return figure

    for file in save_themes(drawn, path):
        print(f"wrote {file}")


# ------------------------------------------------------------------------------------------ main


def network_entries(is_quick: bool, batch: int) -> Iterator[Entry]:
    small = network(2, 7, 4)
    yield Entry(small if is_quick else network(batch, 64, DEPTH), small)


def main() -> None:
    parser = measured.parser(__doc__ or "")
    parser.add_argument("--every", action="store_true", help="all powers of two, all dilations")
    measured.add_curves(parser, "of the layer")
    parser.add_argument("--train", type=Path, metavar="PNG", help="train only, and draw the result")
    parser.add_argument(
        "--steps", type=measured.SIZE, default=150, help="of the training (default 150)"
    )
    options = parser.parse_args()
    if measured.is_drawn(parser, options, draw):
        return
    session = measured.begin(options, (*SWEEPS, "network", "training"))
    quick = options.quick
    if options.train or (options.rows and "training" in options.rows):
        steps, depth, size = (2, 4, 12) if quick else (options.steps, DEPTH, 48)
        session.add(train(session, steps, depth, size, options.train))
        if options.train:
            return
    check_in_place(session.device)
    done: set[tuple[int, int, int]] = set()
    for name in SWEEPS:
        for point in sweep(name, quick, options.every) if session.wants(name) else ():
            if point in done:
                continue
            done.add(point)
            for which in (FORWARD, BOTH):
                session.add(measure_layer(layer(*point), which, session, point[2]))
    if session.wants("network"):
        measured.run(network_entries(quick, 1), session)
    if options.plot:
        draw(session.report.content(), options.plot)
    measured.finish(session)


if __name__ == "__main__":
    main()
