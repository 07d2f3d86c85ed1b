"""Every accepted plan has room for its actors; every refused one names the conflicting numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.shapes import SHAPES
from trainers.cluster.memory import Machine, ModelShape, PlanError
from trainers.cluster.plan import describe, make_plan
from trainers.cluster.shape import shape_of, shape_of_model
from trainers.command_line.load import ConfigError, resolve
from trainers.config import PPOConfig
from trainers.config.model import ModelSection
from trainers.learner import Learner
from trainers.models.memory import CPU_TOKENS
from trainers.models.tiny import build_model

SHAPE = ModelShape(
    parameters=500_000_000,
    layers=24,
    hidden=896,
    kv_width=128,
    vocab=151_936,
    heads=14,
    kv_heads=2,
    intermediate=4864,
    outside=136_000_000,
)
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
H200 = Machine(gpus=8, gpu_bytes=140 * 2**30)


def config(*options: str) -> PPOConfig:
    return resolve(list(options), PPOConfig)[0]


def plan(*options: str, machine: Machine = H200, shape: ModelShape | None = None) -> Any:
    return make_plan(config(*options), machine, shape)


RAY = ("cluster.backend=ray", "model.device=cuda")


@given(
    nodes=st.integers(1, 4),
    per_node=st.integers(1, 8),
    ranks=st.integers(1, 32),
    replicas=st.integers(1, 8),
    width=st.sampled_from([1, 2, 4]),
    colocate=st.booleans(),
    device=st.sampled_from(["cpu", "cuda"]),
    cpus=st.integers(1, 4),
)
def test_plan_has_room_for_all_actors(nodes, per_node, ranks, replicas, width, colocate, device, cpus):
    options = [
        *("cluster.backend=ray", f"model.device={device}", f"cluster.nnodes={nodes}"),
        *(f"cluster.learner_ranks={ranks}", f"engine.replicas={replicas}", f"cluster.cpus_per_actor={cpus}"),
        *(f"cluster.colocate={str(colocate).lower()}", "actor.mini_batches=1"),
    ]
    if device == "cuda":
        options += [f"cluster.n_gpus_per_node={per_node}"]
    if width > 1:
        options += ["engine.name=sglang", f"engine.tensor_parallel_size={width}"]
    try:
        checked = config(*options)
    except ConfigError:
        return  # not the plan's business (an engine without replicas)
    made, refused = None, ""
    try:
        made = make_plan(checked, Machine())
    except PlanError as error:
        refused = str(error)
    if made is None:
        assert device == "cuda" or width > 1
        assert any(character.isdigit() for character in refused)
        return
    assert len(made.learner) == ranks
    assert len(made.engines) == len(made.engine_gpus) == replicas
    places = {pool.name: pool.places for pool in made.pools}
    for name, given_places in places.items():
        for number, place in enumerate(given_places):
            seats = [s for s in made.learner + made.engines if (s.pool, s.place) == (name, number)]
            assert sum(seat.cpus for seat in seats) == place.cpus > 0
            assert sum(seat.gpus for seat in seats) == place.gpus
    if device == "cpu":
        assert made.gpus == 0
        return
    assert made.gpus <= nodes * per_node
    used = [rank for ranks_of in made.engine_gpus for rank in ranks_of]
    if colocate:
        assert made.gpus == ranks
        assert len(used) == len(set(used)) == replicas * width
        assert all(rank < ranks for rank in used)
        # A place is on one machine, so an engine and all the GPUs that it shares are.
        of_ranks = [{made.learner[rank].place for rank in ranks_of} for ranks_of in made.engine_gpus]
        assert of_ranks == [{seat.place} for seat in made.engines]
    else:
        assert not used
        assert made.gpus == ranks + replicas * width
    assert all(place.gpus <= per_node for pool in made.pools for place in pool.places)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("cluster.n_gpus_per_node=4 cluster.learner_ranks=6", r"learner_ranks=6 is more than .*=4 .*4 or 8"),
        ("cluster.n_gpus_per_node=4 cluster.learner_ranks=8", r"is 4 GPUs, and cluster.learner_ranks=8"),
        ("cluster.n_gpus_per_node=2 cluster.learner_ranks=2 cluster.colocate=false", "need 3 with cluster.colocate"),
        (
            "cluster.n_gpus_per_node=3 cluster.colocate=false engine.name=vllm engine.weight_transport=ipc",
            "weight_transport=ipc: .* other GPUs than the learner.* take process_group",
        ),
        ("cluster.n_gpus_per_node=2 engine.replicas=2", r"at most 1 replicas do"),
        (
            "cluster.n_gpus_per_node=6 engine.name=sglang engine.tensor_parallel_size=4",
            r"4 does not divide cluster.n_gpus_per_node=6.*1, 2, 3, 6 do",
        ),
        ("cluster.n_gpus_per_node=0", r"cluster.n_gpus_per_node=0"),
        (
            "cluster.learner_ranks=2 engine.replicas=1 ray_init.num_cpus=2",
            r"ray_init.num_cpus=2, but 2 learner ranks .*at least 3",
        ),
        ("trainer.fsdp_size=3 cluster.learner_ranks=4", "fsdp_size=3 does not divide the 4 ranks"),
        ("rollout.n=65536 rollout.staleness=1", r"staleness=1 mean 2097152 requests in flight .* lower these"),
    ],
)
def test_refused_plan_names_cause_and_alternative(options, message):
    with pytest.raises(PlanError, match=message):
        plan(*RAY, *options.split(), "actor.mini_batches=1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("model.device=cuda", "there are none here"),
        ("model.device=cuda cluster.n_gpus_per_node=2", "torch sees 0 here"),
        ("model.device=cpu cluster.n_gpus_per_node=2", "model.device=cpu uses none"),
        ("cluster.colocate=false", "has no effect without GPUs and without Ray"),
    ],
)
def test_without_gpus(options, message):
    with pytest.raises(PlanError, match=message):
        plan(*options.split(), machine=Machine())


@pytest.mark.parametrize(
    ("machine", "options", "message"),
    [
        ("1@16", ("cluster.n_gpus_per_node=4",), "n_gpus_per_node=4, but each machine of --plan-for has 1; at most"),
        ("4@80", (*RAY, "cluster.n_gpus_per_node=8"), "n_gpus_per_node=8, but each machine of --plan-for has 4"),
        ("2x8@80", (*RAY, "cluster.nnodes=3"), "cluster.nnodes=3, but --plan-for has 2"),
        ("4-80", (), r"--plan-for 4-80: it must be GPUS@GIB \(4@80"),
        ("0@80", (), "it must be GPUS@GIB"),
        ("4@1", (), "learner needs at least .* while learning on each GPU, which has 1.0"),
        (
            "1@80",
            ("engine.name=sglang", "engine.sglang.server_args=[--mem-fraction-static, half]"),
            "--mem-fraction-static is 'half'; it must be a number between 0 and 1",
        ),
    ],
)
def test_described_machine_is_not_exceeded(machine, options, message):
    with pytest.raises(ValueError, match=message):
        plan(*options, machine=Machine.described(machine), shape=SHAPE)


def test_server_memory_is_its_command_lines_share():
    made = plan(
        *("engine.name=sglang", "engine.sglang.server_args=[--mem-fraction-static, '0.25']"),
        machine=Machine.described("2x4@80"),
        shape=SHAPE,
    )
    assert sum(size for who, what, size in made.memory if who == "engine" and "CUDA" not in what) == 20 * 2**30
    assert made.device == "cuda"


@pytest.mark.parametrize(
    ("options", "mib"),
    [
        ((), 2 * 259.7),  # the embeddings, which are one tensor
        (("engine.vllm.bucket_mib=512",), 2 * 512.0),
        (("engine.vllm.bucket_mib=9999",), 2 * 953.7),  # all weights
        (("engine.weight_transport=process_group",), 0.0),
        (("cluster.colocate=false",), 0.0),
        (("engine.vllm.base_url=http://127.0.0.1:8000",), 2 * 259.7),
        (("engine.vllm.base_url=http://elsewhere:8000",), 0.0),
        (("engine.vllm.base_url=http://elsewhere:8000", "engine.weight_transport=ipc"), 2 * 259.7),
    ],
)
def test_shared_buckets_are_counted(options: tuple[str, ...], mib: float) -> None:
    made = learner_memory("engine.name=vllm", "cluster.colocate=true", *options)
    assert made.get("buckets of weights", 0) / 2**20 == pytest.approx(mib, abs=0.2)


def test_counted_environments_have_training_and_validation_places():
    made = plan("env.backend=ray", "env.workers=3", "cluster.cpus_per_env=0.5", machine=Machine())
    (pool,) = made.pools
    assert (pool.name, pool.strategy, len(pool.places)) == ("environments", "SPREAD", 6)
    assert made.cpus == 3


def test_memory_follows_its_convention():
    options = ("model.dtype=bfloat16", "algorithm.adv_estimator=gae", "cluster.learner_ranks=4", *RAY)
    options = (*options, "engine.replicas=1")
    rows = {(who, what): size for who, what, size in plan(*options, shape=SHAPE).memory}
    # An actor and a critic in float32, over 4 ranks.
    assert rows["learner", "parameters"] == rows["learner", "gradients"] == 2 * 4 * 500_000_000 // 4
    assert rows["learner", "optimizer"] == 2 * rows["learner", "parameters"]
    assert rows["engine", "weights"] == 2 * 500_000_000
    assert rows["engine", "keys and values"] == 128 * 512 * 24 * 2 * 128 * 2


def learner_memory(*options: str) -> dict[str, int]:
    rows = plan("model.dtype=bfloat16", "actor.mini_batches=1", *RAY, *options, shape=SHAPE).memory
    return {what: size for who, what, size in rows if who == "learner"}


def test_memory_is_divided_as_the_learner_is_cut():
    ranks = ("cluster.learner_ranks=4", "trainer.fsdp_size=null")
    sharded, halved = learner_memory(*ranks), learner_memory(*ranks, "trainer.tensor_parallel_size=2")
    copies = learner_memory(*ranks, "trainer.fsdp_size=2")
    longer = learner_memory(*ranks, "trainer.ulysses_sequence_parallel_size=2")
    inside, outside = SHAPE.parameters - SHAPE.outside, SHAPE.outside
    assert sharded["optimizer"] == 8 * SHAPE.parameters // 4
    assert copies["optimizer"] == 8 * SHAPE.parameters // 2, "two shards, two copies"
    # The blocks over 2 x 2 ranks, what is outside over the 2 ranks of each tensor position.
    assert halved["optimizer"] == 8 * (inside // 4 + outside // 2)
    assert halved["gathered layers"] == 2 * (outside + 2 * inside // 24 // 2)
    assert sharded["gathered layers"] == 2 * (outside + 2 * inside // 24)
    logits = 2 * 4 * (2**27 // SHAPE.vocab) * SHAPE.vocab
    tokens = 16384  # the maximum, where memory is plenty
    norms, cut = 16 * SHAPE.hidden, 8 * SHAPE.intermediate + 4 * SHAPE.hidden + 4 * SHAPE.kv_width
    assert sharded["activations"] - logits == 24 * tokens * (norms + cut)
    assert halved["activations"] - logits == 24 * tokens * (norms + cut // 2)
    assert longer == sharded, "micro-batches are counted in a rank's own tokens"


def test_adapters_alone_have_gradients_and_moments():
    model = ("model.family=qwen2", "model.hidden=64", "model.heads=4", "model.kv_heads=2", "model.layers=3")
    shape = shape_of(config(*model).model)
    lora = (*RAY, *model, "actor.mini_batches=1", "model.lora_rank=4", "actor.use_kl_loss=true")
    learner = Learner(build_model(512, hidden=64, heads=4, kv_heads=2, layers=3), model=ModelSection(lora_rank=4))
    trained = sum(weight.numel() for weight in learner.actor.parameters() if weight.requires_grad)
    estimator = "algorithm.adv_estimator=grpo"
    rows = {what: size for who, what, size in plan(*lora, estimator, shape=shape).memory if who == "learner"}
    assert (rows["gradients"], rows["optimizer"]) == (4 * trained, 8 * trained)
    assert rows["parameters"] == 4 * (shape.parameters + trained), "and the reference takes nothing"
    some = (estimator, "model.target_modules=[q_proj, up_proj]", "model.exclude_modules=[up_proj]")
    rows = {what: size for who, what, size in plan(*lora, *some, shape=shape).memory if who == "learner"}
    assert rows["gradients"] == 4 * 4 * 3 * (64 + 64)
    with_critic = learner_memory("model.lora_rank=4", "algorithm.adv_estimator=gae")
    assert with_critic["parameters"] == 2 * 2 * SHAPE.parameters, "frozen ones in the type of the computation"


def test_checkpointing_and_offloading_are_counted():
    sixteen = ("actor.max_tokens_per_micro_batch=16384",)
    logits = 2 * 4 * (2**27 // SHAPE.vocab) * SHAPE.vocab
    stored, again = (learner_memory(*sixteen, *extra) for extra in ((), ("model.enable_gradient_checkpointing=true",)))
    moved = learner_memory(*sixteen, "model.enable_gradient_checkpointing=true", "model.enable_activation_offload=true")
    layer = 16384 * (20 * SHAPE.hidden + 8 * SHAPE.intermediate + 4 * SHAPE.kv_width)
    assert stored["activations"] == 24 * layer + logits
    assert again["activations"] == layer + 24 * 2 * 16384 * SHAPE.hidden + logits
    assert moved["activations"] == layer + logits
    assert not {"parameters", "gradients", "optimizer"} & learner_memory("trainer.offload=true").keys()
    # What an offloaded learner keeps on the CPU does not have to fit on a GPU.
    small = Machine(gpus=1, gpu_bytes=6 * 2**30)
    one = ("model.device=cuda", "model.dtype=bfloat16")
    with pytest.raises(PlanError, match="needs at least"):
        plan(*one, machine=small, shape=SHAPE)
    assert plan(*one, "trainer.offload=true", machine=small, shape=SHAPE)


def stored_bytes(model, lean, tokens):
    """Return the bytes of the storages that autograd stores, with the weights."""
    storages: dict[int, Any] = {}

    def keep(value):
        storages[value.untyped_storage().data_ptr()] = value
        return value

    ids, where = torch.zeros(1, tokens, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        out = model(ids, where, where, 1.0) if lean else model.base_model(input_ids=ids, use_cache=False)
    size = sum(value.untyped_storage().nbytes() for value in storages.values())
    del out
    return size


@pytest.mark.parametrize(("dtype", "lean"), [("bfloat16", False), ("float32", False), ("bfloat16", True)])
def test_activations_are_what_layers_keep(dtype, lean):
    """Compare two layers with one, and 64 tokens with 32; ``lean``: a learner on one CPU rank."""
    sizes = {"hidden": 64, "heads": 4, "kv_heads": 2, "intermediate": 352}
    ranks = ("cluster.learner_ranks=1",) if lean else ("cluster.learner_ranks=2", "cluster.backend=ray")
    grows, rows = [], []
    for layers in (1, 2):
        model: Any = build_model(61, layers=layers, **sizes)
        model = (
            Learner(model, ModelSection(dtype=dtype), share_prefixes=False).actor
            if lean
            else model.to(getattr(torch, dtype))
        )
        grows.append((stored_bytes(model, lean, 64) - stored_bytes(model, lean, 32)) / 32)
        family = [f"model.{name}={value}" for name, value in {"family": "qwen2", "layers": layers, **sizes}.items()]
        shape = shape_of(config(*family).model)
        made = plan("model.device=cpu", f"model.dtype={dtype}", *ranks, machine=Machine(), shape=shape).memory
        rows.append(next(size for _, what, size in made if what == "activations"))
    estimated = (rows[1] - rows[0]) / CPU_TOKENS
    assert grows[1] - grows[0] == pytest.approx(estimated, rel=0.02)


def test_estimate_matches_memory_measured_on_h200():
    """Compare with the results of `benchmarks.gpu`, without the overhead of torch's allocator."""
    lines = [json.loads(line) for line in (RESULTS / "gpu-h200.jsonl").read_text().splitlines()]
    measured = [line for line in lines if line["part"] == "mfu" and not line["compile"]]
    assert len(measured) == 4
    for line in measured:
        with torch.device("meta"):
            sizes = {"vocab_size": 151_936, **SHAPES[line["shape"]]}
            model = build_model(**sizes)
        assert sum(weight.numel() for weight in model.parameters()) == line["parameters"]
        options = [f"actor.max_tokens_per_micro_batch={line['micro']}", "model.dtype=bfloat16", "model.device=cuda"]
        options += [f"model.enable_gradient_checkpointing={str(line['gradient_checkpointing']).lower()}"]
        made = plan(*options, "cluster.n_gpus_per_node=1", shape=shape_of_model(model)).memory
        estimated = sum(size for who, _, size in made if who == "learner")
        assert estimated == pytest.approx(line["peak_bytes"], rel=0.1), line


