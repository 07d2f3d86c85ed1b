"""verl (0.9): an agent loop for any textenv, and estimators that see its turn rewards. See docs/adapters/verl.md.

``actor_rollout_ref.model.external_lib=trainers.integrations.verl`` registers the agent loop ``textenv`` (the rows'
``agent_name``) and the advantage estimator ``textenv_turn_grpo`` (``algorithm.adv_estimator``) in every process.

A renderer (:class:`~trainers.rollout.renderer.Renderer`) renders the opening once, and after each reply only the new
messages. A response ends with a sampled token, so a reward never lands on a masked token, where verl's GAE would lose
it.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from itertools import pairwise
from typing import Any
from uuid import uuid4

import numpy as np
import ray
import torch
from omegaconf import OmegaConf
from verl.experimental.agent_loop import agent_loop
from verl.trainer.ppo.core_algos import register_adv_est
from verl.utils.profiler import simple_timer

from textenvs.env import EnvironmentFailure
from textenvs.integrations import EpisodeSpec, Session, SpecError
from textenvs.integrations.rows import same_messages
from textenvs.integrations.session import several_conversations, several_roles
from textenvs.messages import Messages

from ..algorithms.batch import ActionBatch, Bools
from ..algorithms.estimators import TurnGRPO
from ..engines.base import Generation
from ..rollout.environments import tools_of
from ..rollout.episode_tokens import EpisodeTokens
from ..rollout.renderer import Renderer
from ..trajectory import Status
from .context_rows import context_rows

logger = logging.getLogger(__name__)

#: Estimators of verl that are right for several outputs of one episode: ``grpo`` takes the last output of each and
#: gives the others its advantage, ``gae`` compares no episodes.
SHARED = ("grpo", "gae")
#: Stop reasons of verl's servers for a reply that a weight update cut short.
_ABORTED = ("aborted", "abort")
#: Their counts for each reply.
_COUNTS = ("spec_num_draft_tokens", "spec_num_accepted_tokens", "spec_num_verify_steps")


class EpisodeFailedError(RuntimeError):
    """A simulator, judge or server gave up; verl's default trainer leaves the episode out."""


class TextEnvOutput(agent_loop.AgentLoopOutput):  # type: ignore[misc]
    """verl's output of an agent loop, with each turn's reward where the turn ends."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as verl names them; ``rm_scores`` has the turn rewards instead of their sum at the end."""
        output: dict[str, Any] = super().as_dict()
        output["rm_scores"] = rewards_at_turn_ends(self.extra_fields, len(self.response_mask))
        return output


def rewards_at_turn_ends(fields: Mapping[str, Any], length: int) -> torch.Tensor:
    """Place ``turn_scores`` at the ends of ``turn_spans``, float32 ``[length]``, zero elsewhere."""
    rewards = torch.zeros(length, dtype=torch.float32)
    for (_, end), score in zip(fields["turn_spans"], fields["turn_scores"], strict=True):
        rewards[end - 1] = score
    return rewards


class _Served:
    """Reports of the server with its replies; ``with_logprobs``: each sampled token must have one."""

    def __init__(self, with_logprobs: bool) -> None:
        self.with_logprobs = with_logprobs
        self.metrics: dict[str, Any] = {"num_preempted": -1}
        self.fields: dict[str, Any] = {}  #: the weights of the first and the last reply, and counts
        self.routed_experts: list[Any] = []  #: of each turn, from the start of its context

    def generation(self, output: Any, room: int) -> Generation:
        """Return a server's reply, cut to ``room`` tokens."""
        turn = len(self.routed_experts)
        if output.stop_reason in _ABORTED:
            raise EpisodeFailedError(f"the server aborted the reply of turn {turn}")
        ids = np.array(output.token_ids[:room], np.int32)
        if not ids.size:
            raise EpisodeFailedError(f"the server returned no token for turn {turn}")
        logprobs = np.zeros(len(ids), np.float32)
        if self.with_logprobs:
            if not output.log_probs:
                raise RuntimeError("rollout.calculate_log_probs is set, and the server returned no log-probabilities")
            logprobs = np.array(output.log_probs[: len(ids)], np.float32)
        self.routed_experts.append(output.routed_experts)
        for name, value in output.extra_fields.items():
            if name in self.fields and name in _COUNTS:
                self.fields[name] += value
            elif name not in self.fields or (name == "max_global_steps" and value is not None):
                self.fields[name] = value
        if output.num_preempted is not None:
            self.metrics["num_preempted"] = max(self.metrics["num_preempted"], 0) + output.num_preempted
        return Generation(ids, logprobs, np.zeros(len(ids), np.int32), "stop")


