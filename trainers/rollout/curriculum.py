"""The curriculum: which component of a mixture the next group plays, which of its tasks, and from which state on.

A pure state machine. The collector asks :meth:`Curriculum.choose` once for every group, when it is admitted, and
reports the groups' results when a batch is taken (:meth:`Curriculum.observe`).

**Dependence.** A choice depends on the run's seed, the choices before it, and the results of all batches taken before
the group was admitted; never on the order in which episodes end within a batch. With staleness, which batches those are
depends on time; the choice is recorded, and a resumed run plays groups that were in flight as they were chosen.

**Components** take turns by smooth weighted round robin: each choice adds every component's share to its credit, and
the one with the most pays 1. So a component's groups are never a whole group above the sum of its shares, and less than
``components - 1`` below it.

**Shares.** ``fixed``: the weights. ``signal``: the weights times the components' signal, which is the mean over groups
of an unbiased estimate of ``4 p (1 - p)``, where p is the chance of success at the group's task: with k successes among
n episodes, ``4 k (n - k) / (n (n - 1))``. SPEED (arXiv 2506.09016v2, since withdrawn; theorem 3.1) bounds the
signal-to-noise ratio of a policy gradient from N episodes of a task by ``4 N p (1 - p)``; PCL (arXiv 2510.01135) finds
the largest gradients at p = 1/2. ``floor`` of the shares stays as the weights have it. A task of a finite set that has
been played is passed over with the probability ``(1 - floor) (1 - its own signal)``.

**Starts.** With ``reverse_share``, that share of a component's groups begins in a state that an earlier, successful
episode reached: before its last reply first, and one reply earlier each time that at least half of a group succeeds
from there (else one later), until the opening (Florensa et al., arXiv 1707.05300; R3, arXiv 2402.05808). A start is
kept as the seed and the sampled tokens of each reply, and is in use by one group at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..chat_template import RendererError
from ..config.rollout import ComponentSection, CurriculumSection
from ..trajectory import Trajectory, solved
from .environments import Backend, EnvError
from .renderer import Renderer
from .seeds import derive_seed, environment_seed

_AT_ONCE = 64  # environments, where their backend has no limit of its own


class TaskOrder:
    """Order of tasks: every epoch a new permutation of all tasks, or the tasks in their own order.

    ``size`` is the number of tasks; ``None`` is an endless set, whose group ``n`` plays task ``n``. Tasks
    ``without`` are left out. ``ValueError``: no task remains, or ``without`` has indices that are no task's.
    """

    def __init__(self, size: int | None, *, seed: int = 0, shuffle: bool = True, without: Collection[int] = ()) -> None:
        if size is not None and size < 1:
            raise ValueError(f"there are {size} tasks; at least one is needed")
        self.without = frozenset(without)
        if self.without and (size is None or min(self.without) < 0 or max(self.without) >= size):
            raise ValueError(f"only tasks of a finite set can be left out, and this one has {size or 'endless'} tasks")
        if size is not None and len(self.without) == size:
            raise ValueError(f"none of the {size} tasks is left")
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self._indices = np.delete(np.arange(size), list(self.without)) if size is not None and self.without else None

    @property
    def identity(self) -> str:
        """Identity of the order, for checkpoints: which tasks the groups' numbers mean, given those left out."""
        if not self.without:
            return "custom"  # older checkpoints store this for every order
        digest = hashlib.blake2b(json.dumps(sorted(self.without)).encode(), digest_size=6).hexdigest()
        return f"custom, {len(self.without)} of {self.size} left out ({digest})"

    def __call__(self, group: int) -> int:
        """Return the index of the task that group number ``group`` plays."""
        if self.size is None:
            return group
        epoch, place = divmod(group, self.size - len(self.without))
        if self.shuffle:
            return int(_permutation(self.size, self.seed, epoch, self.without)[place])
        return place if self._indices is None else int(self._indices[place])


@lru_cache(maxsize=4)
def _permutation(size: int, seed: int, epoch: int, without: frozenset[int]) -> NDArray[np.int64]:
    order = np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(size)
    return order[~np.isin(order, list(without))] if without else order


