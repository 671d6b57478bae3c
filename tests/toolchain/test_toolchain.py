"""The cache on disk and the compiler: by content, all or nothing, once for all processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT

import loma
from loma import cache, config, pipeline
from loma.backends import compilers, toolchain
from loma.backends.cfamily.source import GeneratedSource
from loma.backends.torch.files import RUNTIME_FOLDERS, quoted, runtime_file
from loma.backends.torch.parts import Parts
from loma.errors import CompilationFailed, CompilerNotFound
from loma.program import Program

SQUARE = "def square(x : In[Tensor[N]]) -> Tensor[N]:\n    return x * x\n"
SOURCE = GeneratedSource("loma_test", (("test.cpp", "int x;\n"),), {})


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOMA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """``compiler(script)``: a shell script takes the place of the C++ compiler."""

    def use(script: str) -> Path:
        path = tmp_path / "compiler"
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("LOMA_CXX", str(path))
        return path

    return use


def python(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


# ---------------------------------------------------------------------------------------- cache


def test_a_digest_knows_where_parts_end() -> None:
    assert cache.digest(["ab", "c"]) != cache.digest(["a", "bc"])
    assert cache.digest(["ab", "c"]) == cache.digest([b"ab", b"c"])


def test_an_object_is_made_once(empty_cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "file").write_text("made")

    made = cache.obtain("key", build)
    assert made == empty_cache / "objects" / "key"
    assert cache.obtain("key", lambda _: pytest.fail("made again")) == made
    assert (made / "file").read_text() == "made"


def test_a_failed_object_leaves_nothing(empty_cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.obtain("key", build)
    assert list((empty_cache / "objects").iterdir()) == []
    assert list((empty_cache / "temporary").iterdir()) == []


def test_a_killed_process_leaves_nothing_that_harms(empty_cache: Path) -> None:
    killed = python(
        """
        import os, signal
        from loma import cache
        def build(folder):
            (folder / "half").write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        cache.obtain("key", build)
        """
    )
    killed.communicate()
    assert killed.returncode == -9
    assert not (empty_cache / "objects" / "key").exists()
    (left,) = (empty_cache / "temporary").iterdir()
    os.utime(left, (0, 0))
    made = cache.obtain("key", lambda folder: (folder / "whole").touch())
    assert sorted(path.name for path in made.iterdir()) == ["manifest.json", "whole"]
    assert not left.exists()


def test_two_processes_make_it_once(empty_cache: Path) -> None:
    code = """
        import time
        from loma import cache
        def build(folder):
            print("made")
            time.sleep(0.5)
            (folder / "file").touch()
        assert (cache.obtain("key", build) / "file").exists()
        """
    processes = [python(code) for _ in range(2)]
    assert sorted(process.communicate()[0] for process in processes) == ["", "made\n"]
    assert [process.returncode for process in processes] == [0, 0]


def test_a_broken_index_counts_as_none(empty_cache: Path) -> None:
    cache.write_index("key", {"object": "o"})
    assert cache.read_index("key") == {"object": "o"}
    (empty_cache / "index" / "key.json").write_text('{"obj')
    assert cache.read_index("key") is None
    assert cache.info()["entries"] == 1
    assert cache.clear() == 1
    assert cache.info()["bytes"] == 0


def test_a_program_is_optimised_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its derivatives' derivatives and kernels for known sizes begin with what was kept."""
    program = Program(SQUARE, "<text>", "module")
    made, (pair,) = program.stage(), program.stage().pairs
    again = replace(program, made=(pipeline.Made("derivative", pair.backward),))
    assert again.stage() != made
    program.keep(made)
    with monkeypatch.context() as patch:
        patch.delattr(pipeline, "program")
        assert program.stage() == made
        assert again.stage().pairs[0].primal == pair.backward
    (kept,) = (empty_cache / "objects").glob("*/stage.pickle")
    kept.write_bytes(kept.read_bytes()[:-1])
    assert program.stage() == made


