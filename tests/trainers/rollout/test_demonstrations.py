"""Conversations to imitate: the scripted expert with its planted mistakes, and files of them."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demonstration_kit import Sums, interact, replies, write_jsonl
from toy_envs import Contexts

from textenvs import NoDemonstration, Task, TextEnv, Turn
from textenvs.messages import Messages, assistant, system, user
from textenvs.serve.client import RemoteError
from trainers.builders import policy as builders_policy
from trainers.builders.environments import Component
from trainers.config.model import WarmStartSection
from trainers.rollout import demonstrations
from trainers.rollout.demonstrations import Demonstration, DemonstrationError, StuckError, play, read


def replay(env: TextEnv[Any], demonstration: Demonstration) -> list[tuple[float, bool, str | None]]:
    """Return the environment's messages for the conversation's replies, played again."""
    tasks = (env.tasks[i] for i in range(env.tasks.size))
    task = next(task for task in tasks if env.opening(task)[-1] == demonstration.messages[0])
    env.reset(seed=0, options={"task": task})
    steps = [env.step(reply) for reply in replies(demonstration)]
    return [(reward, terminated, info["stop"]) for _, reward, terminated, _, info in steps]


# ------------------------------------------------------------------ the expert


def test_expert_without_mistakes_is_fully_imitated():
    env = interact(tasks=Sums())
    played = list(play(env, 40, seed=0))
    assert len(played) == 40
    for demonstration in played:
        assert demonstration.imitate == (1.0,)
        assert replay(env, demonstration) == [(1.0, True, "solved")]


def test_only_the_expert_replies_are_imitated():
    env = interact(tasks=Sums())
    played = list(play(env, 300, seed=1, mistake_rate=0.4))
    assert len(played) == 300
    assert {len(demonstration.imitate) for demonstration in played} == {1, 2, 3}
    for demonstration in played:
        *before, last = replay(env, demonstration)
        assert demonstration.imitate == (*[0.0] * len(before), 1.0)
        assert last[1:] == (True, "solved")
        assert not any(terminated for _, terminated, _ in before)
        assert demonstration.messages[-1]["role"] == "assistant"
    # An episode whose three turns were all mistakes has nothing to imitate; another one is played instead.
    share = np.mean([len(demonstration.imitate) > 1 for demonstration in played])
    assert share == pytest.approx((0.4 - 0.4**3) / (1 - 0.4**3), abs=0.09)


class Script(Contexts):
    """Its expert branches off, goes back and ends; the careless reply goes on."""

    def demonstration(self, rng):
        back = "back 0" if self.state.contexts else "more"
        return ("more", "branch", back, "anew", "end")[min(self.state.assistant_turns, 4)]

    def careless_reply(self, rng):
        return "more"


def test_each_context_is_a_demonstration():
    went_back, branched, last = play(Script(), 1, seed=0)
    assert [m["content"] for m in branched.messages if m["role"] == "assistant"] == ["more", "branch", "anew"]
    assert branched.imitate == (1.0, 1.0, 1.0)
    assert [m["content"] for m in went_back.messages if m["role"] == "assistant"] == ["back 0"]
    assert went_back.messages[0] == branched.messages[0]
    assert (last.messages[-1], last.imitate) == (assistant("end"), (1.0,))
    for demonstration in play(Script(), 20, seed=1, mistake_rate=0.5):
        replies = [m["content"] for m in demonstration.messages if m["role"] == "assistant"]
        assert len(replies) == len(demonstration.imitate)
        assert demonstration.imitate[-1] == 1.0


class Twins(Contexts):
    """Two conversations are the same, and one of them continues."""

    def respond(self, reply):
        number = self.state.assistant_turns
        if number < 3:
            return Turn(context=self.state.messages[:-1])
        return Turn(context=[*self.state.contexts[0], user("New.")]) if number == 3 else super().respond(reply)

    def demonstration(self, rng):
        self.hooks = self.hooks[: self.state.assistant_turns] + [1.0]
        return ("same", "same", "other", "end")[self.state.assistant_turns]

    def careless_reply(self, rng):
        reply = self.demonstration(rng)
        self.hooks[-1] = 0.25
        return reply


def test_same_conversations_have_weights_of_their_own():
    env, played = Twins(), Counter()
    env.hooks = []
    demonstrations = play(env, 20, seed=0, mistake_rate=0.5, mistake_weight=0.25)
    for same, other, continued in zip(*[demonstrations] * 3, strict=True):
        weights = {1: same.imitate, 2: other.imitate, 3: continued.imitate}
        assert weights == {1: (env.hooks[0],), 2: (env.hooks[2],), 3: (env.hooks[1], env.hooks[3])}
        assert continued.messages[-2]["content"] == "New."
        played[tuple(env.hooks[:2])] += 1
    assert len(played) == 4


def test_mistakes_may_be_imitated_little():
    """Then nothing is left out: an episode may end in a mistake, or be nothing else."""
    env = interact(tasks=Sums())
    played = list(play(env, 300, seed=1, mistake_rate=0.5, mistake_weight=0.25))
    weights = [weight for demonstration in played for weight in demonstration.imitate]
    assert set(weights) == {0.25, 1.0}
    assert np.mean([weight == 0.25 for weight in weights]) == pytest.approx(0.5, abs=0.07)
    assert np.mean([set(example.imitate) == {0.25} for example in played]) == pytest.approx(0.5**3, abs=0.06)
    for demonstration in played:
        ends = [terminated for _, terminated, _ in replay(env, demonstration)]
        assert not any(ends[:-1])
        assert all(ended for ended, weight in zip(ends, demonstration.imitate, strict=True) if weight == 1.0)
        assert len(ends) == 3 or ends[-1], "it continues until it is solved or the turns run out"


@pytest.mark.parametrize("mistake_rate", [0.0, 0.5])
def test_seed_decides_everything(mistake_rate):
    def some(seed: int) -> list[Demonstration]:
        return list(play(interact(), 30, seed=seed, mistake_rate=mistake_rate))

    assert some(3) == some(3)
    assert some(3) != some(4)


def test_first_demonstrations_are_independent_of_count():
    few = list(play(interact(), 5, seed=0, mistake_rate=0.5))
    assert list(play(interact(), 9, seed=0, mistake_rate=0.5))[:5] == few


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"mistake_rate": -0.1}, r"mistake_rate must be in \[0, 1\)"),
        ({"mistake_rate": 1.0}, r"mistake_rate must be in \[0, 1\)"),
        ({"mistake_weight": -0.1}, "mistake_weight must be at least 0"),
    ],
)
def test_value_outside_its_range(values, problem):
    with pytest.raises(ValueError, match=problem):
        list(play(interact(), 1, seed=0, **values))


class FewShot(TextEnv[Any]):
    """Opens with an example of its own; two turns."""

    expert = careless = True

    def __init__(self) -> None:
        super().__init__(Sums(), max_assistant_turns=2)

    def opening(self, task: Task) -> Messages:
        return (system("Add."), user("1 + 1?"), assistant("2"), *task.prompt)

    def respond(self, reply: Any) -> Turn:
        done = reply["content"] == self.state.task.ground_truth
        return Turn(() if done else (user("No."),), float(done), terminated=done, stop="solved" if done else None)

    def demonstration(self, rng: np.random.Generator) -> str:
        return self.state.task.ground_truth if self.expert else super().demonstration(rng)

    def careless_reply(self, rng: np.random.Generator) -> str:
        return "Eleven" if self.careless else super().careless_reply(rng)


def test_environments_own_examples_are_not_imitated():
    for demonstration in play(FewShot(), 40, seed=0, mistake_rate=0.5):
        assert replies(demonstration)[0] == "2"
        assert demonstration.imitate in [(0.0, 1.0), (0.0, 0.0, 1.0)]


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ("expert", r"FewShot has no scripted demonstrations: give .*'messages'\), or switch the warm start off"),
        ("careless", r"no scripted careless replies: give .*'messages'\), set mistake_rate \(.*\) to 0, or switch"),
    ],
)
def test_environment_without_scripts_says_what_to_do(missing, problem):
    env = FewShot()
    setattr(env, missing, False)
    with pytest.raises(DemonstrationError, match=problem):
        list(play(env, 20, seed=0, mistake_rate=0.5))


@pytest.mark.parametrize("hook", ["demonstration", "careless_reply", "reset", "step"])
def test_unavailable_server_scripts_say_what_to_do(hook, monkeypatch):
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise RemoteError("http://there: this server shows no scripted replies", "forbidden")

    env = FewShot()
    monkeypatch.setattr(env, hook, refused)
    problem = r"http://there: .*textenvs serve --allow expert.*'messages'\), or switch the warm start off"
    with pytest.raises(DemonstrationError, match=problem):
        list(play(env, 20, seed=0, mistake_rate=0.5))


class Sparse(TextEnv[Any]):
    """Its expert knows the tasks below ``known``."""

    def __init__(self, known: int) -> None:
        super().__init__(Sums(), max_assistant_turns=1)
        self.known = known

    def respond(self, reply: Any) -> Turn:
        return Turn(terms={"right": 1.0}, terminated=True, stop="solved")

    def demonstration(self, rng: np.random.Generator) -> str:
        if int(self.task.key) >= self.known:
            raise NoDemonstration(f"not of {self.task.key}")
        return "known"

    def careless_reply(self, rng: np.random.Generator) -> str:
        return "careless"


def test_tasks_without_a_demonstration_are_passed_over(monkeypatch):
    played = list(play(Sparse(known=5), 20, seed=0))
    assert len(played) == 20
    assert all(int(demonstration.messages[0]["content"].split()[0]) < 5 for demonstration in played)
    monkeypatch.setattr(demonstrations, "_WITHOUT", 30)
    with pytest.raises(DemonstrationError, match=r"30 tasks in a row have no demonstration; the last: not of \d+"):
        list(play(Sparse(known=0), 20, seed=0, mistake_rate=0.5))


class Odd(TextEnv[Any]):
    """Its expert behaves badly in the fourth episode."""

    def __init__(self, deed: str) -> None:
        super().__init__(Sums(), max_assistant_turns=1)
        self.deed, self.played, self.hangs = deed, 0, threading.Event()

    def respond(self, reply: Any) -> Turn:
        return Turn(terms={"right": 1.0}, terminated=True, stop="solved")

    def demonstration(self, rng: np.random.Generator) -> str:
        self.played += 1
        if self.played == 4:
            match self.deed:
                case "hang":
                    self.hangs.set()
                    time.sleep(3600)
                case "exit":
                    sys.exit(3)
                case "raise":
                    raise TimeoutError("its own")
        return f"{self.played}"


@pytest.mark.parametrize(
    ("deed", "error", "words"),
    [
        ("hang", DemonstrationError, r"demonstration took longer than 60 s while its expert played; .*step_timeout_s"),
        ("exit", DemonstrationError, r"the environment's demonstration called sys.exit\(3\)"),
        ("raise", TimeoutError, "its own"),
    ],
)
def test_expert_that_hangs_or_exits_ends_in_words(
    deed: str, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Odd(deed)

    def wait_or_hang(results: list[Any], timeout_s: float) -> None:
        while not (results[0].done() or env.hangs.is_set()):
            time.sleep(0.001)

    monkeypatch.setattr(demonstrations, "wait", wait_or_hang)
    playing = play(env, 10, seed=0, step_timeout_s=60.0)
    assert [replies(next(playing)) for _ in range(3)] == [["1"], ["2"], ["3"]]
    with pytest.raises(error, match=words):
        next(playing)


def test_one_thread_plays_all_calls(monkeypatch) -> None:
    started: list[str] = []
    start = threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)
    assert len(list(play(interact(level="easy"), 12, seed=3, step_timeout_s=60.0))) == 12
    assert started == ["textenvs-demonstrations"]


def test_thread_plays_the_same_and_ends_with_iterator() -> None:
    before = {*threading.enumerate()}
    direct = list(play(interact(level="easy"), 12, seed=3, mistake_rate=0.4))
    threaded = play(interact(level="easy"), 5000, seed=3, mistake_rate=0.4, step_timeout_s=60.0)
    assert [next(threaded) for _ in range(12)] == direct
    threaded.close()
    assert {*threading.enumerate()} <= before


class Watched(Odd):
    """Notes whether it was closed, and whether a call was at work in it then."""

    def __init__(self, deed: str = "") -> None:
        super().__init__(deed)
        self.at_work = self.closed = self.closed_at_work = False

    def demonstration(self, rng: np.random.Generator) -> str:
        self.at_work = True
        time.sleep(0.02)
        reply = super().demonstration(rng)
        self.at_work = False
        return reply

    def close(self) -> None:
        self.closed, self.closed_at_work = True, self.at_work


@pytest.mark.parametrize(("deed", "closed"), [("", True), ("hang", False)])
def test_busy_environment_is_not_closed(monkeypatch: pytest.MonkeyPatch, deed: str, closed: bool) -> None:
    env = Watched(deed)
    monkeypatch.setattr(Component, "make", lambda *_: env)
    section = WarmStartSection(
        demonstrations=50, mistake_rate=0.0, careless_steps=0, step_timeout_s=0.3 if deed else 60.0
    )
    playing = builders_policy.demonstrations_of([Component("", "odd", {})], section, seed=0)
    if deed:
        with pytest.raises(StuckError):
            list(playing)
    else:
        assert len(list(islice(playing, 3))) == 3
        playing.close()  # type: ignore[attr-defined]
    assert (env.closed, env.closed_at_work) == (closed, False)


# ------------------------------------------------------------------ files

TALKS: list[Messages] = [
    (user("2 + 2?"), assistant("#### 4")),
    (system("Be brief."), user("Zwölf? 🙂"), assistant("12"), user("No.\n\nAgain."), assistant("#### 13")),
]


def write_parquet(path: Path, rows: list[Any]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


WRITERS = [write_jsonl, write_parquet]


@pytest.mark.parametrize("write", WRITERS)
def test_written_demonstrations_read_back(tmp_path, write):
    rows = [{"messages": list(talk), "other": 1} for talk in TALKS]
    files = [write(tmp_path / f"{i}{write.__name__.replace('write_', '.')}", [row]) for i, row in enumerate(rows)]
    assert list(read(files)) == [Demonstration(TALKS[0], (1.0,)), Demonstration(TALKS[1], (1.0, 1.0))]
    assert list(read(map(str, files))) == list(read(files))


@pytest.mark.parametrize("write", WRITERS)
def test_weights_of_replies_are_read(tmp_path, write):
    rows = [{"messages": list(TALKS[1]), "weights": [0.0, 0.5]}, {"messages": list(TALKS[0])}]
    path = write(tmp_path / write.__name__.replace("write_", "talks."), rows)
    assert list(read([path])) == [Demonstration(TALKS[1], (0.0, 0.5)), Demonstration(TALKS[0], (1.0,))]


def test_demonstration_survives_file(tmp_path):
    """The expert's episodes can be stored as conversations and read back."""
    played = list(play(interact(), 10, seed=0))
    path = write_jsonl(
        tmp_path / "played.jsonl", [{"messages": list(demonstration.messages)} for demonstration in played]
    )
    assert list(read([path])) == played


