"""Best of N by looking ahead: a policy that proposes several replies and says the one with the best future.

Each turn, ``candidates`` replies are proposed; each is played in a fork of the episode and scored by its
multiturn-aware reward (`textenvs.lookahead`); the best is said. What was proposed, and what it was worth, stands
in the turn's notes, from which :func:`sft_row` and :func:`preference_pairs` make training data: CollabLLM's way from
single-turn tasks to conversations (arXiv 2502.00640).

The futures of a turn's candidates share their random numbers, so that what differs between them is the reply. The user
answers a candidate in its fork as it will in the episode, as far as it is a function of the environment's randomness.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from textenvs.chat.errors import BudgetExceeded, CacheError
from textenvs.env import EnvironmentFailure, TextEnv
from textenvs.evaluate.policies import OutOfContext, Player, Policy, PolicyFailure, Reply, Stopped, ToolSchemas
from textenvs.evaluate.records import Record
from textenvs.evaluate.runner import tools_of
from textenvs.lookahead import FAILURES, Lookahead, MultiturnReward
from textenvs.lookahead import Player as FuturePlayer
from textenvs.messages import Message, Messages, assistant, clean_messages, clean_text, copy_messages
from textenvs.options import PositiveInt, checked
from textenvs.play import play
from textenvs.text import quoted


class BestOfN:
    """A policy that looks ahead before it speaks.

    A reply's token counts are those of what was said; its ``cost`` is that of all candidates and futures.

    Args:
        policy: Proposes; this object closes it.
        candidates: Replies proposed a turn. Equal ones are scored once.
        futures: Plays the futures, if not ``policy`` itself; it is closed, too.
        **options: ``samples``, ``window``, ``formula`` and whatever else :class:`~textenvs.lookahead.Lookahead` takes.

    Raises:
        ValueError: ``candidates`` is below 1, or an option that looking ahead refuses.
    """

    @checked
    def __init__(
        self, policy: Policy, *, candidates: PositiveInt = 2, futures: Policy | None = None, **options: Any
    ) -> None:
        self.policy = policy
        self.candidates = candidates
        self.futures = policy if futures is None else futures
        self.options = {"failures": (*FAILURES, PolicyFailure), **options}
        self._failures = self._lookahead([]).failures

    def start(self, env: TextEnv[Any], seed: int) -> Player:
        """Return a player that forks ``env``, whose episode it must be."""
        turns = 0

        async def reply(conversation: Messages, tools: ToolSchemas) -> Reply:
            nonlocal turns
            turns += 1
            drawn = np.random.SeedSequence([seed, 3, turns]).generate_state(self.candidates)
            try:
                return await self._best(env, conversation, tools, [int(number) >> 1 for number in drawn])
            except (BudgetExceeded, CacheError) as error:
                raise Stopped(f"looking ahead cannot continue: {error}") from error

        return reply

    async def aclose(self) -> None:
        await self.policy.aclose()
        if self.futures is not self.policy:
            await self.futures.aclose()

    # ------------------------------------------------------------------ inside

    async def _best(self, env: TextEnv[Any], conversation: Messages, tools: ToolSchemas, seeds: list[int]) -> Reply:
        spent: list[Reply] = []
        failures: list[str] = []
        proposals: dict[str, _Proposal] = {}
        proposed = await asyncio.gather(
            *(self.policy.start(env, seed)(conversation, tools) for seed in seeds), return_exceptions=True
        )
        for reply in proposed:
            if isinstance(reply, PolicyFailure) and not isinstance(reply, OutOfContext):
                failures.append(clean_text(f"{type(reply).__name__}: {reply}"))
            elif isinstance(reply, BaseException):
                raise reply
            elif not env.action_space.contains(reply.action):
                raise PolicyFailure(f"{quoted(reply.action)} is neither text nor an assistant message")
            else:
                spent.append(reply)
                proposed_message = assistant(reply.action) if isinstance(reply.action, str) else reply.action
                (message,) = clean_messages([proposed_message])  # as the environment keeps it
                key = json.dumps(message, sort_keys=True)
                proposals[key] = _Proposal(reply, message, proposals[key].drawn + 1 if key in proposals else 1)
        lookahead = self._lookahead(spent)
        scored = await _together([self._score(env, lookahead, proposal) for proposal in proposals.values()])
        failures += [proposal.failure for proposal in scored if proposal.failure is not None]
        good = [number for number, proposal in enumerate(scored) if proposal.result is not None]
        if not good:
            raise PolicyFailure(f"none of {len(seeds)} candidates could be scored; the first: {failures[0]}")
        chosen = max(good, key=lambda number: scored[number].reward)  # the first of equal ones
        costs = [reply.cost for reply in spent if reply.cost is not None]
        notes = {"chosen": chosen, "candidates": [proposal.to_json() for proposal in scored], "failures": failures}
        return replace(scored[chosen].reply, cost=sum(costs) if costs else None, notes=notes)

    async def _score(self, env: TextEnv[Any], lookahead: Lookahead, proposal: _Proposal) -> _Proposal:
        fork = env.fork()
        fork.render_mode = None
        try:
            episode = await play(fork, lambda conversation: proposal.reply.action, resume=True, turns=1)
            if episode.failed:
                raise EnvironmentFailure(episode.info["stop"], episode.info["failure"])
            return replace(proposal, result=await lookahead(fork))
        except self._failures as error:
            return replace(proposal, failure=clean_text(f"{type(error).__name__}: {error}"))

    def _lookahead(self, spent: list[Reply]) -> Lookahead:
        return Lookahead(_Futures(self.futures, spent), **self.options)


@dataclass(frozen=True)
class _Proposal:
    """A reply that was proposed ``drawn`` times, and what it is worth once that is known."""

    reply: Reply
    message: Message
    drawn: int
    result: MultiturnReward | None = None
    failure: str | None = None

    @property
    def reward(self) -> float:
        assert self.result is not None
        return self.result.reward

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"message": dict(self.message), "drawn": self.drawn}
        if self.result is None:
            return fields | {"failure": self.failure}
        return fields | {
            "reward": self.result.reward,
            "terms": dict(self.result.terms),
            "futures": len(self.result.futures),
            "failed_futures": len(self.result.failures),
        }


class _Futures:
    """A policy of evaluations as one that plays futures; what it says is added to ``spent``."""

    def __init__(self, policy: Policy, spent: list[Reply]) -> None:
        self._policy = policy
        self._spent = spent

    def start(self, env: TextEnv[Any], seed: int) -> FuturePlayer:
        player, tools = self._policy.start(env, seed >> 1), tools_of(env)

        async def play(conversation: Messages) -> str | Message | None:
            try:
                reply = await player(conversation, tools)
            except OutOfContext:
                return None  # scored as it stands
            self._spent.append(reply)
            return reply.action

        return play


async def _together(work: list[Any]) -> list[_Proposal]:
    """Gather all results; if one raises, the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---------------------------------------------------------------------- from records to training data


