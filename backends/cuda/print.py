"""Loop trees as CUDA C++: what the threads of a team do."""

from __future__ import annotations

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, data
from loma.backends.cfamily.cpp import TYPES
from loma.backends.cfamily.loops import LoopText, initial
from loma.backends.cfamily.names import local_name
from loma.backends.cfamily.writer import Writer
from loma.backends.cuda.iterations import EARLY, ITERATION
from loma.backends.schedule import ir as schedule
from loma.backends.schedule.ir import (
    Accumulator, AllReduce, Fill, InPlace, Let, Loop, Node, Parallel, Scan, Store, dtype_of,
)  # fmt: skip
from loma.backends.schedule.walk import expressions, nodes
from loma.core.ir import (
    FLOAT, INT, POSITIONS, Binary, Builtin, Expr, FloatConst, FloatType, Index, IntConst, Select,
    Var,
)  # fmt: skip
from loma.core.walk import free_variables, walk


def _adds(tree: Parallel) -> bool:
    """Whether an iteration does no more than add to one element, after it found out what."""
    *before, last = tree.body
    if not (
        tree.row is not None
        and isinstance(last, Store)
        and last.kind == "sum"
        and last.position is None
        and isinstance(last.place, Index)
        and all(isinstance(node, Let) for node in before)
    ):
        return False
    reads = [part for node in tree.body for expr in expressions(node) for part in walk(expr)]
    own = last.place.tensor.name
    return sum(isinstance(part, Index) and part.tensor.name == own for part in reads) == 1


def _takes_one_sum(tree: Parallel) -> bool:
    """Whether an iteration does no more than take a sum, or a largest or smallest number, for one
    element of a tensor."""
    *before, last = tree.body
    reductions = [node for node in before if isinstance(node, AllReduce)]
    return (
        tree.row is not None
        and tree.team is not None
        and not tree.checks
        and isinstance(last, Store)
        and last.position is None
        and isinstance(last.place, Index)
        and all(isinstance(node, Let | Accumulator | Loop | AllReduce) for node in before)
        and len(reductions) == 1
        and reductions[0].kind not in POSITIONS
        and reductions[0].dtype == dtype_of(last.place.tensor)
    )


def _puts(tree: Parallel) -> bool:
    """Whether it puts that there, if no operand lies along the sum and nothing else looks at the
    tensor."""
    last = tree.body[-1]
    assert tree.team is not None
    assert isinstance(last, Store)
    assert isinstance(last.place, Index)
    if not tree.team.across or last.kind != "set":
        return False
    own = last.place.tensor.name
    reads = (part for node in nodes(tree.body) for expr in expressions(node) for part in walk(expr))
    return sum(isinstance(part, Index) and part.tensor.name == own for part in reads) == 1


def _changing(tree: Parallel | InPlace) -> frozenset[str]:
    """The counter of a loop, and what follows from it."""
    found = {tree.counter.name} if isinstance(tree, Parallel) else set()
    for node in nodes(tree.body):
        if isinstance(node, Let) and free_variables(node.value) & found:
            found.add(node.var.name)
    return frozenset(found)


