"""C types of loma types.

A value stands in memory as C has it: numbers, structs with their members in order, arrays of known
size one after the other. An array argument is a pointer to its elements; where these are arrays of
unknown length, it is a pointer to their pointers. Under the option "slices" each such pointer
travels with a size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from loma import errors
from loma.backends.c.names import ModuleNames
from loma.backends.c.options import Options
from loma.backends.cfamily import syntax as c
from loma.core.ir import (
    ArrayType, FloatType, IntType, Module, Param, StructType, Type,
)  # fmt: skip
from loma.core.layout import Layout
from loma.errors.spans import NOWHERE


class CTypes:
    """The C types of a module; :attr:`slices` collects the structs of array arguments."""

    def __init__(self, module: Module, names: ModuleNames, options: Options) -> None:
        self.names = names
        self.options = options
        self.real = options.real
        self.slices: dict[str, str] = {}  # declarations of their data, by name, inner ones first
        self._structs = {struct.name: struct for struct in module.structs}
        real = 4 if options.real == "float" else 8
        self._layout = Layout(integer=4, real=real, array=16)

    # ------------------------------------------------------------------------------ declarations

    def declare(self, type_: Type, name: str) -> str:
        """A variable or a member of the type: ``float a[4][3]``."""
        return self._declared(type_, c.Token(name))

    def declare_pointer(self, type_: Type, name: str) -> str:
        """A pointer to a value of the type: ``float (*a)[4]``."""
        return self._declared(type_, c.dereference(c.Token(name)))

    def _declared(self, type_: Type, use: c.Expression) -> str:
        """C declares a name by an expression that has it in it: how a value of the type is had."""
        match type_:
            case ArrayType(element, None):
                return self._pointed(element, use)
            case ArrayType(element, int(size)):
                return self._declared(element, c.Subscript(use, c.number(size)))
            case _:
                return f"{self.base(type_)} {c.text(use)}".rstrip()

    def base(self, type_: Type) -> str:
        """The C type of a number or a struct."""
        match type_:
            case IntType():
                return "int"
            case FloatType():
                return self.real
            case StructType(name):
                return self.names.structs[name]
            case _:
                raise AssertionError(f"no single C type: {type_}")

    def literal(self, name: str, values: Iterable[c.Expression]) -> c.Expression:
        """A value of a struct of C from those of its members; without any it is all zero."""
        if self.options.device:
            return c.Braces(name, tuple(values))
        return c.Braces(f"({name})", tuple(values) or (c.number(0),))

    def zeros(self) -> c.Expression:
        """What initialises an array or a struct with zeros."""
        return c.Braces("", () if self.options.device else (c.number(0),))

    def spelled(self, type_: Type) -> str:
        """The type alone, as in a cast or in sizeof: ``float[4][3]``."""
        dims = ""
        while isinstance(type_, ArrayType) and type_.size is not None:
            dims += f"[{type_.size}]"
            type_ = type_.element
        return self.declare(type_, "") + dims

    def param(self, param: Param, name: str) -> str:
        """An argument of a function."""
        match param.type:
            case ArrayType(element, _):
                return self._pointed(element, c.Token(name))
            case type_ if param.mode == "Out":
                return self.declare_pointer(type_, name)
            case type_:
                return self.declare(type_, name)

    def spelled_param(self, param: Param) -> str:
        """The C type of an argument alone: ``float *``."""
        return self.param(param, "").strip()

    def _pointed(self, element: Type, use: c.Expression) -> str:
        """A pointer to elements of that type, or a slice."""
        if self.options.arrays == "slices":
            return f"{self.slice(element)} {c.text(use)}".rstrip()
        return self._declared(element, c.dereference(use))

    def slices_of(self, type_: Type) -> Iterator[str]:
        """Names of the slices that a value of that type has in it, inner ones first."""
        if isinstance(type_, ArrayType):
            yield from self.slices_of(type_.element)
            if type_.size is None and self.options.arrays == "slices":
                yield self.slice(type_.element)

    def slice(self, element: Type) -> str:
        """The struct of a pointer to elements of that type and their number."""
        dims, leaf = "", element
        while isinstance(leaf, ArrayType):
            dims += f"_{leaf.size or 0}"
            leaf = leaf.element
        name = f"loma_array{dims}_{self.base(leaf)}"
        if name not in self.slices:
            self.slices[name] = self.declare_pointer(element, "data")  # behind those of inner ones
        return name

    # --------------------------------------------------------------------------------------- size

    def bytes(self, type_: Type) -> int:
        """The size of a value that is no pointer; padding inside structs is left out."""
        size = self._layout.bytes(type_, self._structs)
        if size >= 2**63:
            raise errors.BackendLacksOperator(f"C has no values of {size} bytes", NOWHERE)
        return size
