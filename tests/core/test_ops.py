"""Every operator: interpreter, libtorch and PyTorch agree on values and derivatives."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sampled import one_in
import test_builtin_values
import torch
from operator_cases import CASES, Case
from oracle import Program, as_tuple, check, close, differentiable

from loma.ad import rules
from loma.backends.interpreter import ops as interpreter_ops
from loma.backends.torch import ops as libtorch_ops
from loma.core.ops import OPS

BY_NAME = {case.name: case for case in CASES}
# The interpreter runs the explicit first and second derivative of every operator; libtorch, on
# which autograd runs the same statements as functions of their own, those of these.
COMPILED_TWICE = ("div", "log_softmax", "conv2d_all")
FULL_TWICE = (*COMPILED_TWICE, "where", "amax", "max_pool2d", "gather")


@pytest.fixture(scope="module")
def program(pytestconfig: pytest.Config) -> Program:
    full = pytestconfig.getoption("--full")
    second = [f"op_{name}" for name in (FULL_TWICE if full else COMPILED_TWICE)]
    return Program([case.text for case in CASES], second, first=())


# ----------------------------------------------------------------------------------- missing rows


def test_every_operator_has_a_row_in_every_table() -> None:
    rows = {
        "backends/interpreter/ops.py": set(interpreter_ops.OPS),
        "backends/torch/ops.py": set(libtorch_ops.ROWS),
    }
    missing = [
        f"{name} in {table}" for table, names in rows.items() for name in OPS if name not in names
    ]
    missing += [
        f"{name} in ad/rules.py"
        for name, info in OPS.items()
        if info.differentiable and name not in rules.OP_RULES
    ]
    unknown = [
        f"{name} in {table}" for table, names in rows.items() for name in names if name not in OPS
    ]
    unknown += [f"{name} in ad/rules.py" for name in rules.OP_RULES if name not in OPS]
    assert not missing, f"missing rows: {missing}"
    assert not unknown, f"rows of no operator: {unknown}"


def test_every_operator_is_tested_here() -> None:
    tested = {op for case in CASES for op in (case.name, *case.ops)} | {*test_builtin_values.NAMES}
    assert [name for name in OPS if name not in tested] == []


# ------------------------------------------------------------------------- values and derivatives


@pytest.mark.parametrize("name", BY_NAME)
def test_operator(program: Program, name: str) -> None:
    case = BY_NAME[name]
    check(program, f"op_{name}", case.arguments(), case.reference, smooth=case.smooth)


@pytest.mark.parametrize("name", one_in(40, BY_NAME))
def test_operator_in_float32(program: Program, name: str) -> None:
    case = BY_NAME[name]
    args = case.arguments()
    expected = as_tuple(case.reference(*args))
    single = [a.float() if a.is_floating_point() else a for a in args]
    values = as_tuple(program.compiled(f"op_{name}")(*single))
    for value, right in zip(values, expected, strict=True):
        assert value.dtype == (torch.float32 if right.is_floating_point() else torch.int64)
        close(value.double(), right.double(), 1e-5)


@pytest.mark.parametrize("name", BY_NAME)
def test_operator_on_strided_tensors(program: Program, name: str) -> None:
    case = BY_NAME[name]
    strided = [_strided(a) for a in case.arguments()]
    values = as_tuple(program.compiled(f"op_{name}")(*strided))
    for value, right in zip(values, as_tuple(case.reference(*case.arguments())), strict=True):
        close(value, right)
        assert value.is_contiguous()


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """Equal elements at every second place of a larger tensor."""
    if not tensor.dim():
        return tensor
    wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


# --------------------------------------------------------------------------------- special points

NAN, INF = math.nan, math.inf
# expression over x : Tensor[N] (and y where it occurs), the point, the derivative with weights 1
SPECIAL: list[tuple[str, str, list[float], list[float], list[float]]] = [
    ("relu_at_0", "relu(x)", [-1.0, 0.0, 2.0], [], [0.0, 0.0, 1.0]),
    ("abs_at_0", "abs(x)", [-1.0, 0.0, 2.0], [], [-1.0, 0.0, 1.0]),
    ("sqrt_at_0", "sqrt(x)", [0.0, 4.0], [], [0.0, 0.25]),
    ("sqrt_of_square_at_0", "sqrt(x * x)", [0.0, 3.0], [], [0.0, 1.0]),
    ("norm_at_0", "sqrt(sum(x * x, [0], keepdim=True))", [0.0, 0.0], [], [0.0, 0.0]),
    ("quotient_of_norm_at_0", "x * sqrt(sum(x * x, [0], keepdim=True)) / "
     "(1.0 + sum(x * x, [0], keepdim=True))", [0.0, 0.0], [], [0.0, 0.0]),
    ("amax_tie", "amax(x, [0], keepdim=True)", [1.0, 3.0, 3.0, 2.0], [], [0.0, 1.0, 0.0, 0.0]),
    ("where_passes_no_nan", "where(x > 0.0, log(x), 0.0)", [0.0, 2.0], [], [0.0, 0.5]),
    ("where_passes_no_inf", "where(x > 0.0, 1.0 / x, x)", [0.0, 2.0], [], [1.0, -0.25]),
    ("where_passes_no_root", "where(x > 0.0, sqrt(x), 0.0)", [-1.0, 0.0, 4.0], [],
     [0.0, 0.0, 0.25]),
    ("mul_no_nan_at_0", "mul_no_nan(x, y)", [INF, 2.0], [0.0, 3.0], [0.0, 3.0]),
    ("sigmoid_far_out", "sigmoid(x)", [-800.0, 0.0, 800.0], [], [0.0, 0.25, 0.0]),
    ("softmax_far_out", "slice(softmax(x, 0), 0, 0, 1)", [1000.0, -1000.0], [], [0.0, 0.0]),
    ("log_softmax_far_out", "slice(log_softmax(x, 0), 0, 1, 2)", [1000.0, -1000.0], [],
     [-1.0, 1.0]),
    ("sign_at_0", "sign(x)", [-2.0, 0.0, 3.0], [], [0.0, 0.0, 0.0]),
]  # fmt: skip


TWICE = ("relu_at_0", "abs_at_0", "sqrt_at_0", "sqrt_of_square_at_0", "norm_at_0",
         "where_passes_no_nan")  # fmt: skip


@pytest.fixture(scope="module")
def special() -> Program:
    header = "def {}(x : In[Tensor[N]], y : In[Tensor[N]]) -> Tensor:\n    return {}\n"
    texts = [header.format(name, body) for name, body, *_ in SPECIAL]
    pool = "def pool_tie(x : In[Tensor[1, 1, H, W]]) -> Tensor:\n    return max_pool2d(x, [2, 2])\n"
    return Program([*texts, pool], TWICE, first=())


@pytest.mark.parametrize("row", SPECIAL, ids=[row[0] for row in SPECIAL])
def test_special_point(special: Program, row: Any) -> None:
    name, _, point, other, slope = row
    x = torch.tensor(point, dtype=torch.float64)
    y = torch.tensor(other or [1.0] * len(point), dtype=torch.float64)
    (value,) = special.value(name, [x, y])
    weight = torch.ones(value.shape, dtype=torch.float64)
    found, _ = special.adjoint(name, [x, y], [weight])
    close(found, torch.tensor(slope), 1e-12, "interpreter")
    x.requires_grad_()
    function = special.compiled(name)
    result = function(x, y)
    close(result, torch.from_numpy(value), 1e-12, "libtorch, value")
    (gradient,) = torch.autograd.grad(result.sum(), x, allow_unused=True)
    found = torch.zeros_like(x) if gradient is None else gradient
    close(found, torch.tensor(slope), 1e-12, "libtorch")


@pytest.mark.parametrize("name", one_in(3, TWICE, 1))
def test_second_derivatives_at_special_points_are_finite(special: Program, name: str) -> None:
    point = next(row[2] for row in SPECIAL if row[0] == name)
    x = torch.tensor(point, dtype=torch.float64)
    (value,) = special.value(name, [x, x])
    weight = torch.ones(value.shape, dtype=torch.float64)
    both = [
        special.second_adjoint(name, [x, x], [weight], [torch.ones_like(x)] * 2, compiled)
        for compiled in (False, True)
    ]
    assert torch.isfinite(torch.from_numpy(both[0][0])).all()
    close(both[1][0], torch.from_numpy(both[0][0]), 1e-9)


def test_max_pool_passes_the_adjoint_to_the_first_of_equals(special: Program) -> None:
    x = torch.tensor([[1.0, 5.0, 2.0, 2.0], [5.0, 5.0, 2.0, 2.0]], dtype=torch.float64)
    x = x.reshape(1, 1, 2, 4)
    expected = torch.tensor([[0.0, 3.0, 4.0, 0.0], [0.0, 0.0, 0.0, 0.0]]).reshape(1, 1, 2, 4)
    weight = torch.tensor([3.0, 4.0], dtype=torch.float64).reshape(1, 1, 1, 2)
    (found,) = special.adjoint("pool_tie", [x], [weight])
    close(found, expected)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(special.compiled("pool_tie")(x), x, weight)
    close(gradient, expected)


# ------------------------------------------------------------------------------ sizes that are off


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("slice", {0: (3, 3)}),
        ("reshape_unknown", {0: (3, 4, 4)}),
        ("expand_like", {1: (3, 5)}),
    ],
)
def test_sizes_that_only_a_call_can_check(
    program: Program, name: str, change: dict[int, tuple[int, ...]]
) -> None:
    args = BY_NAME[name].arguments()
    for position, shape in change.items():
        args[position] = torch.ones(shape, dtype=torch.float64)
    wanted = IndexError if name == "slice" else ValueError
    with pytest.raises(wanted, match=f"op_{name}"):
        program.value(f"op_{name}", args)
    with pytest.raises((wanted, RuntimeError)):
        program.compiled(f"op_{name}")(*args)


def test_positions_out_of_range(program: Program) -> None:
    for name, args in {
        "one_hot": [torch.tensor([[0, 5]]), torch.ones(5, dtype=torch.float64)],
        "gather": [torch.ones(1, 2, dtype=torch.float64), torch.tensor([[-1]])],
    }.items():
        with pytest.raises(ValueError, match=f"op_{name}"):
            program.value(f"op_{name}", args)
        with pytest.raises((ValueError, RuntimeError)):
            program.compiled(f"op_{name}")(*args)


@pytest.mark.full
def test_autograd_check_agrees(program: Program) -> None:
    """torch's own gradcheck and gradgradcheck on a few compiled operators."""
    for name in ("mul", "softmax", "conv2d_all", "max_pool2d", "gather"):
        case: Case = BY_NAME[name]
        args = case.arguments()
        for k in differentiable(args):
            args[k].requires_grad_()
        function = program.compiled(f"op_{name}")
        assert torch.autograd.gradcheck(function, args, atol=1e-6)
        if name == "softmax":
            assert torch.autograd.gradgradcheck(function, args, atol=1e-6)
