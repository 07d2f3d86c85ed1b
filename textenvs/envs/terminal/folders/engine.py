"""The program ``docker`` or ``podman``: its calls, within limits of time and size.

It is started anew for each call and asked by its command line, so that no library is needed.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from ....sandbox import SandboxFailure, SandboxUnavailable

#: Seconds of a call that does nothing long, and of one that copies files.
SHORT_S, COPY_S = 60.0, 600.0
#: Bytes of the output of a call that are kept, and after how many times as many it is stopped.
_KEPT, _FLOOD = 1 << 20, 256
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Called:
    """The result of a call: its exit code, and what it printed (beginning and end, with ``omitted`` bytes between).

    ``stopped`` is ``"wall"`` or ``"output"`` where a limit ended it, else empty.
    """

    code: int
    head: bytes
    tail: bytes
    errors: bytes
    omitted: int = 0
    stopped: str = ""

    @property
    def output(self) -> bytes:
        return self.head + self.tail


class Engine:
    """A program with docker's command line.

    Args:
        program: ``"docker"`` or ``"podman"``.

    Raises:
        SandboxUnavailable: There is no such program, or it has no daemon.
    """

    def __init__(self, program: str) -> None:
        self.program = program
        if shutil.which(program) is None:
            raise SandboxUnavailable(
                f"runtime={program!r}: there is no program {program} on the PATH. Install it, or give "
                "runtime='sandbox', which plays tasks that need no image"
            )
        called = self.call("info")
        if called.code or called.stopped:
            raise SandboxUnavailable(
                f"runtime={program!r}: `{program} info` failed: {_last_line(called)}. Start its daemon, or give "
                "runtime='sandbox', which plays tasks that need no image"
            )

    def call(
        self,
        *arguments: str,
        stdin: bytes = b"",
        timeout_s: float = SHORT_S,
        output_bytes: int = _KEPT,
        error_bytes: int = _KEPT,
    ) -> Called:
        """Run the program, and return what it did; a limit of time or size ends it.

        Raises:
            SandboxFailure: It could not be started.
        """
        try:
            process = subprocess.Popen(
                [self.program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "DOCKER_CLI_HINTS": "false"},  # advertisements among the errors
            )
        except OSError as error:
            raise SandboxFailure(f"{self.program} could not be started: {error}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        streams = _Ends(process, output_bytes), _Ends(process, error_bytes)
        readers = [
            threading.Thread(target=ends.read, args=(stream,), daemon=True)
            for ends, stream in zip(streams, (process.stdout, process.stderr), strict=True)
        ]
        readers.append(threading.Thread(target=_write, args=(process.stdin, stdin), daemon=True))
        for reader in readers:
            reader.start()
        stopped = ""
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            stopped = "wall"
        finally:
            process.kill()
            process.wait()
        for reader in readers:
            reader.join(SHORT_S)
        output, errors = streams
        if output.flooded or errors.flooded:
            stopped = "output"
        head, tail, omitted = output.parts()
        return Called(process.returncode, head, tail, b"".join(errors.parts()[:2]), omitted, stopped)

    def done(self, *arguments: str, stdin: bytes = b"", timeout_s: float = SHORT_S) -> Called:
        """Run the program like :meth:`call`.

        Raises:
            SandboxFailure: It failed, or took too long.
        """
        called = self.call(*arguments, stdin=stdin, timeout_s=timeout_s)
        if called.stopped or called.code:
            why = f"took longer than {timeout_s:g} s" if called.stopped == "wall" else f"failed: {_last_line(called)}"
            raise SandboxFailure(f"`{self.program} {' '.join(arguments)[:300]}` {why}")
        return called

    def put(self, container: str, files: Mapping[str, tuple[bytes, int]]) -> None:
        """Write files (by path from the root, with contents and modes) into a container, as its user 0.

        Raises:
            SandboxFailure: It failed.
        """
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, (content, mode) in files.items():
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(content), mode
                archive.addfile(entry, io.BytesIO(content))
        self.done("cp", "-", f"{container}:/", stdin=packed.getvalue(), timeout_s=COPY_S)

    def content(self, container: str, path: str, most: int) -> bytes | None:
        """Return the beginning of a regular file of a container; ``None`` where there is none.

        Raises:
            SandboxFailure: The program took too long.
        """
        called = self.call("cp", f"{container}:{path}", "-", timeout_s=COPY_S, output_bytes=2 * most + (1 << 16))
        if called.stopped == "wall":
            raise SandboxFailure(f"`{self.program} cp` took longer than {COPY_S:g} s")
        try:
            with tarfile.open(fileobj=io.BytesIO(called.output)) as archive:
                entry = archive.next()
                if called.code or entry is None or not entry.isfile():
                    return None
                file = archive.extractfile(entry)
                return None if file is None else file.read(most)
        except tarfile.TarError:
            return None

    def copy(self, source: str, target: str, folder: str) -> None:
        """Copy a folder of one container to the same place in another, with owners and permissions.

        Raises:
            SandboxFailure: It failed, or took too long.
        """
        parent = os.path.dirname(folder)
        reading = subprocess.Popen(
            [self.program, "cp", "-a", f"{source}:{folder}", "-"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            written = subprocess.run(
                [self.program, "cp", "-a", "-", f"{target}:{parent}"],
                stdin=reading.stdout,
                capture_output=True,
                timeout=COPY_S,
            )
            code = reading.wait(SHORT_S)
        except (subprocess.TimeoutExpired, OSError) as error:
            raise SandboxFailure(f"{folder} could not be copied between containers: {error}") from error
        finally:
            reading.kill()
            reading.wait()
            if reading.stdout is not None:
                reading.stdout.close()
        if code or written.returncode:
            raise SandboxFailure(f"{folder} could not be copied between containers: {written.stderr[-300:]!r}")


class _Ends:
    """The beginning and the end of a stream, half of ``most`` bytes each."""

    def __init__(self, process: subprocess.Popen[bytes], most: int) -> None:
        self.process, self.most, self.size, self.flooded = process, most, 0, False
        self.head, self.tail = bytearray(), bytearray()

    def read(self, stream: IO[bytes]) -> None:
        """Read a stream to its end; stop the process that writes far too much."""
        with stream:
            while chunk := os.read(stream.fileno(), _CHUNK):
                self.size += len(chunk)
                room = max(0, self.most // 2 - len(self.head))
                self.head += chunk[:room]
                self.tail += chunk[room:]
                if len(self.tail) > 2 * self.most:
                    del self.tail[: -(self.most // 2)]
                if self.size > _FLOOD * self.most and not self.flooded:
                    self.flooded = True
                    self.process.kill()

    def parts(self) -> tuple[bytes, bytes, int]:
        """Return beginning, end, and how many bytes were omitted between them."""
        head, tail = bytes(self.head), bytes(self.tail[-(self.most // 2) :])
        return head, tail, self.size - len(head) - len(tail)


def _write(stream: IO[bytes], content: bytes) -> None:
    try:
        with stream:
            stream.write(content)
    except OSError:  # it has ended, or does not read
        return


def _last_line(called: Called) -> str:
    text = (called.errors or called.output).decode("utf-8", "replace").strip()
    return text.splitlines()[-1][-500:] if text else f"exit code {called.code}"


def environment(variables: Mapping[str, str]) -> Sequence[str]:
    """Return the options that set variables."""
    return [part for name, value in variables.items() for part in ("-e", f"{name}={value}")]
