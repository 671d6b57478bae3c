"""What tuning brings, and how fast: each kernel as it is usually made, and the best found so far.

For layers of ``benchmarks/spellings``, with gradients for their backward parts, one search each:
milliseconds of the usual kernel for these sizes, then the part of them that the best candidate
takes after so many seconds and after so many measurements, and what was adopted in the end.
Candidates that an earlier run has compiled come from the cache: start with an empty one to see
seconds.

``--order evolution`` breeds candidates instead of asking the model: two of those that were fast are
crossed, and one choice changes. Both orders are compared after the same number of measurements.

``--device cuda`` tunes on a GPU, with larger tensors. ``--peers`` tunes forward parts only, and
measures what is tuned in turn with eager PyTorch and torch.compile. ``--read`` measures nothing: it
draws the searches in files that ``--json`` has written, and prints the table of documentation.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from calls import inference, prepare
from spellings import LAYERS, Layer

import loma
from loma import specialise
from loma.backends.schedule.choices import Choice, Taken
from loma.tools import bench, cli_tune
from loma.tuning import calls, gpus, search
from loma.tuning.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from loma.tools.pictures import Theme

AFTER_SECONDS = (5.0, 20.0, 100.0)
AFTER_TRIALS = (5, 10, 20, 40)
ROUNDS = 15  # of samples, beside peers
PLANES = (64, 64, 56, 56)
ON_GPU = {
    "softmax": ((16384, 1024),), "log_sum_exp": ((16384, 1024),), "glu": ((16384, 2048),),
    "layer_norm": ((16384, 1024), (1024,), (1024,)), "rms_norm": ((16384, 1024), (1024,)),
    "group_norm": (PLANES, (64,), (64,)), "batch_norm": (PLANES, (64,), (64,)),
    "depthwise": (PLANES, (64, 3, 3)), "attention": 3 * ((64, 256, 64),),
    "distances": 2 * ((4096, 32),), "sampling": ((64, 16, 64, 64), (64, 64, 64, 2)),
    "routing": ((128, 10, 1152, 16),), "running_sums": ((4096, 1024),),
}  # fmt: skip

_turn: AbstractContextManager[Any] = contextlib.nullcontext()  # while a process measures

Record = dict[str, Any]  # a result as JSON, with the seconds of ``peers`` beside it


class Evolution(search.Search):
    """Candidates by crossing two of the faster half of those that were measured, and changing one
    choice, as in Vasilache et al., "Tensor Comprehensions", 2018, section 5."""

    dice = random.Random(0)

    def _candidates(self, best: search._Candidate) -> Iterator[tuple[Taken, None]]:
        measured = sorted(self.trials, key=lambda trial: trial.ratio)
        parents = [{}, *(trial.taken for trial in measured[: (len(measured) + 1) // 2])]
        for _ in range(1000):  # most are known after a while
            one, other = self.dice.choice(parents), self.dice.choice(parents)
            names = sorted({*one, *other})
            child = {n: (one if self.dice.random() < 0.5 else other).get(n) for n in names}
            own = {n: o for n, o in child.items() if o is not None}
            yield self._changed(own, best.choices), None

    def _changed(self, taken: Taken, choices: Mapping[str, Choice]) -> Taken:
        name = self.dice.choice(sorted(choices))
        option = self.dice.choice(choices[name].options)
        others = {n: o for n, o in taken.items() if n != name}
        return others if option == choices[name].options[0] else {**others, name: option}


def searched(layer: Layer, seconds: float, device: str, forward: bool, peers: bool) -> list[Record]:
    """The searches for the parts of a layer's first spelling, or for its forward part."""
    module = loma.compile(layer.file)
    specialise.tune(module, seconds, again=True)
    function = getattr(module, layer.spellings()[0])
    given = [tensor.detach().to(device).requires_grad_() for tensor in layer.arguments()]
    args = [*given, *layer.rest]
    bench.calling(function, args, not forward)()
    found = [result for result in specialise.tuned() if result.program == layer.name]
    times = beside(layer, function, args, device) if peers else {}
    return [{**dataclasses.asdict(result), "peers": times} for result in found]


