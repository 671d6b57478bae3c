"""What a ``while`` does in each row, as a function of numbers that every row calls.

    for n in range(N):                         r[n] = row(a[n])
        x = a[n]
        while (abs(x * x - a[n]) > 1e-6, max_iter := 40):
            x = 0.5 * (x + a[n] / x)
        r[n] = x

Each row has its own number of rounds, which no index statement has; but a call has, and calls of
rows run in parallel, one beside the other. A row can be a function where all that goes on from
round to round are numbers, and where it reads the same elements of tensors in all rounds. Each
element that it gives a value has a function of its own.
"""

from __future__ import annotations

from contextlib import suppress

from loma.core import builder as b, sizes
from loma.core.axes import terms_of
from loma.core.bounds import exists
from loma.core.distinct import told_apart
from loma.core.effects import blanks, counters, written
from loma.core.ir import (
    Assign, Axis, Binary, Call, Declare, Expr, FloatConst, FloatType, For, Function, If, Index,
    IndexAssign, IntConst, IntType, Module, Param, Reduce, Return, Select, Stmt, Var, While, Zero,
    ZeroPad, Builtin, Unary, is_tensor_function, replace,
)  # fmt: skip
from loma.core.names import Names, module_names
from loma.core.walk import (
    free_variables, map_blocks, map_children, map_expressions, mentioned_names, root, statements,
    subscript_variables, substitute,
)  # fmt: skip
from loma.passes.canonical.loops import mentions
from loma.passes.liveness import Liveness, set_first

Block = tuple[Stmt, ...]
_ROUNDS = 8  # of a loop inside that are written out, for the elements that it goes through
_ARGUMENTS = 24
_STATEMENTS = 200


