"""The tree attention kernels, run by Triton's interpreter: tests of a process with ``TRITON_INTERPRET=1``.

``test_interpreted_kernels.py`` starts it. A case takes about a second, so there are few.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from triton_tools import interpreter

from trainers.learner import tree_attention as module
from trainers.learner import tree_kernel
from trainers.learner.attention import Tree
from trainers.learner.tree_attention import Plan, Tiles, Tuning, tree_attention
from trainers.learner.trees import merge

CPU = torch.device("cpu")
WHOLE = Tuning(Tiles(32, 16, 4, 2), Tiles(32, 16, 4, 2), Tiles(16, 32, 4, 2))
#: Programs take halves of the plan's tiles, of both sides.
HALVES = Tuning(Tiles(16, 8, 4, 2), Tiles(16, 8, 4, 2), Tiles(8, 16, 4, 2))
FORKS = ((45, 0), (20, 15), (20, 6), (37, 4), (0, 5))  #: tokens of the trunk, and further ones


@pytest.fixture(autouse=True, scope="module")
def small_tiles():
    """Lists of tiles of 32 and 16, so that small trees have many."""
    with interpreter(tree_kernel), pytest.MonkeyPatch.context() as patch:
        for name, value in {"_LONG": 32, "_SHORT": 16, "_SUMMED": 16, "_SHORTEST": 1}.items():
            patch.setattr(module, name, value)
        patch.setattr(module, "tuning_of", lambda *_: WHOLE)
        yield


def forest_of(forks):
    trunk = np.arange(100, dtype=np.int32)
    return merge([np.append(trunk[:at], trunk[:count] + 100 * n) for n, (at, count) in enumerate(forks, 1)])


@dataclass
class Case:
    """A forest, and inputs in several layouts."""

    dtype: torch.dtype
    heads: int
    key_heads: int
    dim: int
    layout: int  #: of queries; others have other ones
    scale: float | None = None
    padding: int = 0
    parts: int = 1000  #: of all keys' lists; 1: none is cut
    tuning: Tuning = WHOLE
    forks: tuple[tuple[int, int], ...] = FORKS

    def __post_init__(self):
        torch.manual_seed(self.dim)
        self.forest = forest_of(self.forks)
        self.real = len(self.forest.tokens)
        self.size = self.real + self.padding
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_PARTS", self.parts)
            self.plan = Plan.of(self.forest.ends, self.size, CPU)
        layouts = ("rows", "heads", "columns")
        heads = (self.heads, self.key_heads, self.key_heads, self.heads)
        self.inputs = [
            self._laid_out(count, layouts[(self.layout + n) % 3]) for n, count in zip((0, 1, 2, 1), heads, strict=True)
        ]

    def _laid_out(self, heads, layout):
        if layout == "rows":
            made = torch.randn(self.size, heads + 2, self.dim).to(self.dtype)[:, 1:-1]  # a part of a fused projection
        elif layout == "heads":
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


CASES = {
    "groups": lambda: Case(torch.float32, 3, 1, 24, 2, padding=1, tuning=HALVES),
    "heads": lambda: Case(torch.float32, 2, 2, 16, 0, scale=0.3, parts=1),
    "padding": lambda: Case(torch.float32, 1, 1, 8, 1, padding=40, forks=((5, 0), (3, 2))),
    "bfloat16": lambda: Case(torch.bfloat16, 2, 1, 16, 0, parts=4),
    "float16": lambda: Case(torch.float16, 1, 1, 12, 1, scale=0.3, padding=3),
}
BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


# "bfloat16" and the test below have heads in groups; "float16" has padding, and a width that is no power of two.
SLOW = ("groups", "padding")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in CASES])
def test_results_and_gradients_are_those_of_the_formula(monkeypatch, name):
    case = CASES[name]()
    monkeypatch.setattr(module, "tuning_of", lambda *_: case.tuning)
    for result, exact in zip(case.run(), case.exact(), strict=True):
        assert result.dtype == case.dtype
        assert not result[case.real :].any()  # padding sees nothing, and nothing sees it
        assert (result.double() - exact).norm() <= BOUNDS[case.dtype] * exact.norm()


def test_tree_attends_alike_with_kernels_and_branches():
    forest = forest_of(FORKS)
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
    arguments = (out, *tensors, out, log_norms, *inputs[3:])
    torch.library.opcheck(module._differentiate, arguments, test_utils=("test_schema", "test_faketensor"))
