"""Which folders hold the cache: where entries are looked for, and where new ones go.

What lies in the cache runs in this process, so nobody but the user and root may be able to change
it. A folder that is root's, or that cannot be written, is read, and what is new goes to the next
one: the folder of the user's cache, then one of the user's own beside other temporary files.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from loma import config
from loma.errors import CacheError

FOLDERS = ("objects", "index", "notes", "tuning", "locks", "temporary")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ADVICE = "or name another folder in LOMA_CACHE_DIR"


@dataclass(frozen=True, slots=True)
class Roots:
    """``read``: where entries are looked for, in that order; ``write``: where new ones go, which
    may not exist yet, or None where no folder can be written."""

    read: tuple[Path, ...]
    write: Path | None


class _Use(IntEnum):
    NOTHING = 0
    READ = 1
    WRITE = 2


def roots() -> Roots:
    """As the environment says now. CacheError for a folder of the cache that is not safe."""
    first, *others = config.cache_dirs()
    read = []
    for place in (first, *others):
        try:
            use = _use_of(place)
        except CacheError:
            if place == first:  # that others cannot stand in for it is not worth an error
                raise
            continue
        if use is not _Use.NOTHING:
            read.append(place)
        if use is _Use.WRITE:
            return Roots(tuple(read), place)
    return Roots(tuple(read), None)


def writable() -> Path:
    """Where new entries go, made with its folders. CacheError when there is no such place."""
    place = roots().write
    if place is None:
        looked = ", ".join(map(str, config.cache_dirs()))
        raise CacheError(
            f"none of the folders for compiled code can be written ({looked}): name one of your "
            "own in LOMA_CACHE_DIR"
        )
    try:
        # Nobody else's business where it lies among everybody's files.
        place.mkdir(0o700 if place == config.private_cache_dir() else 0o755, True, exist_ok=True)
        for name in FOLDERS:
            (place / name).mkdir(0o755, exist_ok=True)
    except OSError as error:
        raise failure(place, error) from error
    if _use_of(place) is not _Use.WRITE:  # somebody was quicker
        raise CacheError(f"the cache folder {place} cannot be written, {_ADVICE}")
    return place


def failure(place: Path, error: OSError) -> CacheError:
    """What to say when the system refuses to read or write in the cache."""
    where = f" ({error.filename})" if error.filename not in (None, str(place)) else ""
    why = error.strerror or str(error)
    return CacheError(
        f"the cache folder {place} cannot be used: {why}{where}. Make room or repair it there, "
        f"{_ADVICE}."
    )


def _use_of(root: Path) -> _Use:
    use = _use_of_folder(root)
    for name in FOLDERS:
        if use is not _Use.NOTHING and os.path.lexists(root / name):
            use = min(use, _use_of_folder(root / name))
    return use


def _use_of_folder(place: Path) -> _Use:
    """What this process may do with a folder. CacheError where others may write to it."""
    try:
        link = place.lstat()
    except FileNotFoundError:
        return _Use.WRITE if _can_be_made(place) else _Use.NOTHING
    except PermissionError:
        return _Use.NOTHING
    except OSError as error:
        raise failure(place, error) from error
    try:
        found = place.stat()  # of what a link leads to
    except PermissionError:
        return _Use.NOTHING
    except OSError as error:
        raise failure(place, error) from error
    if not stat.S_ISDIR(found.st_mode):
        raise CacheError(
            f"{place} should be a folder of the cache, but is a file: remove it, {_ADVICE}"
        )
    user = os.geteuid()
    for owner in (link.st_uid, found.st_uid):
        if owner not in (user, 0):
            raise CacheError(
                f"the cache folder {place} belongs to {_name(owner)}, who could change the code "
                "that is loaded from it: name a folder of your own in LOMA_CACHE_DIR"
            )
    if found.st_mode & _OTHERS_WRITE:
        common = found.st_uid != user or found.st_mode & stat.S_ISVTX  # such as /tmp
        advice = "" if common else f"take that away with chmod -R go-w {place}, or "
        raise CacheError(
            f"others may write to the cache folder {place} (its mode is "
            f"{stat.S_IMODE(found.st_mode):o}), and change the code that is loaded from it: "
            f"{advice}name a folder of your own in LOMA_CACHE_DIR"
        )
    if found.st_uid == user and _may(place, os.R_OK | os.W_OK | os.X_OK):
        return _Use.WRITE
    return _Use.READ if _may(place, os.R_OK | os.X_OK) else _Use.NOTHING


def _can_be_made(place: Path) -> bool:
    above = next((folder for folder in place.parents if os.path.lexists(folder)), None)
    return above is not None and _may(above, os.W_OK | os.X_OK)


def _may(place: Path, what: int) -> bool:
    return os.access(place, what, effective_ids=True)


def _name(user: int) -> str:
    try:
        return f"the user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"the user with the number {user}"
