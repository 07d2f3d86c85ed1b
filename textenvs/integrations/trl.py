"""TRL's ``GRPOTrainer``: rows that name episodes, and environments whose tools are methods (``environment_factory``).

TRL's other place for an environment, ``rollout_func``, needs the model's tokens and is therefore in
:class:`trainers.integrations.trl.TextEnvRollout`. TRL gives it nothing of a row but the prompt, so the prompt's last
message carries the :class:`EpisodeSpec` under the key :data:`KEY`, which chat templates do not look at.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, Union

from ..env import TextEnv
from ..messages import Message, assistant
from ..registry import make
from ..tool_env import ToolEnv
from ..tools.formats import make_call
from ..trust import Environments
from .rows import openings, same_messages
from .session import (
    EpisodeSpec,
    Session,
    SeveralContextsError,
    SpecError,
    episode_specs,
    several_conversations,
    text_of_all,
)

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["KEY", "dataset_of", "environment_class", "environment_reward", "spec_of", "textenv_dataset"]

#: Of the prompt's last message: which episode this is, as JSON.
KEY = "textenv"

_OVER = "The episode is over."


def textenv_dataset(env: str, count: int, *, seed: int = 0, env_kwargs: Mapping[str, Any] | None = None) -> Dataset:
    """Episodes of one environment as a dataset for TRL: the seeds ``seed``, ``seed + 1``, ...

    Its columns are ``prompt`` (the opening messages), and ``env``, ``seed``, ``env_kwargs`` and ``task_index`` (the
    episode). Raises ``SpecError`` for a count below 1, or arguments that are not JSON.
    """
    return dataset_of(episode_specs(env, count, seed=seed, env_kwargs=env_kwargs))


def dataset_of(specs: Iterable[EpisodeSpec]) -> Dataset:
    """:func:`textenv_dataset` of any episodes, also of several environments; raises ``SpecError`` without any."""
    try:
        from datasets import Dataset, Value
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "TRL's datasets need datasets: pip install 'textenvs[trl]'", name="datasets"
        ) from error

    rows = [{"prompt": _prompt(opening.spec, opening.messages), **opening.spec.to_row()} for opening in openings(specs)]
    if not rows:
        raise SpecError("there is no episode to make a dataset of")
    features = Dataset.from_list(rows).features
    features["task_index"] = Value("int64")  # also where all are null
    return Dataset.from_list(rows, features=features)


def _prompt(spec: EpisodeSpec, opening: Sequence[Message]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [dict(message) for message in opening]
    messages[-1][KEY] = json.dumps(spec.to_row(), sort_keys=True)
    return messages


def spec_of(prompt: Any, where: str = "the prompt", environments: Environments | None = None) -> EpisodeSpec:
    """Return the episode that a prompt carries; otherwise as :meth:`EpisodeSpec.from_row`."""
    messages = prompt if isinstance(prompt, list | tuple) else ()
    descriptions = [message.get(KEY) for message in messages if isinstance(message, Mapping)]
    descriptions = [item for item in descriptions if item is not None]
    if len(descriptions) != 1:
        raise SpecError(
            f"{where} carries {len(descriptions) or 'no'} episode descriptions instead of one, under key {KEY!r} of "
            "its last message: make the dataset with textenv_dataset, and keep its column 'prompt' as it is"
        )
    return EpisodeSpec.from_row(descriptions[0], f"{where}, key {KEY!r}", environments)


class _Environment:
    """One rollout's environment. TRL takes every public function of the class for a tool."""

    _env_id: str
    _env_kwargs: Mapping[str, Any]
    _tool_names: tuple[str, ...]

    def __init__(self) -> None:
        self._session: Session | None = None
        self._problem: Exception | None = None
        self._last_played = False

    def reset(self, **columns: Any) -> str | None:
        """Begin the episode of a row of :func:`textenv_dataset`. TRL appends what it returns to the prompt."""
        named = {name: columns[name] for name in ("env", "seed", "env_kwargs", "task_index") if name in columns}
        where = "the row of the dataset (made with textenv_dataset?)"
        spec = EpisodeSpec.from_row(named, where, {self._env_id: self._env_kwargs})
        if spec.env != self._env_id:
            raise SpecError(
                f"the row is an episode of {spec.env}, but this factory makes {self._env_id}: give GRPOTrainer a dict "
                "of factories and the dataset a column 'environment'"
            )
        if self._session is not None:
            self._session.close()
        session, opening = Session.of(spec)
        self._check_tools(spec, session.env)
        self._session, self._problem, self._last_played = session, None, False
        return None if same_messages(columns.get("prompt") or (), opening) else text_of_all(opening)

    @property
    def session(self) -> Session:
        if self._session is None:
            raise RuntimeError("no episode has begun: TRL calls reset(**row) before anything else")
        return self._session

    def _check_tools(self, spec: EpisodeSpec, env: TextEnv[Any]) -> None:
        if not isinstance(env, ToolEnv):
            return
        if tuple(tool.name for tool in env.tools) != self._tool_names:
            raise SpecError(f"with {dict(spec.env_kwargs)}, {spec.env} has other tools than this factory's")
        if env.tools_in_prompt:
            raise SpecError(
                "the chat template describes the tools here, so the environment must not: give "
                "env_kwargs={'tools_in_prompt': False} to textenv_dataset and to environment_class"
            )

    def _play(self, action: str | Message) -> str:
        if self.session.done:
            return _OVER
        try:
            turn = self.session.reply(action)
        except Exception as problem:
            self._problem = problem  # TRL shows it to the model and continues; the reward raises it
            raise
        return turn.text or (_OVER if turn.done else "")

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        call_id = str(getattr(self.session.env.state, "calls_made", 0))
        return self._play(assistant("", [make_call(name, json.dumps(dict(arguments)), call_id)]))

    def _earned(self) -> float | None:
        if self._problem is not None:
            raise RuntimeError(f"an environment of {self._env_id} raised: {self._problem}") from self._problem
        return None if self.session.failed else float(self.session.reward)


