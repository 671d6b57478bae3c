"""Index statements that are a matrix product, as one ATen call.

A statement that sums the product of two element reads over axes that both have is a (batched)
matrix product when each read has an axis of its own. ``at::einsum`` permutes to ``bmm`` and calls
the BLAS. Where axes that both reads and the target have (the batch) do not lead the target, the
product would have to be permuted back, and a generated loop nest is as good.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from loma import config
from loma.backends.libtorch.context import FunctionContext
from loma.backends.writer import Writer
from loma.core.axes import runs_over
from loma.core.ir import FLOAT, Axis, Binary, Expr, Index, TensorType, Var, ZeroPad


@dataclass(frozen=True, slots=True)
class Contraction:
    """``target[out] += sum(left[a] * right[b])``; every subscript is an axis by itself."""

    target: Var
    left: Var
    right: Var
    equation: str
    remark: ClassVar[str] = "a matrix product of the library"

    @property
    def header(self) -> str:
        return f"ATen/ops/{'mm' if self._is_plain else 'einsum'}.h"

    @property
    def _is_plain(self) -> bool:
        """Whether all three are matrices: ``mm`` takes less time than ``einsum`` then."""
        return len(self.equation) == len("ab,bc->ac")

    def write(self, writer: Writer, context: FunctionContext, assign: bool) -> None:
        """Writes the call; ``assign``: the target's old value does not count."""
        left, right = context.variable(self.left), context.variable(self.right)
        if self._is_plain:
            call = _matrix_product(self.equation, left, right)
        else:
            call = f'at::einsum("{self.equation}", {{{left}, {right}}})'
        target = context.variable(self.target)
        if assign:
            writer.line(f"{target} = {call}.contiguous();")
        else:
            writer.line(f"{target}.add_({call});")


def match(target: Index, kind: str, body: Expr, axes: tuple[Axis, ...]) -> Contraction | None:
    """The statement as a matrix product, or None where it is not one."""
    if "contraction" not in config.optimisations():
        return None
    found = factors(target, kind, body)
    if found is None:
        return None
    left, right = found
    if isinstance(left, ZeroPad) or isinstance(right, ZeroPad):
        return None
    names = {axis.name: axis for axis in axes}
    subscripts = [bare(access, names) for access in (target, left, right)]
    if any(own is None for own in subscripts):
        return None
    out, a, b = (list(own or ()) for own in subscripts)
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


def _matrix_product(equation: str, left: str, right: str) -> str:
    operands, out = equation.split("->")
    a, b = operands.split(",")
    if out[0] in b:  # the transposed product
        a, b, left, right = b, a, right, left
    first = left if a[0] == out[0] else f"{left}.t()"
    second = right if b[1] == out[1] else f"{right}.t()"
    return f"at::mm({first}, {second})"


Factor: TypeAlias = Index | ZeroPad


def factors(target: Index, kind: str, body: Expr) -> tuple[Factor, Factor] | None:
    """The two element reads whose product a statement sums; None where it does anything else."""
    match body:
        case Binary("*", left, right) if kind == "sum":
            pass
        case _:
            return None
    bases = [part.read.base if isinstance(part, ZeroPad) else part.base
             for part in (left, right) if isinstance(part, Index | ZeroPad)]  # fmt: skip
    if len(bases) < 2 or not all(isinstance(base, Var) and base != target.base for base in bases):
        return None
    assert isinstance(left, Index | ZeroPad)
    assert isinstance(right, Index | ZeroPad)
    return (left, right) if left.type == right.type == FLOAT else None


def bare(access: Index, axes: dict[str, Axis]) -> dict[str, int] | None:
    """The position of each subscript, by name, where all of them are distinct axes that run over
    their whole dimension."""
    assert isinstance(access.base.type, TensorType)
    dims = access.base.type.dims or ()
    found: dict[str, int] = {}
    for position, subscript in enumerate(access.subscripts):
        if not isinstance(subscript, Var) or subscript.name in found:
            return None
        if not runs_over(subscript, dims[position], axes):
            return None
        found[subscript.name] = position
    return found
