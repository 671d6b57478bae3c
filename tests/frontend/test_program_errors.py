"""Mistakes in programs: each gets the message, place and hint that golden/program_errors pins.

A file there is a list of ``=== name``, the program, ``--- class of the error`` and the full report.
"""

from __future__ import annotations

import gc
import inspect
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from teaching_derivatives import DERIVATIVES
from teaching_programs import PROGRAMS as TEACHING

from loma import errors, pipeline
from loma.core.printer import print_module
from loma.core.verify import verify
from loma.deep import deep
from loma.frontend import parse
from loma.frontend.module import MAX_DEPTH

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "program_errors"
PROGRAMS = Path(__file__).resolve().parents[2] / "capsnet_loma"


@dataclass(frozen=True, slots=True)
class Mistake:
    group: str
    name: str
    program: str
    report: str


def _read(path: Path) -> list[Mistake]:
    found = []
    for block in re.split(r"^=== ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
        name, _, rest = block.partition("\n")
        program, _, report = rest.partition("\n--- ")
        found.append(Mistake(path.stem, name, f"{program}\n", report.strip()))
    return found


GROUPS = {path.stem: _read(path) for path in sorted(FOLDER.glob("*.txt"))}
MISTAKES = [mistake for group in GROUPS.values() for mistake in group]


def _report(program: str) -> str:
    with pytest.raises(errors.UserError) as caught:
        parse(program, "program.loma")
    return f"{type(caught.value).__name__}\n{caught.value}"


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: f"{m.group}: {m.name}")
def test_report(mistake: Mistake, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        blocks = [f"=== {m.name}\n{m.program}--- {_report(m.program)}\n"
                  for m in GROUPS[mistake.group]]  # fmt: skip
        (FOLDER / f"{mistake.group}.txt").write_text("\n".join(blocks), encoding="utf-8")
    else:
        assert _report(mistake.program) == mistake.report


def test_every_class_of_mistake_is_there() -> None:
    """All errors of programs, less those of later stages and those that only group others."""
    later = {"BackendLacksOperator"}
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.UserError)
    }
    pinned = {mistake.report.partition("\n")[0] for mistake in MISTAKES}
    assert classes - pinned == later | {"UserError", "UnknownName", "IfElseCondTypeMismatch"}


# ------------------------------------------------------------------ text that is hardly a program


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("def f(x : In[float]) -> float:\n    return x +\n", 2, 15),
        ("def f(:\n", 1, 7),
        ("def f():\nreturn 1\n", 2, 1),
    ],
)
def test_syntax_errors_of_python_have_a_place(text: str, line: int, column: int) -> None:
    with pytest.raises(errors.SyntaxNotSupported, match="not Python syntax") as caught:
        parse(text, "a.loma")
    assert str(caught.value).startswith(f"a.loma:{line}:{column}: error: ")


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    pass\0\n",
        "\ud800",
        "def f() -> int:\n    return " + "9" * 5000 + "\n",
        "def f(x : In[float]) -> float:\n    return " + "(" * 500 + "x" + ")" * 500 + "\n",
        "def f(x : In[float]) -> float:\n    return " + "-" * 5000 + "x\n",
        "def f(x : In[float]) -> float:\n    return " + " * ".join(["x"] * 5000) + "\n",
        "def f(x : In[float]) -> float:\n    return " + "sin(" * 180 + "x" + ")" * 180 + "\n",
        "[" * 100_000,
    ],
)
def test_strange_text_is_a_mistake_like_any_other(text: str) -> None:
    with pytest.raises(errors.UserError) as caught:
        parse(text)
    assert caught.value.message


def test_nesting_up_to_the_limit_is_read() -> None:
    factors = " * ".join(["x"] * (MAX_DEPTH - 10))
    assert parse(f"def f(x : In[float]) -> float:\n    return {factors}\n").functions
    with pytest.raises(errors.SyntaxNotSupported, match="levels deep") as caught:
        parse(f"def f(x : In[float]) -> float:\n    return {factors}{' * x' * 20}\n")
    assert caught.value.hint == "split a long expression over several statements"


def test_what_is_read_is_compiled() -> None:
    before, limit = sys.getrecursionlimit(), len(inspect.stack()) + 250
    calls = "sin(" * 40 + "x[i]" + ")" * 40
    head = "def f(x : In[Tensor[N]]) -> Tensor[N]:\n    y : Tensor[N]\n"
    module = pipeline.parsed(f"{head}    y[i] = {calls}\n    return y\n")
    sys.setrecursionlimit(limit)
    try:
        assert pipeline.optimised(module, ["f"]).pairs
        assert sys.getrecursionlimit() == limit
    finally:
        sys.setrecursionlimit(before)


def test_the_collector_of_cycles_is_as_it_was_behind_a_mistake() -> None:
    assert gc.isenabled()
    with deep(), deep():
        assert not gc.isenabled()
    with pytest.raises(errors.UserError):
        pipeline.parsed("def f(x : In[float]) -> float:\n    return z\n")
    assert gc.isenabled()
    gc.disable()
    try:
        pipeline.parsed("def f(x : In[float]) -> float:\n    return x\n")
        assert not gc.isenabled()
    finally:
        gc.enable()


