"""How reports reach the caller of loma: warnings, in the caller's name."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from loma.errors import UserWarning

_HERE = str(Path(__file__).parent) + os.sep


def show_warnings(found: Iterable[UserWarning]) -> None:
    """Issues warnings of a program. Python's filters take them for warnings of the line that called
    loma: a filter by module names the caller's, and each is shown once for that line."""
    frame = _caller(sys._getframe(1))
    for warning in found:
        warnings.warn_explicit(
            warning,
            type(warning),
            frame.f_code.co_filename,
            frame.f_lineno,
            frame.f_globals.get("__name__"),
            frame.f_globals.setdefault("__warningregistry__", {}),
        )


def _caller(frame: FrameType) -> FrameType:
    """The frame outside of loma from which it was called; the outermost, if there is none."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame
