"""The sections of rewards: models, functions, penalties and look-ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from ..section import Section
from .alias import NAME
from .variants import Variants


class TokenizingSection(Section):
    """Options of reward models whose conversations are tokenized here."""

    tokenizer: str | None = Field(None, min_length=1)
    """Folder of the tokenizer; null is a classifier's `path`; a service needs one for `input=tokens`."""
    template: str | None = Field(None, min_length=1, description="File with a chat template; null is the tokenizer's.")
    max_length: int | None = Field(None, ge=1)
    """Maximum tokens of a conversation (for a service, with `input=tokens`); null is the model's or the server's
    limit."""
    overlong: Literal["error", "left"] = "error"
    """Longer conversations have no score, and their episodes fail; or they lose their beginning (`left`)."""
    transform: Literal["identity", "sigmoid", "softmax"] = "identity"
    """The score is the logit, its sigmoid, or the label's probability among all."""


class ClassifierSection(TokenizingSection):
    """A transformers model whose head computes a number, for `reward_model.kind=classifier`."""

    path: str | None = Field(None, min_length=1, description="Folder of the model.")
    head: Literal["sequence", "value"] = "sequence"
    """`sequence`: a sequence classifier. `value`: a value model, read at the last token."""
    label: int | str | None = Field(None, description="Name or number of the label that is the score, if several.")
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    """Type to compute in; `auto` is that of the files."""
    rows: int | None = Field(8, ge=1, le=2**12)
    """Fixed batch size in conversations, so that scores are independent of the batch; null is any size."""
    bucket: int = Field(64, ge=1, description="Lengths are padded to multiples of this.")
    replicas: int | None = Field(None, ge=1, le=2**12)
    """Workers with the model: threads of this process, or with `cluster.backend=ray` actors in the learner's places;
    null is 1. A pool of its own (`enable_resource_pool`) has one in each place."""
    threads: int = Field(1, ge=1, le=2**12, description="CPU threads of a worker, with `cluster.backend=ray`.")


class ServiceSection(TokenizingSection):
    """A served reward model, for `reward_model.kind=service`, for example of `vllm serve --runner pooling`."""

    url: str | None = Field(None, min_length=1, description="Address, for example http://127.0.0.1:8000.")
    model: str | None = Field(
        None, min_length=1, description="Name of the model there; null is the first that it lists."
    )
    endpoint: Literal["classify", "pooling", "score"] = Field("classify", description="Endpoint to use.")
    input: Literal["tokens", "messages"] = "tokens"
    """Conversations are tokenized here (by `tokenizer`), or by the server with its own template."""
    label: int | None = Field(None, ge=0, description="Number of the label that is the score, if several.")
    api_key_env: str | None = Field(None, min_length=1, description="Environment variable that holds the key.")
    connections: int = Field(32, ge=1, le=2**12, description="Concurrent requests, each of one conversation.")
    timeout_s: float = Field(60.0, gt=0, description="Seconds that one request may take.")


class AskedModelSection(Section):
    """A language model behind an OpenAI-compatible service."""

    model: str | None = Field(None, min_length=1, description="Name of the model.")
    base_url: str | None = Field(None, min_length=1, description="Address of the service; null is OpenAI's.")
    chat: dict[str, Any] = Field(default_factory=dict)
    """Further options of the client (`temperature`, `concurrency`, `cache`, ...; see docs/users_and_judges.md)."""
    tries: int = Field(2, ge=1, le=1000, description="Maximum requests until a reply is a verdict.")


class JudgeSection(AskedModelSection):
    """A language model that grades by a rubric, for `reward_model.kind=judge`, behind an OpenAI-compatible service."""

    rubric: str = Field("helpful", min_length=1)
    """`helpful`, `correct`, `harmless`, or a text file with instructions."""
    low: float = Field(0.0, description="The worst grade.")
    high: float = Field(1.0, description="The best grade.")
    votes: int = Field(1, ge=1, le=1000, description="Grades per conversation; several need a temperature above 0.")
    vote: Literal["mean", "median"] = Field("mean", description="Aggregation of several grades.")
    tools: bool = Field(False, description="Show tool calls and their results.")


class MoveJudgeSection(AskedModelSection):
    """A language model that names the user's moves, for `reward_model.kind=moves`."""


