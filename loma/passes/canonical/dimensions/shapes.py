"""One shape for tensors that are each other in another shape.

    z : [B, G, C * H * W];  t = reshape(z, [B, G * C, H, W]);  y[b, c, h, w] = t[b, c, h, w] * s[c]

With an index for each of B, G, C, H and W both are the same elements in the same order, so the
statements that make ``z`` and read ``t`` may run in the same loops:

    y[b, g, c, h, w] = z[b, g, c, h, w] * s[g * C + c]

Local tensors get as many dimensions as these shapes have divisors in common, and so do all that
have an index with them. Arguments and results keep theirs: a local tensor that is an argument in
another shape, or is returned in one, takes over the dimensions of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from loma.core import builder as b, sizes
from loma.core.effects import declared, written
from loma.core.ir import (
    INT, Assign, Axis, Binary, Declare, Expr, For, Function, If, Index, IndexAssign, IntConst,
    Module, Op, Reduce, Return, Stmt, TensorType, Var, While, Zero, ZeroPad, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    children, expressions, free_variables, map_blocks, map_children, map_tensor_functions,
    mentioned_names, numbered, own_names, statements, substitute, subscript_variables,
    variables, walk,
)  # fmt: skip

ONE = IntConst(1)
LARGEST = 8  # parts of one dimension

Dim = tuple[str, int]  # of a tensor
Node = Dim | tuple[int, str]  # or an index: which statement, and its name there
Parts = dict[Node, tuple[Expr, ...]]
Link = tuple[tuple[Node, ...], tuple[Node, ...]]


def shapes(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, _with_shapes)


def _with_shapes(function: Function) -> Function:
    if not any(_is_link(stmt) for stmt in function.body):
        return function
    return _Shapes(function).run()


def _is_link(stmt: Stmt) -> bool:
    match stmt:
        case Declare(Var(), value) if value is not None:
            return _is_reshaped(value)
        case Return(values):
            return any(map(_is_reshaped, values))
        case _:
            return False


def _is_reshaped(value: Expr) -> bool:
    return isinstance(value, Op) and value.name == "reshape" and isinstance(value.args[0], Var)


class _Differ(Exception):
    """Two shapes have no divisors in common."""


class _Shapes:
    def __init__(self, function: Function) -> None:
        function = replace(function, body=numbered(function.body))
        self._function = function
        self._names = Names(names_of(function))
        self._sizes = frozenset(sizes.size_variables(function))
        self._locals = self._own_tensors()
        self._arguments = self._read_arguments()
        self._extents = {stmt.number: _extents(stmt) for stmt in self._index_statements()}
        self._fixed: set[Node] = set()
        self._joined: list[Link] = []
        self._parts: Parts = {}
        self._one: dict[str, str] = {}  # under which name a tensor goes on

    def run(self) -> Function:
        for name, var in self._locals.items():
            for position, dim in enumerate(sizes.dims_of(var)):
                self._parts[name, position] = () if dim == ONE else (dim,)
        for own in self._index_statements():
            self._join(own)
        links = [found for stmt in self._function.body for found in self._links(stmt)]
        # What is local alone first: the others say which dimensions stay as they are.
        links.sort(key=lambda found: any(node in self._fixed for side in found[1] for node in side))
        accepted = [stmt for stmt, link in links if self._accept(link)]
        if not accepted:
            return self._function
        for stmt in self._function.body:
            if isinstance(stmt, Declare) and any(stmt is other for other in accepted):
                self._unite(stmt)
        body = tuple(new for stmt in self._function.body for new in self._statement(stmt))
        return replace(self._function, body=body)

    # ------------------------------------------------------------------------------ what may change

    def _own_tensors(self) -> dict[str, Var]:
        """The local tensors whose every use is known to this pass."""
        function = self._function
        found: dict[str, Var] = {}
        for stmt in function.body:
            match stmt:
                case Declare(Var(name, TensorType(tuple() as dims)) as var, value) if (
                    value is None
                    or (isinstance(value.type, TensorType) and sizes.same(value.type.dims, dims))
                ):
                    if all(self._is_shape(dim) for dim in dims):
                        found[name] = var
        nested = (stmt for stmt in function.body if isinstance(stmt, If | For | While))
        others = declared(tuple(nested)) | {param.name for param in function.params}
        for each in statements(function.body):
            others |= _other_uses(each)
        return {name: var for name, var in found.items() if name not in others}

    def _read_arguments(self) -> dict[str, Var]:
        """The arguments that are never written."""
        changed = written(self._function.body)
        found = (Var(p.name, p.type) for p in self._function.params if p.name not in changed)
        return {
            var.name: var
            for var in found
            if isinstance(var.type, TensorType)
            and var.type.dims is not None
            and all(map(self._is_shape, var.type.dims))
        }

    def _is_shape(self, dim: Expr) -> bool:
        constant = sizes.constant(dim)
        return free_variables(dim) <= self._sizes and (constant is None or constant > 0)

    def _index_statements(self) -> Iterator[IndexAssign]:
        return (s for s in statements(self._function.body) if isinstance(s, IndexAssign))

    def _join(self, stmt: IndexAssign) -> None:
        """Whichever dimensions an index of a statement goes through are divided as it is."""
        number, extents = stmt.number, self._extents[stmt.number]
        for name, extent in extents.items():
            self._parts[number, name] = () if extent == ONE else (extent,)
            if _is_contraction(stmt):
                self._fixed.add((number, name))
        for place in _places(stmt):
            if not (isinstance(place.base, Var) and place.base.name in self._locals):
                continue
            tensor = place.base
            pairs = zip(place.subscripts, sizes.dims_of(tensor), strict=True)
            for position, (subscript, dim) in enumerate(pairs):
                node = (tensor.name, position)
                if _goes_through(subscript, dim, extents):
                    assert isinstance(subscript, Var)
                    self._joined.append(((node,), ((number, subscript.name),)))
                else:
                    self._fixed.add(node)

    # ------------------------------------------------------------------------------------- divisors

    def _accept(self, link: Link) -> bool:
        """Divides dimensions so that a tensor and what it is in another shape have the same, where
        that can be."""
        before, joined = dict(self._parts), list(self._joined)
        self._joined.append(link)
        try:
            while any(self._divide(*nodes) for nodes in self._joined):
                pass
        except _Differ:
            self._parts, self._joined = before, joined
            return False
        return True

    def _links(self, stmt: Stmt) -> Iterator[tuple[Stmt, Link]]:
        match stmt:
            case Declare(Var(new), Op("reshape", (Var(old),))) if new in self._locals:
                if old in self._locals:
                    yield stmt, (self._nodes(self._locals[new]), self._nodes(self._locals[old]))
                elif old in self._arguments:
                    given = self._fixed_nodes(old, sizes.dims_of(self._arguments[old]))
                    yield stmt, (self._nodes(self._locals[new]), given)
            case Return(values):
                for k, value in enumerate(values):
                    match value:
                        case Op("reshape", (Var(own),)) if own in self._locals:
                            dims = sizes.dims_of(value)
                            if all(map(self._is_shape, dims)):
                                # No variable has such a name.
                                given = self._fixed_nodes(f"result {k}", dims)
                                yield stmt, (self._nodes(self._locals[own]), given)
                        case _:
                            pass
            case _:
                pass

    def _fixed_nodes(self, name: str, dims: tuple[Expr, ...]) -> tuple[Node, ...]:
        """Those of a tensor that keeps its dimensions."""
        for position, dim in enumerate(dims):
            self._parts[name, position] = () if dim == ONE else (dim,)
            self._fixed.add((name, position))
        return tuple((name, position) for position in range(len(dims)))

    def _nodes(self, tensor: Var) -> tuple[Node, ...]:
        return tuple((tensor.name, position) for position in range(len(sizes.dims_of(tensor))))

    def _divide(self, left: tuple[Node, ...], right: tuple[Node, ...]) -> bool:
        """Divides a part where two rows of parts differ first; False where they do not."""
        one, other = (
            [(node, place) for node in side for place in range(len(self._parts[node]))]
            for side in (left, right)
        )
        for mine, yours in zip(one, other, strict=False):
            size, wanted = self._part(*mine), self._part(*yours)
            if sizes.equal(size, wanted) is True:
                continue
            if not (self._split(*mine, wanted) or self._split(*yours, size)):
                raise _Differ
            return True
        if len(one) != len(other):
            raise _Differ
        return False

    def _part(self, node: Node, place: int) -> Expr:
        return self._parts[node][place]

    def _split(self, node: Node, place: int, first: Expr) -> bool:
        parts = self._parts[node]
        rest = sizes.quotient(parts[place], first)
        exact = sizes.equal(sizes.product((first, rest)), parts[place]) is True
        are_sizes = all(sizes.is_nonnegative(e, self._sizes.__contains__) for e in (first, rest))
        if not (exact and are_sizes) or node in self._fixed or len(parts) == LARGEST:
            return False
        self._parts[node] = (*parts[:place], first, rest, *parts[place + 1 :])
        return True

    # ----------------------------------------------------------------------------------- statements

    def _statement(self, stmt: Stmt) -> list[Stmt]:
        match stmt:
            case Declare(Var(name)) if name in self._one:
                return []
            case Declare(Var(name) as var, value) if name in self._locals and value is not None:
                return [replace(stmt, target=self._new(var), value=self._as(var, value))]
            case Declare(Var(name) as var) | Zero(Var(name) as var) if name in self._locals:
                return [replace(stmt, target=self._new(var))]
            case Assign(Var(name) as var, _, value) if name in self._locals:
                return [replace(stmt, target=self._new(var), value=self._as(var, value))]
            case Declare(_, value) | Assign(_, _, value) if value is not None:
                return [replace(stmt, value=self._whole(value))]
            case Return(values):
                return [replace(stmt, values=self._results(values))]
            case IndexAssign():
                return [self._index_statement(stmt)]
            case _:
                return [map_blocks(stmt, self._block)]

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(new for stmt in body for new in self._statement(stmt))

    def _unite(self, stmt: Stmt) -> None:
        """Gives both tensors of a link one name, if from there on they are the same, or only the
        new one is mentioned."""
        assert isinstance(stmt, Declare)
        assert isinstance(stmt.value, Op)
        new, old = stmt.target, stmt.value.args[0]
        assert isinstance(old, Var)
        first = self._one.get(old.name, old.name)
        others = {name for name, one in self._one.items() if one == first} | {first}
        after = self._function.body[self._function.body.index(stmt) + 1 :]
        looked_at = mentioned_names(after) & others or first in self._arguments
        if written(after) & {new.name, *others} and looked_at:
            return
        if sizes.same(sizes.dims_of(self._new(new)), sizes.dims_of(self._new(old))):
            self._one[new.name] = first

    def _new(self, var: Var) -> Var:
        """A tensor with its new dimensions, under the name of the first of those that are one."""
        if var.name not in self._locals:
            return var
        nodes = self._nodes(self._locals[var.name])
        parts = (self._parts[node] or (ONE,) for node in nodes)
        dims = tuple(dim for own in parts for dim in own)
        name = self._one.get(var.name, var.name)
        if name in self._arguments:
            return self._arguments[name]
        assert isinstance(var.type, TensorType)
        same = len(dims) == len(nodes)
        type_ = var.type if same else replace(var.type, dims=dims)
        return var if same and name == var.name else replace(var, name=name, type=type_)

    def _as(self, var: Var, value: Expr) -> Expr:
        """The value of a whole tensor, for one with new dimensions."""
        new = self._new(var)
        value = self._whole(value)
        return value if new == var else _reshaped(value, sizes.dims_of(new))

    def _whole(self, expr: Expr) -> Expr:
        """With the old dimensions for each tensor that is not read element by element."""
        if isinstance(expr, Var):
            new = self._new(expr)
            return expr if new == expr else _reshaped(new, sizes.dims_of(expr))
        return map_children(expr, self._whole)

    def _results(self, values: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Returned values; a local tensor as it is, where it has the shape of the result now."""
        found: list[Expr] = []
        for k, value in enumerate(values):
            others = {name for v in (*values[:k], *values[k + 1 :]) for name in variables(v)}
            new = self._whole(value)
            match _inside(new):
                case Var(name) as tensor if tensor != new:
                    dims = sizes.dims_of(value)
                    own = name not in self._arguments and others.isdisjoint(variables(value))
                    same = own and sizes.same(sizes.dims_of(tensor), dims)
                    new = tensor if same else _reshaped(tensor, dims)
                case _:
                    pass
            found.append(new)
        return tuple(found)

    def _index_statement(self, stmt: IndexAssign) -> IndexAssign:
        number = stmt.number
        indices = {
            name: tuple(Axis(self._names.fresh(name), part) for part in self._parts[number, name])
            for name in self._extents[number]
            if len(self._parts[number, name]) > 1
        }
        flat = {name: _flat(axes) for name, axes in indices.items()}
        value = partial(self._element, indices, flat)
        target = value(stmt.target)
        assert isinstance(target, Index | Var)
        axes = _divided(stmt.axes, indices, flat)
        return replace(stmt, target=target, value=value(stmt.value), axes=axes)

    def _element(
        self, indices: Mapping[str, tuple[Axis, ...]], flat: dict[str, Expr], expr: Expr
    ) -> Expr:
        again = partial(self._element, indices, flat)
        match expr:
            case Index(Var(name) as tensor, subscripts) if self._new(tensor) != tensor:
                places: list[Expr] = []
                for position, subscript in enumerate(subscripts):
                    if len(self._parts[name, position]) > 1:
                        assert isinstance(subscript, Var)
                        places += (Var(axis.name, INT) for axis in indices[subscript.name])
                    else:
                        places.append(again(subscript))
                return replace(expr, base=self._new(tensor), subscripts=tuple(places))
            case Var(name, TensorType()):
                return self._whole(expr)
            case Var(name):
                return flat.get(name, expr)
            case Reduce(axes=axes):
                new = map_children(expr, again)
                assert isinstance(new, Reduce)
                return replace(new, axes=_divided(axes, indices, flat))
            case _:
                return map_children(expr, again)


