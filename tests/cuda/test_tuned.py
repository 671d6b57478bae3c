"""Tuning on GPUs: what is chosen changes launches and no result; what is found is kept and used.

The shim runs what a GPU would; which candidate is the fastest is no matter of these tests.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import fresh
import geometry
import pytest
from sampled import one_in
import shim
import torch
from conftest import ROOT
from searches import PREFER
from test_geometry import SHARED, SIZES, check

import loma
from loma import pipeline
from loma.backends import toolchain
from loma.backends.cuda import images
from loma.backends.schedule.choices import Choices, Taken
from loma.tuning import calls

pytestmark = pytest.mark.cpu

PROGRAM = """
def normalised(x : In[Tensor[N, D]], g : In[Tensor[D]]) -> Tensor[N, D]:
    s : Tensor[N]
    y : Tensor[N, D]
    s[i] = sum(x[i, d] * x[i, d] for d in D)
    y[i, d] = x[i, d] * g[d] / sqrt(s[i] / int2float(D) + 1e-5)
    return y

def columns(x : In[Tensor[N, D]], g : In[Tensor[D]]) -> Tensor[D]:
    y : Tensor[D]
    y[d] = sum(x[i, d] * g[d] for i in N)
    return y

def scaled(x : In[Tensor[N, D]], g : In[Tensor[D]]) -> Tensor[N, D]:
    y : Tensor[N, D]
    y[i, d] = tanh(x[i, d]) * g[d]
    return y

def total(x : In[Tensor[N, D]], g : In[Tensor[D]]) -> float:
    return sum(x[i, d] * g[d] for i in N for d in D)

def filtered(x : In[Tensor[N, D]], g : In[Tensor[D]]) -> Tensor[N, D]:
    y : Tensor[N, D]
    y[i, d] = sum(tanh(x[i, k]) * g[(d + k) % D] for k in D)
    return y

def taken_from(x : In[Tensor[N]], order : In[IntTensor[M]]) -> Tensor[M]:
    y : Tensor[M]
    y[i] = x[order[i]]
    return y
