"""What several keys must agree on, and what must exist on disk. Each check yields the key to change and why."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..chat_template import refused
from ..engines.vllm.options import refused_arguments
from ..hub import is_name
from ..saved_adapter import read_adapter
from .reward_model import reward_model_checks, sections_of
from .rewards import overlong_checks
from .rollout import sampling_mask_checks
from .section import Problems
from .unread import ESTIMATORS, GROUPWISE, WITH_CRITIC

if TYPE_CHECKING:
    from .engines import ServingSection
    from .learning import ActorSection, AlgorithmSection
    from .model import ModelSection
    from .running import RunSection
    from .schema import PPOConfig, RunConfig
    from .section import Section

#: Estimators whose discount is a turn's and that add up nothing else.
_TURN_DISCOUNT = ("turn_grpo", "turn_gae")
#: Estimators that learn nothing from a group of one.
_COMPARE_SIBLINGS = frozenset({*GROUPWISE, "gigpo"} - {"rloo"})
#: Estimators that give all tokens of an episode the same advantage.
_BY_EPISODE = (*GROUPWISE, "remax")
#: Losses of whole episodes.
_EPISODE_LOSSES = ("gspo", "geo_mean")
_CREDIT = "algorithm.reward_credit"
#: Where rewards may be moved without a function of the user's; all keep an episode's sum.
_CREDITS = ("as_earned", "last", "spread", "discounted")
#: What SGLang's command line calls ``engine.tensor_parallel_size``.
_TENSOR_PARALLEL = ("--tp", "--tp-size", "--tensor-parallel-size")
#: Those that learn another policy than the one that earns most, and where.
_MISLEADING_CREDIT = {
    "spread": "what is done decides how many turns follow",
    "discounted": "what is done decides when a reward comes",
}
_FILES = (".jsonl", ".parquet")
_NO_FILES = ("generated:", "hub:")  # sources of tasks that are not on this disk


def ppo_checks(config: PPOConfig) -> Problems:
    """The checks across the sections of a PPO run; nothing here touches the disk."""
    yield from template_checks(config.data.chat_template_kwargs)
    yield from model_checks(config.model)
    yield from learner_checks(config.model, config.trainer)
    yield from _credit_checks(config.algorithm)
    yield from _gdpo_checks(config.algorithm)
    engine, rollout, trainer, actor = config.engine, config.rollout, config.trainer, config.actor
    estimator, context = config.algorithm.adv_estimator, f"engine.max_context={engine.max_context}"
    iterations = f"trainer.total_iterations={trainer.total_iterations}"
    yield from engine_checks(engine)
    if engine.name == "sglang" and engine.sglang.base_url is None and engine.sglang.seeds and rollout.min_p > 0:
        yield "rollout.min_p", "goes with engine.name=sglang only where engine.sglang.seeds=false"
    if config.model.lora_rank and config.model.lora_publish == "adapter" and engine.name == "sglang":
        yield "model.lora_publish", "is adapter, and engine.name=sglang takes whole weights: use merged, or vllm"
    if config.model.lora_rank and config.model.lora_publish == "adapter" and engine.tensor_parallel_size > 1:
        text = "is adapter, and workers that share a matrix cannot compare what they merged: use merged, or"
        yield "model.lora_publish", f"{text} engine.tensor_parallel_size=1"
    if rollout.max_response_length >= engine.max_context:
        text = f"is {rollout.max_response_length}, which leaves no room for a prompt in {context}"
        yield "rollout.max_response_length", text
    if config.model.lora_adapter_path is not None and config.warm_start.enable:
        text = "would merge what it trains into the adapter's model: imitate with `python -m trainers.sft` first"
        yield "warm_start.enable", text
    if (longest := config.data.longest_prompt) is not None and longest >= engine.max_context:
        yield "data.longest_prompt", f"is {longest}, which {context} does not hold"
    if late := [step for step in trainer.profile_steps if step > trainer.total_iterations]:
        yield "trainer.profile_steps", f"has {late[0]}, and there are {iterations}"
    yield from _held_out_checks(config)
    yield from _multiturn_checks(config)
    yield from overlong_checks(config)
    yield from _replace_checks(config)
    yield from reward_model_checks(config)
    yield from _cluster_checks(config)
    most = rollout.staleness * rollout.groups_per_batch + 1
    if rollout.window > most:
        text = f"rollout.staleness={rollout.staleness} and rollout.groups_per_batch={rollout.groups_per_batch}"
        yield "rollout.window", f"is {rollout.window}; with {text} it is at most {most}"
    if config.env.backend == "ray" and config.env.workers is None:
        yield "env.workers", "must be a number with env.backend=ray: how many actors the cluster is to hold at most"
    yield from sampling_mask_checks(rollout, engine.name)
    if rollout.n < 2:
        if rollout.filter_zero_variance and estimator != "remax":
            yield "rollout.n", "must be at least 2 with rollout.filter_zero_variance: one episode alone never differs"
        if estimator in _COMPARE_SIBLINGS:
            yield "rollout.n", f"must be at least 2 with algorithm.adv_estimator={estimator}: one alone teaches nothing"
    if estimator == "passk" and 1 < rollout.n <= (k := config.algorithm.pass_k):
        yield "algorithm.pass_k", f"is {k}; it must be below rollout.n={rollout.n}, to leave an episode to compare with"
    episodes = rollout.groups_per_batch * rollout.n
    if actor.mini_batches > episodes:
        text = f"rollout.groups_per_batch={rollout.groups_per_batch} times rollout.n={rollout.n}"
        yield "actor.mini_batches", f"is {actor.mini_batches}, but a batch has only {episodes} episodes ({text})"
    if (most := actor.max_tokens_per_micro_batch) < engine.max_context:
        yield "actor.max_tokens_per_micro_batch", f"is {most}; the longest episode, {context}, must fit"
    yield from _loss_checks(actor, estimator)
    yield from _kl_control_checks(config.algorithm, episodes)
    if estimator in WITH_CRITIC and (warmup := config.critic.warmup) >= trainer.total_iterations:
        yield "critic.warmup", f"is {warmup}: the policy would not be trained in any of {iterations}"
    dumps = [each for each in (trainer.rollout_data_dir, trainer.validation_data_dir) if each is not None]
    if len(dumps) == 2 and len({Path(each).expanduser().absolute() for each in dumps}) == 1:
        yield "trainer.validation_data_dir", "is trainer.rollout_data_dir: files of the two have the same names"
    if trainer.resume_mode == "resume_path" and trainer.resume_from_path is None:
        yield "trainer.resume_from_path", "must be given with trainer.resume_mode=resume_path"


def _held_out_checks(config: PPOConfig) -> Problems:
    """Validation is on other tasks than training; every run ends with one."""
    given = config.env.kwargs.get("tasks")
    names = [given] if isinstance(given, str) else given if isinstance(given, list | tuple) else ()
    files = [name for name in names if isinstance(name, str) and name.endswith(_FILES)]
    data = config.data
    if files and data.train_files is None and data.val_files is None and "tasks" not in config.env.val_kwargs:
        text = f"is a file, {files[0]}: validation would be on the tasks that are trained on. Give data.train_files and"
        yield "env.kwargs.tasks", f"{text} data.val_files instead (or env.val_kwargs.tasks)"


def template_checks(names: Iterable[str]) -> Problems:
    """Variables for the chat template that are the renderer's own."""
    for name, what in refused(names):
        yield f"data.chat_template_kwargs.{name}", f"cannot be given: it is {what}"


