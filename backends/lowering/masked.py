"""Functions with ``while`` for many elements at a time: each element has a lane of its own.

    vector for i in range(n):                  for blocks of 32 values of i:
        y[i] = root(a[i])                          x[lane] = a[i]
                                                   while some lane goes on:
    def root(a):                                       go_on[lane] = abs(x * x - a) > 1e-6
        x = a                                          x[lane] = 0.5 * (x + a / x) if go_on else x
        while (abs(x * x - a) > 1e-6, ...):        y[i] = x[lane]
            x = 0.5 * (x + a / x)
        return x

A call is one element after the other, as each has its own number of rounds. Here lanes take rounds
together; one that has left a loop, or a branch, keeps its numbers. What stands between loops is one
vector loop. Lanes behind the last element do what that one does. A function can run like that where
no lane can fail that would not have run: it has numbers only, and divides no ints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from loma import config
from loma.backends.lowering.frames import may_throw
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.host import HostNode, map_trees
from loma.backends.schedule.ir import (
    CEILING, PICK, InPlace, Let, Loop, Narrow, Node, Parallel, Part, Rounds, Store, Variable,
    builtin,
)  # fmt: skip
from loma.backends.schedule.walk import Block, map_blocks, map_expressions
from loma.core import builder as b, sizes
from loma.core.ir import (
    FLOAT, INT, Assign, Binary, Builtin, Call, Declare, Element, Expr, FloatConst, FloatType, For,
    Function, If, Index, IntConst, IntType, Module, Return, Select, Stmt, TensorType, Type, Unary,
    Var, While, Zero, is_tensor_function,
)  # fmt: skip
from loma.core.walk import (
    calls, children, exchanged, expressions, free_variables, map_children, statements, substitute,
    walk,
)  # fmt: skip

LANES = 32  # elements at a time: two vectors of floats, whose latencies overlap
_FEWER = 8  # elements of a row that are not worth that
_MOST = 200  # statements of a function
_NUMBERS = FloatType | IntType
_UNSAFE = {"float2int", "thread_id", "atomic_add"}  # not of numbers that no round has made


def in_masked_lanes(context: FunctionContext, body: tuple[HostNode, ...]) -> tuple[HostNode, ...]:
    """A function's tree, in which calls of functions with ``while`` run in lanes."""
    module = context.module
    repeating = {f.name: f for f in module.functions if _repeats(f)}
    called = {call.function for call in calls(context.function.body)} & repeating.keys()
    used = "masks" in config.optimisations() and context.machine.lanes > 1
    if not used or not called:
        return body
    able = {name: repeating[name] for name in called if _is_able(repeating[name], module)}
    return tuple(map_trees(node, lambda tree: _Tree(context, able).run(tree)) for node in body)


# ------------------------------------------------------------------ what can run in lanes


def _repeats(function: Function) -> bool:
    scalar = not is_tensor_function(function)
    return scalar and any(isinstance(stmt, While) for stmt in statements(function.body))


def _is_able(function: Function, module: Module) -> bool:
    every = list(statements(function.body))
    simple = not function.simd and len(function.results) == 1 and len(every) <= _MOST
    simple = simple and all(isinstance(p.type, _NUMBERS) for p in function.params)
    simple = simple and all(param.mode == "In" for param in function.params)
    returns = [stmt for stmt in every if isinstance(stmt, Return)]
    return simple and returns == [every[-1]] and all(_is_plain(stmt, module) for stmt in every)


def _is_plain(stmt: Stmt, module: Module) -> bool:
    """Whether lanes that do not take part may run it."""
    match stmt:
        case Declare(Var(type=type_), value) | Assign(Var(type=type_), _, value):
            if value is not None and (type_, value.type) == (INT, FLOAT):
                return False
        case For(_, extent):
            if sizes.constant(extent) is None:
                return False
        case Zero(Var()) | If() | While() | Return():
            pass
        case _:
            return False
    if any(may_throw(expr, module) for expr in expressions(stmt)):
        return False
    return all(_is_number(node) for expr in expressions(stmt) for node in walk(expr))


def _is_number(node: Expr) -> bool:
    match node:
        case Var() | IntConst() | FloatConst() | Unary() | Binary() | Select() | Call():
            return isinstance(node.type, _NUMBERS)
        case Builtin(name):
            return isinstance(node.type, _NUMBERS) and name not in _UNSAFE
        case _:
            return False


