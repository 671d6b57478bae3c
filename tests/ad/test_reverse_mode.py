"""Reverse mode: the text of adjoints, and programs that other compilers get wrong.

Values are checked on the interpreter against autograd and central differences; index statements and
operators have suites of their own, which run on every backend.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import oracle
import pytest
from sampled import one_in
import torch

from loma import errors
from loma.ad import differentiate, split_pairs
from loma.core.printer import print_function, print_module
from loma.core.verify import verify
from loma.frontend import parse
from loma.passes import optimise

SQUASH = """
def squash(S : In[Tensor[B, R, D]]) -> Tensor[B, R, D]:
    n : Tensor[B, R]
    n[b, r] += S[b, r, d] * S[b, r, d]
    V : Tensor[B, R, D]
    V[b, r, d] = S[b, r, d] * sqrt(n[b, r]) / (1.0 + n[b, r])
    return V
"""
PER_PIXEL = """
def per_pixel(X : In[Tensor[B, C, H, W]], K : In[Tensor[P, Q, B, H, W]]) -> Tensor[B, C, H, W]:
    Z : Tensor[B, C, H, W]
    Z[b, c, h, w] += zero_pad(X[b, c, h + p - 1, w + q - 1]) * K[p, q, b, h, w]
    return Z
"""
SOFTMAX = """
def softmax_(L : In[Tensor[B, I]]) -> Tensor[B, I]:
    M : Tensor[B]
    M[b] = max(L[b, i] for i in I)
    E : Tensor[B, I]
    E[b, i] = exp(L[b, i] - M[b]) / sum(exp(L[b, j] - M[b]) for j in I)
    return E
"""
STEPS = """
def steps(L : In[Tensor[B]], a : In[float], n : In[int]) -> Tensor[B]:
    U : Tensor[B]
    U[b] = L[b] * a
    for t in range(n):
        if t > 0:
            U[b] = sin(U[b]) * a
        else:
            U[b] += U[b] * U[b]
        a = a * 0.5
    return U
"""
NETWORK = """
def network(x : In[Tensor[B, I]], w : In[Tensor[O, I]], b : In[Tensor[O]]) -> float:
    h = relu(linear(x, w, b))
    return mean(h * h)
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("squash", SQUASH),
        ("per_pixel", PER_PIXEL),
        ("softmax_", SOFTMAX),
        ("steps", STEPS),
        ("network", NETWORK),
    ],
)
def test_the_text_of_an_adjoint(name: str, text: str, golden: Callable[[str, str], None]) -> None:
    module = parse(f"{text}\nd_{name} = rev_diff({name})\n")
    adjoint = print_function(differentiate(module).function(f"d_{name}"))
    split, _ = split_pairs(module, [name])
    parts = [
        print_function(optimise(split).function(f"{name}__{p}")) for p in ("forward", "backward")
    ]
    golden(f"adjoint_{name}.loma", "\n\n".join([adjoint, *parts]))


@pytest.mark.parametrize("text", one_in(3, [SQUASH, PER_PIXEL, SOFTMAX, STEPS, NETWORK]))
def test_adjoints_of_any_order_print_verify_and_parse_back(text: str) -> None:
    name = text.split("def ")[1].split("(")[0]
    module = differentiate(parse(f"{text}\nd1 = rev_diff({name})\nd2 = rev_diff(d1)\n"))
    module, _ = split_pairs(module)
    for stage in (module, optimise(module)):
        verify(stage)
        assert parse(print_module(stage)) == stage


def test_the_same_source_gives_the_same_text() -> None:
    texts = {print_module(split_pairs(parse(STEPS))[0]) for _ in range(3)}
    assert len(texts) == 1


def test_names_of_ad_do_not_clash_with_the_programs_own() -> None:
    text = """
def f(x : In[Tensor[N]], _d_x : In[Tensor[N]], _need_x : In[Tensor[N]]) -> Tensor[N]:
    _d_result = x * _d_x * _need_x
    return _d_result

"""
    caller = """
def f__forward(x : In[Tensor[N]]) -> Tensor[N]:
    return f(x, x, x)
"""
    program = oracle.Program([text, caller])
    x, y, z = (torch.randn(3, dtype=torch.float64) for _ in range(3))
    oracle.check(program, "f", (x, y, z), lambda x, y, z: x * y * z, libtorch=False)
    oracle.check(program, "f__forward", (x,), lambda x: x**3, libtorch=False)


def _steps(start: torch.Tensor, a: torch.Tensor, n: int) -> torch.Tensor:
    u = start * a
    for t in range(n):
        u = torch.sin(u) * a if t > 0 else u + u * u
        a = a * 0.5
    return u


