"""Results of all benchmarks as tables for README.md and docs/performance.md."""

from __future__ import annotations

import platform
import re
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

from forms import COMPILE, EAGER, KEEPING, LOMA

from capsnet_loma.profiling.processes import allocators
from loma.backends import compilers
from loma.config import CXX
from loma.tools.measure import machine

Record: TypeAlias = dict[str, Any]

BLOCK = re.compile(r"(<!-- benchmarks -->\n).*?(<!-- /benchmarks -->)", re.DOTALL)
PEERS = (EAGER, KEEPING, COMPILE)
# Benchmarks of so many rows that the README gets their summary, and what a row of them is.
COMPILE_TIME = "compile_time"  # which has no peers
MANY = {
    "optimisers": "steps of optimisers",
    "index_statements": "index statements",
    "spellings": "layers in their slowest spelling",
}


# ------------------------------------------------------------------------- what it was measured on


def environment() -> Record:
    """Machine, versions and date."""
    found = machine()
    compiler = compilers.compiler_version(compilers.find_compiler(CXX), CXX)
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    huge = re.search(r"\[(\w+)\]", pages.read_text("ascii")) if pages.exists() else None
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": found.processor,
        "cpus": found.cpus,
        "memory_bytes": found.memory,
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "huge_pages": huge[1] if huge else "not available",
        "libc": " ".join(platform.libc_ver()),
        "compiler": compiler.splitlines()[0],
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "numpy")},
        },
        "loma": _revision(),
        "allocators": sorted(allocators()),
    }


def _revision() -> str:
    """The checkout's commit, or the installed version."""
    root = Path(__file__).resolve().parent
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else metadata.version("loma-torch")


def stated(results: Record) -> str:
    """The environment in a sentence."""
    e, threads = results["environment"], results["settings"]["threads"]
    versions = e["versions"]
    other = ", ".join(e["allocators"]) or "neither jemalloc nor tcmalloc is installed"
    return (
        f"{e['processor']}, {e['cpus']} CPUs, {e['memory_bytes'] / 2**30:.0f} GiB, {e['system']}; "
        f"torch {versions['torch']}, Python {versions['python']}, {e['compiler']}, {e['libc']}; "
        f"transparent huge pages: {e['huge_pages']}; other allocators: {other}; loma at "
        f"{e['loma']}, {e['date']}. {threads} threads, float32, medians of "
        f"{results['settings']['rounds']} interleaved rounds, each peer in its fastest form."
    )


# ------------------------------------------------------------------------------------------- tables


def _rows(results: Record) -> Iterator[tuple[str, Record]]:
    for name, benchmark in results["benchmarks"].items():
        for row in benchmark["rows"]:
            yield name, row


def figures(results: Record) -> list[Record]:
    """The rows that have a goal."""
    return [
        row
        for name, row in _rows(results)
        if row.get("goals") and name not in (*MANY, COMPILE_TIME)
    ]


def ms(seconds: float) -> str:
    """A time in a table or picture."""
    value = 1e3 * seconds
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _time(row: Record, group: str) -> str:
    found = row["groups"].get(group)
    return "" if found is None else ms(found["seconds"])


def ahead(row: Record) -> float | None:
    """How many times as fast as its fastest peer loma is; None where it has none."""
    return min((float(row["ratios"][p]) for p in PEERS if p in row["ratios"]), default=None)


