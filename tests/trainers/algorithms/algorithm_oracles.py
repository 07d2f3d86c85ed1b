"""Ragged episodes for property tests, and the estimators as plain loops over single episodes, from their formulas."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st
from trajectories import in_contexts, trajectory_of

from trainers.trajectory import Status, Trajectory

forall = hypothesis.given


@dataclass(frozen=True)
class Turn:
    observation: int  # tokens before the reply
    reply: int  # action tokens
    reward: float


@dataclass(frozen=True)
class Episode:
    """An episode with its critic, in the plainest form: lists by turn and token."""

    turns: tuple[Turn, ...]
    terminated: bool
    truncated: bool
    group: str
    values: tuple[tuple[float, ...], ...]  # by turn, by token: of the state before it
    penalties: tuple[tuple[float, ...], ...]
    bootstrap: float

    @property
    def goes_on(self) -> bool:
        return self.truncated and not self.terminated

    def net_rewards(self) -> list[float]:
        return [turn.reward - sum(penalty) for turn, penalty in zip(self.turns, self.penalties, strict=True)]

    def total(self) -> float:
        return sum(self.net_rewards())


def trajectory(episode: Episode) -> Trajectory:
    """Lay the episode out as tokens."""
    visits = [(context_of(episode, number), turn.observation, turn.reply) for number, turn in enumerate(episode.turns)]
    turns, starts = in_contexts(visits, tail=2 * episode.goes_on)
    return trajectory_of(
        turns,
        [turn.reward for turn in episode.turns],
        token_ids=np.zeros(len(turns)),
        logprobs=-1,
        terminated=episode.terminated,
        truncated=episode.truncated,
        status=Status.COMPLETED if episode.terminated else Status.TRUNCATED_TURNS,
        stop="solved" if solved(episode) else "gave_up" if episode.terminated else "max_turns",
        group_id=episode.group,
        segment_starts=np.array(starts, np.int32),
    )


def solved(episode: Episode) -> bool:
    return episode.terminated and episode.turns[-1:] != () and episode.turns[-1].reward > 0


def context_of(episode: Episode, turn: int) -> int:
    """Return the context that a turn is sampled in: half of the episodes use two in turn."""
    return turn % (1 + episode.turns[0].reply % 2)


def flatten(rows: list[tuple[tuple[float, ...], ...]]) -> np.ndarray:
    return np.array([x for row in rows for turn in row for x in turn], np.float64)


number = st.floats(-4, 4, allow_subnormal=False).map(lambda x: round(x, 3))


@st.composite
def an_episode(draw: st.DrawFn, group: str, min_turns: int = 0) -> Episode:
    turns = draw(
        st.lists(st.builds(Turn, st.integers(1, 5), st.integers(1, 6), number), min_size=min_turns, max_size=4)
    )
    rows = [tuple(draw(st.lists(number, min_size=t.reply, max_size=t.reply)) for t in turns) for _ in range(2)]
    terminated, truncated = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
    return Episode(
        tuple(turns), terminated, truncated, group, tuple(map(tuple, rows[0])), tuple(map(tuple, rows[1])), draw(number)
    )


@st.composite
def batches(draw: st.DrawFn, min_turns: int = 0) -> list[Episode]:
    """Some groups, of one to four episodes, shuffled."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    episodes = [draw(an_episode(f"g{g}", min_turns)) for g, size in enumerate(sizes) for _ in range(size)]
    return draw(st.permutations(episodes))


# --- the formulas


def gae_steps(rewards: list[float], values: list[float], after: float, gamma: float, lam: float) -> list[float]:
    """The advantage of step i as the sum over its future: sum_l (gamma lam)^l delta_{i+l}."""
    states = [*values, after]
    deltas = [r + gamma * states[i + 1] - states[i] for i, r in enumerate(rewards)]
    return [sum((gamma * lam) ** (j - i) * deltas[j] for j in range(i, len(deltas))) for i in range(len(deltas))]


def gae(episode: Episode, gamma: float, lam: float) -> list[float]:
    rewards: list[float] = []
    values: list[float] = []
    for turn, row, penalty in zip(episode.turns, episode.values, episode.penalties, strict=True):
        values += row
        rewards += [-p for p in penalty]
        rewards[-1] += turn.reward
    return gae_steps(rewards, values, episode.bootstrap if episode.goes_on else 0.0, gamma, lam)


def turn_gae(episode: Episode, gamma: float, lam: float) -> list[float]:
    """By turn."""
    after = episode.bootstrap if episode.goes_on else 0.0
    return gae_steps(episode.net_rewards(), [row[0] for row in episode.values], after, gamma, lam)


