"""The rows with goals at several numbers of threads: loma, eager PyTorch and torch.compile in their
steady states, on a machine with as many cores.

    python benchmarks/scaling.py                       1, 2, 4, 8 and 16 threads, if there are cores
    python benchmarks/scaling.py --counts 1 --counts 2
    python benchmarks/scaling.py --script capsnet      the rows of one benchmark

Peers take the form that was the fastest in the kept results. Beside medians it prints the slowest
sample of loma as a multiple of its median, which shows outliers.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from forms import COMPILE, EAGER, LOMA, Settings
from harness import settings_parser, whole, write_json

from loma.tools.cli_numbers import THREADS

FOLDER = Path(__file__).resolve().parent
COUNTS = (1, 2, 4, 8, 16)
SCRIPTS = ("layers", "capsules", "capsnet", "training")
COLUMNS = ("work", "threads", LOMA, f"vs {EAGER}", f"vs {COMPILE}", "slowest sample")


def rows(script: str, threads: int, rounds: int, quick: bool) -> list[dict[str, Any]]:
    """A script's rows with goals, measured with so many threads."""
    kept = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))["benchmarks"][script]
    with tempfile.TemporaryDirectory() as folder:
        forms, made = Path(folder, "forms.json"), Path(folder, "made.json")
        forms.write_text(json.dumps(kept), encoding="utf-8")
        command = [sys.executable, str(FOLDER / f"{script}.py"), "--json", str(made)]
        command += ["--threads", str(threads), "--rounds", str(rounds), "--forms", str(forms)]
        command += [f"--group={group}" for group in (EAGER, COMPILE, LOMA)]
        command += [f"--case={row['key']}" for row in kept["rows"] if row["goals"] and not quick]
        command += ["--quick"] * quick
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
            raise SystemExit(f"benchmarks/{script}.py failed")
        found: list[dict[str, Any]] = json.loads(made.read_text(encoding="utf-8"))["rows"]
    return found


def main() -> None:
    parser = settings_parser(__doc__ or "")
    parser.add_argument("--counts", type=whole(THREADS), action="append", help="numbers of threads")
    parser.add_argument("--script", choices=SCRIPTS, action="append", help="whose rows")
    options = parser.parse_args()
    cores = os.cpu_count() or 1
    counts = options.counts or [count for count in COUNTS if count <= cores]
    settings = Settings(options.rounds, max(counts), options.quick)
    body: dict[str, list[list[str]]] = {}
    for script in options.script or (SCRIPTS[:1] if options.quick else SCRIPTS):
        for threads in counts:
            for row in rows(script, threads, options.rounds, options.quick):
                samples = row["groups"][LOMA]["samples"]
                middle = statistics.median(samples)
                line = [row["title"], str(threads), f"{1e3 * middle:.3g} ms"]
                line += [f"{row['ratios'][group]:.2f}x" for group in (EAGER, COMPILE)]
                line.append(f"{max(samples) / middle:.2f}x")
                print(" | ".join(line), flush=True)
                body.setdefault(row["key"], []).append(line)
    if options.json:
        found = [line for lines in body.values() for line in lines]
        shown = [{"columns": COLUMNS, "body": found}]
        write_json(options.json, "scaling", settings, [], shown)


if __name__ == "__main__":
    main()
