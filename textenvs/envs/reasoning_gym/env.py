"""Any dataset of the reasoning-gym package, in one reply or several attempts."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from ...env import EnvironmentFailure, EpisodeState, TextEnv, Turn
from ...messages import Message, user, visible_text
from ...options import Cost, Gain, PositiveInt, checked
from ...sandbox import SandboxFailure, SandboxUnavailable
from ...task import Split, Task
from .attacks import ATTACKS
from .sandbox import ProcessScorer, evaluates, sandbox
from .scoring import Score, ScorerError, cheapest, check_entry, score
from .tasks import INSTRUCTION, ReasoningGymTasks, entry_of

AnswerFormat = Literal["tag", "text"]
Scoring = Literal["strict", "partial"]
Threshold = Annotated[float, Field(gt=0, le=1)]
#: Data sets whose partial scores are earned without the work, and how.
NO_PARTIAL = {
    "game_of_life": "a board that is the same for every question earns nearly all of it",
    "time_intervals": "a duration that is the same for every question earns three quarters of it",
}
_CONSTANTS = 8  # right answers of other tasks that are tried on a task with partial scores
Seed = Annotated[int, Field(ge=0, le=2**30)]


@dataclass
class ReasoningGymState(EpisodeState):
    """The best score so far, and with partial scores what is earned without the work."""

    best: float = 0.0
    cheap: float | None = None


class ReasoningGym(TextEnv[ReasoningGymState]):
    """A question of a reasoning-gym dataset, an answer, and the package's own check, without its holes.

    The reward's terms are ``correct`` and ``extra_turn`` (every reply after the first). With ``scoring="strict"``,
    ``correct`` is earned for a score of at least ``threshold`` and is else 0. With ``"partial"`` it is the share of
    what is left above cheap answers (parts of the question copied, right answers of other tasks), by which the reply is
    above the best one before: several attempts never earn more than the best alone.

    Args:
        dataset: The dataset's name.
        config: Its options; see :class:`~textenvs.envs.reasoning_gym.tasks.ReasoningGymTasks`.
        split: ``"train"`` or ``"test"``.
        seed: Which sequence of items. (Episodes are seeded by ``reset``.)
        size: How many tasks each split has.
        answer_format: ``"tag"`` (what stands between the last ``<answer>`` and ``</answer>``) or ``"text"`` (the whole
            reply).
        instruction: Put after the question; ``None`` asks for the tag where ``answer_format`` wants it, ``""`` is none.
        scoring: ``"strict"`` or ``"partial"``. Many of the package's scorers pay a little for any text, and for text
            that holds the answer somewhere: partial scores teach that.
        threshold: The score from which an answer is right, above 0 and up to 1.
        attempts: How many replies there are; a wrong one before the last is answered with "Try again".
        correct: The reward of a right answer, above 0.
        extra_turn: Added on every reply after the first; at most 0.
        system_prompt: A system message put before the question.
        render_mode: As in :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: A value outside the above, one that the dataset refuses, a dataset whose scorer pays without the
            work, or one whose scorer evaluates text on a machine where no sandbox holds.
        ImportError: reasoning-gym is not installed.
    """

    state_type = ReasoningGymState
    own_attacks = ATTACKS
    tasks: ReasoningGymTasks

    @checked
    def __init__(
        self,
        dataset: str = "chain_sum",
        *,
        config: Mapping[str, Any] | None = None,
        split: Split = "train",
        seed: Seed = 0,
        size: PositiveInt = 10_000,
        answer_format: AnswerFormat = "tag",
        instruction: str | None = None,
        scoring: Scoring = "strict",
        threshold: Threshold = 1.0,
        attempts: PositiveInt = 1,
        correct: Gain = 1.0,
        extra_turn: Cost = -0.1,
        system_prompt: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        for name in (dataset, *_parts(config)) if scoring == "partial" else ():
            if name in NO_PARTIAL:
                raise ValueError(f"{name!r} with scoring='partial' is refused: {NO_PARTIAL[name]}")
        if instruction is None:
            instruction = INSTRUCTION if answer_format == "tag" else ""
        super().__init__(
            ReasoningGymTasks(dataset, config or {}, size, seed, split, instruction),
            system_prompt=system_prompt,
            render_mode=render_mode,
        )
        sandboxed = evaluates(self.tasks.opened())
        if sandboxed:
            try:
                sandbox()
            except SandboxUnavailable as error:
                raise ValueError(
                    f"the scorer of {dataset!r} evaluates text, so it runs in the sandbox only. {error}"
                ) from error
        self._scorer = ProcessScorer(self.tasks.opening()[:3], sandboxed)
        self.answer_format = answer_format
        self.scoring = scoring
        self.threshold = float(threshold)
        self.attempts = attempts
        self.correct = float(correct)
        self.extra_turn = float(extra_turn)

    @property
    def attack_margin(self) -> float:  # type: ignore[override]
        """0.9 of what is left above memory, of the first hundred tasks; at least 0.1.

        Memory knows the answer to a question that another of these tasks asks, too (a share, two standard errors
        added), and says to any other question what is right most often.
        """
        tasks = [self.tasks[index] for index in range(min(100, self.tasks.size))]
        questions = Counter(task.question for task in tasks)
        answers = Counter(task.ground_truth for task in tasks)
        repeated = sum(count for count in questions.values() if count > 1) / len(tasks)
        repeated = min(1.0, repeated + 2 * math.sqrt(repeated * (1 - repeated) / len(tasks)))
        return max(0.1, 0.9 * (1 - repeated) * (1 - answers.most_common(1)[0][1] / len(tasks)))

    def opening(self, task: Task) -> Sequence[Message]:
        """Return the question; an error where it is of another dataset or has text that a scorer would evaluate."""
        check_entry(entry_of(task, self.tasks.dataset))
        return task.prompt

    async def respond(self, reply: Message) -> Turn:
        """Score the reply's answer, in the scorers' process."""
        answer = self._answer_in(visible_text(reply))
        if answer is None:
            return self._turn(None)
        entry, cheap = entry_of(self.task, self.tasks.dataset), self.state.cheap

        def scored() -> tuple[Score, float]:
            if self.scoring == "strict" or cheap is not None:
                return score(self._scorer, answer, entry), cheap or 0.0
            return score(self._scorer, answer, entry), cheapest(self._scorer, entry, self._others())

        try:
            result, self.state.cheap = await self._scorer.pool.in_thread(scored)
        except (ScorerError, SandboxFailure) as error:
            raise EnvironmentFailure("judge_failed", str(error)) from error
        return self._turn(result)

    def _turn(self, result: Score | None) -> Turn:
        state = self.state
        read = result or Score(0.0)
        metrics = {"score": read.value, "well_formed": float(result is not None)}
        metrics |= {"refused": float(read.refused), "unread": float(read.unread)}
        solved = read.value >= self.threshold
        earned = max(self._share(read.value) - self._share(state.best), 0.0) if self.scoring == "partial" else solved
        state.best = max(state.best, read.value)
        extra = self.extra_turn if state.assistant_turns > 1 else 0.0
        terms = {"correct": self.correct * earned, "extra_turn": extra}
        if solved or state.assistant_turns >= self.attempts:
            return Turn(terminated=True, stop="solved" if solved else "wrong", terms=terms, metrics=metrics)
        again = "That is not right. Try again." if result is not None else f"{INSTRUCTION} Try again."
        return Turn([user(again)], terms=terms, metrics=metrics)

    def _share(self, value: float) -> float:
        """Return the share of the range above cheap answers."""
        cheap = self.state.cheap or 0.0
        return max(0.0, (value - cheap) / (1.0 - cheap))

    def _others(self) -> list[str]:
        """Return the right answers of some other tasks, which a policy may give to every question."""
        return [answer for key, answer in self._answers if key != self.task.key][:_CONSTANTS]

    @functools.cached_property
    def _answers(self) -> tuple[tuple[str, str], ...]:
        """The keys and right answers of tasks that lie apart, made once."""
        indices = np.linspace(0, self.tasks.size - 1, _CONSTANTS + 1).astype(int)
        tasks = [self.tasks[int(index)] for index in dict.fromkeys(indices)]
        return tuple((task.key, str(task.ground_truth)) for task in tasks if task.ground_truth is not None)

    def conversation_score(self) -> Mapping[str, float]:
        return {"accuracy": float(self.state.best >= self.threshold)}

    def reveals(self, reply: Message) -> bool:
        """Return ``True``: with more than one attempt, the user says of every wrong reply that it is not right."""
        return True

    def demonstration(self, rng: np.random.Generator) -> str:
        return self._reply_with(self.task)

    def careless_reply(self, rng: np.random.Generator) -> str:
        """Reply with the right answer of another task of the dataset."""
        return self._reply_with(self.tasks[int(rng.integers(self.tasks.size))])

    def _answer_in(self, text: str) -> str | None:
        if self.answer_format == "text":
            return text or None
        inside, closed, _ = text.rpartition("</answer>")
        _, opened, answer = inside.rpartition("<answer>")
        return answer.strip() if closed and opened else None

    def _reply_with(self, task: Task) -> str:
        if task.ground_truth is None:
            raise NotImplementedError(f"reasoning-gym's {self.tasks.dataset!r} does not say a right answer")
        return f"<answer>{task.ground_truth}</answer>" if self.answer_format == "tag" else str(task.ground_truth)


def _parts(config: Any) -> list[Any]:
    """Return the datasets that a composite's configuration names; none of another value, which the tasks refuse."""
    listed = config.get("datasets") if isinstance(config, Mapping) else None
    parts = listed if isinstance(listed, (list, tuple)) else ()
    return [part.get("name") for part in parts if isinstance(part, Mapping)]
