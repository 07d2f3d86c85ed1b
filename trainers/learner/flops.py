"""Model FLOPs of an update: those of its arithmetic, not of recomputation or overhead.

Per token of a row of ``S`` tokens, forward and backward: ``6 N`` for the backbone's ``N`` matrix parameters (2 forward,
2 for the gradient of the inputs, 2 for that of the weights), and ``6 L n_h d S`` for causal attention in ``L`` layers
of ``n_h`` heads of size ``d`` (half of the ``12 L n_h d S`` that others state: half of the scores are masked).
``6 V H`` for each position whose logits are needed. Frozen matrices need no gradient of the weights: 4 instead of 6.
What is computed a second time (checkpointing, the head's chunks), padding, norms and the optimizer do not count.

Model FLOPs utilisation (MFU, arXiv 2204.02311, appendix B) is their rate over the device's peak.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

#: Dense bfloat16 peaks in TFLOP/s, from the vendor's data sheets, by a part of the device's name.
_PEAKS = {
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
}


@dataclass(frozen=True)
class FLOPs:
    """FLOPs of an update, by tokens, squared lengths and outputs."""

    per_token: float  #: of the matrices, forward and backward, for each token read
    per_square: float  #: of attention, for each squared length of a row
    per_output: float  #: of the head, for each position whose output is needed

    def of(self, tokens: float, squares: float, outputs: float) -> float:
        """Return the FLOPs of so many tokens, the sum of their rows' squared lengths, and so many outputs."""
        return self.per_token * tokens + self.per_square * squares + self.per_output * outputs


def count(backbone: Any, head: Any) -> FLOPs:
    """Count a model's FLOPs in training, by its backbone and its head (a linear layer), before it is sharded."""
    config = backbone.config
    per_token = 0.0
    for module in backbone.modules():
        if isinstance(module, nn.Linear):
            per_token += (6 if module.weight.requires_grad else 4) * module.weight.numel()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_square = 6.0 * config.num_hidden_layers * config.num_attention_heads * size
    per_output = float((6 if head.weight.requires_grad else 4) * head.weight.numel())
    return FLOPs(per_token, per_square, per_output)


def peak_tflops(device: torch.device) -> float | None:
    """Return the device's dense bfloat16 peak in TFLOP/s, where it is known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAKS.items() if part in name), None)
