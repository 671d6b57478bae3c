"""Swings a pendulum up with a motor that is too weak to lift it.

The unknowns are the torques of the motor at 100 instants. Reverse mode runs back through the whole
simulation and gives the derivative of the outcome with respect to all of them at once, for about
the price of two or three simulations; gradient descent does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

import loma
from loma.tools.pictures import DPI, Theme, headed, plain, save_themes

Vector = NDArray[np.float32]
HERE = Path(__file__).resolve().parent


def swing(m: Any, torque: Vector, dt: float) -> tuple[Vector, Vector]:
    """Angles and velocities over time."""
    path = np.zeros(len(torque) + 1, m.State.dtype)
    m.swing(torque, len(torque), dt, path)
    return path["angle"], path["velocity"]


def gradient(m: Any, torque: Vector, dt: float, price: float) -> Vector:
    """Of the cost, with respect to the torque at every instant."""
    adjoints = m.d_cost(torque, len(torque), dt, price, 1.0)
    slope: Vector = adjoints[0]
    return slope


def error_of_gradient(m: Any, torque: Vector, dt: float, price: float) -> float:
    """Relative, against a central difference along a random direction."""
    along = np.random.default_rng(0).normal(size=len(torque)).astype(np.float32)
    step = np.float32(0.02)
    ahead = m.cost(torque + step * along, len(torque), dt, price)
    behind = m.cost(torque - step * along, len(torque), dt, price)
    difference = (ahead - behind) / (2.0 * step)
    return float(abs(gradient(m, torque, dt, price) @ along - difference) / abs(difference))


def optimise(
    m: Any, torque: Vector, dt: float, price: float, steps: int, rate: float
) -> tuple[Vector, list[float]]:
    """Gradient descent in the manner of Adam: the torque found, and the cost at every step."""
    torque = torque.copy()
    mean, square = np.zeros_like(torque), np.zeros_like(torque)
    costs = []
    for k in progress(steps):
        slope = gradient(m, torque, dt, price)
        mean += 0.1 * (slope - mean)
        square += 0.01 * (slope * slope - square)
        torque -= rate * (mean / (1 - 0.9**k)) / (np.sqrt(square / (1 - 0.99**k)) + 1e-6)
        costs.append(m.cost(torque, len(torque), dt, price))
    return torque, costs


def progress(steps: int) -> Iterable[int]:
    """1 to ``steps``, with a bar on a terminal."""
    bar = Console(stderr=True)
    return track(range(1, steps + 1), "swinging", console=bar, disable=not bar.is_terminal)


# ------------------------------------------------------------------------------------------ picture


def plot(
    m: Any, before: Vector, after: Vector, costs: list[float], dt: float, theme: Theme
) -> Figure:
    figure = Figure(figsize=(9.0, 6.4), dpi=DPI)
    headed(
        figure, "A motor too weak to lift the pendulum learns to swing it up",
        f"the derivative of the end by the torque at each of {len(after)} instants, "
        f"{len(costs)} steps of gradient descent",
        theme,
    )  # fmt: skip
    for left, torque, title in ((0.05, before, "before"), (0.52, after, "after")):
        panel = figure.add_axes((left, 0.42, 0.43, 0.45))
        draw(panel, swing(m, torque, dt)[0], theme)
        panel.set_title(title, fontsize=12, fontweight="bold")
    angles = figure.add_axes((0.07, 0.09, 0.52, 0.25))
    time = dt * np.arange(len(after) + 1)
    for torque, colour, name in ((before, theme.peers[1], "before"), (after, theme.loma, "after")):
        angles.plot(
            time, np.degrees(swing(m, torque, dt)[0]), color=colour, lw=2, label=f"angle {name}"
        )
    angles.plot(time[:-1], 10.0 * after, color=theme.peers[2], lw=1, label="torque, 0.1 Nm")
    angles.axhline(180.0, color=theme.muted, lw=0.8, ls=":")
    angles.set_title("angle in degrees", loc="left", fontsize=10)
    angles.set_xlabel("seconds", labelpad=1)
    angles.legend(frameon=False, fontsize=9)
    cost = figure.add_axes((0.69, 0.09, 0.29, 0.25))
    cost.semilogy(costs, color=theme.loma, lw=2)
    cost.set_title("cost", loc="left", fontsize=10)
    cost.set_xlabel("step", labelpad=1)
    for axes in (angles, cost):
        axes.grid(linewidth=0.8)
        plain(axes)
    return figure


def draw(axes: Axes, angles: Vector, theme: Theme) -> None:
    """The pendulum at many instants, later ones stronger."""
    fading = LinearSegmentedColormap.from_list("fading", [theme.page, theme.loma])
    for k, angle in enumerate(angles):
        colour = fading(0.1 + 0.9 * k / len(angles))
        x, y = np.sin(angle), -np.cos(angle)
        axes.plot([0, x], [0, y], color=colour, lw=1.2, zorder=k)
        axes.plot(x, y, "o", color=colour, markersize=6, zorder=k)
    axes.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal")
    axes.axis("off")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--steps", type=click.IntRange(min=1), default=600, help="Of gradient descent.")
@click.option("--rate", type=float, default=0.05, help="Of gradient descent.")
@click.option("--instants", type=click.IntRange(1, 1000), default=100, help="Of the simulation.")
@click.option("--seconds", type=float, default=5.0, help="Simulated time.")
@click.option("--price", type=float, default=0.003, help="Of a squared newton metre, a second.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default="example-results",
    help="Folder for the picture.",
)  # fmt: skip
def main(
    steps: int, rate: float, instants: int, seconds: float, price: float, output: Path
) -> None:
    """Swings a pendulum up: a hundred torques, optimised through a simulation over time."""
    m = loma.compile(HERE / "pendulum.loma")
    dt = seconds / instants
    before = np.full(instants, 0.5, np.float32)
    error = error_of_gradient(m, before, dt, price)
    print(f"gradient against differences: relative error {error:.1e}")
    after, costs = optimise(m, before, dt, price, steps, rate)
    for name, torque in (("before", before), ("after", after)):
        angles, velocities = swing(m, torque, dt)
        print(
            f"{name}: cost {m.cost(torque, instants, dt, price):.4f}, ends at "
            f"{np.degrees(angles[-1]):.1f} degrees with {velocities[-1]:.2f} rad/s; "
            f"largest torque {np.abs(torque).max():.2f} Nm (lifting takes 9.81)"
        )
    save_themes(partial(plot, m, before, after, costs, dt), output / "pendulum.png")
    for file in ("pendulum.png", "pendulum-dark.png"):
        print(f"written: {output / file}")


if __name__ == "__main__":
    main()
