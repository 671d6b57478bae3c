"""What operators are called: by the program, so that graphs and files read well and stay valid."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

import fresh
import pytest
import torch

import loma
from loma import cache, pipeline
from loma.errors.excerpts import Text
from loma.program import Program

ROOT = Path(loma.__file__).resolve().parents[1]

DOUBLE = """
def twice(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = 2.0 * exp(x[i])
    return y
"""
NORM = """
def unit(x : In[Tensor[N, M]]) -> Tensor[N, M]:
    q : Tensor[N]
    q[i] += x[i, j] * x[i, j]
    y : Tensor[N, M]
    y[i, j] = x[i, j] / sqrt(q[i])
    return y
"""
TRIPLE = DOUBLE.replace("2.0", "3.0")


def program(text: str, **settings: Any) -> Program:
    return Program(text, "layer.loma", "layer", **settings)


def imported(text: str) -> Text:
    made = Text("from other import f\n" + DOUBLE)
    made.imports = [("folder/other.loma", text)]
    return made


def test_the_name_is_the_functions_and_the_overload_the_programs() -> None:
    double, triple = loma.compile(DOUBLE), loma.compile(TRIPLE)
    overload = program(DOUBLE).overload()
    assert str(double.twice.operator) == f"loma.twice.{overload}"
    x = torch.zeros(2)
    assert torch.equal(getattr(torch.ops.loma.twice, str(overload))(x), 2.0 * torch.ones(2))
    assert double.twice(x).tolist() == [2.0, 2.0]
    assert triple.twice(x).tolist() == [3.0, 3.0]
    assert double.twice.operator != triple.twice.operator


def test_profiles_have_the_name(on_cpu: bool) -> None:
    unit = loma.compile(NORM).unit
    with torch.profiler.profile() as profile:
        unit(torch.ones(2, 3, requires_grad=True)).sum().backward()
    names = {event.name for event in profile.events()}
    operators = {"loma::unit", "loma::unit__forward", "loma::unit__backward"}
    kernels = {"loma::unit__forward, lines 4 to 6", "loma::unit__backward, lines 4 to 6"}
    if not on_cpu:  # a GPU's are events of the device, which have their functions' names
        kernels = set()
    assert {name for name in names if name.startswith("loma::")} == operators | kernels


@pytest.mark.cpu
def test_all_samples_of_vmap_run_in_the_kernels_of_one() -> None:
    """Nothing is called once for each."""
    unit = loma.compile(NORM).unit
    gradient = torch.func.grad(lambda x: unit(x).sum())

    def kernels(run: Any, *shape: int) -> list[str]:
        run(torch.ones(shape))  # compiles it
        with torch.profiler.profile() as profile:
            run(torch.ones(shape))
        return [event.name for event in profile.events() if ", line" in event.name]

    for one, expected in ((unit, 1), (gradient, 2)):
        found = kernels(one, 2, 3)
        assert len(found) == expected
        assert kernels(torch.func.vmap(one), 5, 2, 3) == found


def test_what_changes_an_overload_and_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    own = program(DOUBLE).overload()
    same = [
        program("\ufeff" + DOUBLE),
        program("\n\n" + DOUBLE + "\n"),  # elsewhere in a Python file
        program(DOUBLE.replace("\n", "\r\n")),
        Program(DOUBLE, "elsewhere/copy.loma", "copy"),
        program(DOUBLE, real="double"),
    ]
    assert {p.overload() for p in same} == {own}
    others = [
        program(TRIPLE),
        program(imported("def f() -> float:\n    return 1.0\n")),
        program(imported("def f() -> float:\n    return 2.0\n")),
        program(DOUBLE, save="all"),
        program(DOUBLE, save="inputs"),
        program(DOUBLE, contract=False),
        program(DOUBLE, timed=True),
    ]
    found = [p.overload() for p in others]
    monkeypatch.setenv("LOMA_OPT", "-fusion")
    found.append(program(DOUBLE).overload())
    assert len({own, *found}) == len(found) + 1


def test_no_overload_depends_on_lomas_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the halves of pairs, when what they hand to each other changes."""

    def overloads(save: str) -> tuple[str, dict[str, str]]:
        monkeypatch.setattr(cache, "package_fingerprint", lambda: save)
        own = program(NORM)
        # another version keeps something else
        stage = pipeline.program(NORM, own.path, own.name, save)  # type: ignore[arg-type]
        source = pipeline.generated(stage, overload=own.overload())
        return source.name, dict(re.findall(r'^    {"(\w+)", "(h\w+)"', source.text, re.MULTILINE))

    (old_code, old), (new_code, new) = overloads("all"), overloads("inputs")
    assert old_code != new_code
    assert old["unit"] == new["unit"]
    assert old["unit__forward"] == old["unit__backward"] != new["unit__forward"]


def test_one_program_with_several_settings_in_one_process() -> None:
    ways: list[dict[str, Any]] = [{}, {"save": "all"}, {"save": "inputs"}, {"contract": False}]
    modules = [loma.compile(DOUBLE, **way) for way in ways]
    assert len({m.twice.operator for m in modules}) == len(ways)
    for m in modules:
        x = torch.zeros(2, requires_grad=True)
        (g,) = torch.autograd.grad(m.twice(x).sum(), x)
        assert g.tolist() == [2.0, 2.0]


def test_the_same_text_twice_in_one_process() -> None:
    """In two files, or at two places of one: messages name different lines, so there are two."""
    text = """
def second(x : In[Tensor[N]], k : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[k[i]]
    return y
"""
    first, moved = loma.compile(text), loma.compile("\n\n\n" + text)
    assert first.second.operator != moved.second.operator
    x, k = torch.ones(2, requires_grad=True), torch.tensor([0, 7])
    for m, line in ((first, 4), (moved, 7)):
        with pytest.raises(ValueError, match=f"line {line}: "):
            m.second(x, k)
        (g,) = torch.autograd.grad(m.second(x, k * 0).sum(), x)
        assert g.tolist() == [2.0, 0.0]


@pytest.mark.full
def test_derivatives_of_derivatives_have_names_of_their_own() -> None:
    for text, factor in ((DOUBLE, 2.0), (TRIPLE, 3.0)):
        m = loma.compile(text)
        x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        (g,) = torch.autograd.grad(m.twice(x).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
        assert h.tolist() == [factor] * 2


def test_torch_compile_keeps_graphs_by_version() -> None:
    loma.compile(DOUBLE)
    assert cache.package_fingerprint() in torch.compiler.config.cache_key_tag


@pytest.mark.full
def test_aot_inductor_packages_an_exported_program(tmp_path: Path) -> None:
    m = loma.compile(DOUBLE)

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return m.twice(x) + 1.0

    sizes = {"x": {0: torch.export.Dim("n", min=2)}}
    exported = torch.export.export(Layer(), (torch.zeros(3),), dynamic_shapes=sizes)
    inductor = importlib.import_module("torch._inductor")
    made = inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "layer.pt2"))
    assert inductor.aoti_load_package(made)(torch.zeros(5)).tolist() == [3.0] * 5


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # torch's own, of its exporter
def test_onnx_is_refused_with_the_function_that_it_has_not(tmp_path: Path) -> None:
    """The format has no operator for it; docs/python.md says so, and what to write instead."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: .ci/full does")
    m = loma.compile(DOUBLE)

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return m.twice(x) + 1.0

    file = tmp_path / "layer.onnx"
    with pytest.raises(torch.onnx.OnnxExporterError) as caught:
        torch.onnx.export(Layer().eval(), (torch.zeros(3),), file, dynamo=True, verbose=False)
    message = f"No ONNX function found for {m.twice.operator!r}"
    assert message in str(caught.value)
    assert not file.exists()
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert re.sub("overload=.*", "...)>", message).replace("twice", "squash") in page


LOAD = """
import sys
import loma.cache, torch
loma.cache.package_fingerprint = lambda: "another version"
m = loma.compile(sys.argv[1])
x = torch.zeros(5)
print(torch.export.load(sys.argv[2]).module()(x).tolist())
"""


@pytest.mark.full
def test_an_exported_program_is_found_again_by_another_version(tmp_path: Path) -> None:
    m = loma.compile(DOUBLE)

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return m.twice(x) + 1.0

    sizes = {"x": {0: torch.export.Dim("n", min=1)}}
    exported = torch.export.export(Layer(), (torch.zeros(3),), dynamic_shapes=sizes)
    assert f"torch.ops.loma.twice.{program(DOUBLE).overload()}(" in exported.graph_module.code
    torch.export.save(exported, tmp_path / "layer.pt2")
    source = tmp_path / "renamed.loma"
    source.write_text(DOUBLE)
    done = fresh.run(
        ["-c", LOAD, source, "layer.pt2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([3.0] * 5)
