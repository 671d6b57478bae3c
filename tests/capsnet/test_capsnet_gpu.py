"""CapsNet on a GPU; and, without one, what differs there from the CPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import fresh
import pytest
import shared_training
import torch
from click.testing import CliRunner
from conftest import ROOT
from trainings import BATCH, arguments, assert_equal, assert_same, rows, state, write_images

from capsnet_loma import CapsNet, capsule_loss
from capsnet_loma.commands.cli import main
from capsnet_loma.commands.console import Output
from capsnet_loma.profiling.cases import SMALL_NETWORK
from capsnet_loma.profiling.compare import ALL, compare, relative_error
from capsnet_loma.profiling.gpu_work import GpuWork
from capsnet_loma.profiling.plots import plot_profile
from capsnet_loma.profiling.processes import Checksums, Sample, Version
from capsnet_loma.profiling.profile import Measurement, Profile, profile
from capsnet_loma.profiling.tables import show_profile
from capsnet_loma.training import TrainingError
from capsnet_loma.training.distributed import Job
from capsnet_loma.training.loop import Trainer
from capsnet_loma.training.run import Run
from capsnet_loma.training.settings import Engine, Optimiser, Settings
from capsnet_loma.training.signals import Stop
from loma import optim
from capsnet_loma.profiling.fit import linear_fit

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# ------------------------------------------------------------------------- numbers that come late


def _trainer(late: bool, **changes: float) -> Trainer:
    settings = Settings(
        engine="pytorch", network="tiny", epochs=2, batch=6, optimiser="sgd",
        learning_rate=changes.get("learning_rate", 0.1),
    )  # fmt: skip
    data = shared_training.dataset()
    trainer = Trainer(settings, settings.config(data), data, Job())
    trainer._late = late
    return trainer


def _rows(trainer: Trainer, folder: Path, stop: Stop | None = None) -> list[list[float]]:
    folder.mkdir(exist_ok=True)
    silent = shared_training._silent
    found = trainer.epochs(Run(folder), None, stop or Stop(), 2, silent)
    return [[r.train_loss, r.train_accuracy, r.test_loss, r.test_accuracy] for r in found]


def test_late_numbers_are_the_same(tmp_path: Path) -> None:
    """A step's loss is read behind the next step: rows, weights and checkpoints do not tell."""
    own, late = _trainer(late=False), _trainer(late=True)
    assert _rows(late, tmp_path / "late") == _rows(own, tmp_path / "own")
    for name in ("last.pt", "best.pt"):
        assert_equal(state(tmp_path / "late" / name), state(tmp_path / "own" / name))
    assert late._last is None


def test_late_numbers_are_in_the_checkpoint_of_a_stop(tmp_path: Path) -> None:
    found = []
    for late in (False, True):
        trainer, stop, folder = _trainer(late), Stop(), tmp_path / str(late)

        def in_the_second(*_: object, trainer: Trainer = trainer, stop: Stop = stop) -> None:
            stop.number = 2 if trainer.step == 1 else 0

        trainer.model.network.register_forward_hook(in_the_second)
        assert _rows(trainer, folder, stop) == []
        found.append(state(folder / "last.pt"))
    assert_equal(found[1], found[0])
    assert found[0]["step"] == 2
    assert found[0]["sums"]["images"] == 12


def test_a_late_loss_that_is_no_number(tmp_path: Path) -> None:
    """It is found out before anything is written."""
    trainer = _trainer(late=True)
    trainer.step = 0
    with torch.no_grad():
        trainer.model.network.digit_weight.fill_(torch.nan)
    with pytest.raises(TrainingError, match="the loss is nan in epoch 1, step 1"):
        _rows(trainer, tmp_path)
    assert not (tmp_path / "last.pt").exists()


# ------------------------------------------------------------------------------------- profile


def _measured(key: str, seconds: float, kernels: float | None) -> Measurement:
    samples = tuple(Sample(n, n * seconds, 0, 0, None, None) for n in (1, 2, 3, 4))
    fit = linear_fit([1, 2, 3, 4], [s.seconds for s in samples])
    busy = None if kernels is None else 0.5 * seconds
    work = GpuWork("A GPU", kernels, kernels, busy, 10**9, 10**8)
    return Measurement(
        Version(key, key, (), device="cuda"), Checksums(0.5, {}), samples, 400 * 2**20,
        fit, fit, fit, None, None, work,
    )  # fmt: skip


