"""Trajectories: every invariant is checked, and Arrow and Parquet lose nothing."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectories import mixed, trajectory_of, turns_of

from textenvs.env import LARGEST
from textenvs.messages import text_part, user
from trainers.engines.base import Sampling
from trainers.rollout.play import Episode, _nothing
from trainers.rollout.progress import End
from trainers.trajectory import Status, Trajectory, from_table, is_reward, read_parquet, to_table, write_parquet


def make(turns: tuple[int, ...] = (1, 1, 0), **changes: Any) -> Trajectory:
    """A prompt token and that many action tokens, for each turn; by default 5 tokens, the last an observation."""
    rewards = range(sum(n > 0 for n in turns))
    return replace(trajectory_of(turns_of(*((1, n) for n in turns)), rewards, version=3, truncated=True), **changes)


# ------------------------------------------------------------------------------------------------ what it says


def test_rewards_are_at_last_action_token() -> None:
    t = make((2, 3), turn_rewards=np.array([0.25, -1.0]))
    assert t.turn_ends().tolist() == [2, 6]
    assert t.token_rewards().tolist() == [0, 0, 0.25, 0, 0, 0, -1.0]
    assert t.total_reward == -0.75


def test_segments_cover_tokens_in_order() -> None:
    t = make((1, 2), segment_starts=np.array([0, 2], np.int32))
    assert [t.token_ids[s].tolist() for s in t.segments()] == [[0, 1], [2, 3, 4]]
    assert make().segments() == (slice(0, 5),)


def test_episode_without_tokens_is_valid() -> None:
    t = trajectory_of([], status=Status.ERROR_ENGINE, error="gone")
    assert t.num_turns == 0
    assert t.segments() == ()
    assert t.oldest_version is None
    assert t.token_rewards().shape == (0,)


def test_oldest_version_counts_sampled_tokens_only() -> None:
    versions = np.array([-1, 7, -1, 4, -1], np.int32)
    assert make(weight_version=versions).oldest_version == 4


def test_default_terms_are_empty_per_turn() -> None:
    assert make().turn_terms == ({}, {})


def test_equality_is_by_value_and_bit() -> None:
    assert make() == make()
    assert make() != make(logprobs=np.array([-0.0, -0.5, 0, -0.5, 0], np.float32))  # a sign is a bit, too
    assert make() != make(status=Status.ABORTED)
    assert make() != "a trajectory"


# ------------------------------------------------------------------------------------------------ invariants


def changed(name: str, index: int, value: Any) -> dict[str, Any]:
    array = getattr(make(), name).copy()
    array[index] = value
    return {name: array}


def mask_of(counts: list[int], ids: list[int]) -> dict[str, Any]:
    return {"kept_counts": np.array(counts, np.int32), "kept_ids": np.array(ids, np.int32)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": np.arange(5)}, r"token_ids must be a NumPy array of int32 .* not int64 \[5\]"),
        ({"token_ids": [1, 2, 3, 4, 5]}, r"token_ids must be a NumPy array of int32 .* not list"),
        ({"logprobs": np.zeros((5, 1), np.float32)}, r"logprobs must be .* not float32 \[5, 1\]"),
        ({"turn_rewards": np.zeros(2, np.float32)}, "turn_rewards must be a NumPy array of float64"),
        ({"token_ids": np.zeros(4, np.int32)}, "has 5 entries for 4 tokens"),
        (changed("turn_id", 1, -1), r"turn_id\[1\] is -1, but token 1 is an action token"),
        (changed("turn_id", 2, 0), r"turn_id\[2\] is 0, but token 2 is not an action token"),
        (changed("weight_version", 3, -1), r"weight_version\[3\] is -1, but token 3 is an action token"),
        (changed("weight_version", 0, 0), r"weight_version\[0\] is 0, but token 0 is not an action token"),
        (changed("logprobs", 3, -np.inf), r"logprobs\[3\] is -inf, but token 3 is an action token: it must be finite"),
        (changed("logprobs", 1, np.nan), r"logprobs\[1\] is nan"),
        (changed("logprobs", 4, -1), r"logprobs\[4\] is -1.0, but token 4 is not an action token: it must be 0"),
        ({"turn_id": np.array([-1, 1, -1, 0, -1], np.int32)}, "turn ids decrease"),
        ({"turn_id": np.array([-1, 0, -1, 0, -1], np.int32)}, r"2 turn rewards, .* belong to turns \[0\]"),
        ({"turn_id": np.array([-1, 0, -1, 2, -1], np.int32)}, r"2 turn rewards, .* belong to turns \[0, 2\]"),
        ({"turn_rewards": np.zeros(1)}, r"1 turn rewards, .* belong to turns \[0, 1\]"),
        ({"turn_rewards": np.zeros(3)}, r"3 turn rewards, .* belong to turns \[0, 1\]"),
        ({"turn_terms": ({},)}, "turn_terms has 1 entries for 2 turns"),
        ({"segment_starts": np.zeros(0, np.int32)}, "must rise from 0"),
        ({"segment_starts": np.array([1], np.int32)}, "must rise from 0"),
        ({"segment_starts": np.array([0, 2, 2], np.int32)}, "must rise from 0"),
        ({"segment_starts": np.array([0, 5], np.int32)}, "stay below the 5 tokens"),
        ({"terminated": True}, "must end with an action token"),
        ({"terminated": True, "truncated": False}, "must end with an action token"),
        ({"status": "completed"}, "must be a Status"),
        (mask_of([0, 2, 0], []), "kept_counts has 3 entries for 5 tokens and 0 kept ids"),
        (mask_of([0, 2, 0, 1, 0], [7, 8]), "kept_counts has 5 entries for 5 tokens and 2 kept ids"),
        (mask_of([1, 0, 0, 0, 0], [7]), "kept_counts is above 0 where the policy sampled nothing"),
        (mask_of([0, 2, 0, 0, 0], [70, 80]), "token 1 was sampled and is not once among those that the cuts kept"),
        ({"observation_mask": np.zeros(3, np.bool_)}, "observation_mask has 3 entries for 5 tokens"),
        ({"observation_mask": np.ones(5, np.bool_)}, "token 1 is an action token and an observation token"),
        ({"observation_mask": np.arange(5) == 0}, "token 0 is an observation token, and its context starts with it"),
    ],
)
def test_each_invariant_is_checked_and_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make(episode_id="e7", **changes)
    assert "trajectory 'e7': " in str(error.value)


def test_turn_stays_in_its_context() -> None:
    with pytest.raises(ValueError, match="turn 0 is in two contexts"):
        make((2, 1), segment_starts=np.array([0, 2], np.int32))


def in_contexts(turn_id: list[int], *starts: int, **fields: Any) -> Trajectory:
    return trajectory_of(turn_id, segment_starts=np.array(starts, np.int32), **fields)


def test_time_is_order_of_turns() -> None:
    """Turns 0 and 2 were sampled in one context, 1 in another, and 3 in a third."""
    t = in_contexts([-1, 1, -1, 0, 0, -1, 2, -1, 3, 3], 0, 2, 7, rewards=[1.0, 2.0, 3.0, 4.0])
    assert t.actions.tolist() == [3, 4, 1, 6, 8, 9]
    assert t.turn_ends().tolist() == [4, 1, 6, 9]
    assert t.token_rewards().tolist() == [0, 2.0, 0, 0, 1.0, 0, 3.0, 0, 0, 4.0]


@pytest.mark.parametrize(
    ("turn_id", "starts", "message"),
    [
        ([-1, 1, -1, 0, -1, 2], [0, 4], "turn ids decrease over the action tokens of a context"),
        ([-1, 0, -1, 2, -1, 1], [0, 4], r"used last at the turns \[2, 1\]"),
        ([-1, 0, -1, 1, -1, 0], [0, 2, 4], "turn 0 is in two contexts"),
    ],
)
def test_order_of_contexts_is_checked(turn_id: list[int], starts: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        in_contexts(turn_id, *starts)


# ------------------------------------------------------------------------------------------------ Arrow and Parquet

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
TERMS = st.dictionaries(TEXT, NUMBER, max_size=3)
CALL = st.fixed_dictionaries(
    {"id": TEXT, "type": st.just("function"), "function": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT})}
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": TEXT},
    optional={
        "name": TEXT,
        "reasoning_content": TEXT,
        "tool_call_id": TEXT,
        "tool_calls": st.lists(CALL, max_size=2).map(tuple),
    },
)


def per_sampled(mask: np.ndarray, values: list[int]) -> np.ndarray:
    out = np.zeros(len(mask), np.int32)
    out[mask] = values
    return out


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    turns = draw(st.lists(st.integers(1, 3), max_size=3))
    tail = draw(st.integers(0, 2))
    turn_id: list[int] = []
    starts: list[int] = []
    for k, n in enumerate(turns):
        if not starts or draw(st.booleans()):
            starts.append(len(turn_id))
        turn_id += [-1] * draw(st.integers(1, 2)) + [k] * n
    turn_id += [-1] * tail
    size = len(turn_id)
    starts = starts or [0] * (size > 0)
    mask = np.array(turn_id, np.int32) >= 0

    terminated = tail == 0 and draw(st.booleans())
    token_ids = np.array(draw(st.lists(st.integers(9, 2**31 - 1), min_size=size, max_size=size)), np.int32)
    sets: list[list[int]] = [[*range(draw(st.integers(0, 2))), int(token)] for token in token_ids[mask]]
    with_mask = draw(st.booleans())
    item = trajectory_of(
        turn_id,
        [draw(NUMBER) for _ in turns],
        token_ids=token_ids,
        kept_ids=np.array([token for one in sets for token in one] if with_mask else [], np.int32),
        kept_counts=per_sampled(mask, [len(one) for one in sets]) if with_mask else np.zeros(0, np.int32),
        observation_mask=~mask & ~np.isin(np.arange(size), starts) if draw(st.booleans()) else mask[:0],
        logprobs=[draw(st.floats(width=32, allow_nan=False, allow_infinity=False)) for _ in turn_id],
        version=[draw(st.integers(0, 2**31 - 1)) for _ in turn_id],
        turn_terms=tuple(draw(TERMS) for _ in turns),
        terminated=terminated,
        truncated=not terminated and draw(st.booleans()),
        status=draw(st.sampled_from(Status)),
        stop=draw(st.none() | TEXT),
        episode_id=draw(TEXT),
        group_id=draw(TEXT),
        task_key=draw(TEXT),
        data_source=draw(TEXT),
        segment_starts=np.array(starts, np.int32),
        messages=tuple(draw(st.lists(MESSAGE, max_size=3))),
        metrics=draw(TERMS),
        error=draw(st.none() | TEXT),
    )
    return mixed(item, np.random.default_rng(draw(st.integers(0, 9))))


def assert_same(got: list[Trajectory], expected: list[Trajectory]) -> None:
    """Field by field, without the class's own equality; the repr tells 0.0 from -0.0 and a tuple from a list."""
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        for field in fields(Trajectory):
            x, y = getattr(a, field.name), getattr(b, field.name)
            if isinstance(y, np.ndarray):
                assert x.dtype == y.dtype, field.name
                assert x.tobytes() == y.tobytes(), field.name
            elif field.name == "messages":
                assert x == y  # a tuple of calls is no list of calls
            else:
                assert repr(x) == repr(y), field.name


