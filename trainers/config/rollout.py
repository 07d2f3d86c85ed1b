"""The sections of episodes: environments and their tasks, collection, and validation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..section import ConflictError, Fraction, Names, Problems, Section
from .engine import MIN_TEMPERATURE, VLLM_MIN_TEMPERATURE


class OneEnvSection(Section):
    """An environment."""

    id: str = "textenv/gsm8k-interact"
    """Gymnasium id of the environment; `module:id` first imports your own module, which registers it."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment; `env.kwargs.NAME=value` sets one."""


class ShownComponentSection(OneEnvSection):
    """A component of a mixture, whose expert is imitated."""

    weight: float = Field(1.0, gt=0)
    """Weight of its share of groups (in a warm start: of demonstrations), relative to the other components'."""


class ComponentSection(ShownComponentSection):
    """A component of a mixture."""

    val_kwargs: dict[str, Any] = Field(default_factory=dict)
    """As `env.val_kwargs`."""
    success_reward: float | None = None
    """Minimum reward of an episode that counts as a success to `env.curriculum`; null counts those that the environment
    calls solved."""


class CurriculumSection(Section):
    """Choice of the tasks that groups play next."""

    kind: Literal["fixed", "signal"] = "fixed"
    """`fixed`: components of `env.mixture` by their weights. `signal`: by the weights times an estimate of 4p(1-p), p
    being the probability of success at a task; tasks of a finite set that had no signal are mostly skipped."""
    floor: float = Field(0.1, gt=0, le=1)
    """With `kind=signal`: share of groups that are distributed by the weights alone, so that no component starves."""
    memory: int = Field(32, ge=1, description="Approximate number of a component's last groups that its estimates use.")
    reverse_share: float = Field(0.0, ge=0, lt=1)
    """Share of groups that begin in the middle of an episode, in a state that a successful one reached: at first one
    reply before its end, then earlier. Environments must replay exactly from seed and replies."""


_MIXTURE = """Several environments, or levels of one, instead of `env.id` and `env.kwargs`: each with a NAME of
yours, `env.mixture.NAME.id=ID` and `env.mixture.NAME.kwargs.level=hard` (defaults as `env.id` and `env.kwargs`), and
`env.mixture.NAME.weight=2`, its share relative to the others' (default 1)"""


class EnvSection(OneEnvSection):
    """The environment, or several."""

    mixture: dict[str, ShownComponentSection] = Field(default_factory=dict, description=f"{_MIXTURE}.")


class PlayedEnvSection(OneEnvSection):
    """The environment, or several, and their execution."""

    val_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments for validation only, merged over `env.kwargs`. If the environment has an option `split`, and neither it
    nor `tasks` is set here, it is `test`."""
    mixture: dict[str, ComponentSection] = Field(
        default_factory=dict,
        description=f"""{_MIXTURE}; `val_kwargs` as `env.val_kwargs`; `success_reward`, the minimum reward to
        count as a success to `env.curriculum` (default: the environment calls it solved). Metrics are reported for
        each.""",
    )
    curriculum: CurriculumSection = CurriculumSection()
    train_side: Literal["policy", "user", "both"] = "policy"
    """Side to train: the assistant (`policy`); its `user`, with a fixed assistant; or `both`, one model that plays both
    sides of each episode. The environment must have a user that a language model can play."""
    assistant: dict[str, Any] = Field(default_factory=dict)
    """With `train_side=user`: the model of the fixed assistant, in the form of `env.kwargs.user`
    (`env.assistant.model=FOLDER`, `env.assistant.base_url=ADDRESS`); if empty, the environment's scripted expert."""
    user: dict[str, Any] = Field(default_factory=dict)
    """With `train_side` `user` or `both`: options of the trained user, such as `prompt`, `tries`, `persona`; options of
    a service are not allowed, because the trained model plays it."""
    user_reward: Literal["shared", "opposed"] = "shared"
    """Reward of a user's message: the reward of the assistant's turn that it answers, and of later turns that no
    message answers (`shared`); or the negative of these (`opposed`)."""
    refused_cost: float = Field(1.0, ge=0)
    """Cost of each user's message that is refused because it discloses what it must not, is empty or was cut off."""
    frozen: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """In an environment of several roles: those that are not trained, with the model that plays each, in the form of
    `env.kwargs.user` (`env.frozen.player-1.model=FOLDER` for a checkpoint's folder `model`, or a service's `model` and
    `base_url`)."""
    backend: Literal["inline", "thread", "process", "ray"] = "inline"
    """Execution of environments: in the collector's event loop, in threads (for those that block), in processes (for
    those that may hang or crash), or in Ray actors (on the machines of a cluster)."""
    workers: int | None = Field(None, ge=1, le=2**20)
    """Maximum environments that step concurrently, over all components (each keeps its own idle ones); null is as many
    as episodes (one per CPU for processes); `backend=ray` needs a number."""


