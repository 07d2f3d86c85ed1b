"""The environments to train and validate in, where their episodes step, and the length of their openings."""

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
from textenvs.event_loop import wait_for
from textenvs.frozen_roles import FrozenRoles, check_frozen
from textenvs.messages import user
from textenvs.privileged import Privilege
from textenvs.registry import constructor, parameters
from textenvs.sandbox import SandboxUnavailable
from textenvs.two_sides import TwoSides
from textenvs.users.llm import LLMUser

from ..chat_template import Tools
from ..config.checks import several_roles_checks
from ..config.rollout import EnvSection, PlayedEnvSection, TrainDataSection
from ..config.schema import PPOConfig
from ..rollout.curriculum import measure_openings
from ..rollout.environments import Backend, EnvSpec, tools_of
from ..rollout.renderer import Renderer
from . import SetupError, setup_errors


@dataclass(frozen=True)
class Component:
    """An environment to train and to validate in: the only one, or one of a mixture."""

    name: str  #: in ``env.mixture``; empty without a mixture
    id: str  #: of the environment
    kwargs: Mapping[str, Any]  #: its arguments
    val_kwargs: Mapping[str, Any] = field(default_factory=dict)  #: merged over ``kwargs`` for validation
    files: Sequence[str] | None = None  #: tasks to train on, in place of the environment's own
    val_files: Sequence[str] | None = None  #: tasks to validate on, in the same way
    train_size: int | None = None  #: number of training tasks, from the first; ``None`` is all
    weight: float = 1.0  #: relative to the other components'

    @property
    def key(self) -> str:
        return f"env.mixture.{self.name}" if self.name else "env"

    def qualified(self, what: str) -> str:
        """Return ``what``, with the component's key if there are several."""
        return f"{what} ({self.key})" if self.name else what

    @property
    def training(self) -> dict[str, Any]:
        return _with_files(self.kwargs, self.files)

    @property
    def validation(self) -> dict[str, Any]:
        """Its arguments in validation: an option ``split`` is ``test``, unless ``val_kwargs`` has one, or tasks."""
        overrides = dict(self.val_kwargs)
        if not overrides.keys() & {"split", "tasks"}:
            with self._setup_errors({}):
                names, _ = parameters(constructor(self.id))
            overrides |= {"split": "test"} if "split" in names else {}
        return _with_files({**self.kwargs, **overrides}, self.val_files)

    def make(self, kwargs: Mapping[str, Any] | None = None) -> TextEnv[Any]:
        """Return an environment, to train in or with these arguments; SetupError names the section."""
        kwargs = self.training if kwargs is None else kwargs
        with self._setup_errors(kwargs):
            return textenvs.make(self.id, **kwargs)

    @contextmanager
    def _setup_errors(self, kwargs: Mapping[str, Any]) -> Iterator[None]:
        try:
            yield
        except TaskError as error:
            raise SetupError(f"{self.key}: {error}" if self.name else str(error)) from error
        except (gymnasium.error.Error, TypeError, ValueError, ImportError, OSError) as error:
            see = f"{self.key}.kwargs, {self.key}.val_kwargs" + ("" if self.name else " and data.*")
            raise SetupError(f"{self.key}.id={self.id} with {dict(kwargs)}: {error} (see {see})") from error
        except SandboxUnavailable as error:
            raise SetupError(f"{self.key}.id={self.id}: {error}") from error

    def tools(self, kwargs: Mapping[str, Any] | None = None) -> Tools:
        with closing(self.make(kwargs)) as env, setup_errors(f"{self.key}.id={self.id}: ", ValueError):
            return tools_of(env)


def _with_files(kwargs: Mapping[str, Any], files: Sequence[str] | None) -> dict[str, Any]:
    if files is None:
        return dict(kwargs)
    rest = {name: value for name, value in kwargs.items() if name != "level"}
    return {**rest, "tasks": files[0] if len(files) == 1 else list(files)}


