"""Checks across the keys of a configuration; nothing here touches the disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..algorithms.estimators import ESTIMATORS, Estimator
from ..algorithms.losses import PolicyLoss
from ..section import Problems, changed
from .compaction import compaction_checks
from .engine import EngineSection, SGLangEngineSection, VLLMEngineSection, refused_arguments
from .model import ModelSection, model_checks
from .ppo_sections import PPOSections
from .reward_model import ClassifierModelSection, MoveModelSection, RewardModelSection, sections_of
from .rollout import (
    ComponentSection,
    EnvSection,
    PlayedEnvSection,
    TrainDataSection,
    sampling_mask_checks,
    temperature_checks,
)
from .running import RunSection
from .template import refused

#: Files that tasks are read from.
TASK_FILES = (".jsonl", ".parquet")
#: Estimators that discount by turn and add up nothing else.
_TURN_DISCOUNT = tuple(name for name, kind in ESTIMATORS.items() if kind.unit == "turn" and not kind.mixes_baselines)
#: Estimators that give all tokens of an episode the same advantage.
_BY_EPISODE = tuple(name for name, kind in ESTIMATORS.items() if kind.unit == "episode")
_CREDIT = "algorithm.reward_credit"
#: Built-in credit assignments; all keep an episode's sum.
_CREDITS = ("as_earned", "last", "spread", "discounted")
#: SGLang's command-line names of ``engine.tensor_parallel_size``.
_TENSOR_PARALLEL = ("--tp", "--tp-size", "--tensor-parallel-size")


def ppo_checks(config: PPOSections) -> Problems:
    """Check the sections of a PPO run together; nothing here touches the disk."""
    yield from template_checks(config.data.chat_template_kwargs)
    yield from model_checks(config.model)
    yield from learner_checks(config.model, config.trainer)
    yield from _adapter_checks(config)
    yield from _algorithm_checks(config.algorithm)
    yield from _reaction_checks(config)
    yield from _fork_checks(config)
    yield from engine_checks(config.engine)
    yield from _context_checks(config)
    yield from mixture_checks(config.env, config.data)
    yield from _curriculum_checks(config)
    yield from _side_checks(config)
    yield from _frozen_checks(config)
    yield from _held_out_checks(config)
    yield from compaction_checks(config.env, config.engine.max_context, _judges(config))
    yield from _multiturn_checks(config)
    yield from overlong_checks(config)
    yield from relative_length_checks(config)
    yield from _replace_checks(config)
    yield from reward_model_checks(config)
    yield from _cluster_checks(config)
    yield from _rollout_checks(config)
    yield from _batch_checks(config)
    yield from _variance_checks(config)
    yield from _loss_checks(config.actor, config.algorithm.adv_estimator)
    yield from _distill_checks(config)
    yield from _kl_control_checks(config.algorithm, config.rollout.groups_per_batch * config.rollout.n)
    yield from _trainer_checks(config)


def _adapter_checks(config: PPOSections) -> Problems:
    """Check that the warm start and the engine go with a LoRA adapter."""
    model, engine = config.model, config.engine
    if model.lora_rank and model.lora_publish == "adapter" and engine.name == "sglang":
        yield "model.lora_publish", "is adapter, and engine.name=sglang takes whole weights: use merged, or vllm"
    if model.lora_rank and model.lora_publish == "adapter" and engine.gpus > 1:
        text = "is adapter, and workers that share a matrix cannot compare what they merged: use merged, or"
        yield "model.lora_publish", f"{text} engine.tensor_parallel_size=1"
    if model.lora_adapter_path is not None and config.warm_start.enable:
        text = "would merge what it trains into the adapter's model: imitate with `python -m trainers.sft` first"
        yield "warm_start.enable", text


def _context_checks(config: PPOSections) -> Problems:
    """Check that prompts, responses and micro-batches go with the engine's context."""
    response, context = config.rollout.max_response_length, f"engine.max_context={config.engine.max_context}"
    if response >= config.engine.max_context:
        yield "rollout.max_response_length", f"is {response}, which leaves no room for a prompt in {context}"
    if (longest := config.data.longest_prompt) is not None and longest >= config.engine.max_context:
        yield "data.longest_prompt", f"is {longest}, which {context} does not hold"
    most = config.actor.max_tokens_per_micro_batch
    if most is not None and most < config.engine.max_context:
        yield "actor.max_tokens_per_micro_batch", f"is {most}; the longest episode, {context}, must fit"


