"""The environments to train and to validate in, where their episodes step, and how long their openings are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

import textenvs
from textenvs.chat.errors import ChatFailure
from textenvs.chat.local import folders_in, with_addresses
from textenvs.chat.spec import ChatSpec
from textenvs.data import TaskError
from textenvs.env import TextEnv
from textenvs.evaluate.baselines import has_script, play_policy, split_tasks
from textenvs.evaluate.plan import jobs
from textenvs.evaluate.policies import AttackPolicy, ScriptedPolicy
from textenvs.evaluate.runner import Stopped
from textenvs.messages import user
from textenvs.registry import constructor, parameters
from textenvs.two_sides import TwoSides
from textenvs.users.llm import LLMUser

from ..algorithms.advantages import NEEDS_FORKS
from ..config.rollout import EnvSection, PlayedEnvSection, TrainDataSection
from ..config.schema import PPOConfig
from ..rollout.curriculum import measure_openings
from ..rollout.environments import Backend, EnvSpec, tools_of
from ..rollout.renderer import Renderer, Tools
from . import SetupError, setup_errors


@dataclass(frozen=True)
class Component:
    """An environment to train and to validate in: the only one, or one of a mixture."""

    name: str  #: in ``env.mixture``; empty for the only one
    id: str  #: of the environment
    kwargs: Mapping[str, Any]  #: its arguments
    val_kwargs: Mapping[str, Any] = field(default_factory=dict)  #: laid over these for validation
    files: Sequence[str] | None = None  #: tasks to train on, in place of the environment's own
    val_files: Sequence[str] | None = None  #: likewise to validate on
    train_size: int | None = None  #: train on the first so many tasks; ``None`` is all of them
    weight: float = 1.0  #: relative to the others'
    success_reward: float | None = None  #: see :class:`~trainers.rollout.curriculum.Component`

    @property
    def key(self) -> str:
        return f"env.mixture.{self.name}" if self.name else "env"

    def said(self, what: str) -> str:
        """``what``, with whose it is where there are several."""
        return f"{what} ({self.key})" if self.name else what

    @property
    def training(self) -> dict[str, Any]:
        return _with_files(self.kwargs, self.files)

    @property
    def validation(self) -> dict[str, Any]:
        """Its arguments in validation: an option ``split`` is ``test``, unless ``val_kwargs`` names one, or tasks."""
        more = dict(self.val_kwargs)
        if not more.keys() & {"split", "tasks"}:
            with self._said_in_words({}):
                names, _ = parameters(constructor(self.id))
            more |= {"split": "test"} if "split" in names else {}
        return _with_files({**self.kwargs, **more}, self.val_files)

    def make(self, kwargs: Mapping[str, Any] | None = None) -> TextEnv[Any]:
        """One environment, to train in or with these arguments; SetupError, which names the section."""
        kwargs = self.training if kwargs is None else kwargs
        with self._said_in_words(kwargs):
            return textenvs.make(self.id, **kwargs)

    @contextmanager
    def _said_in_words(self, kwargs: Mapping[str, Any]) -> Iterator[None]:
        try:
            yield
        except TaskError as error:
            raise SetupError(f"{self.key}: {error}" if self.name else str(error)) from error
        except (gymnasium.error.Error, TypeError, ValueError, ImportError, OSError) as error:
            see = f"{self.key}.kwargs, {self.key}.val_kwargs" + ("" if self.name else " and data.*")
            raise SetupError(f"{self.key}.id={self.id} with {dict(kwargs)}: {error} (see {see})") from error

    def tools(self, kwargs: Mapping[str, Any] | None = None) -> Tools:
        with closing(self.make(kwargs)) as env, setup_errors(f"{self.key}.id={self.id}: ", ValueError):
            return tools_of(env)


def _with_files(kwargs: Mapping[str, Any], files: Sequence[str] | None) -> dict[str, Any]:
    if files is None:
        return dict(kwargs)
    others = {name: value for name, value in kwargs.items() if name != "level"}
    return {**others, "tasks": files[0] if len(files) == 1 else list(files)}


def components_of(env: EnvSection | PlayedEnvSection, data: TrainDataSection) -> list[Component]:
    size = getattr(data, "train_size", None)
    if not env.mixture:
        val_kwargs, val_files = getattr(env, "val_kwargs", {}), getattr(data, "val_files", None)
        return [Component("", env.id, env.kwargs, val_kwargs, data.train_files, val_files, size)]
    return [Component(name, **each.model_dump(), train_size=size) for name, each in env.mixture.items()]


def played(config: PPOConfig) -> list[Component]:
    return components_of(config.env, config.data)


def shares(components: Sequence[Component], count: int) -> list[int]:
    """``count``, divided by weight; what is left by rounding goes to the largest remainders."""
    total = sum(each.weight for each in components)
    exact = [count * each.weight / total for each in components]
    parts = [int(each) for each in exact]
    for place in sorted(range(len(parts)), key=lambda place: parts[place] - exact[place])[: count - sum(parts)]:
        parts[place] += 1
    return parts


def described(config: PPOConfig) -> list[str]:
    """A line on each component of a mixture, for people; none where there is one environment."""
    found = played(config) if config.env.mixture else []
    total = sum(each.weight for each in found)
    return [
        f"{each.key}: {each.id} {dict(each.training)}, {each.weight / total:.0%} of the groups"
        + (" at first" if config.env.curriculum.kind == "signal" else "")
        for each in found
    ]


def recorded_environments(config: PPOConfig) -> dict[str, dict[str, Any]]:
    """By kind of episodes, what makes their environment: ``id`` and ``options``; of a mixture, those of each component.

    For who continues or plays an episode again (:func:`textenvs.viewer.branches.environment_of`); empty where the user
    is trained, whose words nothing else has.
    """
    if config.env.train_side != "policy":
        return {}
    kinds: dict[str, dict[str, Any]] = {"train": {}, "validation": {}}
    for each in played(config):
        for kind, options in (("train", each.training), ("validation", each.validation)):
            made = {"id": each.id, "options": options}
            kinds[kind] |= {each.name: made} if config.env.mixture else made
    return kinds


def other_validation(config: PPOConfig) -> list[str]:
    """Lines to say where the configuration does not name the tasks to validate on, and which those are."""
    return [line for each in played(config) if (line := _other_validation(config, each)) is not None]


def _other_validation(config: PPOConfig, component: Component) -> str | None:
    kwargs, data = component.validation, config.data
    if _validates_on_training_tasks(component):
        tasks, what = validation_tasks(config, component), component.said("validation")
        if tasks.start:
            return f"{what} is on tasks {tasks.start} to {tasks[-1]}, which data.train_size leaves out of training"
        why = f"both have split={kwargs['split']}" if "split" in kwargs else f"{component.id} has no option `split`"
        return (
            f"{what} is on tasks 0 to {tasks[-1]}, which are trained on, too: {why}. "
            f"data.train_size=N holds the tasks from N on out; {component.key}.val_kwargs gives validation other "
            "arguments"
        )
    if data.train_files is None or data.val_files is not None or "tasks" in component.val_kwargs:
        return None
    with closing(component.make(kwargs)) as env:
        return f"validation is not on rows of data.train_files, but on {env.tasks.name}; data.val_files names others"


def spec_of(config: PPOConfig, component: Component, kwargs: Mapping[str, Any]) -> EnvSpec:
    """How environments of a component are made, with ``kwargs``, wherever they step."""
    return EnvSpec(component.id, _addressed(f"{component.key}.kwargs", kwargs, config.env.backend))


def backend_of(
    config: PPOConfig, component: Component, *, validation: bool, here: bool = False, beside: Backend | None = None
) -> Backend:
    """Where episodes step, ``here`` or where Ray's actors will; ``env.workers`` limits it and those ``beside`` it."""
    kwargs = component.validation if validation else component.training
    kind, timeout = config.env.backend, config.rollout.step_timeout_s
    later = here and kind == "ray"
    spec = spec_of(config, component, kwargs)
    return Backend(
        spec if config.env.train_side == "policy" else _two_sided(config, spec),
        "process" if later else kind,
        tools=None if config.env.train_side == "user" else component.tools(kwargs),
        workers=None if later else config.env.workers,
        reset_timeout=timeout,
        step_timeout=timeout,
        beside=beside,
    )


