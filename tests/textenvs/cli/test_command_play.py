"""Playing in the terminal, with a script in the person's place."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from served import TOYS, Running
from toy_envs import Talk

import textenvs
from textenvs.chat import BudgetExceeded
from textenvs.cli import main
from textenvs.cli.play import FENCE, Game
from textenvs.tool_env import ToolEnv
from textenvs.tools import tool

ROOT = Path(__file__).resolve().parents[3]


def play(env, *lines, seed=0, **options):
    """Play with these lines; raises EOFError where they do not quit."""
    remaining = iter(lines)

    def read(prompt):
        try:
            return next(remaining)
        except StopIteration:
            raise EOFError from None

    game = Game(env, read=read, **options)
    game.play(seed)
    assert next(remaining, None) is None, "lines are left over"
    return game


@pytest.fixture
def env():
    return textenvs.make("textenv/gsm8k-interact", level="easy")


def answer(env, seed=0, options=None):
    env.reset(seed=seed, options=options)
    return f"#### {env.state.task.ground_truth}"


def test_a_whole_episode_is_shown(env, capsys):
    right = answer(env)
    play(env, "no", right, ":quit")
    out = capsys.readouterr().out
    assert f"--- task {env.state.task.key} ---" in out
    for message in env.state.messages:
        assert (f"{message['role']}: {message['content']}" in out) == (message["role"] == "user")
    assert "[reward +0 = correct +0, format +0, extra_turn +0;" in out
    assert "[reward +0.65 = correct +1, format +0, extra_turn -0.35;" in out
    assert "--- terminated: solved; return +0.65 ---" in out


def test_roles_are_named(capsys):
    play(Talk(), "critic", "judge", ":undo", "solver", "end", ":quit")
    out = capsys.readouterr().out
    shown = [line for line in out.splitlines() if line.startswith(("[", "  "))]
    assert shown == [
        "[a context of solver begins]",
        "[a context of critic begins]",
        "[reward +0 = reward +0]",
        "[a context of judge begins]",
        "[reward +0 = reward +0]",
        "[a context of solver of 2 messages continues]",
        "[reward +0 = reward +0]",
        "[reward +6 = paid +6]",
        "  solver, reply 1: paid +1",
        "  critic, reply 2: paid +2",
        "  solver, reply 3: paid +3",
    ]


def test_a_reply_of_several_lines(env):
    for lines in (
        (FENCE, "a", "", " b", FENCE),
        (f"{FENCE}a", "", " b", FENCE),
        (FENCE, "a", "", f" b{FENCE}"),
        (f"{FENCE}a", "", f" b{FENCE}  "),
    ):
        play(env, *lines, ":quit")
        assert env.state.messages[1]["content"] == "a\n\n b"
    play(env, f"{FENCE}{FENCE}", ":quit")
    assert env.state.messages[1]["content"] == ""
    play(env, f"{FENCE}one{FENCE}", ":quit")
    assert env.state.messages[1]["content"] == "one"


def test_empty_lines_ignored_and_colons_typed(env):
    play(env, "", "  ", "::quit", ":quit")
    assert [m["content"] for m in env.state.messages if m["role"] == "assistant"] == [":quit"]


def test_undo_reverts_every_reply(env, capsys):
    right = answer(env)
    play(env, "one", "two", ":undo", ":undo", ":undo", right, ":quit")
    out = capsys.readouterr().out
    assert out.count("Taken back.") == 2
    assert "There is nothing to take back." in out
    assert "terminated: solved; return +1 ---" in out  # as if it were the first attempt


def test_undo_after_the_end_continues(env, capsys):
    play(env, "one", "two", "three", "four", ":undo", "drei", ":quit")
    out = capsys.readouterr().out
    assert out.count("truncated: max_assistant_turns; return -0.7") == 2
    assert "The episode is over: :next, :undo or :quit." in out
    replies = [m["content"] for m in env.state.messages if m["role"] == "assistant"]
    assert replies == ["one", "two", "drei"]


def test_hints_are_the_experts(env, capsys):
    answer(env)
    expert = env.demonstration(np.random.default_rng(0))
    play(env, ":hint", ":quit")
    assert expert in capsys.readouterr().out


def test_next_keeps_a_chosen_task(env, capsys):
    play(env, ":next", ":next", ":quit")
    headers = [line for line in capsys.readouterr().out.splitlines() if line.startswith("--- task")]
    assert len(set(headers)) == 3
    play(env, ":next", ":quit", task_index=4)
    headers = [line for line in capsys.readouterr().out.splitlines() if line.startswith("--- task")]
    assert headers == [f"--- task {env.tasks[4].key} ---"] * 2


def test_unknown_commands_and_help(env, capsys):
    play(env, ":hlep", ":help", ":tools", ":call", ":quit")
    out = capsys.readouterr().out
    assert "There is no :hlep" in out
    assert "take back the last reply" in out
    assert "This environment has no tools." in out
    assert ":call needs the tool's name" in out
    assert env.state.assistant_turns == 0


class Adder(ToolEnv):
    """Ends when something is said."""

    def __init__(self, **options):
        @tool
        def add(a: int, b: int) -> int:
            """Add two numbers.

            Args:
                a: One.
                b: Other.
            """
            return a + b

        super().__init__(textenvs.make("textenv/gsm8k", level="easy").tasks, [add], **options)

    def answer(self, reply):
        return textenvs.Turn(terminated=True, stop="said", terms=self.terms())


@pytest.mark.parametrize("call_format", ["native", "hermes"])
def test_tools_can_be_called_by_hand(call_format, capsys):
    env = Adder(call_format=call_format)
    play(env, ':call add {"a": 2, "b": 40}', ":call add", ":call", "done", ":quit")
    out = capsys.readouterr().out
    assert "  add(a, b)  Add two numbers.\n" in out.partition("system:")[0]  # a line a tool
    assert '"parameters"' not in out  # :tools shows schemas
    assert "42" in [message["content"] for message in env.state.messages if message["role"] == "tool"]
    assert "--- terminated: said" in out
    calls = [call["id"] for message in env.state.messages for call in message.get("tool_calls", ())]
    assert len(set(calls)) == 2


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "textenvs", "play", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        text=True,
    )


def test_the_end_of_input_leaves_cleanly(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("#### 3\n"))
    assert main(["play", "textenv/gsm8k", "--seed", "1"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "--- term" in out


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process")
def test_an_interrupt_leaves_cleanly():
    program = start("textenv/gsm8k", "--seed", "1")
    while "user:" not in (line := program.stdout.readline()):
        assert line, program.stderr.read()
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=60)
    assert (program.returncode, err) == (0, "")


def test_unreachable_user_is_reported_and_retried(env, capsys, monkeypatch):
    real, failures = type(env).respond, [BudgetExceeded("the budget is spent"), ImportError("pip install it")]

    def respond(self, reply):
        if failures:
            raise failures.pop(0)
        return real(self, reply)

    monkeypatch.setattr(type(env), "respond", respond)
    play(env, "one", "two", "three", ":quit")
    out = capsys.readouterr().out
    assert "The reply was not taken: the budget is spent" in out
    assert "The reply was not taken: pip install it" in out
    assert [m["content"] for m in env.state.messages if m["role"] == "assistant"] == ["three"]


def test_model_user_needs_a_key(capsys, monkeypatch):
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    play(textenvs.make("textenv/collab-math", user="some-model"), ":hint", "Hello?", ":quit")
    out = capsys.readouterr().out
    assert "There is no hint: the scripted expert needs the scripted user" in out
    assert "The reply was not taken: the environment variable OPENAI_API_KEY has no key in it" in out


def test_episode_continues_when_server_returns(capsys):
    first = Running(TOYS)
    env = first.remote("guess", retry_s=0.2)
    again = []

    def lines():
        yield "a"
        first.stop()
        yield from ("lost", ":next", ":hint")
        again.append(Running(TOYS, port=first.port))
        yield from ("b", ":next", "c", ":quit")

    typed = lines()
    try:
        Game(env, read=lambda prompt: next(typed)).play(0)
        assert [m["content"] for m in env.state.messages if m["role"] == "assistant"] == ["c"]
    finally:
        env.close()
        for server in again:
            server.stop()
    out = capsys.readouterr().out
    assert out.count("The reply was not taken: http://") == 1
    assert out.count("There is no other episode: the episode cannot be opened: http://") == 1
    assert out.count("There is no hint: http://") == 1
    assert out.count("--- task ") == 2
    assert out.count("[reward ") == 3
