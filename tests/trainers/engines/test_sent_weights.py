"""Weights on their way to a server: buckets, parameters of a checkpoint, and checksums of its storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_kits import lively_model

from trainers.engines.sglang.engine import payload
from trainers.engines.transport import LocalSource, plan_of
from trainers.engines.weights import FUSED, ChecksumRule, Checksums, bits, differing, read_parameters


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return dict(lively_model(seed=1).state_dict())


def test_buckets_cover_all_tensors_within_the_limit(weights: dict[str, torch.Tensor]) -> None:
    specs = LocalSource.of(weights).specs
    for limit in (1, 5000, 20_000, 10**9):
        plan = plan_of(specs, limit)
        assert [spec for bucket in plan for spec in bucket] == list(specs)
        assert all(len(bucket) == 1 or sum(spec.nbytes for spec in bucket) <= limit for bucket in plan)
    slice_ = torch.zeros(10**6)[:10]
    assert len(payload([("x", slice_)])) < 10_000  # without what it was cut from


def test_parameters_match_the_checkpoint(folder: Path, weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    parameters = read_parameters(folder, tied=True, kv_heads=2)
    parameters.check(weights)
    parameters.check(LocalSource.of(weights, {"lm_head.weight"}).specs)
    with pytest.raises(ValueError, match=r"missing model\.embed_tokens\.weight"):
        parameters.check(LocalSource.of(weights, {"model.embed_tokens.weight"}).specs)
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(ValueError, match="no safetensors"):
        read_parameters(tmp_path, tied=True, kv_heads=2)
    with pytest.raises(ValueError, match="has no"):
        read_parameters(tmp_path / "nowhere", tied=True, kv_heads=2)


def checksums_of(weights: dict[str, torch.Tensor], rule: ChecksumRule) -> dict[str, tuple[Any, ...]]:
    sums = Checksums(rule)
    for name, value in weights.items():
        sums.add(name, value)
    return sums.result()


@pytest.mark.parametrize("kind", ["bits", "sha256"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_have_checksums_of_their_parts(weights: dict[str, torch.Tensor], ranks: int, kind: Any) -> None:
    rule = ChecksumRule(kind, ranks, kv_heads=2)
    sent = {name: value for name, value in weights.items() if name != "lm_head.weight"}
    sums = checksums_of(sent, rule)
    assert len(sums) == len(sent) - 2 * (2 + 2 + 1)  # q, k, v with biases; gate, up; 2 layers
    assert {len(per_rank) for per_rank in sums.values()} == {ranks}
    assert checksums_of(dict(reversed(sent.items())), rule) == sums  # in whatever order they come
    down, keys = "model.layers.0.mlp.down_proj.weight", "model.layers.0.self_attn.k_proj.weight"
    changed = {**sent, down: sent[down].clone(), keys: sent[keys].clone()}
    changed[down][:, -1] += 1  # the last rank's column
    changed[keys][0] += 1  # the first head's row
    after = checksums_of(changed, rule)
    fused = keys.replace("k_proj", "qkv_proj")
    differ = {name: [a != b for a, b in zip(sums[name], after[name], strict=True)] for name in sums}
    assert {name for name, per_rank in differ.items() if any(per_rank)} == {down, fused}
    assert differ[down] == [rank == ranks - 1 for rank in range(ranks)]
    assert differ[fused] == [rank < max(1, ranks // 2) for rank in range(ranks)]


@pytest.mark.parametrize("kind", ["bits", "sha256"])
def test_checksums_include_vocabulary_padding(kind: Any) -> None:
    odd = {"model.embed_tokens.weight": torch.ones(65, 3)}
    filled = {"model.embed_tokens.weight": torch.cat([torch.ones(65, 3), torch.zeros(63, 3)])}
    rule = ChecksumRule(kind, 2)
    assert checksums_of(odd, rule) == checksums_of(filled, rule)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checksums_match_fused_storage_and_detect_changes(dtype: torch.dtype) -> None:
    state = {name: value.to(dtype) for name, value in lively_model().state_dict().items() if name != "lm_head.weight"}
    stored = dict(reversed(state.items()))
    for layer in (f"model.layers.{number}" for number in range(2)):
        for kind in ("weight", "bias"):
            parts = [stored.pop(f"{layer}.self_attn.{part}.{kind}") for part in FUSED["qkv_proj"]]
            stored[f"{layer}.self_attn.qkv_proj.{kind}"] = torch.cat(parts)
        parts = [stored.pop(f"{layer}.mlp.{part}.weight") for part in FUSED["gate_up_proj"]]
        stored[f"{layer}.mlp.gate_up_proj.weight"] = torch.cat(parts)
    stored["model.embed_tokens.weight"] = torch.nn.functional.pad(stored["model.embed_tokens.weight"], (0, 0, 0, 9))
    stored_sums = {name: (bits(value),) for name, value in stored.items()}
    renamed = {name.replace("gate_up_proj", "experts"): sums for name, sums in stored_sums.items()}
    for name, value in [("", None), *state.items()]:
        changed = {parameter: whole.clone() for parameter, whole in state.items()}
        if name:
            changed[name].view(-1)[-1] += 0.125
        expected = checksums_of(changed, ChecksumRule())
        if value is None:
            assert expected == stored_sums
            assert differing(expected, stored_sums) == differing(expected, renamed) == []
        else:
            assert len(differing(expected, stored_sums)) == 1
            assert differing(expected, renamed)
