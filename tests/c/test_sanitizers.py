"""The C code of the test programs under AddressSanitizer and UndefinedBehaviorSanitizer.

A generated main() makes every call of the corpus, and the calls that fail, in a process of its own.
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sampled import one_in
from c_host import OPTIONS, differentiated, merged
from scalar_oracle import FIRST, Scalars
from teaching_derivatives import DERIVATIVES
from teaching_programs import PROGRAMS
from test_c_failures import FAILING, FAILURES
from test_fuzz_c import calls, random_program
from test_stack import CALLS, PASSED, struct

from loma.backends.c import Options, build, generate
from loma.backends.c.context import ModuleContext
from loma.core.ir import ArrayType, FloatType, Module, Struct, StructType, Type

FLAGS = (
    "-std=c99", "-O1", "-g", "-fwrapv", "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all", "-fno-omit-frame-pointer",
)  # fmt: skip
ENVIRONMENT = {
    "ASAN_OPTIONS": "allocator_may_return_null=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "OMP_NUM_THREADS": "2",
}


class Driver:
    """A main() that makes calls, as C text."""

    def __init__(self, module: Module, options: Options) -> None:
        source = generate(module, options)
        self.text = source.text
        self.module = module
        self.types = ModuleContext(module, options).types
        self._records = {record["name"]: record for record in source.metadata["functions"]}
        self._structs: dict[str, Struct] = {struct.name: struct for struct in module.structs}
        self._lines: list[str] = []
        self._count = 0

    def call(self, name: str, args: tuple[Any, ...]) -> None:
        function = self.module.function(name)
        given: list[str] = []
        self._lines.append("  {")
        for param, arg in zip(function.params, args, strict=False):
            if isinstance(param.type, ArrayType):
                given.append(self._array(arg, param.type))
                continue
            variable = self._fresh()
            declared = self.types.declare(param.type, variable)
            self._lines.append(f"    {declared} = {self._value(arg, param.type)};")
            given.append(f"&{variable}" if param.mode == "Out" else variable)
        given += [str(items) for items in args[len(function.params) :]]
        self._lines.append(f"    {self._records[name]['symbol']}({', '.join(given)});")
        self._lines += ["    loma_error_take(&error);", "  }"]

    def program(self) -> str:
        return "\n".join(
            [self.text, "int main(void) {", "  loma_error error;", *self._lines, "}\n"]
        )

    def _fresh(self) -> str:
        self._count += 1
        return f"a{self._count}"

    def _array(self, value: Any, type_: ArrayType) -> str:
        """Declares an array argument of exactly its length; what is passed for it."""
        element, name = type_.element, self._fresh()
        if isinstance(element, ArrayType) and element.size is None:
            items = [self._array(row, element) for row in value]
        else:
            items = [self._value(item, element) for item in value]
        if items:
            whole = self.types.declare(element, f"{name}[{len(items)}]")
            self._lines.append(f"    {whole} = {{{', '.join(items)}}};")
        text = name if items else "NULL"
        if self.types.options.arrays == "slices":
            return f"({self.types.slice(element)}){{{text}, {len(items)}}}"
        return text

    def _value(self, value: Any, type_: Type) -> str:
        match type_:
            case ArrayType(_, None):
                return self._array(value, type_)
            case ArrayType(element, _):
                return f"{{{', '.join(self._value(item, element) for item in value)}}}"
            case StructType(name):
                members = self._structs[name].members
                return f"{{{', '.join(self._value(value[m], t) for m, t in members) or '0'}}}"
            case FloatType():
                return repr(float(value)).replace("inf", "INFINITY").replace("nan", "NAN")
            case _:
                return "(-2147483647 - 1)" if value == -(2**31) else str(value)


@functools.cache
def _sanitizers_work(folder: Path) -> str:
    """Why they do not; empty where they do."""
    source, made = folder / "empty.c", folder / "empty"
    source.write_text("int main(void) { return 0; }\n")
    done = _run([*build.detect().command, *FLAGS, str(source), "-o", str(made)])
    if done.returncode:
        return f"the C compiler has no sanitizers: {done.stderr.splitlines()[:1]}"
    done = _run([str(made)])
    return f"sanitizers do not run here: {done.stderr.splitlines()[:1]}" if done.returncode else ""


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    # what another library preloads must not come before the sanitizer's own
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"} | ENVIRONMENT
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=300
    )


def check(driver: Driver, folder: Path, *flags: str) -> None:
    source, made = folder / "driver.c", folder / "driver"
    source.write_text(driver.program(), encoding="utf-8")
    command = [*build.detect().command, *FLAGS, *flags, str(source), "-o", str(made), "-lm"]
    done = _run(command)
    assert done.returncode == 0, done.stderr[-4000:]
    done = _run([str(made)])
    told = [line for line in done.stderr.splitlines() if "failed to allocate" not in line]
    assert (done.returncode, told) == (0, []), done.stderr[:6000]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sanitizers")
    if reason := _sanitizers_work(made):
        pytest.skip(reason)
    return made


@pytest.mark.parametrize(
    "options",
    one_in(3, [OPTIONS[4], OPTIONS[1], OPTIONS[2]]),
    ids=lambda o: f"{o.real}-{o.arrays}",
)
def test_the_corpus_and_its_derivatives(folder: Path, options: Options) -> None:
    programs = (*PROGRAMS, *DERIVATIVES)
    parts = [(f"p{k}_", differentiated(p.source)) for k, p in enumerate(programs)]
    # a program that fails, so that there is a record of failures to ask for
    driver = Driver(merged([*parts, ("failing_", differentiated(FAILURES))]), options)
    for (prefix, _), program in zip(parts, programs, strict=True):
        for call in program.calls:
            args = call.args if call.items is None else (*call.args, call.items)
            driver.call(prefix + call.function, args)
    check(driver, folder, "-fopenmp")


@pytest.mark.parametrize(
    "options", [*OPTIONS[1:3], OPTIONS[4]], ids=lambda o: f"{o.real}-{o.arrays}"
)
def test_calls_that_fail(folder: Path, options: Options) -> None:
    """Failures free what was allocated, and touch nothing that is not the program's own."""
    driver = Driver(differentiated(FAILURES), options)
    for name, args, _, _ in FAILING * 2:
        driver.call(name, args)
    check(driver, folder)


