"""The record that all parts exchange: an episode as tokens, turns and rewards.

Invariants (checked on construction, so that no consumer has to):

* all per-token arrays have the length of ``token_ids``; they are NumPy, never padded;
* ``action_mask[i]`` is true exactly where the policy sampled token ``i``; there ``turn_id >= 0``,
  ``weight_version >= 0`` and ``logprobs`` is finite; elsewhere they are ``-1``, ``-1`` and ``0``;
* turn ids index ``turn_rewards``, in the order of time; every turn has at least one action token (a reply cut short
  before its first token is no turn, so every reward has a token that earned it);
* a turn's reward is at its last action token (:meth:`Trajectory.token_rewards`);
* ``segment_starts`` splits the arrays into *contexts*: token sequences that the model sees separately. There is one,
  unless observations began anew (compaction, a sub-agent, edited history) or the chat template rewrote earlier turns.
  The token ids of a context are the engine's inputs and outputs, never re-tokenised text. Contexts are not empty, the
  first starts at 0, and each is stored once, however often the episode returned to it;
* within a context turn ids are non-decreasing over the action tokens, and every turn is in one context. Contexts are in
  the order of their last use, so the tokens of the turns 0, 1, 2 may stand in the order 1, 0, 2, and the state that the
  episode ended in stands last. The order of time is that of the turns: :attr:`Trajectory.actions`;
* observation tokens (``observation_mask``, where it was recorded) are no action tokens, and no context starts with one:
  something predicts each;
* where a teacher sees more than the policy (``teacher_shared``), its context of a turn shares at most the turn's own
  with it, and is not empty;
* tokens after the last action token are the observation that a *truncated* episode ended in, with the next generation
  prompt: the state whose value bootstraps the return. A terminated episode ends with an action token.

An episode that failed before its first token has no tokens, turns or contexts; that is a valid trajectory.

:func:`to_table` and :func:`from_table` convert trajectories to an Arrow table and back without loss (floats bit for
bit, an absent message key distinct from an empty one); :func:`write_parquet` and :func:`read_parquet` use a file.
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from textenvs.bounded_files import UnreadableFile
from textenvs.data.parquet_files import open_parquet, parquet_errors
from textenvs.env import LARGEST
from textenvs.records.schema import FORMAT, FORMAT_KEY, PLAYED, arrow_schema
from textenvs.turn import SOLVED as SOLVED
from textenvs.users.moves import MOVES as MOVES

if TYPE_CHECKING:
    import pyarrow

    from textenvs.messages import Message, Messages


class TableError(ValueError):
    """A file cannot be used; the message says which, why, and what to do."""


def read_table(path: Path, columns: Sequence[str]) -> Any:
    """Return a ``pyarrow.Table``; raise ``TableError`` if it is unreadable, has no rows or lacks one of ``columns``."""
    try:
        with open_parquet(path) as file, parquet_errors(path):
            table = file.read()
    except UnreadableFile as error:
        raise TableError(str(error)) from error
    for column in columns:
        if column not in table.column_names:
            raise TableError(f"{path} has no column {column!r}; it has {', '.join(table.column_names)}")
    if table.num_rows == 0:
        raise TableError(f"{path} has no rows")
    return table


def refuse_rows(problems: Sequence[str], what: str, listed: int = 5) -> None:
    """Raise ``TableError`` with the first ``listed`` of these problems, if there are any."""
    if problems:
        remainder = [f"and {len(problems) - listed} more"] if len(problems) > listed else []
        raise TableError("\n  ".join([f"{what}:", *problems[:listed], *remainder]))


def write_table(path: Path, table: Any, row_group_size: int | None = None, **options: Any) -> None:
    """Write a ``pyarrow.Table`` atomically; ``options`` are those of ``ParquetWriter``."""
    from pyarrow import parquet

    from textenvs.data.files import written_whole

    metadata = {} if options.get("store_schema", True) else dict(table.schema.metadata or {})
    if metadata:
        table = table.replace_schema_metadata(None)
    with (
        written_whole(path) as unfinished,
        parquet.ParquetWriter(Path(unfinished), table.schema, compression="zstd", **options) as file,
    ):
        file.write_table(table, row_group_size)
        if metadata:
            file.add_key_value_metadata(metadata)


# The arrays of a trajectory and their types; the first five have one entry per token.
_ARRAYS: dict[str, type[np.generic]] = {
    "token_ids": np.int32,
    "action_mask": np.bool_,
    "logprobs": np.float32,
    "weight_version": np.int32,
    "turn_id": np.int32,
    "turn_rewards": np.float64,
    "segment_starts": np.int32,
    "kept_ids": np.int32,
    "kept_counts": np.int32,
    "observation_mask": np.bool_,
    "teacher_shared": np.int32,
    "teacher_counts": np.int32,
    "teacher_ids": np.int32,
}
#: Columns that older files lack: nothing was cut, no episode is a fork, no teacher saw more, each could be solved;
#: seeds, observations and moves are unknown.
_OPTIONAL = (
    "has_success",
    "user_messages",
    "kept_ids",
    "kept_counts",
    "observation_mask",
    "turn_moves",
    "teacher_shared",
    "teacher_counts",
    "teacher_ids",
    "forked_from",
    "forked_turn",
    "task_index",
    "env_seed",
    "sampling_seed",
)
_PER_TOKEN = ("token_ids", "action_mask", "logprobs", "weight_version", "turn_id")


def is_reward(value: Any) -> bool:
    """Return whether ``value`` is a valid reward: a finite number, not too large to be summed and squared."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return abs(float(value)) <= LARGEST
    except OverflowError:  # an integer
        return False


