"""The nodes of a function's tree around its loops: what the host does, one after the other.

Expressions are as the program has them, of whole tensors and scalars. Names that begin with ``@``
are those of lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any
from typing import TypeAlias

from loma.backends.kernels.ir import Chain, Inner, Kernel, Panels, Sweep, Until, kernels_of
from loma.backends.kernels.pairs import Pairs
from loma.backends.schedule.ir import InPlace, Parallel
from loma.core import sizes
from loma.core.ir import Axis, Element, Expr, For, If, IntConst, Stmt, Var, While

# ------------------------------------------------------------------------------------- memory


@dataclass(frozen=True, slots=True)
class Reserve:
    """A tensor that the function declares; it has no memory before :class:`Allocate`."""

    var: Var


@dataclass(frozen=True, slots=True)
class Allocate:
    """Memory for a tensor, ``zeros`` or with anything in it; ``unless``: it may have some already,
    which it keeps. ``wanted``: only if that variable is not 0. ``declares``: nothing has reserved
    it."""

    var: Var
    zeros: bool
    unless: bool = False
    wanted: Var | None = None
    declares: bool = False


@dataclass(frozen=True, slots=True)
class Clear:
    """All elements of a tensor become zero, ``if_allocated`` only if it has memory."""

    var: Var
    if_allocated: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """A tensor loses its memory if the variable ``wanted`` is 0: nothing has been written there."""

    var: Var
    wanted: Var


@dataclass(frozen=True, slots=True)
class Permute:
    """A dense copy of a tensor with its dimensions in another order."""

    var: Var
    operand: Var
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Later:
    """A number that ``body`` computes each time that it is read."""

    var: Var
    body: tuple[HostNode, ...]
    value: Expr


# ------------------------------------------------------------------------------------- checks


@dataclass(frozen=True, slots=True)
class CheckRange:
    """A subscript stays inside a dimension of ``size``, if all of ``needs`` are positive.

    Its values run from ``rest``, and by ``terms`` (coefficient, extent); where these are None, each
    element is checked later, and the dimension must not be empty, unless in all ``rows`` one of the
    ``rounds``, ranges that data say, is. ``extent`` instead: it is an index that runs over so many
    values, which must be the whole dimension.
    """

    tensor: str
    dim: int
    size: Expr
    text: str
    line: int
    rest: Expr | None = None
    terms: tuple[tuple[Expr, Expr], ...] | None = None
    extent: Expr | None = None
    needs: tuple[Expr, ...] = field(default=(), compare=False)
    rows: tuple[Axis, ...] = field(default=(), compare=False)
    rounds: tuple[Expr, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class CheckSome:
    """A reduction over ``reduced`` extents has elements, if none of ``own`` is 0."""

    kind: str
    own: tuple[Expr, ...]
    reduced: tuple[Expr, ...]
    line: int


@dataclass(frozen=True, slots=True)
class CheckOnce:
    """No two of ``cells``, which ``noted`` has filled, are the same: an assignment names each
    element once. ``axes`` are those of the cells, ``places`` the target's subscripts, with the
    dimension's size where the cells tell it. Nothing happens if one of ``needs`` is 0."""

    cells: Var
    noted: tuple[HostNode, ...]
    axes: tuple[tuple[str, Expr], ...]
    places: tuple[tuple[str, Expr | None], ...]
    target: str
    tensor: str
    line: int
    needs: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """``count`` additions to elements that data name, of which several may be the same.

    ``noted`` fills ``cells`` with the number of each one's element. ``order`` are the additions
    sorted by that, those to one element in their order; ``lengths``, for each place there, how many
    to its element begin there, 0 where one has begun before. ``together`` then adds up. For few
    additions all of that is left out, and ``otherwise`` makes one after the other."""

    cells: Var
    order: Var
    lengths: Var
    count: Expr
    noted: tuple[HostNode, ...]
    together: tuple[HostNode, ...]
    otherwise: tuple[HostNode, ...]


# ----------------------------------------------------------------------------- library routines


