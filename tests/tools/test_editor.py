"""What editors have: the analysis of a text, the language server, colours."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from conftest import ROOT

from loma.embedded import words
from loma.tools.editor.analysis import Analysis, Place

T = TypeVar("T")

PROGRAM = """\
from helpers import twice

def shrink(x : In[Tensor[N, M]], w : In[Tensor[M]]) -> Tensor[N, M]:
    \"\"\"Nearer to zero.\"\"\"
    s : Tensor[N] = sum(x * x, 1)
    y : Tensor[N, M]
    for t in range(3):
        y[i, j] = twice(x[i, j]) * exp(w[j]) / (1.0 + s[i])
    z = softmax(y, 1)
    return z

d_shrink = rev_diff(shrink)
"""
HELPERS = "\ndef twice(a : In[float]) -> float:\n    return 2.0 * a\n"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    (folder / "helpers.loma").write_text(HELPERS, encoding="utf-8")
    return folder / "shrink.loma"


def _where(text: str, part: str, name: str) -> tuple[int, int]:
    """The line and column of a name in a part that the text has once."""
    at = text.index(part) + part.index(name)
    return text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1)


@pytest.mark.parametrize(
    ("part", "name", "code", "text"),
    [
        ("twice(x", "twice", "def twice(a : In[float]) -> float", ""),
        ("twice(x[i", "x", "x : In[Tensor[N, M]]", ""),
        ("w[j]", "j", "j : int", "index: 0 to M - 1"),
        ("+ s[i]", "s", "s : Tensor[N]", ""),
        ("return z", "z", "z : Tensor[N, M]", ""),
        (
            "d_shrink = ",
            "d_shrink",
            "def d_shrink(\n    x : In[Tensor[N, M]], _d_x : Out",
            "Reverse",
        ),
    ],
)
def test_hover(file: Path, part: str, name: str, code: str, text: str) -> None:
    found = Analysis(PROGRAM, str(file)).hover(*_where(PROGRAM, part, name))
    assert found is not None
    assert found.code.startswith(code)
    assert text in found.text + found.code


@pytest.mark.parametrize("name", ["exp", "softmax"])
def test_hover_of_what_the_language_has(file: Path, name: str) -> None:
    found = Analysis(PROGRAM, str(file)).hover(*_where(PROGRAM, f"{name}(", name))
    assert found is not None
    assert found.code.startswith(f"{name}(")
    assert found.text


LAYER = """\
from helpers import EPS, twice
RATE : float = 0.5 * EPS
class Ball:
    p : Array[float, 2]
def total(x : In[Tensor[Größe, 3]], ball : In[Ball]) -> float:
    s : float = EPS
    t : Tensor[Größe]
    t[i] = sum(x[i, k] for k in range(3)) * RATE
    s += t[i] * ball.p[0]
    return s