async def measure_openings(
    backend: Backend, renderer: Renderer, tasks: Sequence[int], *, seed: int, forks: bool = False
) -> tuple[dict[int, int], dict[int, str]]:
    """Count the tokens of each task's opening, up to the first reply; return also the errors of those that failed.

    The environment's seed is a function of ``seed`` and the task. With ``forks``, each is also forked, so that it is
    known that the environment's snapshots go where forks are played.
    """
    lengths: dict[int, int] = {}
    failed: dict[int, str] = {}
    waiting: Iterator[int] = iter(tasks)

    async def work() -> None:
        for task in waiting:
            try:
                async with backend.lease() as env:
                    env_seed = derive_seed(seed, "opening", task, bits=32)
                    conversation, _ = await env.reset(env_seed, {"task_index": task})
                    if forks:
                        await env.restore(await env.snapshot(), conversation)
                lengths[task] = len(renderer.render(conversation, backend.tools))
            except (EnvError, RendererError) as error:
                failed[task] = str(error)

    await asyncio.gather(*(work() for _ in range(min(len(tasks), backend.workers or _AT_ONCE))))
    return dict(sorted(lengths.items())), dict(sorted(failed.items()))


_STARTS = 64  # of each component; the oldest one goes
_PASSED = 1000  # tasks are passed over in a row, at most, and as many more as have been played: a floor may be tiny


@dataclass(frozen=True)
class Component:
    """A part of a mixture."""

    name: str  #: unique
    tasks: Callable[[int], int]  #: from the number of a group, counted within the component, to a task
    section: ComponentSection = ComponentSection()  #: its weight, and the reward of an episode that succeeded

    def succeeded(self, trajectory: Trajectory, start: Start | None = None) -> bool:
        """Return whether an episode succeeded; one that began at ``start`` has earned its replayed replies' rewards."""
        if self.section.success_reward is None:
            return solved(trajectory)
        before = () if start is None else start.rewards[: start.turn]
        return float(np.sum([*before, *trajectory.turn_rewards])) >= self.section.success_reward


@dataclass(frozen=True)
class Start:
    """A state in the middle of an episode, as what leads to it."""

    task: int  #: its index
    env_seed: int  #: of the episode's reset
    replies: Sequence[Sequence[int]]  #: the sampled tokens of each reply before the last one
    contexts: Sequence[str]  #: a digest of what the model sees after each of these, to know the state by
    turn: int  #: how many of the replies are played; at least 1
    rewards: Sequence[float] = ()  #: what each of these replies earned; empty in checkpoints of an older version

    @classmethod
    def of(cls, trajectory: Trajectory, task: int, env_seed: int) -> Start:
        """Return the state before the last reply of an episode with at least two, that began at its opening."""
        first = [int(np.flatnonzero(trajectory.turn_id == turn)[0]) for turn in range(trajectory.num_turns)]
        starts = trajectory.segment_starts
        contexts = [trajectory.token_ids[starts[starts <= end][-1] : end] for end in first[1:]]
        replies = [trajectory.token_ids[trajectory.turn_id == turn].tolist() for turn in range(len(contexts))]
        rewards = trajectory.turn_rewards[: len(contexts)].tolist()
        return cls(task, env_seed, replies, [context_digest(context) for context in contexts], len(contexts), rewards)