def _other_uses(stmt: Stmt) -> set[str]:
    """The tensors that a statement uses neither as a whole nor element by element in loops."""
    match stmt:
        case IndexAssign(target, _, value):
            return {*_misused(target), *_misused(value)}
        case Declare(Var(), value) | Assign(Var(), _, value) if value is not None:
            return {*_misused(value, whole=True)}
        case Return(values):
            return {name for value in values for name in _misused(value, whole=True)}
        case Declare() | Zero(Var()):
            return set()
        case If() | For() | While():
            return {name for e in expressions(stmt) for name in variables(e)}
        case _:
            return set(own_names(stmt))


def _misused(expr: Expr, whole: bool = False) -> Iterator[str]:
    """The tensors in an expression that are no operands of operators and, where it stands for a
    whole tensor, have elements there; in loops, those that are no operands and have no elements."""
    match expr:
        case Var(name, TensorType()):
            if not whole:
                yield name
        case Index(Var(name), subscripts):
            if whole:
                yield name
            for subscript in subscripts:
                yield from _misused(subscript, whole)
        case Op(_, args):
            for arg in args:
                yield from _misused(arg, whole=True)
        case _:
            for child in children(expr):
                yield from _misused(child, whole=False) if not whole else variables(child)


def _places(stmt: IndexAssign) -> Iterator[Index]:
    for expr in (stmt.target, stmt.value):
        yield from (node for node in walk(expr) if isinstance(node, Index))


