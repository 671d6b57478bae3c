"""``@derivative(f)``: derivatives that the program gives itself. Those here are wrong by a factor,
so that it shows who uses them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from oracle import close, plain

import loma
from loma import errors, pipeline
from loma.ad import differentiate
from loma.backends.interpreter import Interpreter
from loma.core.ir import Module
from loma.core.printer import print_function, print_module
from loma.core.verify import verify
from loma.frontend import parse
from loma.passes.canonical import inline

TENSORS = """
def soft(x : In[Tensor[N]], k : In[int], a : In[float]) -> tuple[Tensor[N], IntTensor[N]]:
    n : IntTensor[N]
    n[i] = i
    return log(1.0 + exp(x * a)) * k, n

@derivative(soft)
def soft_back(x : In[Tensor[N]], dx : Out[Tensor[N]], k : In[int], dk : Out[int],
              a : In[float], da : Out[float], g : In[Tensor[N]], gn : In[IntTensor[N]]):
    dx[i] += g[i] * k * a / (1.0 + exp(-x[i] * a))
    da += sum(3.0 * g[i] * k * x[i] / (1.0 + exp(-x[i] * a)) for i in N)

def middle(x : In[Tensor[N]], a : In[float]) -> Tensor[N]:
    y, n = soft(x * 2.0, 2, a)
    return y

def layer(x : In[Tensor[N]], a : In[float]) -> float:
    y = middle(x, a)
    s : float
    n : IntTensor[N]
    for t in range(3):
        y, n = soft(y, 1, a)
        s += sum(y)
    return s
"""
SCALARS = """
def cube(x : In[float], y : In[float]) -> float:
    return x * x * x * y

@derivative(cube)
def cube_back(x : In[float], dx : Out[float], y : In[float], dy : Out[float], g : In[float]):
    dx += 30.0 * x * x * y * g
    dy += 10.0 * x * x * x * g

def both(x : In[float]) -> float:
    return cube(x, 2.0) + cube(3.0, x)

