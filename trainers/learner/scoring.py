"""Forward passes over micro-batches, and the collection of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from trainers.learner.fsdp import Ranks
from trainers.learner.inputs import Floats, SamplingMasks, distinct_targets, inputs_of
from trainers.learner.logprobs import is_left_out
from trainers.learner.lora import WithoutAdapters
from trainers.learner.models import Policy
from trainers.learner.packing import MicroBatch
from trainers.learner.top_tokens import TopTokens
from trainers.learner.transfer import to_device
from trainers.trajectory import Trajectory

Scorer = Literal["actor", "reference", "teacher"]
#: Which tokens of a distribution are scored besides the action: how many of the most likely, or the ids, ``[N, k]``.
Top = int | NDArray[np.int32]


class TopScores(NamedTuple):
    """A model's numbers of the distributions that action tokens came from."""

    logprobs: list[Floats]  #: of the action tokens; float32 ``[n_e]`` a trajectory
    top: TopTokens  #: of all of them, in the order of the trajectories


class UnusedTokens:
    """Token ids that distributions leave out, as engines do: the tokenizer has no token for them.

    Args:
        ids: The ids.
        device: The models' device.
    """

    def __init__(self, ids: Sequence[int], device: torch.device) -> None:
        self.ids = np.array(ids, np.int64)
        #: On the device; ``None`` without any.
        self.tensor = to_device(self.ids, device) if len(ids) else None

    def refuse(self, trajectories: Sequence[Trajectory]) -> None:
        """Raise ``ValueError`` where one of these ids is an action."""
        if self.tensor is None:
            return
        for trajectory in trajectories:
            if len(used := np.intersect1d(trajectory.token_ids[trajectory.action_mask], self.ids)):
                raise ValueError(
                    f"trajectory {trajectory.episode_id or '?'} has the action token {used[0]}, which the tokenizer "
                    "has no token for: sample it again with an engine that is made with the same unused_token_ids"
                )


class Forward:
    """Forward passes of models over micro-batches.

    Args:
        device: The models' device.
        sequence: The ranks that share each sequence.
        varlen: Whether attention reads packed rows by their lengths alone.
    """

    def __init__(self, device: torch.device, sequence: DeviceMesh | None, *, varlen: bool) -> None:
        self.device, self.sequence, self.varlen = device, sequence, varlen

    def scores(
        self,
        policy: Policy | WithoutAdapters,
        batch: MicroBatch,
        temperature: float,
        masks: SamplingMasks,
        unused: UnusedTokens,
        *,
        observed: bool = False,
        top: Top | None = None,
    ) -> tuple[Tensor, ...]:
        """Return log-probabilities and entropies of the micro-batch's positions; ``observed``: it may have such.

        With ``top``, also ids and log-probabilities of its action tokens' distributions.
        """
        inputs = inputs_of(batch, self.device, self.sequence, varlen=self.varlen)
        actions = len(inputs.positions) - inputs.observed
        chosen = top if isinstance(top, np.ndarray) else None
        of_action = inputs.positions[:actions], inputs.targets[:actions], inputs.index[:actions]
        first, kinds = masks.distinct(*of_action, chosen)
        support = masks.of(inputs.index[first], self.device)
        some: dict[str, Any] = {"support": support, "unused": unused.tensor, **inputs.attention}
        some["top"] = top if chosen is None else self._tensor(chosen[inputs.index[first]].astype(np.int64))
        if observed:
            second, others = distinct_targets(inputs.positions[actions:], inputs.targets[actions:])
            kinds = np.concatenate([kinds, len(first) + others])
            first = np.concatenate([first, actions + second])
            some["observed"] = len(second)
        positions, targets = self._tensor(inputs.positions[first]), self._tensor(inputs.targets[first])
        outputs = policy(inputs.input_ids, positions, targets, temperature, **some)
        kind_of = self._tensor(kinds)  # trajectories that share a token add up their gradients in it
        logprobs, entropy = (inputs.join(values.index_select(0, kind_of)) for values in outputs[:2])
        tops = (inputs.join(values.index_select(0, kind_of[:actions])) for values in outputs[2:])
        return logprobs, entropy, *(values[: len(logprobs) - batch.observed] for values in tops)

    def values(self, critic: nn.Module, batch: MicroBatch) -> Tensor:
        """Return the critic's values at the micro-batch's positions."""
        inputs = inputs_of(batch, self.device, self.sequence, varlen=self.varlen)
        return inputs.join(critic(inputs.input_ids, self._tensor(inputs.positions), **inputs.attention))

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return to_device(array, self.device)


class TokenScores:
    """Scores of ``N`` action tokens, collected from micro-batches and ranks.

    Args:
        total: ``N``.
        top: Which tokens of each distribution are scored as well.
        device: The models' device.

    Raises ``ValueError``: ``top`` has ids for another number of tokens.
    """

    def __init__(self, total: int, top: Top | None, device: torch.device) -> None:
        if isinstance(top, np.ndarray) and len(top) != total:
            raise ValueError(f"there are ids of {len(top)} states for {total} action tokens")
        width = 0 if top is None else top if isinstance(top, int) else top.shape[1]
        self._results = torch.zeros(2, total, device=device)
        self._ids = torch.zeros(total, width, dtype=torch.int32, device=device)  # id + 1: 0 is none, and ranks add up
        self._chosen = torch.zeros(total, width, device=device)

    def put(self, batch: MicroBatch, outputs: Sequence[Tensor]) -> None:
        """Put what :meth:`Forward.scores` returned for a micro-batch in its places."""
        logprobs, entropies, *others = outputs
        index = to_device(batch.index, self._results.device)
        self._results[0, index], self._results[1, index] = logprobs, entropies
        if others:
            left_out = (others[0] < 0) | is_left_out(others[1])
            self._ids[index] = (others[0].int() + 1).masked_fill(left_out, 0)
            self._chosen[index] = others[1].float().masked_fill(left_out, 0.0)

    def add_up(self, ranks: Ranks) -> tuple[Floats, TopTokens]:
        """Return all ranks' log-probabilities and entropies, ``[2, N]``, and the tokens of the distributions.

        Ids that a distribution leaves out are -1. Call it once: it adds up in place.
        """
        scores: Floats = ranks.add(self._results).cpu().numpy()
        ids, chosen = (ranks.add(part) if part.numel() else part for part in (self._ids, self._chosen))
        return scores, TopTokens(ids.cpu().numpy() - 1, chosen.cpu().numpy())
