"""The programs of the project: of the tests, the documentation, the optimisers and the examples."""

from __future__ import annotations

import re

from control_cases import CONTROL
from index_cases import CASES as INDEX_CASES
from operator_cases import CASES as OPERATOR_CASES
from reverse_cases import CASES as REVERSE_CASES
from teaching_programs import PROGRAMS as TEACHING
from pages import PAGES, programs
from trap_cases import TRAPS

from conftest import ROOT


IMPORTS = re.compile(r"^from (?!loma )", re.MULTILINE)  # needs a file beside it


def tensor_programs() -> list[tuple[str, str]]:
    """Names and texts. Those of the documentation have scalar functions, too."""
    found = [(c.name, c.text) for c in (*INDEX_CASES, *TRAPS, *CONTROL)]
    found += [(case.name, case.text) for case in OPERATOR_CASES]
    pages = [(page, text) for page in PAGES for text in programs(page)]
    found += [(page, text) for page, text in pages if not IMPORTS.search(text)]
    for folder in ("capsnet_loma", "loma/optim", "examples"):
        found += [(path.name, path.read_text("utf-8")) for path in (ROOT / folder).rglob("*.loma")]
    return found


def scalar_programs() -> list[tuple[str, str]]:
    found = [(name, text) for name, (text, _) in REVERSE_CASES.items()]
    return found + [(program.name, program.source) for program in TEACHING]
