"""Random tensor programs: statements that may run in common loops, and such that must not.

Few sizes and few index names, so that statements share them by chance, and tensors are read as they
are written, transposed, shifted, at one place, looked up, summed over, or under conditions that
leave elements out; zeros, loops and reductions (some without iterations, some as long as data say),
branches on ints, operators on whole tensors, calls, and Out tensors come in between.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

SIZES = ("A", "B", "C")
INDICES = {"A": ("i", "p", "u"), "B": ("j", "q", "v"), "C": ("k", "r", "w")}


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    dims: tuple[str, ...]

    @property
    def type(self) -> str:
        return f"Tensor[{', '.join(self.dims)}]"


@dataclass(frozen=True, slots=True)
class Program:
    text: str
    args: tuple[torch.Tensor | int, ...]


class Generator:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def program(self, outs: bool = True) -> Program:
        """Two functions, of which the second one, ``f``, may call the first one and, with ``outs``,
        has an Out tensor now and then, which it reads."""
        rng = self._rng
        helper = _Function(rng, "g", (("A", "B"), ("B",)), None)
        text = helper.text()
        dims = tuple(self._dims() for _ in range(3))
        out = Tensor("m", rng.choice(dims)) if outs and rng.random() < 0.3 else None
        function = _Function(rng, "f", dims, helper, out)
        text += "\n\n" + function.text()
        sizes = {size: rng.choice((1, 2, 3, 3, 4, 5)) for size in SIZES}
        seed = torch.Generator().manual_seed(rng.randrange(1 << 30))
        given = [*dims, SIZES, *(t.dims for t in function.outs)]
        tensors = [
            torch.randn([sizes[d] for d in own], generator=seed, dtype=torch.float64)
            for own in given
        ]
        inside = torch.randint(sizes["B"], (sizes["A"],), generator=seed)
        around = torch.randint(-1, sizes["B"] + 1, (sizes["A"],), generator=seed)
        counts = torch.randint(-1, min(sizes.values()) + 1, (sizes["A"],), generator=seed)
        order = torch.randperm(sizes["A"], generator=seed)
        count = rng.choice((-2, 0, 1, 2, 3))
        return Program(text, (*tensors, inside, around, counts, order, count))

    def _dims(self) -> tuple[str, ...]:
        return tuple(self._rng.choice(SIZES) for _ in range(self._rng.choice((1, 2, 2, 3))))


class _Function:
    def __init__(
        self,
        rng: random.Random,
        name: str,
        dims: tuple[tuple[str, ...], ...],
        helper: _Function | None,
        out: Tensor | None = None,
    ) -> None:
        self._rng = rng
        self._name = name
        self._helper = helper
        self._params = [Tensor(f"x{k}", own) for k, own in enumerate(dims)]
        # binds every size; read like the others
        self._params.append(Tensor("z", SIZES))
        self.outs = [out] if out else []
        self._local: list[Tensor] = [*self.outs]
        self._ints = ["n"]
        self._own_ints: list[str] = []
        self._floats: list[str] = []
        self._counters: list[str] = []
        self._lines: list[str] = []
        self._number = 0
        self._result = Tensor("", ())
        self._target = ("", "")  # of the statement being made, and its element

    def text(self) -> str:
        rng = self._rng
        while len(self._lines) < (14 if self._helper else 6):
            self._outermost()
        own = [t for t in self._local if not self._helper or rng.random() < 0.9]
        results = rng.sample(own, min(len(own), 2 if self._helper else 1)) or [self._declared()]
        if not self._helper:
            self._result = results[0]
        listed = [f"{t.name} : In[{t.type}]" for t in self._params]
        listed += [f"{t.name} : Out[{t.type}]" for t in self.outs]
        if self._helper:
            # positions inside B and perhaps outside, numbers up to every size, all positions in A
            names = ("inside", "around", "counts", "order")
            listed += [f"{name} : In[IntTensor[A]]" for name in names]
        params = ", ".join(listed)
        types = ", ".join(t.type for t in results)
        types = types if len(results) == 1 else f"tuple[{types}]"
        body = "\n".join(f"    {line}" for line in self._lines)
        returned = ", ".join(t.name for t in results)
        return (
            f"def {self._name}({params}, n : In[int]) -> {types}:\n{body}\n    return {returned}\n"
        )

    # ------------------------------------------------------------------------------- statements

    def _fresh(self, wish: str) -> str:
        self._number += 1
        return f"{wish}{self._number}"

    def _declared(self, dims: tuple[str, ...] | None = None) -> Tensor:
        """A new tensor, all zero."""
        if dims is None:
            known = [t.dims for t in (*self._local, *self._params)]
            rank = self._rng.choice((1, 2, 2, 3))
            new = tuple(self._rng.choice(SIZES) for _ in range(rank))
            dims = self._rng.choice((*known, new))
        tensor = Tensor(self._fresh("y"), dims)
        self._lines.append(f"{tensor.name} : {tensor.type}")
        self._local.append(tensor)
        return tensor

    def _outermost(self) -> None:
        rng = self._rng
        kind = rng.choices(
            ("index", "loop", "if", "whole", "int", "float", "call"), (9, 4, 2, 2, 1, 1, 1)
        )[0]
        if kind in ("loop", "if") or not self._local or rng.random() < 0.4:
            self._declared()
        match kind:
            case "index":
                self._lines.append(self._index())
            case "loop" | "if":
                self._lines += self._nested(kind, 2)
            case "whole":
                self._lines.append(self._whole())
            case "int":
                name = self._fresh("m")
                self._lines.append(f"{name} : int = {self._int()}")
                self._ints.append(name)
                self._own_ints.append(name)
            case "float":
                name = self._fresh("s")
                self._lines.append(f"{name} : float = {rng.choice(('0.0', '0.5'))}")
                axes: dict[str, str] = {}
                body = self._product(axes, summing=True)
                if axes:
                    self._lines.append(f"{name} += 0.1 * {body}")
                self._floats.append(name)
            case _:
                self._call()

    def _call(self) -> None:
        if self._helper is None:
            return
        given: list[str] = []
        for param in self._helper._params:
            fits = [t for t in (*self._local, *self._params) if t.dims == param.dims]
            given.append((self._rng.choice(fits) if fits else self._declared(param.dims)).name)
        made = Tensor(self._fresh("y"), self._helper._result.dims)
        n = self._rng.choice(("n", "1", "2"))
        self._lines.append(f"{made.name} : {made.type} = g({', '.join(given)}, {n})")
        self._local.append(made)

    def _nested(self, kind: str, depth: int) -> list[str]:
        rng = self._rng
        out: list[str] = []
        if kind == "loop":
            counter = self._fresh("t")
            count = rng.choice(("n", "2", "3", "n + 1"))
            if self._helper and depth == 2 and rng.random() < 0.3:
                count = rng.choice(("counts[0]", "counts[A - 1] + 1"))
            bounds = rng.choice((count, count, count, f"1, {count}", f"0, {count}, 2"))
            if rng.random() < 0.15:
                bounds = f"{count}, -1, -2"
            there = f"range({bounds})" if rng.random() < 0.8 else f"reversed(range({bounds}))"
            out.append(f"for {counter} in {there}:")
            self._counters.append(counter)
            out += self._block(depth)
            self._counters.pop()
        else:
            out.append(f"if {self._condition()}:")
            out += self._block(depth)
            if rng.random() < 0.5:
                out += ["else:", *self._block(depth)]
        return out

    def _block(self, depth: int) -> list[str]:
        rng = self._rng
        lines: list[str] = []
        for _ in range(rng.choice((1, 2, 3, 4))):
            kind = rng.choices(("index", "zero", "loop", "if", "int"), (10, 2, 1, 2, 1))[0]
            if kind == "zero":
                lines.append(f"zero({rng.choice(self._local).name})")
            elif kind == "int" and self._own_ints:
                lines.append(
                    f"{rng.choice(self._own_ints)} {rng.choice(('=', '+='))} {self._int()}"
                )
            elif kind in ("loop", "if") and depth > 1:
                lines += self._nested(kind, depth - 1)
            else:
                lines.append(self._index())
        return [f"    {line}" for line in lines]

    def _index(self) -> str:
        """``T[i, j] = ...`` or ``+= ...``, seldom at one place or at computed ones."""
        rng = self._rng
        target = rng.choice(self._local)
        axes: dict[str, str] = {}
        subscripts: list[str] = []
        for size in target.dims:
            if rng.random() < 0.04:
                subscripts.append("0")
                continue
            free = [name for name in INDICES[size] if name not in axes]
            name = free[0] if rng.random() < 0.7 else rng.choice(free)
            axes[name] = size
            if self._helper and size == "A" and rng.random() < 0.15:
                name = rng.choice(("{}", "A - 1 - {}", "({} + n) % A")).format(f"order[{name}]")
            subscripts.append(name)
        op = "=" if rng.random() < 0.65 else "+="
        element = f"{target.name}[{', '.join(subscripts)}]"
        self._target = (target.name, element)
        value = self._value(axes, summing=op == "+=" and rng.random() < 0.5)
        self._target = ("", "")
        return f"{element} {op} {value}"

    def _whole(self) -> str:
        """A new tensor by operators on whole tensors; some broadcast."""
        rng = self._rng
        x = rng.choice((*self._local, *self._params))
        smaller = [
            t
            for t in (*self._local, *self._params)
            if x.dims[len(x.dims) - len(t.dims) :] == t.dims
        ]
        y = rng.choice(smaller)
        dims = x.dims
        last = len(dims) - 1
        match rng.randrange(14):
            case 8:
                value = f"where({x.name} > {y.name} or {x.name} < -1.0, silu({x.name}), {y.name})"
            case 9:
                value = f"clamp(atan2({x.name}, {y.name} + 2.5), -1.5, erfc({y.name}))"
            case 10:
                value = f"gelu({x.name}) - layer_norm({x.name}, [{dims[-1]}])"
            case 11:
                value = f"cumsum({x.name}, {rng.randrange(len(dims))}) % 2.5 + log1p(exp({y.name}))"
            case 12:
                value = f"flip({x.name}, [{rng.randrange(len(dims))}]) * sign({y.name} - 0.1)"
            case 13 if last:
                value = f"logsumexp({x.name}, dim={last}) + {x.name}[..., 0]"
                dims = dims[:-1]
            case 0:
                value = f"relu({x.name} + {y.name})"
            case 1:
                value = f"{x.name} * {y.name} - {y.name}"
            case 2:
                value = f"softmax({x.name}, dim={rng.randrange(len(dims))})"
            case 3 if last:
                dim = rng.randrange(len(dims))
                value = f"sum({x.name} * {y.name}, dim={dim})"
                dims = dims[:dim] + dims[dim + 1 :]
            case 4 if last:
                value, dims = f"mean({x.name}, dim={last})", dims[:-1]
            case 5 if last:
                value, dims = f"amax({x.name}, dim=0)", dims[1:]
            case 6:
                value = f"tanh({x.name}) + sigmoid({y.name})"
            case _:
                value = f"{x.name} / ({y.name} * {y.name} + 1.5)"
        same = [t for t in self._local if t.dims == dims]
        if same and rng.random() < 0.3:
            return f"{rng.choice(same).name} {rng.choice(('=', '+='))} {value}"
        made = Tensor(self._fresh("y"), dims)
        self._local.append(made)
        return f"{made.name} : {made.type} = {value}"

    # ------------------------------------------------------------------------------ expressions

    def _int(self) -> str:
        rng = self._rng
        names = [*self._ints, *self._counters]
        return rng.choice((f"{rng.choice(names)} + 1", rng.choice(names), "2", "A - 1", "B * 2"))

    def _condition(self) -> str:
        rng = self._rng
        left = rng.choice((*self._ints, *self._counters))
        right = rng.choice(("0", "1", "2", "n - 1", "A"))
        return f"{left} {rng.choice(('<', '==', '>', '!='))} {right}"

    def _value(self, axes: dict[str, str], summing: bool) -> str:
        """A value of moderate size."""
        rng = self._rng
        mentioned = list(axes)
        own = self._product(axes, summing)
        other = self._product(axes, summing)
        match rng.randrange(9):
            case 0:
                return f"tanh({own} - {other})"
            case 1:
                return f"{own} if {other} > 0.1234 else 0.5 * {other}"
            case 2:
                return f"exp(tanh({own})) * 0.5"
            case 3:
                return f"{own} / (1.0 + {other} * {other})"
            case 4:
                return f"0.5 * no_diff({own}) + sin({other})"
            case 5 if mentioned:
                return f"sin({own}) + 0.1 * {rng.choice(mentioned)}"
            case 6:
                return f"max({own}, 0.2 * {other})"
            case _:
                return f"sin({own} + {other})"

    def _product(self, axes: dict[str, str], summing: bool) -> str:
        """A factor or the product of two, perhaps inside a sum or a maximum."""
        rng = self._rng
        inner = dict(axes)
        head, tail = "", ""
        if not summing and rng.random() < 0.35:
            size = rng.choice(SIZES)
            free = [name for name in INDICES[size] if name not in axes]
            if free:
                name = free[0]
                inner[name] = size
                kind = rng.choice(("sum", "sum", "sum", "max"))
                rows = [axis for axis, own in axes.items() if own == "A"]
                there = size
                if kind == "sum" and rng.random() < 0.2:
                    there = rng.choice((f"range(1, {size})", f"range(0, {size}, 2)"))
                if self._helper and kind == "sum" and rng.random() < 0.2:
                    there = f"range(counts[{rng.choice(rows or ['0'])}])"
                head, tail = f"{kind}(", f" for {name} in {there})"
        first = self._read(inner, summing)
        text = f"{first} * {self._read(inner, summing)}" if rng.random() < 0.5 else first
        if rng.random() < 0.15:
            text = f"{text} * {rng.choice((*self._floats, *self._counters, *self._ints, '0.7'))}"
        if summing:
            axes.update(inner)
        if head or "*" in text:
            return f"{head}{text}{tail}" if head else f"({text})"
        return text

    def _read(self, axes: dict[str, str], summing: bool) -> str:
        rng = self._rng
        tensors = [*self._local, *self._local, *self._params]
        tensor = rng.choice(tensors)
        if tensor.name == self._target[0]:
            return self._target[1]  # a statement reads no other element of what it writes
        subscripts: list[str] = []
        padded = False
        guards: list[str] = []
        used: set[str] = set()
        for size in tensor.dims:
            names = [name for name, own in axes.items() if own == size]
            fresh = [name for name in names if name not in used] or names
            looked = [name for name, own in axes.items() if own == "A"] if self._helper else []
            roll = rng.random()
            if rng.random() < 0.12:
                subscript, guard = self._guarded(names, looked, size)
                subscripts.append(subscript)
                guards += [guard] if guard else []
            elif names and roll < 0.85:
                name = fresh[0] if rng.random() < 0.8 else rng.choice(names)
                used.add(name)
                subscripts.append(name)
            elif names and roll < 0.9:
                subscripts.append(f"{names[0]} - 1")
                padded = True
            elif names and roll < 0.93:
                subscripts.append(f"{size} - 1 - {names[0]}")
            elif summing and roll < 0.9:
                name = next((n for n in INDICES[size] if n not in axes), "")
                if name:
                    axes[name] = size
                subscripts.append(name or "0")
            elif self._counters and roll < 0.96:
                subscripts.append(f"{rng.choice(self._counters)} % {size}")
            else:
                subscripts.append(rng.choice(("0", f"{size} - 1")))
        read = f"{tensor.name}[{', '.join(subscripts)}]"
        if padded or (guards and rng.random() < 0.3):
            return f"zero_pad({read})"
        return f"({read} if {' and '.join(guards)} else 0.3)" if guards else read

    def _guarded(self, names: list[str], looked: list[str], size: str) -> tuple[str, str]:
        """A subscript that may leave a dimension, with the condition that it does not."""
        rng = self._rng
        if looked and size == "B" and rng.random() < 0.3:
            return f"inside[{rng.choice(looked)}]", ""
        if looked and rng.random() < 0.4:
            subscript = f"around[{rng.choice(looked)}]"
            return subscript, f"0 <= {subscript} and {subscript} < {size}"
        if not names:
            return "n", f"0 <= n and n < {size}"
        name = rng.choice(names)
        match rng.randrange(4):
            case 0:
                return f"{name} - 1", f"{name} > 0"
            case 1:
                return f"{name} + 1", f"not {name} + 1 >= {size}"
            case 2:
                return f"2 * {name} - n", f"2 * {name} >= n and 2 * {name} - n < {size}"
            case _:
                return f"{name} - n", f"{name} >= n and n >= 0"
