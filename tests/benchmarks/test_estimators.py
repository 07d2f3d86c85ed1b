"""Benchmark of estimators: exact gradients, moments, and detection of a planted bias."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from trajectories import trajectory_of, turns_of
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.estimators import __main__ as command
from benchmarks.estimators import enumerated, text
from benchmarks.estimators.enumerated import Piece, measure
from benchmarks.estimators.games import GAMES, Game, play
from benchmarks.estimators.measure import Moments
from benchmarks.estimators.stack import Stack, take
from benchmarks.estimators.ways import CORRECTIONS, DEFAULT, WAYS, Way
from trainers.algorithms.baselines import Baseline, score_norms
from trainers.algorithms.batch import ActionBatch, Advantages
from trainers.algorithms.estimators import ESTIMATORS, RLOO
from trainers.algorithms.names import Aggregation, Importance, Rejection


@pytest.fixture(params=sorted(GAMES))
def game(request: pytest.FixtureRequest) -> Game:
    return Game.of(GAMES[request.param])


def logits_of(game: Game) -> np.ndarray:
    return np.random.default_rng(0).normal(0.0, 0.7, game.shape)


def played(game: Game, groups: int, size: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    tasks = np.repeat(rng.integers(len(game.starts), size=groups), size)
    return play(game, logits_of(game), tasks, np.repeat(np.arange(groups), size), rng)


# ------------------ the games


def test_gradient_is_slope_of_expected_return(game: Game) -> None:
    logits = logits_of(game)
    gradient, rng = game.gradient(logits), np.random.default_rng(1)
    for _ in range(3):
        way = rng.normal(size=logits.shape)
        slope = (game.expected_return(logits + 1e-5 * way) - game.expected_return(logits - 1e-5 * way)) / 2e-5
        assert slope == pytest.approx(float((gradient * way).sum()), rel=1e-5, abs=1e-8)


def test_mean_return_is_expected_return(game: Game) -> None:
    batch = played(game, 8000, 1).batch
    returns = np.bincount(batch.episode_of_turn, batch.turn_rewards)
    expected = game.expected_return(logits_of(game))
    assert abs(returns.mean() - expected) < 4 * returns.std() / len(returns) ** 0.5
    np.testing.assert_allclose(batch.terms.sum(1), returns, atol=1e-12)


def test_episodes_end_early_and_by_budget() -> None:
    """Cover turn rewards, early termination and truncation."""
    batches = {name: played(Game.of(rules), 2000, 1).batch for name, rules in GAMES.items()}
    assert all(len(set(np.diff(batch.turn_offsets))) > 1 for batch in batches.values())
    assert batches["dense"].truncated.any()
    assert batches["ask"].truncated.any()
    assert not batches["outcome"].truncated.any()
    last = np.append(np.diff(batches["outcome"].episode_of_turn) > 0, True)
    assert not batches["outcome"].turn_rewards[~last].any()
    assert batches["dense"].turn_rewards.all()


# ------------------ what is compared


def test_every_documented_name_is_compared() -> None:
    elsewhere = {"fork", "rae"}  # benchmarks.fork_variance and selfplay compare them
    not_measured = {"gagpo", "graphgpo", "maxrl"}  # no results of them are published
    assert {way.estimator for way in WAYS} == set(ESTIMATORS) - elsewhere - not_measured
    assert {way.options.get("baseline", "group") for way in WAYS} == set(get_args(Baseline))
    assert {way.aggregation for way in WAYS} == set(get_args(Aggregation)) - {"seq-mean-token-sum-norm"}  # a constant
    assert {correction.importance for correction in CORRECTIONS} == set(get_args(Importance))
    assert {correction.rejection for correction in CORRECTIONS} == set(get_args(Rejection))


def stack_of(game: Game) -> Stack:
    batch = played(game, 12, 4).batch
    rng = np.random.default_rng(2)
    batch = replace(
        batch,
        values=rng.normal(size=batch.num_tokens),
        bootstrap=rng.normal(size=batch.num_episodes),
        greedy=rng.normal(size=batch.num_episodes),
        score_norms=score_norms(np.log(rng.uniform(0.1, 0.9, batch.num_tokens))),
    )
    return Stack({"rough": batch, "exact": batch}, 16)


def test_batches_of_a_stack_are_independent(game: Game) -> None:
    stack = stack_of(game)
    for way in WAYS:
        together, apart = stack.advantages(way), stack.advantages(replace(way, by_batch=True))
        np.testing.assert_allclose(together.advantages, apart.advantages, atol=1e-9, err_msg=way.name)
    mixed = stack.advantages(replace(DEFAULT, by_batch=False))
    assert np.abs(mixed.advantages - stack.advantages(DEFAULT).advantages).max() > 1e-3


def test_taking_all_episodes_returns_the_batch(game: Game) -> None:
    batch = stack_of(game).whole
    same, tokens = take(batch, np.arange(batch.num_episodes), batch.group)
    np.testing.assert_array_equal(tokens, np.arange(batch.num_tokens))
    backwards, tokens = take(batch, np.arange(batch.num_episodes)[::-1], batch.group[::-1])
    np.testing.assert_array_equal(same.turn_rewards, batch.turn_rewards)
    np.testing.assert_array_equal(backwards.values, batch.values[tokens])
    assert backwards.turn_rewards.sum() == pytest.approx(batch.turn_rewards.sum())


# ------------------ moments


def test_moments_match_known_distribution() -> None:
    rng = np.random.default_rng(3)
    truth = np.array([3.0, 0.0, 0.0, 4.0])
    across = np.array([0.0, 0.5, 0.0, 0.0])  # at a right angle
    moments = Moments(truth, 1, 4000)
    for _ in range(4000):
        moments.add((2.0 * truth + across + rng.normal(0.0, 0.8, 4))[None], np.array([10.0]))
    (row,) = moments.results()
    assert row["scale"] == pytest.approx(2.0, rel=0.01)
    assert row["noise"] == pytest.approx(10 * 4 * 0.64 / 100, rel=0.05)
    assert abs(row["bias2"] - 0.25 / 100) < 4 * row["bias2_se"] < 0.001


def ask(ways: list[Way], batches: int = 2500, staleness: int = 0) -> dict[tuple[str, str], dict[str, Any]]:
    rows = measure(Piece("ask", staleness, 4, 4, batches), ways)
    return {(row["way"], row["correction"]): row for row in rows}


class Doubled(RLOO):
    """An RLOO with a planted bias: each turn's reward counts twice, so asking costs twice as much."""

    def advantages(self, batch: ActionBatch) -> Advantages:
        right = super().advantages(batch)
        return replace(right, advantages=right.advantages + batch.turn_rewards[batch.turn_of_token])


