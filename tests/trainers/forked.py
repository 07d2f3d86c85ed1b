"""Processes forked from one that has torch imported already: that alone takes seconds."""

from __future__ import annotations

from multiprocessing import get_context
from multiprocessing.context import ForkServerContext


def forking() -> ForkServerContext:
    """The context of such processes. All tests have one list of imports: the first that starts a process decides."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers", "trainers.learner", "trainers.engines.transport", "peft"])
    return context