def context_digest(token_ids: Sequence[int] | np.ndarray[Any, Any]) -> str:
    return hashlib.blake2b(np.asarray(token_ids, "<i4").tobytes(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Choice:
    """The choice for a group: a component's task, from the opening or from a start."""

    component: str
    task: int
    start: Start | None = None


@dataclass
class _ComponentState:
    """State of a component."""

    credit: float = 0.0
    due: float = 0.0  # starts that may be chosen
    admitted: int = 0  # groups that began at the opening; the number of the next one
    passed: int = 0  # tasks that were passed over
    seen: int = 0  # groups in the estimates
    success: float = 0.5
    signal: float = 1.0  # optimistic: nothing is known yet
    tasks: dict[int, float] = field(default_factory=dict)  # the signal of each, where they repeat
    starts: deque[Start] = field(default_factory=deque)  # the next one first


#: A group's number, successes, episodes, and a new start.
_Result = tuple[int, int, int, Start | None]


class Curriculum:
    """Chooses among ``components``; see the module. ``ValueError``: none, or two of one name."""

    def __init__(self, components: Sequence[Component], curriculum: CurriculumSection, seed: int = 0) -> None:
        self.components, self.section = {component.name: component for component in components}, curriculum
        if not components or len(self.components) < len(components):
            raise ValueError(f"at least one component, of unique names, not {components}")
        self._seed, self._next = seed, 0
        total = sum(component.section.weight for component in components)
        self._weights = {component.name: component.section.weight / total for component in components}
        self._states = {name: _ComponentState() for name in self.components}
        self._chosen: dict[int, Choice] = {}  # of groups that were not observed
        self._dropped: list[_Result] = []  # of groups that were dropped since the last batch was taken

    @property
    def identity(self) -> Any:
        """Identity of the components' task orders, for checkpoints (JSON)."""
        return {name: getattr(component.tasks, "identity", "custom") for name, component in self.components.items()}

    def shares(self) -> dict[str, float]:
        """Return the share of groups that each component has now; they sum to 1."""
        gains = {name: weight * self._states[name].signal for name, weight in self._weights.items()}
        total = sum(gains.values())
        if self.section.kind == "fixed" or total <= 0:
            return dict(self._weights)
        floor = self.section.floor
        return {name: floor * weight + (1 - floor) * gains[name] / total for name, weight in self._weights.items()}

    # ------------------------------------------------------------------ groups

    def choose(self, group: int) -> Choice:
        """Choose what this group plays. The first call for a group decides; new groups come in order of number."""
        if group in self._chosen:
            return self._chosen[group]
        if group != self._next:
            raise ValueError(f"group {group} is not the next to choose for, which is {self._next}")
        self._next += 1
        for name, share in self.shares().items():
            self._states[name].credit += share
        name = max(self._states, key=lambda name: self._states[name].credit)
        state = self._states[name]
        state.credit -= 1.0
        state.due = min(1.0, state.due + self.section.reverse_share)
        if state.starts and state.due >= 1.0:
            state.due -= 1.0
            start = state.starts.popleft()
            choice = Choice(name, start.task, start)
        else:
            choice = Choice(name, self._next_task(name))
        self._chosen[group] = choice
        return choice

    def drop(self, group: int, siblings: Sequence[Trajectory], *, unplayed: bool = False) -> None:
        """Record a dropped group; it counts in the next batch, unless it was withdrawn unfinished (``unplayed``)."""
        if unplayed:
            choice = self._chosen.pop(group)
            starts, start = self._states[choice.component].starts, choice.start
            # In the meantime newer starts may have come, and this one is the oldest.
            if start is not None and len(starts) < _STARTS and all(other.task != start.task for other in starts):
                starts.appendleft(start)
        else:
            self._dropped.append(self._result(group, siblings))

    def observe(self, groups: Mapping[int, Sequence[Trajectory]]) -> None:
        """Record a batch of these groups, by number."""
        results = [self._result(number, siblings) for number, siblings in groups.items()]
        for number, successes, count, new in sorted([*results, *self._dropped], key=lambda result: result[0]):
            choice = self._chosen.pop(number)
            if not count:
                continue  # all failed: no result, and its start may be the cause
            if choice.start is None:
                self._learn(choice, successes, count)
                if new is not None:
                    self._keep(choice.component, new, instead=True)
            elif (moved := _moved(choice.start, successes, count)) is not None:
                self._keep(choice.component, moved)
        self._dropped.clear()

    # ------------------------------------------------------------------ resuming, reporting

    def state(self, in_flight: Iterable[int]) -> dict[str, Any]:
        """Return the state for a checkpoint (JSON), with what the groups in flight play."""
        return {
            "next": self._next,
            "components": {
                name: asdict(component) | {"starts": _listed(component)} for name, component in self._states.items()
            },
            "chosen": {str(number): asdict(self._chosen[number]) for number in [*in_flight, *self._unobserved]},
            "dropped": [[*result[:3], result[3] and asdict(result[3])] for result in self._dropped],
        }

    def restore(self, state: Mapping[str, Any], in_flight: Iterable[int]) -> None:
        """Resume from a :meth:`state`; ``ValueError``: of other components, or without a group that is in flight."""
        if state["components"].keys() != self.components.keys():
            raise ValueError(
                f"this is of a mixture of {', '.join(state['components'])}, not of {', '.join(self.components)}"
            )
        self._next = int(state["next"])
        for name, saved in state["components"].items():
            tasks = {int(task): float(signal) for task, signal in saved["tasks"].items()}
            self._states[name] = _ComponentState(
                **{**saved, "tasks": tasks, "starts": deque(map(_start, saved["starts"]))}
            )
        chosen = {
            int(number): Choice(**{**choice, "start": _start(choice["start"])})
            for number, choice in state["chosen"].items()
        }
        if missing := [number for number in in_flight if number not in chosen]:
            raise ValueError(f"it does not say what the groups {missing} play, which are in flight")
        self._chosen = chosen
        self._dropped = [(*map(int, result[:3]), _start(result[3])) for result in state["dropped"]]  # type: ignore[misc]

    def stats(self) -> dict[str, float]:
        """Return each component's ``share`` of groups now, its estimates, number of ``starts`` and ``tasks_passed``.

        As ``<name>/share``; the only one without a name has ``share``.
        """
        shares = self.shares()
        stats: dict[str, float] = {}
        for name, state in self._states.items():
            prefix = f"{name}/" if name else ""
            stats[f"{prefix}share"] = shares[name]
            if state.seen:
                stats |= {f"{prefix}success": state.success, f"{prefix}signal": state.signal}
            if self.section.reverse_share:
                stats[f"{prefix}starts"] = float(len(state.starts))
            if state.passed:
                stats[f"{prefix}tasks_passed"] = float(state.passed)
        return stats

    # ------------------------------------------------------------------ inside

    @property
    def _unobserved(self) -> list[int]:
        return [result[0] for result in self._dropped]

    def _next_task(self, name: str) -> int:
        state, order, floor = self._states[name], self.components[name].tasks, self.section.floor
        last = state.passed + _PASSED + len(state.tasks)
        while True:
            number, state.admitted = state.admitted, state.admitted + 1
            task = order(number)
            signal = state.tasks.get(task)
            if signal is None or state.passed == last:
                return task
            drawn = derive_seed(self._seed, "pass over", name, number, bits=53) / 2.0**53
            if drawn < floor + (1 - floor) * min(1.0, signal):
                return task
            state.passed += 1

    def _result(self, group: int, siblings: Sequence[Trajectory]) -> _Result:
        choice = self._chosen[group]
        component = self.components[choice.component]
        succeeded = [episode for episode in siblings if component.succeeded(episode, choice.start)]
        new = None
        if self.section.reverse_share and choice.start is None and len(succeeded) < len(siblings):
            longer = (episode for episode in succeeded if episode.num_turns > 1)
            if (source := next(longer, None)) is not None:
                new = Start.of(source, choice.task, environment_seed(self._seed, group))
        return group, len(succeeded), len(siblings), new

    def _learn(self, choice: Choice, successes: int, count: int) -> None:
        state = self._states[choice.component]
        state.seen += 1
        rate = 1.0 / min(state.seen + 1, self.section.memory + 1)
        state.success += rate * (successes / count - state.success)
        if count < 2:
            return  # one episode alone gives no estimate for its task
        signal = 4.0 * successes * (count - successes) / (count * (count - 1))
        state.signal += rate * (signal - state.signal)
        tasks = self.components[choice.component].tasks
        if self.section.kind == "signal" and isinstance(tasks, TaskOrder) and tasks.size is not None:
            state.tasks[choice.task] = (state.tasks.get(choice.task, 1.0) + signal) / 2

    def _keep(self, name: str, start: Start, *, instead: bool = False) -> None:
        """Append a start. There is one a task: the one that is stored, or the new one ``instead``."""
        starts = self._states[name].starts
        if old := next((other for other in starts if other.task == start.task), None):
            if not instead:
                return
            starts.remove(old)
        starts.append(start)
        if len(starts) > _STARTS:
            starts.popleft()


def _moved(start: Start, successes: int, count: int) -> Start | None:
    """Return the start after a group that began there: one reply earlier or later; ``None`` where there is none."""
    if 2 * successes >= count:
        return replace(start, turn=start.turn - 1) if start.turn > 1 else None
    if start.turn < len(start.replies):
        return replace(start, turn=start.turn + 1)
    return start if successes else None


def _listed(state: _ComponentState) -> list[dict[str, Any]]:
    return [asdict(start) for start in state.starts]


def _start(saved: Mapping[str, Any] | None) -> Start | None:
    return None if saved is None else Start(**saved)
