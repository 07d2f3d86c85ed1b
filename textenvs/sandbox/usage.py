"""Memory usage of a process and its descendants, from ``/proc``."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def exceeds(root: int, most: int) -> bool:
    """Return whether ``root`` and its descendants use more than ``most`` bytes; a shared page counts once."""
    pids = _tree(root)
    # The cheap upper bound first: every process counts all its resident pages.
    return sum(_statm(pid)[0] for pid in pids) * _PAGE > most and sum(map(_proportional, pids)) > most


def _tree(root: int) -> list[int]:
    """List ``root`` and its descendants; processes that end meanwhile are omitted."""
    pids = [root]
    children: dict[int, list[int]] | None = None
    for pid in pids:  # grows while it is read
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                pids.extend(map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()))
        except FileNotFoundError:
            if os.path.isdir(f"/proc/{pid}"):  # a kernel without CONFIG_PROC_CHILDREN: from all processes' parents
                children = children if children is not None else _children_of_all()
                pids.extend(children.get(pid, ()))
        except OSError:
            continue
    return list(dict.fromkeys(pids))


def _statm(pid: int) -> tuple[int, int]:
    """Return the number of resident pages, and how many of these are shared with a file."""
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
    pages, of_files = _statm(pid)  # the kernel does not tell who shares
    return (pages - of_files) * _PAGE


def _children_of_all() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text(errors="replace")
        except OSError:
            continue
        # The second field is the program's name in parentheses, and may hold any bytes.
        children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    return children
