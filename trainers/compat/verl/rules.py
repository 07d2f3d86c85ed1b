"""The functions that keys.yaml names as ``computed``, and each command's table of verl keys."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import yaml

from textenvs.bounded_files import YAML_FILE, UnreadableFile, read_text

from ...algorithms.names import Rejection
from ...config.base import RunConfig
from ...config.commands import EvaluateConfig, GenerateConfig
from ...config.schema import PPOConfig
from ...config.yaml12 import Loader, dump, reason
from ...models.hub import read_adapter
from .translate import NAMES, Results, Table, VerlSettings, rules_of

_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."
_MODEL = "actor_rollout_ref.model."
_CORRECTION = "algorithm.rollout_correction."
_DISTILLATION = "distillation."
_BATCH, _PROMPT, _RESPONSE = "data.train_batch_size", "data.max_prompt_length", "data.max_response_length"
_MINI = f"{_ACTOR}ppo_mini_batch_size"
_PARALLEL = "ulysses_sequence_parallel_size"
_EPOCHS, _STEPS = "trainer.total_epochs", "trainer.total_training_steps"
_NODES, _GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"
# Where Nsight's options of a worker are: now, and in versions before.
_NSIGHT = ("global_profiler.global_tool_config.nsys.worker_nsight_options.", "trainer.worker_nsight_options.")

# --- batches, lengths, steps, rows


def _sizes(settings: VerlSettings) -> tuple[int, int]:
    batch, mini = settings.number(_BATCH), settings.number(_MINI)
    if not settings.has(_MINI):
        mini = min(batch, mini) if batch % min(batch, mini) == 0 else batch
    return batch, mini


def _batch(settings: VerlSettings) -> Results:
    batch, mini = _sizes(settings)
    yield "rollout.groups_per_batch", batch, (_BATCH,)
    if batch % mini:
        text = f"is {mini}, which does not divide {_BATCH}={batch}: an iteration has an integer of mini-batches"
        settings.refuse(_MINI, text)
    else:
        yield "actor.mini_batches", batch // mini, (_MINI,)


def _as_the_actor(settings: VerlSettings) -> Results:
    path = "critic.model.path"
    if settings.has(path) and settings.value(path) != settings.value(f"{_MODEL}path"):
        settings.refuse(path, "another model than the actor's: the critic starts from the actor's weights")
    for name in ("ppo_mini_batch_size", "ppo_epochs", _PARALLEL):
        if settings.has(key := f"critic.{name}"):
            actors = _parallel(settings) if name == _PARALLEL else f"{_ACTOR}{name}"
            value = _sizes(settings)[1] if actors == _MINI else settings.value(actors) or 1
            if settings.number(key) != value:
                settings.refuse(key, f"the critic's is the actor's: write {value}", says_value=True)
    yield from ()


def _parallel(settings: VerlSettings) -> str:
    """Return the key of the number of ranks that share a sequence."""
    return settings.first(f"{_ACTOR}{_PARALLEL}", f"{_ACTOR}fsdp_config.{_PARALLEL}") or f"{_ACTOR}{_PARALLEL}"


def _filtered(settings: VerlSettings) -> Results:
    """Limit filtered groups; verl counts batches, and 0 in verl means no limit."""
    key = "algorithm.filter_groups.max_num_gen_batches"
    if settings.has(key) and settings.number(key, least=0):
        batch = settings.number(settings.first("data.gen_batch_size") or _BATCH)
        yield "rollout.max_consecutive_filtered", settings.value(key) * batch, (key,)


def _lengths(settings: VerlSettings) -> Results:
    prompt, response = settings.number(_PROMPT), settings.number(_RESPONSE)
    filters = settings.value("data.filter_overlong_prompts") is True
    yield "engine.max_context", prompt + response, (_PROMPT, _RESPONSE)
    if filters:
        yield "data.longest_prompt", prompt, (_PROMPT,)
    yield "rollout.max_response_length", response, (_RESPONSE,)
    yield "rollout.max_response_tokens", response, (_RESPONSE,)
    cut, room = "data.truncation", f"{_ROLLOUT}max_model_len"
    if settings.value(cut) not in ("error", None) and not filters:
        text = "a prompt is never cut: write error, or leave long ones out with data.filter_overlong_prompts=True"
        settings.refuse(cut, text, says_value=True)
    if settings.has(room) and settings.number(room) < prompt + response:
        settings.refuse(room, f"is {settings.value(room)}, less than {_PROMPT} + {_RESPONSE}: make those smaller")


def _micro(settings: VerlSettings) -> Results:
    whole, tokens = f"{_ACTOR}ppo_micro_batch_size", f"{_ACTOR}ppo_max_token_len_per_gpu"
    sequences, dynamic = f"{whole}_per_gpu", f"{_ACTOR}use_dynamic_bsz"
    longest, target = settings.number(_PROMPT) + settings.number(_RESPONSE), "actor.max_tokens_per_micro_batch"
    if settings.value(dynamic) is True or not settings.first(sequences, whole):
        ranks = settings.number(_parallel(settings)) if settings.has(_parallel(settings)) else 1
        yield target, settings.number(tokens) * ranks, (tokens, dynamic)
    elif settings.has(sequences):
        yield target, settings.number(sequences) * longest, (sequences,)
    else:
        gpus = (settings.value(_NODES) or 1) * (settings.value(_GPUS) or 1)
        yield target, max(1, settings.number(whole) // gpus) * longest, (whole,)


def _warmup(settings: VerlSettings, section: str, target: str) -> Results:
    """Set warm-up steps. Verl counts optimizer steps too, but its ratio is of ``total_training_steps``: iterations."""
    steps, ratio = f"{section}.lr_warmup_steps", f"{section}.lr_warmup_steps_ratio"
    if settings.has(steps) and settings.number(steps, least=-1) >= 0:
        yield f"{target}.lr_warmup_steps", settings.value(steps), (steps, ratio)
    elif settings.has(ratio):
        share = settings.value(ratio)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            settings.stop(ratio, "it must be a number from 0 to 1", says_value=True)
        count = _iteration_count(settings)
        if count is None and share:
            settings.stop(ratio, f"give {steps}: how many steps there are is not known")
        # verl counts the share in iterations and steps the schedule once an iteration; here it is stepped with the
        # optimizer, so the rise ends at the same place of the run.
        batch, mini = _sizes(settings)
        a_pass = (settings.value(f"{_ACTOR}ppo_epochs") or 1) * max(1, batch // mini)
        yield f"{target}.lr_warmup_steps", int(share * (count or 0)) * a_pass, (ratio, steps)


def _iterations(settings: VerlSettings) -> Results:
    target = "trainer.total_iterations"
    if target in settings.native:
        return
    if (count := _iteration_count(settings)) is None:
        text = "how many iterations that is, data.train_files must tell: give existing .parquet or .jsonl files, or "
        settings.stop(_EPOCHS, text + target)
    yield target, count, (_STEPS if settings.has(_STEPS) else _EPOCHS,)


def _iteration_count(settings: VerlSettings) -> int | None:
    if settings.has(_STEPS):
        return settings.number(_STEPS)
    rows, most = _rows(settings, "data.train_files"), "data.train_max_samples"
    if rows is None:
        return None
    if settings.has(most) and settings.value(most) != -1:
        rows = min(rows, settings.number(most))
    # An incomplete last batch of an epoch is not played there; tasks continue in the next epoch here.
    return settings.number(_EPOCHS) * max(1, rows // settings.number(_BATCH))


def _validation_rows(settings: VerlSettings) -> Results:
    key = "data.val_max_samples"
    if settings.has(key) and settings.number(key, least=-1) >= 1:
        yield "data.val_size", settings.value(key), (key,)
    elif "data.val_size" not in settings.native and (rows := _rows(settings, "data.val_files")) is not None:
        yield "data.val_size", rows, (key,)


def _rows(settings: VerlSettings, key: str) -> int | None:
    """Return the number of rows in a key's files; ``None`` if they cannot be read."""
    files = settings.native_value(key)
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


