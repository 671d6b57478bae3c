"""What all tests share: a cache of their own, golden files, fixed seeds."""

from __future__ import annotations

import difflib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"

# Compiled modules are kept between runs, and away from the user's own cache. Set here, before a
# test imports loma, so that processes which tests start inherit it.
os.environ.setdefault("LOMA_CACHE_DIR", str(ROOT / ".pytest_cache" / "loma"))

# Kernels for sizes that are seen come when they are ready: only their own tests want them.
os.environ.setdefault("LOMA_SPECIALISATIONS", "0")

# What is compiled takes half as long so, and most tests compare values: loops with `omp simd` are
# vectorised at this level, too. These files have loma's own flags, as they are about flags, or
# about what optimisation makes of kernels. With --full, all tests have them.
QUICK_FLAGS = "-O1"
OWN_FLAGS = {
    "test_compiler_settings.py", "test_panels_apart.py", "test_vector_math.py",
}  # fmt: skip
_FLAGS_GIVEN = "LOMA_CXXFLAGS" in os.environ

# Workers have more threads than two processors: none of them waits for another by computing.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Some tests need no torch (.ci/matrix). Without it, the folder of its tests would be found.
_FOUND = find_spec("torch")
HAS_TORCH = _FOUND is not None and _FOUND.origin is not None

# All modules are kept as bytecode, too, whatever the environment asks for: tests start more than a
# hundred processes, each of which would compile them, and each worker all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Files that take long, though some have few tests: they come first, so that no worker ends alone.
# While the first compiles the runtime, the second needs none.
LONGEST = (
    "docs/test_docs.py", "schedule/test_spellings.py", "kernels/test_index_statements.py",
    "capsnet/test_capsnet_compare.py", "cuda/test_sweeps.py", "core/test_ops.py",
    "torch/test_specialise.py", "passes/test_passes.py", "torch/test_tuning.py",
    "capsnet/test_capsnet_gpu.py",
    "capsnet/test_capsnet_profile.py", "kernels/test_sanitized_kernels.py",
    "capsnet/test_training.py", "ad/test_guards.py", "ad/test_scalar_in_tensors.py",
    "torch/test_memory.py", "torch/test_codegen_run.py", "kernels/test_tiles.py",
    "kernels/test_convolution.py", "toolchain/test_wheel.py", "toolchain/test_cache_damage.py",
)  # fmt: skip

hypothesis.settings.register_profile("loma", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("loma")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the golden tests produce into tests/golden instead of comparing",
    )
    parser.addoption(
        "--fuzz-examples",
        type=int,
        metavar="N",
        help="how many random programs each test of test_fuzz*.py tries, other ones each time",
    )
    parser.addoption(
        "--kills",
        type=int,
        default=1,
        metavar="N",
        help="how often test_training_kill.py kills a training before it may end",
    )
    parser.addoption(
        "--device",
        choices=("cpu", "shim", "cuda"),
        default="cpu",
        help="where tensor functions run: on the CPU, on a GPU, or as on a GPU by a stand-in",
    )
    parser.addoption(
        "--full",
        action="store_true",
        help="the second tier of tests, marked as full, runs, too, as in .ci/full: for hours",
    )
    parser.addoption(
        "--sanitize-all",
        action="store_true",
        help="test_sanitized_kernels.py runs all tests of kernels with sanitizers: for hours",
    )


def pytest_configure(config: pytest.Config) -> None:
    import devices

    devices.use(config.getoption("--device"))
    if not config.getoption("--full"):
        import remembered

        remembered.use()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        second = [item for item in items if item.get_closest_marker("full")]
        if any("::" in argument for argument in config.args):  # who names a test is told why not
            for item in second:
                item.add_marker(pytest.mark.skip(reason="runs with --full"))
        else:
            config.hook.pytest_deselected(items=second)
            items[:] = [item for item in items if not item.get_closest_marker("full")]
    if config.getoption("--device") != "cpu":
        for item in items:
            if item.get_closest_marker("cpu"):
                item.add_marker(pytest.mark.skip(reason="of what only CPUs have"))
    order = {ROOT / "tests" / name: k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(LONGEST)))


def pytest_collection_finish() -> None:
    """What has been collected stays to the end: who looks for garbage, as tests of memory do, need
    not go through it again. A compiler makes many small things that live long: without its being
    looked for that often, a tenth less time goes into garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The level of optimisation, for the test and what it starts."""
    if _FLAGS_GIVEN:
        return
    if item.config.getoption("--full") or item.path.name in OWN_FLAGS:
        os.environ.pop("LOMA_CXXFLAGS", None)
    else:
        os.environ["LOMA_CXXFLAGS"] = QUICK_FLAGS


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    if HAS_TORCH:
        import torch

        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _graphs_of_its_own() -> None:
    """torch compiles a piece of Python eight times at most, and all objects that can be called, as
    functions of loma are, begin with the same piece of torch's."""
    if "torch._dynamo" in sys.modules:
        import torch

        torch.compiler.reset()


@pytest.fixture
def threads() -> Iterator[None]:
    """How many threads torch has stays the same for other tests."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def on_cpu(request: pytest.FixtureRequest) -> bool:
    """Whether tensor functions run on the CPU."""
    return bool(request.config.getoption("--device") == "cpu")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden("name.txt", text)``: the text must equal the file tests/golden/name.txt."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path.relative_to(ROOT)} is missing: run pytest --update-golden")
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            diff = difflib.unified_diff(
                expected.splitlines(),
                text.splitlines(),
                f"golden/{name}",
                "produced now",
                lineterm="",
            )
            pytest.fail("\n".join(["differs from the golden file:", *diff]), pytrace=False)

    return compare
