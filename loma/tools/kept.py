"""What a function keeps for its backward part: the table of ``loma show --saved``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loma.core.ir import Expr, IntConst, Return, TensorType, Type, Var
from loma.core.printer import print_type
from loma.core.walk import substitute, variables
from loma.passes.fold import folded
from loma.pipeline import Optimised, find

_WIDTHS = {
    "float": 4,
    "float32": 4,
    "int": 8,
    "bool": 1,
}  # bytes of an element, in a call with float32


@dataclass(frozen=True, slots=True)
class Kept:
    """One value: ``kind`` is "argument" or "result", of which a reference is kept, or "saved".

    ``bytes`` is None where sizes are not known.
    """

    kind: str
    name: str
    type: str
    bytes: int | None


def kept(stage: Optimised, function: str, sizes: Mapping[str, int]) -> list[Kept]:
    """The values that a function's backward part is given, adjoints aside, with their bytes in
    float32 for sizes and int arguments by name.

    ValueError when the function has no backward part, or no such size.
    """
    primal = find(stage.module, function)
    pair = next((pair for pair in stage.pairs if pair.primal == function), None)
    if pair is None:
        raise ValueError(f"'{function}' has no backward part")
    forward = find(stage.module, pair.forward)
    known = {
        name
        for type_ in (*(p.type for p in forward.params), *forward.results)
        if isinstance(type_, TensorType)
        for dim in type_.dims or ()
        for name in variables(dim)
    } | {param.name for param in forward.params}
    for name in sizes:
        if name not in known:
            raise ValueError(
                f"'{function}' has no size '{name}': it has {', '.join(sorted(known))}"
            )
    returned = forward.body[-1]
    assert isinstance(returned, Return)
    first = len(forward.results) - sum(source.kind == "saved" for source in pair.sources)
    found: list[Kept] = []
    for source in pair.sources:
        match source.kind:
            case "arg":
                param = primal.params[source.index]
                found.append(_row("argument", param.name, param.type, sizes))
            case "result":
                found.append(_row("result", "", forward.results[source.index], sizes))
            case "saved":
                value = returned.values[first + source.index]
                name = value.name if isinstance(value, Var) else ""
                found.append(_row("saved", name, forward.results[first + source.index], sizes))
            case _:
                continue
    return [
        row
        for row in found
        if row.type.startswith(("Tensor", "IntTensor", "BoolTensor", "TorchTensor"))
    ]


def _row(kind: str, name: str, type_: Type, sizes: Mapping[str, int]) -> Kept:
    bytes_: int | None = None
    if isinstance(type_, TensorType) and type_.dims is not None:
        values: dict[str, Expr] = {key: IntConst(value) for key, value in sizes.items()}
        bytes_ = _WIDTHS[type_.element]
        for dim in type_.dims:
            size = folded(substitute(dim, values))
            if not isinstance(size, IntConst):
                bytes_ = None
                break
            bytes_ *= size.value
    return Kept(kind, name, print_type(type_), bytes_)


def table(rows: list[Kept]) -> str:
    """The rows as text, with the bytes of all that is saved below."""
    if not rows:
        return "The backward part needs no tensor but the adjoint of the result.\n"
    width = max(len(row.name) for row in rows)
    lines = [
        f"{row.kind:<8}  {row.name:<{width}}  {_bytes(row.bytes):>16}  {row.type}" for row in rows
    ]
    saved = [row.bytes for row in rows if row.kind == "saved"]
    if any(size is None for size in saved):
        lines.append("give the sizes for bytes: --size N=100")
    else:
        total = sum(size for size in saved if size is not None)
        lines.append(f"saved beside arguments and results: {total:,} bytes")
    return "\n".join(lines) + "\n"


def _bytes(size: int | None) -> str:
    return "?" if size is None else f"{size:,} bytes"