def test_bias_is_detected_only_where_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ESTIMATORS, "doubled", Doubled)
    unbiased = [way for way in WAYS if way.estimator in ("rloo", "remax") or way.name.startswith("turn_grpo, group")]
    rows = ask([*unbiased, Way("doubled", "doubled")], batches=1000)
    for way in unbiased:
        row = rows[way.name, "none"]
        assert abs(row["bias2"]) < 4 * row["bias2_se"], way.name
        assert row["scale"] == pytest.approx(1.0, abs=0.1), way.name
    assert rows["doubled", "none"]["bias2"] > 5 * rows["doubled", "none"]["bias2_se"]


def test_episode_weight_removes_staleness_bias() -> None:
    rows = ask([DEFAULT], batches=1000, staleness=8)
    assert len(rows) == len(CORRECTIONS)
    whole = rows[DEFAULT.name, "sequence_tis, no cap"]
    assert abs(whole["bias2"]) < 4 * whole["bias2_se"]
    assert whole["scale"] == pytest.approx(1.0, abs=0.1)
    assert rows[DEFAULT.name, "none"]["kl"] > 0.005


# ------------------ the text part, and the command


def test_subspace_scores_match_autograd() -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 30}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False}
    model = Qwen2ForCausalLM(Qwen2Config(**shape, **heads)).float().eval()
    ids = np.arange(1, 8, dtype=np.int32)
    trajectory = trajectory_of(turns_of((2, 2), (2, 1)), token_ids=ids)
    own, norms, scores = text.features(model, [trajectory])
    rng = torch.Generator().manual_seed(0)
    row_basis = torch.randn(text.ROWS, 30, generator=rng) / text.ROWS**0.5
    column_basis = torch.randn(text.COLUMNS, 16, generator=rng) / text.COLUMNS**0.5
    moved = torch.zeros(text.ROWS, text.COLUMNS, requires_grad=True)
    hidden = model.model(torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state[0].detach()
    logits = hidden @ (model.lm_head.weight.detach() + row_basis.T @ moved @ column_basis).T
    for row, at in enumerate(np.flatnonzero(trajectory.action_mask)):
        logprob = logits[at - 1].log_softmax(-1)
        (slope,) = torch.autograd.grad(logprob[int(ids[at])], moved, retain_graph=True)
        logprob = logprob.detach()
        np.testing.assert_allclose(scores[row], slope.flatten().numpy(), atol=1e-4)
        assert own[row] == pytest.approx(float(logprob[int(ids[at])]), abs=1e-5)
        exact = float(torch.square(torch.eye(30)[int(ids[at])] - logprob.exp()).sum())
        assert norms[row] == pytest.approx(exact, abs=1e-5)


def test_command_resumes_and_reports(tmp_path, monkeypatch, capsys) -> None:
    two = [Piece("ask", 0, 16, 8, 20), Piece("ask", 1, 16, 8, 20)]
    monkeypatch.setattr(enumerated, "pieces", lambda *_: two)
    where = ["--workers", "1", "--folder", str(tmp_path), "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["estimators", "--parts", "games", *where])
    command.main()
    rows = [json.loads(line) for line in (tmp_path / command.FILE).read_text().splitlines()]
    assert {row["piece"] for row in rows} == {str(piece) for piece in two}
    assert capsys.readouterr().out.count("Piece") == 2
    command.main()
    assert capsys.readouterr().out == ""
    assert len((tmp_path / command.FILE).read_text().splitlines()) == len(rows)
    page = (tmp_path / "estimators.md").read_text()
    assert all(f"| {way.name} |" in page for way in WAYS)
    assert all(f"| {correction.name} |" in page for correction in CORRECTIONS)
    assert (tmp_path / "estimators.png").stat().st_size > 10_000


def test_text_pieces_resume_part_by_part(tmp_path, monkeypatch, capsys) -> None:
    """Use a true gradient of (1, 1); updates of a pool deviate by (0, 1) and by one step per part."""
    done: list[text.Work] = []

    def train(env: str, folder: Path) -> None:
        text.checkpoint(folder, 8).mkdir(parents=True)

    def measured(piece: text.Piece, part: int, drawn: SimpleNamespace, truth: np.ndarray) -> tuple[Moments, Any]:
        np.testing.assert_allclose(truth, (1.0, 1.0))
        rows = len(text.compared(text.WITHOUT_CRITIC, piece.staleness))
        moments = Moments(truth, rows, 2, parts=1)
        for _ in range(2):
            step = 0.4 * (-1) ** part
            moments.add(np.tile([1.0 + step, 2.0 - step], (rows, 1)), np.full(rows, 5.0))
        return moments, {"kl": float(part), "return": 1.0, "tokens": float(drawn.batch.num_episodes)}

    def do(work: text.Work, folder: Path) -> float:
        if len(done) == 30:
            raise KeyboardInterrupt
        done.append(work)
        return original(work, folder)

    def play(env: str, folder: Path, iteration: int, episodes: int, seed: int) -> SimpleNamespace:
        return SimpleNamespace(batch=SimpleNamespace(num_episodes=episodes), seed=seed)

    def mean_update(pool: SimpleNamespace, episodes: np.ndarray) -> np.ndarray:
        return np.array([0.5, 1.5] if pool.seed % 2 else [1.5, 0.5])

    original = text.do
    monkeypatch.setattr(text, "train", train)
    monkeypatch.setattr(text, "play", play)
    monkeypatch.setattr(text, "_mean_update", mean_update)
    monkeypatch.setattr(text, "_measured", measured)
    monkeypatch.setattr(text, "do", do)
    monkeypatch.setattr(text, "STALENESS", (0, 4))
    where = ["--folder", str(tmp_path), "--results", str(tmp_path), "--workers", "1"]
    choice = ["--parts", "text", "--envs", "clarify", "--episodes", "4096", "--draws", "32"]
    monkeypatch.setattr(sys, "argv", ["estimators", *where, *choice])
    with pytest.raises(KeyboardInterrupt):
        command.main()
    assert [work.kind for work in done] == ["train"] + 16 * ["reference"] + 13 * ["pool"]
    monkeypatch.setattr(text, "do", original)
    command.main()
    rows = [json.loads(line) for line in (tmp_path / command.FILE).read_text().splitlines()]
    assert {row["staleness"] for row in rows} == {0, 4}
    for row in rows:
        # of (1, 2) a half is at a right angle to (1, 1) and three halves along it; 16 parts are off by 0.4 across, of
        # which products of different parts keep - 0.32 / 15
        assert row["bias2"] == pytest.approx((0.5 - 0.32 / 15) / 4.5)
        assert row["floor"] == pytest.approx(0.5 / 15 / 2)
        assert (row["kl"], row["tokens"]) == (7.5, 256.0)
    assert not list(tmp_path.rglob("pool-*"))
    capsys.readouterr()
    command.main()
    assert capsys.readouterr().out == ""


def test_indivisible_pool_is_refused() -> None:
    for episodes, batches, reference in ((4000, 400, 4096), (2048, 400, 4096), (4096, 15, 4096), (4096, 400, 4000)):
        with pytest.raises(ValueError, match="multiple of 512"):
            text.Piece("clarify", 0, episodes, batches, reference)
