"""The cache on disk: folders named by the hash of what they were made from.

``objects/KEY/`` holds files that a compiler made, ``index/KEY.json`` what a program's text led to,
``notes/KEY/`` what was added to that later.
An entry appears by one rename, complete or not at all, so a process that is killed half way leaves
only a temporary folder, and readers need no lock. A lock per key makes a second process wait for
the first instead of compiling the same again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from loma import config

_ABANDONED_SECONDS = 24 * 3600.0


def digest(parts: Iterable[str | bytes]) -> str:
    """A hash of the parts and of where each ends; 32 hexadecimal digits."""
    state = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
        state.update(str(len(data)).encode() + b":")
        state.update(data)
    return state.hexdigest()[:32]


@functools.cache
def package_fingerprint() -> str:
    """A hash of loma's own code: what an older one made from a program's text is not reused."""
    root = Path(__file__).resolve().parent
    parts: list[str | bytes] = []
    for folder, folders, names in os.walk(root, followlinks=True):  # frontend and others are links
        folders.sort()
        for name in sorted(names):
            if name.endswith((".py", ".j2", ".h", ".cpp")):
                path = Path(folder, name)
                parts += [str(path.relative_to(root)), path.read_bytes()]
    return digest(parts)


def folder(key: str) -> Path:
    """Where the object of that key is, or would be."""
    return config.cache_dir() / "objects" / key


def obtain(key: str, build: Callable[[Path], None]) -> Path:
    """The folder ``objects/KEY``; where there is none yet, ``build`` fills a temporary one."""
    target = folder(key)
    if target.is_dir():
        return target
    from filelock import FileLock

    root = config.cache_dir()
    for name in ("objects", "locks", "temporary"):
        (root / name).mkdir(parents=True, exist_ok=True)
    with FileLock(root / "locks" / f"{key}.lock"):
        if target.is_dir():
            return target
        _remove_abandoned(root / "temporary")
        draft = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=root / "temporary"))
        try:
            build(draft)
            draft.chmod(0o755)
            _rename(draft, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return target


def _rename(draft: Path, target: Path) -> None:
    try:
        draft.rename(target)
    except OSError:
        if not target.is_dir():  # else a process with another lock, as on some network file systems
            raise


def _remove_abandoned(temporary: Path) -> None:
    """Deletes what killed processes left behind."""
    for entry in temporary.iterdir():
        try:
            if time.time() - entry.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)
        except OSError:
            continue


def read_index(key: str) -> dict[str, Any] | None:
    """What was kept under the key; None when there is nothing, or nothing readable."""
    return _read(config.cache_dir() / "index" / f"{key}.json")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def write_index(key: str, record: dict[str, Any]) -> None:
    _write(config.cache_dir() / "index", key, record)


def _write(place: Path, key: str, record: dict[str, Any]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f"{key}.", suffix=".tmp", dir=place)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(name, place / f"{key}.json")
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def add_note(key: str, record: dict[str, Any]) -> None:
    """Adds to what is noted under the key; the same record twice is one."""
    name = digest([json.dumps(record, sort_keys=True)])
    _write(config.cache_dir() / "notes" / key, name, record)


def notes(key: str) -> list[dict[str, Any]]:
    """What was noted under the key, in an order that stays."""
    place = config.cache_dir() / "notes" / key
    paths = sorted(place.glob("*.json")) if place.is_dir() else []
    return [record for path in paths if (record := _read(path)) is not None]


def info() -> dict[str, object]:
    """Where the cache is, how many programs and compiled folders it holds, and their bytes."""
    root = config.cache_dir()
    files = [path for path in root.rglob("*") if path.is_file()] if root.is_dir() else []
    return {
        "path": str(root),
        "entries": len(_names(root / "index")),
        "objects": len(_names(root / "objects")),
        "bytes": sum(path.stat().st_size for path in files),
    }


def clear() -> int:
    """Deletes everything in the cache; returns how many programs were in it.

    Modules that running processes have loaded stay usable there.
    """
    root = config.cache_dir()
    count = len(_names(root / "index"))
    for name in ("index", "notes", "objects", "temporary", "locks", "tuning"):
        shutil.rmtree(root / name, ignore_errors=True)
    return count


def _names(place: Path) -> list[str]:
    if not place.is_dir():
        return []
    return sorted(path.name for path in place.iterdir() if path.suffix != ".tmp")
