"""The soak of benchmarks/serve_soak.py, in small."""

from benchmarks.serve_soak import Soak


def test_killed_clients_leave_no_session_and_cross_no_reply():
    figures = Soak(sessions=8, processes=2, episodes=40, kill_every=12).run()
    assert figures["episodes"] >= 40
    assert figures["different"] == 0
    assert figures["clients_killed"] > 0
    assert figures["sessions_left"] == 0
    assert figures["ended"]["idle"] > 0
    assert set(figures["errors"]) <= {"unknown_session"}
    assert figures["server_status"] == 0