def bilevel_gae(episode: Episode, gamma: float, lam: float, turn_gamma: float, turn_lam: float) -> list[float]:
    """By token: the turns' recursion at their last tokens, then backwards inside each turn."""
    at_end = 0.0
    out: list[float] = []
    last_value = episode.bootstrap if episode.goes_on else 0.0
    for turn, row, penalty in reversed(list(zip(episode.turns, episode.values, episode.penalties, strict=True))):
        earned = turn.reward - penalty[-1]
        at_end = earned + turn_gamma * last_value - row[-1] + turn_gamma * turn_lam * at_end
        inside = [at_end]
        for i in reversed(range(turn.reply - 1)):
            inside.append(-penalty[i] + gamma * row[i + 1] - row[i] + gamma * lam * inside[-1])
        out = inside[::-1] + out
        last_value = row[-1] - sum(penalty[:-1])
    return out


def reinforce(episode: Episode, gamma: float) -> list[float]:
    """By token: the discounted sum of its own and all later tokens' rewards."""
    rewards: list[float] = []
    for turn, penalty in zip(episode.turns, episode.penalties, strict=True):
        rewards += [-p for p in penalty]
        rewards[-1] += turn.reward
    return [sum(gamma ** (j - i) * r for j, r in enumerate(rewards) if j >= i) for i in range(len(rewards))]


def anchor(episode: Episode, turn: int, kind: str) -> tuple[int, ...]:
    """Return what :func:`trajectory` shows before a turn: all tokens are 0 there, so lengths identify the state."""
    if kind == "observation":
        return (episode.turns[turn].observation,)
    own = context_of(episode, turn)
    before = sum(t.observation + t.reply for n, t in enumerate(episode.turns[:turn]) if context_of(episode, n) == own)
    return (before + episode.turns[turn].observation,)


def ending(episode: Episode, kind: str) -> tuple[int, ...] | None:
    """Return the state that a truncated episode ended in: :func:`trajectory` shows two tokens there."""
    if not episode.goes_on:
        return None
    if kind == "observation" or not episode.turns:
        return (2,)
    last = context_of(episode, len(episode.turns) - 1)
    own = [t for n, t in enumerate(episode.turns) if context_of(episode, n) == last]
    return (sum(t.observation + t.reply for t in own) + 2,)


def gagpo(
    episodes: list[Episode], kind: str, gamma: float, lam: float, norm_by_std: bool, eps: float
) -> list[list[float]]:
    """The advantages by turn of the episodes that count."""
    met: dict[Any, list[float]] = {}
    for e in episodes:
        for t in range(len(e.turns)):
            met.setdefault((e.group, anchor(e, t, kind)), []).append(to_go(e, t, gamma))
    rows = []
    for e in episodes:
        values = [mean(met[e.group, anchor(e, t, kind)]) for t in range(len(e.turns))]
        rows.append(gae_steps(e.net_rewards(), values, 0.0, gamma, lam))
    out = []
    for e, row in zip(episodes, rows, strict=True):
        group = [a for other, its in zip(episodes, rows, strict=True) if other.group == e.group for a in its]
        std = mean([(a - mean(group)) ** 2 for a in group]) ** 0.5
        out.append([(a - mean(group)) / (std + eps if norm_by_std else 1.0) for a in row])
    return out


def graphgpo_turn(
    episodes: list[Episode], episode: Episode, turn: int, kind: str, omega: float, norm_by_std: bool, eps: float
) -> float:
    """One turn among those of its group that began in the same state, by the distance of where each led to."""
    edges: list[tuple[Any, Any]] = []
    for number, e in enumerate(episodes):
        if e.group == episode.group:
            last = "goal" if solved(e) else ending(e, kind) or ("end", number)
            states = [anchor(e, t, kind) for t in range(len(e.turns))]
            edges += zip(states, [*states[1:], last], strict=True)

    def distance(state: Any, left: list[Any]) -> float:
        """By trying all paths that meet no state twice."""
        if state == "goal":
            return 0.0
        on = {to for at, to in edges if at == state and to != state and to in left}
        return min((1 + distance(to, [s for s in left if s != to]) for to in on), default=math.inf)

    nodes = list(dict.fromkeys([to for _, to in edges] + [at for at, _ in edges]))
    exact = {state: distance(state, [s for s in nodes if s != state]) for state in nodes}
    farthest = max((d for d in exact.values() if d < math.inf), default=0.0)
    earned = {state: omega ** ((d if d < math.inf else farthest + 1) + 1) for state, d in exact.items()}

    state = anchor(episode, turn, kind)
    same = [earned[to] for at, to in edges if at == state]
    number = next(n for n, e in enumerate(episodes) if e is episode)
    own = [
        *(anchor(episode, t, kind) for t in range(1, len(episode.turns))),
        "goal" if solved(episode) else ending(episode, kind) or ("end", number),
    ][turn]
    std = mean([(x - mean(same)) ** 2 for x in same]) ** 0.5
    return (earned[own] - mean(same)) / (std + eps * max(same) if norm_by_std else 1.0)


