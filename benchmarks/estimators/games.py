"""Three small environments whose states can all be enumerated, and a softmax policy over tokens.

An episode is a walk over the states of a token: the history, which the environment knows, and a *context*, which is
the policy's view of it. The policy is a table of logits, a row a context. Values, visits and the gradient of the
expected return are sums over all states, so they are exact.

* ``outcome``: think for some tokens, then answer; up to three attempts. Only the end pays, and the sooner the more.
  How much thinking a task needs is hidden. A right answer ends the episode early.
* ``dense``: every turn pays for the progress that it made, less its length. The policy may stop, else the budget of
  four turns cuts the episode off.
* ``ask``: the request is hidden in two thirds of the tasks. Asking reveals it, and costs; so does asking for known
    facts. Nothing but asking would run into the budget of three turns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.algorithms.batch import ActionBatch, Bools, Floats, Ints

State = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """The result of a token.

    Args:
        state: The next one; ``None`` if the task is over.
        terms: The turn's rewards by name, where the token ends it; ``None`` elsewhere.
        cut: The budget ends the episode here; ``state`` is the state after it.
    """

    state: State | None
    terms: tuple[float, float] | None = None
    cut: bool = False


def _outcome(state: State, token: int) -> Step:
    """Apply a token to a state (task, turn, thoughts). Tokens: think, or one of three answers."""
    task, turn, thoughts = state
    if token == 0 and thoughts < 5:
        return Step((task, turn, thoughts + 1))
    right = token == 1 + task % 3 and thoughts >= task // 3
    if right or turn == 2:
        return Step(None, (0.5**turn if right else 0.0, 0.0))
    return Step((task, turn + 1, 0), (0.0, 0.0))


_WORTH = np.random.default_rng(7).uniform(0.0, 1.0, (4, 6))  # of a place, for each task of `dense`


def _dense(state: State, token: int) -> Step:
    """Apply a token to a state: task, turn, place, tokens said, first place. Tokens: one on, two on, send, stop."""
    task, turn, place, length, before = state
    if token < 2:
        place = (place + 1 + token) % 6
    if token < 2 and length < 3:
        return Step((task, turn, place, length + 1, before))
    terms = (float(_WORTH[task, place] - _WORTH[task, before]), -0.03 * (length + 1))
    over = token == 3 or turn == 6
    return Step(None if over else (task, turn + 1, place, 0, place), terms, cut=turn == 3 and not over)


def _ask(state: State, token: int) -> Step:
    """Apply a token to a state: task, turn, known, words. Tokens: order one of three, ask, or say a filler."""
    task, turn, revealed, words = state
    if token == 4 and words < 3:
        return Step((task, turn, revealed, words + 1))
    if token == 3:
        over = turn == 5
        return Step(
            None if over else (task, turn + 1, 1, 0), (0.0, -0.3 if revealed else -0.1), cut=turn == 2 and not over
        )
    return Step(None, (float(token == task % 3), 0.0))


@dataclass(frozen=True)
class Rules:
    """An environment.

    Args:
        starts: The first state of each task.
        tokens: How many there are, ``A``.
        step: What a token does.
        context: What the policy sees of a state.
    """

    starts: tuple[State, ...]
    tokens: int
    step: Callable[[State, int], Step]
    context: Callable[[State], Hashable]


GAMES = {
    "outcome": Rules(tuple((t, 0, 0) for t in range(12)), 4, _outcome, lambda s: (s[0] % 3, s[1], s[2])),
    "dense": Rules(
        tuple((t, 0, 0, 0, 0) for t in range(4)), 4, _dense, lambda s: (s[0] % 2, min(s[1], 2), s[2], min(s[3], 2))
    ),
    # Of nine tasks, three say what they want at once.
    "ask": Rules(
        tuple((t, 0, int(t < 3), 0) for t in range(9)),
        5,
        _ask,
        lambda s: (s[0] % 3 if s[2] else -1, min(s[1], 2), s[3]),
    ),
}


@dataclass(frozen=True, eq=False)
class Game:
    """An environment as arrays over its ``S`` states and ``A`` tokens.

    Args:
        starts: int ``[tasks]``.
        context: int ``[S]``, of ``C``.
        following: int ``[S, A]``; -1 where the task is over.
        terms: ``[S, A, 2]``; what the turn earned by name; 0 inside a turn.
        ends_turn: bool ``[S, A]``.
        cut: bool ``[S, A]``; the budget ends the episode.
    """

    starts: Ints
    context: Ints
    following: Ints
    terms: Floats
    ends_turn: Bools
    cut: Bools

    @classmethod
    def of(cls, rules: Rules) -> Game:
        """Enumerate the states."""
        numbers: dict[State, int] = {state: n for n, state in enumerate(rules.starts)}
        order, rows = list(rules.starts), []
        for state in order:  # grows
            row = [rules.step(state, token) for token in range(rules.tokens)]
            for step in row:
                if step.state is not None and step.state not in numbers:
                    numbers[step.state] = len(order)
                    order.append(step.state)
            rows.append(row)
        contexts: dict[Hashable, int] = {}
        return cls(
            starts=np.arange(len(rules.starts)),
            context=np.array([contexts.setdefault(rules.context(state), len(contexts)) for state in order]),
            following=np.array([[-1 if s.state is None else numbers[s.state] for s in row] for row in rows]),
            terms=np.array([[s.terms or (0.0, 0.0) for s in row] for row in rows]),
            ends_turn=np.array([[s.terms is not None for s in row] for row in rows]),
            cut=np.array([[s.cut for s in row] for row in rows]),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the policy's logits, ``[C, A]``."""
        return int(self.context.max()) + 1, self.following.shape[1]

    @cached_property
    def rewards(self) -> Floats:
        """Rewards, ``[S, A]``."""
        return self.terms.sum(-1)

    def chances(self, logits: Floats) -> Floats:
        """Return probabilities of tokens by state, ``[S, A]``."""
        return softmax(logits)[self.context]

    def q_values(self, logits: Floats, budget: bool = True) -> Floats:
        """Return the expected return of each token, ``[S, A]``; with the budget, or as if there were none."""
        chances = self.chances(logits)
        goes_on = (self.following >= 0) & ~(self.cut & budget)
        q: Floats = self.rewards
        while True:
            values = (chances * q).sum(1)
            new = self.rewards + np.where(goes_on, values[self.following], 0.0)
            if np.array_equal(new, q):
                return q
            q = new

    def values(self, logits: Floats, budget: bool = True) -> Floats:
        """Return the expected return of each state, ``[S]``."""
        return np.asarray((self.chances(logits) * self.q_values(logits, budget)).sum(1), np.float64)

    def visits(self, logits: Floats) -> Floats:
        """Return the expected number of times that an episode of a random task is in each state, ``[S]``."""
        chances, goes_on = self.chances(logits), (self.following >= 0) & ~self.cut
        now: Floats = np.bincount(self.starts, minlength=len(self.context)) / len(self.starts)
        total = now.copy()
        while now.any():
            flow = (now[:, None] * chances)[goes_on]
            now = np.asarray(np.bincount(self.following[goes_on], flow, minlength=len(now)), np.float64)
            total += now
        return total

    def expected_return(self, logits: Floats) -> float:
        """Return the expected return of an episode of a random task."""
        return float(self.values(logits)[self.starts].mean())

    def gradient(self, logits: Floats) -> Floats:
        """Return the gradient of the expected return, ``[C, A]``."""
        chances, q = self.chances(logits), self.q_values(logits)
        by_state = self.visits(logits)[:, None] * chances * (q - (chances * q).sum(1, keepdims=True))
        total = np.zeros(self.shape)
        np.add.at(total, self.context, by_state)
        return total

    def kl(self, before: Floats, after: Floats) -> float:
        """KL(before, after) in nats a token, over the tokens that ``before`` samples."""
        visits, chances = self.visits(before), self.chances(before)
        by_state = (chances * (log_softmax(before) - log_softmax(after))[self.context]).sum(1)
        return float(visits @ by_state / visits.sum())

    def greedy_returns(self, logits: Floats) -> tuple[Floats, Ints]:
        """Return the return of greedy decoding on each task, and its number of tokens."""
        sure = np.where(logits == logits.max(1, keepdims=True), 0.0, -1e3)
        lengths = []
        for start in self.starts:
            state, count = int(start), 0
            while state >= 0:
                token = int(np.argmax(sure[self.context[state]]))
                count += 1
                state = -1 if self.cut[state, token] else int(self.following[state, token])
            lengths.append(count)
        return self.values(sure)[self.starts], np.array(lengths)


