"""From verl's keys to ours, by the table of :mod:`.verl`; every key is answered with a line, none silently.

A command with a key of ``actor_rollout_ref`` is taken as a whole command of verl: what it leaves out has verl's
default where ours is another (:data:`~.verl.DEFAULTS`). Our own keys may stand beside verl's, and the later wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from . import verl
from .describe import Key
from .settings import Report, Setting
from .verl import Rule
from .yaml12 import Loader, dump, reason

#: Where a default of verl's comes from.
DEFAULT = "verl's default"
_WHOLE = "actor_rollout_ref."


@dataclass(frozen=True)
class Table:
    """How the keys of one command are translated.

    Args:
        rules: By verl's key; a name that ends in ``.*`` holds for all keys below.
        defaults: Of verl, in our keys, for whole commands.
        joint: The functions that rules name, in the order they are used.
        whole: The beginning of keys that make a command one of verl's; ``None`` where there are no defaults.
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    joint: Mapping[str, Callable[[Given], Iterator[Result]]] = field(default_factory=dict)
    whole: str | None = None

    def rule(self, name: str) -> Rule | None:
        """The rule for a key, be it that of a whole group."""
        if name in self.rules:
            return self.rules[name]
        parts = name.split(".")
        for count in range(len(parts) - 1, 0, -1):
            if (rule := self.rules.get(".".join(parts[:count]) + ".*")) is not None:
                return rule
        # A mapping that was given as a whole (`apply_chat_template_kwargs={a: 1}`) arrives as its entries.
        for count in range(len(parts) - 1, 0, -1):
            if (rule := self.rules.get(".".join(parts[:count]))) is not None and rule.only is not None:
                return rule
        return None


@dataclass(frozen=True)
class Result:
    """What a joint rule found: a value for one of our keys, or what is wrong (``key`` is then verl's)."""

    key: str
    value: Any = None
    problem: str | None = None
    of: tuple[str, ...] = ()


class Given:
    """What was set, for joint rules: verl's keys, ours, and what the schema has."""

    def __init__(
        self, verls: Mapping[str, Setting], ours: Mapping[str, Setting], keys: Mapping[str, Key], whole: bool
    ) -> None:
        self.verls = verls
        self.ours = ours
        self.keys = keys
        self.whole = whole

    def has(self, *names: str) -> bool:
        """Whether one of verl's keys was given a value other than null."""
        return any(name in self.verls and self.verls[name].value is not None for name in names)

    def where(self, name: str) -> str:
        """Where one of verl's keys was written; nowhere for a default."""
        return self.verls[name].where if name in self.verls else DEFAULT

    def value(self, name: str) -> Any:
        """The value of one of verl's keys; else its default there, in a whole command; else what ours says."""
        if self.has(name):
            return self.verls[name].value
        if self.whole:
            return verl.VERL_VALUES.get(name)
        if name == "data.max_prompt_length":
            return self.our("engine.max_context") - self.our("rollout.max_response_length")
        same = {
            "data.train_batch_size": "rollout.groups_per_batch",
            "data.max_response_length": "rollout.max_response_length",
            "actor_rollout_ref.actor.ppo_mini_batch_size": "rollout.groups_per_batch",
        }
        return self.our(same[name]) if name in same else None

    def number(self, name: str, least: int = 1) -> int:
        """Likewise, as a whole number.

        Raises:
            ValueError: It is none, or too small.
        """
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadValueError(name, f"is {dump(value)}; it must be a whole number >= {least}")
        return value

    def our(self, name: str) -> Any:
        """The value of one of our keys, as given or by default."""
        return self.ours[name].value if name in self.ours else self.keys[name].default


class BadValueError(ValueError):
    """One of verl's keys has a value that no rule takes."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


@dataclass(frozen=True)
class Translated:
    """The settings in our keys, in the order they count, and a line about each of verl's keys."""

    settings: tuple[Setting, ...]
    notes: tuple[str, ...]


