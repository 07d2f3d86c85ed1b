"""What several keys must agree on, and what must exist on disk. Each check yields the key to change and why."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..chat_template import refused
from ..engines.vllm.arguments import refused_arguments
from ..hub import is_name
from ..saved_adapter import read_adapter
from .reward_model import reward_model_checks, sections_of
from .rewards import overlong_checks
from .rollout import sampling_mask_checks
from .section import Problems
from .section import changed as _changed
from .unread import DISCOUNTED, SECTIONS, WITH_CRITIC, unread
from .user_functions import function_problem

if TYPE_CHECKING:
    from .commands import GenerateConfig
    from .engines import ServingSection
    from .learning import ActorSection, AlgorithmSection
    from .model import ModelSection, SupervisedSection
    from .rewards import RewardFunctionSection
    from .running import RayInitSection, RunSection
    from .schema import PPOConfig
    from .section import Section

# Keys of `engine.NAME` that start a server, and those that only a server which runs already is told.
_STARTING = {
    "vllm": (*("python", "gpu_memory_utilization", "block_size", "enforce_eager", "sleep_mode", "args"),),
    "sglang": ("python", "seeds", "server_args"),
}
_RUNNING = {"vllm": ("transport", "update_folder", "health_timeout_s", "stall_timeout_s"), "sglang": ()}

#: Estimators that compare the sums of whole episodes within their group.
_GROUPWISE = ("grpo", "dr_grpo", "rloo", "opo", "gdpo", "grpo_passk", "passk", "reinforce_pp_baseline")
# Keys of `algorithm` that only some estimators read. Elsewhere they would silently do nothing.
_ONLY_WITH = {
    "lam": WITH_CRITIC,
    "gamma": DISCOUNTED,
    "turn_gamma": ("bilevel_gae",),
    "turn_lam": ("bilevel_gae",),
    "norm_by_std": ("grpo", "gdpo", "grpo_passk", "passk", "turn_grpo", "gigpo"),
    "baseline": ("rloo", "turn_grpo"),
    "zero_pad": ("turn_grpo",),
    "outcome_mix": ("turn_grpo",),
    "step_weight": ("gigpo",),
    "anchor": ("gigpo",),
    "gdpo_reward_keys": ("gdpo",),
    "gdpo_reward_weights": ("gdpo",),
    "pass_k": ("passk",),
    "truncated": (*_GROUPWISE, "reinforce_pp", "remax", "turn_grpo", "gigpo"),
}
#: Estimators whose discount is a turn's and that add up nothing else.
_TURN_DISCOUNT = ("turn_grpo", "turn_gae")
#: Estimators that learn nothing from a group of one.
_COMPARE_SIBLINGS = frozenset({*_GROUPWISE, "gigpo"} - {"rloo"})
#: Estimators that give all tokens of an episode the same advantage.
_BY_EPISODE = (*_GROUPWISE, "remax")
#: Losses of whole episodes.
_EPISODE_LOSSES = ("gspo", "geo_mean")
#: Where rewards may be moved without a function of the user's; all keep an episode's sum.
_CREDITS = ("as_earned", "last", "spread", "discounted")
#: Estimators that normalise over the batch by definition.
NORMALISED = frozenset({"reinforce_pp", "reinforce_pp_baseline", "gdpo"})
_TINY_ONLY = ("family", "hidden", "intermediate", "layers", "heads", "kv_heads", "vocab_size")
_FILES = (".jsonl", ".parquet")
_NO_FILES = ("generated:", "hub:")  # sources of tasks that are not on this disk


def ppo_checks(config: PPOConfig) -> Problems:
    """The checks across the sections of a PPO run; nothing here touches the disk."""
    yield from template_checks(config.data.chat_template_kwargs)
    yield from model_checks(config.model)
    yield from learner_checks(config.model, config.trainer)
    yield from _estimator_checks(config.algorithm)
    engine, rollout, trainer = config.engine, config.rollout, config.trainer

    yield from engine_checks(engine)
    if engine.name == "sglang" and engine.sglang.base_url is None and engine.sglang.seeds and rollout.min_p > 0:
        yield "rollout.min_p", "goes with engine.name=sglang only where engine.sglang.seeds=false"
    if config.model.lora_rank and config.model.lora_publish == "adapter" and engine.name == "sglang":
        yield (
            "model.lora_publish",
            "is adapter, and engine.name=sglang takes whole weights: it computes adapters beside the matrices, which "
            "gives other numbers than merged ones; use merged, or engine.name=vllm",
        )
    if rollout.max_response_length >= engine.max_context:
        yield (
            "rollout.max_response_length",
            f"is {rollout.max_response_length}, which leaves no room for a prompt in "
            f"engine.max_context={engine.max_context}",
        )
    if config.model.lora_adapter_path is not None and config.warm_start.enable:
        yield (
            "warm_start.enable",
            "would merge what it trains into the model, and model.lora_adapter_path stands on the model as it is: "
            "imitate with `python -m trainers.sft` first",
        )
    if (longest := config.data.longest_prompt) is not None:
        if not config.data.filter_overlong_prompts:
            yield "data.longest_prompt", "has no effect without data.filter_overlong_prompts=true"
        elif longest >= engine.max_context:
            yield "data.longest_prompt", f"is {longest}, which engine.max_context={engine.max_context} does not hold"
    yield from _unread_checks(config)
    yield from _warm_start_checks(config)
    yield from _held_out_checks(config)
    yield from reward_function_checks(config.custom_reward_function)
    if config.custom_reward_function.path is None:
        for name in ("workers", "timeout_s"):
            if _changed(config.custom_reward_function, name):
                yield f"custom_reward_function.{name}", "has no effect without custom_reward_function.path"
    yield from _multiturn_checks(config)
    yield from overlong_checks(config)
    yield from reward_model_checks(config)
    yield from _servers_on_ray(config.cluster.backend, engine)
    yield from _cluster_checks(config)
    yield from _ray_init_checks(config.ray_init)
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
    yield from sampling_mask_checks(rollout, engine.name)
    if rollout.partial and rollout.update_mode != "abort":
        yield "rollout.partial", "needs rollout.update_mode=abort: in the other modes no reply is cut"
    if rollout.partial_max_age is not None and not rollout.partial:
        yield "rollout.partial_max_age", "needs rollout.partial=true"
    if rollout.n < 2:
        if rollout.filter_zero_variance and config.algorithm.adv_estimator != "remax":
            yield "rollout.n", "must be at least 2 with rollout.filter_zero_variance: one episode alone never differs"
        if (estimator := config.algorithm.adv_estimator) in _COMPARE_SIBLINGS:
            yield "rollout.n", f"must be at least 2 with algorithm.adv_estimator={estimator}: one alone teaches nothing"
    if config.algorithm.adv_estimator == "passk" and 1 < rollout.n <= config.algorithm.pass_k:
        yield (
            "algorithm.pass_k",
            f"is {config.algorithm.pass_k}; it must be below rollout.n={rollout.n}, or no set of so many is without an "
            "episode to compare it with",
        )
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
    yield from _loss_checks(config.actor, config.algorithm.adv_estimator)
    yield from _kl_control_checks(config.algorithm, episodes)
    if config.algorithm.adv_estimator in WITH_CRITIC and config.critic.warmup >= trainer.total_iterations:
        yield (
            "critic.warmup",
            f"is {config.critic.warmup}: the policy would not be trained in any of trainer.total_iterations="
            f"{trainer.total_iterations}",
        )
    dumps = [each for each in (trainer.rollout_data_dir, trainer.validation_data_dir) if each is not None]
    if len(dumps) == 2 and len({Path(each).expanduser().absolute() for each in dumps}) == 1:
        yield (
            "trainer.validation_data_dir",
            "is trainer.rollout_data_dir: a file of either has the name of its iteration, so one would replace the "
            "other",
        )
    if (trainer.resume_mode == "resume_path") != (trainer.resume_from_path is not None):
        yield "trainer.resume_from_path", "goes together with trainer.resume_mode=resume_path, and only with it"


def _unread_checks(config: PPOConfig) -> Problems:

    def value_of(key: str) -> Any:
        return attrgetter(key)(config)

    for section in SECTIONS:
        options = value_of(section)
        for name in type(options).model_fields:
            key = f"{section}.{name}"
            if _changed(options, name) and (said := unread(key, value_of)) is not None:
                yield key, said
    if late := [step for step in config.trainer.profile_steps if step > config.trainer.total_iterations]:
        yield (
            "trainer.profile_steps",
            f"has {late[0]}, and there are trainer.total_iterations={config.trainer.total_iterations}",
        )


def _warm_start_checks(config: PPOConfig) -> Problems:
    section, path = config.warm_start, config.model.path
    yield from demonstration_checks("warm_start", section)
    if section.enable is not None or path == "tiny":
        return
    for name in type(section).model_fields:
        if _changed(section, name):
            yield (
                f"warm_start.{name}",
                f"has no effect with model.path={path}, which is trained already: say warm_start.enable=true, or false",
            )


def demonstration_checks(key: str, section: SupervisedSection) -> Problems:
    """Options of demonstrations that are not played, because files have them."""
    for name in ("demonstrations", "mistake_rate", "mistake_weight"):
        if section.files is not None and _changed(section, name):
            yield f"{key}.{name}", f"has no effect with {key}.files, which has the conversations"


def _held_out_checks(config: PPOConfig) -> Problems:
    """Validation is on other tasks than training; every run ends with one."""
    given = config.env.kwargs.get("tasks")
    names = [given] if isinstance(given, str) else given if isinstance(given, list | tuple) else ()
    files = [name for name in names if isinstance(name, str) and name.endswith(_FILES)]
    data = config.data
    if files and data.train_files is None and data.val_files is None and "tasks" not in config.env.val_kwargs:
        yield (
            "env.kwargs.tasks",
            f"is a file, {files[0]}, which has no split of its own: validation would be on the tasks that are trained "
            "on. Give data.train_files and data.val_files instead (or env.val_kwargs.tasks)",
        )


def template_checks(names: Iterable[str]) -> Problems:
    """Variables for the chat template that are the renderer's own."""
    for name, what in refused(names):
        yield f"data.chat_template_kwargs.{name}", f"cannot be given: it is {what}"


