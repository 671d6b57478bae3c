"""Results of other sizes than are declared: refused where no call could be right.

Two size variables may be one number in every call that is meant, as where an index runs over both.
Where nothing in the function relates them, ``-> Tensor[M]`` and a returned ``Tensor[N]`` is a
mistake; what is left is checked when the function is called.
"""

from __future__ import annotations

from collections.abc import Iterator

from loma import errors
from loma.core.axes import standalone
from loma.core.builder import show_type
from loma.core.ir import Call, Expr, Function, IndexAssign, Op, Return, Stmt, Var
from loma.core.sizes import dims_in, size_variables
from loma.core.walk import expressions, statements, variables, walk


def check_results(header: Function, body: tuple[Stmt, ...]) -> None:
    """Refuses a returned tensor with a size variable where another one is declared that nothing
    relates to it."""
    returned = body[-1] if body else None
    if not isinstance(returned, Return):
        return
    own = set(size_variables(header))
    for value, type_ in zip(returned.values, header.results, strict=True):
        for k, (wanted, found) in enumerate(zip(dims_in(type_), dims_in(value.type), strict=False)):
            if not (isinstance(wanted, Var) and isinstance(found, Var)):
                continue
            both = {wanted.name, found.name}
            if len(both) == 1 or not both <= own:
                continue
            if any(both <= group for group in _related(body, own)):
                continue
            raise errors.ReturnTypeMismatch(
                f"the result must be {show_type(type_)}, found {show_type(value.type)}, and "
                f"nothing says that the sizes {wanted.name} and {found.name} are equal",
                value.span if value.span.line else returned.span,
                hint=f"declare dimension {k} of the result as {found.name}, or return a tensor "
                f"that has the size {wanted.name} there",
                related=((header.span, f"{show_type(type_)} is declared here"),),
            )


def _related(body: tuple[Stmt, ...], own: set[str]) -> list[set[str]]:
    """Size variables in groups, of which the function may need that they are equal."""
    groups: list[set[str]] = []
    for names in _relations(body):
        joined = names & own
        if len(joined) > 1:
            for group in [g for g in groups if g & joined]:
                groups.remove(group)
                joined |= group
            groups.append(joined)
    return groups


def _relations(body: tuple[Stmt, ...]) -> Iterator[set[str]]:
    """For each index the sizes that it runs over. Of operators, calls and whole assignments all
    sizes: some of them have to agree, or may, as where one broadcasts."""
    for stmt in statements(body):
        if not isinstance(stmt, IndexAssign | Return):
            yield _sizes(expressions(stmt))
            continue
        indices: dict[str, set[str]] = {}
        for expr in expressions(stmt):
            for name, size, _ in standalone(expr):
                indices.setdefault(name, set()).update(variables(size))
            yield from (_sizes((node,)) for node in walk(expr) if isinstance(node, Op | Call))
        yield from indices.values()


def _sizes(exprs: tuple[Expr, ...]) -> set[str]:
    """The variables in the types of expressions, and of those below."""
    return {
        name
        for expr in exprs
        for node in walk(expr)
        for dim in dims_in(node.type)
        for name in variables(dim)
    }