def _ratio(row: Record, group: str, goal: bool = False) -> str:
    if group not in row["ratios"]:
        return ""
    text = f"{row['ratios'][group]:.2f}x"
    wanted = row.get("goals", {}).get(group)
    return f"{text} (goal {wanted:g}x)" if goal and wanted else text


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A table whose first ``texts`` columns are text, and whose others are numbers."""
    ruler = " --- |" * texts + " ---: |" * (len(columns) - texts)
    lines = [f"| {' | '.join(columns)} |", f"|{ruler}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def times_table(rows: Sequence[Record], goals: bool = False) -> str:
    columns = ("work", EAGER, COMPILE, LOMA, "vs eager", f"vs {COMPILE}")
    return markdown(
        columns,
        [
            (
                row["title"],
                *(_time(row, group) for group in (EAGER, COMPILE, LOMA)),
                *(_ratio(row, group, goals) for group in (EAGER, COMPILE)),
            )
            for row in rows
        ],
    )


def compile_table(rows: Sequence[Record]) -> str:
    """Seconds until the first step has run, and of which a goal is."""
    body = []
    for row in rows:
        found = row["groups"][LOMA]
        goal = ", ".join(f"{value:g} s {unit}" for unit, value in row["goals"].items())
        times = (f"{found[kind]:.1f} s" for kind in ("processor", "seconds"))
        body.append((row["title"], *times, goal, f"{found['loaded']:.2f} s"))
    names = "work, processor time, wall time, goal, from the cache"
    return markdown(names.split(", "), body)


def spellings_table(rows: Sequence[Record]) -> str:
    """How far a layer's spellings are apart: times of eager's call and of the fastest, and how many
    times as long as these the slowest takes."""
    names = "layer, eager PyTorch, fastest, slowest / fastest, slowest / eager, the slowest"
    body = [
        (
            row["title"], _time(row, EAGER), ms(row["fastest"]["seconds"]), f"{row['spread']:.2f}",
            f"{1.0 / row['ratios'][EAGER]:.2f}", row["groups"][LOMA]["form"].replace("_", " "),
        )
        for row in rows
    ]  # fmt: skip
    return markdown(names.split(", "), body)


def memory_table(rows: Sequence[Record]) -> str:
    """Page faults of a call and peak memory of the process, each peer's."""
    body = []
    for row in rows:
        for group, found in row["groups"].items():
            if "peak_memory" in found:
                faults, peak = f"{found['minor_faults']:,.0f}", found["peak_memory"] / 2**20
                form, times = found.get("form", ""), _ratio(row, group)
                title = row["title"] if group == next(iter(row["groups"])) else ""
                numbers = (ms(found["seconds"]), times, faults, f"{peak:,.0f} MiB")
                body.append((title, group, form, *numbers))
    names = "work, peer, fastest form, time, loma against it, page faults, peak memory"
    return markdown(names.split(", "), body, texts=3)


def best_table(results: Record) -> str:
    """Each peer's time, and how many times as fast as the fastest of them loma is; of benchmarks
    with many rows that alone."""
    body = []
    for row in figures(results):
        times = (_time(row, group) for group in (*PEERS, LOMA))
        body.append((row["title"], *times, f"{ahead(row) or 0.0:.2f}x"))
    for name, what in MANY.items():
        rows = results["benchmarks"].get(name, {}).get("rows", [])
        ratios = [ratio for row in rows if (ratio := ahead(row)) is not None]
        if ratios:
            text = (
                f"{min(ratios):.2f}x to {max(ratios):.1f}x, median {statistics.median(ratios):.2f}x"
            )
            body.append((f"{len(rows)} {what}, one by one", "", "", "", "", text))
    return markdown(("work", *PEERS, LOMA, "against the fastest peer"), body)


def shown(path: str, alternative: str) -> str:
    """A picture with one form for light and one for dark pages, as GitHub and MkDocs take it."""
    dark = path.replace(".png", "-dark.png")
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{path}" alt="{alternative}"></picture>'
    )


def readme_block(results: Record) -> str:
    picture = shown("docs/images/performance.png", "how long each version takes")
    return "\n".join([best_table(results), "", picture, "", stated(results)])


def page_block(results: Record) -> str:
    """For docs/performance.md: goals, memory, and every row."""
    rows = figures(results)
    bars = shown("images/performance.png", "how long each version takes")
    goals, memory = times_table(rows, goals=True), memory_table(rows)
    parts = [bars, "", stated(results), "", goals, "", memory]
    for name, benchmark in results["benchmarks"].items():
        if name == COMPILE_TIME:
            title = "What the first call costs, from an empty cache:"
            parts += ["", title, "", compile_table(benchmark["rows"])]
            continue
        rest = [row for row in benchmark["rows"] if not row.get("goals") or name in MANY]
        table = spellings_table if name == "spellings" else times_table
        if rest:
            parts += ["", f"`benchmarks/{name}.py`, the other rows:", "", table(rest)]
        for table in benchmark.get("tables", ()):
            parts += ["", f"`benchmarks/{name}.py`:", "", markdown(table["columns"], table["body"])]
    return "\n".join(parts)


def rewrite(page: Path, block: str) -> bool:
    """Puts the block between the page's markers; False where it has none."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    if not BLOCK.search(text):
        return False
    new = BLOCK.sub(lambda found: f"{found[1]}{block}\n{found[2]}", text)
    page.write_text(new, encoding="utf-8")
    return True
