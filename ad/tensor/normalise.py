"""Brings a tensor function to the normal form that both modes work on.

In normal form

* every operator and every call of a tensor function is a statement of its own whose arguments are
  variables (or scalar expressions), so that each intermediate tensor has a name and an adjoint;
* a reduction is the whole right side of an index statement: one that stands inside an expression is
  computed into a temporary over just the indices that it depends on, and only once where a
  statement names it twice; what might fail there stays under the conditions around it;
* conditions and trip counts are int variables or expressions that cannot change (that of ``while``
  is worked out before each pass);
* what is returned is a variable; an ``In`` scalar that the body reassigns is a local copy;
* every statement has a number of its own;
* the function is pure: an ``Out`` argument has become an ``In`` argument (its initial value), a
  local variable, and a further result (forward mode leaves ``Out`` arguments as they are).
"""

from __future__ import annotations

from dataclasses import dataclass

from loma import errors
from loma.ad.activity import carries_derivative
from loma.ad.rules import reads_value
from loma.ad.tensor.products import nested
from loma.core import builder as b
from loma.core.effects import assigned, out_places
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Call, CallStmt, Declare, Expr, FloatType, For, Function, If, Index,
    IndexAssign, IntType, Module, NoDiff, Op, Reduce, Return, Stmt, TensorType, Type, Unpack, Var,
    While, Zero, is_tensor_function, replace,
)  # fmt: skip
from loma.core.names import Names, names_of, with_own_indices
from loma.core.ops import OPS
from loma.core.printer import print_expr
from loma.core.sizes import bound_sizes, dims_of, is_arithmetic, size_variables
from loma.core.walk import (
    free_variables, map_expressions, numbered, substitute, substitute_type,
)  # fmt: skip
from loma.passes.canonical.hoisting import Hoisting


@dataclass(frozen=True, slots=True)
class Normal:
    """A function in normal form, the types of its variables, and the names it uses."""

    function: Function
    types: dict[str, Type]
    names: Names

    def fixed_ints(self) -> frozenset[str]:
        """Sizes and arguments: ints that have one value wherever a variable is declared."""
        params = {param.name for param in self.function.params if param.type == INT}
        written = params.intersection(assigned(self.function.body))
        return frozenset(params - written).union(size_variables(self.function))


def pure_results(function: Function) -> tuple[Type, ...]:
    """The results of the pure form: the function's own, then its ``Out`` arguments."""
    return function.results + tuple(p.type for p in function.params if p.mode == "Out")


def normalise(function: Function, module: Module, pure: bool = True) -> Normal:
    """The function in normal form; not ``pure``: it keeps its ``Out`` arguments and assigns to its
    ``In`` scalars, as forward mode does."""
    function = with_own_indices(function)
    names = Names(names_of(function))
    types: dict[str, Type] = {param.name: param.type for param in function.params}
    types |= dict.fromkeys(size_variables(function), INT)
    body = function.body
    results = [v for stmt in body if isinstance(stmt, Return) for v in stmt.values]
    body = tuple(stmt for stmt in body if not isinstance(stmt, Return))
    start: list[Stmt] = []
    renamed: dict[str, Expr] = {}
    outs: list[Expr] = []
    functions = {callee.name: callee for callee in module.functions}
    written = set(assigned(body, functions))
    for param in function.params:
        if pure and (param.mode == "Out" or param.name in written):
            local = Var(names.fresh(f"{param.name}_local"), param.type)
            types[local.name] = param.type
            renamed[param.name] = local
            start.append(Declare(local, Var(param.name, param.type)))
            if param.mode == "Out":
                outs.append(local)
    body = tuple(map_expressions(stmt, lambda e: substitute(e, renamed)) for stmt in body)
    results = [substitute(value, renamed) for value in results]
    written.update(assigned(body, functions))
    worker = _Normaliser(function, module, names, types, written, pure)
    out = start + worker.block(body, 0)
    returned: list[Expr] = []
    wanted = pure_results(function) if pure else function.results
    for value, type_ in zip(results + outs, wanted, strict=True):
        returned.append(worker.result(value, type_, out))
    if pure:
        params = tuple(replace(param, mode="In") for param in function.params)
        function = replace(function, params=params, results=wanted)
    if pure or returned:
        out.append(Return(tuple(returned)))
    return Normal(replace(function, body=numbered(tuple(out))), types, names)


