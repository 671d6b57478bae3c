"""Structs as Python objects: ``ray = m.Ray(t=1.0)``, with the members as attributes.

A call takes any object that has the attributes; what it returns is an object of the struct's class.
A type is described by what JSON can hold: ``["float"]``, ``["int"]``, ``["struct", name]``,
``["array", element, size]`` or ``["tensor"]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TypeRecord = Sequence[Any]
StructRecord = tuple[str, Sequence[tuple[str, TypeRecord]]]  # name, members


class StructClass(type):
    """The class of structs' classes. What stands here hides no member of an object."""

    @property
    def dtype(cls) -> Any:
        """The NumPy structure of the same layout: arrays of it are passed without a copy."""
        import numpy as np

        members, classes = _layouts[cls].members, _layouts[cls].classes
        leaves = [part for type_ in members.values() for part in _leaves(type_, classes)]
        is_open = any(None in shape for _, shape in leaves)
        if is_open or any(kind == "tensor" for kind, _ in leaves):
            what = "arrays of any size" if is_open else "tensors"
            raise TypeError(f"{cls.__name__} has {what} in it, which a NumPy structure cannot have")
        if not members:  # C has no empty structs: there is an int in it
            return np.dtype({"names": [], "formats": [], "itemsize": 4})
        return np.dtype([(name, *_field(type_, classes)) for name, type_ in members.items()])


@dataclass(frozen=True, slots=True)
class _Layout:
    """``classes`` are those of the module, by name; ``origin`` gives the module."""

    members: dict[str, TypeRecord]
    classes: Mapping[str, StructClass]
    origin: Callable[[], object]


# Beside the classes, because a member may have any name.
_layouts: dict[type, _Layout] = {}


class Struct(metaclass=StructClass):
    """Members are given in order or by keyword, as a dataclass takes them; the rest are zero."""

    __slots__ = ()

    def __init__(self, /, *values: Any, **members: Any) -> None:
        name, layout = type(self).__name__, _layouts[type(self)]
        if len(values) > len(layout.members):
            raise TypeError(f"{name} has {len(layout.members)} members, got {len(values)} values")
        given = dict(zip(layout.members, values, strict=False))
        for member in members:
            if member in given:
                raise TypeError(f"{name}: member '{member}' is given twice")
            if member not in layout.members:
                raise TypeError(
                    f"{name} has no member '{member}': it has {', '.join(layout.members) or 'none'}"
                )
        given |= members
        for member, type_ in layout.members.items():
            value = given[member] if member in given else zero(type_, layout.classes)
            setattr(self, member, value)

    def __repr__(self) -> str:
        members = ", ".join(f"{name}={_shown(value)}" for name, value in _values(self).items())
        return f"{type(self).__name__}({members})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        mine, others = _values(self), _values(other)
        return all(bool(_plain(mine[name]) == _plain(others[name])) for name in mine)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Callable[..., Struct], tuple[object, str, dict[str, Any]]]:
        return _rebuild, (_layouts[type(self)].origin(), type(self).__name__, _values(self))


def struct_classes(
    structs: Sequence[StructRecord], origin: Callable[[], object]
) -> dict[str, StructClass]:
    """The classes of a module's structs, whose parts come first; ``origin`` gives the module."""
    classes: dict[str, StructClass] = {}
    for name, members in structs:
        # Named afterwards: a class with a name mangles slots that begin with two underscores.
        cls = StructClass("_", (Struct,), {"__slots__": tuple(member for member, _ in members)})
        cls.__name__ = cls.__qualname__ = name
        cls.__module__ = "loma"
        cls.__doc__ = f"The struct {name} of a loma program: {', '.join(m for m, _ in members)}"
        _layouts[cls] = _Layout(dict(members), classes, origin)
        classes[name] = cls
        if any(_has_tensor(type_, classes) for _, type_ in members):
            _register(cls, [member for member, _ in members])
    return classes


def zero(type_: TypeRecord, classes: Mapping[str, StructClass]) -> Any:
    """The all-zero value of a type; an array of any size has no elements, a tensor is None."""
    match type_:
        case ["tensor"]:
            return None
        case ["int"]:
            return 0
        case ["float"]:
            return 0.0
        case ["struct", name]:
            return classes[name]()
        case ["array", element, size]:
            (kind, *_), shape = leaf(type_)
            if size is None and len(shape) == 1 and kind != "struct":
                shape = (0,)
            elif kind == "struct" or None in shape:
                return [zero(element, classes) for _ in range(size or 0)]
            import numpy as np

            return np.zeros(shape, "float32" if kind == "float" else "int32")
        case _:
            raise AssertionError(type_)


def _leaves(
    type_: TypeRecord, classes: Mapping[str, StructClass]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """What the numbers and tensors in a value are, and the sizes of the arrays around them."""
    (kind, *name), shape = leaf(type_)
    yield kind, shape
    if kind == "struct":
        for member in _layouts[classes[name[0]]].members.values():
            yield from _leaves(member, classes)


def _has_tensor(type_: TypeRecord, classes: Mapping[str, StructClass]) -> bool:
    return any(kind == "tensor" for kind, _ in _leaves(type_, classes))


def leaf(type_: TypeRecord) -> tuple[TypeRecord, tuple[Any, ...]]:
    """The type of an array's elements, which is no array, and the sizes."""
    shape: tuple[Any, ...] = ()
    while type_[0] == "array":
        shape += (type_[2],)
        type_ = type_[1]
    return type_, shape


def _field(type_: TypeRecord, classes: Mapping[str, StructClass]) -> tuple[Any, ...]:
    (kind, *name), shape = leaf(type_)
    dtype = classes[name[0]].dtype if name else {"int": "i4", "float": "f4"}[kind]
    return (dtype, shape) if shape else (dtype,)


def _values(struct: Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in _layouts[type(struct)].members}


def _plain(value: Any) -> Any:
    """Arrays and tensors as lists, which compare and print well."""
    return value.tolist() if hasattr(value, "tolist") else value


def _shown(value: Any) -> str:
    """The text of a member; of a large tensor its shape."""
    if hasattr(value, "numel") and value.numel() > 100:
        return f"<tensor of shape {list(value.shape)}>"
    return repr(_plain(value))


def _register(cls: StructClass, members: Sequence[str]) -> None:
    """Lets torch see the tensors in an object: ``torch.func.grad`` and others take and give it."""
    from torch.utils import _pytree

    def unflatten(values: Any, context: Any) -> Any:
        return cls(*values)

    def flatten(struct: Struct) -> tuple[list[Any], None]:
        return [getattr(struct, member) for member in members], None

    def flatten_with_keys(struct: Struct) -> tuple[list[tuple[Any, Any]], None]:
        return [(_pytree.GetAttrKey(m), getattr(struct, m)) for m in members], None

    _pytree.register_pytree_node(cls, flatten, unflatten, flatten_with_keys_fn=flatten_with_keys)


def _rebuild(module: object, name: str, members: dict[str, Any]) -> Struct:
    made: Struct = getattr(module, name)(**members)
    return made
