"""The memory that loma keeps between calls.

Tensors that are allocated inside a function of loma (results, what the backward part needs,
temporaries) and the workspaces of its kernels come from a pool, one for all modules of the process.
They go back to it when they are freed, so a warm call needs no memory from the system. Outside
functions of loma PyTorch allocates as ever.

The pool keeps a quarter more unused than was in use at once since the last :func:`release`, or what
:func:`limit` or the environment's ``LOMA_POOL_LIMIT`` says. ``LOMA_OPT=-pool`` turns it off.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from loma import config

_PEAK = 2**64 - 1  # the limit of a pool that keeps a quarter more than its peak


# The members of LomaPoolStats of runtime/memory/pool.h, in order.
_STATS = ("held", "in_use", "peak", "limit", "obtained", "blocks", "requests")


@dataclass(frozen=True, slots=True)
class Stats:
    """What the pool has, in bytes but for the last two.

    held: memory that the process has for the pool, used or not
    in_use: what tensors and workspaces hold
    peak: the most that was in use at once since the last release
    limit: how much may be kept unused; None: a quarter more than the peak
    obtained: what came from the system since the process started; a warm call adds nothing
    blocks: how many blocks are in use
    requests: how many blocks were asked for since the process started
    """

    held: int
    in_use: int
    peak: int
    limit: int | None
    obtained: int
    blocks: int
    requests: int


def stats() -> Stats:
    """What the pool has now."""
    found = (ctypes.c_uint64 * len(_STATS))()
    _library().loma_pool_stats(found)
    numbers = dict(zip(_STATS, found, strict=True))
    limit = numbers.pop("limit")
    return Stats(limit=None if limit == _PEAK else limit, **numbers)


def release() -> int:
    """Gives all memory that lies unused back to the system; how many bytes those were.

    The peak begins again at what is in use. The next calls take longer, because they fetch memory
    again.
    """
    return int(_library().loma_pool_release())


def limit(bytes: int | str | None) -> None:
    """How much memory the pool may keep unused from now on, as a number of bytes or as "2G".

    0 keeps nothing; None, a quarter more than the peak.
    """
    _library().loma_pool_set_limit(_limit(bytes))


def _limit(given: int | str | None) -> int:
    if given is None:
        return _PEAK
    size = config.parse_size(given) if isinstance(given, str) else given
    if size < 0:
        raise ValueError(f"a limit of the pool must not be negative, got {size}")
    return min(size, _PEAK - 1)


# -------------------------------------------------------------------------------- the library

_loaded: ctypes.CDLL | None = None
_lock = threading.Lock()


def load(path: Path) -> ctypes.CDLL:
    """The library of the pool; that file, unless it is loaded already. Set up by the environment
    when it is first loaded, which must be before a module is."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _prepared(path)
        return _loaded


def _prepared(path: Path) -> ctypes.CDLL:
    # sanitizers must see where each block begins and ends
    on = "pool" in config.optimisations() and config.sanitizer() is None
    kept = _limit(config.pool_limit())
    try:  # a module that was imported by hand may have brought it
        library = ctypes.CDLL(path.name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        library = ctypes.CDLL(str(path))
    library.loma_pool_release.restype = ctypes.c_uint64
    library.loma_pool_set_limit.argtypes = (ctypes.c_uint64,)
    if not on:
        library.loma_pool_disable()
    library.loma_pool_set_limit(kept)
    return library


def _library() -> ctypes.CDLL:
    if _loaded is not None:
        return _loaded
    from loma.backends import toolchain

    return load(toolchain.memory_library())