def _loss(settings: VerlSettings) -> str:
    return str(settings.value(f"{_ACTOR}policy_loss.loss_mode") or "vanilla")


def _clip(settings: VerlSettings) -> Results:
    both = f"{_ACTOR}clip_ratio"
    for side in ("low", "high"):
        if source := settings.first(f"{both}_{side}", both):
            value, of_ratio = settings.value(source), _loss(settings) in NAMES["losses_of_ratios"]
            if side == "low" and of_ratio and isinstance(value, int | float) and value > 1:
                value = 1.0  # a ratio is never below 0: no limit there, and 1 is no limit here
            yield f"actor.clip_ratio_{side}", value, (source,)


def _policy_loss(settings: VerlSettings) -> Results:
    mode, aggregation, loss = f"{_ACTOR}policy_loss.loss_mode", f"{_ACTOR}loss_agg_mode", _loss(settings)
    if settings.has(mode):
        yield "actor.policy_loss", NAMES["losses"].get(loss, loss), (mode,)
    if loss in NAMES["losses_of_episodes"]:  # whatever is asked for, these have it there
        yield "actor.loss_agg_mode", "seq-mean-token-mean", (mode, aggregation)
    else:
        yield from settings.passed({aggregation: "actor.loss_agg_mode"})


def _norm_by_std(settings: VerlSettings) -> Results:
    key = "algorithm.adv_estimator"
    name = settings.verl[key].value if key in settings.verl else NAMES["defaults"][key]
    words = TABLES[PPOConfig].rules[key].words
    estimator = words.get(name, name) if isinstance(name, str) else name
    if estimator in ("grpo", "grpo_passk"):
        yield from settings.passed({"algorithm.norm_adv_by_std_in_grpo": "algorithm.norm_by_std"})
    # Whitening over the batch is part of verl's GAE, and by definition of REINFORCE++; of none of the others.
    yield "algorithm.norm_adv", estimator == "gae", ()
    if estimator == "rloo":
        yield "algorithm.baseline", "group", ()


