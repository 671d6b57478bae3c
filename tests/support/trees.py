"""Trees of functions, and changed ones, which are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from loma.backends import registry
from loma.backends.cfamily.device import Device
from loma.backends.schedule.host import HostNode
from loma.backends.torch import codegen
from loma.core.ir import Function, Module

DROP = object()  # a change that takes a node out

Change = Callable[[Any], Any]


def tree_of(
    function: Function, module: Module, device: Device | None = None
) -> tuple[HostNode, ...]:
    device = device or registry.CPU
    return codegen.tree_of(function, codegen.steps_of(function, device), module, device)[1]


def _is_node(value: Any) -> bool:
    return is_dataclass(value) and type(value).__module__.startswith("loma.backends.schedule")


def nodes_of(value: Any) -> Iterator[Any]:
    """All nodes of a tree, and what they are made of."""
    if isinstance(value, tuple):
        for item in value:
            yield from nodes_of(item)
    elif _is_node(value):
        yield value
        for field in fields(value):
            yield from nodes_of(getattr(value, field.name))


def changed(value: Any, change: Change) -> Any:
    """The tree with every node changed, the innermost ones first."""
    if isinstance(value, tuple):
        items = (changed(item, change) for item in value)
        return tuple(item for item in items if item is not DROP)
    if not _is_node(value):
        return value
    new = {field.name: changed(getattr(value, field.name), change) for field in fields(value)}
    return change(replace(value, **new))


def of(kind: type[Any], where: Callable[[Any], bool] = lambda _: True, /, **new: Any) -> Change:
    """Other fields for nodes of a kind, which are values or functions of the node; none: it is
    taken out."""

    def change(node: Any) -> Any:
        if not isinstance(node, kind) or not where(node):
            return node
        if not new:
            return DROP
        return replace(node, **{k: v(node) if callable(v) else v for k, v in new.items()})

    return change
