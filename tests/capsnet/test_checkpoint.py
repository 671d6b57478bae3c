"""Files of checkpoints: whole or not there, and never taken for something else."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from trainings import ROOT, assert_equal

from capsnet_loma.config import CapsNetConfig
from capsnet_loma.training import checkpoint
from capsnet_loma.training.checkpoint import Checkpoint, CheckpointError
from capsnet_loma.training.settings import Settings


def _checkpoint(step: int = 3) -> Checkpoint:
    """Of a network of one layer, after a step of Adam."""
    torch.manual_seed(step)
    layer = torch.nn.Linear(3, 2)
    optimiser = torch.optim.Adam(layer.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.9)
    layer(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    return Checkpoint(
        engine="loma",
        config=CapsNetConfig(conv_channels=8, decoder_hidden=(32, 64)),
        settings=asdict(Settings(network="tiny", data="images")),
        data="digest",
        model=layer.state_dict(),
        optimiser=optimiser.state_dict(),
        scheduler=scheduler.state_dict(),
        epoch=1,
        step=step,
        sums={"loss": 0.1, "seconds": 2.0},
        seconds=1.5,
        best={"epoch": 1, "accuracy": 0.5, "loss": 0.25},
        generator=torch.get_rng_state(),
    )


def _values(found: Checkpoint) -> dict[str, Any]:
    return {field.name: getattr(found, field.name) for field in fields(Checkpoint)}


def _content(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(file, weights_only=True)
    return content


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "last.pt"
    checkpoint.write(path, _checkpoint())
    return path


def _message(file: Path) -> str:
    """What is said about a file that cannot be read; it has the file's name, and one line."""
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read(file)
    text = str(caught.value)
    assert text.startswith(f"{file} ")
    assert "\n" not in text
    return text


def test_what_is_written_is_read(file: Path) -> None:
    assert_equal(_values(checkpoint.read(file)), _values(_checkpoint()))
    assert [path.name for path in file.parent.iterdir()] == ["last.pt"]


def test_other_programs_can_read_it(file: Path) -> None:
    content = _content(file)
    assert content["format"] == "capsnet-loma checkpoint"
    assert_equal(content["model"], _checkpoint().model)
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"capsnet-loma sha256 ")


# ------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("size", [0, 1, 2, 83, 84, 85, 1000, 5000, -85, -84, -83, -40, -1])
def test_truncated(file: Path, size: int) -> None:
    found = file.read_bytes()
    file.write_bytes(found[:size])
    text = _message(file)
    assert "damaged" in text
    assert f"its {len(found[:size]):,} bytes do not end with a checksum" in text


def test_no_flipped_bit_goes_unnoticed(file: Path) -> None:
    found = file.read_bytes()
    bits = {*range(0, 8 * len(found), 101), *range(8 * (len(found) - 120), 8 * len(found))}
    for bit in sorted(bits):
        damaged = bytearray(found)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        assert "checksum" in _message(file), f"bit {bit}"


def test_lost_and_foreign_blocks(file: Path) -> None:
    found = file.read_bytes()
    generator = random.Random(0)
    for _ in range(50):
        start, size = generator.randrange(len(found) - 600), generator.randrange(1, 600)
        block = generator.choice([b"", bytes(size), generator.randbytes(size)])
        damaged = found[:start] + block + found[start + size :]
        if damaged != found:
            file.write_bytes(damaged)
            assert "its checksum is wrong" in _message(file)


