"""The Pygments lexer ``loma``: Python's, which also knows the language's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pygments.lexers.python import PythonLexer
from pygments.token import Keyword, Name

from loma.embedded.words import DECLARATIONS, FUNCTIONS, TYPES


class LomaLexer(PythonLexer):  # type: ignore[misc]  # Pygments has no types
    """Installed with loma, for everything that Pygments highlights: ``pygmentize -l loma``, Sphinx,
    mkdocs, notebooks."""

    name = "loma"
    aliases = ("loma",)
    filenames = ("*.loma",)
    mimetypes = ()
    url = ""

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, Any, str]]:
        for start, token, value in super().get_tokens_unprocessed(text):
            if token in Name and token is not Name.Function:
                if value in TYPES:
                    token = Keyword.Type
                elif value in DECLARATIONS:
                    token = Keyword.Declaration
                elif value in FUNCTIONS:
                    token = Name.Builtin
            yield start, token, value

    def analyse_text(text: str) -> float:
        """No text is taken for loma by itself: it looks like Python."""
        return 0.0
