"""The environments to train and to validate in, where their episodes step, and how long their openings are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import gymnasium
import numpy as np

import textenvs
from textenvs.data import TaskError
from textenvs.env import TextEnv
from textenvs.evaluate.baselines import has_script, play_policy, split_tasks
from textenvs.evaluate.plan import jobs
from textenvs.evaluate.policies import AttackPolicy, ScriptedPolicy
from textenvs.evaluate.runner import Stopped
from textenvs.messages import user
from textenvs.registry import constructor, parameters

from ..algorithms.advantages import NEEDS_FORKS
from ..config.rollout import EnvSection
from ..config.schema import PPOConfig
from ..rollout.environments import Backend, EnvSpec, tools_of
from ..rollout.renderer import Renderer, Tools
from ..rollout.tasks import measure_openings
from .errors import SetupError, setup_errors


def env_kwargs(env: EnvSection, files: Sequence[str] | None, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of the environment: those configured, ``more`` laid over them, and the tasks of ``files``."""
    kwargs = {**env.kwargs, **(more or {})}
    if files is not None:
        kwargs["tasks"] = files[0] if len(files) == 1 else list(files)
        kwargs.pop("level", None)
    return kwargs


@contextmanager
def _said_in_words(env_id: str, kwargs: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except TaskError as error:
        raise SetupError(str(error)) from error
    except (gymnasium.error.Error, TypeError, ValueError, ImportError, OSError) as error:
        raise SetupError(
            f"env.id={env_id} with {dict(kwargs)}: {error} (see env.kwargs, env.val_kwargs and data.*)"
        ) from error


def make_env(env_id: str, kwargs: Mapping[str, Any]) -> TextEnv[Any]:
    """One environment."""
    with _said_in_words(env_id, kwargs):
        return textenvs.make(env_id, **kwargs)


def training_kwargs(config: PPOConfig) -> dict[str, Any]:
    """Of the environments to train in."""
    return env_kwargs(config.env, config.data.train_files)


def validation_kwargs(config: PPOConfig) -> dict[str, Any]:
    """Of the environments to validate in: those of training, with ``env.val_kwargs`` and ``data.val_files`` over them.

    Where the environment has an option ``split``, it is ``test``, unless ``env.val_kwargs`` names a split or tasks.
    """
    more = dict(config.env.val_kwargs)
    if not more.keys() & {"split", "tasks"}:
        with _said_in_words(config.env.id, {}):
            names, _ = parameters(constructor(config.env.id))
        more |= {"split": "test"} if "split" in names else {}
    return env_kwargs(config.env, config.data.val_files, more)


def other_validation(config: PPOConfig) -> str | None:
    """A line to say where the configuration does not name the tasks to validate on, and which those are."""
    kwargs, data = validation_kwargs(config), config.data
    if kwargs == training_kwargs(config):
        tasks = validation_tasks(config)
        if tasks.start:
            return f"validation is on tasks {tasks.start} to {tasks[-1]}, which data.train_size leaves out of training"
        return (
            f"validation is on tasks 0 to {tasks[-1]}, which are trained on, too: {config.env.id} has no option "
            "`split`. data.train_size=N holds the tasks from N on out; env.val_kwargs gives validation other arguments"
        )
    if data.train_files is None or data.val_files is not None or "tasks" in config.env.val_kwargs:
        return None
    with closing(make_env(config.env.id, kwargs)) as env:
        return f"validation is not on rows of data.train_files, but on {env.tasks.name}; data.val_files names others"


def backend_of(config: PPOConfig, *, validation: bool, here: bool = False) -> Backend:
    """Where episodes step; with ``here`` on this machine, also where Ray's actors will do it later."""
    kwargs = validation_kwargs(config) if validation else training_kwargs(config)
    kind, timeout = config.env.backend, config.rollout.step_timeout_s
    later = here and kind == "ray"
    return Backend(
        EnvSpec(config.env.id, kwargs),
        "process" if later else kind,
        tools=tools_for(config.env.id, kwargs),
        workers=None if later or kind == "inline" else config.env.workers,
        reset_timeout=timeout,
        step_timeout=timeout,
    )


def tools_for(env_id: str, kwargs: Mapping[str, Any]) -> Tools:
    """What the chat template must describe of this environment's tools."""
    with closing(make_env(env_id, kwargs)) as env, setup_errors(f"env.id={env_id}: ", ValueError):
        return tools_of(env)


def check_environments(config: PPOConfig) -> None:
    """Make both environments once, here, so that a mistake is found before anything is trained."""
    for kwargs in (training_kwargs(config), validation_kwargs(config)):
        with closing(make_env(config.env.id, kwargs)) as env:
            if env.blocking and config.env.backend == "inline":
                raise SetupError(f"{config.env.id} may block its thread: use env.backend=thread or env.backend=process")


def check_tools(config: PPOConfig, renderer: Renderer) -> None:
    """Prove that the chat template shows the tools that it must describe.

    Raises:
        SetupError: A model could not call them.
        RendererError: It does not show them; says what to do.
    """
    for kwargs in (training_kwargs(config), validation_kwargs(config)):
        renderer.forms.check((user("x"),), tools_for(config.env.id, kwargs))


def _size(config: PPOConfig, kwargs: Mapping[str, Any]) -> int | None:
    with closing(make_env(config.env.id, kwargs)) as env:
        return env.tasks.size


def task_count(config: PPOConfig) -> int | None:
    """How many tasks there are to train on: the first ``data.train_size``; ``None`` where they never end."""
    limits = (_size(config, training_kwargs(config)), config.data.train_size)
    return min((limit for limit in limits if limit is not None), default=None)


def validation_tasks(config: PPOConfig) -> range:
    """``data.val_size`` tasks, or all where there are fewer.

    The first ones; where training has the same task set, those that ``data.train_size`` leaves out, if any.
    """
    kwargs, data = validation_kwargs(config), config.data
    size, first = _size(config, kwargs), data.train_size or 0
    if kwargs != training_kwargs(config) or (size is not None and first >= size):
        first = 0
    last = first + data.val_size
    return range(first, last if size is None else min(size, last))


# --- what scripts earn, which a run is compared with

_SCRIPTED = 32  # episodes of each script
_SLOW_S = 0.05  # an episode of the expert that takes longer: users or judges that are models, sandboxes


def references(config: PPOConfig) -> dict[str, float]:
    """What the scripts of the training environment earn; nothing where that cannot be had soon.

    It has no expert, it may block and so has ``env.backend``, it fails, or it is slow.

    Returns:
        ``reference/expert``, ``reference/expert_se`` (standard error), ``reference/expert_solved`` (share),
        ``reference/random``, ``reference/null`` and ``reference/null_se`` (the attack that earned most, of those that
        need no rehearsal), ``reference/null_limit`` (what ``textenvs audit`` allows it), and ``reference/episodes`` of
        each.
    """
    with closing(make_env(config.env.id, training_kwargs(config))) as env:
        if config.env.backend != "inline" or not has_script(env, "expert"):
            return {}
        size = min(_SCRIPTED, task_count(config) or _SCRIPTED)
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
    """The indices of tasks that are not played."""

    training: frozenset[int] = frozenset()
    validation: frozenset[int] = frozenset()


async def overlong_of(config: PPOConfig, renderer: Renderer, say: Callable[[str], None]) -> Overlong:
    """Which tasks to leave out, none without ``data.filter_overlong_prompts``; ``say`` is told how many there are."""
    if not config.data.filter_overlong_prompts:
        return Overlong()
    if (size := task_count(config)) is None:
        raise SetupError(
            f"data.filter_overlong_prompts measures every task before the training, and those of {config.env.id} never "
            "end: give data.train_size=N to play the first N alone, or data.train_files, or leave it off"
        )
    limit, found = longest_prompt(config), []
    for which, tasks in (("training", range(size)), ("validation", validation_tasks(config))):
        lengths, failed = await _measured(config, renderer, which, tasks)
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
    config: PPOConfig, renderer: Renderer, which: str, tasks: Sequence[int], *, forks: bool = False
) -> tuple[Mapping[int, int], Mapping[int, str]]:
    """The tokens of each task's opening, and why others cannot be played."""
    async with backend_of(config, validation=which == "validation", here=True) as backend:
        forks = which == "training" and config.algorithm.adv_estimator in NEEDS_FORKS
        return await measure_openings(backend, renderer, tasks, seed=config.trainer.seed, forks=forks)


