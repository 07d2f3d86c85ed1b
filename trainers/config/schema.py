"""Every key of a run: type, default, range and meaning, in one place.

The sections are frozen pydantic models; names are verl's where a field has a standard one. ``--help`` and
docs/configuration.md are made from what stands here. What several keys must agree on stands in :mod:`.checks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from .checks import learner_checks, model_checks, ppo_checks, template_checks
from .reward_model import RewardModelSection, named
from .section import Section


def _one_or_many(value: Any) -> Any:
    """Let a single name stand for a list of one."""
    return (value,) if isinstance(value, str) else value


Files: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_one_or_many), Field(min_length=1)]
#: Of servers that run already.
Addresses: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_one_or_many), Field(min_length=1)]
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
    "gae", "turn_gae", "bilevel_gae", "grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "remax",
    "turn_grpo", "gigpo",
]
# fmt: on
KLEstimate: TypeAlias = Literal["k1", "k2", "k3", "low_var_kl", "abs"]


class ConflictError(ValueError):
    """Values that are each allowed do not go together; ``conflicts`` are pairs of a key and what is wrong with it."""

    def __init__(self, conflicts: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {text}" for key, text in conflicts))
        self.conflicts = conflicts


class EnvSection(Section):
    """The environment."""

    id: str = Field("textenv/gsm8k-interact", description="Gymnasium id of the environment.")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of the environment; `env.kwargs.NAME=value` sets one."
    )


class PlayedEnvSection(EnvSection):
    """The environment, and where it runs."""

    val_kwargs: dict[str, Any] = Field(
        default_factory=lambda: {"split": "test"}, description="Arguments for validation alone, laid over `env.kwargs`."
    )
    backend: Literal["inline", "thread", "process", "ray"] = Field(
        "inline",
        description="Where environments step: in the collector's event loop, in threads (for those that block), in "
        "processes (for those that may hang or crash), or in Ray actors (on the machines of a cluster).",
    )
    workers: int | None = Field(
        None,
        ge=1,
        description="Environments at a time; null is as many as episodes (one a CPU for processes); `backend=ray` "
        "needs a number.",
    )


#: Of ``chat_template_kwargs``, wherever conversations are rendered.
TEMPLATE_KWARGS = (
    "Variables for the tokenizer's chat template, in every rendering; `data.chat_template_kwargs.NAME=value` sets one "
    "(`enable_thinking=false` of Qwen3). One that the template never reads is an error."
)


class TrainDataSection(Section):
    """The tasks."""

    train_files: Files | None = Field(
        None,
        description="Tasks to train on: .jsonl or .parquet files, `generated:LEVEL`, `hub:REPOSITORY`, or a list of "
        "these; null takes the environment's own.",
    )
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, description=TEMPLATE_KWARGS)


class DataSection(TrainDataSection):
    """The tasks, to train and to validate on."""

    val_files: Files | None = Field(
        None,
        description="Tasks to validate on, likewise; null takes the environment's own, other than those of training.",
    )
    train_size: int | None = Field(None, ge=1, description="Train on the first so many tasks; null is all of them.")
    val_size: int = Field(256, ge=1, description="Validate on the first so many tasks.")
    shuffle: bool = Field(True, description="A new order of the training tasks in every epoch.")
    filter_overlong_prompts: bool = Field(
        False,
        description="Leave out tasks whose opening is longer than `longest_prompt`, of those that `train_size` and "
        "`val_size` take. Before a run starts or goes on, each task is reset and rendered once, which takes its time "
        "with many; the others keep their order. Not for tasks that never end.",
    )
    longest_prompt: int | None = Field(
        None,
        ge=1,
        description="With `filter_overlong_prompts`: tokens of an opening at most; null leaves room for a whole reply, "
        "`engine.max_context` - `rollout.max_response_length`.",
    )


class ModelSection(Section):
    """The policy. The keys from `family` to `vocab_size` give the shape of `path=tiny`."""

    path: str = Field(
        "tiny", description="Folder of a Hugging Face model, or `tiny`: one from scratch, tokenizer included."
    )
    family: Literal["qwen2", "qwen3", "llama"] = Field("qwen2", description="Architecture.")
    hidden: int = Field(128, ge=8, description="Width.")
    intermediate: int | None = Field(None, ge=8, description="Width of the feed-forward part; null is 4 * hidden.")
    layers: int = Field(3, ge=1, description="Blocks.")
    heads: int = Field(4, ge=1, description="Attention heads.")
    kv_heads: int = Field(2, ge=1, description="Key/value heads; divides `heads`.")
    vocab_size: int = Field(512, ge=300, description="Tokens at most; 256 are bytes.")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Type to compute in.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto` is cuda where there is one.")
    lora_rank: int = Field(
        0,
        ge=0,
        description="Train LoRA adapters of this rank instead of all parameters (`textenvs[lora]`); 0 does not.",
    )
    lora_alpha: float = Field(16.0, gt=0, description="Adapters count `lora_alpha` / `lora_rank`.")
    target_modules: tuple[str, ...] | str = Field(
        "all-linear", description="Names of the linear layers that get an adapter, or `all-linear`."
    )
    exclude_modules: tuple[str, ...] = Field((), description="Names of linear layers that get none.")
    lora_adapter_path: str | None = Field(
        None,
        min_length=1,
        description="Begin with this adapter instead of a new one: a folder that peft saved, for all ranks to see. "
        "`lora_rank`, `lora_alpha` and the modules must be its own. The KL's reference is the model without it.",
    )
    lora_publish: Literal["merged", "adapter"] = Field(
        "merged",
        description="What engines get of a LoRA run: `merged` matrices, which every engine takes, or the `adapter` "
        "alone, which they merge into matrices that they keep (engines `torch` and `vllm`).",
    )
    enable_gradient_checkpointing: bool = Field(
        False, description="Compute activations again in the backward pass instead of keeping them."
    )
    enable_activation_offload: bool = Field(
        False, description="Keep what gradient checkpointing keeps on the CPU; for cuda."
    )
    use_remove_padding: bool = Field(
        False,
        description="Pack sequences instead of padding them. For cuda; on the CPU it works, slower than padding.",
    )
    attn_implementation: str | None = Field(
        None,
        min_length=1,
        description="The learner's attention, by transformers' name (`sdpa`, `flash_attention_2`, `flex_attention`, "
        "...); null is its choice, and torch's variable-length attention with `use_remove_padding`.",
    )


class SupervisedSection(Section):
    """Supervised training on demonstrations: the loss is on the assistant's tokens alone."""

    files: Files | None = Field(
        None,
        description="Conversations to imitate, .jsonl or .parquet with a column `messages`; null plays the scripted "
        "expert of the environment.",
    )
    demonstrations: int = Field(20000, ge=1, description="Episodes that the scripted expert plays.")
    mistake_rate: float = Field(
        0.3,
        ge=0,
        lt=1,
        description="Share of the expert's turns that are scripted blunders instead, to show what to do after one.",
    )
    mistake_weight: float = Field(
        0.0, ge=0, description="How much the blunders are imitated, where the expert's replies count 1."
    )
    steps: int = Field(1000, ge=1, description="Optimizer steps.")
    batch_size: int = Field(64, ge=1, description="Conversations a step.")
    lr: float = Field(2e-3, gt=0, description="Peak learning rate; falls to a tenth along a cosine.")
    lr_warmup_steps: int = Field(20, ge=0, description="Steps of linear rise to `lr`.")
    weight_decay: float = Field(
        0.3, ge=0, description="AdamW's weight decay; much, because few demonstrations must do for unseen tasks."
    )
    grad_clip: float = Field(1.0, gt=0, description="Largest norm of the gradient.")
    max_tokens_per_micro_batch: int = Field(2048, ge=1, description="Tokens in one forward and backward pass at most.")


