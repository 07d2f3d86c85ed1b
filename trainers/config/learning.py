"""The sections of estimators, losses and optimizers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..algorithms.names import Aggregation, EstimatorName, Importance, KLEstimator, PolicyLossName, Rejection
from .section import DecayRate, Fraction, Section


class KLControlSection(Section):
    """The weight of the KL penalty in the reward."""

    type: Literal["fixed", "adaptive"] = Field("fixed", description="`adaptive` steers the weight towards `target_kl`.")
    kl_coef: float = Field(0.001, ge=0, description="Weight, or where an adaptive one starts.")
    horizon: float = Field(10000.0, gt=0, description="Episodes over which an adaptive weight reacts.")
    target_kl: float = Field(0.1, gt=0)
    """KL that an adaptive weight aims at: nats a token, every episode weighing the same."""


class AlgorithmSection(Section):
    """From rewards to advantages."""

    adv_estimator: EstimatorName = "turn_grpo"
    """`gae`, `turn_gae` and `bilevel_gae` train a critic; `reinforce_pp` compares with the batch, `remax` with a greedy
    episode of each task (one more to play), `fork` with other replies in the same state (see `fork`); the others
    compare the episodes of a group."""
    gamma: Fraction = 1.0
    """Discount: a token for `gae`, `bilevel_gae` and `reinforce_pp`, a turn for `turn_gae`, `turn_grpo`, `gigpo`
    and `fork`."""
    lam: Fraction = Field(1.0, description="λ of the estimators with a critic; 1 is Monte Carlo.")
    turn_gamma: Fraction = Field(0.99, description="Of `bilevel_gae`: discount a turn.")
    turn_lam: Fraction = Field(1.0, description="Of `bilevel_gae`: λ over turns; below 1 is biased.")
    norm_adv: bool = False
    """Scale the batch's advantages to mean 0 and variance 1. It bends the gradient of small batches."""
    norm_by_std: bool | None = None
    """Divide by the group's deviation; null is the estimator's habit: `turn_grpo` no, the others yes."""
    baseline: Literal["group", "mixed", "shrunk", "optimal_token"] = "mixed"
    """Of `rloo`, `turn_grpo` and `fork`: the group's other episodes; half those, half the batch's; and but for `fork`:
    those drawn to other groups; or for each token those that have such a token, weighed by how uncertain they were up
    to there."""
    zero_pad: bool = Field(False, description="Of `turn_grpo`: episodes over before a turn count there, with 0.")
    outcome_mix: Fraction = Field(0.0, description="Of `turn_grpo`: the share of the whole episode's advantage.")
    step_weight: float = Field(1.0, ge=0, description="Of `gigpo`: weight of the comparison of turns (ω).")
    anchor: Literal["observation", "history"] = "observation"
    """Of `gigpo`: turns began in the same state when the last observation was the same, or the whole conversation."""
    gdpo_reward_keys: tuple[str, ...] | None = Field(None, min_length=1)
    """Of `gdpo`: the reward terms that count, by name; null is all there are."""
    gdpo_reward_weights: tuple[float, ...] | None = Field(None, min_length=1)
    """Of `gdpo`: a weight for each of `gdpo_reward_keys`; null is 1."""
    pass_k: int = Field(4, ge=1, description="Of `passk`: the best of so many episodes is what counts.")
    truncated: Literal["count", "drop"] = "count"
    """Without a critic, episodes cut by a budget count as they are, or are left out."""
    reward_credit: str = Field("as_earned", min_length=1)
    """Which turns are paid for what an episode earned: `as_earned`, all to the `last` turn, `spread` over all turns,
    `discounted` back to the turns before, or `FILE.py:FUNCTION` of your own. See docs/credit.md."""
    reward_credit_decay: Fraction = 0.9
    """Of `reward_credit=discounted`: what a turn gets of the next one's share."""
    use_kl_in_reward: bool = Field(False, description="Take the KL to the reference from each token's reward.")
    kl_penalty: KLEstimator = Field("k1", description="Its estimate; `k1` is unbiased; `low_var_kl` is `k3`.")
    kl_ctrl: KLControlSection = KLControlSection()


class ForkSection(Section):
    """Of `algorithm.adv_estimator=fork`: the episodes that are played on from states which others met.

    They are trained on, too. See docs/algorithms.md.
    """

    samples: int = Field(1, ge=1, description="Forks at each state that is chosen.")
    where: Literal["every", "variance"] = "every"
    """Before every turn, or before the turns at which the return varied most in the last batches."""
    budget: int | None = Field(None, ge=1)
    """Tokens that the forks of an iteration sample, as expected from the last batches; null has no limit. With one, the
    first iteration has no forks."""


