"""The models of a learner: a policy that scores tokens, a critic that values states.

Both run a transformers backbone and read its outputs only where they are needed. Nothing here knows a model family: the
head is whatever ``get_output_embeddings`` gives, and :meth:`trainers.models.source.ModelSource.check_head` proves that
backbone and head make the family's own logits (one that scales or caps them is refused, not trained wrongly).

Models stay in evaluation mode: with dropout, the ratio of new to old probabilities would not start at 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from trainers.learner.logprobs import Support, top_logprobs


class Policy(nn.Module):
    """Scores tokens with a causal language model, which becomes the policy's own."""

    def __init__(self, lm: PreTrainedModel, chunk_size: int | None = None) -> None:
        super().__init__()
        self.lm = lm
        self.chunk_size = chunk_size
        self.compiles = False  #: whether the arithmetic on logits is compiled

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        targets: Tensor,
        temperature: float,
        support: Support | None = None,
        unused: Tensor | None = None,
        observed: int | None = None,
        top: Tensor | int | None = None,
        **attention: Any,
    ) -> tuple[Tensor, ...]:
        """Score the targets after ``positions`` of ``[B, L]`` tokens: log-probabilities and entropies, each ``[n]``.

        ``support`` and ``unused`` say which tokens the distributions are over; see
        :func:`trainers.learner.logprobs.token_logprobs`.
        The last ``observed`` targets are observation tokens, scored at temperature 1, over all tokens but ``unused``.
        The head is called for them, even if there are none; ``None``: there never are any.
        With ``top``, two more tensors are of the ``a`` action tokens' distributions: ids and log-probabilities of some
        tokens, ``[a, k]``; see :func:`trainers.learner.logprobs.top_logprobs`.
        ``attention`` is for the backbone; see :meth:`trainers.learner.inputs.Inputs.attention`.
        """
        head = self.lm.get_output_embeddings()
        hidden = _hidden(self.lm.base_model, input_ids, positions, attention)

        def score(
            part: slice, temperature: float, support: Support | None, top: Tensor | int | None = None
        ) -> tuple[Tensor, ...]:
            scores = top_logprobs(
                hidden[part],
                head.weight,
                targets[part],
                top,
                bias=getattr(head, "bias", None),
                temperature=temperature,
                chunk_size=self.chunk_size,
                support=support,
                unused=unused,
                compiles=self.compiles,
            )
            return tuple(values for values in scores if values is not None)

        if observed is None:
            return score(slice(None), temperature, support, top)
        actions = len(targets) - observed
        logprobs, entropies, *others = score(slice(actions), temperature, support, top)
        own, spread = score(slice(actions, None), 1.0, None)
        return torch.cat([logprobs, own]), torch.cat([entropies, spread]), *others


class Critic(nn.Module):
    """Values states with a backbone, which becomes its own, and a linear head, which is 0 everywhere at first."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone
        width = backbone.get_input_embeddings().weight.shape[1]
        self.value_head = nn.Linear(width, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, input_ids: Tensor, positions: Tensor, **attention: Any) -> Tensor:
        """Return the values of the states at ``positions`` of ``[B, L]`` tokens, float32 ``[n]``."""
        hidden = _hidden(self.backbone, input_ids, positions, attention)
        values: Tensor = self.value_head(hidden.float())
        return values[:, 0].clone()  # not a view: FSDP hooks its backward pass onto what a module returns


def _hidden(backbone: Any, input_ids: Tensor, positions: Tensor, attention: Mapping[str, Any]) -> Tensor:
    """Return the backbone's outputs at flat positions, ``[n, H]``; without a mask (see packing)."""
    hidden: Tensor = backbone(input_ids=input_ids, use_cache=False, **attention).last_hidden_state
    return hidden.reshape(-1, hidden.shape[-1]).index_select(0, positions)


def checkpoint_gradients(model: PreTrainedModel, *, offload: bool = False) -> None:
    """Keep only the inputs of each layer (with ``offload`` on the CPU) for the backward pass; changed in place.

    Not by transformers' own switch: whether that checkpoints inside of what is compiled, and of FSDP2's hooks, depends
    on its version.
    """
    layers: list[Any] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.forward = _checkpointed(layer.forward, offload)


def _checkpointed(forward: Callable[..., Tensor], offload: bool) -> Callable[..., Tensor]:
    def run(*args: Any, **kwargs: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        stored = torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()) if offload else nullcontext()
        with stored:
            # Nothing is drawn at random in a layer: there is no dropout.
            out: Tensor = checkpoint(partial(forward, **kwargs), *args, use_reentrant=False, preserve_rng_state=False)
            return out

    return run
