"""``actor.observation_loss`` in an update: what is weighed how, which episodes are computed, and nothing at 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ppo_runs import episodes_of, in_process, training_of
from trajectories import trajectory_of, turns_of

from trainers.algorithms.batch import Advantages
from trainers.algorithms.losses.observation import observation_weights
from trainers.command_line import resolve
from trainers.learner import Learner
from trainers.models import tiny
from trainers.section import ActorSection
from trainers.trajectory import Trajectory, action_offsets
from trainers.update import Prepared, Update

RNG = np.random.default_rng(3)


def episode(*turns: tuple[int, int], observed: int, tail: int = 0, **fields: Any) -> Trajectory:
    """Return an episode of which so many tokens, the last that the policy did not sample, are observation tokens."""
    turn_id = turns_of(*turns, tail=tail)
    made = trajectory_of(turn_id, token_ids=RNG.integers(0, 61, len(turn_id)), logprobs=-1, **fields)
    mask = np.zeros(len(turn_id), np.bool_)
    mask[np.flatnonzero(~made.action_mask)[::-1][:observed]] = True
    return replace(made, observation_mask=mask)


EPISODES = [
    episode((4, 3), (5, 2), observed=4, episode_id="a"),
    episode((3, 6), observed=0, episode_id="b"),
    episode((4, 2), (3, 2), observed=6, tail=4, episode_id="c"),
    episode((5, 2), (1, 4), observed=1, episode_id="d"),
]
SIZES = [4, 0, 6, 1]


def learner_of() -> Learner:
    model = tiny.build_model(61, hidden=32, layers=1, heads=2, kv_heads=1, seed=5)
    return Learner(model, actor=ActorSection(lr=1e-2))


def learned(
    learner: Learner, with_gradient: list[int], *words: str, items: list[Trajectory] = EPISODES
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Update on episodes of which these have advantages; return the metrics and the weights afterwards."""
    settings = ["actor.entropy_coeff=0", "actor.lr_warmup_steps=0", "actor.mini_batches=1"]
    config, _ = resolve([*settings, *words])
    offsets = action_offsets(items)
    parts = [np.full(size, 0.5 if e in with_gradient else 0.0) for e, size in enumerate(np.diff(offsets))]
    columns = {
        "old_logprobs": np.concatenate(learner.logprobs(items)).astype(np.float64),
        "advantages": np.concatenate(parts),
    }
    made = Advantages(columns["advantages"], np.ones(offsets[-1], np.bool_))
    metrics = Update(config).optimize(Prepared(items, columns, made, {}, {}), learner, iteration=0).metrics
    return metrics, learner.weights()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=8), st.floats(0.001, 1))
def test_every_rollout_weighs_the_same(episodes, coefficient) -> None:
    sizes, tree = (np.array(column) for column in zip(*episodes, strict=True))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    weights = observation_weights(coefficient, offsets, tree)
    assert len(weights) == offsets[-1]
    of_token, rollouts = np.repeat(tree, sizes), len(np.unique(tree))
    for root in np.unique(of_token):
        own = weights[of_token == root]
        assert own == pytest.approx(np.full(len(own), coefficient / rollouts / len(own)))


def test_loss_is_mean_over_rollouts() -> None:
    """With no advantage anywhere, the term is all of the loss, and all of the gradient."""
    learner = learner_of()
    with torch.no_grad():
        means = []
        for item in EPISODES:
            ids = torch.from_numpy(item.token_ids.astype(np.int64))
            log_p = torch.log_softmax(learner.actor.lm(input_ids=ids[None]).logits[0], -1)
            where = np.flatnonzero(item.observation_mask)
            means.append(-float(log_p[where - 1, ids[where]].mean()) if len(where) else 0.0)
    metrics, after = learned(learner, [], "actor.observation_loss=0.02", "rollout.temperature=1")
    assert metrics["actor/observation_loss"] == pytest.approx(0.02 * np.mean(means), rel=1e-5)
    assert metrics["actor/loss"] == pytest.approx(metrics["actor/observation_loss"], rel=1e-5)
    nll = np.dot(means, SIZES) / sum(SIZES)
    assert metrics["actor/observation_nll"] == pytest.approx(nll, rel=1e-5)
    assert metrics["actor/observation_gradient"] == 1.0
    assert metrics["actor/grad_norm"] > 0
    assert metrics["actor/episodes_without_gradient"] == 0.25  # only the one that the environment never answered
    before = learner_of().weights()
    assert any(not torch.equal(after[name], before[name]) for name in before)


