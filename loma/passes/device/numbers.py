"""Numbers on the device: what the host would have to wait for is a 0-dim tensor.

    def f(x : In[Tensor[N]], a : In[float]) -> float:     def f(x : In[Tensor[N]],
        s : float                                               a : In[Tensor[()]]) -> Tensor[()]:
        s += x[i] * a                                         s : Tensor[()]
        return 2.0 * s                                        s[()] += x[i] * a[()]
                                                              _number : Tensor[()]
                                                              _number[()] = 2.0 * s[()]
                                                              return _number

Which these are says :mod:`loma.passes.device.values`. Where the host has to know one, as in the
condition of a loop, it reads the element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace as with_fields
from typing import Literal, assert_never

from loma.core import builder as b
from loma.core.effects import written
from loma.core.ir import (
    FLOAT, INT, Assign, AtomicAdd, Axis, Call, CallStmt, Declare, Expr, For, Function, If, Index,
    IndexAssign, Module, Pop, Push, Return, Select, Stmt, TensorType, Type, Unary, Unpack, Var,
    While, Zero, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    free_variables, map_expressions, map_tensor_functions, numbered, root, statements, substitute,
)  # fmt: skip
from loma.passes.device.biases import added_later
from loma.passes.device.copies import early, without_copies
from loma.passes.device.expressions import FLAG, NUMBER, Expressions, moved
from loma.passes.device.ranges import looked_at_before
from loma.passes.device.segments import segments
from loma.passes.first_write import first_writes


def on_device(module: Module) -> Module:
    """The module with such numbers as 0-dim tensors."""
    functions = {function.name: function for function in module.functions}

    def changed(function: Function) -> Function:
        own = _with_own_values(
            added_later(looked_at_before(segments(function)), functions), functions
        )
        own = replace(own, body=numbered(own.body))
        new = without_copies(_Rewriting(own, functions).function())
        return replace(new, body=early(first_writes(new.body)))

    return map_tensor_functions(module, changed)


def _with_own_values(function: Function, functions: Mapping[str, Function]) -> Function:
    """The function with variables for the float arguments that it changes: these are tensors of the
    caller's now."""
    changed = written(function.body, functions)
    names = Names(names_of(function))
    new: dict[str, Expr] = {}
    copies: list[Stmt] = []
    for param in function.params:
        if param.mode == "In" and param.type == FLOAT and param.name in changed:
            var = Var(names.fresh(param.name), FLOAT, param.span)
            copies.append(Declare(var, Var(param.name, FLOAT, param.span), param.span))
            new[param.name] = var
    if not new:
        return function
    body = (map_expressions(stmt, lambda expr: substitute(expr, new)) for stmt in function.body)
    return replace(function, body=(*copies, *body))


