"""Tree attention on CUDA, without a GPU: its kernels compiled, its operator, and the order of the work."""

import math
import re
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learner_helpers import VOCAB, small_model
from torch._dynamo.testing import CompileCounterWithBackend
from triton_tools import compiled_kernels

from trainers.learner import tree_attention as module
from trainers.learner.attention import OWN, Tree
from trainers.learner.tree_attention import Plan, tree_attention, tuning_of
from trainers.learner.trees import merge, visits

CPU = torch.device("cpu")
KERNELS = ("forward", "backward_queries", "backward_keys", "add_parts")


def _launched(dtype, heads, key_heads, dim):
    """Launch all kernels for a tree whose trunk is seen by many."""
    base = np.arange(2000, dtype=np.int32)
    forest = merge([base, base[:100]])
    query, key = (torch.zeros(2000, count, dim, dtype=dtype) for count in (heads, key_heads))
    plan = Plan.of(forest.ends, 2000, CPU)
    out, log_norms = module._forward(query, key, key, plan.lists(), 0.1)
    module._backward(out, query, key, key, out, log_norms, plan.lists(), 0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is there for Linux alone")
@pytest.mark.parametrize(
    ("capability", "product"),
    [
        pytest.param(80, "mma.sync", marks=pytest.mark.slow),  # the same kernels are compiled for the other one
        (90, "wgmma"),
    ],
)
def test_kernels_compile_for_a_gpu(tmp_path, capability, product):
    with compiled_kernels(module, KERNELS, tmp_path, capability) as compiled:
        _launched(torch.bfloat16, 14, 2, 64)  # Qwen2.5-0.5B
    assert set(compiled) == set(KERNELS)
    for name, kernel in compiled.items():
        ptx = kernel.asm["ptx"]
        assert not re.search(r"\b(atom|red)\.", ptx), f"{name} sums in no fixed order"
        if name != "add_parts":
            assert product in ptx
            assert "cp.async" in ptx  # tiles are read ahead
            assert kernel.metadata.shared <= 99 * 1024  # what an RTX GPU has; a data centre's has more


# ------------------ the operator


@pytest.fixture
def masked(monkeypatch):
    """Attention with a mask in place of the kernels, and its gradient by what the forward pass keeps."""

    def expand(query, key, value, lists, scale):
        at = torch.arange(len(query))
        seen = (at <= at[:, None]) & (at[:, None] < lists.ends)
        key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], 1) for tensor in (key, value))
        scores = (scale / math.log(2) * torch.einsum("qhd,khd->hqk", query, key)).masked_fill(~seen, float("-inf"))
        return key, value, scores

    def forward(query, key, value, lists, scale):
        _, value, scores = expand(query, key, value, lists, scale)
        highest = scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        weights = (scores - highest).exp2()
        norms = weights.sum(-1, keepdim=True)
        norms = norms.where(norms > 0, 1)
        out = torch.einsum("hqk,khd->qhd", weights / norms, value)
        return out.contiguous(), (highest + norms.log2())[..., 0].contiguous()

    def backward(grad, query, key, value, out, log_norms, lists, scale):
        heads = key.shape[1]
        key, value, scores = expand(query, key, value, lists, scale)
        weights = (scores - log_norms[..., None]).exp2()
        change = torch.einsum("qhd,khd->hqk", grad, value) - (grad * out).sum(-1).T[..., None]
        slopes = scale * weights * change
        grad_k, grad_v = torch.einsum("hqk,qhd->khd", slopes, query), torch.einsum("hqk,qhd->khd", weights, grad)
        shared = (tensor.unflatten(1, (heads, -1)).sum(2) for tensor in (grad_k, grad_v))
        return torch.einsum("hqk,khd->qhd", slopes, key).contiguous(), *shared

    for name, value in {"_LONG": 32, "_SHORT": 16, "_SHORTEST": 1, "_forward": forward, "_backward": backward}.items():
        monkeypatch.setattr(module, name, value)


def test_compiled_block_is_one_graph_for_all_forests(masked):
    model = small_model(layers=1, hidden=16)
    model.set_attn_implementation(OWN)
    (block,) = model.model.layers
    plain, counter = block.forward, CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    graph = torch.compile(plain, backend=counter, fullgraph=True, dynamic=True)
    shapes, counts = set(), set()
    for size, fork, padding in ((200, 90, 0), (9, 4, 3), (32, 32, 0), (150, 1, 20)):
        base = np.arange(size, dtype=np.int32) % VOCAB
        forest = merge([base, np.append(base[:fork], base[:7] + 1)])
        real, width = len(forest.tokens), len(forest.tokens) + padding
        ids, depths = (torch.from_numpy(np.pad(a, (0, padding)))[None] for a in (forest.tokens, forest.depths))
        tree, results = Tree(forest, width, CPU), []
        for block.forward, tree._plan in ((plain, None), (graph, Plan.of(forest.ends, width, CPU))):
            hidden = model.model(ids.long(), position_ids=depths, tree=tree, use_cache=False).last_hidden_state
            results.append([hidden, *torch.autograd.grad(hidden[:, :real].square().sum(), [*model.model.parameters()])])
        for branches, kernels in zip(*results, strict=True):
            torch.testing.assert_close(kernels, branches, atol=1e-4, rtol=1e-4)
        shapes.add(tuple(tree._plan.shapes[:, 1].tolist()))
        counts.add(counter.frame_count)
    assert len(shapes) == 4
    assert len(counts) == 1, "the first forest's compilation serves all"


