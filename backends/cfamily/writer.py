"""Lines of C or C++ with indentation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from loma.backends.cfamily.identifiers import comment

_INDENT = "  "


class Writer:
    """Collects lines; :meth:`block` puts braces around what is written inside it. ``declares``:
    whether one of them is a variable's, which needs a block if it is not to be known elsewhere."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.declares = False
        self._depth = depth

    def line(self, text: str = "") -> None:
        for part in text.split("\n"):
            self.lines.append(_INDENT * self._depth + part if part else "")

    def declare(self, text: str) -> None:
        self.declares = True
        self.line(text)

    def extend(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.line(line)

    def comment(self, text: str) -> None:
        for part in text.split("\n"):
            self.line(f"// {comment(part)}".rstrip())

    @contextmanager
    def otherwise(self, head: str = "else") -> Iterator[None]:
        """A block that goes on where another one has just ended: ``} else {``."""
        assert self.lines.pop().strip() == "}"
        with self.block(f"}} {head}"):
            yield

    @contextmanager
    def block(self, head: str = "", tail: str = "") -> Iterator[None]:
        self.line(f"{head} {{" if head else "{")
        declares = self.declares
        self._depth += 1
        yield
        self._depth -= 1
        self.declares = declares
        self.line("}" + tail)

    def text(self) -> str:
        return "\n".join(self.lines)
