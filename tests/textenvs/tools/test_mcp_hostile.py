"""Hostile or broken servers: each leads to a clear failure or to an error for the model, never to a hang."""

import asyncio
import contextlib
import http.server
import json
import os
import re
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from skip_time import skip

from textenvs.env import EnvironmentFailure, EpisodeState
from textenvs.tools import Toolbox, call, mcp
from textenvs.tools.mcp import McpServer
from textenvs.tools.mcp_transport import MAX_DEPTH, problem_with_tools

pytestmark = [
    pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra 'mcp'"),
    pytest.mark.xdist_group("mcp"),  # one process imports the SDK, not each
]
HERE = Path(__file__).parent
#: So long no test takes that ends as it should: a call that waits for its time limit fails by its message.
LONG_S = 60.0


def server(listing="fine", calling="fine", **options):
    command = {"command": sys.executable, "args": ["-S", str(HERE / "mcp_hostile_server.py"), listing, calling]}
    return McpServer(command, **options)


BAD_LISTS = {
    "null in list": "tool 1 is null",
    "number in list": "tool 0 is 7",
    "no list": "list of tools is an object",
    "null": "no message of the protocol: null",
    "many": "lists 20,000 tools, more than 1,000",
    "no name": "the name null",
    "empty name": "has the name",
    "no schema": r"\(do\) has an input schema that is null",
    "schema null": "input schema that is null",
    "schema text": "input schema that is .*object",
    "schema list": 'of type "array"',
    "properties list": "properties that are no schemas",
    "property number": "properties that are no schemas",
    "required text": "list of required arguments",
    "deep schema": f"more than {MAX_DEPTH} levels",
    "large schema": "more than 262,144",
    "description number": "description that is 7",
    "large description": "description of 300,000 characters",
    "endless": "more than 1,000 tools, or 100 pages",
    "circle": "the same page again",
    "error": "not now",
    "stops": "stopped while listing",
    "result text": "no message of the protocol",
    "no content": "list of tools is null",
    "number": "no message of the protocol: 7",
    "deep": "no message of the protocol",
    "wrong id": "answered the id 999999",
}


@pytest.mark.parametrize(("listing", "words"), BAD_LISTS.items(), ids=BAD_LISTS)
async def test_bad_list_of_tools_is_explained(listing, words):
    with pytest.raises(EnvironmentFailure, match=words) as caught:
        await server(listing, connect_timeout_s=LONG_S).atools()
    assert caught.value.stop == "tool_failed"
    assert len(str(caught.value)) < 1000


async def test_listing_tools_has_a_time_limit(monkeypatch):
    every_page = mcp._every_page

    def late(*args):
        skip(asyncio.get_running_loop(), LONG_S)
        return every_page(*args)

    monkeypatch.setattr(mcp, "_every_page", late)
    with pytest.raises(EnvironmentFailure, match="did not come within 60 s"):
        await server("never", connect_timeout_s=LONG_S).atools()


@contextlib.asynccontextmanager
async def called(calling, **options):
    """Yield the result of one call and its box, which is closed at the end."""
    made = server(calling=calling)
    box = Toolbox(await made.atools(timeout_s=LONG_S, **options))
    try:
        (result,) = await box.run([call("do")], EpisodeState())
        yield box, result
    finally:
        await made.aclose()


NO_ANSWERS = {
    "null": "no message of the protocol: null",
    "number": "no message of the protocol: 7",
    "list": "no message of the protocol",
    "empty object": "no message of the protocol",
    "deep": r"no message of the protocol: \[\[\[",
    "cut": "no message of the protocol",
    "wrong id": "answered the id 999999",
    "null id": "an error of no request: no",
    "result null": "no message of the protocol",
    "result text": "no message of the protocol",
    "no content": "content",
    "content text": "content",
    "content null": "content",
    "content of no kind": "cannot be used",
    "deep result": "no message of the protocol",
    "long line": "had stopped and was started again",
    "endless line": "had stopped and was started again",
    "dies": "had stopped and was started again",
    "dies, output open": "had stopped and was started again",
}


@pytest.mark.parametrize(("calling", "words"), NO_ANSWERS.items(), ids=NO_ANSWERS)
async def test_unusable_answers_are_reported_at_once(calling, words):
    async with called(calling) as (_, result):
        assert result.error == "refused", result.content
        assert re.search(words, result.content), result.content


READ = {"surrogate": "a \ufffd b", "raw surrogate": "a \ufffd", "log line": "fine", "text id": "fine"}


