"""Every environment variable that loma reads. Read anew at each use, so that a program may set one.

=========================  =========================================================================
``LOMA_CACHE_DIR``         where compiled modules are kept; default ``$XDG_CACHE_HOME/loma`` or
                           ``~/.cache/loma``. Where that cannot be written, the default, and then
                           ``loma-UID`` in ``$TMPDIR`` or ``/tmp``, take what is new.
``LOMA_CACHE_LIMIT``       how many bytes the cache keeps, or ``500M``, ``2G``, or ``none`` for no
                           bound; default ``2G``. What was not used for the longest goes first.
``LOMA_CXX``               the C++ compiler, with arguments if need be (``ccache g++``); default
                           ``$CXX``, then the first of g++, clang++, c++
``LOMA_CXXFLAGS``          further flags of the compiler, behind loma's own
``LOMA_CC``                the C compiler, likewise; default ``$CC``, then the first of gcc, clang,
                           cc
``LOMA_CFLAGS``            further flags of the C compiler, behind loma's own
``LOMA_JOBS``              how many compilers run at once; default: the CPUs that this process may
                           use
``LOMA_OPT``               which optimisations run: 0 for none, 1 for all (the default), or names to
                           leave out, as in ``-fusion,-pool``; :data:`OPTIMISATIONS` has the names
``LOMA_CONVOLUTION``       the form in which convolutions are computed wherever it applies, and the
                           library's elsewhere, instead of what was measured to be fastest: library,
                           channels_last, gemm, direct or fft. Read by the compiled code.
``LOMA_POOL_LIMIT``        how much unused memory is kept for the next call, in bytes or as
                           ``500M``, ``2G``; default: a quarter more than was ever in use at once.
                           Read once.
``LOMA_SPECIALISATIONS``   how many kernels for sizes that are seen a function may have; default 8,
                           0 for none. Read when a module is loaded.
``LOMA_CHECK``             sync: every call on a GPU waits for its kernels, so that the one in
                           which a check fails raises. The compiled code reads this and the next
                           two.
``LOMA_CUDA_DRIVER``       for tests: a library in the place of CUDA's driver
``LOMA_DEVICE``            for tests: shim: what serves GPUs serves tensors of the CPU, with that
                           driver
``LOMA_SANITIZE``          for work on loma itself: C++ for libtorch is compiled with sanitizers
                           (:class:`Sanitizer`); ``tests/support/sanitized.py`` starts processes for
                           it
``LOMA_TRACEBACK``         1: the traceback of a mistake in a program has the compiler's frames, too
``LOMA_VERBOSE``           1: print each compiler command and what it took to standard error
=========================  =========================================================================
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loma.errors import SettingError

VERSION = "0.1.0"  # setup.py reads it here

# Every optimisation that can be left out, by name.
OPTIMISATIONS = {
    "inline": "calls of functions in tensor functions are replaced by their bodies",
    "operators": "tensor operators are index statements where sizes say how they broadcast",
    "loops": "loops whose iterations do not meet are index statements",
    "conditions": "conditions on indices do without what holds anyway",
    "shapes": "tensors that are each other in another shape have one shape",
    "temporaries": "what is as cheap to compute where it is read has no tensor",
    "invariants": "factors that do not depend on an index summed over leave the sum",
    "reductions": "sums inside larger expressions are statements of their own",
    "exponentials": "written-out softmax, sigmoid and softplus, and their logarithms, are those",
    "distribution": "products of a loop that need no earlier round are one, in front or behind",
    "rounds": "what only the next round of a loop reads is not computed in the last",
    "costly": "exp and its like that lack an index, or stand twice, are computed once",
    "factor": "sums of products of many factors are taken in steps",
    "scans": "running sums, products, maxima and minima are taken from element to element",
    "shifts": "derivatives do without the places of maxima that cancel, as softmax's do",
    "reuse": "what a statement has computed is not computed again",
    "additions": "additions to the same elements are taken together",
    "fusion": "statements that share an index run in one loop, with private temporaries",
    "divisions": "indices that subscripts divide run over quotients and remainders",
    "squares": "what is read across memory is transposed in registers, a square at a time",
    "kept_rows": "what a row needs again and again is computed once for a strip of it",
    "neighbours": "short sums along memory are written out, so that lanes run across them",
    "masks": "functions with a while run for many elements at a time, a lane for each",
    "registers": "rows that share an operand are summed together, a few of them in registers",
    "reciprocals": "quotients by what a loop does not change are products within sums",
    "vector_math": "exp, log, tanh and their like as vector code",
    "contraction": "matrix products call the BLAS",
    "convolution": "convolutions and their adjoints take the form that was measured to be fastest",
    "pool": "memory of tensors and workspaces is kept for the next call",
    "specialise": "kernels are compiled again for the sizes that are seen",
}


def cache_dir() -> Path:
    """The folder of the cache."""
    return cache_dirs()[0]


def cache_dirs() -> tuple[Path, ...]:
    """The folder of the cache, and those that stand in for it, in turn, where it takes nothing."""
    found = []
    if given := os.environ.get("LOMA_CACHE_DIR"):
        found.append(_folder(given, "LOMA_CACHE_DIR"))
    with contextlib.suppress(SettingError):  # a user without a home
        found.append(_folder(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "HOME") / "loma")
    return tuple(dict.fromkeys((*found, private_cache_dir())))


def private_cache_dir() -> Path:
    """The last of :func:`cache_dirs`: the user's own among temporary files."""
    return Path(os.environ.get("TMPDIR") or "/tmp", f"loma-{os.geteuid()}").absolute()


