"""Structs that go by value through ctypes arrive as they were passed, in every position.

``pytest --fuzz-examples N tests/c/test_compat_by_value.py`` tries N random signatures.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from loma import compat
from loma.backends.interpreter import Interpreter
from loma.compat import Library
from loma.core.ir import FLOAT, INT, ArrayType, Module, StructType, Type
from loma.core.printer import print_type
from loma.foreign import Structs
from loma.frontend import parse

SIGNATURES = 80
Value = Any

SPRING = """
class Spring:
    kind : int
    stiffness : float
    length : float

def energy(x : In[float], a : In[Array[float]], b : In[Array[float]], s : In[Spring]) -> float:
    return s.stiffness * x * a[0] * b[0] + s.length

def longer(s : In[Spring], by : In[float]) -> Spring:
    s.length += by
    return s

def parts(s : In[Spring], k : In[int]) -> tuple[float, Spring, int]:
    return s.length, s, s.kind // k

def scaled(s : In[Spring], by : In[float], to : Out[Spring]):
    to.stiffness = s.stiffness * by

d_energy = rev_diff(energy)
"""


@pytest.fixture(scope="module")
def springs() -> tuple[Structs, Library]:
    return compat.compile(SPRING)


def test_a_struct_that_takes_the_last_integer_register(springs: tuple[Structs, Library]) -> None:
    """libffi 3.4.4 then writes the rest of the struct over the first float."""
    structs, lib = springs
    spring, number = structs["Spring"], ctypes.c_float
    a, b, s = (number * 1)(2.0), (number * 1)(3.0), spring(1, 5.0, 7.0)
    assert lib.energy(2.0, a, b, s) == 67.0
    dx, da, db, ds = number(), (number * 1)(), (number * 1)(), spring()
    lib.d_energy(2.0, dx, a, da, b, db, s, ds, 1.0)
    assert (dx.value, da[0], db[0]) == (30.0, 30.0, 20.0)
    assert (ds.kind, ds.stiffness, ds.length) == (0, 12.0, 1.0)


# ------------------------------------------------------------------------------ random signatures


@dataclass(frozen=True)
class Signature:
    """A function that writes every number it is given to ``ints`` and ``floats``."""

    name: str
    params: tuple[tuple[str, Type, str], ...]
    results: tuple[Type, ...]


class Program:
    """Structs of 4 to 64 bytes, and functions that pass them in every position."""

    def __init__(self, rng: random.Random, signatures: int) -> None:
        self._rng = rng
        self.structs: dict[str, tuple[tuple[str, Type], ...]] = {}
        while len(self.structs) < max(6, signatures // 4):
            largest = rng.choice([2, 3, 4, 4, 6, 16])
            members = tuple((f"m{k}", self._type()) for k in range(rng.randint(1, 4)))
            if sum(self.count(type_) for _, type_ in members) <= largest:
                self.structs[f"S{len(self.structs)}"] = members
        self.signatures = [self._signature(f"f{k}") for k in range(signatures)]
        self.text = "\n".join(
            [*map(self._struct, self.structs), *map(self._function, self.signatures)]
        )

    def count(self, type_: Type) -> int:
        """Numbers in a value."""
        return sum(1 for _ in self.leaves("", type_))

    def leaves(self, place: str, type_: Type) -> Iterator[tuple[str, Type]]:
        match type_:
            case ArrayType(element, int(size)):
                for k in range(size):
                    yield from self.leaves(f"{place}[{k}]", element)
            case StructType(name):
                for member, inner in self.structs[name]:
                    yield from self.leaves(f"{place}.{member}", inner)
            case _:
                yield place, type_

    def _type(self) -> Type:
        kind = self._rng.random()
        if kind < 0.15 and self.structs:
            return StructType(self._rng.choice(list(self.structs)))
        if kind < 0.4:
            return ArrayType(self._type(), self._rng.randint(1, 3))
        return INT if kind < 0.65 else FLOAT

    def _signature(self, name: str) -> Signature:
        params: list[tuple[str, Type, str]] = []
        # two pointers come first, and six integer registers are there: the struct that is half in
        # the last one is likely with a few ints before it
        ints = self._rng.choice([0, 0, 2, 3])
        for k in range(self._rng.randint(1 + ints, 9)):
            kind = 0.1 if k < ints else self._rng.random()
            struct = StructType(self._rng.choice(list(self.structs)))
            type_: Type = INT if kind < 0.2 else FLOAT if kind < 0.4 else struct
            if 0.65 < kind < 0.75:
                elements: list[Type] = [INT, FLOAT, struct]
                type_ = ArrayType(self._rng.choice(elements), 2)
            params.append((f"x{k}", type_, "Out" if kind > 0.9 else "In"))
        struct = StructType(self._rng.choice(list(self.structs)))
        results: list[tuple[Type, ...]] = [
            (), (INT,), (FLOAT,), (struct,), (struct,), (FLOAT, struct, INT)
        ]  # fmt: skip
        return Signature(name, tuple(params), self._rng.choice(results))

    def _struct(self, name: str) -> str:
        members = (f"    {member} : {print_type(type_)}\n" for member, type_ in self.structs[name])
        return f"class {name}:\n{''.join(members)}"

    def _function(self, signature: Signature) -> str:
        params = ["ints : Out[Array[int]]", "floats : Out[Array[float]]"]
        params += [
            f"{name} : {mode}[{print_type(type_)}]" for name, type_, mode in signature.params
        ]
        lines: list[str] = []
        places: dict[Type, list[str]] = {INT: [], FLOAT: []}
        for name, type_, mode in signature.params:
            for place, leaf in self.leaves(name, type_):
                array = "ints" if leaf == INT else "floats"
                lines.append(f"{array}[{len(places[leaf])}] = {place}")
                places[leaf].append(place)
                if mode == "Out":
                    lines.append(f"{place} += 1000")
        for k, type_ in enumerate(signature.results):
            lines.append(f"r{k} : {print_type(type_)}")
            for number, (place, leaf) in enumerate(self.leaves(f"r{k}", type_)):
                # numbers that were passed, as far as there are any
                known = places[leaf]
                lines.append(f"{place} = {known[number % len(known)] if known else -number}")
        if signature.results:
            lines.append("return " + ", ".join(f"r{k}" for k in range(len(signature.results))))
        arrow = ", ".join(print_type(type_) for type_ in signature.results)
        arrow = f" -> tuple[{arrow}]" if len(signature.results) > 1 else arrow and f" -> {arrow}"
        head = f"def {signature.name}({', '.join(params)}){arrow}:\n"
        return head + "".join(f"    {line}\n" for line in lines)

    def value(self, type_: Type, numbers: Iterator[int]) -> Value:
        """For the interpreter: all numbers different."""
        match type_:
            case ArrayType(element, int(size)):
                return [self.value(element, numbers) for _ in range(size)]
            case StructType(name):
                return {m: self.value(t, numbers) for m, t in self.structs[name]}
            case _:
                return next(numbers) if type_ == INT else float(next(numbers))


class Host:
    """Calls through ctypes with the interpreter's values."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._structs, self.lib = compat.compile(program.text)

    def ctype(self, type_: Type) -> Any:
        match type_:
            case ArrayType(element, int(size)):
                return self.ctype(element) * size
            case StructType(name):
                return self._structs[name]
            case _:
                return ctypes.c_int if type_ == INT else ctypes.c_float

    def given(self, value: Value, type_: Type) -> Any:
        match type_:
            case ArrayType(element, _):
                return self.ctype(type_)(*(self.given(item, element) for item in value))
            case StructType(name):
                members = self._program.structs[name]
                return self._structs[name](*(self.given(value[m], t) for m, t in members))
            case _:
                return value

    def taken(self, value: Any, type_: Type) -> Value:
        match type_:
            case ArrayType(element, _):
                return [self.taken(item, element) for item in value]
            case StructType(name):
                members = self._program.structs[name]
                return {m: self.taken(getattr(value, m), t) for m, t in members}
            case _:
                return value.value if isinstance(value, ctypes._SimpleCData) else value

    def call(self, signature: Signature, values: list[Value]) -> tuple[Value, ...]:
        """Results, then the final values of Out arguments, as Interpreter.call has them."""
        args: list[Any] = []
        outs: list[tuple[Any, Type]] = []
        leaves: tuple[Type, ...] = (INT, FLOAT)
        for value, leaf in zip(values[:2], leaves, strict=True):
            array = ArrayType(leaf, len(value))
            args.append(self.given(value, array))
            outs.append((args[-1], array))
        for value, (_, type_, mode) in zip(values[2:], signature.params, strict=True):
            arg = self.given(value, type_)
            if mode == "Out":
                arg = arg if isinstance(type_, ArrayType | StructType) else self.ctype(type_)(arg)
                outs.append((arg, type_))
            args.append(arg)
        result = getattr(self.lib, signature.name)(*args)
        results = (result,) if len(signature.results) == 1 else result or ()
        pairs = [*zip(results, signature.results, strict=True), *outs]
        return tuple(self.taken(value, type_) for value, type_ in pairs)


