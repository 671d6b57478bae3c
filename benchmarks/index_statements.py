"""Single index statements at sizes of some megabytes, against eager PyTorch and torch.compile.

Each statement stands beside the way that it is usually written in PyTorch. Float32, forward alone
and forward with backward; the numbers are loma's speed as a ratio to each peer's (above 1: loma is
faster), medians of interleaved runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from calls import both, inference, prepare, side_by_side
from forms import COMPILE, EAGER, LOMA
from harness import settings_of, settings_parser, write_json
from torch import Tensor

import loma
from loma.tools.measure import Timings


@dataclass(frozen=True, slots=True)
class Statement:
    """``text``: the function after its name; ``shapes`` of its arguments, "index": positions."""

    name: str
    text: str
    reference: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    indices: int = 0  # the last argument holds positions below this


def _body(signature: str, result: str, *lines: str) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"({signature}) -> Tensor[{result}]:\n    y : Tensor[{result}]\n{body}    return y\n"


def _tap_sum(x: Tensor, k: Tensor) -> Tensor:
    return F.conv1d(x, k[:, None], groups=x.shape[1])


def _per_pixel(x: Tensor, k: Tensor) -> Tensor:
    rows, columns = k.shape[0], k.shape[1]
    windows: Tensor = F.unfold(x, (rows, columns), padding=(rows // 2, columns // 2))
    windows = windows.unflatten(1, (x.shape[1], rows, columns)).unflatten(4, x.shape[2:])
    return (windows * k.permute(2, 0, 1, 3, 4)[:, None]).sum((2, 3))


def _of_the_index(a: Tensor) -> Tensor:
    rows, columns = torch.arange(a.shape[0])[:, None], torch.arange(a.shape[1])
    return a * (rows // 2 + columns % 3)


NEWTON_ROOT = """
def newton_root(v : In[float]) -> float:
    r : float = 1.0
    for t in range(4):
        r = 0.5 * (r + (1.0 + v * v) / r)
    return r

