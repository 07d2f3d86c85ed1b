"""Memory of a GPU at each moment of an iteration."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.cluster.memory import Machine, ModelShape, PlanError
from trainers.cluster.plan import Plan, describe, make_plan
from trainers.cluster.timeline import MOMENTS, Timeline, timelines
from trainers.command_line.load import resolve
from trainers.config import PPOConfig

GIB = 2**30
#: 7 numbers of blocks and 1 outside, in units of 128 Mi numbers.
SHAPE = ModelShape(
    parameters=2**30, layers=16, hidden=2048, kv_width=256, vocab=65_536, heads=16, kv_heads=2, intermediate=8192,
    outside=2**27,
)  # fmt: skip
SERVER = ("engine.name=vllm", "engine.vllm.sleep_mode=true", "engine.vllm.gpu_memory_utilization=0.5")
COMMON = ("model.device=cuda", "model.dtype=bfloat16", "cluster.backend=ray", "engine.max_context=1024")


def planned(*options: str, gpus: int = 4, gib: float = 80.0) -> Plan:
    config = resolve([*COMMON, *options], PPOConfig)[0]
    return make_plan(config, Machine.described(f"{gpus}@{gib:g}"), SHAPE)


def moments(line: Timeline) -> dict[str, dict[tuple[str, str], int]]:
    return {moment.name: {(who, what): size for who, what, size in moment.rows} for moment in line.moments}


def test_moments_of_sleeping_server_by_hand() -> None:
    """Four ranks, tensor parallelism of 2: 1 Gi parameters are 1 GiB of float32 a rank, 1 GiB of bfloat16 an engine."""
    made = planned(*SERVER, "cluster.learner_ranks=4", "engine.tensor_parallel_size=2", "engine.vllm.bucket_mib=512")
    (line,) = made.timelines
    rolling, learning, updating, waking = (moments(line)[name] for name in MOMENTS)
    resting = {("learner", "parameters"): GIB, ("learner", "optimizer"): 2 * GIB}
    context = {("engine", "CUDA context and graphs"): GIB}
    serving = {("engine", "weights"): GIB, ("engine", "reserved keys and values"): 39 * GIB} | context
    assert rolling == resting | serving
    assert waking == rolling
    on_their_way = {("learner", "buckets of weights"): GIB, ("learner", "gathered parameter"): GIB // 4}
    assert updating == resting | context | {("engine", "weights"): GIB} | on_their_way
    activations = learning.pop(("learner", "activations"))
    assert activations > 0
    outside, a_layer = 2**27, 7 * 2**27 // 16
    gathered = 2 * (outside + 2 * a_layer)
    assert learning == resting | context | {
        ("learner", "gradients"): GIB,
        ("learner", "gathered layers"): gathered,
    }
    assert line.peak.name == "rolling out"


@settings(max_examples=30)
@given(
    ranks=st.sampled_from([1, 2, 4]),
    engine=st.sampled_from(["torch", "vllm", "sglang"]),
    sleeps=st.booleans(),
    bucket=st.sampled_from([64, 1024]),
    offload=st.booleans(),
    colocate=st.booleans(),
)
def test_moments_are_sums_and_peaks_are_largest(
    ranks: int, engine: str, sleeps: bool, bucket: int, offload: bool, colocate: bool
) -> None:
    options = [f"engine.name={engine}", f"cluster.learner_ranks={ranks}", f"trainer.offload={str(offload).lower()}"]
    options += [f"cluster.colocate={str(colocate).lower()}"]
    if engine != "torch":
        options += [f"engine.{engine}.sleep_mode={str(sleeps and colocate).lower()}"]
        options += [f"engine.{engine}.bucket_mib={bucket}"]
    made = planned(*options, gpus=8, gib=400.0)
    assert len(made.timelines) == 1 if colocate else 2
    parts = {row[:2] for row in made.memory}
    for line in made.timelines:
        assert line.peak.total == max(sum(size for *_, size in moment.rows) for moment in line.moments)
        assert {row[:2] for moment in line.moments for row in moment.rows} <= parts
    assert {row[:2] for line in made.timelines for moment in line.moments for row in moment.rows} == parts


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_larger_bucket_raises_updating_alone(engine: str) -> None:
    def totals(mib: int) -> list[int]:
        options = (f"engine.name={engine}", f"engine.{engine}.sleep_mode=true", f"engine.{engine}.bucket_mib={mib}")
        (line,) = planned(*options, "cluster.learner_ranks=4").timelines
        return [moment.total for moment in line.moments]

    small, large = totals(512), totals(768)
    raised = [b - a for a, b in zip(small, large, strict=True)]
    assert raised == [0, 0, 2 * 256 * 2**20, 0]


@given(st.sampled_from([1, 2]), st.sampled_from(["torch", "vllm"]))
@settings(max_examples=4)
def test_more_gpus_never_need_more_per_gpu(ranks: int, engine: str) -> None:
    """But for gathering: one rank holds whole parameters as it is."""
    few, many = (
        planned(f"engine.name={engine}", f"cluster.learner_ranks={count}", gpus=8, gib=400.0).timelines[0]
        for count in (2 * ranks, 4 * ranks)
    )
    for one, other in zip(few.moments, many.moments, strict=True):
        assert other.total <= one.total


def test_apart_the_engine_is_on_its_own_gpus() -> None:
    made = planned("engine.name=vllm", "cluster.colocate=false", "cluster.learner_ranks=2")
    learner, engine = made.timelines
    assert (learner.kind, engine.kind) == ("learner", "engine")
    assert {who for moment in learner.moments for who, *_ in moment.rows} == {"learner"}
    assert {who for moment in engine.moments for who, *_ in moment.rows} == {"engine"}
    updating = moments(engine)["updating"]
    assert updating["engine", "bucket of weights"] == 256 * 2**20


def test_staleness_counts_everything_at_once() -> None:
    made = planned("engine.name=vllm", "cluster.colocate=false", "cluster.learner_ranks=2", "rollout.staleness=1")
    assert [moment.name for line in made.timelines for moment in line.moments] == ["at once", "at once"]


def test_moment_that_does_not_fit_is_named_with_keys() -> None:
    with pytest.raises(PlanError) as refusal:
        planned("engine.name=torch", "cluster.learner_ranks=1", gpus=1, gib=12.0)
    first, *table = str(refusal.value).splitlines()
    assert "while learning on each GPU, which has 12.0" in first
    assert "actor.max_tokens_per_micro_batch" in first
    assert any("learning" in line for line in table)


def test_server_share_below_its_weights_is_refused() -> None:
    with pytest.raises(
        PlanError, match=r"gpu_memory_utilization=0.02 gives the engine 1.6 GiB .* weights alone are 2.0"
    ):
        planned("engine.name=vllm", "engine.vllm.gpu_memory_utilization=0.02")


def test_description_shows_the_timeline() -> None:
    text = describe(planned(*SERVER, "cluster.learner_ranks=4", "engine.tensor_parallel_size=2"))
    lines = text.splitlines()
    head = next(line for line in lines if "rolling out" in line)
    assert head.split() == ["rolling", "out", "learning", "updating", "waking"]
    assert max(map(len, lines[lines.index(head) :])) <= 100
    (together,) = [line.split()[1:] for line in lines if line.strip().startswith("together")]
    assert len(together) == 4


def test_sleep_frees_weights_at_level_two_alone() -> None:
    config = resolve([*COMMON, *SERVER, "cluster.learner_ranks=4"], PPOConfig)[0]
    made = planned(*SERVER, "cluster.learner_ranks=4")
    awake, light, deep = (
        timelines(made.memory, config, "cuda", 4, Machine.described("4@80"), level=level)[0] for level in (0, 1, 2)
    )
    learning = [next(m for m in line.moments if m.name == "learning").total for line in (awake, light, deep)]
    assert learning == sorted(learning, reverse=True)
    assert learning[1] - learning[2] == 2 * GIB, "the engine's weights"
