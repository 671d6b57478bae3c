"""loma.tools.samples: arguments made up from a signature."""

from __future__ import annotations

import pytest
import torch

from loma.core.ir import (
    FLOAT, INT, ArrayType, Binary, Element, Expr, Function, IntConst, Param, TensorType, Var,
)  # fmt: skip
from loma.frontend import parse
from loma.tools.samples import Given, SampleError, sample_arguments

N, M, K = (Var(name, INT) for name in "NMK")


def _function(*params: Param, primal: str | None = None) -> Function:
    return Function("f", params, (FLOAT,), (), primal=primal)


def _tensor(*dims: Expr | int, element: Element = "float") -> TensorType:
    return TensorType(tuple(IntConst(d) if isinstance(d, int) else d for d in dims), element)


MATMUL = _function(
    Param("x", _tensor(N, K), "In"),
    Param("w", _tensor(K, M), "In"),
    Param("scale", FLOAT, "In"),
    Param("times", INT, "In"),
)


def test_open_sizes_are_small_and_all_different() -> None:
    arguments = sample_arguments(MATMUL)
    assert list(arguments) == ["x", "w", "scale", "times"]
    assert arguments["x"].shape == (2, 3)
    assert arguments["w"].shape == (3, 4)
    assert arguments["x"].dtype == torch.float64
    assert isinstance(arguments["scale"], float)
    assert arguments["times"] == 2


def test_shapes_bind_sizes_for_other_arguments() -> None:
    arguments = sample_arguments(MATMUL, Given(shapes={"w": (7, 2)}))
    assert arguments["w"].shape == (7, 2)
    assert arguments["x"].shape == (3, 7)


def test_sizes_and_scalars_can_be_given() -> None:
    given = Given(sizes={"N": 1, "K": 0}, scalars={"scale": 0.5, "times": 3})
    arguments = sample_arguments(MATMUL, given)
    assert arguments["x"].shape == (1, 0)
    assert arguments["scale"] == 0.5
    assert arguments["times"] == 3
    assert isinstance(arguments["times"], int)


def test_arithmetic_constants_and_int_tensors() -> None:
    halved = Binary("//", Binary("-", N, IntConst(1), INT), IntConst(2), INT)
    function = _function(
        Param("x", _tensor(N, 8), "In"),
        Param("y", _tensor(Binary("+", halved, IntConst(1), INT)), "In"),
        Param("rows", _tensor(N, element="int"), "In"),
    )
    arguments = sample_arguments(function, Given(sizes={"N": 9}))
    assert arguments["x"].shape == (9, 8)
    assert arguments["y"].shape == (5,)
    assert arguments["rows"].dtype == torch.int64
    assert set(arguments["rows"].tolist()) <= {0, 1}


def test_positive_values_and_seeds() -> None:
    first = sample_arguments(MATMUL, positive=True, seed=1)
    again = sample_arguments(MATMUL, positive=True, seed=1)
    other = sample_arguments(MATMUL, positive=True, seed=2)
    assert 0.5 <= first["x"].min() <= first["x"].max() <= 1.5
    assert torch.equal(first["x"], again["x"])
    assert not torch.equal(first["x"], other["x"])


def test_the_out_arguments_of_a_derivative_are_left_out() -> None:
    params = (Param("x", _tensor(N), "In"), Param("_d_x", _tensor(N), "Out"))
    assert list(sample_arguments(_function(*params, primal="g"))) == ["x"]
    assert list(sample_arguments(_function(*params))) == ["x", "_d_x"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Given(shapes={"x": (2,)}), "'x' has 2 dimensions, but the given shape has 1: [2]"),
        (
            Given(shapes={"x": (2, 3), "w": (4, 5)}),
            "size K is 3 by dimension 1 of 'x', but 4 by dimension 0 of 'w'",
        ),
        (
            Given(shapes={"x": (2, 3)}, sizes={"N": 5}),
            "size N is 5 by the given size, but 2 by dimension 0 of 'x'",
        ),
        (Given(shapes={"z": (2, 3)}), "f has no tensor argument 'z': it has x, w"),
        (Given(sizes={"k": 2}), "f has no size variable 'k': it has N, K, M"),
        (Given(scalars={"time": 2}), "int or float argument 'time': did you mean 'times'?"),
        (Given(scalars={"times": 2.5}), "'times' is an int, got 2.5"),
    ],
)
def test_what_does_not_fit_is_refused(given: Given, message: str) -> None:
    with pytest.raises(SampleError) as caught:
        sample_arguments(MATMUL, given)
    assert message in str(caught.value)


def test_constants_and_negative_sizes() -> None:
    constant = _function(Param("x", _tensor(8), "In"))
    with pytest.raises(SampleError, match=r"shape of 'x' is \[4\], but its type makes it \[8\]"):
        sample_arguments(constant, Given(shapes={"x": (4,)}))
    smaller = _function(
        Param("x", _tensor(N), "In"),
        Param("y", _tensor(Binary("-", N, IntConst(3), INT)), "In"),
    )
    with pytest.raises(SampleError, match=r"make 'y' a tensor of shape \[-1\]: give other sizes"):
        sample_arguments(smaller, Given(sizes={"N": 2}))


def test_any_rank_needs_a_shape_and_arrays_cannot_be_made_up() -> None:
    anything = _function(Param("x", TensorType(None), "In"))
    assert sample_arguments(anything, Given(shapes={"x": (2, 5)}))["x"].shape == (2, 5)
    with pytest.raises(SampleError, match="'x' may have any rank, so its shape must be given"):
        sample_arguments(anything)
    array = _function(Param("x", ArrayType(FLOAT, 3), "In"))
    with pytest.raises(SampleError, match="no value can be made up for 'x'"):
        sample_arguments(array)


def test_places_of_an_assignment_are_distinct() -> None:
    program = """
def f(y : Out[Tensor[N, M]], p : In[IntTensor[N, M]], q : In[IntTensor[M]], x : In[Tensor[M]]):
    y[i, p[i, j]] = x[j]
    y[0, q[j]] += x[j]
"""
    arguments = sample_arguments(parse(program).functions[0], Given(sizes={"N": 3, "M": 50}))
    assert torch.sort(arguments["p"]).values.tolist() == [list(range(50))] * 3
    assert not torch.equal(arguments["p"][0], arguments["p"][1])
    assert arguments["q"].max() == 1
