"""Search over a local corpus by BM25.

Documents are ranked by Lucene's variant of BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009;
k1 = 1.5, b = 0.75), computed by bm25s (extra ``search``); those of equal score come in the order of the corpus.

A document is ``id``, ``title`` and ``text``. Rows may also have ``contents``, as corpora for dense and sparse
retrievers do: a title in its first line, quoted or not, and the text below.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ..data.files import collect, file_rows
from ..messages import clean_text
from ..task import TaskError
from ..words import Word, spellings, words_of
from .schema import ToolError

#: How many characters of a document are shown.
SnippetChars = Annotated[int, Field(ge=40)]

_COLUMNS = "'id', 'title' and 'text'"
# Stop words: frequent in documents and questions, and least distinctive.
_FREQUENT = """
    a an and are as at be but by for from had has have he her his how i if in into is it its of on or our she so
    such that the their them then there these they this to was we were what when where which who whom whose why
    will with you your
"""
_STOPWORDS = frozenset(_FREQUENT.split())


def terms(text: str) -> list[str]:
    """Return the terms of a document that count for the ranking: its words in lower case, without stop words.

    For scripts without spaces these are single characters and pairs of neighbours, as in Lucene's analyser of Chinese,
    Japanese and Korean.
    """
    if text.isascii():  # no characters of scripts without spaces, and so no pairs
        return [word for word in spellings(text) if word not in _STOPWORDS]
    words = words_of(text)
    pairs = [a.text + b.text for a, b in pairwise(words) if _are_neighbours(a, b)]
    return [word.text for word in words if word.text not in _STOPWORDS] + pairs


def query_terms(query: str) -> list[str]:
    """Return the terms of a query: as of a document, but a character with a neighbour counts only in the pair."""
    words = words_of(query)
    result: list[str] = []
    for number, word in enumerate(words):
        before = number > 0 and _are_neighbours(words[number - 1], word)
        after = number + 1 < len(words) and _are_neighbours(word, words[number + 1])
        if after:
            result.append(word.text + words[number + 1].text)
        elif not before and word.text not in _STOPWORDS:
            result.append(word.text)
    return result


def _are_neighbours(a: Word, b: Word) -> bool:
    return a.is_character and b.is_character and a.end == b.start


@dataclass(frozen=True)
class Document:
    """One document: its id, unique in its corpus; its title, one line that may be empty; and its text."""

    id: str
    title: str
    text: str

    @classmethod
    def from_row(cls, row: Any, number: int) -> Document:
        """Read a row with ``text`` or ``contents``; the row's number is the default of ``id``."""
        if not isinstance(row, Mapping):
            raise TaskError(f"row {number}: a {type(row).__name__}, not an object with {_COLUMNS}")
        values = {name: row[name] for name in ("id", "title", "text", "contents") if row.get(name) is not None}
        if "text" not in values and "contents" not in values:
            raise TaskError(f"row {number}: column 'text' is missing; the row has {sorted(map(str, row))}")
        for name, value in values.items():
            if not isinstance(value, str) and not (name == "id" and isinstance(value, int)):
                raise TaskError(f"row {number}: column {name!r} must be text, not {type(value).__name__}")
        title, text = values.get("title", ""), values.get("text")
        if text is None:
            first, _, rest = values["contents"].partition("\n")
            title, text = (title or first.strip().strip('"'), rest) if rest else (title, first)
        if not text.strip():
            raise TaskError(f"row {number}: column 'text' is empty")
        return cls(str(values.get("id", number)), " ".join(clean_text(title).split()), clean_text(text).strip())


def read_documents(path: str | Path) -> tuple[Document, ...]:
    """Read the documents of a ``.jsonl`` (UTF-8) or ``.parquet`` file; raises as :func:`file_rows` and the next do."""
    if Path(path).suffix not in (".jsonl", ".parquet"):
        raise ValueError(f"{str(path)!r}: a corpus is a .jsonl or .parquet file with {_COLUMNS}")
    return make_documents(str(path), file_rows(path, _COLUMNS))


def make_documents(name: str, rows: Iterable[tuple[int, Any]]) -> tuple[Document, ...]:
    """Documents from numbered rows, some of which may be documents already; a :class:`TaskError` lists bad ones."""
    seen: dict[str, int] = {}

    def make(number: int, row: Any) -> Document:
        document = row if isinstance(row, Document) else Document.from_row(row, number)
        if document.id in seen:
            raise TaskError(f"row {number}: the id {document.id!r} is that of row {seen[document.id]}, too")
        seen[document.id] = number
        return document

    documents = collect(name, rows, make)
    if not documents:
        raise TaskError(f"{name}: there is no document in it; give at least one")
    return tuple(documents)


