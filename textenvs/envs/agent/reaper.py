"""Kill the programs of a process that has died: a small program that waits for the end of its standard input.

Each line is JSON: ``{"group": id, "key": text, "folder": path}`` of a program that was started, or ``{"ended": id}``.
It imports only modules that load fast, and is run without site packages.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def kill_marked(key: str) -> None:
    """Kill the processes that were started with a session's key, also those that left its process group."""
    mark = f"OPENAI_API_KEY={key}\0".encode()
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # no such file system here
        return
    for number in numbers:
        try:
            with open(f"/proc/{number}/environ", "rb") as file:
                if mark in file.read() + b"\0":
                    os.kill(number, signal.SIGKILL)
        except OSError:  # it has ended, or is another user's
            continue


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole foreground group
    programs: dict[int, dict[str, str]] = {}
    for line in sys.stdin:
        entry = json.loads(line)
        if "ended" in entry:
            programs.pop(entry["ended"], None)
        else:
            programs[entry.pop("group")] = entry
    for group, program in programs.items():
        kill_group(group)
        kill_marked(program["key"])
        import shutil

        shutil.rmtree(program["folder"], ignore_errors=True)


if __name__ == "__main__":
    main()
