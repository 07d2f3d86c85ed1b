"""Joint rules for verl's keys about the parts of a run: engine, environment, models. :mod:`.tables` names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from . import verl
from .translate import BadValueError, Given, Result
from .yaml12 import Loader, dump, reason

_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."

# Options of the engines by verl's names: our key, or (for SGLang) the word of the server's command line.
_VLLM: dict[str, str | tuple[str]] = {
    "tensor_model_parallel_size": "engine.vllm.args.tensor_parallel_size",
    "gpu_memory_utilization": "engine.vllm.gpu_memory_utilization",
    "enforce_eager": "engine.vllm.enforce_eager",
    "max_num_batched_tokens": "engine.vllm.args.max_num_batched_tokens",
    "enable_chunked_prefill": "engine.vllm.args.enable_chunked_prefill",
}
_SGLANG: dict[str, str | tuple[str]] = {
    "tensor_model_parallel_size": ("--tp-size",),
    "gpu_memory_utilization": ("--mem-fraction-static",),
    "enforce_eager": ("--disable-cuda-graph",),
}

# Of a reward model: the keys of its pool, the same here and there, and verl's others with ours.
_POOL = ("enable_resource_pool", "n_gpus_per_node", "nnodes")
_REWARD_MODEL = {
    "model.path": "classifier.path",
    "model_path": "classifier.path",
    "max_length": "classifier.max_length",
    "micro_batch_size_per_gpu": "classifier.rows",
    "forward_max_token_len_per_gpu": "max_batch_tokens",
}

# Where Nsight's options of a worker are: now, and in versions before.
_NSIGHT = ("global_profiler.global_tool_config.nsys.worker_nsight_options.", "trainer.worker_nsight_options.")


def chat_template(given: Given) -> Iterator[Result]:
    """Variables for the chat template, given one by one or as a mapping."""
    whole = "data.apply_chat_template_kwargs"
    if whole in given.verls:
        value = given.verls[whole].value
        if not isinstance(value, Mapping | None):
            raise BadValueError(whole, f"is {dump(value)}; it must be a mapping")
        yield Result("data.chat_template_kwargs", dict(value or {}), of=(whole,))
    for key in [each for each in given.verls if each.startswith(f"{whole}.")]:
        name = key.removeprefix(f"{whole}.")
        yield Result(f"data.chat_template_kwargs.{name}", given.verls[key].value, of=(key,))


def clip(given: Given) -> Iterator[Result]:
    """The ratio's bounds, each by its own key or by one for both."""
    both = f"{_ACTOR}clip_ratio"
    for side in ("low", "high"):
        key = f"{both}_{side}"
        if given.has(key) or given.has(both):
            source = key if given.has(key) else both
            yield Result(f"actor.clip_ratio_{side}", given.value(source), of=(source,))


def validation(given: Given) -> Iterator[Result]:
    """How validation samples."""
    sample, temperature = f"{_ROLLOUT}val_kwargs.do_sample", f"{_ROLLOUT}val_kwargs.temperature"
    value = given.value(temperature) if given.value(sample) is True else 0.0
    yield Result("validation.temperature", 0.0 if value is None else value, of=(sample, temperature))


def norm_by_std(given: Given) -> Iterator[Result]:
    """Which advantages are normalized."""
    key = "algorithm.norm_adv_by_std_in_grpo"
    estimator = _estimator(given)
    if estimator == "grpo" and given.has(key):
        yield Result("algorithm.norm_by_std", given.value(key), of=(key,))
    elif given.has(key):
        yield Result("", f"not used with algorithm.adv_estimator={estimator}", of=(key,))
    # Whitening over the batch is part of verl's GAE, and by definition of REINFORCE++; of none of the others.
    yield Result("algorithm.norm_adv", estimator == "gae")
    if estimator == "rloo":
        yield Result("algorithm.baseline", "group")


