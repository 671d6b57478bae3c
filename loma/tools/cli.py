"""The ``loma`` command: build a program, look into its stages, check its gradients, see the cache.

Exit codes: 0 all is well; 1 the program is wrong, does not compile or fails its check; 2 the
command line is wrong. Results go to standard output, errors to standard error; with ``--json`` both
are one JSON object on standard output. torch is imported only by the commands that run something.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.syntax import Syntax

from loma import cache as store, config, listings, pipeline
from loma.core.ir import Function, Module, is_tensor_function
from loma.core.names import module_names
from loma.core.printer import print_function
from loma.core.saving import SAVES, Save
from loma.errors.excerpts import one_line
from loma.frontend.packings import shown_names
from loma.tools import cli_cuda, cli_tune
from loma.tools.cli_numbers import AGE, BYTES, THREADS, Real, Whole
from loma.tools.cli_point import (
    FILE,
    complete_functions,
    named_size,
    point_arguments,
    point_options,
    points_of,
)
from loma.tools.cli_reports import (
    Commands,
    Refused,
    as_json,
    calling,
    emit,
    in_colour,
    json_option,
    report_record,
    show_warnings,
)

if TYPE_CHECKING:
    from loma.tools.check import GradientReport

STAGES = (*pipeline.STAGES, "source")
DTYPES = ("float32", "float64", "bfloat16", "float16")


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(config.VERSION, prog_name="loma")
def main() -> None:
    """Compiles .loma programs: tensor functions with generated derivatives.

    \b
    loma build squash.loma
    loma show --stage adjoint squash.loma d_squash
    loma check squash.loma squash --shapes "S=2,3,4"
    loma bench --explain squash.loma squash --shapes "S=100,1152,8"

    For names of options, files and functions at the tab key, put this into ~/.bashrc (for zsh and
    fish write zsh or fish for bash, and source it as they do):

    \b
    eval "$(_LOMA_COMPLETE=bash_source loma)"
    """


@main.command()
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--device",
    type=click.Choice(pipeline.DEVICES),
    default="cpu",
    help="cuda: compile the kernels that GPUs need, for --arch; none has to be there.",
)
@click.option(
    "--arch",
    "architectures",
    type=cli_cuda.Architecture(),
    multiple=True,
    metavar="sm_90",
    help="With --device cuda: for which GPUs; may be given several times.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="With --device cuda: where to write each kernel's text and what was made of it.",
)
@json_option
def build(
    files: tuple[str, ...], device: str, architectures: tuple[str, ...], output: str | None
) -> None:
    """Compile FILEs, several at once, and keep the result in the cache.

    With --device cuda, compile each kernel in every kind of form that calls may need, in float32
    and float64, and say what each needs at most. What calls need is compiled at their first, as a
    rule, for which this is no preparation but a check.
    """
    from loma import compiler

    cli_cuda.check_options(device, architectures, output)
    programs = [_parse(file) for file in files]
    show_warnings(*programs)
    if device == "cuda":
        cli_cuda.build(programs, architectures, output)
        return
    start = time.perf_counter()
    compiler.complete(compiler.compile_many([Path(file) for file in files]))
    seconds = time.perf_counter() - start
    records: list[dict[str, Any]] = [
        {
            "path": program.path,
            "functions": _signatures(program),
            "warnings": list(map(report_record, program.warnings)),
        }
        for program in programs
    ]
    lines: list[str] = []
    for record in records:
        lines += [one_line(record["path"]), *(f"  {text}" for text in record["functions"].values())]
    lines.append(f"built in {seconds:.2f} s")
    emit({"modules": records, "seconds": round(seconds, 3)}, lines)


def _signatures(program: Module) -> dict[str, str]:
    """Name and signature of every function that Python can call."""
    own = module_names(program)
    return {
        function.name: _signature(function)
        for function in pipeline.adjoint(program).functions
        if function.name in own
    }


@main.command()
@click.argument("file", type=FILE)
@click.argument("function", required=False, shell_complete=complete_functions)
@click.option(
    "--stage",
    type=click.Choice(STAGES),
    default="parsed",
    help="One of those above; 'source' is 'cpp'.",
)
@click.option(
    "--device",
    type=click.Choice(pipeline.DEVICES),
    default="cpu",
    help="Whose loops, and whose C++: for cuda with the kernels in CUDA C++. Needs no GPU.",
)
@click.option(
    "--save",
    type=click.Choice(SAVES),
    default="auto",
    help="What forward parts keep for backward parts, as in loma.compile.",
)
@click.option(
    "--saved", is_flag=True, help="List what FUNCTION keeps for its backward part, and its bytes."
)
@click.option(
    "--size", "sizes", multiple=True, metavar="N=4", help="With --saved: a size or int argument."
)
@json_option
def show(
    file: str,
    function: str | None,
    stage: str,
    device: str,
    save: Save,
    saved: bool,
    sizes: tuple[str, ...],
) -> None:
    """Print FILE, or one FUNCTION of it, as it stands after a stage of the compiler.

    \b
    parsed     as the compiler read it, in loma
    adjoint    with the derivatives that it asks for, in loma. If it asks for
               none, with all that it could ask for; a FUNCTION is followed
               by its reverse derivative in any case
    optimised  with what autograd runs, f__forward and f__backward, simplified
    kernels    functions of tensors, with the loops that fusion made
    schedule   all loops, checks, copies and library calls, as they run
    cpp        the C++ of functions of tensors; with --device cuda the kernels
               in CUDA C++, too
    c          the scalar functions in C99

    Loops and C++ are those for any sizes; kernels for known sizes, made while a program runs,
    differ. d_f is the reverse derivative of f, whether or not the program asks for it.

    \b
    loma show --stage adjoint squash.loma squash
    loma show --stage kernels squash.loma d_squash
    loma show --stage optimised squash.loma squash__backward
    loma show --stage schedule --device cuda squash.loma squash
    loma show --saved --size B=100 --size N=1152 --size D=8 squash.loma squash
    """
    program = _parse(file)
    show_warnings(program)
    if saved:
        _show_saved(program, function, save, sizes)
        return
    try:
        text = pipeline.stage_text(program.source, stage, function, file, save, device)
    except ValueError as error:  # there is no such function, or it has no such text
        raise click.UsageError(str(error)) from error
    if in_colour() and not as_json():
        lexer = listings.lexer(listings.language_of(stage))
        Console().print(Syntax(text, lexer, theme="ansi_dark", background_color="default"))
        return
    found = list(map(report_record, program.warnings))
    record = {"path": file, "stage": stage, "device": device, "function": function}
    emit({**record, "text": text, "warnings": found}, [text.removesuffix("\n")])


def _show_saved(program: Module, function: str | None, save: Save, sizes: tuple[str, ...]) -> None:
    from loma.tools import kept

    if function is None:
        raise click.UsageError("--saved needs a FUNCTION")
    values = dict(map(named_size, sizes))
    try:
        stage = pipeline.program(program.source, program.path, save=save, every=True)
        rows = kept.kept(stage, function, values)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    records = list(map(dataclasses.asdict, rows))
    emit({"path": program.path, "function": function, "kept": records}, kept.table(rows))


@main.command()
@point_options(required=False)
@click.option(
    "--tolerance", type=Real(0, 1, min_open=True), default=1e-6, help="Largest relative error."
)
@click.option("--max-elements", type=Whole(1, 10**9), default=200, help="Elements per argument.")
@json_option
def check(
    file: str, function: str | None, tolerance: float, max_elements: int, **point: Any
) -> None:
    """Check the gradients of FUNCTION against float64 differences at a random point.

    FUNCTION has tensors among its arguments or results; for a function of the scalar layer, compare
    what rev_diff and fwd_diff give. Without FUNCTION all such functions of FILE are checked, but
    for the derivatives that it asks for; those that cannot be are listed with the reason. Sizes
    that neither --shapes nor --size gives are small and all different.

    \b
    loma check squash.loma
    loma check squash.loma squash --shapes "S=2,3,4"
    """
    program = _parse(file)
    show_warnings(program)
    options = {"tolerance": tolerance, "max_elements": max_elements, "seed": point["seed"]}
    if function is None:
        _check_all(program, point, options)
        return
    report = _checked(program, function, point_arguments(_function(program, function), **point),
                      options)  # fmt: skip
    emit({"ok": report.ok, "path": file, **dataclasses.asdict(report)}, [report])
    click.get_current_context().exit(0 if report.ok else 1)


def _checked(
    program: Module, function: str, arguments: dict[str, object], options: dict[str, Any]
) -> GradientReport:
    from loma import compiler
    from loma.tools.check import check_gradients

    module = compiler.compile(Path(program.path))
    with calling():
        return check_gradients(
            getattr(module, function), arguments, raise_on_error=False, **options
        )


def _check_all(program: Module, point: dict[str, Any], options: dict[str, Any]) -> None:
    """Each function by itself; a FUNCTION's name on the command line would say why not."""
    functions = [f for f in program.functions if f.derivative_of is None]
    tensors = [f.name for f in functions if is_tensor_function(f)]
    points = points_of([_function(program, name) for name in tensors], **point)
    reports: list[GradientReport] = []
    skipped = {f.name: "a scalar function" for f in functions if f.name not in tensors}
    for name, arguments in points.items():
        if isinstance(arguments, str):
            skipped[name] = arguments
            continue
        try:
            reports.append(_checked(program, name, arguments, options))
        except Refused as error:
            skipped[name] = str(error).removeprefix(f"{name}: ")
    ok = all(report.ok for report in reports)
    emit(
        {
            "ok": ok,
            "path": program.path,
            "functions": list(map(dataclasses.asdict, reports)),
            "skipped": skipped,
        },
        [*reports, *(f"{name}: not checked: {why}" for name, why in skipped.items())],
    )
    click.get_current_context().exit(0 if ok else 1)


