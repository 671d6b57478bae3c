"""Arrays of unknown length, and structs that have them: their memory is the caller's.

A value of such a type is an argument, an element of one or a part of one. It is never declared,
copied as a whole or returned: only a caller knows how much there is of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from loma.core.ir import ArrayType, Expr, Index, Member, Struct, StructType, Type, Var


def is_unbounded(type_: Type, structs: Mapping[str, Struct]) -> bool:
    """Whether the type is an array of unknown length, or a value of it has one in it."""
    waiting, seen = [type_], set[str]()
    while waiting:
        match waiting.pop():
            case ArrayType(_, None):
                return True
            case ArrayType(element):
                waiting.append(element)
            case StructType(name) if name not in seen and name in structs:
                seen.add(name)
                waiting += [member for _, member in structs[name].members]
            case _:
                pass
    return False


def is_borrowed(place: Expr) -> bool:
    """Whether a place is in an array of unknown length in a struct: copies share the place."""
    while isinstance(place, Index | Member):
        if isinstance(place, Index) and not isinstance(place.base, Var):
            type_ = place.base.type
            if isinstance(type_, ArrayType) and type_.size is None:
                return True
        place = place.base
    return False