def engine_checks(engine: ServingSection) -> Problems:
    """Options of an engine that does not run, and options of one that do not go together."""
    for section in ("vllm", "sglang"):
        options = getattr(engine, section)
        for name in type(options).model_fields:
            if engine.name != section and _changed(options, name):
                yield f"engine.{section}.{name}", f"has no effect with engine.name={engine.name}"
    yield from _server_checks(engine)


def _server_checks(engine: ServingSection) -> Problems:
    name, urls = engine.name, engine.base_urls
    if engine.kv_cache_gib is not None and (name not in ("torch", "vllm") or urls):
        yield "engine.kv_cache_gib", "is read by the engines torch and vllm alone, where the run starts them"
    if name == "openai" and engine.replicas > 1:
        yield "engine.replicas", f"is {engine.replicas}; engine.name={name} is one engine"
    if name not in _STARTING:
        return
    for key in _STARTING[name] if urls else _RUNNING[name]:
        if _changed(getattr(engine, name), key):
            yield (
                f"engine.{name}.{key}",
                f"starts a server, and engine.{name}.base_url names one that runs already"
                if urls
                else f"is for a server that runs already; give engine.{name}.base_url",
            )
    yield from ((f"engine.vllm.args.{key}", why) for key, why in refused_arguments(engine.vllm.args).items())
    if engine.replicas > 1 and urls:
        yield "engine.replicas", f"is {engine.replicas}; each address in engine.{name}.base_url is a replica already"
    if len(set(urls)) < len(urls):
        yield f"engine.{name}.base_url", "names a server twice; a server has one trainer at a time"


