"""Which operators become index statements, and which views of tensors are read where they lie."""

from __future__ import annotations

from collections.abc import Mapping

from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    Axis, BinaryOp, Expr, Function, IndexAssign, IntConst, NoDiff, Op, Return, TensorType, Var,
)  # fmt: skip
from loma.core.ops import OPS
from loma.passes.outer import is_outer
from loma.core.walk import free_variables, walk
from loma.passes.canonical.filters import windows_of, windows_of_parts, windows_of_pool
from loma.passes.canonical.hoisting import InBlocks
from loma.passes.canonical.operators.axes import (
    PERMUTED, UNIT, VIEWS, Part, Slice, Stays, constant_of, float_dims, is_composed, own_axes,
    subscript,
)  # fmt: skip
from loma.passes.canonical.views import (
    cut_place, in_order, is_inside, order_of, slice_start, turned,
)  # fmt: skip

TRIANGLES: dict[str, BinaryOp] = {"tril": "<=", "triu": ">="}  # of the column
_OTHERS = ("where", "expand", "sum_to")


class Chosen(InBlocks):
    """Decides for one function. ``every``: ``softmax`` and copies, too."""

    def __init__(self, function: Function, functions: Mapping[str, Function], every: bool) -> None:
        super().__init__(function, functions)
        self._every = every
        self._large = set[str]()  # variables that hold products of matrices, as scores of attention
        self._of_rounds = frozenset[str]()  # variables that each round of a loop around sets
        returned = (s.values for s in function.body if isinstance(s, Return))
        self._returned = {value for values in returned for value in values}
        self._masks = dict[str, Op]()  # what conditions on indices alone are
        self._parts = dict[Expr, Var]()  # slices that the statement at hand reads

    def _index_assign(self, stmt: IndexAssign) -> IndexAssign:
        if is_outer(stmt):
            self._large.add(stmt.element.tensor.name)
        return stmt

    def _is_taken(self, value: Expr) -> bool:
        copied = self._every and isinstance(value, Var) and isinstance(value.type, TensorType)
        return copied or is_composed(value)

    def _is_mask(self, target: Var, value: Op) -> bool:
        """Whether a tensor says for ever where a condition on its indices holds."""
        integer = isinstance(target.type, TensorType) and target.type.integer
        fixed = target.name not in self._assigned and free_variables(value) <= self._known
        names = {node.name for node in walk(value) if isinstance(node, Op)}
        plain = all(
            OPS[n].infix or OPS[n].fill is not None or n in (*TRIANGLES, "not") for n in names
        )
        return integer and fixed and plain

    def _is_large(self, value: Expr) -> bool:
        """Whether a tensor is larger than what it is made of; its parts are cheap to make again."""
        if isinstance(value, Var):
            return value.name in self._large
        if isinstance(value, Op):
            return self._is_written_out(value) and (
                value.name == "matmul" or any(map(self._is_large, value.args))
            )
        return False

    def _is_one_of_many(self, value: Expr) -> bool:
        """Whether a tensor is a batch of matrices, or what a round of a loop takes of one."""
        if len(sizes.dims_of(value)) > 2 or self._is_of_a_round(value):
            return True
        if self._depth > 0 and self._is_large(value):
            return True
        if isinstance(value, Op) and value.name in VIEWS:
            return self._is_one_of_many(value.args[0])
        return False

    def _is_of_a_round(self, value: Expr) -> bool:
        """Whether a tensor is what a round of a loop takes of one, or sets itself."""
        if isinstance(value, Var):
            return value.name in self._of_rounds
        if not isinstance(value, Op) or value.name not in VIEWS:
            return False
        start = dict(value.attrs).get("start")
        own = isinstance(start, Expr) and not self._counters.keys().isdisjoint(
            free_variables(start)
        )
        return own or self._is_of_a_round(value.args[0])

    def _is_written_out(self, value: Expr) -> bool:
        match value:
            case NoDiff(operand):
                return self._is_written_out(operand)
            case Op("matmul", args) if all(map(self._is_one_of_many, args)):
                return True
            case Op("matmul" | "linear", args) if any(map(self._is_of_a_round, args)):
                return True
            case Op("softmax", (x,)) if self._is_large(x) or self._is_of_a_round(x):
                return True
            case Op("log_softmax"):
                return True
            case Op("conv2d") if windows_of(value) is not None or self._is_of_parts(value):
                return True
            case Op("max_pool2d" | "avg_pool2d"):
                return windows_of_pool(value) is not None
            case Op("gather"):
                return self._is_gathered(value)
            case Op("softmax" | "matmul") | Var():
                return self._every
            case Op("flip" | "roll"):
                return self._every and turned(value, sizes.dims_of(value)) is not None
            case Op("transpose" | "permute" | "reshape" | "slice", (x,)) if is_composed(x):
                return self._is_written_out(x) and self._is_moved(value)
            case Op(name):
                row = OPS[name]
                known = row.infix or row.reduces is not None or row.fill is not None
                return bool(known) or name in BUILTINS or name in (*TRIANGLES, *_OTHERS)
            case _:
                return False

    def _is_gathered(self, value: Op) -> bool:
        """Whether positions along one dimension are all that says which elements are taken."""
        x, index = value.args
        dims = [v.type.dims if isinstance(v.type, TensorType) else None for v in (x, index)]
        along = dict(value.attrs)["dim"]
        number = None if isinstance(along, tuple) else sizes.constant(along)
        if number is None or dims[0] is None or dims[1] is None:
            return False
        pairs = enumerate(zip(dims[0], dims[1], strict=True))
        others = (pair for k, pair in pairs if k != number % len(dims[0]))
        same = all(sizes.equal(own, other) is True for own, other in others)
        return same and is_inside(index, self._sizes.__contains__)

    def _is_of_parts(self, value: Op) -> bool:
        """Whether a convolution is one of parts of tensors, in a loop of tensors that stay as they
        are: else it is no convolution of groups, whatever its place."""
        changes = self._depth > 0 and not self._assigned.isdisjoint(free_variables(value))
        return not changes and windows_of_parts(value) is not None

    def _is_rearranged(self, value: Expr) -> bool:
        """Whether a permutation, if it is copied, is faster as an index statement: one that keeps
        rows as they are copies each, which a library is quick at where they are short."""
        if not self._every or not isinstance(value, Op) or value.name not in PERMUTED:
            return False
        order, dims = order_of(value), sizes.dims_of(value)
        if order is None or not (isinstance(value.type, TensorType) and not value.type.integer):
            return False
        moves = order[-1] != len(order) - 1 or sizes.constant(dims[-1]) is not None
        return moves and self._is_moved(value)

    def _is_moved(self, view: Op) -> bool:
        try:
            return self._moved(view, self._axes(float_dims(view))) is not None
        except Stays:
            return False

    def _is_read(self, value: Expr) -> bool:
        """Whether elements are read of a tensor or computed, not of what another operator makes."""
        while isinstance(value, Op) and value.name in VIEWS:
            if value.name == "slice" and self._slice_start(value) is None:
                return self._is_computed(value)
            value = value.args[0]
        return not isinstance(value, Op) or self._is_written_out(value)

    def _is_computed(self, view: Op) -> bool:
        """Whether a slice is one of elements that index statements compute, without steps."""
        whole = view.args[0]
        while isinstance(whole, Op) and whole.name in VIEWS:
            whole = whole.args[0]
        every = constant_of(dict(view.attrs)["step"]) == 1
        return every and isinstance(whole, Op) and self._is_written_out(whole)

    def _axes(self, dims: tuple[Expr, ...]) -> list[Axis]:
        return [Axis(self._names.fresh(f"_i{k}"), dim) for k, dim in enumerate(dims)]

    def _slice_start(self, view: Op) -> tuple[int, Expr] | None:
        own = self._counters.keys()
        counters = {
            name: extent
            for name, extent in self._counters.items()
            if free_variables(extent) <= self._known | own
        }
        return slice_start(view, self._sizes.__contains__, counters, or_empty=True)

    def _moved(self, view: Op, axes: list[Axis]) -> list[Axis] | None:
        """The axes of what is cut, transposed, or has dimensions of size 1 added or dropped, where
        a view of it has those axes; None where it is another operator."""
        if view.name not in VIEWS or not self._is_read(view.args[0]):
            return None
        own = own_axes(float_dims(view), axes)
        dims = float_dims(view.args[0])
        if view.name == "slice":
            found = self._slice_start(view)
            if found is None:
                return self._parted(view, own, dims)
            dim, start = found
            if isinstance(own[dim], Part):
                return None  # which has to lie in this slice, not in all of its tensor
            own[dim] = Slice(own[dim].name, dims[dim], cut_place(subscript(own[dim]), start))
            return own
        if view.name in PERMUTED:
            order = order_of(view)
            if order is None:
                raise Stays
            return list(in_order(order, own))
        left = [axis for axis in own if axis.extent != IntConst(1)]
        wanted = tuple(dim for dim in dims if dim != IntConst(1))
        if not sizes.same(wanted, tuple(axis.extent for axis in left)):
            return None
        rest = iter(left)
        return [UNIT if dim == IntConst(1) else next(rest) for dim in dims]

    def _parted(self, view: Op, own: list[Axis], dims: tuple[Expr, ...]) -> list[Axis] | None:
        """The axes of computed values of which a slice is wanted that may leave them."""
        attrs = dict(view.attrs)
        dim, start = constant_of(attrs["dim"]) % len(own), attrs["start"]
        assert isinstance(start, Expr)
        one = own[dim]
        if isinstance(one, Slice) or dims[dim] == IntConst(1) or not self._is_computed(view):
            return None  # a dimension of size 1 may come from nowhere
        own[dim] = Part(one.name, dims[dim], cut_place(subscript(one), start), one, view)
        return own
