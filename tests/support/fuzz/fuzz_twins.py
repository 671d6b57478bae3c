"""Random tensor programs of all of the language, each written twice: in loma and in PyTorch.

The second text is Python that autograd differentiates, with the functions of :mod:`twin_torch`.
Most of the first one is such Python, too; index statements, declarations, parts of tensors as
targets, and logic on whole tensors are put in other words. The generator knows the sizes and ints
of the call, so that it stays inside of tensors, and lets sizes be names all the same.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from fuzz_twin_elements import Elements
from torch import Tensor
from twin_text import INDICES, Text, Variable, same, text
from twin_torch import SCOPE

CONSTANTS = "SCALE : float = 1.5 / 2\nDEPTH : int = 1 + 1\n"
HELPER = """

def bend(x : In[float], k : In[int] = DEPTH, s : In[float] = SCALE) -> float:
    y : float = x
    {loop}
        y = {step}
    return y if y > -0.31 else y * s
"""
CALLED = """

def chain(u : In[Tensor[N]], k : In[int], s : In[float] = SCALE) -> tuple[Tensor[N], float]:
    h = u * s
    for t in range(1, N, k):
        h[t] = sin(h[t - 1] + u[t])
    last : float = 0.5
    last += h[i] * u[i]
    return h, last
"""
# the same on lists
CALLED_PYTHON = """

def chain(u, k, s=SCALE):
    h = [e * s for e in u]
    for t in range(1, len(u), k):
        h[t] = sin(h[t - 1] + u[t])
    return stack(h) if h else u, 0.5 + real(sum(e * d for e, d in zip(h, u)))
