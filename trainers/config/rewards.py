"""The sections of reward functions and of looking ahead; reward models have a file of their own."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .section import Section


class RewardFunctionSection(Section):
    """A reward of your own, `compute_score(data_source, solution_str, ground_truth, extra_info)`, in processes."""

    path: str | None = Field(None, min_length=1, description="Python file with the function; null has none.")
    name: str = Field("compute_score", min_length=1, description="The function's name.")
    workers: int = Field(2, ge=1, description="Processes that compute it.")
    timeout_s: float = Field(30.0, gt=0, description="Seconds that one call may take; its process is then killed.")


class EpisodeRewardFunctionSection(RewardFunctionSection):
    """A reward of your own, `compute_score(data_source, solution_str, ground_truth, extra_info)`, in processes.

    It scores whole episodes as they end. See docs/collector.md.
    """

    replace: bool = Field(True, description="What the environment pays does not count then; false adds the two.")


class OverlongBufferSection(Section):
    """DAPO's penalty of episodes that come near `rollout.max_response_tokens`: the last turn's term `overlong`.

    It grows evenly over the last `len` of those tokens, from 0 to `penalty_factor`. In training only.
    """

    enable: bool = Field(False, description="Take the penalty.")
    len: int = Field(4096, ge=1)
    """Tokens before the limit where it begins; at most `rollout.max_response_tokens`."""
    penalty_factor: float = Field(1.0, gt=0, description="What an episode at the limit loses.")


class MultiturnRewardSection(Section):
    """Rewards each turn by the conversations that it leads to, as CollabLLM does. See docs/lookahead.md.

    After each turn the episode is forked, and the policy plays some turns more in each fork, beside the episodes that
    go on. Only training episodes are rewarded so.
    """

    enable: bool = Field(False, description="Look ahead.")
    samples: int = Field(3, ge=1, description="Futures a turn.")
    window: int = Field(2, ge=0, description="Turns that the policy has in each; 0 scores conversations as they stand.")
    formula: Literal["textenvs", "linear", "paper", "repository", "recipe"] = "textenvs"
    """What a conversation is worth; they differ in what its length costs."""
    cost: float | None = Field(None, ge=0, description="The price of a word or token, in place of the formula's.")
    weights: dict[str, float] = Field(default_factory=dict)
    """Weights of the task's scores and of `interactivity`, by name; 1 for others."""
    judge: str | None = Field(None, min_length=1)
    """`MODULE:NAME` of a function from a conversation to a grade (interactivity)."""
    judge_kwargs: dict[str, Any] = Field(default_factory=dict)
    """With these, `judge` names what makes that function of them: `textenvs.judges:InteractivityJudge` and `{model:
    {model: NAME, base_url: URL}}`."""
    credit: Literal["value", "difference"] = "value"
    """`value`: a turn's reward is what the whole conversation is then worth, which needs `algorithm.gamma=0` over
    turns. `difference`: what the turn changed in that, for all estimators."""
    replace: bool = Field(True, description="What the environment pays does not count then; false adds the two.")
    temperature: float | None = Field(None, ge=0, description="Of the futures; null is `rollout.temperature`.")
    max_response_length: int | None = Field(None, ge=1)
    """Tokens of a reply in the futures; null is `rollout.max_response_length`."""
    concurrency: int | None = Field(None, ge=1)
    """Futures at a time; null is a turn's for every episode in flight."""
    timeout_s: float | None = Field(600.0, gt=0, description="Seconds that a future may take; null has no limit.")
