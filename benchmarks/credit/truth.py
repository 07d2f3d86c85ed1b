"""The truth about turns: what each was worth, by many forks of the states before and after it.

``V`` of a state is the mean return of forks that play on from it; the advantage of a turn is its reward plus ``V`` of
the state after it, minus ``V`` of the state before it. Forks share nothing with the episode that an estimator sees but
the state, so that their errors are independent of its luck.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainers.algorithms.batch import ActionBatch, gather
from trainers.ppo import publish
from trainers.rollout.batch import Batch
from trainers.trajectory import Trajectory, from_table, to_table

from .policies import CRITIC, TRAIN, Setting, started, train

Floats = NDArray[np.float64]

#: Forks at every turn. Estimates by forks take some of :data:`FOR_ESTIMATES`, the truth is made of the others.
FORKS, FOR_ESTIMATES = 36, 4
#: Groups of a batch, and episodes of a group.
GROUPS, SIBLINGS = 8, 8
SIZE = GROUPS * SIBLINGS
#: What a table has beside the columns of trajectories.
FORK_REWARDS, FORK_TOKENS, BATCH, VALUES, BOOTSTRAP = "fork_rewards", "fork_tokens", "batch", "values", "bootstrap"
EXACT = "exact"  # in the tables of games alone
_EXTRA = pa.schema(
    [
        (BATCH, pa.int32()),
        (FORK_REWARDS, pa.list_(pa.list_(pa.list_(pa.float32())))),
        (FORK_TOKENS, pa.list_(pa.list_(pa.int32()))),
        (VALUES, pa.list_(pa.float32())),
        (BOOTSTRAP, pa.float32()),
    ]
)


@dataclass(frozen=True, eq=False)
class Measured:
    """A batch of ``E`` episodes with ``K`` turns, in groups, and the forks of each of their turns."""

    episodes: Sequence[Trajectory]
    #: For each turn, the turn rewards of each of its :data:`FORKS` forks, from the fork's first turn on
    fork_rewards: Sequence[Sequence[Sequence[float]]]
    fork_tokens: NDArray[np.int64]  #: int ``[K, FORKS]``; the tokens that each sampled
    values: Floats  #: float ``[N]``; a critic's, before each action token
    bootstrap: Floats  #: float ``[E]``; a critic's, at the end
    exact: Floats | None = None  #: float ``[K]``; the advantage of each turn, where values can be computed

    @cached_property
    def actions(self) -> ActionBatch:
        """The batch as an estimator sees it."""
        return ActionBatch.from_trajectories(self.episodes, values=self.values, bootstrap=self.bootstrap)

    @cached_property
    def fork_returns(self) -> Floats:
        """The return of each fork, float ``[K, FORKS]``."""
        return np.array([[sum(rewards) for rewards in forks] for forks in self.fork_rewards])

    def truth(self, forks: slice = slice(FOR_ESTIMATES, None)) -> tuple[Floats, Floats]:
        """Return each turn's advantage ``[K]`` and its variance: the exact one, or that by these forks."""
        return self.advantages(forks) if self.exact is None else (self.exact, np.zeros(len(self.exact)))

    def advantages(self, forks: slice = slice(FOR_ESTIMATES, None)) -> tuple[Floats, Floats]:
        """Return each turn's advantage ``[K]`` by these forks, and the variance ``[K]`` of that estimate."""
        returns = self.fork_returns[:, forks]
        before, number = returns.mean(1), returns.shape[1]
        # One more sample of the usual variance: where all forks earned the same, their mean is not exact.
        squares = returns.var(1) * number
        error = (squares + squares.mean() / (number - 1)) / number**2
        last = np.zeros(len(before), np.bool_)
        last[self.actions.turn_offsets[1:] - 1] = True
        return differences(self.actions, before), error + np.where(last, 0.0, np.roll(error, -1))


def differences(batch: ActionBatch, before: Floats) -> Floats:
    """Return each turn's advantage, ``[K]``, of the values of the states before the turns, ``[K]``."""
    after = np.roll(before, -1)
    after[batch.turn_offsets[1:] - 1] = 0.0
    return batch.turn_rewards + after - before


def shards(setting: Setting, folder: Path) -> list[Path]:
    """Return the files of the batches that are there."""
    return sorted(folder.glob(f"{setting.name}-batch-*.parquet"))


def measure(setting: Setting, folder: Path, turns: int) -> None:
    """Play batches with all their forks until so many turns are there, a file each; resumes."""
    asyncio.run(_measure(setting, folder, turns))


async def _measure(setting: Setting, folder: Path, turns: int) -> None:
    there = sum(map(turns_in, shards(setting, folder)))
    if there >= turns:
        return
    number = len(shards(setting, folder))
    fork = ("algorithm.adv_estimator=fork", f"fork.samples={FORKS}", f"trainer.seed={1000 + number}")
    size = (f"rollout.groups_per_batch={GROUPS}", f"rollout.n={SIBLINGS}")
    with tempfile.TemporaryDirectory() as temporary:
        async with started([*setting.overrides(folder), *fork, *size], temporary) as run:
            while there < turns:
                batch = await run.collector.next_batch()
                path = folder / f"{setting.name}-batch-{number:03d}.parquet"
                table = _table(batch, number)
                if not table.num_rows:
                    failures = "; ".join(batch.problems.values()) or "no reason is known"
                    raise RuntimeError(f"{setting.name}: no episode of a batch has all of its forks ({failures})")
                write(table, path)
                there, number = there + turns_in(path), number + 1
                await publish(run, batch)  # the same weights: the next batch waits for an update


