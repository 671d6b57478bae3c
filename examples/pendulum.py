"""Swings a pendulum up with a motor that is too weak to lift it.

The unknowns are the torques of the motor at 100 instants. Reverse mode runs back through the whole
simulation and gives the derivative of the outcome with respect to all of them at once, for about
the price of two or three simulations; gradient descent does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import matplotlib
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

import loma

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

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


def plot(m: Any, before: Vector, after: Vector, costs: list[float], dt: float, file: Path) -> None:
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.8), layout="constrained")
    for panel, torque, title in (
        (axes[0], before, "before"),
        (axes[1], after, "after"),
    ):
        draw(panel, swing(m, torque, dt)[0], title)
    time = dt * np.arange(len(after) + 1)
    for torque, color, name in ((before, "#9aa5b1", "before"), (after, "#b5481b", "after")):
        axes[2].plot(time, np.degrees(swing(m, torque, dt)[0]), color=color, label=name)
    axes[2].plot(time[:-1], 10.0 * after, color="#3b6ea5", lw=0.8, label="torque, 0.1 Nm")
    axes[2].axhline(180.0, color="black", lw=0.8, ls=":")
    axes[2].set(title="angle in degrees", xlabel="seconds")
    axes[2].legend()
    axes[3].semilogy(costs, color="#b5481b")
    axes[3].set(title="cost", xlabel="step")
    figure.savefig(file, dpi=70)
    plt.close(figure)


def draw(axes: Axes, angles: Vector, title: str) -> None:
    """The pendulum at many instants, later ones darker."""
    for k, angle in enumerate(angles):
        color = plt.colormaps["YlOrBr"](0.15 + 0.85 * k / len(angles))
        x, y = np.sin(angle), -np.cos(angle)
        axes.plot([0, x], [0, y], color=color, lw=0.8, zorder=k)
        axes.plot(x, y, "o", color=color, markersize=5, zorder=k)
    axes.set(title=title, xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
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
    output.mkdir(parents=True, exist_ok=True)
    plot(m, before, after, costs, dt, output / "pendulum.png")
    print(f"written: {output / 'pendulum.png'}")


if __name__ == "__main__":
    main()
