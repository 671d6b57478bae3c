"""What the benchmarks share: the same work done by several peers, each in a process of its own.

A benchmark is a list of cases, a case a list of forms (:class:`forms.Form`): ways to do the same
work, in groups ("eager PyTorch", "torch.compile", "loma"). Of a group the fastest form is kept, so
that each peer is at its best. Then one process of each group takes its turn in every round, and a
ratio is the median of the rounds' ratios: a machine that gets slower meanwhile is slower for all.
As processes share no memory, page faults and peak memory belong to one peer, and a peer can have an
allocator of its own.

All peers start from the same seed, and have to have the same results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from forms import LOMA, Case, Form, Settings

from capsnet_loma.profiling.processes import ProfileError, Process, Version
from capsnet_loma.profiling.profile import check_agreement
from loma import specialise
from loma.tools.cli_numbers import THREADS, Whole
from loma.tools.measure import Timings, reset_peak_memory

SAMPLE_SECONDS = 0.1  # a sample repeats the work until it takes this long
WARM_UP = 3  # calls before the first that counts
TRIALS = 3  # samples of each form, to find the fastest


@dataclass(frozen=True, slots=True)
class Result:
    """The best form of a group: seconds, page faults and peak memory (bytes) of one call.

    ``others`` has the seconds of the forms that were slower.
    """

    form: str
    samples: tuple[float, ...]
    minor_faults: float
    peak_memory: int
    others: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return statistics.median(self.samples)


@dataclass(frozen=True, slots=True)
class Row:
    """A measured case. ``ratios``: how many times as fast as each other group loma is."""

    key: str
    title: str
    results: Mapping[str, Result]
    ratios: Mapping[str, float]
    goals: Mapping[str, float]

    def record(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "title": self.title,
            "groups": {
                group: {"seconds": result.seconds, **dataclasses.asdict(result)}
                for group, result in self.results.items()
            },
            "ratios": dict(self.ratios),
            "goals": dict(self.goals),
        }


# --------------------------------------------------------------------------- the measured process


def serve(form: Form, settings: Settings) -> None:
    """Obeys the lines of ``capsnet_loma/profiling/worker.py`` for a form that is made in this
    process."""
    from calls import prepare

    prepare(settings.threads)
    assert form.make is not None
    step = form.make()
    say = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is no answer
    results = dict(step())
    loss = results.pop("loss", None)
    first = {name: value.detach().double() for name, value in results.items()}
    answer = {
        "loss": 0.0 if loss is None else loss.item(),
        "gradients": {k: [v.sum().item(), v.abs().sum().item()] for k, v in first.items()},
    }
    del results, first
    print(json.dumps(answer), file=say, flush=True)
    for _ in range(WARM_UP):
        step()
        specialise.wait()
    reset_peak_memory()
    for line in sys.stdin:
        match line.split():
            case ["run", count]:
                start = time.perf_counter()
                for _ in range(int(count)):
                    step()
                seconds = time.perf_counter() - start
                print(json.dumps({"seconds": seconds}), file=say, flush=True)


# ------------------------------------------------------------------------------------- measuring


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """What is being done now, on one line of a terminal; silent elsewhere."""
    shown = sys.stderr.isatty()

    def say(text: str) -> None:
        if shown:
            print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        say("")


def measure(
    case: Case,
    settings: Settings,
    say: Callable[[str], None],
    known: Mapping[str, str] | None = None,
) -> Row:
    """Finds the best form of each group, then measures the groups in turn. ``known``: the names of
    the forms that were best in an earlier run, which are not looked for again."""
    groups = list(dict.fromkeys(form.group for form in case.forms))
    with tempfile.TemporaryDirectory(prefix="loma-benchmark-") as folder, ExitStack() as stack:
        best: dict[str, Process] = {}
        others: dict[str, dict[str, float]] = {group: {} for group in groups}
        by_group = {group: [f for f in case.forms if f.group == group] for group in groups}
        for group, name in (known or {}).items():
            same = [form for form in by_group.get(group, ()) if form.name == name]
            if same:
                by_group[group] = same
        if settings.quick or all(len(forms) == 1 for forms in by_group.values()):
            best = _all_at_once(case, by_group, settings, Path(folder), stack)
        else:
            for group, forms in by_group.items():
                best[group], others[group] = _fastest(
                    case, forms, settings, Path(folder), stack, say
                )
        check_agreement([(group, process.checksums) for group, process in best.items()])
        counts = {
            group: 1 if settings.quick else _count(process) for group, process in best.items()
        }
        seconds: dict[str, list[float]] = {group: [] for group in groups}
        faults: dict[str, list[float]] = {group: [] for group in groups}
        for turn in range(settings.rounds):
            say(f"{case.title}: round {turn + 1} of {settings.rounds}")
            for group in groups if turn % 2 == 0 else reversed(groups):
                sample = best[group].run(counts[group])
                seconds[group].append(sample.seconds / sample.iterations)
                faults[group].append(sample.minor_faults / sample.iterations)
        results = {
            group: Result(
                process.version.label,
                tuple(seconds[group]),
                statistics.median(faults[group]),
                process.end(),
                others[group],
            )
            for group, process in best.items()
        }
    timings = Timings({group: tuple(values) for group, values in seconds.items()})
    ratios = {group: timings.ratio(group, LOMA) for group in groups if group != LOMA}
    return Row(case.key, case.title, results, ratios, case.goals)


def _fastest(
    case: Case,
    forms: Sequence[Form],
    settings: Settings,
    folder: Path,
    stack: ExitStack,
    say: Callable[[str], None],
) -> tuple[Process, dict[str, float]]:
    """The running process of the fastest form, which the stack ends, and the others' seconds."""
    kept: tuple[float, Process, ExitStack] | None = None
    others: dict[str, float] = {}
    for form in forms:
        say(f"{case.title}: {form.group}, {form.name}")
        own = ExitStack()
        try:
            process = own.enter_context(_start(case, form, settings, folder))
            taken = [process.run(1).seconds for _ in range(TRIALS)] if len(forms) > 1 else [0.0]
        except ProfileError as error:
            own.close()
            if form is forms[-1] and kept is None:
                raise
            # A peer's own form may not run: torch.compile ends in a crash on some.
            say(f"{case.title}: {form.group}, {form.name} left out: {error}")
            continue
        if kept is None or min(taken) < kept[0]:
            slower, kept = kept, (min(taken), process, own)
        else:
            slower = (min(taken), process, own)
        if slower is not None:
            others[slower[1].version.label] = slower[0]
            slower[2].close()
    assert kept is not None
    stack.enter_context(kept[2])
    return kept[1], others


