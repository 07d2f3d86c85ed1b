"""Tokens of a micro-batch: by free memory, and fewer where memory runs out."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from learner_helpers import sections, small_model, some_trajectories
from ranks import measure
from torch.distributed.fsdp import FSDPModule

from trainers.cluster.memory import Machine
from trainers.cluster.plan import make_plan
from trainers.command_line import resolve
from trainers.learner import Learner, budget, learner
from trainers.models.memory import CPU_TOKENS, Computation, ModelShape

SHAPE = ModelShape(
    parameters=494_000_000,
    layers=24,
    hidden=896,
    kv_width=128,
    vocab=151_936,
    heads=14,
    kv_heads=2,
    intermediate=4864,
    outside=136_000_000,
)
GIB = 2**30
ITEMS = some_trajectories()
LONGEST = max(len(item.token_ids) for item in ITEMS)


@pytest.fixture(autouse=True)
def no_process_group_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


computations = st.builds(
    Computation,
    device=st.just("cuda"),
    number_bytes=st.sampled_from([2, 4]),
    tensor=st.sampled_from([1, 2]),
    again=st.booleans(),
    away=st.booleans(),
    adapters=st.booleans(),
)


@given(computation=computations, free=st.integers(0, 200 * GIB), more=st.integers(0, GIB))
def test_micro_batch_fits_into_free_memory(computation, free, more):
    tokens = computation.tokens_that_fit(SHAPE, free)
    assert 512 <= tokens <= 16384
    assert tokens % 512 == 0
    if tokens > 512:
        assert computation.micro_batch_bytes(SHAPE, tokens) <= 0.8 * free
    if tokens < 16384:
        assert computation.micro_batch_bytes(SHAPE, tokens + 512) > 0.8 * free
    assert computation.tokens_that_fit(SHAPE, free + more) >= tokens


@given(gib=st.integers(16, 100), again=st.booleans())
def test_plan_counts_what_learner_takes(gib, again):
    options = [f"model.enable_gradient_checkpointing={str(again).lower()}", "model.dtype=bfloat16"]
    options += ["model.device=cuda", "engine.kv_cache_gib=1"]
    config = resolve(options)[0]
    rows = {row[:2]: row[2] for row in make_plan(config, Machine(gpus=1, gpu_bytes=gib * GIB), SHAPE).memory}
    counted = rows.pop(("learner", "activations"))
    computation = Computation.of(config.model, config.trainer, "cuda")
    learner = sum(size for (who, _), size in rows.items() if who == "learner")  # the engine sleeps meanwhile
    tokens = computation.tokens_that_fit(SHAPE, gib * GIB - learner)
    assert counted == computation.micro_batch_bytes(SHAPE, max(tokens, config.engine.max_context))


def tokens_of(monkeypatch, free, **keys):
    """Return the tokens that a learner takes where so many bytes are free."""
    for module in (learner, budget):
        monkeypatch.setattr(module, "free_bytes", lambda device: free)
    made = Learner(small_model(vocab_size=50_000) if "vocab_size" in keys else small_model(), **sections(**keys))
    return made._budget.tokens


def test_learner_takes_what_fits(monkeypatch):
    shape = learner.shape_of_model(small_model())
    computation = Computation("cpu", 4, 1, False, False, False)
    gradients = 4 * shape.parameters
    free = 30 * 2**20
    expected = computation.tokens_that_fit(shape, free - gradients)
    assert 512 < expected < 16384
    assert tokens_of(monkeypatch, free) == expected
    assert tokens_of(monkeypatch, free + gradients, critic=True) <= expected
    assert tokens_of(monkeypatch, 2**40) == 16384
    assert tokens_of(monkeypatch, 0) == 512
    assert tokens_of(monkeypatch, free, max_tokens_per_micro_batch=77) == 77
    assert tokens_of(monkeypatch, None) == CPU_TOKENS


def exhausted(made, above, where):
    """Let passes of the actor run out of memory while micro-batches have more tokens; return the tries."""
    tries = []
    layer = made.actor.lm.base_model.layers[-1 if where == "forward" else 0]

    def fail(*_):
        tries.append(made._budget.tokens)
        if tries[-1] > above and len(tries) % 3 == 2:  # not in the first micro-batch of a try
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    if where == "forward":
        layer.register_forward_hook(fail)
    else:

        def watch(module, args, out):
            if out.requires_grad:
                out.register_hook(fail)

        layer.register_forward_hook(watch)
    return tries


# Before torch 2.13, FSDP2 cannot give a pass up: `can_forget` says so, and memory that runs out ends the run.
forgets = pytest.mark.skipif(not hasattr(FSDPModule, "reset_iter_state"), reason="FSDP2 of this torch cannot")


@pytest.mark.parametrize("where", ["forward", "backward"])
# bfloat16 changes no way that is taken.
@pytest.mark.parametrize(
    "keys",
    [{}, pytest.param({"fsdp": "always"}, marks=forgets), pytest.param({"dtype": "bfloat16"}, marks=pytest.mark.slow)],
    ids=str,
)
def test_pass_without_memory_is_computed_again_with_half(caplog, where, keys):
    keys = {"critic": True, "share_prefixes": False, **keys}
    expected = measure(Learner(small_model(), **sections(max_tokens_per_micro_batch=40, **keys)), ITEMS)
    made = Learner(small_model(), **sections(max_tokens_per_micro_batch=80, **keys))
    with caplog.at_level(logging.WARNING):
        tries = exhausted(made, 40, where)
        results = measure(made, ITEMS)
    assert {80, 40} == set(tries)
    assert caplog.text.count("out of memory") == 1
    for role in ("actor", "critic"):
        for name, gradient in expected[role].items():
            assert torch.equal(results[role][name], gradient), name
    assert results["metrics"] == expected["metrics"]


def test_episode_beyond_memory_names_key():
    made = Learner(small_model(), **sections(max_tokens_per_micro_batch=2 * LONGEST, share_prefixes=False))
    exhausted(made, 0, "forward")
    with pytest.raises(torch.OutOfMemoryError, match=r"2\.00 GiB.*has 32: lower actor.max_tokens_per_micro"):
        measure(made, ITEMS)


def test_several_ranks_do_not_try_again():
    made = Learner(small_model(), **sections(max_tokens_per_micro_batch=80, share_prefixes=False))
    made.ranks.world = 2
    tries = exhausted(made, 0, "forward")
    with pytest.raises(torch.OutOfMemoryError, match="up to 80 tokens: lower"):
        made.logprobs(ITEMS)
    assert set(tries) == {80}
