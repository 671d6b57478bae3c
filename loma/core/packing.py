"""Structs with tensors: what a caller sees of functions that take and give them.

A struct with tensors is no type of the IR. Each member is an argument, a result or a variable of
its own: ``l : In[Layer]`` is ``l_w : In[Tensor[O, K]], l_b : In[Tensor[O]]``. What stands here says
what belongs together, for those who call its functions and for messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Slot:
    """An argument or a result of a function as it is compiled: the member at ``path`` of what the
    program calls ``name``, a ``struct``; or all of it, if that is "" and the path empty."""

    name: str
    struct: str = ""
    path: tuple[str, ...] = ()
    mode: Literal["In", "Out"] = "In"


@dataclass(frozen=True, slots=True)
class Packing:
    """The arguments and results of one function, in the order in which it is compiled."""

    params: tuple[Slot, ...]
    results: tuple[Slot, ...]

    @property
    def has_structs(self) -> bool:
        return any(slot.struct for slot in (*self.params, *self.results))


@dataclass(frozen=True, slots=True)
class Packings:
    """Of a module: ``functions`` by name, those with structs; ``structs`` with the types of their
    members ("tensor", "int", "float" or a struct's name), parts first; ``shown`` is what the
    program calls the variables that stand for members."""

    functions: Mapping[str, Packing] = field(default_factory=dict)
    structs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)
