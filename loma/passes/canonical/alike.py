"""Statements that are alike, for parts of tensors side by side, as one with an index for the parts.

    y[n, o + 0, h] = sum(x[n, c + 0, h + p] * w[o + 0, c, p] for c in C for p in range(3))
    y[n, O + o, h] = sum(x[n, C + c, h + p] * w[O + o, c, p] for c in C for p in range(3))

is what a loop over two groups says, and what a library does at once:

    y[n, g * O + o, h] = sum(x[n, g * C + c, h + p] * w[g * O + o, c, p] for c in C for ...)

Tensors that are made so to be joined (``cat``) are parts of one that has a dimension for the parts,
and so are those that are made of them element by element, such as sums with a bias.
Only what is one convolution of channels in groups then (:mod:`loma.passes.canonical.groups`) is put
together: of other sums a library takes each by itself, but not all at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from loma.core import bounds, sizes
from loma.core import builder as b
from loma.core.effects import blanks, is_blank, written
from loma.core.ir import (
    INT, Assign, Axis, Declare, Expr, Function, Index, IndexAssign, IntConst, Module, Op, Reduce,
    Return, Stmt, TensorType, Var, ZeroPad, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.sizes import IsSize
from loma.core.walk import (
    as_part, children, exchanged, expressions, free_variables, map_children, map_expressions,
    map_tensor_functions, mentioned_names, substitute, walk,
)  # fmt: skip
from loma.passes.canonical.groups import copied, in_groups
from loma.passes.canonical.loops import mentions
from loma.passes.liveness import covers

_BLANK = IntConst(0)


def alike(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Alike(function).run())


class _Different(Exception):
    """The statements are not alike."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """Puts an index ``part`` into what statements have in common, number by number."""

    part: Var
    is_size: IsSize

    def joined(self, first: Expr, second: Expr, names: Mapping[str, Expr]) -> Expr:
        """What is ``first`` for part 0 and ``second``, whose indices ``names`` renames, for part
        1."""
        if first.type == second.type == INT and sizes.is_arithmetic(first):
            second = substitute(second, dict(names))
            step = sizes.arith("-", second, first)
            if sizes.constant(step) == 0:
                return first
            if not all(map(self.is_size, free_variables(step))):
                raise _Different
            return sizes.simplify(b.binary("+", b.binary("*", self.part, step), first))
        if isinstance(first, Var):
            if names.get(getattr(second, "name", ""), second) != first:
                raise _Different
            return first
        below, below_2 = children(first), children(second)
        if type(first) is not type(second) or len(below) != len(below_2):
            raise _Different
        if isinstance(first, Reduce) and isinstance(second, Reduce):
            names = {**names, **_renamed(first.axes, second.axes)}
            if first.kind != second.kind:
                raise _Different
            return replace(first, body=self.joined(first.body, second.body, names))
        if not isinstance(first, ZeroPad) and _bare(first) != _bare(second):
            raise _Different
        pairs = iter(zip(below, below_2, strict=True))
        return map_children(first, lambda _: self.joined(*next(pairs), names))

    def all_of(self, values: Sequence[Expr], axes: Sequence[tuple[Axis, ...]]) -> Expr:
        """One value for all parts, whose statements have those axes."""
        names = [_renamed(axes[0], own) for own in axes]
        whole = self.joined(values[0], values[1], names[1])
        for number, value in enumerate(values):
            mine = substitute(whole, {self.part.name: IntConst(number)})
            if self.joined(mine, value, names[number]) != mine:
                raise _Different
        if self.part.name not in free_variables(whole):
            raise _Different
        return whole


def _bare(expr: Expr) -> Expr:
    return map_children(expr, lambda _: _BLANK)


def _renamed(axes: tuple[Axis, ...], others: tuple[Axis, ...]) -> dict[str, Expr]:
    """The axes for other ones of the same ranges."""
    if len(axes) != len(others):
        raise _Different
    for axis, other in zip(axes, others, strict=True):
        if sizes.equal(axis.extent, other.extent) is not True:
            raise _Different
    return {o.name: Var(a.name, INT) for a, o in zip(axes, others, strict=True)}


@dataclass(frozen=True, slots=True)
class _Whole:
    """``tensor`` stands for ``parts``, made by ``steps``, which stand for the statements at the
    positions ``gone`` and read ``inputs``; ``names``: all tensors that go with them."""

    tensor: Var
    parts: tuple[Var, ...]
    names: frozenset[str] = frozenset()
    gone: frozenset[int] = frozenset()
    inputs: frozenset[str] = frozenset()
    steps: tuple[Stmt, ...] = ()


class _Alike:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._names = Names(names_of(function))
        self._is_size = frozenset(sizes.size_variables(function)).__contains__
        self._local = set(blanks(function.body))

        self._mentions = mentions(function.body)

    def run(self) -> Function:
        body = self._side_by_side(self._function.body)
        position = 0
        while position < len(body):
            joined = self._joined(body, position)
            body, position = (body, position + 1) if joined is None else (joined, position)
        return replace(self._function, body=body)

    # --------------------------------------------------------------------- parts that are joined

    def _joined(self, body: tuple[Stmt, ...], position: int) -> tuple[Stmt, ...] | None:
        """The block with one tensor for those that the statement at the position joins."""
        for op in _joins(body[position]):
            try:
                return self._one_tensor(body, position, op)
            except _Different:
                continue
        return None

    def _one_tensor(self, body: tuple[Stmt, ...], position: int, op: Op) -> tuple[Stmt, ...]:
        parts = [arg for arg in op.args if isinstance(arg, Var)]
        dim = sizes.constant(_attr(op, "dim"))
        if dim is None or len(parts) != len(op.args):
            raise _Different
        dim %= len(sizes.dims_of(parts[0]))
        part = Var(self._names.fresh("_g"), INT)
        found = self._whole(body, [position] * len(parts), parts, dim, part)
        first, last = min(found.gone), max(found.gone)
        between = tuple(body[k] for k in range(first, last) if k not in found.gone)
        if found.inputs & written(between):
            raise _Different
        assert isinstance(op.type, TensorType)
        view = b.operator("reshape", (found.tensor,), {"shape": op.type.dims}, op.span)
        out: list[Stmt] = []
        for k, stmt in enumerate(body):
            if k == last:
                out += found.steps
            elif k == position:
                out.append(map_expressions(stmt, partial(exchanged, old=op, new=view)))
            elif k not in found.gone and not _declares(stmt, found.names):
                out.append(stmt)
        return tuple(out)

    def _whole(
        self, body: tuple[Stmt, ...], users: list[int], parts: list[Var], dim: int, part: Var
    ) -> _Whole:
        """One tensor with an index ``part`` in front of that dimension for those of all parts,
        which the statements ``users`` read, and no others."""
        names = {tensor.name for tensor in parts}
        if not 1 < len(names) == len(parts):
            raise _Different
        at = [
            self._made(body[:user], tensor.name) for tensor, user in zip(parts, users, strict=True)
        ]
        for tensor, made_at, user in zip(parts, at, users, strict=True):
            if [k for k, s in enumerate(body) if tensor.name in _uses(s)] != [made_at, user]:
                raise _Different
        made = [stmt for k in at if isinstance(stmt := body[k], IndexAssign)]
        one = made[0]
        dims = sizes.dims_of(one.element.tensor)
        if not all(sizes.same(sizes.dims_of(s.element.tensor), dims) for s in made):
            raise _Different
        inner = None if _sums_windows(one) else self._inside(body, at, made, dim, part)
        if inner is not None:
            made = [
                replace(s, value=as_part(s.value, tensor.name, inner.tensor, dim, IntConst(number)))
                for number, (s, tensor) in enumerate(zip(made, inner.parts, strict=True))
            ]
        count = IntConst(len(parts))
        type_ = TensorType((*dims[:dim], count, *dims[dim:]))
        whole = Var(self._names.fresh(f"_{one.element.tensor.name.lstrip('_')}"), type_)
        axes = {axis.name: axis for axis in one.axes}
        own = [axes[s.name] for s in one.element.subscripts if isinstance(s, Var)]
        every = (*own[:dim], Axis(part.name, count), *own[dim:])
        value = self._value(part, made, every)
        places = tuple(Var(axis.name, INT) for axis in every)
        new = replace(one, target=Index(whole, places, one.element.type), value=value, axes=every)
        steps: tuple[Stmt, ...] | None = (new,)
        if inner is None:
            steps = in_groups(self._function, new, self._names)
        if steps is None or names & free_variables(value):
            raise _Different
        before = _Whole(whole, tuple(parts)) if inner is None else inner
        inputs = frozenset().union(*(free_variables(s.value) for s in made)) - {before.tensor.name}
        return _Whole(
            whole, tuple(parts), before.names | names, before.gone | set(at),
            before.inputs | inputs, (*before.steps, Declare(whole, None, one.span), *steps),
        )  # fmt: skip

    def _inside(
        self, body: tuple[Stmt, ...], users: list[int], made: list[IndexAssign], dim: int, part: Var
    ) -> _Whole:
        """The tensor with the sums that elements of each part are made of."""
        reads = [[n.tensor for n in walk(s.value) if isinstance(n, Index)] for s in made]
        if len({len(own) for own in reads}) != 1:
            raise _Different
        for tensors in zip(*reads, strict=True):
            if len({tensor.name for tensor in tensors}) == len(tensors):
                return self._whole(body, users, list(tensors), dim, part)
        raise _Different

    def _made(self, before: tuple[Stmt, ...], name: str) -> int:
        """Where a tensor of the function alone is made, by a statement that gives it all."""
        places = [k for k, s in enumerate(before) if name in _uses(s)]
        if name not in self._local or len(places) != 1:
            raise _Different
        match before[places[0]]:
            case IndexAssign(Index(Var(own), subscripts), "=") as stmt if (
                own == name and covers(stmt) and all(isinstance(s, Var) for s in subscripts)
            ):
                return places[0]
            case _:
                raise _Different

    def _value(self, part: Var, made: list[IndexAssign], axes: tuple[Axis, ...]) -> Expr:
        worker = _Parts(part, self._is_size)
        value = worker.all_of([s.value for s in made], [s.axes for s in made])
        self._check_inside(value, axes)
        return value

    def _check_inside(self, value: Expr, axes: tuple[Axis, ...]) -> None:
        """What each part reads is there, but no proof of it holds for all of them by itself."""
        extents = {axis.name: axis.extent for axis in axes}
        for node in walk(value):
            if isinstance(node, Reduce):
                extents |= {axis.name: axis.extent for axis in node.axes}
        padded = {node.read for node in walk(value) if isinstance(node, ZeroPad)}
        for node in walk(value):
            if not isinstance(node, Index) or node in padded:
                continue
            if not bounds.exists(node, extents, self._is_size):
                raise _Different

    # ------------------------------------------------------------------------- parts of one tensor

    def _side_by_side(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The block with one statement for those that fill parts of a tensor."""
        out: list[Stmt] = []
        position = 0
        while position < len(body):
            run, end, declared = self._run(body, position)
            try:
                out += [*self._one_statement(run), *declared]
                position = end
            except _Different:
                out.append(body[position])
                position += 1
        return tuple(out)

    def _run(
        self, body: tuple[Stmt, ...], position: int
    ) -> tuple[list[IndexAssign], int, list[Stmt]]:
        """Statements that follow each other and assign sums to elements of a tensor that they do
        not read, themselves or by a tensor that is copied; where they end, and the declarations
        between them."""
        found: list[IndexAssign] = []
        declared: list[Stmt] = []
        end = position
        for k in range(position, len(body)):
            stmt, last = body[k], k
            if k < end or (found and is_blank(stmt)):
                continue
            if not (isinstance(stmt, IndexAssign) and stmt.op == "=" and _sums_windows(stmt)):
                break
            name = stmt.element.tensor.name
            if name in self._local and self._mentions[name] == 2 and k + 1 < len(body):
                copy = body[k + 1]
                whole = copied(stmt, copy) if isinstance(copy, IndexAssign) else None
                stmt, last = (stmt, k) if whole is None else (whole, k + 1)
            target = stmt.element.tensor
            if target.name in free_variables(stmt.value):
                break
            if found and target != found[0].element.tensor:
                break
            found.append(stmt)
            declared += [s for s in body[end:k] if isinstance(s, Declare)]
            end = last + 1
        return found, end, declared

    def _one_statement(self, run: list[IndexAssign]) -> tuple[Stmt, ...]:
        if len(run) < 2:
            raise _Different
        part = Var(self._names.fresh("_g"), INT)
        every = (Axis(part.name, IntConst(len(run))), *run[0].axes)
        worker = _Parts(part, self._is_size)
        target = worker.all_of([s.element for s in run], [s.axes for s in run])
        assert isinstance(target, Index)
        value = self._value(part, run, every)
        whole = replace(run[0], target=target, value=value, axes=every)
        made = in_groups(self._function, whole, self._names) if covers(whole) else None
        if made is None:
            raise _Different
        return made


