"""The nodes of loop trees.

A tree says everything that the printed code does: which loops there are and in which order, what
runs in parallel and what in lanes of vectors, what is computed before a loop and kept, where
running reductions live. It says nothing of how a language spells that. Lowering for a target makes
trees, printers spell them, and tests run them in NumPy.

Expressions are those of :mod:`loma.core.ir`. Inside a tree a tensor is its elements in row-major
order: ``Index(x, (offset,))`` with one int for its place. What the language has no operator for are
built-in functions with names that no program can use, listed below. So are the names of variables
that lowering makes: they begin with ``@``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from loma.core.ir import (
    INT, POSITIONS, Axis, Builtin, Element, Expr, Index, Stmt, TensorType, Var,
)  # fmt: skip

TILE = "@tile_"  # where a tile begins, inside of it
PARTS = "@parts_"  # the partial sums of a parallel loop with a total, one for each iteration

# 0 <= subscript < size
INSIDE = "@inside"
# The same; where it does not hold, that is noted under the check's number: (subscript, size, check)
TESTED = "@tested"
# A subscript, or 0 where it is outside, which is noted: (subscript, size, check)
CLAMPED = "@clamped"
# Whether a stretch is the whole tile, and whether it has the lane at hand: (stretch,)
WHOLE = "@whole"
IN_STRETCH = "@in_stretch"
# An element where a condition holds, else zero: (condition, element)
READ_IF = "@read_if"
# One of two numbers, both of which are computed: (condition, number, number)
PICK = "@pick"
# The position that an accumulator of positions has found: (accumulator,)
POSITION = "@position"
# a / b rounded up, not positive for a negative a; of ints that are not negative: rounded down, and
# what is left
CEILING = "@ceiling"
QUOTIENT = "@quotient"
REMAINDER = "@remainder"
# Of an axis of which a thread may have several values at once (``Team.several``): how many groups
# of these there are, (extent,); and those from one on, (value,). Of a second such axis
# (``Team.beside``) the same
GROUPS = "@groups"
SEVERAL = "@several"
GROUPS_BESIDE = "@groups_beside"
SEVERAL_BESIDE = "@several_beside"
OF_TILES = frozenset({GROUPS, SEVERAL, GROUPS_BESIDE, SEVERAL_BESIDE})
# How many steps of a loop, around one of ``rest`` steps, make about so many; at least 1
STEPS_OF = "@steps_of"


@dataclass(frozen=True, slots=True)
class Let:
    """A constant from here to the end of the block."""

    var: Var
    value: Expr


@dataclass(frozen=True, slots=True)
class Lazy:
    """A value that ``body`` computes each time that it is read: it stands under a condition."""

    var: Var
    body: tuple[Node, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A running reduction of ints or floats at its initial value. Where it finds a position,
    ``dtype`` is that of the numbers, and the variable is no number itself."""

    var: Var
    kind: Kind
    dtype: Element


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a loop's body that stands for one element of a private tensor."""

    var: Var
    value: Expr
    dtype: Element


# set: the place gets the value; else it takes one more value of that reduction
Kind: TypeAlias = Literal["set", "sum", "prod", "max", "min", "argmax", "argmin"]


@dataclass(frozen=True, slots=True)
class Store:
    """An element or a variable gets a value; ``position`` is the value's, for accumulators that
    find positions."""

    place: Index | Var
    kind: Kind
    value: Expr
    position: Expr | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """A check has failed."""

    check: int


@dataclass(frozen=True, slots=True)
class Test:
    """0 <= step * counter + rest < size."""

    step: Expr
    rest: Expr
    size: Expr


@dataclass(frozen=True, slots=True)
class Narrow:
    """``begin`` and ``end``: the part of [low, high) in which all tests hold, an interval."""

    begin: Var
    end: Var
    low: Expr
    high: Expr
    tests: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class If:
    condition: Expr
    then: tuple[Node, ...]
    other: tuple[Node, ...] = ()


# plain loops around others; innermost ones; innermost ones whose iterations are independent; those
# that the threads of a team share, each of which has accumulators of its own; those around these,
# whose values parts of a team that add up later take in turns
Role: TypeAlias = Literal["serial", "inner", "vector", "shared", "around"]


