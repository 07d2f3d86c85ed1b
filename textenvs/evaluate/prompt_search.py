"""A search for a system prompt by an environment's reward: GEPA, by the library of that name (extra ``prompts``).

GEPA (arXiv 2507.19457) shows a model a few training episodes of a prompt with what they earned, and asks it for a
better prompt. A proposal that earns more on these tasks is played on all validation tasks. The next parent is drawn
from the prompts that are best on any validation task (the Pareto front). Training and validation tasks are disjoint, so
a prompt that contains answers earns nothing by them.

Nothing of the library's state is stored. The search is a function of its seed, of the returns of episodes and of the
replies of the reflection model; whoever stores these (``play`` and ``reflect``) resumes it by running it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np

from ..messages import Messages, transcript
from ..task import TaskSet
from ..text import digest, plural
from .plan import Job, choose_tasks
from .policies import OutOfContext, Player, Policy, PolicyFailure, Reply, Stopped, ToolSchemas
from .records import Record
from .statistics import Estimate, estimate

#: The name of the searched text in the library.
COMPONENT = "system_prompt"
#: The longest prompt that is played, in characters: a longer one costs more in every episode than it can be worth.
LONGEST = 20_000
#: So many proposals in a row that cannot be played, or were proposed before, end the search.
MOST_USELESS = 6
#: Characters of an episode's transcript that the reflection model reads; its middle is left out.
TRANSCRIPT = 6000
#: The beginning of the failure of an episode whose opening does not fit the model's context.
NO_ROOM = "the prompt and the opening do not fit the model's context"

#: Plays a prompt on tasks and returns their records, in order.
Play: TypeAlias = Callable[[str, Sequence[Job]], Sequence[Record]]
#: Returns the reflection model's reply to a request; the number says which of the search's requests it is, from 0.
Reflect: TypeAlias = Callable[[int, str], str]


@dataclass(frozen=True)
class Split:
    """Indices of disjoint tasks: to reflect on, to choose a prompt by, and for the final comparison."""

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]


def disjoint_tasks(tasks: TaskSet, train: int, validation: int, test: int, seed: int) -> Split:
    """Draw three sets of tasks that share no task, also where a task set has the same one under several indices.

    Raises:
        ValueError: There are too few different tasks.
    """
    needed, size = train + validation + test, tasks.size
    drawn: list[int] = []
    count = needed
    while True:
        count = count if size is None else min(count, size)
        drawn = _different(tasks, choose_tasks(tasks, count, seed))
        if len(drawn) >= needed:
            break
        if count == size or count >= 16 * needed:
            found = f"{len(drawn)} different tasks" + ("" if count == size else f" among {count}")
            raise ValueError(f"{train} + {validation} + {test} tasks are needed, and {tasks.name} has {found}")
        count *= 2
    order = [int(index) for index in np.random.default_rng([seed, 11]).permutation(drawn)[:needed]]
    return Split(
        tuple(sorted(order[:train])),
        tuple(sorted(order[train : train + validation])),
        tuple(sorted(order[train + validation :])),
    )


def _different(tasks: TaskSet, indices: Sequence[int]) -> list[int]:
    """Return the indices without those of tasks that ask and pay for the same as an earlier one.

    A task without a right answer (a game) is what its seed makes of it, and differs from every other.
    """
    seen: set[bytes] = set()
    different = []
    for index in indices:
        task = tasks[index]
        key = digest(task.data_source, task.prompt, task.ground_truth, sorted(task.extra.items(), key=str))
        if task.ground_truth is None or key not in seen:
            seen.add(key)
            different.append(index)
    return different


class FitsPolicy:
    """A policy that says of an opening that exceeds its context that it does (:data:`NO_ROOM`).

    For the policy alone that is a failure of the settings; in a search it is the prompt's.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def start(self, env: Any, seed: int) -> Player:
        player, turns = self.policy.start(env, seed), 0

        async def play(conversation: Messages, tools: ToolSchemas) -> Reply:
            nonlocal turns
            turns += 1
            try:
                return await player(conversation, tools)
            except OutOfContext as error:
                if turns > 1:
                    raise
                raise PolicyFailure(f"{NO_ROOM}: {error}") from error

        return play

    async def aclose(self) -> None:
        await self.policy.aclose()


