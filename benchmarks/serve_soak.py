"""A server of environments under many clients, some of which are killed: is anything crossed, leaked or stalled?

    python benchmarks/serve_soak.py
    python benchmarks/serve_soak.py --sessions 200 --processes 4 --episodes 20000 --kill-every 120

A server (`textenvs serve`, in a process of its own) offers textenv/clarify and textenv/gsm8k-interact. Processes of
clients play episodes of textenv/remote, `--sessions` at a time in all; every `--kill-every` episodes, more or less, one
of them, drawn at random, is killed with SIGKILL and another one is started. Beside them, one client asks for the same
again and again and never reads an answer. Every episode is played directly, too, and must be the same, message by
message and reward by reward: a reply that had crossed would show. In the end, after the time of unused sessions, no
session may be left. Memory is the server's resident memory, sampled over the run: the median of the second tenth of
the samples (`early`) and of the last tenth (`late`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

ENVIRONMENTS = ("textenv/clarify", "textenv/gsm8k-interact")
TOKEN = "the token of the soak"
IDLE_S = 5.0


# ------------------------------------------------------------------ a client process


def client(url: str, sessions: int, first_seed: int) -> None:
    """Play episodes until killed; a line of JSON for each."""
    asyncio.run(_play(url, sessions, first_seed))


async def _play(url: str, sessions: int, first_seed: int) -> None:
    import textenvs

    served = [textenvs.make("textenv/remote", url=url, env=env, token=TOKEN) for env in ENVIRONMENTS]
    direct = [textenvs.make(env) for env in ENVIRONMENTS]
    await asyncio.gather(*(_episodes(served, direct, first_seed + number, sessions) for number in range(sessions)))


async def _episodes(served: list[Any], direct: list[Any], seed: int, stride: int) -> None:
    import numpy as np

    remotes = [env.fork(0) for env in served]
    twins = [env.fork(0) for env in direct]
    while True:
        which = seed % len(remotes)
        remote, twin = remotes[which], twins[which]
        rng = np.random.default_rng(seed)
        twin.reset(seed=seed)
        slowest, same = 0.0, True
        began = time.perf_counter()
        opening = await remote.areset(seed=seed)
        slowest = time.perf_counter() - began
        same &= opening == twin.reset(seed=seed)
        steps = 0
        while not remote.state.done:
            reply = twin.careless_reply(rng) if rng.random() < 0.5 else twin.demonstration(rng)
            began = time.perf_counter()
            result = await remote.astep(reply)
            slowest = max(slowest, time.perf_counter() - began)
            same &= result == twin.step(reply)
            steps += 1
        line = {"seed": seed, "same": bool(same), "steps": steps, "slowest_s": round(slowest, 4)}
        os.write(1, (json.dumps(line) + "\n").encode())  # one write: a line is there or not
        seed += stride


# ------------------------------------------------------------------ the soak


class Soak:
    """One run.

    Args:
        sessions: At a time, in all.
        processes: Of clients.
        episodes: To be finished, in all.
        kill_every: A client is killed after so many episodes, more or less.
        seed: Of the choice of who is killed.
    """

    def __init__(self, sessions: int, processes: int, episodes: int, kill_every: int, seed: int = 0) -> None:
        self.per_process = sessions // processes
        self.processes = processes
        self.episodes = episodes
        self.kill_every = kill_every
        self.random = random.Random(seed)
        self.lines: list[dict[str, Any]] = []
        self.memory: list[int] = []
        self.most_sessions = self.killed = self.started = 0
        self.clients: list[subprocess.Popen[bytes]] = []
        self.buffers: dict[int, bytes] = {}

    def run(self) -> dict[str, Any]:
        server = self.server = subprocess.Popen(
            [sys.executable, "-m", "textenvs", "serve", *ENVIRONMENTS, "--port", "0", "--idle", str(IDLE_S)],
            stdout=subprocess.PIPE,
            env={**os.environ, "TEXTENVS_TOKEN": TOKEN},
            text=True,
        )
        try:
            assert server.stdout is not None
            line = next(line for line in server.stdout if line.startswith("serving at "))
            self.url = line.split()[2].rstrip(",")
            began = time.monotonic()
            with _Unread(self.url) as unread:
                self._soak(unread)
            seconds = time.monotonic() - began
            for client in self.clients:
                client.kill()
            cleared_after = self._until_no_session()
            metrics = self._metrics()
        finally:
            for client in self.clients:
                client.kill()
                client.wait()
            server.send_signal(signal.SIGTERM)
            status = server.wait(timeout=30)
        tenth = max(1, len(self.memory) // 10)
        early, late = (statistics.median(part) for part in (self.memory[tenth : 2 * tenth], self.memory[-tenth:]))
        slowest = sorted(line["slowest_s"] for line in self.lines)
        return {
            "episodes": len(self.lines),
            "steps": sum(line["steps"] for line in self.lines),
            "different": sum(not line["same"] for line in self.lines),
            "seconds": round(seconds, 1),
            "episodes_per_s": round(len(self.lines) / seconds, 1),
            "clients_killed": self.killed,
            "most_sessions": metrics["most_sessions"],
            "opened": metrics["opened"],
            "sessions_left": metrics["sessions"],
            "cleared_after_s": cleared_after,
            "ended": metrics["ended"],
            "errors": metrics["errors"],
            "memory_mb_early": round(early / 2**20, 1),
            "memory_mb_late": round(late / 2**20, 1),
            "memory_mb_most": round(max(self.memory) / 2**20, 1),
            "slowest_answer_of_an_episode_s": {
                "median": slowest[len(slowest) // 2],
                "p99": slowest[int(0.99 * len(slowest))],
                "most": slowest[-1],
            },
            "server_status": status,
        }

    def _soak(self, unread: _Unread) -> None:
        for _ in range(self.processes):
            self._start()
        next_kill, next_look, next_report = self.kill_every, 0.0, time.monotonic() + 10.0
        while len(self.lines) < self.episodes:
            now = time.monotonic()
            for client in self.clients:
                self._read(client)
            if now >= next_look:
                self.memory.append(self._resident_bytes())
                unread.ask()
                next_look = now + 0.25
            if len(self.lines) >= next_kill:
                victim = self.clients.pop(self.random.randrange(len(self.clients)))
                victim.kill()
                victim.wait()
                self._read(victim)
                self.killed += 1
                self._start()
                next_kill = len(self.lines) + round(self.kill_every * self.random.uniform(0.5, 1.5))
            if now >= next_report:
                print(f"{len(self.lines)} episodes, {self.killed} clients killed", file=sys.stderr, flush=True)
                next_report = now + 10.0
            for client in self.clients:
                assert client.poll() is None, f"a client ended by itself with status {client.poll()}"
            time.sleep(0.02)

    def _start(self) -> None:
        first = self.started * 1_000_000
        self.started += 1
        command = [sys.executable, __file__, "--client", self.url, str(self.per_process), str(first)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self.clients.append(process)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        text = self.buffers.get(process.pid, b"") + (process.stdout.read() or b"")
        *lines, rest = text.split(b"\n")
        self.buffers[process.pid] = rest
        self.lines += [json.loads(line) for line in lines]

    def _metrics(self) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)  # type: ignore[no-any-return]

    def _resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.server.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * resource.getpagesize()

    def _until_no_session(self) -> float | None:
        """Return the seconds until no session is left; ``None`` if that is too long."""
        began = time.monotonic()
        while time.monotonic() < began + IDLE_S + 10.0:
            if self._metrics()["sessions"] == 0:
                return round(time.monotonic() - began, 1)
            time.sleep(0.1)
        return None


class _Unread:
    """A client that asks and never reads."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.socket = socket.create_connection((host, int(port)))
        head = (
            f"POST /v1/describe HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 2\r\n\r\n"
        )
        self.socket.setblocking(False)
        self.request, self.begun = head.encode() + b"{}", 0  # how much of a request is sent

    def ask(self) -> None:
        """Send as much as goes out without waiting, 1,000 requests at most."""
        with suppress(BlockingIOError, ConnectionError):
            sent = self.socket.send((self.request * 1001)[self.begun :])
            self.begun = (self.begun + sent) % len(self.request)

    def __enter__(self) -> _Unread:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--kill-every", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--client", nargs=3, metavar=("URL", "SESSIONS", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        client(arguments.client[0], int(arguments.client[1]), int(arguments.client[2]))
        return
    soak = Soak(arguments.sessions, arguments.processes, arguments.episodes, arguments.kill_every, arguments.seed)
    print(json.dumps(soak.run(), indent=2))


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
if __name__ == "__main__":
    main()
