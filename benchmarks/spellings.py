"""The same layer as different people write it, against each other and against eager PyTorch.

``benchmarks/spellings/NAME.loma`` has the spellings of a layer, one function each (what begins with
``_`` helps them). Float32, inference and forward with backward: milliseconds of eager PyTorch's own
call at its best and of the fastest spelling, then how many times as long the slowest spelling takes
as the fastest, and as eager. Wanted: 1.15 and 1.1 at most.

``--forms`` times nothing: it says which spellings have the same loops (:mod:`one_form`), alone, in
the forward part and in the backward part, and so the same speed on any machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from calls import both, inference, prepare, side_by_side
from forms import EAGER, LOMA, Settings
from harness import settings_of, settings_parser, write_json
from one_form import alike
from torch import Tensor
from torch.optim.adam import adam

import loma
from capsnet_loma import reference
from loma.tools.measure import Timings

FOLDER = Path(__file__).resolve().parent / "spellings"
SPREAD = 1.15  # how many times as long as the fastest spelling the slowest may take,
BEHIND = 1.1  # and as eager PyTorch
QUICK = ("softmax", "glu")

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Layer:
    """``peers``: eager PyTorch's ways to do it. ``shapes``: of the tensors that it is given, which
    ``rest`` follows. ``writes``: so many of them are overwritten instead of returning a result."""

    name: str
    peers: Mapping[str, Call]
    shapes: tuple[tuple[int, ...], ...]
    rest: tuple[float, ...] = ()
    writes: int = 0

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.loma"

    def spellings(self) -> list[str]:
        return re.findall(r"^def ([a-z]\w*)\(", self.file.read_text(encoding="utf-8"), re.MULTILINE)

    def arguments(self) -> list[Tensor]:
        made = [torch.randn(shape) for shape in self.shapes]
        if self.name == "sampling":
            made[1] = 2.2 * torch.rand(self.shapes[1]) - 1.1  # some positions lie outside
        if self.writes:
            made[:3] = made[0], made[1], made[2].square()  # a running average of squares
        return [tensor.requires_grad_(not self.writes) for tensor in made]


# ------------------------------------------------------------------------------ the same in PyTorch


def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """With a dimension of one head, for which PyTorch has a kernel that stores no weights."""
    q, k, v = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).squeeze(1)


def _routing_products(u: Tensor, rounds: int) -> Tensor:
    logits = u.new_zeros(u.shape[:3])
    for _ in range(rounds):
        s = (logits.softmax(1).unsqueeze(2) @ u).squeeze(2)
        q = s.square().sum(-1, keepdim=True)
        v = s * (q.sqrt() / (1.0 + q))
        logits = logits + (u @ v.unsqueeze(3)).squeeze(3)
    return v


def _adam(fused: bool) -> Call:
    """One step of torch.optim's function, in place."""

    def step(
        p: Tensor, m: Tensor, v: Tensor, g: Tensor,
        lr: float, beta1: float, beta2: float, eps: float, t: int,
    ) -> None:  # fmt: skip
        before = [torch.tensor(float(t - 1))]
        adam(
            [p], [g], [m], [v], [], before, fused=fused, foreach=not fused, amsgrad=False,
            beta1=beta1, beta2=beta2, lr=lr, weight_decay=0.0, eps=eps, maximize=False,
        )  # fmt: skip

    return step


def _margin_loss(x: Tensor, t: Tensor) -> Tensor:
    present, absent = F.relu(0.9 - x).square(), F.relu(x - 0.1).square()
    return (t * present + 0.5 * (1.0 - t) * absent).sum() / x.shape[0]


def _gated(x: Tensor, g: Tensor) -> Tensor:
    a = torch.sigmoid(g)
    added = (1.0 - a) * x
    state, states = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = torch.addcmul(added[:, t], a[:, t], state)
        states.append(state)
    return torch.stack(states, 1)