def _rollout_correction(settings: VerlSettings) -> Results:
    """Correct from the sampling policy to the one that the update starts from: by weights, and by rejection."""
    bypass, loss, older = (f"{_CORRECTION}{name}" for name in ("bypass_mode", "loss_type", "use_policy_gradient"))
    on = settings.value(bypass)
    if not isinstance(on, bool | None):
        settings.stop(bypass, "it must be true or false", says_value=True)
    if on is not None:
        yield "actor.old_logprobs", "rollout" if on else "recompute", (bypass,)
    level = f"{_CORRECTION}rollout_is"
    if not on and settings.has(level):  # with bypass_mode the loss's own ratio is that of learner to engine
        modes = {"token": "token_tis", "sequence": "sequence_tis"}
        yield "actor.importance_correction", settings.word(level, modes, "it must be null or one of "), (level,)
        if settings.has(cap := f"{level}_threshold"):
            if "_" in str(settings.value(cap)):
                text = "weights outside two bounds are not dropped here: write the upper one, or reject with rollout_rs"
                settings.stop(cap, text, says_value=True)
            yield "actor.tis_cap", _positive(settings, cap), (cap,)
        yield from settings.passed({f"{level}_batch_normalize": "actor.importance_batch_normalize"})
    yield from _rejection(settings, on is True)
    if settings.value(loss) not in (None, "ppo_clip", "reinforce"):
        settings.stop(loss, "it must be ppo_clip", says_value=True)
    for key, plain in ((loss, "ppo_clip"), (older, False)):
        if on and settings.has(key) and settings.value(key) != plain:
            settings.refuse(key, f"losses are clipped here: write {dump(plain)}", says_value=True)


