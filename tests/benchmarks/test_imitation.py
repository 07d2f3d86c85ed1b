"""Parts of benchmarks that imitate an expert: what is learned of a conversation, and where its replies are."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import imitation
from benchmarks.world_scaling.scales import ENV, SCALES
from textenvs.registry import make
from trainers.models import tiny
from trainers.rollout.demonstrations import Example
from trainers.trajectory import Status, Trajectory


def demonstration(replies: str) -> Example:
    """Return one with a token for each letter: ``.`` is no reply's, and a digit has the reply's number."""
    mask = np.array([letter != "." for letter in replies])
    turns = np.array([-1 if letter == "." else int(letter) for letter in replies], np.int32)
    trajectory = Trajectory(
        token_ids=np.arange(len(mask), dtype=np.int32),
        action_mask=mask,
        logprobs=np.zeros(len(mask), np.float32),
        weight_version=np.where(mask, 0, -1).astype(np.int32),
        turn_id=turns,
        turn_rewards=np.zeros(turns.max() + 1),
        status=Status.COMPLETED,
    )
    return Example(trajectory, np.ones(int(mask.sum()), np.float32))


def test_all_tokens_are_predicted_and_replies_count_most() -> None:
    one = demonstration("...00.11")
    assert imitation.predicted(one, 0.0) is one
    whole = imitation.predicted(one, 0.25)
    assert whole.trajectory.actions.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert whole.weights.tolist() == [0.25, 0.25, 1, 1, 0.25, 1, 1]
    assert whole.trajectory.token_ids is one.trajectory.token_ids


def test_spans_are_the_replies() -> None:
    one = demonstration("..00.111.2").trajectory
    assert [one.turn_id[span].tolist() for span in imitation.spans_of(one.action_mask)] == [[0, 0], [1, 1, 1], [2]]
    assert imitation.spans_of(np.zeros(3, bool)) == []


def test_expert_names_tools_that_its_tokens_begin_with(tmp_path: Path) -> None:
    env = make(ENV, **SCALES["cpu"].played("worlds", 1, 0))
    talk = imitation.expert_talk(env, 0)
    shape = {"vocab_size": 300, "hidden": 8, "layers": 1, "heads": 1, "kv_heads": 1}
    imitation.make_start(tmp_path / "start", [talk.demonstration], shape, words=tiny.WORDS, context=1024, seed=0)
    encoder, tokenizer = imitation.Encoder(str(tmp_path / "start")), AutoTokenizer.from_pretrained(tmp_path / "start")
    trajectory, names = encoder(talk.demonstration).trajectory, talk.tools
    spans = imitation.spans_of(trajectory.action_mask)
    assert len(spans) == len(names)
    assert names[-1] == "finish"
    for span, name in zip(spans, names, strict=True):
        length = encoder.name_length(trajectory.token_ids[span], name)
        assert tokenizer.decode(trajectory.token_ids[span][:length]) == f"[TOOL_CALLS]{name}"
    assert encoder.name_length(trajectory.token_ids[spans[0]], "") == 0


def test_lengthened_policy_is_the_same_model(tmp_path: Path) -> None:
    start, shape = tmp_path / "start", {"vocab_size": 300, "hidden": 8, "layers": 1, "heads": 1, "kv_heads": 1}
    talk = imitation.expert_talk(make("textenv/clarify"), 0)
    assert set(talk.tools) == {""}  # it has none
    imitation.make_start(start, [talk.demonstration], shape, words=tiny.WORDS, context=64, seed=0)
    tokens = torch.arange(1, 40)[None]
    with imitation.lengthened(str(start), 4096) as longer:
        models = [AutoModelForCausalLM.from_pretrained(folder) for folder in (start, longer)]
        assert [model.config.max_position_embeddings for model in models] == [64, 4096]
        assert torch.equal(*(model(tokens).logits for model in models))
    assert not Path(longer).exists()


@pytest.mark.parametrize("words", ["ppo,imitaton", ""])
def test_unknown_phases_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    imitation.add_arguments(parser, "name", tasks=1)
    with pytest.raises(SystemExit):
        parser.parse_args(["--phases", words])
    assert "is not one of imitation, ppo" in capsys.readouterr().err