@settings(max_examples=80, deadline=None)
@given(st.lists(trajectories(), max_size=4))
def test_arrow_table_loses_nothing(expected: list[Trajectory]) -> None:
    table = to_table(expected)
    table.validate(full=True)
    assert_same(from_table(table), expected)
    assert from_table(table) == expected


@given(st.lists(trajectories(), max_size=4))
def test_parquet_file_loses_nothing(tmp_path_factory: pytest.TempPathFactory, expected: list[Trajectory]) -> None:
    path = tmp_path_factory.mktemp("dump") / "new" / "t.parquet"
    write_parquet(path, expected)
    assert_same(read_parquet(path), expected)
    assert [p.name for p in path.parent.iterdir()] == ["t.parquet"]


@given(st.lists(trajectories(), min_size=1, max_size=3), st.lists(trajectories(), max_size=3), st.data())
def test_tables_can_be_put_together_and_cut(
    first: list[Trajectory], second: list[Trajectory], data: st.DataObject
) -> None:
    table = pa.concat_tables([to_table(first), to_table(second)])
    start = data.draw(st.integers(0, len(first) + len(second)))
    assert_same(from_table(table.slice(start)), (first + second)[start:])


def test_absent_key_is_not_empty_one() -> None:
    bare = {"role": "assistant", "content": ""}
    full = bare | {"name": "", "tool_calls": ()}
    (read,) = from_table(to_table([make(messages=(bare, full))]))
    assert read.messages == (bare, full)


