"""A damaged cache: whatever happened to its files, the next process works, and repairs them.

``pytest --fuzz-examples N tests/toolchain/test_cache_damage.py`` tries N random damages; without
it they are few and always the same. What would crash does so in a child of a process that has
imported all.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fresh
import pytest
from conftest import ROOT
from sampled import one_in

import loma
from loma import cache, config, specialise
from loma.backends import toolchain
from loma.backends.scalar.build import extension

PROGRAM = """
def half(x : In[float]) -> float:
    return x / 2.0

def square(x : In[Tensor[N]]) -> Tensor[N]:
    return x * x
"""
KERNEL = f"""
import torch, loma
from loma import specialise
specialise.use(specialise.Thresholds(1, 0.0, 0.0))
m = loma.compile({PROGRAM!r})
x = torch.arange(5.0)
m.square(x)
m.square(x)
specialise.wait()
(kernel,) = specialise.made()
"""
# Uses every kind of thing that is kept, each time in a new child; a line on standard input is a
# cache. The answer is what came out, how the child ended, and what it compiled or complained about.
SERVER = f"""
import json, os, sys, tempfile
import torch, loma
from loma import cache, compat, specialise
specialise.use(specialise.Thresholds(1, 0.0, 0.0))

def use():
    m = loma.compile({PROGRAM!r})
    x = torch.arange(5.0)
    values = [m.square(x).tolist(), m.half(3.0)]
    structs, library = compat.compile("def third(x : In[float]) -> float:\\n    return x / 3.0\\n")
    values.append(library.third(6.0))
    for _ in range(2):
        m.square(x)
        specialise.wait()
    values += [m.square(x).tolist(), len(specialise.made())]
    return values

# What each child would do first is done once: it uses no cache.
import filelock, jinja2
from loma import pipeline
from loma.backends import scalar, toolchain
from loma.program import Program
program = Program({PROGRAM!r}, "<text>", "module")
pipeline.generated(program.stage())
pipeline.generated_scalars(program.stage())
program.key(), toolchain.detect()
for line in sys.stdin:
    out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
    pid = os.fork()
    if pid == 0:
        os.dup2(err.fileno(), 2)
        os.environ["LOMA_CACHE_DIR"] = line.strip()
        json.dump(use(), out)
        out.flush()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    for file in (out, err):
        file.seek(0)
    print(json.dumps([status, out.read(), err.read()]), flush=True)
"""
VALUES = [[0.0, 1.0, 4.0, 9.0, 16.0], 1.5, 2.0, [0.0, 1.0, 4.0, 9.0, 16.0], 1]

# Stands for g++, which takes its time: it copies what g++ made before, and wants its own inputs
# from the cache to be that, too.
COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo 1 && exit
given=$*
for made; do :; done
name=$(basename "$made")
case $given in *runtime.cpp*) name=extension.so;; esac
for input; do
    case $input in
        "$made") continue;;
        /*/objects/*.o | /*/objects/*.so) ;;
        /*/objects/*) input=$input/light_prelude.h.gch;;
        *) continue;;
    esac
    cmp -s "$input" "PREPARED/$(basename "$input")" || { echo "error: damaged $input" >&2; exit 9; }
done
cp "PREPARED/$name" "$made"
"""

Use = Callable[[Path], str]


