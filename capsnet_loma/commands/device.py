"""The option ``--device``: the CPU, or a GPU that torch can use."""

from __future__ import annotations

import os
import re
from typing import Any

import click


class Device(click.ParamType[str]):
    """``cpu``, ``cuda``, or ``cuda:N``, which there is: anything else is one message."""

    name = "device"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "[cpu|cuda|cuda:N]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text == "cpu":
            return text
        found = re.fullmatch(r"cuda(?::([0-9]{1,4}))?", text)
        if found is None:
            self.fail(f"{text!r} is no device: give cpu, cuda, or cuda:N for GPU number N")
        wrong = _unusable(int(found[1] or 0))
        if wrong is not None:
            raise click.UsageError(f"--device {text}: {wrong}", ctx)
        return text if found[1] is None else f"cuda:{int(found[1])}"


def _unusable(number: int) -> str | None:
    """Why a GPU cannot be used, and what to do, if it cannot."""
    import torch

    otherwise = "Run it with --device cpu"
    if not torch.backends.cuda.is_built():
        return (
            f"torch {torch.__version__} is built without CUDA. Install one with it, as "
            f"https://pytorch.org/get-started says. {otherwise} meanwhile."
        )
    if not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} sees no GPU here: is there one, with NVIDIA's driver? "
            f"{otherwise}, or where there is one."
        )
    count = torch.cuda.device_count()
    if number >= count:
        named = "cuda:0 only" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        return f"there is no such GPU here, there is {named}."
    return None


def check_processes(device: str) -> None:
    """Raises UsageError unless each of a launcher's processes has a GPU of its own."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device == "cpu" or processes == 1:
        return
    if device != "cuda":
        raise click.UsageError(
            f"--device {device}: {processes} processes cannot share a GPU. With --device cuda "
            "each has one of its own."
        )
    import torch

    gpus = torch.cuda.device_count()
    if processes > gpus:
        raise click.UsageError(
            f"--device {device}: {processes} processes on a machine with {gpus} GPUs. Start one "
            "for each GPU with torchrun --nproc-per-node."
        )


device_option = click.option(
    "--device", type=Device(), default="cpu",
    help="Where the network runs: the CPU, or GPU number N, 0 by default.",
)  # fmt: skip