def row_functions(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    names = Names(module_names(module))
    functions: list[Function] = []
    for function in module.functions:
        if is_tensor_function(function) and _has_while(function.body):
            rows = _Rows(function, module, names)
            new = rows.run()
            functions += [*rows.made, new]
        else:
            functions.append(function)
    return replace(module, functions=tuple(functions))


def _has_while(body: Block) -> bool:
    return any(isinstance(stmt, While) for stmt in statements(body))


class _Stays(Exception):
    """The loop stays one."""


class _Rows:
    """The pass on a function; ``made`` are those of its rows."""

    def __init__(self, function: Function, module: Module, names: Names) -> None:
        self._function, self._module, self._names = function, module, names
        self._sizes = frozenset(sizes.size_variables(function))
        self._mentions = mentions(function.body)
        self._declared = blanks(function.body)
        self._around: tuple[Axis, ...] = ()
        self.made: list[Function] = []

    def run(self) -> Function:
        return replace(self._function, body=self._block(self._function.body))

    def _block(self, body: Block) -> Block:
        return tuple(map(self._statement, body))

    def _statement(self, stmt: Stmt) -> Stmt:
        around = self._around
        if isinstance(stmt, For):
            self._around = (*around, Axis(stmt.counter, stmt.extent))
        stmt = map_blocks(stmt, self._block)
        if isinstance(stmt, For) and _has_while(stmt.body):
            with suppress(_Stays):
                stmt = self._with_calls(stmt)
        self._around = around
        return stmt

    def _with_calls(self, loop: For) -> For:
        """The loop with calls for what it does in a round; _Stays where a round is no function."""
        inside = mentions(loop.body)
        private = {
            name: var
            for name, var in self._declared.items()
            if isinstance(var.type, FloatType | IntType)
            if 0 < inside[name] == self._mentions[name] and set_first(name, loop.body)
        }
        row = _Row(self._around, private, frozenset(written(loop.body)), self._sizes,
                   Names(private.keys() | counters(loop.body)))  # fmt: skip
        body = row.block(loop.body, certain=True)
        if not row.places or len(list(statements(body))) > _STATEMENTS:
            raise _Stays
        results = row.places.values()
        begins = {v.name for v in results if not set_first(v.name, (*body, Return((v,))))}
        if begins and len(row.places) > 1:
            raise _Stays  # a second call would begin with what the first one left
        calls: list[Stmt] = []
        for place, own in row.places.items():
            if loop.counter not in told_apart(place.subscripts, self._around):
                raise _Stays
            given = {**row.arguments, place: own} if own.name in begins else row.arguments
            value = self._call(body, own, given, again=bool(calls))
            calls.append(IndexAssign(place, "=", replace(value, span=loop.span), (), loop.span))
        return replace(loop, body=tuple(calls))

    def _call(self, body: Block, result: Var, given: dict[Expr, Var], again: bool) -> Call:
        """A call of a new function, which gives one of the elements its value; ``again``: another
        one has all that a row does, with loops that may run too often."""
        if again:
            body, _ = Liveness(self._module.functions).block(body, frozenset({result.name}))
        used = mentioned_names(body)
        given = {arg: var for arg, var in given.items() if var.name in used}
        if len(given) > _ARGUMENTS:
            raise _Stays
        # Arguments that the row gives other values are variables of its own.
        changed = {v.name: v for v in given.values() if v.name in written(body)}
        fresh = Names(used)
        outer = {name: Var(fresh.fresh(name), var.type) for name, var in changed.items()}
        params = tuple(
            Param(outer.get(var.name, var).name, var.type, "In") for var in given.values()
        )
        own = {var.name: var for var in self._locals(body) if var not in given.values()}
        declared: list[Stmt] = [Declare(changed[name], outer[name]) for name in changed]
        declared += [Declare(var, None) for var in own.values()]
        name = self._names.fresh(f"{self._function.name}__row")
        new = Function(name, params, (result.type,), (*declared, *body, Return((result,))))
        self.made.append(new)
        return Call(name, tuple(given), result.type)

    @staticmethod
    def _locals(body: Block) -> list[Var]:
        found = {}
        for stmt in statements(body):
            if isinstance(stmt, Assign | Zero) and isinstance(stmt.target, Var):
                found[stmt.target.name] = stmt.target
        return list(found.values())


class _Row:
    """Makes statements on numbers of those of a row. ``arguments``: what stands for elements and
    for variables of the function, ``places`` for elements that the row gives a value."""

    def __init__(
        self, around: tuple[Axis, ...], private: dict[str, Var], changed: frozenset[str],
        size_names: frozenset[str], names: Names,
    ) -> None:  # fmt: skip
        self._extents = {axis.name: axis.extent for axis in around}
        self._private, self._changed, self._names = private, changed, names
        self._sizes = size_names
        self._inside: set[str] = set()  # counters of loops inside
        self.arguments: dict[Expr, Var] = {}
        self.places: dict[Index, Var] = {}

    def block(self, body: Block, certain: bool = False) -> Block:
        """The statements of a block; ``certain``: which runs in every row."""
        return tuple(new for stmt in body for new in self._statement(stmt, certain))

    def _statement(self, stmt: Stmt, certain: bool) -> list[Stmt]:
        match stmt:
            case Assign(Var(name) as target, op, value) if name in self._private:
                return [replace(stmt, target=target, value=self._expr(value, certain))]
            case IndexAssign(Var(name) as target, "+=", value, axes) if name in self._private:
                value = Reduce("sum", value, axes, value.type) if axes else value
                return [Assign(target, "+=", self._expr(value, certain), stmt.span)]
            case IndexAssign(Index() as place, op, value, ()):
                value = self._expr(value, certain)
                return [Assign(self._place(place), op, value, stmt.span)]
            case Zero(Var(name)) if name in self._private:
                return [stmt]
            case If(cond, then, other):
                cond = self._expr(cond, certain)
                return [replace(stmt, cond=cond, then=self.block(then), other=self.block(other))]
            case While(cond, _, inner):
                return [replace(stmt, cond=self._expr(cond, certain), body=self.block(inner))]
            case For():
                return self._loop(stmt)
            case _:
                raise _Stays

    def _loop(self, loop: For) -> list[Stmt]:
        """A loop inside, written out where it goes through elements."""
        saved = self.arguments.copy(), self.places.copy()
        self._inside.add(loop.counter)
        try:
            extent = self._expr(loop.extent, False)
            return [replace(loop, extent=extent, body=self.block(loop.body))]
        except _Stays:
            self.arguments, self.places = saved
        finally:
            self._inside.discard(loop.counter)
        count = sizes.constant(loop.extent)
        if count is None or count > _ROUNDS:
            raise _Stays
        rounds = reversed(range(count)) if loop.backwards else range(count)
        found: list[Stmt] = []
        for k in rounds:
            here: dict[str, Expr] = {loop.counter: IntConst(k)}

            def now(expr: Expr, here: dict[str, Expr] = here) -> Expr:
                return sizes.simple_subscripts(substitute(expr, here))

            found += self.block(tuple(map_expressions(stmt, now) for stmt in loop.body))
        return found

    def _place(self, place: Index) -> Var:
        """The variable for an element that the row gives a value."""
        if place not in self.places:
            names = subscript_variables(place)
            fixed = names.isdisjoint(self._changed | self._inside | self._private.keys())
            others = any(root(own) == root(place) for own in self.places)
            if not fixed or others or any(isinstance(s, Index) for s in place.subscripts):
                raise _Stays
            self.places[place] = Var(self._names.fresh(root(place)), place.type)
        return self.places[place]

    def _expr(self, expr: Expr, certain: bool) -> Expr:
        match expr:
            case IntConst() | FloatConst():
                return expr
            case Var(name, FloatType() | IntType()):
                if name in self._private or name in self._inside:
                    return expr
                return self._argument(expr)
            case Index(Var(name)) if name in self._changed:
                return self._place(expr)
            case Index(Var()):
                if not certain and not exists(expr, self._extents, self._sizes.__contains__):
                    raise _Stays
                return self._argument(expr)
            case ZeroPad():
                return self._argument(expr)
            case Reduce(kind):
                terms = terms_of(expr)
                if kind in ("argmax", "argmin") or not terms:
                    raise _Stays
                first, *rest = (self._expr(term, certain) for term in terms)
                for term in rest:
                    first = b.combined(kind, first, term)
                return first
            case Select(cond, then, other):
                cond = self._expr(cond, certain)
                then, other = self._expr(then, False), self._expr(other, False)
                return replace(expr, cond=cond, then=then, other=other)
            case Binary("and" | "or", left, right):
                left, right = self._expr(left, certain), self._expr(right, False)
                return replace(expr, left=left, right=right)
            case Binary() | Unary() | Builtin() | Call(type=FloatType() | IntType()):
                return map_children(expr, lambda child: self._expr(child, certain))
            case _:
                raise _Stays

    def _argument(self, expr: Expr) -> Var:
        """The variable for what is the same in all of a row."""
        names = free_variables(expr)
        if not names.isdisjoint(self._changed | self._inside | self._private.keys()):
            raise _Stays
        if expr not in self.arguments:
            wish = expr.name if isinstance(expr, Var) else f"{sorted(names)[0]}_at"
            if isinstance(expr, Index):
                wish = root(expr)
            self.arguments[expr] = Var(self._names.fresh(wish), expr.type)
        return self.arguments[expr]
