"""On-policy distillation: a teacher scores the policy's own tokens, as an advantage or as a term of the loss.

A teacher scores the tokens that the policy sampled. ``log pi - log T`` of such a token is an estimate of the reverse KL
of its state, KL(policy || teacher), so its negative is the token's advantage (Thinking Machines, "On-policy
distillation", 2025; the same in NeMo RL's MOPD, after MiMo-V2-Flash). Or the loss has each state's KL itself, as in GKD
(arXiv 2306.13649), over the ``k`` most likely tokens and a remainder
(:func:`trainers.learner.top_tokens.top_kl`). A teacher with privileged context is the model itself, or one as strong,
that was told more (OPSD, "Self-distilled reasoner", with per-token clipping; SDPO, arXiv 2601.20802, which adds such
advantages to GRPO's).
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import Bools, Floats, Ints, discounted_sums
from trainers.section import Fraction, Section

#: What a teacher sees beside the conversation, as in :data:`textenvs.privileged.Privilege`.
Context: TypeAlias = Literal["goal", "answer", "expert"]


class DistillSection(Section):
    """A teacher of the policy's own tokens. Its advantages are added to those of the rewards, or replace them."""

    teacher: str | None = Field(None, min_length=1)
    """Teacher: `reference` is the model that the run began with, and `policy` the policy itself, which needs a
    `context`; or the folder (or name on the hub) of a model with the policy's tokenizer; or the address of a server of
    vLLM or SGLang that has such a model, `http://...`. null is nobody."""
    context: Literal["none", "goal", "answer", "expert"] = "none"
    """Privileged context, which the teacher sees at the end of the last message and the policy never does: the `goal`
    of the environment's user, the right `answer`, or the next reply of the environment's scripted `expert`."""
    coef: float = Field(1.0, gt=0, le=1000)
    """Weight of the teacher's advantages: each is the log-probability that the teacher gives the token minus the
    policy's, in nats. With `top_k`, of the KL in the loss."""
    top_k: int = Field(0, ge=0, le=1000)
    """Tokens of each state whose probabilities are compared, the policy's most likely ones before the batch's first
    step: the loss has `coef` times the reverse KL over them and a remainder, with its exact gradient, instead of an
    advantage of the sampled token. It is a lower bound of the full KL, and equal to it from the vocabulary's size on.
    A teacher at an address names its own most likely tokens instead. 0 is the sampled token alone."""
    rewards: bool = Field(True, description="Keep the rewards' advantages; false learns from the teacher alone.")
    discount: Fraction = 0.0
    """Discount by which a token also answers for the log-ratios of the episode's later tokens. 0 is the reverse KL of
    each state; 1 that of whole episodes, with more variance."""
    clip: float | None = Field(10.0, gt=0)
    """Limit of a token's log-ratio in either direction, in nats: few tokens that the teacher would never sample would
    be most of the gradient. null is no limit."""

    @property
    def folder(self) -> str | None:
        """The folder of the teacher's model, where it is one of its own."""
        return None if self.teacher in (None, "reference", "policy") or self.address is not None else self.teacher

    @property
    def address(self) -> str | None:
        """The address of the teacher, where a server has it."""
        return self.teacher if self.teacher is not None and self.teacher.startswith(("http://", "https://")) else None

    @property
    def privilege(self) -> Context | None:
        """The teacher's privileged context; ``None`` if it sees what the policy sees."""
        return None if self.teacher is None or self.context == "none" else self.context


def log_ratios(policy: Floats, teacher: Floats, taught: Bools) -> Floats:
    """Return how much more the teacher gives each token, ``log T - log pi`` in nats, ``[N]``; 0 outside ``taught``."""
    return np.where(taught, teacher - policy, 0.0)


def distilled(section: DistillSection, ratios: Floats, offsets: Ints) -> Floats:
    """Return the advantages of the teacher's log-ratios, float ``[N]``, in the order of time within each episode.

    ``A_t = coef * sum_{k >= t} discount^(k - t) clip(ratio_k)``, over the action tokens of the episode. Sampled from
    the policy and without a clip:

    * with ``discount=0``, ``E[A_t grad log pi_t] = -coef grad KL(pi_t || T_t)`` in each state that the policy came to:
      the gradient of the sum of the states' KLs with the distribution of states held fixed. It is biased as the
      gradient of the KL of whole episodes, because a token does not answer for the states that it leads to.
    * with ``discount=1`` it is unbiased for that: ``-coef grad KL(pi || T)`` of whole episodes, with the variance of a
      sum over all later tokens.

    A clip biases both where ratios reach it. ``offsets`` (int ``[E + 1]``) are where the episodes start.
    """
    limit = math.inf if section.clip is None else section.clip
    advantages = section.coef * np.clip(ratios, -limit, limit)
    return discounted_sums(advantages, offsets, section.discount) if section.discount else advantages


def distillation_metrics(ratios: Floats, taught: Bools, clip: float | None) -> dict[str, float]:
    """Return what to report of a batch's log-ratios ``[N]``, as metrics of the actor.

    ``teacher_kl``: the mean of ``log pi - log T`` over taught tokens, an unbiased estimate of the reverse KL per token,
    without the clip; ``teacher_disagrees``: the share of taught tokens that the teacher gives less than half of the
    policy's probability; ``teacher_clipped``: the share beyond ``clip``; ``teacher_share``: the taught
    tokens' share.
    """
    metrics = {"actor/teacher_share": float(taught.mean()) if taught.size else 0.0}
    if taught.any():
        own = ratios[taught]
        metrics["actor/teacher_kl"] = -float(own.mean())
        metrics["actor/teacher_disagrees"] = float((own < -math.log(2.0)).mean())
        if clip is not None:
            metrics["actor/teacher_clipped"] = float((np.abs(own) > clip).mean())
    return metrics
