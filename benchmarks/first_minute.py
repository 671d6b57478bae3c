"""The first minute of training CapsNet on all cores, second by second, while kernels for its sizes
are compiled in the background, and without them.

Each run is a process of its own that begins with compiled layers and no kernel for known sizes, and
trains with Adam on one batch. Printed are, for each second, the median time of the steps that ended
in it with and without, the kernels that were there, and which part of all cores the compiling
processes took.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
from forms import Settings
from harness import settings_parser, write_json

SECONDS = 60
BATCH = 100


@dataclass(frozen=True, slots=True)
class Second:
    """``step``: seconds of a step; ``share``: of all cores, what compiling took."""

    step: float
    kernels: int
    share: float


def train(seconds: float, batch: int, threads: int) -> None:
    """In a process of its own: prints each step's end, seconds and kernels as a line of JSON."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    from training import loma_adam, training

    from capsnet_loma import network
    from capsnet_loma.config import CapsNetConfig
    from loma import specialise

    step = training(CapsNetConfig(), batch, network, loma_adam)
    step()  # loads or compiles the layers, and measures convolutions
    print(json.dumps(None), flush=True)
    begin = end = time.perf_counter()
    while end - begin < seconds:
        step()
        start, end = end, time.perf_counter()
        print(json.dumps([end - begin, end - start, len(specialise.made())]), flush=True)
    os._exit(0)  # whatever is still being compiled


def run(kernels: bool, seconds: int, batch: int, threads: int) -> list[Second]:
    """One run, by seconds; those in which no step ended are left out."""
    limit = "8" if kernels else "0"
    environment = {**os.environ, "LOMA_SPECIALISATIONS": limit}
    command = [sys.executable, __file__, "--train", str(seconds), str(batch), str(threads)]
    steps: list[list[float]] = []
    used = [0.0] * (seconds + 2)  # processor time of what compiles until the end of each second
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for line in process.stdout:
            steps.append(json.loads(line))
            second = int(steps[-1][0])
            used[second:] = [max(used[second], _compiling(process.pid))] * len(used[second:])
    if process.returncode != 0:
        raise SystemExit(f"training ended with exit code {process.returncode}")
    found = []
    for second in range(seconds):
        own = [step for step in steps if second <= step[0] < second + 1]
        if own:
            before = used[second - 1] if second else 0.0
            share = (used[second] - before) / (os.cpu_count() or 1)
            found.append(Second(statistics.median(s[1] for s in own), int(own[-1][2]), share))
    return found


def _compiling(pid: int) -> float:
    """Processor seconds of the processes that this one has started, with theirs that ended."""
    total = 0.0
    try:
        for child in psutil.Process(pid).children(recursive=True):
            times = child.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    except psutil.NoSuchProcess:
        pass
    return total


def table(without: Sequence[Second], others: Sequence[Second]) -> list[list[str]]:
    body = []
    for second, (plain, own) in enumerate(zip(without, others, strict=False), 1):
        body.append([
            str(second), f"{1e3 * plain.step:.3g} ms", f"{1e3 * own.step:.3g} ms",
            f"{plain.step / own.step:.2f}x", str(own.kernels), f"{100 * own.share:.1f} %",
        ])  # fmt: skip
    return body


COLUMNS = ("second", "general kernels", "with kernels", "speed", "made", "compiling, of all cores")


def main() -> None:
    if sys.argv[1:2] == ["--train"]:
        seconds, batch, threads = map(int, sys.argv[2:])
        train(seconds, batch, threads)
    parser = settings_parser(__doc__ or "")
    parser.set_defaults(threads=os.cpu_count() or 1, rounds=1)
    parser.add_argument("--batch", type=int, default=BATCH)
    options = parser.parse_args()
    seconds, batch = (2, 2) if options.quick else (SECONDS, options.batch)
    settings = Settings(1, options.threads, options.quick)
    runs: dict[bool, list[Second]] = {}
    with tempfile.TemporaryDirectory() as cache:
        if not options.quick:
            os.environ["LOMA_CACHE_DIR"] = cache
        for kernels in (False, True):
            runs[kernels] = run(kernels, seconds, batch, options.threads)
    body = table(runs[False], runs[True])
    print(" | ".join(COLUMNS))
    for row in body:
        print(" | ".join(text.rjust(len(name)) for text, name in zip(row, COLUMNS, strict=True)))
    if options.json:
        shown = [{"columns": COLUMNS, "body": body}]
        write_json(options.json, "first_minute", settings, [], shown)


if __name__ == "__main__":
    main()