def _all_at_once(
    case: Case,
    by_group: Mapping[str, Sequence[Form]],
    settings: Settings,
    folder: Path,
    stack: ExitStack,
) -> dict[str, Process]:
    """The first form of each group, started together."""

    def start(forms: Sequence[Form]) -> Process:
        return _start(case, forms[0], settings, folder)

    with ThreadPoolExecutor() as pool:
        processes = list(pool.map(start, by_group.values()))
    return dict(zip(by_group, map(stack.enter_context, processes), strict=True))


def _start(case: Case, form: Form, settings: Settings, folder: Path) -> Process:
    if form.command is not None:
        command = form.command(folder)
    else:
        request = json.dumps([case.key, form.group, form.name, dataclasses.asdict(settings)])
        command = (sys.executable, str(Path(sys.argv[0]).resolve()), "--worker", request)
    if form.environment:
        command = ("env", *(f"{k}={v}" for k, v in form.environment.items()), *command)
    return Process(Version(form.group, form.name, command), settings.threads)


def _count(process: Process) -> int:
    """How many calls a sample is made of."""
    seconds = min(process.run(1).seconds for _ in range(2))
    return max(1, round(SAMPLE_SECONDS / max(seconds, 1e-6)))


# -------------------------------------------------------------------------------------- reporting


