"""What leaves the cache, and that nobody who uses it meanwhile finds a part of anything."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from conftest import ROOT
from loma import cache
from loma.cache import pruning as cache_pruning
from loma.errors import SettingError
from loma.tools import cli

HOUR, DAY = 3600.0, 24 * 3600.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LOMA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("LOMA_CACHE_LIMIT", raising=False)
    yield tmp_path / "cache"
    cache_pruning._scanned.pop(tmp_path / "cache", None)


def _store(name: str, size: int = 1000, age: float = 0.0) -> str:
    """An object of that many bytes and some for its manifest, used so many seconds ago."""
    key = cache.digest([name])
    place = cache.obtain(key, lambda draft: _fill(draft, size))
    _age(place, age)
    return key


def _fill(draft: Path, size: int) -> None:
    (draft / "data").write_bytes(b"x" * size)


def _age(place: Path, age: float) -> None:
    when = time.time() - age
    os.utime(place, (when, when))


def test_what_was_not_used_for_long_goes(folder: Path) -> None:
    old, new = _store("old", age=3 * DAY), _store("new", age=DAY)
    cache.write_index("a", {"object": old})
    cache.write_index("b", {"object": new})
    cache.add_note("n", old, {"object": old})
    count, freed = cache.prune(older_than=2 * DAY)
    assert count == 1
    assert 1000 <= freed < 1500
    assert cache.find(old) is None
    assert cache.find(new) is not None
    assert [path.name for path in (folder / "index").iterdir()] == ["b.json"]
    assert cache.notes("n", ()) == []
    assert not list((folder / "temporary").iterdir())
    assert cache.prune(older_than=2 * DAY) == (0, 0)


def test_the_least_recently_used_goes_first_and_use_counts(folder: Path) -> None:
    keys = [_store(str(k), age=(10 - k) * DAY) for k in range(5)]
    assert cache.find(keys[0]) is not None  # which is a use of the oldest
    count, _ = cache.prune(limit=4000)
    left = [key for key in keys if (folder / "objects" / key).exists()]
    assert left == [keys[0], *keys[-len(left) + 1 :]]
    assert count == 5 - len(left) > 1
    assert sum(f.stat().st_size for f in (folder / "objects").rglob("*")) < 4000 + 4096 * len(left)


def test_what_was_used_just_now_stays(folder: Path) -> None:
    keys = [_store(str(k)) for k in range(3)]
    assert cache.prune(older_than=0, limit=0) == (0, 0)
    assert all(cache.find(key) for key in keys)


def test_the_cache_keeps_itself_below_a_bound(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_pruning, "_SCAN_SECONDS", 0.0)
    monkeypatch.setenv("LOMA_CACHE_LIMIT", "10K")
    for k in range(30):
        _store(str(k), age=HOUR)
        assert int(str(cache.info()["bytes"])) < 12_000
    assert 5 <= int(str(cache.info()["objects"])) <= 9
    monkeypatch.setenv("LOMA_CACHE_LIMIT", "none")
    for k in range(30, 45):
        _store(str(k), age=HOUR)
    assert int(str(cache.info()["objects"])) >= 20
    monkeypatch.setenv("LOMA_CACHE_LIMIT", "much")
    with pytest.raises(SettingError, match=r"LOMA_CACHE_LIMIT: a size is .*'much', or is none"):
        _store("more")


def test_an_object_that_is_asked_for_while_it_goes_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = _store("asked for", age=DAY)
    rename, asked = os.rename, itertools.count()

    def asking(source: Path, target: Path) -> None:
        if next(asked) == 0:  # another process is quicker
            os.utime(source)
        rename(source, target)

    monkeypatch.setattr(os, "rename", asking)
    assert cache.prune(older_than=HOUR) == (0, 0)
    assert cache.find(key) is not None


def test_an_object_that_is_gone_is_not_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes between being looked at and being returned."""
    key = _store("gone", age=DAY)
    whole = cache._is_whole

    def then_gone(place: Path) -> bool:
        found = whole(place)
        cache.prune(older_than=HOUR)
        return found

    monkeypatch.setattr(cache, "_is_whole", then_gone)
    assert cache.find(key) is None


def test_one_process_deletes_at_a_time(folder: Path) -> None:
    from filelock import FileLock

    key = _store("locked", age=DAY)
    with FileLock(folder / "locks" / "pruning.lock", mode=0o600):
        cache_pruning.prune(folder, limit=0, wait=False)
        assert (folder / "objects" / key).exists()
    cache_pruning.prune(folder, limit=0, wait=False)
    assert not (folder / "objects" / key).exists()


