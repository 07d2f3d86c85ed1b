"""What the checks of a run need of its episodes, as numbers of an iteration; see :mod:`.checks`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..trajectory import Status, Trajectory, tied

_BUCKETS = 1024  # of hashed tokens and pairs of tokens
_PRIOR = 0.5  # pseudo-count of each bucket, shared out as the batch uses it
_MOST = 64  # groups that are compared
_SHOWN = 5


def health_metrics(groups: Sequence[Sequence[Trajectory]], longest: int) -> dict[str, float]:
    """Numbers of a batch of groups of siblings, from the opening on; ``longest`` is ``rollout.max_response_length``.

    ``train/cut_paid`` (share of turns cut at a length limit and paid more than 0), and, where groups can be compared,
    ``train/task_found`` and ``train/task_chance`` (:func:`task_found`).
    """
    paid = turns = 0
    for episode in (episode for group in groups for episode in group):
        lengths = np.bincount(episode.turn_id[episode.action_mask], minlength=episode.num_turns)
        cut = lengths >= longest
        if episode.status is Status.TRUNCATED_CONTEXT:
            cut[-1:] = True
        paid += int((cut & (episode.turn_rewards > 0)).sum())
        turns += episode.num_turns
    metrics = {"train/cut_paid": paid / turns} if turns else {}
    found = task_found(groups)
    return metrics | ({} if found is None else {"train/task_found": found[0], "train/task_chance": found[1]})


def task_found(groups: Sequence[Sequence[Trajectory]]) -> tuple[float, float] | None:
    """How often an episode's replies show which task it is of, and how often chance would.

    Each episode is matched with the task whose other episodes make its sampled tokens likeliest: a multinomial of
    hashed tokens and pairs of tokens, with one episode left out of every group. By Fano's inequality, replies about
    ``N`` tasks of which a share ``a`` is found have at least ``log N - h(a) - (1 - a) log(N - 1)`` nats of information
    about the task: a lower bound of the mutual information, whose fall to nothing is template collapse (arXiv
    2604.06268). Returns the share found (ties count in parts), and ``1 / N``; ``None`` without two tasks of two
    episodes.
    """
    by_task: defaultdict[str, list[NDArray[np.float64]]] = defaultdict(list)
    for group in groups:
        for episode in group:
            by_task[episode.task_key or episode.group_id].append(_features(episode))
    tasks = [np.array(each) for each in by_task.values() if len(each) >= 2][:_MOST]
    if len(tasks) < 2:
        return None
    size = min(map(len, tasks))  # equal, so that none is better known than another
    counts = np.array([each[:size] for each in tasks])  # [N, size, buckets]
    totals = counts.sum(1, keepdims=True)
    prior = totals.sum((0, 1))
    prior = _PRIOR * len(prior) * (prior + 1e-3) / (prior + 1e-3).sum()
    hits = 0.0
    for left_out in range(size):
        known = totals[:, 0] - counts[:, left_out] + prior
        scores = counts[:, left_out] @ np.log(known / known.sum(-1, keepdims=True)).T  # [episode, task]
        best = np.isclose(scores, scores.max(-1, keepdims=True), rtol=0, atol=1e-6)
        hits += float((best.diagonal() / best.sum(-1)).sum())
    return hits / (len(tasks) * size), 1 / len(tasks)


def _features(episode: Trajectory) -> NDArray[np.float64]:
    tokens = episode.token_ids[episode.action_mask].astype(np.int64)
    pairs = tokens[:-1] * 1_000_003 + tokens[1:] + 1
    hashed = np.concatenate([tokens, pairs]) * 2_654_435_761 % 4_294_967_291 % _BUCKETS
    return np.bincount(hashed, minlength=_BUCKETS).astype(np.float64)


def tied_tasks(groups: Sequence[Sequence[Trajectory]]) -> list[str]:
    """Some tasks whose episodes all earned the same, with what that was."""
    found = [group for group in groups if len(group) > 1 and tied(group)]
    return [f"{group[0].task_key or group[0].group_id} ({group[0].total_reward:+g})" for group in found[:_SHOWN]]