TRAPS: dict[str, tuple[str, Callable[..., Any], tuple[object, ...]]] = {
    "a loop with branches, an argument reassigned in it": (
        STEPS.replace("steps", "f"),
        _steps,
        (torch.randn(3, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64), 3),
    ),
    "a loop that never runs": (
        STEPS.replace("steps", "f"),
        _steps,
        (torch.randn(3, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64), 0),
    ),
    "the branch changes what its condition reads": (
        """
def f(x : In[Tensor[N]], s : In[float]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i]
    if s > 0.0:
        s = s * s - 4.0
        y[i] = y[i] * s
    else:
        y[i] = y[i] + s
    if s > 0.0:
        y[i] = y[i] * y[i]
    return y
""",
        lambda x, s: x * (s * s - 4.0),
        (torch.randn(3, dtype=torch.float64), torch.tensor(1.3, dtype=torch.float64)),
    ),
    "inner loops with varying trip counts": (
        """
def f(X : In[Tensor[N, K]], n : In[int]) -> Tensor[N]:
    S : Tensor[N]
    for t in range(n):
        for u in range(t + 1):
            S[i] = S[i] * 0.9 + sin(X[i, t] * S[i]) + X[i, u]
    return S
""",
        lambda X, n: _triangle(X, n),
        (torch.randn(2, 4, dtype=torch.float64), 3),
    ),
    "a local of the last iteration used after the loop": (
        """
def f(X : In[Tensor[N, K]]) -> Tensor[N]:
    y : Tensor[N]
    for k in range(K):
        y[i] = X[i, k] * X[i, k]
    return y * y
""",
        lambda X: X[:, -1] ** 4,
        (torch.randn(2, 3, dtype=torch.float64),),
    ),
    "read, overwritten, read again": (
        """
def f(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    z : Tensor[N]
    y[i] = exp(x[i])
    z[i] = y[i] * x[i]
    y[i] = y[i] * y[i] + z[i]
    z[i] += y[i] * z[i]
    y[i] = sin(y[i])
    return y * z
""",
        lambda x: _overwritten(x),
        (torch.randn(4, dtype=torch.float64),),
    ),
    "the same tensor passed twice": (
        """
def g(a : In[Tensor[N]], b : In[Tensor[N]]) -> Tensor[N]:
    c : Tensor[N]
    c[i] = a[i] * b[i] * b[i]
    return c

def f(x : In[Tensor[N]]) -> Tensor[N]:
    y = g(x, x)
    return g(y, x) + g(x, y)
""",
        lambda x: x**3 * x * x + x * x**6,
        (torch.randn(4, dtype=torch.float64),),
    ),
    "a result that is an argument, and one returned twice": (
        """
def f(x : In[Tensor[N]]) -> tuple[Tensor[N], Tensor[N], Tensor[N]]:
    y = x * x
    return x, y, y
""",
        lambda x: (x.clone(), x * x, x * x),
        (torch.randn(4, dtype=torch.float64),),
    ),
    "ranges shorter than the dimension": (
        """
def f(X : In[Tensor[N]], F : In[Tensor[K]]) -> Tensor[K]:
    Y : Tensor[K]
    Y[i] = sum(X[k] * X[k] for k in range(3)) * F[i] + sum(X[2 * j] * F[i] for j in range(2))
    return Y
""",
        lambda X, F: (X[:3] ** 2).sum() * F + (X[0] + X[2]) * F,
        (torch.randn(5, dtype=torch.float64), torch.randn(3, dtype=torch.float64)),
    ),
    "ranges that depend on ranges": (
        """
def f(X : In[Tensor[N]]) -> float:
    return sum(X[k] * sum(X[l] * sum(X[m] for m in range(l)) for l in range(k)) for k in N)
""",
        lambda X: torch.stack([X[list(c)].prod() for c in combinations(range(4), 3)]).sum(),
        (torch.randn(4, dtype=torch.float64),),
    ),
    "a range that depends on another index": (
        """
def f(X : In[Tensor[N]]) -> Tensor[N]:
    Y : Tensor[N]
    Y[i] = sum(X[j] * X[i] for j in range(i + 1))
    return Y
""",
        lambda X: X.cumsum(0) * X,
        (torch.randn(5, dtype=torch.float64),),
    ),
    "a result of a call changed afterwards": (
        """
def g(x : In[Tensor[N]], w : In[Tensor[N]]) -> tuple[Tensor[N], float]:
    y = x * w * w
    s : float = sum(y[i] * y[i] for i in N)
    return y, s

def f(x : In[Tensor[N]], w : In[Tensor[N]]) -> Tensor[N]:
    y, s = g(x, w)
    y[i] = y[i] * y[i]
    y[i] += s
    return y
""",
        lambda x, w: (x * w * w) ** 2 + ((x * w * w) ** 2).sum(),
        (torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)),
    ),
    "an index that the summand does not mention": (
        """
def f(X : In[Tensor[N]], K : In[Tensor[M]]) -> Tensor[N]:
    Y : Tensor[N]
    Y[i] = sum(X[i] for k in M)
    return Y
""",
        lambda X, K: X * K.shape[0],
        (torch.randn(3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)),
    ),
    "an int that depends on data decides": (
        """
def f(x : In[Tensor[N]]) -> Tensor[N]:
    big : int = x[0] > 0.0
    y = x * 2.0
    if big:
        y = y * x
    return y
""",
        lambda x: x * 2.0 * (x if x[0] > 0 else 1.0),
        (torch.tensor([0.5, 2.0], dtype=torch.float64),),
    ),
}


