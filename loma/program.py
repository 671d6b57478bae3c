"""A program as it is compiled: its text with what that imports, and what was asked for."""

from __future__ import annotations

import pickle
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loma import cache, config
from loma.core.saving import SAVES, Save
from loma.errors import suggest
from loma.errors.excerpts import Text, printable

if TYPE_CHECKING:
    from loma.backends.torch.parts import Real
    from loma.pipeline import Made, Optimised

Record = dict[str, Any]  # of a program or a compiled module, as JSON or a pickle has it

_STAGE_FILE = "stage.pickle"


class NotBatchable(Exception):
    """A function has no form for several samples."""


def default_real() -> Real:
    """torch's default dtype."""
    torch = sys.modules.get("torch")
    return "double" if torch and torch.get_default_dtype() == torch.float64 else "float"


@dataclass(frozen=True, slots=True)
class Program:
    """What is compiled: a text, and what was asked for one after the other, each of a function of
    what the one before gave. ``real`` is the floating type that is compiled first. The rest is as
    :func:`loma.compile` takes it."""

    source: str
    path: str
    name: str
    made: tuple[Made, ...] = ()
    timed: bool = False
    save: Save = "auto"
    contract: bool = True
    real: Real = field(default_factory=default_real)

    def record(self) -> Record:
        """For pickles, which other versions of loma read: plain values, by name."""
        return {
            "source": str(self.source), "imports": [list(pair) for pair in self.imports],
            "path": self.path, "name": self.name, "save": self.save, "contract": self.contract,
            "timed": self.timed,
        }  # fmt: skip

    @staticmethod
    def of(record: Record) -> Program:
        """From what :meth:`record` gave, or ValueError: a file may say anything."""
        try:
            fields = dict(record)
            imports = [(path, text) for path, text in fields.pop("imports")]
            program = Program(**fields)
            texts = [program.source, program.path, program.name, *(t for i in imports for t in i)]
            right = all(isinstance(text, str) for text in texts) and program.save in SAVES
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(
                f"this is no program of loma, or one of a newer loma: {error}"
            ) from None
        if not right or {type(program.contract), type(program.timed)} != {bool} or program.made:
            raise ValueError("this is no program of loma")
        source = Text(program.source)
        source.imports = imports
        return replace(program, source=source)

    def content(self) -> str:
        """A hash of the program and its settings, whoever compiles it."""
        files = [part for path, text in self.imports for part in (Path(path).name, text)]
        settings = (self.name, self.save, str(self.contract), str(self.timed))
        return cache.digest([*settings, self.source, *(asked.text for asked in self.made), *files])

    def key(self, part: str = "") -> str:
        """The entry of the cache's index."""
        from loma.backends import compilers

        compiler = (cache.package_fingerprint(), compilers.identity())
        passes = ",".join(sorted(config.optimisations()))
        return cache.digest([*compiler, passes, part, self.real, self.content()])

    def overload(self) -> str | None:
        """The overload of its functions' operators, ``loma::NAME.OVERLOAD``: one for each text with
        what it imports, and for settings that change what an operator computes or keeps. It is the
        same for all versions of loma, so that exported programs find their operators. None for what
        another version might not have: derivatives that were asked for."""
        from loma.backends.torch import overload_of

        if self.made:
            return None
        left_out = ",".join(sorted(config.OPTIMISATIONS.keys() - config.optimisations()))
        settings = [
            *([f"save {self.save}"] if self.save != "auto" else []),
            *(["timed"] if self.timed else []),
            *([] if self.contract else ["not contracted"]),
            *([f"without {left_out}"] if left_out else []),
        ]
        files = [part for path, text in self.imports for part in (Path(path).name, _plain(text))]
        return overload_of(cache.digest([_plain(self.source), *files, "", *settings]))

    @property
    def imports(self) -> list[tuple[str, str]]:
        """The paths and texts of the files that the program imports."""
        return self.source.imports if isinstance(self.source, Text) else []

    def stage(self, key: str = "") -> Optimised:
        """The program with what autograd runs; from the cache where that has it, which takes a
        hundredth of the time. ``key`` is that of the index, where it is known."""
        folder = cache.find(_stage_key(key or self.key()))
        if folder is not None:
            stage: Optimised = pickle.loads((folder / _STAGE_FILE).read_bytes())
            return stage
        return self.optimised()

    def optimised(self) -> Optimised:
        """The same, made anew, but for the program that it is made of."""
        from loma import pipeline

        if not self.made:
            return pipeline.program(self.source, self.path, self.name, self.save)
        base = replace(self, made=self.made[:-1]).stage()
        stage = pipeline.made(base, self.made[-1])
        if stage is None:
            raise NotBatchable
        return stage

    def keep(self, stage: Optimised) -> None:
        """For derivatives of derivatives and kernels for known sizes, which begin with it."""

        def write(folder: Path) -> None:
            (folder / _STAGE_FILE).write_bytes(pickle.dumps(stage))

        cache.obtain(_stage_key(self.key()), write)


def _plain(text: str) -> str:
    """A text without what editors and version control change, nor where it stands in a file."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").strip()


def _stage_key(key: str) -> str:
    return cache.digest([key, _STAGE_FILE])


def read(program: str | Path, save: Save = "auto", text_path: str | Path | None = None) -> Program:
    if save not in SAVES:
        raise ValueError(f"save must be one of {', '.join(SAVES)}, got {save!r}")
    if not isinstance(program, str | Path):
        raise TypeError(
            "a program is the name of a .loma file, a pathlib.Path or a text, got "
            f"{type(program).__name__}"
        )
    if isinstance(program, str) and not _names_file(program):
        if text_path is None:
            return Program(with_imports(program, "<text>"), "<text>", "module", save=save)
        text, path = program, Path(text_path)
    elif text_path is not None:
        raise TypeError("path is for a program that is given as text")
    else:
        path = Path(program)
        text = _text_of(path)
    # halves of characters, which stand for bytes that are no UTF-8, are for the file system alone
    return Program(with_imports(text, str(path)), str(path), printable(path.stem), save=save)


_SHOWN = 8  # names of files in a message
# What every program that is one line has somewhere: a definition, an import, a remark.
_OF_PROGRAMS = re.compile(r"[:=#\"']|\bimport\b")


def _names_file(program: str) -> bool:
    """Whether a string is the name of a file rather than a program."""
    line = program.strip()
    if "\n" in line or not line:
        return False
    return line.endswith(".loma") or _OF_PROGRAMS.search(line) is None


def _text_of(path: Path) -> str:
    """The program in a file; FileNotFoundError with the nearest name there is."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        there = [file.name for file in sorted(path.parent.glob("*.loma"))]
        hint = suggest(path.name, there)
        if hint is None:
            named = ", ".join(there[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
            hint = f"in {path.parent.absolute()} is {named or 'no program'}"
        raise FileNotFoundError(error.errno, f"{error.strerror} ({hint})", str(path)) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None


def with_imports(text: str, path: str) -> str:
    """The text, with those of the files that it imports."""
    if "import" not in text:
        return text
    from loma.frontend.imports import gather

    return gather(text, path)
