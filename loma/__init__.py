"""loma: differentiable tensor functions, written once and compiled with their derivatives.

    m = loma.compile("squash.loma")
    y = m.squash(x)          # takes part in autograd
    print(m.show("adjoint"))

Public names are loaded when they are first used, so that ``import loma.core.ir`` imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from loma.config import VERSION

if TYPE_CHECKING:
    from loma import memory as memory, optim as optim, specialise as specialise
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
