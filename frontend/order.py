"""Definitions in an order in which what is used comes first; a cycle is an error."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping

from loma import errors
from loma.core.ir import Derivative, Function
from loma.errors.spans import Span
from loma.frontend.scope import span_of


def _sorted(
    names: Iterable[str], uses: Callable[[str], Mapping[str, Span]],
    cycle: Callable[[list[str], Span], errors.UserError],
) -> list[str]:  # fmt: skip
    """Depth-first, in the order of the text. ``cycle`` makes the error for a circle of uses."""
    done: dict[str, None] = {}

    for start in names:
        # (name, the uses that are still to be followed); the path from the start is the stack
        stack = [(start, iter(uses(start).items()))]
        if start in done:
            continue
        while stack:
            name, rest = stack[-1]
            for used, span in rest:
                path = [on_path for on_path, _ in stack]
                if used in path:
                    raise cycle([*path[path.index(used) :], used], span)
                if used not in done:
                    stack.append((used, iter(uses(used).items())))
                    break
            else:
                done[name] = None
                stack.pop()
    return list(done)


def sort_calls(
    functions: Mapping[str, Function], calls: Mapping[str, Mapping[str, Span]],
    derivatives: list[Derivative], own: Mapping[str, str],
) -> tuple[tuple[Function, ...], tuple[Derivative, ...]]:  # fmt: skip
    """Callees before callers, and derivatives in the order in which they are needed.

    A call of a derivative is also a use of its primal, and so of everything that the primal calls,
    with the derivatives of these that are the program's ``own``.
    """
    made = {d.name: d for d in derivatives}

    def uses(name: str) -> Mapping[str, Span]:
        if name not in made:
            return calls[name]
        of, span = made[name].of, made[name].span
        reached: dict[str, Span] = {}
        waiting = [of] if own else []
        while waiting:
            used = waiting.pop()
            if used not in reached:
                reached[used] = span
                waiting += [made[used].of] if used in made else calls[used]
        return {of: span} | {own[used]: span for used in reached if used in own}

    def cycle(path: list[str], span: Span) -> errors.UserError:
        if len(path) == 2:
            message = f"'{path[0]}' calls itself"
        else:
            message = "functions call each other in a circle: " + " -> ".join(path)
        return errors.RecursionNotSupported(message, span, hint="write a loop instead")

    order = _sorted([*functions, *made], uses, cycle)
    return (
        tuple(functions[name] for name in order if name in functions),
        tuple(made[name] for name in order if name in made),
    )


def sort_derivatives(
    derivatives: list[Derivative], functions: Mapping[str, Function]
) -> list[Derivative]:
    """A derivative of a derivative after it. An unknown function is an error."""
    by_name = {d.name: d for d in derivatives}
    for derivative in derivatives:
        if derivative.of not in functions and derivative.of not in by_name:
            raise errors.CallIDNotFound(
                f"there is no function '{derivative.of}'", derivative.span,
                hint=errors.suggest(derivative.of, [*functions, *by_name]), var=derivative.of,
            )  # fmt: skip

    def cycle(path: list[str], span: Span) -> errors.UserError:
        return errors.RecursionNotSupported(
            "derivatives are taken of each other in a circle: " + " -> ".join(path), span
        )

    def uses(name: str) -> dict[str, Span]:
        derivative = by_name.get(name)
        return {derivative.of: derivative.span} if derivative else {}

    order = _sorted(by_name, uses, cycle)
    return [by_name[name] for name in order if name in by_name]


def sort_structs(classes: list[ast.ClassDef]) -> list[ast.ClassDef]:
    """A struct after those that its members are made of, or that they are differentials of."""
    by_name = {node.name: node for node in classes}

    def primal(name: str) -> str:
        while name not in by_name and name.startswith("_d"):
            name = name[2:]
        return name

    def uses(name: str) -> dict[str, Span]:
        return {
            primal(inner.id): span_of(inner)
            for item in by_name[name].body
            if isinstance(item, ast.AnnAssign)
            for inner in ast.walk(item.annotation)
            if isinstance(inner, ast.Name) and primal(inner.id) in by_name
        }

    def cycle(path: list[str], span: Span) -> errors.UserError:
        return errors.RecursionNotSupported("a struct contains itself: " + " -> ".join(path), span)

    return [by_name[name] for name in _sorted(by_name, uses, cycle)]
