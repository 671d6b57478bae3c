"""Elements at places that data say are read once, where their statements go through many others."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

import loma
from loma import passes, pipeline
from loma.core.printer import print_function
from loma.frontend import parse

# name, statements of y : Tensor[N], whether the element is read once
CASES: tuple[tuple[str, str, bool], ...] = (
    ("beside_a_row", "y[n] = sum(relu(x[n, c] - x[n, p[n]] + 1.0) for c in C)", True),
    ("twice", "y[n] = sum(x[n, c] * x[n, p[n]] + x[n, p[n]] for c in C)", True),
    ("but_there", "y[n] += max(0.0, 1.0 - x[n, p[n]] + x[n, c]) if c != p[n] else 0.0", True),
    ("not_there", "y[n] += 0.0 if p[n] == c else x[n, p[n]] * x[n, c]", True),
    ("in_a_loop", """
for n in range(N):
    for c in range(C):
        if c != p[n]:
            y[n] += relu(x[n, c] - x[n, p[n]])
""", True),
    ("only_there", "y[n] += x[n, p[n]] * x[n, c] if p[n] == c else 0.0", False),
    ("where_it_is_inside", "y[n] += x[n, p[n] + 1] * x[n, c] if p[n] + 1 < C else 0.0", False),
    ("for_some", "y[n] += x[n, p[n]] * x[n, c] if x[n, c] > 0.0 else 0.0", False),
    ("of_all_indices", "y[n] = sum(x[p[c], c] * x[n, q] for c in C for q in C)", True),
    ("of_few", "y[n] = sum(x[n, p[n]] * x[n, c] for c in range(2))", False),
)  # fmt: skip


def text(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    args = "x : In[Tensor[N, C]], p : In[IntTensor[N]]"
    return f"def f({args}) -> Tensor[N]:\n    y : Tensor[N]\n{lines}    return y\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_is_read_once(case: tuple[str, str, bool]) -> None:
    _, body, once = case
    shown = print_function(passes.canonical_form(parse(text(body))).function("f"))
    assert (
        any(line.strip().startswith("_c[") and "p[" in line for line in shown.split("\n")) == once
    )


@pytest.mark.parametrize("size", [(4, 4), (1, 1), (2, 3), (0, 3)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values_and_derivatives(case: tuple[str, str, bool], size: tuple[int, int]) -> None:
    name, body, _ = case
    if ("range(2)" in body and size[1] < 2) or ("p[c]" in body and size[0] != size[1]):
        size = (4, 4)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(size, generator=generator, dtype=torch.float64)
    p = torch.randint(0, size[1], (size[0],), generator=generator)
    program = with_derivative(text(body))
    for change in (passes.canonical_form, passes.optimise):
        compare(Point(name, program, "f", (x, p)), Changed(program, verified(change)))


def test_the_adjoint_is_added_once() -> None:
    shown = pipeline.stage_text(text(CASES[2][1]), "kernels", "f__backward")
    (line,) = [line for line in shown.split("\n") if "_d_x[n, p[n]] +=" in line]
    assert line.split("#")[0].rstrip().endswith("+= -_r[n]")


@pytest.mark.parametrize("case", CASES[:5], ids=lambda case: case[0])
def test_without_a_row_no_place_is_looked_at(case: tuple[str, str, bool]) -> None:
    f = loma.compile(text(case[1])).f
    assert f(torch.zeros(3, 0), torch.tensor([5, -7, 0])).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match=r"p\[n\]"):
        f(torch.zeros(2, 3), torch.tensor([1, 3]))


def test_choices_by_several_conditions_have_no_branch() -> None:
    """Each is one of two numbers, where all that the conditions read is there."""
    body = "y[n] += 2.0 if c != p[n] and (x[n, c] > 0.0 or x[n, c] < -1.0) else 0.5"
    source = text(body)
    shown = pipeline.stage_text(source, "cpp", "f")
    assert shown.count("loma::choose<real>(") == 3
    assert "&&" not in shown
    assert "||" not in shown
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    p = torch.arange(40) % 4
    chosen = (torch.arange(3) != p[:, None]) & ((x > 0.0) | (x < -1.0))
    wanted = torch.where(chosen, 2.0, 0.5).sum(1)
    torch.testing.assert_close(loma.compile(source).f(x, p), wanted)
