"""A program that calls a model, as an environment: one call is one turn."""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...attack import Attack
from ...data.sources import Source, open_source
from ...env import EnvironmentFailure, EpisodeState, Turn
from ...external import ExternalEnv, ExternalState
from ...gateway.channel import Channel
from ...messages import Message, Messages, text_of
from ...options import PositiveInt, Seconds, Weight, checked, make_of, resolve
from ...sandbox.command import CommandSandbox
from ...task import Rows, Split, Task
from ...tools.call_format import CallFormat
from ...tools.formats import make_format
from ...tools.schema import Tool
from . import example
from .attacks import ATTACKS
from .command import CommandSettings
from .episode import Episode, Settings, format_of
from .program import CommandProgram, FunctionProgram, Program, task_fields, without_answer
from .record import Record
from .serving import Serving
from .tasks import LEVELS, READER

EXAMPLE = "textenvs.envs.agent.example:arithmetic"
#: Names of roles: they stand in names of models and behind keys.
_ROLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass
class AgentState(ExternalState):
    """The tools of the program's current call, as JSON text; empty before the first one."""

    tools: str = ""


class Agent(ExternalEnv[AgentState]):
    """A program that calls a model, with the policy in the place of the model.

    The program runs unchanged: it gets the address of a service with the protocols of OpenAI (chat completions and
    responses) and Anthropic (messages). Where it calls the model, the call's messages are the observation, and the
    action is its answer. The tools are described in the system message, and calls in the reply's text become the
    protocol's own, by ``call_format``. A call that extends an earlier conversation continues it; any other begins a
    context (a compacted history, a sub-agent). Calls at the same time are turns in the order in which they come.

    Without ``agent`` and ``command``, an example program plays: an arithmetic agent with one tool.

    Rewards are what the program returns (a number, or numbers by name, on the last turn), what it posts to
    ``/v1/rewards`` (on the turn that was answered last; with a scorer, only if ``posts``), and what ``scorer`` returns.
    With ``roles``, what is returned is by role, and a post may name one: it is on that role's last turn. A program that
    dies, hangs or gives no reward ends the episode as ``"program_error"``, with its last words in ``info["reason"]``:
    the policy may be the cause, so the episode counts (:class:`~textenvs.envs.agent.episode.Episode`). Before the
    policy's first reply, ``reset`` raises ``EnvironmentFailure``.

    A fork or a restored environment runs the program again with the same replies; where it then calls with other
    messages, the step fails.

    Args:
        agent: A function, or ``"module:function"``, plain or asynchronous, called with the task, a base URL and a key.
            It runs in a thread of this process.
        command: A command instead, run in a process group and an empty folder of its own. It finds ``OPENAI_BASE_URL``,
            ``OPENAI_API_KEY``, ``ANTHROPIC_BASE_URL``, ``ANTHROPIC_API_KEY``, and the task as JSON in ``TEXTENVS_TASK``
            and in the file ``TEXTENVS_TASK_FILE``. **It is not isolated**, unless ``sandbox`` says so.
        files: A folder whose contents a command finds in its own.
        sandbox: Whether the command runs in a sandbox: no network but the gateway, no files but its own and the
            system's programs, and limits. Limits other than those of
            :class:`~textenvs.sandbox.result.CommandLimits` are given by name, ``paths`` are files and folders of this
            machine that it may read, and ``proc`` is whether it has ``/proc``:
            ``{"memory_mb": 2048, "paths": ["/srv/agent"], "proc": True}``.
        serve: The command stays alive, and has so many tasks at a time: each is a JSON line of its standard input, and
            its result one of its standard output. Environments of one process share such commands.
        scorer: A function, or ``"module:function"``, of the task, the messages of all conversations in the order of
            time, and the command's folder (``None`` for a function); it returns a reward as the program does. The
            program's task then has no answer in it.
        posts: Whether the program may post rewards; ``None``: unless there is a scorer. Whoever can run commands in the
            program's tools can post, too: the policy of a coding agent would write its own reward.
        expert: A function, or ``"module:function"``, of the task, the messages and a generator, for demonstrations: it
            returns the next reply, a text or an assistant message with ``tool_calls``.
        careless: The same for replies that are mostly wrong.
        record: A folder of ``textenvs record``, whose solved runs are the demonstrations, in the place of ``expert``
            (and of the example's scripts). No mistakes can be mixed in: the program would then do something else.
        roles: The names of several roles, each trained in conversations of its own. A call names one by its model,
            ``policy/NAME``, or by its key, with ``/NAME`` behind it. The first is the one that solves the task.
        tasks: Tasks, or what :func:`~textenvs.data.sources.open_source` takes: a task set, or a file whose rows have a
            ``question`` (a text, or messages as ``prompt``) and perhaps an ``answer``; other columns go to the program
            in ``task.extra``. ``None`` for generated expressions, which the example plays.
        level: Short for ``tasks="generated:<level>"``: of :class:`~textenvs.envs.math_expression.MathExpression`.
        split: ``"train"`` or ``"test"``, of generated tasks and named data sets.
        seed: Which endless sequence of generated tasks.
        call_format: How the policy writes calls, as in :class:`~textenvs.tool_env.ToolEnv`.
        tools_in_prompt: Whether the system message describes the tools; else the model's chat template must.
        images: Whether the policy can be shown images; a call with one is refused otherwise.
        success: The result (what the program returned and the scorer, or else what was posted on the last turn; with
            ``roles``, of the first one alone) from which an episode ends as ``"solved"``, and not as ``"done"``.
        timeout: Seconds that the program may take between two calls of the model.
        max_assistant_turns: Truncate after so many replies; ``None`` leaves it to the program.
        max_contexts: End an episode whose program begins more conversations, as ``"program_error"``; ``None`` for no
            limit.
        **options: ``max_user_turns``, ``render_mode``.

    Raises:
        ValueError: ``agent`` and ``command`` together, a function that cannot be found, or a bad value.
        SandboxUnavailable: No sandbox isolates on this machine.
        ImportError: aiohttp is not installed (the extra ``serve``).
    """

    state_type: ClassVar[type[EpisodeState]] = AgentState
    levels = LEVELS
    attack_margin = 0.5
    own_attacks = ATTACKS

    @checked
    def __init__(
        self,
        agent: str | Callable[..., Any] | None = None,
        *,
        command: str | Sequence[str] | None = None,
        files: str | None = None,
        sandbox: bool | Mapping[str, Any] = False,
        serve: PositiveInt | None = None,
        scorer: str | Callable[..., Any] | None = None,
        posts: bool | None = None,
        expert: str | Callable[..., Any] | None = None,
        careless: str | Callable[..., Any] | None = None,
        record: str | None = None,
        roles: Sequence[str] | None = None,
        tasks: Source | Sequence[Task] = None,
        level: str | None = None,
        split: Split = "train",
        seed: int = 0,
        call_format: str = "hermes",
        tools_in_prompt: bool = True,
        images: bool = False,
        success: Weight = 1.0,
        timeout: Seconds = 100.0,
        max_assistant_turns: PositiveInt | None = 32,
        max_contexts: PositiveInt | None = None,
        **options: Any,
    ) -> None:
        if agent is not None and command is not None:
            raise ValueError("give either agent or command, not both: they are two ways to name the program")
        if files is not None and command is None:
            raise ValueError("files are for a command, which has a folder of its own; agent has none")
        if expert is not None and record is not None:
            raise ValueError("give either expert or record, not both: they are two ways to demonstrate")
        if sandbox and command is None:
            raise ValueError("sandbox is for a command; a function runs in this process")
        if serve is not None and command is None:
            raise ValueError("serve is for a command, which stays alive for many tasks; a function always does")
        make_format(call_format)  # which knows the names
        source: Any = tasks
        if isinstance(tasks, (list, tuple)) and any(isinstance(task, Task) for task in tasks):
            source = Rows("the program's tasks", source)
        super().__init__(
            open_source(source, READER, level=level, split=split, seed=seed),
            max_assistant_turns=max_assistant_turns,
            **options,
        )
        names = () if roles is None else make_of("roles", _role_names, roles)
        self.roles = names or self.roles
        self._example = agent in (None, EXAMPLE, example.arithmetic) and command is None
        if self._example:
            agent = example.arithmetic
            if record is None:
                expert, careless = expert or example.expert, careless or example.careless
        self._agent = None if agent is None else resolve("agent", agent)
        self._command: CommandSettings | None = None
        self._serving: Serving | None = None
        if command is not None:
            box = make_of("sandbox", CommandSandbox.of, sandbox)
            words = make_of("command", _words, command)
            if box is not None:
                box.check(words)
            self._command = CommandSettings(words, None if files is None else make_of("files", _folder, files), box)
            self._serving = None if serve is None else Serving.of(self._command, serve)
        self._record = None if record is None else make_of("record", Record, record)
        self._expert = None if expert is None else resolve("expert", expert)
        self._careless = None if careless is None else resolve("careless", careless)
        self._settings = Settings(
            name=self._command.words[0] if self._command else _name_of(self._agent),
            call_format=call_format,
            tools_in_prompt=tools_in_prompt,
            timeout=float(timeout),
            images=images,
            success=float(success),
            max_assistant_turns=max_assistant_turns,
            max_contexts=max_contexts,
            roles=names,
            posts=scorer is None if posts is None else posts,
            scorer=None if scorer is None else resolve("scorer", scorer),
        )
        self._probed: str | None = None

    # ------------------------------------------------------------------ episodes

    def begin(self, task: Task) -> Episode:
        return Episode(lambda url, channel: self._start(task, url, channel), task, self._settings)

    def _start(self, task: Task, url: str, channel: Channel) -> Program:
        visible = task if self._settings.scorer is None else without_answer(task)
        if self._command is not None:
            fields = task_fields(visible)
            if self._serving is not None:
                return self._serving.begin(fields, url, channel)
            return CommandProgram(self._command, fields, url, channel)
        assert self._agent is not None
        own = copy.deepcopy(visible)  # which the function may change
        return FunctionProgram(self._agent, own, f"{url}/v1", channel)

    def opening(self, task: Task) -> Sequence[Message]:
        opening = super().opening(task)
        self._note_tools()
        if self._live is not None and self._settings.roles:
            self.state.role = self._episode().role
        return opening

    def respond(self, reply: Message) -> Turn:
        turn = super().respond(reply)
        self._note_tools()
        return turn

    def _note_tools(self) -> None:
        """Keep the tools of the current call in the state, if the program runs."""
        if self._live is None:
            return
        self.state.tools = self._episode().tools
        if self._probed not in (None, self.state.tools) and self.tools_not_in_prompt:
            raise EnvironmentFailure(
                "tool_failed",
                f"{self._settings.name}: its tools differ between calls, and the chat template was given those of the "
                "first; leave tools_in_prompt=True",
            )

    def _episode(self) -> Episode:
        running = self._running()
        assert isinstance(running, Episode)
        return running

    def attacks(self) -> Sequence[Attack]:
        own = super().attacks()
        return own if self._example else [attack for attack in own if attack not in ATTACKS]

    def secrets(self) -> Sequence[str]:
        """Return the ground truth, until a tool was called: its result may be the answer."""
        called = any(message["role"] == "tool" for message in self.state.messages)
        return () if called else super().secrets()

    def reveals(self, reply: Message) -> bool:
        """Return ``True``: a program may say what it likes."""
        return True

    # ------------------------------------------------------------------ tools

    @property
    def format(self) -> CallFormat:
        """The format in which the policy writes calls of the program's tools."""
        return format_of(self._settings.call_format, self._tools())

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        return self.format.tools

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        schemas: list[dict[str, Any]] = json.loads(self._tools())
        return schemas

    @property
    def tools_not_in_prompt(self) -> list[dict[str, Any]]:
        """The schemas that a policy must be given because the conversation does not have them; mostly none."""
        in_prompt = self._settings.tools_in_prompt and self._settings.call_format != "native"
        return [] if in_prompt else self.tool_schemas

    def _tools(self) -> str:
        """Return the tools of the running episode; before the first, those of one that is begun for this."""
        if self.state.tools:
            return self.state.tools
        if self._probed is None:
            probe = self.fork()
            try:
                probe.reset(seed=0)
                self._probed = probe.state.tools
            finally:
                probe.close()
        return self._probed

    # ------------------------------------------------------------------ scripts

    @property
    def scripts(self) -> frozenset[str]:
        hooks = {"demonstration": self._record or self._expert, "careless_reply": self._careless}
        return frozenset(name for name, function in hooks.items() if function is not None)

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        if self._record is not None:
            running = self._episode()
            return self._spelled(self._record.reply(self.task, self.state.assistant_turns, running.messages))
        return self._scripted("expert", self._expert, rng)

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        return self._scripted("careless", self._careless, rng)

    def _scripted(self, option: str, function: Callable[..., Any] | None, rng: np.random.Generator) -> str | Message:
        if function is None:
            raise NotImplementedError(f"{self._settings.name} has no scripted replies; name a function with {option}=")
        return self._spelled(function(self.task, self._read_messages(), rng))

    def _spelled(self, reply: str | Message) -> str | Message:
        """Return a reply as the policy would write it."""
        if isinstance(reply, str):
            return self.format.write(reply)
        return self.format.write(text_of(reply), reply.get("tool_calls", ()))

    def _read_messages(self) -> Messages:
        """Return the conversation with the calls of its replies read."""
        return tuple(map(self._with_calls, self.state.messages))

    def _with_calls(self, message: Message) -> Message:
        if message["role"] != "assistant" or message.get("tool_calls"):
            return message
        parsed = self.format.parse(message)
        return {**message, "content": parsed.text, "tool_calls": parsed.calls} if parsed.calls else message


def _words(command: str | Sequence[str]) -> tuple[str, ...]:
    words = shlex.split(command) if isinstance(command, str) else command
    if not isinstance(words, Sequence) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError(f"it must be a command or a list of its words, not {command!r}")
    return tuple(words)


def _role_names(roles: Sequence[str]) -> tuple[str, ...]:
    if isinstance(roles, str) or not isinstance(roles, Sequence) or not roles:
        raise ValueError(f"it must be a list of names, such as ['solver', 'verifier'], not {roles!r}")
    for name in roles:
        if not isinstance(name, str) or not _ROLE.fullmatch(name):
            raise ValueError(f"a name has 1 to 64 letters, digits, dots, hyphens and underscores, not {name!r}")
        if name == "user":  # it is told when its words were cut
            raise ValueError("'user' is the role of a simulated user; choose another name, such as 'customer'")
    if len(set(roles)) < len(roles):
        raise ValueError(f"a name is there twice: {', '.join(roles)}")
    return tuple(roles)


def _folder(files: str) -> Path:
    path = Path(files).expanduser().absolute()
    if not path.is_dir():
        raise ValueError(f"{path} is no folder")
    return path


def _name_of(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__name__)}"