def components_of(env: EnvSection | PlayedEnvSection, data: TrainDataSection) -> list[Component]:
    size = getattr(data, "train_size", None)
    if not env.mixture:
        val_kwargs, val_files = getattr(env, "val_kwargs", {}), getattr(data, "val_files", None)
        return [Component("", env.id, env.kwargs, val_kwargs, data.train_files, val_files, size)]
    return [
        Component(name, **component.model_dump(exclude={"success_reward"}), train_size=size)
        for name, component in env.mixture.items()
    ]


def played(config: PPOConfig) -> list[Component]:
    return components_of(config.env, config.data)


def shares(components: Sequence[Component], count: int) -> list[int]:
    """Divide ``count`` by weight; the remainder of rounding goes to the largest remainders."""
    total = sum(component.weight for component in components)
    exact = [count * component.weight / total for component in components]
    parts = [int(share) for share in exact]
    for place in sorted(range(len(parts)), key=lambda place: parts[place] - exact[place])[: count - sum(parts)]:
        parts[place] += 1
    return parts


def described(config: PPOConfig) -> list[str]:
    """Return a line on each component of a mixture; none without a mixture."""
    components = played(config) if config.env.mixture else []
    total = sum(component.weight for component in components)
    return [
        f"{component.key}: {component.id} {dict(component.training)}, {component.weight / total:.0%} of the groups"
        + (" at first" if config.env.curriculum.kind == "signal" else "")
        for component in components
    ]


def recorded_environments(config: PPOConfig) -> dict[str, dict[str, Any]]:
    """Return the environment by kind of episodes: ``id`` and ``options``; of a mixture, those of each component.

    :func:`textenvs.viewer.branches.environment_of` continues or replays episodes with it. It is empty if the user is
    trained, whose messages only the model has, or roles are frozen, which another model plays.
    """
    if config.env.train_side != "policy" or config.env.frozen:
        return {}
    kinds: dict[str, dict[str, Any]] = {"train": {}, "validation": {}}
    for component in played(config):
        for kind, options in (("train", component.training), ("validation", component.validation)):
            environment = {"id": component.id, "options": options}
            kinds[kind] |= {component.name: environment} if config.env.mixture else environment
    return kinds


def other_validation(config: PPOConfig) -> list[str]:
    """Return notes on the tasks to validate on, if the configuration does not name them."""
    return [line for component in played(config) if (line := _other_validation(config, component)) is not None]


def _other_validation(config: PPOConfig, component: Component) -> str | None:
    kwargs, data = component.validation, config.data
    if _validates_on_training_tasks(component):
        tasks, what = validation_tasks(config, component), component.qualified("validation")
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
    """Return how environments of a component are made with ``kwargs``, in any place."""
    return EnvSpec(component.id, _addressed(f"{component.key}.kwargs", kwargs, config.env.backend))


def backend_of(
    config: PPOConfig, component: Component, *, validation: bool, local: bool = False, beside: Backend | None = None
) -> Backend:
    """Return the place where episodes step, in this process's machine (``local``) or where Ray's actors will.

    ``env.workers`` limits it and the backends ``beside`` it together.
    """
    kwargs = component.validation if validation else component.training
    kind, timeout = config.env.backend, config.rollout.step_timeout_s
    later = local and kind == "ray"
    spec = spec_of(config, component, kwargs)
    if config.env.train_side != "policy":
        spec = _two_sided(config, spec)
    elif config.env.frozen and _has_roles(component, kwargs):
        spec = _frozen(config, spec)
    return Backend(
        spec,
        "process" if later else kind,
        tools=None if config.env.train_side == "user" else component.tools(kwargs),
        workers=None if later else config.env.workers,
        reset_timeout=timeout,
        step_timeout=timeout,
        beside=beside,
    )


def _two_sided(config: PPOConfig, spec: EnvSpec) -> EnvSpec:
    """Return the environment whose user also replies by ``step``."""
    env, fixed = config.env, None
    if env.train_side == "user":
        assistant = env.assistant
        fixed = _addressed("env.assistant", {"user": assistant}, env.backend)["user"] if assistant else "expert"
    side = {"user": env.user, "fixed": fixed, "reward": env.user_reward, "refused_cost": env.refused_cost}
    return EnvSpec(TwoSides, {"id": spec.target, "options": spec.kwargs, **side})


