"""Weights that leave several ranks: whole on the ranks that read them, of their moment, and no step later."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import TRAJECTORIES, make_learner, policy_loss, run_ranks

from trainers.engines.base import SupersededError
from trainers.learner import weight_stream

LORA = {"lora_rank": 2, "lora_alpha": 4}
pytestmark = pytest.mark.xdist_group("ranks")  # one forkserver for all


def step(learner: Any) -> None:
    numbers = {"a": [np.ones(int(trajectory.action_mask.sum())) for trajectory in TRAJECTORIES]}
    learner.update_actor(TRAJECTORIES, numbers, policy_loss)


def read_all(stream: Any, ranks: Any, readers: Sequence[int] = (0,)) -> dict[str, Any]:
    return {names[0]: value.clone() for names, value in stream.read(ranks, readers)}


def leave(folder: Path, **keys: int) -> dict[str, Any]:
    """Read all streams before and after a step; rows are sent a few at a time."""
    weight_stream._SLICE_BYTES = 300
    learner = make_learner(**keys, fsdp="always", critic=False, reference=False)
    apart = learner.ranks.apart()
    step(learner)
    before = learner.weights()
    live, snapshot = (learner.publication("weights", snapshot=flag) for flag in (False, True))
    half = learner.publication("weights", torch.bfloat16, snapshot=True)
    results = {"before": before, "live": read_all(live, learner.ranks)}
    results["everywhere"] = read_all(live, learner.ranks, range(learner.ranks.world))
    results["last"] = read_all(live, learner.ranks, [learner.ranks.world - 1])
    step(learner)
    results |= {"snapshot": read_all(snapshot, apart), "half": read_all(half, apart), "after": learner.weights()}
    try:
        read_all(live, learner.ranks)
        results["live is"] = "read"
    except SupersededError:
        results["live is"] = "superseded"
    results["largest"] = max(part.local.nbytes for parts, _ in snapshot._parts for part in parts)
    return results


CASES = {"shards": {}, "adapters": LORA, "replicas": {"fsdp_size": 1}, "tensor": {"tensor_parallel_size": 2}}


def test_stream_is_whole_on_first_rank(tmp_path: Path) -> None:
    cases = {name: partial(leave, **settings) for name, settings in CASES.items()}
    (alone,) = run_ranks(1, {"shards": leave}, tmp_path / "alone")
    first, other = run_ranks(2, cases, tmp_path)
    for name, results in [("alone", alone["shards"]), *first.items()]:
        assert results["live is"] == "superseded"
        before = {key: value for key, value in results["before"].items() if key in results["live"]}
        assert before.keys() == results["live"].keys() == results["snapshot"].keys()
        for key, value in before.items():
            assert torch.equal(results["live"][key], value), (name, key)
            assert torch.equal(results["snapshot"][key], value), (name, key)
            assert torch.equal(results["everywhere"][key], value), (name, key)
            assert torch.equal(results["half"][key], value.bfloat16()), (name, key)
        assert any(not torch.equal(value, results["after"][key]) for key, value in before.items())
    for name, rest in other.items():
        assert not any(rest[kind] for kind in ("before", "live", "snapshot", "half", "after")), name
        assert rest["live is"] == "superseded"
        for kind in ("everywhere", "last"):
            assert rest[kind].keys() == first[name]["live"].keys()
            assert all(torch.equal(value, first[name]["live"][key]) for key, value in rest[kind].items()), (name, kind)
        assert not first[name]["last"]
    for key, value in alone["shards"]["before"].items():
        torch.testing.assert_close(first["shards"]["before"][key], value, atol=1e-5, rtol=1e-4)


def test_nonfinite_weights_are_not_streamed() -> None:
    learner = make_learner(critic=False, reference=False)
    with torch.no_grad():
        next(learner.actor.parameters())[0, 0] = torch.nan
    with pytest.raises(ValueError, match="embed_tokens.*not finite; did training diverge"):
        learner.publication("weights")
