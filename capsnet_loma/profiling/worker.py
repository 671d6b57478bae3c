"""One profiled process: plain PyTorch, or loma from Python.

``python -m capsnet_loma.profiling.worker torch|loma INPUTS THREADS CONFIG`` (CONFIG is JSON) does
one iteration, prints its loss and gradient checksums as a line of JSON, then obeys lines on
standard input: ``run N`` does N iterations and prints the seconds that they took. The C++ program
speaks the same lines.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

from capsnet_loma.config import CapsNetConfig
from loma import specialise

TWINS = {"torch": "capsnet_loma.reference", "loma": "capsnet_loma.network"}


def main(version: str, inputs: str, threads: str, config: str) -> None:
    torch.set_num_threads(int(threads))
    tensors = torch.load(inputs, weights_only=True)
    images, targets = tensors.pop("images"), tensors.pop("targets")
    sizes = json.loads(config)
    sizes["decoder_hidden"] = tuple(sizes["decoder_hidden"])
    # All kernels for these sizes are made before the first sample, none while it is taken.
    specialise.THRESHOLDS = specialise.Thresholds(calls=1, total_ms=0.0)
    twin: Any = importlib.import_module(TWINS[version])
    net: nn.Module = twin.CapsNet(CapsNetConfig(**sizes))
    net.load_state_dict(tensors)
    del tensors

    def iteration() -> Tensor:
        net.zero_grad(set_to_none=True)
        loss: Tensor = twin.capsule_loss(images, targets, *net(images, targets))
        loss.backward()
        return loss

    first = {"loss": iteration().item(), "gradients": _checksums(net)}
    specialise.wait()
    _forget_the_start()
    _say(first)
    for line in sys.stdin:
        count = int(line.removeprefix("run "))
        start = time.perf_counter()
        for _ in range(count):
            iteration()
        _say({"seconds": time.perf_counter() - start})


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