@pytest.fixture(scope="module")
def use(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Use]:
    """Uses a cache in a new process, which must work; what that compiled, a line each."""
    prepared = tmp_path_factory.mktemp("prepared")
    module = loma.compile(PROGRAM)
    kernel = {**os.environ, "PYTHONPATH": str(ROOT), "LOMA_SPECIALISATIONS": "8"}
    fresh.run(["-c", KERNEL], env=kernel, check=True)
    (found,) = {folder for _, folder in specialise._known(module.__folder__)}
    files = [module.__folder__ / name for name in ("module.so", toolchain.MEMORY_LIBRARY)]
    for path in (*files, found / toolchain.KERNELS_FILE):
        shutil.copy(path, prepared)
    shutil.copy(str(extension().__file__), prepared / "extension.so")
    for name in ("libtorch_cpu.so", "libc10.so", "libtorch_python.so"):  # which linkers look at
        shutil.copy(files[1], prepared / name)
    objects = ("part0.o", "kernels.o", "launch.o", "python.o", "pool.o")
    for name in (*objects, "light_prelude.h.gch"):
        (prepared / name).write_text(f"{name}, which nobody reads\n")
    compiler = prepared / "compiler"
    compiler.write_text(COMPILER.replace("PREPARED", str(prepared)))
    compiler.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**kernel, "LOMA_CXX": str(compiler), "LOMA_VERBOSE": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def run(place: Path) -> str:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(f"{place}\n")
        server.stdin.flush()
        status, output, errors = json.loads(server.stdout.readline())
        assert status == 0, f"status {status}: {errors[-2000:]}"
        assert json.loads(output) == VALUES, errors[-2000:]
        assert "error" not in errors
        assert "Warning" not in errors
        return "".join(line for line in errors.splitlines() if "--version" not in line)

    yield run
    server.communicate()


