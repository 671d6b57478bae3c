"""Generated C++ for libtorch under AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer.

With --full one module, with its derivatives and with kernels for known sizes, is compiled for each
and called at awkward sizes (sanitizer_calls.py). ``pytest --sanitize-all`` and this file's name run
the tests of kernels, the corpus of programs among them, in such processes: the runtime is compiled
with sanitizers then, too.
"""

from __future__ import annotations

import functools

import pytest
import sanitized
from sanitizer_calls import DEFECTS

from conftest import ROOT

pytestmark = pytest.mark.cpu  # the compiler's sanitizers see the CPU

KINDS = sorted(sanitized.LIBRARIES)
SECONDS = 600
# Tests that call generated kernels, but for those of the pool, which is off with sanitizers.
SUITES = (
    "test_index_statements.py", "test_fused_calls.py", "test_ops.py", "test_tiles.py",
    "test_register_tiles.py", "test_vector_math.py", "test_arithmetic.py",
    "test_scalar_in_tensors.py", "test_integration_calls.py", "test_integration_embedded.py",
    "test_saving.py", "test_convolution.py", "test_convolution_statements.py",
    "test_codegen_run.py", "test_capsnet_network.py", "test_specialise.py", "test_panels_apart.py",
)  # fmt: skip


@functools.cache
def reports(kind: str) -> list[str]:
    """What the sanitizer says of the sound calls and of those with a defect."""
    script = ROOT / "tests" / "support" / "sanitizer_calls.py"
    environment = {
        "LOMA_OPT": "1",
        "LOMA_SPECIALISATIONS": "0",
        "LOMA_CXXFLAGS": "",
        "UBSAN_OPTIONS": "print_stacktrace=1",  # all defects, one after the other
    }
    try:
        sanitized.start(kind)
    except RuntimeError as reason:
        pytest.skip(str(reason))
    code, output, found = sanitized.run(
        f"{kind},generated", [str(script), kind], environment, timeout=SECONDS
    )
    assert code == 0, output[-5000:]
    assert output.rstrip().endswith("all ran"), output[-5000:]
    return found


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_sound_kernels(kind: str) -> None:
    found = [r for r in reports(kind) if not any(name in r for name in DEFECTS[kind])]
    assert not found, f"{len(found)} reports, the first:\n{found[0][:5000]}"


@pytest.mark.full
@pytest.mark.parametrize(("kind", "name"), [(k, name) for k in KINDS for name in DEFECTS[k]])
def test_defects_are_seen(kind: str, name: str) -> None:
    """Without these the test of sound kernels might prove nothing."""
    assert any(name in report for report in reports(kind))


def test_a_process_without_the_sanitizer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from loma.backends import toolchain
    from loma.errors import ToolchainError

    monkeypatch.setenv("LOMA_SANITIZE", "thread")
    wanted = r"libtsan\.so in LD_PRELOAD; tests/support/sanitized\.py"
    with pytest.raises(ToolchainError, match=wanted):
        toolchain.memory_library()
    monkeypatch.setenv("LOMA_SANITIZE", "memory")
    with pytest.raises(ValueError, match="LOMA_SANITIZE must be address or thread"):
        toolchain.detect()


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("kind", KINDS)
def test_all(kind: str, suite: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--sanitize-all"):
        pytest.skip("runs with --sanitize-all")
    (path,) = (ROOT / "tests").rglob(suite)
    # UndefinedBehaviorSanitizer writes to the process's stderr, which pytest would keep for itself.
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--capture=sys"]
    arguments = ["-m", "pytest", *options, str(path)]
    code, output, found = sanitized.run(kind, arguments, {})
    assert not found, f"{len(found)} reports, the first:\n{found[0][:5000]}"
    assert code == 0, output[-5000:]
