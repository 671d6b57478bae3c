"""Rules for tensor operators: the adjoint of each argument from the adjoint ``g`` of the result.

A rule's docstring is the formula. Adjoints are built from operators again, so every rule can be
differentiated in its turn. ``None`` stands for an argument without derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from loma import errors
from loma.core import builder as b, sizes
from loma.core.ir import Attr, Expr, FloatConst, IntConst, Op, TensorType, Var


@dataclass(frozen=True, slots=True)
class OpAdjoint:
    """What an operator's rule may use: the call's arguments (variables or scalars), its attributes,
    its value ``y`` and the adjoint ``g`` of that value."""

    name: str
    args: tuple[Expr, ...]
    attrs: dict[str, Attr]
    y: Var
    g: Expr


OpRule: TypeAlias = Callable[[OpAdjoint], tuple[Expr | None, ...]]


def op(name: str, *args: Expr, **attrs: object) -> Op:
    return b.operator(name, args, attrs)


def dims_of(x: Expr) -> tuple[Expr, ...] | None:
    assert isinstance(x.type, TensorType)
    return x.type.dims


def _rank(call: OpAdjoint, position: int = 0) -> tuple[Expr, ...]:
    dims = dims_of(call.args[position])
    if dims is None:
        raise errors.NotDifferentiable(
            f"'{call.name}' of a tensor of unknown rank has no derivative here",
            call.args[position].span,
            hint="give the tensor its sizes: Tensor[N, ...]",
        )
    return dims


def unbroadcast(adjoint: Expr, x: Expr) -> Expr:
    """An adjoint summed back to the shape of the argument that was broadcast."""
    if not isinstance(x.type, TensorType):
        return b.as_scalar(op("sum", adjoint)) if _is_tensor(adjoint) else adjoint
    own, full = x.type.dims, dims_of(adjoint)
    if own is None or full is None:
        return op("sum_to_like", adjoint, x)
    same = len(own) == len(full) and all(sizes.equal(a, c) for a, c in zip(own, full, strict=True))
    return adjoint if same else op("sum_to", adjoint, shape=own)


def _is_tensor(x: Expr) -> bool:
    return isinstance(x.type, TensorType)


def _shaped(name: str, g: Expr, x: Expr) -> Expr:
    """``reshape``, ``expand`` or ``sum_to`` to the shape of x."""
    dims = dims_of(x)
    return op(f"{name}_like", g, x) if dims is None else op(name, g, shape=dims)


def _both(call: OpAdjoint, left: Expr, right: Expr) -> tuple[Expr | None, ...]:
    return unbroadcast(left, call.args[0]), unbroadcast(right, call.args[1])


def mul_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """a * b: g b, g a"""
    return _both(c, op("mul", c.g, c.args[1]), op("mul", c.g, c.args[0]))


def div_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """a / b: g / b, -g a / b / b"""
    x, y = c.args
    if isinstance(y, FloatConst | IntConst) and y.value:
        return unbroadcast(op("div", c.g, y), x), None
    one = op("ones_like", y) if _is_tensor(y) else b.flt(1)
    slope = op("div", one, y) if _is_tensor(y) else b.binary("/", one, y)
    fall = op("div", op("neg", c.y), y)
    return _both(c, op("mul_no_nan", slope, c.g), op("mul_no_nan", fall, c.g))


def neg_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """-x: -g"""
    return (op("neg", c.g),)


def sqrt_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """sqrt(x): g / (2 y), and 0 at 0"""
    slope = op("div", b.flt(0.5), c.y)
    return (op("mul_no_nan", op("where", op("ne", c.y, b.flt(0)), slope, b.flt(0)), c.g),)


def abs_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """abs(x): g sign(x)"""
    return (op("mul", c.g, op("sign", c.args[0])),)


def mul_no_nan_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """mul_no_nan(x, y): g y, and g x where g is not 0"""
    return _both(c, op("mul", c.g, c.args[1]), op("mul_no_nan", c.args[0], c.g))


def where_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """where(cond, a, b): g where cond, g where not cond"""
    cond, x, y = c.args
    taken, other = op("where", cond, c.g, b.flt(0)), op("where", cond, b.flt(0), c.g)
    return None, unbroadcast(taken, x), unbroadcast(other, y)


def _kept(c: OpAdjoint) -> Expr:
    """g with the reduced dimensions put back at size 1."""
    x = _rank(c)
    reduced = reduced_dims(c, len(x))
    shape = [IntConst(1) if k in reduced else d for k, d in enumerate(x)]
    return c.g if sizes.constant(_int(c, "keepdim")) else op("reshape", c.g, shape=shape)


def _int(c: OpAdjoint, attr: str) -> Expr:
    value = c.attrs[attr]
    assert not isinstance(value, tuple)
    return value


def reduced_dims(c: OpAdjoint, rank: int) -> tuple[int, ...]:
    dims = c.attrs["dims"]
    assert isinstance(dims, tuple)
    return tuple(sizes.constant(d) or 0 for d in dims) or tuple(range(rank))


def sum_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """sum(x, dims): g expanded over dims"""
    (x,) = c.args
    dims = dims_of(x)
    if dims is None:
        return (op("unreduce_like", c.g, x, **c.attrs),)
    return (op("expand", _kept(c), shape=dims),)


def mean_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """mean(x, dims): g / n expanded over dims, n elements in each mean"""
    (x,) = c.args
    dims = dims_of(x)
    if dims is None:
        counts = op("sum", op("ones_like", x), **c.attrs)
        return (op("unreduce_like", op("div", c.g, counts), x, **c.attrs),)
    count = sizes.product(tuple(dims[k] for k in reduced_dims(c, len(dims))))
    return (op("expand", op("div", _kept(c), count), shape=dims),)


def _reduced_in_rows(
    c: OpAdjoint, adjoint: Callable[[Expr, Expr, Expr], Expr]
) -> tuple[Expr | None, ...]:
    """The adjoint of a reduction, as ``adjoint`` makes it from x with the elements of each result
    in a row, their number, and g with rows of one element."""
    (x,) = c.args
    dims = _rank(c)
    reduced = reduced_dims(c, len(dims))
    kept = tuple(k for k in range(len(dims)) if k not in reduced)
    order = kept + reduced
    outer = tuple(dims[k] for k in kept)
    count = sizes.product(tuple(dims[k] for k in reduced))
    flat = op("reshape", op("permute", x, dims=order), shape=(*outer, count))
    spread = adjoint(flat, count, op("reshape", c.g, shape=(*outer, IntConst(1))))
    back = op("reshape", spread, shape=tuple(dims[k] for k in order))
    return (op("permute", back, dims=tuple(order.index(k) for k in range(len(dims)))),)


def extreme_in_rows(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """amax(x, dims), amin(x, dims): g at the first such element, else 0"""

    def at_first(rows: Expr, count: Expr, g: Expr) -> Expr:
        return op("mul", g, op("one_hot", op(f"arg{c.name[1:]}", rows, dim=-1), size=count))

    return _reduced_in_rows(c, at_first)


def product_in_rows(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """prod(x, dims): g times the elements before each one, times those after it"""
    return _reduced_in_rows(c, lambda rows, count, g: op("mul", g, other_factors(rows)))


def other_factors(rows: Expr) -> Expr:
    """For each element the product of those before it in its row, times that of those after it."""
    dims = dims_of(rows)
    last = -1 if dims is None else len(dims) - 1
    before, after = (
        moved_on("ones", op("cumprod", x, dim=last), last) for x in (rows, _flip(rows, last))
    )
    return op("mul", before, _flip(after, last))


def _flip(x: Expr, dim: object) -> Expr:
    return op("flip", x, dims=(dim,))


def moved_on(name: str, x: Expr, dim: int, back: bool = False) -> Expr:
    """Each element of x at the next place along dim (or the one before), and ``zeros`` or ``ones``
    where there is none."""
    dims = dims_of(x)
    if dims is None:
        moved = op("moved", _flip(x, dim) if back else x, dim=dim, ones=int(name == "ones"))
        return _flip(moved, dim) if back else moved
    edge = op(name, shape=(*dims[:dim], IntConst(1), *dims[dim + 1 :]))
    start = IntConst(1 if back else 0)
    end = sizes.simplify(b.binary("+", start, dims[dim]))
    return op("slice", op("cat", *((x, edge) if back else (edge, x)), dim=dim),
              dim=dim, start=start, end=end)  # fmt: skip


def cumsum_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """cumsum(x, dim): the sum of g from each element on"""
    dim = _int(c, "dim")
    return (_flip(op("cumsum", _flip(c.g, dim), dim=dim), dim),)


def _scanned_back(c: OpAdjoint, factors: Expr, dim: int) -> Expr:
    """r with r[t] = g[t] + factors[t + 1] * r[t + 1] along dim."""
    after = moved_on("zeros", factors, dim, back=True)
    return _flip(op("scan", _flip(after, dim), _flip(c.g, dim), dim=dim), dim)


def cumprod_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """cumprod(x, dim): y[t - 1] r[t], where r[t] = g[t] + x[t + 1] r[t + 1]"""
    (x,) = c.args
    dim = along(c)
    return (op("mul", moved_on("ones", c.y, dim), _scanned_back(c, x, dim)),)


def scan_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """scan(a, b, dim): y[t - 1] r[t] and r[t], where r[t] = g[t] + a[t + 1] r[t + 1]"""
    dim = along(c)
    back = _scanned_back(c, c.args[0], dim)
    return op("mul", moved_on("zeros", c.y, dim), back), back


def along(c: OpAdjoint) -> int:
    """The dimension that an operator goes along, from 0 where the rank is known."""
    dim, dims = sizes.constant(_int(c, "dim")) or 0, dims_of(c.args[0])
    return dim if dims is None else dim % len(dims)


def softmax_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """softmax(x): y (g - sum(g y))"""
    dot = op("sum", op("mul", c.g, c.y), dims=(_int(c, "dim"),), keepdim=1)
    return (op("mul", c.y, op("sub", c.g, dot)),)


def log_softmax_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """log_softmax(x): g - exp(y) sum(g)"""
    total = op("sum", c.g, dims=(_int(c, "dim"),), keepdim=1)
    return (op("sub", c.g, op("mul", op("exp", c.y), total)),)


def _swap(x: Expr) -> Expr:
    return op("transpose", x, dim0=-2, dim1=-1)


def matmul_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """a @ b: g @ b^T, a^T @ g"""
    x, y = c.args
    return _both(c, op("matmul", c.g, _swap(y)), op("matmul", _swap(x), c.g))


def linear_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """x @ w^T + b: g @ w, g^T @ x, sum of g over rows"""
    x, w = c.args[:2]
    dims, (out, width) = _rank(c), _rank(c, 1)
    rows = sizes.product(dims[:-1])
    g2, x2 = c.g, x
    if len(dims) != 2:
        g2 = op("reshape", c.g, shape=(rows, out))
        x2 = op("reshape", x, shape=(rows, width))
    dw = op("matmul", _swap(g2), x2)
    bias = (op("sum", g2, dims=(0,)),) if len(c.args) == 3 else ()
    dx = op("matmul", c.g if len(dims) > 1 else g2, w)
    return dx if len(dims) > 1 else op("reshape", dx, shape=dims), dw, *bias


def _attrs(c: OpAdjoint) -> dict[str, object]:
    """The operator's attributes that its adjoint has, too."""
    return {k: value for k, value in c.attrs.items() if k not in ("shape", "output_padding")}


