"""What tuning brings, and how fast: each kernel as it is usually made, and the best found so far.

For layers of ``benchmarks/spellings``, with gradients for their backward parts, one search each:
milliseconds of the usual kernel for these sizes, then the part of them that the best candidate
takes after so many seconds and after so many measurements, and what was adopted in the end.
Candidates that an earlier run has compiled come from the cache: start with an empty one to see
seconds.

``--order evolution`` breeds candidates instead of asking the model: two of those that were fast are
crossed, and one choice changes. Both orders are compared after the same number of measurements.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from calls import prepare
from spellings import LAYERS, Layer

import loma
from loma import specialise
from loma.backends.schedule.choices import Choice, Taken
from loma.tools import bench, cli_tune
from loma.tuning import calls, search
from loma.tuning.results import Result

AFTER_SECONDS = (5.0, 20.0, 100.0)
AFTER_TRIALS = (5, 10, 20, 40)


class Evolution(search.Search):
    """Candidates by crossing two of the faster half of those that were measured, and changing one
    choice, as in Vasilache et al., "Tensor Comprehensions", 2018, section 5."""

    dice = random.Random(0)

    def _candidates(self, best: search._Best) -> Iterator[Taken]:
        measured = sorted(self.trials, key=lambda trial: trial.ratio)
        parents = [{}, *(trial.taken for trial in measured[: (len(measured) + 1) // 2])]
        for _ in range(1000):  # most are known after a while
            one, other = self.dice.choice(parents), self.dice.choice(parents)
            names = sorted({*one, *other})
            child = {n: (one if self.dice.random() < 0.5 else other).get(n) for n in names}
            yield self._changed({n: o for n, o in child.items() if o is not None}, best.choices)

    def _changed(self, taken: Taken, choices: Mapping[str, Choice]) -> Taken:
        name = self.dice.choice(sorted(choices))
        option = self.dice.choice(choices[name].options)
        others = {n: o for n, o in taken.items() if n != name}
        return others if option == choices[name].options[0] else {**others, name: option}


def searched(layer: Layer, seconds: float) -> list[Result]:
    """The searches for the parts of a layer's first spelling."""
    module = loma.compile(layer.file)
    specialise.tune(module, seconds, again=True)
    function = getattr(module, layer.spellings()[0])
    bench.calling(function, [*layer.arguments(), *layer.rest], not layer.writes)()
    return [result for result in specialise.tuned() if result.program == layer.name]


def best_after(result: Result, seconds: float = float("inf"), trials: int | None = None) -> float:
    """The part of the usual time that the best candidate takes by then."""
    known = [best for at, _, best in result.history[:trials] if at <= seconds]
    return known[-1] if known else 1.0


def line(result: Result) -> str:
    parts = [best_after(result, seconds=seconds) for seconds in AFTER_SECONDS]
    parts += [best_after(result, trials=trials) for trials in AFTER_TRIALS]
    texts = " ".join(f"{part:7.2f}" for part in (*parts, result.tuned / result.usual))
    name = f"{result.program}.{result.function}"
    return f"{name:40s} {1e3 * result.usual:9.3f} {texts} {len(result.history):6d}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="layers to tune; default: all of them")
    parser.add_argument("--seconds", type=float, default=100.0, help="of each search")
    parser.add_argument("--order", choices=["model", "evolution"], default="model")
    parser.add_argument("--threads", type=int, help="of a call; default: torch's")
    parser.add_argument("--plot", type=Path, help="draw the searches")
    parser.add_argument("--json", type=Path, help="write the searches")
    options = parser.parse_args()
    known = {layer.name: layer for layer in LAYERS if not layer.writes}
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no layer {', '.join(unknown)}; there are {', '.join(known)}")
    prepare(options.threads or torch.get_num_threads())
    calls.nearest = lambda *_: []  # nothing is known from earlier runs
    if options.order == "evolution":
        search.Search = Evolution  # type: ignore[misc]
    heads = [f"{s:5.0f} s" for s in AFTER_SECONDS] + [f"{n:4d} th" for n in AFTER_TRIALS]
    print(f"{'kernel':40s} {'usual ms':>9s} {' '.join(heads)} adopted trials")
    found: list[Result] = []
    for name in options.names or known:
        for result in searched(known[name], options.seconds):
            found.append(result)
            print(line(result), flush=True)
    if options.plot:
        cli_tune.picture(found).savefig(options.plot)
    if options.json:
        records = [dataclasses.asdict(result) for result in found]
        options.json.write_text(json.dumps(records, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
