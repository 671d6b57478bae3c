"""What test_sanitized_kernels.py runs with a sanitizer: sound kernels, then kernels with a defect.

Everything is one file of C++, since torch's headers take longer to compile than these programs: the
module of test_fused_calls.py, kernels of it for known sizes, and such kernels whose text was
changed. The functions of the latter begin with the defect's name, which reports show.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from fused_programs import TEXT

import loma
from loma import pipeline
from loma.backends import toolchain
from loma.backends.cfamily.source import GeneratedSource
from loma.backends.torch import binding


@dataclass(frozen=True, slots=True)
class Defect:
    """A change of the kernel of ``rows`` for that many rows of WIDTH values."""

    rows: int
    pattern: str
    replacement: str


WIDTH = 13
SHARED = "alignas(64) std::byte shared_[1 << 16];\n"
DEFECTS = {
    "address": {
        "loop_runs_too_far": Defect(6, r"j < 13;", "j <= 13;"),
        "private_tensor_is_short": Defect(7, r"13 \* (\w+) \* sizeof", r"(13 * \1 - 1) * sizeof"),
        "tile_runs_too_far": Defect(8, r"tiles<real>\(0, 13,", "tiles<real>(0, 14,"),
        "int_overflows": Defect(9, r"\b13 \* (\w+) \+ 4095", r"9223372036854775807 * \1 + 4095"),
    },
    "thread": {
        "private_tensor_is_shared": Defect(7, r"memory_ \+", "shared_ +"),
        "parts_overlap": Defect(8, r"(first\w*) \* 13\b", r"\1 * 12"),
    },
}
# Kernels for known sizes, by function: the values of its sizes and ints.
KNOWN = {
    "rows": {"B": 5, "N": WIDTH, "n": 3},
    "tiles": {"I": 3, "R": 5, "O": 7, "K": 4, "B": 5},
    "tiles__backward": {"I": 3, "R": 5, "O": 7, "K": 4, "B": 5},
}


def texts(namespace: str, text: str, kind: str) -> Iterator[tuple[str, str]]:
    """Kernels for known sizes, each with a name for its namespace."""
    stage = pipeline.program(text)

    def known(function: str, values: dict[str, int]) -> str:
        made = pipeline.find(stage.module, function)
        names = binding.slot_names(made, stage.zeroed.get(function, ()))
        given = {name: values.get(name, 1) for name in names}  # 1: an adjoint that is wanted
        return pipeline.specialised(stage, function, given, namespace, "double").files[0][1]

    for function, values in KNOWN.items():
        yield f"known_{function}", known(function, values)
    for name, defect in DEFECTS[kind].items():
        sound = known("rows", {"B": defect.rows, "N": WIDTH, "n": 3})
        changed, count = re.subn(defect.pattern, defect.replacement, sound)
        assert count > 0, f"{name}: no {defect.pattern} in\n{sound}"
        yield name, SHARED + re.sub(r"\brows__", f"{name}__", changed)


def compiled(text: str, kind: str) -> Any:
    """The program with those kernels."""
    build = toolchain.build

    def build_all(source: GeneratedSource, *how: Any) -> Path:
        (name, own), *others = source.files
        parts = [own]
        for namespace, part in texts(source.name, text, kind):
            includes = [line for line in part.splitlines() if line.startswith("#include")]
            rest = "\n".join(line for line in part.splitlines() if line not in includes)
            parts += [*includes, f"namespace {namespace} {{\n{rest}\n}}"]
        return build(replace(source, files=((name, "\n".join(parts)), *others)), *how)

    with mock.patch.object(toolchain, "build", build_all):
        return loma.compile(text)


def layouts(*shape: int, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """The same tensor as torch makes it, transposed in memory, and with gaps between elements."""
    x = torch.randn(shape, dtype=dtype)
    yield x
    yield x.mT.contiguous().mT
    wide = torch.full((*shape[:-1], 2 * shape[-1]), torch.nan, dtype=dtype)
    wide[..., ::2] = x
    yield wide[..., ::2]


def check(function: Any, tensors: list[torch.Tensor], *ints: int) -> None:
    """Calls a function and its derivatives; no result may come from memory that nobody wrote."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = function(*leaves, *ints)
    for result in (y, *torch.autograd.grad((y * y).sum(), leaves)):
        assert result.isfinite().all(), (function, [t.shape for t in tensors])


def sound(module: Any) -> None:
    for dtype in (torch.float64, torch.float32):
        for b, n in ((0, 5), (5, 0), (1, 1), (1, WIDTH), (2, 37), (5, WIDTH), (7, 4)):
            for x in layouts(b, n, dtype=dtype):
                check(module.rows, [x], 3)
                if n > 3:
                    check(module.calls_shifted, [x], 3)
        for n in (0, 1, 7, 70, 9001):
            check(module.blocks, [torch.randn(n, dtype=dtype)], 2)
        for i, r, o, k, b in (
            (3, 5, 7, 4, 5), (0, 1, 1, 1, 1), (1, 0, 2, 2, 3), (1, 1, 1, 1, 1), (2, 3, 0, 2, 2),
            (2, 7, 33, 3, 4), (2, 9, 16, 8, 3), (3, 2, 5, 0, 1),
        ):  # fmt: skip
            weights, points = layouts(i, r, o, k, dtype=dtype), layouts(b, r, k, dtype=dtype)
            for w, x in zip(weights, points, strict=True):
                check(module.tiles, [w, x])


def refused(module: Any) -> None:
    """Exceptions leave kernels, and give their memory back."""
    for b in (1, 5):
        try:
            module.shifted(torch.randn(b, WIDTH), WIDTH)
        except ValueError:
            continue
        raise AssertionError("no error")


def main(kind: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(3)
    module = compiled(f"# with defects for {kind}\n{TEXT}", kind)
    sound(module)
    refused(module)
    print("sound kernels ran", flush=True)
    for defect in DEFECTS[kind].values():
        module.rows(torch.randn(defect.rows, WIDTH, dtype=torch.float64), 3)
    print("all ran")


if __name__ == "__main__":
    main(sys.argv[1])
