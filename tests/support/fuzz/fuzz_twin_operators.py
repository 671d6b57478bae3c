"""Operators on whole tensors in random programs that are written twice; see :mod:`fuzz_twins`."""

from __future__ import annotations

import random

from twin_text import Text, Variable, same, text

# of a number or of a tensor, inside their domains, with kinks where no value lies by chance
UNARY = (
    "sin({})", "cos({})", "tan(0.9 * sin({}))", "asin(0.8 * sin({}))", "acos(0.8 * cos({}))",
    "atan({})", "atan2({}, 1.7)", "sinh(sin({}))", "cosh(tanh({}))", "tanh({})", "exp(sin({}))",
    "expm1(sin({}))", "exp2(cos({}))", "log(1.5 + abs({}))", "log1p(sigmoid({}))",
    "log2(2.5 + sin({}))", "sqrt(1.1 + sin({}))", "rsqrt(1.2 + sin({}))", "pow(1.5 + sin({}), 1.5)",
    "erf({})", "erfc({})", "lgamma(2.5 + sin({}))", "digamma(2.5 + sin({}))", "sigmoid({})",
    "polygamma(1, 2.5 + sin({}))", "relu({} - 0.0321)", "softplus({})", "abs({} + 0.0234)",
    "sign({} - 0.0456)", "clamp({}, -0.7, 0.6)", "max({}, -0.345)", "min({}, 0.456)",
    "floor({} + 0.123)", "ceil({} * 0.7 + 0.123)", "round({} * 1.7 + 0.0123)", "-{}",
    "sin({}) ** 2", "(0.4 * {}) ** 3", "1.5 ** sin({})", "({} + 0.0123) % 1.3",
    "no_diff({})", "1.0 / (1.5 + sin({}))", "clamp({}, no_diff(-0.3), 0.8)",
)  # fmt: skip
WHOLE = (
    "silu({})", "gelu({})", "gelu({}, approximate='tanh')", "elu({}, 0.7)", "leaky_relu({}, 0.2)",
    "softmax({}, {dim})", "log_softmax({}, {dim})", "cumsum({}, {dim})", "flip({}, [{dim}])",
    "cumprod(0.9 + 0.2 * {}, {dim})", "roll({}, {shift}, {dim})", "roll({}, {shift})",
    "layer_norm({}, [{last}])", "tanh({}) - mean({}, {dim}, keepdim=True)",
    "{} / (1.0 + norm({} + 0.3, [{dim}], keepdim=True))",
    "{} * one_hot(argmax({}, {inner}), {last})", "gather({}, {dim}, argsort({}, {dim}))",
    "{} - logsumexp({}, dim={dim}, keepdim=True)", "tril({}, {shift})", "triu({}, {shift})",
)  # fmt: skip
REDUCTIONS = (
    "sum({}{})", "mean({}{})", "amax({}{})", "amin({}{})", "prod(0.9 + 0.3 * {}{})",
    "var({}{}, correction=0)", "std({}{}, correction=0)", "norm({} + 0.7{})", "logsumexp({}{})",
)  # fmt: skip