def _rollout_checks(config: PPOSections) -> Problems:
    """Check how episodes are sampled, and how many are in flight."""
    rollout, engine = config.rollout, config.engine
    if config.env.backend == "ray" and config.env.workers is None:
        yield "env.workers", "must be a number with env.backend=ray: how many actors the cluster is to hold at most"
    if isinstance(engine, SGLangEngineSection) and not engine.base_urls and engine.sglang.seeds and rollout.min_p > 0:
        yield "rollout.min_p", "goes with engine.name=sglang only where engine.sglang.seeds=false"
    yield from sampling_mask_checks(rollout, engine.name)
    futures = config.multiturn_reward.temperature if config.multiturn_reward.enable else None
    yield from temperature_checks(rollout, config.validation, futures, engine.name)


def _batch_checks(config: PPOSections) -> Problems:
    """Check that a batch has enough episodes to compare and to split."""
    rollout, algorithm, estimator = config.rollout, config.algorithm, config.algorithm.adv_estimator
    if rollout.n < 2:
        if rollout.filter_zero_variance and "greedy" not in algorithm.needs:
            yield "rollout.n", "must be at least 2 with rollout.filter_zero_variance: one episode alone never differs"
        if algorithm.compares_siblings:
            yield "rollout.n", f"must be at least 2 with algorithm.adv_estimator={estimator}: one alone teaches nothing"
    for key, text in algorithm.checks(rollout.n):
        yield f"algorithm.{key}", text
    episodes = rollout.groups_per_batch * rollout.n
    if config.actor.mini_batches > episodes:
        text = f"rollout.groups_per_batch={rollout.groups_per_batch} times rollout.n={rollout.n}"
        yield "actor.mini_batches", f"is {config.actor.mini_batches}, but a batch has only {episodes} episodes ({text})"


def _variance_checks(config: PPOSections) -> Problems:
    """Check that groups can be ranked by the variance of their rewards, and that this ranks what the estimator sees."""
    rollout, needs, key = config.rollout, config.algorithm.needs, "rollout.filter_variance_top_p"
    if rollout.filter_variance_top_p == 1:
        return
    if rollout.filter_zero_variance:
        yield key, "drops groups without a difference, too, and rollout.filter_zero_variance replaces them: use one"
    if rollout.n < 2 and "greedy" not in needs:
        yield "rollout.n", f"must be at least 2 with {key}: one episode alone never differs"
    if rollout.groups_per_batch < 2:
        yield "rollout.groups_per_batch", f"must be at least 2 with {key}, which compares the groups of a batch"
    for need, text in _NOT_BY_TOTAL.items():
        if need in needs:
            estimator = f"algorithm.adv_estimator={config.algorithm.adv_estimator}"
            yield key, f"ranks groups by total rewards: with {estimator} {text}"


_NOT_BY_TOTAL = {
    "forks": "it would drop groups whose episodes earned alike; their forks may differ",
    "terms": "it would drop groups whose terms differ and add up to the same",
}


def _trainer_checks(config: PPOSections) -> Problems:
    """Check the run's iterations and folders."""
    trainer = config.trainer
    iterations = f"trainer.total_iterations={trainer.total_iterations}"
    if late := [step for step in trainer.profile_steps if step > trainer.total_iterations]:
        yield "trainer.profile_steps", f"has {late[0]}, and there are {iterations}"
    if "critic" in config.algorithm.needs and (warmup := config.critic.warmup) >= trainer.total_iterations:
        yield "critic.warmup", f"is {warmup}: the policy would not be trained in any of {iterations}"
    dumps = [folder for folder in (trainer.rollout_data_dir, trainer.validation_data_dir) if folder is not None]
    if len(dumps) == 2 and len({Path(folder).expanduser().absolute() for folder in dumps}) == 1:
        yield "trainer.validation_data_dir", "is trainer.rollout_data_dir: files of the two have the same names"
    if trainer.resume_mode == "resume_path" and trainer.resume_from_path is None:
        yield "trainer.resume_from_path", "must be given with trainer.resume_mode=resume_path"