@main.command()
@point_options()
@click.option(
    "--explain", is_flag=True, help="Say what the time goes into, statement by statement."
)
@click.option("--backward", is_flag=True, help="Measure forward and backward under autograd.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float32")
@click.option(
    "--threads",
    type=THREADS,
    help="Threads of a call.  [default: torch's, as a rule all processors]",
)
@json_option
def bench(
    file: str,
    function: str,
    explain: bool,
    backward: bool,
    dtype: str,
    threads: int | None,
    **point: Any,
) -> None:
    """Measure warm calls of FUNCTION, which has tensors among its arguments or results.

    Every size must be given, by --shapes or --size. With --explain each statement, or each loop
    that statements were fused to, is timed: a row has its time and page faults, the rates at which
    it moves and computes what it has to at least, and these as a part of what a large copy and a
    matrix product reach on this machine. What fits the caches may be faster than a copy.
    docs/performance.md reads such a table.
    """
    program = _parse(file)
    show_warnings(program)
    arguments = point_arguments(_function(program, function), **point, complete=True)

    from loma.tools import bench_report

    with calling():
        record, text = bench_report.measure(
            Path(file), function, arguments, dtype, backward, threads, explain
        )
    emit({"path": file, **record}, [text])


@main.group()
def cache() -> None:
    """Look at the compiled modules on disk, or delete them."""