class Status(StrEnum):
    """The end of an episode. Errors are data: an episode always ends in one of these."""

    COMPLETED = "completed"  #: the environment terminated
    TRUNCATED_TURNS = "truncated_turns"  #: a turn budget of the environment ran out
    TRUNCATED_CONTEXT = "truncated_context"  #: the context or the response budget ran out
    TRUNCATED_TIME = "truncated_time"  #: a step, generation or episode timeout
    #: The environment raised, died, marked the episode as failed, or returned a conversation that the template rejects
    ERROR_ENV = "error_env"
    ERROR_ENGINE = "error_engine"  #: the engine raised or died
    ERROR_REWARD = "error_reward"  #: a delayed reward could not be computed
    ABORTED = "aborted"  #: cancelled by the collector

    @property
    def trainable(self) -> bool:
        """True if the episode's rewards are valid, so that training may use it."""
        return self in (Status.COMPLETED, Status.TRUNCATED_TURNS, Status.TRUNCATED_CONTEXT)


class EpisodeError(Exception):
    """Error that ends one episode, with a status; ``cause`` names the reason in one word."""

    status: Status

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One episode. ``T`` tokens over all contexts, ``K`` assistant turns. Equal if all fields are, bit for bit.

    Raises ``ValueError`` if an invariant of the module's docstring does not hold; it names the invariant and the
    episode.
    """

    token_ids: NDArray[np.int32]  #: int32 ``[T]``
    action_mask: NDArray[np.bool_]  #: bool ``[T]``; true where the policy sampled the token
    #: Float32 ``[T]``; natural log, of the policy that sampled the token, at the sampling temperature over the full
    #: vocabulary (see :mod:`trainers.engines.base`), or over the tokens that the cuts left, if ``kept_counts`` says
    #: so; 0 elsewhere
    logprobs: NDArray[np.float32]
    weight_version: NDArray[np.int32]  #: int32 ``[T]``; the weights that sampled the token; -1 elsewhere
    turn_id: NDArray[np.int32]  #: int32 ``[T]``; the assistant turn of an action token, from 0; -1 elsewhere
    turn_rewards: NDArray[np.float64]  #: float64 ``[K]``
    #: ``K`` mappings, the named parts of each turn's reward; the default is ``K`` empty ones
    turn_terms: tuple[Mapping[str, float], ...] = ()
    #: ``K`` moves (:data:`textenvs.users.moves.MOVES`): what the user did about each turn's reply, empty where that is
    #: not known. Empty if no turn has one.
    turn_moves: tuple[str, ...] = ()
    terminated: bool = False  #: the task is over; the return ends here
    #: A budget ran out (or the episode was cut short); the return would have continued. Where both are set, as
    #: Gymnasium allows, ``terminated`` counts.
    truncated: bool = False
    #: Whether it could end as solved (:attr:`textenvs.env.TextEnv.has_success`); else no share of solved episodes
    #: counts it
    has_success: bool = True
    status: Status = Status.COMPLETED  #: how it ended, including failures
    stop: str | None = None  #: the environment's reason for the end, if it gave one
    episode_id: str = ""  #: unique within a run
    group_id: str = ""  #: episodes of the same task drawn together share it
    task_key: str = ""  #: the task's stable name
    data_source: str = ""  #: the task's source
    #: Int32 ``[S]``: where each of ``S >= 1`` contexts starts, the first at 0; without tokens it is always empty
    segment_starts: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1, np.int32))
    #: Int32 ``[m]``; the tokens that top-k, top-p and min-p left when each token was sampled, concatenated (the
    #: sampling mask). Empty if that was not recorded.
    kept_ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    #: Int32 ``[T]``; the number of ``kept_ids`` of each token, 0 if it was drawn from the full vocabulary or not
    #: sampled. Empty as above.
    kept_counts: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    #: Bool ``[T]``; the tokens of the texts of messages with which the environment answered replies of this episode, of
    #: the roles that were asked for; never a token of the chat template. Empty if that was not recorded.
    observation_mask: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    #: Int32 ``[K]``; where a teacher sees more than the policy (privileged context) and scores turns in contexts of its
    #: own: how many tokens such a context shares with that of the turn from their start on, or -1 where the turn has
    #: none. Empty if no teacher saw more.
    teacher_shared: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    #: Int32 ``[K]``; how many tokens follow those, up to the turn's first token. Empty as above.
    teacher_counts: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    #: Int32 ``[m]``; these tokens, of one turn after another. Empty as above.
    teacher_ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    messages: Messages = ()  #: the conversation, for people and for judges
    user_messages: Messages = ()  #: the same from the side of a model that plays the user, its instructions first
    metrics: Mapping[str, float] = field(default_factory=dict)  #: numbers worth reporting
    error: str | None = None  #: the error, if the status is one; or why the environment ended it, in its words
    #: The ``episode_id`` of the episode that this one was forked from, its *root*; empty if it was played from the
    #: opening. The common part of both is context here, with action mask 0.
    forked_from: str = ""
    #: The root's turn before whose reply it was forked. Turns and rewards of a fork begin there, and ``turn_id`` counts
    #: them from 0.
    forked_turn: int = 0
    task_index: int | None = None  #: the reset option of the environment; ``None`` if there was another
    env_seed: int | None = None  #: of the environment's reset
    #: The seeds of the engine are derived from it; see :class:`trainers.rollout.play.Episode`
    sampling_seed: int | None = None

    def __post_init__(self) -> None:
        if not self.turn_terms:
            object.__setattr__(self, "turn_terms", ({},) * len(self.turn_rewards))
        if len(self.token_ids) == 0:  # the default, one context that starts at 0, is for episodes that have tokens
            object.__setattr__(self, "segment_starts", np.zeros(0, np.int32))
        if problem := _problem_with(self):
            raise ValueError(f"trajectory {self.episode_id!r}: {problem}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    __hash__ = None  # type: ignore[assignment]  # it holds arrays

    @property
    def num_turns(self) -> int:
        """Number of assistant turns with a reward, ``K``."""
        return len(self.turn_rewards)

    @property
    def total_reward(self) -> float:
        """Undiscounted return of the episode."""
        return float(np.sum(self.turn_rewards))

    @property
    def oldest_version(self) -> int | None:
        """Smallest weight version among the action tokens; ``None`` without any."""
        versions = self.weight_version[self.action_mask]
        return int(versions.min()) if versions.size else None

    @property
    def actions(self) -> NDArray[np.int64]:
        """Indices of the action tokens in the order in which they were sampled, int64 ``[N]``."""
        where = np.flatnonzero(self.action_mask)
        return where[np.argsort(self.turn_id[where], kind="stable")] if len(self.segment_starts) > 1 else where

    def token_rewards(self) -> NDArray[np.float64]:
        """Return, float64 ``[T]``, each turn's reward at its last action token, 0 elsewhere."""
        rewards = np.zeros(len(self.token_ids), np.float64)
        ends = self.turn_ends()
        assert bool(self.action_mask[ends].all()), "a turn's reward must be at a token that the policy sampled"
        rewards[ends] = self.turn_rewards
        return rewards

    def turn_ends(self) -> NDArray[np.int64]:
        """Return, int64 ``[K]``, the index of each turn's last action token."""
        where = np.flatnonzero(self.action_mask)
        ends = np.full(self.num_turns, -1, np.int64)
        ends[self.turn_id[where]] = where  # later writes win: the last token of each turn remains
        return ends

    def segments(self) -> tuple[slice, ...]:
        """Return ``S`` slices of the per-token arrays, one per context, in order and without gaps."""
        bounds = [*self.segment_starts.tolist(), len(self.token_ids)]
        return tuple(slice(start, end) for start, end in zip(bounds, bounds[1:], strict=False))