def reward_function_checks(function: RewardFunctionSection) -> Problems:
    """Options of a function that is not given."""
    for name in type(function).model_fields:
        if name not in ("path", "workers", "timeout_s") and function.path is None and _changed(function, name):
            yield f"custom_reward_function.{name}", "has no effect without custom_reward_function.path"


def _cluster_checks(config: PPOConfig) -> Problems:
    cluster, on_ray = config.cluster, config.cluster.backend == "ray"
    if not on_ray:
        if cluster.nnodes > 1:
            yield "cluster.nnodes", f"is {cluster.nnodes}; several machines need cluster.backend=ray"
        if cluster.nsight:
            yield "cluster.nsight", "is for learner ranks that Ray starts: it needs cluster.backend=ray"
        for name in ("cpus_per_actor", "bucket_mib"):
            if _changed(cluster, name):
                yield f"cluster.{name}", "has no effect with cluster.backend=local"
        for name in ("silence_s", "stall_s"):
            if cluster.learner_ranks == 1 and _changed(cluster, name):
                yield f"cluster.{name}", "has no effect with cluster.learner_ranks=1 in this process"
    if config.env.backend != "ray":
        if cluster.cpus_per_env:
            yield "cluster.cpus_per_env", f"has no effect with env.backend={config.env.backend}"
        for name in type(config.ray_init).model_fields:
            if not on_ray and _changed(config.ray_init, name):
                yield f"ray_init.{name}", "has no effect without Ray (cluster.backend=ray or env.backend=ray)"
    if cluster.nsight.get("capture-range") == "cudaProfilerApi":
        if not config.trainer.profile_steps:
            yield "trainer.profile_steps", "is empty, and cluster.nsight.capture-range=cudaProfilerApi waits for these"
        if config.model.device == "cpu":
            yield "cluster.nsight.capture-range", "is cudaProfilerApi, and model.device=cpu calls no CUDA"
    if config.engine.vllm.sleep_mode:
        if not cluster.colocate:
            yield "engine.vllm.sleep_mode", "has no effect with cluster.colocate=false: nobody needs the memory"
        if config.rollout.staleness:
            yield (
                "engine.vllm.sleep_mode",
                "needs rollout.staleness=0: the engine sleeps while the learner learns, and episodes could not go on",
            )
    if cluster.learner_ranks > 1 and config.trainer.fsdp == "never":
        yield "trainer.fsdp", f"must not be never with cluster.learner_ranks={cluster.learner_ranks}"


