"""Calls with structs that have tensors, from Python: objects in, objects out.

The function itself takes the members one by one. A call takes any object that has them as
attributes, as a module of torch has; what it returns is an object of the struct's class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loma.core.ir import Function
    from loma.core.packing import Packing, Slot

Record = dict[str, Any]


def packed_record(packing: Packing, function: Function, zeroed: Collection[int]) -> Record:
    """What belongs together in a call, as JSON values; ``zeroed`` are the positions of arguments
    that no caller passes and that are results."""
    slots = [
        slot if slot.struct else replace(slot, name=param.name)
        for slot, param in zip(packing.params, function.params, strict=True)
    ]
    passed = [slot for k, slot in enumerate(slots) if k not in zeroed]
    given = [slot for k, slot in enumerate(slots) if k in zeroed]
    results = packing.results[: len(function.results)]
    return {"params": _groups(passed), "results": _groups([*results, *given])}


def _groups(slots: Sequence[Slot]) -> list[Record]:
    found: dict[str, Record] = {}
    for at, slot in enumerate(slots):
        new: Record = {
            "name": slot.name, "struct": slot.struct, "mode": slot.mode, "at": [], "paths": [],
        }  # fmt: skip
        group = found.setdefault(slot.name, new)
        group["at"].append(at)
        group["paths"].append(list(slot.path))
    return list(found.values())


def shown(record: Record) -> Record:
    """The record with the arguments and results that a caller sees."""
    if "packed" not in record:
        return record
    packed, params, types = record["packed"], record["params"], record["result_types"]
    return record | {
        "params": [
            group | {"type": group["struct"]} if group["struct"] else params[group["at"][0]]
            for group in packed["params"]
        ],
        "result_types": [
            group["struct"] or types[group["at"][0]]
            for group in packed["results"]
            if group["at"][0] < len(types)
        ],
    }


def packed(
    record: Record, flat: Callable[..., Any], classes: Mapping[str, Callable[[], Any]]
) -> Callable[..., Any]:
    """The function of objects. As attributes it has ``flat``, the function of members, and
    ``members``, which gives what is passed for these, by name."""
    name, groups, results = record["name"], record["packed"]["params"], record["packed"]["results"]
    names = [group["name"] for group in groups]
    defaults = {p["name"]: p["default"] for p in shown(record)["params"] if "default" in p}
    count = len(record["params"])

    def unpacked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        values: Sequence[Any] = args
        if kwargs or len(args) != len(names):
            late = {key: value for key, value in defaults.items() if key not in names[: len(args)]}
            values = positional(name, names, args, late | kwargs)
        found: list[Any] = [None] * count
        for group, value in zip(groups, values, strict=True):
            own = _members(name, group, value) if group["struct"] else [value]
            for at, member in zip(group["at"], own, strict=True):
                found[at] = member
        return found

    def call(*args: Any, **kwargs: Any) -> Any:
        return _packed_results(flat(*unpacked(args, kwargs)), results, record["adjoints"], classes)

    def members(*args: Any, **kwargs: Any) -> dict[str, Any]:
        own = [param["name"] for param in record["params"]]
        if not args and kwargs.keys() <= set(own):
            return kwargs  # they are members
        return dict(zip(own, unpacked(args, kwargs), strict=True))

    call.flat = flat  # type: ignore[attr-defined]
    call.members = members  # type: ignore[attr-defined]
    return call


def _members(function: str, group: Record, value: Any) -> list[Any]:
    """The members of an object, in order. In Python that Dynamo can trace."""
    found: list[Any] = []
    try:
        for path in group["paths"]:
            member = value
            for attribute in path:
                member = getattr(member, attribute)
            found.append(member)
    except AttributeError:
        for path in group["paths"]:
            _check_member(function, group, value, path)
        raise
    return found


def _check_member(function: str, group: Record, value: Any, path: Sequence[str]) -> None:
    """TypeError where an object lacks a member."""
    for done, attribute in enumerate(path):
        if not hasattr(value, attribute):
            place = ".".join([group["name"], *path[:done]])
            raise TypeError(
                f"{function}: argument '{place}' has no attribute '{attribute}'; the argument is a "
                f"{group['struct']}, and this is of type {type(value).__name__}"
            ) from None
        value = getattr(value, attribute)


def _packed_results(
    found: Any, groups: Sequence[Record], as_tuple: bool, classes: Mapping[str, Callable[[], Any]]
) -> Any:
    if not any(group["struct"] for group in groups):
        return found
    values = found if isinstance(found, tuple) else (found,)
    out: list[Any] = []
    for group in groups:
        if not group["struct"]:
            out.append(values[group["at"][0]])
            continue
        made = classes[group["struct"]]()
        for at, (*outer, last) in zip(group["at"], group["paths"], strict=True):
            place = made
            for attribute in outer:
                place = getattr(place, attribute)
            setattr(place, last, values[at])
        out.append(made)
    return tuple(out) if as_tuple or len(out) > 1 else out[0]


def flat(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of members; the function itself where it takes and gives no structs."""
    found: Callable[..., Any] = getattr(function, "flat", function)
    return found


def positional(
    function: str, names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    """The arguments in order. TypeError, as the C++ entry raises it."""
    listed = ", ".join(names)
    if len(args) > len(names):
        noun = "argument" if len(names) == 1 else "arguments"
        raise TypeError(f"{function}() takes {len(names)} {noun} ({listed}), got {len(args)}")
    values = list(args)
    for name in kwargs:
        if name not in names:
            raise TypeError(f"{function}() has no argument '{name}'; its arguments are: {listed}")
        if name in names[: len(args)]:
            raise TypeError(f"{function}() got argument '{name}' twice")
    for name in names[len(args) :]:
        if name not in kwargs:
            raise TypeError(f"{function}() misses argument '{name}'; its arguments are: {listed}")
        values.append(kwargs[name])
    return values
