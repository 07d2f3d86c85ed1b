"""The sections of what is played: environments and their tasks, collecting, and validation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ..engines.base import MIN_TEMPERATURE
from ..engines.vllm.options import MIN_TEMPERATURE as VLLM_MIN_TEMPERATURE
from .section import Fraction, Names, Problems, Section


class OneEnvSection(Section):
    """An environment."""

    id: str = "textenv/gsm8k-interact"
    """Gymnasium id of the environment; `module:id` imports the module of your own that registers it."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment; `env.kwargs.NAME=value` sets one."""


class ShownComponentSection(OneEnvSection):
    """A component of a mixture, to imitate its expert."""

    weight: float = Field(1.0, gt=0)
    """How many groups (of a warm start: demonstrations) are its, relative to the weights of the others."""


class ComponentSection(ShownComponentSection):
    """A component of a mixture."""

    val_kwargs: dict[str, Any] = Field(default_factory=dict)
    """As `env.val_kwargs`."""
    success_reward: float | None = None
    """An episode that earned at least this counts as a success to `env.curriculum`; null counts those that the
    environment calls solved."""


class CurriculumSection(Section):
    """What groups play next."""

    kind: Literal["fixed", "signal"] = "fixed"
    """`fixed`: components of `env.mixture` by their weights. `signal`: by the weights times an estimate of 4p(1-p), p
    being the chance of success at a task; tasks of a finite set that had no signal are passed over, mostly."""
    floor: float = Field(0.1, gt=0, le=1)
    """With `kind=signal`: this part of the groups is given by the weights alone, so that no component starves."""
    memory: int = Field(32, ge=1, description="Groups of a component that its estimates go back, about.")
    reverse_share: float = Field(0.0, ge=0, lt=1)
    """Share of groups that begin in the middle of an episode, in a state that a successful one reached before: a reply
    before its end at first, then earlier. Environments must replay exactly from seed and replies."""


_MIXTURE = """Several environments, or levels of one, in the place of `env.id` and `env.kwargs`: each with a NAME of
yours, `env.mixture.NAME.id=ID` and `env.mixture.NAME.kwargs.level=hard` (defaults as `env.id` and `env.kwargs`), and
`env.mixture.NAME.weight=2`, its share relative to the others' (default 1)"""


class EnvSection(OneEnvSection):
    """The environment, or several."""

    mixture: dict[str, ShownComponentSection] = Field(default_factory=dict, description=f"{_MIXTURE}.")


class PlayedEnvSection(OneEnvSection):
    """The environment, or several, and where they run."""

    val_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments for validation alone, laid over `env.kwargs`. Where the environment has an option `split` and neither
    that nor `tasks` is given here, it is `test`."""
    mixture: dict[str, ComponentSection] = Field(
        default_factory=dict,
        description=f"""{_MIXTURE}; `val_kwargs` as `env.val_kwargs`; `success_reward`, what an episode must earn to
        count as a success to `env.curriculum` (default: the environment calls it solved). Metrics are reported for
        each.""",
    )
    curriculum: CurriculumSection = CurriculumSection()
    train_side: Literal["policy", "user", "both"] = "policy"
    """Who is trained: the assistant (`policy`); its `user`, with a fixed assistant; or `both`, one model that plays
    both sides of each episode. The environment must have a user that a language model can play."""
    assistant: dict[str, Any] = Field(default_factory=dict)
    """With `train_side=user`: the model that is the fixed assistant, as `env.kwargs.user` names one
    (`env.assistant.model=FOLDER`, `env.assistant.base_url=ADDRESS`); without one, the environment's scripted expert."""
    user: dict[str, Any] = Field(default_factory=dict)
    """With `train_side` `user` or `both`: options of the user that is trained, as `prompt`, `tries`, `persona`; none of
    a service, because the model that is trained plays it."""
    user_reward: Literal["shared", "opposed"] = "shared"
    """What a message of the user's earns: the reward of the assistant's turn that it answers, and of those after it
    that no message answers; or the negative of these."""
    refused_cost: float = Field(1.0, ge=0)
    """What a message of the user's costs that cannot be said, because it tells what it must not, says nothing or was
    cut off; each such message separately."""
    backend: Literal["inline", "thread", "process", "ray"] = "inline"
    """Where environments step: in the collector's event loop, in threads (for those that block), in processes (for
    those that may hang or crash), or in Ray actors (on the machines of a cluster)."""
    workers: int | None = Field(None, ge=1)
    """Environments at work at a time, of all components together (each keeps its own, when they are idle); null is as
    many as episodes (one a CPU for processes); `backend=ray` needs a number."""


class TrainDataSection(Section):
    """The tasks."""

    train_files: Names | None = None
    """Tasks to train on: .jsonl or .parquet files, `generated:LEVEL`, `hub:REPOSITORY`, or a list of these; null takes
    the environment's own."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the tokenizer's chat template, in every rendering; `data.chat_template_kwargs.NAME=value` sets one
    (`enable_thinking=false` of Qwen3). One that the template never reads is an error."""


