"""Structs with tensors: arguments, results and variables of tensor functions; objects in Python."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import oracle
import pytest
import torch
from click.testing import CliRunner
from oracle import Program, check_case
from struct_cases import LAYER, STRUCTS

import loma
from loma import pipeline
from loma.functions import signature
from loma.tools.cli import main

BY_NAME = {case.name: case for case in STRUCTS}


@pytest.fixture(scope="module")
def every() -> Program:
    """All of them in one text, for the interpreter."""
    found = Program(["\n".join(case.text for case in STRUCTS)], first=())
    found.all_text += "".join(f"d_{n} = rev_diff({n})\ndd_{n} = rev_diff(d_{n})\n"
                              for n in ("mlp", "descend"))  # fmt: skip
    return found


@pytest.mark.parametrize("name", BY_NAME)
def test_interpreted(every: Program, name: str) -> None:
    check_case(every, BY_NAME[name], libtorch=False)


@pytest.mark.full
@pytest.mark.parametrize("name", BY_NAME)
def test_compiled(every: Program, name: str) -> None:
    check_case(every, BY_NAME[name])


# ------------------------------------------------------------------------------------ from Python

PROGRAM = (
    LAYER
    + """
class Table:
    rows : Tensor[N, M]
    at : IntTensor[B]
    shift : int

def looked_up(t : In[Table]) -> Tensor[B, M]:
    y : Tensor[B, M]
    y[n, m] = t.rows[t.at[n] + t.shift, m] ** 2
    return y

def net(x : In[Tensor[B, D]], n : In[Net]) -> float:
    return sum(dense(tanh(dense(x, n.first)), n.second))

@derivative(looked_up)
def looked_up_back(t : In[Table], dt : Out[Table], g : In[Tensor[B, M]]):
    dt.rows[t.at[n] + t.shift, m] += 20.0 * g[n, m]

def adjoint(x : In[Tensor[B, K]], l : In[Layer], g : In[Tensor[B, O]]
            ) -> tuple[Tensor[B, K], Layer]:
    dx : Tensor[B, K]
    dl : Layer
    d_dense(x, dx, l, dl, g)
    return dx, dl