def test_a_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_jsonl(tmp_path / "talks.jsonl", [{"messages": list(TALKS[0])}])
    assert len(list(read(["~/talks.jsonl"]))) == 1


GOOD = {"messages": list(TALKS[0])}
CALL = {"id": "0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BAD_ROWS: list[tuple[Any, str]] = [
    ({"conversation": []}, "no column 'messages'"),
    ([1, 2], "a list, not an object with a column 'messages'"),
    ({"messages": None}, "no column 'messages'"),
    ({"messages": 7}, "expected a sequence of messages, not int"),
    ({"messages": ["hello"]}, "message 0: a message is a mapping"),
    ({"messages": []}, "must end with the assistant's message"),
    ({"messages": [user("a"), assistant("b"), user("c")]}, "must end with the assistant's message"),
    ({"messages": [assistant("b")]}, "starts with the assistant"),
    ({"messages": [user("a"), assistant("b"), assistant("c")]}, "message 2: the assistant speaks twice in a row"),
    ({"messages": [user("a"), assistant("b")], "weights": [1, 1]}, "one for each assistant message: it has 1, not 2"),
    ({"messages": [user("a"), assistant("b")], "weights": 1}, "column 'weights' must be a list of numbers"),
    ({"messages": [user("a"), assistant("b")], "weights": [-1]}, "at least 0, one for each assistant message, not"),
    ({"messages": [user("a"), assistant("b")], "weights": [True]}, "at least 0, one for each assistant message, not"),
    ({"messages": [user("a"), assistant("b")], "weights": [0]}, "column 'weights' is 0 throughout"),
    ({"messages": [user("a"), assistant("b")], "tools": {"name": "f"}}, "column 'tools' must be a list"),
    ({"messages": [user("a"), assistant("b")], "tools": "[{"}, "column 'tools' must be a list"),
    ({"messages": [user("a"), assistant("b")], "tools": [{"type": "function"}]}, "tools[0] has no name"),
]


