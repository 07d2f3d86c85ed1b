"""examples/collabllm/best_of_n.py: the best proposal is said, the episode does not notice, failures are named."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from evaluate_envs import Say

import textenvs
from textenvs.chat.errors import BudgetExceeded
from textenvs.evaluate.plan import Job, jobs
from textenvs.evaluate.policies import OutOfContext, PolicyFailure, Reply, ScriptedPolicy
from textenvs.evaluate.records import Record
from textenvs.evaluate.runner import Stopped, run

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "collabllm"))
from best_of_n import BestOfN, preference_pairs, sft_row  # noqa: E402


class Draws:
    """Says one of ``words``, as its seed has it; ``?`` fails, and ``...`` is out of context."""

    def __init__(self, *words, cost=None):
        self.words = words
        self.cost = cost
        self.requests = 0
        self.closed = 0

    def start(self, env, seed):
        rng = np.random.default_rng(seed)

        async def play(conversation, tools):
            self.requests += 1
            word = str(rng.choice(self.words))
            if word == "?":
                raise PolicyFailure("no idea")
            if word == "...":
                raise OutOfContext("too long")
            return Reply(word, completion_tokens=len(word), cost=self.cost)

        return play

    async def aclose(self):
        self.closed += 1


def played(planned, policy, make_env=Say, **options):
    records = []

    async def main():
        try:
            await run(planned, make_env, policy, on_record=records.append, **options)
        finally:
            await policy.aclose()

    asyncio.run(main())
    return sorted(records, key=lambda record: record.place)


def best(policy, **options):
    return BestOfN(policy, **{"candidates": 4, "samples": 2, "window": 1, **options})


def collab():
    policy = best(ScriptedPolicy("expert", careless_rate=0.5))
    return played(jobs(range(3), 2, 0), policy, lambda: textenvs.make("textenv/collab-math"))


def clarify():
    return textenvs.make("textenv/clarify")


def test_best_candidate_is_played_all_noted():
    better = 0
    for record in collab():
        assert len(record.notes) == record.assistant_turns
        replies = [message for message in record.messages if message["role"] == "assistant"]
        for reply, note in zip(replies, record.notes, strict=True):
            rewards = [candidate["reward"] for candidate in note["candidates"]]
            assert rewards[note["chosen"]] == max(rewards)
            assert note["candidates"][note["chosen"]]["message"] == reply
            assert sum(candidate["drawn"] for candidate in note["candidates"]) == 4
            texts = [candidate["message"]["content"] for candidate in note["candidates"]]
            assert len(set(texts)) == len(texts)
            assert all(
                candidate["reward"] == pytest.approx(sum(candidate["terms"].values()))
                for candidate in note["candidates"]
            )
            better += max(rewards) > min(rewards)
    assert better > 5


def test_lookahead_leaves_episode_unchanged():
    for record in collab():
        env = textenvs.make("textenv/collab-math")
        env.reset(seed=record.seed, options={"task_index": record.task_index})
        rewards = []
        for message in record.messages:
            if message["role"] == "assistant":
                conversation, reward, *_ = env.step(message["content"])
                rewards.append(reward)
        assert conversation == record.messages
        assert tuple(rewards) == record.turn_rewards


def test_results_ignore_concurrency():
    one, other = (
        [record.to_json() for record in played(jobs(range(4), 2, 3), best(Draws("1", "2", "3")), concurrency=n)]
        for n in (1, 5)
    )
    assert one == other


def test_more_candidates_are_better():
    def earned(candidates):
        hasty = ScriptedPolicy("expert", careless_rate=0.6)
        policy = best(hasty, candidates=candidates, futures=ScriptedPolicy("expert"))
        return np.mean([record.total for record in played(jobs(range(30), 1, 0), policy, ambiguous)])

    def ambiguous():
        return textenvs.make("textenv/clarify", ambiguous=1.0)

    assert earned(4) > earned(1) + 0.2


def test_failed_candidates_are_omitted_and_noted():
    """Failures of a candidate, of the user after it, and of its futures."""
    (record,) = played([Job(0, 0, 1, 5)], best(Draws("1", "?", "#", "2"), candidates=16, samples=3))
    assert not record.failed
    (note, *_) = record.notes
    by_text = {candidate["message"]["content"]: candidate for candidate in note["candidates"]}
    assert "the user hung up" in by_text["#"]["failure"]
    assert "reward" not in by_text["#"]
    assert any("no idea" in failure for failure in note["failures"])
    assert by_text["1"]["reward"] > by_text["2"]["reward"]
    assert record.success


def test_episode_fails_when_all_candidates_fail():
    class Later(Draws):
        def start(self, env, seed):
            self.words = ("0",) if env.state.assistant_turns == 0 else ("?",)
            return super().start(env, seed)

    (record,) = played([Job(0, 0, 1, 5)], best(Later(), futures=Draws("0")))
    assert (record.failed, record.stop, record.assistant_turns, len(record.notes)) == (True, "policy_failed", 1, 1)
    assert "none of 4 candidates could be scored; the first: PolicyFailure: no idea" in record.failure
    assert sft_row(record) is None


def test_a_spent_budget_stops_everything():
    def judge(conversation):
        raise BudgetExceeded("the budget of 5 tokens is spent")

    with pytest.raises(Stopped, match="the budget of 5 tokens is spent"):
        played(jobs(range(4), 1, 0), best(Draws("1", "2"), judge=judge))


def test_costs_count_all_candidates_tokens_only_reply():
    futures = Draws("9", cost=1.0)
    policy = Draws("1", "2", cost=100.0)
    (record,) = played([Job(0, 0, 5, 5)], best(policy, futures=futures))
    assert record.cost == 100.0 * policy.requests + futures.requests
    assert futures.requests > 0
    assert record.completion_tokens == record.assistant_turns
    assert (policy.closed, futures.closed) == (1, 1)


def test_export_has_imitation_rows_and_pairs():
    records = collab()
    pairs = [pair for record in records for pair in preference_pairs(record)]
    assert pairs
    for pair in pairs:
        assert pair["chosen_reward"] > pair["rejected_reward"]
        (record,) = (r for r in records if (r.task_key, r.sample) == (pair["task_key"], pair["sample"]))
        conversation = [*pair["prompt"], *pair["chosen"]]
        assert conversation == list(record.messages[: len(conversation)])
        assert pair["rejected"] != pair["chosen"]
    wide = [pair for record in records for pair in preference_pairs(record, min_margin=0.5)]
    assert wide == [pair for pair in pairs if pair["chosen_reward"] - pair["rejected_reward"] >= 0.5]
    for record in records:
        row = sft_row(record)
        assert row["messages"] == list(record.messages[: len(row["messages"])])
        assert row["messages"][-1]["role"] == "assistant"
        assert not any(message["role"] == "assistant" for message in record.messages[len(row["messages"]) :])
        assert row["reward"] == pytest.approx(row["score/accuracy"] + row["score/cost"])
        assert row["score/accuracy"] == record.terms["accuracy"]


def test_rows_exclude_reasoning_and_tool_calls():
    message = {"role": "assistant", "content": "1", "reasoning_content": "hm"}
    note = {"chosen": 0, "candidates": [{"message": message, "reward": 1.0, "terms": {"x": 1.0}}]}
    common = {"turn_rewards": (1.0,), "notes": (note,)}
    record = Record(0, 0, 0, 0, "k", "s", messages=({"role": "user", "content": "?"}, message), **common)
    assert sft_row(record)["messages"][-1] == {"role": "assistant", "content": "1"}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    record = Record(0, 0, 0, 0, "k", "s", messages=({**message, "tool_calls": (call,)},), **common)
    assert sft_row(record) is None


def test_records_keep_notes_and_read_older_ones():
    (record,) = played([Job(0, 0, 1, 5)], best(Draws("1", "2")))
    assert Record.from_json(record.to_json()) == record
    assert json.loads(record.to_row()["notes"]) == list(record.notes)
    plain = Record(0, 0, 1, 2, "k", "s")
    assert "notes" not in json.loads(plain.to_json())
    assert Record.from_json(plain.to_json()) == plain
    with pytest.raises(ValueError, match="not a record"):
        Record.from_json(json.dumps({**json.loads(plain.to_json()), "more": 1}))


def test_late_notes_are_padded_per_turn():
    class Late(Draws):
        def start(self, env, seed):
            async def play(conversation, tools):
                return Reply("0", notes={"turn": 2} if env.state.assistant_turns == 1 else None)

            return play

    (record,) = played([Job(0, 0, 1, 5)], Late())
    assert record.notes == (None, {"turn": 2}, None)


def test_scripts_that_err_now_and_then():
    def rate_of_questions(rate):
        records = played(jobs(range(60), 1, 0), ScriptedPolicy("expert", careless_rate=rate), clarify)
        return np.mean([r.metrics["asked_when_needed"] for r in records if "asked_when_needed" in r.metrics])

    assert rate_of_questions(0.0) == 1
    assert 0.2 < rate_of_questions(0.5) < 0.8
    assert rate_of_questions(1.0) == 0
    with pytest.raises(ValueError, match="careless_rate should be less than or equal to 1, not 1.5"):
        ScriptedPolicy("expert", careless_rate=1.5)
