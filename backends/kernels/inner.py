"""Loops inside of a kernel over an index that some of its statements share, and sums over it.

    for t in range(n):                             for t in range(n):
        Z[r] = sum(exp(L[i, r]) for i)                 for r in range(R):
        C[i, r] = exp(L[i, r]) / Z[r]                      row[i, o] = U[i, r, o]
        S[i, o] = sum(C[i, r] * U[i, r, o] for r)          if t > 0:
        if t + 1 < n:                                          L[i, r] += row[i, o] * S[i, o]
            L[i, r] += U[i, r, o] * S[i, o]                z = sum(exp(L[i, r]) for i)
                                                           c[i] = exp(L[i, r]) / z
                                                           own[i, o] += c[i] * row[i, o]
                                                       S[i, o] = the sum of all own[i, o]

Each value of ``r`` goes to a few neighbouring threads, which have what belongs to it in registers:
``U`` is read once in a round instead of twice, and there is one barrier instead of one for each
statement. A round begins with what the one before would have ended with, or ends with what the next
one would begin with, where statements come to stand beside each other by that; a branch that does
not share the index goes apart, with statements around it. It is worth it where two statements read
the same elements of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set as AbstractSet
from dataclasses import dataclass

from loma.backends.kernels.ir import Inner, InnerSum, Kernel, Within
from loma.backends.kernels.private import at_index
from loma.backends.kernels.rounds import forms, written_out
from loma.backends.kernels.sharing import (
    forms_along, index_assigns, is_float, opened, reads_tensors,
)  # fmt: skip
from loma.core import sizes
from loma.core.bounds import ZERO
from loma.core.effects import counters, written
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Expr, If, Index, IndexAssign, IntConst, Reduce, Stmt, TensorType, Var,
    replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.sizes import dims_of
from loma.core.walk import (
    blocks, free_variables, map_blocks, map_children, map_expressions, nodes, numbered,
    variable_names, walk,
)  # fmt: skip
from loma.passes.liveness import Liveness

PARTS = 16  # of a sum, which teams of threads have at most
_INDEX = Var("@index", INT)  # stands for the shared index


def within(kernel: Kernel, names: Names) -> Within | None:
    """The kernel's body with inner loops, if there are such that are worth it."""
    if kernel.count is not None or kernel.carried is not None or kernel.parts:
        return None
    body = written_out(kernel.body)
    best: tuple[int, tuple[Stmt, ...]] | None = None
    for form in forms(body):
        apart, saved = _apart(form)
        if saved and (best is None or saved > best[0]):
            best = saved, apart
    if best is None:
        return None
    left, under = _decided(best[1])
    return _made(kernel, numbered(left), under, names)


# ------------------------------------------------------------------ statements that share an index


