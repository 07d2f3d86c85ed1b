"""Models without a fused forward pass: transformers' own modules, over the blocks of the torch engine.

The modules see the flat batch as one sequence, with the position of each token, and ask for attention by the name
:data:`ATTENTION`: keys and values go to their blocks, and each request attends to its own. What a family does between
its attentions is transformers' code. A family whose tokens meet elsewhere (recurrence, convolution) is refused.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from trainers.engines.decoder import Decoder, FlatBatch, blocks_for, unsupported
from trainers.engines.weights import tied_names

ATTENTION = "textenvs_blocks"  #: by which transformers finds this attention


class ModuleDecoder(Decoder):
    """A causal language model of any family that transformers computes with its attention interface.

    Raises ``ValueError``: the model does not leave attention to the interface, has attention that is not supported (a
    soft cap, sinks, keys and values of different sizes), layers whose tokens meet elsewhere, or is quantised.
    """

    def _take_model(self, model: PreTrainedModel, threads: int) -> None:
        if (quantised := getattr(model.config, "quantization_config", None)) is not None:
            raise ValueError(f"the torch engine does not serve quantised models ({quantised}): dequantise it before")
        self._module = copy.deepcopy(model).eval().requires_grad_(False)
        for parameter in self._module.parameters():
            parameter.data = parameter.data.to(self.device, self.dtype)
        for name, buffer in self._module.named_buffers():  # they keep their type: frequencies of rotary embeddings
            owner, _, leaf = name.rpartition(".")
            setattr(self._module.get_submodule(owner), leaf, buffer.to(self.device))
        self._module.config._attn_implementation = ATTENTION
        self.parameters = self._module.state_dict(keep_vars=True)
        self._tied = tied_names(self.parameters)
        self._try_out()

    @torch.no_grad()
    def _try_out(self) -> None:
        """Compute two tokens, to check that every layer uses the attention interface as this class supports it."""
        config, rows, ids = self._module.config, np.zeros(1, np.int64), np.zeros((1, self.max_context), np.int32)
        table = np.zeros((1, blocks_for(self.max_context)), np.int64)
        self.logits(rows, rows, rows + 2, ids, table)
        if lacking := sorted(set(range(config.num_hidden_layers)) - set(self._attended)):
            raise unsupported(
                f"model type {config.model_type!r}: its layers {lacking} do not use transformers' attention interface"
            )

    def _forward(self, batch: FlatBatch) -> Tensor:
        self._batch = batch
        self._attended: list[int] = []  # the layers that asked for attention
        output = self._module(
            input_ids=batch.tokens[None],
            position_ids=batch.positions[None],
            use_cache=False,
            logits_to_keep=0 if batch.last is None else batch.last,  # 0 is all
            decoder=self,
        )
        return output.logits[0].float()

    def attend(self, layer: int, qkv: tuple[Tensor, Tensor, Tensor], options: dict[str, Any]) -> Tensor:
        """Compute one layer's attention: ``[1, n, heads, head_dim]`` from q, k, v ``[1, heads, n, head_dim]``."""
        self._attended.append(layer)
        query, key, value = qkv
        expected = (self._kv_heads, self._head_dim)
        lacks = [f"{name} of attention" for name in ("softcap", "s_aux") if options.get(name) is not None]
        lacks += [
            f"{name} of {(part.shape[1], part.shape[3])} heads and numbers instead of {expected}"
            for name, part in (("keys", key), ("values", value))
            if (part.shape[1], part.shape[3]) != expected
        ]
        if lacks:
            raise unsupported(f"{lacks[0]}, which model type {self._module.config.model_type!r} has")
        batch, cache = self._batch, self._kv[layer]
        cache.index_copy_(0, batch.cells, torch.cat([key[0], value[0]]).transpose(0, 1))
        flat = query[0].transpose(0, 1)
        scale, window = options.get("scaling"), options.get("sliding_window")
        return self._attend_all(flat, cache, batch.groups, scale, window).view(1, *flat.shape)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    decoder: ModuleDecoder | None = options.get("decoder")
    if decoder is None:
        gives = "it gives attention none of the arguments of the model's call"
        raise unsupported(f"{type(module).__name__}: {gives}")
    layer: int = module.layer_idx  # type: ignore[assignment]
    return decoder.attend(layer, (query, key, value), options), None


AttentionInterface.register(ATTENTION, _attention)
