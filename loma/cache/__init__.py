"""The cache on disk: folders named by the hash of what they were made from.

``objects/KEY/`` holds files that a compiler made, ``index/KEY.json`` what a program's text led to,
``notes/KEY/`` what was added to that later. :mod:`loma.cache.roots` says where they are.
An entry appears by one rename, complete or not at all, so a process that is killed half way leaves
only a temporary folder, and readers need no lock. A lock per key makes a second process wait for
the first instead of compiling the same again.

Disks and copies fail: a library that was cut short would end the process that loads it. So every
file has its hash beside it, and what does not agree with it counts as missing and is made again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from loma import config
from loma.cache import pruning, roots as cache_roots
from loma.cache.pruning import delete, fresh
from loma.errors import CacheError

_ABANDONED_SECONDS = 24 * 3600.0
_MANIFEST = "manifest.json"  # of an object: the sizes and hashes of its files
_HASH = "hash"  # of a record in JSON: that of its other members
_OTHERS_WRITE = 0o022


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
    root = Path(__file__).resolve().parents[1]
    parts: list[str | bytes] = []
    for folder, folders, names in os.walk(root, followlinks=True):  # frontend and others are links
        folders.sort()
        for name in sorted(names):
            if name.endswith((".py", ".j2", ".h", ".cpp")):
                path = Path(folder, name)
                parts += [str(path.relative_to(root)), path.read_bytes()]
    return digest(parts)


# -------------------------------------------------------------------------------------- objects


def find(key: object) -> Path | None:
    """The object of that key, if there is one and it is what was put there."""
    if not isinstance(key, str) or not re.fullmatch(r"\w+", key, re.ASCII):
        return None  # what may name something elsewhere
    for root in cache_roots.roots().read:
        folder = root / "objects" / key
        if _is_whole(folder) and pruning.note_use(folder):
            return folder
    return None


def check(folder: Path) -> None:
    """CacheError where the folder of an object is not what it was when it was made."""
    if not _is_whole(folder):
        raise CacheError(
            f"{folder} in the cache is damaged or gone: compile the program again, in a new process"
        )


def is_object(folder: Path) -> bool:
    """Whether a folder is one of the cache, by its name."""
    return folder.parent.name == "objects" and re.fullmatch("[0-9a-f]{32}", folder.name) is not None


def obtain(key: str, build: Callable[[Path], None]) -> Path:
    """The folder ``objects/KEY``; where there is none, or a damaged one, ``build`` fills one."""
    found = find(key)
    if found is not None:
        return found
    from filelock import FileLock

    with _storing() as root:
        # A lock that others may open, they could keep.
        with FileLock(root / "locks" / f"{key}.lock", mode=0o600):
            found = find(key)
            if found is not None:
                return found
            _remove_abandoned(root)
            draft = root / "temporary" / fresh(key)
            try:
                draft.mkdir(0o755)
                build(draft)
                _seal(draft, key)
                _put(draft, root / "objects" / key)
            finally:
                delete(draft)
        pruning.keep_below(root, config.cache_limit(), cache_roots.roots().read)
        return root / "objects" / key


def _seal(draft: Path, key: str) -> None:
    """Writes down what the files are, once they are on the disk."""
    files = {}
    for path in sorted(draft.iterdir()):
        path.chmod(path.stat().st_mode & ~_OTHERS_WRITE)
        _sync(path)
        files[path.name] = [path.stat().st_size, _hash_of(path)]
    _write(draft / _MANIFEST, key, {"files": files})
    _sync(draft)


def _put(draft: Path, target: Path) -> None:
    """Renames; what is at the place goes, whatever it is. A reader finds all of one, or nothing."""
    try:
        os.replace(draft, target)
    except OSError:
        if not os.path.lexists(target):
            raise
        if _is_whole(target):  # of a process with another lock, as on some network file systems
            return
        # Not written over: another process may have loaded it, and keeps it as it was.
        away = target.with_name(f"{fresh(target.name)}.tmp")
        os.rename(target, away)
        delete(away)
        os.replace(draft, target)
    _sync(target.parent)


_verified: dict[Path, tuple[object, ...]] = {}
_verifying = threading.Lock()


def _after_fork_in_child() -> None:
    """The thread that holds the lock may not exist there."""
    global _verifying
    _verifying = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _is_whole(folder: Path) -> bool:
    """Whether the files are what the manifest says; read once, unless they change."""
    with _verifying:
        state = _state(folder)
        if state is None:
            return False
        if _verified.get(folder) != state:
            if not _agrees(folder):
                return False
            _verified[folder] = state
        return True


def _state(folder: Path) -> tuple[object, ...] | None:
    """What changes when a file does."""
    try:
        with os.scandir(folder) as entries:
            files = sorted((entry.name, entry.stat()) for entry in entries)
    except OSError:
        return None
    return tuple((name, f.st_ino, f.st_size, f.st_mtime_ns, f.st_ctime_ns) for name, f in files)


def _agrees(folder: Path) -> bool:
    manifest = _read(folder / _MANIFEST, folder.name)
    if manifest is None:
        return False
    try:
        return all(
            (folder / name).stat().st_size == size and _hash_of(folder / name) == hash_
            for name, (size, hash_) in manifest["files"].items()
        )
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return False


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_abandoned(root: Path) -> None:
    """Deletes what killed processes left behind."""
    found = [(root / name).glob("*.tmp") for name in ("objects", "index")]
    for path in itertools.chain((root / "temporary").iterdir(), *found):
        try:
            if time.time() - path.lstat().st_mtime > _ABANDONED_SECONDS:
                # It may be on its way out of the cache, and be wanted back, whole or not at all.
                taken = root / "temporary" / f"{fresh('abandoned')}.tmp"
                os.rename(path, taken)
                delete(taken)
        except OSError:
            continue


# -------------------------------------------------------------------------------------- records


def recall(
    key: str, fields: Iterable[str], make: Callable[[], tuple[Path, dict[str, Any]]]
) -> tuple[Path, dict[str, Any]]:
    """What the index has under the key: an object, and a record that has these fields.

    Where there is no such thing, ``make`` gives both.
    """
    record = read_index(key)
    if record is not None and record.keys() >= {*fields, "object"}:
        folder = find(record["object"])
        if folder is not None:
            return folder, record
    folder, record = make()
    record = {**record, "object": folder.name}
    write_index(key, record)
    return folder, record


def read_index(key: str) -> dict[str, Any] | None:
    """What was kept under the key; None when there is nothing, or nothing readable."""
    found = (_read(root / "index" / f"{key}.json", key) for root in cache_roots.roots().read)
    return next((record for record in found if record is not None), None)


def write_index(key: str, record: dict[str, Any]) -> None:
    with _storing() as root:
        _replace(root / "index" / f"{key}.json", key, record)


def add_note(key: str, name: str, record: dict[str, Any]) -> None:
    """Adds to what is noted under the key; what has that name there goes."""
    with _storing() as root:
        place = root / "notes" / key
        place.mkdir(0o755, exist_ok=True)
        _replace(place / f"{name}.json", key, record)


def notes(key: str, fields: Iterable[str]) -> list[dict[str, Any]]:
    """What was noted under the key and has these fields, in an order that stays."""
    paths = {
        path.name: path
        for root in reversed(cache_roots.roots().read)
        for path in (root / "notes" / key).glob("*.json")
    }
    found = (_read(paths[name], key) for name in sorted(paths))
    return [record for record in found if record is not None and record.keys() >= set(fields)]


def remove_notes(key: str) -> int:
    """Deletes what was noted under the key, where that can be written; returns how many."""
    count = 0
    for root in cache_roots.roots().read:
        for path in (root / "notes" / key).glob("*.json"):
            with contextlib.suppress(OSError):
                path.unlink()
                count += 1
    return count


def _read(path: Path, key: str) -> dict[str, Any] | None:
    """The record in a file; None where there is none, or not the one that was written there."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.pop(_HASH, None) != _hash(record, key):
        return None
    return record


