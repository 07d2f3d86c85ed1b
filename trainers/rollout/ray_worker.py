"""Environments as Ray actors: on another machine than the trainer, or on as many as the cluster has.

One actor an environment, and one thread here that waits for its answers. Where this process has no Ray yet, one is
started, or joined if ``RAY_ADDRESS`` names a cluster. An actor takes no CPU from what Ray hands out while it lives (it
mostly waits), so ``workers`` is what bounds how many there are. What the environment imports must be importable there
(for clusters: Ray's ``runtime_env``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .workers import EnvSpec, SaidError, ThreadWorker, formatted

_starting = threading.Lock()
_CLOSE_S = 2.0


class _Environment:
    """What lives in the actor."""

    def __init__(self) -> None:
        self._env: Any = None

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
        try:
            if method == "make":
                self._env = args[0].make()
                return True, None
            return True, getattr(self._env, method)(*args, **kwargs)
        except BaseException as error:  # even SystemExit, or the actor would end without a word
            return False, formatted(error)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()


def _uncounted() -> Mapping[str, Any]:
    return {"num_cpus": 0}


_options: Callable[[], Mapping[str, Any]] = _uncounted


@contextlib.contextmanager
def placed(options: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Make the actors inside with these options of Ray (a placement group, and what they take of it)."""
    global _options
    _options = options
    try:
        yield
    finally:
        _options = _uncounted


class _OnRay:
    """An environment in an actor, seen from the one thread that talks to it. ``kill`` may come from any thread."""

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec
        self._actor: Any = None
        self._killed = False

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ray = _ray()
        if method == "make":
            self._actor = ray.remote(max_restarts=0, **_options())(_Environment).remote()
            args = (self._spec,)
            if self._killed:
                self.kill()
        try:
            good, result = ray.get(self._actor.call.remote(method, args, kwargs))
        except ray.exceptions.RayActorError as error:
            raise SaidError(f"its Ray actor died: {error}", "died") from None
        except (ray.exceptions.RayError, TypeError) as error:  # its answer, or its spec, cannot be sent
            raise SaidError(formatted(error), "raised") from None
        if not good:
            raise SaidError(result, "raised")
        return result

    def close(self) -> None:
        if self._actor is None:  # it was never made
            return
        ray = _ray()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._actor.close.remote(), timeout=_CLOSE_S)
        self.kill()

    def kill(self) -> None:
        self._killed = True
        if self._actor is not None:
            ray = _ray()
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                ray.kill(self._actor, no_restart=True)


class RayWorker(ThreadWorker):
    """An environment in a Ray actor, which can be killed; a thread here waits for its answers."""

    killable = True
    host = _OnRay


def _ray() -> Any:
    """Ray, running.

    Raises:
        ImportError: It is not installed; the message names the extra.
    """
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ImportError("environments on Ray need Ray: pip install 'textenvs[ray]'") from error
    with _starting:
        if not ray.is_initialized():
            # Never whatever Ray happens to run on this machine: its end would be the end of this process.
            address = os.environ.get("RAY_ADDRESS") or "local"
            ray.init(address, logging_level=logging.WARNING, log_to_driver=False)
    return ray