def test_failed_write_keeps_only_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(path, [make()])

    def half(writer: Any, table: pa.Table, size: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", half)
    with pytest.raises(OSError, match="disk full"):
        write_parquet(path, [])
    assert read_parquet(path) == [make()]
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


def test_other_tables_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(ValueError, match=r"other\.parquet: .*format version 1 in its metadata; this has none"):
        read_parquet(path)
    table = to_table([make()])
    with pytest.raises(ValueError, match="has version 99"):
        from_table(table.replace_schema_metadata({b"textenvs.trajectory.format": b"99"}))
    with pytest.raises(ValueError, match=r"lacks the columns \['logprobs', 'stop'\]"):
        from_table(table.drop_columns(["stop", "logprobs"]))
    with pytest.raises(ValueError, match="'token_ids' of the table of trajectories is"):
        from_table(table.set_column(table.column_names.index("token_ids"), "token_ids", pa.array([[1.0]])))


def test_invalid_row_is_not_read() -> None:
    table = to_table([make(episode_id="e3")])
    place = table.column_names.index("terminated")
    with pytest.raises(ValueError, match="trajectory 'e3': a terminated episode must end"):
        from_table(table.set_column(place, "terminated", pa.array([True])))


def test_added_columns_are_left_aside() -> None:
    assert from_table(to_table([make()]).append_column("step", pa.array([7]))) == [make()]


def test_files_from_before_sampling_masks_are_read() -> None:
    assert from_table(to_table([make()]).drop_columns(["kept_ids", "kept_counts"])) == [make()]


def test_replace_checks_again() -> None:
    with pytest.raises(ValueError, match="entries for 4 tokens"):
        replace(make(), token_ids=np.zeros(4, np.int32))


@pytest.mark.parametrize("value", [0, -1.5, True + 0.0, np.float32(2), LARGEST, -(10**12)])
def test_valid_rewards_are_accepted(value: Any) -> None:
    assert is_reward(value)


@pytest.mark.parametrize("value", [True, "1", None, 1j, math.nan, math.inf, -math.inf, 1e308, 10**400, -(10**400)])
def test_invalid_rewards_are_refused(value: Any) -> None:
    assert not is_reward(value)


def test_text_parts_are_written_as_their_text() -> None:
    message = user((text_part("a"), text_part("b")))
    (read,) = from_table(to_table([make(messages=(message,))]))
    assert read.messages == (user("a\nb"),)


def test_unopened_episode_with_any_error_is_written() -> None:
    never = Episode("e", "g", {"task_index": 0}, 1, Sampling(), 2)
    (read,) = from_table(to_table([_nothing(never, End(Status.ERROR_ENV, error="no file caf\udce9"))]))
    assert (read.error or "").startswith("no file caf")
