"""How much memory a process and all below it use, from ``/proc``."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree(root: int) -> list[int]:
    """``root`` and every process below it; processes that end meanwhile are left out."""
    found = [root]
    below: dict[int, list[int]] | None = None
    for pid in found:  # grows while it is read
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
            for task in tasks:
                found.extend(map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()))
        except FileNotFoundError:
            if not os.path.isdir(f"/proc/{pid}"):
                continue
            # A kernel without CONFIG_PROC_CHILDREN: from the parents of all processes.
            below = below if below is not None else _children_of_all()
            found.extend(below.get(pid, ()))
        except OSError:
            continue
    return list(dict.fromkeys(found))


def memory(root: int) -> int:
    """Bytes that ``root`` and all below it hold; a page that several share counts once.

    Where the kernel does not tell who shares (``smaps_rollup`` may not be read), pages that are not shared with a file
    are counted for every process.
    """
    pids = tree(root)
    return sum(map(_proportional, pids))


def resident(root: int) -> int:
    """An upper bound of :func:`memory` that costs little: every process counts all its resident pages."""
    return sum(pages * _PAGE for pages, _ in map(_statm, tree(root)))


def _statm(pid: int) -> tuple[int, int]:
    try:
        numbers = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0, 0
    return int(numbers[1]), int(numbers[2])


def _proportional(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    pages, of_files = _statm(pid)
    return (pages - of_files) * _PAGE


def _children_of_all() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text(errors="replace")
            except OSError:
                continue
            # The second field is the program's name in parentheses, and may hold any bytes.
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    return children
