"""Train a policy in a text environment with PPO: one process, read from top to bottom.

    python -m trainers.ppo                      a tiny model from scratch learns textenv/gsm8k-interact
    python -m trainers.ppo key=value ...        anything else; --help lists the keys, --dry-run shows what would be used

An iteration: the collector gives a batch of episodes (:mod:`trainers.rollout.collector`), turn rewards become the
advantages of the tokens that earned them (:mod:`trainers.algorithms`), the learner takes its steps
(:mod:`trainers.learner`), and the engine gets the new weights. With ``rollout.staleness=0`` these follow each other;
with more, episodes go on while the learner learns.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

try:
    import torch
except ImportError as error:
    raise ImportError("training needs torch: pip install 'textenvs[train]'") from error
from numpy.typing import NDArray
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from . import assembly, checkpoints, sft
from .algorithms import off_policy
from .algorithms.advantages import ESTIMATORS, NEEDS_ANCHOR, NEEDS_GREEDY, Advantages, normalize, restrict
from .algorithms.aggregation import token_weights
from .algorithms.batch import ActionBatch, anchor_states, gather, shared_anchors
from .algorithms.kl import AdaptiveKL, FixedKL, KLController, kl_estimate
from .algorithms.policy_losses import policy_loss as policy_loss_of
from .algorithms.policy_losses import value_loss
from .cluster.group import LearnerGroup, RankError
from .cluster.plan import PlanError, describe
from .cluster.recipe import MadeThere
from .config import PPOConfig, load_config
from .config.checks import estimator_keys
from .config.schema import ActorSection, AlgorithmSection, CriticSection, WarmStartSection
from .demonstrations import DemonstrationError
from .engines.base import Sampling
from .heap import settled
from .learner import Learner, Parallel
from .policy import Policy, PolicyError
from .report.metrics import Phases, episode_metrics
from .report.profile import profiled
from .report.reporter import Reporter
from .rollout.collector import Batch, CollectionError, Collector
from .rollout.environments import Backend
from .rollout.renderer import Renderer, RendererError
from .rollout.rewards import Score
from .rollout.trace import TraceFile
from .trajectory import Trajectory

log = logging.getLogger("trainers")

Floats = NDArray[np.float64]


@dataclass
class Run:
    """What a run is made of, and where it stands."""

    config: PPOConfig
    folder: Path
    learner: Learner | LearnerGroup
    collector: Collector
    validation: Backend
    validation_tasks: Sequence[int]
    kl: KLController
    reporter: Reporter
    saved: checkpoints.Checkpoints
    tokenizer: Any
    sleeper: Any = None  # the engine, where it gives its memory back while the learner learns
    trace: TraceFile | None = None
    iteration: int = 0  # iterations done
    trained_s: float = 0.0  # seconds of training, over all resumptions
    stop: asyncio.Event = field(default_factory=asyncio.Event)  # somebody asked to stop
    given_up: threading.Event = field(default_factory=threading.Event)  # ... or did not want to wait for that
    warned: set[str] = field(default_factory=set)  # why episodes ended badly, as far as it was said


# ------------------ the loop


async def train(run: Run) -> None:
    """Iterate until the configured end, or until somebody asks to stop; a checkpoint is saved in any case."""
    config = run.config.trainer
    if run.iteration == 0:
        save(run)  # the warm start is not to be done twice
        if config.val_before_train:
            await validate(run)
    saved_at, validated_at = run.iteration, run.iteration
    while run.iteration < config.total_iterations and not run.stop.is_set():
        if config.time_limit_s is not None and run.trained_s >= config.time_limit_s:
            log.info("the time limit of %g s is reached", config.time_limit_s)
            break
        began = time.perf_counter()
        phases = run.reporter.phases()
        wanted = run.iteration + 1 in config.profile_steps
        with profiled(run.folder, run.iteration + 1) if wanted else contextlib.nullcontext():
            with phases("rollout"):
                batch = await until_stopped(run.collector.next_batch(), run.stop)
            if batch is None:
                break
            warn(run, batch)
            metrics = await iterate(run, batch, phases)
        run.trained_s += time.perf_counter() - began
        run.iteration += 1
        run.reporter.iteration(run.iteration, metrics, batch.trajectories)
        if every(config.test_freq, run.iteration):
            await validate(run)
            validated_at = run.iteration
        if every(config.save_freq, run.iteration):
            save(run)
            saved_at = run.iteration
    if saved_at != run.iteration:
        save(run)
    run.saved.wait()
    if validated_at != run.iteration and not run.stop.is_set():
        await validate(run)


def warn(run: Run, batch: Batch) -> None:
    """Say why episodes ended badly: each cause the first time, and then as a number among the metrics."""
    for cause, message in batch.problems.items():
        if cause not in run.warned:
            run.warned.add(cause)
            log.warning("an episode ended as %s: %s", cause, message)


async def iterate(run: Run, batch: Batch, phases: Phases) -> dict[str, float]:
    """One batch: credit, steps, new weights to the engine. Returns metrics."""
    trajectories = batch.trajectories
    if run.sleeper is not None:
        with phases("sleep"):
            await run.sleeper.sleep()
    # The learner computes in a thread of its own, so that episodes go on meanwhile.
    with phases("learn"):
        greedy = {group: episode.total_reward for group, episode in batch.greedy.items()}
        metrics = await asyncio.to_thread(learn, run, trajectories, greedy)
    with phases("publish"):
        if run.sleeper is not None:
            await run.sleeper.wake()
        weights = await asyncio.to_thread(run.learner.weights)
        await run.collector.update_weights(weights, batch.version + 1, run.config.rollout.update_mode)
    times = phases.finish()
    tokens = sum(int(t.action_mask.sum()) for t in trajectories)
    return {
        **episode_metrics(trajectories, "train"),
        **metrics,
        **{f"rollout/{name}": value for name, value in batch.stats.items()},
        **times,
        "perf/tokens_per_s": tokens / times["time/iteration_s"],
        "perf/rollout_tokens_per_s": tokens / max(times["time/rollout_s"], 1e-9),
    }


def learn(run: Run, trajectories: Sequence[Trajectory], greedy: Mapping[str, float] | None = None) -> dict[str, float]:
    """All optimizer steps of an iteration; for ``greedy`` see :func:`credit`."""
    config, learner = run.config, run.learner
    columns, advantages, metrics = credit(run, trajectories, greedy)
    rng = np.random.default_rng((config.trainer.seed, run.iteration))
    train_actor = run.iteration >= config.critic.warmup or learner.critic is None
    steps: dict[str, list[float]] = {}
    offsets = _offsets(trajectories)
    for _ in range(config.actor.ppo_epochs):
        order = rng.permutation(len(trajectories))
        for chosen in np.array_split(order, config.actor.mini_batches):
            if run.given_up.is_set():
                raise asyncio.CancelledError
            part = [trajectories[e] for e in chosen]
            where = np.concatenate([np.arange(offsets[e], offsets[e + 1]) for e in chosen])
            given = {name: column[where] for name, column in columns.items()}
            if train_actor and (mask := advantages.policy_mask[where]).any():
                weight = token_weights(config.actor.loss_agg_mode, _offsets(part), mask, _norm_length(config))
                more = {"weight": weight, "share": mask / mask.sum()}
                loss = MadeThere(policy_loss, config.actor)
                _note(steps, "actor", learner.update_actor(part, given | more, loss))
            if learner.critic is not None:
                assert advantages.value_mask is not None
                mask = advantages.value_mask[where]
                more = {"weight": mask / max(mask.sum(), 1)}
                value_loss_fn = MadeThere(critic_loss, config.critic)
                _note(steps, "critic", learner.update_critic(part, given | more, value_loss_fn))
    return metrics | {name: float(np.mean(values)) for name, values in steps.items()}


# ------------------ from rewards to losses


def credit(
    run: Run, trajectories: Sequence[Trajectory], greedy: Mapping[str, float] | None = None
) -> tuple[dict[str, Floats], Advantages, dict[str, float]]:
    """From turn rewards to a number for each action token.

    Args:
        run: The run.
        trajectories: The batch.
        greedy: What a greedy episode earned, by group, where the estimator asks for it.

    Returns:
        What the losses need, ``[N]`` each by name; the advantages; metrics.
    """
    config, learner = run.config, run.learner
    rollout = gather(trajectories, [t.logprobs for t in trajectories]).astype(np.float64)
    metrics: dict[str, float] = {}
    old, kept = rollout, np.ones(len(rollout), np.bool_)
    columns = {"old_logprobs": old}
    if config.actor.old_logprobs == "recompute":
        old = columns["old_logprobs"] = _flat(learner.logprobs(trajectories))
        weights, kept, found = off_policy_correction(config.actor, old, rollout, _offsets(trajectories))
        metrics |= {f"actor/{name}": value for name, value in found.items()}
        if weights is not None:
            columns["importance"] = weights

    penalty = None
    if learner.reference is not None:
        columns["ref_logprobs"] = _flat(learner.logprobs(trajectories, model="reference"))
        estimate = kl_estimate(
            torch.from_numpy(old), torch.from_numpy(columns["ref_logprobs"]), config.algorithm.kl_penalty
        ).numpy()
        metrics["actor/ref_kl"] = float(estimate.mean()) if estimate.size else 0.0
        if config.algorithm.use_kl_in_reward:
            metrics["actor/kl_coef"] = run.kl.beta
            penalty = run.kl.beta * estimate
            run.kl.update(metrics["actor/ref_kl"], len(trajectories))

    values = bootstrap = None
    if learner.critic is not None:
        parts, bootstrap = learner.values(trajectories)
        values = columns["old_values"] = _flat(parts)
    batch = ActionBatch.from_trajectories(trajectories, values=values, bootstrap=bootstrap, penalty=penalty)
    batch, found = compared_with(config.algorithm, batch, trajectories, greedy or {})
    metrics |= {f"actor/{name}": value for name, value in found.items()}
    advantages = ESTIMATORS[config.algorithm.adv_estimator](batch, **estimator_options(config.algorithm))
    advantages = restrict(advantages, kept)
    counted = advantages.advantages[advantages.policy_mask]
    metrics |= {
        "actor/advantage_std": float(counted.std()) if counted.size else 0.0,
        "actor/advantage_abs_max": float(np.abs(counted).max(initial=0.0)),
    }
    if advantages.returns is not None:
        assert values is not None
        assert advantages.value_mask is not None
        columns["returns"] = advantages.returns
        metrics |= _explained(values[advantages.value_mask], advantages.returns[advantages.value_mask])
    if config.algorithm.norm_adv:
        advantages = normalize(advantages)
    columns["advantages"] = advantages.advantages
    return columns, advantages, metrics


def off_policy_correction(
    section: ActorSection, old: Floats, rollout: Floats, offsets: NDArray[np.int64]
) -> tuple[Floats | None, NDArray[np.bool_], dict[str, float]]:
    """From the policy that sampled to the one that the update starts from: weights, tokens to keep, metrics."""
    mode, cap = section.importance_correction, section.tis_cap
    weights = off_policy.importance_weights(mode, old, rollout, offsets, cap)
    kept = off_policy.kept(section.rejection, old, rollout, offsets, section.rejection_low, section.rejection_high)
    metrics = off_policy.mismatch(old, rollout)
    if weights is not None:
        metrics |= off_policy.weight_metrics(weights, mode, cap)
    if section.rejection != "none" and kept.size:
        metrics["rejected"] = 1.0 - float(kept.mean())
    return weights, kept, metrics


def compared_with(
    section: AlgorithmSection, batch: ActionBatch, trajectories: Sequence[Trajectory], greedy: Mapping[str, float]
) -> tuple[ActionBatch, dict[str, float]]:
    """The batch with what the estimator compares episodes with, besides each other; and metrics."""
    if section.adv_estimator in NEEDS_GREEDY:
        returns = np.array([greedy[trajectory.group_id] for trajectory in trajectories], np.float64)
        return replace(batch, greedy=returns), {"greedy_reward": float(np.mean(list(greedy.values())))}
    if section.adv_estimator in NEEDS_ANCHOR:
        batch = replace(batch, anchor=anchor_states(trajectories, section.anchor))
        return batch, {"anchored": float(np.mean(shared_anchors(batch)))}
    return batch, {}


def estimator_options(section: AlgorithmSection) -> dict[str, Any]:
    """The keys that the chosen estimator reads."""
    options = {name: getattr(section, name) for name in estimator_keys(section.adv_estimator)}
    options.pop("anchor", None)  # it says what the batch holds
    if options.get("norm_by_std", False) is None:
        del options["norm_by_std"]  # the estimator's own habit
    return options


def policy_loss(section: ActorSection) -> Any:
    """The policy's loss, an entropy bonus, and the KL to the reference if asked for; see ``Learner``."""

    def loss(logprobs: Tensor, entropy: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        surrogate = policy_loss_of(
            section.policy_loss,
            logprobs,
            batch["old_logprobs"],
            batch["advantages"],
            batch["trajectory"],
            clip_low=section.clip_ratio_low,
            clip_high=section.clip_ratio_high,
            dual_clip=section.clip_ratio_c,
            importance=batch.get("importance"),
        )
        per_token = surrogate.loss - section.entropy_coeff * entropy
        sums = {name: (batch["share"] * value).sum() for name, value in surrogate.stats.items()}
        if section.use_kl_loss:
            kl = kl_estimate(logprobs, batch["ref_logprobs"], section.kl_loss_type)
            per_token = per_token + section.kl_loss_coef * kl
            sums["kl_loss"] = (batch["share"] * kl.detach()).sum()
        return (batch["weight"] * per_token).sum(), sums

    return loss


def critic_loss(section: CriticSection) -> Any:
    """The squared error of the values, clipped if asked for; see ``Learner``."""

    def loss(values: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        error = value_loss(values, batch["old_values"], batch["returns"], clip=section.cliprange_value)
        return (batch["weight"] * error.loss).sum(), {"clipped": (batch["weight"] * error.stats["value_clipped"]).sum()}

    return loss


def _norm_length(config: PPOConfig) -> float | None:
    wanted = config.actor.loss_agg_mode == "seq-mean-token-sum-norm"
    return float(config.rollout.max_response_length) if wanted else None


def _explained(values: Floats, returns: Floats) -> dict[str, float]:
    """How much of the returns' variance the critic had foreseen: 1 is all, 0 no more than their mean, below it less."""
    metrics = {"critic/value_mean": float(values.mean())}
    if (variance := float(np.var(returns))) > 0:
        metrics["critic/explained"] = 1.0 - float(np.var(returns - values)) / variance
    return metrics


def _flat(parts: Sequence[NDArray[np.float32]]) -> Floats:
    return np.concatenate([np.zeros(0), *parts])


def _offsets(trajectories: Sequence[Trajectory]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum([int(t.action_mask.sum()) for t in trajectories])]).astype(np.int64)


def _note(steps: dict[str, list[float]], role: str, metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        if math.isfinite(value):
            steps.setdefault(f"{role}/{name}", []).append(value)


# ------------------ validation, saving


async def validate(run: Run) -> None:
    """Play the validation tasks with the current weights and report; nothing, if somebody asks to stop meanwhile."""
    config = run.config.validation
    began = time.perf_counter()
    episodes = run.collector.evaluate(
        run.validation_tasks,
        samples=config.n,
        sampling=Sampling(
            temperature=config.temperature,
            top_p=config.top_p,
            max_new_tokens=run.config.rollout.max_response_length,
        ),
        seed=run.config.trainer.seed,
        backend=run.validation,
    )
    with traced(run, "validate"):
        trajectories = await until_stopped(episodes, run.stop)
    if trajectories is None:
        return
    metrics = episode_metrics(trajectories, "val") | {"time/validation_s": time.perf_counter() - began}
    run.reporter.validation(run.iteration, metrics, trajectories)


def save(run: Run) -> None:
    """Write a checkpoint: everything that going on exactly from here needs."""
    state = {
        "iteration": run.iteration,
        "trained_s": run.trained_s,
        "frontier": run.collector.frontier(),
        "kl": run.kl.state_dict(),
        "config": run.config.model_dump(mode="json"),
    }
    with traced(run, "save"):
        if run.config.trainer.async_save:
            assert isinstance(run.learner, Learner)  # the configuration was checked
            run.saved.wait()  # before copies are taken: there are never two
            state_writer, model_writer = run.learner.prepare_save(), run.learner.prepare_export(run.tokenizer)
            run.saved.save_in_background(
                run.iteration,
                state,
                lambda folder: state_writer(folder / "learner"),
                lambda folder: model_writer(folder / "model"),
            )
        else:
            run.saved.save(
                run.iteration,
                state,
                lambda folder: run.learner.save(folder / "learner"),
                lambda folder: run.learner.export_hf(folder / "model", run.tokenizer),
            )


@contextlib.contextmanager
def traced(run: Run, name: str) -> Iterator[None]:
    """Draw what happens inside as a phase, if there is a trace."""
    began = time.monotonic()
    try:
        yield
    finally:
        if run.trace is not None:
            run.trace.phase(name, began, time.monotonic())


def resume(run: Run, checkpoint: checkpoints.Checkpoint) -> None:
    """Go on from a checkpoint; before anything is collected."""
    state = checkpoint.state
    run.learner.load(checkpoint.path / "learner")
    run.collector.restore(state["frontier"])
    run.kl.load_state_dict(state["kl"])
    run.iteration, run.trained_s = int(state["iteration"]), float(state["trained_s"])


# What a checkpoint is made of. Another learning rate may go on from it, another model may not.
_FIXED = (
    *(f"model.{name}" for name in ("path", "family", "hidden", "intermediate", "layers", "heads", "kv_heads")),
    *(f"model.{name}" for name in ("vocab_size", "dtype", "device", "lora_rank", "lora_alpha", "target_modules")),
    "env.id",
    "data.train_files",
    "algorithm.adv_estimator",
    "actor.use_kl_loss",
    "algorithm.use_kl_in_reward",
    "trainer.seed",
)


def refuse_other_run(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """Raise ``CheckpointError`` when a checkpoint's configuration differs where it must not."""
    differ = [name for name in _FIXED if _at(before, name) not in (_at(now, name), _UNKNOWN)]
    if differ:
        changes = ", ".join(f"{name} was {_at(before, name)} and is now {_at(now, name)}" for name in differ)
        raise checkpoints.CheckpointError(
            f"{path} is of another run: {changes}. Give this run a folder of its own (trainer.experiment_name=NAME), "
            "or start afresh in this one with trainer.resume_mode=disable"
        )


def _at(tree: Mapping[str, Any], name: str) -> Any:
    value: Any = tree
    for part in name.split("."):
        if part not in value:  # an older version did not have this key
            return _UNKNOWN
        value = value[part]
    return value


_UNKNOWN: Any = object()


def every(frequency: int, iteration: int) -> bool:
    """Whether something that happens every ``frequency`` iterations (-1: never) happens after this one."""
    return frequency > 0 and iteration % frequency == 0


# ------------------ assembling a run


@contextlib.asynccontextmanager
async def assemble(config: PPOConfig) -> AsyncIterator[Run]:
    """Build everything, warm the policy up or resume, and close it all in the end."""
    folder = assembly.run_folder(config.trainer)
    saved = checkpoints.Checkpoints(folder / "checkpoints", config.trainer.keep_last_n)
    checkpoint = assembly.checkpoint_to_resume(config.trainer, saved)
    if checkpoint is not None:
        refuse_other_run(checkpoint.state["config"], config.model_dump(mode="json"), checkpoint.path)
    plan = assembly.plan_of(config)
    assembly.check_environments(config)
    assembly.check_engine(config)
    kwargs, seed = assembly.training_kwargs(config), config.trainer.seed
    policy = assembly.policy_of(
        config.model,
        config.env.id,
        kwargs,
        config.warm_start,
        max_context=config.engine.max_context,
        seed=seed,
        checkpoint=checkpoint,
    )
    assembly.check_learner(config.model, config.trainer, policy, config.cluster.learner_ranks)
    policy.to(assembly.driver_device(config))
    assembly.set_threads(policy, config.trainer.threads)
    renderer = Renderer(policy.tokenizer)
    trace = assembly.trace_of(config)
    reporter = Reporter(
        folder,
        config.trainer.logger,
        total=config.trainer.total_iterations,
        project=config.trainer.project_name,
        name=config.trainer.experiment_name,
        config=config.model_dump(mode="json"),
        first_step=0 if checkpoint is None or checkpoint.iteration == 0 else checkpoint.iteration + 1,
        rollout_dir=config.trainer.rollout_data_dir,
        validation_dir=config.trainer.validation_data_dir,
        on_phase=None if trace is None else trace.phase,
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(saved.wait)  # what is being written in the background is finished, or said to have failed
        stack.callback(reporter.close)
        if trace is not None:
            stack.callback(trace.close)
        given_up = threading.Event()
        stack.callback(given_up.set)  # a thread is not cancelled with who waits for it: it is asked to end
        rewards: dict[str, Score] = {}
        if (pool := assembly.reward_function_of(config.custom_reward_function)) is not None:
            stack.callback(pool.close)
            rewards["custom"] = assembly.custom_reward(config, pool)
        if checkpoint is not None:
            reporter.say(f"resuming from {checkpoint.path}")
        elif warm_start_wanted(config):
            await asyncio.to_thread(warm_up, config, policy, renderer, reporter, given_up)
        cluster = stack.enter_context(assembly.cluster_of(config, plan))
        learner = await asyncio.to_thread(assembly.learner_of, config, policy, cluster)
        if isinstance(learner, LearnerGroup):
            stack.callback(learner.close)
        kl = config.algorithm.kl_ctrl
        controller: KLController = (
            AdaptiveKL(kl.kl_coef, kl.target_kl, kl.horizon) if kl.type == "adaptive" else FixedKL(kl.kl_coef)
        )
        version = 0 if checkpoint is None else checkpoint.iteration
        engine = await assembly.engine_of(config, policy, renderer, version=version, cluster=cluster, learner=learner)
        stack.push_async_callback(engine.close)
        training = await stack.enter_async_context(assembly.backend_of(config, validation=False))
        validation = await stack.enter_async_context(assembly.backend_of(config, validation=True))
        collector = await stack.enter_async_context(
            assembly.collector_of(config, engine, renderer, training, trace, rewards)
        )
        run = Run(
            config=config,
            folder=folder,
            learner=learner,
            collector=collector,
            validation=validation,
            validation_tasks=assembly.validation_tasks(config),
            kl=controller,
            reporter=reporter,
            saved=saved,
            tokenizer=policy.tokenizer,
            sleeper=engine if assembly.sleeps(config) else None,
            trace=trace,
            given_up=given_up,
        )
        if checkpoint is not None:
            resume(run, checkpoint)
        stack.enter_context(settled())
        yield run


def warm_up(
    config: PPOConfig, policy: Policy, renderer: Renderer, reporter: Reporter, given_up: threading.Event
) -> None:
    """Supervised steps on demonstrations before PPO, in place; cut short when ``given_up`` is set."""
    section, seed = config.warm_start, config.trainer.seed
    parts = [("warm start", section, seed)]
    if section.careless_steps:
        parts.append(("careless", section.model_copy(update=careless(section)), seed + 1))
    kwargs = assembly.training_kwargs(config)
    # All of them first: what cannot be had should be known before anything is trained.
    options = assembly.learner_options(config.model, config.trainer)
    if config.model.path == "tiny":
        options["lora"] = None  # a model from scratch has nothing yet that an adapter could stand on
    if config.cluster.learner_ranks > 1:
        options["parallel"] = Parallel()  # this process does it alone
    given = [sft.examples_of(config.env.id, kwargs, part, policy, renderer, part_seed) for _, part, part_seed in parts]
    for (name, part, part_seed), examples in zip(parts, given, strict=True):
        report = progress(reporter, name, part.steps)

        def on_step(step: int, metrics: Mapping[str, float], report: sft.OnStep = report) -> None:
            if given_up.is_set():
                raise asyncio.CancelledError
            report(step, metrics)

        sft.fit(policy, examples, part, seed=part_seed, on_step=on_step, options=options)


def warm_start_wanted(config: PPOConfig) -> bool:
    """Whether to warm up: as configured, else for a model from scratch, which knows no words yet."""
    wanted = config.warm_start.enable
    return config.model.path == "tiny" if wanted is None else wanted


def careless(section: WarmStartSection) -> dict[str, Any]:
    """What differs in the steps on careless demonstrations."""
    return {
        "files": None,
        "demonstrations": section.careless_steps * section.batch_size,
        "steps": section.careless_steps,
        "lr": section.careless_lr,
        "mistake_rate": section.careless_rate,
        "mistake_weight": 1.0,
    }


def progress(reporter: Reporter, name: str, steps: int) -> sft.OnStep:
    """Says now and then how a supervised part goes."""
    began = time.perf_counter()

    def on_step(step: int, metrics: Mapping[str, float]) -> None:
        if step % 50 == 0 or step == steps:
            reporter.say(f"{name} {step:>4}/{steps}  loss {metrics['loss']:.4f}  {time.perf_counter() - began:.0f} s")

    return on_step


async def until_stopped(work: Any, stop: asyncio.Event) -> Any:
    """The result of ``work``, or ``None`` when ``stop`` is set first; ``work`` is then cancelled."""
    task, waiter = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, waiter):
            each.cancel()
        await asyncio.gather(task, waiter, return_exceptions=True)


def heed_signals(stop: asyncio.Event) -> None:
    """The first Ctrl-C (or SIGTERM) asks to stop after a checkpoint; the second stops at once."""
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def asked() -> None:
        if stop.is_set():
            assert main is not None
            main.cancel()
            for number in numbers:  # the third time, it ends the process
                loop.remove_signal_handler(number)
            return
        stop.set()
        log.warning("stopping: a checkpoint will be saved; interrupt again to stop at once without one")

    for number in numbers:
        loop.add_signal_handler(number, asked)


async def run_all(config: PPOConfig) -> int:
    """A whole run; the exit code."""
    async with assemble(config) as run:
        heed_signals(run.stop)
        if config.trainer.val_only:
            await validate(run)
            run.reporter.conclude(run.trained_s)
            return 130 if run.stop.is_set() else 0
        if run.iteration >= config.trainer.total_iterations:
            run.reporter.say(
                f"this run is finished ({run.iteration} iterations). Go on with a larger trainer.total_iterations, "
                "start another with trainer.experiment_name=NAME, or start it afresh with trainer.resume_mode=disable"
            )
        await train(run)
        run.reporter.conclude(run.trained_s)
        return 130 if run.stop.is_set() else 0


# What is wrong with a run's parts or data, in words that need no traceback.
_SAID_PLAINLY = (
    assembly.SetupError,
    checkpoints.CheckpointError,
    CollectionError,
    DemonstrationError,
    FloatingPointError,
    PlanError,
    PolicyError,
    RankError,
    RendererError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m trainers.ppo``."""
    config: PPOConfig = load_config(
        sys.argv[1:] if argv is None else argv, plan=lambda config: describe(assembly.plan_of(config))
    )[0]
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    disable_progress_bar()  # transformers' own, for every file it reads or writes
    try:
        return asyncio.run(run_all(config))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped at once; nothing was saved since the last checkpoint", file=sys.stderr)
        return 130
    except _SAID_PLAINLY as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        print(
            f"error: {error}: make room and start the same command again; it goes on from the last checkpoint that "
            "is whole",
            file=sys.stderr,
        )
        return 1


if __name__ == "__main__":
    # Under the module's own name, so that the learner's ranks can import what they are sent.
    from trainers.ppo import main as _main

    raise SystemExit(_main())
