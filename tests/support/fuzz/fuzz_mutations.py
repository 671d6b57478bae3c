"""Programs that are nearly right: those of the project with names, types, statements and operators
exchanged, and with derivatives asked for."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from loma.core.builtins import BUILTINS
from loma.core.ops import OPS

_T = TypeVar("_T")
_BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_COMPARE = (ast.Lt, ast.LtE, ast.Gt, ast.Eq, ast.NotEq)
_NUMBERS = (-1, 0, 1, 2, 3, 5, 1.5, 0.0, 100)
_TYPES = (
    "int", "float", "Tensor[N]", "Tensor[N, M]", "IntTensor[N]", "BoolTensor[N]", "Tensor",
    "TorchTensorFloat", "Tensor[()]", "Tensor[3]", "Tensor[2 * N]", "Tensor[N + 1]",
    "Array[float]", "Array[float, 3]", "Array[int, 2]", "IntTensor[()]", "Diff[float]",
    "Tensor[1]", "Tensor[0]", "Stack[float]",
)  # fmt: skip
_SIZES = ("N", "M", "3", "1", "0", "2 * N", "N + 1", "n", "N // 2", "K", "N * M", "max(N, 2)")
_SUBSCRIPTS = (
    "i", "j", "0", "N - 1 - i", "i + 1", "2 * i", "n", "i + j", "-1", "(i + 1) % N", "t", "n[i]",
    "i // 2", "2 * i + j",
)  # fmt: skip
_EXPRESSIONS = (
    "i", "0", "N", "x", "x[0]", "sum(x[i] for i in N)", "max(x[k] for k in range(n))", "no_diff(x)",
    "x @ x", "x + 1", "zero_pad(x[i - 1])", "1.0 if x[0] > 0.0 else 2.0", "t", "n[0]", "f(x)", "y",
    "not x", "-x", "x < 2", "float2int(x[0])", "zeros([N])", "reshape(x, [-1])", "cat([x, x], 0)",
    "one_hot(n, 3)", "x[i, j]", "(x, y)", "[1, 2]", "x.y", "thread_id()", "mean(x)",
    "softmax(x, 0)",
)  # fmt: skip
_STATEMENTS = (
    "y = x", "y[i] = x[i]", "y[i] += x[i, j]", "s += x[i]", "s : float = 1.0", "k : int = n[0]",
    "y : Tensor[N]", "zero(y)", "pass", "i : int = 2", "f(x)", "g(x, y)", "a, b = f(x)",
    "y[0] = 1.0", "y *= 2.0", "x += 1.0", "y[i] *= y[i]", "n = n + 1", "u : IntTensor[N]",
    "u[i] = i", "y[i] = y[N - 1 - i]", "b : Tensor", "b = y", "t : Tensor[()]", "q = x * x",
    "return y",
)  # fmt: skip
_HEADS = (
    "for t in range(3)", "for t in range(n)", "for i in range(N)", "if n > 2", "if x[0] > 0.0",
    "for t in reversed(range(2))", "for q in range(n[0])", "for t in range(-2)",
    "while (n > 0, max_iter := 4)",
)  # fmt: skip
_TENSORS = ("Tensor", "IntTensor", "TorchTensorFloat")


def mutated(text: str, rng: random.Random) -> str:
    """The program with some changes, and with a few derivatives, of derivatives as well."""
    tree = ast.parse(text)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        rng.choice(_CHANGES)(tree, rng)
    made = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    lines = [ast.unparse(ast.fix_missing_locations(tree))]
    for k in range(rng.choice((0, 1, 2, 3)) if made else 0):
        of, mode = rng.choice(made), rng.choice(("rev_diff", "rev_diff", "fwd_diff"))
        made.append(f"D{k}_{of}")
        lines.append(f"D{k}_{of} = {mode}({of})")
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------- the pieces


def _nodes(tree: ast.AST, kind: type[_T]) -> list[_T]:
    return [node for node in ast.walk(tree) if isinstance(node, kind)]


def _blocks(tree: ast.AST) -> list[list[ast.stmt]]:
    """The statements of functions, loops and branches."""
    found = (
        getattr(node, field, None)
        for node in ast.walk(tree)
        if not isinstance(node, ast.Module | ast.ClassDef)
        for field in ("body", "orelse")
    )
    return [block for block in found if isinstance(block, list) and block] or [[ast.Pass()]]


def _expressions(tree: ast.AST) -> Iterator[tuple[Any, int | str, ast.expr]]:
    """(node or list, attribute or position, what is there), of all that has a value."""
    skipped = ("annotation", "returns", "target", "targets", "func", "decorator_list", "ctx")
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if field in skipped:
                continue
            if isinstance(value, ast.expr):
                yield node, field, value
            elif isinstance(value, list):
                yield from ((value, k, e) for k, e in enumerate(value) if isinstance(e, ast.expr))


def _put(place: Any, key: int | str, new: ast.expr) -> None:
    if isinstance(key, int):
        place[key] = new
    else:
        setattr(place, key, new)


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _items(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _set_items(node: ast.Subscript, items: list[ast.expr]) -> None:
    node.slice = items[0] if len(items) == 1 else ast.Tuple(items, ast.Load())


# ------------------------------------------------------------------------------------ the changes


def _name(tree: ast.Module, rng: random.Random) -> None:
    names = sorted({node.id for node in _nodes(tree, ast.Name)})
    rng.choice(_nodes(tree, ast.Name)).id = rng.choice(names)


def _argument_name(tree: ast.Module, rng: random.Random) -> None:
    if args := _nodes(tree, ast.arg):
        rng.choice(args).arg = rng.choice(sorted({node.id for node in _nodes(tree, ast.Name)}))


def _drop(tree: ast.Module, rng: random.Random) -> None:
    block = rng.choice(_blocks(tree))
    del block[rng.randrange(len(block))]
    block.extend([] if block else [ast.Pass()])


def _copy(tree: ast.Module, rng: random.Random) -> None:
    source, target = rng.choice(_blocks(tree)), rng.choice(_blocks(tree))
    target.insert(rng.randrange(len(target) + 1), copy.deepcopy(rng.choice(source)))


def _number(tree: ast.Module, rng: random.Random) -> None:
    numbers = [n for n in _nodes(tree, ast.Constant) if type(n.value) in (int, float)]
    if numbers:
        rng.choice(numbers).value = rng.choice(_NUMBERS)


def _mode(tree: ast.Module, rng: random.Random) -> None:
    if modes := [node for node in _nodes(tree, ast.Name) if node.id in ("In", "Out")]:
        node = rng.choice(modes)
        node.id = "Out" if node.id == "In" else "In"


def _type(tree: ast.Module, rng: random.Random) -> None:
    places: list[tuple[Any, str]] = [(node, "annotation") for node in _nodes(tree, ast.AnnAssign)]
    places += [(node, "returns") for node in _nodes(tree, ast.FunctionDef)]
    places += [
        (node.annotation, "slice")
        for node in _nodes(tree, ast.arg)
        if isinstance(node.annotation, ast.Subscript)
    ]
    if places:
        setattr(*rng.choice(places), _expression(rng.choice(_TYPES)))


def _size(tree: ast.Module, rng: random.Random) -> None:
    types = [n for n in _nodes(tree, ast.Subscript)
             if isinstance(n.value, ast.Name) and n.value.id in _TENSORS]  # fmt: skip
    if types:
        _change_items(rng.choice(types), rng, _SIZES)


def _subscript(tree: ast.Module, rng: random.Random) -> None:
    if found := _nodes(tree, ast.Subscript):
        _change_items(rng.choice(found), rng, _SUBSCRIPTS)


def _change_items(node: ast.Subscript, rng: random.Random, pool: tuple[str, ...]) -> None:
    items, new = _items(node), _expression(rng.choice(pool))
    match rng.randrange(4):
        case 0 if len(items) > 1:
            items.pop(rng.randrange(len(items)))
        case 1:
            items.insert(rng.randrange(len(items) + 1), new)
        case 2:
            rng.shuffle(items)
        case _ if items:
            items[rng.randrange(len(items))] = new
    _set_items(node, items)


def _operator(tree: ast.Module, rng: random.Random) -> None:
    if binary := _nodes(tree, ast.BinOp):
        rng.choice(binary).op = rng.choice(_BINARY)()
    if compare := _nodes(tree, ast.Compare):
        node = rng.choice(compare)
        node.ops = [rng.choice(_COMPARE)() for _ in node.ops]


def _function(tree: ast.Module, rng: random.Random) -> None:
    if found := _nodes(tree, ast.Call):
        own = [node.name for node in _nodes(tree, ast.FunctionDef)] * 3
        names = [
            *OPS,
            *BUILTINS,
            *own,
            "sum",
            "max",
            "min",
            "prod",
            "argmax",
            "zero_pad",
            "no_diff",
        ]
        rng.choice(found).func = ast.Name(rng.choice(names), ast.Load())


def _wrap(tree: ast.Module, rng: random.Random) -> None:
    block = rng.choice(_blocks(tree))
    first = rng.randrange(len(block))
    last = first + rng.choice((1, 1, 2, 3))
    (new,) = ast.parse(f"{rng.choice(_HEADS)}:\n    pass").body
    assert isinstance(new, ast.For | ast.If | ast.While)
    new.body = block[first:last]
    block[first:last] = [new]


def _value(tree: ast.Module, rng: random.Random) -> None:
    if places := list(_expressions(tree)):
        place, key, _ = rng.choice(places)
        new = copy.deepcopy(rng.choice(places)[2])
        _put(place, key, new if rng.random() < 0.5 else _expression(rng.choice(_EXPRESSIONS)))


def _statement(tree: ast.Module, rng: random.Random) -> None:
    block = rng.choice(_blocks(tree))
    block[rng.randrange(len(block) + 1) : 0] = ast.parse(rng.choice(_STATEMENTS)).body


def _augmented(tree: ast.Module, rng: random.Random) -> None:
    for block in _blocks(tree):
        for k, stmt in enumerate(block):
            if rng.random() < 0.7:
                continue
            if isinstance(stmt, ast.AugAssign):
                block[k] = ast.Assign([stmt.target], stmt.value)
            elif isinstance(stmt, ast.Assign) and not isinstance(stmt.targets[0], ast.Tuple):
                op = rng.choice((ast.Add, ast.Sub, ast.Mult, ast.Div))()
                block[k] = ast.AugAssign(stmt.targets[0], op, stmt.value)  # type: ignore[arg-type]


def _results(tree: ast.Module, rng: random.Random) -> None:
    """A function that gives nothing back, or its result twice."""
    functions = _nodes(tree, ast.FunctionDef)
    if not functions:
        return
    function = rng.choice(functions)
    last = function.body[-1] if function.body else None
    if not isinstance(last, ast.Return) or function.returns is None or last.value is None:
        return
    if rng.random() < 0.5:
        function.returns, function.body[-1] = None, ast.Pass()
    else:
        type_ = ast.unparse(function.returns)
        function.returns = _expression(f"tuple[{type_}, {type_}]")
        last.value = ast.Tuple([last.value, copy.deepcopy(last.value)], ast.Load())


def _declaration(tree: ast.Module, rng: random.Random) -> None:
    """One more variable, with a name that may be an index or a counter elsewhere."""
    block = rng.choice(_blocks(tree))
    name = rng.choice(sorted({node.id for node in _nodes(tree, ast.Name)}))
    value = rng.choice(("", "", " = 1", f" = {name}", " = 0.5"))
    (stmt,) = ast.parse(f"{name} : {rng.choice(_TYPES)}{value}").body
    block.insert(rng.randrange(len(block) + 1), stmt)


_CHANGES: tuple[Callable[[ast.Module, random.Random], None], ...] = (
    _name, _name, _argument_name, _drop, _copy, _number, _mode, _type, _type, _size, _subscript,
    _operator, _function, _wrap, _value, _value, _statement, _statement, _augmented, _results,
    _declaration,
)  # fmt: skip
