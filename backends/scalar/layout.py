"""Where the parts of a value lie in memory, as C has it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Type = Sequence[Any]  # as loma.structs describes it
WORD, _POINTER = 4, 8  # bytes
SLICE = struct.Struct("Pi4x")  # an array argument: where its elements are, and how many


@dataclass(frozen=True, slots=True)
class Types:
    """The structs of a program, by name: their members, and their classes in Python."""

    members: Mapping[str, Sequence[tuple[str, Type]]]
    classes: Mapping[str, Any]

    def is_open(self, type_: Type) -> bool:
        """Whether a value has arrays of any size in it."""
        match type_[0]:
            case "array":
                return type_[2] is None or self.is_open(type_[1])
            case "struct":
                return any(self.is_open(member) for _, member in self.members[type_[1]])
        return False

    def layout(self, type_: Type) -> tuple[int, int]:
        """Bytes and alignment of a value as C has it."""
        match type_[0]:
            case "array" if type_[2] is None:
                return SLICE.size, _POINTER
            case "array":
                size, align = self.layout(type_[1])
                return size * int(type_[2]), align
            case "struct":
                end, align = 0, WORD
                for _, member, at in self.places(type_[1]):
                    size, own = self.layout(member)
                    end, align = at + size, max(align, own)
                return max(_up(end, align), WORD), align
        return WORD, WORD

    def places(self, name: str) -> Iterator[tuple[str, Type, int]]:
        """The members of a struct, and where each begins."""
        end = 0
        for member, type_ in self.members[name]:
            size, align = self.layout(type_)
            end = _up(end, align)
            yield member, type_, end
            end += size

    def kinds(self, type_: Type) -> set[str]:
        """Of the numbers in a value."""
        match type_[0]:
            case "array":
                return self.kinds(type_[1])
            case "struct":
                return {k for _, member in self.members[type_[1]] for k in self.kinds(member)}
        return {type_[0]}


def levels(type_: Type) -> tuple[list[int | None], Type]:
    """The sizes of an array of arrays, None where one may have any, and what is in it."""
    found = list[int | None]()
    while type_[0] == "array":
        found.append(type_[2])
        type_ = type_[1]
    return found, type_


def describe(value: Any) -> str:
    """ "float", "a list of 3", "a tensor of torch.float64 and shape (3, 2)"."""
    name = type(value).__name__
    if isinstance(value, list | tuple):
        return f"a {name} of {len(value)}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        kind = "an array" if type(value).__module__ == "numpy" else "a tensor"
        return f"{kind} of {value.dtype} and shape {tuple(value.shape)}"
    return name


def spelled(type_: Type) -> str:
    """As a program writes it."""
    if type_[0] == "array":
        size = "" if type_[2] is None else f", {type_[2]}"
        return f"Array[{spelled(type_[1])}{size}]"
    return str(type_[-1])


def _up(place: int, align: int) -> int:
    return (place + align - 1) // align * align