def _held_out_checks(config: PPOSections) -> Problems:
    """Check that validation is on other tasks than training; every run ends with a validation."""
    env, data = config.env, config.data
    components: dict[str, PlayedEnvSection | ComponentSection] = {}
    components |= {f"env.mixture.{name}": component for name, component in env.mixture.items()}
    for key, component in (components or {"env": env}).items():
        tasks = component.kwargs.get("tasks")
        names = [tasks] if isinstance(tasks, str) else tasks if isinstance(tasks, list | tuple) else ()
        files = [name for name in names if isinstance(name, str) and name.endswith(TASK_FILES)]
        if files and data.train_files is None and data.val_files is None and "tasks" not in component.val_kwargs:
            instead = f"{key}.val_kwargs.tasks"
            if not components:
                instead = f"data.train_files and data.val_files instead (or {instead})"
            text = f"is a file, {files[0]}: validation would be on the tasks that are trained on. Give {instead}"
            yield f"{key}.kwargs.tasks", text


def mixture_checks(env: EnvSection | PlayedEnvSection, data: TrainDataSection) -> Problems:
    """Check a mixture, which replaces the single environment."""
    if not env.mixture:
        return
    if odd := [name for name in env.mixture if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name)]:
        yield "env.mixture", f"names a component {odd[0]!r}; a name has letters, digits, - and _"
    for section, names in ((env, ("id", "kwargs", "val_kwargs")), (data, ("train_files", "val_files"))):
        for name in names:
            if hasattr(section, name) and changed(section, name):
                instead = "kwargs.tasks" if section is data else name
                if name == "val_files":
                    instead = "val_kwargs.tasks"
                key = f"{'env' if section is env else 'data'}.{name}"
                yield key, f"is of one environment, and env.mixture has several: give env.mixture.NAME.{instead}"


def _curriculum_checks(config: PPOSections) -> Problems:
    env, n = config.env, config.rollout.n
    if env.curriculum.kind == "signal" and n < 2:
        text = "is signal, which is seen in episodes of one task that differ: it needs rollout.n of at least 2"
        yield "env.curriculum.kind", text
    if env.curriculum.kind == "fixed" and not env.curriculum.reverse_share:
        for name, component in env.mixture.items():
            if component.success_reward is not None:
                text = "has no effect without env.curriculum.kind=signal or env.curriculum.reverse_share"
                yield f"env.mixture.{name}.success_reward", text


#: Options of the trained user: all but its model, and JSON, which would hide its own samples.
_USER_OPTIONS = ("persona", "manner", "prompt", "may_end", "end_marker", "leak_limit", "tries")


def _side_checks(config: PPOSections) -> Problems:
    """Check training of the user's side, alone or with the assistant's."""
    env, side = config.env, f"env.train_side={config.env.train_side}"
    if env.train_side == "policy":
        return
    if env.mixture:
        yield "env.mixture", f"does not go with {side}: give one environment"
    if env.backend == "thread":
        yield "env.backend", f"is thread, whose environments would share one event loop with {side}: use process"
    for section, kwargs in (("kwargs", env.kwargs), ("val_kwargs", env.val_kwargs)):
        if "user" in kwargs:
            text = f"does not go with {side}: the model that is trained plays the user, and env.user has its options"
            yield f"env.{section}.user", text
    for name in env.user.keys() - {*_USER_OPTIONS}:
        text = "is no option of a user that is trained, whose model is model.path"
        yield f"env.user.{name}", f"{text}; known are {', '.join(_USER_OPTIONS)}"
    if env.train_side == "user" and config.warm_start.enable is not False:
        warm, reason = config.warm_start, "shows what the assistant says, and the user is trained"
        if warm.files is None and (warm.enable or config.model.path == "tiny"):
            text = (
                f"{reason}: give warm_start.files (`textenvs users dialogues` writes some), or warm_start.enable=false"
            )
            yield "warm_start.enable", text
        elif warm.files is not None and warm.careless_steps:
            yield "warm_start.careless_steps", f"{reason}: it must be 0"
    yield from several_roles_checks(config, side)