def _two_sided(config: PPOConfig, spec: EnvSpec) -> EnvSpec:
    """The environment whose user speaks by ``step``, too."""
    env, fixed = config.env, None
    if env.train_side == "user":
        given = env.assistant
        fixed = _addressed("env.assistant", {"user": given}, env.backend)["user"] if given else "expert"
    side = {"user": env.user, "fixed": fixed, "reward": env.user_reward, "refused_cost": env.refused_cost}
    return EnvSpec(TwoSides, {"id": spec.target, "options": spec.kwargs, **side})


def _check_sides(config: PPOConfig, env: TextEnv[Any]) -> None:
    """Raise ``SetupError`` where the environment has no user to train, or no expert to be its assistant."""
    side, id = config.env.train_side, config.env.id
    if "user" not in parameters(constructor(id))[0]:
        raise SetupError(
            f"env.train_side={side}: env.id={id} has no option `user`, so no model can play its user; textenv/clarify, "
            "textenv/collab-math, textenv/service-desk and others have one"
        )
    with setup_errors("env.user: ", ValueError):
        LLMUser.of({"model": "trained", **config.env.user})
    if config.env.assistant:
        with setup_errors("env.assistant: ", ValueError):
            ChatSpec.of(config.env.assistant)
    elif side == "user" and not has_script(env, "expert"):
        raise SetupError(
            f"env.train_side=user: {id} has no scripted expert (TextEnv.demonstration) to be the assistant; give a "
            "model: env.assistant.model=FOLDER"
        )


