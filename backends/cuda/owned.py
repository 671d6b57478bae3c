"""Iterations that change elements of their own, as an optimiser's step does: what they read stands
ahead of what they write, so that a thread reads for several before it writes for the first.

A compiler leaves reads behind writes to the same tensor, though those are of other elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext
from loma.backends.cfamily.cpp import ELEMENTS
from loma.backends.cfamily.loops import updated
from loma.backends.cfamily.writer import Writer
from loma.backends.cuda.print import ThreadText
from loma.backends.schedule import ir as schedule
from loma.backends.schedule.ir import Let, Node, Parallel, Store, Variable, dtype_of
from loma.backends.schedule.walk import expressions
from loma.core.ir import Builtin, Expr, Index, Var
from loma.core.sizes import dims_of
from loma.core.walk import certain_reads, free_variables, walk


def reads_ahead(tree: Parallel) -> tuple[Index, ...]:
    """What an iteration reads, each place once, if it changes elements of its own whose places are
    known before anything is computed; else nothing. Numbers are not among it."""
    own: dict[str, Index] = {}
    for node in tree.body:
        match node:
            case Store(Index() as place, position=None):
                own[place.tensor.name] = place
            case Let() | Variable() | Store(Var(), position=None):
                pass
            case _:
                return ()
    local = {node.var.name for node in tree.body if isinstance(node, Let | Variable)}
    places = [part for node in tree.body for part in _inside(node) if isinstance(part, Index)]
    mixed = any(own.get(place.tensor.name, place) != place for place in places)
    if mixed or any(free_variables(place) & local for place in own.values()):
        return ()
    ahead = [
        place
        for place in _read(tree)
        if dims_of(place.tensor) and not free_variables(place) & local
    ]
    changes = any(place.tensor.name in own for place in ahead)
    alike = {dtype_of(place.tensor) for place in ahead} in ({"float"}, {"float32"}, {"int"})
    return tuple(dict.fromkeys(ahead)) if changes and alike else ()


def _read(tree: Parallel) -> Iterator[Index]:
    """What is read in any case, and before it is written. An element that is written in the end is
    there to be read."""
    written: set[str] = set()
    stores = [node for node in tree.body if isinstance(node, Store)]
    changed = {node.place for node in stores if isinstance(node.place, Index)}
    for node in tree.body:
        assert isinstance(node, Let | Variable | Store)
        certain = [] if _has_conditions(node.value) else list(certain_reads(node.value))
        inside = [part for part in walk(node.value) if isinstance(part, Index) and part in changed]
        own = node.place if isinstance(node, Store) and isinstance(node.place, Index) else None
        updated = [own] if isinstance(node, Store) and node.kind != "set" else []
        for place in (*certain, *inside, *updated):
            if isinstance(place, Index) and place.tensor.name not in written:
                yield place
        if own is not None:
            written.add(own.tensor.name)


def _has_conditions(value: Expr) -> bool:
    """Those of lowering, which :func:`certain_reads` does not know."""
    return any(isinstance(p, Builtin) and p.name == schedule.READ_IF for p in walk(value))


def _inside(node: Node) -> Iterator[Expr]:
    return (part for expr in expressions(node) for part in walk(expr))


class OwnedText(ThreadText):
    """Such an iteration: what it reads, and a function that computes with that and writes last."""

    def __init__(self, context: CppContext, tree: Parallel, ahead: tuple[Index, ...]) -> None:
        super().__init__(context, tree)
        self.ahead = ahead
        # The elements' values so far: what was read, then what is to be written.
        self._values: dict[Index, c.Expression] = {
            place: c.Subscript(c.Token("read_"), c.number(k)) for k, place in enumerate(ahead)
        }
        self._last: dict[Index, c.Expression] = {}
        self._stores = 0

    def reads(self) -> str:
        """What the function is given."""
        number = ELEMENTS[dtype_of(self.ahead[0].tensor)]
        reads = c.list_text([self._element(place) for place in self.ahead])
        return f"loma::Read<{number}, {len(self.ahead)}>{{{{{reads}}}}}"

    def nodes(self, writer: Writer, nodes: Sequence[Node]) -> None:
        super().nodes(writer, nodes)
        for place, value in self._last.items():
            writer.line(f"{c.text(self._element(place))} = {c.text(value)};")

    def index(self, read: Index) -> c.Expression:
        return self._values.get(read) or super().index(read)

    def _store(self, store: Store) -> str:
        place = store.place
        if not isinstance(place, Index):
            return super()._store(store)
        name, number = c.Token(f"new{self._stores}_"), ELEMENTS[dtype_of(place.tensor)]
        self._stores += 1
        value = self.value(store.value, place.type)
        if store.kind == "set":
            text = f"const {number} {name.text} = {c.item_text(value)};"
        else:
            start = f"{number} {name.text} = {c.item_text(self.index(place))};"
            text = f"{start}\n{updated(store.kind, name, value, number)}"
        self._values[place] = self._last[place] = name
        return text
