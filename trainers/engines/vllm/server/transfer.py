"""New weights for vLLM's workers: a backend of its weight-transfer interface.

Weights come in buckets: in memory that the learner shares with this process, through a process group whose rank 0 is
the trainer, by value in the request, or from a safetensors file. A LoRA run sends its base once and then adapters
alone, merged here one matrix at a time.
"""

from __future__ import annotations

import base64
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load
from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.platforms import current_platform

from trainers.engines.process_group import broadcast, make_group
from trainers.engines.shared_memory import tensors_of
from trainers.engines.weights import ChecksumRule, Checksums, bits, differing, listed, merged


@dataclass
class InitInfo(WeightTransferInitInfo):
    """A process group to join; without one, the present group is left."""

    #: ``address``, ``port``, ``name``, ``size``, ``backend`` and ``timeout_s``. The trainer is rank 0.
    group: dict[str, Any] | None = None


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """One bucket."""

    #: ``weights`` of the model; ``base`` and ``adapter`` of a LoRA run, which are kept; ``merge`` loads these
    kind: Literal["weights", "base", "adapter", "merge"] = "weights"
    scale: float = 1.0  #: of the adapter
    in_place: bool = False  #: whether the model can load weights where the old ones are; see :func:`loads_in_place`
    names: list[str] = field(default_factory=list)  #: of the broadcast tensors
    dtypes: list[str] = field(default_factory=list)  #: of the broadcast tensors
    shapes: list[list[int]] = field(default_factory=list)  #: of the broadcast tensors
    shared: list[str] | None = None  #: or else references to shared memory, for each worker by rank
    data: str | None = None  #: or else a safetensors file as base64
    path: str | None = None  #: or else a safetensors file


#: vLLM's treatments of a layer's weights that leave them as a checkpoint has them, on a CPU whose library does not
#: pack matrices (:func:`trainers.engines.vllm.server.extension.keep_weights_loadable`).
_UNCHANGED = ("NoneType", "UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")


def loads_in_place(model: torch.nn.Module) -> bool:
    """Return whether a model computes with weights as a checkpoint has them: then they can be copied over the old ones.

    Otherwise vLLM makes each layer anew, converts it, and copies it to the old one; what waits for the rest of a layer,
    or for padding (a vocabulary's, until the end), is a copy too.
    """
    # On a GPU this was never tried; Zen's library packs matrices.
    if not current_platform.is_cpu() or getattr(current_platform, "is_zen_cpu", bool)():
        return False
    return all(
        type(getattr(module, "quant_method", None)).__name__ in _UNCHANGED
        and (type(module).__name__ == "Attention" or not hasattr(module, "process_weights_after_loading"))
        for module in model.modules()
    )


class Transfer(WeightTransferEngine[InitInfo, UpdateInfo]):
    """See the module."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._group: dist.ProcessGroup | None = None
        self._group_device = torch.device("cpu")
        self._reloading = False
        self._base: dict[str, Tensor] | None = None  # of the LoRA run whose weights the model has
        self._base_begun = False  # in this update
        self._adapter: dict[str, Tensor] = {}

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Join the group, or leave the one there is."""
        self.shutdown()
        if init_info.group is not None:
            self._group = make_group(init_info.group, 1 + self.parallel_config.rank)
            self._group_device = self.device if init_info.group["backend"] == "nccl" else torch.device("cpu")

    def start_weight_update(self) -> None:
        """Reset the adapter; the model stays unchanged until its first weights arrive."""
        self._adapter, self._base_begun = {}, False

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Take one bucket; ``ValueError``: the model cannot load it, or has other weights afterwards."""
        try:
            if update_info.kind == "weights":
                self._base = None
                received = list(self._received(update_info))
                self._load(received, in_place=update_info.in_place)
                if update_info.shared is not None and not update_info.in_place:
                    self._copy_waiting({value.untyped_storage().data_ptr() for _, value in received})
            elif update_info.kind == "base":
                if not self._base_begun or self._base is None:
                    self._base, self._base_begun = {}, True
                self._base.update(self._kept(update_info))
            elif update_info.kind == "adapter":
                self._adapter.update(self._kept(update_info))
            else:
                self._merge(update_info)
        except BaseException:
            self.finish_weight_update()  # vLLM calls nothing more, and the next update must find the model whole
            raise

    def finish_weight_update(self) -> None:
        """Let the layers process the loaded weights."""
        if self._reloading:
            self._reloading = False
            finalize_layerwise_reload(self.model, self.model_config)

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """Refuse: the trainer sends by itself. vLLM before 0.28 has this as an abstract method."""
        raise NotImplementedError

    def shutdown(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            dist.destroy_process_group(group)

    def _received(self, info: UpdateInfo) -> Iterator[tuple[str, Tensor]]:
        if info.path is not None:
            with safe_open(info.path, "pt") as file:
                for name in file.keys():  # noqa: SIM118  # not a mapping
                    yield name, file.get_tensor(name)
        elif info.shared is not None:
            yield from tensors_of(info.shared[self.parallel_config.rank])
        elif info.data is not None:
            yield from load(base64.b64decode(info.data)).items()
        else:
            if self._group is None:
                raise ValueError("weights are broadcast, and this worker has joined no process group")
            tensors = [
                torch.empty(shape, dtype=getattr(torch, dtype), device=self._group_device)
                for shape, dtype in zip(info.shapes, info.dtypes, strict=True)
            ]
            broadcast(self._group, tensors)
            yield from zip(info.names, tensors, strict=True)

    def _kept(self, info: UpdateInfo) -> Iterator[tuple[str, Tensor]]:
        """Yield what was received, in memory of this process: the next bucket overwrites what is shared."""
        for name, value in self._received(info):
            yield name, value if info.shared is None else value.to("cpu", copy=True)

    def _copy_waiting(self, shared: Container[int]) -> None:
        """Copy the tensors, of ``shared`` memory, that wait in vLLM for the others of their layer."""
        for module in self.model.modules():
            for _, call in get_layerwise_info(module).loaded_weights:
                for name, value in call.arguments.items():
                    if isinstance(value, Tensor) and value.untyped_storage().data_ptr() in shared:
                        call.arguments[name] = value.clone()
        self._synchronize()

    def _synchronize(self) -> None:
        """Wait until the GPU has read shared memory."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _load(self, weights: Iterable[tuple[str, Tensor]], *, in_place: bool) -> None:
        if not self._reloading and not in_place:
            initialize_layerwise_reload(self.model)
            self._reloading = True
        self.model.load_weights(weights)

    def _merge(self, info: UpdateInfo) -> None:
        """Merge adapters into their base, as the learner does, and load the result."""
        if (base := self._base) is None:
            raise ValueError("adapters arrived before their base weights")
        expected, dtype = Checksums(ChecksumRule()), self.model_config.dtype

        def weights() -> Iterator[tuple[str, Tensor]]:
            for name, value in merged(base.items(), self._adapter, info.scale, self.device):
                expected.add(name, value := value.to(dtype))
                yield name, value

        self._load(weights(), in_place=info.in_place)
        self.finish_weight_update()
        actual = {name: (bits(value),) for name, value in self.model.named_parameters()}
        if wrong := differing(expected.result(), actual):
            raise ValueError(f"the model does not have the merged weights: the checksums of {listed(wrong)} differ")
