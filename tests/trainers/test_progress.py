"""The line on what is being done: what it says, and that it comes where nothing else does."""

import io
import re
import threading

import pytest
from rich.console import Console
from simulated_time import Clock

from trainers.report.console import ConsoleLogger
from trainers.report.progress import Progress, duration, resident_bytes


def progress(lines, clock, every_s=10.0):
    made = Progress(lines.append, every_s, clock, lambda: "612 MiB")
    made.close()  # its thread: the tests say themselves when time has passed
    return made


def test_line_has_done_rate_left_and_memory():
    clock = Clock()
    display = progress([], clock)
    with display.phase("demonstrations", 3840, "played") as phase:
        assert display.line == "demonstrations: 0/3,840 played, 0 s, 612 MiB"
        clock.now = 5.0
        phase.advance(1200)
        assert display.line == "demonstrations: 1,200/3,840 played, 240/s, 11 s left, 612 MiB"
        with display.phase("loading the model"):
            clock.now = 25.0
            assert display.line == "loading the model: 20 s, 612 MiB"
        phase.advance(2640, "loss 0.1")
        assert display.line == "demonstrations: 3,840/3,840 played, 154/s, loss 0.1, 612 MiB"
    assert display.line == ""


def test_slow_steps_show_seconds_per_step():
    clock = Clock()
    display = progress([], clock)
    with display.phase("warm start", 16, "steps") as phase:
        phase.advance()
        clock.now = 20.0
        assert display.line == "warm start: 1/16 steps, 20 s each, 5 min 0 s left, 612 MiB"


def test_counts_come_from_a_callback():
    clock, collected = Clock(), [0]
    display = progress([], clock)
    with display.phase("collecting", 4, "episodes", lambda: collected[0]):
        clock.now, collected[0] = 1.0, 7  # a group more than the batch needs
        assert display.line.startswith("collecting: 4/4 episodes, 7/s")


def test_progress_lines_fill_silence():
    clock, lines = Clock(), []
    display = progress(lines, clock)
    with display.phase("setup"):
        for now, count in ((9.9, 0), (10.0, 1), (19.0, 1), (20.0, 2)):
            clock.now = now
            display.due()
            assert len(lines) == count
        clock.now = 29.0
        display.spoke()
        clock.now = 38.0
        display.due()
        assert len(lines) == 2, "a line of the run's own was shown 9 s ago"
    clock.now = 100.0
    display.due()
    assert len(lines) == 2, "nothing is being done"


@pytest.mark.timeout(60)
def test_progress_lines_appear_while_work_blocks():
    spoken = threading.Event()
    display = Progress(lambda line: spoken.set(), every_s=0.05)
    with display.phase("starting the engine"):
        assert spoken.wait(50)
    display.close()


def test_consoles_show_phases_with_and_without_terminal():
    def printed(**options):
        file = io.StringIO()
        logger = ConsoleLogger(20, Console(file=file, width=160, color_system=None, **options))
        with logger.progress.phase("learning [b]", 2, "steps") as phase:
            phase.advance()
            logger.progress._last -= 11.0
            logger.progress.due()
            logger.close()
        return file.getvalue()

    assert re.search(r"learning \[b\]: 1/2 steps, .*(MiB|GiB)", printed(force_terminal=True))
    assert re.fullmatch(r"learning \[b\]: 1/2 steps, .*(MiB|GiB)\n", printed())


def test_durations_are_short():
    assert [duration(seconds) for seconds in (0.4, 59.4, 61, 3600, 7505)] == [
        "0 s", "59 s", "1 min 1 s", "1 h 0 min", "2 h 5 min",
    ]  # fmt: skip


def test_memory_is_of_this_process():
    before = resident_bytes()
    block = bytearray(64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    assert resident_bytes() - before > 32 * 2**20