def _frozen_checks(config: PPOSections) -> Problems:
    """Check that frozen roles go with the kind of training."""
    env = config.env
    if env.frozen and env.mixture:
        yield "env.frozen", "is of one environment, and env.mixture has several"
    if env.frozen and env.train_side != "policy":
        own = ", which has its own: env.assistant" if env.train_side == "user" else ", which trains every role"
        yield "env.frozen", f"does not go with env.train_side={env.train_side}{own}"


def several_roles_checks(config: PPOSections, side: str) -> Problems:
    """Check what does not go with episodes in which several roles act by ``step``; ``side`` says which these are."""
    env = config.env
    if config.algorithm.adv_estimator in ("fork", "remax"):
        text = f"is {config.algorithm.adv_estimator}, which plays more of each episode, and only the assistant's side"
        yield "algorithm.adv_estimator", f"{text}; it does not go with {side}"
    later = {
        "env.curriculum.reverse_share": env.curriculum.reverse_share,
        **_judges(config),
        "overlong_buffer.enable": config.overlong_buffer.enable,
        "relative_length.tokens": config.relative_length.tokens,
        "relative_length.turns": config.relative_length.turns,
        "rollout.cut_reply_penalty": config.rollout.cut_reply_penalty,
    }
    for name in (name for name, value in later.items() if value):
        yield name, f"does not go with {side}: it scores or continues an assistant's turns"
    if config.algorithm.reaction_credit.weight:
        text = "the user there is played by a policy, and names no move"
        yield "algorithm.reaction_credit.weight", f"does not go with {side}: {text}"
    if config.actor.distill.privilege is not None:
        yield "actor.distill.context", f"does not go with {side}: a teacher sees more of one role's conversation alone"
    if config.actor.observation_loss:
        text = "there, answers are replies of the policy or of its partner, good and bad ones: it would imitate them"
        yield "actor.observation_loss", f"does not go with {side}: {text}"


def template_checks(names: Iterable[str]) -> Problems:
    for name, what in refused(names):
        yield f"data.chat_template_kwargs.{name}", f"cannot be given: it is {what}"


def engine_checks(engine: EngineSection) -> Problems:
    name, urls = engine.name, engine.base_urls
    if (engine.replicas or 1) > 1 and urls:
        cause = f"each address in engine.{name}.base_url is a replica already"
        yield "engine.replicas", f"is {engine.replicas}; {cause}"
    if isinstance(engine, SGLangEngineSection):
        words = [word.partition("=")[0] for word in engine.sglang.server_args]
        if flag := next((word for word in words if word in _TENSOR_PARALLEL), None):
            yield "engine.sglang.server_args", f"has {flag}: give engine.tensor_parallel_size instead"
    if isinstance(engine, VLLMEngineSection):
        yield from ((f"engine.vllm.args.{key}", why) for key, why in refused_arguments(engine.vllm.args).items())
    if len(set(urls)) < len(urls):
        yield f"engine.{name}.base_url", "names a server twice; a server has one trainer at a time"


