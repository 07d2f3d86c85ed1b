"""The soak of benchmarks/serve_soak.py, in small."""

import pytest

from benchmarks import serve_soak


@pytest.mark.slow  # the parts, each by itself, are in test_serve_remote_faults.py and test_serve_host.py
def test_killed_clients_leave_no_session(monkeypatch):
    monkeypatch.setattr(serve_soak, "IDLE_S", 1.5)
    figures = serve_soak.Soak(sessions=8, processes=2, episodes=30, kill_every=10).run()
    assert figures["episodes"] >= 30
    assert figures["different"] == 0
    assert figures["clients_killed"] > 0
    assert figures["sessions_left"] == 0
    assert figures["ended"]["idle"] > 0
    assert set(figures["errors"]) <= {"unknown_session"}
    assert figures["server_status"] == 0