class WarmStartSection(SupervisedSection):
    """Supervised steps before PPO; a model from scratch knows no words yet."""

    enable: bool | None = Field(
        None, description="Do the warm start; null does it for `model.path=tiny` and not for a model that can talk."
    )
    careless_steps: int = Field(
        60,
        ge=0,
        description="More steps at the end on careless demonstrations: the policy keeps what it can do, and gets a "
        "habit of not doing it, for PPO to break.",
    )
    careless_rate: float = Field(0.85, ge=0, lt=1, description="Share of blunders in those; they are imitated.")
    careless_lr: float = Field(2e-4, gt=0, description="Learning rate of those steps.")


class VLLMSection(Section):
    """Of `engine.name=vllm`: a vLLM server, started by the run or running already. See docs/engines.md."""

    python: str | None = Field(
        None,
        min_length=1,
        description="Python that has vLLM, for example .venv-vllm/bin/python (`make venv-vllm`); null is the one that "
        "runs the trainer.",
    )
    base_url: Addresses | None = Field(
        None,
        description="Address of a `vllm serve` that runs already, for example http://127.0.0.1:8000; several are "
        "replicas; null starts a server.",
    )
    transport: Literal["http", "local"] = Field(
        "http",
        description="How weights travel to `base_url`: by value over HTTP, or on this machine (CUDA IPC on the same "
        "GPU, else through a file).",
    )
    update_folder: str | None = Field(
        None, description="Folder of the files of `transport=local`; null is shared memory."
    )
    health_timeout_s: float = Field(5.0, gt=0, description="Seconds that `base_url` may take to say that it lives.")
    stall_timeout_s: float = Field(
        60.0, gt=0, description="Seconds without a token, after which `base_url` must show that it computes."
    )
    gpu_memory_utilization: float = Field(
        0.5, gt=0, le=1, description="Share of the GPU's memory that vLLM takes, weights included."
    )
    kv_cache_gib: float | None = Field(
        None, gt=0, description="GiB of keys and values; null is what the share leaves on a GPU, and 1 on a CPU."
    )
    block_size: int | None = Field(
        None,
        ge=1,
        description="Tokens of a block, the unit of prefix reuse; null is vLLM's choice (on a CPU "
        "128; others are multiples of 32 there).",
    )
    enforce_eager: bool | None = Field(
        None, description="Neither compile nor capture graphs; null does on a GPU and not on a CPU."
    )
    sleep_mode: bool = Field(
        False, description="Give the GPU's memory back while the learner learns, where they share GPUs."
    )
    start_timeout_s: float = Field(600.0, gt=0, description="Seconds until the server must be ready.")
    args: dict[str, Any] = Field(
        default_factory=dict,
        description="More engine arguments of vLLM, under its own names; `engine.vllm.args.NAME=value` sets one.",
    )


