"""loma against the loma of another checkout, in one run: what a change does to speed and memory.

    git worktree add /tmp/before v1.0
    python benchmarks/versions.py /tmp/before                     every case
    python benchmarks/versions.py /tmp/before --case "routing forward" --case per_pixel

The cases are those of the other scripts with loma as a peer, and the statements of
``index_statements.py``, as each checkout has them. Above 1: loma is faster than it was.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

# Under ``--worker`` these are the modules of the checkout that is measured.
from forms import LOMA, Case, Form, Settings
from harness import (
    measure, progress, serve, settings_of, settings_parser, table, write_json,
)  # fmt: skip

SCRIPTS = ("capsules", "layers", "capsnet", "training", "optimisers")
BEFORE = "loma before"


def statements() -> list[Case]:
    """Each index statement, forward and with backward."""
    scripts = import_module("index_statements")

    def make(statement: Any, way: Any) -> Any:
        import loma

        module = loma.compile(f"{scripts.NEWTON_ROOT}\ndef {statement.name}{statement.text}")
        run = way(getattr(module, statement.name), scripts.arguments(statement))

        def step() -> Mapping[str, Any]:
            results = run()
            results = results if isinstance(results, tuple) else (results,)
            return {f"result {k}": result for k, result in enumerate(results)}

        return step

    return [
        Case(f"{s.name} {key}", f"{s.name}: {key}", [Form(LOMA, "loma", partial(make, s, way))])
        for s in scripts.STATEMENTS
        for key, way in (("forward", scripts.forward), ("forward + backward", scripts.both))
    ]


def cases(settings: Settings) -> list[Case]:
    """All cases with loma as their only peer."""
    found = [case for name in SCRIPTS for case in import_module(name).cases(settings)]
    return [
        replace(case, forms=[form for form in case.forms if form.group == LOMA][:1], goals={})
        for case in (*found, *statements())
    ]


def in_checkout(root: Path, case: Case, settings: Settings, _: Path) -> tuple[str, ...]:
    """The command that serves a case with the scripts and the loma of a checkout."""
    request = json.dumps([case.key, asdict(settings)])
    script = str(Path(__file__).resolve())
    path = f"PYTHONPATH={root / 'benchmarks'}:{root}"
    return ("env", path, sys.executable, "-P", script, "--worker", request)  # -P: not this folder


def compared(case: Case, before: Path, settings: Settings) -> Case:
    roots = {BEFORE: before.resolve(), LOMA: Path(__file__).resolve().parent.parent}
    forms = [
        Form(group, str(root), command=partial(in_checkout, root, case, settings))
        for group, root in roots.items()
    ]
    return replace(case, forms=forms)


def chosen(known: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """The cases whose names begin like one of ``names``; all, if there are none."""
    return [case for case in known if not names or case.key.startswith(tuple(names))]


def main() -> None:
    parser = settings_parser(__doc__ or "")
    parser.add_argument("checkout", type=Path, help="the folder of the other checkout")
    parser.add_argument("--case", action="append", default=[], metavar="KEY", help="only those")
    options = parser.parse_args()
    if not (options.checkout / "benchmarks" / "harness.py").exists():
        parser.error(f"{options.checkout} is no checkout of loma")
    settings = settings_of(options)
    known = cases(settings)
    found = chosen(known, options.case)
    if not found:
        parser.error(f"no such case: there are {', '.join(case.key for case in known)}")
    rows = []
    with progress() as say:
        for case in found:
            rows.append(measure(compared(case, options.checkout, settings), settings, say))
            say("")
            print(table(rows[-1:]), flush=True)
    if options.json:
        write_json(options.json, "versions", settings, [row.record() for row in rows])


def worker(request: str) -> None:
    key, given = json.loads(request)
    settings = Settings(**given)
    case = next(case for case in cases(settings) if case.key == key)
    serve(case.forms[0], settings)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2])
    else:
        main()