def _cluster_checks(config: PPOSections) -> Problems:
    cluster = config.cluster
    if cluster.nsight.get("capture-range") == "cudaProfilerApi":
        if not config.trainer.profile_steps:
            yield "trainer.profile_steps", "is empty, and cluster.nsight.capture-range=cudaProfilerApi waits for these"
        if config.model.device == "cpu":
            yield "cluster.nsight.capture-range", "is cudaProfilerApi, and model.device=cpu calls no CUDA"
    if config.engine.sleeps and config.rollout.staleness:
        text = "needs rollout.staleness=0: the engine sleeps while the learner learns, and episodes could not continue"
        yield f"engine.{config.engine.name}.sleep_mode", text
    if cluster.backend == "local" and (cluster.learner_ranks > 1 or cluster.nnodes > 1):
        yield "cluster.backend", "is local, which is one learner rank in this process: leave it out, or write ray"
    if cluster.learner_ranks > 1 and config.trainer.fsdp == "never":
        yield "trainer.fsdp", f"must not be never with cluster.learner_ranks={cluster.learner_ranks}"


def learner_checks(model: ModelSection, run: RunSection) -> Problems:
    """Check the learner's keys, as far as that does not depend on the machine."""
    if model.lora_adapter_path is not None and not model.lora_rank:
        yield "model.lora_rank", "is 0; with model.lora_adapter_path it is the adapter's, r in its adapter_config.json"
    if model.lora_adapter_path is not None and model.path == "tiny":
        yield "model.lora_adapter_path", "needs model.path: a saved adapter is of a saved model"
    if isinstance(model.target_modules, str) and model.target_modules != "all-linear":
        yield "model.target_modules", f"is {model.target_modules!r}; it must be a list of names, or all-linear"
    if not model.target_modules:
        yield "model.target_modules", "is empty: no layer would be trained"
    if model.path == "tiny":
        for name, heads in (("heads", model.heads), ("kv_heads", model.kv_heads)):
            if heads % run.tensor_parallel_size:
                size = run.tensor_parallel_size
                yield "trainer.tensor_parallel_size", f"is {size}, which does not divide model.{name}={heads}"


def _judges(config: PPOSections) -> dict[str, Any]:
    """Return what scores conversations, by key; a value that is false is off."""
    function = config.custom_reward_function.path
    futures = {"multiturn_reward.enable": config.multiturn_reward.enable, "custom_reward_function.path": function}
    return {**futures, **sections_of(config)}


def _multiturn_checks(config: PPOSections) -> Problems:
    section, algorithm = config.multiturn_reward, config.algorithm
    if not section.enable:
        return
    if section.credit == "difference":
        if config.env.curriculum.reverse_share:
            yield (
                "multiturn_reward.credit",
                "is difference, and with env.curriculum.reverse_share the first turn of an episode that begins in the "
                "middle would earn what the replayed ones did, too: use value, or env.curriculum.reverse_share=0",
            )
        return
    difference = "multiturn_reward.credit=difference"
    instead = f"is the return already and must not be added up over turns: use {difference}, or"
    adds = f"adds up an episode's rewards; with credit=value a turn's reward {instead}"
    alone = "a score of the whole conversation would pay the last turn alone, because nothing is added up over turns "
    alone += "with multiturn_reward.credit=value; use"
    if algorithm.reward_credit != "as_earned":
        yield "algorithm.reward_credit", f"{adds} as_earned"
    if algorithm.adv_estimator not in _TURN_DISCOUNT:
        yield "multiturn_reward.credit", f"is value, which {instead} one of {', '.join(_TURN_DISCOUNT)} with gamma=0"
    elif (gamma := getattr(algorithm, "gamma", 1.0)) != 0:
        yield "algorithm.gamma", f"is {gamma}; with multiturn_reward.credit=value a turn's reward {instead} 0"
    elif whole := [key for key, model in sections_of(config).items() if not model.per_turn]:
        yield f"{whole[0]}.per_turn", f"is false: {alone} true, or {difference}"
    elif config.custom_reward_function.path is not None:
        yield "custom_reward_function.path", f"is of whole conversations: {alone} {difference}"
    elif not section.replace and not any(model.replace for model in config.reward_models.values()):
        cause = "is false, and what the environment pays counts"
        yield "multiturn_reward.replace", f"{cause}: {alone} true, or {difference}"
    elif getattr(algorithm, "outcome_mix", 0.0):
        yield "algorithm.outcome_mix", f"{adds} 0"


