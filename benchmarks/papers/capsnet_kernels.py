"""The kernels of "Capsule networks with Tensor Comprehensions" (P. Nair), and its whole network.

Seven kernels of CapsNet on MNIST (CONV1, PCAPS, U, S, B, SQUASH, TSQUASH), forward and backward,
which capsnet_kernels.loma has in loma, against PyTorch; then inference and a training step with
Adam of the whole network, batch 100, against Gram.AI's implementation, the published steps that
make it faster (papers/gram.py), and PyTorch at its best. Published (GTX 1080 Ti, PyTorch of its
time, batch 100): kernels 0.5 to 6.7 times as fast as PyTorch forward, 0.12 to 0.47 times with
backward; the network 2.2 times as fast as Gram.AI's in training, 3.8 times in inference.

    python benchmarks/papers/capsnet_kernels.py --json FILE
    python benchmarks/papers/capsnet_kernels.py --device cuda --json FILE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from capsnet import TINY, channels_last
from gpu_work.rows import (
    AUTOTUNE, COMPILE, EAGER, GRAPH, LATE, LOMA, Row, errors_of, is_late,
)  # fmt: skip
from gpu_work.steps import Make, Steps, in_own_graph, network_steps, ready_steps
from gpu_work.work import Function, Work, part_of
from papers import measured
from papers.gram import STAGES, Gram
from papers.measured import Entry, Session
from torch import Tensor

import loma
from capsnet_loma import network, reference
from capsnet_loma.config import CapsNetConfig

PROGRAM = Path(__file__).with_suffix(".loma")
KERNELS = ("CONV1", "PCAPS", "U", "S", "B", "SQUASH", "TSQUASH")
NETWORK = ("inference", "training")
FULL = CapsNetConfig(routing_softmax="inputs")
TINY_INPUTS = replace(TINY, routing_softmax="inputs")


# ---------------------------------------------------------------------------- kernels in PyTorch


def conv1(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.conv2d(x, w, bias))


def conv1_in_place(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, w, bias).relu_()


def conv1_channels_last(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(channels_last(x), channels_last(w), bias).relu_().contiguous()


def pcaps(x: Tensor, w: Tensor, bias: Tensor, k: int = 8) -> Tensor:
    return F.conv2d(x, w, bias, stride=2).reshape(len(x), k, -1)


def pcaps_channels_last(x: Tensor, w: Tensor, bias: Tensor, k: int = 8) -> Tensor:
    places = F.conv2d(channels_last(x), channels_last(w), bias, stride=2)
    return places.contiguous().view(len(x), k, -1)


def u_einsum(w: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("crok,brk->bcro", w, x).contiguous()


def u_product(w: Tensor, x: Tensor) -> Tensor:
    """A matrix product for each input capsule."""
    flat = w.permute(1, 3, 0, 2).flatten(2)  # [R, K, C * O]
    made = (x.transpose(0, 1) @ flat).view(w.shape[1], len(x), w.shape[0], w.shape[2])
    return made.permute(1, 2, 0, 3).contiguous()


def u_broadcast(w: Tensor, x: Tensor) -> Tensor:
    return (w * x[:, None, :, None]).sum(-1)


def s_product(logits: Tensor, u_hat: Tensor) -> Tensor:
    return (logits.softmax(2).unsqueeze(2) @ u_hat).squeeze(2)


def s_einsum(logits: Tensor, u_hat: Tensor) -> Tensor:
    return torch.einsum("bcr,bcro->bco", logits.softmax(2), u_hat)


def s_broadcast(logits: Tensor, u_hat: Tensor) -> Tensor:
    return (logits.softmax(2).unsqueeze(3) * u_hat).sum(2)


def b_product(logits: Tensor, u_hat: Tensor, v: Tensor) -> Tensor:
    return logits + (u_hat @ v.unsqueeze(3)).squeeze(3)


def b_einsum(logits: Tensor, u_hat: Tensor, v: Tensor) -> Tensor:
    return logits + torch.einsum("bcro,bco->bcr", u_hat, v)


def b_broadcast(logits: Tensor, u_hat: Tensor, v: Tensor) -> Tensor:
    return logits + (u_hat * v.unsqueeze(2)).sum(3)


def squash_by_squares(x: Tensor) -> Tensor:
    square = x.square().sum(-1, keepdim=True)
    return x * (square.sqrt() / (1.0 + square))


def tsquash(x: Tensor) -> Tensor:
    return reference.squash(x.transpose(1, 2)).contiguous()


def tsquash_moved_first(x: Tensor) -> Tensor:
    return reference.squash(x.transpose(1, 2).contiguous())


def tsquash_moved_last(x: Tensor) -> Tensor:
    square = x.square().sum(1, keepdim=True)
    return (x * (square.sqrt() / (1.0 + square))).transpose(1, 2).contiguous()


def own(name: str, *rest: int) -> Callable[[], Function]:
    """A function of the program, compiled alone, with its last arguments."""

    def make() -> Function:
        if name not in _made:
            _made[name] = getattr(loma.compile(part_of(PROGRAM, name)), name)
        function = _made[name]
        return (lambda *args: function(*args, *rest)) if rest else function

    return make


_made: dict[str, Function] = {}


def works(batch: int, is_small: bool = False) -> dict[str, Work]:
    """The kernels by their published names, at the network's sizes or very small ones."""
    c, r, o, k = (3, 10, 4, 2) if is_small else (10, 1152, 16, 8)
    first = (2, 3, 9) if is_small else (256, 9, 28)  # filters, their size, the images' size
    filters, inner, p, size = (2 * k, 3, 3, 8) if is_small else (256, 256, 9, 20)

    def normal(*shapes: tuple[int, ...]) -> Callable[[str], tuple[Tensor, ...]]:
        """Numbers of the size that a network's have."""
        return lambda device: tuple(
            (0.3 * torch.randn(shape, device=device)).requires_grad_() for shape in shapes
        )

    def work(name: str, inputs: Any, peers: dict[str, Function], *rest: int) -> Work:
        what = "small" if is_small else f"batch {batch}"
        make = own(name.lower(), *rest)
        return Work(f"{name} {batch}", f"{name}, {what}", inputs, peers, make, "1 time")

    logits, u_hat, v = (batch, c, r), (batch, c, r, o), (batch, c, o)
    made = (
        work("CONV1", normal((batch, 1, first[2], first[2]), (first[0], 1, first[1], first[1]),
                             (first[0],)),
             {"relu": conv1, "in place": conv1_in_place, "channels last": conv1_channels_last}),
        work("PCAPS", normal((batch, inner, size, size), (filters, inner, p, p), (filters,)),
             {"conv2d": partial(pcaps, k=k), "channels last": partial(pcaps_channels_last, k=k)},
             k, 2),
        work("U", normal((c, r, o, k), (batch, r, k)),
             {"einsum": u_einsum, "product": u_product, "broadcast": u_broadcast}),
        work("S", normal(logits, u_hat),
             {"product": s_product, "einsum": s_einsum, "broadcast": s_broadcast}),
        work("B", normal(logits, u_hat, v),
             {"product": b_product, "einsum": b_einsum, "broadcast": b_broadcast}),
        work("SQUASH", normal(v), {"norm": reference.squash, "squares": squash_by_squares}),
        work("TSQUASH", normal((batch, k, r)),
             {"norm": tsquash, "moved first": tsquash_moved_first,
              "moved last": tsquash_moved_last}),
    )  # fmt: skip
    return dict(zip(KERNELS, made, strict=True))