class ActorSection(Section):
    """Training the policy."""

    lr: float = Field(1e-4, gt=0)
    """Learning rate. For a given language model it is 1e-6, with `model.lora_rank` 1e-5, if it is not said."""
    lr_warmup_steps: int = Field(10, ge=0, description="Optimizer steps of linear rise to `lr`.")
    lr_schedule: Literal["constant", "cosine"] = "cosine"
    """After the warm-up: stay at `lr`, or fall to a tenth of it by the last iteration."""
    betas: tuple[DecayRate, DecayRate] = Field((0.9, 0.95), description="AdamW's decay rates of the two moments.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay.")
    grad_clip: float = Field(1.0, gt=0, description="Largest norm of the gradient.")
    ppo_epochs: int = Field(1, ge=1, description="Passes over the batch.")
    mini_batches: int = Field(2, ge=1, description="Optimizer steps a pass.")
    max_tokens_per_micro_batch: int = Field(2048, ge=1, description="Tokens in one forward and backward pass at most.")
    policy_loss: PolicyLossName = "ppo"
    """`ppo` clips the ratio of each token, `gspo` that of the whole episode (`gspo_token` with each token's own
    advantage), `geo_mean` each token's before their geometric mean; `cispo` clips it as a weight and keeps the
    gradient, `sapo` fades it out smoothly; `dppo_tv` and `dppo_kl` bound the change of the distribution instead of the
    ratio; `clip_cov` is `ppo` without some tokens that lower the entropy most, `kl_cov` does not clip and holds those
    back by a KL."""
    clip_ratio_low: Fraction = 0.2
    """The ratio is clipped at 1 minus this; 1 is no limit. For `gspo` about 0.0003; of the ratio's logarithm for
    `geo_mean` (0.4), of the divergence for `dppo_tv` and `dppo_kl`."""
    clip_ratio_high: float = Field(0.28, ge=0)
    """The ratio is clipped at 1 plus this. For `gspo` about 0.0004; for `geo_mean`, `dppo_tv` and `dppo_kl` as
    above."""
    clip_ratio_c: float | None = Field(None, gt=1)
    """Dual clip of `ppo`: with a negative advantage the ratio counts up to this; of `dppo_tv` and `dppo_kl`: always.
    null is no limit."""
    tau_pos: float = Field(1.0, gt=0, description="Of `sapo`: how fast the gradient fades where the advantage is > 0.")
    tau_neg: float = Field(1.05, gt=0, description="Of `sapo`: the same for the other tokens.")
    clip_cov_ratio: float = Field(0.0002, gt=0, le=1, description="Of `clip_cov`: share of tokens without a gradient.")
    clip_cov_lb: float = Field(1.0, description="Of `clip_cov`: drawn among tokens of a covariance above this,")
    clip_cov_ub: float = Field(5.0, description="and below this.")
    kl_cov_ratio: float = Field(0.0002, gt=0, le=1, description="Of `kl_cov`: share of tokens with the penalty.")
    ppo_kl_coef: float = Field(0.1, ge=0, description="Of `kl_cov`: weight of the penalty (the paper: 1).")
    old_logprobs: Literal["rollout", "recompute"] | None = None
    """What the loss's ratio starts from: the log-probabilities the engine sampled with, or the learner's own before the
    first step. null is `recompute` for `gspo` and `gspo_token` with `model.dtype=bfloat16`, where rounding alone would
    put most episodes outside the clip range, else `rollout`."""
    importance_correction: Importance = "none"
    """With `old_logprobs=recompute`: weigh losses by the ratio of learner to engine, of each token or of the whole
    episode, truncated at `tis_cap`; `decoupled` drops tokens beyond it instead."""
    tis_cap: float | None = Field(2.0, gt=0, description="The greatest such weight; null is no limit.")
    importance_batch_normalize: bool = False
    """Divide those weights by their mean over the batch: of tokens, or of episodes."""
    rejection: Rejection = "none"
    """With `old_logprobs=recompute`: leave out tokens, or whole episodes, whose ratio of learner to engine (the
    token's, the episode's product, or its geometric mean) is outside the band; with `k2` and `k3`, whose KL estimate
    (the token's, or its sum, mean or maximum over the episode) is above `rejection_kl`."""
    rejection_low: Fraction = Field(0.5, description="Lower end of that band.")
    rejection_high: float = Field(5.0, ge=1, description="Upper end of that band.")
    rejection_kl: float | None = Field(None, gt=0, description="The greatest such KL estimate, in nats.")
    loss_agg_mode: Aggregation = "seq-mean-token-sum-norm"
    """How token losses become one; always over the global batch. `seq-mean-token-sum-norm` divides the sum by the
    episodes and by `rollout.max_response_length`."""
    entropy_coeff: float | None = Field(None, ge=0)
    """Weight of the entropy bonus, which moves a model also where no reward differs; null is 0.01 for
    `model.path=tiny`, and 0 for a model that is given."""
    entropy_target: float | None = Field(None, gt=0)
    """Hold the policy's entropy up to so many nats a token: while it is below, the bonus counts, and its weight rises
    from `entropy_coeff` by `entropy_step` a batch, and falls as fast while it is above. null is a constant weight."""
    entropy_step: float = Field(0.005, gt=0, description="With `entropy_target`: the weight moves so much a batch.")
    use_kl_loss: bool = Field(False, description="Add the KL to the reference to the loss.")
    kl_loss_coef: float = Field(0.001, ge=0, description="Its weight.")
    kl_loss_type: KLEstimator = Field("k3", description="Its estimate.")


class CriticSection(Section):
    """Training the value function; only for `gae`, `turn_gae` and `bilevel_gae`."""

    lr: float = Field(1e-3, gt=0)
    """Learning rate; 1e-5 for a given language model, if it is not said."""
    lr_warmup_steps: int = Field(0, ge=0, description="Optimizer steps of linear rise to `lr`.")
    betas: tuple[DecayRate, DecayRate] = Field((0.9, 0.999), description="AdamW's decay rates of the two moments.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay.")
    grad_clip: float = Field(1.0, gt=0, description="Largest norm of the gradient.")
    cliprange_value: float | None = Field(0.5, gt=0, description="Values move this far an update; null is no limit.")
    warmup: int = Field(0, ge=0, description="Iterations at the start that train the critic alone.")
