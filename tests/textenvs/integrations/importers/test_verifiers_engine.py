"""The engine that serves a verifiers environment: made once and whole, ended with the process. With a fake one."""

import contextlib
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import textenvs.integrations.importers.verifiers as bridge
from textenvs.gateway.server import gateway
from textenvs.gateway.session import Session


class Served:
    """A verifiers environment, as far as it is served."""

    made, open, ends = 0, 0, 0
    breaks = False

    def __init__(self):
        Served.made += 1
        time.sleep(0.05)  # so that who comes meanwhile comes too early
        self.taskset = type("Endless", (), {"bounded": False, "__iter__": lambda self: iter(())})()

    @contextlib.asynccontextmanager
    async def serving(self):
        if Served.breaks:
            raise OSError("no port is free")
        Served.open += 1
        yield
        Served.open -= 1
        Served.ends += 1


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    for name in ("made", "open", "ends"):
        monkeypatch.setattr(Served, name, 0)
    monkeypatch.setattr(Served, "breaks", False)
    monkeypatch.setattr(bridge, "_engines", {})
    vf = SimpleNamespace(load_environment=lambda config: Served())
    monkeypatch.setattr(bridge, "_verifiers", lambda: (vf, lambda config: config))
    yield
    for engine in bridge._engines.values():
        engine.close()


def test_environments_made_at_once_share_one_engine():
    together = threading.Barrier(8)

    def make(_):
        together.wait()
        return bridge.Verifiers("anything")

    with ThreadPoolExecutor(8) as threads:
        assert len(list(threads.map(make, range(8)))) == 8
    assert (Served.made, Served.open) == (1, 1)
    bridge.Verifiers("another")
    assert Served.made == 2


def test_unserved_engine_is_retried_cleanly():
    Served.breaks = True
    for _ in range(2):
        with pytest.raises(OSError, match="no port"):
            bridge.Verifiers("anything")
    assert (Served.made, bridge._engines) == (2, {})
    Served.breaks = False
    bridge.Verifiers("anything")
    assert Served.open == 1


def test_a_taskset_that_broke_off_is_read_anew(monkeypatch):
    """An iterator that raised has ended: what was read until then would have been taken for all the tasks."""
    errors = [OSError("the Hub is away")]

    class Tasks:
        bounded = True

        def __iter__(self):
            yield "first"
            if errors:
                raise errors.pop()
            yield "second"

    monkeypatch.setattr(Served, "__init__", lambda self: setattr(self, "taskset", Tasks()))
    with pytest.raises(OSError, match="the Hub is away"):
        bridge.Verifiers("anything")
    assert bridge.Verifiers("anything").tasks.size == 2
    assert bridge.Verifiers("anything").tasks.size == 2


def test_closing_an_engine_ends_all_of_it():
    bridge.Verifiers("anything")
    (engine,) = bridge._engines.values()
    channel = gateway().open(Session())
    engine.sessions.add(channel.key)
    engine.close()
    engine.close()
    assert (Served.open, Served.ends) == (0, 1)
    assert channel.session.ended


def test_engines_end_with_the_process():
    program = """
        import contextlib
        from types import SimpleNamespace
        import textenvs.integrations.importers.verifiers as bridge

        class Tasks(list):
            bounded = True

        class Served:
            taskset = Tasks([1])

            @contextlib.asynccontextmanager
            async def serving(self):
                yield
                print("ended", flush=True)

        vf = SimpleNamespace(load_environment=lambda config: Served())
        bridge._verifiers = lambda: (vf, lambda config: config)
        bridge.Verifiers("one"), bridge.Verifiers("two")
        print("over", flush=True)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (ran.stdout.split(), ran.stderr) == (["over", "ended", "ended"], "")
