"""The search of the tuner, with candidates whose times are made up; and its results in files."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from loma import cache
from loma.backends.schedule.choices import Choice, Option, Taken
from loma.tuning import results, state
from loma.tuning.calls import same
from loma.tuning.results import Result
from loma.tuning.search import Call, Found, Lowered, Model, Search, neighbours

CHOICES = {
    "strip of y": Choice("strip", (512, 128, 2048), 1000.0),
    "innermost of y": Choice("innermost", ("i", "j"), 1000.0),
    "strip of z": Choice("strip", (512, 128, 2048), 1.0),
}


class World:
    """A clock, and candidates that take ``seconds`` of it; those of ``wrong`` give other results
    than the usual one. Code is ``text``; each takes ``compiling`` seconds to make."""

    def __init__(
        self,
        seconds: Callable[[Taken], float],
        wrong: Callable[[Taken], bool] = lambda taken: False,
        text: Callable[[Taken], str] = lambda taken: repr(sorted(taken.items())),
        compiling: float = 1.0,
    ) -> None:
        self.seconds, self.wrong, self.text, self.compiling = seconds, wrong, text, compiling
        self.now = 0.0
        self.made: list[Taken] = []
        self.is_apart = False

    def lower(self, taken: Taken) -> Lowered | None:
        return Lowered(self.text(taken), CHOICES)

    def compile(self, taken: Taken) -> None:
        self.now += self.compiling

    def make(self, taken: Taken) -> Call | None:
        self.made.append(taken)
        return None if self.wrong(taken) else self.call(taken)

    def call(self, taken: Taken) -> Call:
        def run() -> None:
            self.now += self.seconds(taken)

        return run

    def search(self, seconds: float = 100.0, starts: Sequence[Taken] = ()) -> Search:
        return Search(self, seconds, starts, at_once=1, clock=lambda: self.now)

    def found(self, seconds: float = 100.0) -> Found:
        found = self.search(seconds).run()
        assert found is not None
        return found


def _times(**factors: float) -> Callable[[Taken], float]:
    """Milliseconds: 10, times a factor for each thing taken."""

    def seconds(taken: Taken) -> float:
        time = 0.01
        for option in taken.values():
            time *= factors.get(f"o{option}", 1.0)
        return time

    return seconds


def test_the_winner_takes_several_choices() -> None:
    world = World(_times(o128=0.8, o2048=1.3, oj=0.9))
    found = world.found()
    assert found.taken == {"strip of y": 128, "innermost of y": "j", "strip of z": 128}
    assert found.tuned == pytest.approx(0.01 * 0.8 * 0.8 * 0.9)
    assert found.usual == pytest.approx(0.01)
    assert [trial.best for trial in found.trials] == sorted(
        (trial.best for trial in found.trials), reverse=True
    )


def test_two_changes_that_are_only_faster_together_are_found() -> None:
    def seconds(taken: Taken) -> float:
        both = taken.get("strip of y") == 2048, taken.get("innermost of y") == "j"
        return {(True, True): 0.008, (True, False): 0.011, (False, True): 0.0105}.get(both, 0.01)

    found = World(seconds).found()
    assert found.taken.items() >= {"strip of y": 2048, "innermost of y": "j"}.items()
    assert all(len(trial.taken) == 1 for trial in found.trials[:3])  # each by itself first
    assert "strip of z" not in found.trials[3].taken  # a kernel of a thousandth of the work


def test_neighbours_of_what_is_clearly_slower_are_not_tried() -> None:
    def seconds(taken: Taken) -> float:
        return 0.01 if not taken else 0.013

    assert all(len(trial.taken) == 1 for trial in World(seconds).found().trials)


def test_nothing_is_adopted_that_gains_too_little() -> None:
    assert World(_times(o128=0.985, oj=1.2)).found().taken == {}
    assert World(_times()).found().taken == {}


def test_the_second_run_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was fast by chance is not adopted."""
    world = World(_times(o128=0.5))
    monkeypatch.setattr(Search, "_confirmed", lambda *_: (0.98, 0.01))
    assert world.found().taken == {}


def test_what_is_wrong_never_wins() -> None:
    world = World(_times(o128=0.5, oj=0.9), wrong=lambda taken: 128 in taken.values())
    assert world.found().taken == {"innermost of y": "j"}
    assert World(_times(), wrong=lambda taken: True).search().run() is None


def test_the_same_code_is_compiled_once() -> None:
    world = World(_times(oj=0.5), text=lambda taken: str(taken.get("innermost of y", "i")))
    assert world.found().taken == {"innermost of y": "j"}
    assert len(world.made) == 2


@pytest.mark.parametrize("seconds", [3.0, 5.0, 20.0])
def test_the_time_is_kept(seconds: float) -> None:
    world = World(_times(o128=0.8), compiling=0.9)
    world.found(seconds)
    assert world.now <= seconds + world.compiling


