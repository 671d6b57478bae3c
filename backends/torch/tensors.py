"""Expressions outside loop nests: scalars, tensors, operators, calls.

Also where a value may share storage with a variable, so that writing in place never shows through
another name.
"""

from __future__ import annotations

from dataclasses import replace

from loma import errors
from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, data
from loma.backends.cfamily.cpp import (
    Expressions, body_name, element_type, scalar_type, value_type,
)  # fmt: skip
from loma.backends.cfamily.names import cpp_string
from loma.backends.torch import ops
from loma.core import sizes
from loma.core.bounds import ONE, ZERO
from loma.core.ir import (
    INT, Assign, Call, Declare, Expr, Function, If, Index, IntConst, NoDiff, Op, Stmt, TensorType,
    Var, ZeroPad,
)  # fmt: skip
from loma.core.ops import OPS
from loma.core.walk import blocks, free_variables, mentioned_names

_BROADCASTING = {"matmul", *(op.name for op in OPS.values() if op.work == "elementwise")}


class Host(Expressions):
    """Expressions of a function's own statements, evaluated one at a time."""

    context: CppContext

    def __init__(self, context: CppContext) -> None:
        super().__init__(context)
        self.later: set[str] = set()  # variables whose values are computed where they are read
        self._handed_on = _handed_on(context.function, context.mutated)
        context.host = self

    # --------------------------------------------------------------------------------- scalars

    def variable(self, var: Var) -> c.Expression:
        scalar_type(var.type, var.span)
        name = c.Token(self.context.variable(var))
        return c.Call(name) if var.name in self.later else name

    def index(self, read: Index) -> c.Expression:
        if not isinstance(read.base.type, TensorType):
            scalar_type(read.base.type, read.span)
        assert isinstance(read.base.type, TensorType)
        base = c.Token(self.tensor(read.base))
        number, value = element_type(read.base.type), value_type(read.base.type)
        if isinstance(read.base, Var) and self._has_pointer(read.base):
            return self._element_by_pointer(read, read.base)
        if read.subscripts:
            subscripts = c.Braces("", tuple(self.value(s, INT) for s in read.subscripts))
            name = self.context.show(read.base) if isinstance(read.base, Var) else "the value"
            texts = (c.Token(cpp_string(text)) for text in (self.place(read.span), name))
            found = c.call(f"loma::element<{number}>", base, subscripts, *texts)
        else:
            found = c.call(f"loma::item<{number}>", base)
        # Sums of C++'s own bool would have 32 bits.
        return found if value == number else c.call(value, found)

    def _has_pointer(self, base: Var) -> bool:
        """Whether what is written stands in a loop that finds the tensor by its pointer."""
        context = self.context
        if context.captured is not None or context.looked_up is not None:
            return True
        # In a kernel, those that keep their memory while it runs, whole.
        return context.pointers is not None and (
            base.name in context.steady and base.name not in context.pointers
        )

    def _element_by_pointer(self, read: Index, base: Var) -> c.Expression:
        """An element that a loop looks at which finds tensors by their pointers."""
        context = self.context
        pointer = f"{context.variable(base)}_data_"
        if context.looked_up is not None:
            context.looked_up.setdefault(base.name, (pointer, base))
        else:
            pointer = data(context, base, False)[1]
        assert isinstance(base.type, TensorType)
        sized = [
            c.Braces("loma::At", (self.value(dim, INT), self.value(at, INT)))
            for dim, at in zip(context.dims(base), read.subscripts, strict=True)
        ]
        texts = (cpp_string(text) for text in (self.place(read.span), context.show(base)))
        given: list[c.Expression] = [c.Token(pointer), *map(c.Token, texts), *sized]
        name = "element_of" if context.captured is None else "element"
        return c.call(f"loma::{name}<{value_type(base.type)}>", *given)

    def zero_pad(self, pad: ZeroPad) -> c.Expression:
        base, tests = c.Token(self.tensor(pad.read.base)), []
        for k, subscript in enumerate(pad.read.subscripts):
            found, size = self.value(subscript, INT), c.Call(c.Member(base, "size"), (c.number(k),))
            tests += [c.Binary(">=", found, c.number(0)), c.Binary("<", found, size)]
        zero = self.value(IntConst(0), pad.type)
        return c.Conditional(c.chain("&&", tests), self.index(pad.read), zero)

    def tensor_call(self, call: Call) -> c.Expression:
        return c.call(f"{body_name(call.function)}<real>", *self.arguments(call))

    # --------------------------------------------------------------------------------- tensors

    def _value(self, expr: Expr) -> c.Expression:
        is_tensor = isinstance(expr.type, TensorType)
        return c.Token(self.tensor(expr)) if is_tensor else super()._value(expr)

    def tensor(self, expr: Expr) -> str:
        """A tensor expression as C++ that needs no parentheses."""
        match expr:
            case Var():
                return self.context.variable(expr)
            case NoDiff(operand):
                return self.tensor(operand)
            case Call():
                return c.text(self.tensor_call(expr))
            case Op():
                return self._operator(expr)
            case _:
                raise errors.BackendLacksOperator(
                    "the libtorch backend cannot compile this tensor expression", expr.span
                )

    def _operand(self, op: Op, arg: Expr) -> str:
        """A BoolTensor is widened where ints are wanted of it, and not only its elements."""
        text = self.tensor(arg)
        keeps = isinstance(op.type, TensorType) and op.type.element == "bool"
        keeps = keeps or (op.name == "where" and arg is op.args[0])
        is_bool = isinstance(arg.type, TensorType) and arg.type.element == "bool"
        return f"{text}.to(at::kLong)" if is_bool and not keeps else text

    def _operator(self, op: Op) -> str:
        row = ops.row(op)
        lowered = self._lowered(op)
        match op.args:
            case (Op("argsort") as order,) if (count := _first_of(op, order)) is not None:
                some = c.item_text(self.value(count, INT))
                found = f"loma::first_sorted($0, $dim, $descending, {some})"
                lowered = replace(lowered, args=(self._lowered(order).fill(found),))
            case _:
                pass
        text, place = row.emit(lowered), lowered.place
        if _may_refuse(op):
            where = cpp_string(f"{place}in '{self.context.shown(op)}': ")
            text = f"loma::located({where}, [&] {{ return {text}; }})"
        if op.name in _BROADCASTING and not _provable(op):
            where = f"{place}the result of '{op.name}'"
            return self.shaped(text, op.type, where)
        return text

    def _lowered(self, op: Op) -> ops.Lowered:
        args = tuple(
            self._operand(op, arg) if isinstance(arg.type, TensorType)
            else c.item_text(self.value(arg))
            for arg in op.args
        )  # fmt: skip
        place = self.context.place(self.context.line(op.span))
        return ops.Lowered(op, args, lambda e: c.item_text(self.value(e, INT)), place)

    def added(self, target: Var, value: Expr) -> str:
        """A call that adds a tensor to a variable of its sizes: only to a part of it where the rest
        of the value is zero, so that a loop over slices does not take quadratic time."""
        name = self.context.variable(target)
        match value:
            case Op("slice_into") if target.name not in free_variables(value):
                return ops.add_slice(name, self._lowered(value))
            case _:
                return f"{name}.add_({self.apart(target, value)})"

    def apart(self, target: Var, value: Expr) -> str:
        """A tensor that can be added to a variable in place: a copy where it is a view of that."""
        text = self.tensor(value)
        own = value != target and target.name in alias_roots(value)
        return f"loma::copy({text})" if own else str(text)

    def shaped(self, text: str, type_: object, place: str) -> str:
        """The tensor, with a check of its sizes where the type knows them."""
        if not isinstance(type_, TensorType) or type_.dims is None:
            return text
        return f"loma::shaped({text}, {self.shape(type_)}, {cpp_string(place)})"

    def shape(self, type_: TensorType) -> str:
        dims = sizes.dims_in(type_)
        return c.text(c.Braces("", tuple(self.value(dim, INT) for dim in dims)))

    def allocate(self, type_: TensorType, function: str) -> str:
        """``loma::zeros`` or ``loma::empty`` of a type."""
        return f"loma::{function}({self.shape(type_)}, loma::options<{element_type(type_)}>())"

    def stored(self, target: str, expr: Expr) -> str:
        """A tensor value as variable ``target`` may hold it: unshared where one of the names is
        written in place and goes on to be used, contiguous where its elements are used one by
        one."""
        text, context = self.tensor(expr), self.context
        roots = alias_roots(expr)
        shared = roots and (target in context.mutated or roots & context.mutated)
        if shared and (target, roots) not in self._handed_on:
            if isinstance(expr, Call):  # may turn out to be nobody else's
                return f"loma::own({text})"
            return f"loma::copy({text})"
        return f"loma::dense({text})" if target in context.dense else text


