"""Structs with tensors: their members, and functions that take and give them.

No value of the IR is such a struct. Before anything else reads a function, each member of an
argument, a result or a variable becomes one of its own (``member_bodies.py`` for bodies), and
:mod:`loma.core.packing` keeps what belongs together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from loma import errors
from loma.core.ir import Derivative
from loma.core.packing import Packing, Packings, Slot
from loma.errors.spans import Span
from loma.frontend.packings import forward_packing, reverse_packing
from loma.frontend.scope import Program, span_of, span_of_def
from loma.frontend.structs import member_annotations
from loma.frontend.syntax.python_syntax import elts

_TENSORS = {"Tensor", "TorchTensorFloat", "IntTensor", "BoolTensor"}
Leaf = tuple[tuple[str, ...], ast.expr]  # the path to a member that is no struct, and its type


@dataclass(slots=True)
class Layouts:
    """The structs with tensors of a program. ``members`` are their types as they are written,
    ``sizes`` the names in these, in order, for which ``Layer[H, K]`` puts other sizes."""

    program: Program
    shown: dict[str, str]
    members: dict[str, dict[str, ast.expr]] = field(default_factory=dict)
    sizes: dict[str, list[str]] = field(default_factory=dict)
    packings: dict[str, Packing] = field(default_factory=dict)  # of all functions
    _flat: dict[tuple[str, ...], str] = field(default_factory=dict)

    def add(self, node: ast.ClassDef) -> bool:
        """Reads a struct, if it has tensors; its parts are there already."""
        members = member_annotations(node)
        nodes = (inner for kind, _ in members.values() for inner in ast.walk(kind))
        names = {inner.id for inner in nodes if isinstance(inner, ast.Name)}
        if not names & (_TENSORS | self.members.keys()):
            return False
        found: dict[str, ast.expr] = {}
        for name, (annotation, span) in members.items():
            _check_member(self, node.name, name, annotation, span)
            found[name] = annotation
        self.members[node.name] = found
        own = [leaf for _, leaf in self.leaves(ast.Name(node.name), span_of_def(node))]
        sizes = (leaf.slice for leaf in own if isinstance(leaf, ast.Subscript))
        self.sizes[node.name] = list(dict.fromkeys(name for at in sizes for name in _names_in(at)))
        return True

    def struct(self, annotation: ast.expr | None) -> str | None:
        """The struct with tensors that an annotation names."""
        match annotation:
            case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)):
                return name if name in self.members else None
            case _:
                return None

    def leaves(self, annotation: ast.expr, span: Span) -> Iterator[Leaf]:
        """The members that are no structs, with the sizes that the annotation gives them."""
        name = self.struct(annotation)
        assert name is not None
        given: dict[str, ast.expr] = {}
        if isinstance(annotation, ast.Subscript):
            items = elts(annotation.slice)
            if len(items) != len(self.sizes[name]):
                listed = ", ".join(self.sizes[name]) or "none"
                raise errors.UnknownType(
                    f"the sizes of struct '{name}' are {listed}, found {len(items)} of them", span,
                    hint=f"{name}[{listed}], or {name} alone for sizes of these names",
                )  # fmt: skip
            given = dict(zip(self.sizes[name], items, strict=True))
        for member, kind in self.members[name].items():
            kind = _Sizes(given).visit(deepcopy(kind)) if given else deepcopy(kind)
            if self.struct(kind) is None:
                yield (member,), kind
            else:
                for path, leaf in self.leaves(kind, span):
                    yield (member, *path), leaf

    def paths(self, struct: str) -> list[tuple[str, ...]]:
        """The paths to the members that are no structs."""
        return [path for path, _ in self.leaves(ast.Name(struct), span_of(ast.Name(struct)))]

    def flat(self, variable: str, path: tuple[str, ...]) -> str:
        """The name of the variable that stands for a member, the same in all functions."""
        key = (variable, *path)
        if key not in self._flat:
            self._flat[key] = self.program.names.fresh("_".join(key))
            self.shown[self._flat[key]] = ".".join(key)
        return self._flat[key]

    def header(self, node: ast.FunctionDef) -> None:
        """Replaces the structs among a function's arguments and results by their members."""
        params: list[tuple[ast.arg, Slot]] = []
        groups = [list(self._param(arg)) for arg in node.args.args]
        while groups:
            group = groups.pop(0)
            if _is_derivative(node) and groups and _is_adjoint(group, groups[0]):
                pairs = zip(group, groups.pop(0), strict=True)  # as rev_diff has them
                group = [item for pair in pairs for item in pair]
            params += group
        node.args.args = [arg for arg, _ in params]
        results: list[Slot] = []
        match node.returns:
            case ast.Subscript(value=ast.Name(id="tuple"), slice=inner):
                kinds = elts(inner)
            case other:
                kinds = [] if other is None else [other]
        flat: list[ast.expr] = []
        for position, kind in enumerate(kinds):
            struct, name = self.struct(kind), str(position)
            if struct is None:
                flat.append(kind)
                results.append(Slot(name))
                continue
            for path, leaf in self.leaves(kind, span_of(kind)):
                flat.append(leaf)
                results.append(Slot(name, struct, path))
        if len(flat) == 1:
            node.returns = flat[0]
        elif len(flat) != len(kinds) and node.returns is not None:
            of = ast.Subscript(ast.Name("tuple"), ast.Tuple(flat))
            node.returns = ast.fix_missing_locations(ast.copy_location(of, node.returns))
        self.packings[node.name] = Packing(tuple(slot for _, slot in params), tuple(results))

    def _param(self, arg: ast.arg) -> Iterator[tuple[ast.arg, Slot]]:
        match arg.annotation:
            case ast.Subscript(value=ast.Name(id="In" | "Out" as mode) as word, slice=kind) if (
                struct := self.struct(kind)
            ):
                for path, leaf in self.leaves(kind, span_of(kind)):
                    annotation = ast.copy_location(ast.Subscript(word, leaf, ast.Load()), arg)
                    new = ast.arg(self.flat(arg.arg, path), annotation)
                    yield (
                        ast.copy_location(new, arg),
                        Slot(arg.arg, struct, path, "In" if mode == "In" else "Out"),
                    )
            case ast.Subscript(value=ast.Name(id="Out")):
                yield arg, Slot(arg.arg, mode="Out")
            case _:
                yield arg, Slot(arg.arg)

    def derivative(self, request: Derivative) -> None:
        """What a derivative takes and gives."""
        primal = self.packings[request.of]
        if not primal.has_structs:
            header = self.program.functions[request.name]
            slots = tuple(Slot(param.name, mode=param.mode) for param in header.params)
            found = Packing(slots, tuple(Slot(str(k)) for k, _ in enumerate(header.results)))
        elif request.mode == "rev_diff":
            found = reverse_packing(primal)
        else:
            header = self.program.functions[request.of]
            found = forward_packing(primal, header.params, header.results)
        self.packings[request.name] = found

    def name_as(self, own: Mapping[str, str], requests: Iterable[Derivative]) -> None:
        """Where the program gives a derivative itself, callers see the names that this one has."""
        for request in requests:
            if request.mode == "rev_diff" and request.of in own:
                self.packings[request.name] = self.packings[own[request.of]]

    def packings_of_structs(self) -> Packings | None:
        """What callers have to know; None where no struct has tensors."""
        if not self.members:
            return None
        structs = {
            name: {member: self._kind(kind) for member, kind in members.items()}
            for name, members in self.members.items()
        }
        functions = {name: own for name, own in self.packings.items() if own.has_structs}
        return Packings(functions, structs, self.shown)

    def _kind(self, annotation: ast.expr) -> str:
        match annotation:
            case ast.Name(id="int" | "float" as name):
                return name
            case _:
                return self.struct(annotation) or "tensor"