def action_offsets(trajectories: Iterable[Trajectory]) -> NDArray[np.int64]:
    """Return int64 ``[E + 1]``: episode ``e`` has ``offsets[e]:offsets[e + 1]`` of all action tokens concatenated.

    Numbers of action tokens are in this order everywhere: of the episodes, and in each the order of
    :attr:`Trajectory.actions`.
    """
    return np.cumsum([0, *(int(trajectory.action_mask.sum()) for trajectory in trajectories)], dtype=np.int64)


def observation_offsets(trajectories: Iterable[Trajectory]) -> NDArray[np.int64]:
    """Return int64 ``[E + 1]``: episode ``e`` has ``offsets[e]:offsets[e + 1]`` of all observation tokens concatenated.

    They are in the order of the episodes, and in each in that of its arrays.
    """
    return np.cumsum([0, *(int(trajectory.observation_mask.sum()) for trajectory in trajectories)], dtype=np.int64)


def solved(trajectory: Trajectory) -> bool:
    """Return whether the episode succeeded: the environment terminated it, with the stop reason ``"solved"``."""
    return trajectory.has_success and trajectory.terminated and trajectory.stop == SOLVED


def tied(episodes: Iterable[Trajectory], *, by_term: bool = False) -> bool:
    """Return whether all episodes have equal rewards, in total or ``by_term``, so that comparing them gives nothing."""
    earned: set[object] = set()
    for episode in episodes:
        terms: dict[str, float] = {}
        for turn in episode.turn_terms if by_term else ():
            for name, value in turn.items():
                terms[name] = terms.get(name, 0.0) + value
        earned.add((episode.total_reward, frozenset((name, value) for name, value in terms.items() if value)))
    return len(earned) == 1


