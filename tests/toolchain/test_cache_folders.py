"""Which folders the cache uses: whose they are, what they may hold, and what is said otherwise."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock  # noqa: F401  (imported later, a process of another user might not find it)
import pytest
from click.testing import CliRunner

from conftest import ROOT
from loma import cache, config
from loma.cache import roots as cache_roots
from loma.errors import CacheError, SettingError
from loma.tools import cli, tuning

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs a user who may become another one")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder, which does not exist yet; those that stand in for it are near it."""
    monkeypatch.setenv("LOMA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "cache"


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As ``folder``, where every user may look."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        (Path(place) / "tmp").mkdir()
        (Path(place) / "tmp").chmod(0o1777)
        monkeypatch.setenv("LOMA_CACHE_DIR", str(Path(place) / "cache"))
        monkeypatch.setenv("TMPDIR", str(Path(place) / "tmp"))
        monkeypatch.setenv("HOME", str(Path(place) / "no home"))
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        yield Path(place) / "cache"


def fill(text: str = "made") -> Callable[[Path], None]:
    def write(draft: Path) -> None:
        (draft / "file").write_text(text)

    return write


def refuse(draft: Path) -> None:
    raise AssertionError("made again")


def use() -> None:
    """Writes one thing of each kind."""
    cache.obtain("key", fill())
    cache.write_index("program", {"object": "key"})
    cache.add_note("program", "kernel", {"object": "key"})


def modes(root: Path) -> dict[str, int]:
    paths = [root, *(path for path in root.rglob("*") if "locks" not in path.parts)]
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in paths}


