"""Python that is not loma: what each construct is called, and what to write instead."""

from __future__ import annotations

import ast

from loma.errors import SyntaxNotSupported
from loma.frontend.scope import span_of

_COMPREHENSION = "write a reduction: sum(... for i in N), max(...), min(...) or prod(...)"

# Construct -> (its name, a hint or None).
_TABLE: dict[type[ast.AST], tuple[str, str | None]] = {
    # statements
    ast.AsyncFunctionDef: ("'async def'", "write 'def'"),
    ast.FunctionDef: ("a function inside a function", "define it at the top level of the file"),
    ast.ClassDef: ("a class inside a function", "define the struct at the top level of the file"),
    ast.Delete: ("'del'", None),
    ast.With: ("'with'", None),
    ast.AsyncWith: ("'async with'", None),
    ast.AsyncFor: ("'async for'", "write 'for'"),
    ast.Match: ("'match'", "write if / elif / else"),
    ast.Raise: ("'raise'", None),
    ast.Try: ("'try'", None),
    ast.TryStar: ("'try'", None),
    ast.Assert: ("'assert'", None),
    ast.Import: (
        "'import' of anything but loma",
        "from other import f takes f of other.loma; what loma offers is there without import",
    ),
    ast.Global: ("'global'", "pass the value as an argument"),
    ast.Nonlocal: ("'nonlocal'", "pass the value as an argument"),
    ast.Break: ("'break'", "put the condition into 'while', or guard the body with 'if'"),
    ast.Continue: ("'continue'", "guard the rest of the body with 'if'"),
    # expressions
    ast.NamedExpr: ("':='", "it stands only in 'while (condition, max_iter := n)'"),
    ast.Lambda: ("'lambda'", "define a function at the top level of the file"),
    ast.Dict: ("a dict", None),
    ast.Set: ("a set", None),
    ast.ListComp: ("a list comprehension", _COMPREHENSION),
    ast.SetComp: ("a set comprehension", _COMPREHENSION),
    ast.DictComp: ("a dict comprehension", _COMPREHENSION),
    ast.GeneratorExp: ("a generator outside a reduction", _COMPREHENSION),
    ast.Await: ("'await'", None),
    ast.Yield: ("'yield'", "return all results together: return a, b"),
    ast.YieldFrom: ("'yield'", "return all results together: return a, b"),
    ast.JoinedStr: ("a string", None),
    ast.FormattedValue: ("a string", None),
    ast.Starred: ("'*'", "write the items out"),
    ast.Tuple: ("a tuple here", "return takes several results: return a, b"),
    ast.List: ("a list here", "lists give shapes and dims to operators, as in reshape(x, [B, 8])"),
    ast.Slice: ("a slice ':'", "it stands outside index statements; here write Y[i] = X[i + 1]"),
    # operators
    ast.MatMult: (
        "'@' of numbers",
        "it takes whole tensors; of elements write C[i, j] += A[i, k] * B[k, j]",
    ),
    ast.BitAnd: ("'&'", "write 'and'"),
    ast.BitOr: ("'|'", "write 'or'"),
    ast.BitXor: ("'^'", "a power is x ** y"),
    ast.LShift: ("'<<'", None),
    ast.RShift: ("'>>'", None),
    ast.Invert: ("'~'", "write 'not'"),
    ast.Is: ("'is'", "write '=='"),
    ast.IsNot: ("'is not'", "write '!='"),
    ast.In: ("'in'", None),
    ast.NotIn: ("'not in'", None),
}


def unsupported(node: ast.AST, at: ast.AST | None = None) -> SyntaxNotSupported:
    """The error for a construct that loma does not have, placed at ``at`` or the node itself."""
    name, hint = _TABLE.get(type(node), ("this Python syntax", None))
    return SyntaxNotSupported(f"{name} is not part of loma", span_of(at or node), hint=hint)