def test_something_after_it(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\n")
    assert "do not end with a checksum" in _message(file)


@pytest.mark.parametrize("content", [b"epoch,step\n1,2\n", b"\x80\x02}q\x00.", bytes(10_000)])
def test_foreign_files(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "best.pt"
    file.write_bytes(content)
    assert "damaged, or no checkpoint" in _message(file)


def test_weights_alone(tmp_path: Path) -> None:
    for number, legacy in enumerate((False, True)):
        file = tmp_path / f"{number}.pt"
        torch.save(_checkpoint().model, file, _use_new_zipfile_serialization=not legacy)
        assert "do not end with a checksum" in _message(file)


def test_a_folder(tmp_path: Path) -> None:
    assert "cannot be read: Is a directory" in _message(tmp_path)


def test_no_file(tmp_path: Path) -> None:
    text = _message(tmp_path / "last.pt")
    assert "does not exist" in text
    assert "capsnet-loma train" in text


def test_a_file_that_may_not_be_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)  # modes do not stop everybody
    assert "cannot be read: Permission denied" in _message(file)


# ------------------------------------------------------------------------- whole, but not ours


def _changed(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The file with something else in it, and a checksum that fits."""
    content = _content(file)
    change(content)
    buffer = file.with_name("changed.pt")
    torch.save(content, buffer)
    file.write_bytes(checkpoint.sealed(memoryview(buffer.read_bytes())))


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "format": (lambda c: c.pop("format"), "it has no format 'capsnet-loma checkpoint'"),
    "version": (lambda c: c.update(version=2), "has version 2 of the format, expected is 1"),
    "missing": (lambda c: c.pop("model"), "it has nothing for 'model', expected is dict"),
    "type": (lambda c: c.update(epoch="1"), "it has str for 'epoch', expected is int"),
    "tensor": (lambda c: c.update(generator=[1]), "it has list for 'generator'"),
    "engine": (lambda c: c.update(engine="jax"), "its engine is 'jax'"),
    "settings": (lambda c: c["settings"].pop("decay"), "settings lack or have too much is: decay"),
    "setting": (lambda c: c["settings"].update(batch="50"), "settings have '50' for 'batch'"),
    "data": (lambda c: c["settings"].update(data=1), "settings have 1 for 'data'"),
    "config": (lambda c: c["config"].update(depth=3), "config lack or have too much is: depth"),
    "size": (lambda c: c["config"].update(image_size=9), "image_size 9 is too small"),
    "kind": (lambda c: c["config"].update(classes="10"), "config have '10' for 'classes'"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whole_but_not_ours(file: Path, name: str) -> None:
    change, expected = CHANGES[name]
    _changed(file, change)
    assert expected in _message(file)


def test_nothing_is_executed(tmp_path: Path) -> None:
    """A pickle that calls functions is refused."""
    file = tmp_path / "last.pt"
    torch.save({"format": checkpoint.FORMAT, "run": os.system}, file)
    file.write_bytes(checkpoint.sealed(memoryview(file.read_bytes())))
    assert "PyTorch cannot read it: Weights only load failed" in _message(file)


# ----------------------------------------------------------------------------- failing to write


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_full_disk_leaves_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.write(file, _checkpoint(4))
    assert str(caught.value) == (
        f"{file} cannot be written: No space left on device; the one from before is still there. "
        "Make room or choose another folder, then go on with --resume."
    )
    assert [path.name for path in file.parent.iterdir()] == ["last.pt"]
    assert checkpoint.read(file).step == 3


@pytest.mark.full
def test_a_limit_of_size(tmp_path: Path) -> None:
    """The system refuses the file's second half."""
    program = (
        "import sys; from pathlib import Path; from test_checkpoint import limited_write\n"
        "limited_write(Path(sys.argv[1]))"
    )
    path = os.pathsep.join(
        map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "support", Path(__file__).parent))
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "last.pt")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "last.pt cannot be written: File too large; the one from before" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]
    assert checkpoint.read(tmp_path / "last.pt").step == 3


def limited_write(file: Path) -> None:
    """What the process of the test above does."""
    checkpoint.write(file, _checkpoint())
    half = file.stat().st_size // 2
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (half, half))
    try:
        checkpoint.write(file, _checkpoint(4))
    except CheckpointError as error:
        print(error)


def test_no_folder(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path / "file"):
        if folder.name == "file":
            folder.write_text("")
        with pytest.raises(CheckpointError, match=r"cannot be written: .*; there is none yet"):
            checkpoint.write(folder / "last.pt", _checkpoint())


def test_a_second_name(file: Path) -> None:
    """Later writing of one name does not change the other."""
    best = file.with_name("best.pt")
    for _ in range(2):
        checkpoint.link(file, best)
        assert best.samefile(file)
    checkpoint.write(file, _checkpoint(4))
    assert (checkpoint.read(best).step, checkpoint.read(file).step) == (3, 4)
    assert sorted(path.name for path in file.parent.iterdir()) == ["best.pt", "last.pt"]


@pytest.mark.parametrize("function", ["link", "replace"])
def test_a_file_system_without_links(
    file: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """A copy takes the place of a second name, and writing it does not touch the first one."""
    real, calls = getattr(os, function), []

    def fail_once(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        real(*arguments)

    monkeypatch.setattr(os, function, fail_once)
    best = file.with_name("best.pt")
    checkpoint.link(file, best)
    assert not best.samefile(file)
    assert best.read_bytes() == file.read_bytes()
    assert sorted(path.name for path in file.parent.iterdir()) == ["best.pt", "last.pt"]


def test_a_copy_that_was_left_half_written(file: Path) -> None:
    """What a killed process leaves may be a second name of a checkpoint."""
    os.link(file, file.with_name("best.pt.tmp"))
    checkpoint.write(file.with_name("best.pt"), replace(_checkpoint(), step=4))
    assert checkpoint.read(file).step == 3
    assert not file.with_name("best.pt.tmp").exists()
