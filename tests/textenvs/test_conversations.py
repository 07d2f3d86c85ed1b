"""Conversations to imitate: which episodes are taken, and the rows of each."""

import json
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_records import row as episode_row
from test_records import write
from toy_envs import Contexts, Talk

from textenvs.cli import main
from textenvs.evaluate.baselines import play_policy
from textenvs.evaluate.plan import Job
from textenvs.evaluate.policies import Reply
from textenvs.evaluate.records import Folder
from textenvs.messages import assistant, system, user
from textenvs.records import open_run
from textenvs.records.conversations import Candidate, Selection, candidates, rows, select

MANIFEST = {
    "environment": {"id": "toy_envs:Contexts", "version": None, "options": {}},
    "tasks": {"name": "toy", "count": 1, "fingerprint": ""},
    "samples": 1,
    "seed": 0,
    "policy": {},
}


def evaluation(folder, records, manifest=MANIFEST):
    """Write the records as an evaluation's folder."""
    with Folder(folder, manifest) as opened:
        for number, record in enumerate(records):
            opened.add(replace(record, task=number))
    return folder


def rows_of(path, **options):
    left_out, run = Counter(), open_run(path)
    taken = select(candidates(run.iterations, left_out), Selection(), left_out)
    return list(rows(run, taken, left_out, **{"per_turn": False, **options})), {k: n for k, n in left_out.items() if n}


def imitated(row):
    replies = [message for message in row.messages if message["role"] == "assistant"]
    return [reply for reply, weight in zip(replies, row.weights, strict=True) if weight]


# ------------------------------------------------------------------ which episodes


@given(
    episodes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=25),
    least=st.integers(0, 4),
    best=st.none() | st.integers(1, 3),
    share=st.floats(0.05, 1),
)
def test_selection_takes_the_highest_returns(episodes, least, best, share):
    """By hand: sort what is high enough; take so many of each task; take the first share of these."""
    candidates_of_run = [Candidate(None, n, ("", str(task)), total) for n, (task, total) in enumerate(episodes)]
    left_out, of_task, expected = Counter(), defaultdict(int), []
    taken = select(candidates_of_run, Selection(least, best, share), left_out)
    for one in sorted(candidates_of_run, key=lambda one: (-one.total, one.index)):
        of_task[one.task] += one.total >= least
        if one.total >= least and (best is None or of_task[one.task] <= best):
            expected.append(one.index)
    count = next(n for n in range(len(expected) + 1) if n >= share * len(expected) - 1e-9)
    assert [one.index for one in taken] == sorted(expected[:count])
    assert len(taken) + left_out.total() == len(candidates_of_run)


# ------------------------------------------------------------------ which rows


class Recording:
    """A policy with these replies, which records each conversation that it saw with its reply."""

    def __init__(self, actions):
        self.actions, self.seen = iter(actions), []

    def start(self, env, seed):
        async def reply(conversation, tools):
            action = next(self.actions, "end")
            if action.startswith("back") and not env.state.contexts:
                action = "more"
            self.seen.append((*conversation, assistant(action)))
            return Reply(action)

        return reply


COMMANDS = ["more", "anew", "answered", "branch", "back 0"]


@settings(max_examples=20)
@given(actions=st.lists(st.sampled_from(COMMANDS), max_size=8))
def test_turns_have_contexts_that_policy_saw(tmp_path_factory, actions):
    policy = Recording(actions)
    records = play_policy(Contexts(), policy, [Job(0, 0, 3, 1)])
    folder = evaluation(tmp_path_factory.mktemp("evaluation"), records)
    turns, left_out = rows_of(folder, per_turn=True)
    assert sorted(json.dumps(row.messages) for row in turns) == sorted({json.dumps(seen) for seen in policy.seen})
    assert all(imitated(row) == [row.messages[-1]] for row in turns)
    whole, _ = rows_of(folder)
    assert len(whole) <= 1 + len(records[0].contexts)
    assert sorted(json.dumps(reply) for row in whole for reply in imitated(row)) == sorted(
        json.dumps(seen[-1]) for seen in policy.seen
    )
    assert left_out.get("repeated", 0) == len(policy.seen) - len(turns)


def test_roles_are_taken_by_their_own_returns(tmp_path):
    policy = Recording(["solver", "critic", "end"])
    (record,) = play_policy(Talk(), policy, [Job(0, 0, 0, 1)])
    run = open_run(evaluation(tmp_path / "talk", [record]))
    candidates_of_run = candidates(run.iterations, Counter())
    assert {one.role: one.total for one in candidates_of_run} == record.role_returns
    for one in candidates_of_run:
        own = list(rows(run, [one], Counter(), per_turn=True))
        talks = zip((*record.contexts, record.messages), record.context_roles, strict=True)
        owner = {json.dumps(talk): role for talk, role in talks}
        assert own
        for row in own:
            begun = {role for talk, role in owner.items() if talk.startswith(json.dumps(row.messages)[:-1])}
            assert begun == {one.role}


