"""Checkpoints: all that a run needs to go on, in one file that is whole or not there.

The file is what ``torch.save`` writes, with a checksum as the comment of that ZIP archive, and
``torch.load(path, weights_only=True)`` reads it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capsnet_loma.config import CapsNetConfig
from capsnet_loma.training.settings import Engine, Settings

FORMAT, VERSION = "capsnet-loma checkpoint", 1
SEAL = b"capsnet-loma sha256 "
TEMPORARY = ".tmp"


class CheckpointError(Exception):
    """A checkpoint that cannot be used or written: the file, what is wrong, what to do."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state between two steps.

    ``settings`` has the fields of :class:`~capsnet_loma.training.settings.Settings`; ``data`` is
    the digest of the images. ``epoch`` counts the epochs that are complete, ``step`` the steps of
    the next one that are done, ``sums`` what they added up; ``seconds`` is the time that training
    took so far. ``best`` is the epoch with the best test accuracy, with its accuracy and loss, {}
    before the first. ``generator`` is the state of torch's generator on the CPU.
    """

    engine: Engine
    config: CapsNetConfig
    settings: dict[str, Any]
    data: str
    model: dict[str, Tensor]
    optimiser: dict[str, Any]
    scheduler: dict[str, Any]
    epoch: int
    step: int
    sums: dict[str, float]
    seconds: float
    best: dict[str, float]
    generator: Tensor


_TYPES: dict[str, type] = {
    "engine": str, "config": dict, "settings": dict, "data": str, "model": dict,
    "optimiser": dict, "scheduler": dict, "epoch": int, "step": int, "sums": dict,
    "seconds": float, "best": dict, "generator": Tensor,
}  # fmt: skip
_OPTIONAL: dict[str, type] = {"data": str, "threads": int}  # of the settings


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Replaces the file by a rename: whoever is killed meanwhile leaves the old one as it was.

    Raises CheckpointError when it cannot be written, on a full disk for example.
    """
    content = {field.name: getattr(checkpoint, field.name) for field in fields(Checkpoint)}
    content["config"] = asdict(checkpoint.config)
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "version": VERSION, **content}, buffer)
    replace(path, sealed(buffer.getbuffer()))


def replace(path: Path, content: bytes | memoryview) -> None:
    """Writes a file whole, or leaves the one that is there. Raises CheckpointError."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        temporary.unlink(missing_ok=True)  # it may be a second name of a file that is to stay
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        kept = "the one from before is still there" if path.exists() else "there is none yet"
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror or error}; {kept}. Make room or choose "
            "another folder, then go on with --resume."
        ) from error
    finally:
        _remove(temporary)
    _sync_folder(path.parent)


def link(source: Path, path: Path) -> None:
    """Gives a checkpoint the name of another file, in its place. Raises CheckpointError."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        temporary.unlink(missing_ok=True)
        os.link(source, temporary)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError:  # a file system without links
        replace(path, source.read_bytes())
    finally:
        _remove(temporary)  # it is still there where both were one file already


def _remove(temporary: Path) -> None:
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Makes a rename last, should the machine stop; not all file systems can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read(path: Path) -> Checkpoint:
    """Raises CheckpointError when the file is missing, damaged, or none of ours."""
    content = _load(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _damaged(path, f"it has no format '{FORMAT}'")
    if content.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {content.get('version')} of the format, expected is {VERSION}: it "
            "was written by another version of capsnet-loma. Use that one."
        )
    for name, kind in _TYPES.items():
        if not isinstance(content.get(name), kind):
            found = type(content[name]).__name__ if name in content else "nothing"
            raise _damaged(path, f"it has {found} for '{name}', expected is {kind.__name__}")
    _check_kinds(path, "settings", content["settings"], asdict(Settings()))
    _check_kinds(path, "config", content["config"], asdict(CapsNetConfig()))
    if content["engine"] not in ("loma", "pytorch"):
        raise _damaged(path, f"its engine is {content['engine']!r}")
    try:
        config = CapsNetConfig(**content["config"])
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    values = {name: content[name] for name in _TYPES}
    return Checkpoint(**{**values, "config": config})


def _check_kinds(path: Path, name: str, found: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Raises CheckpointError unless the names are those of the defaults, and so are the types."""
    if found.keys() != defaults.keys():
        different = ", ".join(sorted(map(str, found.keys() ^ defaults.keys())))
        raise _damaged(path, f"what its {name} lack or have too much is: {different}")
    for key, value in found.items():
        if type(value) not in (type(defaults[key]), _OPTIONAL.get(key)):
            raise _damaged(path, f"its {name} have {value!r} for '{key}'")


def sealed(archive: memoryview) -> bytes:
    """A ZIP archive, which ends with the length of its empty comment, with :func:`_seal` as that.

    PyTorch does not compare the checksums of an archive, and its directory has none.
    """
    content = bytes(archive[:-2]) + len(_seal(b"")).to_bytes(2, "little")
    return content + _seal(content)


def _seal(content: bytes | memoryview) -> bytes:
    return SEAL + hashlib.sha256(content).hexdigest().encode()


def _load(path: Path) -> Any:
    try:
        found = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} does not exist. Expected is a checkpoint that `capsnet-loma train` wrote."
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    content, seal = found[: -len(_seal(b""))], found[-len(_seal(b"")) :]
    if not seal.startswith(SEAL):
        raise _damaged(path, f"its {len(found):,} bytes do not end with a checksum")
    if seal != _seal(content):
        raise _damaged(path, "its checksum is wrong")
    try:
        return torch.load(io.BytesIO(found), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever pickle makes of what this version of torch cannot read
        reason = str(error).partition("\n")[0]
        raise _damaged(path, f"PyTorch cannot read it: {reason}") from error


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged, or no checkpoint: {what}. Use another one (a run's folder has last.pt "
        "and best.pt), or train anew."
    )
