"""What is compiled with a module, and what at the first call."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import loma
from loma import pipeline
from loma.backends import toolchain
from loma.backends.torch.parts import Parts
from loma.core.ir import is_tensor_function
from loma.errors import CompilationFailed
from loma.program import Program

PROGRAM = """
def inner(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[n] = x[n] * x[n] + 3.0
    while (y[0] < 0.0, max_iter := 3):  # so that no caller takes its statements
        y[n] += 1.0
    return y

def outer(x : In[Tensor[N]]) -> Tensor[N]:
    return inner(x) * 2.0

d_outer = rev_diff(outer)
"""


def unknown() -> tuple[str, float]:
    """The program with a number that no cache knows, and that number."""
    number = float(random.SystemRandom().randrange(4, 2**23))
    return PROGRAM.replace("3.0", str(number)), number


def test_what_no_other_function_calls_is_compiled_first() -> None:
    stage = pipeline.program(PROGRAM)
    parts = Parts.of(pipeline.generated(stage).metadata["parts"])
    functions = [f.name for f in stage.module.functions if is_tensor_function(f)]

    def names(numbers: tuple[int, ...] | None) -> set[str]:
        return {functions[k] for k in numbers or ()}

    alone = {"outer", "inner"}  # with what it calls
    halves = {"outer__forward", "outer__backward", "inner__forward"}
    assert names(parts.first) == alone | halves
    assert names(parts.together["outer"]) == alone
    for name in ("outer__forward", "outer__backward"):
        assert names(parts.together[name]) == halves
    assert names(parts.together["inner"]) == {"inner"}
    assert names(parts.together["d_outer"]) == {"d_outer"}


@pytest.mark.cpu
def test_another_type_and_a_derivative_come_with_their_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, number = unknown()
    module = loma.compile(program)
    built: list[tuple[tuple[int, ...], str]] = []
    build = toolchain.build_part

    def counted(folder: Path, parts: Parts, numbers: tuple[int, ...], real: str) -> Path:
        built.append((numbers, real))
        return build(folder, parts, numbers, real)  # type: ignore[arg-type]

    monkeypatch.setattr(toolchain, "build_part", counted)
    x = torch.tensor([1.0, -2.0, 0.5])
    assert torch.equal(module.outer(x), 2 * (x * x + number))
    assert built == []
    wide = x.double().requires_grad_()
    with ThreadPoolExecutor(4) as threads:  # of which one compiles
        results = list(threads.map(lambda _: module.outer(wide.detach()), range(4)))
    assert all(torch.equal(result, 2 * (wide * wide + number)) for result in results)
    assert {real for _, real in built} == {"double"}
    count = len(built)
    result = module.outer(wide)
    assert [real for _, real in built[count:]] == ["double"]
    count = len(built)
    result.sum().backward()  # came with it
    assert wide.grad is not None
    assert torch.equal(wide.grad, 4 * wide.detach())
    assert len(built) == count
    (explicit,) = module.d_outer(x, torch.ones(3))
    assert torch.equal(explicit, 4 * x)
    (derivative,) = built[count:]
    parts = Parts.of(module.__record__["parts"])
    assert derivative == (parts.together["d_outer"], "float")


def test_who_calls_many_functions_waits_for_few_compilations() -> None:
    together: dict[str, tuple[int, ...]] = {f"f{k}": (k,) for k in range(9)}
    together |= {"pair__forward": (9, 10), "pair__backward": (9, 10)}
    parts = Parts(tuple(range(8)), together)
    made: set[int] = set()
    asked = []
    for k in range(8):
        if k not in made:
            asked.append(parts.asked_for(f"f{k}", made))
            made.update(asked[-1])
    assert asked == [(0,), (1,), (2, 3), (4, 5, 6, 7)]  # none of what is compiled first
    assert parts.asked_for("f7", {1, 2}) == (0, 7)
    assert parts.asked_for("f8", set(range(8))) == (8, 9, 10)
    assert parts.behind(True) == (8, 9, 10)
    assert parts.behind(False) == tuple(range(11))


def test_compilers_share_functions_that_do_not_call_each_other() -> None:
    units = (((0, 3), 50_000), ((1,), 30_000), ((2,), 25_000), ((4,), 100))
    parts = Parts((0, 1, 2, 3), {}, units=units)
    assert parts.shares((0, 1, 2, 3), 8) == [(0, 3), (1,), (2,)]
    assert parts.shares((0, 1, 2, 3, 4), 2) == [(0, 3, 4), (1, 2)]
    assert parts.shares((0, 1, 2, 3), 1) == [(0, 1, 2, 3)]
    assert parts.shares((1, 4), 8) == [(1, 4)]  # too little to share
    assert parts.shares((), 8) == [()]  # a module without functions that are compiled first
    stage = pipeline.program(PROGRAM)
    made = Parts.of(pipeline.generated(stage).metadata["parts"])
    functions = [f.name for f in stage.module.functions if is_tensor_function(f)]
    found = [{functions[k] for k in numbers} for numbers, _ in made.units]
    assert {"outer", "inner"} in found
    assert sorted(name for unit in found for name in unit) == sorted(functions)


@pytest.mark.cpu
def test_what_several_compilers_made_is_one_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loma.backends.torch.parts._SHARE", 1)
    monkeypatch.setenv("LOMA_JOBS", "3")
    compiled: list[tuple[str, ...]] = []
    compile_file = toolchain._compile_file

    def counted(*arguments: object) -> Path:
        compiled.append(arguments[-1])  # type: ignore[arg-type]
        return compile_file(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(toolchain, "_compile_file", counted)
    program, number = unknown()
    module = loma.compile(program)
    first = Parts.of(module.__record__["parts"]).first or ()
    for real in (torch.float32, torch.float64):
        x = torch.tensor([1.0, -2.0, 0.5], dtype=real, requires_grad=True)
        result = module.outer(x)
        result.sum().backward()
        assert torch.equal(result.detach(), 2 * (x.detach() ** 2 + number))
        assert x.grad is not None
        assert torch.equal(x.grad, 4 * x.detach())
        assert torch.equal(module.outer(x.detach()), result.detach())
    single = [flags for flags in compiled if "-DLOMA_ONLY=float" in flags]
    assert sum("-DLOMA_PART" not in flags for flags in single) == 1  # with the module's tables
    shared = [flag for flags in single for flag in flags if "FUNCTION" in flag]
    assert len(single) == 3
    assert sorted(shared) == [f"-DLOMA_FUNCTION_{k}" for k in first]
    assert len(compiled) > len(single) + 1  # those of the other type, too


def test_the_default_dtype_is_compiled_first() -> None:
    def program() -> Program:
        return Program(PROGRAM, "<text>", "module")

    single = program()
    torch.set_default_dtype(torch.float64)
    try:
        assert (single.real, program().real) == ("float", "double")
        assert single.key() != program().key()
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.cpu
def test_what_cannot_be_compiled_is_told_by_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loma.compile(unknown()[0])
    x = torch.ones(2)
    with monkeypatch.context() as patch:
        patch.setattr(toolchain, "build_part", _refused)
        with pytest.raises(CompilationFailed, match="no room"):
            module.d_outer(x, x)
    (explicit,) = module.d_outer(x, x)
    assert torch.equal(explicit, 4 * x)


def _refused(*_: object) -> Path:
    raise CompilationFailed("no room")
