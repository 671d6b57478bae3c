"""The wheel and the source archive, installed outside the checkout, in a virtual environment."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import loma
from conftest import ROOT
from loma.backends.scalar import extension

PROGRAMS = {
    "tensors.loma": """\
def scale(x : In[Tensor[N]], c : In[float]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = c * x[i] * x[i]
    return y
d_scale = rev_diff(scale)
""",
    "numbers.loma": """\
def square(x : In[float]) -> float:
    return x * x
d_square = rev_diff(square)
""",
}

# What a user's own script does, printed as JSON.
SCRIPT = """\
import json, pathlib, sys
import torch
import capsnet_loma, loma
from loma.pipeline import parsed

x = torch.tensor([1.0, -2.0], requires_grad=True)
loma.compile("tensors.loma").scale(x, 3.0).sum().backward()
numbers = loma.compile("numbers.loma")
layers = pathlib.Path(capsnet_loma.__file__).parent.glob("*.loma")
print(json.dumps({
    "packages": [loma.__file__, capsnet_loma.__file__],
    "gradient": x.grad.tolist(),
    "square": numbers.square(3.0),
    "d_square": numbers.d_square(3.0, 1.0)[0],
    "layers": {path.name: len(parsed(path.read_text(), str(path)).functions) for path in layers},
}))
"""


def _run(*command: str | Path, cwd: Path, cache: Path | None = None) -> str:
    """Runs the command without this checkout on its path; returns what it printed."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    if cache is not None:
        environment["LOMA_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _pip(*arguments: str | Path, cwd: Path) -> None:
    _run(sys.executable, "-m", "pip", *arguments, "--quiet", "--no-deps", "--no-index", cwd=cwd)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel of the checkout, and the source archive."""
    folder = tmp_path_factory.mktemp("archives")
    source = folder / "source"  # a copy, because setuptools writes into the tree that it builds
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    _pip("wheel", "--no-build-isolation", "--wheel-dir", folder, source, cwd=folder)
    _run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", folder, cwd=source)
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist() if "dist-info" not in name}


def test_the_wheel_has_the_files_of_the_checkout(archives: tuple[Path, Path]) -> None:
    contents = _contents(archives[0])
    assert {"loma/py.typed", "capsnet_loma/py.typed", "loma/frontend/module.py"} <= set(contents)
    assert all(data == (ROOT / name).read_bytes() for name, data in contents.items())


@pytest.mark.full
def test_the_source_archive_makes_the_same_wheel(
    archives: tuple[Path, Path], tmp_path: Path
) -> None:
    wheel, archive = archives
    _pip("wheel", "--no-build-isolation", "--wheel-dir", tmp_path, archive, cwd=tmp_path)
    (again,) = tmp_path.glob("*.whl")
    assert _contents(again) == _contents(wheel)
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "constraints.txt"} <= names
    for folder in ("docs", "examples", "tests", "benchmarks"):
        tracked = {
            str(path.relative_to(ROOT))
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert tracked <= names


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(file.read(name).decode("utf-8"))


def test_the_wheel_says_what_it_is(archives: tuple[Path, Path]) -> None:
    metadata = _metadata(archives[0])
    assert metadata["License"] == "MIT"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert str(metadata.get_payload()).strip() == readme.strip()
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert metadata["Name"] == "loma-torch"
    assert metadata.get_all("Provides-Extra") == [
        "capsnet",
        "docs",
        "editor",
        "notebook",
        "plot",
        "test",
    ]


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment with the wheel, and a folder of a user's with an empty cache."""

    scripts: Path
    packages: Path
    work: Path
    cache: Path

    def run(self, command: str, *arguments: str | Path) -> str:
        return _run(self.scripts / command, *arguments, cwd=self.work, cache=self.cache)


@pytest.fixture(scope="module")
def installed(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    root = tmp_path_factory.mktemp("installed")
    venv.create(root / "venv", symlinks=True)
    variables = {"base": str(root / "venv"), "platbase": str(root / "venv")}
    packages = Path(sysconfig.get_path("purelib", "venv", vars=variables))
    scripts = root / "venv" / "bin"
    _pip("--python", scripts / "python", "install", archives[0], cwd=root)
    # The dependencies come from the environment of the tests, behind the wheel's own files.
    dependencies = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (packages / "dependencies.pth").write_text("\n".join(dependencies), encoding="utf-8")
    work, cache = root / "work", root / "cache"
    work.mkdir()
    for name, text in PROGRAMS.items():
        (work / name).write_text(text, encoding="utf-8")
    (work / "script.py").write_text(SCRIPT, encoding="utf-8")
    _copy_runtime(work, cache)
    return Installed(scripts, packages, work, cache)


def _copy_runtime(work: Path, cache: Path) -> None:
    """Puts the compiled parts of the runtime that take longest into the cache, from the tests' own:
    they are found by the content of the wheel's files. Everything else is compiled anew."""
    loma.compile(work / "tensors.loma")
    for name in ("core.o", "product.o", "convolution.o", "python.o"):
        for file in Path(os.environ["LOMA_CACHE_DIR"]).glob(f"objects/*/{name}"):
            shutil.copytree(file.parent, cache / "objects" / file.parent.name)
    scalar = Path(str(extension().__file__)).parent
    shutil.copytree(scalar, cache / "objects" / scalar.name)


def _state(folder: Path) -> dict[Path, tuple[int, int]]:
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.name != "__pycache__"
    }


def _set_writable(folder: Path, writable: bool) -> None:
    bits = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | stat.S_IWUSR if writable else mode & ~bits)


@pytest.mark.full
def test_it_works_where_it_is_installed_and_writes_only_to_the_cache(installed: Installed) -> None:
    before = _state(installed.packages)
    _set_writable(installed.packages, False)  # which root passes over: hence both states
    try:
        assert "Usage: loma " in installed.run("loma", "--help")
        assert "Usage: capsnet-loma " in installed.run("capsnet-loma", "--help")
        built = json.loads(installed.run("loma", "build", *PROGRAMS, "--json"))
        seen = json.loads(installed.run("python", "script.py"))
    finally:
        _set_writable(installed.packages, True)
    assert built["ok"]
    assert all(Path(file).is_relative_to(installed.packages) for file in seen["packages"])
    assert seen["gradient"] == [6.0, -12.0]
    assert (seen["square"], seen["d_square"]) == (9.0, 6.0)
    names = {path.name for path in (ROOT / "capsnet_loma").glob("*.loma")}
    assert set(seen["layers"]) == names
    assert all(seen["layers"].values())
    assert _state(installed.packages) == before
