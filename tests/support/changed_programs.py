"""Programs of all kinds, run as they are and after passes: values and derivatives must agree."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import torch
from fuzz_tensors import Generator
from index_cases import CASES as INDEX_CASES
from operator_cases import CASES as OPERATOR_CASES
from oracle import differentiable, entry, random_weights
from trap_cases import TRAPS as TRAP_CASES

from capsnet_loma.profiling.cases import function_cases
from loma.ad import SplitPair, differentiate, split_pairs
from loma.backends.interpreter import Interpreter
from loma.core.ir import Module
from loma.core.saving import Save
from loma.core.verify import verify
from loma.frontend import parse
from loma.passes.old_values import old_values

Change = Callable[[Module], Module]
CAPSNET = Path(__file__).resolve().parents[2] / "capsnet_loma"


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A text, the function of it that is tested, and arguments for it."""

    name: str
    text: str
    function: str
    args: tuple[Any, ...]


class Changed(oracle.Program):
    """A program with ``d_f = rev_diff(f)`` for every ``f`` that is tested, whose functions, and
    those of its split pairs, went through ``change``."""

    def __init__(self, text: str, change: Change, save: Save = "auto") -> None:
        self.text = self.all_text = text
        self._change = change
        self._save = save

    @functools.cached_property
    def interpreter(self) -> Interpreter:
        return Interpreter(self._change(_differentiated(self.text)))

    @functools.cached_property
    def _split(self) -> tuple[Interpreter, dict[str, SplitPair]]:
        module, pairs = _with_pairs(self.text, self._save)
        return Interpreter(self._change(module)), {pair.primal: pair for pair in pairs}


# Many changes are tried on each program.
@functools.cache
def _differentiated(text: str) -> Module:
    return differentiate(parse(text))


@functools.cache
def _with_pairs(text: str, save: Save) -> tuple[Module, Sequence[SplitPair]]:
    return split_pairs(parse(text), save=save)


def verified(change: Change) -> Change:
    """The change, with the invariants of the IR checked behind it. The interpreter evaluates a
    right side before it writes, whatever it reads; statements must not come to depend on that."""

    def run(module: Module) -> Module:
        new = change(module)
        verify(new)
        if old_values(module) == module:
            assert old_values(new) == new, "a statement depends on the order of its elements"
        return new

    return run


@functools.cache
def expected(point: Point) -> tuple[Any, list[Any], Any]:
    """Values, adjoints of the results and of the arguments, by the program as it stands."""
    program = Changed(point.text, lambda module: module)
    values = program.value(point.function, point.args)
    weights: list[Any] = list(random_weights(values, torch.Generator().manual_seed(3)))
    where = differentiable(point.args)
    adjoints = program.adjoint(point.function, point.args, weights) if where else ()
    return values, weights, dict(zip(where, adjoints, strict=True))


def compare(point: Point, program: Changed, tolerance: float = 1e-9) -> None:
    """Values, adjoints by the explicit derivative and by the split pair, for all arguments and for
    some of them."""
    values, weights, adjoints = expected(point)
    found = program.value(point.function, point.args)
    for k, (value, right) in enumerate(zip(found, values, strict=True)):
        oracle.close(value, right, tolerance, f"result {k}")
    if not adjoints:
        return
    explicit = program.adjoint(point.function, point.args, weights)
    for k, value in zip(adjoints, explicit, strict=True):
        oracle.close(value, adjoints[k], tolerance, f"adjoint of argument {k}")
    where = list(adjoints)
    for wanted in {tuple(where), tuple(where[:1]), tuple(where[1:])}:
        split = program.split_adjoint(point.function, point.args, weights, wanted)
        for k in wanted:
            what = f"split, adjoint of argument {k}, wanted: {wanted}"
            oracle.close(split[k], adjoints[k], tolerance, what)


def with_derivative(text: str) -> str:
    function = entry(text)
    return f"{text}\nd_{function} = rev_diff({function})\n"


def random_points(wanted: int | None, few: int = 8) -> Iterator[Point]:
    """Random programs whose values and derivatives have a moderate size: always the same few, or as
    many others as are wanted."""
    rng = random.Random() if wanted else random.Random(1)
    left = wanted or few
    while left:
        seed = rng.randrange(1 << 30)
        program = Generator(random.Random(seed)).program(outs=False)
        point = Point(str(seed), with_derivative(program.text), "f", program.args)
        values, _, adjoints = expected(point)
        found = [np.abs(np.asarray(v)) for v in (*values, *adjoints.values())]
        if all(np.all(np.isfinite(v)) and np.max(v, initial=0.0) < 1e6 for v in found):
            left -= 1
            yield point


def of_cases(cases: Sequence[Any]) -> list[Point]:
    return [
        Point(c.name, with_derivative(c.text), entry(c.text), tuple(c.arguments())) for c in cases
    ]


INDEX_POINTS = of_cases(INDEX_CASES)
TRAP_POINTS = of_cases(TRAP_CASES)
OPERATOR_POINTS = of_cases(OPERATOR_CASES)


def _layers(largest: int = 1500) -> list[Point]:
    """CapsNet's functions at the smaller points of ``capsnet-loma compare``."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in CAPSNET.glob("*.loma")}
    files = {"predictions": "digit_capsules", "routing": "digit_capsules"}
    found: list[Point] = []
    for case in function_cases():
        args = case.make(torch.Generator().manual_seed(4))
        if sum(arg.numel() for arg in args if isinstance(arg, torch.Tensor)) <= largest:
            text = texts[files.get(case.function, case.function)]
            name = f"{case.function} {case.point}".replace(" ", "_")
            found.append(Point(name, text, case.function, args))
    assert {point.function for point in found} >= {*texts} - {"primary"}
    return found


LAYER_POINTS = _layers()