def _estimator(given: Given) -> Any:
    name = "algorithm.adv_estimator"
    given_name = given.verls[name].value if name in given.verls else verl.DEFAULTS[name]
    return verl.PPO[name].words.get(given_name, given_name) if isinstance(given_name, str) else given_name


def engine(given: Given, section: str = _ROLLOUT) -> Iterator[Result]:
    """The engine and its options; ``section`` is where verl has them."""
    key = f"{section}name"
    if given.has(key) and not _known(given.value(key), verl.ENGINES):
        raise BadValueError(key, f"is {dump(given.value(key))}; it must be one of {', '.join(verl.ENGINES)}")
    name = verl.ENGINES[given.value(key)] if given.has(key) else given.our("engine.name")
    if given.has(key):
        yield Result("engine.name", name, of=(key,))
    if "engine.name" in given.ours:  # for a try on another machine
        name = given.ours["engine.name"].value
    options = (_VLLM if name == "vllm" else _SGLANG if name == "sglang" else {}).items()
    words: list[str] = []
    used: list[str] = []
    for verls, ours in options:
        full = f"{section}{verls}"
        if not given.has(full):
            continue
        value = given.value(full)
        if isinstance(ours, str):
            yield Result(ours, value, of=(full,))
        elif value is not False:
            words += [ours[0]] if value is True else [ours[0], str(value)]
            used.append(full)
    if words:
        yield Result("engine.sglang.server_args", words, of=tuple(used))
    prefix = f"{section}engine_kwargs.vllm."
    for full in [each for each in given.verls if each.startswith(prefix)]:
        if name == "vllm" and given.has(full):
            yield Result(f"engine.vllm.args.{full.removeprefix(prefix)}", given.value(full), of=(full,))
    parallel = f"{section}tensor_model_parallel_size"
    for full in [
        f"{section}{verls}" for verls in _VLLM if not (name == "vllm" or (name == "sglang" and verls in _SGLANG))
    ]:
        if full == parallel and given.value(full) not in (1, None):
            yield Result("", f"not used: engine.name={name} computes on one device", of=(full,))
        else:
            yield Result("", f"no meaning for engine.name={name}", of=(full,))


def generating_engine(given: Given) -> Iterator[Result]:
    """Likewise, of the command that generates."""
    yield from engine(given, "rollout.")


def _known(name: Any, names: Mapping[str, Any]) -> bool:
    return isinstance(name, str) and name in names


def environment(given: Given) -> Iterator[Result]:
    """The environment, by the interaction or the agent loop."""
    turns = f"{_ROLLOUT}multi_turn."
    interaction, loop = f"{turns}interaction_config_path", f"{_ROLLOUT}agent.default_agent_loop"
    chosen = "env.id" in given.ours
    if given.has(interaction):
        found = _interaction(given.value(interaction), interaction)
        if not chosen:
            yield Result("env.id", found.env, of=(interaction,))
            for name, value in found.kwargs.items():
                yield Result(f"env.kwargs.{name}", value, of=(interaction,))
        yield Result("", "not used: the interaction names the environment", of=(loop,))
    elif not chosen:
        name = given.value(loop)
        if not _known(name, verl.AGENT_LOOPS):
            known = ", ".join(verl.AGENT_LOOPS)
            raise BadValueError(loop, f"is {dump(name)}; known are {known}; or name the environment with env.id")
        yield Result("env.id", verl.AGENT_LOOPS[name], of=(loop,))
    else:
        yield Result("", "not used: env.id is given", of=(loop, interaction))
    user, assistant, older = f"{turns}max_user_turns", f"{turns}max_assistant_turns", f"{turns}max_turns"
    if given.has(user):
        yield Result("env.kwargs.max_user_turns", given.value(user), of=(user,))
    if given.has(assistant, older):
        name = assistant if given.has(assistant) else older
        yield Result("env.kwargs.max_assistant_turns", given.value(name), of=(name,))
    elif given.has(interaction) and not chosen:
        yield Result("env.kwargs.max_assistant_turns", None, of=(interaction,))  # there null is the default


