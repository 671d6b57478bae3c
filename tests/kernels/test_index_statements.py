"""Index statements and loops against hand-written PyTorch, values and derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from index_cases import CASES as INDEX_CASES
from oracle import (
    Program,
    as_tuple,
    check,
    check_case,
    close,
    derivatives,
    differentiable,
    entry,
    gradients,
    random_weights,
)
from sampled import one_in
from trap_cases import TRAPS

CASES = [*INDEX_CASES, *TRAPS]
BY_NAME = {case.name: case for case in CASES}
# The interpreter runs the explicit first and second derivative of every case. Libtorch, on which
# autograd runs the same sweeps as functions of their own, runs those of these, and the first ones
# of some more; with --full, of more than that.
COMPILED_TWICE = ("in_place", "tensor_calls")
COMPILED_ONCE = ("softmax", "recurrence")
FULL_TWICE = (*COMPILED_TWICE, "reductions", "triangle", "matmul", "strided_convolution",
              "per_pixel_convolution", "embedding", "scalar_calls")  # fmt: skip
TRAP_NAMES = [case.name for case in TRAPS]  # compiled with --full only
LATER = [pytest.param(name, marks=pytest.mark.full) for name in TRAP_NAMES]
INDEX_NAMES = [case.name for case in INDEX_CASES]
# Every second statement is compiled, and what the tests below call; with --full, all are.
COMPILED = [
    name
    for k, name in enumerate(INDEX_NAMES)
    if k % 2 == 0 or name in ("matmul", "products_of_parts", *COMPILED_TWICE, *COMPILED_ONCE)
]
OTHERS = [name for name in INDEX_NAMES if name not in COMPILED]
LATER += [pytest.param(name, marks=pytest.mark.full) for name in OTHERS]


@pytest.fixture(scope="module")
def program(pytestconfig: pytest.Config) -> Program:
    full = pytestconfig.getoption("--full")
    chosen = (COMPILED_ONCE, FULL_TWICE if full else COMPILED_TWICE)
    first, second = ([entry(BY_NAME[name].text) for name in names] for names in chosen)
    compiles = [entry(BY_NAME[name].text) for name in (INDEX_NAMES if full else COMPILED)]
    return Program([case.text for case in INDEX_CASES], second, first=first, compiles=compiles)


@pytest.fixture(scope="module")
def traps() -> Program:
    return Program([case.text for case in TRAPS])


@pytest.mark.parametrize("name", BY_NAME)
def test_index_statement(
    program: Program, traps: Program, name: str, pytestconfig: pytest.Config
) -> None:
    is_trap = name in TRAP_NAMES
    libtorch = not is_trap or pytestconfig.getoption("--full")
    check_case(traps if is_trap else program, BY_NAME[name], libtorch=libtorch)


@pytest.mark.parametrize("name", [*one_in(6, COMPILED), *LATER])
def test_in_float32(program: Program, traps: Program, name: str) -> None:
    case = BY_NAME[name]
    args = case.arguments()
    single = [a.float() if k in differentiable(args) else a for k, a in enumerate(args)]
    function = (traps if name in TRAP_NAMES else program).compiled(entry(case.text))
    for value, right in zip(
        as_tuple(function(*single)), as_tuple(case.reference(*args)), strict=True
    ):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert value.dtype == torch.float32
            value = value.double()
        close(value, right, 2e-5)


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    """Equal elements, the strides in reversed order."""
    order = list(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def _spread(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros((*tensor.shape, 3), dtype=tensor.dtype)
    wide[..., 1] = tensor
    return wide[..., 1]


@pytest.mark.parametrize("name", [*COMPILED, *LATER])
def test_any_strides(program: Program, traps: Program, name: str) -> None:
    case = BY_NAME[name]
    args = case.arguments()
    function = (traps if name in TRAP_NAMES else program).compiled(entry(case.text))
    values = as_tuple(function(*args))
    weights = random_weights(values, torch.Generator().manual_seed(1))
    _, dense = gradients(function, args, weights)
    for change in (_transposed, _spread):
        strided = [change(a) if isinstance(a, torch.Tensor) else a for a in args]
        kept = [a.clone() if isinstance(a, torch.Tensor) else a for a in strided]
        for value, right in zip(as_tuple(function(*strided)), values, strict=True):
            close(value, right)
            assert not isinstance(value, torch.Tensor) or value.is_contiguous()
        _, again = gradients(function, strided, weights)
        for found, right in zip(again, dense, strict=True):
            close(found, right)
        for now, before in zip(strided, kept, strict=True):
            assert not isinstance(now, torch.Tensor) or torch.equal(now, before)


def test_expanded_arguments_and_adjoints(program: Program) -> None:
    x = torch.randn(1, 5, dtype=torch.float64).expand(3, 5)
    w = torch.randn(5, 1, dtype=torch.float64).expand(5, 4)
    weight = torch.randn(1, dtype=torch.float64).expand(3, 4)
    expected, first, _ = derivatives(
        torch.matmul, [x, w], [weight], [torch.zeros_like(x), torch.zeros_like(w)]
    )
    leaves = [x.detach().requires_grad_(), w.detach().requires_grad_()]
    y = program.compiled("matmul_")(*leaves)
    close(y, expected[0])
    for found, right in zip(torch.autograd.grad(y, leaves, weight), first, strict=True):
        close(found, right)


@pytest.mark.full
@pytest.mark.parametrize("name", ["softmax", "recurrence"])
def test_double_backward(program: Program, name: str) -> None:
    """Autograd differentiates the generated gradient, as test_capsnet_compare.py has it do with a
    routing's."""
    case = BY_NAME[name]
    args = case.arguments()
    function = program.compiled(entry(case.text))
    generator = torch.Generator().manual_seed(2)
    weights = random_weights(as_tuple(function(*args)), generator)
    along = random_weights([args[k] for k in differentiable(args)], generator)
    _, _, found = derivatives(function, args, weights, along)
    _, _, expected = derivatives(case.reference, args, weights, along)
    for value, right in zip(found, expected, strict=True):
        close(value, right)