def test_one_cpu_rank_in_bfloat16_has_rounded_copies():
    """Every model of the learner has copies; FSDP2 gathers instead."""
    cpu, half = ("model.device=cpu", "model.dtype=bfloat16"), 2 * SHAPE.parameters
    two = ("cluster.backend=ray", "cluster.learner_ranks=2")
    again, compiled = ("model.enable_gradient_checkpointing=true",), ("model.compile=true",)
    sharded = ("trainer.fsdp=always",)
    for options in (again, compiled, sharded):  # FSDP2, on one rank as well
        rows = learner_memory(*cpu, *options)
        assert "gathered layers" in rows
        assert "rounded parameters" not in rows
    for options, size in (((), 1), (("actor.use_kl_loss=true",), 2), (("algorithm.adv_estimator=gae",), 2), (two, 0)):
        rows = learner_memory(*cpu, *options)
        assert rows.get("rounded parameters", 0) == size * half
        assert ("gathered layers" in rows) == (options == two)
    assert "rounded parameters" not in learner_memory("model.device=cpu", "model.dtype=float32")


def test_only_mini_batches_below_rank_groups_idle():
    few = (*RAY, "cluster.learner_ranks=4", "rollout.groups_per_batch=1", "rollout.n=2", "actor.mini_batches=1")
    for options, idle in (((), True), (("trainer.tensor_parallel_size=2",), False)):
        notes = plan(*few, *options).notes
        assert any("a mini-batch has 2 episodes" in note for note in notes) == idle


