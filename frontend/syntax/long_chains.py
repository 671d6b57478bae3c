"""Long sums and long chains of branches, as text that is nested less.

Python's tree nests ``a + b + c`` and ``elif`` once for each term and branch. Every stage that
follows walks down trees, so long ones are taken apart here, before anything else reads them:

* a sum becomes a sum of sums, ``a + b - (c - d)``, with the same terms in the same order;
* a chain of branches becomes several, each of which runs if none before it was taken.

What comes out prints as text that is not long any more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, TypeGuard

from loma.core.names import Names

LONGEST_SUM = 100  # terms
LONGEST_CHAIN = 40  # branches: a derivative has to be indented by one level for each
_PART = 25  # terms, and then groups, of a sum that is taken apart
_BRANCHES = 20  # of each of the chains

Term = tuple[type[ast.operator], ast.expr]


def shorten(tree: ast.Module) -> None:
    """Takes long sums and chains apart, in place."""
    _shorten_sums(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            _Chains(node).shorten()


# ------------------------------------------------------------------------------------------ sums


def _shorten_sums(tree: ast.AST) -> None:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                value[:] = [_shorter(item) for item in value]
                waiting += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                inside = field == "left" and _is_sum(node)
                new = value if inside else _shorter(value)
                setattr(node, field, new)
                waiting.append(new)


def _is_sum(node: ast.AST) -> TypeGuard[ast.BinOp]:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)


def _shorter(node: Any) -> Any:
    """A sum that is not long."""
    terms: list[Term] = []
    start = node
    while _is_sum(start):
        terms.append((type(start.op), start.right))
        start = start.left
    if len(terms) < LONGEST_SUM:
        return node
    return _sum([(ast.Add, start), *reversed(terms)])


def _sum(terms: list[Term]) -> ast.expr:
    """The terms as a sum; the first one is added."""
    if len(terms) <= LONGEST_SUM:
        return _left_to_right(terms)
    first, rest = terms[:_PART], terms[_PART:]
    size = -(-len(rest) // _PART)
    groups: list[Term] = []
    for k in range(0, len(rest), size):
        group = rest[k : k + size]
        sign = group[0][0]
        if sign is ast.Sub:  # a - c + d is a - (c - d)
            group = [(_OTHER[op], term) for op, term in group]
        groups.append((sign, _sum(group)))
    return _left_to_right([*first, *groups])


_OTHER: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}


def _left_to_right(terms: list[Term]) -> ast.expr:
    result = terms[0][1]
    for op, term in terms[1:]:
        result = ast.BinOp(
            result, op(), term, lineno=result.lineno, col_offset=result.col_offset,
            end_lineno=term.end_lineno, end_col_offset=term.end_col_offset,
        )  # fmt: skip
    return result


# -------------------------------------------------------------------------------------- branches


class _Chains:
    """The chains of branches of one function."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self._function = function
        self._names: Names | None = None
        self._flags: list[ast.stmt] = []  # their declarations

    def shorten(self) -> None:
        body = self._block(self._function.body)
        doc = ast.get_docstring(self._function, clean=False) is not None
        body[doc:doc] = self._flags  # behind the docstring
        self._function.body = body

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [new for stmt in body for new in self._statement(stmt)]

    def _statement(self, stmt: ast.stmt) -> list[ast.stmt]:
        match stmt:
            case ast.If():
                chain = [stmt]
                while len(chain[-1].orelse) == 1 and isinstance(chain[-1].orelse[0], ast.If):
                    chain.append(chain[-1].orelse[0])
                for branch in chain:
                    branch.body = self._block(branch.body)
                chain[-1].orelse = self._block(chain[-1].orelse)
                return self._parts(chain) if len(chain) > LONGEST_CHAIN else [stmt]
            case ast.For() | ast.While():
                stmt.body = self._block(stmt.body)
        return [stmt]

    def _parts(self, chain: list[ast.If]) -> list[ast.stmt]:
        """``if a: ... elif b: ... else: _rest = 1``, and ``if _rest:`` with what comes next."""
        flag = self._fresh(chain[0])
        parts = [chain[k : k + _BRANCHES] for k in range(0, len(chain), _BRANCHES)]
        done: list[ast.stmt] = []
        for part in parts:
            body: list[ast.stmt] = [part[0]]
            if part is not parts[-1]:
                body.insert(0, _assign(flag, 0, part[0]))
                part[-1].orelse = [_assign(flag, 1, part[-1])]
            if part is not parts[0]:
                test = ast.copy_location(ast.Name(flag, ast.Load()), part[0].test)
                body = [ast.copy_location(ast.If(test, body, []), part[0])]
            done += body
        return done

    def _fresh(self, chain: ast.If) -> str:
        if self._names is None:
            self._names = Names(identifiers(self._function))
        name = self._names.fresh("_rest")
        target, int_ = ast.Name(name, ast.Store()), ast.Name("int", ast.Load())
        self._flags.append(_at(ast.AnnAssign(target, int_, None, 1), chain.test))
        return name


def _assign(name: str, value: int, at: ast.If) -> ast.stmt:
    return _at(ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value)), at.test)


def _at(node: ast.stmt, place: ast.AST) -> ast.stmt:
    """The statement with all its parts at a place."""
    return ast.fix_missing_locations(ast.copy_location(node, place))


def identifiers(function: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    """What the function may call something."""
    for node in ast.walk(function):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name):
                yield name
