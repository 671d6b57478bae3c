"""What loma's kernels take on a GPU, against eager PyTorch and torch.compile.

Rows: the digit capsules' routing, the high-order convolution, squash, softmax, layer norm, RMS
norm, cross entropy, GLU, SwiGLU and attention, each forward, and forward with backward; CapsNet
forward and a training step with Adam; a step of Adam; and what a call on small tensors takes of the
host. Peers: eager, torch.compile, and torch.compile with max-autotune, which has CUDA graphs of its
own; loma, eager and torch.compile are measured as plain calls and, "graph", captured as a CUDA
graph.

The results of every form are compared with float64 first. Then all forms of a row are measured in
turn, by CUDA events, on inputs that the L2 cache does not hold; printed are medians, the ratio to
the fastest peer (above 1: loma is faster), and the bandwidth that the fewest bytes which have to be
moved would need, as a share of that of a large copy on the device. In the end the kernels that a
call of each row launches are listed.

With --device cpu the results are compared, and nothing is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from gpu_work import steps, timing
from gpu_work.rows import Row, Say, Settings, measure, prepare_own, short
from gpu_work.work import Work, works

# Rows that are not of gpu_work/work.py.
STEPS: dict[str, Callable[[Settings, Say], Iterable[Row]]] = {
    "capsnet": steps.capsnets,
    "adam": lambda settings, say: [steps.adam(settings, say)],
    "calls": steps.calls,
}
CONTINUED = "LOMA_GPU_BENCHMARK_CONTINUED"  # set where a process goes on behind another one
COMPILERS = 8  # programs that are compiled at once
LISTED = 8  # kernels of a row that are listed


def parser(names: list[str]) -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--rows", nargs="+", choices=names, metavar="NAME", default=names,
                     help=f"only these: {', '.join(names)}")  # fmt: skip
    out.add_argument("--quick", action="store_true", help="tiny sizes, to see that all rows run")
    out.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    out.add_argument("--rounds", type=int, default=15, help="samples of each form (default 15)")
    out.add_argument("--no-autotune", action="store_true", help="without max-autotune, which is "
                     "slow to compile")  # fmt: skip
    out.add_argument("--no-compile", action="store_true", help="without torch.compile")
    out.add_argument("--no-graphs", action="store_true", help="without calls captured as graphs")
    out.add_argument("--no-launches", action="store_true", help="without the list of kernels")
    out.add_argument("--tf32", action="store_true", help="TF32 in matrix products of all forms")
    out.add_argument("--budget", type=float, default=400.0, metavar="SECONDS",
                     help="nothing is autotuned after that long (default 400)")  # fmt: skip
    out.add_argument("--json", type=Path, metavar="FILE", help="writes all figures there")
    return out


class Report:
    """Prints rows as they come, and keeps the file with all of them up to date."""

    def __init__(self, file: Path | None, settings: Settings, machine: str) -> None:
        self.start = time.monotonic()
        self.rows: list[Row] = []
        self.file, self.settings, self.machine = file, settings, machine
        self.before: list[Any] = []  # the rows of a process that has failed
        if file is not None and file.exists() and CONTINUED in os.environ:
            self.before = json.loads(file.read_text(encoding="utf-8"))["rows"]

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.start:6.1f} s] {text}", flush=True)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.say(row.title)
        for name, error in row.errors.items():
            if name not in row.times and name not in row.notes:
                print(f"    {name:34s} error {error:.1e}")
        for name, ms in sorted(row.times.items(), key=lambda item: item[1]):
            found = f"   error {row.errors[name]:.1e}" if name in row.errors else ""
            print(f"    {name:34s} {ms:10.4f} ms{found}")
        if row.ratio() is not None:
            print(f"    {summary(row, self.settings.copy)}", flush=True)
        self.write()

    def content(self) -> dict[str, Any]:
        return {
            "machine": self.machine, "copy bytes a second": self.settings.copy,
            "tf32": self.settings.tf32,
            "rows": [*self.before, *(row.record(self.settings.copy) for row in self.rows)],
        }  # fmt: skip

    def write(self) -> None:
        if self.file is not None:
            text = json.dumps(self.content(), indent=1)
            self.file.write_text(text + "\n", encoding="utf-8")

    def table(self) -> None:
        copy = self.settings.copy
        print(f"\n{'row':30s} {'loma ms':>9s} {'peer ms':>9s} {'ratio':>6s} {'GB/s':>6s} "
              f"{'copy':>5s}  fastest forms; wanted")  # fmt: skip
        for row in self.rows:
            own, peer, bandwidth = row.best(True), row.best(False), row.bandwidth()
            mine = f"{row.times[own]:9.4f}" if own else f"{'-':>9s}"
            other = f"{row.times[peer]:9.4f}" if peer else f"{'-':>9s}"
            ratio = f"{row.ratio():6.2f}" if own and peer else f"{'-':>6s}"
            speed = f"{bandwidth / 1e9:6.0f}" if bandwidth else f"{'-':>6s}"
            share = f"{bandwidth / copy:5.0%}" if bandwidth and copy else f"{'-':>5s}"
            print(f"{row.key:30s} {mine} {other} {ratio} {speed} {share}  "
                  f"{own or 'not run'} / {peer or 'not run'}; {row.goal}")  # fmt: skip
            for name, note in row.notes.items():
                print(f"    {name}: {note[:200]}")

    def launches(self) -> None:
        print("\nwhat one call of loma launches: times, microseconds")
        for row in self.rows:
            if row.probe is None:
                continue
            try:
                found = timing.launches(row.probe)
            except Exception as failure:
                print(f"{row.key}: not run: {short(failure)}")
                continue
            total = sum(count for _, count, _ in found)
            print(f"{row.key}: {total} launches, {sum(us for _, _, us in found):.1f} us")
            for name, count, us in found[:LISTED]:
                print(f"    {count:4d} {us:9.1f}  {name[:100]}", flush=True)


def summary(row: Row, copy: float) -> str:
    own, peer, bandwidth = row.best(True), row.best(False), row.bandwidth()
    text = f"=> {row.ratio():.2f} times as fast as {peer}, with {own}"
    if bandwidth and copy:
        text += f"; {bandwidth / 1e9:.0f} GB/s, {bandwidth / copy:.0%} of a copy"
    return text


def main() -> None:
    names = [work.key for work in works(True)] + list(STEPS)
    options = parser(names).parse_args()
    settings = Settings(
        options.device, options.quick, 3 if options.quick else options.rounds,
        not options.no_autotune, not options.no_compile, not options.no_graphs, options.tf32,
        time.monotonic() + options.budget,
    )  # fmt: skip
    machine = "the CPU: nothing is measured"
    if options.device == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("gpu.py: torch finds no CUDA device; --device cpu compares results")
        torch.backends.cuda.matmul.allow_tf32 = options.tf32
        torch.backends.cudnn.allow_tf32 = options.tf32
        settings = replace(settings, copy=timing.copy_bandwidth())
        torch.cuda.empty_cache()
        machine = f"{torch.cuda.get_device_name()}, copy at {settings.copy / 1e9:.0f} GB/s"
    report = Report(options.json, settings, f"torch {torch.__version__}, {machine}")
    report.say(f"{report.machine}, TF32 {'on' if options.tf32 else 'off'}")
    chosen = [work for work in works(options.quick) if work.key in options.rows]
    if CONTINUED not in os.environ:
        with ThreadPoolExecutor(COMPILERS) as pool:
            found = pool.map(lambda work: prepare_own(work, options.device), chosen)
            for work, failed in zip(chosen, found, strict=True):
                report.say(f"{work.key}: {failed or 'compiled'}")
        if is_lost(options.device):
            go_on(report, options.rows)
    left = list(options.rows)
    for key, rows in rows_of(chosen, options.rows, settings, report.say):
        try:
            for row in rows:
                report.add(row)
                clear(options.device)
        except Exception as failure:
            report.add(failed_row(key, "-", failure))
        left.remove(key)
        if is_lost(options.device):
            go_on(report, left)
    if options.device == "cuda":
        if not options.no_launches:
            report.launches()
        report.table()
    report.say("done")


def rows_of(
    chosen: list[Work], names: list[str], settings: Settings, say: Say
) -> Iterator[tuple[str, Iterable[Row]]]:
    """The rows of each name, measured one by one as they are asked for."""
    for work in chosen:
        yield work.key, passes_of(work, settings, say)
    for key, make in STEPS.items():
        if key in names:
            yield key, make(settings, say)


def passes_of(work: Work, settings: Settings, say: Say) -> Iterator[Row]:
    for which in work.passes:
        try:
            row = measure(work, which, settings, say)
        except Exception as failure:
            row = failed_row(f"{work.key} {which}", work.goal, failure)
        yield row


def failed_row(key: str, goal: str, failure: BaseException) -> Row:
    note = short(failure)
    return Row(key, f"{key}: not run: {note}", goal, notes={"row": note})


def is_lost(device: str) -> bool:
    """Whether a kernel has made the device unusable for this process."""
    try:
        if device == "cuda":
            torch.cuda.synchronize()
            torch.zeros(1, device=device)
    except Exception as failure:
        print(f"the device is lost: {short(failure)}", flush=True)
        return True
    return False


def go_on(report: Report, left: list[str]) -> NoReturn:
    """Measures the other rows in a new process, in the place of this one."""
    report.table()
    if not left:
        raise SystemExit(1)
    options = sys.argv[1:]
    if "--rows" in options:
        start = options.index("--rows")
        end = start + 1
        while end < len(options) and not options[end].startswith("-"):
            end += 1
        del options[start:end]
    os.environ[CONTINUED] = "1"
    print(f"going on with {' '.join(left)}", flush=True)
    os.execv(sys.executable, [sys.executable, __file__, *options, "--rows", *left])


def clear(device: str) -> None:
    """Forgets what torch.compile has made, and gives its memory back."""
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        with contextlib.suppress(RuntimeError):  # of a lost device
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
