"""How much a run may use."""

from __future__ import annotations

from dataclasses import dataclass, fields

_MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What code may use; what it gets when it wants more is in its result, in words.

    Args:
        cpu_s: CPU seconds of one process. This is the limit that a loop meets: unlike ``wall_s`` it hardly depends on
            what else the machine does.
        wall_s: Seconds from start to end, of all processes. It stops what waits without computing.
        memory_mb: MiB of address space of one process, and of memory of all of them together (see docs/sandbox.md).
        processes: How many processes and threads there may be at once.
        disk_mb: MiB of all files together, and of each.
        open_files: How many files a process may have open.
        output_bytes: Bytes of standard output, and of standard error, before the run is stopped.

    Raises:
        ValueError: A limit that is not a number of at least its least value.
    """

    cpu_s: int = 5
    wall_s: float = 10.0
    memory_mb: int = 512
    processes: int = 16
    disk_mb: int = 16
    open_files: int = 128
    output_bytes: int = 65_536

    def __post_init__(self) -> None:
        # Python itself needs some 40 MiB of address space, its standard streams and a few files.
        least = {"memory_mb": 64, "open_files": 16, "wall_s": 0.1}
        for field in fields(self):
            value, at_least = getattr(self, field.name), least.get(field.name, 1)
            kinds = (int, float) if field.name == "wall_s" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not at_least <= value < 1 << 31:
                kind = "a number" if field.name == "wall_s" else "an integer"
                raise ValueError(f"Limits: {field.name} must be {kind} of at least {at_least}, not {value!r}")

    def rlimits(self) -> dict[str, tuple[int, int]]:
        """The part that the kernel's ``RLIMIT_*`` keep, as (soft, hard) by name."""
        memory, disk = self.memory_mb * _MIB, self.disk_mb * _MIB
        return {
            "RLIMIT_CPU": (self.cpu_s, self.cpu_s + 1),  # the first is a signal that code may ignore, the second is not
            "RLIMIT_AS": (memory, memory),
            "RLIMIT_NPROC": (self.processes, self.processes),
            "RLIMIT_FSIZE": (disk, disk),
            "RLIMIT_NOFILE": (self.open_files, self.open_files),
            "RLIMIT_STACK": (8 * _MIB, 8 * _MIB),
            "RLIMIT_CORE": (0, 0),
            "RLIMIT_MEMLOCK": (0, 0),
            "RLIMIT_MSGQUEUE": (0, 0),
            "RLIMIT_SIGPENDING": (256, 256),
            "RLIMIT_NICE": (0, 0),
            "RLIMIT_RTPRIO": (0, 0),
        }
