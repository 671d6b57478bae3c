"""Parts of tensors as targets outside index statements, as in PyTorch; ``@``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from index_cases import Case
from oracle import Program, check_case
from torch import Tensor

from loma import errors, pipeline
from loma.backends.interpreter import Interpreter


def _rnn(x: Tensor, w: Tensor, u: Tensor, b: Tensor) -> Tensor:
    rows = [torch.full((x.shape[1], len(b)), 0.5, dtype=x.dtype)]
    for row in x:
        rows.append(torch.tanh(row @ w + rows[-1] @ u + b))
    return torch.stack(rows)


def _parts(x: Tensor, k: int) -> Tensor:
    y = x.clone()
    y[:, 1:3] = 2.0 * x[:, 3:5] * x[:, :1]
    y[0] *= 3.0
    y[:, -1] += x[:, 0] * x[:, 1]
    y[..., ::2] -= 1.0
    y[:, 1:] = y[:, :-1].clone() * y[:, 1:].clone()
    y[:-1] += x[1:, None, 0] * x[0, None]
    y[:, :2] = y[:, 2:4]
    y[k, 2:4] /= 2.0
    y[:, 2] = k
    return y


def _ends(x: Tensor, r: Tensor) -> Tensor:
    y = torch.cat([x, x], 1)
    y[1:, :-1] = r
    y[:-1, 0] = x[:-1].mean()
    y[:, :-2] += x.mean(1, keepdim=True)
    y[:, :3] *= x[1]
    y[..., :-1] /= 2.0
    return y


CASES = [
    Case("rnn", """
def rnn(x : In[Tensor[T, B, D]], W : In[Tensor[D, H]], U : In[Tensor[H, H]], b : In[Tensor[H]]
        ) -> Tensor[T + 1, B, H]:
    h : Tensor[T + 1, B, H]
    h[0] = 0.5
    for t in range(T):
        h[t + 1] = tanh(x[t] @ W + h[t] @ U + b)
    return h
""", _rnn, ((3, 2, 2), (2, 3), (3, 3), (3,))),
    Case("parts", """
def parts(x : In[Tensor[N, 6]], k : In[int]) -> Tensor[N, 6]:
    y : Tensor[N, 6] = x
    y[:, 1:3] = 2.0 * x[:, 3:5] * x[:, :1]
    y[0] *= 3.0
    y[:, -1] += x[:, 0] * x[:, 1]
    y[..., ::2] -= 1.0
    y[:, 1:] = y[:, :-1] * y[:, 1:]
    y[:-1] += x[1:, None, 0] * x[0, None]
    y[:, :2] = y[:, 2:4]
    y[k, 2:4] /= 2.0
    y[:, 2] = k
    return y
""", _parts, ((3, 6), 1)),
    # what the value has no index for
    Case("ends", """
def ends(x : In[Tensor[N, M]], r : In[float]) -> Tensor[N, 2 * M]:
    y = cat([x, x], 1)
    y[1:, :-1] = r
    y[:-1, 0] = mean(x[:-1])
    y[:, :-2] += mean(x, [1], keepdim=True)
    y[:, :3] *= x[1]
    y[..., :-1] /= 2.0
    return y
""", _ends, ((3, 3), ())),
]  # fmt: skip


@pytest.fixture(scope="module")
def program() -> Program:
    return Program([case.text for case in CASES], first=())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_interpreted(program: Program, case: Case) -> None:
    check_case(program, case, libtorch=False)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_compiled(program: Program, case: Case) -> None:
    check_case(program, case)


def test_a_loop_keeps_the_parts_that_it_overwrites() -> None:
    text = CASES[0].text + "d = rev_diff(rnn)\n"
    assert "_tape_h : Tensor[T, B, H]" in pipeline.stage_text(text, "adjoint", "d")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("y[0] = z", "has rank 1, and the value has rank 2"),
        ("y[:, 1:3] = z[:, 0:3]", "has size 2, where the value has 3"),
        ("y[5:7] = 1.0", "outside dimension 0 of size 4"),
        ("y[2:1] = 1.0", "before its start"),
        ("y[None, 0] = 1.0", "stands in no target"),
        ("y[i] = 1.0", "takes all its subscripts at once"),
        ("z[0] = 1.0", "'z' is an In tensor, which is read only"),
        ("y[0] = w", "'w' is not declared"),
        ("y[0] = 2.0 @ y", "'@' of numbers"),
    ],
)
def test_mistakes(statement: str, message: str) -> None:
    head = "def f(z : In[Tensor[4, 4]], y : Out[Tensor[4, 4]]):\n    "
    with pytest.raises(errors.UserError) as caught:
        pipeline.parsed(f"{head}{statement}\n")
    assert message in caught.value.to_string()


@pytest.mark.parametrize("part", ["1:", ":-1"])
def test_a_value_of_another_size(part: str) -> None:
    """What only the call can tell is never cut off."""
    head = "def f(x : In[Tensor[N, M]], z : In[Tensor[N, K]]) -> Tensor[N, K]:\n    y = z * 1.0\n"
    program = Interpreter(pipeline.parsed(f"{head}    y[:, {part}] = x\n    return y\n"))
    (y,) = program.call("f", np.ones((2, 3)), np.zeros((2, 4)))
    assert y.sum() == 6.0
    for size in (1, 2, 4):
        with pytest.raises(ValueError, match=r"must be Tensor\[N, K - 1\], found sizes \["):
            program.call("f", np.ones((2, size)), np.zeros((2, 4)))
