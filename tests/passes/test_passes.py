"""Passes of the optimiser: programs and their derivatives mean the same behind each of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from changed_programs import (
    INDEX_POINTS, LAYER_POINTS, OPERATOR_POINTS, TRAP_POINTS, Change, Changed, Point, compare,
    expected, random_points, verified,
)  # fmt: skip
from sampled import one_in
from test_specialise_pass import values_of

from loma import passes
from loma.backends.interpreter import Interpreter
from loma.core.ir import Module
from loma.core.saving import SAVES, Save
from loma.core.verify import verify
from loma.passes import canonical
from loma.passes.powers import powers

# One point of each of CapsNet's functions, whose texts are long. All passes together get them all.
LAYERS = list({point.function: point for point in reversed(LAYER_POINTS)}.values())
LATER = [pytest.param(point, marks=pytest.mark.full) for point in LAYERS]
PROGRAMS = [*INDEX_POINTS, *TRAP_POINTS]
PASSES: Mapping[str, Change] = {
    "inline": canonical.inline,
    "copies": canonical.copies,
    "scalar_calls": canonical.scalar_calls,
    "joins": canonical.joins,
    "operators": canonical.operators,
    "invariants": canonical.invariants,
    "reductions": canonical.reductions,
    "exponentials": lambda m: canonical.exponentials(canonical.activations(canonical.softmax(m))),
    "costly": canonical.costly,
    "places": canonical.places,
    "whole_ranges": canonical.whole_ranges,
    "extremes": canonical.extremes,
    "loops": canonical.loops,
    "best_values": lambda module: canonical.best_values(canonical.winners(module)),
    "conditions": canonical.conditions,
    "windows": canonical.windows,
    "stacks": lambda module: canonical.stacks(canonical.operators(module)),
    "remainders": canonical.remainders,
    "channels": canonical.channels,
    "even": lambda module: canonical.channels(canonical.even(module)),
    "quotients": canonical.quotients,
    "temporaries": canonical.temporaries,
    "factor": canonical.factor,
    "groups": canonical.groups,
    "alike": lambda module: canonical.alike(canonical.operators(module)),
    "joined": passes.canonical_form,
    "first_write": passes.first_write,
    "zeroing": passes.zeroing,
    "overwritten": passes.overwritten,
    "reuse": passes.reuse,
    "common_sums": passes.common_sums,
    "additions": passes.additions,
    "interleaving": passes.interleaving,
    "powers": powers,
    "wanted": passes.wanted,
    "dead_code": passes.dead_code,
    "optimise": passes.optimise,
}


@functools.cache
def changed(text: str, name: str, save: Save) -> Changed:
    return Changed(text, verified(PASSES[name]), save)


@pytest.mark.parametrize("point", [*one_in(12, PROGRAMS), *LATER], ids=lambda p: p.name)
def test_each_pass(point: Point) -> None:
    for name in PASSES:
        compare(point, changed(point.text, name, "auto"))


@pytest.mark.parametrize(
    "point",
    [
        *one_in(12, [*PROGRAMS, *OPERATOR_POINTS], 2),
        *(pytest.param(point, marks=pytest.mark.full) for point in LAYER_POINTS),
    ],
    ids=lambda p: p.name,
)
def test_all_passes_for_each_way_to_save(point: Point) -> None:
    for save in SAVES:
        compare(point, changed(point.text, "optimise", save))


class _Sized(Interpreter):
    """Runs each function as it is for the sizes and ints of the call."""

    def call(self, name: str, *args: Any) -> tuple[Any, ...]:
        function = self.module.function(name)
        own = passes.specialise(function, values_of(function, args))
        functions = tuple(own if f.name == name else f for f in self.module.functions)
        module = passes.optimise(replace(self.module, functions=functions))
        verify(module)
        return Interpreter(module).call(name, *args)


class _SizedProgram(Changed):
    @property
    def interpreter(self) -> Interpreter:
        return _Sized(super().interpreter.module)

    @property
    def _split(self) -> Any:
        interpreter, pairs = super()._split
        return _Sized(interpreter.module), pairs


@functools.cache
def sized(text: str) -> Changed:
    return _SizedProgram(text, passes.canonical_form)


@pytest.mark.parametrize("point", [*one_in(12, PROGRAMS, 5), *LATER], ids=lambda p: p.name)
def test_known_sizes(point: Point) -> None:
    compare(point, sized(point.text))


@pytest.mark.full
def test_random_programs(request: pytest.FixtureRequest) -> None:
    for number, point in enumerate(random_points(request.config.getoption("--fuzz-examples"), 6)):
        name = tuple(PASSES)[number % len(PASSES)]
        compare(point, changed(point.text, name, "auto"))
        compare(point, changed(point.text, "optimise", SAVES[number % 3]))
        compare(point, sized(point.text))


def _without_zeros(module: Module) -> Module:
    """A pass that is wrong: what is cleared keeps its value."""
    from loma.core.ir import Zero
    from loma.core.walk import map_blocks

    def kept(body: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(map_blocks(s, kept) for s in body if not isinstance(s, Zero))

    functions = tuple(replace(f, body=kept(f.body)) for f in module.functions)
    return replace(module, functions=functions)


@pytest.mark.parametrize("wrong", [_without_zeros])
def test_a_wrong_pass_is_found(wrong: Callable[[Module], Module]) -> None:
    point = next(p for p in TRAP_POINTS if p.name == "zeroed_and_reused")
    assert expected(point)
    with pytest.raises(AssertionError):
        compare(point, Changed(point.text, wrong))