@dataclass(frozen=True, slots=True)
class _Run:
    """Statements that share an index of that extent. ``dims``: where the tensors have it that they
    write; ``forms``: where they access tensors with it; ``names``: what each calls it, ``sums``:
    the tensors that lack it, and are added up."""

    extent: Expr
    body: tuple[Stmt, ...] = ()
    dims: tuple[tuple[str, int], ...] = ()
    forms: tuple[tuple[str, int | None], ...] = ()
    names: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()

    def then(self, stmt: Stmt) -> _Run | None:
        match stmt:
            case IndexAssign(Index(Var())):
                run = self._assign(stmt)
            case If(cond, body, other) if not reads_tensors(cond):
                run = self
                for inner in (*body, *other):
                    found = run.then(inner)
                    if found is None or found.sums != self.sums:
                        return None
                    run = found
            case _:
                return None
        return None if run is None else replace(run, body=(*self.body, stmt))

    def _assign(self, stmt: IndexAssign) -> _Run | None:
        plain = opened(stmt)
        own = {axis.name: axis for axis in plain.axes}
        place = plain.element.subscripts
        if not all(isinstance(s, Var) or free_variables(s).isdisjoint(own) for s in place):
            return None
        bare = [s.name for s in place if isinstance(s, Var) and s.name in own]
        if len(set(bare)) < len(bare) or any(
            free_variables(a.extent) & own.keys() for a in plain.axes
        ):
            return None
        for axis in plain.axes:
            if sizes.equal(axis.extent, self.extent) is not True:
                continue
            found = self._along(stmt if axis.name in bare else plain, axis, bare)
            if found is not None:
                return found
        return None

    def _along(self, stmt: IndexAssign, axis: Axis, bare: list[str]) -> _Run | None:
        forms = forms_along(stmt, axis)
        if forms is None or any(len(each) > 1 for each in forms.values()):
            return None
        target = stmt.element.tensor.name
        found = {name: next(iter(each)) for name, each in forms.items()}
        run = self
        if axis.name in bare:
            dim = found[target]
            assert dim is not None
            run = replace(run, dims=tuple(dict((*run.dims, (target, dim))).items()))
        else:
            summed = {a.name for a in stmt.axes} - {axis.name}
            plain = stmt.op == "+=" and summed == {*bare} and is_float(stmt.element)
            inner = any(isinstance(node, Reduce) for node in walk(stmt.value))
            if (
                not plain
                or inner
                or target in dict(self.dims)
                or target in variable_names(stmt.value)
            ):
                return None
            run = replace(run, sums=(*run.sums, target))
        seen = dict(run.forms)
        for name, form in found.items():
            if seen.setdefault(name, form) != form or (name in run.sums and name != target):
                return None
            if dict(run.dims).get(name, form) != form:
                return None
        return replace(run, forms=tuple(seen.items()), names=(*run.names, axis.name))


def _runs_at(block: Sequence[Stmt], start: int) -> Iterator[_Run]:
    """The longest runs that begin there, one for each extent."""
    first = next(iter(index_assigns((block[start],))), None)
    for extent in dict.fromkeys(axis.extent for axis in opened(first).axes) if first else ():
        run = _Run(extent)
        for stmt in block[start:]:
            longer = run.then(stmt)
            if longer is None:
                break
            run = longer
        if run.body:
            yield run


@dataclass(frozen=True, slots=True)
class _Row:
    """Elements of a tensor that have one value of the index: other subscripts are of two axes at
    most, the last one being that along which the elements lie. ``dims`` are their extents."""

    tensor: Var
    place: tuple[Expr | None, ...]  # the subscripts; None for an axis
    dims: tuple[Expr, ...]


def _row(read: Index, index: str, axes: dict[str, Axis]) -> tuple[_Row, str] | None:
    """The row of which a statement reads an element, and the name of its last axis."""
    if not isinstance(read.base, Var) or not is_float(read):
        return None
    place: list[Expr | None] = []
    used: list[str] = []
    for sub in read.subscripts:
        if isinstance(sub, Var) and sub.name in axes and sub.name != index:
            used.append(sub.name)
            place.append(None)
        elif (isinstance(sub, Var) and sub.name == index) or free_variables(sub).isdisjoint(axes):
            place.append(_INDEX if isinstance(sub, Var) and sub.name == index else sub)
        else:
            return None
    whole = place and place[-1] is None and _INDEX in place and len(set(used)) == len(used) <= 2
    if not whole or any(free_variables(axes[name].extent) & axes.keys() for name in used):
        return None
    return _Row(read.base, tuple(place), tuple(axes[name].extent for name in used)), used[-1]


def _axes(stmt: IndexAssign) -> dict[str, Axis]:
    inner = (axis for node in walk(stmt.value) if isinstance(node, Reduce) for axis in node.axes)
    return {axis.name: axis for axis in (*stmt.axes, *inner)}


def _rows_of(stmt: IndexAssign, index: str, sums: Sequence[str]) -> dict[_Row, list[Index]]:
    """The rows that lanes have for a statement: where they share a sum along them, or where each
    adds to sums of its own."""
    found: dict[_Row, list[Index]] = {}
    plain, axes = opened(stmt), _axes(stmt)
    targets = variable_names(stmt.target)
    summed = [axis for axis in plain.axes if axis.name not in targets and axis.name != index]
    inner = [node for node in walk(plain.value) if isinstance(node, Reduce)]
    if len(inner) == 1 and not summed:
        summed = list(inner[0].axes)
    elif inner:
        return {}
    for node in walk(stmt.value):
        row = _row(node, index, axes) if isinstance(node, Index) else None
        if row is None:
            continue
        others = [a for a in axes.values() if a.name not in (row[1], index)]
        if any(sizes.equal(a.extent, row[0].dims[-1]) is True for a in others):
            continue
        own = stmt.element.tensor.name in sums
        last = plain.element.subscripts[-1] if plain.element.subscripts else None
        shares = [a.name for a in summed] == [row[1]]
        if (own and isinstance(last, Var) and last.name == row[1]) or (not own and shares):
            found.setdefault(row[0], []).append(node)  # type: ignore[arg-type]
    return found


