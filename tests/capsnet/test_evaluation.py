"""What a network is worth: counts, loss and shares, on both engines."""

from __future__ import annotations

import pytest
import torch

from capsnet_loma import CapsNet, reference
from capsnet_loma.data import ImageSet
from capsnet_loma.evaluation.evaluate import Evaluation, evaluate
from capsnet_loma.evaluation.model import Model
from capsnet_loma.profiling.cases import SMALL_NETWORK


@pytest.fixture(scope="module")
def data() -> ImageSet:
    generator = torch.Generator().manual_seed(2)
    images = torch.randint(0, 256, (23, 14, 14), generator=generator, dtype=torch.uint8)
    return ImageSet(images, torch.randint(0, 4, (23,), generator=generator))


@pytest.fixture(scope="module")
def models() -> tuple[Model, Model]:
    """The same weights on both engines, so large that all classes are predicted."""
    torch.manual_seed(5)
    mine, theirs = CapsNet(SMALL_NETWORK), reference.CapsNet(SMALL_NETWORK)
    with torch.no_grad():
        mine.digit_weight.mul_(5)
    theirs.load_state_dict(mine.state_dict())
    return Model("loma", mine), Model("pytorch", theirs)


@pytest.mark.parametrize("batch", [1, 5, 23, 100])
def test_both_engines_count_the_same(
    models: tuple[Model, Model], data: ImageSet, batch: int
) -> None:
    """Beside counts and loss that are computed of all images at once."""
    theirs = models[1].network
    images = data.images[:, None].float() / 255
    targets = torch.nn.functional.one_hot(data.labels, 4).float()
    with torch.no_grad():
        capsules, reconstruction = theirs(images, targets)
        loss = float(reference.capsule_loss(images, targets, capsules, reconstruction))
    predicted = capsules.square().sum(dim=2).argmax(dim=1)
    assert len(set(predicted.tolist())) > 2
    for model in models:
        result = evaluate(model, data, batch)
        assert torch.equal(result.predictions, predicted)
        assert result.loss == pytest.approx(loss, rel=1e-5)
        assert result.images == 23
        for row in range(4):
            for column in range(4):
                count = int(((data.labels == row) & (predicted == column)).sum())
                assert result.confusion[row, column] == count
        assert result.right == int((predicted == data.labels).sum())
        assert result.accuracy == pytest.approx(result.right / 23)


def test_nothing_is_trained(models: tuple[Model, Model], data: ImageSet) -> None:
    for model in models:
        before = {name: value.clone() for name, value in model.network.state_dict().items()}
        evaluate(model, data)
        assert all(torch.equal(value, before[n]) for n, value in model.network.state_dict().items())
        assert all(p.grad is None for p in model.network.parameters())


def test_progress_hears_of_every_batch(models: tuple[Model, Model], data: ImageSet) -> None:
    heard: list[tuple[int, int]] = []
    evaluate(models[0], data, 10, lambda what, done, total: heard.append((done, total)))
    assert heard == [(0, 23), (10, 23), (20, 23), (23, 23)]


def test_shares() -> None:
    confusion = torch.tensor([[3, 1, 0, 0], [0, 2, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]])
    result = Evaluation(float("nan"), torch.zeros(8), confusion)
    assert result.recall == [0.75, 1.0, 0.0, None]
    assert result.precision == [0.6, 2 / 3, None, None]
    assert (result.images, result.right, result.accuracy) == (8, 5, 0.625)
    report = result.to_json()
    assert report["loss"] is None
    assert report["confusion"] == confusion.tolist()