def scores(records: Sequence[Record]) -> list[float]:
    """Return the returns of episodes; minus infinity where the prompt did not fit the model's context.

    An episode that failed for another reason says nothing of the prompt: it counts as the mean of the others.

    Raises:
        Stopped: All episodes failed.
    """
    unfit = [record.failed and (record.failure or "").startswith(NO_ROOM) for record in records]
    good = [record.total for record in records if not record.failed]
    if not good and not any(unfit):
        last = records[-1]
        raise Stopped(f"{len(records)} of {len(records)} episodes failed; the last one: {last.stop}: {last.failure}")
    mean = fmean(good) if good else -math.inf
    return [
        -math.inf if no_room else mean if record.failed else record.total
        for record, no_room in zip(records, unfit, strict=True)
    ]


def feedback(record: Record, prompt: str, privileged: str | None = None) -> dict[str, str]:
    """Return an episode as the reflection model reads it: the conversation, and what it earned, turn by turn."""
    messages = [message for context in (*record.contexts, record.messages) for message in context]
    text = transcript(messages)
    if prompt:
        text = text.replace(prompt, "[the instructions]", 1)
    if len(text) > TRANSCRIPT:
        half = TRANSCRIPT // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters are left out ...]\n{text[-half:]}"
    lines = [
        f"Return: {record.total:g}; the task was {'solved' if record.success else 'not solved'}.",
        f"The episode ended by: {record.stop or 'unknown'}.",
        f"Rewards of the turns: {', '.join(f'{reward:g}' for reward in record.turn_rewards) or 'none'}.",
    ]
    for name, values in (("Parts of the reward", record.terms), ("Metrics", record.metrics)):
        if values:
            lines.append(f"{name}: {', '.join(f'{key} {value:g}' for key, value in values.items())}.")
    if record.cut_replies:
        lines.append(f"{record.cut_replies} of {record.assistant_turns} replies were cut off at their longest length.")
    if record.failed:
        lines.append(f"The episode failed: {record.failure}")
    if privileged is not None:
        lines.append(f"Not known to the assistant: {privileged}")
    return {"Conversation": text, "Feedback": "\n".join(lines)}


@dataclass
class Proposal:
    """A prompt of a search, and its scores: mean returns."""

    prompt: str
    parent: int | None = None  # the number of the candidate that it was made from; ``None`` of the start
    candidate: int | None = None  # its own number among those that were played on the validation tasks
    before: float | None = None  # of the parent, on the training tasks that were reflected on
    after: float | None = None  # its own, on the same tasks
    validation: float | None = None
    refused: str | None = None  # why it is no candidate

    def to_json(self) -> dict[str, Any]:
        values = {**vars(self)}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }


@dataclass
class Search:
    """One search by the library's ``gepa.optimize``: its adapter, callback and stop condition.

    Args:
        play: Plays a prompt; the same prompt on the same task must earn the same every time.
        reflect: Asks the reflection model.
        start: The prompt to begin with.
        train: Episodes to reflect on, one a task.
        validation: Episodes to choose by, one a task.
        budget: Episodes that may be played; a repeated one is counted once.
        minibatch: Episodes that one reflection reads.
        seed: Of the order of tasks and of the choice of parents.
        privileged: Returns what the reflection model may read of a training task beyond its episode.
        report: Called with each line of progress.
    """

    play: Play
    reflect: Reflect
    start: str
    train: Sequence[Job]
    validation: Sequence[Job]
    budget: int
    minibatch: int = 3
    seed: int = 0
    privileged: Callable[[Job], str | None] | None = None
    report: Callable[[str], None] = lambda line: None
    proposals: list[Proposal] = field(default_factory=list)  # the start, and every proposal
    ended: str = "the budget is spent"  # why the search ended
    reflections: int = 0  # replies of the reflection model

    propose_new_texts = None  # of the library's adapter: it renders the request and reads the prompt from the reply

    def __post_init__(self) -> None:
        self._played: set[tuple[str, tuple[int, int]]] = set()
        self._useless = 0  # proposals in a row that could not be played
        self._refused: str | None = None  # why the proposal that is to be played next is not
        self._error: Exception | None = None
        self._parent, self._before = 0, 0.0  # of the next proposal: its parent, and the parent's mean return

    @property
    def spent(self) -> int:
        """Episodes that were played."""
        return len(self._played)

    @property
    def step(self) -> int:
        """The most episodes that one more proposal takes."""
        return 2 * self.minibatch + len(self.validation)

    @property
    def candidates(self) -> list[Proposal]:
        """The proposals that were played on all validation tasks, the start first."""
        return [proposal for proposal in self.proposals if proposal.candidate is not None]

    @property
    def best(self) -> Proposal:
        """The candidate with the highest mean return on the validation tasks; the earliest of equals."""
        return max(self.candidates, key=lambda candidate: candidate.validation or 0.0)

    def check_budget(self) -> None:
        """Raise ``ValueError`` where the budget is too small for the start and one proposal."""
        least = len(self.validation) + self.step
        if self.budget < least:
            raise ValueError(f"a budget of {self.budget} episodes is too small for one proposal; it takes {least}")

    def run(self) -> Proposal:
        """Search, and return the best candidate on the validation tasks.

        Raises:
            ImportError: The library is missing.
            Stopped: Neither a prompt nor an episode can be had; what ``play`` and ``reflect`` raise comes through.
            ValueError: As :meth:`check_budget`.
        """
        optimize = load_gepa().optimize
        self.check_budget()
        self.proposals.append(Proposal(self.start))
        optimize(
            {COMPONENT: self.start},
            trainset=list(self.train),
            valset=list(self.validation),
            adapter=self,
            reflection_lm=self._ask,
            reflection_minibatch_size=self.minibatch,
            skip_perfect_score=False,  # returns have no common maximum
            stop_callbacks=self._stop,
            callbacks=[self],
            logger=_Silent(),
            seed=self.seed,
            track_best_outputs=False,
        )
        if self._error is not None:
            raise self._error
        if self._useless and self._useless == self.reflections:
            last = self.proposals[-1].refused
            raise Stopped(
                f"the reflection model gave no usable prompt in {plural(self.reflections, 'reply', 'replies')} "
                f"(the last one: {last}); name a larger one"
            )
        return self.best

    # ------------------------------------------------------------------ the library's adapter

    def evaluate(self, batch: Sequence[Job], candidate: Mapping[str, str], capture_traces: bool = False) -> Any:
        """Play a prompt on tasks; one that cannot be played has the score minus infinity, which is never accepted."""
        prompt = candidate[COMPONENT]
        if self._refused is not None:
            records: Sequence[Record] = [Record(*job.place, job.seed, job.task_index, "", "") for job in batch]
            returns, new = [-math.inf] * len(batch), 0
        else:
            records = self.play(prompt, batch)
            returns = scores(records)
            before = self.spent
            self._played.update((prompt, job.place) for job in batch)
            new = self.spent - before
            if prompt == self.start and -math.inf in returns:
                first = next(record for record in records if record.failed)
                raise Stopped(f"{first.failure}; begin with a shorter prompt")
        return load_gepa().EvaluationBatch(
            outputs=list(records),
            scores=returns,
            trajectories=list(zip(batch, records, strict=True)) if capture_traces else None,
            num_metric_calls=new,
        )

    def make_reflective_dataset(
        self, candidate: Mapping[str, str], eval_batch: Any, components_to_update: Sequence[str]
    ) -> dict[str, list[dict[str, str]]]:
        """Return what the reflection model reads of the episodes."""
        try:
            feedbacks = [
                feedback(record, candidate[COMPONENT], None if self.privileged is None else self.privileged(job))
                for job, record in eval_batch.trajectories
            ]
        except Exception as error:  # the library would log it and try again without end
            self._error = error
            raise
        return dict.fromkeys(components_to_update, feedbacks)

    def _ask(self, request: str) -> str:
        if self._error is not None:  # the library asks a second time
            raise self._error
        try:
            reply = self.reflect(self.reflections, request)
        except Exception as error:  # as above
            self._error = error
            raise
        self.reflections += 1
        return reply

    def _stop(self, state: Any) -> bool:
        if self._useless >= MOST_USELESS:
            self.ended = f"{self._useless} proposals in a row were of no use ({self.proposals[-1].refused})"
        return self._error is not None or self._useless >= MOST_USELESS or self.spent + self.step > self.budget

    # ------------------------------------------------------------------ its callbacks

    def on_candidate_selected(self, event: Mapping[str, Any]) -> None:
        self._parent = event["candidate_idx"]

    def on_proposal_end(self, event: Mapping[str, Any]) -> None:
        """Note a proposal before it is played."""
        prompt, refused = event["new_instructions"][COMPONENT], None
        if not prompt.strip():
            refused = "an empty reply"
        elif len(prompt) > LONGEST:
            refused = f"{len(prompt)} characters, and at most {LONGEST} are played"
        elif any(prompt == proposal.prompt for proposal in self.proposals):
            refused = "proposed before"
        self._refused = refused
        self._useless = 0 if refused is None else self._useless + 1
        self.proposals.append(Proposal(prompt, self._parent, before=self._before, refused=refused))

    def on_evaluation_end(self, event: Mapping[str, Any]) -> None:
        """Note the mean return on the training tasks that are reflected on, of the parent and then of the proposal."""
        mean = fmean(event["scores"])
        if event["candidate_idx"] is not None:
            self._before = mean
        elif self._refused is None:
            self.proposals[-1].after = mean
        self._refused = None

    def on_candidate_rejected(self, event: Mapping[str, Any]) -> None:
        latest = self.proposals[-1]
        latest.refused = latest.refused or "no better on the training tasks that were reflected on"
        self.report(f"{self._place(latest)}: {latest.refused}")

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        latest = self.proposals[-1]
        latest.candidate, latest.validation = event["candidate_idx"], event["average_score"]
        best = ", the best so far" if self.best is latest and latest.candidate else ""
        self.report(f"{self._place(latest)}: {latest.validation:+.3f} on the validation tasks{best}")

    def _place(self, proposal: Proposal) -> str:
        number = len(self.proposals) - 1
        return f"{self.spent} of {self.budget} episodes, " + (f"proposal {number}" if number else "the start")


