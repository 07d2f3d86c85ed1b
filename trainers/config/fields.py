"""Types that fields of several sections have."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field


def _one_or_many(value: Any) -> Any:
    """Let a single name stand for a list of one."""
    return (value,) if isinstance(value, str) else value


Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_one_or_many), Field(min_length=1)]
Loggers: TypeAlias = Annotated[
    tuple[Literal["console", "jsonl", "tensorboard", "wandb", "mlflow"], ...], BeforeValidator(_one_or_many)
]
#: Every so many iterations, or -1 for never.
Frequency: TypeAlias = Literal[-1] | Annotated[int, Field(ge=1)]
DecayRate: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Aggregation: TypeAlias = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
# fmt: off
Estimator: TypeAlias = Literal[
    "gae", "turn_gae", "bilevel_gae", "grpo", "dr_grpo", "rloo", "opo", "gdpo", "grpo_passk", "passk", "reinforce_pp",
    "reinforce_pp_baseline", "remax", "turn_grpo", "gigpo",
]
PolicyLossName: TypeAlias = Literal[
    "ppo", "gspo", "gspo_token", "cispo", "geo_mean", "sapo", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov"
]
Rejection: TypeAlias = Literal[
    "none", "token", "sequence", "geometric", "token_k2", "token_k3", "seq_sum_k2", "seq_sum_k3", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3",
]
# fmt: on
KLEstimate: TypeAlias = Literal["k1", "k2", "k3", "low_var_kl", "abs"]