def test_what_is_clearly_slower_is_given_up() -> None:
    calls = {"slow": 0, "near": 0}

    def seconds(taken: Taken) -> float:
        if taken.get("strip of y") == 128:
            calls["slow"] += 1
            return 0.03
        if taken.get("innermost of y") == "j":
            calls["near"] += 1
            return 0.0102
        return 0.01

    World(seconds).found()
    assert 0 < calls["slow"] < calls["near"] / 3


def test_what_was_fast_by_chance_takes_no_place() -> None:
    """Faster than the best one when it is first measured, and not beside the usual one."""
    calls = 0

    def seconds(taken: Taken) -> float:
        nonlocal calls
        if taken.get("strip of y") != 128:
            return 0.01
        calls += 1
        return 0.009 if calls <= 35 else 0.0101

    trials = World(seconds).found().trials
    assert all(trial.best == 1.0 for trial in trials)
    (chance,) = [trial for trial in trials if trial.taken == {"strip of y": 128}]
    assert chance.ratio == pytest.approx(1.01)


def test_where_compiling_is_apart_nothing_waits_for_the_slowest() -> None:
    """On a GPU candidates are measured as they are done, while others are compiled."""
    world = World(_times(o128=0.8, oj=0.9))
    world.is_apart = True
    late, measured = threading.Event(), 0

    def compiled(taken: Taken) -> None:
        if taken == {"strip of y": 128}:  # among the first that are begun
            assert late.wait(60)

    def made(taken: Taken) -> Call:
        nonlocal measured
        measured += 1
        if measured == 8:  # what differs in one choice otherwise, and what differs in two
            late.set()
        return world.call(taken)

    world.compile, world.make = compiled, made  # type: ignore[method-assign]
    found = Search(world, 100.0, at_once=2, clock=lambda: world.now).run()
    assert late.is_set()
    assert found is not None
    assert found.taken["strip of y"] == 128
    assert found.taken["innermost of y"] == "j"


def test_what_was_fast_for_a_while_hides_no_other() -> None:
    calls = 0

    def seconds(taken: Taken) -> float:
        nonlocal calls
        if taken.get("strip of y") == 128:
            calls += 1
            return 0.005 if calls <= 60 else 0.0102
        return 0.009 if taken.get("innermost of y") == "j" else 0.01

    found = World(seconds).found()
    assert calls > 60
    assert min(trial.best for trial in found.trials) < 0.6
    assert found.taken == {"innermost of y": "j"}
    assert found.tuned == pytest.approx(0.009)


def test_results_for_other_sizes_come_first() -> None:
    world = World(_times(o2048=0.5))
    start: dict[str, Option] = {"strip of z": 2048}
    world.search(starts=[start]).run()
    assert world.made[:2] == [{}, start]


def test_an_interrupted_search_ends() -> None:
    def seconds(taken: Taken) -> float:
        if taken:
            raise KeyboardInterrupt
        return 0.01

    with pytest.raises(KeyboardInterrupt):
        World(seconds).search().run()


def test_the_model_learns() -> None:
    model = Model()

    def first_and_last() -> tuple[Taken, Taken]:
        found = neighbours({}, CHOICES, model)
        return found[0].taken, found[-1].taken

    first, last = first_and_last()
    assert first in ({"strip of y": 128}, {"innermost of y": "j"})  # listed first, most work
    assert last == {"strip of z": 2048}
    model.learn("strip of y", "strip", 128, 1.0, 1.5)  # slower
    model.learn("strip of y", "strip", 2048, 1.0, 0.7)
    assert first_and_last() == ({"strip of y": 2048}, {"strip of y": 128})
    assert {} in [n.taken for n in neighbours({"strip of y": 128}, CHOICES, model)]


def test_what_is_uncertain_comes_before_what_can_gain_little() -> None:
    """Until it has been tried in as many ways."""
    model = Model()

    def is_first() -> bool:
        order = [n.taken for n in neighbours({}, CHOICES, model)]
        return order.index({"strip of y": 128}) < order.index({"strip of z": 128})

    for _ in range(20):
        model.learn("strip of y", "strip", 128, 1.0, 1.0)
    assert is_first()
    for _ in range(20):
        model.learn("strip of y", "strip", 128, 1.0, 1.1)
    assert not is_first()


def test_a_small_kernel_that_takes_much_of_the_time_is_tried_soon() -> None:
    world = World(lambda taken: 0.009 if taken.get("strip of z") == 2048 else 0.01)
    trials = [trial.taken for trial in world.found().trials]
    assert trials.index({"strip of z": 2048}) < 9


def test_what_makes_no_difference_is_not_tried_in_every_way() -> None:
    def text(taken: Taken) -> str:
        return repr(sorted((n, o) for n, o in taken.items() if o != 2048))

    model = Model()
    for _ in range(3):
        model.no_difference("strip of y", 2048)
    order = [n.taken for n in neighbours({}, CHOICES, model)]
    assert order.index({"innermost of y": "j"}) < order.index({"strip of y": 2048})
    found = World(_times(o128=0.9), text=text).found()
    assert found.taken == {"strip of y": 128, "strip of z": 128}


# ------------------------------------------------------------------------------------- results


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOMA_CACHE_DIR", str(tmp_path / "cache"))


