"""loma: differentiable tensor functions, written once and compiled with their derivatives.

    m = loma.compile("squash.loma")
    y = m.squash(x)          # takes part in autograd
    print(m.show("adjoint"))

Public names are loaded when they are first used, so that ``import loma.core.ir`` imports no torch.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from loma.config import VERSION

if TYPE_CHECKING:
    from loma import memory as memory, nn as nn, optim as optim, specialise as specialise
    from loma.compiler import compile as compile, compile_many as compile_many
    from loma.embedded.module import module as module
    from loma.embedded.words import names as names
    from loma.errors import UserError as UserError, UserWarning as UserWarning
    from loma.functions import LomaModule as LomaModule
    from loma.gpu import check_device as check_device
    from loma.tools.check import check_gradients as check_gradients

_PUBLIC = {  # name: the module that has it, or that it is
    "LomaModule": "loma.functions",
    "UserError": "loma.errors",
    "UserWarning": "loma.errors",
    "check_device": "loma.gpu",
    "check_gradients": "loma.tools.check",
    "compile": "loma.compiler",
    "compile_many": "loma.compiler",
    "memory": "loma.memory",
    "module": "loma.embedded.module",
    "names": "loma.embedded.words",
    "nn": "loma.nn",
    "optim": "loma.optim",
    "specialise": "loma.specialise",
}

__all__ = list(_PUBLIC)
__version__ = VERSION


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext loma`` calls: from then on ``%%loma`` cells are programs."""
    importlib.import_module("loma.tools.notebook").load(shell)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        from loma.embedded.words import word

        if (known := word(name)) is not None:
            return known
        raise AttributeError(f"module 'loma' has no attribute '{name}'")
    found = importlib.import_module(_PUBLIC[name])
    value = found if _PUBLIC[name] == f"loma.{name}" else getattr(found, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


class _TorchFinder:
    """Finds torch.serialization as the others do, and has it allow what loma's pickles call once it
    has run: ``torch.load(weights_only=True)`` takes modules and functions of programs, whichever is
    imported first. Nothing of it compiles or runs anything."""

    NAME = "torch.serialization"

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != self.NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_allow(module: Any) -> None:
                run(module)
                self.allow(module)

            spec.loader.exec_module = run_and_allow  # type: ignore[method-assign]
        return spec

    def allow(self, serialization: Any) -> None:
        from loma.functions import restored, restored_layer

        serialization.add_safe_globals([restored, restored_layer])


if _TorchFinder.NAME in sys.modules:
    _TorchFinder().allow(sys.modules[_TorchFinder.NAME])
else:
    sys.meta_path.insert(0, _TorchFinder())
