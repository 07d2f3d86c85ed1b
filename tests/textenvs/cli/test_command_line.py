"""The command line as a user meets it: what it prints, what it refuses, and how."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import command
from playable import PLAYABLE

import textenvs
from textenvs.cli import main
from textenvs.cli.arguments import COMMANDS
from textenvs.cli.common import CommandError, Option, options_of, parse_options, show_value
from textenvs.data.gsm8k import INSTRUCTION
from textenvs.env import EnvironmentFailure
from textenvs.envs.clarify.env import Clarify
from textenvs.integrations.rows import SCHEMAS
from textenvs.sandbox import SandboxUnavailable
from textenvs.task import SPLITS

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path, monkeypatch):
    """Modules of one test's folder must not show in the next."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


# ------------------------------------------------------------------ list and describe


def test_list(capsys):
    status, out, err = command(capsys, "list")
    assert (status, err) == (0, "")
    rows = out.partition("\n\n")[0].splitlines()[2:]
    lines = {line.split()[0]: line for line in rows if not line.startswith(" ")}
    assert list(lines) == [*textenvs.list_environments(with_arguments=True)]
    assert lines["textenv/gsm8k-interact"].split()[2:5] == ["3", "-", "-"]


@pytest.mark.parametrize("width", ["100", "140", "20"])
def test_list_fits_the_terminal(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setattr("textenvs.cli.list_ids.list_environments", lambda **_: ["textenv/gsm8k", "textenv/search-qa"])
    _, out, _ = command(capsys, "list")
    assert max(map(len, out.splitlines())) <= max(100, int(width))
    for env_id in ("textenv/gsm8k", "textenv/search-qa"):
        words = textenvs.describe(env_id).description.split()
        assert all(word in out for word in words)


def test_list_as_json(capsys):
    _, out, _ = command(capsys, "list", "--json")
    entries = {entry["id"]: entry for entry in json.loads(out)}
    assert set(entries) == set(textenvs.list_environments(with_arguments=True))
    requiring = [env_id for env_id, entry in entries.items() if entry["requires"]]
    assert requiring == ["textenv/tau2", "textenv/bfcl", "textenv/awm", "textenv/remote"]
    for env_id in PLAYABLE:
        entry = entries[env_id]
        env = textenvs.make(env_id)
        assert entry["version"] == textenvs.describe(env_id).version
        assert entry["max_assistant_turns"] == env.max_assistant_turns
        assert entry["max_user_turns"] == env.max_user_turns


def test_list_where_an_extra_is_missing(capsys, monkeypatch):
    from textenvs.cli import list_ids

    def make(env_id):
        if env_id == "textenv/gsm8k":
            raise ImportError("needs flour: pip install 'textenvs[bread]'")
        return textenvs.make(env_id)

    monkeypatch.setattr(list_ids, "make", make)
    status, out, _ = command(capsys, "list")
    assert status == 0
    assert "textenv/gsm8k cannot be made here: needs flour: pip install 'textenvs[bread]'" in out
    assert "(missing)" in out


@pytest.fixture
def without_sandbox(monkeypatch):
    monkeypatch.setattr("textenvs.sandbox.backends._problem_with", lambda backend, user: "not on this machine")


def test_list_where_no_sandbox_holds(capsys, without_sandbox):
    status, out, err = command(capsys, "list")
    assert (status, err) == (0, "")
    assert ", textenv/math-python cannot be made here: No sandbox" in out  # the same cause once
    table = out.partition("\n\n")[0].splitlines()
    rows = {line.split()[0]: line for line in table if line.startswith("textenv/")}
    assert "(missing)" in rows["textenv/terminal"]
    assert "(missing)" not in rows["textenv/gsm8k"]


@pytest.mark.parametrize("words", [["describe"], ["play"], ["audit"], ["evaluate", "--policy", "expert"]])
def test_commands_where_no_sandbox_holds(words, capsys, without_sandbox):
    name, *rest = words
    status, _, err = command(capsys, name, "textenv/terminal", *rest)
    assert status == 1
    assert err.startswith(f"textenvs {name}: textenv/terminal: No sandbox holds on this machine")
    assert "To make a sandbox possible" in err


@pytest.mark.parametrize("env_id", PLAYABLE)
def test_every_option_of_every_environment_is_documented(env_id):
    options, complete = options_of(type(textenvs.make(env_id)))
    assert complete
    assert "render_mode" in options
    assert all(option.doc for option in options.values())


@pytest.mark.parametrize(("env_id", "words"), [("textenv/gsm8k", []), ("textenv/clarify", ["level=easy"])])
def test_describe_shows_options_levels_returns_and_a_conversation(env_id, words, capsys):
    env = textenvs.make(env_id)
    status, out, err = command(capsys, "describe", env_id, *words, "--all-levels", "--episodes", "2")
    assert (status, err) == (0, "")
    assert re.findall(r"^Level (\w+), ", out, re.MULTILINE) == ([] if words else list(env.levels))
    spec = textenvs.describe(env_id)
    assert out.startswith(f"{env_id}, version {spec.version}\n")
    for name in options_of(type(env))[0]:
        assert f"\n  {name} = " in out
    assert env.tasks.name in out
    assert re.search(r"^expert +100\.0%", out, re.MULTILINE)
    assert re.search(r"^random +\d", out, re.MULTILINE)
    assert "\nassistant: " in out
    env.reset(seed=0)
    _, _, _, _, info = env.step("no")
    for term in info["terms"]:
        assert re.search(rf"^{term} ", out, re.MULTILINE)
    assert ":class:" not in out
    assert "``" not in out.replace("```", "")  # a conversation may hold fenced code


@pytest.mark.parametrize(
    ("words", "levels"),
    [(["textenv/gsm8k", "tasks=rows.jsonl"], []), (["textenv/clarify", 'kinds=["taxi"]'], ["easy"])],
)
def test_levels_that_options_exclude_are_left_out(words, levels, tmp_path, capsys):
    lines(tmp_path / "rows.jsonl", GOOD)
    status, out, err = command(capsys, "describe", *words, "--episodes", "2", "--all-levels")
    assert (status, err) == (0, "")
    assert re.findall(r"^Level (\w+)", out, re.MULTILINE) == levels
    _, out, err = command(capsys, "audit", *words, "--episodes", "2", "--search", "2")
    assert (re.findall(r" level=(\w+)", out), err) == (levels, "")


def test_describe_says_which_policy_plays(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    main(["describe", "gsm8k", "--episodes", "2"])
    out, err = capsys.readouterr()
    *_, table = out.split("mean return")
    for name in ("expert", "careless", "random"):
        assert f", {name}, plays 2 episodes" in err
        assert re.search(rf"^\s*{name} ", table, re.MULTILINE)
    assert err.endswith("\r\x1b[K")  # nothing of it stays


def test_describe_shows_one_level(capsys):
    _, out, _ = command(capsys, "describe", "gsm8k", "--episodes", "2")  # textenv/ goes without saying
    assert re.findall(r"^Level (\w+), ", out, re.MULTILINE) == ["easy"]
    assert "Other levels (medium, hard, expert): level=NAME, or --all-levels." in out


OWN = """
import gymnasium
from textenvs import Task, TextEnv, Turn
from textenvs.messages import user

class Base(TextEnv):
    def __init__(self, **options):
        super().__init__([Task("one", "mine", (user("hi"),), ground_truth="x")], **options)

    def respond(self, reply):
        terms = {"right": 1.0} if reply["content"] == "x" else {"wrong": -1.0}
        return Turn([], terms=terms, terminated=True, stop="done")

    def demonstration(self, rng):
        return "x"

class Turns(Base):
    def __init__(self):
        super().__init__(max_turns=3)

class Broken(Base):
    def __init__(self):
        {}["answers"]

gymnasium.register("own/class", entry_point="own:Bas")
gymnasium.register("own/module", entry_point="ownn:Base")
gymnasium.register("own/turns", entry_point="own:Turns")
"""


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("own:own/class", "which has no 'Bas'; did you mean Base?"),
        ("own:own/module", "there is no module 'ownn'"),
        ("own:own/turns", "'max_turns' (HERE/own.py, line 8, in __init__); did you mean max_user_turns"),
        ("own:Turns", "'max_turns' (HERE/own.py, line 8, in __init__); did you mean max_user_turns"),
        ("own:Broken", "KeyError: 'answers' (HERE/own.py, line 23, in __init__)"),
    ],
)
def test_mistakes_in_ones_own_environment_are_located(env_id, message, capsys, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    status, _, err = command(capsys, "describe", env_id, "--episodes", "2")
    sys.modules.pop("own", None)
    assert status == 2
    assert message.replace("HERE", str(tmp_path)) in err
    assert "Traceback" not in err


def test_terms_that_only_some_turns_have_are_shown(capsys, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    status, out, err = command(capsys, "describe", "own:Base", "--episodes", "2")
    sys.modules.pop("own", None)
    assert (status, err) == (0, "")
    assert re.search(r"^right +\+1\.000 +\+0\.000$", out, re.MULTILINE)
    assert re.search(r"^wrong +\+0\.000 +-1\.000$", out, re.MULTILINE)
    assert 'No episode of the expert ended with stop="solved"' in out


def test_describe_says_why_nothing_could_be_played(capsys):
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    user = 'user={"model":"m","base_url":"http://127.0.0.1:9/v1","max_retries":0}'
    status, out, _ = command(capsys, "describe", "textenv/collab-math", "level=easy", user, "--episodes=2")
    assert status == 0
    assert "expert: 2 of 2 episodes FAILED" in out
    assert "the scripted expert needs the scripted user" in out
    assert "random: 2 of 2 episodes FAILED" in out
    assert "the connection failed" in out
    assert "reward term" not in out, "there are none to show"


# ------------------------------------------------------------------ audit


@pytest.mark.parametrize(("kind", "status"), [("Sound", 0), ("ListsCount", 1)])
def test_audit_prints_verdicts_and_fails_where_one_does(kind, status, capsys, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "textenvs" / "audit")
    words = ("audit", f"planted:{kind}", "--episodes", "20", "--search", "60")
    if kind == "ListsCount":
        got, out, err = command(capsys, *words)
        assert re.search(r"^pass +determinism ", out, re.MULTILINE)
        assert re.search(r"^fail +search +a list of candidates", out, re.MULTILINE)
    else:
        got, out, err = command(capsys, *words, "--json")
        verdicts = json.loads(out)
        assert {"id", "level", "check", "status", "cause", "evidence", "transcript"} == set(verdicts[0])
        assert not any(verdict["status"] == "fail" for verdict in verdicts)
    assert (got, err) == (status, "")


@pytest.mark.parametrize(
    ("error", "status", "verdict"),
    [
        (ImportError("this needs bm25s"), 0, "skipped  made +it needs search, absent here; .*this needs bm25s"),
        (ValueError("a bug"), 1, "fail +made +it cannot be made here; .*a bug"),
        (SandboxUnavailable("no sandbox holds"), 1, "fail +made +it cannot be made here; .*no sandbox holds"),
    ],
)
def test_audit_all_fails_for_unmakeable_environment(error, status, verdict, capsys, monkeypatch):
    def broken(*args, **kwargs):
        raise error

    monkeypatch.setattr("textenvs.cli.audit.list_environments", lambda: ["textenv/search-qa"])
    monkeypatch.setattr("textenvs.cli.common.make", broken)
    got, out, _ = command(capsys, "audit", "--all")
    assert got == status
    assert re.search(f"^{verdict}", out, re.MULTILINE)


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "the following arguments are required: COMMAND"),
        (["descrbe"], 2, "there is no 'descrbe'; did you mean describe?"),
        (
            ["frobnicate"],
            2,
            "list, describe, audit, play, prepare, data, rows, evaluate, users, prompts, record, export, sft-data, "
            "leaderboard, view, serve, new",
        ),
        (["describe", "textenv/gsm8k-interct"], 2, "Did you mean 'textenv/gsm8k-interact'"),
        (["describe", "zzz"], 2, "There are: textenv/gsm8k"),
        (["describe", "textenv/gsm8k", "levl=easy"], 2, "textenv/gsm8k has no option 'levl'; did you mean level?"),
        (
            ["describe", "textenv/gsm8k", "level=eas"],
            2,
            "'hard' or 'expert', not 'eas'",
        ),
        (["describe", "textenv/gsm8k", "level=easy", "level=hard"], 2, "option 'level' is given twice"),
        (["describe", "textenv/gsm8k", "easy"], 2, "what is 'easy' for? Options are key=value."),
        (["describe", "textenv/gsm8k", "--episods", "3"], 2, "there is no option --episods; did you mean --episodes?"),
        (["describe", "textenv/gsm8k", "--episodes", "0"], 2, "--episodes: must be at least 1"),
        (["describe", "textenv/gsm8k", "--seed", "-1"], 2, "--seed: must be at least 0"),
        (["describe", "textenv/gsm8k", "tasks=absent.jsonl"], 2, "absent.jsonl: no such file"),
        (["describe", "no_such_module:my/env"], 2, "there is no module 'no_such_module'"),
        (["describe", "json:my/env"], 2, "no environment has the id 'my/env'"),
        (["describe", "CartPole-v1"], 2, "is a CartPoleEnv, not a TextEnv"),
        (["audit"], 2, "what is audited? Give an id, or --all"),
        (["audit", "--all", "level=easy"], 2, "--all takes no id and no options"),
        (
            ["play", "textenv/gsm8k", "--task-index", "-1"],
            2,
            "the episode cannot be opened: options['task_index'] must be an integer of at least 0, not -1",
        ),
        (["new", "Word"], 2, "'Word' is no name"),
        (["new", "random"], 2, "would hide the Python module"),
        (["prepare", "rows.jsonl"], 2, "the following arguments are required: -o/--out"),
        (["prepare", "rows.jsonl", "-o", "."], 1, "rows.jsonl: no such file"),
        (["prepare", "rows.csv", "-o", "."], 2, "not a task source"),
        (["prepare", "rows.parquet", "-o", "."], 2, "rows.parquet would be replaced"),
        (["prepare", "rows.jsonl", "-o", ".", "--split", "train"], 2, "--split is of a data set of the Hub"),
        (["prepare", "hub:a/b", "-o", ".", "--split", "dev"], 2, "there is no 'dev'"),
        (["evaluate", "textenv/gsm8k"], 2, "who plays?"),
        (["evaluate", "textenv/gsm8k", "--policy", "expert", "--model", "m"], 2, "one of the three"),
        (
            ["evaluate", "textenv/gsm8k", "--policy", "expurt"],
            2,
            "--policy is expert, careless, random, script, attack:NAME or module:function, not 'expurt'; did you mean",
        ),
        (
            ["users", "report", "textenv/clarify", "user.model=/absent", "-n", "1"],
            2,
            "/absent is no folder with a config",
        ),
        (["rows", "verl", "textenv/clarify", "-n", "1", "-o", "rows.csv"], 2, "-o rows.csv: the file is Parquet"),
        (
            ["users", "dialogues", "textenv/clarify", "-n", "1", "-o", "talks.txt"],
            2,
            "-o talks.txt: dialogues are a .jsonl or .parquet file",
        ),
        (
            ["evaluate", "textenv/gsm8k", "--policy", "expert", "--temperature", "1"],
            2,
            "--temperature goes with --model or --local",
        ),
        (["evaluate", "textenv/gsm8k", "--policy", "expert", "--retry-failed"], 2, "--retry-failed goes with --out"),
        (["evaluate", "textenv/gsm8k", "--policy", "expert", "--samples", "0"], 2, "--samples: must be at least 1"),
        (["evaluate", "textenv/gsm8k", "--policy", "expert", "--num-tasks", "all"], 2, "is endless"),
    ],
)
def test_mistakes_are_answered_in_words(words, status, message, capsys):
    got, out, err = command(capsys, *words)
    assert (got, out) == (status, "")
    assert message in err


