"""Convolutions of groups of channels, spelled group by group: one convolution, whatever says so."""

from __future__ import annotations

from collections.abc import Callable

import oracle
import pytest
import torch
import torch.nn.functional as F
from changed_programs import Changed, Point, compare, verified, with_derivative
from sampled import one_in
from torch import Tensor

from loma import passes
from loma.core.ir import For, IndexAssign
from loma.core.printer import print_function
from loma.core.walk import statements
from loma.frontend import parse
from loma.passes import canonical

HEAD = (
    "def f(x : In[Tensor[B, 3 * C, H, W]], k : In[Tensor[3 * O, C, 3, 3]], b : In[Tensor[3 * O]])"
    " -> Tensor[B, 3 * O, H, W]:\n"
)
PART = "conv2d(x[:, {0}:{1}], k[{2}:{3}], padding=[1, 1])"


def part(number: int) -> str:
    names = (f"{number} * C", f"{number + 1} * C", f"{number} * O", f"{number + 1} * O")
    return PART.format(*names)


HELPER = """
def g(x : In[Tensor[B, C, H, W]], k : In[Tensor[O, C, P, Q]]) -> Tensor[B, O, H, W]:
    y : Tensor[B, O, H, W]
    y[n, o, h, w] += zero_pad(x[n, c, h + p - P // 2, w + q - Q // 2]) * k[o, c, p, q]
    return y


"""
# name, text: each is F.conv2d(x, k, padding=1, groups=3)
ONE: dict[str, str] = {
    "joined": f"{HEAD}    return cat([{part(0)}, {part(1)}, {part(2)}], 1)\n",
    "joined, from the end": f"{HEAD}    return cat([{part(0)}, {part(1)}, {part(2)}], -3)\n",
    "made before": f"""{HEAD}
    r = {part(0)}
    s = {part(1)}
    t = {part(2)}
    return cat([r, s, t], 1)
""",
    "helpers": f"""{HELPER}{HEAD}
    return cat([g(x[:, :C], k[:O]), g(x[:, C:2 * C], k[O:2 * O]), g(x[:, 2 * C:], k[2 * O:])], 1)
""",
    "parts": f"""{HEAD}
    y : Tensor[B, 3 * O, H, W]
    y[:, :O] = {part(0)}
    y[:, O:2 * O] = {part(1)}
    y[:, 2 * O:] = {part(2)}
    return y
""",
    "a loop": f"""{HEAD}
    y : Tensor[B, 3 * O, H, W]
    for i in range(3):
        y[:, i * O:(i + 1) * O] = conv2d(
            x[:, i * C:(i + 1) * C], k[i * O:(i + 1) * O], padding=[1, 1]
        )
    return y
""",
    "a loop with a name": f"""{HEAD}
    y : Tensor[B, 3 * O, H, W]
    for i in range(3):
        z = conv2d(x[:, i * C:(i + 1) * C], k[i * O:(i + 1) * O], padding=[1, 1])
        y[:, i * O:(i + 1) * O] = z
    return y
""",
}


def _grouped(x: Tensor, k: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, k, padding=1, groups=3)


def _gated(x: Tensor, k: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.conv2d(x, k, b, padding=1, groups=3))


def _others(x: Tensor, k: Tensor, b: Tensor) -> Tensor:
    xs, ks = x.chunk(3, 1), k.chunk(3, 0)
    return torch.cat([F.conv2d(xs[n], ks[m], padding=1) for n, m in ((0, 0), (2, 1), (1, 2))], 1)


def _differ(x: Tensor, k: Tensor, b: Tensor) -> Tensor:
    xs, ks = x.chunk(3, 1), k.chunk(3, 0)
    padding = (1, 1, 2)
    parts = [F.conv2d(xs[n], ks[n], padding=padding[n], dilation=padding[n]) for n in range(3)]
    return torch.cat(parts, 1)