def _result(**changes: object) -> Result:
    result = Result(
        program="p", function="f", sizes={"N": 64, "M": 32}, dtype="float32",
        choices={"strip of y": 128}, usual=2e-3, tuned=1e-3, spent=5.0, threads=2,
        processor=results.processor(), compiler=results.compiler(),
        loma=cache.package_fingerprint(), text="abc", history=[[1.0, 0.5, 0.5]],
    )  # fmt: skip
    return replace(result, **changes)  # type: ignore[arg-type]


@pytest.mark.usefixtures("own_cache")
def test_results_are_kept_and_travel(tmp_path: Path) -> None:
    one, other = _result(), _result(sizes={"N": 8, "M": 8}, choices={})
    for result in (one, other, replace(one, tuned=1.5e-3)):  # the last in the place of the first
        results.store(result)
    assert sorted(r.tuned for r in results.stored()) == [1e-3, 1.5e-3]
    file = tmp_path / "p.tuning.json"
    assert results.write(file, results.stored()) == 2
    assert results.clear() == 2
    assert results.stored() == []
    for result in results.read(file):
        results.store(result)
    assert sorted(map(str, results.stored())) == sorted(
        map(str, (other, replace(one, tuned=1.5e-3)))
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "Expecting value"), ("[]", "lacks"), ('{"format": "loma tuning 1"}', "no list"),
     ('{"format": "loma tuning 1", "results": [{"program": "p"}]}', "result 1 is not whole"),
     ("[" * 100_000, "recursion")],
)  # fmt: skip
def test_files_that_are_none_of_results(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "f.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        results.read(file)


def test_a_damaged_record_is_not_taken(tmp_path: Path) -> None:
    for change in ({"sizes": {"N": "many"}}, {"choices": {"strip": [1]}}, {"usual": "slow"}):
        file = tmp_path / "f.json"
        results.write(file, [_result()])
        found = json.loads(file.read_text())
        found["results"][0] |= change
        file.write_text(json.dumps(found))
        with pytest.raises(ValueError, match="not whole"):
            results.read(file)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("what", ["loma", "processor", "compiler"])
def test_results_from_elsewhere_are_not_used_and_said_once(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_told", set())
    results.store(_result(**{what: "another"}))
    name = "version of loma" if what == "loma" else what
    with pytest.warns(RuntimeWarning, match=f"'p.f' came from another {name} and is not used"):
        tuning = state.Tuning("auto", "p", {"f": "abc"})
    assert tuning.known() == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert state.Tuning("auto", "p", {"f": "abc"}).known() == []
        assert state.Tuning("off", "p", {"f": "abc"}).known() == []


@pytest.mark.usefixtures("own_cache")
def test_what_a_result_holds_for() -> None:
    threads = torch.get_num_threads()
    results.store(_result(threads=threads))
    tuning = state.Tuning("auto", "p", {"f": "abc", "g": "abc"})
    assert tuning.choices("f", (64, 32), "float32") == {"strip of y": 128}
    assert tuning.choices("f", (64, 33), "float32") == {}
    assert tuning.choices("f", (64, 32), "float64") == {}
    assert tuning.choices("g", (64, 32), "float32") == {}
    assert state.Tuning("auto", "p", {"f": "other text"}).known() == []
    torch.set_num_threads(threads + 1)
    try:
        assert tuning.choices("f", (64, 32), "float32") == {}
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("wrong", ["fast", 0, -1, True, float("nan"), float("inf"), None, [1]])
def test_what_cannot_be_asked_for(wrong: object) -> None:
    with pytest.raises(ValueError, match='tune must be "auto", "off" or a number of seconds'):
        state.checked(wrong)


def test_same_results() -> None:
    nan, inf = float("nan"), float("inf")
    usual = torch.tensor([1.0, nan, inf, -2.0])
    assert same(usual + 1e-6, usual, "float32")
    assert not same(usual + 1e-2, usual, "float32")
    assert not same(torch.tensor([1.0, 0.5, inf, -2.0]), usual, "float32")
    assert not same(torch.tensor([1.0, nan, -inf, -2.0]), usual, "float32")
    assert not same(torch.tensor([1.0, nan, inf, nan]), usual, "float32")
    assert not same(torch.tensor([1.0, nan, inf, inf]), usual, "float32")
    assert not same(usual.double(), usual, "float32")
    assert not same(usual[:3], usual, "float32")
    assert same(torch.tensor([]).double(), torch.tensor([]).double(), "float64")
    assert same(None, None, "float32")
    assert not same(None, usual, "float32")
    assert same(torch.tensor([1, 2]), torch.tensor([1, 2]), "float32")
    assert not same(torch.tensor([1, 2]), torch.tensor([1, 3]), "float32")
    zeros = torch.zeros(3)
    assert same(zeros, zeros, "float32")
    assert not same(zeros + 1e-9, zeros, "float32")
    assert same(usual + 1e-2, usual, "bfloat16")
    assert not same(usual + 1e-1, usual, "bfloat16")
    assert not same(usual + 1e-2, usual, "float16")
