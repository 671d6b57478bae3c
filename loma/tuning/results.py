"""What tuning has found, in the cache and in files: for which function, sizes, dtype, machine.

A result is used where nothing has changed that it depends on: the function with all that it calls,
loma itself, the processor, the compiler, and the number of threads; or the GPU, its driver, and
NVRTC.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loma import cache, config
from loma.errors import CacheError

if TYPE_CHECKING:
    from loma.backends.schedule.choices import Option

_KEY = cache.digest(["results of tuning"])
_FORMAT = "loma tuning 1"


@dataclass(frozen=True, slots=True)
class Result:
    """What was found for a function. ``sizes``: in the order of a call's slots; ``text``: a hash of
    what is computed; ``choices``: what differs from the usual ways, nothing where these were the
    best. ``usual`` and ``tuned``: seconds of a call; ``spent``: seconds of the search. ``history``:
    for each candidate the seconds since the search began, its time and that of the best so far, as
    parts of the usual one. ``device``: cpu or cuda, where ``processor`` is the GPU and ``threads``
    is 0."""

    program: str
    function: str
    sizes: dict[str, int]
    dtype: str
    choices: dict[str, Option]
    usual: float
    tuned: float
    spent: float
    threads: int
    processor: str
    compiler: str
    loma: str
    text: str
    history: list[list[float]]
    device: str = "cpu"

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {value}" for name, value in self.sizes.items())
        found = ", ".join(f"{name}: {option}" for name, option in self.choices.items())
        times = f"{1e3 * self.usual:.3f} ms"
        if self.choices:
            times += f" to {1e3 * self.tuned:.3f} ms"
        where = f"threads {self.threads}" if self.device == "cpu" else self.processor
        return (
            f"{self.program}.{self.function} {self.dtype} ({sizes}), {where}: "
            f"{times}  [{found or 'the usual ways are the best'}]"
        )

    @property
    def name(self) -> str:
        """Results of the same name are about the same."""
        place = (self.text, json.dumps(self.sizes), self.dtype, self.loma, self.processor)
        return cache.digest([*place, self.compiler, str(self.threads)])

    def foreign(self) -> str:
        """What it comes from another one of than is at hand; nothing if it may be used."""
        if self.loma != cache.package_fingerprint():
            return "version of loma"
        if self.device == "cuda":
            from loma.tuning import gpus

            if self.processor not in gpus.names():
                return "GPU or driver"
            return "" if self.compiler == gpus.compiler() else "version of NVRTC"
        if self.processor != processor():
            return "processor"
        return "" if self.compiler == compiler() else "compiler"

    def distance(self, sizes: Mapping[str, int]) -> float:
        """How far its sizes are from others of the same function."""
        pairs = ((own, sizes.get(name, 0)) for name, own in self.sizes.items())
        return sum(abs(math.log2((own + 1) / (other + 1))) for own, other in pairs)


@functools.cache
def processor() -> str:
    """Its name, and a hash of all that compilers make use of."""
    from loma.backends import compilers

    text = compilers.processor()
    names = (line for line in text.splitlines() if line.startswith("model name"))
    name = next(names, text.splitlines()[0]).partition(":")[2].strip()
    return f"{name} {cache.digest([text])[:8]}".strip()


def compiler() -> str:
    """Its version, with the flags that the environment adds."""
    from loma.backends import compilers

    found = compilers.find_compiler(config.CXX)
    version = compilers.compiler_version(found, config.CXX).splitlines()[0]
    return " ".join((version, *config.CXX.extra_flags()))


def store(result: Result) -> None:
    """Keeps it in the cache, in the place of an older one about the same."""
    cache.add_note(_KEY, result.name, asdict(result))


def stored() -> list[Result]:
    """All results of the cache, also those of other versions and machines."""
    names = [field.name for field in fields(Result) if field.name != "device"]
    records = (_result(note) for note in cache.notes(_KEY, names))
    return sorted((r for r in records if r is not None), key=str)


def clear() -> int:
    """Forgets all results; returns how many there were. The kernels made by them stay in the cache,
    and are not used any more."""
    return cache.remove_notes(_KEY)


def write(path: Path, results: Iterable[Result]) -> int:
    """Writes results to a file, which :func:`read` reads; returns how many."""
    records = [asdict(result) for result in results]
    lines = ",\n  ".join(json.dumps(record) for record in records)
    path.write_text(f'{{"format": "{_FORMAT}", "results": [\n  {lines}\n]}}\n', encoding="utf-8")
    return len(records)


def read(path: Path) -> list[Result]:
    """The results in a file. ValueError where it is no such file."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no file of tuning results: {error}") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise ValueError(f'{path} is no file of tuning results: it lacks "format": "{_FORMAT}"')
    records = found.get("results")
    if not isinstance(records, list):
        raise ValueError(f"{path} is no file of tuning results: it has no list of results")
    results = []
    for number, record in enumerate(records, 1):
        result = _result(record)
        if result is None:
            raise ValueError(f"{path}: result {number} is not whole: export the file again")
        results.append(result)
    return results


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (int, float),
    "dict[str, int]": (dict,), "dict[str, Option]": (dict,), "list[list[float]]": (list,),
}  # fmt: skip


def _result(record: Any) -> Result | None:
    """None for a record that is not whole."""
    if not isinstance(record, dict):
        return None
    record = {"device": "cpu", **record}  # results of the first versions have none
    values: dict[str, Any] = {field.name: record.get(field.name) for field in fields(Result)}
    if not all(isinstance(values[f.name], _TYPES[str(f.type)]) for f in fields(Result)):
        return None
    sizes, choices = values["sizes"], values["choices"]
    if not all(isinstance(value, int) for value in sizes.values()):
        return None
    if not all(isinstance(option, int | str) for option in choices.values()):
        return None
    return Result(**values)


def of_functions(
    program: str, texts: Mapping[str, str], device: str = "cpu"
) -> tuple[list[Result], list[Result]]:
    """The results for functions, by hashes of what they compute, that may be used here on such a
    device; and those that would be for them, but for what :meth:`Result.foreign` says."""
    try:
        known = [result for result in stored() if result.device == device]
    except CacheError:  # an unreadable cache has nothing
        known = []
    own = [r for r in known if texts.get(r.function) == r.text and not r.foreign()]
    names = {result.function for result in own}
    others = [
        r
        for r in known
        if r.program == program and r.function in texts and r.foreign() and r.function not in names
    ]
    return own, others