def turns_in(path: Path) -> int:
    """Return the number of turns in a file."""
    return sum(map(len, pq.read_table(path, columns=["turn_rewards"])["turn_rewards"].to_pylist()))


def _table(batch: Batch, number: int) -> pa.Table:
    """Return a batch's roots, without their words, and what their forks earned."""
    forks: dict[tuple[str, int], list[Trajectory]] = {}
    for fork in batch.of("fork"):
        forks.setdefault((fork.forked_from, fork.forked_turn), []).append(fork)
    roots = [root for root in batch.trajectories if _whole(root, forks)]
    of_turns = [[forks[root.episode_id, turn] for turn in range(root.num_turns)] for root in roots]
    rewards = [[[fork.turn_rewards.tolist() for fork in at] for at in turns] for turns in of_turns]
    tokens = [[[int(fork.action_mask.sum()) for fork in at] for at in turns] for turns in of_turns]
    return _with_columns(roots, {BATCH: [number] * len(roots), FORK_REWARDS: rewards, FORK_TOKENS: tokens})


def table_of(measured: Measured, number: int) -> pa.Table:
    """Return a batch as a table: the trajectories, without their words, and what their forks earned."""
    batch = measured.actions
    turns, tokens = (
        np.split(np.arange(offsets[-1]), offsets[1:-1]) for offsets in (batch.turn_offsets, batch.token_offsets)
    )
    columns: dict[str, Sequence[Any]] = {
        BATCH: [number] * batch.num_episodes,
        FORK_REWARDS: [[measured.fork_rewards[turn] for turn in own] for own in turns],
        FORK_TOKENS: [measured.fork_tokens[own].tolist() for own in turns],
        VALUES: [measured.values[own] for own in tokens],
        BOOTSTRAP: measured.bootstrap.tolist(),
    }
    table = _with_columns(measured.episodes, columns)
    if measured.exact is None:
        return table
    exact = [measured.exact[own] for own in turns]
    return table.append_column(EXACT, pa.array(exact, pa.list_(pa.float64())))


def _with_columns(episodes: Sequence[Trajectory], columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    table = to_table([replace(one, messages=(), user_messages=()) for one in episodes])
    for field in _EXTRA:
        values = columns.get(field.name, [None] * len(episodes))
        table = table.append_column(field, pa.array([*values], field.type))
    return table


def write(table: pa.Table, path: Path, **options: Any) -> None:
    """Write a table; a kill leaves the old one."""
    pq.write_table(table, path.with_suffix(".new"), compression="zstd", **options)
    path.with_suffix(".new").replace(path)


def _whole(root: Trajectory, forks: dict[tuple[str, int], list[Trajectory]]) -> bool:
    """Return whether all forks of all turns of an episode ended well.

    Ends by a budget or a full context are part of what the policy is worth there, as in training.
    """
    return root.num_turns > 0 and all(
        len(forks.get((root.episode_id, turn), ())) == FORKS for turn in range(root.num_turns)
    )


def add_values(setting: Setting, folder: Path) -> None:
    """Train a critic for the policy, and add its values to all batches that lack them."""
    missing = [path for path in shards(setting, folder) if _without_values(path)]
    if missing:
        asyncio.run(_add_values(setting, folder, missing))


def _without_values(path: Path) -> bool:
    return bool(pq.read_table(path, columns=[BOOTSTRAP])[BOOTSTRAP].null_count)


async def _add_values(setting: Setting, folder: Path, paths: Sequence[Path]) -> None:
    own = ("algorithm.adv_estimator=turn_gae", f"critic.warmup={CRITIC}", f"trainer.total_iterations={CRITIC + 1}")
    with tempfile.TemporaryDirectory() as temporary:
        async with started([*setting.overrides(folder), *TRAIN, *own], temporary) as run:
            await train(run, CRITIC)
            for path in paths:
                table = pq.read_table(path)
                values, bootstrap = await run.learning(run.learner.values, from_table(_plain(table)))
                for field, column in ((_EXTRA.field(VALUES), values), (_EXTRA.field(BOOTSTRAP), bootstrap)):
                    place = table.schema.get_field_index(field.name)
                    table = table.set_column(place, field, pa.array([*column], field.type))
                write(table, path)


def _plain(table: pa.Table) -> pa.Table:
    return table.drop_columns([name for name in (*_EXTRA.names, EXACT) if name in table.column_names])


def read(path: Path) -> list[Measured]:
    """Return the batches of a file: of one batch, or of :func:`joined`."""
    table = pq.read_table(path)
    batches = []
    for number in sorted(set(table[BATCH].to_pylist())):
        part = table.filter(pc.equal(table[BATCH], number))
        episodes, columns = from_table(_plain(part)), part.select(_EXTRA.names).to_pydict()
        rewards = [forks for turns in columns[FORK_REWARDS] for forks in turns]
        tokens = np.array([counts for turns in columns[FORK_TOKENS] for counts in turns])
        # A critic's values are of action tokens, in the order of time, as `gather` has them.
        values = np.concatenate([np.zeros(0), *columns[VALUES]])
        assert len(values) == len(gather(episodes, [t.token_ids for t in episodes]))
        exact = np.concatenate(part[EXACT].to_pylist()) if EXACT in part.column_names else None
        batches.append(Measured(episodes, rewards, tokens, values, np.array(columns[BOOTSTRAP]), exact))
    return batches


def joined(setting: Setting, folder: Path, path: Path) -> None:
    """Write all batches of a setting as one file."""
    table = pa.concat_tables([pq.read_table(part) for part in shards(setting, folder)])
    write(table, path, compression_level=19)
