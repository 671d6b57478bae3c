"""What the environment says about compilers: it works, or one line names the variable."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from loma import compat, config
from loma.backends import compilers, toolchain
from loma.errors import CacheError, CompilerNotFound, SettingError, ToolchainError
from loma.tools import cli

PROGRAM = "def half(x : In[float]) -> float:\n    return x / 2.0\n"


@pytest.fixture(autouse=True)
def nothing_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor known: every test has an empty cache."""
    monkeypatch.setenv("LOMA_CACHE_DIR", str(tmp_path / "cache"))
    for language in (config.C, config.CXX):
        for variable in (*language.variables, language.flags):
            monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """``script("exec gcc \\"$@\\"")``: a program of that text."""

    def write(text: str, name: str = "program") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return write


def half() -> float:
    return float(compat.compile(PROGRAM)[1].half(3.0))


def first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]


# ---------------------------------------------------------------------------------- what works


def test_a_compiler_behind_another_program(
    script: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ccache = script(f'echo "$@" >> {tmp_path}/used\nexec "$@"', "ccache")
    monkeypatch.setenv("CC", f"{ccache} gcc")
    assert half() == 1.5
    assert (tmp_path / "used").read_text().splitlines()[-1].startswith("gcc -O3 ")
    monkeypatch.setenv("CXX", f"{ccache} g++ -O2")
    assert toolchain.detect().compiler == (str(ccache), "g++", "-O2")
    unit = tmp_path / "one.cpp"
    unit.write_text("int one() { return 1; }\n")
    compilers.compile_files(
        toolchain.detect().compiler, ("-c", str(unit)), tmp_path / "one.o", "compiling one"
    )
    assert (tmp_path / "used").read_text().splitlines()[-1].startswith("g++ -O2 -c ")


@pytest.mark.parametrize("given", ["gcc -O1", "gcc -DNAME='a b'", " ", "  gcc  "])
def test_a_compiler_with_arguments(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """A blank value counts as none."""
    monkeypatch.setenv("LOMA_CC", given)
    assert half() == 1.5


def test_a_compiler_whose_path_has_blanks(
    script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script('exec gcc "$@"', "my compilers/gcc")
    monkeypatch.setenv("CC", str(path))
    assert compilers.find_compiler(config.C) == (str(path),)
    assert half() == 1.5
    monkeypatch.setenv("CC", f"'{path}' -O1")
    assert compilers.find_compiler(config.C) == (str(path), "-O1")
    assert half() == 1.5


# ---------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("variable", "given", "message"),
    [
        ("LOMA_CFLAGS", '"x', "no closing quotation in '\"x'"),
        ("LOMA_CFLAGS", "-O1 -fno-such", "the C compiler takes the code without '-O1 -fno-such', "
         "and says with it: gcc: error: unrecognized command-line option '-fno-such'"),
        ("LOMA_CFLAGS", "-include none.h", "none.h: No such file or directory"),
        ("LOMA_CFLAGS", "-Dfloat=zzz", "error: unknown type name 'zzz'"),
        ("LOMA_CFLAGS", "-lnone", "cannot find -lnone"),
        ("LOMA_CFLAGS", "-c", "made no library.so"),
        ("LOMA_CFLAGS", "--help", "made no library.so"),
        ("CC", 'gcc "', "no closing quotation in 'gcc \"'"),
        ("CC", "gcc -Dfloat=zzz", "the C compiler takes the code without '-Dfloat=zzz', and"),
        ("CC", "gcc -fno-such", "gcc -fno-such compiles no C: gcc: error: unrecognized"),
        ("LOMA_CC", "true", "true compiles no C: it makes no library"),
        ("CC", "false", "/false is no C compiler: it does not tell its version"),
        ("CC", "echo", "echo compiles no C: it makes no library"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, given: str, message: str
) -> None:
    monkeypatch.setenv(variable, given)
    with pytest.raises(ToolchainError) as caught:
        half()
    assert first_line(caught.value).startswith(f"{variable}: ")
    assert message in first_line(caught.value)
    monkeypatch.delenv(variable)
    assert half() == 1.5


@pytest.mark.parametrize("given", ["none", "none gcc", "/", "/etc/passwd"])
def test_a_compiler_that_is_not_there_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    for variable, language in (("CC", "C"), ("LOMA_CC", "C"), ("CXX", "C++"), ("LOMA_CXX", "C++")):
        with monkeypatch.context() as patched:
            patched.setenv(variable, given)
            with pytest.raises(CompilerNotFound) as caught:
                compilers.find_compiler(config.C if language == "C" else config.CXX)
            start = f"no {language} compiler: looked for {given}, as {variable} says. Install one"
            assert str(caught.value).startswith(start)


def test_flags_of_the_cpp_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = tmp_path / "one.cpp"
    unit.write_text("int one() { return 1; }\n")
    for flags, message in (("-fno-such", "unrecognized command-line option"), ("-Dint=5", "error")):
        monkeypatch.setenv("LOMA_CXXFLAGS", flags)
        arguments = ("-O1", flags, "-c", str(unit))
        with pytest.raises(SettingError) as caught:
            compilers.compile_files(
                compilers.find_compiler(config.CXX), arguments, tmp_path / "one.o", "compiling one"
            )
        assert str(caught.value).startswith("LOMA_CXXFLAGS: the C++ compiler takes the code with")
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_code_that_is_wrong_is_no_variables_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = tmp_path / "one.cpp"
    unit.write_text("int one() { return 1 }\n")
    monkeypatch.setenv("LOMA_CXXFLAGS", "-O1")
    monkeypatch.setenv("LOMA_CXX", "g++ -O2")
    with pytest.raises(ToolchainError, match=r"compiling one failed: .* exit code 1"):
        compilers.compile_files(
            compilers.find_compiler(config.CXX), ("-O1", "-c", str(unit)), tmp_path / "one.o",
            "compiling one",
        )  # fmt: skip


def test_a_full_disk_is_not_the_compilers_fault(
    script: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = script(
        '[ "$1" = --version ] && echo 1 && exit\n'
        "echo 'ld: final link failed: No space left on device' >&2; exit 1"
    )
    monkeypatch.setenv("CC", str(full))
    with pytest.raises(CacheError) as caught:
        half()
    assert f"there is no room in {tmp_path / 'cache'}" in str(caught.value)
    assert "LOMA_CACHE_DIR names another folder" in str(caught.value)
    assert list((tmp_path / "cache" / "objects").iterdir()) == []
    assert list((tmp_path / "cache" / "temporary").iterdir()) == []


def test_messages_that_are_no_text(
    script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = script('[ "$1" = --version ] && echo 1 && exit\nprintf "error: \\377\\n" >&2; exit 1')
    monkeypatch.setenv("CC", str(strange))
    with pytest.raises(ToolchainError, match=r"CC: .* compiles no C: error: \ufffd"):
        half()


# ------------------------------------------------------------------------------------ commands


@pytest.mark.parametrize(
    ("variable", "given"),
    [
        ("LOMA_JOBS", "many"), ("LOMA_OPT", "-nothing"), ("LOMA_SANITIZE", "everything"),
        ("LOMA_CXX", "none"), ("CXX", "g++ '"), ("LOMA_CXXFLAGS", "'"), ("LOMA_CFLAGS", '"'),
        ("LOMA_CACHE_DIR", "~no_such_user/cache"),
    ],
)  # fmt: skip
def test_commands_say_one_line_about_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, given: str
) -> None:
    file = tmp_path / "half.loma"
    file.write_text(PROGRAM)
    monkeypatch.setenv(variable, given)
    done = CliRunner().invoke(cli.main, ["build", str(file)])
    assert done.exit_code == 1
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert done.stderr.startswith("error: ")
    assert variable in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("variable", "read"),
    [
        ("LOMA_JOBS", config.jobs), ("LOMA_POOL_LIMIT", config.pool_limit),
        ("LOMA_SPECIALISATIONS", config.specialisations), ("LOMA_OPT", config.optimisations),
        ("LOMA_SANITIZE", config.sanitizer),
    ],
)  # fmt: skip
def test_a_setting_that_is_none_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, read: Callable[[], object]
) -> None:
    for given in ("nan", "inf", "-", "1e3x", "5 apples"):
        monkeypatch.setenv(variable, given)
        with pytest.raises(SettingError, match=variable):
            read()


def test_huge_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOMA_POOL_LIMIT", "9" * 400)
    assert config.pool_limit() == int("9" * 400)
    monkeypatch.setenv("LOMA_POOL_LIMIT", "9" * 400 + ".5K")
    assert config.pool_limit() == int("9" * 400) * 1024 + 512
    monkeypatch.setenv("LOMA_SPECIALISATIONS", "9" * 20)
    assert config.specialisations() == 2**31 - 1
    assert shutil.which("gcc")