def _servers_on_ray(backend: str, engine: ServingSection) -> Problems:
    if backend == "ray" and engine.base_urls:
        yield (
            f"engine.{engine.name}.base_url",
            "names servers that run already, and with cluster.backend=ray every replica starts its own",
        )


def _ray_init_checks(ray_init: RayInitSection) -> Problems:
    if ray_init.address not in (None, "local") and ray_init.num_cpus is not None:
        yield "ray_init.num_cpus", f"is for a Ray of the run's own; {ray_init.address} has the CPUs that it has"


def serving_checks(config: GenerateConfig) -> Problems:
    """Where engines are that serve alone."""
    yield from _servers_on_ray(config.cluster.backend, config.engine)
    yield from _ray_init_checks(config.ray_init)
    if config.cluster.backend == "ray":
        return
    for section, names in (
        ("cluster", type(config.cluster).model_fields),
        ("ray_init", type(config.ray_init).model_fields),
    ):
        for name in names:
            if _changed(getattr(config, section), name):
                yield f"{section}.{name}", "has no effect with cluster.backend=local"


def estimator_keys(estimator: str) -> tuple[str, ...]:
    """The keys of `algorithm` that this estimator reads, apart from those that every one is followed by."""
    return tuple(name for name, estimators in _ONLY_WITH.items() if estimator in estimators)


