"""Runs every benchmark behind the figures of the README, and writes them there.

    python benchmarks/run_all.py                 everything: half an hour on two cores
    python benchmarks/run_all.py --only capsnet  measures that one anew, keeps the other results
    python benchmarks/run_all.py --same-forms    measures anew, but only what was fastest last time
    python benchmarks/run_all.py --render        only writes tables and pictures from the results

The results go to benchmarks/results.json; from them the tables between the lines
``<!-- benchmarks -->`` and ``<!-- /benchmarks -->`` of README.md and docs/performance.md are
written, and the pictures that benchmarks/reporting/pictures.py draws.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from reporting import pictures, report
from forms import Settings
from harness import settings_of, settings_parser

FOLDER = Path(__file__).resolve().parent
# Those that look for the fastest form of each peer.
OF_FORMS = ("capsules", "layers", "capsnet", "training", "optimisers")
SCRIPTS = (
    *OF_FORMS, "convolution", "index_statements", "spellings", "first_minute", "compile_time",
)  # fmt: skip


def run(name: str, settings: Settings, earlier: report.Record | None) -> report.Record:
    """What the script wrote as JSON; SystemExit where it fails. It takes the fastest forms of an
    earlier run, where there is one."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "results.json"
        command = [sys.executable, str(FOLDER / f"{name}.py"), "--json", str(made)]
        command += ["--rounds", str(settings.rounds), "--threads", str(settings.threads)]
        command += ["--quick"] * settings.quick
        if earlier is not None and name in OF_FORMS:
            forms = Path(folder) / "forms.json"
            forms.write_text(json.dumps(earlier), encoding="utf-8")
            command += ["--forms", str(forms)]
        if subprocess.run(command).returncode != 0:
            raise SystemExit(f"benchmarks/{name}.py failed")
        record: report.Record = json.loads(made.read_text(encoding="utf-8"))
    return record


def render(results: report.Record, root: Path) -> None:
    """Writes the tables and the pictures into a checkout."""
    for path in pictures.write(results, root):
        print(f"wrote {path}")
    blocks = {
        "README.md": report.readme_block(results),
        "docs/performance.md": report.page_block(results),
    }
    for page, block in blocks.items():
        done = report.rewrite(root / page, block)
        print(f"wrote {page}" if done else f"{page} has no <!-- benchmarks --> to write between")


def main() -> None:
    parser = settings_parser(__doc__ or "")
    parser.set_defaults(json=FOLDER / "results.json")
    parser.add_argument("--only", action="append", choices=SCRIPTS, help="only that script")
    parser.add_argument(
        "--same-forms", action="store_true",
        help="take the peers' forms that were fastest in the kept results, try no others",
    )  # fmt: skip
    parser.add_argument("--render", action="store_true", help="measure nothing")
    parser.add_argument(
        "--root", type=Path, default=FOLDER.parent, help="the checkout whose pages are written"
    )
    options = parser.parse_args()
    kept: report.Record = {}
    if (options.render or options.only or options.same_forms) and options.json.exists():
        kept = json.loads(options.json.read_text(encoding="utf-8"))
    if options.render:
        if not kept:
            parser.error(f"there are no results in {options.json}")
        render(kept, options.root)
        return
    settings = settings_of(options)
    benchmarks = dict(kept.get("benchmarks", {}))
    for name in _present(options.only or SCRIPTS):
        print(f"== {name}", flush=True)
        earlier = kept.get("benchmarks", {}).get(name) if options.same_forms else None
        benchmarks[name] = run(name, settings, earlier)
    results = {
        "environment": report.environment(),
        "settings": dataclasses.asdict(settings),
        "benchmarks": {name: benchmarks[name] for name in SCRIPTS if name in benchmarks},
    }
    options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    render(results, options.root)


def _present(names: Sequence[str]) -> list[str]:
    for name in names:
        if not (FOLDER / f"{name}.py").exists():
            print(f"there is no benchmarks/{name}.py")
    return [name for name in names if (FOLDER / f"{name}.py").exists()]


if __name__ == "__main__":
    main()