def translate(settings: Sequence[Setting], keys: Mapping[str, Key], table: Table, report: Report) -> Translated:
    """Translate verl's keys; settings of ours stay as they are, and unknown ones too (for who reports them).

    Args:
        settings: In the order they count: later ones win.
        keys: The schema's.
        table: The command's.
        report: Told what is wrong.
    """
    named = [_plain(setting, keys, table) for setting in settings]
    if not any(setting.key not in keys and table.rule(setting.key) is not None for setting in named):
        return Translated(tuple(settings), ())
    for setting in named:
        if isinstance(setting.value, str) and "${" in setting.value:
            report(setting.key, f"{setting.value} is not resolved here; write the value", setting.where)
    whole = table.whole is not None and any(setting.key.startswith(table.whole) for setting in named)
    verls = {setting.key: setting for setting in named if table.rule(setting.key) is not None}
    ours = {setting.key: setting for setting in named if setting.key in keys}
    defaults = [Setting(key, value, DEFAULT) for key, value in table.defaults.items() if whole]
    notes = ["a command of verl: what it leaves out is as in verl (marked below)"] if whole else []
    given: list[list[Setting]] = []  # what each setting became, in their order
    places: dict[str, int] = {}  # of verl's keys that belong to joint rules
    for setting in named:
        rule = table.rule(setting.key)
        places[setting.key] = len(given)
        if rule is None:
            given.append([setting])
        elif rule.joint is not None:
            given.append([])
        else:
            given.append(list(_simple(setting, rule, keys, notes, report)))
    for name, function in table.joint.items():
        mine = [key for key in verls if (rule := table.rule(key)) is not None and rule.joint == name]
        if not mine and not whole:
            continue
        # What is computed from several keys stands where the last of them stands.
        place = max((places[key] for key in mine), default=0)
        for setting in _jointly(function, mine, Given(verls, ours, keys, whole), notes, report, table):
            if setting.where != DEFAULT:
                given[place].append(setting)
            elif whole:
                defaults.append(setting)
    return Translated((*defaults, *(setting for some in given for setting in some)), tuple(notes))


def _plain(setting: Setting, keys: Mapping[str, Key], table: Table) -> Setting:
    """Without the signs by which Hydra adds a key that its configuration has not."""
    name = setting.key.lstrip("+")
    if name != setting.key and (name in keys or table.rule(name) is not None):
        return Setting(name, setting.value, setting.where)
    return setting


def _simple(
    setting: Setting, rule: Rule, keys: Mapping[str, Key], notes: list[str], report: Report
) -> Iterator[Setting]:
    """A key that is translated by itself."""
    key, value = setting.key, setting.value
    if rule.above is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= rule.above):
        report(key, f"is {dump(value)}; it must be a whole number above {rule.above}", setting.where)
        return
    if rule.to and rule.to[0] in keys:
        value = _in_our_words(value, rule.words)
        if key in rule.to and value == setting.value:  # the same key with the same value
            yield setting
            return
        for target in rule.to:
            yield Setting(target, value, f"{key}, {setting.where}")
        said = ", ".join(f"{target}={dump(value)}" for target in rule.to)
        notes.append(f"{key} -> {said}" + (f" ({rule.why})" if rule.why else ""))
        return
    if rule.only is not None and not _among(value, rule.only):
        what = "cannot be had in this version" if rule.to else "cannot be had"
        allowed = " or ".join(dump(each) for each in rule.only if each is not None) or "null"
        report(key, f"{dump(value)} {what}: {rule.why}; leave it at {allowed}", setting.where)
        return
    notes.append(f"{key}: {'not in this version' if rule.to else 'no meaning here'}: {rule.why}")


def _in_our_words(value: Any, words: Mapping[Any, Any]) -> Any:
    if isinstance(value, list):
        return [_in_our_words(each, words) for each in value]
    for theirs, ours in words.items():
        if type(theirs) is type(value) and theirs == value:
            return ours
    return value


def _among(value: Any, allowed: Sequence[Any]) -> bool:
    return any(type(value) is type(each) and value == each for each in allowed)


