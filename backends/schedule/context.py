"""What the lowering of a function's statements shares: its sizes, scopes and lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from loma.backends.schedule.choices import Choices
from loma.backends.schedule.marks import unmarked
from loma.backends.schedule.target import Target
from loma.core import bounds, sizes
from loma.core.effects import assigned, counters
from loma.core.ir import INT, Axis, Expr, For, Function, Module, Stmt, TensorType, Var
from loma.core.printer import print_expr
from loma.core.sizes import size_variables
from loma.core.walk import reads_elements, variables
from loma.errors.excerpts import text_at
from loma.errors.spans import NOWHERE, Span, line_in_file

if TYPE_CHECKING:
    from loma.backends.schedule.host import Permute, Piece
    from loma.backends.schedule.ir import InPlace, Parallel


_O = TypeVar("_O", int, str)


@dataclass(frozen=True, slots=True)
class KernelScope:
    """The kernel that is lowered: its indices, unless it has blocks, then their size; which
    dimensions private tensors lack; the registers of runs of statements
    (:mod:`loma.backends.lowering.joined`). ``single``: the size of blocks that have one value."""

    indices: frozenset[str]
    count: Var | None
    dropped: dict[str, tuple[int, ...]]
    registers: dict[tuple[Stmt, ...], frozenset[str]]
    single: Var | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A part of a tensor, and the whole sizes of the dimensions that are cut."""

    var: Var
    whole: dict[int, Expr]


