"""Tools of real MCP servers, over stdio and HTTP: calls, time limits, and servers that die."""

import asyncio
import contextlib
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from textenvs.env import EnvironmentFailure, EpisodeState, Turn
from textenvs.messages import user
from textenvs.task import Rows, Task
from textenvs.tool_env import ToolEnv
from textenvs.tools import Toolbox, call
from textenvs.tools.mcp import McpServer
from trainers.engines.server import free_port

pytestmark = [
    pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra 'mcp'"),
    pytest.mark.xdist_group("mcp"),  # one process imports the SDK, not each
]
HERE = Path(__file__).parent
PLAIN = {"command": sys.executable, "args": ["-S", str(HERE / "mcp_plain_server.py")]}
SDK = {"command": sys.executable, "args": [str(HERE / "mcp_sdk_server.py")]}


@pytest.fixture(scope="module")
def listed():
    """The tools of the plain server. Each test opens connections of its own."""
    return McpServer(PLAIN).tools(timeout_s=60)


def fresh(listed):
    """The same tools on a server object of its own, without listing them again."""
    return Toolbox(pickle.loads(pickle.dumps(listed)))


def server_of(box):
    return box.tools[0].owner


@contextlib.asynccontextmanager
async def connected(listed):
    box = fresh(listed)
    try:
        yield box
    finally:
        await server_of(box).aclose()


async def run(box, *calls):
    return await box.run(calls, EpisodeState())


async def one(box, name, **arguments):
    (result,) = await run(box, call(name, **arguments))
    return result


def has_ended(pid):
    with contextlib.suppress(ProcessLookupError):
        for _ in range(3000):
            os.kill(pid, 0)
            time.sleep(0.02)
        return False
    return True


def test_the_servers_tools_are_ours(listed):
    names = [remote_tool.name for remote_tool in listed]
    assert names == ["note", "wait", "process", "refuse_it", "stop"], "of both pages"
    note = listed[0]
    assert note.description == "Tool note."
    assert note.schema["function"]["parameters"]["required"] == ["text"]
    assert note.needs_loop


def test_some_tools_with_a_prefix():
    server = McpServer(PLAIN)
    (add,) = server.tools(only=["note"], prefix="my_")
    assert add.name == "my_note"
    with pytest.raises(ValueError, match=r"has no tool \['forget'\]; it has \['note'"):
        server.tools(only=["forget"])


async def test_refusal_of_server_reaches_model(listed):
    async with connected(listed) as box:
        refused = await one(box, "refuse_it")
        assert (refused.content, refused.error) == ("not today", "refused")
        unknown = Toolbox([box.tools[0].replace(name="a")])
        object.__setattr__(unknown.tools[0].function, "name", "gone")
        assert (await one(unknown, "a", text="x")).content == "no tool gone"


async def test_one_connection_serves_concurrent_calls(listed):
    async with connected(listed) as box:
        results = await run(box, *[call("process")] * 4, *[call("wait", seconds=0.05)] * 4)
        assert len({result.content for result in results[:4]}) == 1
        assert [result.content for result in results[4:]] == ["done"] * 4
        assert (await one(box, "note", text="a")).content == "1"
        assert (await one(box, "note", text="b")).content == "2", "the server is still the same one"


async def test_call_timeout_keeps_connection(listed):
    box = fresh([remote_tool.replace(timeout_s=0.2 if remote_tool.name == "wait" else 60) for remote_tool in listed])
    pid = (await one(box, "process")).content
    result = await one(box, "wait", seconds=30)
    assert result.error == "timeout"
    assert (await one(box, "process")).content == pid
    await server_of(box).aclose()


async def test_dead_server_restarts_between_calls(listed):
    async with connected(listed) as box:
        pid = int((await one(box, "process")).content)
        os.kill(pid, signal.SIGKILL)
        assert has_ended(pid)
        result = await one(box, "note", text="a")
        assert (result.error, "was started again" in result.content) == ("refused", True)
        assert (await one(box, "note", text="a")).content == "1"
        assert int((await one(box, "process")).content) != pid


async def test_running_calls_are_answered_when_server_dies(listed):
    async with connected(listed) as box:
        await one(box, "process")
        results = await run(box, call("wait", seconds=60), call("stop"), call("wait", seconds=60))
        assert all("was started again" in result.content for result in results)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ({"command": "/no/such/program"}, "FileNotFoundError"),
        ({"command": sys.executable, "args": ["-c", "raise SystemExit('out of order')"]}, "cannot be reached"),
    ],
)
async def test_unstartable_server_is_environment_failure(listed, command, reason):
    with pytest.raises(EnvironmentFailure, match=reason) as caught:
        await McpServer(command).atools()
    assert caught.value.stop == "tool_failed"
    box = fresh(listed)
    server_of(box).spec = command  # it was there when its tools were listed, and is not any more
    with pytest.raises(EnvironmentFailure, match=reason):
        await one(box, "process")


