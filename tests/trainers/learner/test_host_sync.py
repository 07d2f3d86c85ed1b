"""On a GPU the host waits for no number of a micro-batch; shown with tensors that have no numbers to wait for.

Models and inputs are fake tensors: shapes alone, as if their numbers were still being computed. Whatever reads one, or
a size that depends on one, raises; and so does an operation on a tensor that was never copied to the device.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_helpers import sections, small_model, some_masked_trajectories, top_tokens
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainers.algorithms.losses import LOSSES
from trainers.algorithms.losses.value import value_loss
from trainers.learner import Learner, inputs, learner, logprobs, scoring
from trainers.learner.optim import Optimizer
from trainers.section import OptimizerSection

TRAJECTORIES = some_masked_trajectories()
COUNT = sum(int(item.action_mask.sum()) for item in TRAJECTORIES)


class Reached(Exception):
    """All micro-batches are done."""


@pytest.fixture
def fake(monkeypatch):
    """Return a function that runs all micro-batches of an update without a number on the device."""
    mode = FakeTensorMode()

    def to_device(array, device):
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor if type(tensor) is not torch.Tensor else mode.from_tensor(tensor)

    def reached(sums):
        raise Reached

    for module in (inputs, learner, logprobs, scoring):
        monkeypatch.setattr(module, "to_device", to_device)
    monkeypatch.setattr(inputs.Sums, "read", reached)

    def run(update, **keys):
        made = Learner(small_model(), **sections(max_tokens_per_micro_batch=64, critic=True, **keys))
        for part in [*made.actor.modules(), *made.critic.modules()]:
            for tensors in (part._parameters, part._buffers):
                tensors.update({name: mode.from_tensor(t) for name, t in tensors.items() if t is not None})
        if made._unused.tensor is not None:
            made._unused.tensor = mode.from_tensor(made._unused.tensor)
        made._forward.varlen = made._layout == "packed"  # as on a GPU
        with mode, pytest.raises(Reached):
            update(made)

    return run


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"share_prefixes": False},
        {"share_prefixes": False, "use_remove_padding": True, "unused_token_ids": (60,)},
        pytest.param(  # the same forward pass twice
            {"share_prefixes": False, "use_remove_padding": True, "enable_gradient_checkpointing": True},
            marks=pytest.mark.slow,
        ),
        {"lora_rank": 2},
    ],
    ids=str,
)
def test_layouts_never_wait_for_device(fake, keys):
    numbers = {"weight": np.ones(COUNT, np.float32)}
    options = {"record": ["token_logprobs", "token_entropy"], "teacher": top_tokens(COUNT)}
    fake(lambda made: made.update_actor(TRAJECTORIES, numbers, mixed, **options), **keys)


def mixed(logprobs, entropy, batch):
    return (batch["weight"] * (logprobs + entropy + batch["teacher_kl"])).sum(), {
        "a": logprobs.detach().sum(),
        "b": 2.0,
    }


# Each shares what it computes with one that stays: ratios of tokens or sequences, a covariance, a divergence.
AS_OTHERS = ("cispo", "dppo_tv", "geo_mean", "gspo", "kl_cov", "sapo")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in AS_OTHERS)) for name in sorted(LOSSES)]
)
def test_losses_never_wait_for_device(fake, name):
    columns = ("old_logprobs", "advantages", "selected", "importance", "ref_logprobs", "weight", "share")
    numbers = dict.fromkeys(columns, np.full(COUNT, 0.5, np.float32))
    loss = LOSSES[name](use_kl_loss=True, entropy_coeff=0.1)
    fake(lambda made: made.update_actor(TRAJECTORIES, numbers, loss.batch_loss))


def test_critic_never_waits_for_device(fake):
    def loss(values, batch):
        clipped = value_loss(values, batch["old"], batch["returns"], clip=0.2)
        return clipped.loss.sum(), {name: value.sum() for name, value in clipped.stats.items()}

    numbers = dict.fromkeys(("old", "returns"), np.ones(COUNT, np.float32))
    fake(lambda made: made.update_critic(TRAJECTORIES, numbers, loss))


@pytest.mark.parametrize("reads", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: bool((x > 0).any())])
def test_loss_that_waits_is_noticed(fake, reads):
    def loss(logprobs, entropy, batch):
        reads(logprobs)
        return logprobs.sum(), {}

    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        fake(lambda made: made.update_actor(TRAJECTORIES, {}, loss))


def test_optimizer_reads_one_number():
    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += function is torch.ops.aten._local_scalar_dense.default
            return function(*args, **(kwargs or {}))

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    optimizer = Optimizer(model, OptimizerSection(grad_clip=1e-3))
    model(torch.ones(1, 3)).sum().backward()
    with Reads() as reads:
        optimizer.step("a test")
    assert reads.count == 1
