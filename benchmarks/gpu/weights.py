"""Weights through a process group to another process, as an engine gets them: NCCL between two GPUs, else gloo.

The receiver is a separate program; the tensors must arrive with the sender's checksum, on its device.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.gpu.job import Job
from benchmarks.gpu.shapes import make_model
from trainers.engines.process_group import broadcast, make_group
from trainers.engines.transport import LocalSource, plan_of
from trainers.engines.weights import bits

_BUCKET = 256 * 2**20
_TIMES = 3
_TIMEOUT_S = 120.0


def run(job: Job) -> None:
    """Measure each shape, in the type that engines compute in."""
    for shape in job.shapes:
        what = {"what": "weights", "shape": shape}
        job.try_to(30, partial(transfer, job, what), **what)


def transfer(job: Job, what: dict[str, str]) -> None:
    """Send all weights of a shape a few times; good if they arrived."""
    nccl = job.device.type == "cuda" and torch.cuda.device_count() > 1
    device = job.device if nccl else torch.device("cpu")
    model = make_model(what["shape"], job.device).to(torch.bfloat16)  # type: ignore[arg-type]
    weights = {name: value.detach().to(device) for name, value in model.named_parameters()}
    plan = plan_of(LocalSource.of(weights).specs, _BUCKET)
    cut = [[weights[spec.names[0]] for spec in bucket] for bucket in plan]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    backend = "nccl" if nccl else "gloo"
    target = "cuda:1" if nccl else str(job.device)
    receiver = subprocess.Popen(
        [sys.executable, "-c", f"from benchmarks.gpu.weights import receive; receive({port}, {backend!r}, {target!r})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    group = None
    try:
        assert receiver.stdin is not None
        assert receiver.stdout is not None
        shapes = [[list(value.shape) for value in bucket] for bucket in cut]
        receiver.stdin.write(f"{json.dumps(shapes)}\n")
        receiver.stdin.flush()
        group = _join(0, port, backend)
        took = []
        for _ in range(_TIMES):
            began = job.now()
            for bucket in cut:
                broadcast(group, bucket)
            arrived = int(receiver.stdout.readline())  # said when they are on its device
            took.append(job.now() - began)
    finally:
        if group is not None:
            dist.destroy_process_group(group)
        receiver.kill()
        receiver.communicate()
    size = sum(value.nbytes for value in weights.values())
    good = arrived == sum(map(bits, weights.values())) % 2**64
    job.emit(**what, backend=backend, bytes=size, seconds=min(took), bytes_per_s=size / min(took), good=good)


def receive(port: int, backend: str, target: str) -> None:
    """Run the receiver: bfloat16 tensors of the shapes on its standard input; print a checksum each time."""
    cut = [[torch.Size(shape) for shape in bucket] for bucket in json.loads(input())]
    device = torch.device(target)
    if device.index is not None:
        torch.cuda.set_device(device)
    group = _join(1, port, backend)
    for _ in range(_TIMES):
        sums = []
        for bucket in cut:
            buffer_device = "cpu" if backend == "gloo" else device
            tensors = [torch.empty(shape, dtype=torch.bfloat16, device=buffer_device) for shape in bucket]
            broadcast(group, tensors)
            sums += [bits(tensor.to(device)) for tensor in tensors]
        print(sum(sums) % 2**64, flush=True)


def _join(rank: int, port: int, backend: str) -> dist.ProcessGroup:
    group = {"address": "127.0.0.1", "port": port, "name": "weights", "size": 2}
    return make_group({**group, "backend": backend, "timeout_s": _TIMEOUT_S}, rank)
