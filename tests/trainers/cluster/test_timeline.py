"""The memory of a GPU at each moment of an iteration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.cluster.memory import STEPS, Machine, ModelShape, PlanError
from trainers.cluster.plan import describe, make_plan
from trainers.cluster.timeline import timelines
from trainers.command_line.load import resolve
from trainers.ppo import publish

GIB, MIB = 2**30, 2**20
#: Of Qwen2.5-3B.
SHAPE = ModelShape(
    parameters=3_085_938_688,
    layers=36,
    hidden=2048,
    kv_width=256,
    vocab=151_936,
    heads=16,
    kv_heads=2,
    intermediate=11_008,
    outside=151_936 * 2048 + 2048,
)
COMMON = (
    "model.device=cuda",
    "model.dtype=bfloat16",
    "actor.mini_batches=1",
    "model.enable_gradient_checkpointing=true",
)
VLLM = (*COMMON, "engine.name=vllm")
SGLANG = (*COMMON, "engine.name=sglang")
SLEEPING = (*VLLM, "engine.vllm.sleep_mode=true")
RANKS = ("cluster.learner_ranks=4", "engine.tensor_parallel_size=2")
MACHINE = Machine.described("8@1000")


def plan(*options: str, machine: Machine = MACHINE) -> Any:
    return make_plan(resolve(list(options))[0], machine, SHAPE)


def totals(*options: str, machine: Machine = MACHINE) -> dict[str, int]:
    (line,) = plan(*options, machine=machine).timelines
    return {moment.name: moment.total for moment in line.moments}


def test_moments_are_sums_by_hand() -> None:
    """Four ranks with vLLM across two GPUs, which sleeps; 80 GiB of which vLLM takes half."""
    n, embeddings = SHAPE.parameters, 2 * 151_936 * 2048
    parameters, moments, context = 4 * n // 4, 8 * n // 4, GIB
    inside = n - SHAPE.outside
    learned = 4 * n // 4 + 2 * (SHAPE.outside + 2 * inside // 36)  # gradients, gathered layers
    tokens = 2048
    layer = tokens * (2 * 8 * 2048 + 2 * (4 * 11_008 + 2 * 2048 + 2 * 256))
    learned += layer + 2 * tokens * 2048 * 36 + 2 * 4 * (2**27 // 151_936) * 151_936
    options = (*SLEEPING, *RANKS, f"actor.max_tokens_per_micro_batch={tokens}")
    assert totals(*options, machine=Machine.described("4@80")) == {
        "rolling out": parameters + moments + context + 40 * GIB,
        "learning": parameters + moments + context + learned,
        # The embeddings are above bucket_mib, so each bucket has their size; and they are gathered before.
        "updating": parameters + moments + context + 2 * n // 2 + 3 * embeddings,
        "waking": parameters + moments + context + 40 * GIB,
    }


OPTIONS = st.sampled_from([COMMON, VLLM, SLEEPING, SGLANG, (*SGLANG, "engine.sglang.sleep_mode=true")])
EXTRAS = st.lists(
    st.sampled_from(
        [
            *("trainer.offload=true", "model.lora_rank=16", "actor.use_kl_loss=true"),
            "engine.weight_transport=process_group",
        ]
    ),
    unique=True,
)


@given(options=OPTIONS, extras=EXTRAS, apart=st.booleans(), ranks=st.sampled_from([1, 2, 4]))
def test_moments_are_sums_and_peak_is_their_maximum(options: Any, extras: Any, apart: bool, ranks: int) -> None:
    extras = [extra for extra in extras if "transport" not in extra or "engine.name" in " ".join(options)]
    where = ["cluster.colocate=false"] if apart else []
    sleeps = any("sleep_mode" in option for option in options)
    if apart and sleeps:
        return
    made = plan(*options, *extras, *where, "cluster.backend=ray", f"cluster.learner_ranks={ranks}")
    assert [line.kind for line in made.timelines] == (["learner", "engine"] if apart else ["learner and engine"])
    for line in made.timelines:
        for moment in line.moments:
            assert moment.total == sum(size for _, _, size in moment.rows)
            assert set(moment.rows) <= set(line.rows)
        assert {row for moment in line.moments for row in moment.rows} == set(line.rows)
        assert line.peak.total == max(moment.total for moment in line.moments)
    if apart:
        assert not any(who == "engine" for who, _, _ in made.timelines[0].rows)
    assert all(len(text) <= 98 for text in describe(made).splitlines() if text.startswith("  "))


@pytest.mark.parametrize("options", [COMMON, (*VLLM, "engine.kv_cache_gib=2"), SLEEPING])
def test_more_ranks_need_no_more_memory(options: Any) -> None:
    last: dict[str, int] = {}
    for ranks in (2, 4, 8):
        needs = totals(*options, f"cluster.learner_ranks={ranks}")
        assert all(needs[name] <= size for name, size in last.items())
        last = needs


def test_decoding_steps_count_while_rolling_out() -> None:
    """Sorting takes 44 bytes for each of 200 rows and tokens, drawing without cuts 20; graphs as much again."""
    slots, number = (*COMMON, "engine.max_slots=200"), 1.05 * 200 * SHAPE.vocab
    plain, none = totals(*slots), totals(*slots, "engine.cuda_graphs=false")
    assert plain.pop("rolling out") - none.pop("rolling out") == int(20 * number)
    assert plain == none
    for cut in ("rollout.top_k=50", "rollout.top_p=0.9", "rollout.min_p=0.1", "validation.top_p=0.9"):
        more = totals(*slots, cut)["rolling out"] - totals(*slots)["rolling out"]
        assert more == 2 * int(44 * number) - 2 * int(20 * number)
    assert not any(what == STEPS for _, what, _ in plan(*VLLM).memory)
    with pytest.raises(
        PlanError, match=r"engine: decoding steps .* smaller engine.max_slots .*, or engine.cuda_graphs"
    ):
        plan(*COMMON, "engine.max_slots=4000", "engine.kv_cache_gib=1", machine=Machine.described("1@24"))


def test_bucket_size_counts_while_updating_alone() -> None:
    few, many = (totals(*SLEEPING, *RANKS, f"engine.vllm.bucket_mib={mib}") for mib in (1024, 2048))
    assert many.pop("updating") - few.pop("updating") == 2 * 1024 * MIB
    assert few == many


def test_deeper_sleep_frees_more() -> None:
    config = resolve([*SLEEPING])[0]
    rows = make_plan(config, MACHINE, SHAPE).memory
    learning = []
    for level in (0, 1, 2):
        (line,) = timelines(rows, config, "cuda", 1, MACHINE, level)
        learning.append(next(moment.total for moment in line.moments if moment.name == "learning"))
    assert learning[0] > learning[1] == learning[2] + 2 * SHAPE.parameters


def test_engine_that_stays_awake_counts_while_learning() -> None:
    asleep, awake = totals(*SLEEPING), totals(*VLLM)
    assert awake["learning"] > asleep["learning"] + 400 * GIB
    with_staleness = totals(*VLLM, "rollout.staleness=1")
    assert with_staleness == {"at once": max(with_staleness.values())}
    assert with_staleness["at once"] > awake["learning"]


def test_moment_that_does_not_fit_is_named() -> None:
    with pytest.raises(PlanError, match=r"while learning on each GPU.*sleep_mode=true, which frees(.|\n)*peak"):
        plan(*VLLM, machine=Machine.described("1@48"))
    with pytest.raises(PlanError, match=r"utilization=0.01 gives the engine 0.8 GiB .* alone are 5.7: raise it"):
        plan(*VLLM, "engine.vllm.gpu_memory_utilization=0.01", machine=Machine.described("1@80"))


async def test_memory_is_freed_before_the_engine_takes_it() -> None:
    """The moments' order: the learner's kept memory goes before each of the two times that the engine wakes."""
    order: list[str] = []

    async def called(name: str, result: Any = None) -> Any:
        order.append(name)
        return result

    run = SimpleNamespace(
        config=resolve([*SLEEPING])[0],
        publishing=None,
        failure=None,
        learner=SimpleNamespace(free_cache=lambda: order.append("free")),
        publisher=SimpleNamespace(take=lambda: ({}, 7)),
        collector=SimpleNamespace(update_weights=lambda *arguments: called("update")),
        sleepers=[SimpleNamespace(wake=lambda: called("wake"))],
    )

    async def learning(call: Any) -> Any:
        return call()

    run.learning = learning
    assert await publish(run, SimpleNamespace(version=0)) == 7  # type: ignore[arg-type]
    assert order == ["free", "update", "free", "wake"]