@dataclass(frozen=True, eq=False)
class Episodes:
    """Sampled episodes, flat: ``E`` of them, ``K`` turns and ``N`` tokens.

    Args:
        task: int ``[E]``.
        state: int ``[N]``.
        token: int ``[N]``.
        batch: The estimators' input: rewards, ends, groups, terms, anchors.
        cut_at: int ``[E]``; the state that a cut episode would have continued from, -1 for others.
    """

    task: Ints
    state: Ints
    token: Ints
    batch: ActionBatch
    cut_at: Ints


def play(
    game: Game, logits: Floats, tasks: Ints, group: Ints, rng: np.random.Generator, begin: Ints | None = None
) -> Episodes:
    """Sample an episode of each task, all at once, a token at a time.

    Args:
        game: The environment.
        logits: ``[C, A]``.
        tasks: int ``[E]``.
        group: int ``[E]``; episodes of one task drawn together share it.
        rng: Of the tokens.
        begin: int ``[E]``; the states that they begin in, turns of theirs; ``None`` is those of the tasks.
    """
    below = np.cumsum(softmax(logits), axis=1)
    below[:, -1] = 1.0
    episode, state = np.arange(len(tasks)), game.starts[tasks] if begin is None else begin
    columns: list[tuple[Any, ...]] = []
    cut_at = np.full(len(tasks), -1)
    truncated = np.zeros(len(tasks), np.bool_)
    while len(episode):
        token = (rng.random(len(episode))[:, None] > below[game.context[state]]).sum(1)
        columns.append((episode, state, token))
        cut, following = game.cut[state, token], game.following[state, token]
        truncated[episode[cut]], cut_at[episode[cut]] = True, following[cut]
        goes_on = (following >= 0) & ~cut
        episode, state = episode[goes_on], following[goes_on]
    episode, state, token = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(episode, kind="stable")
    episode, state, token = episode[order], state[order], token[order]
    ends = game.ends_turn[state, token]
    token_offsets = np.concatenate([[0], np.cumsum(np.bincount(episode, minlength=len(tasks)))])
    turn_offsets = np.concatenate([[0], np.cumsum(np.bincount(episode[ends], minlength=len(tasks)))])
    turn_of_token = np.concatenate([[0], np.cumsum(ends)[:-1]])
    starts = np.flatnonzero(np.diff(turn_of_token, prepend=-1))
    earned = game.terms[state, token]
    by_name = [np.bincount(episode, column, minlength=len(tasks)) for column in earned.T]
    batch = ActionBatch(
        token_offsets=token_offsets,
        turn_offsets=turn_offsets,
        turn_index=turn_of_token - turn_offsets[episode],
        turn_rewards=game.rewards[state, token][ends],
        terminated=~truncated,
        truncated=truncated,
        group=group,
        anchor=game.context[state[starts]],
        terms=np.stack(by_name, axis=1),
    )
    return Episodes(tasks, state, token, batch, cut_at)


def softmax(logits: Floats) -> Floats:
    """Return probabilities over the last axis."""
    return np.asarray(np.exp(log_softmax(logits)), np.float64)


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    """Return log-probabilities over the last axis."""
    moved = logits - logits.max(-1, keepdims=True)
    return np.asarray(moved - np.log(np.exp(moved).sum(-1, keepdims=True)), np.float64)
