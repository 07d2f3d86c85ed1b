"""What several keys must agree on, and what must exist on disk. Each check yields the key to change and why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .schema import AlgorithmSection, ModelSection, PPOConfig, RewardFunctionSection, Section, ServingSection

Problems = Iterator[tuple[str, str]]

#: Estimators that learn a value function.
WITH_CRITIC = frozenset({"gae", "turn_gae"})

#: Engines that a run can have several of.
_WITH_REPLICAS = frozenset({"torch"})

# Keys of `algorithm` that only some estimators read. Elsewhere they would silently do nothing.
_ONLY_WITH = {
    "lam": ("gae", "turn_gae"),
    "gamma": ("gae", "turn_gae", "turn_grpo"),
    "norm_by_std": ("grpo", "turn_grpo"),
    "baseline": ("rloo", "turn_grpo"),
    "zero_pad": ("turn_grpo",),
    "outcome_mix": ("turn_grpo",),
    "truncated": ("grpo", "rloo", "turn_grpo"),
}
_TINY_ONLY = ("family", "hidden", "intermediate", "layers", "heads", "kv_heads", "vocab_size")
_FILES = (".jsonl", ".parquet")
_NO_FILES = ("generated:", "hub:")  # sources of tasks that are not on this disk


def ppo_checks(config: PPOConfig) -> Problems:
    """The checks across the sections of a PPO run; nothing here touches the disk."""
    yield from model_checks(config.model)
    yield from _estimator_checks(config.algorithm)
    engine, rollout, trainer = config.engine, config.rollout, config.trainer

    yield from engine_checks(engine)
    if engine.name == "sglang" and engine.sglang.base_url is None and engine.sglang.seeds and rollout.min_p > 0:
        yield "rollout.min_p", "goes with engine.name=sglang only where engine.sglang.seeds=false"
    if rollout.max_response_length >= engine.max_context:
        yield (
            "rollout.max_response_length",
            f"is {rollout.max_response_length}, which leaves no room for a prompt in "
            f"engine.max_context={engine.max_context}",
        )
    yield from reward_function_checks(config.custom_reward_function)
    if config.custom_reward_function.path is None:
        for name in ("workers", "timeout_s"):
            if _changed(config.custom_reward_function, name):
                yield f"custom_reward_function.{name}", "has no effect without custom_reward_function.path"
    most = rollout.staleness * rollout.groups_per_batch + 1
    if rollout.window > most:
        yield (
            "rollout.window",
            f"is {rollout.window}; with rollout.staleness={rollout.staleness} and "
            f"rollout.groups_per_batch={rollout.groups_per_batch} it is at most {most}",
        )
    if rollout.window > 1 and rollout.oversampling_factor > 1:
        yield "rollout.window", "has no meaning with rollout.oversampling_factor: groups are taken as they complete"
    if config.env.backend == "ray" and config.env.workers is None:
        yield "env.workers", "must be a number with env.backend=ray: how many actors the cluster is to hold at most"
    if rollout.partial and rollout.update_mode != "abort":
        yield "rollout.partial", "needs rollout.update_mode=abort: in the other modes no reply is cut"
    if rollout.partial_max_age is not None and not rollout.partial:
        yield "rollout.partial_max_age", "needs rollout.partial=true"
    if rollout.n < 2:
        if rollout.filter_zero_variance:
            yield "rollout.n", "must be at least 2 with rollout.filter_zero_variance: one episode alone never differs"
        if config.algorithm.adv_estimator == "grpo":
            yield "rollout.n", "must be at least 2 with algorithm.adv_estimator=grpo: a group of one teaches nothing"
    episodes = rollout.groups_per_batch * rollout.n
    if config.actor.mini_batches > episodes:
        yield (
            "actor.mini_batches",
            f"is {config.actor.mini_batches}, but a batch has only {episodes} episodes "
            f"(rollout.groups_per_batch={rollout.groups_per_batch} times rollout.n={rollout.n})",
        )
    if config.actor.max_tokens_per_micro_batch < engine.max_context:
        yield (
            "actor.max_tokens_per_micro_batch",
            f"is {config.actor.max_tokens_per_micro_batch}; the longest episode, engine.max_context="
            f"{engine.max_context}, must fit",
        )
    if config.actor.importance_correction != "none" and config.actor.old_logprobs != "recompute":
        yield "actor.importance_correction", "needs actor.old_logprobs=recompute: otherwise both policies are the same"
    if (trainer.resume_mode == "resume_path") != (trainer.resume_from_path is not None):
        yield "trainer.resume_from_path", "goes together with trainer.resume_mode=resume_path, and only with it"


def engine_checks(engine: ServingSection) -> Problems:
    """Options of an engine that does not run, and options of one that do not go together."""
    for section in ("vllm", "sglang"):
        options = getattr(engine, section)
        for name in type(options).model_fields:
            if engine.name != section and _changed(options, name):
                yield f"engine.{section}.{name}", f"has no effect with engine.name={engine.name}"
    if engine.name == "sglang" and engine.sglang.base_url is not None:
        for name in ("python", "seeds", "server_args"):
            if _changed(engine.sglang, name):
                yield f"engine.sglang.{name}", "starts a server, and engine.sglang.base_url names one that runs already"
    if engine.replicas > 1 and engine.name not in _WITH_REPLICAS:
        yield "engine.replicas", f"is {engine.replicas}; engine.name={engine.name} is one engine"


def reward_function_checks(function: RewardFunctionSection) -> Problems:
    """Options of a function that is not given."""
    for name in type(function).model_fields:
        if name not in ("path", "workers", "timeout_s") and function.path is None and _changed(function, name):
            yield f"custom_reward_function.{name}", "has no effect without custom_reward_function.path"


def estimator_keys(estimator: str) -> tuple[str, ...]:
    """The keys of `algorithm` that this estimator reads, apart from those that every one is followed by."""
    return tuple(name for name, estimators in _ONLY_WITH.items() if estimator in estimators)


def model_checks(model: ModelSection) -> Problems:
    """The shape of a model from scratch."""
    if model.path != "tiny":
        for name in _TINY_ONLY:
            if _changed(model, name):
                yield f"model.{name}", f"only shapes model.path=tiny; {model.path} has a shape of its own"
        return
    if model.hidden % (2 * model.heads):
        yield (
            "model.hidden",
            f"is {model.hidden}; it must be a multiple of 2 * model.heads = {2 * model.heads} (rotary embeddings pair "
            "the dimensions of a head)",
        )
    if model.heads % model.kv_heads:
        yield "model.kv_heads", f"is {model.kv_heads}, which does not divide model.heads={model.heads}"


def _estimator_checks(algorithm: AlgorithmSection) -> Problems:
    for name, estimators in _ONLY_WITH.items():
        if algorithm.adv_estimator not in estimators and _changed(algorithm, name):
            yield (
                f"algorithm.{name}",
                f"has no effect with algorithm.adv_estimator={algorithm.adv_estimator}; it is read by "
                f"{', '.join(estimators)}",
            )


def _changed(section: Section, name: str) -> bool:
    """Whether a value differs from its default (being written out does not count: a dumped configuration loads)."""
    return bool(getattr(section, name) != type(section).model_fields[name].get_default(call_default_factory=True))


def missing_paths(config: Section) -> Problems:
    """Files and folders that the configuration names and that are not there, seen from the current folder."""
    for section, names in (("data", ("train_files", "val_files")), ("warm_start", ("files",)), ("sft", ("files",))):
        for name in names:
            for file in getattr(getattr(config, section, None), name, None) or ():
                key, path = f"{section}.{name}", Path(file).expanduser()
                if section == "data" and file.startswith(_NO_FILES):
                    continue
                if not path.is_file():
                    yield key, f"there is no file {file} (looked in {path.absolute().parent})"
                elif path.suffix not in _FILES:
                    yield key, f"{file} is neither .jsonl nor .parquet"
    model = getattr(config, "model", None)
    if (
        model is not None
        and model.path not in ("tiny", None)
        and not (Path(model.path).expanduser() / "config.json").is_file()
    ):
        yield "model.path", f"{model.path} is not a folder with a config.json; give a model's folder, or tiny"
    function = getattr(getattr(config, "custom_reward_function", None), "path", None)
    if function is not None and not Path(function).expanduser().is_file():
        yield "custom_reward_function.path", f"there is no file {function}"
    resume = getattr(getattr(config, "trainer", None), "resume_from_path", None)
    if resume is not None and not Path(resume).expanduser().is_dir():
        yield "trainer.resume_from_path", f"there is no folder {resume}"
