"""A variable that is given another value is another variable: one name for each life of a value.

``s = exp(s); s = s / z`` and two loops that both begin with ``total = 0.0`` use a name again, not a
value. Each life of it, from a statement that sets all of it to the last that may look at that, has
its own name then (the *webs* of a variable: Muchnick, Advanced Compiler Design, 16.3.3), so that
passes which ask what a variable is find one answer. What goes around a loop stays one variable.
"""

from __future__ import annotations

from collections import Counter

from loma.core import sizes
from loma.core.effects import counters, written
from loma.core.ir import (
    Assign, Axis, Declare, Expr, FloatType, For, Function, If, Index, IndexAssign, Module, Stmt,
    TensorType, Var, Zero, replace,
)  # fmt: skip
from loma.core.names import Names, axis_names, names_of
from loma.core.walk import (
    blocks, map_blocks, map_expressions, map_tensor_functions, mentioned_names, root,
    statements, substitute,
)  # fmt: skip
from loma.passes.liveness import covers, set_first

Block = tuple[Stmt, ...]


def webs(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Webs(function).run())


class _Webs:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._names = Names(names_of(function))
        self._added: list[Declare] = []  # of the new names of a variable

    def run(self) -> Function:
        body = list(self._function.body)
        taken = counters(self._function.body) | axis_names(self._function)
        changed = written(self._function.body) | taken
        times = Counter(map(_written_by, statements(self._function.body)))
        mentions: dict[str, list[int]] = {}
        for place, stmt in enumerate(body):
            for name in mentioned_names((stmt,)):
                mentions.setdefault(name, []).append(place)
        behind: dict[int, list[Declare]] = {}
        for place, stmt in enumerate(body):
            if isinstance(stmt, Declare) and times[stmt.target.name] > 1:
                var = stmt.target
                if var.name not in taken and _is_fixed(var, changed):
                    self._added = behind[place] = []
                    self._lives(body, var, mentions[var.name])
        every = ((stmt, *behind.get(place, ())) for place, stmt in enumerate(body))
        return replace(self._function, body=tuple(stmt for part in every for stmt in part))

    def _lives(self, body: list[Stmt], var: Var, places: list[int]) -> None:
        """Gives each life of a variable that a block alone mentions, there, a name of its own; the
        last one keeps that which it has."""
        starts = _starts([body[k] for k in places], var.name)
        left, own = sum(starts), var
        for place, start in zip(places, starts, strict=True):
            before = own
            if start:
                left -= 1
                own = self._fresh(var) if left else var
            body[place] = self._renamed(body[place], start, before, own, var)

    def _fresh(self, var: Var) -> Var:
        new = replace(var, name=self._names.fresh(var.name))
        self._added.append(Declare(new, None))
        return new

    def _renamed(self, stmt: Stmt, start: bool, before: Var, own: Var, var: Var) -> Stmt:
        """A statement with the name of the life that it begins or belongs to for the variable;
        what it looks at ``before`` that has another one."""

        def new(expr: Expr, value: Var) -> Expr:
            return substitute(expr, {var.name: value})

        match stmt:
            case Declare(Var(name)) if name == var.name != own.name:
                self._added[-1] = Declare(var, None)  # this one declares the new name
                return replace(stmt, target=own)
            case Assign(Var(), "=", value) if start:
                return replace(stmt, target=own, value=new(value, before))
            case IndexAssign(Index() as target, "=", value, axes) if start:
                subscripts = tuple(new(s, before) for s in target.subscripts)
                axes = tuple(Axis(axis.name, new(axis.extent, before)) for axis in axes)
                place = replace(target, base=own, subscripts=subscripts)
                return replace(stmt, target=place, value=new(value, before), axes=axes)
            case For() | If() if start:
                stmt = map_expressions(stmt, lambda expr: new(expr, own))
                if sum(own.name in mentioned_names(block) for block in blocks(stmt)) == 1:
                    return map_blocks(stmt, lambda block: self._round(block, own))
                return stmt
            case _:
                return map_expressions(stmt, lambda expr: new(expr, own))

    def _round(self, block: Block, var: Var) -> Block:
        """A block that may run again: what it has at its end must be nothing to the next round."""
        if not set_first(var.name, block):
            return block
        body = list(block)
        self._lives(body, var, [k for k, s in enumerate(body) if var.name in mentioned_names((s,))])
        return tuple(body)


def _starts(mentioning: list[Stmt], name: str) -> list[bool]:
    """Which of the statements that mention a variable give it a value that has nothing to do with
    that before, but for being made of it."""
    found: list[bool] = []
    alone = True  # nothing looks at what the statement leaves
    for stmt in reversed(mentioning):
        match stmt:
            case Declare(Var(target), value) if target == name:
                start = value is not None or not alone or not found
            case Zero(Var()):
                start = True
            case Assign(Var(target), "="):
                start = target == name
            case IndexAssign(Index() as target, "="):
                start = target.tensor.name == name and covers(stmt)
            case For() | If():
                start = alone and set_first(name, (stmt,))
            case _:
                start = False
        found.append(start)
        alone = start and set_first(name, (stmt,))
    return found[::-1]


def _written_by(stmt: Stmt) -> str | None:
    """The variable that a statement writes, loops and branches aside."""
    match stmt:
        case Declare(Var(name), value):
            return None if value is None else name
        case Assign(place) | IndexAssign(place) | Zero(place):
            return root(place)
        case _:
            return None


def _is_fixed(var: Var, changed: set[str]) -> bool:
    """Whether another variable of its type can be declared in front of all that mentions it."""
    match var.type:
        case FloatType():
            return True
        case TensorType(tuple() as dims):
            return all(sizes.keeps_value(dim, changed) for dim in dims)
        case _:
            return False
