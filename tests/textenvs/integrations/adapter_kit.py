"""Reference of every adapter: scripted episodes, played directly."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from textenvs.integrations import EpisodeSpec
from textenvs.messages import Messages

#: The environments that every adapter must carry faithfully, and with which arguments.
ENVIRONMENTS = ("textenv/gsm8k-interact", "textenv/gsm8k-tool", "textenv/clarify")

#: Replies of all sorts, the same on every machine: right ones, careless ones, and nonsense in between.
NONSENSE = ("", "I do not know.", "#### -7", "What day is it?", '<tool_call>{"name": "nothing"}</tool_call>')


@dataclass
class Played:
    """An episode as it went directly: what an adapter must reproduce from ``spec`` and ``replies``."""

    spec: EpisodeSpec
    opening: Messages
    replies: list[str] = field(default_factory=list)
    observations: list[Messages] = field(default_factory=list)  # after each reply
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    stop: str | None = None


def direct(spec: EpisodeSpec, *, good: float = 0.4, careless: float = 0.3, max_replies: int = 32) -> Played:
    """Play the episode of ``spec`` on the environment itself, with replies drawn by its seed."""
    rng = np.random.default_rng([spec.seed, 1])
    env = spec.make()
    conversation, _ = env.reset(seed=spec.seed, options=spec.options)
    played = Played(spec, conversation)
    while not (played.terminated or played.truncated) and len(played.replies) < max_replies:
        draw = rng.random()
        if draw < good:
            reply = env.demonstration(rng)
        elif draw < good + careless:
            reply = env.careless_reply(rng)
        else:
            reply = str(rng.choice(NONSENSE))
        assert isinstance(reply, str)
        before = len(conversation)
        conversation, reward, played.terminated, played.truncated, info = env.step(reply)
        played.replies.append(reply)
        played.observations.append(conversation[before + 1 :])
        played.rewards.append(reward)
        played.stop = info["stop"]
    env.close()
    return played


def episodes(env_id: str, count: int = 12) -> list[Played]:
    """Episodes of one environment that differ in how they end."""
    return [direct(EpisodeSpec(env_id, seed)) for seed in range(count)]