@pytest.fixture(scope="module")
def whole(use: Use, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with everything in it."""
    place = tmp_path_factory.mktemp("whole") / "cache"
    use(place)
    return place


def copy(whole: Path, tmp_path: Path) -> Path:
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    return Path(shutil.copytree(whole, tmp_path / "cache"))


def entries(place: Path) -> list[Path]:
    """Every file that is kept and later read."""
    folders = [place / name for name in ("objects", "index", "notes")]
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())


# --------------------------------------------------------------------------------------- damages


def truncated(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def emptied(path: Path, rng: random.Random) -> None:
    os.truncate(path, 0)


def flipped(path: Path, rng: random.Random) -> None:
    """One bit, or a whole page of zeros, as after a loss of power."""
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    if rng.random() < 0.5:
        content[at] ^= 1 << rng.randrange(8)
    else:
        content[at] ^= 255
        content[at + 1 : at + 4096] = bytes(len(content[at + 1 : at + 4096]))
    path.write_bytes(content)


def removed(path: Path, rng: random.Random) -> None:
    path.unlink()


def a_folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").touch()


def a_dead_link(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def other_content(path: Path, rng: random.Random) -> None:
    """Of another kind, or of a record that was made under another name."""
    texts = [
        "{",
        "[" * 100_000,
        "\0" * 100,
        "[]",
        "{}",
        "null",
        "5",
        '{"object": "../../elsewhere"}',
    ]
    texts += ['{"files": 5}', '{"files": {"module.so": 5}}', '{"object": ["a"], "operators": 5}']
    texts += [other.read_text() for other in path.parent.glob("*.json") if other != path]
    path.write_text(rng.choice(texts))


def the_whole_folder(path: Path, rng: random.Random) -> None:
    """Of an object, or of all notes of a module, or the index."""
    shutil.rmtree(path.parent)
    if rng.random() < 0.5:
        path.parent.mkdir()


DAMAGES = (
    truncated, emptied, flipped, removed, a_folder, a_dead_link, other_content, the_whole_folder,
)  # fmt: skip


# ----------------------------------------------------------------------------------------- tests


def test_a_whole_cache_is_used_as_it_is(use: Use, whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in entries(whole)}
    assert use(whole) == ""
    assert {path: path.stat().st_mtime_ns for path in entries(whole)} == before


@pytest.mark.parametrize(
    "name",
    one_in(3, [
        "module.so", "library.so", "kernels.so", "libloma_memory.so", "python.o", "kernels.o",
        "light_prelude.h.gch", "light_prelude.h", "manifest.json", "index", "notes",
    ]),
)  # fmt: skip
def test_what_was_cut_short_is_made_again(use: Use, whole: Path, tmp_path: Path, name: str) -> None:
    """All files of a kind: a library would end the process that loads it."""
    place = copy(whole, tmp_path)
    found = [
        path for path in entries(place) if name in (path.name, path.relative_to(place).parts[0])
    ]
    assert found
    for path in found:
        os.truncate(path, path.stat().st_size // 2)
    use(place)
    if name in (
        "python.o",
        "light_prelude.h.gch",
        "light_prelude.h",
    ):  # which only a compiler reads
        (place / "index").rename(tmp_path / "index")
        for path in place.glob("objects/*/module.cpp"):
            path.unlink()
        assert use(place) != ""
    assert use(place) == ""
    for path in found:
        assert path.read_bytes() == (whole / path.relative_to(place)).read_bytes() or name in (
            "notes", "manifest.json",
        )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    one_in(
        3,
        ["[" * 100_000, "[]", "{}", '{"object": 5}', "null", "5", '{"object": "../../elsewhere"}'],
    ),
    ids=lambda text: text[:20],
)
def test_an_index_of_another_shape_is_made_again(
    use: Use, whole: Path, tmp_path: Path, text: str
) -> None:
    """And notes."""
    place = copy(whole, tmp_path)
    for path in [*(place / "index").iterdir(), *place.glob("notes/*/*")]:
        path.write_text(text)
    use(place)
    assert use(place) == ""


def test_random_damages(
    use: Use, whole: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    wanted = request.config.getoption("--fuzz-examples")
    for number in range(wanted or 12):
        seed = random.SystemRandom().randrange(2**32) if wanted else number
        rng = random.Random(seed)
        place = copy(whole, tmp_path)
        done = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            path, damage = rng.choice(entries(place)), rng.choice(DAMAGES)
            done.append(f"{path.relative_to(place)}: {damage.__name__}")
            if path.stat().st_size:
                damage(path, rng)
        print(f"seed {seed}: {', '.join(done)}")
        use(place)
        assert use(place) == "", "what was damaged is made again once, not each time"


def test_objects_and_records_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The store alone, which knows nothing of compilers: damage after damage in one process."""
    monkeypatch.setenv("LOMA_CACHE_DIR", str(tmp_path / "cache"))
    made: list[str] = []

    def build(draft: Path) -> None:
        made.append(draft.name)
        (draft / "one").write_text("one" * 1000)
        (draft / "two").write_text("two")

    def make() -> tuple[Path, dict[str, object]]:
        return cache.obtain("key", build), {"value": [1.5, "x", {"a": None}]}

    rng = random.Random(request.config.getoption("--fuzz-examples") and random.random())
    for _ in range((request.config.getoption("--fuzz-examples") or 0) + 40):
        folder, record = cache.recall("program", ("value",), make)
        cache.add_note("program", "note", record)
        assert (folder / "one").read_text() == "one" * 1000
        assert (folder / "two").read_text() == "two"
        assert record == {"value": [1.5, "x", {"a": None}], "object": "key"}
        path = rng.choice(entries(tmp_path / "cache"))
        monkeypatch.setattr(cache, "_verified", {})  # as in another process
        rng.choice(DAMAGES)(path, rng)
        assert cache.notes("program", ()) in ([], [record])
    assert len(made) > 10
    left = [path for path in entries(tmp_path / "cache") if "damaged" in path.name]
    assert left == []


@pytest.mark.parametrize("shape", [{}, {"object": 5}, {"object": "key"}, {"value": 5}])
def test_a_record_of_another_shape_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: dict[str, object]
) -> None:
    """Also where it was written as it should be."""
    monkeypatch.setenv("LOMA_CACHE_DIR", str(tmp_path / "cache"))
    folder = cache.obtain("key", lambda draft: (draft / "file").touch())
    cache.write_index("program", shape)
    made = cache.recall("program", ("value",), lambda: (folder, {"value": 6}))
    assert made == (folder, {"value": 6, "object": "key"})
    cache.add_note("program", "note", shape)
    assert cache.notes("program", ("value", "object")) == []


# --------------------------------------------------------------------------- what is linked later


@pytest.mark.full
def test_a_program_without_python_does_not_link_what_is_damaged(tmp_path: Path) -> None:
    module = loma.compile(PROGRAM)
    folder = tmp_path / "objects" / module.__folder__.name
    shutil.copytree(module.__folder__, folder)
    os.truncate(folder / "module.cpp", 100)
    with pytest.raises(loma.errors.CacheError, match="in the cache is damaged or gone: compile"):
        toolchain.build_executable([folder / "module.cpp"], tmp_path / "program")
    assert not (tmp_path / "program").exists()
    assert config.cache_dir() not in folder.parents