class _Silent:
    """The library's logger; the search reports by itself."""

    def log(self, message: str) -> None:
        """Drop the message."""


def compare(start: Sequence[Record], found: Sequence[Record]) -> dict[str, Any]:
    """Compare two prompts on the same held-out tasks: mean returns, and their paired difference.

    ``tasks`` is how many tasks were played without a failure by both; the others are left out. Estimates are those of
    :mod:`.statistics`; the difference's interval resamples tasks, with both episodes of each.

    Raises:
        Stopped: No task was played by both.
    """
    pairs = [(first, second) for first, second in zip(start, found, strict=True) if not (first.failed or second.failed)]
    if not pairs:
        raise Stopped("no held-out task was played by both prompts without a failure")
    returns: dict[str, Estimate] = {
        "start": estimate([[first.total] for first, _ in pairs]),
        "found": estimate([[second.total] for _, second in pairs]),
        "difference": estimate([[second.total - first.total] for first, second in pairs]),
    }
    solved = [fmean(record.success for record in side) for side in zip(*pairs, strict=True)]
    return {"tasks": len(pairs), **returns, "solved": {"start": solved[0], "found": solved[1]}}


def load_gepa() -> Any:
    """Import the library; ``ImportError`` names the extra."""
    try:
        import gepa
    except ImportError as error:
        raise ImportError(
            f"a search for prompts needs the package gepa: pip install 'textenvs[prompts]' ({error})"
        ) from error
    return gepa
