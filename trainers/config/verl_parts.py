"""Joint rules for verl's keys about the parts of a run: engine, environment, models. :mod:`.tables` names them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ..saved_adapter import read_adapter
from . import verl_names
from .translate import BadValueError, Given, Result
from .yaml12 import dump

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
    "tensor_model_parallel_size": "--tp-size",
    "gpu_memory_utilization": "--mem-fraction-static",
    "enforce_eager": "--disable-cuda-graph",
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

# Whether there is DAPO's penalty for long replies.
_OVERLONG = (".overlong_buffer.enable", ".overlong_buffer_cfg.enable")

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


def validation(given: Given) -> Iterator[Result]:
    """How validation samples."""
    sample, temperature = f"{_ROLLOUT}val_kwargs.do_sample", f"{_ROLLOUT}val_kwargs.temperature"
    value = given.value(temperature) if given.value(sample) is True else 0.0
    yield Result("validation.temperature", 0.0 if value is None else value, of=(sample, temperature))


def engine(given: Given, section: str = _ROLLOUT) -> Iterator[Result]:
    """The engine and its options; ``section`` is where verl has them."""
    key = f"{section}name"
    if given.has(key) and not _known(given.value(key), verl_names.ENGINES):
        raise BadValueError(key, f"is {dump(given.value(key))}; it must be one of {', '.join(verl_names.ENGINES)}")
    name = verl_names.ENGINES[given.value(key)] if given.has(key) else given.our("engine.name")
    if given.has(key):
        yield Result("engine.name", name, of=(key,))
    if "engine.name" in given.ours:  # for a try on another machine
        name = given.ours["engine.name"].value
    parallel = f"{section}tensor_model_parallel_size"
    wide = given.value(parallel) not in (1, None)
    if name == "vllm" and wide:
        text = (
            "a vLLM server computes on one GPU here; write 1 (engine.replicas uses more GPUs), or rollout.name=sglang"
        )
        yield Result(parallel, problem=f"is {dump(given.value(parallel))}; {text}")
    elif name != "sglang":
        device = f"engine.name={name} computes on one device"
        yield Result("", f"not used: {device}" if wide else device, of=(parallel,))
    bucket = f"{section}update_weights_bucket_megabytes"
    if name == "sglang":
        yield from _sglang(given, section)
        if given.has(bucket):
            yield Result("engine.sglang.bucket_mib", given.value(bucket), of=(bucket,))
    for full in [f"{section}{verls}" for verls in _VLLM]:
        if name == "vllm" and given.has(full):
            yield Result(_VLLM[full.removeprefix(section)], given.value(full), of=(full,))
    prefix = f"{section}engine_kwargs.vllm."
    for full in [each for each in given.verls if each.startswith(prefix) and name == "vllm" and given.has(each)]:
        yield Result(f"engine.vllm.args.{full.removeprefix(prefix)}", given.value(full), of=(full,))
    rest = (
        [f"{section}{verls}" for verls in (*_VLLM, *_SGLANG)]
        + [bucket]
        + [each for each in given.verls if _of_engine(each)]
    )
    yield Result("", f"no meaning for engine.name={name}", of=tuple(rest))


def _sglang(given: Given, section: str) -> Iterator[Result]:
    """Words of SGLang's command line: of the options of every engine, and of SGLang's own."""
    prefix = f"{section}engine_kwargs.sglang."
    own = [each for each in given.verls if each.startswith(prefix)]
    options = {f"{section}{verls}": word for verls, word in _SGLANG.items()}
    options |= {full: "--" + full.removeprefix(prefix).replace("_", "-") for full in own}
    words: list[str] = []
    used: list[str] = []
    for full, word in options.items():
        if given.has(full) and (value := given.value(full)) is not False:
            words += [word] if value is True else [word, str(value)]
            used.append(full)
    if words:
        yield Result("engine.sglang.server_args", words, of=tuple(used))


def _of_engine(key: str) -> bool:
    return ".engine_kwargs." in key


def prompts(given: Given) -> Iterator[Result]:
    """Of the command that generates: the file of prompts, and how many replies each gets."""
    files, count, ours = "data.train_files", "rollout.n", "data.n_samples"
    if given.has(files):
        value = given.value(files)
        if isinstance(value, list) and len(value) != 1:
            raise BadValueError(files, f"has {len(value)} files; a command reads one: give each a command of its own")
        yield Result("data.path", value[0] if isinstance(value, list) else value, of=(files,))
    if given.value(count) in (1, None):
        yield Result("", f"{ours} decides", of=(count,))
    elif ours in given.ours and given.our(ours) != given.value(count):
        yield Result(
            count, problem=f"is {dump(given.value(count))}, and {ours} is {given.our(ours)}: write one of them"
        )
    else:
        yield Result(ours, given.value(count), of=(count,))


def generating_engine(given: Given) -> Iterator[Result]:
    """Likewise, of the command that generates."""
    yield from engine(given, "rollout.")


def _known(name: Any, names: Mapping[str, Any]) -> bool:
    return isinstance(name, str) and name in names


def critic_model(given: Given) -> Iterator[Result]:
    """The critic starts from the actor's model."""
    key, actors = "critic.model.path", "actor_rollout_ref.model.path"
    if given.has(key) and given.value(key) != given.value(actors):
        yield Result(key, problem="another model than the actor's: the critic starts from the actor's weights")
    elif given.has(key):
        yield Result("", "the actor's model, whose weights the critic starts from", of=(key,))


