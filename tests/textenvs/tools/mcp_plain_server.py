"""A server without the SDK, of an older version of the protocol: it starts at once, and can die in every way."""

import json
import os
import sys
import threading
import time

notes: list[str] = []
lock = threading.Lock()


def note(text):
    notes.append(text)
    return len(notes)


def wait(seconds):
    time.sleep(seconds)
    return "done"


def stop():
    os._exit(3)


def refuse():
    raise ValueError("not today")


def tool(function, *arguments, name=None):
    properties = {argument: {"type": "number" if argument == "seconds" else "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    name = name or function.__name__
    return name, function, {"name": name, "description": f"Tool {name}.", "inputSchema": schema}


TOOLS = (
    tool(note, "text"),
    tool(wait, "seconds"),
    tool(os.getpid, name="process"),
    tool(refuse, name="refuse.it"),
    tool(stop),
)


def send(message_id, **outcome):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message_id, **outcome}) + "\n")
        sys.stdout.flush()


def answer(message):
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        about = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "x", "version": "1"},
        }
        return send(message["id"], result=about)
    if method == "tools/list":  # two pages
        second = params.get("cursor") == "more"
        page = [listed for _, _, listed in (TOOLS[3:] if second else TOOLS[:3])]
        return send(message["id"], result={"tools": page} | ({} if second else {"nextCursor": "more"}))
    if method == "tools/call":
        function = next((function for name, function, _ in TOOLS if name == params["name"]), None)
        if function is None:
            return send(message["id"], error={"code": -32602, "message": f"no tool {params['name']}"})
        try:
            text, failed = str(function(**params.get("arguments", {}))), False
        except Exception as error:
            text, failed = str(error), True
        return send(message["id"], result={"content": [{"type": "text", "text": text}], "isError": failed})
    return send(message["id"], error={"code": -32601, "message": f"no method {method}"})


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and "method" in request:
        threading.Thread(target=answer, args=(request,), daemon=True).start()