def table(rows: Sequence[Row]) -> str:
    """Milliseconds, ratios, page faults and peak memory of every group, as text."""
    width = max((len(group) for row in rows for group in row.results), default=0)
    lines = []
    for row in rows:
        lines.append(row.title)
        for group, result in row.results.items():
            ratio = f"loma is {row.ratios[group]:5.2f}x as fast" if group in row.ratios else ""
            goal = f" (goal {row.goals[group]:g}x)" if group in row.goals else ""
            lines.append(
                f"  {group:{width}s} {1e3 * result.seconds:9.2f} ms {result.minor_faults:9,.0f} "
                f"page faults {result.peak_memory / 2**20:6,.0f} MiB peak  {ratio}{goal}"
                f"  [{result.form}]"
            )
    return "\n".join(lines)


def whole(kind: Whole) -> Callable[[str], int]:
    """The type of an option of argparse that is an integer in a range."""

    def read(text: str) -> int:
        try:
            return kind.convert(text, None, None)
        except click.BadParameter as error:
            raise argparse.ArgumentTypeError(error.message) from None

    return read


ROUNDS = whole(Whole(1, 10_000))


def settings_parser(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=ROUNDS, default=9, help="rounds of interleaved samples")
    parser.add_argument("--threads", type=whole(THREADS), default=2, help="threads of each peer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes and one round: only to see that all runs"
    )
    return parser


def settings_of(options: argparse.Namespace) -> Settings:
    return Settings(1 if options.quick else options.rounds, options.threads, options.quick)


def write_json(
    path: Path,
    key: str,
    settings: Settings,
    rows: Sequence[dict[str, Any]],
    tables: Sequence[dict[str, Any]] = (),
) -> None:
    """``tables`` are shown as they are: their "columns", and the rows of their "body"."""
    record = {
        "benchmark": key, "settings": dataclasses.asdict(settings), "rows": rows, "tables": tables,
    }  # fmt: skip
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def known_forms(path: Path) -> dict[str, dict[str, str]]:
    """The fastest form of each group, by case, in a file that ``--json`` wrote."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {
        row["key"]: {group: found["form"] for group, found in row["groups"].items()}
        for row in rows
    }  # fmt: skip


def _of_groups(case: Case, groups: Sequence[str] | None) -> Case:
    if not groups:
        return case
    return dataclasses.replace(case, forms=[form for form in case.forms if form.group in groups])


def main(description: str, cases: Callable[[Settings], Sequence[Case]]) -> None:
    """The main function of a benchmark; ``cases`` gives them for the sizes that are asked for."""
    parser = settings_parser(description)
    parser.add_argument("--case", action="append", metavar="KEY", help="only that case")
    parser.add_argument(
        "--forms", type=Path, metavar="FILE",
        help="results of an earlier run: its fastest forms are taken, none is looked for",
    )  # fmt: skip
    parser.add_argument("--group", action="append", metavar="NAME", help="only that peer")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        key, group, name, given = json.loads(options.worker)
        settings = Settings(**given)
        case = next(case for case in cases(settings) if case.key == key)
        serve(next(f for f in case.forms if (f.group, f.name) == (group, name)), settings)
        return
    settings = settings_of(options)
    found = [_of_groups(case, options.group) for case in cases(settings)]
    known = [case.key for case in found]
    for key in options.case or ():
        if key not in known:
            parser.error(f"no case '{key}': there are {', '.join(known)}")
    forms = known_forms(options.forms) if options.forms else {}
    rows: list[Row] = []
    with progress() as say:
        for case in found:
            if not options.case or case.key in options.case:
                rows.append(measure(case, settings, say, forms.get(case.key)))
                say("")
                print(table(rows[-1:]), flush=True)
    if options.json:
        name = Path(sys.argv[0]).stem
        write_json(options.json, name, settings, [row.record() for row in rows])
