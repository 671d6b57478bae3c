"""Derivatives of whole functions, and of whole modules."""

from __future__ import annotations

from dataclasses import replace

from loma import errors
from loma.ad.calls import CallPlan
from loma.ad.forward import has_only_numbers, partial_derivative, partial_from_forward
from loma.ad.joint import Joint, joint_sweeps
from loma.ad.pairs import SplitPair
from loma.ad.scalar.reverse import reverse_doc
from loma.ad.scalar_layer import ScalarDerivatives, in_call_order
from loma.ad.split import split
from loma.ir import (
    Declare, Derivative, Function, Module, Param, Stmt, Struct, Var, is_tensor_function,
)  # fmt: skip
from loma.names import Names, module_names
from loma.passes.liveness import Liveness
from loma.printer import print_type
from loma.walk import aggregates


class Differentiator:
    """Adds derivatives to a module.

    ``requests`` are the derivatives that the program itself names; each is made when it is first
    looked for.
    """

    def __init__(self, module: Module, requests: tuple[Derivative, ...] = ()) -> None:
        self.module = module
        self._names = Names(module_names(module))
        self._names.take(*(request.name for request in requests))
        self._requests = {request.name: request for request in requests}
        self._partials: dict[tuple[str, int], str] = {}
        self._pairs: dict[str, SplitPair] = {}
        self._scalar = ScalarDerivatives(self.find, self._add, self._names, requests)

    def _add(self, function: Function, structs: dict[str, Struct] | None = None) -> None:
        own = self.module.structs
        self.module = replace(
            self.module,
            functions=(*self.module.functions, function),
            structs=own if structs is None else tuple(structs.values()),
        )

    def find(self, name: str) -> tuple[Function, Module]:
        """A function of the module, made now if it is a derivative that was asked for; and the
        module with it."""
        request = self._requests.pop(name, None)
        if request is not None:
            primal, _ = self.find(request.of)
            if request.mode == "rev_diff":
                self.reverse(primal, name)
            else:
                self._forward(primal, request)
        return self.module.function(name), self.module

    def _forward(self, primal: Function, request: Derivative) -> None:
        if is_tensor_function(primal):
            raise errors.NotDifferentiable(
                f"'{primal.name}' has tensors, and fwd_diff takes scalar functions",
                request.span,
                hint=f"use reverse mode: {request.name} = rev_diff({primal.name})",
            )
        self._scalar.forward(primal, request.name)

    def partial(self, function: str, position: int) -> str:
        """The name of a scalar function's partial derivative in one argument."""
        key = (function, position)
        if key not in self._partials:
            source = self.module.function(function)
            wish = f"_d_{function.lstrip('_')}_d_{source.params[position].name.lstrip('_')}"
            name = self._partials[key] = self._names.fresh(wish)
            if has_only_numbers(source):
                self._add(partial_derivative(source, position, name, self.partial))
            else:
                forward = self._scalar.forward_of(function)
                self._add(partial_from_forward(source, position, name, forward))
        return self._partials[key]

    def plan(self, function: str) -> CallPlan:
        """How a call of a tensor function is differentiated."""
        pair = self.pair(function)
        find = self.module.function
        return CallPlan(find(function), pair, find(pair.forward), find(pair.backward))

    def reverse(self, primal: Function, name: str) -> None:
        """Adds ``name = rev_diff(primal)``."""
        if not is_tensor_function(primal):
            self._scalar.reverse(primal, name)
            return
        joint = self._joint(primal)
        params, body = _signature(primal, joint)
        outs = frozenset(param.name for param in params if param.mode == "Out")
        body, _ = Liveness(self.module.functions).block(body, outs)
        doc = reverse_doc(primal)
        self._add(Function(name, params, (), body, doc=doc, span=primal.span, primal=primal.name))

    def pair(self, function: str) -> SplitPair:
        """The split pair of a tensor function, added to the module at first use."""
        if function not in self._pairs:
            primal = self.module.function(function)
            joint = self._joint(primal)
            names = (
                self._names.fresh(f"{function}__forward"),
                self._names.fresh(f"{function}__backward"),
            )
            forward, backward, pair = split(primal, joint, names, self.module.functions)
            self._add(forward)
            self._add(backward)
            self._pairs[function] = pair
        return self._pairs[function]

    def _joint(self, primal: Function) -> Joint:
        for type_, span in aggregates(primal):
            raise errors.NotDifferentiable(
                f"'{primal.name}' works on tensors, and {print_type(type_)} belongs to scalar "
                "functions: it has no derivative",
                span,
                hint="put what needs it into a scalar function, and call that in an index "
                "statement",
            )
        return joint_sweeps(primal, lambda: self.module, self.partial, self.plan)


def _signature(primal: Function, joint: Joint) -> tuple[tuple[Param, ...], tuple[Stmt, ...]]:
    """Arguments and body of ``rev_diff`` by the language's convention: each In argument is followed
    by its adjoint as Out, each Out argument is replaced by its adjoint as In, adjoints of the
    results come last."""
    params: list[Param] = []
    start: list[Stmt] = []
    count = len(primal.results)
    outs = iter(joint.seeds[count:])
    for param in primal.params:
        adjoint = joint.adjoints[param.name]
        if param.mode == "In":
            params += [param, Param(adjoint.name, param.type, "Out")]
        else:
            # The derivative is not given the initial value, and has no place for its adjoint.
            params.append(Param(next(outs).name, param.type, "In"))
            start += [Declare(Var(param.name, param.type), None), Declare(adjoint, None)]
    params += [Param(seed.name, seed.type, "In") for seed in joint.seeds[:count]]
    return tuple(params), (*start, *joint.declarations, *joint.forward, *joint.adjoint)


def differentiate(module: Module) -> Module:
    """The module with every derivative that it asks for, the requests replaced by functions."""
    worker = Differentiator(replace(module, derivatives=()), module.derivatives)
    for request in module.derivatives:
        worker.find(request.name)
    return in_call_order(worker.module, module_names(module))


def split_pairs(
    module: Module, names: list[str] | None = None
) -> tuple[Module, tuple[SplitPair, ...]]:
    """The module with the split pairs of its tensor functions (or of those that are named)."""
    from loma.ad.activity import carries_derivative

    worker = Differentiator(module)
    chosen = (
        names if names is not None else [f.name for f in module.functions if is_tensor_function(f)]
    )
    wanted = [
        name for name in chosen
        if any(carries_derivative(p.type) for p in module.function(name).params)
    ]  # fmt: skip
    pairs = tuple(worker.pair(name) for name in wanted)
    return worker.module, pairs
