"""The policy that a run starts from, what it first imitates, and the CPU threads it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from ..rollout.renderer import Renderer
from . import SetupError, setup_errors
from .environments import Component, played, shares

# A tiny model's tokenizer learns its merges from so many conversations.
_TOKENIZER_TEXTS = 1000
_OPENINGS = 200  # where an environment has no scripted expert
# Below this many parameters a matrix product is over before a second thread has woken up.
_ONE_THREAD_BELOW = 5_000_000


def demonstrations_of(
    components: Sequence[Component], section: SupervisedSection, seed: int
) -> Iterator[tuple[Component, demonstrations.Demonstration]]:
    """The conversations to imitate, with whose they are: of files, or played by each one's expert, by weight."""
    if section.files is not None:
        if any(each.tools() != components[0].tools() for each in components[1:]):
            raise SetupError(
                "the components of env.mixture describe different tools to the model, and conversations of files do "
                "not say which of them they had: let the scripted experts play (no files), or train apart"
            )
        yield from ((components[0], each) for each in demonstrations.read(section.files))
        return
    for component, count in zip(components, shares(components, demonstrations_needed(section)), strict=True):
        left_out = careless_left_out(section, component) if section.mistake_rate else {}
        its = section.model_copy(update=left_out)
        with ExitStack() as stack:
            env = stack.enter_context(closing(component.make()))
            try:
                for each in demonstrations.play(
                    env,
                    count,
                    seed=seed,
                    tasks=component.train_size,
                    mistake_rate=its.mistake_rate,
                    mistake_weight=its.mistake_weight,
                    step_timeout_s=its.step_timeout_s,
                ):
                    yield component, each
            except demonstrations.StuckError:
                stack.pop_all()  # closing it might not return either
                raise
            except demonstrations.DemonstrationError as error:
                raise type(error)(f"{component.key}: {error}" if component.name else str(error)) from error


def demonstrations_needed(section: SupervisedSection) -> int:
    """Return the number of conversations that experts play: no more than the steps imitate, each once."""
    return min(section.demonstrations, section.steps * section.batch_size)


def experts_of(config: PPOConfig) -> list[Component]:
    """The components whose expert a warm start imitates: unless it was asked for, those that have one."""
    components = played(config)
    if config.warm_start.enable or config.warm_start.files is not None:
        return components
    return [each for each in components if _scripts(each)[0]]


def careless_of(config: PPOConfig) -> list[Component]:
    """Of those, the components whose careless replies it imitates: unless these are asked for, those that have any."""
    found = experts_of(config)
    if changed(config.warm_start, "careless_steps"):
        return found
    return [each for each in found if _scripts(each) == (True, True)] or found


def with_scripts_there_are(config: PPOConfig) -> tuple[PPOConfig, list[str]]:
    """The configuration with a warm start that can be demonstrated, and lines on what that left out, if unasked for."""
    section, tiny = config.warm_start, config.model.path == "tiny"
    if section.files is not None or section.enable is False or (section.enable is None and not tiny):
        return config, []
    components, experts = played(config), experts_of(config)
    more: dict[str, Any] = {}
    if not experts:
        more = {"enable": False}
        note = (
            f"no warm start: {' and '.join(each.id for each in components)} has no scripted expert "
            "(TextEnv.demonstration), so the model from scratch begins with random tokens; warm_start.files has "
            "conversations to imitate, model.path a model that can talk"
        )
        return config.model_copy(update={"warm_start": section.model_copy(update=more)}), [note]
    notes = [
        f"the warm start does not show {each.key}: {each.id} has no scripted expert (TextEnv.demonstration)"
        for each in components
        if each not in experts
    ]
    without = [(each, left) for each in experts if (left := careless_left_out(section, each))]
    for each, _ in without:
        what = each.said("the warm start has no mistakes")
        notes.append(f"{what}: {each.id} has no scripted ones (TextEnv.careless_reply)")
    if len(without) == len(experts):
        more = without[0][1]
    return config.model_copy(update={"warm_start": section.model_copy(update=more)}) if more else config, notes


def careless_left_out(section: SupervisedSection, component: Component) -> dict[str, Any]:
    """What changes in a section that plays careless replies by default, where there is a scripted expert alone."""
    if section.files is not None:
        return {}
    none = {"mistake_rate": 0.0, "careless_steps": 0}
    left = {name: no for name, no in none.items() if getattr(section, name, no) and not changed(section, name)}
    return left if left and _scripts(component) == (True, False) else {}


def _scripts(component: Component) -> tuple[bool, bool]:
    """Whether an environment has a scripted expert, and scripted careless replies."""
    with closing(component.make()) as env:
        return has_script(env, "expert"), has_script(env, "careless")


def tokenizer_texts(components: Sequence[Component], section: SupervisedSection, seed: int) -> Iterator[str]:
    """What a tiny model's tokenizer is made for: the conversations it will see first, or without any, openings."""
    unasked = isinstance(section, WarmStartSection) and not section.enable and section.files is None
    for each, count in zip(components, shares(components, _TOKENIZER_TEXTS), strict=True):
        with closing(each.make()) as env:
            if unasked and not has_script(env, "expert"):
                limits = (count, _OPENINGS, env.tasks.size, each.train_size)
                indices = range(min(limit for limit in limits if limit is not None))
                talks: Iterator[Messages] = (env.reset(seed=seed, options={"task_index": i})[0] for i in indices)
            else:
                talks = (talk.messages for _, talk in islice(demonstrations_of([each], section, seed), count))
            for messages in talks:
                for message in messages:
                    yield f"{message['role']}\n{text_of(message)}"


def tokenizer_of(config: PPOConfig) -> Any:
    """The tokenizer of the policy that a run starts from, without any weights."""
    section, components, seed = config.warm_start, played(config), config.trainer.seed
    with setup_errors("", PolicyError, demonstrations.DemonstrationError):
        return load_tokenizer(config.model, lambda: tokenizer_texts(components, section, seed))


def renderer_of(policy: Policy, template_kwargs: Mapping[str, Any] | None) -> Renderer:
    """The renderer of a policy's conversations; replies end with what the model or its template ends them with."""
    return Renderer(policy.tokenizer, template_kwargs=template_kwargs, stop_token_ids=policy.end_token_ids)


def policy_of(
    model: ModelSection,
    components: Sequence[Component],
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
            model, lambda: tokenizer_texts(components, section, seed), max_context=max_context, seed=seed
        )


def threads_for(policy: Policy, wanted: int | None) -> int | None:
    """CPU threads for this model: as ``wanted``, else one for a small one; ``None`` leaves torch's own choice."""
    if wanted is not None:
        return wanted
    small = sum(weight.numel() for weight in policy.skeleton.parameters()) < _ONE_THREAD_BELOW
    return 1 if small else None


def set_threads(policy: Policy, wanted: int | None) -> None:
    """Let torch use :func:`threads_for` this model, in the whole process."""
    if (threads := threads_for(policy, wanted)) is not None:
        torch.set_num_threads(threads)
