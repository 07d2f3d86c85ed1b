"""Rules for verl's keys about the parts of a run: environment, engine, models, machines. :mod:`.tables` names them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..saved_adapter import read_adapter
from . import verl
from .translate import BadValueError, Given, Results
from .yaml12 import Loader, dump, reason

_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."
_MODEL = "actor_rollout_ref.model."

# Options of the engines by verl's names: our key of vLLM's, and the word of SGLang's command line.
_VLLM = {
    "gpu_memory_utilization": "engine.vllm.gpu_memory_utilization",
    "enforce_eager": "engine.vllm.enforce_eager",
    "max_num_batched_tokens": "engine.vllm.args.max_num_batched_tokens",
    "enable_chunked_prefill": "engine.vllm.args.enable_chunked_prefill",
}
_SGLANG = {
    "gpu_memory_utilization": "--mem-fraction-static",
    "enforce_eager": "--disable-cuda-graph",
}

# The keys of a reward model's pool, the same here and there.
_POOL = ("enable_resource_pool", "n_gpus_per_node", "nnodes")

# What a saved adapter says itself: our key's name, and its attribute.
_OF_ADAPTERS = {"lora_rank": "rank", "lora_alpha": "alpha"}

# Where Nsight's options of a worker are: now, and in versions before.
_NSIGHT = ("global_profiler.global_tool_config.nsys.worker_nsight_options.", "trainer.worker_nsight_options.")
_NODES, _GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"
_TIMELINES = ("ray_init.timeline_json_file", "ray_kwargs.timeline_json_file")


def validation(given: Given) -> Results:
    """How validation samples."""
    sample, temperature = f"{_ROLLOUT}val_kwargs.do_sample", f"{_ROLLOUT}val_kwargs.temperature"
    value = given.value(temperature) if given.value(sample) is True else 0.0
    yield "validation.temperature", 0.0 if value is None else value, (sample, temperature)


def environment(given: Given) -> Results:
    """The environment, by the interaction or the agent loop."""
    turns = f"{_ROLLOUT}multi_turn."
    interaction, loop = f"{turns}interaction_config_path", f"{_ROLLOUT}agent.default_agent_loop"
    files = {interaction: "interactions", f"{turns}tool_config_path": "tools", "data.tool_config_path": "tools"}
    named = [key for key in files if given.has(key)]
    chosen = "env.id" in given.ours
    env = given.our("env.id")
    if named and not chosen:
        found = [_classes(given.value(key), key, files[key]) for key in named]
        if any(each != found[0] for each in found):
            raise BadValueError(named[1], f"is another environment than {named[0]}; name the one to train in by env.id")
        env = found[0]["env"]
        yield "env.id", env, tuple(named)
        for name, value in found[0].get("kwargs", {}).items():
            yield f"env.kwargs.{name}", value, tuple(named)
    elif not chosen:
        loops, name = verl.NAMES["agent_loops"], given.value(loop)
        if not isinstance(name, str) or name not in loops:
            text = f"known are {', '.join(loops)}; or name the environment with env.id"
            raise BadValueError(loop, f"is {dump(name)}; {text}")
        env = loops[name]
        yield "env.id", env, (loop,)
    if env in verl.NAMES["single_turn"]:
        return
    yield from given.passed({f"{turns}max_user_turns": "env.kwargs.max_user_turns"})
    limits = (f"{turns}max_assistant_turns", f"{turns}max_turns")
    if given.has(*limits):
        limit = limits[not given.has(limits[0])]
        yield "env.kwargs.max_assistant_turns", given.value(limit), (limit,)
    elif given.has(interaction) and not chosen:
        yield "env.kwargs.max_assistant_turns", None, (interaction,)  # there null is the default


def _classes(path: Any, key: str, kind: str) -> Mapping[str, Any]:
    """The environment that a file of ``interactions`` or ``tools`` means."""
    known, entries = verl.NAMES[kind], kind if kind == "tools" else "interaction"
    instead = "name the environment with env.id"
    try:
        content = yaml.load(Path(str(path)).expanduser().read_text(encoding="utf-8"), Loader)
        given = content[entries]
        classes = [(str(entry["class_name"]), dict(entry.get("config") or {})) for entry in given]
        found = [known.get(name.rpartition(".")[2]) for name, _ in classes]
    except (OSError, UnicodeDecodeError) as error:
        raise BadValueError(key, f"{path} cannot be read: {error}; give a file that is there, or {instead}") from error
    except yaml.YAMLError as error:
        raise BadValueError(key, f"{path} is not YAML: {reason(error)}") from error
    except (AttributeError, KeyError, TypeError, ValueError):
        found = []
    if not found:
        raise BadValueError(key, f"{path} needs a list '{entries}' of entries with a class_name")
    for (name, options), environment in zip(classes, found, strict=True):
        if environment is None:
            text = f"known are {', '.join(known)}. Name the environment with env.id"
            raise BadValueError(key, f"{path} has the class {name!r}, which no environment here stands for; {text}")
        if {**options, "type": "native"} != {"type": "native"}:
            raise BadValueError(key, f"{path}: give the options of {name} as env.kwargs; its 'config' is not read")
        if environment != found[0]:
            raise BadValueError(key, f"{path} has classes of several environments; a run has one")
    assert found[0] is not None
    return found[0]


def engine(given: Given, section: str = _ROLLOUT) -> Results:
    """The engine and its options; ``section`` is where verl has them."""
    key = f"{section}name"
    engines, name = verl.NAMES["engines"], given.our("engine.name")
    if given.has(key):
        if not isinstance(given.value(key), str) or given.value(key) not in engines:
            raise BadValueError(key, f"is {dump(given.value(key))}; it must be one of {', '.join(engines)}")
        yield "engine.name", engines[given.value(key)], (key,)
        if "engine.name" not in given.ours:  # else for a try on another machine
            name = engines[given.value(key)]
    if name in ("vllm", "sglang"):
        yield from given.passed({f"{section}update_weights_bucket_megabytes": f"engine.{name}.bucket_mib"})
    if name == "vllm":
        yield from given.passed({f"{section}{verls}": ours for verls, ours in _VLLM.items()})
    elif name == "sglang":
        own = f"{section}engine_kwargs.sglang."
        options = {f"{section}{verls}": word for verls, word in _SGLANG.items()}
        options |= {full: "--" + full.removeprefix(own).replace("_", "-") for full in given.under(own)}
        used = {full: word for full, word in options.items() if given.has(full) and given.value(full) is not False}
        words = [[word] if given.value(full) is True else [word, str(given.value(full))] for full, word in used.items()]
        if words:
            yield "engine.sglang.server_args", sum(words, []), tuple(used)


def generating_engine(given: Given) -> Results:
    """Likewise, of the command that generates."""
    return engine(given, "rollout.")


def prompts(given: Given) -> Results:
    """Of the command that generates: the file of prompts, and how many replies each gets."""
    files, count, ours = "data.train_files", "rollout.n", "data.n_samples"
    if given.has(files):
        value = given.value(files)
        if isinstance(value, list) and len(value) != 1:
            raise BadValueError(files, f"has {len(value)} files; a command reads one: give each a command of its own")
        yield "data.path", value[0] if isinstance(value, list) else value, (files,)
    if given.value(count) in (1, None):
        return
    if ours in given.ours and given.our(ours) != given.value(count):
        given.refuse(count, f"is {dump(given.value(count))}, and {ours} is {given.our(ours)}: write one of them")
    else:
        yield ours, given.value(count), (count,)


def critic_model(given: Given) -> Results:
    """The critic starts from the actor's model."""
    key = "critic.model.path"
    if given.has(key) and given.value(key) != given.value(f"{_MODEL}path"):
        given.refuse(key, "another model than the actor's: the critic starts from the actor's weights")
    yield from ()


