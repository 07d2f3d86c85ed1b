"""Turn rewards reach verl's advantages: its own GAE, and ours under its own registry."""

import numpy as np
import pytest
import torch
from estimating import estimate
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from trajectories import trajectory_of, turns_of
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import compute_advantage

from trainers.algorithms.batch import ActionBatch, gather
from trainers.integrations.verl import TextEnvOutput

SEEDS = st.integers(0, 2**32 - 1)


def trajectory(rng, group):
    """An episode of one to four turns, with observations between them."""
    sizes = [rng.integers(1, 4, 2) for _ in range(rng.integers(1, 5))]
    turns = turns_of(*sizes)
    return trajectory_of(
        turns,
        rng.integers(-8, 9, len(sizes)) / 8,
        token_ids=rng.integers(0, 99, len(turns)),
        logprobs=-rng.random(len(turns)),
        episode_id=f"{rng.random()}",
        group_id=group,
    )


def episodes(seed, groups=3, siblings=4):
    rng = np.random.default_rng(seed)
    return [trajectory(rng, f"g{group}") for group in range(groups) for _ in range(siblings)]


def output_of(episode):
    """The same episode as the agent loop gives it to verl."""
    prompt = int(np.argmax(episode.action_mask))
    turn_id = episode.turn_id[prompt:]
    places = [np.flatnonzero(turn_id == turn) for turn in range(episode.num_turns)]
    spans = [[int(place[0]), int(place[-1]) + 1] for place in places]
    return TextEnvOutput(
        prompt_ids=episode.token_ids[:prompt].tolist(),
        response_ids=episode.token_ids[prompt:].tolist(),
        response_mask=episode.action_mask[prompt:].astype(int).tolist(),
        reward_score=float(episode.turn_rewards.sum()),
        metrics={},
        extra_fields={"turn_scores": episode.turn_rewards.tolist(), "turn_spans": spans},
    )


def batch_of(trajectories):
    """Build the batch that verl's default trainer has: the agent loop's output, padded on the right."""
    fields = [output_of(trajectory).as_dict() for trajectory in trajectories]

    def padded(name):
        return torch.nn.utils.rnn.pad_sequence([field[name] for field in fields], batch_first=True)

    batch = {"response_mask": padded("response_mask"), "token_level_rewards": padded("rm_scores")}
    uid = np.array([trajectory.group_id for trajectory in trajectories], dtype=object)
    return DataProto.from_dict(tensors=batch, non_tensors={"uid": uid})


def advantages_of(trajectories, estimator="textenv_turn_grpo", values=None, **algorithm):
    data = batch_of(trajectories)
    if values is not None:
        flat = iter(values)
        data.batch["values"] = torch.zeros(data.batch["token_level_rewards"].shape)
        for row, mask_row in enumerate(data.batch["response_mask"]):
            for place in mask_row.nonzero().ravel():
                data.batch["values"][row, place] = next(flat)
    config = OmegaConf.create({"gamma": 1.0, "lam": 1.0, "norm_adv_by_std_in_grpo": False, **algorithm})
    out = compute_advantage(data, estimator, gamma=config.gamma, lam=config.lam, config=config)
    mask = out.batch["response_mask"].bool()
    assert (out.batch["advantages"][~mask] == 0).all() or estimator == "gae"
    return out.batch["advantages"][mask].numpy(), out.batch["returns"][mask].numpy()


@given(SEEDS)
def test_formula(seed):
    """A turn's reward-to-go minus the mean of those of the siblings that have such a turn, written as it reads."""
    trajectories = episodes(seed)
    to_go = [
        [sum(trajectory.turn_rewards[turn:]) for turn in range(trajectory.num_turns)] for trajectory in trajectories
    ]
    expected = []
    for number, trajectory in enumerate(trajectories):
        for turn in range(trajectory.num_turns):
            rewards = [
                to_go[other][turn]
                for other, sibling in enumerate(trajectories)
                if other != number and sibling.group_id == trajectory.group_id and sibling.num_turns > turn
            ]
            baseline = sum(rewards) / len(rewards) if rewards else 0.0
            expected += [to_go[number][turn] - baseline] * int((trajectory.turn_id == turn).sum())
    advantages, returns = advantages_of(trajectories)
    np.testing.assert_allclose(advantages, expected, atol=1e-5)
    np.testing.assert_array_equal(returns, advantages)


