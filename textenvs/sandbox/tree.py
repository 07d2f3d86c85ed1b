"""A folder as a value: files, folders and links, with their contents, modes and times.

A tree is immutable. What two trees have in common is stored once in a process: a file that a command left alone is the
same object before and after it. So a snapshot, a fork and a restore of a folder are references, whatever its size.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

Kind = Literal["file", "folder", "link"]

#: Bits of a mode that are kept: permissions. Set-user-id, set-group-id and sticky bits mean nothing in a box.
PERMISSIONS = 0o777


def encoded(path: str) -> bytes:
    """Return the bytes of a path; unlike those of :func:`os.fsencode`, they do not depend on the locale."""
    return path.encode("utf-8", "surrogateescape")


def decoded(path: bytes) -> str:
    """Return the text of a path, from which :func:`encoded` makes the same bytes."""
    return path.decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Entry:
    """A file, a folder or a symbolic link.

    Args:
        kind: What it is.
        content: The bytes of a file, the target of a link; empty for a folder.
        mode: Its permissions; those of a link are always 777.
        mtime_ns: When it was changed last, in nanoseconds since 1970.

    Raises:
        ValueError: ``mode`` has more than :data:`PERMISSIONS`.
    """

    kind: Kind
    content: bytes = b""
    mode: int = 0o644
    mtime_ns: int = 0

    def __post_init__(self) -> None:
        if self.mode & ~PERMISSIONS:
            raise ValueError(f"the mode of a {self.kind} is of 0 to 777 (octal), and this is {self.mode:o}")
        if self.kind == "link":
            object.__setattr__(self, "mode", PERMISSIONS)

    @functools.cached_property
    def digest(self) -> bytes:
        """A hash of all of the above."""
        head = f"{self.kind} {self.mode} {self.mtime_ns} ".encode()
        return hashlib.sha256(head + self.content).digest()


class Tree(Mapping[str, Entry]):
    """Entries by path: relative, without ``.`` and ``..``. They are text as :func:`decoded` makes it.

    Paths are in the order of their bytes, so a folder comes before what it contains. Trees are equal, and have the same
    ``digest``, if all their paths, kinds, contents, modes and times are.

    Raises:
        ValueError: A path is not of that form, or its folder is not in the tree.
    """

    def __init__(self, entries: Mapping[str, Entry] | None = None) -> None:
        source = {} if entries is None else entries
        self._entries = {path: source[path] for path in sorted(source, key=encoded)}
        for path in self._entries:
            whole = f"/{path}/"  # searched, not split: that is linear in a deep tree
            if "//" in whole or "/./" in whole or "/../" in whole or "\0" in whole:
                raise ValueError(f"a path of a tree is relative, without '.' and '..', and this is {path!r}")
            folder = path.rpartition("/")[0]
            if folder and (folder not in self._entries or self._entries[folder].kind != "folder"):
                raise ValueError(f"{path!r} is in no folder: the tree has no folder {folder!r}")

    @classmethod
    def of(
        cls,
        files: Mapping[str, str | bytes],
        *,
        modes: Mapping[str, int] | None = None,
        links: Mapping[str, str] | None = None,
        folders: tuple[str, ...] = (),
        mtime_ns: int = 0,
    ) -> Self:
        """Return a tree of these files (by path: text or bytes), links (by path: target) and empty folders.

        The folders above them are added. ``modes`` has permissions by path; others are 644 for files and 755 for
        folders.
        """
        own_modes = modes or {}
        entries: dict[str, Entry] = {}

        def add(path: str, kind: Kind, content: str | bytes = b"") -> None:
            folder = path.rpartition("/")[0]
            if folder and folder not in entries:
                add(folder, "folder")
            mode = own_modes.get(path, 0o755 if kind == "folder" else 0o644)
            data = content.encode() if isinstance(content, str) else content
            entries[path] = Entry(kind, data, mode, mtime_ns)

        for path in folders:
            add(path, "folder")
        for path, content in files.items():
            add(path, "file", content)
        for path, target in (links or {}).items():
            add(path, "link", encoded(target))
        return cls(entries)

    def changed(self, entries: Mapping[str, Entry], removed: frozenset[str] = frozenset()) -> Tree:
        """Return this tree with other entries, and without those at ``removed`` paths."""
        if not entries and not removed:
            return self
        rest = {path: entry for path, entry in self._entries.items() if path not in removed}
        return Tree({**rest, **entries})

    def below(self, folder: str) -> Tree:
        """Return what is in a folder of the tree, as a tree of its own; empty where there is no such folder."""
        start = f"{folder}/"
        return Tree({path.removeprefix(start): entry for path, entry in self.items() if path.startswith(start)})

    def text(self, path: str) -> str | None:
        """Return the text of a file; ``None`` where there is no file. Bytes that are not UTF-8 are replaced."""
        entry = self._entries.get(path)
        return entry.content.decode("utf-8", "replace") if entry is not None and entry.kind == "file" else None

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(len(entry.content) for entry in self._entries.values() if entry.kind == "file")

    @functools.cached_property
    def digest(self) -> bytes:
        """A hash of paths and entries: 32 bytes."""
        whole = hashlib.sha256()
        for path, entry in self._entries.items():
            whole.update(encoded(path) + b"\0" + entry.digest)
        return whole.digest()

    def __getitem__(self, path: str) -> Entry:
        return self._entries[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and (self is other or self._entries == other._entries)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Tree({len(self)} entries, {self.digest.hex()[:12]})"

    def __copy__(self) -> Tree:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tree:
        return self
