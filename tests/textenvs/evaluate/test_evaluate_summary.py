"""Reports: numbers counted by hand, failures separate, and text that has them all."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.evaluate.records import Record
from textenvs.evaluate.summary import report, summarize, table


def record(task, sample, success=False, *, source="a", **changes):
    return Record(
        task,
        sample,
        seed=0,
        task_index=task,
        task_key=f"k{task}",
        data_source=source,
        success=success,
        **{"stop": "solved" if success else "gave_up", **changes},
    )


FOUR = [
    record(0, 0, True, turn_rewards=(0.5, 0.5), terms={"right": 1.0}, assistant_turns=2, metrics={"m": 1.0}),
    record(0, 1, True, turn_rewards=(1.0,), terms={"right": 1.0}, assistant_turns=1, prompt_tokens=10, cost=0.25),
    record(1, 0, True, turn_rewards=(1.0,), terms={"right": 1.0}, source="b", assistant_turns=1, cut_replies=2),
    record(1, 1, False, turn_rewards=(-1.0,), terms={"wrong": -1.0}, source="b", assistant_turns=1, truncated=True),
]
DOWN = record(2, 0, failed=True, stop="policy_failed", failure="HTTP 500", turn_rewards=(9.0,), cost=0.5, source="")


def value(numbers, *path):
    for key in path:
        numbers = numbers[key]
    return numbers["value"]


def test_numbers_by_hand():
    numbers = summarize([*FOUR, DOWN])["all"]
    assert (numbers["tasks"], numbers["episodes"], numbers["failed"]) == (3, 5, 1)
    assert numbers["stops"] == {"solved": 3, "gave_up": 1, "policy_failed": 1}
    assert numbers["failures"] == {"policy_failed: HTTP 500": 1}
    assert value(numbers, "success") == 0.75
    assert value(numbers, "pass_hat_k", "1") == 0.75
    assert value(numbers, "pass_hat_k", "2") == 0.5
    assert value(numbers, "pass_at_k", "2") == 1.0
    assert numbers["pass_hat_k"]["2"]["tasks"] == 2
    assert value(numbers, "return") == 0.5
    assert value(numbers, "terms", "right") == 0.75
    assert value(numbers, "terms", "wrong") == -0.25
    assert value(numbers, "metrics", "m") == 1.0
    assert value(numbers, "assistant_turns") == 1.25
    assert value(numbers, "truncated") == 0.25
    assert value(numbers, "cut_replies") == 0.5
    assert value(numbers, "prompt_tokens") == 10
    assert "completion_tokens" not in numbers
    assert numbers["cost"] == 0.75  # also what failed has cost


def test_data_sources_apart():
    sources = summarize([*FOUR, DOWN])["data_sources"]
    assert list(sources) == ["a", "b"]
    assert value(sources["a"], "success") == 1.0
    assert value(sources["b"], "success") == 0.5


def test_nothing_but_failures_has_no_means():
    summary = summarize([DOWN])
    assert set(summary["all"]) == {"tasks", "episodes", "failed", "stops", "failures"}
    assert "1 of 1 episodes FAILED" in report(summary)
    assert summarize([])["all"]["episodes"] == 0


def test_pass_k_omits_tasks_with_few_episodes():
    numbers = summarize([record(0, 0, True), record(0, 1, True), record(1, 0, False)])["all"]
    assert value(numbers, "pass_hat_k", "2") == 1.0
    assert numbers["pass_hat_k"]["2"]["tasks"] == 1


outcomes = st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=5)


@given(outcomes, st.randoms())
def test_summary_ignores_order_and_intervals_contain_values(outcomes, random):
    records = [
        record(task, sample, success, turn_rewards=(float(success), 0.1 * sample), terms={"t": 0.1 * sample})
        for task, samples in enumerate(outcomes)
        for sample, success in enumerate(samples)
    ]
    summary = summarize(records)
    shuffled = random.sample(records, len(records))
    assert summarize(shuffled) == summary
    json.dumps(summary, allow_nan=False)
    numbers = summary["all"]
    k = [value(numbers, "pass_hat_k", size) for size in numbers["pass_hat_k"]]
    if len({len(samples) for samples in outcomes}) == 1:
        assert all(
            larger <= smaller + 1e-12 for smaller, larger in zip(k, k[1:], strict=False)
        )  # all of k is harder than of k - 1
        assert k[0] == pytest.approx(value(numbers, "success"))
    for estimate in (numbers["success"], numbers["truncated"], numbers["return"], *numbers["pass_at_k"].values()):
        if estimate["low"] is not None:
            assert estimate["low"] - 1e-9 <= estimate["value"] <= estimate["high"] + 1e-9


def test_episodes_without_success_have_no_rate():
    games = [record(task, 0, None, source="game", turn_rewards=(1.0,), stop="draw") for task in (2, 3)]
    apart = summarize(games)
    assert not apart["all"].keys() & {"success", "pass_hat_k", "pass_at_k"}
    assert "success" not in report(apart)
    assert value(apart["all"], "return") == 1.0
    together = summarize([*FOUR, *games])
    assert together["all"]["success"] == summarize(FOUR)["all"]["success"]
    (line,) = (line for line in report(together).splitlines() if line.startswith("game"))
    assert line.split() == ["game", "2", "2", "0", "-", "-", "-", "+1.000"]


def test_the_report_has_every_number():
    text = report(summarize([*FOUR, DOWN]))
    lines = {line[:24].strip(): line for line in text.splitlines()}
    for name in ("success", "pass^2", "pass@2", "return", "right", "wrong", "metric m", "assistant turns", "truncated"):
        assert any(key.startswith(name) for key in lines), name
    assert "75.0%" in lines["success"]
    assert "+0.500" in lines["return"]
    assert "1 of 5 episodes FAILED and are in none of the numbers above:\n  1 x policy_failed: HTTP 500" in text
    assert "a " in text
    assert "\x1b" not in text
    assert "pass^1" not in text


def test_report_shows_powers_of_two():
    text = report(summarize([record(0, sample, sample % 2 == 0) for sample in range(6)]))
    rows = [line.split()[0] for line in text.splitlines() if line.startswith("pass^")]
    assert rows == ["pass^2", "pass^4", "pass^6"]


def test_many_causes_are_counted():
    records = [record(i, 0, failed=True, stop="env_failed", failure=f"cause {i}") for i in range(8)]
    assert "and 3 more causes" in report(summarize(records))


def test_a_table():
    assert table([["a", "1"], ["bcd", "22"]], ["x", "y"], right=(1,)) == "x     y\n---  --\na     1\nbcd  22"
    assert table([["a", "b"]]) == "a  b"
    assert table([]) == ""