class RewardModelSection(Section):
    """A model that rewards conversations. See docs/reward-service.md.

    Scoring starts as turns and episodes end, in batches, concurrently with the episodes that continue.
    """

    kind: str = Field("", description="Kind of the scorer.")
    name: str = Field("reward_model", pattern=NAME)
    """Name of its reward term and its metrics."""
    per_turn: bool = Field(False, description="Score every turn as it ends, not the whole conversation at its end.")
    weight: float = Field(1.0, description="Factor of the score.")
    replace: bool = Field(True, description="Replace the environment's reward; false adds the two.")
    max_batch_size: int | None = Field(None, ge=1)
    """Maximum conversations in a batch; null is the kind's default (classifier, service: 32)."""
    max_batch_tokens: int | None = Field(
        None, ge=1, description="Approximate maximum tokens in a batch; null is no limit."
    )
    max_wait_s: float | None = Field(None, ge=0)
    """Maximum batching delay, in seconds; null is the kind's default (0.02 or less)."""
    timeout_s: float | None = Field(
        None, gt=0, description="Seconds that a batch may take; null is the kind's default."
    )
    retries: int = Field(2, ge=0, description="Retries of a conversation that got no score.")
    patience_s: float = Field(300.0, gt=0, description="Seconds to wait for a model that is down.")
    cache_size: int = Field(65536, ge=0, description="Scores to cache.")

    @property
    def workers(self) -> int:
        """Return the number of workers that this run starts: 0 if the model runs elsewhere."""
        return 0

    @property
    def own_pool(self) -> bool:
        """Return whether the workers have places of their own."""
        return False

    @property
    def spans(self) -> bool:
        """Return whether the learner has these places, too."""
        return False


class ClassifierModelSection(RewardModelSection):
    """A reward model that this run computes."""

    kind: Literal["classifier"] = "classifier"
    enable_resource_pool: bool = False
    """Give the classifier its own places, besides those of `cluster`: threads of this process, or with
    `cluster.backend=ray` a pool of actors; each with a GPU if there are GPUs."""
    n_gpus_per_node: int = Field(1, ge=1, le=2**12)
    """Places of that pool on each machine: GPUs, or workers if there are none."""
    nnodes: int = Field(
        1, ge=1, le=2**12, description="Machines of that pool; more than one needs `cluster.backend=ray`."
    )
    learner_spans_pool: bool = False
    """That pool is part of the learner's places, and engines have the rest: they and the reward model sleep while the
    learner learns on all of them. See docs/cluster.md."""
    classifier: ClassifierSection = ClassifierSection()

    @property
    def workers(self) -> int:
        return self.n_gpus_per_node * self.nnodes if self.own_pool else self.classifier.replicas or 1

    @property
    def own_pool(self) -> bool:
        return self.enable_resource_pool

    @property
    def spans(self) -> bool:
        return self.learner_spans_pool


class ServiceModelSection(RewardModelSection):
    """A reward model in a server."""

    kind: Literal["service"] = "service"
    service: ServiceSection = ServiceSection()


class JudgeModelSection(RewardModelSection):
    """A language model as a reward model."""

    kind: Literal["judge"] = "judge"
    judge: JudgeSection = JudgeSection()


class MoveModelSection(RewardModelSection):
    """A language model that names what the user did about each reply, for `algorithm.reaction_credit`.

    It rewards nothing, so `per_turn`, `weight` and `replace` are not read.
    """

    kind: Literal["moves"] = "moves"
    moves: MoveJudgeSection = MoveJudgeSection()


REWARD_MODELS: Mapping[str, type[RewardModelSection]] = {
    "classifier": ClassifierModelSection,
    "service": ServiceModelSection,
    "judge": JudgeModelSection,
    "moves": MoveModelSection,
}
#: An entry of `reward_models`.
RewardModel: TypeAlias = Annotated[RewardModelSection, Variants("", "kind", "classifier", REWARD_MODELS)]


class RewardFunctionSection(Section):
    """A custom reward, `compute_score(data_source, solution_str, ground_truth, extra_info)`, computed in processes."""

    path: str | None = Field(None, min_length=1, description="Python file with the function; null is no function.")
    name: str = Field("compute_score", min_length=1, description="The function's name.")
    workers: int = Field(2, ge=1, le=2**12, description="Processes that compute it.")
    timeout_s: float = Field(30.0, gt=0, description="Seconds that one call may take; its process is then killed.")


