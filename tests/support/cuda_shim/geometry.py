"""How many threads launches have: the runtime's rules, which need neither torch nor a GPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import shim

from loma import cache
from loma.backends.torch.files import runtime_file

_SOURCE = Path(__file__).with_name("geometry.cpp")
_COMMAND = ("g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra")
# As geometry.cpp reads and writes them.
_SHAPE = ("team", "threads", "slices", "beside", "blocks")
_FOUND = (
    "threads", "team", "across", "shared", "blocks", "slices", "beside", "rows", "columns",
    "shared_bytes", "workspace_bytes", "registers",
)  # fmt: skip
_USUAL: Mapping[str, int] = {}


def statement(
    count: int, inner: int, across: bool, splits: bool, several: int = 0, around: int = 1,
    second: int = 1, pairs: bool = False, shape: Mapping[str, int] = _USUAL,
) -> dict[str, int]:  # fmt: skip
    """A reduction for each element: ``statement_geometry`` with four numbers read at once."""
    return _asked(
        "statement", (count, inner, across, splits, several, around, second, pairs), shape
    )


def running(
    rows: int, length: int, splits: bool, across: bool, shape: Mapping[str, int] = _USUAL
) -> dict[str, int]:
    """Running reductions along rows."""
    return _asked("running", (rows, length, splits, across), shape)


def fused(
    count: int, inner: int, size: int, most: int, far: int = 0, least: int = 8,
    shape: Mapping[str, int] = _USUAL,
) -> dict[str, int]:  # fmt: skip
    """A kernel of several statements: ``size`` bytes of private memory an iteration, ``most`` of
    shared memory a block."""
    return _asked("fused", (count, inner, size, most, far, least), shape)


def _asked(rule: str, numbers: Sequence[int], shape: Mapping[str, int]) -> dict[str, int]:
    wanted = [shape.get(name, 0) for name in _SHAPE]
    found = (ctypes.c_int64 * len(_FOUND))()
    _library()[rule](_numbers(numbers), _numbers(wanted), found)
    return dict(zip(_FOUND, found, strict=True))


def _numbers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*map(int, values))


@functools.cache
def _library() -> ctypes.CDLL:
    rules = runtime_file("gpu_geometry.cpp")
    texts = [path.read_bytes() for path in (_SOURCE, rules, *rules.parent.glob("*.h"))]

    def build(folder: Path) -> None:
        made = ("-o", str(folder / "geometry.so"))
        shim.run_compiler([*_COMMAND, "-iquote", str(rules.parent), str(_SOURCE), *made])

    folder = cache.obtain(cache.digest(["geometry", *_COMMAND, *texts]), build)
    return ctypes.CDLL(str(folder / "geometry.so"))