"""
FUNCTIONS = ("normalised", "columns", "scaled", "total", "filtered")
SIZES_OF_CALL = {"N": 36, "D": 40}


def _wanted(x: torch.Tensor, g: torch.Tensor) -> dict[str, torch.Tensor]:
    x, g = x.double(), g.double()
    turned = torch.stack([g.roll(-k) for k in range(len(g))])
    return {
        "normalised": x * g / (x.square().mean(1, keepdim=True) + 1e-5).sqrt(),
        "columns": (x * g).sum(0),
        "scaled": x.tanh() * g,
        "total": (x * g).sum(),
        "filtered": x.tanh() @ turned,
    }


@functools.cache
def _stage() -> pipeline.Optimised:
    return pipeline.program(PROGRAM, name="tuned")


def _source(function: str, choices: Choices | None) -> str:
    stage = _stage()
    values = None if choices is None else SIZES_OF_CALL
    return pipeline.device_part(stage, function, "ns", values=values, choices=choices).text


@pytest.mark.parametrize("function", one_in(2, FUNCTIONS, 1))
def test_what_is_taken_stands_before_the_launch(function: str) -> None:
    general, usual = _source(function, None), Choices()
    assert ".shape()" not in general
    assert ".shape()" not in _source(function, usual)
    kinds = {choice.kind for choice in usual.found.values()}
    assert kinds >= {"statements", "threads", "blocks", "registers", "unroll"}
    assert ("team" in kinds) == (function != "scaled")
    assert ("block" in kinds) == (function == "columns")
    # A kernel of rows has its statements beside it, for few rows of much work.
    assert ("beside" in kinds) == (function in ("normalised", "scaled", "filtered"))
    assert ("slices" in kinds) == (function != "scaled")
    for name, choice in usual.found.items():
        text = _source(function, Choices({name: choice.options[1]}))
        if choice.kind not in ("statements", "panel", "block"):
            assert f"launch_.shape().{choice.kind} = {choice.options[1]};" in text


def test_the_work_of_choices_follows_from_the_sizes_at_hand() -> None:
    usual = Choices()
    _source("total", usual)
    assert usual.found["team of _number"].work == 36 * 40


# ------------------------------------------------------------------------------------- geometries


def _shapes() -> list[dict[str, int]]:
    one = [{name: k} for name in ("team", "threads", "slices") for k in (-3, -1, 1, 3, 9)]
    one += [{"beside": k} for k in (1, 2, 3, 4)] + [{"blocks": 1}, {"blocks": 500}]
    dice = random.Random(0)
    mixed = ({k: v for part in dice.sample(one, 3) for k, v in part.items()} for _ in range(20))
    return [*one, *mixed]


def test_a_launch_has_what_is_wanted_as_far_as_kernels_take_it() -> None:
    shapes = _shapes()
    for count, inner in itertools.product(SIZES[::2], SIZES):
        for shape, across in itertools.product(shapes, (False, True)):
            found = geometry.statement(count, inner, across, True, shape=shape)
            check(found)
            assert found["team"] <= max(inner, 1)
            assert found["threads"] >= 32
            assert found["slices"] <= max(1, inner)
            assert found["blocks"] <= shape.get("blocks", 1 << 14)
        for shape, size in itertools.product(shapes, (0, 1024, 48 << 10)):
            found = geometry.fused(count, inner, size, SHARED, shape=shape)
            check(found)
            teams = found["threads"] // found["team"]
            assert found["shared_bytes"] in (0, teams * size)
            assert found["shared_bytes"] <= SHARED
    usual = geometry.statement(4096, 4096, False, True)
    wider = geometry.statement(4096, 4096, False, True, shape={"team": 1})
    assert wider["team"] == 2 * usual["team"]
    assert geometry.fused(4096, 512, 64, SHARED, shape={"threads": -1})["threads"] == 128
    assert geometry.statement(96, 96, False, True, 6, shape={"beside": 3, "team": -9})["rows"] == 3


# ------------------------------------------------------------------------------------- on the shim


class Dice(Choices):
    """Goes any way, and remembers which."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.gone: dict[str, object] = {}

    def take(self, kind: str, of: str, options: Sequence[Any], work: float = 1.0) -> Any:
        option = self.random.choice(options)
        self.gone[kind] = option
        return option


def _native(module: loma.LomaModule) -> ModuleType:
    assert module.__native__ is not None
    return module.__native__


@contextmanager
def _on_shim(make: images.Make = shim.image) -> Iterator[loma.LomaModule]:
    """Where kernels are made for numbers that are known, as conftest.py turns off."""
    with shim.compiled(PROGRAM, make) as module:
        _native(module).set_image_hooks(images.image, images.later, 8)
        yield module
        _native(module).set_image_hooks(images.image, images.later, 0)


def test_modules_with_the_same_function_have_libraries_of_their_own() -> None:
    stage = _stage()
    texts = [
        pipeline.device_part(stage, "scaled", name, values=SIZES_OF_CALL, choices=Choices()).text
        for name in ("one", "other")
    ]
    assert texts[0] != texts[1]  # by which the cache knows them


def _kernel(module: loma.LomaModule, function: str, choices: Choices) -> object:
    stage = _stage()
    source = pipeline.device_part(
        stage, function, module.__name__, values=SIZES_OF_CALL, choices=choices
    )
    folder = toolchain.build_specialisation(source, module.__folder__, toolchain.detect())
    return calls.loaded(_native(module), folder)


@pytest.mark.parametrize("seed", one_in(5, range(5)))
def test_every_way_computes_the_same(seed: int) -> None:
    x, g = torch.randn(36, 40), torch.randn(40)
    with _on_shim() as module:
        for k, function in enumerate(FUNCTIONS):
            dice = Dice(10 * seed + k)
            kernel = _kernel(module, function, dice)
            (found,) = _native(module).run_kernel(kernel, "float32", (x, g), (), False, 1, ())
            (again,) = _native(module).run_kernel(kernel, "float32", (x, g), (), False, 1, ())
            _native(module).check_devices()
            wanted = _wanted(x, g)[function].float()
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, msg=str(dice.gone))
            assert torch.equal(found, again), dice.gone


