"""What belongs together in derivatives of functions with structs, and in what is shown of them."""

from __future__ import annotations

from loma.core.differentials import has_tangent
from loma.core.ir import INT, Expr, Function, Param, Type, Var, replace
from loma.core.names import Names
from loma.core.packing import Packing, Packings, Slot
from loma.core.walk import substitute_type


def _partners(primal: Packing, prefix: str) -> dict[str, str]:
    """Names of the adjoints or tangents of what a program calls arguments."""
    own = dict.fromkeys(slot.name for slot in primal.params)
    names = Names(own)
    return {name: names.fresh(f"{prefix}{name.lstrip('_')}") for name in own}


def reverse_packing(primal: Packing) -> Packing:
    """Of ``rev_diff``: see :func:`loma.core.differentials.reverse_signature`."""
    adjoints = _partners(primal, "_d_")
    params: list[Slot] = []
    for slot in primal.params:
        if slot.mode == "In":
            params += [slot, replace(slot, name=adjoints[slot.name], mode="Out")]
        else:
            params.append(replace(slot, name=adjoints[slot.name], mode="In"))
    several = len({slot.name for slot in primal.results}) > 1
    for slot in primal.results:
        name = f"_d_result_{slot.name}" if several else "_d_result"
        params.append(replace(slot, name=name))
    return Packing(tuple(params), ())


def forward_packing(
    primal: Packing, params: tuple[Param, ...], results: tuple[Type, ...]
) -> Packing:
    """Of ``fwd_diff``, from the primal's own arguments and results: see
    :func:`loma.core.differentials.tensor_forward_signature`."""
    tangents = _partners(primal, "_t_")
    found: list[Slot] = []
    for slot, param in zip(primal.params, params, strict=True):
        found.append(slot)
        if has_tangent(param.type):
            found.append(replace(slot, name=tangents[slot.name]))
    given: list[Slot] = []
    for slot, type_ in zip(primal.results, results, strict=True):
        given.append(slot)
        if has_tangent(type_):
            given.append(replace(slot, name=f"{slot.name}t"))
    return Packing(tuple(found), tuple(given))


def shown_names(function: Function, packings: Packings) -> Function:
    """The head of a function with the program's own names of members: ``l.w``."""
    shown = packings.shown
    values: dict[str, Expr] = {name: Var(own, INT) for name, own in shown.items()}

    def named(param: Param) -> Param:
        name, type_ = shown.get(param.name, param.name), substitute_type(param.type, values)
        return replace(param, name=name, type=type_)

    return replace(function, params=tuple(map(named, function.params)))
