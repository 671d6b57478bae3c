"""``fwd_diff`` of tensor functions, against autograd on the same functions in plain PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from control_cases import CONTROL
from guard_cases import CASES as GUARD_CASES
from index_cases import CASES as INDEX_CASES
from index_cases import Case as IndexCase
from operator_cases import CASES as OPERATOR_CASES
from operator_cases import Case as OperatorCase
from oracle import (
    close, derivatives, differentiable, entry, is_float, jvp, plain, random_weights, zero,
)  # fmt: skip
from trap_cases import TRAPS

import loma
from loma.ad import differentiate, rules
from loma.backends.interpreter import Interpreter
from loma.core.builtins import BUILTINS
from loma.core.ir import Function
from loma.core.printer import print_function, print_module
from loma.core.verify import verify
from loma.frontend import parse

CASES: list[IndexCase | OperatorCase] = [
    *OPERATOR_CASES,
    *INDEX_CASES,
    *TRAPS,
    *CONTROL,
    *GUARD_CASES,
]
BY_NAME = {entry(case.text): case for case in CASES}


def interpreter_of(text: str) -> Interpreter:
    module = differentiate(parse(text))
    verify(module)
    return Interpreter(module)


@functools.cache
def everything() -> Interpreter:
    requests = "".join(f"t_{name} = fwd_diff({name})\n" for name in BY_NAME)
    return interpreter_of("\n".join([*(case.text for case in BY_NAME.values()), requests]))


def interleaved(function: Function, args: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Arguments of the forward derivative: each float one followed by its tangent."""
    left = iter(tangents)
    out: list[Any] = []
    for param, arg in zip(function.params, args, strict=True):
        out += [arg, next(left)] if is_float(param.type) else [arg]
    return [plain(value) for value in out]


