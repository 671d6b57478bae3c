"""The compiled layers: one module for each ``.loma`` file of this folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

FOLDER = Path(__file__).resolve().parent
# Functions that stand in another file than that of their name.
_FILES = {"predictions": "digit_capsules", "routing": "digit_capsules"}


@dataclass(frozen=True, slots=True)
class Layers:
    """The forward functions, each taking part in autograd."""

    convolution: Callable[..., Tensor]
    primary: Callable[..., Tensor]
    squash: Callable[..., Tensor]
    digit_capsules: Callable[..., Tensor]
    lengths: Callable[..., Tensor]
    decoder: Callable[..., Tensor]
    margin_loss: Callable[..., Tensor]
    reconstruction_loss: Callable[..., Tensor]
    predictions: Callable[..., Tensor]
    routing: Callable[..., Tensor]


FUNCTIONS = tuple(field.name for field in fields(Layers))
NAMES = tuple(name for name in FUNCTIONS if name not in _FILES)  # of the files

_modules: dict[str, Any] = {}
_layers: Layers | None = None


def path(name: str) -> Path:
    """The ``.loma`` file of a layer."""
    return FOLDER / f"{name}.loma"


def file_of(function: str) -> str:
    """The name of the file that a function stands in."""
    return _FILES.get(function, function)


def module(name: str) -> Any:
    """The compiled loma module of a file; it is compiled when it is first asked for."""
    if name not in _modules:
        import loma

        _modules[name] = loma.compile(path(name))
    return _modules[name]


def _make_layers() -> None:
    global _layers
    if _layers is None:
        compile_layers()
        _layers = Layers(**{name: getattr(module(file_of(name)), name) for name in FUNCTIONS})


# What torch.compiler.assume_constant_result does, which would import the whole of torch.compile: 70
# MiB and a second, for those who do not use it, too.
_make_layers._dynamo_marked_constant = True  # type: ignore[attr-defined]


def layers() -> Layers:
    """All layers; compiles those that are not compiled yet.

    While torch.compile traces a network, they are made beside it: the compiler is not traced.
    """
    _make_layers()
    assert _layers is not None
    return _layers


def compile_layers(
    names: Sequence[str] = NAMES,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> None:
    """Compiles and loads layers, several at once; ``progress(name, done, total)`` hears of each."""
    import loma

    finished = itertools.count(1)

    def done(program: object) -> None:
        progress(Path(str(program)).name, next(finished), len(names))

    progress("", 0, len(names))
    _modules.update(zip(names, loma.compile_many([path(n) for n in names], done), strict=True))
