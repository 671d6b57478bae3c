"""Names that are nearly those that were meant."""

from __future__ import annotations

from collections.abc import Iterable


def suggest(name: str, candidates: Iterable[str]) -> str | None:
    """A hint that names the candidate that a name is a misspelling of; None when there is none."""
    near = nearest(name, candidates)
    return None if near is None else f"did you mean '{near}'?"


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that a name is a misspelling of: other letters at few places, the same ones in
    another order, or the beginning of a longer name. Case and underscores do not count. A name of
    one letter is no misspelling: k is an index, K a size."""
    wrong = _letters(name)
    found: list[tuple[bool, int, int, int, str]] = []
    for candidate in set(candidates) - {name}:
        right = _letters(candidate)
        begins = len(wrong) >= 4 and right.startswith(wrong)
        distance = 1 if begins else _distance(wrong, right)
        reordered = sorted(wrong) == sorted(right)
        longest = max(len(wrong), len(right))
        allowed = 1 if longest < 6 else 2 if longest < 10 else 3
        if longest < 2 or (longest == 2 == len(wrong) == len(right) and not reordered):
            continue
        if distance <= allowed or (reordered and distance <= 2):
            # 'expm' begins 'expm1', 'logg' is 'log' with a letter more rather than 'log2'
            ends = 0 if begins else 1 if wrong.startswith(right) else 2
            found.append((not reordered, distance, ends, abs(len(wrong) - len(right)), candidate))
    return min(found)[-1] if found else None


def _letters(name: str) -> str:
    return name.casefold().replace("_", "")


def _distance(left: str, right: str) -> int:
    """How many letters to insert, to leave out, to replace, or pairs to swap, from one word to the
    other; no letter twice."""
    before: list[int] = []
    above = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        row = [i]
        for j, b in enumerate(right, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, above = above, row
    return above[-1]
