"""What the first call costs: from an empty cache, and loaded from the cache.

    python benchmarks/compile_time.py

Processor time is that of all processes together, wall time what a user waits. Each row is a process
of its own, which compiles and takes one training step in float32. Importing torch is not counted;
Python keeps bytecode as it does for any package, so that the first row compiles it.
All but the last find the runtime, which is compiled once a machine, in the cache; the last begins
with nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forms import LOMA, Settings
from harness import settings_parser, write_json

ROOT = Path(__file__).resolve().parent.parent
PREPARE = """
import json, resource, time
import torch
from pathlib import Path

def spent():
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)

capsnet = Path("capsnet_loma")
text = (capsnet / "digit_capsules.loma").read_text()
U, W, X = torch.randn(2, 10, 32, 16), torch.randn(10, 32, 16, 8), torch.randn(2, 32, 8)
for tensor in (U, W, X):
    tensor.requires_grad_()
wall, processor = time.perf_counter(), spent()
import loma
"""
REPORT = """
print(json.dumps([spent() - processor, time.perf_counter() - wall]))
"""


@dataclass(frozen=True, slots=True)
class Work:
    """Something to compile: ``goal`` is in seconds of processor time, or ``wall`` time."""

    key: str
    title: str
    code: str
    goal: float
    wall: bool = False


WORK = (
    Work(
        "runtime",
        "the runtime, once a machine, with a function of one line",
        'loma.compile("def f(x : In[Tensor[N]]) -> Tensor[N]:\\n    return x\\n").f(X[0, 0])',
        20.0,
    ),
    Work(
        "squash",
        "`squash`",
        'loma.compile(capsnet / "squash.loma").squash(U[0]).sum().backward()',
        1.5,
    ),
    Work(
        "routing",
        "the routing",
        'program = text[text.index("def routing"):text.index("def digit_capsules")]\n'
        "loma.compile(program).routing(U, 3, 0).sum().backward()",
        4.0,
    ),
    Work(
        "digit_capsules",
        "`digit_capsules`",
        'loma.compile(capsnet / "digit_capsules.loma").digit_capsules(W, X, 3, 0).sum().backward()',
        8.0,
    ),
    Work(
        "capsnet",
        "CapsNet's eight modules, with the runtime",
        "from capsnet_loma.layers import layers\nlayers()",
        20.0,
        wall=True,
    ),
)


def seconds(work: Work, cache: str, bytecode: str) -> tuple[float, float]:
    """Processor and wall time."""
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"LOMA_CACHE_DIR": cache, "PYTHONPYCACHEPREFIX": bytecode}
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + work.code + REPORT],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    processor, wall = json.loads(done.stdout.splitlines()[-1])
    return processor, wall


def measured(work: Work, cache: str, bytecode: str) -> dict[str, Any]:
    processor, wall = seconds(work, cache, bytecode)
    loaded = sorted(seconds(work, cache, bytecode)[1] for _ in range(3))[1]
    unit = "wall" if work.wall else "processor"
    print(
        f"{work.title:60s} processor {processor:6.1f} s  wall {wall:6.1f} s  "
        f"goal {work.goal:4.1f} s ({unit})  from the cache {loaded:5.2f} s",
        flush=True,
    )
    return {
        "key": work.key,
        "title": work.title,
        "groups": {LOMA: {"seconds": wall, "processor": processor, "loaded": loaded}},
        "ratios": {},
        "goals": {unit: work.goal},
    }


def main() -> None:
    options = settings_parser(__doc__ or "").parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as bytecode:
        for work in WORK[:2] if options.quick else WORK:
            with tempfile.TemporaryDirectory() as other:
                rows.append(measured(work, other if work.wall else kept, bytecode))
    if options.json:
        settings = Settings(options.rounds, options.threads, options.quick)
        write_json(options.json, "compile_time", settings, rows)


if __name__ == "__main__":
    main()
