"""vLLM's sampler with this project's meaning of a log-probability.

vLLM's ``raw_logprobs`` ignore the temperature, and its ``processed_logprobs`` are renormalised after the cuts. The
protocol wants ``log_softmax(logits / T)`` over the full vocabulary (:mod:`trainers.engines.base`): raw log-probs, of
logits divided by the temperature. Ids without a token are left out first of all; vLLM's ``logit_bias`` would not reach
raw log-probs. The cuts come in the protocol's order too: vLLM applies min-p first, here it is last. No rank is
computed, for which vLLM would compile a kernel.

Versions of vLLM whose answers do not say which weights computed a token (:mod:`..versions`) get it from here: a request
for two log-probabilities or more gets that of the sampled token and, as the second, the number of updates so far.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import vllm
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample import sampler as vllm_sampler
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from trainers.engines.vllm.versions import RELEASES

#: A request for so many log-probabilities, or more, gets the number of updates as the second.
_COUNTED = RELEASES.choose(vllm.__version__).logprobs or math.inf


class Sampler(vllm_sampler.Sampler):
    """See the module. Of the model runner "V1"; the server sets ``VLLM_USE_V2_MODEL_RUNNER=0``."""

    unused: Tensor | None = None  #: int64 ``[u]``; ids that are never sampled
    updates = 0  #: of the weights, as far as the client has counted them
    _temperature: Tensor | None = None  # of the rows that are being sampled; prompts have none

    def forward(self, logits: Tensor, sampling_metadata: SamplingMetadata, *args: Any, **kwargs: Any) -> Any:
        if self.unused is not None:
            logits.index_fill_(1, self.unused, -math.inf)
        self._temperature = sampling_metadata.temperature
        try:
            return super().forward(logits, sampling_metadata, *args, **kwargs)
        finally:
            self._temperature = None

    def compute_logprobs(self, logits: Tensor) -> Tensor:  # type: ignore[override]  # vLLM's is static
        """Return ``log_softmax(logits / T)``, with ``T = 1`` for greedy rows; ``[rows, vocabulary]``, float32."""
        if self._temperature is not None:
            greedy = self._temperature < vllm_sampler._SAMPLING_EPS
            logits = logits.float() / torch.where(greedy, 1.0, self._temperature).unsqueeze(1)
        return super().compute_logprobs(logits)

    def gather_logprobs(  # type: ignore[override]
        self, logprobs: Tensor, num_logprobs: int, token_ids: Tensor
    ) -> LogprobsTensors:
        ids = token_ids.unsqueeze(1)
        values = logprobs.gather(1, ids)
        if num_logprobs and num_logprobs >= _COUNTED:
            # Under another id than the sampled one; float32 is exact up to 2**24 updates.
            ids = torch.cat([ids, (ids + 1) % logprobs.shape[1]], dim=1)
            values = torch.cat([values, torch.full_like(values, self.updates)], dim=1)
        elif num_logprobs:
            return super().gather_logprobs(logprobs, num_logprobs, token_ids)
        return LogprobsTensors(ids.to(torch.int32), values, torch.zeros_like(token_ids))

    def sample(
        self, logits: Tensor, sampling_metadata: SamplingMetadata, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Apply temperature, top-k, top-p and min-p, then draw."""
        cuts = sampling_metadata.top_k is not None or sampling_metadata.top_p is not None
        last = sampling_metadata.logitsprocs.argmax_invariant
        if sampling_metadata.all_greedy or not cuts or not any(getattr(part, "min_p_count", 0) for part in last):
            return super().sample(logits, sampling_metadata, *args, **kwargs)
        assert sampling_metadata.temperature is not None
        greedy = None if sampling_metadata.all_random else self.greedy_sample(logits)
        logits = self.apply_temperature(logits, sampling_metadata.temperature, sampling_metadata.all_random)
        logits = apply_top_k_top_p(logits, sampling_metadata.top_k, sampling_metadata.top_p)
        for processor in last:
            logits = processor.apply(logits)
        drawn, _ = self.topk_topp_sampler(logits, sampling_metadata.generators, None, None)
        if greedy is not None:
            drawn = torch.where(sampling_metadata.temperature < vllm_sampler._SAMPLING_EPS, greedy, drawn)
        return drawn, None
