"""What kernels report, as the exceptions that the CPU's checks throw."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import ModuleType

import fresh
import pytest
import torch

import loma

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
def pick(x : In[Tensor[N]], p : In[IntTensor[K]]) -> Tensor[K]:
    y : Tensor[K]
    y[k] = x[p[k]]
    return y
"""

_HEADER = Path(loma.__file__).parent / "backends" / "cuda" / "runtime" / "report.h"
KINDS = {
    name: number
    for number, name in enumerate(
        re.findall(r"^  (\w+)(?: = 1)?,", _HEADER.read_text("utf-8"), re.M), 1
    )
}


@pytest.fixture(scope="module")
def module() -> loma.LomaModule:
    return loma.compile(PROGRAM)


@pytest.fixture(scope="module")
def native(module: loma.LomaModule) -> ModuleType:
    assert module.__native__ is not None
    return module.__native__


def test_the_message_is_the_cpus(module: loma.LomaModule, native: ModuleType) -> None:
    with pytest.raises(ValueError, match="outside dimension") as of_cpu:
        module.pick(torch.ones(3), torch.tensor([0, 5]))
    place = re.match(r"pick: line \d+: ", str(of_cpu.value))
    assert place is not None
    with pytest.raises(ValueError, match="outside dimension") as of_gpu:
        native.throw_check(KINDS["outside"], [place[0], "p[k]", "x"], [0, 3, 5])
    assert str(of_gpu.value) == str(of_cpu.value)


@pytest.mark.parametrize(
    ("kind", "texts", "numbers", "error", "message"),
    [
        ("element", ["f: line 2: ", "x"], [1, 5, 4], ValueError,
         "f: line 2: subscript 5 of 'x' is outside dimension 1 of size 4"),
        ("range", ["f: line 2: ", "i + 1", "x"], [0, 4, 1, 4], ValueError,
         "f: line 2: subscript 'i + 1' of 'x' runs from 1 to 4, outside dimension 0 of size 4"),
        ("extent", ["f: line 2: ", "i", "x"], [5, 1, 4], ValueError,
         "f: line 2: index 'i' runs over 5 values, but dimension 1 of 'x' has size 4"),
        ("empty", ["f: line 2: ", "max"], [], ValueError, "f: line 2: max of no elements"),
        ("endless", ["f"], [3, 10], RuntimeError,
         "f: line 3: the while loop passed its max_iter of 10 iterations"),
        ("zero_division", ["f: line 2: ", "division of an int by zero"], [], ValueError,
         "f: line 2: division of an int by zero"),
        ("zero_step", ["f: line 2: the step is 0"], [], ValueError, "f: line 2: the step is 0"),
        ("subscript", ["f"], [7, 5, 2], IndexError,
         "f: line 2: subscript 7 is outside an array of 5 elements"),
        ("storage", ["f"], [0, 1, 2], ValueError,
         "f: line 2: arguments 0 and 1 are the same storage, and one of them is Out"),
        ("full", ["f"], [8, 2], RuntimeError, "f: line 2: push on a full stack of 8"),
        ("drained", ["f"], [2], RuntimeError, "f: line 2: pop from an empty stack"),
        ("", [], [], RuntimeError, "a kernel's report of an unknown kind, 99"),
    ],
)  # fmt: skip
def test_every_kind(
    native: ModuleType,
    kind: str,
    texts: list[str],
    numbers: list[int],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match="^" + re.escape(message)):
        native.throw_check(KINDS.get(kind, 99), texts, numbers)


def test_without_calls_there_is_nothing_to_report() -> None:
    """In a process of its own: in this one others may have been served by a stand-in for a GPU."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    code = f"import loma\nassert loma.compile({PROGRAM!r}).pick\nprint(loma.check_device())\n"
    done = fresh.run(["-c", code], env={**os.environ, "PYTHONPATH": paths}, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "None"
