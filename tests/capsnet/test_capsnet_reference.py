"""The plain-PyTorch CapsNet: the paper's sizes and equations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from capsnet_loma import reference
from capsnet_loma.config import CapsNetConfig


def test_sizes_of_the_paper() -> None:
    net = reference.CapsNet()
    decoder = sum(p.numel() for name, p in net.named_parameters() if name.startswith("fc"))
    total = sum(p.numel() for p in net.parameters())
    assert round((total - decoder) / 1e6, 1) == 6.8  # section 5: 8.2M, 6.8M without the decoder
    assert round(total / 1e6, 1) == 8.2
    capsules, reconstruction = net(torch.rand(2, 1, 28, 28))
    assert capsules.shape == (2, 10, 16)
    assert reconstruction.shape == (2, 784)


@pytest.mark.parametrize("over_inputs", [0, 1])
def test_routing_is_procedure_1(over_inputs: int) -> None:
    predicted = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    for iterations in (1, 2, 4):
        expected = torch.stack([_procedure_1(u, iterations, over_inputs) for u in predicted])
        torch.testing.assert_close(reference.routing(predicted, iterations, over_inputs), expected)


def _procedure_1(predicted: Tensor, iterations: int, over_inputs: int) -> Tensor:
    """As the paper writes it, for one image: loops over capsules i below and j above."""
    above, below, _ = predicted.shape
    b = torch.zeros(below, above, dtype=predicted.dtype)
    v: list[Tensor] = []
    for _ in range(iterations):
        c = b.exp() / b.exp().sum(dim=0 if over_inputs else 1, keepdim=True)
        s = [
            sum((c[i, j] * predicted[j, i] for i in range(below)), torch.zeros(()))
            for j in range(above)
        ]
        v = [x.dot(x) / (1 + x.dot(x)) * x / x.norm() for x in s]
        for i in range(below):
            for j in range(above):
                b[i, j] += predicted[j, i].dot(v[j])
    return torch.stack(v)


def test_zero_capsule_has_zero_gradient() -> None:
    capsules = torch.zeros(2, 3, 4, dtype=torch.float64, requires_grad=True)
    for function in (reference.squash, reference.lengths):
        value = function(capsules)
        (gradient,) = torch.autograd.grad(value.sum(), capsules)
        assert not value.any()
        assert not gradient.any()


def test_margin_loss_is_equation_4() -> None:
    lengths = torch.tensor([[0.95, 0.5, 0.05], [0.2, 0.0, 1.0]])
    targets = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    expected = (0.5 * 0.4**2 + 0.7**2 + 0.5 * 0.9**2) / 2
    assert reference.margin_loss(lengths, targets).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 0}, "classes must be at least 1, got 0"),
        (
            {"image_size": 16},
            "image_size 16 is too small for kernels 9 and 9: it must be at least 17",
        ),
        ({"routing_softmax": "rows"}, "routing_softmax must be 'digits' or 'inputs', got 'rows'"),
    ],
)
def test_config_refuses_what_does_not_fit(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CapsNetConfig(**options)  # type: ignore[arg-type]
