"""From a command line to a configuration, or to one readable block with all problems."""

from __future__ import annotations

import ast
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from pydantic import ValidationError

from textenvs.python_text import parse_python
from textenvs.text import excerpt, reader_may_leave

from ..compat.verl.rules import NOTHING, TABLES
from ..compat.verl.translate import Table, take_flags, translate
from ..config.base import RunConfig
from ..config.checks import TASK_FILES
from ..config.describe import Key, all_keys, groups, help_text, is_key, key_at
from ..config.model import BFLOAT16, Bfloat16, ModelSection, multiplies_bfloat16, newest_model_of, planned_bfloat16
from ..config.reward_model import ClassifierModelSection, sections_of
from ..config.schema import PPOConfig
from ..config.settings import COMMAND_LINE, Report, Setting, extract_flags, from_arguments, from_file
from ..config.unread import no_effect
from ..config.yaml12 import dump
from ..models.hub import is_name, read_adapter
from ..section import ConflictError, Problems, Section, frozen, value_of
from .entries import AsWritten, to_entries
from .notices import notices
from .unknown import nearest_keys, unknown_key, without_name

_CREDIT = "algorithm.reward_credit"
_NO_FILES = ("generated:", "hub:")  # sources of tasks that are not on this disk


def _adapter_checks(model: ModelSection) -> Problems:
    """Yield differences between a saved adapter's own configuration and this one."""
    assert model.lora_adapter_path is not None
    try:
        saved = read_adapter(model.lora_adapter_path)
    except ValueError as error:
        yield "model.lora_adapter_path", str(error)
        return
    for key, saved_value in (("lora_rank", saved.rank), ("lora_alpha", saved.alpha)):
        if (configured := getattr(model, key)) != saved_value:
            yield f"model.{key}", f"is {configured:g}, and the adapter of model.lora_adapter_path has {saved_value:g}"
    if saved.target_modules is None or isinstance(model.target_modules, str):
        return  # only the model can tell
    if set(model.target_modules) - set(model.exclude_modules) != saved.target_modules:
        text = f"and the adapter of model.lora_adapter_path is in {', '.join(sorted(saved.target_modules))}"
        yield "model.target_modules", f"is {', '.join(model.target_modules)}, {text}"


def missing_paths(config: Section) -> Problems:
    """Yield files and folders of the configuration that do not exist, seen from the current folder."""
    at = partial(value_of, config)
    for key in ("data.train_files", "data.val_files", "warm_start.files", "sft.files"):
        for file in at(key) or ():
            path = Path(file).expanduser()
            if key.startswith("data.") and file.startswith(_NO_FILES):
                continue
            if not path.is_file():
                yield key, f"there is no file {file} (looked in {path.absolute().parent})"
            elif path.suffix not in TASK_FILES:
                yield key, f"{file} is neither .jsonl nor .parquet"
    model = at("model.path")
    # Files of a name on the hub are looked up when the plan is made.
    if model not in ("tiny", None) and not is_name(model) and not (Path(model).expanduser() / "config.json").is_file():
        text = "is not a folder with a config.json; give a model's folder, a name on the hub, or tiny"
        yield "model.path", f"{model} {text}{newest_model_of(model)}"
    if at("model.lora_adapter_path") is not None:
        yield from _adapter_checks(at("model"))
    for key, scorer in sections_of(config).items():
        judge = scorer.classifier.path if isinstance(scorer, ClassifierModelSection) else None
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
    """Return the problem if a Python file does not bind a name; the file is parsed, not run."""
    try:
        nodes = list(ast.walk(parse_python(file.read_text(encoding="utf-8"))))
    except (OSError, ValueError, SyntaxError) as error:
        return f"{file} cannot be read as Python: {error}"
    bound = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    names = bound | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    if name in names or "*" in names:
        return None
    return f"{file} has no function {name}" + (f"; it has {', '.join(sorted(bound))}" if bound else "")


ConfigT = TypeVar("ConfigT", bound=RunConfig)


class Problem(NamedTuple):
    """A problem: the key, what is wrong, and the origin of the value (empty for a default)."""

    key: str
    text: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" + (f"  [{self.where}]" if self.where else "")


