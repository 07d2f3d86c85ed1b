"""Rows of TRL, of an episode's contexts (:mod:`trainers.integrations.context_rows`), as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..context_rows import ContextRow, has_failed


def tokens_of(row: ContextRow, filler: int) -> dict[str, list[Any]]:
    """Return what TRL trains on; ``filler`` is the only token of a completion that is not to be trained on."""
    t, span = row.trajectory, row.completion
    prompt = t.token_ids[row.prompt].tolist() or [filler]
    if has_failed(t):
        return {**filler_row(filler), "prompt_ids": prompt}
    return {
        "prompt_ids": prompt,
        "completion_ids": t.token_ids[span].tolist(),
        "logprobs": t.logprobs[span].tolist(),
        "env_mask": t.action_mask[span].astype(int).tolist(),
    }


def outcome_of(row: ContextRow) -> dict[str, Any]:
    """Return what reward functions read: of the whole episode, but for ``turn_ids``."""
    t, failed = row.trajectory, has_failed(row.trajectory)
    return {
        "turn_ids": [-1] if failed else t.turn_id[row.completion].tolist(),
        "turn_rewards": t.turn_rewards.tolist(),
        "terms": [dict(terms) for terms in t.turn_terms],
        "stop": t.stop,
        "has_success": t.has_success,
        "status": str(t.status),
        "terminated": t.terminated,
        "truncated": t.truncated,
        "failed": failed,
        "messages": [dict(message) for message in t.messages],
        "episode_id": t.episode_id,
        "trajectory": t,
    }


def filler_row(filler: int) -> dict[str, list[Any]]:
    """Return the tokens of a row that nothing is trained on: one masked token."""
    return {"prompt_ids": [filler], "completion_ids": [filler], "logprobs": [0.0], "env_mask": [0]}


def columns_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: [row[name] for row in rows] for name in rows[0]}
