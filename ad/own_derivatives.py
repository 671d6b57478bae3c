"""Derivatives of one's own: what the program gives, by ``@derivative(f)``, in the forms in which
derivatives are asked for."""

from __future__ import annotations

from loma import errors
from loma.ad.activity import carries_derivative, zeros_like
from loma.ad.growing import GrowingModule
from loma.ad.tensor.entry_values import entry_of
from loma.ad.tensor.needs import guard_by_need
from loma.ad.tensor.normalise import normalise, pure_results
from loma.ad.tensor.pairs import Arguments
from loma.core.saving import Source, SplitPair
from loma.core import builder as b
from loma.core.ir import (
    ArrayType, Call, CallStmt, Declare, Expr, Function, Module, Param, Return, Stmt, TupleType,
    Unpack, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import calls
from loma.passes.first_write import first_writes


class OwnDerivatives:
    """The derivatives that a program gives itself."""

    def __init__(self, growing: GrowingModule) -> None:
        self._growing = growing
        self._names = {
            function.derivative_of: function.name
            for function in growing.module.functions
            if function.derivative_of is not None
        }

    def of(self, primal: str) -> Function | None:
        """The derivative of a function, with what it calls in the module; None for one of AD's."""
        if primal not in self._names:
            return None
        own = self._growing.find(self._names[primal])
        for call in calls(own.body):
            self._growing.find(call.function)
        return own

    def explicit(self, primal: Function, own: Function, name: str) -> None:
        """Adds ``name = rev_diff(primal)``."""
        made = replace(own, name=name, primal=primal.name, derivative_of=None)
        self._growing.add(made)

    def pair(self, primal: Function, own: Function, names: tuple[str, str]) -> SplitPair:
        """Adds both parts: the function as it is, and its derivative of the same arguments."""
        _check_sets_all(primal, own, self._growing.module)
        taken = Names(names_of(own) | {call.function for call in calls(own.body)})
        arguments = Arguments()
        start: list[Stmt] = []
        adjoints: dict[int, Var] = {}
        given = iter(own.params)
        seeds: list[Param] = []
        for k, param in enumerate(primal.params):
            if param.mode == "Out":
                seeds.append(next(given))
                continue
            value, adjoint = next(given), next(given)
            arguments.add(value.name, value.type, Source("arg", k))
            var = Var(adjoint.name, adjoint.type)
            start.append(Declare(var, zeros_like(Var(value.name, value.type))))
            if carries_derivative(adjoint.type):
                adjoints[k] = var
        for k, seed in enumerate([*given, *seeds]):
            if carries_derivative(seed.type):
                arguments.add(seed.name, seed.type, Source("grad", k))
            else:
                start.append(Declare(Var(seed.name, seed.type), None))
        needs = arguments.add_needs(primal, adjoints, taken)
        functions = self._growing.module.functions
        body = guard_by_need(first_writes((*start, *own.body)), needs, functions)
        forward = replace(
            primal, name=names[0], params=tuple(replace(p, mode="In") for p in primal.params),
            results=pure_results(primal), body=_called(primal), primal=primal.name, half="forward",
            doc=f"{primal.name}, whose derivative is {own.name}.",
        )  # fmt: skip
        backward = replace(
            own, name=names[1], params=tuple(arguments.params),
            results=tuple(var.type for var in adjoints.values()),
            body=(*body, Return(tuple(adjoints.values()))), primal=primal.name, half="backward",
            derivative_of=None, doc=f"Adjoints of the arguments of {primal.name}, by {own.name}.",
        )  # fmt: skip
        self._growing.add(forward)
        self._growing.add(backward)
        return SplitPair(primal.name, *names, tuple(arguments.sources), tuple(adjoints), ())

    def partial(self, primal: Function, own: Function, position: int, name: str) -> None:
        """Adds the partial derivative of a scalar function in one argument."""
        taken = Names(names_of(primal))
        body: list[Stmt] = []
        args: list[Expr] = []
        wanted: Expr = b.flt(0)
        for k, param in enumerate(primal.params):
            if isinstance(param.type, ArrayType):
                raise errors.NotDifferentiable(
                    f"'{primal.name}' has a derivative of its own and takes an array, so a "
                    "derivative of the index statement that calls it cannot use that",
                    own.span,
                )
            adjoint = Var(taken.fresh(f"_d_{param.name.lstrip('_')}"), param.type)
            body.append(Declare(adjoint, None))
            args += [Var(param.name, param.type), adjoint]
            wanted = adjoint if k == position else wanted
        call = Call(own.name, (*args, b.flt(1)), TupleType(()))
        doc = f"The derivative of {primal.name} in {primal.params[position].name}, by {own.name}."
        body += [CallStmt(call), Return((wanted,))]
        self._growing.add(replace(primal, name=name, body=tuple(body), doc=doc))


def _called(primal: Function) -> tuple[Stmt, ...]:
    """A body that calls a function, so that derivatives of it are those of the function."""
    names = Names(names_of(primal))
    args = {param.name: Var(param.name, param.type) for param in primal.params}
    outs = [param for param in primal.params if param.mode == "Out"]
    if outs:
        made = {p.name: Var(names.fresh(f"{p.name}_local"), p.type) for p in outs}
        start = tuple(Declare(var, args[name]) for name, var in made.items())
        call = Call(primal.name, tuple((args | made).values()), TupleType(()))
        return *start, CallStmt(call), Return(tuple(made.values()))
    results = tuple(Var(names.fresh("_result"), type_) for type_ in primal.results)
    if len(results) == 1:
        call = Call(primal.name, tuple(args.values()), results[0].type)
        return Declare(results[0], call), Return(results)
    call = Call(primal.name, tuple(args.values()), TupleType(primal.results))
    return Unpack(results, call), Return(results)


def _check_sets_all(primal: Function, own: Function, module: Module) -> None:
    """Refuses a derivative of one's own that does not tell what the adjoints of ``Out`` arguments
    are on entry: they are zero where the function sets all of each and reads no former value."""
    outs = [param for param in primal.params if param.mode == "Out"]
    if not outs:
        return
    normal = normalise(primal, module)
    for param in outs:
        entry = entry_of(normal, param.name)
        if entry.read is None and not entry.kept:
            continue
        what = "reads" if entry.read is not None else "keeps"
        raise errors.NotDifferentiable(
            f"'{own.name}' does not say what the adjoint of '{param.name}' was before the call, "
            f"and '{primal.name}' {what} values that this Out argument had",
            own.span,
            hint=f"set all of '{param.name}' before it is read, or pass those values as an In "
            "argument",
            related=((param.span if entry.read is None else entry.read, f"{what} them here"),),
        )


def check_serves_calls(primal: Function, own: Function, shared: bool) -> None:
    """Refuses to use a derivative of one's own where it says too little: inside those of functions
    that call the function."""
    if any(param.mode == "Out" for param in primal.params):
        raise errors.NotDifferentiable(
            f"'{own.name}' cannot serve the derivatives of functions that call '{primal.name}': it "
            "does not say what the adjoint of an Out argument was before the call",
            own.span,
            hint=f"return what '{primal.name}' computes, or leave its derivative to rev_diff",
            related=((primal.span, "defined here"),),
        )
    if shared:
        raise errors.NotDifferentiable(
            f"'{own.name}' cannot serve the derivative of a @simd function that calls "
            f"'{primal.name}': work items share the adjoints that it adds to",
            own.span,
            hint=f"leave the derivative of '{primal.name}' to rev_diff",
            related=((primal.span, "defined here"),),
        )