def _rejection(settings: VerlSettings, bypass: bool) -> Results:
    """Reject episodes.

    The bounds of *k1* are of engine over learner in verl (its k1 is minus the log-ratio), so the band is inverted:
    ``low <= engine / learner <= high`` is ``1 / high <= learner / engine <= 1 / low``.
    """
    criterion, veto = f"{_CORRECTION}rollout_rs", f"{_CORRECTION}rollout_token_veto_threshold"
    high, low = f"{criterion}_threshold", f"{criterion}_threshold_lower"
    if settings.has(veto):
        settings.refuse(veto, "a single token does not leave out its episode here: leave it at null")
    if not settings.has(criterion):
        return
    if bypass:
        text = "with bypass_mode=true would compare again at each step; here once, before the first: write bypass_mode="
        settings.stop(criterion, f"{text}false")
    bands = NAMES["rejections"]
    choices = {**bands, **{kl: kl for kl in get_args(Rejection)[4:]}}
    rejection = settings.word(criterion, choices, "it must be null or one of ")
    if not settings.has(high):
        settings.stop(high, f"must be given with rollout_rs={settings.value(criterion)}")
    yield "actor.rejection", rejection, (criterion,)
    if rejection not in bands.values():
        yield "actor.rejection_kl", _positive(settings, high), (high,)
        return
    turned, bounds = settings.value(criterion).endswith("_k1"), str(settings.value(high)).split("_")
    if len(bounds) > (2 if turned else 1):
        settings.stop(high, f"it must be {'LOW_HIGH, or ' * turned}a number", says_value=True)
    upper = _positive(settings, high, bounds[-1])
    if len(bounds) == 2:
        lower = _positive(settings, high, bounds[0])
    else:
        lower = _positive(settings, low) if settings.has(low) and not turned else 1 / upper
    if turned:
        lower, upper = 1 / upper, 1 / lower
    yield "actor.rejection_low", lower, (high, low)
    yield "actor.rejection_high", upper, (high, low)


def _positive(settings: VerlSettings, key: str, text: str | None = None) -> float:
    """Return the value of a key, or ``text``, a part of it, as a positive number."""
    value, number = settings.value(key) if text is None else text, 0.0
    with contextlib.suppress(TypeError, ValueError):
        number = 0.0 if isinstance(value, bool) else float(value)
    if not 0 < number < float("inf"):
        settings.stop(key, "it must be a positive number", says_value=True)
    return number


# --- environment, rewards


def _validation(settings: VerlSettings) -> Results:
    sample, temperature = f"{_ROLLOUT}val_kwargs.do_sample", f"{_ROLLOUT}val_kwargs.temperature"
    value = settings.value(temperature) if settings.value(sample) is True else 0.0
    yield "validation.temperature", 0.0 if value is None else value, (sample, temperature)


def _environment(settings: VerlSettings) -> Results:
    turns = f"{_ROLLOUT}multi_turn."
    interaction, loop = f"{turns}interaction_config_path", f"{_ROLLOUT}agent.default_agent_loop"
    files = {interaction: "interactions", f"{turns}tool_config_path": "tools", "data.tool_config_path": "tools"}
    named = tuple(key for key in files if settings.has(key))
    chosen = "env.id" in settings.native
    env = settings.native_value("env.id")
    if named and not chosen:
        environments = [_classes(settings, key, files[key]) for key in named]
        if any(environment != environments[0] for environment in environments):
            settings.stop(named[1], f"is another environment than {named[0]}; name the one to train in by env.id")
        env = environments[0]["env"]
        yield "env.id", env, named
        for name, value in environments[0].get("kwargs", {}).items():
            yield f"env.kwargs.{name}", value, named
    elif not chosen:
        env = settings.word(loop, NAMES["agent_loops"], "name the environment with env.id; known are ")
        yield "env.id", env, (loop,)
    if env in NAMES["single_turn"]:
        return
    yield from settings.passed({f"{turns}max_user_turns": "env.kwargs.max_user_turns"})
    if limit := settings.first(f"{turns}max_assistant_turns", f"{turns}max_turns"):
        yield "env.kwargs.max_assistant_turns", settings.value(limit), (limit,)
    elif settings.has(interaction) and not chosen:
        yield "env.kwargs.max_assistant_turns", None, (interaction,)  # there null is the default


