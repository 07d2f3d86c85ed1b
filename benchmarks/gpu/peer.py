"""The process that takes weights in the part ``ipc``: it obeys lines of JSON. Imports little: it starts soon."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.engines.process_group import broadcast, destroy, make_group
from trainers.engines.shared_memory import place_of, tensors_of
from trainers.engines.weights import bits


def obey(where: str) -> None:
    """Take weights as the lines of the standard input say; answer each with a line."""
    device = torch.device(where)
    if device.index is not None:
        torch.cuda.set_device(device)
    model: dict[str, Tensor] = {}
    group: list[dist.ProcessGroup | None] = [None]

    def take(name: str, value: Tensor) -> None:
        if name not in model:
            model[name] = torch.empty_like(value, device=device)
        model[name].copy_(value)

    for line in sys.stdin:
        order, answer = json.loads(line), None
        if "join" in order:
            group[0] = make_group(order["join"], 1)
        elif "leave" in order:
            destroy(group)
        elif "read" in order:
            for name, value in tensors_of(order["read"]):
                take(name, value)
        elif "receive" in order:
            bucket, at = order["receive"], device if where == "cuda:1" else "cpu"
            kinds = [getattr(torch, kind) for kind in bucket["dtypes"]]
            shapes = zip(bucket["shapes"], kinds, strict=True)
            values = [torch.empty(shape, dtype=kind, device=at) for shape, kind in shapes]
            assert group[0] is not None
            broadcast(group[0], values)
            for name, value in zip(bucket["names"], values, strict=True):
                take(name, value)
        elif "sums" in order:
            answer = {name: bits(value) for name, value in model.items()}
        else:
            answer = place_of(device)
        if device.type == "cuda":
            torch.cuda.synchronize()  # it has read what its answer says it has
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    obey(sys.argv[1])
