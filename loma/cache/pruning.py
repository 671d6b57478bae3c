"""What leaves the cache: objects that nobody has used for long, the least recently used first.

The time of an object's folder is when it was last asked for. An object goes by one rename, so that
nobody finds a part of it, and only when it has not been used for a while: whoever has found one may
be about to load it. One process deletes at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Longer than from finding an object to having loaded it, or compiled with it.
RECENT_SECONDS = 600.0
_NOTED_SECONDS = 60.0  # how exactly the time of the last use is known
_SCAN_SECONDS = 60.0  # how often a process looks how much there is
_KEPT = 0.9  # of the bound, so that not every new object has another one deleted

_scanned: dict[Path, float] = {}  # when this process last looked, by folder of the cache


@dataclass(frozen=True, slots=True)
class _Object:
    used: float
    bytes: int
    folder: Path


def note_use(folder: Path) -> bool:
    """Notes that an object is used now; whether it is still there."""
    try:
        age = time.time() - folder.stat().st_mtime
    except OSError:
        return False
    if not 0 <= age < _NOTED_SECONDS:
        try:
            os.utime(folder)
        except FileNotFoundError:
            return False
        except OSError:  # it is not the user's own, and so nobody deletes it
            return True
    return True


def keep_below(root: Path, limit: int | None, others: Iterable[Path] = ()) -> None:
    """Deletes from the folder of a cache what is more than ``limit`` bytes, where another process
    is not doing it already; looks once a minute. ``others``: as for :func:`prune`."""
    now = time.monotonic()
    if limit is None or now - _scanned.get(root, -_SCAN_SECONDS) < _SCAN_SECONDS:
        return
    _scanned[root] = now
    prune(root, limit=limit, others=others, wait=False)


def prune(
    root: Path,
    *,
    older_than: float | None = None,
    limit: int | None = None,
    others: Iterable[Path] = (),
    wait: bool = True,
) -> tuple[int, int]:
    """Deletes objects that were last used before ``older_than`` seconds, and, where there is more
    than ``limit`` bytes, those that were used the longest ago. Returns how many and their bytes.

    What was used in the last :data:`RECENT_SECONDS` stays. ``others`` are folders of the cache that
    records may lead to, too. Without ``wait`` nothing happens while another process is at it.
    """
    from filelock import FileLock, Timeout

    count = freed = 0
    try:
        with FileLock(root / "locks" / "pruning.lock", mode=0o600, timeout=-1 if wait else 0):
            found = sorted(_objects(root), key=lambda each: (each.used, each.folder.name))
            total = sum(each.bytes for each in found)
            kept = limit if limit is None or total <= limit else int(_KEPT * limit)
            now = time.time()
            for each in found:
                age = now - each.used
                too_old = older_than is not None and age > older_than
                too_much = kept is not None and total > kept
                if age < RECENT_SECONDS or not (too_old or too_much):
                    break
                if _remove(root, each):
                    count, freed, total = count + 1, freed + each.bytes, total - each.bytes
            if count:
                _forget(root, (root, *others))
    except Timeout:
        pass
    return count, freed


def _objects(root: Path) -> Iterator[_Object]:
    for folder in (root / "objects").iterdir():
        if folder.suffix != ".tmp":
            with contextlib.suppress(OSError):  # gone meanwhile, or no folder
                files = [entry.stat().st_size for entry in os.scandir(folder)]
                yield _Object(folder.stat().st_mtime, sum(files), folder)


def _remove(root: Path, each: _Object) -> bool:
    away = root / "temporary" / f"{fresh(each.folder.name)}.tmp"
    try:
        os.rename(each.folder, away)
    except OSError:
        return False
    with contextlib.suppress(OSError):  # another process sweeps what is old there
        if away.stat().st_mtime != each.used:  # somebody has asked for it meanwhile
            os.rename(away, each.folder)
            return False
    delete(away)
    return True


def _forget(root: Path, roots: Iterable[Path]) -> None:
    """Deletes records that lead to objects which are gone."""
    for path in (*(root / "index").glob("*.json"), *(root / "notes").glob("*/*.json")):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            name = json.loads(path.read_bytes()).get("object")
            if isinstance(name, str) and not any((r / "objects" / name).exists() for r in roots):
                path.unlink()


def fresh(name: str) -> str:
    """A name that no file has."""
    return f"{name}.{os.urandom(8).hex()}"


def delete(path: Path) -> None:
    """Deletes a file or a folder, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
