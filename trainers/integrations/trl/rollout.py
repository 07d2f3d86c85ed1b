"""TRL's ``rollout_func`` (a batch of prompts in, played episodes out), and the reward functions that read its rows.

Episodes are played as in our own collector (:class:`trainers.rollout.play.Player`), token-exact; one whose next turn
has no room ends as truncated at the end of a turn. A failed episode is played again, and then left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from textenvs.event_loop import submit, together, wait_for
from textenvs.integrations import EpisodeSpec
from textenvs.integrations.rows import same_messages
from textenvs.integrations.session import several_conversations
from textenvs.integrations.trl import KEY, log_terms, spec_of
from textenvs.trust import Environments

from ...config.rollout import RolloutSection
from ...engines.torch_engine import TorchEngine
from ...rollout.environments import Backend, EnvSpec, Kind, tools_of
from ...rollout.play import Episode, Player
from ...rollout.recorded import context_of
from ...rollout.renderer import Renderer
from ...rollout.seeds import derive_seed
from ...trajectory import SOLVED, Trajectory
from ..context_rows import context_rows, has_failed
from .generation import RoundEngine, answer, engine_for, own_engine, sampling_of, weights_of
from .rows import columns_of, outcome_of, tokens_of

log = logging.getLogger("trainers")

_CLOSING_S = 10.0  # that episodes may take to end when their batch has failed


_ONE_ROW = (
    "GRPOTrainer takes one token sequence a prompt: use trainers.integrations.trl.credit.TurnCreditGRPOTrainer, which "
    "makes a row of each, or train it with trainers.ppo"
)


class RolloutError(RuntimeError):
    """A batch cannot be played, or its episodes cannot be given to TRL; the message says why and what to do."""


@dataclass(frozen=True, eq=False)
class Played:
    """The episodes of a batch.

    ``episodes`` has the trajectories of each: of the role that began, then of the others that acted, each in a group
    of its own. ``filler`` is a token for what is not to be trained on.
    """

    episodes: Sequence[Sequence[Trajectory]]
    has_logprobs: bool
    filler: int


@dataclass(kw_only=True, eq=False)
class TextEnvRollout(contextlib.AbstractContextManager["TextEnvRollout"]):
    """Plays the episodes of a dataset for a ``GRPOTrainer``.

    The dataset is one of :func:`textenvs.integrations.trl.textenv_dataset`::

        rollout = TextEnvRollout()
        trainer = GRPOTrainer(model, reward_funcs=textenv_reward, rollout_func=rollout, train_dataset=dataset, ...)

    An episode has at most ``max_completion_length`` tokens after its opening, those of the environment included; where
    that is used up it ends as truncated, at the end of a reply. Each row that it returns has, beside the tokens:
    ``turn_rewards`` (a list), ``turn_ids`` (the turn of each token of the completion, -1 for the environment's),
    ``terms`` (the parts of each turn's reward), ``stop``, ``status``, ``terminated``, ``truncated``, ``failed``,
    ``messages``, ``episode_id``, and all of it as a ``trajectory``. A failed episode (a simulator, a tool or the
    environment gave up, or took too long) is one masked token; :func:`.textenv_reward` returns ``None`` for it, so it
    is in no group's mean. An episode of several contexts (compaction, sub-agents) or roles is more than one row, and
    needs :class:`trainers.integrations.trl.credit.TurnCreditGRPOTrainer`.

    Close it (or use it as a context manager) to end the engine and the environments; it also ends with the process.
    """

    #: ``torch``: our embedded engine, with a copy of the weights, which serves most decoders and is refused for others.
    #: ``trl``: TRL's own generation (transformers, its continuous batching, or vLLM), in which episodes take their
    #: turns together. ``auto``: ``trl`` where TRL has vLLM or continuous batching, else ``torch``.
    engine: Literal["auto", "torch", "trl"] = "auto"
    backend: Kind = "inline"  #: where environments step; see :class:`trainers.rollout.environments.Backend`
    workers: int | None = None  #: environments at a time (of each kind); ``None`` as in ``Backend``
    max_running: int = 128  #: episodes at a time; ``torch`` keeps keys and values of so many
    max_turn_tokens: int | None = None  #: tokens of one reply; ``None`` for what is left of the episode
    #: Prompt and completion together; ``None`` for what the model has positions for, and with ``torch`` for 4096 at
    #: most
    max_context: int | None = None
    #: CPU threads of the embedded engine; ``None`` for torch's choice. 1 is best for tiny models.
    threads: int | None = None
    retries: int = 1  #: how often a failed episode is played again
    step_timeout: float = 60.0  #: seconds for a step of an environment
    generation_timeout: float | None = None  #: seconds for a reply; ``None`` for no limit
    episode_timeout: float | None = None  #: seconds for an episode; ``None`` for no limit
    #: By id, what prompts may name and set beyond the environments that ship and their harmless options
    #: (docs/security.md)
    environments: Environments | None = None

    def __post_init__(self) -> None:
        if self.engine not in ("auto", "torch", "trl"):
            raise ValueError(f"engine must be auto, torch or trl, not {self.engine!r}")
        for name, least in (("max_running", 1), ("max_turn_tokens", 1), ("max_context", 1), ("retries", 0)):
            if (number := getattr(self, name)) is not None and number < least:
                raise ValueError(f"{name} must be at least {least}, not {number}")
        self.__name__ = type(self).__name__  # TRL and loggers ask functions for their names
        self._backends: dict[tuple[str, str], Backend] = {}
        self._several: dict[tuple[str, str], str] = {}  # why their episodes have several conversations
        self._trainer: weakref.ref[Any] | None = None
        self._engine: TorchEngine | RoundEngine | None = None
        self._calls = (-1, 0)  # the optimizer's step of the last training batch, and batches of it before

    # ------------------------------------------------------------------ what TRL calls

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Play one episode for each prompt of this process, repeated for the members of a group; rows for TRL.

        RolloutError: the prompts are not such rows, or no episode could be played; or an episode is more than one row,
        and TRL takes one a prompt. ``ValueError``: the engine cannot serve this trainer.
        """
        if reason := self.several(prompts):
            raise RolloutError(f"{reason}, and {_ONE_ROW}")
        played = self.play(prompts, trainer)
        rows = [context_rows(trajectory) for trajectory, *_ in played.episodes]
        for episode, own in zip(played.episodes, rows, strict=True):
            if len(own) > 1:
                raise RolloutError(
                    f"episode {episode[0].episode_id} has {len(own)} contexts, and {_ONE_ROW}. Where the chat template "
                    "rewrites earlier turns, one that keeps them also helps (for Qwen3, "
                    "chat_template_kwargs={'enable_thinking': False}, or "
                    "trl.chat_template_utils.get_training_chat_template)"
                )
        columns = columns_of([tokens_of(row, played.filler) | outcome_of(row) for (row,) in rows])
        return columns if played.has_logprobs else {**columns, "logprobs": None}

    def several(self, prompts: Sequence[Any]) -> str | None:
        """Return which environment of the prompts has episodes of several rows, and why; ``None``: none is known to."""
        for spec in self._specs(prompts):
            self._backend(spec)
        return next(iter(self._several.values()), None)

    def play(self, prompts: Sequence[Any], trainer: Any) -> Played:
        """Play the episodes of :meth:`__call__`, of any number of contexts and roles; raises as it does."""
        specs = self._specs(prompts)
        training = bool(trainer.model.training)
        group = trainer.num_generations if training else trainer.num_generations_eval
        check_groups(specs, group, whole=trainer.accelerator.num_processes == 1)
        player = self._player(trainer)
        episodes = self._episodes(specs, trainer, training)
        played, has_logprobs = self._play(player, specs, episodes, trainer)
        self._check(prompts, specs, played, training)
        return Played(played, has_logprobs, player.renderer.stop_token_ids[0])

    def close(self) -> None:
        """End the engine and the environments; a later call would start them again."""
        if self._engine is not None:
            wait_for(self._engine.close())  # type: ignore[arg-type]  # mypy finds no T for None
        for backend in self._backends.values():
            wait_for(backend.close())  # type: ignore[arg-type]
        self._engine, self._trainer, self._backends, self._several = None, None, {}, {}

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ------------------------------------------------------------------ what plays

    def _player(self, trainer: Any) -> Player:
        """Return the player for this trainer, with its current weights."""
        if self._trainer is None or self._trainer() is not trainer:
            self._bind(trainer)
        elif isinstance(self._engine, TorchEngine):
            # Always: weights may change without a step of the optimizer (a checkpoint that is loaded).
            wait_for(self._engine.update_weights(weights_of(trainer), self._engine.version + 1))  # type: ignore[arg-type]
        assert self._engine is not None
        rollout = RolloutSection(
            max_response_tokens=trainer.args.max_completion_length,
            generation_timeout_s=self.generation_timeout,
            episode_timeout_s=self.episode_timeout,
        )
        return Player(self._engine, self._renderer, rollout)

    def _bind(self, trainer: Any) -> None:
        former, self._engine, self._trainer = self._engine, None, None  # a call after an error below binds again
        if former is not None:
            wait_for(former.close())  # type: ignore[arg-type]
        tokenizer = trainer.processing_class
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise RolloutError("text environments need a tokenizer as processing_class, not a processor of images")
        self._renderer = Renderer(
            tokenizer, template_kwargs=trainer.chat_template_kwargs, stop_token_ids=trainer.eos_token_ids
        )
        args, positions = trainer.args, int(trainer.model.config.get_text_config().max_position_embeddings)
        if self.engine == "trl" or (self.engine == "auto" and own_engine(args)):
            check_lockstep(trainer)
            if args.use_vllm and args.vllm_mode == "colocate":
                positions = int(trainer.vllm_generation.llm.llm_engine.model_config.max_model_len)
            self._engine = RoundEngine(min(positions, self.max_context or positions))
        else:
            rows = max(args.per_device_train_batch_size * args.steps_per_generation, args.per_device_eval_batch_size)
            slots, context = min(self.max_running, rows), min(positions, self.max_context or 4096)
            self._engine = engine_for(trainer, max_slots=slots, max_context=context, threads=self.threads)
        self._trainer, self._calls = weakref.ref(trainer), (-1, 0)

    def _backend(self, spec: EpisodeSpec) -> Backend:
        key = (spec.env, json.dumps(dict(spec.env_kwargs), sort_keys=True))
        if key not in self._backends:
            env = spec.make()  # here, so that a mistake is an error and no failed episode
            env.close()
            try:
                tools = tools_of(env)
            except ValueError as error:
                raise RolloutError(f"{spec.env}: {error}") from error
            if reason := several_conversations(env):
                self._several[key] = f"{spec.env} {reason}"
            if env.blocking and self.backend == "inline":
                raise RolloutError(
                    f"{spec.env} may block its thread: use TextEnvRollout(backend='thread') or 'process'"
                )
            self._backends[key] = Backend(
                EnvSpec(spec.env, dict(spec.env_kwargs)),
                self.backend,
                tools=tools,
                workers=self.workers,
                reset_timeout=self.step_timeout,
                step_timeout=self.step_timeout,
            )
        return self._backends[key]

    # ------------------------------------------------------------------ playing

    def _specs(self, prompts: Sequence[Any]) -> list[EpisodeSpec]:
        return [
            spec_of(prompt, f"prompt {number} of the batch", self.environments) for number, prompt in enumerate(prompts)
        ]

    def _episodes(self, specs: Sequence[EpisodeSpec], trainer: Any, training: bool) -> list[Episode]:
        """Build the episodes; their seeds are functions of the run's seed and of numbers, equal in each evaluation."""
        sampling = sampling_of(trainer, self.max_turn_tokens or trainer.args.max_completion_length)
        step = int(trainer.state.global_step)
        if training:
            self._calls = (step, self._calls[1] + 1) if self._calls[0] == step else (step, 0)
        seed, process = int(trainer.args.seed), int(trainer.accelerator.process_index)
        seen: Counter[str] = Counter()
        episodes = []
        for number, spec in enumerate(specs):
            name = json.dumps(spec.to_row(), sort_keys=True)
            if training:
                place: tuple[int | str, ...] = ("train", *self._calls, process, number)
            else:
                place = ("evaluate", name, process, seen[name])
            seen[name] += 1
            episodes.append(
                Episode(
                    episode_id="/".join(map(str, (place[0], step, self._calls[1], process, number))),
                    group_id=name,
                    options=spec.options or {},
                    env_seed=spec.seed,
                    sampling=sampling,
                    sampling_seed=derive_seed(seed, *place),
                    training=training,
                )
            )
        return episodes

    def _play(
        self, player: Player, specs: Sequence[EpisodeSpec], episodes: Sequence[Episode], trainer: Any
    ) -> tuple[list[list[Trajectory]], bool]:
        """Play the episodes on the event loop's thread while TRL generates here; return also if it has logprobs.

        Of each episode: the trajectory of the role that began, then those of the others.
        """
        playing, engine = self._play_all(player, [self._backend(spec) for spec in specs], episodes), player.engine
        if not isinstance(engine, RoundEngine):
            return wait_for(playing), True
        rounds = engine.open()

        async def play() -> list[list[Trajectory]]:
            try:
                return await playing
            finally:
                rounds.put(None)

        has_logprobs, future = True, submit(play())
        try:
            while (batch := rounds.get()) is not None:
                has_logprobs = answer(trainer, batch) and has_logprobs
            return future.result(), has_logprobs
        except BaseException:
            future.cancel()
            with contextlib.suppress(queue.Empty):  # until the episodes have been closed
                while rounds.get(timeout=_CLOSING_S) is not None:
                    pass
            raise

    async def _play_all(
        self, player: Player, backends: Sequence[Backend], episodes: Sequence[Episode]
    ) -> list[list[Trajectory]]:
        # A round must not wait for an episode that waits for an environment.
        limit = min([self.max_running, *(backend.workers for backend in backends if backend.workers is not None)])
        rounds = player.engine if isinstance(player.engine, RoundEngine) else None
        if rounds is not None:
            rounds.begin(len(episodes), limit)
        places = asyncio.Semaphore(limit)

        async def one(backend: Backend, episode: Episode) -> list[Trajectory]:
            async with places:
                try:
                    for attempt in range(self.retries + 1):
                        seed = episode.sampling_seed
                        again = seed if attempt == 0 else derive_seed(seed, "attempt", attempt)
                        roles: dict[str, Trajectory] = {}
                        main = await player.play(backend, replace(episode, sampling_seed=again), roles=roles)
                        if main.status.trainable:
                            partners = (role for role in roles.values() if role is not main and not has_failed(role))
                            return [main, *partners]
                    return [main]
                finally:
                    if rounds is not None:
                        rounds.leave()

        return await together(*(one(*pair) for pair in zip(backends, episodes, strict=True)))

    def _check(
        self,
        prompts: Sequence[Any],
        specs: Sequence[EpisodeSpec],
        played: Sequence[Sequence[Trajectory]],
        training: bool,
    ) -> None:
        trajectories = [own for own, *_ in played]
        failed = [episode for episode in trajectories if has_failed(episode)]
        for episode in failed[:1]:
            log.warning("%d of %d episodes failed; one of them: %s", len(failed), len(trajectories), episode.error)
        if training and len(failed) == len(trajectories):  # an evaluation without a figure ends no training
            raise RolloutError(f"all {len(failed)} episodes of a batch failed; the first: {failed[0].error}")
        for number, (prompt, spec, trajectory) in enumerate(zip(prompts, specs, trajectories, strict=True)):
            if not self._opens_with(prompt, spec, trajectory):
                raise RolloutError(
                    f"prompt {number} of the batch is not what its environment opens with, so the policy would see "
                    "something else than the dataset says: change the environment's arguments (system_prompt, ...) "
                    "instead of the column 'prompt'"
                )

    def _opens_with(self, prompt: Sequence[Any], spec: EpisodeSpec, trajectory: Trajectory) -> bool:
        if len(trajectory.segment_starts) < 2:
            return not trajectory.messages or same_messages(prompt, trajectory.messages[: len(prompt)])
        # The messages are those of the last conversation; the tokens are all there.
        plain = [{key: value for key, value in m.items() if value is not None and key != KEY} for m in prompt]
        opening = self._renderer.render(plain, self._backend(spec).tools)  # type: ignore[arg-type]
        return not trajectory.num_turns or context_of(trajectory, 0).tolist() == opening


# ------------------------------------------------------------------ checks


def check_groups(specs: Sequence[EpisodeSpec], group: int, *, whole: bool) -> None:
    """Raise ``RolloutError`` where TRL does not repeat each prompt ``group`` times; ``whole``: of all prompts."""
    runs = [len(list(equal)) for _, equal in groupby(specs)]
    if any(run % group for run in (runs if whole else runs[1:-1])):
        raise RolloutError(
            f"TRL gave {len(specs)} prompts in runs of {runs}, where groups of {group} equal ones are expected: this "
            "version of TRL repeats prompts in another way, or the dataset has rows that are the same episode"
        )


def check_lockstep(trainer: Any) -> None:
    """Raise ``RolloutError`` where several processes would have to take part in every round."""
    args, processes = trainer.args, trainer.accelerator.num_processes
    if processes == 1:
        return
    shared = args.use_vllm and (
        args.vllm_mode == "server" or args.vllm_tensor_parallel_size > 1 or args.vllm_enable_sleep_mode
    )
    if shared or (not args.use_vllm and (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)):
        raise RolloutError(
            f"with {processes} processes, TRL generates here by calls that all processes make together, and episodes "
            "end at different turns: use one process, vllm_mode='colocate' with vllm_tensor_parallel_size=1 and "
            "without sleep mode, or whole weights and TextEnvRollout(engine='torch')"
        )


# ------------------------------------------------------------------ reward functions

LogMetric = Callable[[str, float], None]


def textenv_reward(
    turn_rewards: Sequence[Sequence[float]],
    failed: Sequence[bool],
    episode_id: Sequence[str],
    terms: Sequence[Sequence[Mapping[str, float]]] = (),
    stop: Sequence[str | None] = (),
    has_success: Sequence[bool] = (),
    log_metric: LogMetric | None = None,
    **_: Any,
) -> list[float | None]:
    """Sum each episode's turn rewards; ``None`` for one that failed.

    TRL gives a ``None`` no advantage. Where it offers ``log_metric``, the means of terms, turns, failed and solved
    episodes are logged. RuntimeError: TRL gave several rows of a batch the same episode's outcome.
    """
    check_rows(episode_id)
    if log_metric is not None:
        fine = [not bad for bad in failed]
        log_metric("episodes/failed", fine.count(False) / len(fine))
        log_metric("episodes/turns", sum(map(len, turn_rewards)) / len(fine))
        if any(fine):
            log_terms(log_metric, [row for row, good in zip(terms, fine, strict=False) if good])
            rows = zip(stop, fine, has_success, strict=False)
            if ends := [reason for reason, good, can_succeed in rows if good and can_succeed]:
                log_metric("episodes/solved", ends.count(SOLVED) / len(ends))
    return [None if bad else float(sum(rewards)) for rewards, bad in zip(turn_rewards, failed, strict=True)]


def term_rewards(*names: str) -> list[Callable[..., list[float | None]]]:
    """Make one reward function for each term, in place of :func:`textenv_reward`: TRL logs and weighs each by itself.

    The ``names`` of ``info["terms"]`` add up to :func:`textenv_reward`. An episode without a term has no reward from
    it.
    """
    if not names or len(set(names)) < len(names):
        raise ValueError(f"term_rewards needs names of terms that differ, not {names}")
    return [_term_reward(name) for name in names]


def _term_reward(name: str) -> Callable[..., list[float | None]]:
    def reward(
        terms: Sequence[Sequence[Mapping[str, float]]], failed: Sequence[bool], episode_id: Sequence[str], **_: Any
    ) -> list[float | None]:
        check_rows(episode_id)
        values = [[turn[name] for turn in turns if name in turn] for turns in terms]
        return [
            float(sum(rewards)) if rewards and not bad else None for rewards, bad in zip(values, failed, strict=True)
        ]

    reward.__name__ = name  # what TRL logs it as
    return reward


def check_rows(episode_id: Sequence[str]) -> None:
    """Raise where rows share an outcome: some data loaders repeat one row object, which holds but the last outcome."""
    if len(set(episode_id)) < len(episode_id):
        raise RuntimeError(
            f"{len(episode_id)} rows of the batch have the outcomes of {len(set(episode_id))} episodes: the dataset "
            "repeats the same row object, and TRL writes outcomes into rows; use the map-style dataset of "
            "textenv_dataset"
        )
