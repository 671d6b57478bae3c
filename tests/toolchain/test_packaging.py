"""What gets installed: every package and data file, nothing undeclared, the README's commands."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conftest import ROOT

INSTALL = "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e "
README_COMMANDS = (
    f"{INSTALL}'.[capsnet]' && .venv/bin/capsnet-loma",
    f"{INSTALL}'.[test]' && .venv/bin/python -m pytest",
)
# Modules of one package that import another, which the first does not ask for.
THROUGH = {"torch.utils.tensorboard": "tensorboard"}
LINKS = ("frontend", "ad", "backends")


def _arguments(url: str = "") -> dict[str, Any]:
    """What setup.py calls setuptools.setup with, where the repository is public at ``url``."""
    seen: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", lambda **arguments: seen.update(arguments))
        patch.setenv("LOMA_URL", url)
        runpy.run_path(str(ROOT / "setup.py"))
    return seen


@pytest.fixture(scope="module")
def setup() -> dict[str, Any]:
    return _arguments()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree that a wheel is made of."""
    target = tmp_path_factory.mktemp("built")
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def _source_files() -> set[str]:
    """Files of both import packages, links followed, as they are to be installed."""
    files = set()
    for top in ("loma", "capsnet_loma"):
        for folder, folders, names in os.walk(ROOT / top, followlinks=True):
            folders[:] = [name for name in folders if name != "__pycache__"]
            files |= {
                str((Path(folder) / name).relative_to(ROOT))
                for name in names
                if not name.endswith((".pyc", ".md"))
            }
    return files


def test_links_are_relative_and_lead_into_the_checkout() -> None:
    for name in LINKS:
        assert (ROOT / "loma" / name).is_symlink()
        assert os.readlink(ROOT / "loma" / name) == f"../{name}"


def test_every_package_is_named(setup: dict[str, Any]) -> None:
    packages = {
        str(Path(file).parent).replace(os.sep, ".")
        for file in _source_files()
        if Path(file).name == "__init__.py"
    }
    assert set(setup["packages"]) == packages


def test_every_file_is_installed(built: Path) -> None:
    installed = {str(path.relative_to(built)) for path in built.rglob("*") if path.is_file()}
    assert installed == _source_files()


def test_the_installed_tree_imports_by_itself(built: Path, setup: dict[str, Any]) -> None:
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    code += "import loma; print(loma.__file__)"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code, *setup["packages"]],
        cwd=built,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(built / "loma" / "__init__.py")


@pytest.mark.parametrize("module", ["loma", "loma.core.ir", "loma.errors", "loma.tools.cli"])
def test_torch_is_not_imported_before_it_is_needed(module: str) -> None:
    code = f"import sys, {module}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_commands_exist(setup: dict[str, Any]) -> None:
    for script in setup["entry_points"]["console_scripts"]:
        module, _, name = script.split("=")[1].partition(":")
        assert callable(getattr(importlib.import_module(module), name)), script


def test_everything_imported_is_declared(setup: dict[str, Any]) -> None:
    """The compiler's packages by the distribution itself, the Capsule Network's and those that
    editors, notebooks and pictures may have by extras."""
    extras = setup["extras_require"]
    core, extra, others = (
        {canonicalize_name(Requirement(text).name) for text in texts}
        for texts in (
            setup["install_requires"],
            extras["capsnet"],
            [*extras["editor"], *extras["notebook"], *extras["plot"]],
        )
    )
    compiler, network = _distributions("loma"), _distributions("capsnet_loma")
    assert compiler <= core | others
    assert network <= core | extra
    unused = (core - compiler) | (extra - network)
    assert not unused, f"declared, but never imported: {unused}"


def _distributions(top: str) -> set[str]:
    """What the files of an import package import, by the names that pip knows."""
    imported = set()
    for file in _source_files():
        if file.startswith(f"{top}/") and file.endswith(".py"):
            imported |= _imports(ROOT / file)
    ours = {"loma", "capsnet_loma", "__future__"}
    distributions = metadata.packages_distributions()  # the import sklearn is of scikit-learn
    return {
        canonicalize_name(distribution)
        for name in imported - ours - set(sys.stdlib_module_names)
        for distribution in distributions.get(name, [name])
    }


def _imports(path: Path) -> set[str]:
    """Names of imported packages, and of those whose files are looked up."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(aliases):
                names |= {alias.name.partition(".")[0] for alias in aliases}
            case ast.ImportFrom("torch.utils.tensorboard", _, 0):
                names |= {"torch", "tensorboard"}  # which torch leaves to be installed beside it
            case ast.ImportFrom(str(module), _, 0):
                names.add(THROUGH.get(module) or module.partition(".")[0])
            case ast.Call(ast.Attribute(attr="find_spec"), [ast.Constant(str(name))]):
                names.add(name.partition(".")[0])
    return names


def test_constraints_lie_within_the_declared_ranges(setup: dict[str, Any]) -> None:
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            (specifier,) = pin.specifier
            assert specifier.operator == "=="
            pins[canonicalize_name(pin.name)] = specifier.version
    for text in setup["install_requires"] + setup["extras_require"]["test"]:
        requirement = Requirement(text)
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, text


def test_the_readme_gives_the_commands_that_ci_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in README_COMMANDS:
        assert command in readme
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    install = README_COMMANDS[1].partition(" && .venv/bin/python")[0]
    assert install.replace("pip install", "pip install --quiet") in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_python_that_is_named_is_tested_by_the_hosted_ci(setup: dict[str, Any]) -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    (listed,) = re.findall(r"^ +python: (\[.+\])$", workflow, re.MULTILINE)
    prefix = "Programming Language :: Python :: 3."
    named = [name.rpartition(" ")[2] for name in setup["classifiers"] if name.startswith(prefix)]
    assert json.loads(listed) == named
    assert named[0] == setup["python_requires"].removeprefix(">=")
    assert "- run: .ci/run\n" in workflow


def test_urls_are_those_of_whoever_publishes(setup: dict[str, Any]) -> None:
    """None is invented: these files do not know where they are public."""
    assert setup["project_urls"] == {}
    urls = _arguments("https://example.org/who/what/")["project_urls"]
    assert set(urls) == {"Source", "Documentation", "Changelog", "Issues"}
    assert urls.pop("Source") == "https://example.org/who/what"
    for url in urls.values():
        assert url.startswith("https://example.org/who/what/")
        _, _, path = url.partition("/main/")
        assert (ROOT / path).exists()
    workflow = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    assert "LOMA_URL: ${{ github.server_url }}/${{ github.repository }}\n" in workflow


def test_what_contributors_find(setup: dict[str, Any]) -> None:
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert "\n## How versions are numbered\n" in changes
    assert f"\n## {setup['version']}" in changes
    guide = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert README_COMMANDS[1].partition(" && .venv/bin/python")[0] in guide
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert len(forms) >= 3
    for form in forms:
        lines = form.read_text("utf-8").splitlines()
        keys = [line.partition(":")[0] for line in lines if line[0].isalpha()]
        assert keys == ["name", "description", "labels", "body"], form.name