@pytest.mark.parametrize("compiles", [False, True])
def test_backward_pass_keeps_log_norms_and_no_copy(masked, compiles):
    plan, kept = Plan.of(np.array([4, 4, 4, 4]), 4, CPU), []
    query, key, value = (torch.randn(heads, 4, 8).transpose(0, 1).requires_grad_() for heads in (6, 2, 2))
    attend = torch.compile(tree_attention, backend="aot_eager", fullgraph=True) if compiles else tree_attention
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        out = attend(query, key, value, plan)
    known = {tensor.data_ptr() for tensor in (query, key, value, out, plan.numbers, plan.shapes)}
    assert [(tensor.shape, tensor.dtype) for tensor in kept if tensor.data_ptr() not in known] == [
        ((6, 4), torch.float32)
    ]


def test_second_derivative_is_refused(masked):
    tensor = torch.randn(4, 2, 8, requires_grad=True)
    out = tree_attention(tensor, tensor, tensor, Plan.of(np.array([4, 4, 4, 4]), 4, CPU))
    (grad,) = torch.autograd.grad(out.sum(), tensor, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        grad.sum().backward()


# ------------------ the plan


@st.composite
def matrices(draw):
    """Draw the tiles that are visited, and those that need no comparison."""
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    cells = draw(st.lists(st.integers(0, 2), min_size=rows * columns, max_size=rows * columns))
    kinds = np.array(cells).reshape(rows, columns)
    return kinds > 0, kinds > 1


@given(matrices(), st.none() | st.integers(1, 4))
def test_visits_name_each_tile_once(matrix, most):
    some, every = matrix
    listed = visits(some, every, most)
    visited, whole, parts = np.zeros(some.shape, int), np.zeros(some.shape, bool), {}
    lengths = []
    for row, begin, middle, end, part in listed.rows.tolist():
        assert begin <= middle <= end < len(listed.tiles)
        np.add.at(visited, (row, listed.tiles[begin:end]), 1)
        whole[row, listed.tiles[begin:middle]] = True
        lengths.append(end - begin)
        assert most is None or end - begin <= most
        if part >= 0:
            parts[part] = row
    np.testing.assert_array_equal(visited, some)
    np.testing.assert_array_equal(whole, every)
    assert lengths == sorted(lengths, reverse=True)
    assert {row for row, *_ in listed.rows.tolist()} == set(range(len(some)))  # each writes its result, or zeros
    assert parts == {first + n: row for row, first, count in listed.sums.tolist() for n in range(count)}
    assert all(count > 1 for _, _, count in listed.sums.tolist())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tilings_divide_the_tiles_of_plans(dtype):
    for size in (8, 64, 80, 128, 256):
        tuning = tuning_of(dtype, size)
        for tiles in (tuning.forward, tuning.queries):
            assert module._LONG % tiles.queries == 0 == module._SHORT % tiles.keys
        assert module._LONG % tuning.keys.keys == 0 == module._SHORT % tuning.keys.queries
    with pytest.raises(ValueError, match="at most 256 numbers, not 257: set model"):
        tuning_of(dtype, 257)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": torch.zeros(3, 2, 8)}, "no tree attention of"),
        ({"query": torch.zeros(4, 3, 8)}, "no tree attention of"),
        ({"query": torch.zeros(4, 2, 8, dtype=torch.float64)}, "takes bfloat16, float16 or float32, not"),
        ({"scale": 0.0}, "a scale above 0, not 0"),
        ({"plan": Plan.of(np.array([5, 5, 5, 5, 5]), 5, CPU)}, "the plan is of 5 positions, and the queries have 4"),
    ],
)
def test_unfit_inputs_are_refused(change, message):
    tensor = torch.zeros(4, 2, 8)
    plan = Plan.of(np.array([4, 4, 4, 4]), 4, CPU)
    with pytest.raises(ValueError, match=message):
        tree_attention(**({"query": tensor, "key": tensor, "value": tensor, "plan": plan} | change))


def test_missing_triton_is_an_error_that_helps(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "trainers.learner.tree_kernel", raising=False)
    monkeypatch.delattr("trainers.learner.tree_kernel", raising=False)
    module.load_kernel.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=r"pip install triton, or set model\.attn_implementation=sdpa"):
        module.load_kernel()
