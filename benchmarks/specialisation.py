"""Kernels for known sizes against the general ones: CapsNet's layers at batch 100, float32.

    python benchmarks/specialisation.py            all layers
    python benchmarks/specialisation.py routing    that one

Both are in one process and called in turn. Printed are the median times of a call, their ratio, and
how long the kernels took to make (in the process that made them, if they were in the cache).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial

import torch
from harness import ROUNDS, whole

import loma
from capsnet_loma.layers import path
from loma.tools.cli_numbers import THREADS
from loma.tools.measure import interleaved_medians

# A second function makes another module of it, whose kernels stay the general ones.
OTHER = """
def unused(x : In[Tensor[N]]) -> Tensor[N]:
    return x
"""
CALLS = 100  # at most so many until the kernels are there

Inputs = tuple[torch.Tensor | int, ...]
LAYERS: dict[str, tuple[str, Callable[[], Inputs]]] = {  # file, arguments
    "squash": ("squash", lambda: (torch.randn(100, 1152, 8),)),
    "predictions": (
        "digit_capsules",
        lambda: (torch.randn(10, 1152, 16, 8), torch.randn(100, 1152, 8)),
    ),
    "routing": ("digit_capsules", lambda: (torch.randn(100, 10, 1152, 16), 3, 0)),
    "digit_capsules": (
        "digit_capsules",
        lambda: (0.1 * torch.randn(10, 1152, 16, 8), torch.randn(100, 1152, 8), 3, 0),
    ),
}


def module(file: str, specialised: bool) -> loma.LomaModule:
    os.environ["LOMA_SPECIALISATIONS"] = "8" if specialised else "0"
    text = path(file).read_text(encoding="utf-8")
    return loma.compile(text if specialised else text + OTHER)


def forward(function: Callable[..., torch.Tensor], inputs: Inputs) -> None:
    function(*inputs)


def both(function: Callable[..., torch.Tensor], inputs: Inputs) -> None:
    leaves = [x.requires_grad_() for x in inputs if isinstance(x, torch.Tensor)]
    for leaf in leaves:
        leaf.grad = None
    result = function(*inputs)
    result.backward(torch.ones_like(result))


def made(layer: str) -> list[loma.specialise.Made]:
    return [k for k in loma.specialise.made() if k.function in (layer, *parts(layer))]


def parts(layer: str) -> tuple[str, str]:
    return f"{layer}__forward", f"{layer}__backward"


def compare(layer: str, rounds: int) -> None:
    file, make = LAYERS[layer]
    general = getattr(module(file, False), layer)
    special = getattr(module(file, True), layer)
    for title, step, names in (
        ("forward", forward, (layer,)),
        ("forward + backward", both, parts(layer)),
    ):
        inputs = make()
        for _ in range(CALLS):
            step(special, inputs)
            loma.specialise.wait()
            if {k.function for k in made(layer)} >= set(names):
                break
        else:
            print(f"{layer}, {title}: calls are too short for a kernel of their own")
            continue
        candidates = {
            "general": partial(step, general, inputs),
            "special": partial(step, special, inputs),
        }
        times = interleaved_medians(candidates, rounds=rounds)
        seconds = sum(k.seconds for k in made(layer) if k.function in names)
        print(
            f"{layer + ', ' + title:32s}"
            f" general {1e3 * times.median('general'):8.2f} ms"
            f"   known sizes {1e3 * times.median('special'):8.2f} ms"
            f"   {times.ratio('general', 'special'):5.2f} x as fast"
            f"   made in {seconds:5.1f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("layers", nargs="*", metavar="layer", help=", ".join(LAYERS))
    parser.add_argument("--rounds", type=ROUNDS, default=15)
    parser.add_argument("--threads", type=whole(THREADS), default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for layer in options.layers or LAYERS:
        if layer not in LAYERS:
            parser.error(f"no layer '{layer}': there are {', '.join(LAYERS)}")
        compare(layer, options.rounds)


if __name__ == "__main__":
    main()