@pytest.mark.parametrize("options", OPTIONS[3:], ids=lambda o: f"{o.real}-{o.arrays}")
def test_structs_by_pointer(folder: Path, options: Options) -> None:
    driver = Driver(differentiated(PASSED), options)
    for name, args in CALLS * 2:
        driver.call(name, args)
        driver.call("fails", (struct(0), 100))
    check(driver, folder)


@pytest.mark.full
def test_random_programs_and_their_derivatives(folder: Path) -> None:
    programs = {f"p{seed}_": random_program(seed) for seed in range(6)}
    known = {
        prefix: Scalars(program.text + FIRST, program.items or 1)
        for prefix, program in programs.items()
    }
    parts = [(prefix, scalars.module) for prefix, scalars in known.items()]
    driver = Driver(merged([*parts, ("failing_", differentiated(FAILURES))]), Options())
    for prefix, scalars in known.items():
        program = programs[prefix]
        items = () if program.items is None else (program.items,)
        for name, args in calls(program, scalars).items():
            driver.call(prefix + name, (*args, *items))
    check(driver, folder, "-O0", "-fopenmp")


def test_the_sanitizers_see_an_error(folder: Path) -> None:
    """A subscript that the C ABI cannot check; without this test the others might prove nothing."""
    text = "def f(x : Out[Array[float]], i : In[int], n : In[int]) -> int:\n    x[i] = 1.0\n"
    driver = Driver(differentiated(f"{text}    return 3 / n\n"), Options())
    driver.call("f", ([1.0, 2.0], 2, 1))
    with pytest.raises(AssertionError, match="AddressSanitizer"):
        check(driver, folder)