def _handed_on(function: Function, mutated: set[str]) -> list[tuple[str, set[str]]]:
    """Variables that take the storage of another one, which nothing mentions afterwards. It is
    written in place, so that it shares its storage with no third one."""
    params = {param.name for param in function.params}
    last: list[tuple[str, set[str]]] = []
    shared: list[tuple[str, set[str]]] = []

    def visit(body: tuple[Stmt, ...], after: frozenset[str]) -> None:
        for stmt in reversed(body):
            own = mentioned_names((stmt,))
            match stmt:
                case Declare(Var(target), Op() as value) | Assign(Var(target), "=", Op() as value):
                    roots = alias_roots(value)
                    is_free = len(roots) == 1 and roots <= mutated - params - after - {target}
                    (last if is_free else shared).append((target, roots))
                case If(_, then, other):
                    visit(then, after)
                    visit(other, after)
                case _:
                    for block in blocks(stmt):
                        visit(block, after | own)
            after |= own

    visit(function.body, frozenset())
    return [pair for pair in last if pair not in shared]


def alias_roots(expr: Expr) -> set[str]:
    """The variables that a tensor value may share its storage with."""
    match expr:
        case Var(name):
            return {name}
        case NoDiff(operand):
            return alias_roots(operand)
        case Op(name) if OPS[name].shares:
            return alias_roots(expr.args[0])
        case Call(_, args):
            tensors = [arg for arg in args if isinstance(arg.type, TensorType)]
            return {name for arg in tensors for name in alias_roots(arg)}
        case _:
            return set()


