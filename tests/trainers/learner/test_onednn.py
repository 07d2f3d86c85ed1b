"""oneDNN's linear layer is nn.Linear."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from trainers.learner.cpu import OneDNNLinear, use_onednn

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(7,), (1, 1), (1, 8), (3, 5), (2, 33, 4)])
def test_outputs_and_gradients_are_those_of_nn_linear(bias, shape):
    torch.manual_seed(0)
    plain = nn.Linear(24, 40, bias=bias)
    fast = copy.deepcopy(plain)
    use_onednn(fast)
    assert type(fast) is OneDNNLinear
    assert fast.state_dict().keys() == plain.state_dict().keys()
    inputs = [torch.randn(*shape, 24, requires_grad=True)]
    inputs.append(inputs[0].detach().clone().requires_grad_())
    scale = torch.randn(*shape, 40)
    outputs = [layer(x) for layer, x in zip((plain, fast), inputs, strict=True)]
    for output in outputs:
        (output * scale).sum().backward()
    torch.testing.assert_close(outputs[1], outputs[0])
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    for expected, actual in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad)


def test_strided_gradients_are_fine():
    """Inputs may be slices; the gradient of a transposed or expanded output is not contiguous."""
    torch.manual_seed(0)
    plain = nn.Linear(16, 24)
    fast = copy.deepcopy(plain)
    use_onednn(fast)
    x = torch.randn(4, 5, 40)[..., 8:24]
    for use in (lambda y: y.sum(), lambda y: y.transpose(1, 2).reshape(4, 2, 12, 5)[:, 1].square().sum()):
        for layer in (plain, fast):
            layer.zero_grad()
            use(layer(x)).backward()
        torch.testing.assert_close(fast.weight.grad, plain.weight.grad)
        torch.testing.assert_close(fast.bias.grad, plain.bias.grad)


def test_frozen_layer_passes_gradients_through():
    layer = nn.Linear(8, 16).requires_grad_(False)
    use_onednn(layer)
    x = torch.randn(9, 8, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(9, 8))


def test_only_linear_layers_are_touched():
    class Special(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(2, 2), Special(2, 2), nn.ReLU())
    use_onednn(model)
    assert [type(module) for module in model] == [OneDNNLinear, Special, nn.ReLU]