# ------------------------------------------------------------------------- loops of a tree


@dataclass(slots=True)
class _Tree:
    """The pass on one tree; ``able``: the functions that can run in lanes."""

    context: FunctionContext
    able: dict[str, Function]
    count: int = 0

    def run(self, tree: Parallel | InPlace) -> Parallel | InPlace:
        return map_blocks(tree, self._block)

    def fresh(self, name: str, type_: Type) -> Var:
        self.count += 1
        return Var(f"@{name}_{self.count}_", type_)

    def part(self, name: str, type_: Type) -> Var:
        """Room for a number of each lane."""
        element: Element = "int" if type_ == INT else "float"
        return self.fresh(name, TensorType((IntConst(LANES),), element))

    def _block(self, block: Block) -> Block:
        found: list[Node] = []
        split = [node.begin for node in block if isinstance(node, Narrow)]  # loops that stay
        for node in block:
            if isinstance(node, Loop) and node.low not in split and self._can_change(node):
                found.append(self._in_lanes(node))
            else:
                found.append(map_blocks(node, self._block))
        return tuple(found)

    def _calls(self, node: Node) -> list[Call]:
        """The calls that a node makes in any case, what they are given first."""
        if not isinstance(node, Let | Store | Variable):
            return []
        return [call for call in _certain_calls(node.value) if call.function in self.able]

    def _can_change(self, loop: Loop) -> bool:
        """Whether calls may be made ahead of all else that a loop does."""
        known = sizes.constant(b.binary("-", loop.high, loop.low))
        if loop.role != "vector" or loop.without is not None or (known or _FEWER) < _FEWER:
            return False
        written: set[str] = set()
        needed: set[str] = set()
        for node in reversed(loop.body):
            match node:
                case Let(var, value):
                    if var.name in needed:
                        needed |= free_variables(value)
                case Store(place, _, _, None):
                    written.add(place.tensor.name if isinstance(place, Index) else place.name)
                case Variable(var):
                    written.add(var.name)
                case _:
                    return False
            for call in self._calls(node):
                needed |= free_variables(call)
        return bool(needed) and written.isdisjoint(needed)

    def _in_lanes(self, loop: Loop) -> Loop:
        """Blocks of the loop, each of which makes the calls before it runs."""
        block = self.fresh("block", INT)
        first, behind = self.fresh("first", INT), self.fresh("behind", INT)
        begin = b.add(loop.low, b.mul(block, IntConst(LANES)))
        end = Builtin("min", (loop.high, b.add(first, IntConst(LANES))), INT)
        out: list[Node] = [Let(first, begin), Let(behind, end)]
        body = list(loop.body)
        for k in range(len(body)):
            while found := self._calls(body[k]):
                call, result = found[0], self.part("result", found[0].type)
                before = [node for node in body[:k] if isinstance(node, Let)]
                lanes = _Lanes(self, loop.counter, before, first, behind)
                out += lanes.run(call, self.able[call.function], result)
                read = Index(result, (b.binary("-", loop.counter, first),), call.type)

                def done(expr: Expr, call: Call = call, read: Index = read) -> Expr:
                    return exchanged(expr, call, read)

                body[k] = map_expressions(body[k], done)
        out.append(replace(loop, low=first, high=behind, body=tuple(body)))
        count = builtin(CEILING, b.binary("-", loop.high, loop.low), IntConst(LANES))
        return Loop(block, IntConst(0), count, tuple(out))


def _certain_calls(expr: Expr) -> Iterator[Call]:
    """The calls that an expression makes in any case, inner ones first."""
    match expr:
        case Select(first) | Binary("and" | "or", first):
            yield from _certain_calls(first)
        case Builtin(name) if name.startswith("@"):
            pass
        case _:
            for child in children(expr):
                yield from _certain_calls(child)
            if isinstance(expr, Call):
                yield expr


# ----------------------------------------------------------------------------- one function


