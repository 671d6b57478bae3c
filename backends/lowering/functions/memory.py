"""Where the tensors of a function get their memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from loma.backends.kernels.ir import Kernel, Panels, panels_of, statements_of
from loma.backends.lowering.index_statements import library_call
from loma.backends.schedule import storage
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.host import (
    Allocate, Contract, Convolve, Drop, GroupedContract, HostNode,
)  # fmt: skip
from loma.core.distinct import fill_together
from loma.core.ir import Declare, Function, If, IndexAssign, Return, Stmt, TensorType, Var
from loma.core.walk import mentioned_names, own_names, root
from loma.passes import peeling
from loma.passes.liveness import Liveness


class Memory:
    """``ready`` are the declared tensors that surely have memory where the lowering stands,
    ``touched`` those that an earlier statement may have given some. ``outermost``: what it
    stands in runs at most once."""

    def __init__(self, context: FunctionContext) -> None:
        self._context = context
        self._lazy: dict[str, TensorType] = {}  # declared and not allocated then
        self._ready: set[str] = set()
        self._touched: set[str] = set()
        self._outermost = True
        # In a backward function an adjoint that nobody wants stays undefined: its last parameters
        # say which results are wanted.
        function = context.function
        is_backward = function.half == "backward"
        self._needs = function.params[-len(function.results) :] if is_backward else ()
        self._guarded = _guarded(function) if self._needs and function.results else {}
        self._dropped: dict[str, Var] = {}  # of these, what has memory that nothing may have filled

    def _prepare(self, stmt: Stmt) -> tuple[list[HostNode], bool]:
        """Memory for what the statement uses for the first time. Whether its target is all zero
        still, so that an index statement may assign instead of adding."""
        fresh = False
        nodes: list[HostNode] = []
        for name in sorted(own_names(stmt)):
            if isinstance(stmt, Return) and name in self._dropped:
                nodes.append(Drop(Var(name, self._lazy[name]), self._dropped[name]))
            if name not in self._lazy or name in self._ready:
                continue
            if isinstance(stmt, Return) and self._needs:
                nodes += self._wanted(stmt, name)
                continue
            unknown = self._may_have_memory(name)
            if storage.is_whole(stmt, name) and storage.overwrites(stmt, name):
                self._ready.add(name)
                continue
            made = (
                isinstance(stmt, IndexAssign)
                and name == root(stmt.target)
                and _is_new(library_call(stmt, self._context.machine))
            )
            whole = made or storage.overwrites(stmt, name)
            adds = isinstance(stmt, IndexAssign) and stmt.op == "+="
            blank = whole and not (adds and unknown)
            fresh = fresh or (blank and not unknown)
            self._ready.add(name)
            if blank and made:
                continue  # the result is a new tensor
            nodes.append(self._allocate(name, not blank, unknown))
        return nodes, fresh

    def _may_have_memory(self, name: str) -> bool:
        return not self._outermost or name in self._touched

    def _allocate(self, name: str, zeros: bool, unless: bool) -> Allocate:
        """Memory for a declared tensor, ``unless`` a statement before has given it any."""
        self._ready.add(name)
        return Allocate(Var(name, self._lazy[name]), zeros, unless)

    def _wanted(self, stmt: Return, name: str) -> list[HostNode]:
        """Memory for a result that no statement before has written to, if it is wanted."""
        var = Var(name, self._lazy[name])
        return [
            Allocate(var, True, True, Var(need.name, need.type))
            for value, need in zip(stmt.values, self._needs, strict=True)
            if value == Var(name, value.type)
        ]

    def _allocate_for(self, step: Kernel | Panels, private: set[str]) -> list[HostNode]:
        """Memory for what outlives a kernel and is used there for the first time."""
        written = frozenset(self._lazy) - private
        _, before_all = Liveness(()).block(step.source, written)
        names = mentioned_names(step.source)
        sums = {n for p in panels_of(step) for n in p.sums} if isinstance(step, Panels) else set()
        nodes: list[HostNode] = []
        for name in sorted((names & written) - self._ready):
            unknown = self._may_have_memory(name)
            before, need = before_all, self._guarded.get(name)
            own = [stmt for stmt in step.source if name in mentioned_names((stmt,))]
            guarded = [isinstance(stmt, If) and stmt.cond == need for stmt in own]
            if need is not None and all(guarded):
                own = [inner for stmt in own if isinstance(stmt, If) for inner in stmt.then]
                _, before = Liveness(()).block(tuple(own), frozenset({name}))
            whole = name not in before or fill_together(_assignments(own), name) > 0
            whole = whole or (len(own) > 1 and peeling.fill_together(own[0], own[1], name))
            blank = whole and name not in sums and not unknown
            nodes.append(self._allocate(name, not blank, unknown))
            if blank and need is not None and all(guarded):
                self._dropped[name] = need
        return nodes


def _guarded(function: Function) -> dict[str, Var]:
    """The results of a backward function that nothing mentions but where they are wanted, and the
    parameters that say so."""
    body, last = list(statements_of(function.body[:-1])), function.body[-1]
    assert isinstance(last, Return)
    names = [value.name if isinstance(value, Var) else "" for value in last.values]
    found: dict[str, Var] = {}
    for name, param in zip(names, function.params[-len(names) :], strict=True):
        need = Var(param.name, param.type)
        using = [
            stmt
            for stmt in body
            if name in mentioned_names((stmt,)) and not isinstance(stmt, Declare)
        ]
        inside = all(isinstance(s, If) and s.cond == need and not s.other for s in using)
        if inside and names.count(name) == 1:
            found[name] = need
    return found


def _assignments(statements: Sequence[Stmt]) -> list[Stmt]:
    """The first statements, as far as they assign."""
    return list(
        takewhile(lambda stmt: isinstance(stmt, IndexAssign) and stmt.op == "=", statements)
    )


def _is_new(call: Contract | GroupedContract | Convolve | None) -> bool:
    """Whether a library gives a statement's target as a new tensor."""
    match call:
        case Contract():
            return call.target.is_whole
        case Convolve():
            return not call.result.cuts
        case _:
            return False
