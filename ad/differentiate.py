"""Derivatives of whole modules."""

from __future__ import annotations

from collections.abc import Mapping

from loma import errors
from loma.ad.activity import carries_derivative
from loma.ad.growing import GrowingModule
from loma.ad.scalar.derivatives import ScalarDerivatives, in_call_order
from loma.ad.tensor.derivatives import TensorDerivatives
from loma.ad.tensor.forward_derivatives import TensorTangents
from loma.ad.tensor.normalise import pure_results
from loma.core.saving import SplitPair
from loma.core.aliases import CERTAIN, meetings
from loma.core.ir import Call, Derivative, Function, Module, Struct, is_tensor_function, replace
from loma.core.names import module_names
from loma.core.saving import Save
from loma.core.walk import calls, is_place, root


class _Differentiator:
    """Adds derivatives to a module."""

    def __init__(
        self, module: Module, requests: tuple[Derivative, ...] = (), save: Save = "auto"
    ) -> None:
        self.growing = GrowingModule(module, requests, self._make)
        self._scalar = ScalarDerivatives(self.growing)
        self.tensor = TensorDerivatives(self.growing, self._scalar, save)
        self.tangents = TensorTangents(self.growing, self.tensor.partial)

    def _make(self, request: Derivative, primal: Function) -> None:
        """Adds a derivative that the program asks for."""
        if request.mode == "rev_diff":
            layer = self.tensor if is_tensor_function(primal) else self._scalar
            layer.reverse(primal, request.name)
        else:
            ahead = self.tangents if is_tensor_function(primal) else self._scalar
            ahead.forward(primal, request.name)


def differentiate(module: Module) -> Module:
    """The module with every derivative that it asks for, the requests replaced by functions."""
    worker = _Differentiator(replace(module, derivatives=()), module.derivatives)
    for request in module.derivatives:
        worker.growing.find(request.name)
    functions = {function.name: function for function in worker.growing.module.functions}
    for function in module.functions:
        for call in calls(function.body):
            _check_used_up(call, functions[call.function], function, worker.growing.structs())
    return in_call_order(worker.growing.module, module_names(module))


def _check_used_up(
    call: Call, callee: Function, caller: Function, structs: Mapping[str, Struct]
) -> None:
    """Refuses to pass what may not be written to for an adjoint that a derivative uses up. What a
    derivative uses up is not known when a program is read."""
    for name in callee.used_up:
        k = next(k for k, param in enumerate(callee.params) if param.name == name)
        arg, what = call.args[k], f"argument '{name}' of '{callee.name}'"
        constants = {param.name for param in caller.params if param.mode == "In"}
        if not is_place(arg) or root(arg) in constants:
            raise errors.ArgOutNotLValue(
                f"{what} is an adjoint of an array of unknown length, which the derivative sets to "
                "zero where the array is overwritten, and this array cannot be written to",
                arg.span,
                hint="pass a copy: a variable of known length, or an Out argument",
            )
        for first, second, condition in meetings(call, callee, structs):
            if k in (first, second) and condition == CERTAIN:
                raise errors.AliasedOutArgument(
                    f"{what} is written to, and the same storage is passed for another argument",
                    arg.span,
                    hint="pass a copy",
                )


def split_pairs(
    module: Module, names: list[str] | None = None, save: Save = "auto"
) -> tuple[Module, tuple[SplitPair, ...]]:
    """The module with the split pairs of its tensor functions (or of those that are named).

    ``save``: what the forward parts hand over; see :mod:`loma.ad.tensor.saving`.
    """
    worker = _Differentiator(module, save=save)
    chosen = (
        names if names is not None else [f.name for f in module.functions if is_tensor_function(f)]
    )
    wanted = [
        name for name in chosen
        if any(carries_derivative(p.type) for p in module.function(name).params)
        and pure_results(module.function(name))
    ]  # fmt: skip
    pairs = tuple(worker.tensor.pair(name) for name in wanted)
    return worker.growing.module, pairs


def with_tangents(module: Module, name: str, active: frozenset[int]) -> Module:
    """The module with the forward derivative of a tensor function in its place: in the arguments at
    those positions, with a tangent of every float result."""
    worker = _Differentiator(module)
    made = worker.tangents.instead(worker.growing.find(name), active)
    # A derivative that the program gives is that of what stood in this place.
    others = (
        replace(f, derivative_of=None) if f.derivative_of == name else f
        for f in worker.growing.module.functions
    )
    functions = tuple(made if f.name == name else f for f in others)
    return in_call_order(replace(worker.growing.module, functions=functions), module_names(module))
