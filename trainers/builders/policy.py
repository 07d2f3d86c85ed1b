"""The initial policy of a run, its demonstrations, and its CPU threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any

import torch

from textenvs.evaluate.baselines import has_script
from textenvs.messages import Messages, text_of

from ..algorithms.losses import PolicyLoss
from ..checkpoints import Checkpoint
from ..config.model import ModelSection, SupervisedSection, WarmStartSection
from ..config.schema import PPOConfig
from ..models.policy import Policy, PolicyError, load_tokenizer
from ..models.policy import load as load_policy
from ..rollout import demonstrations
from ..rollout.renderer import Renderer
from ..section import changed
from . import SetupError, setup_errors
from .environments import Component, played, shares

# Number of conversations from which a tiny model's tokenizer learns its merges.
_TOKENIZER_TEXTS = 1000
_OPENINGS = 200  # if an environment has no scripted expert
# Below this many parameters a matrix product ends before a second thread wakes up.
_ONE_THREAD_BELOW = 5_000_000


def demonstrations_of(
    components: Sequence[Component], section: SupervisedSection, seed: int
) -> Iterator[tuple[Component, demonstrations.Demonstration]]:
    """Yield the conversations to imitate, with their component: of files, or played by its expert, by weight."""
    if section.files is not None:
        if any(other.tools() != components[0].tools() for other in components[1:]):
            raise SetupError(
                "the components of env.mixture describe different tools to the model, and conversations of files do "
                "not say which of them they had: let the scripted experts play (no files), or train apart"
            )
        yield from ((components[0], demonstration) for demonstration in demonstrations.read(section.files))
        return
    for component, count in zip(components, shares(components, demonstrations_needed(section)), strict=True):
        left_out = careless_left_out(section, component) if section.mistake_rate else {}
        its = section.model_copy(update=left_out)
        with ExitStack() as stack:
            env = stack.enter_context(closing(component.make()))
            try:
                for demonstration in demonstrations.play(
                    env,
                    count,
                    seed=seed,
                    tasks=component.train_size,
                    mistake_rate=its.mistake_rate,
                    mistake_weight=its.mistake_weight,
                    step_timeout_s=its.step_timeout_s,
                ):
                    yield component, demonstration
            except demonstrations.StuckError:
                stack.pop_all()  # closing it might not return either
                raise
            except demonstrations.DemonstrationError as error:
                raise type(error)(f"{component.key}: {error}" if component.name else str(error)) from error


def demonstrations_needed(section: SupervisedSection) -> int:
    """Return the number of conversations that experts play: as many as the steps imitate, each once."""
    return min(section.demonstrations, section.steps * section.batch_size)


def experts_of(config: PPOConfig) -> list[Component]:
    """Return the components whose expert a warm start imitates: if it is not requested, those that have one."""
    components = played(config)
    if config.warm_start.enable or config.warm_start.files is not None:
        return components
    return [component for component in components if _scripts(component)[0]]


def careless_of(config: PPOConfig) -> list[Component]:
    """Return the experts whose careless replies are imitated: if none are requested, those that have any."""
    experts = experts_of(config)
    if changed(config.warm_start, "careless_steps"):
        return experts
    return [component for component in experts if _scripts(component) == (True, True)] or experts


def with_available_scripts(config: PPOConfig) -> tuple[PPOConfig, list[str]]:
    """Return the configuration with a warm start that can be demonstrated, and notes on default parts left out."""
    section, tiny = config.warm_start, config.model.path == "tiny"
    if section.files is not None or section.enable is False or (section.enable is None and not tiny):
        return config, []
    components, experts = played(config), experts_of(config)
    changes: dict[str, Any] = {}
    if not experts:
        changes = {"enable": False}
        note = (
            f"no warm start: {' and '.join(component.id for component in components)} has no scripted expert "
            "(TextEnv.demonstration), so the model from scratch begins with random tokens; warm_start.files has "
            "conversations to imitate, model.path a model that can talk"
        )
        return config.model_copy(update={"warm_start": section.model_copy(update=changes)}), [note]
    notes = [
        f"the warm start does not show {component.key}: {component.id} has no scripted expert (TextEnv.demonstration)"
        for component in components
        if component not in experts
    ]
    without = [(component, disabled) for component in experts if (disabled := careless_left_out(section, component))]
    for component, _ in without:
        what = component.qualified("the warm start has no mistakes")
        notes.append(f"{what}: {component.id} has no scripted ones (TextEnv.careless_reply)")
    if len(without) == len(experts):
        changes = without[0][1]
    return config.model_copy(update={"warm_start": section.model_copy(update=changes)}) if changes else config, notes


def careless_left_out(section: SupervisedSection, component: Component) -> dict[str, Any]:
    """Return the changes of a section that by default plays careless replies, if there is only a scripted expert."""
    if section.files is not None:
        return {}
    none = {"mistake_rate": 0.0, "careless_steps": 0}
    disabled = {name: no for name, no in none.items() if getattr(section, name, no) and not changed(section, name)}
    return disabled if disabled and _scripts(component) == (True, False) else {}


def _scripts(component: Component) -> tuple[bool, bool]:
    """Return whether an environment has a scripted expert, and scripted careless replies."""
    with closing(component.make()) as env:
        return has_script(env, "expert"), has_script(env, "careless")


def tokenizer_texts(components: Sequence[Component], section: SupervisedSection, seed: int) -> Iterator[str]:
    """Yield the texts of a tiny model's tokenizer: the conversations it will see first, or without any, openings."""
    unasked = isinstance(section, WarmStartSection) and not section.enable and section.files is None
    for component, count in zip(components, shares(components, _TOKENIZER_TEXTS), strict=True):
        with closing(component.make()) as env:
            if unasked and not has_script(env, "expert"):
                limits = (count, _OPENINGS, env.tasks.size, component.train_size)
                indices = range(min(limit for limit in limits if limit is not None))
                talks: Iterator[Messages] = (env.reset(seed=seed, options={"task_index": i})[0] for i in indices)
            else:
                talks = (talk.messages for _, talk in islice(demonstrations_of([component], section, seed), count))
            for messages in talks:
                for message in messages:
                    yield f"{message['role']}\n{text_of(message)}"