def shared_rewards(turn_rewards: Sequence[float], turns: Sequence[int]) -> list[float]:
    """Return what is paid to each of ``turns``, those of one context, so that all contexts share the episode's returns.

    A turn is paid all rewards of the episode from it up to the next of these turns, whatever contexts earned them; so
    the sum from it on is the episode's reward-to-go. The first is also paid what was earned before it: every context
    has the whole return. Of an episode of one context these are its turn rewards.
    """
    bounds = [0, *turns[1:], len(turn_rewards)]
    return [math.fsum(turn_rewards[start:end]) for start, end in pairwise(bounds)]


@agent_loop.register("textenv")
class TextEnvAgentLoop(agent_loop.AgentLoopBase):  # type: ignore[misc]
    """Plays the episode that a row's ``extra_info["textenv"]`` describes (see ``textenvs rows verl``).

    A reply has at most ``max_reply_tokens``; ``None`` is what is left of ``rollout.response_length``. An episode is
    played at most ``attempts`` times, when a simulator, judge or server gives up. ``environments``, by id, are what
    rows may name and set beyond the environments that ship and their harmless options (docs/security.md); everything
    else is verl's own. Raises ``ValueError``: a limit below 1, or ``rollout.multi_turn`` limits turns: the environment
    does, and judges the last. RendererError: the chat template cannot be continued turn by turn; says why.

    An episode of several contexts (compaction, sub-agents, edited history) is an output for each, in the order of their
    last use, with :func:`shared_rewards`; verl's default trainer takes them with the estimators :data:`SHARED`.
    """

    def __init__(
        self,
        *arguments: Any,
        max_reply_tokens: int | None = None,
        attempts: int = 2,
        environments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.environments = environments or {}
        for name, number in (
            ("attempts", attempts),
            ("max_reply_tokens", 1 if max_reply_tokens is None else max_reply_tokens),
        ):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"textenv agent loop: {name} must be an integer of at least 1, not {number!r}")
        multi_turn = self.rollout_config.multi_turn
        for name in ("max_assistant_turns", "max_user_turns"):
            if multi_turn.get(name) is not None:
                raise ValueError(
                    f"rollout.multi_turn.{name} means nothing to the textenv agent loop: leave it null, and limit the "
                    f"environment when the rows are written (`textenvs rows verl ID {name}=N ...`)"
                )
        self.max_reply_tokens, self.attempts = max_reply_tokens, attempts
        template_kwargs = self.apply_chat_template_kwargs or {}
        if OmegaConf.is_config(template_kwargs):
            template_kwargs = OmegaConf.to_container(template_kwargs, resolve=True)
        self.renderer = _renderer(self.tokenizer, json.dumps(template_kwargs, sort_keys=True))

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> TextEnvOutput | list[TextEnvOutput]:
        """Play the row's episode; ``sampling_params`` are verl's, for each reply.

        ``extra_fields`` has ``turn_scores`` and ``turn_spans`` (one a turn of the context; spans are positions in
        ``response_ids``, the end not included), ``textenv`` (the episode's outcome), and the server's weight versions.
        Raises SpecError: the row does not say which episode it is, or its prompt is not how that one opens;
        EpisodeFailedError: all attempts failed; ``ValueError``: the opening is longer than ``rollout.prompt_length``,
        or leaves no room for a reply; or the episode has several contexts or roles, and verl cannot train on it so.
        """
        about = row.get("extra_info")
        if not isinstance(about, Mapping) or "textenv" not in about:
            raise SpecError(
                "the row has no extra_info.textenv, which says what episode to play; `textenvs rows verl` writes such "
                "rows"
            )
        spec = EpisodeSpec.from_row(about["textenv"], "extra_info.textenv", self.environments)
        for attempt in range(1, self.attempts + 1):
            try:
                session, opening = await Session.aof(spec, contexts=True)
                async with aclosing(session):
                    if reason := several_roles(session.env):
                        raise ValueError(f"{spec.env} {reason}: verl trains one; use `python -m trainers.ppo`")
                    if reason := several_conversations(session.env):
                        self._check_several(f"{spec.env} {reason}", row)
                    tokens, served, out_of_room = await self._play(spec, session, opening, sampling_params, row)
                    return self._outputs(spec, session, tokens, served, attempt, row, out_of_room=out_of_room)
            except (EpisodeFailedError, EnvironmentFailure) as failure:
                logger.warning("%s seed %d, attempt %d: %s", spec.env, spec.seed, attempt, failure)
                why = failure
        raise EpisodeFailedError(f"{spec.env} seed {spec.seed} failed {self.attempts} times, the last with: {why}")

    async def _play(
        self,
        spec: EpisodeSpec,
        session: Session,
        opening: Messages,
        sampling_params: dict[str, Any],
        row: Mapping[str, Any],
    ) -> tuple[EpisodeTokens, _Served, bool]:
        """Play an episode from its opening to its end, or to the end of its room: ``True``."""
        if "raw_prompt" in row and not same_messages(row["raw_prompt"], opening):
            raise SpecError(
                f"the row's prompt is not what {spec.env} opens with at seed {spec.seed}: the rows were written with "
                "another version or other data; write them again with `textenvs rows verl`"
            )
        tokens = EpisodeTokens(self.renderer, opening, tools=tools_of(session.env))
        served = _Served(bool(sampling_params.get("logprobs")))
        self._check_opening(tokens.context_size)
        # One a trajectory, so that its turns go to one server; a fixed one where verl is to be deterministic.
        fixed = self.rollout_config.get("full_determinism")
        request_id = f"det-{row.get('priority', 0)}" if fixed else uuid4().hex
        while (room := self._room(tokens)) > 0:
            with simple_timer("generate_sequences", served.metrics):
                output = await self.server_manager.generate(
                    request_id=request_id,
                    prompt_ids=tokens.context,
                    sampling_params=self._sampling(sampling_params, room),
                )
            text = tokens.reply(served.generation(output, room))
            with simple_timer("tool_calls", served.metrics):
                turn = await session.areply(text)
            session.check()
            tokens.reward(turn.reward, turn.info["terms"])
            if turn.done:
                return tokens, served, False
            tokens.observe(session.messages)
        return tokens, served, True

    def _check_opening(self, size: int) -> None:
        """Raise ``ValueError`` where the opening is too long."""
        if size > self.rollout_config.prompt_length:
            raise ValueError(
                f"the opening takes {size} tokens, and rollout.prompt_length is "
                f"{self.rollout_config.prompt_length}: raise data.max_prompt_length, or leave such rows out with "
                "data.filter_overlong_prompts=True"
            )
        if size >= self._longest:
            raise ValueError(
                f"the opening takes {size} tokens, and rollout.max_model_len is {self._longest}: there is no room for "
                "a reply"
            )

    @property
    def _longest(self) -> int:
        """Number of tokens that a context may have, its prompt included."""
        both = int(self.rollout_config.prompt_length) + int(self.rollout_config.response_length)
        longest = self.rollout_config.get("max_model_len")
        return both if longest is None else min(both, int(longest))

    def _room(self, tokens: EpisodeTokens) -> int:
        """Return how many tokens the next reply may have, in its context; 0 or less: none."""
        response = tokens.context_size - tokens.prompt_size
        return min(int(self.rollout_config.response_length) - response, self._longest - tokens.context_size)

    def _check_several(self, reason: str, row: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` where verl does not train on several outputs of one episode, or not rightly."""
        estimator = str(self.config.algorithm.adv_estimator)
        if estimator not in SHARED:
            raise ValueError(
                f"{reason}: algorithm.adv_estimator={estimator} would count each as an episode of the group; use "
                f"{' or '.join(SHARED)}, or `python -m trainers.ppo`"
            )
        if "session_id" not in row:  # which only the default trainer's worker gives
            raise ValueError(
                f"{reason}: only verl's default trainer (trainer.use_v1=True) takes several outputs of an episode; use "
                "it, or `python -m trainers.ppo`"
            )

    def _outputs(
        self,
        spec: EpisodeSpec,
        session: Session,
        tokens: EpisodeTokens,
        served: _Served,
        attempt: int,
        row: Mapping[str, Any],
        *,
        out_of_room: bool,
    ) -> TextEnvOutput | list[TextEnvOutput]:
        """Build verl's outputs of an episode: one for each context, the one that it ended in last."""
        last = session.turns[-1]
        trajectory = tokens.finish(terminated=True, truncated=False, status=Status.COMPLETED)  # up to the last reply
        rows = context_rows(trajectory)
        if len(rows) > 1:
            self._check_several(f"{spec.env}: an episode has {len(rows)} contexts", row)
        ended = {"terminated": float(last.terminated), "truncated": float(last.truncated or out_of_room)}
        about = {
            "env": spec.env,
            "stop": "response_length" if out_of_room else session.stop,
            **ended,
            "turn_rewards": session.turn_rewards,
            "terms": [dict(turn.info["terms"]) for turn in session.turns],
            "metrics": last.metrics,
            "attempts": attempt,
        }
        fields = {
            **served.fields,
            "textenv": about,
            # verl needs the same keys from every environment; it reports their means in validation.
            "reward_extra_info": ended,
        }
        outputs = []
        for context in rows:
            turns, experts = context.turns, served.routed_experts[context.turns[-1]]
            span, final = context.completion, context is rows[-1]
            turn_id = trajectory.turn_id[span]
            spans = [
                [int(places[0]), int(places[-1]) + 1] for turn in turns for (places,) in [(turn_id == turn).nonzero()]
            ]
            output = TextEnvOutput(
                prompt_ids=trajectory.token_ids[context.prompt].tolist(),
                response_ids=trajectory.token_ids[span].tolist(),
                response_mask=trajectory.action_mask[span].astype(int).tolist(),
                response_logprobs=trajectory.logprobs[span].tolist() if served.with_logprobs else None,
                routed_experts=None if experts is None else experts[: span.stop - context.prompt.start],
                reward_score=session.reward,
                num_turns=2 * len(session.turns),  # as verl counts: the prompt is one, and so is each observation
                metrics=served.metrics if final else {},
                extra_fields={
                    **fields,
                    "turn_scores": shared_rewards(session.turn_rewards, turns),
                    "turn_spans": spans,
                    "turns": turns,
                },
            )
            outputs.append(output)
        return outputs if len(outputs) > 1 else outputs[0]

    def _sampling(self, params: dict[str, Any], remaining: int) -> dict[str, Any]:
        """Return the sampling of one reply. Without ``max_tokens``, verl's servers would use another turn's length."""
        requested = params.get("max_tokens", params.get("max_new_tokens"))
        limits = [remaining, *(limit for limit in (requested, self.max_reply_tokens) if limit is not None)]
        sampling = {name: value for name, value in params.items() if name != "max_new_tokens"}
        stops = dict.fromkeys([*(params.get("stop_token_ids") or ()), *self.renderer.stop_token_ids])
        return {**sampling, "max_tokens": min(limits), "stop_token_ids": list(stops)}


@lru_cache(maxsize=4)
def _renderer(tokenizer: Any, template_kwargs: str) -> Renderer:
    """Build the renderer, one a tokenizer: its proof takes longer than an episode's rendering."""
    renderer = Renderer(tokenizer, template_kwargs=json.loads(template_kwargs))
    if renderer.rewrites_history:
        logger.warning(
            "the chat template rewrites earlier turns (drops reasoning or trims replies, say), and verl's sequences "
            "only grow: what was sampled stays as it was, as in verl's own loops"
        )
        renderer.rewrites_history = False
    return renderer


class TextEnvAgentLoopWorker(agent_loop.AgentLoopWorker):  # type: ignore[misc]
    """verl's worker, with each turn's reward where the turn ends in ``rm_scores``.

    For verl's trainers that make padded batches (``trainer.use_v1=False``, one-step-off and fully asynchronous ones),
    which put an episode's sum at its end. The default trainer needs none of this.
    """

    def _postprocess(self, inputs: list[Any], *arguments: Any, **options: Any) -> Any:
        batch = super()._postprocess(inputs, *arguments, **options)
        if "rm_scores" in batch.batch.keys():  # noqa: SIM118  (a TensorDict is no dict)
            for row, output in enumerate(inputs):
                if "turn_spans" in output.extra_fields:  # an episode of another agent loop has none
                    length = batch.batch["rm_scores"].shape[1]
                    batch.batch["rm_scores"][row] = rewards_at_turn_ends(output.extra_fields, length)
        return batch


class TextEnvAgentLoopManager(agent_loop.AgentLoopManager):  # type: ignore[misc]
    """verl's manager, with these workers (``rollout.agent.agent_loop_manager_class``)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.agent_loop_workers_class = ray.remote(TextEnvAgentLoopWorker)
        super().__init__(*arguments, **options)


# ------------------ advantages of turns

#: Of ``algorithm.textenv``, as in :class:`trainers.algorithms.estimators.TurnGRPO`.
_OPTIONS = frozenset({"baseline", "zero_pad", "outcome_mix"})


def action_batch(token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any) -> ActionBatch:
    """Convert a padded batch of verl to turns of action tokens; a turn is a run of the mask.

    A turn earns the rewards from its first token up to the next turn's, a KL penalty in them, too; rewards before the
    first turn are the first one's. Every episode counts as terminated, because verl does not say which were truncated.
    ``token_level_rewards`` and ``response_mask`` are ``[B, L]``, ``index`` ``[B]``: the same for the same prompt.
    """
    if index is None:
        raise ValueError("a group estimator needs the prompts' uid, and verl's batch has none")
    mask = _numpy_mask(response_mask)
    rewards = token_level_rewards.detach().cpu().numpy().astype(np.float64)
    starts = mask & ~np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
    turn_of = np.maximum(np.cumsum(starts, axis=1) - 1, 0)
    turns = starts.sum(axis=1)
    turn_offsets = np.concatenate([[0], np.cumsum(turns)])
    acted = turns > 0
    of_batch = (turn_of + turn_offsets[:-1, None])[acted]
    turn_rewards = np.bincount(of_batch.ravel(), rewards[acted].ravel(), minlength=int(turn_offsets[-1]))
    _, group = np.unique(np.asarray([str(name) for name in index]), return_inverse=True)
    return ActionBatch(
        token_offsets=np.concatenate([[0], np.cumsum(mask.sum(axis=1))]),
        turn_offsets=turn_offsets,
        turn_index=turn_of[mask],
        turn_rewards=turn_rewards.astype(np.float64),
        terminated=np.ones(len(mask), np.bool_),
        truncated=np.zeros(len(mask), np.bool_),
        group=group,
    )


@register_adv_est("textenv_turn_grpo")
def textenv_turn_grpo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any = None, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute ``TurnGRPO`` of :mod:`trainers.algorithms.estimators`, for ``algorithm.adv_estimator=textenv_turn_grpo``.

    Of the configuration it reads ``algorithm.gamma`` (a discount a turn), ``algorithm.norm_adv_by_std_in_grpo`` (verl's
    default is true; false is unbiased), and ``algorithm.textenv`` with ``baseline``, ``zero_pad`` and ``outcome_mix``.
    Other arguments are those of :func:`action_batch`. Returns advantages and returns (the same, as in verl's own group
    estimators), float ``[B, L]``, 0 where the mask is; ``ValueError``: no ``index``, or a bad ``algorithm.textenv``.
    """
    settings: Mapping[str, Any] = config if config is not None else {}
    options = dict(settings.get("textenv") or {})
    if unknown := set(options) - _OPTIONS:
        raise ValueError(f"algorithm.textenv: unknown keys {sorted(unknown)}; known are {sorted(_OPTIONS)}")
    estimator = TurnGRPO(
        gamma=float(settings.get("gamma", 1.0)),
        norm_by_std=bool(settings.get("norm_adv_by_std_in_grpo", True)),
        **{"baseline": "group", **options},
    )
    result = estimator.advantages(action_batch(token_level_rewards, response_mask, index))
    advantages = torch.zeros_like(token_level_rewards)
    mask = torch.from_numpy(_numpy_mask(response_mask)).to(advantages.device)
    advantages[mask] = torch.from_numpy(result.advantages).to(advantages)
    return advantages, advantages.clone()


def _numpy_mask(response_mask: torch.Tensor) -> Bools:
    return np.asarray(response_mask.detach().cpu().numpy() > 0)
