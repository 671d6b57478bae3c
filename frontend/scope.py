"""What a function's body knows while it is read: names, indices, the other functions."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from loma import errors
from loma.core.differentials import primal_name, with_mentioned
from loma.core.ir import (
    INT, ArrayType, Assign, Call, Declare, Derivative, Expr, FloatConst, Function, Index, IntConst,
    Op, Reduce, StackType, Struct, StructType, TensorType, Type, Var, ZeroPad, is_tensor_function,
)  # fmt: skip
from loma.core.layout import Layout
from loma.core.names import Names
from loma.core.ops import divisor
from loma.core.sizes import dims_in, is_arithmetic
from loma.core.walk import free_variables, walk
from loma.errors.spans import Span
from loma.frontend import counter_names, foreign

Kind = Literal["In", "Out", "size", "local", "counter", "index"]
# What to do about a name that does not exist any more.
_ENDED: dict[Kind | None, str] = {
    "counter": "a loop's counter exists only inside the loop",
    "local": "what a block declares exists until the block ends: declare it before the block",
    "index": "an index exists only inside its statement or reduction",
}


def span_of(node: ast.AST) -> Span:
    """The stretch of text of a syntax node."""
    line, col = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
    end = getattr(node, "end_lineno", None) or line
    end_col = getattr(node, "end_col_offset", None)
    return Span(line, col, end, col if end_col is None else end_col)


def span_of_def(node: ast.FunctionDef | ast.ClassDef | Derivative) -> Span:
    """The stretch of ``def name`` or ``class name``; all of a derivative."""
    if isinstance(node, Derivative):
        return node.span
    word = "class " if isinstance(node, ast.ClassDef) else "def "
    end = node.col_offset + len(word) + len(node.name.encode())
    return Span(node.lineno, node.col_offset, node.lineno, end)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name of a function's body.

    ``extent`` is the range of a loop counter or an index. ``definition`` is the value of an int
    variable that is assigned once and depends on sizes only: in a tensor's type it stands for the
    variable. ``value`` is what the name means wherever it stands, if it is no variable of the IR.
    ``inferred``: declared by its first assignment, whose value gave it its type.
    """

    name: str
    type: Type
    kind: Kind
    span: Span
    extent: Expr | None = None
    definition: Expr | None = None
    value: Expr | None = None
    inferred: bool = False

    def describe(self) -> str:
        """What kind of thing the name is, for messages."""
        return {
            "In": "an argument", "Out": "an argument", "size": "a size variable",
            "local": "a variable", "counter": "a loop counter", "index": "an index",
        }[self.kind]  # fmt: skip


@dataclass(slots=True)
class Program:
    """What the functions of a module know of each other: structs and signatures.

    ``functions`` holds headers, bodies left empty, those of derivatives included; ``warnings``
    what was found that may not be meant. ``parts`` are the functions of one result that statements
    need, by the function with several and the position of the result.
    """

    structs: dict[str, Struct] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    warnings: list[errors.UserWarning] = field(default_factory=list)
    layout: Layout = field(default_factory=lambda: Layout(integer=4, real=4, array=8))
    parts: dict[tuple[str, int], str] = field(default_factory=dict)
    tensor_structs: set[str] = field(default_factory=set)  # names of structs with tensors
    names: Names = field(default_factory=Names)  # those that the text mentions, and further ones

    def part(self, function: str, position: int) -> str:
        """The name of the function that has one result of another one."""
        key = function, position
        if key not in self.parts:
            self.parts[key] = self.names.fresh(f"_{function.lstrip('_')}_{position}")
        return self.parts[key]

    def struct(self, name: str) -> Struct | None:
        """The struct of that name; a differential one exists as soon as it is asked for."""
        if name not in self.structs and primal_name(name, self.structs) is not None:
            self.mention(StructType(name))
        return self.structs.get(name)

    def mention(self, *types: Type) -> None:
        """Adds the structs of differential types."""
        self.structs = with_mentioned(types, self.structs)


