"""Programs in cells of notebooks, in a kernel of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import loma

pytest.importorskip("nbclient", reason="nbclient is not installed: pip install '.[test]'")
pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install '.[test]'")

PROGRAM = """%%loma layers
class Pair:
    a : float
    b : float

def total(x : In[Tensor[N]], w : In[Tensor[N]]) -> float:
    y : float
    y += x[i] * w[i]
    return y

def swapped(p : In[Pair]) -> float:
    return p.b - p.a

d_total = rev_diff(total)"""
CELLS = (
    "%load_ext loma\nimport inspect, torch",
    PROGRAM,
    "x = torch.arange(3.0)\n"
    "[total(x, x).item(), swapped(Pair(a=1.0, b=3.0)), d_total(x, x, 1.0)[0].tolist()]",
    "%%loma\ndef f(x : In[Tensor[N]]) -> Tensor[N]:\n    y[i] = x[i] * z\n    return y",
    "total.adjoint()",
    "layers",
    "inspect.getsource(total).splitlines()[0]",
    "%%loma two names\npass",
    "%%loma\ndef g(X : In[Tensor[N, M]]) -> Tensor[N]:\n    Y : Tensor[N]\n"
    "    Y[n] += X[n, m] + X[n, mm]\n    return Y",
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """What each cell shows."""
    import nbclient
    import nbformat

    loma.compile(PROGRAM.partition("\n")[2])  # no cell tells that the runtime is compiled first
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    folder: Path = tmp_path_factory.mktemp("notebook")
    nbclient.NotebookClient(
        book, timeout=300, kernel_name="python3", allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    ).execute()  # fmt: skip
    return [cell["outputs"] for cell in book["cells"]]


def _text(outputs: list[Any], kind: str = "text/plain") -> str:
    (output,) = outputs
    assert output["output_type"] == "execute_result", output
    return str(output["data"][kind])


def test_functions_and_structs_are_variables(outputs: list[list[Any]]) -> None:
    assert outputs[0] == []
    assert outputs[1] == []
    assert _text(outputs[2]) == "[5.0, 2.0, [0.0, 1.0, 2.0]]"


def test_an_error_is_the_report_in_colours_and_no_traceback(outputs: list[list[Any]]) -> None:
    (error,) = outputs[3]
    assert error["output_type"] == "error"
    assert error["ename"] == "UndeclaredVariable"
    shown = "\n".join(error["traceback"])
    assert "\x1b[1;31m^" in shown
    assert "cell.loma:2:5: " in shown
    assert "declare it first: y : Tensor[N]" in shown
    assert "Traceback" not in shown
    (usage,) = outputs[7]
    assert "takes one name at most" in str(usage)


def test_texts_and_html(outputs: list[list[Any]]) -> None:
    assert _text(outputs[4]).startswith("def d_total(\n")
    assert "d_total" in _text(outputs[4], "text/html")
    assert _text(outputs[5]).startswith("<loma module 'cell' from cell.loma: ")
    assert _text(outputs[5], "text/html").count("<tr") == 2
    assert "def total(x : In[Tensor[N]]" in _text(outputs[6])


def test_warnings_are_shown_inline(outputs: list[list[Any]]) -> None:
    (warning,) = outputs[8]
    assert warning["name"] == "stderr"
    assert "cell.loma:3:" in warning["text"]
    assert "warning: " in warning["text"]
