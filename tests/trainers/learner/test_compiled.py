"""Compiled blocks and heads compute what they compute uncompiled, and other lengths compile nothing again.

Without code generation, which takes a compiler many seconds: what torch traces, splits and differentiates is run.
"""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from learner_helpers import caught_gradients, sections, small_model, trajectory
from torch._dynamo.utils import counters

from trainers.config.model import ModelSection
from trainers.learner import Learner, compiled
from trainers.learner.attention import _packed
from trainers.learner.logprobs import top_logprobs


def items(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [trajectory(rng, [[(2, length - 2)]]) for length in lengths]


@pytest.fixture(autouse=True)
def traced(monkeypatch):
    """Trace without generating code, from an empty cache."""
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    compiled.compiled.cache_clear()
    torch._dynamo.reset()
    counters.clear()
    yield
    compiled.compiled.cache_clear()
    torch._dynamo.reset()
    if dist.is_initialized():
        dist.destroy_process_group()


def loss(logprobs, entropy, batch):
    return (batch["a"] * logprobs.exp() + 0.3 * entropy).sum(), {}


def update(learner, some):
    numbers = {"a": [np.linspace(-1, 1, int(item.action_mask.sum())) for item in some]}
    return learner.update_actor(some, numbers, loss)


def make(layers=2, **keys):
    return Learner(small_model(layers=layers), **sections(max_tokens_per_micro_batch=48, temperature=0.7, **keys))


@pytest.mark.parametrize(
    ("backend", "keys"),
    [
        # AOT differentiates a block in test_compiled_block_is_one_graph_for_all_forests, and the head below.
        pytest.param(
            "aot_eager", {"share_prefixes": False, "enable_gradient_checkpointing": True}, marks=pytest.mark.slow
        ),
        ("eager", {"use_remove_padding": True, "enable_gradient_checkpointing": True, "lora_rank": 2}),
        pytest.param(  # test_two_compiled_ranks_are_one has FSDP2, and the cases above have checkpointing
            "eager", {"fsdp": "always", "enable_gradient_checkpointing": True}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_compiled_gradients_are_the_plain_ones(monkeypatch, backend, keys):
    monkeypatch.setattr(compiled, "BACKEND", backend)
    gradients = []
    for choice in (False, True):
        learner = make(1, compile=choice, **keys)
        step = partial(update, learner, items([23] * 4))  # two micro-batches of one kind: each kind is compiled
        gradients.append(caught_gradients(learner.actor_optimizer, step)[0])
    assert counters["stats"]["unique_graphs"] >= 2, "blocks, and the head in both directions"
    norm = sum(float(value.square().sum()) for value in gradients[0].values()) ** 0.5
    assert gradients[0].keys() == gradients[1].keys()
    for name, value in gradients[0].items():
        assert float((gradients[1][name] - value).norm()) <= 1e-5 * norm, name


# The blocks of both are compiled by the same call; only what attends differs.
@pytest.mark.parametrize(
    "keys", [pytest.param({"share_prefixes": False}, marks=pytest.mark.slow), {}], ids=["rows", "trees"]
)
def test_other_lengths_compile_nothing_again(keys):
    learner = make(layers=3, compile=True, **keys)
    update(learner, items([12, 19, 33, 45, 46, 47]))
    graphs = counters["stats"]["unique_graphs"]
    for number in range(2, 5):
        update(learner, items(range(10 + number, 48, number), seed=number))
    assert counters["stats"]["unique_graphs"] == graphs
    assert graphs <= 12, "one row and several, a block once for all layers, the head's last chunk"


def test_packed_block_is_one_graph():
    """The variable-length kernel is traced by its shapes alone: it needs a GPU to run."""

    class Traced(Exception):
        pass

    def stop(graph, inputs):
        assert any("varlen_attn" in str(node.target) for node in graph.graph.nodes)
        raise Traced

    block = torch.compile(
        lambda q, kv, at, longest: _packed(q * 2, kv, kv, None, at, longest) + 1,
        backend=stop,
        fullgraph=True,
        dynamic=True,
    )
    query, keys, starts = torch.zeros(1, 4, 10, 8), torch.zeros(1, 2, 10, 8), torch.tensor([0, 6, 10]).int()
    with pytest.raises(Exception, match="Traced"):
        block(query, keys, starts, 6)


@pytest.mark.parametrize(("unused", "top"), [(None, None), ([9, 10], 3)])
def test_compiled_head_is_the_plain_one(monkeypatch, unused, top):
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 9, (13,), generator=generator)
    scales = torch.randn(2, 13, generator=generator)
    left_out = None if unused is None else torch.tensor(unused)
    results = []
    for choice in (False, True):
        hidden, weight = (
            torch.randn(n, 6, generator=torch.Generator().manual_seed(n), requires_grad=True) for n in (13, 11)
        )
        options = {"temperature": 0.7, "chunk_size": 5, "unused": left_out, "compiles": choice}
        logprobs, entropy, _, chosen = top_logprobs(hidden, weight, targets, top, **options)
        chosen = torch.zeros(()) if chosen is None else chosen
        ((scales[0] * logprobs + scales[1] * entropy).sum() + chosen.square().sum()).backward()
        results.append([logprobs.detach(), entropy.detach(), chosen.detach(), hidden.grad, weight.grad])
    for plain, other in zip(*results, strict=True):
        torch.testing.assert_close(other, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("choice", "device", "parameters", "updates", "expected"),
    [
        ("auto", "cpu", 10**9, None, False),
        ("auto", "cuda", 10**9, None, True),
        ("auto", "cuda", 10**9, 1000, True),
        ("auto", "cuda", 10**9, 3, False),
        ("auto", "cuda", 10**6, None, False),
        (True, "cpu", 10**6, 3, True),
        (False, "cuda", 10**9, None, False),
    ],
)
def test_compilation_is_chosen_where_it_pays(monkeypatch, choice, device, parameters, updates, expected):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    section = ModelSection(compile=choice)
    assert compiled.pays(section, torch.device(device), parameters, updates) is expected


@pytest.mark.parametrize(("triton", "capability"), [(None, (9, 0)), (object(), (6, 1))])
def test_missing_compiler_is_reported(monkeypatch, caplog, triton, capability):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: triton)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert not compiled.pays(ModelSection(), torch.device("cuda"), 10**9, None)
    assert "needs triton" in caplog.text


def test_every_thread_compiles_as_often(monkeypatch):
    """Autograd computes again in threads of its own, which do not see what another thread has configured."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "BACKEND", backend)
    torch._dynamo.reset()
    function = compiled._compile(lambda tensor: tensor * 2, dynamic=False)
    thread = threading.Thread(target=lambda: [function(torch.ones(size)) for size in range(2, 22)])
    thread.start()
    thread.join()
    torch._dynamo.reset()
    assert len(graphs) == 20, "one for each shape: more than torch's own limit, 8"
