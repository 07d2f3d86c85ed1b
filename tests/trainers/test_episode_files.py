"""Files of episodes, with the learner's numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimating import estimator
from hypothesis import given
from hypothesis import strategies as st
from ppo_runs import in_process
from trajectories import trajectory_of

from textenvs.records import open_run
from textenvs.records.schema import EXPLAINED
from trainers.algorithms.batch import ActionBatch, episode_terms
from trainers.algorithms.estimators import ESTIMATORS
from trainers.models.tiny import build_tokenizer
from trainers.report.episodes import EpisodeFiles, Explained, Pieces, rounded, table_of
from trainers.report.metrics import groups_tied
from trainers.trajectory import Trajectory, read_parquet

TOKENIZER = build_tokenizer(["What is 3 + 4? héllo wörld"], vocab_size=300)


@given(st.lists(st.text(max_size=8), max_size=4), st.lists(st.lists(st.integers(0, 299), max_size=12), max_size=3))
def test_token_pieces_join_to_the_text(texts: list[str], random: list[list[int]]) -> None:
    encoded = [TOKENIZER.encode(text, add_special_tokens=False) for text in texts]
    ids = [np.array(token_ids, np.int32) for token_ids in [*encoded, *random]]
    vocabulary, apart = Pieces(TOKENIZER)(ids)
    for token_ids, own in zip(ids, apart, strict=True):
        own_pieces = own or [vocabulary[token] for token in token_ids.tolist()]
        assert len(own_pieces) == len(token_ids)
        whole = TOKENIZER.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        joined = "".join(own_pieces)
        if "\ufffd" in whole:  # how many stand for bytes that are no text is the decoder's choice
            assert joined.replace("\ufffd", "") == whole.replace("\ufffd", "")
        else:
            assert joined == whole


def test_multi_token_character_is_at_last_token() -> None:
    ids = np.array(TOKENIZER.encode("a€b", add_special_tokens=False), np.int32)
    _, (texts,) = Pieces(TOKENIZER)([ids])
    assert texts == ["a", "", "", "€", "b"]


def test_rounding_keeps_given_bits() -> None:
    values = np.random.default_rng(0).standard_cauchy(10_000).astype(np.float32)
    for bits in {column.bits for column in EXPLAINED.values() if column.bits}:
        result = rounded(values, bits)
        assert np.abs(result / values - 1).max() <= 2.0**-bits
        assert len(np.unique(np.frexp(result)[0])) <= 2 * 2**bits
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -0.5], np.float32)
    np.testing.assert_array_equal(rounded(special, 6), special)


def episodes(rng: np.random.Generator) -> list[Trajectory]:
    """Groups of three; one to three turns of one to three tokens."""
    made = []
    for number in range(9):
        turns = np.repeat(np.arange(turns := int(rng.integers(1, 4))), rng.integers(1, 4, turns))
        rewards = rng.choice([0.0, 0.5, 1.0], turns.max() + 1)
        terms = tuple({"a": float(reward)} for reward in rewards)
        made.append(
            trajectory_of(turns, rewards, turn_terms=terms, episode_id=f"e{number}", group_id=f"g{number // 3}")
        )
    return made


@pytest.mark.parametrize("name", [*ESTIMATORS])
@pytest.mark.parametrize("options", [{}, {"norm_by_std": False}, {"gamma": 0.5}])
def test_advantage_is_scaled_return_minus_baseline(name: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    trajectories, extra = episodes(rng), {}
    count = sum(len(trajectory.token_ids) for trajectory in trajectories)
    if name.endswith("gae"):
        extra = {"values": rng.normal(size=count)}
    elif name == "remax":
        extra = {"greedy": np.full(9, 0.25)}
    elif name == "rae":
        extra = {"role_baseline": np.linspace(0.0, 1.0, 9)}
    elif name == "gdpo":
        extra = {"terms": episode_terms(trajectories)[1]}
    elif name in ("gigpo", "gagpo", "graphgpo"):
        extra = {"anchor": np.zeros(sum(trajectory.num_turns for trajectory in trajectories), np.int64)}
        extra |= {"solved": np.arange(9) % 2 == 0} if name == "graphgpo" else {}
    options = {key: value for key, value in options.items() if key in ESTIMATORS[name].model_fields}
    batch = ActionBatch.from_trajectories(trajectories, **extra)
    chosen = estimator(name, **options)
    result = chosen.advantages(batch)
    made = chosen.made_of(batch, result)
    if made.baseline is None:
        assert name in ("gdpo", "grpo_passk", "passk", "gigpo", "gagpo", "graphgpo")
        return
    difference = made.returns - made.baseline
    np.testing.assert_allclose(made.unscaled, difference, atol=1e-12)
    by_group = name == "maxrl" or (name in ("grpo", "turn_grpo") and options.get("norm_by_std", name == "grpo"))
    places = [batch.group[batch.episode_of_token] == g for g in range(3)] if by_group else [np.ones(count, np.bool_)]
    for place in places:  # one scale in each, which is not negative
        scale = np.dot(result.advantages[place], difference[place]) / max(
            np.dot(difference[place], difference[place]), 1e-12
        )
        assert scale >= 0
        np.testing.assert_allclose(result.advantages[place], scale * difference[place], atol=1e-6)


@pytest.mark.parametrize("by_term", [False, True])
def test_tied_groups_follow_the_metric(by_term: bool) -> None:
    """With ``baseline=mixed``, all tokens of a tied group have an advantage."""
    trajectories = episodes(np.random.default_rng(1))
    same = [
        replace(trajectory, turn_rewards=trajectory.turn_rewards * 0, turn_terms=()) for trajectory in trajectories[:3]
    ]
    terms = [({"a": 1.0, "b": -1.0} if n else {}) for n in range(3)]  # of the last turn: alike in sum alone
    apart = [
        replace(trajectory, turn_terms=(*[{}] * (trajectory.num_turns - 1), own_terms))
        for trajectory, own_terms in zip(same, terms, strict=True)
    ]
    trajectories = [
        *same,
        *trajectories[3:6],
        *(replace(e, group_id="g2", episode_id=f"t{n}") for n, e in enumerate(apart)),
    ]
    count = sum(len(trajectory.token_ids) for trajectory in trajectories)
    explained = Explained({}, trajectories, np.ones(count), np.ones(count, np.bool_), by_term=by_term)
    signals = table_of(trajectories, Pieces(TOKENIZER), explained).column("signal").to_pylist()
    groups = [trajectories[:3], trajectories[3:6], trajectories[6:]]
    assert [groups_tied([group], by_term=by_term) for group in groups] == [1.0, 0.0, float(not by_term)]
    assert signals == ["tied"] * 3 + ["signal"] * 3 + ["signal" if by_term else "tied"] * 3
    taught = replace(explained, columns={"teacher_advantage": np.ones(count)})
    assert set(table_of(trajectories, Pieces(TOKENIZER), taught).column("signal").to_pylist()) == {"signal"}


def test_recent_and_checkpoint_iterations_stay(tmp_path: Path) -> None:
    files = EpisodeFiles(tmp_path, Pieces(TOKENIZER), 2, {})
    (tmp_path / "checkpoints" / "iteration_000002").mkdir(parents=True)
    own = tmp_path / "rollouts" / "train"

    def remaining() -> list[int]:
        return sorted(int(path.stem) for path in own.glob("*.parquet"))

    for number in range(1, 8):
        files.write("train", number, [])
    assert remaining() == [3, 6, 7]
    files.write("train", 4, [])  # resumed from an earlier iteration
    assert remaining() == [3, 4]
    files.write("validation", 4, [])
    files.write("validation", 2, [])
    assert [path.stem for path in (tmp_path / "rollouts" / "validation").iterdir()] == ["000002"]


def test_external_folder_keeps_all_files(tmp_path: Path) -> None:
    files = EpisodeFiles(tmp_path / "run", Pieces(TOKENIZER), 0, {"rollout_data_dir": str(tmp_path / "all")})
    assert files.writes("train")
    assert not files.writes("validation")
    for number in (1, 2, 3, 1):
        files.write("train", number, [])
    assert len(list((tmp_path / "all").iterdir())) == 3


def test_critic_and_correction_explain_every_token(tmp_path: Path) -> None:
    overrides = [
        "actor.old_logprobs=recompute",
        "actor.importance_correction=token_tis",
        "actor.entropy_coeff=0",
        "actor.loss_agg_mode=token-mean",
    ]
    in_process(tmp_path, "trainer.total_iterations=2", "trainer.save_freq=-1", "trainer.test_freq=2", *overrides)
    run = open_run(tmp_path)
    assert [(file.number, file.kind) for file in run.iterations] == [(1, "train"), (2, "train"), (2, "validation")]
    iteration = run.iteration(2)
    assert iteration.info["version"] == 1
    assert len(iteration.info["steps"]) == 2
    weights = 0.0
    for episode, played in zip(iteration.episodes(), read_parquet(iteration.path), strict=True):
        tokens, mask = episode.tokens, played.action_mask
        assert tokens is not None
        for name in ("advantage", "returns", "baseline", "importance_weight", "loss_weight", "mismatch", "ratio",
                     "clipped", "entropy", "loss"):  # fmt: skip
            values = getattr(tokens, name)
            assert np.isfinite(values[mask]).all(), name
            assert np.isnan(values[~mask]).all(), name
        np.testing.assert_allclose(tokens.learner_logprobs[mask], tokens.logprobs[mask], atol=0.5)
        np.testing.assert_allclose(tokens.ratio[mask] * tokens.advantage[mask], -tokens.loss[mask], rtol=0.1, atol=0.05)
        weights += float(tokens.loss_weight[mask].sum())
        assert len(tokens.text) == len(mask)
        assert episode.signal == "signal"
    assert weights == pytest.approx(2.0, rel=1e-3), "those of each mini-batch sum to 1"
    validation = run.iteration(2, "validation").episode(0)
    assert validation.tokens.advantage is validation.signal is None
    assert "".join(validation.tokens.text).startswith("<|im_start|>user")
