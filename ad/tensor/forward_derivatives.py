"""Forward derivatives of tensor functions in a module: of one that is called there is one for each
set of arguments that vary."""

from __future__ import annotations

from copy import deepcopy

from loma import errors
from loma.ad.activity import carries_derivative
from loma.ad.contributions import PartialName
from loma.ad.growing import GrowingModule
from loma.ad.tensor.derivatives import check_works_on_tensors
from loma.ad.tensor.forward_mode import Forward, ForwardPlan
from loma.ad.tensor.normalise import normalise
from loma.core.ir import Function, replace
from loma.core.walk import calls
from loma.errors.spans import NOWHERE
from loma.passes.first_write import first_writes
from loma.passes.liveness import Liveness


class TensorTangents:
    """Makes forward derivatives of the tensor functions of a module on demand, each once."""

    def __init__(self, growing: GrowingModule, partial_name: PartialName) -> None:
        self._growing = growing
        self._partial_name = partial_name
        self._plans: dict[tuple[str, frozenset[int]], ForwardPlan] = {}

    def forward(self, primal: Function, name: str) -> None:
        """Adds ``name = fwd_diff(primal)``: with a tangent of every float."""
        active = frozenset(k for k, p in enumerate(primal.params) if carries_derivative(p.type))
        self._make(primal, name, active, every=True)

    def instead(self, primal: Function, active: frozenset[int]) -> Function:
        """The forward derivative in the arguments at those positions, with the primal's name."""
        name = self._growing.names.fresh(f"_d_fwd_{primal.name}")
        self._make(primal, name, active, every=True)
        return replace(self._growing.find(name), name=primal.name)

    def plan(self, function: str, active: frozenset[int]) -> ForwardPlan:
        """The forward derivative of a function in the arguments at those positions."""
        key = (function, active)
        if key not in self._plans:
            callee = self._growing.find(function)
            name = self._growing.names.fresh(f"_d_fwd_{function}")
            varied = self._make(callee, name, active, every=False)
            self._plans[key] = ForwardPlan(callee, name, active, varied)
        return self._plans[key]

    def _make(
        self, primal: Function, name: str, active: frozenset[int], every: bool
    ) -> tuple[bool, ...]:
        """Adds a forward derivative; ``every``: results that never vary have a tangent, too."""
        check_works_on_tensors(primal)
        called = {call.function: self._growing.find(call.function) for call in calls(primal.body)}
        try:
            normal = normalise(primal, self._growing.module, pure=False)
            normal.names.take(*called)
            zero: set[str] = set()
            while True:
                again = replace(normal, names=deepcopy(normal.names))
                worker = Forward(again, called, active, zero, self._partial_name, self.plan)
                made = worker.function(every)
                if worker.zero <= zero:
                    break
                zero |= worker.zero
        except errors.UserError as error:
            if error.span == NOWHERE:  # of a statement that a derivative has made
                error.span = primal.span
            raise
        outs = frozenset(p.name for p in made.params if p.mode == "Out")
        body, _ = Liveness(self._growing.module.functions).block(made.body, outs)
        doc = f"Forward derivative of {primal.name}: a value and its tangent for each float."
        # Of a reverse derivative, that has Out arguments which Python does not pass.
        back = primal.name if primal.primal is not None else None
        made = replace(
            made, name=name, body=first_writes(body), doc=doc, primal=back, tangent_of=primal.name,
            half="", derivative_of=None,
        )  # fmt: skip
        self._growing.add(made)
        return worker.varied