# ------------------------------------------------------------------------------------- settings


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for set_already in ("LOMA_CACHE_DIR", "LOMA_CXX"):  # as .ci/matrix sets a compiler
        monkeypatch.delenv(set_already, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert config.cache_dir() == Path("/somewhere/loma")
    monkeypatch.setenv("CXX", "mine")
    assert config.CXX.asked_for() == ("CXX", "mine")
    monkeypatch.setenv("LOMA_CXX", "other")
    assert config.CXX.asked_for() == ("LOMA_CXX", "other")
    monkeypatch.setenv("LOMA_JOBS", "many")
    with pytest.raises(ValueError, match="LOMA_JOBS must be a number, got 'many'"):
        config.jobs()


# ------------------------------------------------------------------------------------- compiler


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOMA_CXX", "no-such-compiler")
    with pytest.raises(CompilerNotFound, match="no C\\+\\+ compiler: looked for no-such-compiler"):
        loma.compile(SQUARE)


def test_a_compiler_that_refuses(empty_cache: Path, compiler: Callable[[str], Path]) -> None:
    compiler("echo 'module.cpp:3: error: surprise' >&2; exit 3")
    with pytest.raises(CompilationFailed) as caught:
        toolchain.build(SOURCE, Parts(None, {}), "float")
    message = str(caught.value)
    assert "ended with exit code 3" in message
    assert "module.cpp:3: error: surprise" in message
    assert "-std=c++" in message
    assert not list((empty_cache / "objects").iterdir())


def test_who_waits_for_the_runtime_is_told(
    empty_cache: Path,
    compiler: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compiler("exit 3")
    told = "loma: compiling its runtime, once on this machine: about half a minute\n"
    for at_a_terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda known=at_a_terminal: known)
        with pytest.raises(CompilationFailed):
            loma.compile(SQUARE)
        assert capsys.readouterr().err == (told if at_a_terminal else "")


def test_a_compiler_that_is_killed(empty_cache: Path, compiler: Callable[[str], Path]) -> None:
    compiler("kill -9 $$")
    with pytest.raises(CompilationFailed, match="ended with signal 9"):
        toolchain.build(SOURCE, Parts(None, {}), "float")


def test_the_key_depends_on_source_flags_and_compiler(
    monkeypatch: pytest.MonkeyPatch, compiler: Callable[[str], Path]
) -> None:
    keys = {toolchain.module_key(SOURCE, toolchain.detect())}
    other = GeneratedSource("loma_test", (("test.cpp", "int y;\n"),), {})
    keys.add(toolchain.module_key(other, toolchain.detect()))
    monkeypatch.setenv("LOMA_CXXFLAGS", "-O1 -g")
    assert toolchain.detect().flags[-2:] == ("-O1", "-g")
    keys.add(toolchain.module_key(SOURCE, toolchain.detect()))
    compiler("exit 0")
    keys.add(toolchain.module_key(SOURCE, toolchain.detect()))
    assert len(keys) == 4
    assert "-ffast-math" not in toolchain.detect().flags


def test_a_level_of_optimisation_is_for_modules_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOMA_CXXFLAGS", raising=False)
    own = toolchain.detect()
    assert own.runtime is None
    monkeypatch.setenv("LOMA_CXXFLAGS", "-O2")
    found = toolchain.detect()
    assert found.digest != own.digest
    assert found.runtime == own
    assert "-DLOMA_QUICK" not in found.flags
    monkeypatch.setenv("LOMA_CXXFLAGS", "-g -O1")
    found = toolchain.detect()
    assert "-DLOMA_QUICK" in found.flags
    assert found.runtime is not None
    assert found.runtime.flags[-1] == "-g"
    assert "-DLOMA_QUICK" not in found.runtime.flags
    monkeypatch.setenv("LOMA_CXXFLAGS", "-g")
    assert toolchain.detect().runtime is None


# --------------------------------------------------------------------------------------- loading


def test_a_warm_module_is_not_parsed_again() -> None:
    loma.compile(SQUARE)
    process = python(
        f"""
        import sys, torch
        import loma
        module = loma.compile({SQUARE!r})
        assert module.square(torch.ones(2)).tolist() == [1.0, 1.0]
        heavy = {{"jinja2", "loma.frontend", "loma.ad", "loma.backends.torch.codegen"}}
        print(sorted(heavy & set(sys.modules)))
        """
    )
    assert process.communicate()[0] == "[]\n"


def test_one_openmp_runtime_in_the_process() -> None:
    """That of torch, in a process of its own: other packages bring another one."""
    loma.compile(SQUARE)
    process = python(
        f"""
        from pathlib import Path
        import loma, torch
        loma.compile({SQUARE!r}).square(torch.ones(2))
        maps = Path("/proc/self/maps").read_text().split()
        print(len({{word for word in maps if "libgomp" in word or "libomp" in word}}))
        """
    )
    assert process.communicate()[0] == "1\n"


@pytest.mark.full
def test_a_program_without_python(tmp_path: Path) -> None:
    module = loma.compile(SQUARE)
    main = tmp_path / "main.cpp"
    main.write_text(
        """
        #include "module.h"
        #include <ATen/ops/ones.h>
        #include <iostream>
        int main() {
          const auto x = at::ones({3}).set_requires_grad(true);
          const auto y = loma_module::square(x);
          std::cout << y.sum().item<double>() << " " << y.requires_grad() << std::endl;
        }
        """
    )
    sources = [module.__folder__ / "module.cpp", main]
    program = toolchain.build_executable(sources, tmp_path / "program")
    assert subprocess.run([program], capture_output=True, text=True).stdout == "3 1\n"
    linked = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    assert "libtorch_cpu" in linked
    assert "libpython" not in linked
    assert "libtorch_python" not in linked

    # what begins with the runtime's header has all of it precompiled
    main.write_text(f'#include "prelude.h"\n{main.read_text()}')
    double = toolchain.build_executable(sources, tmp_path / "double", "double")
    run = subprocess.run([double], capture_output=True, text=True)
    assert run.returncode != 0
    assert "square: this program was built without float32 kernels" in run.stderr


def test_the_light_prelude_has_no_header_of_torch(tmp_path: Path) -> None:
    made = tmp_path / "headers.d"
    prelude = runtime_file("light_prelude.h")
    arguments = ("-M", "-x", "c++", *quoted(RUNTIME_FOLDERS), str(prelude))
    headers = toolchain.detect().compile(arguments, made).read_text().split()
    assert any(header.endswith("light_tensors.h") for header in headers)
    assert [header for header in headers if "/torch/include/" in header] == []


def test_choices_under_one_condition_run_in_vectors(tmp_path: Path) -> None:
    """What GCC makes a path for, each outcome of the conditions, no loop over vectors can take."""
    tools = toolchain.detect()
    if "Free Software Foundation" not in compilers.versions(tools.compiler)[0]:
        pytest.skip("not GCC")
    source = tmp_path / "choices.cpp"
    source.write_text("""
void choices(float* __restrict y, const float* __restrict x, float s, long n) {
  for (long i = 0; i < n; ++i)
    y[i] = (x[i] > 1 ? s : 0.0f) + (!(x[i] > 1) && x[i] < -1 ? -s : 0.0f)
         + (!(x[i] > 1) && !(x[i] < -1) ? s * x[i] : 0.0f);
}
""")
    flags = [flag for flag in tools.flags if not flag.startswith("-D")]
    run = [*tools.compiler, *flags, "-O3", "-fopt-info-vec", "-c", str(source), "-o", os.devnull]
    found = subprocess.run(run, capture_output=True, text=True, check=True)
    assert "loop vectorized" in found.stderr