class EpisodeRewardFunctionSection(RewardFunctionSection):
    """A custom reward, `compute_score(data_source, solution_str, ground_truth, extra_info)`, computed in processes.

    It scores whole episodes as they end. See docs/collector.md.
    """

    replace: bool = Field(True, description="Replace the environment's reward; false adds the two.")


class OverlongBufferSection(Section):
    """DAPO's penalty for episodes near `rollout.max_response_tokens`: the last turn's term `overlong`.

    It grows linearly over the last `len` of those tokens, from 0 to `penalty_factor`. Of an episode with several
    contexts all tokens count, so it may be beyond that limit. In training only.
    """

    enable: bool = Field(False, description="Apply the penalty.")
    len: int = Field(4096, ge=1)
    """Tokens before the limit at which it begins; at most `rollout.max_response_tokens`."""
    penalty_factor: float = Field(1.0, gt=0, description="Penalty of an episode at the limit.")


class RelativeLengthSection(Section):
    """Pay longer successes less than the shorter ones of their group. See docs/algorithms.md.

    The estimator sees it, as the last turn's term `relative_length`; metrics and validation do not. The gains and costs
    of a group sum to 0, and a failure never earns more than a success by them.
    """

    tokens: float = Field(0.0, ge=0)
    """Weight of the tokens that the policy sampled: maximum change of an episode's reward by them; 0 is off."""
    turns: float = Field(0.0, ge=0)
    """Weight of the turns: maximum change of an episode's reward by them; 0 is off."""


class MultiturnRewardSection(Section):
    """Reward of each turn by the conversations that it leads to, as in CollabLLM. See docs/lookahead.md.

    After each turn the episode is forked, and the policy plays some more turns in each fork, concurrently with the
    running episodes. Only training episodes have this reward.
    """

    enable: bool = Field(False, description="Look ahead.")
    samples: int = Field(3, ge=1, le=2**12, description="Futures per turn.")
    window: int = Field(2, ge=0, description="Turns of the policy in each; 0 scores conversations as they are.")
    formula: Literal["textenvs", "linear", "paper", "repository", "recipe"] = "textenvs"
    """Formula of a conversation's value; they differ in the cost of its length."""
    cost: float | None = Field(None, ge=0, description="Cost per word or token, in place of the formula's.")
    weights: dict[str, float] = Field(default_factory=dict)
    """Weights of the task's scores and of `interactivity`, by name; 1 for others."""
    judge: str | None = Field(None, min_length=1)
    """`MODULE:NAME` of a function from a conversation to a grade (interactivity)."""
    judge_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of a callable that `judge` then names, and that makes the function: for example
    `textenvs.judges:InteractivityJudge` with `{model: {model: NAME, base_url: URL}}`."""
    credit: Literal["value", "difference"] = "value"
    """`value`: a turn's reward is the value of the whole conversation after it, which needs `algorithm.gamma=0` over
    turns. `difference`: the change of that value by the turn, for all estimators."""
    replace: bool = Field(True, description="Replace the environment's reward; false adds the two.")
    temperature: float | None = Field(
        None, ge=0, description="Sampling temperature of futures; null is `rollout.temperature`."
    )
    max_response_length: int | None = Field(None, ge=1)
    """Maximum tokens of a reply in the futures; null is `rollout.max_response_length`."""
    concurrency: int | None = Field(None, ge=1, le=2**20)
    """Concurrent futures; null is `samples` for each episode in flight."""
    timeout_s: float | None = Field(600.0, gt=0, description="Seconds that a future may take; null is no limit.")


def named(value: Any) -> Any:
    """Return the entries of `reward_models`, named by their keys."""
    if not isinstance(value, Mapping):
        return value
    return {name: {"name": name, **entry} if isinstance(entry, Mapping) else entry for name, entry in value.items()}


def sections_of(config: Any) -> dict[str, RewardModelSection]:
    """Return the reward models by their keys, for example ``reward_models.helpful``; empty for a command without."""
    return {f"reward_models.{name}": section for name, section in getattr(config, "reward_models", {}).items()}


def entries_of(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `reward_models` of a saved configuration; an older version has one of them as `reward_model`."""
    main = saved.get("reward_model") or {}
    return {**({main["name"]: main} if main.get("enable") else {}), **(saved.get("reward_models") or {})}
