"""Run benchmarks/gpu at toy sizes on the CPU: every part runs, detects errors, and fails without stopping the rest."""

from __future__ import annotations

import importlib
import io
import json
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist


@pytest.fixture
def job():
    from benchmarks.gpu.job import TOY, Job

    if dist.is_initialized():  # an earlier test of this worker left it
        dist.destroy_process_group()
    made = Job("x", torch.device("cpu"), ("toy",), TOY, time.monotonic() + 600, io.StringIO(), "the command")
    yield made
    assert not dist.is_initialized(), "a process group is left behind"


def run(job, part):
    importlib.import_module(f"benchmarks.gpu.{part}").run(replace(job, part=part))
    lines = [json.loads(line) for line in job.out.getvalue().splitlines()]
    for line in lines:
        assert line["part"] == part
        assert line["device"] == "cpu"
        assert line["torch"] == torch.__version__
        assert line["command"] == "the command"
    return not job.faults, lines


def test_layouts_and_engine_agree(job):
    good, lines = run(job, "parity")
    assert good
    layouts = {(line["dtype"], line["layout"]) for line in lines if line["what"] == "layout"}
    assert ("float32", "packed") in layouts
    assert ("bfloat16", "packed, checkpointing") in layouts
    assert {line["dtype"] for line in lines if line["what"] == "engine"} == {"float32", "bfloat16"}
    # In 16 bits something is rounded: the comparison with float32 is none with itself.
    assert all(line["gaps"]["gradients"] > 1e-4 for line in lines if line.get("dtype") == "bfloat16" and "gaps" in line)


@pytest.mark.slow  # learner/test_trees.py compares packed sequences with rows; here, whether the benchmark notices
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_across_sequences_is_detected(job, monkeypatch, dtype):
    """Plant a kernel that ignores the starts of packed sequences, in one precision only."""
    from trainers.learner import attention, inputs

    class Blind(attention.Tree):
        def attend(self, query, key, value, scale):
            if query.dtype == dtype:
                return attention._causal(query, key, value, None, scale).transpose(1, 2)
            return super().attend(query, key, value, scale)

    monkeypatch.setattr(inputs, "Tree", Blind)
    good, lines = run(job, "parity")
    assert not good
    name = str(dtype).removeprefix("torch.")
    for line in lines:
        if line["what"] == "layout":
            assert line["good"] == (line["dtype"] != name or "padded" in line["layout"]), line


def test_updates_are_timed(job):
    _, lines = run(job, "mfu")
    assert [(line["gradient_checkpointing"], line["compile"]) for line in lines] == [(False, False), (True, False)]
    for line in lines:
        assert 0 < line["tokens"] <= job.sizes.update
        assert line["tokens_per_s"] > 0
        assert line["mfu"] is None, "no peak is known of a CPU"


def test_tree_gradients_match_rows_and_are_timed(job, monkeypatch):
    good, lines = run(job, "tree")
    assert good
    assert [(line["what"], line["sharing"]) for line in lines] == [
        (what, sharing) for what in ("gradient", "update") for sharing in (0.5, 0.75, 0.9)
    ]
    for line in lines[3:]:
        assert line["trees"]["tokens"] / line["rows"]["tokens"] == pytest.approx(1 - line["sharing"], abs=0.1)
        assert line["of_ideal"] > 0


def test_forks_reuse_prompts_and_are_timed(job, monkeypatch):
    good, (line,) = run(job, "forks")
    assert good
    turns, roots = 3, line["sampling"]["roots"]["tokens"] // (3 * job.sizes.new[-1])
    assert line["sampling"]["forks"]["tokens"] == roots * job.sizes.new[-1] * turns * (turns + 1) // 2
    assert min(line["update_s"].values()) > 0
    from trainers.engines.scheduler import Scheduler

    monkeypatch.setattr(Scheduler, "_share", lambda self, row: None)
    importlib.import_module("benchmarks.gpu.forks").run(job)
    assert job.faults


def test_wrong_tree_gradient_is_detected(job, monkeypatch):
    from trainers.learner import inputs

    distinct = inputs.SamplingMasks.distinct

    def wrong(*args):
        first, kinds = distinct(*args)
        return first, np.arange(len(kinds)) % len(first)  # another token's log-probability

    monkeypatch.setattr(inputs.SamplingMasks, "distinct", wrong)
    from benchmarks.gpu import tree

    tree.compare(job, 0.5)
    assert job.faults


def test_heads_agree_and_run(job):
    from benchmarks.gpu.memory import plain_head
    from trainers.learner.logprobs import token_logprobs

    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(5, 4), torch.randn(9, 4), torch.randint(9, (5,))
    torch.testing.assert_close(plain_head(hidden, weight, targets), token_logprobs(hidden, weight, targets))
    _, lines = run(job, "memory")
    assert [(line["what"], line["logits"]) for line in lines] == [
        ("head", "in chunks"),
        ("head", "all at once"),
        ("head", "through autograd"),
        ("update", "in chunks"),
        ("update", "all at once"),
    ]


def test_decoding_is_timed_against_its_roofline(job):
    _, (device, *lines) = run(job, "decode")
    assert device["bytes_per_s"] > 0
    assert [line["batch"] for line in lines] == list(job.sizes.batches)
    for line in lines:
        assert line["of_roofline"] == pytest.approx(line["tokens_per_s"] / line["roofline_tokens_per_s"], rel=0.01)


