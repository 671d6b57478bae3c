"""CapsNet (Sabour, Frosst and Hinton 2017) whose layers are loma programs.

``CapsNet`` is an ``nn.Module``, ``capsule_loss`` its loss; ``capsnet_loma.reference`` has the same
network in plain PyTorch. The ``capsnet-loma`` command compares and profiles the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capsnet_loma.config import CapsNetConfig
    from capsnet_loma.network import CapsNet, capsule_loss

__all__ = ["CapsNet", "CapsNetConfig", "capsule_loss"]

_HOMES = {
    "CapsNet": "capsnet_loma.network",
    "CapsNetConfig": "capsnet_loma.config",
    "capsule_loss": "capsnet_loma.network",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that ``--help`` needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'capsnet_loma' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
