"""``from other import f``: definitions of ``other.loma``, beside the file that imports them.

A program is one text: :func:`gather` reads the files that it imports, and :func:`join` puts what is
needed of them behind its own definitions. What is imported has the name that the import gives it;
what that needs comes along as ``_other_name``, a name that nothing else has. Places in imported
files are lines behind the program's own (:data:`loma.core.ir.FILE`).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, TypeGuard

from loma import errors
from loma.core.ir import Derivative
from loma.core.names import Names
from loma.errors.excerpts import Text
from loma.errors.spans import FILE, NOWHERE, Span
from loma.frontend import foreign
from loma.frontend.constants import Constant, read_constants, replace_constants
from loma.frontend.scope import span_of, span_of_def
from loma.frontend.syntax.long_chains import identifiers
from loma.frontend.syntax.python_syntax import parse_python

Definition = ast.ClassDef | ast.FunctionDef | Derivative


@dataclass(slots=True)
class Unit:
    """A file: what it defines and imports, by name. ``number`` is 0 for the program itself."""

    number: int
    stem: str
    definitions: dict[str, Definition]
    values: list[ast.AnnAssign]
    imports: dict[str, Import]
    constants: dict[str, Constant] = field(default_factory=dict)

    def own(self) -> dict[str, Span]:
        """Where the file defines what it does."""
        targets = [node.target for node in self.values if isinstance(node.target, ast.Name)]
        definitions = {name: span_of_def(node) for name, node in self.definitions.items()}
        return definitions | {target.id: span_of(target) for target in targets}


@dataclass(frozen=True, slots=True)
class Import:
    """One name of ``from module import name``, placed at ``span``."""

    module: str
    name: str
    span: Span


Units: TypeAlias = dict[str, Unit]


def is_import(node: ast.stmt) -> TypeGuard[ast.ImportFrom]:
    """Whether a statement imports from another file; what comes from loma is there anyway."""
    return isinstance(node, ast.ImportFrom) and bool(
        node.level or (node.module or "").split(".")[0] != "loma"
    )


def read_imports(node: ast.ImportFrom) -> Iterator[tuple[str, Import]]:
    """The names that a statement gives to what it imports."""
    if node.level or node.module is None or "." in node.module:
        raise errors.SyntaxNotSupported(
            "an import names a file beside this one", span_of(node),
            hint="from other import f, for the function f of other.loma in the same folder",
        )  # fmt: skip
    for alias in node.names:
        if alias.name == "*":
            raise errors.SyntaxNotSupported(
                "an import names what it takes", span_of(alias),
                hint=f"from {node.module} import f, g",
            )  # fmt: skip
        yield alias.asname or alias.name, Import(node.module, alias.name, span_of(alias))


# ------------------------------------------------------------------------------------- the files


def gather(source: str, path: str) -> Text:
    """The program's text with those of the files that it imports, and that these import.

    Raises SyntaxNotSupported for a file that is not there, and for a circle of imports.
    """
    if isinstance(source, Text):
        return source
    text = Text(source.removeprefix("\ufeff"))
    read: list[str] = []  # the modules, in the order of the text's imports
    folder = Path(path).parent

    def visit(source: str, number: int, around: list[str]) -> None:
        for node in _imports(source, number):
            try:
                list(read_imports(node))
                module = node.module or ""
                if path.startswith("<"):
                    raise errors.SyntaxNotSupported(
                        f"this program is no file, so there is no '{module}.loma' beside it",
                        span_of(node),
                        hint="say where it would be: loma.compile(text, path='program.loma')",
                    )
                if module in around:
                    circle = " -> ".join([*around[around.index(module) :], module])
                    raise errors.SyntaxNotSupported(
                        f"files import each other in a circle: {circle}", span_of(node),
                        hint="put what both need into a file of its own",
                    )  # fmt: skip
                if module not in read:
                    read.append(module)
                    file = folder / f"{module}.loma"
                    found = _read(file, span_of(node))
                    text.imports.append((str(file), found))
                    visit(found, len(read), [*around, module])
            except errors.UserError as error:
                raise error.locate(text, path) from None

    visit(text, 0, [Path(path).stem])
    return text


def _imports(source: str, number: int) -> list[ast.ImportFrom]:
    """The imports of a file; none where the text is no Python, which is told later."""
    if "import" not in source:
        return []
    try:
        tree = parse_python(source.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    ast.increment_lineno(tree, number * FILE)
    return [node for node in tree.body if is_import(node)]


def _read(file: Path, span: Span) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        known = sorted(p.stem for p in file.parent.glob("*.loma"))
        hint = errors.suggest(file.stem, known) or "an import names a file beside this one"
        if file.stem in sys.stdlib_module_names or file.stem in foreign.MODULES:
            hint = "an import names a .loma file beside this one; "
            hint += "functions are there without import"
        raise errors.SyntaxNotSupported(f"there is no file '{file}'", span, hint=hint) from None
    except UnicodeDecodeError as error:
        raise errors.SyntaxNotSupported(
            f"'{file}' is no UTF-8 text: {error.reason} at byte {error.start}", span
        ) from None


# ------------------------------------------------------------------------------- the definitions


def join(units: list[Unit]) -> None:
    """Adds to the first unit what it needs of the others, and puts values for constants.

    Raises UndeclaredVariable for a name that a file has not, DuplicateFunction for one that the
    importing file has itself.
    """
    program = units[0]
    by_name = {unit.stem: unit for unit in units[1:]}
    for unit in reversed(units):
        _check_imports(unit, by_name)
    for unit in _imported_first(program, by_name):
        taken = {}
        for local, item in unit.imports.items():
            origin, name = _origin(unit, local, by_name)
            if name in origin.constants:
                taken[local] = replace(origin.constants[name], span=item.span)
        unit.constants = read_constants(unit.values, taken)
        nodes = [n for n in unit.definitions.values() if not isinstance(n, Derivative)]
        replace_constants(nodes, unit.constants)
    final: dict[tuple[int, str], str] = {}
    for local, item in program.imports.items():
        origin, name = _origin(program, local, by_name)
        if name in origin.constants:
            continue
        known = final.setdefault((origin.number, name), local)
        if known != local:
            raise errors.DuplicateFunction(
                f"'{name}' of '{item.module}' has the name '{known}' here already", item.span,
                hint=f"use '{known}'", var=local,
            )  # fmt: skip
    names = Names()
    for unit in units:
        names.take(unit.stem, *unit.definitions, *unit.imports, *unit.constants)
        for node in unit.definitions.values():
            if isinstance(node, ast.AST):
                names.take(*identifiers(node))
    waiting = list(final)
    while waiting:
        number, name = waiting.pop(0)
        unit = units[number]
        node = unit.definitions[name]
        uses: dict[str, str] = {}
        for local, is_type in _mentioned(node):
            found = _known(unit, local, by_name)
            if found is None:
                continue
            if is_type and not isinstance(found[0].definitions[found[1]], ast.ClassDef):
                continue  # a size of that name
            key = (found[0].number, found[1])
            if key not in final:
                final[key] = names.fresh(f"_{found[0].stem}_{found[1]}")
                waiting.append(key)
            uses[local] = final[key]
        program.definitions[final[number, name]] = _renamed(node, final[number, name], uses)
        for other, given in unit.definitions.items():  # a derivative of its own comes along
            derived = name in (place.id for place in _decorating(given))
            if derived and (number, other) not in final:
                final[number, other] = names.fresh(f"_{unit.stem}_{other}")
                waiting.append((number, other))


def _check_imports(unit: Unit, by_name: Units) -> None:
    for local, item in unit.imports.items():
        if local in unit.own():
            raise errors.DuplicateFunction(
                f"'{local}' is already defined", item.span, var=local,
                hint=f"from {item.module} import {item.name} as another name",
                related=((unit.own()[local], "defined here, too"),),
            )  # fmt: skip
        _origin(unit, local, by_name, item.span)


def _origin(unit: Unit, name: str, by_name: Units, span: Span = NOWHERE) -> tuple[Unit, str]:
    """Where a name that a file offers is defined."""
    while name in unit.imports:
        item = unit.imports[name]
        unit, name = by_name[item.module], item.name
    own = unit.own()
    if name not in own:
        offered = [*own, *unit.imports]
        raise errors.UndeclaredVariable(
            f"'{unit.stem}.loma' has no '{name}'", span, var=name,
            hint=errors.suggest(name, offered) or f"it has {', '.join(offered) or 'nothing'}",
        )  # fmt: skip
    return unit, name


def _imported_first(program: Unit, by_name: Units) -> list[Unit]:
    """The units, each behind those that it imports."""
    done: dict[int, Unit] = {}

    def visit(unit: Unit) -> None:
        if unit.number not in done:
            for item in unit.imports.values():
                visit(by_name[item.module])
            done[unit.number] = unit

    visit(program)
    return list(done.values())


# ---------------------------------------------------------------------------------------- names


def _primal(name: str) -> tuple[str, str]:
    """What stands before the name of a struct: ``make_``, and ``_d`` for each differential."""
    prefix = "make_" if name.startswith("make_") else ""
    while name[len(prefix) :].startswith("_d"):
        prefix += "_d"
    return prefix, name[len(prefix) :]


def _known(unit: Unit, local: str, by_name: Units) -> tuple[Unit, str] | None:
    """The function, struct or derivative that a name means in a file; None for other names."""
    if local not in unit.definitions and local not in unit.imports:
        return None
    origin, name = _origin(unit, local, by_name)
    return (origin, name) if name in origin.definitions else None


def _mentioned(node: Definition) -> list[tuple[str, bool]]:
    """The names that may be those of functions and structs, as they stand and without what makes
    them names of differentials, and whether they stand in types."""
    if isinstance(node, Derivative):
        return [(node.of, False)]
    names = _Names(node)
    found: dict[tuple[str, bool], None] = {}
    for is_type, places in ((False, names.calls), (True, names.types)):
        for name in places:
            found |= {(name.id, is_type): None, (_primal(name.id)[1], is_type): None}
    return list(found)


def _decorating(node: Definition) -> list[ast.Name]:
    """The functions that ``@derivative(f)`` before a definition names, as it is written."""
    calls = [d for d in getattr(node, "decorator_list", ()) if isinstance(d, ast.Call)]
    return [arg for call in calls for arg in call.args if isinstance(arg, ast.Name)]


class _Names(ast.NodeVisitor):
    """What is called, and what stands in types: the names that no variable can have hidden."""

    def __init__(self, node: ast.AST) -> None:
        self.calls: list[ast.Name] = []
        self.types: list[ast.Name] = []
        self.visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        reduces = len(node.args) == 1 and isinstance(node.args[0], ast.GeneratorExp)
        if isinstance(node.func, ast.Name) and not reduces:
            self.calls.append(node.func)
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        self._type(node.annotation)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._type(node.annotation)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._type(node.returns)
        self.calls += _decorating(node)
        self.generic_visit(node)

    def _type(self, node: ast.expr | None) -> None:
        if node is not None:
            self.types += [name for name in ast.walk(node) if isinstance(name, ast.Name)]


def _renamed(node: Definition, name: str, uses: dict[str, str]) -> Definition:
    """The definition under another name, with other names for what it uses; syntax in place."""
    if isinstance(node, Derivative):
        return replace(node, name=name, of=uses.get(node.of, node.of))
    names = _Names(node)
    for place in dict.fromkeys((*names.calls, *names.types)):
        prefix, primal = _primal(place.id)
        if place.id in uses:
            place.id = uses[place.id]
        elif prefix and primal in uses:
            place.id = prefix + uses[primal]
    node.name = name
    return node