def test_one_text_goes_every_way_that_its_caller_says() -> None:
    """As texts of their own do."""
    dice = random.Random(0)
    given = torch.randn(36, 40), torch.randn(40)
    with _on_shim() as module:
        native = _native(module)
        for function in ("normalised", "columns"):
            left = Choices(left=[])
            kernel = _kernel(module, function, left)
            assert left.left
            for _ in range(2):
                taken = {name: dice.choice(left.found[name].options) for name in left.left}
                tried = tuple(taken.values())
                found = native.trace_kernel(kernel, "float32", given, (), 1, tried)
                own = _kernel(module, function, Choices(taken))
                assert found == native.trace_kernel(own, "float32", given, (), 1, ()), taken
            usual = native.trace_kernel(kernel, "float32", given, (), 1, ())
            assert found != usual
            own = _kernel(module, function, Choices())
            assert usual == native.trace_kernel(own, "float32", given, (), 1, ())


def test_a_kernel_by_itself_takes_no_part_and_knows_its_numbers_at_once() -> None:
    asked: list[Sequence[str]] = []

    def image(name: str, text: str, options: Sequence[str], architecture: str) -> bytes:
        asked.append(options)
        return shim.image(name, text, options, architecture)

    x, g = torch.randn(36, 40), torch.randn(40)
    with _on_shim(image) as module:
        taken: Taken = {"threads of y": -2, "registers of y": 40, "unroll of y": 8}
        kernel = _kernel(module, "scaled", Choices(taken))
        launches = _native(module).trace_kernel(kernel, "float32", (x, g), (), 1, ())
        assert len(launches) == 1
        (options,) = asked
        assert {"-DLOMA_KNOWN", "-DLOMA_THREADS=64", "-DLOMA_REGISTERS=40"} <= {*options}
        assert "-DLOMA_ROUNDS=8" in options
        module.scaled(x, g)  # by the general kernel
        assert "-DLOMA_THREADS=256" in asked[1]
        assert "-DLOMA_KNOWN" not in asked[1]


# ----------------------------------------------------------------------- searched, kept, and used