def learner_checks(model: ModelSection, run: RunSection) -> Problems:
    """What the learner's keys must agree on, as far as that does not depend on the machine."""
    for name in ("lora_alpha", "target_modules", "exclude_modules", "lora_publish"):
        if not model.lora_rank and _changed(model, name):
            yield f"model.{name}", "has no effect without model.lora_rank"
    if model.lora_adapter_path is not None and not model.lora_rank:
        yield "model.lora_rank", "is 0; with model.lora_adapter_path it is the adapter's, r in its adapter_config.json"
    if model.lora_adapter_path is not None and model.path == "tiny":
        yield "model.lora_adapter_path", "needs model.path: no saved adapter stands on a model from scratch"
    if isinstance(model.target_modules, str) and model.target_modules != "all-linear":
        yield "model.target_modules", f"is {model.target_modules!r}; it must be a list of names, or all-linear"
    if not model.target_modules:
        yield "model.target_modules", "is empty: no layer would be trained"
    if model.enable_activation_offload and not model.enable_gradient_checkpointing:
        yield "model.enable_activation_offload", "needs model.enable_gradient_checkpointing=true"
    for key, wanted in (
        ("model.enable_activation_offload", model.enable_activation_offload),
        ("trainer.offload", run.offload),
    ):
        if wanted and model.device == "cpu":
            yield key, "moves what is on a GPU to the CPU; model.device=cpu has it there already"
    if run.offload and run.fsdp == "never":
        yield "trainer.offload", "is a part of FSDP2: use trainer.fsdp=auto or always"
    if run.ulysses_sequence_parallel_size > 1 and model.attn_implementation is not None:
        yield (
            "model.attn_implementation",
            "does not go with trainer.ulysses_sequence_parallel_size, which brings its own",
        )
    if model.path == "tiny":
        for name, heads in (("heads", model.heads), ("kv_heads", model.kv_heads)):
            if heads % run.tensor_parallel_size:
                yield (
                    "trainer.tensor_parallel_size",
                    f"is {run.tensor_parallel_size}, which does not divide model.{name}={heads}",
                )


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


def _multiturn_checks(config: PPOConfig) -> Problems:
    section, algorithm = config.multiturn_reward, config.algorithm
    if not section.enable:
        for name in type(section).model_fields:
            if _changed(section, name):
                yield f"multiturn_reward.{name}", "has no effect without multiturn_reward.enable=true"
        return
    if section.judge_kwargs and section.judge is None:
        yield "multiturn_reward.judge_kwargs", "has no effect without multiturn_reward.judge"
    if config.env.backend != "inline":
        yield "env.backend", f"is {config.env.backend}, and multiturn_reward forks environments, which must be inline"
    function = config.custom_reward_function
    if section.replace and function.path is not None and function.replace:
        yield (
            "multiturn_reward.replace",
            "and custom_reward_function.replace would both take the environment's reward away: set one to false",
        )
    if section.credit == "difference":
        return
    instead = "is the return already and must not be added up over turns: use multiturn_reward.credit=difference, or"
    if algorithm.reward_credit != "as_earned":
        yield (
            "algorithm.reward_credit",
            f"adds up an episode's rewards; with credit=value a turn's reward {instead} as_earned",
        )
    if algorithm.adv_estimator not in _TURN_DISCOUNT:
        yield "multiturn_reward.credit", f"is value, which {instead} one of {', '.join(_TURN_DISCOUNT)} with gamma=0"
    elif algorithm.gamma != 0:
        yield "algorithm.gamma", f"is {algorithm.gamma}; with multiturn_reward.credit=value a turn's reward {instead} 0"
    elif whole := [key for key, model in sections_of(config).items() if model.enable and not model.per_turn]:
        yield (
            f"{whole[0]}.per_turn",
            "is false: a score of the whole conversation would pay the last turn alone, because nothing is added up "
            "over turns with multiturn_reward.credit=value; use true, or multiturn_reward.credit=difference",
        )
    elif function.path is not None:
        yield (
            "custom_reward_function.path",
            "scores whole conversations, which would pay the last turn alone, because nothing is added up over turns "
            "with multiturn_reward.credit=value; use multiturn_reward.credit=difference",
        )
    elif algorithm.outcome_mix:
        yield "algorithm.outcome_mix", f"adds up an episode's rewards; with credit=value a turn's reward {instead} 0"