def test_few_positions_have_few_logits():
    few, many = (
        learner_memory(
            "engine.max_context=16", "rollout.max_response_length=8", f"actor.max_tokens_per_micro_batch={n}"
        )
        for n in (16, 32)
    )
    assert many["activations"] == 2 * few["activations"]


def test_model_that_ranks_cannot_cut_is_refused(tmp_path):
    (tmp_path / "config.json").touch()
    options = ("trainer.tensor_parallel_size=4", "cluster.learner_ranks=4", "actor.mini_batches=1")
    with pytest.raises(PlanError, match=r"size=4 does not divide the model's attention heads \(14\)"):
        plan(f"model.path={tmp_path}", *RAY, *options, shape=SHAPE)


def test_ranks_that_torchrun_started_are_the_learners(tmp_path):
    (tmp_path / "config.json").touch()
    options = (f"model.path={tmp_path}", "trainer.tensor_parallel_size=2", "model.device=cpu")
    plan(*options, machine=Machine(world=2), shape=SHAPE)
    with pytest.raises(PlanError, match="1 ranks cannot be cut"):
        plan(*options, machine=Machine(), shape=SHAPE)


def test_the_shape_of_a_model_is_counted():
    made = shape_of(config("model.heads=4", "model.kv_heads=2").model)
    assert made is not None
    section = config("model.heads=4", "model.kv_heads=2").model
    model = build_model(
        section.vocab_size,
        family=section.family,
        hidden=section.hidden,
        intermediate=section.intermediate,
        layers=section.layers,
        heads=4,
        kv_heads=2,
    )
    assert made.parameters == sum(weight.numel() for weight in model.parameters())
    assert made.outside == (section.vocab_size + 1) * section.hidden, "tied embeddings once, and the last norm"
    assert (made.heads, made.kv_heads, made.intermediate) == (4, 2, section.intermediate or 4 * section.hidden)


