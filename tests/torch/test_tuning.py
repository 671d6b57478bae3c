"""Kernels that a tuner chooses: searched in a call, kept, loaded by other processes, and as safe.

Which candidate is the fastest is no matter of these tests: the search is told.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import fresh
import pytest
from click.testing import CliRunner
from conftest import ROOT
from searches import PREFER

import loma
from loma.errors import SettingError
from loma.tools import cli

pytestmark = pytest.mark.cpu

PROGRAM = """
def logs(x : In[Tensor[N, M]], w : In[Tensor[M, K]]) -> Tensor[N, K]:
    s : Tensor[N, M]
    y : Tensor[N, K]
    s[i, j] = exp(x[i, j])
    y[i, k] = sum(tanh(s[i, j] * w[j, k]) for j in M)
    return y

def decay(x : Out[Tensor[N, M]], w : In[Tensor[M, K]], order : In[IntTensor[L]]):
    x[i, j] = 0.5 * x[i, j] + sum(tanh(x[i, j] * w[j, k]) for k in K)
    for l in range(L):
        x[order[l], 0] = 1.0

def pick(x : In[Tensor[N]], order : In[IntTensor[M]]) -> Tensor[M]:
    y : Tensor[M]
    y[i] = x[order[i]]
    return y
"""
HEAD = """
import json, sys, threading, warnings
from pathlib import Path
import torch
import loma, loma.specialise
from loma import specialise
from loma.tuning import results, search

torch.manual_seed(0)
x, w = torch.randn(12, 20), torch.randn(20, 33)

def wanted():
    return (x.double().exp()[:, :, None] * w.double()).tanh().sum(1).float()
"""


def run(folder: Path, code: str) -> str:
    """What a process of its own prints."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = fresh.run(
        ["-c", f"PROGRAM = {PROGRAM!r}\nFOLDER = {str(folder)!r}\n{HEAD}\n{PREFER}\n{code}"],
        env={**os.environ, "PYTHONPATH": paths, "LOMA_SPECIALISATIONS": "8"},
        timeout=500,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout.strip()


SEARCHED = """
prefer("innermost")
m = loma.compile(PROGRAM, tune=600.0)
first = m.logs(x, w)
(result,) = specialise.tuned()
assert list(result.choices) and result.choices.keys() <= {"innermost of y"}, result
assert result.sizes == {"N": 12, "M": 20, "K": 33}, result
torch.testing.assert_close(first, wanted(), rtol=1e-5, atol=1e-5)
again = m.logs(x, w)
assert torch.equal(first, again)  # the winner has served the first call
(made,) = specialise.made()
assert made.function == "logs"

# Its errors are the program's, in threads, too; and a failing call is no result.
for order in ([0, 7], [0, 99]):
    try:
        m.pick(x[0], torch.tensor(order))
    except ValueError:
        assert order == [0, 99]
assert {r.function for r in specialise.tuned()} == {"logs", "pick"}, specialise.tuned()

# What is written in place is written once, by the kernel that was found, also where a call fails.
state, none = x.clone(), torch.tensor([], dtype=torch.int64)
m.decay(state, w, none)
once = (0.5 * x.double() + (x.double()[:, :, None] * w.double()).tanh().sum(2)).float()
torch.testing.assert_close(state, once, rtol=1e-5, atol=1e-5)
(found,) = [r for r in specialise.tuned() if r.function == "decay"]
assert found.choices, found
again = x.clone()
m.decay(again, w, none)
assert torch.equal(state, again)
try:
    m.decay(again, w, torch.tensor([3, 99]))
except ValueError as error:
    assert "line 12: subscript 'order[l]' of 'x' is 99, outside dimension 0" in str(error), error
else:
    raise AssertionError("a subscript outside")

# The same bits for any number of threads.
for threads in (1, 2, 3):
    torch.set_num_threads(threads)
    assert torch.equal(first, m.logs(x, w))
torch.use_deterministic_algorithms(True)
general = m.logs(x, w)
torch.save((first, general), Path(FOLDER, "bits.pt"))
results.write(Path(FOLDER, "p.json"), results.stored())
print(json.dumps(result.choices))
"""
USED = """
def none(*_):
    raise AssertionError("a search")
search.Search.run = none
first, general = torch.load(Path(FOLDER, "bits.pt"))
m = loma.compile(PROGRAM, tune="auto")
assert torch.equal(first, m.logs(x, w))
assert [made.function for made in specialise.made()] == ["logs"]
with warnings.catch_warnings():
    warnings.simplefilter("error")
    other = loma.compile(PROGRAM, tune=5.0)
    assert other is m
    m.logs(x, w)  # known: not searched
assert len(specialise.sources(m)) == 3  # with those of others; not the usual one of logs
"""
OFF = """
m = loma.compile(PROGRAM)
first, general = torch.load(Path(FOLDER, "bits.pt"))
y = m.logs(x, w)
assert torch.equal(y, general)
assert specialise.made() == [] and specialise.tuned() == []
"""


def test_a_search_in_a_call_and_what_follows(tmp_path: Path) -> None:
    choices = json.loads(run(tmp_path, SEARCHED))
    assert choices
    run(tmp_path, USED)
    run(tmp_path, OFF)
    result = CliRunner().invoke(cli.main, ["tuning", "--json"])
    found = json.loads(result.output)["results"]
    assert choices in [record["choices"] for record in found]


def test_what_has_no_kernels_for_known_sizes_cannot_be_tuned() -> None:
    with pytest.raises(SettingError, match="needs kernels for known sizes"):
        loma.compile(PROGRAM, tune="auto")  # conftest.py turns them off
    assert loma.compile(PROGRAM, tune="off") is loma.compile(PROGRAM)
    with pytest.raises(ValueError, match="tune must be"):
        loma.compile(PROGRAM, tune="always")  # type: ignore[arg-type]