class SGLangSection(Section):
    """Of `engine.name=sglang`: an SGLang server, started by the run or running already. See docs/engines.md."""

    python: str | None = Field(
        None,
        min_length=1,
        description="Python that has SGLang, for example .venv-sglang/bin/python (`make venv-sglang`); null is the one "
        "that runs the trainer.",
    )
    base_url: Addresses | None = Field(
        None,
        description="Address of a server that runs already, for example http://127.0.0.1:30000; several are replicas; "
        "null starts one.",
    )
    seeds: bool = Field(
        True,
        description="Start the server in deterministic mode: it honours seeds, is slower on a GPU and has no `min_p`.",
    )
    transport: Literal["tensor", "disk", "distributed"] = Field(
        "tensor",
        description="How weights travel: by value over HTTP, through a folder that both sides see, or through a "
        "process group (gloo; NCCL on CUDA).",
    )
    bucket_mib: int = Field(256, ge=1, description="MiB of weights in one message of `tensor` and `distributed`.")
    update_folder: str | None = Field(None, description="Folder of `transport=disk`; null is a temporary one.")
    master_address: str = Field(
        "127.0.0.1", description="This machine's address as the server sees it; for `transport=distributed`."
    )
    verify: bool = Field(True, description="Compare the server's checksums with the weights after every update.")
    start_timeout_s: float = Field(600.0, gt=0, description="Seconds that the server may take to start.")
    health_timeout_s: float = Field(5.0, gt=0, description="Seconds that the server may take to say that it lives.")
    stall_timeout_s: float = Field(
        60.0, gt=0, description="Seconds in which no request ends, after which the server must show that it computes."
    )
    server_args: tuple[str, ...] = Field(
        (), description="More words of the server's command line, for example `[--mem-fraction-static, '0.6']`."
    )


