"""The examples run, small, and do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import fresh
import pytest
from scalar_oracle import Scalars, close

from conftest import ROOT

EXAMPLES = ROOT / "examples"


def run(name: str, folder: Path, *options: object) -> str:
    """What the script prints; it writes into ``folder``."""
    done = fresh.run([EXAMPLES / f"{name}.py", "--output", folder, *options], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers that ``#`` stands for, where the pattern is found."""
    number = r"(-?[\d.]+(?:e[-+]\d+)?)"
    found = re.search(re.escape(pattern).replace(r"\#", number), text)
    assert found, f"'{pattern}' is not in:\n{text}"
    return [float(group) for group in found.groups()]


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 1000


def test_polynomial(tmp_path: Path) -> None:
    out = run("polynomial", tmp_path, "--steps", 500)
    hessians = [numbers(f"{name}: [[#, #], [#, #]]", out.replace("   ", " ").replace("  ", " "))
                for name in ("forward of reverse", "reverse of reverse")]  # fmt: skip
    np.testing.assert_allclose(hessians[0], [134.8, 48, 48, 20], rtol=1e-6)
    np.testing.assert_allclose(hessians[1], hessians[0], rtol=1e-6)
    assert numbers("gradient descent: (#, #) after # steps, value #", out)[3] < 0.1
    x, y, steps, _ = numbers("Newton's method: (#, #) after # steps, value #", out)
    assert (x, y) == (1.0, 1.0)
    assert steps < 15
    assert is_picture(tmp_path / "polynomial.png")
    assert is_picture(tmp_path / "polynomial-dark.png")


@pytest.mark.full
def test_pendulum(tmp_path: Path) -> None:
    out = run("pendulum", tmp_path, "--steps", 150)
    assert numbers("relative error #", out)[0] < 1e-2
    before, after = numbers("before: cost #,", out)[0], numbers("after: cost #,", out)[0]
    assert after < 0.1 * before
    assert numbers("after: cost #, ends at # degrees", out)[1] > 130.0
    assert is_picture(tmp_path / "pendulum.png")
    assert is_picture(tmp_path / "pendulum-dark.png")


def test_raytracer(tmp_path: Path) -> None:
    out = run("raytracer", tmp_path, "--steps", 60, "--size", 36, "--picture", 48)
    assert numbers("relative error #", out)[0] < 5e-2
    before, after = numbers("mean squared error: # before, # after", out)
    assert after < 0.2 * before
    assert is_picture(tmp_path / "raytracer.png")
    assert is_picture(tmp_path / "raytracer-search.png")
    assert is_picture(tmp_path / "raytracer-search-dark.png")


def test_ctypes_host(tmp_path: Path) -> None:
    out = run("ctypes_host", tmp_path)
    assert numbers("forward mode, along the slope: #", out) == [-140.2]
    assert numbers("reverse mode: # along the slope", out) == [-140.2]
    assert numbers("found: y = # x + #, misfit #", out) == [1.99, 1.04, 0.107]
    assert "misfit: line 14: the loop runs more than max_iter = 1000 times" in out
    assert (tmp_path / "ctypes_host.c").exists()
    assert (tmp_path / "ctypes_host.so").exists()


@pytest.mark.parametrize("name", ["polynomial", "pendulum", "raytracer", "ctypes_host"])
def test_help(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--help"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--output" in out
    assert "--steps" in out


# ------------------------------------------------------------ gradients, exactly: in float64


def program(name: str, items: int = 1) -> Scalars:
    return Scalars((EXAMPLES / f"{name}.loma").read_text(encoding="utf-8"), items)


def test_gradient_of_the_pendulum() -> None:
    pendulum = program("pendulum")
    args = [np.random.default_rng(0).normal(size=12).tolist(), 12, 0.05, 0.1]
    expected = [pendulum.difference("cost", args, unit)[0] for unit in np.eye(14)]
    close(pendulum.reverse("cost", "d_cost", args, np.ones(1)), np.array(expected), 1e-7)


@pytest.mark.full
def test_gradient_of_the_ray_tracer() -> None:
    width, height = 8, 6
    tracer = program("raytracer", width * height)

    def vec(x: float, y: float, z: float) -> dict[str, float]:
        return {"x": x, "y": y, "z": z}

    spheres = [
        {"center": vec(-1.1, -0.3, 3.6), "radius": 0.7, "color": vec(0.9, 0.25, 0.2)},
        {"center": vec(0.3, -0.1, 4.6), "radius": 0.9, "color": vec(0.2, 0.5, 0.9)},
        {"center": vec(0.9, -0.55, 2.9), "radius": 0.45, "color": vec(0.95, 0.75, 0.2)},
    ]
    scene = {"spheres": spheres, "light": vec(0.6, 0.9, -0.5), "blur": 0.1}
    args = [scene, width, height, [vec(0.0, 0.0, 0.0)] * (width * height)]
    rng = np.random.default_rng(0)
    weights = rng.normal(size=3 * width * height)
    found = tracer.reverse("render", "d_render", args, weights)
    along = rng.normal(size=found.shape)
    change = np.concatenate([along, np.zeros(weights.shape)])  # of the scene, not of the picture
    expected = tracer.difference("render", args, change) @ weights
    assert abs(found @ along - expected) < 1e-5 * abs(expected)
