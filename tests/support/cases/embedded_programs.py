"""Programs that stand in a Python file, under the decorator. Linters and mypy read this file, too,
and accept it."""

from __future__ import annotations

import loma
from loma import In, Tensor, fwd_diff, rev_diff, softmax, zero_pad, zeros

B, N, M, i, j = loma.names("B N M, i j")


@loma.module
def layers() -> None:
    """Not part of the program."""

    def double(x: In[Tensor[N]]) -> Tensor[N]:
        y: Tensor[N] = zeros([N])
        y[i] = 2.0 * x[i]
        return y

    d_double = rev_diff(double)  # noqa: F841


@loma.module
class More:
    """Not part of the program."""

    def neighbours(x: In[Tensor[B, N]], p: In[float] = 0.5) -> Tensor[B, N]:
        s: Tensor[B, N] = softmax(x, 1)
        y: Tensor[B, N] = zeros([B, N])
        y[i, j] = s[i, j] + p * zero_pad(s[i, j - 1])
        return y

    d_neighbours = fwd_diff(neighbours)


@loma.module
def total(x: In[Tensor[N, M]]) -> float:
    return sum(x[i, j] for i in range(N) for j in range(M))  # type: ignore[no-any-return]
