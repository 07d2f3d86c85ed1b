"""Run benchmarks/gpu at toy sizes on the CPU: every part runs, detects errors, and fails without stopping the rest."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

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
    measured = [line for line in lines if "finished" not in line]
    for line in measured:
        assert line["part"] == part
        assert line["device"] == "cpu"
        assert line["torch"] == torch.__version__
        assert line["command"] == "the command"
    return not job.faults, measured


def test_layouts_agree(job):
    good, lines = run(job, "parity")
    assert good
    layouts = {(line["dtype"], line["layout"]) for line in lines if line["what"] == "layout"}
    assert ("float32", "packed") in layouts
    assert ("bfloat16", "packed, checkpointing") in layouts
    # In 16 bits something is rounded: the comparison with float32 is none with itself.
    assert all(line["gaps"]["gradients"] > 1e-4 for line in lines if line.get("dtype") == "bfloat16" and "gaps" in line)


def test_engine_agrees_with_other_forward_passes(job):
    good, lines = run(job, "engine")
    assert good
    whats, dtypes = ("graphs", "reference", "learner"), ("float32", "bfloat16")
    assert {(line["what"], line["dtype"]) for line in lines} == {(what, dtype) for what in whats for dtype in dtypes}
    assert all(line["max_gap"] > 0 for line in lines if line["what"] == "reference"), "compared with itself"
    graphs = [line for line in lines if line["what"] == "graphs"]
    assert len(graphs) == 2
    assert all(line["static_steps"] > 0 and line["max_gap"] > 0 for line in graphs), "compared with itself"


def test_kernel_agrees_and_is_timed(job):
    good, lines = run(job, "kernels")
    assert good
    assert [line["what"] for line in lines] == [*["paged"] * 4, "speed"]
    assert lines[-1]["bytes_per_s"] > 0


def test_kernel_that_reads_wrong_blocks_is_detected(job, monkeypatch):
    from benchmarks.gpu import kernels

    def wrong(q, cache, table, positions, **options):
        return kernels.paged_attention_reference(q, cache, table.roll(1, dims=1), positions, **options)

    monkeypatch.setattr(kernels, "attention_of", lambda job: wrong)
    kernels.compare(job, "paged", [4, 2, 16, None], "bfloat16")
    assert job.faults


@pytest.mark.parametrize("fault", ["shifted", "without graphs"])
def test_wrong_graphs_are_detected(job, monkeypatch, fault):
    """Plant steps that write keys and values one cell too far, and an engine that computes without graphs."""
    from benchmarks.gpu import engine

    class Shifted(engine.StaticStep):
        def launch(self, rows, given, positions, cells, table, draws):
            return super().launch(rows, given, positions, cells ^ 1, table, draws)

    monkeypatch.setattr(engine, "StaticStep", Shifted if fault == "shifted" else None)
    engine.graphs(job, "graphs", "toy", "float32")
    (line,) = map(json.loads, job.out.getvalue().splitlines())
    assert not line["good"]
    assert (line["static_steps"] > 0) == (fault == "shifted")


def test_wrong_attention_is_detected(job, monkeypatch):
    from benchmarks.gpu import engine
    from trainers.engines.torch_engine import TorchEngine

    class Wrong(TorchEngine):
        """An engine that computes another model, as if it read wrong blocks."""

        def __init__(self, model, *args, **options):
            other = engine.make_model("toy", model.device, hidden=64, heads=4, kv_heads=2, seed=1)
            super().__init__(other, *args, **options)

    monkeypatch.setattr(engine, "TorchEngine", Wrong)
    engine.against_transformers(job, "reference", ["qwen2", 4, 2, 16, None], "bfloat16")
    assert job.faults


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
    good, (syncs, *lines, published) = run(job, "mfu")
    assert good
    assert syncs["per_micro_batch"] == 0
    assert [(line["gradient_checkpointing"], line["compile"]) for line in lines] == [(False, False), (True, False)]
    assert published["what"] == "published"
    assert published["tokens"] == 2 * (job.sizes.published - 1), "the last one is not read"
    for line in lines:
        assert 0 < line["tokens"] <= job.sizes.update
        assert line["tokens_per_s"] > 0
        assert line["mfu"] is None, "no peak is known of a CPU"


@pytest.mark.filterwarnings("ignore:called a synchronizing")
def test_synchronisation_in_micro_batch_is_counted(job, monkeypatch):
    """Plant the warning of PyTorch's debug mode in each forward pass."""
    from benchmarks.gpu import mfu
    from trainers.learner.scoring import Forward

    scores = Forward.scores

    def waits(*args, **options):
        warnings.warn("called a synchronizing CUDA operation (Triggered internally at ...)", stacklevel=1)
        return scores(*args, **options)

    monkeypatch.setattr(Forward, "scores", waits)
    mfu.syncs(job, "syncs", "toy")
    (line,) = map(json.loads, job.out.getvalue().splitlines())
    assert (line["per_micro_batch"], line["whole"], line["good"]) == (1, 1, False)
    assert "test_gpu.py" in next(iter(line["lines"]))


