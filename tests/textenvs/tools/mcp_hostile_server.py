"""A server that misbehaves as its arguments say: how it lists its tools, and how it answers a call."""

import json
import os
import subprocess
import sys
import time

listing, calling = sys.argv[1], sys.argv[2]

TOOL = {"name": "do", "description": "Do it.", "inputSchema": {"type": "object", "properties": {}}}
DEEP = {"type": "object"}
for _ in range(200):
    DEEP = {"type": "object", "properties": {"x": DEEP}}
BAD_TOOLS = {
    "null in list": [TOOL, None],
    "number in list": [7],
    "no list": {"a": TOOL},
    "null": None,
    "many": [TOOL | {"name": f"t{i}"} for i in range(20_000)],
    "no name": [{"inputSchema": {"type": "object"}}],
    "empty name": [TOOL | {"name": ""}],
    "no schema": [{"name": "do"}],
    "schema null": [TOOL | {"inputSchema": None}],
    "schema text": [TOOL | {"inputSchema": "object"}],
    "schema list": [TOOL | {"inputSchema": {"type": "array"}}],
    "properties list": [TOOL | {"inputSchema": {"type": "object", "properties": ["x"]}}],
    "property number": [TOOL | {"inputSchema": {"type": "object", "properties": {"x": 7}}}],
    "required text": [TOOL | {"inputSchema": {"type": "object", "required": "x"}}],
    "deep schema": [TOOL | {"inputSchema": DEEP}],
    "large schema": [TOOL | {"inputSchema": {"type": "object", "description": "x" * 300_000}}],
    "description number": [TOOL | {"description": 7}],
    "large description": [TOOL | {"description": "x" * 300_000}],
}
RESULTS = {
    "result null": None,
    "result text": "done",
    "no content": {},
    "content text": {"content": "done"},
    "content null": {"content": [None]},
    "content of no kind": {"content": [{"type": "hologram"}]},
    "structured text": {"content": [], "structuredContent": "x"},
}
LINES = {
    "null": "null",
    "number": "7",
    "list": "[]",
    "empty object": "{}",
    "deep": "[" * 100_000,
    "cut": '{"jsonrpc": "2.0", "id"',
    "wrong id": '{"jsonrpc": "2.0", "id": 999999, "result": {"content": []}}',
    "null id": '{"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "no"}}',
}


def write(text):
    sys.stdout.buffer.write(text.encode("utf-8", "surrogatepass") + b"\n")
    sys.stdout.buffer.flush()


def send(request, **outcome):
    write(json.dumps({"jsonrpc": "2.0", "id": request, **outcome}))


def answer_list(request, cursor):
    if listing == "never":
        return None
    if listing == "stops":
        os._exit(3)
    if listing == "endless":
        page = {"tools": [TOOL | {"name": f"do{cursor}"}], "nextCursor": str(int(cursor or 0) + 1)}
        return send(request, result=page)
    if listing == "circle":
        return send(request, result={"tools": [TOOL], "nextCursor": "a"})
    if listing == "error":
        return send(request, error={"code": -1, "message": "not now"})
    if listing in LINES:
        return write(LINES[listing])
    if listing in RESULTS:
        return send(request, result=RESULTS[listing])
    schema = {"$ref": "#", "type": "object"} if calling == "output schema" else None
    tools = BAD_TOOLS[listing] if listing in BAD_TOOLS else [TOOL | ({"outputSchema": schema} if schema else {})]
    return send(request, result={"tools": tools})


def answer_call(request):
    fine = {"content": [{"type": "text", "text": "fine"}]}
    if calling in LINES:
        return write(LINES[calling])
    if calling in RESULTS:
        return send(request, result=RESULTS[calling])
    if calling == "surrogate":
        text = json.dumps({"jsonrpc": "2.0", "id": request, "result": fine})
        return write(text.replace("fine", "a \\ud800 b"))
    if calling == "raw surrogate":
        text = json.dumps({"jsonrpc": "2.0", "id": request, "result": fine})
        return write(text.replace("fine", "a \ud800 b"))
    if calling == "deep result":
        return write(f'{{"jsonrpc": "2.0", "id": {request}, "result": {"[" * 100_000}')
    if calling == "log line":
        write("INFO: working on it")
        return send(request, result=fine)
    if calling == "text id":
        return send(str(request), result=fine)
    if calling == "long line":
        return write("x" * (5 * 2**20))
    if calling == "endless line":
        while True:
            sys.stdout.write("x" * 65536)
    if calling == "dies":
        os._exit(3)
    if calling == "dies, output open":
        child()
        os._exit(3)
    if calling in ("child", "child of its own"):
        return send(request, result={"content": [{"type": "text", "text": str(child(calling != "child"))}]})
    return send(request, result=fine)


def child(apart=False):
    command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    return subprocess.Popen(command, start_new_session=apart).pid


for line in sys.stdin:
    message = json.loads(line)
    method, request = message.get("method"), message.get("id")
    if method == "initialize":
        about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
        send(request, result=about | {"serverInfo": {"name": "x", "version": "1"}})
    elif method == "tools/list":
        answer_list(request, (message.get("params") or {}).get("cursor"))
    elif method == "tools/call":
        answer_call(request)
    elif request is not None:
        send(request, error={"code": -32601, "message": f"no method {method}"})
if calling == "stays":
    time.sleep(600)
