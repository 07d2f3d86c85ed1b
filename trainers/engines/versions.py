"""Versions of an inference server: the table of an engine, and the choice from it.

``versions.py`` of each engine has the table. vLLM's worker imports this, so it needs nothing but ``packaging``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Generic, TypeVar

from packaging.version import InvalidVersion, Version

_Protocol = TypeVar("_Protocol")

log = logging.getLogger("trainers")


class UnsupportedVersionError(ValueError):
    """The server is older than the oldest supported version."""


class Releases(Generic[_Protocol]):
    """The protocols of a server's versions.

    Patch, pre-, post- and development releases and builds (``+cpu``) count as the release that they belong to.

    Args:
        name: The server's, in messages.
        package: What to install, and the extra of this package that installs it.
        protocols: By the first release that has each, such as ``"0.28"``; the least is the oldest supported release.
        newest: The newest release that the protocols were written for. Its patch releases are known too, if it does
            not name a patch itself.
    """

    def __init__(self, name: str, package: str, protocols: Mapping[str, _Protocol], *, newest: str) -> None:
        self.name, self.package, self.newest = name, package, newest
        self._protocols = sorted((Version(first).release, protocol) for first, protocol in protocols.items())
        self.oldest = min(protocols, key=Version)
        self._warned: set[str] = set()

    def choose(self, version: str) -> _Protocol:
        """Return the protocol of a version that a server reports.

        A newer version than the newest known one gets that one's protocol; so does a build without a version number. A
        warning says so once per process. Raises ``UnsupportedVersionError``: it is older than the oldest.
        """
        release = _release(version)
        if release is None:
            self._warn(version, "is no version number")
            return self._protocols[-1][1]
        matching = [protocol for first, protocol in self._protocols if first <= release]
        if not matching:
            raise UnsupportedVersionError(
                f"{self.name} {version} is too old: the oldest supported version is {self.oldest}; "
                f"pip install '{self.package}>={self.oldest}' into its environment (on a CPU: make venv-{self.package})"
            )
        newest = Version(self.newest).release
        if release[: len(newest)] > newest:
            self._warn(version, f"is newer than {self.newest}, the newest known version")
        return matching[-1]

    def _warn(self, version: str, why: str) -> None:
        if version not in self._warned:
            self._warned.add(version)
            log.warning(
                "%s %s: it %s. It is used like %s; if it fails, install that one (docs/versions.md)",
                *(self.name, version, why, self.newest),
            )


def _release(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a release; ``None``: it has none, as a build from a checkout without tags."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return None
    return None if parsed.is_devrelease and parsed.release < (0, 2) else parsed.release