def _first_of(op: Op, order: Op) -> Expr | None:
    """How many positions a slice takes of those of an order, if it takes the first ones."""
    attrs = dict(op.attrs)
    if op.name != "slice" or not isinstance(attrs["end"], Expr):
        return None
    same = attrs["dim"] == dict(order.attrs)["dim"]
    return attrs["end"] if same and (attrs["start"], attrs["step"]) == (ZERO, ONE) else None


def _may_refuse(op: Op) -> bool:
    """Whether ATen may find that sizes disagree; what it says then knows nothing of the program."""
    tensors = [arg.type.dims for arg in op.args if isinstance(arg.type, TensorType)]
    match op.name, tensors:
        case "reshape", [None]:
            return True
        case "reshape", [dims]:
            return not sizes.equal(sizes.product(dims or ()), sizes.product(sizes.dims_of(op)))
        case "matmul", [left, right]:
            if not (left and right and _provable(op)):
                return True
            return not sizes.equal(left[-1], right[-2])
        case "linear", [left, right, *_]:
            return not (left and right and sizes.equal(left[-1], right[-1]))
        case name, _ if OPS[name].divides and isinstance(op.type, TensorType) and op.type.integer:
            return True  # division by zero
        case name, [_, _, *_] if not OPS[name].internal:
            return name not in _BROADCASTING or not _provable(op)
        case _:
            return op.name == "expand_like"


def _provable(op: Op) -> bool:
    """Whether broadcasting gives the operator's type for all sizes."""
    assert isinstance(op.type, TensorType)
    if op.type.dims is None:
        return True
    out = op.type.dims
    if op.name == "matmul":
        out = out[:-2]
    for arg in op.args:
        if not isinstance(arg.type, TensorType) or arg.type.dims is None:
            continue
        dims = arg.type.dims[:-2] if op.name == "matmul" else arg.type.dims
        for have, want in zip(reversed(dims), reversed(out), strict=False):
            if have != IntConst(1) and sizes.equal(have, want) is not True:
                return False
    return True