"""


def _newton_root(a: Tensor) -> Tensor:
    r = torch.ones_like(a)
    for _ in range(4):
        r = 0.5 * (r + (1.0 + a * a) / r)
    return r


STATEMENTS = (
    Statement("multiply_add", _body(
        "a : In[Tensor[N, M]], b : In[Tensor[N, M]]", "N, M", "y[i, j] = a[i, j] * b[i, j] + 1.0",
    ), lambda a, b: a * b + 1.0, ((1024, 1024), (1024, 1024))),
    Statement("exponential", _body(
        "a : In[Tensor[N, M]], m : In[Tensor[N]]", "N, M", "y[i, j] = exp(a[i, j] - m[i])",
    ), lambda a, m: torch.exp(a - m[:, None]), ((1024, 1024), (1024,))),
    Statement("hyperbolic", _body(
        "a : In[Tensor[N]], b : In[Tensor[N]]", "N", "y[i] = tanh(a[i]) * log(b[i] * b[i] + 1.0)",
    ), lambda a, b: torch.tanh(a) * torch.log(b * b + 1.0), ((1 << 20,), (1 << 20,))),
    Statement("where", _body(
        "a : In[Tensor[N]]", "N", "y[i] = a[i] * a[i] if a[i] > 0.0 else 0.1 * a[i]",
    ), lambda a: torch.where(a > 0, a * a, 0.1 * a), ((1 << 20,),)),
    Statement("row_sums", _body(
        "a : In[Tensor[N, M]]", "N", "y[i] += a[i, j] * a[i, j]",
    ), lambda a: (a * a).sum(1), ((2048, 1024),)),
    Statement("short_row_sums", _body(
        "a : In[Tensor[N, M]], b : In[Tensor[N, M]]", "N", "y[i] += a[i, j] * b[i, j]",
    ), lambda a, b: (a * b).sum(1), ((65536, 16), (65536, 16))),
    Statement("column_sums", _body(
        "a : In[Tensor[N, M]]", "M", "y[j] += a[i, j] * a[i, j]",
    ), lambda a: (a * a).sum(0), ((2048, 1024),)),
    Statement("row_maxima", _body(
        "a : In[Tensor[N, M]]", "N", "y[i] = max(a[i, j] for j in M)",
    ), lambda a: a.amax(1), ((2048, 1024),)),
    Statement("column_maxima", _body(
        "a : In[Tensor[N, M]]", "M", "y[j] = max(a[i, j] for i in N)",
    ), lambda a: a.amax(0), ((2048, 1024),)),
    Statement("transposed", _body(
        "a : In[Tensor[N, M]]", "M, N", "y[j, i] = a[i, j] * 2.0",
    ), lambda a: (a.t() * 2.0).contiguous(), ((1024, 1024),)),
    Statement("matrix_vector", _body(
        "a : In[Tensor[N, M]], b : In[Tensor[M]]", "N", "y[i] += a[i, j] * b[j]",
    ), lambda a, b: a @ b, ((2048, 1024), (1024,))),
    Statement("matrix_product", _body(
        "a : In[Tensor[N, K]], b : In[Tensor[K, M]]", "N, M", "y[i, j] += a[i, k] * b[k, j]",
    ), torch.matmul, ((512, 512), (512, 512))),
    Statement("predictions", _body(
        "w : In[Tensor[I, R, O, K]], x : In[Tensor[B, R, K]]", "B, I, R, O",
        "y[b, i, r, o] += w[i, r, o, k] * x[b, r, k]",
    ), lambda w, x: torch.einsum("irok,brk->biro", w, x), ((10, 1152, 16, 8), (20, 1152, 8))),
    Statement("depthwise", _body(
        "x : In[Tensor[B, C, H]], k : In[Tensor[C, P]]", "B, C, H - P + 1",
        "y[b, c, h] += x[b, c, h + p] * k[c, p]",
    ), _tap_sum, ((16, 64, 1024), (64, 5))),
    Statement("prefix_pairs", _body(
        "x : In[Tensor[N, M]]", "N, M", "y[i, j] = x[i, j] - zero_pad(x[i, j - 1])",
    ), lambda x: x - F.pad(x, (1, 0))[:, :-1], ((1024, 1024),)),
    Statement("embedding", _body(
        "w : In[Tensor[V, D]], t : In[IntTensor[N]]", "N, D", "y[n, d] = w[t[n], d]",
    ), lambda w, t: F.embedding(t, w), ((10000, 128), (8192,)), indices=10000),
    Statement("three_factors", _body(
        "a : In[Tensor[N, K]], b : In[Tensor[K, L]], c : In[Tensor[L, M]]", "N, M",
        "y[i, j] += a[i, k] * b[k, l] * c[l, j]",
    ), lambda a, b, c: a @ b @ c, ((512, 256), (256, 256), (256, 512))),
    Statement("outer_product", _body(
        "a : In[Tensor[N]], b : In[Tensor[M]]", "N, M", "y[i, j] = a[i] * b[j]",
    ), torch.outer, ((1024,), (1024,))),
    Statement("kronecker", _body(
        "a : In[Tensor[N, M]], b : In[Tensor[P, Q]]", "N * P, M * Q",
        "y[i*P + p, j*Q + q] = a[i, j] * b[p, q]",
    ), torch.kron, ((64, 64), (16, 16))),
    Statement("convolution", _body(
        "x : In[Tensor[B, C, H, W]], k : In[Tensor[O, C, P, Q]]",
        "B, O, (H - P) // 2 + 1, (W - Q) // 2 + 1",
        "y[b, o, h, w] += x[b, c, 2*h + p, 2*w + q] * k[o, c, p, q]",
    ), lambda x, k: F.conv2d(x, k, stride=2), ((8, 32, 28, 28), (64, 32, 5, 5))),
    Statement("dilated", _body(
        "x : In[Tensor[B, C, H]], k : In[Tensor[O, C, P]]", "B, O, H - 3 * (P - 1)",
        "y[b, o, h] += x[b, c, h + 3*p] * k[o, c, p]",
    ), lambda x, k: F.conv1d(x, k, dilation=3), ((16, 32, 512), (32, 32, 5))),
    Statement("upsampling", _body(
        "x : In[Tensor[B, N]], k : In[Tensor[P]]", "B, 2 * N + P - 2",
        "y[b, 2*i + p] += x[b, i] * k[p]",
    ), lambda x, k: F.conv_transpose1d(x[:, None], k[None, None], stride=2)[:, 0],
        ((64, 8192), (4,))),
    Statement("per_pixel", _body(
        "x : In[Tensor[B, C, H, W]], k : In[Tensor[P, Q, B, H, W]]", "B, C, H, W",
        "y[b, c, h, w] += zero_pad(x[b, c, h + p - P // 2, w + q - Q // 2]) * k[p, q, b, h, w]",
    ), _per_pixel, ((2, 3, 112, 112), (5, 5, 2, 112, 112))),
    Statement("masked_sums", _body(
        "a : In[Tensor[N, M]]", "M", "y[j] += a[i, j] * a[i, j] if i < N // 2 else 0.0",
    ), lambda a: (a[: a.shape[0] // 2] ** 2).sum(0), ((2048, 1024),)),
    Statement("triangular", _body(
        "a : In[Tensor[N, N]]", "N", "y[i] += a[i, j] * a[i, j] if j <= i else 0.0",
    ), lambda a: torch.tril(a * a).sum(1), ((1024, 1024),)),
    Statement("products", _body(
        "a : In[Tensor[N, M]]", "N", "y[i] = prod(a[i, j] for j in M)",
    ), lambda a: a.prod(1), ((65536, 16),)),
    Statement("sums_of_planes", _body(
        "a : In[Tensor[N, D, W]]", "N", "y[n] = sum(a[n, d, w] ** 2 for d in D for w in W)",
    ), lambda a: (a**2).sum((1, 2)), ((256, 64, 128),)),
    Statement("log_sum_exp", _body(
        "a : In[Tensor[N, M]]", "N",
        "y[i] = max(a[i, j] for j in M) + log(sum(exp(a[i, k] - max(a[i, j] for j in M))"
        " for k in M))",
    ), lambda a: torch.logsumexp(a, 1), ((2048, 512),)),
    Statement("scatter", _body(
        "a : In[Tensor[N, D]], t : In[IntTensor[N]]", "10000, D", "y[t[n], d] += a[n, d]",
    ), lambda a, t: a.new_zeros(10000, a.shape[1]).index_add(0, t, a),
        ((8192, 128), (8192,)), indices=10000),
    Statement("sums_of_windows", _body(
        "a : In[Tensor[B, N]]", "B, N // 4", "y[b, i // 4] += a[b, i] ** 2",
    ), lambda a: (a**2).unflatten(1, (-1, 4)).sum(2), ((64, 16384),)),
    Statement("flipped", _body(
        "a : In[Tensor[B, N]]", "B, N", "y[b, i] = a[b, N - 1 - i] * zero_pad(a[b, i + 1])",
    ), lambda a: a.flip(1) * F.pad(a[:, 1:], (0, 1)), ((64, 16384),)),
    Statement("diagonal", _body(
        "a : In[Tensor[N]], s : In[Tensor[N, N]]", "N", "y[i] = s[i, i] * a[i]",
    ), lambda a, s: s.diagonal() * a, ((1024,), (1024, 1024))),
    Statement("of_the_index", _body(
        "a : In[Tensor[N, M]]", "N, M", "y[i, j] = a[i, j] * (i // 2 + j % 3)",
    ), _of_the_index, ((1024, 1024),)),
    Statement("functions", _body(
        "a : In[Tensor[N]]", "N", "y[i] = sin(a[i]) * cos(a[i]) + a[i] ** 3",
    ), lambda a: torch.sin(a) * torch.cos(a) + a**3, ((1 << 20,),)),
    Statement("scalar_loop", (
        "(a : In[Tensor[N]]) -> Tensor[N]:\n    y : Tensor[N]\n    y[i] = newton_root(a[i])\n"
        "    return y\n"
    ), _newton_root, ((1 << 20,),)),
)  # fmt: skip


def arguments(statement: Statement) -> list[Tensor]:
    args = [torch.randn(shape, requires_grad=True) for shape in statement.shapes]
    if statement.indices:
        args[-1] = torch.randint(statement.indices, statement.shapes[-1])
    return args


def record(name: str, what: str, times: Timings) -> dict[str, Any]:
    peers = [group for group in times.samples if group != LOMA]
    return {
        "key": f"{name} {what}",
        "title": f"{name.replace('_', ' ')}: {what}",
        "groups": {group: {"seconds": times.median(group)} for group in times.samples},
        "ratios": {group: times.ratio(group, LOMA) for group in peers},
        "goals": dict.fromkeys(peers, 1.0),
    }


def main() -> None:
    parser = settings_parser(__doc__ or "")
    parser.add_argument("names", nargs="*", help="statements to run; default: all of them")
    parser.add_argument("--eager-only", action="store_true", help="without torch.compile")
    options = parser.parse_args()
    settings = settings_of(options)
    prepare(options.threads)
    known = {statement.name: statement for statement in STATEMENTS}
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no statement {', '.join(unknown)}; there are {', '.join(known)}")
    every = STATEMENTS[:2] if options.quick else STATEMENTS
    chosen = [known[name] for name in options.names] or list(every)
    rows: list[dict[str, Any]] = []
    module = loma.compile(NEWTON_ROOT + "\n".join(f"def {s.name}{s.text}" for s in chosen))
    print(f"{'':16s} {'forward':^32s} {'forward + backward':^32s}")
    print(f"{'statement':16s}" + 2 * f" {'loma ms':>9s} {'eager':>10s} {'compile':>10s} ")
    for statement in chosen:
        args, function = arguments(statement), getattr(module, statement.name)
        expected = statement.reference(*args)
        size = float(expected.detach().abs().max())  # sums of many terms may end near 0
        torch.testing.assert_close(function(*args), expected, rtol=1e-3, atol=1e-5 * size)
        peers = {LOMA: function, EAGER: statement.reference}
        if not options.eager_only:
            torch.compiler.reset()
            backend = "eager" if options.quick else "inductor"
            peers[COMPILE] = torch.compile(statement.reference, backend=backend)
        line = f"{statement.name:16s}"
        for what, make in (("forward", inference), ("forward + backward", both)):
            steps = {name: make(peer, args) for name, peer in peers.items()}
            times = side_by_side(steps, [LOMA], settings)
            rows.append(record(statement.name, what, times))
            line += f" {1e3 * times.median(LOMA):9.3f}"
            for peer in (EAGER, COMPILE):
                found = f"{times.ratio(peer, LOMA):.2f}x" if peer in peers else "-"
                line += f" {found:>10s}"
            line += " "
        print(line, flush=True)
    if options.json:
        write_json(options.json, "index_statements", settings, rows)


if __name__ == "__main__":
    main()