@pytest.mark.parametrize(("calling", "content"), [*READ.items(), ("output schema", "fine"), ("stays", "fine")])
async def test_odd_answers_are_read(calling, content):
    async with called(calling) as (_, result):
        assert result.ok, result.content
        assert result.content.startswith(content)


async def test_every_call_of_several_is_answered():
    made = server(calling="wrong id")
    box = Toolbox(await made.atools(timeout_s=LONG_S))
    results = await box.run([call("do")] * 4, EpisodeState())
    await made.aclose()
    assert ["answered the id" in result.content for result in results] == [True] * 4


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("calling", ["child", "child of its own"])
async def test_closing_ends_what_the_server_started(calling):
    async with called(calling) as (_, result):
        pid = int(result.content)
        os.kill(pid, 0)
    assert has_ended(pid)


def has_ended(pid):
    """Return whether a process is over; one that is not reaped stays as a zombie."""
    for _ in range(3000):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.02)
                continue
        return True
    return False


async def test_late_answer_disturbs_no_other_call():
    made = McpServer({"command": sys.executable, "args": ["-S", str(HERE / "mcp_plain_server.py")]})
    tools = [
        remote_tool.replace(timeout_s=0.2 if remote_tool.name == "wait" else LONG_S)
        for remote_tool in await made.atools()
    ]
    box = Toolbox(tools)
    (late,) = await box.run([call("wait", seconds=0.5)], EpisodeState())
    assert late.error == "timeout"
    for _ in range(10):
        (result,) = await box.run([call("note", text="a")], EpisodeState())
        assert result.ok, result.content
        await asyncio.sleep(0.08)
    await made.aclose()


class Handler(http.server.BaseHTTPRequestHandler):
    """A server over HTTP that fails as its ``mode`` says, in calls alone."""

    protocol_version = "HTTP/1.1"
    mode = ""

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.send_error(405)

    def do_DELETE(self):
        if self.mode == "no farewell":
            time.sleep(LONG_S)
        self.send_error(405)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, request = message.get("method"), message.get("id")
        result = {"content": [{"type": "text", "text": "fine"}]}
        if request is None:
            self.send_response(202)
            self.send_header("content-length", "0")
            return self.end_headers()
        if method == "initialize":
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            result |= {"serverInfo": {"name": "x", "version": "1"}}
        elif method == "tools/list":
            result = {"tools": [{"name": "do", "inputSchema": {"type": "object"}}]}
        elif method != "tools/call":
            return self.send_error(404)
        answer = json.dumps({"jsonrpc": "2.0", "id": request, "result": result}).encode()
        if method == "tools/call":
            answer = self.bodies().get(self.mode, answer)
        self.send_response(200)
        self.send_header("mcp-session-id", "a")
        self.send_header("content-type", "application/json")
        if method == "tools/call" and self.mode == "packed":
            self.send_header("content-encoding", "gzip")
        if method == "tools/call" and self.mode == "endless":
            self.send_header("connection", "close")
            self.end_headers()
            while True:
                self.wfile.write(b" " * 65536)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        return None

    @staticmethod
    def bodies():
        wrong = {"jsonrpc": "2.0", "id": 999999, "result": {}}
        return {"wrong id": json.dumps(wrong).encode(), "null": b"null", "deep": b"[" * 100_000, "packed": b"x"}


HTTP = {
    "wrong id": "answered the id 999999",
    "null": "Failed to parse",
    "deep": "Failed to parse",
    "packed": "cannot be reached|packed|had stopped",
    "endless": "more than 4 MiB",
    "no farewell": None,
}


@pytest.mark.parametrize(("mode", "words"), HTTP.items(), ids=HTTP)
async def test_odd_http_answers_are_reported(mode, words):
    handler = type("Mode", (Handler,), {"mode": mode})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        listening.handle_error = lambda *args: None
        listening.daemon_threads = True
        listening.block_on_close = False
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        made = McpServer({"url": f"http://127.0.0.1:{listening.server_port}/mcp"})
        box = Toolbox(await made.atools(timeout_s=LONG_S))
        (result,) = await box.run([call("do")], EpisodeState())
        await made.aclose()
        listening.shutdown()
    if words is None:
        assert result.content == "fine"
    else:
        assert result.error == "refused"
        assert re.search(words, result.content), result.content


def test_any_list_of_tools_is_judged():
    from hypothesis import given
    from hypothesis import strategies as st

    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["name", "inputSchema", "type", "properties", "required"]), inner)
        ),
        max_leaves=12,
    )

    @given(values)
    def judged(tools):
        problem = problem_with_tools(tools)
        assert problem is None or problem

    judged()