def _estimator_checks(algorithm: AlgorithmSection) -> Problems:
    for name, estimators in _ONLY_WITH.items():
        if algorithm.adv_estimator not in estimators and _changed(algorithm, name):
            yield (
                f"algorithm.{name}",
                f"has no effect with algorithm.adv_estimator={algorithm.adv_estimator}; it is read by "
                f"{', '.join(estimators)}",
            )

    yield from _credit_checks(algorithm)
    yield from _gdpo_checks(algorithm)
    if algorithm.adv_estimator in NORMALISED and algorithm.norm_adv:
        yield "algorithm.norm_adv", f"has no effect: {algorithm.adv_estimator} normalizes the batch by definition"


def _gdpo_checks(algorithm: AlgorithmSection) -> Problems:
    """Terms that `gdpo` is to see, and rewards that it would not."""
    if algorithm.adv_estimator != "gdpo":
        return
    names, weights = algorithm.gdpo_reward_keys, algorithm.gdpo_reward_weights
    if names is not None and len(set(names)) < len(names):
        yield "algorithm.gdpo_reward_keys", "names a term twice"
    if weights is not None and (names is None or len(weights) != len(names)):
        yield "algorithm.gdpo_reward_weights", "needs algorithm.gdpo_reward_keys, with one weight for each"
    if algorithm.use_kl_in_reward:
        yield "algorithm.use_kl_in_reward", "has no effect with gdpo, which sees terms alone: use actor.use_kl_loss"
    if algorithm.reward_credit not in _CREDITS:
        yield "algorithm.reward_credit", "has no effect with gdpo, which sees the terms as they were earned"


def _credit_checks(algorithm: AlgorithmSection) -> Problems:
    key, chosen = "algorithm.reward_credit", algorithm.reward_credit
    if chosen not in _CREDITS and not all(chosen.rpartition(":")):
        yield key, f"is {chosen!r}; it must be one of {', '.join(_CREDITS)}, or FILE.py:FUNCTION"
    if chosen in _CREDITS[1:] and algorithm.adv_estimator in _BY_EPISODE:
        yield (
            key,
            f"has no effect with algorithm.adv_estimator={algorithm.adv_estimator}, which sees the sum of an episode's "
            f"rewards alone, and {chosen} keeps that",
        )
    if chosen != "discounted" and _changed(algorithm, "reward_credit_decay"):
        yield "algorithm.reward_credit_decay", "has no effect without algorithm.reward_credit=discounted"


def _kl_control_checks(algorithm: AlgorithmSection, episodes: int) -> Problems:
    """What an adaptive weight cannot work with."""
    control = algorithm.kl_ctrl
    if not algorithm.use_kl_in_reward or control.type != "adaptive":
        return
    if not control.kl_coef:
        yield "algorithm.kl_ctrl.kl_coef", "is 0, and algorithm.kl_ctrl.type=adaptive multiplies it: it would stay 0"
    if episodes >= 5 * control.horizon:
        yield (
            "algorithm.kl_ctrl.horizon",
            f"is {control.horizon:g}; with {episodes} episodes a batch it must be above {episodes / 5:g}, or one batch "
            "could take the weight to 0",
        )


