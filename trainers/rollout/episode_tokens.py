"""The tokens of one episode, built up from its messages and replies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from textenvs.env import LARGEST
from textenvs.messages import Message, Messages, assistant, clean_text

from ..chat_template import Tools
from ..engines.base import Generation
from ..trajectory import Status, Trajectory, is_reward
from .renderer import Renderer


class EpisodeTokens:
    """Tokens of one growing episode, begun with ``opening``: contexts, sampled replies, and turns' rewards. No I/O.

    ``engine.generate(tokens.context)`` -> :meth:`reply` -> ``env.step`` -> :meth:`reward` -> :meth:`observe` ... ->
    :meth:`finish`. Invariants:

    * sampled tokens are appended once and never changed, moved or tokenised again;
    * all others have action mask 0: opening, bridges, and a whole new rendering (a new *segment*, which leaves the
      tokens so far as they are) where history was rewritten;
    * a turn exists from its first sampled token on; it has one reward.

    ``tools`` are JSON schemas; ``names`` are ``episode_id``, ``group_id``, ``task_key`` and ``data_source`` of the
    trajectory; of a fork, also ``forked_from`` and ``forked_turn``. RendererError: the template rejects the opening.
    """

    def __init__(self, renderer: Renderer, opening: Sequence[Message], *, tools: Tools = None, **names: Any) -> None:
        self._renderer, self._tools, self._names = renderer, tools, names
        self._conversation: Messages = tuple(opening)  # as the environment last returned it
        self._history: Messages = tuple(opening)  # the same with our replies as they were sampled
        self._begin()
        self._show(renderer.render(opening, tools))

    def _begin(self) -> None:
        self._token_ids: list[int] = []
        self._turn_id: list[int] = []
        self._weight_version: list[int] = []
        self._logprobs: list[float] = []
        self._kept_ids: list[NDArray[np.int32]] = []
        self._kept_counts: list[int] = []
        self._segment_starts: list[int] = [0]
        self._turn_start = 0
        self._text = ""  # the text of the turn that is being played, or was played last
        self._message: Message | None = None  # the same as a message with calls or reasoning, if any
        self._rewards: list[float] = []
        self._terms: list[dict[str, float]] = []
        self.num_turns = 0
        self.oldest_version: int | None = None
        # ask: at a generation point. cut: a reply was aborted and may continue. told: it is complete.
        # over: nothing can follow.
        self._phase: Literal["ask", "cut", "told", "over"] = "ask"

    @property
    def context(self) -> list[int]:
        """The engine's context now: the current segment, which ends at a generation point or in a reply cut off."""
        return self._token_ids[self._segment_starts[-1] :]

    @property
    def context_size(self) -> int:
        return len(self._token_ids) - self._segment_starts[-1]

    def fork(self, **names: Any) -> EpisodeTokens:
        """Return a new episode that begins here: what the model sees now is its context, not trained on."""
        if self._phase == "cut":
            raise RuntimeError("fork: a reply is not complete, and another episode cannot begin in the middle of one")
        child = EpisodeTokens.__new__(EpisodeTokens)
        child._renderer, child._tools, child._names = self._renderer, self._tools, names
        child._conversation, child._history = self._conversation, self._history
        child._begin()
        child._show(self.context)
        child._phase, child._text = self._phase, self._text
        return child

    def reply(self, generation: Generation, message: Message | None = None) -> str:
        """Append the engine's tokens; return their text for the environment, with the reasoning's begin mark.

        ``message`` is how the chat template is to show the reply from now on, where it has calls or reasoning apart.

        After an abort (``finish_reason == "abort"``), tokens that are generated from :attr:`context` join the same
        turn, whose whole text is then returned. RuntimeError: it is not the policy's turn. ``ValueError``: arrays
        differ in length, or it ended by itself without a token.
        """
        if self._phase not in ("ask", "cut"):
            raise RuntimeError("reply: there is no generation point; observe() the environment's answer first")
        ids = generation.token_ids.tolist()
        if not len(ids) == len(generation.logprobs) == len(generation.weight_version):
            raise ValueError(
                f"reply: {len(ids)} tokens, {len(generation.logprobs)} log-probabilities and "
                f"{len(generation.weight_version)} weight versions; the engine must give one of each a token"
            )
        if not ids and generation.finish_reason != "abort":
            raise ValueError(f"reply: no token, yet finish_reason is {generation.finish_reason!r}; a turn needs one")
        if self._phase == "ask":
            self._turn_start = len(self._token_ids)
            self.num_turns += bool(ids)
        if ids:
            versions = generation.weight_version.tolist()
            self.oldest_version = min(versions if self.oldest_version is None else (self.oldest_version, *versions))
            self._append(ids, self.num_turns - 1, versions, *self._kept(generation))
            self._phase = "cut"
        if generation.finish_reason != "abort":
            self._phase = "told"
        self._text = self._renderer.decode(self._token_ids[self._turn_start :])
        self._message = message
        cut = not ids or ids[-1] not in self._renderer.stop_token_ids
        return self._renderer.reasoning.reply(self._text, cut=cut)

    def reward(self, reward: float, terms: Mapping[str, float]) -> None:
        """Record the reward of the turn just played, and its parts; see :func:`~trainers.trajectory.is_reward`."""
        if not is_reward(reward):
            raise ValueError(
                f"reward: turn {len(self._rewards)} earned {reward}; a reward must be finite, at most {LARGEST:g}"
            )
        if len(self._rewards) == self.num_turns:
            raise RuntimeError("reward: there is no turn without a reward (a reply without tokens is no turn)")
        self._rewards.append(float(reward))
        self._terms.append({name: float(value) for name, value in terms.items()})

    def add_reward(self, turn: int, terms: Mapping[str, float]) -> None:
        """Add terms to a rewarded turn; a term that it already has grows."""
        if not 0 <= turn < len(self._rewards):
            raise RuntimeError(f"add_reward: turn {turn} has no reward yet, which others could add to")
        if bad := {name: value for name, value in terms.items() if not is_reward(value)}:
            raise ValueError(f"add_reward: turn {turn} earned {bad}; rewards must be finite, at most {LARGEST:g}")
        self._rewards[turn] += math.fsum(terms.values())
        for name, value in terms.items():
            self._terms[turn][name] = self._terms[turn].get(name, 0.0) + float(value)

    def observe(self, conversation: Sequence[Message]) -> None:
        """Take the environment's whole conversation after the last reply, up to the next generation point.

        What follows our reply is bridged; where history was rewritten, the whole is rendered anew as a new segment.
        RendererError: the chat template rejects the conversation.
        """
        if self._phase not in ("told", "cut"):
            raise RuntimeError("observe: the policy has not replied since the last observation")
        conversation = tuple(conversation)
        before, new = conversation[: len(self._conversation)], conversation[len(self._conversation) :]
        if before == self._conversation and new and new[0]["role"] == "assistant":
            self._add_messages(new[1:])
        else:
            self._renderer.warn_once(
                "environment",
                "an environment changed earlier messages of its conversation: where one does, the conversation is "
                "rendered anew as a new segment of the trajectory",
            )
            self._history = conversation
            self._fork(self._renderer.render(conversation, self._tools))
        self._conversation = conversation

    def finish(
        self,
        *,
        terminated: bool,
        truncated: bool,
        status: Status,
        stop: str | None = None,
        error: str | None = None,
        metrics: Mapping[str, float] | None = None,
        messages: Sequence[Message] | None = None,
        **fields: Any,
    ) -> Trajectory:
        """Return the episode as a trajectory (see there for the arguments and ``fields``); possible at any moment.

        A terminated episode ends with its last sampled token. To keep the state that a truncated one was cut in,
        ``observe`` first. A last turn that was never rewarded gets 0 if the episode failed; else it is a
        ``ValueError``.
        """
        rewards, terms = list(self._rewards), list(self._terms)
        if len(rewards) < self.num_turns:
            if status.trainable:
                raise ValueError(f"finish: turn {len(rewards)} was never rewarded, but the status is {status}")
            rewards.append(0.0)
            terms.append({})
        if messages is None:
            messages = self._history if self._phase in ("ask", "over") else (*self._history, assistant(self._text))
        size = len(self._token_ids)
        if terminated:
            while size and self._turn_id[size - 1] < 0:
                size -= 1
        turn_id = np.array(self._turn_id[:size], np.int32)
        return Trajectory(
            token_ids=np.array(self._token_ids[:size], np.int32),
            action_mask=turn_id >= 0,
            logprobs=np.array(self._logprobs[:size], np.float32),
            weight_version=np.array(self._weight_version[:size], np.int32),
            turn_id=turn_id,
            turn_rewards=np.array(rewards, np.float64),
            turn_terms=tuple(terms),
            terminated=terminated,
            truncated=truncated,
            status=status,
            stop=stop,
            segment_starts=np.array([start for start in self._segment_starts if start < size], np.int32),
            kept_ids=np.concatenate([np.zeros(0, np.int32), *self._kept_ids]),
            kept_counts=np.array(self._kept_counts[:size] if self._kept_ids else (), np.int32),
            messages=tuple(messages),
            metrics={name: float(value) for name, value in (metrics or {}).items()},
            error=None if error is None else clean_text(error),
            **self._names,
            **fields,
        )

    def _kept(self, generation: Generation) -> tuple[list[float], list[int]]:
        """Return log-probabilities and counts of kept tokens: over the kept ones, where the engine reports these."""
        if generation.kept_counts is None:
            return generation.logprobs.tolist(), [0] * len(generation.token_ids)
        assert generation.kept_ids is not None
        self._kept_ids.append(generation.kept_ids)
        return generation.policy_logprobs.tolist(), generation.kept_counts.tolist()

    def _add_messages(self, new: Messages) -> None:
        # The history has the replies as they were sampled, not as the environment parsed them.
        self._history = (*self._history, self._message or assistant(self._text), *new)
        if not new:
            self._phase = "over"
            return
        if self._message is not None:
            following = self._renderer.following(self.context, self._history, self._tools)
            if following is None:
                self._fork(self._renderer.render(self._history, self._tools))
            else:
                self._show(following)
            return
        bridge = self._renderer.bridge(new, after=self._token_ids[-1], tools=self._tools)
        anew = None
        if self._renderer.rewrites_history:
            anew = self._renderer.rewritten([*self.context, *bridge], self._history, self._tools)
        if anew is None:
            self._show(bridge)
        else:
            self._renderer.warn_once(
                "template",
                "the chat template rewrites earlier turns (drops reasoning or trims replies, say): where it does, the "
                "conversation is rendered anew as a new segment of the trajectory",
            )
            self._fork(anew)

    def _fork(self, token_ids: list[int]) -> None:
        self._segment_starts.append(len(self._token_ids))
        self._show(token_ids)

    def _show(self, token_ids: list[int]) -> None:
        count = len(token_ids)
        self._append(token_ids, -1, [-1] * count, [0.0] * count, [0] * count)
        self._phase = "ask"

    def _append(
        self, ids: list[int], turn: int, versions: list[int], logprobs: list[float], kept_counts: list[int]
    ) -> None:
        self._token_ids += ids
        self._turn_id += [turn] * len(ids)
        self._weight_version += versions
        self._logprobs += logprobs
        self._kept_counts += kept_counts
