"""The system call filter: calls that code in the box may not make, whatever its user may.

Namespaces and limits leave ways around them that only a filter closes: memory that no ``RLIMIT`` counts (``memfd``,
System V, the buffers of TCP, which grow by themselves), new namespaces with new powers, sockets of families that no
network namespace holds (``vsock``), the limits of other processes (``prlimit64``), and the parts of the kernel that
have been broken most often (``bpf``, ``io_uring``, ``userfaultfd``, ``keyctl``).

A refused call fails with EPERM, so that a program sees an ordinary error. The format of the filter, a classic BPF
program, is in ``linux/seccomp.h`` and ``linux/bpf_common.h``, the numbers in ``asm/unistd_64.h``.
"""

from __future__ import annotations

import errno
import struct
from pathlib import Path

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
# Offsets in struct seccomp_data; arguments are 64 bits, and their low half comes first on both machines.
_NUMBER, _ARCHITECTURE = 0, 4
_ARGUMENTS = (16, 24, 32)

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # x86_64 only: the same calls under other numbers

# clone() flags that make a new namespace: mnt, cgroup, uts, ipc, user, pid, net.
_NEW_NAMESPACES = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000
_UNIX, _IPV4, _IPV6 = 1, 2, 10
# setsockopt(SOL_SOCKET, ...): SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE.
_SOL_SOCKET, _BUFFER_SIZES = 1, (7, 8, 32, 33)

_TABLE = Path(__file__).with_name("refused_calls.txt").read_text("utf-8")
#: Calls that are refused whatever their arguments: name, and the number on each of the machines.
_REFUSED = {
    name: tuple(None if number == "-" else int(number) for number in numbers)
    for name, *numbers in (line.split() for line in _TABLE.splitlines() if line and line[0] != "#")
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SOCKET = (41, 198)
_SETSOCKOPT = (54, 208)
_PRLIMIT64 = (302, 261)

MACHINES: tuple[str, ...] = tuple(_AUDIT)


def _search(numbers: list[int], end: int) -> list[tuple[int, int, int, int]]:
    """Return a binary search among sorted numbers: it goes to ``end`` for one of these, and past it for others.

    When a filter is set, the kernel runs it for every system call number, which takes longer with a list.
    """
    if len(numbers) <= 3:
        last = len(numbers) - 1
        return [(_JUMP_EQUAL, end - i - 1, end - i if i == last else 0, number) for i, number in enumerate(numbers)]
    half = len(numbers) // 2
    below = _search(numbers[:half], end - 1)
    return [(_JUMP_AT_LEAST, len(below), 0, numbers[half]), *below, *_search(numbers[half:], end - 1 - len(below))]


def build(machine: str, *, sockets: bool = False) -> bytes:
    """Build the filter for one of :data:`MACHINES` in the kernel's format: 8 bytes an instruction.

    ``sockets`` permits IP, for code whose network namespace has nothing but itself; else only pairs of Unix sockets
    and the like are left.
    """
    column = MACHINES.index(machine)
    refuse = _ERRNO | errno.EPERM
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),  # 32-bit calls have other numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        program += [(_JUMP_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    listed = sorted(number for numbers in _REFUSED.values() if (number := numbers[column]) is not None)
    search = _search(listed, len(_search(listed, 0)))
    program += [*search, (_RETURN, 0, 0, refuse)]
    # The C library tries clone3 first, whose flags a filter cannot read, and falls back to clone.
    program += [(_JUMP_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    # Rules on arguments. A jump says how many instructions to skip where it matches, and where it does not.
    first, second, third = ((_LOAD, 0, 0, offset) for offset in _ARGUMENTS)
    refused = (_RETURN, 0, 0, refuse)
    families = (_UNIX, _IPV4, _IPV6) if sockets else (_UNIX,)
    allowed = [(_JUMP_EQUAL, len(families) - i, 0, family) for i, family in enumerate(families)]
    sizes = [(_JUMP_EQUAL, 3 - i, i == 3, value) for i, value in enumerate(_BUFFER_SIZES)]
    for pair, body in (
        (_CLONE, [first, (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES), refused]),
        (_SOCKET, [first, *allowed, (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT)]),
        (_SETSOCKOPT, [second, (_JUMP_EQUAL, 0, 6, _SOL_SOCKET), third, *sizes, refused]),
        # Process 1 of the box is the same user's where the host process is not root's.
        (_PRLIMIT64, [first, (_JUMP_EQUAL, 1, 0, 0), refused]),
    ):
        program += [(_JUMP_EQUAL, 0, len(body) + 1, pair[column]), *body, (_LOAD, 0, 0, _NUMBER)]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
