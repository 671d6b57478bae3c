"""Common subexpressions: what an index statement has computed is not computed again.

Reverse mode runs the bodies of loops and branches again, and so repeats statements whose values are
still there. A statement ``T2[i] = e`` is dropped when a statement before has given another tensor
the same value and nothing in it has changed since, with dimensions of one element or without;
``exp`` and its like inside an expression, and reductions, become a read of a tensor that holds
them. What is dropped is a tensor that every block which uses it gives a whole value first.

A program may compute one value twice, too, as a mean and that of a variance are. Those are one
before derivatives are made (:func:`same_values`), which then have one adjoint for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.distinct import names_once
from loma.core.effects import written
from loma.core.ir import (
    FLOAT, INT, Binary, Builtin, Declare, Expr, For, Function, If, Index, IndexAssign, IntConst,
    Module, Reduce, Select, Stmt, TensorType, Unary, Var, While, ZeroPad, replace,
)  # fmt: skip
from loma.core.overlap import reads_of, same_element
from loma.core.walk import (
    blocks, children, expressions, free_variables, map_children, map_expressions,
    map_tensor_functions, mentioned_names, own_names, root, statements, substitute,
    walk, without_no_diff,
)  # fmt: skip
from loma.passes.canonical.elementary.exponentials import Values
from loma.passes.liveness import covers


@dataclass(frozen=True, slots=True)
class _Value:
    """``tensor[places] = value``, with what has to stay as it is for this to remain true; with a
    ``factor``, ``tensor[places] * factor`` is the value. A place is an index, or a constant where
    the dimension has one element."""

    tensor: Var
    places: tuple[Expr, ...]
    value: Expr
    inputs: frozenset[str]
    factor: Index | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(place.name for place in self.places if isinstance(place, Var))


def reuse(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Reuse(function).run())


def same_values(module: Module) -> Module:
    """One name for tensors of equal values and equal derivatives, in every tensor function."""
    return map_tensor_functions(module, lambda f: _Reuse(f, reads=False).run())


def same_adjoints(function: Function) -> Function:
    """A backward part in which an adjoint with a choice is read for another one that is the same,
    or the same but for its sign, as of both sides of a difference."""
    return _Reuse(function, drops=False, whole=True).run()


def reread(
    function: Function, before: tuple[Stmt, ...], body: tuple[Stmt, ...], kept: frozenset[str]
) -> tuple[Stmt, ...]:
    """The statements of ``body``, which run behind ``before`` in a function with those arguments:
    what is costly is read where a tensor of ``kept`` holds it then."""
    worker = _Reuse(function, drops=False)
    known: list[_Value] = []
    worker.block(before, known)
    known = [value for value in known if value.tensor.name in kept]
    return worker.block(body, known + _normalised(before, kept))


def _normalised(before: tuple[Stmt, ...], kept: frozenset[str]) -> list[_Value]:
    """The exponentials that tensors of ``kept`` hold in two parts: what they are as a part of their
    sum, and that sum, which is neither 0 nor infinite."""
    values = Values()
    for stmt in before:
        values.statement(stmt)
    found: list[_Value] = []
    for part, power, total in values.normalised():
        axes = tuple(s.name for s in part.subscripts if isinstance(s, Var))
        names = {part.tensor.name, total.tensor.name}
        if names <= kept and len(axes) == len(part.subscripts):
            inputs = free_variables(power) - set(axes) | names
            value = Builtin("exp", (without_no_diff(power),), FLOAT)
            found.append(_Value(part.tensor, part.subscripts, value, inputs, total))
    return found


class _Reuse:
    """``drops``: statements may go. ``reads``: parts of expressions become reads, and marks for
    derivatives, which there are none left of then, do not tell values apart. ``whole``: whole
    values do, and no parts of them."""

    def __init__(
        self, function: Function, drops: bool = True, reads: bool = True, whole: bool = False
    ) -> None:
        self._function = function
        self._whole = whole
        self._may_drop, self._may_read = drops, reads
        self._params = {param.name for param in function.params}
        # In this block: what stands for tensors that are dropped, with the dimension of these for
        # each of its own that has more than one element.
        self._names: dict[str, tuple[Var, tuple[int | None, ...]]] = {}
        # What each branch of an ``if`` on a variable left behind, for the next ``if`` on it.
        self._branches: dict[tuple[str | None, bool], list[_Value]] = {}

    def run(self) -> Function:
        return replace(self._function, body=self.block(self._function.body, []))

    def block(self, body: tuple[Stmt, ...], known: list[_Value]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        around = dict(self._names)
        for position, stmt in enumerate(body):
            new = self._statement(stmt, known, body[position + 1 :])
            if new is not None:
                out.append(new)
        self._names = around
        return tuple(out)

    def _statement(self, stmt: Stmt, known: list[_Value], rest: tuple[Stmt, ...]) -> Stmt | None:
        if self._names:
            stmt = map_expressions(stmt, self._renamed)
        match stmt:
            case IndexAssign(Index(Var() as target, subscripts), "=", value):
                found = self._value(stmt, target, subscripts)
                if found is not None and self._drops(found, known, rest):
                    return None
                new = replace(stmt, value=self._read(stmt, value, known))
                self._forget(known, target.name)
                if found is not None:
                    known.append(found)
                return new
            case IndexAssign(value=value):
                new = replace(stmt, value=self._read(stmt, value, known))
                self._forget(known, root(stmt.target))
                return new
            case If():
                return self._branch(stmt, known)
            case For() | While():
                for name in written((stmt,)):
                    self._forget(known, name)
                outer, self._branches = self._branches, {}
                inner = list(known)
                new_loop = replace(stmt, body=self.block(stmt.body, inner))
                self._branches = outer
                return new_loop
            case _:
                for name in written((stmt,)):
                    self._forget(known, name)
                return stmt

    def _renamed(self, expr: Expr) -> Expr:
        """With elements of other tensors for those of tensors that are dropped."""
        new = map_children(expr, self._renamed)
        match new:
            case Index(Var(name), subscripts) if name in self._names:
                tensor, dims = self._names[name]
                places = tuple(IntConst(0) if k is None else subscripts[k] for k in dims)
                return replace(new, base=tensor, subscripts=places)
            case _:
                return new

    def _branch(self, stmt: If, known: list[_Value]) -> Stmt:
        name = stmt.cond.name if isinstance(stmt.cond, Var) else None
        blocks: list[tuple[Stmt, ...]] = []
        left: dict[tuple[str | None, bool], list[_Value]] = {}
        for taken, block in ((True, stmt.then), (False, stmt.other)):
            inner = left[name, taken] = [*known, *self._branches.get((name, taken), ())]
            blocks.append(self.block(block, inner))
        for changed in written((stmt,)):
            self._forget(known, changed)
        if name is not None:
            self._branches |= left
        return replace(stmt, then=blocks[0], other=blocks[1])

    def _value(self, stmt: IndexAssign, target: Var, subscripts: tuple[Expr, ...]) -> _Value | None:
        """What a statement that writes a whole tensor makes known."""
        axes = {s.name for s in subscripts if isinstance(s, Var)}
        inputs = free_variables(stmt.value) - axes
        others = target.name not in self._params | inputs
        plain = all(isinstance(s, Var | IntConst) for s in subscripts)
        if not others or not plain or not covers(stmt):
            return None
        value = without_no_diff(stmt.value) if self._may_read else stmt.value
        return _Value(target, subscripts, value, frozenset(inputs))

    def _drops(self, found: _Value, known: list[_Value], rest: tuple[Stmt, ...]) -> bool:
        """Whether a tensor with this value exists, and can stand for the new one from here on."""
        name, changed = found.tensor.name, written(rest) if known else set[str]()
        if name in changed or not self._may_drop:
            return False
        for old in known:
            if old.tensor.name in changed or (dims := _dimensions(old, found)) is None:
                continue
            body = self._function.body
            if _whole_uses(body, name) or not _is_local(body, name):
                return False
            self._names[name] = old.tensor, dims
            return True
        return False

    def _read(self, stmt: IndexAssign, value: Expr, known: list[_Value]) -> Expr:
        """:meth:`_expr` of a statement's value, which reads no more of what the statement writes
        than the element that it writes: no order of its elements would be right for others."""
        whole = self._whole and stmt.op == "=" and covers(stmt)
        name, new = root(stmt.target), self._expr(value, known, whole)
        target, before = stmt.target, reads_of(name, value)
        for read in reads_of(name, new):
            if any(read.place == old.place for old in before):
                continue
            own = isinstance(target, Index) and same_element(target, read.place)
            if not (own and names_once(stmt)):
                return self._expr(value, [old for old in known if not _mentions(old, name)])
        return new

    def _expr(self, expr: Expr, known: list[_Value], whole: bool = False) -> Expr:
        """With reads of tensors that hold a costly part already, or the ``whole`` expression."""
        if not self._may_read or (self._whole and not whole):
            return expr
        negated = isinstance(expr, Unary) and expr.op == "-"
        wanted = not negated and _chooses(expr) if whole else _is_costly(expr)
        if wanted:
            for old in known:
                if type(old.value) is not type(expr):
                    continue
                bound = _match(old.value, without_no_diff(expr), frozenset(old.axes), {})
                if bound is not None and set(bound) == set(old.axes):
                    names: dict[str, Expr] = {axis: Var(bound[axis], INT) for axis in old.axes}
                    subscripts = tuple(substitute(place, names) for place in old.places)
                    read = Index(old.tensor, subscripts, expr.type, expr.span)
                    if old.factor is None:
                        return read
                    return Binary("*", read, substitute(old.factor, names), FLOAT, expr.span)
        return map_children(expr, lambda child: self._expr(child, known, whole and negated))

    def _forget(self, known: list[_Value], name: str) -> None:
        """What depended on a variable that changes is no longer known."""
        for values in (known, *self._branches.values()):
            values[:] = [v for v in values if name not in v.inputs and name != v.tensor.name]
        for key in [key for key in self._branches if key[0] == name]:
            del self._branches[key]


def _dimensions(old: _Value, new: _Value) -> tuple[int | None, ...] | None:
    """For each dimension of ``old`` that of ``new``, or None for one element; None if the values
    differ."""
    kind, kind_2 = old.tensor.type, new.tensor.type
    assert isinstance(kind, TensorType)
    assert isinstance(kind_2, TensorType)
    if kind.element != kind_2.element or len(old.axes) != len(new.axes):
        return None
    bound = _match(old.value, new.value, frozenset(old.axes), {})
    pairs = zip(old.axes, new.axes, strict=True)
    if bound is None or not all(bound.get(a, c) == c for a, c in pairs):
        return None
    own = [k for k, place in enumerate(old.places) if isinstance(place, Var)]
    others = [k for k, place in enumerate(new.places) if isinstance(place, Var)]
    where = dict(zip(own, others, strict=True))
    dims, dims_2 = kind.dims or (), kind_2.dims or ()
    if not all(sizes.equal(dims[k], dims_2[j]) is True for k, j in where.items()):
        return None
    return tuple(where.get(k) for k in range(len(old.places)))


def _mentions(value: _Value, name: str) -> bool:
    """Whether a read of the value reads that tensor."""
    return name in (value.tensor.name, *(() if value.factor is None else [root(value.factor)]))


def _chooses(expr: Expr) -> bool:
    """Whether a value is a choice made of several elements, longer than a read, and no sum."""
    nodes = set(walk(expr))
    reads = [node for node in nodes if isinstance(node, Index)]
    kinds = set(map(type, nodes))
    return len(reads) > 1 and Select in kinds and Reduce not in kinds


def _is_costly(expr: Expr) -> bool:
    match expr:
        case Builtin(name):
            return BUILTINS[name].costly
        case Reduce():
            return True
        case Binary("/", left, right):
            return expr.type == FLOAT and isinstance(left, Index) and isinstance(right, Index)
        case _:
            return False


def _match(
    pattern: Expr, expr: Expr, axes: frozenset[str], bound: dict[str, str]
) -> dict[str, str] | None:
    """How the indices ``axes`` of the pattern are called in an equal expression, added to
    ``bound``; None if the expressions differ in more than these names."""
    match pattern, expr:
        case Var(name), Var(other):
            if name not in axes:
                return bound if name == other and pattern.type == expr.type else None
            if bound.get(name, other) != other:
                return None
            if name not in bound and other in bound.values():
                return None
            return {**bound, name: other}
        case Reduce(kind, body, own), Reduce(kind_2, body_2, own_2):
            if kind != kind_2 or len(own) != len(own_2):
                return None
            names = {a.name: c.name for a, c in zip(own, own_2, strict=True)}
            extents = [axis.extent for axis in own], [axis.extent for axis in own_2]
            found = _match_all(*extents, axes, bound)
            if found is not None:
                found = _match(body, body_2, axes | names.keys(), found | names)
            return None if found is None else {k: v for k, v in found.items() if k not in names}
        case _:
            below, below_2 = children(pattern), children(expr)
            if type(pattern) is not type(expr) or len(below) != len(below_2):
                return None
            blank = IntConst(0)
            alike = isinstance(pattern, ZeroPad) or (
                map_children(pattern, lambda _: blank) == map_children(expr, lambda _: blank)
            )
            return _match_all(below, below_2, axes, bound) if alike else None


def _match_all(
    patterns: Sequence[Expr], exprs: Sequence[Expr], axes: frozenset[str], bound: dict[str, str]
) -> dict[str, str] | None:
    """:func:`_match` of each pair."""
    found: dict[str, str] | None = bound
    for pattern, expr in zip(patterns, exprs, strict=True):
        found = None if found is None else _match(pattern, expr, axes, found)
    return found


def _whole_uses(body: tuple[Stmt, ...], name: str) -> bool:
    """Whether a tensor is used other than by its elements: its storage may matter."""

    def whole(expr: Expr) -> bool:
        match expr:
            case Var(other):
                return other == name
            case Index(Var(), subscripts):
                return any(map(whole, subscripts))
            case _:
                return any(map(whole, children(expr)))

    return any(
        whole(expr)
        for stmt in statements(body)
        for expr in expressions(stmt)
        if not (isinstance(stmt, Declare) and expr == stmt.target)
    )


def _is_local(body: tuple[Stmt, ...], name: str) -> bool:
    """Whether every block that uses the tensor gives it a whole value first, declarations aside,
    and no block inside of that another one."""
    uses = [
        stmt for stmt in body if not isinstance(stmt, Declare) and name in mentioned_names((stmt,))
    ]
    if not uses:
        return True
    inside = [block for stmt in uses for block in blocks(stmt)]
    match uses[0]:
        case IndexAssign(Index(Var(first)), "=", value) if first == name:
            set_whole = covers(uses[0]) and name not in free_variables(value)
            return set_whole and not any(name in written(block) for block in inside)
        case _:
            return all(blocks(stmt) and name not in own_names(stmt) for stmt in uses) and all(
                _is_local(block, name) for block in inside
            )
