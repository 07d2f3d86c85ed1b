"""The warm start that an environment's scripts allow: expert and careless replies are optional hooks of an author."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from textenvs.evaluate.baselines import has_script

from ..config.model import SupervisedSection, WarmStartSection
from ..config.schema import PPOConfig
from ..config.section import changed
from .environments import make_env, training_kwargs


def with_scripts_there_are(config: PPOConfig) -> tuple[PPOConfig, list[str]]:
    """The configuration with a warm start that the environment can demonstrate, and lines on what that left out.

    Only what nobody asked for is left out: ``warm_start.enable=true`` without an expert stays, and is an error later.
    """
    section, tiny = config.warm_start, config.model.path == "tiny"
    if section.files is not None or section.enable is False or (section.enable is None and not tiny):
        return config, []
    kwargs = training_kwargs(config)
    more: dict[str, Any] = {}
    note = f"the warm start has no mistakes: {config.env.id} has no scripted ones (TextEnv.careless_reply)"
    if _scripts(config.env.id, kwargs)[0]:
        more = careless_left_out(section, config.env.id, kwargs)
    elif section.enable is None:
        more = {"enable": False}
        note = (
            f"no warm start: {config.env.id} has no scripted expert (TextEnv.demonstration), so the model from scratch "
            "begins with random tokens; warm_start.files has conversations to imitate, model.path a model that can talk"
        )
    if not more:
        return config, []
    return config.model_copy(update={"warm_start": section.model_copy(update=more)}), [note]


def careless_left_out(section: SupervisedSection, env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What changes in a section that plays careless replies by default, where there is a scripted expert alone."""
    if section.files is not None or _scripts(env_id, kwargs) != (True, False):
        return {}
    more: dict[str, Any] = {}
    if section.mistake_rate and not changed(section, "mistake_rate"):
        more["mistake_rate"] = 0.0
    if isinstance(section, WarmStartSection) and section.careless_steps and not changed(section, "careless_steps"):
        more["careless_steps"] = 0
    return more


def _scripts(env_id: str, kwargs: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether an environment has a scripted expert, and scripted careless replies."""
    with closing(make_env(env_id, kwargs)) as env:
        return has_script(env, "expert"), has_script(env, "careless")
