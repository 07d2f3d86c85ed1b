"""Division of the work among ranks: meshes of data, sequence, tensor and (hybrid) sharded data parallelism.

The ranks stand in a row, and the same row is cut in two ways, with tensor parallelism innermost in both:

* ``replica x shard x tensor``: placement of the parameters. FSDP2 shards over ``shard`` and keeps copies
  along ``replica`` (HSDP).
* ``data x sequence x tensor``: placement of the computation. Trajectories are shared out over ``data``; a sequence is
  cut into pieces over ``sequence`` (Ulysses); matrices are cut over ``tensor``.

Gradients are summed over ``replica`` and ``shard``, which together are ``data`` and ``sequence``: every rank has its
own part of the loss, and a piece of a sequence is such a part.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainers.config.model import ModelSection
from trainers.config.running import RunSection


def shape_of(run: RunSection, world: int) -> tuple[int, int]:
    """Return ``(replicas, shards)`` of so many ranks; ``ValueError``: they cannot be cut like that."""
    tensor, sequence = run.tensor_parallel_size, run.ulysses_sequence_parallel_size
    if world % (tensor * sequence):
        raise ValueError(
            f"{world} ranks cannot be cut into groups of {tensor} (tensor parallelism) times {sequence} "
            f"(sequence parallelism); start a multiple of {tensor * sequence}"
        )
    ranks = world // tensor
    shards = ranks if run.fsdp_size is None else run.fsdp_size
    if ranks % shards:
        raise ValueError(
            f"fsdp_size={shards} does not divide the {ranks} ranks that share the parameters ({world} ranks, "
            f"{tensor} of them for each tensor-parallel copy)"
        )
    return ranks // shards, shards


@dataclass(frozen=True)
class Meshes:
    """The meshes of a run, each a view of all ranks."""

    fsdp: DeviceMesh  #: ``(shard)``, or ``(replica, shard)``: what FSDP2 shards over
    data: DeviceMesh  #: ``(data)``: the ranks that compute different trajectories
    #: ``(sequence)``: the ranks that share a sequence; ``None`` without sequence parallelism.
    sequence: DeviceMesh | None = None
    #: ``(tensor)``: the ranks that share a matrix; ``None`` without tensor parallelism.
    tensor: DeviceMesh | None = None


def world_size() -> int:
    """Return the number of ranks: of the process group, else of torchrun's environment, else 1."""
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


def make_meshes(model: ModelSection, run: RunSection, device: torch.device) -> Meshes | None:
    """Build the meshes to compute on, or return ``None`` for plain modules.

    Starts the process group if there is none: from torchrun's environment, or of this process alone. On CUDA it has
    gloo beside NCCL, for what is on the CPU: offloaded parameters, and checkpoints written in the background. Modules
    are plain under ``auto`` on one rank in float32 or on the CPU, unless another feature of FSDP2 is requested; mixed
    precision is FSDP's, or :mod:`.cpu`'s (float32 parameters, cast for use).

    Raises ``ValueError``: ``never`` with several ranks, in bfloat16 on a GPU or with such a feature, or ranks that
    cannot be cut as ``run`` says. No process group is started then.
    """
    world, tensor, sequence = world_size(), run.tensor_parallel_size, run.ulysses_sequence_parallel_size
    replicas, shards = shape_of(run, world)
    exact = model.precision == "float32"
    plain = world == 1 and (exact or device.type == "cpu")
    again = not exact and (model.enable_gradient_checkpointing or model.compile is True)
    needs = "offload" if run.offload else "bfloat16 with gradient checkpointing or torch.compile" if again else None
    if run.fsdp == "never" and not plain:
        raise ValueError(
            f"fsdp='never' is for one rank, in float32 or on the CPU, not for {world} in {model.precision}; use "
            "fsdp='auto'"
        )
    if run.fsdp == "never" and needs:
        raise ValueError(f"{needs} is a part of FSDP2; use fsdp='auto' or 'always'")
    if run.fsdp == "never" or (run.fsdp == "auto" and plain and not needs):
        return None
    _start_process_group(device)
    # The mesh always names its device type: without one, torch picks CUDA wherever it sees a GPU, gloo or not.
    kind = device.type
    held: dict[str, int] = {"replica": replicas, "shard": shards, "tensor": tensor}
    held = {name: size for name, size in held.items() if name == "shard" or size > 1}
    holds = init_device_mesh(kind, tuple(held.values()), mesh_dim_names=tuple(held))
    fsdp = holds["replica", "shard"] if "replica" in held else holds["shard"]
    if replicas == tensor == sequence == 1:
        return Meshes(fsdp, data=fsdp)
    data = world // (tensor * sequence)
    computes = init_device_mesh(kind, (data, sequence, tensor), mesh_dim_names=("data", "sequence", "inner"))
    return Meshes(
        fsdp,
        data=computes["data"],
        sequence=computes["sequence"] if sequence > 1 else None,
        tensor=holds["tensor"] if tensor > 1 else None,
    )


