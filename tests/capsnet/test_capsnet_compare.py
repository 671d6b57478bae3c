"""``capsnet-loma compare``: it passes, and it fails when a derivative is wrong."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import fresh
import pytest
import torch

from capsnet_loma.layers import FUNCTIONS
from capsnet_loma.profiling.compare import Comparison, Report, compare, relative_error
from loma import config

ROOT = Path(__file__).resolve().parents[2]


def test_everything_agrees(pytestconfig: pytest.Config) -> None:
    """Some layers in float64, and the network in float32; with --full each in both."""
    names = FUNCTIONS if pytestconfig.getoption("--full") else FUNCTIONS[::4]
    if names == FUNCTIONS:
        reports = [compare()]
    else:
        layers = compare((torch.float64,), names=names)
        reports = [layers, compare((torch.float32,), names=("network",))]
    found = [item for report in reports for item in report.comparisons]
    assert all(report.ok for report in reports), [report.failures() for report in reports]
    assert {item.function for item in found} == {*names, "network"}
    for name in names:  # each layer under autograd and by its explicit derivative
        assert {i.how for i in found if i.function == name} == {"autograd", "d_f"}


def test_a_broken_rule_is_found(tmp_path: Path) -> None:
    """The rule of sqrt is multiplied by 1 + 1e-6, in a process with a cache of its own.

    What the C++ compiler made is shared, since its key is the C++; what loma made of a program is
    not, since its key does not know of the broken rule.
    """
    own = tmp_path / "cache"
    own.mkdir()
    for name in ("objects", "locks", "temporary"):
        shared = config.cache_dir() / name
        shared.mkdir(parents=True, exist_ok=True)
        (own / name).symlink_to(shared)
    program = tmp_path / "broken.py"
    program.write_text(BREAK_SQRT, encoding="utf-8")
    environment = {
        **os.environ,
        "LOMA_CACHE_DIR": str(own),
        "PYTHONPATH": str(ROOT),
    }
    command = [program, "compare", "--json"]
    command += ["--function", "lengths", "--function", "reconstruction_loss"]
    done = fresh.run(command, env=environment)
    assert done.returncode == 1, done.stderr
    assert done.stdout, done.stderr
    wrong = [item for item in json.loads(done.stdout)["comparisons"] if not item["ok"]]
    assert {(item["function"], item["what"], item["dtype"]) for item in wrong} == {
        ("lengths", "d capsules", "float64")
    }
    assert {item["how"] for item in wrong} == {"autograd", "d_f"}
    assert all(1e-7 < item["max_relative"] < 1e-5 for item in wrong)


BREAK_SQRT = """
from dataclasses import replace

from loma.core import builder as b
from loma.ad import rules

right = rules.SCALAR_RULES["sqrt"]

def wrong(x):
    (slope,) = right(x)
    return (replace(slope, partial=b.mul(b.flt(1.000001), slope.partial)),)

rules.SCALAR_RULES["sqrt"] = wrong

from capsnet_loma.commands.cli import main

main()
"""


def test_relative_error() -> None:
    expected = torch.tensor([1.0, -4.0], dtype=torch.float64)
    assert relative_error(expected + 0.5, expected) == (0.5, 0.125)
    assert relative_error(expected[:1], expected) == (math.inf, math.inf)
    assert relative_error(expected.float(), expected) == (math.inf, math.inf)
    zero = torch.zeros(2, dtype=torch.float64)
    assert relative_error(zero, zero) == (0.0, 0.0)
    assert relative_error(zero + 1e-12, zero)[1] > 1.0
    assert math.isnan(relative_error(expected * math.nan, expected)[1])


def test_nan_is_a_failure() -> None:
    item = Comparison("squash", "zero", "float64", "d_f", "d S", math.nan, math.nan, 1e-9)
    good = Comparison("squash", "one", "float64", "d_f", "d S", 0.0, 0.0, 1e-9)
    report = Report((good, item, good))
    assert not report.ok
    assert report.failures() == [item]
    assert report.summary() == [item]
    assert json.dumps(report.to_json(), allow_nan=False).count('"nan"') == 2


@pytest.mark.full
@pytest.mark.parametrize("iterations", [1, 3])
def test_second_derivative_of_routing(iterations: int) -> None:
    from capsnet_loma.layers import layers

    predicted = torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda u: layers().routing(u, iterations, 0), (predicted,), atol=1e-6
    )
