"""An environment behind an OpenEnv server as a text environment."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.request
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ...env import FAILURE_STOPS, EnvironmentFailure
from ...external import Answer, ExternalEnv, ExternalState
from ...messages import Message, Messages, check_conversation, text_of, user, visible_text
from ...task import Split, Task
from .seeds import Seeds, seed_of

# What our own server says where an episode failed; see textenvs.integrations.openenv.
_FAILED = "leave this episode out, it failed ("
_TEXT = ("text", "observation", "message", "response", "content", "prompt")


class OpenEnv(ExternalEnv[ExternalState]):
    """Episodes on an OpenEnv server, one connection each.

    What the server says is read from its observation: ``messages``, where it has chat messages there; else the field
    ``observation_field``; else the first text among text, observation, message, response, content and prompt; else the
    observation as JSON. The reward is the step's own (0 where it gives none). ``done`` is ``terminated``, unless the
    observation says ``truncated``. ``terms``, ``metrics`` and ``stop`` are read from its ``info``, where it has them.
    ``context``, where it has chat messages there, is the next observation as a whole (our own servers send it).

    A fork or a restored environment begins a new episode with the same seed, and plays the replies again; where the
    server then says something else, the step fails (``info["failed"]``).

    Args:
        url: The server's address, ``http://host:port``.
        action_field: Which field of the action the reply goes to; ``None`` for the only field that must be given.
        observation_field: Which field of the observation is read.
        reset: More arguments of the server's ``reset``, as in JSON.
        send_thinking: Whether the server gets the raw reply; without, private reasoning is left out.
        timeout: Seconds to wait for an answer.
        split: ``"train"`` or ``"test"``.
        seed: Which endless sequence of seeds. (Episodes are seeded by ``reset``.)
        **options: Of :class:`~textenvs.TextEnv`: ``max_assistant_turns``, ``system_prompt``, ``render_mode``.

    Raises:
        ConnectionError: There is no OpenEnv server at the address.
        ValueError: The server's actions have no such field, or not just one that must be given.
        ImportError: OpenEnv is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        action_field: str | None = None,
        observation_field: str | None = None,
        reset: Mapping[str, Any] | None = None,
        send_thinking: bool = False,
        timeout: float = 60.0,
        split: Split = "train",
        seed: int = 0,
        **options: Any,
    ) -> None:
        _client()
        self.url = url.rstrip("/")
        try:
            metadata, schema = (_get(f"{self.url}/{path}", timeout) for path in ("metadata", "schema"))
            name, action = metadata["name"], dict(schema["action"])
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise ConnectionError(f"there is no OpenEnv server at {url} ({type(error).__name__}: {error})") from error
        super().__init__(Seeds(f"openenv/{name}", seed, split), **options)
        self.action_field = _field(action, action_field, self.url)
        self.takes_messages = "message" in action.get("properties", {})
        # Other servers than ours say that an episode is over, and not why.
        self.has_success = "info" in dict(schema.get("observation") or {}).get("properties", {})
        self.observation_field = observation_field
        self.reset_arguments = dict(reset or {})
        self.send_thinking = send_thinking
        self.timeout = float(timeout)

    def begin(self, task: Task) -> _Remote:
        return _Remote(self, seed_of(task))


