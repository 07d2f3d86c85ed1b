"""Episodes as rows of other libraries' datasets: written, read back, they are the same episodes."""

import json
import re

import adapter_kit
import gymnasium
import pytest
from pyarrow import parquet

from textenvs.cli import main
from textenvs.env import TextEnv
from textenvs.integrations import EpisodeSpec, SpecError, episode_specs
from textenvs.integrations.rows import SCHEMAS, episode_rows, openings, write_episodes
from textenvs.messages import tool, user
from textenvs.task import Rows, Task


def episode_of(row):
    return EpisodeSpec.from_row(row.get("textenv") or row["extra_info"]["textenv"])


@pytest.mark.parametrize("schema", SCHEMAS)
def test_what_is_written_is_read_back(schema, tmp_path):
    specs = [
        spec
        for env_id in adapter_kit.ENVIRONMENTS
        for spec in episode_specs(env_id, 3, seed=5, env_kwargs={"max_assistant_turns": 2})
    ]
    specs += [EpisodeSpec("textenv/clarify", 1, task_index=7)]
    path = write_episodes(schema, specs, tmp_path / "new" / "rows.parquet", split="test")
    rows = parquet.read_table(path).to_pylist()
    assert [episode_of(row) for row in rows] == specs
    assert [row["prompt"] for row in rows] == [
        [dict(message) for message in opening.messages] for opening in openings(specs)
    ]
    assert [row["extra_info"]["index"] for row in rows] == list(range(len(specs)))
    assert {row["extra_info"]["split"] for row in rows} == {"test"}
    assert [row["data_source"] for row in rows] == [spec.env for spec in specs]
    assert {row.get("agent_name") for row in rows} == {{"verl": "textenv", "skyrl": None}[schema]}
    if schema == "skyrl":
        assert [row["env_class"] for row in rows] == [spec.env for spec in specs]


def test_ground_truth_stays_out_of_prompt():
    for opening, row in zip(
        openings(episode_specs("textenv/clarify", 5)),
        episode_rows("verl", episode_specs("textenv/clarify", 5)),
        strict=True,
    ):
        assert row["reward_model"] == {"style": "rule", "ground_truth": str(opening.task.ground_truth)}


def test_episodes_share_one_closed_environment():
    made = []

    class Counted(TextEnv):
        open = 0

        def __init__(self, name="a"):
            super().__init__(Rows("one", [Task("0", "test", (user(name),), {"a": 1})]))
            made.append(name)
            Counted.open += 1

        def cleanup(self):
            Counted.open -= 1

    gymnasium.register("textenv/counted", entry_point=Counted, disable_env_checker=True)
    try:
        specs = [EpisodeSpec("textenv/counted", seed, {"name": name}) for name in "ab" for seed in range(3)]
        for opening, spec in zip(openings(specs), specs, strict=True):
            assert opening.prompt == [{"role": "user", "content": spec.env_kwargs["name"]}]
            assert json.loads(opening.ground_truth) == {"a": 1}
            assert Counted.open == 1
        assert (made, Counted.open) == (["a", "b"], 0)
        some = openings(specs)
        next(some)
        some.close()
        assert Counted.open == 0
    finally:
        del gymnasium.registry["textenv/counted"]


def test_what_a_prompt_column_cannot_hold_is_refused():
    class Odd(TextEnv):
        def __init__(self):
            super().__init__(Rows("one", [Task("0", "test", (user("x"), tool("y", "call_0")), "1")]))

    gymnasium.register("textenv/odd", entry_point=Odd, disable_env_checker=True)
    try:
        with pytest.raises(SpecError, match=r"textenv/odd opens with a message that has \['tool_call_id'\]"):
            list(episode_rows("verl", [EpisodeSpec("textenv/odd", 0)]))
    finally:
        del gymnasium.registry["textenv/odd"]


def test_mistakes_are_named(tmp_path):
    with pytest.raises(SpecError, match="unknown schema 'vrel'; known are verl, "):
        list(episode_rows("vrel", []))
    with pytest.raises(SpecError, match="no episode to write"):
        write_episodes("verl", [], tmp_path / "x.parquet")


def test_the_command(tmp_path, capsys):
    out = tmp_path / "train.parquet"
    words = ["rows", "verl", "textenv/gsm8k-interact", "-n", "3", "--seed", "7", "-o", str(out)]
    assert main([*words, "max_assistant_turns=2"]) == 0
    assert "3 episodes of textenv/gsm8k-interact, seeds 7 to 9, for verl" in capsys.readouterr().out
    specs = [episode_of(row) for row in parquet.read_table(out).to_pylist()]
    assert specs == list(episode_specs("textenv/gsm8k-interact", 3, seed=7, env_kwargs={"max_assistant_turns": 2}))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["verl", "textenv/gsm8k-interct", "-n", "3"], "did you mean 'textenv/gsm8k-interact'|gsm8k-interact"),
        (["verl", "textenv/gsm8k-interact", "-n", "3", "max_turns=2"], "has no option 'max_turns'"),
        (["verl", "textenv/gsm8k-interact", "-n", "0"], "count must be an integer of at least 1"),
        (["verl", "textenv/gsm8k-interact", "-n", "1", "--seed", "-4"], "seed must be an integer of at least 0"),
    ],
)
def test_mistakes_on_the_command_line(words, says, tmp_path, capsys):
    assert main(["rows", *words, "-o", str(tmp_path / "x.parquet")]) == 2
    error = capsys.readouterr().err
    assert re.search(says, error), error
    assert not (tmp_path / "x.parquet").exists()
