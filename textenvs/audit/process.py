"""Run a function in another Python process, with another hash seed: its result must be the same, and it may crash.

The function and its arguments travel as a pickle, and its result as JSON.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from ..text import excerpt

_TIMEOUT_S = 300.0


class Unpicklable(Exception):
    """The environment's factory cannot be sent to another process."""


class Died(Exception):
    """The other process ended without a result; the message is the end of what it wrote."""


class Unfinished(Exception):
    """The other process took too long, or the function raised."""


def run_in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``function(*arguments)``, computed in a new process; raises one of the three errors above."""
    try:
        parcel = pickle.dumps((function, arguments))
    except Exception as error:
        raise Unpicklable(f"{type(error).__name__}: {error}") from error
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            input=parcel,
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path},
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unfinished(f"it took longer than {_TIMEOUT_S:g} s") from error
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise Died(f"exit status {done.returncode}; {excerpt(last[0], 300) if last else 'it said nothing'}") from error
    if "result" in answer:
        return answer["result"]
    raise Unpicklable(answer["unpicklable"]) if "unpicklable" in answer else Unfinished(answer["raised"])


def main() -> None:
    """Answer for :func:`run_in_new_process`: a pickle on stdin, a line of JSON on stdout."""
    out = os.dup(1)
    os.dup2(2, 1)  # what an environment prints is no answer
    problem = "unpicklable"
    try:
        function, arguments = pickle.loads(sys.stdin.buffer.read())
        problem = "raised"
        answer = {"result": function(*arguments)}
    except Exception as error:
        answer = {problem: f"{type(error).__name__}: {error}"}
    os.write(out, json.dumps(answer).encode() + b"\n")