def sft_row(record: Record) -> dict[str, Any] | None:
    """Return a conversation to imitate, as ``python -m trainers.sft`` reads it.

    Args:
        record: Of an episode that :class:`BestOfN` played.

    Returns:
        ``messages`` up to the last reply; ``reward``, the multiturn-aware reward of the last
        reply (what the conversation was worth, if it ended the episode); ``score/NAME``, the terms of that;
        ``turn_rewards``, those of all replies said; ``success``, ``stop`` and where the episode comes from. ``None``
        where there is nothing to imitate: the episode failed, has no reply, or one with tool calls beside its text.
    """
    turns = _turns(record)
    if record.failed or not turns:
        return None
    end = turns[-1][0] + 1
    messages = [_shown(message) for message in record.messages[:end]]
    if any("tool_calls" in message for message in messages):
        return None
    chosen_candidates = [note["candidates"][note["chosen"]] for _, note in turns]
    return {
        "messages": messages,
        "reward": chosen_candidates[-1]["reward"],
        **{f"score/{name}": value for name, value in chosen_candidates[-1]["terms"].items()},
        "turn_rewards": [candidate["reward"] for candidate in chosen_candidates],
        "success": record.success,
        "stop": record.stop,
        "data_source": record.data_source,
        "task_key": record.task_key,
        "sample": record.sample,
    }


def preference_pairs(record: Record, *, min_margin: float = 0.0) -> Iterator[dict[str, Any]]:
    """Yield the best and the worst candidate of each turn, for preference learning (DPO).

    Args:
        record: Of an episode that :class:`BestOfN` played; a failed one has its pairs, too.
        min_margin: The least difference of their rewards; equal ones are never a pair.

    Yields:
        ``prompt`` (the messages before the turn), ``chosen`` and ``rejected`` (one assistant message each),
        ``chosen_reward``, ``rejected_reward``, ``turn`` (from 0) and where the episode comes from.
    """
    for turn, (index, note) in enumerate(_turns(record)):
        scored = [candidate for candidate in note["candidates"] if "reward" in candidate]
        best, worst = note["candidates"][note["chosen"]], min(scored, key=lambda candidate: candidate["reward"])
        margin = best["reward"] - worst["reward"]
        pair = [_shown(best["message"]), _shown(worst["message"])]
        if not margin > 0 or margin < min_margin or any("tool_calls" in message for message in pair):
            continue
        yield {
            "prompt": [_shown(message) for message in record.messages[:index]],
            "chosen": pair[:1],
            "rejected": pair[1:],
            "chosen_reward": best["reward"],
            "rejected_reward": worst["reward"],
            "turn": turn,
            "data_source": record.data_source,
            "task_key": record.task_key,
            "sample": record.sample,
        }


def _turns(record: Record) -> list[tuple[int, Any]]:
    """Return, for each turn with notes, where its reply stands in the conversation, and the notes."""
    replies = [i for i, message in enumerate(record.messages) if message["role"] == "assistant"]
    played = replies[len(replies) - len(record.turn_rewards) :]
    return [(index, note) for index, note in zip(played, record.notes, strict=False) if note is not None]


def _shown(message: Message) -> Message:
    """Return the message as a learner is shown it: without reasoning that a service keeps apart from it."""
    (copied,) = copy_messages([message])
    copied.pop("reasoning_content", None)
    return copied


if __name__ == "__main__":
    sys.exit("a module, not a program: python examples/collabllm/build_data.py plays with it and writes the data")
