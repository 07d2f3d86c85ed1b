"""The learner: one set of models in training: a policy, perhaps a critic, perhaps a frozen reference.

The learner is independent of algorithms. It takes numbers for each action token and a loss function, and returns
log-probabilities, entropies, values and weights. Losses are sums of weighted tokens over the whole mini-batch (the
weights come from :func:`trainers.algorithms.losses.base.token_weights`), so an update does not depend on how the
mini-batch is cut into micro-batches or shared among ranks.

With several ranks, every rank calls every method with the same arguments and gets the same results; each computes its
share of the trajectories.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.config.learning import CriticSection
from trainers.config.model import ModelSection
from trainers.config.running import RunSection
from trainers.engines.kernels import keep_few_kernels
from trainers.learner.budget import TokenBudget
from trainers.learner.checkpoint import replace_folder
from trainers.learner.flops import peak_tflops as peak_tflops_of
from trainers.learner.fsdp import Ranks, can_forget, forget, rank_device
from trainers.learner.inputs import (
    Floats,
    PerToken,
    SamplingMasks,
    Sums,
    column,
    some_names,
    split,
)
from trainers.learner.lora import WithoutAdapters, adapter_record, write_adapter
from trainers.learner.memory import free_bytes, give_back_gpu_memory, peak
from trainers.learner.models import Critic, Policy
from trainers.learner.observations import with_means, with_observations
from trainers.learner.optim import Optimizer
from trainers.learner.packing import IDLE, Layout, MicroBatch, Row, action_rows, micro_batches, value_rows
from trainers.learner.scoring import Forward, Scorer, TokenScores, Top, TopScores, UnusedTokens
from trainers.learner.setup import Setup, reads_trees
from trainers.learner.state import LearnerState
from trainers.learner.system_errors import system_errors
from trainers.learner.teachers import unused_of_teacher
from trainers.learner.tensors import write_model
from trainers.learner.top_tokens import TopTokens, top_kl
from trainers.learner.transfer import to_device
from trainers.learner.weight_stream import WeightStream, Which
from trainers.models.memory import Computation
from trainers.models.policy import resolve_device
from trainers.models.shape import shape_of_model
from trainers.models.source import ModelSource, Source
from trainers.section import ActorSection
from trainers.trajectory import Trajectory, action_offsets, observation_offsets

#: Named numbers of a micro-batch's ``n`` action tokens, each ``[n]``: those given to the update, and ``trajectory``,
#: the number of each token's trajectory (all tokens of a trajectory are in one micro-batch, in order).
TokenBatch = Mapping[str, Tensor]
#: A micro-batch's share of the loss, and sums worth reporting (added up over micro-batches and ranks). What an update
#: is to record of each token has ``[n]`` numbers there.
Loss = tuple[Tensor, Mapping[str, Tensor | float]]
PolicyLoss = Callable[[Tensor, Tensor, TokenBatch], Loss]
ValueLoss = Callable[[Tensor, TokenBatch], Loss]


_BARELY = 0.95  #: of the tokens: where trees save less, they do not pay on CUDA


class Learner:
    """The models of one run.

    Args:
        source: The actor: a folder or name that transformers loads, or a model (which is copied).
        model: Precision, device, adapters, attention and compilation. The reference of an actor with adapters is that
            actor without them, which takes no memory.
        run: Division of the work among ranks, threads; its ``seed`` is that of new adapters.
        actor: The actor's optimizer and the size of micro-batches.
        critic: The critic's optimizer; with it there is a critic, whose backbone is a copy of the actor's.
        reference: Whether there is a frozen reference, a copy of the actor.
        teacher: A folder of a model that only scores (``model="teacher"``); it is no part of what is saved.
        total_steps: Updates of the actor until the end of a cosine; of few, ``model.compile=auto`` compiles nothing.
        temperature: Of the log-probabilities, as in sampling (:mod:`trainers.engines.base`).
        unused_token_ids: Ids that no engine samples, because the tokenizer has no token for them. Log-probabilities
            and entropies of actor and reference are over the other ids.
        share_prefixes: Read common prefixes of trajectories once (:mod:`trainers.learner.trees`). Speed
            and memory only. Not with ``model.attn_implementation``, nor for families and rotary embeddings that are not
            known to allow it, which the log says.
        chunk_size: Positions whose logits exist at the same time; ``None`` chooses by the size of the vocabulary (see
            :func:`trainers.learner.logprobs.token_logprobs`). Speed and memory only.

    Raises ``ValueError``: a model that the learner cannot train rightly (see
    :meth:`trainers.models.source.ModelSource.check_head`) or cannot cut as ``run`` says (no process group is
    started then), a cosine without ``total_steps``, or a ``temperature`` that is not above 0 and finite;
    ModuleNotFoundError: adapters without peft.
    """

    def __init__(
        self,
        source: Source,
        model: ModelSection | None = None,
        run: RunSection | None = None,
        actor: ActorSection | None = None,
        critic: CriticSection | None = None,
        *,
        reference: bool = False,
        teacher: str | Path | None = None,
        total_steps: int | None = None,
        temperature: float = 1.0,
        unused_token_ids: Sequence[int] = (),
        share_prefixes: bool = True,
        chunk_size: int | None = None,
    ) -> None:
        model, run, actor = model or ModelSection(), run or RunSection(), actor or ActorSection()
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be above 0 and finite, not {temperature}: logits are divided by it")
        if run.threads is not None:
            torch.set_num_threads(run.threads)
        self.device = rank_device(resolve_device(model.device))
        if self.device.type == "cpu":
            keep_few_kernels()
        origin = ModelSource(source)
        origin.check_head()
        setup = Setup.of(model, run, self.device, origin.config, total_steps)
        self.ranks = Ranks(setup.meshes)
        self.temperature = temperature
        self.peak_tflops = run.peak_tflops or peak_tflops_of(self.device)
        self._sequence = None if setup.meshes is None else setup.meshes.sequence
        without = reference and model.lora_rank > 0  # adapters: the actor itself
        roles = {"actor": True, "reference": reference and not without, "critic": critic is not None}
        made, self._flops = {}, {}
        for role in (role for role, needed in roles.items() if needed):  # one after another: one at a time is half made
            made[role], self._flops[role] = setup.make(role, origin, chunk_size)
        self.actor: Policy = made["actor"]
        self.critic: Critic | None = made.get("critic")
        self.reference: Policy | WithoutAdapters | None = (
            WithoutAdapters(self.actor) if without else made.get("reference")
        )
        self._vocabulary = int(origin.config.get_text_config().vocab_size)
        self._unused = UnusedTokens(unused_token_ids, self.device)
        self.teacher, self._teacher_unused = self._teacher_of(teacher, setup, origin, chunk_size)
        self._model, self._plain = model, origin.plain
        self._forward = Forward(self.device, self._sequence, varlen=setup.varlen)
        self._flat: Layout = "packed" if model.use_remove_padding else "padded"
        self._layout: Layout = "trees" if share_prefixes and reads_trees(model, origin.config) else self._flat
        learning = {"actor": Optimizer(self.actor, actor, total_steps)}
        if self.critic is not None and critic is not None:
            learning["critic"] = Optimizer(self.critic, critic)
        self.actor_optimizer, self.critic_optimizer = learning["actor"], learning.get("critic")
        self._models = [*made.values(), *([] if self.teacher is None else [self.teacher])]
        self._budget = self._budget_of(actor.max_tokens_per_micro_batch, origin, model, run)
        adapters = adapter_record(model, run.seed) if model.lora_rank else None
        self._state = LearnerState(made, learning, adapters, self.ranks)
        self._apart: Ranks | None = None

    # ------------------------------------------------------------------ reading

    @overload
    def logprobs(
        self,
        trajectories: Sequence[Trajectory],
        *,
        model: Scorer = ...,
        entropy: Literal[False] = ...,
    ) -> list[Floats]: ...
    @overload
    def logprobs(
        self, trajectories: Sequence[Trajectory], *, model: Scorer = ..., entropy: Literal[True]
    ) -> tuple[list[Floats], list[Floats]]: ...
    @torch.no_grad()
    def logprobs(
        self,
        trajectories: Sequence[Trajectory],
        *,
        model: Scorer = "actor",
        entropy: bool = False,
    ) -> list[Floats] | tuple[list[Floats], list[Floats]]:
        """Log-probabilities of the action tokens, at the learner's temperature: float32 ``[n_e]`` a trajectory.

        Where a trajectory has its sampling mask (``kept_ids``), they are over the tokens that it keeps: of the actor
        and of the others, so that all are policies of the same actions. With ``entropy`` it returns ``(logprobs,
        entropies)``. Raises ``ValueError``: there is no such model, a context starts with an action token, or one of
        ``unused_token_ids`` is an action.
        """
        scores, _ = self._scores(trajectories, model, None)
        logprobs, entropies = (split(row, action_offsets(trajectories)) for row in scores)
        return (logprobs, entropies) if entropy else logprobs

    @torch.no_grad()
    def top_logprobs(self, trajectories: Sequence[Trajectory], top: Top, *, model: Scorer = "actor") -> TopScores:
        """Log-probabilities as of :meth:`logprobs`, and of ``k`` tokens of the distribution of each action token.

        ``top`` is ``k``, for the most likely tokens; or int32 ``[N, k]``, the ids of some, none where below 0. Those
        that a distribution leaves out are -1 in the result. It takes ``8 N k`` bytes of the device's memory. Raises
        ``ValueError`` as :meth:`logprobs`.
        """
        scores, tokens = self._scores(trajectories, model, top)
        return TopScores(split(scores[0], action_offsets(trajectories)), tokens)

    @torch.no_grad()
    def values(self, trajectories: Sequence[Trajectory]) -> tuple[list[Floats], Floats]:
        """Compute the critic's values.

        Returns for each of ``E`` trajectories the values of the states *before* each action token (the output at the
        position that predicts it), and float32 ``[E]`` with the value at each trajectory's last token: of a truncated
        episode that is the state it ended in, to bootstrap from; of a terminated one it has no meaning. Raises
        ``ValueError``: there is no critic, or see :func:`trainers.learner.packing.value_rows`.
        """
        critic = self._need_critic()
        offsets = action_offsets(trajectories)
        results = torch.zeros(int(offsets[-1]) + len(trajectories), device=self.device)
        units = value_rows(trajectories)

        def value() -> None:
            for batch in self._cut(units):
                results[self._tensor(batch.index)] = self._forward.values(critic, batch)

        self._budget.attempt(value, self._forget, _largest(units))
        flat = self.ranks.add(results).cpu().numpy()
        return split(flat, offsets), flat[offsets[-1] :]

    # ------------------------------------------------------------------ learning

    def update_actor(
        self,
        trajectories: Sequence[Trajectory],
        per_token: Mapping[str, PerToken],
        loss_fn: PolicyLoss,
        record: Sequence[str] = (),
        observations: PerToken | None = None,
        teacher: TopTokens | None = None,
    ) -> dict[str, Any]:
        """Take one optimizer step on a mini-batch.

        ``per_token`` is what the loss needs for each action token, by name. ``loss_fn`` is ``(logprobs [n],
        entropy [n], batch) -> (loss, sums)`` for a micro-batch; ``loss`` is a *sum* of tokens' terms, weighted for the
        whole mini-batch, and the names below are taken. ``record`` names numbers of each token to return as well,
        float32 ``[N]``: ``loss_fn``'s by their names, and this forward pass's ``token_logprobs`` and ``token_entropy``.
        ``observations`` are weights of the observation tokens (:func:`~trainers.trajectory.observation_offsets`): the
        weighted sum of their cross-entropy, at temperature 1, is added to the loss, in the same forward pass. With
        ``teacher``, ``batch`` has ``teacher_kl``: the KL of each token's distribution from the teacher's, over these
        tokens and a remainder (:func:`~trainers.learner.top_tokens.top_kl`), with its gradient.

        Returns ``loss``, ``entropy`` (mean over the action tokens), ``grad_norm`` (before clipping), ``lr``, ``tokens``
        (of the rows, without padding; shared prompts count once a sibling), ``tokens_per_s`` (of all ranks),
        ``padding`` (its share of what the model computes), ``tflops`` (model TFLOP/s of a rank, see
        :mod:`trainers.learner.flops`), ``mfu`` (its share of the peak, where that is known), ``peak_gib`` (the most
        memory that this process ever had), and ``loss_fn``'s sums over the mini-batch. With ``observations`` also
        ``observation_loss`` (what is added to the loss), ``observation_nll`` (their mean cross-entropy, in nats; left
        out without any), ``observation_share`` (their share of the tokens with a loss) and ``observation_gradient``
        (see :func:`trainers.learner.observations.with_observations`).

        Raises ``ValueError``: numbers do not fit the trajectories or are not finite, or there is no action token;
        FloatingPointError: see :meth:`trainers.learner.optim.Optimizer.step`.
        """
        return self._update_policy(trajectories, per_token, loss_fn, self.temperature, record, observations, teacher)

    def update_critic(
        self, trajectories: Sequence[Trajectory], per_token: Mapping[str, PerToken], loss_fn: ValueLoss
    ) -> dict[str, float]:
        """Take one optimizer step of the critic; as :meth:`update_actor` with ``loss_fn(values [n], batch)``.

        Returns and raises as that does, without ``entropy``. Raises ``ValueError`` also where there is no critic.
        """
        critic = self._need_critic()
        assert self.critic_optimizer is not None

        def forward(batch: MicroBatch) -> tuple[Tensor]:
            return (self._forward.values(critic, batch),)

        units = action_rows(trajectories)
        return self._update("critic", self.critic_optimizer, trajectories, per_token, forward, loss_fn, units)

    def update_sft(self, trajectories: Sequence[Trajectory], weights: PerToken | None = None) -> dict[str, float]:
        """Take one optimizer step of the actor towards the action tokens: cross-entropy, at temperature 1.

        ``weights`` are of each such token in the sum that is the loss; by default their mean is taken. Returns and
        raises as :meth:`update_actor`, and ``nll``: the tokens' mean, whatever the weights.
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
        record: Sequence[str] = (),
        observations: PerToken | None = None,
        teacher: TopTokens | None = None,
    ) -> dict[str, Any]:
        self._unused.refuse(trajectories)
        total, masks = int(action_offsets(trajectories)[-1]), SamplingMasks(trajectories)
        weights, offsets = None, observation_offsets(trajectories)
        if observations is not None:
            weights = column("observations", observations, offsets, self.device, "observation")
        if teacher is not None and len(teacher.ids) != total:
            raise ValueError(f"the teacher scored {len(teacher.ids)} states for {total} action tokens")
        ids = None if teacher is None else teacher.ids

        def forward(batch: MicroBatch) -> tuple[Tensor, ...]:
            models = self.actor, batch, temperature, masks, self._unused
            outputs = self._forward.scores(*models, observed=weights is not None, top=ids)
            actions = len(outputs[0]) - batch.observed
            made = [values[:actions] for values in outputs[:2]]
            if teacher is not None:
                own = teacher[batch.index[:actions]]
                made.append(top_kl(outputs[3], self._tensor(own.logprobs), outputs[2]))
            if weights is not None:
                made += [outputs[0][actions:], weights[self._tensor(batch.index[actions:] - total)]]
            return tuple(made)

        def loss_and_entropy(logprobs: Tensor, entropy: Tensor, *others: Any) -> Loss:
            *observed, tokens = others
            if teacher is not None:
                tokens = {**tokens, "teacher_kl": observed.pop(0)}
            loss, sums = loss_fn(logprobs, entropy, tokens)
            own = {"entropy": entropy.detach().sum() / total}
            if record:
                own |= {"token_logprobs": logprobs.detach(), "token_entropy": entropy.detach()}
            if observed:
                loss, more = with_observations(loss, logprobs, observed[0], observed[1], temperature)
                own |= more
            return loss, {**sums, **own}

        optimizer, observed = self.actor_optimizer, weights is not None
        units = action_rows(trajectories, observations=observed)
        result = self._update("actor", optimizer, trajectories, per_token, forward, loss_and_entropy, units, record)
        return with_means(result, total, int(offsets[-1])) if observed else result

    def _update(
        self,
        role: str,
        optimizer: Optimizer,
        trajectories: Sequence[Trajectory],
        per_token: Mapping[str, PerToken],
        forward: Callable[[MicroBatch], tuple[Tensor, ...]],
        loss_fn: Callable[..., Loss],
        units: list[list[Row]],
        record: Sequence[str] = (),
    ) -> dict[str, Any]:
        started = time.perf_counter()
        offsets = action_offsets(trajectories)
        if not offsets[-1]:
            raise ValueError(f"none of the {len(trajectories)} trajectories has an action token to train on")
        columns = {name: column(name, values, offsets, self.device) for name, values in per_token.items()}
        columns["trajectory"] = self._tensor(np.repeat(np.arange(len(trajectories)), np.diff(offsets)))

        def accumulate() -> tuple[Sums, Tensor]:
            optimizer.zero_grad()
            sums, records = Sums(), torch.zeros(len(record), int(offsets[-1]), device=self.device)
            for batch in self._cut(units):
                self._learn(batch, columns, forward, loss_fn, sums, dict(zip(record, records, strict=True)))
            return sums, records

        sums, records = self._budget.attempt(accumulate, self._forget, _largest(units))
        result: dict[str, Any] = self.ranks.add_numbers(sums.read())
        outputs = sum(len(row.index) for unit in units for row in unit)
        flops = self._flops[role].of(result["tokens"], result.pop("squares"), float(outputs))
        result["padding"] = 1.0 - result.pop("real") / result["padding"]
        result |= optimizer.step(f"the {role} on {len(trajectories)} trajectories ({some_names(trajectories)})")
        if self.device.type == "cuda":
            # The optimizer's step counts, too. Not the whole device: an engine may be capturing a graph there.
            torch.cuda.current_stream(self.device).synchronize()
        seconds = time.perf_counter() - started
        result["tokens_per_s"] = result["tokens"] / seconds
        result["tflops"] = flops / seconds / self.ranks.world / 1e12
        if self.peak_tflops is not None:
            result["mfu"] = result["tflops"] / self.peak_tflops
        if record:
            result |= zip(record, self.ranks.add(records).cpu().numpy(), strict=True)
        return result | peak(self.device)

    def _learn(
        self,
        batch: MicroBatch,
        columns: Mapping[str, Tensor],
        forward: Callable[[MicroBatch], tuple[Tensor, ...]],
        loss_fn: Callable[..., Loss],
        sums: Sums,
        records: Mapping[str, Tensor],
    ) -> None:
        """Add a micro-batch's gradient to the others', and its numbers to ``sums``; on CUDA the host waits for nothing.

        ``records`` are float32 ``[N]``, by the names of what they are to hold of each action token.
        """
        outputs = forward(batch)
        if batch is IDLE:  # nothing to learn here, but the other ranks' gradients pass through this rank
            torch.stack([output.sum() for output in outputs]).sum().backward()
            return
        index = self._tensor(batch.index[: len(batch.index) - batch.observed])
        loss, extra = loss_fn(*outputs, {name: column[index] for name, column in columns.items()})
        loss.backward()
        for name, row in records.items():
            row[index] = extra[name].float()  # type: ignore[union-attr]
        sums.add({"loss": loss, **{name: value for name, value in extra.items() if name not in records}})
        sums.add({"tokens": batch.num_tokens, "padding": batch.input_ids.size})
        sums.add({"squares": batch.squares, "real": batch.real})

    # ------------------------------------------------------------------ weights

    def publication(
        self, which: Which, dtype: torch.dtype | None = None, *, snapshot: bool = False, finite: bool = True
    ) -> WeightStream:
        """Return the actor's current weights, for engines; see :class:`~trainers.learner.weight_stream.WeightStream`.

        All ranks call this together. Raises ``ValueError``: there is no adapter; or with ``finite``, a value is not
        finite.
        """
        if which != "weights":
            self._need_lora()
        lm, optimizer = self.actor.lm, self.actor_optimizer
        return WeightStream(lm, self.ranks, which, dtype, snapshot=snapshot, finite=finite, optimizer=optimizer)

    def free_cache(self) -> None:
        """Give a GPU's memory that PyTorch keeps for later back to the driver, so that an engine can take it."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def weights(self, *, which: Which = "weights") -> dict[str, Tensor]:
        """Copy whole tensors to the CPU, by all their names. All ranks call this together; the first has them.

        ``which``: see :data:`~trainers.learner.weight_stream.Which`. Raises ``ValueError``: there is no adapter.
        """
        copies: dict[str, Tensor] = {}
        for names, value in self.publication(which, finite=False).read(self.ranks):
            copies |= dict.fromkeys(names, value.to("cpu", copy=True))
        return copies

    def export_hf(self, path: str | Path, tokenizer: Any) -> None:
        """Write the actor as a folder that transformers, vLLM and SGLang load; it appears whole, replacing any old one.

        Adapters are merged. With it goes ``tokenizer``, anything with ``save_pretrained``. All ranks call this
        together.
        """
        self._export(tokenizer, self.ranks, snapshot=False)(path)

    def export_adapter(self, path: str | Path) -> None:
        """Write the adapter alone as :meth:`export_hf` does, for peft, vLLM, SGLang; ``ValueError``: there is none."""
        section, state = self._need_lora(), self.weights(which="adapter")
        with replace_folder(path, self.ranks) as folder:
            if self.ranks.first:
                write_adapter(folder, self.actor.lm, state, section, str(self.actor.lm.config.name_or_path))

    def save(self, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write everything that the next update depends on: models, optimizers, schedules.

        With it go torch's random state on the CPU, for what else in the process draws from it (the learner does not),
        and ``extra``, as JSON, which :meth:`load` returns. The folder appears whole, replacing any old one: a kill at
        any moment leaves the old or the new one, and :meth:`load` finds it. What is frozen (a reference, the matrices
        under adapters) is written once and linked into later checkpoints.
        """
        self._state.writer(extra)(path)

    def prepare_save(self, extra: Mapping[str, Any] | None = None) -> Callable[[str | Path], None]:
        """Prepare a save for another thread, while training continues: take a copy on the CPU.

        The returned function writes the state as it is now, in whichever thread it is called; all ranks call it with
        the same path, and what was prepared on all of them in the same order.
        """
        return self._state.writer(extra, self._ranks_apart())

    def prepare_export(self, tokenizer: Any) -> Callable[[str | Path], None]:
        """Prepare an export as :meth:`prepare_save` prepares a save, for :meth:`export_hf`."""
        return self._export(tokenizer, self._ranks_apart(), snapshot=True)

    def load(self, path: str | Path) -> dict[str, Any]:
        """Resume from what :meth:`save` wrote, on the same or on another number of ranks, cut in another way or not.

        On the CPU, with as many threads and ranks, the next update is the same to the last bit. Returns the ``extra``
        of :meth:`save`. Raises FileNotFoundError: there is no checkpoint; DamagedError: a file of it is damaged or
        missing, and nothing was loaded; ``ValueError``: it holds other models, adapters or shapes than this learner
        has, has a file that is not its own, or is of another format.
        """
        return self._state.load(path)

    def _export(self, tokenizer: Any, ranks: Ranks, *, snapshot: bool) -> Callable[[str | Path], None]:
        stream = self.publication("weights", snapshot=snapshot, finite=False)

        def write(path: str | Path) -> None:
            tensors = stream.read(ranks)
            with replace_folder(path, ranks) as folder:
                try:
                    if ranks.first and self._plain:
                        write_model(folder, self.actor.lm, tokenizer, stream, tensors)
                    elif ranks.first:  # transformers renames or joins tensors as it writes them, all at once
                        state = {name: value.cpu() for names, value in tensors for name in names}
                        with system_errors(folder):
                            self.actor.lm.save_pretrained(folder, state_dict=state)
                            tokenizer.save_pretrained(folder)
                finally:
                    deque(tensors, maxlen=0)  # to the end, whatever happens: all ranks read together

        return write

    def _ranks_apart(self) -> Ranks:
        if self._apart is None:
            self._apart = self.ranks.apart()
        return self._apart

    def _need_lora(self) -> ModelSection:
        if not self._model.lora_rank:
            raise ValueError("this learner has no adapter; construct it with ModelSection(lora_rank=...)")
        return self._model

    # ------------------------------------------------------------------ inside

    def _cut(self, units: list[list[Row]]) -> list[MicroBatch]:
        """Cut this rank's micro-batches, as many as every other rank has."""
        budget = self._budget.tokens * (1 if self._sequence is None else self._sequence.size())
        cuts = micro_batches(units, budget, self.ranks.count, self._layout)
        if self._layout == "trees" and self.device.type == "cuda":  # whose attention of rows is the faster one
            read, tokens = np.sum([(batch.real, batch.num_tokens) for share in cuts for batch in share] or [(0, 0)], 0)
            if read > _BARELY * tokens:
                cuts = micro_batches(units, budget, self.ranks.count, self._flat)
        own = cuts[self.ranks.number]
        return own + [IDLE] * (max(map(len, cuts)) - len(own))

    def _budget_of(self, tokens: int | None, origin: ModelSource, model: ModelSection, run: RunSection) -> TokenBudget:
        learns = [optimizer for optimizer in (self.actor_optimizer, self.critic_optimizer) if optimizer is not None]
        computation = Computation.of(model, run, self.device.type)
        by_memory = tokens is None and free_bytes(self.device) is not None
        shape = shape_of_model(origin.skeleton()) if by_memory else None

        def soon() -> int:
            assert shape is not None
            gradients = sum(optimizer.gradient_bytes(self.device) for optimizer in learns)
            return gradients + (0 if self.ranks.meshes is None else computation.gathered_bytes(shape))

        recovers = all(map(can_forget, self._models))
        return TokenBudget(tokens, shape, computation, self.ranks, self.device, soon, recovers)

    def _forget(self) -> None:
        """Forget a pass that ran out of memory, and its gradients."""
        for module in self._models:
            forget(module)
        give_back_gpu_memory(self.device)

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return to_device(array, self.device)

    def _scores(self, trajectories: Sequence[Trajectory], model: Scorer, top: Top | None) -> tuple[Floats, TopTokens]:
        """Return log-probabilities and entropies of action tokens, ``[2, N]``, and the tokens of ``top``."""
        policy = {"actor": self.actor, "reference": self.reference, "teacher": self.teacher}[model]
        unused = self._teacher_unused if model == "teacher" else self._unused
        if policy is None:
            argument = "reference=True" if model == "reference" else "teacher=FOLDER"
            raise ValueError(f"this learner has no {model} model; construct it with {argument}")
        self._unused.refuse(trajectories)
        collected = TokenScores(int(action_offsets(trajectories)[-1]), top, self.device)
        if isinstance(top, np.ndarray):
            top = np.where(top < self._vocabulary, top, np.int32(-1))
        masks, units = SamplingMasks(trajectories), action_rows(trajectories)

        def score() -> None:
            for batch in self._cut(units):
                collected.put(batch, self._forward.scores(policy, batch, self.temperature, masks, unused, top=top))

        self._budget.attempt(score, self._forget, _largest(units))
        return collected.add_up(self.ranks)

    def _teacher_of(
        self, folder: str | Path | None, setup: Setup, actor: ModelSource, chunk_size: int | None
    ) -> tuple[Policy | None, UnusedTokens]:
        """Make the teacher, with the ids that its distributions leave out. ``ValueError``: it cannot score these."""
        if folder is None:
            return None, UnusedTokens((), self.device)
        source = ModelSource(folder)
        source.check_head()
        setup.check_teacher(source, actor)
        unused = unused_of_teacher(source, self._vocabulary, self._unused.ids.tolist())
        model, _ = setup.make("teacher", source, chunk_size)
        return model, UnusedTokens(unused, self.device)

    def _need_critic(self) -> Critic:
        if self.critic is None:
            raise ValueError("this learner has no critic; construct it with critic=CriticSection()")
        return self.critic


def _largest(units: Sequence[Sequence[Row]]) -> int:
    """Return the tokens of the largest trajectory, which stays whole."""
    return max((sum(len(row.tokens) for row in unit) for unit in units), default=0)