class ServingSection(Section):
    """What generates."""

    name: Literal["torch", "vllm", "sglang", "openai"] = Field(
        "torch",
        description="`torch`: embedded, continuous batching. `vllm`, `sglang`: such a server beside the run. `openai` "
        "has no token ids and is refused here; `textenvs evaluate` uses such services.",
    )
    replicas: int = Field(
        1,
        ge=1,
        description="Engines side by side, each with a copy of the weights and a thread or servers of its own; a lost "
        "one is replaced. Several addresses in `base_url` are so many replicas without this.",
    )
    max_slots: int = Field(128, ge=1, description="Requests decoded at a time (in each replica); more wait.")
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of the engine; null is one for a model below 5 million parameters, which more only "
        "slow down, and torch's choice for others.",
    )
    vllm: VLLMSection = VLLMSection()
    sglang: SGLangSection = SGLangSection()

    @property
    def base_urls(self) -> tuple[str, ...]:
        """The servers that run already, where such are used."""
        return {"vllm": self.vllm.base_url, "sglang": self.sglang.base_url}.get(self.name) or ()

    @property
    def engines(self) -> int:
        """How many there are: one for each server that runs already, else ``replicas``."""
        return len(self.base_urls) or self.replicas


class EngineSection(ServingSection):
    """What generates."""

    max_context: int = Field(512, ge=16, description="Longest conversation in tokens, reply included.")


class RolloutSection(Section):
    """Collecting episodes."""

    groups_per_batch: int = Field(16, ge=1, description="Tasks an iteration trains on.")
    n: int = Field(8, ge=1, description="Episodes of each task (a group).")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature; the learner uses it too.")
    top_p: float = Field(1.0, gt=0, le=1, description="Sample from the smallest set with this probability; 1 is all.")
    top_k: int = Field(0, ge=0, description="Sample from the k likeliest tokens; 0 is all.")
    min_p: Fraction = Field(0.0, description="Leave out tokens below this times the likeliest one's probability.")
    max_response_length: int = Field(64, ge=1, description="Tokens a reply has at most (each turn).")
    max_response_tokens: int | None = Field(
        None,
        ge=1,
        description="An episode ends when it has so many tokens after its opening, those of the environment included; "
        "null is as many as `engine.max_context` has room for.",
    )
    staleness: int = Field(
        0,
        ge=0,
        description="How many versions older than the trained weights a token may be (η); 0 is on-policy.",
    )
    window: int = Field(
        1, ge=1, description="A group may be overtaken by one less than so many later ones; 1 is strict order."
    )
    oversampling_factor: float = Field(
        1.0,
        ge=1,
        description="Play so many times the groups that a batch needs, train on the first complete ones, and cancel "
        "what gets too old. Sooner batches, wasted work, and shorter episodes than those played.",
    )
    max_running: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        None,
        description="Episodes in flight at most; null is as staleness allows, `auto` looks for as many as the engine "
        "serves without a queue or preemptions.",
    )
    update_mode: Literal["keep", "wait", "abort"] = Field(
        "keep", description="Requests in flight at a weight update go on with the new weights, finish first, or end."
    )
    partial: bool = Field(
        False,
        description="With `update_mode=abort`: replies that an update cuts go on from their tokens under the new "
        "weights; otherwise their episodes start anew.",
    )
    partial_max_age: int | None = Field(
        None,
        ge=0,
        description="With `partial`: an episode whose oldest token is more versions old than this starts anew.",
    )
    retries: int = Field(1, ge=0, description="How often a failed episode is played again.")
    filter_zero_variance: bool = Field(False, description="Replace groups whose episodes all earned the same.")
    max_consecutive_filtered: int = Field(64, ge=0, description="Stop after more such groups than this in a row.")
    max_consecutive_errors: int = Field(32, ge=1, description="Stop after so many failed episodes in a row.")
    step_timeout_s: float = Field(60.0, gt=0, description="Seconds that a reset or a step may take.")
    generation_timeout_s: float = Field(300.0, gt=0, description="Seconds that a reply may take.")
    episode_timeout_s: float = Field(900.0, gt=0, description="Seconds that an episode may take.")


