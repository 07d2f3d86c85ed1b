"""The predicted utilisation of a layout, against a simulation of every episode, score and update."""

from __future__ import annotations

import heapq
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.cluster.utilisation import Layout, Work, best_split, busy, layouts, main, measured, predict

EPISODES = 600


def simulated(work: Work, layout: Layout) -> tuple[float, dict[int, float]]:
    """An iteration, event by event: its seconds, and the busy seconds of each GPU.

    GPUs take one piece of work at a time. An episode's pieces of generating are done first come, first served; where
    ``first_end`` is above 0, all episodes are generated side by side and end evenly after it. A score is one piece.
    """
    free = [(0.0, gpu) for gpu in sorted(layout.rollout | layout.reward)]
    busy = dict.fromkeys(sorted(layout.rollout | layout.reward | layout.learner), 0.0)
    piece, score = work.rollout / EPISODES, work.reward / EPISODES
    shared = layout.rollout == layout.reward
    ends: list[float] = []

    def do(servers: list[tuple[float, int]], at: float, cost: float) -> float:
        when, gpu = heapq.heappop(servers)
        end = max(when, at) + cost
        busy[gpu] += cost
        heapq.heappush(servers, (end, gpu))
        return end

    if shared:
        heapq.heapify(free)
        asked: list[float] = []
        for _ in range(EPISODES):
            asked.append(do(free, 0.0, piece))
            while asked and asked[0] <= free[0][0]:  # a score that is due goes before the next episode
                ends.append(do(free, asked.pop(0), score))
        ends += [do(free, at, score) for at in asked]
    else:
        alone = work.rollout / len(layout.rollout)
        for gpu in layout.rollout:
            busy[gpu] += alone
        scorers = [each for each in free if each[1] in layout.reward]
        for number in range(EPISODES):
            at = alone * (work.first_end + (1 - work.first_end) * (number + 1) / EPISODES)
            ends.append(max(at, do(scorers, at, score)))
    for gpu in layout.learner:
        busy[gpu] += work.update / len(layout.learner)
    pause = work.switch_s if layout.learner & (layout.rollout | layout.reward) else 0.0
    return max(ends) + pause + work.update / len(layout.learner), busy


costs = st.floats(1.0, 500.0)


@given(costs, costs, costs, st.floats(0, 0.9), st.floats(0, 20), st.integers(2, 8), st.data())
@settings(max_examples=60, deadline=None)
def test_it_is_what_a_simulation_of_every_event_finds(rollout, reward, update, first_end, switch_s, gpus, data):
    work = Work(rollout, reward, update, first_end, switch_s)
    for layout in layouts(gpus, data.draw(st.integers(1, gpus - 1))):
        found = predict(work, layout)
        total, busy = simulated(work, layout)
        slack = 4 * (rollout + reward) / EPISODES + 1e-6  # a few pieces of work
        assert found.iteration_s == pytest.approx(total, abs=slack)
        for name, its in layout.pools().items():
            share = sum(busy[gpu] for gpu in its) / (len(its) * total)
            assert found.pools[name] == pytest.approx(share, abs=slack / total)
        assert found.overall == pytest.approx(sum(busy.values()) / (gpus * total), abs=slack / total)


def test_a_pool_of_its_own_idles_while_the_policy_is_updated_and_spanning_it_does_not():
    """30 s of rollout on 6 of 8 GPUs, 30 s of scoring on the other 2, and an update of 30 s on 6."""
    work = Work(rollout=180.0, reward=60.0, update=180.0)
    together, separate, spanning = (predict(work, layout) for layout in layouts(8, 2))
    assert separate.iteration_s == 60.0
    assert separate.pools == {"rollout+update": 1.0, "reward": 0.5}
    assert separate.overall == pytest.approx(0.875)
    assert spanning.iteration_s == pytest.approx(30 + 22.5)
    assert spanning.pools == {"rollout+update": pytest.approx(1.0), "reward+update": pytest.approx(1.0)}
    assert together.iteration_s == spanning.iteration_s
    assert spanning.overall == together.overall == pytest.approx(1.0)


