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
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from gpu_work import steps, timing
from gpu_work.rows import Row, Say, Settings, measure, prepare_own, short
from gpu_work.work import works

# Rows that are not of gpu_work/work.py.
STEPS: dict[str, Callable[[Settings, Say], list[Row]]] = {
    "capsnet": lambda settings, say: [
        steps.capsnet(trains, settings, say) for trains in (False, True)
    ],
    "adam": lambda settings, say: [steps.adam(settings, say)],
    "calls": steps.calls,
}
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

    def write(self) -> None:
        if self.file is None:
            return
        content = {
            "machine": self.machine, "copy bytes a second": self.settings.copy,
            "tf32": self.settings.tf32,
            "rows": [row.record(self.settings.copy) for row in self.rows],
        }  # fmt: skip
        self.file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def table(self) -> None:
        print(f"\n{'row':30s} {'loma ms':>9s} {'peer ms':>9s} {'ratio':>6s} {'GB/s':>6s} "
              f"{'copy':>5s}  fastest forms; wanted")  # fmt: skip
        for row in self.rows:
            own, peer, bandwidth = row.best(True), row.best(False), row.bandwidth()
            mine = f"{row.times[own]:9.4f}" if own else f"{'-':>9s}"
            other = f"{row.times[peer]:9.4f}" if peer else f"{'-':>9s}"
            ratio = f"{row.ratio():6.2f}" if own and peer else f"{'-':>6s}"
            speed = f"{bandwidth / 1e9:6.0f}" if bandwidth else f"{'-':>6s}"
            share = f"{bandwidth / self.settings.copy:5.0%}" if bandwidth else f"{'-':>5s}"
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
    with ThreadPoolExecutor(COMPILERS) as pool:
        for work, failed in zip(
            chosen, pool.map(lambda work: prepare_own(work, options.device), chosen), strict=True
        ):
            report.say(f"{work.key}: {failed.get(work.key, 'compiled')}")
    for work in chosen:
        for which in work.passes:
            try:
                report.add(measure(work, which, settings, report.say))
            except Exception as failure:
                report.add(failed_row(f"{work.key} {which}", work.goal, failure))
            clear(options.device)
    for name, make in STEPS.items():
        if name in options.rows:
            try:
                for row in make(settings, report.say):
                    report.add(row)
            except Exception as failure:
                report.add(failed_row(name, "-", failure))
            clear(options.device)
    if options.device == "cuda":
        if not options.no_launches:
            report.launches()
        report.table()
    report.say("done")


def failed_row(key: str, goal: str, failure: BaseException) -> Row:
    return Row(key, f"{key}: not run: {short(failure)}", goal, notes={"row": short(failure)})


def clear(device: str) -> None:
    """Forgets what torch.compile has made, and gives its memory back."""
    torch._dynamo.reset()
    if device == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
