"""The cost of a call of the model through the gateway, beside a bare aiohttp server, and 200 programs at once.

Each client makes calls one after the other on one connection; a policy in a thread answers at once. ``floor`` is an
aiohttp server in the same background event loop that reads the same JSON and answers with the same JSON. ``turn`` is
a step of ``textenv/agent`` with its example program. Target: below 2 ms a call at the median.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    channel = server.open(Session(contexts=None))

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


async def play_programs(count: int) -> float:
    """Play ``count`` processes of five calls at once; return the seconds."""
    envs = [Agent(command=[sys.executable, "-I", "-S", "-c", PROGRAM], timeout=300.0) for _ in range(count)]

    def play(env: Agent) -> None:
        env.reset(seed=0)
        while not env.state.done:
            env.step("ok")
        assert env.state.terminated, env.state.stop
        env.close()

    loop, start = asyncio.get_running_loop(), time.perf_counter()
    waiting = []
    for env in envs:
        done = loop.create_future()
        thread = threading.Thread(target=_run, args=(play, env, loop, done))
        thread.start()
        waiting.append(done)
    await asyncio.gather(*waiting)
    return time.perf_counter() - start


def _run(play: Callable[[Agent], None], env: Agent, loop: asyncio.AbstractEventLoop, done: asyncio.Future) -> None:
    try:
        play(env)
    except BaseException as error:
        loop.call_soon_threadsafe(done.set_exception, error)
    else:
        loop.call_soon_threadsafe(done.set_result, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--programs", type=int, default=200)
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
    seconds = asyncio.run(play_programs(arguments.programs))
    print(f"{arguments.programs} processes at once, 5 calls each: {seconds:.1f} s")


if __name__ == "__main__":
    main()