class ValidationSection(Section):
    """How validation samples."""

    n: int = Field(1, ge=1, description="Episodes a task.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="As `rollout.top_p`.")


class KLControlSection(Section):
    """The weight of the KL penalty in the reward."""

    type: Literal["fixed", "adaptive"] = Field("fixed", description="`adaptive` steers the weight towards `target_kl`.")
    kl_coef: float = Field(0.001, ge=0, description="Weight, or where an adaptive one starts.")
    horizon: float = Field(10000.0, gt=0, description="Episodes over which an adaptive weight reacts.")
    target_kl: float = Field(0.1, gt=0, description="KL that an adaptive weight aims at.")


class AlgorithmSection(Section):
    """From rewards to advantages."""

    adv_estimator: Estimator = Field(
        "turn_grpo",
        description="`gae`, `turn_gae` and `bilevel_gae` train a critic; `reinforce_pp` compares with the batch, "
        "`remax` with a greedy episode of each task (one more to play); the others compare the episodes of a group.",
    )
    gamma: Fraction = Field(
        1.0,
        description="Discount: a token for `gae`, `bilevel_gae` and `reinforce_pp`, a turn for `turn_gae`, `turn_grpo` "
        "and `gigpo`.",
    )
    lam: Fraction = Field(1.0, description="λ of the estimators with a critic; 1 is Monte Carlo.")
    turn_gamma: Fraction = Field(0.99, description="Of `bilevel_gae`: discount a turn.")
    turn_lam: Fraction = Field(1.0, description="Of `bilevel_gae`: λ over turns.")
    norm_adv: bool = Field(True, description="Scale the batch's advantages to mean 0 and variance 1.")
    norm_by_std: bool | None = Field(
        None,
        description="Divide by the group's deviation; null is the estimator's habit: `grpo` and `gigpo` yes, "
        "`turn_grpo` no.",
    )
    baseline: Literal["group", "mixed"] = Field(
        "mixed",
        description="Of `rloo` and `turn_grpo`: the group's other episodes, or half those and half the batch's.",
    )
    zero_pad: bool = Field(False, description="Of `turn_grpo`: episodes over before a turn count there, with 0.")
    outcome_mix: Fraction = Field(0.0, description="Of `turn_grpo`: the share of the whole episode's advantage.")
    step_weight: float = Field(1.0, ge=0, description="Of `gigpo`: weight of the comparison of turns (ω).")
    anchor: Literal["observation", "history"] = Field(
        "observation",
        description="Of `gigpo`: turns began in the same state when the last observation was the same, or the whole "
        "conversation.",
    )
    truncated: Literal["count", "drop"] = Field(
        "count", description="Without a critic, episodes cut by a budget count as they are, or are left out."
    )
    reward_credit: str = Field(
        "as_earned",
        min_length=1,
        description="Which turns are paid for what an episode earned: `as_earned`, all to the `last` turn, `spread` "
        "over all turns, `discounted` back to the turns before, or `FILE.py:FUNCTION` of your own. See docs/credit.md.",
    )
    reward_credit_decay: Fraction = Field(
        0.9, description="Of `reward_credit=discounted`: what a turn gets of the next one's share."
    )
    use_kl_in_reward: bool = Field(False, description="Take the KL to the reference from each token's reward.")
    kl_penalty: KLEstimate = Field("k1", description="Its estimate; `k1` is unbiased; `low_var_kl` is `k3`.")
    kl_ctrl: KLControlSection = KLControlSection()


class ActorSection(Section):
    """Training the policy."""

    lr: float = Field(1e-4, gt=0, description="Learning rate.")
    lr_warmup_steps: int = Field(10, ge=0, description="Optimizer steps of linear rise to `lr`.")
    lr_schedule: Literal["constant", "cosine"] = Field(
        "cosine", description="After the warm-up: stay at `lr`, or fall to a tenth of it by the last iteration."
    )
    betas: tuple[DecayRate, DecayRate] = Field((0.9, 0.95), description="AdamW's decay rates of the two moments.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay.")
    grad_clip: float = Field(1.0, gt=0, description="Largest norm of the gradient.")
    ppo_epochs: int = Field(1, ge=1, description="Passes over the batch.")
    mini_batches: int = Field(2, ge=1, description="Optimizer steps a pass.")
    max_tokens_per_micro_batch: int = Field(2048, ge=1, description="Tokens in one forward and backward pass at most.")
    policy_loss: Literal["ppo", "gspo", "gspo_token", "cispo"] = Field(
        "ppo",
        description="`ppo` clips the ratio of each token, `gspo` that of the whole episode (`gspo_token` with each "
        "token's own advantage), `cispo` clips it as a weight and keeps the gradient.",
    )
    clip_ratio_low: Fraction = Field(
        0.2, description="The ratio is clipped at 1 minus this; 1 is no limit. For `gspo` about 0.0003."
    )
    clip_ratio_high: float = Field(
        0.28, ge=0, description="The ratio is clipped at 1 plus this. For `gspo` about 0.0004."
    )
    clip_ratio_c: float | None = Field(
        None,
        gt=1,
        description="Dual clip of `ppo`: with a negative advantage the ratio counts up to this; null is no limit.",
    )
    old_logprobs: Literal["rollout", "recompute"] = Field(
        "rollout",
        description="What the loss's ratio starts from: the log-probabilities the engine sampled with, or the "
        "learner's own before the first step.",
    )
    importance_correction: Literal["none", "token_tis", "sequence_tis", "decoupled"] = Field(
        "none",
        description="With `old_logprobs=recompute`: weigh losses by the ratio of learner to engine, of each token or "
        "of the whole episode, truncated at `tis_cap`; `decoupled` drops tokens beyond it instead.",
    )
    tis_cap: float | None = Field(2.0, gt=0, description="The greatest such weight; null is no limit.")
    rejection: Literal["none", "token", "sequence", "geometric"] = Field(
        "none",
        description="With `old_logprobs=recompute`: leave out tokens, or whole episodes, whose ratio of learner to "
        "engine (the token's, the episode's product, or its geometric mean) is outside the band.",
    )
    rejection_low: Fraction = Field(0.5, description="Lower end of that band.")
    rejection_high: float = Field(5.0, ge=1, description="Upper end of that band.")
    loss_agg_mode: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = (
        Field("token-mean", description="How token losses become one; always over the global batch.")
    )
    entropy_coeff: float = Field(0.01, ge=0, description="Weight of the entropy bonus.")
    use_kl_loss: bool = Field(False, description="Add the KL to the reference to the loss.")
    kl_loss_coef: float = Field(0.001, ge=0, description="Its weight.")
    kl_loss_type: KLEstimate = Field("k3", description="Its estimate.")


class CriticSection(Section):
    """Training the value function; only for `gae`, `turn_gae` and `bilevel_gae`."""

    lr: float = Field(1e-3, gt=0, description="Learning rate.")
    lr_warmup_steps: int = Field(0, ge=0, description="Optimizer steps of linear rise to `lr`.")
    betas: tuple[DecayRate, DecayRate] = Field((0.9, 0.999), description="AdamW's decay rates of the two moments.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay.")
    grad_clip: float = Field(1.0, gt=0, description="Largest norm of the gradient.")
    cliprange_value: float | None = Field(0.5, gt=0, description="Values move this far an update; null is no limit.")
    warmup: int = Field(0, ge=0, description="Iterations at the start that train the critic alone.")


class RunSection(Section):
    """The run."""

    seed: int = Field(0, ge=0, description="Decides weights, tasks, sampling and order.")
    project_name: str = Field("textenvs", min_length=1, description="Names the folder above the run.")
    experiment_name: str = Field("run", min_length=1, description="Names the run.")
    default_local_dir: str | None = Field(
        None, description="Folder of the run; null is outputs/`project_name`/`experiment_name`."
    )
    logger: Loggers = Field(("console", "jsonl", "tensorboard"), description="Where metrics go.")
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of torch; null is one for a model below 5 million parameters, which more only slow "
        "down, and torch's choice for others.",
    )
    fsdp: Literal["auto", "always", "never"] = Field(
        "auto", description="Shard the model with FSDP2; `auto` does with more than one process."
    )
    fsdp_size: int | None = Field(
        None, ge=1, description="Shard over so many ranks, and keep copies beyond them (HSDP); null is all ranks."
    )
    tensor_parallel_size: int = Field(1, ge=1, description="Ranks that share each matrix; divides the model's heads.")
    ulysses_sequence_parallel_size: int = Field(
        1, ge=1, description="Ranks that share each sequence; divides the model's heads."
    )
    offload: bool = Field(
        False, description="Keep parameters, gradients and optimizer states on the CPU between uses; for cuda."
    )
    use_torch_compile: bool = Field(False, description="Compile the learner's layers with torch.compile.")
    peak_tflops: float | None = Field(
        None, gt=0, description="The device's peak in TFLOP/s, for `mfu`; null is its data sheet's, where known."
    )


