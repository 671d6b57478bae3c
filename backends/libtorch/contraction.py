"""Index statements that are a matrix product, as one ATen call.

A statement that sums the product of two element reads over axes that both have is a (batched)
matrix product when each read has an axis of its own. ``at::einsum`` permutes to ``bmm`` and calls
the BLAS. Where axes that both reads and the target have (the batch) do not lead the target, the
product would have to be permuted back, and a generated loop nest is as good.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

from loma import sizes
from loma.backends.libtorch.context import FunctionContext
from loma.backends.writer import Writer
from loma.ir import FLOAT, Axis, Binary, Expr, Index, Var


@dataclass(frozen=True, slots=True)
class Contraction:
    """``target[out] += sum(left[a] * right[b])``; every subscript is an axis by itself."""

    target: Var
    left: Var
    right: Var
    equation: str


def match(target: Index, kind: str, body: Expr, axes: tuple[Axis, ...]) -> Contraction | None:
    """The statement as a matrix product, or None where it is not one."""
    match body:
        case Binary("*", Index(Var()) as left, Index(Var()) as right) if kind == "sum":
            pass
        case _:
            return None
    names = {axis.name: axis for axis in axes}
    subscripts = [_bare(access, names) for access in (target, left, right)]
    if any(own is None for own in subscripts):
        return None
    out, a, b = (own or [] for own in subscripts)
    if target.base in (left.base, right.base) or not (left.type == right.type == FLOAT):
        return None
    summed = [name for name in names if name not in out]
    if not summed or not all(name in a and name in b for name in summed):
        return None
    batch = [name for name in out if name in a and name in b]
    free_a = [name for name in a if name not in b]
    free_b = [name for name in b if name not in a]
    if not (free_a and free_b and set(out) == {*batch, *free_a, *free_b}):
        return None
    if out[: len(batch)] != batch or len(names) > len(string.ascii_letters):
        return None
    letters = dict(zip(names, string.ascii_letters, strict=False))
    text = ["".join(letters[name] for name in own) for own in (a, b, out)]
    assert isinstance(target.base, Var)
    assert isinstance(left.base, Var)
    assert isinstance(right.base, Var)
    return Contraction(target.base, left.base, right.base, f"{text[0]},{text[1]}->{text[2]}")


def _bare(access: Index, axes: dict[str, Axis]) -> list[str] | None:
    """The subscripts as names of distinct axes that run over their whole dimension."""
    from loma.ir import TensorType

    assert isinstance(access.base.type, TensorType)
    dims = access.base.type.dims or ()
    names: list[str] = []
    for subscript, dim in zip(access.subscripts, dims, strict=True):
        if not isinstance(subscript, Var) or subscript.name not in axes or subscript.name in names:
            return None
        if sizes.equal(axes[subscript.name].extent, dim) is not True:
            return None
        names.append(subscript.name)
    return names


def write(writer: Writer, context: FunctionContext, product: Contraction, assign: bool) -> None:
    """Writes the call; ``assign``: the target's old value does not count."""
    context.headers.add("ATen/ops/einsum.h")
    left, right = context.variable(product.left), context.variable(product.right)
    call = f'at::einsum("{product.equation}", {{{left}, {right}}})'
    target = context.variable(product.target)
    if assign:
        writer.line(f"{target} = {call}.contiguous();")
    else:
        writer.line(f"{target}.add_({call});")
