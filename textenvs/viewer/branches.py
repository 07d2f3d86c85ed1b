"""Continue a recorded episode: replay it up to one of its turns, then play on."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..env import TextEnv
from ..evaluate.baselines import has_script
from ..evaluate.policies import Player, Policy
from ..evaluate.runner import describe_error, tools_of
from ..event_loop import submit
from ..messages import Message, Messages, assistant, text_of
from ..records import Episode
from ..records.writer import write_played
from ..text import excerpt
from ..users.moves import without_move

MakeEnv = Callable[[str, Mapping[str, Any]], TextEnv[Any]]
_MOST_TURNS = 100  # of one request


class BranchError(ValueError):
    """An episode that cannot be continued; the message has the cause and the remedy."""


def environment_of(config: Mapping[str, Any], info: Mapping[str, Any], group: str) -> tuple[str, dict[str, Any]]:
    """Return the id and options of the environment that a group of an iteration or an evaluation was played in.

    Raises:
        BranchError: The file does not say.
    """
    environment = info.get("environment") or config.get("environment")
    if (components := info.get("components")) and isinstance(environment, Mapping):  # of a mixture
        environment = environment.get(components.get(group))
    if not isinstance(environment, Mapping) or not isinstance(environment.get("id"), str):
        raise BranchError("the file does not say which environment was played: an older version wrote it")
    return environment["id"], dict(environment.get("options") or {})


class Branch:
    """An episode that is continued; not thread-safe (see ``lock``).

    The environment is reset with the recorded seed and task, and given the recorded replies. ``differences`` has what
    then differs from the record (a changed environment, a user that is a model); the branch continues nevertheless.

    Args:
        episode: The record.
        turn: Turns of the whole conversation that are kept.
        env: A new environment, which the branch closes.
        model: A policy beside the expert and the person, or ``None``.

    Raises:
        BranchError: The record does not say how to play it again, or the episode is over before ``turn``.
    """

    def __init__(self, episode: Episode, turn: int, env: TextEnv[Any], model: Policy | None = None) -> None:
        self.lock = threading.Lock()
        self.episode, self.turn = episode, turn
        self.rewards: list[float] = []
        self.terms: list[dict[str, float]] = []
        self.by: list[str] = []  # who replied, by turn
        self.metrics: dict[str, float] = {}
        self.stop: str | None = None
        self.error: str | None = None
        self._env, self._model = env, model
        self._player: Player | None = None
        self._rng = np.random.default_rng(episode.env_seed or 0)
        if episode.env_seed is None or episode.task_index is None or episode.task_index < 0:
            raise BranchError("the record has no seed, or no index of its task, so it cannot be played again")
        if _has_contexts(episode):
            raise BranchError("the record has several contexts, and only an episode of one conversation is continued")
        replies = replies_of(episode)
        if not 0 <= turn <= len(replies):
            raise BranchError(f"the episode has {len(replies)} turns; it can be continued at 0 to {len(replies)}")
        env.reset(seed=episode.env_seed, options={"task_index": episode.task_index})
        for number, reply in enumerate(replies[:turn]):
            if env.state.done:
                raise BranchError(f"played again, the episode is over after {number} turns ({env.state.stop})")
            env.step(reply)
        self.replayed = len(self.messages)
        self.differences = _differences(episode.messages, self.messages)

    @property
    def messages(self) -> Messages:
        return tuple(self._env.state.messages)

    @property
    def done(self) -> bool:
        return bool(self._env.state.done)

    def policies(self) -> list[str]:
        """List the policies that can reply, beside the person."""
        return ["expert"] * has_script(self._env, "expert") + ["model"] * (self._model is not None)

    def reply(self, message: str | Message) -> None:
        """Play a turn with a person's reply.

        Raises:
            BranchError: The episode is over, or the environment failed; the branch is then as it was.
        """
        self._step(message, "hand")

    def play(self, policy: str, turns: int) -> None:
        """Play up to ``turns`` turns of the ``expert`` or the ``model``, until the episode is over.

        Raises:
            BranchError: There is no such policy here, or it, or the environment, failed.
        """
        if policy not in self.policies():
            raise BranchError(f"there is no {policy!r} here: name a model when you start `textenvs view --serve`")
        for _ in range(min(turns, _MOST_TURNS)):
            if self.done:
                return
            try:
                action = self._env.demonstration(self._rng) if policy == "expert" else self._ask_model()
            except Exception as error:  # of a service, a model or a script
                raise BranchError(f"the {policy} failed: {describe_error(error)}") from error
            self._step(action, policy)

    def _ask_model(self) -> str | Message:
        if self._player is None:
            assert self._model is not None
            self._player = self._model.start(self._env, self.episode.env_seed or 0)
        return submit(self._player(self.messages, tools_of(self._env))).result().action

    def _step(self, action: str | Message, by: str) -> None:
        if self.done:
            raise BranchError("the episode is over")
        try:
            _, reward, _, _, info = self._env.step(action)
        except Exception as error:  # of the environment, or of a reply that is none
            raise BranchError(f"the reply was not taken: {describe_error(error)}") from error
        self.rewards.append(float(reward))
        self.terms.append(dict(info["terms"]))
        self.by.append(by)
        self.metrics = without_move(info["metrics"])
        self.stop = info["stop"]
        self.error = info.get("failure")

    def view(self) -> dict[str, Any]:
        """Return the branch's state as JSON values, for the page."""
        schemas = [dict(schema["function"]) for schema in getattr(self._env, "tool_schemas", ())]
        return {
            "turn": self.turn,
            "kept": self.replayed,
            "messages": list(self.messages),
            "rewards": self.rewards,
            "terms": self.terms,
            "by": self.by,
            "done": self.done,
            "stop": self.stop,
            "error": self.error,
            "differences": self.differences,
            "policies": self.policies(),
            "tools": schemas,
        }

    def save(self, folder: Path, kind: str, number: int) -> Path:
        """Write the branch as a file of one episode, a fork of the recorded one without tokens.

        Raises:
            BranchError: Nothing was played, or the file cannot be written.
        """
        if not self.rewards:
            raise BranchError("nothing was played yet")
        if self._env.state.contexts:
            raise BranchError("the branch has left a context, and a file of a branch has one conversation")
        safe = re.sub(r"[^\w.-]", "_", self.episode.episode_id)[:80]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            n = 1
            while (path := folder / f"{kind}-{number:06d}-{safe}-t{self.turn}-{n}.parquet").exists():
                n += 1
            # The file by itself is no folder of an evaluation.
            own = "validation" if kind == "evaluation" else kind
            row = self._row(f"{self.episode.episode_id}/continued-t{self.turn}-{n}")
            write_played(path, [row], kind=own, iteration=number, continued={"turn": self.turn, "by": self.by})
        except OSError as error:
            raise BranchError(f"the branch was not written: {error}") from error
        return path

    def _row(self, episode_id: str) -> dict[str, Any]:
        state, episode = self._env.state, self.episode
        status = "error_env" if self.error else "completed" if state.terminated else "truncated_turns"
        copied = ("group_id", "task_key", "data_source", "has_success", "task_index", "env_seed")
        return {
            **{name: getattr(episode, name) for name in copied},
            "episode_id": episode_id,
            "status": status if self.done else "aborted",
            "stop": self.stop,
            "error": self.error,
            "forked_from": episode.episode_id,
            "forked_turn": self.turn,
            "terminated": state.terminated,
            "truncated": not state.terminated,
            "turn_rewards": self.rewards,
            "turn_terms": [list(terms.items()) for terms in self.terms],
            "metrics": list(self.metrics.items()),
            "messages": [{**message, "content": text_of(message)} for message in self.messages],  # as runs write them
        }

    def close(self) -> None:
        self._env.close()


