"""Collaboration with a user whose goal is hidden: the base of CollabLLM's three families.

Source of the idea: CollabLLM (arXiv 2502.00640). The user starts with a vague request and knows a complete one. The
assistant asks, delivers, and is scored by what it delivered last, and by what its words and the user's cost.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from ...chat.spec import SpecLike
from ...data.sources import Source, open_source
from ...env import EpisodeState, TextEnv, Turn
from ...event_loop import settle
from ...judges import InteractivityJudge
from ...messages import Message, text_of, user, visible_text
from ...options import Cost, PositiveInt, Price, Weight, checked, make_of
from ...scoring.conversation import FormulaName
from ...scoring.conversation import formula as formula_of
from ...task import Split, Task
from ...users.base import Entitled, Fact, UserView, take_turn
from ...users.guard import values_in
from ...users.llm import LLMUser
from ...users.manners import PLAIN, Manner, MannerLike, Mood, draw_manner, manners_of
from ...users.moves import move_metrics
from .attacks import ATTACKS
from .tasks import LEVELS, Family, Goal, Level, Piece
from .user import Accepts, Check, CollabUser, Memory, Reaction, is_named, tells

TaskReward = Literal["final", "increment"]


@dataclass
class CollabState(EpisodeState):
    """A collaboration in progress; ``goal`` is what the user wants, as the task says."""

    goal: Goal | None = None
    memory: Memory = field(default_factory=Memory)
    manner: Manner = PLAIN
    mood: Mood = field(default_factory=Mood)
    score: float = 0.0  # of what was delivered last
    right: bool = False  # whether that is what the user wants
    length: int = 0  # what the formula has counted so far
    talked: int = 0  # replies that delivered nothing
    questions: int = 0  # how many of them asked for something
    conceded: bool = False  # whether the user was content with something that is not right


class Collab(TextEnv[CollabState], ABC):
    """A user with a hidden goal, an assistant that finds out and delivers; the base of the three families.

    The terms of the reward, the same on every turn, are the task score (named by the family), ``cost`` (at most 0),
    with the scripted user ``needless`` (at most 0), and with a ``judge`` ``interactivity``. The user ends the talk with
    ``stop`` ``"solved"``, ``"user_left"`` or ``"gave_up"``; see :mod:`textenvs.envs.collab.user`.

    Args:
        tasks: What :func:`~textenvs.data.sources.open_source` takes: a task set, a ``.jsonl`` or ``.parquet`` file,
            ``"generated:easy"``, ``"hub:..."``, a sequence of these, or ``None`` for generated easy tasks. Rows are
            verl's, or as :class:`~textenvs.envs.collab.tasks.Family` reads them.
        level: Short for ``tasks="generated:<level>"``: ``"easy"``, ``"medium"`` or ``"hard"``.
        split: ``"train"`` or ``"test"``, of generated and Hub rows.
        seed: Which endless sequence of generated tasks. (Episodes are seeded by ``reset``.)
        formula: How tokens are charged: ``"linear"``, ``"paper"``, ``"repository"`` or ``"recipe"``; see
            :mod:`textenvs.scoring.conversation`. A turn pays for what it adds to the conversation's cost.
        token_rate: What a token costs; ``None`` for the published rate of the domain.
        task_reward: ``"final"``: the task score is paid on the last turn. ``"increment"``: every turn is paid what it
            changed of it, which adds up to the same.
        accepts: ``"right"``: the scripted user can tell whether a delivery is right, and ends the talk when it is.
            ``"any"``: it cannot, and takes any delivery once it has told everything (CollabLLM's users do not know the
            reference).
        answers: How many questions the scripted user answers in one turn.
        patience: After how many turns without progress the scripted user ends the talk. A turn with a list of words in
            place of a question is one, whatever else it asks.
        deliveries: With which delivery that is not right the scripted user ends the talk; ``None`` for the family's
            (:attr:`deliveries`). A user that cannot tell (``accepts="any"``) does not count them.
        needless: The reward of a turn that asks the scripted user only for what it has told, at most 0.
        user_volunteers: A control for experiments only: the scripted user tells a piece in any turn that says
            something, as it did in version 1, so that asking does not pay.
        manner: How the user behaves and puts things: ``"impatient"``, ``"vague"``, ``"wordy"``, ``"forgetful"``,
            ``"changing_mind"``, ``"non_native"``, a mapping of these to strengths from 0 to 1, a list of which each
            episode draws one, or ``"all"``; see :mod:`textenvs.users.manners`. ``None`` is a plain user.
        user: A language model that plays the user instead: a :class:`~textenvs.chat.spec.ChatSpec`, a mapping of its
            options (``{"model": ..., "base_url": ...}``), with those of :class:`~textenvs.users.llm.LLMUser`, a
            model's name, or a folder with a model. It is given the whole request; the row's opening stays its first
            message. What tells a piece that was not asked for is not said. Episodes are as repeatable as the model is.
        judge: A language model that judges interactivity, once, when the conversation ends; given in the same way.
            Without one there is no such term: no rule measures it.
        interactivity: The weight of the judge's verdict, which is from 0 to 1.
        max_assistant_turns: How many replies there are; ``None`` for no limit but the user's patience.
        **options: See :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: Both ``tasks`` and ``level``, or a value outside the above.
        TaskError: Rows that cannot be played.
    """

    state_type = CollabState
    levels = LEVELS
    attack_margin = 0.5
    family: ClassVar[Family]
    score_name: str  # of the task score, as a term of the reward and in conversation_score
    deliveries: ClassVar[int] = 2  # with how many that are not right the user ends the talk
    form: ClassVar[str]  # how the user asks for a delivery that it can recognise
    own_attacks = ATTACKS
    check_metrics: ClassVar[tuple[str, ...]] = ()  # reported on every turn: 0 where nothing was delivered

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        level: Level | None = None,
        split: Split = "train",
        seed: int = 0,
        formula: FormulaName = "linear",
        token_rate: Price | None = None,
        task_reward: TaskReward = "final",
        accepts: Accepts = "right",
        answers: PositiveInt = 2,
        patience: PositiveInt = 3,
        deliveries: PositiveInt | None = None,
        needless: Cost = -0.1,
        user_volunteers: bool = False,
        manner: MannerLike | None = None,
        user: SpecLike | None = None,
        judge: SpecLike | None = None,
        interactivity: Weight = 1.0,
        max_assistant_turns: int | None = 12,
        **options: Any,
    ) -> None:
        self.formula = formula_of(formula, domain=self.family.domain, rate=token_rate)
        self.interactivity = interactivity
        behavior = {"answers": answers, "patience": patience, "accepts": accepts, "volunteers": user_volunteers}
        behavior["deliveries"] = deliveries or type(self).deliveries
        self._user = partial(CollabUser, form=self.form, **behavior)  # type: ignore[arg-type]
        self.task_reward = task_reward
        self.needless = needless
        self.manners = make_of("manner", manners_of, manner)
        self.player = None if user is None else make_of("user", LLMUser.of, user)
        self.judge = None if judge is None else make_of("judge", InteractivityJudge, judge)
        source = open_source(tasks, self.family.reader, level=level, split=split, seed=seed)
        super().__init__(source, max_assistant_turns=max_assistant_turns, **options)

    @abstractmethod
    def find(self, text: str) -> str | None:
        """Return the part of ``text`` (all that the user can read of a reply) that is a delivery, if any."""

    @abstractmethod
    def check(self, goal: Goal, delivered: str) -> Check | Awaitable[Check]:
        """Score a delivery. In ``self.state``, deliveries and the user are still as before the reply."""

    @abstractmethod
    def solution(self, task: Task) -> str:
        """Return the scripted expert's delivery, as it writes it."""

    def opening(self, task: Task) -> Sequence[Message]:
        state = self.state
        state.goal = self.family.goal(task)
        state.memory = Memory(disclosed=state.goal.told)
        state.manner = draw_manner(self.manners, self.np_random)
        *before, last = task.prompt
        if not isinstance(last["content"], str):
            return task.prompt
        disclosed = [state.goal.pieces[number] for number in state.goal.told]
        text = self._say(last["content"], disclosed)
        state.mood = replace(state.mood, statements=_sayings_in(disclosed, text))
        return (*before, {**last, "content": f"{text} {self.form}" if disclosed and self.player is None else text})

    def respond(self, reply: Message) -> Turn | Awaitable[Turn]:
        delivered = self.find(visible_text(reply))
        checked = None if delivered is None else self.check(self.goal, delivered)
        if self.player is None and self.judge is None and not inspect.isawaitable(checked):
            return self._turn(reply, checked, self._react(reply, checked))
        return self._respond_later(reply, checked)

    async def _respond_later(self, reply: Message, checking: Check | Awaitable[Check] | None) -> Turn:
        checked: Check | None = await settle(checking)
        reaction = self._react(reply, checked) if self.player is None else await self._play_user(reply, checked)
        turn = self._turn(reply, checked, reaction)
        if self.judge is None:
            return turn
        verdict = 0.0
        if end := self._end(reaction):
            user_messages = () if end == "max_user_turns" else turn.messages
            verdict = await self.judge.score((*self.state.messages, *user_messages))
        return replace(turn, reward=None, terms={**turn.terms, "interactivity": self.interactivity * verdict})

    def _react(self, reply: Message, checked: Check | None) -> Reaction:
        state = self.state
        before, manner = state.memory, state.manner
        reaction = self.user.react(before, visible_text(reply), checked, self.np_random)
        if manner == PLAIN:
            return reaction
        if reaction.asked_for and checked is None and manner.evades(state.mood, self.np_random):
            state.mood = replace(state.mood, evaded=True)
            return Reaction(manner.evasion(self.np_random), before, asks=True, move="answers")
        new = [self.goal.pieces[i] for i in reaction.memory.disclosed if i not in before.disclosed]
        text = self._say(reaction.text, new)
        state.mood = replace(state.mood, statements=(*state.mood.statements, *_sayings_in(new, reaction.text)))
        return replace(reaction, text=text)

    def _say(self, text: str, disclosed: Sequence[Piece] = ()) -> str:
        """Return ``text``, which tells these pieces, in the manner of the episode."""
        state = self.state
        requirements: list[Mapping[str, Any]] = [dict(piece.requirement or {}) for piece in disclosed]
        facts: list[Mapping[str, Any]] = [dict(piece.requirement or {}) for piece in self.goal.pieces]
        return state.manner.say(
            text,
            self.np_random,
            statements=state.mood.statements,
            telling=bool(disclosed),
            hidden=f"{self.goal.single_turn_prompt} {self.task.ground_truth}",
            rivals=[value for fact in requirements if "rivals" in fact for value in (*fact["texts"], *fact["rivals"])],
            keep=(*(text for fact in facts for text in fact.get("texts", ())), self.form),
        )

    async def _play_user(self, reply: Message, checked: Check | None) -> Reaction:
        assert self.player is not None
        state = self.state
        conversation, memory = self._conversation_text(), state.memory
        inquiry = self.user.inquiry(visible_text(reply), memory, strict=False)
        view = self.user_view()
        player = self.player.briefed(view.manner, self.user_may(reply).guard(view))
        turn = await take_turn(player, view.talk, view.goal, self.np_random)
        state.user_side = turn.side
        new = tuple(
            i
            for i in self.user.untold(memory)
            for piece in [self.goal.pieces[i]]  # one that was asked for may have a value that was said of another
            if tells(piece, turn.text, conversation) or (i in inquiry.pieces and tells(piece, turn.text, ""))
        )
        memory = replace(memory, disclosed=(*memory.disclosed, *new), opened=memory.opened or inquiry.open)
        right = state.right if checked is None else checked.right
        stop_when_content = "solved" if right else "user_left"
        stop = {"satisfied": stop_when_content, "user_left": stop_when_content}.get(turn.why or "", turn.why)
        return Reaction(turn.text, memory, stop, metrics=turn.metrics, content=turn.why == "satisfied")

    def user_view(self) -> UserView:
        state = self.state
        goal = f"{self.goal.task_desc}\n\n{self.goal.single_turn_prompt}".strip()
        disclosed = len(state.memory.disclosed)
        return UserView(
            *(goal, state.messages, state.manner.instruction(), disclosed),
            recovered=disclosed / len(self.goal.pieces),
            facts=self._facts(),
            conceded=state.conceded,
            behavior=state.manner,
        )

    def _facts(self) -> list[Fact]:
        """Return the pieces that the opening does not tell, and the answer if it is a number, which is never told."""
        facts = [
            Fact(
                f"piece {number}",
                " ".join(piece.sayings),
                partial(tells, piece, by_words=False),
                partial(is_named, piece),
            )
            for number, piece in enumerate(self.goal.pieces)
            if number not in self.goal.told
        ]
        truth = str(self.task.ground_truth)
        if values_in(truth) == {truth}:
            facts.append(Fact("answer", truth, lambda text, context: truth in values_in(text) - values_in(context)))
        return facts

    def user_may(self, reply: Message) -> Entitled:
        """Allow the pieces asked for, or one of its choice after the first open question, as the scripted user does."""
        conversation, memory, goal, truth = (
            self._conversation_text(),
            self.state.memory,
            self.goal,
            str(self.task.ground_truth),
        )
        inquiry, untold = self.user.inquiry(visible_text(reply), memory, strict=False), self.user.untold(memory)
        # Two pieces may have the same value: who tells one says nothing of the other.
        conversation = " ".join(
            [conversation, visible_text(reply), *(goal.pieces[i].sayings[0] for i in inquiry.pieces)]
        )
        # A question for what was told already leaves an open one beside it open.
        free = 1 if inquiry.open and not set(inquiry.pieces) & set(untold) and not memory.opened else 0
        most = min(self.user.answers, max(1, len(goal.pieces) - 1))

        def problem(text: str) -> str | None:
            if values_in(truth) == {truth} and truth in values_in(text) - values_in(conversation):
                return "it does the assistant's work"
            disclosures = {
                frozenset(values_in(goal.pieces[i].sayings[0])) or i
                for i in untold
                if i not in inquiry.pieces and tells(goal.pieces[i], text, conversation)
            }
            return "it tells what the assistant did not ask for" if len(disclosures) > free else None

        requested = self.user.inquiry(visible_text(reply), memory).pieces  # by the scripted user
        evadable = bool(set(requested) & set(untold)) and self.find(visible_text(reply)) is None
        return Entitled(
            bool(set(inquiry.pieces) & set(untold)), problem, most, max(free, self.user.volunteers), evadable
        )

    def _conversation_text(self) -> str:
        return " ".join(map(text_of, self.state.messages))

    def _turn(self, reply: Message, checked: Check | None, reaction: Reaction) -> Turn:
        state, before = self.state, self.state.score
        if checked is not None:
            state.score, state.right = checked.score, checked.right
        state.memory = reaction.memory
        state.conceded = state.conceded or (reaction.content and not state.right)
        messages = (user(reaction.text),) if reaction.text else ()
        end = self._end(reaction)
        earned = state.score - before if self.task_reward == "increment" else state.score * (end is not None)
        counted = (reply,) if end == "max_user_turns" else (reply, *messages)
        metrics = {"score": state.score, "delivered": float(checked is not None), **reaction.metrics}
        metrics |= {name: 0.0 if checked is None else checked.metrics.get(name, 0.0) for name in self.check_metrics}
        terms = {self.score_name: earned, "cost": -self._charge(counted)}
        if self.player is None:
            terms["needless"] = self.needless * reaction.needless
            state.talked += checked is None
            state.questions += checked is None and reaction.asks
            metrics["asked"] = state.questions / max(1, state.talked)
            metrics["asked_for"] = float(reaction.asked_for)
            metrics["told"] = len(state.memory.disclosed) / len(self.goal.pieces)
        return Turn(
            messages=messages,
            terminated=reaction.stop is not None,
            stop=reaction.stop,
            terms=terms,
            metrics=metrics | move_metrics(reaction.move),
        )

    def conversation_score(self) -> Mapping[str, float]:
        return {self.score_name: self.state.score}

    def reveals(self, reply: Message) -> bool:
        """Return whether the reply delivers something to a user who can tell whether it is right."""
        judged = self.user.accepts == "right" and self.player is None
        return judged and self.find(visible_text(reply)) is not None

    def demonstration(self, rng: np.random.Generator) -> str:
        if self.player is not None:
            raise NotImplementedError("the scripted expert needs the scripted user; leave out the option user")
        pieces = [self.goal.pieces[piece] for piece in self.user.untold(self.state.memory)[: self.user.answers]]
        questions = " ".join(piece.question or f"What about the {piece.topic}?" for piece in pieces)
        return questions or self.solution(self.task)

    @property
    def goal(self) -> Goal:
        assert self.state.goal is not None  # once there is an episode
        return self.state.goal

    @property
    def user(self) -> CollabUser:
        user = self._user(pieces=self.goal.pieces)
        manner = self.state.manner
        if manner == PLAIN:
            return user
        return replace(user, answers=1 if manner.vague else user.answers, patience=manner.patience(user.patience))

    def _end(self, reaction: Reaction) -> str | None:
        """Return why the episode ends with this turn, if it does: the last turn is paid, so this is needed before."""
        return reaction.stop or self.spent_budget([user(reaction.text)])

    def _charge(self, messages: Sequence[Message]) -> float:
        """Add these messages to the conversation's length, and return what they add to its cost."""
        state, before = self.state, self.formula.cost(self.state.length)
        if self.formula.scope == "all" and state.assistant_turns == 1:  # the opening was said before the first reply
            state.length += self.formula.length(state.messages[:-1])
        state.length += self.formula.length(messages)
        return self.formula.cost(state.length) - before


def _sayings_in(pieces: Sequence[Piece], text: str) -> tuple[str, ...]:
    """Return the sayings of ``pieces`` that occur in ``text``."""
    return tuple(saying for piece in pieces for saying in piece.sayings if saying in text)
