"""A setting is declared once: in its section, which parts take whole. A parameter of the same name would be a copy."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import trainers
from trainers.config import PPOConfig, SFTConfig
from trainers.config.commands import EvaluateConfig, GenerateConfig
from trainers.config.describe import all_keys
from trainers.section import Section

#: What runs under an engine's own Python, reads arguments into sections, or needs a library that is not here.
_ELSEWHERE = ("trainers.engines.vllm.server", "trainers.engines.sglang.launcher", "trainers.integrations.verl")
#: Names of fields that also name other things: of any function, model, process or record.
_COMMON = {
    *("args", "kwargs", "name", "path", "kind", "model", "seed", "device", "dtype", "weights", "weight", "tools"),
    *("where", "address", "memory", "steps", "rows", "label", "id", "threads", "credit", "high", "low", "template"),
    *("workers", "backend", "tokenizer", "logger", "timeout_s", "concurrency", "replicas", "heads", "kv_heads"),
    *("anchor", "truncated"),
}
#: Classes with parameters of their own for what sections also say, each for a reason.
_ALLOWED = {
    "trainers.builders.environments.Component": "a component as it is played: of `env` and `data`, or of a mixture",
    "trainers.engines.base.Sampling": "a request: of rollouts, validation and futures, which have sections each",
    "trainers.models.memory.ModelShape": "the shape of any model, read from its files",
    "trainers.integrations.trl.rollout.TextEnvRollout": "an interface of TRL's users, who have no section",
    "trainers.serving.local_policy.LocalPolicy": "the policy of `textenvs evaluate`, whose options are its own",
}


def parts() -> Iterator[tuple[str, set[str]]]:
    """Every public class of trainers that is no section, with the parameters of its constructor."""
    for found in pkgutil.walk_packages(trainers.__path__, "trainers."):
        if found.name.startswith(_ELSEWHERE) or found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        for name, kind in vars(module).items():
            own = inspect.isclass(kind) and kind.__module__ == module.__name__ and not name.startswith("_")
            if own and not issubclass(kind, BaseException | Section):
                yield f"{module.__name__}.{name}", set(_parameters(kind))


def _parameters(kind: type[Any]) -> list[str]:
    try:
        return list(inspect.signature(kind.__init__).parameters)
    except (ValueError, TypeError):  # a class written in C
        return []


def settings() -> dict[str, set[str]]:
    """The keys of every section of all commands, without the names that mean other things too."""
    sections: dict[str, set[str]] = {}
    for schema in (PPOConfig, SFTConfig, GenerateConfig, EvaluateConfig):
        for key in all_keys(schema).values():
            sections.setdefault(key.section, set()).add(key.name.rpartition(".")[2])
    return {section: names - _COMMON for section, names in sections.items()}


def test_no_part_repeats_a_section() -> None:
    """One parameter of a field's name may be a number derived from it; two of one section are a copy."""
    sections = settings()
    copies = {
        part: sorted(same)
        for part, parameters in parts()
        if len(same := max((parameters & names for names in sections.values()), key=len)) > 1
    }
    assert {part: same for part, same in copies.items() if part not in _ALLOWED} == {}
    assert set(_ALLOWED) <= set(copies), "a part that copies no more needs no exception"
