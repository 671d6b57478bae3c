"""Text to IR: ``parse`` reads a program, checks it and gives every expression its type.

Python's own parser reads the text and nothing executes it. Every mistake is a
:class:`loma.errors.UserError` that points at its line.
"""

from loma.frontend.module import parse

__all__ = ["parse"]
