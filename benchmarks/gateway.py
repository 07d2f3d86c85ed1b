"""The cost of a call of the model through the gateway, beside a bare aiohttp server, and 200 programs at once.

    python -m benchmarks.gateway --programs 200 --sandbox

Each client makes calls one after the other on one connection; a policy in a thread answers at once. ``floor`` is an
aiohttp server in the same background event loop that reads the same JSON and answers with the same JSON. ``turn`` is
a step of ``textenv/agent`` with its example program. Target: below 2 ms a call at the median. The programs are
processes which wait until all of them have called; it fails where one of them leaves something behind.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from aiohttp import web

from textenvs.envs.agent import Agent
from textenvs.event_loop import submit
from textenvs.gateway.channel import Ended
from textenvs.gateway.model_call import ModelReply
from textenvs.gateway.server import gateway
from textenvs.gateway.session import Session
from textenvs.messages import assistant

REPLY = "The answer is 4. " * 10
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Twice 2? " * 50}]


@contextmanager
def bare_server() -> Iterator[str]:
    """Run an aiohttp server that reads a request as JSON and answers with a completion."""
    message = {"role": "assistant", "content": REPLY}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    answer = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}

    async def handle(request: web.Request) -> web.Response:
        await request.json()
        return web.json_response(answer)

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = submit(start()).result()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        submit(runner.cleanup()).result()


@contextmanager
def answered_session() -> Iterator[tuple[str, str]]:
    """Open a session whose calls are answered at once; yield the URL and the key."""
    server = gateway()
    channel = server.open(Session())

    def answer() -> None:
        while not isinstance(channel.observe(60), Ended):
            channel.answer(ModelReply(assistant(REPLY)))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield server.url, channel.key
    finally:
        server.close(channel.key)
        thread.join()


def call_times(url: str, key: str, count: int) -> list[float]:
    """Return the milliseconds of each call of one client, the first ones left out."""
    connection, times = http.client.HTTPConnection(urlsplit(url).netloc), []
    body = json.dumps({"model": "policy", "messages": MESSAGES})
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    for _ in range(count + 20):
        start = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, headers)
        connection.getresponse().read()
        times.append(1e3 * (time.perf_counter() - start))
    connection.close()
    return times[20:]


def turn_times(episodes: int) -> list[float]:
    """Return the milliseconds of each step of the example program, played by its expert."""
    env, rng, times = Agent(), np.random.default_rng(0), []
    for seed in range(episodes):
        env.reset(seed=seed)
        while not env.state.done:
            reply = env.demonstration(rng)
            start = time.perf_counter()
            env.step(reply)
            times.append(1e3 * (time.perf_counter() - start))
    env.close()
    return times


PROGRAM = """
import json, os, urllib.request
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
def post(path, body):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))
messages = [{"role": "user", "content": "?"}]
for _ in range(5):
    messages.append(post("/chat/completions", {"messages": messages})["choices"][0]["message"])
    messages.append({"role": "user", "content": "And?"})
post("/rewards", {"reward": 1})
"""


def play_programs(count: int, *, sandbox: bool) -> tuple[float, float]:
    """Play ``count`` processes of five calls; return the seconds until all have called, and until all have ended."""
    command = [sys.executable, "-I", "-S", "-c", PROGRAM]
    envs = [Agent(command=command, timeout=600.0, sandbox=sandbox) for _ in range(count)]
    all_have_called, called = threading.Barrier(count, lambda: called.append(time.perf_counter())), list[float]()

    def play(env: Agent) -> None:
        try:
            env.reset(seed=0)
            all_have_called.wait()
            while not env.state.done:
                env.step("ok")
            if not env.state.terminated:
                raise RuntimeError(f"an episode ended with {env.state.stop}")
        except BaseException:
            all_have_called.abort()
            raise
        finally:
            env.close()

    start = time.perf_counter()
    with ThreadPoolExecutor(count) as threads:
        for future in [threads.submit(play, env) for env in envs]:
            future.result()
    return called[0] - start, time.perf_counter() - start


def remains(before: set[str]) -> list[str]:
    """Return what the programs have left behind: sessions, folders, and processes other than their reaper."""
    deadline = time.monotonic() + 60
    while True:
        children = [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
        things = [f"process {pid}" for pid in children if b"reaper.py" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
        things += sorted(folders() - before) + ["a session"] * gateway().sessions
        if not things or time.monotonic() > deadline:
            return things
        time.sleep(0.1)


def folders() -> set[str]:
    return {str(path) for path in Path(tempfile.gettempdir()).glob("textenvs-agent-*")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--sandbox", action="store_true", help="run the programs in sandboxes")
    arguments = parser.parse_args()
    with bare_server() as url:
        floor = call_times(url, "", arguments.calls)
    with answered_session() as (url, key):
        through = call_times(url, key, arguments.calls)
    rows = {"floor: a bare aiohttp server": floor, "a call through the gateway": through}
    rows["a turn of textenv/agent"] = turn_times(arguments.calls // 5)
    print(f"{'':32}{'median ms':>12}{'p95 ms':>12}")
    for name, times in rows.items():
        print(f"{name:32}{statistics.median(times):12.2f}{np.percentile(times, 95):12.2f}")
    cost = statistics.median(through) - statistics.median(floor)
    print(f"the gateway's cost a call: {cost:.2f} ms at the median (target: below 2)")
    before = folders()
    first_calls_s, total_s = play_programs(arguments.programs, sandbox=arguments.sandbox)
    print(f"{arguments.programs} processes at once: all have called after {first_calls_s:.1f} s")
    print(f"all have ended, after 5 calls each, after {total_s:.1f} s")
    if things := remains(before):
        raise SystemExit(f"left behind: {', '.join(things)}")
    print("nothing is left behind")


if __name__ == "__main__":
    main()
