"""The table of built-in scalar functions: every row has its derivative and each backend's row."""

from __future__ import annotations

import itertools
from keyword import iskeyword
from typing import Any

import numpy as np
import pytest
from c_host import CProgram, differentiated

from loma import pipeline
from loma.ad.rules import SCALAR_RULES
from loma.arithmetic.grids import BUILTIN_FUNCTIONS, COMPARISONS, INT_BINARY
from loma.backends.interpreter import Interpreter
from loma.arithmetic import integers
from loma.core.builtins import BUILTINS
from loma.core.ops import OPS
from loma.core.printer import print_module
from loma.core.verify import verify
from loma.errors import BackendLacksOperator
from loma.frontend import parse
from loma.frontend.module import _RESERVED_FUNCTIONS

NAMES = [name for name in BUILTINS if name != "thread_id"]  # which is no function of its arguments
RANGE = "len(range(n, 2 * n, n))"


def test_every_builtin_has_a_derivative_and_a_row_of_the_interpreter() -> None:
    tables = {
        "ad/rules.py": set(SCALAR_RULES),
        "loma/arithmetic/grids.py": set(BUILTIN_FUNCTIONS),
    }
    missing = [
        f"{name} in {table}" for table, names in tables.items() for name in NAMES
        if name not in names
    ]  # fmt: skip
    assert not missing, f"missing rows: {missing}"


def test_ints_are_computed_alike() -> None:
    """When a program is compiled, and in the interpreter."""
    ints = (-7, -1, 0, 1, 3, 7)
    general = COMPARISONS | INT_BINARY
    for op, function in integers.BINARY.items():
        for a, b in itertools.product(ints, ints):
            if b or op not in ("/", "//", "%"):
                assert function(a, b) == general[op](a, b), (op, a, b)
    assert set(integers.FUNCTIONS) == {n for n in NAMES if BUILTINS[n].result == "operands"}
    for name, own in integers.FUNCTIONS.items():
        for args in itertools.product(ints, repeat=len(BUILTINS[name].args)):
            assert own(*args) == BUILTIN_FUNCTIONS[name](*args), (name, args)


def test_which_functions_are_even() -> None:
    x = np.array([0.3, 0.7, np.nan])
    for name in NAMES:
        if BUILTINS[name].args == ("x",) and BUILTINS[name].result != "int":
            function = BUILTIN_FUNCTIONS[name]
            with np.errstate(invalid="ignore"):
                same = np.array_equal(function(-x), function(x), equal_nan=True)
            assert bool(same and not BUILTINS[name].flat) is BUILTINS[name].even, name


@pytest.mark.parametrize("name", NAMES)
def test_every_builtin_has_code_in_both_backends(name: str) -> None:
    info = BUILTINS[name]
    args = ["n" if name == "int2float" or arg in info.ints else "x" for arg in info.args]
    call = RANGE if name == "len" else f"{name}({', '.join(args)})"
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


# ------------------------------------------------------- functions of the program of those names

HIDEABLE = [name for name in OPS if not iskeyword(name) and name not in _RESERVED_FUNCTIONS]
USES = """
def f(x : In[float], y : In[float]) -> float:
    return softplus(x) * sinh(y) + lgamma(x * y) + clamp(x, 0.25, y) * asin(x * y) + abs(y)

def g(X : In[Tensor[N]], y : In[float]) -> Tensor[N]:
    Z : Tensor[N]
    Z[i] = f(X[i], y) * softplus(X[i])
    return sinh(Z) * lgamma(X) + clamp(X, 0.5, Z) * abs(relu(Z)) + softplus(X / Z)

d_f = rev_diff(f)
df = fwd_diff(f)
dd_f = rev_diff(d_f)
d_g = rev_diff(g)
"""
# Those that the derivatives above need and USES does not.
NEEDED = ("cosh", "sigmoid", "digamma", "polygamma", "rsqrt", "max", "sign", "where", "sum")


def _without_notes(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.startswith("#"))


def test_derivatives_call_the_languages_own_functions() -> None:
    """Where the program has functions of their names, of another meaning."""
    own = "".join(f"def {name}(x : In[float]) -> float:\n    return -3.0 * x\n" for name in NEEDED)
    hidden, plain = (pipeline.adjoint(pipeline.parsed(text)) for text in (own + USES, USES))
    verify(hidden)
    printed = print_module(hidden)
    assert {f"loma.{name}(" in printed for name in NEEDED[:8]} == {True}
    assert _without_notes(print_module(parse(printed))) == _without_notes(printed)
    again = Interpreter(pipeline.adjoint(parse(printed)))
    calls: list[tuple[str, list[Any]]] = [
        ("d_f", [0.7, 0.0, 0.9, 0.0, 1.0]),
        ("df", [{"val": 0.7, "dval": 1.0}, {"val": 0.9, "dval": -2.0}]),
        ("dd_f", [0.7, 0.0, 1.0, 0.9, 0.0, 0.5, 1.0, 0.0]),
        ("d_g", [np.array([0.7, 0.4]), np.zeros(2), 0.9, 0.0, np.ones(2)]),
    ]
    for name, args in calls:
        expected = Interpreter(plain).call(name, *args)
        for found in (Interpreter(hidden).call(name, *args), again.call(name, *args)):
            np.testing.assert_equal(found, expected)


def test_a_program_may_have_functions_of_these_names() -> None:
    """In C, too, whose library has most of them."""
    text = "".join(
        f"def {name}(x : In[float]) -> float:\n    return {k}.0 * x\n"
        for k, name in enumerate(HIDEABLE)
    )
    total = " + ".join(f"{name}(x)" for name in HIDEABLE)
    text += f"def all_(x : In[float]) -> float:\n    return {total}\nd_all = rev_diff(all_)\n"
    module = differentiated(text)
    wanted = float(sum(range(len(HIDEABLE))))
    for host in (Interpreter(module), CProgram(module)):
        assert host.call("all_", 1.0)[0] == host.call("d_all", 1.0, 0.0, 1.0)[0] == wanted


def test_the_language_is_named_where_a_program_hides_it() -> None:
    module = parse("""
def relu(x : In[float], loma : In[float]) -> float:
    return 2.0 * x + loma.relu(loma)

def f(X : In[Tensor[N]], x : In[float], s : In[Tensor[()]]) -> tuple[Tensor[N], float, float]:
    return loma.relu(X), relu(x, s), loma.clamp(x, -1.0, 1.0)
""")
    X = np.array([-1.0, 2.0])
    values = Interpreter(module).call("f", X, -3.0, np.float64(-5.0))
    np.testing.assert_equal(values, (np.array([0.0, 2.0]), -6.0, -1.0))