def run_folder(folder, episodes, config="rollout: {max_response_length: 3}\n"):
    write(folder / "rollouts/train/000001.parquet", episodes)
    (folder / "config.yaml").write_text(config)
    return folder


FEW_SHOT = [system("Add."), user("1 + 1?"), assistant("2"), user("hi")]


def test_unusable_episodes_are_left_out(tmp_path):
    episodes = [
        episode_row(0),
        episode_row(1),  # the same conversation
        episode_row(2, status="error_env", error="broke"),
        episode_row(3, status="truncated_time"),
        episode_row(4, status="truncated_context"),
        episode_row(5, segment_starts=[0, 2]),
        episode_row(6, token_ids=[5, 6, 7, 8], action_mask=[False, True, True, True], turn_id=[-1, 0, 0, 0]),
        episode_row(7, messages=[*FEW_SHOT, assistant("3")]),
        episode_row(8, messages=[user("a"), assistant("b"), assistant("c")]),
    ]
    made, left_out = rows_of(run_folder(tmp_path, episodes))
    assert [(row.episode.episode_id, row.weights) for row in made] == [("e0", (1.0,)), ("e7", (0.0, 1.0))]
    assert left_out == {"failed": 2, "cut": 2, "contexts": 1, "form": 1, "repeated": 1}


# ------------------------------------------------------------------ the command


def test_command_writes_what_training_reads(tmp_path, capsys):
    from trainers.rollout.demonstrations import read

    call = {"id": "0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    tool = [user("hi"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    episodes = [episode_row(1, messages=[*FEW_SHOT, assistant("3")]), episode_row(2, messages=tool), episode_row(3)]
    run = run_folder(tmp_path / "run", episodes)
    for name in ("good.jsonl", "good.parquet"):
        assert main(["sft-data", str(run), "-o", str(tmp_path / name), "--min-return", "1.5"]) == 0
        printed = capsys.readouterr().out
        assert f"{name}: 2 rows of 2 episodes, returns 2 to 3\nleft out:\n  1 episodes with a lower return" in printed
        first, second = read([tmp_path / name])
        assert (first.messages[-1]["tool_calls"], first.imitate) == ((call,), (1.0,))
        assert (second.messages, second.imitate) == ((user("hi"), assistant("yo")), (1.0,))
    assert main(["sft-data", str(run), "-o", str(tmp_path / "all.jsonl"), "--per-turn"]) == 0
    assert [talk.imitate for talk in read([tmp_path / "all.jsonl"])] == [(0.0, 1.0), (1.0,), (1.0,)]


def test_messages_have_openai_keys_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = ["textenv/gsm8k-tool", "call_format=native", "split=test"]
    assert main(["evaluate", *env, "--policy", "expert", "--num-tasks", "2", "--out", "played", "--quiet"]) == 0
    assert main(["sft-data", "played", "-o", "talks.jsonl", "--format", "messages", "--per-turn"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "talks.jsonl").read_text().splitlines()]
    assert {frozenset(line) for line in lines} == {frozenset(("messages", "tools"))}
    assert all(tool["type"] == "function" for line in lines for tool in line["tools"])
    for line in lines:
        *before, last = [message for message in line["messages"] if message["role"] == "assistant"]
        assert "weight" not in last
        assert all(message["weight"] == 0 for message in before)


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        (["-o", "talks.csv"], 2, "a .jsonl or .parquet file"),
        (["-o", "talks.parquet", "--format", "messages"], 2, "is a .jsonl file"),
        (["-o", "talks.jsonl", "--trust"], 2, "--trust goes with --format messages"),
        (["-o", "talks.jsonl", "--last", "0"], 2, "--last must be a positive integer"),
        (["-o", "talks.jsonl", "--min-return", "9"], 1, "no conversation to imitate\nleft out:\n  1 episodes with a"),
        (["-o", "talks.jsonl", "--format", "messages"], 1, "does not say which environment"),
    ],
)
def test_refusals(tmp_path, monkeypatch, capsys, words, status, problem):
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "run", [episode_row(0)])
    assert main(["sft-data", "run", *words]) == status
    assert problem in capsys.readouterr().err
    assert not list(tmp_path.glob("talks.*"))


def test_environment_of_another_person_needs_trust(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    records = play_policy(Contexts(), Recording(["end"]), [Job(0, 0, 3, 1)])
    evaluation(tmp_path / "played", records)
    words = ["sft-data", "played", "-o", "talks.jsonl", "--format", "messages"]
    assert main(words) == 1
    assert "--trust says that the files are yours" in capsys.readouterr().err
    assert main([*words, "--trust"]) == 0
