"""Rehearsal of a run: its plan, and its first steps tried without weights."""

from __future__ import annotations

import asyncio

from ..chat_template import RendererError
from ..cluster.memory import Machine
from ..cluster.plan import describe
from ..config import PPOConfig
from ..models.policy import PolicyError, end_token_ids_of, positions
from ..rollout.group_scheduler import CollectionError
from ..rollout.renderer import Renderer
from .engines import check_engine, plan_of
from .environments import check_environments, described, other_validation, try_openings
from .policy import tokenizer_of, with_available_scripts


def placed(config: PPOConfig, machine: str | None) -> str:
    """Describe where everything would be placed: here, or on the machine of ``--plan-for``."""
    return describe(plan_of(config, Machine.described(machine) if machine is not None else None))


def rehearse(config: PPOConfig, machine: str | None = None) -> str:
    """Try the first, cheap steps of a run, without weights; return lines on the results, or raise ``ValueError``.

    The packages installed here are not checked if the run is for another ``machine``.
    """
    check_environments(config)
    if machine is None:
        check_engine(config)
    config, notes = with_available_scripts(config)
    notes += other_validation(config)
    try:
        ends = end_token_ids_of(config.model)
        template, observed = config.data.chat_template_kwargs, config.actor.observed_roles
        renderer = Renderer(
            tokenizer_of(config), template_kwargs=template, stop_token_ids=ends, observed_roles=observed
        )
        openings = asyncio.run(try_openings(config, renderer, positions(config.model)))
    except (PolicyError, RendererError, CollectionError) as error:
        raise ValueError(str(error)) from error
    return "\n".join([*described(config), *openings, *(f"note: {note}" for note in notes)])
