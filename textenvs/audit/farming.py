"""Episodes that are prolonged: a paid turn said again and again, and an ending that is put off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..env import TextEnv
from ..evaluate.policies import Player, Policy, Reply, ToolSchemas
from ..event_loop import settle
from ..messages import Message, Messages
from .earnings import WithExpert
from .subject import Subject, Verdict, judge, mean

_EPISODES = 30
_MORE = 0.02  # of the range: what a longer episode may earn beyond the expert
_REPEATED = 50  # times that a reply is said again


class RepeatPaid(Policy):
    """The expert, who says every reply that is paid and does not end the episode again while it is paid."""

    def start(self, env: TextEnv[Any], seed: int) -> Player:
        rng, last, before, repeated = np.random.default_rng([seed, 4]), "", 0.0, 0

        async def play(conversation: Messages, tools: ToolSchemas) -> Reply:
            nonlocal last, before, repeated
            earned = env.state.assistant_turns > 0 and env.state.return_so_far > before
            before = env.state.return_so_far
            if earned and repeated < _REPEATED:
                repeated += 1
            else:
                last = await settle(env.demonstration(rng))  # type: ignore[assignment, arg-type]
            return Reply(last)

        return play


def in_place_of_last(replacement: str | None) -> WithExpert:
    """Return the expert with another reply in the place of the one that ends the episode.

    ``None`` is the reply before that, again.
    """

    async def reply(env: TextEnv[Any], rng: np.random.Generator, turn: int) -> str | Message:
        future = env.fork()
        expert: str | Message = await settle(future.demonstration(rng))
        await future.astep(expert)
        if not future.state.done:
            return expert
        replies = [message for message in env.state.messages if message["role"] == "assistant"]
        return replies[-1] if replacement is None and replies else replacement or "."

    return WithExpert(reply)


def farming(subject: Subject) -> Iterator[Verdict]:
    """Check that a longer episode earns no more: neither a paid turn said again, nor an ending put off."""
    policies: dict[str, tuple[Sequence[Policy], str]] = {
        "a paid turn again": ([RepeatPaid()], "a turn that was paid is paid again: pay for what is new, once"),
        "an ending put off": (
            [in_place_of_last("."), in_place_of_last(None)],
            "never ending earns more than ending: what the end costs is avoided by saying anything else; charge for "
            "turns, or pay at the end of every episode, truncated or not",
        ),
    }
    longer = [record for record in subject.expert if len(record.turn_rewards) > 1][:_EPISODES]
    for check, (longer_policies, cause) in policies.items():
        if not longer:
            why = "the expert has one turn" if subject.expert else "no scripted expert"
            yield Verdict(check, "skipped", why)
            continue
        ceiling = mean(longer)
        records = max((subject.play_again(policy, longer) for policy in longer_policies), key=mean)
        limit = ceiling + _MORE * abs(ceiling - subject.floor)
        evidence = f"mean return {mean(records):+.3f}; expert {ceiling:+.3f} on the same {len(longer)} episodes"
        yield judge(check, records, limit, evidence, cause, "a longer episode earns no more")
