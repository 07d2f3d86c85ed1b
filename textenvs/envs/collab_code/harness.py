"""Runs in the sandbox, as the first process there: gives every test a process of its own, and reports what came of it.

The program under test never shares a process with this one, and has no way to its standard output: what is printed
here is what happened. (It can end this process, by a signal. Then nothing is reported, and nothing passed.)
"""

import json
import os
import select
import signal
import sys
import time


def _main() -> None:
    order = json.loads(sys.stdin.buffer.read())
    report = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    reports = [_one(order["program"], test, order["timeout_s"], order["most"], report) for test in order["tests"]]
    with os.fdopen(report, "w") as file:
        file.write("".join(json.dumps(each) + "\n" for each in reports))


def _one(program: str, test: dict[str, str], timeout_s: float, most: int, report: int) -> dict[str, str | None]:
    """What one test came to: ``value`` (as ``repr`` writes it) or ``error``, both ``None`` where it said neither."""
    reads, writes = os.pipe()
    token = os.urandom(16).hex()  # what the program writes to the pipe without it says nothing
    child = os.fork()
    if child == 0:
        os.close(report)
        os.close(reads)
        os.setsid()
        _run(program, test, writes, token)
    os.close(writes)
    text, deadline, late = b"", time.monotonic() + timeout_s, False
    while not text.endswith(b"\n") and len(text) <= 8 * most:
        late = not select.select([reads], [], [], max(0.0, deadline - time.monotonic()))[0]
        chunk = b"" if late else os.read(reads, 65536)
        if not chunk:
            break
        text += chunk
    os.close(reads)
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return {"value": None, "error": f"It took longer than {timeout_s:g} s."}
    try:
        said = json.loads(text)
        value, error = said["value"], said["error"]
        if said["token"] != token:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        code = os.waitstatus_to_exitcode(status)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            how += " (mostly a limit of CPU time)"
        return {"value": None, "error": f"The program ended {how} before the test did."}
    for each in (value, error):
        if not isinstance(each, (str, type(None))) or len(each or "") > most:
            return {"value": None, "error": "The result is too long."}
    return {"value": value, "error": error}


def _run(program: str, test: dict[str, str], writes: int, token: str) -> None:
    """Run the program, then the test, and say what came of it. What is needed for that is at hand before."""
    write, leave, dump, kinds = os.write, os._exit, json.dumps, (str, bytes, int, float, bool, type(None))
    said: dict[str, str | None] = {"token": token, "value": None, "error": None}
    try:
        names: dict[str, object] = {"__name__": "program"}
        exec(compile(program, "program.py", "exec"), names)
        if "expression" in test:
            value = eval(compile(test["expression"].strip(), "test", "eval"), names)
            if not isinstance(value, kinds) and hasattr(value, "tolist"):
                value = value.tolist()  # NumPy's numbers and arrays
            said["value"] = repr(value)
        else:
            exec(compile(test["code"], "test.py", "exec"), names)
    except BaseException as error:
        said["error"] = f"{type(error).__name__}: {error}"[:1000]
    text = (dump(said) + "\n").encode()
    while text:
        text = text[write(writes, text) :]
    leave(0)


_main()