def _classes(settings: VerlSettings, key: str, kind: str) -> Mapping[str, Any]:
    """Return the environment that a file of ``interactions`` or ``tools`` stands for."""
    path, environments, entries = settings.value(key), NAMES[kind], kind if kind == "tools" else "interaction"
    classes: list[tuple[str, dict[str, Any]]] = []
    try:
        content = yaml.load(read_text(str(path), YAML_FILE), Loader)
        classes = [(str(entry["class_name"]), dict(entry.get("config") or {})) for entry in content[entries]]
    except UnreadableFile as error:
        text = f"{error}; give a file that is there, or name the environment with env.id"
        settings.stop(key, text)
    except yaml.YAMLError as error:
        settings.stop(key, f"{path} is not YAML: {reason(error)}")
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    if not classes:
        settings.stop(key, f"{path} needs a list '{entries}' of entries with a class_name")
    chosen = [environments.get(name.rpartition(".")[2]) for name, _ in classes]
    for (name, options), environment in zip(classes, chosen, strict=True):
        if environment is None:
            text = f"known are {', '.join(environments)}. Name the environment with env.id"
            settings.stop(key, f"{path} has the class {name!r}, which no environment here stands for; {text}")
        if {**options, "type": "native"} != {"type": "native"}:
            settings.stop(key, f"{path}: give the options of {name} as env.kwargs; its 'config' is not read")
        if environment != chosen[0]:
            settings.stop(key, f"{path} has classes of several environments; a run has one")
    return dict(chosen[0])


def _reward_manager(settings: VerlSettings) -> Results:
    """Set what scores an episode, and DAPO's penalty for long replies."""
    names = ("reward_model.reward_manager", "reward.reward_manager.name", "reward_manager.name")
    for key in filter(settings.has, names):
        if settings.value(key) not in ("naive", "dapo", "gdpo"):
            text = "an environment or custom_reward_function scores here: write naive"
            settings.refuse(key, text, says_value=True)
    keys = settings.under("reward_model.overlong_buffer.", "reward_model.reward_kwargs.", "reward.reward_kwargs.")
    enables = (".overlong_buffer.enable", ".overlong_buffer_cfg.enable")
    prefixes = {key.removesuffix("enable") for key in keys if key.endswith(enables) and settings.value(key) is True}
    if any(settings.value(key) == "dapo" for key in names):
        for prefix in sorted(prefixes):
            options = ("enable", "len", "penalty_factor")
            yield from settings.passed({f"{prefix}{name}": f"overlong_buffer.{name}" for name in options})
    for key in keys:
        if key.endswith(".max_resp_len") and prefixes and settings.value(key) != settings.number(_RESPONSE):
            settings.refuse(key, f"the penalty ends at {_RESPONSE} here: write that", says_value=True)


def _reward_pool(settings: VerlSettings) -> Results:
    for section in ("reward.reward_model.", "reward_model."):
        own = settings.value(f"{section}enable_resource_pool") is True
        for key in (f"{section}n_gpus_per_node", f"{section}nnodes"):
            if own and settings.has(key):
                settings.number(key)
            elif own:
                settings.refuse(key, f"must be given with {section}enable_resource_pool=True")
        names = ("enable_resource_pool", *(("n_gpus_per_node", "nnodes") if own else ()))
        yield from settings.passed({f"{section}{name}": f"reward_model.{name}" for name in names})


def _distillation(settings: VerlSettings) -> Results:
    """Set the teacher: of verl's losses, the one whose log-ratios are advantages."""
    loss = f"{_DISTILLATION}distillation_loss."
    if settings.value(f"{_DISTILLATION}enabled") is not True:
        return
    names = (f"{_DISTILLATION}teacher_models.teacher_model.model_path", f"{_DISTILLATION}teacher_model.model_path")
    if (teacher := settings.first(*names)) is None:
        settings.stop(names[0], "must be given with distillation.enabled=True")
    mode, gradient = f"{loss}loss_mode", f"{loss}use_policy_gradient"
    if settings.value(mode) != "k1" or settings.value(gradient) is not True:
        text = "a teacher's log-ratios are advantages here: write k1, with use_policy_gradient=True; or, for the KL"
        settings.stop(mode, f"{text} of each state in the loss, actor.distill instead of distillation")
    yield "actor.distill.teacher", settings.value(teacher), (teacher, f"{_DISTILLATION}enabled", mode, gradient)
    rewards, coef, clamp = (
        f"{loss}{name}" for name in ("use_task_rewards", "distillation_loss_coef", "loss_max_clamp")
    )
    beside = settings.value(rewards) is not False
    yield "actor.distill.rewards", beside, (rewards,)
    if beside and settings.has(coef):
        yield "actor.distill.coef", settings.value(coef), (coef,)
    yield "actor.distill.clip", settings.value(clamp), (clamp,)