@given(costs, costs, costs, st.integers(2, 8))
def test_no_layout_beats_all_gpus_for_everything_and_spanning_beats_separate(rollout, reward, update, gpus):
    work = Work(rollout, reward, update)
    together, separate, spanning = best_split(work, gpus)
    assert together.iteration_s <= spanning.iteration_s * (1 + 1e-9)
    assert spanning.iteration_s <= separate.iteration_s * (1 + 1e-9)
    assert together.overall == pytest.approx(1.0)


def test_a_learner_beside_both_does_not_pay_for_switching():
    apart = Layout("apart", frozenset({0}), frozenset({1}), frozenset({2}))
    assert predict(Work(4, 4, 4, switch_s=3), apart).iteration_s == 8


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="none in common"):
        Layout("mixed", frozenset({0, 1}), frozenset({1, 2}), frozenset({0}))
    with pytest.raises(ValueError, match="needs a GPU"):
        Layout("none", frozenset({0}), frozenset(), frozenset({0}))
    with pytest.raises(ValueError, match="1 to 3"):
        layouts(4, 4)
    with pytest.raises(ValueError, match="from 0"):
        Work(-1, 1, 1)
    with pytest.raises(ValueError, match="without any work"):
        Work(0, 0, 0)
    with pytest.raises(ValueError, match="at least 2"):
        best_split(Work(1, 1, 1), 1)


def test_the_command_says_it_from_given_times_and_from_a_run(tmp_path, capsys):
    given_ = "--gpus 8 --reward-gpus 2 --rollout 30x6 --reward 30x2 --update 30x6"
    assert main(given_.split(" ")) == 0
    said = capsys.readouterr().out
    assert [line.split()[:2] for line in said.splitlines()[1:]] == [
        *(["colocated", "52.5"], ["separate", "60.0"], ["spanning", "52.5"])
    ]
    doc = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text()
    assert f"$ python -m trainers.cluster.utilisation {given_}\n{said}" in doc
    assert "reward on 2: 50%" in said
    times = {"time/rollout_s": 22.5, "time/learn_s": 22.5, "time/publish_s": 1.0}
    rows = [{"step": n, **times, "reward/rm_busy_s": busy} for n, busy in enumerate((100, 160, 60))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    work = measured(tmp_path, 8)
    assert work == Work(180.0, 60.0, 180.0, switch_s=1.0)
    assert main(["--gpus", "8", "--run", str(tmp_path)]) == 0
    assert "measured: 180.0 GPU-seconds of rollout, 60.0 of rewards" in capsys.readouterr().out
    for row, computing, engine in zip(rows, (9.0, 12.0, 18.0), (0.1, 0.5, 0.75), strict=True):
        row |= {"reward/rm_computing_s": computing, "reward/rm_overlap": 1 / 3, "time/iteration_s": 50.0}
        row |= {"rollout/engine_busy": engine}
    rows[2]["time/iteration_s"] = 40.0
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert measured(tmp_path, 8).rollout == pytest.approx((22.5 - (18 - 9) * 2 / 3 / 2) * 8), "that it waited for alone"
    assert busy(tmp_path) == pytest.approx(
        {"engine": (0.5 * 50 + 0.75 * 40) / 90, "learner": 22.5 / 45, "reward model rm": (18 - 9) / 2 / 45}
    )
    assert main(["--gpus", "8", "--run", str(tmp_path)]) == 0
    assert "busy in that run: engine 61%, learner 50%, reward model rm 10%" in capsys.readouterr().out
    assert main(["--gpus", "8", "--run", str(tmp_path / "none")]) == 2
    assert "has no metrics.jsonl" in capsys.readouterr().err
    for words in ("--gpus 8", "--gpus 8 --rollout 3 --reward x --update 3", "--gpus 8 --rollout 1 --run x"):
        with pytest.raises(SystemExit):
            main(words.split(" "))
