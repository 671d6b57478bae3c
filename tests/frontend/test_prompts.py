"""Programs that are typed at a prompt: Python's own, which keeps texts from 3.13 on, IPython's."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from conftest import ROOT

TYPED = """\
import loma
from loma import In

@loma.module
def numbers():
    def twice(x: In[float]) -> float:
        return 2.0 * x

@loma.module
class others:
    def half(x: In[float]) -> float:
        return x / 2.0

@loma.module
def square(x: In[float]) -> float:
    return x * x

print("found", numbers.twice(3.0), others.half(3.0), square.square(3.0))

@loma.module
def wrong(x: In[float]) -> float:
    return x * z

"""


def typed(*command: str) -> str:
    """What a prompt answers, without its colours."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command], input=TYPED, env=environment, cwd=ROOT, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    return re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)


def test_pythons_own() -> None:
    said = typed("-i", "-q")
    if sys.version_info >= (3, 13):
        assert "found 6.0 1.5 9.0" in said
        assert ":3:16: error: variable 'z' is not declared" in said
    else:
        assert "the source text of 'numbers' is not available: give the text to loma" in said


def test_ipythons() -> None:
    pytest.importorskip("IPython", reason="IPython is not installed: pip install '.[test]'")
    said = typed("-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor")
    assert "found 6.0 1.5 9.0" in said
    assert ":3:16: error: variable 'z' is not declared" in said