def beside(
    layer: Layer, function: Callable[..., Any], args: Sequence[Any], device: str
) -> dict[str, float]:
    """Seconds of the tuned function, ``loma``, and of its peers, in turn."""
    candidates = {"loma": inference(function, args)}
    for name, peer in layer.peers.items():
        candidates[f"eager {name}"] = inference(peer, args)
        compiled = torch.compile(peer, dynamic=False)
        candidates[f"torch.compile {name}"] = inference(compiled, args)
    wanted = candidates["loma"]()
    for name, call in candidates.items():
        given = call()
        assert isinstance(given, torch.Tensor)
        assert isinstance(wanted, torch.Tensor)
        off = float((given.double() - wanted.double()).norm() / wanted.double().norm())
        if not off <= 5e-3:
            raise SystemExit(f"{layer.name}: {name} is off by {off}")
    timer = gpus.Timer(0) if device == "cuda" else search.fastest
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    with _turn:
        for _ in range(ROUNDS):
            for name, call in candidates.items():
                samples[name].append(timer(call, 20))
    return {name: statistics.median(times) for name, times in samples.items()}


def best_after(found: Record, seconds: float = float("inf"), trials: int | None = None) -> float:
    """The part of the usual time that the best candidate takes by then."""
    known = [best for at, _, best in found["history"][:trials] if at <= seconds]
    return float(known[-1]) if known else 1.0


def line(found: Record) -> str:
    parts = [best_after(found, seconds=seconds) for seconds in AFTER_SECONDS]
    parts += [best_after(found, trials=trials) for trials in AFTER_TRIALS]
    texts = " ".join(f"{part:7.2f}" for part in (*parts, found["tuned"] / found["usual"]))
    name = f"{found['program']}.{found['function']}"
    peers = ", ".join(f"{peer} {1e3 * time:.3f}" for peer, time in found["peers"].items())
    return f"{name:40s} {1e3 * found['usual']:9.3f} {texts} {len(found['history']):6d} {peers}"


# ---------------------------------------------------------------------- tables and pictures of it


def table(found: Sequence[Record]) -> str:
    """In Markdown, milliseconds: the usual kernel, the best by then, what was adopted, and the best
    peer in a run beside that."""
    heads = [f"after {seconds:.0f} s" for seconds in AFTER_SECONDS]
    rows = [["device", "kernel", "untuned", *heads, "adopted", "best peer", "tried"]]
    for one in found:
        usual = 1e3 * one["usual"]
        times = [usual, *(usual * best_after(one, s) for s in AFTER_SECONDS), 1e3 * one["tuned"]]
        peer = min((name for name in one["peers"] if name != "loma"), key=one["peers"].__getitem__)
        best = f"{1e3 * one['peers'][peer]:.3g} {peer}"
        where = {"cpu": "CPU", "cuda": "GPU"}[one["device"]]
        cells = [f"{time:.3g}" for time in times]
        rows.append([where, one["program"], *cells, best, str(len(one["history"]))])
    ruler = ["---", "---", *(["---:"] * (len(rows[0]) - 4)), "---", "---:"]
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], ruler, *rows[1:]))


def courses(found: Sequence[Record], theme: Theme) -> Figure:
    """The best so far of all searches in the course of time, for each device."""
    from matplotlib.figure import Figure

    from loma.tools.pictures import DPI, headed, plain

    devices = [name for name in ("cpu", "cuda") if any(one["device"] == name for one in found)]
    figure = Figure(figsize=(5.2 * len(devices), 4.6), dpi=DPI)
    title = "The best kernel so far, as a part of the usual one's time"
    note = "a line for each kernel, over the seconds of its search; a dot is what was adopted"
    headed(figure, title, note, theme)
    panels = figure.subplots(1, len(devices), squeeze=False)[0]
    figure.subplots_adjust(left=0.05, right=0.97, top=0.8, bottom=0.12, wspace=0.14)
    for device, axes in zip(devices, panels, strict=True):
        _lines([one for one in found if one["device"] == device], axes, theme)
        axes.set_title({"cpu": "CPU", "cuda": "GPU"}[device], loc="left", fontsize=11)
        plain(axes)
    return figure


