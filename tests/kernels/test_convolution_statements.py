"""Index statements that become calls of convolutions, and those that must not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oracle
import pytest
from sampled import diagonals, one_in
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from oracle import Program, check, close
from torch import Tensor

import loma
from loma.tools import cli


@dataclass(frozen=True, slots=True)
class Case:
    """A function that one statement fills, beside PyTorch's; ``shapes`` that it is tried with."""

    name: str
    image: str
    other: str
    result: str
    statement: str
    reference: Callable[[Tensor, Tensor], Tensor]
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    @property
    def text(self) -> str:
        return (
            f"def {self.name}(x : In[Tensor[{self.image}]], k : In[Tensor[{self.other}]]"
            f") -> Tensor[{self.result}]:\n    y : Tensor[{self.result}]\n"
            f"    {self.statement}\n    return y\n"
        )


def _transposed(x: Tensor, k: Tensor) -> Tensor:
    return F.conv_transpose2d(x, k, stride=(2, 3))


def _groups_last(x: Tensor, k: Tensor) -> Tensor:
    groups = zip(x.unbind(3), k.unbind(3), strict=True)
    return torch.stack([F.conv1d(*pair).transpose(0, 1) for pair in groups], 3)


def _interleaved(x: Tensor, k: Tensor) -> Tensor:
    return torch.stack([F.conv1d(x[:, g::3], k[g::3]) for g in range(3)], 2).flatten(1, 2)


