"""Read files that come from elsewhere within bounds: of size, nesting, values and aliases, all checked before parsing.

A run's folder, an evaluation, a data set or a configuration may be another person's. Parsing takes up to 60 times the
size of a text in memory, and a YAML document of 300 bytes can stand for a billion values, so a bound on bytes alone is
not enough. Every problem is an :class:`UnreadableFile` whose message says what is wrong and what to do.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

#: Bytes of a file that a person writes or a run writes once: a configuration, a manifest, a summary.
SMALL_FILE = 4 << 20
#: Bytes of a line of a file of JSON lines: an episode, or a row of data.
LINE = 64 << 20
#: Nested arrays and objects. Python's own parser gives up at about 1,000.
DEPTH = 128
#: Values of one JSON document, names of fields included.
VALUES = 2_000_000
#: Nodes of one YAML document, counting an anchor's nodes each time that it is used.
NODES = 100_000
#: Characters of a number in YAML.
NUMBER_CHARACTERS = 100
#: Bytes of a YAML document. PyYAML reads about half a MiB a second.
YAML_FILE = 1 << 20

# A JSON string, or what begins like one and never ends. Possessive, so that no text is scanned twice.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


class UnreadableFile(ValueError):
    """A file that cannot be read; the message names it, says why, and what to do."""


def read_bytes(path: str | Path, limit: int | None = SMALL_FILE) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes (``None``: of any size).

    Raises:
        UnreadableFile: There is no such file, it is a folder, a pipe or a device, or it is too large.
    """
    path = Path(path).expanduser()
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        try:
            content = file.read() if limit is None else file.read(limit + 1)
        except OSError as error:
            raise UnreadableFile(f"{path} cannot be read: {error.strerror or error}") from error
    if limit is not None and len(content) > limit:
        raise UnreadableFile(f"{path} has more than {_size(limit)}, the most that is read of such a file")
    return content


