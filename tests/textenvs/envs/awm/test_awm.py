"""textenv/awm on a folder of our own in AWM's format."""

import functools
import json
import pickle
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from awm_folder import VERIFIERS, make_folder

import textenvs
from textenvs.audit import Subject, contract
from textenvs.bounded_files import UnreadableFile
from textenvs.envs.awm import folder
from textenvs.messages import assistant
from textenvs.sandbox import Sandbox, SandboxUnavailable
from textenvs.task import TaskError
from textenvs.tools import call
from textenvs.turn import EnvironmentFailure

fastapi = pytest.importorskip("fastapi", reason="worlds are FastAPI applications")
PACKAGES = str(Path(fastapi.__file__).parents[1])
try:
    Sandbox()
except SandboxUnavailable:
    pytest.skip("this machine has no sandbox", allow_module_level=True)
ORM = ("Notes ORM",) if find_spec("sqlalchemy") else ()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(make_folder(tmp_path_factory.mktemp("awm"), ("Notes 1", "Traps", "Broken", *ORM)))


def made(data, world="notes_1", number=0, **options):
    env = textenvs.make("textenv/awm", data=data, packages=PACKAGES, worlds=[world], **options)
    env.reset(seed=0, options={"task_index": number})
    return env


def calling(*calls):
    return assistant("", calls)


def said(env, reply):
    return env.step(reply)[0][-1]["content"]


# ------------------------------------------------------------------ an episode


@pytest.mark.parametrize("world", ["notes_1", *map(folder.normalized, ORM)])
def test_verifier_judges_the_database(data, world):
    env = made(data, world)
    assert [note["title"] for note in json.loads(said(env, calling(call("list_notes"))))] == ["Milk", "Salt"]
    assert json.loads(said(env, calling(call("add_note", title="Bread"))))["id"] == 3
    _, reward, terminated, _, info = env.step("Done.")
    assert (reward, terminated, info["stop"]) == (1.0, True, "solved")


@pytest.mark.parametrize(
    ("number", "replies", "reward"),
    [
        (0, ["Done: I added the note 'Bread'."], 0.0),
        (0, [calling(call("add_note", title="Bread"), call("add_note", title="Bread")), "Done."], 0.0),
        (0, [calling(call("add_note", title="Bread"), call("delete_note", note_id=3)), "Done."], 0.0),
        (1, ["There are 2 notes."], 1.0),
        (1, ["There are 22 notes."], 0.0),
        (1, [" ".join(map(str, range(101)))], 0.0),
        (1, ["There are 2 notes." + "!" * 4000], 0.0),
        (1, [calling(call("list_notes")), "There are some."], 0.0),
    ],
)
def test_reward_is_the_verdict(data, number, replies, reward):
    env = made(data, number=number)
    rewards = [env.step(reply)[1] for reply in replies]
    assert rewards == [0.0] * (len(replies) - 1) + [reward]
    assert env.state.stop == ("solved" if reward else "unsolved")


def test_verifier_that_raises_pays_nothing(data):
    *_, info = made(data, number=2).step("Done.")
    assert (info["stop"], info["failed"], info["metrics"]["verifier_problem"]) == ("unsolved", False, 1.0)


def test_tools_are_the_operations(data):
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in made(data).tool_schemas}
    assert set(schemas) == {"list_notes", "add_note", "delete_note"}
    assert schemas["add_note"]["required"] == ["title"]
    assert schemas["delete_note"]["properties"] == {"note_id": {"type": "integer"}}
    assert schemas["list_notes"]["properties"]["word"]["description"] == "A word of the title."


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (call("add_note", titel="x"), "Status 422"),
        (call("add_note"), "Status 422"),
        (call("delete_note", note_id="x"), "Status 422"),
        (call("delete_note", note_id="../1"), "Status"),
        (call("delete_note"), "Status 422"),
        (call("list_notes", word=["a", "b"]), "["),
        (call("list_notes", awm_state=1), "list_notes has no argument"),
        (call("list_notes", self=1), "["),
    ],
)
def test_bad_arguments_are_answered(data, arguments, answer):
    env = made(data)
    assert said(env, calling(arguments)).startswith(answer)
    assert json.loads(said(env, calling(call("list_notes", word="mil"))))[0]["title"] == "Milk"


def test_box_with_many_worlds_is_replaced(tmp_path, monkeypatch):
    """Memory that worlds do not free must not add up until calls fail."""
    source = folder.worker_source().replace("_WORLDS = 32", "_WORLDS = 1")
    assert "_WORLDS = 1" in source
    monkeypatch.setattr(folder, "worker_source", lambda: source)
    folder._pool.cache_clear()
    data = str(make_folder(tmp_path / "awm", ("Notes 1", "Traps")))
    for world in ("notes_1", "traps"):
        assert made(data, world, 1).step("There are 2 notes.")[1] == 1.0
    folder._pool(PACKAGES).close()
    folder._pool.cache_clear()


def test_episodes_have_databases_of_their_own(data):
    one, other = made(data), made(data)
    one.step(calling(call("delete_note", note_id=1)))
    copies = one.fork(), pickle.loads(pickle.dumps(one))
    assert len(json.loads(said(other, calling(call("list_notes"))))) == 2
    for env in (one, *copies):
        env.step(calling(call("add_note", title="Bread")))
        assert [note["title"] for note in json.loads(said(env, calling(call("list_notes"))))] == ["Salt", "Bread"]


