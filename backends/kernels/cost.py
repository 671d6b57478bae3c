"""What statements cost at least: elements moved and arithmetic, as int expressions of sizes.

The numbers are those of a perfect machine, so that a time can be judged by them:

* A tensor that the statements touch is moved once, in each direction, however often they touch it:
  of a tensor that is read with subscripts, as many elements as the subscripts have values, at most
  all. What the statements wrote before is not read again. An operator (``relu(conv2d(x, w))``)
  moves its arguments and its result; a view moves nothing.
* Arithmetic on floats counts, subscripts do not. One ``+ - * /``, comparison, function (``exp``) or
  step of a reduction is one operation, done once for each value of the indices that it depends on.
* Calls of tensor functions count nothing here: the called function's own statements do.
* An extent that depends on another index counts with that index in the middle of its range; of an
  ``if`` that depends on what the statements compute, the dearer branch counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from loma.core import sizes
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Binary, Builtin, Call, Declare, Element, Expr, For, If, Index,
    IndexAssign, IntConst, Module, Op, Reduce, Select, Stmt, TensorType, Unary, Var, While, Zero,
    is_tensor_function,
)  # fmt: skip
from loma.core.ops import OPS
from loma.core.walk import (
    children, expressions, free_variables, statements, subscript_variables, substitute, walk,
)  # fmt: skip

Dims: TypeAlias = Callable[[Var], tuple[Expr, ...] | None]

ZERO, ONE = IntConst(0), IntConst(1)

_SOFTMAX_STEPS = 5  # largest, difference, exp, sum, quotient (or difference)


class UnknownCost(Exception):
    """A size does not stand in the program: a tensor of any rank."""


@dataclass(frozen=True, slots=True)
class Cost:
    """``moved``: elements between memory and processor, by the tensors' element type."""

    moved: Mapping[Element, Expr]
    flops: Expr


def is_work(stmt: Stmt, module: Module) -> bool:
    """Whether the statement itself, without nested blocks, handles whole tensors."""
    match stmt:
        case IndexAssign():
            return True
        case Zero(target) | Assign(target, "+=") if isinstance(target.type, TensorType):
            return True
        case If() | For() | While():
            return False
        case _:
            return any(
                isinstance(node, Op | Reduce)
                or (isinstance(node, Call) and is_tensor_function(module.function(node.function)))
                for expr in expressions(stmt)
                for node in walk(expr)
            )


def cost_of(
    block: Sequence[Stmt],
    module: Module,
    *,
    fresh: bool = False,
    private: frozenset[str] = frozenset(),
    dims: Dims | None = None,
) -> Cost | None:
    """The cost of statements that run as one unit; None where a size is not known.

    ``fresh``: targets of ``+=`` are all zero and are not read. ``private``: tensors that never
    reach memory. ``dims`` gives a variable's sizes where its type's are not to be used.
    """
    counter = _Counter(module, fresh, private, dims or _type_dims)
    try:
        flops = counter.block(block, [])
        return Cost(counter.moved(), flops)
    except UnknownCost:
        return None


def _type_dims(var: Var) -> tuple[Expr, ...] | None:
    return var.type.dims if isinstance(var.type, TensorType) else None


@dataclass(slots=True)
class _Touched:
    """A tensor of ``size`` elements: how many are read and written, access by access."""

    element: Element
    size: Expr
    reads: list[Expr]
    writes: list[Expr]