@dataclass(frozen=True, slots=True)
class Cut:
    """Of dimension ``dim`` the ``count`` elements from ``start`` on; none for a negative count.
    ``padded``: with zeros for those that lie outside."""

    dim: int
    start: Expr
    count: Expr
    padded: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """What ``cuts`` leave of a tensor, at the places ``fixed`` of some dimensions, the last one
    first. Checks say that it is inside, if it has elements."""

    tensor: Var
    cuts: tuple[Cut, ...] = ()
    fixed: tuple[tuple[int, Expr], ...] = ()

    @property
    def is_whole(self) -> bool:
        return not (self.cuts or self.fixed)


@dataclass(frozen=True, slots=True)
class Contract:
    """``target[out] = sum(left[a] * right[b])`` or ``+=``, as a matrix product; ``equation`` as for
    einsum. ``into``: the target is a part of a tensor, else an assignment gives it new memory.
    """

    target: Operand
    left: Operand
    right: Operand
    equation: str
    assign: bool = False
    into: bool = False


@dataclass(frozen=True, slots=True)
class GroupedContract:
    """``call`` for each ``place`` that is an element of ``group``, with the ``count`` positions
    from ``start`` on that have it, once positions are sorted by that: ``rows`` are the dimensions
    along which the target and the two operands have these, None where one has none. For little
    work, and where ``group`` has other elements than places from 0 to ``size``, ``otherwise``.
    ``work``: how many multiplications all that is."""

    call: Contract
    group: Var
    size: Expr
    place: Var
    start: Var
    count: Var
    rows: tuple[int | None, int | None, int | None]
    work: Expr
    otherwise: tuple[HostNode, ...] = ()


@dataclass(frozen=True, slots=True)
class Meeting:
    """A subscript ``step * u + tap * v + shift`` of the image; ``u`` is an axis of the first of
    the other two tensors, ``v`` one of the second."""

    u: str
    v: str
    step: int
    tap: int
    shift: Expr


@dataclass(frozen=True, slots=True)
class Arranged:
    """A tensor, and its dimensions in the order groups, batch, channels, and two of space; -1 for
    one that it does not have. Only what ``cuts`` leave of it is meant. That is inside if it has
    elements, as checks say, or ``padded``."""

    tensor: Var
    order: tuple[int, ...]
    cuts: tuple[Cut, ...] = ()


@dataclass(frozen=True, slots=True)
class Convolve:
    """``first[n, o, u] = sum of image[n, c, step * u + tap * v + shift] * second[o, c, v]`` or
    ``+=``, or, where ``spreads``, the same with image and first exchanged; for each group by
    itself, if there are any. ``inside``: products with elements outside of the image, which count
    as zero, do not count at all, not even if the other factor is not finite. ``dims``: those of the
    result's tensor, of which an assignment makes a new one unless it is cut; a ``bias``, of groups
    and filters, is added to that."""

    image: Arranged
    first: Arranged
    second: Arranged
    spatial: tuple[Meeting, ...]
    spreads: bool
    inside: bool = False
    dims: tuple[Expr, ...] = ()
    assign: bool = False
    bias: Var | None = None

    @property
    def result(self) -> Arranged:
        return self.image if self.spreads else self.first

    @property
    def shape(self) -> tuple[Expr, ...]:
        """That of what is computed."""
        counts = {cut.dim: cut.count for cut in self.result.cuts}
        return tuple(counts.get(k, dim) for k, dim in enumerate(self.dims))


# ------------------------------------------------------------------------ statements and loops


@dataclass(frozen=True, slots=True)
class Run:
    """A statement of whole tensors and scalars."""

    stmt: Stmt


@dataclass(frozen=True, slots=True)
class Unit:
    """What becomes of one statement, and of ``more`` that run in the same loop. ``fresh``: its
    target was all zero."""

    source: Stmt
    body: tuple[HostNode, ...]
    fresh: bool = False
    more: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    source: If
    condition: Expr
    then: tuple[HostNode, ...]
    other: tuple[HostNode, ...]