def _jointly(
    function: Callable[[Given], Iterator[Result]],
    mine: Sequence[str],
    given: Given,
    notes: list[str],
    report: Report,
    table: Table,
) -> Iterator[Setting]:
    """The settings of a joint rule; ``mine`` are the keys that belong to it and were given."""
    answered: set[str] = set()
    try:
        for result in function(given):
            of = [key for key in result.of if key in mine]
            answered |= set(of)
            where = ", ".join([*of, *dict.fromkeys(given.verls[key].where for key in of)]) if of else DEFAULT
            if result.problem is not None:
                answered.add(result.key)
                report(result.key, result.problem, given.where(result.key))
            elif result.key:
                yield Setting(result.key, result.value, where)
                if of:
                    notes.append(f"{', '.join(of)} -> {result.key}={dump(result.value)}")
            elif of:
                notes.append(f"{', '.join(of)}: {result.value}")
    except BadValueError as error:
        answered |= set(mine)
        report(error.key, str(error), given.where(error.key))
    for key in mine:
        if key not in answered:
            rule = table.rule(key)
            notes.append(f"{key}: no meaning here: {rule.why if rule is not None else ''}")


# ------------------ the joint rules of PPO

_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."


def _sizes(given: Given) -> tuple[int, int]:
    """Prompts a batch and prompts a mini-batch."""
    batch, mini = given.number("data.train_batch_size"), given.number(f"{_ACTOR}ppo_mini_batch_size")
    if not given.has(f"{_ACTOR}ppo_mini_batch_size"):
        mini = min(batch, mini) if batch % min(batch, mini) == 0 else batch
    return batch, mini