def _addressed(key: str, kwargs: Mapping[str, Any], backend: str) -> Mapping[str, Any]:
    """``kwargs``, with the addresses at which this process serves the users and judges that are folders."""
    if (folders := folders_in(kwargs)) and backend == "ray":
        raise SetupError(
            f"{key}: {', '.join(folders)} is a folder, which environments on other machines cannot "
            "reach: serve the model (vllm serve, for example) and give base_url, or use another env.backend"
        )
    with setup_errors(f"{key}: ", ChatFailure):
        return with_addresses(kwargs)


def served_folders(config: PPOConfig) -> list[str]:
    """The folders of users and judges that this process serves, each once."""
    given: list[Mapping[str, Any]] = [{"user": config.env.assistant}]
    for each in played(config):
        given += [each.kwargs, {**each.kwargs, **each.val_kwargs}]
    options = [one for kwargs in given for one in folders_in(kwargs).values() if not one.get("base_url")]
    return sorted({str(Path(one["model"]).expanduser().resolve()) for one in options})


def check_environments(config: PPOConfig) -> None:
    """Make all environments once, here, so that a mistake is found before anything is trained."""
    for each in played(config):
        for kwargs in (each.training, each.validation):
            with closing(each.make(kwargs)) as env:
                if config.env.train_side != "policy":
                    _check_sides(config, env)
                if env.blocking and config.env.backend == "inline":
                    text = f"{each.id} may block its thread: use env.backend=thread or env.backend=process"
                    raise SetupError(f"{each.key}: {text}" if each.name else text)


def check_tools(config: PPOConfig, renderer: Renderer) -> None:
    """Prove that the chat template shows the tools that it must describe; RendererError says what to do."""
    for each in played(config):
        for kwargs in (each.training, each.validation):
            renderer.forms.check((user("x"),), each.tools(kwargs))


def _size(component: Component, kwargs: Mapping[str, Any]) -> int | None:
    with closing(component.make(kwargs)) as env:
        return env.tasks.size


def task_count(component: Component) -> int | None:
    """How many tasks there are to train on: the first ``data.train_size``; ``None`` where they never end."""
    limits = (_size(component, component.training), component.train_size)
    return min((limit for limit in limits if limit is not None), default=None)


