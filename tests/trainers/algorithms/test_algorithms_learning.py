"""Every new estimator and loss learns the task of which only the first of three turns is rewarded; a table as policy.

A sign, one of two, says which word the first reply must be; what is said in the two turns after that does not matter. A
reply is a word and a token that never matters. The whole trainer is tried on the same task in test_turn_credit.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from estimating import estimate, token_loss
from trajectories import action_batch

from trainers.algorithms.losses import token_weights

GROUPS, SIZE, TURNS, REPLY = 6, 4, 3, 2
EPISODES, TOKENS = GROUPS * SIZE, TURNS * REPLY


def learned(
    estimator: str, options: dict[str, Any], loss: Any, clip: tuple[float, float], paid_at: int = 0, steps: int = 50
) -> float:
    """The probability of the right word at the end; it begins at 1/2."""
    rng = np.random.default_rng(0)
    logits = torch.zeros(2, TURNS, REPLY, 2, dtype=torch.float64, requires_grad=True)  # by sign, turn, place, choice
    optimizer = torch.optim.Adam([logits], lr=0.1)
    episode = np.repeat(np.arange(EPISODES), TOKENS)
    turn = np.tile(np.repeat(np.arange(TURNS), REPLY), EPISODES)
    place = np.tile(np.arange(REPLY), EPISODES * TURNS)

    for _ in range(steps):
        sign = np.repeat(rng.integers(0, 2, GROUPS), SIZE)
        where = (sign[episode], turn, place)
        with torch.no_grad():
            table = logits.log_softmax(-1).numpy()[where]
        drawn = (rng.random(len(table)) < np.exp(table[:, 1])).astype(np.int64)
        rewards = np.zeros((EPISODES, TURNS))
        rewards[:, paid_at] = drawn.reshape(EPISODES, TOKENS)[:, 0] == sign
        batch = action_batch(
            [[REPLY] * TURNS] * EPISODES,
            rewards.ravel(),
            np.repeat(np.arange(GROUPS), SIZE),
            values=np.full(EPISODES * TOKENS, 0.5),
            anchor=np.tile(np.arange(TURNS), EPISODES),
            greedy=np.full(EPISODES, 0.5),
        )
        result = estimate(estimator, batch, **options)
        weights = torch.from_numpy(token_weights("seq-mean-token-sum", batch.token_offsets, result.policy_mask))
        old = torch.from_numpy(table[np.arange(len(drawn)), drawn])
        arrays = old, torch.from_numpy(result.advantages), torch.from_numpy(episode)
        for _ in range(2):  # the second update is with ratios other than 1
            logprobs = logits.log_softmax(-1)[where][torch.arange(len(drawn)), torch.from_numpy(drawn)]
            optimizer.zero_grad()
            bounds = {"clip_ratio_low": clip[0], "clip_ratio_high": clip[1]}
            (weights * token_loss(loss, logprobs, *arrays, **bounds).loss).sum().backward()
            optimizer.step()
    with torch.no_grad():
        first = logits.softmax(-1)[:, 0, 0]
    return float(min(first[0, 0], first[1, 1]))


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        ("bilevel_gae", {"lam": 0.9, "turn_gamma": 0.99, "turn_lam": 0.9}),
        ("dr_grpo", {}),
        ("reinforce_pp", {}),
        ("reinforce_pp_baseline", {}),
        ("remax", {}),
        ("gigpo", {"gamma": 0.95}),
        ("turn_grpo", {}),
    ],
)
def test_estimators(estimator: str, options: dict[str, Any]) -> None:
    assert learned(estimator, options, "ppo", (0.2, 0.28)) > 0.9


@pytest.mark.parametrize(
    ("estimator", "loss", "clip"),
    [
        ("rloo", "gspo", (0.05, 0.05)),
        ("turn_grpo", "gspo_token", (0.05, 0.05)),
        ("turn_grpo", "cispo", (1.0, 0.28)),
        ("rloo", "geo_mean", (0.4, 0.4)),
        ("turn_grpo", "dppo_tv", (0.1, 0.1)),
    ],
)
def test_losses(estimator: str, loss: str, clip: tuple[float, float]) -> None:
    assert learned(estimator, {}, loss, clip) > 0.9


def test_reward_on_last_turn_is_not_learned() -> None:
    """The control: it is paid at the last turn, and ``gamma=0`` keeps it there, with words that did not earn it."""
    assert learned("turn_grpo", {"gamma": 0.0}, "ppo", (0.2, 0.28), paid_at=2) < 0.7
