"""Gradient descent and Newton's method on a polynomial of two variables.

The gradient is the reverse derivative of the polynomial. Newton's method needs the Hessian, too:
forward mode on the reverse derivative gives its product with a direction, and so does reverse mode
on the reverse derivative. Both are printed side by side.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

import loma
from loma.tools.pictures import DPI, Theme, plain, save_themes

Vector = NDArray[np.float64]
HERE = Path(__file__).resolve().parent
START = np.array([-1.2, 1.0])
MINIMUM = np.array([1.0, 1.0])


def value(m: Any, at: Vector) -> float:
    return float(m.polynomial(m.Point(x=at[0], y=at[1])))


def gradient(m: Any, at: Vector) -> Vector:
    """The call returns the adjoints of the In arguments as a tuple: here of one point."""
    (slope,) = m.gradient(m.Point(x=at[0], y=at[1]), 1.0)
    return np.array([slope.x, slope.y])


def hessian_forward(m: Any, at: Vector) -> Vector:
    """Forward of reverse: a point that moves along an axis, and how its gradient changes."""
    rows = []
    for along in np.eye(2):
        x, y = (m._dfloat(val=at[k], dval=along[k]) for k in range(2))
        slope = m._dPoint()
        m.hessian_forward(m._dPoint(x=x, y=y), slope, m._dfloat(val=1.0))
        rows.append([slope.x.dval, slope.y.dval])
    return np.array(rows)


def hessian_reverse(m: Any, at: Vector) -> Vector:
    """Reverse of reverse: the gradient of one component of the gradient."""
    rows = []
    for along in np.eye(2):
        row, _ = m.hessian_reverse(m.Point(x=at[0], y=at[1]), m.Point(x=along[0], y=along[1]), 1.0)
        rows.append([row.x, row.y])
    return np.array(rows)


def descend(m: Any, steps: int, rate: float) -> Vector:
    """The points that gradient descent visits, shape (steps + 1, 2)."""
    path = [START]
    for _ in range(steps):
        path.append(path[-1] - rate * gradient(m, path[-1]))
    return np.array(path)


def newton(m: Any, steps: int) -> Vector:
    """The points that Newton's method visits; it ends where the gradient is zero."""
    path = [START]
    for _ in range(steps):
        at = path[-1]
        slope = gradient(m, at)
        if not slope.any():
            break
        path.append(at - np.linalg.solve(hessian_forward(m, at), slope))
    return np.array(path)


def plot(m: Any, down: Vector, fast: Vector, theme: Theme) -> Figure:
    x, y = np.meshgrid(np.linspace(-1.6, 1.6, 120), np.linspace(-1.2, 1.7, 100))
    heights = [value(m, np.array(point)) for point in zip(x.flat, y.flat, strict=True)]
    figure = Figure(figsize=(9.0, 4.2), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    levels = np.geomspace(0.05, max(heights), 14)
    left.contour(x, y, np.reshape(heights, x.shape), levels, colors=theme.peers[0], linewidths=0.8)
    for path, colour, name in (
        (down, theme.peers[2], "gradient descent"),
        (fast, theme.loma, "Newton's method"),
    ):
        left.plot(*path.T, "o-", color=colour, markersize=3, label=f"{name}, {len(path) - 1} steps")
        right.loglog(
            np.arange(1, len(path) + 1),
            [max(float(np.linalg.norm(point - MINIMUM)), 1e-8) for point in path],
            color=colour, linewidth=2,
        )  # fmt: skip
    left.plot(*MINIMUM, "*", color=theme.ink, markersize=12)
    left.legend(loc="upper center", framealpha=0.85, facecolor=theme.page, edgecolor=theme.grid)
    left.set(title="the way down", xlabel="x", ylabel="y")
    right.set(title="distance to the minimum", xlabel="step")
    right.grid(linewidth=0.8)
    for axes in (left, right):
        plain(axes)
    return figure


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--steps", type=click.IntRange(min=1), default=2000, help="Of gradient descent.")
@click.option("--rate", type=float, default=0.005, help="Of gradient descent.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default="example-results",
    help="Folder for the picture.",
)  # fmt: skip
def main(steps: int, rate: float, output: Path) -> None:
    """Gradient descent and Newton's method on a polynomial, with first and second derivatives."""
    m = loma.compile(HERE / "polynomial.loma")
    print(f"at ({START[0]}, {START[1]}) the polynomial is {value(m, START):.4g}")
    print(f"gradient, reverse mode:        {gradient(m, START).tolist()}")
    print(f"Hessian, forward of reverse:   {hessian_forward(m, START).tolist()}")
    print(f"Hessian, reverse of reverse:   {hessian_reverse(m, START).tolist()}")
    down, fast = descend(m, steps, rate), newton(m, 20)
    for name, path in (("gradient descent", down), ("Newton's method", fast)):
        x, y = path[-1]
        print(f"{name}: ({x:.5f}, {y:.5f}) after {len(path) - 1} steps, "
              f"value {value(m, path[-1]):.3g}")  # fmt: skip
    save_themes(partial(plot, m, down, fast), output / "polynomial.png")
    for file in ("polynomial.png", "polynomial-dark.png"):
        print(f"written: {output / file}")


if __name__ == "__main__":
    main()
