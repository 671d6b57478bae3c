"""A whole file: its structs, functions and derivatives, and the order in which they are called."""

from __future__ import annotations

import ast
import io
import keyword
import re
import tokenize
from collections.abc import Collection
from dataclasses import replace
from pathlib import PurePath

from loma import errors
from loma.core.builtins import BUILTINS
from loma.core.differentials import primal_name
from loma.core.ir import Derivative, Function, Module, Stmt, TensorType, is_tensor_function
from loma.core.names import Names
from loma.core.walk import calls as ir_calls, expressions, walk, statements as ir_statements
from loma.errors.excerpts import Text, printable
from loma.errors.spans import FILE, Span
from loma.frontend.imports import Definition, Import, Unit, gather, is_import, join, read_imports
from loma.frontend.member_bodies import flatten
from loma.frontend.members import Layouts
from loma.frontend.order import sort_calls, sort_derivatives, sort_structs
from loma.frontend.own_derivatives import check_own_derivatives, unused_by_forward_mode
from loma.frontend.projections import projections
from loma.frontend.quotients import of_constants, of_defaults, whole_quotients
from loma.frontend.results import check_results
from loma.frontend.scope import Program, Scope, span_of, span_of_def
from loma.frontend.signatures import derivative_header, function_header, function_scope
from loma.frontend.statements import statements
from loma.frontend.structs import read_struct
from loma.frontend.syntax.long_chains import identifiers, shorten
from loma.frontend.syntax.python_syntax import parse_python
from loma.frontend.syntax.unsupported import unsupported
from loma.frontend.types import TYPE_NAMES

# Deeper text would exhaust Python's stack in one of the stages that follow.
MAX_DEPTH = 150
# Other names of the language are hidden by a program's own. These would make it ambiguous: what the
# text of derivatives calls, and what types are made with.
_RESERVED_FUNCTIONS = {info.name for info in BUILTINS.values() if info.reserved} | {
    "atomic_add", "zero_pad", "no_diff", "range", "reversed", "rev_diff", "fwd_diff",
}  # fmt: skip
_RESERVED_STRUCTS = {"int", "float", "Array", "In", "Out", "Diff", "tuple"}


def parse(source: str, path: str = "<text>") -> Module:
    """Reads a program. Raises a :class:`loma.errors.UserError` for every mistake in it.

    The module's name is the stem of ``path`` made an identifier, "module" if there is none.
    """
    source = gather(source, path)
    shown: dict[str, str] = {}  # what the program calls variables that stand for members
    try:
        return _module(source, path, shown)
    except errors.UserError as error:
        raise error.rename(shown).locate(source, path) from None
    except (RecursionError, MemoryError):
        raise _too_deep(*_deep_place(source)).locate(source, path) from None


def module_name(path: str) -> str:
    """The name of the module that a file holds."""
    stem = "" if path.startswith("<") else PurePath(path).stem
    name = re.sub(r"\W", "_", stem)
    if name and (name[0].isdigit() or keyword.iskeyword(name)):
        name = f"_{name}"
    return name if name.isidentifier() else "module"


def _module(source: Text, path: str, shown: dict[str, str]) -> Module:
    units = [_unit(source, 0, PurePath(path).stem)]
    for number, (file, text) in enumerate(source.imports, 1):
        try:
            units.append(_unit(text, number, PurePath(file).stem))
        except (RecursionError, MemoryError):
            raise _too_deep(*_deep_place(text)).locate(text, file) from None
    join(units)
    definitions = units[0].definitions.values()
    _check_names(definitions, units[0].values)
    classes = [node for node in definitions if isinstance(node, ast.ClassDef)]
    defs = [node for node in definitions if isinstance(node, ast.FunctionDef)]
    derivatives = [node for node in definitions if isinstance(node, Derivative)]
    program = Program(names=_all_names(units[0]))
    for unit in units:
        program.warnings += of_constants(unit.values, unit.constants, source)
    layouts = Layouts(program, shown)
    for struct in sort_structs(classes):
        if not layouts.add(struct):
            read_struct(struct, program)
    program.tensor_structs = set(layouts.members)
    for node in defs:
        layouts.header(node)
        header = program.functions[node.name] = function_header(node, program)
        program.warnings += of_defaults(node, header, source)
    ordered = sort_derivatives(derivatives, program.functions)
    for derivative in ordered:
        program.functions[derivative.name] = derivative_header(derivative, program)
        layouts.derivative(derivative)
    own = check_own_derivatives(defs, program, ordered)
    layouts.name_as(own, ordered)
    functions: dict[str, Function] = {}
    calls: dict[str, dict[str, Span]] = {}
    for node in defs:
        if layouts.members:
            flatten(node, layouts)
        scope = function_scope(node, program)
        functions[node.name] = _function(scope, node)
        calls[node.name] = scope.calls
    for part in projections(program, functions, own):
        functions[part.name] = program.functions[part.name] = part
        calls[part.name] = {call.function: part.span for call in ir_calls(part.body)}
    program.warnings += whole_quotients(program, functions.values(), source)
    program.warnings += unused_by_forward_mode(ordered, own, program, calls)
    in_order, requests = sort_calls(functions, calls, ordered, own)
    structs = tuple(program.structs.values())
    warnings = tuple(each.rename(shown).locate(source, path) for each in program.warnings)
    packings = layouts.packings_of_structs()
    return Module(module_name(path), structs, in_order, requests, source, path, warnings, packings)


