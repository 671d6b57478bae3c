"""Fresh names: what the compiler adds to a program never clashes with the program's own names."""

from __future__ import annotations

from collections.abc import Iterable

from loma.ir import Declare, For, Function, IndexAssign, Module, Reduce, TensorType, Unpack
from loma.walk import expressions, statements, variables, walk


class Names:
    """Hands out names that are not taken; the same requests give the same names."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}  # the last number that a wish was given

    def take(self, *names: str) -> None:
        self._taken.update(names)

    def fresh(self, wish: str) -> str:
        """``wish`` itself, else ``wish_1``, ``wish_2``, ..."""
        name, number = wish, self._numbers.get(wish, 0)
        while name in self._taken:
            number += 1
            name = f"{wish}_{number}"
        self._taken.add(name)
        self._numbers[wish] = number
        return name


def names_of(function: Function) -> set[str]:
    """Every name that the function's text mentions, sizes and indices included."""
    found = {param.name for param in function.params}
    for type_ in [param.type for param in function.params] + list(function.results):
        if isinstance(type_, TensorType) and type_.dims is not None:
            found.update(name for dim in type_.dims for name in variables(dim))
    for stmt in statements(function.body):
        match stmt:
            case For(counter):
                found.add(counter)
            case IndexAssign(_, _, _, axes):
                found.update(axis.name for axis in axes)
            case Declare(target) if isinstance(target.type, TensorType) and target.type.dims:
                found.update(name for dim in target.type.dims for name in variables(dim))
            case Unpack(targets):
                found.update(target.name for target in targets)
            case _:
                pass
        for expr in expressions(stmt):
            found.update(variables(expr))
            for node in walk(expr):
                if isinstance(node, Reduce):
                    found.update(axis.name for axis in node.axes)
    return found


def module_names(module: Module) -> set[str]:
    """The names at module level."""
    return (
        {function.name for function in module.functions}
        | {struct.name for struct in module.structs}
        | {derivative.name for derivative in module.derivatives}
    )