def _problem_with(t: Trajectory) -> str | None:
    for name, dtype in _ARRAYS.items():
        array = getattr(t, name)
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != dtype:
            got = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            return f"{name} must be a NumPy array of {np.dtype(dtype).name} with one dimension, not {got}"
    size, turns = len(t.token_ids), len(t.turn_rewards)
    for name in _PER_TOKEN:
        if len(getattr(t, name)) != size:
            return f"{name} has {len(getattr(t, name))} entries for {size} tokens"
    return (
        _problem_with_tokens(t)
        or _problem_with_kept(t, size)
        or _problem_with_observations(t, size)
        or _problem_with_turns(t, turns)
        or _problem_with_ends(t, size)
        or _problem_with_teacher(t, turns)
    )


def _problem_with_tokens(t: Trajectory) -> str | None:
    rules = (  # conditions on an action token, and on any other
        ("turn_id", t.turn_id >= 0, "at least 0", t.turn_id == -1, "-1"),
        ("weight_version", t.weight_version >= 0, "at least 0", t.weight_version == -1, "-1"),
        ("logprobs", np.isfinite(t.logprobs), "finite", t.logprobs == 0, "0"),
    )
    for name, good_action, action, good_other, other in rules:
        good = np.where(t.action_mask, good_action, good_other)
        if not good.all():
            i = int(np.argmin(good))
            kind, expected = ("an action token", action) if t.action_mask[i] else ("not an action token", other)
            return f"{name}[{i}] is {getattr(t, name)[i]}, but token {i} is {kind}: it must be {expected} there"
    return None