class _WithUser(_Environment):
    """With the tools by which a policy speaks, and a reward of its own; their docstrings are what the model reads."""

    def ask_user(self, message: str) -> str:
        """Say something to the user, and hear the answer.

        Args:
            message: What to say.

        Returns:
            What the user answers.
        """
        return self._play(message)

    def submit(self, answer: str) -> str:
        """Give an answer.

        Args:
            answer: The whole answer, in the form that was asked for.

        Returns:
            What is said to it.
        """
        return self._play(answer)

    def get_reward(self) -> float | None:
        return self._earned()


def environment_class(
    env: str, *, env_kwargs: Mapping[str, Any] | None = None, submit: bool | None = None
) -> Callable[[], Any]:
    """Return a class for TRL's ``environment_factory``; each instance plays one rollout at a time.

    An environment with tools has them as methods, with the names, types and docstrings of its schemas. Each call is a
    turn of the environment; the reply that ends the episode, which TRL does not show to an environment, is played by
    :func:`environment_reward`: give it as ``reward_funcs``.

    With ``submit``, and for environments without tools, where TRL would end the episode at the first reply, there are
    the tools ``ask_user(message)`` and ``submit(answer)``. Both say their text to the environment and return what it
    says. The environment then owns the reward (``get_reward``). That changes the protocol: the policy speaks through
    calls, and what it says outside of them is not heard.

    Give it the ``env_kwargs`` that the rows have: which tools there are may depend on them. A tool with a name that TRL
    keeps for itself is a ``ValueError``; SeveralContextsError: its episodes have several conversations.
    """
    with closing(make(env, **(env_kwargs or {}))) as made:
        if reason := several_conversations(made):
            raise SeveralContextsError(env, reason)
        schemas = [schema["function"] for schema in made.tool_schemas] if isinstance(made, ToolEnv) else []
    base = _WithUser if submit or (submit is None and not schemas) else _Environment
    members: dict[str, Any] = {
        "_env_id": env,
        "_env_kwargs": dict(env_kwargs or {}),
        "_tool_names": tuple(function["name"] for function in schemas),
        "__doc__": f"{env} for TRL's environment_factory; see textenvs.integrations.trl.",
    }
    for function in schemas:
        name = function["name"]
        if name in members or hasattr(base, name) or name == "get_reward" or name.startswith("_"):
            raise ValueError(f"{env}: TRL has no room for a tool of the name {name!r}")
        members[name] = _method(function)
    words = re.split(r"[^0-9A-Za-z]+", env.rpartition("/")[2])
    return type("".join(word.capitalize() for word in words) or "TextEnv", (base,), members)


