"""Files of episodes with the learner's numbers for them; :mod:`textenvs.records` has the schema and reads them.

The last iterations stay in the run's folder, so that the one in which something went wrong can be looked at; and so do
those that follow a checkpoint, which :mod:`trainers.replay` can compute again.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from textenvs.records.reader import folder_of
from textenvs.records.schema import EXPLAINED, ITERATION_KEY, PLAYED, arrow_schema

from ..algorithms.batch import Floats, gather
from ..trajectory import Trajectory, action_offsets, tied, to_table, write_table

if TYPE_CHECKING:
    import pyarrow

_NO_IDS = np.zeros(0, np.int32)
_ROW_GROUP = 128  # episodes that a reader of one of them has to read
_NUMBERS = [name for name, column in (PLAYED | EXPLAINED).items() if column.per == "token" and column.type == "float32"]
_BROKEN = "\ufffd"


@dataclass(frozen=True, eq=False)
class Explained:
    """The learner's numbers for a batch of ``N`` action tokens in ``K`` turns."""

    #: Per-token columns of the schema, and ``learner_logprobs``; float ``[N]``, NaN where nothing was computed
    columns: Mapping[str, NDArray[np.floating]]
    credited: Sequence[Trajectory]  #: the episodes as the estimator saw them
    unscaled: Floats  #: float ``[N]``; the advantages before the batch was normalised
    mask: NDArray[np.bool_]  #: bool ``[N]``; the tokens that the policy is trained on
    by_fork: Floats | None = None  #: float ``[K]``; see :class:`~trainers.algorithms.batch.MadeOf`
    greedy: Mapping[str, float] = field(default_factory=dict)  #: total reward of a greedy episode, by group
    #: Float ``[N]``; the number of the optimizer step in which the token was first computed
    first_step: Floats = field(default_factory=lambda: np.zeros(0))
    steps: Sequence[Mapping[str, float]] = ()  #: numbers of each optimizer step, by name
    by_term: bool = False  #: groups are tied where they earned the same of each term (``gdpo``), not the same in all
    by_reaction: Floats | None = None  #: float ``[K]``; see :class:`~trainers.algorithms.batch.MadeOf`