def _problem_with_kept(t: Trajectory, size: int) -> str | None:
    counts = t.kept_counts
    if len(counts) not in (0, size) or (counts < 0).any() or counts.sum() != len(t.kept_ids):
        return f"kept_counts has {len(counts)} entries for {size} tokens and {len(t.kept_ids)} kept ids"
    if len(counts) == 0 or not size:
        return None
    if (counts[~t.action_mask] > 0).any():
        return "kept_counts is above 0 where the policy sampled nothing"
    owner = np.repeat(np.arange(size), counts)
    occurrences = np.bincount(owner, t.kept_ids == t.token_ids[owner], minlength=size)
    if (missing := (counts > 0) & (occurrences != 1)).any():
        return f"token {int(np.argmax(missing))} was sampled and is not once among those that the cuts kept there"
    return None


def _problem_with_observations(t: Trajectory, size: int) -> str | None:
    mask = t.observation_mask
    if len(mask) not in (0, size):
        return f"observation_mask has {len(mask)} entries for {size} tokens"
    if not mask.any():
        return None
    if (both := mask & t.action_mask).any():
        return f"token {int(np.argmax(both))} is an action token and an observation token"
    if len(first := t.segment_starts[mask[t.segment_starts]]):
        return f"token {int(first[0])} is an observation token, and its context starts with it: nothing predicts it"
    return None


def _problem_with_turns(t: Trajectory, turns: int) -> str | None:
    present = np.unique(t.turn_id[t.action_mask])
    if not np.array_equal(present, np.arange(turns)):
        return f"{turns} turn rewards, but the action tokens belong to turns {present.tolist()}: each turn needs both"
    if len(t.turn_terms) != turns:
        return f"turn_terms has {len(t.turn_terms)} entries for {turns} turns"
    if len(t.turn_moves) not in (0, turns):
        return f"turn_moves has {len(t.turn_moves)} entries for {turns} turns"
    if unknown := set(t.turn_moves) - {"", *MOVES}:
        return f"turn_moves has {sorted(unknown)}; a move is one of {', '.join(MOVES)}, or empty"
    return None


def _problem_with_ends(t: Trajectory, size: int) -> str | None:
    starts = t.segment_starts
    if size and (len(starts) == 0 or starts[0] != 0 or (np.diff(starts) <= 0).any() or starts[-1] >= size):
        return f"segment_starts {starts.tolist()} must rise from 0 and stay below the {size} tokens"
    where = np.flatnonzero(t.action_mask)
    turns, contexts = t.turn_id[where], np.searchsorted(starts, where, side="right")
    if ((np.diff(turns) < 0) & (np.diff(contexts) == 0)).any():
        return "turn ids decrease over the action tokens of a context"
    first = np.zeros(len(t.turn_rewards), np.int64)
    first[turns[::-1]] = contexts[::-1]
    if (elsewhere := contexts != first[turns]).any():
        return f"turn {int(turns[np.argmax(elsewhere)])} is in two contexts: each turn is sampled in one"
    last_uses = turns[np.append(np.diff(contexts) != 0, True)] if len(turns) else turns
    if len(turns) and contexts[-1] == len(starts) and not t.action_mask[-1]:
        last_uses = last_uses[:-1]  # it is last by the observation that the episode ended in
    if (np.diff(last_uses) < 0).any():
        return f"its contexts were used last at the turns {last_uses.tolist()}: they must be in that order"
    if t.terminated and size and not t.action_mask[-1]:
        return "a terminated episode must end with an action token: leave out what comes after the last reply"
    status: Any = t.status
    if not isinstance(status, Status):
        return f"status must be a Status, not {status!r}"
    if t.forked_turn < 0 or (t.forked_turn and not t.forked_from):
        return f"forked_turn is {t.forked_turn}, but it was forked from {t.forked_from!r}"
    return None


def _problem_with_teacher(t: Trajectory, turns: int) -> str | None:
    shared, counts = t.teacher_shared, t.teacher_counts
    if len(shared) not in (0, turns) or len(counts) != len(shared):
        return f"teacher_shared has {len(shared)} entries and teacher_counts {len(counts)} for {turns} turns"
    if (counts < 0).any() or counts.sum() != len(t.teacher_ids):
        return f"teacher_counts add up to {counts.sum()} for {len(t.teacher_ids)} teacher_ids"
    if not len(shared):
        return None
    where = np.flatnonzero(t.action_mask)
    first = np.zeros(turns, np.int64)
    first[t.turn_id[where[::-1]]] = where[::-1]
    most = first - t.segment_starts[np.searchsorted(t.segment_starts, first, side="right") - 1]
    wrong = (shared < -1) | (shared > most) | (shared + counts == 0) | ((shared == -1) & (counts > 0))
    if wrong.any():
        turn = int(np.argmax(wrong))
        return (
            f"the teacher's context of turn {turn} shares {shared[turn]} of {most[turn]} tokens and has {counts[turn]} "
            "others: it must share at most these, and have a token"
        )
    return None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b)