def call_types(callee: Function, args: tuple[Expr, ...], results: tuple[Type, ...]) -> list[Type]:
    """Types of a callee's results in the caller's sizes; of unknown rank where those are."""
    sizes = bound_sizes(callee.params, args)
    for param, arg in zip(callee.params, args, strict=True):
        if isinstance(param.type, IntType):
            sizes[param.name] = arg
    out: list[Type] = []
    for type_ in results:
        if isinstance(type_, TensorType) and type_.dims is not None:
            names = {name for dim in type_.dims for name in free_variables(dim)}
            if names <= set(sizes):
                type_ = substitute_type(type_, sizes)
            else:
                type_ = replace(type_, dims=None)
        out.append(type_)
    return out


class _Normaliser(Hoisting):
    def __init__(
        self,
        function: Function,
        module: Module,
        names: Names,
        types: dict[str, Type],
        written: set[str],
        pure: bool,
    ) -> None:
        super().__init__(names, set(size_variables(function)))
        self._module = module
        self._types = types
        self._assigned = written
        self._known = {n for n, type_ in types.items() if type_ == INT} - written
        self._pure = pure
        self._tensor_functions = {f.name for f in module.functions if is_tensor_function(f)}

    def block(self, body: tuple[Stmt, ...], depth: int) -> list[Stmt]:
        outer, self._out = self._out, []
        outer_depth, self._depth = self._depth, depth
        done: list[Stmt] = []
        for stmt in body:
            self._out = []
            self._statement(stmt)
            if depth == 0:
                done += self._hoisted
                self._hoisted = []
            done += self._out
        self._out, self._depth = outer, outer_depth
        return done

    def result(self, value: Expr, type_: Type, out: list[Stmt]) -> Var:
        """A variable that holds a returned value; appends its computation to ``out``."""
        self._out, self._reductions, self._span = [], {}, value.span
        if isinstance(value, Var) and (value.type == type_ or isinstance(type_, TensorType)):
            return value
        if isinstance(type_, TensorType):
            var = self._atom(value)
            assert isinstance(var, Var)
        else:
            var = self._temporary(type_, "_result", self._scalar(value))
        out += self._hoisted + self._out
        self._hoisted = []
        return var

    # ---------------------------------------------------------------------------- temporaries

    def _temporary(self, type_: Type, wish: str, value: Expr | None) -> Var:
        var = super()._temporary(type_, wish, value)
        self._types[var.name] = type_
        return var

    def _prepared(self, expr: Expr) -> Expr:
        return nested(expr, self._known)

    def _without_room(self, reduce: Reduce, axis: Axis) -> Expr:
        raise errors.NotDifferentiable(
            f"this reduction is inside another one, whose range({print_expr(axis.extent)}) "
            "changes: it has no derivative", reduce.span,
            hint="write the outer sum as a '+=' in a 'for' statement: for k in range(n):",
        )  # fmt: skip

    def _statement(self, stmt: Stmt) -> None:
        self._reductions, self._span = {}, stmt.span
        match stmt:
            case Declare(target, value):
                self._types[target.name] = target.type
                new = None if value is None else self._value(value)
                self._out.append(replace(stmt, value=new))
            case Assign(Var(), op, value):
                new = self._value(value)
                if op == "+=" and (
                    self._is_tensor_call(new) or (isinstance(new, Op) and reads_value(new))
                ):
                    new = self._temporary(new.type, "_t", new)
                self._out.append(replace(stmt, value=new))
            case IndexAssign():
                self._out.append(self._hoisted_value(stmt))
            case Unpack(targets, call):
                for target in targets:
                    self._types.setdefault(target.name, target.type)
                self._out.append(replace(stmt, call=self._call(call)))
            case CallStmt(call):
                self._call_statement(stmt, call)
            case If(cond, then, other):
                cond = self._scalar(cond)
                if cond.type == FLOAT:
                    cond = b.binary("!=", cond, b.flt(0))
                if not isinstance(cond, Var) or cond.name in self._assigned:
                    cond = self._temporary(INT, "_taken", cond)
                    self._assigned.add(cond.name)
                branches = [tuple(self.block(body, self._depth + 1)) for body in (then, other)]
                self._out.append(replace(stmt, cond=cond, then=branches[0], other=branches[1]))
            case For(counter, extent, body):
                extent = self._scalar(extent)
                if not self._is_stable(extent):
                    extent = self._temporary(INT, "_trips", extent)
                    self._assigned.add(extent.name)
                self._counters[counter] = extent
                block = tuple(self.block(body, self._depth + 1))
                self._out.append(replace(stmt, extent=extent, body=block))
            case Zero():
                self._out.append(stmt)
            case While():
                self._while(stmt)
            case _:
                raise errors.NotDifferentiable(
                    "this statement has no derivative in a tensor function", stmt.span
                )

    def _while(self, stmt: While) -> None:
        """A condition that needs statements is worked out before each pass."""
        cond, body = stmt.cond, stmt.body
        if cond.type == FLOAT:
            cond = b.binary("!=", cond, b.flt(0))
        mark = len(self._out), len(self._hoisted)
        new = self._scalar(cond)
        if mark != (len(self._out), len(self._hoisted)):
            new = self._temporary(INT, "_again", new)
            self._assigned.add(new.name)
            body = (*body, Assign(new, "=", cond, cond.span))
        block = tuple(self.block(body, self._depth + 1))
        self._out.append(replace(stmt, cond=new, body=block))

    def _is_stable(self, expr: Expr) -> bool:
        """Whether an int expression is made of sizes and keeps its value for the whole call."""
        return is_arithmetic(expr) and not (free_variables(expr) & self._assigned)

    def _call_statement(self, stmt: CallStmt, call: Call) -> None:
        callee = self._module.function(call.function)
        if not any(param.mode == "Out" for param in callee.params):
            return  # what it computes goes nowhere
        if call.function not in self._tensor_functions or callee.results:
            raise errors.NotDifferentiable(
                f"the call of '{call.function}' as a statement has no derivative here", stmt.span,
                hint="give it results instead of Out arguments, and assign them",
            )  # fmt: skip
        if not self._pure:
            self._out.append(replace(stmt, call=self._call(call)))
            return
        outs = tuple(place for place in out_places(call, callee) if isinstance(place, Var))
        pure = self._call(replace(call, type=outs[0].type))
        if len(outs) == 1:
            self._out.append(Assign(outs[0], "=", pure, stmt.span))
        else:
            self._out.append(Unpack(outs, pure, stmt.span))

    # ------------------------------------------------------------------------------- values

    def _is_tensor_call(self, expr: Expr) -> bool:
        return isinstance(expr, Call) and expr.function in self._tensor_functions

    def _value(self, expr: Expr) -> Expr:
        """The right side of a whole assignment."""
        if isinstance(expr.type, TensorType) or self._is_tensor_call(expr):
            return self._tensor(expr)
        return self._scalar(expr)

    def _call(self, call: Call) -> Call:
        return replace(call, args=tuple(self._atom(arg) for arg in call.args))

    def _tensor(self, expr: Expr) -> Expr:
        match expr:
            case Op(_, (Op() as inner,)) if _is_part_of_ints(expr):
                # Of an order: a library may find no more of it.
                return replace(expr, args=(self._tensor(inner),))
            case Op(_, args):
                return replace(expr, args=tuple(self._atom(arg) for arg in args))
            case NoDiff(operand):
                return replace(expr, operand=self._atom(operand))
            case Call():
                return self._call(expr)
            case _:
                return expr

    def _atom(self, expr: Expr) -> Expr:
        """A tensor as a variable, a scalar as a scalar expression."""
        if not isinstance(expr.type, TensorType):
            if isinstance(expr.type, FloatType) and self._is_tensor_call(expr):
                return self._temporary(FLOAT, "_t", self._value(expr))
            return self._scalar(expr)
        if isinstance(expr, Var):
            return expr
        self._check_declarable(expr)
        return self._temporary(expr.type, "_t", self._tensor(expr))

    def _check_declarable(self, expr: Expr) -> None:
        """Refuses a tensor inside a loop that has another size in each iteration."""
        for dim in dims_of(expr):
            if self._depth and not free_variables(dim) <= self._known:
                raise errors.NotDifferentiable(
                    "a tensor whose size varies in a loop has no derivative here",
                    expr.span,
                    hint=b.VARYING_SIZE,
                )

    def _scalar(self, expr: Expr) -> Expr:
        """A scalar expression outside an index statement."""
        called = self._is_tensor_call(expr)
        needs = called or (isinstance(expr, Index) and not isinstance(expr.base, Var))
        if needs and self._guard is not None:
            var = self._temporary(expr.type, "_t", None)
            self._only_where(self._guard, lambda: Assign(var, "=", self._value(expr), self._span))
            return var
        if called:
            return self._temporary(expr.type, "_t", self._value(expr))
        match expr:
            case Index(base, subscripts) if not isinstance(base, Var):
                new = tuple(self._scalar(s) for s in subscripts)
                return replace(expr, base=self._atom(base), subscripts=new)
            case Reduce():
                return self._hoist(expr, {})
            case _:
                return self._map_children(expr, self._scalar)


def _is_part_of_ints(view: Op) -> bool:
    """Whether an operator is a view of what carries no derivative."""
    return OPS[view.name].work == "view" and not carries_derivative(view.args[0].type)