_USER = """
import random, sys, time
from pathlib import Path
from loma import cache
key = sys.argv[1:]
def fill(draft):
    for name in ("a", "b", "c"):
        (draft / name).write_text(draft.name.split(".")[0] * 200)
end, found = time.monotonic() + 3, 0
while time.monotonic() < end:
    k = random.choice(key)
    place = cache.obtain(k, fill)
    try:
        texts = [(place / name).read_text() for name in ("a", "b", "c")]
    except FileNotFoundError:  # all of it is gone: the test gives nobody ten minutes
        continue
    assert texts == [k * 200] * 3
    found += 1
print(found)
"""


def test_processes_that_use_the_cache_meanwhile(folder: Path) -> None:
    """All that lies there is made old again and again, and deleted: nobody finds a part of it."""
    keys = [cache.digest([str(k)]) for k in range(3)]
    users = [
        subprocess.Popen(
            [sys.executable, "-c", _USER, *keys], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    removed = 0
    while any(user.poll() is None for user in users):
        for place in (folder / "objects").glob("*"):
            with contextlib.suppress(FileNotFoundError):
                _age(place, DAY)
        removed += cache.prune(older_than=HOUR)[0]
        time.sleep(0.05)
    assert [user.returncode for user in users] == [0, 0]
    assert all(int(user.communicate()[0]) > 0 for user in users)
    assert removed > 0


def test_what_is_abandoned_is_swept_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while an object that is as old goes, or comes back because somebody asked for it."""
    rename = os.rename
    for asked in (False, True):
        key = _store(f"old {asked}", age=10 * DAY)

        def swept(source: Path, target: Path, asked: bool = asked) -> None:
            rename(source, target)
            monkeypatch.setattr(os, "rename", rename)
            if asked:
                _age(target, 9 * DAY)
            cache._remove_abandoned(folder)

        monkeypatch.setattr(os, "rename", swept)
        assert cache.prune(older_than=HOUR)[0] == 1
        assert cache.find(key) is None
        assert not list((folder / "temporary").iterdir())


_READER = """
import sys, time
from pathlib import Path
from loma import cache
key, stop = sys.argv[1], Path(sys.argv[2])
found = 0
while not stop.exists():
    place = cache.find(key)
    assert place is not None and (place / "data").stat().st_size == 1000
    if not found:
        print("found", flush=True)
    found += 1
    time.sleep(0.01)
"""


def test_what_another_process_uses_stays_while_this_one_goes_over_the_bound(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of all, but in use; of the others the least recently used are gone."""
    used = _store("used", age=3 * DAY)
    stop = tmp_path / "stop"
    command = [sys.executable, "-c", _READER, used, str(stop)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "found\n"
        monkeypatch.setattr(cache_pruning, "_SCAN_SECONDS", 0.0)
        monkeypatch.setenv("LOMA_CACHE_LIMIT", "10K")
        keys = [_store(str(k), age=2 * DAY - k * HOUR) for k in range(20)]
        stop.touch()
    assert reader.returncode == 0
    left = [(folder / "objects" / key).exists() for key in keys]
    assert 3 <= sum(left) <= 9
    assert left == sorted(left)
    assert cache.find(used) is not None


def test_the_command(folder: Path) -> None:
    run = CliRunner().invoke
    assert run(cli.main, ["cache", "prune"]).output == "removed 0 objects with 0.0 MiB\n"
    _store("old", size=2**20, age=3 * DAY)
    _store("new", age=DAY)
    assert run(cli.main, ["cache", "prune", "--older-than", "4d"]).output.startswith("removed 0")
    shown = run(cli.main, ["cache", "prune", "--older-than", "50h"])
    assert shown.output == "removed 1 objects with 1.0 MiB\n"
    found = json.loads(run(cli.main, ["cache", "prune", "--below", "10", "--json"]).output)
    assert found["removed"] == 1
    assert json.loads(run(cli.main, ["cache", "info", "--json"]).output)["limit"] == 2 * 2**30
    for option, value, text in (
        ("--older-than", "soon", "soon is no time such as 10m, 12h, 30d or 4w"),
        ("--below", "much", "much is no size such as 500M or 2G"),
    ):
        wrong = run(cli.main, ["cache", "prune", option, value])
        assert wrong.exit_code == 2
        assert text in wrong.output