def entries(session: Session, batches: list[int]) -> Iterator[Entry]:
    small = works(2, is_small=True)
    for batch in batches:
        full = small if session.settings.quick else works(batch)
        for name in KERNELS:
            if session.wants(name):
                yield Entry(full[name], small[name], needs=5.0 * batch * 10 * 1152 * 16 * 8)


# ------------------------------------------------------------------------------------ the network


def net_of(name: str, config: CapsNetConfig) -> Any:
    """A network by its name: a published stage, "reference" or loma's; the same parameters."""
    torch.manual_seed(0)
    if name in STAGES:
        return Gram(reference.CapsNet(config), STAGES.index(name))
    return (network if name == LOMA else reference).CapsNet(config)


def batch_of(config: CapsNetConfig, batch: int, device: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    shape = (batch, config.image_channels, config.image_size, config.image_size)
    classes = torch.arange(batch) % config.classes
    return torch.rand(shape).to(device), F.one_hot(classes, config.classes).float().to(device)


def check_networks(device: str) -> None:
    """ArithmeticError where a network's loss or a gradient is not the reference's in float64."""
    images, targets = batch_of(TINY_INPUTS, 3, device)
    images, targets = images.double(), targets.double()
    found: dict[str, Mapping[str, Tensor]] = {}
    for name in (*STAGES, "reference", LOMA):
        net = net_of(name, TINY_INPUTS).to(device).double()
        twin = network if name == LOMA else reference
        loss = twin.capsule_loss(images, targets, *net(images, targets))
        loss.backward()
        gradients = (
            net.by_name(gradients=True)
            if isinstance(net, Gram)
            else {key: p.grad for key, p in net.named_parameters()}
        )
        found[name] = {"loss": loss.detach(), **gradients}
    right = found["reference"]
    for name, results in found.items():
        assert set(results) == set(right)
        error = errors_of([results[key] for key in right], list(right.values()))
        if not error <= 1e-10:
            raise ArithmeticError(f"{name}: a gradient differs from the reference's by {error:.1e}")


def step_of(
    name: str, trains: bool, config: CapsNetConfig, batch: int, device: str, wrap: Any,
    is_graph: bool,
) -> Steps:  # fmt: skip
    """Inference, or training steps with Adam, of a network by its name."""
    net = net_of(name, config).to(device)
    twin = network if name == LOMA else reference
    return network_steps(net, twin, *batch_of(config, batch, device), wrap, is_graph, trains)


def measure_network(what: str, session: Session) -> Row:
    settings = session.settings
    config, batch = (TINY_INPUTS, 2) if settings.quick else (FULL, 100)
    row = Row(f"network {what}", f"the whole network, batch {batch}: {what}",
              "6 times Gram.AI's, on a GPU 10 times")  # fmt: skip

    def make(name: str, wrap: Any = lambda function: function, is_graph: bool = False) -> Make:
        return partial(step_of, name, what == "training", config, batch, session.device, wrap,
                       is_graph)  # fmt: skip

    makes = {f"{EAGER} {name}": make(name) for name in (*STAGES, "reference")}
    makes[LOMA] = make(LOMA)
    if session.device == "cuda":
        for name in (STAGES[0], "reference"):
            makes[f"{EAGER} {name}{GRAPH}"] = make(name, is_graph=True)
        makes[LOMA + GRAPH] = make(LOMA, is_graph=True)
    if settings.compile:
        for name in (STAGES[0], "reference"):
            makes[f"{COMPILE} {name}"] = make(name, torch.compile)
        if session.device == "cuda":
            makes[AUTOTUNE] = make("reference", in_own_graph)
    if is_late(settings):
        late = [name for name in makes if name.startswith((COMPILE, AUTOTUNE))]
        row.notes |= dict.fromkeys(late, LATE)
        makes = {name: one for name, one in makes.items() if name not in late}
    forms = ready_steps(row, makes, 3e-3, settings, session.say)
    row.times = measured.times_of(forms, settings)
    row.memory = measured.memory_of(forms, session.device)
    return row


def main() -> None:
    parser = measured.parser(__doc__ or "")
    parser.add_argument(
        "--batches", nargs="+", type=measured.SIZE, metavar="N", default=[100, 1],
        help="images of the kernels (default 100 1; published: 100; the table goes to 256)",
    )  # fmt: skip
    options = parser.parse_args()
    session = measured.begin(options, (*KERNELS, *NETWORK))
    check_networks(session.device)
    session.say("losses and gradients of all networks agree in float64")
    for what in NETWORK:
        if session.wants(what):
            session.add(measure_network(what, session))
    batches = options.batches[:1] if options.quick else options.batches
    measured.run(entries(session, batches), session)
    measured.finish(session)


if __name__ == "__main__":
    main()
