"""A real server for all tests of a session; the kits of the engines define its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from trainers.engines.server import ServerProcess, free_port

#: Timeouts that a busy machine does not exceed; a killed server is noticed at once in any case.
PATIENT: dict[str, Any] = {"start_timeout_s": 500.0, "health_timeout_s": 60.0}


class RealServer(ABC):
    """A server that is started when it is first needed, and again when it was killed."""

    def __init__(self, folder: Path, context: int) -> None:
        self.folder, self.context = folder, context
        self.port = free_port()
        self.process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return its command line, and additions to its environment."""

    def ensure(self) -> ServerProcess:
        if self.process is None or self.process.ended is not None:
            self.process = ServerProcess(*self.command())
        return self.process

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ensure that it runs; errors inside are raised with the end of its log."""
        process = self.ensure()
        try:
            yield
        except Exception as error:
            error.add_note(process.tail())
            raise


_Server = TypeVar("_Server", bound=RealServer)


@contextmanager
def stopped_in_the_end(server: _Server) -> Iterator[_Server]:
    try:
        yield server
    finally:
        if server.process is not None:
            server.process.stop()