def maxrl(episodes: list[Episode], episode: Episode) -> float:
    rewards = [max(e.total(), 0.0) for e in episodes if e.group == episode.group]
    return (max(episode.total(), 0.0) - mean(rewards)) / mean(rewards) if mean(rewards) > 0 else 0.0


def gigpo_turn(
    episodes: list[Episode], episode: Episode, turn: int, kind: str, gamma: float, norm_by_std: bool, eps: float
) -> float:
    """One turn among those of its group that began in the same state."""
    state = anchor(episode, turn, kind)
    same = [
        to_go(e, t, gamma)
        for e in episodes
        if e.group == episode.group
        for t in range(len(e.turns))
        if anchor(e, t, kind) == state
    ]
    centred = to_go(episode, turn, gamma) - mean(same)
    std = mean([(g - mean(same)) ** 2 for g in same]) ** 0.5
    return centred / (std + eps) if norm_by_std else centred


def to_go(episode: Episode, turn: int, gamma: float) -> float:
    return sum(gamma ** (k - turn) * r for k, r in enumerate(episode.net_rewards()) if k >= turn)


def mean(xs: list[float]) -> float:
    return sum(xs) / len(xs) if xs else 0.0


def counted(episodes: list[Episode], truncated: str) -> list[Episode]:
    return [e for e in episodes if e.turns and not (truncated == "drop" and not e.terminated)]


def grpo(episodes: list[Episode], episode: Episode, norm_by_std: bool, eps: float) -> float:
    """One episode's advantage, among those that count."""
    rewards = [e.total() for e in episodes if e.group == episode.group]
    centred = episode.total() - mean(rewards)
    std = mean([(r - mean(rewards)) ** 2 for r in rewards]) ** 0.5
    return centred / (std + eps) if norm_by_std else centred


def terms(episode: Episode) -> tuple[float, float]:
    """Two named rewards that add up to the turns': what was gained, and what was lost."""
    return sum(max(turn.reward, 0.0) for turn in episode.turns), sum(min(turn.reward, 0.0) for turn in episode.turns)


def best_of_k(episodes: list[Episode], episode: Episode, k: int, norm_by_std: bool, eps: float) -> float:
    """One episode's advantage for the best of ``k``: by listing all sets of ``k`` of its group."""
    members = [e for e in episodes if e.group == episode.group]
    if len(members) <= k:
        return 0.0
    sets = [(chosen, max(e.total() for e in chosen)) for chosen in itertools.combinations(members, k)]
    all_best = [best for _, best in sets]
    gain = mean([best for chosen, best in sets if any(e is episode for e in chosen)]) - mean(all_best)
    deviation = mean([(best - mean(all_best)) ** 2 for best in all_best]) ** 0.5
    return gain / (deviation + eps) if norm_by_std else gain


def shrunk(siblings: list[float], groups: list[list[float]]) -> float:
    """The siblings' mean drawn towards that of other groups: by the variance within these and that of their means."""
    means = [mean(group) for group in groups]
    if not siblings:
        return mean(means)
    freedom = sum(len(group) - 1 for group in groups)
    if len(groups) < 2 or not freedom:
        return mean(siblings)
    within = sum((x - m) ** 2 for group, m in zip(groups, means, strict=True) for x in group) / freedom
    between = sum((m - mean(means)) ** 2 for m in means) / (len(means) - 1)
    true = max(between - within * mean([1 / len(group) for group in groups]), 0.0)
    chance = within / len(siblings)
    if chance + true == 0.0:
        return mean(siblings)
    return (true * mean(siblings) + chance * mean(means)) / (chance + true)


def turn_baseline(
    episodes: list[Episode], episode: Episode, turn: int, gamma: float, baseline: str, zero_pad: bool
) -> float:
    """The baseline of one turn of one episode, among the episodes that count."""

    def mean_inputs(same_group: bool) -> list[float]:
        peers = [e for e in episodes if e is not episode and (e.group == episode.group or not same_group)]
        if not zero_pad:
            peers = [e for e in peers if len(e.turns) > turn]
        return [to_go(e, turn, gamma) for e in peers]

    siblings, everyone = mean_inputs(True), mean_inputs(False)
    if baseline == "group":
        return mean(siblings)
    if baseline == "shrunk":
        groups: dict[Any, list[float]] = {}
        for e in episodes:
            if e.group != episode.group and (zero_pad or len(e.turns) > turn):
                groups.setdefault(e.group, []).append(to_go(e, turn, gamma))
        return shrunk(siblings, list(groups.values()))
    return (mean(siblings) + mean(everyone)) / 2 if siblings else mean(everyone)
