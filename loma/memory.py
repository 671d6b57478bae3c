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
from dataclasses import dataclass, fields, replace

from loma.backends import pool


@dataclass(frozen=True, slots=True)
class Stats:
    """What the pool has, in bytes but for the last two: the members of LomaPoolStats of
    runtime/memory/pool.h, in order.

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
    found = (ctypes.c_uint64 * len(fields(Stats)))()
    _library().loma_pool_stats(found)
    numbers = Stats(*found)
    return replace(numbers, limit=None) if numbers.limit == pool.PEAK else numbers


def release() -> int:
    """Gives all memory that lies unused back to the system; how many bytes those were.

    The peak begins again at what is in use. The next calls take longer: they fetch memory again.
    """
    return int(_library().loma_pool_release())


def limit(bytes: int | str | None) -> None:
    """How much memory the pool may keep unused from now on, as a number of bytes or as "2G".

    0 keeps nothing; None, a quarter more than the peak.
    """
    _library().loma_pool_set_limit(pool.limit(bytes))


def _library() -> ctypes.CDLL:
    known = pool.loaded()
    if known is not None:
        return known
    from loma.backends import toolchain

    return pool.load(toolchain.memory_library())