@given(
    SEEDS,
    st.sampled_from([1.0, 0.9]),
    st.booleans(),
    st.fixed_dictionaries(
        {
            "zero_pad": st.booleans(),
            "outcome_mix": st.sampled_from([0.0, 0.5]),
            "baseline": st.sampled_from(["group", "mixed"]),
        }
    ),
)
def test_it_is_trainers_own(seed, gamma, norm_by_std, options):
    trajectories = episodes(seed)
    own = estimate(
        "turn_grpo", ActionBatch.from_trajectories(trajectories), gamma=gamma, norm_by_std=norm_by_std, **options
    ).advantages
    verls, _ = advantages_of(trajectories, gamma=gamma, norm_adv_by_std_in_grpo=norm_by_std, textenv=options)
    np.testing.assert_allclose(verls, own, atol=1e-4)


@given(SEEDS)
def test_verls_gae_sees_turn_rewards(seed):
    """Advantages are whitened there; returns are not."""
    trajectories = episodes(seed)
    rng = np.random.default_rng(seed)
    values = gather(trajectories, [rng.standard_normal(len(trajectory.token_ids)) for trajectory in trajectories])
    batch = ActionBatch.from_trajectories(trajectories, values=values)
    own = estimate("gae", batch, gamma=0.99, lam=0.95)
    _, returns = advantages_of(trajectories, "gae", values, gamma=0.99, lam=0.95)
    np.testing.assert_allclose(returns, own.returns, atol=1e-4)


def test_final_sum_is_not_equivalent():
    """Train as verl does without turn rewards: every turn of an episode gets the same."""
    trajectories = episodes(5)
    with_turns, _ = advantages_of(trajectories)
    for trajectory in trajectories:
        trajectory.turn_rewards[:] = [*[0.0] * (trajectory.num_turns - 1), trajectory.turn_rewards.sum()]
    without, _ = advantages_of(trajectories)
    assert not np.allclose(with_turns, without)


def test_rewards_on_observations_belong_to_previous_turn():
    mask = torch.tensor([[1, 1, 0, 0, 1], [1, 1, 0, 0, 0]])
    at_ends = torch.tensor([[0.0, 2.0, 0.0, 0.0, 3.0], [0.0, 1.0, 0.0, 0.0, 0.0]])
    behind = torch.tensor([[0.0, 0.0, 0.0, 2.0, 3.0], [0.0, 0.0, 0.0, 1.0, 0.0]])
    estimator = core_algos.get_adv_estimator_fn("textenv_turn_grpo")
    first, second = (
        estimator(rewards, mask, index=["a", "a"], config={"norm_adv_by_std_in_grpo": False})[0]
        for rewards in (at_ends, behind)
    )
    assert first.tolist() == second.tolist() == [[4.0, 4.0, 0.0, 0.0, 3.0], [-4.0, -4.0, 0.0, 0.0, 0.0]]


def test_episode_without_policy_tokens_is_ignored():
    mask = torch.tensor([[1, 1], [0, 0], [1, 0]])
    rewards = torch.tensor([[0.0, 1.0], [0.0, 5.0], [0.5, 0.0]])
    estimator = core_algos.get_adv_estimator_fn("textenv_turn_grpo")
    advantages, _ = estimator(rewards, mask, index=[0, 0, 0], config={"norm_adv_by_std_in_grpo": False})
    assert advantages.tolist() == [[0.5, 0.5], [0.0, 0.0], [-0.5, 0.0]]


def test_mistakes_are_named():
    trajectories = episodes(0)
    with pytest.raises(ValueError, match=r"algorithm.textenv: unknown keys \['zeropad'\]"):
        advantages_of(trajectories, textenv={"zeropad": True})
    with pytest.raises(ValueError, match="uid"):
        core_algos.get_adv_estimator_fn("textenv_turn_grpo")(torch.zeros(1, 1), torch.ones(1, 1))