"""


@pytest.mark.parametrize(
    ("part", "name", "code", "line"),
    [
        ("* RATE", "RATE", "RATE : float = 0.5 * EPS", 2),
        ("In[Ball", "Ball", "class Ball:\n    p : Array[float, 2]", 3),
        ("Tensor[Größe]\n", "Größe", "Größe : int", 5),
        ("t : Tensor", "t", "t : Tensor[Größe]", 7),
        ("= sum(x", "sum", "sum(x[i] for i in N)  # float", None),
        ("= EPS", "EPS", "EPS : float = 1e-6", 1),
    ],
)
def test_names_that_are_no_variables(
    tmp_path: Path, part: str, name: str, code: str, line: int | None
) -> None:
    """Constants, of another file too, structs, sizes, reductions."""
    (tmp_path / "helpers.loma").write_text("EPS : float = 1e-6\n" + HELPERS, encoding="utf-8")
    analysis = Analysis(LAYER, str(tmp_path / "layer.loma"))
    assert not analysis.diagnostics
    found = analysis.hover(*_where(LAYER, part, name))
    assert found is not None
    assert found.code == code
    place = analysis.definition(*_where(LAYER, part, name))
    assert (place and place.line) == line


def test_hover_of_nothing(file: Path) -> None:
    analysis = Analysis(PROGRAM, str(file))
    for place in [(2, 0), (6, 0), (900, 3), (9, 900)]:
        assert analysis.hover(*place) is None


@pytest.mark.parametrize(
    ("part", "name", "line"),
    [("w[j]", "w", 3), ("+ s[i]", "s", 5), ("return z", "z", 9), ("(shrink)", "shrink", 3)],
)
def test_definition(file: Path, part: str, name: str, line: int) -> None:
    found = Analysis(PROGRAM, str(file)).definition(*_where(PROGRAM, part, name))
    assert found is not None
    assert (found.path, found.line) == (str(file), line)


def test_definition_in_another_file(file: Path) -> None:
    found = Analysis(PROGRAM, str(file)).definition(*_where(PROGRAM, "twice(x", "twice"))
    assert found is not None
    assert (Path(found.path), found.line) == (file.parent / "helpers.loma", 2)


def test_symbols(file: Path) -> None:
    found = Analysis(PROGRAM, str(file)).symbols()
    assert [(name, place.line) for name, place in found] == [("shrink", 3), ("d_shrink", 12)]


def test_diagnostics_count_characters(file: Path) -> None:
    text = PROGRAM.replace("return z", 'return z + "é" * zé')
    (found,) = Analysis(text, str(file)).diagnostics
    assert found.severity == "error"
    text = PROGRAM.replace("return z", "return é * zé")
    (found,) = Analysis(text, str(file)).diagnostics
    assert found.message.startswith("variable 'é' is not declared")
    assert found.place == Place(str(file), 10, 11, 10, 12)


def test_warnings_are_told(file: Path) -> None:
    text = "def f(a : In[int]) -> float:\n    return a / 2\n"
    (found,) = Analysis(text, str(file)).diagnostics
    assert (found.severity, found.place.line) == ("warning", 2)


def test_every_text_on_the_way_to_a_program(file: Path) -> None:
    """As an editor asks: what is there may end anywhere."""
    for end in range(0, len(PROGRAM), 7):
        analysis = Analysis(PROGRAM[:end], str(file))
        for line in range(1, 13):
            analysis.hover(line, 9)
            analysis.definition(line, 9)
        analysis.symbols()


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 120))


async def _session(file: Path) -> dict[str, Any]:
    """What the server answers to an editor that opens the program, breaks it, and goes."""
    from lsprotocol import types
    from pygls.lsp.client import LanguageClient

    client = LanguageClient("test", "1")
    told: asyncio.Queue[Any] = asyncio.Queue()

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)  # type: ignore[untyped-decorator]
    def diagnostics(params: types.PublishDiagnosticsParams) -> None:
        told.put_nowait(params)

    await client.start_io(sys.executable, "-m", "loma", "language-server")
    await client.initialize_async(types.InitializeParams(types.ClientCapabilities()))
    client.initialized(types.InitializedParams())
    uri = file.as_uri()
    item = types.TextDocumentItem(uri, "loma", 1, PROGRAM)
    client.text_document_did_open(types.DidOpenTextDocumentParams(item))
    document = types.TextDocumentIdentifier(uri)
    found = {"opened": await told.get()}
    line, column = _where(PROGRAM, "twice(x", "twice")
    place = types.Position(line - 1, column)
    found["hover"] = await client.text_document_hover_async(types.HoverParams(document, place))
    found["definition"] = await client.text_document_definition_async(
        types.DefinitionParams(document, place)
    )
    found["symbols"] = await client.text_document_document_symbol_async(
        types.DocumentSymbolParams(document)
    )
    # Positions are in UTF-16 where the editor asks for nothing else: 𝑥 has two units.
    line, _ = _where(PROGRAM, "return z", "z")
    change = types.TextDocumentContentChangePartial(
        types.Range(types.Position(line - 1, 11), types.Position(line - 1, 12)), "z * 𝑥 * q"
    )
    client.text_document_did_change(
        types.DidChangeTextDocumentParams(types.VersionedTextDocumentIdentifier(2, uri), [change])
    )
    found["broken"] = await told.get()
    # what was known before the mistake still answers
    found["after"] = await client.text_document_hover_async(types.HoverParams(document, place))
    client.text_document_did_close(types.DidCloseTextDocumentParams(document))
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()  # type: ignore[no-untyped-call]
    return found


def test_a_session_of_an_editor(file: Path) -> None:
    pytest.importorskip("pygls")
    file.write_text(PROGRAM, encoding="utf-8")
    found = _run(_session(file))
    assert list(found["opened"].diagnostics) == []
    assert "def twice(a : In[float]) -> float" in found["hover"].contents.value
    assert found["definition"].uri == (file.parent / "helpers.loma").as_uri()
    assert found["definition"].range.start.line == 1
    assert [symbol.name for symbol in found["symbols"]] == ["shrink", "d_shrink"]
    (wrong,) = found["broken"].diagnostics
    assert wrong.message.startswith("variable 'q' is not declared")
    assert (wrong.range.start.character, wrong.range.end.character) == (20, 21)
    assert found["after"] == found["hover"]


def test_the_language_server_without_its_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from loma.tools import cli

    monkeypatch.setitem(sys.modules, "pygls", None)
    for name in [name for name in sys.modules if name.startswith("pygls.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "loma.tools.editor.server", raising=False)
    with pytest.raises(SystemExit) as ended:
        cli.main(["language-server"])
    assert ended.value.code != 0
    assert "pip install 'loma-torch[editor]'" in capsys.readouterr().err


def test_the_lexer_is_installed() -> None:
    from pygments import lex
    from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
    from pygments.token import Keyword, Name

    lexer = get_lexer_by_name("loma")
    assert get_lexer_for_filename("squash.loma").name == lexer.name
    tokens = list(lex(PROGRAM, lexer))
    assert "".join(text for _, text in tokens) == PROGRAM
    known = {text: token for token, text in tokens}
    assert known["Tensor"] is known["In"] is Keyword.Type
    assert known["rev_diff"] is Keyword.Declaration
    assert known["softmax"] is known["exp"] is Name.Builtin
    assert known["shrink"] not in (Name.Builtin, Keyword.Type)


def test_the_grammar_has_the_words() -> None:
    folder = ROOT / "editors" / "vscode"
    contributed = json.loads((folder / "package.json").read_text("utf-8"))["contributes"]
    (language,), (entry,) = contributed["languages"], contributed["grammars"]
    assert (folder / language["configuration"]).is_file()
    grammar = json.loads((folder / entry["path"]).read_text("utf-8"))
    assert grammar["scopeName"] == entry["scopeName"]
    patterns = grammar["repository"]["words"]["patterns"]
    found = [set(re.findall(r"[a-zA-Z]\w+", p["match"].replace(r"\b", " "))) for p in patterns]
    assert found == [words.TYPES, words.DECLARATIONS, words.FUNCTIONS]
