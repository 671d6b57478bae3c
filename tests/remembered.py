"""What tests ask of a program again and again: its module, derivatives, what passes make of them.

A test of the kernels, one of the loops and one of the text each begin at the source of one program,
and so does each of their points: a fifth of Python's time. With --full nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from loma import config, pipeline
from loma.core.ir import Module
from loma.core.saving import Save

_MOST = 32  # programs: tests of one stand together
_parsed, _adjoint, _optimised = pipeline.parsed, pipeline.adjoint, pipeline.optimised


class _Same:
    """A module as a key: itself, for equal ones may have other names and sources."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def __hash__(self) -> int:
        return id(self.module)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.module is self.module


def use() -> None:
    """Lets this process remember them, by what is to be optimised."""

    @lru_cache(_MOST)
    def parse(source: str, path: str, name: str | None, opt: frozenset[str]) -> Module:
        return _parsed(source, path, name)

    @lru_cache(_MOST)
    def differentiate(module: _Same, opt: frozenset[str]) -> Module:
        return _adjoint(module.module)

    @lru_cache(_MOST)
    def optimise(
        module: _Same, names: tuple[str, ...], save: Save, every: bool, opt: frozenset[str]
    ) -> pipeline.Optimised:
        return _optimised(module.module, names, save, every)

    def parsed(source: str, path: str = "<text>", name: str | None = None) -> Module:
        if "import" in source:  # files, which may change
            return _parsed(source, path, name)
        return parse(source, path, name, config.optimisations())

    def adjoint(module: Module) -> Module:
        return differentiate(_Same(module), config.optimisations())

    def optimised(
        module: Module, names: Iterable[str], save: Save = "auto", every: bool = False
    ) -> pipeline.Optimised:
        return optimise(_Same(module), tuple(names), save, every, config.optimisations())

    pipeline.parsed, pipeline.adjoint, pipeline.optimised = parsed, adjoint, optimised