class EpisodeFiles:
    """Writes the episodes of iterations and validations.

    The last ``keep`` iterations stay in the folder of the ``run``, where ``settings`` (``rollout_data_dir``,
    ``validation_data_dir``) name no other; ``environments`` are by kind, or component, to continue episodes.
    """

    def __init__(
        self,
        run: Path,
        pieces: Pieces,
        keep: int,
        settings: Mapping[str, str | None],
        environments: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._environments = environments or {}
        self._run, self._pieces, self._keep = run, pieces, keep
        self._own = {kind: folder_of(run, kind, {}) for kind in ("train", "validation")}
        self._folders = {kind: folder_of(run, kind, {"trainer": settings}) for kind in self._own}

    def writes(self, kind: str) -> bool:
        """Return whether files of this kind, ``train`` or ``validation``, are written."""
        return self._keep > 0 or self._folders[kind] != self._own[kind]

    def path(self, kind: str, number: int) -> Path:
        """Return the file of an iteration, or of the validation after it."""
        return self._folders[kind] / f"{number:06d}.parquet"

    def write(
        self,
        kind: str,
        number: int,
        trajectories: Sequence[Trajectory],
        explained: Explained | None = None,
        **info: Any,
    ) -> None:
        """Write a file; in the run's folder, delete those that are old, or of an abandoned branch of the run."""
        table = table_of(trajectories, self._pieces, explained)
        steps = [] if explained is None else list(explained.steps)
        info = {"kind": kind, "iteration": number, "environment": self._environments.get(kind), **info, "steps": steps}
        metadata = {**(table.schema.metadata or {}), ITERATION_KEY: json.dumps(info)}
        write_episodes(self.path(kind, number), table.replace_schema_metadata(metadata))
        if self._folders[kind] == self._own[kind]:
            self._forget(kind, number)

    def _forget(self, kind: str, newest: int) -> None:
        for file in self._own[kind].glob("*.parquet"):
            number = int(file.stem) if file.stem.isdigit() else newest
            old = kind == "train" and number <= newest - self._keep
            if number > newest or (old and not (self._run / "checkpoints" / f"iteration_{number - 1:06d}").is_dir()):
                file.unlink(missing_ok=True)


def write_episodes(path: Path, table: pyarrow.Table) -> None:
    """Write a table of episodes; an older file is replaced in one go."""
    # A dictionary where tokens of a turn have one number, else a stream of each of 4 bytes: the first ones are alike.
    split = [f"{name}.list.element" for name in _NUMBERS if name in table.column_names and _varies(table.column(name))]
    leaves = [leaf for column in table.schema for leaf in _leaves(column.name, column.type)]
    alike = [leaf for leaf in leaves if leaf not in split]
    encodings = {
        "use_dictionary": alike,
        "use_byte_stream_split": split,
        "write_statistics": False,
        "store_schema": False,
    }
    write_table(path, table, row_group_size=_ROW_GROUP, **encodings)


def _varies(column: pyarrow.ChunkedArray) -> bool:
    """Return whether a list column's numbers are mostly different."""
    import pyarrow.compute as pc

    values = pc.list_flatten(column).drop_null()
    return len(values.unique()) > len(values) / 8


def _leaves(name: str, kind: pyarrow.DataType) -> Iterator[str]:
    import pyarrow.types as is_

    if is_.is_struct(kind):
        for part in kind:
            yield from _leaves(f"{name}.{part.name}", part.type)
    elif is_.is_map(kind):
        yield from _leaves(f"{name}.key_value.key", kind.key_type)
        yield from _leaves(f"{name}.key_value.value", kind.item_type)
    elif is_.is_list(kind):
        yield from _leaves(f"{name}.list.element", kind.value_type)
    else:
        yield name


# ------------------------------------------------------------------------------------------------ the table


def table_of(trajectories: Sequence[Trajectory], pieces: Pieces, explained: Explained | None = None) -> pyarrow.Table:
    """Build a table with a row an episode: the episode, the text of each token, and the learner's numbers."""
    import pyarrow as pa

    table = to_table(trajectories)
    sizes = np.cumsum([0, *(len(episode.token_ids) for episode in trajectories)])
    places = (episode.actions + size for episode, size in zip(trajectories, sizes[:-1], strict=True))
    where = np.concatenate([np.zeros(0, np.int64), *places])
    vocabulary, texts = pieces([episode.token_ids for episode in trajectories])
    columns: dict[str, Any] = {"token_text": texts}
    if trajectories:
        columns["vocabulary"] = [list(vocabulary.items()), *[None] * (len(trajectories) - 1)]
    if explained is not None:
        columns |= _of_tokens(explained, trajectories, sizes, where) | _of_groups(explained, trajectories)
        columns["credit_moved"] = [
            None if credited is played else credited.turn_rewards.tolist()
            for credited, played in zip(explained.credited, trajectories, strict=True)
        ]
        turns = np.cumsum([0, *(episode.num_turns for episode in trajectories)])
        for name, values in (("fork_value", explained.by_fork), ("reaction_credit", explained.by_reaction)):
            if values is not None:
                columns[name] = _lists(turns, _nulls(values, np.float64))
        columns["checksums"] = [list(crcs.items()) for crcs in checksums(explained, trajectories)]
    for name, field_ in zip(EXPLAINED, arrow_schema(EXPLAINED), strict=True):
        column = columns.get(name)
        array = column if isinstance(column, pa.Array) else pa.array(column or [None] * len(trajectories), field_.type)
        table = table.append_column(field_, array)
    return table


def _of_tokens(
    explained: Explained, trajectories: Sequence[Trajectory], sizes: NDArray[np.int64], where: NDArray[np.int64]
) -> dict[str, Any]:
    columns = dict(explained.columns)
    if (logprobs := columns.pop("learner_logprobs", None)) is not None:
        columns["mismatch"] = logprobs - gather(trajectories, [episode.logprobs for episode in trajectories])
    arrays = {}
    for name, flat in columns.items():
        whole = np.full(int(sizes[-1]), np.nan, np.float32)
        whole[where] = rounded(flat, EXPLAINED[name].bits) if EXPLAINED[name].bits else flat
        values = _nulls(whole, np.float32)
        arrays[name] = _lists(sizes, values.cast("bool") if EXPLAINED[name].type == "bool" else values)
    return arrays


def _of_groups(explained: Explained, trajectories: Sequence[Trajectory]) -> dict[str, list[Any]]:
    members: defaultdict[str, list[int]] = defaultdict(list)
    for number, episode in enumerate(trajectories):
        members[episode.group_id or episode.episode_id].append(number)
    offsets = action_offsets(trajectories)
    beside = "teacher_advantage" in explained.columns or explained.by_reaction is not None
    rows: dict[str, list[Any]] = {
        name: [None] * len(trajectories) for name in ("group_mean", "group_std", "greedy_reward", "signal")
    }
    for name, numbers in members.items():
        roots = [trajectories[n] for n in numbers if not trajectories[n].forked_from]
        totals = np.array([root.total_reward for root in roots])
        spans = [slice(offsets[n], offsets[n + 1]) for n in numbers]
        same = bool(roots) and tied(roots, by_term=explained.by_term)
        learned = any((explained.mask[span] & (explained.unscaled[span] != 0)).any() for span in spans)
        if not any(explained.mask[span].any() for span in spans):
            signal = "masked"
        elif beside and learned:  # by what is no reward, also where all earned the same
            signal = "signal"
        elif same and len(roots) > 1:  # as train/groups_tied counts them, whatever a baseline of the batch makes of it
            signal = "tied"
        elif learned:
            signal = "signal"
        else:
            signal = "tied" if same else "zero"
        for n in numbers:
            rows["signal"][n], rows["greedy_reward"][n] = signal, explained.greedy.get(name)
            if roots:
                rows["group_mean"][n], rows["group_std"][n] = float(totals.mean()), float(totals.std())
    return rows


def checksums(explained: Explained, trajectories: Sequence[Trajectory]) -> list[dict[str, int]]:
    """Return CRC-32 of each episode's exact numbers, by column; equal in two runs that computed the same."""
    offsets = action_offsets(trajectories)
    bounds = list(zip(offsets[:-1], offsets[1:], strict=True))
    exact = {name: np.ascontiguousarray(flat) for name, flat in explained.columns.items()}
    return [{name: zlib.crc32(flat[start:end].tobytes()) for name, flat in exact.items()} for start, end in bounds]


def rounded(values: NDArray[np.floating], bits: int) -> NDArray[np.float32]:
    """Round to the nearest float32 with so many significant bits, which compresses; what is not finite stays."""
    exact = np.ascontiguousarray(values, np.float32)
    dropped = 24 - bits  # a float32 has 24
    near = (exact.view(np.uint32) + np.uint32(1 << (dropped - 1))) & np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    return np.where(np.isfinite(exact), near.view(np.float32), exact)


def _nulls(values: NDArray[Any], dtype: type[np.generic]) -> pyarrow.Array:
    import pyarrow as pa

    return pa.array(values.astype(dtype), mask=np.isnan(values))


def _lists(ends: NDArray[np.int64], values: pyarrow.Array) -> pyarrow.Array:
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)


