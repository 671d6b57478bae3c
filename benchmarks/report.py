"""Results of all benchmarks as tables for README.md and docs/performance.md, and as a picture."""

from __future__ import annotations

import platform
import re
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

from forms import COMPILE, EAGER, LOMA

from capsnet_loma.profiling.processes import allocators
from loma.backends import compilers
from loma.config import CXX
from loma.tools.measure import machine

Record: TypeAlias = dict[str, Any]

BLOCK = re.compile(r"(<!-- benchmarks -->\n).*?(<!-- /benchmarks -->)", re.DOTALL)
PICTURE = "docs/images/performance.png"
# Benchmarks of so many rows that the README gets their summary, and what a row of them is.
COMPILE_TIME = "compile_time"  # which has no peers
MANY = {
    "optimisers": "steps of optimisers",
    "index_statements": "index statements",
    "spellings": "layers in their slowest spelling",
}
_COLOURS = {EAGER: "#9aa5b1", COMPILE: "#4c6a92"}


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


def _ms(group: Mapping[str, Any] | None) -> str:
    if group is None:
        return ""
    value = 1e3 * group["seconds"]
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


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
                *(_ms(row["groups"].get(group)) for group in (EAGER, COMPILE, LOMA)),
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
            row["title"], _ms(row["groups"][EAGER]), _ms(row["fastest"]), f"{row['spread']:.2f}",
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
                numbers = (_ms(found), times, faults, f"{peak:,.0f} MiB")
                body.append((title, group, form, *numbers))
    names = "work, peer, fastest form, time, loma against it, page faults, peak memory"
    return markdown(names.split(", "), body, texts=3)


def summaries(results: Record) -> list[tuple[str, str, str]]:
    """Benchmarks of many rows: (what, against eager, against torch.compile)."""
    out = []
    for name, what in MANY.items():
        rows = results["benchmarks"].get(name, {}).get("rows", [])
        texts = []
        for group in (EAGER, COMPILE):
            ratios = [row["ratios"][group] for row in rows if group in row["ratios"]]
            if ratios:
                middle = statistics.median(ratios)
                texts.append(f"{min(ratios):.2f}x to {max(ratios):.1f}x, median {middle:.2f}x")
            else:
                texts.append("")
        if rows:
            out.append((f"{len(rows)} {what}, one by one", texts[0], texts[1]))
    return out


def readme_block(results: Record) -> str:
    table = times_table(figures(results))
    more = [f"| {what} | | | | {eager} | {other} |" for what, eager, other in summaries(results)]
    picture = f"![how many times as fast as PyTorch loma is]({PICTURE})"
    return "\n".join([table, *more, "", picture, "", stated(results)])


def page_block(results: Record) -> str:
    """For docs/performance.md: goals, memory, and every row."""
    rows = figures(results)
    bars = f"![how many times as fast as PyTorch loma is]({Path(PICTURE).relative_to('docs')})"
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


# ------------------------------------------------------------------------------------------ picture


def picture(results: Record, path: Path) -> None:
    """Bars: how many times as fast loma is; a bar's tick is its goal, the line is PyTorch."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = figures(results)
    figure, axes = plt.subplots(figsize=(9.5, 0.9 * len(rows) + 1.6), layout="constrained")
    height = 0.36
    for k, row in enumerate(rows):
        for place, group in enumerate((EAGER, COMPILE)):
            if group not in row["ratios"]:
                continue
            y, ratio = k + (place - 0.5) * height, row["ratios"][group]
            axes.barh(
                y, ratio, height, color=_COLOURS[group],
                label=f"against {group}" if k == 0 else None,
            )  # fmt: skip
            axes.annotate(
                f"{ratio:.1f}x", (ratio, y), xytext=(5, 0), textcoords="offset points",
                va="center", fontsize=9,
            )  # fmt: skip
            goal = row["goals"].get(group)
            if goal:
                axes.plot([goal, goal], [y - height / 2, y + height / 2], color="#c0392b", lw=2)
    axes.axvline(1.0, color="#333333", lw=1)
    axes.set_yticks(range(len(rows)), [_wrapped(row["title"]) for row in rows], fontsize=9)
    axes.invert_yaxis()
    shown = [v for row in rows for kind in ("ratios", "goals") for v in row[kind].values()]
    axes.set_xlim(0, 1.12 * max([1.0, *shown]))
    axes.set_xlabel("times as fast as PyTorch, which is 1 (red: goal)")
    axes.legend(loc="lower right", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    e = results["environment"]
    axes.set_title(
        f"{e['processor']}, {results['settings']['threads']} threads, float32, "
        f"torch {e['versions']['torch']}", fontsize=10,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _wrapped(title: str, width: int = 34) -> str:
    lines = [""]
    for word in title.split():
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