def test_random_signatures(request: pytest.FixtureRequest) -> None:
    """Every number arrives, and every result comes back, as on the interpreter."""
    wanted = request.config.getoption("--fuzz-examples")
    seed = random.randrange(2**40) if wanted else 4
    program = Program(random.Random(seed), wanted or SIGNATURES)
    module: Module = parse(program.text)
    interpreter, host = Interpreter(module), Host(program)
    for signature in program.signatures:
        numbers = iter(range(1, 1000))
        values = [[0] * 200, [0.0] * 200]
        values += [program.value(type_, numbers) for _, type_, _ in signature.params]
        expected = interpreter.call(signature.name, *values)
        found = host.call(signature, values)
        assert found == tuple(expected), f"seed {seed}: {signature}\n{program.text}"


# --------------------------------------------------------------------- what ctypes lets a host do


def test_types_are_those_of_the_c_function(springs: tuple[Structs, Library]) -> None:
    structs, lib = springs
    spring = structs["Spring"]
    assert lib.longer.argtypes[0] is spring
    assert lib.longer.argtypes[1] is ctypes.c_float
    assert lib.longer.restype is spring
    assert issubclass(lib.parts.restype, ctypes.Structure)
    assert [name for name, _ in lib.parts.restype._fields_] == ["value_0", "value_1", "value_2"]
    assert lib.scaled.restype is None
    assert lib.longer is lib.longer
    assert lib["longer"] is not lib["longer"]
    assert lib["longer"](spring(1, 2.0, 3.0), 0.5).length == 3.5


