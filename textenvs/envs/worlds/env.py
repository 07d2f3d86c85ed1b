"""Worlds of applications that are drawn from a seed: find out, keep the rules, change what has to be changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from ...data.sources import Reader, Source, open_source, verl_row
from ...env import EpisodeState, Turn
from ...messages import Message, system, text_of
from ...messages import user as user_message
from ...options import Cost, Gain, PositiveInt, Price, checked
from ...task import Split, Task
from ...tool_env import ToolEnv
from ...tools.call_format import CallFormat
from ...tools.toolbox import Toolbox, ToolResult
from ...users.base import Entitled, UserView
from ...users.guard import asking_sentences
from ...users.moves import Move, move_metrics
from .attacks import ATTACKS
from .expert import careless_move, next_move
from .goals import End, differences
from .patterns import Goals
from .story import Story, is_report, to_json
from .tasks import WorldTasks, rules_in_short, story_of_task, twin_tasks
from .tools import ToolKit, WorldState, kit_of
from .user import PATIENCE, answer_to, facts_of
from .view import with_cell
from .world import LEVELS, Level


class Worlds(ToolEnv[WorldState]):
    """Serve a user in a world of applications: the right changes, nothing else, and the right answer.

    Every task is in a world that a seed draws: applications with their records, what all of it is called, and rules of
    the house. The user asks for something that takes several of them; what only the user knows can be asked for, in
    words without a call. The tool ``finish`` ends the episode: ``stop`` is ``"solved"`` or ``"unsolved"``, or
    ``"user_left"`` after words that led nowhere. It is solved when the store differs from its beginning as the goal and
    the rules require and in nothing else, and the answer, if one was asked for, is right.

    The reward's terms: ``success`` (once, when it ends solved), ``progress`` (what the share of the required
    differences that are there, less that of the wrong ones, has changed; over the episode this sums to the share at the
    end), ``turn`` and ``tool_error`` (for each call that did not work). Metrics, of every turn: ``share``, ``wrong``
    (differences that should not be), and ``events``.

    Args:
        tasks: ``None`` for generated tasks; a ``.parquet`` file of such rows; or a task set.
        level: ``"easy"`` (the default), ``"medium"`` or ``"hard"``: more applications, records, rules and references to
            follow, and from ``"medium"`` on details that the user holds back, calls that fail for a while, and values
            that others change; at ``"hard"`` goals of several programs.
        split: ``"train"`` or ``"test"``: no world and no phrase of a request is in both.
        seed: Which endless sequence of worlds. (Episodes are seeded by ``reset``.)
        worlds: How many worlds the tasks are in; ``None``: each has its own.
        applications: The applications to draw from; ``None`` for all.
        record_kinds: How many kinds of records a world has at most, people among them; ``None``: all of its
            applications, 6 to 9 at ``"easy"``. Few make short prompts.
        goals: Which goals by their pattern, that is, without names and values: ``"all"``, ``"train"`` (four fifths of
            the patterns, by a hash) or ``"test"`` (the others). ``split`` does not decide it, so that each can be held
            out alone.
        prompt: ``"full"`` or, for small policies that imitate, ``"short"``: without what is the same in all worlds
            (what to do, how to call), and of the tools only their names and those of the arguments.
        success: The reward of a solved task; above 0.
        progress: The weight of the share of the task that is done; at least 0.
        turn: Added on every turn; at most 0.
        tool_error: Added for every call that did not work; at most 0.
        call_format: As in :class:`~textenvs.tool_env.ToolEnv`, but for ``"native"``: every world has tools of its own,
            which the system prompt describes.
        max_assistant_turns: How many replies there are; ``None`` for no limit.
        **options: ``max_calls_per_turn``, ``max_user_turns``, ``render_mode``, as in
            :class:`~textenvs.tool_env.ToolEnv`.

    Raises:
        ValueError: Both ``tasks`` and an option of generated tasks, or a value outside the above.
        TaskError: Rows that are no tasks of generated worlds.
    """

    state_type: ClassVar[type[EpisodeState]] = WorldState
    levels: ClassVar[tuple[str, ...]] = LEVELS
    attack_margin: ClassVar[float] = 0.5
    own_attacks = ATTACKS
    term_names: ClassVar[tuple[str, ...]] = ("success", "progress", "turn", "tool_error")
    #: Whether every world has tools of its own.
    tools_differ: ClassVar[bool] = True

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        level: Level | None = None,
        split: Split = "train",
        seed: int = 0,
        worlds: PositiveInt | None = None,
        applications: Sequence[str] | None = None,
        record_kinds: PositiveInt | None = None,
        goals: Goals = "all",
        prompt: Literal["full", "short"] = "full",
        success: Gain = 1.0,
        progress: Price = 0.5,
        turn: Cost = 0.0,
        tool_error: Cost = 0.0,
        call_format: str = "hermes",
        max_calls_per_turn: int = 8,
        max_assistant_turns: int | None = 80,
        **options: Any,
    ) -> None:
        if call_format == "native" and self.tools_differ:
            raise ValueError("call_format='native' has no tools in the prompt, and every world has tools of its own")
        if tasks is None:
            tasks = WorldTasks(level or "easy", seed, split, worlds, applications, record_kinds, goals)
        elif (worlds, applications, record_kinds, goals) != (None, None, None, "all"):
            raise ValueError(
                "give either tasks, or worlds, applications, record_kinds and goals: these are of generated tasks"
            )
        else:
            tasks = open_source(tasks, READER, level=level, split=split, seed=seed)
        self.call_format, self.max_calls_per_turn, self.prompt = call_format, max_calls_per_turn, prompt
        super().__init__(
            tasks,
            (),
            call_format=call_format,
            max_calls_per_turn=max_calls_per_turn,
            max_assistant_turns=max_assistant_turns,
            **options,
        )
        self.success, self.progress, self.turn, self.tool_error = success, progress, turn, tool_error

    # ------------------------------------------------------------------ the tools of the episode's world

    @property
    def kit(self) -> ToolKit | None:
        """The tools of the episode's world; ``None`` before the first episode."""
        story = self.state.story
        return None if story is None else kit_of(story.world, self.call_format, self.max_calls_per_turn)

    @property
    def toolbox(self) -> Toolbox:
        return super().toolbox if self.kit is None else self.kit.toolbox

    @property
    def format(self) -> CallFormat:
        return super().format if self.kit is None else self.kit.format

    def tool_instructions(self) -> str:
        if self.kit is None:
            return ""
        return self.kit.instructions if self.prompt == "full" else self.kit.names

    # ------------------------------------------------------------------ hooks

    def opening(self, task: Task) -> Sequence[Message]:
        state, story = self.state, story_of_task(task)
        state.story, state.store, state.incidents = story, story.store, story.incidents
        state.disclosed = (0,) * len(story.details)
        return (
            task.prompt
            if self.prompt == "full"
            else (system(rules_in_short(story.world, story.split)), *task.prompt[1:])
        )

    def after_tools(self, reply: Message, results: Sequence[ToolResult]) -> Turn:
        """Return the results, and word of what has happened meanwhile."""
        state, story = self.state, self.story
        messages = self.tool_messages(results)
        for event in story.events[state.happened :]:
            # Nothing changes after the policy has begun with what is to be done: it may not be able to undo that.
            begun = story.is_begun(state.store) or state.reports
            if state.incidents.calls >= event.after and state.final is None and not begun:
                state.store = with_cell(story.world.schema, state.store, event.cell, event.value)
                state.happened += 1
                messages.append(user_message(event.notice))
        return self._turn(messages, sum(not result.ok for result in results))

    def answer(self, reply: Message) -> Turn:
        """Let the user answer: with a detail that was asked for, or that there is nothing to say."""
        state = self.state
        disclosed, text, move = answer_to(self.story, state.disclosed, self.visible_reply(reply), state.idle)
        state.idle += disclosed == state.disclosed
        state.disclosed = disclosed
        return self._turn([user_message(text)], move=move)

    def user_view(self) -> UserView:
        """Return the user's view: its request, and the details that it holds back."""
        state, story = self.state, self.story
        goal = "\n".join([story.request, *(saying for detail in story.details for saying in detail.says)])
        disclosed = sum(count > 0 for count in state.disclosed)
        recovered = disclosed / len(story.details) if story.details else 1.0
        return UserView(goal, self.talk(), disclosed=disclosed, recovered=recovered, facts=facts_of(story))

    def user_may(self, reply: Message) -> Entitled:
        """Allow the details that a question of the reply names."""
        text, context = self.visible_reply(reply), " ".join(map(text_of, self.talk()))
        facts = [fact for fact, count in zip(facts_of(self.story), self.state.disclosed, strict=True) if not count]
        sentences = asking_sentences(text)
        requested = [fact for fact in facts if fact.named and any(map(fact.named, sentences))]
        rest = [fact for fact in facts if fact not in requested]

        def problem(answer: str) -> str | None:
            too_much = any(fact.tells(answer, f"{context} {text}") for fact in rest)
            return "it tells what the assistant did not ask for" if too_much else None

        return Entitled(bool(requested), problem)

    @property
    def story(self) -> Story:
        if self.state.story is None:
            raise RuntimeError(f"{type(self).__name__} has no story before its first reset")
        return self.state.story

    def _turn(self, messages: Sequence[Message], errors: int = 0, move: Move | None = None) -> Turn:
        state, story = self.state, self.story
        right = story.ends[state.happened]
        share, wrong, parts = _share(story, state, right)
        stop = "user_left" if state.idle >= PATIENCE else None
        solved = False
        if state.final is not None:
            answer, refused = state.final
            answered = right.answer is not None and story.is_answer(answer, right.answer)
            share += answered + (right.refused in refused)
            wrong += len(refused - {right.refused, *right.left_out})
            solved = share == parts and not wrong
            stop = "solved" if solved else "unsolved"
        # Where nothing has to be done (others did it), the end itself is all there is.
        standing = 1.0 if solved else max(-1.0, min(1.0, (share - wrong) / max(1, parts)))
        gained, state.standing = standing - state.standing, standing
        return Turn(
            () if stop else messages,
            terminated=stop is not None,
            stop=stop,
            terms=self.terms(
                success=self.success * solved,
                progress=self.progress * gained,
                turn=self.turn,
                tool_error=self.tool_error * errors,
            ),
            metrics={"share": share / max(1, parts), "wrong": float(wrong), "events": float(state.happened)}
            | move_metrics(move),
        )

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """Return the next step of the plan from the program: look, ask, change, finish."""
        return self._written(next_move(self.state))

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """Return an early end, a step of a plan for a naive variant of the program, or one on another record."""
        return self._written(careless_move(self.state, rng))

    def _written(self, move: Any) -> str | Message:
        return move if isinstance(move, str) else self.format.write("", [move])

    def twin_worlds(self, task: Task) -> Sequence[tuple[str, Sequence[Task]]]:
        """Return the proven facts of a task, each with the tasks in which it has other values."""
        return twin_tasks(task)

    def twin(self, task: Task) -> Task:
        """Return the task with another right answer and no other: nothing that is said depends on it."""
        ends = [replace(end, answer=-1, refused="another") for end in story_of_task(task).ends]
        return replace(task, ground_truth=to_json(tuple(ends)))

    def secrets(self) -> Sequence[str]:
        """Return the required end, as in the row."""
        return () if self.state.task is None else (str(self.state.task.ground_truth),)

    def conversation_score(self) -> Mapping[str, float]:
        """Return the share of the task that is done, from 0 to 1."""
        return {"progress": max(0.0, self.state.standing)}


def _share(story: Story, state: WorldState, right: End) -> tuple[int, int, int]:
    """Return how many required parts are there, how many differences should not be, and how many parts there are.

    A part is a cell, a new record, a report, the answer, or the refusal.
    """
    changed, new = differences(story.world.schema, state.store)
    required, missing = dict(right.changed), list(right.new)
    good = sum(required.get(cell) == value for cell, value in changed)
    wrong = sum(cell not in required or required[cell] != value for cell, value in changed)
    for record in new:
        if record in missing:
            missing.remove(record)
            good += 1
        else:
            wrong += 1
    due = list(right.reports)
    for report in state.reports:
        if match := next((one for one in due if is_report(story.world, report, one)), None):
            due.remove(match)
            good += 1
        else:
            wrong += 1
    parts = len(right.reports) + len(required) + len(right.new) + (right.answer is not None) + bool(right.refused)
    return good, wrong, parts


READER = Reader(WorldTasks, LEVELS, verl_row, "verl's columns", "my/worlds", check=story_of_task)
