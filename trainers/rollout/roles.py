"""The turns of an episode in which several roles act, each in tokens of its own."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from textenvs.messages import Messages
from textenvs.two_sides import Cut

from ..trajectory import Status
from .environments import EnvError, Lease
from .episode_tokens import EpisodeTokens
from .progress import End, Progress, paid_by

#: The role of :class:`~textenvs.two_sides.TwoSides` that speaks without tools, and is told when its words were cut.
USER = "user"


class RolePlay:
    """The turns of one episode; ``info["role"]`` says whose each is, and ``progress.roles`` gets their tokens.

    The role that begins has the names of the episode and its group; the others have these with their own name behind
    them, so that groups compare within a role. A step's own terms are of its turn, and those in ``info["earlier"]`` of
    the turns with these numbers, whichever role they are of.

    Args:
        progress: Of the episode.
        names: The names of the episode and its group.
        begin: Begins the tokens of a role: of its first conversation, its tools and its names.
        room: Returns how many tokens the conversation of such tokens may take, where they begin.
        reply: Samples a reply: of the turn's number, the role's limit, its place in the engine's cache, its tokens.
    """

    def __init__(
        self,
        progress: Progress,
        names: Mapping[str, Any],
        begin: Callable[[Messages, Any, Mapping[str, Any]], EpisodeTokens],
        room: Callable[[EpisodeTokens], int],
        reply: Callable[[int, int, str | None, EpisodeTokens], Awaitable[str]],
    ) -> None:
        self._progress, self._names = progress, names
        self._begin, self._room, self._reply = begin, room, reply
        self._limits: dict[str, int] = {}
        self._turns: list[tuple[str, int]] = []  # of the episode: whose each is, and which of that role's

    async def play(self, env: Lease, conversation: Messages, info: Mapping[str, Any]) -> End:
        """Play the turns from the opening on."""
        progress, main = self._progress, str(info["role"])
        enter, counts = progress.timeline.phase, progress.timeline.counts
        for turn in itertools.count():
            role = str(info["role"])
            tokens = self._observe(role, conversation)
            progress.tokens = progress.roles[main]
            if tokens.context_size >= self._limits[role]:
                return self._no_room(role)
            cuts = counts["cut"]
            text = await self._reply(turn, self._limits[role], None if role == main else role, tokens)
            self._turns.append((role, tokens.num_turns - 1))
            is_cut = role == USER and counts["cut"] > cuts
            enter("step")
            conversation, reward, terminated, truncated, info = await env.step(Cut(text) if is_cut else text)
            enter("own")
            self._record(reward, info)
            if info["role"] == main and (terminated or truncated):
                progress.messages = conversation
            if (end := self._end(main, terminated, truncated, info)) is not None:
                if end.status is Status.TRUNCATED_TURNS and info["role"] in progress.roles:
                    self._observe(str(info["role"]), conversation)
                return end
        raise AssertionError("unreachable")

    def _observe(self, role: str, conversation: Messages) -> EpisodeTokens:
        roles = self._progress.roles
        if role in roles:
            roles[role].observe(conversation)
        else:
            own = {name: f"{self._names[name]}-{role}" for name in ("episode_id", "group_id")} if roles else {}
            tools = None if role == USER else self._progress.backend.tools
            roles[role] = self._begin(conversation, tools, {**self._names, **own})
            self._limits[role] = self._room(roles[role])
        return roles[role]

    def _no_room(self, role: str) -> End:
        tokens = self._progress.roles[role]
        if role != USER and tokens.num_turns:
            return End(Status.TRUNCATED_CONTEXT)
        # The reward of the assistant's turn that the user would answer is not known; an opening has no turn.
        room = f"there is room for {self._limits[role]}"
        message = f"the {role}'s conversation takes {tokens.context_size} tokens; {room}"
        return End(Status.ERROR_ENV, error=message, cause=f"no_room_{role}")

    def _record(self, reward: float, info: Mapping[str, Any]) -> None:
        """Record what a step paid its own turn, the last one, and earlier ones."""
        progress = self._progress
        progress.count(info, progress.roles[self._turns[-1][0]])
        progress.user_messages = info.get("user_messages", ())
        progress.refused = info.get("refused", False)
        reward, terms, earlier = paid_by(info, reward)
        *before, (role, _) = self._turns
        progress.roles[role].reward(reward, terms)
        for number, parts in earlier.items():
            if number >= len(before):
                message = f"the environment pays turn {number} in turn {len(before)} as an earlier one"
                raise EnvError(message, "no_such_turn")
            payee, own = before[number]
            progress.roles[payee].add_reward(own, parts)

    def _end(self, main: str, terminated: bool, truncated: bool, info: Mapping[str, Any]) -> End | None:
        stop, refused = info.get("stop"), self._progress.refused
        if info.get("failed") and not (refused and main == USER):
            return End(Status.ERROR_ENV, stop=stop, error=str(info.get("failure", stop)), cause=str(stop))
        if terminated or refused:
            return End(Status.COMPLETED, terminated=True, stop=stop).explained(info)
        return End(Status.TRUNCATED_TURNS, stop=stop).explained(info) if truncated else None