class Operators:
    """The variables in scope, and what whole tensors can be."""

    def __init__(self, rng: random.Random, sizes: dict[str, int], params: list[Variable]) -> None:
        self._rng = rng
        self._sizes = sizes
        self._params = list(params)
        self._variables = list(params)
        self._counters: list[tuple[str, tuple[int, int]]] = []
        self._number_of_names = 0

    def _value(self, size: str) -> int:
        return int(eval(size, dict(self._sizes)))

    def inside(self, size: str) -> list[str]:
        """Counters that stay in a dimension, as far as its size is no constant."""
        if size.isdigit():
            return []
        return [c for c, (low, high) in self._counters if low >= 0 and high < self._value(size)]

    def _fresh(self, wish: str) -> str:
        self._number_of_names += 1
        return f"{wish}{self._number_of_names}"

    def _new(self, dims: tuple[str, ...], kind: str) -> Variable:
        made = Variable(self._fresh({"float": "a", "int": "c", "bool": "m"}[kind]), dims, kind)
        self._variables.append(made)
        return made

    def unary(self, value: Text) -> Text:
        return text(self._rng.choice(UNARY), value)

    def _tensors(self, rank: int = 1, kind: str = "float") -> list[Variable]:
        return [v for v in self._variables if v.kind == kind and len(v.dims) >= rank]

    def _any_dim(self, rank: int) -> int:
        return self._rng.randrange(-rank, rank)

    # -------------------------------------------------------------------------------- statements

    def whole(self) -> list[Text]:
        """A new tensor, or a new value of one."""
        rng = self._rng
        makers = [
            self._elementwise,
            self._elementwise,
            self._unary_whole,
            self._reduced,
            self._moved,
        ]
        makers += [self._moved, self._product, self._joined, self._chosen, self._window]
        value, dims = rng.choice(makers)()
        if not dims:
            made = self._new((), "float")
            return [(f"{made.name} : float = {value[0]}", f"{made.name} = {value[1]}")]
        known = [v for v in self._tensors() if v not in self._params and v.dims == dims]
        if known and rng.random() < 0.3:
            name = rng.choice(known).name
            op = rng.choice(("=", "+=", "*="))
            if op == "=":
                return [(f"{name} = {value[0]}", f"{name} = {value[1]}")]
            return [(f"{name} {op} {value[0]}", f"{name} = {name} {op[0]} ({value[1]})")]
        made = self._new(dims, "float")
        typed = f" : {made.type}" if rng.random() < 0.4 else ""
        return [(f"{made.name}{typed} = {value[0]}", f"{made.name} = {value[1]}")]

    def masks(self) -> list[Text]:
        """A BoolTensor, or an IntTensor that counts."""
        rng = self._rng
        value, dims = self.truth(2)
        if rng.random() < 0.3:
            made = self._new(dims[1:], "int")
            form = "sum({}, 0)"
        elif rng.random() < 0.2:
            made = self._new(dims, "bool")
            form = "flip({}, [0])"
        else:
            made, form = self._new(dims, "bool"), "{}"
        value = text(form, value)
        return [(f"{made.name} = {value[0]}", f"{made.name} = {value[1]}")]

    def several(self) -> list[Text]:
        """What gives several tensors at once."""
        rng = self._rng
        x = rng.choice(self._tensors())
        dim = rng.randrange(len(x.dims))
        size = x.dims[dim]
        there = dim - rng.choice((0, len(x.dims)))
        match rng.randrange(4):
            case 0:
                values, places = self._new(x.dims, "float"), self._new(x.dims, "int")
                falling = rng.choice(("", ", True", ", descending=True"))
                value = f"sort({x.name}, {there}{falling})"
            case 1:
                k = rng.randint(min(1, self._value(size)), self._value(size))
                dims = (*x.dims[:dim], str(k), *x.dims[dim + 1 :])
                values, places = self._new(dims, "float"), self._new(dims, "int")
                value = f"topk({x.name}, {k}, {there}{rng.choice(('', ', largest=False'))})"
            case 2:
                first = (*x.dims[:dim], "1", *x.dims[dim + 1 :])
                second = (*x.dims[:dim], f"{size}", *x.dims[dim + 1 :])
                values, places = self._new(first, "float"), self._new(second, "float")
                joined = f"cat([{x.name}, sum({x.name}, {dim}, keepdim=True)], {there})"
                value = f"split(roll({joined}, 1, {dim}), [1, {size}], {there})"
            case _:
                dims = x.dims
                values, places = self._new(dims, "float"), self._new(dims, "float")
                value = f"unbind(stack([{x.name} * 0.5, cos({x.name})], {dim}), {dim})"
        return [same(f"{values.name}, {places.name} = {value}")]

    def truth(
        self, depth: int, dims: tuple[str, ...] | None = None
    ) -> tuple[Text, tuple[str, ...]]:
        """A comparison of whole tensors, or logic of such, of the given dims or of any."""
        rng = self._rng
        masks = [m for m in self._tensors(1, "bool") if dims in (None, m.dims)]
        tensors = [v for v in self._tensors() if dims in (None, v.dims)]
        roll = rng.random()
        if masks and (roll < 0.25 or not tensors):
            mask = rng.choice(masks)
            return same(mask.name), mask.dims
        if depth and roll < 0.6:
            first, own = self.truth(depth - 1, dims)
            if rng.random() < 0.3:
                return (f"(not {first[0]})", f"(~{first[1]})"), own
            second, _ = self.truth(depth - 1, own)
            word, function = rng.choice((("and", "both"), ("or", "either")))
            return (
                f"({first[0]} {word} {second[0]})", f"{function}({first[1]}, {second[1]})"
            ), own  # fmt: skip
        x = rng.choice(tensors)
        test = rng.choice(("{} > 0.1234", "{} <= 0.2345", "sin({}) < cos({})", "isfinite({})",
                           "isnan({})", "{} >= 0.5 * r", "round({} * 0.9) == 0.0"))  # fmt: skip
        return same(f"({test.replace('{}', x.name)})"), x.dims

    # ------------------------------------------------------------------------------------ values

    def _tensor(self, rank: int = 1) -> tuple[Text, tuple[str, ...]]:
        x = self._rng.choice(self._tensors(rank))
        return same(x.name), x.dims

    def _elementwise(self) -> tuple[Text, tuple[str, ...]]:
        rng = self._rng
        x, dims = self._tensor()
        y = self.value_for(dims)
        form = rng.choice((
            "sin({} + {})", "{} * {}", "{} - {}", "{} / (1.5 + sin({}))", "max({}, {} - 0.0123)",
            "min({} * 0.9, {})", "atan2({}, 1.5 + cos({}))", "(1.6 + sin({})) ** tanh({})",
            "({} + 0.0123) % (1.5 + sin({}))", "clamp({}, -0.8, 1.0 + sin({}))",
        ))  # fmt: skip
        if rng.random() < 0.2:
            test, _ = self.truth(2, dims)
            return text("where({}, {}, {})", test, x, y), dims
        return text(form, x, y), dims

    def value_for(self, dims: tuple[str, ...]) -> Text:
        """What broadcasts to dims."""
        rng = self._rng
        numbers = [v.name for v in self._variables if v.kind == "float" and not v.dims]
        options = [same("r"), same("0.7"), *map(same, numbers)]
        for v in self._tensors():
            if v.dims == dims[len(dims) - len(v.dims) :]:
                options += [same(v.name)] * 3 + [same(f"tanh({v.name})")] * 2
            elif (
                len(v.dims) == len(dims)
                and sum(a != b for a, b in zip(v.dims, dims, strict=True)) == 1
            ):
                dim = next(k for k in range(len(dims)) if v.dims[k] != dims[k])
                options += [same(f"mean({v.name}, {dim}, keepdim=True)")] * 2
        for v in self._tensors(2):
            if v.dims[1:] == dims:
                at = rng.choice(("0", "-1", f"{v.dims[0]} - 1"))
                options += [same(f"{v.name}[{at}]")] * 2
        value = rng.choice(options)
        return self.unary(value) if rng.random() < 0.2 else value

    def _unary_whole(self) -> tuple[Text, tuple[str, ...]]:
        rng = self._rng
        form = rng.choice(UNARY) if rng.random() < 0.3 else rng.choice(WHOLE)
        x, dims = self._tensor(2 if "tri" in form else 1)
        rank = len(dims)
        names = {"dim": self._any_dim(rank), "inner": rank - 1, "last": dims[-1],
                 "shift": rng.randint(-2, 2)}  # fmt: skip
        for name, value in names.items():
            form = form.replace(f"{{{name}}}", str(value))
        return same(form.replace("{}", x[0])), dims

    def _reduced(self) -> tuple[Text, tuple[str, ...]]:
        rng = self._rng
        x, dims = self._tensor()
        rank = len(dims)
        axes = sorted(rng.sample(range(rank), rng.randint(1, rank)))
        kept = rng.random() < 0.4
        shape = tuple("1" if d in axes else n for d, n in enumerate(dims) if kept or d not in axes)
        written = [d if rng.random() < 0.6 else d - rank for d in axes]
        attrs = f", {written[0]}" if len(axes) == 1 and rng.random() < 0.5 else f", {written}"
        if len(axes) == rank and rng.random() < 0.5:
            attrs = ""
        form = rng.choice(REDUCTIONS if attrs else REDUCTIONS[:-1])
        if "norm" in form and attrs:  # its second argument is a list
            attrs = f", {written}"
        if attrs and rng.random() < 0.3:
            attrs = attrs.replace(", ", ", dim=", 1)
        attrs += ", keepdim=True" if kept else ""
        return same(form.replace("{}", x[0], 1).replace("{}", attrs)), shape

    def _product(self) -> tuple[Text, tuple[str, ...]]:
        """``x @ y``, some of it turned around so that it fits."""
        rng = self._rng
        x, dims = self._tensor(2)
        y = rng.choice([v for v in self._tensors(2) if dims[-1] in v.dims[-2:]])
        right, own = same(y.name), y.dims
        if own[-2] != dims[-1]:
            right = same(f"transpose({y.name}, -1, {len(own) - 2})")
            own = (*own[:-2], own[-1], own[-2])
        if len(own) > 2 and len(dims) > 2:
            right, own = same(f"{right[0]}[0]"), own[1:]
        shape = (*(own[:-2] if len(dims) == 2 else ()), *dims[:-1], own[-1])
        if len(own) == 2 and rng.random() < 0.3:
            return text("sin(linear({}, transpose({}, 0, 1)))", x, right), shape
        return text("sin({} @ {})" if rng.random() < 0.7 else "matmul({}, {})", x, right), shape

    def _moved(self) -> tuple[Text, tuple[str, ...]]:
        rng = self._rng
        x = rng.choice(self._tensors())
        rank = len(x.dims)
        kind = rng.randrange(5)
        if kind == 0 and rank > 1:
            order = rng.sample(range(rank), rank)
            return same(f"permute({x.name}, {order})"), tuple(x.dims[k] for k in order)
        if kind == 1 and rank > 1:
            a, b = rng.sample(range(rank), 2)
            dims = list(x.dims)
            dims[a], dims[b] = dims[b], dims[a]
            return same(f"transpose({x.name}, {a}, {b - rank})"), tuple(dims)
        if kind == 2 and rank > 1:
            shape = (f"({x.dims[0]}) * ({x.dims[1]})", *x.dims[2:])
            listed = ", ".join(shape)
            return same(
                f"reshape({x.name}, [{rng.choice((listed, ', '.join(('-1', *shape[1:]))))}])"
            ), shape
        if kind == 3:
            return same(f"expand({x.name}, [2, {', '.join(x.dims)}])"), ("2", *x.dims)
        subscripts, left = self.slices(x)
        return same(f"sin({x.name}[{', '.join(subscripts)}])"), left

    def slices(self, x: Variable) -> tuple[list[str], tuple[str, ...]]:
        """Subscripts that make a part of x, with at least one ``:`` or ``...``, and its dims."""
        rng = self._rng
        found: list[str] = []
        dims: list[str] = []
        for size in x.dims:
            value = self._value(size)
            inside = self.inside(size)
            options = [(":", size), (":", size), ("0", ""), (f"{size} - 1", ""), ("-1", ""),
                       ("::2", f"({size} + 1) // 2")]  # fmt: skip
            options += [(c, "") for c in inside] * 3
            if value > 1:
                options += [
                    ("1:", f"{size} - 1"),
                    (":-1", f"{size} - 1"),
                    ("1::2", f"({size}) // 2"),
                ]
            if value > 2:
                options += [("1:3", "2"), ("-2:", "2"), ("-3:-1", "2")]
            subscript, left = rng.choice(options)
            found.append(subscript)
            dims += [left] if left else []
        if not any(":" in s for s in found):
            found[-1] = ":"
            dims.append(x.dims[-1])
        if found[-1] == ":" and rng.random() < 0.3 and len(found) > 1:
            return found[:-1], tuple(dims)
        if found[0] == ":" and rng.random() < 0.3:
            return ["...", *found[1:]], tuple(dims)
        return found, tuple(dims)

    def _joined(self) -> tuple[Text, tuple[str, ...]]:
        rng = self._rng
        x = rng.choice(self._tensors())
        rank = len(x.dims)
        others = [v for v in self._tensors() if v.dims == x.dims]
        y = rng.choice(others)
        if rng.random() < 0.5:
            at = rng.randrange(rank + 1)
            dims = (*x.dims[:at], "2", *x.dims[at:])
            return same(f"stack([{x.name}, sin({y.name})], {at})"), dims
        dim = rng.randrange(rank)
        apart = [
            v for v in self._tensors()
            if len(v.dims) == rank and all(v.dims[k] == x.dims[k] for k in range(rank) if k != dim)
        ]  # fmt: skip
        y = rng.choice(apart)
        dims = (*x.dims[:dim], f"{x.dims[dim]} + {y.dims[dim]}", *x.dims[dim + 1 :])
        return same(f"cat([{x.name}, {y.name}], {dim - rng.choice((0, rank))})"), dims

    def _chosen(self) -> tuple[Text, tuple[str, ...]]:
        """By positions: of an argument, or of the largest."""
        rng = self._rng
        x = rng.choice(self._tensors())
        dim = self._any_dim(len(x.dims))
        match rng.randrange(3 if self._value("C") else 2):
            case 0:
                return same(
                    f"gather({x.name}, {dim}, argsort({x.name} * 1.7, {dim}, True))"
                ), x.dims
            case 1:
                last = len(x.dims) - 1
                return same(f"{x.name} * one_hot(argmin({x.name}, {last}), {x.dims[last]})"), x.dims
            case _:
                return same("gather(y, 0, reshape(at, [A, 1])) * ones([A, 1])"), ("A", "1")

    def _window(self) -> tuple[Text, tuple[str, ...]]:
        """Convolutions and pooling, of z [A, B, C] and what has its dims."""
        rng = self._rng
        x = rng.choice([v for v in self._tensors(3) if v.dims == ("A", "B", "C")]).name
        pad, stride = rng.choice((1, 2)), rng.choice((1, 2))
        out = f"(C + 2 * {pad} - 2) // {stride} + 1"
        match rng.randrange(5):
            case 0:  # [A, B, C] and [A, B, 2]
                weight = "stack([w[:, 0], w[:, 1]], 1)"
                weight = f"expand(reshape({weight}, [A, 1, 2]), [A, B, 2])"
                return same(f"tanh(conv1d({x}, {weight}, padding={pad}, stride={stride}))"), (
                    "A",
                    "A",
                    out,
                )
            case 1:
                inner = f"reshape({x}, [A, 1, B, C])"
                weight = "reshape(w, [A, 1, D, 2])"
                if self._value("B") < self._value("D"):
                    return same(f"avg_pool2d({inner}, [1, 1])"), ("A", "1", "B", "C")
                dims = ("A", "A", "B - (D - 1) - 1 + 1", out)
                return same(
                    f"sin(conv2d({inner}, {weight}, r * x, [1, {stride}], [0, {pad}]))"
                ), dims
            case 2:
                inner, weight = f"reshape({x}, [1, 1, A, B, C])", "reshape(w, [A * D, 1, 1, 1, 2])"
                attrs = f"padding=[0, 0, {pad}], stride=[1, 1, {stride}]"
                return same(f"sin(conv3d({inner}, {weight}, {attrs}))"), (
                    "1",
                    "A * D",
                    "A",
                    "B",
                    out,
                )
            case 3:
                inner = f"reshape({x}, [A, 1, B, C])"
                attrs = "[1, 2], stride=[1, 1], padding=[0, 1]"
                return same(f"max_pool2d({inner}, {attrs})"), ("A", "1", "B", "C + 1")
            case _:
                inner = f"reshape({x}, [1, A, B, C])"
                attrs = "[1, 2], stride=[1, 1], padding=[0, 1]"
                return same(f"avg_pool2d({inner}, {attrs})"), ("1", "A", "B", "C + 1")