class ConfigError(ValueError):
    """A configuration cannot be used; ``problems`` lists every problem with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"the configuration has {count}:", *(f"  {problem}" for problem in problems)]))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Flags:
    """The flags of a command line."""

    #: Origin of each key that was set: ``command line`` or ``FILE:LINE``.
    sources: Mapping[str, str] = field(default_factory=dict)
    #: Notes on the translation of verl's keys, and warnings, a line each.
    notes: Sequence[str] = ()
    #: Defaults that depend on other keys, as :meth:`.RunConfig.chosen_defaults` has them.
    chosen: Mapping[str, Any] = field(default_factory=dict)
    #: Turns names of keys in a text into those that the user wrote.
    as_written: AsWritten = AsWritten()

    def problem(self, key: str, text: str) -> Problem:
        """Return a problem with a key of the configuration."""
        return Problem(self.as_written(key), self.as_written(text), self.sources.get(key, ""))


def show_help(argv: Sequence[str], schema: type[RunConfig], usage: str) -> None:
    """Print the text that ``--help`` requests and exit with 0; with 2 if it names no section or key."""
    if "--help" not in argv and "-h" not in argv:
        return
    at = next(place for place, word in enumerate(argv) if word in ("--help", "-h"))
    topic = next((word for word in argv[at + 1 :] if not word.startswith("-") and "=" not in word), None)
    topic = "all" if "--all" in argv else topic
    text = help_text(schema, usage, topic)
    if text is None:
        assert topic is not None
        names = [*dict.fromkeys(group.name for group in groups(schema)), *all_keys(schema)]
        near = nearest_keys(topic, names)
        suggestion = f"; did you mean {' or '.join(near)}?" if near else ""
        _exit(f"--help {topic}: there is no such section or key{suggestion} --help lists the sections")
    with reader_may_leave():
        print(text)
    raise SystemExit(0)


def check_arguments(argv: Sequence[str], schema: type[RunConfig], usage: str) -> None:
    """Print help, or the problems with the keys, and exit as :func:`load_config` does; else return.

    A program calls it before it imports torch, which takes seconds; nothing here needs torch.
    """
    show_help(argv, schema, usage)
    _resolved(_Words.of(argv), schema, chosen_for=lambda device: True)


def load_config(
    argv: Sequence[str],
    *,
    schema: type[ConfigT] = PPOConfig,  # type: ignore[assignment]
    usage: str = "python -m trainers.ppo",
    plan: Callable[[ConfigT, str | None], str] | None = None,
    rehearse: Callable[[ConfigT, str | None], str] | None = None,
    check: Callable[[ConfigT], Iterable[tuple[str, str]]] | None = None,
) -> tuple[ConfigT, Flags]:
    """Read a command line, for the ``main`` of a program; ``usage`` is the command as the user types it.

    ``--help`` and ``--dry-run`` print and exit with 0; all problems are printed, and exit with 2. ``argv`` is without
    the program's name. For ``--dry-run``, ``plan`` describes what would be started where, from the configuration and
    the machine of ``--plan-for``, and ``rehearse`` tries the first steps of a run as far as they are cheap; a
    ``ValueError`` of either is a problem of the configuration. ``check`` yields problems that only the parts of a run
    can see: pairs of a key and what is wrong with it.
    """
    show_help(argv, schema, usage)
    words = _Words.of(argv)
    if words.machine is not None and plan is None:
        words.problems.append(Problem("--plan-for", "goes with commands that make a plan", COMMAND_LINE))
    config, flags = _resolved(words, schema, check, words.chosen_for)
    dry_run, machine = words.dry_run, words.machine
    lines: list[str] = []
    for step, failure in (
        (plan, "the configuration cannot be placed"),
        (rehearse if dry_run else None, "the run could not begin"),
    ):
        try:
            lines += step(config, machine).splitlines() if step else ()
        except ValueError as error:
            _exit(f"{failure}:\n  {flags.as_written(str(error))}\nNothing was started.")
    if dry_run:
        with reader_may_leave():
            print(render(config, flags.sources, flags.notes, whole=words.whole, chosen=flags.chosen), end="")
            print("".join(f"# {line}\n" for line in lines), end="")  # the output is still YAML
        raise SystemExit(0)
    for note in flags.notes:
        print(note, file=sys.stderr)
    return config, flags


@dataclass(frozen=True)
class _Words:
    """A command line: its flags, and the other words."""

    rest: list[str]
    dry_run: bool
    whole: bool
    machine: str | None  #: of ``--plan-for``
    problems: list[Problem]

    @classmethod
    def of(cls, argv: Sequence[str]) -> _Words:
        dry_run, problems = "--dry-run" in argv, list[Problem]()
        words = [argument for argument in argv if argument != "--dry-run" and not (dry_run and argument == "--all")]
        machines, rest = extract_flags(words, ("--plan-for",), lambda *problem: problems.append(Problem(*problem)))
        if machines and not dry_run:
            problems.append(Problem("--plan-for", "goes with --dry-run", COMMAND_LINE))
        return cls(rest, dry_run, "--all" in argv, machines[-1][1] if machines else None, problems)

    @property
    def chosen_for(self) -> Bfloat16:
        """The :data:`Bfloat16` of the machine of ``--plan-for``, which has GPUs, or else of this machine."""
        return multiplies_bfloat16 if self.machine is None else planned_bfloat16


def _resolved(
    words: _Words,
    schema: type[ConfigT],
    check: Callable[[ConfigT], Iterable[tuple[str, str]]] | None = None,
    chosen_for: Bfloat16 = multiplies_bfloat16,
) -> tuple[ConfigT, Flags]:
    """Return the configuration; if there are problems, print all and exit."""
    try:
        if words.problems:
            raise ConfigError(words.problems)
        config, flags = resolve(words.rest, schema, chosen_for)
        if check and (problems := [flags.problem(*problem) for problem in check(config)]):
            raise ConfigError(problems)
    except ConfigError as error:
        _exit(f"{error}\nNothing was started. --help SECTION lists its keys, --dry-run shows what would be used.")
    return config, flags


def resolve(
    arguments: Sequence[str],
    schema: type[ConfigT] = PPOConfig,  # type: ignore[assignment]
    chosen_for: Bfloat16 = multiplies_bfloat16,
) -> tuple[ConfigT, Flags]:
    """Read arguments (``key=value``, ``--config FILE``) into a checked configuration; ConfigError lists all problems.

    Verl's keys are translated first (:mod:`trainers.compat.verl`). Files override defaults, later files earlier ones,
    and ``key=value`` files. ``chosen_for`` is the machine that defaults are chosen for.
    """
    keys = all_keys(schema)
    problems: list[Problem] = []

    def report(key: str, text: str, where: str) -> None:
        problems.append(Problem(key, text, where))

    table = TABLES.get(schema, NOTHING)
    rest, bases, flag_notes = take_flags(arguments, report) if table.rules else (arguments, [], [])
    files, values = extract_flags(rest, ("--config",), report)
    settings = [setting for file in [*bases, *(file for _, file in files)] for setting in from_file(file, keys, report)]
    settings += from_arguments(values, keys, report)
    settings, notes = translate(settings, keys, table, report)
    settings, as_written = to_entries(settings, schema, keys, report)
    tree, sources = _merge(settings, keys, report, table)
    _drop_unread(tree, sources, keys, report)
    config = None
    try:
        config = schema.model_validate(tree, context={BFLOAT16: chosen_for})
    except ValidationError as error:
        problems += _explain(error, tree, keys, sources)
    if config is not None:
        problems += (Problem(key, text, sources.get(key, "")) for key, text in missing_paths(config))
    if config is None or problems:
        raise ConfigError([Problem(as_written(key), as_written(text), where) for key, text, where in problems])
    lines = (*flag_notes, *notes, *notices(config))
    return config, Flags(sources, lines, config.chosen_defaults(chosen_for), as_written)


def render(
    config: RunConfig,
    sources: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    *,
    whole: bool = True,
    chosen: Mapping[str, Any] | None = None,
) -> str:
    """Return the configuration as YAML for ``--config``: ``whole``, or the differences from the defaults; commented.

    ``chosen`` are the defaults that depend on other keys; ``None`` chooses them for this machine.
    """
    sources = sources or {}
    few = "# What differs from the defaults, and where it came from; --all shows every key."
    every = "# The resolved configuration. A comment marks what differs from the default, and where it came from."
    lines = [*(f"# {' '.join(note.split())}" for note in notes), every if whole else few]
    chosen, opened = config.chosen_defaults() if chosen is None else chosen, [""]
    for group in groups(type(config), section=config):
        path = group.keys[0].section.split(".") if group.keys[0].section else []
        for key in group.keys:
            value, default = attrgetter(key.name)(config), chosen.get(key.name, key.default)
            if not (value not in (key.default, default) or default != key.default or whole):
                continue
            for depth in range(len(path)):
                if path[: depth + 1] != opened[: depth + 1]:
                    lines.append(f"{'  ' * depth}{path[depth]}:")
            opened = path
            if key.entries:
                value = {name: _shortened(entry, key.entries) for name, entry in value.items()}
            line = f"{'  ' * len(path)}{key.name.rpartition('.')[2]}: {dump(value)}"
            if value != default:
                origin = f"{_origin(key, sources)} " if sources else ""
                line += f"  # {origin}(default {dump(default)})"
            elif default != key.default:
                line += f"  # {_origin(key, sources)}" if key.name in sources else "  # chosen, by other keys"
            lines.append(line)
    return "\n".join(lines) + "\n"


def _shortened(entry: Section, keys: Mapping[str, Key]) -> dict[str, Any]:
    """Return what an entry of a mapping of sections says: which variant it is, and what differs from its defaults."""
    switches = {key.switch: attrgetter(key.switch)(entry) for key in keys.values() if key.switch}
    chosen = {name: value for name, value in switches.items() if value != keys[name].default}
    return {**chosen, **entry.model_dump(mode="json", exclude_defaults=True)}


def _origin(key: Key, sources: Mapping[str, str]) -> str:
    """Return the origin of a value; entries of a free-form mapping may come from several places."""
    below = f"{key.name}."
    places = [where for name, where in sources.items() if name == key.name or name.startswith(below)]
    return ", ".join(dict.fromkeys(places)) or "set by the program"


def _merge(
    settings: Iterable[Setting], keys: Mapping[str, Key], report: Report, table: Table
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return nested values for the schema, and the origin of each; later settings win."""
    tree: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in settings:
        name = setting.key
        above = keys.get(name.rpartition(".")[0])
        entry = above is not None and above.entries  # of a mapping of sections, as a whole
        if "" in name.split("."):
            report(name or "''", "a name in it is empty or null: give it one, or leave it out", setting.where)
            continue
        if entry and not isinstance(setting.value, Mapping) and (text := without_name(name, keys)):
            report(name, text, setting.where)
            continue
        if not entry and not is_key(name, keys):
            report(name, unknown_key(name, keys, table), setting.where)
            continue
        *parents, last = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                report(name, f"{parent} is set to {dump(node)}, which has no entries", setting.where)
                break
        else:
            node[last] = setting.value
            for below in [source for source in sources if source.startswith(f"{name}.")]:
                del sources[below]  # the whole mapping was replaced
            sources[name] = setting.where
    return tree, sources


