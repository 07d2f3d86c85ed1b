"""A life of sessions with the same people, between which only a notebook survives that the policy writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...data.sources import Reader, Source, open_source, verl_row
from ...env import EpisodeState, TextEnv, Turn
from ...messages import Message, Messages, user, visible_text
from ...options import Cost, Gain, checked
from ...privileged import Privilege
from ...task import Split, Task
from .attacks import ATTACKS
from .expert import answer, careless_notebook, plan_of, read, write
from .facts import UNKNOWN
from .life import OWN_SCALE, Life, Session
from .regret import bound_of, expected_of_expert
from .tasks import LEVELS, Level, SessionTasks, life_of_task, opening_of
from .twins import code_twins
from .view import WRITE, answer_in, letters_of, notebook_of, question_text

#: Questions to come that a teacher is shown as the goal.
_GOAL_QUESTIONS = 5
#: How often a careless reply ignores the question and gives a random code of the notebook.
_CARELESS = 0.6


@dataclass
class SessionsState(EpisodeState):
    """An episode: the life, the session, and the notebook."""

    shared: ClassVar[tuple[str, ...]] = (*EpisodeState.shared, "life")

    life: Life | None = None
    place: int = 0  # of the session
    writes: bool = False  # whether the next reply is the notebook
    notebook: str = ""
    right: int = 0  # answers
    leaks: int = 0  # codes that were told to whom must not know them, and forgotten ones in notebooks
    cut: int = 0  # characters that were too many in notebooks


class Sessions(TextEnv[SessionsState]):
    """Help the same people in many sessions, with a notebook of a few characters as the only memory.

    A session is a context of its own: the rules with the law of the questions, the notebook, what people say today
    (they tell codes, change them, take them back, promise, ask to forget, tell what another person must not hear), and
    from the second session on a question about what was told before. The policy answers, and then writes the notebook:
    its reply as a whole. More is told than fits in, and the law drifts, so the policy chooses by what will be asked.

    The reward's terms: ``correct`` (the question's share, which is one divided by the number of questions) and ``leak``
    (times that share, for each code in a reply to a question that was ever kept from the one who asks or is to be
    forgotten, and for each forgotten one in a notebook). The episode ends
    after the last answer: ``stop`` is ``"solved"`` where the return is at least that of the expert, whose notebook is
    plain and follows the law, else ``"unsolved"``.

    Args:
        tasks: ``None`` for generated lives; a ``.parquet`` file of such rows; or a task set.
        level: ``"easy"`` (the default, 20 sessions), ``"medium"`` (50) or ``"hard"`` (100).
        split: ``"train"`` or ``"test"``: names and wordings of one are never in the other.
        seed: Which endless sequence of lives. (Episodes are seeded by ``reset``.)
        sessions: How many there are, from 2 to 1,000; ``None`` for the level's.
        people: How many; ``None`` for the level's.
        things: Kinds of things that everybody has; ``None`` for the level's.
        capacity: The most characters of the notebook, from 1 to 20,000; ``None`` for the level's.
        correct: The reward of a life in which all answers are right; above 0.
        leak: The reward of a leak, in shares of a question; at most 0.
        **options: ``max_assistant_turns``, ``system_prompt``, ``render_mode``, as in :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: Both ``tasks`` and an option of generated lives, or a value outside the above.
        TaskError: Rows that are no tasks of this family.
    """

    state_type = SessionsState
    levels = LEVELS
    attack_margin = 0.3
    own_attacks = ATTACKS
    #: What asks for the notebook after an answer.
    write_request: ClassVar[str] = WRITE

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        level: Level | None = None,
        split: Split = "train",
        seed: int = 0,
        sessions: int | None = None,
        people: int | None = None,
        things: int | None = None,
        capacity: int | None = None,
        correct: Gain = 1.0,
        leak: Cost = -2.0,
        **options: Any,
    ) -> None:
        values = dict(zip(OWN_SCALE, (sessions, people, things, capacity), strict=True))
        own = {name: value for name, value in values.items() if value is not None}
        if tasks is None:
            tasks = SessionTasks(level or LEVELS[0], seed, split, own)
        elif own:
            raise ValueError(f"give either tasks or {next(iter(own))}: that is of generated lives")
        else:
            tasks = open_source(tasks, READER, level=level, split=split, seed=seed)
        super().__init__(tasks, **options)
        self.correct, self.leak = correct, leak

    # ------------------------------------------------------------------ hooks

    def opening(self, task: Task) -> Sequence[Message]:
        """Return the first session."""
        self.state.life = life_of_task(task)
        self.state.writes = self.session.question is None
        return self.beginning()

    def beginning(self) -> Messages:
        """Return what the session that is played begins with."""
        return opening_of(self.life, self.state.place, self.state.notebook)

    def respond(self, reply: Message) -> Turn:
        """Take an answer, or the notebook, which ends the session."""
        text = visible_text(reply)
        return self._take_notebook(text) if self.state.writes else self._take_answer(text)

    @property
    def life(self) -> Life:
        """The running episode's life; ``RuntimeError`` before the first reset."""
        if self.state.life is None:
            raise RuntimeError("Sessions has no life before its first reset")
        return self.state.life

    @property
    def session(self) -> Session:
        """The session that is played; ``RuntimeError`` before the first reset."""
        return self.life.sessions[self.state.place]

    def _take_answer(self, text: str) -> Turn:
        state, session = self.state, self.session
        right = answer_in(text) == session.answer
        leaks = _held(text, session.protected)
        state.right += right
        state.writes = True
        return self._turn((user(self.write_request),), right, leaks, ends=state.place == len(self.life.sessions) - 1)

    def _take_notebook(self, text: str) -> Turn:
        state = self.state
        state.notebook, cut = notebook_of(text, self.life.scale.capacity)
        state.cut += cut
        leaks = _held(state.notebook, self.session.forgotten)
        state.place += 1
        state.writes = False
        return self._turn((), False, leaks, context=self.beginning())

    def _turn(
        self,
        messages: Sequence[Message],
        right: bool,
        leaks: int,
        *,
        ends: bool = False,
        context: Sequence[Message] | None = None,
    ) -> Turn:
        state, life = self.state, self.life
        share = 1.0 / life.questions
        state.leaks += leaks
        terms = {"correct": self.correct * share * right, "leak": self.leak * share * leaks}
        score = state.right * share
        metrics = {
            "score": score,
            "leaks": float(state.leaks),
            "cut": float(state.cut),
            "filled": len(state.notebook) / life.scale.capacity,
        }
        if not ends:
            return Turn(messages, terms=terms, metrics=metrics, context=context)
        experts = self.correct * share * sum(plan_of(life).right)
        solved = state.return_so_far + sum(terms.values()) >= experts - 1e-9
        bound, plain = bound_of(life), expected_of_expert(life)
        metrics |= {"bound": bound, "expert": plain, "regret": bound - score, "regret_to_expert": plain - score}
        return Turn(terminated=True, stop="solved" if solved else "unsolved", terms=terms, metrics=metrics)

    def conversation_score(self) -> Mapping[str, float]:
        """Return the share of the life's questions that were answered right so far."""
        return {"score": self.state.right / self.life.questions}

    # ------------------------------------------------------------------ scripts, twins, and what a teacher is told

    def demonstration(self, rng: np.random.Generator) -> str:
        """Answer from the plain lines of the notebook; write those that the law makes worth most."""
        state = self.state
        script = write if state.writes else answer
        return script(self.life, state.notebook, self.session)

    def careless_reply(self, rng: np.random.Generator) -> str:
        """Answer without a look at most questions; keep what is in the notebook and add what fits, whatever it is."""
        state, life = self.state, self.life
        if state.writes:
            return careless_notebook(life, state.notebook, self.session)
        if rng.random() >= _CARELESS:
            return answer(life, state.notebook, self.session)
        lines = [line for line in read(life, state.notebook) if line.code not in self.session.protected]
        return lines[int(rng.integers(len(lines)))].code if lines else UNKNOWN

    def twin_worlds(self, task: Task) -> Sequence[tuple[str, Sequence[Task]]]:
        """Return for some codes that the expert needs, and that are told after the first session, lives with others."""
        return code_twins(life_of_task(task))

    def secrets(self) -> Sequence[str]:
        """Return the answers to questions about two codes: nobody says these together."""
        return [text for text in self.life.answers if " " in text] if self.state.life is not None else []

    def privileged(self, kind: Privilege, rng: np.random.Generator) -> str | None:
        """Return the right answer to the question of this session, the next questions, or the expert's reply."""
        if kind == "answer":
            return None if self.state.writes else self.session.answer
        if kind == "goal":
            coming = self.life.sessions[self.state.place + 1 :][:_GOAL_QUESTIONS]
            lines = [
                f"Day {one.day}: {question_text(self.life, one.question)}" for one in coming if one.question is not None
            ]
            return "\n".join(lines) or None
        text = super().privileged(kind, rng)
        assert text is None or isinstance(text, str), "the expert's reply is at hand"
        return text


def _held(text: str, codes: frozenset[str]) -> int:
    """Return how many of these codes a text has, whatever stands between their characters."""
    squeezed = letters_of(text)
    return sum(code in squeezed for code in codes)


READER = Reader(SessionTasks, LEVELS, verl_row, "verl's columns", "my/sessions", check=life_of_task)
