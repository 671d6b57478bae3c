"""Starts Python with a sanitizer in it, for kernels that are compiled with LOMA_SANITIZE.

``python tests/support/sanitized.py address -m pytest --capture=sys tests/kernels/test_tiles.py``
runs tests, or any script, with AddressSanitizer and UndefinedBehaviorSanitizer in generated code
and runtime; ``thread`` takes ThreadSanitizer. Reports are printed at the end, and the exit code is
1 when there are any.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so"}
# Of new memory every byte is 255, a NaN: what is read before it is written shows in results, too.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=0:detect_stack_use_after_return=1:"
    "allocator_may_return_null=1:max_malloc_fill_size=1073741824:malloc_fill_byte=255",
    # What a child of a test writes to its stderr may be seen by nobody: such a process ends.
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    # torch, OpenMP and Python are not compiled so: their own accesses are nobody's business
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:die_after_fork=0:report_signal_unsafe=0:"
    "allocator_may_return_null=1:exitcode=0",
}


def start(kind: str) -> tuple[list[str], dict[str, str]]:
    """What stands before a command, and its environment. RuntimeError: why there is none here."""
    prefix, library = _start(kind.partition(",")[0])
    # AddressSanitizer follows exceptions only where C++ is there from the start.
    preload = f"LD_PRELOAD={library} libstdc++.so.6"
    return [*prefix, "env", preload], {"LOMA_SANITIZE": kind}


@functools.cache
def _start(kind: str) -> tuple[tuple[str, ...], str]:
    compiler = shutil.which("g++") or ""
    asked = [compiler, f"-print-file-name={LIBRARIES[kind]}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False) if compiler else None
    library = found.stdout.strip() if found else ""
    if not Path(library).is_absolute():
        raise RuntimeError(f"g++ has no {LIBRARIES[kind]} here")
    # ThreadSanitizer wants addresses where some kernels do not put them, unless they are asked to.
    said = ""
    for prefix in ((), ("setarch", "-R")):
        command = [*prefix, "env", f"LD_PRELOAD={library}", sys.executable, "-c", "import ctypes"]
        if prefix and not shutil.which(prefix[0]):
            continue
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=_environment()
        )
        if done.returncode == 0:
            return prefix, library
        said = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[0]
    raise RuntimeError(f"Python does not start with {LIBRARIES[kind]}: {said}")


def _environment(reports: Path | None = None) -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    found = {**os.environ, **OPTIONS, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    found.pop("LD_PRELOAD", None)
    if reports is not None:
        for name in OPTIONS:
            found[name] += f":log_path={reports / name.partition('_')[0].lower()}"
    return found


def run(
    kind: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    timeout: float | None = None,
) -> tuple[int, str, list[str]]:
    """Runs Python; its exit code, what it printed, and the reports, each beginning with its kind.

    ``kind``: a value of LOMA_SANITIZE. RuntimeError: why sanitizers do not run here.
    """
    prefix, own = start(kind)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*prefix, sys.executable, *arguments],
            env={**_environment(Path(folder)), **own, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout,
        )
        files = sorted(Path(folder).iterdir())
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    found = [report for text in texts for report in split(text) or [text]]
    return done.returncode, done.stdout, found + split(done.stdout)  # where UBSan reports


_STARTS = re.compile(
    r"^(?:==\d+==\s*ERROR: |WARNING: ThreadSanitizer: |\S*:\d+:\d+: runtime error: )", re.M
)


def split(text: str) -> list[str]:
    """The reports of a text, each with what follows it."""
    starts = [match.start() for match in _STARTS.finditer(text)]
    return [text[a:b].strip() for a, b in itertools.pairwise([*starts, len(text)])]


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    code, output, reports = run(sys.argv[1], sys.argv[2:], {})
    print(output, end="")
    for report in reports:
        if report not in output:
            print(f"\n{report}")
    print(f"{len(reports)} reports, exit code {code}")
    return 1 if code or reports else 0


if __name__ == "__main__":
    sys.exit(main())
