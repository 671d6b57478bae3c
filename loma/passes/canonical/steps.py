"""Index statements that become several, with the temporaries between them."""

from __future__ import annotations

from loma.core import sizes
from loma.core.ir import Declare, Function, IndexAssign, Stmt, TensorType, Var, replace
from loma.core.names import Names, names_of
from loma.core.walk import map_blocks
from loma.errors.spans import NOWHERE, Span


class Steps:
    """A pass on one function. Temporaries, whose dimensions are sizes of the function, are declared
    in front of the outermost statement around what uses them."""

    def __init__(self, function: Function, names: Names | None = None) -> None:
        self._function = function
        self._names = names or Names(names_of(function))
        self._sizes = frozenset(sizes.size_variables(function))
        self._declared: list[Stmt] = []

    def run(self) -> Function:
        out: list[Stmt] = []
        for stmt in self._function.body:
            new = self._block((stmt,))
            out += [*self._declared, *new]
            self._declared = []
        return replace(self._function, body=tuple(out))

    def _steps(self, stmt: IndexAssign) -> list[Stmt]:
        """What stands for a statement, in order."""
        raise NotImplementedError

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, IndexAssign):
                out += self._steps(stmt)
            else:
                out.append(map_blocks(stmt, self._block))
        return tuple(out)

    def _temporary(self, name: str, type_: TensorType, span: Span = NOWHERE) -> Var:
        var = Var(self._names.fresh(name), type_)
        self._declared.append(Declare(var, None, span))
        return var

    def _is_size(self, name: str) -> bool:
        return name in self._sizes
