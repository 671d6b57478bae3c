"""What the cases of gradients that other systems were reported to get wrong are made of.

``tests/gradients/scalars`` and ``tests/gradients/tensors`` have the programs, docs/gradients.md
where each was reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from conftest import ROOT

PROGRAMS = ROOT / "tests" / "gradients"


@dataclass(frozen=True, slots=True, eq=False)
class Reported:
    """A function, arguments, and what is right.

    ``reference`` is the same function in plain PyTorch. ``known`` are the gradients of the sum of
    all results in the float ``In`` arguments, which follow by hand or are right by the report. At a
    ``kink`` differences say nothing, and second derivatives are not autograd's.
    """

    name: str
    args: tuple[Any, ...]
    reference: Callable[..., Any]
    known: Sequence[Any] | None = None
    kink: bool = False


def texts(layer: str) -> dict[str, str]:
    """The programs of a layer by the name of their function, which is that of the file."""
    paths = sorted((PROGRAMS / layer).rglob("*.loma"))
    return {path.stem: path.read_text(encoding="utf-8") for path in paths}


def each(cases: Sequence[Reported], *, known: bool = False) -> pytest.MarkDecorator:
    """A test for every case, or for those whose gradients are ``known``."""
    first = {case.name: k for k, case in reversed(list(enumerate(cases)))}
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, id=f"{case.name}-{k - first[case.name]}")
            for k, case in enumerate(cases)
            if case.known is not None or not known
        ],
    )