def test_plan_beyond_memory_needs_more_ranks():
    small = Machine(gpus=8, gpu_bytes=9 * 2**30)
    message = r"GiB while learning on each GPU, which has 9\.0\..* more cluster.learner_ranks \(now 1\)"
    with pytest.raises(PlanError, match=message):
        plan(*RAY, "actor.max_tokens_per_micro_batch=2048", machine=small, shape=SHAPE)
    few = ("engine.max_slots=64", "model.dtype=bfloat16")
    plan(*RAY, *few, "cluster.learner_ranks=8", machine=small, shape=SHAPE)
    plan(*RAY, *few, "cluster.colocate=false", "cluster.learner_ranks=2", machine=small, shape=SHAPE)


def test_the_description_names_pools_ranks_and_memory():
    description = describe(plan(*RAY, "cluster.learner_ranks=2", "engine.replicas=2", machine=H200, shape=SHAPE))
    assert "pool shared: 2 x (2 CPU, 1 GPU), PACK" in description
    assert "engine: 2 replicas in pool shared, on the GPUs of ranks 0, 1" in description
    assert "memory of each GPU of learner and engine in an iteration" in description


def test_engines_alone_have_all_the_gpus() -> None:
    options = (*RAY, "cluster.colocate=false", "cluster.nnodes=2", "cluster.n_gpus_per_node=2")
    made = make_plan(config(*options, "engine.replicas=4"), Machine(), serving=True)
    assert made.learner == ()
    assert [(pool.name, len(pool.places)) for pool in made.pools] == [("engines", 4)]
    assert (made.gpus, made.engine_gpus) == (4, ((),) * 4)
    assert "learner" not in describe(made)
    with pytest.raises(PlanError, match="engine.replicas=5 of 1 GPUs each need 5; at most 4 replicas do"):
        make_plan(config(*options, "engine.replicas=5"), Machine(), serving=True)
    few = (*options, "engine.replicas=4", "cluster.cpus_per_actor=2", "ray_init.num_cpus=7")
    with pytest.raises(PlanError, match="but 4 engines with cluster.cpus_per_actor=2 take, together: 8"):
        make_plan(config(*few), Machine(), serving=True)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (("engine.name=vllm", "cluster.learner_ranks=4"), 4),
        (("engine.name=vllm", "cluster.learner_ranks=4", "engine.tensor_parallel_size=2"), 2),
        (("engine.name=torch", "cluster.learner_ranks=8"), 8),
        (("engine.name=torch", "cluster.learner_ranks=2", "cluster.colocate=false"), 6),
        (("engine.name=vllm", "cluster.learner_ranks=2", "cluster.nnodes=2", "cluster.colocate=false"), 14),
        (("engine.name=vllm",), 8),  # servers beside the learner take the GPUs in turn
        (("engine.name=torch",), 1),  # the embedded one is where the learner is
        (("engine.name=vllm", "engine.vllm.base_url=http://x"), 0),
        (("engine.name=vllm", "cluster.learner_ranks=2", "model.device=cpu"), 1),
    ],
)
def test_engines_fill_the_room(options, count):
    """A machine has 8 GPUs; ``count`` is the number of replicas that fit."""
    made = plan(*(("model.device=cuda",) if "model.device=cpu" not in options else ()), *options)
    assert len(made.engines) == count
    if count:
        description = describe(plan(*(("model.device=cuda",) if "model.device=cpu" not in options else ()), *options))
        assert f"{count} replica" in description
        assert "generate nothing" not in description


def test_gpus_that_generate_nothing_are_noted():
    description = describe(plan(*RAY, "cluster.learner_ranks=4", "engine.replicas=1"))
    assert "3 GPUs of the learner will generate nothing" in description
