"""Modules and functions in files and other processes: pickled as programs, compiled when called."""

from __future__ import annotations

import copy
import inspect
import io
import multiprocessing.pool
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import loma
from loma import compiler
from loma.functions import restored

ROOT = Path(loma.__file__).resolve().parents[1]

PROGRAM = """
class Pair:
    x : Tensor[N]
    y : Tensor[N]

def scaled(x : In[Tensor[N]], a : In[float] = 3.0) -> Tensor[N]:
    y : Tensor[N]
    y[i] = a * x[i]
    return y

def added(p : In[Pair]) -> Tensor[N]:
    return p.x + p.y

def half(x : In[float]) -> float:
    return x / 2.0
"""


@pytest.fixture(scope="module")
def m() -> loma.LomaModule:
    return loma.compile(PROGRAM)


class Net(torch.nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.w = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) * self.w


class Rows(Dataset[torch.Tensor]):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self.function = function

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.function(torch.full((2,), float(row)))


def unpickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def saved(value: Any, weights_only: bool = True) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, unpickled, saved])
@pytest.mark.parametrize("name", ["", "scaled", "added", "half"])
def test_copies_are_the_thing_itself(
    m: loma.LomaModule, name: str, way: Callable[[Any], Any]
) -> None:
    value = getattr(m, name) if name else m
    assert way({"value": value})["value"] is value


def test_a_network_is_saved_whole(m: loma.LomaModule, tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    joblib.dump(Net(m.scaled), tmp_path / "net.joblib")
    for again in (
        saved(Net(m.scaled), weights_only=False),
        copy.deepcopy(Net(m.scaled)),
        joblib.load(tmp_path / "net.joblib"),
    ):
        assert again.function is m.scaled
        assert again(torch.ones(3)).tolist() == [3.0] * 3


@pytest.mark.parametrize("settings", [{"save": "inputs"}, {"contract": False}])
def test_settings_are_pickled(m: loma.LomaModule, settings: dict[str, Any]) -> None:
    other = loma.compile(PROGRAM, **settings)
    assert unpickled(other) is other
    assert unpickled(m) is m
    record = other.__reduce__()[1][0]
    assert record.items() >= settings.items()


# What another process finds in a file: nothing of the program is loaded there.


def as_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_known", {})
    monkeypatch.setattr(compiler, "_loaded", {})
    monkeypatch.setattr(compiler, "_loaded_scalars", {})


@pytest.fixture
def elsewhere(m: loma.LomaModule, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module and its functions as they come out of a file, before anything is called."""
    as_elsewhere(monkeypatch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "_fill", pytest.fail)
        return saved([m, m.scaled, m.added, m.half])


def test_nothing_is_compiled_before_the_first_call(elsewhere: Any) -> None:
    again, scaled, added, half = elsewhere
    assert "not loaded yet" in repr(again)
    assert repr(scaled) == "<loma function scaled>"
    assert unpickled(again) is again
    assert pickle.dumps(unpickled(scaled)) == pickle.dumps(scaled)
    assert "__record__" not in again.__dict__
    x = torch.ones(2, requires_grad=True)
    assert scaled(x, a=2.0).tolist() == [2.0, 2.0]
    assert "__record__" in again.__dict__
    scaled(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]
    assert half(3.0) == 1.5
    assert added(again.Pair(torch.ones(2), torch.ones(2))).tolist() == [2.0, 2.0]
    assert copy.deepcopy(scaled) is scaled
    assert unpickled(scaled) is again.scaled
    assert loma.compile(PROGRAM) is again


def test_a_function_describes_itself_without_a_call(elsewhere: Any) -> None:
    again, scaled, *_ = elsewhere
    assert {"scaled", "Pair"} <= set(dir(again))
    assert str(inspect.signature(scaled)) == "(x, a=3.0)"
    assert scaled.operator.name().startswith("loma::scaled.")


def test_torch_compile_of_what_was_just_loaded(elsewhere: Any) -> None:
    again, scaled, *_ = elsewhere
    compiled = torch.compile(
        lambda x: scaled(x) + again.scaled(x, 1.0), fullgraph=True, backend="aot_eager"
    )
    assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]


def test_imports_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.loma").write_text("def g(x : In[float]) -> float:\n    return 5.0 * x\n")
    file = tmp_path / "own.loma"
    file.write_text("from other import g\ndef f(x : In[float]) -> float:\n    return g(x)\n")
    data = pickle.dumps(loma.compile(file).f)
    (tmp_path / "other.loma").unlink()
    as_elsewhere(monkeypatch)
    assert pickle.loads(data)(2.0) == 10.0


def test_several_threads_load_one_program(elsewhere: Any) -> None:
    _, scaled, *_ = elsewhere
    with multiprocessing.pool.ThreadPool(4) as pool:
        found = pool.map(lambda k: scaled(torch.full((2,), float(k))).tolist(), range(8))
    assert found == [[3.0 * k] * 2 for k in range(8)]


@pytest.mark.parametrize(
    "change",
    [
        {"source": 3}, {"save": "some"}, {"contract": "yes"}, {"imports": [("a",)]},
        {"imports": None}, {"unheard": 1}, {"derived": ("f",)}, {"path": None},
    ],
)  # fmt: skip
def test_what_no_loma_wrote_is_refused(m: loma.LomaModule, change: dict[str, Any]) -> None:
    record = m.__reduce__()[1][0] | change
    with pytest.raises(ValueError, match="no program of loma"):
        restored(record)


def test_what_is_no_function_is_refused(m: loma.LomaModule) -> None:
    record = m.__reduce__()[1][0]
    for name in ("__class__", 3):
        with pytest.raises(ValueError, match="has no function"):
            restored(record, name)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="did you mean 'scaled'"):
        restored(record, "scalde")


LOAD = """
import sys
import loma, torch
net = torch.load("all.pt", weights_only=True)
assert "loma.backends" not in sys.modules
print(net["f"](torch.ones(2)).tolist())
"""


def test_another_process_loads_it_that_imports_torch_last(
    m: loma.LomaModule, tmp_path: Path
) -> None:
    torch.save({"m": m, "f": m.scaled}, tmp_path / "all.pt")
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[3.0, 3.0]"


@pytest.mark.full
def test_spawned_workers_of_a_data_loader(m: loma.LomaModule) -> None:
    loader = DataLoader(
        Rows(m.scaled), batch_size=2, num_workers=1, multiprocessing_context="spawn"
    )
    assert torch.cat(list(loader)).tolist() == [[3.0 * row] * 2 for row in range(4)]
