"""Compiles the kernels of all programs of the tests for named architectures, in the forms of
``loma build --device cuda``. It needs NVRTC and no GPU; ``.ci/full`` runs it.

    PYTHONPATH=tests:tests/support:tests/support/cases python tests/cuda/build_all.py --arch sm_90
"""

from __future__ import annotations

import argparse
import sys
import time

from corpus import tensor_programs

from loma import pipeline
from loma.backends.cuda import ahead, nvrtc
from loma.errors import CompilationFailed
from loma.tools import cli_cuda


def main() -> int:
    """1 where a kernel does not compile."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", action="append", required=True, help="such as sm_90")
    parser.add_argument(
        "--quick", action="store_true", help="one form of each kernel, in float32, not all"
    )
    options = parser.parse_args()
    version = ".".join(map(str, nvrtc.find().version))
    start = time.perf_counter()
    failures: list[str] = []
    kernels = forms = 0
    programs = tensor_programs()
    for number, (name, text) in enumerate(programs, 1):
        tasks = cli_cuda.tasks(pipeline.parsed(text, name), options.arch)
        if options.quick:
            widest = {(t.kernel, t.architecture): t for t in tasks if t.real == "float"}
            tasks = list(widest.values())
        kernels += len({task.kernel for task in tasks})
        try:
            forms += len(ahead.build(tasks))
        except CompilationFailed as error:
            failures.append(str(error))
            print(error, flush=True)
        if number % 20 == 0:
            print(f"{number} of {len(programs)} programs, {forms} forms", flush=True)
    seconds = time.perf_counter() - start
    print(
        f"NVRTC {version}, {', '.join(options.arch)}: {len(programs)} programs, {kernels} kernels "
        f"in {forms} forms, {seconds:.0f} s; {len(failures)} programs failed"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