def engine_checks(engine: ServingSection) -> Problems:
    """How many servers there are, and their arguments."""
    name, urls = engine.name, engine.base_urls
    if engine.replicas > 1 and (urls or name == "openai"):
        each = f"each address in engine.{name}.base_url is a replica already" if urls else "engine.name=openai is one"
        yield "engine.replicas", f"is {engine.replicas}; {each}"
    words = [word.partition("=")[0] for word in engine.sglang.server_args]
    if given := next((word for word in words if word in _TENSOR_PARALLEL), None):
        yield "engine.sglang.server_args", f"has {given}: give engine.tensor_parallel_size instead"
    if name == "vllm":
        yield from ((f"engine.vllm.args.{key}", why) for key, why in refused_arguments(engine.vllm.args).items())
    if len(set(urls)) < len(urls):
        yield f"engine.{name}.base_url", "names a server twice; a server has one trainer at a time"


def _cluster_checks(config: PPOConfig) -> Problems:
    cluster = config.cluster
    if cluster.nsight.get("capture-range") == "cudaProfilerApi":
        if not config.trainer.profile_steps:
            yield "trainer.profile_steps", "is empty, and cluster.nsight.capture-range=cudaProfilerApi waits for these"
        if config.model.device == "cpu":
            yield "cluster.nsight.capture-range", "is cudaProfilerApi, and model.device=cpu calls no CUDA"
    if config.engine.vllm.sleep_mode and config.rollout.staleness:
        text = "needs rollout.staleness=0: the engine sleeps while the learner learns, and episodes could not go on"
        yield "engine.vllm.sleep_mode", text
    if cluster.backend == "local" and (cluster.learner_ranks > 1 or cluster.nnodes > 1):
        yield "cluster.backend", "is local, which is one learner rank in this process: leave it out, or write ray"
    if cluster.learner_ranks > 1 and config.trainer.fsdp == "never":
        yield "trainer.fsdp", f"must not be never with cluster.learner_ranks={cluster.learner_ranks}"