@dataclass(frozen=True, slots=True)
class Loop:
    """``body`` for every value of [low, high), but for those of ``without``, an interval in it."""

    counter: Var
    low: Expr
    high: Expr
    body: tuple[Node, ...]
    role: Role = "serial"
    without: tuple[Var, Var] | None = None


@dataclass(frozen=True, slots=True)
class Rounds:
    """``body`` over and over, until ``test``, which runs before it, has left zeros only in the part
    ``on``. That is an error of the ``while`` of that line where it still goes on after ``most``."""

    on: Var
    test: tuple[Node, ...]
    body: tuple[Node, ...]
    most: int
    line: int


@dataclass(frozen=True, slots=True)
class Scan:
    """``place`` becomes, for every value of [0, high), what a reduction has found so far: that of
    ``before``, if there is such an element, which is read first if there are any, and of ``value``
    for all up to this one. With a ``factor`` it is a sum in which what was found before counts so
    many times, and not at all where one that is chosen is 0. The threads of a team share it."""

    counter: Var
    high: Expr
    kind: Kind
    dtype: Element
    before: Index | None
    place: Index
    value: Expr
    factor: Expr | None = None


@dataclass(frozen=True, slots=True)
class AllReduce:
    """The accumulator gets what those of all threads of a team have found, in an order that depends
    on sizes alone. Behind it only the team's first thread writes memory."""

    accumulator: Var
    kind: Kind
    dtype: Element


@dataclass(frozen=True, slots=True)
class Blocks:
    """``body`` for blocks [first, last) of range(count), one at least, of ``size`` values."""

    first: Var
    last: Var
    count: Expr
    size: Expr
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Groups:
    """``body`` for groups of ``many`` values of [low, high), then for those that are left: ``rest``
    where that is known. Inside, :class:`Each` runs over the values of a group."""

    low: Expr
    high: Expr
    many: int
    rest: int | None
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Each:
    """``body`` for every value of a group, unrolled."""

    counter: Var
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Tiles:
    """``body`` for tiles of [low, high), a few vectors of lanes each; ``length``: that of a stretch
    from 0 which is known. ``grouped``: a tile has so many rows as the group around. ``wide``: it
    has as many vectors as there are registers for, of rows that are read one after the other."""

    low: Expr
    high: Expr
    dtype: Element
    body: tuple[Node, ...]
    length: int | None = None
    grouped: bool = False
    wide: bool = False


# row: each lane is an element of its own, which lives as long as its tile; else the lanes are parts
# of one result, through all tiles. sum: of any reduction; best: of a maximum or minimum; wide and
# narrow: of a position along one axis, in 64 and in 32 bits; joint: of a position in several axes
Form: TypeAlias = Literal["row", "sum", "best", "wide", "narrow", "joint"]


@dataclass(frozen=True, slots=True)
class Lanes:
    """Running reductions in vector registers. A row has no value yet, others their initial one.

    Those that compare have places for new values, apart from the best so far.
    """

    var: Var
    kind: Kind
    dtype: Element
    form: Form
    grouped: bool = False

    @property
    def compares(self) -> bool:
        return self.kind in POSITIONS or self.form == "best"


@dataclass(frozen=True, slots=True)
class Fill:
    """All lanes of a row, or an element, get the initial value of a reduction."""

    place: Lanes | Index
    kind: Kind


@dataclass(frozen=True, slots=True)
class UpdateLanes:
    """Each lane takes one more value, in terms of its place ``counter``. ``load``: it becomes that
    value, or, of lanes that compare, the value is the next to be compared."""

    lanes: Lanes
    counter: Var
    value: Expr
    load: bool = False


@dataclass(frozen=True, slots=True)
class Compare:
    """The next values are compared with the best so far; ``position``: where they are."""

    lanes: Lanes
    position: Expr | None


@dataclass(frozen=True, slots=True)
class StoreLanes:
    """Each lane of a row goes to its element."""

    lanes: Lanes
    counter: Var
    place: Index