class _Remote:
    """An episode on the server, and its connection."""

    def __init__(self, env: OpenEnv, seed: int) -> None:
        self.env = env
        self.client = _client()(base_url=env.url, message_timeout_s=env.timeout).sync()
        # Forks are seldom closed.
        weakref.finalize(self, _close_later, self.client).atexit = False
        try:
            with _as_failure(env):
                result = self.client.reset(seed=seed, **env.reset_arguments)
                self.opening = self._said(result.observation)
            self._connection = self._connected()
        except BaseException:
            self.close()
            raise

    def reply(self, message: Message) -> Answer:
        env = self.env
        text = text_of(message) if env.send_thinking else visible_text(message)
        action: dict[str, Any] = {env.action_field: text}
        if "tool_calls" in message:
            if not env.takes_messages:
                return Answer(messages=(user("There are no tool calls here. Reply with a text."),))
            action["message"] = {**message, "content": text}
        with _as_failure(env):
            result = self.client.step(action)
            if self._connected() is not self._connection:
                raise ConnectionError("the connection was lost, and the episode with it")
            observation, info = result.observation, result.observation.get("info")
            info = info if isinstance(info, Mapping) else {}
            truncated = bool(result.done and observation.get("truncated"))
            over = bool(result.done) and not truncated
            stop = str(info.get("stop") or ("truncated" if truncated else "done"))
            context = self._context(observation)
            has_messages = observation.get("messages") or not (result.done or context)
            return Answer(
                messages=self._said(observation) if has_messages else (),
                context=context,
                reward=float(result.reward or 0.0),
                terminated=over,
                stop=stop if over else None,
                cut=stop if truncated else None,
                terms=info.get("terms"),
                metrics=info.get("metrics"),
            )

    def _connected(self) -> Any:
        """Return the client's socket; the client replaces a closed one by itself, which begins a new session."""
        return self.client.async_client._ws

    def close(self) -> None:
        _close(self.client)

    def _context(self, observation: Mapping[str, Any]) -> Messages | None:
        context = observation.get("context")
        if not isinstance(context, list) or not context or self.env.observation_field is not None:
            return None
        try:
            return check_conversation(context, "context")
        except ValueError as problem:
            raise EnvironmentFailure("tool_failed", f"the observation's context is malformed: {problem}") from problem

    def _said(self, observation: Mapping[str, Any]) -> Messages:
        messages, field = observation.get("messages"), self.env.observation_field
        if messages and field is None:
            with suppress(ValueError):
                return check_conversation(messages, "messages")
        if field is None:
            field = next((name for name in _TEXT if isinstance(observation.get(name), str)), None)
        elif field not in observation:
            raise EnvironmentFailure("tool_failed", f"the observation has no {field!r}; it has {sorted(observation)}")
        content = observation if field is None else observation[field]
        return (user(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)),)


def _close(client: Any) -> None:
    with suppress(Exception):  # the server may be gone
        client.close()


def _close_later(client: Any) -> None:
    # In a thread, because the client's own may be collecting garbage.
    threading.Thread(target=_close, args=(client,), daemon=True).start()


def _client() -> Any:
    try:
        from openenv.core import GenericEnvClient
    except ImportError as error:
        raise ImportError("this needs OpenEnv: pip install openenv") from error
    return GenericEnvClient


def _get(url: str, timeout: float) -> Any:
    with urllib.request.urlopen(url, timeout=timeout) as response:
        return json.load(response)


def _field(schema: Mapping[str, Any], requested: str | None, url: str) -> str:
    """Return the field of an action that takes the reply."""
    fields = [name for name in schema.get("properties", {}) if name != "metadata"]
    required = list(schema.get("required", []))
    if requested is not None and requested not in fields:
        raise ValueError(f"action_field: an action of {url} has no field {requested!r}; it has {', '.join(fields)}")
    if requested is None and len(required) != 1:
        raise ValueError(
            f"an action of {url} must have {', '.join(required) or 'no field at all'}: say with action_field which one "
            f"a reply goes to; there are {', '.join(fields)}"
        )
    return requested or str(required[0])


@contextmanager
def _as_failure(env: OpenEnv) -> Iterator[None]:
    """Fail the episode for errors of the server and of the connection."""
    try:
        yield
    except EnvironmentFailure:
        raise
    except TimeoutError as error:
        raise EnvironmentFailure("tool_failed", f"{env.url} did not answer within {env.timeout:g} s") from error
    except Exception as error:
        stop, _, reason = str(error).partition(_FAILED)[2].partition("): ")
        if stop in FAILURE_STOPS:
            raise EnvironmentFailure(stop, reason.rpartition(" (code: ")[0] or reason) from error
        raise EnvironmentFailure("tool_failed", f"{env.url}: {type(error).__name__}: {error}") from error
