"""Guards in a backward function: what only serves an adjoint that nobody wants is not computed."""

from __future__ import annotations

from dataclasses import dataclass, field

from loma.core import builder as b
from loma.core.effects import written
from loma.core.ir import Assign, Declare, Function, If, Op, Stmt, Unpack, Var
from loma.core.walk import blocks, free_variables, mentioned_names, own_names, reads_of_type
from loma.passes.canonical.views import is_view
from loma.passes.liveness import CallModes, Modes, Uses, uses


def guard_by_need(
    body: tuple[Stmt, ...], needs: dict[str, Var], functions: tuple[Function, ...]
) -> tuple[Stmt, ...]:
    """The body with statements that serve only some of the adjoints inside ``if`` on their needs.

    ``needs`` maps each adjoint variable to the int argument that says whether it is wanted. It is
    taken for granted that at least one is. Sizes that tensors are declared with are set in any
    case.
    """
    modes = CallModes(functions).of
    everything = frozenset(needs)
    serves: dict[str, frozenset[str]] = {name: frozenset({name}) for name in needs}
    # What runs anywhere behind a declaration may write to its variable.
    writers: dict[str, frozenset[str]] = {}
    done: list[tuple[frozenset[str], Stmt]] = []
    declared = {stmt.target.name for stmt in body if isinstance(stmt, Declare)}
    sizes = frozenset().union(*map(_sizes_declared, body)) & written(body)
    given = _given(body)
    early: list[Stmt] = []
    for stmt in reversed(body):
        read, whole, part = _uses(stmt, modes)
        wanted = frozenset().union(*(serves.get(name, frozenset()) for name in whole | part))
        if isinstance(stmt, Declare):
            wanted |= writers.get(stmt.target.name, frozenset())
        named = _sizes_declared(stmt) if isinstance(stmt, Unpack) else frozenset[str]()
        is_given = isinstance(stmt, Declare) and stmt.target.name in given
        if is_given or not sizes.isdisjoint(whole | part | named):
            wanted = everything
        for name in whole | part:
            writers[name] = writers.get(name, frozenset()) | wanted
        if not blocks(stmt):
            for name in whole:
                serves.pop(name, None)
        for name in read:
            serves[name] = serves.get(name, frozenset()) | wanted
        if wanted == everything or not wanted or (isinstance(stmt, Declare) and not stmt.value):
            done.append((everything, stmt))
            continue
        match stmt:
            case Declare(target, value) if value is not None:
                done.append((wanted, Assign(target, "=", value, stmt.span)))
                if sizes.isdisjoint(_sizes_declared(stmt)):
                    early.append(Declare(target, None))
                else:
                    done.append((everything, Declare(target, None)))
                continue
            case Unpack(targets):
                early += [Declare(t, None) for t in targets if t.name not in declared]
            case _:
                pass
        done.append((wanted, stmt))
    groups: list[_Group] = []
    for wanted, stmt in reversed(done):
        _place(groups, wanted, stmt)
    guarded = (stmt for group in groups for stmt in group.guarded(everything, needs))
    return (*reversed(early), *guarded)


def _given(body: tuple[Stmt, ...]) -> set[str]:
    """The names of parts of arguments, or of these in another shape."""
    changed, found = written(body), set[str]()
    for stmt in body:
        match stmt:
            case Declare(Var(name), Op() as value) if is_view(value):
                reads = free_variables(value) | reads_of_type(value.type)
                if reads.isdisjoint(changed - found):
                    found.add(name)
            case _:
                pass
    return found


def _sizes_declared(stmt: Stmt) -> frozenset[str]:
    """The variables that are sizes of what a statement declares."""
    match stmt:
        case Declare(target):
            return reads_of_type(target.type)
        case Unpack(targets):
            return frozenset().union(*(reads_of_type(target.type) for target in targets))
        case _:
            return frozenset()


@dataclass(slots=True)
class _Group:
    """Statements that serve the same adjoints, with what they mention and what they write."""

    wanted: frozenset[str]
    body: list[Stmt] = field(default_factory=list)
    mentioned: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def add(self, stmt: Stmt) -> None:
        self.body.append(stmt)
        self.mentioned |= mentioned_names((stmt,))
        self.written |= written((stmt,))

    def may_follow(self, stmt: Stmt) -> bool:
        """Whether the statement may as well run before the group."""
        mine = written((stmt,))
        return mine.isdisjoint(self.mentioned) and self.written.isdisjoint(mentioned_names((stmt,)))

    def guarded(self, everything: frozenset[str], needs: dict[str, Var]) -> tuple[Stmt, ...]:
        if self.wanted == everything:
            return tuple(self.body)
        cond = b.some([need for name, need in needs.items() if name in self.wanted])
        return (If(cond, tuple(self.body), ()),)


def _place(groups: list[_Group], wanted: frozenset[str], stmt: Stmt) -> None:
    """Puts a statement into the last group that serves the same, if those behind it may follow:
    what goes over one tensor shall stand together, to run in one loop."""
    for group in reversed(groups):
        if group.wanted == wanted:
            group.add(stmt)
            return
        if not group.may_follow(stmt):
            break
    groups.append(_Group(wanted))
    groups[-1].add(stmt)


def _uses(stmt: Stmt, modes: Modes) -> Uses:
    """What a statement, nested ones included, reads and writes."""
    if not blocks(stmt):
        return uses(stmt, modes)
    read, part = own_names(stmt), frozenset[str]()
    for block in blocks(stmt):
        for inner in block:
            own_read, own_whole, own_part = _uses(inner, modes)
            read |= own_read
            part |= own_whole | own_part
    return read, frozenset(), part
