"""What can go wrong while a scalar function runs: one table for every backend.

A failure ends the call. Compiled code keeps a record of it (its kind, the function and the line,
two numbers), which whoever called turns into the exception that :func:`exception` makes; the
interpreter raises the same exception. Which failure it is, where one expression could fail in more
than one way, is left open.
"""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """The number that stands in a record; 0 is no failure."""

    LOOP = 1
    SUBSCRIPT = 2
    DIVISION = 3
    FULL_STACK = 4
    EMPTY_STACK = 5
    MEMORY = 6
    ALIAS = 7
    STEP = 8
    LENGTH = 9


# Of each the exception and its text, which may name the record's two numbers.
_FAILURES: dict[Kind, tuple[type[Exception], str]] = {
    Kind.LOOP: (RuntimeError, "the loop runs more than max_iter = {first} times"),
    Kind.SUBSCRIPT: (IndexError, "subscript {first} is outside an array of {second} elements"),
    Kind.DIVISION: (ZeroDivisionError, "division of an int by zero"),
    Kind.FULL_STACK: (RuntimeError, "push on a full stack of {first}"),
    Kind.EMPTY_STACK: (RuntimeError, "pop from an empty stack"),
    Kind.MEMORY: (MemoryError, "out of memory"),
    Kind.ALIAS: (
        ValueError,
        "arguments {first} and {second} are the same storage, and one of them is Out",
    ),
    Kind.STEP: (ValueError, "the step of a range is 0"),
    Kind.LENGTH: (OverflowError, "a range has more than 2147483647 values"),
}


def exception(kind: int, function: str, line: int, first: int = 0, second: int = 0) -> Exception:
    """The Python exception of a failure in a line of a function."""
    error, text = _FAILURES[Kind(kind)]
    return error(f"{function}: line {line}: {text.format(first=first, second=second)}")
