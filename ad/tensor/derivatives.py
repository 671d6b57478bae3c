"""Derivatives of tensor functions in a module: reverse derivatives, split pairs, and the partial
derivatives of the scalar functions that index statements call."""

from __future__ import annotations

from collections.abc import Collection

from loma import errors
from loma.ad.growing import GrowingModule
from loma.ad.scalar.derivatives import ScalarDerivatives
from loma.ad.scalar.reverse import needs_entry_value, reverse_doc
from loma.ad.tensor.entry_values import entry_of
from loma.ad.tensor.joint import Joint, joint_sweeps
from loma.ad.tensor.pairs import CallPlan
from loma.core.saving import SplitPair
from loma.ad.tensor.partials import (
    check_is_value, has_only_numbers, partial_derivative, partial_from_forward,
)  # fmt: skip
from loma.ad.tensor.split import split
from loma.core.ir import Declare, Function, Param, Stmt, Var, replace
from loma.core.printer import print_type
from loma.core.saving import Save
from loma.core.walk import aggregates
from loma.errors.spans import NOWHERE
from loma.passes.liveness import Liveness


class TensorDerivatives:
    """Makes derivatives on demand, each once."""

    def __init__(
        self, growing: GrowingModule, scalar: ScalarDerivatives, save: Save = "auto"
    ) -> None:
        self._save = save
        self._growing = growing
        self._scalar = scalar
        self._partials: dict[tuple[str, int], str] = {}
        self._pairs: dict[str, SplitPair] = {}

    def partial(self, function: str, position: int) -> str:
        """The name of a scalar function's partial derivative in one argument."""
        key = (function, position)
        if key not in self._partials:
            source = self._growing.find(function)
            wish = f"_d_{function.lstrip('_')}_d_{source.params[position].name.lstrip('_')}"
            name = self._partials[key] = self._growing.names.fresh(wish)
            own = self._scalar.own.of(function)
            if own is not None:
                check_is_value(source)
                self._scalar.own.partial(source, own, position, name)
            elif has_only_numbers(source):
                self._growing.add(partial_derivative(source, position, name, self.partial))
            else:
                forward = self._scalar.forward_of(function)
                self._growing.add(partial_from_forward(source, position, name, forward))
        return self._partials[key]

    def plan(self, function: str) -> CallPlan:
        """How a call of a tensor function is differentiated."""
        pair = self.pair(function)
        find = self._growing.find
        return CallPlan(find(function), pair, find(pair.forward))

    def reverse(self, primal: Function, name: str) -> None:
        """Adds ``name = rev_diff(primal)``."""
        own = self._scalar.own.of(primal.name)
        if own is not None:
            self._scalar.own.explicit(primal, own, name)
            return
        joint = self._joint(primal)
        params, start, body = _signature(primal, joint)
        outs = frozenset(param.name for param in params if param.mode == "Out")
        analysis = Liveness(self._growing.module.functions)
        body, needed = analysis.block(body, outs)
        _check_entry_values(primal, joint, needed)
        start, _ = analysis.block(start, needed)
        made = Function(name, params, (), (*start, *body), doc=reverse_doc(primal))
        self._growing.add(replace(made, span=primal.span, primal=primal.name))

    def pair(self, function: str) -> SplitPair:
        """The split pair of a tensor function, added to the module at first use."""
        if function in self._pairs:
            return self._pairs[function]
        primal = self._growing.find(function)
        own = self._scalar.own.of(function)
        fresh = self._growing.names.fresh
        names = fresh(f"{function}__forward"), fresh(f"{function}__backward")
        if own is not None:
            pair = self._scalar.own.pair(primal, own, names)
        else:
            joint = self._joint(primal)
            functions = self._growing.module.functions
            forward, backward, pair = split(primal, joint, names, functions, self._save)
            self._growing.add(forward)
            self._growing.add(backward)
        self._pairs[function] = pair
        return pair

    def _joint(self, primal: Function) -> Joint:
        check_works_on_tensors(primal)
        try:
            return joint_sweeps(primal, lambda: self._growing.module, self.partial, self.plan)
        except errors.UserError as error:
            if error.span == NOWHERE:  # of a statement that a derivative has made
                error.span = primal.span
            raise


def check_works_on_tensors(primal: Function) -> None:
    """Refuses to differentiate a tensor function with arrays, structs or stacks."""
    for type_, span in aggregates(primal):
        raise errors.NotDifferentiable(
            f"'{primal.name}' works on tensors, and {print_type(type_)} belongs to scalar "
            "functions: it has no derivative",
            span,
            hint="put what needs it into a scalar function, and call that in an index statement",
        )


def _check_entry_values(primal: Function, joint: Joint, needed: Collection[str]) -> None:
    """Refuses a derivative that needs the value of an ``Out`` argument on entry; ``needed`` are the
    variables of which the derivative reads what it has not written itself."""
    for param in primal.params:
        if param.mode == "In" or param.name not in needed:
            continue
        read = entry_of(joint.normal, param.name).read
        if read is None:
            continue
        error = needs_entry_value(primal, param, read, "if what is read here has been written")
        error.related = ((param.span, "declared here"),)
        raise error


def _signature(
    primal: Function, joint: Joint
) -> tuple[tuple[Param, ...], tuple[Stmt, ...], tuple[Stmt, ...]]:
    """Arguments, declarations and body of ``rev_diff`` by the language's convention: each In
    argument is followed by its adjoint as Out, each Out argument is replaced by its adjoint as In,
    adjoints of the results come last."""
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
    return tuple(params), tuple(start), (*joint.declarations, *joint.forward, *joint.adjoint)
