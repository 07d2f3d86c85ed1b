"""Weights that leave several ranks: whole on the first one, of their moment, and no step later."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import TRAJECTORIES, make_learner, policy_loss, run_ranks

from trainers.engines.base import SupersededError
from trainers.learner import LoRASettings, Parallel, weight_stream

LORA = LoRASettings(rank=2, alpha=4)


def step(learner: Any) -> None:
    numbers = {"a": [np.ones(int(each.action_mask.sum())) for each in TRAJECTORIES]}
    learner.update_actor(TRAJECTORIES, numbers, policy_loss)


def told(stream: Any, ranks: Any) -> dict[str, Any]:
    return {names[0]: value.clone() for names, value in stream.read(ranks)}


def leave(folder: Path, *, lora: LoRASettings | None = None, **parallel: int) -> dict[str, Any]:
    """What leaves before and after a step, by whatever way; rows are sent a few at a time."""
    weight_stream._SLICE_BYTES = 300
    learner = make_learner(parallel=Parallel(**parallel), lora=lora, fsdp="always", critic=False, reference=False)
    apart = learner.ranks.apart()
    step(learner)
    before = learner.weights()
    live, snapshot = (learner.publication("weights", snapshot=each) for each in (False, True))
    half = learner.publication("weights", torch.bfloat16, snapshot=True)
    found = {"before": before, "live": told(live, learner.ranks)}
    step(learner)
    found |= {"snapshot": told(snapshot, apart), "half": told(half, apart), "after": learner.weights()}
    try:
        told(live, learner.ranks)
        found["live is"] = "read"
    except SupersededError:
        found["live is"] = "superseded"
    found["largest"] = max(part.local.nbytes for parts, _ in snapshot._parts for part in parts)
    return found


CASES = {"shards": {}, "adapters": {"lora": LORA}, "replicas": {"fsdp_size": 1}, "tensor": {"tensor": 2}}


def test_what_leaves_is_whole_on_the_first_rank_and_of_its_moment(tmp_path: Path) -> None:
    cases = {name: partial(leave, **settings) for name, settings in CASES.items()}
    (alone,) = run_ranks(1, {"shards": leave}, tmp_path / "alone")
    first, other = run_ranks(2, cases, tmp_path)
    for name, found in [("alone", alone["shards"]), *first.items()]:
        assert found["live is"] == "superseded"
        before = {key: value for key, value in found["before"].items() if key in found["live"]}
        assert before.keys() == found["live"].keys() == found["snapshot"].keys()
        for key, value in before.items():
            assert torch.equal(found["live"][key], value), (name, key)
            assert torch.equal(found["snapshot"][key], value), (name, key)
            assert torch.equal(found["half"][key], value.bfloat16()), (name, key)
        assert any(not torch.equal(value, found["after"][key]) for key, value in before.items())
    for name, theirs in other.items():
        assert not any(theirs[kind] for kind in ("before", "live", "snapshot", "half", "after")), name
        assert theirs["live is"] == "superseded"
    for key, value in alone["shards"]["before"].items():
        torch.testing.assert_close(first["shards"]["before"][key], value, atol=1e-5, rtol=1e-4)


def test_what_is_not_finite_does_not_leave() -> None:
    learner = make_learner(critic=False, reference=False)
    with torch.no_grad():
        next(learner.actor.parameters())[0, 0] = torch.nan
    with pytest.raises(ValueError, match="embed_tokens.*not finite; did training diverge"):
        learner.publication("weights")
