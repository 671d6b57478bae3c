"""The tutorial in a notebook, from its first cell to a layer of the reader's own: every block is
pasted into a cell as it is printed, and shows what the page says."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from pages import BLOCK

pytest.importorskip("nbclient", reason="nbclient is not installed: pip install '.[test]'")
pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install '.[test]'")

# What is not in the docs: a filter whose taps fade with their distance, for each channel apart.
OWN = (
    "%load_ext loma",
    '''%%loma
def faded(x : In[Tensor[B, L, C]], w : In[Tensor[C, K]], fade : In[Tensor[C]]) -> Tensor[B, L, C]:
    y : Tensor[B, L, C]
    y[n, i, c] = sum(w[c, k] * exp(-abs(fade[c]) * k) * x[n, i - k, c] for k in K if i >= k)
    y[n, i, c] = y[n, i, c] / (1.0 + abs(y[n, i, c]))
    return y''',
    """def plainly(x, w, fade):
    taps = w * torch.exp(-fade.abs()[:, None] * torch.arange(w.shape[1]))
    y = torch.nn.functional.conv1d(
        torch.nn.functional.pad(x.transpose(1, 2), (w.shape[1] - 1, 0)),
        taps.flip(1)[:, None], groups=len(w),
    ).transpose(1, 2)
    return y / (1 + y.abs())
torch.manual_seed(0)
sizes = (2, 9, 3), (3, 4), (3,)
some = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in sizes]
ours, theirs = faded(*some), plainly(*some)
g = torch.randn_like(ours)
torch.testing.assert_close(ours, theirs)
ours, theirs = (torch.autograd.grad(y, some, g) for y in (ours, theirs))
torch.testing.assert_close(ours, theirs)""",
    """own = loma.nn.Module(faded, w=(3, 4), fade=torch.ones(3))
wanted = torch.randn(3, 4), torch.tensor([0.1, 0.5, 1.0])
optimizer = loma.optim.Adam(own.parameters(), lr=0.05)
losses = []
for step in range(100):
    x = torch.randn(16, 20, 3)
    loss = (own(x) - plainly(x, *wanted)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
losses[-1] < 0.05 * losses[0]""",
)  # fmt: skip


def cells() -> Iterator[tuple[str, str]]:
    """The tutorial's cells, and what each is to show."""
    text = (ROOT / "docs/layers.md").read_text(encoding="utf-8")
    for kind, name, block in (match.groups() for match in BLOCK.finditer(text)):
        if kind == "loma":
            yield f"%%writefile {name}\n{block}", f"Writing {name}"
        elif kind == "python":
            yield block, ""
        elif kind == "pycon":
            for example in doctest.DocTestParser().get_examples(block):
                first, *more = example.source.splitlines()
                wanted = example.want if example.exc_msg is None else example.exc_msg
                yield "\n".join([f">>> {first}", *(f"... {line}" for line in more)]), wanted


def shown(outputs: list[Any]) -> str:
    """What a cell shows, where lines are broken or not; of an error the message."""
    parts = []
    for output in outputs:
        match output["output_type"]:
            case "stream":
                parts += [output["text"]] if output["name"] == "stdout" else []
            case "error":
                parts.append(f"{output['ename']}: {output['evalue']}")
            case _:
                parts.append(output["data"]["text/plain"])
    return "".join("".join(parts).split())


@pytest.mark.full
@pytest.mark.cpu
def test_the_tutorial_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    own = [*((text, "") for text in OWN[:-1]), (OWN[-1], "True")]
    given = [*cells(), *own]
    assert len(given) > 25
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text, _ in given])
    nbclient.NotebookClient(
        book, timeout=600, kernel_name="python3", allow_errors=True,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()  # fmt: skip
    found = [
        (text, shown(cell["outputs"])) for (text, _), cell in zip(given, book["cells"], strict=True)
    ]
    assert found == [(text, "".join(wanted.split())) for text, wanted in given]
