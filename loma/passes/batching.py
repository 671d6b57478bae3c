"""A function for many samples at once: the batching rule of ``torch.func.vmap``.

Arguments that differ between samples have a leading dimension more, and so has each variable that
depends on one. Samples never meet, so one statement after the other runs for all of them:

    y[i] = a * x[i] + sum(w[j] for j in N)

is, where ``x`` and ``a`` are batched, ``y[sample, i] = a[sample] * x[sample, i] + sum(...)``. What
depends on no sample is computed once. Of operators the table says whether a leading dimension
passes through them (``OpInfo.batches``). What is left (a branch or a trip count that a sample's
values decide, an operator or a call that takes no further dimension) runs for one sample after the
other, in a loop over copies of what belongs to the sample.
"""

from __future__ import annotations

from collections.abc import Collection

from loma.core import builder as b
from loma.core import sizes
from loma.core.effects import effects, written
from loma.core.ir import (
    FLOAT, INT, Assign, Attr, Axis, Declare, Expr, For, Function, If, Index, IndexAssign, IntConst,
    Module, NoDiff, Op, Param, Return, Stmt, TensorType, Type, Unpack, Var, While, Zero,
    is_tensor_function, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.ops import OPS
from loma.core.walk import (
    aggregates, blocks, map_blocks, map_children, map_expressions, mentioned_names, reads_of_type,
    root, statements, variables,
)  # fmt: skip


def batched(module: Module, name: str, positions: Collection[int]) -> Module | None:
    """The module with that function for samples in which the arguments at those positions differ.

    Each of these has a leading dimension of the same size, and so has each result that depends on
    one. None where the function's meaning does not let it: some tensor has any rank, a size follows
    from a sample's values, or the program gives a derivative itself, which is that of one sample.
    """
    functions = {function.name: function for function in module.functions}
    tensor_functions = {f.name for f in module.functions if is_tensor_function(f)}
    if any(f.derivative_of in tensor_functions for f in module.functions):
        return None
    try:
        made = _Batching(functions[name], functions, positions).function()
    except _Refused:
        return None
    return replace(module, functions=tuple(made if f.name == name else f for f in module.functions))


class _Refused(Exception):
    """The function has no batched form."""


class _OneByOne(Exception):
    """A statement runs for one sample after the other."""


class _Batching:
    def __init__(
        self, function: Function, functions: dict[str, Function], positions: Collection[int]
    ) -> None:
        self._function = function
        self._functions = functions
        types = {p.name: p.type for p in function.params}
        for stmt in statements(function.body):
            types |= {var.name: var.type for var in effects(stmt).declares}
        ranks = (t.dims is None for t in types.values() if isinstance(t, TensorType))
        if any(ranks) or any(aggregates(function)):
            raise _Refused
        self._types = types
        self._batched = self._depending({function.params[k].name for k in positions})
        for type_ in types.values():
            if reads_of_type(type_) & self._batched:
                raise _Refused
        names = Names(names_of(function) | functions.keys())
        self._names = names
        self._axis = Axis(names.fresh("_sample"), Var(names.fresh("_samples"), INT))
        self._own = Var(self._axis.name, INT)
        self._new = {name: Var(name, self._wider(types[name])) for name in self._batched}
        self._hoisted: list[Stmt] = []  # declarations that stand before the outermost statement
        self._positions = frozenset(positions)

    def function(self) -> Function:
        body: list[Stmt] = []
        params: list[Param] = []
        changed = written(self._function.body, self._functions)
        for k, param in enumerate(self._function.params):
            differs = k in self._positions or (param.mode == "Out" and param.name in self._new)
            new = replace(param, type=self._wider(param.type)) if differs else param
            params.append(new)
            if param.mode == "In" and param.name in self._new and param.name in changed:
                body += self._own_copy(new)
        results = self._function.results
        for stmt in self._function.body:
            if isinstance(stmt, Return):
                made, results = self._returned(stmt)
            else:
                made = self._statement(stmt)
            body += [*self._hoisted, *made]
            self._hoisted = []
        return replace(
            self._function, params=tuple(params), results=results, body=tuple(body), defaults=()
        )

    def _own_copy(self, param: Param) -> list[Stmt]:
        """A number that the function changes, which it may not do to a tensor that it is given."""
        own = Var(self._names.fresh(f"_{param.name}"), self._new[param.name].type)
        self._new[param.name] = own
        kind = self._types[param.name]
        value: Expr = Var(param.name, param.type)
        if param.type != kind:
            value = Index(value, (self._own,), kind)
        place = Index(own, (self._own,), kind)
        return [Declare(own, None), IndexAssign(place, "=", value, (self._axis,))]

    # ------------------------------------------------------------------------- what is batched

    def _depending(self, batched: set[str]) -> set[str]:
        """The variables that depend on these."""
        found = set(batched)

        def block(body: tuple[Stmt, ...], inside: bool) -> None:
            for stmt in body:
                own = effects(stmt, self._functions)
                depends = inside or any(found & set(variables(expr)) for expr in own.reads)
                if depends:
                    found.update(root(place) for place in own.writes)
                    found.update(var.name for var in own.declares)
                for inner in blocks(stmt):
                    block(inner, depends)

        while True:
            before = len(found)
            block(self._function.body, inside=False)
            if len(found) == before:
                return found & self._types.keys()

    def _depends(self, expr: Expr) -> bool:
        return not self._batched.isdisjoint(variables(expr))

    def _wider(self, type_: Type) -> Type:
        match type_:
            case TensorType(tuple() as dims):
                return replace(type_, dims=(self._axis.extent, *dims))
            case _ if type_ == FLOAT:
                return TensorType((self._axis.extent,))
            case _ if type_ == INT:
                return TensorType((self._axis.extent,), "int")
            case _:
                raise _Refused

    # ------------------------------------------------------------------------------ statements

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(new for stmt in body for new in self._statement(stmt))

    def _statement(self, stmt: Stmt) -> list[Stmt]:
        if self._batched.isdisjoint(mentioned_names((stmt,))):
            return [stmt]
        try:
            return self._at_once(stmt)
        except _OneByOne:
            return self._one_by_one(stmt)

    def _at_once(self, stmt: Stmt) -> list[Stmt]:
        match stmt:
            case Declare(target, None):
                return [replace(stmt, target=self._new[target.name])]
            case Declare(Var(name, TensorType()), value) if value is not None:
                return [replace(stmt, target=self._new[name], value=self._whole(value))]
            case Declare(target, value) if value is not None:
                new = Declare(self._new[target.name], None, stmt.span)
                return [new, *self._statement(Assign(target, "=", value, stmt.span))]
            case Assign(Var(name, TensorType()), _, value):
                return [replace(stmt, target=self._new[name], value=self._whole(value))]
            case Assign(Var() as target, op, value):
                place = Index(self._new[target.name], (self._own,), target.type)
                return [IndexAssign(place, op, self._element(value), (self._axis,), stmt.span)]
            case IndexAssign(target, _, value, axes):
                if any(self._depends(axis.extent) for axis in axes):
                    raise _OneByOne
                element = self._element(target)
                assert isinstance(element, Index)
                value = self._element(value)
                return [replace(stmt, target=element, value=value, axes=(self._axis, *axes))]
            case Zero(Var(name)):
                return [replace(stmt, target=self._new[name])]
            case For(_, decides) | If(decides) | While(decides) if not self._depends(decides):
                return [map_blocks(stmt, self._block)]
            case _:
                raise _OneByOne

    def _element(self, expr: Expr) -> Expr:
        """A number of the sample that the statement's axis says."""
        match expr:
            case Index(Var(name) as base, subscripts) if isinstance(base.type, TensorType):
                inner = tuple(map(self._element, subscripts))
                if name in self._new:
                    base, inner = replace(self._new[name], span=base.span), (self._own, *inner)
                return replace(expr, base=base, subscripts=inner)
            case Var(name, type_) if name in self._new:
                if isinstance(type_, TensorType):
                    raise _OneByOne
                return Index(self._new[name], (self._own,), type_, expr.span)
            case Op():
                raise _OneByOne
            case _:
                return map_children(expr, self._element)

    def _one_by_one(self, stmt: Stmt) -> list[Stmt]:
        """The statement as it is, in a loop, on copies of what belongs to the sample."""
        if isinstance(stmt, Declare):
            assert stmt.value is not None
            declared = [Declare(self._new[stmt.target.name], None, stmt.span)]
            return [*declared, *self._one_by_one(Assign(stmt.target, "=", stmt.value, stmt.span))]
        changed = written((stmt,), self._functions)
        if isinstance(stmt, Unpack):
            known = {p.name for p in self._function.params}
            for target in stmt.targets:
                if target.name not in known and not self._is_declared(target.name):
                    self._hoisted.append(Declare(self._new[target.name], None))
        own = sorted(self._batched & mentioned_names((stmt,)))
        copies = {name: Var(self._names.fresh(f"_{name}"), self._types[name]) for name in own}
        self._hoisted += [Declare(copy, None) for copy in copies.values()]
        inside: list[Stmt] = [self._moved(copies[n], n, out=False) for n in own]
        inside.append(map_expressions(stmt, lambda expr: _renamed(expr, copies)))
        inside += [self._moved(copies[name], name, out=True) for name in own if name in changed]
        return [For(self._axis.name, self._axis.extent, tuple(inside), span=stmt.span)]

    def _is_declared(self, name: str) -> bool:
        every = statements(self._function.body)
        return any(isinstance(s, Declare) and s.target.name == name for s in every)

    def _moved(self, copy: Var, name: str, out: bool) -> Stmt:
        """What copies the sample's part of a variable, or back."""
        dims = enumerate(sizes.dims_of(copy))
        axes = tuple(Axis(self._names.fresh(f"_i{k}"), dim) for k, dim in dims)
        places = tuple(Var(axis.name, INT) for axis in axes)
        ints = copy.type == INT or (isinstance(copy.type, TensorType) and copy.type.integer)
        kind = INT if ints else FLOAT
        part = Index(self._new[name], (self._own, *places), kind)
        own = Index(copy, places, kind) if isinstance(copy.type, TensorType) else copy
        if out:
            return IndexAssign(part, "=", own, axes)
        return Assign(own, "=", part) if isinstance(own, Var) else IndexAssign(own, "=", part, axes)

    # ---------------------------------------------------------------------------- whole tensors

    def _whole(self, value: Expr) -> Expr:
        """A tensor with a leading dimension for the sample."""
        match value:
            case _ if not self._depends(value):
                dims = _dims(value)
                one = b.operator("reshape", [value], {"shape": (IntConst(1), *dims)})
                return b.operator("expand", [one], {"shape": (self._axis.extent, *dims)})
            case Var(name):
                return replace(self._new[name], span=value.span)
            case NoDiff(operand):
                inner = self._whole(operand)
                return replace(value, operand=inner, type=inner.type)
            case Op():
                return self._operator(value)
            case _:
                raise _OneByOne

    def _operator(self, value: Op) -> Expr:
        row = OPS[value.name]
        attrs = dict(value.attrs)
        given = [e for v in attrs.values() for e in (v if isinstance(v, tuple) else (v,))]
        scalars = (arg for arg in value.args if not isinstance(arg.type, TensorType))
        if row.batches is None or any(map(self._depends, [*given, *scalars])):
            raise _OneByOne
        dims = _dims(value)
        first, *others = value.args
        if row.batches != "along" and any(map(self._depends, others)):
            raise _OneByOne
        if row.batches == "any":
            return b.operator(value.name, [self._whole(first), *others], dict(attrs), value.span)
        if row.batches == "first":
            if (shape := attrs.get("shape")) is not None:
                assert isinstance(shape, tuple)
                attrs["shape"] = (self._together(shape[0]), *shape[1:])
            joined = (self._together(_dims(first)[0]), *_dims(first)[1:])
            x = b.operator("reshape", [self._whole(first)], {"shape": joined})
            made = b.operator(value.name, [x, *others], dict(attrs), value.span)
            return b.operator("reshape", [made], {"shape": (self._axis.extent, *dims)}, value.span)
        if value.name == "expand" and len(_dims(first)) != len(dims):
            raise _OneByOne
        for attr in row.attrs:
            attrs[attr.name] = self._shifted(value.name, attr.name, attr.kind, attrs[attr.name])
        args = [self._whole(arg) for arg in value.args]
        return b.operator(value.name, args, dict(attrs), value.span)

    def _together(self, size: Expr) -> Expr:
        return sizes.product((self._axis.extent, size))

    def _shifted(self, operator: str, name: str, kind: str, value: Attr) -> Attr:
        """An attribute of an operator whose tensors have a dimension more."""

        def behind(dim: Expr) -> Expr:
            place = sizes.constant(dim)
            assert place is not None
            return IntConst(place + 1) if place >= 0 else dim

        if kind == "dim":
            assert isinstance(value, IntConst)
            return behind(value)
        if kind == "dims":
            assert isinstance(value, tuple)
            if not value:  # all of them
                raise _OneByOne
            moved = tuple(map(behind, value))
            return (IntConst(0), *moved) if operator == "permute" else moved
        if name == "shape":
            assert isinstance(value, tuple)
            return (self._axis.extent, *value)
        return value

    def _returned(self, stmt: Return) -> tuple[list[Stmt], tuple[Type, ...]]:
        """The statements of the function's end, and the types of its results."""
        made: list[Stmt] = []
        values: list[Expr] = []
        types: list[Type] = []
        for value, type_ in zip(stmt.values, self._function.results, strict=True):
            if not self._depends(value):
                values.append(value)
                types.append(type_)
                continue
            if isinstance(
                value.type, TensorType
            ):  # whose rank may be known where the result's is not
                type_ = value.type
            if not isinstance(value, Var):
                result = Var(self._names.fresh("_result"), type_)
                self._types[result.name] = type_
                self._new[result.name] = replace(result, type=self._wider(type_))
                self._batched.add(result.name)
                made += self._statement(Declare(result, value, stmt.span))
                value = result
            values.append(self._new[value.name])
            types.append(self._wider(type_))
        return [*made, replace(stmt, values=tuple(values))], tuple(types)


def _dims(value: Expr) -> tuple[Expr, ...]:
    assert isinstance(value.type, TensorType)
    assert value.type.dims is not None
    return value.type.dims


def _renamed(expr: Expr, new: dict[str, Var]) -> Expr:
    if isinstance(expr, Var):
        return replace(new[expr.name], span=expr.span) if expr.name in new else expr
    return map_children(expr, lambda child: _renamed(child, new))
