"""What fusion adds to the IR: a parallel loop around statements that share an index.

Statements stay what they are in :mod:`loma.core.ir`; inside a :class:`Kernel` the shared index is
an int variable, no longer an axis of theirs. So a kernel prints as loma text with one more kind of
loop, and a backend lowers what stands inside as it lowers any statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from loma.backends.kernels.pairs import Pairs
from loma.backends.kernels.regions import Moderate
from loma.backends.kernels.sweeps import Found
from loma.core.effects import assigned, declared
from loma.core.ir import (
    Axis, Declare, Expr, For, If, IndexAssign, IntConst, Stmt, Var, While,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kernel:
    """``body`` for every value of ``axis``, in parallel; iterations do not depend on each other.

    ``private`` are tensors that live within one iteration: their types lack the shared dimension.
    Those of ``zeroed`` are read before they are wholly written, and start each iteration at zero.
    ``source`` are the statements that the kernel stands for, as they were.

    With a ``count`` an iteration is a block of so many values of the axis, from ``first``, over
    which the statements have loops of their own, and private tensors have a dimension of that size.
    Then ``views`` are as for :class:`Panels`. Blocks serve axes that loops should run along,
    because they are the last dimension of tensors; with ``rows`` only of those with less dimensions
    than others, so that a block may be a single row.

    With ``blocks`` it is they who say how many values an iteration has, for in each of ``parts``
    every iteration writes its own row, which is added up behind the kernel.

    ``inner``: on machines with many threads an iteration has one value of each of these axes, too.
    With ``carried`` there are fewer teams of threads than iterations, and these have sums.
    ``within``: what may run instead, on machines with many threads, where sizes make it worth it.
    What ``gone`` names was private, and is in the memory of tensors that outlive the kernel.
    """

    axis: Axis
    private: tuple[Var, ...]
    zeroed: frozenset[str]
    body: tuple[Stmt, ...]
    source: tuple[Stmt, ...]
    count: Var | None = None
    first: Var | None = None
    views: tuple[tuple[str, int], ...] = ()
    dropped: tuple[tuple[str, tuple[int, ...]], ...] = ()  # which dimensions private tensors lack
    rows: bool = False
    blocks: Blocks | None = None
    parts: tuple[Var, ...] = ()
    inner: tuple[Axis, ...] = ()
    carried: Carried | None = None
    within: Within | None = None
    gone: tuple[str, ...] = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (self.axis, *self.inner)


@dataclass(frozen=True, slots=True)
class Blocks:
    """``size`` values in each block but the last, so many blocks ``count``; ``number`` is that of
    the block at hand."""

    size: Expr
    count: Expr
    number: Var


@dataclass(frozen=True, slots=True)
class Carried:
    """``sums`` are private to each of ``teams`` teams of threads, not to iterations: zero before
    the team's first iteration, they grow with each of them. Behind its last one the team runs
    ``end``, where ``number`` is its own."""

    sums: tuple[Var, ...]
    end: tuple[Stmt, ...]
    number: Var
    teams: Var


@dataclass(frozen=True, slots=True)
class InnerSum:
    """Each thread adds to its own elements of ``own``; ``parts`` have those of some threads, and
    then begin with what all together found, which ``behind`` puts where it belongs."""

    own: Var
    parts: Var
    behind: IndexAssign


@dataclass(frozen=True, slots=True)
class Inner:
    """A loop in a kernel's iteration: ``body`` for each value of ``axis``. Threads that have a
    value share what is as long as ``lanes``. It stands for the statements ``source`` of these
    ``numbers``.

    ``private`` are numbers that belong to a value, in registers of all threads that have it;
    ``rows`` and what is summed over the axis, the elements of ``sums``, are in registers of those
    threads that go through them. ``hidden``: what the kernel calls those that are private. The loop
    stands under the conditions ``under``, as far as these are known before the kernel runs."""

    numbers: tuple[int, ...]
    source: tuple[Stmt, ...]
    axis: Axis
    body: tuple[Stmt, ...]
    private: tuple[Var, ...]
    rows: tuple[Var, ...]
    sums: tuple[InnerSum, ...]
    lanes: Expr
    hidden: frozenset[str]
    under: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Within:
    """A kernel's body with ``loops`` in it, its private tensors there, and those of them that start
    at zero."""

    body: tuple[Stmt, ...]
    loops: tuple[Inner, ...]
    private: tuple[Var, ...]
    zeroed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Until:
    """Of the columns of some rows those up to ``end`` where the host finds that all is
    ``moderate``, else all: it asks before the panels of rows, and ``exact`` is the answer. So many
    sums are ``whole`` products then."""

    end: Expr
    exact: Var
    moderate: Moderate
    whole: int


@dataclass(frozen=True, slots=True)
class Panels:
    """``body`` for a few values of ``axis`` at a time, one panel after the other, or in any order
    if all that a panel ``writes`` is among its views.

    Inside, the axis runs over ``count`` values, ``first`` of those outside being the first, and
    every tensor of ``views`` is what belongs to these values in one of its dimensions, whose whole
    size is that of the axis outside.
    ``temporaries`` exist for one panel; ``sums`` are tensors that each panel adds to. ``streamed``
    are operands that do not depend on the axis, and are read once for every panel. ``source`` as
    for a kernel; ``cut`` are these statements, of the values of one panel, ``declared`` the tensors
    that only they use.

    With ``until`` there is one panel, of the first values: the columns of a mask that the rows of
    panels around see.
    """

    axis: Axis
    count: Var
    first: Var
    temporaries: tuple[Var, ...]
    views: tuple[tuple[str, int], ...]
    sums: tuple[str, ...]
    streamed: tuple[Var, ...]
    body: tuple[Step, ...]
    source: tuple[Stmt, ...]
    declared: tuple[Declare, ...] = ()
    cut: tuple[Stmt, ...] = ()
    until: Until | None = None

    @property
    def inner(self) -> Panels | None:
        """The panel of columns that these panels of rows consist of."""
        match self.body:
            case (Panels(until=Until()) as inner,):
                return inner
        return None

    @property
    def writes(self) -> set[str]:
        """What the panels write that lives longer than one of them."""
        return {*assigned(self.source)} - temporaries((self,)) - declared(self.source)


@dataclass(frozen=True, slots=True)
class Nested:
    """An ``if`` or a loop that is no part of a kernel, with the blocks inside it lowered."""

    stmt: If | For | While
    blocks: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Statements that are one pass over columns, ``found``, where the device can do that in the
    numbers of a call, else the steps ``otherwise``. ``source`` as for a kernel, behind the
    declarations of the tensors that only they use."""

    found: Found
    otherwise: tuple[Step, ...]
    source: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps of which some are :class:`Pairs`, where the device can do these in the numbers of a
    call and the ``conditions`` hold, else the steps ``otherwise``. ``source`` as for a sweep."""

    items: tuple[Step, ...]
    otherwise: tuple[Step, ...]
    source: tuple[Stmt, ...]
    conditions: tuple[Expr, ...]

    @property
    def passes(self) -> tuple[Pairs, ...]:
        return tuple(item for item in self.items if isinstance(item, Pairs))


@dataclass(frozen=True, slots=True)
class Carrying:
    """A kernel that carries sums and what adds these up, ``items``, where a call wants all of
    ``wanted`` and sizes make it worth it, else the steps ``otherwise``. ``source`` as for a kernel.
    """

    kernel: Kernel
    items: tuple[Step, ...]
    wanted: tuple[Expr, ...]
    otherwise: tuple[Step, ...]
    source: tuple[Stmt, ...]


Step: TypeAlias = Stmt | Kernel | Panels | Nested | Sweep | Pairs | Chain | Carrying


def panels_of(panels: Panels) -> Iterator[Panels]:
    """The panels, and those inside of them."""
    yield panels
    for step in panels.body:
        if isinstance(step, Panels):
            yield from panels_of(step)


def as_statement(step: Step) -> Stmt:
    """What an analysis of names and reads may look at instead: the statements as they were."""
    match step:
        case Kernel() | Panels() | Sweep() | Pairs() | Chain() | Carrying():
            return If(IntConst(1), step.source, ())
        case Nested():
            return step.stmt
        case _:
            return step


def statements_of(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """Statements, and those of the steps that some of them stand for (:func:`as_statement`)."""
    for stmt in body:
        match stmt:
            case If(IntConst(), source):
                yield from statements_of(source)
            case _:
                yield stmt


def kernels_of(steps: tuple[Step, ...]) -> Iterator[Kernel]:
    """All kernels, those in panels, branches and loops among them."""
    for step in steps:
        match step:
            case Kernel():
                yield step
            case Panels(body=body) | Sweep(otherwise=body):
                yield from kernels_of(body)
            case Chain(items=items, otherwise=body) | Carrying(items=items, otherwise=body):
                yield from kernels_of((*items, *body))
            case Nested(blocks=blocks):
                for block in blocks:
                    yield from kernels_of(block)
            case _:
                continue


def private_tensors(steps: tuple[Step, ...]) -> set[str]:
    """Names of all tensors that live inside kernels alone."""
    found = list(kernels_of(steps))
    private = {var.name for kernel in found for var in kernel.private}
    return private.union(*(kernel.gone for kernel in found))


def temporaries(steps: tuple[Step, ...]) -> set[str]:
    """Names of all tensors that live inside kernels or panels alone."""
    found = private_tensors(steps)
    for step in steps:
        if isinstance(step, Panels):
            found |= {var.name for panels in panels_of(step) for var in panels.temporaries}
        elif isinstance(step, Sweep | Chain | Carrying):
            found |= temporaries(step.otherwise)
    return found
