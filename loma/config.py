"""Every environment variable that loma reads. Read anew at each use, so that a program may set one.

=================  =================================================================================
``LOMA_CACHE_DIR``  where compiled modules are kept; default ``$XDG_CACHE_HOME/loma`` or
                    ``~/.cache/loma``
``LOMA_CXX``        the C++ compiler; default ``$CXX``, then the first of g++, clang++, c++
``LOMA_CXXFLAGS``   further flags of the compiler, behind loma's own
``LOMA_CC``         the C compiler; default ``$CC``, then the first of gcc, clang, cc
``LOMA_CFLAGS``     further flags of the C compiler, behind loma's own
``LOMA_JOBS``       how many compilers run at once; default: the CPUs that this process may use
``LOMA_VERBOSE``    1: print each compiler command and what it took to standard error
=================  =================================================================================
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def cache_dir() -> Path:
    if given := os.environ.get("LOMA_CACHE_DIR"):
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "loma"


def compiler_candidates() -> tuple[str, ...]:
    """C++ compilers to look for. One that is asked for by name is the only candidate."""
    return _candidates(("LOMA_CXX", "CXX"), ("g++", "clang++", "c++"))


def extra_flags() -> tuple[str, ...]:
    return tuple(shlex.split(os.environ.get("LOMA_CXXFLAGS", "")))


def c_compiler_candidates() -> tuple[str, ...]:
    """C compilers to look for. One that is asked for by name is the only candidate."""
    return _candidates(("LOMA_CC", "CC"), ("gcc", "clang", "cc"))


def extra_c_flags() -> tuple[str, ...]:
    return tuple(shlex.split(os.environ.get("LOMA_CFLAGS", "")))


def _candidates(variables: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    for variable in variables:
        if given := os.environ.get(variable):
            return (given,)
    return known


def jobs() -> int:
    """At least 1; ValueError when LOMA_JOBS is no number."""
    if given := os.environ.get("LOMA_JOBS"):
        try:
            return max(1, int(given))
        except ValueError:
            raise ValueError(f"LOMA_JOBS must be a number, got {given!r}") from None
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def verbose() -> bool:
    return os.environ.get("LOMA_VERBOSE", "0") not in ("", "0")
