"""Processes forked from one that has torch imported already: that alone takes seconds."""

from __future__ import annotations

import gc
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from typing import Any


def forking() -> ForkServerContext:
    """The context of such processes. All tests have one list of imports: the first that starts a process decides."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers", "trainers.learner", "trainers.engines.transport", "peft"])
    return context


def without_old_objects(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``work`` in such a process: the collector leaves out what is there already, since each look copies it."""
    gc.freeze()
    return work(*arguments)
