"""High-order convolution: every pixel of 3x224x224 images has a 5x5 filter of its own.

Published as an extension of PyTorch (Tesla K80): against the version in Python, C++ that calls ATen
2 times as fast forward and more than 10 times backward, CUDA by hand 20 and 200 times; the version
in Python ran out of memory behind a batch of 256, the extensions behind 512. Here the function is
three lines of high_order_convolution.loma, and its adjoint is derived. Peers are the ways to write
it in PyTorch: windows as views, unfold, and 25 shifted products. Measured are time and memory,
forward and forward with backward, for batches that double as long as they fit.

    python benchmarks/papers/high_order_convolution.py --json FILE --plot PICTURE.png
    python benchmarks/papers/high_order_convolution.py --device cuda --json FILE
    python benchmarks/papers/high_order_convolution.py --draw FILE --plot PICTURE.png
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from gpu_work.work import BOTH, FORWARD, Function, Work
from layers import PER_PIXEL_FORMS
from papers import measured
from papers.measured import Entry
from torch import Tensor

import loma

PROGRAM = Path(__file__).with_suffix(".loma")
BATCHES = {"cpu": [8, 16, 32], "cuda": [8, 16, 32, 64, 128, 256, 512]}


@cache
def own() -> Function:
    function: Function = loma.compile(PROGRAM).high_order_convolution
    return function


def work(batch: int, size: int) -> Work:
    def inputs(device: str) -> tuple[Tensor, ...]:
        shapes = ((batch, 3, size, size), (5, 5, batch, size, size))
        return tuple(torch.randn(shape, device=device, requires_grad=True) for shape in shapes)

    title = f"high-order convolution, {batch}x3x{size}x{size}"
    goal = "on a GPU 2 times forward, 8 times backward"
    return Work(f"batch {batch}", title, inputs, PER_PIXEL_FORMS, own, goal)


def entries(batches: list[int], is_quick: bool) -> Iterator[Entry]:
    small = work(2, 9)
    before = 0
    for batch in batches:
        full = work(batch, 9 if is_quick else 224)
        # Images and results, filters; each with its gradient, and the gradient of the result.
        needs = 4.0 * batch * 224**2 * 2 * (3 + 3 + 25)
        yield Entry(full, small, 0.0 if is_quick else needs, batch / before if before else 0.0)
        before = batch


IMAGES = "images in a batch"


def draw(results: Mapping[str, Any], path: Path) -> None:
    from papers import curves

    rows = [row for row in results["rows"] if row["milliseconds"]]
    passes = {
        which: [row for row in rows if row["key"].endswith(f" {which}")]
        for which in (FORWARD, BOTH)
    }
    panels = [
        curves.Panel(which, "ms", IMAGES, curves.lines_of(found, "milliseconds", 1.0))
        for which, found in passes.items()
    ]
    memory = curves.lines_of(passes[BOTH], "memory", 2**20)
    panels.append(curves.Panel(f"memory of {BOTH}", "MiB", IMAGES, memory))
    title = "A 5x5 filter for every pixel: time and memory over the batch"
    for file in curves.write(panels, title, results["machine"], path):
        print(f"wrote {file}")


def main() -> None:
    parser = measured.parser(__doc__ or "")
    parser.add_argument(
        "--batches", nargs="+", type=measured.SIZE, metavar="N",
        help="default: 8 to 32 on the CPU, 8 to 512 on a GPU",
    )  # fmt: skip
    measured.add_curves(parser, "over the batch")
    options = parser.parse_args()
    if measured.is_drawn(parser, options, draw):
        return
    session = measured.begin(options, ())
    batches = sorted(options.batches or BATCHES[session.device])
    measured.run(entries([1, 2] if options.quick else batches, options.quick), session)
    if options.plot:
        draw(session.report.content(), options.plot)
    measured.finish(session)


if __name__ == "__main__":
    main()
