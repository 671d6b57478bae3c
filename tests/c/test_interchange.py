"""The CapsNet for others: weights of its twin, graphs of torch.compile, files of torch.export."""

from __future__ import annotations

import os
from pathlib import Path

import fresh
import pytest
import torch
from torch import Tensor, nn

from capsnet_loma import CapsNet, capsule_loss, layers, reference
from capsnet_loma.profiling.cases import SMALL_NETWORK as SMALL
from conftest import ROOT

ENGINES = {"loma": (CapsNet, capsule_loss), "pytorch": (reference.CapsNet, reference.capsule_loss)}


@pytest.fixture(autouse=True)
def _nothing_traced_before() -> None:
    torch.compiler.reset()


def batch(size: int) -> tuple[Tensor, Tensor]:
    images = torch.rand(size, SMALL.image_channels, SMALL.image_size, SMALL.image_size)
    return images, nn.functional.one_hot(torch.arange(size) % SMALL.classes, SMALL.classes).float()


def loss_of(net: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    return capsule_loss(images, targets, *net(images, targets))


def assert_equal(given: object, expected: object) -> None:
    """In every bit: what is traced calls the same kernels."""
    torch.testing.assert_close(given, expected, rtol=0.0, atol=0.0)


# ------------------------------------------------------------------------------------ weights


@pytest.mark.parametrize(("source", "target"), [("loma", "pytorch"), ("pytorch", "loma")])
def test_trained_weights_move_to_the_other_engine(source: str, target: str, tmp_path: Path) -> None:
    images, targets = batch(5)
    network, loss_function = ENGINES[source]
    trained = network(SMALL)
    optimiser = torch.optim.Adam(trained.parameters(), lr=1e-2)
    for _ in range(2):
        optimiser.zero_grad()
        loss_function(images, targets, *trained(images, targets)).backward()
        optimiser.step()
    torch.save(trained.state_dict(), tmp_path / "weights.pt")

    network, other_loss_function = ENGINES[target]
    other = network(SMALL)
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    for given in ((images, targets), (images,)):
        torch.testing.assert_close(other(*given), trained(*given))
    loss = other_loss_function(images, targets, *other(images, targets))
    expected = loss_function(images, targets, *trained(images, targets))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss, list(other.parameters())),
        torch.autograd.grad(expected, list(trained.parameters())),
    )


# ------------------------------------------------------------------------------ torch.compile


def test_training_is_one_graph() -> None:
    net = CapsNet(SMALL)
    found = torch._dynamo.explain(loss_of)(net, *batch(3))
    assert (found.graph_count, found.graph_break_count) == (1, 0), found.break_reasons


def test_inference_is_one_graph() -> None:
    net = CapsNet(SMALL).eval()
    with torch.no_grad():
        found = torch._dynamo.explain(net)(batch(3)[0])
    assert (found.graph_count, found.graph_break_count) == (1, 0), found.break_reasons


@pytest.mark.full
@pytest.mark.cpu
def test_compiled_training_computes_the_same_with_operators_of_loma() -> None:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    graphs = []

    def recorded(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return make_boxed_func(graph.forward)

    net = CapsNet(SMALL)
    compiled = torch.compile(
        loss_of, fullgraph=True, dynamic=True, backend=aot_autograd(fw_compiler=recorded)
    )
    for size in (3, 4):
        images, targets = batch(size)
        loss, expected = compiled(net, images, targets), loss_of(net, images, targets)
        assert_equal(loss, expected)
        parameters = list(net.parameters())
        assert_equal(
            torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters)
        )
    forward, backward = graphs  # one each, also for the second size
    for name in ("convolution", "primary", "squash", "digit_capsules", "decoder", "margin_loss"):
        assert any(target.startswith(f"loma.{name}__forward.") for target in forward), name
        assert any(target.startswith(f"loma.{name}__backward.") for target in backward), name


@pytest.mark.cpu
def test_compiled_inference_computes_the_same() -> None:
    net = CapsNet(SMALL).eval()
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.no_grad():
        for size in (2, 5):
            images, _ = batch(size)
            assert_equal(compiled(images), net(images))


@pytest.mark.cpu
def test_the_compiler_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that unpickles a network: the layers are first asked for in a trace."""
    net = CapsNet(SMALL)
    images, _ = batch(2)
    expected = net(images)
    monkeypatch.setattr(layers, "_layers", None)
    monkeypatch.setattr(layers, "_modules", {})
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    assert_equal(compiled(images), expected)


# ------------------------------------------------------------------------------- torch.export

RUN_EXPORTED = """
import sys
import torch
from capsnet_loma.layers import layers

layers()  # registers the operators that the program calls
program = torch.export.load(sys.argv[1])
images = torch.load(sys.argv[2], weights_only=True)
torch.save([program.module()(batch) for batch in images], sys.argv[3])
"""


def exported(net: nn.Module) -> torch.export.ExportedProgram:
    batches = torch.export.Dim("batch", min=1)
    return torch.export.export(net, (batch(3)[0],), dynamic_shapes={"images": {0: batches}})


@pytest.mark.cpu
def test_an_exported_network_runs_for_any_batch() -> None:
    net = CapsNet(SMALL).eval()
    program = exported(net)
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert sum(name.startswith("loma.") for name in called) == 6, called
    for size in (1, 3, 8):
        images, _ = batch(size)
        assert_equal(program.module()(images), net(images))


def test_an_exported_file_runs_in_another_process(tmp_path: Path) -> None:
    net = CapsNet(SMALL).eval()
    images = [batch(1)[0], batch(6)[0]]
    torch.export.save(exported(net), tmp_path / "capsnet.pt2")
    torch.save(images, tmp_path / "images.pt")
    done = fresh.run(
        ["-c", RUN_EXPORTED, "capsnet.pt2", "images.pt", "results.pt"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    results = torch.load(tmp_path / "results.pt", weights_only=True)
    with torch.no_grad():
        torch.testing.assert_close(results, [net(given) for given in images])