def _triangle(X: torch.Tensor, n: int) -> torch.Tensor:
    s = torch.zeros(X.shape[0], dtype=X.dtype)
    for t in range(n):
        for u in range(t + 1):
            s = s * 0.9 + torch.sin(X[:, t] * s) + X[:, u]
    return s


def _overwritten(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    z = y * x
    y = y * y + z
    z = z + y * z
    return y.sin() * z


@pytest.mark.parametrize("trap", TRAPS)
def test_traps(trap: str) -> None:
    text, reference, args = TRAPS[trap]
    program = oracle.Program([text])
    oracle.check(program, "f", args, reference, libtorch=False)


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ("where(x > 0.0, log(x), x)", [0.0, -1.0, 2.0]),
        ("where(x > 0.0, sqrt(x), 0.0 * x)", [0.0, -1.0, 2.0]),
        ("where(x != 0.0, 1.0 / x, x)", [0.0, 2.0]),
        ("where(x < 100.0, exp(x), x)", [1000.0, 1.0]),
    ],
)
def test_no_nan_comes_out_of_a_branch_not_taken(body: str, at: list[float]) -> None:
    program = oracle.Program([f"def f(x : In[Tensor[N]]) -> Tensor[N]:\n    return {body}\n"])
    x = torch.tensor(at, dtype=torch.float64)
    (adjoint,) = program.adjoint("f", (x,), [torch.ones_like(x)])
    assert torch.isfinite(torch.as_tensor(adjoint)).all()


def test_split_mode_saves_no_argument_twice_and_no_dead_value() -> None:
    module, (pair,) = split_pairs(parse(SQUASH))
    kinds = [source.kind for source in pair.sources]
    assert kinds == ["arg", "saved", "grad", "need"]
    assert [p.name for p in module.function(pair.backward).params][1] == "n"


def test_a_relu_network_saves_the_relus_result_and_not_its_argument() -> None:
    module, _ = split_pairs(parse(NETWORK))
    forward = module.function("network__forward")
    assert len(forward.results) == 2


def test_a_reduction_that_a_statement_names_twice_is_computed_once() -> None:
    """Whatever its own index is called; those of different statements are two."""
    text = """
def f(x : In[Tensor[N, M]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = max(x[i, j] for j in M) * log(sum(exp(x[i, k] - max(x[i, l] for l in M)) for k in M))
    return y
"""
    module, _ = split_pairs(parse(text))
    forward = print_function(module.function("f__forward"))
    assert forward.count(" max(") == forward.count(" argmax(") == forward.count("sum(") == 1


def test_a_square_has_one_contribution_however_it_is_written() -> None:
    head = "def f(a : In[Tensor[N, D]], b : In[Tensor[M, D]]) -> Tensor[N, M]:\n"
    c = "(a[i, d] - b[j, d])"

    def adjoints(square: str) -> str:
        body = f"    y : Tensor[N, M]\n    y[i, j] = sqrt(sum({square} for d in D))\n    return y\n"
        module, _ = split_pairs(parse(head + body))
        return print_function(module.function("f__backward"))

    assert adjoints(f"{c} * {c}") == adjoints(f"{c} ** 2")


def test_zeros_of_both_signs_are_two_numbers() -> None:
    """In reductions that are alike but for that, too."""
    text = """
def f(x : In[Tensor[N, M]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = sum(x[i, j] / 0.0 for j in M) + sum(x[i, j] / -0.0 for j in M)
    return y
"""
    ones = torch.ones((2, 3), dtype=torch.float64)
    program = oracle.Program([text])
    assert torch.isnan(torch.as_tensor(program.value("f", (ones,))[0])).all()
    module, _ = split_pairs(parse(text))
    assert print_function(module.function("f__forward")).count("sum(") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def f(x : In[Tensor]) -> Tensor:\n    return max_pool2d(x, 2)\nd_f = rev_diff(f)\n",
            "'max_pool2d' of a tensor of unknown rank has no derivative here",
        ),
        (
            "def f(x : In[Tensor[N]], n : In[IntTensor[N]]) -> float:\n    s : float\n"
            "    for t in range(N):\n"
            "        s += sum(exp(sum(x[j] * l for j in N)) for l in range(n[t]))\n    return s\n"
            "d_f = rev_diff(f)\n",
            "this reduction is inside another one, whose range(n[t]) changes: it has no derivative",
        ),
    ],
)
def test_what_has_no_derivative_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(errors.NotDifferentiable) as caught:
        differentiate(parse(text))
    assert caught.value.message == message
