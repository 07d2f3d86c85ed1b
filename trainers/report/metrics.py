"""Metrics of an iteration: its episodes, and its time by phase.

Names are paths: ``train/reward``, ``val/solved``, ``time/rollout_s``. Averages are over episodes, each counting once,
and only over those that are trainable (``Status.trainable``). What is undefined (the mean of no episodes) is absent,
not 0.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from ..trajectory import Status, Trajectory, solved, tied


def first_reply_solved(trajectory: Trajectory) -> bool:
    """Return whether the first assistant turn was the last and solved the task; false if it began in the middle."""
    return solved(trajectory) and trajectory.num_turns == 1 and not trajectory.metrics.get("start_turn")


def episode_metrics(
    trajectories: Sequence[Trajectory], prefix: str, ended: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Average over episodes; ``ended`` says how many ended, by status, where failed ones are not among them.

    Returns:
        Under ``prefix/``: ``episodes`` (all of ``trajectories``), ``left_out`` (share of those that ended that is not
        trainable), ``status/<status>`` (shares of those that ended), and over the trainable ones: ``reward``
        (undiscounted sum over turns), ``solved`` and ``first_reply`` (shares of those that can be solved,
        :attr:`Trajectory.has_success`; absent without one), ``turns``, ``episode_tokens``,
        ``response_tokens`` (sampled, an episode), ``turn_tokens`` (sampled, a turn; each turn counts once),
        ``truncated`` (share), ``reward_std`` (between episodes), ``reward_se`` (standard error of the mean reward;
        episodes of a group count as one, they share the task), ``stop/<stop>`` (shares), ``terms/<name>`` (sum over an
        episode's turns; an episode without the term counts 0), ``metrics/<name>`` (over the episodes that have it),
        and, with several data sources, ``reward``, ``solved`` and ``first_reply`` of each as ``source/<source>/...``.
    """
    if not trajectories:
        return {f"{prefix}/episodes": 0.0}
    usable = [trajectory for trajectory in trajectories if trajectory.status.trainable]
    metrics = {"episodes": float(len(trajectories))}
    if ended is None:
        ended = Counter(trajectory.status.value for trajectory in trajectories)
    if total := sum(ended.values()):
        metrics["left_out"] = sum(n for status, n in ended.items() if not Status(status).trainable) / total
    for status, number in sorted(ended.items()):
        metrics[f"status/{status}"] = number / total
    if usable:
        metrics |= _outcome(usable) | _details(usable)
        by_source: defaultdict[str, list[Trajectory]] = defaultdict(list)
        for trajectory in usable:
            by_source[trajectory.data_source].append(trajectory)
        if len(by_source) > 1:
            for source, those in sorted(by_source.items()):
                metrics |= {f"source/{source}/{name}": value for name, value in _outcome(those).items()}
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def groups_tied(groups: Sequence[Sequence[Trajectory]], *, by_term: bool = False) -> float:
    """Return the share of groups without a signal: all episodes earned the same, in all (``by_term``: in every term).

    Groups of one are compared with each other, as one group.
    """
    if all(len(group) == 1 for group in groups):
        groups = [[episode for group in groups for episode in group]]
    return _mean([tied(group, by_term=by_term) for group in groups])


def mixture_metrics(
    parts: Mapping[str, Sequence[Sequence[Trajectory]]], prefix: str, *, by_term: bool = False
) -> dict[str, float]:
    """Average the groups of each part of a batch (a mixture's components, say), as ``<prefix>/<name>/...``.

    ``share`` (of all episodes); over its trainable ones ``reward``, ``solved`` and ``first_reply``; and ``signal``, the
    share of its groups whose episodes did not all earn the same.
    """
    total = sum(len(group) for groups in parts.values() for group in groups)
    metrics: dict[str, float] = {}
    for name, groups in parts.items():
        begin = f"{prefix}/{name}"
        episodes = [episode for group in groups for episode in group]
        metrics[f"{begin}/share"] = len(episodes) / max(total, 1)
        if usable := [episode for episode in episodes if episode.status.trainable]:
            metrics |= {f"{begin}/{key}": value for key, value in _outcome(usable).items()}
        if any(len(group) > 1 for group in groups):
            metrics[f"{begin}/signal"] = 1.0 - groups_tied(groups, by_term=by_term)
    return metrics


def _outcome(episodes: Sequence[Trajectory]) -> dict[str, float]:
    outcome = {"reward": _mean([episode.total_reward for episode in episodes])}
    if judged := [episode for episode in episodes if episode.has_success]:
        outcome["solved"] = _mean([solved(episode) for episode in judged])
        outcome["first_reply"] = _mean([first_reply_solved(episode) for episode in judged])
    return outcome


def _details(episodes: Sequence[Trajectory]) -> dict[str, float]:
    sampled = sum(int(episode.action_mask.sum()) for episode in episodes)
    turns, count = sum(episode.num_turns for episode in episodes), len(episodes)
    details = {
        "turns": turns / count,
        "episode_tokens": _mean([len(episode.token_ids) for episode in episodes]),
        "response_tokens": sampled / count,
        "truncated": _mean([episode.truncated for episode in episodes]),
        "reward_std": float(np.std([episode.total_reward for episode in episodes])),
    }
    by_group: defaultdict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        by_group[episode.group_id or episode.episode_id].append(episode.total_reward)
    if len(by_group) > 1:
        means = [_mean(rewards) for rewards in by_group.values()]
        details["reward_se"] = float(np.std(means, ddof=1) / np.sqrt(len(means)))
    if turns:
        details["turn_tokens"] = sampled / turns
    stops = Counter(episode.stop for episode in episodes if episode.stop)
    terms: defaultdict[str, float] = defaultdict(float)
    reported: defaultdict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        for turn in episode.turn_terms:
            for name, value in turn.items():
                terms[name] += value
        for name, value in episode.metrics.items():
            reported[name].append(value)
    details |= {f"stop/{stop}": number / count for stop, number in sorted(stops.items())}
    details |= {f"terms/{name}": total / count for name, total in sorted(terms.items())}
    return details | {f"metrics/{name}": _mean(values) for name, values in sorted(reported.items())}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(np.asarray(values, np.float64)))


