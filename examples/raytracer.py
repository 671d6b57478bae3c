"""Finds out what is in a picture, by differentiating the ray tracer that drew it.

A target picture of three spheres is rendered and its scene thrown away. Starting from spheres of
other places, sizes and colours in another light, gradient descent changes all 24 numbers of the
scene until its picture is the target. The gradient is the reverse derivative of the renderer: given
how the error changes with each pixel, it returns how the error changes with the scene.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imsave
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

import loma
from loma.tools.pictures import DPI, Theme, headed, plain, save_themes

Picture = NDArray[np.float32]  # (height, width, 3)
Numbers = NDArray[np.float64]  # what is looked for: three spheres of 7 numbers, then the light
HERE = Path(__file__).resolve().parent

#                      center             radius  colour
TARGET = np.array([
    (-1.10, -0.25, 3.8,   0.75,  0.85, 0.20, 0.15),
    ( 0.45, -0.05, 4.8,   0.95,  0.15, 0.40, 0.80),
    ( 0.75, -0.60, 2.9,   0.40,  0.95, 0.70, 0.15),
])  # fmt: skip
START = np.array([
    (-0.70,  0.10, 4.2,   0.55,  0.50, 0.50, 0.50),
    ( 0.10,  0.35, 5.0,   0.60,  0.50, 0.50, 0.50),
    ( 1.00, -0.30, 3.3,   0.50,  0.50, 0.50, 0.50),
])  # fmt: skip
TARGET_LIGHT, START_LIGHT = (0.6, 0.7, -0.4), (-0.3, 0.9, -0.3)
BLUR = 0.04


def numbers(spheres: Numbers, light: tuple[float, ...]) -> Numbers:
    return np.concatenate([spheres.ravel(), light])


def scene(m: Any, found: Numbers, blur: float) -> Any:
    """The struct of the program, from the numbers that are looked for."""

    def vec(x: Numbers) -> Any:
        return m.Vec(x=x[0], y=x[1], z=x[2])

    return m.Scene(
        spheres=[
            m.Sphere(center=vec(s[:3]), radius=s[3], color=vec(s[4:]))
            for s in found[:21].reshape(3, 7)
        ],
        light=vec(found[21:]),
        blur=blur,
    )


def flat(scene: Any) -> Numbers:
    """The other way round, for a scene or its adjoint."""

    def three(v: Any) -> list[float]:
        return [v.x, v.y, v.z]

    spheres = [[*three(s.center), s.radius, *three(s.color)] for s in scene.spheres]
    return numbers(np.array(spheres), tuple(three(scene.light)))


def render(m: Any, found: Numbers, shape: tuple[int, int], blur: float = BLUR) -> Picture:
    """``shape`` is height and width; every pixel is a work item."""
    height, width = shape
    picture = np.zeros((height, width, 3), np.float32)
    pixels = picture.reshape(-1).view(m.Vec.dtype)
    m.render(scene(m, found, blur), width, height, pixels, width * height)
    return picture


def error_and_gradient(
    m: Any, found: Numbers, target: Picture, blur: float = BLUR
) -> tuple[float, Numbers]:
    """The mean squared difference to the target, and its gradient."""
    height, width, _ = target.shape
    difference = render(m, found, (height, width), blur) - target
    adjoint = (2.0 / difference.size * difference).reshape(-1).view(m.Vec.dtype)
    d_scene, *_ = m.d_render(scene(m, found, blur), width, height, adjoint, width * height)
    return float(np.mean(difference.astype(np.float64) ** 2)), flat(d_scene)


def error_of_gradient(m: Any, found: Numbers, target: Picture) -> float:
    """Relative, against a central difference along a random direction."""
    along = np.random.default_rng(0).normal(size=found.shape)
    step = 1e-3
    ahead, _ = error_and_gradient(m, found + step * along, target)
    behind, _ = error_and_gradient(m, found - step * along, target)
    difference = (ahead - behind) / (2.0 * step)
    slope = error_and_gradient(m, found, target)[1] @ along
    return float(abs(slope - difference) / abs(difference))


def search(m: Any, target: Picture, steps: int, rate: float) -> list[Numbers]:
    """Gradient descent in the manner of Adam: the scene before and after each step. Edges are
    blurred at first, so that a sphere is drawn to where it belongs from further away."""
    found = numbers(START, START_LIGHT)
    mean, square = np.zeros_like(found), np.zeros_like(found)
    path = [found]
    for k in progress(steps):
        left = 1.0 - k / steps
        _, slope = error_and_gradient(m, found, target, BLUR + 0.3 * max(0.0, left - 0.4))
        mean += 0.1 * (slope - mean)
        square += 0.01 * (slope * slope - square)
        change = (mean / (1 - 0.9**k)) / (np.sqrt(square / (1 - 0.99**k)) + 1e-12)
        found = found - rate * min(1.0, 2.0 * left) * change
        path.append(found)
    return path


def progress(steps: int) -> Iterable[int]:
    """1 to ``steps``, with a bar on a terminal."""
    bar = Console(stderr=True)
    return track(
        range(1, steps + 1), "looking for the scene", console=bar, disable=not bar.is_terminal
    )


def plot(
    pictures: dict[str, Picture], at: Sequence[int], errors: Sequence[float], theme: Theme
) -> Figure:
    """The pictures, and the error after each step with a mark at those that are shown."""
    figure = Figure(figsize=(9.0, 7.1), dpi=DPI)
    headed(
        figure, "Gradient descent through a ray tracer finds the scene of a picture",
        "each step changes 24 numbers: three spheres' places, sizes and colours, and the light",
        theme,
    )  # fmt: skip
    width, height = 0.315, 0.30
    for k, (title, picture) in enumerate(pictures.items()):
        place = (0.012 + k % 3 * 0.3305, 0.58 - k // 3 * 0.343, width, height)
        panel = figure.add_axes(place)
        panel.imshow(np.clip(picture, 0.0, 1.0))
        panel.set_title(title, fontsize=11, fontweight="bold" if k == 0 else "normal")
        panel.axis("off")
    axes = figure.add_axes((0.085, 0.065, 0.9, 0.115))
    axes.semilogy(errors, color=theme.loma, linewidth=2)
    axes.plot(at, [errors[k] for k in at], "o", color=theme.loma, markersize=6)
    axes.set_xlabel("step", labelpad=1)
    axes.set_title("mean squared error", fontsize=10, loc="left")
    axes.grid(linewidth=0.8)
    plain(axes)
    return figure


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--steps", type=click.IntRange(min=1), default=300, help="Of gradient descent.")
@click.option("--rate", type=float, default=0.02, help="Of gradient descent.")
@click.option("--size", type=click.IntRange(min=4), default=72, help="Height of the target.")
@click.option("--picture", type=click.IntRange(min=4), default=480, help="Height of the picture.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default="example-results",
    help="Folder for the pictures.",
)  # fmt: skip
def main(steps: int, rate: float, size: int, picture: int, output: Path) -> None:
    """Finds the scene of a picture with the derivative of a ray tracer."""
    m = loma.compile(HERE / "raytracer.loma")
    output.mkdir(parents=True, exist_ok=True)
    true, start = numbers(TARGET, TARGET_LIGHT), numbers(START, START_LIGHT)
    shape, large = (size, size * 4 // 3), (picture, picture * 4 // 3)
    imsave(output / "raytracer.png", np.clip(render(m, true, large, blur=0.01), 0.0, 1.0))
    target = render(m, true, shape)
    print(f"gradient against differences: relative error {error_of_gradient(m, start, target):.1e}")
    path = search(m, target, steps, rate)
    errors = [float(np.mean((render(m, found, shape) - target) ** 2)) for found in path]
    marks = [0, steps // 40, steps // 15, 2 * steps // 15, steps]
    titles = ["start", *(f"after {k} steps" for k in marks[1:-1]), f"found, after {steps} steps"]
    pictures = {"the picture that is given": render(m, true, large, blur=0.01)}
    for title, k in zip(titles, marks, strict=True):
        pictures[title] = render(m, path[k], large, blur=0.01)
    save_themes(partial(plot, pictures, marks, errors), output / "raytracer-search.png")
    found, first, last = path[-1], errors[0], errors[-1]
    print(f"mean squared error: {first:.2e} before, {last:.2e} after {steps} steps")
    for name, at in (("before", start), ("after", found)):
        off = np.abs(at - true)[:21].reshape(3, 7)
        print(
            f"{name}: centers off by at most {off[:, :3].max():.3f}, "
            f"radii by {off[:, 3].max():.3f}, colours by {off[:, 4:].max():.3f}"
        )
    for file in ("raytracer.png", "raytracer-search.png", "raytracer-search-dark.png"):
        print(f"written: {output / file}")


if __name__ == "__main__":
    main()