def longest_prompt(config: PPOConfig) -> int:
    """The limit: as configured, else what leaves room for one reply of the greatest length."""
    given = config.data.longest_prompt
    return config.engine.max_context - config.rollout.max_response_length if given is None else given


async def try_openings(config: PPOConfig, renderer: Renderer, positions: int | None) -> list[str]:
    """Play the opening of the first task of training and of validation, and see whether it leaves room for a reply.

    ``positions`` is the longest context that the model was made for, where that is known. Returns lines on how long
    they are, in tokens.
    """
    context, reply = config.engine.max_context, config.rollout.max_response_length
    if positions is not None and context > positions:
        raise SetupError(
            f"engine.max_context={context} is more than the {positions} positions of model.path={config.model.path}: "
            f"give at most engine.max_context={positions}"
        )
    openings: dict[str, int] = {}
    for which, task in (("training", 0), ("validation", validation_tasks(config).start)):
        measured, failed = await _measured(config, renderer, which, [task])
        name = f"the opening of {which} task {task}"
        if failed:
            raise SetupError(f"{name} of env.id={config.env.id} cannot be played: {failed[task]}")
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
            f"{name} of env.id={config.env.id} has {openings[name]:,} tokens, and with a reply of "
            f"rollout.max_response_length={reply} it does not fit engine.max_context={context}: {advice}"
        )
    return [f"{each} has {tokens} tokens, of engine.max_context={context}" for each, tokens in openings.items()]
