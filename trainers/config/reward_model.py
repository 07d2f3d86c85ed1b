"""The sections of rewards: models, functions, penalties and looking ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from .section import Section


class TokenizingSection(Section):
    """What reward models share whose conversations become tokens here."""

    tokenizer: str | None = Field(None, min_length=1)
    """Folder of its tokenizer; null is a classifier's `path`; a service needs one for `input=tokens`."""
    template: str | None = Field(None, min_length=1, description="File with a chat template; null is the tokenizer's.")
    max_length: int | None = Field(None, ge=1)
    """Tokens of a conversation at most (of a service, for `input=tokens`); null is the model's or the server's own
    limit."""
    overlong: Literal["error", "left"] = "error"
    """Longer ones have no score (their episodes fail), or lose their beginning."""
    transform: Literal["identity", "sigmoid", "softmax"] = "identity"
    """The score is the logit, its sigmoid, or the label's probability among all."""


class ClassifierSection(TokenizingSection):
    """Of `reward_model.kind=classifier`: a model of transformers whose head gives a number."""

    path: str | None = Field(None, min_length=1, description="Its folder.")
    head: Literal["sequence", "value"] = "sequence"
    """`sequence`: a sequence classifier. `value`: a value model, read at the last token."""
    label: int | str | None = Field(None, description="Name or number of the label that is the score, if several.")
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    """Type to compute in; `auto` is that of the files."""
    rows: int | None = Field(8, ge=1)
    """Conversations computed at a time, exactly, so that scores are independent of the batch; null is any number."""
    bucket: int = Field(64, ge=1, description="Lengths are padded to multiples of this.")
    replicas: int | None = Field(None, ge=1)
    """Workers with the model: threads of this process, or actors in the learner's places with `cluster.backend=ray`;
    null is 1. A pool of its own (`enable_resource_pool`) has as many as places."""
    threads: int = Field(1, ge=1, description="CPU threads of a worker, with `cluster.backend=ray`.")


class ServiceSection(TokenizingSection):
    """Of `reward_model.kind=service`: a reward model that is served, for example by `vllm serve --runner pooling`."""

    url: str | None = Field(None, min_length=1, description="Its address, for example http://127.0.0.1:8000.")
    model: str | None = Field(None, min_length=1, description="Its name there; null is the first that it names.")
    endpoint: Literal["classify", "pooling", "score"] = Field("classify", description="What is asked.")
    input: Literal["tokens", "messages"] = "tokens"
    """Conversations become tokens here (`tokenizer`), or there, by the server's own template."""
    label: int | None = Field(None, ge=0, description="Number of the label that is the score, if several.")
    api_key_env: str | None = Field(None, min_length=1, description="Environment variable that holds the key.")
    connections: int = Field(32, ge=1, description="Requests at a time, where each is one conversation.")
    timeout_s: float = Field(60.0, gt=0, description="Seconds that one request may take.")


class JudgeSection(Section):
    """Of `reward_model.kind=judge`: a language model that grades by a rubric, behind an OpenAI-compatible service."""

    model: str | None = Field(None, min_length=1, description="Its name.")
    base_url: str | None = Field(None, min_length=1, description="The service's address; null is OpenAI's.")
    chat: dict[str, Any] = Field(default_factory=dict)
    """More options of the client (`temperature`, `concurrency`, `cache`, ...; see docs/users_and_judges.md)."""
    rubric: str = Field("helpful", min_length=1)
    """`helpful`, `correct`, `harmless`, or a text file with instructions."""
    low: float = Field(0.0, description="The worst grade.")
    high: float = Field(1.0, description="The best grade.")
    votes: int = Field(1, ge=1, description="Grades a conversation; several need a temperature above 0.")
    vote: Literal["mean", "median"] = Field("mean", description="What becomes of several.")
    tools: bool = Field(False, description="Show tool calls and their results.")
    tries: int = Field(2, ge=1, description="Replies asked for until one is a verdict.")


class RewardModelSection(Section):
    """A model that rewards conversations. See docs/reward-service.md.

    Scoring starts as turns and episodes end, in batches, beside the episodes that continue.
    """

    enable: bool = Field(False, description="Reward with a model.")
    kind: Literal["classifier", "service", "judge"] = Field("classifier", description="What scores.")
    name: str = Field("reward_model", pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")
    """Names its term of a reward, and its metrics."""
    per_turn: bool = Field(False, description="Score every turn as it ends, not the whole conversation at its end.")
    weight: float = Field(1.0, description="What a score is multiplied by.")
    replace: bool = Field(True, description="What the environment pays does not count then; false adds the two.")
    max_batch_size: int | None = Field(None, ge=1)
    """Conversations in a batch at most; null is the kind's own (classifier, service: 32)."""
    max_batch_tokens: int | None = Field(None, ge=1, description="Tokens in a batch at most, about; null is no limit.")
    max_wait_s: float | None = Field(None, ge=0)
    """Maximum batching delay, in seconds; null is the kind's own (0.02 or less)."""
    timeout_s: float | None = Field(None, gt=0, description="Seconds that a batch may take; null is the kind's own.")
    retries: int = Field(2, ge=0, description="How often a conversation that got no score is tried again.")
    patience_s: float = Field(300.0, gt=0, description="Seconds that one waits for a model that is down.")
    cache_size: int = Field(65536, ge=0, description="Scores that are remembered.")
    enable_resource_pool: bool = False
    """Give the classifier places of its own, beside those of `cluster`: threads of this process, or with
    `cluster.backend=ray` a pool of actors; each with a GPU where there are GPUs."""
    n_gpus_per_node: int = Field(1, ge=1)
    """Places of that pool on each machine: GPUs, or without any, workers."""
    nnodes: int = Field(1, ge=1, description="Machines of that pool; more than one needs `cluster.backend=ray`.")
    learner_spans_pool: bool = False
    """That pool is a part of the learner's places, and engines have the others: they and the reward model sleep while
    the learner learns on all. See docs/cluster.md."""
    classifier: ClassifierSection = ClassifierSection()
    service: ServiceSection = ServiceSection()
    judge: JudgeSection = JudgeSection()


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
    """Futures that are played concurrently; null is `samples` for each episode in flight."""
    timeout_s: float | None = Field(600.0, gt=0, description="Seconds that a future may take; null has no limit.")


def named(value: Any) -> Any:
    """Entries of `reward_models` as sections: what is named there is enabled, and named so."""
    if not isinstance(value, Mapping):
        return value
    return {
        name: {"enable": True, "name": name, **entry} if isinstance(entry, Mapping) else entry
        for name, entry in value.items()
    }


def sections_of(config: Any) -> dict[str, RewardModelSection]:
    """All reward models by the keys that they stand under, those not enabled too; none where a command has none."""
    main, more = getattr(config, "reward_model", None), getattr(config, "reward_models", {})
    return {} if main is None else {"reward_model": main, **{f"reward_models.{n}": each for n, each in more.items()}}
