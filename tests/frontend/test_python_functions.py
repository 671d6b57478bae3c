"""What Python has and programs write: ``int(x)``, ``float(n)``, and ``mean`` of a generator."""

from __future__ import annotations

import math

import pytest
import torch
from index_cases import Case
from oracle import Program, check_case, entry
from torch import Tensor

HEAD = "(x : In[Tensor[N, M]], k : In[int]) -> Tensor[N]:\n    y : Tensor[N]\n    y[n] = "
BODIES = {
    "whole": "mean(x[n, m] ** 2 for m in M)",
    "nested": "mean((x[n, m] - mean(x[n, j] for j in M)) ** 2 for m in M)",
    "ranged": "mean(x[n, m] * m for m in range(1, k))",
    "chosen": "mean(x[n, m] for m in M if m % 2 == k - 3)",
    "dependent": "mean(x[n, j] for m in M for j in range(m + 1))",
    "whole_numbers": "x[n, 0] * mean(m for m in M)",
    "bins": "x[n, 0] * x[n, int(abs(x[n, 1])) % M] + float(n) / N + float(x[n, 1] > 0.0)",
}


def _dependent(x: Tensor, k: int) -> Tensor:
    return torch.cat([x[:, : m + 1] for m in range(x.shape[1])], 1).mean(1)


def _bins(x: Tensor, k: int) -> Tensor:
    rows, columns = x.shape
    place = (x[:, 1].abs().long() % columns)[:, None]
    share = torch.arange(rows, dtype=x.dtype) / rows
    return x[:, 0] * x.gather(1, place)[:, 0] + share + (x[:, 1] > 0).to(x.dtype)


REFERENCES = {
    "whole": lambda x, k: (x**2).mean(1),
    "nested": lambda x, k: x.var(1, correction=0),
    "ranged": lambda x, k: (x * torch.arange(x.shape[1]))[:, 1:k].mean(1),
    "chosen": lambda x, k: x[:, k - 3 :: 2].mean(1),
    "dependent": _dependent,
    "whole_numbers": lambda x, k: x[:, 0] * 2.0,
    "bins": _bins,
}
CASES = [
    Case(name, f"def {name}{HEAD}{body}\n    return y\n", REFERENCES[name], ((3, 5), 4))
    for name, body in BODIES.items()
]


@pytest.fixture(scope="module")
def program() -> Program:
    return Program([case.text for case in CASES], first=())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_and_derivatives(case: Case, program: Program) -> None:
    check_case(program, case, libtorch=entry(case.text) in ("ranged", "bins"))


@pytest.mark.parametrize("k", [1, 0, -2])
def test_a_mean_of_nothing_is_no_number(k: int, program: Program) -> None:
    x = torch.ones(2, 3, dtype=torch.float64)
    (found,) = program.value("ranged", (x, k))
    assert all(map(math.isnan, found.tolist()))
