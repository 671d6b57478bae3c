"""A search among the ways that lowering could go: candidates, their order, and what decides.

A candidate is what it takes other than the usual ways. The search goes from those that are known
to those that differ from one of them in one choice, first to where a :class:`Model` hopes for most.
It goes in turns from the best one, all changes of which are tried soon, for a small kernel may take
more of the time than its work says; and from any that is about as fast, for two changes may only be
faster together.
Measurement decides: a candidate is called in turn with the best one, given up when it is clearly
slower, and takes the best one's place when it is faster, also beside the usual one, and that once
more, and later, when others have been measured. In the end the best has to be faster than the usual
ways in another run of their own; if it is not, the next best.

Nothing here knows what is chosen, nor what a candidate is made of.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    ALL_COMPLETED, FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait,
)  # fmt: skip
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

from loma.backends.schedule.choices import Choice, Option, Taken

Call: TypeAlias = Callable[[], object]

ADOPTED = 0.97  # the part of the usual time that a winner may take at most
_BETTER = 0.99  # that of the best time so far
_GONE_ON_FROM = 1.2  # times the best time is the most of a candidate whose neighbours are tried
_AT_ONCE = 16  # candidates whose neighbours are compared
_GIVEN_UP = {0: 2.0, 1: 1.3, 3: 1.1, 5: 1.05}  # after which round a candidate above that is left
_ROUNDS, _BESIDE_USUAL = 9, 5
_CALLS = 3  # of a sample, at least
_CONFIRMING = 15
_SAMPLE_SECONDS = 2e-3
_LAST = 0.15, 2.0  # of the time, and seconds at most, that the end may take


@dataclass(frozen=True, slots=True)
class Lowered:
    """A candidate's code: ``text`` tells it from others, ``choices`` are those that came up."""

    text: str
    choices: Mapping[str, Choice]


class Maker(Protocol):
    """What makes candidates. None stands for what cannot be made or is wrong, which then takes no
    part."""

    @property
    def is_apart(self) -> bool:
        """Whether compiling candidates does not slow those that are measured meanwhile."""

    def lower(self, taken: Taken) -> Lowered | None: ...

    def compile(self, taken: Taken) -> None:
        """On any thread."""

    def make(self, taken: Taken) -> Call | None:
        """Compiled, and found to give what the first one made gives."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A measured candidate: ``seconds`` since the search began, its time and that of the best after
    it, as parts of the usual one."""

    taken: Taken
    seconds: float
    ratio: float
    best: float


@dataclass(slots=True)
class Found:
    """``taken``: the winner, nothing where no other way was faster than the usual ones; ``usual``
    and ``tuned``: seconds of a call."""

    taken: Taken
    usual: float
    tuned: float
    trials: list[Trial] = field(default_factory=list)


Progress: TypeAlias = Callable[[float, float], None]  # seconds gone, the best time of a call


# ------------------------------------------------------------------------------------- the model


class Model:
    """By what part a choice is expected to change the time: as the logarithm of the ratio.

    Before anything is known, what a rewrite lists first is expected to bring most, in proportion to
    the work that it is about; what was measured of choices of the same kind takes the place of
    that, and what was measured of the option where it is the place of both. What is uncertain may
    bring more than is expected: the less often an option was tried where it is, the more, as in the
    bandits of Auer et al., "Finite-time analysis of the multiarmed bandit problem", 2002. An option
    that makes no difference there is seldom tried again.
    """

    _PRIOR, _UNCERTAIN = -0.05, -0.1
    _MOST = math.log(2.0)  # what is far slower is slower

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, Option], list[float]] = {}
        self._own: dict[tuple[str, Option], list[float]] = {}
        self._same: Counter[tuple[str, Option]] = Counter()

    def learn(self, name: str, kind: str, option: Option, share: float, ratio: float) -> None:
        """``share``: the part of the work that the choice was about."""
        effect = min(max(math.log(ratio), -self._MOST), self._MOST)
        self._own.setdefault((name, option), []).append(effect)
        self._kinds.setdefault((kind, option), []).append(effect / max(share, 0.1))

    def no_difference(self, name: str, option: Option) -> None:
        self._same[name, option] += 1

    def hoped(self, name: str, kind: str, option: Option, rank: int, share: float) -> float:
        own, same = self._own.get((name, option), []), self._same[name, option]
        others = self._kinds.get((kind, option), [])
        expected = share * (self._PRIOR / rank + sum(others)) / (1 + len(others))
        expected = (expected + sum(own)) / (1 + len(own))
        part = (1 + len(own)) / (1 + len(own) + same)
        return part * (expected + share * self._UNCERTAIN / math.sqrt(1 + len(own)))


