"""What Python and notebooks show of a program: its text, the text of its derivatives and stages,
and for ``inspect`` where it stands.

A function of a module gets the methods ``show``, ``adjoint`` and ``schedule``.
"""

from __future__ import annotations

import html
import linecache
import os
import re
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Self

from loma.errors import NotDifferentiable
from loma.reports import public

if TYPE_CHECKING:
    from loma.functions import LomaModule


def language_of(stage: str) -> str:
    """What a stage's text is written in."""
    return {"cpp": "cpp", "source": "cpp", "c": "c"}.get(stage, "loma")


class Listing(str):
    """A text that a prompt shows as it is, and a notebook highlighted."""

    language: str

    def __new__(cls, text: str, stage: str = "parsed") -> Self:
        made = super().__new__(cls, text)
        made.language = language_of(stage)
        return made

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return highlighted(self, self.language)


def lexer(language: str) -> Any:
    """Pygments' of a language, or loma's own."""
    from pygments.lexers import get_lexer_by_name

    from loma.embedded.lexer import LomaLexer

    return LomaLexer() if language == "loma" else get_lexer_by_name(language)


def highlighted(text: str, language: str = "loma") -> str:
    """The text as HTML, in the colours of Pygments if that is installed."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
    except ImportError:
        return f"<pre>{html.escape(text)}</pre>"
    style = HtmlFormatter(noclasses=True, nobackground=True)
    return str(highlight(text, lexer(language), style))


def beside(module: LomaModule, functions: Iterable[str]) -> str:
    """Functions as HTML, each beside its reverse derivatives."""
    from loma import pipeline

    rows = []
    style = "text-align: left; padding-right: 2em"
    for name in functions:
        try:
            adjoint = pipeline.adjoint_text(module.__source__, name, module.__file__)
        except NotDifferentiable as error:
            adjoint = f"# no reverse derivative: {error.message}\n"
        cells = (highlighted(_text_of(module, name)), highlighted(adjoint) if adjoint else "")
        rows.append("".join(f'<td style="{style}">{cell}</td>' for cell in cells))
    lines = "".join(f'<tr style="vertical-align: top">{row}</tr>' for row in rows)
    return f"<table>{lines}</table>"


def attach(function: Callable[..., Any], module: LomaModule) -> None:
    """Gives a function of the module what this file has for it."""
    name = function.__name__

    @public
    def show(stage: str | None = None, device: str = "cpu") -> Listing:
        """The function as text after a stage of the compiler (:mod:`loma.pipeline`); by default as
        the program has it, or as it was derived."""
        return module.show(stage or _first_stage(module, name), name, device)

    @public
    def adjoint() -> Listing:
        """The function's reverse derivative as text, whether or not the program asks for it."""
        from loma import pipeline

        return Listing(pipeline.adjoint_text(module.__source__, name, module.__file__))

    @public
    def schedule(device: str = "cpu") -> Listing:
        """All loops, checks, copies and library calls of the function, as they run."""
        return module.show("schedule", name, device)

    members: dict[str, Any] = {
        "show": show,
        "adjoint": adjoint,
        "schedule": schedule,
        "_repr_html_": lambda: beside(module, [name]),
        "__wrapped__": _place_of(module, name),
    }
    for key, value in members.items():
        setattr(function, key, value)


def _own(module: LomaModule, name: str) -> tuple[str, str, int] | None:
    """The file, the text and the line of a function that the program defines, not derives."""
    texts = [(module.__file__, module.__source__), *getattr(module.__source__, "imports", ())]
    for path, text in texts:
        if found := re.search(rf"^[ \t]*def[ \t]+{re.escape(name)}[ \t]*\(", text, re.M):
            return path, text, text.count("\n", 0, found.start()) + 1
    return None


def _first_stage(module: LomaModule, name: str) -> str:
    return "parsed" if _own(module, name) is not None else "adjoint"


def _text_of(module: LomaModule, name: str) -> str:
    from loma import pipeline

    stage = _first_stage(module, name)
    return pipeline.stage_text(module.__source__, stage, name, module.__file__)


def _template(*args: object, **kwargs: object) -> None:
    """As many arguments as may be: torch.fx, which looks for what is wrapped, counts them."""


def _place_of(module: LomaModule, name: str) -> FunctionType:
    """A function that stands, for ``inspect.getsource``, where the program has this one."""
    found = _own(module, name)
    if found is None:  # derived: its text is made when it is asked for
        file, line = f"{module.__name__}.{name}.loma", 1
        linecache.cache[file] = (lambda: _text_of(module, name) + "\n",)
    else:
        path, text, line = found
        file = _file(path, text, module.__name__)
    code = _template.__code__.replace(co_name=name, co_filename=file, co_firstlineno=line)
    return FunctionType(code, {}, name)


def place_of_module(module: LomaModule) -> ModuleType:
    """The same for the whole program."""
    made = ModuleType(module.__name__)
    made.__file__ = _file(module.__file__, module.__source__, module.__name__)
    return made


def _file(path: str, text: str, name: str) -> str:
    """The file with a program's text; for one that is in no file, a name by which Python has it."""
    if os.path.isfile(path):
        return os.path.abspath(path)
    file = f"{name}.loma"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return file