def _batch(given: Given) -> Iterator[Result]:
    key = f"{_ACTOR}ppo_mini_batch_size"
    batch, mini = _sizes(given)
    yield Result("rollout.groups_per_batch", batch, of=("data.train_batch_size",))
    if batch % mini:
        text = f"is {mini}, which does not divide data.train_batch_size={batch}"
        yield Result(key, problem=f"{text}: an iteration has a whole number of mini-batches", of=(key,))
        return
    yield Result("actor.mini_batches", batch // mini, of=(key,))


def _critic_batch(given: Given) -> Iterator[Result]:
    key = "critic.ppo_mini_batch_size"
    if given.has(key) and given.number(key) != _sizes(given)[1]:
        yield Result(
            key, problem=f"is {given.value(key)}; the critic's mini-batches are the actor's: {_sizes(given)[1]}"
        )


def _critic_epochs(given: Given) -> Iterator[Result]:
    key, actors = "critic.ppo_epochs", f"{_ACTOR}ppo_epochs"
    if given.has(key) and given.number(key) != (given.value(actors) or 1):
        yield Result(key, problem=f"is {given.value(key)}; the critic's passes are the actor's ({actors})")


def _lengths(given: Given) -> Iterator[Result]:
    prompt, response = given.number("data.max_prompt_length"), given.number("data.max_response_length")
    yield Result("engine.max_context", prompt + response, of=("data.max_prompt_length", "data.max_response_length"))
    for key in ("rollout.max_response_length", "rollout.max_response_tokens"):
        yield Result(key, response, of=("data.max_response_length",))


def _micro(given: Given) -> Iterator[Result]:
    sequences, tokens = f"{_ACTOR}ppo_micro_batch_size_per_gpu", f"{_ACTOR}ppo_max_token_len_per_gpu"
    dynamic = f"{_ACTOR}use_dynamic_bsz"
    longest = given.number("data.max_prompt_length") + given.number("data.max_response_length")
    target = "actor.max_tokens_per_micro_batch"
    if given.has(sequences) and given.value(dynamic) is not True:
        yield Result(target, given.number(sequences) * longest, of=(sequences,))
        yield Result("", "not used, for ppo_micro_batch_size_per_gpu counts without use_dynamic_bsz=true", of=(tokens,))
        yield Result("", "micro-batches are counted in tokens either way", of=(dynamic,))
    else:
        yield Result(target, given.number(tokens), of=(tokens, dynamic))
        yield Result("", "not used, for ppo_max_token_len_per_gpu counts with use_dynamic_bsz=true", of=(sequences,))


def _clip(given: Given) -> Iterator[Result]:
    both = f"{_ACTOR}clip_ratio"
    for side in ("low", "high"):
        key = f"{both}_{side}"
        if given.has(key) or given.has(both):
            source = key if given.has(key) else both
            yield Result(f"actor.clip_ratio_{side}", given.value(source), of=(source,))


def _actor_warmup(given: Given) -> Iterator[Result]:
    yield from _warmup(given, f"{_ACTOR}optim", "actor")


def _critic_warmup(given: Given) -> Iterator[Result]:
    yield from _warmup(given, "critic.optim", "critic")


def _warmup(given: Given, section: str, ours: str) -> Iterator[Result]:
    """In verl a step is an optimizer's too, but the ratio is of ``total_training_steps``, which are iterations."""
    steps, ratio = f"{section}.lr_warmup_steps", f"{section}.lr_warmup_steps_ratio"
    if given.has(steps) and given.number(steps, least=-1) >= 0:
        yield Result(f"{ours}.lr_warmup_steps", given.value(steps), of=(steps, ratio))
    elif given.has(ratio):
        share = given.value(ratio)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise BadValueError(ratio, f"is {dump(share)}; it must be a number from 0 to 1")
        iterations = _iteration_count(given)
        if iterations is None and share:
            raise BadValueError(ratio, f"give {steps}: how many steps there are is not known")
        # verl counts the share in iterations and steps the schedule once an iteration; here it is stepped with the
        # optimizer, so the rise ends at the same place of the run.
        batch, mini = _sizes(given)
        a_pass = (given.value(f"{_ACTOR}ppo_epochs") or 1) * max(1, batch // mini)
        yield Result(f"{ours}.lr_warmup_steps", int(share * (iterations or 0)) * a_pass, of=(ratio, steps))


def _validation(given: Given) -> Iterator[Result]:
    sample, temperature = f"{_ROLLOUT}val_kwargs.do_sample", f"{_ROLLOUT}val_kwargs.temperature"
    value = given.value(temperature) if given.value(sample) is True else 0.0
    yield Result("validation.temperature", 0.0 if value is None else value, of=(sample, temperature))


def _norm_by_std(given: Given) -> Iterator[Result]:
    key = "algorithm.norm_adv_by_std_in_grpo"
    estimator = _estimator(given)
    if estimator == "grpo" and given.has(key):
        yield Result("algorithm.norm_by_std", given.value(key), of=(key,))
    elif given.has(key):
        yield Result("", f"not used with algorithm.adv_estimator={estimator}", of=(key,))
    # Whitening over the batch is part of verl's GAE, and of none of its group estimators.
    yield Result("algorithm.norm_adv", estimator == "gae")
    if estimator == "rloo":
        yield Result("algorithm.baseline", "group")


def _estimator(given: Given) -> Any:
    name = "algorithm.adv_estimator"
    given_name = given.verls[name].value if name in given.verls else verl.DEFAULTS[name]
    return verl.PPO[name].words.get(given_name, given_name) if isinstance(given_name, str) else given_name


def _engine(given: Given, section: str = _ROLLOUT) -> Iterator[Result]:
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


def _known(name: Any, names: Mapping[str, Any]) -> bool:
    return isinstance(name, str) and name in names


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


def _environment(given: Given) -> Iterator[Result]:
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


def _iterations(given: Given) -> Iterator[Result]:
    epochs, steps = "trainer.total_epochs", "trainer.total_training_steps"
    if "trainer.total_iterations" in given.ours:
        yield Result("", "not used: trainer.total_iterations is given", of=(epochs, steps))
        return
    count = _iteration_count(given)
    if count is None:
        yield Result(
            epochs,
            problem="how many iterations that is, data.train_files must tell: give existing .parquet or .jsonl files, "
            "or trainer.total_iterations",
        )
    elif given.has(steps):
        yield Result("trainer.total_iterations", count, of=(steps,))
        yield Result("", "not used: total_training_steps is given", of=(epochs,))
    else:
        yield Result("trainer.total_iterations", count, of=(epochs,))


def _iteration_count(given: Given) -> int | None:
    if given.has("trainer.total_training_steps"):
        return given.number("trainer.total_training_steps")
    rows = _rows(given, "data.train_files")
    if rows is None:
        return None
    # An incomplete last batch of an epoch is not played there; tasks go on in the next epoch here.
    return given.number("trainer.total_epochs") * max(1, rows // given.number("data.train_batch_size"))


def _validation_rows(given: Given) -> Iterator[Result]:
    key = "data.val_max_samples"
    if given.has(key) and given.number(key, least=-1) >= 1:
        yield Result("data.val_size", given.value(key), of=(key,))
    elif "data.val_size" not in given.ours and (rows := _rows(given, "data.val_files")) is not None:
        yield Result("data.val_size", rows, of=(key,))


def _rows(given: Given, key: str) -> int | None:
    """How many rows the files of a key have; ``None`` where they cannot be read."""
    files = given.our(key)
    total = 0
    for file in [files] if isinstance(files, str) else files or ():
        path = Path(str(file)).expanduser()
        try:
            if path.suffix == ".parquet":
                from pyarrow import ArrowInvalid, parquet

                try:
                    total += parquet.read_metadata(path).num_rows
                except ArrowInvalid:
                    return None
            elif path.suffix == ".jsonl":
                with path.open("rb") as lines:
                    total += sum(1 for line in lines if line.strip())
            else:
                return None
        except (OSError, ImportError):
            return None
    return total or None


def _critic_model(given: Given) -> Iterator[Result]:
    key, actors = "critic.model.path", "actor_rollout_ref.model.path"
    if given.has(key) and given.value(key) != given.value(actors):
        yield Result(key, problem="another model than the actor's: the critic starts from the actor's weights")
    elif given.has(key):
        yield Result("", "the actor's model, whose weights the critic starts from", of=(key,))


def _reward_pool(given: Given) -> Iterator[Result]:
    enable = "reward_model.enable_resource_pool"
    sizes = ("reward_model.n_gpus_per_node", "reward_model.nnodes")
    if given.value(enable) is True:
        for key in sizes:
            if not given.has(key):
                yield Result(key, problem=f"must be given with {enable}=True", of=(key,))
            else:
                given.number(key)
        for key, ours in zip((enable, *sizes), _POOL, strict=True):
            if ours in given.keys:
                yield Result(ours, given.value(key), of=(key,))
            elif given.has(key):
                yield Result("", "not in this version: a reward model is a service beside the run", of=(key,))
    else:
        yield Result("", "no pool is asked for", of=(enable, *sizes))


def _offload(given: Given) -> Iterator[Result]:
    keys = [f"{_ACTOR}fsdp_config.{name}" for name in ("param_offload", "optimizer_offload", "offload_policy")]
    wanted = tuple(key for key in keys if given.value(key) is True)
    if wanted:
        yield Result("trainer.offload", True, of=wanted)
    yield Result("", "nothing is to be moved", of=tuple(key for key in keys if given.value(key) is not True))


def _cluster(given: Given) -> Iterator[Result]:
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


def _ray(given: Given) -> Iterator[Result]:
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


# Our keys for a pool of the reward model, where the schema has them.
_POOL = ("reward_model.enable_resource_pool", "reward_model.n_gpus_per_node", "reward_model.nnodes")

_JOINT: Mapping[str, Callable[[Given], Iterator[Result]]] = {
    "batch": _batch,
    "critic_batch": _critic_batch,
    "critic_epochs": _critic_epochs,
    "lengths": _lengths,
    "micro": _micro,
    "clip": _clip,
    "actor_warmup": _actor_warmup,
    "critic_warmup": _critic_warmup,
    "validation": _validation,
    "norm_by_std": _norm_by_std,
    "engine": _engine,
    "environment": _environment,
    "iterations": _iterations,
    "validation_rows": _validation_rows,
    "critic_model": _critic_model,
    "reward_pool": _reward_pool,
    "offload": _offload,
    "cluster": _cluster,
    "ray": _ray,
}


def _generating_engine(given: Given) -> Iterator[Result]:
    yield from _engine(given, "rollout.")


PPO = Table(verl.PPO, verl.DEFAULTS, _JOINT, _WHOLE)
GENERATE = Table(verl.GENERATE, {}, {"engine": _generating_engine})
EVALUATE = Table(verl.EVALUATE)
NOTHING = Table()
