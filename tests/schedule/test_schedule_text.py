"""``loma show --stage schedule``: the trees of functions as text, pinned by a golden file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from corpus import tensor_programs
from schedule_cases import CASES
from trees import nodes_of, tree_of

from loma import pipeline
from loma.backends.schedule import host, ir
from loma.backends.schedule.host_printer import print_lowered
from loma.backends.schedule.printer import name as shown_name
from loma.core.ir import FLOAT, Module, Var

# Functions that together have every node, by the programs that they are of.
FUNCTIONS = [
    ("squash.loma", "squash"), ("digit_capsules.loma", "predictions"), ("matmul", "matmul_"),
    ("dilated_convolution", "dilated_convolution"), ("two_axes", "two_axes__forward"),
    ("argmax", "argmax_"), ("reversed_and_shifted", "reversed_and_shifted"),
    ("reversed_loop", "reversed_loop"), ("scalar_accumulator", "scalar_accumulator"),
    ("running_sums", "running_sums"), ("shared", "shared"),
    ("docs/tensors.md", "arrange"), ("docs/language.md", "square_roots"), ("registers", "known"),
    ("registers", "windows"), ("guarded", "guarded"), ("sums", "sums"),
    ("streamed", "streamed"), ("streamed", "remainders"), ("turned", "turned"),
    ("transposed_squares", "transposed_squares"), ("kept", "sampled"), ("masked", "newton"),
    ("out_call_in_a_loop", "add_square__backward"), ("chosen", "chosen__backward"),
]  # fmt: skip


def _module(programs: list[tuple[str, str]], program: str, function: str) -> Module:
    texts = [text for name, text in programs if name == program]
    text = next(t for t in texts if f"def {function.partition('__')[0]}(" in t)
    return pipeline.program(text, program).module


def test_trees(golden: Callable[[str, str], None]) -> None:
    found: set[type[Any]] = set()
    programs = [*CASES.items(), *tensor_programs()]
    texts = []
    for program, name in FUNCTIONS:
        module = _module(programs, program, name)
        function = module.function(name)
        tree = tree_of(function, module)
        found |= {type(node) for node in nodes_of(tree)}
        texts.append(print_lowered(function, tree))
    of_gpus = {ir.AllReduce, host.Group, host.Spread, host.Carry}  # tests/cuda
    of_gpus |= {host.Pass, host.PairsPass, host.Either, host.Lanes}
    assert found >= {*get_args(ir.Node), *get_args(host.HostNode)} - of_gpus
    golden("schedule.txt", "\n\n".join(texts))


def test_names_are_told_apart() -> None:
    names = [Var(name, FLOAT) for name in ("acc1", "@acc1_", "@b__i__", "@b__i_", "x 0", "acc1_")]
    shown = [shown_name(var) for var in names]
    assert shown == ["acc1", "$acc1", "$b.i", "$b__i", "$x.size(0)", "acc1_"]


def test_a_sum_of_few_known_steps_is_one_block() -> None:
    text = """
def f(x : In[Tensor[COUNT, M]]) -> Tensor[M]:
    y : Tensor[M]
    y[j] = sum(x[i, j] for i in COUNT)
    return y
"""

    def shown(count: str) -> str:
        return pipeline.stage_text(text.replace("COUNT", count), "schedule", "f")

    assert "blocks $first" in shown("65")
    assert "blocks $first" in shown("N")
    assert "blocks $first" not in shown("64")
    assert "if $first" not in shown("64")


def test_stage() -> None:
    text = "def f(x : In[Tensor[N]]) -> Tensor[N]:\n    return x + 1.0\n"
    shown = pipeline.stage_text(text, "schedule", "f")
    assert shown.startswith("def f(x : In[Tensor[N]]) -> Tensor[N]:\n")
    assert shown in pipeline.stage_text(text, "schedule")