@pytest.mark.parametrize(("row", "problem"), BAD_ROWS)
def test_bad_row_is_named(tmp_path, row, problem):
    path = write_jsonl(tmp_path / "talks.jsonl", [GOOD, row])
    with pytest.raises(DemonstrationError) as error:
        list(read([path]))
    assert str(error.value).startswith((f"{path} row 3: ", f"{path}: row 3: "))  # the second line is empty
    assert problem in str(error.value)


def test_bad_row_of_parquet_is_named(tmp_path):
    path = write_parquet(tmp_path / "talks.parquet", [GOOD, GOOD, {"messages": [user("a")]}])
    with pytest.raises(DemonstrationError, match=r"talks\.parquet row 3: the conversation must end with"):
        list(read([path]))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.jsonl", b"", "a.jsonl: the file is empty; it needs rows with"),
        ("a.jsonl", b"\n \n", "a.jsonl: the file is empty; it needs rows with"),
        ("a.jsonl", b'{"messages": [', "a.jsonl: row 1: not JSON"),
        ("a.jsonl", b'\n"\xff"', "a.jsonl: not UTF-8"),
        ("a.parquet", b"PAR1 no", "a.parquet: not a readable Parquet file"),
        ("a.csv", b"a,b", "a.csv: demonstrations are read from .jsonl or .parquet, not '.csv'"),
        (None, b"", "b.jsonl: no such file"),
    ],
)
def test_bad_file_is_named(tmp_path, name, content, problem):
    if name is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DemonstrationError) as error:
        list(read([tmp_path / (name or "b.jsonl")]))
    assert str(error.value).startswith(f"{tmp_path}/{problem}")


def test_parquet_without_column_or_rows_is_named(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [{"prompt": "a", "answer": "b"}])
    with pytest.raises(DemonstrationError, match=r"a\.parquet row 1: no column 'messages'; it has \['prompt', "):
        list(read([path]))
    pq.write_table(pa.Table.from_pylist([GOOD]).slice(0, 0), path)
    with pytest.raises(DemonstrationError, match=r"a\.parquet: the file is empty"):
        list(read([path]))
