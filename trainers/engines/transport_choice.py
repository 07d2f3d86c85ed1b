"""The choice of a transport of weights to a server: the first in a fixed order that can work, and why none before it.

An embedded engine reads the learner's parameters in their process, and has no transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from trainers.engines.base import EngineError

Transport = Literal["ipc", "process_group", "disk", "http"]  #: in the order of ``auto``
ORDER: tuple[Transport, ...] = get_args(Transport)


@dataclass(frozen=True)
class Facts:
    """Facts about a server and the learner; texts say why something is impossible, for people."""

    server: str  #: its name in messages
    senders: Sequence[str] = ()  #: places of the learner's memory; see ``place_of``
    workers: Sequence[str] | None = None  #: places of the workers' memory; ``None``: the server does not tell
    shares: bool = False  #: whether the workers can map the learner's memory
    no_room: str | None = None  #: why the learner's shared memory is too small for the buffers
    unreached: str | None = None  #: why the workers cannot connect to the learner
    unseen: str | None = None  #: why the server cannot read the learner's files


class Choice(NamedTuple):
    """A transport, and the reasons against those before it in the order of ``auto``."""

    transport: Transport
    excluded: dict[Transport, str]

    def line(self, server: str) -> str:
        """Return one line for people."""
        reasons = (f"not by {name}: {reason}" for name, reason in self.excluded.items())
        return "; ".join([f"weights go to {server} by {self.transport}", *reasons])


def choose(configured: Literal["auto"] | Transport, facts: Facts) -> Choice:
    """Choose the transport. EngineError: the ``configured`` one cannot work; it names the one to take."""
    reasons = reasons_against(facts)
    best = next(name for name in ORDER if name not in reasons)
    if configured == "auto":
        return Choice(best, {name: reasons[name] for name in ORDER[: ORDER.index(best)]})
    if configured == "ipc" and facts.shares:  # buffers of an earlier update may be there: the sender finds out
        return Choice(configured, {})
    if configured in reasons:
        raise EngineError(f"engine.weight_transport={configured}: {reasons[configured]}; take {best}")
    return Choice(configured, {})


def reasons_against(facts: Facts) -> dict[Transport, str]:
    """Return why each transport cannot work, of those that cannot; ``http`` always does."""
    reasons: dict[Transport, str] = {}
    if not facts.shares:
        where = "a place that it does not tell" if facts.workers is None else ", ".join(sorted({*facts.workers}))
        senders = ", ".join(dict.fromkeys(facts.senders))
        reasons["ipc"] = f"{facts.server} computes in {where}, and the learner in {senders}, so they share no memory"
    elif facts.no_room is not None:
        reasons["ipc"] = facts.no_room
    if facts.unreached is not None:
        reasons["process_group"] = facts.unreached
    if facts.unseen is not None:
        reasons["disk"] = facts.unseen
    return reasons