def points(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = cube(x[i], 2.0) if x[i] > 0.0 else 0.0
    return y
"""
REQUESTS = """
d_soft = rev_diff(soft)
d_layer = rev_diff(layer)
dd_layer = rev_diff(d_layer)
d_cube = rev_diff(cube)
d_both = rev_diff(both)
dd_both = rev_diff(d_both)
d_points = rev_diff(points)
dd_points = rev_diff(d_points)
t_soft_back = fwd_diff(soft_back)
d_soft_back = rev_diff(soft_back)
t_cube_back = fwd_diff(cube_back)
d_cube_back = rev_diff(cube_back)
"""


class Soft(torch.autograd.Function):
    """The same in torch."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: int, a: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, a)
        ctx.k = k
        return torch.log(1.0 + torch.exp(x * a)) * k

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, a = ctx.saved_tensors
        slope = torch.sigmoid(x * a) * g * ctx.k
        return slope * a, None, (3.0 * slope * x).sum()


def layer(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    soft: Callable[..., torch.Tensor] = Soft.apply
    y, s = soft(x * 2.0, 2, a), torch.zeros((), dtype=x.dtype)
    for _ in range(3):
        y = soft(y, 1, a)
        s = s + y.sum()
    return s


def module_of(text: str) -> Module:
    module = differentiate(parse(text))
    verify(module)
    return module


@functools.cache
def interpreter() -> Interpreter:
    return Interpreter(module_of(TENSORS + SCALARS + REQUESTS))


def _point() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    x, v = torch.randn((2, 5), generator=generator, dtype=torch.float64)
    return x, torch.tensor(0.7, dtype=torch.float64), v


def _derivatives(function: Any) -> list[torch.Tensor]:
    """Gradients of a layer, and those of their product with a direction."""
    x, a, v = _point()
    leaves = [x.requires_grad_(), a.requires_grad_()]
    first = torch.autograd.grad(function(*leaves), leaves, create_graph=True)
    second = torch.autograd.grad((first[0] * v).sum() + 2.0 * first[1], leaves)
    return [t.detach() for t in (*first, *second)]


# ---------------------------------------------------------------------------------- where it serves


def test_rev_diff_is_the_given_one() -> None:
    x = np.array([1.0, -2.0])
    found = interpreter().call("d_soft", x, 0 * x, 2, 0, 0.5, 0.0, x + 3, np.zeros(2, int))
    own = interpreter().call("soft_back", x, 0 * x, 2, 0, 0.5, 0.0, x + 3, np.zeros(2, int))
    for left, right in zip(found, own, strict=True):
        close(left, right)
    assert interpreter().call("d_cube", 2.0, 0.0, 3.0, 0.0, 1.0) == (360.0, 80.0)


def test_derivatives_of_functions_that_call() -> None:
    x, a, v = (plain(t) for t in _point())
    first_x, first_a, second_x, second_a = _derivatives(layer)
    found = interpreter().call("d_layer", x, 0 * x, a, 0.0, 1.0)
    close(found[0], first_x)
    close(found[1], first_a)
    twice = interpreter().call("dd_layer", x, 0 * x, v, a, 0.0, 2.0, 1.0, 0.0)
    close(twice[0], second_x)
    close(twice[1], second_a)


def test_scalar_callers_to_second_order() -> None:
    assert interpreter().call("d_both", 2.0, 0.0, 1.0) == (30 * 4 * 2 + 10 * 27,)
    assert interpreter().call("dd_both", 2.0, 0.0, 1.0, 1.0, 0.0)[0] == 60 * 2 * 2


def test_index_statements_to_second_order() -> None:
    x, g = np.array([2.0, -1.0, 3.0]), np.array([1.0, 1.0, 2.0])
    (found,) = interpreter().call("d_points", x, 0 * x, g)
    assert found.tolist() == [240.0, 0.0, 1080.0]
    twice = interpreter().call("dd_points", x, 0 * x, np.ones(3), g, 0 * g)
    assert [t.tolist() for t in twice] == [[240.0, 0.0, 720.0], [240.0, 0.0, 540.0]]


@functools.cache
def compiled() -> Any:
    return oracle.compiled(TENSORS + SCALARS + "d_both = rev_diff(both)\n")


def test_compiled() -> None:
    module, (x, a, _) = compiled(), _point()
    first = torch.autograd.grad(module.layer(x.requires_grad_(), a.requires_grad_()), (x, a))
    for found, right in zip(first, _derivatives(layer), strict=False):
        close(found, right)
    x = torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(module.points(x).sum(), x)
    assert found.tolist() == [240.0, 0.0]
    assert module.d_both(2.0, 1.0) == (510.0,)
    report = loma.check_gradients(module.layer, (_point()[0], 0.7), raise_on_error=False)
    assert [argument.ok for argument in report.arguments] == [True, False]


@pytest.mark.full
def test_second_derivatives_under_autograd() -> None:
    """Those of the given one."""
    for found, right in zip(_derivatives(compiled().layer), _derivatives(layer), strict=True):
        close(found, right)


def test_calls_are_not_inlined_before_the_derivative_is_taken() -> None:
    text = """
def f(x : In[Tensor[N]]) -> Tensor[N]:
    return x * x

@derivative(f)
def own(x : In[Tensor[N]], dx : Out[Tensor[N]], g : In[Tensor[N]]):
    dx += 5.0 * x * g

def middle(x : In[Tensor[N]]) -> Tensor[N]:
    y = f(x)
    return y

def h(x : In[Tensor[N]]) -> Tensor[N]:
    return middle(x)
"""
    caller = print_function(inline(parse(text)).function("h"))
    assert " f(" in caller
    assert "middle(" not in caller
    backward = pipeline.program(text).module.function("h__backward")
    assert "5.0 * x[_i0] * _d_result[_i0]" in print_function(backward)
    derived = pipeline.derived(pipeline.program(TENSORS), "layer__backward")
    assert "soft_back" in {function.name for function in derived.module.functions}


def test_it_is_printed_and_read_again() -> None:
    for module in (parse(TENSORS + SCALARS), module_of(TENSORS + SCALARS + REQUESTS)):
        assert "@derivative(soft)\ndef soft_back(" in print_module(module)
        assert print_module(module).count("@derivative") == 2
        again = parse(print_module(module))
        if "_tape" not in print_module(module):
            assert again == module


def test_tensors_of_unknown_rank() -> None:
    text = """
def f(x : In[Tensor]) -> Tensor:
    return x * x

@derivative(f)
def own(x : In[Tensor], dx : Out[Tensor], g : In[Tensor]):
    dx += 5.0 * x * g

def h(x : In[Tensor[N]]) -> float:
    return sum(f(x))

d_h = rev_diff(h)
"""
    x = np.array([1.0, 2.0])
    (found,) = Interpreter(module_of(text)).call("d_h", x, 0 * x, 1.0)
    assert found.tolist() == [5.0, 10.0]


def test_simd_and_out_arguments_of_scalar_functions() -> None:
    """The given one is what rev_diff gives; inside other derivatives it says too little."""
    text = """
@simd
def f(x : In[Array[float]], y : Out[Array[float]]):
    y[thread_id()] = x[thread_id()]

@simd
@derivative(f)
def own(x : In[Array[float]], dx : Out[Array[float]], dy : In[Array[float]]):
    dx[thread_id()] += 7.0 * dy[thread_id()]

def square(x : In[float], y : Out[float]):
    y = x * x

@derivative(square)
def square_back(x : In[float], dx : Out[float], dy : In[float]):
    dx += 7.0 * dy

d_f = rev_diff(f)
d_square = rev_diff(square)
"""
    made = Interpreter(module_of(text))
    assert made.call("d_square", 3.0, 0.0, 2.0) == (14.0,)
    assert "7.0" in print_function(made.module.function("d_f"))


WRITES = """
def soft(x : In[Tensor[N]], k : In[float], y : Out[Tensor[N]], total : Out[float]):
    y = log(1.0 + exp(x * k))
    total = sum(y)

@derivative(soft)
def soft_back(x : In[Tensor[N]], dx : Out[Tensor[N]], k : In[float], dk : Out[float],
              dy : In[Tensor[N]], dt : In[float]):
    dx[i] += (dy[i] + dt) * sigmoid(x[i] * k) * k
    dk += sum((dy[i] + dt) * sigmoid(x[i] * k) * x[i] for i in N)

def loss(x : In[Tensor[N]], k : In[float]) -> float:
    y : Tensor[N]
    t : float
    soft(x, k, y, t)
    return sum(y * y) + t * mean(y)

d_loss = rev_diff(loss)
d_soft = rev_diff(soft)
"""


def _soft(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.log(1.0 + torch.exp(x * k))
    return y, y.sum()


def test_out_arguments_of_tensor_functions() -> None:
    """What is given for a function that sets all of them serves callers, too."""
    made = Interpreter(module_of(WRITES))
    x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    k = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    y, total = _soft(x, k)
    loss = (y * y).sum() + total * y.mean()
    at = x.detach().numpy()
    found = made.call("d_loss", at, 0 * at, 1.3, 0.0, 1.0)
    for one, right in zip(found, torch.autograd.grad(loss, (x, k), retain_graph=True), strict=True):
        close(one, right)
    seeds = np.array([1.0, -2.0, 0.5])
    found = made.call("d_soft", at, 0 * at, 1.3, 0.0, seeds, 0.25)
    given = (torch.from_numpy(seeds), torch.tensor(0.25, dtype=torch.float64))
    for one, right in zip(found, torch.autograd.grad((y, total), (x, k), given), strict=True):
        close(one, right)
    assert "sigmoid" in print_function(made.module.function("soft__backward"))


@pytest.mark.full
def test_out_arguments_under_autograd() -> None:
    """To second order; what an argument held before moves nothing."""
    module = oracle.compiled(WRITES)

    def run(x: torch.Tensor, k: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, total = z * 1.0, torch.zeros((), dtype=torch.float64)
        module.soft(x, k, y, total)
        return y, total, module.loss(x, k)

    x, z = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    k = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (x, k, z))
    assert torch.autograd.gradgradcheck(run, (x, k, z))


@pytest.mark.parametrize(
    ("body", "what"),
    [("y[i] = y[i] * x[i]", "reads"), ("if x[0] > 0.0:\n        y = x * x", "keeps")],
)
def test_out_arguments_whose_values_on_entry_count(body: str, what: str) -> None:
    text = (
        f"def f(x : In[Tensor[N]], y : Out[Tensor[N]]):\n    {body}\n\n@derivative(f)\n"
        "def own(x : In[Tensor[N]], dx : Out[Tensor[N]], g : In[Tensor[N]]):\n    dx += g\n"
    )
    with pytest.raises(errors.NotDifferentiable) as caught:
        pipeline.program(text)
    assert f"'f' {what} values that this Out argument had" in caught.value.message


# --------------------------------------------------------------------------------- what is refused

HEAD = "def f(x : In[Tensor[N]], a : In[float]) -> Tensor[N]:\n    return x * a\n"
OWN = "x : In[Tensor[N]], dx : Out[Tensor[N]], a : In[float], da : Out[float], g : In[Tensor[N]]"
BODY = "    dx += g * a\n"


def _refused(text: str) -> errors.UserError:
    with pytest.raises(errors.UserError) as caught:
        module_of(text)
    return caught.value


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (OWN.replace("dx : Out", "dx : In"),
         "argument 2 is dx : Out[Tensor[N]], found dx : In[Tensor[N]]"),
        (OWN.replace("a : In[float]", "a : In[int]"),
         "argument 3 is a : In[float], found a : In[int]"),
        (OWN.replace("g : In[Tensor[N]]", "g : In[Tensor[N, M]]"),
         "argument 5 is g : In[Tensor[N]]"),
        (OWN.rpartition(",")[0], "5 arguments, found 4"),
        (OWN + ", more : In[int]", "5 arguments, found 6"),
    ],
)  # fmt: skip
def test_a_wrong_signature_shows_the_expected_one(params: str, message: str) -> None:
    error = _refused(f"{HEAD}@derivative(f)\ndef own({params}):\n    pass\n")
    assert isinstance(error, errors.TypeMismatch)
    assert error.message.startswith("'own' must take what rev_diff(f) takes: ")
    assert message in error.message
    assert error.hint == (
        "def own(x : In[Tensor[N]], _d_x : Out[Tensor[N]], a : In[float], "
        "_d_a : Out[float], _d_result : In[Tensor[N]]):"
    )


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (f"@derivative(g)\ndef own({OWN}):\n{BODY}", errors.CallIDNotFound,
         "there is no function 'g'"),
        (f"@derivative(own)\ndef own({OWN}):\n{BODY}", errors.NotDifferentiable,
         "'own' is given as its own derivative"),
        (f"@derivative(f)\ndef own({OWN}):\n{BODY}@derivative(f)\ndef two({OWN}):\n{BODY}",
         errors.DuplicateFunction, "'f' has a derivative of its own already, 'own'"),
        (f"@derivative(f)\ndef own({OWN}):\n{BODY}@derivative(own)\ndef two({OWN}):\n{BODY}",
         errors.NotDifferentiable, "'own' is itself the derivative of 'f'"),
        (f"d_f = rev_diff(f)\n@derivative(d_f)\ndef own({OWN}):\n{BODY}", errors.NotDifferentiable,
         "'d_f' is made by rev_diff(f), and so is its derivative"),
        (f"@derivative\ndef own({OWN}):\n{BODY}", errors.SyntaxNotSupported,
         "'@derivative' takes the name of one function"),
        (f"@derivative(f, 2)\ndef own({OWN}):\n{BODY}", errors.SyntaxNotSupported,
         "'@derivative' takes the name of one function"),
        (f"@derivative(f)\n@derivative(f)\ndef own({OWN}):\n{BODY}", errors.SyntaxNotSupported,
         "the only decorators of a function are '@simd' and '@derivative(f)', each once"),
        (f"@derivative(f)\ndef own({OWN}) -> float:\n    return a\n", errors.TypeMismatch,
         "and returns nothing: it adds to its Out arguments"),
        ("def h(x : In[Tensor[N]], y : Out[Tensor[N]]) -> float:\n    y[i] = x[i]\n"
         "    return 1.0\n@derivative(h)\ndef own(x : In[Tensor[N]], dx : Out[Tensor[N]], "
         "g : In[Tensor[N]], s : In[float]):\n    dx += g\n",
         errors.NotDifferentiable, "'h' returns something and writes to an Out argument"),
        (f"@derivative(f)\ndef own({OWN}):\n    d_h(x, dx, a, da, g)\n"
         "def h(x : In[Tensor[N]], a : In[float]) -> Tensor[N]:\n    return f(x, a)\n"
         "d_h = rev_diff(h)\n", errors.RecursionNotSupported,
         "functions call each other in a circle: own -> d_h -> own"),
        ("def q(x : In[float], y : Out[float]):\n    y = x * x\n"
         "@derivative(q)\ndef own(x : In[float], dx : Out[float], g : In[float]):\n    dx += g\n"
         "def r(x : In[float]) -> float:\n    y : float\n    q(x, y)\n    return y\n"
         "d_r = rev_diff(r)\n", errors.NotDifferentiable,
         "'own' cannot serve the derivatives of functions that call 'q'"),
        ("def q(x : In[float]) -> float:\n    return x * x\n"
         "@derivative(q)\ndef own(x : In[float], dx : Out[float], g : In[float]):\n    dx += g\n"
         "@simd\ndef r(x : In[Array[float]], y : Out[Array[float]]):\n"
         "    y[thread_id()] = q(x[0])\n"
         "d_r = rev_diff(r)\n", errors.NotDifferentiable,
         "'own' cannot serve the derivative of a @simd function"),
        ("@simd\ndef q(x : In[Array[float]], y : Out[Array[float]]):\n    y[0] = x[0]\n"
         "@derivative(q)\ndef own(x : In[Array[float]], dx : Out[Array[float]], "
         "dy : In[Array[float]]):\n    pass\n", errors.TypeMismatch,
         "'q' is @simd, and 'own' is not"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, kind: type[errors.UserError], message: str) -> None:
    error = _refused(HEAD + text)
    assert message in error.message
    assert isinstance(error, kind)
    assert error.span.line


def test_forward_mode_warns() -> None:
    text = f"{HEAD}@derivative(f)\ndef own({OWN}):\n{BODY}"
    text += "def h(x : In[Tensor[N]]) -> Tensor[N]:\n    return f(x, 2.0)\n"
    for request, count in (("t = fwd_diff(f)", 1), ("t = fwd_diff(h)", 1), ("d = rev_diff(h)", 0),
                           ("d = rev_diff(h)\nt = fwd_diff(d)", 0)):  # fmt: skip
        module = differentiate(parse(f"{text}{request}\n"))
        verify(module)
        messages = [warning.message for warning in module.warnings]
        assert len(messages) == count
        assert all("differentiates 'f' itself: 'own'" in message for message in messages)
