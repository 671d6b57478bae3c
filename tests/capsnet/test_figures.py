"""Pictures of training and of capsules: what is in them, in the figure and in the PNG's pixels."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from capsnet_loma import CapsNet, CapsNetConfig, reference
from capsnet_loma.data import ImageSet
from capsnet_loma.evaluation import EvaluationError
from capsnet_loma.evaluation.confusion import confusion_figure
from capsnet_loma.evaluation.curves import curves_figure, read_curves
from capsnet_loma.evaluation.evaluate import evaluate
from capsnet_loma.evaluation.model import Model
from capsnet_loma.evaluation.perturbations import (
    GAINED,
    LOST,
    STEPS,
    coloured,
    perturbation_figure,
    perturbed,
    reaches,
)
from capsnet_loma.evaluation.reconstructions import choose, reconstruction_figure
from capsnet_loma.profiling.cases import SMALL_NETWORK
from loma.tools.pictures import DARK, LIGHT, Theme, drawn, save

CONFIG = replace(SMALL_NETWORK, digit_dim=16)
SIZE = CONFIG.image_size


@pytest.fixture(scope="module")
def model() -> Model:
    """With random weights, so large that its images have all values from black to white."""
    torch.manual_seed(3)
    network = CapsNet(CONFIG)
    with torch.no_grad():
        network.digit_weight.mul_(4)
        for layer in (network.fc1, network.fc2, network.fc3):
            layer.weight *= 5
    return Model("loma", network)


@pytest.fixture(scope="module")
def data() -> ImageSet:
    """40 images in 4 classes, of which the third comes twice as often."""
    generator = torch.Generator().manual_seed(9)
    images = torch.randint(0, 256, (40, SIZE, SIZE), generator=generator, dtype=torch.uint8)
    return ImageSet(images, torch.tensor([0, 1, 2, 2, 3] * 8))


@pytest.fixture(scope="module")
def predictions(data: ImageSet) -> torch.Tensor:
    """All right, but: of class 1 three are taken for 3, of class 3 all for 0."""
    predicted = data.labels.clone()
    ones = torch.nonzero(data.labels == 1).flatten()
    predicted[ones[[0, 4, 6]]] = 3
    predicted[data.labels == 3] = 0
    return predicted


def _png(figure: Figure, folder: Path) -> NDArray[numpy.float32]:
    """[height, width, 3] of 0..1."""
    file = folder / "new" / "picture.png"
    save(figure, file)
    return matplotlib.image.imread(file)[..., :3]


def _at(figure: Figure, axes: Axes, points: NDArray[numpy.float64]) -> NDArray[numpy.int64]:
    """Row and column in the PNG of points (x, y) in an axes' data coordinates: [..., 2]."""
    pixels = axes.transData.transform(points.reshape(-1, 2)).reshape(points.shape)
    height = figure.get_figheight() * figure.dpi
    return numpy.stack([height - pixels[..., 1], pixels[..., 0]], axis=-1).astype(numpy.int64)


def _picture(axes: Axes) -> NDArray[numpy.float32]:
    """The values of a picture's axes, NaN where it is empty."""
    values = axes.images[0].get_array()
    assert isinstance(values, numpy.ma.MaskedArray)
    return numpy.asarray(values.filled(numpy.nan))