def adapter(given: Given) -> Iterator[Result]:
    """A LoRA adapter; what is not said of a saved one is its own."""
    path = f"{_MODEL}lora_adapter_path"
    saved = None
    if given.has(path):
        yield Result("model.lora_adapter_path", given.value(path), of=(path,))
        with contextlib.suppress(ValueError):  # the configuration's own check says what is wrong with it
            saved = read_adapter(str(given.value(path)))
    for name, its in (("lora_rank", saved and saved.rank), ("lora_alpha", saved and saved.alpha)):
        key = f"{_MODEL}{name}"
        if given.has(key):
            yield Result(f"model.{name}", given.value(key), of=(key,))
        elif its is not None:
            yield Result(f"model.{name}", its, of=(path,))


def reward_manager(given: Given) -> Iterator[Result]:
    """Who scores an episode, and DAPO's penalty for long replies."""
    names = ("reward_model.reward_manager", "reward.reward_manager.name", "reward_manager.name")
    for key in names:
        if given.has(key) and given.value(key) not in ("naive", "dapo", "gdpo"):
            text = f"is {dump(given.value(key))}; an environment or custom_reward_function scores here: write naive"
            yield Result(key, problem=text)
    sections = ("reward_model.overlong_buffer.", *(f"{name}.reward_kwargs." for name in ("reward_model", "reward")))
    keys = [each for each in given.verls if each.startswith(sections)]
    prefixes = {key.removesuffix("enable") for key in keys if key.endswith(_OVERLONG) and given.value(key) is True}
    for prefix in prefixes if any(given.value(key) == "dapo" for key in names) else ():
        for name in ("enable", "len", "penalty_factor"):
            if given.has(f"{prefix}{name}"):
                yield Result(f"overlong_buffer.{name}", given.value(f"{prefix}{name}"), of=(f"{prefix}{name}",))
    for key in [each for each in keys if each.endswith(".max_resp_len")]:
        if prefixes and given.value(key) != given.number("data.max_response_length"):
            text = f"is {dump(given.value(key))}; the penalty ends at data.max_response_length here: write that"
            yield Result(key, problem=text)
    yield Result("", "an environment or custom_reward_function scores each episode as it ends", of=(*names, *keys))


def workers(given: Given) -> Iterator[Result]:
    """Processes of a reward function."""
    keys = ("reward_model.num_workers", "reward.num_workers")
    function = "custom_reward_function.path"
    for key in keys:
        if given.has(key) and (given.our(function) is not None or given.has(f"reward.{function}")):
            yield Result("custom_reward_function.workers", given.value(key), of=(key,))
    yield Result("", "not used: there is no custom_reward_function", of=keys)


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
    names = ("ray_init.num_cpus", "ray_init.timeline_json_file")
    older = ("ray_kwargs.ray_init.num_cpus", "ray_kwargs.timeline_json_file")
    for key, ours in zip((*names, *older), names * 2, strict=True):
        if on_ray and given.has(key):
            yield Result(ours, given.value(key), of=(key,))
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
    steps = given.value("global_profiler.steps") or given.our("trainer.profile_steps")
    if given.value(tool) == "nsys" or (steps and any(value is not None for value in ours.values())):
        if given.value(tool) == "torch":
            yield Result("", "not used: global_profiler.tool=torch", of=(tool, *used))
            return
        for name, value in {**verl_names.NSIGHT, **ours}.items():
            if value is not None:
                yield Result(f"cluster.nsight.{name}", value, of=(tool, *used))
    else:
        yield Result("", "trainer.profile_steps uses torch's profiler", of=(tool, *used))
