"""The table of tensor operators: arguments, attributes, and the shape of the result.

An operator is one row here, one derivative rule in :mod:`loma.ad.rules`, and one row in each
backend's ``ops.py``; a test names every missing row. Names and attributes follow PyTorch's.
Operators marked ``internal`` come from derivative rules; programs may use them too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loma import adjoint_shapes, shapes
from loma.builtins import BUILTINS, BuiltinInfo
from loma.ir import INT, Binary, Builtin, Expr
from loma.shapes import Dims, OpCall, ShapeRule

AttrKind = Literal["int", "ints", "dim", "dims", "flag", "float", "word"]
REQUIRED = None


@dataclass(frozen=True, slots=True)
class AttrInfo:
    """An attribute: "int" and "ints" take any int expressions; "dim" and "dims" take constants
    that name dimensions of the first argument (negative ones count from the end); "flag" is a
    constant 0 or 1, "float" any number, "word" a string of ``words``, of which the
    operator has the position. ``default`` None means that it must be given."""

    name: str
    kind: AttrKind
    default: float | tuple[int, ...] | None = REQUIRED
    words: tuple[str, ...] = ()


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
    ``any_element``. ``differentiable`` is False where the derivative is zero. ``order`` names
    arguments and attributes in PyTorch's order where attributes do not come last. ``define``: what
    stands for a call of it (:mod:`loma.definitions`)."""

    name: str
    args: tuple[str, ...]
    attrs: tuple[AttrInfo, ...]
    shape: ShapeRule
    doc: str
    optional: int = 0
    takes_list: bool = False
    scalars: bool = False
    differentiable: bool = True
    internal: bool = False
    infix: str | None = None
    divides: bool = False
    ints: tuple[str, ...] = ()
    any_element: bool = False
    order: tuple[str, ...] = ()
    define: Callable[[Definition], Expr] | None = None


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
_POOL = (_a("kernel_size", "ints"), _a("stride", "ints", ()), _a("padding", "ints", (0, 0)))
_DIAGONAL = (_a("diagonal", "int", 0),)
_REDUCE = (_a("dims", "dims", ()), _a("keepdim", "flag", 0))
_SLICE = (_a("dim", "dim"), _a("start", "int"), _a("end", "int"), _a("step", "int", 1))


def _infix(
    name: str, symbol: str, doc: str, shape: ShapeRule = shapes.broadcast,
    divides: bool = False, flat: bool = False,
) -> OpInfo:  # fmt: skip
    return OpInfo(
        name, ("a", "b"), (), shape, doc, scalars=True, infix=symbol, divides=divides,
        differentiable=not flat, any_element=True,
    )  # fmt: skip


def _predicate(name: str, symbol: str, doc: str) -> OpInfo:
    return _infix(name, symbol, doc, shapes.compare, flat=True)


def _arg_extreme(name: str, doc: str) -> OpInfo:
    return OpInfo(name, ("x",), (_a("dim", "dim"),), shapes.argmax, doc,
                  differentiable=False, any_element=True)  # fmt: skip


def _any(
    name: str, attrs: tuple[AttrInfo, ...], doc: str, shape: ShapeRule = shapes.same
) -> OpInfo:
    """Of one tensor, whose elements may be ints, too."""
    return OpInfo(name, ("x",), attrs, shape, doc, any_element=True)


def _convolution(rank: int, sizes: str, window: str) -> tuple[OpInfo, ...]:
    """A convolution over so many dimensions, and its adjoints."""
    name, attrs = f"conv{rank}d", _window(rank)
    shape, adjoint = _a("shape", "ints"), adjoint_shapes.convolution_adjoint
    return (
        OpInfo(
            name, ("x", "w", "b"), attrs, shapes.convolution,
            f"cross-correlation of x [N, C, {sizes}] with w [O, C/groups, {window}]", optional=1,
        ),
        OpInfo(f"{name}_input", ("g", "w"), (shape, *attrs), adjoint,
               f"adjoint of {name} in x, which has the given shape", internal=True),
        OpInfo(f"{name}_weight", ("g", "x"), (shape, *attrs), adjoint,
               f"adjoint of {name} in w, which has the given shape", internal=True),
    )  # fmt: skip


def _builtin(info: BuiltinInfo) -> OpInfo:
    """A built-in function of scalars, element by element."""
    return OpInfo(
        info.name, info.args, (), shapes.builtin, info.doc, scalars=True, any_element=True,
        differentiable=not info.flat, infix="**" if info.name == "pow" else None,
    )  # fmt: skip