def test_update_is_the_same_however_cut() -> None:
    results = []
    for budget in (10_000, 1):
        model = tiny.build_model(61, hidden=32, layers=1, heads=2, kv_heads=1, seed=5)
        learner = Learner(model, actor=ActorSection(lr=1e-2, max_tokens_per_micro_batch=budget))
        results.append(learned(learner, [0], "actor.observation_loss=0.05")[0])
    names = [name for name in results[0] if "observation" in name or name in ("actor/loss", "actor/grad_norm")]
    assert len(names) == 6
    assert {n: results[1][n] for n in names} == pytest.approx({n: results[0][n] for n in names}, rel=1e-4)


def test_weight_of_0_changes_no_bit() -> None:
    """Neither the recorded observations nor the key change the update."""
    plain = [replace(item, observation_mask=item.observation_mask[:0]) for item in EPISODES]
    cases = [(EPISODES, ("actor.observation_loss=0",)), (plain, ())]
    results = [learned(learner_of(), [0, 2], *words, items=items) for items, words in cases]
    (metrics, weights), (expected, others) = results
    timed = {"actor/tokens_per_s", "actor/tflops", "actor/peak_gib"}
    assert {n: v for n, v in metrics.items() if n not in timed} == {n: v for n, v in expected.items() if n not in timed}
    assert all(weights[name].numpy().tobytes() == others[name].numpy().tobytes() for name in others)
    assert not any("observation" in name for name in metrics)


def test_episodes_without_advantage_are_computed() -> None:
    assert learned(learner_of(), [1])[0]["actor/episodes_without_gradient"] == 0.75
    assert learned(learner_of(), [1], "actor.observation_loss=0.01")[0]["actor/episodes_without_gradient"] == 0.0


def test_roles_without_the_loss_are_refused() -> None:
    with pytest.raises(Exception, match="actor.observation_roles"):
        resolve(["actor.observation_roles=[tool]"])
    config, _ = resolve(["actor.observation_loss=0.01", "actor.observation_roles=[tool]"])
    assert config.actor.observed_roles == ("tool",)
    with pytest.raises(Exception, match="system"):
        resolve(["actor.observation_loss=0.01", "actor.observation_roles=[system]"])


def test_run_learns_what_its_environment_says(tmp_path: Path) -> None:
    options = ("algorithm.adv_estimator=turn_grpo", "trainer.total_iterations=1", "trainer.test_freq=-1")
    env = ("env.id=textenv/gsm8k-interact", "env.kwargs.max_assistant_turns=3", "engine.max_context=512")
    folder = f"trainer.rollout_data_dir={tmp_path}/episodes"
    run = in_process(tmp_path / "run", *options, *env, folder, "actor.observation_loss=0.02")
    (row,) = training_of(tmp_path / "run")
    assert 0 < row["actor/observation_share"] < 1
    assert 0 < row["actor/observation_nll"] < 10
    assert 0 < row["actor/observation_gradient"] <= 1
    observed = [episode for episode in episodes_of(tmp_path / "episodes") if episode.observation_mask.any()]
    assert observed
    for item in observed:
        answers = [message["content"] for message in item.messages[1:] if message["role"] == "user"]
        assert run.tokenizer.decode(item.token_ids[item.observation_mask]) == "".join(answers)