def _replace_checks(config: PPOSections) -> Problems:
    """Check that only one kind of reward replaces the environment's; reward models are checked among themselves."""
    function, futures = config.custom_reward_function, config.multiturn_reward
    model = next((key for key, one in sections_of(config).items() if one.replace and one.kind != "moves"), "")
    replacing = {
        "custom_reward_function": function.path is not None and function.replace,
        "multiturn_reward": futures.enable and futures.replace,
        model: bool(model),
    }
    taking = [key for key, replaces in replacing.items() if replaces]
    for key in taking[1:]:
        text = f"and {taking[0]}.replace would both replace the environment's reward: set one to false"
        yield f"{key}.replace", text


def _algorithm_checks(algorithm: Estimator) -> Problems:
    """Check the credit assignment."""
    chosen, estimator = algorithm.reward_credit, algorithm.adv_estimator
    if chosen not in _CREDITS and not all(chosen.rpartition(":")):
        yield _CREDIT, f"is {chosen!r}; it must be one of {', '.join(_CREDITS)}, or FILE.py:FUNCTION"
    if chosen in _CREDITS[1:] and estimator in _BY_EPISODE:
        text = f"which sees the sum of an episode's rewards alone, and {chosen} keeps that"
        yield _CREDIT, f"has no effect with algorithm.adv_estimator={estimator}, {text}"


def _reaction_checks(config: PPOSections) -> Problems:
    """Check that a group has other episodes to compare users' moves with; forks are no others."""
    section = config.algorithm.reaction_credit
    if section.weight and section.baseline == "group" and config.rollout.n < 2:
        text = "is group, and with rollout.n=1 there are no other episodes in it: use batch or none"
        yield "algorithm.reaction_credit.baseline", text


def _fork_checks(config: PPOSections) -> Problems:
    """Check conflicts with forks, which have only the turns from their fork point."""
    if "forks" not in config.algorithm.needs:
        return
    if config.algorithm.reward_credit != "as_earned":
        text = "moves rewards between turns, and a fork has but some of its root's: use as_earned"
        yield "algorithm.reward_credit", f"is {config.algorithm.reward_credit}, which {text}"
    if config.rollout.filter_zero_variance:
        text = "would drop groups whose episodes earned the same in all; their forks may differ. Leave it out"
        yield "rollout.filter_zero_variance", text


def _kl_control_checks(algorithm: Estimator, episodes: int) -> Problems:
    """Check the control of an adaptive weight."""
    control = algorithm.kl_ctrl
    if not algorithm.use_kl_in_reward or control.type != "adaptive":
        return
    if not control.kl_coef:
        yield "algorithm.kl_ctrl.kl_coef", "is 0, and algorithm.kl_ctrl.type=adaptive multiplies it: it would stay 0"
    if episodes >= 5 * control.horizon:
        text = f"it must be above {episodes / 5:g}, or one batch could take the weight to 0"
        yield "algorithm.kl_ctrl.horizon", f"is {control.horizon:g}; with {episodes} episodes a batch {text}"


def _loss_checks(actor: PolicyLoss, estimator: str) -> Problems:
    for name in ("importance_correction", "rejection"):
        if getattr(actor, name) != "none" and actor.old_logprobs != "recompute":
            yield f"actor.{name}", "needs actor.old_logprobs=recompute: otherwise both policies are the same"
    if actor.rejection.endswith(("_k2", "_k3")) and actor.rejection_kl is None:
        yield "actor.rejection_kl", f"is null; actor.rejection={actor.rejection} needs it, in nats"
    for key, text in actor.checks():
        yield f"actor.{key}", text
    if actor.unit != "episode":
        return
    name = actor.policy_loss
    instead = "use actor.policy_loss=gspo_token"
    if estimator not in _BY_EPISODE:
        text = f"gives turns or tokens their own: {instead}, or one of {', '.join(_BY_EPISODE)}"
        message = (
            f"{name} spreads each advantage over its whole episode, and algorithm.adv_estimator={estimator} {text}"
        )
        yield "actor.policy_loss", message
    if actor.importance_correction in ("token_tis", "decoupled"):
        yield "actor.importance_correction", f"{name} is of whole episodes: use sequence_tis, or {instead}"
    if actor.rejection.startswith("token"):
        yield "actor.rejection", f"{name} is of whole episodes: use a rejection of sequences, or {instead}"