@pytest.mark.parametrize("tied", [True, False])
def test_roofline_matches_hand_count(tied):
    """Compare with counts by hand for a model of known shape."""
    from benchmarks.gpu.decode import roofline
    from trainers.models.tiny import build_model

    hidden, wide, layers, heads, kv, vocab = 32, 48, 3, 4, 2, 61
    model = build_model(
        vocab,
        family="llama",
        hidden=hidden,
        intermediate=wide,
        layers=layers,
        heads=heads,
        kv_heads=kv,
        tie_word_embeddings=tied,
    )
    size = hidden // heads
    blocks = layers * (2 * hidden * heads * size + 2 * hidden * kv * size + 3 * hidden * wide)
    norms = (2 * layers + 1) * hidden
    weights = 2 * (blocks + norms + vocab * hidden)  # the table is read as the head, once
    context, batch = 10, 5
    memory = weights + batch * context * layers * 2 * kv * size * 2
    assert roofline(model, torch.bfloat16, batch, context, 1.0, 1e30) == memory
    flops = batch * (2 * (blocks + vocab * hidden) + 4 * layers * heads * size * context)
    assert roofline(model, torch.bfloat16, batch, context, 1e30, 1.0) == flops


def test_out_of_memory_is_a_result(job):
    def measure():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nmore")

    job.try_to(1, measure, shape="4b")
    replace(job, until=time.monotonic()).try_to(1, measure, shape="1.5b")
    full, late = map(json.loads, job.out.getvalue().splitlines())
    assert full["shape"] == "4b"
    assert "Tried to allocate 9 GiB" in full["failed"]
    assert late["left_out"] == "out of time"
    assert not job.faults


def test_measurement_error_fails_the_part(job, tmp_path, monkeypatch):
    from benchmarks.gpu import memory
    from benchmarks.gpu import run as command

    def break_down():
        raise KeyError("gone")

    job.try_to(1, break_down, shape="4b")
    job.try_to(1, lambda: job.emit(shape="1.5b"), shape="1.5b")
    broken, whole = map(json.loads, job.out.getvalue().splitlines())
    assert broken["failed"] == "KeyError: 'gone'"
    assert broken["frames"][-1].endswith("break_down")
    assert whole["shape"] == "1.5b"

    monkeypatch.setattr(memory, "run", lambda job: job.try_to(0, break_down))
    assert command.child("memory", "cpu", "toy", 60, tmp_path / "out.jsonl", "") == 1


def test_models_have_published_parameter_counts():
    """Take billions from the cards of Qwen2.5-0.5B and -1.5B and Qwen3-0.6B, -1.7B and -4B; count tied ones once."""
    from benchmarks.gpu.shapes import make_model

    for name, billions in {"0.5b": 0.49, "1.5b": 1.54, "0.6b": 0.6, "1.7b": 1.72, "4b": 4.02}.items():
        model = make_model(name, torch.device("meta"))
        assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, rel=0.02), name


# ------------------ against TRL


def test_trl_is_compared(job, monkeypatch):
    """Compare one kind of work; test_against_trl.py covers all."""
    pytest.importorskip("trl")
    from benchmarks.against_trl import work

    monkeypatch.setattr(work, "WORKS", {"turns": work.WORKS["turns"]})
    good, (line,) = run(job, "trl")
    assert good
    assert line["what"] == "turns"
    assert line["loss"]["gradients_apart"] < 1e-4
    assert line["ratio"] > 0


def test_missing_trl_skips_the_part(job, monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    good, (line,) = run(job, "trl")
    assert good
    assert (line["what"], line["why"].split()[0]) == ("skipped", "trl")


# ------------------ the driver


def test_failed_or_hung_part_stops_alone(tmp_path, monkeypatch, capfd):
    from benchmarks.gpu import run as driver

    monkeypatch.setattr(driver, "_GRACE_S", 0.2)
    out = tmp_path / "out.jsonl"
    writes = f"open({str(out)!r}, 'a').write('{{\"part\": \"c\"}}' + chr(10))"
    bodies = {"a": "import sys; sys.exit(3)", "b": "import time; time.sleep(60)", "c": writes}
    code = driver.run_parts(list("abc"), lambda part, _: [sys.executable, "-c", bodies[part]], 15.0, out, "the command")
    assert code == 1
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["part"] for line in lines] == ["a", "b", "c"]
    assert lines[0]["failed"] == "exit code 3"
    assert "killed after" in lines[1]["failed"]
    assert "failed" not in lines[2]
    good = driver.run_parts(["c"], lambda part, _: [sys.executable, "-c", bodies[part]], 60.0, out, "the command")
    assert good == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--only", "mfu,speed"],
            "there is no part 'speed'; there are parity, memory, decode, mfu, tree, forks, weights, trl",
        ),
        (["--minutes", "0"], "--minutes must be above 0"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, capsys):
    from benchmarks.gpu.run import main

    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_wrong_shape_or_device_is_named(tmp_path, capsys, monkeypatch):
    from benchmarks.gpu.run import main

    out = f"--out={tmp_path / 'out'}"
    assert main(["--only=mfu", "--child=9", "--shapes=7b", "--device=cpu", out]) == 2
    assert "no shape '7b'; there are toy, 0.5b" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--only=mfu", "--child=9", "--device=cuda", out]) == 2
    assert "torch sees no GPU here" in capsys.readouterr().err


def test_weights_arrive_in_another_process(job):
    good, (line,) = run(job, "weights")
    assert good
    assert line["backend"] == "gloo"
    assert line["bytes_per_s"] > 0
