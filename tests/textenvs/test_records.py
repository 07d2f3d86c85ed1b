"""Reading what runs and evaluations write."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from textenvs.evaluate.records import Record
from textenvs.messages import assistant, user
from textenvs.records import RecordsError, open_run
from textenvs.records.schema import EXPLAINED, ITERATION_KEY, PLAYED, arrow_schema

T = 4  # tokens: two of the opening, two sampled


def row(number, **changes):
    """One episode, as a writer may give it."""
    played = {
        **dict.fromkeys(("data_source", "forked_from"), ""),
        **{"episode_id": f"e{number}", "group_id": f"g{number // 4}", "task_key": f"task {number}"},
        **{"status": "completed", "stop": "solved", "error": None, "forked_turn": 0},
        **{"terminated": True, "truncated": False, "task_index": number, "env_seed": 2**32 - 1, "sampling_seed": 2**62},
        **{"token_ids": [5, 6, 7, 8], "action_mask": [False, False, True, True], "logprobs": [0.0, 0.0, -0.5, -0.25]},
        **{"weight_version": [-1, -1, 3, 3], "turn_id": [-1, -1, 0, 0], "turn_rewards": [float(number)]},
        **{"segment_starts": [0], "kept_ids": [], "kept_counts": [], "turn_terms": [[("right", float(number))]]},
        **{"metrics": [("length", 2.0)], "messages": [user("hi"), assistant("yo")]},
    }
    return played | changes


def write(path, rows, *parts, info=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = arrow_schema(*(parts or (PLAYED, EXPLAINED)))
    rows = [{name: values.get(name) for name in schema.names} for values in rows]
    schema = schema.with_metadata({**schema.metadata, ITERATION_KEY: json.dumps(info or {})})
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=3)


def test_a_run_folder_has_its_iterations_in_order(tmp_path):
    (tmp_path / "config.yaml").write_text("trainer: {seed: 7}\n")
    for kind, number in (("train", 2), ("train", 1), ("validation", 1), ("validation", 0)):
        write(tmp_path / "rollouts" / kind / f"{number:06d}.parquet", [row(0)])
    run = open_run(tmp_path)
    assert run.kind == "run"
    assert run.config == {"trainer": {"seed": 7}}
    assert [(iteration.number, iteration.kind) for iteration in run.iterations] == [
        *[(0, "validation"), (1, "train"), (1, "validation"), (2, "train")]
    ]
    with pytest.raises(RecordsError, match=r"no episodes of train 9; those that are there: 1, 2"):
        run.iteration(9)


def test_a_run_whose_episodes_are_elsewhere(tmp_path):
    write(tmp_path / "apart" / "000003.parquet", [row(0)])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(f"trainer: {{rollout_data_dir: {tmp_path}/apart}}\n")
    assert [iteration.number for iteration in open_run(tmp_path / "run").iterations] == [3]


def test_any_rows_can_be_read_alone(tmp_path):
    write(tmp_path / "000012.parquet", [row(n) for n in range(8)], info={"iteration": 12, "kind": "validation"})
    (iteration,) = open_run(tmp_path / "000012.parquet").iterations
    assert (iteration.kind, iteration.number, len(iteration)) == ("validation", 12, 8)
    assert [episode.episode_id for episode in iteration.episodes([6, 1])] == ["e1", "e6"]
    assert iteration.episode(5).total_reward == 5.0
    assert len(list(iteration.episodes())) == 8
    with pytest.raises(IndexError, match="8 episodes"):
        list(iteration.episodes([8]))
    lines = iteration.summaries()
    assert [(line.total_reward, line.turns, line.tokens) for line in lines] == [(float(n), 1, T) for n in range(8)]


@pytest.mark.parametrize(
    "read", [lambda iteration: list(iteration.episodes()), lambda iteration: iteration.summaries()]
)
def test_a_damaged_page_is_a_records_error(tmp_path, read):
    path = tmp_path / "000001.parquet"
    write(path, [row(n) for n in range(8)])
    whole = path.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    path.write_bytes(whole[:4] + bytes(len(whole) - 4 - footer) + whole[-footer:])
    (iteration,) = open_run(path).iterations
    with pytest.raises(RecordsError, match=r"000001.parquet: not a readable Parquet file"):
        read(iteration)


def test_nulls_become_nan_or_none(tmp_path):
    learned = {
        **{
            "advantage": [None, None, 1.5, -1.5],
            "mismatch": [None, None, 0.25, None],
            "clipped": [None, None, True, False],
        },
        **{"token_text": ["a", "b", "", "€"], "fork_value": [None], "signal": "signal", "group_mean": 0.5},
    }
    write(tmp_path / "1.parquet", [row(0, **learned), row(1)])
    full, bare = open_run(tmp_path / "1.parquet").iterations[0].episodes()
    np.testing.assert_array_equal(full.tokens.advantage, [np.nan, np.nan, 1.5, -1.5])
    np.testing.assert_array_equal(full.tokens.clipped, [np.nan, np.nan, 1.0, 0.0])
    np.testing.assert_array_equal(full.tokens.learner_logprobs, [np.nan, np.nan, -0.25, np.nan])
    np.testing.assert_array_equal(full.fork_value, [np.nan])
    assert (full.tokens.text, full.signal, full.group_mean) == (("a", "b", "", "€"), "signal", 0.5)
    assert full.tokens.returns is None
    assert full.messages == (user("hi"), assistant("yo"))
    assert (full.env_seed, full.sampling_seed, full.task_index) == (2**32 - 1, 2**62, 0)
    assert bare.tokens.advantage is bare.tokens.learner_logprobs is bare.signal is None
    assert bare.tokens.action_mask.dtype == np.bool_


def test_old_file_has_played_columns_only(tmp_path):
    older = {name: column for name, column in PLAYED.items() if name not in ("env_seed", "sampling_seed", "task_index")}
    write(tmp_path / "1.parquet", [row(0)], older)
    iteration = open_run(tmp_path / "1.parquet").iterations[0]
    assert iteration.summaries()[0].signal is None
    assert iteration.episode(0).env_seed is None


def test_evaluation_is_read_without_torn_line(tmp_path):
    records = [
        Record(task=n, sample=0, seed=n, task_index=n, task_key=f"k{n}", data_source="d", turn_rewards=(0.5, 0.25),
               messages=(user("hi"), assistant("<b>"))) for n in (1, 0)
    ]  # fmt: skip
    manifest = {
        "environment": {"id": "x", "version": None, "options": {}},
        "tasks": {"name": "x", "count": 1, "fingerprint": ""},
        "samples": 1,
        "seed": 0,
        "policy": {},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    torn = records[0].to_json()[:20]
    (tmp_path / "episodes.jsonl").write_text("".join(r.to_json() + "\n" for r in records) + torn)
    run = open_run(tmp_path)
    (iteration,) = run.iterations
    assert (run.kind, iteration.kind, len(iteration)) == ("evaluation", "evaluation", 2)
    assert run.config == manifest
    assert [line.task_key for line in iteration.summaries()] == ["k0", "k1"]
    assert iteration.summaries()[0].total_reward == 0.75
    assert iteration.episode(1).messages == (user("hi"), assistant("<b>"))
    assert iteration.episode(1).record == records[0]


def test_what_is_no_record_is_said(tmp_path):
    with pytest.raises(RecordsError, match="no file or folder"):
        open_run(tmp_path / "none")
    with pytest.raises(RecordsError, match="no folder of a run"):
        open_run(tmp_path)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    with pytest.raises(RecordsError, match="not a file of episodes"):
        open_run(tmp_path / "1.parquet")
    (tmp_path / "2.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(RecordsError, match="not a readable Parquet file"):
        open_run(tmp_path / "2.parquet")


def test_docs_list_every_schema_column():
    page = (Path(__file__).parents[2] / "docs" / "records.md").read_text(encoding="utf-8")
    for name, column in (PLAYED | EXPLAINED).items():
        per = "a list" if column.per == "list" else column.per
        bits = f" ({column.bits} bits)" if column.bits else ""
        assert f"| `{name}` | {per} | {column.type} | {column.text}{bits} |" in page