def open_regular(path: Path) -> int:
    """Open a regular file for reading and return its descriptor; never wait for the writer of a pipe.

    Raises:
        UnreadableFile: As :func:`read_bytes`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise UnreadableFile(f"{path}: no such file (looked from {_here()}); check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        why = "is not a regular file" if getattr(error, "errno", None) == errno.ENXIO else f"cannot be read: {error}"
        raise UnreadableFile(f"{path} {why}") from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
    raise UnreadableFile(f"{path} is {kind}, not a regular file")


def read_text(path: str | Path, limit: int | None = SMALL_FILE, *, encoding: str = "utf-8") -> str:
    """Return the content of a regular file as text.

    Raises:
        UnreadableFile: As :func:`read_bytes`, or the file is not in this encoding.
    """
    content = read_bytes(path, limit)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{path} is not UTF-8 text ({error}); save the file in UTF-8") from error


def read_lines(path: str | Path, limit: int = LINE) -> Iterator[tuple[int, bytes]]:
    r"""Yield ``(number, line)`` of a regular file, from 1; only ``\n`` ends a line, and it is part of the line.

    Raises:
        UnreadableFile: As :func:`read_bytes`, or a line has more than ``limit`` bytes.
    """
    path = Path(path).expanduser()
    with os.fdopen(open_regular(path), "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(limit + 1), b""), start=1):
            if len(line) > limit and not line.endswith(b"\n"):
                raise UnreadableFile(f"{path}: line {number} has more than {_size(limit)}; remove it")
            yield number, line


def parse_json(text: str | bytes, *, values: int = VALUES, depth: int = DEPTH, allow_nan: bool = False) -> Any:
    """Parse JSON text of at most so many values, nested at most so deep.

    Args:
        text: JSON; bytes are UTF-8.
        values: The most values that it may have, those in arrays and objects and names of fields included.
        depth: The deepest nesting of arrays and objects.
        allow_nan: Whether ``NaN`` and ``Infinity``, which are not JSON, are read as Python writes them.

    Raises:
        ValueError: It is not JSON, or beyond these bounds; the message does not repeat the text.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    check_json_size(text, values=values, depth=depth)
    try:
        return json.loads(text, parse_constant=None if allow_nan else _no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_json_size(text: str, *, values: int = VALUES, depth: int = DEPTH) -> None:
    """Raise ``ValueError`` where JSON text has too many values or is nested too deeply; nothing is parsed."""
    opened = text.count("[") + text.count("{")
    if opened <= depth and opened + text.count(",") + text.count(":") < values:
        return  # also if no mark stands in a string
    marks = _STRING.sub("", text)
    if 1 + sum(map(marks.count, "[{,:")) > values:
        raise ValueError(f"it has more than {values:,} values")
    level = 0
    for bracket in _BRACKET.finditer(marks):
        level += 1 if bracket[0] in "[{" else -1
        if level > depth:
            raise ValueError(f"it is nested more than {depth} deep")


def read_json(path: str | Path, limit: int | None = SMALL_FILE) -> Any:
    """Return the value of a file of JSON.

    Raises:
        UnreadableFile: As :func:`read_text`, or it is not JSON within the bounds of :func:`parse_json`.
    """
    text = read_text(path, limit)
    try:
        return parse_json(text)
    except ValueError as error:
        raise UnreadableFile(f"{path} is not JSON ({error})") from error


def read_json_object(path: str | Path) -> dict[str, Any]:
    """Return the object of a file of JSON; ``UnreadableFile`` as :func:`read_json`, or for another value."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise UnreadableFile(f"{path} is not a JSON object but a {type(value).__name__}")
    return value


class BoundedLoader(yaml.SafeLoader):
    """A safe loader whose documents are bounded before any value is made; ``yaml.YAMLError`` beyond the bounds.

    Nodes are counted as often as aliases repeat them, so an alias bomb is refused. An alias inside its own anchor is
    refused, too: no configuration means it, and whatever walks such a value never ends.
    """

    def __init__(self, stream: str | bytes) -> None:
        if len(stream) > YAML_FILE:
            raise yaml.YAMLError(f"it has more than {_size(YAML_FILE)}")
        self._nesting = 0
        self._count = 0
        self._sizes: dict[int, int] = {}
        super().__init__(stream)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark
        alias = self.check_event(yaml.AliasEvent)
        if self._nesting == DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested more than {DEPTH} deep", problem_mark=mark)
        self._nesting += 1
        node = super().compose_node(parent, index)
        self._nesting -= 1
        if alias and isinstance(node, yaml.CollectionNode) and node.end_mark is None:
            raise yaml.MarkedYAMLError(problem="an alias within its own anchor", problem_mark=mark)
        self._count += self._size(node) if alias and node is not None else 1
        if self._count > NODES:
            raise yaml.MarkedYAMLError(problem=f"more than {NODES:,} values, aliases included", problem_mark=mark)
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        # Version 1.1 has numbers of base 60, whose digits are multiplied one by one.
        if len(node.value) > NUMBER_CHARACTERS and node.tag.rpartition(":")[2] in ("int", "float", "timestamp"):
            problem = f"a number of {len(node.value)} characters; quote it if it is meant as text"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return node

    def _size(self, node: yaml.Node) -> int:
        """Return the nodes below and with this one, those of aliases each time."""
        if not isinstance(node, yaml.CollectionNode):
            return 1
        if id(node) not in self._sizes:
            below = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
            self._sizes[id(node)] = 1 + sum(map(self._size, below))
        return self._sizes[id(node)]


def read_yaml_mapping(path: str | Path) -> dict[str, Any]:
    """Return the mapping of a YAML file; an empty file is an empty mapping.

    Raises:
        UnreadableFile: As :func:`read_text`, or it is not YAML, beyond the bounds, or not a mapping with texts as keys.
    """
    text = read_text(path, YAML_FILE)
    try:
        value = yaml.load(text, BoundedLoader)
    except yaml.YAMLError as error:
        raise UnreadableFile(f"{path} is not a YAML file that can be read ({' '.join(str(error).split())})") from error
    except (ValueError, TypeError, RecursionError, OverflowError) as error:  # a date of no calendar, a list as a key
        raise UnreadableFile(f"{path} has a value that cannot be read ({error})") from error
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UnreadableFile(f"{path} is not a mapping of names to values")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _size(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # the folder was removed
        return "a folder that is gone"
