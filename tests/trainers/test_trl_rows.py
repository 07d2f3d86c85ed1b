"""Episodes of several contexts and roles in TRL: a row each, shared returns, groups that count episodes."""

import copy

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_trl_credit import by_hand
from trajectories import in_contexts, mixed, trajectory_of
from trl import GRPOTrainer
from trl_runs import batch, trl_trainer

from textenvs import Task, TextEnv, Turn
from textenvs.integrations.trl import textenv_dataset
from textenvs.messages import user
from trainers.algorithms.estimators.rloo import RLOO
from trainers.algorithms.estimators.turn_grpo import TurnGRPO
from trainers.integrations.context_rows import context_rows
from trainers.integrations.trl import RolloutError, TextEnvRollout, textenv_reward
from trainers.integrations.trl.credit import TurnCreditGRPOTrainer, token_advantages
from trainers.integrations.trl.rows import outcome_of, tokens_of
from trainers.rollout.recorded import context_of

RELAY, DEBATE = "test_trl_rows:tests/relay", "test_trl_rows:tests/debate"


class Relay(TextEnv):
    """Each reply's bytes decide its reward, and whether the next turn goes on, is a sub-agent's, or comes back."""

    def __init__(self):
        super().__init__([Task(f"task/{i}", "tests", (user(f"Task {i}."),), "") for i in range(2)])

    def respond(self, reply):
        total = sum(reply["content"].encode())
        terms = {"luck": total % 5 / 4}
        if self.state.assistant_turns == 4 or total % 7 == 0:
            return Turn(terms=terms, terminated=True, stop="solved")
        way = total % 3
        if way == 1:
            return Turn(terms=terms, context=[user(f"Sub-task {total % 10}.")])
        if way == 2 and self.state.contexts:
            return Turn(terms=terms, context=(*self.state.contexts[0], user("Back.")))
        return Turn([user("More.")], terms=terms)


class Debate(TextEnv):
    """Two roles speak in turn; the end pays all turns, by the bytes of the last reply."""

    roles = ("pro", "contra")

    def __init__(self):
        super().__init__([Task(f"task/{i}", "tests", (user(f"Topic {i}."),), "") for i in range(2)])

    def respond(self, reply):
        number = self.state.assistant_turns - 1
        if number == 3:
            total = float(sum(reply["content"].encode()) % 5)
            earlier = {turn: {"vote": total * (turn + 1)} for turn in range(3)}
            return Turn(terms={"vote": total}, earlier=earlier, terminated=True, stop="over")
        return Turn([user(f"They said: {reply['content']}")], role=self.roles[(number + 1) % 2])


gymnasium.register(id="tests/relay", entry_point=Relay)
gymnasium.register(id="tests/debate", entry_point=Debate)


def trainer_of(tmp_path, env_id, *, options=None, kind=TurnCreditGRPOTrainer, **settings):
    rollout = TextEnvRollout(environments={RELAY: {}, DEBATE: {}}, threads=1, max_turn_tokens=6)
    usual = {"max_completion_length": 200, "num_generations": 4, "per_device_train_batch_size": 8}
    dataset = textenv_dataset(env_id, 2)
    return rollout, trl_trainer(
        tmp_path, dataset, rollout, kind=kind, options=options, **{"scale_rewards": "none", **usual, **settings}
    )


def rows_of_loss(inputs):
    """Return the rows with trained tokens: the tokens, where the completion begins, its mask and its advantages."""
    rows = []
    for number, ids in enumerate(inputs["completion_ids"]):
        mask = inputs["completion_mask"][number].bool() & inputs["tool_mask"][number].bool()
        if mask.any():
            prompt = inputs["prompt_ids"][number][inputs["prompt_mask"][number].bool()]
            size = int(inputs["completion_mask"][number].sum())
            rows.append(
                (torch.cat([prompt, ids[:size]]), len(prompt), mask[:size], inputs["advantages"][number][:size])
            )
    return rows