def _all_names(unit: Unit) -> Names:
    """The names that a program mentions."""
    names = Names(unit.definitions)
    for node in unit.definitions.values():
        if not isinstance(node, Derivative):
            names.take(*identifiers(node))
    return names


def _unit(text: str, number: int, stem: str) -> Unit:
    """The definitions of one file, the ``number``-th that the program imports."""
    try:
        tree = _syntax(text.removeprefix("\ufeff"))
    except errors.UserError as error:
        line = error.span.line
        error.span = replace(error.span, line=line + number * FILE) if line else error.span
        raise
    ast.increment_lineno(tree, number * FILE)
    shorten(tree)
    _check_depth(tree)
    found: list[Definition] = []
    values: list[ast.AnnAssign] = []
    imports: dict[str, Import] = {}
    for stmt in tree.body:
        match stmt:
            case ast.FunctionDef() | ast.ClassDef():
                found.append(stmt)
            case ast.AnnAssign():
                values.append(stmt)
            case ast.Assign():
                found.append(_derivative(stmt))
            case ast.ImportFrom() if is_import(stmt):
                for name, item in read_imports(stmt):
                    if name in imports:
                        raise errors.DuplicateFunction(
                            f"'{name}' is already imported", item.span, var=name,
                            related=((imports[name].span, "first imported here"),),
                        )  # fmt: skip
                    imports[name] = item
            case _:
                _check_ignored(stmt)
    _check_names(found, values)
    found.sort(key=lambda node: [ast.ClassDef, ast.FunctionDef, Derivative].index(type(node)))
    return Unit(number, stem, {node.name: node for node in found}, values, imports)


def _function(scope: Scope, node: ast.FunctionDef) -> Function:
    header = scope.header
    nodes = node.body if ast.get_docstring(node, clean=False) is None else node.body[1:]
    try:
        body = statements.body(scope, nodes)
    except RecursionError:
        raise errors.SyntaxNotSupported(
            f"'{header.name}' is nested too deeply", header.span
        ) from None
    _check_layer(header, body)
    check_results(header, body)
    doc = ast.get_docstring(node) or ""
    if printable(doc) != doc:
        raise errors.SyntaxNotSupported(
            f"the docstring of '{header.name}' has a character that no text can have", header.span,
            hint=r"leave out \0 and halves of characters, \ud800 to \udfff",
        )  # fmt: skip
    return replace(header, body=body, doc=doc)


def _check_layer(header: Function, body: tuple[Stmt, ...]) -> None:
    """Refuses a tensor inside a function that has none among its arguments and results."""
    if is_tensor_function(header):
        return
    nodes = (n for s in ir_statements(body) for e in expressions(s) for n in walk(e))
    for node in nodes:
        if isinstance(node.type, TensorType):
            raise errors.TypeMismatch(
                f"'{header.name}' has no tensor among its arguments and results, so there can be "
                "none inside",
                node.span,
                hint="make a tensor an argument or a result, or use an array: Array[float, 3]",
                related=((header.span, "defined here"),),
            )


def _syntax(source: str) -> ast.Module:
    for number, line in enumerate(_lines(source), 1):
        shown = printable(line)
        if shown != line:
            start = next(k for k, (a, b) in enumerate(zip(shown, line, strict=True)) if a != b)
            col = len(shown[:start].encode())
            raise errors.SyntaxNotSupported(
                f"U+{ord(line[start]):04X} cannot be part of a program's text",
                Span(number, col, number, col + 3),
            )
    try:
        return parse_python(source)
    except SyntaxError as error:
        raise _syntax_error(source, error) from None
    except ValueError as error:  # very long numbers
        raise errors.SyntaxNotSupported(f"this is not Python syntax: {error}") from None


def _syntax_error(source: str, error: SyntaxError) -> errors.UserError:
    line = error.lineno or 0
    text = _lines(source)
    before = text[line - 1][: max(0, (error.offset or 1) - 1)] if 0 < line <= len(text) else ""
    col = len(before.encode(errors="replace"))
    return errors.SyntaxNotSupported(
        f"this is not Python syntax: {error.msg}", Span(line, col, line, col + 1),
        hint="write the other value: ... if ... else 0.0"
        if "expected 'else' after 'if'" in error.msg else None,
    )  # fmt: skip