def test_only_some_arguments_require_grad(program: Program) -> None:
    x = torch.randn(3, 5, dtype=torch.float64)
    w = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    program.compiled("matmul_")(x, w).sum().backward()
    assert x.grad is None
    close(w.grad, x.sum(0)[:, None].expand(5, 4))


# -------------------------------------------------------------------------------- sizes 1 and 0

SMALL = {
    "matmul": ((1, 1), (1, 1)),
    "batched_einsum": ((1, 1, 1, 1), (1, 1, 1)),
    "softmax": ((1, 1),),
    "attention": ((1, 1, 1), (1, 1, 1), (1, 1, 1)),
    "kronecker": ((1, 1), (1, 1)),
    "strided_convolution": ((1, 1, 1, 1), (1, 1, 1, 1)),
    "per_pixel_convolution": ((1, 1, 1, 1), (3, 3, 1, 1, 1)),
    "products_of_parts": ((1, 1, 1), (2, 1, 2), (1, 3), 0),
    "routing": ((1, 1, 1, 1), 1),
    "reversed_and_shifted": ((1,),),
    "running_sums": ((1, 1),),
    "reductions": ((1, 1),),
}
EMPTY = {
    "matmul": ((0, 5), (5, 4)),
    "matmul_sum": ((3, 0), (4, 0)),
    "batched_einsum": ((2, 3, 4, 5), (0, 3, 5)),
    "softmax": ((0, 3),),
    "attention": ((0, 3, 4), (0, 5, 4), (0, 5, 2)),
    "kronecker": ((2, 0), (3, 2)),
    "per_pixel_convolution": ((2, 0, 4, 5), (3, 3, 2, 4, 5)),
    "embedding": ((4, 3), None),
    "in_place": ((0,), ()),
    "running_sums": ((0, 3),),
    "recurrence": ((0, 3), ()),
    "prod_with_zeros": ((0, 3),),
    "products": ((0, 3), 2),
    "products_of_parts": ((4, 0, 5), (2, 6, 6), (6, 8), 3),
    "tensor_calls": ((0, 4), ()),
    "routing": ((0, 3, 2, 4), 2),
}


def _check_shapes(program: Program, name: str, shapes: tuple[Any, ...]) -> None:
    case = BY_NAME[name]
    args: list[Any] = [
        torch.zeros((0,), dtype=torch.int64)
        if shape is None
        else shape if isinstance(shape, int) else torch.randn(shape, dtype=torch.float64)
        for shape in shapes
    ]  # fmt: skip
    check(program, entry(case.text), args, case.reference, smooth=False)


@pytest.mark.parametrize("name", SMALL)
def test_size_one(program: Program, name: str) -> None:
    _check_shapes(program, name, SMALL[name])


@pytest.mark.parametrize("name", EMPTY)
def test_size_zero(program: Program, name: str) -> None:
    _check_shapes(program, name, EMPTY[name])


def test_a_product_of_nothing_may_lie_outside(program: Program) -> None:
    args = [torch.zeros(shape, dtype=D) for shape in ((2, 0, 5), (2, 6, 6), (6, 8))]
    found = program.compiled("products_of_parts")(*args, 7)
    assert [part.shape for part in found] == [(3, 0, 6), (0, 7)]


