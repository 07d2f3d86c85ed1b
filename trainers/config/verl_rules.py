"""The functions that verl.yaml names as ``computed``, and which of verl's keys each command knows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import yaml

from textenvs.bounded_files import YAML_FILE, UnreadableFile, read_text

from ..algorithms.names import Rejection
from ..hub import read_adapter
from .base import RunConfig
from .commands import EvaluateConfig, GenerateConfig
from .schema import PPOConfig
from .verl import NAMES, Given, Results, Table, rules_of
from .yaml12 import Loader, dump, reason

_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."
_MODEL = "actor_rollout_ref.model."
_CORRECTION = "algorithm.rollout_correction."
_BATCH, _PROMPT, _RESPONSE = "data.train_batch_size", "data.max_prompt_length", "data.max_response_length"
_MINI = f"{_ACTOR}ppo_mini_batch_size"
_PARALLEL = "ulysses_sequence_parallel_size"
_EPOCHS, _STEPS = "trainer.total_epochs", "trainer.total_training_steps"
_NODES, _GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"
# Where Nsight's options of a worker are: now, and in versions before.
_NSIGHT = ("global_profiler.global_tool_config.nsys.worker_nsight_options.", "trainer.worker_nsight_options.")

# --- batches, lengths, steps, rows


def _sizes(given: Given) -> tuple[int, int]:
    batch, mini = given.number(_BATCH), given.number(_MINI)
    if not given.has(_MINI):
        mini = min(batch, mini) if batch % min(batch, mini) == 0 else batch
    return batch, mini


def _batch(given: Given) -> Results:
    batch, mini = _sizes(given)
    yield "rollout.groups_per_batch", batch, (_BATCH,)
    if batch % mini:
        text = f"is {mini}, which does not divide {_BATCH}={batch}: an iteration has an integer of mini-batches"
        given.refuse(_MINI, text)
    else:
        yield "actor.mini_batches", batch // mini, (_MINI,)


def _as_the_actor(given: Given) -> Results:
    path = "critic.model.path"
    if given.has(path) and given.value(path) != given.value(f"{_MODEL}path"):
        given.refuse(path, "another model than the actor's: the critic starts from the actor's weights")
    for name in ("ppo_mini_batch_size", "ppo_epochs", _PARALLEL):
        if given.has(key := f"critic.{name}"):
            actors = _parallel(given) if name == _PARALLEL else f"{_ACTOR}{name}"
            value = _sizes(given)[1] if actors == _MINI else given.value(actors) or 1
            if given.number(key) != value:
                given.refuse(key, f"the critic's is the actor's: write {value}", says_value=True)
    yield from ()


def _parallel(given: Given) -> str:
    """The key that says how many ranks share a sequence."""
    return given.first(f"{_ACTOR}{_PARALLEL}", f"{_ACTOR}fsdp_config.{_PARALLEL}") or f"{_ACTOR}{_PARALLEL}"


def _filtered(given: Given) -> Results:
    """Verl counts batches, and 0 there has no limit."""
    key = "algorithm.filter_groups.max_num_gen_batches"
    if given.has(key) and given.number(key, least=0):
        batch = given.number(given.first("data.gen_batch_size") or _BATCH)
        yield "rollout.max_consecutive_filtered", given.value(key) * batch, (key,)


def _lengths(given: Given) -> Results:
    prompt, response = given.number(_PROMPT), given.number(_RESPONSE)
    filters = given.value("data.filter_overlong_prompts") is True
    yield "engine.max_context", prompt + response, (_PROMPT, _RESPONSE)
    if filters:
        yield "data.longest_prompt", prompt, (_PROMPT,)
    yield "rollout.max_response_length", response, (_RESPONSE,)
    yield "rollout.max_response_tokens", response, (_RESPONSE,)
    cut, room = "data.truncation", f"{_ROLLOUT}max_model_len"
    if given.value(cut) not in ("error", None) and not filters:
        text = "a prompt is never cut: write error, or leave long ones out with data.filter_overlong_prompts=True"
        given.refuse(cut, text, says_value=True)
    if given.has(room) and given.number(room) < prompt + response:
        given.refuse(room, f"is {given.value(room)}, less than {_PROMPT} + {_RESPONSE}: make those smaller")


def _micro(given: Given) -> Results:
    whole, tokens = f"{_ACTOR}ppo_micro_batch_size", f"{_ACTOR}ppo_max_token_len_per_gpu"
    sequences, dynamic = f"{whole}_per_gpu", f"{_ACTOR}use_dynamic_bsz"
    longest, ours = given.number(_PROMPT) + given.number(_RESPONSE), "actor.max_tokens_per_micro_batch"
    if given.value(dynamic) is True or not given.first(sequences, whole):
        ranks = given.number(_parallel(given)) if given.has(_parallel(given)) else 1
        yield ours, given.number(tokens) * ranks, (tokens, dynamic)
    elif given.has(sequences):
        yield ours, given.number(sequences) * longest, (sequences,)
    else:
        gpus = (given.value(_NODES) or 1) * (given.value(_GPUS) or 1)
        yield ours, max(1, given.number(whole) // gpus) * longest, (whole,)


def _warmup(given: Given, section: str, ours: str) -> Results:
    """In verl a step is an optimizer's too, but the ratio is of ``total_training_steps``, which are iterations."""
    steps, ratio = f"{section}.lr_warmup_steps", f"{section}.lr_warmup_steps_ratio"
    if given.has(steps) and given.number(steps, least=-1) >= 0:
        yield f"{ours}.lr_warmup_steps", given.value(steps), (steps, ratio)
    elif given.has(ratio):
        share = given.value(ratio)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            given.stop(ratio, "it must be a number from 0 to 1", says_value=True)
        count = _iteration_count(given)
        if count is None and share:
            given.stop(ratio, f"give {steps}: how many steps there are is not known")
        # verl counts the share in iterations and steps the schedule once an iteration; here it is stepped with the
        # optimizer, so the rise ends at the same place of the run.
        batch, mini = _sizes(given)
        a_pass = (given.value(f"{_ACTOR}ppo_epochs") or 1) * max(1, batch // mini)
        yield f"{ours}.lr_warmup_steps", int(share * (count or 0)) * a_pass, (ratio, steps)


def _iterations(given: Given) -> Results:
    ours = "trainer.total_iterations"
    if ours in given.ours:
        return
    if (count := _iteration_count(given)) is None:
        text = "how many iterations that is, data.train_files must tell: give existing .parquet or .jsonl files, or "
        given.stop(_EPOCHS, text + ours)
    yield ours, count, (_STEPS if given.has(_STEPS) else _EPOCHS,)


def _iteration_count(given: Given) -> int | None:
    if given.has(_STEPS):
        return given.number(_STEPS)
    rows, most = _rows(given, "data.train_files"), "data.train_max_samples"
    if rows is None:
        return None
    if given.has(most) and given.value(most) != -1:
        rows = min(rows, given.number(most))
    # An incomplete last batch of an epoch is not played there; tasks continue in the next epoch here.
    return given.number(_EPOCHS) * max(1, rows // given.number(_BATCH))


def _validation_rows(given: Given) -> Results:
    key = "data.val_max_samples"
    if given.has(key) and given.number(key, least=-1) >= 1:
        yield "data.val_size", given.value(key), (key,)
    elif "data.val_size" not in given.ours and (rows := _rows(given, "data.val_files")) is not None:
        yield "data.val_size", rows, (key,)


def _rows(given: Given, key: str) -> int | None:
    """How many rows the files of a key have; ``None`` where they cannot be read."""
    files = given.our(key)
    try:
        return sum(map(_count, [files] if isinstance(files, str) else files or ())) or None
    except (OSError, ImportError, ValueError, TypeError):  # ValueError: pyarrow's, of a file that is not Parquet
        return None


def _count(file: str) -> int:
    path = Path(file).expanduser()
    if path.suffix == ".jsonl":
        with path.open("rb") as lines:
            return sum(1 for line in lines if line.strip())
    from pyarrow import parquet

    return int(parquet.read_metadata(path).num_rows)


# --- estimators, losses, corrections


def _loss(given: Given) -> str:
    return str(given.value(f"{_ACTOR}policy_loss.loss_mode") or "vanilla")


def _clip(given: Given) -> Results:
    both = f"{_ACTOR}clip_ratio"
    for side in ("low", "high"):
        if source := given.first(f"{both}_{side}", both):
            value, of_ratio = given.value(source), _loss(given) in NAMES["losses_of_ratios"]
            if side == "low" and of_ratio and isinstance(value, int | float) and value > 1:
                value = 1.0  # a ratio is never below 0: no limit there, and 1 is no limit here
            yield f"actor.clip_ratio_{side}", value, (source,)


def _policy_loss(given: Given) -> Results:
    mode, aggregation, theirs = f"{_ACTOR}policy_loss.loss_mode", f"{_ACTOR}loss_agg_mode", _loss(given)
    if given.has(mode):
        yield "actor.policy_loss", NAMES["losses"].get(theirs, theirs), (mode,)
    if theirs in NAMES["losses_of_episodes"]:  # whatever is asked for, these have it there
        yield "actor.loss_agg_mode", "seq-mean-token-mean", (mode, aggregation)
    else:
        yield from given.passed({aggregation: "actor.loss_agg_mode"})


def _norm_by_std(given: Given) -> Results:
    key = "algorithm.adv_estimator"
    name = given.verls[key].value if key in given.verls else NAMES["defaults"][key]
    words = TABLES[PPOConfig].rules[key].words
    estimator = words.get(name, name) if isinstance(name, str) else name
    if estimator in ("grpo", "grpo_passk"):
        yield from given.passed({"algorithm.norm_adv_by_std_in_grpo": "algorithm.norm_by_std"})
    # Whitening over the batch is part of verl's GAE, and by definition of REINFORCE++; of none of the others.
    yield "algorithm.norm_adv", estimator == "gae", ()
    if estimator == "rloo":
        yield "algorithm.baseline", "group", ()


def _rollout_correction(given: Given) -> Results:
    """From the policy that sampled to the one that the update starts from: weights, and rejection."""
    bypass, loss, older = (f"{_CORRECTION}{name}" for name in ("bypass_mode", "loss_type", "use_policy_gradient"))
    on = given.value(bypass)
    if not isinstance(on, bool | None):
        given.stop(bypass, "it must be true or false", says_value=True)
    if on is not None:
        yield "actor.old_logprobs", "rollout" if on else "recompute", (bypass,)
    level = f"{_CORRECTION}rollout_is"
    if not on and given.has(level):  # with bypass_mode the loss's own ratio is that of learner to engine
        modes = {"token": "token_tis", "sequence": "sequence_tis"}
        yield "actor.importance_correction", given.word(level, modes, "it must be null or one of "), (level,)
        if given.has(cap := f"{level}_threshold"):
            if "_" in str(given.value(cap)):
                text = "weights outside two bounds are not dropped here: write the upper one, or reject with rollout_rs"
                given.stop(cap, text, says_value=True)
            yield "actor.tis_cap", _positive(given, cap), (cap,)
        yield from given.passed({f"{level}_batch_normalize": "actor.importance_batch_normalize"})
    yield from _rejection(given, on is True)
    if given.value(loss) not in (None, "ppo_clip", "reinforce"):
        given.stop(loss, "it must be ppo_clip", says_value=True)
    for key, plain in ((loss, "ppo_clip"), (older, False)):
        if on and given.has(key) and given.value(key) != plain:
            given.refuse(key, f"losses are clipped here: write {dump(plain)}", says_value=True)


def _rejection(given: Given, bypass: bool) -> Results:
    """What is left out.

    The bounds of *k1* are of engine over learner there (its k1 is minus the log-ratio), so the band is turned over:
    ``low <= engine / learner <= high`` is ``1 / high <= learner / engine <= 1 / low``.
    """
    criterion, veto = f"{_CORRECTION}rollout_rs", f"{_CORRECTION}rollout_token_veto_threshold"
    high, low = f"{criterion}_threshold", f"{criterion}_threshold_lower"
    if given.has(veto):
        given.refuse(veto, "a single token does not leave out its episode here: leave it at null")
    if not given.has(criterion):
        return
    if bypass:
        text = "with bypass_mode=true would compare again at each step; here once, before the first: write bypass_mode="
        given.stop(criterion, f"{text}false")
    bands = NAMES["rejections"]
    known = {**bands, **{kl: kl for kl in get_args(Rejection)[4:]}}
    ours = given.word(criterion, known, "it must be null or one of ")
    if not given.has(high):
        given.stop(high, f"must be given with rollout_rs={given.value(criterion)}")
    yield "actor.rejection", ours, (criterion,)
    if ours not in bands.values():
        yield "actor.rejection_kl", _positive(given, high), (high,)
        return
    turned, bounds = given.value(criterion).endswith("_k1"), str(given.value(high)).split("_")
    if len(bounds) > (2 if turned else 1):
        given.stop(high, f"it must be {'LOW_HIGH, or ' * turned}a number", says_value=True)
    upper = _positive(given, high, bounds[-1])
    if len(bounds) == 2:
        lower = _positive(given, high, bounds[0])
    else:
        lower = _positive(given, low) if given.has(low) and not turned else 1 / upper
    if turned:
        lower, upper = 1 / upper, 1 / lower
    yield "actor.rejection_low", lower, (high, low)
    yield "actor.rejection_high", upper, (high, low)


def _positive(given: Given, key: str, text: str | None = None) -> float:
    """The value of a key, or ``text``, a part of it, as a positive number."""
    value, number = given.value(key) if text is None else text, 0.0
    with contextlib.suppress(TypeError, ValueError):
        number = 0.0 if isinstance(value, bool) else float(value)
    if not 0 < number < float("inf"):
        given.stop(key, "it must be a positive number", says_value=True)
    return number


# --- environment, rewards


def _validation(given: Given) -> Results:
    sample, temperature = f"{_ROLLOUT}val_kwargs.do_sample", f"{_ROLLOUT}val_kwargs.temperature"
    value = given.value(temperature) if given.value(sample) is True else 0.0
    yield "validation.temperature", 0.0 if value is None else value, (sample, temperature)


def _environment(given: Given) -> Results:
    turns = f"{_ROLLOUT}multi_turn."
    interaction, loop = f"{turns}interaction_config_path", f"{_ROLLOUT}agent.default_agent_loop"
    files = {interaction: "interactions", f"{turns}tool_config_path": "tools", "data.tool_config_path": "tools"}
    named = tuple(key for key in files if given.has(key))
    chosen = "env.id" in given.ours
    env = given.our("env.id")
    if named and not chosen:
        found = [_classes(given, key, files[key]) for key in named]
        if any(each != found[0] for each in found):
            given.stop(named[1], f"is another environment than {named[0]}; name the one to train in by env.id")
        env = found[0]["env"]
        yield "env.id", env, named
        for name, value in found[0].get("kwargs", {}).items():
            yield f"env.kwargs.{name}", value, named
    elif not chosen:
        env = given.word(loop, NAMES["agent_loops"], "name the environment with env.id; known are ")
        yield "env.id", env, (loop,)
    if env in NAMES["single_turn"]:
        return
    yield from given.passed({f"{turns}max_user_turns": "env.kwargs.max_user_turns"})
    if limit := given.first(f"{turns}max_assistant_turns", f"{turns}max_turns"):
        yield "env.kwargs.max_assistant_turns", given.value(limit), (limit,)
    elif given.has(interaction) and not chosen:
        yield "env.kwargs.max_assistant_turns", None, (interaction,)  # there null is the default


def _classes(given: Given, key: str, kind: str) -> Mapping[str, Any]:
    """The environment that a file of ``interactions`` or ``tools`` means."""
    path, known, entries = given.value(key), NAMES[kind], kind if kind == "tools" else "interaction"
    classes: list[tuple[str, dict[str, Any]]] = []
    try:
        content = yaml.load(read_text(str(path), YAML_FILE), Loader)
        classes = [(str(entry["class_name"]), dict(entry.get("config") or {})) for entry in content[entries]]
    except UnreadableFile as error:
        text = f"{error}; give a file that is there, or name the environment with env.id"
        given.stop(key, text)
    except yaml.YAMLError as error:
        given.stop(key, f"{path} is not YAML: {reason(error)}")
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    if not classes:
        given.stop(key, f"{path} needs a list '{entries}' of entries with a class_name")
    found = [known.get(name.rpartition(".")[2]) for name, _ in classes]
    for (name, options), environment in zip(classes, found, strict=True):
        if environment is None:
            text = f"known are {', '.join(known)}. Name the environment with env.id"
            given.stop(key, f"{path} has the class {name!r}, which no environment here stands for; {text}")
        if {**options, "type": "native"} != {"type": "native"}:
            given.stop(key, f"{path}: give the options of {name} as env.kwargs; its 'config' is not read")
        if environment != found[0]:
            given.stop(key, f"{path} has classes of several environments; a run has one")
    return dict(found[0])


def _reward_manager(given: Given) -> Results:
    """Who scores an episode, and DAPO's penalty for long replies."""
    names = ("reward_model.reward_manager", "reward.reward_manager.name", "reward_manager.name")
    for key in filter(given.has, names):
        if given.value(key) not in ("naive", "dapo", "gdpo"):
            text = "an environment or custom_reward_function scores here: write naive"
            given.refuse(key, text, says_value=True)
    keys = given.under("reward_model.overlong_buffer.", "reward_model.reward_kwargs.", "reward.reward_kwargs.")
    enables = (".overlong_buffer.enable", ".overlong_buffer_cfg.enable")
    prefixes = {key.removesuffix("enable") for key in keys if key.endswith(enables) and given.value(key) is True}
    if any(given.value(key) == "dapo" for key in names):
        for prefix in sorted(prefixes):
            options = ("enable", "len", "penalty_factor")
            yield from given.passed({f"{prefix}{name}": f"overlong_buffer.{name}" for name in options})
    for key in keys:
        if key.endswith(".max_resp_len") and prefixes and given.value(key) != given.number(_RESPONSE):
            given.refuse(key, f"the penalty ends at {_RESPONSE} here: write that", says_value=True)


def _reward_pool(given: Given) -> Results:
    for section in ("reward.reward_model.", "reward_model."):
        own = given.value(f"{section}enable_resource_pool") is True
        for key in (f"{section}n_gpus_per_node", f"{section}nnodes"):
            if own and given.has(key):
                given.number(key)
            elif own:
                given.refuse(key, f"must be given with {section}enable_resource_pool=True")
        names = ("enable_resource_pool", "n_gpus_per_node", "nnodes")
        yield from given.passed({f"{section}{name}": f"reward_model.{name}" for name in names})


# --- models, engines, machines


def _adapter(given: Given) -> Results:
    """What is not said of a saved adapter is its own."""
    path, own = f"{_MODEL}lora_adapter_path", {"lora_rank": "rank", "lora_alpha": "alpha"}
    yield from given.passed({f"{_MODEL}{name}": f"model.{name}" for name in ("lora_adapter_path", *own)})
    if given.has(path):
        with contextlib.suppress(ValueError):  # the configuration's own check says what is wrong with it
            saved = read_adapter(str(given.value(path)))
            for name, attribute in own.items():
                if not given.has(f"{_MODEL}{name}"):
                    yield f"model.{name}", getattr(saved, attribute), (path,)


def _engine(given: Given, section: str = _ROLLOUT) -> Results:
    """The engine and its options; ``section`` is where verl has them."""
    key, name = f"{section}name", given.our("engine.name")
    if given.has(key):
        theirs = given.word(key, NAMES["engines"], "it must be one of ")
        yield "engine.name", theirs, (key,)
        if "engine.name" not in given.ours:  # else for a try on another machine
            name = theirs
    options = {f"{section}{option}": ours for option, ours in NAMES["engine_options"].get(name, {}).items()}
    yield from given.passed({option: ours for option, ours in options.items() if not ours.startswith("--")})
    if name == "sglang":
        own = f"{section}engine_kwargs.sglang."
        options |= {full: "--" + full.removeprefix(own).replace("_", "-") for full in given.under(own)}
        used = {
            full: [word] if given.value(full) is True else [word, str(given.value(full))]
            for full, word in options.items()
            if word.startswith("--") and given.has(full) and given.value(full) is not False
        }
        if used:
            yield "engine.sglang.server_args", sum(used.values(), []), tuple(used)


def _prompts(given: Given) -> Results:
    """Of the command that generates: the file of prompts, and how many replies each gets."""
    files, count, ours = "data.train_files", "rollout.n", "data.n_samples"
    if given.has(files):
        value = given.value(files)
        if isinstance(value, list) and len(value) != 1:
            given.stop(files, f"has {len(value)} files; a command reads one: give each a command of its own")
        yield "data.path", value[0] if isinstance(value, list) else value, (files,)
    if given.value(count) in (1, None):
        return
    if ours in given.ours and given.our(ours) != given.value(count):
        given.stop(count, f"is {dump(given.value(count))}, and {ours} is {given.our(ours)}: write one of them")
    yield ours, given.value(count), (count,)


def _offload(given: Given) -> Results:
    keys = (f"{_ACTOR}fsdp_config.{name}" for name in ("param_offload", "optimizer_offload", "offload_policy"))
    if wanted := tuple(key for key in keys if given.value(key) is True):
        yield "trainer.offload", True, wanted


def _cluster(given: Given) -> Results:
    """A learner rank a GPU, and an engine for every GPU or group of them."""
    nodes, gpus = _machines(given)
    if (nodes, gpus) != (1, 1):
        yield "cluster.nnodes", nodes, (_NODES,)
        yield "cluster.n_gpus_per_node", given.value(_GPUS), (_GPUS,)
        yield "cluster.learner_ranks", nodes * gpus, (_NODES, _GPUS)
        yield from _replicas(given, nodes * gpus, _ROLLOUT)


def _generating_cluster(given: Given) -> Results:
    """Of the command that generates: as many engines as GPUs, and Ray for several machines."""
    nodes, gpus = _machines(given)
    yield from _replicas(given, nodes * gpus, "rollout.")
    if nodes > 1:
        yield "cluster.backend", "ray", (_NODES,)
        yield "cluster.nnodes", nodes, (_NODES,)
    if nodes > 1 or given.our("cluster.backend") == "ray":
        yield from given.passed({_GPUS: "cluster.n_gpus_per_node"})


def _machines(given: Given) -> tuple[int, int]:
    return given.number(_NODES) if given.has(_NODES) else 1, given.number(_GPUS) if given.has(_GPUS) else 1


def _replicas(given: Given, gpus: int, section: str) -> Results:
    """The GPUs, shared out among engines that are split over some of them each; the embedded engine is not split."""
    key = f"{section}tensor_model_parallel_size"
    name = NAMES["engines"].get(str(given.value(f"{section}name")), "torch")
    if "engine.name" in given.ours:  # for a try on another machine
        name = given.our("engine.name")
    width = given.number(key) if given.has(key) and name != "torch" else 1
    if gpus % width and given.value("trainer.device") != "cpu":
        given.stop(_GPUS, f"times {_NODES} is {gpus} GPUs, which engines of {width} do not share")
    if gpus > 1:
        yield "engine.replicas", max(1, gpus // width), (_NODES, _GPUS)


def _on_ray(given: Given, *backends: str) -> bool:
    return "ray" in map(given.our, backends) or _machines(given) != (1, 1)


def _timeline(given: Given) -> Results:
    ours = "ray_init.timeline_json_file" if _on_ray(given, "cluster.backend", "env.backend") else "trainer.trace_file"
    yield from given.passed({f"{section}.timeline_json_file": ours for section in ("ray_init", "ray_kwargs")})


def _nsight(given: Given) -> Results:
    """Nsight around learner ranks, where it is the profiler, or has options."""
    key, options = "global_profiler.tool", given.under(*_NSIGHT)
    tool = given.value(key)
    if tool not in ("nsys", "torch", None):
        given.stop(key, "profilers are torch and nsys", says_value=True)
    ours = {name.rpartition("_options.")[2]: given.value(name) for name in sorted(options)}  # older names win
    steps = given.value("global_profiler.steps") or given.our("trainer.profile_steps")
    if tool == "nsys" or (tool is None and steps and any(value is not None for value in ours.values())):
        if not _on_ray(given, "cluster.backend"):
            given.stop(key, "Nsight is for learner ranks that Ray starts: add cluster.backend=ray")
        for name, value in {**NAMES["nsight"], **ours}.items():
            if value is not None:
                yield f"cluster.nsight.{name}", value, (key, *options)


# --- the tables

_actor_warmup = partial(_warmup, section=f"{_ACTOR}optim", ours="actor")
_critic_warmup = partial(_warmup, section="critic.optim", ours="critic")
_generating_engine = partial(_engine, section="rollout.")


def _table(command: str, **more: Any) -> Table:
    rules = rules_of(command)
    return Table(rules, {name: globals()[f"_{name}"] for rule in rules.values() if (name := rule.computed)}, **more)


NOTHING = Table()
TABLES: Mapping[type[RunConfig], Table] = {
    PPOConfig: _table("ppo", defaults=NAMES["defaults"], reads=PPOConfig.reads, whole="actor_rollout_ref."),
    GenerateConfig: _table("generate", reads=GenerateConfig.reads, prefix="actor_rollout_ref."),
    EvaluateConfig: _table("evaluate"),
}
