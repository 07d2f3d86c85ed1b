"""One set of models and how they learn: a policy, perhaps a critic, perhaps a frozen reference.

The learner is blind to algorithms. It is given numbers for each action token and a loss function, and it gives back
log-probabilities, entropies, values and weights. Losses are sums of weighted tokens over the whole mini-batch (the
weights come from :func:`trainers.algorithms.aggregation.token_weights`), so an update does not depend on how the
mini-batch is cut into micro-batches or shared among ranks.

With several ranks, every rank calls every method with the same arguments and gets the same results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainers.learner.models import Critic, Policy, Source, checkpoint_gradients, load_causal_lm
from trainers.learner.optim import Optimizer, OptimizerSettings
from trainers.learner.packing import MicroBatch, Row, action_offsets, action_rows, micro_batches, value_rows
from trainers.trajectory import Trajectory

Floats = NDArray[np.float32]
#: Numbers of each action token: one array a trajectory, or all of them in one, in the order of the trajectories.
PerToken = Sequence[NDArray[np.floating]] | NDArray[np.floating]
#: Named numbers of a micro-batch's ``n`` action tokens, each ``[n]``: those given to the update, and ``trajectory``,
#: the number of each token's trajectory (all tokens of a trajectory are in one micro-batch, in order).
TokenBatch = Mapping[str, Tensor]
#: A micro-batch's share of the loss, and sums worth reporting (added up over micro-batches and ranks).
Loss = tuple[Tensor, Mapping[str, Tensor | float]]
PolicyLoss = Callable[[Tensor, Tensor, TokenBatch], Loss]
ValueLoss = Callable[[Tensor, TokenBatch], Loss]


class Learner:
    """The models of one run.

    Args:
        actor: A folder or name that transformers loads, or a model (which is copied).
        critic: Where the critic's backbone comes from; ``True`` for a copy of the actor's; ``False`` for no critic.
        reference: The frozen reference; ``True`` for a copy of the actor; ``False`` for none.
        optimizer: How the actor is trained.
        critic_optimizer: How the critic is trained; as the actor by default.
        max_tokens_per_micro_batch: Tokens (padding included) in one forward and backward pass. Speed and memory only.
        chunk_size: Positions whose logits exist at the same time. Speed and memory only.
        temperature: Of the log-probabilities, as in sampling (:mod:`trainers.engines.base`).
        gradient_checkpointing: Compute activations again in the backward pass instead of keeping them.
        device: Where to compute.
        threads: Threads of an operation on the CPU, process-wide; ``None`` leaves them as they are.

    Raises:
        ValueError: A model that the learner cannot train rightly (see :func:`trainers.learner.models.check_head`), or a
            setting outside its range.
    """

    def __init__(
        self,
        actor: Source,
        *,
        critic: Source | bool = False,
        reference: Source | bool = False,
        optimizer: OptimizerSettings | None = None,
        critic_optimizer: OptimizerSettings | None = None,
        max_tokens_per_micro_batch: int = 4096,
        chunk_size: int = 1024,
        temperature: float = 1.0,
        gradient_checkpointing: bool = False,
        device: str | torch.device = "cpu",
        threads: int | None = None,
    ) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, not {temperature}: greedy decoding has no gradient")
        if threads is not None:
            torch.set_num_threads(threads)
        self.device = torch.device(device)
        self.temperature = temperature
        self.max_tokens_per_micro_batch = max_tokens_per_micro_batch
        settings = optimizer or OptimizerSettings()

        policy = Policy(load_causal_lm(actor), chunk_size)
        self.actor = policy.to(self.device)
        self.reference: Policy | None = None
        if reference is not False:
            frozen = Policy(load_causal_lm(policy.lm if reference is True else reference), chunk_size)
            self.reference = frozen.requires_grad_(False).to(self.device)
        self.critic: Critic | None = None
        if critic is not False:
            source = load_causal_lm(policy.lm if critic is True else critic)
            self.critic = Critic(source.base_model).to(self.device)
        if gradient_checkpointing:
            checkpoint_gradients(self.actor.lm)
            if self.critic is not None:
                checkpoint_gradients(self.critic.backbone)
        self.actor_optimizer = Optimizer(self.actor, settings)
        self.critic_optimizer = Optimizer(self.critic, critic_optimizer or settings) if self.critic else None

    # ------------------------------------------------------------------ reading

    @overload
    def logprobs(
        self,
        trajectories: Sequence[Trajectory],
        *,
        model: Literal["actor", "reference"] = ...,
        entropy: Literal[False] = ...,
    ) -> list[Floats]: ...
    @overload
    def logprobs(
        self, trajectories: Sequence[Trajectory], *, model: Literal["actor", "reference"] = ..., entropy: Literal[True]
    ) -> tuple[list[Floats], list[Floats]]: ...
    @torch.no_grad()
    def logprobs(
        self,
        trajectories: Sequence[Trajectory],
        *,
        model: Literal["actor", "reference"] = "actor",
        entropy: bool = False,
    ) -> list[Floats] | tuple[list[Floats], list[Floats]]:
        """Log-probabilities of the action tokens, at the learner's temperature.

        Args:
            trajectories: ``E`` of them.
            model: Whose.
            entropy: Return ``(logprobs, entropies)`` instead.

        Returns:
            ``E`` arrays, float32, with one number an action token.

        Raises:
            ValueError: There is no reference, or a segment starts with an action token.
        """
        policy = self.actor if model == "actor" else self.reference
        if policy is None:
            raise ValueError("this learner has no reference model; construct it with reference=True or a path")
        offsets = action_offsets(trajectories)
        results = torch.zeros(2, int(offsets[-1]), device=self.device)
        for batch in self._cut(action_rows(trajectories)):
            logprobs, entropies = self._score(policy, batch, self.temperature)
            index = self._tensor(batch.index)
            results[0, index], results[1, index] = logprobs, entropies
        scores, spread = (_split(row, offsets) for row in results.cpu().numpy())
        return (scores, spread) if entropy else scores

    @torch.no_grad()
    def values(self, trajectories: Sequence[Trajectory]) -> tuple[list[Floats], Floats]:
        """The critic's values.

        Args:
            trajectories: ``E`` of them.

        Returns:
            ``E`` arrays with the value of the state *before* each action token (the output at the position that
            predicts it), and float32 ``[E]`` with the value at each trajectory's last token: of a truncated episode
            that is the state it ended in, to bootstrap from; of a terminated one it means nothing.

        Raises:
            ValueError: There is no critic, or see :func:`trainers.learner.packing.value_rows`.
        """
        critic = self._need_critic()
        offsets = action_offsets(trajectories)
        results = torch.zeros(int(offsets[-1]) + len(trajectories), device=self.device)
        for batch in self._cut(value_rows(trajectories)):
            results[self._tensor(batch.index)] = self._value(critic, batch)
        flat = results.cpu().numpy()
        return _split(flat, offsets), flat[offsets[-1] :]

    # ------------------------------------------------------------------ learning

    def update_actor(
        self, trajectories: Sequence[Trajectory], per_token: Mapping[str, PerToken], loss_fn: PolicyLoss
    ) -> dict[str, float]:
        """One optimizer step on a mini-batch.

        Args:
            trajectories: The mini-batch.
            per_token: What the loss needs for each action token, by name.
            loss_fn: ``(logprobs [n], entropy [n], batch) -> (loss, sums)`` for a micro-batch; ``loss`` is a *sum* of
                tokens' terms, weighted for the whole mini-batch.

        Returns:
            ``loss``, ``entropy`` (mean over the action tokens), ``grad_norm`` (before clipping), ``lr``, ``skipped``,
            ``tokens`` (read by the model, without padding), ``tokens_per_s``, ``padding`` (its share), and
            ``loss_fn``'s sums over the mini-batch.

        Raises:
            ValueError: Numbers do not fit the trajectories or are not finite, or there is no action token.
            FloatingPointError: See :meth:`trainers.learner.optim.Optimizer.step`.
        """
        return self._update_policy(trajectories, per_token, loss_fn, self.temperature)

    def update_critic(
        self, trajectories: Sequence[Trajectory], per_token: Mapping[str, PerToken], loss_fn: ValueLoss
    ) -> dict[str, float]:
        """One optimizer step of the critic; as :meth:`update_actor` with ``loss_fn(values [n], batch)``.

        Returns:
            As :meth:`update_actor`, without ``entropy``.

        Raises:
            ValueError: There is no critic, or as :meth:`update_actor`.
            FloatingPointError: As :meth:`update_actor`.
        """
        critic = self._need_critic()
        assert self.critic_optimizer is not None

        def forward(batch: MicroBatch, tokens: TokenBatch) -> Loss:
            return loss_fn(self._value(critic, batch), tokens)

        return self._update("critic", self.critic_optimizer, trajectories, per_token, forward)

    def update_sft(self, trajectories: Sequence[Trajectory], weights: PerToken | None = None) -> dict[str, float]:
        """One optimizer step of the actor towards the action tokens: cross-entropy, at temperature 1.

        Args:
            trajectories: Token sequences; ``action_mask`` is true on the tokens to learn.
            weights: Of each such token in the sum that is the loss; by default their mean is taken.

        Returns:
            As :meth:`update_actor`, and ``nll``: the tokens' mean, whatever the weights.

        Raises:
            ValueError: As :meth:`update_actor`.
            FloatingPointError: As :meth:`update_actor`.
        """
        total = int(action_offsets(trajectories)[-1])
        if weights is None:
            weights = np.full(total, 1.0 / max(total, 1), np.float32)

        def cross_entropy(logprobs: Tensor, entropy: Tensor, tokens: TokenBatch) -> Loss:
            return -(tokens["weight"] * logprobs).sum(), {"nll": -logprobs.detach().sum() / total}

        return self._update_policy(trajectories, {"weight": weights}, cross_entropy, temperature=1.0)

    def _update_policy(
        self,
        trajectories: Sequence[Trajectory],
        per_token: Mapping[str, PerToken],
        loss_fn: PolicyLoss,
        temperature: float,
    ) -> dict[str, float]:
        total = int(action_offsets(trajectories)[-1])

        def forward(batch: MicroBatch, tokens: TokenBatch) -> Loss:
            logprobs, entropy = self._score(self.actor, batch, temperature)
            loss, sums = loss_fn(logprobs, entropy, tokens)
            return loss, {**sums, "entropy": entropy.detach().sum() / total}

        return self._update("actor", self.actor_optimizer, trajectories, per_token, forward)

    def _update(
        self,
        role: str,
        optimizer: Optimizer,
        trajectories: Sequence[Trajectory],
        per_token: Mapping[str, PerToken],
        forward: Callable[[MicroBatch, TokenBatch], Loss],
    ) -> dict[str, float]:
        started = time.perf_counter()
        offsets = action_offsets(trajectories)
        if not offsets[-1]:
            raise ValueError(f"none of the {len(trajectories)} trajectories has an action token to train on")
        columns = {name: self._tensor(_column(name, given, offsets)) for name, given in per_token.items()}
        columns["trajectory"] = self._tensor(np.repeat(np.arange(len(trajectories)), np.diff(offsets)))
        batches = self._cut(action_rows(trajectories))
        sums: dict[str, Tensor] = {}
        optimizer.zero_grad()
        for batch in batches:
            index = self._tensor(batch.index)
            loss, extra = forward(batch, {name: column[index] for name, column in columns.items()})
            loss.backward()
            for name, value in {**extra, "loss": loss.detach()}.items():
                number = torch.as_tensor(value, dtype=torch.float64, device=self.device).detach()
                sums[name] = sums[name] + number if name in sums else number
        result = {name: float(number) for name, number in sums.items()}
        result |= optimizer.step(f"the {role} on {len(trajectories)} trajectories ({_some_names(trajectories)})")
        tokens = sum(batch.num_tokens for batch in batches)
        result["tokens"] = float(tokens)
        result["tokens_per_s"] = tokens / (time.perf_counter() - started)
        result["padding"] = 1.0 - tokens / sum(batch.input_ids.size for batch in batches)
        return result

    # ------------------------------------------------------------------ weights

    def weights(self) -> dict[str, Tensor]:
        """The actor's ``state_dict``: whole tensors in the model's own naming, copies on the CPU, for engines."""
        copies: dict[int, Tensor] = {}  # tied parameters stay tied
        result = {}
        for name, value in self.actor.lm.state_dict(keep_vars=True).items():
            if id(value) not in copies:
                copies[id(value)] = value.detach().to("cpu", copy=True)
            result[name] = copies[id(value)]
        return result

    # ------------------------------------------------------------------ inside

    def _cut(self, units: list[list[Row]]) -> list[MicroBatch]:
        return micro_batches(units, self.max_tokens_per_micro_batch)

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _score(self, policy: Policy, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        inputs = (self._tensor(array) for array in (batch.input_ids, batch.positions, batch.targets))
        logprobs, entropy = policy(*inputs, temperature)
        return logprobs, entropy

    def _value(self, critic: nn.Module, batch: MicroBatch) -> Tensor:
        values: Tensor = critic(self._tensor(batch.input_ids), self._tensor(batch.positions))
        return values

    def _need_critic(self) -> Critic:
        if self.critic is None:
            raise ValueError("this learner has no critic; construct it with critic=True or a path")
        return self.critic


def _split(flat: Floats, offsets: NDArray[np.int64]) -> list[Floats]:
    return [flat[start:end].copy() for start, end in zip(offsets[:-1], offsets[1:], strict=True)]


def _column(name: str, given: PerToken, offsets: NDArray[np.int64]) -> Floats:
    """One float32 array of all action tokens' numbers, checked against the trajectories."""
    if isinstance(given, np.ndarray) and given.dtype != object and given.ndim == 1:
        if given.size != offsets[-1]:
            raise ValueError(f"per_token[{name!r}] has {given.size} numbers for {offsets[-1]} action tokens")
        flat = given
    else:
        lengths, wanted = [len(part) for part in given], np.diff(offsets).tolist()
        if lengths != wanted:
            number = next((i for i, pair in enumerate(zip(lengths, wanted, strict=False)) if pair[0] != pair[1]), None)
            where = "" if number is None else f"; trajectory {number} has {wanted[number]} action tokens"
            raise ValueError(
                f"per_token[{name!r}] does not fit the {len(wanted)} trajectories: lengths {lengths}{where}"
            )
        flat = np.concatenate(given)
    flat = np.ascontiguousarray(flat, np.float32)
    if not np.isfinite(flat).all():
        token = int(np.flatnonzero(~np.isfinite(flat))[0])
        number = int(np.searchsorted(offsets, token, side="right")) - 1
        raise ValueError(
            f"per_token[{name!r}] is {flat[token]} at action token {token - offsets[number]} of trajectory {number}"
        )
    return flat


def _some_names(trajectories: Sequence[Trajectory], most: int = 5) -> str:
    names = [trajectory.episode_id or "?" for trajectory in trajectories[:most]]
    return ", ".join(names) + (", ..." if len(trajectories) > most else "")
