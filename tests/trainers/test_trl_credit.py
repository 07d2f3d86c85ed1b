"""Advantages of turns in TRL's loss: against the estimator's formula, and against the loss written down by hand."""

import numpy as np
import program_envs  # noqa: F401 - registers
import pytest
import torch
from trajectories import trajectory_of
from trl_runs import batch, tiny_policy, trl_trainer

from textenvs.integrations.trl import textenv_dataset
from trainers.algorithms.estimators.gae import GAE
from trainers.algorithms.estimators.rloo import RLOO
from trainers.integrations.trl import TextEnvRollout, term_rewards, textenv_reward
from trainers.integrations.trl.credit import TurnCreditGRPOTrainer, token_advantages

BYTES = "program_envs:tests/bytes"


def by_hand(groups, scale):
    """Reward-to-go minus the mean of the other members that reached the turn; divided by the group's RMS if wanted."""
    result = []
    for group in groups:
        to_go = [[sum(rewards[t:]) for t in range(len(rewards))] for rewards in group]
        centred = []
        for me, own in enumerate(to_go):
            turns = []
            for t, value in enumerate(own):
                rest = [sibling[t] for other, sibling in enumerate(to_go) if other != me and t < len(sibling)]
                turns.append(value - (sum(rest) / len(rest) if rest else 0.0))
            centred.append(turns)
        flat = [value for turns in centred for value in turns]
        rms = np.sqrt(np.mean(np.square(flat))) + 1e-6 if scale == "group" and flat else 1.0
        result += [[value / rms for value in turns] for turns in centred]
    return result


def made(tmp_path, *, options=None, policy=None, **settings):
    rollout = TextEnvRollout(environments={BYTES: {}}, threads=1, max_turn_tokens=6)
    trainer = trl_trainer(
        tmp_path,
        textenv_dataset(BYTES, 4),
        rollout,
        kind=TurnCreditGRPOTrainer,
        options=options,
        policy=policy,
        **{"max_completion_length": 80, "num_generations": 4, "per_device_train_batch_size": 16, **settings},
    )
    return rollout, trainer


@pytest.mark.parametrize("scale", ["none", "group"])
def test_each_turns_tokens_have_its_advantage(scale, tmp_path):
    rollout, trainer = made(tmp_path, scale_rewards=scale)
    with rollout:
        rows, inputs = batch(trainer)
    rewards = [row["turn_rewards"] for row in rows]
    assert len({len(reward) for reward in rewards}) > 1
    expected = by_hand([rewards[i : i + 4] for i in range(0, 16, 4)], scale)
    for row, advantages, values in zip(rows, inputs["advantages"], expected, strict=True):
        by_token = [values[turn] if turn >= 0 else 0.0 for turn in row["turn_ids"]]
        by_token += [0.0] * (len(advantages) - len(by_token))
        np.testing.assert_allclose(advantages.numpy(), by_token, atol=1e-5)


def test_trl_loss_and_gradient_match_formula(tmp_path):
    """Before the first step the ratio is 1: the loss is minus the mean advantage over all sampled tokens."""
    rollout, trainer = made(tmp_path, scale_rewards="none", loss_type="dapo", per_device_train_batch_size=16)
    with rollout:
        rows, inputs = batch(trainer)
    trainer.current_gradient_accumulation_steps = 1
    model = trainer.model
    loss = trainer.compute_loss(model, inputs)
    loss.backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    total, tokens, weighted = 0.0, 0, 0.0
    for n, row in enumerate(rows):
        prompt = inputs["prompt_ids"][n][inputs["prompt_mask"][n].bool()]
        ids = torch.cat([prompt, inputs["completion_ids"][n][: len(row["turn_ids"])]])[None]
        logprobs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0][len(prompt) - 1 :]
        mask = torch.tensor([turn >= 0 for turn in row["turn_ids"]])
        advantages = inputs["advantages"][n][: len(mask)]
        total = total - (advantages * logprobs)[mask].sum()
        weighted -= float(advantages[mask].sum())
        tokens += int(mask.sum())
    (total / tokens).backward()
    assert float(loss.detach()) == pytest.approx(weighted / tokens, abs=1e-6)
    for name, value in model.named_parameters():
        torch.testing.assert_close(gradients[name], value.grad, atol=2e-6, rtol=1e-3)


