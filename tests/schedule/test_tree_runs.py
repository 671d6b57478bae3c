"""Functions run as their trees say, and do what programs say; wrong trees are seen."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_cases import CONTROL
from corpus import tensor_programs
from index_cases import CASES as INDEX_CASES
from operator_cases import CASES as OPERATOR_CASES
from oracle import entry
from sampled import one_in
from schedule_cases import CASES as SCHEDULE_CASES
from trap_cases import TRAPS
from tree_runs import arguments, compare, run_program
from trees import Change, changed, nodes_of, of, tree_of

import capsnet_loma
from loma import pipeline
from loma.backends import registry
from loma.backends.cfamily.device import Device
from loma.backends.interpreter import Interpreter
from loma.backends.interpreter.frame import Frame
from tree_host import LoweredInterpreter
from tree_memory import Machine, TreeError
from tree_loops import run_tree
from loma.backends.lowering import index_statements
from loma.backends.schedule import host, ir
from loma.core import builder
from loma.core.ir import FLOAT, INT, Binary, Expr, Function, Index, IntConst, TensorType, Var

EVERY: tuple[Any, ...] = (*INDEX_CASES, *TRAPS, *CONTROL, *OPERATOR_CASES)
CASES = {case.name: case for case in EVERY}


def _known(name: str, text: str) -> Mapping[str, Any]:
    """The arguments of a program's last function, by name."""
    if name not in CASES or CASES[name].text != text:
        return {}
    params = pipeline.parsed(text).function(entry(text)).params
    values = CASES[name].arguments()
    return {param.name: value for param, value in zip(params, values, strict=True)}


@pytest.mark.parametrize("name", one_in(3, SCHEDULE_CASES))
def test_programs_of_this_folder(name: str) -> None:
    assert all(run_program(SCHEDULE_CASES[name], name, tries=3).values())


@pytest.mark.parametrize("case", INDEX_CASES[::4], ids=lambda case: case.name)
def test_index_statements(case: Any) -> None:
    assert all(run_program(case.text, case.name, _known(case.name, case.text), 1).values())


@pytest.mark.parametrize("name", one_in(3, SCHEDULE_CASES, 1))
def test_programs_of_this_folder_for_gpus(name: str) -> None:
    assert all(run_program(SCHEDULE_CASES[name], name, tries=3, device=registry.CUDA).values())


@pytest.mark.parametrize("case", INDEX_CASES[1::4], ids=lambda case: case.name)
def test_index_statements_for_gpus(case: Any) -> None:
    known = _known(case.name, case.text)
    assert all(run_program(case.text, case.name, known, 1, device=registry.CUDA).values())


INNER = """
def pulled(x : In[Tensor[B, N, D]], v : In[Tensor[B, D]], t : In[int]) -> Tensor[B, D]:
    a : Tensor[B, N]
    y : Tensor[B, D]
    for k in range(t):
        if k > 0:
            a[b, n] += sum(x[b, n, d] * y[b, d] for d in D)
        a[b, n] = a[b, n] * 0.5 + x[b, n, 0]
        y[b, d] = sum(a[b, n] * x[b, n, d] for n in N)
        y[b, d] = y[b, d] / (1.0 + v[b, d] * v[b, d])
    return y

def pushed(x : In[Tensor[B, N, D]], v : In[Tensor[B, D]], t : In[int]) -> Tensor[B, D]:
    a : Tensor[B, N]
    y : Tensor[B, D]
    a[b, n] = x[b, n, 0]
    for k in range(t):
        y[b, d] = sum(a[b, n] * x[b, n, d] for n in N)
        y[b, d] = y[b, d] / (1.0 + v[b, d] * v[b, d])
        if k + 1 < t:
            a[b, n] += sum(x[b, n, d] * y[b, d] for d in D)
    return y
"""


def test_inner_loops_for_gpus() -> None:
    program = (Path(capsnet_loma.__file__).parent / "digit_capsules.loma").read_text()
    known = {"iterations": 3, "over_inputs": 0}
    assert all(run_program(program, "routing", known, tries=4, device=registry.CUDA).values())
    assert all(run_program(INNER, "pushed", {"t": 4}, tries=8, device=registry.CUDA).values())
    for function in ("pulled", "pushed"):
        text = pipeline.stage_text(INNER, "schedule", function, device="cuda")
        assert text.count("inner ") == 1


@pytest.mark.full
def test_all_programs_for_gpus() -> None:
    for name, text in tensor_programs():
        run_program(text, name, _known(name, text), device=registry.CUDA)


@pytest.mark.full
def test_all_programs() -> None:
    taken: dict[str, int] = {}
    for name, text in tensor_programs():
        for function, times in run_program(text, name, _known(name, text)).items():
            taken[function] = taken.get(function, 0) + times
    never = [function for function, times in taken.items() if not times]
    assert len(never) < len(taken) // 40, never  # random sizes do not suit them