class DataSection(TrainDataSection):
    """The tasks, to train and to validate on."""

    val_files: Names | None = None
    """Tasks to validate on, likewise; null takes the environment's own: those of its split `test`, or, without splits,
    those after `train_size`, or else those of training."""
    train_size: int | None = Field(None, ge=1)
    """Train on the first so many tasks, of each component in a mixture; null is all of them."""
    val_size: int = Field(256, ge=1)
    """Validate on so many tasks, the first ones; of a mixture, on so many of each component."""
    shuffle: bool = Field(True, description="A new order of the training tasks in every epoch.")
    filter_overlong_prompts: bool = False
    """Leave out tasks whose opening is longer than `longest_prompt`, of those that `train_size` and `val_size` take.
    Before a run starts or resumes, each task is reset and rendered once, which takes its time with many; the others
    keep their order. Not for tasks that never end."""
    longest_prompt: int | None = Field(None, ge=1)
    """With `filter_overlong_prompts`: tokens of an opening at most; null leaves room for a whole reply,
    `engine.max_context` - `rollout.max_response_length`."""


class RolloutSection(Section):
    """Collecting episodes."""

    groups_per_batch: int = Field(16, ge=1, description="Tasks an iteration trains on.")
    n: int = Field(8, ge=1, description="Episodes of each task (a group).")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature; the learner uses it too.")
    top_p: float = Field(1.0, gt=0, le=1, description="Sample from the smallest set with this probability; 1 is all.")
    top_k: int = Field(0, ge=0, description="Sample from the k likeliest tokens; 0 is all.")
    min_p: Fraction = Field(0.0, description="Leave out tokens below this times the likeliest one's probability.")
    keep_sampling_mask: bool = False
    """With `top_k` from 1 to 1024 (and `top_p`, `min_p`) and `engine.name=torch`: record which tokens the cuts left,
    and train the policy over those; otherwise cuts are not corrected."""
    max_response_length: int = Field(64, ge=1)
    """Tokens a reply has at most (each turn); 256 for a given language model, if it is not said."""
    cut_reply_penalty: float = Field(0.0, ge=0)
    """What a turn loses whose reply reached that limit before its end: the term `cut_reply`, in training only. Without
    it, talking on past the limit can pay as well as ending."""
    max_response_tokens: int | None = Field(None, ge=1)
    """An episode ends when it has so many tokens after its opening, those of the environment included; null is as many
    as `engine.max_context` has room for."""
    staleness: int = Field(0, ge=0)
    """How many versions older than the trained weights a token may be (η); 0 is on-policy."""
    window: int = Field(1, ge=1)
    """A group may be overtaken by one less than so many later ones; 1 is strict order."""
    oversampling_factor: float = Field(1.0, ge=1)
    """Play so many times the groups that a batch needs, train on the first complete ones, and cancel what gets too old.
    Sooner batches, wasted work, and shorter episodes than those played."""
    max_running: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    """Episodes in flight at most, validation's among them; null is as many as staleness allows in training, `auto`
    looks for as many as the engine serves without a queue or preemptions."""
    update_mode: Literal["keep", "wait", "abort"] = "keep"
    """Requests in flight at a weight update continue with the new weights, finish first, or end."""
    partial: bool = False
    """With `update_mode=abort`: replies that an update cuts continue from their tokens under the new weights; otherwise
    their episodes start again."""
    partial_max_age: int | None = Field(None, ge=0)
    """With `partial`: an episode whose oldest token is more versions old than this starts again."""
    retries: int = Field(1, ge=0, description="How often a failed episode is played again.")
    filter_zero_variance: bool = Field(False, description="Replace groups whose episodes all earned the same.")
    max_consecutive_filtered: int = Field(64, ge=0, description="Stop after more such groups than this in a row.")
    max_consecutive_errors: int = Field(32, ge=1, description="Stop after so many failed episodes in a row.")
    step_timeout_s: float = Field(60.0, gt=0, description="Seconds that a reset or a step may take.")
    generation_timeout_s: float = Field(300.0, gt=0, description="Seconds that a reply may take.")
    episode_timeout_s: float = Field(900.0, gt=0, description="Seconds that an episode may take.")


#: Tokens of a sampling mask at most, for each sampled token.
LARGEST_MASK = 1024


def sampling_mask_checks(rollout: RolloutSection, engine: str) -> Problems:
    """Who can report the mask, and how large it may be."""
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
    """How validation samples."""

    n: int = Field(1, ge=1, description="Episodes a task.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="As `rollout.top_p`.")


def temperature_checks(
    rollout: RolloutSection, validation: ValidationSection, futures: float | None, engine: str
) -> Problems:
    """What the engine would refuse of every request; ``futures`` is ``multiturn_reward.temperature``, if enabled."""
    least = VLLM_MIN_TEMPERATURE if engine == "vllm" else MIN_TEMPERATURE
    given = {"rollout": rollout.temperature, "validation": validation.temperature, "multiturn_reward": futures or 0.0}
    for section, temperature in given.items():
        if 0 < temperature < least:
            zero = "" if section == "rollout" else ", or 0, which is greedy"
            text = f"is {temperature}; with engine.name={engine} it is at least {least}{zero}"
            yield f"{section}.temperature", text