# --- models, engines, machines


def _adapter(settings: VerlSettings) -> Results:
    """Set the adapter; rank and alpha that are not set are the saved adapter's."""
    path, own = f"{_MODEL}lora_adapter_path", {"lora_rank": "rank", "lora_alpha": "alpha"}
    yield from settings.passed({f"{_MODEL}{name}": f"model.{name}" for name in ("lora_adapter_path", *own)})
    if settings.has(path):
        with contextlib.suppress(ValueError):  # the configuration's own check says what is wrong with it
            saved = read_adapter(str(settings.value(path)))
            for name, attribute in own.items():
                if not settings.has(f"{_MODEL}{name}"):
                    yield f"model.{name}", getattr(saved, attribute), (path,)


def _engine(settings: VerlSettings, section: str = _ROLLOUT) -> Results:
    """Set the engine and its options; ``section`` is where verl has them."""
    key, name = f"{section}name", settings.native_value("engine.name")
    if settings.has(key):
        engine = settings.word(key, NAMES["engines"], "it must be one of ")
        yield "engine.name", engine, (key,)
        if "engine.name" not in settings.native:  # else for a try on another machine
            name = engine
    options = {f"{section}{option}": native for option, native in NAMES["engine_options"].get(name, {}).items()}
    yield from settings.passed({option: native for option, native in options.items() if not native.startswith("--")})
    if name == "sglang":
        own = f"{section}engine_kwargs.sglang."
        options |= {full: "--" + full.removeprefix(own).replace("_", "-") for full in settings.under(own)}
        used = {
            full: [word] if settings.value(full) is True else [word, str(settings.value(full))]
            for full, word in options.items()
            if word.startswith("--") and settings.has(full) and settings.value(full) is not False
        }
        if used:
            yield "engine.sglang.server_args", sum(used.values(), []), tuple(used)


def _prompts(settings: VerlSettings) -> Results:
    """Set the file of prompts and the number of replies to each, for the command that generates."""
    files, count, target = "data.train_files", "rollout.n", "data.n_samples"
    if settings.has(files):
        value = settings.value(files)
        if isinstance(value, list) and len(value) != 1:
            settings.stop(files, f"has {len(value)} files; a command reads one: give each a command of its own")
        yield "data.path", value[0] if isinstance(value, list) else value, (files,)
    if settings.value(count) in (1, None):
        return
    if target in settings.native and settings.native_value(target) != settings.value(count):
        settings.stop(
            count,
            f"is {dump(settings.value(count))}, and {target} is {settings.native_value(target)}: write one of them",
        )
    yield target, settings.value(count), (count,)


def _offload(settings: VerlSettings) -> Results:
    keys = (f"{_ACTOR}fsdp_config.{name}" for name in ("param_offload", "optimizer_offload", "offload_policy"))
    if enabled := tuple(key for key in keys if settings.value(key) is True):
        yield "trainer.offload", True, enabled


def _cluster(settings: VerlSettings) -> Results:
    """Start a learner rank on each GPU, and an engine for each GPU or group of them."""
    nodes, gpus = _machines(settings)
    if (nodes, gpus) != (1, 1):
        yield "cluster.nnodes", nodes, (_NODES,)
        yield "cluster.n_gpus_per_node", settings.value(_GPUS), (_GPUS,)
        yield "cluster.learner_ranks", nodes * gpus, (_NODES, _GPUS)
        yield from _replicas(settings, nodes * gpus, _ROLLOUT)


