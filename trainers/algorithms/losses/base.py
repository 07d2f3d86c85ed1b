"""The base of all policy losses: the keys of ``actor`` that they share, and what each says about itself.

A loss is a frozen section of the configuration, ``actor``, with a method :meth:`PolicyLoss.token_loss` from tensors of
tokens to a loss of each token. No module of a loss imports torch, so that a configuration is read without it.

``(weights * loss).sum()``, with :func:`token_weights`, makes one number of the losses of tokens. It does not depend on
micro-batches, as long as an episode is whole in one of them where the loss is of whole episodes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import Bools, Floats, Ints
from trainers.algorithms.distillation import DistillSection
from trainers.algorithms.names import Aggregation, Importance, KLEstimator, Rejection
from trainers.algorithms.off_policy import MAX_LOG_RATIO
from trainers.section import ActorSection, Betas, Fraction, LearningRate, Problems, Schedule, WarmupSteps

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class TokenLoss:
    """Losses of tokens and their statistics."""

    loss: Tensor  #: ``[n]``, differentiable
    stats: Mapping[str, Tensor]  #: name to ``[n]``, detached


class PolicyLoss(ActorSection):
    """Training of the policy."""

    #: Whether the ratio is of a token or of a whole episode; then all tokens of an episode need one advantage.
    unit: ClassVar[Literal["token", "episode"]] = "token"
    #: Whether a token with an advantage of 0 has a gradient
    always_has_gradient: ClassVar[bool] = False

    lr: LearningRate = 1e-4
    """Learning rate; the default for a given language model is 1e-6, or 1e-5 with `model.lora_rank`."""
    lr_warmup_steps: WarmupSteps = 10
    lr_schedule: Schedule = "cosine"
    betas: Betas = (0.9, 0.95)
    ppo_epochs: int = Field(1, ge=1, description="Passes over the batch.")
    mini_batches: int = Field(2, ge=1, description="Optimizer steps per pass.")
    policy_loss: str
    """`ppo` clips the ratio of each token, `gspo` that of the whole episode (`gspo_token` with each token's own
    advantage), `geo_mean` each token's before their geometric mean; `cispo` clips it as a weight and keeps the
    gradient, `sapo` fades it out smoothly; `dppo_tv` and `dppo_kl` bound the change of the distribution instead of the
    ratio; `clip_cov` is `ppo` without some tokens that lower the entropy most, `kl_cov` does not clip and holds those
    back by a KL."""
    old_logprobs: Literal["rollout", "recompute"] | None = None
    """Denominator of the loss's ratio: the log-probabilities that the engine sampled with (`rollout`), or the learner's
    before the first step (`recompute`). null is `recompute` for `gspo` and `gspo_token` with `model.dtype=bfloat16`,
    where rounding alone would put most episodes outside the clip range, else `rollout`."""
    importance_correction: Importance = "none"
    """With `old_logprobs=recompute`: weight losses by the ratio of learner to engine, of each token or of the whole
    episode, truncated at `tis_cap`; `decoupled` drops tokens beyond it instead."""
    tis_cap: float | None = Field(
        2.0, gt=0, description="Maximum of `importance_correction`'s weights; null is no limit."
    )
    importance_batch_normalize: bool = False
    """Divide the weights of `importance_correction` by their mean over the batch: of tokens, or of episodes."""
    rejection: Rejection = "none"
    """With `old_logprobs=recompute`: leave out tokens, or whole episodes, whose ratio of learner to engine (the
    token's, the episode's product, or its geometric mean) is outside the band; with `k2` and `k3`, whose KL estimate
    (the token's, or its sum, mean or maximum over the episode) is above `rejection_kl`."""
    rejection_low: Fraction = Field(0.5, description="Lower bound of the ratio, for `rejection`.")
    rejection_high: float = Field(5.0, ge=1, description="Upper bound of the ratio, for `rejection`.")
    rejection_kl: float | None = Field(None, gt=0, description="Maximum of `rejection`'s KL estimate, in nats.")
    loss_agg_mode: Aggregation = "seq-mean-token-sum-norm"
    """Aggregation of token losses, always over the global batch. `seq-mean-token-sum-norm` divides the sum by the
    episodes and by `rollout.max_response_length`."""
    entropy_coeff: float | None = Field(None, ge=0)
    """Weight of the entropy bonus, which changes a model even if no rewards differ; null is 0.01 for `model.path=tiny`,
    and 0 for a given model."""
    entropy_target: float | None = Field(None, gt=0)
    """Lower target of the policy's entropy, in nats per token: while the entropy is below it, the bonus counts, and its
    weight rises from `entropy_coeff` by `entropy_step` per batch; above it, the weight falls as fast. null is a
    constant weight."""
    entropy_step: float = Field(
        0.005, gt=0, description="Change of the bonus's weight per batch, with `entropy_target`."
    )
    observation_loss: float = Field(0.0, ge=0, le=1)
    """Weight of the cross-entropy of what the environment answered, added to the loss of every episode, whatever it
    earned (ECHO): the policy also learns to predict its environment, which is dense where rewards are sparse. 0.005 to
    0.05 were published; 0 is off. See docs/algorithms.md."""
    observation_roles: tuple[Literal["tool", "user"], ...] = Field(("tool", "user"), min_length=1)
    """Roles of the messages for `observation_loss`: of their texts, never of what the chat template adds. System
    messages, and the messages that an episode opens with, never count."""
    distill: DistillSection = DistillSection()
    use_kl_loss: bool = Field(False, description="Add the KL to the reference to the loss.")
    kl_loss_coef: float = Field(0.001, ge=0, description="Weight of the KL in the loss.")
    kl_loss_type: KLEstimator = Field("k3", description="Estimator of the KL in the loss.")

    @property
    def observed_roles(self) -> tuple[str, ...]:
        """The roles of the messages whose tokens ``observation_loss`` needs; none where it is off."""
        return self.observation_roles if self.observation_loss else ()

    @property
    def distills(self) -> bool:
        """True where the teacher is a term of the loss, and not of the advantages."""
        return self.distill.top_k > 0

    @abstractmethod
    def token_loss(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        sequence: Tensor,
        *,
        selected: Tensor | None = None,
        importance: Tensor | None = None,
    ) -> TokenLoss:
        """Return the loss of each token, to be minimised, and statistics; all are ``[n]``.

        ``logprobs`` are of the policy in training, ``old_logprobs`` of the one before the first step. ``sequence`` is
        the episode of each token, int, in any numbering; ``selected`` is what :meth:`select` returned, not 0 where a
        token is selected; ``importance`` multiplies the loss (see :mod:`trainers.algorithms.off_policy`).

        Statistics are ``ratio``; ``clipped``, 1 where the bound of the ratio cut the gradient off; where there is a
        clip range, ``outside_clip``, 1 outside it, whatever the advantage; and ``approx_kl_k1`` and ``approx_kl_k3``,
        estimates of how far the policy has moved, KL(old, new) (see ``kl.py``). ``ValueError`` where shapes differ.
        """

    def batch_loss(
        self, logprobs: Tensor, entropy: Tensor, batch: Mapping[str, Tensor], *, record: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a micro-batch, with its entropy bonus and KLs, and sums; see ``Learner.update_actor``.

        With ``record``, the loss's own numbers of each token are among its sums, as ``token_<name>``.
        """
        columns = (batch["old_logprobs"], batch["advantages"], batch["trajectory"])
        surrogate = self.token_loss(
            logprobs, *columns, selected=batch.get("selected"), importance=batch.get("importance")
        )
        per_token = surrogate.loss
        if self.entropy_coeff:  # a gradient of 0 would be computed all the same
            per_token = per_token - self.entropy_coeff * entropy
        sums = {name: (batch["share"] * value).sum() for name, value in surrogate.stats.items()}
        if self.use_kl_loss:
            from trainers.algorithms.kl import kl_estimate

            kl = kl_estimate(logprobs, batch["ref_logprobs"], self.kl_loss_type)
            per_token = per_token + self.kl_loss_coef * kl
            sums["kl_loss"] = (batch["share"] * kl.detach()).sum()
        if self.distills:
            per_token = per_token + self.distill.coef * batch["teacher_kl"]
            sums["distill_kl"] = (batch["share"] * batch["teacher_kl"].detach()).sum()
        if record:
            of_tokens = {"ratio": surrogate.stats["ratio"], "clipped": surrogate.stats["clipped"], "loss": per_token}
            sums |= {f"token_{name}": value.detach() for name, value in of_tokens.items()}
        return (batch["weight"] * per_token).sum(), sums

    def select(self, old_logprobs: Floats, advantages: Floats, mask: Bools, rng: np.random.Generator) -> Bools | None:
        """Select the tokens that the loss treats differently, once from the whole batch, bool ``[N]``; or none."""
        return None

    def checks(self) -> Problems:
        """Yield conflicts between the loss's own keys: pairs of a key of ``actor`` and the problem."""
        return iter(())


class ClippedLoss(PolicyLoss):
    """A loss with a clip range."""

    clip_ratio_low: Fraction = 0.2
    """The ratio is clipped at 1 minus this; 1 is no limit. For `gspo` about 0.0003; of the ratio's logarithm for
    `geo_mean` (0.4), of the divergence for `dppo_tv` and `dppo_kl`."""
    clip_ratio_high: float = Field(0.28, ge=0)
    """The ratio is clipped at 1 plus this. For `gspo` about 0.0004; for `geo_mean`, `dppo_tv` and `dppo_kl` as
    above."""

    def clip(self, ratio: Tensor, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return PPO's surrogate of ratios ``[n]``, the greater of ``-rho A`` clipped and not, and its statistics."""
        within = ratio.clamp(1.0 - self.clip_ratio_low, 1.0 + self.clip_ratio_high)
        free, bounded = -ratio * advantages, -within * advantages
        return free.maximum(bounded), {"ratio": ratio, "clipped": bounded > free, "outside_clip": within != ratio}


class DualClippedLoss(ClippedLoss):
    """A loss with a second bound of the ratio."""

    clip_ratio_c: float | None = Field(None, gt=1)
    """Dual clip of `ppo`: with a negative advantage the ratio counts up to this; of `dppo_tv` and `dppo_kl`: always.
    null is no limit."""


# --- for several losses


def same_shape(**tensors: Tensor | None) -> None:
    """Raise ``ValueError`` where the tensors differ in shape."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"shapes must be the same, one entry a token, not {shapes}")


def log_ratios(logprobs: Tensor, old_logprobs: Tensor, **columns: Tensor | None) -> Tensor:
    """Return ``logprobs - old_logprobs``, clamped, ``[n]``; ``ValueError`` where these or ``columns`` differ in shape.

    Beyond +-20 log-ratios only say "far off", and ``exp`` could overflow to a NaN gradient.
    """
    same_shape(logprobs=logprobs, old_logprobs=old_logprobs, **columns)
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def sequence_mean(x: Tensor, sequence: Tensor) -> Tensor:
    """Return each token's mean of ``x`` over its sequence, ``[n]``, differentiably."""
    # Numbers from 0 on; not by `unique` or `bincount`, whose sizes a GPU would have to report first.
    ordered, order = sequence.sort()
    numbered = (ordered.diff(prepend=ordered[:1]) != 0).cumsum(0)
    number = numbered.new_empty(numbered.shape).scatter(0, order, numbered)
    nothing = x.new_zeros(x.shape)
    count = nothing.index_add(0, number, x.new_ones(x.shape)).clamp(min=1)
    return (nothing.index_add(0, number, x) / count)[number]


def weighed(loss: Tensor, log_ratio: Tensor, importance: Tensor | None, **stats: Tensor) -> TokenLoss:
    """Weigh losses by their ``importance``, and add to their statistics those of how far the policy has moved."""
    log_ratio = log_ratio.detach()
    stats |= {"approx_kl_k1": -log_ratio, "approx_kl_k3": log_ratio.expm1() - log_ratio}
    return TokenLoss(
        loss if importance is None else loss * importance.detach(),
        {name: value.detach().to(log_ratio.dtype) for name, value in stats.items()},
    )


def covariances(logprobs: Floats, advantages: Floats, mask: Bools) -> Floats:
    """Return each trained token's share ``c_i = (log p_i - mean(log p)) (A_i - mean(A))``, ``[N]``; 0 outside ``mask``.

    After a small step the entropy falls by the covariance of log-probability and advantage (arXiv 2505.22617, "The
    entropy mechanism"), of which few tokens carry most. ``log p`` is of before the batch's first update, so a choice by
    ``c`` does not depend on how the batch is cut.
    """
    shares = np.zeros(len(logprobs))
    if mask.any():
        shares[mask] = (logprobs[mask] - logprobs[mask].mean()) * (advantages[mask] - advantages[mask].mean())
    return shares


def count_of_share(share: float, mask: Bools) -> int:
    """Return how many of the trained tokens are a share of them, in (0, 1]: at least one, where there is one."""
    trained = int(mask.sum())
    return min(max(int(share * trained), 1), trained)


def token_weights(
    mode: Aggregation,
    token_offsets: Ints,
    mask: Bools | None = None,
    norm_length: float | None = None,
    *,
    weights: Floats | None = None,
    tree: Ints | None = None,
) -> Floats:
    """Return the weight of every action token: ``loss = sum_i w_i loss_i``, which parts of the global batch add up to.

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

    Returns float ``[N]``, 0 where the mask is false. Raises ``ValueError``: the shapes do not fit.
    """
    lengths = np.diff(token_offsets)
    counted: Floats = np.ones(int(token_offsets[-1])) if mask is None else mask.astype(np.float64)
    if counted.shape != (int(token_offsets[-1]),):
        raise ValueError(f"the mask has the shape {counted.shape} for {int(token_offsets[-1])} action tokens")
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
    else:
        assert norm_length is not None
        per_token = np.full(len(counted), sequences * norm_length)
    return counted / per_token
