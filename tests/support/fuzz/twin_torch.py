"""The language's functions in plain PyTorch, for programs that are run as Python.

Programs of :mod:`fuzz_twins` are executed with SCOPE around them. Nothing here is the compiler's.
Tensors are float64, int64 or bool, numbers Python's or tensors of rank 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from types import GeneratorType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Dims = int | Sequence[int] | None


def real(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def number(value: Any) -> Tensor:
    """A value as a tensor: what is no float stays an int."""
    if isinstance(value, Tensor):
        return value
    return torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)


# ------------------------------------------------------------------------------ index statements


def put(
    target: Tensor, op: str, ranges: Sequence[Iterable[int]], element: Callable[..., Any]
) -> Tensor:
    """An index statement: ``element(*indices)`` gives a place and its value, which sees the old
    values throughout."""
    shape = target.shape
    new = dict(enumerate(target.reshape(-1).unbind()))
    for point in itertools.product(*ranges):
        subscripts, value = element(*point)
        at = 0
        for size, subscript in zip(shape, subscripts, strict=True):
            assert 0 <= subscript < size, "a subscript outside"
            at = at * size + int(subscript)
        value = number(value)
        if target.dtype == torch.bool:
            value = value != 0
        new[at] = (new[at] + value if op == "+=" else value).to(target.dtype)
    return torch.stack(list(new.values())).reshape(shape) if new else target


def part(target: Tensor, op: str, subscripts: Any, value: Any) -> Tensor:
    """``target[subscripts] = value``, whose value may be made of the target."""
    new = target.clone()
    new[subscripts] = target[subscripts] + value if op == "+=" else value
    return new


# --------------------------------------------------------------------------------------- numbers


def _first(a: Any, b: Any, better: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    a, b = number(a), number(b)
    return torch.where(better(a, b), a, b)


def _extreme(pick: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    def function(first: Any, *others: Any) -> Any:
        found = list(first) if isinstance(first, GeneratorType) else [first, *others]
        value = found[0]
        for other in found[1:]:
            value = _first(value, other, pick)
        return value

    return function


def clamp(x: Any, low: Any, high: Any) -> Tensor:
    return _first(_first(x, low, torch.ge), high, torch.le)


# ------------------------------------------------------------------------------------ reductions


def _axes(x: Tensor, dims: Dims) -> list[int]:
    if dims is None or dims == []:
        return list(range(x.dim()))
    return [d % x.dim() for d in ([dims] if isinstance(dims, int) else dims)]


def _rows(x: Tensor, dims: Dims) -> Tensor:
    """x with the dimensions that are left out of ``dims``, and those as one, the last one."""
    axes = _axes(x, dims)
    left = [d for d in range(x.dim()) if d not in axes]
    return x.permute(*left, *sorted(axes)).reshape(*(x.shape[d] for d in left), -1)


def _kept(x: Tensor, value: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    axes = _axes(x, dims)
    return (
        value.reshape([1 if d in axes else n for d, n in enumerate(x.shape)]) if keepdim else value
    )


def _reduction(rows: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def function(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
        return _kept(x, rows(_rows(x, dim)), dim, keepdim)

    return function


def _product(rows: Tensor) -> Tensor:
    value = torch.ones(rows.shape[:-1], dtype=rows.dtype)
    for column in rows.unbind(-1):
        value = value * column
    return value


def _root(x: Tensor) -> Tensor:
    """With derivatives that are 0 at 0."""
    some = x != 0
    return torch.where(some, torch.sqrt(torch.where(some, x, 1.0)), 0.0)


def _taken(rows: Tensor, sign: float) -> Tensor:
    """The first of the largest, or smallest."""
    at = torch.as_tensor((sign * rows).detach().numpy().argmax(-1))
    return rows.gather(-1, at.unsqueeze(-1)).squeeze(-1)


def sum_(x: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    if isinstance(x, GeneratorType):
        total: Any = 0
        for value in x:
            total = total + value
        return total
    return _reduction(lambda rows: rows.sum(-1))(x, dim, keepdim)


def prod(x: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    return math.prod(x) if isinstance(x, GeneratorType) else _reduction(_product)(x, dim, keepdim)


def var(x: Tensor, dim: Dims = None, correction: int = 1, keepdim: bool = False) -> Tensor:
    rows = _rows(x, dim)
    apart = rows - rows.mean(-1, keepdim=True)
    return _kept(x, (apart * apart).sum(-1) / (rows.shape[-1] - correction), dim, keepdim)


def cumprod(x: Tensor, dim: int) -> Tensor:
    found = [torch.ones_like(x.select(dim, 0))]
    for row in x.unbind(dim):
        found.append(found[-1] * row)
    return torch.stack(found[1:], dim)


# ---------------------------------------------------------------------------------- whole tensors


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    at = torch.sort(x.detach(), dim=dim, descending=descending, stable=True).indices
    return x.gather(dim, at), at


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    values, at = sort(x, dim, largest)
    return values.narrow(dim, 0, k), at.narrow(dim, 0, k)


def _arg(sign: float) -> Callable[[Tensor, int], Tensor]:
    return lambda x, dim: torch.as_tensor((sign * x).detach().numpy().argmax(dim))


def _convolution(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Of images without channels the result has a channel of zeros for each filter; torch's has as
    few channels as the images. One of zeros more changes nothing else."""

    def run(x: Tensor, weight: Tensor, *args: Any, **attrs: Any) -> Tensor:
        if not x.shape[1]:
            x, weight = (torch.cat([t, torch.zeros_like(t.sum(1, True))], 1) for t in (x, weight))
        return function(x, weight, *args, **attrs)

    return run