def _channel_sum(c: OpAdjoint) -> tuple[Expr, ...]:
    dims = (0, *range(2, len(_rank(c))))
    return (op("sum", c.g, dims=dims),) if len(c.args) == 3 else ()


def conv2d_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """x * w + b: conv2d_input(g, w), conv2d_weight(g, x), sum of g; and so for conv3d"""
    x, w = c.args[:2]
    attrs = _attrs(c)
    dx = op(f"{c.name}_input", c.g, w, shape=_rank(c), **attrs)
    dw = op(f"{c.name}_weight", c.g, x, shape=_rank(c, 1), **attrs)
    return dx, dw, *_channel_sum(c)


conv3d_rule = conv2d_rule


def conv_transpose2d_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """the adjoint of conv2d: conv2d(g, w), conv2d_weight(x, g), sum of g"""
    x, w = c.args[:2]
    _rank(c)
    attrs = _attrs(c)
    dw = op("conv2d_weight", x, c.g, shape=_rank(c, 1), **attrs)
    return op("conv2d", c.g, w, **attrs), dw, *_channel_sum(c)


def conv2d_input_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """bilinear in g and w: conv2d(h, w), conv2d_weight(g, h), with h the result's adjoint"""
    grad, w = c.args
    conv, attrs = c.name.removesuffix("_input"), _attrs(c)
    dw = op(f"{conv}_weight", grad, c.g, shape=_rank(c, 1), **attrs)
    return op(conv, c.g, w, **attrs), dw


