"""What the tables share: options, what is checked before anything is timed, times and memory.

A row is one pass (forward, or forward with backward) of a piece of work that loma and its peers do
(``gpu_work/work.py``). All forms run in this process. First the results and the gradients of every
form are compared with the first peer's in float64, at small sizes; a form that is wrong is not
timed. Then, at the sizes of the table, the forms take turns: by CUDA events on a GPU, where peers
are eager, torch.compile and max-autotune, as calls and as CUDA graphs (``gpu_work/rows.py``); on
the CPU by the clock, where all forms have an allocator that keeps what is freed. In the end one
call of each form shows how much memory it takes beyond its arguments.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from calls import prepare
from forms import keeping_allocators
from gpu import COMPILERS, Report, clear, failed_row
from gpu_work import timing
from gpu_work.rows import (
    AUTOTUNE, COMPILE, EAGER, GRAPH, LATE, LOMA, Inputs, Measuring, Row, Settings, add_compiled,
    inputs_of, is_late, prepare_own, short, size_of_pass,
)  # fmt: skip
from gpu_work.timing import Call, Form
from gpu_work.work import Function, Work
from harness import ROUNDS, whole
from torch import Tensor

from loma import memory, specialise
from loma.tools.cli_numbers import THREADS, Whole
from loma.tools.measure import interleaved_medians, machine, peak_memory, reset_peak_memory

SIZE = whole(Whole(1, 1 << 24))
SPARE = 0.85  # of the memory that is free, what a row may take
BUDGET = {"cpu": 240.0, "cuda": 140.0}  # seconds, after which nothing is compiled by torch
SAMPLE_SECONDS = 0.02
NONE = specialise.Thresholds(calls=10**9)  # the kernels for all sizes are enough


def parser(description: str) -> argparse.ArgumentParser:
    """The options of every table."""
    out = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    out.add_argument("--quick", action="store_true", help="tiny sizes, one round and no "
                     "torch.compile: only to see that all runs")  # fmt: skip
    out.add_argument("--rounds", type=ROUNDS, help="samples of each form: 7, on a GPU 15")
    out.add_argument("--threads", type=whole(THREADS), default=2, help="of the CPU (default 2)")
    out.add_argument("--budget", type=float, metavar="SECONDS", help="after that long nothing is "
                     "compiled by torch.compile any more: 240, on a GPU 140")  # fmt: skip
    out.add_argument("--no-compile", action="store_true", help="without torch.compile")
    out.add_argument("--rows", nargs="+", metavar="NAME", help="only these rows")
    out.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return out


def add_curves(out: argparse.ArgumentParser, what: str) -> None:
    """``--plot`` and ``--draw``; :func:`is_drawn` does what the second asks for."""
    out.add_argument("--plot", type=Path, metavar="PNG", help=f"draw curves {what}")
    out.add_argument("--draw", type=Path, metavar="FILE", help="measure nothing, draw what "
                     "--json has written")  # fmt: skip


def is_drawn(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    draw: Callable[[Mapping[str, Any], Path], None],
) -> bool:
    """Whether results of another run were to be drawn, which is done then."""
    if not options.draw:
        return False
    if not options.plot:
        parser.error("--draw needs --plot, the picture's file")
    draw(json.loads(options.draw.read_text(encoding="utf-8")), options.plot)
    return True


@dataclass(frozen=True, slots=True)
class Session:
    """A run of a script."""

    options: argparse.Namespace
    settings: Settings
    report: Report
    failed: list[str] = dataclasses.field(default_factory=list)

    @property
    def device(self) -> str:
        return self.settings.device

    def say(self, text: str) -> None:
        self.report.say(text)

    def wants(self, name: str) -> bool:
        return not self.options.rows or name in self.options.rows

    def add(self, row: Row) -> None:
        self.report.add(row)
        if self.settings.compile:
            clear(self.device)


def begin(options: argparse.Namespace, names: Sequence[str]) -> Session:
    """Sets this process up; SystemExit where an option asks for what is not there. On the CPU the
    process starts anew, in an environment in which memory that is freed stays with it."""
    if unknown := [name for name in options.rows or () if name not in names]:
        raise SystemExit(f"no row {', '.join(unknown)}: there are {', '.join(names)}")
    device: str = options.device
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device; --device cpu measures on the CPU")
    keeping = keeping_allocators()["glibc"]
    if device == "cpu" and not options.quick and not keeping.items() <= os.environ.items():
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **keeping})
    prepare(1 if options.quick else options.threads)
    if options.quick:
        specialise.use(NONE)
    rounds = options.rounds or (15 if device == "cuda" else 7)
    budget = BUDGET[device] if options.budget is None else options.budget
    settings = Settings(
        device, options.quick, 1 if options.quick else rounds,
        compile=not (options.no_compile or options.quick), deadline=time.monotonic() + budget,
    )  # fmt: skip
    found = machine()
    where = f"{found.processor}, {found.cpus} CPUs, {options.threads} threads"
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        settings = dataclasses.replace(settings, copy=timing.copy_bandwidth())
        torch.cuda.empty_cache()
        where = f"{torch.cuda.get_device_name()}, copy at {settings.copy / 1e9:.0f} GB/s"
    report = Report(options.json, settings, f"torch {torch.__version__}, {where}")
    report.say(f"{report.machine}, float32")
    gc.collect()
    gc.freeze()  # collecting garbage, which every measurement begins with, passes over modules
    return Session(options, settings, report)


# ------------------------------------------------------------------------------------- a row


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the table: a work, and the same of ``small`` sizes, at which it is checked.

    ``needs``: bytes that a call of the leanest form takes, arguments included. ``growth``: of a
    sweep over a size, what that has grown by. ``own``: more forms of loma. ``lengths``: lines of
    source, by form."""

    work: Work
    small: Work
    needs: float = 0.0
    growth: float = 0.0
    own: Mapping[str, Callable[[], Function]] = dataclasses.field(default_factory=dict)
    lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)


