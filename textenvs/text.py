"""Texts of others (models, servers, data files), printable and short; and this package's own, which are YAML files."""

from __future__ import annotations

import difflib
import functools
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import yaml

# Of C0, DEL and C1, all but tabs and new lines; and the characters that turn the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text that cannot move a terminal's cursor or change its colours: control characters are escaped."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def excerpt(text: str, most: int = 300) -> str:
    """Return the printable beginning of a text, at most ``most`` characters, with a note on the whole's length."""
    if len(text) <= most:
        return printable(text)
    return f"{printable(text[:most])}... ({len(text)} characters)"


def quoted(value: Any, most: int = 200) -> str:
    """``repr(value)`` for an error: at most ``most`` characters of it, printable; its type where that raises."""
    if isinstance(value, (str, bytes)) and len(value) > most:
        return f"{printable(repr(value[:most]))}... ({len(value)} in all)"
    try:
        return excerpt(repr(value), most)
    except Exception:  # of an object's own code, or of a number of thousands of digits
        return f"a value of the type {type(value).__name__}"


def nearest(word: str, choices: Iterable[str], otherwise: str) -> str:
    """Return a hint on a word that is not among ``choices``: the nearest of them, or ``otherwise``."""
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count and what is counted: ``1 row``, ``2 rows``; ``many`` where that is not ``one`` with an s."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def digest(*parts: object) -> bytes:
    """Return a key of 32 bytes for values that differ by their ``repr``, in the place of long texts."""
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).digest()


@functools.cache
def load_yaml(package: str | None, name: str) -> Any:
    """Return the YAML file ``name`` beside the modules of ``package``; shared, so never changed."""
    return yaml.load(files(package or "").joinpath(name).read_text("utf-8"), yaml.CSafeLoader)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Within the block, print to a reader that may close its end (``head``): the process then exits quietly, with 1."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # also where --help leaves the block: what was printed is found out here
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end of the process
        raise SystemExit(1) from None
