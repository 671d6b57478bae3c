"""How the two parts of a split function fit together; what a backend needs to run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from loma.core.ir import INT, Function, Param, Type, Var
from loma.core.names import Names


@dataclass(frozen=True, slots=True)
class Source:
    """Where an argument of the backward function comes from.

    ``index`` is the position of the primal's argument ("arg", "size", "need"), of its result
    ("result", "grad"), or of the saved value ("saved"). A "size" is what the dimension ``dim``
    binds, which is ``scale`` times it, plus ``offset``.
    """

    kind: Literal["arg", "result", "saved", "grad", "size", "need"]
    index: int
    dim: int = 0
    scale: int = 1
    offset: int = 0


@dataclass(frozen=True, slots=True)
class SplitPair:
    """A function's forward and backward parts.

    ``forward`` takes the primal's arguments (``Out`` ones as their initial values) and returns the
    primal's results, the final values of its ``Out`` arguments, and the saved values.
    ``backward`` takes one argument for each of ``sources`` and returns the adjoints of the
    arguments at the positions ``differentiable``, in order. ``entries`` has for each saved value
    the position of the ``Out`` argument whose value on entry it is, or -1.
    """

    primal: str
    forward: str
    backward: str
    sources: tuple[Source, ...]
    differentiable: tuple[int, ...]
    entries: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arguments:
    """The backward function's arguments while they are collected."""

    params: list[Param] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)

    def add(self, name: str, type_: Type, source: Source) -> None:
        self.params.append(Param(name, type_, "In"))
        self.sources.append(source)

    def add_needs(
        self, primal: Function, adjoints: Mapping[int, Var], names: Names
    ) -> dict[str, Var]:
        """An int for each adjoint, by position of the argument, that says whether it is wanted; by
        names of the adjoints."""
        needs: dict[str, Var] = {}
        for k, adjoint in adjoints.items():
            need = Var(names.fresh(f"_need_{primal.params[k].name.lstrip('_')}"), INT)
            self.add(need.name, INT, Source("need", k))
            needs[adjoint.name] = need
        return needs
