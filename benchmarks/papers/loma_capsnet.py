"""CapsNet in loma, as a student project had it first: three versions, ten iterations each.

The project gave the teaching compiler a tensor type, generated C++, and compared ten iterations of
forward and backward, without Python and through pybind11, with PyTorch: 2.37 times the time, 1.23
times the memory, 2.5 times the soft page faults. Here the same three versions of today, by
``capsnet-loma profile``: in turn, each in a process of its own, an iteration's figures by linear
regression over iteration counts; and PyTorch once more with an allocator that keeps what is freed,
which is what the faults are about.

    python benchmarks/papers/loma_capsnet.py --json FILE --plot FILE.png
    python benchmarks/papers/loma_capsnet.py --draw FILE --plot FILE.png
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from forms import keeping_allocators
from harness import whole

from capsnet_loma.config import CapsNetConfig
from capsnet_loma.native_program import build
from capsnet_loma.profiling.cases import SMALL_NETWORK
from capsnet_loma.profiling.processes import ProfileError
from capsnet_loma.profiling.profile import profile
from loma.tools.cli_numbers import THREADS, Whole

ITERATIONS = 10
NOT_COUNTED = "–"


@dataclass(frozen=True, slots=True)
class Bar:
    """A version's figures for ten iterations; None where they were not counted.

    ``memory`` in MB, soft page ``faults`` in thousands, cache ``references`` in millions.
    """

    name: str
    seconds: float
    memory: float
    faults: float
    references: float | None

    def value(self, what: str) -> float | None:
        found: float | None = getattr(self, what)
        return found


FIGURES = {
    "seconds": "time, s", "memory": "memory, MB", "faults": "soft page faults, thousands",
    "references": "cache references, millions",
}  # fmt: skip
PUBLISHED = (
    Bar("PyTorch", 1.368, 1206, 1455, 2.7),
    Bar("generated C++", 3.246, 1484, 3635, 4.1),
)


def measured(results: Mapping[str, Any]) -> list[Bar]:
    """The versions of a profile's JSON."""
    out = []
    for version in results["versions"]:
        references = version["cache_references_per_iteration"]
        seconds = version["seconds_per_iteration"]["slope"]
        faults = max(0.0, version["minor_faults_per_iteration"]["slope"])
        counted = ITERATIONS * references["slope"] / 1e6 if isinstance(references, dict) else None
        memory = version["peak_memory_bytes"] / 1e6
        label = version["label"]
        out.append(Bar(label, ITERATIONS * seconds, memory, ITERATIONS * faults / 1e3, counted))
    return out


def table(bars: Sequence[Bar]) -> str:
    """Rows in Markdown: the figures, and what they are of the first version's."""
    lines = [
        "| | " + " | ".join(bar.name for bar in bars) + " |",
        "|---|" + "---:|" * len(bars),
    ]
    for what, title in FIGURES.items():
        first = bars[0].value(what)
        cells = [_cell(bar.value(what), None if k == 0 else first) for k, bar in enumerate(bars)]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: float | None, first: float | None) -> str:
    if value is None:
        return NOT_COUNTED
    digits = 0 if value >= 100 else 1 if value >= 10 else 3
    return f"{value:,.{digits}f}" + (f" ({value / first:.2f}x)" if first else "")


def draw(results: Mapping[str, Any], path: Path) -> list[Path]:
    """Writes the picture for light and for dark pages."""
    from loma.tools.pictures import save_themes

    return save_themes(partial(_drawn, results), path)


def _drawn(results: Mapping[str, Any], theme: Any) -> Any:
    from matplotlib.figure import Figure

    from loma.tools.pictures import DPI, headed, plain

    bars = measured(results)
    shown = ("seconds", "memory", "faults")
    figure = Figure(figsize=(9.6, 3.4), dpi=DPI)
    places = figure.subplots(1, len(shown))
    figure.subplots_adjust(left=0.14, right=0.985, bottom=0.06, top=0.70, wspace=0.14)
    names = ["PyTorch, published", "C++, published", *(bar.name for bar in bars)]
    for place, axes, what in zip(range(len(shown)), places, shown, strict=True):
        groups = (PUBLISHED, bars)
        values = [bar.value(what) or 0.0 for group in groups for bar in group]
        ratios = [
            (bar.value(what) or 0.0) / (group[0].value(what) or 1.0)
            for group in groups for bar in group
        ]  # fmt: skip
        is_loma = [k == 1 or "loma" in name for k, name in enumerate(names)]
        colours = [theme.loma if own else theme.peers[1] for own in is_loma]
        heights = [0.0, 1.0, *(2.4 + k for k in range(len(bars)))]
        drawn = axes.barh(heights, ratios, color=colours, height=0.72)
        pairs = zip(values, ratios, strict=True)
        labels = [f"{_number(value)} ({ratio:.2f}x)" for value, ratio in pairs]
        axes.bar_label(drawn, labels, padding=3, fontsize=8)
        axes.set_yticks(heights, names if place == 0 else [""] * len(names), fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(max(heights) + 0.6, -0.6)
        axes.set_xlim(0, 1.75 * max(ratios))
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.set_title(FIGURES[what], fontsize=10, loc="left")
        plain(axes)
    machine = results["machine"]["processor"]
    headed(
        figure, "CapsNet in loma: ten iterations of forward and backward",
        f"bars are times of PyTorch on the same machine; published: the student project; measured: "
        f"batch {results['batch']}, {results['threads']} threads, {machine}",
        theme,
    )  # fmt: skip
    return figure


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def parsed(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=whole(Whole(1, 100_000)), default=100)
    parser.add_argument("--threads", type=whole(THREADS), default=2, help="of each version")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each version, about")
    parser.add_argument("--quick", action="store_true", help="a tiny network: only to see it run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="a picture, and one for dark pages"
    )
    parser.add_argument("--draw", type=Path, metavar="FILE", help="of these results: nothing runs")
    return parser.parse_args(args)


def results_of(options: argparse.Namespace) -> Mapping[str, Any]:
    if options.draw:
        found: Mapping[str, Any] = json.loads(options.draw.read_text(encoding="utf-8"))
        return found
    config, batch, seconds = CapsNetConfig(), options.batch, options.seconds
    if options.quick:
        config, batch, seconds = SMALL_NETWORK, 4, 0.2
    with tempfile.TemporaryDirectory(prefix="loma-capsnet-") as folder:
        return profile(
            lambda: build(Path(folder)), config, batch=batch, threads=options.threads,
            seconds=seconds, environment=keeping_allocators()["glibc"],
            progress=lambda what, done, total: print(f"{done}/{total} {what}", file=sys.stderr),
        ).to_json()  # fmt: skip


def main() -> None:
    options = parsed()
    try:
        results = results_of(options)
    except ProfileError as error:
        raise SystemExit(str(error)) from error
    where = results["machine"]
    print("Published, ten iterations:\n\n" + table(PUBLISHED))
    print(f"\nHere: batch {results['batch']}, {results['threads']} threads, {where['processor']}, "
          f"torch {where['torch']}; all losses and gradients agree\n")  # fmt: skip
    print(table(measured(results)))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        for path in draw(results, options.plot):
            print(path)


if __name__ == "__main__":
    main()
