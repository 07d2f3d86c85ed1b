"""The CUDA stream of an embedded engine. On other devices there is none, and nothing here does anything.

On the default stream, steps would queue behind the kernels that a learner in this process has launched. With a stream
of its own an engine is ordered with others only where it says so:

* it waits for what it is given (:meth:`EngineStream.mark`, :meth:`EngineStream.wait`): its tensors when it starts, and
  new weights, which a learner has computed on its own stream;
* it finishes (:meth:`EngineStream.finish`) before others may go on: after it has read new weights, which the learner
  changes with its next step; before it frees memory, which torch hands out anew on the stream that it was taken on; and
  when it ends.

All it computes besides begins and ends on its stream, also what is captured: then no other tensor needs an event or
``record_stream``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


class EngineStream:
    """A stream on ``device``, for the one thread in which an engine computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def use(self) -> AbstractContextManager[object]:
        """Return a context in which the calling thread computes on this stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def mark(self) -> torch.cuda.Event | None:
        """Return an event behind all that was launched so far on the calling thread's stream."""
        return None if self._stream is None else torch.cuda.current_stream(self._device).record_event()

    def wait(self, mark: torch.cuda.Event | None) -> None:
        """Let what this stream does from now on wait for a mark; the host does not wait."""
        if self._stream is not None and mark is not None:
            self._stream.wait_event(mark)

    def finish(self) -> None:
        """Wait on the host until this stream has done all it was given; other streams go on."""
        if self._stream is not None:
            self._stream.synchronize()
