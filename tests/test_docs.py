"""What the documentation shows compiles, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loma.ad import differentiate
from loma.frontend import parse
from loma.printer import print_function

ROOT = Path(__file__).resolve().parent.parent


def programs(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(r"```loma\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("program", programs("docs/language.md") + programs("README.md"))
def test_programs_of_the_documentation_compile(program: str) -> None:
    differentiate(parse(program))


def test_the_readme_shows_the_adjoint_that_is_generated() -> None:
    program, adjoint = programs("README.md")
    module = differentiate(parse(program))
    assert print_function(module.function("d_per_pixel")).strip() == adjoint.strip()
