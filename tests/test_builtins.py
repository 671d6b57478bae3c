"""The table of built-in scalar functions: every row has its derivative and each backend's row."""

from __future__ import annotations

import pytest

from loma import pipeline
from loma.ad.rules import SCALAR_RULES
from loma.backends.interpreter.arithmetic import BUILTIN_FUNCTIONS
from loma.builtins import BUILTINS
from loma.errors import BackendLacksOperator

NAMES = [name for name in BUILTINS if name != "thread_id"]  # which is no function of its arguments
RANGE = "len(range(n, 2 * n, n))"


def test_every_builtin_has_a_derivative_and_a_row_of_the_interpreter() -> None:
    tables = {
        "ad/rules.py": set(SCALAR_RULES),
        "backends/interpreter/arithmetic.py": set(BUILTIN_FUNCTIONS),
    }
    missing = [
        f"{name} in {table}" for table, names in tables.items() for name in NAMES
        if name not in names
    ]  # fmt: skip
    assert not missing, f"missing rows: {missing}"


@pytest.mark.parametrize("name", NAMES)
def test_every_builtin_has_code_in_both_backends(name: str) -> None:
    info = BUILTINS[name]
    x = "x" if name != "int2float" else "n"
    call = RANGE if name == "len" else f"{name}({', '.join([x] * info.arity)})"
    scalar = f"def f(x : In[float], n : In[int]) -> {_result(name)}:\n    return {call}\n"
    element = call.replace("(x", "(x[i]").replace(", x", ", x[i]")
    tensor = (
        "def f(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:\n"
        f"    y : Tensor[N]\n    y[i] = 1.0 * {element}\n    return y\n"
    )
    for text, stage in ((scalar, "c"), (tensor, "cpp")):
        try:
            pipeline.stage_text(text, stage, "f")
        except BackendLacksOperator as error:
            pytest.fail(str(error))


def _result(name: str) -> str:
    return "int" if BUILTINS[name].result == "int" else "float"