def test_rows_of_failing_openings_are_refused(tmp_path, capsys, monkeypatch):
    def opening(self, task):
        raise EnvironmentFailure("user_failed", "the service is away")

    monkeypatch.setattr(Clarify, "opening", opening)
    words = ["rows", "verl", "textenv/clarify", "-n", "1", "-o", str(tmp_path / "rows.parquet")]
    assert command(capsys, *words) == (1, "", "textenvs rows: user_failed: the service is away\n")
    assert not list(tmp_path.iterdir())


def test_a_traceback_where_asked():
    with pytest.raises(CommandError):
        main(["describe", "textenv/gsm9k", "--traceback"])


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_closed_pipe_ends_help_with_1(unbuffered):
    program = subprocess.Popen(
        [sys.executable, "-m", "textenvs", "serve", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
    )
    program.stdout.close()  # long before it has anything to say
    assert program.stderr.read() == b""
    assert program.wait(60) == 1


def test_choices_match_the_code():
    for name in ("prepare", "rows"):
        assert COMMANDS[name]["arguments"]["--split"]["choices"] == list(SPLITS)
    assert COMMANDS["prepare"]["arguments"]["--instruction"]["default"] == INSTRUCTION
    assert COMMANDS["rows"]["arguments"]["library"]["choices"] == list(SCHEMAS)
    pytest.importorskip("aiohttp", reason="needs the extra 'serve'")
    from textenvs.serve.protocol import ALLOWANCES

    assert COMMANDS["serve"]["who may"]["--allow"]["choices"] == list(ALLOWANCES)


# ------------------------------------------------------------------ options


def test_options_passed_on_to_bases_are_accepted():
    class Above(textenvs.TextEnv):
        """Above.

        Args:
            tasks: Not for the command line where a class below gives them.
            depth: How deep.
        """

        def __init__(self, tasks, *, depth=3, **options):
            pass

    class Below(Above):
        """Below.

        Args:
            **options: As above.
        """

        def __init__(self, width=2, **options):
            pass

    class Silent(Below):
        pass

    for kind in (Below, Silent):
        options, complete = options_of(kind)
        assert complete
        assert list(options)[:2] == ["width", "depth"]
        assert set(options) >= {"max_assistant_turns", "max_user_turns", "system_prompt", "render_mode"}
        assert "tasks" not in options
        assert options["depth"].doc == "How deep."
        assert options["depth"].default == 3
    assert options_of(lambda a, **rest: None) == ({"a": Option(inspect.Parameter.empty, "")}, False)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("x=3", 3),
        ("x=-0.5", -0.5),
        ("x=easy", "easy"),
        ("x=None", None),
        ("x=null", None),
        ("x=True", True),
        ("x=false", False),
        ("x=", ""),
        ("x=a=b", "a=b"),
        ('x="3"', "3"),
        ("x=[1, 2]", [1, 2]),
        ('x={"model": "m"}', {"model": "m"}),
        ("x=NaN", "NaN"),
        ("x={broken", "{broken"),
    ],
)
def test_values_of_options(word, value):
    assert parse_options([word]) == {"x": value}


