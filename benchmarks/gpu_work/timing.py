"""Times of calls on a GPU: by CUDA events, in turn, on inputs that no cache still holds."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Call = Callable[[], object]

L2_BYTES = 50 * 2**20
MOST_SETS = 8
SAMPLE_SECONDS = 3e-3  # a sample repeats its calls until it takes this long
MOST_REPEATS = 200


@dataclass(frozen=True, slots=True)
class Form:
    """One way to do the work. ``calls`` are made in turn, one on each set of inputs; each of them
    does the work ``weight`` times. ``uses``: what has to live as long, as tensors that a graph
    knows by their addresses alone."""

    calls: Sequence[Call]
    weight: int = 1
    uses: object = None


def sets_for(size: int) -> int:
    """How many sets of inputs of ``size`` bytes leave nothing of the first in the L2 cache."""
    return max(1, min(MOST_SETS, -(-3 * L2_BYTES // max(size, 1)))) if size < 2 * L2_BYTES else 1


def captured(calls: Sequence[Call]) -> tuple[Form, object]:
    """All calls as one CUDA graph, which has run once, and the first one's result. They have been
    made before, and are made once more."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = calls[0]()
        for call in calls[1:]:
            call()
    graph.replay()
    torch.cuda.synchronize()
    return Form([graph.replay], len(calls), calls), first


def sample(form: Form, repeats: int) -> float:
    """Milliseconds of one call: the mean of ``repeats`` rounds over the form's calls. The host runs
    ahead, so that a call takes what takes longer, the host or the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        for call in form.calls:
            call()
    end.record()
    torch.cuda.synchronize()
    taken: float = begin.elapsed_time(end)
    return taken / (repeats * len(form.calls) * form.weight)


def side_by_side(forms: Mapping[str, Form], rounds: int) -> dict[str, float]:
    """Medians in milliseconds; every other round goes the other way round."""
    repeats = {}
    for name, form in forms.items():
        sample(form, 1)
        taken = sample(form, 2) * len(form.calls) * form.weight
        repeats[name] = max(1, min(MOST_REPEATS, round(1e3 * SAMPLE_SECONDS / max(taken, 1e-4))))
    samples: dict[str, list[float]] = {name: [] for name in forms}
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            for name in list(forms)[:: 1 if turn % 2 == 0 else -1]:
                samples[name].append(sample(forms[name], repeats[name]))
    finally:
        gc.enable()
    return {name: statistics.median(own) for name, own in samples.items()}


def host_microseconds(call: Call, count: int) -> float:
    """What a call takes of the host, which waits for the device only at the end."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    taken = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * taken / count


def copy_bandwidth() -> float:
    """Bytes a second of a large copy on the device, those read plus those written."""
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    form = Form([lambda: target.copy_(source)])
    sample(form, 3)
    ms = statistics.median(sample(form, 3) for _ in range(9))
    return 2 * size_of([source]) / (ms * 1e-3)


def size_of(values: Sequence[object]) -> int:
    """Bytes of the tensors among the values."""
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, Tensor))


def launches(call: Call) -> list[tuple[str, int, float]]:
    """What a call has the device do: (kernel or copy, how often, microseconds), the longest
    first."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    rows = [
        (event.key, event.count, float(event.self_device_time_total))
        for event in found.key_averages()
        if event.self_device_time_total > 0
    ]
    return sorted(rows, key=lambda row: -row[2])
