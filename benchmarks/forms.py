"""What a benchmark is made of: cases, the forms of the same work, and the steps that they repeat.

The peers of loma are eager PyTorch, the same with an allocator that keeps what was freed, and
torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from capsnet_loma.profiling.processes import allocators

EAGER, COMPILE, LOMA = "eager PyTorch", "torch.compile", "loma"
KEEPING = "eager PyTorch, memory kept"
# How torch.compile is called; "none" generates no code, for a quick run.
COMPILE_OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
    "none": {"backend": "eager"},
}

# One call of the work. It gives the results by name, which are compared between peers ("loss": a
# number, if there is one).
Step: TypeAlias = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Settings:
    """``quick``: tiny sizes, to see that everything runs; nothing it prints means anything."""

    rounds: int = 9
    threads: int = 2
    quick: bool = False

    @property
    def compile_modes(self) -> tuple[str, ...]:
        """Those of torch.compile that are worth trying on the CPU."""
        return ("none",) if self.quick else ("default", "max-autotune-no-cudagraphs")


@dataclass(frozen=True, slots=True)
class Form:
    """One way to do a case's work. ``make`` runs in the process that is measured; or ``command`` is
    a program that speaks the lines of ``capsnet_loma/profiling/worker.py``, made in the folder it
    is given.
    """

    group: str
    name: str
    make: Callable[[], Step] | None = None
    command: Callable[[Path], tuple[str, ...]] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """``goals``: how many times as fast as a group loma is meant to be."""

    key: str
    title: str
    forms: Sequence[Form]
    goals: Mapping[str, float] = field(default_factory=dict)


# ------------------------------------------------------------------------------- the steps


def keeping_allocators() -> dict[str, Mapping[str, str]]:
    """Environments in which freed memory stays with the process: that of glibc's allocator, told to
    give nothing back to the system, and those of other allocators that are installed."""
    told = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
    preloaded = {name: {"LD_PRELOAD": library} for name, library in allocators().items()}
    return {"glibc": told, **preloaded}


def leaf(*shape: int) -> Any:
    import torch

    return torch.randn(*shape, requires_grad=True)


def forward_step(function: Callable[..., Any], *args: Any) -> Step:
    """The function without gradients."""
    import torch

    def step() -> Mapping[str, Any]:
        with torch.no_grad():
            return {"result": function(*args)}

    return step


def backward_step(function: Callable[..., Any], *args: Any) -> Step:
    """Forward and backward; gradients start anew and belong to the arguments that want one."""
    import torch

    leaves = {
        f"argument {k}": a
        for k, a in enumerate(args)
        if isinstance(a, torch.Tensor) and a.requires_grad
    }
    cotangents: list[Any] = []

    def step() -> Mapping[str, Any]:
        for tensor in leaves.values():
            tensor.grad = None
        result = function(*args)
        if not cotangents:
            cotangents.append(torch.randn_like(result))
        result.backward(cotangents[0])
        return {"result": result, **{name: tensor.grad for name, tensor in leaves.items()}}

    return step


def torch_forms(
    forms: Mapping[str, Callable[..., Any]],
    make: Callable[[Callable[..., Any]], Step],
    *,
    eager: Sequence[str] | None = None,
    modes: Sequence[str],
) -> list[Form]:
    """The forms of a function in eager PyTorch, with either allocator, and under torch.compile.

    ``make`` makes the step of a function; ``eager`` names the forms worth trying there, all by
    default.
    """

    def compiling(name: str, mode: str) -> Callable[[], Step]:
        def begin() -> Step:
            import torch

            return make(torch.compile(forms[name], **COMPILE_OPTIONS[mode]))

        return begin

    def plain(name: str) -> Callable[[], Step]:
        return lambda: make(forms[name])

    out = [Form(EAGER, name, plain(name)) for name in eager or forms]
    out += [
        Form(KEEPING, f"{name}, {allocator}", plain(name), environment=environment)
        for allocator, environment in keeping_allocators().items()
        for name in eager or forms
    ]
    out += [
        Form(COMPILE, f"{name}, {mode}", compiling(name, mode)) for name in forms for mode in modes
    ]
    return out
