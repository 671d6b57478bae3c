"""Random places and expressions, as text: what :mod:`fuzz_programs` makes statements of."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from loma.core.ir import FLOAT, INT, ArrayType, StructType, Type

Steps = tuple[str | int, ...]
CONSTANTS = """HALF : float = 1.0 / 2
RATIO : float = -HALF ** 2 + TWO
TWO : int = 7 // 3
BACK : int = -1

"""
NEWER = (
    "asin(0.8 * sin({}))", "acos(0.8 * cos({}))", "atan({})", "sinh(sin({}))", "cosh(tanh({}))",
    "expm1(sin({}))", "exp2(tanh({}))", "log1p(abs({}))", "log2(1.5 + abs({}))", "erf({})",
    "rsqrt(1.2 + sin({}))", "erfc({})", "lgamma(2.5 + sin({}))", "digamma(2.5 + sin({}))",
    "sigmoid({})", "relu({})", "softplus({})", "sign({})", "ceil({})", "round({})",
    "polygamma(TWO, 2.5 + sin({}))", "clamp({}, -HALF, 0.9)", "atan2({0}, 1.5 + cos({0}))",
    "clamp(0.4, {}, RATIO)", "atan2(HALF, {})", "(1.2 + sin({})) ** BACK", "loma.tanh({})",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A variable, or a part of one, as text."""

    text: str
    type: Type
    writable: bool


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    type: Type
    mode: str


@dataclass(frozen=True, slots=True)
class Signature:
    """A function; ``cost`` is about how many statements a call of it runs; as many of the last
    arguments as ``defaults`` have default values."""

    name: str
    params: tuple[Argument, ...]
    results: tuple[Type, ...]
    cost: int
    defaults: int = 0

    @property
    def writes(self) -> bool:
        return any(param.mode == "Out" for param in self.params)


@dataclass(slots=True)
class Scope:
    """What can be used at a place of the text.

    ``counters`` are int expressions with what they stay below; ``times`` is how often the current
    statement runs, at most; ``subscripts`` is how many subscripts the current expression is in.
    """

    places: list[Place] = field(default_factory=list)
    counters: list[tuple[str, int]] = field(default_factory=list)
    times: int = 1
    subscripts: int = 0


