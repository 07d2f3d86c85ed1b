"""The stream of the actor's weights from the learner: whole tensors, one after another, on the ranks that read them.

A rank sends the rows that it owns, and the readers put them together: a reader has one whole tensor at a time, and no
other rank ever has more than its own part of one. What leaves is either what the parameters are while it is read, until
the optimizer's next step, or a snapshot that each rank takes of its own part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.engines.base import SupersededError
from trainers.engines.weights import PREFIX, Named, TensorSpec, compact, is_finite, merge
from trainers.learner.fsdp import Ranks, tied_names
from trainers.learner.lora import adapter_layers, adapter_matrices, base_state
from trainers.learner.optim import Optimizer
from trainers.models.shards import Box, box_of, local_part

#: ``weights``: the model's own names, adapters merged; ``base``: what is below them, which never changes, in bfloat16
#: where that loses nothing; ``adapter``: they alone, by peft's names.
Which = Literal["weights", "base", "adapter"]
_SLICE_BYTES = 2**26  # of rows that are sent at once


class _Part(NamedTuple):
    """This rank's part of a tensor, and the owners of all parts: the first rank with each box."""

    local: Tensor
    shape: torch.Size
    owners: list[tuple[int, Box]]


class WeightStream:
    """The weights of one moment. All ranks make it together, and :meth:`read` it together.

    ``specs`` describes the tensors, in order; it is the same on every rank.

    Args:
        lm: The causal language model, sharded or not, with adapters or without.
        ranks: All ranks.
        which: See :data:`Which`.
        dtype: In which ``weights`` leave; ``None`` is float32. A ``base`` leaves in bfloat16 where that
            loses nothing, an ``adapter`` in float32.
        snapshot: Take copies, so that training may continue; on the CPU, because another thread will send them.
        finite: Refuse values that are not finite (``ValueError``).
        optimizer: Of the actor; after its next step, what is no snapshot can be read no more.
    """

    def __init__(
        self,
        lm: nn.Module,
        ranks: Ranks,
        which: Which,
        dtype: torch.dtype | None = None,
        *,
        snapshot: bool = False,
        finite: bool = False,
        optimizer: Optimizer | None = None,
    ) -> None:
        names = tied_names(base_state(lm))
        layers = {f"{name}.weight": layer for name, layer in adapter_layers(lm)}
        # Of each tensor in the stream: its names, and the tensors that it is made of.
        made: list[tuple[tuple[str, ...], list[Tensor], float]] = []
        if which == "adapter":
            for name, layer in adapter_layers(lm):
                for letter, matrix in zip("AB", adapter_matrices(layer), strict=True):
                    made.append(((f"{PREFIX}{name}.lora_{letter}.weight",), [matrix], 0.0))
        else:
            for name, value in base_state(lm):
                if name in names:
                    layer = layers.get(name) if which == "weights" else None
                    pair = [] if layer is None else list(adapter_matrices(layer))
                    made.append((names[name], [value, *pair], 0.0 if layer is None else layer.scaling["default"]))
        tensors = {id(value): value for _, of, _ in made for value in of}
        checks = {key: _check_part(value, which == "base", finite) for key, value in tensors.items()}
        everyone: list[dict[int, Any]] = [dict(enumerate(checks.values()))] * ranks.world
        if ranks.world > 1:
            dist.all_gather_object(everyone, dict(enumerate(checks.values())), group=ranks.group)
        self.specs: list[TensorSpec] = []
        self._parts: list[tuple[list[_Part], float]] = []
        places = {key: number for number, key in enumerate(tensors)}
        for aliases, of, scale in made:
            # What learns is float32, and what adapters are merged into becomes so.
            parts, kind = [], dtype or (torch.float32 if of[0].is_floating_point() else of[0].dtype)
            for value in of:
                rank_checks = [one[places[id(value)]] for one in everyone]
                if not all(good for _, _, good in rank_checks):
                    raise ValueError(f"{aliases[0]} holds values that are not finite; did training diverge?")
                if which != "weights":
                    kind = torch.bfloat16 if all(half for _, half, _ in rank_checks) else value.dtype
                owners: dict[str, tuple[int, Box]] = {}
                for rank, (box, _, _) in enumerate(rank_checks):
                    if all(part.stop > part.start for part in box):
                        owners.setdefault(str(box), (rank, box))
                local = local_part(value)
                if snapshot:  # what is frozen is not copied, but where it is on a GPU
                    wire = kind if value.requires_grad and len(of) == 1 else local.dtype
                    local = local.to("cpu", wire, copy=value.requires_grad)
                parts.append(_Part(local, value.shape, list(owners.values())))
            self.specs.append(TensorSpec(aliases, kind, tuple(of[0].shape)))
            self._parts.append((parts, scale))
        self._optimizer = None if snapshot or which == "base" else optimizer
        self._at = None if optimizer is None else optimizer.step_count

    def read(self, ranks: Ranks, readers: Sequence[int] = (0,)) -> Iterator[Named]:
        """Yield the tensors, to the end on every rank: to the ``readers``, where their parts are; no others get any.

        They may be the model's own memory: they are to be read only. ``ranks`` are all, over the group that they send
        through. Raises SupersededError: the optimizer has taken a step since, on any rank; it comes from this call, or
        where the step comes between, after the first tensor that it may have changed while it was read.
        """
        self._check()
        return self._read(ranks, readers)

    def _check(self) -> None:
        if self._optimizer is not None and self._optimizer.step_count != self._at:
            raise SupersededError("the learner has trained on: weights that are no snapshot can be read no more")

    def _read(self, ranks: Ranks, readers: Sequence[int]) -> Iterator[Named]:
        for spec, (parts, scale) in zip(self.specs, self._parts, strict=True):
            kind = spec.dtype if len(parts) == 1 else torch.float32
            gathered = [whole for part in parts if (whole := _gathered(part, kind, ranks, readers)) is not None]
            if len(gathered) == 1:
                yield spec.names, gathered.pop()
            elif gathered:
                base, a, b = gathered
                yield spec.names, merge(base, a, b, scale).to(spec.dtype)
                del base, a, b
            del gathered
            self._check()