# ------------------------------------------------------------------------------------------------ text


class Pieces:
    """The text that each token adds: joined, they are the text of all of them.

    A character whose bytes several tokens share stands at the last of them; bytes that are no UTF-8 are replaced.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        # Some tokenizers drop a space at the beginning of what they decode, so a token stands behind another.
        self._before = list(tokenizer.encode("a", add_special_tokens=False))[-1:]
        self._skip = len(self._decode(self._before))

    def __call__(self, sequences: Sequence[NDArray[np.int32]]) -> tuple[dict[int, str], list[list[str] | None]]:
        """Return the text of each token id, and of each token of sequences where these do not suffice."""
        texts = {token: self._alone(token) for token in np.unique(np.concatenate([_NO_IDS, *sequences])).tolist()}
        # A token without a text (outside the tokenizer's vocabulary) may stand within a character.
        parts = np.array([token for token, text in texts.items() if not text or _BROKEN in text], np.int32)
        return texts, [self._joined(sequence, texts, np.isin(sequence, parts)) for sequence in sequences]

    def _alone(self, token: int) -> str:
        if (text := self._known.get(token)) is None:
            text = self._known[token] = self._decode([*self._before, token])[self._skip :]
        return text

    def _joined(self, ids: NDArray[np.int32], texts: Mapping[int, str], broken: NDArray[np.bool_]) -> list[str] | None:
        """Join tokens that are no text by themselves: each character stands with its last token."""
        where = np.flatnonzero(broken)
        if not where.size:
            return None
        pieces = [texts[token] for token in ids.tolist()]
        for run in np.split(where, np.flatnonzero(np.diff(where) > 1) + 1):
            begin = 0
            for n, at in enumerate(run.tolist()):
                text = self._decode([*self._before, *ids[run[begin] : at + 1].tolist()])[self._skip :]
                whole = not text.endswith(_BROKEN) or n == len(run) - 1
                pieces[at] = text if whole else ""
                if whole:
                    begin = n + 1
        return pieces

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