def _folder(given: str, variable: str) -> Path:
    try:
        return Path(given).expanduser().absolute()
    except RuntimeError as error:
        raise SettingError(f"{variable}: there is no home folder for {given!r}") from error


@dataclass(frozen=True, slots=True)
class Language:
    """What the environment says about the compiler of a language.

    ``variables`` may name one, ``known`` are those to look for if none does, ``package`` is where
    the first comes from; ``flags`` is the variable with further flags.
    """

    name: str
    variables: tuple[str, ...]
    known: tuple[str, ...]
    package: str
    flags: str

    def asked_for(self) -> tuple[str, str] | None:
        """The variable that names a compiler, and what it says."""
        for variable in self.variables:
            if given := os.environ.get(variable, "").strip():
                return variable, given
        return None

    def extra_flags(self) -> tuple[str, ...]:
        return words(self.flags, os.environ.get(self.flags, ""))


CXX = Language("C++", ("LOMA_CXX", "CXX"), ("g++", "clang++", "c++"), "g++", "LOMA_CXXFLAGS")
C = Language("C", ("LOMA_CC", "CC"), ("gcc", "clang", "cc"), "gcc", "LOMA_CFLAGS")


def words(variable: str, text: str) -> tuple[str, ...]:
    """What the variable says, taken apart as a shell does; SettingError where it cannot be."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise SettingError(f"{variable}: {str(error).lower()} in {text!r}") from error


def jobs() -> int:
    """At least 1; SettingError when LOMA_JOBS is no number."""
    if given := os.environ.get("LOMA_JOBS"):
        try:
            return max(1, int(given))
        except ValueError:
            raise SettingError(f"LOMA_JOBS must be a number, got {given!r}") from None
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(text: str) -> int:
    """Bytes: "500M" is 500 times 2**20. ValueError for what is no such size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError(f"a size is a number of bytes or ends in K, M, G or T, got {text!r}")
    from fractions import Fraction  # seldom needed, and a millisecond or two to import

    return int(Fraction(found[1]) * _UNITS[found[2].upper()])


_CACHE_LIMIT = "2G"


def cache_limit() -> int | None:
    """Bytes; None where LOMA_CACHE_LIMIT is none."""
    given = os.environ.get("LOMA_CACHE_LIMIT", "").strip() or _CACHE_LIMIT
    if given.lower() == "none":
        return None
    try:
        return parse_size(given)
    except ValueError as error:
        raise SettingError(f"LOMA_CACHE_LIMIT: {error}, or is none") from None


def pool_limit() -> int | None:
    """Bytes; None where LOMA_POOL_LIMIT is not set."""
    given = os.environ.get("LOMA_POOL_LIMIT", "").strip()
    if not given:
        return None
    try:
        return parse_size(given)
    except ValueError as error:
        raise SettingError(f"LOMA_POOL_LIMIT: {error}") from None


def specialisations() -> int:
    """At least 0; SettingError when LOMA_SPECIALISATIONS is no number."""
    given = os.environ.get("LOMA_SPECIALISATIONS", "").strip() or "8"
    try:
        return min(max(0, int(given)), 2**31 - 1)  # what the runtime counts with
    except ValueError:
        raise SettingError(f"LOMA_SPECIALISATIONS must be a number, got {given!r}") from None


def verbose() -> bool:
    return os.environ.get("LOMA_VERBOSE", "0") not in ("", "0")


def full_tracebacks() -> bool:
    return os.environ.get("LOMA_TRACEBACK", "0") not in ("", "0")


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """What ``LOMA_SANITIZE`` asks for.

    ``address`` is AddressSanitizer with UndefinedBehaviorSanitizer, ``thread`` ThreadSanitizer. The
    pool is off then, since it would hide where a block ends. ``address,generated`` and
    ``thread,generated`` leave the runtime as it is, and compile only what is generated so.
    """

    kind: Literal["address", "thread"]
    runtime: bool  # whether the runtime has them, too


def sanitizer() -> Sanitizer | None:
    """None where LOMA_SANITIZE is not set; SettingError when it names no sanitizer."""
    match [word.strip() for word in os.environ.get("LOMA_SANITIZE", "").split(",")]:
        case [""]:
            return None
        case [("address" | "thread") as kind]:
            return Sanitizer(kind, runtime=True)
        case [("address" | "thread") as kind, "generated"]:
            return Sanitizer(kind, runtime=False)
        case _:
            raise SettingError(
                "LOMA_SANITIZE must be address or thread, or one of them with ,generated, got "
                f"{os.environ['LOMA_SANITIZE']!r}"
            )


def optimisations() -> frozenset[str]:
    """The optimisations that run; SettingError when LOMA_OPT names one that does not exist."""
    given = os.environ.get("LOMA_OPT", "1").strip()
    if given in ("", "1"):
        return frozenset(OPTIMISATIONS)
    if given == "0":
        return frozenset()
    left_out = [word.strip() for word in given.split(",") if word.strip()]
    for word in left_out:
        if not word.startswith("-") or word[1:] not in OPTIMISATIONS:
            known = ", ".join(f"-{name}" for name in OPTIMISATIONS)
            raise SettingError(
                f"LOMA_OPT must be 0, 1, or names to leave out ({known}), got {word!r}"
            )
    return frozenset(OPTIMISATIONS) - {word[1:] for word in left_out}