class TrainerSection(RunSection):
    """The run: how long, what it writes, where it starts."""

    total_iterations: int = Field(120, ge=1, description="Batches to train on.")
    time_limit_s: float | None = Field(None, gt=0, description="Stop after so many seconds of training, if earlier.")
    val_before_train: bool = Field(True, description="Validate before the first iteration.")
    val_only: bool = Field(False, description="Validate the policy (that of a checkpoint, if resumed), and stop.")
    test_freq: Frequency = Field(20, description="Validate every so many iterations; -1 only at the end.")
    save_freq: Frequency = Field(50, description="Save a checkpoint every so many iterations; -1 only at the end.")
    keep_last_n: int = Field(2, ge=1, description="Checkpoints to keep.")
    async_save: bool = Field(
        False, description="Write checkpoints in the background, from a copy on the CPU, while training goes on."
    )
    resume_mode: Literal["auto", "disable", "resume_path"] = Field(
        "auto", description="Go on from the run's last checkpoint if there is one, start afresh, or from a given one."
    )
    resume_from_path: str | None = Field(None, description="The checkpoint that `resume_mode=resume_path` means.")
    trace_file: str | None = Field(
        None,
        description="Write a trace of episodes and phases here (.json), for ui.perfetto.dev or chrome://tracing.",
    )
    profile_steps: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (),
        description="Profile these iterations with torch's profiler; a Chrome trace each, in the run's folder. Or with "
        "Nsight: see `cluster.nsight`.",
    )
    rollout_data_dir: str | None = Field(None, description="Write every training batch here, as Parquet.")
    validation_data_dir: str | None = Field(None, description="Write every validation here, as Parquet.")


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