def _check_part(value: Tensor, halved: bool, finite: bool) -> tuple[Box, bool, bool]:
    """Describe this rank's part for the others: its box, whether bfloat16 holds it exactly, whether it is finite."""
    local = local_part(value)
    half = halved and compact(local).dtype == torch.bfloat16
    return box_of(value), half, not finite or is_finite(local)


def _gathered(part: _Part, dtype: torch.dtype, ranks: Ranks, readers: Sequence[int]) -> Tensor | None:
    """Gather the whole tensor on the readers; slices of rows are sent, so that no rank has it twice."""
    me = dist.get_rank() if ranks.world > 1 else 0
    if ranks.world == 1 or (len(part.owners) == 1 and [part.owners[0][0]] == list(readers)):
        return part.local.to(dtype) if me in readers else None
    out = torch.empty(part.shape, dtype=dtype, device=part.local.device) if me in readers else None
    for owner, box in part.owners:
        receivers = [reader for reader in readers if reader != owner]
        size = torch.Size(part_slice.stop - part_slice.start for part_slice in box)
        rows = max(1, _SLICE_BYTES // max(1, size[1:].numel() * dtype.itemsize)) if size else 1
        for start in range(0, size[0] if size else 1, rows):
            cut = slice(start, start + rows) if size else ...
            if me == owner:
                if out is not None:
                    out[box][cut] = part.local[cut]
                for reader in receivers:
                    dist.send(part.local[cut].to(dtype).contiguous(), dst=reader, group=ranks.group)
            elif out is not None:
                target = out[box][cut]
                got = target if target.is_contiguous() else torch.empty(target.shape, dtype=dtype, device=target.device)
                dist.recv(got, src=owner, group=ranks.group)
                if got is not target:
                    target.copy_(got)
    return out
