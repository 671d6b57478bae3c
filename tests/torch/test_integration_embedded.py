"""Programs that stand in a Python file, under the decorator."""

from __future__ import annotations

import inspect

import pytest
import torch

import loma


@loma.module
def layers() -> None:
    """Not part of the program."""

    def double(x: In[Tensor[N]]) -> Tensor[N]:  # type: ignore[name-defined]  # noqa: F821
        y: Tensor[N]  # type: ignore[name-defined]  # noqa: F821
        y[i] = 2.0 * x[i]  # type: ignore[name-defined]  # noqa: F821
        return y  # noqa: F821

    d_double = rev_diff(double)  # type: ignore[name-defined]  # noqa: F821, F841


def test_a_function_without_arguments_holds_a_program() -> None:
    assert layers.double(torch.ones(3)).tolist() == [2.0] * 3
    (dx,) = layers.d_double(torch.ones(3), torch.ones(3))
    assert dx.tolist() == [2.0] * 3


def test_errors_point_into_the_python_file() -> None:
    def wrong() -> None:
        def double(x: In[Tensor[N]]) -> Tensor[N]:  # type: ignore[name-defined]  # noqa: F821
            return undeclared  # type: ignore[name-defined]  # noqa: F821  the line of the error

    with pytest.raises(loma.UserError) as caught:
        loma.module(wrong)
    lines, first = inspect.getsourcelines(wrong)
    line = first + next(k for k, text in enumerate(lines) if "the line of the error" in text)
    assert caught.value.lineno == line
    assert caught.value.path == __file__
    assert "return undeclared" in str(caught.value)


def test_without_source_text() -> None:
    with pytest.raises(TypeError, match=r"the source text of .* is not available"):
        loma.module(eval("lambda: None"))