class MultiturnRewardSection(Section):
    """Rewards each turn by the conversations that it leads to, as CollabLLM does. See docs/lookahead.md.

    After each turn the episode is forked, and the policy plays some turns more in each fork, beside the episodes that
    go on. Only training episodes are rewarded so; it needs `env.backend=inline`.
    """

    enable: bool = Field(False, description="Look ahead.")
    samples: int = Field(3, ge=1, description="Futures a turn.")
    window: int = Field(2, ge=0, description="Turns that the policy has in each; 0 scores conversations as they stand.")
    formula: Literal["textenvs", "linear", "paper", "repository", "recipe"] = Field(
        "textenvs", description="What a conversation is worth; they differ in what its length costs."
    )
    cost: float | None = Field(None, ge=0, description="The price of a word or token, in place of the formula's.")
    weights: dict[str, float] = Field(
        default_factory=dict, description="Weights of the task's scores and of `interactivity`, by name; 1 for others."
    )
    judge: str | None = Field(
        None, min_length=1, description="`MODULE:NAME` of a function from a conversation to a grade (interactivity)."
    )
    judge_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="With these, `judge` names what makes that function of them: "
        "`textenvs.judges:InteractivityJudge` and `{model: {model: NAME, base_url: URL}}`.",
    )
    credit: Literal["value", "difference"] = Field(
        "value",
        description="`value`: a turn's reward is what the whole conversation is then worth, which needs "
        "`algorithm.gamma=0` over turns. `difference`: what the turn changed in that, for all estimators.",
    )
    replace: bool = Field(True, description="What the environment pays does not count then; false adds the two.")
    temperature: float | None = Field(None, ge=0, description="Of the futures; null is `rollout.temperature`.")
    max_response_length: int | None = Field(
        None, ge=1, description="Tokens of a reply in the futures; null is `rollout.max_response_length`."
    )
    concurrency: int | None = Field(None, ge=1, description="Futures at a time; null is all that there are.")
    timeout_s: float | None = Field(600.0, gt=0, description="Seconds that a future may take; null has no limit.")


