"""Which numbers of a tensor function depend on what only the device knows.

These are its float parameters, elements of tensors, sums and other reductions, what functions on
tensors give, and every float variable that has one of these in a value. An int stays the host's:
it may be a size, the range of a loop or a place. Only a *flag* does not, which follows from such
numbers and is used for nothing but values and :meth:`DeviceValues.is_selected` branches.

A branch on such a condition need not be waited for if all that it does is to give numbers other
values: it is *selected*, ``s = 2.0 * s if cond else s`` on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loma.core.effects import counters, effects, out_places, written_places
from loma.core.ir import (
    FLOAT, INT, Assign, AtomicAdd, Call, CallStmt, Declare, Expr, For, Function, If, Index,
    IndexAssign, Op, Reduce, Stmt, TensorType, Unpack, Var, Zero, is_tensor_function,
)  # fmt: skip
from loma.core.names import axis_names
from loma.core.walk import (
    blocks, children, free_variables, reads_of_type, root, statements, walk,
)  # fmt: skip
from loma.passes.device.loops import loops_alone, own_variables


class DeviceValues:
    """``numbers`` are the names of the float variables, parameters and flags that are the device's,
    but for those that a loop which the device runs has for itself. The function's statements are
    numbered (:func:`loma.core.walk.numbered`)."""

    def __init__(self, function: Function, functions: Mapping[str, Function]) -> None:
        self._functions = functions
        self._body = tuple(statements(function.body))
        on_tensors = frozenset(f.name for f in functions.values() if is_tensor_function(f))
        kept = own_variables(function, on_tensors)
        alone = tuple(loops_alone(function.body, on_tensors))
        self._alone = {
            stmt.number
            for loop in alone
            for stmt in statements(loop.body if isinstance(loop, For) else (loop,))
        }
        changed = {root(place) for place in written_places(alone)}
        variables = {var.name: var for stmt in self._body for var in effects(stmt).declares}
        params = {param.name for param in function.params if param.type == FLOAT}
        floats = {name for name, var in variables.items() if var.type == FLOAT}
        ints = {name for name, var in variables.items() if var.type == INT}
        self._floats = (params | floats) - kept
        self._given = params | changed
        flags = self._candidates(ints) - kept - axis_names(function) - counters(function.body)
        self._find(flags)
        # A loop on the device cannot change what the host has.
        moved = changed.difference(*(reads_of_type(var.type) for var in variables.values()))
        while wrong := (flags & self.numbers & self._known_to_host()) - moved:
            flags -= wrong
            self._find(flags)

    def is_device(self, expr: Expr) -> bool:
        """Whether the value has to be waited for."""
        return any(self._is_source(node) for node in walk(expr))

    def is_selected(self, stmt: If) -> bool:
        """Whether the device can decide the branch by itself, and has to."""
        apart = stmt.number not in self._alone
        return apart and self.is_device(stmt.cond) and self._may_be_selected(stmt)

    def is_tensor_call(self, expr: Expr) -> bool:
        """Whether it is a call of a function on tensors."""
        return isinstance(expr, Call) and is_tensor_function(self._functions[expr.function])

    # ------------------------------------------------------------------------------------ parts

    def _find(self, flags: frozenset[str]) -> None:
        """The numbers, if these ints may be flags."""
        self._flags = flags
        able = self._floats | flags
        self.numbers = frozenset(self._given & able)
        grows = True
        while grows:
            found = {name for stmt in self._body for name in self._waited_for(stmt)}
            grows = not found & able <= self.numbers
            self.numbers |= found & able

    def _is_source(self, node: Expr) -> bool:
        match node:
            case Var(name):
                return name in self.numbers
            case Index(base):
                return isinstance(base.type, TensorType)
            case Reduce() | Op():
                return True
            case _:
                return self.is_tensor_call(node)

    def _waited_for(self, stmt: Stmt) -> Iterator[str]:
        """Variables whose new values the device knows."""
        match stmt:
            case Declare(Var(name), value) if value is not None and self.is_device(value):
                yield name
            case Assign(Var(name), _, value) | AtomicAdd(Var(name), value):
                if self.is_device(value):
                    yield name
            case IndexAssign(Var(name), _, value, axes):
                if axes or self.is_device(value):
                    yield name
            case Unpack(targets, call) if self.is_device(call):
                yield from (target.name for target in targets)
            case CallStmt(call) if self.is_device(call) or self.is_tensor_call(call):
                callee = self._functions[call.function]
                yield from (root(place) for place in out_places(call, callee))
            case If() if self.is_selected(stmt):
                yield from (root(t) for s in statements((stmt,)) for t in effects(s).writes)
            case _:
                pass

    def _may_be_selected(self, stmt: If) -> bool:
        return self._is_scalar(stmt.cond) and all(
            self._assigns_number(inner) for block in blocks(stmt) for inner in block
        )

    def _assigns_number(self, stmt: Stmt) -> bool:
        match stmt:
            case Assign(Var(name), _, value):
                return name in self._floats | self._flags and self._is_scalar(value)
            case IndexAssign(Index(Var(), ()), _, value, ()):
                return self._is_scalar(value)
            case Zero(Var(name)):
                return name in self._floats | self._flags
            case If():
                return self._may_be_selected(stmt)
            case _:
                return False

    def _is_scalar(self, expr: Expr) -> bool:
        """Whether a thread can compute it."""
        return not any(
            isinstance(node, Op | Reduce)
            or self.is_tensor_call(node)
            or (isinstance(node, Index) and not isinstance(node.base, Var))
            for node in walk(expr)
        ) and not isinstance(expr.type, TensorType)

    # ------------------------------------------------------------------------------------ flags

    def _candidates(self, ints: set[str]) -> frozenset[str]:
        """Those ints that only assignments of ints change."""
        ints = set(ints)
        for stmt in self._body:
            match stmt:
                case Declare(Var(name), value):
                    right = value is None or value.type == INT
                case Assign(Var(name), _, value) | IndexAssign(Var(name), _, value):
                    right = value.type == INT
                case Zero(Var(name)):
                    right = True
                case _:
                    ints -= {root(place) for place in effects(stmt).writes}
                    ints -= {var.name for var in effects(stmt).declares}
                    continue
            if not right:
                ints.discard(name)
        return frozenset(ints)

    def _known_to_host(self) -> set[str]:
        """Variables that stand where the host has to know what they are."""
        found: set[str] = set()
        selected = {
            inner.number
            for stmt in self._body
            if isinstance(stmt, If) and self.is_selected(stmt)
            for inner in statements((stmt,))
        }
        for stmt in self._body:
            if stmt.number in self._alone:
                continue
            match stmt:
                case Declare(Var(name, type_), value):
                    found |= reads_of_type(type_)
                    parts: tuple[Expr, ...] = () if value is None else (value,)
                    on_device = name in self.numbers
                case Assign(Var(name), _, value):
                    parts, on_device = (value,), name in self.numbers
                case IndexAssign(target, _, value, axes):
                    parts, on_device = (value,), True
                    places = target.subscripts if isinstance(target, Index) else ()
                    for expr in (*places, *(axis.extent for axis in axes)):
                        found |= free_variables(expr)
                case If(cond):
                    parts, on_device = (cond,), stmt.number in selected
                case _:
                    parts, on_device = effects(stmt).reads, False
            for expr in parts:
                found |= set(_places(expr)) if on_device else free_variables(expr)
        return found


def _places(expr: Expr) -> Iterator[str]:
    """Variables in subscripts, ranges and whole operations."""
    match expr:
        case Index(base, subscripts):
            yield from free_variables(base)
            for subscript in subscripts:
                yield from free_variables(subscript)
        case Reduce(_, body, axes):
            for axis in axes:
                yield from free_variables(axis.extent)
            yield from _places(body)
        case Op() | Call():
            yield from free_variables(expr)
        case _:
            for child in children(expr):
                yield from _places(child)
