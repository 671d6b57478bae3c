"""Other libraries as peers: KeOps, Warp, Taichi, Triton. Each is imported where a form is made, and
the tables go on without it."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import os
import textwrap
import tokenize
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gpu_work.work import part_of
from torch import Tensor


def library(name: str) -> Any:
    """A module that need not be there; ModuleNotFoundError where it is not. What it has of threads
    is as many as torch has."""
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    return importlib.import_module(name)


class Steps:
    """A simulation in memory of its own, which another library reads and writes.

    ``inputs`` and ``result`` are that memory, ``input_grads`` and ``result_grad`` that of their
    adjoints. ``forward`` runs it; ``backward`` sets the adjoints of the inputs, for the last run
    and for ``result_grad``, which is set after ``clear``.
    """

    inputs: Sequence[Tensor]
    input_grads: Sequence[Tensor]
    result: Tensor
    result_grad: Tensor

    def forward(self) -> None:
        raise NotImplementedError

    def clear(self) -> None:
        pass

    def backward(self) -> None:
        raise NotImplementedError


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, steps: Steps, *args: Tensor) -> Tensor:
        for place, arg in zip(steps.inputs, args, strict=True):
            place.copy_(arg)
        steps.forward()
        ctx.steps = steps
        return steps.result.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        steps: Steps = ctx.steps
        steps.clear()
        steps.result_grad.copy_(grad)
        steps.backward()
        return None, *(place.clone() for place in steps.input_grads)


def under_autograd(
    make: Callable[..., Steps], count: int, args: Sequence[Any], numbers: Mapping[str, float]
) -> Tensor:
    """Steps as a function of its first ``count`` arguments; what was made for a shape is kept. The
    backward part is that of the last call."""
    key = (make, tuple(arg.shape for arg in args), tuple(numbers.items()))
    if key not in _made:
        _made[key] = make(*args, **numbers)
    run: Any = _Run  # whose methods have no annotations
    found: Tensor = run.apply(_made[key], *args[:count])
    return found


_made: dict[Any, Steps] = {}


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


def length_of(*parts: Any) -> int:
    """Of functions."""
    return sum(map(length, map(inspect.getsource, parts)))


def length_of_named(file: Path, *names: str) -> int:
    """Of functions and methods of a file that is not imported, with their decorators."""
    text = file.read_text(encoding="utf-8")
    found = [
        "\n".join(text.splitlines()[node.decorator_list[0].lineno - 1 : node.end_lineno])
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name in names and node.decorator_list
    ]
    return sum(length(textwrap.dedent(part)) for part in found)


def length_in(program: Path, *names: str) -> int:
    """Of functions of loma."""
    return sum(length(part_of(program, name)) for name in names)
