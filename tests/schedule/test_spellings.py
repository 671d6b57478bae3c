"""All spellings of the benchmarks' layers are one function, as are their derivatives; of a third of
the spellings, with --full of all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampled import one_in
from tree_runs import arguments, lowered

from loma import pipeline
from loma.core.ir import Function, Param
from loma.frontend import parse

FILES = sorted((Path(__file__).resolve().parents[2] / "benchmarks/spellings").glob("*.loma"))
KNOWN = {"rounds": 3, "t": 3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3}


def _arguments(function: Function, rng: random.Random) -> list[Any]:
    """Without empty tensors, of which some spellings have no maximum or mean."""
    while True:
        args = arguments(function, KNOWN, rng)
        args = [KNOWN.get(p.name, arg) for p, arg in zip(function.params, args, strict=True)]
        if all(np.size(arg) for arg in args):
            return [_suitable(p, arg) for p, arg in zip(function.params, args, strict=True)]


def _suitable(param: Param, arg: Any) -> Any:
    return abs(arg) if param.name == "v" and param.mode == "Out" else arg  # a mean of squares


@pytest.mark.parametrize("file", one_in(8, FILES, 1), ids=lambda file: file.stem)
def test_spellings_agree(file: Path, pytestconfig: pytest.Config) -> None:
    text = file.read_text(encoding="utf-8")
    functions = [f for f in parse(text).functions if not f.name.startswith("_")]
    names = [f.name for f in functions]
    full = pytestconfig.getoption("--full")
    called = {"": names}
    if not any(p.mode == "Out" for p in functions[0].params):
        called["d_"] = names if full else names[::3]
        text += "".join(f"\nd_{name} = rev_diff({name})" for name in called["d_"])
    trees = lowered(pipeline.program(text, file.stem).module)
    rng = random.Random(file.stem)
    for prefix, names in called.items():
        first = trees.module.function(prefix + names[0])
        for _ in range(2 if full else 1):
            args = _arguments(first, rng)
            expected = trees.call(first.name, *args)
            for name in names[1:]:
                found = trees.call(prefix + name, *args)
                for value, right in zip(found, expected, strict=True):
                    np.testing.assert_allclose(value, right, 1e-6, 1e-8, err_msg=prefix + name)
