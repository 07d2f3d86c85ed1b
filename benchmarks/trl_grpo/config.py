"""From our configuration to TRL's: one table, and the keys that have no meaning there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainers.algorithms.losses import PPO
from trainers.builders.folder import run_folder
from trainers.command_line import ConfigError, resolve
from trainers.command_line.load import Problem
from trainers.config import PPOConfig
from trainers.config.describe import all_keys
from trainers.models.memory import CPU_TOKENS
from trainers.models.policy import resolve_device

#: Keys with one field of ``GRPOConfig`` each, and the conversion of the value.
FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "rollout.n": ("num_generations", int),
    "rollout.temperature": ("temperature", float),
    "rollout.top_p": ("top_p", float),
    "rollout.top_k": ("top_k", int),
    "rollout.min_p": ("min_p", lambda value: value or None),
    "validation.n": ("num_generations_eval", int),
    "data.chat_template_kwargs": ("chat_template_kwargs", lambda value: dict(value) or None),
    "actor.lr": ("learning_rate", float),
    "actor.weight_decay": ("weight_decay", float),
    "actor.ppo_epochs": ("num_iterations", int),
    "actor.policy_loss": ("importance_sampling_level", {"ppo": "token", "gspo": "sequence"}.get),
    "actor.clip_ratio_low": ("epsilon", float),
    "actor.clip_ratio_high": ("epsilon_high", float),
    "actor.clip_ratio_c": ("delta", lambda value: value),
    "actor.loss_agg_mode": (
        "loss_type",
        {"token-mean": "dapo", "seq-mean-token-mean": "grpo", "seq-mean-token-sum-norm": "dr_grpo"}.get,
    ),
    "model.enable_gradient_checkpointing": ("gradient_checkpointing", bool),
    "trainer.seed": ("seed", int),
    "trainer.val_before_train": ("eval_on_start", bool),
    "trainer.keep_last_n": ("save_total_limit", int),
    "trainer.experiment_name": ("run_name", str),
}

#: Keys that are read elsewhere: below, in :mod:`.trainer`, or by the parts that both trainers share.
READ: frozenset[str] = frozenset(
    f"{section}.{name}"
    for section, names in {
        "env": """
            id kwargs val_kwargs backend workers
        """,
        "data": """
            train_files val_files train_size val_size shuffle
        """,
        "model": """
            path family hidden intermediate layers heads kv_heads vocab_size dtype device lora_rank lora_alpha
            target_modules exclude_modules
        """,
        "warm_start": """
            enable careless_steps careless_rate careless_lr files demonstrations mistake_rate mistake_weight steps
            batch_size lr lr_warmup_steps weight_decay grad_clip max_tokens_per_micro_batch
        """,
        "engine": """
            max_slots threads max_context
        """,
        "rollout": """
            groups_per_batch max_response_length max_response_tokens retries step_timeout_s generation_timeout_s
            episode_timeout_s
        """,
        "validation": """
            temperature top_p
        """,
        "algorithm": """
            adv_estimator gamma norm_adv norm_by_std baseline zero_pad outcome_mix pass_k truncated
        """,
        "actor": """
            betas lr_warmup_steps lr_schedule grad_clip mini_batches max_tokens_per_micro_batch use_kl_loss
            kl_loss_coef kl_loss_type entropy_coeff
        """,
        "trainer": """
            project_name default_local_dir logger threads total_iterations test_freq save_freq resume_mode
            resume_from_path
        """,
    }.items()
    for name in names.split()
)

#: A checkpoint of TRL's must not be resumed from with other values of these: it counts optimizer steps and skips the
#: batches that the first four make, and it brings the optimizer's settings along.
FIXED: Sequence[str] = (
    "rollout.n",
    "rollout.groups_per_batch",
    "actor.mini_batches",
    "actor.ppo_epochs",
    "actor.lr",
    "actor.betas",
    "actor.weight_decay",
)

#: The reasons why keys have no meaning, by their beginnings.
WHY_NOT: Mapping[str, str] = {
    "critic.": "GRPO has no critic",
    "cluster.": "one process on one device; for more: TRL with trainers.integrations.trl (docs/adapters/trl.md)",
    "ray_init.": "TRL does not use Ray",
    "data.": "leave such rows out of the files: TRL plays all of them",
    "engine.": "the embedded engine plays; for vLLM, configure TRL itself (docs/adapters/trl.md)",
    "rollout.staleness": "TRL generates, then learns: what it trains on is never stale",
    "rollout.": "TRL asks for a batch and gets it whole",
    "reward_model": "give TRL a reward function of your own (docs/adapters/trl.md)",
    "custom_reward_function.": "give TRL a reward function of your own (docs/adapters/trl.md)",
    "multiturn_reward.": "TRL's rewards come at the end of a batch",
    "model.": "TRL's own learner computes",
    "algorithm.": "none of the estimators that TRL can be given reads it",
    "actor.": "TRL's own loss is used",
    "trainer.": "TRL's own loop runs",
}


def resolved(config: PPOConfig | Sequence[str]) -> PPOConfig:
    """Return the configuration, after checking that each of its values has a meaning in TRL.

    Raises:
        ConfigError: One has none; every such key is named.
    """
    sources: Mapping[str, str] = {}
    if not isinstance(config, PPOConfig):
        config, flags = resolve(config)
        sources = flags.sources
    problems = [Problem(key, text, sources.get(key, "")) for key, text in _problems(config, sources)]
    if problems:
        raise ConfigError(problems)
    return config


def _problems(config: PPOConfig, sources: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, key in all_keys(PPOConfig).items():
        if name in FIELDS or name in READ:
            continue
        is_set = name in sources or any(key_set.startswith(f"{name}.") for key_set in sources)
        if is_set or value_of(config, name) not in (key.default, config.chosen_defaults().get(name, key.default)):
            why = next((why for start, why in WHY_NOT.items() if name.startswith(start)), "TRL has nothing like it")
            yield name, f"has no meaning for TRL: {why}"
    yield from _values(config)


def _values(config: PPOConfig) -> Iterator[tuple[str, str]]:
    """Yield problems of values that TRL does not have, and of those that do not divide as it requires."""
    actor, rollout, estimator = config.actor, config.rollout, config.algorithm.adv_estimator
    if config.algorithm.needs:
        yield "algorithm.adv_estimator", f"{estimator} needs what TRL does not have; use turn_grpo, grpo, rloo, ..."
    if actor.policy_loss not in ("ppo", "gspo"):
        yield "actor.policy_loss", f"{actor.policy_loss} is not computed so by TRL; use ppo or gspo"
    if actor.loss_agg_mode == "seq-mean-token-sum":
        yield "actor.loss_agg_mode", f"TRL does not divide as {actor.loss_agg_mode} does; use token-mean"
    if isinstance(actor, PPO) and actor.clip_ratio_c is not None and actor.clip_ratio_c <= 1 + actor.clip_ratio_high:
        yield "actor.clip_ratio_c", f"TRL's delta must be above 1 + clip_ratio_high = {1 + actor.clip_ratio_high}"
    if actor.use_kl_loss and actor.kl_loss_type not in ("k3", "low_var_kl"):
        yield "actor.kl_loss_type", "TRL's estimate is k3"
    if rollout.n < 2:
        yield "rollout.n", "TRL compares the episodes of a group: at least 2"
    if (rollout.n * rollout.groups_per_batch) % actor.mini_batches:
        yield "actor.mini_batches", f"must divide the {rollout.n * rollout.groups_per_batch} episodes of a batch"
    if config.model.lora_rank and (config.model.path == "tiny" or config.warm_start.enable):
        yield (
            "model.lora_rank",
            "TRL's checkpoints hold the adapters alone, and a base that this run makes (model.path=tiny, warm_start) "
            "would be lost: train the base first and give its folder as model.path, with warm_start.enable=false",
        )
    if getattr(config.algorithm, "truncated", "count") == "drop" and actor.loss_agg_mode != "token-mean":
        yield "algorithm.truncated", "TRL's mean over episodes counts those that are dropped; use token-mean, or count"
    if config.env.mixture:
        yield "env.mixture", "has several environments, and TRL's data set is of one"
    if config.env.curriculum.reverse_share:
        yield "env.curriculum.reverse_share", "TRL's episodes begin at their openings"
    if config.env.curriculum.kind != "fixed":
        yield "env.curriculum.kind", "TRL's data set has its order"
    if config.env.backend == "ray":
        yield "env.backend", "TRL does not use Ray; use process"


def value_of(config: PPOConfig, name: str) -> Any:
    """Return the value of a dotted key; its default if the chosen estimator or loss does not have it."""
    value: Any = config
    for part in name.split("."):
        if not hasattr(value, part):
            return all_keys(PPOConfig)[name].default
        value = getattr(value, part)
    return value


def steps_an_iteration(config: PPOConfig) -> int:
    """Return the optimizer's steps on a batch: TRL counts these, and we count batches."""
    return config.actor.mini_batches * config.actor.ppo_epochs


