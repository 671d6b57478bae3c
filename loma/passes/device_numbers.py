"""Numbers on the device: what the host would have to wait for is a 0-dim tensor.

    def f(x : In[Tensor[N]], a : In[float]) -> float:     def f(x : In[Tensor[N]],
        s : float                                               a : In[Tensor[()]]) -> Tensor[()]:
        s += x[i] * a                                         s : Tensor[()]
        return 2.0 * s                                        s[()] += x[i] * a[()]
                                                              _number : Tensor[()]
                                                              _number[()] = 2.0 * s[()]
                                                              return _number

Which these are says :mod:`loma.passes.device_values`. Where the host has to know one, as in the
condition of a loop, it reads the element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace as with_fields
from typing import Literal, assert_never

from loma import errors
from loma.core import builder as b
from loma.core.effects import written
from loma.core.ir import (
    FLOAT, INT, Assign, AtomicAdd, Axis, Call, CallStmt, Declare, Expr, FloatConst, For, Function,
    If, Index, IndexAssign, IntConst, Module, NoDiff, Op, Place, Pop, Push, Reduce, Return, Select,
    Stmt, TensorType, TupleType, Type, Unary, Unpack, Var, While, Zero, is_tensor_function, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    free_variables, map_attrs, map_expressions, map_guarded, reads_of_type, root, statements,
    substitute,
)  # fmt: skip
from loma.core.sizes import size_variables
from loma.errors.spans import NOWHERE
from loma.passes.device_values import DeviceValues

NUMBER = TensorType((), "float")
FLAG = TensorType((), "int")


def on_device(
    module: Module, kept: Callable[[Function], frozenset[str]] = lambda _: frozenset()
) -> Module:
    """The module with such numbers as 0-dim tensors. ``kept`` gives the variables of a function
    that live inside of kernels, which stay what they are."""
    functions = {function.name: function for function in module.functions}
    changed = (
        _Rewriting(_with_own_values(f, functions), functions, kept(f)).function()
        if is_tensor_function(f)
        else f
        for f in module.functions
    )
    return replace(module, functions=tuple(changed))


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


def _moved(type_: Type) -> Type:
    """The type of a parameter or a result on the device."""
    if isinstance(type_, TupleType):
        return TupleType(tuple(map(_moved, type_.items)))
    return NUMBER if type_ == FLOAT else type_


class _Rewriting:
    """One function. Statements are added to ``_out``, the block at hand; declarations to the
    ``_outermost`` one, where the statement that needs them follows."""

    def __init__(
        self, function: Function, functions: Mapping[str, Function], kept: frozenset[str]
    ) -> None:
        self._function = function
        self._functions = functions
        self._values = DeviceValues(function, functions, kept)
        self._names = Names(names_of(function))
        self._outermost: list[Stmt] = []
        self._out = self._outermost
        self._declared: set[str] = set()  # before the statement at hand
        ints = (param.name for param in function.params if param.type == INT)
        self._given = frozenset(size_variables(function)).union(ints)
        self._axes: frozenset[str] = frozenset()  # around the expression at hand
        self._guard: Expr | None = None  # under which that is evaluated
        self._span = NOWHERE

    def function(self) -> Function:
        function = self._function
        for stmt in function.body:
            self._statement(stmt)
        params = tuple(with_fields(p, type=_moved(p.type)) for p in function.params)
        results = tuple(map(_moved, function.results))
        return replace(function, params=params, results=results, body=tuple(self._outermost))

    # ------------------------------------------------------------------------------ statements

    def _block(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        with self._inside() as out:
            for stmt in body:
                self._statement(stmt)
        return tuple(out)

    @contextmanager
    def _inside(self) -> Iterator[list[Stmt]]:
        around, self._out = self._out, []
        yield self._out
        self._out = around

    def _statement(self, stmt: Stmt) -> None:
        self._span = stmt.span
        out = self._out
        match stmt:
            case Declare(target, value):
                self._declare(stmt, target, value)
            case Assign(Var() as target, op, value):
                self._assign(target, op, value)
            case AtomicAdd(Var() as target, value) if self._is_number(target):
                self._assign(target, "+=", value)
            case Assign(target, _, value) | AtomicAdd(target, value):
                out.append(replace(stmt, target=self._place(target), value=self.value(value)))
            case IndexAssign(target, _, value, axes):
                ranges = tuple(Axis(axis.name, self.value(axis.extent)) for axis in axes)
                with self._under(axis.name for axis in axes):
                    place, value = self._place(target), self.value(b.as_scalar(value))
                out.append(replace(stmt, target=place, value=value, axes=ranges))  # type: ignore[arg-type]
            case Unpack(targets, call):
                self._unpack(targets, call)
            case Zero(Var() as target) if self._is_number(target):
                self._store(target, _zero(target))
            case Zero():
                out.append(stmt)
            case If(cond) if self._values.is_selected(stmt):
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
                results = zip(values, self._function.results, strict=True)
                given: set[str] = set()
                new = tuple(self._result(value, type_, given) for value, type_ in results)
                out.append(replace(stmt, values=new))
            case Push() | Pop():  # of the scalar layer
                out.append(stmt)
            case _:
                assert_never(stmt)

    def _declare(self, stmt: Declare, target: Var, value: Expr | None) -> None:
        self._declared.add(target.name)
        if not self._is_number(target):
            new = None if value is None else self._whole(value)
            self._out.append(replace(stmt, value=new))
        elif isinstance(value, Call) and self._is_tensor(value):
            new = self._whole(value)
            self._out.append(replace(stmt, target=self._variable(target), value=new))
        else:
            self._out.append(replace(stmt, target=self._variable(target), value=None))
            if value is not None:
                self._assign(target, "=", value)

    def _assign(self, target: Var, op: Literal["=", "+="], value: Expr) -> None:
        if not self._is_number(target):
            new = self._whole(value)
            if not isinstance(target.type, TensorType):
                new = b.as_scalar(new)
            self._out.append(Assign(target, op, new, self._span))
        elif op == "=" and isinstance(value, Call) and self._is_tensor(value):
            self._out.append(Assign(self._variable(target), "=", self._whole(value), self._span))
        else:
            self._store(target, self.value(b.as_scalar(value)), op)

    def _store(self, target: Var, value: Expr, op: Literal["=", "+="] = "=") -> None:
        """Gives a value to a number of the device, or of the host."""
        if self._is_number(target):
            self._out.append(IndexAssign(self._element(target), op, value, (), self._span))
        else:
            self._out.append(Assign(target, op, value, self._span))

    def _unpack(self, targets: tuple[Var, ...], call: Call) -> None:
        """Results whose types are not those of the variables go through variables of their own."""
        is_moved = self._values.is_tensor_call(call)
        new: list[Var] = []
        later: list[tuple[Var, Expr]] = []
        for target, result in zip(targets, self._functions[call.function].results, strict=True):
            found = _moved(result) if is_moved else result
            wanted = self._variable(target)
            if isinstance(found, TensorType) != isinstance(wanted.type, TensorType):
                if target.name not in self._declared:
                    self._outermost.append(Declare(wanted, None, self._span))
                wanted = self._temporary(found)
                later.append((target, b.as_scalar(wanted)))
            self._declared.add(target.name)
            new.append(wanted)
        self._out.append(Unpack(tuple(new), self._call(call), self._span))
        for target, value in later:
            self._store(target, value)

    def _call_statement(self, call: Call) -> None:
        """Scalar functions change numbers of the host alone."""
        later: list[tuple[Var, Expr]] = []
        if not self._values.is_tensor_call(call):
            args = list(call.args)
            for k, param in enumerate(self._functions[call.function].params):
                arg = args[k]
                if param.mode == "Out" and isinstance(arg, Var) and self._is_number(arg):
                    own = self._temporary(param.type)
                    self._store(own, self._element(arg))
                    later.append((arg, own))
                    args[k] = own
            call = replace(call, args=tuple(args))
        self._out.append(CallStmt(self._call(call), self._span))
        for target, value in later:
            self._store(target, value)

    def _result(self, value: Expr, type_: Type, given: set[str]) -> Expr:
        """A result: no tensor of the caller's, and none twice."""
        if type_ != FLOAT or (isinstance(value, Call) and self._is_tensor(value)):
            return self._whole(value)
        if isinstance(value, Var) and value.name in self._declared - given:
            own = self._variable(value)
            if own.type == NUMBER:
                given.add(own.name)
                return own
        return self._named(self.value(b.as_scalar(value)), NUMBER)

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
                self._out.append(
                    IndexAssign(target, "=", b.select(cond, then, other), (), self._span)
                )
                return
            case _ if changed & free_variables(cond) or not isinstance(cond, Index):
                flag = self._named(b.truth(cond), FLAG)
                cond = b.as_scalar(flag)
        for block, holds in ((stmt.then, cond), (stmt.other, Unary("not", cond, INT))):
            guard = holds if around is None else b.binary("and", around, holds)
            for inner in block:
                self._span = inner.span
                if isinstance(inner, If):
                    self._select(inner, guard)
                    continue
                target, value = self._selected(inner)
                new = Select(guard, value, target, target.type)
                self._out.append(IndexAssign(target, "=", new, (), self._span))

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
                return self._element(target), _zero(target)
            case Assign(target, op, value) | IndexAssign(target, op, value):
                place = self._element(target) if isinstance(target, Var) else target
                assert isinstance(place, Index)
                new = self.value(value)
                return place, new if op == "=" else b.binary("+", place, new)
            case _:
                raise AssertionError(stmt)

    # ----------------------------------------------------------------------------- expressions

    def value(self, expr: Expr) -> Expr:
        """An int or a float. What an operator or a function gives for it has a name then."""
        match expr:
            case Var() if self._is_number(expr):
                return self._element(expr)
            case Index(base, subscripts) if isinstance(base.type, TensorType):
                places = tuple(map(self.value, subscripts))
                whole = self._whole(base)
                if not isinstance(base, Var) and self._can_be_apart(base):
                    named = self._named(whole, base.type)
                    if named is whole:  # its sizes are not those of a variable
                        element = replace(expr, base=whole, subscripts=places)
                        return self._named(element, expr.type)
                    whole = named
                return replace(expr, base=whole, subscripts=places)
            case Call() if self._values.is_tensor_call(expr):
                whole = self._call(expr)
                apart = self._can_be_apart(expr)
                return b.as_scalar(self._named(whole, whole.type) if apart else whole)
            case Reduce(_, _, axes):
                with self._under(axis.name for axis in axes):
                    return map_guarded(expr, self._guarded)
            case _:
                return map_guarded(expr, self._guarded)

    def _guarded(self, expr: Expr, guard: Expr | None) -> Expr:
        around = self._guard
        if guard is not None:
            self._guard = guard if around is None else b.binary("and", around, guard)
        new = self.value(expr)
        self._guard = around
        return new

    @contextmanager
    def _under(self, axes: Iterator[str]) -> Iterator[None]:
        around = self._axes
        self._axes = around.union(axes)
        yield
        self._axes = around

    def _can_be_apart(self, expr: Expr) -> bool:
        """Whether a statement before can evaluate it."""
        guard = frozenset() if self._guard is None else free_variables(self._guard)
        return not self._axes & (free_variables(expr) | guard)

    def _whole(self, expr: Expr) -> Expr:
        """A value of any type: of calls those on the device."""
        match expr:
            case Var() if isinstance(expr.type, TensorType):
                return expr
            case Call() if self._values.is_tensor_call(expr):
                return self._call(expr)
            case NoDiff(operand) if isinstance(expr.type, TensorType):
                return self._whole(operand)
            case Op():
                return self._operator(expr)
            case _:
                return self.value(expr)

    def _operator(self, op: Op) -> Op:
        """An operator, to which numbers of the device are operands as they are where it is of the
        same type then."""
        attrs = map_attrs(op.attrs, self.value)
        moved = [
            k for k, arg in enumerate(op.args) if arg.type == FLOAT and self._values.is_device(arg)
        ]
        dummy = Var("", NUMBER)
        args = tuple(dummy if k in moved else arg for k, arg in enumerate(op.args))
        try:
            fits = b.operator(op.name, args, dict(op.attrs), op.span).type == op.type
        except errors.UserError:
            fits = False
        new = tuple(
            self._number(arg) if fits and k in moved else self._whole(arg)
            for k, arg in enumerate(op.args)
        )
        return replace(op, args=new, attrs=attrs)

    def _call(self, call: Call) -> Call:
        """A call, with tensors for the numbers where the function takes them."""
        is_moved = self._values.is_tensor_call(call)
        params = self._functions[call.function].params
        changed = {root(a) for a, p in zip(call.args, params, strict=True) if p.mode == "Out"}
        args: list[Expr] = []
        for arg, param in zip(call.args, params, strict=True):
            if param.mode == "Out":
                args.append(self._variable(arg) if isinstance(arg, Var) else arg)
            elif is_moved and param.type == FLOAT:
                args.append(self._number(arg, changed))
            else:
                args.append(self._whole(arg))
        return replace(call, args=tuple(args), type=_moved(call.type) if is_moved else call.type)

    def _number(self, expr: Expr, changed: set[str] | frozenset[str] = frozenset()) -> Expr:
        """A float as a 0-dim tensor, which is none of these."""
        own = expr.base if isinstance(expr, Index) and b.is_rank0(expr.base.type) else expr
        if isinstance(own, Var) and own.name not in changed:
            own = self._variable(own)
            if own.type == NUMBER:
                return own
        return self._named(self.value(b.as_scalar(expr)), NUMBER)

    # ------------------------------------------------------------------------------- variables

    def _is_number(self, var: Var) -> bool:
        return var.name in self._values.numbers and var.type in (FLOAT, INT)

    def _is_tensor(self, call: Call) -> bool:
        """Whether what a call gives is a number of the device."""
        return self._values.is_tensor_call(call) and isinstance(_moved(call.type), TensorType)

    def _variable(self, var: Var) -> Var:
        if not self._is_number(var):
            return var
        return replace(var, type=NUMBER if var.type == FLOAT else FLAG)

    def _element(self, var: Var) -> Index:
        return Index(self._variable(var), (), var.type, var.span)

    def _place(self, target: Place) -> Place:
        match target:
            case Var() if self._is_number(target):
                return self._element(target)
            case Index(_, subscripts):
                return replace(target, subscripts=tuple(map(self.value, subscripts)))
            case _:
                return target

    def _temporary(self, type_: Type) -> Var:
        var = Var(self._names.fresh("_number"), type_, self._span)
        self._outermost.append(Declare(var, None, self._span))
        return var

    def _named(self, value: Expr, type_: Type) -> Expr:
        """A variable of that type with the value, where the block at hand goes on; the value itself
        if the type has sizes that are not known at the function's outermost block."""
        known = reads_of_type(type_) <= self._given | self._declared
        if not known:
            return value
        var = self._temporary(type_)
        if isinstance(type_, TensorType) and not isinstance(value.type, TensorType):
            element = Index(var, (), INT if type_.integer else FLOAT)
            stmt: Stmt = IndexAssign(element, "=", value, (), self._span)
        else:
            stmt = Assign(var, "=", value, self._span)
        self._out.append(stmt if self._guard is None else If(self._guard, (stmt,), (), self._span))
        return var


def _zero(target: Var) -> Expr:
    return FloatConst(0.0) if target.type == FLOAT else IntConst(0)
