"""tau2-bench's domains: tools, a policy to follow, a user to talk with, judged by tau2's own rule."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ...chat.spec import SpecLike
from ...data.sources import Reader, Source, open_source, verl_row
from ...env import EnvironmentFailure, EpisodeState, Turn
from ...judges import LLMJudge, conversation_data
from ...messages import Message, assistant, system
from ...messages import user as user_message
from ...options import Cost, PositiveInt, checked, make_of
from ...task import Rows, Task, TaskError
from ...tool_env import ToolEnv
from ...tools import ToolResult
from ...tools import call as tool_call
from ...tools.formats import make_format
from ...tools.toolbox import Toolbox
from ...users.base import UserTurn, take_turn
from ...users.llm import LLMUser
from ...users.moves import move_metrics
from .attacks import ATTACKS
from .evaluator import COMPONENTS, Criteria, other_criteria, read_task
from .files import Folder, find_data
from .user import MAX_CHARS, answer, next_move, opening, readable
from .world import DOMAINS, Call, Domain, Tau2State, begin, tools_of

#: The markers with which a language model as the user leaves.
STOP, TRANSFER, OUT_OF_SCOPE = "###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"
#: tau2's limit on tool calls of both sides that fail.
MAX_ERRORS = 10
#: How many calls in a row a language model as the user may make before it speaks.
USER_CALLS = 8

_INSTRUCTIONS = """\
You are a customer service agent. Help the user by the policy below. In each turn, either write to the user or call \
tools, not both. Keep to the policy.

