"""The tree attention kernels, run by Triton's interpreter: tests of a process with ``TRITON_INTERPRET=1``.

``test_tree_attention.py`` starts it.
"""

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import InterpretedFunction
from triton_tools import bfloat16_products

from trainers.learner import tree_attention as module
from trainers.learner import tree_kernel
from trainers.learner.attention import Tree
from trainers.learner.tree_attention import Plan, Tiles, Tuning, tree_attention
from trainers.learner.trees import merge

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def small_tiles():
    """Tiles of 16 and 32, so that small trees have many; programs take halves of the plan's tiles.

    A kernel's call of another function replaces Triton's functions again, which takes most of the time: do it once.
    """
    slow, replaced = InterpretedFunction.__call__, {tree_kernel.__name__}  # by the launch, for the whole module

    def call(self, *rest, **named):
        if self.fn.__module__ in replaced:
            return self.rewrite()(*rest, **named)
        replaced.add(self.fn.__module__)
        return slow(self, *rest, **named)

    with bfloat16_products(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "__call__", call)
        patch.setattr(module, "_LONG", 32)
        patch.setattr(module, "_SHORT", 32)
        patch.setattr(module, "_SUMMED", 16)
        patch.setattr(module, "_SHORTEST", 1)
        tuning = Tuning(Tiles(32, 16, 4, 2), Tiles(16, 32, 4, 2), Tiles(16, 16, 4, 2))
        patch.setattr(module, "tuning_of", lambda *_: tuning)
        yield


class Case:
    """Forks of a random sequence beside a stranger, and inputs in several layouts."""

    def __init__(self, draw, dtype):
        torch.manual_seed(draw(st.integers(0, 99)))
        self.dtype, self.scale = dtype, draw(st.sampled_from((None, 0.3)))
        self.heads, self.key_heads = draw(st.sampled_from(((1, 1), (2, 2), (3, 1))))
        self.dim, self.layout = draw(st.sampled_from((8, 16, 24))), draw(st.sampled_from(("rows", "heads", "columns")))
        base = np.arange(draw(st.integers(1, 25) | st.just(70)), dtype=np.int32)
        forks = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=2))
        tails = [np.arange(count, dtype=np.int32) + 100 * n for n, (_, count) in enumerate(forks, 1)]
        self.forest = merge([base, *(np.append(base[:at], tail) for (at, _), tail in zip(forks, tails, strict=True))])
        self.real = len(self.forest.tokens)
        self.size = self.real + draw(st.sampled_from((0, 1, 20)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_PARTS", draw(st.sampled_from((1, 4, 1000))))
            self.plan = Plan.of(self.forest.ends, self.size, CPU)
        self.inputs = [self._laid_out(heads) for heads in (self.heads, self.key_heads, self.key_heads, self.heads)]

    def _laid_out(self, heads):
        if self.layout == "rows":
            made = torch.randn(self.size, heads + 2, self.dim).to(self.dtype)[:, 1:-1]  # a part of a fused projection
        elif self.layout == "heads":
            made = torch.randn(heads, self.size, self.dim).to(self.dtype).transpose(0, 1)
        else:
            made = torch.randn(self.dim, heads, self.size).to(self.dtype).permute(2, 1, 0)
        return made

    def run(self):
        """Return the result and the gradients of queries, keys and values."""
        *inputs, grad = self.inputs
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        out = tree_attention(*leaves, self.plan, self.scale)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad)]

    def exact(self):
        """Compute the same by the formula and its autograd, in float64."""
        q, k, v, grad = (tensor.double().detach().requires_grad_() for tensor in self.inputs)
        at = torch.arange(self.size)
        ends = torch.zeros(self.size, dtype=torch.int64)
        ends[: self.real] = torch.from_numpy(self.forest.ends)
        seen = (at <= at[:, None]) & (at[:, None] < ends)
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(self.heads // self.key_heads, 1))
        scores = scores * (self.dim**-0.5 if self.scale is None else self.scale)
        weights = scores.masked_fill(~seen, float("-inf"))[:, : self.real].softmax(-1)
        out = torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(self.heads // self.key_heads, 1))
        out = torch.cat([out, out.new_zeros(self.size - self.real, self.heads, self.dim)])
        return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3), (torch.float16, 1e-3)])
@settings(max_examples=3, phases=(Phase.generate,))  # to shrink a failure would take minutes
@given(data=st.data())
def test_results_and_gradients_are_those_of_the_formula(dtype, bound, data):
    case = Case(data.draw, dtype)
    expected = case.exact()
    for result, exact in zip(case.run(), expected, strict=True):
        assert result.dtype == dtype
        assert not result[case.real :].any()  # padding sees nothing, and nothing sees it
        assert (result.double() - exact).norm() <= bound * max(exact.norm(), expected[0].norm())  # a gradient may be 0


def test_tree_attends_alike_with_kernels_and_branches():
    base = np.arange(70, dtype=np.int32)
    forest = merge([base, np.append(base[:40], base[:9])])
    size = len(forest.tokens) + 3
    torch.manual_seed(0)
    inputs = [torch.randn(1, heads, size, 16).requires_grad_() for heads in (2, 1, 1)]
    grad = torch.randn(1, size, 2, 16)
    tree, results, plan = Tree(forest, size, CPU), [], Plan.of(forest.ends, size, CPU)
    lists = plan.lists()
    assert len(lists.key_sums)
    for rows in (lists.query_rows, lists.key_rows):
        assert (rows[:, 2] > rows[:, 1]).any()  # tiles that need no comparison
    for tree._plan in (None, plan, plan):
        out = tree.attend(*inputs, None)
        results.append([out, *torch.autograd.grad(out, inputs, grad)])
    for branches, kernels, again in zip(*results, strict=True):
        torch.testing.assert_close(kernels, branches, atol=1e-5, rtol=1e-5)
        assert torch.equal(kernels, again)  # bit for bit


def test_operators_keep_their_contract():
    """Shapes, types and strides of traces are those of kernels, and so are outputs and gradients of a graph."""
    plan = Plan.of(np.array([3, 2, 3]), 4, CPU)
    query, key = (torch.randn(4, heads, 8).requires_grad_() for heads in (2, 1))
    inputs = (query, key, key, plan.numbers, plan.shapes, 0.3)
    torch.library.opcheck(module._attend, inputs)
    out, log_norms = (tensor.detach() for tensor in module._attend(*inputs))
    tensors = (tensor.detach() for tensor in (query, key, key))
    torch.library.opcheck(module._differentiate, (out, *tensors, out, log_norms, *inputs[3:]))
