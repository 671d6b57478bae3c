"""Reads of other parts of a statement's target, against hand-written PyTorch: what is written in
loops sees new values, what is written at once sees old ones; what is copied, and what is kept."""

from __future__ import annotations

import pytest
import torch
from oracle import Program, check, check_case, entry
from recurrence_cases import RECURRENCES

import loma
from loma import pipeline

pytestmark = pytest.mark.filterwarnings("ignore:.*this is no recurrence")
BY_NAME = {case.name: case for case in RECURRENCES}


@pytest.fixture(scope="module")
def program(pytestconfig: pytest.Config) -> Program:
    names = [entry(case.text) for case in RECURRENCES]
    compiles = names if pytestconfig.getoption("--full") else names[::2]
    return Program([case.text for case in RECURRENCES], first=(), compiles=compiles)


@pytest.mark.parametrize("name", BY_NAME)
def test_recurrence(program: Program, name: str) -> None:
    check_case(program, BY_NAME[name])


# ------------------------------------------------------------------------- what is copied and kept


@pytest.mark.parametrize(
    "name", ["rnn", "rnn_batched", "soft_dtw", "banded", "cholesky", "solve", "wave", "backwards"]
)
def test_what_stays_is_not_kept_again(name: str) -> None:
    text = BY_NAME[name].text + f"\nd = rev_diff({name})\n"
    assert "_tape_" not in pipeline.stage_text(text, "adjoint", "d")


def test_the_range_of_a_counter_tells_when_something_was_written() -> None:
    """``_d_L[i, k]`` with ``k in range(j)``, read at ``_d_L[i, j]``, is of a larger j."""
    text = BY_NAME["cholesky"].text + "\nd = rev_diff(cholesky)\ndd = rev_diff(d)\n"
    assert "_tape_d_L" not in pipeline.stage_text(text, "adjoint", "dd")


@pytest.mark.parametrize(
    ("loops", "place", "kept"),
    [
        ("for t in reversed(range(N)):\n        for k in range(t):", "t", False),
        ("for t in reversed(range(N)):\n        for k in range(t + 1):", "t", False),
        ("for t in range(N):\n        for k in range(N - 1 - t):", "N - 1 - t", False),
        ("for t in range(N):\n        for k in range(N - t):", "N - 1 - t", False),
        ("for t in range(N):\n        for k in range(t):", "t", True),
        ("for t in range(N):\n        for k in range(N - t):", "t", True),
        ("for t in reversed(range(N)):\n        for k in range(N - 1 - t):", "N - 1 - t", True),
    ],
)
def test_only_earlier_writes_are_left_to_the_end(loops: str, place: str, kept: bool) -> None:
    """The first read what is written before, the others what a later iteration overwrites."""
    text = f"""
def f(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N] = x
    z : Tensor[N]
    {loops}
            y[k] += x[t] * x[k]
        z[t] = sin(y[{place}])
    return z
"""
    found = pipeline.stage_text(f"{text}\nd = rev_diff(f)\n", "adjoint", "d")
    assert ("_tape_" in found) == kept

    def reference(x: torch.Tensor) -> torch.Tensor:
        y = [*x]
        z: list[torch.Tensor] = []
        given = {"N": len(x), "x": x, "y": y, "z": z}
        changed = f"{loops}\n            y[k] = y[k] + x[t] * x[k]"
        exec(f"{changed}\n        z.append(y[{place}].sin())", given)
        return torch.stack(z[::-1] if "reversed" in loops else z)

    x = torch.randn(4, dtype=torch.float64)
    check(Program([text], first=()), "f", (x,), reference, libtorch=False)


def test_what_is_overwritten_is_kept_in_parts() -> None:
    text = BY_NAME["gauss_seidel"].text + "\nd = rev_diff(gauss_seidel)\n"
    found = pipeline.stage_text(text, "adjoint", "d")
    assert "_tape_u : Tensor[max(sweeps, 0), N]" in found
    assert "_tape_u_1 : Tensor[max(N - 2, 0)]" in found


COPIED = ("flipped", "transposed", "jumps", "scattered", "one_place", "moving")


@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_proved_apart_is_not_copied(name: str) -> None:
    copied = "_before_" in pipeline.stage_text(BY_NAME[name].text, "adjoint")
    assert copied == (name in COPIED)


def test_of_a_tensor_the_part_that_is_touched_is_copied() -> None:
    text = """
def f(y : Out[Tensor[T, N, M]], t : In[int]):
    y[t, i, 2 * j + 1] = y[t, N - 1 - i, 2 * j] + y[t, N - 1 - i, 2 * j + 1] for j in range(3)
"""
    text = text.replace(" for j in range(3)", "").replace("2 * j + 1] = ", "j] = ").replace(
        "2 * j", "M - 1 - j").replace("M - 1 - j + 1", "j")  # fmt: skip
    found = pipeline.stage_text(text, "kernels")
    assert "_before_y : Tensor[N, M]" in found
    assert "a copy: the next statement reads 'y' where it may write" in found