def _rows(run: _Run) -> tuple[_Row, ...]:
    """The rows that several statements of a run read, and that none writes."""
    count: dict[_Row, int] = {}
    for stmt, name in zip(index_assigns(run.body), run.names, strict=True):
        for row in _rows_of(stmt, name, run.sums):
            count[row] = count.get(row, 0) + 1
    changed = {name for name, _ in run.dims}
    found = [row for row, many in count.items() if many > 1 and row.tensor.name not in changed]
    return tuple(row for row in found if row.dims[-1] == found[0].dims[-1])


def _best_run(block: Sequence[Stmt], low: int = 0, high: int = 0) -> tuple[int, _Run] | None:
    """Where a run of a block begins that reads rows once which several statements read, and it; one
    that has the statements from ``low`` up to ``high``, and more."""
    best: tuple[int, int, _Run] | None = None
    for start in range(low + 1 if high else len(block)):
        for run in _runs_at(block, start):
            end = start + len(run.body)
            if high and (end < high or (start, end) == (low, high)):
                continue
            saved = _saved(run)
            if saved and (best is None or saved > best[0]):
                best = saved, start, run
    return None if best is None else best[1:]


def _saved(run: _Run) -> int:
    """How often rows are read less, where there are sums over the index."""
    if not run.sums:
        return 0
    rows = _rows(run)
    each = [
        row
        for stmt, name in zip(index_assigns(run.body), run.names, strict=True)
        for row in _rows_of(stmt, name, run.sums)
        if row in rows
    ]
    return len(each) - len(rows)


def _apart(block: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], int]:
    """A block with branches that do not share what is around the other one apart, and how often
    rows are read less."""
    for k, stmt in enumerate(block):
        if not (isinstance(stmt, If) and stmt.then and stmt.other) or reads_tensors(stmt.cond):
            continue
        for branch in (stmt.then, stmt.other):
            inside = (*block[:k], *branch, *block[k + 1 :])
            found = _best_run(inside, k, k + len(branch))
            if found is None or _best_run(block, k, k + 1) is not None:
                continue
            start, run = found
            end = start + len(run.body) - len(branch) + 1
            before, behind = block[start:k], block[k + 1 : end]
            if variable_names(stmt.cond) & written(before):
                continue
            both = [(*before, *each, *behind) for each in (stmt.then, stmt.other)]
            return _apart(
                (*block[:start], replace(stmt, then=both[0], other=both[1]), *block[end:])
            )
    saved = 0
    out: list[Stmt] = []
    best = _best_run(block)
    for k, stmt in enumerate(block):
        if best is not None and best[0] <= k < best[0] + len(best[1].body):
            out.append(stmt)
            continue
        counts: list[int] = []

        def visit(inner: tuple[Stmt, ...], counts: list[int] = counts) -> tuple[Stmt, ...]:
            made, more = _apart(inner)
            counts.append(more)
            return made

        out.append(map_blocks(stmt, visit))
        saved += sum(counts)
    return tuple(out), saved + (_saved(best[1]) if best is not None else 0)


# ---------------------------------------------------------------------------------- what is made


def _made(kernel: Kernel, body: tuple[Stmt, ...], under: tuple[Expr, ...], names: Names) -> Within:
    """With loops all of which stand under some conditions; the body is what is left there."""
    zeroed = kernel.zeroed & _read_first(kernel, body)
    kernel = replace(kernel, body=body, zeroed=zeroed)
    loops = tuple(
        _Loop(run, names).made(_hidden(kernel, body, run), conditions)
        for run, conditions in _runs(body, _changed(body), under)
    )
    left = {
        var.name
        for var in kernel.private
        if _uses(body, var.name)
        > sum(_uses(loop.source, var.name) for loop in loops if var.name in loop.hidden)
    }
    private = tuple(var for var in kernel.private if var.name in left)
    parts = tuple(each.parts for loop in loops for each in loop.sums)
    return Within(body, loops, (*private, *parts), zeroed)


