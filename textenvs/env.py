"""The environment contract: a multi-turn text task as a true Gymnasium environment (docs/architecture.md).

An author writes two hooks, plain or ``async``::

    class Guess(TextEnv):
        def opening(self, task):                      # the messages the episode starts with
            return [user(task.question)]

        def respond(self, reply):                     # judge one assistant message, and answer it
            solved = visible_text(reply) == task.ground_truth
            return Turn(messages=[] if solved else [user("No. Again.")], terms={"correct": float(solved)},
                        terminated=solved, stop="solved" if solved else None)

and gets both ``reset``/``step`` (Gymnasium) and ``areset``/``astep`` (their async twins), budgets, snapshots and forks.
A turn happens as a whole or not at all: a hook that raises (or is cancelled) leaves the episode as it was before.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Self

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from .actions import as_reply, marks_of, separated
from .attack import COMMON, Attack
from .event_loop import finish_in_thread, settle, wait_for
from .messages import (
    Message,
    Messages,
    check_conversation,
    clean_messages,
    clean_text,
    copy_messages,
    transcript,
)
from .options import PositiveInt, checked
from .privileged import Privilege, privileged_of
from .reasoning import Spans
from .spaces import AssistantTurn, Conversation
from .task import Rows, Task, TaskSet
from .text import plural, printable
from .turn import (
    FAILURE_STOPS,
    LARGEST,
    NO_ROOM_STOPS,
    EnvironmentFailure,
    EpisodeState,
    NoDemonstration,
    StateT,
    Turn,
    check_numbers,
    conversations_of,
    copy_state,
    enter_context,
    enter_context_of_role,
    payment,
    transcript_of,
)

__all__ = [
    "FAILURE_STOPS",
    "LARGEST",
    "NO_ROOM_STOPS",
    "EnvironmentFailure",
    "EpisodeState",
    "NoDemonstration",
    "TextEnv",
    "Turn",
    "check_numbers",
]

ResetResult = tuple[Messages, dict[str, Any]]
StepResult = tuple[Messages, float, bool, bool, dict[str, Any]]

_OPTIONS = {"task_index", "task"}  # of reset
# How many indices an endless task set is sampled from: large enough that repeats are rare, small enough for int32.
_ENDLESS = 2**31 - 1


class TextEnv(gymnasium.Env[Messages, "str | Message"], Generic[StateT]):
    """Base class of all text environments; see the module's docstring for the contract.

    Args:
        tasks: The task set to draw from, or a list of tasks.
        max_assistant_turns: Truncate after this many assistant messages; ``None`` for no limit.
        max_user_turns: Truncate when the assistant has replied and the user has no turn left, counting the user's
            messages after the opening (of each context); ``None`` for no limit.
        system_prompt: Put before the opening, and before a context, as a system message when it has none; ``None`` for
            none.
        render_mode: ``"ansi"`` (``render()`` returns the transcript), ``"human"`` (each step prints it) or ``None``.
        reasoning_marks: What stands before and after a policy's private reasoning, as pairs, where it is not one of
            :data:`~textenvs.reasoning.REASONING_MARKS`; none of these counts then. The reasoning of a reply becomes its
            ``reasoning_content``.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "human"], "render_fps": 1}  # type: ignore[misc]
    #: The state class of this family.
    state_type: ClassVar[type[EpisodeState]] = EpisodeState
    #: Whether a step may block the thread (a sandbox, a synchronous client); who runs many at once then gives each a
    #: thread. So do ``areset`` and ``astep``, which would block the loop; cancelled, they undo the turn when it ends.
    blocking: ClassVar[bool] = False
    #: Who acts by ``step``, first the one that the opening is for (or ``opening`` sets ``state.role``); of several,
    #: ``info["role"]`` names the one whose turn it is, and a turn may begin that of another (``Turn(role=...)``). Turns
    #: and their limit are counted over all of them; a step's reward is the sum of what they earned.
    roles: tuple[str, ...] = ("assistant",)
    #: Whether an episode can succeed, which is to terminate with ``stop="solved"``. Where it cannot (both players of a
    #: game act by ``step``, another library ends the episode), this is false, ``info["has_success"]`` says so, and no
    #: report has a share of solved episodes.
    has_success: bool = True
    #: The values of the option ``level``, easiest first; none where there is no such option.
    levels: ClassVar[tuple[str, ...]] = ()
    #: How far every attack's mean return stays below the expert's, as a share of the range from doing nothing to the
    #: expert (:func:`textenvs.audit.subject.floor_of`); at least 0.1.
    attack_margin: ClassVar[float] = 0.1
    #: This family's attacks (``textenvs/envs/<family>/attacks.py``). None may come near the expert.
    own_attacks: ClassVar[Sequence[Attack]] = ()
    #: This family's script (``textenvs/envs/<family>/script.py``): an hour's work from what training tasks show. Its
    #: return on test tasks says how much of the family needs no model. ``None`` where there is none.
    own_script: ClassVar[Attack | None] = None

    state: StateT

    @checked
    def __init__(
        self,
        tasks: TaskSet | Sequence[Task],
        *,
        max_assistant_turns: PositiveInt | None = None,
        max_user_turns: PositiveInt | None = None,
        system_prompt: str | None = None,
        render_mode: str | None = None,
        reasoning_marks: Sequence[Sequence[str]] | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode must be None or one of {self.metadata['render_modes']}, not {render_mode!r}")
        if not isinstance(tasks, TaskSet):
            tasks = Rows(f"the tasks of {type(self).__name__}", tasks)
        if tasks.size == 0:
            raise ValueError(f"{tasks.name} has no tasks to draw from")
        self.tasks = tasks
        self.max_assistant_turns = max_assistant_turns
        self.max_user_turns = max_user_turns
        self.system_prompt = system_prompt
        self.render_mode = render_mode
        self.reasoning_marks = marks_of(reasoning_marks)
        self.observation_space = Conversation()
        self.action_space = AssistantTurn()
        self.state = self.state_type()  # type: ignore[assignment]
        self._printed = 0  # how many messages render_mode="human" has printed
        self._owner = True  # of what cleanup() releases; a fork only borrows it

    # ------------------------------------------------------------------ hooks of an author

    def opening(self, task: Task) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Return the messages that an episode starts with; by default the task's prompt. ``self.state`` is fresh."""
        return task.prompt

    def respond(self, reply: Message) -> Turn | Awaitable[Turn]:
        """Judge ``reply`` (already in ``self.state.messages``) and answer it.

        If this raises anything but :class:`EnvironmentFailure`, the exception goes to the caller of ``step`` and the
        episode is as it was before the action, so that the same step can be tried again.
        """
        raise NotImplementedError(f"{type(self).__name__} must define respond(reply) -> Turn")

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """Return the scripted expert's next reply in the episode's state; ``rng`` is the expert's own.

        :class:`NoDemonstration`: there is none of this task, and training takes another one.
        """
        raise NotImplementedError(f"{type(self).__name__} has no scripted demonstrations")

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """Return a next reply in the right form and mostly wrong: mistakes to mix with demonstrations."""
        raise NotImplementedError(f"{type(self).__name__} has no scripted careless replies")

    @property
    def scripts(self) -> frozenset[str]:
        """The scripted hooks that this environment has: ``"demonstration"``, ``"careless_reply"``."""
        names = ("demonstration", "careless_reply")
        return frozenset(name for name in names if getattr(type(self), name) is not getattr(TextEnv, name))

    @property
    def task(self) -> Task:
        """The running episode's task; ``RuntimeError`` before the first reset."""
        if self.state.task is None:
            raise RuntimeError(f"{type(self).__name__} has no task before its first reset")
        return self.state.task

    def attacks(self) -> Sequence[Attack]:
        """Return the attacks on this environment: the common ones, and its own."""
        return (*COMMON, *self.own_attacks)

    def secrets(self) -> Sequence[str]:
        """Return the texts that only the environment may know in this episode; by default the ground truth.

        None of them may stand in an observation or in ``info`` before the policy said it itself; tests look for them.
        Leave out what a policy may find out by asking.
        """
        task = self.state.task
        return () if task is None or task.ground_truth is None else (str(task.ground_truth),)

    def privileged(self, kind: Privilege, rng: np.random.Generator) -> str | None | Awaitable[str | None]:
        """Return a text of this state that a teacher may read and the policy may not; by default by what there is.

        Training asks for it before a reply, where ``actor.distill`` shows a teacher more than the policy sees; it goes
        into no observation and no ``info``. Nothing may change by it. By default ``"goal"`` is what a user who holds
        something back wants (:class:`~textenvs.users.base.HasUser`), ``"answer"`` the task's ground truth, and
        ``"expert"`` the next reply of :meth:`demonstration`, with the expert's own ``rng``. ``None``: not in this state
        or for this task. NotImplementedError: the environment has nothing of this kind.
        """
        return privileged_of(self, kind, rng)

    def twin(self, task: Task) -> Task | None:
        """Return a task that differs from ``task`` in its ground truth alone; ``None`` where there is none.

        Its prompt is that of ``task``, and so is what the user knows, the world and the tools; another answer is right.
        The audit (``textenvs audit``, check ``twins``) gives both tasks the same replies: the answers to them must use
        the same words, or they disclose what is right.
        """
        return None

    def twin_worlds(self, task: Task) -> Sequence[tuple[str, Sequence[Task]]]:
        """Return tasks that differ in one fact alone, for facts that a solution must find out; by default none.

        Each entry is a fact in words, and tasks with the same opening in which it has different values and which
        require different ends; the first has the value of ``task``. Whatever shows the fact may differ between them,
        and nothing else: a policy that never looks is right in one of them at most. The audit (check ``reads``) plays
        the expert's replies to one in all others.
        """
        return ()

    def reveals(self, reply: Message) -> bool:
        """Return whether the answer to ``reply`` depends on the ground truth by design; ``False`` by default.

        For a user that says whether an answer is right, and for one that is asked for the very thing that differs
        between ``task`` and ``twin(task)``. Called before the reply is played, with the episode as it stands.
        """
        return False

    def conversation_score(self) -> Mapping[str, float] | Awaitable[Mapping[str, float]]:
        """Return named scores of the conversation as it stands; by default the return so far.

        The multiturn-aware reward (:mod:`textenvs.lookahead`) scores futures by it. It may be asked for after any turn
        and must change nothing. A family that is judged as a whole returns its task scores here, each from 0 to 1 and
        the same names every time, for example ``{"accuracy": 1.0}``. It may raise :class:`EnvironmentFailure`.
        """
        return {"return": self.state.return_so_far}

    def spent_budget(self, messages: Sequence[Message]) -> str | None:
        """Return the budget that a turn of these messages exhausts; ``None``: the episode may continue."""
        state = self.state
        if self.max_user_turns is not None and state.user_turns >= self.max_user_turns and _speaks(messages):
            return "max_user_turns"
        if self.max_assistant_turns is not None and state.assistant_turns >= self.max_assistant_turns:
            return "max_assistant_turns"
        return None

    def cleanup(self) -> None | Awaitable[None]:
        """Release what this environment holds; called by ``close``, perhaps more than once, but never by a fork's."""

    # ------------------------------------------------------------------ Gymnasium

    @property
    def np_random(self) -> np.random.Generator:
        """The randomness of the episode; made from its seed when it is first needed."""
        if self._np_random is None and self._np_random_seed is not None:
            self._np_random, self._np_random_seed = seeding.np_random(self._np_random_seed)
        return super().np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        gymnasium.Env.np_random.fset(self, value)  # type: ignore[attr-defined]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Start an episode.

        Args:
            seed: Decides the task and all randomness of the episode.
            options: ``{"task_index": i}`` picks a task of the set, ``{"task": row_or_Task}`` brings one along.

        Returns:
            The opening conversation and ``info`` with ``task_key``, ``task_index``, ``data_source``; and with
            ``has_success``, which is then ``False``, where episodes cannot succeed.

        Raises:
            ValueError: Unknown options, or a task that is not there or cannot be played. After this or any other
                exception there is no episode to step in.
        """
        with self._opened_or_not():
            return wait_for(self._begin_episode(seed, options))

    def step(self, action: str | Message) -> StepResult:
        """Play one assistant turn.

        Args:
            action: The assistant's raw text, or an assistant message.

        Returns:
            ``(conversation, reward, terminated, truncated, info)``. The conversation extends the last one, or is
            another context (:attr:`EpisodeState.contexts` has those that were left). ``info`` has ``terms`` (they sum
            to the reward), ``metrics``, ``stop`` (why the episode ended, else ``None``), ``failed`` and what identifies
            the task; with several :attr:`roles`, ``role``: whose the conversation is, and who acts next in it (as in
            ``reset``); where the step also pays earlier turns, ``earlier``: their terms, by turn, and ``own_terms``:
            those of this turn alone (``terms`` are all of these, added by name); where the observation is of another
            conversation, ``closing``: what the turn added to the one that is left, the reply first; at the end
            ``user_messages``, where a model plays the user, and ``failure`` of an episode that failed, or ``reason``
            where the stop of another one needs words.

        Raises:
            gymnasium.error.ResetNeeded: The episode is over or was never started.
            gymnasium.error.InvalidAction: ``action`` is neither a string nor a well-formed assistant message.
        """
        with self._played_or_not():
            return wait_for(self._play(action))

    def render(self) -> str | None:  # type: ignore[override]
        """Return the transcript (``"ansi"``), or print its new part and return ``None`` (``"human"``).

        A line says where a context begins or continues. Control characters of models, users and tools are escaped: a
        transcript must not drive the terminal.
        """
        if self.render_mode == "ansi":
            return printable(transcript_of(self.state))
        if self.render_mode == "human":
            new = self.state.messages[self._printed :]
            self._printed = len(self.state.messages)
            if new:
                print(printable(transcript(new)), flush=True)
        return None

    def close(self) -> None:
        if self._owner:
            wait_for(self.cleanup())

    # ------------------------------------------------------------------ async twins

    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        with self._opened_or_not():
            if self.blocking:
                return await finish_in_thread(lambda: wait_for(self._begin_episode(seed, options)))
            return await settle(self._begin_episode(seed, options))

    async def astep(self, action: str | Message) -> StepResult:
        with self._played_or_not():
            if self.blocking:
                return await finish_in_thread(lambda: wait_for(self._play(action)))
            return await settle(self._play(action))

    async def aclose(self) -> None:
        if self.blocking:
            await finish_in_thread(self.close)
        elif self._owner:
            await settle(self.cleanup())

    # ------------------------------------------------------------------ snapshots

    def snapshot(self) -> StateT:
        """Return a picklable copy of the episode as it stands, for :meth:`restore` here or in another process."""
        saved = copy_state(self.state)
        saved.rng = dict(self.np_random.bit_generator.state)
        return saved

    def restore(self, state: StateT, seed: int | None = None) -> None:
        """Continue from a snapshot: the same actions then give the same results.

        Args:
            state: Of :meth:`snapshot`.
            seed: Reseed the randomness, for futures that differ, as :meth:`fork` does.
        """
        if not isinstance(state, self.state_type):
            raise TypeError(f"{type(self).__name__} restores a {self.state_type.__name__}, not {type(state).__name__}")
        if state.rng is None:
            raise ValueError("this state has no RNG state; restore() takes what snapshot() returned")
        bit_generator = getattr(np.random, state.rng["bit_generator"])()
        bit_generator.state = state.rng
        self.np_random = np.random.Generator(bit_generator)
        if seed is not None:
            self._np_random, self._np_random_seed = seeding.np_random(seed)
        self.state = copy_state(state)
        self.state.rng = None
        self._printed = 0

    def fork(self, seed: int | None = None) -> Self:
        """Return an independent environment in the same state; closing it releases nothing that is shared.

        Args:
            seed: Reseed the fork's randomness, for futures that differ; ``None`` continues the same stream.
        """
        child = copy.copy(self)
        child._owner = False
        child.state = copy_state(self.state)
        child.observation_space, child.action_space = copy.deepcopy((self.observation_space, self.action_space))
        if seed is None:
            child._np_random = copy.deepcopy(self.np_random)
        else:
            child._np_random, child._np_random_seed = seeding.np_random(seed)
        return child

    # ------------------------------------------------------------------ inside
    #
    # _begin_episode and _play run plain hooks at once, in the caller's thread, and return the result; only what an
    # asynchronous hook leaves to be awaited comes back as a coroutine. So both interfaces are one piece of code.

    @contextmanager
    def _opened_or_not(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.state = self.state_type()  # type: ignore[assignment]
            raise

    @contextmanager
    def _played_or_not(self) -> Iterator[None]:
        before, randomness = copy_state(self.state), self.np_random.bit_generator.state
        try:
            yield
        except BaseException:  # an interrupt or a cancelled task would leave half a turn, too
            self.np_random.bit_generator.state = randomness
            self.state = before
            raise

    def _begin_episode(
        self, seed: int | None, options: dict[str, Any] | None
    ) -> ResetResult | Coroutine[Any, Any, ResetResult]:
        super().reset(seed=seed)
        index, task = self._pick(options or {})
        self.state = self.state_type(task=task, task_index=index, role=self.roles[0])  # type: ignore[assignment]
        self._printed = 0
        opening = self.opening(task)
        return self._open_later(opening) if inspect.isawaitable(opening) else self._open(opening)

    async def _open_later(self, opening: Awaitable[Sequence[Message]]) -> ResetResult:
        return self._open(await opening)

    def _open(self, opening: Sequence[Message]) -> ResetResult:
        messages = clean_messages(check_conversation(opening, f"{type(self).__name__}.opening"))
        messages = self._with_system_prompt(messages)
        if not messages:
            raise ValueError(f"{type(self).__name__}.opening returned no message; an episode starts with at least one")
        self.state.messages = messages
        if self.render_mode == "human":
            self.render()
        return copy_messages(messages), self._identity()

    def _with_system_prompt(self, messages: Messages) -> Messages:
        if self.system_prompt is None or (messages and messages[0]["role"] == "system"):
            return messages
        return ({"role": "system", "content": self.system_prompt}, *messages)

    def _play(self, action: str | Message) -> StepResult | Coroutine[Any, Any, StepResult]:
        try:
            turn = self._ask(action)
        except EnvironmentFailure as failure:
            return self._fail(failure)
        if not isinstance(turn, Turn) and inspect.isawaitable(turn):
            return self._play_later(turn)
        return self._conclude(turn)

    async def _play_later(self, turn: Awaitable[Turn]) -> StepResult:
        try:
            return self._conclude(await turn)
        except EnvironmentFailure as failure:
            return self._fail(failure)

    def _ask(self, action: str | Message) -> Turn | Awaitable[Turn]:
        """Begin a turn: pass the action to the hook. ``_conclude`` or ``_fail`` ends it."""
        state = self.state
        if not state.messages or state.done:
            raise gymnasium.error.ResetNeeded(
                f"{type(self).__name__}: the episode is {'over' if state.done else 'not started'}; call reset() first"
            )
        reply = as_reply(action, state.messages)
        if self.reasoning_marks is not None:
            reply = separated(reply, self.reasoning_marks, self._call_spans)
        state.messages = (*state.messages, reply)
        state.assistant_turns += 1
        return self.respond(reply)

    def _call_spans(self, text: str) -> Spans:
        """Return the places of tool calls in a reply's text; here none."""
        return ()

    def _fail(self, failure: EnvironmentFailure) -> StepResult:
        self.state.truncated, self.state.stop = True, failure.stop
        extra = {} if failure.stop in NO_ROOM_STOPS else {"failure": clean_text(failure.reason)}
        return self._result(Turn(reward=0.0), 0.0, {"reward": 0.0}, **extra)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for options that no ``reset`` takes; its text is about the options and no task."""
        if unknown := set(options) - _OPTIONS:
            raise ValueError(f"unknown reset options {sorted(map(str, unknown))}; known are 'task_index' and 'task'")
        index, size = options.get("task_index"), self.tasks.size
        if index is None:
            return
        if options.get("task") is not None:
            raise ValueError("give either options['task'] or options['task_index'], not both")
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)) or index < 0:
            raise ValueError(f"options['task_index'] must be an integer of at least 0, not {index!r}")
        if size is not None and index >= size:
            raise ValueError(f"options['task_index'] is {index}, but {self.tasks.name} has {plural(size, 'task')}")

    def _pick(self, options: Mapping[str, Any]) -> tuple[int, Task]:
        if options:
            self.check_options(options)
        if (row := options.get("task")) is not None:
            return -1, row if isinstance(row, Task) else Task.from_row(row, key="given", where="options['task']")
        index = options.get("task_index")
        if index is None:
            index = self.np_random.integers(_ENDLESS if self.tasks.size is None else self.tasks.size)
        return int(index), self.tasks[int(index)]

    def _conclude(self, turn: Turn) -> StepResult:
        if not isinstance(turn, Turn):
            raise TypeError(f"{type(self).__name__}.respond must return a Turn, not {type(turn).__name__}")
        state, size = self.state, len(self.state.messages) - 1  # without the reply
        assert turn.reward is not None
        reward, terms = turn.reward, {**turn.terms}
        if turn.earlier:
            reward, terms = payment(turn, state.assistant_turns - 1)
        state.return_so_far += reward
        if not (turn.terminated or turn.messages or turn.context):
            raise ValueError(f"{type(self).__name__}.respond: a turn that does not terminate must say something")
        current, context, news = (*state.messages, *turn.messages), turn.context, turn.messages
        contexts, owners, start, waiting = state.contexts, state.context_roles, 0, state.waiting
        role, extra = turn.role or state.role, dict[str, Messages]()
        if role != state.role:
            current, context, waiting = conversations_of(state, turn, self.roles)
        if context is not None:
            context = self._with_system_prompt(context)
            if len(self.roles) == 1:
                contexts, start = enter_context(contexts, current, context)
            else:
                contexts, owners, start = enter_context_of_role(state, current, context, role)
            news = (*news, *(context[start:] if start else ()))  # what a context begins with is an opening
        spent = None if turn.terminated else self.spent_budget(news)
        if spent != "max_user_turns":  # the user has no turn left: nothing more is said
            state.messages, state.waiting, state.role = current, waiting, role
            if context is not None:
                self._print_context(contexts, start)
                if contexts is not state.contexts:
                    extra["closing"] = copy_messages(current[size:])
                state.messages, state.contexts, state.context_roles = context, contexts, owners
            state.user_turns += not turn.terminated and _speaks(news)
        state.terminated, state.truncated, state.stop = turn.terminated, spent is not None, spent or turn.stop
        return self._result(turn, reward, terms, **extra)

    def _print_context(self, contexts: tuple[Messages, ...], start: int) -> None:
        """Print the rest of a conversation that is left, and that another one begins, or continues after ``start``."""
        if self.render_mode != "human" or contexts is self.state.contexts:
            return
        self.render()
        self._printed = start
        print(f"[a context of {plural(start, 'message')} continues]" if start else "[a context begins]", flush=True)

    def _identity(self) -> dict[str, Any]:
        task = self.task
        names = {"task_key": task.key, "task_index": self.state.task_index, "data_source": task.data_source}
        if not self.has_success:
            names["has_success"] = False
        return names if len(self.roles) == 1 else {**names, "role": self.state.role}

    def _result(self, turn: Turn, reward: float, terms: dict[str, float], **extra: Any) -> StepResult:
        state = self.state
        info = {
            **self._identity(),
            "terms": terms,
            "metrics": {**turn.metrics},
            "assistant_turns": state.assistant_turns,
            "user_turns": state.user_turns,
            "stop": state.stop,
            "failed": "failure" in extra,
            **extra,
        }
        if turn.earlier:
            info["earlier"] = {number: {**parts} for number, parts in turn.earlier.items()}
            info["own_terms"] = {**turn.terms}
        if state.user_side and state.done:
            info["user_messages"] = copy_messages(state.user_side)
        if self.render_mode == "human":
            self.render()
        return copy_messages(state.messages), reward, state.terminated, state.truncated, info


def _speaks(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "user" for message in messages)


def check_env(what: str, env: Any) -> None:
    """Raise ``TypeError`` unless ``env`` is a text environment itself, which can be forked."""
    if not isinstance(env, TextEnv):
        hint = "its unwrapped" if isinstance(env, gymnasium.Env) else "textenvs.make(...)"
        raise TypeError(f"{what} forks a TextEnv, and this is a {type(env).__name__}; give {hint}")
