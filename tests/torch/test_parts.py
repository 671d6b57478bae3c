"""What is compiled with a module, and what at the first call."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import loma
from loma import compiler, pipeline
from loma.backends import toolchain
from loma.backends.torch.parts import Parts
from loma.core.ir import is_tensor_function
from loma.errors import CompilationFailed

PROGRAM = """
def inner(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[n] = x[n] * x[n] + 3.0
    return y

def outer(x : In[Tensor[N]]) -> Tensor[N]:
    return inner(x) * 2.0

d_outer = rev_diff(outer)
"""


def test_what_no_other_function_calls_is_compiled_first() -> None:
    stage = pipeline.program(PROGRAM)
    parts = Parts.of(pipeline.generated(stage).metadata["parts"])
    functions = [f.name for f in stage.module.functions if is_tensor_function(f)]

    def names(numbers: tuple[int, ...] | None) -> set[str]:
        return {functions[k] for k in numbers or ()}

    three = {"outer", "outer__forward", "outer__backward"}
    assert names(parts.first) == {*three, "inner"}  # which they call
    assert all(parts.together[name] == parts.first for name in three)
    assert names(parts.together["inner"]) == {"inner"}
    assert names(parts.together["d_outer"]) == {"d_outer"}
    assert parts.has_first("outer__forward")
    assert not parts.has_first("d_outer")


def test_another_type_and_a_derivative_come_with_their_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = loma.compile(PROGRAM)
    built: list[tuple[str, str]] = []
    build = toolchain.build_part

    def counted(folder: Path, parts: Parts, operator: str, real: str) -> Path:
        built.append((operator, real))
        return build(folder, parts, operator, real)  # type: ignore[arg-type]

    monkeypatch.setattr(toolchain, "build_part", counted)
    x = torch.tensor([1.0, -2.0, 0.5])
    assert torch.equal(module.outer(x), 2 * (x * x + 3))
    assert built == []
    wide = x.double().requires_grad_()
    with ThreadPoolExecutor(4) as threads:  # of which one compiles
        results = list(threads.map(lambda _: module.outer(wide.detach()), range(4)))
    assert all(torch.equal(result, 2 * (wide * wide + 3)) for result in results)
    assert {real for _, real in built} == {"double"}
    count = len(built)
    module.outer(wide).sum().backward()  # came with it
    assert wide.grad is not None
    assert torch.equal(wide.grad, 4 * wide.detach())
    assert len(built) == count
    (explicit,) = module.d_outer(x, torch.ones(3))
    assert torch.equal(explicit, 4 * x)
    assert built[count:] == [("d_outer", "float")]


def test_the_default_dtype_is_compiled_first() -> None:
    def program() -> compiler.Program:
        return compiler.Program(PROGRAM, "<text>", "module")

    single = program()
    torch.set_default_dtype(torch.float64)
    try:
        assert (single.real, program().real) == ("float", "double")
        assert single.key() != program().key()
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_cannot_be_compiled_is_told_by_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loma.compile(PROGRAM.replace("3.0", "5.0"))
    x = torch.ones(2)
    with monkeypatch.context() as patch:
        patch.setattr(toolchain, "build_part", _refused)
        with pytest.raises(CompilationFailed, match="no room"):
            module.d_outer(x, x)
    (explicit,) = module.d_outer(x, x)
    assert torch.equal(explicit, 4 * x)


def _refused(*_: object) -> Path:
    raise CompilationFailed("no room")