def _branches(count: int) -> str:
    more = "".join(f"    elif x < {k}.0:\n        y = {k}.0\n" for k in range(count))
    return f"    if x < 0:\n        y = 1.0\n{more}"


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ("    return x" + " * x" * 300, 4, "split a long expression"),
        ("    return x" + " + x" * 30000, 4, "split a long expression"),
        ("    y = 1.0\n    return " + "-" * 5000 + "x", 5, "split a long expression"),
        # Python itself gives up
        (_branches(20000), 306, "a chain of so many"),
    ],
)
def test_what_is_nested_too_deeply_has_a_line(text: str, line: int, hint: str) -> None:
    with pytest.raises(errors.SyntaxNotSupported, match="more than 150 levels deep") as caught:
        parse(f"\ndef f(x : In[float]) -> float:\n    y : float\n{text}\n")
    assert caught.value.lineno == line
    assert "| " in str(caught.value)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("def f():\n    pass\0\n", "2:9"),
        ("# é\ud800", "1:5"),
        ("def f():\n    'half: \\ud800'\n    pass\n", "1:1"),
    ],
)
def test_characters_that_no_text_has(text: str, place: str) -> None:
    with pytest.raises(errors.SyntaxNotSupported) as caught:
        parse(text, "a.loma")
    assert str(caught.value).startswith(f"a.loma:{place}: error: ")
    str(caught.value).encode()


@pytest.mark.parametrize(
    "name", ["__dict__", "__class__", "__slots__", "__init__", "_fields_", "_anonymous_"]
)
def test_names_that_python_keeps(name: str) -> None:
    for text in (
        f"class A:\n    x : int\n    {name} : float\n",
        f"\n\nclass {name}:\n    x : int\n",
    ):
        with pytest.raises(errors.SyntaxNotSupported, match=f"Python keeps the name '{name}'") as e:
            parse(text)
        assert e.value.lineno == 3


def test_differentials_of_differentials_have_an_end() -> None:
    def nested(levels: int) -> str:
        return f"def f(x : In[{'Diff[' * levels}float{']' * levels}]):\n    pass\n"

    assert parse(nested(16)).functions
    chain = "".join(f"f{k + 1} = fwd_diff(f{k})\n" for k in range(17))
    for text in (
        nested(60),
        f"def f(x : In[{'_d' * 60}float]):\n    pass\n",
        f"def f0(x : In[float]):\n    pass\n{chain}",
    ):
        with pytest.raises(errors.UnknownType, match="at most 16 levels"):
            parse(text)


def test_line_ends_and_byte_order_mark() -> None:
    text = "\ufeffdef f(x : In[float]) -> float:\r\n    y : float = x\r\n    return z\r\n"
    with pytest.raises(errors.UndeclaredVariable) as caught:
        parse(text, "a.loma")
    assert "3 |     return z" in str(caught.value)


def test_error_attributes_of_the_teaching_compiler() -> None:
    with pytest.raises(errors.DuplicateVariable) as caught:
        parse("def f() -> int:\n    x : int\n    x : float\n    return x\n")
    error = caught.value
    assert (error.var, error.var.lineno) == ("x", 3)
    assert error.first_declare_stmt.lineno == 2
    assert error.duplicate_declare_stmt.lineno == 3


# ------------------------------------------------------------------------------------- mutations

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_ODD = ["()", "[()]", "Tensor", "-1", "None", "lambda", "for i in N", "[", "]", "zero_pad", "split",
        "**", "not", "\n", "Out", "Array[float, 3]", "é", "'s'", "...", "*", "=",
        "tuple", "Stack[float, 3]", ".pop()", "make__dfloat", "thread_id()", "atomic_add", "Diff",
        "_dfloat", "fwd_diff", ".val", "2147483648", "max_iter := 3"]  # fmt: skip


def _mutated(text: str, pool: list[str], rng: random.Random) -> str:
    tokens = _TOKEN.findall(text)
    for _ in range(rng.choice([1, 1, 2, 4])):
        place = rng.randrange(len(tokens))
        match rng.randrange(4):
            case 0:
                tokens[place] = ""
            case 1:
                tokens[place] = rng.choice(tokens)
            case 2:
                tokens[place] = rng.choice(pool)
            case _:
                tokens.insert(place, rng.choice(_ODD))
    return "".join(tokens)


def _corpus() -> list[str]:
    texts = [mistake.program for mistake in MISTAKES]
    texts += [path.read_text(encoding="utf-8") for path in sorted(PROGRAMS.glob("*.loma"))]
    return texts + [program.source for program in (*TEACHING, *DERIVATIVES)]


def test_no_text_raises_anything_but_a_user_error(pytestconfig: pytest.Config) -> None:
    """And a program that is accepted is well formed and prints as itself."""
    texts = _corpus()
    pool = [token for text in texts for token in _TOKEN.findall(text)]
    rng = random.Random(0)
    accepted = 0
    count = 7000 if pytestconfig.getoption("--full") else 1500
    for _ in range(count):
        text = _mutated(rng.choice(texts), pool, rng)
        try:
            module = parse(text)
            verify(module)
            assert parse(print_module(module)) == module
            accepted += 1
        except errors.UserError as error:
            assert error.lineno or "nested" in error.message  # noqa: PT017
            assert str(error)  # noqa: PT017
        except Exception as error:
            pytest.fail(f"{error!r} for\n{text}")
    assert accepted > count / 70  # so that the check above has something to do