class Compared(Measuring):
    """Forms that were checked at small sizes: at those of the table, where float64 may not fit, the
    norms of their results and a sample of the elements are the first form's."""

    def reference(self) -> list[Tensor]:
        return []

    def check(self, name: str, found: Any) -> None:
        prints = [part for tensor in found for part in fingerprint(tensor)]
        self.exact = self.exact or prints
        super().check(name, prints)


def fingerprint(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The norm of a tensor, and 4,096 of its elements; both in float64."""
    tensor = tensor.detach()
    if not tensor.numel():
        return tensor.double().reshape(-1), tensor.double().reshape(-1)
    at = torch.arange(0, tensor.numel(), max(1, tensor.numel() // 4096), device=tensor.device)
    chosen = tensor[torch.unravel_index(at, tensor.shape)] if tensor.dim() else tensor.reshape(1)
    return tensor.norm().double().reshape(1), chosen.double()


def measure(entry: Entry, which: str, session: Session, before: Row | None = None) -> Row:
    """The row of one pass. ``before``: that of the same pass at the last size of a sweep; forms
    that do not fit by what it says are left out, and of torch.compile only the form that was the
    fastest there is tried. Raises ArithmeticError where loma's results are wrong."""
    work = entry.work
    settings = session.settings
    row = Row(f"{work.key} {which}", f"{work.title}: {which}", work.goal)
    row.notes.update(check(entry.small, which, settings) if before is None else {})
    row.results.update({f"lines, {name}": lines for name, lines in entry.lengths.items()})
    if LOMA in row.notes:
        raise ArithmeticError(row.notes[LOMA])
    torch.manual_seed(0)
    inputs = inputs_of(work, settings)
    row.size = size_of_pass(which, inputs[0])
    m = Compared(row, work, which, inputs, settings, session.say)
    m.tolerance = max(m.tolerance, 1e-3)
    if before is not None:
        row.notes.update(left_out(before, entry.growth, settings))
    for name, make in {LOMA: work.own, **entry.own}.items():
        if name not in row.notes:
            m.add(name, make())
    for name, function in work.peers.items():
        if f"{EAGER} {name}" not in row.notes:
            m.add(f"{EAGER} {name}", function)
    for name, make in work.others.items():
        if name not in row.notes:
            add_other(m, name, make)
    if settings.device == "cuda":
        m.add_captured(LOMA)
        for name in m.of_group(EAGER):
            m.add_captured(name)
    if not (work.compiles and settings.compile):
        pass
    elif is_late(settings):
        row.notes[COMPILE] = LATE
    elif settings.device == "cuda":
        add_compiled(m)
    else:
        compile_for_cpu(m, before)
    row.times = times_of(m.forms, settings)
    row.memory = memory_of(m.forms, settings.device)
    return row


def add_other(m: Measuring, name: str, make: Callable[[], Function]) -> None:
    """A form of another library, or a note that says what is missing."""
    try:
        function = make()
    except ModuleNotFoundError as missing:
        m.row.notes[name] = f"skipped: {missing.name} is not installed"
    except Exception as failure:
        m.note(name, failure)
    else:
        m.add(name, function)


def check(work: Work, which: str, settings: Settings) -> dict[str, str]:
    """What is wrong with a form of a work of small sizes, by the form's name: its results and
    gradients are not those of the first peer in float64."""
    torch.manual_seed(1)
    row = Row(f"{work.key} {which}", work.title, work.goal)
    device = settings.device
    one = inputs_of(work, dataclasses.replace(settings, device="cpu"))[0]
    moved = Inputs(on(device, one.args), on(device, one.weights))
    m = Measuring(row, work, which, [moved], settings, lambda _: None)
    usual = specialise.use(NONE)
    try:
        m.add(LOMA, work.own())
    finally:
        specialise.use(usual)
    for name, function in work.peers.items():
        m.add(f"{EAGER} {name}", function)
    for name, make in work.others.items():
        add_other(m, name, make)
    return row.notes


def on(device: str, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(a.detach().to(device).requires_grad_(a.requires_grad) for a in args)


def left_out(before: Row, growth: float, settings: Settings) -> dict[str, str]:
    """The forms that do not fit, with the reason: by the memory that they took before. On a GPU
    they are tried, and say so themselves."""
    notes = {}
    for name, size in before.memory.items():
        reason = too_large(growth * size, settings.device) if settings.device == "cpu" else ""
        if reason:
            notes[name] = reason
    gone = {name for name in before.notes if name != COMPILE} - before.times.keys()
    return {**{name: before.notes[name] for name in gone}, **notes}


def compile_for_cpu(m: Measuring, before: Row | None) -> None:
    """torch.compile of the two forms that are the fastest without, as long as there is time."""
    eager = m.of_group(EAGER)
    known = {name: time for name, time in (before.times if before else {}).items()
             if name.startswith(COMPILE)}  # fmt: skip
    if known:
        chosen = [min(known, key=known.__getitem__).removeprefix(f"{COMPILE} ")]
    else:
        taken = times_of({name: m.forms[name] for name in eager}, m.settings, rounds=1)
        best = sorted(eager, key=taken.__getitem__)[:2]
        chosen = [name.removeprefix(f"{EAGER} ") for name in best]
    for name in chosen:
        if f"{COMPILE} {name}" in m.row.notes:
            continue
        if is_late(m.settings):
            m.row.notes[f"{COMPILE} {name}"] = LATE
        else:
            m.add(f"{COMPILE} {name}", torch.compile(m.work.peers[name]))


def times_of(forms: Mapping[str, Form], settings: Settings, rounds: int = 0) -> dict[str, float]:
    """Medians in milliseconds of forms that take turns."""
    rounds = rounds or settings.rounds
    if settings.device == "cuda":
        return timing.side_by_side(forms, rounds)
    calls = {name: form.calls[0] for name, form in forms.items()}
    seconds = 0.0 if settings.quick else SAMPLE_SECONDS
    taken = interleaved_medians(calls, rounds=rounds, warmup=1, min_seconds=seconds)
    return {name: 1e3 * taken.median(name) for name in forms}


# ------------------------------------------------------------------------------------ memory


def memory_of(forms: Mapping[str, Form], device: str) -> dict[str, int]:
    """Bytes that one call of each form takes at most beyond what is there before, its results
    included; forms that have memory of their own from call to call are left out."""
    return {
        name: extra_memory(form.calls[0], device)
        for name, form in forms.items()
        if not name.endswith(GRAPH) and not name.startswith(AUTOTUNE)
    }


def extra_memory(call: Call, device: str) -> int:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated()) - before
    memory.release()
    ctypes.CDLL(None).malloc_trim(0)  # so that memory is taken anew, which is what counts pages
    reset_peak_memory()
    before = peak_memory()
    call()
    return peak_memory() - before


def room(device: str) -> float:
    """Bytes that a row may take."""
    if device == "cuda":
        return SPARE * float(torch.cuda.mem_get_info()[0])
    return SPARE * float(psutil.virtual_memory().available)


def too_large(needed: float, device: str) -> str:
    """Why a row of so many bytes is left out; empty where it fits."""
    free = room(device)
    if needed <= free:
        return ""
    return f"skipped: it takes {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"


# ---------------------------------------------------------------------------------- all rows


def compile_all(entries: Sequence[Entry], session: Session) -> None:
    """Has loma compile what the rows will call, several programs at once; what fails is found again
    in its row."""
    small = list({entry.small.key: entry.small for entry in entries}.values())

    def compiled(work: Work) -> str:
        if session.device == "cuda":
            return prepare_own(work, "cuda")
        try:
            work.own()
        except Exception as failure:
            return short(failure)
        return ""

    with ThreadPoolExecutor(COMPILERS if session.device == "cuda" else 2) as pool:
        for work, failed in zip(small, pool.map(compiled, small), strict=True):
            if failed:
                session.say(f"{work.title}: {failed}")


def run(entries: Iterable[Entry], session: Session) -> None:
    """Measures rows as long as they fit. A row that fails tells why, and the others go on."""
    entries = list(entries)
    compile_all(entries, session)
    before: dict[str, Row] = {}  # the rows of a sweep's last size
    for entry in entries:
        reason = too_large(entry.needs, session.device)
        for which in entry.work.passes:
            key = f"{entry.work.key} {which}"
            if reason:
                session.say(f"{entry.work.title}: {reason}")
                session.add(Row(key, f"{key}: {reason}", entry.work.goal, notes={"row": reason}))
                continue
            try:
                last = before.get(which) if entry.growth else None
                row = measure(entry, which, session, last)
                before[which] = row
                session.add(row)
            except Exception as failure:
                session.failed.append(key)
                session.add(failed_row(key, entry.work.goal, failure))


def main(
    description: str, rows: Sequence[str], entries: Callable[[Session], Iterable[Entry]]
) -> None:
    """A script that measures entries and has no more options."""
    session = begin(parser(description).parse_args(), rows)
    run(entries(session), session)
    finish(session)


def finish(session: Session) -> None:
    """Prints the table; SystemExit where a row has failed."""
    session.report.table()
    print("\nMiB that a call takes beyond its arguments, results included")
    for row in session.report.rows:
        if row.memory:
            each = (f"{name} {size / 2**20:,.0f}" for name, size in row.memory.items())
            print(f"{row.key:30s} {', '.join(each)}")
    if session.failed:
        raise SystemExit(f"failed: {', '.join(session.failed)}")
