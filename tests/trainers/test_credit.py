"""From turn rewards to the losses: what the configuration chooses goes in with the right sign, weight and token."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from estimating import estimate
from trajectories import trajectory_of, turns_of

from trainers.algorithms.batch import ActionBatch, Advantages
from trainers.algorithms.estimators import KLControlSection
from trainers.algorithms.kl import KLController
from trainers.algorithms.losses import LOSSES
from trainers.command_line.load import resolve
from trainers.config import PPOConfig
from trainers.rollout.batch import BatchEpisode, roots_and_forks
from trainers.trajectory import Trajectory
from trainers.update import Update, critic_loss, has_gradient

SIZES = ((2, 1), (3,), (1, 2), (2,))  # action tokens by turn; two groups of two
REWARDS = ((0.5, 1.0), (-1.0,), (0.25, 0.0), (2.0,))


def config(*options: str) -> PPOConfig:
    return resolve(["model.device=cpu", *options])[0]


def episodes() -> list[Trajectory]:
    """An observation before each turn; log-probabilities -0.1, -0.2, ... of an episode's action tokens."""
    made = []
    for number, (sizes, rewards) in enumerate(zip(SIZES, REWARDS, strict=True)):
        turns = turns_of(*((1, size) for size in sizes))
        logprobs = -0.1 * np.cumsum(np.array(turns) >= 0)
        made.append(trajectory_of(turns, rewards, logprobs=logprobs, group_id=str(number // 2)))
    return made


def split(flat: np.ndarray) -> list[np.ndarray]:
    return np.split(flat.astype(np.float32), np.cumsum([sum(sizes) for sizes in SIZES])[:-1])


ROLLOUT = np.concatenate([t.logprobs[t.action_mask] for t in episodes()]).astype(np.float64)
COUNT = len(ROLLOUT)
RNG = np.random.default_rng(0)
AGAIN, REFERENCE, VALUES = (RNG.uniform(-1, 0, COUNT).astype(np.float32).astype(np.float64) for _ in range(3))


def learner(*, reference: bool = False, critic: bool = False) -> Any:
    """Says the numbers above."""

    def logprobs(trajectories: Any, model: str = "actor", entropy: bool = False) -> Any:
        scores = split(REFERENCE if model == "reference" else AGAIN)
        return (scores, scores) if entropy else scores

    return SimpleNamespace(
        reference=reference or None,
        critic=critic or None,
        logprobs=logprobs,
        values=lambda trajectories: (split(VALUES), np.zeros(len(trajectories))),
    )


def to_go(rewards: np.ndarray) -> np.ndarray:
    return np.concatenate([np.cumsum(part[::-1])[::-1] for part in np.split(rewards, np.cumsum(list(map(sum, SIZES))))])


def token_rewards() -> np.ndarray:
    return np.concatenate([t.token_rewards()[t.action_mask] for t in episodes()])


NO_KL = KLController(KLControlSection(kl_coef=0.0))


class Steered(KLController):
    """Keeps what it is told, and becomes ten times as large."""

    def update(self, kl: float, episodes: int) -> None:
        self.update_arguments = (kl, episodes)
        self.beta *= 10


def prepare(
    run: PPOConfig, learner: Any, kl: KLController, batch: list[Trajectory], users: int = 0
) -> tuple[Any, Advantages, Any]:
    """Return the columns, advantages and metrics of a batch that is prepared for its optimizer steps."""
    sides = [
        *roots_and_forks(batch[: len(batch) - users]),
        *(BatchEpisode(t, t, "partner", agent="user") for t in batch[-users:] if users),
    ]
    prepared = Update(run, kl).prepare(sides, learner)
    return prepared.columns, prepared.advantages, prepared.metrics


CRITIC = ("algorithm.adv_estimator=gae", "algorithm.gamma=1", "algorithm.lam=1")


def test_reward_kl_is_subtracted_per_token():
    kl = Steered(KLControlSection(kl_coef=0.5))
    options = ("algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=k1", "algorithm.norm_adv=false", *CRITIC)
    columns, result, metrics = prepare(config(*options), learner(reference=True, critic=True), kl, episodes())
    estimate = ROLLOUT - REFERENCE
    assert columns["returns"] == pytest.approx(to_go(token_rewards() - 0.5 * estimate), abs=1e-6)
    assert columns["advantages"] == pytest.approx(columns["returns"] - VALUES, abs=1e-6)
    assert (columns["advantages"] == result.advantages).all()
    lengths = list(map(sum, SIZES))
    by_episode = np.mean([part.mean() for part in np.split(estimate, np.cumsum(lengths)[:-1])])
    assert len(set(lengths)) > 1, "else the mean over tokens is the same"
    assert (metrics["actor/ref_kl"], metrics["actor/kl_coef"]) == pytest.approx((by_episode, 0.5))
    assert kl.update_arguments == (pytest.approx(by_episode), 4), "the next batch's weight, not this one's"


def test_kl_is_that_of_roots_alone():
    """Forks are many and see late turns: a target, and a horizon in episodes, mean the same without them."""
    kl, names = Steered(KLControlSection(kl_coef=0.5)), iter("abcd")
    trajectories = [dataclasses.replace(t, episode_id=next(names)) for t in episodes()]
    trajectories[1] = dataclasses.replace(trajectories[1], forked_from="a", forked_turn=1)
    options = ("algorithm.adv_estimator=fork", "algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=k1")
    _, _, metrics = prepare(config(*options), learner(reference=True), kl, trajectories)
    parts = np.split(ROLLOUT - REFERENCE, np.cumsum(list(map(sum, SIZES)))[:-1])
    assert metrics["actor/ref_kl"] == pytest.approx(np.mean([parts[place].mean() for place in (0, 2, 3)]))
    assert kl.update_arguments == (metrics["actor/ref_kl"], 3)


def test_loss_kl_keeps_rewards_unchanged():
    kl = Steered(KLControlSection(kl_coef=0.5))
    options = ("actor.use_kl_loss=true", "algorithm.norm_adv=false", *CRITIC)
    columns, _, _ = prepare(config(*options), learner(reference=True, critic=True), kl, episodes())
    assert columns["returns"] == pytest.approx(to_go(token_rewards()))
    assert columns["ref_logprobs"] == pytest.approx(REFERENCE)
    assert kl.beta == 0.5


def test_critic_metrics_are_reported():
    columns, _, metrics = prepare(config(*CRITIC), learner(critic=True), NO_KL, episodes())
    assert columns["old_values"] == pytest.approx(VALUES)
    returns = to_go(token_rewards())
    assert metrics["critic/value_mean"] == pytest.approx(VALUES.mean())
    assert metrics["critic/explained"] == pytest.approx(1 - np.var(returns - VALUES) / np.var(returns))


def test_recomputed_logprobs_replace_and_correct_rollout_ones():
    options = ("actor.old_logprobs=recompute", "actor.importance_correction=token_tis", "actor.tis_cap=1.3")
    reject = ("actor.rejection=token", "actor.rejection_low=0.8", "actor.rejection_high=1.5")
    rloo = ("algorithm.adv_estimator=rloo", "algorithm.baseline=group", "algorithm.norm_adv=false")
    run = config(*options, *reject, *rloo)
    columns, result, metrics = prepare(run, learner(), NO_KL, episodes())
    ratio = np.exp(AGAIN - ROLLOUT)
    retained = (ratio >= 0.8) & (ratio <= 1.5)
    assert 0 < retained.sum() < COUNT
    assert columns["old_logprobs"] == pytest.approx(AGAIN)
    assert columns["importance"] == pytest.approx(np.minimum(ratio, 1.3))
    totals = [sum(rewards) for rewards in REWARDS]
    by_episode = [totals[e] - totals[e ^ 1] for e in range(4)]  # the other of the two
    expected = np.repeat(by_episode, [sum(sizes) for sizes in SIZES])
    assert result.policy_mask.tolist() == retained.tolist()
    assert not columns["advantages"][~retained].any()
    assert columns["advantages"][retained] == pytest.approx(expected[retained])
    assert metrics["actor/rejected"] == pytest.approx(1 - retained.mean())


def test_optimal_token_baseline_weights_by_rollout_logprobs():
    """Also with recomputed log-probabilities, which differ."""
    run = config("algorithm.baseline=optimal_token", "actor.old_logprobs=recompute")
    columns, _, _ = prepare(run, learner(), NO_KL, episodes())
    batch = ActionBatch.from_trajectories(episodes(), score_norms=(1.0 - np.exp(ROLLOUT)) ** 2)
    assert columns["advantages"] == pytest.approx(estimate("turn_grpo", batch, baseline="optimal_token").advantages)


def test_user_rewards_stay_out_of_assistant_baselines():
    run, trajectories = config("algorithm.adv_estimator=turn_grpo", "algorithm.baseline=mixed"), episodes()
    columns, _, _ = prepare(run, learner(), NO_KL, trajectories, users=2)
    sides = (ActionBatch.from_trajectories(side) for side in (trajectories[:2], trajectories[2:]))
    apart = [estimate("turn_grpo", side, baseline="mixed") for side in sides]
    assert columns["advantages"] == pytest.approx(np.concatenate([result.advantages for result in apart]))
    without, _, _ = prepare(run, learner(), NO_KL, trajectories)
    assert columns["advantages"] != pytest.approx(without["advantages"]), "the batch has two groups, one a side"


def test_advantages_are_normalised_over_trained_tokens():
    reject = ("actor.old_logprobs=recompute", "actor.rejection=token", "actor.rejection_low=0.8")
    run = config(*reject, "algorithm.adv_estimator=rloo", "algorithm.norm_adv=true")
    columns, result, _ = prepare(run, learner(), NO_KL, episodes())
    trained = result.policy_mask
    assert 0 < trained.sum() < COUNT
    assert columns["advantages"][trained].mean() == pytest.approx(0.0, abs=1e-9)
    assert columns["advantages"][trained].std() == pytest.approx(1.0)


# ------------------ losses


def batch(**extra: torch.Tensor) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    names = ("old_logprobs", "ref_logprobs", "advantages", "weight", "share", "old_values", "returns")
    made = {name: torch.randn(COUNT, generator=generator, dtype=torch.float64) for name in names}
    return made | {"trajectory": torch.arange(COUNT) // 3} | extra


@pytest.mark.parametrize("importance", [False, True])
def test_policy_loss_is_surrogate_minus_bonus_plus_kl(importance):
    section = config(
        *("actor.entropy_coeff=0.3", "actor.use_kl_loss=true", "actor.kl_loss_coef=0.7", "actor.kl_loss_type=k2"),
        *("actor.clip_ratio_low=0.1", "actor.clip_ratio_high=0.4", "actor.clip_ratio_c=1.5"),
    ).actor
    inputs = batch(**{"importance": torch.linspace(0.5, 2.0, COUNT, dtype=torch.float64)} if importance else {})
    logprobs = (inputs["old_logprobs"] + torch.linspace(-1.5, 1.5, COUNT, dtype=torch.float64)).requires_grad_()
    entropy = torch.linspace(0.1, 2.0, COUNT, dtype=torch.float64, requires_grad=True)
    ratio, advantages = (logprobs - inputs["old_logprobs"]).exp(), inputs["advantages"]
    surrogate = -torch.minimum(ratio * advantages, ratio.clamp(0.9, 1.4) * advantages)
    surrogate = torch.where(advantages < 0, torch.minimum(surrogate, -1.5 * advantages), surrogate)
    kl = (logprobs - inputs["ref_logprobs"]).square() / 2
    expected = inputs["weight"] * (surrogate * inputs.get("importance", torch.tensor(1.0)) - 0.3 * entropy + 0.7 * kl)
    loss, sums = section.batch_loss(logprobs, entropy, inputs)
    torch.testing.assert_close(loss, expected.sum())
    gradients, expected_gradients = (
        torch.autograd.grad(value.sum(), [logprobs, entropy]) for value in (loss, expected)
    )
    torch.testing.assert_close(gradients, expected_gradients)
    assert sums["dual_clipped"] != 0, "or that bound was not tested"
    torch.testing.assert_close(sums["kl_loss"], (inputs["share"] * kl).sum().detach())
    torch.testing.assert_close(sums["ratio"], (inputs["share"] * ratio).sum().detach())
    assert not any(value.requires_grad for value in sums.values())


@pytest.mark.parametrize("name", ["geo_mean", "kl_cov"])
def test_loss_gets_its_episodes_and_selected_tokens(name):
    options = (f"actor.policy_loss={name}", "actor.entropy_coeff=0", "algorithm.adv_estimator=rloo")
    section, inputs = config(*options).actor, batch(selected=(torch.arange(COUNT) % 2).double())
    logprobs = inputs["old_logprobs"] + torch.linspace(-0.2, 0.2, COUNT, dtype=torch.float64)
    ratio, advantages = (logprobs - inputs["old_logprobs"]).exp(), inputs["advantages"]
    if name == "geo_mean":  # nothing is clipped
        by_episode = ratio.log().split(inputs["trajectory"].bincount().tolist())
        expected = -advantages * torch.cat([part.mean().exp().expand(len(part)) for part in by_episode])
    else:
        expected = -ratio * advantages + 0.1 * inputs["selected"] * ratio.log().abs()
    loss, _ = section.batch_loss(logprobs, torch.zeros(COUNT), inputs)
    torch.testing.assert_close(loss, (inputs["weight"] * expected).sum())


def test_gdpo_sees_terms_of_whole_episodes_by_name(caplog):
    earned = [
        {"right": 1.0, "format": 0.5},
        {"right": 0.0, "format": 0.5},
        {"right": 3.0},
        {"right": 3.0, "format": -1.0},
    ]
    batch = [
        dataclasses.replace(episode, turn_terms=tuple([terms] + [{"format": 0.25}] * (episode.num_turns - 1)))
        for episode, terms in zip(episodes(), earned, strict=True)
    ]
    keys = ["algorithm.gdpo_reward_keys=[right,format,tone]", "algorithm.gdpo_reward_weights=[2,1,1]"]
    run = config("algorithm.adv_estimator=gdpo", *keys)
    columns, result, metrics = prepare(run, learner(), NO_KL, batch)
    terms = [[1.0, 0.75, 0.0], [0.0, 0.5, 0.0], [3.0, 0.25, 0.0], [3.0, -1.0, 0.0]]
    expected = estimate("gdpo", ActionBatch.from_trajectories(batch, terms=terms), gdpo_reward_weights=(2.0, 1.0, 1.0))
    np.testing.assert_allclose(columns["advantages"], expected.advantages, atol=1e-6)
    assert metrics["actor/term_std/right"] == pytest.approx(np.std([1.0, 0.0, 3.0, 3.0]))
    assert metrics["actor/term_std/tone"] == 0.0
    assert "no episode of this batch was paid ['tone']; its terms are ['format', 'right']" in caplog.text


def test_zero_bonus_and_kl_are_not_computed():
    section = config("actor.entropy_coeff=0", "actor.use_kl_loss=false").actor
    inputs = batch()
    del inputs["ref_logprobs"]
    logprobs = inputs["old_logprobs"].clone().requires_grad_()
    entropy = torch.ones(COUNT, dtype=torch.float64, requires_grad=True)
    loss, sums = section.batch_loss(logprobs, entropy, inputs)
    loss.backward()
    assert entropy.grad is None
    assert "kl_loss" not in sums
    torch.testing.assert_close(logprobs.grad, -inputs["weight"] * inputs["advantages"])


@pytest.mark.parametrize("clip", [None, 0.2])
def test_critic_loss_is_half_squared_error(clip):
    section = config(*CRITIC, f"critic.cliprange_value={'null' if clip is None else clip}").critic
    inputs = batch()
    values = inputs["old_values"] + torch.linspace(-0.5, 0.5, COUNT, dtype=torch.float64)
    error = (values - inputs["returns"]).square()
    most = error
    if clip is not None:
        moved = torch.minimum(torch.maximum(values, inputs["old_values"] - clip), inputs["old_values"] + clip)
        most = torch.maximum(error, (moved - inputs["returns"]).square())
    loss, sums = critic_loss(section)(values, inputs)
    torch.testing.assert_close(loss, (inputs["weight"] * most / 2).sum())
    torch.testing.assert_close(sums["clipped"], (inputs["weight"] * (most > error)).sum())


# --- episodes without a gradient

OFFSETS = np.array([0, 3, 5, 9])
WITHOUT = np.array([0.0, 0.0, 0.0, -1.0, 0.5, 0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_skipped_episode_changes_no_gradient(name: str) -> None:
    section = config(f"actor.policy_loss={name}", "actor.entropy_coeff=0", "algorithm.adv_estimator=grpo").actor
    mask = np.ones(9, np.bool_)
    needed = has_gradient(section, WITHOUT, mask, OFFSETS)
    assert needed.tolist() == ([True, True, True] if name == "kl_cov" else [False, True, False])

    rng = np.random.default_rng(3)
    old = torch.from_numpy(rng.uniform(-2, 0, 9))
    new = old + torch.from_numpy(rng.normal(0, 0.4, 9))
    weight = torch.from_numpy(rng.uniform(0.1, 1, 9))

    def gradient(episodes: np.ndarray) -> np.ndarray:
        tokens = torch.from_numpy(np.repeat(episodes, np.diff(OFFSETS)))
        logprobs = new.clone().requires_grad_()
        part = {
            "old_logprobs": old[tokens],
            "advantages": torch.from_numpy(WITHOUT)[tokens],
            "trajectory": torch.from_numpy(np.repeat(np.arange(3), np.diff(OFFSETS)))[tokens],
            "weight": weight[tokens],
            "share": torch.full((int(tokens.sum()),), 0.1),
            "selected": torch.zeros(9)[tokens],
        }
        section.batch_loss(logprobs[tokens], torch.zeros(int(tokens.sum())), part)[0].backward()
        assert logprobs.grad is not None
        return logprobs.grad.numpy()

    whole = gradient(np.ones(3, np.bool_))
    assert np.abs(whole).max() > 0
    np.testing.assert_allclose(gradient(needed), whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("term", ["actor.entropy_coeff=0.01", "actor.use_kl_loss=true"])
def test_per_token_terms_need_every_episode(term: str) -> None:
    section = config("actor.entropy_coeff=0", term).actor
    assert has_gradient(section, WITHOUT, np.ones(9, np.bool_), OFFSETS).all()


def test_untrained_tokens_need_no_episode() -> None:
    section = config("actor.entropy_coeff=0").actor
    mask = np.array([True] * 3 + [False] * 2 + [True] * 4)
    assert not has_gradient(section, WITHOUT, mask, OFFSETS).any()
