"""``capsnet-loma evaluate`` and ``figures``: from a run's folder to what they print and draw."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.image
import pytest
import torch
from click.testing import CliRunner, Result

from capsnet_loma import CapsNetConfig, reference
from capsnet_loma.commands.cli import main
from capsnet_loma.data import load
from capsnet_loma.evaluation.evaluate import Evaluation, evaluate
from capsnet_loma.evaluation.model import Model
from idx_files import write_folder
from training_runs import METRICS, write_checkpoint

CONFIG = CapsNetConfig(conv_channels=4, primary_types=2, decoder_hidden=(8, 8))


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def network() -> reference.CapsNet:
    torch.manual_seed(1)
    network = reference.CapsNet(CONFIG)
    with torch.no_grad():
        network.digit_weight.mul_(5)
    return network


@pytest.fixture
def run(tmp_path: Path, network: reference.CapsNet) -> Path:
    """A run's folder, of the reference, on 60 random images of 28x28."""
    write_folder(tmp_path / "data", test=60)
    folder = tmp_path / "run"
    folder.mkdir()
    weights = network.state_dict()
    write_checkpoint(folder / "best.pt", "pytorch", CONFIG, weights, tmp_path / "data")
    (folder / "metrics.csv").write_text(METRICS, encoding="utf-8")
    return folder


@pytest.fixture
def expected(run: Path, network: reference.CapsNet) -> Evaluation:
    result = evaluate(Model("pytorch", network), load(run.parent / "data").test)
    assert 0 < result.right < 60
    return result


def test_evaluate_prints_the_confusion_matrix(run: Path, expected: Evaluation) -> None:
    done = _run("evaluate", run)
    assert done.exit_code == 0, done.output
    title, header, *rows, last = done.stdout.splitlines()
    assert title == f"data, {run / 'best.pt'}, computed by pytorch"
    assert header.split()[:3] == ["class", "as", "0"]
    for label, row in enumerate(rows):
        cells = row.split()
        assert cells[0] == str(label)
        counts = [0 if cell == "." else int(cell) for cell in cells[1:11]]
        assert counts == expected.confusion[label].tolist()
        for cell, share in ((cells[11], expected.recall), (cells[12], expected.precision)):
            assert cell == ("none" if share[label] is None else f"{share[label]:.1%}")
    assert last == (
        f"{expected.right} of 60 images are recognised, {expected.accuracy:.2%}; "
        f"loss {expected.loss:.4f}."
    )


