"""The language server, ``loma language-server``: speaks the Language Server Protocol by pygls."""

from __future__ import annotations

from pathlib import Path

from lsprotocol import types
from pygls import uris
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from loma.config import VERSION
from loma.tools.editor.analysis import Analysis, Place

_SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
}


class Server(LanguageServer):
    """Keeps what is known of each open file: the newest text, and the newest without an error."""

    def __init__(self) -> None:
        super().__init__("loma", VERSION)
        self.sound: dict[str, Analysis] = {}

    def analyse(self, uri: str) -> None:
        """Reads the text as it is now, and tells the editor what is wrong."""
        document = self.workspace.get_text_document(uri)
        analysis = Analysis(document.source, uris.to_fs_path(uri) or "<text>")
        if analysis.module is not None:
            self.sound[uri] = analysis
        placed = [(d, self._location(d.place, document)) for d in analysis.diagnostics]
        found = [
            types.Diagnostic(
                location.range,
                d.message,
                severity=_SEVERITIES[d.severity],
                source="loma",
                related_information=[
                    types.DiagnosticRelatedInformation(self._location(place, document), note)
                    for place, note in d.related
                ],
            )
            for d, location in placed
            if location.uri == uri
        ]
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found))

    def _location(self, place: Place, document: TextDocument) -> types.Location:
        path = uris.to_fs_path(document.uri) or "<text>"
        own = place.path == path
        lines = document.lines if own else Path(place.path).read_text("utf-8").splitlines(True)
        start = types.Position(place.line - 1, place.column)
        end = types.Position(place.end_line - 1, place.end_column)
        made = self.workspace.position_codec.range_to_client_units(lines, types.Range(start, end))
        return types.Location(document.uri if own else uris.from_fs_path(place.path) or "", made)

    def at(
        self, params: types.HoverParams | types.DefinitionParams
    ) -> tuple[Analysis, int, int, TextDocument] | None:
        """The text that is known, and a line and column in it."""
        uri = params.text_document.uri
        if uri not in self.sound:
            return None
        document = self.workspace.get_text_document(uri)
        codec = self.workspace.position_codec
        place = codec.position_from_client_units(document.lines, params.position)
        return self.sound[uri], place.line + 1, place.character, document


def serve() -> None:
    """Answers an editor on the standard streams until it says that this is the end."""
    server = Server()

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        server.analyse(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        server.analyse(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        server.sound.pop(params.text_document.uri, None)

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        known = server.at(params)
        found = None if known is None else known[0].hover(known[1], known[2])
        if found is None:
            return None
        text = f"```loma\n{found.code}\n```" + (f"\n{found.text}" if found.text else "")
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    def definition(params: types.DefinitionParams) -> types.Location | None:
        known = server.at(params)
        found = None if known is None else known[0].definition(known[1], known[2])
        return None if known is None or found is None else server._location(found, known[3])

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def symbols(params: types.DocumentSymbolParams) -> list[types.SymbolInformation]:
        uri = params.text_document.uri
        document = server.workspace.get_text_document(uri)
        found = server.sound[uri].symbols() if uri in server.sound else []
        return [
            types.SymbolInformation(
                server._location(place, document), name, types.SymbolKind.Function
            )
            for name, place in found
        ]

    server.start_io()