class _Counter:
    def __init__(self, module: Module, fresh: bool, private: frozenset[str], dims: Dims) -> None:
        self.module = module
        self.fresh = fresh
        self.private = private
        self.dims = dims
        self.tensors: dict[str, _Touched] = {}
        self.temporaries: dict[Element, Expr] = {}  # results of operators, written and read
        self.scalar_flops = cache(self._of_scalar_function)
        self.bounds: dict[str, frozenset[str]] = {}  # indices that an index's extent depends on

    def moved(self) -> dict[Element, Expr]:
        out = dict(self.temporaries)
        for tensor in self.tensors.values():
            for accesses in (tensor.reads, tensor.writes):
                out[tensor.element] = _add(
                    out.get(tensor.element, ZERO), _at_most(tensor.size, accesses)
                )
        return out

    # ------------------------------------------------------------------------------- statements

    def block(self, block: Sequence[Stmt], loops: list[Axis]) -> Expr:
        return _add(*(self.statement(stmt, loops) for stmt in block))

    def statement(self, stmt: Stmt, loops: list[Axis]) -> Expr:
        """Its operations, in all iterations of the loops around it that belong to the unit."""
        match stmt:
            case IndexAssign():
                return self._index_assign(stmt, loops)
            case For(counter, extent, body):
                return self.block(body, [*loops, Axis(counter, _settled(extent, loops))])
            case While(_, _, body):
                return self.block(body, loops)
            case If(cond, then, other):
                branches = (self.block(then, loops), self.block(other, loops))
                known = not sizes.mentions(cond, {axis.name for axis in loops}) and not any(
                    isinstance(node, Index | Call) for node in walk(cond)
                )
                if known and cond.type == INT:
                    return Select(cond, *branches, INT)
                return Builtin("max", branches, INT)
            case Zero(Var() as target) if isinstance(target.type, TensorType):
                self._write(target, self._size(target))
                return ZERO
            case Assign(Var() as target, "+=", value) if isinstance(target.type, TensorType):
                size = self._size(target)
                flops = self._whole(value, loops)
                self._read(target, size)
                self._write(target, size)
                return _add(flops, _times(loops, size))
            case Declare(target, value) | Assign(target, _, value):
                if value is None:
                    return ZERO
                flops = self._whole(value, loops)
                if isinstance(target, Var) and isinstance(value, Op) and not _is_view(value):
                    self._write(target, ZERO)  # the result, already counted as written
                return flops
            case _:
                return _add(*(self._whole(expr, loops) for expr in expressions(stmt)))

    def _index_assign(self, stmt: IndexAssign, loops: list[Axis]) -> Expr:
        axes = self._scope(stmt.axes, loops)
        flops = self._element(stmt.value, axes, loops)
        target = stmt.target
        names = subscript_variables(target) if isinstance(target, Index) else set()
        summed = {axis.name for axis in stmt.axes} - names
        if stmt.op == "+=" and (summed or not self.fresh):
            own = _times(axes[len(axes) - len(stmt.axes) :])
            flops = _add(flops, _times(loops, own))
        if isinstance(target, Index):
            for subscript in target.subscripts:
                self._reads(subscript, axes)
            count = self._points(names, axes)
            if stmt.op == "+=" and not self.fresh:
                self._read(target.tensor, count)
            self._write(target.tensor, count)
        return flops

    # ------------------------------------------------------------------- expressions per element

    def _element(self, expr: Expr, axes: list[Axis], loops: list[Axis]) -> Expr:
        """Operations of an expression that is evaluated for every point of the axes."""
        self._reads(expr, axes)
        return self._operations(expr, axes, loops)

    def _operations(self, expr: Expr, axes: list[Axis], loops: list[Axis]) -> Expr:
        if isinstance(expr, Reduce):
            return self._reduction(expr, axes, loops)
        if isinstance(expr, Index) or (expr.type == INT and not _compares_floats(expr)):
            return ZERO
        below = _add(*(self._operations(child, axes, loops) for child in children(expr)))
        steps: Expr = ZERO
        if isinstance(expr, Unary | Binary | Builtin):
            steps = ONE
        elif isinstance(expr, Call):
            steps = IntConst(self.scalar_flops(expr.function))
        points = self._points(free_variables(expr), axes)
        return _add(below, _times(loops, sizes.product((steps, points))))

    def _reduction(self, reduce: Reduce, axes: list[Axis], loops: list[Axis]) -> Expr:
        inner = self._scope(reduce.axes, axes)
        own = {axis.name for axis in reduce.axes}
        points = self._points(free_variables(reduce.body) | own, inner)
        return _add(self._operations(reduce.body, inner, loops), _times(loops, points))

    def _points(self, names: AbstractSet[str], axes: list[Axis]) -> Expr:
        """How many values the indices among the names take together."""
        wanted = set(names)
        for axis in reversed(axes):  # an extent depends on indices further out
            if axis.name in wanted:
                wanted |= self.bounds.get(axis.name, frozenset())
        return _times([axis for axis in axes if axis.name in wanted])

    def _scope(self, axes: Sequence[Axis], outer: list[Axis]) -> list[Axis]:
        """The axes inside the outer ones, with extents in which none of them occurs."""
        own = {axis.name for axis in axes}
        found = [axis for axis in outer if axis.name not in own]
        for axis in axes:
            self.bounds[axis.name] = free_variables(axis.extent)
            found.append(Axis(axis.name, _settled(axis.extent, found)))
        return found

    def _reads(self, expr: Expr, axes: list[Axis]) -> None:
        match expr:
            case Index(Var() as base, subscripts) if isinstance(base.type, TensorType):
                self._read(base, self._points(subscript_variables(expr), axes))
                for subscript in subscripts:
                    self._reads(subscript, axes)
            case Reduce(_, body, own):
                self._reads(body, self._scope(own, axes))
            case _:
                for child in children(expr):
                    self._reads(child, axes)

    def _of_scalar_function(self, name: str) -> int:
        """Operations in the text of a scalar function; loops of unknown length count once."""

        def steps(node: Expr) -> int:
            if isinstance(node, Call):
                return self.scalar_flops(node.function)
            is_float = node.type == FLOAT or _compares_floats(node)
            return int(is_float and isinstance(node, Unary | Binary | Builtin))

        body = self.module.function(name).body
        return sum(steps(n) for s in statements(body) for e in expressions(s) for n in walk(e))

    # -------------------------------------------------------------------- values of whole tensors

    def _whole(self, expr: Expr, loops: list[Axis]) -> Expr:
        """Operations of an expression that is evaluated once, outside index statements."""
        if isinstance(expr, Reduce):
            return self._element(expr, list(loops), loops)
        if not isinstance(expr, Op):
            return _add(*(self._whole(child, loops) for child in children(expr)))
        flops = _add(*(self._whole(arg, loops) for arg in expr.args))
        if _is_view(expr):
            return flops
        for arg in expr.args:
            if isinstance(arg, Var):
                self._read(arg, self._size(arg))
            elif isinstance(arg.type, TensorType):
                self._temporary(arg)
        self._temporary(expr)
        return _add(flops, _times(loops, self._operator(expr)))

    def _operator(self, op: Op) -> Expr:
        out = self._size(op)
        first, *rest = op.args or (op,)
        match OPS[op.name].work:
            case "product" | "convolution" as work:
                summed = self._dims(first)[-1:] if work == "product" else self._dims(rest[0])[1:]
                flops = sizes.product((IntConst(2), out, *summed))
                return _add(flops, out) if len(op.args) == 3 else flops
            case "convolution_input" | "convolution_weight" as work:
                kernel = self._dims(op if work == "convolution_weight" else rest[0])
                return sizes.product((IntConst(2), self._size(first), *kernel[1:]))
            case "softmax":
                return sizes.product((IntConst(_SOFTMAX_STEPS), out))
            case "pooling":
                window = dict(op.attrs)["kernel_size"]
                return sizes.product((out, *(window if isinstance(window, tuple) else (window,))))
            case "elementwise":
                return out
            case "reduction":
                return self._size(first)
            case _:
                return ZERO

    # ----------------------------------------------------------------------------------- memory

    def _dims(self, expr: Expr) -> tuple[Expr, ...]:
        type_ = expr.type
        assert isinstance(type_, TensorType)
        found = self.dims(expr) if isinstance(expr, Var) and type_.dims is not None else type_.dims
        if found is None:
            raise UnknownCost
        return found

    def _size(self, expr: Expr) -> Expr:
        return sizes.product(self._dims(expr)) if isinstance(expr.type, TensorType) else ONE

    def _temporary(self, expr: Expr) -> None:
        """One pass over a tensor that has no name."""
        assert isinstance(expr.type, TensorType)
        element = expr.type.element
        self.temporaries[element] = _add(self.temporaries.get(element, ZERO), self._size(expr))

    def _touched(self, var: Var) -> _Touched | None:
        if var.name in self.private or not isinstance(var.type, TensorType):
            return None
        if var.name not in self.tensors:
            self.tensors[var.name] = _Touched(var.type.element, self._size(var), [], [])
        return self.tensors[var.name]

    def _read(self, var: Var, count: Expr) -> None:
        touched = self._touched(var)
        if touched is not None and not touched.writes:
            touched.reads.append(count)

    def _write(self, var: Var, count: Expr) -> None:
        touched = self._touched(var)
        if touched is not None:
            touched.writes.append(count)


