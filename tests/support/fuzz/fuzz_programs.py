"""Random programs of the scalar layer, as text, with arguments for them.

Every program is well typed, ends, and stays inside its arrays. Values stay small: what a loop
assigns goes through a bounded function. Comparisons, ``abs``, ``max`` and conversions to int make
kinks and jumps at which a derivative means little; who compares with differences must expect them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fuzz_expressions import CONSTANTS, Argument, Expressions, Place, Scope, Signature

from loma.core.ir import FLOAT, INT, ArrayType, StructType, TupleType, Type
from loma.core.printer import print_type

Value = Any
PAIR = (FLOAT, INT)
PART = ("s", FLOAT)


@dataclass(frozen=True, slots=True)
class Program:
    """``text`` ends in ``f``, to be called with ``args``; a @simd function for ``items`` items."""

    text: str
    args: tuple[Value, ...]
    items: int | None = None


def _named(type_: Type) -> str:
    """A type, with the name of a constant for its number."""
    return print_type(type_).replace(", 2]", ", TWO]")


class Generator(Expressions):
    """Makes one program: structs, functions ``h0``, ``h1``, ... and ``f``, which may call them."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._lines: list[str] = []
        self._indent = 1
        self._budget = 0
        self._names = 0
        self._shared: Place | None = None

    # ------------------------------------------------------------------------------- the program

    def program(
        self, *, simd: bool = False, reads_outs: bool = True, fails: bool = False
    ) -> Program:
        """A program; ``reads_outs`` False: what its Out arguments hold at the start, it overwrites
        first. (Reverse derivatives are not given these values.) ``fails``: running it may end in
        a run-time error."""
        self._fails = fails
        self._stops = self._chance(10)
        parts = [self._struct(f"S{k}") for k in range(self._below(3))]
        if self._chance(30):
            self._views["V"] = (("p", ArrayType(FLOAT, None)), ("q", ArrayType(INT, None)), PART)
            parts.append("class V:\n    p : Array[float]\n    q : Array[int]\n    s : float\n")
        for k in range(self._below(4)):
            parts.append(self._function(f"h{k}", helper=True, reads_outs=True))
        items = 1 + self._below(4) if simd else None
        if items is not None:
            parts.append(self._simd_function(items, reads_outs))
        else:
            parts.append(self._function("f", helper=False, reads_outs=reads_outs))
        params = self._functions[-1].params
        args = tuple(self._value(p.type, p.mode == "Out" and not reads_outs) for p in params)
        return Program(CONSTANTS + "\n".join(parts), args, items)

    def _value(self, type_: Type, zero: bool) -> Value:
        match type_:
            case ArrayType(element, size):
                return [self._value(element, zero) for _ in range(size or 4)]
            case StructType(name):
                return {member: self._value(t, zero) for member, t in self._members(name)}
            case _ if zero:
                return 0 if type_ == INT else 0.0
            case _:
                return self._below(7) - 2 if type_ == INT else (self._below(4000) - 2000) / 1000

    def _struct(self, name: str) -> str:
        members: list[tuple[str, Type]] = [("u", FLOAT)]
        for letter in "vwk"[: self._below(4)]:
            members.append((letter, FLOAT if self._chance(50) else self._type()))
        self._structs[name] = tuple(members)
        lines = [f"    {member} : {print_type(t)}" for member, t in members]
        return "\n".join([f"class {name}:", *lines, ""])

    def _type(self) -> Type:
        options: list[Type] = [FLOAT, FLOAT, INT, ArrayType(FLOAT, 2 + self._below(2))]
        options += [ArrayType(INT, 2), ArrayType(ArrayType(FLOAT, 2), 2)]
        for name in self._structs:
            options += [StructType(name), ArrayType(StructType(name), 2)]
        return options[self._below(len(options))]

    # --------------------------------------------------------------------------------- functions

    def _function(self, name: str, helper: bool, reads_outs: bool) -> str:
        params = [Argument("x0", FLOAT, "In")]
        for k in range(1, 1 + self._below(4) + (not helper)):
            type_ = self._type()
            view = StructType("V")
            known = any(view in (p.type, getattr(p.type, "element", None)) for p in params)
            if self._views and not known and self._chance(40):  # none is passed to two arguments
                params.append(Argument(f"x{k}", self._pick(view, ArrayType(view, 2)), "In"))
            elif isinstance(type_, ArrayType) and self._chance(15) and not helper:
                params.append(Argument(f"x{k}", ArrayType(type_.element, None), "In"))
            else:
                params.append(Argument(f"x{k}", type_, self._pick("In", "In", "Out")))
        results = self._results(params, helper)
        self._start(params, 3 + self._below(3) if helper else 5 + self._below(8))
        outs = [Place(p.name, p.type, True) for p in params if p.mode == "Out"]
        for place in outs if not reads_outs else ():
            self._line(f"zero({place.text})")
        self._body(locals_=1 + self._below(3 if helper else 5))
        for place in outs:
            self._mix(place)
        self._return(results)
        return self._finish(name, params, results)

    def _results(self, params: list[Argument], helper: bool) -> tuple[Type, ...]:
        options: list[tuple[Type, ...]] = [(FLOAT,), (FLOAT,), (FLOAT,), PAIR]
        options += [(StructType(name),) for name in self._structs]
        if helper:
            options.append((INT,))
        if any(p.mode == "Out" and p.type != INT for p in params):
            options += [(), ()]
        return options[self._below(len(options))]

    def _return(self, results: tuple[Type, ...]) -> None:
        values: list[str] = []
        for type_ in results:
            if type_ == FLOAT:
                terms = [self._float(2), self._read(FLOAT), self._bounded(1), self._read(FLOAT)]
                values.append("{} + {} * {} - {}".format(*terms))
                continue
            value = self._maybe_of_type(type_)
            if value is None:
                value = self._fresh("r")
                self._line(f"{value} : {print_type(type_)}")
            values.append(value)
        if values:
            self._line(f"return {', '.join(values)}")

    def _simd_function(self, items: int, reads_outs: bool) -> str:
        """Items write their own elements of ``y``, and add to what they share."""
        own = self._pick(FLOAT, FLOAT, *map(StructType, self._structs))
        shared = self._pick(FLOAT, INT, ArrayType(FLOAT, 2), *map(StructType, self._structs))
        params = [
            Argument("x0", FLOAT, "In"),
            Argument("x1", self._type(), "In"),
            Argument("y", ArrayType(own, items), "Out"),
            Argument("s", shared, "Out"),
        ]
        self._start(params, 4 + self._below(5))
        self._scope.places = [p for p in self._scope.places if p.text not in ("y", "s")]
        self._scope.places.append(Place("y[thread_id()]", own, True))
        self._scope.counters.append(("thread_id()", items))
        self._shared = Place("s", shared, True)
        if not reads_outs:
            self._line("zero(y[thread_id()])")
        self._body(locals_=1 + self._below(3))
        self._mix(Place("y[thread_id()]", own, True))
        self._add(self._shared)
        self._shared = None
        return "@simd\n" + self._finish("f", params, ())

    def _start(self, params: list[Argument], budget: int) -> None:
        self._scope, self._lines, self._indent, self._budget = Scope(), [], 1, budget
        self._names = 0
        for p in params:
            viewed = p.type == StructType("V")
            writable = p.mode == "Out" or not (isinstance(p.type, ArrayType) or viewed)
            self._scope.places.append(Place(p.name, p.type, writable))

    def _body(self, locals_: int) -> None:
        for _ in range(locals_):
            self._declare()
        while self._budget > 0:
            if self._chance(10):
                self._declare()
            if self._chance(7):
                self._stack()
            self._statement()

    def _finish(self, name: str, params: list[Argument], results: tuple[Type, ...]) -> str:
        defaults = 0
        for param in reversed(params[1:]):
            if param.mode == "Out" or param.type not in PAIR or self._chance(40):
                break
            defaults += 1
        texts = [f"{p.name} : {p.mode}[{_named(p.type)}]" for p in params]
        for k in range(len(params) - defaults, len(params)):
            value = self._pick("TWO", "BACK", "3") if params[k].type == INT else self._constant()
            texts[k] += f" = {value}"
        listed = ", ".join(texts)
        arrow = ""
        if results:
            whole = results[0] if len(results) == 1 else TupleType(results)
            arrow = f" -> {print_type(whole)}"
        cost = len(self._lines) * 6
        self._functions.append(Signature(name, tuple(params), results, cost, defaults))
        return "\n".join([f"def {name}({listed}){arrow}:", *self._lines, ""])

    # -------------------------------------------------------------------------------- statements

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    def _fresh(self, letter: str) -> str:
        self._names += 1
        return f"{letter}{self._names}"

    def _declare(self) -> None:
        name, type_ = self._fresh("z"), self._type()
        value = self._maybe_of_type(type_) if self._chance(70) else None
        self._line(f"{name} : {_named(type_)}" + ("" if value is None else f" = {value}"))
        self._scope.places.append(Place(name, type_, True))
        if value is None:
            self._mix(self._scope.places[-1])

    def _mix(self, place: Place) -> None:
        """Adds something to one float of a place."""
        found = self._find(FLOAT, [place])
        if found is not None:
            self._line(f"{found[1]} += {self._bounded(2)}")

    def _stack(self) -> None:
        """A loop that pushes, and one that takes as much off again."""
        places = [p for p in self._scope.places if p.writable]
        types: list[Type] = [FLOAT, FLOAT, INT, *map(StructType, self._structs)]
        types = [t for t in types if self._find(t, places) is not None]
        if not types:
            return
        type_ = types[self._below(len(types))]
        count, name = 1 + self._below(3), self._fresh("q")
        less = self._fails and self._chance(15)
        size = f", {max(1, count + self._below(2) - less)}" if self._chance(50) else ""
        self._line(f"{name} : Stack[{print_type(type_)}{size}]")
        for pushes in (True, False):
            counter = self._fresh("i")
            self._line(f"for {counter} in range({count}):")
            with self._looping(counter, count):
                if pushes:
                    value = f"({self._int(1)}) % 3" if type_ == INT else self._read(type_)
                    self._line(f"{name}.push({self._bounded(1) if type_ == FLOAT else value})")
                else:
                    self._line(f"{self._written(type_)} = {name}.pop()")
                self._statement()
            if pushes:
                self._statement()

    def _statement(self) -> None:
        self._budget -= 1
        kind = self._below(100)
        deep = self._indent > 3 or self._scope.times > 12
        if kind < 12 and not deep:
            self._for()
        elif kind < 20 and not deep:
            self._while()
        elif kind < 35 and self._indent < 5:
            self._if()
        elif kind < 50 and self._call_statement():
            pass
        elif kind < 60 and self._shared is not None:
            self._add(self._shared)
        elif kind < 52:
            self._line(f"zero({self._written(self._any_type())})")
        elif kind < 55 and self._unpack():
            pass
        elif kind < 70:
            self._assign_whole()
        else:
            self._assign_float()

    def _block(self) -> None:
        self._indent += 1
        self._some_statements()
        self._indent -= 1

    def _some_statements(self) -> None:
        for _ in range(1 + self._below(3)):
            self._statement()

    def _if(self) -> None:
        self._line(f"if {self._condition(2)}:")
        self._block()
        if self._chance(30):
            self._line(f"elif {self._condition(1)}:")
            self._block()
        if self._chance(60):
            self._line("else:")
            self._block()

    @contextmanager
    def _looping(self, counter: str, bound: int) -> Iterator[None]:
        """Inside a loop that runs ``bound`` times at most, with a counter below that."""
        self._scope.counters.append((counter, bound))
        self._scope.times *= max(bound, 1)
        self._indent += 1
        yield
        self._indent -= 1
        self._scope.times //= max(bound, 1)
        self._scope.counters.pop()

    def _for(self) -> None:
        counter = self._fresh("i")
        bound = 1 + self._below(3)
        extent = str(bound) if self._chance(50) else f"({self._int(1)}) % {bound + 1}"
        bounds = extent
        if self._chance(30):  # all values are in range(bound)
            first = str(self._below(2)) if self._chance(60) else f"({self._int(1)}) % {bound + 1}"
            bounds = self._pick(
                "{0}, {1}", "{0}, {1}, 2", "{0}, {1}, TWO", "{1} - 1, {0} - 1, -1",
                "{1} - 1, BACK, BACK * 2", "min({0}, {1}), {1}, 1 + {0}",
            )  # fmt: skip
            bounds = bounds.format(first, extent)
        steps = f"range({bounds})"
        self._line(f"for {counter} in {f'reversed({steps})' if self._chance(20) else steps}:")
        with self._looping(counter, bound):
            self._some_statements()

    def _while(self) -> None:
        counter = self._fresh("w")
        self._lines.insert(0, f"    {counter} : int")
        bound = 1 + self._below(3)
        test = f"{counter} < {bound}"
        if self._chance(30):
            test = f"{test} and ({self._condition(1)})"
        elif self._chance(30):
            test = f"{counter} < ({self._int(1)}) % {bound + 1}"
        self._line(f"{counter} = 0")
        limit = max(1, bound + self._below(2) - 2 * (self._fails and self._chance(10)))
        self._line(f"while ({test}, max_iter := {limit}):")
        with self._looping(counter, bound):
            self._some_statements()
            self._line(f"{counter} += 1")
        self._scope.places.append(Place(counter, INT, False))

    def _assign_float(self) -> None:
        target = self._written(FLOAT)
        op = self._pick("=", "=", "=", "+=", "-=", "*=", "/=")
        value = self._float(3)
        if op == "/=":
            value = f"(1.0 + abs({value}))"
        elif self._scope.times > 1 or self._chance(60):
            value = self._pick("sin({})", "tanh({})", "0.5 * cos({})").format(value)
        self._line(f"{target} {op} {value}")

    def _any_type(self) -> Type:
        """The type of a place that may be written."""
        choices = [place.type for place in self._scope.places if place.writable]
        return choices[self._below(len(choices))]

    def _assign_whole(self) -> None:
        type_ = self._any_type()
        if type_ == FLOAT:
            return self._assign_float()
        target = self._written(type_)
        if type_ == INT:
            op = self._pick("=", "=", "+=", "-=")
            value = f"({self._int(2)}) % {self._pick(3, 5)}"
            if self._chance(15):
                value = self._bounded(2) + " * 3.0"
            if op != "=" and self._scope.times > 3:
                op = "="
            return self._line(f"{target} {op} {value}")
        whole = self._maybe_of_type(type_)
        if whole is None or whole == target:
            return self._assign_float()
        return self._line(f"{target} = {whole}")

    def _add(self, shared: Place) -> None:
        """To a part of what work items share."""
        paths = [*self._paths(shared.type, FLOAT), *self._paths(shared.type, INT)]
        path = paths[self._below(len(paths))]
        text, type_ = self._walk(shared, path), self._at(shared.type, path)
        value = self._bounded(2) if type_ == FLOAT else f"({self._int(1)}) % 4"
        self._line(f"atomic_add({text}, {value})")

    def _call_statement(self) -> bool:
        """A call of a function with Out arguments, if there is one that fits."""
        options = [f for f in self._functions if f.writes and self._is_cheap(f)]
        if not options:
            return False
        callee = options[self._below(len(options))]
        args = self._arguments(callee)
        if args is None:
            return False
        for k, param in enumerate(callee.params):
            # What an Out argument holds may be computed with in another argument.
            if param.mode == "In" and param.type == FLOAT and self._chance(30):
                args[k] = self._bounded(1)
        self._line(f"{callee.name}({', '.join(self._passed(callee, args))})")
        return True

    def _arguments(self, callee: Signature) -> list[str] | None:
        """Arguments of which those that are written share no storage with others."""
        everything, args = self._scope.places, [""] * len(callee.params)
        try:
            for k, param in enumerate(callee.params):
                if param.mode == "Out":
                    found = self._find(param.type, [p for p in self._scope.places if p.writable])
                    if found is None:
                        return None
                    root, args[k] = found
                    self._scope.places = [p for p in self._scope.places if p is not root]
            for k, param in enumerate(callee.params):
                if param.mode == "In":
                    value = self._maybe_of_type(param.type)
                    if value is None:
                        return None
                    args[k] = value
            return args
        finally:
            self._scope.places = everything

    def _unpack(self) -> bool:
        """``x, n = h(...)``, if there is such a function."""
        options = [f for f in self._functions if f.results == PAIR and not f.writes]
        numbers = [p.text for p in self._scope.places if p.writable and p.type in PAIR]
        targets = [name for name in numbers if name.isidentifier()][-2:]
        if self._indent == 1:
            targets = [self._fresh("z"), self._fresh("z")]
        if not options or len(targets) < 2:
            return False
        callee = options[self._below(len(options))]
        args = self._arguments(callee)
        if args is None or not self._is_cheap(callee):
            return False
        self._line(f"{', '.join(targets)} = {callee.name}({', '.join(self._passed(callee, args))})")
        if self._indent == 1:
            self._scope.places += [Place(targets[0], FLOAT, True), Place(targets[1], INT, True)]
        return True
