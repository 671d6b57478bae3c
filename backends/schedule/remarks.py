"""How a function's statements run, in a few words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from loma.backends.schedule.host import (
    Branch, Carry, Contract, Convolve, Count, Either, Group, GroupedContract, HostNode, Later, Pass,
    Repeat, Serial, Spread, Stream, Unit,
)  # fmt: skip
from loma.backends.schedule.ir import InPlace, Let, Parallel, Store
from loma.backends.schedule.printer import text
from loma.backends.schedule.target import Target
from loma.core.ir import Stmt


def remarks(tree: Sequence[HostNode], machine: Target) -> Callable[[Stmt], str]:
    """What becomes of a statement that is no part of a fused kernel, "" where there is nothing to
    say."""
    found: dict[Stmt, str] = {}
    words_of = _gpu_words if machine.teams else _words

    def visit(nodes: Sequence[HostNode]) -> None:
        for node in nodes:
            match node:
                case Unit(source, body, more=more):
                    words = list(dict.fromkeys(words_of(body)))
                    found[source] = "; ".join(words)
                    for other in more:
                        found[other] = "; ".join([*words, "in the same loop"])
                case Serial(source):
                    where = "a kernel of one thread" if machine.teams else "on one thread"
                    found[source] = f"{where}, element by element"
                case Branch(_, _, then, other):
                    visit((*then, *other))
                case Count(body=body) | Repeat(body=body) | Stream(body=body):
                    visit(body)
                case Pass(otherwise=otherwise):
                    visit(otherwise)
                case Spread(otherwise=otherwise):
                    visit(otherwise)
                case Either(then=then, otherwise=otherwise) | Carry(then=then, otherwise=otherwise):
                    visit((*then, *otherwise))
                case _:
                    continue

    visit(tree)
    return lambda stmt: found.get(stmt, "")


def _words(nodes: Sequence[HostNode]) -> Iterator[str]:
    for node in nodes:
        match node:
            case Contract():
                yield "a matrix product of the library"
            case GroupedContract():
                yield "a matrix product of the library for each group of rows, where they are large"
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


def _gpu_words(nodes: Sequence[HostNode]) -> Iterator[str]:
    for node in nodes:
        match node:
            case Contract():
                yield "a matrix product, by cuBLAS"
            case Convolve():
                yield "a convolution, by cuDNN"
            case Parallel(over=over, team=team):
                own = f"a kernel over {', '.join(over)}" if over else "a kernel of one thread"
                if team is not None:
                    own = f"{own}; threads share" if over else "a kernel whose threads share"
                    own = f"{own} {text(team.extent)} steps"
                waits = "; the host waits for the number" if node.totals else ""
                yield own + waits
            case InPlace():
                yield "a kernel of one thread"
            case Group():
                yield "sorted by element, then a kernel over elements"
            case Later(body=body):
                yield from _gpu_words(body)
            case _:
                continue