HEAD = "def f(c : In[Tensor[N, N]], y : Out[Tensor[N + 2, N + 2]], t : In[int]):\n    "


@pytest.mark.parametrize(
    ("statement", "warns"),
    [
        ("y[i + 1, j + 1] = c[i, j] + min(y[i + 0, j + 1], y[i + 1, j + 0])", True),
        ("y[t, j + 1] = c[t, j] * y[t, j + 0]", True),
        ("y[i + 0, j + 0] = c[i, j] * y[i + 1, j + 0]", True),
        ("y[i + 1, j + 0] = y[i + 0, j + 0] if c[i, j] > 0.0 else y[i + 0, j + 0]", True),
        ("y[i, j] = zero_pad(y[i - 1, j])", False),
        ("y[t, j + 1] = no_diff(y[t, j + 0]) * c[t, j]", True),
        ("y[i, j] += t * (y[i, j] - y[j, i])", False),
        ("y[i, j] = y[N + 1 - i, j] * t", False),
        ("y[t + 1, j + 0] = c[t, j] * y[t, j + 0]", False),
        ("y[t, j + 1] = y[t, j + 2] - 2.0 * y[t, j + 1] + y[t, j + 0] * c[t, j]", False),  # stencil
    ],
)
def test_what_looks_like_a_recurrence_and_is_none_warns(statement: str, warns: bool) -> None:
    module = pipeline.parsed(f"{HEAD}{statement}\n")
    found = [str(each) for each in module.warnings if "this is no recurrence" in str(each)]
    assert len(found) == warns
    assert not warns or "for a recurrence write it in loops, for " in found[0]


# ------------------------------------------------------------------------------ loops over elements


def test_subscripts_in_serial_loops_are_checked() -> None:
    module = loma.compile("""
def f(x : In[Tensor[N]], n : In[int], p : In[IntTensor[K]]) -> Tensor[N]:
    y : Tensor[N]
    for i in range(n):
        y[i + 1] = y[i] + x[i]
    for i in range(K):
        y[p[i]] += y[p[i]] * x[i]
    return y


def g(x : In[Tensor[N]], W : In[Tensor[N]]) -> float:
    s : Tensor[N]
    for i in range(N - 1):
        s[i + 1] = s[i] * x[i] + W[i]
    return s[N - 1]
""")
    x, p = torch.arange(4.0), torch.tensor([1, 3])
    assert module.f(x, 3, p).tolist() == [0.0, 0.0, 1.0, 6.0]
    with pytest.raises(ValueError, match=r"f: line 5: subscript 'i \+ 1' of 'y' is 4"):
        module.f(x, 4, p)
    with pytest.raises(ValueError, match=r"f: line 7: .*'p\[i\]' of 'y' .* 4"):
        module.f(x, 3, p + 1)
    assert module.f(x[:0], 0, p[:0]).tolist() == []
    leaf = torch.ones(3, requires_grad=True)
    module.g(leaf, torch.ones(3)).backward()  # the adjoint of W is not wanted
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [0.0, 1.0, 0.0]


SORTED = """
def f(x : In[Tensor[N, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    for n in range(N):
        for i in range(M):
            v : float = x[n, i]
            j : int = i
            while (j > 0 and y[n, j - 1] > v, max_iter := 9):
                y[n, j] = y[n, j - 1]
                j = j - 1
            y[n, j] = v
    return y
"""


def test_a_round_keeps_the_row_that_it_looks_at() -> None:
    found = pipeline.stage_text(SORTED + "\nd = rev_diff(f)\n", "adjoint", "d")
    assert "_tape_y : Tensor[N, M]" in found
    assert "_tape_y_1 : Tensor[M, M]" in found
    assert "Tensor[N, N" not in found
    x = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 9, dtype=torch.float64)
    (grad,) = torch.autograd.grad((loma.compile(SORTED).f(x) * weight).sum(), x)
    (wanted,) = torch.autograd.grad((x.sort(1).values * weight).sum(), x)
    torch.testing.assert_close(grad, wanted, rtol=0, atol=0)


WHOLE_ROWS_TOO = """
def f(x : In[Tensor[N, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[n, m] = x[n, m]
    for n in range(N):
        for i in range(1, M):
            if y[n, i] > y[0, i - 1]:
                y[n, i] = y[n, i] * y[n, i - 1]
    return y
"""


def test_a_row_that_others_look_at_is_kept_with_them() -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = [list(row.unbind()) for row in x.unbind()]
        for row in y:
            for i in range(1, len(row)):
                if row[i] > y[0][i - 1]:
                    row[i] = row[i] * row[i - 1]
        return torch.stack([torch.stack(row) for row in y])

    compiled = loma.compile(WHOLE_ROWS_TOO).f
    torch.testing.assert_close(compiled(x), f(x))
    (grad,) = torch.autograd.grad(compiled(x).sin().sum(), x)
    (wanted,) = torch.autograd.grad(f(x).sin().sum(), x)
    torch.testing.assert_close(grad, wanted)
