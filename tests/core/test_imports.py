"""Programs that import from other files."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

import loma
from loma import errors
from loma.backends.interpreter.interpreter import Interpreter
from loma.core.printer import print_module
from loma.frontend import parse
from loma.pipeline import parsed, stage_text
from loma.program import Program, read

BASE = """
SCALE : float = 2.0

def helper(x : In[float]) -> float:
    return 0.5 * x

def unused(x : In[float]) -> float:
    return nothing
"""
OTHER = """
from base import SCALE, helper as assist

K : int = 3

class Ray:
    o : Array[float, K]
    t : float

class Inner:
    u : float

def norm(x : In[float]) -> float:
    norm : float = assist(x)      # a variable of the function's name
    i : Inner
    i.u = norm
    return i.u * SCALE

def f(x : In[float], n : In[int] = K) -> float:
    return norm(x) * n

def first(r : In[Ray], k : In[int]) -> float:
    return r.o[k] + r.t

def divide(a : In[int], b : In[int]) -> int:
    return a // b

def each(X : In[Tensor[N]], k : In[int]) -> Tensor[N]:
    Y : Tensor[N]
    Y[i] = f(X[i]) * X[k] + divide(k, 1)
    return Y

def tangent(x : In[Diff[Inner]]) -> _dfloat:
    y : _dInner = x
    return make__dfloat(y.u.val, y.u.dval)

d_f = rev_diff(f)
"""
MAIN = """
from loma import float
from other import f, Ray, d_f, K as COUNT, first, each, divide as quotient, tangent

def norm(r : In[Ray]) -> float:
    return f(r.t) + f(1.0, 2) * COUNT + first(r, 1)

d_norm = rev_diff(norm)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("base", BASE), ("other", OTHER), ("main", MAIN)):
        (tmp_path / f"{name}.loma").write_text(text)
    return tmp_path


def report(folder: Path, text: str) -> str:
    with pytest.raises(errors.UserError) as caught:
        parse(text, str(folder / "main.loma"))
    return caught.value.to_string().replace(f"{folder}/", "")


def test_what_is_imported_comes_with_what_it_needs(folder: Path) -> None:
    module = parsed(MAIN, str(folder / "main.loma"))
    names = [function.name for function in module.functions]
    assert sorted(names) == ["_base_helper", "_other_norm", "each", "f", "first", "norm",
                             "quotient", "tangent"]  # fmt: skip
    assert {struct.name for struct in module.structs} >= {"Ray", "_other_Inner"}
    assert parse(print_module(module)) == module
    ray = {"o": [1.0, 2.0, 4.0], "t": 3.0}
    assert Interpreter(module).call("norm", ray)[0] == 9 + 2 * 3 + 5
    text = stage_text(MAIN, "adjoint", path=str(folder / "main.loma"))
    assert "def d_norm" in text
    assert "def d_f" in text
    assert "import" not in text


def test_python_calls_what_is_imported(folder: Path) -> None:
    m = loma.compile(folder / "main.loma")
    assert m.f(4.0) == 12.0
    assert m.d_f(4.0, 3, 1.0)[0] == 3.0
    assert m.norm(m.Ray(o=[1.0, 2.0, 4.0], t=3.0)) == 20.0
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert m.each(x, 1).tolist() == [7.0, 13.0]
    with pytest.raises(ZeroDivisionError, match=r"^quotient: line 26: division of an int by zero"):
        m.quotient(1, 0)
    with pytest.raises(ValueError, match=r"each: line 30: subscript 'k' of 'X'|each: line 30"):
        m.each(x, 5)
    again = pickle.loads(pickle.dumps(m.f))
    assert again(4.0) == 12.0
    assert "def _other_norm" in m.show()