def _has_roles(component: Component, kwargs: Mapping[str, Any]) -> bool:
    with closing(component.make(kwargs)) as env:
        return len(env.roles) > 1


def _frozen(config: PPOConfig, spec: EnvSpec) -> EnvSpec:
    """Return the environment in which models play the frozen roles."""
    frozen = {
        role: _addressed(f"env.frozen.{role}", {"user": model}, config.env.backend)["user"]
        for role, model in config.env.frozen.items()
    }
    return EnvSpec(FrozenRoles, {"id": spec.target, "options": spec.kwargs, "frozen": frozen})


def _check_frozen(config: PPOConfig, env: TextEnv[Any]) -> None:
    """Raise ``SetupError`` if a frozen role is none of the environment's, or its model's options are wrong."""
    with setup_errors(f"env.frozen: {config.env.id}: ", ValueError):
        check_frozen(env.roles, config.env.frozen)
    for role, model in config.env.frozen.items():
        with setup_errors(f"env.frozen.{role}: ", ValueError):
            ChatSpec.of(model)


def _check_sides(config: PPOConfig, env: TextEnv[Any]) -> None:
    """Raise ``SetupError`` if the environment has no user to train, or no expert as its assistant."""
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
    """Return ``kwargs`` with the addresses at which this process serves the users and judges that are folders."""
    if (folders := folders_in(kwargs)) and backend == "ray":
        raise SetupError(
            f"{key}: {', '.join(folders)} is a folder, which environments on other machines cannot "
            "reach: serve the model (vllm serve, for example) and give base_url, or use another env.backend"
        )
    with setup_errors(f"{key}: ", ChatFailure):
        return with_addresses(kwargs)


def served_folders(config: PPOConfig) -> list[str]:
    """Return the folders of users and judges that this process serves, without duplicates."""
    arguments: list[Mapping[str, Any]] = [
        {"user": model} for model in (config.env.assistant, *config.env.frozen.values())
    ]
    for component in played(config):
        arguments += [component.kwargs, {**component.kwargs, **component.val_kwargs}]
    options = [option for kwargs in arguments for option in folders_in(kwargs).values() if not option.get("base_url")]
    return sorted({str(Path(option["model"]).expanduser().resolve()) for option in options})


def check_environments(config: PPOConfig) -> None:
    """Make all environments once, so that a mistake is found before anything is trained."""
    for component in played(config):
        for which, kwargs in (("training", component.training), ("validation", component.validation)):
            with closing(component.make(kwargs)) as env:
                if config.env.frozen and (which == "training" or len(env.roles) > 1):
                    _check_frozen(config, env)
                if config.env.train_side != "policy":
                    _check_sides(config, env)
                elif len(env.roles) > 1:
                    what = f"the roles {', '.join(env.roles)} of {component.id}"
                    for key, text in several_roles_checks(config, what):
                        raise SetupError(f"{key}: {text}")
                if which == "training" and not env.has_success:
                    _check_without_success(config, component)
                if which == "training" and (kind := config.actor.distill.privilege) is not None:
                    _check_privileged(component, env, kind)
                if env.blocking and config.env.backend == "inline":
                    text = f"{component.id} may block its thread: use env.backend=thread or env.backend=process"
                    raise SetupError(f"{component.key}: {text}" if component.name else text)


def _check_without_success(config: PPOConfig, component: Component) -> None:
    """Raise ``SetupError`` for what tells solved episodes from others, where the environment has no such end."""
    for key, is_set in (
        ("algorithm.adv_estimator=graphgpo", config.algorithm.adv_estimator == "graphgpo"),
        ("relative_length.tokens", config.relative_length.tokens),
        ("relative_length.turns", config.relative_length.turns),
    ):
        if is_set:
            raise SetupError(f"{key}: needs episodes that end as solved, and those of {component.id} never do")


def _check_privileged(component: Component, env: Any, kind: Privilege) -> None:
    """Raise ``SetupError`` if the environment has no privileged context of this kind for a teacher."""
    env.reset(seed=0)
    try:
        wait_for(env.privileged(kind, np.random.default_rng(0)))
    except NotImplementedError as error:
        raise SetupError(f"actor.distill.context={kind}: {component.id}: {error}") from error


