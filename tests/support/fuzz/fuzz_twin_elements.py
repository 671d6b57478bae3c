"""Elements in random programs that are written twice: what index statements are made of; see
:mod:`fuzz_twins`."""

from __future__ import annotations

import random

from fuzz_twin_operators import Operators
from twin_text import INDICES, Text, Variable, same, text


class Elements(Operators):
    """Expressions of one element: the indices that they may use, or, while ``_summing``, add."""

    def __init__(self, rng: random.Random, sizes: dict[str, int], params: list[Variable]) -> None:
        super().__init__(rng, sizes, params)
        self._axes: dict[str, str] = {}
        self._summing = False

    def _condition(self) -> Text:
        rng = self._rng
        names = [*self._axes, *(c for c, _ in self._counters), "n"]
        known = same(f"{rng.choice(names)} {rng.choice(('<', '>=', '!='))} {rng.choice('012')}")
        options = [known, text("{} > 0.1234", self._read())]
        options.append(text("-0.9 < {} <= 0.7654", self._read()))
        rows = [i for i, own in self._axes.items() if own == "A"]
        columns = [j for j, own in self._axes.items() if own == "B"]
        if rows and columns:
            options += [same(f"mask[{rows[0]}, {columns[0]}]")] * 2
        picked = rng.choice(options)
        if rng.random() < 0.25:
            return text(f"{{}} {rng.choice(('and', 'or'))} {{}}", picked, rng.choice(options))
        return text("not ({})", picked) if rng.random() < 0.1 else picked

    def _int_expression(self) -> Text:
        rng = self._rng
        names = [*self._axes, *(c for c, _ in self._counters), "n", "A", "DEPTH"]
        first, second = rng.choice(names), rng.choice(names)
        form = rng.choice(
            ("{} + {}", "{} * 2 - {}", "max({}, {})", "({} + {}) // 2", "({} - {}) % 3")
        )
        return same(form.format(first, second))

    def _expression(self, depth: int) -> Text:
        rng = self._rng
        kind = rng.random()
        if depth <= 0 or kind < 0.2:
            return self._read()
        if kind < 0.4:
            return text(
                f"({{}} {rng.choice('+-*')} {{}})", *(self._expression(depth - 1) for _ in "ab")
            )
        if kind < 0.62:
            return self.unary(self._expression(depth - 1))
        if kind < 0.7:
            given = rng.choice(("", ", 1", f", k={rng.choice('012')}", ", s=0.6", ", n, 0.4"))
            return text(f"bend({{}}{given})", self._expression(depth - 1))
        if kind < 0.78:
            taken, other = self._expression(depth - 1), self._expression(depth - 1)
            return text("({} if {} else {})", taken, self._condition(), other)
        if kind < 0.95 and not self._summing:
            return self._reduction()
        names = [*self._axes, *(c for c, _ in self._counters), "r", "0.7", "SCALE"]
        return text(f"({{}} * {rng.choice(names)})", self._expression(depth - 1))

    def _reduction(self) -> Text:
        rng = self._rng
        before, index = dict(self._axes), next(i for i in INDICES if i not in self._axes)
        size = rng.choice("ABC")
        rows = [i for i, own in self._axes.items() if own == "A"]
        ranges = "range({})", "range(1, {})", "range(0, {}, 2)", "range({} - 1, -1, -1)"
        there = rng.choice((size, size, "reversed(range({}))", *ranges)).replace("{}", size)
        kind = rng.choice(("sum", "sum", "sum", "prod", "max", "min"))
        if kind in ("max", "min"):
            there = size
        elif kind == "sum" and rng.random() < 0.3:  # data say how many
            there = f"range(much[{rng.choice(rows or ['0'])}])"
        self._axes[index] = size
        inner = self._read() if "much" in there else self._expression(1)
        self._axes = before
        python = there if "range" in there else f"range({there})"
        inner = text("(0.8 + 0.2 * {})", inner) if kind == "prod" else inner
        return (
            f"{kind}({inner[0]} for {index} in {there})",
            f"{kind}({inner[1]} for {index} in {python})",
        )

    def _read(self) -> Text:
        """An element; a condition around it, or zero_pad, where it may be outside."""
        rng = self._rng
        source = rng.choice([v for v in self._variables if v.kind == "float"])
        if not source.dims:
            return same(source.name)
        subscripts, tests, used = [], [], set[str]()
        for size in source.dims:
            subscript, test = self._subscript(size, used)
            subscripts.append(subscript)
            tests += [test] if test else []
        read = f"{source.name}[{', '.join(subscripts)}]"
        if not tests:
            return same(read)
        test = " and ".join(tests)
        if rng.random() < 0.35:
            return f"zero_pad({read})", f"({read} if {test} else 0.0)"
        return same(f"({read} if {test} else 0.3)")

    def _subscript(self, size: str, used: set[str]) -> tuple[str, str]:
        """And the condition that it is inside; "" for one that always is."""
        rng = self._rng
        own = [i for i, there in self._axes.items() if there == size and i not in used]
        inside = self.inside(size)
        if self._summing and not own and rng.random() < 0.6:
            index = next(i for i in INDICES if i not in self._axes)
            self._axes[index] = size
            used.add(index)
            return index, ""
        roll = rng.random()
        if roll < 0.15:
            near = rng.choice([*own, *(c for c, _ in self._counters), "n"])
            what = rng.choice((f"{near} - 1", f"{near} + 1", f"2 * {near} - n", f"n - {near}"))
            return what, f"0 <= {what} and {what} < {size}"
        if own and roll < 0.8:
            used.add(own[0])
            return own[0], ""
        if inside and roll < 0.9:
            return rng.choice(inside), ""
        if own and roll < 0.9:
            return f"{size} - 1 - {own[0]}", ""
        rows = [i for i, there in self._axes.items() if there == "A"]
        places = [(c.name, i) for c in self._variables for i, there in self._axes.items()
                  if c.kind == "int" and c.dims == (there,) and c not in self._params]  # fmt: skip
        if places and rng.random() < 0.6:
            name, index = rng.choice(places)
            return f"{name}[{index}] % ({size})", ""
        if size == "B" and rows:
            return f"at[{rng.choice(rows)}]", ""
        if self._axes and roll < 0.95:
            return f"{rng.choice(list(self._axes))} % ({size})", ""
        return rng.choice(("0", f"{size} - 1")), ""