def _lines(source: str) -> list[str]:
    return source.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _check_depth(tree: ast.Module) -> None:
    """Refuses a tree that is too deep, at the first place where it is."""
    level: list[tuple[ast.AST, int]] = [(tree, 0)]  # with the number of branches around
    for _ in range(MAX_DEPTH):
        level = [
            (child, branches + isinstance(child, ast.If))
            for node, branches in level
            for child in ast.iter_child_nodes(node)
        ]
        if not level:
            return
    located = [(node, branches) for node, branches in level if hasattr(node, "lineno")]
    place, branches = (located or [(tree, 0)])[0]
    raise _too_deep(span_of(place), branches > MAX_DEPTH // 2)


def _too_deep(span: Span, is_chain: bool) -> errors.SyntaxNotSupported:
    hint = "split a long expression over several statements"
    if is_chain:
        hint = "split a chain of so many branches: each 'elif' is a level below the one before"
    return errors.SyntaxNotSupported(
        f"the program is nested more than {MAX_DEPTH} levels deep", span, hint=hint
    )


def _deep_place(source: str) -> tuple[Span, bool]:
    """Where a text is too deep that not even Python's parser could read, and whether it is a chain
    of branches there: the longest statement, or the longest chain."""
    ends = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.NL}
    statements: dict[tuple[int, int], int] = {}  # tokens, by the place of the first
    chains: dict[int, list[tuple[int, int]]] = {}  # places of 'elif', by their column
    first: tuple[int, int] | None = None
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in ends:
                first = None if token.type == tokenize.NEWLINE else first
                continue
            if first is None:
                first = token.start
                if token.string == "elif":
                    chains.setdefault(first[1], []).append(first)
            statements[first] = statements.get(first, 0) + 1
    except (tokenize.TokenError, SyntaxError):
        pass  # what came before it counts
    chain = max(chains.values(), key=len, default=[])
    place = max(statements, key=lambda place: statements[place], default=(0, 0))
    is_chain = len(chain) > max(MAX_DEPTH, statements.get(place, 0))
    line, col = chain[MAX_DEPTH] if is_chain else place
    return Span(line, col, line, col), is_chain


def _check_ignored(node: ast.stmt) -> None:
    """Top-level statements that mean nothing: docstrings, and imports for the sake of editors."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())) | ast.Pass() | ast.ImportFrom():
            return
        case ast.Import(names=names) if all(a.name.split(".")[0] == "loma" for a in names):
            return
        case ast.Import() | ast.AsyncFunctionDef():
            raise unsupported(node)
        case _:
            raise errors.SyntaxNotSupported(
                "a program has functions, structs, constants and derivatives at its top level only",
                span_of(node),
                hint="put statements into a function",
            )


def _derivative(node: ast.Assign) -> Derivative:
    match node.targets, node.value:
        case [ast.Name(id=name)], ast.Call(
            func=ast.Name(id="rev_diff" | "fwd_diff" as mode), args=[ast.Name(id=of)], keywords=[]
        ):
            return Derivative(name, "rev_diff" if mode == "rev_diff" else "fwd_diff", of,
                              span_of(node))  # fmt: skip
        case _, ast.Call(func=ast.Name(id="rev_diff" | "fwd_diff" as mode)):
            raise errors.SyntaxNotSupported(
                f"'{mode}' takes the name of one function", span_of(node),
                hint=f"d_f = {mode}(f)",
            )  # fmt: skip
        case _:
            hint = "d_f = rev_diff(f)"
            if not isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
                hint = f"a constant has a type: {node.targets[0].id} : float = ..."
            raise errors.SyntaxNotSupported(
                "only derivatives are assigned at the top level", span_of(node), hint=hint
            )


def _check_names(definitions: Collection[Definition], values: list[ast.AnnAssign]) -> None:
    structs = {
        node.name: span_of_def(node) for node in definitions if isinstance(node, ast.ClassDef)
    }
    for name, span in structs.items():
        primal = primal_name(name, structs)
        if primal is not None:
            raise errors.DuplicateFunction(
                f"'{name}' is the differential type of '{primal}', which every program has",
                span, hint="use another name", var=name,
            )  # fmt: skip
    constants = [value.target for value in values if isinstance(value.target, ast.Name)]
    places = [(node.name, span_of_def(node)) for node in definitions]
    places += [(constant.id, span_of(constant)) for constant in constants]
    seen: dict[str, Span] = {}
    for name, span in sorted(places, key=lambda item: (item[1].line, item[1].col)):
        reserved = _RESERVED_STRUCTS if name in structs else _RESERVED_FUNCTIONS
        if any(constant.id == name for constant in constants):
            reserved = _RESERVED_STRUCTS | _RESERVED_FUNCTIONS | {*TYPE_NAMES, "Stack"}
        if name in reserved:
            raise errors.DuplicateFunction(
                f"'{name}' is a name of the language itself", span, hint="use another name",
                var=name,
            )  # fmt: skip
        if name in seen:
            raise errors.DuplicateFunction(
                f"'{name}' is already defined", span, var=name,
                related=((seen[name], "first defined here"),),
            )  # fmt: skip
        seen[name] = span
