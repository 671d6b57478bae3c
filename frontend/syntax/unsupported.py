"""Python that is not loma: what each construct is called, and what to write instead."""

from __future__ import annotations

import ast

from loma.errors import SyntaxNotSupported
from loma.frontend.scope import span_of

_COMPREHENSION = "write a reduction: sum(... for i in N), max(...), min(...) or prod(...)"
_CHECKS = "sizes that agree have one name in the types; check values in Python, before the call"
_TEXT = (
    "programs compute with numbers: int, float, arrays and tensors; Python prints what they return"
)

# Construct -> (its name, a hint or None).
_TABLE: dict[type[ast.AST], tuple[str, str | None]] = {
    # statements
    ast.AsyncFunctionDef: ("'async def'", "write 'def'"),
    ast.FunctionDef: ("a function inside a function", "define it at the top level of the file"),
    ast.ClassDef: ("a class inside a function", "define the struct at the top level of the file"),
    ast.Delete: ("'del'", "leave it out: memory is reused when nothing reads it any more"),
    ast.With: ("'with'", "what surrounds a call stands in Python"),
    ast.AsyncWith: ("'async with'", None),
    ast.AsyncFor: ("'async for'", "write 'for'"),
    ast.Match: ("'match'", "write if / elif / else"),
    ast.Raise: ("'raise'", _CHECKS),
    ast.Try: ("'try'", "errors of a call are caught in Python"),
    ast.TryStar: ("'try'", "errors of a call are caught in Python"),
    ast.Assert: ("'assert'", _CHECKS),
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
    ast.Dict: ("a dict", "a struct has named members: class Name: ..."),
    ast.Set: ("a set", None),
    ast.ListComp: ("a list comprehension", _COMPREHENSION),
    ast.SetComp: ("a set comprehension", _COMPREHENSION),
    ast.DictComp: ("a dict comprehension", _COMPREHENSION),
    ast.GeneratorExp: ("a generator outside a reduction", _COMPREHENSION),
    ast.Await: ("'await'", None),
    ast.Yield: ("'yield'", "return all results together: return a, b"),
    ast.YieldFrom: ("'yield'", "return all results together: return a, b"),
    ast.Constant: ("a string", _TEXT),
    ast.JoinedStr: ("a string", _TEXT),
    ast.FormattedValue: ("a string", _TEXT),
    ast.Starred: ("'*'", "write the items out"),
    ast.Tuple: ("a tuple here", "return takes several results: return a, b"),
    ast.List: (
        "a list here",
        "a list is a shape or dims of an operator: reshape(x, [B, 8]); values stand in a tensor or "
        "an array: a : Array[float, 2], and a[0] = ...",
    ),
    ast.Slice: ("a slice ':'", "it stands outside index statements; here write Y[i] = X[i + 1]"),
    # operators
    ast.MatMult: (
        "'@' of numbers",
        "it takes whole tensors; of elements write C[i, j] += A[i, k] * B[k, j]",
    ),
    ast.BitAnd: ("'&'", "write 'and'"),
    ast.BitOr: ("'|'", "write 'or'"),
    ast.BitXor: ("'^'", "a power is x ** y"),
    ast.LShift: ("'<<'", "write n * 2 ** k"),
    ast.RShift: ("'>>'", "write n // 2 ** k"),
    ast.Invert: ("'~'", "write 'not'"),
    ast.Is: ("'is'", "write '=='"),
    ast.IsNot: ("'is not'", "write '!='"),
    ast.In: ("'in'", "write x == a or x == b"),
    ast.NotIn: ("'not in'", "write x != a and x != b"),
}


def unsupported(node: ast.AST, at: ast.AST | None = None) -> SyntaxNotSupported:
    """The error for a construct that loma does not have, placed at ``at`` or the node itself."""
    name, hint = _TABLE.get(type(node), ("this Python syntax", None))
    return SyntaxNotSupported(f"{name} is not part of loma", span_of(at or node), hint=hint)