def _lines(found: Sequence[Record], axes: Axes, theme: Theme) -> None:
    styles = ("-", "--")
    for k, one in enumerate(found):
        history = one["history"]
        times = [1.0, *(at for at, _, _ in history), max(AFTER_SECONDS)]
        best = [1.0, *(part for _, _, part in history), best_after(one)]
        colour, style = theme.runs[k % len(theme.runs)], styles[k // len(theme.runs) % 2]
        axes.step(
            times, best, style, where="post", color=colour, label=one["program"], linewidth=1.6
        )
        adopted = one["tuned"] / one["usual"]
        axes.plot([max(AFTER_SECONDS)], [adopted], "o", color=colour, clip_on=False, zorder=3)
    axes.set_xscale("log")
    axes.set_xticks([1, 5, 20, 100], ["1", "5", "20", "100"])
    axes.minorticks_off()
    axes.set_xlim(1.0, max(AFTER_SECONDS))
    axes.set_ylim(0.0, 1.05)
    axes.set_xlabel("seconds of the search")
    axes.grid(linewidth=0.8)
    axes.legend(frameon=False, fontsize=7.5, ncols=3, loc="lower left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="layers to tune; default: all of them")
    parser.add_argument("--seconds", type=float, default=100.0, help="of each search")
    parser.add_argument("--order", choices=["model", "evolution"], default="model")
    parser.add_argument("--threads", type=int, help="of a call; default: torch's")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--forward", action="store_true", help="only forward parts")
    parser.add_argument("--peers", action="store_true", help="these, beside peers")
    parser.add_argument(
        "--lock", type=Path, help="measure while no other process that names this file does"
    )
    parser.add_argument("--read", type=Path, nargs="+", help="results to draw and to print")
    parser.add_argument("--plot", type=Path, help="draw the searches")
    parser.add_argument("--json", type=Path, help="write the searches")
    options = parser.parse_args()
    if options.read:
        shown(options.read, options.plot)
        return
    known = {layer.name: layer for layer in LAYERS if not layer.writes}
    if options.device == "cuda":
        known = {
            name: dataclasses.replace(known[name], shapes=shapes) for name, shapes in ON_GPU.items()
        }
        torch.backends.cudnn.allow_tf32 = False
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no layer {', '.join(unknown)}; there are {', '.join(known)}")
    prepare(options.threads or torch.get_num_threads())
    calls.nearest = lambda *_: []  # nothing is known from earlier runs
    if options.lock:
        _take_turns(options.lock)
    if options.order == "evolution":
        search.Search = Evolution  # type: ignore[misc]
    heads = [f"{s:5.0f} s" for s in AFTER_SECONDS] + [f"{n:4d} th" for n in AFTER_TRIALS]
    print(f"{'kernel':40s} {'usual ms':>9s} {' '.join(heads)} adopted trials")
    found: list[Record] = []
    for name in options.names or known:
        forward = options.forward or options.peers
        for result in searched(
            known[name], options.seconds, options.device, forward, options.peers
        ):
            found.append(result)
            print(line(result), flush=True)
            if options.json:  # what is there should the rest not end
                options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if options.plot:
        results = [Result(**{k: v for k, v in one.items() if k != "peers"}) for one in found]
        cli_tune.picture(results).savefig(options.plot)


def _take_turns(path: Path) -> None:
    """Lets several processes search at a time, which compile most of it, of which one measures."""
    global _turn
    from filelock import FileLock

    _turn = lock = FileLock(path)

    def locked(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with lock:
                return function(*args)

        return run

    search.Search._measured = locked(search.Search._measured)  # type: ignore[method-assign]
    search.Search._confirmed = locked(search.Search._confirmed)  # type: ignore[method-assign]
    calls._Maker._checked = locked(calls._Maker._checked)  # type: ignore[method-assign]


def shown(files: Sequence[Path], plot: Path | None) -> None:
    """Prints the table of results in files, and draws their searches."""
    found = [one for path in files for one in json.loads(path.read_text("utf-8"))]
    found.sort(key=lambda one: (one["device"], one["program"]))  # of one colour on all devices
    print(table(found))
    if plot is not None:
        from loma.tools.pictures import save_themes

        save_themes(lambda theme: courses(found, theme), plot)


if __name__ == "__main__":
    main()
