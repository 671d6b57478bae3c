"""Running reductions along memory go through vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tree_runs import run_program
from trees import nodes_of, tree_of

import loma
from loma import pipeline
from loma.backends.interpreter import Interpreter
from loma.backends.schedule.ir import Scan

HEAD = "def f(x : In[Tensor[N]], q : In[IntTensor[N]]) -> TYPE[N]:\n    y : TYPE[N]\n"
# name, statements, what the loop reduces by, None: it stays a loop
CASES: tuple[tuple[str, tuple[str, ...], str | None], ...] = (
    ("sum", ("y[i] = sum(x[j] for j in range(i + 1))",), "sum"),
    ("product", ("y[i] = prod(x[j] for j in range(i + 1))",), "prod"),
    ("greatest", ("y[i] = max(x[j] for j in range(i + 1))",), "max"),
    ("least", ("y[i] = min(x[j] for j in range(i + 1))",), "min"),
    ("backwards", ("y[i] = sum(x[j] for j in range(i, N))",), "sum"),
    ("loop", ("y = x", "for i in range(N - 1):", "    y[i + 1] += y[i]"), "sum"),
    ("terms", ("y = x", "for i in range(N - 1):",
               "    y[i + 1] = x[i] + (y[i] - sin(x[i + 1])) + 1.0"), "sum"),
    ("loses", ("y = x", "for i in range(N - 1):", "    y[i + 1] = y[i] - x[i]"), "sum"),
    ("kept", ("y = x", "s : Tensor[1]", "for i in reversed(range(N)):", "    s[0] += x[i]",
              "    y[i] = s[0]", "y[i] = y[i] + s[0]"), "sum"),
    ("others_behind", ("y = x", "w : Tensor[N]", "for i in range(N - 1):", "    w[i] = 2.0 * y[i]",
                       "    y[i + 1] += y[i]", "    w[i] += y[i + 1]", "y[i] = y[i] + w[i]"),
     "sum"),
    ("cleared", ("y = x", "w : Tensor[N]", "for i in reversed(range(N - 1)):",
                 "    y[i] += y[i + 1]", "    w[i + 1] += y[i + 1]", "    y[i + 1] = 0.5",
                 "y[i] = y[i] + w[i]"), "sum"),
    ("counted", ("k : IntTensor[N]", "k[i] = 1", "for i in range(N - 1):",
                 "    k[i + 1] = k[i] + 2", "y[i] = x[i] * k[i]"), "sum"),
    ("ints", ("y[i] = sum(q[j] for j in range(i + 1))",), "sum"),
    ("recurrence", ("y = x", "for i in range(N - 1):", "    y[i + 1] = 0.5 * y[i] + x[i]"), None),
    ("from_another_end", ("y = x", "for i in range(N - 1):", "    y[i + 1] = x[i] - y[i]"), None),
    ("two_before", ("y = x", "for i in range(N - 2):", "    y[i + 2] = y[i] + x[i]"), None),
    ("needs_the_old", ("y = x", "w : Tensor[N]", "for i in range(N - 1):", "    w[i] = y[i + 1]",
                       "    y[i + 1] += y[i]", "y[i] = y[i] + w[i]"), None),
    ("changed_later", ("y = x", "for i in range(N - 1):", "    y[i + 1] += y[i]",
                       "    y[i + 1] = 0.5 * y[i + 1]"), None),
    ("twice", ("y = x", "for i in range(N - 1):", "    y[i + 1] = y[i] + y[i]"), None),
)  # fmt: skip
SIZES = (0, 1, 2, 5, 8, 9, 10, 16, 17, 18, 25, 33, 34, 100)


def _text(case: tuple[str, tuple[str, ...], str | None]) -> str:
    type_ = "IntTensor" if case[0] == "ints" else "Tensor"
    lines = "".join(f"    {line}\n" for line in case[1])
    return HEAD.replace("TYPE", type_) + lines + "    return y\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_trees(case: tuple[str, tuple[str, ...], str | None]) -> None:
    module = pipeline.program(_text(case), "f").module
    found = [n.kind for n in nodes_of(tree_of(module.function("f"), module)) if isinstance(n, Scan)]
    assert found == ([] if case[2] is None else [case[2]])
    assert all(run_program(_text(case), case[0], tries=3).values())


def _numbers(n: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(n)
    return numbers.standard_normal(n) + 1.0, numbers.integers(-9, 9, n)


def _compiled() -> tuple[dict[str, str], loma.LomaModule]:
    texts = {case[0]: _text(case).replace("def f(", f"def {case[0]}(") for case in CASES[:13]}
    return texts, loma.compile("\n".join(texts.values()))


def test_sizes_and_dtypes() -> None:
    texts, module = _compiled()
    interpreter = Interpreter(pipeline.program("\n".join(texts.values()), "f").module)
    for n in SIZES:
        x, q = _numbers(n)
        for name in texts:
            (expected,) = interpreter.call(name, x, q)
            found = getattr(module, name)(torch.tensor(x), torch.tensor(q))
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12, err_msg=name)
            single = getattr(module, name)(torch.tensor(x).float(), torch.tensor(q))
            np.testing.assert_allclose(single, expected, rtol=1e-4, atol=1e-4, err_msg=name)


def test_numbers_that_are_none() -> None:
    _, module = _compiled()
    x, q = map(torch.tensor, _numbers(70))
    for place, value in ((0, torch.nan), (20, torch.nan), (33, torch.inf), (69, -torch.inf)):
        x[place] = value
        for name, own in (("sum", x.cumsum(0)), ("product", x.cumprod(0)),
                          ("greatest", x.cummax(0)[0]), ("least", x.cummin(0)[0]),
                          ("backwards", x.flip(0).cumsum(0).flip(0))):  # fmt: skip
            found = getattr(module, name)(x, q)
            torch.testing.assert_close(found, own, equal_nan=True, msg=f"{name}, {value}")
        x[place] = 1.0
