"""Derivatives of scalar functions in a module: each callee gets one of each kind, once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from loma import errors
from loma.ad.growing import GrowingModule
from loma.ad.own_derivatives import OwnDerivatives, check_serves_calls
from loma.ad.scalar.context import Callee, Variant
from loma.ad.scalar.forward import forward_derivative
from loma.ad.scalar.reverse import Reversal, as_callee
from loma.core.differentials import with_differentials
from loma.core.ir import Declare, Function, Module, Type, replace
from loma.core.walk import calls, statements


class ScalarDerivatives:
    """Makes derivatives on demand, each once; where one that the program names serves, no other is
    made."""

    def __init__(self, growing: GrowingModule) -> None:
        self._growing = growing
        self.own = OwnDerivatives(growing)
        requests = growing.requests
        self._forward_names = {r.of: r.name for r in requests if r.mode == "fwd_diff"}
        self._reverse_names = {r.of: r.name for r in requests if r.mode == "rev_diff"}
        self._callees: dict[tuple[str, Variant], Callee] = {}

    # ---------------------------------------------------------------------------- forward mode

    def forward(self, primal: Function, name: str) -> None:
        """Adds the forward derivative of a function."""
        self._prepare(primal, self.forward_of)
        structs = with_differentials(_types(primal), self._growing.structs())
        derivative = forward_derivative(primal, name, structs, self.forward_of)
        self._growing.add(derivative)
        self._growing.set_structs(structs)

    def forward_of(self, function: str) -> Function:
        """The forward derivative of a function, made now if need be."""
        if function not in self._forward_names:
            name = self._growing.names.fresh(f"_d_fwd_{function}")
            self.forward(self._growing.find(function), name)
            self._forward_names[function] = name
        return self._growing.find(self._forward_names[function])

    # ---------------------------------------------------------------------------- reverse mode

    def reverse(self, primal: Function, name: str) -> None:
        """Adds the reverse derivative of a function, in the form that programs use."""
        own = self.own.of(primal.name)
        if own is not None:
            self.own.explicit(primal, own, name)
            return
        self._prepare(primal, lambda callee: self._reverse_of(callee, Variant()))
        reversal = Reversal(primal, self._growing, self._reverse_of)
        self._growing.add(reversal.derivative(name))

    def _reverse_of(self, function: str, variant: Variant) -> Callee:
        """The derivative of a function in the form that derivatives of its callers use."""
        key = (function, variant)
        if key not in self._callees:
            primal = self._growing.find(function)
            serves = function in self._reverse_names and all(
                param.mode == "In" for param in primal.params
            )
            own = self.own.of(function)
            if own is not None:
                check_serves_calls(primal, own, variant.shared)
                self._callees[key] = as_callee(own, primal)
            elif serves and variant == Variant():
                derivative = self._growing.find(self._reverse_names[function])
                self._callees[key] = as_callee(derivative, primal)
            else:
                suffix = ("_shared" if variant.shared else "") + ("_fresh" if variant.fresh else "")
                name = self._growing.names.fresh(f"_d_rev_{function}{suffix}")
                reversal = Reversal(primal, self._growing, self._reverse_of, variant)
                self._callees[key] = reversal.callee(name)
                self._growing.add(self._callees[key].function)
        return self._callees[key]

    def _prepare(self, primal: Function, derive: Callable[[str], object]) -> None:
        """Makes the derivatives of everything that is called, innermost first: a long chain of
        calls is no deep recursion here. One that does not exist may turn out not to be needed."""
        called: dict[str, None] = {}
        _visit(primal, self._growing.find, called)
        for name in called:
            try:
                derive(name)
            except errors.NotDifferentiable:
                continue


def _types(function: Function) -> Iterator[Type]:
    for param in function.params:
        yield param.type
    yield from function.results
    for stmt in statements(function.body):
        if isinstance(stmt, Declare):
            yield stmt.target.type


def _visit(function: Function, find: Callable[[str], Function], done: dict[str, None]) -> None:
    """Adds what is called from a function to ``done``, callees first, without recursion."""
    stack = [calls(function.body)]
    path: list[str] = []
    while stack:
        for call in stack[-1]:
            name = call.function
            if name not in done:
                path.append(name)
                stack.append(calls(find(name).body))
                break
        else:
            stack.pop()
            if path:
                done[path.pop()] = None


def in_call_order(module: Module, wanted: Iterable[str]) -> Module:
    """The functions that are wanted and those that they call, callees before callers, otherwise in
    the order that the module has."""
    functions = {function.name: function for function in module.functions}
    chosen = set(wanted)
    order: dict[str, None] = {}
    for function in module.functions:
        if function.name in chosen:
            _visit(function, functions.__getitem__, order)
            order.setdefault(function.name)
    return replace(module, functions=tuple(functions[name] for name in order))