@pytest.mark.full
def test_known_sizes() -> None:
    for name, text in [*SCHEDULE_CASES.items(), *tensor_programs()]:
        run_program(text, name, _known(name, text), tries=2, specialised=True)


@pytest.mark.full
def test_short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops are cut into pieces that are longer than the sizes of these tests: not here."""
    monkeypatch.setattr(index_statements, "_chunk", lambda *_: 3)
    machine = replace(registry.CPU.machine, chunk=3, strip=4, across=2, block=3, rows=12)
    monkeypatch.setattr(registry, "CPU", replace(registry.CPU, machine=machine))
    for name, text in [*SCHEDULE_CASES.items(), *tensor_programs()]:
        run_program(text, name, _known(name, text))


# ------------------------------------------------------------------------------- wrong trees

# Where several iterations name one element.
MEETING = {"x": np.arange(6.0).reshape(3, 2), "p": np.array([0, 1, 0])}

# A reduction into rows, positions, a sum into elements of any place, a window over a border, and
# loops that a kernel has inside.
ROWS = """
def f(x : In[Tensor[N, K]], w : In[Tensor[K, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = sum(abs(x[i, k] - w[k, j]) for k in K)
    return y
"""
BEST = """
def f(x : In[Tensor[N, M]]) -> tuple[IntTensor[N], Tensor[N]]:
    p : IntTensor[N]
    y : Tensor[N]
    p[i] = argmax(x[i, j] for j in M)
    y[i] = max(x[i, j] for j in M)
    return p, y
"""
SCATTER = """
def f(x : In[Tensor[N, M]], p : In[IntTensor[N]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[p[n], m] += x[n, m]
    return y
"""
WINDOW = """
def f(x : In[Tensor[N]], w : In[Tensor[3]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = zero_pad(x[i - 1]) * w[0] + zero_pad(x[i + 1]) * w[2]
    return y
"""
KERNEL = """
def f(x : In[Tensor[N, M]]) -> Tensor[N, M]:
    m : Tensor[N]
    e : Tensor[N, M]
    z : Tensor[N]
    y : Tensor[N, M]
    m[i] = max(x[i, j] for j in M)
    e[i, j] = exp(x[i, j] - m[i])
    z[i] = sum(e[i, j] for j in M)
    y[i, j] = e[i, M - 1 - j] / z[i]
    return y
"""
SHIFTED = """
def f(x : In[Tensor[N]], k : In[int]) -> Tensor[M]:
    y : Tensor[M]
    y[i] = x[i + k]
    return y
""".replace("-> Tensor[M]", ", w : In[Tensor[M]]) -> Tensor[M]").replace("int]) ,", "int],")
NUMBER = """
def f(x : In[Tensor[N, M]]) -> float:
    s : float
    s += x[i, j] * x[i, j]
    return s
"""


def _less(name: str, by: int = 1) -> Any:
    def value(node: Any) -> Expr:
        return Binary("-", getattr(node, name), IntConst(by), INT)

    return value


WRONG: dict[str, tuple[str, Change]] = {
    "lanes are not filled": (ROWS, of(ir.Fill)),
    "lanes are not stored": (ROWS, of(ir.StoreLanes)),
    "nothing is added to lanes": (ROWS, of(ir.UpdateLanes, lambda node: not node.load)),
    "a block forgets the one before": (ROWS, of(ir.UpdateLanes, lambda node: node.load)),
    "blocks end too early": (ROWS, of(ir.Blocks, count=_less("count"))),
    "tiles end too early": (ROWS, of(ir.Tiles, high=_less("high"))),
    "tiles end too late": (ROWS, of(ir.Tiles, high=_less("high", -1))),
    "a loop ends too early": (SCATTER, of(ir.Loop, high=_less("high"))),
    "a loop ends too late": (SCATTER, of(ir.Loop, high=_less("high", -1))),
    "threads have too few iterations": (ROWS, of(ir.Parallel, count=_less("count"))),
    "rows that may meet are in lanes": (SCATTER, of(ir.Loop, role="vector")),
    "nothing is compared": (BEST, of(ir.Compare)),
    "values are not loaded": (BEST, of(ir.UpdateLanes)),
    "elements start with anything": (SCATTER, of(host.Allocate, zeros=False)),
    "elements are set, not added to": (SCATTER, of(ir.Store, kind="set")),
    "a subscript is not tested": (WINDOW, of(ir.Narrow, tests=lambda node: node.tests[1:])),
    "borders are left out": (WINDOW, of(ir.Loop, lambda node: node.without is not None)),
    "private tensors are taken for dead": (
        KERNEL, of(host.Buffer, first=lambda node: node.last),
    ),
    "a range is not checked": (SHIFTED, of(host.CheckRange)),
    "parts of a total are not stored": (NUMBER, of(ir.Store, lambda node: node.kind == "set")),
}  # fmt: skip


WRONG_FOR_GPUS: dict[str, tuple[str, Change]] = {
    "threads keep their sums": (ROWS, of(ir.AllReduce)),
    "threads keep their positions": (BEST, of(ir.AllReduce)),
    "a loop that is shared ends too early": (ROWS, of(ir.Loop, high=_less("high"))),
    "threads have too few iterations": (ROWS, of(ir.Parallel, count=_less("count"))),
    "iterations are parallel that may meet": (SCATTER, of(ir.Loop, role="vector")),
}


def _seen(text: str, change: Change, tries: int = 30, device: Device | None = None) -> str:
    """What is said of the first difference that the changed tree makes."""
    module = pipeline.parsed(text)
    function = module.function("f")
    right = tree_of(function, module, device)
    wrong = changed(right, change)
    assert wrong != right
    rng = random.Random(1)
    interpreter = Interpreter(module)
    for seed in range(tries):
        args = arguments(function, MEETING if text == SCATTER else {}, rng)
        compare(interpreter, LoweredInterpreter(module, lambda _: right, seed), "f", args)
        try:
            compare(interpreter, LoweredInterpreter(module, lambda _: wrong, seed), "f", args)
        except (AssertionError, ValueError) as error:
            return str(error)
    raise AssertionError("nobody sees the difference")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_trees_are_seen(name: str) -> None:
    text, change = WRONG[name]
    assert _seen(text, change)


@pytest.mark.parametrize("name", WRONG_FOR_GPUS)
def test_wrong_trees_for_gpus_are_seen(name: str) -> None:
    text, change = WRONG_FOR_GPUS[name]
    assert _seen(text, change, device=registry.CUDA)


def test_iterations_that_share_an_element() -> None:
    """A sum over an axis that is parallel: one iteration after the other gives the right sum."""
    n, m = Var("n", INT), Var("m", INT)
    x, y = Var("x", TensorType((n, m))), Var("y", TensorType((m,)))
    place = builder.add(builder.mul(n, IntConst(2)), m)
    add = ir.Store(Index(y, (m,), FLOAT), "sum", Index(x, (place,), FLOAT))
    loop = ir.Loop(m, IntConst(0), IntConst(2), (add,))
    tree = ir.Parallel(n, IntConst(3), IntConst(2), (loop,), (y,), ())
    frame = Frame(Function("f", (), (), ()), {}, {}, lambda *_: (), 64)
    frame.env |= {"x": np.ones((3, 2)), "y": np.zeros(2)}
    with pytest.raises(TreeError, match="independent iterations touch 'y'"):
        run_tree(frame, tree, Machine(random.Random(0)))


def test_what_is_set_twice() -> None:
    def twice(node: Any) -> Any:
        if isinstance(node, ir.Loop):
            first = next(n for n in node.body if isinstance(n, ir.Let))
            return ir.Loop(node.counter, node.low, node.high, (first, *node.body), node.role)
        return node

    assert "is set twice" in _seen(ROWS, twice)


def test_memory_that_does_not_exist() -> None:
    assert "elements: none at" in _seen(SCATTER, of(ir.Loop, high=_less("high", -1)))


# Rows that a kernel takes one by one, with a sum whose length the row says.
TRIANGLE = """
def f(x : In[Tensor[N, D]]) -> Tensor[N]:
    h : Tensor[N, D]
    z : Tensor[N]
    y : Tensor[N]
    h[i, d] = exp(x[i, d])
    z[i] = sum(h[i, d] for d in D)
    y[i] = sum(h[i, d] * x[i, d] for d in range(i + 1)) / z[i]
    return y
"""
LOG_SUM = """
def f(x : In[Tensor[D]]) -> Tensor[1]:
    y : Tensor[1]
    y[0] = max(x[e] for e in D) + log(sum(exp(x[d] - max(x[e] for e in D)) for d in D))
    return y
"""


def test_lengths_that_rows_say_for_gpus() -> None:
    assert all(run_program(TRIANGLE, "triangle", tries=20, device=registry.CUDA).values())


def test_a_loop_that_uses_a_total_is_not_cut() -> None:
    """A part of it would use a part of the total."""
    module = pipeline.parsed(LOG_SUM)
    tree = tree_of(module.function("f"), module, registry.CUDA)
    teams = [node.team for node in nodes_of(tree) if isinstance(node, ir.Parallel)]
    assert teams
    assert not any(team.splits for team in teams if team is not None)


def test_the_larger_of_two_numbers_that_the_text_says() -> None:
    text = """
def f(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = max(0.5, 0.25) * x[i] + min(1.0, max(2.0, 0.5 * x[i]))
    return y
"""
    assert all(run_program(text, "constants", tries=2).values())
