"""Messages over a Unix socket: a label, and a parcel. What is large travels as the descriptor of a file in memory."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import threading
from typing import Any

import numpy as np

from trainers.cluster.parcel import Parcel, from_file, to_file

_HEADER = struct.Struct("<QQ")  # bytes of the label, bytes of the head that follows it
_PRIVATE = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # what is received is not for processes that are started here
_INLINE = 1 << 16  # parcels up to so many bytes are sent as they are

Label = tuple[Any, ...]


class Shared:
    """A parcel that is about to be sent to several processes: a large one is written to memory once."""

    def __init__(self, parcel: Parcel) -> None:
        self.descriptor: int | None = None
        self.sizes = [len(parcel.head), *(buffer.nbytes for buffer in parcel.buffers)]
        self.inline = b""
        if parcel.size > _INLINE:
            self.descriptor, self.sizes = to_file(parcel)
        else:
            self.inline = b"".join([parcel.head, *(buffer.tobytes() for buffer in parcel.buffers)])

    def close(self) -> None:
        """Give the memory up; readers keep theirs."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class Pipe:
    """One end of a socket. Several threads may send; one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, label: Label, parcel: Parcel | Shared) -> None:
        """Send a message.

        Raises:
            OSError: The other end is gone, or there is no room for the parcel.
        """
        shared = parcel if isinstance(parcel, Shared) else Shared(parcel)
        try:
            words = pickle.dumps((label, shared.sizes))
            header = _HEADER.pack(len(words), len(shared.inline))
            descriptors = [] if shared.descriptor is None else [shared.descriptor]
            with self._sending:
                sent = socket.send_fds(self._socket, [header], descriptors)
                self._socket.sendall(header[sent:] + words + shared.inline)
        finally:
            if shared is not parcel:
                shared.close()

    def receive(self) -> tuple[Label, Parcel] | None:
        """The next message; ``None`` when the other end is closed, even in the middle of one."""
        descriptors: list[int] = []
        try:
            header, descriptors, _, _ = socket.recv_fds(self._socket, _HEADER.size, 1, _PRIVATE)
            if not header:
                return None
            header += self._exactly(_HEADER.size - len(header))
            words, inline = _HEADER.unpack(header)
            label, sizes = pickle.loads(self._exactly(words))
            if descriptors:
                return label, from_file(descriptors.pop(), sizes)
            content = np.frombuffer(bytearray(self._exactly(inline)), np.uint8)
        except (EOFError, OSError):
            for descriptor in descriptors:
                os.close(descriptor)
            return None
        parts = np.split(content, np.cumsum(sizes)[:-1])
        return label, Parcel(parts[0].tobytes(), parts[1:])

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._socket.recv(min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close this end; the other one reads the end, whatever waits to be read here."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
