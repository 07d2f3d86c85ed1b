"""Ways to cut ranks, refused before anything starts; attention of packed sequences; counted FLOPs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from learner_helpers import VOCAB, sections, small_model, some_trajectories
from ranks import assert_same, make_learner, measure

from trainers.config.model import ModelSection
from trainers.config.running import RunSection
from trainers.learner import Learner
from trainers.learner.flops import count
from trainers.learner.inputs import inputs_of
from trainers.learner.memory import peak
from trainers.learner.packing import action_rows, micro_batches
from trainers.learner.parallel import check_model, make_meshes, shape_of
from trainers.models.tiny import build_model

TENSOR, SEQUENCE = "tensor_parallel_size", "ulysses_sequence_parallel_size"
TRAJECTORIES = some_trajectories()


@pytest.mark.parametrize(
    ("settings", "world", "expected"),
    [
        ({}, 4, (1, 4)),
        ({"fsdp_size": 2}, 8, (4, 2)),
        ({"fsdp_size": 1}, 3, (3, 1)),
        ({TENSOR: 2}, 4, (1, 2)),
        ({TENSOR: 2, SEQUENCE: 2, "fsdp_size": 2}, 8, (2, 2)),
        ({SEQUENCE: 4}, 4, (1, 4)),
    ],
)
def test_replicas_and_shards(settings, world, expected):
    assert shape_of(RunSection(**settings), world) == expected


@pytest.mark.parametrize(
    ("settings", "world", "message"),
    [
        ({TENSOR: 2}, 3, "3 ranks cannot be cut into groups of 2 .tensor parallelism."),
        ({TENSOR: 2, SEQUENCE: 3}, 4, "start a multiple of 6"),
        ({"fsdp_size": 3}, 4, "fsdp_size=3 does not divide the 4 ranks"),
        ({"fsdp_size": 4, TENSOR: 2}, 4, "fsdp_size=4 does not divide the 2 ranks"),
    ],
)
def test_ranks_that_cannot_be_cut(settings, world, message):
    with pytest.raises(ValueError, match=message):
        shape_of(RunSection(**settings), world)


@pytest.mark.parametrize(
    ("settings", "model", "message"),
    [
        ({TENSOR: 3}, {}, r"tensor_parallel_size=3 does not divide the model's attention heads \(4\)"),
        ({TENSOR: 4}, {}, r"tensor_parallel_size=4 does not divide the model's key/value heads \(2\)"),
        ({TENSOR: 2}, {"intermediate": 33}, r"does not divide the model's feed-forward width \(33\)"),
        ({SEQUENCE: 3}, {}, r"ulysses_sequence_parallel_size=3 does not divide the model's attention heads \(4\)"),
        ({SEQUENCE: 4, TENSOR: 2}, {}, r"attention heads \(2 on each tensor-parallel rank\)"),
        ({SEQUENCE: 2}, {"heads": 6, "kv_heads": 3, "hidden": 36}, r"neither divides the model's key/value heads"),
    ],
)
def test_models_that_cannot_be_cut(settings, model, message):
    config = build_model(VOCAB, **({"hidden": 32, "layers": 1} | model)).config
    with pytest.raises(ValueError, match=message):
        check_model(config, RunSection(**settings))


def test_sequence_ranks_may_exceed_key_value_heads():
    check_model(small_model(layers=1).config, RunSection(ulysses_sequence_parallel_size=4))


def test_families_without_plan_and_sliding_windows():
    config = build_model(VOCAB, hidden=32, layers=2).config
    config.model_type = "novel"
    with pytest.raises(
        ValueError, match="no tensor-parallel plan for model type 'novel', only for qwen2, qwen3, llama"
    ):
        check_model(config, RunSection(tensor_parallel_size=2))
    config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match="sliding window"):
        check_model(config, RunSection(ulysses_sequence_parallel_size=2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({TENSOR: 2}, "1 ranks cannot be cut"),
        ({"offload": True}, "trainer.offload and model.enable_activation_offload are for cuda"),
        ({"enable_activation_offload": True}, "are for cuda"),
        ({SEQUENCE: 2, "attn_implementation": "eager"}, "does not go with sequence parallelism"),
    ],
)
def test_refusal_starts_no_process_group(settings, message):
    with pytest.raises(ValueError, match=message):
        Learner(small_model(layers=1), **sections(**settings))
    assert not dist.is_initialized()


def test_cpu_mesh_ignores_visible_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    try:
        meshes = make_meshes(ModelSection(), RunSection(fsdp="always"), torch.device("cpu"))
        assert meshes.fsdp.device_type == meshes.data.device_type == "cpu"
        assert dist.get_backend() == "gloo"
    finally:
        dist.destroy_process_group()


# ------------------ packed sequences


# "eager" takes the same way through transformers as "sdpa".
@pytest.mark.parametrize("name", [None, "sdpa", pytest.param("eager", marks=pytest.mark.slow)])
def test_packed_is_padded(name):
    """Through the learner's attention, and through transformers' own ways to keep packed sequences apart."""
    packed = make_learner(use_remove_padding=True, attn_implementation=name, share_prefixes=False)
    assert_same(measure(packed), measure(make_learner(share_prefixes=False)))
    metrics = packed.update_sft(TRAJECTORIES)
    assert metrics["padding"] == 0.0


def test_packed_attention_knows_each_sequence():
    (batches,) = micro_batches(action_rows(TRAJECTORIES), 40, layout="packed")
    for batch in batches:
        lengths = [len(path) for path in batch.forest.paths]
        arguments = inputs_of(batch, torch.device("cpu"), varlen=True).attention
        assert arguments["position_ids"].tolist() == [[at for length in lengths for at in range(length)]]
        assert arguments["cu_seq_lens_q"].tolist() == [0, *np.cumsum(lengths)]
        assert arguments["max_length_q"] == max(lengths)
        assert "tree" in inputs_of(batch, torch.device("cpu")).attention


# ------------------ FLOPs


def test_flops_are_counted_as_documented():
    """6 N for each token (the matrices by hand), 6 L n_h d S for causal attention, 6 V H for each output."""
    hidden, wide, layers, heads, kv = 32, 48, 3, 4, 2
    model = build_model(
        VOCAB, family="llama", hidden=hidden, intermediate=wide, layers=layers, heads=heads, kv_heads=kv
    )
    size = hidden // heads
    matrices = layers * (2 * hidden * heads * size + 2 * hidden * kv * size + 3 * hidden * wide)
    flops = count(model.base_model, model.lm_head)
    assert flops.of(10, 0, 0) == 6 * matrices * 10
    assert flops.of(0, 10 * 10, 0) == 6 * layers * heads * size * 10 * 10
    assert flops.of(0, 0, 5) == 6 * VOCAB * hidden * 5
    model.requires_grad_(False)
    assert count(model.base_model, model.lm_head).of(10, 0, 5) == 4 * (matrices * 10 + VOCAB * hidden * 5)


def test_utilisation_is_rate_over_peak():
    learner = make_learner(peak_tflops=2.0)
    metrics = learner.update_sft(TRAJECTORIES)
    assert metrics["mfu"] == pytest.approx(metrics["tflops"] / 2.0)
    assert metrics["tflops"] > 0
    assert "mfu" not in make_learner().update_sft(TRAJECTORIES), "no peak is known of a CPU"


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark is read from /proc")
def test_update_reports_peak_memory_of_process():
    learner = make_learner()
    before = learner.update_sft(TRAJECTORIES)["peak_gib"]
    present = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30
    np.ones(int((before - present + 0.3) * 2**27))  # more than there ever was, and gone again
    assert before + 0.25 <= learner.update_sft(TRAJECTORIES)["peak_gib"] < 2 * before + 1


def test_uncounted_peak_memory_is_absent(monkeypatch):
    """Such as gVisor, under which containers of some services run."""
    status = "VmSize:\t1024 kB\nVmRSS:\t512 kB\nVmData:\t64 kB\nThreads:\t1\n"
    monkeypatch.setattr(Path, "read_text", lambda *args, **options: status)
    assert peak(torch.device("cpu")) == {}
