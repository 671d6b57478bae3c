"""One profiled process: plain PyTorch, or loma from Python.

``python -m capsnet_loma.profiling.worker torch|loma INPUTS THREADS CONFIG DEVICE`` (CONFIG is JSON)
does one iteration, prints its loss and gradient checksums as a line of JSON, then obeys lines on
standard input: ``run N`` does N iterations and prints the seconds that they took. The C++ program
speaks the same lines. On a GPU ``peak`` prints the most memory that tensors had since the first
iteration, and ``count`` what :class:`capsnet_loma.profiling.gpu_work.GpuWork` says of an iteration.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from capsnet_loma.config import CapsNetConfig
from capsnet_loma.profiling import gpu_work
from loma import specialise

TWINS = {"torch": "capsnet_loma.reference", "loma": "capsnet_loma.network"}


def main(version: str, inputs: str, threads: str, config: str, where: str = "cpu") -> None:
    torch.set_num_threads(int(threads))
    device = torch.device(where)
    tensors = torch.load(inputs, weights_only=True)
    images, targets = (tensors.pop(name).to(device) for name in ("images", "targets"))
    sizes = json.loads(config)
    sizes["decoder_hidden"] = tuple(sizes["decoder_hidden"])
    # All kernels for these sizes are made before the first sample, none while it is taken.
    specialise.use(specialise.Thresholds(calls=1, total_ms=0.0))
    twin: Any = importlib.import_module(TWINS[version])
    net: nn.Module = twin.CapsNet(CapsNetConfig(**sizes))
    net.load_state_dict(tensors)
    net.to(device)
    del tensors

    def iteration() -> Tensor:
        net.zero_grad(set_to_none=True)
        loss: Tensor = twin.capsule_loss(images, targets, *net(images, targets))
        loss.backward()
        return loss

    first = {"loss": iteration().item(), "gradients": _checksums(net)}
    if device.type != "cpu":
        for _ in range(gpu_work.WARM):
            iteration()
        torch.cuda.synchronize(device)
    specialise.wait()
    _forget_the_start()
    if device.type != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
    _say(first)
    for line in sys.stdin:
        order = line.strip()
        if order == "peak":
            _say({"bytes": torch.cuda.max_memory_allocated(device)})
        elif order == "count":
            size = sum(p.numel() * p.element_size() for p in net.parameters())
            _say(asdict(gpu_work.counted(iteration, device, size)))
        else:
            _say({"seconds": _seconds(iteration, int(order.removeprefix("run ")), device)})


def _seconds(iteration: Callable[[], object], count: int, device: torch.device) -> float:
    """A GPU computes behind the calls that ask for it: it is waited for before and after."""
    if device.type != "cpu":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        iteration()
    if device.type != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _forget_the_start() -> None:
    """Loading and checksums are not what is profiled: what they left in malloc's lists goes back to
    the system, in every version, before the peak is counted."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # the GNU C library has it
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _checksums(net: nn.Module) -> dict[str, list[float]]:
    """Sum and sum of absolute values of each gradient, in float64."""
    return {
        name: [parameter.grad.double().sum().item(), parameter.grad.double().abs().sum().item()]
        for name, parameter in net.named_parameters()
        if parameter.grad is not None
    }


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