def shares(choices: Mapping[str, Choice]) -> dict[str, float]:
    """The part of the work that each choice is about."""
    most = max((c.work for c in choices.values() if not math.isinf(c.work)), default=1.0)
    return {name: min(1.0, c.work / most) for name, c in choices.items()}


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What differs from a candidate in the choice ``name``. ``hoped``: see :class:`Model`."""

    taken: Taken
    name: str
    option: Option
    hoped: float


def neighbours(taken: Taken, choices: Mapping[str, Choice], model: Model) -> list[Neighbour]:
    """What differs from a candidate in one choice, the most promising first."""
    part = shares(choices)
    found = []
    for name, choice in choices.items():
        current = taken.get(name, choice.options[0])
        others = {n: o for n, o in taken.items() if n != name}
        for rank, option in enumerate((o for o in choice.options if o != current), 1):
            new = others if option == choice.options[0] else {**others, name: option}
            hoped = model.hoped(name, choice.kind, option, rank, part[name])
            found.append(Neighbour(new, name, option, hoped))
    return sorted(found, key=lambda neighbour: neighbour.hoped)


# ------------------------------------------------------------------------------------ the search


@dataclass(slots=True)
class _Candidate:
    taken: Taken
    choices: Mapping[str, Choice]
    call: Call
    ratio: float = 1.0
    is_settled: bool = False  # measured once more, after others
    is_left: bool = False  # all that differs from it in one choice has been tried


_Origin: TypeAlias = tuple[_Candidate, Neighbour]  # what a candidate is a neighbour of


@dataclass(frozen=True, slots=True)
class _Begun:
    """A candidate that is being compiled."""

    taken: Taken
    lowered: Lowered
    origin: _Origin | None


def fastest(call: Call, repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest of some calls: what else runs only ever makes them slower."""
    best = math.inf
    for _ in range(repeats):
        start = clock()
        call()
        best = min(best, clock() - start)
    return best


