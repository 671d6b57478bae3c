"""How a function's statements run, in a few words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from loma.backends.schedule.host import (
    Branch, Contract, Convolve, Count, HostNode, Later, Repeat, Serial, Stream, Unit,
)  # fmt: skip
from loma.backends.schedule.ir import Let, Parallel, Store
from loma.core.ir import Stmt


def remarks(tree: Sequence[HostNode]) -> Callable[[Stmt], str]:
    """What becomes of a statement that is no part of a kernel, "" where there is nothing to say."""
    found: dict[Stmt, str] = {}

    def visit(nodes: Sequence[HostNode]) -> None:
        for node in nodes:
            match node:
                case Unit(source, body, more=more):
                    words = list(dict.fromkeys(_words(body)))
                    found[source] = "; ".join(words)
                    for other in more:
                        found[other] = "; ".join([*words, "in the same loop"])
                case Serial(source):
                    found[source] = "on one thread, element by element"
                case Branch(_, _, then, other):
                    visit((*then, *other))
                case Count(body=body) | Repeat(body=body) | Stream(body=body):
                    visit(body)
                case _:
                    continue

    visit(tree)
    return lambda stmt: found.get(stmt, "")


def _words(nodes: Sequence[HostNode]) -> Iterator[str]:
    for node in nodes:
        match node:
            case Contract():
                yield "a matrix product of the library"
            case Convolve():
                yield "a convolution"
            case Parallel(over=()) if all(isinstance(inner, Let | Store) for inner in node.body):
                continue  # a single element
            case Parallel(over=over):
                yield f"parallel over {', '.join(over)}" if over else "on one thread"
            case Later(body=body):
                yield from _words(body)
            case _:
                continue
