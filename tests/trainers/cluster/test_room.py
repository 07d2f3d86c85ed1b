"""Memory: the machine's available memory, and plans refused because they do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.builders.engines import plan_of
from trainers.cluster.memory import CERTAIN, Machine, ModelShape, PlanError, available
from trainers.cluster.plan import describe, make_plan
from trainers.command_line import resolve
from trainers.config import PPOConfig
from trainers.config.model import native_dtype
from trainers.engines.step_memory import engine_bytes
from trainers.models import tiny

GIB = 2**30
SHAPE = ModelShape(
    parameters=135_000_000,
    layers=30,
    hidden=576,
    kv_width=192,
    vocab=49_152,
    heads=9,
    kv_heads=3,
    intermediate=1536,
    outside=28_000_000,
)


def config(*options: str) -> PPOConfig:
    return resolve(["model.device=cpu", *options])[0]


@given(capacity=st.integers(GIB // 8, 40 * GIB), context=st.sampled_from([128, 512, 2048]), slots=st.integers(1, 200))
def test_plan_beyond_memory_or_tolerance_is_refused(capacity, context, slots):
    settings = config(
        f"engine.max_context={context}", f"engine.max_slots={slots}", "actor.max_tokens_per_micro_batch=2048"
    )
    rows = make_plan(settings, Machine(), SHAPE).memory
    assert ("engine", "keys and values", min(slots * context * 30 * 2 * 192 * 4, GIB)) in rows
    most, certain = sum(row[2] for row in rows), sum(row[2] for row in rows if row[:2] in CERTAIN)
    machine = Machine(ram_bytes=capacity)
    if certain > capacity or most > 1.2 * capacity:
        with pytest.raises(PlanError, match=r"largest parts: .*\(less with a smaller (engine|actor)\.|less with model"):
            make_plan(settings, machine, SHAPE)
    else:
        assert ("memory may run short" in describe(make_plan(settings, machine, SHAPE))) == (most > capacity / 1.2)


def test_largest_need_is_named_with_its_key():
    """128 contexts of a model's whole length in one's cache: what the kernel killed at 19 GB."""
    long = ("engine.max_context=8192", "actor.max_tokens_per_micro_batch=8192", "model.dtype=bfloat16")
    make_plan(config(*long), Machine(ram_bytes=23 * GIB), SHAPE)  # of which 1 GiB is there unless more is asked for
    long = (*long, "engine.kv_cache_gib=40")
    with pytest.raises(PlanError, match=r"parts: engine: keys and values 22\.5 GiB .*engine\.kv_cache_gib \(now 40"):
        make_plan(config(*long), Machine(ram_bytes=23 * GIB), SHAPE)
    few = ("rollout.groups_per_batch=1", "rollout.n=2", "actor.mini_batches=1")
    made = make_plan(config(*long, *few), Machine(ram_bytes=23 * GIB), SHAPE)
    assert {what: size for _, what, size in made.memory}["keys and values"] == 2 * 8192 * 30 * 2 * 192 * 2


def test_processes_of_this_machine_share_its_memory():
    engines = sum(size for who, _, size in make_plan(config(), Machine(), SHAPE).memory if who == "engine")
    learner = sum(size for who, _, size in make_plan(config(), Machine(), SHAPE).memory if who == "learner")
    room = Machine(ram_bytes=learner + engines)
    make_plan(config(), room, SHAPE)
    with pytest.raises(PlanError, match="learner and engine need"):
        make_plan(config("engine.replicas=4", "engine.max_slots=128", "engine.kv_cache_gib=4"), room, SHAPE)


def test_served_users_and_judges_count_folders_once(tmp_path):
    """Wherever they are named: for training, validation, or in a mixture; not those at an address."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        tiny.build_model(64, hidden=32, layers=2).save_pretrained(folder)
    one, two = folders
    number = 2 if native_dtype(str(one), "auto") == "bfloat16" else 4
    size = number * tiny.build_model(64, hidden=32, layers=2).num_parameters()
    cache_bytes = 64 * 1024 * 2 * 2 * 16 * number  # 64 replies in its longest context
    for options, count in (
        ((), 0),
        ((f"env.kwargs.user.model={one}", f"env.val_kwargs.user={one}"), 1),
        ((f"env.kwargs.user={one}", f"env.val_kwargs.user={two}"), 2),
        ((f"env.kwargs.user.model={one}", "env.kwargs.user.base_url=http://there/v1"), 0),
        (("env.train_side=user", "warm_start.enable=false", f"env.assistant.model={two}"), 1),
        (
            (
                f"env.mixture.a.kwargs.user={one}",
                f"env.mixture.b.kwargs.judge={two}",
                f"env.mixture.c.kwargs.user={two}",
            ),
            2,
        ),
    ):
        made = plan_of(config(*options), Machine())
        rows = {what: cost for who, what, cost in made.memory if who == "users and judges"}
        assert rows == ({"weights": count * size, "keys and values": count * cache_bytes} if count else {}), options


