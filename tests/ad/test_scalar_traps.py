"""Programs at which derivatives go wrong: each checked in both modes, and twice differentiated.

Forward mode is checked against differences, reverse mode against forward mode, and so are the
derivatives of both.
"""

from __future__ import annotations

import numpy as np
import pytest
from scalar_oracle import FIRST, FORWARD_OF, REVERSE_OF, Scalars, check_derivatives
from scalar_trap_calls import CALL_TRAPS
from scalar_trap_cases import TRAPS, dedented

from loma import errors
from loma.ad import differentiate
from loma.frontend import parse


CASES = TRAPS | CALL_TRAPS


@pytest.mark.parametrize("trap", CASES)
def test_traps(trap: str) -> None:
    text, args = CASES[trap]
    check_derivatives(dedented(text), args, items=4)


# An expression of x and y, a point, and its derivatives there.
BAD_POINTS: list[tuple[str, float, float, float, float]] = [
    ("sqrt(x) * y", 0.0, 2.0, 0.0, 0.0),
    ("sqrt(x * x + y * y)", 0.0, 0.0, 0.0, 0.0),
    ("abs(x) * y", 0.0, 2.0, 0.0, 0.0),
    ("max(x, y) + min(x, 2.0 * y)", 0.0, 0.0, 2.0, 0.0),
    ("log(x) if x > 0.0 else 3.0 * x + y", 0.0, 1.0, 3.0, 1.0),
    ("x / y if y != 0.0 else x", 1.0, 0.0, 1.0, 0.0),
    ("exp(x) * 0.0 if x > 700.0 else (y if x < 700.0 else exp(x))", 1.0, 2.0, 0.0, 1.0),
    ("pow(x, y)", 0.0, 2.0, 0.0, 0.0),
    ("pow(x, y)", 0.0, 1.0, 1.0, 0.0),
    ("x ** 2 + y ** 0", 0.0, 0.0, 0.0, 0.0),
    ("(x - 1.0) ** 3 + pow(x - 1.0, 2.0) * y", 0.0, 1.0, 1.0, 1.0),
    ("guarded(x) + y", 0.0, 1.0, 0.0, 1.0),
    ("guarded(x) * y", -1.0, 3.0, 0.0, 0.0),
    ("no_diff(sqrt(x)) + sqrt(no_diff(x)) * y", 0.0, 1.0, 0.0, 0.0),
]
GUARDED = """
def guarded(x : In[float]) -> float:
    y : float
    if x > 0.0:
        y = sqrt(x) + log(x) + 1.0 / x
    return y

"""


@pytest.mark.parametrize(("body", "x", "y", "d_x", "d_y"), BAD_POINTS)
def test_bad_points(body: str, x: float, y: float, d_x: float, d_y: float) -> None:
    """Derivatives that are declared; and no NaN out of what does not count, twice differentiated
    neither."""
    text = f"{GUARDED}def f(x : In[float], y : In[float]) -> float:\n    return {body}\n"
    program = Scalars(text + FIRST + FORWARD_OF + REVERSE_OF)
    for along, expected in (([1.0, 0.0], d_x), ([0.0, 1.0], d_y)):
        _, (found,) = program.forward("f", "fwd_f", (x, y), np.array(along))
        assert found == expected
    assert program.reverse("f", "rev_f", (x, y), np.array([1.0])).tolist() == [d_x, d_y]
    duals = [{"val": x, "dval": 1.0}, {"val": y, "dval": 0.0}]
    given = [x, 0.0, y, 0.0, 1.0]
    for name, args in (("fwd_f", duals), ("rev_f", given)):
        size = program.inputs(name, args).size
        _, tangent = program.forward(name, f"fwd_{name[:3]}", args, np.ones(size))
        assert np.isfinite(tangent).all()
        weights = np.ones(tangent.size)
        assert np.isfinite(program.reverse(name, f"rev_{name[:3]}", args, weights)).all()


def test_an_adjoint_is_added_to_what_is_there() -> None:
    text = (
        "def f(x : In[float], a : In[Array[float, 2]]) -> float:\n    return x * a[0] + a[0]\n"
        "rev_f = rev_diff(f)\n"
    )
    found = Scalars(text).interpreter.call("rev_f", 2.0, 10.0, [3.0, 4.0], [20.0, 30.0], 1.0)
    assert found == (13.0, [23.0, 30.0])


def test_ints_have_no_derivative() -> None:
    """Their adjoints are ints, and stay what they are."""
    text = (
        "class S:\n    n : int\n    x : float\n"
        "def f(n : In[int], s : In[S], m : Out[int]) -> float:\n"
        "    m = n\n    n = s.x\n    return n * s.x + s.n * n\n"
        "rev_f = rev_diff(f)\n"
    )
    s = {"n": 3, "x": 2.5}
    found = Scalars(text).interpreter.call("rev_f", 4, 7, s, {"n": 5, "x": 0.5}, 9, 1.0)
    assert found == (7, {"n": 5, "x": 2.5})


def test_the_reverse_sweep_runs_no_longer_than_max_iter() -> None:
    """What is too long for the program is too long for its derivatives, with the loop's line."""
    text = (
        "def f(x : In[float], n : In[int]) -> float:\n    i : int\n"
        "    while (i < n, max_iter := 3):\n        x = x * x\n        i += 1\n    return x\n"
    )
    interpreter = Scalars(text + FIRST).interpreter
    dual = {"val": 1.1, "dval": 1.0}
    assert interpreter.call("rev_f", 1.1, 0.0, 3, 0, 1.0)[0] == pytest.approx(8 * 1.1**7)
    assert interpreter.call("fwd_f", dual, 3)[0]["dval"] == pytest.approx(8 * 1.1**7)
    for name, args in (("rev_f", (1.1, 0.0, 4, 0, 1.0)), ("fwd_f", (dual, 4))):
        with pytest.raises(RuntimeError) as caught:
            interpreter.call(name, *args)
        assert str(caught.value) == f"{name}: line 3: the loop runs more than max_iter = 3 times"


def test_no_gradient_without_the_value_that_an_out_argument_had() -> None:
    text = "def f(x : In[float], y : Out[float]):\n    y = y * x\nrev_f = rev_diff(f)\n"
    with pytest.raises(errors.NotDifferentiable, match="'y' has on entry") as caught:
        differentiate(parse(text))
    assert caught.value.span.line == 1
