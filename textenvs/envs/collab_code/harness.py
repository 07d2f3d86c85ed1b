"""Program of the sandbox that stays running: tests submitted programs, each of them in processes of its own.

A question is a line of JSON, with ``most`` (characters of a result) and ``stays`` (whether another may follow); the
answer is a list of reports. What holds something secret never shares a process with a submitted program, and no process
of a program descends from one that held it:

* the first process reads no question: it forks a *runner* for each, and afterwards kills the question's processes
  and empties the folder;
* an ``expression`` is evaluated in a fork of the runner, together with the program. No process of the box has the
  expected value. What this process writes to its pipe is a claim of the program, no more than its result is;
* ``code`` (a test) runs in a fork of the runner that holds no program. The program is a :func:`_serve` that the first
  process forks, and the test sees it through :class:`Remote`: plain data in, plain data out.
"""

import builtins
import collections
import contextlib
import datetime
import decimal
import fractions
import json
import operator
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
import unittest
from typing import Any

FOLDER = os.getcwd()
#: What a runner says to the first process: serve a program (with the ends of its pipes); done, another question may
#: follow; done, none may.
_SERVE, _NEXT, _LAST = b"!", b"+", b"-"


def main() -> None:
    _empty_folder()  # of this program
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process is left to be waited for
    while select.select([0], [], []):
        requests, runner = socket.socketpair()
        if os.fork() == 0:
            requests.close()
            _run_question(runner)
        runner.close()
        status = b""
        while (received := socket.recv_fds(requests, 1, 2))[0]:
            status, fds = received[:2]
            if fds and os.fork() == 0:
                requests.close()
                _leave_streams()
                os.setsid()
                _serve(*fds)
            for fd in fds:
                os.close(fd)
        requests.close()
        if status != _NEXT:
            os._exit(0 if status == _LAST else 1)
        _clean_up()


def _clean_up() -> None:
    """Remove everything of a question before the next. Only in a box: all processes that it sees are the box's."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, 0)  # until all have ended
    _empty_folder()


def _empty_folder() -> None:
    for root, folders, _ in os.walk(FOLDER):
        for path in (os.path.join(root, name) for name in folders):
            if not os.path.islink(path):
                os.chmod(path, 0o700)  # before it is walked
    for entry in os.scandir(FOLDER):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _run_question(first: Any) -> Any:
    """Answer one question, in the runner."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with os.fdopen(os.dup(0), "rb") as questions:
        line = questions.readline()
    if not line:
        first.send(_LAST)
        os._exit(0)
    order = json.loads(line)
    answers = os.dup(1)
    _leave_streams()
    _limit(order["cpu_s"])
    reports: list[Any] = []
    for test in order["tests"]:
        stopped = order["most_slow"] is not None and sum(map(_is_slow, reports)) >= order["most_slow"]
        reports.append(_report(None, order["not_run"], "slow") if stopped else _one(order, test, answers, first))
    _write_all(answers, reports)
    first.send(_NEXT if order["stays"] else _LAST)
    os._exit(0)


def _leave_streams() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)


def _limit(cpu_s: Any) -> Any:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))


def _one(order: Any, test: Any, answers: Any, first: Any) -> Any:
    """Run one test, and report on it."""
    reads, writes = os.pipe()
    served = None if "expression" in test else _Served(first, order)
    child = os.fork()
    if child == 0:
        try:
            first.close()
            os.close(answers)
            os.close(reads)
            os.setsid()
            value = _test(test["code"], served) if served else _evaluate(order["program"], test["expression"])
            _write_all(writes, {"value": value, "error": None})
        except BaseException as raised:
            _write_all(writes, {"value": None, "error": _error_text(raised)})
        finally:
            os._exit(0)
    os.close(writes)
    text, deadline, late = b"", time.monotonic() + order["timeout_s"], False
    while not text.endswith(b"\n") and len(text) <= 8 * order["most"]:
        late = not select.select([reads], [], [], max(0.0, deadline - time.monotonic()))[0]
        chunk = b"" if late else os.read(reads, 65536)
        if not chunk:
            break
        text += chunk
    os.close(reads)
    if served is not None:
        served.end()
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return _report(None, f"It took longer than {order['timeout_s']:g} s.", "slow")
    try:
        answer = json.loads(text)
        value, error = answer["value"], answer["error"]
    except (ValueError, KeyError, TypeError):
        code = os.waitstatus_to_exitcode(status)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            how += " (mostly a limit of CPU time)"
        limited = "slow" if code == -signal.SIGXCPU else "late"
        return _report(None, f"The program ended {how} before the test did.", limited)
    if any(not isinstance(part, (str, type(None))) or len(part or "") > order["most"] for part in (value, error)):
        return _report(None, "The result is too long.")
    return _report(value, error)


