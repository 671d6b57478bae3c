"""Fused functions as C++: threads, sizes, strides, NaN, errors, and every switch of LOMA_OPT."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from fused_programs import CALLS, TEXT

import loma
from loma import config

ROOT = Path(__file__).resolve().parents[2]
PROBE = """
import json, sys
import torch
import loma
torch.manual_seed(0)
module = loma.compile(open(sys.argv[1]).read())
x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
w = torch.randn(2, 3, 4, 2, dtype=torch.float64, requires_grad=True)
p = torch.randn(3, 3, 2, dtype=torch.float64, requires_grad=True)
calls = {"rows": (x, 3), "blocks": (x[0], 3), "tiles": (w, p), "calls_shifted": (x, 2)}
found = {}
for name in calls.keys() & set(dir(module)):
    y = getattr(module, name)(*calls[name])
    made = torch.autograd.grad((y * y).sum(), (x, w, p), allow_unused=True)
    found[name] = [t.flatten().tolist() for t in (y, *made) if t is not None]
try:
    module.calls_shifted(x, 9)
except Exception as error:
    found["message"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def module() -> Any:
    return loma.compile(TEXT)


def calls(module: Any, batch: int) -> list[torch.Tensor]:
    """Values and gradients of all functions at a point of that batch size."""
    generator = torch.Generator().manual_seed(1)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    x, line = tensor(batch, 37), tensor(1003 * batch)
    w, p = tensor(3, 8, 16, 4), tensor(batch, 8, 4)
    found: list[torch.Tensor] = []
    for y, leaves in (
        (module.rows(x, 3), [x]),
        (module.blocks(line, 3), [line]),
        (module.tiles(w, p), [w, p]),
        (module.calls_shifted(x, 5), [x]),
    ):
        found += [y.detach(), *torch.autograd.grad((y * y).sum(), leaves)]
    return found


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
@pytest.mark.usefixtures("threads")
def test_any_number_of_threads(module: Any, batch: int) -> None:
    torch.set_num_threads(1)
    expected = calls(module, batch)
    for count in (2, 3):
        torch.set_num_threads(count)
        for value, right in zip(calls(module, batch), expected, strict=True):
            assert torch.equal(value, right)


def test_calls_from_several_threads(module: Any) -> None:
    expected = calls(module, 5)
    found: list[list[torch.Tensor]] = []
    workers = [
        threading.Thread(target=lambda: found.extend(calls(module, 5) for _ in range(5)))
        for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 15
    for values in found:
        assert all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0), (1, 1), (1, 4), (4, 1)])
def test_small_sizes(module: Any, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y = module.rows(x, 2)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert y.shape == g.shape == shape
    for row in range(shape[0]):  # rows do not depend on each other
        assert torch.allclose(module.rows(x[row : row + 1], 2), y[row : row + 1], atol=1e-14)
    b, i = shape
    v = module.tiles(torch.randn(i, 3, 2, 2), torch.randn(b, 3, 2))
    assert v.shape == (b, i, 2)


def test_no_values_to_add_to(module: Any) -> None:
    """The adjoint of a read at one place adds there, which does not exist in an empty tensor."""
    x = torch.randn(0, requires_grad=True)
    (g,) = torch.autograd.grad(module.blocks(x, 3).sum(), x)
    assert g.shape == (0,)


def test_any_strides(module: Any) -> None:
    x = torch.randn(6, 5, dtype=torch.float64)
    wide = torch.randn(1, 5, dtype=torch.float64).expand(6, 5)
    for strided in (x.T.contiguous().T, wide, torch.randn(6, 10, dtype=torch.float64)[:, ::2]):
        kept = strided.clone()
        dense = module.rows(strided.contiguous(), 3)
        assert torch.equal(module.rows(strided, 3), dense)
        assert torch.equal(strided, kept)


def test_nan_stays_in_its_row(module: Any) -> None:
    x = torch.randn(6, 40, requires_grad=True)
    spoilt = x.detach().clone()
    spoilt[2, 7] = torch.nan
    spoilt.requires_grad_()
    for y, z in ((module.rows(x, 3), module.rows(spoilt, 3)),):
        (g,) = torch.autograd.grad(y.sum(), x)
        (h,) = torch.autograd.grad(z.sum(), spoilt)
        for row in (0, 1, 3, 4, 5):
            assert torch.equal(y[row], z[row])
            assert torch.equal(g[row], h[row])
        assert z[2].isnan().all()


def test_errors_name_the_function_and_its_line(module: Any) -> None:
    """Also where the function has become part of another one."""
    line = 1 + TEXT[: TEXT.index("    z[b, j] = y[b, j] + y[b, k]")].count("\n")
    for function in (module.shifted, module.calls_shifted):
        with pytest.raises(Exception, match=rf"shifted: line {line}\b.*subscript 'k' of 'y'"):
            function(torch.randn(3, 4), 4)


def _probe(folder: Path, text: str, switch: str) -> dict[str, Any]:
    program = folder / "program.loma"
    program.write_text(text, encoding="utf-8")
    script = folder / "probe.py"
    script.write_text(PROBE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(program)],
        env={**os.environ, "LOMA_OPT": switch, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.full
def test_without_optimisations(tmp_path: Path) -> None:
    """Values and messages are the same with none of them, and without fusion or inlining, which
    changes nothing but calls."""
    expected = _probe(tmp_path, TEXT, "1")
    assert set(expected) == {"rows", "blocks", "tiles", "calls_shifted", "message"}
    for text, switch in ((TEXT, "0"), (TEXT, "-fusion"), (CALLS, "-inline")):
        found = _probe(tmp_path, text, switch)
        assert set(found) == set(expected) - (set() if text is TEXT else {"rows", "blocks"})
        # where nothing is inlined it is the forward part of the function that fails
        message = found.pop("message").replace("shifted__forward", "shifted")
        assert message == expected["message"], switch
        for name, values in found.items():
            for value, right in zip(values, expected[name], strict=True):
                assert value == pytest.approx(right, rel=1e-9, abs=1e-9), (switch, name)


@pytest.mark.parametrize("given", ["-nothing", "fusion", "2", "-fusion,-x"])
def test_switches_that_do_not_exist(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOMA_OPT", given)
    with pytest.raises(ValueError, match="LOMA_OPT must be 0, 1, or names to leave out"):
        config.optimisations()


@pytest.mark.parametrize("name", config.OPTIMISATIONS)
def test_each_switch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOMA_OPT", f"-{name}")
    assert config.optimisations() == frozenset(config.OPTIMISATIONS) - {name}
