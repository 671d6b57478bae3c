"""Tuning on a GPU that is there: what is measured, and calls, streams and graphs around it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import fresh
import pytest
import torch
from click.testing import CliRunner
from conftest import ROOT

from loma.tools import cli

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

PROGRAM = """
def scaled(x : In[Tensor[N, D]], g : In[Tensor[D]]) -> Tensor[N, D]:
    s : Tensor[N]
    y : Tensor[N, D]
    s[i] = sum(x[i, d] * x[i, d] for d in D)
    y[i, d] = x[i, d] * g[d] / sqrt(s[i] / int2float(D) + 1e-5)
    return y

def step(x : Out[Tensor[N, D]], g : In[Tensor[D]]):
    x[i, d] = x[i, d] - 0.5 * tanh(x[i, d]) * g[d]

def attended(q : In[Tensor[T, E]], k : In[Tensor[S, E]], v : In[Tensor[S, E]]) -> Tensor[T, E]:
    w : Tensor[T, S] = softmax(matmul(q, transpose(k, 0, 1)), 1)
    return matmul(w, v)
"""
SEARCHED = """
import time
import torch
import loma
from loma import specialise
from loma.tuning import calls, search

searched = []
tune = calls.tune
def told(kernel, *others):
    searched.append(kernel.sizes)
    return tune(kernel, *others)
calls.tune = told
search.Search._confirmed = lambda *_: (0.5, 0.01)  # whatever was found is adopted

def wanted(x, g):
    x, g = x.double(), g.double()
    return (x * g / (x.square().mean(1, keepdim=True) + 1e-5).sqrt()).float()

x, g = torch.randn(4000, 512, device="cuda"), torch.randn(512, device="cuda")
stream = torch.cuda.Stream()
m = loma.compile(PROGRAM, tune=4.0)
with torch.cuda.stream(stream):  # which the search is on
    big = torch.randn(4000, 512, device="cuda")
    first = m.scaled(big, g)
    torch.testing.assert_close(first, wanted(big, g), rtol=1e-4, atol=1e-4)
assert searched == [{"N": 4000, "D": 512}], searched
(result,) = specialise.tuned()
assert result.device == "cuda" and torch.cuda.get_device_name(0) in result.processor, result
assert result.compiler.startswith("NVRTC "), result
assert result.history, result
again = m.scaled(x, g)
assert torch.equal(again, m.scaled(x, g))

# Calls in narrow dtypes, also by matrix units, and calls that write in place.
for dtype, off in ((torch.bfloat16, 5e-2), (torch.float16, 5e-3)):
    narrow = x.to(dtype), g.to(dtype)
    torch.testing.assert_close(m.scaled(*narrow).float(), again, rtol=off, atol=off)
    q = torch.randn(512, 64, device="cuda", dtype=dtype)
    y, wide = m.attended(q, q, q), q.double()
    expected = (wide @ wide.T).softmax(1) @ wide
    torch.testing.assert_close(y.double(), expected, rtol=off, atol=off)
    assert torch.equal(y, m.attended(q, q, q))
found = {(r.function, r.dtype) for r in specialise.tuned()}
assert found >= {(f, t) for f in ("scaled", "attended") for t in ("bfloat16", "float16")}, found
state = x.clone()
m.step(state, g)
once = (x.double() - 0.5 * x.double().tanh() * g.double()).float()
torch.testing.assert_close(state, once, rtol=1e-5, atol=1e-5)
assert any(r.function == "step" for r in specialise.tuned())

# A warm call does not wait for what the GPU still does.
torch.cuda.synchronize()
torch.cuda._sleep(1_000_000_000)
start = time.perf_counter()
m.scaled(x, g)
assert time.perf_counter() - start < 0.1
torch.cuda.synchronize()

# Graphs: of what is tuned, and of sizes that were never called, which are not searched.
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = m.scaled(x, g)
graph.replay()
torch.cuda.synchronize()
assert torch.equal(y, again)
loma.compile(PROGRAM.replace("scaled", "plain")).plain(x[:77], g)  # loads the forms that it needs
m.scaled(x.double(), g.double())
calls.tune = lambda *_: searched.append("in a graph")
before = list(searched)
small = x[:4000, :256].contiguous()
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    m.scaled(small, g[:256])
assert searched == before, searched
loma.check_device()
print("done")
"""


def test_a_search_on_a_gpu(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {**os.environ, "PYTHONPATH": paths, "LOMA_SPECIALISATIONS": "8"}
    given["LOMA_CACHE_DIR"] = str(tmp_path)
    process = fresh.run(["-c", f"PROGRAM = {PROGRAM!r}\n{SEARCHED}"], env=given, timeout=500)
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.strip().endswith("done")


def test_the_command_tunes_on_the_gpu(tmp_path: Path) -> None:
    file = tmp_path / "scaled.loma"
    file.write_text(PROGRAM)
    code = f"""
import sys
from loma.tools import cli
sys.argv = ["loma", "tune", {str(file)!r}, "scaled", "--size", "N=3000", "--size", "D=256",
            "--device", "cuda", "--seconds", "5", "--backward", "--json"]
cli.main()
"""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {**os.environ, "PYTHONPATH": paths, "LOMA_SPECIALISATIONS": "8"}
    given["LOMA_CACHE_DIR"] = str(tmp_path / "cache")
    process = fresh.run(["-c", code], env=given, timeout=500)
    assert process.returncode == 0, process.stderr[-3000:]
    found = json.loads(process.stdout)["results"]
    assert {record["device"] for record in found} == {"cuda"}
    assert len(found) == 2


def test_without_a_gpu_the_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file = tmp_path / "scaled.loma"
    file.write_text(PROGRAM)
    sizes = ["--size", "N=3", "--size", "D=2"]
    result = CliRunner().invoke(cli.main, ["tune", str(file), "scaled", *sizes, "--device", "cuda"])
    assert result.exit_code != 0
    assert "needs a GPU that torch can use" in result.output
