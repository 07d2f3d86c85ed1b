"""Copies from this process's arrays to the learner's device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to a device; the host does not wait for it. On a CPU nothing is copied.

    From pageable memory, a copy to a GPU would wait for all work that its stream has before it. torch gives the pinned
    buffer to others only after the copy.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
