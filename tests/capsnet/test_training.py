"""``capsnet-loma train`` in one process: it learns, and goes on as if it had never stopped."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import filelock
import pytest
from sampled import one_in
import torch
from click.testing import CliRunner, Result
from trainings import BATCH, STEPS, arguments, assert_equal, assert_same, rows, start, write_images

from capsnet_loma.commands.cli import main
from capsnet_loma.training import checkpoint
from capsnet_loma.training.loop import Trainer
from loma import specialise

ENGINES = ("loma", "pytorch")
EPOCHS = 3


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """What a command sets in its process is set back."""
    threads = torch.get_num_threads()
    thresholds = specialise.use(specialise.Thresholds())
    yield
    specialise.use(thresholds)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


Train = Callable[..., Result]


@pytest.fixture(scope="module")
def train(data: Path) -> Train:
    """Runs the command in this process."""

    def run(output: Path, *options: str, epochs: int = EPOCHS, threads: int | None = 1) -> Result:
        words = ["--epochs", str(epochs), *options]
        if threads is not None:
            words += ["--threads", str(threads)]
        result = CliRunner().invoke(main, arguments(data, output, *words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture(scope="module")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An uninterrupted run on each engine."""
    folders = {}
    for engine in ENGINES:
        folders[engine] = tmp_path_factory.mktemp(engine)
        result = train(folders[engine], "--engine", engine)
        assert result.exit_code == 0, result.output
    return folders


