"""CapsNet's convolutions and their adjoints: the library's form against the chosen one.

Float32, batch 100 and 32. Both run in this process, in interleaved rounds, called from compiled
code; the form is what loma chose by measurement at the first call (``loma tuning`` shows all).
Prints medians and ratios (above 1: the chosen form is faster), and the sums over the network's five
convolutions: nothing needs the adjoint of the images that the first layer gets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from forms import EAGER, LOMA, Settings
from harness import settings_parser, write_json
from torch import Tensor

import loma
from loma.tools import tuning
from loma.tools.measure import Timings, interleaved_medians

PROGRAM = """
def forward(x : In[Tensor[B, C, H, W]], w : In[Tensor[F, C, P, Q]], s : In[int]
            ) -> Tensor[B, F, (H - P) // s + 1, (W - Q) // s + 1]:
    return conv2d(x, w, stride=[s, s])

def of_weights(g : In[Tensor[B, F, U, V]], x : In[Tensor[B, C, H, W]], P : In[int], Q : In[int],
               s : In[int]) -> Tensor[F, C, P, Q]:
    return conv2d_weight(g, x, shape=[F, C, P, Q], stride=[s, s])

def of_images(g : In[Tensor[B, F, U, V]], w : In[Tensor[F, C, P, Q]], H : In[int], W : In[int],
              s : In[int]) -> Tensor[B, C, H, W]:
    return conv2d_input(g, w, shape=[B, C, H, W], stride=[s, s])
"""
VARIABLE = "LOMA_CONVOLUTION"
# Layer, channels and size of its images, filters, kernel, stride.
LAYERS = (("first layer", 1, 28, 256, 9, 1), ("primary capsules", 256, 20, 256, 9, 2))


def steps(
    module: Any, batch: int, channels: int, size: int, filters: int, kernel: int, stride: int
) -> dict[str, Callable[[], Tensor]]:
    x = torch.randn(batch, channels, size, size)
    w = torch.randn(filters, channels, kernel, kernel) / kernel / channels**0.5
    g = torch.randn_like(module.forward(x, w, stride))
    return {
        "conv2d": lambda: module.forward(x, w, stride),
        "conv2d_weight": lambda: module.of_weights(g, x, kernel, kernel, stride),
        "conv2d_input": lambda: module.of_images(g, w, size, size, stride),
    }


def in_form(form: str, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def run() -> Tensor:
        os.environ[VARIABLE] = form  # empty: the chosen one
        return step()

    return run


def chosen(operator: str, batch: int, channels: int, size: int) -> str:
    shape = (batch, channels, size, size)
    for choice in tuning.choices():
        if choice.operator == operator and choice.shapes["images"] == shape:
            return choice.form
    return "library"  # too small to be measured


def main() -> None:
    options = settings_parser(__doc__ or "").parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    module = loma.compile(PROGRAM)
    rows: list[dict[str, Any]] = []
    for batch in (2,) if options.quick else (100, 32):
        total: dict[str, list[float]] = {EAGER: [], LOMA: []}
        for name, channels, size, filters, kernel, stride in LAYERS:
            made = steps(module, batch, channels, size, filters, kernel, stride)
            for operator, step in made.items():
                timings: Timings = interleaved_medians(
                    {EAGER: in_form("library", step), LOMA: in_form("", step)},
                    rounds=1 if options.quick else options.rounds,
                    warmup=1 if options.quick else 2,
                )
                ratio = timings.ratio(EAGER, LOMA)
                title = f"{name}, {operator}, batch {batch}"
                form = chosen(operator, batch, channels, size)
                if (name, operator) != ("first layer", "conv2d_input"):
                    for group, samples in total.items():
                        samples.append(timings.median(group))
                library, mine = (1e3 * timings.median(group) for group in (EAGER, LOMA))
                print(f"{title:45s} library {library:8.2f} ms  {form:13s} {mine:8.2f} ms  "
                      f"{ratio:5.2f}x", flush=True)  # fmt: skip
                rows.append(row(f"{name} {operator} {batch}", title, timings, ratio, form))
        library, mine = (1e3 * sum(total[group]) for group in (EAGER, LOMA))
        print(f"{f'all five, batch {batch}':45s} library {library:8.2f} ms  {'chosen':13s} "
              f"{mine:8.2f} ms  {library / mine:5.2f}x")  # fmt: skip
    os.environ.pop(VARIABLE, None)
    if options.json:
        settings = Settings(options.rounds, options.threads, options.quick)
        write_json(options.json, "convolution", settings, rows)


def row(key: str, title: str, timings: Timings, ratio: float, form: str) -> dict[str, Any]:
    forms = {EAGER: "library", LOMA: form}
    return {
        "key": key,
        "title": title,
        "groups": {
            group: {"seconds": timings.median(group), "form": forms[group]} for group in forms
        },
        "ratios": {EAGER: ratio},
        "goals": {},
    }


if __name__ == "__main__":
    main()
