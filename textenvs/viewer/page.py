"""The page as one file: the output of ``make viewer``, with the data in it."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from pathlib import Path

from ..data.files import written_whole
from .document import Document

_PLACE = "<!--data-->"
_NO_NETWORK, _OWN_SERVER = "connect-src 'none'", "connect-src 'self'"


def pieces(document: Document) -> Iterator[str]:
    """Yield the file, piece by piece. Data is base64 of gzip of JSON, so nothing in it can end its element.

    Raises:
        RecordsError: A file cannot be read.
    """
    before, after = _template().split(_PLACE)
    index = gzip.compress(json.dumps(document.index(), ensure_ascii=False).encode("utf-8", "replace"), 6, mtime=0)
    yield before
    yield _block("index", index)
    for name, chunk in document.chunks():
        yield _block(name, chunk)
    yield after


def write_page(document: Document, path: Path) -> Path:
    """Write the page whole, or not at all."""
    with written_whole(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.writelines(pieces(document))
    return path


def served_page() -> str:
    """Return the page that requests its data from its server."""
    return _template().replace(_PLACE, "").replace(_NO_NETWORK, _OWN_SERVER)


def _template() -> str:
    return files(__package__).joinpath("page.html").read_text("utf-8")


def _block(name: str, content: bytes) -> str:
    return f'<script type="text/plain" id="data:{escape(name)}">{b64encode(content).decode()}</script>\n'
