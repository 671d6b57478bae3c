"""A host script in the manner of the teaching compiler: structs and functions through ctypes.

Such a script runs here when its import line changes: ``from loma import compat as compiler``. It
fits a line to points by gradient descent.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import click

from loma import compat as compiler

HERE = Path(__file__).resolve().parent
POINTS = [(0.0, 1.1), (1.0, 2.9), (2.0, 5.2), (3.0, 6.8), (4.0, 9.1)]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--steps", type=click.IntRange(min=1), default=500, help="Of gradient descent.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default="example-results",
    help="Folder for the generated C and the library.",
)  # fmt: skip
def main(steps: int, output: Path) -> None:
    """Fits a line to points, calling the generated C functions through ctypes."""
    with open(HERE / "ctypes_host.loma") as f:
        structs, lib = compiler.compile(
            f.read(), target="c", output_filename=str(output / "ctypes_host")
        )
    print(f"written: {output / 'ctypes_host.c'}, {output / 'ctypes_host.so'}")

    n = len(POINTS)
    x = (ctypes.c_float * n)(*(x for x, _ in POINTS))
    y = (ctypes.c_float * n)(*(y for _, y in POINTS))
    line = structs["Line"](slope=0.0, offset=0.0)
    print(f"misfit of a flat line: {lib.misfit(line, x, y, n):.4f}")

    # Forward mode: how the misfit changes with the slope. Every float becomes a _dfloat.
    dual = structs["_dfloat"]
    d_line = structs["_dLine"](slope=dual(0.0, 1.0), offset=dual(0.0, 0.0))
    dual_x = (dual * n)(*(dual(x, 0.0) for x, _ in POINTS))
    dual_y = (dual * n)(*(dual(y, 0.0) for _, y in POINTS))
    print(f"forward mode, along the slope: {lib.f_misfit(d_line, dual_x, dual_y, n).dval:.4f}")

    # Reverse mode: all derivatives at once, added to what is passed for each argument.
    for step in range(steps):
        slope = structs["Line"]()
        d_x, d_y, d_n = (ctypes.c_float * n)(), (ctypes.c_float * n)(), ctypes.c_int()
        lib.d_misfit(
            line, ctypes.byref(slope), x, d_x, y, d_y, n, ctypes.byref(d_n), 1.0
        )  # fmt: skip
        if step == 0:
            print(f"reverse mode: {slope.slope:.4f} along the slope, {slope.offset:.4f} the offset")
        line.slope -= 0.01 * slope.slope
        line.offset -= 0.01 * slope.offset
    print(
        f"found: y = {line.slope:.4f} x + {line.offset:.4f}, misfit {lib.misfit(line, x, y, n):.4f}"
    )

    # What goes wrong in C is an exception here.
    try:
        lib.misfit(line, x, y, -(10**9))  # fine: no iteration
        many = (ctypes.c_float * 1001)()
        lib.misfit(line, many, many, 1001)
    except RuntimeError as error:
        print(f"as expected: {error}")


if __name__ == "__main__":
    main()