async def test_silent_server_times_out():
    silent = McpServer(
        {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}, connect_timeout_s=0.2
    )
    with pytest.raises(EnvironmentFailure, match=r"no answer within 0.2 s"):
        await silent.atools()


async def test_call_after_close_starts_new_process(listed):
    box = fresh(listed)
    pid = int((await one(box, "process")).content)
    await server_of(box).aclose()
    assert has_ended(pid)
    again = int((await one(box, "process")).content)
    assert again != pid
    await server_of(box).aclose()
    assert has_ended(again)


def test_each_event_loop_owns_its_connection(listed):
    box = fresh(listed)
    pids = [int(asyncio.run(one(box, "process")).content) for _ in range(2)]
    assert pids[0] != pids[1]
    assert all(has_ended(pid) for pid in pids)


async def test_unreferenced_server_is_stopped(listed):
    box = fresh(listed)
    pid = int((await one(box, "process")).content)
    del box
    gc.collect()
    for _ in range(3000):
        await asyncio.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            continue
        return
    pytest.fail("the server outlives the object")


class Remote(ToolEnv):
    """An environment around the tools of a server."""

    def __init__(self, tools):
        super().__init__(Rows("one", [Task("a", "test", (user("Go."),), "3")]), tools)

    def answer(self, reply):
        return Turn(terminated=True, stop="over")


def test_closed_environment_stops_its_server(listed):
    env = Remote(fresh(listed).tools)
    env.reset(seed=0)

    def say(name, **arguments):
        return env.step(env.format.write("", [call(name, **arguments)]))[0][-1]["content"]

    pid = int(say("process"))
    fork = env.fork()
    assert (say("note", text="a"), say("note", text="b")) == ("1", "2")
    fork.close()
    assert int(say("process")) == pid
    env.close()
    assert has_ended(pid)
    assert int(pickle.loads(pickle.dumps(env)).state.calls_made) == 4


@contextlib.contextmanager
def http_server(port):
    process = subprocess.Popen(
        [SDK["command"], *SDK["args"], str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(2000):
            assert process.poll() is None, f"is port {port} taken?"
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def test_http_server_restart_is_survived():
    port = free_port()
    server = McpServer({"url": f"http://127.0.0.1:{port}/mcp", "headers": {"X-Key": "1"}})
    with http_server(port):
        box = Toolbox(server.tools())

        async def before():
            assert box.tools[0].schema["function"]["parameters"]["required"] == ["a"]
            assert (await one(box, "add", a=2, b=3)).content == "5"
            nested = await one(box, "norm", point={"x": 3, "y": 4.0}, labels=["é", "b"])
            assert '"é":25' in nested.content.replace(" ", "").replace("\n", "")
            assert (await one(box, "picture")).content == "before\n[image image/png, not shown]"
            wrong = await one(box, "add", a="x")
            assert wrong.error == "refused"
            assert "integer" in wrong.content
            return await run(box, call("stop"), call("wait", seconds=60))

        with pytest.raises(EnvironmentFailure, match=f"127.0.0.1:{port}/mcp cannot be reached"):
            asyncio.run(before())
    with pytest.raises(EnvironmentFailure, match="cannot be reached"):
        asyncio.run(one(box, "add", a=1))
    with http_server(port):

        async def after():
            result = await one(box, "add", a=1)
            await server.aclose()
            return result

        assert asyncio.run(after()).content == "2"


def test_missing_sdk_error_names_extra():
    code = (
        "import sys\n"
        "from textenvs.tools.mcp import McpServer\n"
        "assert not {'mcp', 'mcp_types', 'httpx2'} & set(sys.modules)\n"
        "sys.modules['mcp'] = None\n"
        "try: McpServer({'command': 'x'}).tools()\n"
        "except ImportError as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'textenvs[mcp]'" in ran.stdout


@pytest.mark.parametrize(
    "spec", [{}, {"args": []}, {"command": "x", "url": "y"}, {"url": "x", "args": []}, {"command": "x", "shell": True}]
)
def test_invalid_specification_is_refused(spec):
    with pytest.raises(ValueError, match="an MCP server is"):
        McpServer(spec)