class Phases:
    """Seconds spent in each phase of an iteration, and in none of them. Phases may repeat (they add up), not nest.

    ``on_enter`` gets a phase's name, ``on_exit`` also the seconds (of ``clock``) at which it began and ended.
    """

    def __init__(
        self,
        on_enter: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        on_exit: Callable[[str, float, float], None] | None = None,
    ) -> None:
        self._on_enter, self._on_exit, self._clock = on_enter, on_exit, clock
        self.seconds: dict[str, float] = {}  # by phase since the last finish()
        self._started = clock()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the time inside the ``with`` block for ``name``, also when it ends in an exception."""
        if self._on_enter is not None:
            self._on_enter(name)
        began = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            self.seconds[name] = self.seconds.get(name, 0.0) + ended - began
            if self._on_exit is not None:
                self._on_exit(name, began, ended)

    def finish(self) -> dict[str, float]:
        """End an iteration: ``time/<phase>_s``, ``time/other_s`` (in no phase) and ``time/iteration_s``, their sum."""
        now = self._clock()
        total = now - self._started
        other = max(0.0, total - sum(self.seconds.values()))
        metrics = {f"time/{name}_s": seconds for name, seconds in self.seconds.items()}
        self.seconds, self._started = {}, now
        return {**metrics, "time/other_s": other, "time/iteration_s": total}


_BUCKETS = 1024  # of hashed tokens and pairs of tokens
_PRIOR = 0.5  # pseudo-count of each bucket, shared out as the batch uses it
_MOST = 64  # groups that are compared
_SHOWN = 5


def health_metrics(
    groups: Sequence[Sequence[Trajectory]], longest: int, stop_token_ids: Collection[int] = ()
) -> dict[str, float]:
    """Measure a batch of groups of siblings, from the opening on; ``longest`` is ``rollout.max_response_length``.

    ``train/cut_paid`` (share of turns cut at a length limit and paid more than 0; one that ends with a stop token was
    not cut), and, where groups can be compared, ``train/task_found`` and ``train/task_chance`` (:func:`task_found`).
    """
    rewarded = turns = 0
    for episode in (episode for group in groups for episode in group):
        lengths = np.bincount(episode.turn_id[episode.action_mask], minlength=episode.num_turns)
        cut = lengths >= longest
        if episode.status is Status.TRUNCATED_CONTEXT:
            cut[-1:] = True
        cut &= ~np.isin(episode.token_ids[episode.turn_ends()], list(stop_token_ids))
        rewarded += int((cut & (episode.turn_rewards > 0)).sum())
        turns += episode.num_turns
    metrics = {"train/cut_paid": rewarded / turns} if turns else {}
    match = task_found(groups)
    return metrics | ({} if match is None else {"train/task_found": match[0], "train/task_chance": match[1]})


def task_found(groups: Sequence[Sequence[Trajectory]]) -> tuple[float, float] | None:
    """Measure how often an episode's replies show which task it is of, and how often chance would.

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
    tasks = [np.array(features) for features in by_task.values() if len(features) >= 2][:_MOST]
    if len(tasks) < 2:
        return None
    size = min(map(len, tasks))  # equal, so that no estimate is better than another
    counts = np.array([features[:size] for features in tasks])  # [N, size, buckets]
    totals = counts.sum(1, keepdims=True)
    prior = totals.sum((0, 1))
    prior = _PRIOR * len(prior) * (prior + 1e-3) / (prior + 1e-3).sum()
    hits = 0.0
    for left_out in range(size):
        frequencies = totals[:, 0] - counts[:, left_out] + prior
        scores = counts[:, left_out] @ np.log(frequencies / frequencies.sum(-1, keepdims=True)).T  # [episode, task]
        best = np.isclose(scores, scores.max(-1, keepdims=True), rtol=0, atol=1e-6)
        hits += float((best.diagonal() / best.sum(-1)).sum())
    return hits / (len(tasks) * size), 1 / len(tasks)


def _features(episode: Trajectory) -> NDArray[np.float64]:
    tokens = episode.token_ids[episode.actions].astype(np.int64)
    pairs = tokens[:-1] * 1_000_003 + tokens[1:] + 1
    hashed = np.concatenate([tokens, pairs]) * 2_654_435_761 % 4_294_967_291 % _BUCKETS
    return np.bincount(hashed, minlength=_BUCKETS).astype(np.float64)


def tied_tasks(groups: Sequence[Sequence[Trajectory]]) -> list[str]:
    """Name some tasks whose episodes all earned the same, with that reward."""
    tied_groups = [group for group in groups if len(group) > 1 and tied(group)]
    return [f"{group[0].task_key or group[0].group_id} ({group[0].total_reward:+g})" for group in tied_groups[:_SHOWN]]