class TrainDataSection(Section):
    """The tasks."""

    train_files: Names | None = None
    """Tasks to train on: .jsonl or .parquet files, `generated:LEVEL`, `hub:REPOSITORY`, or a list of these; null is
    the environment's own."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the tokenizer's chat template, in every rendering; `data.chat_template_kwargs.NAME=value` sets one
    (`enable_thinking=false` of Qwen3). One that the template never reads is an error."""


class DataSection(TrainDataSection):
    """The tasks, to train and to validate on."""

    val_files: Names | None = None
    """Tasks to validate on, in the form of `train_files`; null is the environment's own: those of its split `test`, or
    without splits those after `train_size`, or else those of training."""
    train_size: int | None = Field(None, ge=1)
    """Number of training tasks, taken from the first; in a mixture, of each component; null is all."""
    val_size: int = Field(256, ge=1, le=2**20)
    """Number of validation tasks, taken from the first; in a mixture, of each component."""
    shuffle: bool = Field(True, description="Shuffle the training tasks in every epoch.")
    filter_overlong_prompts: bool = False
    """Drop tasks whose opening is longer than `longest_prompt`, among those that `train_size` and `val_size` select.
    Before a run starts or resumes, each task is reset and rendered once, which is slow with many tasks; the rest keep
    their order. Not for endless tasks."""
    longest_prompt: int | None = Field(None, ge=1)
    """With `filter_overlong_prompts`: maximum tokens of an opening; null leaves room for a whole reply,
    `engine.max_context` - `rollout.max_response_length`."""


