"""``loma build --device cuda``: kernels of programs for a named GPU, which need not be there."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loma import pipeline
from loma.core.ir import Module
from loma.errors.excerpts import one_line
from loma.errors.spans import line_in_file
from loma.reports import progress
from loma.tools.cli_reports import emit, report_record

if TYPE_CHECKING:
    from loma.backends.cuda.ahead import Built, Task


class Architecture(click.ParamType[str]):
    """A name such as sm_90."""

    name = "architecture"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not re.fullmatch(r"sm_\d{2,3}", text):
            self.fail(f"{text!r} is no architecture of GPUs, such as sm_80 or sm_90", param, ctx)
        return text


def check_options(device: str, architectures: Sequence[str], output: str | None) -> None:
    """A usage error for options that do not belong together."""
    if device == "cuda" and not architectures:
        raise click.UsageError(
            "--device cuda needs --arch: the architecture to compile for, such as sm_90"
        )
    if device != "cuda" and (architectures or output):
        option = "--arch" if architectures else "--output"
        raise click.UsageError(f"{option} is for --device cuda")


def build(programs: Sequence[Module], architectures: Sequence[str], output: str | None) -> None:
    """The command, but for its options."""
    from loma.backends.cuda import ahead, nvrtc

    library = nvrtc.find()
    start = time.perf_counter()
    found: list[Task] = []
    with progress("lowering") as update:
        for number, program in enumerate(programs):
            update(Path(program.path).name, number, len(programs))
            found += tasks(program, architectures)
    with progress("compiling kernels") as update:
        built = ahead.build(found, update)
    if output is not None:
        ahead.write(built, Path(output))
    seconds = time.perf_counter() - start
    version = ".".join(map(str, library.version))
    records = [_program(program, built) for program in programs]
    lines: list[str] = []
    for record in records:
        lines += _lines(record)
    count = sum(len(record["kernels"]) for record in records)
    lines.append(
        f"NVRTC {version}, {', '.join(architectures)}: {count} kernels in {len(built)} forms, "
        f"{_bytes(sum(len(one.image) for one in built))}, built in {seconds:.2f} s"
    )
    record = {"modules": records, "nvrtc": version, "architectures": list(architectures)}
    emit({**record, "forms": len(built), "seconds": round(seconds, 3)}, lines)


def tasks(program: Module, architectures: Sequence[str]) -> list[Task]:
    """What is to be compiled of a program: @simd functions, and functions of tensors with all that
    autograd runs."""
    from loma.backends.cuda import ahead
    from loma.backends.cuda.forms import Kernel

    stage = pipeline.program(program.source, program.path, every=True)
    found: list[Task] = []
    for own in stage.scalar_functions:
        if own.simd:
            text, name = pipeline.items_kernel(stage.module, own.name)
            line = line_in_file(own.span.line) if own.span.line else 0
            kernel = Kernel(name, text, line, "items", numbers=0)
            found += ahead.of_kernel(program.path, own.name, kernel, architectures)
    if not stage.tensor_functions:
        return found
    module = pipeline.generated(stage)
    for function in pipeline.device_parts(module):
        source = pipeline.device_part(stage, function, module.name)
        found += ahead.tasks(program.path, function, source, architectures)
    return found


def _program(program: Module, built: Sequence[Built]) -> dict[str, Any]:
    own = [one for one in built if one.task.path == program.path]
    names = dict.fromkeys((one.task.function, one.task.kernel.name) for one in own)
    return {
        "path": program.path,
        "kernels": [
            _kernel([one for one in own if (one.task.function, one.task.kernel.name) == name])
            for name in names
        ],
        "warnings": list(map(report_record, program.warnings)),
    }


def _kernel(built: Sequence[Built]) -> dict[str, Any]:
    """The most that a kernel's forms need."""
    task = built[0].task
    needs = [one.needs for one in built if one.needs is not None]
    record: dict[str, Any] = {
        "name": task.kernel.name, "function": task.function, "line": task.kernel.line,
        "kind": task.kernel.how, "forms": len(built),
        "bytes": sum(len(one.image) for one in built),
    }  # fmt: skip
    for what in ("registers", "shared", "stack"):
        record[what] = max((getattr(need, what) for need in needs), default=None)
    return record


def _lines(record: dict[str, Any]) -> list[str]:
    lines = [one_line(record["path"])]
    function = None
    for kernel in record["kernels"]:
        if kernel["function"] != function:
            function = kernel["function"]
            lines.append(f"  {function}")
        line = f", line {kernel['line']}" if kernel["line"] else ""
        lines.append(f"    {kernel['name']}{line}: {_facts(kernel)}")
    if not record["kernels"]:
        lines.append("  no kernels")
    return lines


def _facts(kernel: dict[str, Any]) -> str:
    found = [f"{kernel['forms']} forms", _bytes(kernel["bytes"])]
    if kernel["registers"] is not None:
        found.append(f"{kernel['registers']} registers")
        found += [f"{_bytes(kernel['shared'])} of shared memory"] * (kernel["shared"] > 0)
        found += [f"{_bytes(kernel['stack'])} of stack"] * (kernel["stack"] > 0)
    return ", ".join(found)


def _bytes(count: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
