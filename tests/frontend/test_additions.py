"""Which additions to a tensor are taken together, and which must not be."""

from __future__ import annotations

import pytest

from loma import passes
from loma.core.ir import Module
from loma.core.printer import print_module
from loma.frontend import parse


def lines(module: Module) -> list[str]:
    return [line.strip() for line in print_module(module).split("\n") if line.strip()]


def program(*statements: str) -> Module:
    body = "".join(f"    {statement}\n" for statement in statements)
    return parse(
        "def f(a : In[Tensor[N, M]], b : In[Tensor[N, M]], v : In[Tensor[M]], n : In[int]"
        f") -> Tensor[N, M]:\n    y : Tensor[N, M]\n{body}    return y\n"
    )


TOGETHER = {
    "two": (["y[i, j] += a[i, j] * 2.0", "y[k, l] += b[k, l]"],
            ["y[k, l] += a[k, l] * 2.0 + b[k, l]"]),
    "the first value": (["y[i, j] = exp(a[i, j])", "y[i, j] += v[j]", "y[i, j] += b[i, j]"],
                        ["y[i, j] = exp(a[i, j]) + v[j] + b[i, j]"]),
    "under a condition": (["if n:", "    y[i, j] += a[i, j]", "y[i, j] += b[i, j]"],
                          ["y[i, j] += (a[i, j] if n else 0.0) + b[i, j]"]),
    "past others": (["y[i, j] += a[i, j]", "w : Tensor[M]", "w[j] += a[i, j]",
                     "y[i, j] += b[i, j] * w[j]"],
                    ["w : Tensor[M]", "w[j] += a[i, j]",
                     "y[i, j] += a[i, j] + b[i, j] * w[j]"]),
}  # fmt: skip


@pytest.mark.parametrize("name", TOGETHER)
def test_taken_together(name: str) -> None:
    before, after = TOGETHER[name]
    found = passes.dead_code(passes.additions(program(*before)))
    assert lines(found) == lines(program(*after))


APART = {
    "read in between": ["y[i, j] += a[i, j]", "w : Tensor[M]", "w[j] += y[i, j]",
                        "y[i, j] += b[i, j] * w[j]"],
    "an operand changes": ["w : Tensor[M]", "w[j] += a[i, j]", "y[i, j] += w[j]",
                           "w[j] += b[i, j]", "y[i, j] += b[i, j] * w[j]"],
    "a condition changes": ["m : int = n", "if m:", "    y[i, j] += a[i, j]", "m = m - 1",
                            "y[i, j] += b[i, j]"],
    "sums": ["y[i, j] += a[i, k] * b[k, j]", "y[i, j] += b[i, j]"],
    "itself": ["y[i, j] += a[i, j]", "y[i, j] += y[i, j] * b[i, j]"],
    "other elements": ["y[i, j] += a[i, j]", "y[i, 0] += v[0]"],
    "a value after it": ["y[i, j] += a[i, j]", "y[i, j] = b[i, j]"],
    "a large operand": ["w : Tensor[N, M]", "w[i, j] = a[i, j] * 2.0", "y[i, j] += w[i, j]",
                        "y[i, j] += b[i, j]"],
    "elsewhere where not taken": ["if n:", "    y[i, j] += a[i, j]", "else:",
                                  "    y[i, j] += v[j]", "y[i, j] += b[i, j]"],
    "elements that need the condition": ["if n:", "    y[i, j] += v[j + n]",
                                         "y[i, j] += b[i, j]"],
    "another tensor": ["w : Tensor[N, M]", "w[i, j] += a[i, j]", "y[i, j] += w[i, j]"],
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_left_apart(name: str) -> None:
    module = program(*APART[name])
    assert lines(passes.additions(module)) == lines(module)
