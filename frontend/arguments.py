"""What a call of a function of the module passes for each argument."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from loma import errors
from loma.core.ir import Function
from loma.frontend.scope import span_of


def passed(node: ast.Call, callee: Function, names: Sequence[str]) -> dict[str, ast.expr]:
    """What is passed for the arguments of these names, by position and by name. The last ones are
    left out where the callee has defaults for them."""
    name, listed = callee.name, ", ".join(names) or "none"
    related = ((callee.span, "defined here"),)
    found = dict(zip(names, node.args, strict=False))
    for keyword in node.keywords:
        place = span_of(keyword)
        if keyword.arg is None:
            raise errors.CallTypeMismatch("'**' is not part of loma", place)
        if keyword.arg not in names:
            raise errors.CallTypeMismatch(
                f"'{name}' has no argument '{keyword.arg}'; its arguments are {listed}", place,
                hint=errors.suggest(keyword.arg, names), related=related,
            )  # fmt: skip
        if keyword.arg in found:
            raise errors.CallTypeMismatch(f"argument '{keyword.arg}' is given twice", place)
        found[keyword.arg] = keyword.value
    needed = len(names) - len(callee.defaults)
    missing = [wanted for wanted in names[:needed] if wanted not in found]
    if node.keywords and missing and len(node.args) <= len(names):
        raise errors.CallTypeMismatch(
            f"'{name}' misses argument '{missing[0]}'; its arguments are {listed}", span_of(node),
            related=related,
        )  # fmt: skip
    if len(node.args) > len(names) or missing:
        least = f"{needed} to " if callee.defaults else ""
        raise errors.CallTypeMismatch(
            f"'{name}' takes {least}{errors.counted(len(names), 'argument')} ({listed}), found "
            f"{len(node.args) + len(node.keywords)}",
            span_of(node), related=related,
        )  # fmt: skip
    return found
