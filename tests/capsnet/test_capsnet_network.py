"""CapsNet on loma's layers: the interface of the module and its twin."""

from __future__ import annotations

import copy

import pytest
import torch

from capsnet_loma import CapsNet, capsule_loss, reference
from capsnet_loma.layers import layers
from capsnet_loma.profiling.cases import SMALL_NETWORK


def _twins() -> tuple[CapsNet, reference.CapsNet]:
    mine, theirs = CapsNet(SMALL_NETWORK), reference.CapsNet(SMALL_NETWORK)
    theirs.load_state_dict(mine.state_dict())
    return mine, theirs


def _batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(size, 1, SMALL_NETWORK.image_size, SMALL_NETWORK.image_size)
    return images, torch.nn.functional.one_hot(torch.arange(size) % 4, 4)


def test_same_state_dict_and_same_start() -> None:
    torch.manual_seed(3)
    mine = CapsNet(SMALL_NETWORK).state_dict()
    torch.manual_seed(3)
    theirs = reference.CapsNet(SMALL_NETWORK).state_dict()
    assert list(mine) == list(theirs)
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name


@pytest.mark.parametrize("with_targets", [True, False])
def test_same_outputs(with_targets: bool) -> None:
    mine, theirs = _twins()
    images, targets = _batch(3)
    given = (images, targets) if with_targets else (images,)
    for value, expected in zip(mine(*given), theirs(*given), strict=True):
        torch.testing.assert_close(value, expected)


def test_integer_targets_and_one_image() -> None:
    mine, theirs = _twins()
    images, targets = _batch(1)
    loss = capsule_loss(images, targets, *mine(images, targets))
    expected = reference.capsule_loss(images, targets, *theirs(images, targets))
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected)


def test_trains_like_its_twin() -> None:
    mine, theirs = _twins()
    images, targets = _batch(4)
    pairs = ((mine, capsule_loss), (theirs, reference.capsule_loss))
    for net, loss_function in pairs:
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            loss_function(images, targets, *net(images, targets)).backward()
            optimiser.step()
    for (name, value), expected in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(value, expected, msg=name)


def test_deepcopy() -> None:
    mine, _ = _twins()
    images, targets = _batch(2)
    for value, expected in zip(
        copy.deepcopy(mine)(images, targets), mine(images, targets), strict=True
    ):
        assert torch.equal(value, expected)


def test_layer_refuses_another_number_of_components() -> None:
    with pytest.raises(ValueError, match="predictions"):
        layers().predictions(torch.rand(2, 3, 4, 5), torch.rand(1, 3, 6))
