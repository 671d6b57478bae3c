"""Rows that are no function of tensors alone: CapsNet, an optimiser's step, small calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from capsnet import TINY
from gpu_work import timing
from gpu_work.rows import (
    AUTOTUNE, COMPILE, EAGER, GRAPH, LATE, LOMA, Row, Say, Settings, errors_of, is_late, short,
    warm_own,
)  # fmt: skip
from gpu_work.timing import Call, Form
from gpu_work.work import FOLDER
from torch import Tensor

import loma
from capsnet_loma import network, reference
from capsnet_loma.config import CapsNetConfig

CHECKED = 4  # steps before the results are compared
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True)
class Steps:
    """``step`` is made again and again, ``results`` are what it has changed so far."""

    step: Call
    results: Callable[[], list[Tensor]]


Make = Callable[[], Steps]


def measure_steps(
    row: Row, makes: Mapping[str, Make], tolerance: float, settings: Settings, say: Say
) -> None:
    forms = ready_steps(row, makes, tolerance, settings, say)
    if settings.measures:
        row.times = timing.side_by_side(forms, settings.rounds)


def ready_steps(
    row: Row, makes: Mapping[str, Make], tolerance: float, settings: Settings, say: Say
) -> dict[str, Form]:
    """Steps that change what they start from: each form has its own, from the same numbers; after
    some steps all have to be where the first one is. ``<name>, graph`` captures a step."""
    forms: dict[str, Form] = {}
    exact: list[Tensor] = []
    for name, make in makes.items():
        if name.startswith(AUTOTUNE) and is_late(settings):
            row.notes[name] = LATE
            continue
        try:
            torch.manual_seed(0)
            steps = make()
            form = captured(steps) if name.endswith(GRAPH) else plain(steps)
            found = [part.detach().double().cpu() for part in steps.results()]
            exact = exact or found
            row.errors[name] = error = errors_of(found, exact)
            if not error <= tolerance:
                raise ArithmeticError(f"results differ from those of the first form by {error:.1e}")
            if name.startswith(LOMA):
                warm_own(form.calls)
                row.probe = row.probe or steps.step
            forms[name] = form
            say(f"    {name}: ready")
        except Exception as failure:
            row.notes[name] = short(failure)
            say(f"    {name}: not run: {row.notes[name]}")
    return forms


def plain(steps: Steps) -> Form:
    """A form after its first steps."""
    for _ in range(CHECKED):
        steps.step()
    return Form([steps.step])


def captured(steps: Steps) -> Form:
    """The same; capturing makes two steps."""
    steps.step()
    form = timing.captured([steps.step])[0]
    for _ in range(CHECKED - 3):
        form.calls[0]()
    return form


# ----------------------------------------------------------------------------------- CapsNet


def _network(twin: Any, settings: Settings, wrap: Any, is_graph: bool, trains: bool) -> Steps:
    config, batch = (TINY, 2) if settings.quick else (CapsNetConfig(), 100)
    torch.manual_seed(0)
    net = twin.CapsNet(config).to(settings.device)
    shape = (batch, config.image_channels, config.image_size, config.image_size)
    images = torch.rand(shape, device=settings.device)
    targets = torch.eye(config.classes, device=settings.device)[
        torch.arange(batch, device=settings.device) % config.classes
    ]
    return network_steps(net, twin, images, targets, wrap, is_graph, trains)


def network_steps(
    net: Any, twin: Any, images: Tensor, targets: Tensor, wrap: Any, is_graph: bool, trains: bool
) -> Steps:
    """Inference, whose results are the network's, or training steps with Adam, whose result is the
    loss. ``twin``: the module of CapsNet, loma's or PyTorch's, which has the loss."""
    kept: list[Tensor] = []
    if not trains:
        function = wrap(net.eval())

        def forward() -> None:
            with torch.no_grad():
                kept[:] = function(images)

        return Steps(forward, lambda: kept)

    def loss_of(images: Tensor, targets: Tensor) -> Any:
        loss: Any = twin.capsule_loss(images, targets, *net(images, targets))
        return loss

    function = wrap(loss_of)
    adam: Any = loma.optim.Adam if twin is network else partial(torch.optim.Adam, fused=True)
    optimizer = adam(net.parameters(), lr=LEARNING_RATE, capturable=is_graph)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = function(images, targets)
        loss.backward()
        kept[:] = [loss.detach()]
        optimizer.step()

    return Steps(step, lambda: kept)


def in_own_graph(function: Any) -> Any:
    tuned: Any = torch.compile(function, mode="max-autotune")

    def call(*args: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return tuned(*args)

    return call


def as_it_is(function: Any) -> Any:
    return function


def capsnets(settings: Settings, say: Say) -> Iterator[Row]:
    for trains in (False, True):
        yield capsnet(trains, settings, say)


def capsnet(trains: bool, settings: Settings, say: Say) -> Row:
    what = "training step with Adam" if trains else "forward"
    goal = "2 times the best peer" if trains else "1.8 times the best peer"
    row = Row(f"capsnet {'step' if trains else 'forward'}", f"CapsNet, batch 100: {what}", goal)
    wraps: dict[str, Any] = {EAGER: as_it_is}
    if settings.compile and settings.measures:
        wraps[COMPILE] = torch.compile
        if settings.autotune:
            wraps[AUTOTUNE] = in_own_graph
    makes: dict[str, Make] = {}
    for name, wrap in wraps.items():
        makes[name] = partial(_network, reference, settings, wrap, False, trains)
        if name != AUTOTUNE and settings.graphs and settings.measures:
            makes[name + GRAPH] = partial(_network, reference, settings, wrap, True, trains)
    makes[LOMA] = partial(_network, network, settings, as_it_is, False, trains)
    if settings.graphs and settings.measures:
        makes[LOMA + GRAPH] = partial(_network, network, settings, as_it_is, True, trains)
    measure_steps(row, makes, 3e-3, settings, say)
    return row


# -------------------------------------------------------------------------------------- Adam


def adam(settings: Settings, say: Say) -> Row:
    """Ten parameters of a million numbers each."""
    count, numbers = (2, 30) if settings.quick else (10, 1_000_000)
    row = Row("adam", f"Adam, {count} parameters of {numbers:,} numbers", "at most the best peer")
    row.size = 7 * 4 * count * numbers  # reads p, m, v, g; writes p, m, v
    cuda = settings.device == "cuda"

    def make(cls: Any, compiles: bool, options: dict[str, Any]) -> Steps:
        params = [torch.randn(numbers, device=settings.device) for _ in range(count)]
        grads = [torch.randn(numbers, device=settings.device) for _ in range(count)]
        for param, grad in zip(params, grads, strict=True):
            param.requires_grad_().grad = grad
        optimizer = cls(params, lr=1e-3, **options)
        step = torch.compile(optimizer.step) if compiles else optimizer.step
        return Steps(step, lambda: params)

    of_torch = torch.optim.Adam
    makes: dict[str, Make] = {
        f"{EAGER} foreach": partial(make, of_torch, False, {"foreach": True}),
    }
    if cuda:
        makes[f"{EAGER} fused"] = partial(make, of_torch, False, {"fused": True})
        if settings.graphs:
            options = {"fused": True, "capturable": True}
            makes[f"{EAGER} fused{GRAPH}"] = partial(make, of_torch, False, options)
        if settings.compile:
            options = {"foreach": True, "capturable": True}
            makes[f"{COMPILE} foreach"] = partial(make, of_torch, True, options)
    makes[LOMA] = partial(make, loma.optim.Adam, False, {})
    if cuda and settings.graphs:
        makes[LOMA + GRAPH] = partial(make, loma.optim.Adam, False, {"capturable": True})
    measure_steps(row, makes, 1e-5, settings, say)
    return row


# ------------------------------------------------------------------------------- small calls


def calls(settings: Settings, say: Say) -> list[Row]:
    """Host time of calls on small tensors against that of one eager operator; the times are
    microseconds divided by 1000, as in all rows."""
    count = 20 if settings.quick else 2000
    device = settings.device
    module = loma.compile(FOLDER / "small.loma")
    x, y = (torch.randn(64, device=device) for _ in range(2))
    u = torch.randn(8, 16, device=device)
    wanting, upper = x.clone().requires_grad_(), u.clone().requires_grad_()
    ones, square = torch.ones_like(x), torch.ones_like(u)
    pairs: dict[str, tuple[Call, Call]] = {
        "product": (lambda: module.product(x, y), lambda: x * y),
        "product, wanting gradients": (lambda: module.product(wanting, y), lambda: wanting * y),
        "softmax": (lambda: module.softmax(u), lambda: torch.softmax(u, 1)),
        "product, with backward": (
            lambda: torch.autograd.grad(module.product(wanting, y), wanting, ones),
            lambda: torch.autograd.grad(wanting * y, wanting, ones),
        ),
        "softmax, with backward": (
            lambda: torch.autograd.grad(module.softmax(upper), upper, square),
            lambda: torch.autograd.grad(torch.softmax(upper, 1), upper, square),
        ),
    }
    rows = []
    for name, (own, peer) in pairs.items():
        row = Row(f"call {name}", f"a call's host time, {name}", "at most 1.5 times eager")
        rows.append(row)
        try:
            row.errors[LOMA] = _difference(own(), peer())
            if not row.errors[LOMA] <= 1e-5:
                raise ArithmeticError(f"results differ by {row.errors[LOMA]:.1e}")
            warm_own([own])
            row.probe = own
            if not settings.measures:
                continue
            samples: dict[str, list[float]] = {LOMA: [], EAGER: []}
            for _ in range(3 if settings.quick else 7):
                for form, call in ((LOMA, own), (EAGER, peer)):
                    samples[form].append(timing.host_microseconds(call, count))
            row.times = {form: sorted(own)[len(own) // 2] / 1e3 for form, own in samples.items()}
        except Exception as failure:
            row.notes[LOMA] = short(failure)
            say(f"    {name}: not run: {row.notes[LOMA]}")
    return rows


def _difference(found: Any, exact: Any) -> float:
    a, b = (value[0] if isinstance(value, tuple) else value for value in (found, exact))
    return float((a.detach().double() - b.detach().double()).abs().max())