def _report(value: Any, error: Any, stopped: Any = None) -> Any:
    """Return a test's ``value`` (by ``repr``) or ``error``, neither where code passed.

    ``stopped``: ``"slow"``, where a limit of time ended it; ``"late"``, where it ended otherwise before its time.
    """
    return {"value": value, "error": error, "stopped": stopped}


def _is_slow(report: Any) -> Any:
    return report["stopped"] == "slow"


def _write_all(fd: Any, message: Any) -> Any:
    text = (json.dumps(message) + "\n").encode()
    while text:
        text = text[os.write(fd, text) :]


def _error_text(error: Any) -> Any:
    try:
        return f"{type(error).__name__}: {error}"[:1000]
    except Exception:
        return type(error).__name__


def _evaluate(program: Any, expression: Any) -> Any:
    """Evaluate the expression, in a process with the program."""
    names = {"__name__": "program"}
    exec(compile(program, "program.py", "exec"), names)
    value = eval(compile(expression.strip(), "test", "eval"), names)
    return repr(value.tolist() if type(value).__module__ == "numpy" and hasattr(value, "tolist") else value)


def _test(code: Any, served: Any) -> Any:
    """Run the test's code, in a process without the program, whose names are those that the code does not bind."""
    # The program may write to the folder; what it puts there is not imported here.
    sys.path[:] = [path for path in sys.path if path and not path.startswith(FOLDER)]
    os.environ["HOME"] = "/"
    names = {"__name__": "program", **served.names(code["names"])}
    exec(compile(code["source"], "test.py", "exec"), names)
    if code["method"] is not None:
        result = unittest.TestResult()
        unittest.TestSuite([names[code["method"][0]](code["method"][1])]).run(result)
        for _, text in result.errors + result.failures:
            raise AssertionError(text.strip().splitlines()[-1])
        if result.testsRun != 1 or result.skipped or result.expectedFailures or result.unexpectedSuccesses:
            raise AssertionError("the test did not run")


class _Served:
    """The submitted program in a process of its own, as the process of a test sees it."""

    def __init__(self, first: Any, order: Any) -> None:
        asks, self._asks = os.pipe()
        self._answers, answers = os.pipe()
        socket.send_fds(first, [_SERVE], [asks, answers])
        os.close(asks)
        os.close(answers)
        self._order, self._buffer = order, b""

    def names(self, free_names: Any) -> Any:
        _write_all(self._asks, [self._order["program"], self._order["cpu_s"]])
        values = {name: self.ask("name", None, name) for name in free_names}
        return {name: value for name, value in values.items() if value is not _MISSING}

    def ask(self, what: Any, ref: Any, *args: Any, **kwargs: Any) -> Any:
        _write_all(self._asks, [what, ref, encode(args), encode(kwargs)])
        while b"\n" not in self._buffer:
            chunk = os.read(self._answers, 65536)
            self._buffer += chunk
            if not chunk or len(self._buffer) > 8 * self._order["most"]:
                raise RuntimeError("the program ended" if not chunk else "the result is too long")
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        if "raised" in answer:
            raise _exception(answer["raised"], answer["text"])
        return decode(answer["value"], self)

    def end(self) -> Any:
        """Close the pipes: the program has nothing more to read, and ends."""
        os.close(self._asks)
        os.close(self._answers)


def _exception(names: Any, text: Any) -> Any:
    """Return the first of ``names`` that is a built-in exception: those of ``unittest`` skip or stop a test."""
    for name in names:
        kind = getattr(builtins, name, None) if isinstance(name, str) else None
        # An iteration of the test's must not end by it.
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, StopIteration):
            error = kind.__new__(kind)
            error.args = (str(text),)
            return error
    return RuntimeError(f"{names}: {text}")