def test_what_is_passed_stays_as_it_is(springs: tuple[Structs, Library]) -> None:
    structs, lib = springs
    s = structs["Spring"](4, 2.0, 3.0)
    one, two = lib.longer(s, 1.0), lib.longer(s, 2)
    assert (s.length, one.length, two.length) == (3.0, 4.0, 5.0)
    length, same, kind = lib.parts(s, 2)
    assert (length, same.stiffness, kind) == (3.0, 2.0, 2)


def test_arguments_convert_as_in_ctypes(springs: tuple[Structs, Library]) -> None:
    structs, lib = springs
    spring = structs["Spring"]

    class Wrapped:
        def __init__(self, value: Any) -> None:
            self._as_parameter_ = value

    class Stiff(spring):  # type: ignore[misc, valid-type]
        pass

    s = spring(1, 2.0, 3.0)
    assert lib.longer(Wrapped(s), Wrapped(1.0)).length == 4.0
    assert lib.longer(Stiff(1, 2.0, 3.0), ctypes.c_float(1.0)).length == 4.0
    with pytest.raises(ctypes.ArgumentError, match=r"argument 1: .*expected Spring instance"):
        lib.longer((1, 2.0, 3.0), 1.0)
    with pytest.raises(ctypes.ArgumentError, match=r"argument 1: .*expected Spring instance"):
        lib.longer(ctypes.byref(s), 1.0)
    with pytest.raises(ctypes.ArgumentError, match="argument 2"):
        lib.longer(s, "1")
    with pytest.raises(TypeError, match=r"takes at least 2 arguments \(1 given\)"):
        lib.longer(s)
    with pytest.raises(ctypes.ArgumentError, match=r"argument 3: .*'to' must not be NULL"):
        lib.scaled(s, 2.0, None)
    to = spring()
    for given in (to, ctypes.byref(to), ctypes.pointer(to), (spring * 1).from_buffer(to)):
        to.stiffness = 0.0
        lib.scaled(s, 2.0, given)
        assert to.stiffness == 4.0


