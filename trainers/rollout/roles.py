"""The turns of an episode in which several roles act, each in tokens of its own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from textenvs.messages import Messages
from textenvs.two_sides import Cut

from ..trajectory import Status
from .environments import EnvError, Lease
from .episode_tokens import EpisodeTokens
from .progress import End, Progress, own_terms

if TYPE_CHECKING:
    from .play import Episode, Player

#: The role of :class:`~textenvs.two_sides.TwoSides` that speaks without tools, and is told when its words were cut.
USER = "user"


async def play_roles(
    player: Player,
    env: Lease,
    episode: Episode,
    session: str,
    progress: Progress,
    conversation: Messages,
    info: Mapping[str, Any],
    names: Mapping[str, str],
) -> End:
    """Play the turns from the opening on; ``info["role"]`` says whose each is, and ``progress.roles`` gets the tokens.

    The role that begins has the names of the episode and its group, ``names``; the others have these with their own
    name behind them, so that groups compare within a role. A step's own terms are of its turn, and those in
    ``info["earlier"]`` of the turns with these numbers, whichever role they are of.
    """
    if episode.begin or episode.start or episode.forks or episode.window is not None or progress.rewards:
        message = "an episode of several roles has no forks, futures, later rewards or beginning in the middle"
        raise EnvError(message, "several_roles")
    roles, limits, turns, main = progress.roles, dict[str, int](), list[tuple[str, int]](), info["role"]
    enter, counts = progress.timeline.phase, progress.timeline.counts
    for turn in itertools.count():
        role = info["role"]
        if role in roles:
            roles[role].observe(conversation)
        else:
            own = {name: f"{names[name]}-{role}" for name in ("episode_id", "group_id")} if roles else {}
            tools = None if role == USER else progress.backend.tools
            roles[role] = EpisodeTokens(player.renderer, conversation, tools=tools, **{**names, **own})
            most = player.rollout.max_response_tokens or player.engine.max_context
            limits[role] = min(player.engine.max_context, roles[role].context_size + most)
        tokens, progress.tokens = roles[role], roles[main]
        if tokens.context_size >= limits[role]:
            if role != USER and tokens.num_turns:
                return End(Status.TRUNCATED_CONTEXT)
            # The reward of the assistant's turn that the user would answer is not known; an opening has no turn.
            message = f"the {role}'s conversation takes {tokens.context_size} tokens; there is room for {limits[role]}"
            return End(Status.ERROR_ENV, error=message, cause=f"no_room_{role}")
        cut_before = counts["cut"]
        own_session = session if role == main else f"{session}/{role}"
        text = await player.reply(episode, turn, limits[role], own_session, tokens, progress.timeline)
        turns.append((role, tokens.num_turns - 1))
        cut = role == USER and counts["cut"] > cut_before
        enter("step")
        conversation, reward, terminated, truncated, info = await env.step(Cut(text) if cut else text)
        enter("own")
        _record(progress, turns, reward, info)
        progress.metrics.update(info.get("metrics") or {})
        progress.user_messages = info.get("user_messages", ())
        progress.refused, stop = info.get("refused", False), info.get("stop")
        if info["role"] == main and (terminated or truncated):
            progress.messages = conversation
        if info.get("failed") and not (progress.refused and main == USER):
            return End(Status.ERROR_ENV, stop=stop, error=str(info.get("failure", stop)), cause=str(stop))
        if terminated or progress.refused:
            return End(Status.COMPLETED, terminated=True, stop=stop)
        if truncated:
            if info["role"] in roles:
                roles[info["role"]].observe(conversation)
            return End(Status.TRUNCATED_TURNS, stop=stop)
    raise AssertionError("unreachable")


def _record(progress: Progress, turns: list[tuple[str, int]], reward: float, info: Mapping[str, Any]) -> None:
    """Record what a step paid its own turn, the last of ``turns``, and earlier ones."""
    reward, terms, earlier = own_terms(info, reward)
    *before, (role, _) = turns
    elsewhere = {name for parts in earlier.values() for name in parts}
    unpaid = not info.get("terms") and not reward
    terms = {name: value for name, value in terms.items() if not unpaid and (value or name not in elsewhere)}
    progress.roles[role].reward(reward, terms)
    for number, parts in earlier.items():
        if number >= len(before):
            message = f"the environment pays turn {number} in turn {len(before)} as an earlier one"
            raise EnvError(message, "no_such_turn")
        who, own = before[number]
        progress.roles[who].add_reward(own, parts)
