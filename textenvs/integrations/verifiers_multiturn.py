"""verifiers before 0.4: any text environment as a ``MultiTurnEnv`` with a rubric.

::

    from textenvs.integrations.verifiers_multiturn import load_environment
    env = load_environment("textenv/clarify", count=100)

``vf.load_environment("textenvs_verifiers", env="textenv/clarify")`` and ``vf-eval`` find it by that name. A row of the
dataset is an :class:`~textenvs.integrations.spec.EpisodeSpec` with its opening as the prompt. For verifiers 0.4 there
is :mod:`textenvs.integrations.verifiers`; see docs/adapters/verifiers.md for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..env import EnvironmentFailure
from ..messages import Message, Messages
from .rows import openings
from .session import Session, SessionTurn
from .spec import EpisodeSpec, episode_specs

try:
    import verifiers as vf
    from verifiers.envs.multiturn_env import MultiTurnEnv
    from verifiers.utils.message_utils import normalize_messages
except ImportError as error:
    raise ImportError(f"this needs verifiers 0.1.14 to 0.3 ({error}): pip install 'verifiers>=0.1.14,<0.4'") from error

#: Where a row's ``info`` and a rollout's state keep what is ours; others may add to both.
KEY = "textenvs"

_SESSION = "textenvs_session"


class EpisodeFailed(vf.InfraError):  # type: ignore[misc]
    """A simulator, judge or tool gave up: the episode says nothing about the policy. verifiers' retries apply."""


class TextRubric(vf.Rubric):  # type: ignore[misc]
    """The sum of the turn rewards.

    Metrics, without a weight: ``term/NAME``, a term's sum over the turns, and ``metric/NAME``, the environment's last.
    """

    def __init__(self) -> None:
        super().__init__(funcs=[episode_return])

    async def score_rollout(self, state: Any) -> None:
        """Score one rollout."""
        await super().score_rollout(state)
        _add_metrics([state])

    async def score_group(self, states: list[Any]) -> None:
        """Score the rollouts of a group, each for itself."""
        await super().score_group(states)
        _add_metrics(states)


class TextMultiTurnEnv(MultiTurnEnv):  # type: ignore[misc]
    """Plays episodes with the model; each reply is judged once, when verifiers adds it to the trajectory.

    A step of the trajectory has its turn's reward as ``reward`` and the turn's terms and metrics in
    ``extras["textenvs"]``. ``state["textenvs"]`` has ``turn_rewards``, ``turn_terms``, ``metrics``, ``terminated``,
    ``truncated`` and ``stop``. The reward is their sum; a rollout with an error has none (0.0).

    Args:
        env: The environment's id.
        env_kwargs: Arguments of its constructor.
        first_seed: The seed of the first row; the next has the next one.
        count: How many rows there are.
        **options: Of ``MultiTurnEnv``, for example ``max_turns`` or ``timeout_seconds``.

    Raises:
        SpecError: Of ``env``, ``env_kwargs``, ``first_seed`` or ``count``; when the dataset is first asked for, an
            opening with more than roles and texts.
    """

    def __init__(
        self,
        env: str,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        first_seed: int = 0,
        count: int = 100,
        **options: Any,
    ) -> None:
        specs = list(episode_specs(env, count, seed=first_seed, env_kwargs=env_kwargs))
        self._environments = {env: dict(env_kwargs or {})}
        super().__init__(dataset=lambda: _dataset(specs), rubric=TextRubric(), **options)

    async def setup_state(self, state: Any) -> Any:
        """Begin the episode of the state's row."""
        state[KEY] = _record([])
        where = f"info[{KEY!r}] of row {state['example_id']}"
        spec = EpisodeSpec.from_row((state["info"] or {}).get(KEY), where, self._environments)
        try:
            session, opening = await Session.aof(spec)
        except EnvironmentFailure as failure:
            raise EpisodeFailed(f"{failure.stop}: {failure.reason}") from failure
        state[_SESSION] = session
        prompt, expected = list(state["prompt"]), _typed(opening)
        added = prompt[: len(prompt) - len(expected)]
        # A system prompt of the host's may stand before the opening.
        if prompt[len(added) :] != expected or any(message.role != "system" for message in added):
            where = f"row {state['example_id']}, {spec.env} with seed {spec.seed}"
            raise ValueError(f"{where}: it opens otherwise here; make the dataset again")
        return state

    async def add_trajectory_step(self, state: Any, trajectory_step: Any) -> None:
        """Judge the reply, and keep what it earned."""
        session = state[_SESSION]
        # Before the step is kept: one that a deadline cut off would be given the whole episode's reward by verifiers.
        turn = await session.areply(_reply(trajectory_step["completion"][-1]))
        trajectory_step["reward"] = turn.reward
        trajectory_step["extras"][KEY] = {"terms": dict(turn.info["terms"]), "metrics": dict(turn.info["metrics"])}
        await super().add_trajectory_step(state, trajectory_step)
        state[KEY] = _record(session.turns)
        if session.failed:
            raise EpisodeFailed(f"{turn.info['stop']}: {turn.info['failure']}")
        if turn.truncated:
            state["is_truncated"] = True
        if turn.done:
            state["final_env_response"] = _typed(turn.messages)

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        """What the environment said to the last reply."""
        return _typed(state[_SESSION].turns[-1].messages)

    # Before verifiers' own, errors apart: an episode that ends with the last turn the host allows has ended by itself.
    @vf.stop(priority=50)  # type: ignore[untyped-decorator]
    async def environment_terminated(self, state: Any) -> bool:
        """The task is over."""
        return bool(state[KEY]["terminated"])

    @vf.stop(priority=50)  # type: ignore[untyped-decorator]
    async def environment_truncated(self, state: Any) -> bool:
        """A budget of the environment ran out."""
        return bool(state[KEY]["truncated"])

    @vf.cleanup(priority=1000)  # type: ignore[untyped-decorator]
    async def close_session(self, state: Any) -> None:
        """Release what the episode holds; first, so that no other handler's error comes before it."""
        if state.get(_SESSION) is not None:
            session = state[_SESSION]
            del state[_SESSION]
            await session.aclose()