def _replace(path: Path, key: str, record: dict[str, Any]) -> None:
    draft = path.with_name(f"{fresh(path.name)}.tmp")
    try:
        _write(draft, key, record)
        _put(draft, path)
    finally:
        delete(draft)


def _write(path: Path, key: str, record: dict[str, Any]) -> None:
    text = json.dumps({**record, _HASH: _hash(record, key)})
    with open(path, "x", encoding="utf-8", opener=_opened) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags, 0o644)  # less what the umask takes


def _hash(record: dict[str, Any], key: str) -> str:
    return digest([key, json.dumps(record, sort_keys=True)])


# ---------------------------------------------------------------------------------------- files


@contextlib.contextmanager
def _storing() -> Iterator[Path]:
    """The folder that new entries go to; a failure of the system there is a CacheError."""
    root = cache_roots.writable()
    try:
        yield root
    except OSError as error:
        raise cache_roots.failure(root, error) from error


def _sync(path: Path) -> None:
    """Waits until the disk has it: a rename may get there before what is renamed."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ------------------------------------------------------------------------------------ the whole


def info() -> dict[str, object]:
    """Where the cache is, where new entries go, how many programs, folders and bytes it has, and
    the bytes that it keeps itself below."""
    roots = cache_roots.roots()
    return {
        "path": str(config.cache_dir()),
        "writes": None if roots.write is None else str(roots.write),
        "entries": sum(len(_names(root / "index")) for root in roots.read),
        "objects": sum(len(_names(root / "objects")) for root in roots.read),
        "bytes": sum(_bytes(path) for root in roots.read for path in root.rglob("*")),
        "limit": config.cache_limit(),
    }


def _bytes(path: Path) -> int:
    """Of a file; another process may have deleted it."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def prune(older_than: float | None = None, limit: int | None = None) -> tuple[int, int]:
    """Deletes what was not used for that many seconds, and what is more than ``limit`` bytes, the
    least recently used first, from the folder that is the user's; see :mod:`loma.cache.pruning`.

    Returns how many objects that were, and their bytes.
    """
    roots = cache_roots.roots()
    if roots.write is None or not (roots.write / "objects").is_dir():
        return 0, 0
    with _storing() as root:
        return pruning.prune(root, older_than=older_than, limit=limit, others=roots.read)


def clear() -> int:
    """Deletes everything in the cache that is the user's; returns how many programs were in it.

    Modules that running processes have loaded stay usable there.
    """
    root = cache_roots.roots().write
    if root is None:
        return 0
    count = len(_names(root / "index"))
    for name in cache_roots.FOLDERS:
        shutil.rmtree(root / name, ignore_errors=True)
    return count


def _names(place: Path) -> list[str]:
    if not place.is_dir():
        return []
    return sorted(path.name for path in place.iterdir() if path.suffix != ".tmp")