<policy>
{policy}
</policy>"""
_JUDGE = """\
You judge whether a customer service agent did what was expected of it. "conversation" is what it and the user said, \
and which tools it called. For each line of "expectations" say whether the conversation shows it, in the same order."""


class _Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reasons: str = Field(description="one sentence on each expectation")
    met: list[bool] = Field(description="whether each expectation is met, in their order")


class Tau2(ToolEnv[Tau2State]):
    """Serve a user of tau2-bench: retail, airline, telecom (whose user has tools of its own) or the small mock.

    Tasks, policies, databases and the text for a language model as the user are read from tau2-bench's data folder. The
    tools are this project's own; that they leave the same databases, and the same rewards, is tested against what
    tau2's code said (docs/environments/tau2.md).

    The sum of an episode's rewards is tau2's reward, 0 or 1, and what ``needless`` costs. Its terms are tau2's
    components, each paid in the turn that changed how much of it is met, ``product``, the rest on the last turn (an
    episode that is not solved gives everything back), and ``needless``. An episode that no user ended
    (``"max_assistant_turns"``, ``"too_many_errors"``, ``"user_left"``) has a reward of 0, as in tau2. Metrics of every
    turn are the components' shares, ``needless``, the number of needless changes so far, and ``nl_unjudged``: 1 where a
    task has assertions in words, and no judge was given.

    Args:
        tasks: ``None`` for the domain's own tasks; a ``.parquet`` file of rows of this environment, or what else
            :func:`~textenvs.data.sources.open_source` takes.
        domain: ``"retail"``, ``"airline"``, ``"telecom"`` or ``"mock"``.
        split: A split of the domain: ``"base"``, ``"train"``, ``"test"``; telecom also has ``"small"`` and ``"full"``.
        data: tau2-bench's data folder; by default what ``TAU2_DATA_DIR`` names, or that of an installed clone.
        manual: Telecom's technical manual: as a ``"manual"`` or as a ``"workflow"``.
        user: A language model that plays the user by tau2's guidelines: a ChatSpec, its options as a mapping, or a
            model's name. By default the user is scripted.
        judge: A language model that judges assertions in words, likewise. Without one they count as met.
        needless: Added for every needless change, in the turn that made it; at most 0. A change of the database by
            either side, or a transfer, is needless where it is none of the task's actions. tau2 does not judge this.
        max_assistant_turns: How many replies there are, with and without calls; ``None`` for no limit.
        **options: ``call_format``, ``max_calls_per_turn``, ``tools_in_prompt``, ``max_user_turns``, ``render_mode``, as
            in :class:`~textenvs.tool_env.ToolEnv`.

    Raises:
        ValueError: No data folder, or none with this domain and split; the message says how to get it.
        TaskError: A task that cannot be played.
    """

    state_type: ClassVar[type[EpisodeState]] = Tau2State
    attack_margin: ClassVar[float] = 0.5
    own_attacks = ATTACKS
    term_names: ClassVar[tuple[str, ...]] = (*COMPONENTS, "product", "needless")

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        domain: Domain = "retail",
        split: str = "base",
        data: str | None = None,
        manual: Literal["manual", "workflow"] = "manual",
        user: SpecLike | None = None,
        judge: SpecLike | None = None,
        needless: Cost = 0.0,
        max_assistant_turns: PositiveInt | None = 100,
        **options: Any,
    ) -> None:
        root = find_data(data)
        self.folder = Folder(str(root / domain), domain)
        self.folder.tables  # noqa: B018  a folder without the domain's database is an error now
        if tasks is None:
            own = [_task(domain, row) for row in self.folder.tasks(split)]
            tasks = Rows(f"tau2 {domain} ({split})", own)
        else:
            tasks = open_source(tasks, _READER, level=None, split="train", seed=0)
        policy = self.folder.text("policy.md", "main_policy.md")
        if domain == "telecom":
            policy += f"\n\n{self.folder.text(f'tech_support_{manual}.md')}"
        self.instructions = _INSTRUCTIONS.format(policy=policy.strip())
        self.user_tools = Toolbox(tools_of(domain, "user"), max_calls_per_turn=1)
        self.user_format = make_format("hermes", self.user_tools.tools)
        self.player = None if user is None else make_of("user", partial(LLMUser.of, **self._manner(root)), user)
        self.judge = (
            None if judge is None else make_of("judge", partial(LLMJudge, instructions=_JUDGE, verdict=_Verdict), judge)
        )
        self.needless = needless
        super().__init__(tasks, tools_of(domain, "assistant"), max_assistant_turns=max_assistant_turns, **options)

    def _manner(self, root: Any) -> dict[str, Any]:
        name = "simulation_guidelines_tools.md" if self.user_tools.tools else "simulation_guidelines.md"
        guidelines = Folder(str(_guidelines(root)), self.folder.domain).text(name)
        if self.user_tools.tools:
            guidelines += f"\n\n{self.user_format.instructions()}"
        # tau2 gives the whole scenario and lets the model say what it will: its guidelines are the only guard.
        return {"manner": guidelines, "format": "text", "end_marker": STOP, "leak_limit": None}

    # ------------------------------------------------------------------ the episode

    def opening(self, task: Task) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        state, (row, criteria) = self.state, self._read(task)
        initial = row.get("initial_state") or {}
        history, calls = self._history(initial.get("message_history") or ())
        start = begin(self.folder, initial, calls)
        state.db, state.calls = start, tuple(calls)
        state.gold = criteria.gold(start)
        for message in initial.get("message_history") or ():
            if message["role"] == "assistant" and not message.get("tool_calls"):
                state.communicated |= criteria.communicated_in(message.get("content") or "")
        state.shares = self._shares(criteria)
        state.trivial = self._met(criteria, state.shares)
        before = (system(self.instructions), *history)
        if self.player is None:
            return (*before, user_message(opening(row, state)))
        spoken = tuple(
            message for message in history if message["role"] in ("user", "assistant") and message["content"]
        )
        state.talk = spoken or (assistant("Hi! How can I help you today?"),)
        return self._open_by_model(before, row)

    async def _open_by_model(self, before: Sequence[Message], row: Mapping[str, Any]) -> Sequence[Message]:
        turn = await self._speak(row)
        if turn.ends:
            raise EnvironmentFailure("user_failed", "the model that plays the user left before the assistant spoke")
        return (*before, user_message(turn.text))

    def after_tools(self, reply: Message, results: Sequence[ToolResult]) -> Turn | Awaitable[Turn]:
        """Return the results as messages; the user sees neither them nor the text beside the calls."""
        self.state.move = None
        return self._turn(self.tool_messages(results))

    def answer(self, reply: Message) -> Turn | Awaitable[Turn]:
        (row, criteria), state, words = self._read(self.task), self.state, self.visible_reply(reply)
        if readable(words):
            state.communicated |= criteria.communicated_in(words)
        if self.player is None:
            return self._turn([user_message(answer(row, state, words))])
        return self._answer_by_model(row, words[:MAX_CHARS])

    async def _answer_by_model(self, row: Mapping[str, Any], words: str) -> Turn:
        self.state.talk = (*self.state.talk, assistant(words))
        turn = await self._speak(row)
        result = self._turn([user_message(turn.text)] if turn.text else [])
        result = result if isinstance(result, Turn) else await result
        return replace(result, metrics={**result.metrics, **turn.metrics})

    async def _speak(self, row: Mapping[str, Any]) -> UserTurn:
        """Return the model's turn as the user, after the calls of the user's own tools that it makes first."""
        state, scenario = self.state, row["user_scenario"]
        goal = json.dumps(scenario, indent=1, ensure_ascii=False)
        assert self.player is not None
        for _ in range(USER_CALLS):
            turn = await take_turn(self.player, state.talk, goal, self.np_random)
            state.user_side = turn.side
            parsed = self.user_format.parse(turn.text)
            state.talk = (*state.talk, user_message(turn.text))
            if not (parsed.calls or parsed.problems):
                break
            results = self.user_tools.run_now(parsed.calls, state)
            state.tool_errors += sum(not result.ok for result in results) + len(parsed.problems)
            outputs = [result.content for result in results] + list(parsed.problems)
            # Only the user sees it: no part of this is in the assistant's conversation.
            state.talk = (*state.talk, assistant("(Your tool, not the assistant:)\n" + "\n".join(outputs)))
            if turn.ends:
                break
        text = parsed.text
        for marker, ended in ((TRANSFER, "transfer"), (OUT_OF_SCOPE, "stop")):
            if marker in text:
                text, state.ended = text.partition(marker)[0], ended
        if turn.ends:
            state.ended = "stop"
        if not text.strip() and not state.ended:
            text = "One moment, please."  # the model has used up its calls without a message
        return replace(turn, text=text, ends=bool(state.ended), why=state.ended or None)

    # ------------------------------------------------------------------ the reward

    def _shares(self, criteria: Criteria) -> dict[str, float]:
        state = self.state
        return {**criteria.shares(state.db, state.gold, state.calls, state.communicated), "nl_assertion": 1.0}

    def _turn(self, messages: Sequence[Message]) -> Turn | Awaitable[Turn]:
        state, criteria = self.state, self._criteria
        stop = state.ended
        if not stop and state.tool_errors >= MAX_ERRORS:
            stop = "too_many_errors"
        if stop in ("stop", "transfer") and self.judge is not None and "nl_assertion" in criteria.components:
            return self._judged(messages, criteria, self.judge)
        return self._turn_with_reward(messages, criteria, self._shares(criteria), stop)

    async def _judged(self, messages: Sequence[Message], criteria: Criteria, judge: LLMJudge[_Verdict]) -> Turn:
        conversation = conversation_data((*self.state.messages, *messages), tools=True)
        expected = list(criteria.nl_assertions)
        verdict = await judge.judge({"conversation": conversation, "expectations": expected})
        met = (verdict.met + [False] * len(expected))[: len(expected)]
        shares = {**self._shares(criteria), "nl_assertion": sum(met) / len(met)}
        return self._turn_with_reward(messages, criteria, shares, self.state.ended)

    def _turn_with_reward(
        self, messages: Sequence[Message], criteria: Criteria, shares: Mapping[str, float], stop: str
    ) -> Turn:
        state = self.state
        judged = criteria.components - (set() if self.judge else {"nl_assertion"})
        weight = 1 / max(1, len(judged))
        terms = {
            name: weight * (shares[name] - state.shares.get(name, 0.0))
            for name in COMPONENTS
            if name in judged and (name != "nl_assertion" or stop in ("stop", "transfer"))
        }
        if "nl_assertion" in terms:
            terms["nl_assertion"] = weight * shares["nl_assertion"]  # decided at the end, and not before
        solved = stop in ("stop", "transfer") and all(shares[name] == 1.0 for name in judged)
        state.reward_sum += sum(terms.values())
        if stop or self.spent_budget(messages):
            terms["product"] = float(solved) - state.reward_sum
        state.shares = dict(shares)
        before, state.needless = state.needless, criteria.needless(state.made)
        terms["needless"] = self.needless * (state.needless - before)
        if stop in ("stop", "transfer"):
            stop = "solved" if solved else "unsolved"
        elif stop == "left":
            stop = "user_left"
        unjudged = "nl_assertion" in criteria.components and self.judge is None
        return Turn(
            messages,
            terminated=bool(stop),
            stop=stop or None,
            terms=self.terms(**terms),
            metrics={
                **shares,
                "nl_unjudged": float(unjudged),
                "needless": float(state.needless),
                **move_metrics(state.move),
            },
        )

    def conversation_score(self) -> Mapping[str, float]:
        """Return tau2's reward if the user left now; 0 where the episode ended in another way.

        Where nothing has to be done for it (11 of retail's 114 tasks) it is 0, too, until the user has left: otherwise
        any future would be worth the whole reward.
        """
        criteria, state = self._criteria, self.state
        if state.stop not in ("solved", "unsolved") if state.done else state.trivial:
            return {"reward": 0.0}
        return {"reward": float(self._met(criteria, self._shares(criteria)))}

    def _met(self, criteria: Criteria, shares: Mapping[str, float]) -> bool:
        return all(shares[name] == 1.0 for name in criteria.components)

    # ------------------------------------------------------------------ what plays and tests it

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """Return the task's next own action; ``NotImplementedError`` where a language model plays the user."""
        return self._scripted(careless=False, rng=rng)

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """Leave an action out, make an argument up, or claim that all is done."""
        return self._scripted(careless=True, rng=rng)

    def _scripted(self, *, careless: bool, rng: np.random.Generator) -> str | Message:
        if self.player is not None:
            raise NotImplementedError("the scripted agent needs the scripted user; leave out the option user")
        state = self.state
        parsed = [self.format.parse(message) for message in state.messages if message["role"] == "assistant"]
        texts = [reply.text for reply in parsed if not reply.calls and not reply.problems]
        move = next_move(self._criteria, state, texts)
        if careless:
            if isinstance(move, str) or rng.random() < 0.5:
                return self.format.write("That has been done. Is there anything else?", ())
            wrong = {name: f"{value}0" if isinstance(value, str) else value for name, value in move.arguments.items()}
            move = replace(move, arguments=wrong)
        if isinstance(move, str):
            return self.format.write(move, ())
        return self.format.write("", (tool_call(move.name, **move.arguments),))

    def twin(self, task: Task) -> Task:
        """Return the task judged by other arguments of its actions, and by the contrary of its assertions."""
        row = dict(self._read(task)[0])
        row["evaluation_criteria"] = other_criteria(row.get("evaluation_criteria"))
        truth = json.dumps(row["evaluation_criteria"], ensure_ascii=False)
        return replace(task, ground_truth=truth, extra={**task.extra, "tau2": json.dumps(row, ensure_ascii=False)})

    def secrets(self) -> Sequence[str]:
        """Return the task's criteria, and its actions that change something, as the row has them."""
        if self.state.task is None:
            return ()
        calls = self._criteria.calls
        changes = (action.arguments for action in calls if action.writes(self.folder.domain))
        return (str(self.state.task.ground_truth), *(json.dumps(arguments) for arguments in changes))

    # ------------------------------------------------------------------ rows

    def _read(self, task: Task) -> tuple[Mapping[str, Any], Criteria]:
        """Return a row's task as tau2 has it, and its criteria."""
        if task.extra.get("domain") != self.folder.domain:
            raise TaskError(
                f"task {task.key!r} is of the domain {task.extra.get('domain')!r}, and this environment of "
                f"{self.folder.domain!r}; make one with domain=..., one of {', '.join(DOMAINS)}"
            )
        return _as_tau2_has_it(task)

    @property
    def _criteria(self) -> Criteria:
        return self._read(self.task)[1]

    def _history(self, history: Sequence[Mapping[str, Any]]) -> tuple[list[Message], list[Call]]:
        """Return a task's earlier messages in this environment's format, and their calls."""
        messages: list[Message] = []
        calls: list[Call] = []
        for entry in history:
            made = entry.get("tool_calls") or ()
            calls += [Call(entry["role"], one["name"], one["arguments"]) for one in made]
            written = [tool_call(one["name"], **one["arguments"]) for one in made]
            if entry["role"] == "assistant":
                reply = self.format.write(entry.get("content") or "", written)
                messages.append(assistant(reply) if isinstance(reply, str) else reply)
            elif entry["role"] == "user" and not made:
                messages.append(user_message(entry["content"]))
            elif entry["role"] == "tool" and entry.get("requestor", "assistant") == "assistant":
                done = tool_call(next(call.name for call in reversed(calls)))
                messages += self.tool_messages([ToolResult(done, entry["content"])])
        return messages, calls


def _as_tau2_has_it(task: Task) -> tuple[Mapping[str, Any], Criteria]:
    return read_task(str(task.extra.get("tau2")))


_READER = Reader(Rows, (), verl_row, "verl's columns", "my/tau2-rows", check=_as_tau2_has_it)


def _task(domain: str, row: Mapping[str, Any]) -> Task:
    criteria = json.dumps(row.get("evaluation_criteria"), ensure_ascii=False)
    return Task(
        key=f"{domain}/{row['id']}",
        data_source=f"tau2/{domain}",
        prompt=(user_message(opening(row, Tau2State())),),
        ground_truth=criteria,
        ability="tools",
        extra={"domain": domain, "tau2": json.dumps(row, ensure_ascii=False)},
    )


def _guidelines(root: Any) -> Any:
    """Return the folder of the guidelines, which is beside the domains or among them."""
    return next(
        (folder for folder in (root / "user_simulator", root.parent / "user_simulator") if folder.is_dir()), root
    )
