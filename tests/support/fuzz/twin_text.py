"""What :mod:`fuzz_twins` writes with: variables, and text in loma beside text in Python."""

from __future__ import annotations

from dataclasses import dataclass

INDICES = ("i", "j", "k", "l", "p", "q", "u", "v")
Text = tuple[str, str]
TYPES = {"float": "Tensor", "int": "IntTensor", "bool": "BoolTensor"}


@dataclass(frozen=True, slots=True)
class Variable:
    """A tensor, or a float with no dims; ``inside`` are the bounds of an int's values."""

    name: str
    dims: tuple[str, ...]
    kind: str
    inside: tuple[int, int] | None = None

    @property
    def type(self) -> str:
        if self.kind == "float" and not self.dims:
            return "float"
        return f"{TYPES[self.kind]}[{', '.join(self.dims) or '()'}]"


def same(both: str) -> Text:
    return both, both


def text(form: str, *parts: Text) -> Text:
    return form.format(*(p[0] for p in parts)), form.format(*(p[1] for p in parts))
