"""Correctness and speed on one GPU, in one command; also on a CPU, at toy sizes, to see that it runs.

    python -m benchmarks.gpu [--only parity,memory,decode,mfu,tree,forks,weights,trl] [--device cuda]
        [--shapes 0.5b,1.5b,4b] [--minutes 9] [--out gpu-results.jsonl]

It needs torch, transformers and NumPy (the part ``trl``: Gymnasium and TRL too), and nothing installed from here.
Each part is a process of its own, gets its share of the time that is left, and appends one line of JSON for each
result, with the device, the versions and this command; so a part that fails, runs out of memory or hangs costs its own
results only.

Exit code: 0 if all parts ended well, 1 if one failed or found something wrong, 2 for a wrong command.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

#: The parts in the order they run, with their shares of the time.
PARTS = {"parity": 2.0, "memory": 1.0, "decode": 2.0, "mfu": 4.0, "tree": 3.0, "forks": 1.0, "weights": 1.0, "trl": 2.0}
_GRACE_S = 20.0  # for a part to notice that its time is up


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by name (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where torch sees it, else cpu")
    parser.add_argument("--shapes", help="models; default: 0.5b,1.5b,4b on cuda, toy on the CPU")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("gpu-results.jsonl"), help="appended to")
    parser.add_argument("--child", type=float, metavar="SECONDS", help=argparse.SUPPRESS)
    parser.add_argument("--command", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    parts = options.only.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"--only: there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    if not options.minutes > 0:
        parser.error(f"--minutes must be above 0, not {options.minutes}")
    if options.child is not None:
        return child(parts[0], options.device, options.shapes, options.child, options.out, options.command)
    command = options.command or shlex.join(
        ["python", "-m", "benchmarks.gpu", *(sys.argv[1:] if arguments is None else arguments)]
    )
    passed = [f"--{name}={value}" for name in ("device", "shapes") if (value := getattr(options, name))]
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def start(part: str, seconds: float) -> list[str]:
        words = [f"--only={part}", f"--child={seconds:.1f}", f"--out={options.out}", f"--command={command}", *passed]
        return [sys.executable, "-m", "benchmarks.gpu", *words]

    return run_parts(parts, start, 60 * options.minutes, options.out, command)


def run_parts(
    parts: Sequence[str], start: Callable[[str, float], list[str]], seconds: float, out: Path, command: str
) -> int:
    """Run each part in a process, one after another.

    Args:
        parts: By name.
        start: The words of the command that runs a part for so many seconds.
        seconds: For all parts.
        out: Where failures are noted.
        command: Goes with them.

    Returns:
        0, or 1 if a part failed.
    """
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    until = time.monotonic() + seconds
    failed: dict[str, str] = {}
    for number, part in enumerate(parts):
        remaining = until - time.monotonic()
        share = max(0.0, remaining) * PARTS.get(part, 1.0) / sum(PARTS.get(other, 1.0) for other in parts[number:])
        print(f"{part}: {share:.0f} s", file=sys.stderr, flush=True)
        try:
            done = subprocess.run(start(part, share), env=environment, timeout=share + _GRACE_S, check=False)
            failure = None if done.returncode == 0 else f"exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            failure = f"killed after {share + _GRACE_S:.0f} s"
        if failure is not None:
            failed[part] = failure
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"part": part, "failed": failure, "command": command}) + "\n")
    for part, failure in failed.items():
        print(f"{part} failed: {failure}", file=sys.stderr)
    return 1 if failed else 0


def child(part: str, device: str | None, shapes: str | None, seconds: float, out: Path, command: str) -> int:
    """Run one part, in this process."""
    until = time.monotonic() + seconds
    import torch

    from benchmarks.gpu.job import FULL, TOY, Job
    from benchmarks.gpu.shapes import SHAPES

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    names = tuple((shapes or ("0.5b,1.5b,4b" if device == "cuda" else "toy")).split(","))
    if unknown := [name for name in names if name not in SHAPES]:
        print(f"--shapes: there is no shape {unknown[0]!r}; there are {', '.join(SHAPES)}", file=sys.stderr)
        return 2
    if device == "cuda":
        if not torch.cuda.is_available():
            print("--device=cuda, but torch sees no GPU here; --device=cpu runs toy sizes", file=sys.stderr)
            return 2
        torch.cuda.set_device(0)
    sizes = FULL if device == "cuda" else TOY
    with out.open("a", encoding="utf-8") as file:
        job = Job(part, torch.device(device), names, sizes, until, file, command)
        importlib.import_module(f"benchmarks.gpu.{part}").run(job)
    return 1 if job.faults else 0