def estimator_keys(estimator: str) -> tuple[str, ...]:
    """The keys of `algorithm` that this estimator reads, apart from those that every one is followed by."""
    return tuple(name for name, estimators in ESTIMATORS.items() if estimator in estimators)


def learner_checks(model: ModelSection, run: RunSection) -> Problems:
    """What the learner's keys must agree on, as far as that does not depend on the machine."""
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


def model_checks(model: ModelSection) -> Problems:
    """The shape of a model from scratch."""
    if model.path != "tiny":
        return
    if model.hidden % (2 * model.heads):
        text = f"2 * model.heads = {2 * model.heads} (rotary embeddings pair the dimensions of a head)"
        yield "model.hidden", f"is {model.hidden}; it must be a multiple of {text}"
    if model.heads % model.kv_heads:
        yield "model.kv_heads", f"is {model.kv_heads}, which does not divide model.heads={model.heads}"


def _multiturn_checks(config: PPOConfig) -> Problems:
    section, algorithm = config.multiturn_reward, config.algorithm
    if not section.enable:
        return
    if config.env.backend != "inline":
        yield "env.backend", f"is {config.env.backend}, and multiturn_reward forks environments, which must be inline"
    if section.credit == "difference":
        return
    difference = "multiturn_reward.credit=difference"
    instead = f"is the return already and must not be added up over turns: use {difference}, or"
    adds = f"adds up an episode's rewards; with credit=value a turn's reward {instead}"
    alone = (
        "a score of the whole conversation would pay the last turn alone, because nothing is added up over turns with "
    )
    alone += "multiturn_reward.credit=value; use"
    if algorithm.reward_credit != "as_earned":
        yield "algorithm.reward_credit", f"{adds} as_earned"
    if algorithm.adv_estimator not in _TURN_DISCOUNT:
        yield "multiturn_reward.credit", f"is value, which {instead} one of {', '.join(_TURN_DISCOUNT)} with gamma=0"
    elif algorithm.gamma != 0:
        yield "algorithm.gamma", f"is {algorithm.gamma}; with multiturn_reward.credit=value a turn's reward {instead} 0"
    elif whole := [key for key, model in sections_of(config).items() if model.enable and not model.per_turn]:
        yield f"{whole[0]}.per_turn", f"is false: {alone} true, or {difference}"
    elif config.custom_reward_function.path is not None:
        yield "custom_reward_function.path", f"is of whole conversations: {alone} {difference}"
    elif algorithm.outcome_mix:
        yield "algorithm.outcome_mix", f"{adds} 0"


def _replace_checks(config: PPOConfig) -> Problems:
    """What the environment pays can be taken away once; reward models agree on that among themselves."""
    function, futures = config.custom_reward_function, config.multiturn_reward
    model = next((key for key, section in sections_of(config).items() if section.enable and section.replace), "")
    replacing = {
        "custom_reward_function": function.path is not None and function.replace,
        "multiturn_reward": futures.enable and futures.replace,
        model: bool(model),
    }
    taking = [key for key, replaces in replacing.items() if replaces]
    for key in taking[1:]:
        text = f"and {taking[0]}.replace would both take the environment's reward away: set one to false"
        yield f"{key}.replace", text


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
    key, chosen = _CREDIT, algorithm.reward_credit
    if chosen not in _CREDITS and not all(chosen.rpartition(":")):
        yield key, f"is {chosen!r}; it must be one of {', '.join(_CREDITS)}, or FILE.py:FUNCTION"
    if chosen in _CREDITS[1:] and algorithm.adv_estimator in _BY_EPISODE:
        text = f"which sees the sum of an episode's rewards alone, and {chosen} keeps that"
        yield key, f"has no effect with algorithm.adv_estimator={algorithm.adv_estimator}, {text}"


def _kl_control_checks(algorithm: AlgorithmSection, episodes: int) -> Problems:
    """What an adaptive weight cannot work with."""
    control = algorithm.kl_ctrl
    if not algorithm.use_kl_in_reward or control.type != "adaptive":
        return
    if not control.kl_coef:
        yield "algorithm.kl_ctrl.kl_coef", "is 0, and algorithm.kl_ctrl.type=adaptive multiplies it: it would stay 0"
    if episodes >= 5 * control.horizon:
        text = f"it must be above {episodes / 5:g}, or one batch could take the weight to 0"
        yield "algorithm.kl_ctrl.horizon", f"is {control.horizon:g}; with {episodes} episodes a batch {text}"