def _distill_checks(config: PPOSections) -> Problems:
    """Check that the teacher can score tokens, and differs from the policy."""
    actor, section = config.actor, config.actor.distill
    if section.teacher is None:
        return
    if section.teacher == "policy" and section.context == "none":
        text = "a teacher that sees what the policy sees is the policy, and teaches nothing: give it goal, answer or"
        yield "actor.distill.context", f"is none with actor.distill.teacher=policy; {text} expert"
    if actor.unit == "episode" and not section.top_k:
        text = f"actor.policy_loss={actor.policy_loss} is of whole episodes: use gspo_token or actor.distill.top_k"
        yield "actor.distill.teacher", f"gives each token an advantage of its own, and {text}"
    if section.address is not None and (config.rollout.temperature != 1 or config.rollout.keep_sampling_mask):
        text = "a server scores tokens at temperature 1 and over all of them: set rollout.temperature=1 and"
        yield "actor.distill.teacher", f"is an address; {text} rollout.keep_sampling_mask=false"
    if section.privilege is not None and config.env.frozen:
        yield "actor.distill.context", "does not go with env.frozen, whose environment shows a teacher nothing more"
    if not section.rewards:
        unused = {
            "algorithm.reaction_credit.weight": config.algorithm.reaction_credit.weight > 0,
            "algorithm.use_kl_in_reward": config.algorithm.use_kl_in_reward,
            "rollout.filter_zero_variance": config.rollout.filter_zero_variance,
            "rollout.filter_variance_top_p": config.rollout.filter_variance_top_p < 1,
        }
        for key in (key for key, is_set in unused.items() if is_set):
            yield key, "is about rewards, and actor.distill.rewards=false learns from the teacher alone"


def overlong_checks(config: PPOSections) -> Problems:
    """Check that there is a limit, and that rewards are added up."""
    section, limit = config.overlong_buffer, config.rollout.max_response_tokens
    if not section.enable:
        return
    if limit is None:
        yield "rollout.max_response_tokens", "is null; overlong_buffer.enable=true needs it: how long a response may be"
    elif section.len > limit:
        yield "overlong_buffer.len", f"is {section.len}; it is at most rollout.max_response_tokens={limit}"
    elif config.multiturn_reward.enable and config.multiturn_reward.credit == "value":
        yield (
            "overlong_buffer.enable",
            "would charge the last turn alone, because nothing is added up over turns with "
            "multiturn_reward.credit=value; use multiturn_reward.credit=difference",
        )


def relative_length_checks(config: PPOSections) -> Problems:
    """Check that a success has others to be compared with, and that rewards are added up."""
    for name in ("tokens", "turns"):
        key, estimator = f"relative_length.{name}", config.algorithm.adv_estimator
        if not getattr(config.relative_length, name):
            continue
        if config.rollout.n == 1:
            yield key, "compares the successes of a group: rollout.n must be at least 2"
        for on, name in (
            (config.rollout.filter_zero_variance, "filter_zero_variance=true"),
            (config.rollout.filter_variance_top_p < 1, "filter_variance_top_p"),
        ):
            if on:
                yield key, f"compares groups in which all succeed, too, which rollout.{name} would drop"
        if estimator == "fork":
            yield key, "does not go with algorithm.adv_estimator=fork, whose forks are parts of episodes"
        if estimator == "gdpo":
            yield key, "does not go with algorithm.adv_estimator=gdpo, which would normalize it whatever its weight"
        if config.multiturn_reward.enable and config.multiturn_reward.credit == "value":
            yield key, "would change the last turn alone with multiturn_reward.credit=value: use credit=difference"


