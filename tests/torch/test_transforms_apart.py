"""torch.func where several things happen at once, or none: threads, processes, no sample and one,
linearize, and Out arguments that lie beside others."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fresh
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.func import grad, hessian, jacfwd, jacrev, linearize, vmap

import loma

PROGRAM = """
def mixed(x : In[Tensor[N, M]], w : In[Tensor[M]], b : In[float]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = sin(x[i, j] * w[j]) + b * x[i, j] ** 2 * sum(x[i, k] * w[k] for k in M)
    return y

def added(x : In[Tensor[N]], y : Out[Tensor[N]]):
    y[i] += x[i]
"""
X = torch.linspace(-1, 1, 24).reshape(4, 2, 3)
W, B = torch.tensor([0.5, -1.5, 0.8]), torch.tensor(0.3)


def mixed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.sin(x * w) + b * x**2 * (x @ w)[..., None]


@pytest.fixture(scope="module")
def program() -> loma.LomaModule:
    return loma.compile(PROGRAM)


def check(program: loma.LomaModule, of: Callable[[Callable[..., Any]], Any]) -> None:
    """The same of loma's function and of the plain one."""
    torch.testing.assert_close(of(program.mixed), of(mixed))


@pytest.mark.parametrize("samples", [0, 1, 3])
def test_any_number_of_samples(program: loma.LomaModule, samples: int) -> None:
    x = X[:samples]
    check(program, lambda f: vmap(f, (0, None, None))(x, W, B))
    check(program, lambda f: vmap(f, (-1, None, None), out_dims=-1)(x.movedim(0, -1), W, B))
    check(program, lambda f: vmap(grad(lambda w, x: f(x, w, B).sum()), (None, 0))(W, x))


def test_chunks_and_randomness_change_nothing(program: loma.LomaModule) -> None:
    check(program, lambda f: vmap(f, (0, None, None), chunk_size=3)(X, W, B))
    check(program, lambda f: vmap(f, (0, None, None), randomness="different")(X, W, B))


@pytest.mark.full
def test_jacobians_of_jacobians(program: loma.LomaModule) -> None:
    check(program, lambda f: jacrev(jacfwd(lambda w: f(X[0], w, B)))(W))
    check(program, lambda f: jacfwd(jacrev(lambda w: f(X[0], w, B)))(W))
    second = hessian(lambda w: program.mixed(X[0], w, B).sum())(W)
    by_autograd = torch.autograd.functional.hessian(lambda w: mixed(X[0], w, B).sum(), W)
    torch.testing.assert_close(second, by_autograd)


@pytest.mark.cpu
def test_linearize(program: loma.LomaModule) -> None:
    """A graph of the tangents, traced once. (torch itself warns while it makes any.)"""

    def both(f: Callable[..., Tensor]) -> Any:
        value, pushforward = linearize(f, X[0], W, B)
        one = linearize(lambda x: f(x, W, B), X[0])[1]
        return value, pushforward(X[1], W + 1, 2 * B), vmap(one)(X)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(program, both)


@pytest.mark.full
@pytest.mark.cpu
def test_threads(program: loma.LomaModule) -> None:
    """What several threads need first, each at the same time: one makes it, all are right. (Forward
    mode has levels that all threads of a process share, in torch itself.)"""
    wrong: list[str] = []
    start = threading.Barrier(4)
    fresh = loma.compile(PROGRAM.replace("mixed", "mixed_in_threads"))

    def work(x: Tensor) -> None:
        f = fresh.mixed_in_threads
        try:
            start.wait()
            for _ in range(20):
                torch.testing.assert_close(f(x, W, B), mixed(x, W, B))
                found = vmap(grad(lambda x: f(x, W, B).sum()))(x[None])
                expected = grad(lambda x: mixed(x, W, B).sum())(x)
                torch.testing.assert_close(found[0], expected)
        except BaseException as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(x,)) for x in X]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


_PROCESS = """
import warnings
warnings.simplefilter("error", UserWarning)
import torch, loma
from torch.func import grad, vmap
m = loma.compile("def cubed(x : In[Tensor[N]]) -> Tensor[N]:\\n    return x * x * x\\n")
x = torch.arange(6.0).reshape(2, 3)
print(vmap(grad(lambda x: m.cubed(x).sum()))(x).tolist())
"""


@pytest.mark.full
@pytest.mark.cpu
def test_two_processes_make_the_same(tmp_path: Path) -> None:
    """At the same time: a function, its derivative, and both for samples."""
    from loma import config

    # the runtime is in the tests' cache: this program is in no other test
    environment = {**os.environ, "LOMA_CACHE_DIR": str(config.cache_dir())}
    environment["PYTHONPATH"] = str(Path(loma.__file__).parent.parent)
    text = _PROCESS.replace("cubed", f"cubed_{os.getpid()}")
    running = [
        fresh.start(["-c", text], cwd=tmp_path, env=environment) for _ in range(2)
    ]  # fmt: skip
    expected = str((3 * torch.arange(6.0).reshape(2, 3) ** 2).tolist())
    for process in running:
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        assert out.strip() == expected


@pytest.mark.cpu
def test_an_out_argument_costs_no_memory(program: loma.LomaModule) -> None:
    """It may share memory with no other argument, which is seen without a copy."""
    x, y = torch.ones(5000), torch.zeros(5000)
    program.added(x, y)
    before = loma.memory.stats().obtained
    for _ in range(100):
        program.added(x, y)
    assert loma.memory.stats().obtained == before
    assert y.eq(101).all()


@pytest.mark.cpu
def test_parts_of_one_memory(program: loma.LomaModule) -> None:
    """Those that do not meet are two tensors; all others, and what nobody can tell, are refused."""
    memory = torch.arange(24.0).reshape(4, 6)
    flat = memory.flatten()
    for x, y in (
        (memory[0], memory[1]),
        (memory[:, 0], memory[:, 3]),
        (memory[::2, 1], memory[1::2, 1]),
        (flat[::2], flat[1::2]),
    ):
        expected = x + y
        program.added(x, y)
        torch.testing.assert_close(y, expected)
    for x, y in (
        (memory[0], memory[0]),
        (memory[:, 1], memory[1, :4]),
        (flat[:12:2], flat[4:16:2]),
        (flat[1::3], flat[:8]),
    ):
        with pytest.raises(ValueError, match="'x' and 'y' share memory"):
            program.added(x, y)


@pytest.mark.cpu
def test_make_fx_takes_a_function_itself(program: loma.LomaModule) -> None:
    graph = make_fx(program.mixed)(X[0], W, B)
    assert program.mixed.operator in [node.target for node in graph.graph.nodes]
    torch.testing.assert_close(graph(X[1], W, B), mixed(X[1], W, B))
