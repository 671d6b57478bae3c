"""Calls of tensor functions, replaced by the bodies of the functions.

What was cut into modular functions can so be optimised as one: statements of caller and callee run
in the same loops, and values that only pass between them need no storage of their own. A call stays
where the sizes of arguments cannot be proved to be those that the callee declares, because then the
call checks them; and where the callee has ``Out`` arguments.
"""

from __future__ import annotations

from collections.abc import Collection

from loma.core import sizes
from loma.core.effects import counters, declared, effects, out_places, written
from loma.core.ir import (
    FLOAT, INT, Assign, Call, CallStmt, Declare, Expr, FloatConst, FloatType, For, Function, If,
    IndexAssign, IntConst, IntType, Module, Op, Return, Stmt, TensorType, Unpack, Var, While, Zero,
    is_tensor_function, replace,
)  # fmt: skip
from loma.core.names import Names, axes_of, axis_names, names_of, with_own_indices
from loma.core.sizes import size_variables
from loma.core.walk import (
    aggregates, free_variables, map_blocks, map_children, map_expressions, own_names,
    reads_of_type, root, statements, substitute_type, substitute_typed,
)  # fmt: skip
from loma.passes.fold import folded

LARGEST = 400  # statements of a caller beyond which nothing more is put into it


def inline(module: Module) -> Module:
    """The pass on every tensor function of a module; callees stand before callers."""
    done: dict[str, Function] = {}
    # A function with a derivative of its own is called wherever that may be asked for.
    kept = {function.derivative_of for function in module.functions}
    for function in module.functions:
        if is_tensor_function(function) and not any(aggregates(function)):
            function = _Inlining(function, done, kept).run()
        done[function.name] = function
    return replace(module, functions=tuple(done.values()))