PIXELS = (8, 64, 56, 56)
LAYERS = (
    Layer("softmax", {"softmax": lambda x: F.softmax(x, 1)}, ((2048, 512),)),
    Layer("glu", {"glu": lambda x: F.glu(x, 1)}, ((2048, 1024),)),
    Layer("log_sum_exp", {"logsumexp": lambda x: torch.logsumexp(x, 1)}, ((2048, 512),)),
    Layer("layer_norm", {
        "layer_norm": lambda x, w, b: F.layer_norm(x, w.shape, w, b),
    }, ((2048, 768), (768,), (768,))),
    Layer("rms_norm", {
        "rms_norm": lambda x, w: F.rms_norm(x, w.shape, w, 1e-6),
    }, ((2048, 768), (768,))),
    Layer("group_norm", {"group_norm": lambda x, w, b: F.group_norm(x, 8, w, b)},
          (PIXELS, (64,), (64,))),
    Layer("batch_norm", {
        "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    }, (PIXELS, (64,), (64,))),
    Layer("linear", {
        "linear": lambda x, w, b: torch.tanh(F.linear(x, w, b)),
        "in place": lambda x, w, b: F.linear(x, w, b).tanh_(),
    }, ((1024, 512), (512, 512), (512,))),
    Layer("gru", {"gru_cell": torch.gru_cell},
          ((256, 128), (256, 256), (768, 128), (768, 256), (768,), (768,))),
    Layer("convolution", {
        "conv2d": lambda x, k, b: F.relu(F.conv2d(x, k, b, padding=1)),
        "in place": lambda x, k, b: F.conv2d(x, k, b, padding=1).relu_(),
    }, ((8, 32, 56, 56), (32, 32, 3, 3), (32,))),
    Layer("depthwise", {
        "conv2d": lambda x, k: F.conv2d(x, k.unsqueeze(1), padding=1, groups=k.shape[0]),
    }, (PIXELS, (64, 3, 3))),
    Layer("grouped", {"conv2d": lambda x, k: F.conv2d(x, k, padding=1, groups=4)},
          (PIXELS, (64, 16, 3, 3))),
    Layer("attention", {
        "attention": F.scaled_dot_product_attention, "one head": _attention,
    }, 3 * ((16, 256, 64),)),
    Layer("causal_attention", {
        "attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "one head": lambda q, k, v: _attention(q, k, v, causal=True),
    }, 3 * ((16, 256, 64),)),
    Layer("running_sums", {"cumsum": lambda x: x.cumsum(1)}, ((512, 512),)),
    Layer("causal_products", {
        "cumsum": lambda a, k, v: a.unsqueeze(2) * (k.unsqueeze(2) * v).cumsum(1),
        "product": lambda a, k, v: (a.unsqueeze(2) * k.unsqueeze(1)).tril() @ v,
    }, ((16, 256), (16, 256), (16, 256, 64))),
    Layer("distances", {
        "cdist": torch.cdist,
        "cdist, no product": lambda a, b: torch.cdist(
            a, b, compute_mode="donot_use_mm_for_euclid_dist"
        ),
    }, ((1024, 32), (1024, 32))),
    Layer("sampling", {
        "grid_sample": lambda x, g: F.grid_sample(x, g, align_corners=True),
    }, ((8, 16, 64, 64), (8, 64, 64, 2))),
    Layer("routing", {
        "einsum": lambda u, rounds: reference.routing(u, rounds, 0),
        "products": _routing_products,
    }, ((16, 10, 1152, 16),), rest=(3,)),
    Layer("huber", {
        "huber_loss": F.huber_loss, "smooth_l1_loss": F.smooth_l1_loss,
    }, 2 * ((1024, 1024),)),
    Layer("margin_loss", {"relu": _margin_loss}, 2 * ((16384, 10),)),
    Layer("gated", {"addcmul": _gated}, 2 * ((16, 128, 256),)),
    Layer("moving_average", {
        "avg_pool1d": lambda x: F.avg_pool1d(x, 5, 1, 2),
        "one channel": lambda x: F.avg_pool1d(x.unsqueeze(1), 5, 1, 2).squeeze(1),
    }, ((512, 2048),)),
    Layer("max_pool", {"max_pool2d": lambda x: F.max_pool2d(x, 2)}, (PIXELS,)),
    Layer("adam", {"fused": _adam(fused=True), "foreach": _adam(fused=False)},
          4 * ((1 << 20,),), rest=(1e-3, 0.9, 0.999, 1e-8, 7), writes=3),
)  # fmt: skip


# -------------------------------------------------------------------------------- what must agree


def results(call: Call, layer: Layer, args: Sequence[Tensor]) -> list[Tensor]:
    """The value and the gradients, or what was written."""
    if layer.writes:
        mine = [arg.clone() for arg in args]
        call(*mine, *layer.rest)
        return mine[: layer.writes]
    value = call(*args, *layer.rest)
    weight = torch.cos(torch.arange(value.numel()).to(value).view_as(value))
    return [value.detach(), *torch.autograd.grad(value, args, weight)]


def check(layer: Layer, candidates: Mapping[str, Call], args: Sequence[Tensor]) -> None:
    """SystemExit where one of them is not the first peer in float64."""
    doubles = [arg.detach().double().requires_grad_(arg.requires_grad) for arg in args]
    peer = next(iter(layer.peers))
    wanted = results(layer.peers[peer], layer, doubles)
    for name, call in candidates.items():
        for k, (got, right) in enumerate(zip(results(call, layer, args), wanted, strict=True)):
            # As a whole: next to a kink of relu, rounding decides on single gradients, each of
            # which is about 1e-3 of all of a convolution.
            off = float((got.double() - right).norm() / right.norm())
            if not off <= 5e-3:
                raise SystemExit(f"{layer.name}: {name} is not {peer}: result {k} is off by {off}")


# ----------------------------------------------------------------------------------- what is timed


def record(layer: Layer, what: str, times: Timings) -> dict[str, Any]:
    """A row of results. Its ratio against eager is the slowest spelling's, as a speed."""
    spellings = sorted(layer.spellings(), key=times.median)
    fastest, slowest = spellings[0], spellings[-1]
    peer = min(layer.peers, key=lambda name: times.median(f"eager {name}"))
    return {
        "key": f"{layer.name} {what}",
        "title": f"{layer.name.replace('_', ' ')}: {what}",
        "groups": {
            EAGER: {"seconds": times.median(f"eager {peer}"), "form": peer},
            LOMA: {"seconds": times.median(slowest), "form": slowest},
        },
        "fastest": {"seconds": times.median(fastest), "form": fastest},
        "spellings": {name: times.median(name) for name in spellings},
        "spread": times.ratio(slowest, fastest),
        "ratios": {EAGER: times.ratio(f"eager {peer}", slowest)},
        "goals": {EAGER: 1.0 / BEHIND},
    }


def line(row: Mapping[str, Any]) -> str:
    spread, behind = row["spread"], 1.0 / row["ratios"][EAGER]
    missed = "*" if spread > SPREAD or behind > BEHIND else " "
    eager, fastest = row["groups"][EAGER]["seconds"], row["fastest"]["seconds"]
    return (
        f"{row['title']:38s} {1e3 * eager:9.3f} {1e3 * fastest:9.3f} {spread:8.2f} {behind:8.2f} "
        f"{missed} {row['groups'][LOMA]['form']} (fastest: {row['fastest']['form']})"
    )


def print_forms(layer: Layer) -> None:
    names = layer.spellings()
    for half, groups in alike(layer.file.read_text(encoding="utf-8"), names).items():
        title = f"{layer.name.replace('_', ' ')}{half.replace('__', ': ')}"
        listed = " | ".join(", ".join(group) for group in groups)
        print(f"{title:30s} {len(groups)} of {len(names)}: {listed}", flush=True)


def measured(layer: Layer, settings: Settings) -> list[dict[str, Any]]:
    module = loma.compile(layer.file)
    mine = {name: getattr(module, name) for name in layer.spellings()}
    peers = {f"eager {name}": peer for name, peer in layer.peers.items()}
    args = layer.arguments()
    check(layer, {**mine, **peers}, args)
    rows = []
    for what, make in (("inference", inference), ("forward + backward", both)):
        if what != "inference" and layer.writes:
            continue
        calls = {}
        for name, call in {**peers, **mine}.items():
            own = [arg.clone() for arg in args] if layer.writes else args
            calls[name] = make(call, [*own, *layer.rest])
        rows.append(record(layer, what, side_by_side(calls, mine, settings)))
    return rows


def main() -> None:
    parser = settings_parser(__doc__ or "")
    parser.add_argument("names", nargs="*", help="layers to run; default: all of them")
    parser.add_argument("--every", action="store_true", help="print each spelling's milliseconds")
    parser.add_argument("--forms", action="store_true", help="which spellings have the same loops")
    options = parser.parse_args()
    settings = settings_of(options)
    prepare(options.threads)
    known = {layer.name: layer for layer in LAYERS}
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no layer {', '.join(unknown)}; there are {', '.join(known)}")
    if options.forms:
        for name in options.names or known:
            print_forms(known[name])
        return
    rows: list[dict[str, Any]] = []
    print(f"{'layer':38s} {'eager ms':>9s} {'fastest':>9s} {'slowest/':>8s} {'/eager':>8s}")
    for name in options.names or (QUICK if settings.quick else known):
        found = measured(known[name], settings)
        for row in found:
            print(line(row), flush=True)
            if options.every:
                each = (f"{key} {1e3 * value:.3f}" for key, value in row["spellings"].items())
                print(f"    {', '.join(each)}", flush=True)
        rows += found
    if options.json:
        write_json(options.json, "spellings", settings, rows)


if __name__ == "__main__":
    main()
