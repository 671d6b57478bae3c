"""One small program for every tensor operator, with the same function in plain PyTorch."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SIZES = {"N": 3, "M": 4, "K": 5, "B": 2, "C": 4, "H": 7, "W": 6, "O": 6, "P": 3, "Q": 2}


@dataclass(frozen=True, slots=True)
class Case:
    """``params`` is "x: N, M; s: float; i: int[N] < M; y: *2" (``*2``: a tensor of unknown rank,
    here of rank 2); ``body`` an expression, or statements that end in a return."""

    name: str
    params: str
    result: str
    body: str
    reference: Callable[..., Any]
    positive: bool = False
    smooth: bool = True
    ops: tuple[str, ...] = field(default=())

    @property
    def text(self) -> str:
        params = ", ".join(f"{name} : In[{type_}]" for name, type_, _, _ in self._params())
        lines = textwrap.dedent(self.body).strip().split("\n")
        if "return" not in self.body:
            lines = [f"return {self.body}"]
        indented = "\n".join(f"    {line}" for line in lines)
        return f"def op_{self.name}({params}) -> {self.result}:\n{indented}\n"

    def _params(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        out: list[tuple[str, str, tuple[int, ...], int]] = []
        for part in self.params.split(";"):
            name, _, kind = (piece.strip() for piece in part.partition(":"))
            high = 0
            if kind == "float":
                out.append((name, "float", (), 0))
                continue
            if kind.startswith("*"):
                shape = tuple(SIZES[d] for d in "NMK")[: int(kind[1:])]
                out.append((name, "Tensor", shape, 0))
                continue
            if kind.startswith("int["):
                dims, _, bound = kind[4:].partition("]")
                high = _size(bound.strip(" <")) if "<" in bound else 2
                type_ = f"IntTensor[{dims}]"
            else:
                dims, type_ = kind, f"Tensor[{kind}]"
            out.append((name, type_, tuple(_size(d) for d in dims.split(",")), high))
        return out

    def arguments(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(3)
        args: list[Tensor] = []
        for _, type_, shape, high in self._params():
            if type_.startswith("Int"):
                args.append(torch.randint(high, shape, generator=generator))
            elif self.positive:
                args.append(torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5)
            else:
                args.append(torch.randn(shape, generator=generator, dtype=torch.float64))
        return args


def _size(text: str) -> int:
    return int(eval(text, {"__builtins__": {}}, SIZES))


def adjoint_of(function: Callable[..., Tensor], *shape: str) -> Callable[..., Tensor]:
    """The adjoint of a linear function of its first argument, itself differentiable."""

    def pulled(g: Tensor, *rest: Tensor) -> Tensor:
        x = torch.zeros([_size(s) for s in shape], dtype=g.dtype, requires_grad=True)
        (out,) = torch.autograd.grad(function(x, *rest), x, g, create_graph=True)
        return out

    return pulled


def _first_argmax(x: Tensor) -> Tensor:
    return torch.argmax(x, dim=1)


def _conv(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)


def _weight_conv(w: Tensor, x: Tensor) -> Tensor:
    return _conv(x, w)


def _conv_3(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return F.conv3d(x, w, b, (1, 2, 1), (0, 1, 2), (2, 1, 2), 2)


def _scan(a: Tensor, b: Tensor) -> Tensor:
    rows = [b[:, 0]]
    for t in range(1, b.shape[1]):
        rows.append(a[:, t] * rows[-1] + b[:, t])
    return torch.stack(rows, 1)


_CONV_3 = "stride=[1, 2, 1], padding=[0, 1, 2], dilation=[2, 1, 2], groups=2"
_CONV_OUT_3 = "B, O, 3, 4, 8"
_CONV = "stride=[2, 1], padding=[1, 2], dilation=[1, 2], groups=2"
# (H + 2 - (P - 1) - 1) // 2 + 1 and W + 4 - 2 (Q - 1) - 1 + 1 with the sizes above
_CONV_OUT = "B, O, 4, 8"

CASES = [
    # infix arithmetic, with broadcasting
    Case("add", "x: N, M; y: M", "Tensor[N, M]", "x + y", lambda x, y: x + y),
    Case("sub", "x: N, 1; y: M", "Tensor[N, M]", "x - y", lambda x, y: x - y),
    Case("mul", "x: K, N, M; y: N, 1", "Tensor[K, N, M]", "x * y", lambda x, y: x * y),
    Case("div", "x: N, M; y: N, M", "Tensor[N, M]", "x / y", lambda x, y: x / y, positive=True),
    Case("add_scalar", "x: N, M; s: float", "Tensor[N, M]", "x + s", lambda x, s: x + s),
    Case("sub_from_scalar", "x: N, M; s: float", "Tensor[N, M]", "s - x", lambda x, s: s - x),
    Case("mul_scalar", "x: N, M; s: float", "Tensor[N, M]", "s * x * 2.0 * s",
         lambda x, s: s * x * 2.0 * s),
    Case("div_scalar", "x: N, M; s: float", "Tensor[N, M]", "(s / x) / s * (1.0 / x)",
         lambda x, s: (s / x) / s * (1.0 / x), positive=True),
    Case("twice_the_same", "x: N, M", "Tensor[N, M]", "x * x + x", lambda x: x * x + x),
    Case("unknown_rank", "x: *2; y: *1", "Tensor", "x * x - x / 2.0",
         lambda x, y: x * x - x / 2.0),
    Case("unknown_mul", "x: *3; y: *2", "Tensor",
         "x * sum(y) + x",
         lambda x, y: x * y.sum() + x),
    Case("neg", "x: N, M", "Tensor[N, M]", "-x * x", lambda x: -x * x),
    Case("lt", "x: N, M; y: M", "IntTensor[N, M]", "x < y", lambda x, y: (x < y).long()),
    Case("le", "x: N, M; y: N, M", "IntTensor[N, M]", "x <= x", lambda x, y: (x <= x).long()),
    Case("gt", "x: N, M; s: float", "IntTensor[N, M]", "x > s", lambda x, s: (x > s).long()),
    Case("ge", "x: N, M; y: M", "IntTensor[N, M]", "x >= y", lambda x, y: (x >= y).long()),
    Case("eq", "i: int[N, M]; j: int[M]", "IntTensor[N, M]", "i == j",
         lambda i, j: (i == j).long()),
    Case("ne", "i: int[N, M]; j: int[M]", "IntTensor[N, M]", "i != j",
         lambda i, j: (i != j).long()),
    Case("int_arithmetic", "i: int[N, M] < 9; j: int[M] < 9", "IntTensor[N, M]", "i * j - (i + j)",
         lambda i, j: i * j - (i + j)),
    Case("mod", "x: N, M; y: M", "Tensor[N, M]", "x * x % 1.5 + y % x",
         lambda x, y: x * x % 1.5 + y % x, smooth=False),
    Case("floordiv", "x: N, M; s: float", "Tensor[N, M]", "x // 0.25 * x + s // x",
         lambda x, s: (x.detach() // 0.25) * x + s.detach() // x.detach(), smooth=False),
    Case("int_division", "i: int[N, M] < 9; j: int[M] < 9", "IntTensor[N, M]",
         "(i - 4) // (j + 1) + (i - 4) % (j + 1) + i ** 2",
         lambda i, j: (i - 4) // (j + 1) + (i - 4) % (j + 1) + i ** 2),
    Case("logic", "x: N, M; y: M; i: int[N, M]", "IntTensor[N, M]",
         "x < y and not i or y > 0.0 and x < 0.5",
         lambda x, y, i: ((x < y) & (i == 0) | (y > 0) & (x < 0.5)).long(),
         ops=("and", "or", "not")),
    Case("pow", "x: N, M; y: M; s: float", "Tensor[N, M]",
         "x ** y + x ** 2 * s ** y + x ** s - x ** -1.5",
         lambda x, y, s: x ** y + x ** 2 * s ** y + x ** s - x ** -1.5, positive=True),
    # elementwise functions
    Case("extremes", "x: N, M; y: M; s: float; i: int[N, M] < 9", "Tensor[N, M]",
         "max(x, y) * x + min(x, 0.25) * max(0.5, y) + clamp(x, -0.5, y) * clamp(i, 2, 5) "
         "+ min(i, s)",
         lambda x, y, s, i: torch.maximum(x, y) * x + x.clamp(max=0.25) * y.clamp(min=0.5)
         + torch.minimum(x.clamp(min=-0.5), y) * i.clamp(2, 5) + torch.minimum(i, s),
         ops=("max", "min", "clamp")),
    Case("int_builtins", "i: int[N, M] < 9; j: int[M] < 9", "IntTensor[N, M]",
         "max(i, j) + sign(i - 4) * abs(j - i) + isfinite(i) - min(i, j)",
         lambda i, j: torch.maximum(i, j) + (i - 4).sign() * (j - i).abs() + 1
         - torch.minimum(i, j)),
    Case("unknown_rank_builtins", "x: *2; y: *1; s: float", "Tensor",
         "clamp(x, s - 2.0, s) * sum(atan2(y, s)) + softplus(x) ** 2 % 1.5 + max(x, s) "
         "+ sigmoid(where(isnan(x) or x < s and not x < -s, sin(x), x))",
         lambda x, y, s: torch.minimum(torch.maximum(x, s - 2), s) * torch.atan2(y, s).sum()
         + F.softplus(x) ** 2 % 1.5 + torch.maximum(x, s)
         + torch.sigmoid(torch.where((x < s) & ~(x < -s), x.sin(), x))),
    Case("relu", "x: N, M", "Tensor[N, M]", "relu(x) * x", lambda x: F.relu(x) * x),
    Case("sigmoid", "x: N, M", "Tensor[N, M]", "sigmoid(x)", torch.sigmoid),
    Case("tanh", "x: N, M", "Tensor[N, M]", "tanh(x)", torch.tanh),
    Case("exp", "x: N, M", "Tensor[N, M]", "exp(x)", torch.exp),
    Case("log", "x: N, M", "Tensor[N, M]", "log(x)", torch.log, positive=True),
    Case("sqrt", "x: N, M", "Tensor[N, M]", "sqrt(x)", torch.sqrt, positive=True),
    Case("abs", "x: N, M", "Tensor[N, M]", "abs(x) * x", lambda x: x.abs() * x),
    Case("sign", "x: N, M", "Tensor[N, M]", "sign(x) * x * x", lambda x: x.sign() * x * x),
    Case("mul_no_nan", "x: N, M; y: M", "Tensor[N, M]", "mul_no_nan(x, y)", lambda x, y: x * y),
    Case("where", "x: N, M; y: M", "Tensor[N, M]", "where(x > y, x * y, y * y)",
         lambda x, y: torch.where(x > y, x * y, y * y)),
    Case("where_scalar", "x: N, M; s: float", "Tensor[N, M]", "where(x > 0.0, x * x, s)",
         lambda x, s: torch.where(x > 0, x * x, s)),
    Case("where_int", "i: int[N, M] < 5", "IntTensor[N, M]", "where(i > 2, i, 7)",
         lambda i: torch.where(i > 2, i, 7)),
    # reductions and softmax
    Case("sum", "x: N, M, K", "Tensor[N, K]", "sum(x * x, [1])", lambda x: (x * x).sum(1)),
    Case("sum_all", "x: N, M, K", "Tensor[()]", "sum(x * x)", lambda x: (x * x).sum()),
    Case("sum_keepdim", "x: N, M, K", "Tensor[1, M, 1]", "sum(x * x, [0, -1], keepdim=True)",
         lambda x: (x * x).sum((0, 2), keepdim=True)),
    Case("sum_unknown", "x: *3", "Tensor", "x * sum(x, [0, 2], keepdim=True)",
         lambda x: x * x.sum((0, 2), keepdim=True)),
    Case("sum_int", "i: int[N, M] < 9", "IntTensor[M]", "sum(i, [0])", lambda i: i.sum(0)),
    Case("mean", "x: N, M, K", "Tensor[M]", "mean(x * x, [0, 2])", lambda x: (x * x).mean((0, 2))),
    Case("mean_unknown", "x: *2", "Tensor[()]", "mean(x * x)", lambda x: (x * x).mean()),
    Case("mean_float", "x: N, M", "float", "mean(x * x)", lambda x: (x * x).mean()),
    Case("amax", "x: N, M, K", "Tensor[N, K]", "amax(x, [1]) * amax(x, [1])",
         lambda x: x.amax(1) ** 2),
    Case("amax_all", "x: N, M", "Tensor[1, 1]", "amax(x * x, keepdim=True)",
         lambda x: (x * x).amax((0, 1), keepdim=True)),
    Case("amax_two", "x: N, M, K", "Tensor[M]", "amax(x, [2, 0])", lambda x: x.amax((0, 2))),
    Case("amin", "x: N, M, K", "Tensor[N, K]", "amin(x, [1]) * amin(x, [1])",
         lambda x: x.amin(1) ** 2),
    Case("prod", "x: N, M, K", "Tensor[M]", "prod(x, [2, 0])", lambda x: x.prod(2).prod(0)),
    Case("argmax", "x: N, M, K", "IntTensor[N, K]", "argmax(x, 1)", _first_argmax),
    Case("argmin", "x: N, M, K", "IntTensor[N, K]", "argmin(x, 1)", lambda x: x.argmin(1)),
    Case("argsort", "x: N, M, K", "IntTensor[N, M, K]", "argsort(x, 1, descending=True)",
         lambda x: x.argsort(1, descending=True)),
    Case("cumsum", "x: N, M, K", "Tensor[N, M, K]", "cumsum(x * x, 1)",
         lambda x: (x * x).cumsum(1)),
    Case("cumprod", "x: N, M, K", "Tensor[N, M, K]", "cumprod(x, -2)", lambda x: x.cumprod(1)),
    Case("scan", "a: N, M, K; b: N, M, K", "Tensor[N, M, K]", "scan(a, b, 1)", _scan),
    Case("softmax", "x: N, M, K", "Tensor[N, M, K]", "softmax(x, dim=1)",
         lambda x: torch.softmax(x, 1)),
    Case("softmax_last", "x: *2", "Tensor", "softmax(x, -1)", lambda x: torch.softmax(x, -1)),
    Case("log_softmax", "x: N, M", "Tensor[N, M]", "log_softmax(x, dim=0)",
         lambda x: torch.log_softmax(x, 0)),
    # linear algebra and convolutions
    Case("matmul", "x: N, K; y: K, M", "Tensor[N, M]", "matmul(x, y)", torch.matmul),
    Case("matmul_batched", "x: B, 1, N, K; y: C, K, M", "Tensor[B, C, N, M]", "matmul(x, y)",
         torch.matmul),
    Case("linear", "x: N, K; w: M, K; b: M", "Tensor[N, M]", "linear(x, w, b)", F.linear),
    Case("linear_no_bias", "x: B, N, K; w: M, K", "Tensor[B, N, M]", "linear(x, w)", F.linear),
    Case("linear_vector", "x: K; w: M, K; b: M", "Tensor[M]", "linear(x, w, b)", F.linear),
    Case("conv2d", "x: B, C, H, W; w: O, C, P, Q; b: O", "Tensor[B, O, H - P + 1, W - Q + 1]",
         "conv2d(x, w, b)", F.conv2d),
    Case("conv2d_all", "x: B, C, H, W; w: O, 2, P, Q",
         "Tensor[B, O, (H + 2 - P) // 2 + 1, W + 5 - 2 * Q + 1]", f"conv2d(x, w, {_CONV})", _conv),
    Case("conv_transpose2d", "x: B, C, H, W; w: C, O, P, Q; b: O",
         "Tensor[B, O, H + P - 1, W + Q - 1]", "conv_transpose2d(x, w, b)", F.conv_transpose2d),
    Case("conv_transpose2d_all", "x: B, C, H, W; w: C, 3, P, Q", "Tensor",
         "conv_transpose2d(x, w, stride=[2, 3], padding=[1, 0], output_padding=[1, 2], "
         "dilation=[2, 1], groups=2)",
         lambda x, w: F.conv_transpose2d(
             x, w, None, (2, 3), (1, 0), (1, 2), 2, (2, 1))),
    Case("conv2d_input", f"g: {_CONV_OUT}; w: O, 2, P, Q", "Tensor[2, 4, 7, 6]",
         f"conv2d_input(g, w, shape=[2, 4, 7, 6], {_CONV})", adjoint_of(_conv, *"BCHW")),
    Case("conv2d_weight", f"g: {_CONV_OUT}; x: B, C, H, W", "Tensor[6, 2, 3, 2]",
         f"conv2d_weight(g, x, shape=[6, 2, 3, 2], {_CONV})",
         adjoint_of(_weight_conv, "O", "2", "P", "Q")),
    Case("conv3d", "x: B, C, 5, H, W; w: O, 2, 2, P, Q; b: O",
         "Tensor[B, O, 3, (H + 2 - P) // 2 + 1, W + 5 - 2 * Q + 1]", f"conv3d(x, w, b, {_CONV_3})",
         _conv_3),
    Case("conv3d_input", f"g: {_CONV_OUT_3}; w: O, 2, 2, P, Q", "Tensor[2, 4, 5, 7, 6]",
         f"conv3d_input(g, w, shape=[2, 4, 5, 7, 6], {_CONV_3})", adjoint_of(_conv_3, *"BC5HW")),
    Case("conv3d_weight", f"g: {_CONV_OUT_3}; x: B, C, 5, H, W", "Tensor[6, 2, 2, 3, 2]",
         f"conv3d_weight(g, x, shape=[6, 2, 2, 3, 2], {_CONV_3})",
         adjoint_of(lambda w, x: _conv_3(x, w), *"O22PQ")),
    # pooling
    Case("max_pool2d", "x: B, C, H, W", "Tensor[B, C, (H - 3) // 2 + 1, W - 2 + 1]",
         "max_pool2d(x * x, [3, 2], stride=[2, 1])",
         lambda x: F.max_pool2d(x * x, (3, 2), (2, 1))),
    Case("max_pool2d_padded", "x: B, C, H, W", "Tensor",
         "max_pool2d(x, [3, 2], padding=[1, 1])",
         lambda x: F.max_pool2d(x, (3, 2), padding=(1, 1))),
    Case("max_pool2d_index", "x: B, C, H, W", "IntTensor[B, C, (H - 1) // 3 + 1, W // 2 + 1]",
         "max_pool2d_index(x, [3, 2], padding=[1, 1])",
         lambda x: F.max_pool2d(x, (3, 2), padding=(1, 1), return_indices=True)[1]),
    Case("avg_pool2d", "x: B, C, H, W", "Tensor", "avg_pool2d(x * x, [3, 2], [2, 2], [1, 0])",
         lambda x: F.avg_pool2d(x * x, (3, 2), (2, 2), (1, 0))),
    Case("avg_pool2d_input", "g: B, C, 4, 3", "Tensor[2, 4, 7, 6]",
         "avg_pool2d_input(g, shape=[2, 4, 7, 6], kernel_size=[3, 2], stride=[2, 2], "
         "padding=[1, 0])",
         adjoint_of(lambda x: F.avg_pool2d(x, (3, 2), (2, 2), (1, 0)), *"BCHW")),
    # shape
    Case("reshape", "x: N, M, K", "Tensor[M, K * N]", "reshape(x * x, [M, -1])",
         lambda x: (x * x).reshape(4, -1)),
    Case("reshape_unknown", "x: *3", "Tensor[60]", "reshape(x * x, [60])",
         lambda x: (x * x).reshape(60)),
    Case("permute", "x: N, M, K", "Tensor[K, N, M]", "permute(x * x, [2, 0, 1])",
         lambda x: (x * x).permute(2, 0, 1)),
    Case("transpose", "x: N, M, K", "Tensor[K, M, N]", "transpose(x * x, 0, -1)",
         lambda x: (x * x).transpose(0, 2)),
    Case("flip", "x: N, M, K", "Tensor[N, M, K]", "flip(x * x, [0, -1])",
         lambda x: (x * x).flip(0, 2)),
    Case("roll", "x: N, M, K", "Tensor[N, M, K]", "roll(x * x, [1, -7], [0, -1])",
         lambda x: (x * x).roll((1, -7), (0, 2))),
    Case("tril", "x: B, N, M", "Tensor[B, N, M]", "tril(x * x, 1)", lambda x: (x * x).tril(1)),
    Case("triu", "x: N, M", "Tensor[N, M]", "triu(x * x, diagonal=-1)",
         lambda x: (x * x).triu(-1)),
    Case("cat", "x: N, M; y: N, K", "Tensor[N, 2 * M + K]", "cat([x, y * y, x], 1)",
         lambda x, y: torch.cat([x, y * y, x], 1)),
    Case("split", "x: N, M", "Tensor[N, 1]", """
         a, b = split(x * x, [1, 3], 1)
         return a * sum(b)""",
         lambda x: (x * x)[:, :1] * (x * x)[:, 1:].sum(), ops=("slice",)),
    Case("slice", "x: N, K", "Tensor[N, 2]", "slice(x * x, dim=1, start=1, end=5, step=2)",
         lambda x: (x * x)[:, 1:5:2]),
    Case("first_half", "x: N, 2 * M", "Tensor[N, M]", "x[:, :M] * sigmoid(x[:, M:])",
         lambda x: F.glu(x, 1), ops=("slice",)),
    Case("named_part", "x: N, M", "Tensor[N]", """
         y = x[:N, :2]
         z : Tensor[N]
         z[i] = y[i, 0] * y[i, 1] * sum(y[i, j] for j in range(2))
         return z""",
         lambda x: x[:, 0] * x[:, 1] * x[:, :2].sum(1), ops=("slice",)),
    Case("slice_into", "g: N, 2", "Tensor[N, 5]",
         "slice_into(g * g, shape=[N, 5], dim=1, start=1, end=5, step=2)",
         lambda g: torch.zeros(3, 5, dtype=g.dtype).index_add(1, torch.tensor([1, 3]), g * g)),
    Case("expand", "x: N, 1", "Tensor[5, N, 4]",
         "expand(x * x, [5, N, 4])", lambda x: (x * x).expand(5, 3, 4)),
    Case("sum_to", "x: K, N, M", "Tensor[N, 1]", "sum_to(x * x, [N, 1])",
         lambda x: (x * x).sum((0, 2))[:, None]),
    Case("reshape_like", "x: N, M; y: M, N", "Tensor[M, N]", "reshape_like(x * x, y)",
         lambda x, y: (x * x).reshape(4, 3)),
    Case("expand_like", "x: M; y: *2", "Tensor", "expand_like(x * x, y)",
         lambda x, y: (x * x).expand(3, 4)),
    Case("sum_to_like", "x: N, M; y: M", "Tensor[M]", "sum_to_like(x * x, y)",
         lambda x, y: (x * x).sum(0)),
    Case("unreduce_like", "g: N, K; x: N, M, K", "Tensor[N, M, K]",
         "unreduce_like(g * g, x, dims=[1])",
         lambda g, x: (g * g)[:, None, :].expand(3, 4, 5)),
    Case("unreduce_like_all", "g: 1, 1; x: *2", "Tensor",
         "unreduce_like(g * g, x, dims=[0, 1], keepdim=1)",
         lambda g, x: (g * g).expand(3, 4)),
    # selection and constants
    Case("one_hot", "i: int[N, M] < K; x: K", "Tensor[N, M, K]", "one_hot(i, 5) * x * x",
         lambda i, x: F.one_hot(i, 5) * x * x),
    Case("gather", "x: N, M; i: int[N, K] < M", "Tensor[N, K]", "gather(x * x, 1, i)",
         lambda x, i: torch.gather(x * x, 1, i)),
    Case("gather_narrow", "x: N, M; i: int[B, M] < N", "Tensor[B, M]", "gather(x * x, 0, i)",
         lambda x, i: torch.gather(x * x, 0, i)),
    Case("gather_unknown", "x: *2; i: int[N, K] < M", "Tensor[N, K]", "gather(x * x, 1, i)",
         lambda x, i: torch.gather(x * x, 1, i)),
    Case("scatter_add", "g: N, K; i: int[N, K] < M", "Tensor[N, 4]",
         "scatter_add(g * g, i, shape=[N, 4], dim=1)",
         lambda g, i: torch.zeros(3, 4, dtype=g.dtype).scatter_add(1, i, g * g)),
    Case("scatter_add_like", "g: N, K; i: int[N, K] < M; x: N, M", "Tensor[N, M]",
         "scatter_add_like(g * g, i, x, dim=1)",
         lambda g, i, x: torch.zeros(3, 4, dtype=g.dtype).scatter_add(1, i, g * g)),
    Case("zeros", "x: N, M", "Tensor[N, M]", "zeros([N, M]) + x * x", lambda x: x * x),
    Case("ones", "x: N, M", "Tensor[N, M]", "ones([N, 1]) * x * x", lambda x: x * x),
    Case("zeros_like", "x: N, M", "Tensor[N, M]", "zeros_like(x) + x * x", lambda x: x * x),
    Case("ones_like", "x: *2", "Tensor", "ones_like(x) * x * x", lambda x: x * x),
    Case("amax_unknown", "x: *3", "Tensor",
         "amax(x * x, [0, -1]) * amin(x, [-3, 2], True) + amax(x)",
         lambda x: (x * x).amax((0, 2)) * x.amin((0, 2), keepdim=True) + x.amax(),
         ops=("to_rows", "from_rows_like")),
    Case("prod_unknown", "x: *3", "Tensor", "prod(x, [0, -1], True) * prod(x, 1, True) + prod(x)",
         lambda x: x.prod(2, True).prod(0, True) * x.prod(1, True) + x.prod(), ops=("moved",)),
    Case("cumprod_unknown", "x: *3", "Tensor", "cumprod(x, -1) * cumprod(x, 0)",
         lambda x: x.cumprod(2) * x.cumprod(0)),
    Case("amax_or_zero", "x: N, M", "Tensor[N, M]", "x - no_diff(amax_or_zero(x, [1], True))",
         lambda x: x - x.amax(1, keepdim=True).detach(), smooth=False),
    Case("no_diff", "x: N, M", "Tensor[N, M]", "x * no_diff(x)", lambda x: x * x.detach(),
         smooth=False, ops=("mul",)),
]  # fmt: skip