# Indices that are divided, and dimensions that two indices go through.
DIVIDED = (
    Case(
        "quotient", "B, 2 * C, H, W", "2 * O, C, 3, Q", "B, 2 * O, H, W - Q + 1",
        "y[b, o, h, w] += k[o, c, p, q] * zero_pad(x[b, o // O * C + c, h + p - 1, w + q])",
        lambda x, k: F.conv2d(x, k, padding=(1, 0), groups=2),
        (((2, 4, 3, 5), (6, 2, 3, 2)), ((1, 2, 1, 1), (2, 1, 3, 1)), ((2, 0, 3, 5), (2, 0, 3, 2)),
         ((2, 4, 3, 5), (0, 2, 3, 2)), ((0, 4, 3, 5), (2, 2, 3, 2))),
    ),
    Case(
        "both", "B, G * C, H", "G, O, C, P", "B, G * O, (H - P) // 2 + 1",
        "y[b, o, h] += x[b, o // O * C + c, 2*h + p] * k[o // O, o % O, c, p]",
        lambda x, k: F.conv1d(x, k.flatten(0, 1), stride=2, groups=k.shape[0]),
        (((2, 6, 7), (3, 2, 2, 3)), ((1, 1, 1), (1, 1, 1, 1)), ((2, 0, 7), (0, 2, 2, 3))),
    ),
    Case(
        "interleaved", "B, 3 * C, H", "3 * O, C, P", "B, 3 * O, H - P + 1",
        "for g in range(3):\n        for o in range(O):\n            "
        "y[b, 3*o + g, h] += x[b, 3*c + g, h + p] * k[3*o + g, c, p]",
        _interleaved, (((2, 6, 5), (12, 2, 3)), ((1, 3, 1), (3, 1, 1))),
    ),
    Case(
        "spread_groups", "B, 2 * O, U", "2 * O, C, P", "B, 2 * C, 2*U + P - 2",
        "y[b, o // O * C + c, 2*u + p] += x[b, o, u] * k[o, c, p]",
        lambda x, k: F.conv_transpose1d(x, k, stride=2, groups=2),
        (((2, 6, 4), (6, 2, 3)), ((1, 2, 1), (2, 1, 2)), ((1, 4, 2), (4, 3, 5))),
    ),
)  # fmt: skip
# Statements in which a condition keeps reads inside.
GUARDED = (
    Case(
        "guarded", "B, C, H, W", "O, C, 3, Q", "B, O, H, W - Q + 1",
        "y[b, o, h, w] += x[b, c, h + p - 1, w + q] * k[o, c, p, q]"
        " if 0 <= h + p - 1 < H else 0.0",
        lambda x, k: F.conv2d(x, k, padding=(1, 0)),
        (((2, 3, 5, 4), (4, 3, 3, 2)), ((1, 1, 1, 1), (1, 1, 3, 1)), ((0, 3, 5, 4), (4, 3, 3, 2)),
         ((2, 0, 5, 4), (4, 0, 3, 2)), ((2, 3, 5, 4), (0, 3, 3, 2))),
    ),
    Case(
        "guarded_twice", "B, C, H", "O, C, P", "B, O, H",
        "y[b, o, h] += (k[o, c, p] * x[b, c, h + p - 1] if h + p < H + 1 else 0.0)"
        " if h + p >= 1 else 0.0",
        lambda x, k: F.conv1d(F.pad(x, (1, k.shape[2])), k)[:, :, : x.shape[2]],
        (((2, 3, 7), (4, 3, 2)), ((1, 2, 2), (2, 2, 3))),
    ),
)  # fmt: skip
# Statements about parts of their tensors.
PARTS = (
    Case(
        "part_of_channels", "B, 3 * C, H, W", "2 * O, C, 3, Q", "B, O, H, W - Q + 1",
        "y[b, o, h, w] += zero_pad(x[b, C + c, h + p - 1, w + q]) * k[O + o, c, p, q]",
        lambda x, k: F.conv2d(x.chunk(3, 1)[1], k[len(k) // 2:], padding=(1, 0)),
        (((2, 6, 3, 5), (6, 2, 3, 2)), ((1, 3, 1, 1), (2, 1, 3, 1)), ((0, 6, 3, 5), (6, 2, 3, 2)),
         ((2, 6, 3, 5), (0, 2, 3, 2)), ((2, 0, 3, 5), (2, 0, 3, 2))),
    ),
    Case(
        "part_of_result", "B, C, H", "O, C, P", "B, 2 * O, H - P + 1",
        "y[b, O + o, h] += x[b, c, h + p] * k[o, c, p]",
        lambda x, k: F.pad(F.conv1d(x, k), (0, 0, len(k), 0)),
        (((2, 3, 5), (2, 3, 2)), ((1, 1, 1), (1, 1, 1)), ((0, 3, 5), (2, 3, 2))),
    ),
    Case(
        "spread_part", "B, 2 * O, U", "O, C, P", "B, 2 * C, 2*U + P - 2",
        "y[b, c + 0, 2*u + p] += x[b, o + O, u] * k[o, c, p]",
        lambda x, k: torch.cat(
            2 * [F.conv_transpose1d(x[:, len(k):], k, stride=2)], 1
        ) * torch.tensor([1.0, 0.0]).to(x).repeat_interleave(k.shape[1])[:, None],
        (((2, 4, 4), (2, 3, 3)), ((1, 2, 1), (1, 2, 2))),
    ),
)  # fmt: skip
CASES = (
    *DIVIDED,
    *GUARDED,
    *PARTS,
    Case(
        "groups", "B, G, C, H", "G, O, C, P", "B, G, O, H - P + 1",
        "y[b, g, o, h] += x[b, g, c, h + p] * k[g, o, c, p]",
        lambda x, k: F.conv1d(x.flatten(1, 2), k.flatten(0, 1), groups=len(k)).unflatten(
            1, k.shape[:2]
        ),
        (((2, 3, 4, 7), (3, 2, 4, 3)), ((1, 1, 1, 1), (1, 1, 1, 1)), ((2, 2, 1, 5), (2, 3, 1, 5)),
         ((2, 0, 4, 7), (0, 2, 4, 3))),
    ),
    Case(
        "groups_last", "B, C, H, G", "O, C, P, G", "O, B, H - P + 1, G",
        "y[o, b, h, g] += k[o, c, p, g] * x[b, c, h + p, g]", _groups_last,
        (((2, 4, 7, 3), (2, 4, 3, 3)), ((2, 3, 5, 2), (3, 3, 4, 2))),
    ),
    Case(
        "strided", "B, C, H, W", "O, C, P, Q", "B, O, (H - P) // 2 + 1, (W - Q) // 3 + 1",
        "y[b, o, h, w] += x[b, c, 2*h + p, 3*w + q] * k[o, c, p, q]",
        lambda x, k: F.conv2d(x, k, stride=(2, 3)),
        (((2, 3, 7, 8), (4, 3, 3, 2)), ((1, 1, 1, 1), (1, 1, 1, 1)), ((2, 3, 4, 9), (4, 3, 1, 5)),
         ((0, 3, 7, 8), (4, 3, 3, 2)), ((2, 0, 7, 8), (4, 0, 3, 2)), ((2, 3, 7, 8), (0, 3, 3, 2)),
         ((2, 3, 2, 8), (4, 3, 3, 2)), ((2, 3, 5, 8), (4, 3, 0, 2))),
    ),
    Case(
        "dilated", "B, H, C", "P, O, C", "O, H - 3 * (P - 1), B",
        "y[o, h, b] += k[p, o, c] * x[b, h + 3*p, c]",
        lambda x, k: F.conv1d(
            x.transpose(1, 2), k.permute(1, 2, 0), dilation=3
        ).permute(1, 2, 0),
        (((2, 9, 3), (3, 4, 3)), ((1, 1, 1), (1, 1, 1)), ((3, 7, 2), (2, 2, 2))),
    ),
    Case(
        "padded", "B, C, H, W", "O, C, 3, Q", "B, O, H, W + Q + 1",
        "y[b, o, h, w] += zero_pad(x[b, c, h + p - 1, w + q - Q]) * k[o, c, p, q]",
        lambda x, k: F.conv2d(F.pad(x, (k.shape[3], k.shape[3])), k, padding=(1, 0)),
        (((2, 3, 5, 4), (4, 3, 3, 2)), ((1, 1, 1, 1), (1, 1, 3, 1)), ((2, 2, 2, 7), (2, 2, 3, 5))),
    ),
    Case(
        "shifted", "B, C, H", "O, C, P", "B, O, H - P - 1",
        "y[b, o, h] += x[b, c, h + p + 1] * k[o, c, p]",
        lambda x, k: F.conv1d(x[:, :, 1:-1], k),
        (((2, 3, 9), (4, 3, 3)), ((1, 2, 4), (1, 2, 2))),
    ),
    Case(
        "mirrored", "B, C, H", "O, C, P", "B, O, H - P + 1",
        "y[b, o, h] += x[b, c, h - p + P - 1] * k[o, c, p]",
        lambda x, k: F.conv1d(x, k.flip(2)),
        (((2, 3, 9), (4, 3, 3)), ((1, 2, 2), (1, 2, 2))),
    ),
    Case(
        "transposed", "B, O, U, V", "O, C, P, Q", "B, C, 2*U + P - 2, 3*V + Q - 3",
        "y[b, c, 2*u + p, 3*v + q] += x[b, o, u, v] * k[o, c, p, q]", _transposed,
        (((2, 3, 4, 5), (3, 4, 2, 3)), ((1, 1, 1, 1), (1, 1, 3, 4)), ((2, 3, 2, 1), (3, 2, 4, 5))),
    ),
)  # fmt: skip
TRIALS = [
    pytest.param(*trial, marks=pytest.mark.full if k % 3 else ())
    for k, trial in enumerate((case, shapes) for case in CASES for shapes in case.shapes)
]


@pytest.fixture(scope="module")
def program(pytestconfig: pytest.Config) -> Program:
    own = CASES if pytestconfig.getoption("--full") else CASES[::4]
    return Program([case.text for case in CASES], first=[case.name for case in own])


def _ids(value: object) -> str:
    return value.name if isinstance(value, Case) else str(value).replace(" ", "")


def _empty(case: Case, x: Tensor, k: Tensor) -> bool:
    return 0 in (*x.shape, *k.shape) or (case.name == "strided" and x.shape[2] < k.shape[2])


@pytest.mark.parametrize(("case", "shapes"), TRIALS, ids=_ids)
def test_values_and_gradients(program: Program, case: Case, shapes: Any) -> None:
    x, k = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    if not _empty(case, x, k):
        check(program, case.name, [x, k], case.reference, second=False)
        return
    x, k = x.requires_grad_(), k.requires_grad_()
    y = program.compiled(case.name)(x, k)
    expected = program.value(case.name, [x.detach(), k.detach()])[0]
    close(y.detach(), torch.as_tensor(expected))
    assert not any(g.any() for g in torch.autograd.grad(y.sum(), [x, k]))


@pytest.mark.parametrize("case", one_in(4, CASES, 1), ids=_ids)
def test_float32_and_any_strides(program: Program, case: Case) -> None:
    x, k = (torch.randn(shape, dtype=torch.float64) for shape in case.shapes[0])
    y = program.compiled(case.name)(
        x.float().transpose(0, -1).contiguous().transpose(0, -1),
        k.float()[..., None].expand(*k.shape, 2)[..., 1],
    )
    assert y.dtype == torch.float32
    assert y.is_contiguous()
    close(y.double(), case.reference(x, k), 1e-5)


BIASED = """
def grouped(x : In[Tensor[N, G, C, H]], k : In[Tensor[G, D, C, P]], bias : In[Tensor[G, D]]
            ) -> Tensor[N, G, D, H - P + 1]:
    y : Tensor[N, G, D, H - P + 1]
    y[n, g, d, h] = bias[g, d]
    y[n, g, d, h] += x[n, g, c, h + p] * k[g, d, c, p]
    return y


def padded(x : In[Tensor[N, C, H]], k : In[Tensor[D, C, 3]], bias : In[Tensor[D]]
           ) -> Tensor[D, N, H]:
    y : Tensor[D, N, H]
    y[d, n, h] = bias[d]
    y[d, n, h] += x[n, c, h + p - 1] * k[d, c, p] if 0 <= h + p - 1 < H else 0.0
    return y
"""


@pytest.mark.parametrize(("h", "p", "c"), [(9, 3, 2), (9, 8, 1), (1, 1, 3), (5, 2, 0)])
def test_a_bias_is_added_by_the_call(h: int, p: int, c: int, tmp_path: Path) -> None:
    """Also where a call's weights are the smaller one, and beside what is not finite."""
    module = loma.compile(BIASED)
    text = _text(BIASED, tmp_path)
    assert text.count("false, &bias)") == text.count("true, &bias)") > 0
    x, k, b = torch.randn(2, 3, c, h), torch.randn(3, 4, c, p), torch.randn(3, 4)
    x, k, b = args = tuple(part.double().requires_grad_() for part in (x, k, b))
    y = F.conv1d(x.flatten(1, 2), k.flatten(0, 1), b.flatten(), groups=3) if c else None
    wanted = b[:, :, None].expand(2, 3, 4, h - p + 1) if y is None else y.view(2, 3, 4, -1)
    found = module.grouped(*args)
    close(found, wanted)
    weight = torch.randn_like(found)
    for part, other in zip(*(torch.autograd.grad(z, args, weight, allow_unused=True) for z in
                             (found, wanted)), strict=True):  # fmt: skip
        close(part, torch.zeros_like(part) if other is None else other)
    if c:
        images, weights = x[:, 0], torch.randn(4, c, 3).double()
        bias = torch.tensor([1.0, float("nan"), float("inf"), 2.0]).double()
        own = F.conv1d(images, weights, bias, padding=1).transpose(0, 1)
        torch.testing.assert_close(module.padded(images, weights, bias), own, equal_nan=True)


def _text(source: str, folder: Path) -> str:
    """The C++ of a program and its derivatives."""
    file = folder / "program.loma"
    file.write_text(source)
    shown = CliRunner().invoke(cli.main, ["show", "--stage", "cpp", str(file)])
    assert shown.exit_code == 0, shown.output
    return shown.output


@pytest.mark.parametrize("case", one_in(2, CASES), ids=_ids)
def test_calls_take_the_place_of_loops(case: Case, tmp_path: Path) -> None:
    # derivatives that a program asks for are made of its text, autograd's of the canonical form
    own = "" if case in DIVIDED else f"d_{case.name} = rev_diff({case.name})\n"
    text = _text(case.text + own, tmp_path)
    assert "loma::correlate(" in text
    assert "_loop1" not in text


@pytest.mark.parametrize(("step", "taps"), diagonals(9, [2, 1, -1], [3, 8, 1]))
def test_what_a_condition_leaves_out_is_not_there_beside_infinity(step: int, taps: int) -> None:
    """Where there are more taps than steps, too, and in the derivatives."""
    shift = 4 if step < 0 else -1
    inside = f"0 <= {step} * h + 2 * p + {shift} < H and 0 <= w + q - 1 and w + q < W + 1"
    text = f"""
def f(x : In[Tensor[B, C, H, W]], k : In[Tensor[O, C, P, 2]]) -> Tensor[B, O, 5, W]:
    y : Tensor[B, O, 5, W]
    y[b, o, h, w] += x[b, c, {step} * h + 2 * p + {shift}, w + q - 1] * k[o, c, p, q] if {inside} else 0.0
    return y
"""  # noqa: E501

    def reference(x: Tensor, k: Tensor) -> Tensor:
        y = x.new_zeros(x.shape[0], k.shape[0], 5, x.shape[3])
        for h, p, w, q in itertools.product(range(5), range(taps), range(x.shape[3]), range(2)):
            place = step * h + 2 * p + shift
            if 0 <= place < x.shape[2] and w + q > 0:
                terms = x[:, None, :, place, w + q - 1] * k[None, :, :, p, q]
                here = torch.zeros(5, x.shape[3], dtype=torch.bool)
                here[h, w] = True
                y = torch.where(here, y + terms.sum(2)[..., None, None], y)
        return y

    x = torch.randn(2, 3, 6, 4, dtype=torch.float64).requires_grad_()
    k = torch.randn(2, 3, taps, 2, dtype=torch.float64)
    k[0, :, 0] = torch.inf
    k[1, 0, -1, 0] = torch.nan
    k.requires_grad_()
    g = torch.randn(2, 2, 5, 4, dtype=torch.float64)
    g[0, 0, 0] = -torch.inf
    found, expected = oracle.compiled(text).f(x, k), reference(x, k)
    assert torch.isfinite(expected[0]).any()
    torch.testing.assert_close(found, expected, equal_nan=True)
    torch.testing.assert_close(
        torch.autograd.grad(found, [x, k], g), torch.autograd.grad(expected, [x, k], g),
        equal_nan=True,
    )  # fmt: skip


PADDED_CHANNELS = """
def f(x : In[Tensor[B, C, H]], k : In[Tensor[O, D, 3]]) -> Tensor[B, O, H]:
    y : Tensor[B, O, H]
    y[b, o, h] += zero_pad(x[b, c + SHIFT, h + p - 1]) * k[o, c, p]
    return y
"""


@pytest.mark.parametrize("shift", [-2, 0, 1])
def test_channels_outside_are_zeros(shift: int) -> None:
    """Before the first, behind the last one, or both; a call with zeros around what there is."""

    def reference(x: Tensor, k: Tensor) -> Tensor:
        count = k.shape[1]
        wide = F.pad(x, (0, 0, 9, 9))  # channels -9 to 8 behind the last one
        return F.conv1d(wide[:, 9 + shift : 9 + shift + count], k, padding=1)

    program = Program([PADDED_CHANNELS.replace("c + SHIFT", f"c + {shift}" if shift else "c")])
    for channels, count in ((5, 5), (3, 7), (6, 2), (1, 1)):
        x, k = randn(2, channels, 4), randn(3, count, 3)
        check(program, "f", [x, k], reference, second=False)


def test_what_else_stands_under_the_condition_is_inside() -> None:
    """Of filters a part is meant, which a call would not ask for."""
    f = loma.compile("""
def f(x : In[Tensor[B, C, H]], k : In[Tensor[D, C, 3]], like : In[Tensor[O]]) -> Tensor[B, O, H]:
    y : Tensor[B, O, H]
    y[b, o, h] += x[b, c, h + p - 1] * k[o + 1, c, p] if 0 <= h + p - 1 and h + p - 1 < H else 0.0
    return y
""").f
    x, k = randn(2, 3, 5), randn(5, 3, 3)
    close(f(x, k, randn(4)), F.conv1d(x, k[1:], padding=1))
    with pytest.raises(ValueError, match="is 5, outside dimension 0 of size 5"):
        f(x, k, randn(5))


GROUPS_IN_PLACE = """
def f(x : In[Tensor[B, 2 * C, H, W]], k : In[Tensor[2 * C, C, 3, 3]]) -> Tensor[B, 2 * C, H, W]:
    y : Tensor[B, 2 * C, H, W] = x
    t : Tensor[B, C, H, W]
    for g in range(2):
        t[n, o, h, w] = sum(zero_pad(y[n, C * g + c, h + p - 1, w + q - 1]) * k[C * g + o, c, p, q] for c in range(C) for p in range(3) for q in range(3))
        for o in range(C):
            y[n, C * g + o, h, w] = t[n, o, h, w]
    return y
"""  # noqa: E501


def test_a_condition_on_channels_is_no_border() -> None:
    """In a loop over groups that are convolved in place, of whose adjoints the conditions say where
    a group has channels."""
    program = Program([GROUPS_IN_PLACE])
    for channels, size in ((1, 1), (2, 3)):
        x, k = randn(2, 2 * channels, size, size + 1), randn(2 * channels, channels, 3, 3)
        check(program, "f", [x, k], lambda x, k: F.conv2d(x, k, padding=1, groups=2))
        x, k = x.requires_grad_(), k.requires_grad_()
        second = []
        for function in (program.compiled("f"), lambda x, k: F.conv2d(x, k, padding=1, groups=2)):
            first = torch.autograd.grad(function(x, k).sin().sum(), [x, k], create_graph=True)
            total = torch.stack([g.square().sum() for g in first]).sum()
            second.append(torch.autograd.grad(total, [x, k]))
        torch.testing.assert_close(*second)


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def test_groups_by_hand_and_their_adjoints_are_calls_for_parts(tmp_path: Path) -> None:
    text = """
def _convolved(x : In[Tensor[B, C, H]], k : In[Tensor[O, C, 3]]) -> Tensor[B, O, H]:
    y : Tensor[B, O, H]
    y[b, o, h] += zero_pad(x[b, c, h + p - 1]) * k[o, c, p]
    return y


def f(x : In[Tensor[B, 2 * C, H]], k : In[Tensor[2 * O, C, 3]]) -> Tensor[B, 2 * O, H]:
    return cat([_convolved(x[:, C:], k[:O]), _convolved(x[:, :C], k[O:])], 1)
"""
    made = _text(text, tmp_path)
    assert made.count("loma::cut(") > 2 * 2 + 2 * 3 + 2 * 3
    assert "_loop1" not in made

    def reference(x: Tensor, k: Tensor) -> Tensor:
        return F.conv1d(torch.cat(x.chunk(2, 1)[::-1], 1), k, padding=1, groups=2)

    for shapes in (((2, 6, 5), (4, 3, 3)), ((1, 2, 1), (2, 1, 3))):
        x, k = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
        check(Program([text]), "f", [x, k], reference, second=False)


@pytest.mark.parametrize(
    "statement",
    [
        "y[b, c, h] += x[b, c, h + p] * k[c, p]",  # each channel for itself
        "y[b, c, h] += x[b, c, h + p] * k[c, p] * k[c, p]",
        "y[b, c, h] += x[b, c, h + p] * k[c, p] if h > 2 else 0.0",
        "y[b, c, h] = max(x[b, c, h + p] * k[c, p] for p in P)",
    ],
)
def test_loops_remain(statement: str, tmp_path: Path) -> None:
    text = _text(
        "def f(x : In[Tensor[B, C, H]], k : In[Tensor[C, P]]) -> Tensor[B, C, H - P + 1]:\n"
        f"    y : Tensor[B, C, H - P + 1]\n    {statement}\n    return y\n",
        tmp_path,
    )
    assert "loma::correlate(" not in text
    assert "loma::spread(" not in text


def test_the_last_value_stays_where_values_are_assigned() -> None:
    module = loma.compile("""
def f(g : In[Tensor[B, O, U]], k : In[Tensor[O, C, 2]], old : In[Tensor[B, C, 2 * U]]
      ) -> Tensor[B, C, 2 * U]:
    y : Tensor[B, C, 2 * U]
    y[b, c, u] = old[b, c, u]
    y[b, c, 2*u + p] = sum(g[b, o, u] * k[o, c, p] for o in O)
    return y
""")
    g, k, old = torch.randn(2, 3, 4), torch.randn(3, 5, 2), torch.randn(2, 5, 8)
    expected = torch.einsum("bou,ocp->bcup", g, k).flatten(2)
    torch.testing.assert_close(module.f(g, k, old), expected)


def test_groups_keep_what_a_target_holds_and_follow_what_changes() -> None:
    module = loma.compile("""
def f(x : In[Tensor[B, 2 * C, H]], k : In[Tensor[2 * C, C, 3]]) -> Tensor[B, 2 * C, H]:
    y : Tensor[B, 2 * C, H]
    y[b, c, h] = x[b, c, h]
    for t in range(2):
        z : Tensor[B, 2 * C, H]
        z[b, c, h] = y[b, c, h]
        z[b, o, h] += k[o, c, p] * zero_pad(y[b, o // C * C + c, h + p - 1])
        y[b, o, h] = tanh(z[b, o, h])
    return y
""")
    x, k = torch.randn(2, 4, 5, dtype=torch.float64), torch.randn(4, 2, 3, dtype=torch.float64)
    x, k = x.requires_grad_(), k.requires_grad_()
    expected = x
    for _ in range(2):
        expected = torch.tanh(expected + F.conv1d(expected, k, padding=1, groups=2))
    found = module.f(x, k)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), [x, k]), torch.autograd.grad(expected.sum(), [x, k])
    )


def test_messages_are_those_of_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "def f(x : In[Tensor[B, C, H]], k : In[Tensor[O, C, P]], n : In[int]) -> Tensor[B, O, n]:\n"
        "    y : Tensor[B, O, n]\n    y[b, o, h] += x[b, c, h + p] * k[o, c, p]\n    return y\n"
    )
    found = []
    for value in ("1", "-contraction"):
        monkeypatch.setenv("LOMA_OPT", value)
        module = oracle.compiled(text)
        x, k = torch.randn(2, 3, 8), torch.randn(4, 3, 3)
        close(module.f(x, k, 5), F.conv1d(x, k)[:, :, :5], 1e-5)
        with pytest.raises(ValueError, match=r"subscript 'h \+ p'") as error:
            module.f(x, k, 7)
        found.append(str(error.value))
    assert found[0] == found[1]
