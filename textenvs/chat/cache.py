"""Answers on disk, so that the same request is never paid for twice, nor answered in two ways.

One SQLite file, for any number of processes of one machine (SQLite's locks do not hold on most network drives). Answers
are text. The library diskcache reads pickles out of its file, also in its JSON mode, so somebody who can write the file
could run code here (CVE-2025-69872); this can only give a wrong answer.

A file that is not a cache is an error and stays as it is: it may be somebody's data, and a run that quietly pays again,
or is no longer the run it repeats, is worse than one that stops and says why.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from .errors import CacheError

log = logging.getLogger("textenvs")

# "txch" in ASCII: marks a file as a cache, so that no other program's database is ever written to.
_APPLICATION = 0x74786368
_VERSION = 2
_BUSY_S = 30.0  # how long to wait for another process's write


def request_key(request: Mapping[str, Any]) -> str:
    """Return the key of a request: equal for equal JSON, whatever the order of its keys."""
    text = json.dumps(request, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class AnswerCache:
    """A mapping from request keys to texts, on disk. Its methods may be called in any thread and process.

    They raise ``CacheError`` where the file is not a cache, or is damaged; it and its folder are made where missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()
        self._warned = False

    def get(self, key: str) -> str | None:
        with self._open() as connection:
            row = connection.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        return row[0] if row is not None and isinstance(row[0], str) else None

    def put(self, key: str, answer: str) -> None:
        """Store an answer. A failed write is a warning, once: the answer itself is good."""
        with self._open() as connection:
            try:
                connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, answer))
            except sqlite3.OperationalError as error:  # full, read-only, locked for too long
                if not self._warned:
                    log.warning(
                        "%s: answers cannot be cached (%s); the run continues without the cache", self.path, error
                    )
                self._warned = True

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for one call, so that none is shared with a fork or another thread."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Without an isolation level, transactions begin only where the code begins them.
            with closing(sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = NORMAL")
                if _marks(connection) != (_APPLICATION, _VERSION):
                    self._prepare(connection)
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise self._problem(error) from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")  # of several processes that find an empty file, one makes the table
        application, version = marks = _marks(connection)
        if marks != (_APPLICATION, _VERSION):
            if application == _APPLICATION:
                raise self._problem(f"it has version {version}, and this textenvs reads version {_VERSION}")
            if marks != (0, 0) or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise self._problem("it is another program's database")
            connection.execute("CREATE TABLE answers (key TEXT PRIMARY KEY, answer TEXT)")
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")

    def _problem(self, error: object) -> CacheError:
        return CacheError(
            f"{self.path} cannot be used as a cache of answers: {error}. Nothing was changed in it; move or delete it, "
            "or give the option 'cache' another name"
        )


def _marks(connection: sqlite3.Connection) -> tuple[int, int]:
    application, version = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("application_id", "user_version")
    )
    return application, version