def _sums_windows(stmt: IndexAssign) -> bool:
    """Whether a statement sums over windows: a subscript moves with one of its indices and with one
    that it sums over."""
    value = stmt.value
    if not (isinstance(value, Reduce) and value.kind == "sum"):
        return False
    summed, own = ({axis.name for axis in axes} for axes in (value.axes, stmt.axes))
    places = [s for node in walk(value.body) if isinstance(node, Index) for s in node.subscripts]
    return any(free_variables(s) & summed and free_variables(s) & own for s in places)


def _declares(stmt: Stmt, names: AbstractSet[str]) -> bool:
    return isinstance(stmt, Declare) and stmt.target.name in names


def _attr(op: Op, name: str) -> Expr:
    value = dict(op.attrs)[name]
    assert not isinstance(value, tuple)
    return value


def _joins(stmt: Stmt) -> Iterator[Op]:
    """The operators of a statement that join tensors."""
    if isinstance(stmt, Declare | Assign | Return):
        for expr in expressions(stmt):
            yield from (node for node in walk(expr) if isinstance(node, Op) and node.name == "cat")


def _uses(stmt: Stmt) -> frozenset[str]:
    """What a statement mentions, declarations without a value aside."""
    if is_blank(stmt):
        return frozenset()
    return mentioned_names((stmt,))
