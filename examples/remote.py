"""Environments behind a server: `textenvs serve` in another process, played here as if they were local.

The server is started on this machine; on another one, only the URL differs. Its token comes from an environment
variable, so that it is in no command line and in no specification of an environment.

    python examples/remote.py
"""

import asyncio
import os
import secrets
import signal
import subprocess
import sys

import textenvs
from textenvs.episodes import play_episodes
from textenvs.serve.client import RemoteError


def start_server(token: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server in a process of its own; return both the process and its URL."""
    command = [sys.executable, "-m", "textenvs", "serve", "textenv/gsm8k-interact", "level=easy", "--port", "0"]
    process = subprocess.Popen(command, env={**os.environ, "TEXTENVS_TOKEN": token}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        print(f"  server: {line}", end="")
        if line.startswith("serving at "):
            return process, line.split()[2].rstrip(",")
    raise RuntimeError(f"the server ended with status {process.wait()}")


def play_one(url: str) -> None:
    remote = textenvs.make("textenv/remote", url=url, env="textenv/gsm8k-interact")
    direct = textenvs.make("textenv/gsm8k-interact", level="easy")
    same = remote.reset(seed=7) == direct.reset(seed=7)
    answer = direct.secrets()[0]  # the server keeps its own: remote.secrets() is empty
    fork = remote.fork()  # a future of its own, in a session of its own
    for reply in ("I do not know.", f"#### {answer}"):
        result = remote.step(reply)
        same = same and result == direct.step(reply)
        print(f"{reply!r}: reward {result[1]:+.1f}, info {result[-1]['terms']}")
    print(f"the same as here: {same}")
    _, reward, *_, info = fork.step(f"#### {answer}")
    print(f"the fork said something else: reward {reward:+.1f}, stop {info['stop']}")
    remote.close()


async def play_many(url: str, count: int) -> None:
    env = textenvs.make("textenv/remote", url=url)  # the only one that this server offers
    episodes = [item async for item in play_episodes(env, lambda conversation: "#### 7", count, concurrency=16, seed=0)]
    failed = sum(episode.failed for episode in episodes)
    print(f"{len(episodes)} episodes, {failed} failed; return {sum(e.reward for e in episodes):.1f}")
    env.close()


if __name__ == "__main__":
    token = secrets.token_urlsafe(32)
    server, url = start_server(token)
    try:
        print("\n== without the token")
        os.environ.pop("TEXTENVS_TOKEN", None)
        try:
            textenvs.make("textenv/remote", url=url)
        except RemoteError as error:
            print(f"refused: {error}")
        os.environ["TEXTENVS_TOKEN"] = token
        print("\n== one episode, and a fork of it")
        play_one(url)
        print("\n== many at a time")
        asyncio.run(play_many(url, 32))
    finally:
        server.send_signal(signal.SIGTERM)  # running episodes may end
        print(f"\nthe server has ended with status {server.wait(timeout=60)}")