# --------------------------------------------------------------------------- errors at the call

FAILING = """
def beyond(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i + n]
    return y

def looked_up(w : In[Tensor[V]], t : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = w[t[i]]
    return y

def guarded(w : In[Tensor[V]], t : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = w[t[i]] if t[i] >= 0 else 7.0
    return y

def scattered(x : In[Tensor[N]], t : In[IntTensor[N]]) -> Tensor[3]:
    y : Tensor[3]
    y[t[i]] += x[i]
    return y

def disagreeing(x : In[Tensor[N]], w : In[Tensor[M]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i] * w[i]
    return y

def disagreeing_sum(x : In[Tensor[N, K]], w : In[Tensor[J, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] += x[i, k] * w[k, j]
    return y

def largest(x : In[Tensor[N, M]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = max(x[i, j] for j in M)
    return y

def wrong_result(x : In[Tensor[N]], n : In[int]) -> Tensor[n]:
    y : Tensor[N]
    y[i] = x[i]
    return y

def doubled_result(x : In[Tensor[N]], w : In[Tensor[M]]) -> Tensor[2 * M]:
    y : Tensor[N]
    y[i] = x[i]
    return y

def endless(v : In[float]) -> float:
    r : float = v
    while (r < 100.0, max_iter := 5):
        r = r + 1.0
    return r

def counts_on(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = endless(x[i])
    return y

def summed(x : In[Tensor[N]], y : Out[Tensor[M]], count : In[int]):
    for k in range(count):
        y[k] += x[i]
"""
D = torch.float64
ERRORS: dict[str, tuple[list[Any], type[Exception], str]] = {
    "beyond": ([torch.zeros(3, dtype=D), 1], ValueError, "line 4"),
    "looked_up": ([torch.zeros(3, dtype=D), torch.tensor([0, 3])], ValueError, "line 9"),
    "guarded": ([torch.zeros(3, dtype=D), torch.tensor([-2, 3])], ValueError, "line 14"),
    "scattered": ([torch.zeros(1, dtype=D), torch.tensor([3])], ValueError, "line 19"),
    "disagreeing": ([torch.zeros(3, dtype=D), torch.zeros(4, dtype=D)], ValueError, "'i'"),
    "disagreeing_sum": (
        [torch.zeros(2, 3, dtype=D), torch.zeros(4, 5, dtype=D)],
        ValueError,
        "'k'",
    ),
    "largest": ([torch.zeros(3, 0, dtype=D)], ValueError, "line 34"),
    "wrong_result": (
        [torch.zeros(3, dtype=D), 4],
        ValueError,
        r"wrong_result: line 40: the result must be Tensor\[n\], found Tensor\[N\], which has "
        r"sizes \[3\], expected \[4\]",
    ),
    "doubled_result": (
        [torch.zeros(3, dtype=D), torch.zeros(2, dtype=D)],
        ValueError,
        r"doubled_result: line 45: the result must be Tensor\[2 \* M\], found Tensor\[N\], "
        r"which has sizes \[3\], expected \[4\]",
    ),
    "counts_on": ([torch.zeros(3, dtype=D)], RuntimeError, "line 49"),
}


@pytest.fixture(scope="module")
def failing() -> Program:
    return Program([FAILING], derivatives=False)


@pytest.mark.parametrize("name", ERRORS)
def test_refused_at_the_call(failing: Program, name: str) -> None:
    args, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        failing.value(name, args)
    with pytest.raises(kind, match=message):
        failing.compiled(name)(*args)
    if differentiable(args) and kind is ValueError:
        args[0].requires_grad_()
        with pytest.raises(kind, match=message):
            failing.compiled(name)(*args)
        args[0].requires_grad_(False)


def test_guarded_reads(failing: Program) -> None:
    args = [torch.tensor([1.0, 2.0], dtype=D), torch.tensor([1, -5, 0])]
    expected = torch.tensor([2.0, 7.0, 1.0])
    close(failing.value("guarded", args)[0], expected)
    close(failing.compiled("guarded")(*args), expected)


def test_a_sum_of_no_terms_in_a_loop_touches_no_element(failing: Program) -> None:
    # So far behind the tensor that there is no memory.
    x, y = torch.zeros(0, dtype=D), torch.tensor([1.0, 2.0], dtype=D)
    failing.compiled("summed")(x, y, 50_000_000)
    assert y.tolist() == [1.0, 2.0]
    close(failing.value("summed", [x, y, 4])[0], y)
    with pytest.raises(ValueError, match="subscript 'k' of 'y'"):
        failing.compiled("summed")(torch.ones(3, dtype=D), y, 3)