class FunctionContext:
    """Facts about one function and the machine it is for, and where its lowering stands: the
    kernel, the serial loops, the panels around."""

    def __init__(self, function: Function, module: Module, machine: Target) -> None:
        self.function = function
        self.module = module
        self.machine = machine
        self.choices: Choices | None = None  # None: no other ways are wanted than the usual ones
        # How index statements become loops, on machines where these are not rows and tiles.
        self.make_tree: Callable[..., Parallel | InPlace] | None = None
        self.kernel: KernelScope | None = None
        self.serial = False
        # Of the loops, kernels and panels around, with ranges that do not change.
        self.counters: dict[str, Expr] = {}
        self.views: dict[str, View] = {}  # inside panels and blocks: by tensor, its part
        self.counts: set[str] = set()  # sizes of panels
        self.at_least: dict[str, Expr] = {}  # what some of them are not smaller than
        self._panels: list[tuple[set[str], dict[str, View], list[Permute]]] = []
        self.current = NOWHERE  # the statement at hand
        self.assigned = {*assigned(function.body), *counters(function.body)}
        self.sizes = set(size_variables(function))
        self._temporaries = 0
        self._slots: dict[str, tuple[str, int]] = {}  # sizes that tensors keep: tensor, dimension

    def choose(self, kind: str, of: str, options: Sequence[_O], work: float = 1.0) -> _O:
        """Which way to go: the first of the options, unless another one is wanted. ``of``: the name
        of what is written; ``work``: see :mod:`loma.backends.schedule.choices`."""
        return options[0] if self.choices is None else self.choices.take(kind, of, options, work)

    def temporary(self, stem: str) -> str:
        """A name of the generator's own, which no name of the program clashes with."""
        self._temporaries += 1
        return f"{stem}{self._temporaries}_"

    def temporary_tensor(self, stem: str, type_: TensorType) -> Var:
        return Var(f"@{self.temporary(stem)}", type_)

    @contextmanager
    def cut(self, pieces: Sequence[Piece], whole: Expr) -> Iterator[None]:
        """While tensors mean these parts of them; ``whole``: the size of the dimension outside."""
        before = self.views
        self.views = dict(before)
        for piece in pieces:
            old = self.views.get(piece.tensor.name)
            cut = {piece.dim: whole, **(old.whole if old else {})}
            self.views[piece.tensor.name] = View(piece.var, cut)
        yield
        self.views = before

    @contextmanager
    def within(self, *axes: Axis) -> Iterator[None]:
        """While the body of a kernel or of panels is lowered, in which ints are in ranges."""
        old = self.counters
        self.counters = old | {axis.name: axis.extent for axis in axes}
        yield
        self.counters = old

    def start_panels(self, same: set[str]) -> None:
        """From now on, copies of those tensors are made before the panels."""
        self._panels.append((same, self.views, []))

    def before_panels(self, copy: Permute) -> bool:
        """Whether a copy is the same for every panel, as those in it have no other part of what is
        copied; it is kept then."""
        name = copy.operand.name
        for same, views, copies in self._panels:
            if name in same and views.get(name) == self.views.get(name):
                copies.append(copy)
                return True
        return False

    def end_panels(self) -> tuple[Permute, ...]:
        return tuple(self._panels.pop()[2])

    def show(self, var: Var) -> str:
        """A tensor's name for messages: the one that the program has at that place."""
        if var.name.startswith("@"):
            return "the value"
        text = text_at(self.module.source, var.span)
        return text if text.isidentifier() else self.named(var.name)

    def shown(self, expr: Expr) -> str:
        """An expression for messages, as the program has it; for one that the program has not, the
        statement that it belongs to."""
        source = self.module.source
        made = "" if isinstance(expr, Var) else text_at(source, self.current)
        return text_at(source, expr.span) or made or print_expr(unmarked(expr))

    def dims(self, base: Expr) -> tuple[Expr, ...]:
        """A tensor's dims as int expressions that are valid anywhere in the function."""
        assert isinstance(base, Var)
        assert isinstance(base.type, TensorType)
        assert base.type.dims is not None
        out: list[Expr] = []
        for k, dim in enumerate(base.type.dims):
            if base.name in self.views:
                dim = self.views[base.name].whole.get(k, dim)
            names = set(variables(dim))
            if names & self.assigned or reads_elements(dim):
                # An argument that the function changes: its tensors keep the size that they have,
                # and the tensor knows it, also where a kernel has a pointer into it.
                slot = f"{base.name} {k}"
                self._slots[slot] = (base.name, k)
                out.append(Var(slot, INT))
            else:
                out.append(dim)
        return tuple(out)

    def part_dims(self, tensor: Var) -> tuple[Expr, ...]:
        """As :meth:`dims`, but of the part of a tensor that a panel or block has of it, where those
        are the strides in memory."""
        own = sizes.dims_of(tensor)
        view = self.views.get(tensor.name)
        cut = view.whole if view else {}
        return tuple(own[k] if k in cut else dim for k, dim in enumerate(self.dims(tensor)))

    def is_size(self, name: str) -> bool:
        """Whether the int variable of that name is a size, thus never negative."""
        return name in self.sizes or name in self.counts or name in self._slots

    def size_slots(self) -> frozenset[str]:
        """Names of the sizes that tensors keep, whatever happens to the variables of their type."""
        return frozenset(self._slots)

    def extents(self, axes: Iterable[Axis]) -> dict[str, Expr]:
        """The ranges of axes and of the loop counters around."""
        return self.counters | {axis.name: axis.extent for axis in axes}

    def stays_inside(self, subscript: Expr, size: Expr, axes: Sequence[Axis]) -> bool:
        """Whether a subscript provably stays in a dimension, whatever the sizes are (when no axis
        is empty)."""
        extents = self.extents(axes)
        if bounds.stays_inside(subscript, size, extents, self.is_size):
            return True
        least = self.at_least.get(size.name) if isinstance(size, Var) else None
        return least is not None and bounds.stays_inside(subscript, least, extents, self.is_size)

    @contextmanager
    def counting(self, loop: For) -> Iterator[None]:
        """While the body of a loop is written."""
        old = self.counters
        changing = self.assigned - old.keys()
        self.counters = {k: v for k, v in old.items() if k != loop.counter}
        if sizes.keeps_value(loop.extent, changing):
            self.counters[loop.counter] = loop.extent
        yield
        self.counters = old

    def line(self, span: Span) -> int:
        return span.line or self.current.line

    def place(self, line: int) -> str:
        """The beginning of a message: function and line."""
        function = self.function
        backward = ", backward" if function.primal and function.half != "forward" else ""
        if not line:
            return f"{function.primal or function.name}{backward}: "
        return f"{self.function_at(line)}: line {line_in_file(line)}{backward}: "

    def named(self, name: str) -> str:
        """A variable's name for messages: that of a member, if it stands for one."""
        packings = self.module.packings
        return packings.shown.get(name, name) if packings else name

    def dimension(self, tensor: str, dim: int) -> int:
        """A dimension as the program counts it: private tensors may have less."""
        for dropped in self.kernel.dropped.get(tensor, ()) if self.kernel is not None else ():
            dim += dim >= dropped
        return dim

    def function_at(self, line: int) -> str:
        """The function whose text the line is in: another one where a call was inlined, or where
        the compiler has made a function of it."""
        starts = {f.span.line: f.primal or f.name for f in reversed(self.module.functions)}
        start = max((own for own in starts if own <= line), default=0)
        own = self.function.span.line
        name = self.function.primal or self.function.name
        return name if start in (0, own) else starts[start]