@dataclass(slots=True)
class Scope:
    """The state of reading one function.

    ``reassigned`` maps names that get a value more than once in the text to the second such place.
    ``elementwise`` holds inside index statements and reductions, where expressions are scalar;
    ``guarded`` counts conditions around the expression, ``subscripts`` the brackets around it.
    ``calls`` collects the functions that are called, with the first place of each; ``ended`` the
    counters and indices that existed before; ``unassigned`` the tensors of unknown rank that were
    declared without a value and have got none since. ``before`` are statements that the one at hand
    needs before it, ``start`` declarations that the function needs at its start.
    """

    program: Program
    header: Function
    symbols: dict[str, Symbol] = field(default_factory=dict)
    reassigned: dict[str, Span] = field(default_factory=dict)
    calls: dict[str, Span] = field(default_factory=dict)
    ended: dict[str, Kind] = field(default_factory=dict)
    unassigned: set[str] = field(default_factory=set)
    depth: int = 0
    elementwise: bool = False
    guarded: int = 0
    subscripts: int = 0
    before: list[Declare | Assign] = field(default_factory=list)
    start: list[Declare] = field(default_factory=list)
    names: Names = field(default_factory=Names)  # those that the text mentions, and further ones
    hoisted: dict[str, Var] = field(default_factory=dict)  # declared in blocks that have ended
    kept: dict[str, Symbol] = field(default_factory=dict)  # that both branches of an 'if' declare
    counters: dict[str, str] = field(default_factory=dict)  # names of counts, by those in the text
    guarded_outside: int = 0  # conditions around the statement at hand

    def add(self, symbol: Symbol) -> None:
        """Declares a name; DuplicateVariable if it is taken."""
        first = self.symbols.get(symbol.name)
        if first is not None:
            raise errors.DuplicateVariable(
                f"'{symbol.name}' is already {first.describe()}",
                symbol.span,
                related=((first.span, "first declared here"),),
                var=symbol.name,
            )
        self.symbols[symbol.name] = symbol

    @contextmanager
    def with_symbols(self, *symbols: Symbol) -> Iterator[None]:
        """Names that exist for a while: loop counters and indices."""
        added: list[str] = []
        mark = len(self.program.warnings)
        try:
            for symbol in symbols:
                self.add(symbol)
                added.append(symbol.name)
            yield
            for warning in self.program.warnings[mark:]:
                _say_names(warning, symbols)
        except errors.UserError as error:
            _say_names(error, symbols)
            raise
        finally:
            for name in added:
                self.ended[name] = self.symbols.pop(name).kind

    def check_outermost(self, name: str, span: Span) -> None:
        """Refuses a declaration inside ``if``, ``for`` or ``while`` of a scalar function."""
        if name in self.hoisted and not self.depth:
            raise errors.DuplicateVariable(
                f"'{name}' is declared in a block before",
                span,
                hint="use another name",
                related=((self.hoisted[name].span, "declared here, until the block ends"),),
            )
        if self.depth and not is_tensor_function(self.header):
            raise errors.DeclarationNotOutmostLevel(
                f"'{name}' is declared inside 'if', 'for' or 'while'",
                span,
                hint="declare it before, at the level of the function's body",
            )

    @contextmanager
    def having(self, **state: Any) -> Iterator[None]:
        """With other values of fields for a while."""
        outside = {name: getattr(self, name) for name in state}
        try:
            for name, value in state.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in outside.items():
                setattr(self, name, value)

    def counted(self, name: str, kind: Kind, span: Span, extent: Expr) -> tuple[Symbol, ...]:
        """An index or a counter. Where a block has declared a variable of that name, which exists
        in the IR from the function's start, it has another name there, which comes first."""
        if all(var.name != name for var in self.hoisted.values()):
            return (Symbol(name, INT, kind, span, extent),)
        hidden = self.counter(name)
        symbol = Symbol(name, INT, kind, span, value=Var(hidden, INT))
        return Symbol(hidden, INT, kind, span, extent), symbol

    def counter(self, name: str) -> str:
        """A name for what counts where ``name`` means something else."""
        if name not in self.counters:
            self.counters[name] = self.names.fresh(f"_{name.lstrip('_')}")
        return self.counters[name]

    def in_condition(self) -> bool:
        """Whether a part of the statement at hand is read that may not be evaluated."""
        return self.guarded > self.guarded_outside

    def once(self, value: Expr, *, kept: bool = False, type_: Type | None = None) -> Expr:
        """What may stand twice for a value: a variable that has it before the statement; one of its
        own if the value is to be ``kept`` while the program's variables change, or has another
        ``type_``: sizes that the call compares with the value's.

        It is the expression itself where it is not evaluated once (in index statements), or only
        under a condition that may keep it from failing, and where no tensor of its sizes can be
        declared.
        """
        fixed = isinstance(value, FloatConst | IntConst) or (isinstance(value, Var) and not kept)
        type_ = type_ or value.type
        if (fixed and type_ == value.type) or not self._declarable(type_):
            return value
        if (self.elementwise and self.has_tensors()) or (self.in_condition() and _may_fail(value)):
            return value
        var = Var(self.names.fresh("_once" if type_ == value.type else "_value"), type_)
        self.add(Symbol(var.name, type_, "local", value.span))
        if self.depth:
            self.start.append(Declare(var, None))
            self.before.append(Assign(var, "=", value, value.span))
        else:
            self.before.append(Declare(var, value, value.span))
        return Var(var.name, var.type, value.span)

    def is_size(self, name: str) -> bool:
        """Whether sizes of tensors are made of the variable: a call knows its value, for good."""
        symbol = self.symbols.get(name)
        known = symbol is not None and symbol.kind in ("size", "In")
        return known and name not in self.reassigned

    def _declarable(self, type_: Type) -> bool:
        """Whether a tensor's sizes are known when the function is called."""
        return all(
            is_arithmetic(dim) and all(map(self.is_size, free_variables(dim)))
            for dim in dims_in(type_)
        )

    def named(self, node: ast.expr) -> Symbol | None:
        """What an expression that is a name stands for."""
        return self.symbols.get(node.id) if isinstance(node, ast.Name) else None

    def lookup(self, node: ast.Name) -> Expr:
        """The variable of that name; an error that suggests the nearest name if there is none."""
        symbol = self.symbols.get(node.id)
        if symbol is not None:
            self.check_assigned(node.id, span_of(node))
            if isinstance(symbol.type, StackType):
                raise errors.TypeMismatch(
                    f"'{node.id}' is a stack, which has no value of its own", span_of(node),
                    hint=f"{node.id}.push(x), or x = {node.id}.pop()", var=node.id,
                )  # fmt: skip
            if symbol.value is not None:
                return replace(symbol.value, span=span_of(node))
            return Var(symbol.name, symbol.type, span_of(node))
        if self.subscripts and self.has_tensors():
            raise errors.UnboundIndex(
                f"index '{node.id}' is not bound: only an index statement or a reduction binds one",
                span_of(node),
                hint=f"bind it, as in sum(... for {node.id} in range(n)), or count it: "
                f"for {node.id} in range(n):, around the statement",
            )
        if node.id in self.program.functions:
            raise errors.UndeclaredVariable(
                f"'{node.id}' is a function, not a variable",
                span_of(node),
                hint=f"call it: {node.id}(...)",
            )
        if self.program.struct(node.id) is not None:
            raise errors.UndeclaredVariable(
                f"'{node.id}' is a struct, not a variable",
                span_of(node),
                hint=f"declare a variable of that type: x : {node.id}",
            )
        raise self.undeclared(node.id, span_of(node))

    def is_known(self, name: str) -> bool:
        """Whether the name means anything here, if not a variable."""
        others = self.program.functions
        return name in self.symbols or name in others or self.program.struct(name) is not None

    def has_tensors(self) -> bool:
        """Whether index statements are possible: there is a tensor to take elements of."""
        return any(isinstance(symbol.type, TensorType) for symbol in self.symbols.values())

    def undeclared(self, name: str, span: Span, type_: str = "float") -> errors.UserError:
        """The error for an unknown name, with the best hint there is."""
        known = self.symbols.keys() - set(self.counters.values())
        hint = (
            _ENDED.get(self.ended.get(name))
            or (foreign.constant(name) if name != "e" else None)
            or errors.suggest(name, known)
            or f"declare it first: {name} : {type_}"
        )
        return errors.UndeclaredVariable(f"variable '{name}' is not declared", span, hint=hint)

    def check_assigned(self, name: str, span: Span) -> None:
        """Refuses the use of a tensor that cannot start at zero, because its rank is not known."""
        if name in self.unassigned:
            raise errors.RankMismatch(
                f"tensor '{name}' is used before it is assigned",
                span,
                hint="give its type sizes, so that it starts at zero, or assign it first",
                related=((self.symbols[name].span, "declared without sizes here"),),
            )

    def check_writable(self, name: str, span: Span) -> Symbol:
        """The variable that an assignment writes; an error if it is read only or unknown."""
        symbol = self.symbols.get(name)
        if symbol is None:
            raise self.undeclared(name, span)
        if symbol.kind in ("size", "counter", "index"):
            raise errors.WriteToSize(
                f"'{name}' is {symbol.describe()} and cannot be assigned to",
                span,
                hint="use a variable of its own",
            )
        if symbol.kind == "In" and isinstance(symbol.type, TensorType | ArrayType):
            noun = "tensor" if isinstance(symbol.type, TensorType) else "array"
            raise errors.WriteToInArgument(
                f"'{name}' is an In {noun}, which is read only",
                span,
                hint="write to a local variable, or make the argument Out[...]",
                related=((symbol.span, "declared here"),),
                var=name,
            )
        return symbol


def _may_fail(expr: Expr) -> bool:
    """Whether something in a scalar expression could fail when it runs."""
    return any(
        isinstance(node, Index | Call | Reduce | ZeroPad | Op) or divisor(node) is not None
        for node in walk(expr)
    )


def _say_names(report: errors.UserError | errors.UserWarning, symbols: tuple[Symbol, ...]) -> None:
    """Says a report about a counter that the IR has under another name with that of the program."""
    for hidden, symbol in itertools.pairwise(symbols):
        if symbol.value is not None:
            counter_names.say(report, hidden.name, symbol.name, symbol.value)


_LARGEST = 100  # nodes


def too_long(value: Expr) -> bool:
    """Whether a value is too long to stand in several places, where no variable can hold it."""
    return sum(1 for _ in walk(value)) > _LARGEST
