"""The base of all policy losses: the keys of ``actor`` that they share, and what each says about itself.

A loss is a frozen section of the configuration, ``actor``, with a method :meth:`PolicyLoss.token_loss` from tensors of
tokens to a loss of each token. Nothing here imports torch, so that a configuration is read without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import Bools, Floats
from trainers.algorithms.names import Aggregation, Importance, KLEstimator, Rejection
from trainers.section import DecayRate, Fraction, Problems, Section

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.algorithms.policy_losses import TokenLoss


class PolicyLoss(Section):
    """Training of the policy."""

    #: Whether the ratio is of a token or of a whole episode; then all tokens of an episode need one advantage.
    unit: ClassVar[Literal["token", "episode"]] = "token"
    #: Whether a token with an advantage of 0 has a gradient
    always_has_gradient: ClassVar[bool] = False

    lr: float = Field(1e-4, gt=0)
    """Learning rate; the default for a given language model is 1e-6, or 1e-5 with `model.lora_rank`."""
    lr_warmup_steps: int = Field(10, ge=0, description="Optimizer steps of linear rise to `lr`.")
    lr_schedule: Literal["constant", "cosine"] = "cosine"
    """After the warm-up: constant at `lr`, or falling to a tenth of it by the last iteration."""
    betas: tuple[DecayRate, DecayRate] = Field((0.9, 0.95), description="AdamW's decay rates of the two moments.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay.")
    grad_clip: float = Field(1.0, gt=0, description="Maximum norm of the gradient.")
    ppo_epochs: int = Field(1, ge=1, description="Passes over the batch.")
    mini_batches: int = Field(2, ge=1, description="Optimizer steps per pass.")
    max_tokens_per_micro_batch: int = Field(2048, ge=1, description="Maximum tokens in one forward and backward pass.")
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
    use_kl_loss: bool = Field(False, description="Add the KL to the reference to the loss.")
    kl_loss_coef: float = Field(0.001, ge=0, description="Weight of the KL in the loss.")
    kl_loss_type: KLEstimator = Field("k3", description="Estimator of the KL in the loss.")

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
        the episode of each token, in any numbering; ``selected`` is what :meth:`select` returned; ``importance``
        multiplies the loss.
        """
        raise NotImplementedError

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

    def clip_range(self) -> dict[str, Any]:
        """Return the range as options of the functions of :mod:`~trainers.algorithms.policy_losses`."""
        return {"clip_low": self.clip_ratio_low, "clip_high": self.clip_ratio_high}
