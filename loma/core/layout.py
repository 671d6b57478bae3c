"""What values of the scalar layer take in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loma.core.ir import ArrayType, FloatType, IntType, Struct, StructType, Type


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes of an int, a float, and of what stands for an array of unknown length."""

    integer: int
    real: int
    array: int
    _known: dict[str, int] = field(default_factory=dict, repr=False, compare=False)  # of structs

    def bytes(self, type_: Type, structs: Mapping[str, Struct]) -> int:
        """What a value of the type takes at least: padding inside structs is left out."""
        match type_:
            case IntType():
                return self.integer
            case FloatType():
                return self.real
            case ArrayType(element, size):
                return self.array if size is None else size * self.bytes(element, structs)
            case StructType(name):
                if name not in self._known:
                    members = structs[name].members
                    self._known[name] = sum(self.bytes(member, structs) for _, member in members)
                return self._known[name]
            case _:
                raise AssertionError(f"no value of the scalar layer: {type_}")