def check_rows(inputs, trajectories, advantages):
    """No token is lost or doubled, and each has its turn's advantage; the loss is over what the engine was given."""
    rows = rows_of_loss(inputs)
    sampled = {}  # (context, token) of each turn
    for ids, start, mask, of_tokens in rows:
        for place in np.flatnonzero(mask.numpy()):
            key = tuple(ids[: start + place + 1].tolist())
            sampled.setdefault(key, []).append(float(of_tokens[place]))
        assert not of_tokens[~mask].any()
    expected = {}
    for trajectory, by_turn in zip(trajectories, advantages, strict=True):
        for turn, value in enumerate(by_turn):
            before = context_of(trajectory, turn).tolist()
            for token in trajectory.token_ids[trajectory.turn_id == turn].tolist():
                before = [*before, token]
                expected.setdefault(tuple(before), []).append(value)
    assert sampled.keys() == expected.keys()
    for key, values in sampled.items():
        np.testing.assert_allclose(sorted(values), sorted(expected[key]), atol=1e-5)
    return rows


def test_contexts_are_rows_of_trls_loss(tmp_path):
    seen = []

    def length(completions, turn_ids, **_):
        seen.append(len(completions))
        return [float(max(ids)) for ids in turn_ids]

    rollout, trainer = trainer_of(tmp_path, RELAY, options={"reward_funcs": [textenv_reward, length]})
    with rollout:
        rows, inputs = batch(trainer)
    trajectories = [row["trajectory"] for row in rows]
    assert {len(t.segment_starts) for t in trajectories} >= {1, 2}
    assert seen == [8]  # rewards of other functions count at an episode's last turn, which is in its first row
    rewards = [[*row["turn_rewards"]] for row in rows]
    for turns in rewards:
        turns[-1] += len(turns) - 1
    expected = by_hand([rewards[i : i + 4] for i in range(0, 8, 4)], "none")
    trained = check_rows(inputs, trajectories, expected)
    assert len(trained) > 8
    # TRL's own numbers count episodes.
    assert trainer._metrics["train"]["reward"] == pytest.approx([np.mean([sum(turns) for turns in rewards])], abs=1e-5)
    assert [len(trainer._logs[name]) for name in ("prompt", "completion", "advantages")] == [8] * 3

    trainer.current_gradient_accumulation_steps = 1
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    gradients = {name: value.grad.clone() for name, value in trainer.model.named_parameters()}
    trainer.model.zero_grad()
    total, tokens = 0.0, 0
    for ids, start, mask, advantages in trained:
        logprobs = trainer.model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0][start - 1 :]
        total, tokens = total - (advantages * logprobs)[mask].sum(), tokens + int(mask.sum())
    assert int(inputs["num_items_in_batch"]) == tokens == sum(int(t.action_mask.sum()) for t in trajectories)
    (total / tokens).backward()
    for name, value in trainer.model.named_parameters():
        torch.testing.assert_close(gradients[name], value.grad, atol=2e-6, rtol=1e-3)


def test_roles_are_rows_compared_with_their_like(tmp_path):
    rollout, trainer = trainer_of(tmp_path, DEBATE, options={"algorithm": RLOO(baseline="group")})
    with rollout:
        played = []
        play = rollout.play
        rollout.play = lambda *arguments: played.append(play(*arguments)) or played[-1]
        rows, inputs = batch(trainer)
    episodes = played[0].episodes
    assert [[t.num_turns for t in roles] for roles in episodes] == [[2, 2]] * 8
    assert [row["trajectory"] for row in rows] == [pro for pro, _ in episodes]
    trajectories, expected = [], []
    for role in (0, 1):
        for first in range(0, 8, 4):
            group = [roles[role] for roles in episodes[first : first + 4]]
            returns = [t.total_reward for t in group]
            trajectories += group
            expected += [[(4 * own - sum(returns)) / 3] * 2 for own in returns]
    check_rows(inputs, trajectories, expected)