def _legend(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def _shown(figure: Figure, axes: Axes, png: NDArray[numpy.float32]) -> NDArray[numpy.float32]:
    """The values of a picture's axes as the PNG shows them, from the middle of each square."""
    height, width = axes.images[0].get_size()
    columns, rows = numpy.meshgrid(numpy.arange(width) + 0.5, numpy.arange(height) + 0.5)
    places = _at(figure, axes, numpy.stack([columns, rows], axis=-1))
    return png[places[..., 0], places[..., 1]]


def _tile(picture: NDArray[numpy.float32], top: int, left: int) -> NDArray[numpy.float32]:
    return numpy.asarray(picture[top : top + SIZE, left : left + SIZE])


# ------------------------------------------------------------------------------ reconstructions


def test_wrong_ones_come_last(data: ImageSet, predictions: torch.Tensor) -> None:
    chosen = choose(data, predictions, 4, columns=6)
    of = [[i for i in range(40) if data.labels[i] == label] for label in range(4)]
    assert chosen[0] == of[0][:6]
    assert chosen[1] == [of[1][i] for i in (1, 2, 3, 5, 0, 4)]
    assert chosen[2] == of[2][:6]
    assert chosen[3] == of[3][:6]


def test_reconstructions_are_the_networks(
    model: Model, data: ImageSet, predictions: torch.Tensor, tmp_path: Path
) -> None:
    figure = reconstruction_figure(model, data, predictions, "title", columns=6)
    (axes,) = figure.axes
    picture = _picture(axes)
    shown = _shown(figure, axes, _png(figure, tmp_path))
    chosen = choose(data, predictions, 4, columns=6)
    frames = {(p.get_x() + 1, p.get_y() + 1): p for p in axes.patches if isinstance(p, Rectangle)}
    tiles = numpy.zeros(picture.shape, dtype=bool)
    for row, indices in enumerate(chosen):
        for column, i in enumerate(indices):
            top, left = 3 + 17 * row, 3 + column * (2 * 17 + 6)
            mask = torch.nn.functional.one_hot(predictions[[i]], 4).float()
            image = data.images[i].float() / 255
            _, expected = model.network(image[None, None], mask)
            second = left + SIZE + 3
            numpy.testing.assert_array_equal(_tile(picture, top, left), image.numpy())
            numpy.testing.assert_allclose(
                _tile(picture, top, second), expected.detach().reshape(SIZE, SIZE), atol=1e-5
            )
            right = predictions[i] == row
            for x in (left, second):
                seen = _tile(shown, top, x)
                # The class that a wrong one was taken for stands in a corner.
                clear = numpy.ones((SIZE, SIZE), dtype=bool)
                clear[:10, 7:] = right or x == left
                wanted = _tile(picture, top, x)[..., None].repeat(3, 2)
                numpy.testing.assert_allclose(seen[clear], wanted[clear], atol=0.008)
                tiles[top : top + SIZE, x : x + SIZE] = True
            colour = frames[left, top].get_edgecolor()[:3]
            assert colour == to_rgb(LIGHT.right if right else LIGHT.wrong)
            assert frames[left, top].get_width() == 2 * SIZE + 3 + 2
    assert numpy.array_equal(numpy.isnan(picture), ~tiles)
    assert len(frames) == 24


def test_wrong_ones_name_what_they_were_taken_for(
    model: Model, data: ImageSet, predictions: torch.Tensor
) -> None:
    figure = reconstruction_figure(model, data, predictions, "title", columns=6)
    texts = [(t.get_position(), t.get_text()) for t in figure.axes[0].texts]
    rows = sorted((position[1], text) for position, text in texts if position[0] < 0)
    assert [text for _, text in rows] == ["0", "1", "2", "3"]
    named = sorted((position[1] // 17, text) for position, text in texts if position[0] > 0)
    assert named == [(1, "3")] * 2 + [(3, "0")] * 6


def test_few_images_leave_places_empty(model: Model, data: ImageSet) -> None:
    few = ImageSet(data.images[:3], data.labels[:3])
    figure = reconstruction_figure(model, few, few.labels, "title", columns=6)
    picture = _picture(figure.axes[0])
    assert (~numpy.isnan(picture)).sum() == 3 * 2 * SIZE * SIZE


# ------------------------------------------------------------------------------- perturbations


@pytest.fixture(scope="module")
def capsules(model: Model, data: ImageSet) -> torch.Tensor:
    with torch.no_grad():
        capsules: torch.Tensor = model.network(data.images[:1, None].float() / 255)[0][0]
    return capsules


REACH = torch.linspace(0.3, 0.9, 16)  # one for each value of a capsule


def test_values_are_changed_by_what_they_span_and_at_least_as_in_the_paper() -> None:
    capsules = torch.tensor([[0.1, 0.2, -0.3], [0.3, 0.2, -0.3], [0.2, 0.2, -0.6]])
    expected = [8 * math.sqrt(2 / 3) * 0.1, 0.25, 8 * math.sqrt(2) * 0.1]
    torch.testing.assert_close(reaches(capsules), torch.tensor(expected))
    torch.testing.assert_close(reaches(capsules[:1]), torch.full((3,), 0.25))


def test_perturbed_capsules_decoded_one_by_one(model: Model, capsules: torch.Tensor) -> None:
    images = perturbed(model, capsules, 2, REACH)
    assert images.shape == (16, 7, SIZE, SIZE)
    n = model.network
    weights = [getattr(n, f"fc{k}") for k in (1, 2, 3)]
    mask = torch.tensor([[0.0, 0.0, 1.0, 0.0]])
    for value in range(16):
        for step, change in enumerate(STEPS):
            changed = capsules.clone()
            changed[2, value] += change * REACH[value]
            expected = reference.decoder(
                changed[None], mask, *(p for w in weights for p in (w.weight, w.bias))
            )
            torch.testing.assert_close(images[value, step].flatten(), expected[0].detach())
    assert (images[:, 0] - images[:, -1]).abs().amax(dim=(1, 2)).min() > 1e-4


def test_nothing_is_changed_in_the_middle(model: Model, capsules: torch.Tensor) -> None:
    assert STEPS[3] == 0.0
    images = perturbed(model, capsules, 1, REACH)
    plain = model.decode(capsules[None], torch.tensor([[0.0, 1.0, 0.0, 0.0]]))[0, 0].detach()
    for row in images[:, 3]:
        torch.testing.assert_close(row, plain)


def test_colours_are_what_is_gained_and_lost() -> None:
    images = torch.tensor([[[0.5, 0.5, 0.1, 1.0]]])
    plain = torch.tensor([[0.5, 0.4, 0.3, 0.0]])
    both, gained, lost, much = coloured(images, plain)[0, 0]
    assert both == pytest.approx([0.5, 0.5, 0.5, 1.0])
    assert gained[:3] == pytest.approx([0.4 + 0.2 * c for c in to_rgb(GAINED)])
    assert lost[:3] == pytest.approx([0.1 + 0.4 * c for c in to_rgb(LOST)])
    assert much[:3] == pytest.approx([min(1.0, 2.0 * c) for c in to_rgb(GAINED)])


@pytest.mark.parametrize(("labels", "scale"), [((0, 1, 2, 3), 1), ((2,), 2)])
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_panels_show_the_perturbed_capsules(
    model: Model,
    data: ImageSet,
    labels: tuple[int, ...],
    scale: int,
    theme: Theme,
    tmp_path: Path,
) -> None:
    predicted = data.labels.clone()
    predicted[2] = 0  # the first image of class 2 is wrong, so the next one is drawn
    figure = drawn(
        lambda theme: perturbation_figure(model, data, predicted, labels, "title", theme=theme),
        theme,
    )
    png = _png(figure, tmp_path)
    rows = 16 // scale  # one class has two panels
    assert len(figure.axes) == scale * len(labels)
    for number, axes in enumerate(figure.axes):
        label, first = labels[number // scale], number % scale * rows
        example = {0: 0, 1: 1, 2: 3, 3: 4}[label]
        with torch.no_grad():
            own = model.network(data.images[example : example + 1, None].float() / 255)[0][0]
            every = model.network(data.images[data.labels == label, None].float() / 255)[0]
        reach = reaches(every[:, label])
        images = perturbed(model, own, label, reach)
        expected = coloured(images, images[0, 3])[first : first + rows]
        assert expected[..., :3].min() < 0.3
        assert expected[..., :3].max() > 0.8
        picture = numpy.asarray(axes.images[0].get_array())
        assert picture.shape == (rows * 15 + 1, 7 * 15 + 1, 4)
        shown = _shown(figure, axes, png)
        for row in range(rows):
            for column in range(7):
                top, left = 1 + 15 * row, 1 + 15 * column
                numpy.testing.assert_allclose(
                    _tile(picture, top, left), expected[row, column], atol=1e-5
                )
        known = picture[..., 3] == 1.0
        assert known.sum() == rows * 7 * SIZE * SIZE
        numpy.testing.assert_allclose(shown[known], picture[known][:, :3], atol=0.008)
        numpy.testing.assert_allclose(
            shown[~known], numpy.broadcast_to(to_rgb(theme.page), shown[~known].shape), atol=0.008
        )
        width = axes.get_window_extent().width
        assert width == pytest.approx(scale * picture.shape[1])
        texts = [t.get_text() for t in axes.texts]
        assert texts[0] == f"{first + 1}  ±{reach[first]:.2f}"
        assert texts[rows:] == ([] if first else [str(label)])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_text_is_cut_off(count: int, tmp_path: Path) -> None:
    """With as many panels, of images as large as MNIST's."""
    config = CapsNetConfig(conv_channels=1, primary_types=1, decoder_hidden=(1, 1))
    model = Model("pytorch", reference.CapsNet(config))
    data = ImageSet(torch.zeros(10, 28, 28, dtype=torch.uint8), torch.arange(10))
    labels = torch.arange(10)
    figures = [
        perturbation_figure(model, data, labels, range(count), "title"),
        reconstruction_figure(model, data, labels.roll(1), "title"),
    ]
    for figure in figures:
        _png(figure, tmp_path)
        title, _ = figure.texts
        assert (title.get_text(), title.get_fontweight()) == ("title", "bold")
        texts = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
        boxes = [text.get_window_extent() for text in texts]
        width, height = figure.get_size_inches() * figure.dpi
        for box in boxes:
            assert 0 <= box.x0 < box.x1 <= width
            assert 0 <= box.y0 < box.y1 <= height
        for number, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[:number])


def test_a_class_without_images(model: Model, data: ImageSet) -> None:
    few = ImageSet(data.images[:3], data.labels[:3])
    with pytest.raises(EvaluationError, match="fashion has no image of class 3"):
        perturbation_figure(model, few, few.labels, (0, 3), "title", "fashion")


# ---------------------------------------------------------------------------------------- curves

COLUMNS = (
    "epoch,step,seconds,learning_rate,train_loss,train_accuracy,test_loss,test_accuracy,"
    "images_per_second"
)


def _metrics(folder: Path, *rows: tuple[float, ...], speed: float = 99.5) -> Path:
    file = folder / "metrics.csv"
    folder.mkdir(exist_ok=True)
    lines = [
        f"{epoch},{25 * epoch},{3.5 * epoch},0.001,{','.join(map(str, values))},{speed}"
        for epoch, values in enumerate(rows, start=1)
    ]
    file.write_text("\n".join([COLUMNS, *lines]) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def metrics(tmp_path: Path) -> list[Path]:
    return [
        _metrics(
            tmp_path / "loma", (0.5, 0.4, 0.2, 0.8), (0.2, 0.9, 0.1, 0.95), (0.1, 1, 0.05, 0.98)
        ),
        _metrics(tmp_path / "pytorch", (0.6, 0.3, 0.3, 0.7), (0.3, 0.92, 0.08, 0.96), speed=45.0),
    ]


def test_curves_are_the_metrics(metrics: list[Path], tmp_path: Path) -> None:
    runs = [read_curves(file, file.parent.name) for file in metrics]
    figure = curves_figure(runs, "title")
    png = _png(figure, tmp_path)
    loss, accuracy, speed = figure.axes
    assert len(loss.lines) == len(accuracy.lines) == 4
    for number, file in enumerate(metrics):
        with file.open(newline="") as text:
            rows = list(csv.DictReader(text))
        for axes, what, factor in ((loss, "loss", 1), (accuracy, "accuracy", 100)):
            train, test = axes.lines[2 * number : 2 * number + 2]
            for line, column in ((train, f"train_{what}"), (test, f"test_{what}")):
                assert numpy.asarray(line.get_xdata()).tolist() == [
                    float(row["epoch"]) for row in rows
                ]
                expected = [factor * float(row[column]) for row in rows]
                assert numpy.asarray(line.get_ydata()).tolist() == expected
                assert to_rgb(line.get_color()) == to_rgb(LIGHT.runs[number])
            assert (train.get_linestyle(), test.get_linestyle()) == ("--", "-")
            # The line is where the PNG has its colour: at its last point.
            last = numpy.stack([test.get_xdata(), test.get_ydata()])[:, -1]
            row, column = _at(figure, axes, last)
            near = png[row - 2 : row + 3, column - 3 : column + 1].reshape(-1, 3)
            assert numpy.abs(near - to_rgb(LIGHT.runs[number])).max(axis=1).min() < 0.1
    low, high = accuracy.get_ylim()
    assert low < 92
    assert high > 100
    assert _legend(accuracy) == ["loma", "pytorch", "test", "training"]
    bars = [bar.get_width() for bar in speed.patches if isinstance(bar, Rectangle)]
    assert bars == [99.5, 45.0]
    assert [text.get_text() for text in speed.texts] == ["loma: 100", "pytorch: 45"]
    assert "title: loma is 2.2 times as fast as pytorch" in [t.get_text() for t in figure.texts]


def test_one_epoch_is_a_point(tmp_path: Path) -> None:
    run = read_curves(_metrics(tmp_path, (0.5, 0.4, 0.2, 0.8)), "run")
    figure = curves_figure([run], "title")
    assert {line.get_marker() for axes in figure.axes for line in axes.lines} == {"o"}
    assert "title" in [text.get_text() for text in figure.texts]
    assert len(_legend(figure.axes[1])) == 2
    _png(figure, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is damaged: its first line has no column epoch, train_loss"),
        ("epoch,train_loss\n1,2\n", "has no column train_accuracy, test_loss, test_accuracy"),
        (f"{COLUMNS}\n", "has no epoch yet"),
        (f"{COLUMNS}\n1,25,3,0.1,x,1,1,1,1\n", "row 1 has 'x' as train_loss, which is no number"),
        (f"{COLUMNS}\n1,25,3,0.1,1,1,1,1,1\n2,25", "row 2 has None as train_loss"),
        (f"{COLUMNS}\n\xff", "is damaged: "),
        (f'{COLUMNS}\n"1', "is damaged: "),
    ],
)
def test_damaged_metrics(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(EvaluationError) as caught:
        read_curves(file, "run")
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


# ------------------------------------------------------------------------------------- confusion


def test_confusion_picture_has_the_counts(model: Model, data: ImageSet, tmp_path: Path) -> None:
    result = evaluate(model, data)
    figure = confusion_figure(result, "title")
    (axes,) = figure.axes
    png = _png(figure, tmp_path)
    cells = {t.get_position(): t.get_text() for t in axes.texts}
    counts = result.confusion.tolist()
    for row in range(4):
        for column in range(4):
            text = cells.get((column, row), "0")
            assert int(text) == counts[row][column]
            corner = _at(figure, axes, numpy.array([column - 0.4, row - 0.4]))
            red, green, blue = png[corner[0], corner[1]]
            if counts[row][column] == 0:
                assert (red, green, blue) == (1, 1, 1)
            elif row == column:
                assert green > red
            else:
                assert red > green
    assert f"{result.right} of 40 right" in axes.get_title()