def test_a_host_may_set_types_and_errcheck(springs: tuple[Structs, Library]) -> None:
    structs, lib = springs
    spring = structs["Spring"]

    class Mine(ctypes.Structure):
        _fields_ = [*spring._fields_]

    function = lib["longer"]
    function.argtypes = [Mine, ctypes.c_float]
    function.restype = Mine
    found = function(Mine(1, 2.0, 3.0), 1.0)
    assert (type(found), found.length) == (Mine, 4.0)
    with pytest.raises(ctypes.ArgumentError):
        function(spring(), 1.0)
    function.argtypes = None
    assert function(spring(1, 2.0, 3.0), ctypes.c_float(1.0)).length == 4.0
    function.restype = None
    assert function(spring(1, 2.0, 3.0), ctypes.c_float(1.0)) is None
    with pytest.raises(TypeError, match="'longer' returns the struct Spring"):
        function.restype = ctypes.c_int
    seen: list[Any] = []

    def check(result: Any, function: Any, arguments: tuple[Any, ...]) -> Any:
        seen.append((function, len(arguments)))
        return result.length

    other = lib["longer"]
    assert other.errcheck is None
    other.errcheck = check
    assert other.errcheck is check
    assert other(spring(1, 2.0, 3.0), 1.0) == 4.0
    assert seen == [(other, 2)]


FAILING = """
class Pair:
    a : float
    n : int

def third(p : In[Pair]) -> float:
    return p.a / int2float(3 // p.n)

def half(n : In[int]) -> int:
    return 3 // n
"""


def test_an_errcheck_of_the_host_hides_no_failure() -> None:
    structs, lib = compat.compile(FAILING)
    for name, bad, good in (("third", structs["Pair"](3.0, 0), structs["Pair"](3.0, 1)),
                            ("half", 0, 1)):  # fmt: skip
        function = lib[name]
        function.errcheck = lambda result, function, arguments: result * 2
        with pytest.raises(ZeroDivisionError, match=f"{name}: line"):
            function(bad)
        assert function(good) == (2.0 if name == "third" else 6)
        del function.errcheck
        assert function(good) == (1.0 if name == "third" else 3)


def test_a_function_is_the_c_function_for_c(springs: tuple[Structs, Library]) -> None:
    """What is passed as a callback, or asked for its address, has the C types of the language."""
    structs, lib = springs
    spring = structs["Spring"]
    address = ctypes.cast(lib.longer, ctypes.c_void_p).value
    plain = ctypes.CDLL(lib._name)
    assert address == ctypes.cast(plain.longer, ctypes.c_void_p).value
    prototype = ctypes.CFUNCTYPE(spring, spring, ctypes.c_float)
    assert address is not None
    assert prototype(address)(spring(1, 2.0, 3.0), 1.0).length == 4.0
    number = ctypes.POINTER(ctypes.c_float)
    called = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float, number, number, spring)(lib.energy)
    one = (ctypes.c_float * 1)(1.0)
    assert called(2.0, one, one, spring(1, 2.0, 3.0)) == 7.0
