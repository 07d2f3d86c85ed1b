"""A service desk: tools over a shop's database, written rules to keep, and a customer to talk with."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ...chat.spec import SpecLike
from ...data.sources import Reader, Source, open_source, verl_row
from ...env import EpisodeState, Turn
from ...messages import Message, text_of
from ...messages import user as user_message
from ...options import Cost, Gain, Price, checked, make_of
from ...task import Split, Task
from ...tool_env import ToolEnv
from ...tools import ToolResult
from ...users.base import Entitled, UserView, take_turn
from ...users.llm import LLMUser
from ...users.manners import PLAIN, MannerLike, draw_manner, manners_of
from ...users.moves import Move as UserMove
from ...users.moves import move_metrics
from .attacks import ATTACKS
from .expert import Move, careless_move, next_move
from .llm_customer import MANNER, PERSONA, facts_of, goal_text, overhear, told_too_much
from .reply_parser import MAX_CHARS, mentions, understand
from .scenario import Wish, scenario_of, with_other_truth
from .script import SCRIPT
from .tasks import LEVELS, Level, ServiceDeskTasks, task_of
from .tools import TOOLS, DeskState
from .twins import twins_of
from .user import AT_ONCE, SLOTS, TOO_LONG, UserState, begin, listen


class ServiceDesk(ToolEnv[DeskState]):
    """Serve a customer by the rules: the right changes, nothing else, and the right words.

    The assistant talks to a simulated customer and calls tools on the shop's database. The episode ends when the
    customer says goodbye (``stop`` is ``"solved"`` or ``"unsolved"``) or has had enough (``"user_left"``). It is solved
    when three things hold at the end; each is also a metric, 0 or 1, of every turn (with a language model as the
    customer there are three more: ``user_leak``, ``user_refused`` and ``user_tries``):

    * ``db``: the database is what the task's gold actions make of a fresh one;
    * ``told``: every wish was settled as it should be: done, refused for the right reason, told, handed over;
    * ``policy``: the customer was identified by what they said, every change had their yes, orders were looked at
      before they were refused, and nothing of other customers was given away.

    The reward's terms, the same on every turn, are ``success`` (once, when it ends solved), ``progress`` (what the
    share of the task that is done has changed; over the episode this sums to the share at the end), ``turn`` and
    ``tool_error`` (for each call that did not work). All but ``success`` are 0 by default.

    Args:
        tasks: ``None`` for generated tasks; a ``.parquet`` file of rows with ``extra_info.scenario``; or what else
            :func:`~textenvs.data.sources.open_source` takes.
        level: Of generated tasks: ``"easy"`` (the default), ``"medium"``, ``"hard"``.
        split: ``"train"`` or ``"test"``, of generated tasks.
        seed: Which endless sequence of generated tasks. (Episodes are seeded by ``reset``.)
        kinds: Only these kinds of generated tasks; see :data:`~textenvs.envs.service_desk.cases.KINDS`.
        success: The reward of a solved task; above 0.
        progress: The weight of the share of the task that is done; at least 0.
        turn: Added on every turn; at most 0.
        tool_error: Added for every call that did not work; at most 0.
        manner: How the customer behaves and puts things: ``"impatient"``, ``"vague"``, ``"wordy"``, ``"forgetful"``,
            ``"changing_mind"``, ``"non_native"``, a mapping of these to strengths from 0 to 1, a list of which each
            episode draws one, or ``"all"``; see :mod:`textenvs.users.manners`. ``None`` is a plain customer.
        user: A language model that plays the customer instead: a :class:`~textenvs.chat.spec.ChatSpec`, a mapping of
            its options (``{"model": ..., "base_url": ...}``) or a model's name. The row's opening stays its first
            message. Episodes are then as repeatable as the model is, and an episode is solved whichever way it ends,
            as long as the three things hold.
        max_assistant_turns: How many replies there are, with and without calls; ``None`` for no limit.
        **options: ``call_format``, ``max_calls_per_turn``, ``tools_in_prompt``, ``max_user_turns`` (how often the
            customer speaks), ``render_mode``, as in :class:`~textenvs.tool_env.ToolEnv`.

    Raises:
        ValueError: Both ``tasks`` and one of ``level`` and ``kinds``, or a value outside the above.
        TaskError: Rows that cannot be played, listed by file, row and column.
    """

    state_type: ClassVar[type[EpisodeState]] = DeskState
    levels: ClassVar[tuple[str, ...]] = LEVELS
    attack_margin: ClassVar[float] = 0.8
    own_attacks = ATTACKS
    own_script = SCRIPT
    term_names: ClassVar[tuple[str, ...]] = ("success", "progress", "turn", "tool_error")

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        level: Level | None = None,
        split: Split = "train",
        seed: int = 0,
        kinds: Sequence[str] | None = None,
        success: Gain = 1.0,
        progress: Price = 0.0,
        turn: Cost = 0.0,
        tool_error: Cost = 0.0,
        manner: MannerLike | None = None,
        user: SpecLike | None = None,
        max_assistant_turns: int | None = 40,
        **options: Any,
    ) -> None:
        if tasks is None:
            tasks = ServiceDeskTasks(level or "easy", seed, split, kinds)
        elif kinds is not None:
            raise ValueError("give either tasks or kinds, not both: kinds is an option of generated tasks")
        else:
            tasks = open_source(tasks, READER, level=level, split=split, seed=seed)
        self.manners = make_of("manner", manners_of, manner)
        self.player = (
            None if user is None else make_of("user", partial(LLMUser.of, persona=PERSONA, manner=MANNER), user)
        )
        super().__init__(tasks, TOOLS, max_assistant_turns=max_assistant_turns, **options)
        self.success, self.progress, self.turn, self.tool_error = success, progress, turn, tool_error

    def opening(self, task: Task) -> Sequence[Message]:
        state, scenario = self.state, scenario_of(task)
        state.story, state.shop = scenario, scenario.database
        state.right = scenario.database.replay(scenario.gold)
        state.caller, _ = begin(scenario)  # the words are in the prompt
        state.manner = draw_manner(self.manners, self.np_random)
        *before, last = task.prompt
        if state.manner == PLAIN or not isinstance(last["content"], str):
            return task.prompt
        return (*before, {**last, "content": self._say(last["content"])})

    def after_tools(self, reply: Message, results: Sequence[ToolResult]) -> Turn:
        """Bring the results back; the customer neither sees them nor what was written beside the calls."""
        errors = sum(not result.ok for result in results)
        return self._turn(self.tool_messages(results), errors)

    def answer(self, reply: Message) -> Turn | Awaitable[Turn]:
        state, words = self.state, self.visible_reply(reply)
        if any(mentions(words, private) for private in state.story.private):
            state.note("disclosed")
        before = state.caller
        if self.player is not None:
            if len(words) <= MAX_CHARS:
                return self._answer_by_model(self.player, words)
            state.caller = overhear(state.story, before, words, TOO_LONG)  # makes no request to the model
            return self._turn([user_message(TOO_LONG)])
        state.caller, answer = self._listen(words)
        if before.wish and any(new.startswith("refused") for new in state.caller.outcomes[len(before.outcomes) :]):
            self._check_refusal(before.wish)
        return self._turn([user_message(answer)], move=state.caller.move)

    def _listen(self, words: str) -> tuple[UserState, str]:
        """Return the scripted customer's state after a reply, and their answer in the manner of the episode."""
        state, persona = self.state, self.state.story.persona
        before, manner = state.caller, state.manner
        if manner == PLAIN:
            return listen(persona, before, words)
        after, answer = listen(replace(persona, patience=manner.patience(persona.patience)), before, words)
        if _only_details(before, after):
            if manner.evades(state.mood, self.np_random):
                state.mood = replace(state.mood, evaded=True)
                return replace(before, turns=after.turns, move="answers"), manner.evasion(self.np_random)
            message = self._say(answer, True)
            state.mood = replace(state.mood, statements=(*state.mood.statements, answer))
            return after, message
        return after, self._say(answer)

    def _say(self, text: str, telling: bool = False) -> str:
        state, chain = self.state, self.state.story.chain
        facts = [value for wish in chain for value in (*wish.things, *wish.wanted)]
        rivals = [(*wish.things, *wish.rejects) for wish in chain] + [(*w.wanted, *w.other_options) for w in chain]
        return state.manner.say(
            text,
            self.np_random,
            statements=state.mood.statements,
            telling=telling,
            hidden=" ".join([*facts, state.story.persona.zip_code, str(self.task.ground_truth)]),
            rivals=next((group for group in rivals if any(mentions(text, value) for value in group)), ()),
            keep=facts,
        )

    async def _answer_by_model(self, player: LLMUser, words: str) -> Turn:
        state, before = self.state, self.state.caller
        view = self.user_view()
        player = player.briefed(view.manner, self._entitled(words).guard(view))
        turn = await take_turn(player, view.talk, view.goal, self.np_random)
        state.user_side = turn.side
        after = overhear(state.story, before, words, turn.text)
        if turn.ends:
            after = replace(after, wish=None, waiting=(), ended="closed" if turn.why == "satisfied" else "left")
        state.caller = after
        for number, wish in enumerate(state.story.chain):
            if after.outcomes[number].startswith("refused") and not any(before.outcomes[number : number + 1]):
                self._check_refusal(wish)
        outcome = self._turn([user_message(turn.text)] if turn.text else [])
        return replace(outcome, metrics={**outcome.metrics, **turn.metrics})

    def user_view(self) -> UserView:
        state = self.state
        disclosed = state.caller.disclosed
        identified = "email" in disclosed or disclosed >= {"name", "zip"}  # nothing may be done before
        return UserView(
            *(goal_text(state.story), self.talk(), state.manner.instruction(), len(disclosed)),
            recovered=float(identified),
            facts=facts_of(state.story, state.caller),
            conceded=self._has_conceded(),
            behavior=state.manner,
        )

    def _has_conceded(self) -> bool:
        """Return whether the customer took a wish for settled that is not, or not in the right way."""
        state, caller = self.state, self.state.caller
        settled = zip(caller.outcomes, state.story.outcomes, strict=False)
        if any(outcome not in ("", right) for outcome, right in settled):
            return True
        return caller.ended == "closed" and bool(state.shop.differences(state.right))

    def user_may(self, reply: Message) -> Entitled:
        """Tell what the reply asks for, and correct what it asks a yes to."""
        return self._entitled(self.visible_reply(reply))

    def _entitled(self, words: str) -> Entitled:
        story, caller = self.state.story, self.state.caller
        transcript, asks = " ".join([*map(text_of, self.talk()), words]), understand(words).asks
        evadable = caller.wish is not None and _only_details(caller, listen(story.persona, caller, words)[0])
        return Entitled(
            bool(asks),
            lambda text: told_too_much(story, transcript, words, text),
            most=AT_ONCE + (asks >= {"name", "zip"} or "identity" in asks),
            evadable=evadable,
        )

    def _check_refusal(self, wish: Wish) -> None:
        if wish.order_id and self.state.story.customer_id and wish.order_id not in self.state.seen:
            self.state.note("not_looked_at")

    def twin(self, task: Task) -> Task | None:
        """Return the task with another right outcome: other facts to tell, or another reason to refuse."""
        twin = with_other_truth(scenario_of(task))
        return None if twin is None else replace(task_of(twin, task.key, task.data_source), prompt=task.prompt)

    def twin_worlds(self, task: Task) -> Sequence[tuple[str, Sequence[Task]]]:
        """Return shops in which one value of the account or the order is another, and another end is right."""
        return twins_of(task)

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """Return the scripted agent's next reply; ``NotImplementedError`` with a language model as the customer."""
        return self._scripted(next_move)

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """Return a change without consent or on the wrong order, an empty promise, or a refusal without a reason."""
        return self._scripted(lambda state: careless_move(state, rng))

    def secrets(self) -> Sequence[str]:
        """Return the kind of task and the right changes, as in the row."""
        if self.state.task is None:
            return ()
        truth = json.loads(self.state.task.ground_truth)
        return (self.state.story.kind, str(self.state.task.ground_truth), *map(json.dumps, truth["actions"]))

    def conversation_score(self) -> Mapping[str, float]:
        """Return the share of the task that is done, from 0 to 1; 1 only for a solved task."""
        return {"progress": self.state.standing}

    def _turn(self, messages: Sequence[Message], errors: int = 0, move: UserMove | None = None) -> Turn:
        state = self.state
        done = {
            "db": not state.shop.differences(state.right),
            "told": state.caller.outcomes == state.story.outcomes,
            "policy": _rules_kept(state),
        }
        solved = bool(state.caller.ended) and all(done.values())
        share = 1.0 if solved else _share(state)
        gained, state.standing = share - state.standing, share
        stop = None
        if state.caller.ended:
            stop = "solved" if solved else "user_left" if state.caller.ended == "left" else "unsolved"
        return Turn(
            messages,
            terminated=stop is not None,
            stop=stop,
            terms=self.terms(
                success=self.success * solved,
                progress=self.progress * gained,
                turn=self.turn,
                tool_error=self.tool_error * errors,
            ),
            metrics={**{name: float(value) for name, value in done.items()}, **move_metrics(move)},
        )

    def _scripted(self, move: Callable[[DeskState], Move]) -> str | Message:
        if self.player is not None:
            raise NotImplementedError("the scripted agent needs the scripted customer; leave out the option user")
        action = move(self.state)
        return self.format.write(action, ()) if isinstance(action, str) else self.format.write("", (action,))


