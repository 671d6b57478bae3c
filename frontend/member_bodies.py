"""Bodies of functions with structs that have tensors: each member is a variable of its own.

``l.w[o, k]`` is a read of the variable that stands for the member, ``f(x, l)`` passes the members,
``l = f(x)`` takes them apart, and ``a = l`` assigns one after the other.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from loma import errors
from loma.frontend.arguments import passed
from loma.core.packing import Packing, Slot
from loma.frontend.members import Layouts
from loma.frontend.scope import span_of
from loma.frontend.syntax.python_syntax import elts

_Node = TypeVar("_Node", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class _Part:
    """A struct: a variable, or a member of one."""

    variable: str
    path: tuple[str, ...]
    struct: str


@dataclass(frozen=True, slots=True)
class _Group:
    """An argument or a result as the program has it; ``struct`` is "" for what is none."""

    name: str
    struct: str
    slots: tuple[Slot, ...]


def _groups(slots: tuple[Slot, ...]) -> list[_Group]:
    found: dict[str, tuple[Slot, ...]] = {}
    for slot in slots:
        found[slot.name] = (*found.get(slot.name, ()), slot)
    return [_Group(name, own[0].struct, own) for name, own in found.items()]


def flatten(node: ast.FunctionDef, layouts: Layouts) -> None:
    """Rewrites a body, in place; the header has been already."""
    node.body = _Body(layouts, node.name).block(node.body)


class _Body(ast.NodeTransformer):
    """``_structs`` are variables that are structs, ``_others`` those that are known not to be."""

    def __init__(self, layouts: Layouts, name: str) -> None:
        self._layouts = layouts
        self._name = name
        self._packing = layouts.packings[name]
        params = {slot.name: slot.struct for slot in self._packing.params}
        self._structs = {name: struct for name, struct in params.items() if struct}
        self._others = params.keys() - self._structs.keys()

    def block(self, nodes: list[ast.stmt]) -> list[ast.stmt]:
        around = dict(self._structs), set(self._others)
        out = [new for node in nodes for new in self._statement(node)]
        self._structs, self._others = around
        return out

    # ---------------------------------------------------------------------------- statements

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        match node:
            case ast.AnnAssign(target=ast.Name(), annotation=kind) if self._layouts.struct(kind):
                return self._declare(node)
            case ast.AnnAssign(target=ast.Name(id=name)):
                self._others |= {name} - self._structs.keys()
                return [self.visit(node)]
            case ast.Assign(targets=[target], value=value):
                return self._assign(node, target, value)
            case ast.Return(value=value) if value is not None:
                return [self._return(node, value)]
            case ast.Expr(value=ast.Call(func=ast.Name(id="zero"), args=[arg])) if (
                part := self._part(arg)
            ):
                zero = _name("zero", node.value, ast.Load())
                return [
                    _at(ast.Expr(_at(ast.Call(zero, [leaf], []), node.value)), node)
                    for leaf in self._leaves(part, arg)
                ]
            case ast.If() | ast.For() | ast.While():
                if isinstance(node, ast.For):
                    self._check_counter(node.target)
                    node.iter = self.visit(node.iter)
                else:
                    node.test = self.visit(node.test)
                node.body, node.orelse = self.block(node.body), self.block(node.orelse)
                return [node]
            case _:
                return [self.visit(node)]

    def _declare(self, node: ast.AnnAssign) -> list[ast.stmt]:
        assert isinstance(node.target, ast.Name)
        name, struct = node.target.id, self._layouts.struct(node.annotation)
        assert struct is not None
        if name in self._structs or name in self._others:
            raise errors.DuplicateVariable(
                f"'{name}' is already a variable", span_of(node.target), var=name,
                hint="a struct is assigned without its type",
            )  # fmt: skip
        out: list[ast.stmt] = []
        for path, kind in self._layouts.leaves(node.annotation, span_of(node.annotation)):
            target = _name(self._layouts.flat(name, path), node.target, ast.Store())
            out.append(_at(ast.AnnAssign(target, kind, None, 1), node))
        self._structs[name] = struct
        if node.value is not None:
            assign = _at(ast.Assign([node.target], node.value), node)
            out += self._assign(assign, node.target, node.value)
        return out

    def _check_counter(self, target: ast.expr) -> None:
        if isinstance(target, ast.Name) and target.id in self._structs:
            raise errors.DuplicateVariable(
                f"'{target.id}' is already a variable", span_of(target), var=target.id,
                hint="use another name",
            )  # fmt: skip

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self._check_counter(node.target)
        return self.generic_visit(node)

    def _assign(self, node: ast.Assign, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        given = self._part(value)
        if given is not None:
            new = isinstance(target, ast.Name) and target.id not in self._structs
            leaves = self._leaves(given, value)
            places = self._places(target, given.struct, value)
            kind_of = ast.Name(given.struct, ast.Load())
            kinds = [kind for _, kind in self._layouts.leaves(kind_of, span_of(node))]
            return [
                _at(ast.AnnAssign(place, kind, leaf, 1), node)
                if new and isinstance(kind, ast.Name) and kind.id in ("int", "float")
                else _at(ast.Assign([place], leaf), node)
                for place, kind, leaf in zip(places, kinds, leaves, strict=True)
            ]
        groups = self._results(value)
        if groups is None:
            part = self._part(target)
            if part is not None:
                raise errors.AssignTypeMismatch(
                    f"'{ast.unparse(target)}' is a {part.struct}, and this is none", span_of(value),
                    hint=f"assign a {part.struct}, or the members one by one",
                )  # fmt: skip
            node.value, node.targets = self.visit(value), [self.visit(target)]
            self._others |= {target.id} if isinstance(target, ast.Name) else set()
            return [node]
        items = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        if len(items) != len(groups):
            assert isinstance(value, ast.Call)
            raise errors.AssignTypeMismatch(
                f"'{ast.unparse(value.func)}' has {errors.counted(len(groups), 'result')}, and "
                f"{len(items)} {'variable is' if len(items) == 1 else 'variables are'} given",
                span_of(node),
            )
        call = self.visit(value)
        flat: list[ast.expr] = []
        for item, group in zip(items, groups, strict=True):
            struct = group.struct
            flat += self._places(item, struct, value) if struct else [self.visit(item)]
        node.value = call
        node.targets = [flat[0] if len(flat) == 1 else _at(ast.Tuple(flat, ast.Store()), target)]
        return [node]

    def _results(self, value: ast.expr) -> list[_Group] | None:
        """The results of a call of a function that gives structs."""
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name)):
            return None
        packing = self._layouts.packings.get(value.func.id)
        if packing is None or not any(slot.struct for slot in packing.results):
            return None
        return _groups(packing.results)

    def _places(self, target: ast.expr, struct: str, value: ast.expr) -> list[ast.Name]:
        """What takes the members of a struct; a name that is new is one from now on."""
        known = self._structs.keys() | self._others
        if isinstance(target, ast.Name) and target.id not in known:
            self._structs[target.id] = struct
        part = self._part(target)
        if part is None or part.struct != struct:
            own = "of another type" if part is None else f"a {part.struct}"
            raise errors.AssignTypeMismatch(
                f"'{ast.unparse(target)}' is {own} and cannot take a {struct}", span_of(target),
                hint=f"assign to a variable or a member that is a {struct}",
                related=((span_of(value), f"this gives a {struct}"),),
            )  # fmt: skip
        return self._leaves(part, target, ast.Store())

    def _return(self, node: ast.Return, value: ast.expr) -> ast.stmt:
        groups = _groups(self._packing.results)
        items = elts(value)
        if not any(group.struct for group in groups):
            node.value = self.visit(value)
            return node
        if len(items) != len(groups):
            raise errors.ReturnTypeMismatch(
                f"'{self._name}' has {errors.counted(len(groups), 'result')}, but "
                f"{len(items)} {'is' if len(items) == 1 else 'are'} returned",
                span_of(node),
            )
        flat: list[ast.expr] = []
        for item, group in zip(items, groups, strict=True):
            part = self._part(item) if group.struct else None
            if group.struct and (part is None or part.struct != group.struct):
                raise errors.ReturnTypeMismatch(
                    f"the result must be a {group.struct}", span_of(item),
                    hint=f"return a variable that is one: r : {group.struct}",
                )  # fmt: skip
            flat += self._leaves(part, item) if part else [self.visit(item)]
        node.value = flat[0] if len(flat) == 1 else _at(ast.Tuple(flat, ast.Load()), value)
        return node

    # --------------------------------------------------------------------------- expressions

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._structs:
            self._refuse(node, self._structs[node.id])
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        found = self._resolve(node)
        if isinstance(found, _Part):
            self._refuse(node, found.struct)
        if found is not None:
            return found
        node.value = self.visit(node.value)
        return node

    def _refuse(self, node: ast.expr, struct: str) -> NoReturn:
        members = ", ".join(self._layouts.members[struct])
        raise errors.TypeMismatch(
            f"'{ast.unparse(node)}' is a {struct}, a struct with tensors, and here stands a value",
            span_of(node), hint=f"write one of its members: {members}",
        )  # fmt: skip

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        packing = self._layouts.packings.get(name)
        if packing is not None and any(slot.struct for slot in packing.params):
            return self._flat_call(node, name, packing)
        if not isinstance(node.func, ast.Name):
            node.func = self.visit(node.func)
        node.args = [self.visit(arg) for arg in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def _flat_call(self, node: ast.Call, name: str, packing: Packing) -> ast.expr:
        header, groups = self._layouts.program.functions[name], _groups(packing.params)
        given = passed(node, header, [group.name for group in groups])
        members = {
            group.name: iter(self._members(given[group.name], group, name))
            for group in groups
            if group.struct
        }
        flat: list[ast.expr] = []
        keywords: list[ast.keyword] = []
        for slot, param in zip(packing.params, header.params, strict=True):
            if slot.name not in given:
                continue
            value = given[slot.name]
            made = next(members[slot.name]) if slot.struct else self.visit(value)
            if not keywords and packing.params[len(flat)] is slot:
                flat.append(made)
            else:
                keywords.append(_at(ast.keyword(param.name, made), value))
        node.args, node.keywords = flat, keywords
        return node

    def _members(self, value: ast.expr, group: _Group, function: str) -> list[ast.expr]:
        """What is passed for a struct."""
        part = self._part(value)
        if part is None or part.struct != group.struct:
            found = f", found {part.struct}" if part else ""
            raise errors.CallTypeMismatch(
                f"argument '{group.name}' of '{function}' must be {group.struct}{found}",
                span_of(value),
                hint=None if part else f"pass a variable or a member that is a {group.struct}",
            )
        return [
            _name(self._layouts.flat(part.variable, part.path + slot.path), value, ast.Load())
            for slot in group.slots
        ]

    # ------------------------------------------------------------------------------- members

    def _part(self, node: ast.expr) -> _Part | None:
        """The struct that an expression names."""
        if isinstance(node, ast.Name) and node.id in self._structs:
            return _Part(node.id, (), self._structs[node.id])
        found = self._resolve(node) if isinstance(node, ast.Attribute) else None
        return found if isinstance(found, _Part) else None

    def _resolve(self, node: ast.Attribute) -> _Part | ast.expr | None:
        """``l.inner`` as a struct, ``l.w`` as the variable that stands for it."""
        base = self._part(node.value)
        if base is None:
            return None
        members = self._layouts.members[base.struct]
        if node.attr not in members:
            raise errors.StructMemberNotFound(
                f"struct '{base.struct}' has no member '{node.attr}'", span_of(node),
                hint=errors.suggest(node.attr, members) or f"its members are {', '.join(members)}",
            )  # fmt: skip
        path = (*base.path, node.attr)
        struct = self._layouts.struct(members[node.attr])
        if struct is not None:
            return _Part(base.variable, path, struct)
        return _name(self._layouts.flat(base.variable, path), node, node.ctx)

    def _leaves(
        self, part: _Part, node: ast.expr, ctx: ast.expr_context | None = None
    ) -> list[ast.Name]:
        """The variables that stand for the members of a struct."""
        return [
            _name(self._layouts.flat(part.variable, part.path + path), node, ctx or ast.Load())
            for path in self._layouts.paths(part.struct)
        ]


def _name(name: str, place: ast.expr, ctx: ast.expr_context) -> ast.Name:
    return ast.copy_location(ast.Name(name, ctx), place)


def _at(node: _Node, place: ast.AST) -> _Node:
    return ast.copy_location(node, place)
