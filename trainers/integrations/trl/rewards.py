"""Reward functions for TRL that read what :class:`.TextEnvRollout` brings along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from textenvs.integrations.trl import log_terms

LogMetric = Callable[[str, float], None]


def textenv_reward(
    turn_rewards: Sequence[Sequence[float]],
    failed: Sequence[bool],
    episode_id: Sequence[str],
    terms: Sequence[Sequence[Mapping[str, float]]] = (),
    stop: Sequence[str | None] = (),
    log_metric: LogMetric | None = None,
    **_: Any,
) -> list[float | None]:
    """What each episode earned: the sum of its turn rewards, and ``None`` for one that failed.

    TRL leaves a ``None`` out of the group's mean and gives it no advantage. Where TRL offers ``log_metric``, the means
    of the reward's terms, the turns, and the shares of failed and of solved episodes are logged.

    Raises:
        RuntimeError: TRL gave several rows of a batch the same episode's outcome.
    """
    check_rows(episode_id)
    if log_metric is not None:
        fine = [not each for each in failed]
        log_metric("episodes/failed", fine.count(False) / len(fine))
        log_metric("episodes/turns", sum(map(len, turn_rewards)) / len(fine))
        if any(fine):
            log_terms(log_metric, [row for row, good in zip(terms, fine, strict=False) if good])
            why = Counter(each for each, good in zip(stop, fine, strict=False) if good)
            log_metric("episodes/solved", why["solved"] / sum(fine))
    return [None if bad else float(sum(rewards)) for rewards, bad in zip(turn_rewards, failed, strict=True)]


def term_rewards(*names: str) -> list[Callable[..., list[float | None]]]:
    """One reward function for each term, in place of :func:`textenv_reward`: TRL then logs and weighs each by itself.

    ``names`` are as in ``info["terms"]``. The terms of a turn add up to its reward, so all of an environment's terms
    add up to :func:`textenv_reward`. An episode that does not have a term has no reward from it.

    Raises:
        ValueError: No name, or one twice.
    """
    if not names or len(set(names)) < len(names):
        raise ValueError(f"term_rewards needs names of terms that differ, not {names}")
    return [_term_reward(name) for name in names]


def _term_reward(name: str) -> Callable[..., list[float | None]]:
    def reward(
        terms: Sequence[Sequence[Mapping[str, float]]], failed: Sequence[bool], episode_id: Sequence[str], **_: Any
    ) -> list[float | None]:
        check_rows(episode_id)
        found = [[turn[name] for turn in turns if name in turn] for turns in terms]
        return [float(sum(each)) if each and not bad else None for each, bad in zip(found, failed, strict=True)]

    reward.__name__ = name  # what TRL logs it as
    return reward


def check_rows(episode_id: Sequence[str]) -> None:
    """Raise where rows share an outcome: some data loaders repeat one row object, which holds but the last outcome."""
    if len(set(episode_id)) < len(episode_id):
        raise RuntimeError(
            f"{len(episode_id)} rows of the batch have the outcomes of {len(set(episode_id))} episodes: the dataset "
            "repeats the same row object, and TRL writes outcomes into rows; use the map-style dataset of "
            "textenv_dataset"
        )