def load_environment(
    env: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    first_seed: int = 0,
    count: int = 100,
    **options: Any,
) -> TextMultiTurnEnv:
    """A verifiers environment for a text environment, with the arguments of :class:`TextMultiTurnEnv`."""
    return TextMultiTurnEnv(env, env_kwargs=env_kwargs, first_seed=first_seed, count=count, **options)


def episode_return(state: Any) -> float:
    """The sum of the turn rewards."""
    return 0.0 if state.get("error") is not None else sum(state[KEY]["turn_rewards"])


def _add_metrics(states: list[Any]) -> None:
    for state in states:
        if state.get("error") is None:
            # verifiers copies metrics beside a rollout's own fields: a term "answer" would replace the answer.
            named = {f"metric/{name}": value for name, value in state[KEY]["metrics"].items()}
            for terms in state[KEY]["turn_terms"]:
                for name, value in terms.items():
                    named[f"term/{name}"] = named.get(f"term/{name}", 0.0) + value
            state["metrics"] |= named


def _dataset(specs: list[EpisodeSpec]) -> Any:
    from datasets import Dataset

    rows = [
        {"prompt": opening.prompt, "answer": "", "info": {KEY: opening.episode}, "example_id": number}
        for number, opening in enumerate(openings(specs))
    ]
    return Dataset.from_list(rows)


def _typed(messages: Messages) -> list[Any]:
    """Our messages as verifiers' own; it knows calls in lists only."""
    plain: list[dict[str, Any]] = [dict(message) for message in messages]
    for message in plain:
        if "tool_calls" in message:
            message["tool_calls"] = list(message["tool_calls"])
    return list(normalize_messages(plain))


def _reply(message: Any) -> Message:
    """What the model said, as a message of ours."""
    content = message.content or ""
    if not isinstance(content, str):
        content = "".join(_part(part) for part in content)
    reply: Message = {"role": "assistant", "content": content}
    if message.reasoning_content:
        reply["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        reply["tool_calls"] = tuple(
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        )
    return reply


def _part(part: Any) -> str:
    """The text of a part of a message; others than text have none."""
    text = part.get("text")
    return text if isinstance(text, str) else ""


def _record(turns: list[SessionTurn]) -> dict[str, Any]:
    """What happened so far, as JSON."""
    metrics: dict[str, float] = {}
    for turn in turns:
        metrics.update(turn.info["metrics"])
    return {
        "turn_rewards": [turn.reward for turn in turns],
        "turn_terms": [dict(turn.info["terms"]) for turn in turns],
        "metrics": metrics,
        "terminated": bool(turns) and turns[-1].terminated,
        "truncated": bool(turns) and turns[-1].truncated,
        "stop": turns[-1].info["stop"] if turns else None,
    }
