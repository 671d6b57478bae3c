"""Trees that are rewritten do what they did; what would change that is refused, with the reason."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from index_cases import CASES as INDEX_CASES
from schedule_cases import CASES as SCHEDULE_CASES
from tree_runs import REFUSED, arguments, compare
from trees import changed, tree_of

from loma import pipeline
from loma.backends import registry
from loma.backends.interpreter import Interpreter
from loma.backends.interpreter.frame import Frame
from tree_host import LoweredInterpreter
from tree_memory import Machine
from tree_loops import run_tree
from loma.backends.schedule import rewrites
from loma.backends.schedule.host import HostNode
from loma.backends.schedule.ir import InPlace, Kind, Let, Loop, Node, Parallel, Store
from loma.backends.schedule.printer import print_tree
from loma.backends.schedule.rewrites import Refused
from loma.backends.schedule.verify import verify_tree
from loma.backends.schedule.walk import declared, mentioned, nodes
from loma.core import builder
from loma.core.ir import (
    FLOAT, INT, Binary, Expr, Function, Index, IntConst, Module, TensorType, Var,
    is_tensor_function,
)  # fmt: skip
from loma.core.walk import aggregates

# Plain loops, each of them where it stands.
PLAIN = replace(registry.CPU.machine, threads=False, library=False, vector_bytes=0)

Step = Callable[[Any, Loop], Any]
WAYS: dict[str, Step] = {
    "split": lambda tree, loop: rewrites.split(tree, loop, 3),
    "bind": lambda tree, loop: rewrites.bind(tree, loop, IntConst(1), ()),
}


class Rewriting:
    """Rewrites each tree of a function at random."""

    def __init__(self, module: Module, seed: int) -> None:
        self.module, self.random, self.taken = module, random.Random(seed), dict.fromkeys(WAYS, 0)

    def tree_of(self, function: Function) -> tuple[HostNode, ...]:
        found = changed(tree_of(function, self.module), self.rewritten)
        assert isinstance(found, tuple)
        return found

    def rewritten(self, tree: Any) -> Any:
        if not isinstance(tree, InPlace | Parallel):
            return tree
        inside = {var.name for node in nodes(tree.body) for var in declared(node)}
        outside = {name for node in tree.body for name in mentioned(node)} - inside
        for _ in range(6):
            every = rewrites.loops(tree)
            way = self.random.choice(list(WAYS))
            if not every or (way == "bind" and isinstance(tree, Parallel)):
                break
            try:
                tree = WAYS[way](tree, self.random.choice(every))
            except Refused:
                continue
            self.taken[way] += 1
            verify_tree(tree, lambda name: name in outside or not name.startswith("@"))
        return tree


TAKEN = dict.fromkeys(WAYS, 0)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "CPU", replace(registry.CPU, machine=PLAIN))


def run(program: str, name: str, seeds: int) -> dict[str, int]:
    """How often a rewrite was possible in a program's functions, which must do what they did."""
    module = pipeline.program(program, name).module
    taken = dict.fromkeys(WAYS, 0)
    for seed in range(seeds):
        rng = random.Random(zlib.crc32(program.encode()) + seed)
        rewriting = Rewriting(module, rng.randrange(1 << 30))
        trees = LoweredInterpreter(module, rewriting.tree_of, seed)
        for function in filter(is_tensor_function, module.functions):
            if any(aggregates(function)):
                continue
            try:
                args = arguments(function, {}, rng)
            except REFUSED:
                continue
            compare(Interpreter(module), trees, function.name, args)
        taken = {way: taken[way] + count for way, count in rewriting.taken.items()}
    return taken


@pytest.mark.usefixtures("plain")
def test_programs_of_this_folder(pytestconfig: pytest.Config) -> None:
    tries = 2 if pytestconfig.getoption("--full") else 1
    for name, program in SCHEDULE_CASES.items():
        for way, count in run(program, name, tries).items():
            TAKEN[way] += count
    assert all(TAKEN.values()), TAKEN


@pytest.mark.full
@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("case", INDEX_CASES, ids=lambda case: case.name)
def test_index_statements(case: Any) -> None:
    run(case.text, case.name, 8)


# ------------------------------------------------------------------------------- single rewrites

N, M, I, J, K = (Var(name, INT) for name in ("n", "m", "i", "j", "k"))  # noqa: E741
VECTOR, MATRIX = TensorType((N,)), TensorType((N, M))
X, A, Y, T = Var("x", VECTOR), Var("a", MATRIX), Var("y", VECTOR), Var("t", VECTOR)
ZERO, ONE = IntConst(0), IntConst(1)
BOTH = builder.add(builder.mul(I, M), J)