@cache.command("info")
@json_option
def cache_info() -> None:
    """Where the cache is, and how much is in it."""
    info = store.info()
    emit(info, (f"{key:<8} {'nowhere' if value is None else value}" for key, value in info.items()))


@cache.command("prune")
@click.option(
    "--older-than",
    type=AGE,
    metavar="30d",
    help="What was not used for so long: seconds, or minutes, hours, days, weeks as 10m, 12h, "
    "30d, 4w.",
)
@click.option(
    "--below",
    type=BYTES,
    metavar="500M",
    help="What is more than that, the least recently used first.  [default: LOMA_CACHE_LIMIT, "
    "where --older-than is not given]",
)
@json_option
def cache_prune(older_than: int | None, below: int | None) -> None:
    """Delete what was not used for long. What was used in the last ten minutes stays.

    \b
    loma cache prune --older-than 30d
    loma cache prune --below 500M
    """
    if older_than is None and below is None:
        below = config.cache_limit()
    removed, freed = store.prune(older_than, below)
    text = f"removed {removed} objects with {freed / 2**20:,.1f} MiB"
    emit({"removed": removed, "bytes": freed}, [text])


@cache.command("clear")
@json_option
def cache_clear() -> None:
    """Delete every compiled module."""
    removed = store.clear()
    emit({"removed": removed}, [f"removed {removed} entries"])


