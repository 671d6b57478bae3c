"""What a function keeps for its backward part: the table of ``loma show --saved``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loma.core.ir import Expr, IntConst, Return, TensorType, Var
from loma.core.printer import print_type
from loma.core.walk import substitute, variables
from loma.passes.fold import folded
from loma.pipeline import Optimised, find

# Bytes of an element, in a call with float32.
_WIDTHS = {"float": 4, "float32": 4, "int": 8, "bool": 1}


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
                kind, name, type_ = "argument", param.name, param.type
            case "result":
                kind, name, type_ = "result", "", forward.results[source.index]
            case "saved":
                value = returned.values[first + source.index]
                kind, name = "saved", value.name if isinstance(value, Var) else ""
                type_ = forward.results[first + source.index]
            case _:
                continue
        if isinstance(type_, TensorType):
            found.append(Kept(kind, name, print_type(type_), _size(type_, sizes)))
    return found


def _size(tensor: TensorType, sizes: Mapping[str, int]) -> int | None:
    if tensor.dims is None:
        return None
    values: dict[str, Expr] = {name: IntConst(value) for name, value in sizes.items()}
    bytes_ = _WIDTHS[tensor.element]
    for dim in tensor.dims:
        size = folded(substitute(dim, values))
        if not isinstance(size, IntConst):
            return None
        bytes_ *= size.value
    return bytes_


def table(rows: list[Kept]) -> list[str]:
    """The rows as lines of text, with the bytes of all that is saved below."""
    if not rows:
        return ["The backward part needs no tensor but the adjoint of the result."]
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
    return lines


def _bytes(size: int | None) -> str:
    return "?" if size is None else f"{size:,} bytes"