def _extents(stmt: IndexAssign) -> dict[str, Expr]:
    """Of the indices of a statement whose names mean one thing in all of it."""
    found = {axis.name: axis.extent for axis in stmt.axes}
    free = free_variables(stmt.value) - set(found)
    unclear = set(free)
    for node in walk(stmt.value):
        for axis in node.axes if isinstance(node, Reduce) else ():
            if sizes.equal(found.setdefault(axis.name, axis.extent), axis.extent) is not True:
                unclear.add(axis.name)
    return {name: extent for name, extent in found.items() if name not in unclear}


def _goes_through(subscript: Expr, dim: Expr, extents: Mapping[str, Expr]) -> bool:
    if not isinstance(subscript, Var) or subscript.name not in extents:
        return False
    return sizes.equal(extents[subscript.name], dim) is True


def _is_contraction(stmt: IndexAssign) -> bool:
    """Whether a statement may be a product of matrices, which has no other shape."""
    summand = stmt.value.body if isinstance(stmt.value, Reduce) else stmt.value
    if not isinstance(stmt.value, Reduce) and stmt.op == "=":
        return False
    if not (isinstance(summand, Binary) and summand.op == "*"):
        return False
    parts = (p.read if isinstance(p, ZeroPad) else p for p in (summand.left, summand.right))
    reads = [part for part in parts if isinstance(part, Index)]
    own = {subscript_variables(read) for read in reads}
    return len(reads) == 2 and len(own) == 2


def _flat(axes: tuple[Axis, ...]) -> Expr:
    """The index that those of its parts are."""
    found: Expr = Var(axes[0].name, INT)
    for axis in axes[1:]:
        found = b.binary("+", b.binary("*", found, axis.extent), Var(axis.name, INT))
    return found


def _divided(
    axes: tuple[Axis, ...], indices: Mapping[str, tuple[Axis, ...]], flat: dict[str, Expr]
) -> tuple[Axis, ...]:
    whole = (Axis(axis.name, substitute(axis.extent, flat)) for axis in axes)
    return tuple(part for axis in whole for part in indices.get(axis.name, (axis,)))


def _reshaped(tensor: Expr, dims: tuple[Expr, ...]) -> Expr:
    """In another shape; that of what is already in another one is its last."""
    return b.operator("reshape", (_inside(tensor),), {"shape": dims})


def _inside(value: Expr) -> Expr:
    """What is given another shape."""
    while isinstance(value, Op) and value.name == "reshape":
        value = value.args[0]
    return value