def _shared(x: Tensor, k: Tensor, b: Tensor) -> Tensor:
    xs, ks = x.chunk(3, 1), k.chunk(3, 0)
    parts = [F.conv2d(xs[n], ks[n], padding=1) for n in range(3)]
    return torch.cat(parts, 1) + parts[0].repeat(1, 3, 1, 1)


def _bias(x: Tensor, k: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, k, b, padding=1, groups=3)


def _same_part(x: Tensor, k: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x[:, : k.shape[1]], k, padding=1)


def _ahead(x: Tensor, k: Tensor, b: Tensor) -> Tensor:
    y = F.conv2d(x, k, padding=1, groups=3)
    o = k.shape[0] // 3
    z = F.conv2d(x[:, : x.shape[1] // 3], k[:o], padding=1)
    return torch.cat([y[:, :o], y[:, o : 2 * o], z], 1) * 1.0


def biased(number: int) -> str:
    return f"{part(number)[:-17]}, b[{number} * O:{number + 1} * O], padding=[1, 1])"


IN_LOOP = (
    "conv2d(x[:, i * C:(i + 1) * C], k[i * O:(i + 1) * O], b[i * O:(i + 1) * O], padding=[1, 1])"
)
# name, text, the same in PyTorch: convolutions with what is made of them element by element
MADE: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "biases": (f"{HEAD}    return cat([{biased(0)}, {biased(1)}, {biased(2)}], 1)\n", _bias),
    "biases and relu": (
        f"{HEAD}    return cat([relu({biased(0)}), relu({biased(1)}), relu({biased(2)})], 1)\n",
        _gated,
    ),
    "biases in a loop": (
        f"{HEAD}    y : Tensor[B, 3 * O, H, W]\n    for i in range(3):\n"
        f"        y[:, i * O:(i + 1) * O] = {IN_LOOP}\n    return y\n",
        _bias,
    ),
    "relu in a loop": (
        f"{HEAD}    y : Tensor[B, 3 * O, H, W]\n    for i in range(3):\n"
        f"        z = relu({IN_LOOP})\n        y[:, i * O:(i + 1) * O] = z\n    return y\n",
        _gated,
    ),
}
# name, text, the same in PyTorch: parts that are not those of one convolution
LEFT: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "another order": (
        f"{HEAD}    return cat([{part(0)}, {PART.format('2 * C', '3 * C', 'O', '2 * O')}, "
        f"{PART.format('C', '2 * C', '2 * O', '3 * O')}], 1)\n",
        _others,
    ),
    "another dilation": (
        f"{HEAD}    return cat([{part(0)}, {part(1)}, "
        f"{part(2)[:-7]}[2, 2], dilation=[2, 2])], 1)\n",
        _differ,
    ),
    "a part is read again": (
        f"{HEAD}    r = {part(0)}\n    s = cat([r, {part(1)}, {part(2)}], 1)\n"
        "    return s + cat([r, r, r], 1)\n",
        _shared,
    ),
    "the same part": (
        f"{HEAD}    return cat([{PART.format('0', 'C', '0', 'O')}, "
        f"{PART.format('0', 'C', 'O', '2 * O')}, {PART.format('0', 'C', '2 * O', '3 * O')}], 1)\n",
        _same_part,
    ),
    "a part is that of another one": (
        f"{HEAD}    return cat([{part(0)}, {part(1)}, {part(0)}], 1)\n",
        _ahead,
    ),
}
OTHERS = {**MADE, **LEFT}
SIZES = ((2, 3, 2, 5, 4), (1, 1, 1, 1, 1), (0, 2, 1, 3, 3), (2, 2, 3, 1, 2))


def arguments(b: int, c: int, o: int, h: int, w: int) -> tuple[Tensor, ...]:
    shapes = ((b, 3 * c, h, w), (3 * o, c, 3, 3), (3 * o,))
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)