conv3d_input_rule = conv2d_input_rule


def conv2d_weight_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """bilinear in g and x: conv2d(x, h), conv2d_input(g, h), with h the result's adjoint"""
    grad, x = c.args
    conv, attrs = c.name.removesuffix("_weight"), _attrs(c)
    dx = op(f"{conv}_input", grad, c.g, shape=_rank(c, 1), **attrs)
    return op(conv, x, c.g, **attrs), dx


conv3d_weight_rule = conv2d_weight_rule


def max_pool2d_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """g added at the position of each window's first largest element"""
    (x,) = c.args
    n, channels, height, width = _rank(c)
    index = op("max_pool2d_index", x, **_attrs(c))
    out = dims_of(index)
    assert out is not None
    windows = (n, channels, sizes.product(out[2:]))
    plane = (n, channels, sizes.product((height, width)))
    flat = op("scatter_add", op("reshape", c.g, shape=windows),
              op("reshape", index, shape=windows), shape=plane, dim=2)  # fmt: skip
    return (op("reshape", flat, shape=(n, channels, height, width)),)


def avg_pool2d_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """g spread evenly over each window"""
    return (op("avg_pool2d_input", c.g, shape=_rank(c), **_attrs(c)),)


def avg_pool2d_input_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """linear: the mean of each window of the result's adjoint"""
    return (op("avg_pool2d", c.g, **_attrs(c)),)