@pytest.mark.parametrize("options", [(), ("engine.vllm.sleep_mode=true",), ("model.device=cpu",)])
def test_users_and_judges_share_the_learners_place(options):
    """Also while one of these sleeps."""
    engine = () if "model.device=cpu" in options else SERVED
    machine = Machine(gpus=1, gpu_bytes=48 * GIB, ram_bytes=48 * GIB)
    make_plan(config(*engine, *options), machine, SHAPE, served=[(GIB // 2, GIB // 2, 0)])
    with pytest.raises(PlanError, match=r"users and judges: weights 50\.0 GiB \(less with smaller models of users"):
        make_plan(config(*engine, *options), machine, SHAPE, served=[(25 * GIB, GIB, 0), (25 * GIB, 7 * GIB, 0)])


SERVED = ("model.device=cuda", "engine.name=vllm", "engine.vllm.python=python3")


@given(
    share=st.sampled_from([0.1, 0.2, 0.4, 0.9]),
    cache=st.none() | st.integers(1, 80),
    replicas=st.integers(1, 4),
    width=st.sampled_from([1, 2]),
    name=st.sampled_from(["torch", "vllm"]),
)
def test_replicas_on_one_gpu_add_up_caches(share, cache, replicas, width, name):
    """vLLM ignores the memory share where the cache size is set, except for the memory that must be free at start."""
    gpus = Machine(gpus=2, gpu_bytes=80 * GIB)
    size = [] if cache is None else [f"engine.kv_cache_gib={cache}"]
    if name == "torch":
        options, on_gpu = ["model.device=cuda", "engine.max_slots=4000", "engine.max_context=2048"], replicas
        steps = engine_bytes(4000, SHAPE.vocab, "plain", graphs=True)
        replica_bytes = 4 * SHAPE.parameters + steps + ((80 * GIB - steps) // 4 if cache is None else cache * GIB)
    else:
        options, on_gpu = [*SERVED, f"engine.vllm.gpu_memory_utilization={share}"], -(-replicas * width // 2)
        options += [f"engine.tensor_parallel_size={width}"]
        replica_bytes = max(int(share * 80 * GIB), 0 if cache is None else 4 * SHAPE.parameters // width + cache * GIB)
    size += [f"engine.replicas={replicas}", "actor.max_tokens_per_micro_batch=2048"]
    settings = resolve([*options, *size])[0]
    learner = [row for row in make_plan(settings, Machine(gpus=2), SHAPE).memory if row[0] == "learner"]
    certain = sum(row[2] for row in learner if row[:2] in CERTAIN)
    certain += on_gpu * (4 * SHAPE.parameters if name == "torch" else replica_bytes)
    if certain > 80 * GIB or sum(row[2] for row in learner) + on_gpu * replica_bytes > 1.2 * 80 * GIB:
        fewer = r", or fewer engine\.replicas \(now" if on_gpu > 1 else "engine: "
        with pytest.raises(PlanError, match=fewer):
            make_plan(settings, gpus, SHAPE)
    else:
        make_plan(settings, gpus, SHAPE)


def test_free_memory_of_a_gpu_counts():
    full = Machine(gpus=1, gpu_bytes=80 * GIB, gpu_free=2 * GIB)
    settings = resolve(["model.device=cuda"])[0]
    make_plan(settings, Machine(gpus=1, gpu_bytes=80 * GIB, gpu_free=79 * GIB), SHAPE)
    with pytest.raises(PlanError, match=r"on each GPU, whose free memory is 2\.0"):
        make_plan(settings, full, SHAPE)


def files(root: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal: 8000 kB\nMemAvailable: 6000 kB\n"


def test_machine_memory_is_memavailable(tmp_path):
    assert available(tmp_path) is None
    assert available(files(tmp_path, proc__meminfo=MEMINFO)) == 6000 * 1024


@pytest.mark.parametrize("nested", [True, False])
def test_control_group_limit_counts_droppable_cache(tmp_path, nested):
    """Version 2, the limit at the group above, or at the base where the container does not see the host's path."""
    group = tmp_path / "sys/fs/cgroup" / ("pod" if nested else "")
    files(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/pod/app\n")
    files(group, **{"memory.max": "3000000\n", "memory.current": "2000000\n", "memory.stat": "inactive_file 500000\n"})
    files(group / "app", **{"memory.max": "max\n", "memory.current": "1000\n"})
    assert available(tmp_path) == 1_500_000


def test_a_control_group_of_version_1(tmp_path):
    files(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="9:cpu:/x\n4:memory:/job\n")
    files(
        tmp_path / "sys/fs/cgroup/memory/job",
        **{"memory.limit_in_bytes": "1000", "memory.usage_in_bytes": "2000", "memory.stat": "total_inactive_file 0\n"},
    )
    assert available(tmp_path) == 0, "more is used than is allowed"