class RolloutSection(Section):
    """Collection of episodes."""

    groups_per_batch: int = Field(16, ge=1, le=2**16, description="Tasks (groups) per iteration.")
    n: int = Field(8, ge=1, le=2**16, description="Episodes of each task (a group).")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature; the learner uses it too.")
    top_p: float = Field(1.0, gt=0, le=1, description="Sample from the smallest set with this probability; 1 is all.")
    top_k: int = Field(0, ge=0, description="Sample from the k likeliest tokens; 0 is all.")
    min_p: Fraction = Field(0.0, description="Drop tokens below this times the likeliest one's probability.")
    keep_sampling_mask: bool = False
    """With `top_k` from 1 to 1024 (and `top_p`, `min_p`) and `engine.name=torch`: record the tokens that the cuts
    leave, and train the policy over those; otherwise cuts are not corrected."""
    max_response_length: int = Field(64, ge=1)
    """Maximum tokens of a reply (of each turn); the default for a given language model is 256."""
    cut_reply_penalty: float = Field(0.0, ge=0)
    """Penalty of a turn whose reply reached that limit before its end: the term `cut_reply`, in training only. Without
    it, a reply beyond the limit can earn as much as one that ends."""
    max_response_tokens: int | None = Field(None, ge=1)
    """Maximum tokens of an episode after its opening, those of the environment included; then it ends. Where it has
    several contexts, none of them may be longer than the opening and this. null is as many as `engine.max_context` has
    room for."""
    staleness: int = Field(0, ge=0, le=1024)
    """Maximum age of a token's weights, in versions behind the trained ones (η); 0 is on-policy."""
    window: int = Field(1, ge=1)
    """A group may be overtaken by at most `window` - 1 later ones; 1 is strict order."""
    oversampling_factor: float = Field(1.0, ge=1, le=1000)
    """Ratio of groups played to groups of a batch: train on the first complete ones, and cancel those that get too old.
    Batches are ready sooner, work is wasted, and training episodes are shorter than those played."""
    max_running: Annotated[int, Field(ge=1, le=2**20)] | Literal["auto"] | None = None
    """Maximum episodes in flight, validation's included; null is as many as staleness allows in training; `auto`
    searches for the number that the engine serves without a queue or preemptions."""
    update_mode: Literal["keep", "wait", "abort"] = "keep"
    """Requests in flight at a weight update continue with the new weights, finish first (`wait`), or end (`abort`)."""
    partial: bool = False
    """With `update_mode=abort`: replies that an update cuts continue from their tokens under the new weights; otherwise
    their episodes restart."""
    partial_max_age: int | None = Field(None, ge=0)
    """With `partial`: restart an episode whose oldest token is more versions old than this."""
    retries: int = Field(1, ge=0, description="Retries of a failed episode.")
    filter_zero_variance: bool = Field(False, description="Replace groups whose episodes all have the same reward.")
    filter_variance_top_p: float = Field(1.0, gt=0, le=1)
    """Train on the groups of a batch whose rewards vary most: the fewest that have this share of the sum of the groups'
    standard deviations (RAGEN-2's is 0.9). The others are dropped and not replaced; 1 keeps all."""
    max_consecutive_filtered: int = Field(64, ge=0)
    """Stop after more groups in a row than this without a difference in reward: replaced ones, or those of batches that
    have no others."""
    max_consecutive_errors: int = Field(32, ge=1, description="Stop after this many failed episodes in a row.")
    step_timeout_s: float = Field(60.0, gt=0, description="Seconds that a reset or a step may take.")
    generation_timeout_s: float | None = Field(
        300.0, gt=0, description="Seconds that a reply may take; null is no limit."
    )
    episode_timeout_s: float | None = Field(
        900.0, gt=0, description="Seconds that an episode may take, once it has its environment; null is no limit."
    )

    @model_validator(mode="after")
    def _window_leaves_batch(self) -> RolloutSection:
        most = self.staleness * self.groups_per_batch + 1
        if self.window > most:  # or no batch would ever be complete
            text = f"rollout.staleness={self.staleness} and rollout.groups_per_batch={self.groups_per_batch}"
            raise ConflictError([("rollout.window", f"is {self.window}; with {text} it is at most {most}")])
        return self


#: Maximum tokens of a sampling mask, for each sampled token.
LARGEST_MASK = 1024


def sampling_mask_checks(rollout: RolloutSection, engine: str) -> Problems:
    """Check the engine and the size of the sampling mask."""
    if not rollout.keep_sampling_mask:
        return
    if engine != "torch":
        yield (
            "rollout.keep_sampling_mask",
            f"needs engine.name=torch: the server behind engine.name={engine} does not report which tokens its cuts "
            "left. Sample without cuts there (top_p=1, top_k=0, min_p=0)",
        )
    if not 1 <= rollout.top_k <= LARGEST_MASK:
        yield (
            "rollout.top_k",
            f"is {rollout.top_k}; rollout.keep_sampling_mask=true needs it from 1 to {LARGEST_MASK}: what top_p and "
            "min_p alone leave may be as large as the vocabulary, for every token",
        )


class ValidationSection(Section):
    """Sampling of validation."""

    n: int = Field(1, ge=1, le=2**16, description="Episodes per task.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="As `rollout.top_p`.")


def temperature_checks(
    rollout: RolloutSection, validation: ValidationSection, futures: float | None, engine: str
) -> Problems:
    """Check temperatures that the engine would refuse; ``futures`` is ``multiturn_reward.temperature``, if enabled."""
    least = VLLM_MIN_TEMPERATURE if engine == "vllm" else MIN_TEMPERATURE
    temperatures = {
        "rollout": rollout.temperature,
        "validation": validation.temperature,
        "multiturn_reward": futures or 0.0,
    }
    for section, temperature in temperatures.items():
        if 0 < temperature < least:
            zero = "" if section == "rollout" else ", or 0, which is greedy"
            text = f"is {temperature}; with engine.name={engine} it is at least {least}{zero}"
            yield f"{section}.temperature", text