def reshape_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """reshape(x): g reshaped back"""
    return (_shaped("reshape", c.g, c.args[0]),)


def permute_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """permute(x, dims): g permuted by the inverse"""
    dims = c.attrs["dims"]
    assert isinstance(dims, tuple)
    order = [(sizes.constant(d) or 0) % len(dims) for d in dims]
    return (op("permute", c.g, dims=tuple(order.index(k) for k in range(len(order)))),)


def transpose_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """linear, and the same backwards: transpose, flip, tril, triu of g"""
    return (op(c.name, c.g, **c.attrs),)


flip_rule = tril_rule = triu_rule = transpose_rule


def roll_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """roll(x, shifts, dims): g moved back"""
    shifts = c.attrs["shifts"]
    assert isinstance(shifts, tuple)
    back = tuple(sizes.simplify(b.binary("-", IntConst(0), shift)) for shift in shifts)
    return (op("roll", c.g, shifts=back, dims=c.attrs["dims"]),)


def cat_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """cat(tensors): the slice of g that each tensor became"""
    dim = sizes.constant(_int(c, "dim")) or 0
    start: Expr = IntConst(0)
    out: list[Expr] = []
    for position in range(len(c.args)):
        end = sizes.simplify(b.binary("+", start, _rank(c, position)[dim]))
        out.append(op("slice", c.g, dim=dim, start=start, end=end))
        start = end
    return tuple(out)


def slice_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """slice(x): g inside zeros"""
    return (op("slice_into", c.g, shape=_rank(c), **_attrs(c)),)


def slice_into_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """linear: the slice of the result's adjoint"""
    return (op("slice", c.g, **_attrs(c)),)


def expand_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """expand(x): g summed over what was broadcast"""
    return (_shaped("sum_to", c.g, c.args[0]),)


def sum_to_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """sum_to(x): g expanded"""
    return (_shaped("expand", c.g, c.args[0]),)


def _of_first(rule: OpRule) -> OpRule:
    """The rule for the form of an operator that takes its shape from a second tensor."""
    return lambda c: (*rule(c), None)


reshape_like_rule = _of_first(reshape_rule)
expand_like_rule = _of_first(expand_rule)
sum_to_like_rule = _of_first(sum_to_rule)


def unreduce_like_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """linear: the sum of the result's adjoint over dims"""
    return op("sum", c.g, **c.attrs), None


def gather_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """gather(x, index): g added at index"""
    x, index = c.args
    dims, dim = dims_of(x), c.attrs["dim"]
    if dims is None:
        return op("scatter_add_like", c.g, index, x, dim=dim), None
    return op("scatter_add", c.g, index, shape=dims, dim=dim), None


def scatter_add_rule(c: OpAdjoint) -> tuple[Expr | None, ...]:
    """linear: the result's adjoint taken at index"""
    rest = (None,) * (len(c.args) - 1)
    return op("gather", c.g, c.args[1], dim=c.attrs["dim"]), *rest


scatter_add_like_rule = scatter_add_rule