# ------------------------------------------------------------------------------ int expressions


def _add(*terms: Expr) -> Expr:
    total: Expr = ZERO
    for term in terms:
        total = sizes.simplify(Binary("+", total, term, INT))
    return total


def _times(axes: Sequence[Axis], count: Expr = ONE) -> Expr:
    """So much for each point of the axes."""
    return sizes.product((*(axis.extent for axis in axes), count))


def _settled(extent: Expr, axes: Sequence[Axis]) -> Expr:
    """The extent with every index that it depends on in the middle of its range."""
    middles: dict[str, Expr] = {
        axis.name: sizes.quotient(axis.extent, IntConst(2)) for axis in axes
    }
    return sizes.simplify(substitute(extent, middles))


def _at_most(size: Expr, counts: Sequence[Expr]) -> Expr:
    """How many of ``size`` elements some accesses touch."""
    total = _add(*counts)
    if any(sizes.equal(size, count) is True for count in [*counts, total]):
        return size
    small, large = sizes.constant(total), sizes.constant(size)
    if total == ZERO or (small is not None and small <= 1 and large is None):
        return total
    return Builtin("min", (total, size), INT)


def _is_view(op: Op) -> bool:
    return OPS[op.name].work == "view"


def _compares_floats(expr: Expr) -> bool:
    return (
        isinstance(expr, Binary) and expr.type == INT and FLOAT in (expr.left.type, expr.right.type)
    )