class _Lanes:
    """Makes a call for all lanes of a block, from the element ``first`` to that before ``behind``;
    ``before``: what stands in front of the call in the loop over ``counter``.

    A number of the function has a part, with one for each lane, where it is needed in another loop
    than the one that has made it.
    """

    def __init__(
        self, tree: _Tree, counter: Var, before: list[Let], first: Var, behind: Var
    ) -> None:
        self._tree = tree
        self._lane = tree.fresh("lane", INT)
        self._parts: dict[str, Var] = {}  # of the function's variables
        self._needed: set[str] = set()  # the parts that some loop reads
        self._masks: list[Var] = []
        self._counters: dict[str, Expr] = {}  # of loops that all lanes run alike
        self._out: list[Node] = []
        self._loop: list[Node] = []  # the loop over lanes at hand, and what variables are in it
        self._now: dict[str, Expr] = {}
        self._changed: dict[str, Type] = {}  # those that it gives values
        at = self._let("element", _lesser(b.add(first, self._lane), b.add(behind, IntConst(-1))))
        self._given: dict[str, Expr] = {counter.name: at}
        for node in before:
            value = substitute(node.value, self._given)
            self._given[node.var.name] = self._let("given", value, node.var.type)

    def run(self, call: Call, function: Function, result: Var) -> list[Node]:
        for param, arg in zip(function.params, call.args, strict=True):
            self._assign(Var(param.name, param.type), substitute(arg, self._given))
        *body, last = function.body
        assert isinstance(last, Return)
        self._block(tuple(body), None)
        value = self._value(last.values[0], call.type)
        self._loop.append(Store(Index(result, (self._lane,), call.type), "set", value))
        self._end_loop(None)
        kept = [Part(part) for part in self._parts.values() if part.name in self._needed]
        masks = [Part(mask, short=True) for mask in self._masks]
        return [Part(result), *kept, *masks, *self._without_unread(tuple(self._out))]

    def _without_unread(self, block: Block) -> Block:
        unread = {part.name for part in self._parts.values()} - self._needed

        def is_read(node: Node) -> bool:
            place = node.place if isinstance(node, Store) else None
            return not isinstance(place, Index) or place.tensor.name not in unread

        inside = (map_blocks(node, self._without_unread) for node in block if is_read(node))
        return tuple(node for node in inside if not isinstance(node, Loop) or node.body)

    # ------------------------------------------------------------------------- statements

    def _block(self, block: tuple[Stmt, ...], mask: Var | None) -> None:
        for stmt in block:
            self._statement(stmt, mask)

    def _statement(self, stmt: Stmt, mask: Var | None) -> None:
        match stmt:
            case Declare(target, None) | Zero(Var() as target):
                self._assign(target, IntConst(0) if target.type == INT else FloatConst(0.0))
            case Declare(target, value) | Assign(Var() as target, "=", value) if value is not None:
                self._assign(target, self._value(value))
            case Assign(Var() as target, "+=", value):
                self._assign(target, self._value(b.binary("+", target, value)))
            case If(cond, then, other) if not _loops(stmt):
                self._branch(self._mask(cond), then, other)
            case If(cond, then, other):
                holds = self._new_mask(self._mask(cond), mask)
                fails = self._new_mask(b.unary("not", self._mask(cond)), mask)
                for branch, own in ((then, holds), (other, fails)):
                    self._end_loop(mask if own is holds else holds)
                    self._block(branch, own)
                self._end_loop(fails)
            case For(counter, extent, inside, backwards):
                self._end_loop(mask)
                own = self._tree.fresh(counter, INT)
                at: Expr = own
                if backwards:
                    at = b.binary("-", b.binary("-", extent, IntConst(1)), own)
                self._counters[counter] = at
                body = self._inside(lambda: self._block(inside, mask), mask)
                del self._counters[counter]
                self._out.append(Loop(own, IntConst(0), extent, body))
            case While(cond, most, inside):
                self._end_loop(mask)
                on = self._tree.part("goes_on", INT)
                self._masks.append(on)
                test = self._inside(lambda: self._set_mask(on, self._mask(cond), mask), None)
                body = self._inside(lambda: self._block(inside, on), on)
                line = self._tree.context.line(stmt.span)
                self._out.append(Rounds(on, test, body, most, line))
            case _:
                raise AssertionError(stmt)

    def _branch(self, holds: Expr, then: tuple[Stmt, ...], other: tuple[Stmt, ...]) -> None:
        """A branch without loops: its numbers are computed in all lanes, and picked."""
        before, found = dict(self._now), []
        for branch in (then, other):
            self._now = dict(before)
            self._block(branch, None)
            found.append(self._now)
        names = {name for now in found for name in now if now.get(name) != before.get(name)}
        self._now = before
        for name in sorted(names & self._changed.keys()):
            var = Var(name, self._changed[name])
            values = [now.get(name) or self._variable(var) for now in found]
            if values[0] != values[1]:
                self._assign(var, _pick(holds, *values))

    def _inside(self, make: Callable[[], None], mask: Var | None) -> Block:
        """The nodes of a block inside."""
        before, self._out = self._out, []
        make()
        self._end_loop(mask)
        made, self._out = self._out, before
        return tuple(made)

    def _end_loop(self, mask: Var | None) -> None:
        """Ends the loop over lanes: those that the mask has keep what it has made."""
        for name, type_ in self._changed.items():
            part = self._part(Var(name, type_))
            place, new = Index(part, (self._lane,), type_), self._now[name]
            if mask is not None:
                new = _pick(self._is_on(mask), new, place)
            self._loop.append(Store(place, "set", new))
        if self._loop:
            lane = self._lane
            self._out.append(Loop(lane, IntConst(0), IntConst(LANES), tuple(self._loop), "vector"))
        self._loop, self._now, self._changed = [], {}, {}

    # ------------------------------------------------------------------------------ masks

    def _is_on(self, mask: Var) -> Expr:
        return b.binary("!=", Index(mask, (self._lane,), INT), IntConst(0))

    def _new_mask(self, holds: Expr, mask: Var | None) -> Var:
        own = self._tree.part("mask", INT)
        self._masks.append(own)
        self._set_mask(own, holds, mask)
        return own

    def _set_mask(self, own: Var, holds: Expr, mask: Var | None) -> None:
        both = holds if mask is None else b.every([self._is_on(mask), holds])
        place = Index(own, (self._lane,), INT)
        self._loop.append(Store(place, "set", b.truth(both)))

    def _mask(self, cond: Expr) -> Expr:
        """A condition in terms of constants: compilers compare these without branches."""
        match cond:
            case Binary("and" | "or" as op, left, right):
                return b.binary(op, self._mask(left), self._mask(right))
            case Unary("not", operand):
                return b.unary("not", self._mask(operand))
            case Binary("<" | "<=" | ">" | ">=" | "==" | "!=" as op, left, right):
                return b.binary(op, self._kept(left), self._kept(right))
            case _:
                return b.truth(self._kept(cond))

    # ------------------------------------------------------------------------- expressions

    def _let(self, name: str, value: Expr, type_: Type | None = None) -> Var:
        var = self._tree.fresh(name, type_ or value.type)
        self._loop.append(Let(var, _converted(value, var.type)))
        return var

    def _assign(self, target: Var, value: Expr) -> None:
        self._now[target.name] = self._let(target.name, value, target.type)
        self._changed[target.name] = target.type

    def _part(self, var: Var) -> Var:
        if var.name not in self._parts:
            self._parts[var.name] = self._tree.part(var.name, var.type)
        return self._parts[var.name]

    def _variable(self, var: Var) -> Expr:
        if var.name in self._counters:
            return self._counters[var.name]
        if var.name not in self._now:
            part = self._part(var)
            self._needed.add(part.name)
            read = Index(part, (self._lane,), var.type)
            self._now[var.name] = self._let(var.name, read)
        return self._now[var.name]

    def _kept(self, expr: Expr) -> Expr:
        value = self._value(expr)
        return value if isinstance(value, Var | IntConst | FloatConst) else self._let("side", value)

    def _value(self, expr: Expr, type_: Type | None = None) -> Expr:
        match expr:
            case Var():
                found = self._variable(expr)
            case Select(cond, then, other):
                values = (self._value(branch, expr.type) for branch in (then, other))
                found = _pick(self._mask(cond), *values)
            case _:
                found = map_children(expr, self._value)
        return _converted(found, type_ or expr.type)


def _loops(stmt: Stmt) -> bool:
    return any(isinstance(inner, While | For) for inner in statements((stmt,)))


def _lesser(left: Expr, right: Expr) -> Expr:
    return Builtin("min", (left, right), INT)


def _pick(holds: Expr, then: Expr, other: Expr) -> Expr:
    return Builtin(PICK, (holds, then, other), then.type)


def _converted(value: Expr, type_: Type) -> Expr:
    if value.type == INT and type_ == FLOAT:
        return Builtin("int2float", (value,), FLOAT)
    return value
