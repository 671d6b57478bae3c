"""A row: loma and its peers are made, checked against float64, and measured side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from gpu_work import timing
from gpu_work.timing import Call, Form
from gpu_work.work import BOTH, FORWARD, Function, Work
from torch import Tensor

from loma import specialise
from loma.backends.cuda import images

LOMA, EAGER, COMPILE, AUTOTUNE = "loma", "eager", "compile", "max-autotune"
GRAPH = ", graph"  # behind a form's name: captured as one CUDA graph
LATE = "not compiled: no time left (--budget)"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """``deadline``: the monotonic time after which nothing is autotuned any more."""

    device: str = "cuda"
    quick: bool = False
    rounds: int = 15
    autotune: bool = True
    compile: bool = True
    graphs: bool = True
    tf32: bool = False
    deadline: float = float("inf")
    copy: float = 0.0  # bytes a second of a copy on the device; 0: not measured

    @property
    def measures(self) -> bool:
        """Whether times are measured; else results are compared, and that is all."""
        return self.device == "cuda"


@dataclass(slots=True)
class Row:
    """``times``: milliseconds of the forms; ``errors``: of their results, relative; ``notes``: why
    a form was not run; ``memory``: bytes that a call takes beyond its arguments, where that is
    measured. ``intervals``: what a time is known to, in milliseconds; ``results``: other figures.
    ``size``: the fewest bytes that have to be moved."""

    key: str
    title: str
    goal: str
    size: int = 0
    times: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    intervals: dict[str, float] = field(default_factory=dict)
    results: dict[str, float] = field(default_factory=dict)
    probe: Call | None = None  # loma's call, whose launches are looked at in the end

    def best(self, own: bool) -> str | None:
        """The fastest form of loma, or of the others."""
        names = [name for name in self.times if name.startswith(LOMA) == own]
        return min(names, key=self.times.__getitem__, default=None)

    def ratio(self, name: str = "") -> float | None:
        """How many times as fast as a form loma is, as a rule the fastest."""
        own, peer = self.best(True), name or self.best(False)
        if own is None or peer is None or peer not in self.times:
            return None
        return self.times[peer] / self.times[own]

    def bandwidth(self) -> float | None:
        """Bytes a second of loma's fastest form."""
        own = self.best(True)
        return self.size / (1e-3 * self.times[own]) if own and self.size else None

    def record(self, copy: float) -> dict[str, Any]:
        bandwidth = self.bandwidth()
        return {
            "key": self.key, "title": self.title, "goal": self.goal, "bytes": self.size,
            "milliseconds": self.times, "errors": self.errors, "notes": self.notes,
            "memory": self.memory, "intervals": self.intervals, "results": self.results,
            "loma": self.best(True), "peer": self.best(False), "ratio": self.ratio(),
            "bytes a second": bandwidth,
            "share of copy": bandwidth / copy if bandwidth and copy else None,
        }  # fmt: skip


def short(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text[:400]}"


def is_late(settings: Settings) -> bool:
    return time.monotonic() > settings.deadline


def wait_for_kernels() -> None:
    """Until the background has made what it was asked for."""
    specialise.wait()
    images.wait()


def warm_own(calls: Sequence[Call]) -> None:
    """Calls until loma's kernels for these numbers are there, and have run."""
    for _ in range(3):
        for call in calls:
            for _ in range(3):
                call()
        wait_for_kernels()


# --------------------------------------------------------------------------------- the calls


@dataclass(frozen=True, slots=True)
class Inputs:
    """A set of arguments; gradients are taken with ``weights`` for those of the results."""

    args: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]

    @property
    def leaves(self) -> list[Tensor]:
        return [arg for arg in self.args if arg.requires_grad]

    def detached(self) -> tuple[Tensor, ...]:
        return tuple(arg.detach() for arg in self.args)

    def exact(self) -> Inputs:
        """The same in float64."""
        args = tuple(
            arg.detach().double().requires_grad_() if arg.requires_grad else arg
            for arg in self.args
        )
        return Inputs(args, tuple(weight.double() for weight in self.weights))

    def static(self) -> Inputs:
        """The same memory, which torch.compile may rely on to stay where it is."""
        args = tuple(
            arg.detach().requires_grad_() if arg.requires_grad else arg for arg in self.args
        )
        for arg in args:
            torch._dynamo.mark_static_address(arg, guard=False)
        return Inputs(args, self.weights)


def call_of(which: str, function: Function, inputs: Inputs) -> Call:
    if which == FORWARD:
        args = inputs.detached()
        return lambda: results_of(function(*args))
    leaves, weights = inputs.leaves, inputs.weights
    return lambda: torch.autograd.grad(results_of(function(*inputs.args)), leaves, weights)


def results_of(found: Any) -> tuple[Tensor, ...]:
    """Of a function with one result, or with several."""
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def errors_of(found: Any, exact: Sequence[Tensor]) -> float:
    """The largest of ‖result - exact‖ / ‖exact‖; NaN where there is one."""
    largest = 0.0
    for part, right in zip(found, exact, strict=True):
        if part.shape != right.shape:
            raise ValueError(f"result of shape {tuple(part.shape)}, expected {tuple(right.shape)}")
        error = float((part.double() - right).norm() / right.norm().clamp_min(1e-30))
        if not error <= largest:
            largest = error
    return largest


def inputs_of(work: Work, settings: Settings) -> list[Inputs]:
    """As many sets as it takes to find none of them in the cache."""
    first = work.inputs(settings.device)
    with torch.no_grad():
        results = results_of(next(iter(work.peers.values()))(*first))

    def weights() -> tuple[Tensor, ...]:
        return tuple(torch.randn_like(result) for result in results)

    found = [Inputs(first, weights())]
    count = 1
    if settings.measures:
        count = timing.sets_for(timing.size_of([*first, *results]))
    for _ in range(count - 1):
        found.append(Inputs(work.inputs(settings.device), weights()))
    return found


