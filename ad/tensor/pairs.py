"""How calls of the two parts of a split function are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loma import errors
from loma.ad.tensor.normalise import call_types, pure_results
from loma.core.ir import (
    FLOAT, INT, Call, Expr, Function, IntConst, IntType, Param, TensorType, Type, Var,
)  # fmt: skip
from loma.core.names import Names
from loma.core.saving import Source, SplitPair
from loma.core.sizes import Binding


@dataclass(frozen=True, slots=True)
class Arguments:
    """The backward function's arguments while they are collected."""

    params: list[Param] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)

    def add(self, name: str, type_: Type, source: Source) -> None:
        self.params.append(Param(name, type_, "In"))
        self.sources.append(source)

    def add_needs(
        self, primal: Function, adjoints: Mapping[int, Var], names: Names
    ) -> dict[str, Var]:
        """An int for each adjoint, by position of the argument, that says whether it is wanted; by
        names of the adjoints."""
        needs: dict[str, Var] = {}
        for k, adjoint in adjoints.items():
            need = Var(names.fresh(f"_need_{primal.params[k].name.lstrip('_')}"), INT)
            self.add(need.name, INT, Source("need", k))
            needs[adjoint.name] = need
        return needs


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
