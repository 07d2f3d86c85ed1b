"""From losses of tokens to one loss, over the global batch.

A mode is a weight for every action token, computed once from the whole batch: ``loss = sum_i w_i * loss_i``. Parts of a
batch add up, so the result does not depend on the cut: sum over micro-batches and over ranks (with data-parallel
averaging of gradients, multiply by the number of ranks).
"""

from __future__ import annotations

from typing import get_args

import numpy as np

from trainers.algorithms.batch import Bools, Floats, Ints
from trainers.algorithms.names import Aggregation


def token_weights(
    mode: Aggregation,
    token_offsets: Ints,
    mask: Bools | None = None,
    norm_length: float | None = None,
    *,
    weights: Floats | None = None,
    tree: Ints | None = None,
) -> Floats:
    """The weight of every action token in the loss.

    With ``n_e`` counted tokens in episode ``e`` and ``S`` episodes that have any (a sequence is a whole episode,
    all its turns together):

    ========================== =============== ===================================================================
    mode                       weight          a long episode counts
    ========================== =============== ===================================================================
    token-mean                 1 / sum_e n_e   by its tokens; the weight of one depends on the rest (DAPO, 2503.14476)
    seq-mean-token-sum         1 / S           by its tokens
    seq-mean-token-mean        1 / (S n_e)     as much as a short one (GRPO, 2402.03300); favours long failures
    seq-mean-token-sum-norm    1 / (S L)       by its tokens, scaled by a constant ``L`` (Dr. GRPO, 2503.20783)
    ========================== =============== ===================================================================

    With ``weights`` (float ``[N]``, at least 0) a token counts so much instead of 1, and with ``tree`` (int ``[E]``,
    :func:`~trainers.algorithms.batch.tree_of`) a sequence is an episode with its forks. ``token_offsets`` (int
    ``[E + 1]``) say where the episodes of the *global* batch start among its ``N`` action tokens; ``mask`` (bool
    ``[N]``) which count. ``norm_length`` is ``L``, for the last mode alone.

    Returns:
        float ``[N]``; 0 where the mask is false.

    Raises:
        ValueError: The mode is unknown, ``norm_length`` is missing, not positive or not used, or the shapes do not fit.
    """
    lengths = np.diff(token_offsets)
    counted: Floats = np.ones(int(token_offsets[-1])) if mask is None else mask.astype(np.float64)
    if counted.shape != (int(token_offsets[-1]),):
        raise ValueError(f"the mask has the shape {counted.shape} for {int(token_offsets[-1])} action tokens")
    if (norm_length is not None) != (mode == "seq-mean-token-sum-norm"):
        raise ValueError(
            f"norm_length is for seq-mean-token-sum-norm, which needs it; got {norm_length!r} with {mode!r}"
        )
    if weights is not None:
        if weights.shape != counted.shape:
            raise ValueError(f"weights has the shape {weights.shape} for {len(counted)} action tokens")
        counted = counted * weights
    episode = np.repeat(np.arange(len(lengths)) if tree is None else tree, lengths)
    per_episode: Floats = np.asarray(np.bincount(episode, counted, minlength=len(lengths)), np.float64)
    sequences = max(int(np.count_nonzero(per_episode)), 1)  # 1: without any counted token all weights are 0 anyway
    per_token: Floats
    if mode == "token-mean":
        per_token = np.full(len(counted), per_episode.sum() or 1.0)
    elif mode == "seq-mean-token-sum":
        per_token = np.full(len(counted), float(sequences))
    elif mode == "seq-mean-token-mean":
        per_token = sequences * np.where(per_episode > 0, per_episode, 1.0)[episode]
    elif mode == "seq-mean-token-sum-norm":
        if norm_length is None or not norm_length > 0:
            raise ValueError(f"norm_length must be positive, not {norm_length!r}")
        per_token = np.full(len(counted), sequences * norm_length)
    else:
        raise ValueError(f"unknown aggregation {mode!r}: choose one of {', '.join(get_args(Aggregation))}")
    return counted / per_token