@pytest.mark.parametrize("text", ONE.values(), ids=ONE)
def test_one_convolution(text: str) -> None:
    module = canonical.canonical_form(parse(text))
    body = tuple(statements(module.function("f").body))
    assert not any(isinstance(stmt, For) for stmt in body)
    (only,) = (stmt for stmt in body if isinstance(stmt, IndexAssign))
    assert len(only.axes) == 5
    printed = print_function(module.function("f"))
    assert "cat(" not in printed
    assert "Tensor[B, 3, O, H, W]" in printed
    assert parse(printed).functions[-1] == module.function("f")


@pytest.mark.parametrize(
    "name", ["another order", "another dilation", "a part is read again", "the same part"]
)
def test_what_is_left(name: str) -> None:
    module = canonical.canonical_form(parse(LEFT[name][0]))
    assert "cat(" in print_function(module.function("f"))


@pytest.mark.parametrize("sizes", [(2, 3, 2, 4, 3), (1, 1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("name", one_in(4, [*ONE, *OTHERS]))
def test_passes_change_no_value(name: str, sizes: tuple[int, ...]) -> None:
    text = ONE[name] if name in ONE else OTHERS[name][0]
    point = Point("f", with_derivative(text), "f", arguments(*sizes))
    for change in (passes.canonical_form, passes.optimise):
        compare(point, Changed(point.text, verified(change)))


IN_PLACE = f"""{HEAD}
    y : Tensor[B, 3 * O, H, W] = {{start}}
    for i in range(3):
        y[:, i * O:(i + 1) * O] = conv2d(
            y[:, i * O:(i + 1) * O], k[i * O:(i + 1) * O], padding=[1, 1]
        )
    return y
"""


def test_second_derivatives_of_a_loop_in_place() -> None:
    text = IN_PLACE.format(start="x").replace("3 * C", "3 * O").replace("C, 3, 3", "O, 3, 3")
    assert any(isinstance(s, For) for s in canonical.canonical_form(parse(text)).functions[0].body)
    args = [arg.requires_grad_() for arg in arguments(2, 2, 2, 3, 4)]
    found: list[tuple[Tensor, ...]] = []
    for call in (oracle.compiled(text).f, _grouped):
        value = call(*args)
        first = torch.autograd.grad(value, args[:2], torch.cos(value.detach()), create_graph=True)
        total = sum((grad.square().sum() for grad in first), value.new_zeros(()))
        found.append((value, *first, *torch.autograd.grad(total, args[:2])))
    for mine, right in zip(*found, strict=True):
        torch.testing.assert_close(mine, right)


@pytest.fixture(scope="module")
def compiled() -> dict[str, Callable[..., Tensor]]:
    texts = {**ONE, **{name: text for name, (text, _) in OTHERS.items()}}
    names = {name: f"f{k}" for k, name in enumerate(texts)}
    helper = texts["helpers"]
    renamed = [
        t.removeprefix(HELPER).replace("def f(", f"def {names[n]}(") for n, t in texts.items()
    ]
    assert helper.startswith(HELPER)
    module = oracle.compiled(HELPER + "\n\n".join(renamed))
    return {name: getattr(module, own) for name, own in names.items()}


@pytest.mark.parametrize("name", [*ONE, *OTHERS])
def test_values_and_gradients(compiled: dict[str, Callable[..., Tensor]], name: str) -> None:
    wanted = OTHERS[name][1] if name in OTHERS else _grouped
    for sizes in SIZES:
        args = [a.requires_grad_() for a in arguments(*sizes)]
        used = args if name in MADE else args[:2]
        value, right = compiled[name](*args), wanted(*args)
        torch.testing.assert_close(value, right)
        weight = torch.cos(torch.arange(value.numel()).to(value).view_as(value))
        found = torch.autograd.grad(value, used, weight)
        for mine, other in zip(found, torch.autograd.grad(right, used, weight), strict=True):
            torch.testing.assert_close(mine, other)