def _drop_unread(tree: dict[str, Any], sources: Mapping[str, str], keys: Mapping[str, Key], report: Report) -> None:
    """Report the keys that the chosen variant of their section does not have, and take them away."""
    for name, where in sources.items():
        key = key_at(name, keys)
        switch = key and key_at(key.switch, keys)
        if key is None or switch is None:
            continue
        *parents, last = name.split(".")
        node = tree
        for parent in parents:
            node = node[parent]
        above = tree
        for parent in switch.section.split("."):
            above = above[parent]
        chosen = above.get(switch.name.rpartition(".")[2], switch.default)
        if chosen in key.readers or chosen not in typing.get_args(switch.annotation):
            continue
        if frozen(node.pop(last)) not in (None, key.default) or name != key.name:
            report(name, no_effect({key.switch: key.readers}, {key.switch: chosen}.__getitem__), where)


def _explain(
    error: ValidationError, tree: Mapping[str, Any], keys: Mapping[str, Key], sources: Mapping[str, str]
) -> list[Problem]:
    problems: list[Problem] = []
    bad: dict[str, Key] = {}  # in order, each once: a union or a list gives an error for each of its parts
    reasons: dict[str, str] = {}  # of the sections' own validators
    for detail in error.errors(include_url=False):
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, ConflictError):
            problems += (Problem(name, text, sources.get(name, "")) for name, text in cause.conflicts)
            continue
        location = _location(detail, keys)
        names = [".".join(location[: n + 1]) for n in range(len(location))]
        exact = {name: key for name in names if (key := key_at(name, keys)) is not None and key.name == name}
        for name, key in exact.items():
            if key.entries and len(names) > (place := names.index(name) + 1) and len(exact) == 1:  # one entry is wrong
                exact = {names[place]: replace(key, name=names[place], allowed="a mapping of keys to values")}
        bad.update({name: key for name, key in exact.items() if not key.entries} or exact)
        if isinstance(cause, ValueError):
            reasons.update(dict.fromkeys(exact, str(cause)))
    for name, key in bad.items():
        value: Any = tree
        for part in name.split("."):
            if isinstance(value, Mapping) and part in value:
                value = value[part]
            else:  # it was not written: an entry of a mapping of sections is named by its key
                value = name.split(".")[-2]
                break
        reason = reasons.get(name, f"it must be {key.allowed}")
        problems.append(Problem(name, f"{excerpt(dump(value))} is not allowed; {reason}", _origin(key, sources)))
    return problems


def _location(detail: Mapping[str, Any], keys: Mapping[str, Key]) -> list[str]:
    """Return the parts of a wrong value's key, without the names of variants that pydantic puts between them."""
    parts = [str(part) for part in detail["loc"]]
    if detail["type"].startswith("union_tag"):
        return [*parts, detail["ctx"]["discriminator"].strip("'")]
    switches = {key.switch for key in keys.values() if key.switch}
    for key in keys.values():
        if key.entries and len(parts) > 1 and parts[0] == key.name:
            switches |= {f"{key.name}.{parts[1]}.{inner.switch}" for inner in key.entries.values() if inner.switch}
    for switch in switches:
        *above, last = switch.split(".")
        if parts[: len(above)] == above and parts[len(above) : len(above) + 1] not in ([], [last]):
            del parts[len(above)]
    return parts


def _exit(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(2)