# ------------------------------------------------------------------------------------------------ Arrow and Parquet


def _schema() -> pyarrow.Schema:
    return arrow_schema(PLAYED)


def to_table(trajectories: Iterable[Trajectory]) -> pyarrow.Table:
    """Return an Arrow table with a row per episode and a column per field; UnicodeEncodeError of lone surrogates."""
    import pyarrow as pa

    rows = list(trajectories)
    columns = []
    for column in _schema():
        if column.name in _ARRAYS:
            arrays = [getattr(row, column.name) for row in rows]
            ends = np.cumsum([0, *map(len, arrays)])
            values = np.concatenate([np.zeros(0, _ARRAYS[column.name]), *arrays])
            columns.append(pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values)))
        else:
            columns.append(pa.array([_to_arrow(column.name, getattr(row, column.name)) for row in rows], column.type))
    return pa.Table.from_arrays(columns, schema=_schema())


def from_table(table: pyarrow.Table) -> list[Trajectory]:
    """Return the trajectories of a table of :func:`to_table`; ``ValueError`` for others, or a broken invariant."""
    version = (table.schema.metadata or {}).get(FORMAT_KEY)
    if version != FORMAT:
        version_text = "has none" if version is None else f"has version {version.decode()}"
        raise ValueError(
            f"a table of trajectories needs format version {FORMAT.decode()} in its metadata; this {version_text}"
        )
    names = [f.name for f in fields(Trajectory)]
    names = [name for name in names if name not in _OPTIONAL or name in table.column_names]
    if missing := [name for name in names if name not in table.column_names]:
        raise ValueError(f"the table of trajectories lacks the columns {missing}; it has {table.column_names}")
    columns = {name: _column(table, name) for name in names}
    return [Trajectory(**{name: columns[name][i] for name in names}) for i in range(table.num_rows)]


def _column(table: pyarrow.Table, name: str) -> Sequence[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column(name)
    if name not in _ARRAYS:
        return [_from_arrow(name, value) for value in column.to_pylist()]
    expected = _schema().field(name).type
    if column.type != expected:
        raise ValueError(f"column {name!r} of the table of trajectories is {column.type}, not {expected}")
    lengths = pc.list_value_length(column).to_numpy()
    values = pa.chunked_array([chunk.flatten() for chunk in column.chunks], expected.value_type).to_numpy()
    return [part.copy() for part in np.split(values, np.cumsum(lengths)[:-1])] if len(lengths) else []


def _to_arrow(name: str, value: Any) -> Any:
    if name == "turn_terms":
        return [list(terms.items()) for terms in value]
    if name == "metrics":
        return list(value.items())
    if name == "status":
        return str(value)
    if name in ("messages", "user_messages"):
        from textenvs.messages import text_of

        return [{**message, "content": text_of(message)} for message in value]
    return value


def _from_arrow(name: str, value: Any) -> Any:
    if name == "turn_terms":
        return tuple(dict(terms) for terms in value)
    if name == "turn_moves":
        return tuple(value or ())
    if name == "metrics":
        return dict(value)
    if name == "status":
        return Status(value)
    if name in ("messages", "user_messages"):
        return tuple(_message(row) for row in value)
    return value


def _message(row: Mapping[str, Any]) -> Message:
    message = {key: value for key, value in row.items() if value is not None}
    if "tool_calls" in message:
        message["tool_calls"] = tuple(message["tool_calls"])
    return message  # type: ignore[return-value]


def write_parquet(path: str | os.PathLike[str], trajectories: Iterable[Trajectory]) -> None:
    """Write a Parquet file atomically; it replaces an older one."""
    write_table(Path(path), to_table(trajectories))


def read_parquet(path: str | os.PathLike[str]) -> list[Trajectory]:
    """Return the trajectories of a file of :func:`write_parquet`; ``ValueError`` as :func:`from_table`."""
    with open_parquet(path) as file, parquet_errors(path):
        table = file.read()
    try:
        return from_table(table)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from error