def test_a_text_says_where_it_would_be(folder: Path) -> None:
    module = loma.compile("from base import helper\n", path=folder / "text.loma")
    assert module.helper(3.0) == 1.5
    with pytest.raises(errors.UserError) as caught:
        loma.compile("from base import helper\n")
    assert "loma.compile(text, path='program.loma')" in caught.value.to_string()


def test_the_key_of_the_cache_covers_imported_files(folder: Path) -> None:
    def key() -> str:
        program: Program = read(folder / "main.loma")
        return program.key()

    before = key()
    assert before == key()
    (folder / "base.loma").write_text(BASE.replace("0.5", "0.25"))
    assert before != key()


def test_errors_point_into_the_imported_file(folder: Path) -> None:
    assert report(folder, "from base import unused\n") == (
        "base.loma:8:12: error: variable 'nothing' is not declared\n"
        "    8 |     return nothing\n"
        "      |            ^^^^^^^\n"
        "  hint: declare it first: nothing : float"
    )
    (folder / "base.loma").write_text("def helper(x : In[float] -> float:\n    return x\n")
    assert report(folder, "\nfrom base import helper\n").startswith("base.loma:1:")


IMPORTS = {
    "missing file": ("from othr import f\n", "main.loma:1:1: error: there is no file 'othr.loma'",
                     "did you mean 'other'?"),
    "missing name": ("from other import ff\n", "main.loma:1:19: error: 'other.loma' has no 'ff'",
                     "did you mean 'f'?"),
    "twice": ("from other import f\nfrom base import helper as f\n",
              "main.loma:2:18: error: 'f' is already imported", "main.loma:1:19: note"),
    "two names": ("from other import f, f as g\n",
                  "main.loma:1:22: error: 'f' of 'other' has the name 'f' here already", "use 'f'"),
    "defined too": ("from base import helper\n\ndef helper(x : In[int]) -> int:\n    return x\n",
                    "main.loma:1:18: error: 'helper' is already defined", "main.loma:3:1: note"),
    "constant that is hidden": (
        "from base import SCALE\n\ndef f(SCALE : In[float]) -> float:\n    return SCALE\n",
        "main.loma:3:7: error: argument 'SCALE' would hide the constant", "main.loma:1:18: note"),
    "star": ("from other import *\n", "main.loma:1:19: error: an import names what it takes",
             "from other import f, g"),
    "dots": ("from .other import f\n", "main.loma:1:1: error: an import names a file", "from"),
    "module": ("import other\n", "main.loma:1:1: error: 'import' of anything but loma is not",
               "from other import f takes f of other.loma"),
    "circle": ("from round import a\n",
               "round.loma:1:1: error: files import each other in a circle: main -> round -> main",
               "put what both need into a file of its own"),
    "recursion": ("from base import helper\nfrom twice import t\n\ndef g(x : In[float]) -> float:\n"
                  "    return t(x, 1)\n",
                  "main.loma:5:12: error: 't' takes 1 argument", "twice.loma:2:1: note"),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPORTS)
def test_mistakes(folder: Path, name: str) -> None:
    (folder / "round.loma").write_text("from main import b\n\ndef a() -> int:\n    return 1\n")
    (folder / "twice.loma").write_text("\ndef t(x : In[float]) -> float:\n    return x\n")
    text, first, later = IMPORTS[name]
    found = report(folder, text)
    assert found.startswith(first)
    assert later in found


def test_a_derivative_of_its_own_comes_along(tmp_path: Path) -> None:
    (tmp_path / "other.loma").write_text("""
def clip(x : In[Tensor[N]]) -> Tensor[N]:
    return clamp(x, -1.0, 1.0)

@derivative(clip)
def straight(x : In[Tensor[N]], _d_x : Out[Tensor[N]], g : In[Tensor[N]]):
    _d_x += g
""")
    text = "from other import clip as c\nd_c = rev_diff(c)\n"
    found = stage_text(text, "adjoint", path=str(tmp_path / "main.loma"))
    assert "@derivative(c)\ndef _other_straight(" in found