def _generating_cluster(settings: VerlSettings) -> Results:
    """Start as many engines as GPUs, and Ray for several machines, for the command that generates."""
    nodes, gpus = _machines(settings)
    yield from _replicas(settings, nodes * gpus, "rollout.")
    if nodes > 1:
        yield "cluster.backend", "ray", (_NODES,)
        yield "cluster.nnodes", nodes, (_NODES,)
    if nodes > 1 or settings.native_value("cluster.backend") == "ray":
        yield from settings.passed({_GPUS: "cluster.n_gpus_per_node"})


def _machines(settings: VerlSettings) -> tuple[int, int]:
    return settings.number(_NODES) if settings.has(_NODES) else 1, settings.number(_GPUS) if settings.has(_GPUS) else 1


def _replicas(settings: VerlSettings, gpus: int, section: str) -> Results:
    """Share the GPUs among engines, each split over some of them; the embedded engine is not split."""
    key = f"{section}tensor_model_parallel_size"
    name = NAMES["engines"].get(str(settings.value(f"{section}name")), "torch")
    if "engine.name" in settings.native:  # for a try on another machine
        name = settings.native_value("engine.name")
    width = settings.number(key) if settings.has(key) and name != "torch" else 1
    if gpus % width and settings.value("trainer.device") != "cpu":
        settings.stop(_GPUS, f"times {_NODES} is {gpus} GPUs, which engines of {width} do not share")
    if gpus > 1:
        yield "engine.replicas", max(1, gpus // width), (_NODES, _GPUS)


def _on_ray(settings: VerlSettings, *backends: str) -> bool:
    return "ray" in map(settings.native_value, backends) or _machines(settings) != (1, 1)


def _timeline(settings: VerlSettings) -> Results:
    target = (
        "ray_init.timeline_json_file" if _on_ray(settings, "cluster.backend", "env.backend") else "trainer.trace_file"
    )
    yield from settings.passed({f"{section}.timeline_json_file": target for section in ("ray_init", "ray_kwargs")})


def _nsight(settings: VerlSettings) -> Results:
    """Profile learner ranks with Nsight, if it is the profiler, or has options."""
    key, options = "global_profiler.tool", settings.under(*_NSIGHT)
    tool = settings.value(key)
    if tool not in ("nsys", "torch", None):
        settings.stop(key, "profilers are torch and nsys", says_value=True)
    nsight_options = {
        name.rpartition("_options.")[2]: settings.value(name) for name in sorted(options)
    }  # older names win
    steps = settings.value("global_profiler.steps") or settings.native_value("trainer.profile_steps")
    if tool == "nsys" or (tool is None and steps and any(value is not None for value in nsight_options.values())):
        if not _on_ray(settings, "cluster.backend"):
            settings.stop(key, "Nsight is for learner ranks that Ray starts: add cluster.backend=ray")
        for name, value in {**NAMES["nsight"], **nsight_options}.items():
            if value is not None:
                yield f"cluster.nsight.{name}", value, (key, *options)


# --- the tables

_actor_warmup = partial(_warmup, section=f"{_ACTOR}optim", target="actor")
_critic_warmup = partial(_warmup, section="critic.optim", target="critic")
_generating_engine = partial(_engine, section="rollout.")


def _table(command: str, **options: Any) -> Table:
    rules = rules_of(command)
    return Table(rules, {name: globals()[f"_{name}"] for rule in rules.values() if (name := rule.computed)}, **options)


NOTHING = Table()
#: A section that stands for an entry of `reward_models` is there if it is enabled.
_PPO_READS = {**PPOConfig.reads, "reward_model.": {"reward_model.enable": (True,)}}
TABLES: Mapping[type[RunConfig], Table] = {
    PPOConfig: _table("ppo", defaults=NAMES["defaults"], reads=_PPO_READS, whole="actor_rollout_ref."),
    GenerateConfig: _table("generate", reads=GenerateConfig.reads, prefix="actor_rollout_ref."),
    EvaluateConfig: _table("evaluate"),
}