def completion_length(config: PPOConfig) -> int:
    """Return the tokens of an episode after its opening at most, those of the environment included."""
    return config.rollout.max_response_tokens or config.engine.max_context


def grad_clip(config: PPOConfig) -> float:
    """Return the largest norm of the gradient, of TRL's loss.

    Its ``dr_grpo`` divides by the length of a whole episode, ``seq-mean-token-sum-norm`` by that of a reply. AdamW
    does not notice a constant factor; clipping would.
    """
    if config.actor.loss_agg_mode != "seq-mean-token-sum-norm":
        return config.actor.grad_clip
    return config.actor.grad_clip * config.rollout.max_response_length / completion_length(config)


def grpo_arguments(config: PPOConfig) -> dict[str, Any]:
    """Return the arguments of ``GRPOConfig``.

    Raises:
        PolicyError: There is no such device.
    """
    settings: dict[str, Any] = {field: turn(value_of(config, key)) for key, (field, turn) in FIELDS.items()}
    trainer, actor, rollout = config.trainer, config.actor, config.rollout
    episodes, steps = rollout.n * rollout.groups_per_batch, steps_an_iteration(config)
    # As many episodes as fit into a micro-batch at their longest; they must divide an optimizer step's.
    fit = max(1, (actor.max_tokens_per_micro_batch or CPU_TOKENS) // config.engine.max_context)
    share = episodes // actor.mini_batches
    micro = max(size for size in range(1, share + 1) if share % size == 0 and size <= fit)
    return settings | {
        "output_dir": str(run_folder(trainer)),
        "max_steps": trainer.total_iterations * steps,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": share // micro,
        "steps_per_generation": episodes // micro,
        "per_device_eval_batch_size": config.data.val_size * config.validation.n,  # played, never in a forward pass
        "max_completion_length": completion_length(config),
        "beta": actor.kl_loss_coef if actor.use_kl_loss else 0.0,
        "entropy_coef": config.actor.entropy_coeff,
        "max_grad_norm": grad_clip(config),
        "adam_beta1": actor.betas[0],
        "adam_beta2": actor.betas[1],
        "scale_rewards": "none",  # the estimator scales
        "bf16": config.model.dtype == "bfloat16",
        "use_cpu": resolve_device(config.model.device).type == "cpu",
        "shuffle_dataset": False,  # the rows are in the order in which they are to be played
        "eval_strategy": "no" if trainer.test_freq == -1 else "steps",
        "eval_steps": None if trainer.test_freq == -1 else trainer.test_freq * steps,
        "save_strategy": "steps",
        "save_steps": trainer.total_iterations * steps if trainer.save_freq == -1 else trainer.save_freq * steps,
        "logging_strategy": "steps",
        "logging_steps": steps,
        "report_to": "none",  # metrics go to our own loggers
        "disable_tqdm": True,
        "data_seed": trainer.seed,
    }
