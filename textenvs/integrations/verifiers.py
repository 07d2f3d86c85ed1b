"""verifiers (prime-rl's environments): a taskset, an environment and a harness for any text environment.

The plugin's id is ``textenvs_verifiers``: ``vf-eval textenvs_verifiers --env.taskset.env textenv/clarify``, or
:func:`load_environment` from Python.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import httpx

from ..messages import Message, user
from ..tools.formats import make_call
from .rows import openings
from .session import EpisodeSpec, Session, episode_specs, several_conversations

try:
    import verifiers.v1 as vf
    from pydantic import Field
    from verifiers.v1.dialects.chat import message_to_wire, parse_message
    from verifiers.v1.types import AssistantMessage
except ImportError as error:
    raise ImportError("this needs verifiers 0.4: pip install 'verifiers>=0.4'") from error

#: The name of the module that verifiers finds all this in.
PLUGIN = "textenvs_verifiers"


class TextTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """The environment and its episodes."""

    env: str = Field("", description="The environment's id, for example textenv/clarify.")
    env_kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments of its constructor.")
    first_seed: int = Field(0, ge=0, description="The seed of the first task; the next has the next one.")
    count: int | None = Field(None, ge=1, description="How many tasks there are; endless without it.")


class TextTaskData(vf.TaskData):  # type: ignore[misc]
    """A task: its prompt is the episode's opening, and ``episode`` is what :meth:`EpisodeSpec.to_row` gives."""

    episode: dict[str, Any]


class TextTask(vf.Task[TextTaskData]):  # type: ignore[misc]
    """An episode; it is judged by its environment, turn by turn, and not afterwards."""


class TextTaskset(vf.Taskset[TextTask, TextTasksetConfig]):  # type: ignore[misc]
    """The episodes of an environment, seed by seed."""

    def __init__(self, config: TextTasksetConfig) -> None:
        super().__init__(config)
        if not config.env:
            raise ValueError("the taskset needs an environment's id: --env.taskset.env textenv/clarify")
        self.INFINITE = config.count is None

    def load(self) -> Iterator[TextTask]:
        config = self.config
        specs = episode_specs(config.env, config.count, seed=config.first_seed, env_kwargs=config.env_kwargs)
        for opening in openings(specs, several_conversations):
            name = f"{opening.spec.env}#{opening.spec.seed}"
            data = TextTaskData(id=name, name=name, prompt=_typed(opening.messages), episode=opening.spec.to_row())
            yield TextTask(data, config.task)


class TextEnvironmentConfig(vf.EnvConfig):  # type: ignore[misc]
    """The one seat: the assistant."""

    player: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """The policy under evaluation or training; nothing of it runs anywhere but in the model."""


class TextEnvironment(vf.Env[TextEnvironmentConfig]):  # type: ignore[misc]
    """Plays an episode with the assistant; docs/adapters/verifiers.md says what is on its trace."""

    async def run(self, task: TextTask, agents: Any) -> None:
        chosen = getattr(self.config, "taskset", None)
        environments = {chosen.env: chosen.env_kwargs} if isinstance(chosen, TextTasksetConfig) else None
        spec = EpisodeSpec.from_row(task.data.episode, f"task {task.data.name}", environments)
        session, opening = await Session.aof(spec)
        try:
            if _typed(opening) != list(task.data.prompt):
                raise ValueError(f"task {task.data.name}: {spec.env} opens otherwise here; load the tasks again")
            nodes: list[int] = []
            async with agents.player.interaction(task) as interaction:
                trace = interaction.trace
                segment = await interaction.turn()
                while not segment.terminated:
                    nodes.append(max(number for number, node in enumerate(trace.nodes) if node.sampled))  # the newest
                    turn = await session.areply(_reply(trace.nodes[nodes[-1]].message))
                    session.check()
                    trace.info["textenvs"] = {
                        "turn_rewards": session.turn_rewards,
                        "turn_terms": [outcome.outcome["terms"] for outcome in session.turns],
                        "turn_nodes": list(nodes),
                        "terminated": turn.terminated,
                        "truncated": turn.truncated,
                        "stop": turn.info["stop"],
                    }
                    if turn.done:
                        # The name verifiers itself gives a budget: its is_truncated goes by it.
                        trace.stop("max_turns" if turn.truncated else str(turn.info["stop"]))
                        break
                    segment = await interaction.turn(_typed(turn.messages))
            for outcome in session.turns:
                trace.record_metrics(outcome.metrics)
            for name, value in session.terms.items():
                trace.record_reward(name, value)
        finally:
            await session.aclose()


class ChatHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """One model call a turn, in this process; verifiers' ``null`` harness starts a program for every turn."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Mapping[str, str], data: Any
    ) -> Any:
        if mcp_urls:
            raise ValueError(f"the harness {PLUGIN!r} takes no tool servers, and there are {sorted(mcp_urls)}")
        system, prompt = self.resolve_prompt(data)
        messages = _typed([user(prompt)]) if isinstance(prompt, str) else list(prompt or [])
        if system is not None:
            rest = [message for message in messages if message.role != "system"]
            messages = [*_typed([{"role": "system", "content": system}]), *rest]
        body = {"model": ctx.model, "messages": [message_to_wire(message) for message in messages]}
        # verifiers has deadlines of its own.
        async with httpx.AsyncClient(timeout=None, verify=_certificates()) as client:
            headers = {"Authorization": f"Bearer {secret}"}
            answer = await client.post(f"{endpoint.rstrip('/')}/chat/completions", json=body, headers=headers)
        problem = "" if answer.status_code == 200 else f"{answer.status_code}: {answer.text[:2000]}"
        return vf.ProgramResult(exit_code=int(bool(problem)), stdout="", stderr=problem)


def load_environment(
    env: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    first_seed: int = 0,
    count: int | None = None,
    **config: Any,
) -> vf.Env:
    """Return a verifiers environment for a text environment; the arguments are fields of :class:`TextTasksetConfig`.

    ``config`` is more of the environment's configuration, for example ``player={"max_turns": 8}``.
    """
    taskset = {"id": PLUGIN, "env": env, "env_kwargs": dict(env_kwargs or {}), "first_seed": first_seed, "count": count}
    return vf.load_environment(TextEnvironmentConfig.model_validate({"taskset": taskset, **config}))


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Return the context of TLS, read once: reading certificates takes longer than all else in a turn."""
    return httpx.create_ssl_context()


def _typed(messages: Iterable[Message]) -> list[Any]:
    """Our messages as verifiers' own."""
    return [parse_message(dict(message)) for message in messages]


def _reply(message: AssistantMessage) -> Message:
    reply: Message = {"role": "assistant", "content": message.content or ""}
    if message.reasoning_content:
        reply["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        reply["tool_calls"] = tuple(make_call(call.name, call.arguments, call.id) for call in message.tool_calls)
    return reply