class Corpus:
    """Documents and their index, which is built at the first search.

    Args:
        documents: Documents, or mappings with ``id``, ``title`` and ``text``. For files see :meth:`load`.
        name: What it is called in errors.
    """

    def __init__(self, documents: Sequence[Document | Mapping[str, Any]], *, name: str = "corpus") -> None:
        require_bm25s()
        self.name = name
        self.documents = make_documents(name, enumerate(documents, start=1))
        self._source: Path | None = None
        self._index: Any = None
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: str | Path) -> Corpus:
        """Load a ``.jsonl`` or ``.parquet`` file, which is read and indexed once a process (:func:`read_documents`)."""
        path = Path(path).expanduser().absolute()
        # The file's time and size are part of the key, so that a file written anew is read anew.
        stamp = (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None
        return _load(path, stamp)

    def search(self, query: str, top_k: int = 3) -> list[tuple[Document, float]]:
        """Return at most ``top_k`` documents that share a term with ``query``, and their scores, best first."""
        query_words = query_terms(query)
        if not query_words:
            return []
        scores = self._built().get_scores(query_words)
        hits = np.flatnonzero(scores > 0)
        if len(hits) > top_k:
            least = np.partition(scores[hits], -top_k)[-top_k]
            hits = hits[scores[hits] >= least]
        best = hits[np.argsort(-scores[hits], kind="stable")][:top_k]
        return [(self.documents[i], float(scores[i])) for i in best]

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        return f"Corpus({self.name!r}, {len(self)} documents)"

    def __deepcopy__(self, memo: dict[int, Any]) -> Corpus:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a file's corpus as its path, to be read again; other documents are pickled without their index."""
        if self._source is not None:
            return Corpus.load, (self._source,)
        return functools.partial(Corpus, name=self.name), (self.documents,)

    def _built(self) -> Any:
        with self._lock:
            if self._index is None:
                import bm25s

                # The plain NumPy backend: the same sums everywhere, whether or not numba is installed.
                index = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy", auto_compile=False)
                tokens = [terms(f"{document.title}\n{document.text}") for document in self.documents]
                if not any(tokens):
                    tokens[0] = [""]  # a corpus of stop words only: nothing will be found in it
                index.index(tokens, show_progress=False)
                self._index = index
            return self._index


def result_page(corpus: Corpus, query: str, top_k: int, snippet_chars: int) -> str:
    """Return the best documents for a query, numbered, as a model reads them; ``ToolError`` for one without words.

    Of a document longer than ``snippet_chars``, it is the part with most words of the query.
    """
    query_words = query_terms(query)
    if not query_words:
        raise ToolError("The query has no word to search for; name what you look for.")
    hits = corpus.search(query, top_k)
    if not hits:
        return "Nothing was found. Try other words."
    entries = []
    for number, (document, _) in enumerate(hits, start=1):
        title = document.title if len(document.title) <= 200 else f"{document.title[:197]}..."
        text = snippet(document.text, frozenset(query_words), snippet_chars)
        entries.append(f"[{number}] {title}\n{text}" if title else f"[{number}] {text}")
    return "\n\n".join(entries)


def snippet(text: str, query_words: frozenset[str], most: int) -> str:
    """Return the first part of ``text`` with the most different words of ``query_words``; all of it if it is short.

    It has at most ``most`` characters, including the marks of omitted text.
    """
    if len(text) <= most:
        return text
    room = most - 6  # "..." at both ends
    words = words_of(text)
    spans = [(word.start, word.end, word.text) for word in words]
    pairs = [(a.start, b.end, a.text + b.text) for a, b in pairwise(words) if _are_neighbours(a, b)]
    places = sorted(span for span in (*spans, *pairs) if span[2] in query_words)
    before = room // 4  # a little of what stands before the first of these words
    best, best_count = 0, 0
    for i, (start, _, _) in enumerate(places):
        inside = set()
        for place in range(i, len(places)):
            if places[place][1] > start + room - before:
                break
            inside.add(places[place][2])
        if len(inside) > best_count:
            best, best_count = start, len(inside)
    start = max(0, min(best - before, len(text) - room))
    end = start + room
    if start > 0:
        start = next((begin for begin, _, _ in spans if begin >= start), start)
    if end < len(text):
        end = max((stop for _, stop, _ in spans if start < stop <= end), default=end)
    return f"{'...' if start > 0 else ''}{text[start:end].strip()}{'...' if end < len(text) else ''}"


def require_bm25s() -> None:
    """Raise ``ImportError``, which names the extra, unless bm25s is installed."""
    from importlib.util import find_spec

    if find_spec("bm25s") is None:
        raise ImportError("searching a corpus needs bm25s: pip install 'textenvs[search]'")


@functools.lru_cache(maxsize=8)
def _load(path: Path, stamp: tuple[int, int] | None) -> Corpus:
    corpus = Corpus(read_documents(path), name=str(path))
    corpus._source = path
    return corpus
