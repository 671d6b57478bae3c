"""``loma show --stage kernels``: what fusion makes of programs, as golden files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loma import pipeline

CAPSNET = Path(__file__).resolve().parent.parent / "capsnet_loma"
# The shared index is the last dimension of every tensor, so iterations are blocks of its values.
BLOCKED = """
def blocked(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    h : Tensor[N]
    y : Tensor[N]
    for t in range(n):
        h[i] = tanh(0.5 * h[i] + x[i])
        y[i] += h[i] * h[i]
    return y
"""
CASES = {
    "squash": ("squash", (CAPSNET / "squash.loma").read_text(encoding="utf-8")),
    "routing": ("routing", (CAPSNET / "digit_capsules.loma").read_text(encoding="utf-8")),
    "tiled": (
        "digit_capsules__backward",
        (CAPSNET / "digit_capsules.loma").read_text(encoding="utf-8"),
    ),
    "blocked": ("blocked", BLOCKED),
}
WORDS = {
    "squash": "parallel ",
    "routing": "private ",
    "tiled": "tiles of ",
    "blocked": "private h : Tensor[i_count",
}


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, golden: Callable[[str, str], None]) -> None:
    function, text = CASES[name]
    shown = pipeline.stage_text(text, "kernels", function)
    assert WORDS[name] in shown
    golden(f"kernels_{name}.loma", shown)
