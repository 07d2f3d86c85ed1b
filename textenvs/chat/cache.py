"""Answers on disk, so that the same request is never paid for twice, nor answered in two ways.

One SQLite file, for any number of processes of one machine (SQLite's locks do not hold on most network drives). A file
that is not a cache is an error and stays as it is: it may be somebody's data, and a run that quietly pays again, or is
no longer the run it repeats, is worse than one that stops and says why. One bad row is only a request to make again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import CacheError

log = logging.getLogger("textenvs")

# "txch" in ASCII: marks a file as ours, so that no other program's database is ever written to.
_APPLICATION = 0x74786368
_VERSION = 1
_BUSY_S = 30.0  # how long to wait for another process's write


def request_key(request: Mapping[str, Any]) -> str:
    """The name of a request: equal for equal JSON, whatever the order of its keys."""
    text = json.dumps(request, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class AnswerCache:
    """A mapping from request keys to JSON answers, on disk. Its methods may be called from any thread.

    The file is opened at the first use, and once more in a forked child: SQLite's connections do not survive a fork.

    Args:
        path: The file; it and its folder are made where they are missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._warned = False

    def get(self, key: str) -> Any | None:
        """The answer to a request, or ``None``.

        Raises:
            CacheError: The file is not a cache, or is damaged.
        """
        with self._lock:
            try:
                row = self._open().execute("SELECT answer, digest FROM answers WHERE key = ?", (key,)).fetchone()
            except sqlite3.Error as error:
                raise self._problem(error) from error
        if row is None:
            return None
        answer, digest = row
        if not isinstance(answer, str) or _digest(answer) != digest:
            log.warning("%s: the answer to the request %s is damaged; it will be asked for again", self.path, key[:12])
            return None
        return json.loads(answer)

    def put(self, key: str, answer: Any) -> None:
        """Keep an answer. A disk that cannot take it is a warning, once: the answer itself is good.

        Raises:
            CacheError: The file is not a cache, or is damaged.
        """
        text = json.dumps(answer, allow_nan=False)
        with self._lock:
            try:
                self._open().execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, text, _digest(text)))
            except sqlite3.OperationalError as error:  # full, read-only, locked for too long
                if not self._warned:
                    log.warning("%s: answers cannot be kept (%s); the run goes on without", self.path, error)
                self._warned = True
            except sqlite3.Error as error:
                raise self._problem(error) from error

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
                self._connection = None

    def __len__(self) -> int:
        """How many answers there are."""
        with self._lock:
            try:
                return int(self._open().execute("SELECT count(*) FROM answers").fetchone()[0])
            except sqlite3.Error as error:
                raise self._problem(error) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            if self._process == os.getpid():
                return self._connection
            _inherited.append(self._connection)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._problem(error) from error
        # Without an isolation level, transactions are where we begin them and nowhere else.
        connection = sqlite3.connect(self.path, timeout=_BUSY_S, check_same_thread=False, isolation_level=None)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._process = connection, os.getpid()
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if _marks(connection) != _OURS:
            connection.execute("BEGIN IMMEDIATE")  # of several processes that find an empty file, one makes the table
            marks = _marks(connection)
            if marks != _OURS:
                if marks[0] == _APPLICATION:
                    raise self._problem(f"it has version {marks[1]}, and this textenvs reads version {_VERSION}")
                if marks != (0, 0) or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    raise self._problem("it is another program's database")
                connection.execute("CREATE TABLE answers (key TEXT PRIMARY KEY, answer TEXT, digest TEXT)")
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")  # readers do not wait for writers
        connection.execute("PRAGMA synchronous = NORMAL")  # with WAL: a power cut loses answers, never the file

    def _problem(self, error: object) -> CacheError:
        return CacheError(
            f"{self.path} cannot be used as a cache of answers: {error}. Nothing was changed in it; move or delete it, "
            "or give the option 'cache' another name"
        )


_OURS = (_APPLICATION, _VERSION)

# Connections of a parent process. Closing one in a child, or letting it be collected, could break the parent's file.
_inherited: list[sqlite3.Connection] = []


def _marks(connection: sqlite3.Connection) -> tuple[int, int]:
    names = ("application_id", "user_version")
    application, version = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
    return application, version


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