HEAD = """
import shutil, sys, warnings
from pathlib import Path
sys.path[:0] = PATHS
import devices; devices.use("shim")
import torch
import loma
from loma import specialise
from loma.tuning import calls, gpus, results, search

torch.manual_seed(0)
x, g = torch.randn(36, 40), torch.randn(40)
FOLDER = Path(FOLDER)

def never(*_):
    raise AssertionError("a search")
"""
SEARCHED = """
prefer("threads")
m = loma.compile(PROGRAM, tune=600.0)
first = m.normalised(x, g)
(result,) = specialise.tuned()
assert result.choices.keys() == {"threads of y"}, result
assert (result.device, result.threads, result.processor) == ("cuda", 0, "stand-in"), result
assert not result.foreign()
assert torch.equal(first, m.normalised(x, g))
native = m.__native__
(made,) = specialise.made()

# Another search would know where to begin; a call whose check fails is no result.
assert calls.nearest(result.text, {"N": 7, "D": 9}, "float32", "cuda") == [result.choices]
assert calls.nearest(result.text, {"N": 7, "D": 9}, "float32") == []

# Calls in a narrow dtype have kernels of their own.
halves = m.normalised(x.bfloat16(), g.bfloat16())
narrow = [found for found in specialise.tuned() if found.dtype == "bfloat16"]
assert [found.choices.keys() for found in narrow] == [{"threads of y"}], narrow
assert halves.dtype == torch.bfloat16
torch.testing.assert_close(halves.float(), first, rtol=5e-2, atol=5e-2)

try:
    m.taken_from(g, torch.tensor([0, 99]))
except ValueError as error:
    assert "99" in str(error), error
else:
    raise AssertionError("a subscript outside")
assert {found.function for found in specialise.tuned()} == {"normalised"}
assert torch.equal(first, m.normalised(x, g))  # that error is told

torch.use_deterministic_algorithms(True)
general = m.normalised(x, g)
torch.save((first, general), FOLDER / "bits.pt")
results.write(FOLDER / "tuned.json", results.stored())
"""
USED = """
search.Search.run = never
first, general = torch.load(FOLDER / "bits.pt")
m = loma.compile(PROGRAM, tune="auto")
assert torch.equal(first, m.normalised(x, g))
assert [made.function for made in specialise.made()] == ["normalised"]
assert specialise.sources(m) == []  # no GPU's kernel goes into a program of C++
m.scaled(x, g)  # nothing is known: nothing is looked for
assert len(specialise.made()) == 1
"""
OFF = """
first, general = torch.load(FOLDER / "bits.pt")
m = loma.compile(PROGRAM)
assert torch.equal(general, m.normalised(x, g))
assert specialise.made() == [] and specialise.tuned() == []
"""
IMPORTED = """
search.Search.run = never
first, general = torch.load(FOLDER / "bits.pt")
for result in results.read(FOLDER / "tuned.json"):
    results.store(result)
m = loma.compile(PROGRAM, tune="auto")
for note, folder in list(specialise._known(m.__folder__)):  # as if another machine had made it
    if note["device"] == "cuda":
        shutil.rmtree(folder)
assert torch.equal(general, m.normalised(x, g))  # meanwhile
assert specialise.wait(300)
assert torch.equal(first, m.normalised(x, g))
"""
STALE = """
first, general = torch.load(FOLDER / "bits.pt")
gpus.name = lambda device: "another GPU"
m = loma.compile(PROGRAM, tune="auto")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    assert torch.equal(general, m.normalised(x, g))
    assert torch.equal(general, m.normalised(x, g))
    m.normalised(x[:20], g)
texts = [str(warning.message) for warning in told]
(text,) = [text for text in texts if "'module.normalised' came from another GPU" in text]
assert "another GPU or driver and is not used: tune it again" in text, text
assert specialise.made() == []
"""
CAPTURED = """
import ctypes, os
ctypes.c_int.in_dll(ctypes.CDLL(os.environ["LOMA_CUDA_DRIVER"]), "capturing").value = 1
search.Search.run = never
x = x[:35]
m = loma.compile(PROGRAM, tune=5.0)
m.normalised(x, g)  # recorded: not searched
search.Search.run = lambda self: None
searched = []
calls.tune = lambda *args: searched.append(args[0].sizes)
m.normalised(x, g)
assert searched == []
ctypes.c_int.in_dll(ctypes.CDLL(os.environ["LOMA_CUDA_DRIVER"]), "capturing").value = 0
m.normalised(x, g)
m.normalised(x, g)
assert searched == [{"N": 35, "D": 40}], searched
"""


def _run(folder: Path, code: str) -> None:
    support = [str(ROOT / "tests" / "support" / part) for part in ("", "cases", "cuda_shim")]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {"PROGRAM": PROGRAM, "FOLDER": str(folder), "PATHS": support}
    head = "\n".join(f"{name} = {value!r}" for name, value in given.items())
    process = fresh.run(
        ["-c", f"{head}\n{HEAD}\n{PREFER}\n{code}"],
        env={**os.environ, "PYTHONPATH": paths, "LOMA_SPECIALISATIONS": "8"},
        timeout=500,
    )
    assert process.returncode == 0, process.stderr[-3000:]


def test_a_search_in_a_call_and_what_follows(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    further = (OFF, STALE, IMPORTED) if pytestconfig.getoption("--full") else (STALE,)
    for code in (SEARCHED, USED, *further):
        _run(tmp_path, code)


def test_nothing_is_looked_for_while_a_graph_is_recorded(tmp_path: Path) -> None:
    _run(tmp_path, CAPTURED)