class _Rewriting(Expressions):
    """The statements of one function."""

    def function(self) -> Function:
        function = self.of
        for stmt in function.body:
            self._statement(stmt)
        params = tuple(with_fields(p, type=moved(p.type)) for p in function.params)
        results = tuple(map(moved, function.results))
        return replace(function, params=params, results=results, body=tuple(self.outermost))

    # ------------------------------------------------------------------------------ statements

    def _block(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        with self._inside() as out:
            for stmt in body:
                self._statement(stmt)
        return tuple(out)

    @contextmanager
    def _inside(self) -> Iterator[list[Stmt]]:
        around, self.out = self.out, []
        yield self.out
        self.out = around

    def _statement(self, stmt: Stmt) -> None:
        self.span = stmt.span
        out = self.out
        match stmt:
            case Declare(target, value):
                self._declare(stmt, target, value)
            case Assign(Var() as target, op, value):
                self._assign(target, op, value)
            case AtomicAdd(Var() as target, value) if self.is_number(target):
                self._assign(target, "+=", value)
            case Assign(target, _, value) | AtomicAdd(target, value):
                out.append(replace(stmt, target=self.place(target), value=self.value(value)))
            case IndexAssign(target, _, value, axes):
                ranges = tuple(Axis(axis.name, self.value(axis.extent)) for axis in axes)
                with self.under(axis.name for axis in axes):
                    place, value = self.place(target), self.value(b.as_scalar(value))
                out.append(replace(stmt, target=place, value=value, axes=ranges))  # type: ignore[arg-type]
            case Unpack(targets, call):
                self._unpack(targets, call)
            case Zero(Var() as target) if self.is_number(target):
                self._store(target, b.zero(target))
            case Zero():
                out.append(stmt)
            case If(cond) if self.values.is_selected(stmt):
                self._select(stmt, None)
            case If(cond, then, other):
                cond = self.value(cond)
                blocks = self._block(then), self._block(other)
                out.append(replace(stmt, cond=cond, then=blocks[0], other=blocks[1]))
            case For(_, extent, body):
                extent = self.value(extent)
                out.append(replace(stmt, extent=extent, body=self._block(body)))
            case While(cond, _, body):
                with self._inside() as before:  # what the condition needs, each time
                    cond = self.value(cond)
                out += before
                out.append(replace(stmt, cond=cond, body=(*self._block(body), *before)))
            case CallStmt(call):
                self._call_statement(call)
            case Return(values):
                results = zip(values, self.of.results, strict=True)
                given: set[str] = set()
                new = tuple(self._result(value, type_, given) for value, type_ in results)
                out.append(replace(stmt, values=new))
            case Push() | Pop():  # of the scalar layer
                out.append(stmt)
            case _:
                assert_never(stmt)

    def _declare(self, stmt: Declare, target: Var, value: Expr | None) -> None:
        self.declared.add(target.name)
        if not self.is_number(target):
            new = None if value is None else self.whole(value)
            self.out.append(replace(stmt, value=new))
        elif isinstance(value, Call) and self.gives_number(value):
            new = self.whole(value)
            self.out.append(replace(stmt, target=self.variable(target), value=new))
        else:
            self.out.append(replace(stmt, target=self.variable(target), value=None))
            if value is not None:
                self._assign(target, "=", value)

    def _assign(self, target: Var, op: Literal["=", "+="], value: Expr) -> None:
        if not self.is_number(target):
            new = self.whole(value)
            if not isinstance(target.type, TensorType):
                new = b.as_scalar(new)
            self.out.append(Assign(target, op, new, self.span))
        elif op == "=" and isinstance(value, Call) and self.gives_number(value):
            self.out.append(Assign(self.variable(target), "=", self.whole(value), self.span))
        else:
            self._store(target, self.value(b.as_scalar(value)), op)

    def _store(self, target: Var, value: Expr, op: Literal["=", "+="] = "=") -> None:
        """Gives a value to a number of the device, or of the host."""
        if self.is_number(target):
            self.out.append(IndexAssign(self.element(target), op, value, (), self.span))
        else:
            self.out.append(Assign(target, op, value, self.span))

    def _unpack(self, targets: tuple[Var, ...], call: Call) -> None:
        """Results whose types are not those of the variables go through variables of their own."""
        is_moved = self.values.is_tensor_call(call)
        new: list[Var] = []
        later: list[tuple[Var, Expr]] = []
        for target, result in zip(targets, self.functions[call.function].results, strict=True):
            found = moved(result) if is_moved else result
            wanted = self.variable(target)
            if isinstance(found, TensorType) != isinstance(wanted.type, TensorType):
                if target.name not in self.declared:
                    self.outermost.append(Declare(wanted, None, self.span))
                wanted = self.temporary(found)
                later.append((target, b.as_scalar(wanted)))
            self.declared.add(target.name)
            new.append(wanted)
        self.out.append(Unpack(tuple(new), self.call(call), self.span))
        for target, value in later:
            self._store(target, value)

    def _call_statement(self, call: Call) -> None:
        """Scalar functions change numbers of the host alone."""
        later: list[tuple[Var, Expr]] = []
        if not self.values.is_tensor_call(call):
            args = list(call.args)
            for k, param in enumerate(self.functions[call.function].params):
                arg = args[k]
                if param.mode == "Out" and isinstance(arg, Var) and self.is_number(arg):
                    own = self.temporary(param.type)
                    self._store(own, self.element(arg))
                    later.append((arg, own))
                    args[k] = own
            call = replace(call, args=tuple(args))
        self.out.append(CallStmt(self.call(call), self.span))
        for target, value in later:
            self._store(target, value)

    def _result(self, value: Expr, type_: Type, given: set[str]) -> Expr:
        """A result: no tensor of the caller's, and none twice."""
        if type_ != FLOAT or (isinstance(value, Call) and self.gives_number(value)):
            return self.whole(value)
        if isinstance(value, Var) and value.name in self.declared - given:
            own = self.variable(value)
            if own.type == NUMBER:
                given.add(own.name)
                return own
        return self.named(self.value(b.as_scalar(value)), NUMBER)

    # -------------------------------------------------------------------------------- branches

    def _select(self, stmt: If, around: Expr | None) -> None:
        """A branch that is not waited for: its assignments, each if the condition holds."""
        cond = self.value(stmt.cond)
        changed = {root(t) for s in statements((stmt,)) if (t := getattr(s, "target", None))}
        match stmt.then, stmt.other:
            case (first,), () if not isinstance(first, If):
                pass
            case (_,), (_,) if around is None and (pair := self._alternatives(stmt)):
                target, then, other = pair
                self.out.append(
                    IndexAssign(target, "=", b.select(cond, then, other), (), self.span)
                )
                return
            case _ if changed & free_variables(cond) or not isinstance(cond, Index):
                flag = self.named(b.truth(cond), FLAG)
                cond = b.as_scalar(flag)
        for block, holds in ((stmt.then, cond), (stmt.other, Unary("not", cond, INT))):
            guard = holds if around is None else b.binary("and", around, holds)
            for inner in block:
                self.span = inner.span
                if isinstance(inner, If):
                    self._select(inner, guard)
                    continue
                target, value = self._selected(inner)
                new = Select(guard, value, target, target.type)
                self.out.append(IndexAssign(target, "=", new, (), self.span))

    def _alternatives(self, stmt: If) -> tuple[Index, Expr, Expr] | None:
        """What both branches, of one assignment each, give a value to, and these."""
        (then,), (other,) = stmt.then, stmt.other
        if isinstance(then, If) or isinstance(other, If):
            return None
        (target, first), (same, second) = self._selected(then), self._selected(other)
        return (target, first, second) if target == same else None

    def _selected(self, stmt: Stmt) -> tuple[Index, Expr]:
        """What an assignment writes, and its value."""
        match stmt:
            case Zero(Var() as target):
                return self.element(target), b.zero(target)
            case Assign(target, op, value) | IndexAssign(target, op, value):
                place = self.element(target) if isinstance(target, Var) else target
                assert isinstance(place, Index)
                new = self.value(value)
                return place, new if op == "=" else b.binary("+", place, new)
            case _:
                raise AssertionError(stmt)
