"""The table of tensor operators: arguments, attributes, the shape of the result, and every other
fact that a stage of the compiler needs to know of them.

An operator is one row here, one derivative rule in :mod:`loma.ad.rules`, and one row in each
backend's ``ops.py``; a test names every missing row. Names and attributes follow PyTorch's.
Operators marked ``internal`` come from derivative rules; programs may use them too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loma.core import adjoint_shapes, shapes
from loma.core.builtins import BUILTINS, BuiltinInfo
from loma.core.ir import INT, Binary, BinaryOp, Builtin, Expr, IntConst, ReduceKind, replace
from loma.core.shapes import Dims, OpCall, ShapeRule

# What an operator does: one operation for each element of the result, to which its arguments
# broadcast ("elementwise"), of the first argument ("reduction") or of a window ("pooling"). A
# "view" moves no element; the arithmetic of "other" is not counted.
Work = Literal[
    "elementwise", "reduction", "softmax", "product", "convolution", "convolution_input",
    "convolution_weight", "pooling", "view", "other", "defined",
]  # fmt: skip
Linear = Literal["together", "each"]
Batches = Literal["along", "first", "any"]
AttrKind = Literal["int", "ints", "dim", "dims", "flag", "float", "word"]
REQUIRED = None


@dataclass(frozen=True, slots=True)
class AttrInfo:
    """An attribute: "int" and "ints" take any int expressions; "dim" and "dims" take constants
    that name dimensions of the first argument (negative ones count from the end); "flag" is a
    constant 0 or 1, "float" any number, "word" a string of ``words``, of which the operator has the
    position. ``default`` None means that it must be given, a string is the name of the attribute
    whose value it has. A list without a default has ``count`` ints, any number if that is 0."""

    name: str
    kind: AttrKind
    default: float | str | tuple[int, ...] | None = REQUIRED
    words: tuple[str, ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class Definition(OpCall):
    """A call of an operator that is an expression of others, while it is written out. ``once``
    gives an expression that is read more than once a name."""

    once: Callable[[Expr], Expr]

    def dims(self, position: int) -> Dims | None:
        return self.tensor(position).dims


@dataclass(frozen=True, slots=True)
class OpInfo:
    """``args`` are the names of the tensor arguments; of these the last ``optional`` may be left
    out. ``takes_list``: one argument, a list of tensors. ``scalars``: an argument may be a scalar.
    ``ints`` names the arguments that must be IntTensors; the others must be float tensors unless
    ``any_element``. ``order`` names arguments and attributes in PyTorch's order where attributes do
    not come last. ``define``: what stands for a call of it (:mod:`loma.core.definitions`).
    ``infix`` is how programs write it; one that ``divides`` fails where b is the int 0;
    ``opposite`` is true of two ints where it is not, ``mirrored`` of numbers in the other order.

    ``differentiable`` is False where the derivative is zero. ``linear``: its tangent is the same
    operator on tangents, of all float tensors "together" or of "each" of two factors, to whose
    product a third one is added. ``constant`` names arguments of which only the shape matters, or
    which elements are 0: no derivative passes.

    ``batches``: how a further dimension, of samples, passes. "along": it leads all tensors and the
    result, if the attributes of dimensions count on from it and a shape begins with it. "first":
    the samples may be in the first dimension of the first argument and of the result. "any": the
    first argument and the result may have any leading dimensions. None: in no such way, or, where
    the operator is elementwise, by broadcasting.

    ``shares``: the result may have the storage of the first argument. ``reduces``: which reduction
    of elements it is. ``fill``: the value of all elements."""

    name: str
    args: tuple[str, ...]
    attrs: tuple[AttrInfo, ...]
    shape: ShapeRule
    doc: str
    work: Work
    optional: int = 0
    takes_list: bool = False
    scalars: bool = False
    differentiable: bool = True
    linear: Linear | None = None
    constant: tuple[str, ...] = ()
    batches: Batches | None = None
    internal: bool = False
    infix: str | None = None
    divides: bool = False
    opposite: BinaryOp | None = None
    mirrored: BinaryOp | None = None
    shares: bool = False
    reduces: ReduceKind | None = None
    fill: int | None = None
    ints: tuple[str, ...] = ()
    any_element: bool = False
    order: tuple[str, ...] = ()
    define: Callable[[Definition], Expr] | None = None

    def arg(self, position: int) -> str:
        """The name of an argument; all tensors of a list have one."""
        return self.args[min(position, len(self.args) - 1)]

    def passes(self, position: int) -> bool:
        """Whether derivatives pass through an argument."""
        return self.arg(position) not in (*self.ints, *self.constant)


def _a(name: str, kind: AttrKind, default: float | tuple[int, ...] | None = REQUIRED) -> AttrInfo:
    return AttrInfo(name, kind, default)


def _window(rank: int) -> tuple[AttrInfo, ...]:
    """What convolutions over so many dimensions have."""
    return (
        _a("stride", "ints", (1,) * rank),
        _a("padding", "ints", (0,) * rank),
        _a("dilation", "ints", (1,) * rank),
        _a("groups", "int", 1),
    )


_CONV = _window(2)
_POOL = (
    AttrInfo("kernel_size", "ints", count=2),
    AttrInfo("stride", "ints", "kernel_size", count=2),
    _a("padding", "ints", (0, 0)),
)
_DIAGONAL = (_a("diagonal", "int", 0),)
_DIM = (_a("dim", "dim"),)
_DIMS = (_a("dims", "dims", ()),)
_REDUCE = (*_DIMS, _a("keepdim", "flag", 0))
_SHAPE = (_a("shape", "ints"),)
_SLICE = (*_DIM, _a("start", "int"), _a("end", "int"), _a("step", "int", 1))


def _infix(
    name: str, symbol: str, doc: str, shape: ShapeRule = shapes.broadcast,
    linear: Linear | None = None, divides: bool = False, flat: bool = False,
) -> OpInfo:  # fmt: skip
    return OpInfo(name, ("a", "b"), (), shape, doc, "elementwise", scalars=True, infix=symbol,
                  linear=linear, divides=divides, differentiable=not flat,
                  any_element=True)  # fmt: skip


def _predicate(
    name: str, symbol: str, doc: str, opposite: BinaryOp | None = None,
    mirrored: BinaryOp | None = None,
) -> OpInfo:  # fmt: skip
    whole = _infix(name, symbol, doc, shapes.compare, flat=True)
    return replace(whole, opposite=opposite, mirrored=mirrored)


def _builtin(info: BuiltinInfo) -> OpInfo:
    """A built-in function of scalars, element by element."""
    return OpInfo(info.name, info.args, (), shapes.builtin, info.doc, "elementwise", scalars=True,
                  any_element=True, differentiable=not info.flat,
                  infix="**" if info.name == "pow" else None)  # fmt: skip


def _reduction(
    name: str, kind: ReduceKind, doc: str, linear: Linear | None = None, any_element: bool = True
) -> OpInfo:
    return OpInfo(name, ("x",), _REDUCE, shapes.reduce, doc, "reduction", reduces=kind,
                  linear=linear, batches="along", any_element=any_element)  # fmt: skip


def _arg_extreme(name: str, doc: str) -> OpInfo:
    return OpInfo(name, ("x",), _DIM, shapes.argmax, doc, "reduction", batches="along",
                  differentiable=False, any_element=True)  # fmt: skip


def _along(name: str, doc: str) -> OpInfo:
    return OpInfo(
        name, ("x",), _DIM, shapes.same, doc, "reduction", batches="along", any_element=True
    )


def _moved(
    name: str, attrs: tuple[AttrInfo, ...], doc: str, shape: ShapeRule = shapes.same
) -> OpInfo:
    """Elements of one tensor at other places."""
    return OpInfo(
        name,
        ("x",),
        attrs,
        shape,
        doc,
        "other",
        linear="together",
        batches="along",
        any_element=True,
    )


def _view(name: str, attrs: tuple[AttrInfo, ...], shape: ShapeRule, doc: str) -> OpInfo:
    return OpInfo(name, ("x",), attrs, shape, doc, "view", linear="together", batches="along",
                  shares=True, any_element=True)  # fmt: skip


def _like(
    name: str, arg: str, shape: ShapeRule, doc: str, work: Work,
    attrs: tuple[AttrInfo, ...] = (), any_element: bool = True,
) -> OpInfo:  # fmt: skip
    """One that is given a tensor of the shape that it makes."""
    return OpInfo(name, (arg, "like"), attrs, shape, doc, work, linear="together",
                  constant=("like",), shares=True, internal=True,
                  any_element=any_element)  # fmt: skip


def _convolution(
    rank: int, sizes: str, window: str, linear: Linear | None = None
) -> tuple[OpInfo, ...]:
    """A convolution over so many dimensions, and its adjoints."""
    name, attrs = f"conv{rank}d", _window(rank)
    adjoint = adjoint_shapes.convolution_adjoint
    return (
        OpInfo(name, ("x", "w", "b"), attrs, shapes.convolution,
               f"cross-correlation of x [N, C, {sizes}] with w [O, C/groups, {window}]",
               "convolution", optional=1, linear=linear, batches="first"),
        OpInfo(f"{name}_input", ("g", "w"), (*_SHAPE, *attrs), adjoint,
               f"adjoint of {name} in x, which has the given shape",
               "convolution_input", linear=linear, batches="first", internal=True),
        OpInfo(f"{name}_weight", ("g", "x"), (*_SHAPE, *attrs), adjoint,
               f"adjoint of {name} in w, which has the given shape",
               "convolution_weight", linear=linear, internal=True),
    )  # fmt: skip


_ROWS: tuple[OpInfo, ...] = (
    # infix arithmetic and comparisons, with NumPy broadcasting
    _infix("add", "+", "elementwise sum", linear="together"),
    _infix("sub", "-", "elementwise difference", linear="together"),
    _infix("mul", "*", "elementwise product", linear="each"),
    _infix("div", "/", "elementwise quotient", shapes.quotient, divides=True),
    _infix("mod", "%", "remainder with the sign of b", divides=True),
    _infix("floordiv", "//", "quotient, rounded down", divides=True, flat=True),
    _predicate("and", "and", "1 where neither is 0, else 0"),
    _predicate("or", "or", "1 where one is not 0, else 0"),
    _predicate("lt", "<", "1 where a < b, else 0", ">=", ">"),
    _predicate("le", "<=", "1 where a <= b, else 0", ">", ">="),
    _predicate("gt", ">", "1 where a > b, else 0", "<=", "<"),
    _predicate("ge", ">=", "1 where a >= b, else 0", "<", "<="),
    _predicate("eq", "==", "1 where a == b, else 0", "!=", "=="),
    _predicate("ne", "!=", "1 where a != b, else 0", "==", "!="),
    OpInfo("neg", ("x",), (), shapes.same, "the negative", "elementwise", infix="-",
           linear="together", any_element=True),
    OpInfo("not", ("x",), (), shapes.compare, "1 where x is 0, else 0", "elementwise", infix="not",
           differentiable=False, any_element=True),
    # elementwise functions
    *(_builtin(info) for info in BUILTINS.values() if not info.scalar_only),
    OpInfo("where", ("cond", "a", "b"), (), shapes.where,
           "a where cond is not 0, else b; nothing passes to the branch not taken",
           "elementwise", scalars=True, linear="together", constant=("cond",), any_element=True),
    # reductions and softmax
    _reduction("sum", "sum", "sum over dims (all of them by default)", "together"),
    _reduction("mean", "sum", "mean over dims (all of them by default)", "together",
               any_element=False),
    _reduction("amax", "max", "largest element over dims; the adjoint goes to the first of equals"),
    _reduction("amin", "min",
               "smallest element over dims; the adjoint goes to the first of equals"),
    OpInfo("amax_or_zero", ("x",), _REDUCE, shapes.reduce,
           "largest element over dims, 0 of no elements", "reduction", reduces="max",
           differentiable=False, internal=True),
    _reduction("prod", "prod", "product over dims (all of them by default)"),
    _arg_extreme("argmax", "position of the first largest element along dim"),
    _arg_extreme("argmin", "position of the first smallest element along dim"),
    OpInfo("argsort", ("x",), (_a("dim", "dim", -1), _a("descending", "flag", 0)), shapes.positions,
           "positions of the elements in order along dim; equal ones keep theirs, NaN is largest",
           "other", differentiable=False, batches="along", any_element=True),
    _along("cumsum", "sum of the elements up to each one along dim"),
    _along("cumprod", "product of the elements up to each one along dim"),
    OpInfo("scan", ("a", "b"), _DIM, adjoint_shapes.scan,
           "y with y[t] = a[t] * y[t - 1] + b[t] along dim, y[0] = b[0]", "other", batches="along",
           internal=True),
    OpInfo("softmax", ("x",), _DIM, shapes.same, "exp(x) / sum(exp(x)) along dim", "softmax",
           batches="along"),
    OpInfo("log_softmax", ("x",), _DIM, shapes.same, "log of softmax along dim", "softmax",
           batches="along"),
    # linear algebra and convolutions
    OpInfo("matmul", ("a", "b"), (), shapes.matmul, "matrix product, batched as in torch.matmul",
           "product", linear="each"),
    OpInfo("linear", ("x", "w", "b"), (), shapes.linear, "x @ w.T + b", "product", optional=1,
           linear="each", batches="any"),
    *_convolution(2, "H, W", "P, Q", "each"),
    *_convolution(3, "D, H, W", "P, Q, R"),
    OpInfo("conv_transpose2d", ("x", "w", "b"),
           (*_CONV[:2], _a("output_padding", "ints", (0, 0)), *_CONV[2:]), shapes.conv_transpose2d,
           "the adjoint of conv2d in its input", "convolution_input", optional=1, linear="each",
           batches="first"),
    # pooling
    OpInfo("max_pool2d", ("x",), _POOL, shapes.pool2d, "largest element of each window", "pooling",
           batches="first"),
    OpInfo("max_pool2d_index", ("x",), _POOL, shapes.pool2d_index,
           "flat position in [H * W] of each window's first largest element",
           "other", differentiable=False, batches="first", internal=True),
    OpInfo("avg_pool2d", ("x",), _POOL, shapes.pool2d, "mean of each window, padding counted",
           "pooling", linear="together", batches="first"),
    OpInfo("avg_pool2d_input", ("g",), (*_SHAPE, *_POOL), adjoint_shapes.pool2d_adjoint,
           "adjoint of avg_pool2d", "other", linear="together", batches="first", internal=True),
    # shape
    _view("reshape", _SHAPE, shapes.reshape,
          "the same elements in row-major order; one size may be -1"),
    _view("permute", (_a("dims", "dims"),), shapes.permute, "dimensions in a new order"),
    _view("transpose", (_a("dim0", "dim"), _a("dim1", "dim")), shapes.transpose,
          "two dimensions exchanged"),
    OpInfo("cat", ("tensors",), (_a("dim", "dim", 0),), shapes.cat, "joined along dim", "other",
           takes_list=True, linear="together", batches="along", any_element=True),
    _moved("flip", (_a("dims", "dims"),), "dims in reverse order"),
    _moved("roll", (_a("shifts", "ints"), *_DIMS),
           "moved along dims, what leaves at the end comes in at the start (without dims: of all "
           "elements in a row)", shapes.roll),
    _moved("tril", _DIAGONAL, "0 above that diagonal of each matrix", shapes.matrices),
    _moved("triu", _DIAGONAL, "0 below that diagonal of each matrix", shapes.matrices),
    _view("slice", _SLICE, shapes.slice_, "x[start:end:step] along dim"),
    OpInfo("slice_into", ("g",), (*_SHAPE, *_SLICE), adjoint_shapes.slice_into,
           "adjoint of slice: g inside zeros of the given shape", "other", linear="together",
           batches="along", internal=True, any_element=True),
    _view("expand", _SHAPE, shapes.expand, "broadcast to the shape"),
    OpInfo("sum_to", ("x",), _SHAPE, adjoint_shapes.sum_to,
           "adjoint of expand: summed over what was broadcast", "reduction", linear="together",
           shares=True, internal=True, any_element=True),
    _like("reshape_like", "x", adjoint_shapes.reshape_like, "reshape to the shape of like", "view"),
    _like("expand_like", "x", adjoint_shapes.expand_like, "expand to the shape of like", "view"),
    _like("sum_to_like", "x", adjoint_shapes.sum_to_like, "sum_to the shape of like", "reduction"),
    _like("unreduce_like", "g", adjoint_shapes.unreduce_like,
          "adjoint of sum over dims of a tensor shaped as like", "other", _REDUCE),
    OpInfo("to_rows", ("x",), _DIMS, adjoint_shapes.rows,
           "dims (all of them by default) as one, which comes last", "other", linear="together",
           shares=True, internal=True),
    _like("from_rows_like", "rows", adjoint_shapes.reshape_like,
          "x of rows = to_rows(x, dims), shaped as like", "other", _DIMS, any_element=False),
    OpInfo("moved", ("x",), (*_DIM, _a("ones", "flag", 0)), shapes.same,
           "each element at the next place along dim; zeros, or ones, come in at the start",
           "other", batches="along", internal=True),
    # selection and constants
    OpInfo("one_hot", ("index",), (_a("size", "int"),), shapes.one_hot,
           "1.0 at each position of an IntTensor, along a new last dimension", "other",
           differentiable=False, batches="along", ints=("index",)),
    OpInfo("gather", ("x", "index"), _DIM, shapes.gather,
           "x taken at index along dim, as torch.gather", "other", linear="together",
           batches="along", ints=("index",), any_element=True),
    OpInfo("scatter_add", ("g", "index"), (*_SHAPE, *_DIM), adjoint_shapes.scatter_add,
           "adjoint of gather: g added at index into zeros of the given shape", "reduction",
           linear="together", batches="along", internal=True, ints=("index",), any_element=True),
    OpInfo("scatter_add_like", ("g", "index", "like"), _DIM, adjoint_shapes.scatter_add_like,
           "scatter_add into zeros shaped as like", "reduction", linear="together",
           constant=("like",), internal=True, ints=("index",), any_element=True),
    OpInfo("zeros", (), _SHAPE, shapes.constant, "all zero", "other", fill=0,
           differentiable=False),
    OpInfo("ones", (), _SHAPE, shapes.constant, "all one", "other", fill=1, differentiable=False),
    OpInfo("zeros_like", ("x",), (), shapes.same, "zeros shaped as x", "other", fill=0,
           differentiable=False, internal=True, any_element=True),
    OpInfo("ones_like", ("x",), (), shapes.same, "ones shaped as x", "other", fill=1,
           differentiable=False, internal=True, any_element=True),
)  # fmt: skip

OPS: dict[str, OpInfo] = {row.name: row for row in _ROWS}
INFIX: dict[str, OpInfo] = {row.infix: row for row in _ROWS if row.infix and len(row.args) == 2}
# Infix operations whose value is 0 or 1.
PREDICATES = frozenset(symbol for symbol, row in INFIX.items() if row.shape is shapes.compare)


def divisor(expr: Expr) -> Expr | None:
    """The int that must not be 0 for an expression to have a value."""
    match expr:
        case Binary(op, _, right) if expr.type == INT and INFIX[op].divides:
            return right
        case Builtin("len", (_, _, step)):
            return step
        case _:
            return None


def may_divide_by_zero(expr: Expr) -> bool:
    """Whether an expression itself has no value where an int, which is no other number, is 0."""
    by = divisor(expr)
    return by is not None and not (isinstance(by, IntConst) and by.value)