class ThreadText(LoopText):
    """The nodes of one tree as lines. ``captured``: the tree stands inside of a kernel, whose names
    it uses; else it is a kernel itself. ``alike``: all threads of a team run it, to have in
    registers what it finds."""

    def __init__(self, context: CppContext, tree: Parallel | InPlace) -> None:
        self.alike = any(var.name in context.registers for var in tree.writes)
        self._inside = context.captured is not None and context.looked_up is None
        self._written = {var.name for var in tree.writes}
        self._has_team = isinstance(tree, Parallel) and tree.team is not None
        self._beside = isinstance(tree, Parallel) and tree.row is not None
        self._changing = _changing(tree)
        self.adds = isinstance(tree, Parallel) and not self.alike and _adds(tree)
        inside = self._inside and not self.alike
        is_sum = isinstance(tree, Parallel) and inside and _takes_one_sum(tree)
        self.puts = is_sum and isinstance(tree, Parallel) and _puts(tree)
        self.rows = is_sum and isinstance(tree, Parallel) and not (tree.team and tree.team.across)
        self._part = "part_"  # what shares the loops that stand where it writes
        self._slots = 0  # of the reductions so far, where their parts go
        super().__init__(context, tree.writes)

    def in_vectors(self) -> bool:
        return False

    def _binary(self, expr: Binary) -> c.Expression:
        match expr:
            case Binary("/", left, right, type=FloatType()) if (
                # Where loops are unrolled, or elements lie side by side.
                (self._has_team or (self._beside and self._stays(right)))
                and self.context.machine.reciprocals
                and not isinstance(right, FloatConst | IntConst)
            ):
                operands = self.value(left, expr.type), self.value(right, expr.type)
                return c.call("loma::divide<real>", *operands)
            case _:
                return super()._binary(expr)

    def _stays(self, expr: Expr) -> bool:
        """Whether a number that is computed is the same for all elements of the loop, so that its
        reciprocal is taken once."""
        found = any(
            isinstance(part, Index) or (isinstance(part, Var) and part.name.startswith(EARLY))
            for part in walk(expr)
        )
        return found and free_variables(expr).isdisjoint(self._changing)

    def _builtin(self, expr: Builtin) -> c.Expression:
        match expr:
            case Builtin(schedule.QUOTIENT | schedule.REMAINDER as name, args):
                return c.call(f"loma::{name.removeprefix('@')}", *map(self._int, args))
            case _:
                return super()._builtin(expr)

    def variable(self, var: Var) -> c.Expression:
        if var.name.startswith(ITERATION):
            return c.Token(local_name(var.name))
        return super().variable(var)

    def _pointer(self, tensor: Var) -> str:
        if self._inside and tensor.name not in self._locals and tensor.name != schedule.PARTS:
            return data(self.context, tensor, tensor.name in self._written)[1]
        return super()._pointer(tensor)

    def special(self, writer: Writer, node: Node) -> None:
        match node:
            case AllReduce(accumulator, kind):
                how = "Best" if kind in POSITIONS else kind.capitalize()
                name, slot = c.text(self.value(accumulator)), self._slots
                self._slots += 1
                writer.line(f"part_.template all_reduce<loma::{how}, {slot}>({name});")
            case Fill(Index(Var() as base) as place, kind):
                start = initial(kind, dtype_of(base))
                writer.line(f"{c.text(self._element(place))} = {start};")
            case Scan():
                self._scan(writer, node)
            case _:
                super().special(writer, node)

    def _scan(self, writer: Writer, scan: Scan) -> None:
        number, type_ = TYPES[scan.dtype], INT if scan.dtype == "int" else FLOAT
        before = "nullptr" if scan.before is None else f"&{c.text(self._element(scan.before))}"
        given = f"{self._part}, {self._ints(scan.high)}, {before}"
        head = f"[&](const int64_t {self.local(scan.counter)}"
        cuts = "true" if isinstance(scan.factor, Select) else "false"
        call = f"loma::recurrence<{number}, /*cuts=*/{cuts}>"
        values = [scan.value] if scan.factor is None else [scan.factor, scan.value]
        if scan.factor is None:
            call = f"loma::running<loma::{scan.kind.capitalize()}, {number}>"
            given += f", {initial(scan.kind, scan.dtype)}"
        writer.line(f"{call}({given},")
        inside = Writer()
        for value in values:
            with inside.block(f"{head})", ","):
                inside.line(f"return {c.text(self.value(value, type_))};")
        with inside.block(f"{head}, const {number} found_)", ");"):
            inside.line(f"{c.text(self._element(scan.place))} = found_;")
        writer.extend([f"  {line}" for line in inside.lines])

    def _store(self, store: Store) -> str:
        place, leads = store.place, False
        if isinstance(place, Index):
            if self.adds:
                value = self.value(store.value, place.type)
                return f"{c.text(c.call('part_.add', self._element(place), value))};"
            if self.puts:
                given = c.Token("part_"), self._element(place), self.value(store.value, place.type)
                return f"if (part_.leads()) {c.text(c.call('loma::put', *given))};"
            own = self.alike and place.tensor.name in self.context.registers
            leads = (self._has_team or self.alike) and not own
        return "if (part_.leads()) " * leads + super()._store(store)

    def _loop(self, writer: Writer, loop: Loop) -> None:
        if loop.role not in ("shared", "around"):
            super()._loop(writer, loop)
            return
        assert loop.without is None
        counter = f"const int64_t {self.local(loop.counter)}"
        given = f"{self._part}, {self._ints(loop.low, loop.high)}"
        if loop.role == "shared":
            with writer.block(f"loma::over({given}, [&]({counter})", ");"):
                self.nodes(writer, loop.body)
            return
        before, self._part = self._part, "inside_"
        with writer.block(f"loma::around({given}, [&]({counter}, const auto& inside_)", ");"):
            self.nodes(writer, loop.body)
        self._part = before


class SeveralText(ThreadText):
    """That of a sum of which a thread may have several, for neighbouring values of an axis: the
    types of what depends on it tell how many."""

    def __init__(self, context: CppContext, tree: Parallel | InPlace) -> None:
        self._quotients: dict[str, tuple[Expr, ...]] = {}  # of what, by what, by name
        super().__init__(context, tree)

    def _node(self, writer: Writer, node: Node) -> None:
        match node:
            case Let(var, value):
                if isinstance(value, Builtin) and value.name == schedule.QUOTIENT:
                    self._quotients[var.name] = value.args
                text = c.item_text(self.value(value, var.type))
                writer.line(f"const auto {self.local(var)} = {text};")
            case Accumulator(var, kind, dtype):
                start = c.call("loma::start", c.Token("part_"), c.Token(initial(kind, dtype)))
                writer.line(f"auto {self.local(var)} = {c.text(start)};")
            case _:
                super()._node(writer, node)

    def index(self, read: Index) -> c.Expression:
        return c.call("loma::read", *self._place(read))

    def _binary(self, expr: Binary) -> c.Expression:
        match expr:
            case Binary("-", whole, Binary("*", Var(name) as quotient, by)) if self._quotients.get(
                name
            ) == (whole, by):
                return c.call("loma::rest", *map(self._int, (whole, quotient, by)))
            case _:
                return super()._binary(expr)

    def condition(self, expr: Expr) -> c.Expression:
        match expr:
            case Builtin(schedule.INSIDE, args):
                return c.call("loma::inside", *map(self._int, args))
            case _:
                return super().condition(expr)

    def _builtin(self, expr: Builtin) -> c.Expression:
        match expr:
            case Builtin(schedule.READ_IF, (condition, Index() as read)):
                return c.call("loma::read_if", self.condition(condition), *self._place(read))
            case Builtin(name, (value,)) if name in schedule.OF_TILES:
                return c.call(f"loma::{name.removeprefix('@')}", c.Token("part_"), self._int(value))
            case _:
                return super()._builtin(expr)

    def _store(self, store: Store) -> str:
        if not isinstance(store.place, Index):
            return super()._store(store)
        value = self.value(store.value, store.place.type)
        adds = c.Token("true" if store.kind == "sum" else "false")
        written = c.call("loma::write", *self._place(store.place), value, adds)
        return f"if (part_.leads()) {c.text(written)};"

    def _place(self, place: Index) -> tuple[c.Expression, c.Expression]:
        return c.Token(self._pointer(place.tensor)), self._int(place.subscripts[0])
