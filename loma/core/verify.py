"""Re-checks a module: what every stage may rely on, and must leave behind.

A violation is a mistake of the compiler, never of the program, so it is no ``UserError``. Types are
recomputed with :mod:`loma.core.builder`; sizes count as equal unless they provably differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from loma.core.ir import (
    FLOAT, INT, ArrayType, Assign, AtomicAdd, Call, CallStmt, Declare, Expr, For, Function, If,
    Index, IndexAssign, Module, Place, Pop, Push, Return, StackType, Stmt, Struct, StructType,
    TensorType, TupleType, Type, Unpack, Var, While, Zero,
)  # fmt: skip
from loma.core.sizes import size_variables
from loma.core.unbounded import is_unbounded
from loma.core.verify_expressions import Expressions, VerificationError, unique
from loma.core.walk import free_variables

__all__ = ["VerificationError", "verify"]


def verify(module: Module) -> None:
    """Raises VerificationError unless the module is well formed."""
    unique([s.name for s in module.structs], "struct", module.name)
    structs: dict[str, Struct] = {}
    for struct in module.structs:
        _verify_struct(struct, structs)
        structs[struct.name] = struct
    unique([f.name for f in module.functions], "function", module.name)
    # a derivative may be called before AD has made it
    promised = {derivative.name for derivative in module.derivatives}
    known: dict[str, Function] = {}
    every = {function.name for function in module.functions}
    for function in module.functions:
        _Statements(function, known, promised - every, structs).run()
        known[function.name] = function


def _verify_struct(struct: Struct, earlier: dict[str, Struct]) -> None:
    unique([name for name, _ in struct.members], "member", struct.name)
    for name, type_ in struct.members:
        element = type_
        while isinstance(element, ArrayType):
            element = element.element
        if element not in (INT, FLOAT) and not (
            isinstance(element, StructType) and element.name in earlier
        ):
            raise VerificationError(f"{struct.name}: the member '{name}' has no type for a member")


@dataclass(slots=True)
class _Statements(Expressions):
    # ------------------------------------------------------------------------------- functions

    def run(self) -> None:
        function = self.function
        unique([p.name for p in function.params], "parameter", function.name)
        self.scope |= {param.name: (param.type, param.mode) for param in function.params}
        self.scope |= dict.fromkeys(size_variables(function), (INT, "size"))
        for param in function.params:
            self.check_type(param.type)
            tensor = function.simd and isinstance(param.type, TensorType)
            self.require(not tensor, "a tensor among the parameters of a simd function")
        self.require(not (function.simd and function.results), "a simd function with results")
        for type_ in function.results:
            self.check_type(type_)
            self.require(not isinstance(type_, ArrayType), "an array among the results")
        last = function.body[-1] if function.body else None
        ends = isinstance(last, Return) == bool(function.results)
        self.require(ends, "a function ends in a return exactly when it has results")
        self.block(function.body, outermost=True)

    # ------------------------------------------------------------------------------ statements

    def block(self, body: tuple[Stmt, ...], outermost: bool = False) -> None:
        for position, stmt in enumerate(body):
            self.stmt = stmt
            if isinstance(stmt, Declare):
                self.require(outermost, "a declaration inside a block")
            if isinstance(stmt, Return):
                last = position == len(body) - 1
                self.require(outermost and last, "a return that is not the last statement")
            self.statement(stmt, outermost)

    def statement(self, stmt: Stmt, outermost: bool) -> None:
        match stmt:
            case Declare(target, value):
                if isinstance(target.type, StackType):
                    self.check_stack(target.type, value)
                else:
                    self.check_type(target.type)
                sized = not is_unbounded(target.type, self.structs)
                self.require(sized, "a local array without a size")
                if value is not None:
                    self.fits(self.expr(value), target.type)
                self.declare(target)
            case Assign(target, op, value):
                self.whole_place(target)
                sized = not is_unbounded(target.type, self.structs)
                self.require(sized, "an array without a size is assigned")
                adds = isinstance(target.type, TensorType) or target.type in (INT, FLOAT)
                self.require(op == "=" or adds, "'+=' on neither a number nor a tensor")
                self.fits(self.expr(value), target.type)
            case IndexAssign():
                self.index_assign(stmt)
            case Unpack(targets, call):
                self.unpack(targets, call, outermost)
            case Zero(target):
                self.whole_place(target)
            case Push(stack, value):
                element = self.stack(stack)
                self.require(self.expr(value) == element, "the value is not of the stack's type")
            case Pop(stack, target):
                element = self.stack(stack)
                self.whole_place(target)
                self.require(target.type == element, "the target is not of the stack's type")
            case AtomicAdd(target, value):
                self.whole_place(target)
                self.require(target.type in (INT, FLOAT), "atomic_add to no number")
                fits = self.scalar(value) == INT or target.type == FLOAT
                self.require(fits, "atomic_add of a float to an int")
            case If(cond, then, other):
                self.condition(cond)
                self.block(then)
                self.block(other)
            case While(cond, max_iter, body):
                self.condition(cond)
                self.require(max_iter > 0, "a max_iter that is not positive")
                self.block(body)
            case For(name, extent, body):
                self.require(self.expr(extent) == INT, "the range of a loop is no int")
                self.require(name not in self.scope, f"the counter '{name}' hides a variable")
                with self.inside([name], "counter"):
                    self.block(body)
            case CallStmt(call):
                self.called(call)
            case Return(values):
                results, count = self.function.results, len(values)
                self.require(count == len(results), f"{count} values for {len(results)} results")
                for value, type_ in zip(values, results, strict=True):
                    self.fits(self.expr(value), type_)
            case _:
                assert_never(stmt)

    def declare(self, target: Var) -> None:
        self.require(target.name not in self.scope, f"'{target.name}' is declared already")
        self.scope[target.name] = (target.type, "local")

    def check_stack(self, type_: StackType, value: Expr | None) -> None:
        element = type_.element
        self.check_type(element)
        fixed = not isinstance(element, TensorType) and not is_unbounded(element, self.structs)
        self.require(fixed, "a stack of what has no fixed size")
        self.require(type_.capacity is None or type_.capacity > 0, "a stack of no capacity")
        self.require(value is None, "a stack with an initial value")

    def stack(self, stack: Var) -> Type:
        """The type of a stack's elements."""
        type_, _ = self.scope.get(stack.name, (None, None))
        if not isinstance(type_, StackType):
            raise self.fail(f"'{stack.name}' is no stack")
        self.require(type_ == stack.type, f"`{stack.name}` says that it is another stack")
        return type_.element

    def whole_place(self, target: Place) -> None:
        """A place that a statement writes, other than an index statement."""
        self.place(target)
        element = isinstance(target, Index) and isinstance(target.base.type, TensorType)
        self.require(not element, "an element of a tensor is assigned by an index statement")

    def condition(self, cond: Expr) -> None:
        self.require(self.expr(cond) in (INT, FLOAT), "a condition that is no int or float")

    def unpack(self, targets: tuple[Var, ...], call: Call, outermost: bool) -> None:
        type_ = self.called(call)
        self.require(len({t.name for t in targets}) == len(targets), "a target twice")
        if call.function in self.known:
            if not isinstance(type_, TupleType):
                raise self.fail("only several results are taken apart")
            self.require(len(type_.items) == len(targets), "not one target for each result")
            for target, item in zip(targets, type_.items, strict=True):
                self.fits(item, target.type)
        for target in targets:
            if target.name in self.scope:
                self.place(target)
            else:
                self.require(outermost, f"'{target.name}' is not declared")
                self.check_type(target.type)
                self.declare(target)

    # ------------------------------------------------------------------------ index statements

    def index_assign(self, stmt: IndexAssign) -> None:
        names = [axis.name for axis in stmt.axes]
        unique(names, "axis", self.function.name)
        for k, axis in enumerate(stmt.axes):
            # A range may follow from axes before it where elements are known to be distinct.
            with self.inside(names[: k * stmt.distinct], "axis"):
                type_ = self.expr(axis.extent)
            self.require(type_ == INT, f"the range of '{axis.name}' is no int")
            self.require(axis.name not in self.scope, f"the axis '{axis.name}' hides a variable")
        target = stmt.target
        match target:
            case Var():
                self.require(stmt.op == "+=", "only '+=' sums into a variable")
                number = target.type in (FLOAT, INT)
                self.require(number, "the target is neither element nor number")
            case Index(Var(_, TensorType())):
                pass
            case _:
                raise self.fail("the target is no element of a tensor")
        with self.inside(names, "axis"):
            self.place(target)
            self.fits(self.expr(stmt.value), target.type)
        self.axes_complete(stmt)

    def axes_complete(self, stmt: IndexAssign) -> None:
        """Axes: the target's in order of first appearance, then those only on the right."""
        names = [axis.name for axis in stmt.axes]
        own = free_variables(stmt.target)
        in_target = [name for name in names if name in own]
        rest = names[len(in_target) :]
        begins = names == in_target + rest
        self.require(begins, f"the axes {names} do not begin with the target's {in_target}")
        self.require(stmt.op == "+=" or not rest, f"'=' cannot sum over {rest}")
        used = free_variables(stmt.value)
        self.require(used.issuperset(rest), f"no use of an axis among {rest}")