def validation_tasks(config: PPOConfig, component: Component) -> range:
    """``data.val_size`` tasks of a component: its first, or those that ``data.train_size`` leaves out."""
    size, first = _size(component, component.validation), component.train_size or 0
    if first and ((size is not None and first >= size) or not _validates_on_training_tasks(component)):
        first = 0
    last = first + config.data.val_size
    return range(first, last if size is None else min(size, last))


def _validates_on_training_tasks(component: Component) -> bool:
    """Whether validation has the tasks of training; arguments that name no others may still differ in other things."""
    kwargs = component.validation
    if kwargs == component.training:
        return True
    if component.val_files is not None or component.val_kwargs.keys() & {"split", "tasks"}:
        return False
    with closing(component.make()) as one, closing(component.make(kwargs)) as other:
        found = [(each.name, each.size, each[0].key, each[0].prompt) for each in (one.tasks, other.tasks)]
        return found[0] == found[1]


# --- what scripts earn, which a run is compared with

_SCRIPTED = 32  # episodes of each script
_SLOW_S = 0.05  # an episode of the expert that takes longer: users or judges that are models, sandboxes


def references(config: PPOConfig) -> dict[str, float]:
    """What the scripts of the training environment earn; nothing where that cannot be had soon, or for a mixture.

    Returns:
        ``reference/expert``, ``reference/expert_se`` (standard error), ``reference/expert_solved`` (share),
        ``reference/random``, ``reference/null`` and ``reference/null_se`` (the attack that earned most, of those that
        need no rehearsal), ``reference/null_limit`` (what ``textenvs audit`` allows it), and ``reference/episodes`` of
        each.
    """
    if config.env.mixture or config.env.backend != "inline" or config.env.train_side != "policy":
        return {}
    (only,) = played(config)
    with closing(only.make()) as env:
        if not has_script(env, "expert"):
            return {}
        size = min(_SCRIPTED, task_count(only) or _SCRIPTED)
        indices, _ = split_tasks(env, size, 0, config.trainer.seed)
        plan = list(jobs(indices, 1, config.trainer.seed))
        try:
            play_policy(env.fork(), ScriptedPolicy("expert"), plan[:1])  # the first may import or start something
            began = time.perf_counter()
            play_policy(env.fork(), ScriptedPolicy("expert"), plan[1:2])
            if time.perf_counter() - began > _SLOW_S:
                return {}
            expert, random = (play_policy(env.fork(), ScriptedPolicy(name), plan) for name in ("expert", "random"))
            cheap = [play_policy(env.fork(), AttackPolicy(a, []), plan) for a in env.attacks() if not a.rehearse]
        except Stopped:  # the environment fails: its episodes will say so
            return {}
        earned, floor = ([record.total for record in records if not record.failed] for records in (expert, random))
        tried = [[record.total for record in records if not record.failed] for records in cheap]
        if not earned or not floor:
            return {}
        top, bottom = float(np.mean(earned)), float(np.mean(floor))
        found = {
            "expert": top,
            "expert_se": float(np.std(earned) / len(earned) ** 0.5),
            "expert_solved": float(np.mean([record.success for record in expert])),
            "random": bottom,
            "episodes": float(len(expert)),
        }
        if best := max((totals for totals in tried if totals), key=np.mean, default=[]):
            found["null"] = float(np.mean(best))
            found["null_se"] = float(np.std(best) / len(best) ** 0.5)
            found["null_limit"] = top - env.attack_margin * (top - bottom)
        return {f"reference/{name}": value for name, value in found.items()}


# --- openings: one is tried before anything starts, and those that are too long can be left out


class Overlong(NamedTuple):
    """The indices of a component's tasks that are not played."""

    training: frozenset[int] = frozenset()
    validation: frozenset[int] = frozenset()


async def overlong_of(config: PPOConfig, renderer: Renderer, say: Callable[[str], None]) -> dict[str, Overlong]:
    """Which tasks of each component ``data.filter_overlong_prompts`` leaves out; ``say`` is told how many."""
    if not config.data.filter_overlong_prompts:
        return {each.name: Overlong() for each in played(config)}
    return {each.name: await _overlong_of(config, each, renderer, say) for each in played(config)}