class Remote:
    """An object of the program, as a test sees it. Its equality is decided here, by identity."""

    def __init__(self, ref: Any, served: Any) -> None:
        self._ref, self._served = ref, served

    def __getattr__(self, name: Any) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # protocols of libraries trust what these say
        return self._served.ask("getattr", self._ref, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._served.ask("call", self._ref, *args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self._served.ask("getitem", self._ref, key)

    def __len__(self) -> int:
        return int(self._served.ask("len", self._ref))

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Any:
        iterator = self._served.ask("iter", self._ref)
        while (value := self._served.ask("next", iterator._ref)) is not _MISSING:
            yield value

    def __repr__(self) -> str:
        return str(self._served.ask("repr", self._ref))


def _serve(asks: Any, answers: Any) -> Any:
    """Do what the test asks, in the process of the program, until there are no more requests."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    lines = os.fdopen(asks, "rb")
    names: dict[str, Any] = {"__name__": "program"}
    objects: list[Any] = []
    broken: BaseException | None = None
    try:
        program, cpu_s = json.loads(lines.readline())
        _limit(cpu_s)
        exec(compile(program, "program.py", "exec"), names)
    except BaseException as error:
        broken = error
    does: dict[str, Any] = {
        "name": lambda _, name: names.get(name, _MISSING),
        "getattr": getattr,
        "call": operator.call,
        "getitem": operator.getitem,
        "len": len,
        "iter": iter,
        "next": lambda iterator: next(iterator, _MISSING),
        "repr": repr,
    }
    for line in lines:
        try:
            if broken is not None:
                raise broken
            what, ref, args, kwargs = json.loads(line)
            value = does[what](None if ref is None else objects[ref], *decode(args, objects), **decode(kwargs, objects))
            answer = {"value": encode(value, objects)}
        except BaseException as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            answer = {"raised": kinds, "text": _error_text(error).partition(": ")[2]}
        _write_all(answers, answer)
    os._exit(0)


# ------------------------------------------------------------------ plain data, as JSON

_MISSING = object()


def _pairs(mapping: Any) -> Any:
    return [list(pair) for pair in mapping.items()]


#: By type: the function that encodes a value, and the one that decodes it. Decoding runs no code of the other side.
_CODECS: dict[type, tuple[Any, Any]] = {
    tuple: (list, tuple),
    set: (list, set),
    frozenset: (list, frozenset),
    bytes: (bytes.hex, bytes.fromhex),
    bytearray: (bytearray.hex, bytearray.fromhex),
    complex: (lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    range: (lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    dict: (_pairs, dict),
    collections.OrderedDict: (_pairs, collections.OrderedDict),
    collections.Counter: (_pairs, lambda pairs: collections.Counter(dict(pairs))),
    collections.defaultdict: (_pairs, lambda pairs: collections.defaultdict(None, pairs)),
    collections.deque: (list, collections.deque),
    decimal.Decimal: (str, decimal.Decimal),
    fractions.Fraction: (str, fractions.Fraction),
    datetime.date: (datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.datetime: (datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.timedelta: (lambda value: value.total_seconds(), lambda seconds: datetime.timedelta(seconds=seconds)),
}
_READ = {kind.__name__: read for kind, (_, read) in _CODECS.items()}


def encode(value: Any, objects: Any = None) -> Any:
    """Return ``value`` as JSON; an object is stored in ``objects`` and sent as its index there, or is a TypeError."""
    kind = type(value)
    if value is _MISSING:
        return {"missing": None}
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [encode(item, objects) for item in value]
    if kind in _CODECS:
        return {kind.__name__: encode(_CODECS[kind][0](value), objects)}
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufcSU":
        return {"numpy": [encode(value.tolist(), objects), value.dtype.str, kind.__name__ == "ndarray"]}
    if objects is None:
        if kind is Remote:
            return {"ref": value._ref}
        raise TypeError(f"a {kind.__name__} cannot be given to a program in another process")
    objects.append(value)
    return {"ref": len(objects) - 1}


def decode(value: Any, home: Any) -> Any:
    """Decode :func:`encode`'s output. ``home`` is where objects that are no plain data are: a list, or the program."""
    if isinstance(value, list):
        return [decode(item, home) for item in value]
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    if name == "ref":
        return home[content] if isinstance(home, list) else Remote(content, home)
    if name == "missing":
        return _MISSING
    if name == "numpy":
        import numpy

        array = numpy.array(decode(content[0], home), dtype=numpy.dtype(content[1]))
        return array if content[2] else array[()]
    return _READ[name](decode(content, home))
