"""Correctness and speed on one GPU, in one command; also on a CPU, at toy sizes, to see that it runs.

    python -m benchmarks.gpu [--only engine,ipc,...] [--minutes 9] [--out gpu-results.jsonl] [--again]
    python -m benchmarks.gpu --list        the claims about GPUs, and what was measured of them

The parts (:data:`PARTS`) run in order of what they prove. Each is a process of its own, takes two minutes at most, and
appends one line of JSON for each result at once, with the device, the versions, the commit and this command; so a part
that fails, runs out of memory or hangs costs its own results only. The same command continues: a measurement that has
its result of this device and this code, in ``--out`` or in ``benchmarks/results``, is not repeated. See
``benchmarks/gpu/README.md`` for a machine without a network, and for what each part needs.

Exit code: 0 if everything was measured and is right, 1 if something failed or is wrong, 2 for a wrong command, 3 if
nothing is wrong but something was not measured, because it cannot be here (no vLLM, ...) or time ran out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import results
from benchmarks.gpu.claims import listing

#: The parts in the order they run, with the seconds that each may take.
PARTS = {
    "engine": 100,
    "kernels": 100,
    "ipc": 40,
    "vllm_update": 110,
    "curve": 115,
    "curve_vllm": 115,
    "decode": 90,
    "vllm_decode": 115,
    "parity": 60,
    "mfu": 115,
    "tree": 100,
    "trl": 115,
    "sleep": 30,
    "offload": 40,
    "forks": 60,
    "memory": 60,
}
_GRACE_S = 15.0  # for a part to notice that its time is up
_LEAST_S = 10.0  # below, no part is started
_NOT_MEASURED = 3
_ENDED = {"what": "ended"}  # the state of a part that ended by itself


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by name (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where torch sees it, else cpu")
    parser.add_argument("--shapes", help="models; default: 0.5b,1.5b on cuda, toy on the CPU")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("gpu-results.jsonl"), help="appended to")
    parser.add_argument("--vllm", metavar="PYTHON", help="a Python with vLLM; default: this one, if it has vLLM")
    parser.add_argument("--again", action="store_true", help="measure also what has its results")
    parser.add_argument("--list", action="store_true", help="print the claims, and what was measured; run nothing")
    parser.add_argument("--after", default="", help=argparse.SUPPRESS)
    parser.add_argument("--child", type=float, metavar="SECONDS", help=argparse.SUPPRESS)
    parser.add_argument("--state", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--command", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    parts = options.only.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"--only: there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    if not options.minutes > 0:
        parser.error(f"--minutes must be above 0, not {options.minutes}")
    if options.list:
        print(listing(list(results.read(results.files(options.out)))))
        return 0
    if options.child is not None:
        return child(parts[0], options)
    command = options.command or shlex.join(
        ["python", "-m", "benchmarks.gpu", *(sys.argv[1:] if arguments is None else arguments)]
    )
    passed = [f"--{name}={value}" for name in ("device", "shapes", "vllm") if (value := getattr(options, name))]
    passed += [f"--after={results.now()}"] if options.again else []
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def start(part: str, seconds: float, state: Path) -> list[str]:
        words = [f"--only={part}", f"--child={seconds:.1f}", f"--out={options.out}", f"--command={command}", *passed]
        return [sys.executable, "-m", "benchmarks.gpu", f"--state={state}", *words]

    return run_parts(parts, start, 60 * options.minutes, options.out, command)


def run_parts(
    parts: Sequence[str], start: Callable[[str, float, Path], list[str]], seconds: float, out: Path, command: str
) -> int:
    """Run each part in a process, one after another.

    A part that dies in a measurement is started again for the others, while its time lasts.

    Args:
        parts: By name.
        start: The words of the command that runs a part for so many seconds; it writes what it measures to a file.
        seconds: For all parts.
        out: Where failures are noted.
        command: Goes with them.

    Returns:
        The exit code; see the module.
    """
    python_path = os.pathsep.join([str(results.ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": python_path}
    until = time.monotonic() + seconds
    failed: dict[str, str] = {}
    missing: list[str] = []
    with tempfile.TemporaryDirectory(prefix="benchmarks-gpu-") as folder:
        state = Path(folder) / "state.json"
        for part in parts:
            end = min(time.monotonic() + PARTS.get(part, 60), until)
            if end - time.monotonic() < min(_LEAST_S, seconds / 2):
                missing.append(f"{part} (no time left)")
                continue
            again = True
            while again and (share := end - time.monotonic()) > 0:
                print(f"{part}: {share:.0f} s", file=sys.stderr, flush=True)
                state.unlink(missing_ok=True)
                code = _run(start(part, share, state), environment, share + _GRACE_S)
                again = False
                if code == _NOT_MEASURED:
                    missing.append(part)
                elif code != 0:
                    failure = f"exit code {code}" if code is not None else f"killed after {share + _GRACE_S:.0f} s"
                    failed.setdefault(part, failure)
                    again = _note_death(out, part, failure, command, state)
    for part, failure in failed.items():
        print(f"{part} failed: {failure}", file=sys.stderr)
    if missing:
        print(f"not measured, or in part: {', '.join(missing)}; the same command continues", file=sys.stderr)
    return 1 if failed else _NOT_MEASURED if missing else 0


def _run(words: Sequence[str], environment: dict[str, str], timeout: float) -> int | None:
    """Return the exit code of a process; ``None`` if it had to be killed. Nothing that it started is left."""
    process = subprocess.Popen(words, env=environment, start_new_session=True)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _note_death(out: Path, part: str, failure: str, command: str, state: Path) -> bool:
    """Note a part that ended badly; return whether it died in a measurement, which then counts as finished."""
    try:
        running = json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        running = None
    if running == _ENDED:  # its own results say what is wrong
        return False
    line = {"part": part, **(running or {}).get("what", {}), "failed": failure, "command": command}
    if running is not None:
        line |= {**running["about"], "finished": running["what"]}
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return running is not None


def child(part: str, options: argparse.Namespace) -> int:
    """Run one part, in this process."""
    began = time.monotonic()
    until = began + options.child
    import torch

    from benchmarks.gpu.job import FULL, TOY, Job, about
    from benchmarks.gpu.shapes import SHAPES

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    names = tuple((options.shapes or ("0.5b,1.5b" if device == "cuda" else "toy")).split(","))
    if unknown := [name for name in names if name not in SHAPES]:
        print(f"--shapes: there is no shape {unknown[0]!r}; there are {', '.join(SHAPES)}", file=sys.stderr)
        return 2
    if device == "cuda":
        if not torch.cuda.is_available():
            print("--device=cuda, but torch sees no GPU here; --device=cpu runs toy sizes", file=sys.stderr)
            return 2
        torch.cuda.set_device(0)
    sizes, machine = FULL if device == "cuda" else TOY, about(torch.device(device))
    machine_and_code = (machine["device"], machine["source"])
    results_so_far = list(results.read(results.files(options.out)))
    lines = [line for line in results_so_far if line.get("time", "") >= options.after]
    done = results.finished(lines, *machine_and_code)
    state = State(options.state, machine)
    if results.key_of(part, None) in done:
        print(f"{part}: has its results of this device and this code; --again repeats it", file=sys.stderr)
        state.ended()
        own = (
            line
            for line in lines
            if (line.get("device"), line.get("source")) == machine_and_code and line["part"] == part
        )
        return 1 if any(map(results.faulty, own)) else 0
    vllm = options.vllm or (sys.executable if importlib.util.find_spec("vllm") is not None else None)
    with options.out.open("a", encoding="utf-8") as file:
        job = Job(
            part,
            torch.device(device),
            names,
            sizes,
            until,
            file,
            options.command or "",
            vllm,
            done,
            results.durations(results_so_far, machine["device"]),
            state.note,
        )
        importlib.import_module(f"benchmarks.gpu.{part}").run(job)
        if not job.missing:
            job.finish(None, time.monotonic() - began)
    state.ended()
    return 1 if job.faults else _NOT_MEASURED if job.missing else 0


class State:
    """The measurement that runs, in a file that outlives this process."""

    def __init__(self, path: Path | None, machine: dict[str, Any]) -> None:
        self._path, self._machine = path, machine
        self._running: list[dict[str, Any]] = []

    def note(self, what: dict[str, Any] | None) -> None:
        """Note that a measurement begins, or with ``None`` that the last one has ended."""
        if what is None:
            self._running.pop()
        else:
            self._running.append(what)
        if self._running:
            self._write({"what": self._running[-1], "about": {**self._machine, "time": results.now()}})
        elif self._path is not None:
            self._path.unlink(missing_ok=True)

    def ended(self) -> None:
        """Note that the part ended by itself."""
        self._write(_ENDED)

    def _write(self, state: dict[str, Any]) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps(state), encoding="utf-8")