_REWARD_NEEDS = {"classifier": "path", "service": "url", "judge": "model", "moves": "model"}
_TAKEN = ("custom", "multiturn", "moved", "environment_not_counted")


def reward_model_checks(config: PPOSections) -> Problems:
    """Check the keys of reward models, with each other and with the rest."""
    sections = sections_of(config)
    for key, section in sections.items():
        if key != f"reward_models.{section.name}":
            yield f"{key}.name", f"is {section.name}, and it is named by its key: leave it out"
        if isinstance(section, ClassifierModelSection):
            yield from _worker_checks(key, section, config.cluster.backend)
        needed = _REWARD_NEEDS[section.kind]
        if getattr(getattr(section, section.kind), needed) is None:
            yield f"{key}.{section.kind}.{needed}", f"must be given with {key}.kind={section.kind}"
        if isinstance(section, MoveModelSection):
            yield from _move_checks(key, section, config.algorithm)
        if not section.weight:
            yield f"{key}.weight", "is 0: no score would count"
        if section.name in _TAKEN:
            yield f"{key}.name", f"is {section.name}, which is the name of another reward's term"
    replaces = {key: section.replace for key, section in sections.items() if section.kind != "moves"}
    if len(set(replaces.values())) > 1:
        values = ", ".join(f"{key}.replace={str(value).lower()}" for key, value in replaces.items())
        text = "the environment's reward is added to theirs, or replaced"
        yield f"{next(iter(replaces))}.replace", f"must be the same for all reward models ({values}): {text}"
    yield from _pool_checks(sections, config)


def _move_checks(key: str, section: MoveModelSection, algorithm: Estimator) -> Problems:
    """Check the keys of a model that names moves and rewards nothing."""
    for name in ("per_turn", "weight", "replace"):
        if changed(section, name):
            yield f"{key}.{name}", f"has no effect with {key}.kind=moves, which rewards nothing"
    if not algorithm.reaction_credit.weight:
        yield f"{key}.kind", "is moves, which has no effect without algorithm.reaction_credit.weight above 0"


def _worker_checks(key: str, section: ClassifierModelSection, backend: str | None) -> Problems:
    """Check the keys that only some places of a classifier's workers have."""
    pool = f"has no effect without {key}.enable_resource_pool"
    if not section.enable_resource_pool:
        for name in ("n_gpus_per_node", "nnodes", "learner_spans_pool"):
            if changed(section, name):
                yield f"{key}.{name}", f"{pool}=true"
    elif changed(section.classifier, "replicas"):  # it has as many as places
        yield f"{key}.classifier.replicas", f"{pool}=false"
    if backend != "ray" and changed(section.classifier, "threads"):  # those of this process share trainer.threads
        yield f"{key}.classifier.threads", "has no effect without cluster.backend=ray"


def _pool_checks(sections: Mapping[str, RewardModelSection], config: PPOSections) -> Problems:
    classifiers = {key: model for key, model in sections.items() if isinstance(model, ClassifierModelSection)}
    pools = [key for key, section in classifiers.items() if section.own_pool]
    for key in pools[1:]:
        text = "one reward model may have places of its own; others share the learner's, or are served (kind=service)"
        yield f"{key}.enable_resource_pool", f"is true for {pools[0]} as well; {text}"
    for key in pools[:1]:
        pool, staleness = classifiers[key], config.rollout.staleness
        if pool.nnodes > 1 and config.cluster.backend != "ray":
            yield f"{key}.nnodes", f"is {pool.nnodes}; several machines need cluster.backend=ray"
        if not pool.learner_spans_pool:
            return
        spans = f"{key}.learner_spans_pool"
        if other := next((other for other in classifiers if other != key), None):
            text = f"engines and {key} have all places of the learner; serve {other} (kind=service)"
            yield spans, f"leaves no place for {other}: {text}"
        if not config.cluster.colocate:
            yield spans, "needs cluster.colocate=true: the learner spans the engines too"
        if staleness:
            yield spans, f"needs rollout.staleness=0, not {staleness}: the model sleeps while the learner learns"
