"""Other libraries as peers: KeOps, Warp, Taichi, Triton. Each is imported where a form is made, and
the tables go on without it."""

from __future__ import annotations

import importlib
import inspect
import io
import os
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_work.work import Function, part_of


def library(name: str) -> Any:
    """A module that need not be there; ModuleNotFoundError where it is not. What it has of threads
    is as many as torch has."""
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    return importlib.import_module(name)


def made_by(module: str, name: str) -> Callable[[], Function]:
    """A function of a module of this folder that imports a library."""

    def make() -> Function:
        function: Function = getattr(library(f"papers.{module}"), name)
        return function

    return make


def length(text: str) -> int:
    """Lines of code: without blank ones, remarks and docstrings."""
    lines: set[int] = set()
    starts = True  # of a statement, where a string is a docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            starts = True
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            if not (starts and token.type == tokenize.STRING):
                lines.update(range(token.start[0], token.end[0] + 1))
            starts = False
    return len(lines)


def length_of(*parts: object) -> int:
    """Of functions."""
    return sum(length(inspect.getsource(part)) for part in parts)  # type: ignore[arg-type]


def length_in(program: Path, *names: str) -> int:
    """Of functions of loma."""
    return sum(length(part_of(program, name)) for name in names)
