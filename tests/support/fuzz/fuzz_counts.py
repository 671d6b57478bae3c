"""Random recurrences in loops whose counts only running tells: ranges between the elements of an
IntTensor or up to variables that change, and ``while``, on ints and on floats."""

from __future__ import annotations

import random

from fuzz_recurrences import WIDTH, Generator, Recurrence

BOUNDS = 6  # elements of the IntTensor, from 0 to 4


class _Counts(Generator):
    deepest = 3

    def loop(self, counters: tuple[str, ...], indent: str) -> list[tuple[str, str]]:
        rng, kind = self._rng, self._rng.random()
        if kind < 0.4:
            return self._while(counters, indent)
        counter = "ijl"[len(counters)]
        at = rng.choice((*counters, "1"))
        bounds = [f"p[{at}], p[{at} + 1]", f"p[{at}]", f"min({rng.choice('cd')}, 4)", "c % 4"]
        if kind < 0.9:
            head = f"range({rng.choice(bounds)})"
            return self.counted(counters, counter, head, indent)
        return super().loop(counters, indent)

    def _while(self, counters: tuple[str, ...], indent: str) -> list[tuple[str, str]]:
        rng, count = self._rng, f"w{len(counters)}"
        bounds = ("4", "n", f"p[{rng.choice((*counters, '2'))}]", *counters)
        cond = f"{count} < {rng.choice(bounds)}"
        if rng.random() < 0.4:
            other = rng.choice((f"s {rng.choice('<>')} 0.2", "sum(y[m] for m in range(3)) < 2.0"))
            cond = f"{cond} and {other}"
        start = f"{indent}{count} = {rng.choice(('0', '0', '1'))}"
        step = f"{indent}    {count} = {count} + 1"
        return [
            (start, start),
            (f"{indent}while ({cond}, max_iter := 5):", f"{indent}while {cond}:"),
            *self.block((*counters, count), indent + "    "),
            (step, step),
        ]

    def statement(self, counters: tuple[str, ...], indent: str) -> list[tuple[str, str]]:
        rng, kind = self._rng, self._rng.random()
        if kind < 0.25:
            value = f"sin(s * {self.expression(counters)} + {self.term(counters, None)})"
            line = f"{indent}s = {value}"
            return [(line, line)]
        if kind < 0.4:
            name, at = rng.choice("cd"), rng.choice((*counters, "0"))
            line = f"{indent}{name} = {rng.choice(('c + 1', 'd + 1', f'p[{at}]', f'{at} + 1'))}"
            return [(line, line)]
        return super().statement(counters, indent)

    def subscript(self, counters: tuple[str, ...], reduced: str | None = None) -> str:
        if self._rng.random() < 0.15:
            return f"{self._rng.choice('cd')} % 5"
        return super().subscript(counters, reduced)

    def term(self, counters: tuple[str, ...], reduced: str | None) -> str:
        if self._rng.random() < 0.15:
            return "s"
        return super().term(counters, reduced)


def changing_counts(seed: int) -> Recurrence:
    """``f(x, ones, places, n, p)`` with p an IntTensor of BOUNDS elements."""
    rng = random.Random(f"counts {seed}")
    generator = _Counts(rng)
    head = f"    for i in range({rng.choice(('3', 'n', 'p[2]'))}):"
    lines = [
        *generator.block((), "    "), (head, head), *generator.block(("i",), "        "),
    ]  # fmt: skip
    ints = ("c", "d", "w0", "w1", "w2")
    start = "    s{} = 0.3\n" + "".join(f"    {name}{{}} = 1\n" for name in ints)
    text = (
        f"def f(x : In[Tensor[M]], ones : In[Tensor[{WIDTH}]], places : In[IntTensor[{WIDTH}]],\n"
        f"      n : In[int], p : In[IntTensor[{BOUNDS}]]) -> tuple[Tensor[M], Tensor[M]]:\n"
        "    y : Tensor[M]\n    z : Tensor[M]\n    y[m] = x[m]\n    z[m] = 0.5 * x[m]\n"
    )
    python = "def f(x, ones, n, p):\n    y = list(x)\n    z = [0.5 * e for e in x]\n"
    python += start.format(*[""] * 6) + "\n".join(line for _, line in lines if line)
    return Recurrence(
        text + start.format(" : float", *[" : int"] * 5)
        + "\n".join(line for line, _ in lines if line) + "\n    return y, z\n",
        python + "\n    return stacked(y), stacked(z)\n",
    )  # fmt: skip
