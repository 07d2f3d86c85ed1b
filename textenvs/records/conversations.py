"""Conversations to imitate, from the episodes of a run or of an evaluation: which episodes, and which replies of each.

A row is a conversation that ends with a reply of the policy, and the weight of each of its assistant messages: 1 for a
reply of the policy, 0 for one that the conversation began with (an example in the opening, the turns before a fork).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..evaluate.runner import MAX_CONTEXT
from ..messages import Messages
from .reader import Episode, Iteration, RecordedRun

#: Why an episode or a row is left out: the key, and what it says after a number of them.
REASONS = {
    "failed": "episodes that failed",
    "low": "episodes with a lower return than asked for",
    "task": "episodes that are not among the best of their task",
    "share": "episodes that are not among the share with the highest return",
    "cut": "episodes with a reply that was cut off at its limit",
    "contexts": "episodes of several contexts whose messages were not recorded (an evaluation records them)",
    "form": "conversations that cannot be imitated: no reply, or two assistant messages in a row",
    "repeated": "rows that are there already",
}
_GOOD = frozenset({"completed", "truncated_turns", "truncated_context"})


@dataclass(frozen=True)
class Selection:
    """Choice of episodes: those of ``min_return``, then the ``best`` of each task, then the ``share`` of these.

    Args:
        min_return: The lowest return.
        best: How many of each task, those with the highest return; of equal ones the earlier; ``None`` for all.
        share: The share of what is left with the highest return, in (0, 1], rounded up.
    """

    min_return: float = -math.inf
    best: int | None = None
    share: float = 1.0


@dataclass(frozen=True)
class Candidate:
    """An episode, or one role's part of it, with its return. Roles of one episode may have opposed returns."""

    iteration: Iteration
    index: int
    task: tuple[str, str]  #: the data source, and the task's name there
    total: float
    role: str = ""


@dataclass(frozen=True)
class Row:
    """A conversation to imitate: ``weights`` has one entry for each assistant message of ``messages``."""

    candidate: Candidate
    episode: Episode
    messages: Messages
    weights: tuple[float, ...]


def candidates(iterations: Iterable[Iteration], left_out: Counter[str]) -> list[Candidate]:
    """Return the episodes that did not fail, in order; failed ones are counted. Of a run's files few columns are read.

    Raises:
        RecordsError: A file cannot be read.
    """
    usable: list[Candidate] = []
    for iteration in iterations:
        if iteration.kind == "evaluation":
            for episode in iteration.episodes():
                record = episode.record
                assert record is not None  # an evaluation has them
                left_out["failed"] += record.failed
                roles = record.role_returns if record.context_roles else {"": record.total}
                task = (record.data_source, record.task_key)
                if not record.failed:
                    usable += [Candidate(iteration, episode.index, task, roles[role], role) for role in roles]
            continue
        for line in iteration.summaries():
            left_out["failed"] += (failed := line.status not in _GOOD)
            if not failed:
                task = (line.data_source, line.task_key)
                usable.append(Candidate(iteration, line.index, task, line.total_reward))
    return usable


def select(usable: Sequence[Candidate], selection: Selection, left_out: Counter[str]) -> list[Candidate]:
    """Return the candidates that a selection takes, in their order; the others are counted."""
    places = [place for place, candidate in enumerate(usable) if candidate.total >= selection.min_return]
    left_out["low"] += len(usable) - len(places)
    ranked = sorted(places, key=lambda place: -usable[place].total)
    if selection.best is not None:
        taken: list[int] = []
        of_task = Counter[tuple[str, str, str]]()
        for place in ranked:
            task = (*usable[place].task, usable[place].role)
            of_task[task] += 1
            if of_task[task] <= selection.best:
                taken.append(place)
        left_out["task"] += len(ranked) - len(taken)
        ranked = taken
    count = math.ceil(selection.share * len(ranked) - 1e-9)
    left_out["share"] += len(ranked) - count
    return [usable[place] for place in sorted(ranked[:count])]