async def _overlong_of(
    config: PPOConfig, component: Component, renderer: Renderer, say: Callable[[str], None]
) -> Overlong:
    if (size := task_count(component)) is None:
        raise SetupError(
            f"data.filter_overlong_prompts measures every task before the training, and those of {component.id} never "
            "end: give data.train_size=N to play the first N alone, or data.train_files, or leave it off"
        )
    limit, found = longest_prompt(config), []
    for which, tasks in (("training", range(size)), ("validation", validation_tasks(config, component))):
        lengths, failed = await _measured(config, component, renderer, which, tasks)
        which = component.said(which)
        longer = frozenset(task for task, length in lengths.items() if length > limit)
        if len(longer) == len(tasks):
            raise SetupError(
                f"data.filter_overlong_prompts leaves no {which} task: the openings of all {len(tasks)} have more than "
                f"{limit} tokens, the shortest {min(lengths.values())}: raise engine.max_context, or "
                "data.longest_prompt where that is given"
            )
        found.append(longer)
        say(f"{len(longer)} of {len(tasks)} {which} tasks are left out: their openings have more than {limit} tokens")
        if failed:
            task, why = next(iter(failed.items()))
            say(f"{len(failed)} {which} tasks could not be opened, and stay in; task {task}: {why}")
    return Overlong(*found)


async def _measured(
    config: PPOConfig, component: Component, renderer: Renderer, which: str, tasks: Sequence[int]
) -> tuple[Mapping[int, int], Mapping[int, str]]:
    """The tokens of each task's opening, and why others cannot be played."""
    async with backend_of(config, component, validation=which == "validation", here=True) as backend:
        forks = which == "training" and config.algorithm.adv_estimator in NEEDS_FORKS
        return await measure_openings(backend, renderer, tasks, seed=config.trainer.seed, forks=forks)


def longest_prompt(config: PPOConfig) -> int:
    """The limit: as configured, else what leaves room for one reply of the greatest length."""
    given = config.data.longest_prompt
    return config.engine.max_context - config.rollout.max_response_length if given is None else given


async def try_openings(config: PPOConfig, renderer: Renderer, positions: int | None) -> list[str]:
    """Play the first opening of training and of validation: does it leave room for a reply? Lines on their tokens.

    ``positions`` is the longest context that the model was made for, where that is known.
    """
    context, reply = config.engine.max_context, config.rollout.max_response_length
    if positions is not None and context > positions:
        raise SetupError(
            f"engine.max_context={context} is more than the {positions} positions of model.path={config.model.path}: "
            f"give at most engine.max_context={positions}"
        )
    openings: dict[str, int] = {}
    for each in played(config):
        for which, task in (("training", 0), ("validation", validation_tasks(config, each).start)):
            measured, failed = await _measured(config, each, renderer, which, [task])
            name = f"the opening of {which} task {task} of {each.key}.id={each.id}"
            if failed:
                raise SetupError(f"{name} cannot be played: {failed[task]}")
            openings[name] = measured[task]
    name = max(openings, key=openings.__getitem__)
    needed, micro_batch = openings[name] + reply, config.actor.max_tokens_per_micro_batch
    if needed > context and not config.data.filter_overlong_prompts:
        more = f" and actor.max_tokens_per_micro_batch (now {micro_batch})" if needed > micro_batch else ""
        advice = f"raise engine.max_context{more} to {needed} at least, and further for the turns that follow"
        if positions is not None and needed > positions:
            advice = (
                f"the model has {positions} positions, so this environment needs another model, or other env.kwargs"
            )
        raise SetupError(
            f"{name} has {openings[name]:,} tokens, and with a reply of "
            f"rollout.max_response_length={reply} it does not fit engine.max_context={context}: {advice}"
        )
    return [f"{each} has {tokens} tokens, of engine.max_context={context}" for each, tokens in openings.items()]
