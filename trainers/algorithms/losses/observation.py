"""The weights of observation tokens in the loss: ECHO, an environment cross-entropy beside the policy's loss."""

from __future__ import annotations

import numpy as np

from trainers.algorithms.batch import Floats, Ints


def observation_weights(coefficient: float, offsets: Ints, tree: Ints) -> Floats:
    """Return the weight of every observation token's cross-entropy, ``lambda / (S m_e)``, float ``[M]``.

    ECHO (arXiv 2605.24517, section 3.1; OpenEnv RFC 010) adds to the policy's loss of each rollout ``lambda`` times the
    mean cross-entropy of its ``m_e`` observation tokens, and takes the mean over the ``S`` rollouts, whatever their
    reward; one without such tokens counts as 0. It does not depend on ``actor.loss_agg_mode``, which the policy's loss
    follows: the two are normalised apart.

    ``coefficient`` is ``lambda``; ``offsets`` (int ``[E + 1]``) are where the episodes of the global mini-batch start
    among its ``M`` observation tokens (:func:`~trainers.trajectory.observation_offsets`), and ``tree`` (int ``[E]``,
    :func:`~trainers.algorithms.batch.tree_of`) says which of them are one rollout: an episode with its forks.
    """
    numbers, rollout = np.unique(tree, return_inverse=True)
    of_token = np.repeat(rollout, np.diff(offsets))
    sizes = np.bincount(of_token, minlength=len(numbers))
    return coefficient / (len(numbers) * sizes[of_token].astype(np.float64))