def _lifted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: function(*map(real, args))


_SAME = (
    "sin cos tan asin acos atan atan2 sinh cosh tanh exp expm1 exp2 log log1p log2 sqrt rsqrt pow"
    " erf erfc lgamma digamma abs sign floor ceil round isnan isfinite sigmoid relu polygamma"
)
SCOPE: dict[str, Any] = {
    **{name: _lifted(getattr(torch, name)) for name in _SAME.split() if name != "polygamma"},
    "polygamma": lambda n, x: torch.polygamma(n, real(x)),
    "softplus": lambda x: torch.logaddexp(real(x), torch.zeros((), dtype=torch.float64)),
    "max": _extreme(torch.ge),
    "min": _extreme(torch.le),
    "clamp": clamp,
    "both": torch.logical_and,
    "either": torch.logical_or,
    "no_diff": lambda x: x.detach() if isinstance(x, Tensor) else x,
    "where": lambda c, a, b: torch.where(c != 0, number(a), number(b)),
    "sum": sum_,
    "prod": prod,
    "mean": _reduction(lambda rows: rows.mean(-1)),
    "amax": _reduction(lambda rows: _taken(rows, 1.0)),
    "amin": _reduction(lambda rows: _taken(rows, -1.0)),
    "logsumexp": _reduction(lambda rows: torch.logsumexp(rows, -1)),
    "norm": _reduction(lambda rows: _root((rows * rows).sum(-1))),
    "var": var,
    "std": lambda *args, **attrs: _root(var(*args, **attrs)),
    "argmax": _arg(1.0),
    "argmin": _arg(-1.0),
    "cumprod": cumprod,
    "sort": sort,
    "topk": topk,
    "argsort": lambda *args: sort(*args)[1],
    "roll": lambda x, shifts, dims=None: torch.roll(x, shifts, dims),
    "one_hot": lambda i, n: F.one_hot(i, n).to(torch.float64),
    "gather": lambda x, dim, index: x.gather(dim, index),
    "zeros": lambda shape: torch.zeros(shape, dtype=torch.float64),
    "ones": lambda shape: torch.ones(shape, dtype=torch.float64),
    "integers": lambda shape: torch.zeros(shape, dtype=torch.int64),
    "booleans": lambda shape: torch.zeros(shape, dtype=torch.bool),
    **{name: getattr(F, name) for name in (
        "silu", "gelu", "elu", "leaky_relu", "layer_norm", "linear", "max_pool2d", "avg_pool2d",
    )},
    **{name: _convolution(getattr(F, name)) for name in ("conv1d", "conv2d", "conv3d")},
    **{name: getattr(torch, name) for name in (
        "softmax", "log_softmax", "cumsum", "flip", "tril", "triu", "cat", "stack", "split",
        "unbind", "reshape", "permute", "transpose", "matmul",
    )},
    "expand": lambda x, shape: x.expand(shape),
    "put": put,
    "part": part,
    "real": real,
}  # fmt: skip