class ClusterSection(Section):
    """Where the run's parts are. See docs/cluster.md."""

    backend: Literal["local", "ray"] = Field(
        "local",
        description="`local`: one process, and one more for each learner rank where there are several. `ray`: learner "
        "ranks and engines are Ray actors.",
    )
    nnodes: int = Field(1, ge=1, description="Machines; more than one needs `backend=ray`.")
    n_gpus_per_node: int | None = Field(
        None,
        ge=0,
        description="GPUs to use of each machine; null is what torch sees here.",
    )
    learner_ranks: int = Field(1, ge=1, description="Processes that train, with a GPU each where there are GPUs.")
    colocate: bool = Field(
        True, description="Engines share GPUs (or, on Ray, the places) of the learner; otherwise they have their own."
    )
    cpus_per_actor: int = Field(1, ge=1, description="With Ray: CPUs that a learner rank and an engine take each.")
    cpus_per_env: float = Field(
        0.0, ge=0, description="With `env.backend=ray`: CPUs that an environment takes; 0 does not count them."
    )
    bucket_mib: int = Field(256, ge=1, description="With Ray: MiB of weights that travel as one object.")
    nsight: dict[str, Any] = Field(
        default_factory=dict,
        description="With Ray: options of Nsight Systems (`nsys profile`), under which learner ranks then run; "
        "`cluster.nsight.NAME=value` sets one. With `capture-range=cudaProfilerApi`, the iterations of "
        "`trainer.profile_steps` are captured.",
    )
    silence_s: float = Field(
        30.0, gt=0, description="Seconds without a sign of life after which a learner rank is taken to be lost."
    )
    stall_s: float = Field(
        300.0, gt=0, description="Seconds that a learner rank may stand at one place before the run gives up."
    )
    start_timeout_s: float = Field(300.0, gt=0, description="Seconds that actors and ranks may take to start.")


class RayInitSection(Section):
    """Ray itself; for `cluster.backend=ray` and `env.backend=ray`."""

    address: str | None = Field(
        None,
        description="Cluster to join, `auto` for the one of this machine; null is what RAY_ADDRESS says, and else a "
        "Ray of the run's own.",
    )
    num_cpus: int | None = Field(
        None,
        ge=1,
        description="CPUs of a Ray of the run's own (under SLURM, those of the allocation); null is what the machine "
        "has, or what the run needs, where that is more.",
    )
    timeline_json_file: str | None = Field(
        None, description="Write Ray's timeline here at the end, for ui.perfetto.dev or chrome://tracing."
    )


class RunConfig(Section):
    """What all runs have; subclasses add sections, and checks across them."""

    def checks(self) -> Iterator[tuple[str, str]]:
        """What does not go together: pairs of a key and what is wrong, in words."""
        return iter(())

    @model_validator(mode="after")
    def _goes_together(self) -> RunConfig:
        if conflicts := list(self.checks()):
            raise ConflictError(conflicts)
        return self


class PPOConfig(RunConfig):
    """Configuration of `python -m trainers.ppo`."""

    env: PlayedEnvSection = PlayedEnvSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    warm_start: WarmStartSection = WarmStartSection()
    engine: EngineSection = EngineSection()
    rollout: RolloutSection = RolloutSection()
    validation: ValidationSection = ValidationSection()
    custom_reward_function: EpisodeRewardFunctionSection = EpisodeRewardFunctionSection()
    multiturn_reward: MultiturnRewardSection = MultiturnRewardSection()
    reward_model: RewardModelSection = RewardModelSection()
    reward_models: Annotated[dict[str, RewardModelSection], BeforeValidator(named)] = Field(
        default_factory=dict,
        description="More reward models, each by a name that is its term's; `reward_models.NAME.kind=judge` and so on, "
        "with the keys of `reward_model` (`enable` is true, and `name` is NAME). What all of them pay adds up.",
    )
    algorithm: AlgorithmSection = AlgorithmSection()
    actor: ActorSection = ActorSection()
    critic: CriticSection = CriticSection()
    trainer: TrainerSection = TrainerSection()
    cluster: ClusterSection = ClusterSection()
    ray_init: RayInitSection = RayInitSection()

    def checks(self) -> Iterator[tuple[str, str]]:
        """What does not go together: pairs of a key and what is wrong, in words."""
        return ppo_checks(self)


class SFTSection(SupervisedSection):
    """Supervised training as a run of its own."""

    max_context: int = Field(512, ge=16, description="Positions of a `tiny` model.")


class SFTConfig(RunConfig):
    """Configuration of `python -m trainers.sft`."""

    env: EnvSection = EnvSection()
    data: TrainDataSection = TrainDataSection()
    model: ModelSection = ModelSection()
    sft: SFTSection = SFTSection()
    trainer: RunSection = RunSection()

    def checks(self) -> Iterator[tuple[str, str]]:
        """What does not go together: pairs of a key and what is wrong, in words."""
        yield from template_checks(self.data.chat_template_kwargs)
        yield from model_checks(self.model)
        yield from learner_checks(self.model, self.trainer)
        if self.model.lora_publish != "merged":
            yield "model.lora_publish", "has no effect here: supervised training publishes to no engine"
