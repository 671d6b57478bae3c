"""Builds the C++ program of ``capsnet-loma profile``: the generated layers and a main function."""

from __future__ import annotations

from pathlib import Path

from capsnet_loma.layers import NAMES, module

MAIN = Path(__file__).resolve().parent / "native" / "main.cpp"
PROGRAM = "capsnet-native"


def build(folder: Path) -> Path:
    """Puts the program into the folder; compiled when it is not in loma's cache already.

    Raises :class:`loma.errors.ToolchainError` when C++ cannot be compiled.
    """
    from loma import specialise
    from loma.backends import toolchain

    sources = [module(name).__folder__ / f"{name}.cpp" for name in NAMES]
    for name in NAMES:  # kernels for the sizes that were used before
        sources += specialise.sources(module(name))
    return toolchain.build_executable([MAIN, *sources], folder / PROGRAM, "float")
