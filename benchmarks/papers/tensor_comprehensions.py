"""The kernels of "Tensor Comprehensions" (Vasilache et al. 2018), forward and with backward.

The published kernels (transposed and batched matrix products, grouped convolution, look-ups in one
and two tables, layers of a model in production) and those of its repository (group normalisation,
moments, a Kronecker product of three matrices, a layer of WaveNet), at their sizes, in loma
(tensor_comprehensions.loma): as a program is compiled, and tuned for these sizes; against the
libraries through PyTorch, and torch.compile. Published, for Maxwell and Pascal GPUs: up to 4 times
as fast as the libraries of the time on kernels that these lack, forward only.

    python benchmarks/papers/tensor_comprehensions.py --json FILE
    python benchmarks/papers/tensor_comprehensions.py --device cuda --json FILE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from gpu_work.work import Function, Work, part_of
from papers import measured
from papers.measured import Entry, Session
from torch import Tensor

import loma

PROGRAM = Path(__file__).with_suffix(".loma")
ROWS = {"cpu": 1_000_000, "cuda": 10_000_000}  # of the tables; published: 10,000,000
Several = tuple[Tensor, Tensor]


# ------------------------------------------------------------------------------------- in PyTorch


def relu_of_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """x @ w + b, [M, N]."""
    return F.relu(torch.addmm(b, x, w))


def relu_in_place(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(b, x, w).relu_()


def mlp3(x: Tensor, *layers: Tensor) -> Tensor:
    for w, b in zip(layers[::2], layers[1::2], strict=True):
        x = F.relu(F.linear(x, w, b))
    return x


def mlp3_in_place(x: Tensor, *layers: Tensor) -> Tensor:
    for w, b in zip(layers[::2], layers[1::2], strict=True):
        x = F.linear(x, w, b).relu_()
    return x


def group_convolution(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """[N, G, C, H, W] and [G, D, C, P, Q] -> [N, G, D, ...]."""
    y = F.conv2d(x.flatten(1, 2), w.flatten(0, 1), bias.flatten(), groups=len(w))
    return y.view(len(x), *w.shape[:2], *y.shape[2:])


def group_convolution_channels_last(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    images, filters = (
        part.contiguous(memory_format=torch.channels_last)
        for part in (x.flatten(1, 2), w.flatten(0, 1))
    )
    y = F.conv2d(images, filters, bias.flatten(), groups=len(w))
    return y.contiguous().view(len(x), *w.shape[:2], *y.shape[2:])


def bag(table: Tensor, at: Tensor) -> Tensor:
    return F.embedding_bag(at, table, mode="sum")


def embedding(table: Tensor, at: Tensor) -> Tensor:
    return F.embedding(at, table).sum(1)


def rows_summed(table: Tensor, at: Tensor) -> Tensor:
    return table[at].sum(1)


def twice(look_up: Callable[[Tensor, Tensor], Tensor]) -> Any:
    return lambda t1, at1, t2, at2: (look_up(t1, at1), look_up(t2, at2))


def group_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    y = F.group_norm(x.flatten(1, 2), x.shape[1], gamma.flatten(), beta.flatten(), 1e-5)
    return y.view_as(x)


def group_norm_by_moments(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, (2, 3, 4), correction=0, keepdim=True)
    scale = gamma[:, :, None, None] * torch.rsqrt(variance + 1e-5)
    return (x - mean) * scale + beta[:, :, None, None]


def var_mean(x: Tensor) -> Several:
    variance, mean = torch.var_mean(x, 1, correction=0)
    return mean, variance


def mean_of_squares(x: Tensor) -> Several:
    mean = x.mean(1)
    return mean, (x - mean[:, None]).square().mean(1)


def kronecker_einsum(w0: Tensor, w1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("mabc,xa,yb,zc->mxyz", x, w0, w1, w2)


def kronecker_products(w0: Tensor, w1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    """A batched matrix product for each factor."""
    y = w1 @ (x @ w2.T)  # [M, N0, D1, D2]
    return (w0 @ y.flatten(2)).view(len(x), len(w0), *y.shape[2:])


def wavenet(
    x: Tensor, f: Tensor, f_bias: Tensor, g: Tensor, g_bias: Tensor, on: Tensor, on_bias: Tensor,
    skip: Tensor, skip_bias: Tensor, dilation: int,
) -> Several:  # fmt: skip
    past = F.pad(x, (dilation, 0))
    z = torch.tanh(F.conv1d(past, f, f_bias, dilation=dilation)) * torch.sigmoid(
        F.conv1d(past, g, g_bias, dilation=dilation)
    )
    y = x + F.conv1d(z, on[:, :, None], on_bias)
    return y, F.conv1d(z, skip[:, :, None], skip_bias)


def wavenet_joined(
    x: Tensor, f: Tensor, f_bias: Tensor, g: Tensor, g_bias: Tensor, on: Tensor, on_bias: Tensor,
    skip: Tensor, skip_bias: Tensor, dilation: int,
) -> Several:  # fmt: skip
    """The filters and the gates in one convolution, what goes on and what is skipped in one."""
    past = F.pad(x, (dilation, 0))
    both = F.conv1d(past, torch.cat([f, g]), torch.cat([f_bias, g_bias]), dilation=dilation)
    z = torch.tanh(both[:, : len(f)]) * torch.sigmoid(both[:, len(f) :])
    out = torch.cat([on, skip]) @ z + torch.cat([on_bias, skip_bias])[:, None]
    return x + out[:, : len(on)], out[:, len(on) :].contiguous()


# ------------------------------------------------------------------------------------- the table


@cache
def compiled(name: str, tune: float = 0.0) -> Function:
    """A function of the program, compiled alone; where it is tuned, apart from what is not."""
    text = part_of(PROGRAM, name)
    if not tune:
        function: Function = getattr(loma.compile(text), name)
        return function
    tuned: Function = getattr(loma.compile(f"{text}\n# tuned\n", tune=tune), name)
    return tuned


def own(name: str, *rest: int, tune: float = 0.0) -> Callable[[], Function]:
    def make() -> Function:
        function = compiled(name, tune)
        return (lambda *args: function(*args, *rest)) if rest else function

    return make


def scaled(*shapes: tuple[int, ...]) -> Any:
    def inputs(device: str) -> tuple[Tensor, ...]:
        return tuple(
            (torch.randn(shape, device=device) / shape[-1] ** 0.5).requires_grad_()
            for shape in shapes
        )

    return inputs


def tables(batch: int, width: int, length: int, rows: Sequence[int]) -> Any:
    def inputs(device: str) -> tuple[Tensor, ...]:
        made: list[Tensor] = []
        for count in rows:
            made.append(torch.randn(count, width, device=device).requires_grad_())
            made.append(torch.randint(count, (batch, length), device=device))
        return tuple(made)

    return inputs


PRODUCTS = {"matmul": lambda a, b: a @ b.T, "linear": F.linear}
BATCHED = {"bmm": torch.bmm, "einsum": partial(torch.einsum, "bnm,bmk->bnk")}
CONVOLUTIONS = {"conv2d": group_convolution, "channels last": group_convolution_channels_last}
LOOK_UPS = {"embedding_bag": bag, "embedding, sum": embedding, "rows, sum": rows_summed}
# Names of the kernels, and the functions of the program.
KERNELS = {
    "MLP3": "mlp3", "MLP1": "mlp1", "group convolution": "group_convolution", "1LUT": "lut1",
    "2LUT": "lut2", "WaveNet": "wavenet", "group norm": "group_normalization",
    "moments": "moments", "Kronecker": "kronecker", "tbmm": "tbmm", "C3": "c3", "tmm": "tmm",
}  # fmt: skip


def kernel(name: str, size: Sequence[int]) -> Work:
    """The work of a kernel at the sizes that :data:`SIZES` names."""
    function = KERNELS[name]
    rest: tuple[int, ...] = ()
    compiles = True
    inputs: Any
    peers: Any
    match name, size:
        case "tmm", (m, n, k):
            inputs, peers, compiles = scaled((m, k), (n, k)), PRODUCTS, False
        case "C3", (b, x, y):
            inputs, peers, compiles = scaled((b, x), (y, x)), PRODUCTS, False
        case "tbmm", (b, n, m, k):
            inputs, peers = scaled((b, n, m), (b, m, k)), BATCHED
        case "group convolution", (n, g, c, w):
            inputs = scaled((n, g, c, w, w), (g, c, c, 3, 3), (g, c))
            peers = CONVOLUTIONS
        case "1LUT", (b, d, l, rows):
            inputs, peers = tables(b, d, l, [rows]), LOOK_UPS
        case "2LUT", (b, d, l, rows):
            inputs = tables(b, d, l, [rows, rows])
            peers = {form: twice(look_up) for form, look_up in LOOK_UPS.items()}
        case "MLP1", (b, m, n):
            inputs = scaled((b, m), (m, n), (n,))
            peers = {"relu": relu_of_linear, "in place": relu_in_place}
        case "MLP3", (b, n, o, p, q):
            inputs = scaled((b, n), (o, n), (o,), (p, o), (p,), (q, p), (q,))
            peers = {"relu": mlp3, "in place": mlp3_in_place}
        case "group norm", (n, c, g, w):
            inputs = scaled((n, g, c // g, w, w), (g, c // g), (g, c // g))
            peers = {"group_norm": group_norm, "var_mean": group_norm_by_moments}
        case "moments", (n, k):
            inputs, peers = scaled((n, k)), {"var_mean": var_mean, "mean": mean_of_squares}
        case "Kronecker", (m, d, n):
            inputs = scaled((d, n), (d, n), (d, n), (m, n, n, n))
            peers = {"products": kronecker_products, "einsum": kronecker_einsum}
        case "WaveNet", (b, r, d, s, t, dilation):
            shapes = (d, r, 2), (d,), (d, r, 2), (d,), (r, d), (r,), (s, d), (s,)
            inputs, rest = scaled((b, r, t), *shapes), (dilation,)
            peers = {
                "conv1d": partial(wavenet, dilation=dilation),
                "joined": partial(wavenet_joined, dilation=dilation),
            }
        case _:
            raise AssertionError(f"no sizes {size} for {name}")
    text = "x".join(map(str, size))
    return Work(f"{name} {text}", f"{name}, {text}", inputs, peers, own(function, *rest),
                "1 time", compiles=compiles)  # fmt: skip


SMALL: dict[str, tuple[int, ...]] = {
    "tmm": (3, 4, 5), "tbmm": (2, 3, 4, 5), "group convolution": (2, 3, 2, 6), "1LUT": (3, 4, 5, 7),
    "2LUT": (3, 4, 5, 7), "C3": (3, 4, 5), "MLP1": (3, 5, 4), "MLP3": (3, 5, 4, 3, 2),
    "group norm": (2, 6, 3, 4), "moments": (3, 7), "Kronecker": (2, 3, 4),
    "WaveNet": (2, 3, 4, 5, 9, 2),
}  # fmt: skip


def sizes(rows: int) -> dict[str, list[tuple[int, ...]]]:
    """As published; tables have so many rows."""
    return {
        "tmm": [(128, 256, 32), (128, 1024, 1024), (128, 16384, 4096)],
        "tbmm": [(500, 26, 72, 26)],
        "group convolution": [(32, 32, c, w) for c, w in ((4, 56), (8, 28), (16, 14), (32, 7))],
        "1LUT": [(128, 64, 50, rows)],
        "2LUT": [(128, 64, 50, rows)],
        "C3": [(128, 1000, 1024)],
        "MLP1": [(128, 2000, 128)],
        "MLP3": [(128, 128, 64, 32, 2)],
        "group norm": [(4, 512, 32, 12), (32, 512, 32, 48)],
        "moments": [(128, 2304), (1024, 36864)],
        "Kronecker": [(256, 32, 16)],
        "WaveNet": [(1, 32, 32, 256, 4000, dilation) for dilation in (1, 32)],
    }


def entries(session: Session, rows: int, tune: float) -> Iterator[Entry]:
    published = sizes(rows)
    for name, function in KERNELS.items():
        if not session.wants(name):
            continue
        small = kernel(name, SMALL[name])
        for size in [SMALL[name]] if session.settings.quick else published[name]:
            more = {}
            if tune and session.device == "cpu":
                rest = size[-1:] if name == "WaveNet" else ()
                more["loma, tuned"] = own(function, *rest, tune=tune)
            tabled = size[1] * size[3] * (4 if name == "2LUT" else 2) if "LUT" in name else 0
            yield Entry(kernel(name, size), small, 2.0 * 4 * tabled, own=more)


def main() -> None:
    parser = measured.parser(__doc__ or "")
    parser.add_argument(
        "--tune", type=float, metavar="SECONDS", default=0.0,
        help="search so long for a faster form of each kernel, and measure that, too (CPU)",
    )  # fmt: skip
    parser.add_argument(
        "--table-rows", type=measured.SIZE, metavar="N",
        help="of the tables that are looked up in: 1,000,000; on a GPU 10,000,000, as published",
    )  # fmt: skip
    options = parser.parse_args()
    session = measured.begin(options, tuple(KERNELS))
    rows = options.table_rows or ROWS[session.device]
    measured.run(entries(session, rows, options.tune), session)
    measured.finish(session)


if __name__ == "__main__":
    main()