def check_tools(config: PPOConfig, renderer: Renderer) -> None:
    """Check that the chat template shows the tools that it must describe; RendererError says what to do."""
    for component in played(config):
        for kwargs in (component.training, component.validation):
            renderer.forms.check((user("x"),), component.tools(kwargs))


def _size(component: Component, kwargs: Mapping[str, Any]) -> int | None:
    with closing(component.make(kwargs)) as env:
        return env.tasks.size


def task_count(component: Component) -> int | None:
    """Return the number of training tasks, at most ``data.train_size``; ``None`` if they are endless."""
    limits = (_size(component, component.training), component.train_size)
    return min((limit for limit in limits if limit is not None), default=None)


def validation_tasks(config: PPOConfig, component: Component) -> range:
    """Return ``data.val_size`` tasks of a component: its first, or those that ``data.train_size`` leaves out."""
    size, first = _size(component, component.validation), component.train_size or 0
    if first and ((size is not None and first >= size) or not _validates_on_training_tasks(component)):
        first = 0
    last = first + config.data.val_size
    return range(first, last if size is None else min(size, last))


def _validates_on_training_tasks(component: Component) -> bool:
    """Return whether validation has the tasks of training; arguments that select none may still differ otherwise."""
    kwargs = component.validation
    if kwargs == component.training:
        return True
    if component.val_files is not None or component.val_kwargs.keys() & {"split", "tasks"}:
        return False
    with closing(component.make()) as one, closing(component.make(kwargs)) as other:
        identities = [(tasks.name, tasks.size, tasks[0].key, tasks[0].prompt) for tasks in (one.tasks, other.tasks)]
        return identities[0] == identities[1]


# --- rewards of scripts, to compare a run with

_SCRIPTED = 32  # episodes of each script
_SLOW_S = 0.05  # longer episodes of the expert: users or judges are models, or there are sandboxes


def references(config: PPOConfig) -> dict[str, float]:
    """Return the scripts' rewards in the training environment; empty if they are slow or fail, or for a mixture.

    Returns:
        ``reference/expert``, ``reference/expert_se`` (standard error), ``reference/expert_solved`` (share, where
        episodes can be solved),
        ``reference/random``, ``reference/null`` and ``reference/null_se`` (the attack that earned most, of those that
        need no rehearsal), ``reference/null_limit`` (what ``textenvs audit`` allows it), and ``reference/episodes`` of
        each.
    """
    if config.env.mixture or config.env.backend != "inline" or config.env.train_side != "policy":
        return {}
    (only,) = played(config)
    with closing(only.make()) as env:
        if not has_script(env, "expert") or len(env.roles) > 1:  # of several, one is no opponent of the others
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
        except Stopped:  # the environment fails: its episodes will report it
            return {}
        earned, floor = ([record.total for record in records if not record.failed] for records in (expert, random))
        tried = [[record.total for record in records if not record.failed] for records in cheap]
        if not earned or not floor:
            return {}
        top, bottom = float(np.mean(earned)), float(np.mean(floor))
        values = {
            "expert": top,
            "expert_se": float(np.std(earned) / len(earned) ** 0.5),
            "random": bottom,
            "episodes": float(len(expert)),
        }
        if outcomes := [record.success for record in expert if record.success is not None]:
            values["expert_solved"] = float(np.mean(outcomes))
        if best := max((totals for totals in tried if totals), key=np.mean, default=[]):
            values["null"] = float(np.mean(best))
            values["null_se"] = float(np.std(best) / len(best) ** 0.5)
            values["null_limit"] = top - env.attack_margin * (top - bottom)
        return {f"reference/{name}": value for name, value in values.items()}


# --- openings: one is tried before anything starts, and too long ones can be dropped


class Overlong(NamedTuple):
    """Indices of a component's tasks that are not played."""

    training: frozenset[int] = frozenset()
    validation: frozenset[int] = frozenset()


