"""A user who may have left out what is needed: ask first where something is missing, else answer at once."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...chat.spec import SpecLike
from ...env import EpisodeState, TextEnv, Turn
from ...messages import Message, text_of
from ...messages import user as user_message
from ...options import Cost, Gain, Share, checked, make_of
from ...task import Split, Task, TaskSet, proven_facts
from ...users.base import Entitled, UserView, take_turn
from ...users.llm import LLMUser
from ...users.manners import PLAIN, Manner, MannerLike, Mood, draw_manner, manners_of
from ...users.moves import move_metrics
from .attacks import ATTACKS
from .script import SCRIPT
from .tasks import LEVELS, MIN_VALUES, GeneratedRequests, Level, Request, Slot
from .user import Reading, Speech, facts_of, is_right, read, respond, told_too_much

# Useless replies that an impatient user of half the strength accepts; see Manner.patience.
_PATIENCE = 4


@dataclass
class ClarifyState(EpisodeState):
    """A request in progress: the disclosed slots, and the questions so far."""

    disclosed: tuple[str, ...] = ()
    has_asked: bool = False
    needless: int = 0
    useless: int = 0  # replies that neither answered nor obtained a fact
    manner: Manner = PLAIN
    mood: Mood = field(default_factory=Mood)
    right: bool = False
    first_was_good: bool = False  # the first reply asked for what was missing, or answered where nothing was


class Clarify(TextEnv[ClarifyState]):
    """The user asks for something, and some requests leave out a number, a day or a colour that only the user knows.

    An answer ends the episode (``stop`` is ``"solved"`` or ``"wrong"``); a question is answered by the user. The
    reward's terms, the same on every turn, are ``correct`` (the right answer), ``wrong`` (another answer), ``question``
    (every reply that is not an answer) and ``needless`` (a question that asks for something that was said). With the
    defaults a clear request answered at once earns 1.0, an ambiguous one after a good question 0.9, and a guess less
    than nothing on average.

    Args:
        tasks: The requests, a task set or a list; ``None`` for generated ones, as the next five say.
        level: ``"easy"`` or ``"medium"``; see :class:`~textenvs.envs.clarify.tasks.GeneratedRequests`.
        ambiguous: The share of requests that leave something out, from 0 to 1.
        kinds: Only these kinds of requests; ``None`` for all of the level.
        split: ``"train"`` or ``"test"``.
        seed: Which endless sequence of requests. (Episodes are seeded by ``reset``.)
        correct: The reward of the right answer, above 0.
        wrong: The reward of a wrong answer, at most 0.
        question: Added for every reply that is not an answer; at most 0.
        needless: Added for a needless question; at most 0.
        manner: How the user behaves and puts things: ``"impatient"`` (it leaves, ``stop`` is ``"user_left"``, after two
            replies that neither answer nor are told anything), ``"vague"``, ``"wordy"``, ``"forgetful"``,
            ``"changing_mind"``, ``"non_native"``, a mapping of these to strengths from 0 to 1, a list of which each
            episode draws one, or ``"all"``; see :mod:`textenvs.users.manners`. ``None`` is a plain user.
        user: A language model that plays the user instead, as in the collab families. It is given the request with
            what that leaves out; what is *needless* is as with the scripted user, and an answer is checked by rule.
        max_assistant_turns: How many replies there are; ``None`` for no limit.
        **options: ``max_user_turns``, ``system_prompt``, ``render_mode``, as in :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: A value outside the above, options of generated requests beside ``tasks``, or rewards by which
            guessing pays as much as asking.
    """

    state_type = ClarifyState
    levels = LEVELS
    attack_margin = 0.5
    own_attacks = ATTACKS
    own_script = SCRIPT

    @checked
    def __init__(
        self,
        tasks: TaskSet | Sequence[Task] | None = None,
        *,
        level: Level = "easy",
        ambiguous: Share = 0.5,
        kinds: Sequence[str] | None = None,
        split: Split = "train",
        seed: int = 0,
        correct: Gain = 1.0,
        wrong: Cost = -0.25,
        question: Cost = -0.1,
        needless: Cost = -0.2,
        manner: MannerLike | None = None,
        user: SpecLike | None = None,
        max_assistant_turns: int | None = 4,
        **options: Any,
    ) -> None:
        generated = GeneratedRequests(level, ambiguous, kinds, seed, split)
        if tasks is None:
            tasks = generated
        elif generated != GeneratedRequests():
            raise ValueError("give either tasks or level, ambiguous, kinds, split and seed of generated ones, not both")
        if (correct + (MIN_VALUES - 1) * wrong) / MIN_VALUES >= correct + question:
            raise ValueError(
                f"with correct={correct}, wrong={wrong} and question={question}, a guess (right once in {MIN_VALUES} "
                "times) pays as much as a question and the right answer; make the question cheaper or correct higher"
            )
        self.manners = make_of("manner", manners_of, manner)
        self.player = None if user is None else make_of("user", LLMUser.of, user)
        super().__init__(tasks, max_assistant_turns=max_assistant_turns, **options)
        self.weights = {"correct": correct, "wrong": wrong, "question": question, "needless": needless}

    def opening(self, task: Task) -> Sequence[Message]:
        request = Request.from_task(task)  # or it cannot be played
        self.state.manner = draw_manner(self.manners, self.np_random)
        if self.state.manner == PLAIN:
            return task.prompt
        wording, mark, form = request.text.rpartition(" Answer with ")
        return (user_message(self._say(request, wording) + mark + form),)

    def respond(self, reply: Message) -> Turn | Awaitable[Turn]:
        request, state = self._request, self.state
        reading = read(reply, request)
        if state.assistant_turns == 1:
            asks_for_missing = bool(reading.slots) and all(slots & set(request.missing) for slots in reading.slots)
            state.first_was_good = asks_for_missing if request.missing else reading.sort == "answer"
        if reading.sort == "answer":
            state.right = is_right(reading, request)
            return Turn(
                terminated=True,
                stop="solved" if state.right else "wrong",
                terms=self._terms("correct" if state.right else "wrong"),
                metrics=self._metrics(request)
                | (move_metrics("confirms" if state.right else "gives_up") if self.player is None else {}),
            )
        if self.player is not None:
            return self._respond_later(self.player, reading, request)
        speech = self._speech(reading, request)
        if state.manner.impatient > 0 and state.useless >= state.manner.patience(_PATIENCE):
            return self._turn(reading, request, replace(speech, move="gives_up"), "user_left")
        return self._turn(reading, request, speech, None)

    async def _respond_later(self, player: LLMUser, reading: Reading, request: Request) -> Turn:
        state = self.state
        conversation = self._conversation_text()
        view = self.user_view()
        player = player.briefed(view.manner, self._entitled(reading, request).guard(view))
        turn = await take_turn(player, view.talk, view.goal, self.np_random)
        state.user_side = turn.side
        requested: frozenset[str] = frozenset().union(*reading.slots)
        disclosed = tuple(  # what was asked for may be a value that was said of something else
            name
            for name in request.missing
            if name not in state.disclosed and request.tells(name, turn.text, "" if name in requested else conversation)
        )
        rule = respond(reading, request, state.disclosed, state.needless)
        speech = Speech(turn.text, disclosed, rule.needless)
        result = self._turn(reading, request, speech, "user_left" if turn.ends else None)
        return replace(result, metrics={**result.metrics, **turn.metrics})

    def user_view(self) -> UserView:
        request, state = self._request, self.state
        words = [value for slot in request.kind.slots for value in slot.values if isinstance(value, str)]
        disclosed, hidden = len(state.disclosed), len(request.missing)
        recovered = disclosed / hidden if hidden else 1.0
        return UserView(
            *(request.goal, state.messages, state.manner.instruction(), disclosed, words, recovered),
            facts=facts_of(request),
            behavior=state.manner,
        )

    def user_may(self, reply: Message) -> Entitled:
        """Return what the user may tell in answer to the reply."""
        return self._entitled(read(reply, self._request), self._request)

    def _entitled(self, reading: Reading, request: Request) -> Entitled:
        conversation, hidden = (
            self._conversation_text(),
            [name for name in request.missing if name not in self.state.disclosed],
        )
        requested: frozenset[str] = frozenset().union(*reading.slots)
        rule = respond(reading, request, self.state.disclosed, self.state.needless)
        return Entitled(
            bool(requested & set(hidden)),
            lambda text: told_too_much(text, conversation, requested, hidden, request),
            most=1,
            evadable=bool(rule.disclosed) and not rule.needless,
        )

    def _conversation_text(self) -> str:
        return " ".join(map(text_of, self.state.messages))

    def _turn(self, reading: Reading, request: Request, speech: Speech, stop: str | None) -> Turn:
        state = self.state
        state.disclosed = (*state.disclosed, *speech.disclosed)
        state.has_asked = state.has_asked or reading.sort == "question"
        state.needless += speech.needless
        return Turn(
            messages=(user_message(speech.text),) if speech.text else (),
            terminated=stop is not None,
            stop=stop,
            terms=self._terms("question", *(["needless"] if speech.needless else [])),
            metrics=self._metrics(request) | move_metrics(speech.move),
        )

    def _speech(self, reading: Reading, request: Request) -> Speech:
        """Return the user's answer to a reply that is not an answer, in the manner of the episode."""
        state = self.state
        speech = respond(reading, request, state.disclosed, state.needless)
        if state.manner == PLAIN:
            return speech
        if speech.disclosed and not speech.needless and state.manner.evades(state.mood, self.np_random):
            state.mood = replace(state.mood, evaded=True)
            return Speech(state.manner.evasion(self.np_random), move="answers")
        text = self._say(request, speech.text, speech.disclosed)
        statements = tuple(request.telling(slot) for slot in request.kind.slots if slot.name in speech.disclosed)
        state.mood = replace(state.mood, statements=(*state.mood.statements, *statements))
        state.useless += not statements
        return replace(speech, text=text)

    def _say(self, request: Request, text: str, disclosed: Sequence[str] = ()) -> str:
        return self.state.manner.say(
            text,
            self.np_random,
            statements=self.state.mood.statements,
            telling=bool(disclosed),
            hidden=" ".join([*map(str, request.values.values()), *request.answer]),
            rivals=[str(value) for slot in request.kind.slots if slot.name in disclosed for value in slot.values],
        )

    def conversation_score(self) -> Mapping[str, float]:
        """Return ``accuracy``: 1 if the request was met; 0 without a right answer so far."""
        return {"accuracy": float(self.state.right)}

    def twin(self, task: Task) -> Task | None:
        """Return the request with another value for what it leaves out; ``None`` where it leaves out nothing."""
        return next((tasks[1] for _, tasks in self.twin_worlds(task)), None)

    def twin_worlds(self, task: Task) -> Sequence[tuple[str, Sequence[Task]]]:
        """Return for each thing that the request leaves out the requests with all its values, each with an answer."""
        request = Request.from_task(task)

        def others(slot: Slot) -> Iterator[Task]:
            for value in slot.values:
                twin = replace(request, values={**request.values, slot.name: value})
                made = twin.to_task(f"{task.key}~{slot.name}={value}", task.data_source)
                yield replace(made, prompt=task.prompt)

        slots = [slot for slot in request.kind.slots if slot.name in request.missing]
        facts = ((f"the {slot.name} that {request.name} has in mind", others(slot)) for slot in slots)
        return proven_facts(task, facts, most=None)

    def reveals(self, reply: Message) -> bool:
        """Return whether the reply asks for something that the request leaves out: the user tells it."""
        return any(slots & set(self._request.missing) for slots in read(reply, self._request).slots)

    def demonstration(self, rng: np.random.Generator) -> str:
        """Ask for what is missing, one thing at a time; then answer."""
        request = self._request
        for slot in request.kind.slots:
            if slot.name in request.missing and slot.name not in self.state.disclosed:
                return request.question(slot)
        return _answer(request)

    def careless_reply(self, rng: np.random.Generator) -> str:
        """Answer at once, with guesses for what was not told: right only where nothing is missing, or by luck."""
        request = self._request
        guesses = {
            slot.name: slot.values[int(rng.integers(len(slot.values)))]
            for slot in request.kind.slots
            if slot.name in request.missing and slot.name not in self.state.disclosed
        }
        return _answer(replace(request, values={**request.values, **guesses}))

    def secrets(self) -> Sequence[str]:
        """Return the right answer, unless it is the very value that a good question obtains."""
        request = self._request
        hidden = {str(request.values[name]) for name in request.missing}
        answer = " ".join(request.answer)
        return () if answer in hidden else (answer,)

    @property
    def _request(self) -> Request:
        return Request.from_task(self.task)

    def _terms(self, *earned: str) -> dict[str, float]:
        return {name: weight * (name in earned) for name, weight in self.weights.items()}

    def _metrics(self, request: Request) -> dict[str, float]:
        state = self.state
        first = "asked_when_needed" if request.missing else "answered_when_clear"
        return {
            "asked": float(state.has_asked),
            "needed": float(bool(request.missing)),
            "needless": float(state.needless),
            first: float(state.first_was_good),
        }


def _answer(request: Request) -> str:
    return "\n".join((*request.equations, f"#### {' '.join(request.answer)}"))