def adapter(given: Given) -> Results:
    """A LoRA adapter; what is not said of a saved one is its own."""
    path = f"{_MODEL}lora_adapter_path"
    yield from given.passed({f"{_MODEL}{name}": f"model.{name}" for name in ("lora_adapter_path", *_OF_ADAPTERS)})
    if given.has(path):
        with contextlib.suppress(ValueError):  # the configuration's own check says what is wrong with it
            saved = read_adapter(str(given.value(path)))
            for name, attribute in _OF_ADAPTERS.items():
                if not given.has(f"{_MODEL}{name}"):
                    yield f"model.{name}", getattr(saved, attribute), (path,)


def reward_manager(given: Given) -> Results:
    """Who scores an episode, and DAPO's penalty for long replies."""
    names = ("reward_model.reward_manager", "reward.reward_manager.name", "reward_manager.name")
    for key in names:
        if given.has(key) and given.value(key) not in ("naive", "dapo", "gdpo"):
            text = f"is {dump(given.value(key))}; an environment or custom_reward_function scores here: write naive"
            given.refuse(key, text)
    keys = given.under("reward_model.overlong_buffer.", "reward_model.reward_kwargs.", "reward.reward_kwargs.")
    enables = (".overlong_buffer.enable", ".overlong_buffer_cfg.enable")
    prefixes = {key.removesuffix("enable") for key in keys if key.endswith(enables) and given.value(key) is True}
    if any(given.value(key) == "dapo" for key in names):
        for prefix in sorted(prefixes):
            options = ("enable", "len", "penalty_factor")
            yield from given.passed({f"{prefix}{name}": f"overlong_buffer.{name}" for name in options})
    for key in keys:
        limit = "data.max_response_length"
        if key.endswith(".max_resp_len") and prefixes and given.value(key) != given.number(limit):
            given.refuse(key, f"is {dump(given.value(key))}; the penalty ends at {limit} here: write that")


