"""Differential types, and the signatures of derivatives.

The differential type of a float is the struct ``_dfloat`` of its value and its derivative, that of
an int is int, that of an array or a struct has the differentials of its parts. Forward mode works
on these types; reverse mode keeps the types and adds arguments for adjoints.

A module lists the structs of the differential types that its text or the signature of a derivative
mentions after those that it defines itself, in one canonical order; its text does not define them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from loma.core.ir import (
    FLOAT, INT, ArrayType, FloatType, Function, IntType, Param, StackType, Struct, StructType,
    TensorType, Type, is_tensor_function,
)  # fmt: skip
from loma.core.names import Names
from loma.core.walk import reads_of_type
from loma.errors.spans import NOWHERE, Span

DFLOAT = StructType("_dfloat")
DFLOAT_STRUCT = Struct("_dfloat", (("val", FLOAT), ("dval", FLOAT)))


# ----------------------------------------------------------------------------------------- types


def differential(type_: Type) -> Type:
    """``Diff[type_]``, for every type of the scalar layer."""
    match type_:
        case IntType():
            return INT
        case FloatType():
            return DFLOAT
        case ArrayType(element, size):
            return ArrayType(differential(element), size)
        case StackType(element, capacity):
            return StackType(differential(element), capacity)
        case StructType(name):
            return StructType(f"_d{name}")
        case _:
            raise AssertionError(f"no differential type: {type_}")


def differential_struct(struct: Struct) -> Struct:
    """``_dFoo`` of ``Foo``: the same members, of the differentials of their types."""
    members = tuple((name, differential(type_)) for name, type_ in struct.members)
    return Struct(f"_d{struct.name}", members, struct.span)


def primal_name(name: str, structs: Collection[str]) -> str | None:
    """The type that a struct of this name would be the differential of: "float" or a struct.

    None where there is none: ``_dFoo`` is an ordinary name in a program without ``Foo``.
    """
    if name == DFLOAT.name:
        return "float"
    base = name.removeprefix("_d")
    if base != name and (base in structs or primal_name(base, structs) is not None):
        return base
    return None


# --------------------------------------------------------------------------------------- structs


def with_differentials(types: Iterable[Type], structs: Mapping[str, Struct]) -> dict[str, Struct]:
    """The structs with those that the differentials of ``types`` consist of, in canonical order.

    ``structs`` holds every struct that ``types`` mention, except for differential ones.
    """
    return with_mentioned(map(differential, types), structs)


def with_mentioned(types: Iterable[Type], structs: Mapping[str, Struct]) -> dict[str, Struct]:
    """The structs with the differential ones that ``types`` consist of, in canonical order."""
    found = dict(structs)

    def add(type_: Type) -> None:
        match type_:
            case ArrayType(element) | StackType(element):
                add(element)
            case StructType(DFLOAT.name):
                found[DFLOAT.name] = DFLOAT_STRUCT
            case StructType(name) if name not in found:
                base = name.removeprefix("_d")
                assert base != name, name
                add(StructType(base))
                found[name] = differential_struct(found[base])
                for _, member in found[name].members:
                    add(member)
            case _:
                pass

    for type_ in types:
        add(type_)
    return in_order(found)


def in_order(structs: Mapping[str, Struct]) -> dict[str, Struct]:
    """Canonical order: a program's own structs, then differential ones by name; parts first."""
    own = [name for name in structs if primal_name(name, structs) is None]
    made = sorted(name for name in structs if primal_name(name, structs) is not None)
    done: dict[str, Struct] = {}

    def place(type_: Type) -> None:
        match type_:
            case ArrayType(element) | StackType(element):
                place(element)
            case StructType(name) if name not in done and name in structs:
                for _, member in structs[name].members:
                    place(member)
                done[name] = structs[name]
            case _:
                pass

    for name in [*own, *made]:
        place(StructType(name))
    return done


# ------------------------------------------------------------------------------------ signatures


def forward_signature(primal: Function) -> tuple[tuple[Param, ...], tuple[Type, ...]]:
    """Arguments and results of ``fwd_diff``: all types become their differentials."""
    params = tuple(Param(p.name, differential(p.type), p.mode, p.span) for p in primal.params)
    return params, tuple(differential(type_) for type_ in primal.results)


def _header_names(primal: Function) -> Names:
    """The names of a function's arguments and sizes."""
    names = Names(p.name for p in primal.params)
    for type_ in (*(p.type for p in primal.params), *primal.results):
        names.take(*reads_of_type(type_))
    return names


def tensor_forward_signature(
    primal: Function, span: Span
) -> tuple[tuple[Param, ...], tuple[Type, ...]]:
    """Those of ``fwd_diff`` of a tensor function: each float is followed by its tangent."""
    names = _header_names(primal)
    params: list[Param] = []
    for param in primal.params:
        params.append(param)
        if has_tangent(param.type):
            tangent = names.fresh(f"_t_{param.name.lstrip('_')}")
            params.append(Param(tangent, param.type, param.mode, span))
    results: list[Type] = []
    for type_ in primal.results:
        results += [type_, type_] if has_tangent(type_) else [type_]
    return tuple(params), tuple(results)


def reverse_signature(primal: Function, span: Span = NOWHERE) -> tuple[Param, ...]:
    """Arguments of ``rev_diff``.

    Each ``In`` argument ``x`` is followed by its adjoint ``_d_x`` as ``Out``; each ``Out`` argument
    becomes its adjoint as ``In``; each result adds a last ``In`` argument, its adjoint.
    """
    names = _header_names(primal)
    of_out = "_out" if is_tensor_function(primal) else ""
    params: list[Param] = []
    for param in primal.params:
        wish = f"_d_{param.name.lstrip('_')}"
        if param.mode == "In":
            params += [param, Param(names.fresh(wish), param.type, "Out", span)]
        else:
            params.append(Param(names.fresh(f"{wish}{of_out}"), param.type, "In", span))
    several = len(primal.results) > 1
    for k, type_ in enumerate(primal.results):
        wish = f"_d_result_{k}" if several else "_d_result"
        params.append(Param(names.fresh(wish), type_, "In", span))
    return tuple(params)


def has_tangent(type_: Type) -> bool:
    """Whether forward mode gives a tangent to values of the type, in the tensor layer."""
    return type_ == FLOAT or (isinstance(type_, TensorType) and type_.element != "int")