def backend_of(device: torch.device) -> str:
    """Return the backend of ranks that compute on such a device; on CUDA, it also carries tensors on the CPU."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def _start_process_group(device: torch.device) -> None:
    if dist.is_initialized():
        return
    backend = backend_of(device)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or "MASTER_ADDR" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def check_model(config: Any, run: RunSection) -> None:
    """Check that a model can be cut as requested, from its configuration alone.

    Raises ``ValueError``: heads or widths are not divisible, or the family is not known to be cut rightly.
    """
    if run.tensor_parallel_size > 1 and config.model_type not in FAMILIES:
        raise ValueError(
            f"there is no tensor-parallel plan for model type {config.model_type!r}, only for "
            f"{', '.join(FAMILIES)}; use tensor_parallel_size=1"
        )
    if run.ulysses_sequence_parallel_size > 1:
        refuse_sliding_windows(config, "sequence parallelism")
    heads = config.num_attention_heads
    intermediate = config.intermediate_size if run.tensor_parallel_size > 1 else 0  # families above have one number
    check_sizes(heads, getattr(config, "num_key_value_heads", heads), intermediate, run)


def check_sizes(heads: int, kv_heads: int, intermediate: int, run: RunSection) -> None:
    """Raise ``ValueError`` if heads (of queries, of keys and values) or feed-forward units do not divide."""
    tensor, sequence = run.tensor_parallel_size, run.ulysses_sequence_parallel_size
    sizes = {"attention heads": heads, "key/value heads": kv_heads, "feed-forward width": intermediate}
    for what, size in sizes.items():
        if size % tensor:
            raise ValueError(f"tensor_parallel_size={tensor} does not divide the model's {what} ({size})")
    heads, kv_heads = heads // tensor, kv_heads // tensor
    if heads % sequence:
        raise ValueError(
            f"ulysses_sequence_parallel_size={sequence} does not divide the model's attention heads ({heads}"
            + (" on each tensor-parallel rank)" if tensor > 1 else ")")
        )
    if kv_heads % sequence and sequence % kv_heads:
        raise ValueError(
            f"ulysses_sequence_parallel_size={sequence} neither divides the model's key/value heads ({kv_heads}) "
            f"nor is a multiple of them"
        )


#: transformers' model types whose matrices :mod:`trainers.learner.tensor_parallel` knows how to cut.
FAMILIES = ("qwen2", "qwen3", "llama")


def has_sliding_windows(config: Any) -> bool:
    """Return whether some layers of a model have sliding windows."""
    if (types := getattr(config, "layer_types", None)) is not None:
        return "sliding_attention" in types
    return getattr(config, "sliding_window", None) is not None


def refuse_sliding_windows(config: Any, what: str) -> None:
    """Raise ``ValueError`` for a model that :func:`has_sliding_windows`."""
    if has_sliding_windows(config):
        raise ValueError(f"{what} attends to the whole sequence, but layers of this model have a sliding window")