def reward_pool(given: Given) -> Results:
    """A pool of its own for the reward model; by the names of now and those of before."""
    for section in ("reward.reward_model.", "reward_model."):
        for key in (f"{section}n_gpus_per_node", f"{section}nnodes"):
            if given.value(f"{section}enable_resource_pool") is not True:
                continue
            if given.has(key):
                given.number(key)
            else:
                given.refuse(key, f"must be given with {section}enable_resource_pool=True")
        yield from given.passed({f"{section}{name}": f"reward_model.{name}" for name in _POOL})


def offload(given: Given) -> Results:
    """What is moved to the memory of the CPU."""
    keys = (f"{_ACTOR}fsdp_config.{name}" for name in ("param_offload", "optimizer_offload", "offload_policy"))
    if wanted := tuple(key for key in keys if given.value(key) is True):
        yield "trainer.offload", True, wanted


def cluster(given: Given) -> Results:
    """How many machines, ranks and engines: a learner rank a GPU, and an engine for every GPU or group of them."""
    nodes, gpus = _machines(given)
    if (nodes, gpus) != (1, 1):
        yield "cluster.nnodes", nodes, (_NODES,)
        yield "cluster.n_gpus_per_node", given.value(_GPUS), (_GPUS,)
        yield "cluster.learner_ranks", nodes * gpus, (_NODES, _GPUS)
        yield from _replicas(given, nodes * gpus, f"{_ROLLOUT}tensor_model_parallel_size")


def generating_cluster(given: Given) -> Results:
    """Of the command that generates: as many engines as GPUs, and Ray for several machines."""
    nodes, gpus = _machines(given)
    yield from _replicas(given, nodes * gpus, "rollout.tensor_model_parallel_size")
    if nodes > 1:
        yield "cluster.backend", "ray", (_NODES,)
        yield "cluster.nnodes", nodes, (_NODES,)
    if nodes > 1 or given.our("cluster.backend") == "ray":
        yield from given.passed({_GPUS: "cluster.n_gpus_per_node"})


def _machines(given: Given) -> tuple[int, int]:
    """How many machines, and GPUs of each."""
    nodes, gpus = (given.number(key) if given.has(key) else 1 for key in (_NODES, _GPUS))
    return nodes, gpus


def _replicas(given: Given, gpus: int, key: str) -> Results:
    """The GPUs, shared out among engines that are split over ``key`` of them; the embedded engine is not split."""
    width = given.number(key) if given.has(key) and _engine_name(given, key.rpartition(".")[0]) != "torch" else 1
    if gpus % width and given.value("trainer.device") != "cpu":
        raise BadValueError(_GPUS, f"times {_NODES} is {gpus} GPUs, which engines of {width} do not share")
    if gpus > 1:
        yield "engine.replicas", max(1, gpus // width), (_NODES, _GPUS)


def _engine_name(given: Given, section: str) -> Any:
    """Our name of the engine that runs; it may be given for a try on another machine."""
    theirs = given.value(f"{section}.name")
    return given.our("engine.name") if "engine.name" in given.ours else verl.NAMES["engines"].get(str(theirs), "torch")


def _on_ray(given: Given, *backends: str) -> bool:
    return "ray" in map(given.our, backends) or _machines(given) != (1, 1)


def timeline(given: Given) -> Results:
    """Of Ray, or of the run without Ray."""
    ours = "ray_init.timeline_json_file" if _on_ray(given, "cluster.backend", "env.backend") else "trainer.trace_file"
    yield from given.passed(dict.fromkeys(_TIMELINES, ours))


def nsight(given: Given) -> Results:
    """Nsight around learner ranks, where it is the profiler, or has options."""
    key = "global_profiler.tool"
    tool = given.value(key)
    if tool not in ("nsys", "torch", None):
        raise BadValueError(key, f"is {dump(tool)}; profilers are torch and nsys")
    options = {prefix: given.under(prefix) for prefix in _NSIGHT}
    ours = {
        name.removeprefix(prefix): given.value(name) if given.has(name) else None
        for prefix, names in options.items()
        for name in names
    }
    steps = given.value("global_profiler.steps") or given.our("trainer.profile_steps")
    if tool == "nsys" or (tool is None and steps and any(value is not None for value in ours.values())):
        if not _on_ray(given, "cluster.backend"):
            raise BadValueError(key, "Nsight is for learner ranks that Ray starts: add cluster.backend=ray")
        for name, value in {**verl.NAMES["nsight"], **ours}.items():
            if value is not None:
                yield f"cluster.nsight.{name}", value, (key, *sum(options.values(), []))