"""
LOOPS = (
    "for i in range(k):", "for i in range(k, -1, -1):", "for i in reversed(range(1, k + 2)):",
    "for i in range(-1, k, 2):",
)  # fmt: skip
STEPS = (
    "sin(y * s + 0.3 * i)", "atan2(y, 1.5 + cos(i * x))", "clamp(y + x, -1.2, 1.3) - 0.1 * i",
    "softplus(y - 0.5 * i) * s", "erf(y + log1p(x * x))", "rsqrt(1.5 + y * y) + 0.1 * x",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Twin:
    """``text`` ends in ``f``, and needs CONSTANTS before it; ``python`` is all of the same."""

    text: str
    python: str
    sizes: dict[str, int]
    args: tuple[Any, ...]
    narrow: tuple[Any, ...]
    """The arguments again, ints of other dtypes where IntTensors are taken."""

    def reference(self, *args: Any) -> Any:
        scope = {**SCOPE, **self.sizes}
        exec(self.python, scope)
        function: Callable[..., Any] = scope["f"]
        return function(*args)


def twin(seed: int) -> Twin:
    rng = random.Random(seed)
    counts = (0, 1, 2, 3) if rng.random() < 0.15 else (1, 2, 3, 3, 4)
    sizes = {name: rng.choice(counts) for name in "ABCD"}
    tensors = torch.Generator().manual_seed(seed)

    def drawn(*names: str) -> Tensor:
        shape = [eval(name, dict(sizes)) for name in names]
        return torch.randn(shape, generator=tensors, dtype=torch.float64)

    def ints(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=tensors)

    a, b = sizes["A"], sizes["B"]
    floats = [("x", ("A",)), ("y", ("B", "C")), ("z", ("A", "B", "C")), ("w", ("A", "2 * D"))]
    params = [Variable(name, dims, "float") for name, dims in floats]
    params += [Variable("at", ("A",), "int", (0, b - 1)), Variable("mask", ("A", "B"), "bool")]
    params += [Variable("much", ("A",), "int", (0, min(sizes.values())))]
    n = rng.choice((0, 1, 2, 3))
    at, much = ints(0, max(b, 1), a), ints(0, min(sizes.values()) + 1, a)
    mask = ints(0, 2, a, b).bool()
    args = (*(drawn(*dims) for _, dims in floats), at, mask, much, n, drawn()[()])
    kinds = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
    narrow = (*args[:4], at.to(rng.choice(kinds)), mask, much.to(rng.choice(kinds)), *args[7:])
    function = _Function(rng, {**sizes, "n": n, "DEPTH": 2}, params, much.tolist())
    body, results = function.body()
    helper = HELPER.format(loop=rng.choice(LOOPS), step=rng.choice(STEPS))
    listed = ", ".join(f"{v.name} : In[{v.type}]" for v in params)
    types, names = ", ".join(v.type for v in results), ", ".join(v.name for v in results)
    head = f"\n\ndef f({listed}, n : In[int] = DEPTH, r : In[float] = SCALE) -> tuple[{types}]:\n"
    end = f"\n    return {names}\n"
    lines = ["\n".join(f"    {line[k]}" for line in body if line[k]) for k in (0, 1)]
    loma, python = (helper + head + own + end for own in lines)
    python = f"from __future__ import annotations\n{CONSTANTS}{CALLED_PYTHON}{python}"
    return Twin(CALLED + loma, python, sizes, args, narrow)


class _Function(Elements):
    """The statements of ``f``."""

    def __init__(
        self, rng: random.Random, sizes: dict[str, int], params: list[Variable], much: list[int]
    ) -> None:
        super().__init__(rng, sizes, params)
        self._much = much

    def body(self) -> tuple[list[Text], list[Variable]]:
        rng = self._rng
        lines: list[Text] = []
        for _ in range(rng.randint(4, 9)):
            lines += self._statement(2)
        own = [v for v in self._variables if v not in self._params]
        floats = [v for v in own if v.kind == "float"]
        if not floats:
            lines += self._declaration("float")
            floats = [self._variables[-1]]
        chosen = rng.sample(floats, min(len(floats), 2))
        others = [v for v in own if v.kind != "float"]
        return lines, chosen + rng.sample(others, min(len(others), 1))

    # -------------------------------------------------------------------------------- statements

    def _statement(self, depth: int) -> list[Text]:
        rng = self._rng
        kind = rng.choices(
            (
                "whole",
                "index",
                "part",
                "declare",
                "for",
                "if",
                "number",
                "masks",
                "several",
                "zero",
                "call",
            ),
            (8, 6, 3, 2, 3 if depth else 0, 1 if depth else 0, 1, 1, 1, 1 if depth < 2 else 0, 1),
        )[0]
        match kind:
            case "whole":
                return self.whole()
            case "index":
                return self._index_statement()
            case "part":
                return self._part()
            case "declare":
                return self._declaration(rng.choice(("float", "float", "int", "bool")))
            case "for":
                return self._for(depth)
            case "if":
                return self._if(depth)
            case "number":
                return self._number()
            case "masks":
                return self.masks()
            case "several":
                return self.several()
            case "zero":
                return self._zero()
            case _:
                return self._call()

    def _zero(self) -> list[Text]:
        targets = [v for v in self._targets() if v.kind == "float"]
        if not targets:
            return self._declaration("float")
        name = self._rng.choice(targets).name
        return [(f"zero({name})", f"{name} = {name} * 0.0")]

    def _call(self) -> list[Text]:
        """Of a function with several results."""
        rng = self._rng
        source = rng.choice(self._tensors())
        given = source.name + "".join(f"[{rng.choice(('0', '-1'))}]" for _ in source.dims[1:])
        made, last = self._new(source.dims[-1:], "float"), self._new((), "float")
        attrs = rng.choice(("1", "2", "1, r", "k=DEPTH", "1, s=0.9"))
        return [same(f"{made.name}, {last.name} = chain({given}, {attrs})")]

    def _declaration(self, kind: str) -> list[Text]:
        rng = self._rng
        dims = rng.choice([v.dims for v in self._variables if v.dims])
        if rng.random() < 0.4:
            dims = tuple(
                rng.choice(("A", "B", "C", "D + 1", "A + 1")) for _ in range(rng.choice((1, 2)))
            )
        made = self._new(dims, kind)
        zeros = {"float": "zeros", "int": "integers", "bool": "booleans"}[kind]
        return [(f"{made.name} : {made.type}", f"{made.name} = {zeros}([{', '.join(dims)}])")]

    def _block(self, depth: int) -> list[Text]:
        """Statements of a block, whose variables end with it."""
        before = list(self._variables)
        lines: list[Text] = []
        for _ in range(self._rng.randint(1, 3)):
            lines += self._statement(depth - 1)
        self._variables = before
        return [(f"    {a}" if a else "", f"    {b}" if b else "") for a, b in lines]

    def _for(self, depth: int) -> list[Text]:
        rng = self._rng
        counter = self._fresh("t")
        size = rng.choice("ABC")
        bounds = ["n", "2", size, f"1, {size}", f"0, {size}, 2", f"{size} - 1, -1, -1", "n, 0, -1"]
        bounds += [f"{outer} + 1" for outer, _ in self._counters]
        if depth == 2 and self._much:  # data say how often
            bounds += ["much[0]", "much[A - 1] + 1"]
        bound = rng.choice(bounds)
        head = f"range({bound})"
        head = f"reversed({head})" if rng.random() < 0.25 else head
        scope = {**self._sizes, "much": self._much, **{c: v[-1] for c, v in self._counters}}
        values = sorted(eval(f"range({bound})", scope)) or [0]
        self._counters.append((counter, (values[0], values[-1])))
        block = self._block(depth)
        self._counters.pop()
        return [same(f"for {counter} in {head}:"), *block]

    def _if(self, depth: int) -> list[Text]:
        rng = self._rng
        names = ["n", *(c for c, _ in self._counters)]
        test = f"{rng.choice(names)} {rng.choice(('<', '>', '==', '!='))} {rng.choice('012')}"
        numbers = [v.name for v in self._variables if v.kind == "float" and not v.dims]
        if rng.random() < 0.3:
            test = f"{rng.choice([*numbers, 'r'])} > {rng.choice(('0.0123', '-0.234'))}"
        lines = [same(f"if {test}:"), *self._block(depth)]
        if self._rng.random() < 0.5:
            lines += [same("else:"), *self._block(depth)]
        return lines

    def _number(self) -> list[Text]:
        """A float variable that adds something up."""
        made = self._new((), "float")
        self._axes, self._summing = {}, True
        value = self._expression(1)
        self._summing = False
        declared = (f"{made.name} : float = 0.25", f"{made.name} = real(0.25)")
        return [declared, self._put(made, "+=", [], text("0.1 * ({})", value))]

    def _targets(self) -> list[Variable]:
        return [v for v in self._variables if v not in self._params and v.dims]

    def _index_statement(self) -> list[Text]:
        rng = self._rng
        lines: list[Text] = []
        if not self._targets() or rng.random() < 0.4:
            lines = self._declaration("float")
        target = rng.choice(self._targets())
        op = "+=" if target.kind != "bool" and rng.random() < 0.35 else "="
        self._axes = {}
        subscripts: list[str] = []
        for size in target.dims:
            fixed = self.inside(size)
            looked = [i for i, own in self._axes.items() if own == "A"]
            roll = rng.random()
            if fixed and roll < 0.5:
                subscripts.append(rng.choice(fixed))
            elif roll > 0.93:
                subscripts.append(rng.choice(("0", f"{size} - 1")))
            elif op == "+=" and size == "B" and looked and roll > 0.6:
                subscripts.append(f"at[{rng.choice(looked)}]")
            else:
                index = next(i for i in INDICES if i not in self._axes)
                self._axes[index] = size
                subscripts.append(index)
        self._summing = op == "+=" and rng.random() < 0.4
        if target.kind == "float":
            value = self._expression(2)
            value = text(rng.choice(("sin({})", "tanh({})", "0.5 * ({})", "{}")), value)
        else:
            value = self._int_expression() if target.kind == "int" else self._condition()
        self._summing = False
        return [*lines, self._put(target, op, subscripts, value)]

    def _put(self, target: Variable, op: str, subscripts: list[str], value: Text) -> Text:
        mentioned = set(re.findall(r"\w+", f"{subscripts} {value[1]}"))
        axes = [i for i in self._axes if i in mentioned]  # what is mentioned nowhere is no index
        ranges = "".join(f"range({self._axes[i]}), " for i in axes)
        place = f"{target.name}[{', '.join(subscripts)}]" if subscripts else target.name
        listed = "".join(f"{s}, " for s in subscripts)
        element = f"lambda {', '.join(axes)}: (({listed}), {value[1]})"
        return (
            f"{place} {op} {value[0]}",
            f"{target.name} = put({target.name}, '{op}', ({ranges}), {element})",
        )

    def _part(self) -> list[Text]:
        """``y[1:, t] = ...``"""
        rng = self._rng
        lines: list[Text] = []
        targets = [v for v in self._targets() if v.kind == "float"]
        if not targets:
            lines = self._declaration("float")
            targets = [self._variables[-1]]
        target = rng.choice(targets)
        subscripts, dims = self.slices(target)
        op = rng.choice(("=", "=", "+="))
        value = self.value_for(dims)
        listed = f"{', '.join(subscripts)}"
        index = ", ".join(map(_as_object, subscripts))
        return [*lines, (
            f"{target.name}[{listed}] {op} {value[0]}",
            f"{target.name} = part({target.name}, '{op}', ({index},), {value[1]})",
        )]  # fmt: skip


def _as_object(subscript: str) -> str:
    """A subscript as Python passes it."""
    if ":" not in subscript:
        return subscript
    bounds = [bound.strip() or "None" for bound in subscript.split(":")]
    return f"slice({', '.join(bounds)})"