class _Inlining:
    def __init__(
        self, caller: Function, functions: dict[str, Function], kept: Collection[str | None]
    ) -> None:
        self._caller = caller
        self._kept = kept
        self._functions = functions
        self._names = Names(names_of(caller))
        self._known = {param.name for param in caller.params}  # declared so far
        self._sizes = set(size_variables(caller))
        self._taken = {*self._known, *self._sizes, *written(caller.body), *counters(caller.body)}
        self._changed = _changed(caller, functions)
        self._size = sum(1 for _ in statements(caller.body))
        self._moving = written(caller.body) | counters(caller.body)
        self._declared = {*self._known, *declared(caller.body)}
        self._nesting = 0
        self._hoisted: list[Stmt] = []  # declarations of what callees in nested blocks need

    def run(self) -> Function:
        out: list[Stmt] = []
        for stmt in self._caller.body:
            out += self._statement(stmt)
        return replace(self._caller, body=(*self._hoisted, *out))

    def _statement(self, stmt: Stmt) -> list[Stmt]:
        early, stmt = self._calls_apart(stmt)
        return [*early, *self._inlined(stmt)]

    def _calls_apart(self, stmt: Stmt) -> tuple[list[Stmt], Stmt]:
        """The calls among the operands of operators as statements of their own, and the rest."""
        early: list[Stmt] = []

        def operand(expr: Expr) -> Expr:
            if isinstance(expr, Call) and isinstance(expr.type, TensorType):
                result = Var(self._names.fresh(self._result_name(expr)), expr.type)
                early.extend(self._statement(Declare(result, expr, expr.span)))
                return result
            return map_children(expr, operand) if isinstance(expr, Op) else expr

        def value(expr: Expr) -> Expr:
            return map_children(expr, operand) if isinstance(expr, Op) else expr

        match stmt:
            case Declare(_, Op() as whole) | Assign(Var(), _, Op() as whole):
                stmt = replace(stmt, value=value(whole))
            case Return(values):
                stmt = replace(stmt, values=tuple(map(value, values)))
            case _:
                pass
        return early, stmt

    def _inlined(self, stmt: Stmt) -> list[Stmt]:
        match stmt:
            case Declare(target, Call() as call):
                body = self._body(call, (target,))
            case Unpack(targets, call):
                body = self._unpacked(targets, call)
            case Return((Call() as call,)):
                result = Var(self._names.fresh(self._result_name(call)), call.type)
                body = self._body(call, (result,))
                return [stmt] if body is None else [*body, replace(stmt, values=(result,))]
            case _:
                body = [map_blocks(stmt, self._nested)]
        body = [stmt] if body is None else body
        self._known |= written(tuple(body))
        return body

    def _nested(self, block: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """A block of a loop or a branch, where nothing is declared."""
        out: list[Stmt] = []
        self._nesting += 1
        for stmt in block:
            match stmt:
                case Assign(Var() as target, "=", Call() as call) if target.type == call.type:
                    own = target.name in free_variables(call)
                    body = self._unpacked((target,), call) if own else self._body(call, (target,))
                case Unpack(targets, call):
                    body = self._unpacked(targets, call)
                case Assign(Var(), _, Op()):
                    early, rest = self._calls_apart(stmt)
                    body = [*early, rest]
                case _:
                    body = [map_blocks(stmt, self._nested)]
            out += self._undeclared(body) or [stmt]
        self._nesting -= 1
        return tuple(out)

    def _undeclared(self, body: list[Stmt] | None) -> list[Stmt]:
        """The statements with their declarations outside; none where a size is known only here, or
        may be none elsewhere."""
        out: list[Stmt] = []
        hoisted: list[Stmt] = []
        for stmt in body or ():
            if not isinstance(stmt, Declare):
                out.append(stmt)
                continue
            target, value = stmt.target, stmt.value
            dims = sizes.dims_of(target) if isinstance(target.type, TensorType) else ()
            there = all(sizes.is_nonnegative(dim, self._sizes.__contains__) for dim in dims)
            if not there or reads_of_type(target.type) & self._moving:
                return []
            if target.name not in self._declared:
                hoisted.append(Declare(target, None, stmt.span))
            start = Zero(target) if value is None else Assign(target, "=", value)
            out.append(replace(start, span=stmt.span))
        self._hoisted += hoisted
        self._declared |= written(tuple(hoisted))
        return out

    def _unpacked(self, targets: tuple[Var, ...], call: Call) -> list[Stmt] | None:
        """Variables that exist already take their results when all are there."""
        new = tuple(
            replace(target, name=self._names.fresh(target.name))
            if target.name in self._known
            else target
            for target in targets
        )
        body = self._body(call, new)
        if body is None:
            return None
        pairs = zip(targets, new, strict=True)
        return [*body, *(Assign(old, "=", own) for old, own in pairs if own != old)]

    def _result_name(self, call: Call) -> str:
        callee = self._functions.get(call.function)
        match callee.body[-1:] if callee is not None else ():
            case (Return((Var(name),)),):
                return name
            case _:
                return "_result"

    def _body(self, call: Call, targets: tuple[Var, ...]) -> list[Stmt] | None:
        """The statements that give the targets their values; None where the call has to stay."""
        callee = self._functions.get(call.function)
        if callee is None or callee.name in self._kept or not _simple(callee):
            return None
        count = sum(1 for _ in statements(callee.body))
        if self._size + count > LARGEST:
            return None
        callee = with_own_indices(callee, self._taken)
        early, args = self._plain_arguments(call, [param.name for param in callee.params])
        values = self._values(callee, args)
        if values is None:
            return None
        returned = callee.body[-1]
        assert isinstance(returned, Return)
        for value, target, type_ in zip(returned.values, targets, callee.results, strict=True):
            own, given = substitute_type(type_, values), substitute_type(value.type, values)
            same = sizes.same_type(own, given) and sizes.same_type(target.type, own)
            if not same:
                return None
        renaming = self._locals(callee, returned, targets, values)
        self._size += count
        body = [_renamed(stmt, renaming) for stmt in callee.body[:-1]]
        made = {s.target.name for s in body if isinstance(s, Declare)}
        ends: list[Stmt] = [
            Declare(target, substitute_typed(value, renaming), call.span)
            for value, target in zip(returned.values, targets, strict=True)
            if target.name not in made
        ]
        return [*early, *body, *ends]

    def _plain_arguments(self, call: Call, names: list[str]) -> tuple[list[Stmt], tuple[Expr, ...]]:
        """The arguments as variables and constants, with the statements that compute them."""
        early: list[Stmt] = []
        args: list[Expr] = []
        for arg, name in zip(call.args, names, strict=True):
            moves = isinstance(arg, Var) and arg.type == FLOAT and arg.name in self._changed
            if isinstance(arg, Var | IntConst | FloatConst) and not moves:
                args.append(arg)
                continue
            var = Var(self._names.fresh(name), arg.type)
            early += self._statement(Declare(var, arg, arg.span))
            args.append(var)
        return early, tuple(args)

    def _values(self, callee: Function, args: tuple[Expr, ...]) -> dict[str, Expr] | None:
        """What the callee's arguments and sizes are in the caller."""
        values: dict[str, Expr] = {}
        for param, arg in zip(callee.params, args, strict=True):
            # In a block the results have other names until the callee's statements have run.
            if isinstance(arg, Var) and arg.name in self._changed and not self._nesting:
                return None  # its value may change while the callee's name for it should not
            values[param.name] = arg
        bound = sizes.bound_sizes(callee.params, args)
        for name, at in sizes.bindings(callee.params).items():
            if at.offset > 0 and not (
                name in bound and sizes.is_nonnegative(bound[name], self._sizes.__contains__)
            ):
                return None  # D of D + 1 may be below 0, which the call checks
        values |= bound
        for param in callee.params:
            if not sizes.same_type(substitute_type(param.type, values), values[param.name].type):
                return None
        every = values.values()
        captured = {n for v in every for n in free_variables(v) | reads_of_type(v.type)}
        return None if captured & axis_names(callee) else values

    def _locals(
        self, callee: Function, returned: Return, targets: tuple[Var, ...], values: dict[str, Expr]
    ) -> dict[str, Expr]:
        """The values, and names of the caller's own for the callee's variables: a variable that is
        returned gets the name of what the caller makes of it."""
        renaming = dict(values)
        own = {s.target.name for s in callee.body if isinstance(s, Declare)}
        for value, target in zip(returned.values, targets, strict=True):
            if isinstance(value, Var) and value.name in own - renaming.keys():
                renaming[value.name] = target
        self._names.take(*axis_names(callee))
        for stmt in statements(callee.body):
            effect = effects(stmt)
            for var in (*effect.declares, *effect.counters):
                if var.name not in renaming:
                    name = self._names.fresh(var.name)
                    renaming[var.name] = Var(name, substitute_type(var.type, values))
        return renaming


def _changed(caller: Function, functions: dict[str, Function]) -> set[str]:
    """Variables that get a value again; of those that calls give one, the ints, as sizes may be."""
    found: set[str] = set()
    known = {param.name for param in caller.params}
    for stmt in statements(caller.body):
        match stmt:
            case Assign(Var(name)) | IndexAssign(Var(name)):
                found.add(name)
            case Unpack(targets):
                found |= {t.name for t in targets if t.type == INT and t.name in known}
            case CallStmt(call):
                places = out_places(call, functions[call.function])
                found |= {root(place) for place in places if place.type == INT}
            case _:
                pass
        known |= written((stmt,))
    return found


def _simple(callee: Function) -> bool:
    """Whether the body can stand for a call: it gives a result and changes no argument."""
    params = {param.name for param in callee.params}
    for stmt in statements(callee.body):
        match stmt:
            case While():
                return False  # says the function's name when it runs too often
            case Assign(Var(name)) | IndexAssign(Var(name)) if name in params:
                return False
            case _:
                continue
    kinds = TensorType | IntType | FloatType
    plain = all(p.mode == "In" and isinstance(p.type, kinds) for p in callee.params)
    if not plain or not callee.results or not is_tensor_function(callee):
        return False
    return not any(aggregates(callee)) and not _reads_a_hidden_counter(callee)


def _renamed(stmt: Stmt, renaming: dict[str, Expr]) -> Stmt:
    """The statement in the caller's names; the axes of index statements and reductions, which may
    have the name of a counter elsewhere in the callee, keep theirs."""

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(_renamed(inner, renaming) for inner in body)

    match stmt:
        case For(counter, extent, body):
            own = renaming[counter]
            assert isinstance(own, Var)
            extent = substitute_typed(extent, renaming)
            return replace(stmt, counter=own.name, extent=extent, body=block(body))
        case If(cond, then, other):
            cond = substitute_typed(cond, renaming)
            return replace(stmt, cond=cond, then=block(then), other=block(other))
        case _:
            bound = axes_of(stmt)
            values = {name: value for name, value in renaming.items() if name not in bound}
            return map_expressions(stmt, lambda expr: folded(substitute_typed(expr, values)))


def _reads_a_hidden_counter(callee: Function) -> bool:
    """Whether a statement has a name both as a counter's and as that of a reduction's axis."""
    own_counters = counters(callee.body)
    for stmt in statements(callee.body):
        own = {axis.name for axis in stmt.axes} if isinstance(stmt, IndexAssign) else set()
        if own_counters & (axes_of(stmt) - own) & own_names(stmt):
            return True
    return False