def rows(run: RecordedRun, taken: Sequence[Candidate], left_out: Counter[str], *, per_turn: bool) -> Iterator[Row]:
    """Yield the rows of the candidates taken, each once; what cannot be imitated is counted.

    Whole episodes: a row for each of their conversations with replies of the policy, up to the last of these.
    ``per_turn``: a row for each reply, which alone has a weight, after the context that it was sampled in.

    Raises:
        RecordsError: A file cannot be read.
    """
    longest, seen = _longest_reply(run), set[bytes]()
    by_iteration: defaultdict[int, defaultdict[int, list[Candidate]]] = defaultdict(lambda: defaultdict(list))
    iterations = {id(candidate.iteration): candidate.iteration for candidate in taken}
    for candidate in taken:
        by_iteration[id(candidate.iteration)][candidate.index].append(candidate)
    for key, chosen in by_iteration.items():
        for episode in iterations[key].episodes(list(chosen)):
            if _is_cut(episode, longest):
                left_out["cut"] += 1
                continue
            for candidate in chosen[episode.index]:
                for row in _rows_of(candidate, episode, left_out, per_turn):
                    digest = hashlib.sha256(json.dumps([row.messages, row.weights], sort_keys=True).encode()).digest()
                    left_out["repeated"] += digest in seen
                    if digest not in seen:
                        seen.add(digest)
                        yield row


def _longest_reply(run: RecordedRun) -> float:
    """Return the tokens at which a run cuts its replies; infinity where the record does not say."""
    rollout: Any = run.config.get("rollout")
    longest = rollout.get("max_response_length") if isinstance(rollout, dict) else None
    return longest if isinstance(longest, int) else math.inf


def _is_cut(episode: Episode, longest: float) -> bool:
    """Return whether a reply ended at a limit, by its length: it may have ended there by itself, too."""
    if episode.record is not None:
        return episode.record.cut_replies > 0 or episode.record.stop == MAX_CONTEXT
    assert episode.tokens is not None  # a run's episodes have them
    lengths = np.bincount(episode.tokens.turn_id[episode.tokens.action_mask])
    return episode.status == "truncated_context" or bool((lengths >= longest).any())


def _rows_of(candidate: Candidate, episode: Episode, left_out: Counter[str], per_turn: bool) -> Iterator[Row]:
    conversations = _conversations(episode, candidate.role)
    if conversations is None:
        left_out["contexts"] += 1
        return
    for messages, places in conversations:
        if not _can_be_imitated(messages, places):
            left_out["form"] += 1
            continue
        for last in places if per_turn else places[-1:]:
            own = {last} if per_turn else set(places)
            shown = messages[: last + 1]
            weights = (float(place in own) for place, message in enumerate(shown) if message["role"] == "assistant")
            yield Row(candidate, episode, shown, tuple(weights))


def _conversations(episode: Episode, role: str) -> list[tuple[Messages, list[int]]] | None:
    """Return an episode's conversations, with the places of the policy's replies; ``None`` if they are not recorded."""
    record, turns = episode.record, len(episode.turn_rewards)
    if record is not None and record.contexts:
        places: defaultdict[int, list[int]] = defaultdict(list)
        for number, place in record.reply_places:
            if not role or record.context_roles[number] == role:
                places[number].append(place)
        talks = (*record.contexts, record.messages)
        return [(talks[number], sorted(places[number])) for number in sorted(places)] or None
    if episode.tokens is not None and len(episode.tokens.segment_starts) > 1:
        return None
    replies = [place for place, message in enumerate(episode.messages) if message["role"] == "assistant"]
    return [(episode.messages, replies[len(replies) - turns :] if len(replies) >= turns else [])]


def _can_be_imitated(messages: Messages, places: Sequence[int]) -> bool:
    if not places or not all(0 < place < len(messages) for place in places):
        return False
    roles = [message["role"] for message in messages[: places[-1] + 1]]
    return (
        roles[0] != "assistant"
        and all(roles[place] == "assistant" for place in places)
        and not any(one == other == "assistant" for one, other in pairwise(roles))
    )
