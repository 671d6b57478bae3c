"""Whatever way lowering goes, trees compute the same; which ways there are, a lowering tells."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from corpus import tensor_programs
from index_cases import CASES as INDEX_CASES
from schedule_cases import CASES as SCHEDULE_CASES
from tree_runs import run_program

from loma import pipeline
from loma.backends import registry
from loma.backends.schedule.choices import Choices

PROGRAM = """
def distances(a : In[Tensor[N, D]], b : In[Tensor[M, D]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = sum(exp(a[i, k] - b[j, k]) for k in D)
    return y

def products(a : In[Tensor[N, D]], b : In[Tensor[M, D]]) -> Tensor[N]:
    y : Tensor[N, M] = distances(a, b)
    z : Tensor[N]
    z[i] = sum(y[i, j] for j in M)
    return z
"""
SIZES = {"N": 64, "M": 48, "D": 32}


class Dice(Choices):
    """Goes any way, and counts which."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.gone: set[tuple[str, object]] = set()

    def take(self, kind: str, of: str, options: Sequence[Any], work: float = 1.0) -> Any:
        option = self.random.choice(options)
        if option != options[0]:
            self.gone.add((kind, option))
        return option


def _run(programs: Sequence[tuple[str, str]], seed: int) -> set[str]:
    dice = Dice(seed)
    device = replace(registry.CPU, choices=dice)
    for name, text in programs:
        run_program(text, name, tries=1, specialised=True, device=device)
    return {kind for kind, _ in dice.gone}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_every_way_computes_the_same(seed: int, pytestconfig: pytest.Config) -> None:
    full = pytestconfig.getoption("--full")
    programs = [*SCHEDULE_CASES.items(), ("choices", PROGRAM)]
    programs += [(case.name, case.text) for case in INDEX_CASES[seed :: 8 if full else 24]]
    assert _run(programs, seed) >= {"statements", "innermost", "registers"}


@pytest.mark.full
def test_every_way_of_all_programs() -> None:
    for seed in range(3):
        assert len(_run(list(tensor_programs()), seed)) > 4


def _source(choices: Choices) -> str:
    stage = pipeline.program(PROGRAM, name="choices")
    return pipeline.specialised(stage, "products", SIZES, "ns", choices=choices).text


def test_a_lowering_tells_what_there_was_to_choose() -> None:
    usual = Choices()
    text = _source(usual)
    assert text == _source(Choices({"no such choice": 1}))  # as from another program
    assert all(len(set(choice.options)) > 1 for choice in usual.found.values())
    assert {choice.kind for choice in usual.found.values()} >= {"statements", "innermost"}
    name, choice = next((n, c) for n, c in usual.found.items() if c.kind == "innermost")
    assert _source(Choices({name: choice.options[1]})) != text
    assert _source(Choices({name: "no such option"})) == text


def test_names_of_choices() -> None:
    choices = Choices({"strip of y 2": 8})
    assert choices.take("strip", "y", (4, 8)) == 4
    assert choices.take("strip", "y", (4, 8, 8)) == 8
    assert choices.take("strip", "x", (3, 3)) == 3  # nothing to choose
    assert list(choices.found) == ["strip of y", "strip of y 2"]
    assert choices.found["strip of y 2"].options == (4, 8)
