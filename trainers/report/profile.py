"""torch's profiler around chosen iterations: a Chrome trace each, for ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

FOLDER = "profile"


@contextlib.contextmanager
def profiled(folder: Path, step: int) -> Iterator[None]:
    """Profile what happens inside, in all threads of this process (the engine's and the learner's among them).

    Args:
        folder: The run's; the trace is ``profile/iteration_NNNNNN.json.gz`` in it.
        step: The iteration, from 1.
    """
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    everywhere = _ExperimentalConfig(profile_all_threads=True)  # type: ignore[call-arg]
    with profile(activities=activities, experimental_config=everywhere) as profiler:
        yield
    path = folder / FOLDER / f"iteration_{step:06d}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))