def _has_contexts(episode: Episode) -> bool:
    """Return whether the messages of an episode are only the last of its conversations."""
    if episode.record is not None:
        return bool(episode.record.contexts)
    if episode.tokens is None or len(episode.tokens.segment_starts) < 2:
        return False
    replies = sum(message["role"] == "assistant" for message in episode.messages)
    return replies < len(episode.turn_rewards) + episode.first_turn


def replies_of(episode: Episode) -> list[Message]:
    """Return the assistant's messages that are turns of the whole conversation, without those of the opening."""
    replies = [message for message in episode.messages if message["role"] == "assistant"]
    turns = len(episode.turn_rewards) + episode.first_turn
    return replies[len(replies) - min(turns, len(replies)) :]


def reply_of(content: str, calls: Sequence[Mapping[str, str]], turn: int) -> str | Message:
    """Return a reply as a person typed it; each tool call has ``name`` and ``arguments`` (JSON)."""
    if not calls:
        return content
    tool_calls = [
        {"id": f"typed_{turn}_{n}", "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
        for n, c in enumerate(calls)
    ]
    return assistant(content, tool_calls)  # type: ignore[arg-type]


def _differences(recorded: Messages, now: Messages) -> list[str]:
    """Describe the differences of two conversations; JSON treats tuples and lists alike."""
    differences = []
    for n, (old_message, new_message) in enumerate(zip(recorded, now, strict=False)):
        for key in sorted({*old_message, *new_message}):
            old, new = (
                json.dumps(message.get(key), sort_keys=True, ensure_ascii=False)
                for message in (old_message, new_message)
            )
            if old != new:
                differences.append(
                    f"message {n} ({new_message['role']}), {key}: recorded {excerpt(old)}; now {excerpt(new)}"
                )
    if len(now) > len(recorded):
        differences.append(f"the record has {len(recorded)} messages, played again there are {len(now)}")
    return differences[:5]
