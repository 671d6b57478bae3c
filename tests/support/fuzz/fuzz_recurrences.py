"""Random recurrences: loops over elements that read what other iterations have written.

A program is written twice, as loma and as Python on lists of 0-dim tensors, which autograd
differentiates: nothing of the compiler is in the second one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SIZE = 13  # of the tensors: no subscript that is drawn for counters below 5 is beyond
WIDTH = 3  # of statements over an index
PLACES = [2, 0, 3]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """``f(x, ones, places, n)``, or more ints behind, gives two tensors of SIZE elements; ``ones``
    has WIDTH elements, and ``places`` is PLACES: as many different ints below 4."""

    text: str
    python: str

    def reference(self, x: Tensor, ones: Tensor, *ints: Any) -> tuple[Tensor, Tensor]:
        """The same in Python; IndexError where a subscript is outside."""

        def real(value: Any) -> Tensor:
            return torch.as_tensor(value, dtype=torch.float64)

        scope: dict[str, Any] = {
            "sin": lambda v: torch.sin(real(v)),
            "cos": lambda v: torch.cos(real(v)),
            "sum": lambda values: sum(values, real(0.0)),
            "places": PLACES,
            "stacked": lambda values: torch.stack([real(value) for value in values]),
        }
        exec(self.python, scope)
        function: Callable[..., tuple[Tensor, Tensor]] = scope["f"]
        return function(list(x.unbind()), ones, *ints)


class Generator:
    deepest = 2  # loops in each other

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def block(self, counters: tuple[str, ...], indent: str) -> list[tuple[str, str]]:
        """Lines of a block, each in loma and in Python."""
        out: list[tuple[str, str]] = []
        for _ in range(self._rng.randint(1, 3)):
            if len(counters) < self.deepest and self._rng.random() < 0.45:
                out += self.loop(counters, indent)
            else:
                out += self.statement(counters, indent)
        return out

    def loop(self, counters: tuple[str, ...], indent: str) -> list[tuple[str, str]]:
        counter = "ijl"[len(counters)]
        bounds = ["3", "4", "n", *(f"{c} + 1" for c in counters), *counters]
        head = f"range({self._rng.choice(bounds)})"
        return self.counted(counters, counter, head, indent)

    def counted(
        self, counters: tuple[str, ...], counter: str, head: str, indent: str
    ) -> list[tuple[str, str]]:
        head = f"reversed({head})" if self._rng.random() < 0.3 else head
        line = f"{indent}for {counter} in {head}:"
        return [(line, line), *self.block((*counters, counter), indent + "    ")]

    def statement(self, counters: tuple[str, ...], indent: str) -> list[tuple[str, str]]:
        rng, name = self._rng, self._rng.choice("yz")
        op = rng.choice(("=", "=", "=", "+="))
        kind = rng.random()
        if kind < 0.25:
            return self._over_an_index(counters, indent, name, op)
        place = f"{name}[{self.subscript(counters)}]"
        line = f"{place} {op} {self.expression(counters)}"
        python = line if op == "=" else f"{place} = {place} + ({line.split(' += ', 1)[1]})"
        if kind < 0.4 and counters:
            cond = f"{indent}if {rng.choice(counters)} {rng.choice('<>')} {rng.choice('12')}:"
            indent += "    "
            return [(cond, cond), (indent + line, indent + python)]
        return [(indent + line, indent + python)]

    def _over_an_index(
        self, counters: tuple[str, ...], indent: str, name: str, op: str
    ) -> list[tuple[str, str]]:
        """A statement at once: it sees old values throughout."""
        rng = self._rng
        source = rng.choice(
            (
                f"v + {rng.randint(0, 4)}",
                f"{7 - rng.randint(0, 2)} - v",
                f"2 * v + {rng.randint(0, 1)}",
                f"places[v] + {rng.randint(0, 3)}",
            )
        )
        place = f"{name}[{self._places(counters)}]"
        value = f"{rng.choice('yz')}[{source}] * {self.term(counters, None)}"
        new = f"new[v] + {place}" if op == "+=" else "new[v]"
        python = f"new = [{value} + x[v + 1] * ones[v] for v in range({WIDTH})]"
        return [
            (f"{indent}{place} {op} {value} + x[v + 1] * ones[v]", f"{indent}{python}"),
            ("", f"{indent}for v in range({WIDTH}): {place} = {new}"),
        ]

    def _places(self, counters: tuple[str, ...]) -> str:
        """A subscript that is another one for each value of the index v."""
        rng = self._rng
        some = rng.choice((*counters, "n", str(rng.randint(0, 4))))
        return rng.choice(
            (
                f"v + {rng.randint(0, 2)}",
                f"v + {rng.randint(0, 2)}",
                f"(v + {some}) % {rng.randint(WIDTH, 5)}",
                f"({some} - 2 * v) % 5 + {rng.randint(0, 2)}",
                f"places[v] + {rng.randint(0, 3)}",
                f"2 * places[v] + {some}",
                f"(places[v] - {some}) % {rng.randint(4, 6)}",
                f"{WIDTH} * (v // 2) + v % 2 * {rng.randint(1, 2)}",
            )
        )

    def subscript(self, counters: tuple[str, ...], reduced: str | None = None) -> str:
        rng = self._rng
        found = [f"{rng.randint(0, 4)}"]
        for c in counters:
            found += [f"{c} + {rng.randint(0, 4)}", f"{c} + {rng.randint(0, 4)}"]
            found += [f"2 * {c} + {rng.randint(0, 2)}", f"{6 + rng.randint(0, 2)} - {c}"]
        if len(counters) > 1:
            found += [f"{counters[0]} + {counters[1]} + {rng.randint(0, 2)}"] * 2
        if reduced is not None:
            found += [f"{reduced} + {rng.randint(0, 3)}"] * 3
        return rng.choice(found)

    def term(self, counters: tuple[str, ...], reduced: str | None) -> str:
        kind = self._rng.random()
        if kind < 0.75:
            name = self._rng.choice("yz") if kind < 0.55 else "x"
            return f"{name}[{self.subscript(counters, reduced)}]"
        return self._rng.choice(("0.5", "0.3", "0.7"))

    def expression(
        self, counters: tuple[str, ...], reduced: str | None = None, depth: int = 0
    ) -> str:
        def inner(reduced: str | None = reduced) -> str:
            return self.expression(counters, reduced, depth + 1)

        rng, kind = self._rng, self._rng.random()
        if depth > 2 or kind < 0.3:
            return self.term(counters, reduced)
        if kind < 0.7:
            return f"({inner()} {'+' if kind < 0.5 else '*'} {inner()})"
        if kind < 0.85 or not counters:
            return f"sin({inner()})"
        if kind < 0.93 and reduced is None:
            bound = rng.choice((counters[-1], "3", counters[0]))
            return f"sum({inner('k')} for k in range({bound}))"
        relation = f"{rng.choice(counters)} {rng.choice(('>', '<', '!=', '=='))}"
        test = f"{relation} {rng.choice(('1', '2', counters[0]))}"
        return f"({inner()} if {test} else {self.term(counters, reduced)})"


def recurrence(seed: int) -> Recurrence:
    rng = random.Random(seed)
    generator = Generator(rng)
    head = f"    for i in {rng.choice(('range(3)', 'reversed(range(n))'))}:"
    lines = [
        *generator.block((), "    "), (head, head), *generator.block(("i",), "        "),
    ]  # fmt: skip
    loma = [line for line, _ in lines if line]
    text = (
        f"def f(x : In[Tensor[M]], ones : In[Tensor[{WIDTH}]], places : In[IntTensor[{WIDTH}]],\n"
        "      n : In[int]) -> tuple[Tensor[M], Tensor[M]]:\n"
        "    y : Tensor[M]\n    z : Tensor[M]\n    y[m] = x[m]\n    z[m] = 0.5 * x[m]\n"
    )
    python = "def f(x, ones, n):\n    y = list(x)\n    z = [0.5 * e for e in x]\n"
    python += "\n".join(line for _, line in lines) + "\n    return stacked(y), stacked(z)\n"
    return Recurrence(
        text + "\n".join(loma) + "\n    return y, z\n", re.sub(r"\n\n+", "\n", python)
    )
