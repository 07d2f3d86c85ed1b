"""``textenvs serve``: from the command line to the end by a signal."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import gymnasium
import pytest

import textenvs
from textenvs.cli import main
from textenvs.cli.common import CommandError
from textenvs.cli.serve import read_served, read_tokens
from textenvs.serve.client import RemoteError

TOKEN = "a-token-of-the-command"
UNGUARDED = "without a token, to every process on this machine"


@contextmanager
def serving(*words, token=TOKEN):
    """A server in a process of its own, and its URL."""
    env = {**os.environ, "TEXTENVS_TOKEN": token}
    command = [sys.executable, "-m", "textenvs", "serve", *words, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True)
    try:
        for line in process.stdout:
            if match := re.match(r"serving at (http://\S+), (.+)", line):
                assert match[2] == ("clients need a token" if token else UNGUARDED)
                yield process, match[1]
                break
        else:
            raise AssertionError(process.stderr.read())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_an_episode_and_a_graceful_end():
    with serving("textenv/gsm8k-interact", "level=easy", "hard@textenv/clarify", "--drain", "30") as (process, url):
        options = {"url": url, "token": TOKEN}
        remote = textenvs.make("textenv/remote", env="textenv/gsm8k-interact", **options)
        direct = textenvs.make("textenv/gsm8k-interact", level="easy")
        assert remote.reset(seed=1) == direct.reset(seed=1)
        clarify = gymnasium.make("textenv/remote", env="hard", **options)
        assert clarify.reset(seed=1) == textenvs.make("textenv/clarify").reset(seed=1)
        clarify.close()
        process.send_signal(signal.SIGTERM)
        # The session that was closed may still be ending.
        assert re.search("(1 episode|2 episodes), 30 s to finish", process.stdout.readline())
        with pytest.raises(RemoteError, match="shutting down"):
            textenvs.make("textenv/remote", env="hard", retry_s=0.2, **options).reset(seed=0)
        while not direct.state.done:
            assert remote.step("no") == direct.step("no")
        assert process.wait(timeout=60) == 0
        assert process.stdout.read() == ""
        assert TOKEN not in process.stderr.read()


def test_serving_without_token_warns():
    with serving("textenv/clarify", token=""):
        pass


def test_a_second_signal_does_not_wait():
    with serving("textenv/clarify", "--drain", "600") as (process, url):
        remote = textenvs.make("textenv/remote", url=url, token=TOKEN)
        remote.reset(seed=0)
        process.send_signal(signal.SIGINT)
        assert "shutting down" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert process.stdout.read() == "1 episode cut off\n"


HANGING = """
import asyncio, threading, gymnasium
from skip_time import skip
from textenvs.envs.clarify import Clarify
from textenvs.serve import host
host.CLOSE_S = 0.5
class Hanging(Clarify):
    blocking = True
    def respond(self, reply):
        skip(loop, 60)
        threading.Event().wait()
class Lingering(Clarify):
    def cleanup(self):
        open("lingers", "w").close()
        threading.Event().wait()
answer = host.Host.answer
async def answered(*request):
    global loop
    loop = asyncio.get_running_loop()
    return await answer(*request)
host.Host.answer = answered
gymnasium.register("textenv/hanging", Hanging)
gymnasium.register("textenv/lingering", Lingering)
"""


def hanging(folder, monkeypatch):
    """Make ``hanging_envs`` importable in another process, which runs in ``folder``."""
    (folder / "hanging_envs.py").write_text(HANGING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))
    monkeypatch.chdir(folder)


def test_hanging_steps_do_not_delay_shutdown(tmp_path, monkeypatch):
    hanging(tmp_path, monkeypatch)
    words = ["hanging@hanging_envs:textenv/hanging", "--threads", "1", "--step-timeout", "60", "--drain", "0"]
    with serving(*words) as (process, url):
        remote = textenvs.make("textenv/remote", url=url, env="hanging", token=TOKEN)
        remote.reset(seed=0)
        with pytest.raises(RemoteError, match="longer than 60 s"):
            remote.step("x")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_second_signal_ends_a_slow_close(tmp_path, monkeypatch):
    hanging(tmp_path, monkeypatch)
    with serving("hanging_envs:textenv/lingering", "--drain", "0") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert "shutting down" in process.stdout.readline()
        while not (tmp_path / "lingers").exists():  # its close hangs the loop
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == -signal.SIGTERM


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["textenv/clarifi"], "textenv/clarify"),
        (["level=easy"], "an option, but of what"),
        (["textenv/clarify", "textenv/clarify"], "served twice"),
        (["textenv/clarify", "lvl=easy"], "no option 'lvl'"),
        (["textenv/clarify", "--bind", "0.0.0.0"], "there is no token"),
        (["textenv/clarify", "--drain", "nan"], "--drain"),
        (["textenv/clarify", "--token-file", "/no/such/file"], "/no/such/file"),
        (["textenv/clarify", "--allow", "exprt"], "did you mean expert"),
        (["textenv/clarify", "--tokenfile", "x"], "did you mean --token-file"),
    ],
)
def test_a_mistake_is_answered_in_words(capsys, monkeypatch, words, match):
    monkeypatch.delenv("TEXTENVS_TOKEN", raising=False)
    try:
        status = main(["serve", *words])
    except SystemExit as exited:
        status = exited.code
    error = capsys.readouterr().err
    assert status in (1, 2)
    assert match in error
    assert "Traceback" not in error


def test_a_token_and_none_is_a_contradiction(capsys, monkeypatch):
    monkeypatch.setenv("TEXTENVS_TOKEN", TOKEN)
    assert main(["serve", "textenv/clarify", "--no-token"]) == 2
    error = capsys.readouterr().err
    assert "which is meant" in error
    assert TOKEN not in error


def test_a_port_that_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        assert main(["serve", "textenv/clarify", "--port", str(occupied.getsockname()[1])]) == 1
    assert "cannot listen at 127.0.0.1" in capsys.readouterr().err


def test_the_words_of_a_command_line():
    words = ["textenv/clarify", "easy@textenv/gsm8k", "level=easy", "max_assistant_turns=2", "my.module:my/id"]
    assert read_served(words) == {
        "textenv/clarify": ("textenv/clarify", {}),
        "easy": ("textenv/gsm8k", {"level": "easy", "max_assistant_turns": 2}),
        "my.module:my/id": ("my.module:my/id", {}),
    }


def test_tokens_of_a_file(tmp_path, monkeypatch):
    path = tmp_path / "tokens"
    path.write_text("# who may\nann  secret-1\n\nsecret-2\n")
    assert read_tokens(str(path)) == {"ann": "secret-1", "line 4": "secret-2"}
    path.write_bytes(b"\xef\xbb\xbfsecret-1\r\n")  # as some editors save it
    assert read_tokens(str(path)) == {"line 1": "secret-1"}
    monkeypatch.setenv("TEXTENVS_TOKEN", " spaced \n")
    assert read_tokens(None) == {"token": "spaced"}
    for wrong in ("a b c", "ann x\nann y", "x\nx", "", "# nothing"):
        path.write_text(wrong)
        with pytest.raises(CommandError) as raised:
            read_tokens(str(path))
        assert "secret" not in json.dumps(str(raised.value))
    path.write_bytes(b"\xff")
    with pytest.raises(CommandError, match="token-file"):
        read_tokens(str(path))