def _check_member(layouts: Layouts, struct: str, name: str, kind: ast.expr, span: Span) -> None:
    match kind:
        case ast.Name(id=type_) if type_ in ("int", "float", *_TENSORS):
            return
        case ast.Subscript(value=ast.Name(id=type_)) if type_ in _TENSORS:
            return
        case _ if layouts.struct(kind) is not None:
            return
    raise errors.UnknownType(
        f"'{struct}' is a struct with tensors, and its member '{name}' is none of what such a "
        "struct has: tensors, ints, floats, and structs of these that have tensors",
        span_of(kind), hint="pass it as an argument of its own", related=((span, "the member"),),
    )  # fmt: skip


def _is_derivative(node: ast.FunctionDef) -> bool:
    called = [item.func for item in node.decorator_list if isinstance(item, ast.Call)]
    return any(isinstance(func, ast.Name) and func.id == "derivative" for func in called)


def _is_adjoint(group: list[tuple[ast.arg, Slot]], following: list[tuple[ast.arg, Slot]]) -> bool:
    """Whether a struct that is written follows one of its kind that is read."""
    if not group or not following:
        return False
    own, other = group[0][1], following[0][1]
    return own.struct == other.struct != "" and (own.mode, other.mode) == ("In", "Out")


def _names_in(node: ast.AST) -> Iterator[str]:
    """The names in a tensor's sizes, from left to right."""
    if isinstance(node, ast.Name):
        yield node.id
    for child in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
        yield from _names_in(child)


class _Sizes(ast.NodeTransformer):
    """Puts sizes for names, between the brackets of a type."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values
        self._inside = 0

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self._inside += 1
        node.slice = self.visit(node.slice)
        self._inside -= 1
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.args = [self.visit(arg) for arg in node.args]
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return deepcopy(self._values.get(node.id, node)) if self._inside else node