def size_of_pass(which: str, inputs: Inputs) -> int:
    """Bytes: forward reads the arguments and writes the result; backward reads the arguments and
    the result's gradient, and writes the arguments' gradients."""
    forward = timing.size_of([*inputs.args, *inputs.weights])
    return forward if which == FORWARD else 2 * forward + timing.size_of(inputs.leaves)


# ---------------------------------------------------------------------------------- the forms


class Measuring:
    """One pass of one row: forms are added one after the other, then measured."""

    def __init__(
        self, row: Row, work: Work, which: str, inputs: list[Inputs], settings: Settings, say: Say
    ) -> None:
        self.row, self.work, self.which, self.settings, self.say = row, work, which, settings, say
        self.inputs = inputs
        self.forms: dict[str, Form] = {}
        self.tolerance = max(work.tolerance, 3e-3 if settings.tf32 else 0.0)
        self.exact = self.reference()

    def reference(self) -> list[Tensor]:
        """What the first peer gives in float64."""
        function = next(iter(self.work.peers.values()))
        call: Any = call_of(self.which, function, self.inputs[0].exact())
        return [part.detach() for part in call()]

    def add(self, name: str, function: Function, inputs: Sequence[Inputs] | None = None) -> None:
        """The form, if its results are right; else a note."""
        calls = [call_of(self.which, function, one) for one in inputs or self.inputs]
        if name.startswith(AUTOTUNE):
            calls = [partial(_in_own_graph, call) for call in calls]
        start = time.perf_counter()
        try:
            first: Any = calls[0]
            for _ in range(3):
                self.check(name, first())
            if name.startswith(LOMA):
                self.row.probe = self.row.probe or first
                warm_own(calls)
                self.check(name, first())  # of the kernels for known numbers
            elif self.settings.measures:
                for call in calls:
                    call()
                torch.cuda.synchronize()
        except Exception as failure:
            self.note(name, failure)
            return
        self.forms[name] = Form(calls)
        taken = time.perf_counter() - start
        if taken > 1:
            self.say(f"    {name}: ready after {taken:.1f} s")

    def check(self, name: str, found: Any) -> None:
        """Raises ArithmeticError where results are not the exact ones."""
        error = errors_of(found, self.exact)
        self.row.errors[name] = error
        if not error <= self.tolerance:
            raise ArithmeticError(f"results differ from those in float64 by {error:.1e}")

    def add_captured(self, name: str) -> None:
        if name not in self.forms or not self.settings.graphs:
            return
        try:
            form, found = timing.captured(self.forms[name].calls)
            self.check(name + GRAPH, found)
            self.forms[name + GRAPH] = form
        except Exception as failure:
            self.note(name + GRAPH, failure)

    def note(self, name: str, failure: BaseException) -> None:
        self.row.notes[name] = short(failure)
        self.say(f"    {name}: not run: {self.row.notes[name]}")

    def of_group(self, group: str) -> list[str]:
        return [name for name in self.forms if name.startswith(group)]

    def fastest(self, names: Sequence[str]) -> str | None:
        times = {name: timing.sample(self.forms[name], 2) for name in names}
        return min(times, key=times.__getitem__, default=None)


def _in_own_graph(call: Call) -> object:
    torch.compiler.cudagraph_mark_step_begin()
    return call()


def measure(work: Work, which: str, settings: Settings, say: Say) -> Row:
    """The row of one pass."""
    row = Row(f"{work.key} {which}", f"{work.title}: {which}", work.goal)
    torch.manual_seed(0)
    inputs = inputs_of(work, settings)
    row.size = size_of_pass(which, inputs[0])
    m = Measuring(row, work, which, inputs, settings, say)
    try:
        m.add(LOMA, work.own())
    except Exception as failure:  # it does not compile
        m.note(LOMA, failure)
    for name, function in work.peers.items():
        m.add(f"{EAGER} {name}", function)
    if settings.measures:
        m.add_captured(LOMA)
        for name in m.of_group(EAGER):
            m.add_captured(name)
        add_compiled(m)
        row.times = timing.side_by_side(m.forms, settings.rounds)
    return row


def add_compiled(m: Measuring) -> None:
    """torch.compile of every form; its slow modes of the form that was the fastest in the first."""
    if not (m.work.compiles and m.settings.compile):
        return
    for name, function in m.work.peers.items():
        m.add(f"{COMPILE} {name}", torch.compile(function))
    best = m.fastest(m.of_group(COMPILE))
    if best is None:
        return
    m.add_captured(best)
    if not m.settings.autotune:
        return
    name = best.removeprefix(COMPILE + " ")
    if is_late(m.settings):
        m.row.notes[AUTOTUNE] = LATE
        return
    inputs = m.inputs
    if len(inputs) == 1:
        inputs = [inputs[0].static()]
    m.add(f"{AUTOTUNE} {name}", torch.compile(m.work.peers[name], mode="max-autotune"), inputs)


def prepare_own(work: Work, device: str) -> str:
    """Has loma compile what the row will call. What fails, which it tells, is found again when the
    row is measured."""
    try:
        function = work.own()
        args = work.inputs(device)
        for which in work.passes:
            if which == BOTH:
                out = function(*args)
                leaves = [arg for arg in args if arg.requires_grad]
                ones = tuple(torch.ones_like(part) for part in results_of(out))
                torch.autograd.grad(results_of(out), leaves, ones)
            else:
                function(*(arg.detach() for arg in args))
    except Exception as failure:
        return short(failure)
    return ""