READER = Reader(ServiceDeskTasks, LEVELS, verl_row, "verl's columns", "my/scenarios", check=scenario_of)


def _only_details(before: UserState, after: UserState) -> bool:
    """Return whether a reply made the customer tell details and nothing else: no yes and no verdict is withheld."""
    details = (after.disclosed - before.disclosed) & set(SLOTS)
    same = replace(after, disclosed=before.disclosed, turns=before.turns, move=before.move) == before
    return bool(details) and same and after.wish is not None


def _rules_kept(state: DeskState) -> bool:
    """Return whether no rule is broken and the customer was identified, or searched for if they have no account."""
    story = state.story
    identified = state.identified == story.customer_id if story.customer_id else bool(state.tried)
    return identified and not state.violations


def _share(state: DeskState) -> float:
    """Return the share of an unsolved task that is done, from 0 to below 1.

    Nothing counts before the customer is identified, nor once a rule is broken or something is changed that should
    stay. The parts are: the customer, each order or case to change, each wish, and the end of the talk.
    """
    story = state.story
    expected = story.database.differences(state.right)
    wrong = state.shop.differences(state.right)
    if not _rules_kept(state) or wrong - expected:
        return 0.0
    settled = 0
    for wish, outcome in zip(story.chain, state.caller.outcomes, strict=False):
        changed = {"done": wish.order_id, "transferred": story.customer_id}.get(outcome)
        if outcome != wish.outcome or changed in wrong:  # claimed, but not done
            break
        settled += 1
    return (1 + len(expected - wrong) + settled) / (2 + len(expected) + len(story.chain))