@pytest.mark.parametrize("engine", ["loma", "pytorch"])
def test_evaluate_json_and_files(run: Path, expected: Evaluation, engine: str) -> None:
    output = run.parent / "new" / "output"
    done = _run(
        "evaluate", run / "best.pt", "--engine", engine, "--json", "--output", output,
        "--batch", 17, "--threads", torch.get_num_threads(),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["engine"] == engine
    assert report["confusion"] == expected.confusion.tolist()
    assert report["accuracy"] == pytest.approx(expected.accuracy)
    assert report["loss"] == pytest.approx(expected.loss, rel=1e-4)
    assert report["files"] == [str(output / "confusion.png"), str(output / "evaluation.json")]
    saved = json.loads((output / "evaluation.json").read_text(encoding="utf-8"))
    assert saved.items() <= report.items()
    assert matplotlib.image.imread(output / "confusion.png").std() > 0.05


def test_data_is_what_the_network_was_trained_with_unless_given(run: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "other", test=7)
    own = json.loads(_run("evaluate", run, "--json").stdout)
    other = json.loads(_run("evaluate", run, "--json", "--data", tmp_path / "other").stdout)
    assert (own["images"], own["trained_with_this_data"]) == (60, True)
    assert (other["images"], other["trained_with_this_data"]) == (7, False)
    done = _run("evaluate", run, "--data", tmp_path / "other")
    assert f"{run / 'best.pt'} was trained with other data than other." in done.stdout


def test_built_in_digits(run: Path, network: reference.CapsNet) -> None:
    write_checkpoint(run / "digits.pt", "pytorch", CONFIG, network.state_dict())
    done = _run("evaluate", run / "digits.pt", "--json")
    assert (json.loads(done.stdout)["images"], json.loads(done.stdout)["data"]) == (500, "digits")


@pytest.mark.full
def test_figures(run: Path, expected: Evaluation) -> None:
    other = run.parent / "other"
    other.mkdir()
    (other / "metrics.csv").write_text(METRICS, encoding="utf-8")
    done = _run("figures", run, other)
    assert done.exit_code == 0, done.output
    assert f"{expected.right} of 60 images are recognised" in done.stdout
    names = ["curves", "reconstructions", "perturbations", "confusion"]
    for name in names:
        assert str(run / "figures" / f"{name}.png") in done.stdout
    sizes = {
        name: matplotlib.image.imread(run / "figures" / f"{name}.png").shape[:2] for name in names
    }
    assert {path.stem for path in (run / "figures").iterdir()} == set(names)
    # Five panels of 7 images beside each other, two of 16 above each other, of 29 pixels each.
    assert sizes["perturbations"][0] > 2 * 16 * 29
    assert sizes["perturbations"][1] > 5 * 7 * 29


@pytest.mark.full
def test_figures_of_one_digit(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "pictures"
    done = _run(
        "figures", run, "--digit", 4, "--output", output, "--json", "--engine", "pytorch",
        "--theme", "both",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    files = json.loads(done.stdout)["files"]
    assert files == [
        str(output / f"{name}{theme}.png")
        for name in ("curves", "reconstructions", "perturbations-4", "confusion")
        for theme in ("", "-dark")
    ]
    corners = [matplotlib.image.imread(file)[0, 0, :3].tolist() for file in files]
    assert all(light == [1.0, 1.0, 1.0] for light in corners[::2])
    assert all(max(dark) < 0.1 for dark in corners[1::2])
    height, width = matplotlib.image.imread(output / "perturbations-4.png").shape[:2]
    assert 2 * 8 * 29 < height < 2 * 8 * 29 + 200
    assert 2 * 2 * 7 * 29 < width < 2 * 2 * 7 * 29 + 200


# ------------------------------------------------------------------------------------- mistakes


def _message(done: Result) -> str:
    assert done.exit_code == 1, done.output
    assert "Traceback" not in done.output
    assert done.stdout == ""
    return done.stderr.splitlines()[-1] if "\n  " not in done.stderr else done.stderr


@pytest.mark.parametrize("command", ["evaluate", "figures"])
def test_no_run(tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = _message(_run(command))
    assert message.startswith("capsnet-loma: capsnet-loma-training")
    assert "does not exist. Expected is" in message
    assert "`capsnet-loma train` has finished an epoch" in message


def test_a_folder_without_a_checkpoint(run: Path) -> None:
    (run / "best.pt").unlink()
    for command in ("evaluate", "figures"):
        message = _message(_run(command, run))
        assert f"{run} has no best.pt. Expected is a checkpoint" in message


def test_damaged_checkpoint(run: Path) -> None:
    content = (run / "best.pt").read_bytes()
    for damaged in (b"", b"hello", content[: len(content) // 2]):
        (run / "best.pt").write_bytes(damaged)
        assert str(run / "best.pt") in _message(_run("evaluate", run))


def test_weights_of_other_sizes(run: Path) -> None:
    other = reference.CapsNet(CapsNetConfig(conv_channels=5, primary_types=2)).state_dict()
    write_checkpoint(run / "best.pt", "loma", CONFIG, other)
    message = _message(_run("evaluate", run))
    assert f"{run / 'best.pt'} has weights that do not fit the sizes it names" in message


def test_images_of_another_size(run: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "large", size=32)
    for command in ("evaluate", "figures"):
        message = _message(_run(command, run, "--data", tmp_path / "large"))
        assert (
            f"{run / 'best.pt'} is a network for images of 28x28 pixels in 10 classes, but "
            f"{tmp_path / 'large'} has images of 32x32 pixels in 10 classes" in message
        )
        assert "--data" in message


def test_missing_data(run: Path) -> None:
    (run.parent / "data" / "t10k-labels-idx1-ubyte").unlink()
    message = _message(_run("evaluate", run))
    assert f"{run.parent / 'data'} has no t10k-labels-idx1-ubyte" in message


def test_damaged_metrics(run: Path) -> None:
    (run / "metrics.csv").write_text("epoch\n1\n", encoding="utf-8")
    message = _message(_run("figures", run))
    assert f"{run / 'metrics.csv'} is damaged: its first line has no column" in message
    assert not (run / "figures").exists()


def test_pictures_that_cannot_be_written(run: Path) -> None:
    (run / "figures").write_text("a file is in the way", encoding="utf-8")
    done = _run("figures", run, "--engine", "pytorch")
    assert done.exit_code == 1
    assert str(run / "figures") in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--digit", "10"), "--digit 10: the classes are 0 to 9"),
        (("--digit", "-1"), "-1 is not in the range"),
        (("--engine", "numpy"), "'numpy' is not one of"),
        (("--batch", "0"), "0 is not in the range"),
        (("--threads", "0"), "0 is not in the range"),
    ],
)
def test_wrong_use_ends_with_2(run: Path, arguments: tuple[str, str], message: str) -> None:
    done = _run("figures", run, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