def _loss_checks(actor: ActorSection, estimator: str) -> Problems:
    for name in ("importance_correction", "rejection"):
        if getattr(actor, name) != "none" and actor.old_logprobs != "recompute":
            yield f"actor.{name}", "needs actor.old_logprobs=recompute: otherwise both policies are the same"
    for name in ("tis_cap", "importance_batch_normalize"):
        if actor.importance_correction == "none" and _changed(actor, name):
            yield f"actor.{name}", "has no effect with actor.importance_correction=none"
    by_kl = actor.rejection.endswith(("_k2", "_k3"))
    for name, reads in (("rejection_low", not by_kl), ("rejection_high", not by_kl), ("rejection_kl", by_kl)):
        if _changed(actor, name) and (actor.rejection == "none" or not reads):
            yield f"actor.{name}", f"has no effect with actor.rejection={actor.rejection}"
    if by_kl and actor.rejection_kl is None:
        yield "actor.rejection_kl", f"is null; actor.rejection={actor.rejection} needs it, in nats"
    if actor.clip_cov_lb >= actor.clip_cov_ub:
        yield "actor.clip_cov_lb", f"is {actor.clip_cov_lb:g}; it must be below actor.clip_cov_ub={actor.clip_cov_ub:g}"
    if actor.policy_loss not in _EPISODE_LOSSES:
        return
    name = actor.policy_loss
    instead = "use actor.policy_loss=gspo_token"
    if estimator not in _BY_EPISODE:
        yield (
            "actor.policy_loss",
            f"{name} spreads each advantage over its whole episode, and algorithm.adv_estimator={estimator} gives "
            f"turns or tokens their own: {instead}, or one of {', '.join(_BY_EPISODE)}",
        )
    if actor.importance_correction in ("token_tis", "decoupled"):
        yield "actor.importance_correction", f"{name} is of whole episodes: use sequence_tis, or {instead}"
    if actor.rejection.startswith("token"):
        yield "actor.rejection", f"{name} is of whole episodes: use a rejection of sequences, or {instead}"


def _adapter_checks(model: ModelSection) -> Problems:
    """Whether a saved adapter is what the configuration says, from its own configuration."""
    if model.lora_adapter_path is None:
        return
    try:
        saved = read_adapter(model.lora_adapter_path)
    except ValueError as error:
        yield "model.lora_adapter_path", str(error)
        return
    for key, theirs in (("lora_rank", saved.rank), ("lora_alpha", saved.alpha)):
        if (ours := getattr(model, key)) != theirs:
            yield f"model.{key}", f"is {ours:g}, and the adapter of model.lora_adapter_path has {theirs:g}"
    if saved.target_modules is None or isinstance(model.target_modules, str):
        return  # the model must tell
    if set(model.target_modules) - set(model.exclude_modules) != saved.target_modules:
        yield (
            "model.target_modules",
            f"is {', '.join(model.target_modules)}, and the adapter of model.lora_adapter_path is in "
            f"{', '.join(sorted(saved.target_modules))}",
        )


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
        and not is_name(model.path)  # of the hub: the files are asked for when the plan is made
        and not (Path(model.path).expanduser() / "config.json").is_file()
    ):
        yield (
            "model.path",
            f"{model.path} is not a folder with a config.json; give a model's folder, a name on the hub, or tiny",
        )
    if (policy := getattr(config, "model", None)) is not None and hasattr(policy, "lora_adapter_path"):
        yield from _adapter_checks(policy)
    function = getattr(config, "custom_reward_function", None)
    if function is not None and function.path is not None:
        yield from _missing_function("custom_reward_function.path", function.path, function.name)
    for key, scorer in sections_of(config).items():
        judge = scorer.classifier.path
        if judge is not None and not (Path(judge).expanduser() / "config.json").is_file():
            yield f"{key}.classifier.path", f"{judge} is not a folder with a config.json; give a model's folder"
    credit, _, name = getattr(getattr(config, "algorithm", None), "reward_credit", "").rpartition(":")
    if credit:
        yield from _missing_function("algorithm.reward_credit", credit, name)
    resume = getattr(getattr(config, "trainer", None), "resume_from_path", None)
    if resume is not None and not Path(resume).expanduser().is_dir():
        yield "trainer.resume_from_path", f"there is no folder {resume}"


def _missing_function(key: str, file: str, name: str) -> Problems:
    path = Path(file).expanduser()
    if not path.is_file():
        yield key, f"there is no file {file}"
    elif problem := function_problem(path, name):
        yield key, problem
