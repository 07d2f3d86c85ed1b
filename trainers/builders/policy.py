"""The policy that a run starts from, what it first imitates, and the CPU threads it is worth.

Expert and careless replies are optional hooks of an author: a warm start does what the environment's scripts allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any

import torch

from textenvs.evaluate.baselines import has_script
from textenvs.messages import Messages, text_of

from .. import demonstrations
from ..checkpoints import Checkpoint
from ..config.model import ModelSection, SupervisedSection, WarmStartSection
from ..config.schema import PPOConfig
from ..config.section import changed
from ..policy import Policy, PolicyError, load_tokenizer
from ..policy import load as load_policy
from .environments import make_env, training_kwargs
from .errors import setup_errors

# A tiny model's tokenizer learns its merges from so many conversations.
_TOKENIZER_TEXTS = 1000
_OPENINGS = 200  # where an environment has no scripted expert
# Below this many parameters a matrix product is over before a second thread has woken up.
_ONE_THREAD_BELOW = 5_000_000


def demonstrations_of(
    env_id: str, kwargs: Mapping[str, Any], section: SupervisedSection, seed: int
) -> Iterator[demonstrations.Demonstration]:
    """The conversations to imitate: of files, or played by the environment's scripted expert."""
    if section.files is not None:
        yield from demonstrations.read(section.files)
        return
    with ExitStack() as stack:
        env = stack.enter_context(closing(make_env(env_id, kwargs)))
        try:
            yield from demonstrations.play(
                env,
                section.demonstrations,
                seed=seed,
                mistake_rate=section.mistake_rate,
                mistake_weight=section.mistake_weight,
                step_timeout_s=section.step_timeout_s,
            )
        except demonstrations.StuckError:
            stack.pop_all()  # closing it might not return either
            raise


def with_scripts_there_are(config: PPOConfig) -> tuple[PPOConfig, list[str]]:
    """The configuration with a warm start that the environment can demonstrate, and lines on what that left out.

    Only what nobody asked for is left out: ``warm_start.enable=true`` without an expert stays, and is an error later.
    """
    section, tiny = config.warm_start, config.model.path == "tiny"
    if section.files is not None or section.enable is False or (section.enable is None and not tiny):
        return config, []
    kwargs = training_kwargs(config)
    more = careless_left_out(section, config.env.id, kwargs)
    note = f"the warm start has no mistakes: {config.env.id} has no scripted ones (TextEnv.careless_reply)"
    if section.enable is None and not _scripts(config.env.id, kwargs)[0]:
        more = {"enable": False}
        note = (
            f"no warm start: {config.env.id} has no scripted expert (TextEnv.demonstration), so the model from scratch "
            "begins with random tokens; warm_start.files has conversations to imitate, model.path a model that can talk"
        )
    return (config.model_copy(update={"warm_start": section.model_copy(update=more)}), [note]) if more else (config, [])


def careless_left_out(section: SupervisedSection, env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What changes in a section that plays careless replies by default, where there is a scripted expert alone."""
    if section.files is not None or _scripts(env_id, kwargs) != (True, False):
        return {}
    none = {"mistake_rate": 0.0, "careless_steps": 0}
    return {name: no for name, no in none.items() if getattr(section, name, no) and not changed(section, name)}


def _scripts(env_id: str, kwargs: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether an environment has a scripted expert, and scripted careless replies."""
    with closing(make_env(env_id, kwargs)) as env:
        return has_script(env, "expert"), has_script(env, "careless")


def tokenizer_texts(env_id: str, kwargs: Mapping[str, Any], section: SupervisedSection, seed: int) -> Iterator[str]:
    """What a tiny model's tokenizer is made for: the conversations it will see first, or without any, openings."""
    unplayed = isinstance(section, WarmStartSection) and section.enable is False and section.files is None
    with closing(make_env(env_id, kwargs)) as env:
        if unplayed and not has_script(env, "expert"):
            indices = range(min(_OPENINGS, env.tasks.size or _OPENINGS))
            talks: Iterator[Messages] = (env.reset(seed=seed, options={"task_index": i})[0] for i in indices)
        else:
            some = islice(demonstrations_of(env_id, kwargs, section, seed), _TOKENIZER_TEXTS)
            talks = (each.messages for each in some)
        for messages in talks:
            for message in messages:
                yield f"{message['role']}\n{text_of(message)}"


def tokenizer_of(config: PPOConfig) -> Any:
    """The tokenizer of the policy that a run starts from, without any weights."""
    section, kwargs, seed = config.warm_start, training_kwargs(config), config.trainer.seed
    with setup_errors("", PolicyError, demonstrations.DemonstrationError):
        return load_tokenizer(config.model, lambda: tokenizer_texts(config.env.id, kwargs, section, seed))


def policy_of(
    model: ModelSection,
    env_id: str,
    kwargs: Mapping[str, Any],
    section: SupervisedSection,
    *,
    max_context: int,
    seed: int,
    checkpoint: Checkpoint | None = None,
) -> Policy:
    """The policy a run starts from, or the one that a checkpoint holds."""
    if checkpoint is not None:
        model = ModelSection(path=str(checkpoint.path / "model"), dtype=model.dtype, device=model.device)
    with setup_errors("", PolicyError):
        return load_policy(
            model, lambda: tokenizer_texts(env_id, kwargs, section, seed), max_context=max_context, seed=seed
        )


def threads_for(policy: Policy, wanted: int | None) -> int | None:
    """CPU threads for this model: what is ``wanted``, else one where it is so small that more would slow it down.

    ``None`` leaves torch's own choice.
    """
    if wanted is not None:
        return wanted
    small = sum(weight.numel() for weight in policy.skeleton.parameters()) < _ONE_THREAD_BELOW
    return 1 if small else None


def set_threads(policy: Policy, wanted: int | None) -> None:
    """Let torch use :func:`threads_for` this model, in the whole process."""
    if (threads := threads_for(policy, wanted)) is not None:
        torch.set_num_threads(threads)
