"""Programs of textenv/agent for tests: functions that call the model over HTTP, and what commands begin with."""

import json
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

from textenvs.envs.agent import Agent
from textenvs.messages import user
from textenvs.task import Task

TASKS = [
    Task(str(number), "test", (user(f"Twice {number}?"),), str(2 * number), extra={"hint": "add"})
    for number in range(2, 10)
]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "double", "description": "Double.", "parameters": PARAMETERS}}


def post(url, key, path, body):
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def ask(url, key, *messages, **options):
    """Call the model; return its message."""
    return post(url, key, "chat/completions", {"messages": list(messages), **options})["choices"][0]["message"]


def make(agent, **options):
    """Return an environment of a function, whose first episode has begun."""
    env = Agent(agent, tasks=options.pop("tasks", TASKS), timeout=options.pop("timeout", 60.0), **options)
    env.reset(seed=0, options={"task_index": 0})
    return env


def talk(task, url, key):
    """Ask until the model says stop."""
    messages = [user(task.question)]
    while True:
        messages.append(ask(url, key, *messages))
        if messages[-1]["content"] == "stop":
            return 1.0
        messages.append(user(f"You said {messages[-1]['content']}."))


#: What the programs of the fixture ``command_env`` begin with. Messages are texts of the user, or mappings; a request
#: that is refused returns its status.
HEAD = """
import errno, json, os, resource, socket, subprocess, sys, threading, time, urllib.error, urllib.request
def post(path, body, key=None, url=None):
    headers = {"Authorization": "Bearer " + (os.environ["OPENAI_API_KEY"] if key is None else key)}
    address = (url or os.environ["OPENAI_BASE_URL"]) + path
    try:
        return json.load(urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers)))
    except urllib.error.HTTPError as error:
        return {"status": error.code}
def ask(*messages, **where):
    messages = [{"role": "user", "content": message} if isinstance(message, str) else message for message in messages]
    return post("/chat/completions", {"messages": messages}, **where)["choices"][0]["message"]
def attempt(function, *arguments):
    try:
        function(*arguments)
    except (OSError, MemoryError) as error:
        return errno.errorcode[error.errno] if isinstance(error, OSError) else "MemoryError"
    return "it worked"
task = json.load(open(os.environ["TEXTENVS_TASK_FILE"])) if "TEXTENVS_TASK_FILE" in os.environ else None
"""


def content(env):
    """Return the JSON that a program wrote in its call."""
    return json.loads(env.state.messages[-1]["content"])


def folder_of(env):
    return env._live[2]._program.folder


def wait_until(condition):
    """Wait for what another process or thread does."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def runs(pid):
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def killed_run(script):
    """Run a Python script until it has printed a line of JSON, kill it, and return the line's value."""
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    try:
        return json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