def parted(function: Function, found: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The values, and the tangents of the float ones, of results and then Out arguments."""
    types = [*function.results, *(p.type for p in function.params if p.mode == "Out")]
    left = iter(found)
    values, tangents = [], []
    for type_ in types:
        values.append(next(left))
        if is_float(type_):
            tangents.append(next(left))
    assert next(left, None) is None
    return values, tangents


@pytest.mark.parametrize("name", BY_NAME)
def test_tangents(name: str) -> None:
    case, interpreter = BY_NAME[name], everything()
    primal = interpreter.module.function(name)
    args = case.arguments()
    generator = torch.Generator().manual_seed(11)
    along = [
        torch.randn(args[k].shape, generator=generator, dtype=torch.float64)
        for k in differentiable(args)
    ]
    values = interpreter.call(name, *map(plain, args))
    weights = random_weights(values, generator)
    _, back, _ = derivatives(case.reference, args, weights, along)
    found = interpreter.call(f"t_{name}", *interleaved(primal, args, along))
    again, tangents = parted(primal, found)
    for value, right in zip(again, values, strict=True):
        close(value, right, 1e-12, "value")
    seeds = [w for w in weights if w.is_floating_point()]
    ahead = sum(float(np.sum(plain(w) * t)) for w, t in zip(seeds, tangents, strict=True))
    expected = sum(float((v * g).sum()) for v, g in zip(along, back, strict=True))
    scale = max(1.0, abs(expected), *(float(g.abs().max()) for g in back if g.numel()))
    assert abs(ahead - expected) <= 1e-9 * scale, f"<w, J v> = {ahead}, <J^T w, v> = {expected}"


def test_every_operator_has_a_tangent() -> None:
    """It follows from the reverse rule, as the cases above show, which reach every operator."""
    missing = [
        name for name in rules.OP_RULES
        if name not in BUILTINS
        and not any(case.name == name or name in case.ops for case in OPERATOR_CASES)
    ]  # fmt: skip
    assert missing == []


SCALAR = [info for info in BUILTINS.values() if not (info.scalar_only or info.ints)]


def test_builtin_functions_on_tensors() -> None:
    """<J v, w> = <v, J^T w>, where the adjoint is checked elsewhere."""
    text = ""
    for info in SCALAR:
        names = "abc"[: info.arity]
        head = ", ".join(
            f"{n} : In[Tensor[{d}]]" for n, d in zip(names, ("N", "M, N", "1"), strict=False)
        )
        result = "Tensor[N]" if info.arity == 1 else "Tensor[M, N]"
        if info.result == "int":
            continue
        text += (
            f"def f_{info.name}({head}) -> {result}:\n    return {info.name}({', '.join(names)})\n"
        )
        text += (
            f"d_{info.name} = rev_diff(f_{info.name})\nt_{info.name} = fwd_diff(f_{info.name})\n"
        )
    interpreter = interpreter_of(text)
    shapes = ((4,), (3, 4), (1,))
    for info in SCALAR:
        if info.result == "int":
            continue
        generator = np.random.default_rng(3)
        args = [generator.uniform(0.2, 0.9, shapes[k]) for k in range(info.arity)]
        along = [generator.standard_normal(a.shape) for a in args]
        pairs = [x for pair in zip(args, along, strict=True) for x in pair]
        _, tangent = interpreter.call(f"t_{info.name}", *pairs)
        w = generator.standard_normal(tangent.shape)
        given = [x for a in args for x in (a, np.zeros_like(a))]
        back = interpreter.call(f"d_{info.name}", *given, w)
        right = sum(float(np.sum(v * g)) for v, g in zip(along, back, strict=True))
        assert abs(float(np.sum(tangent * w)) - right) < 1e-9, info.name


@pytest.mark.full
@pytest.mark.parametrize("name", BY_NAME)
def test_hessian_vector_products(name: str) -> None:
    case = BY_NAME[name]
    interpreter = interpreter_of(
        f"{case.text}d_f = rev_diff({name})\ntd_f = fwd_diff(d_f)\nt_f = fwd_diff({name})\n"
        "dt_f = rev_diff(t_f)\ntt_f = fwd_diff(t_f)\n"
    )
    primal, args = interpreter.module.function(name), case.arguments()
    along = _random(*(tuple(args[k].shape) for k in differentiable(args)))
    weights = random_weights(
        interpreter.call(name, *map(plain, args)), torch.Generator().manual_seed(7)
    )
    _, first, second = derivatives(case.reference, args, weights, along)
    left, given = iter(along), []
    for param, arg in zip(primal.params, args, strict=True):
        own = [arg, next(left)] if is_float(param.type) else [arg]
        given += [*own, *(zero(value) for value in own)]
    for weight in weights:
        given += [weight, zero(weight)] if weight.is_floating_point() else [weight]
    found = iter(interpreter.call("td_f", *map(plain, given)))
    gradients, products = iter(first), iter(second)
    for param, arg in zip(primal.params, args, strict=True):
        close(next(found), next(gradients) if is_float(param.type) else zero(arg))
        if is_float(param.type):
            close(next(found), next(products), 1e-8)


# ---------------------------------------------------------------------------------- both modes

NESTED = """
def cube(x : In[float]) -> float:
    y : float = 1.0
    for i in range(3):
        y = y * x
    return y

def layer(x : In[Tensor[N, M]], w : In[Tensor[M, K]]) -> Tensor[N, K]:
    return tanh(matmul(x, w))

def f(x : In[Tensor[N, M]], w : In[Tensor[M, K]], n : In[int], a : In[float]) -> float:
    h = layer(x, w)
    s : float = a
    for t in range(n):
        h = h * h + a
        s += mean(h)
    m : Tensor[N]
    m[i] = max(h[i, k] for k in K)
    y : Tensor[N, K]
    y[i, k] = cube(exp(h[i, k] - m[i])) * prod(h[i, l] for l in K) if i > 0 else 0.0
    return s + sum(y)

df = fwd_diff(f)
d_f = rev_diff(f)
ahead_of_back = fwd_diff(d_f)
back_of_ahead = rev_diff(df)
ahead_twice = fwd_diff(df)

def outs(x : In[Tensor[N]], a : In[float], y : Out[Tensor[N]], z : Out[Tensor[N]]):
    y[i] = y[i] * x[i] + a
    z[i] += y[i] * prod(x[j] for j in N)

def calls(x : In[Tensor[N]], a : In[float]) -> Tensor[N]:
    y = exp(x)
    z : Tensor[N]
    outs(x, a, y, z)
    c : Tensor[N]
    c[i] = 2.0
    b = c * 1.5
    outs(b, 1.0, y, c)
    return z * y + c

t_outs = fwd_diff(outs)
t_calls = fwd_diff(calls)
"""


def _f(x: torch.Tensor, w: torch.Tensor, n: int, a: torch.Tensor) -> torch.Tensor:
    h, s = torch.tanh(x @ w), a
    for _ in range(n):
        h = h * h + a
        s = s + h.mean()
    y = torch.exp(h - h.amax(1, keepdim=True)) ** 3 * h.prod(1, keepdim=True)
    return s + y[1:].sum()


def _outs(x: Any, a: Any, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = y * x + a
    return y, z + y * x.prod()


def _calls(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    y, z = _outs(x, a, torch.exp(x), torch.zeros_like(x))
    y, c = _outs(torch.full_like(x, 3.0), 1.0, y, torch.full_like(x, 2.0))
    return z * y + c


def _random(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


SHAPES = ((3, 4), (4, 5), ())


@functools.cache
def nested() -> Interpreter:
    return interpreter_of(NESTED)


def _hessian(along: Sequence[torch.Tensor], point: Sequence[torch.Tensor]) -> Any:
    """Gradient, and Hessian times a direction, by torch."""

    def gradient(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor) -> Any:
        return torch.func.grad(lambda x, w, a: _f(x, w, 2, a), (0, 1, 2))(x, w, a)

    return jvp(gradient, tuple(point), tuple(along))


def _spread(point: Sequence[Any], along: Sequence[Any]) -> list[Any]:
    """Arguments of ``df``: n, the third of f's, has no tangent."""
    (x, w, a), (v, u, b) = point, along
    return [x, v, w, u, 2, a, b]


def test_forward_of_reverse_is_a_hessian_times_a_vector() -> None:
    point = _random(*SHAPES)
    along = [t.flip(0) if t.dim() else t + 1 for t in point]
    gradient, product = _hessian(along, point)
    (x, w, a), (v, u, b) = point, along
    zeros = [torch.zeros_like(t) for t in (x, x, w, w)]
    args = [x, v, zeros[0], zeros[1], w, u, zeros[2], zeros[3], 2, 0, a, b, 0.0, 0.0, 1.0, 0.0]
    found = nested().call("ahead_of_back", *map(plain, args))
    pairs = [found[0], found[1], found[2], found[3], found[5], found[6]]
    expected = [part for both in zip(gradient, product, strict=True) for part in both]
    for value, right in zip(pairs, expected, strict=True):
        close(value, right, 1e-11)


def test_reverse_of_forward() -> None:
    """The gradient of <g, v> in x is the Hessian times v, and in v it is the gradient."""
    point = _random(*SHAPES)
    along = [t.flip(0) if t.dim() else t + 1 for t in point]
    gradient, product = _hessian(along, point)
    args = []
    for value in _spread(point, along):
        args += [value, torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0]
    found = nested().call("back_of_ahead", *map(plain, [*args, 0.0, 1.0]))
    pairs = [found[0], found[1], found[2], found[3], found[5], found[6]]
    expected = [part for both in zip(product, gradient, strict=True) for part in both]
    for value, right in zip(pairs, expected, strict=True):
        close(value, right, 1e-11)


def test_forward_of_forward() -> None:
    """Both directions the same: the second derivative along it."""
    point = _random(*SHAPES)
    along = [t.flip(0) if t.dim() else t + 1 for t in point]
    gradient, product = _hessian(along, point)
    args: list[Any] = []
    for value, tangent in zip(point, along, strict=True):
        args += [2] if value is point[2] else []
        args += [value, tangent, tangent, torch.zeros_like(tangent)]
    found = nested().call("ahead_twice", *map(plain, args))
    slope = sum(float((g * v).sum()) for g, v in zip(gradient, along, strict=True))
    curve = sum(float((g * v).sum()) for g, v in zip(product, along, strict=True))
    for value, right in zip(found, [float(_f(point[0], point[1], 2, point[2])), slope, slope,
                                    curve], strict=True):  # fmt: skip
        close(value, right, 1e-11)


def test_out_arguments() -> None:
    x, v, y, t_y, z, t_z = _random(*[(4,)] * 6)
    a, b = (torch.tensor(s, dtype=torch.float64) for s in (0.3, 0.7))
    (ys, zs), (t_ys, t_zs) = jvp(_outs, (x, a, y, z), (v, b, t_y, t_z))
    found = nested().call("t_outs", *map(plain, (x, v, a, b, y, t_y, z, t_z)))
    for value, right in zip(found, (ys, t_ys, zs, t_zs), strict=True):
        close(value, right)
    value, tangent = jvp(_calls, (x, a), (v, b))
    for own, right in zip(nested().call("t_calls", *map(plain, (x, v, a, b))), (value, tangent),
                          strict=True):  # fmt: skip
        close(own, right)


COMPILED = """
def f(x : In[Tensor[N]], a : In[float]) -> float:
    y = tanh(x) * x
    m : float = max(x[i] for i in N)
    return sum(y[i] * y[i] * a if x[i] < m else y[i] for i in N)

def outs(x : In[Tensor[N]], n : In[int], y : Out[Tensor[N]]):
    y[i] = y[i] * sin(x[i]) + n

df = fwd_diff(f)
d_f = rev_diff(f)
ahead_of_back = fwd_diff(d_f)
t_outs = fwd_diff(outs)
"""


def _compiled_reference(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x) * x
    return torch.where(x < x.max(), y * y * a, y).sum()


@pytest.mark.full
def test_compiled() -> None:
    """What Python is given: values and tangents; of a reverse derivative's, the adjoints and their
    tangents."""
    module = loma.compile(COMPILED)
    x, v, y, t_y, a, b = _random((4,), (4,), (4,), (4,), (), ())
    value, tangent = jvp(_compiled_reference, (x, a), (v, b))
    gradient, product = jvp(torch.func.grad(_compiled_reference, (0, 1)), (x, a), (v, b))
    one = torch.ones((), dtype=torch.float64)
    found = [*module.df(x, v, a, b), *module.ahead_of_back(x, v, a, b, one, 0.0 * one)]
    expected = [value, tangent, *(p for both in zip(gradient, product, strict=True) for p in both)]
    for own, right in zip(found, expected, strict=True):
        close(own, right)
    by_torch = jvp(lambda x, y: y * torch.sin(x) + 2, (x, y), (v, t_y))
    module.t_outs(x, v, 2, y, t_y)
    close(y, by_torch[0])
    close(t_y, by_torch[1])


@pytest.mark.full
def test_autograd_runs_through_a_forward_derivative() -> None:
    module = loma.compile(COMPILED)
    x, v, a, b = _random((4,), (4,), (), ())
    leaves = [x.clone().requires_grad_(), a.clone().requires_grad_()]
    found = torch.autograd.grad(module.df(leaves[0], v, leaves[1], b)[1], leaves)
    _, product = jvp(torch.func.grad(_compiled_reference, (0, 1)), (x, a), (v, b))
    for own, right in zip(found, product, strict=True):
        close(own, right)


# ------------------------------------------------------------------------------- what is computed


def _text(program: str, name: str = "df") -> str:
    return print_function(differentiate(parse(program)).function(name))


def test_tangents_that_are_always_zero_are_not_computed() -> None:
    text = """
def g(x : In[Tensor[N]], c : In[Tensor[N]]) -> tuple[Tensor[N], Tensor[N]]:
    return x * c, exp(c)

def f(x : In[Tensor[N]], k : In[IntTensor[N]]) -> Tensor[N]:
    c : Tensor[N]
    c[i] = k[i] * 0.5
    y, e = g(x, c)
    w = tanh(e)
    return y * w

df = fwd_diff(f)
"""
    head, _, body = _text(text).partition('"""')
    assert head.count("Tensor") == 5
    assert body == '''Forward derivative of f: a value and its tangent for each float."""
    c : Tensor[N]
    c[i] = k[i] * 0.5
    y, _t_y, e = _d_fwd_g(x, _t_x, c)
    w : Tensor[N] = tanh(e)
    _t : Tensor[N] = y * w
    _t_t : Tensor[N] = _t_y * w
    return _t, _t_t'''  # fmt: skip


def test_results_without_a_tangent_of_their_own_get_zeros() -> None:
    program = interpreter_of("""
def f(x : In[Tensor[N]], n : In[int]) -> tuple[Tensor[N], IntTensor[N], float, Tensor]:
    y : Tensor[N]
    y[i] = n
    k : IntTensor[N]
    k[i] = i
    return y, k, n * 0.5, no_diff(exp(x))
df = fwd_diff(f)
""")
    x = np.array([0.0, 1.0])
    y, t_y, k, s, t_s, e, t_e = program.call("df", x, x, 3)
    assert [t.tolist() for t in (y, t_y, k, t_e)] == [[3, 3], [0, 0], [0, 1], [0, 0]]
    assert (s, t_s, e[0]) == (1.5, 0.0, 1.0)


def test_what_is_not_read_is_not_read_in_the_tangent_either() -> None:
    program = interpreter_of("""
def f(x : In[Tensor[N]], d : In[int]) -> tuple[Tensor[N], Tensor[N], Tensor[N]]:
    y : Tensor[N]
    y[i] = x[i - d] ** 2 if i >= d else 0.0
    z : Tensor[N]
    z[i] = sqrt(x[i]) if x[i] > 0.0 else 0.0
    p : Tensor[N]
    p[i] = zero_pad(x[i + d]) * x[i]
    return y, z, p
df = fwd_diff(f)
""")
    found = program.call("df", np.array([4.0, -1.0, 9.0]), np.array([1.0, np.nan, 2.0]), 1)
    assert [np.nan_to_num(t, nan=77).tolist() for t in found] == [
        [0, 16, 1], [0, 8, 77], [2, 0, 3], [0.25, 0, 1 / 3], [-4, -9, 0], [77, 77, 0]
    ]  # fmt: skip


def test_subgradients_are_those_of_reverse_mode() -> None:
    program = interpreter_of("""
def f(x : In[Tensor[N]], y : In[Tensor[N]]) -> tuple[Tensor[N], Tensor[N], Tensor[N], Tensor[N], Tensor[N], float, float]:
    m : Tensor[N]
    m[i] = max(x[i], y[i])
    q : Tensor[N]
    q[i] = sqrt(x[i]) + abs(x[i])
    s : float = max(x[i] for i in N)
    return relu(x), sqrt(x) + abs(x), where(x > 0.0, log(x), 1.0 / y), m, q, s, amax(x)[()]
df = fwd_diff(f)
""")  # noqa: E501
    x, y = np.array([0.0, 0.0, 0.0]), np.array([0.0, -1.0, 1.0])
    found = program.call("df", x, np.array([3.0, 4.0, 5.0]), y, np.array([0.0, 7.0, 8.0]))
    tangents = [np.asarray(t).tolist() for t in found[1::2]]
    assert tangents == [[0, 0, 0], [0, 0, 0], [0, -7, -8], [3, 4, 8], [0, 0, 0], 3, 3]


def test_an_operator_on_what_it_overwrites() -> None:
    """The value that the tangent needs is not yet, or no longer, in the variable."""
    program = interpreter_of("""
def f(x : In[Tensor[N]], u : In[Tensor]) -> tuple[Tensor[N], Tensor]:
    y = x * 1.0
    v = u * 1.0
    for t in range(2):
        y = exp(y)
        y += tanh(y)
        v = v + u
        v = sigmoid(v) * v
    v = ones([2])
    v = v * u
    return y, v
df = fwd_diff(f)
""")
    x = torch.tensor([0.1, -0.3], dtype=torch.float64)

    def reference(x: torch.Tensor, u: torch.Tensor) -> Any:
        y = x
        for _ in range(2):
            y = torch.exp(y)
            y = y + torch.tanh(y)
        return y, u

    t_x, u, t_u = x + 1, x * 2, x * 3
    values, tangents = jvp(reference, (x, u), (t_x, t_u))
    found = program.call("df", *map(plain, (x, t_x, u, t_u)))
    for own, right in zip(found, [p for both in zip(values, tangents, strict=True) for p in both],
                          strict=True):  # fmt: skip
        close(own, right)


def test_tangents_get_names_of_their_own() -> None:
    text = """
def f(x : In[Tensor[_t_y]], _t_x : In[float], y : Out[Tensor[_t_y]]) -> float:
    _t_s : float = sum(x[i] for i in _t_y)
    s : float = _t_s * _t_x
    y[i] = x[i] * s
    return s
df = fwd_diff(f)
ddf = fwd_diff(df)
"""
    module = differentiate(parse(text))
    verify(module)
    assert parse(print_module(module)) == module
    x, t = np.array([1.0, 2.0]), np.array([0.5, 0.0])
    s, t_s, _, t_y = Interpreter(module).call("df", x, t, 2.0, 1.0, x * 0, x * 0)
    assert (s, t_s) == (6.0, 4.0)
    assert t_y.tolist() == [1 * 4 + 0.5 * 6, 2 * 4]


def test_a_while_loop_has_tangents_beside_its_values() -> None:
    text = """
def f(x : In[Tensor[N]]) -> Tensor[N]:
    y = x * 1.0
    while (y[0] > 1.0, max_iter := 10):
        y = y * x
    return y
df = fwd_diff(f)
"""
    module = differentiate(parse(text))
    assert print_function(module.function("df")).count("while (y[0] > 1.0, max_iter := 10)") == 1
    x, t = np.array([0.5, 3.0]), np.array([2.0, 4.0])
    y, t_y = Interpreter(module).call("df", x, t)
    assert (y.tolist(), t_y.tolist()) == ([0.5, 3.0], [2.0, 4.0])
    x[0] = 1.5
    with pytest.raises(RuntimeError, match="f: line 4: the loop runs more than max_iter = 10"):
        Interpreter(module).call("df", x, t)