class Search:
    """``starts``: candidates to begin with, such as what is best for other sizes; ``at_once``: how
    many are compiled side by side, and measured one by one as they are done, or when all are;
    ``sample``: the seconds of a call, by so many, where the clock does not tell."""

    def __init__(
        self,
        maker: Maker,
        seconds: float,
        starts: Iterable[Taken] = (),
        at_once: int = 2,
        progress: Progress = lambda gone, best: None,
        clock: Callable[[], float] = time.perf_counter,
        sample: Callable[[Call, int], float] | None = None,
    ) -> None:
        self._maker = maker
        self._seconds = seconds
        self._starts = [dict(start) for start in starts if start]
        self._at_once = at_once
        self._progress = progress
        self._clock = clock
        self._sample = sample or partial(fastest, clock=clock)
        self._begin = clock()
        self._tried: set[frozenset[tuple[str, Option]]] = set()
        self._texts: set[str] = set()
        self._compiling: dict[Future[float], _Begun] = {}
        self._slowest = 0.0
        self._known: list[_Candidate] = []
        self._model = Model()
        self.trials: list[Trial] = []

    def run(self) -> Found | None:
        """None where not even the usual ways can be made."""
        usual = self._first()
        if usual is None:
            return None
        seconds = min(self._sample(usual.call, self._repeats(usual.call)) for _ in range(3))
        repeats, best = self._repeats(usual.call), usual
        self._slowest = self._clock() - self._begin
        end = self._seconds - min(self._seconds * _LAST[0], _LAST[1])
        self._progress(self._gone(), seconds)
        try:
            with ThreadPoolExecutor(self._at_once) as pool:
                while self._compile_more(pool, best, end):
                    for begun in self._compiled():
                        if self._gone() >= end:
                            continue
                        call = self._maker.make(begun.taken)
                        if call is None:
                            self._is_none(begun.origin)
                        elif self._gone() < end:
                            best = self._measured(usual, best, begun, call, repeats)
                        self._progress(self._gone(), seconds * best.ratio)
                    if self._gone() < end:
                        best = self._settled(usual, best, repeats)
        except KeyboardInterrupt:  # what is found so far counts
            self._progress(self._gone(), seconds * best.ratio)
            raise
        known = sorted(self._known, key=lambda other: (other is not best, other.ratio))
        for place, winner in enumerate(known):
            if winner.ratio > ADOPTED or (place > 0 and self._gone() > self._seconds):
                break
            ratio, seconds = self._confirmed(winner.call, usual.call, repeats)
            if ratio <= ADOPTED:
                return Found(winner.taken, seconds, seconds * ratio, self.trials)
        return Found({}, seconds, seconds, self.trials)

    def _first(self) -> _Candidate | None:
        lowered = self._maker.lower({})
        if lowered is None:
            return None
        self._maker.compile({})
        call = self._maker.make({})
        if call is None:
            return None
        self._tried.add(frozenset())
        self._texts.add(lowered.text)
        call()
        usual = _Candidate({}, lowered.choices, call)
        self._known.append(usual)
        return usual

    def _gone(self) -> float:
        return self._clock() - self._begin

    def _compile_more(self, pool: Executor, best: _Candidate, end: float) -> bool:
        """Starts the next candidates, whose code is new, unless that takes too long; whether any
        are being compiled."""
        for taken, origin in self._candidates(best):
            if len(self._compiling) >= self._at_once or self._gone() + self._slowest >= end:
                break
            key = frozenset(taken.items())
            if key in self._tried:
                continue
            self._tried.add(key)
            lowered = self._maker.lower(taken)
            if lowered is None or lowered.text in self._texts:
                self._is_none(origin)
            else:
                self._texts.add(lowered.text)
                self._compiling[pool.submit(self._compile, taken)] = _Begun(taken, lowered, origin)
        return bool(self._compiling)

    def _compiled(self) -> list[_Begun]:
        """Those that are done, in the order in which they were begun."""
        enough = FIRST_COMPLETED if self._maker.is_apart else ALL_COMPLETED
        done = wait(self._compiling, return_when=enough).done
        ready = []
        for future in [future for future in self._compiling if future in done]:
            self._slowest = max(0.9 * self._slowest, future.result())
            ready.append(self._compiling.pop(future))
        return ready

    def _compile(self, taken: Taken) -> float:
        """The seconds that it takes."""
        start = self._clock()
        self._maker.compile(taken)
        return self._clock() - start

    def _candidates(self, best: _Candidate) -> Iterator[tuple[Taken, _Origin | None]]:
        yield from ((start, None) for start in self._starts)
        fast = [k for k in self._known if k.ratio <= _GONE_ON_FROM * best.ratio and not k.is_left]
        fast.sort(key=lambda candidate: candidate.ratio)
        of_best, of_any = self._steps([best]), self._steps(fast)
        while True:
            turns = (of_best, of_any) if len(self._texts) % 2 else (of_any, of_best)
            step = next(turns[0], None) or next(turns[1], None)
            if step is None:
                return
            yield step[1].taken, step

    def _steps(self, known: Sequence[_Candidate]) -> Iterator[_Origin]:
        """What differs from these in one choice and is new, the most promising of some first."""
        for first in range(0, len(known), _AT_ONCE):
            found: list[tuple[float, _Origin]] = []
            for one in known[first : first + _AT_ONCE]:
                every = neighbours(one.taken, one.choices, self._model)
                new = [neighbour for neighbour in every if self._is_new(neighbour)]
                one.is_left = not new
                found += [(math.log(one.ratio) + n.hoped, (one, n)) for n in new]
            yield from (origin for _, origin in sorted(found, key=lambda pair: pair[0]))

    def _is_none(self, origin: _Origin | None) -> None:
        """A way that cannot be gone, or that another candidate goes."""
        if origin is not None:
            _, neighbour = origin
            self._model.no_difference(neighbour.name, neighbour.option)

    def _is_new(self, neighbour: Neighbour) -> bool:
        return frozenset(neighbour.taken.items()) not in self._tried

    def _measured(
        self,
        usual: _Candidate,
        best: _Candidate,
        begun: _Begun,
        call: Call,
        repeats: int,
    ) -> _Candidate:
        taken, lowered = begun.taken, begun.lowered
        ratio = self._ratio(call, best.call, repeats)
        own = best.ratio * ratio
        if ratio < _BETTER:
            # Beside the usual one: products of ratios would add up what was fast by chance.
            own = self._ratio(call, usual.call, repeats, _BESIDE_USUAL)
        is_better = ratio < _BETTER and own < _BETTER * best.ratio
        if is_better:  # of many candidates some are fast by chance
            own = max(own, self._ratio(call, usual.call, repeats, _BESIDE_USUAL))
            is_better = own < _BETTER * best.ratio
        self._learn(begun, own)
        candidate = _Candidate(taken, lowered.choices, call, own)
        self._known.append(candidate)
        if is_better:
            best = candidate
        self.trials.append(Trial(taken, self._gone(), own, best.ratio))
        return best

    def _learn(self, begun: _Begun, ratio: float) -> None:
        if begun.origin is None:
            return
        source, neighbour = begun.origin
        choice = source.choices[neighbour.name]
        share = shares(source.choices)[neighbour.name]
        ratio = ratio / source.ratio
        self._model.learn(neighbour.name, choice.kind, neighbour.option, share, ratio)

    def _settled(self, usual: _Candidate, best: _Candidate, repeats: int) -> _Candidate:
        """The best one, measured once more: what was fast for a while hides no others."""
        while best is not usual and not best.is_settled:
            best.is_settled = True
            best.ratio = self._ratio(best.call, usual.call, repeats)
            other = min(self._known, key=lambda candidate: candidate.ratio)
            best = other if other.ratio < _BETTER * best.ratio else best
        return best

    # -------------------------------------------------------------------------------- measuring

    def _repeats(self, call: Call) -> int:
        """How many calls a sample has."""
        return max(_CALLS, math.ceil(_SAMPLE_SECONDS / max(self._sample(call, _CALLS), 1e-7)))

    def _ratio(self, call: Call, other: Call, repeats: int, rounds: int = _ROUNDS) -> float:
        """How many times the other's time a call takes, roughly where it is clearly slower."""
        ratios: list[float] = []
        own = theirs = math.inf
        call()
        for turn in range(rounds):
            ratio, seconds = self._pair(call, other, repeats, turn)
            ratios.append(ratio)
            own, theirs = min(own, ratio * seconds), min(theirs, seconds)
            if own / theirs > _GIVEN_UP.get(turn, math.inf):
                break
        return statistics.median(ratios)

    def _confirmed(self, call: Call, other: Call, repeats: int) -> tuple[float, float]:
        """The same in a run of its own, to the end; and the seconds of the other."""
        pairs = [self._pair(call, other, repeats, turn) for turn in range(_CONFIRMING)]
        return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)

    def _pair(self, call: Call, other: Call, repeats: int, turn: int) -> tuple[float, float]:
        """Both after each other, every other time in the opposite order: the ratio, the other's
        seconds."""
        if turn % 2:
            theirs = self._sample(other, repeats)
            return self._sample(call, repeats) / theirs, theirs
        own = self._sample(call, repeats)
        theirs = self._sample(other, repeats)
        return own / theirs, theirs