def _loss_checks(actor: ActorSection, estimator: str) -> Problems:
    for name in ("importance_correction", "rejection"):
        if getattr(actor, name) != "none" and actor.old_logprobs != "recompute":
            yield f"actor.{name}", "needs actor.old_logprobs=recompute: otherwise both policies are the same"
    if actor.rejection.endswith(("_k2", "_k3")) and actor.rejection_kl is None:
        yield "actor.rejection_kl", f"is null; actor.rejection={actor.rejection} needs it, in nats"
    if actor.clip_cov_lb >= actor.clip_cov_ub:
        yield "actor.clip_cov_lb", f"is {actor.clip_cov_lb:g}; it must be below actor.clip_cov_ub={actor.clip_cov_ub:g}"
    if actor.policy_loss not in _EPISODE_LOSSES:
        return
    name = actor.policy_loss
    instead = "use actor.policy_loss=gspo_token"
    if estimator not in _BY_EPISODE:
        text = f"gives turns or tokens their own: {instead}, or one of {', '.join(_BY_EPISODE)}"
        said = f"{name} spreads each advantage over its whole episode, and algorithm.adv_estimator={estimator} {text}"
        yield "actor.policy_loss", said
    if actor.importance_correction in ("token_tis", "decoupled"):
        yield "actor.importance_correction", f"{name} is of whole episodes: use sequence_tis, or {instead}"
    if actor.rejection.startswith("token"):
        yield "actor.rejection", f"{name} is of whole episodes: use a rejection of sequences, or {instead}"


def _adapter_checks(model: ModelSection) -> Problems:
    """Whether a saved adapter is what the configuration says, from its own configuration."""
    assert model.lora_adapter_path is not None
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
        text = f"and the adapter of model.lora_adapter_path is in {', '.join(sorted(saved.target_modules))}"
        yield "model.target_modules", f"is {', '.join(model.target_modules)}, {text}"


def missing_paths(config: Section) -> Problems:
    """Files and folders that the configuration names and that are not there, seen from the current folder."""

    def at(key: str) -> Any:
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name, None)
        return value

    for key in ("data.train_files", "data.val_files", "warm_start.files", "sft.files"):
        for file in at(key) or ():
            path = Path(file).expanduser()
            if key.startswith("data.") and file.startswith(_NO_FILES):
                continue
            if not path.is_file():
                yield key, f"there is no file {file} (looked in {path.absolute().parent})"
            elif path.suffix not in _FILES:
                yield key, f"{file} is neither .jsonl nor .parquet"
    model = at("model.path")
    # Of a name on the hub, the files are asked for when the plan is made.
    if model not in ("tiny", None) and not is_name(model) and not (Path(model).expanduser() / "config.json").is_file():
        text = "is not a folder with a config.json; give a model's folder, a name on the hub, or tiny"
        yield "model.path", f"{model} {text}"
    if at("model.lora_adapter_path") is not None:
        yield from _adapter_checks(at("model"))
    for key, scorer in sections_of(config).items():
        judge = scorer.classifier.path
        if judge is not None and not (Path(judge).expanduser() / "config.json").is_file():
            yield f"{key}.classifier.path", f"{judge} is not a folder with a config.json; give a model's folder"
    credit, _, credited = (at("algorithm.reward_credit") or "").rpartition(":")
    own = "custom_reward_function"
    for key, name_key, file, name in (
        (f"{own}.path", f"{own}.name", at(f"{own}.path"), at(f"{own}.name")),
        (_CREDIT, _CREDIT, credit, credited),
    ):
        if file and not (path := Path(file).expanduser()).is_file():
            yield key, f"there is no file {file}"
        elif file and (problem := _without_function(path, name)) is not None:
            yield name_key, problem
    if (resume := at("trainer.resume_from_path")) is not None and not Path(resume).expanduser().is_dir():
        yield "trainer.resume_from_path", f"there is no folder {resume}"


def _without_function(file: Path, name: str) -> str | None:
    """What is wrong where a Python file gives nothing a name; the file is read, and not run."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    except (OSError, ValueError, SyntaxError) as error:
        return f"{file} cannot be read as Python: {error}"
    bound = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    names = bound | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    if name in names or "*" in names:
        return None
    return f"{file} has no function {name}" + (f"; it has {', '.join(sorted(bound))}" if bound else "")


def notices(config: RunConfig) -> Iterator[str]:
    """What a configuration may ask for and its user should know: a line each, printed when a run starts."""
    algorithm: AlgorithmSection | None = getattr(config, "algorithm", None)
    credit = "" if algorithm is None else algorithm.reward_credit
    if credit in _MISLEADING_CREDIT and algorithm and (credit != "discounted" or algorithm.reward_credit_decay > 0):
        yield (
            f"warning: algorithm.reward_credit={credit} learns another policy than the one that earns most wherever "
            f"{_MISLEADING_CREDIT[credit]} (docs/credit.md has an example); as_earned and last do not"
        )