def test_training_takes_any_number_of_rows(tmp_path):
    """With log-probabilities of an older policy and of a reference, over several steps of a batch."""
    steps = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "num_iterations": 2, "max_steps": 2}
    rollout, trainer = trainer_of(tmp_path, RELAY, log_completions=True, **steps)
    trainer.beta, trainer.ref_model = 0.1, copy.deepcopy(trainer.model)
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    with rollout:
        trainer.train()
        trainer.evaluate()
    assert any(not torch.equal(value, before[name]) for name, value in trainer.model.named_parameters())


def test_single_row_trainers_refuse_in_words(tmp_path):
    rollout, trainer = trainer_of(tmp_path, RELAY, kind=GRPOTrainer)
    with rollout, pytest.raises(RolloutError, match=r"has \d contexts, and GRPOTrainer takes one.*TurnCreditGRPO"):
        batch(trainer)
    for env_id, kwargs, words in (
        (DEBATE, {}, r"several roles \(pro, contra\)"),
        (RELAY, {"compact": {"tokens": 50}}, "summarised"),
    ):
        rollout.environments = {env_id: kwargs}
        trainer.train_dataset = textenv_dataset(env_id, 2, env_kwargs=kwargs)
        with rollout, pytest.raises(RolloutError, match=words):  # before it plays
            batch(trainer)
        assert not rollout._trainer


def test_losses_that_weigh_rows_are_refused(tmp_path):
    for env_id, words in ((RELAY, "several contexts or roles"), (DEBATE, "has several roles")):
        rollout, trainer = trainer_of(tmp_path, env_id, loss_type="grpo")
        with rollout, pytest.raises(ValueError, match=rf"{words}.*loss_type='grpo' weighs rows: use one that"):
            batch(trainer)


visits = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=6)


@settings(deadline=None, max_examples=40)
@given(visits, st.integers(0, 2), st.integers(0, 99))
def test_rows_have_all_tokens_of_an_episode(turns, tail, seed):
    turn_id, starts = in_contexts(turns, tail)
    t = mixed(trajectory_of(turn_id, segment_starts=np.array(starts, np.int32)), np.random.default_rng(seed))
    rows = context_rows(t)
    tokens = [tokens_of(row, 0) for row in rows]
    sampled = [
        list(np.flatnonzero(row["env_mask"]) + span.completion.start) for row, span in zip(tokens, rows, strict=True)
    ]
    assert sorted(place for places in sampled for place in places) == sorted(t.actions.tolist())
    for row, span in zip(tokens, rows, strict=True):
        assert span.prompt.start in t.segment_starts.tolist()
        ids = row["prompt_ids"] + row["completion_ids"]
        assert ids == t.token_ids[span.prompt.start : span.completion.stop].tolist()
        assert row["env_mask"][0] == row["env_mask"][-1] == 1
    assert t.num_turns - 1 in outcome_of(rows[-1])["turn_ids"]  # the context that the episode ended in


@settings(deadline=None, max_examples=40)
@given(st.lists(visits, min_size=2, max_size=4), st.integers(0, 99), st.sampled_from(["rloo", "turn_grpo"]))
def test_contexts_of_siblings_change_no_advantage(group, seed, name):
    """The group is counted by episodes: the same turns in one context each have the same advantages."""
    algorithm = RLOO(baseline="group") if name == "rloo" else TurnGRPO(baseline="group", norm_by_std=True)
    rng = np.random.default_rng(seed)
    several, single = [], []
    for turns in group:
        rewards = rng.normal(size=len(turns))
        turn_id, starts = in_contexts(turns)
        several.append(trajectory_of(turn_id, rewards, segment_starts=np.array(starts, np.int32)))
        single.append(trajectory_of(in_contexts([(0, *sizes) for _, *sizes in turns])[0], rewards))
    names = ["0"] * len(group)
    for one, other in zip(*(token_advantages(algorithm, part, names) for part in (several, single)), strict=True):
        np.testing.assert_allclose(one[0], other[0], atol=1e-12)
