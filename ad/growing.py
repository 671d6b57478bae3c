"""A module to which derivatives are added."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loma.core.ir import Derivative, Function, Module, Struct, replace
from loma.core.names import Names, module_names
from loma.passes.old_values import old_values, without_overlap


class GrowingModule:
    """The module as it is now; ``names`` hands out names that nothing in it has.

    ``requests`` are the derivatives that the program itself names; ``make(request, primal)`` adds
    one when it is first looked for.
    """

    def __init__(
        self,
        module: Module,
        requests: tuple[Derivative, ...],
        make: Callable[[Derivative, Function], None],
    ) -> None:
        self.module = old_values(module)
        self.names = Names(module_names(module))
        self.names.take(*(request.name for request in requests))
        self.requests = requests
        self._open = {request.name: request for request in requests}
        self._make = make

    def add(self, function: Function) -> None:
        function = without_overlap(function)
        self.module = replace(self.module, functions=(*self.module.functions, function))

    def set_structs(self, structs: Mapping[str, Struct]) -> None:
        self.module = replace(self.module, structs=tuple(structs.values()))

    def structs(self) -> dict[str, Struct]:
        return {struct.name: struct for struct in self.module.structs}

    def find(self, name: str) -> Function:
        """A function of the module, made now if it is a derivative that was asked for."""
        request = self._open.pop(name, None)
        if request is not None:
            self._make(request, self.find(request.of))
        return self.module.function(name)