_ROWS: tuple[OpInfo, ...] = (
    # infix arithmetic and comparisons, with NumPy broadcasting
    _infix("add", "+", "elementwise sum"),
    _infix("sub", "-", "elementwise difference"),
    _infix("mul", "*", "elementwise product"),
    _infix("div", "/", "elementwise quotient", shapes.quotient, divides=True),
    _infix("mod", "%", "remainder with the sign of b", divides=True),
    _infix("floordiv", "//", "quotient, rounded down", divides=True, flat=True),
    _predicate("and", "and", "1 where neither is 0, else 0"),
    _predicate("or", "or", "1 where one is not 0, else 0"),
    _predicate("lt", "<", "1 where a < b, else 0"),
    _predicate("le", "<=", "1 where a <= b, else 0"),
    _predicate("gt", ">", "1 where a > b, else 0"),
    _predicate("ge", ">=", "1 where a >= b, else 0"),
    _predicate("eq", "==", "1 where a == b, else 0"),
    _predicate("ne", "!=", "1 where a != b, else 0"),
    OpInfo("neg", ("x",), (), shapes.same, "the negative", infix="-", any_element=True),
    OpInfo(
        "not",
        ("x",),
        (),
        shapes.compare,
        "1 where x is 0, else 0",
        differentiable=False,
        infix="not",
        any_element=True,
    ),
    # elementwise functions
    *(_builtin(info) for info in BUILTINS.values() if not info.scalar_only),
    OpInfo(
        "where",
        ("cond", "a", "b"),
        (),
        shapes.where,
        "a where cond is not 0, else b; nothing passes to the branch not taken",
        scalars=True,
        any_element=True,
    ),
    # reductions and softmax
    OpInfo(
        "sum",
        ("x",),
        _REDUCE,
        shapes.reduce,
        "sum over dims (all of them by default)",
        any_element=True,
    ),
    OpInfo("mean", ("x",), _REDUCE, shapes.reduce, "mean over dims (all of them by default)"),
    OpInfo(
        "amax",
        ("x",),
        _REDUCE,
        shapes.reduce,
        "largest element over dims; the adjoint goes to the first of equals",
        any_element=True,
    ),
    OpInfo(
        "amin",
        ("x",),
        _REDUCE,
        shapes.reduce,
        "smallest element over dims; the adjoint goes to the first of equals",
        any_element=True,
    ),
    OpInfo(
        "amax_or_zero",
        ("x",),
        _REDUCE,
        shapes.reduce,
        "largest element over dims, 0 of no elements",
        differentiable=False,
        internal=True,
    ),
    OpInfo(
        "prod",
        ("x",),
        _REDUCE,
        shapes.reduce,
        "product over dims (all of them by default)",
        any_element=True,
    ),
    _arg_extreme("argmax", "position of the first largest element along dim"),
    _arg_extreme("argmin", "position of the first smallest element along dim"),
    OpInfo(
        "argsort",
        ("x",),
        (_a("dim", "dim", -1), _a("descending", "flag", 0)),
        shapes.positions,
        "positions of the elements in order along dim; equal ones keep theirs, NaN is largest",
        differentiable=False,
        any_element=True,
    ),
    _any("cumsum", (_a("dim", "dim"),), "sum of the elements up to each one along dim"),
    _any("cumprod", (_a("dim", "dim"),), "product of the elements up to each one along dim"),
    OpInfo(
        "scan",
        ("a", "b"),
        (_a("dim", "dim"),),
        adjoint_shapes.scan,
        "y with y[t] = a[t] * y[t - 1] + b[t] along dim, y[0] = b[0]",
        internal=True,
    ),
    OpInfo("softmax", ("x",), (_a("dim", "dim"),), shapes.same, "exp(x) / sum(exp(x)) along dim"),
    OpInfo("log_softmax", ("x",), (_a("dim", "dim"),), shapes.same, "log of softmax along dim"),
    # linear algebra and convolutions
    OpInfo("matmul", ("a", "b"), (), shapes.matmul, "matrix product, batched as in torch.matmul"),
    OpInfo("linear", ("x", "w", "b"), (), shapes.linear, "x @ w.T + b", optional=1),
    *_convolution(2, "H, W", "P, Q"),
    *_convolution(3, "D, H, W", "P, Q, R"),
    OpInfo(
        "conv_transpose2d",
        ("x", "w", "b"),
        (*_CONV[:2], _a("output_padding", "ints", (0, 0)), *_CONV[2:]),
        shapes.conv_transpose2d,
        "the adjoint of conv2d in its input",
        optional=1,
    ),
    # pooling
    OpInfo("max_pool2d", ("x",), _POOL, shapes.pool2d, "largest element of each window"),
    OpInfo(
        "max_pool2d_index",
        ("x",),
        _POOL,
        shapes.pool2d_index,
        "flat position in [H * W] of each window's first largest element",
        differentiable=False,
        internal=True,
    ),
    OpInfo("avg_pool2d", ("x",), _POOL, shapes.pool2d, "mean of each window, padding counted"),
    OpInfo(
        "avg_pool2d_input",
        ("g",),
        (_a("shape", "ints"), *_POOL),
        adjoint_shapes.pool2d_adjoint,
        "adjoint of avg_pool2d",
        internal=True,
    ),
    # shape
    OpInfo(
        "reshape",
        ("x",),
        (_a("shape", "ints"),),
        shapes.reshape,
        "the same elements in row-major order; one size may be -1",
        any_element=True,
    ),
    OpInfo(
        "permute",
        ("x",),
        (_a("dims", "dims"),),
        shapes.permute,
        "dimensions in a new order",
        any_element=True,
    ),
    OpInfo(
        "transpose",
        ("x",),
        (_a("dim0", "dim"), _a("dim1", "dim")),
        shapes.transpose,
        "two dimensions exchanged",
        any_element=True,
    ),
    OpInfo(
        "cat",
        ("tensors",),
        (_a("dim", "dim", 0),),
        shapes.cat,
        "joined along dim",
        takes_list=True,
        any_element=True,
    ),
    _any("flip", (_a("dims", "dims"),), "dims in reverse order"),
    _any(
        "roll",
        (_a("shifts", "ints"), _a("dims", "dims", ())),
        "moved along dims, what leaves at the end comes in at the start (without dims: of all "
        "elements in a row)",
        shapes.roll,
    ),
    _any("tril", _DIAGONAL, "0 above that diagonal of each matrix", shapes.matrices),
    _any("triu", _DIAGONAL, "0 below that diagonal of each matrix", shapes.matrices),
    OpInfo("slice", ("x",), _SLICE, shapes.slice_, "x[start:end:step] along dim", any_element=True),
    OpInfo(
        "slice_into",
        ("g",),
        (_a("shape", "ints"), *_SLICE),
        adjoint_shapes.slice_into,
        "adjoint of slice: g inside zeros of the given shape",
        internal=True,
        any_element=True,
    ),
    OpInfo(
        "expand",
        ("x",),
        (_a("shape", "ints"),),
        shapes.expand,
        "broadcast to the shape",
        any_element=True,
    ),
    OpInfo(
        "sum_to",
        ("x",),
        (_a("shape", "ints"),),
        adjoint_shapes.sum_to,
        "adjoint of expand: summed over what was broadcast",
        internal=True,
        any_element=True,
    ),
    OpInfo(
        "reshape_like",
        ("x", "like"),
        (),
        adjoint_shapes.reshape_like,
        "reshape to the shape of like",
        internal=True,
        any_element=True,
    ),
    OpInfo(
        "expand_like",
        ("x", "like"),
        (),
        adjoint_shapes.expand_like,
        "expand to the shape of like",
        internal=True,
        any_element=True,
    ),
    OpInfo(
        "sum_to_like",
        ("x", "like"),
        (),
        adjoint_shapes.sum_to_like,
        "sum_to the shape of like",
        internal=True,
        any_element=True,
    ),
    OpInfo(
        "unreduce_like",
        ("g", "like"),
        _REDUCE,
        adjoint_shapes.unreduce_like,
        "adjoint of sum over dims of a tensor shaped as like",
        internal=True,
        any_element=True,
    ),
    OpInfo(
        "to_rows",
        ("x",),
        (_a("dims", "dims", ()),),
        adjoint_shapes.rows,
        "dims (all of them by default) as one, which comes last",
        internal=True,
    ),
    OpInfo(
        "from_rows_like",
        ("rows", "like"),
        (_a("dims", "dims", ()),),
        adjoint_shapes.from_rows_like,
        "x of rows = to_rows(x, dims), shaped as like",
        internal=True,
    ),
    OpInfo(
        "moved",
        ("x",),
        (_a("dim", "dim"), _a("ones", "flag", 0)),
        shapes.same,
        "each element at the next place along dim; zeros, or ones, come in at the start",
        internal=True,
    ),
    # selection and constants
    OpInfo(
        "one_hot",
        ("index",),
        (_a("size", "int"),),
        shapes.one_hot,
        "1.0 at each position of an IntTensor, along a new last dimension",
        ints=("index",),
    ),
    OpInfo(
        "gather",
        ("x", "index"),
        (_a("dim", "dim"),),
        shapes.gather,
        "x taken at index along dim, as torch.gather",
        ints=("index",),
        any_element=True,
    ),
    OpInfo(
        "scatter_add",
        ("g", "index"),
        (_a("shape", "ints"), _a("dim", "dim")),
        adjoint_shapes.scatter_add,
        "adjoint of gather: g added at index into zeros of the given shape",
        internal=True,
        ints=("index",),
        any_element=True,
    ),
    OpInfo(
        "scatter_add_like",
        ("g", "index", "like"),
        (_a("dim", "dim"),),
        adjoint_shapes.scatter_add_like,
        "scatter_add into zeros shaped as like",
        internal=True,
        ints=("index",),
        any_element=True,
    ),
    OpInfo("zeros", (), (_a("shape", "ints"),), shapes.constant, "all zero"),
    OpInfo("ones", (), (_a("shape", "ints"),), shapes.constant, "all one"),
    OpInfo(
        "zeros_like",
        ("x",),
        (),
        shapes.same,
        "zeros shaped as x",
        differentiable=False,
        internal=True,
        any_element=True,
    ),
    OpInfo(
        "ones_like",
        ("x",),
        (),
        shapes.same,
        "ones shaped as x",
        differentiable=False,
        internal=True,
        any_element=True,
    ),
)

OPS: dict[str, OpInfo] = {row.name: row for row in _ROWS}
INFIX: dict[str, OpInfo] = {row.infix: row for row in _ROWS if row.infix and len(row.args) == 2}
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
