"""Metrics of reaction credit: the moves of a batch's users, and whether returns agree with their values."""

from __future__ import annotations

import numpy as np

from textenvs.evaluate.statistics import rate_interval
from textenvs.users.moves import MOVES

from ..algorithms.batch import ActionBatch, Advantages, Floats, Ints, discounted_sums
from ..algorithms.reaction import ReactionCreditSection, mean_of_others, named_turns, rms


def reaction_metrics(
    section: ReactionCreditSection, batch: ActionBatch, moves: Ints, result: Advantages, credit: Floats
) -> dict[str, float]:
    """Return metrics of ``K`` turns; averages are over those with a move and a trained token.

    Returns:
        ``reaction_named`` (share of all turns with a move), ``reaction_size`` (root mean square of the credit over
        that of the estimator's advantages, over the trained tokens; absent where these are 0), for each move
        ``reaction_share/<move>`` and ``reaction_advantage/<move>`` (mean of the estimator's own advantage, without the
        credit), and :func:`agreement`.

    Args:
        section: The settings.
        batch: The episodes.
        moves: Int ``[K]``; see :func:`~trainers.algorithms.reaction.moves_of`.
        result: The estimator's advantages.
        credit: Float ``[K]``; what was added to them.
    """
    metrics = {"reaction_named": float(np.mean(moves >= 0)) if len(moves) else 0.0}
    mask = result.policy_mask
    if (size := rms(result.advantages, result)) > 0:
        metrics["reaction_size"] = rms(credit[batch.turn_of_token], result) / size
    counted = named_turns(batch, moves, result)
    sums = np.bincount(batch.turn_of_token, np.where(mask, result.advantages, 0.0), minlength=len(moves))
    means = sums / np.maximum(np.bincount(batch.turn_of_token, mask, minlength=len(moves)), 1)
    for number, move in enumerate(MOVES):
        if (those := counted & (moves == number)).any():
            metrics[f"reaction_share/{move}"] = float(those.sum() / counted.sum())
            metrics[f"reaction_advantage/{move}"] = float(means[those].mean())
    return metrics | agreement(section, batch, moves, result)


def agreement(section: ReactionCreditSection, batch: ActionBatch, moves: Ints, result: Advantages) -> dict[str, float]:
    """Return the sign test: how often a move's value has the sign of what its episode earned from that turn on.

    What it earned (undiscounted) is compared with the mean of the group's other episodes from the same turn on, where
    none has that turn with the batch's. A difference or a value of 0 does not count. The table is as configured,
    whatever ``control`` makes of it: a control that learns as well as the table is what to compare with.

    Returns:
        ``reaction_agreement``, its 95 % interval ``reaction_agreement_low`` and ``_high``, in which a group's turns are
        not independent, and ``reaction_agreement_turns``, their number; only the last, which is 0, where none count.
    """
    turns = np.flatnonzero(named_turns(batch, moves, result))
    episode = batch.episode_of_turn
    to_go = discounted_sums(batch.net_turn_rewards, batch.turn_offsets, 1.0)
    number = np.arange(len(moves)) - batch.turn_offsets[episode] + batch.first_turn[episode]
    trained = np.bincount(batch.turn_of_token, result.policy_mask, minlength=len(moves)) > 0
    places = np.flatnonzero(trained)
    expected = np.zeros(len(moves))
    for of in (batch.sides, batch.group):  # the group's where there is one
        _, key = np.unique(np.stack([of[episode[places]], number[places]]), axis=1, return_inverse=True)
        means, there = mean_of_others(to_go[places], key.reshape(-1), batch.tree[episode[places]])
        expected[places] = np.where(there, means, expected[places])
    values, gain = section.values(moves)[turns], (to_go - expected)[turns]
    tells = (values != 0) & (np.abs(gain) > 1e-9 * (1.0 + np.abs(to_go[turns])))
    if not tells.any():
        return {"reaction_agreement_turns": 0.0}
    agrees, group = (np.sign(values) == np.sign(gain))[tells], batch.group[episode[turns[tells]]]
    low, high = rate_interval([agrees[group == one].astype(float).tolist() for one in np.unique(group)])
    return {
        "reaction_agreement": float(agrees.mean()),
        "reaction_agreement_low": low,
        "reaction_agreement_high": high,
        "reaction_agreement_turns": float(tells.sum()),
    }