d_looked_up = rev_diff(looked_up)
d_dense = rev_diff(dense)
t_dense = fwd_diff(dense)
d_step = rev_diff(step)
"""
)


@pytest.fixture(scope="module")
def module() -> Any:
    return oracle.compiled(PROGRAM)


def _layer(module: Any, *shape: int) -> Any:
    generator = torch.Generator().manual_seed(3)
    w, b = (torch.randn(s, generator=generator, dtype=torch.float64) for s in (shape, shape[:1]))
    return module.Layer(w, b, scale=1.5)


def _value(x: torch.Tensor, layer: Any) -> torch.Tensor:
    result: torch.Tensor = layer.scale * (x @ layer.w.T + layer.b)
    return result


X = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(4, 2)


def test_any_object_with_the_members_is_taken_and_has_gradients(module: Any) -> None:
    own = _layer(module, 3, 2)
    leaf = own.w.clone().requires_grad_()
    for layer in (own, SimpleNamespace(w=leaf, b=own.b, scale=torch.tensor(1.5).double())):
        torch.testing.assert_close(module.dense(X, layer), _value(X, own))
    module.dense(X, l=SimpleNamespace(w=leaf, b=own.b, scale=1.5)).sum().backward()
    torch.testing.assert_close(leaf.grad, 1.5 * X.sum(0).expand(3, 2))
    report = loma.check_gradients(module.dense, (X, own))
    assert [a.name for a in report.arguments] == ["x", "l.w", "l.b", "l.scale"]
    nested = module.Net(_layer(module, 3, 2), _layer(module, 2, 3), 1)
    assert len(loma.check_gradients(module.net, {"x": X, "n": nested}).arguments) == 7


def test_derivatives_take_and_give_structs(module: Any) -> None:
    own, g = _layer(module, 3, 2), torch.ones(4, 3, dtype=torch.float64)
    dx, dl = module.d_dense(X, own, g)
    assert isinstance(dl, module.Layer)
    torch.testing.assert_close(dx, 1.5 * own.w.sum(0).expand(4, 2))
    torch.testing.assert_close(dl.w, 1.5 * X.sum(0).expand(3, 2))
    again = module.adjoint(X, own, g)
    torch.testing.assert_close(again[0], dx)
    assert again[1] == dl
    y, t = module.t_dense(X, 0 * X, own, own)
    torch.testing.assert_close(y, _value(X, own))
    torch.testing.assert_close(t, 2.0 * y)  # it is bilinear: the scale, and what is scaled
    rate, new = module.step(own, own, 0.5)
    assert (rate, type(new)) == (0.5, module.Layer)
    torch.testing.assert_close(new.w, own.w - 0.5 * own.w**2)
    adjoints = module.d_step(own, own, 0.5, 0.0, dl)
    assert [type(a) for a in adjoints[:2]] == [module.Layer] * 2
    torch.testing.assert_close(adjoints[0].w, dl.w * (1 - 0.5 * own.w))


def test_a_derivative_of_its_own_adds_to_a_struct(module: Any) -> None:
    rows = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    module.looked_up(module.Table(rows, torch.tensor([1, 0, 1]), 1)).sum().backward()
    assert rows.grad is not None
    assert rows.grad.tolist() == [[0.0, 0.0], [20.0, 20.0], [40.0, 40.0]]


def test_derivatives_that_autograd_asks_for_are_of_members() -> None:
    stage = pipeline.derived(pipeline.program(LAYER), "dense__backward")
    records = pipeline.function_records(stage)
    assert [str(signature(record)) for record in records if "packed" not in record]


@pytest.mark.full
def test_second_derivatives_and_transforms_of_torch(module: Any) -> None:
    own = _layer(module, 3, 2)
    own.scale = torch.tensor(1.5, dtype=torch.float64)
    grads = torch.func.grad(lambda layer: (module.dense(X, layer) ** 2).sum())(own)
    assert isinstance(grads, module.Layer)
    expected = torch.func.grad(lambda w: ((1.5 * (X @ w.T + own.b)) ** 2).sum())(own.w)
    torch.testing.assert_close(grads.w, expected)
    run = torch.compile(lambda x, layer: module.dense(x, layer) * 2, backend="eager",
                        fullgraph=True)  # fmt: skip
    torch.testing.assert_close(run(X, own), 2 * _value(X, own))


def test_out_structs_are_written(module: Any) -> None:
    own = module.Layer(torch.zeros(3, 2), torch.zeros(3), torch.tensor(0.0))
    module.fill(own, X.float())
    torch.testing.assert_close(own.w, X.float().sum(0).expand(3, 2))
    assert float(own.scale) == 3.0


def test_what_python_shows(module: Any) -> None:
    assert str(inspect.signature(module.step)) == "(l, g, rate=0.25)"
    assert str(inspect.signature(module.d_step)) == "(l, g, rate, _d_result_0, _d_result_1)"
    assert str(inspect.signature(module.d_looked_up)) == "(t, g)"
    assert module.dense.__doc__.startswith("dense(x : In[Tensor[B, K]], l : In[Layer]) -> Tensor")
    assert module.step.__doc__.startswith(
        "step(l : In[Layer], g : In[Layer], rate : In[float] = 0.25) -> tuple[float, Layer]"
    )
    own = module.Layer(torch.zeros(1, 2), torch.zeros(1), 1.0)
    assert repr(own) == "Layer(w=[[0.0, 0.0]], b=[0.0], scale=1.0)"
    assert "w=<tensor of shape [20, 30]>" in repr(_layer(module, 20, 30))
    assert pickle.loads(pickle.dumps(own)) == own == copy.deepcopy(own)
    assert "Layer" in dir(module)
    with pytest.raises(TypeError, match="Layer has tensors in it"):
        _ = module.Layer.dtype


def test_messages_say_members_as_the_program_does(module: Any) -> None:
    own = _layer(module, 3, 2)
    wrong: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (TypeError, r"dense\(\) misses argument 'l'; its arguments are: x, l",
         lambda: module.dense(X)),
        (TypeError, "argument 'l' has no attribute 'w'; the argument is a Layer",
         lambda: module.dense(X, 3)),
        (TypeError, r"dense\(\) takes 2 arguments \(x, l\), got 3",
         lambda: module.dense(X, own, 1)),
        (TypeError, "argument 'l.w' must be a tensor, got NoneType",
         lambda: module.dense(X, module.Layer())),
        (TypeError, "argument 'l.b' is float32, but",
         lambda: module.dense(X, module.Layer(own.w, own.b.float(), 1.0))),
        (ValueError, "size H is 3 in argument 'n.first.w' but 2 in argument 'n.second.w'",
         lambda: module.net(X, module.Net(own, _layer(module, 3, 2), 1))),
        (ValueError, "subscript 't.at.n. . t.shift' of 't.rows' is 4, outside",
         lambda: module.looked_up(module.Table(X, torch.tensor([3]), 1))),
    ]  # fmt: skip
    for error, message, call in wrong:
        with pytest.raises(error, match=message):
            call()


def test_a_check_of_the_command_line_knows_members(tmp_path: Any) -> None:
    file = tmp_path / "layers.loma"
    file.write_text(PROGRAM)
    result = CliRunner().invoke(main, ["bench", str(file), "dense", "--shapes", "l.v=2,3"])
    assert "dense has no tensor argument 'l.v'" in result.output
    text = pipeline.stage_text(PROGRAM, "parsed")
    assert pipeline.stage_text(text, "parsed") == text
