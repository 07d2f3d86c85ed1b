"""The names by which estimators, losses and corrections are chosen."""

from typing import Literal, TypeAlias

Aggregation: TypeAlias = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KLEstimator: TypeAlias = Literal["k1", "k2", "k3", "low_var_kl", "abs"]
Importance: TypeAlias = Literal["none", "token_tis", "sequence_tis", "decoupled"]
# fmt: off
Rejection: TypeAlias = Literal[
    "none", "token", "sequence", "geometric", "token_k2", "token_k3", "seq_sum_k2", "seq_sum_k3", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3",
]
# fmt: on