def _at_step(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """Does something in the middle of the so-manieth step of the process, counted from 1."""
    step, count = Trainer._step, [0]

    def wrapped(*arguments: Any) -> bool:
        count[0] += 1
        if count[0] == number:
            act()
        return step(*arguments)

    monkeypatch.setattr(Trainer, "_step", wrapped)


def _fails(result: Result, *parts: str, code: int = 1) -> str:
    """One message, which has these parts."""
    assert result.exit_code == code, result.output
    text = result.stderr
    for line in ("compiling the layers ...\n", "making the kernels ...\n"):
        text = text.replace(line, "")
    for part in parts:
        assert part in text
    if code == 1:
        assert text.startswith("capsnet-loma: ")
        assert "Traceback" not in text
    return text


# ------------------------------------------------------------------------------------ learning


@pytest.mark.full
def test_both_engines_begin_alike_and_learn(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, losses = {}, {}
    step = Trainer._step
    for engine in ENGINES:
        seen: list[float] = []

        def noted(trainer: Trainer, *rest: Any, seen: list[float] = seen) -> bool:
            result = step(trainer, *rest)
            seen.append(trainer.sums.loss / BATCH)
            return result

        with monkeypatch.context() as patched:
            patched.setattr(Trainer, "_step", noted)
            output = tmp_path / engine
            _at_step(patched, 1, partial(shutil.copy, output / "last.pt", tmp_path))
            options = ("--engine", engine, "--lr", "0.005", "--shift", "0")
            assert train(output, *options, epochs=5).exit_code == 0
        first[engine] = checkpoint.read(tmp_path / "last.pt")
        losses[engine] = seen
    assert first["loma"].step == first["pytorch"].step == 0
    assert_equal(first["loma"].model, first["pytorch"].model)
    assert len(losses["loma"]) == 5 * STEPS
    for one, other in zip(losses["loma"][:STEPS], losses["pytorch"][:STEPS], strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    for engine in ENGINES:
        found = [float(row["train_loss"]) for row in rows(tmp_path / engine)]
        assert found[-1] < 0.8 * found[0], engine


@pytest.mark.parametrize("optimiser", one_in(3, [("adamw",), ("sgd",), ("sgd", "--nesterov")], 2))
def test_optimisers(train: Train, tmp_path: Path, optimiser: tuple[str, ...]) -> None:
    """Both engines make the same of the options, in momentum's second step too."""
    options = ("--lr", "0.01", "--weight-decay", "0.1", "--optimiser", *optimiser)
    for engine in ENGINES:
        result = train(tmp_path / engine, "--engine", engine, *options, epochs=1)
        assert result.exit_code == 0, result.output
    found, expected = (checkpoint.read(tmp_path / engine / "last.pt").model for engine in ENGINES)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-4)


def test_metrics(whole: dict[str, Path]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    output = whole["loma"]
    found = rows(output)
    assert [row["epoch"] for row in found] == ["1", "2", "3"]
    assert [row["step"] for row in found] == [str(STEPS * epoch) for epoch in (1, 2, 3)]
    rates = [float(row["learning_rate"]) for row in found]
    assert rates == pytest.approx([0.001, 0.00095, 0.0009025])
    board = EventAccumulator(str(output / "tensorboard")).Reload()
    tags = {"loss/train": "train_loss", "loss/test": "test_loss", "accuracy/test": "test_accuracy"}
    for tag, column in tags.items():
        events = board.Scalars(tag)
        assert [event.step for event in events] == [1, 2, 3]
        values = [float(row[column]) for row in found]
        assert [event.value for event in events] == pytest.approx(values, rel=1e-6)
    last = checkpoint.read(output / "last.pt")
    best = max(found, key=lambda row: (float(row["test_accuracy"]), -float(row["test_loss"])))
    assert last.best["epoch"] == int(best["epoch"])
    assert checkpoint.read(output / "best.pt").epoch == int(best["epoch"])
    assert (last.epoch, last.step) == (EPOCHS, 0)


def test_json(train: Train, tmp_path: Path) -> None:
    result = train(tmp_path / "run", "--engine", "pytorch", "--json", epochs=1)
    report = json.loads(result.stdout)
    assert report["complete"]
    assert (report["epoch"], report["step"]) == (1, 0)
    assert report["best"]["epoch"] == 1
    assert [Path(file).name for file in report["files"]] == ["best.pt", "last.pt", "metrics.csv"]


def test_evaluated_and_drawn(whole: dict[str, Path], tmp_path: Path) -> None:
    output = whole["loma"]
    result = CliRunner().invoke(main, ["evaluate", str(output), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    best = checkpoint.read(output / "best.pt").best
    assert report["accuracy"] == best["accuracy"]
    assert report["loss"] == pytest.approx(best["loss"], rel=1e-5)
    runs = [str(folder) for folder in whole.values()]
    result = CliRunner().invoke(main, ["figures", *runs, "--output", str(tmp_path / "pictures")])
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "pictures").glob("*.png"))) >= 4


# ---------------------------------------------------------------------------------- going on


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_continued(
    train: Train,
    whole: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    number: signal.Signals,
) -> None:
    output = tmp_path / "run"
    for step, resume in ((2, ()), (STEPS, ("--resume",)), (1, ("--resume",))):
        with monkeypatch.context() as patched:
            _at_step(patched, step, lambda: signal.raise_signal(number))
            result = train(output, "--engine", engine, *resume)
        assert result.exit_code == 128 + number
        assert re.search(r"Stopped in epoch \d after step \d of 6; .*last\.pt has all of it",
                         result.stderr)  # fmt: skip
        assert "--resume" in result.stderr
    assert checkpoint.read(output / "last.pt").step == 3
    result = train(output, "--resume")
    assert result.exit_code == 0, result.output
    assert f"Going on from {output / 'last.pt'}: 1 epochs and 3 of 6 steps" in result.stdout
    assert_same(output, whole[engine])


def test_the_number_of_threads_stays(
    train: Train, whole: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrix products round otherwise with another one."""
    output = tmp_path / "run"
    with monkeypatch.context() as patched:
        _at_step(patched, 4, lambda: signal.raise_signal(signal.SIGINT))
        train(output)
    torch.set_num_threads(3)
    assert train(output, "--resume", threads=None).exit_code == 0
    assert torch.get_num_threads() == 1
    assert_same(output, whole["loma"])
    result = train(output, "--resume", threads=2, epochs=4)
    assert result.exit_code == 0
    assert "2 threads instead of 1: numbers may be rounded otherwise." in result.stdout
    assert checkpoint.read(output / "last.pt").settings["threads"] == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_more_epochs(train: Train, whole: dict[str, Path], tmp_path: Path, engine: str) -> None:
    output = tmp_path / "run"
    assert train(output, "--engine", engine, epochs=1).exit_code == 0
    result = train(output, "--resume", epochs=1)
    assert result.exit_code == 0
    assert "All 1 epochs are done" in result.stdout
    assert train(output, "--resume").exit_code == 0
    assert_same(output, whole[engine])


def test_lost_between_metrics_and_checkpoint(
    train: Train, whole: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch whose numbers were written, but whose checkpoint was not, is trained again."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Lost(Exception):
        pass

    def lose(*_: object) -> None:
        raise Lost

    output = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_save_epoch", lose)
        with pytest.raises(Lost):
            train(output)
    assert len(rows(output)) == 1
    assert checkpoint.read(output / "last.pt").epoch == 0
    time.sleep(1.1)  # TensorBoard reads its files in the order of whole seconds
    assert train(output, "--resume").exit_code == 0
    assert_same(output, whole["loma"])
    board = EventAccumulator(str(output / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("loss/train")] == [1, 2, 3]


def test_continued_without_a_checkpoint(
    train: Train, whole: dict[str, Path], tmp_path: Path
) -> None:
    output = tmp_path / "run"
    result = train(output, "--engine", "pytorch", "--resume")
    assert result.exit_code == 0
    assert "has no checkpoint yet" in result.stdout
    assert_same(output, whole["pytorch"])


def test_continued_from_the_best_where_the_last_is_missing(
    train: Train, whole: dict[str, Path], tmp_path: Path
) -> None:
    output = shutil.copytree(whole["pytorch"], tmp_path / "run")
    (output / "last.pt").write_bytes(b"")
    _fails(train(output, "--resume"), "last.pt is damaged", "--resume goes on from best.pt")
    (output / "last.pt").unlink()
    result = train(output, "--resume")
    assert result.exit_code == 0, result.output
    assert f"Going on from {output / 'best.pt'}" in result.stdout or "are done" in result.stdout


# ------------------------------------------------------------------------------------- refusals


def test_settings_cannot_change(train: Train, whole: dict[str, Path], tmp_path: Path) -> None:
    output = shutil.copytree(whole["pytorch"], tmp_path / "run")
    before = (output / "last.pt").read_bytes()
    options = ("--lr", "0.1", "--batch", "20", "--engine", "loma", "--optimiser", "sgd")
    text = _fails(train(output, "--resume", *options), code=2)
    text = " ".join(text.split())
    for change in ("--lr was 0.001, now 0.1", "--batch was 10, now 20",
                   "--engine was pytorch, now loma", "--optimiser was adam, now sgd"):  # fmt: skip
        assert change in text
    assert "Only --epochs, --data, --threads may change" in text
    assert (output / "last.pt").read_bytes() == before


def test_other_images(train: Train, whole: dict[str, Path], tmp_path: Path) -> None:
    from idx_files import write_folder

    output = shutil.copytree(whole["pytorch"], tmp_path / "run")
    write_folder(tmp_path / "others", train=61, test=25, size=20)
    result = train(output, "--resume", "--data", str(tmp_path / "others"))
    _fails(result, "last.pt was trained on other images than those of 'others'", "--data")


def test_the_same_images_elsewhere(
    train: Train, whole: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    output = shutil.copytree(whole["pytorch"], tmp_path / "run")
    moved = shutil.copytree(data, tmp_path / "moved")
    assert train(output, "--resume", "--data", str(moved)).exit_code == 0


def test_a_run_is_not_overwritten_unasked(
    train: Train, whole: dict[str, Path], tmp_path: Path
) -> None:
    output = shutil.copytree(whole["pytorch"], tmp_path / "run")
    before = (output / "last.pt").read_bytes()
    _fails(train(output), "has a run already (last.pt)", "--resume", "--overwrite", "--output")
    # What cannot begin does not cost the run that is there.
    _fails(train(output, "--overwrite", "--data", str(tmp_path / "none")), "none")
    assert (output / "last.pt").read_bytes() == before
    assert len(rows(output)) == EPOCHS
    assert train(output, "--overwrite", "--engine", "pytorch", epochs=1).exit_code == 0
    assert len(rows(output)) == 1


def test_one_training_at_a_time(train: Train, tmp_path: Path) -> None:
    with filelock.FileLock(tmp_path / ".lock"):
        _fails(train(tmp_path), f"another training writes to {tmp_path}", "--output")
    assert train(tmp_path, "--engine", "pytorch", epochs=1).exit_code == 0  # the file is no lock


def test_options_that_exclude_each_other(train: Train, tmp_path: Path) -> None:
    _fails(train(tmp_path, "--resume", "--overwrite"), "exclude each other", code=2)
    _fails(train(tmp_path, "--nesterov"), "--nesterov needs --optimiser sgd", code=2)
    assert not list(tmp_path.iterdir())


def test_sizes_that_do_not_fit(train: Train, tmp_path: Path) -> None:
    _fails(train(tmp_path / "1", "--batch", "61"), "a batch of 61 images", "from 1 to 60")
    _fails(train(tmp_path / "2", "--shift", "20"), "shift 20", "20 pixels")


def test_an_output_that_cannot_be_written(train: Train, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _fails(train(tmp_path / "file" / "run"), "cannot be written to: Not a directory", "--output")


# --------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    "content", [b"epoch\n", b"\xff\x00", b"{header}1,6,x,x,x,x,x,x,x\n", b"{header}1,6\n"]
)
def test_damaged_metrics(
    train: Train, whole: dict[str, Path], tmp_path: Path, content: bytes
) -> None:
    output = shutil.copytree(whole["pytorch"], tmp_path / "run")
    header = (output / "metrics.csv").read_bytes().splitlines(keepends=True)[0]
    if content == b"epoch\n":  # no rows, but no header of ours either
        content = b"epoch\n1\n"
    damaged = content.replace(b"{header}", header)
    (output / "metrics.csv").write_bytes(damaged)
    _fails(train(output, "--resume", epochs=4), "metrics.csv is damaged", "Move it away")
    assert (output / "metrics.csv").read_bytes() == damaged
    (output / "metrics.csv").unlink()
    assert train(output, "--resume", epochs=4).exit_code == 0
    assert [row["epoch"] for row in rows(output)] == ["4"]


def test_damaged_images(train: Train, data: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(data, tmp_path / "images")
    file = copy / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:1000])
    _fails(train(tmp_path / "run", "--data", str(copy)), str(file))


def test_a_loss_that_is_no_number(train: Train, tmp_path: Path) -> None:
    result = train(tmp_path, "--optimiser", "sgd", "--lr", "1e30", "--checkpoint-every", "1")
    text = _fails(result, "in epoch 1, step", f"{tmp_path / 'last.pt'} is from before", "--lr")
    assert re.match(r"capsnet-loma: the loss is (nan|inf) in", text)
    checkpoint.read(tmp_path / "last.pt")


@pytest.mark.parametrize("stopped", [False, True])
def test_weights_that_are_no_numbers_are_not_kept(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """Gradients overflow in a step whose loss is finite; the checkpoint after it is not written."""
    step, count = Trainer._step, [0]

    def overflowing(trainer: Trainer, *rest: Any) -> bool:
        count[0] += 1
        if count[0] != 4:
            return step(trainer, *rest)
        if stopped:
            signal.raise_signal(signal.SIGINT)
        weight = trainer.model.network.get_parameter("fc1.weight")
        hook = weight.register_hook(lambda gradient: gradient * torch.inf)
        try:
            return step(trainer, *rest)
        finally:
            hook.remove()

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_step", overflowing)
        result = train(tmp_path, "--engine", "pytorch")
    _fails(result, "fc1.weight has values that are no finite numbers in epoch 1, step 4", "--lr")
    found = checkpoint.read(tmp_path / "last.pt")
    assert found.step == 2
    assert all(weight.isfinite().all() for weight in found.model.values())
    assert train(tmp_path, "--resume").exit_code == 0


def test_a_board_that_cannot_be_written(train: Train, tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("")
    result = train(tmp_path, "--engine", "pytorch")
    _fails(result, f"{tmp_path / 'tensorboard'} cannot be written: File exists", "--resume")
    assert checkpoint.read(tmp_path / "last.pt").step == 4


@pytest.mark.parametrize("fatal", ["last.pt", "metrics.csv"])
def test_a_full_disk(
    train: Train,
    whole: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fatal: str,
) -> None:
    output, real = tmp_path / "run", os.fsync

    def fail(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(f"/{fatal}.tmp"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patched:
        _at_step(patched, 3, lambda: patched.setattr(os, "fsync", fail))
        result = train(output)
    _fails(result, f"{fatal} cannot be written: No space left", "the one from before", "--resume")
    assert not list(output.glob("*.tmp"))
    assert checkpoint.read(output / "last.pt").step == (2 if fatal == "last.pt" else 4)
    assert train(output, "--resume").exit_code == 0
    assert_same(output, whole["loma"])


# ------------------------------------------------------------------------- in its own process


@pytest.mark.full
def test_interrupted_from_outside(
    train: Train, data: Path, whole: dict[str, Path], tmp_path: Path
) -> None:
    """Ctrl-C between two steps, then SIGTERM, of a process that trains slowly."""
    output = tmp_path / "run"
    slow = (
        "import time\n"
        "from capsnet_loma.training.loop import Trainer\n"
        "step = Trainer._step\n"
        "def slowly(*arguments):\n"
        "    time.sleep(0.05)\n"
        "    return step(*arguments)\n"
        "Trainer._step = slowly\n"
    )
    words = arguments(data, output, "--epochs", str(EPOCHS), "--threads", "1")
    for number, resume in ((signal.SIGINT, ()), (signal.SIGTERM, ("--resume",))):
        process = start([*words, *resume], slow)
        _wait_for_a_step(output, process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + number, errors
        assert "Stopped in epoch" in errors
        assert "Traceback" not in errors
        assert f"--output {output}" in errors
    assert train(output, "--resume").exit_code == 0
    assert_same(output, whole["loma"])


@pytest.mark.full
def test_a_second_interruption_ends_at_once(data: Path, tmp_path: Path) -> None:
    """Also one that comes while the first one's checkpoint is written."""
    code = (
        "import os, signal\n"
        "from capsnet_loma.training.loop import Trainer\n"
        "step = Trainer._step\n"
        "def twice(*arguments):\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    done = step(*arguments)\n"
        "    real = os.fsync\n"
        "    os.fsync = lambda descriptor: signal.raise_signal(signal.SIGINT)\n"
        "    return done\n"
        "Trainer._step = twice\n"
    )
    output = tmp_path / "run"
    words = arguments(data, output, "--engine", "pytorch", "--threads", "1")
    _, errors = (process := start(words, code)).communicate(timeout=120)
    assert process.returncode == 130
    assert errors.endswith("capsnet-loma: interrupted\n")
    assert "Traceback" not in errors
    assert checkpoint.read(output / "last.pt").step == 0
    assert not list(output.glob("*.tmp"))


@pytest.mark.full
def test_no_kernel_is_asked_for_once_steps_have_begun(data: Path, tmp_path: Path) -> None:
    """They would come at any time and round otherwise. Before that, the network's are."""
    asked = tmp_path / "asked.json"
    code = f"""
import atexit, json
from pathlib import Path
from capsnet_loma.training.loop import Trainer
from loma import specialise
asked, begun = [], []
def ask(module, name, slots, is_double, now):
    asked.append([name.split("::")[1], bool(begun), bool(specialise._declined)])
specialise._Module.ask = ask
step = Trainer._step
Trainer._step = lambda *arguments: begun.append(1) or step(*arguments)
atexit.register(lambda: Path({str(asked)!r}).write_text(json.dumps(asked)))
"""
    words = arguments(data, tmp_path / "run", "--epochs", "2", "--threads", "1")
    process = start(words, code, {"LOMA_SPECIALISATIONS": "8"})
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    found = json.loads(asked.read_text())
    assert not [name for name, begun, _ in found if begun]
    wanted = sorted(name for name, _, declined in found if not declined)
    layers = ("convolution", "decoder", "digit_capsules", "primary", "squash")
    assert wanted == sorted(
        f"{name}__{part}" for name in layers for part in ("forward", "backward")
    )
    assert "margin_loss" in {name for name, _, declined in found if declined}


def _wait_for(condition: Callable[[], bool], process: Any) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def _wait_for_a_step(output: Path, process: Any) -> None:
    before = _steps_of(output)
    _wait_for(lambda: _steps_of(output) > before, process)


def _steps_of(output: Path) -> int:
    file = output / "last.pt"
    if not file.exists():
        return 0
    found = checkpoint.read(file)
    return found.epoch * STEPS + found.step