def as_nobody(check: Callable[[], object]) -> None:
    """Runs it as the user nobody, in a child."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


# --------------------------------------------------------------------------------- permissions


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002, 0o000])
def test_files_and_folders_follow_the_umask(folder: Path, mask: int) -> None:
    """Whatever it is, nobody else may write."""
    before = os.umask(mask)
    try:
        use()
    finally:
        os.umask(before)
    for name, mode in modes(folder).items():
        expected = 0o755 if (folder / name).is_dir() else 0o644
        assert mode == expected & ~mask, name
    for lock in (folder / "locks").iterdir():
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600  # who can open it could keep it locked
    assert cache.obtain("key", refuse) == folder / "objects" / "key"


@as_root
def test_what_root_made_another_user_reads_and_does_not_write(shared: Path) -> None:
    before = os.umask(0o022)
    use()
    os.umask(before)
    known = modes(shared)

    def check() -> None:
        assert cache.obtain("key", refuse) == shared / "objects" / "key"
        assert cache.read_index("program") == {"object": "key"}
        assert cache.notes("program", ()) == [{"object": "key"}]
        own = shared.parent / "tmp" / f"loma-{NOBODY}"
        assert cache.obtain("other", fill()) == own / "objects" / "other"
        cache.add_note("program", "other", {"object": "other"})
        assert [note["object"] for note in cache.notes("program", ())] == ["key", "other"]
        assert modes(own)["."] == 0o700
        assert cache.info() == {
            "path": str(shared), "writes": str(own), "entries": 1, "objects": 2,
            "bytes": cache.info()["bytes"], "limit": 2 * 2**30,
        }  # fmt: skip
        assert cache.clear() == 0
        assert cache.read_index("program") == {"object": "key"}

    as_nobody(check)
    assert modes(shared) == known


@as_root
def test_what_root_keeps_to_itself_is_made_again(shared: Path) -> None:
    before = os.umask(0o077)
    use()
    os.umask(before)

    def check() -> None:
        own = shared.parent / "tmp" / f"loma-{NOBODY}"
        assert cache.obtain("key", fill()) == own / "objects" / "key"
        assert cache.read_index("program") is None

    as_nobody(check)


@as_root
def test_a_damaged_object_of_roots_is_made_again_elsewhere(shared: Path) -> None:
    use()
    (shared / "objects" / "key" / "file").write_text("mad")

    def check() -> None:
        own = shared.parent / "tmp" / f"loma-{NOBODY}"
        assert cache.obtain("key", fill()) == own / "objects" / "key"
        assert cache.find("key") == own / "objects" / "key"

    as_nobody(check)
    assert (shared / "objects" / "key" / "file").read_text() == "mad"


@as_root
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    use()
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(CacheError, match="belongs to the user nobody, who could change the code"):
        cache.read_index("program")
    with pytest.raises(CacheError, match=f"{folder} .* name a folder of your own in LOMA_CACHE_D"):
        use()
    os.chown(folder, 0, 0)
    os.chown(folder / "objects", 4_000_000, 0)
    with pytest.raises(CacheError, match="objects belongs to the user with the number 4000000"):
        cache.find("key")


@as_root
def test_a_link_of_another_user_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    folder.symlink_to(tmp_path / "own")
    os.chown(folder, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(CacheError, match="belongs to the user nobody"):
        use()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777, 0o757])
@pytest.mark.parametrize("name", [".", "objects", "index", "notes", "tuning", "temporary", "locks"])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, name: str, mode: int) -> None:
    use()
    place = folder / name
    place.chmod(mode)
    with pytest.raises(CacheError) as caught:
        cache.obtain("key", refuse)
    assert f"others may write to the cache folder {place} (its mode is {mode:o})" in str(
        caught.value
    )
    assert (f"chmod -R go-w {place}, or name a" in str(caught.value)) == (mode != 0o1777)
    assert str(caught.value).endswith("name a folder of your own in LOMA_CACHE_DIR")
    assert "\n" not in str(caught.value)
    place.chmod(0o755)
    assert cache.obtain("key", refuse) == folder / "objects" / "key"


def test_what_others_made_in_the_private_folder_is_not_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last resort lies where everybody may write."""
    real = cache_roots._may
    monkeypatch.setattr(
        cache_roots, "_may", lambda place, what: "tmp" in place.parts[-2:] and real(place, what)
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    own = tmp_path / "tmp" / f"loma-{os.geteuid()}"
    own.mkdir(parents=True)
    own.chmod(0o777)
    with pytest.raises(CacheError, match="none of the folders for compiled code can be written"):
        use()


# ---------------------------------------------------------------------------- where it cannot be


def test_a_file_in_place_of_the_folder(folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(CacheError, match=f"{folder} should be a folder .* but is a file: remove"):
        use()
    done = CliRunner().invoke(cli.main, ["cache", "info"])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {folder} should be a folder")
    assert done.stderr.count("\n") == 1
    folder.unlink()
    folder.mkdir()
    (folder / "index").write_text("")
    with pytest.raises(CacheError, match="index should be a folder of the cache"):
        cache.read_index("program")


def test_a_file_above_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text("")
    monkeypatch.setenv("LOMA_CACHE_DIR", str(folder / "below"))
    with pytest.raises(CacheError, match=f"{folder}/below cannot be used: Not a directory"):
        use()


def test_a_link_to_a_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    use()
    assert (tmp_path / "elsewhere" / "objects" / "key" / "file").read_text() == "made"
    assert cache.obtain("key", refuse) == folder / "objects" / "key"


def test_a_link_to_nothing(folder: Path, tmp_path: Path) -> None:
    folder.symlink_to(tmp_path / "nothing")
    with pytest.raises(CacheError, match="cannot be used: No such file or directory"):
        use()


@pytest.mark.parametrize("home", [False, True])
def test_without_a_home_there_is_a_private_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: bool
) -> None:
    """Where nothing names one, or names one that does not exist and cannot be made."""
    own = tmp_path / "tmp" / f"loma-{os.geteuid()}"
    own.parent.mkdir()
    monkeypatch.delenv("LOMA_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME")
    if home:
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        real = cache_roots._may  # root may write everywhere
        monkeypatch.setattr(
            cache_roots, "_may", lambda place, what: place != tmp_path and real(place, what)
        )
    else:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("pwd.getpwuid", lambda _: (_ for _ in ()).throw(KeyError))
        assert config.cache_dir() == own
    use()
    assert (own / "objects" / "key" / "file").read_text() == "made"
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


def test_a_home_that_does_not_exist_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOMA_CACHE_DIR", "~no_such_user/loma")
    with pytest.raises(SettingError, match="LOMA_CACHE_DIR: there is no home folder for '~no_such"):
        use()


@as_root
def test_a_folder_that_cannot_be_written_is_read(shared: Path) -> None:
    """The user's own, too: new things go to the user's usual cache, where there is one."""
    home = shared.parent / "home"
    for place in (shared, home):
        place.mkdir()
        os.chown(place, NOBODY, NOBODY)

    def check() -> None:
        use()
        shared.chmod(0o555)
        os.environ["XDG_CACHE_HOME"] = str(home)
        assert cache.obtain("key", refuse) == shared / "objects" / "key"
        assert cache.obtain("other", fill()) == home / "loma" / "objects" / "other"
        os.environ["LOMA_CACHE_DIR"] = str(shared / "below")
        assert cache.obtain("other", refuse) == home / "loma" / "objects" / "other"

    as_nobody(check)


# ------------------------------------------------------------------------------------ full disks


@pytest.mark.parametrize("when", ["in a builder", "in a sync", "in a record", "in a rename"])
def test_a_full_disk_leaves_nothing_and_names_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def build(draft: Path) -> None:
        (draft / "half").write_text("half")
        if when == "in a builder":
            full()

    storing: list[Callable[[], object]] = [lambda: cache.obtain("key", build)]
    with monkeypatch.context() as patched:
        if when != "in a builder":
            storing += [lambda: cache.write_index("p", {}), lambda: cache.add_note("p", "n", {})]
            module, name = {
                "in a sync": (os, "fsync"), "in a record": (json, "dumps"),
                "in a rename": (os, "replace"),
            }[when]  # fmt: skip
            patched.setattr(module, name, full)
        for store in storing:
            with pytest.raises(CacheError) as caught:
                store()
            message = str(caught.value)
            assert message.startswith(f"the cache folder {folder} cannot be used: No space left")
            assert "LOMA_CACHE_DIR" in message
    left = [path for path in folder.rglob("*") if path.is_file() and "locks" not in path.parts]
    assert left == []
    assert cache.obtain("key", fill()) == folder / "objects" / "key"


def test_files_reach_the_disk_before_their_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else a loss of power leaves an empty file."""
    events: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        events.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        fsync(handle)

    def renamed(source: Path, target: Path) -> None:
        events.append(("rename", Path(target).name))
        events.append(("from", Path(source).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    use()
    made, index, note = (k for k, event in enumerate(events) if event[0] == "rename")
    draft = events[made + 1][1]
    assert {("sync", "file"), ("sync", "manifest.json"), ("sync", draft)} <= set(events[:made])
    assert events[made + 2] == ("sync", "objects")
    assert ("sync", events[index + 1][1]) in events[made:index]
    assert ("sync", events[note + 1][1]) in events[index:note]


# ---------------------------------------------------------------------------- while a process runs


def test_the_folder_may_go_while_a_process_runs(folder: Path) -> None:
    use()
    assert cache.clear() == 1
    assert cache.find("key") is None
    use()
    (folder / "objects" / "key").rename(folder / "objects" / "elsewhere")
    assert cache.obtain("key", fill("again")).joinpath("file").read_text() == "again"


def test_processes_that_repair_at_once_do_it_once(folder: Path) -> None:
    use()
    (folder / "objects" / "key" / "file").write_text("mad")
    code = """
import time
from loma import cache
def build(draft):
    print("made")
    time.sleep(0.5)
    (draft / "file").write_text("made")
print((cache.obtain("key", build) / "file").read_text())
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    outputs = sorted(process.communicate()[0] for process in processes)
    assert outputs == ["made\n", "made\n", "made\nmade\n"]
    assert [path.name for path in (folder / "objects").iterdir()] == ["key"]


def test_names_that_lead_elsewhere_are_no_objects(folder: Path, tmp_path: Path) -> None:
    use()
    objects = folder / "objects"
    (objects / "key").rename(tmp_path / "key")
    for name in (
        "../../key",
        str(tmp_path / "key"),
        "",
        ".",
        "..",
        "a/b",
        None,
        5,
        ["key"],
        "key\n",
    ):
        assert cache.find(name) is None

        def make() -> tuple[Path, dict[str, object]]:
            return cache.obtain("made", fill()), {"what": "made"}

        cache.write_index("program", {"object": name, "what": "found"})
        assert cache.recall("program", ("what",), make) == (
            objects / "made", {"object": "made", "what": "made"},
        )  # fmt: skip


# -------------------------------------------------------------------------------------- commands


def test_the_command_names_both_folders(folder: Path) -> None:
    use()
    info = json.loads(CliRunner().invoke(cli.main, ["cache", "info", "--json"]).stdout)
    assert info["path"] == info["writes"] == str(folder)
    assert [choice for choice in tuning.choices() if choice.path] == []