def test_trl_rewards_are_weighted_at_last_turn(tmp_path):
    def length(completions, **_):
        return [float(number) for number in range(len(completions))]

    options = {"reward_funcs": [length, textenv_reward]}
    rollout, trainer = made(tmp_path, scale_rewards="none", options=options, reward_weights=[0.5, 2.0])
    with rollout:
        rows, inputs = batch(trainer)
    rewards = [[2.0 * reward for reward in row["turn_rewards"]] for row in rows]
    for number, episode_rewards in enumerate(rewards):
        episode_rewards[-1] += 0.5 * number
    expected = by_hand([rewards[i : i + 4] for i in range(0, 16, 4)], "none")
    for row, advantages, values in zip(rows, inputs["advantages"], expected, strict=True):
        sampled = [values[turn] for turn in row["turn_ids"] if turn >= 0]
        where = [place for place, turn in enumerate(row["turn_ids"]) if turn >= 0]
        np.testing.assert_allclose(advantages.numpy()[where], sampled, atol=1e-4)


def test_chosen_estimator_trains_one_step(tmp_path):
    model, tokenizer = tiny_policy()
    before = {name: value.clone() for name, value in model.named_parameters()}
    options = {"algorithm": RLOO()}
    rollout, trainer = made(tmp_path, options=options, policy=(model, tokenizer), num_generations_eval=2)
    with rollout:
        rows, inputs = batch(trainer)
        for row, advantages in zip(rows, inputs["advantages"], strict=True):
            assert len({float(a) for a, turn in zip(advantages, row["turn_ids"], strict=False) if turn >= 0}) == 1
        trainer.train()
        trainer.evaluate()
    assert any(not torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_failed_episodes_are_not_shown_to_estimator():
    """Groups keep their places: the failed one is the second of its group of two."""
    turns = ([0, 0, 1], [], [0, 0, 0], [0])
    rewards = ([1.0, 1.0], [], [3.0], [4.0])
    episodes = [trajectory_of(*episode) for episode in zip(turns, rewards, strict=True)]
    numbers = token_advantages(RLOO(baseline="group"), episodes, ["0", "0", "1", "1"])
    assert [advantages.tolist() for advantages, _ in numbers] == [[2.0] * 3, [], [-1.0] * 3, [1.0]]
    assert [trained.tolist() for _, trained in numbers] == [[True] * 3, [], [True] * 3, [True]]
    assert [advantages.tolist() for advantages, _ in token_advantages(RLOO(), episodes[1:2], ["0"])] == [[]]


def test_dropped_tokens_are_not_in_trl_loss(tmp_path):
    """With ``truncated=drop``: neither in the sum, nor in the number it is divided by, nor in the KL."""
    options = {"algorithm": RLOO(truncated="drop")}
    rollout, trainer = made(tmp_path, options=options, loss_type="dapo")
    with rollout:
        rows, inputs = batch(trainer)
    assert {row["terminated"] for row in rows} == {True, False}
    retained = torch.zeros(inputs["completion_ids"].shape)
    for number, row in enumerate(rows):
        sampled = [float(row["terminated"] and turn >= 0) for turn in row["turn_ids"]]
        retained[number, : len(sampled)] = torch.tensor(sampled)
    assert torch.equal((inputs["completion_mask"] * inputs["tool_mask"]).float(), retained)
    assert inputs["num_items_in_batch"] == retained.sum()
    trainer.current_gradient_accumulation_steps = 1
    trainer.beta = 0.5
    inputs["ref_per_token_logps"] = torch.full(inputs["completion_ids"].shape, -3.0)  # a KL that every token would have
    loss = trainer.compute_loss(trainer.model, inputs).detach()
    dropped = [number for number, row in enumerate(rows) if not row["terminated"]]
    inputs["ref_per_token_logps"][dropped] = -9.0
    inputs["advantages"][dropped] = 100.0
    assert trainer.compute_loss(trainer.model, inputs).detach() == loss


@pytest.mark.parametrize(
    ("options", "settings", "match"),
    [
        ({"reward_funcs": term_rewards("luck")}, {}, "needs textenv_reward"),
        ({}, {"reward_weights": [0.0]}, "must be above 0"),
        ({}, {"multi_objective_aggregation": "normalize_then_sum"}, "sum_then_normalize"),
        ({"algorithm": GAE()}, {}, "gae needs critic"),
        ({"algorithm": RLOO(reward_credit="last")}, {}, "reward_credit"),
    ],
)
def test_what_cannot_be_credited_is_refused(options, settings, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        made(tmp_path, options=options, **settings)


def test_rollout_without_turns_is_refused(tmp_path):
    def rollout(prompts, trainer):
        return {"prompt_ids": [[1]] * len(prompts), "completion_ids": [[2]] * len(prompts), "logprobs": None}

    with pytest.raises(ValueError, match="needs a TextEnvRollout as rollout_func"):
        trl_trainer(tmp_path, textenv_dataset(BYTES, 4), rollout, kind=TurnCreditGRPOTrainer)