@pytest.mark.parametrize("kernels", [321.0, None])
def test_a_gpu_profile_is_shown(
    kernels: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where torch's profiler sees no kernels, the rest is there."""
    measured = _measured("torch", 4e-3, kernels), _measured("loma", 1e-3, kernels)
    result = Profile(100, 8, SMALL_NETWORK, measured)
    show_profile(Output(), result)
    text = capsys.readouterr().out
    assert "batch of 100, A GPU" in text
    assert "page faults" not in text
    assert "0.25x" in text
    assert ("321" in text) == (kernels is not None)
    assert "2,200" in text  # GB/s: 2 * 1.1 GB in a millisecond
    data = json.loads(json.dumps(result.to_json()))["versions"][1]
    assert data["bytes_per_second"] == pytest.approx(2.2e12)
    assert data["kernels_per_iteration"] == (kernels or "not available on this machine")
    assert "minor_faults_per_iteration" not in data
    plot_profile(result, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@needs_gpu
def test_profile() -> None:
    result = profile(None, SMALL_NETWORK, batch=4, seconds=0.2, device="cuda")
    assert [m.version.key for m in result.measurements] == ["torch", "loma"]
    for m in result.measurements:
        assert m.gpu is not None
        assert 0 < m.gpu.made_bytes < 2**30
        assert 0 < m.peak_memory < 2**30
    loma, torch_ = (m.gpu.kernels for m in reversed(result.measurements) if m.gpu)
    assert loma is None or torch_ is None or loma < torch_


# ------------------------------------------------------------------------------- the stand-in

ON_SHIM = """
import sys
import devices
devices.use("shim")
import shared_training, torch
from pathlib import Path
from capsnet_loma.training.distributed import Job
torch.set_num_threads(1)
result = shared_training.trained("loma", Job(), Path(sys.argv[1]))
torch.save(result, sys.argv[2])
"""


@pytest.mark.full
def test_training_by_a_gpus_kernels(tmp_path: Path) -> None:
    """Network, losses and optimiser as a GPU would run them, compiled by g++: the gradients and
    the weights of the CPU within rounding."""
    expected = shared_training.trained("loma", Job(), tmp_path / "own")
    support = ROOT / "tests" / "support"
    path = os.pathsep.join(map(str, (ROOT, support, support / "cuda_shim")))
    command = ["-c", ON_SHIM, tmp_path / "shim", tmp_path / "result.pt"]
    done = fresh.run(command, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "result.pt")
    for own, wanted in zip(found["gradients"], expected["gradients"], strict=True):
        for name, gradient in wanted.items():
            assert relative_error(own[name], gradient)[1] < 1e-5, name
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight)
    for own, wanted in zip(found["rows"], expected["rows"], strict=True):
        assert own == pytest.approx(wanted)


# ------------------------------------------------------------------------------------- the GPU


@needs_gpu
@pytest.mark.parametrize("function", ALL)
def test_compare(function: str) -> None:
    report = compare(names=(function,), device="cuda")
    assert report.ok, report.failures()


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Runs ``capsnet-loma train``; the folder of the run."""
    folder = tmp_path_factory.mktemp("gpu")
    data = write_images(folder / "images")

    def run(name: str, *options: str) -> Path:
        words = arguments(data, folder / name, "--threads", "1", *options)
        done = CliRunner().invoke(main, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return folder / name

    return run


@needs_gpu
@pytest.mark.parametrize("engine", ["loma", "pytorch"])
def test_training(train: Callable[..., Path], engine: Engine) -> None:
    """As on the CPU within rounding; resumed bit for bit; either device goes on from the other's
    checkpoint."""
    words = ("--engine", engine)
    whole = train(f"whole-{engine}", *words, "--device", "cuda", "--epochs", "3")
    part = train(f"part-{engine}", *words, "--device", "cuda:0", "--epochs", "2")
    on_cpu = train(f"cpu-{engine}", *words, "--epochs", "2")
    losses = [[float(row["train_loss"]) for row in rows(run)] for run in (part, on_cpu)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
    train(part.name, *words, "--device", "cuda", "--epochs", "3", "--resume")
    assert_same(part, whole)
    train(part.name, *words, "--epochs", "4", "--resume")
    train(part.name, *words, "--epochs", "5", "--resume", "--device", "cuda")
    evaluated = {}
    for device in ("cpu", "cuda"):
        command = ("evaluate", str(part), "--json", "--device", device)
        done = CliRunner().invoke(main, command, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        evaluated[device] = json.loads(done.stdout)
    assert evaluated["cuda"]["loss"] == pytest.approx(evaluated["cpu"]["loss"], rel=1e-2)
    figures = ("figures", str(part), "--device", "cuda", "--engine", engine)
    assert CliRunner().invoke(main, figures, catch_exceptions=False).exit_code == 0


@needs_gpu
@pytest.mark.parametrize("optimiser", ["adam", "adamw", "sgd"])
def test_a_step_waits_for_nothing(optimiser: Optimiser) -> None:
    settings = Settings(network="tiny", batch=BATCH, optimiser=optimiser)
    data = shared_training.dataset()
    job = Job(device=torch.device("cuda", 0))
    trainer = Trainer(settings, settings.config(data), data, job)
    trainer.prepare(lambda what, done, total: None)
    run, stop = Run(Path()), Stop()
    batches = list(trainer.batches.epoch(0))
    for batch in (*batches, *batches):  # kernels for known numbers come, too
        trainer._step(batch, stop, run)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:  # waiting for an event, which reads the step before, is not forbidden
        trainer._step(batches[0], stop, run)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision(dtype: torch.dtype) -> None:
    """Under autocast, with scaled gradients: close to what the same network does without."""
    losses = []
    for enabled in (False, True):
        torch.manual_seed(0)
        net = CapsNet(SMALL_NETWORK).cuda()
        optimiser = optim.Adam(net.parameters())
        size = SMALL_NETWORK.image_size
        images = torch.rand(4, 1, size, size, device="cuda")
        targets = torch.eye(SMALL_NETWORK.classes, device="cuda")
        scaler = torch.amp.GradScaler("cuda", enabled=enabled)
        for _ in range(3):
            optimiser.zero_grad()
            with torch.autocast("cuda", dtype, enabled=enabled):
                loss = capsule_loss(images, targets, *net(images, targets))
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()
        assert loss.dtype == torch.float32
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)
