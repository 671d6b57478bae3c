"""What the parts of reverse mode on a scalar function share: names, types, adjoint variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from loma.ad.scalar.hoist import Normal
from loma.core import builder as b
from loma.core.ir import (
    INT, ArrayType, Assign, AtomicAdd, Declare, Expr, FloatType, For, Function, Index, IntConst,
    IntType, Member, Place, Stmt, Struct, StructType, Type, Var, Zero, replace,
)  # fmt: skip
from loma.core.unbounded import is_unbounded
from loma.core.walk import root
from loma.passes.liveness import Modes


@dataclass(frozen=True, slots=True)
class Callee:
    """The reverse derivative of a called function, in the form that calls use.

    ``function`` takes, for each argument of the primal, its value and its adjoint, an ``Out``
    argument. For an ``Out`` argument of the primal these are the value on entry, and the adjoint of
    the value on exit, which becomes the one on entry (``In`` where both are the same). The adjoints
    of the results come last. ``values`` and ``adjoints`` are the positions of the primal's
    arguments whose value or adjoint is taken at all; ``needed`` those whose values are read.
    """

    function: Function
    values: frozenset[int]
    adjoints: frozenset[int]
    needed: frozenset[int]


@dataclass(frozen=True, slots=True)
class Variant:
    """What the place of a call asks of the derivative of the called function.

    ``shared``: several work items add to the adjoints of its arguments. ``fresh``: the positions of
    ``Out`` arguments that were never used before the call, so that the adjoint of what they held
    does not count.
    """

    shared: bool = False
    fresh: frozenset[int] = frozenset()


MakeCallee: TypeAlias = Callable[[str, Variant], Callee]


@dataclass(slots=True)
class Context:
    """The state of differentiating one function in normal form.

    ``read_only`` are the primal variables whose adjoints the derivative may not write to and cannot
    copy: ``Out`` arrays of unknown length in the form that programs use.

    ``adjoints`` maps a primal variable to the variable that holds its adjoint; adjoints of locals
    are added, with their declarations, when they are first asked for. ``shared`` are the primal
    variables whose adjoints several work items add to. ``make_callee`` gives a variant of the
    derivative of a called function, ``modes`` how a function uses its arguments.
    """

    normal: Normal
    structs: Mapping[str, Struct]
    functions: dict[str, Function]
    active: set[str]
    adjoints: dict[str, Var]
    shared: set[str]
    make_callee: MakeCallee
    modes: Modes
    read_only: set[str] = field(default_factory=set)
    declarations: list[Stmt] = field(default_factory=list)
    _seeds: dict[Type, Var] = field(default_factory=dict)
    _zeros: dict[Type, Var] = field(default_factory=dict)

    def is_active(self, name: str) -> bool:
        return name in self.active

    # ----------------------------------------------------------------------------- variables

    def new(self, wish: str, type_: Type) -> Var:
        """A name for a variable that somebody else declares."""
        var = Var(self.normal.names.fresh(wish), type_)
        self.normal.types[var.name] = type_
        return var

    def declare(self, wish: str, type_: Type) -> Var:
        """A variable that is declared, as zero, at the top of the function."""
        var = self.new(wish, type_)
        self.declarations.append(Declare(var, None))
        return var

    def zero(self, type_: Type) -> Var:
        """A variable that is never written, for where a value of the type does not count."""
        if type_ not in self._zeros:
            self._zeros[type_] = self.declare("_zero", type_)
        return self._zeros[type_]

    def seed(self, type_: Type) -> Var:
        """The variable that holds an adjoint while the place that it comes from is cleared."""
        if type_ not in self._seeds:
            suffix = f"_{type_.name.lstrip('_')}" if isinstance(type_, StructType) else ""
            self._seeds[type_] = self.declare(f"_g{suffix}", type_)
        return self._seeds[type_]

    def adjoint_of(self, name: str) -> Var:
        """The adjoint variable of a primal variable."""
        if name not in self.adjoints:
            wish = f"_d_{name.lstrip('_')}"
            self.adjoints[name] = self.declare(wish, self.normal.types[name])
        return self.adjoints[name]

    def adjoint(self, place: Expr) -> Place:
        """The place of a place's adjoint."""
        match place:
            case Var(name):
                return self.adjoint_of(name)
            case Index(base) | Member(base):
                return replace(place, base=self.adjoint(base))
            case _:
                raise AssertionError(place)

    def is_shared(self, place: Expr) -> bool:
        return root(place) in self.shared

    def is_unbounded(self, type_: Type) -> bool:
        """Whether only the caller knows how much there is of a value of that type."""
        return is_unbounded(type_, self.structs)

    # ---------------------------------------------------------------------------- statements

    def clear(self, place: Place) -> list[Stmt]:
        """Sets an adjoint to zero."""
        match place.type:
            case IntType():
                return []
            case FloatType():
                return [Assign(place, "=", b.flt(0))]
            case _:
                return [Zero(place)]

    def accumulate(self, place: Place, amount: Expr, shared: bool) -> list[Stmt]:
        """Adds to an adjoint: a number, or a place of the same type leaf by leaf."""
        match place.type:
            case IntType():
                return []
            case FloatType():
                return [AtomicAdd(place, amount) if shared else Assign(place, "+=", amount)]
            case StructType(name):
                out: list[Stmt] = []
                for member, type_ in self.structs[name].members:
                    part, more = Member(place, member, type_), Member(amount, member, type_)
                    out += self.accumulate(part, more, shared)
                return out
            case ArrayType(element, int(count)):
                counter = self.new("_k", INT)
                item, other = (Index(e, (counter,), element) for e in (place, amount))
                body = self.accumulate(item, other, shared)
                return [For(counter.name, IntConst(count), tuple(body))] if body else []
            case _:
                raise AssertionError(f"no values of type {place.type}")