@dataclass(frozen=True, slots=True)
class Count:
    """A ``for`` loop."""

    source: For
    extent: Expr
    body: tuple[HostNode, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A ``while`` loop."""

    source: While
    condition: Expr
    body: tuple[HostNode, ...]


@dataclass(frozen=True, slots=True)
class Serial:
    """Loops that write one element at a time, on one thread; tensors are looked up once, before.
    ``writes``: those that are written."""

    source: For | While
    body: tuple[HostNode, ...]
    writes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A private tensor of a kernel's iteration, in scratch memory of the thread; those whose
    lifetimes, counted in statements, do not meet share memory."""

    var: Var
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Inside a block or a panel, a tensor is the part ``var`` of it in one dimension."""

    tensor: Var
    var: Var
    dim: int
    stride: Expr


Bytes: TypeAlias = tuple[Element, Expr]  # so many elements of a dtype


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel: its iterations run in parallel, each on one thread; where there are fewer than
    threads, one after the other, and the loops inside are parallel.

    ``work``: about how many steps of arithmetic an iteration takes. ``scalars`` are private to an
    iteration, too; buffers of ``cleared`` start at zero. With a ``count`` in the kernel, an
    iteration is a block of values, ``least`` or more: so many that what they take, ``bytes`` each,
    stays in the first-level cache; or, ``single``, one value. ``writes``: tensors that are written.
    ``end``: what a team that carries sums (``kernel.carried``) runs behind its last iteration.
    ``within``: the same with inner loops, where the sizes of these make them worth it.
    """

    kernel: Kernel
    work: Expr
    buffers: tuple[Buffer, ...]
    scalars: tuple[Var, ...]
    pieces: tuple[Piece, ...]
    bytes: tuple[Bytes, ...]
    body: tuple[HostNode, ...]
    writes: frozenset[str]
    least: int = 1
    single: bool = False
    end: tuple[HostNode, ...] = ()
    within: Launch | None = None

    @property
    def loops(self) -> tuple[Lanes, ...]:
        """The inner loops."""
        return tuple(node for node in flat(self.body) if isinstance(node, Lanes))


@dataclass(frozen=True, slots=True)
class Lanes:
    """An inner loop of a kernel: ``body`` for each value of ``inner.axis``, by some lanes each, who
    share what is as long as ``inner.lanes``; then its sums are joined. ``few``: how many numbers of
    a value each of these lanes goes through by itself; it is worth it if these are few."""

    inner: Inner
    body: tuple[HostNode, ...]
    few: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Elements of a tensor that is cut in one dimension at most: ``runs`` of them, ``length`` long,
    ``stride`` apart."""

    tensor: Var
    runs: Expr
    length: Expr
    stride: Expr


@dataclass(frozen=True, slots=True)
class Question:
    """Whether ``until.moderate`` holds; ``numbers`` are the tensors that it asks for, ``divisors``
    first. If it is not ``possible`` to ask, the answer is no."""

    until: Until
    numbers: tuple[Numbers, ...]
    possible: bool = True


@dataclass(frozen=True, slots=True)
class Spread:
    """``launch``, unless it has few ``iterations`` of much ``work`` each, and so leaves most of the
    device idle: then ``otherwise``, the kernel's statements one after the other, each with as many
    threads as it can have. ``work``: steps of arithmetic; ``launches``: those of the statements."""

    launch: Launch
    iterations: Expr
    work: Expr
    launches: Expr
    otherwise: tuple[HostNode, ...]


@dataclass(frozen=True, slots=True)
class Carry:
    """``then``, a launch that carries sums of ``bytes`` through ``rows`` iterations of ``width``
    elements, and what adds up those of its ``teams``, where none of ``wanted`` is 0 and the device
    finds that less to do; else ``otherwise``."""

    teams: Var
    wanted: tuple[Expr, ...]
    rows: Expr
    width: Expr
    bytes: tuple[Bytes, ...]
    then: tuple[HostNode, ...]
    otherwise: tuple[HostNode, ...]


@dataclass(frozen=True, slots=True)
class Stream:
    """Panels of an axis: as many values as keep temporaries, of ``bytes`` for each value, in
    ``cache`` bytes, but enough to be worth reading ``operands`` bytes for every panel, and
    ``least`` or more. ``before``: what is the same for all of them.

    They run one after the other, with parallel loops inside; or, where they are ``apart``, each
    writing parts of its own, and at least as many as threads, which hold no more at once than about
    what the cache does, in parallel, each on one thread. What panels inside of them hold, all but
    the first ``own`` of the bytes, is about a cache of each thread however many they are.

    Panels of rows that may leave out columns ask a ``question`` before, and have no more than a
    quarter of all rows; the one panel of columns in each of them (``panels.until``) neither counts
    bytes nor comes again."""

    panels: Panels
    bytes: tuple[Bytes, ...]
    operands: tuple[Bytes, ...]
    cache: int
    least: int
    pieces: tuple[Piece, ...]
    before: tuple[HostNode, ...]
    body: tuple[HostNode, ...]
    apart: bool = False
    question: Question | None = None
    own: int = 0

    @property
    def of_any_size(self) -> bool:
        """Whether generated loops take no sum whose parts depend on how many values a panel has."""
        blocks = any(kernel.blocks is not None for kernel in kernels_of(self.panels.body))
        inner = (node for node in self.body if isinstance(node, Stream))
        apart = self.apart or self.panels.until is not None
        return apart and not blocks and all(node.of_any_size for node in inner)


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over columns, ``sweep.found``, where the device can do that: into ``results``, which
    get memory ``before``. ``otherwise``: what runs elsewhere, and gives them memory itself.
    ``narrow``: the result is no more than returned, so that it may have the dtype of the call;
    ``alone`` are arguments that may, as they are nothing but operands of sweeps."""

    sweep: Sweep
    before: tuple[HostNode, ...]
    otherwise: tuple[HostNode, ...]
    results: tuple[Var, ...]
    narrow: bool
    alone: tuple[Var, ...]


@dataclass(frozen=True, slots=True)
class PairsPass:
    """A launch of one pass over pairs, into memory that is there; ``narrow``: those results that
    have none, as they may have the dtype of the call."""

    pairs: Pairs
    narrow: frozenset[str]


@dataclass(frozen=True, slots=True)
class Either:
    """``then``, where the device has matrix units for all passes in it, and the chain's conditions
    hold, else ``otherwise``. ``alone`` as for :class:`Pass`; kernels of ``then`` read those in
    ``read``, too."""

    chain: Chain
    then: tuple[HostNode, ...]
    otherwise: tuple[HostNode, ...]
    alone: tuple[Var, ...]
    read: frozenset[str] = frozenset()


HostNode: TypeAlias = (
    Reserve | Allocate | Clear | Drop | Permute | Later | CheckRange | CheckSome | CheckOnce
    | Contract | GroupedContract | Convolve | Run | Unit | Branch | Count | Repeat | Serial
    | Launch | Stream | Group | Spread | Carry | Pass | PairsPass | Either | Parallel | InPlace
    | Lanes
)  # fmt: skip


def flat(body: Sequence[HostNode]) -> Iterator[HostNode]:
    """The nodes of a kernel's body and of the loops and branches in it, the outer ones first."""
    for node in body:
        yield node
        match node:
            case Unit(_, inner) | Count(_, _, inner) | Repeat(_, _, inner):
                yield from flat(inner)
            case Branch(_, _, then, other):
                yield from flat((*then, *other))
            case _:
                pass


def single(launch: Launch) -> tuple[Var, ...]:
    """The private tensors of a kernel that have one element."""
    ones = (IntConst(1), launch.kernel.count if launch.single else None)
    tensors = (buffer.var for buffer in launch.buffers)
    return tuple(var for var in tensors if sizes.product(sizes.dims_of(var)) in ones)


def map_trees(value: Any, change: Callable[[Any], Any]) -> Any:
    """A node, or several, with other trees of loops."""
    if isinstance(value, Parallel | InPlace):
        return change(value)
    if isinstance(value, tuple):
        return tuple(map_trees(item, change) for item in value)
    if isinstance(value, HostNode):
        return replace(
            value, **{f.name: map_trees(getattr(value, f.name), change) for f in fields(value)}
        )
    return value