class Expressions:
    """Makes text for expressions of each type out of what is in scope."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._structs: dict[str, tuple[tuple[str, Type], ...]] = {}
        # those with arrays of unknown length, of which there are only arguments
        self._views: dict[str, tuple[tuple[str, Type], ...]] = {}
        self._functions: list[Signature] = []
        self._scope = Scope()
        self._stops = False  # whether no_diff may stand in the program
        self._fails = False  # whether running it may fail

    def _below(self, n: int) -> int:
        return self._rng.randrange(n)

    def _chance(self, percent: int) -> bool:
        return self._below(100) >= 100 - percent

    def _pick(self, *items: Any) -> Any:
        return items[self._below(len(items))]

    # ------------------------------------------------------------------------------------ places

    def _paths(self, type_: Type, want: Type) -> list[Steps]:
        """The ways from a value of ``type_`` to its parts of type ``want``: names of members, and
        sizes of arrays where a subscript stands."""
        found: list[Steps] = [()] if type_ == want else []
        match type_:
            case ArrayType(element, size):
                found += [(size or 4, *rest) for rest in self._paths(element, want)]
            case StructType(name):
                for member, t in self._members(name):
                    found += [(member, *rest) for rest in self._paths(t, want)]
            case _:
                pass
        return found

    def _at(self, type_: Type, steps: Steps) -> Type:
        for step in steps:
            if isinstance(type_, ArrayType):
                type_ = type_.element
            else:
                assert isinstance(type_, StructType)
                type_ = dict(self._members(type_.name))[str(step)]
        return type_

    def _members(self, struct: str) -> tuple[tuple[str, Type], ...]:
        return self._structs.get(struct) or self._views[struct]

    def _walk(self, place: Place, steps: Steps) -> str:
        text = place.text
        for step in steps:
            text += f".{step}" if isinstance(step, str) else f"[{self._subscript(step)}]"
        return text

    def _subscript(self, size: int) -> str:
        counters = [name for name, bound in self._scope.counters if bound <= size]
        if counters and self._chance(50):
            return str(self._pick(*counters))
        if self._chance(40) or self._scope.subscripts > 0:
            return str(self._below(size))
        self._scope.subscripts += 1
        position = self._int(1)
        unchecked = self._read(INT) if self._fails and self._chance(20) else None
        self._scope.subscripts -= 1
        return unchecked or f"({position}) % {size}"

    def _find(self, want: Type, places: list[Place]) -> tuple[Place, str] | None:
        options = [(p, path) for p in places for path in self._paths(p.type, want)]
        if not options:
            return None
        place, path = options[self._below(len(options))]
        return place, self._walk(place, path)

    def _read(self, want: Type) -> str | None:
        found = self._find(want, self._scope.places)
        return None if found is None else found[1]

    def _written(self, want: Type) -> str:
        found = self._find(want, [p for p in self._scope.places if p.writable])
        assert found is not None
        return found[1]

    # ------------------------------------------------------------------------------- expressions

    def _maybe_of_type(self, type_: Type) -> str | None:
        """A value of any type; None for an array or a struct of which there is none."""
        if type_ == FLOAT:
            return self._float(2)
        if type_ == INT:
            return f"({self._int(2)}) % 4" if self._chance(90) else self._float(1)
        if isinstance(type_, StructType) and self._chance(50):
            call = self._call(type_, 1)
            if call is not None:
                return call
        return self._read(type_)

    def _call(self, result: Type, depth: int) -> str | None:
        options = [
            f for f in self._functions
            if f.results == (result,) and not f.writes and self._is_cheap(f)
        ]  # fmt: skip
        if not options:
            return None
        callee = options[self._below(len(options))]
        args: list[str] = []
        for param in callee.params:
            if param.type == FLOAT:
                args.append(self._float(depth - 1))
            elif param.type == INT:
                args.append(f"({self._int(depth - 1)}) % 4")
            else:
                value = self._read(param.type)
                if value is None:
                    return None
                args.append(value)
        return f"{callee.name}({', '.join(self._passed(callee, args))})"

    def _passed(self, callee: Signature, args: list[str]) -> list[str]:
        """The arguments as a call writes them: some are left out or have their names."""
        first, named = len(args) - callee.defaults, False
        out = args[:first]
        for k in range(first, len(args)):
            named = named or self._chance(20)
            if self._chance(60):
                out.append(f"{callee.params[k].name}={args[k]}" if named else args[k])
            else:
                named = True
        return out

    def _is_cheap(self, function: Signature) -> bool:
        return function.cost * self._scope.times < 400

    def _constant(self) -> str:
        return str(self._pick("0.5", "1.5", "-0.7", "2.0", "0.0", "1.0", "0.3", "HALF", "-RATIO"))

    def _bounded(self, depth: int) -> str:
        return f"{self._pick('sin', 'tanh')}({self._float(depth)})"

    def _float(self, depth: int) -> str:
        """A float expression; ``depth`` bounds its nesting."""
        if depth <= 0 or self._chance(15):
            if self._chance(20):
                return self._constant()
            if self._chance(15):
                return f"int2float({self._int(0)})" if self._chance(30) else self._int_atom()
            return self._read(FLOAT) or self._constant()
        kind = self._below(100)
        first = self._float(depth - 1)
        if kind < 35:
            return f"({first} {self._pick('+', '-', '*', '*')} {self._float(depth - 1)})"
        if kind < 60:
            form = self._pick(
                "sin({})", "cos({})", "tanh({})", "exp(-abs({0}))", "sqrt(1.0 + abs({}))",
                "log(1.5 + abs({}))", "(-{})", "tan(tanh({}))", "exp(sin({}))", "{0} ** 2",
                "({0} * 0.5) ** 3", "pow(1.2 + cos({}), 1.5)", "abs({})", "sqrt(abs({}))",
                "floor({})", "({}) % 2.0", "({}) // 1.5", "(2.0 + sin({0})) ** sin({0})",
                "mul_no_nan({}, 0.7)", "no_diff({})" if self._stops else "cos({})",
                *NEWER, *NEWER[: len(NEWER) // 2],
            )  # fmt: skip
            return str(form.format(f"({first})" if "**" in form else first))
        if kind < 70:
            return f"({first} / (1.0 + abs({self._float(depth - 1)})))"
        if kind < 78:
            return f"{self._pick('max', 'min')}({first}, {self._float(depth - 1)})"
        if kind < 88:
            other = self._float(depth - 1)
            return f"({first} if {self._condition(depth - 1)} else {other})"
        return self._call(FLOAT, depth) or self._float(depth - 1)

    def _int_atom(self) -> str:
        counters = [name for name, _ in self._scope.counters]
        if counters and self._chance(40):
            return str(self._pick(*counters))
        if self._chance(30):
            return str(self._pick("0", "1", "2", "3", "TWO", "BACK"))
        return self._read(INT) or str(self._below(4))

    def _int(self, depth: int) -> str:
        if depth <= 0 or self._chance(25):
            return self._int_atom()
        kind = self._below(100)
        first = self._int(depth - 1)
        if kind < 45:
            return f"({first} {self._pick('+', '-', '*')} {self._int(depth - 1)})"
        if kind < 65:
            divisor = self._pick("2", "3", "-2")
            if self._fails and self._chance(30):
                divisor = self._int_atom()
            return f"({first} {self._pick('/', '//', '%')} {divisor})"
        if kind < 75:
            return f"({self._condition(depth - 1)})"
        if kind < 82:
            choice: str = self._pick(
                f"max({first}, {self._int(depth - 1)})", f"min({first}, {self._int(depth - 1)})",
                f"clamp({first}, BACK, {self._int(0)})", f"sign({first})",
                f"len(range({self._int(0)}, {first}, {self._pick('1', 'TWO', 'BACK')}))",
            )  # fmt: skip
            return choice
        if kind < 88:
            return f"({first} if {self._condition(depth - 1)} else {self._int(depth - 1)})"
        if kind < 94:
            return f"float2int({self._bounded(depth - 1)} * 3.0)"
        return self._call(INT, depth) or f"abs({first})"

    def _condition(self, depth: int) -> str:
        kind = self._below(100)
        if kind < 50 or depth <= 0:
            op = self._pick("<", "<=", ">", ">=")
            return f"{self._float(depth)} {op} {self._float(depth)}"
        if kind < 65:
            op = self._pick("<", ">", "==", "!=")
            return f"{self._int(depth)} {op} {self._int(depth)}"
        if kind < 70:
            choice: str = self._pick(
                f"BACK <= {self._int(0)} < {self._int(0)}",
                f"isfinite({self._float(1)})",
                f"{self._float(0)} < HALF <= {self._float(0)} < RATIO",
                f"not isnan({self._float(1)})",
            )
            return choice
        if kind < 80:
            return f"not ({self._condition(depth - 1)})"
        if kind < 90:
            op = self._pick("and", "or")
            return f"({self._condition(depth - 1)}) {op} ({self._condition(depth - 1)})"
        return f"({self._int(depth)}) % 2"
