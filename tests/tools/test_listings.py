"""What Python's tools and notebooks see of modules and functions."""

from __future__ import annotations

import builtins
import inspect
import pydoc
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import loma
from loma.errors import NotDifferentiable

HALVE = """\
def halve(x : In[float]) -> float:
    return x / 2.0
"""
SCALE = '''\
def scale(x : In[Tensor[N, M]], w : In[Tensor[M]]) -> Tensor[N]:
    """Rows times w, where w < 1 & more."""
    y : Tensor[N]
    y[i] += halve(x[i, j] * w[j])
    return y
'''
WRITTEN = """\
def written(x : In[Tensor[N]], y : Out[Tensor[N]]):
    y[i] = x[i] * y[i]
"""
PROGRAM = "\n".join(["# a remark", HALVE, SCALE, WRITTEN, "d_scale = rev_diff(scale)\n"])


@pytest.fixture(scope="module")
def text() -> loma.LomaModule:
    return loma.compile(PROGRAM)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> loma.LomaModule:
    path = tmp_path_factory.mktemp("listings") / "scaled.loma"
    path.write_text(PROGRAM)
    return loma.compile(path)


def test_getsource_gives_the_text_of_the_program(
    text: loma.LomaModule, file: loma.LomaModule
) -> None:
    for module in (text, file):
        assert inspect.getsource(module.scale) == SCALE
        assert inspect.getsource(module.halve) == HALVE
        assert inspect.getsource(module) == PROGRAM  # type: ignore[arg-type]
        assert (
            inspect.getsourcelines(module.scale)[1]
            == PROGRAM[: PROGRAM.index("def sc")].count("\n") + 1
        )
        derived = inspect.getsource(module.d_scale)
        assert derived.startswith("def d_scale(\n")
        assert derived.rstrip() == module.show("adjoint", "d_scale").rstrip()
    assert inspect.getsourcefile(inspect.unwrap(file.scale)) == file.__file__


def test_functions_show_themselves(text: loma.LomaModule) -> None:
    assert text.scale.show() == text.show("parsed", "scale") == SCALE.rstrip("\n")
    assert text.scale.schedule() == text.show("schedule", "scale")
    assert text.scale.schedule(device="cuda") == text.show("schedule", "scale", "cuda")
    assert "float halve(float x)" in text.halve.show("c")
    assert text.scale.adjoint() == text.show("adjoint", "d_scale")
    assert text.halve.adjoint().startswith("def d_halve(x : In[float]")
    assert text.d_scale.show() == text.scale.adjoint()
    assert text.d_scale.adjoint().startswith("def d_d_scale(")
    with pytest.raises(NotDifferentiable, match="needs the value that its Out argument 'y'"):
        text.written.adjoint()
    with pytest.raises(ValueError, match=r"'halve' is a scalar function.* stage c"):
        text.halve.schedule()
    assert repr(text.scale.adjoint()) == str(text.scale.adjoint())  # a prompt shows its lines


def test_help_and_signature(text: loma.LomaModule) -> None:
    shown = pydoc.plain(pydoc.render_doc(text))
    assert "scale(x : In[Tensor[N, M]], w : In[Tensor[M]]) -> Tensor[N]" in shown
    assert "halve(x : In[float]) -> float" in shown
    assert "Rows times w, where w < 1" in pydoc.plain(pydoc.render_doc(text.scale))
    assert str(inspect.signature(text.scale)) == "(x, w)"


def _with_pygments(found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def importing(name: str, *args: Any) -> types.ModuleType:
        if name.startswith("pygments") and not found:
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", importing)


@pytest.mark.parametrize("found", [True, False])
def test_html_has_the_source_beside_the_adjoint(
    text: loma.LomaModule, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    if found:
        pytest.importorskip("pygments")
    _with_pygments(found, monkeypatch)
    shown = text._repr_html_()
    assert shown.count("<tr") == 3
    assert shown.count("<td") == 6
    assert "no reverse derivative: " in shown
    assert ("<span" in shown) == found
    one = text.scale._repr_html_()
    assert one.count("<td") == 2
    assert one in shown or one.removeprefix("<table>").removesuffix("</table>") in shown
    assert "w &lt; 1 &amp; more" in one
    assert ("<span" in text.scale.adjoint()._repr_html_()) == found


@pytest.mark.full
def test_functions_still_work_with_torch_compile(text: loma.LomaModule) -> None:
    x, w = torch.ones(2, 3), torch.ones(3)
    compiled: Callable[..., torch.Tensor] = torch.compile(
        text.scale, fullgraph=True, backend="aot_eager"
    )
    assert compiled(x, w).tolist() == [1.5, 1.5]


def test_a_function_in_a_file_that_is_imported(tmp_path: Path) -> None:
    (tmp_path / "half.loma").write_text(HALVE)
    main = tmp_path / "main.loma"
    own = "def f(x : In[float]) -> float:\n    return halve(x)\n"
    main.write_text(f"from half import halve\n\n\n{own}")
    module = loma.compile(main)
    assert inspect.getsource(module.f) == own
    assert module.f.adjoint().startswith("def d_f(")