@pytest.mark.slow  # learner/test_trees.py compares trees with rows; below, whether the benchmark notices a difference
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
    full, finished, late = map(json.loads, job.out.getvalue().splitlines())
    assert finished["finished"] == {"shape": "4b"}
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
    broken, whole = (line for line in map(json.loads, job.out.getvalue().splitlines()) if "finished" not in line)
    assert broken["failed"] == "KeyError: 'gone'"
    assert broken["frames"][-1].endswith("break_down")
    assert whole["shape"] == "1.5b"

    monkeypatch.setattr(memory, "run", lambda job: job.try_to(0, break_down))
    assert command.main(["--only=memory", "--child=60", "--device=cpu", f"--out={tmp_path / 'out.jsonl'}"]) == 1


def test_models_have_published_parameter_counts():
    """Take billions from the cards of Qwen2.5-0.5B and -1.5B and Qwen3-0.6B, -1.7B and -4B; count tied ones once."""
    from benchmarks.gpu.shapes import make_model

    for name, billions in {"0.5b": 0.49, "1.5b": 1.54, "0.6b": 0.6, "1.7b": 1.72, "4b": 4.02}.items():
        model = make_model(name, torch.device("meta"))
        assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, rel=0.02), name


# ------------------ against TRL


@pytest.mark.slow  # as test_against_trl.py, which covers all kinds of work
def test_trl_is_compared(job, monkeypatch):
    """Compare one kind of work; test_against_trl.py covers all."""
    pytest.importorskip("trl")
    from benchmarks.against_trl import work

    monkeypatch.setattr(work, "WORKS", {"turns": work.WORKS["turns"]})
    good, (line, vllm) = run(job, "trl")
    assert good
    assert line["what"] == "turns"
    assert line["loss"]["gradients_apart"] < 1e-4
    assert line["ratio"] > 0
    assert "TRL's vLLM needs a GPU" in vllm["unprovable"]


def test_vllm_of_trl_gets_forced_lengths(monkeypatch):
    from benchmarks.against_trl.trl_side import Rollout
    from benchmarks.against_trl.work import Work, make_tokenizer

    asked = []

    class LLM:
        def generate(self, prompts, sampling_params, use_tqdm):
            asked.append([way["max_tokens"] for way in sampling_params])
            assert all(way["min_tokens"] == way["max_tokens"] and way["ignore_eos"] for way in sampling_params)
            replies = [SimpleNamespace(token_ids=[5] * way["max_tokens"]) for way in sampling_params]
            return [SimpleNamespace(outputs=[reply]) for reply in replies]

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=dict))
    work = Work("large", 2, 8, 64, tasks=1, group=2)
    trainer = SimpleNamespace(processing_class=make_tokenizer(), vllm_generation=SimpleNamespace(llm=LLM()))
    played = Rollout(work, [7], vllm=True)([[{"role": "user", "content": "Hi"}]] * 2, trainer)
    lengths = work.lengths(0)
    assert asked == lengths.T.tolist()
    assert [sum(mask) for mask in played["env_mask"]] == lengths.sum(axis=1).tolist()


