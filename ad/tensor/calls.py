"""What reverse mode needs to know of a tensor function that is called: its split pair."""

from __future__ import annotations

from dataclasses import dataclass

from loma import errors
from loma.ad.tensor.normalise import call_types, pure_results
from loma.ad.tensor.pairs import Source, SplitPair
from loma.core.ir import FLOAT, Call, Expr, Function, IntConst, IntType, TensorType, Type, Var
from loma.core.sizes import Binding


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How a call of ``primal`` runs in the two sweeps."""

    primal: Function
    pair: SplitPair
    forward_function: Function

    def saved_types(self, args: tuple[Expr, ...]) -> list[Type]:
        """Types of the saved values in the caller's sizes."""
        saved = self.forward_function.results[len(pure_results(self.primal)) :]
        return call_types(self.forward_function, args, saved)

    def adjoint_types(self, args: tuple[Expr, ...]) -> list[Type]:
        """Types of the arguments' adjoints in the caller's sizes."""
        return [args[k].type if isinstance(args[k].type, TensorType) else FLOAT
                for k in self.pair.differentiable]  # fmt: skip

    def backward_call(
        self,
        args: tuple[Expr, ...],
        results: tuple[Var, ...],
        saved: tuple[Var, ...],
        grads: tuple[Var, ...],
        wanted: set[int],
    ) -> Call:
        """The call of the backward function."""
        given = {"arg": args, "result": results, "saved": saved, "grad": grads}
        values: list[Expr] = []
        for source in self.pair.sources:
            if source.kind == "need":
                values.append(IntConst(int(source.index in wanted)))
            elif source.kind == "size":
                values.append(_size(args[source.index], source))
            else:
                values.append(given[source.kind][source.index])
        return Call(self.pair.backward, tuple(values), FLOAT)


def _size(arg: Expr, source: Source) -> Expr:
    if isinstance(arg.type, IntType):
        return arg
    assert isinstance(arg.type, TensorType)
    if arg.type.dims is None:
        raise errors.NotDifferentiable(
            "the derivative of this call needs the sizes of an argument of unknown rank",
            arg.span,
            hint="declare the argument with its sizes: Tensor[N, ...]",
        )
    at = Binding(source.index, source.dim, source.scale, source.offset)
    return at.value(arg.type.dims[source.dim])