@pytest.mark.parametrize("value", [3, 0.5, "easy", None, True, [1, "a"], {"a": None}, "generated:easy", "a/b.jsonl"])
def test_values_as_shown_can_be_typed(value):
    assert parse_options([f"x={show_value(value)}"]) == {"x": value}


# ------------------------------------------------------------------ prepare

GOOD = {"question": "How many?", "answer": "#### 4"}


def lines(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def test_prepared_file_is_played_by_path(tmp_path, capsys):
    pytest.importorskip("pyarrow", reason="needs the extra 'data'")
    rows = lines(tmp_path / "rows.jsonl", GOOD, {**GOOD, "question": "And now?", "data_source": "mine"})
    status, out, _ = command(capsys, "prepare", rows, "-o", str(tmp_path / "kept"))
    assert status == 0
    assert "rows.parquet: 2 rows (openai/gsm8k: 1, mine: 1)" in out
    (path,) = re.findall(r"Play them with tasks=(\S+)\.", out)
    env = textenvs.make("textenv/gsm8k", tasks=path)
    assert [env.tasks[i].ground_truth for i in range(env.tasks.size)] == ["4", "4"]
    assert env.reset(seed=0)[0][-1]["content"].count("End with #### and the number.") == 1  # the row brings its own
    assert textenvs.make("textenv/gsm8k").tasks.size is None


def test_prepare_without_an_instruction(tmp_path, capsys):
    pytest.importorskip("pyarrow", reason="needs the extra 'data'")
    command(capsys, "prepare", lines(tmp_path / "rows.jsonl", GOOD), "-o", ".", "--instruction", "")
    assert textenvs.make("textenv/gsm8k", tasks="rows.parquet").tasks[0].question == "How many?"


def test_prepare_asks_the_hub_for_both_splits(tmp_path, capsys, monkeypatch):
    pytest.importorskip("pyarrow", reason="needs the extra 'data'")
    pytest.importorskip("datasets", reason="needs the extra 'hub'")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    lines(tmp_path / "set" / "train.jsonl", GOOD)
    lines(tmp_path / "set" / "test.jsonl", GOOD, {**GOOD, "question": "And?"})
    assert command(capsys, "prepare", f"hub:{tmp_path / 'set'}", "-o", "kept")[0] == 0
    assert [
        textenvs.make("textenv/gsm8k", tasks=f"kept/{split}.parquet").tasks.size for split in ("train", "test")
    ] == [1, 2]


BAD = ("not json", {"question": "?"}, {"question": "?", "answer": "none"}, {"question": 3, "answer": "#### 1"})


def test_prepare_lists_bad_rows_and_writes_nothing(tmp_path, capsys):
    rows = lines(tmp_path / "rows.jsonl", GOOD, *BAD)
    status, out, err = command(capsys, "prepare", rows, "-o", str(tmp_path / "kept"))
    assert status == 1
    assert "rows: 4 rows cannot be used (column answer: 2, not a row: 1, column question: 1):" in out
    for number, column in ((3, "'answer'"), (4, "'answer'"), (5, "'question'")):
        assert f"row {number}: column {column}" in out
    assert "row 2: not JSON" in out
    assert "nothing was written: 4 rows" in err
    assert not (tmp_path / "kept").exists()


def test_prepare_leaves_bad_rows_out_where_asked(tmp_path, capsys):
    pytest.importorskip("pyarrow", reason="needs the extra 'data'")
    rows = lines(tmp_path / "rows.jsonl", *BAD, GOOD)
    status, out, _ = command(capsys, "prepare", rows, "-o", ".", "--skip-bad")
    assert status == 0
    assert "1 row (openai/gsm8k: 1); 4 left out" in out
    assert textenvs.make("textenv/gsm8k", tasks="rows.parquet").tasks.size == 1
    status, _, err = command(capsys, "prepare", lines(tmp_path / "bad.jsonl", *BAD), "-o", ".", "--skip-bad")
    assert status == 1
    assert "cannot be used" in err


def test_prepare_refuses_answer_without_its_truth(tmp_path, capsys):
    pytest.importorskip("pyarrow", reason="needs the extra 'data'")
    from textenvs.data import write_parquet

    task = textenvs.make("textenv/gsm8k").tasks[0]
    wrong = textenvs.Task("k", "s", task.prompt, ground_truth="123456", extra=dict(task.extra))
    path = write_parquet([task, wrong], tmp_path / "rows.parquet")
    status, out, _ = command(capsys, "prepare", str(path), "-o", str(tmp_path / "kept"))
    assert status == 1
    assert re.search(r"row 2: column 'extra_info': the worked answer ends in \d+, but ground_truth is 123456", out)