@dataclass(frozen=True, slots=True)
class Total:
    """The constant ``var``: what all lanes have found together, in an order that depends on the
    extents alone."""

    var: Var
    lanes: Lanes


@dataclass(frozen=True, slots=True)
class Stretch:
    """The lanes of the tile for which all tests hold."""

    var: Var
    tests: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class Transpose:
    """``var`` holds a part of a tensor in another order, from here to the end of the block: at
    ``column * size + row`` the element ``stride * row + column`` behind ``first``, for ``rows`` and
    ``columns`` of at most ``size``."""

    var: Var
    first: Index
    stride: Expr
    rows: Expr
    columns: Expr
    size: int


@dataclass(frozen=True, slots=True)
class Part:
    """``var`` is room for so many elements as its type says, from here to the end of the block;
    ``short``: ints that 32 bits hold, of which twice as many are read at a time."""

    var: Var
    short: bool = False


Node: TypeAlias = (
    Let | Lazy | Variable | Accumulator | AllReduce | Store | Note | Narrow | If | Loop | Blocks
    | Groups | Each | Tiles | Lanes | Fill | UpdateLanes | Compare | StoreLanes | Total | Stretch
    | Transpose | Part | Rounds | Scan
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    """What elements test while a tree runs: a subscript, or (with an empty tensor's name) that a
    reduction of kind ``text`` has elements."""

    number: int
    tensor: str
    dim: int
    size: Expr | None
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Team:
    """The threads that an iteration of a parallel loop may have, on machines with many: as many as
    its shared loop, of ``extent`` values, is worth. ``across``: what neighbouring iterations read
    lies beside each other, and what one reads does not. ``splits``: the shared loop makes one
    result, whose parts may be added up later; then ``around`` is the extent of a loop around it, if
    these share that, too. ``several``: the axis of which a thread that has an iteration to itself
    may take several values at once, if its extent is a multiple of these; ``beside``: a second one,
    of which it may take several of each of the first, or ``pairs`` alone."""

    extent: Expr
    across: bool = False
    splits: bool = False
    several: Axis | None = None
    around: Expr | None = None
    beside: Axis | None = None
    pairs: bool = False


def parts_of(number: int) -> str:
    """The name of the parts of a loop's total with that number."""
    return f"@parts{number + 1}_" if number else PARTS


@dataclass(frozen=True, slots=True)
class Parallel:
    """``body`` for every value of ``counter`` in range(count), in parallel.

    ``work``: about how many steps of arithmetic an iteration takes. ``needs``: extents without
    which, if one of them is 0, nothing runs. ``totals``: the scalars to which the parts of all
    iterations are added, in order. ``writes``: the tensors that are written. ``source``: the
    statements that it runs. ``over``: the axes of theirs whose values threads share. ``team``: the
    threads of an iteration, where that may have several. ``row``: the extent of the axis whose
    values are in order, where a thread may take several iterations side by side.
    """

    counter: Var
    count: Expr
    work: Expr
    body: tuple[Node, ...]
    writes: tuple[Var, ...]
    source: tuple[Stmt, ...]
    over: tuple[str, ...] = ()
    needs: tuple[Expr, ...] = ()
    totals: tuple[Var, ...] = ()
    checks: tuple[Check, ...] = ()
    team: Team | None = None
    row: Expr | None = None

    @property
    def parts(self) -> dict[str, Var]:
        """The totals by the names of their parts."""
        return dict(zip(map(parts_of, range(len(self.totals))), self.totals, strict=True))


@dataclass(frozen=True, slots=True)
class InPlace:
    """``body`` where it stands, once."""

    body: tuple[Node, ...]
    writes: tuple[Var, ...]
    checks: tuple[Check, ...] = ()


def element(tensor: Var, offset: Expr, read: Index) -> Index:
    """The element of a tensor at an offset; ``read`` is what the program reads."""
    return Index(tensor, (offset,), read.type, read.span)


def dtype_of(tensor: Var) -> Element:
    assert isinstance(tensor.type, TensorType)
    return tensor.type.element


def builtin(name: str, *args: Expr) -> Builtin:
    """An int of one of the functions above."""
    return Builtin(name, args, INT)