def at(tensor: Var, offset: Expr = I) -> Index:
    return Index(tensor, (offset,), FLOAT)


def put(place: Index, value: Expr, kind: Kind = "set") -> Store:
    return Store(place, kind, value)


def over(counter: Var, extent: Expr, *body: Node) -> Loop:
    return Loop(counter, ZERO, extent, body)


def tree(*body: Node) -> InPlace:
    return InPlace(body, (Y,))


def values(found: InPlace | Parallel, seed: int = 0) -> dict[str, Any]:
    """What the tree leaves in the tensors, of three and four elements."""
    verify_tree(found, lambda name: not name.startswith("@"))
    frame = Frame(Function("f", (), (), ()), {}, {}, lambda *_: (), 64)
    numbers = np.random.default_rng(3)
    frame.env |= {"n": 3, "m": 4, "x": numbers.normal(size=3), "a": numbers.normal(size=(3, 4))}
    frame.env |= {"y": numbers.normal(size=3), "t": numbers.normal(size=3)}
    run_tree(frame, found, Machine(random.Random(seed)))
    return {name: frame.env[name].copy() for name in ("y", "t", "a")}


def same(left: InPlace, right: InPlace | Parallel, *names: str) -> bool:
    before, after = values(left), values(right)
    return all(np.array_equal(before[name], after[name]) for name in names or ("y", "t", "a"))


def lines(found: InPlace | Parallel) -> list[str]:
    return [line.strip() for line in print_tree(found).splitlines()[1:]]


ROW_SUMS = over(I, N, over(J, M, put(at(Y), at(A, BOTH), "sum")))


def test_pieces_count_from_where_the_loop_begins() -> None:
    loop = Loop(I, ONE, N, (put(at(Y), at(X)),))
    found = rewrites.split(tree(loop), loop, 2)
    (outer,) = found.body
    assert isinstance(outer, Loop)
    assert lines(found) == [
        "for $i_piece in range($ceiling(n - 1, 2)):", "$i_begin = 2 * $i_piece + 1",
        "$i_end = min(n, $i_begin + 2)", "for i in range($i_begin, $i_end):", "y[i] = x[i]",
    ]  # fmt: skip
    assert same(tree(loop), found)
    assert same(tree(loop), rewrites.bind(found, outer, ONE, ()))


def test_an_element_of_each_iteration_is_a_variable() -> None:
    loop = over(I, N, put(at(T), at(X)), Let(K, I), put(at(Y, K), builder.mul(at(T), at(T, K))))
    both = InPlace((loop,), (T, Y))
    kept = rewrites.stage(both, loop, T)
    assert kept.writes == (Y,)
    assert lines(kept) == [
        "for i in range(n):", "$t : float = x[i]", "k = i", "y[k] = $t * $t",
    ]  # fmt: skip
    assert same(both, kept, "y")
    bound = rewrites.bind(kept, rewrites.loops(kept)[0], ONE, ())
    assert same(both, bound, "y")


PREFIX = over(I, N, put(at(Y), at(Y, Binary("-", I, ONE, INT))))
LATER = over(I, N, put(at(Y), at(T, Binary("-", N, I, INT))))
EARLY = over(I, N, put(at(T), at(X)))
TOTAL = over(I, N, put(at(Y, ZERO), at(X), "sum"))
ADDED = over(I, N, put(at(Y), at(X), "sum"))
REFUSALS: list[tuple[str, Callable[..., object], tuple[Loop, ...], tuple[object, ...]]] = [
    ("its iterations meet in 'y'", rewrites.bind, (TOTAL,), (ONE, ())),
    ("not every iteration writes 'x'", rewrites.stage, (EARLY,), (X,)),
    ("it needs 'y' before it writes it", rewrites.stage, (ADDED,), (Y,)),
    ("'t' is used elsewhere, too", rewrites.stage, (EARLY, LATER), (T,)),
    ("it uses several elements of 'y'", rewrites.stage, (PREFIX,), (Y,)),
    ("it stands in the tree 2 times", rewrites.split, (EARLY, EARLY), (2,)),
    ("there are no pieces of 0 values", rewrites.split, (EARLY,), (0,)),
    ("it stands before the outermost loop", rewrites.bind, (ROW_SUMS, LATER), (ONE, ())),
]


@pytest.mark.parametrize(("reason", "rewrite", "loops", "more"), REFUSALS)
def test_refused(
    reason: str, rewrite: Callable[..., object], loops: tuple[Loop, ...], more: tuple[object, ...]
) -> None:
    with pytest.raises(Refused, match=reason):
        rewrite(tree(*loops), loops[0], *more)
