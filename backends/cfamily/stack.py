"""What functions take of a thread's stack. It is small, and no program can ask how small.

Arrays, structs and tapes of a function are on the stack as long as they, with those of the calls
that it makes one inside the other, stay below a limit; others are on the heap.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loma import errors
from loma.core.ir import Function

# Bytes.
LIMIT = 64 * 1024  # of arrays, structs and tapes along a chain of calls
BY_VALUE = 256  # of structs that a function takes and returns by value; larger ones go by pointer
MAX_CALL = 1024 * 1024  # of everything along a chain of calls, by estimate
MAX_THREAD = 64 * 1024  # the same on a device, where a hundred thousand threads have that at a time
_TINY = 64  # what is not worth the heap
_CALL = 128  # what a call takes besides


@dataclass(frozen=True, slots=True)
class Use:
    """What a call of a function takes, its own calls included: ``values`` are arrays, structs and
    tapes, ``all`` estimates everything."""

    values: int = 0
    all: int = 0


class Frame:
    """The part of one function, while it is lowered; ``below`` are the functions that it calls."""

    def __init__(self, below: Iterable[Use], limit: int) -> None:
        below = list(below)
        self._below = Use(
            max((use.values for use in below), default=0),
            max((use.all for use in below), default=0),
        )
        self._limit = limit
        self._values = 0

    def holds(self, size: int) -> bool:
        """Whether a value of so many bytes stands on the stack; it is counted if so."""
        wanted = self._values + self._below.values + size
        if size > min(_TINY, self._limit) and wanted > self._limit:
            return False
        self._values += size
        return True

    def use(self, function: Function, numbers: int, passed: int, on_device: bool = False) -> Use:
        """What a call takes. ``numbers`` is how many variables there are, ``passed`` the bytes of
        structs that are passed by value. Raises BackendLacksOperator where that is too much for a
        thread, of the host or ``on_device``."""
        most = MAX_THREAD if on_device else MAX_CALL
        own = self._values + passed + 8 * numbers + _CALL
        found = Use(self._values + self._below.values, own + self._below.all)
        if found.all > most:
            raise errors.BackendLacksOperator(
                f"a call of '{function.name}' may take {found.all} bytes of the stack, with the "
                f"calls that it makes one inside the other, and at most {most} are there for "
                "it",
                function.span,
                hint="nest fewer calls, or split functions of so many variables",
            )
        return found
