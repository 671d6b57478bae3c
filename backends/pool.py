"""The library that keeps memory between calls: one in a process, for all modules."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from loma import config

PEAK = 2**64 - 1  # the limit of a pool that keeps a quarter more than its peak

_loaded: ctypes.CDLL | None = None
_lock = threading.Lock()


def loaded() -> ctypes.CDLL | None:
    return _loaded


def load(path: Path) -> ctypes.CDLL:
    """The library of the pool; that file, unless it is loaded already. Set up by the environment
    when it is first loaded, which must be before a module is."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _prepared(path)
        return _loaded


def _prepared(path: Path) -> ctypes.CDLL:
    kept = limit(config.pool_limit())
    try:  # a module that was imported by hand may have brought it
        library = ctypes.CDLL(path.name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        library = ctypes.CDLL(str(path))
    library.loma_pool_release.restype = ctypes.c_uint64
    library.loma_pool_set_limit.argtypes = (ctypes.c_uint64,)
    # sanitizers must see where each block begins and ends
    if "pool" not in config.optimisations() or config.sanitizer() is not None:
        library.loma_pool_disable()
    library.loma_pool_set_limit(kept)
    return library


def limit(given: int | str | None) -> int:
    """How many bytes may be kept unused, as the library takes it."""
    if given is None:
        return PEAK
    size = config.parse_size(given) if isinstance(given, str) else given
    if size < 0:
        raise ValueError(f"a limit of the pool must not be negative, got {size}")
    return min(size, PEAK - 1)
