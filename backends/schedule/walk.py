"""What is inside the nodes of loops: blocks, expressions, names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, TypeAlias, TypeVar

from loma.backends.schedule.ir import Node, Test
from loma.core.ir import Expr, Var
from loma.core.walk import free_variables

Block: TypeAlias = tuple[Node, ...]
AnyNode = TypeVar("AnyNode")

# The fields that declare a name: for the rest of the block, or for what is inside of the node.
DECLARATIONS = ("var", "begin", "end", "counter", "first", "last")


def blocks(node: Any) -> tuple[Block, ...]:
    """The blocks of a node, or of a whole tree."""
    values = (getattr(node, field.name) for field in fields(node))
    return tuple(v for v in values if isinstance(v, tuple) and v and isinstance(v[0], Node))


def nodes(block: Sequence[Node]) -> Iterator[Node]:
    """All nodes of a block, the outer ones first."""
    for node in block:
        yield node
        for inner in blocks(node):
            yield from nodes(inner)


def declared(node: Node) -> tuple[Var, ...]:
    """The names that a node declares."""
    found = (getattr(node, name, None) for name in DECLARATIONS)
    return tuple(var for var in found if isinstance(var, Var))


def map_blocks(node: AnyNode, function: Callable[[Block], Block]) -> AnyNode:
    """The node, or the tree, with other blocks."""

    def changed(value: Any) -> Any:
        is_block = isinstance(value, tuple) and value and isinstance(value[0], Node)
        return function(value) if is_block else value

    return _rebuilt(node, changed)


def map_expressions(node: AnyNode, function: Callable[[Expr], Expr]) -> AnyNode:
    """The node with other expressions, in its blocks as well; the names that it declares are among
    them."""

    def changed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        if isinstance(value, Node | Test):
            return _rebuilt(value, changed)
        return function(value) if isinstance(value, Expr) else value

    return _rebuilt(node, changed)


def expressions(node: Node) -> list[Expr]:
    """The expressions of a node itself, without those of its blocks and of what it declares."""
    found: list[Expr] = []

    def look(value: Any) -> None:
        if isinstance(value, Expr):
            found.append(value)
        elif isinstance(value, Test):
            found.extend((value.step, value.rest, value.size))
        elif isinstance(value, tuple) and not (value and isinstance(value[0], Node)):
            for item in value:
                look(item)

    for field in fields(node):
        if field.name not in DECLARATIONS:
            look(getattr(node, field.name))
    return found


def mentioned(node: Node) -> set[str]:
    """The names that a node and its blocks use, those that they declare among them."""
    return {
        name
        for inner in nodes((node,))
        for expr in expressions(inner)
        for name in free_variables(expr)
    }


def _rebuilt(node: AnyNode, function: Callable[[Any], Any]) -> AnyNode:
    new = {field.name: function(getattr(node, field.name)) for field in fields(node)}  # type: ignore[arg-type]
    return replace(node, **new)  # type: ignore[type-var]