def tokenizer_of(config: PPOConfig) -> Any:
    """Return the tokenizer of the policy that a run starts from, without any weights."""
    section, components, seed = config.warm_start, played(config), config.trainer.seed
    with setup_errors("", PolicyError, demonstrations.DemonstrationError):
        return load_tokenizer(config.model, lambda: tokenizer_texts(components, section, seed))


def renderer_of(policy: Policy, template_kwargs: Mapping[str, Any] | None, actor: PolicyLoss | None = None) -> Renderer:
    """Return the renderer of a policy's conversations; replies end with the model's or its template's end tokens.

    It finds the observation tokens that the loss ``actor`` asks for.
    """
    return Renderer(
        policy.tokenizer,
        template_kwargs=template_kwargs,
        stop_token_ids=policy.end_token_ids,
        observed_roles=() if actor is None else actor.observed_roles,
    )


def loading_phase(model: ModelSection, checkpoint: Checkpoint | None = None) -> str:
    """Return the name of what :func:`policy_of` does, most of its time."""
    new = model.path == "tiny" and checkpoint is None
    return "training the tokenizer on conversations" if new else "loading the model"


def policy_of(
    model: ModelSection,
    components: Sequence[Component],
    section: SupervisedSection,
    *,
    max_context: int,
    seed: int,
    checkpoint: Checkpoint | None = None,
) -> Policy:
    """Return the policy that a run starts from, or that of a checkpoint."""
    if checkpoint is not None:
        model = ModelSection(path=str(checkpoint.path / "model"), dtype=model.dtype, device=model.device)
    with setup_errors("", PolicyError):
        return load_policy(
            model, lambda: tokenizer_texts(components, section, seed), max_context=max_context, seed=seed
        )


def threads_for(policy: Policy, configured: int | None) -> int | None:
    """Return the CPU threads for this model: as ``configured``, else 1 for a small one; ``None`` is torch's choice."""
    if configured is not None:
        return configured
    small = sum(weight.numel() for weight in policy.skeleton.parameters()) < _ONE_THREAD_BELOW
    return 1 if small else None


def set_threads(policy: Policy, configured: int | None) -> None:
    """Let torch use :func:`threads_for` this model, in the whole process."""
    if (threads := threads_for(policy, configured)) is not None:
        torch.set_num_threads(threads)