def environment_reward(
    completions: Sequence[Any],
    environments: Sequence[Any],
    log_metric: Callable[[str, float], None] | None = None,
    **_: Any,
) -> list[float | None]:
    """Return a reward function for :func:`environment_class` without ``submit``: it plays the last reply, sums turns.

    The means of the reward's terms are logged. An episode in which a simulator or judge gave up has the reward
    ``None``, which TRL leaves out; an environment that raised an exception is a ``RuntimeError``.
    """
    rewards = []
    for completion, environment in zip(completions, environments, strict=True):
        last = completion[-1] if completion else {}
        final = last.get("role") == "assistant" and not last.get("tool_calls")
        if final and not environment._last_played and environment._problem is None and not environment.session.done:
            environment._last_played = True
            environment._play(assistant(last.get("content") or ""))
        rewards.append(environment._earned())
    if log_metric is not None:
        sessions = [instance.session for instance in environments if not instance.session.failed]
        log_terms(log_metric, [[session.terms] for session in sessions])
    return rewards


def log_terms(log_metric: Callable[[str, float], None], episodes: Sequence[Sequence[Mapping[str, float]]]) -> None:
    """Tell TRL the mean over episodes of each term of the reward, summed over an episode's turns."""
    for name in sorted({name for turns in episodes for terms in turns for name in terms}):
        sums = [sum(terms.get(name, 0.0) for terms in turns) for turns in episodes]
        log_metric(f"terms/{name}", sum(sums) / len(sums))


_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict, "null": type(None)}


def _method(function: Mapping[str, Any]) -> Callable[..., str]:
    """Return a method with the schema's signature and docstring, from which transformers makes a schema again."""
    name: str = function["name"]
    schema: Mapping[str, Any] = function.get("parameters") or {}
    required = set(schema.get("required", ()))

    def method(self: _Environment, **arguments: Any) -> str:
        return self._call(name, arguments)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("self", kind)]
    lines = []
    # Python wants those without a default first.
    for argument, described in sorted(schema.get("properties", {}).items(), key=lambda item: item[0] not in required):
        default = inspect.Parameter.empty if argument in required else described.get("default")
        parameters.append(inspect.Parameter(argument, kind, default=default, annotation=_type_of(described)))
        lines.append(f"    {argument}: {' '.join(str(described.get('description') or argument).split())}")
    paragraphs = [str(function.get("description") or name).strip(), "", *(["Args:", *lines, ""] if lines else [])]
    method.__name__ = method.__qualname__ = name
    method.__doc__ = "\n".join([*paragraphs, "Returns:", "    What the environment says."])
    method.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters[1:]} | {"return": str}
    method.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    return method


def _type_of(schema: Mapping[str, Any]) -> Any:
    """Return the Python type that transformers turns into this JSON schema, or the closest one."""
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return Union[tuple(_type_of(choice) for choice in choices)]  # noqa: UP007 - of a tuple
    kind = schema.get("type")
    if isinstance(kind, list):
        return Union[tuple(_TYPES.get(name, Any) for name in kind)]  # noqa: UP007 - of a tuple
    if kind == "array":
        return types.GenericAlias(list, (_type_of(schema.get("items") or {}),))
    return _TYPES.get(str(kind), Any)