def _interaction(path: Any, key: str) -> verl.Interaction:
    """The environment that an interaction file means.

    Raises:
        BadValueError: It cannot be read, or names no class that is known here.
    """
    try:
        loader = Loader(Path(str(path)).expanduser().read_text(encoding="utf-8"))
        node = loader.get_single_node()
        content = None if node is None else loader.construct_object(node, deep=True)  # type: ignore[no-untyped-call]
    except (OSError, UnicodeDecodeError) as error:
        raise BadValueError(key, f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise BadValueError(key, f"{path} is not YAML: {reason(error)}") from error
    entries = content.get("interaction") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries or not all(isinstance(each, dict) for each in entries):
        raise BadValueError(key, f"{path} needs a list 'interaction' of entries with a class_name")
    found = []
    for entry in entries:
        name = str(entry.get("class_name") or "").rpartition(".")[2]
        if name not in verl.INTERACTIONS:
            raise BadValueError(
                key,
                f"{path} has the class {entry.get('class_name')!r}, which no environment here stands for; known are "
                f"{', '.join(verl.INTERACTIONS)}. Name the environment with env.id instead",
            )
        if entry.get("config"):
            raise BadValueError(key, f"{path}: give the options of {name} as env.kwargs; its 'config' is not read")
        found.append(verl.INTERACTIONS[name])
    if any(each != found[0] for each in found):
        raise BadValueError(key, f"{path} has interactions of several environments; a run has one")
    return found[0]


def critic_model(given: Given) -> Iterator[Result]:
    """The critic starts from the actor's model."""
    key, actors = "critic.model.path", "actor_rollout_ref.model.path"
    if given.has(key) and given.value(key) != given.value(actors):
        yield Result(key, problem="another model than the actor's: the critic starts from the actor's weights")
    elif given.has(key):
        yield Result("", "the actor's model, whose weights the critic starts from", of=(key,))


def reward_model(given: Given) -> Iterator[Result]:
    """A reward model, and a pool of its own for it; by the names of now and those of before."""
    sections = ("reward.reward_model.", "reward_model.")
    enables = tuple(f"{section}enable" for section in sections)
    options = {
        f"{section}{verls}": f"reward_model.{ours}" for section in sections for verls, ours in _REWARD_MODEL.items()
    }
    pools = {section: [f"{section}{name}" for name in _POOL] for section in sections}
    for enable, *sizes in pools.values():
        for key in sizes if given.value(enable) is True else ():
            if given.has(key):
                given.number(key)
            else:
                yield Result(key, problem=f"must be given with {enable}=True", of=(key,))
    if not any(given.value(key) is True for key in enables):
        yield Result("", "no reward model is asked for", of=(*enables, *options, *sum(pools.values(), [])))
        return
    yield Result("reward_model.enable", True, of=enables)
    for key, ours in options.items():
        if given.has(key):
            yield Result(ours, given.value(key), of=(key,))
        else:
            yield Result("", "not given", of=(key,))
    for keys in pools.values():
        if given.value(keys[0]) is not True:
            yield Result("", "no pool is asked for", of=tuple(keys))
            continue
        for key, name in zip(keys, _POOL, strict=True):
            yield Result(f"reward_model.{name}", given.value(key), of=(key,))


def offload(given: Given) -> Iterator[Result]:
    """What is moved to the memory of the CPU."""
    keys = [f"{_ACTOR}fsdp_config.{name}" for name in ("param_offload", "optimizer_offload", "offload_policy")]
    wanted = tuple(key for key in keys if given.value(key) is True)
    if wanted:
        yield Result("trainer.offload", True, of=wanted)
    yield Result("", "nothing is to be moved", of=tuple(key for key in keys if given.value(key) is not True))


def cluster(given: Given) -> Iterator[Result]:
    """How many machines and ranks."""
    nodes, gpus = "trainer.nnodes", "trainer.n_gpus_per_node"
    for key in (nodes, gpus):
        if key in given.verls:
            given.number(key)
    count = (given.value(nodes) or 1, given.value(gpus) or 1)
    if count == (1, 1):
        yield Result("", "one process and one GPU, where there is one", of=(nodes, gpus))
        return
    yield Result("cluster.nnodes", count[0], of=(nodes,))
    yield Result("cluster.n_gpus_per_node", given.value(gpus), of=(gpus,))
    yield Result("cluster.learner_ranks", count[0] * count[1], of=(nodes, gpus))
    if count[0] > 1:
        yield Result("cluster.backend", "ray", of=(nodes,))


def generating_cluster(given: Given) -> Iterator[Result]:
    """Of the command that generates: as many engines as GPUs, and Ray for several machines."""
    nodes, gpus, width = "trainer.nnodes", "trainer.n_gpus_per_node", "rollout.tensor_model_parallel_size"
    count = [given.number(key) if given.has(key) else 1 for key in (nodes, gpus, width)]
    on_ray = count[0] > 1 or given.our("cluster.backend") == "ray"
    replicas, rest = divmod(count[0] * count[1], count[2])
    if rest or not replicas:
        raise BadValueError(
            gpus, f"times {nodes} is {count[0] * count[1]} GPUs, which engines of {count[2]} do not share"
        )
    if count[:2] == [1, 1]:
        yield Result("", "one engine", of=(nodes, gpus))
    else:
        yield Result("engine.replicas", replicas, of=(nodes, gpus))
    if on_ray:
        if count[0] > 1:
            yield Result("cluster.backend", "ray", of=(nodes,))
            yield Result("cluster.nnodes", count[0], of=(nodes,))
        if given.has(gpus):
            yield Result("cluster.n_gpus_per_node", count[1], of=(gpus,))
    for key in ("ray_init.num_cpus", "ray_init.timeline_json_file"):
        if on_ray and given.has(key):
            yield Result(key, given.value(key), of=(key,))
        else:
            yield Result("", "this command is without Ray" if given.has(key) else "the default", of=(key,))


def ray(given: Given) -> Iterator[Result]:
    """Ray's own options."""
    nodes = given.value("trainer.nnodes")
    used = "ray" in (given.our("cluster.backend"), given.our("env.backend")) or (isinstance(nodes, int) and nodes > 1)
    for cpus in ("ray_kwargs.ray_init.num_cpus", "ray_init.num_cpus"):
        if given.has(cpus) and used:
            yield Result("ray_init.num_cpus", given.value(cpus), of=(cpus,))
        else:
            yield Result("", "this run is without Ray" if given.has(cpus) else "the default", of=(cpus,))
    for file in ("ray_kwargs.timeline_json_file", "ray_init.timeline_json_file"):
        if given.has(file):
            yield Result("ray_init.timeline_json_file" if used else "trainer.trace_file", given.value(file), of=(file,))
        else:
            yield Result("", "no timeline is asked for", of=(file,))


def nsight(given: Given) -> Iterator[Result]:
    """Nsight around learner ranks, where it is the profiler, or has options."""
    tool = "global_profiler.tool"
    if given.value(tool) not in ("nsys", "torch", None):
        raise BadValueError(tool, f"is {dump(given.value(tool))}; profilers are torch and nsys")
    ours: dict[str, Any] = {}
    used: list[str] = []
    for prefix in _NSIGHT:
        for key in [each for each in given.verls if each.startswith(prefix)]:
            ours[key.removeprefix(prefix)] = given.value(key) if given.has(key) else None
            used.append(key)
    if given.value(tool) == "nsys" or any(value is not None for value in ours.values()):
        if given.value(tool) == "torch":
            yield Result("", "not used: global_profiler.tool=torch", of=(tool, *used))
            return
        for name, value in {**verl.NSIGHT, **ours}.items():
            if value is not None:
                yield Result(f"cluster.nsight.{name}", value, of=(tool, *used))
    else:
        yield Result("", "trainer.profile_steps uses torch's profiler", of=(tool, *used))
