"""Prices of length: DAPO's overlong penalty (the formula by cases, the last turn's term), and that of a cut reply."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ppo_runs import in_process

from trainers.rewards.credit_assignment import overlong_penalty
from trainers.trajectory import read_parquet


@given(st.integers(0, 300), st.integers(1, 200), st.data())
@settings(deadline=None, max_examples=100)
def test_penalty_by_cases(tokens, limit, data):
    buffer = data.draw(st.integers(1, limit))
    penalty = overlong_penalty(tokens, limit, buffer, 0.5)
    if tokens <= limit - buffer:
        assert penalty == 0.0
    elif tokens <= limit:
        assert penalty == pytest.approx(0.5 * ((limit - buffer) - tokens) / buffer)
    else:
        assert penalty == -0.5


def test_last_turn_pays_for_whole_response(tmp_path):
    dumps = [f"trainer.rollout_data_dir={tmp_path}/train", f"trainer.validation_data_dir={tmp_path}/val"]
    overrides = ["rollout.max_response_tokens=40", "overlong_buffer.len=30", "overlong_buffer.penalty_factor=2"]
    in_process(tmp_path / "run", *dumps, *overrides, "overlong_buffer.enable=true", "trainer.total_iterations=1")
    episodes = read_parquet(tmp_path / "train" / "000001.parquet")
    penalties = []
    for episode in episodes:
        sampled = np.flatnonzero(episode.action_mask)
        assert len(episode.segment_starts) == 1
        expected = overlong_penalty(int(sampled[-1] - sampled[0]) + 1, 40, 30, 2.0)
        *before, last = episode.turn_terms
        assert not any("overlong" in terms for terms in before)
        assert last["overlong"] == pytest.approx(expected)
        assert episode.turn_rewards[-1] == pytest.approx(sum(last.values()))
        penalties.append(expected)
    assert len(set(penalties)) > 2
    assert min(penalties) == -2.0, "some episode reached the limit"
    (file,) = (tmp_path / "val").glob("*.parquet")
    assert not any("overlong" in terms for episode in read_parquet(file) for terms in episode.turn_terms)


def test_turn_pays_for_reply_without_end(tmp_path):
    dumps = [f"trainer.rollout_data_dir={tmp_path}/train", f"trainer.validation_data_dir={tmp_path}/val"]
    overrides = [
        "rollout.max_response_length=40",
        "rollout.cut_reply_penalty=0.5",
        "trainer.total_iterations=1",
        "rollout.n=8",
    ]
    in_process(tmp_path / "run", *dumps, *overrides)
    replies = []  # tokens and terms of each
    for episode in read_parquet(tmp_path / "train" / "000001.parquet"):
        edges = np.flatnonzero(np.diff(episode.action_mask.astype(int), prepend=0, append=0))
        spoken = [episode.token_ids[start:end] for start, end in edges.reshape(-1, 2)]
        replies += zip(spoken, episode.turn_terms, strict=True)
    stops = {int(tokens[-1]) for tokens, _ in replies if len(tokens) < 40}
    cut = [len(tokens) == 40 and tokens[-1] not in stops for tokens, _ in replies]
    assert {terms.get("cut_reply", 0.0) for _, terms in replies} == {0.0, -0.5}
    assert cut == ["cut_reply" in terms for _, terms in replies]
    (file,) = (tmp_path / "val").glob("*.parquet")
    assert not any("cut_reply" in terms for episode in read_parquet(file) for terms in episode.turn_terms)