def _read_first(kernel: Kernel, body: tuple[Stmt, ...]) -> frozenset[str]:
    """What is read before it is wholly written."""
    outside = frozenset(written(body)) - {var.name for var in kernel.private}
    return frozenset(Liveness(()).block(body, outside)[1])


def _changed(body: tuple[Stmt, ...]) -> frozenset[str]:
    return frozenset({*written(body), *counters(body)})


def _decided(body: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], tuple[Expr, ...]]:
    """What is left of a body under conditions that all its loops stand under, and these: where they
    do not hold, the kernel without loops runs."""
    changed = _changed(body)
    around = [set(under) for _, under in _runs(body, changed)]
    common = set.intersection(*around) if around else set()

    def block(stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(inner for stmt in stmts for inner in statement(stmt))

    def statement(stmt: Stmt) -> tuple[Stmt, ...]:
        if isinstance(stmt, If):
            for branch, taken in enumerate((stmt.then, stmt.other)):
                if _condition(stmt, branch) in common:
                    return block(taken)
        return (map_blocks(stmt, block),)

    under = next((under for _, under in _runs(body, changed)), ())
    return block(body), tuple(each for each in dict.fromkeys(under) if each in common)


def _condition(stmt: If, branch: int) -> Expr:
    """What holds in a branch."""
    return Binary("==", stmt.cond, ZERO, INT) if branch else stmt.cond


def _runs(
    block: tuple[Stmt, ...], changed: frozenset[str], under: tuple[Expr, ...] = ()
) -> Iterator[tuple[_Run, tuple[Expr, ...]]]:
    """The runs that become loops, and the conditions around them on what is not ``changed``."""
    best = _best_run(block)
    if best is not None:
        yield best[1], under
    for k, stmt in enumerate(block):
        if best is not None and best[0] <= k < best[0] + len(best[1].body):
            continue
        for branch, inner in enumerate(blocks(stmt)):
            more: tuple[Expr, ...] = ()
            if isinstance(stmt, If) and variable_names(stmt.cond).isdisjoint(changed):
                more = (_condition(stmt, branch),)
            yield from _runs(inner, changed, (*under, *more))


def _uses(body: tuple[Stmt, ...], name: str) -> int:
    return sum(isinstance(node, Var) and node.name == name for node in nodes(body))


class _Loop:
    """Makes the loop of a run."""

    def __init__(self, run: _Run, names: Names) -> None:
        self._run, self._names = run, names
        self._index = Var(names.fresh(run.names[0]), INT)
        self._rows = {
            row: Var(names.fresh(f"{row.tensor.name}_row"), TensorType(row.dims))
            for row in _rows(run)
        }
        self._called = iter(run.names)
        self._sums: list[InnerSum] = []

    def made(self, hidden: Sequence[Var], under: tuple[Expr, ...]) -> Inner:
        """``hidden``: what only these statements need of the kernel's private tensors."""
        run = self._run
        small: dict[str, Var] = {}
        for var in hidden:
            dim, dims = dict(run.dims)[var.name], dims_of(var)
            assert isinstance(var.type, TensorType)
            type_ = replace(var.type, dims=(*dims[:dim], *dims[dim + 1 :]))
            small[var.name] = Var(self._names.fresh(f"{var.name}_own"), type_)
        body = tuple(map(self._statement, run.body))
        dims_without = {name: dim for name, dim in run.dims if name in small}
        made = at_index(body, run.names, self._index, dims_without, small, self._names)
        first = tuple(self._fetch(row, var) for row, var in self._rows.items())
        lanes = next(iter(self._rows)).dims[-1]
        return Inner(
            tuple(stmt.number for stmt in run.body), run.body, Axis(self._index.name, run.extent),
            (*first, *made), tuple(small.values()), tuple(self._rows.values()),
            tuple(self._sums), lanes, frozenset(small), under,
        )  # fmt: skip

    def _fetch(self, row: _Row, var: Var) -> Stmt:
        axes = tuple(Axis(self._names.fresh(f"_k{k}"), dim) for k, dim in enumerate(row.dims))
        place = tuple(Var(axis.name, INT) for axis in axes)
        left = iter(place)
        subscripts = tuple(
            next(left) if sub is None else self._index if sub == _INDEX else sub
            for sub in row.place
        )
        value = Index(row.tensor, subscripts, FLOAT)
        return IndexAssign(Index(var, place, FLOAT), "=", value, axes, self._run.body[0].span)

    def _statement(self, stmt: Stmt) -> Stmt:
        if not isinstance(stmt, IndexAssign):
            return map_blocks(stmt, lambda block: tuple(map(self._statement, block)))
        name, target = next(self._called), stmt.element
        if target.tensor.name not in self._run.sums:
            return self._with_rows(stmt, name)
        plain = opened(stmt)
        own = {axis.name: axis for axis in plain.axes}
        ordered = tuple(
            own[sub.name] for sub in target.subscripts if isinstance(sub, Var) and sub.name in own
        )
        called, extents = target.tensor.name, tuple(axis.extent for axis in ordered)
        mine = Var(self._names.fresh(f"{called}_own"), TensorType(extents))
        parts = Var(self._names.fresh(f"{called}_parts"), TensorType((IntConst(PARTS), *extents)))
        place = tuple(Var(axis.name, INT) for axis in ordered)
        total = Index(parts, (ZERO, *place), FLOAT)
        behind = IndexAssign(target, stmt.op, total, ordered, stmt.span, number=stmt.number)
        self._sums.append(InnerSum(mine, parts, behind))
        return replace(self._with_rows(plain, name), target=Index(mine, place, FLOAT))

    def _with_rows(self, stmt: IndexAssign, name: str) -> IndexAssign:
        """With rows in place of what it reads of them."""
        every = _rows_of(stmt, name, self._run.sums)
        found: dict[Expr, _Row] = {node: row for row, each in every.items() for node in each}

        def read(expr: Expr) -> Expr:
            row = found.get(expr)
            if row not in self._rows or not isinstance(expr, Index):
                return map_children(expr, read)
            pairs = zip(expr.subscripts, row.place, strict=True)
            return Index(self._rows[row], tuple(sub for sub, at in pairs if at is None), FLOAT)

        return replace(stmt, value=read(stmt.value))


def _hidden(kernel: Kernel, body: tuple[Stmt, ...], run: _Run) -> list[Var]:
    """The private tensors of a kernel whose values no other statement than those of a run needs."""
    source, dims = run.body, dict(run.dims)
    outside = frozenset(written(body)) - {var.name for var in kernel.private}
    _, before = Liveness(()).block(body, outside)
    numbers = {stmt.number for stmt in source}
    found: list[Var] = []
    for var in kernel.private:
        if var.name not in dims or var.name in kernel.zeroed or var.name in before:
            continue
        new = Var(f"{var.name}@own", var.type)
        changed = _renamed(body, var.name, new, numbers)
        _, start = Liveness(()).block(changed, outside)
        _, inside = Liveness(()).block(_renamed(source, var.name, new, numbers), outside)
        if start.isdisjoint({var.name, new.name}) and new.name not in inside:
            found.append(var)
    return found


def _renamed(
    body: tuple[Stmt, ...], name: str, new: Var, numbers: AbstractSet[int]
) -> tuple[Stmt, ...]:
    """With another name for a tensor in the statements of those numbers, and what is in them."""

    def rename(expr: Expr) -> Expr:
        if isinstance(expr, Var) and expr.name == name:
            return new
        return map_children(expr, rename)

    def statement(stmt: Stmt, inside: bool) -> Stmt:
        inside = inside or stmt.number in numbers
        if isinstance(stmt, IndexAssign):
            return map_expressions(stmt, rename) if inside else stmt
        return map_blocks(stmt, lambda block: tuple(statement(each, inside) for each in block))

    return tuple(statement(stmt, False) for stmt in body)