def test_arguments_of_a_path_are_quoted(data):
    env = made(data, "traps")
    assert said(env, calling(call("repeat", text="a b?c#d%41"))) == '{"text":"a b?c#d%41"}'


def test_clock_and_randomness_are_fixed(data):
    """Another process, on another day, must give the same results; the rest of the contract's checks cannot see it."""
    note = json.loads(said(made(data), calling(call("add_note", title="Bread"))))
    assert note["made_at"] == "2026-01-01T12:00:00"
    assert note == json.loads(said(made(data), calling(call("add_note", title="Bread"))))
    listed = json.loads(said(made(data), calling(call("list_notes"))))
    assert [entry["made_at"] for entry in listed] == ["2025-12-29T12:00:00", "2026-01-01T12:00:00"]


# ------------------------------------------------------------------ failures


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("wait", "it took longer than 1 s"),
        ("burn", "its process ended with exit code 7"),
        ("fail", "Status 500"),
        ("fill", "Status 500"),
    ],
)
def test_no_call_makes_the_episode_fail(data, monkeypatch, name, answer):
    env = made(data, "traps", 1)
    with monkeypatch.context() as patch:
        patch.setattr(folder, "TIMEOUT_S", 1.0)
        conversation, *_, info = env.step(calling(call(name)))
    assert answer in conversation[-1]["content"]
    assert not info["failed"]
    assert env.step("There are 2.")[1] == 1.0


@pytest.mark.parametrize("depth", [400, 950, 982, 990])
def test_deep_arguments_are_no_failure(data, depth):
    """However deep: some text that can be read here is too deep for the program of the world."""
    env = made(data)
    reply = f'<tool_call>\n{{"name": "list_notes", "arguments": {{"word": {"[" * depth}{"]" * depth}}}}}\n</tool_call>'
    *_, info = env.step(reply)
    assert not info["failed"]
    assert json.loads(said(env, calling(call("list_notes", word="mil"))))[0]["title"] == "Milk"


def test_late_reader_has_its_own_database(tmp_path):
    """A world may read where its database is in each call."""
    data = str(make_folder(tmp_path / "awm", ("Late", "Traps")))
    env = made(data, "late")
    assert len(json.loads(said(env, calling(call("list_notes"))))) == 2
    made(data, "traps")
    assert len(json.loads(said(env, calling(call("list_notes"))))) == 2


def test_world_that_cannot_be_loaded_is_a_failure(data):
    with pytest.raises(EnvironmentFailure, match="the world broken cannot be run: ModuleNotFoundError"):
        made(data, "broken")


def test_contract_of_every_environment(data):
    make = functools.partial(textenvs.make, "textenv/awm", data=data, packages=PACKAGES, worlds=["notes_1"])
    for verdict in contract(Subject(make, episodes=1)):
        assert verdict.status in ("pass", "skipped", "warning"), verdict


# ------------------------------------------------------------------ the folder and rows


def test_tasks_without_a_verifier_are_left_out(data):
    env = made(data)
    assert [env.tasks[number].key for number in range(env.tasks.size)] == ["notes_1/0", "notes_1/1", "notes_1/2"]
    assert list(env.secrets()) == [VERIFIERS[0]]


def test_missing_folder_or_world_is_named(data, monkeypatch):
    monkeypatch.delenv(folder.VARIABLE, raising=False)
    with pytest.raises(ValueError, match="hf download Snowflake/AgentWorldModel-1K"):
        textenvs.make("textenv/awm", packages=PACKAGES)
    with pytest.raises(ValueError, match=r"has no gen_db\.jsonl"):
        textenvs.make("textenv/awm", data="/nowhere", packages=PACKAGES)
    with pytest.raises(ValueError, match="has no world 'elsewhere'"):
        made(data, "elsewhere")
    monkeypatch.setenv(folder.VARIABLE, data)
    assert textenvs.make("textenv/awm", packages=PACKAGES).box.root == Path(data).resolve()


@pytest.mark.parametrize("name", ["gen_db.jsonl", "gen_envs.jsonl", "gen_verifier.pure_code.jsonl"])
@pytest.mark.parametrize("content", ["", "{", "[1]", "5", '{"scenario": 5}', '{"scenario": "Notes 1"}'])
def test_damaged_file_is_named(data, tmp_path, name, content):
    shutil.copytree(data, tmp_path / "copy")
    (tmp_path / "copy" / name).write_text(content)
    with pytest.raises((UnreadableFile, TaskError), match=r"gen_\w+(\.pure_code)?\.jsonl|not as AWM writes it"):
        assert folder.items(tmp_path / "copy") and folder.world_source(tmp_path / "copy", "notes_1")  # noqa: PT018


def test_rows_name_tasks_of_the_folder(data):
    env = made(data)
    row = json.loads(json.dumps(env.task.to_row()))
    assert VERIFIERS[0] not in json.dumps(row)
    env.reset(options={"task": row})
    assert env.item.key == "notes_1/0"
    with pytest.raises(TaskError, match="is no task of"):
        env.reset(options={"task": {**row, "extra_info": {"awm": "../x/0"}}})


def test_worlds_are_split_as_a_whole():
    worlds = [f"world_{number}" for number in range(40)]
    splits = [[split for split in ("train", "test") if folder.in_split(world, split)] for world in worlds]
    assert {tuple(names) for names in splits} == {("train",), ("test",)}