async def overlong_of(config: PPOConfig, renderer: Renderer, say: Callable[[str], None]) -> dict[str, Overlong]:
    """Return each component's tasks that ``data.filter_overlong_prompts`` drops, and ``say`` how many they are."""
    if not config.data.filter_overlong_prompts:
        return {component.name: Overlong() for component in played(config)}
    return {component.name: await _overlong_of(config, component, renderer, say) for component in played(config)}


async def _overlong_of(
    config: PPOConfig, component: Component, renderer: Renderer, say: Callable[[str], None]
) -> Overlong:
    if (size := task_count(component)) is None:
        raise SetupError(
            f"data.filter_overlong_prompts measures every task before the training, and those of {component.id} never "
            "end: give data.train_size=N to play the first N alone, or data.train_files, or leave it off"
        )
    limit, dropped = longest_prompt(config), []
    for which, tasks in (("training", range(size)), ("validation", validation_tasks(config, component))):
        lengths, failed = await _measured(config, component, renderer, which, tasks)
        which = component.qualified(which)
        longer = frozenset(task for task, length in lengths.items() if length > limit)
        if len(longer) == len(tasks):
            raise SetupError(
                f"data.filter_overlong_prompts leaves no {which} task: the openings of all {len(tasks)} have more than "
                f"{limit} tokens, the shortest {min(lengths.values())}: raise engine.max_context, or "
                "data.longest_prompt where that is given"
            )
        dropped.append(longer)
        say(f"{len(longer)} of {len(tasks)} {which} tasks are left out: their openings have more than {limit} tokens")
        if failed:
            task, why = next(iter(failed.items()))
            say(f"{len(failed)} {which} tasks could not be opened, and stay in; task {task}: {why}")
    return Overlong(*dropped)


async def _measured(
    config: PPOConfig, component: Component, renderer: Renderer, which: str, tasks: Sequence[int]
) -> tuple[Mapping[int, int], Mapping[int, str]]:
    """Return the tokens of each task's opening, and the errors of tasks that cannot be played."""
    async with backend_of(config, component, validation=which == "validation", local=True) as backend:
        forks = which == "training" and "forks" in config.algorithm.needs
        return await measure_openings(backend, renderer, tasks, seed=config.trainer.seed, forks=forks)


def longest_prompt(config: PPOConfig) -> int:
    """Return the limit: as configured, else what leaves room for one reply of the maximum length."""
    limit = config.data.longest_prompt
    return config.engine.max_context - config.rollout.max_response_length if limit is None else limit


async def try_openings(config: PPOConfig, renderer: Renderer, positions: int | None) -> list[str]:
    """Play the first opening of training and validation, check that a reply fits, and return lines on their tokens.

    ``positions`` is the longest context that the model was made for, if known.
    """
    context, reply = config.engine.max_context, config.rollout.max_response_length
    if positions is not None and context > positions:
        raise SetupError(
            f"engine.max_context={context} is more than the {positions} positions of model.path={config.model.path}: "
            f"give at most engine.max_context={positions}"
        )
    openings: dict[str, int] = {}
    for component in played(config):
        for which, task in (("training", 0), ("validation", validation_tasks(config, component).start)):
            measured, failed = await _measured(config, component, renderer, which, [task])
            name = f"the opening of {which} task {task} of {component.key}.id={component.id}"
            if failed:
                raise SetupError(f"{name} cannot be played: {failed[task]}")
            openings[name] = measured[task]
    name = max(openings, key=openings.__getitem__)
    needed, micro_batch = openings[name] + reply, config.actor.max_tokens_per_micro_batch
    if needed > context and not config.data.filter_overlong_prompts:
        small = micro_batch is not None and needed > micro_batch
        hint = f" and actor.max_tokens_per_micro_batch (now {micro_batch})" if small else ""
        advice = f"raise engine.max_context{hint} to {needed} at least, and further for the turns that follow"
        if positions is not None and needed > positions:
            advice = (
                f"the model has {positions} positions, so this environment needs another model, or other env.kwargs"
            )
        raise SetupError(
            f"{name} has {openings[name]:,} tokens, and with a reply of "
            f"rollout.max_response_length={reply} it does not fit engine.max_context={context}: {advice}"
        )
    return [f"{opening} has {tokens} tokens, of engine.max_context={context}" for opening, tokens in openings.items()]