@main.command()
@point_options()
@click.option(
    "--seconds", type=Real(1, 86400), default=20, help="How long each kernel is searched for."
)
@click.option("--backward", is_flag=True, help="Tune forward and backward part, under autograd.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32")
@click.option(
    "--threads",
    type=THREADS,
    help="Threads of a call.  [default: torch's, as a rule all processors]",
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Where the kernels run."
)
@click.option("--plot", metavar="FILE", help="Write a picture of the search, as FILE.png or .svg.")
@json_option
def tune(
    file: str,
    function: str,
    seconds: float,
    backward: bool,
    dtype: str,
    threads: int | None,
    device: str,
    plot: str | None,
    **point: Any,
) -> None:
    """Look for the fastest kernel of FUNCTION for these sizes, and keep it.

    Every size must be given, by --shapes or --size. Kernels that compute the same in other ways are
    measured in turn; one is adopted where it is 3 % faster than the usual, twice. What is found
    serves programs compiled with tune="auto", with as many threads, or on such a GPU. Ctrl-C ends a
    search without a result.
    """
    program = _parse(file)
    show_warnings(program)
    arguments = point_arguments(_function(program, function), **point, complete=True)
    cli_tune.tune(file, function, arguments, seconds, dtype, backward, threads, plot, device)


main.add_command(cli_tune.tuning)


@main.command("language-server")
def language_server() -> None:
    """Answer an editor, which starts this by itself: errors as one types, types, definitions.

    It speaks the Language Server Protocol on the standard streams and ends with the editor; see
    docs/editors.md for how an editor is told of it.
    """
    try:
        from loma.tools.editor import server
    except ModuleNotFoundError as error:
        if str(error.name).startswith("loma"):
            raise
        raise Refused(
            f"the language server needs {error.name}: pip install 'loma-torch[editor]'"
        ) from None
    server.serve()


def _parse(file: str) -> Module:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    return pipeline.parsed(text, file)


def _function(module: Module, name: str) -> Function:
    """The function to call, made by AD if the file asks for it; a usage error if there is none."""
    if any(derivative.name == name for derivative in module.derivatives):
        module = pipeline.adjoint(module)
    try:
        function = pipeline.find(module, name)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not is_tensor_function(function):
        raise click.UsageError(
            f"'{name}' is a scalar function, and this is for functions of tensors; gradients can "
            f"be checked by comparing what rev_diff({name}) and fwd_diff({name}) give: "
            "docs/tutorial.md shows both"
        )
    return function if module.packings is None else shown_names(function, module.packings)


def _signature(function: Function) -> str:
    """The function's head in loma, in one line."""
    text = print_function(function)
    head = text[text.index("def ") :].partition(":\n")[0]
    return " ".join(head.split()).replace("( ", "(").replace(", )", ")")