def test_missing_trl_skips_the_part(job, monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    good, (line,) = run(job, "trl")
    assert good
    assert line["unprovable"].startswith("trl is not installed here")


# ------------------ weights, servers, learning


@pytest.mark.slow  # engines/test_shared_memory.py sends weights between processes, over each transport of a CPU
def test_weights_arrive_in_another_process(job):
    good, (*lines, killed) = run(job, "ipc")
    assert good
    assert [line["backend"] for line in lines] == ["ipc", "gloo"]
    assert all(line["s_per_gb"] > 0 for line in lines)
    assert "has ended" in killed["error"]


def test_stale_weights_are_detected(job, monkeypatch):
    """The other process says that it has read each bucket, and reads those of the first update alone."""
    from benchmarks.gpu import ipc

    ask, orders = ipc.Peer.ask, []

    async def forgetful(self, order):
        orders.append(order)
        if "read" in order and len(orders) > 10:
            return None
        return await ask(self, order)

    monkeypatch.setattr(ipc.Peer, "ask", forgetful)
    ipc.transfer(job, "weights", "toy", "ipc")
    assert len(orders) > 12
    assert job.faults == ["weights is not good"]


@pytest.mark.parametrize("part", ["vllm_update", "vllm_decode", "curve_vllm"])
def test_missing_vllm_is_named(job, part):
    good, (line,) = run(job, part)
    assert good
    assert "vllm is not installed here" in line["unprovable"]
    assert job.missing


@pytest.mark.slow  # a run of the trainer, whose validations tests/trainers/test_ppo.py shows
def test_learning_run_reports_its_validations(job):
    good, (*validations, summary) = run(job, "curve")
    assert good
    assert [line["iteration"] for line in validations] == [0, 1, 2]
    assert all(line["engine"] == "torch" and 0 <= line["solved"] <= 1 for line in validations)
    assert summary["iterations"] == job.sizes.iterations


def test_missing_model_is_named(job, monkeypatch, tmp_path):
    from benchmarks.gpu import curve

    monkeypatch.setattr(curve, "ROOT", tmp_path)
    good, (line,) = run(replace(job, sizes=replace(job.sizes, iterations=20)), "curve")
    assert good
    assert "`make model` makes it" in line["unprovable"]


def test_sleeping_engine_resumes_with_its_tokens(job):
    good, lines = run(job, "sleep")
    assert good
    assert [line["level"] for line in lines] == [1, 2]


def test_offloading_needs_a_gpu(job):
    good, (line,) = run(job, "offload")
    assert good
    assert "no GPU" in line["unprovable"]


# ------------------ the driver


class Parts:
    """Programs in place of parts, each with its own text, for ``run_parts``."""

    def __init__(self, folder, **programs):
        self.out, self._programs, self.started = folder / "out.jsonl", programs, []

    def run(self, seconds=60.0, only=None):
        from benchmarks.gpu.run import run_parts

        return run_parts(only or list(self._programs), self._start, seconds, self.out, "the command")

    def lines(self):
        return [json.loads(line) for line in self.out.read_text().splitlines()] if self.out.exists() else []

    def _start(self, part, seconds, state):
        self.started.append(part)
        known = f"state, out, seconds = {str(state)!r}, {str(self.out)!r}, {seconds}"
        return [sys.executable, "-I", "-S", "-c", f"{known}\n{self._programs[part]}"]


HANGS_ONCE = """
import os, time
if not os.path.exists(out) or "slow" not in open(out).read():
    open(state, "w").write('{"what": {"what": "slow"}, "about": {"device": "GPU", "source": "1"}}')
    time.sleep(60)
open(out, "a").write('{"part": "hangs", "what": "quick"}' + chr(10))
open(state, "w").write('{"what": "ended"}')
"""


class Impatient(subprocess.Popen):
    """A process whose time is up when it has begun to measure."""

    def wait(self, timeout=None):
        state = self.args[-1].partition("state, out, seconds = ")[2].partition(",")[0].strip("'")
        while timeout is not None and self.poll() is None:
            if Path(state).exists() and "slow" in Path(state).read_text():
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return super().wait(timeout)


def test_failed_or_hung_part_stops_alone(tmp_path, monkeypatch):
    from benchmarks.gpu import run as driver
    from benchmarks.gpu.results import finished, key_of

    monkeypatch.setattr(driver.subprocess, "Popen", Impatient)
    parts = Parts(tmp_path, fails="import sys; sys.exit(5)", hangs=HANGS_ONCE, works="pass")
    assert parts.run(seconds=600.0) == 1
    assert parts.started == ["fails", "hangs", "hangs", "works"], "the rest of a part is measured after a hang"
    failed, hung, quick = parts.lines()
    assert failed["failed"] == "exit code 5"
    assert "killed after" in hung["failed"]
    assert hung["what"] == "slow"
    assert quick["what"] == "quick"
    assert finished(parts.lines(), "GPU", "1") == {key_of("hangs", {"what": "slow"})}, "it would hang again"


def test_part_is_killed_with_what_it_started(tmp_path):
    from benchmarks.gpu.run import _run

    pids = tmp_path / "pids"
    started = "import subprocess, time; child = subprocess.Popen(['sleep', '60'])"
    program = f"{started}; open({str(pids)!r}, 'w').write(str(child.pid)); time.sleep(0 if {{}} else 60)"
    assert _run([sys.executable, "-c", program.format(True)], dict(os.environ), 60.0) == 0
    ended = Path(f"/proc/{pids.read_text()}/stat")
    for _ in range(1000):
        if not ended.exists() or ended.read_text().split()[2] == "Z":
            break
        time.sleep(0.01)
    else:
        pytest.fail("a process that the part started still runs")


def test_exit_codes_tell_missing_from_wrong(tmp_path):
    cannot = 'open(state, "w").write(\'{"what": "ended"}\'); raise SystemExit(3)'
    wrong = cannot.replace("3", "1")
    parts = Parts(tmp_path, works="pass", cannot=cannot, wrong=wrong)
    assert parts.run(only=["works"]) == 0
    assert parts.run(only=["works", "cannot"]) == 3
    assert parts.run() == 1
    assert not parts.lines(), "their own results say what is wrong"


def test_nothing_starts_without_time(tmp_path, monkeypatch, capfd):
    from benchmarks.gpu import run as driver

    parts = Parts(tmp_path, takes="pass", waits="pass")
    clock = SimpleNamespace(monotonic=lambda: 70.0 * len(parts.started))  # the first part takes longer than there is
    monkeypatch.setattr(driver, "time", clock)
    assert parts.run(seconds=60.0) == 3
    assert parts.started == ["takes"]
    assert "waits (no time left); the same command continues" in capfd.readouterr().err


def test_measured_parts_are_skipped(tmp_path, monkeypatch):
    from benchmarks.gpu import forks
    from benchmarks.gpu import run as driver

    measured, lost = [], ["the machine is lost"]

    def measure(job):
        for name in ("first", "second"):
            job.try_to(0, lambda name=name: measured.append(name) or job.emit(what=name), what=name)
        if lost:
            raise RuntimeError(lost.pop())

    monkeypatch.setattr(forks, "run", measure)
    words = ["--only=forks", "--child=60", "--device=cpu", f"--out={tmp_path / 'out.jsonl'}"]
    with pytest.raises(RuntimeError):
        driver.main(words)
    assert driver.main(words) == 0
    assert driver.main(words) == 0
    assert measured == ["first", "second"], "the second time both are there, the third time the part is"
    assert driver.main([*words, "--after=2000"]) == 0, "results since then count"
    assert driver.main([*words, "--after=9999"]) == 0
    assert measured == ["first", "second"] * 2
    monkeypatch.setattr("benchmarks.gpu.job._about", lambda device: {"device": "cpu", "source": "changed"})
    driver.main(words)
    assert measured == ["first", "second"] * 3, "other code"


def test_skipped_part_keeps_its_verdict(tmp_path, monkeypatch):
    from benchmarks.gpu import forks
    from benchmarks.gpu import run as driver

    monkeypatch.setattr(forks, "run", lambda job: job.try_to(0, lambda: job.emit(what="x", good=False), what="x"))
    words = ["--only=forks", "--child=60", "--device=cpu", f"--out={tmp_path / 'out.jsonl'}"]
    assert [driver.main(words), driver.main(words)] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "mfu,speed"], "there is no part 'speed'; there are engine, kernels, ipc, vllm_update"),
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


def test_each_part_has_a_module_within_two_minutes():
    from benchmarks.gpu.run import PARTS

    for part, seconds in PARTS.items():
        assert callable(importlib.import_module(f"benchmarks.gpu.{part}").run)
        assert seconds < 120
