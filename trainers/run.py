"""A run: assembly of its parts from a configuration, warm start, and resuming from a checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from textenvs.threads import in_new_thread

from . import sft
from .algorithms.batch import TermsError
from .builders import SetupError, collection, environments, nothing_started
from .builders.collection import collector_of, trace_of
from .builders.data import check_data, data_of
from .builders.engines import check_engine, cluster_of, driver_device, engine_of, plan_of, sleeps
from .builders.folder import (
    START,
    checkpoint_to_resume,
    episode_files,
    held,
    logged_run,
    refuse_sft_folder,
    run_folder,
    write_config,
)
from .builders.learner import Publisher, check_learner, learner_of, learner_options, start_from_adapter
from .builders.policy import careless_of, experts_of, policy_of, renderer_of, set_threads, with_available_scripts
from .builders.reward_model import RewardModels, check_rewards, reward_models_of, start_early, try_served
from .checkpoints import Checkpoint, CheckpointError, Checkpoints, changes, damaged, refuse_checkpoint
from .cli import tuned_gc
from .cluster.group import LearnerGroup, RankError
from .cluster.memory import PlanError
from .cluster.plan import with_replicas
from .config import PPOConfig
from .demonstrations import DemonstrationError
from .engines.base import Engine
from .learner import Learner, Parallel
from .learner.memory import LearnerThread, empty_heap
from .policy import Policy, PolicyError
from .report.checks import CHECKS
from .report.console import ConsoleLogger
from .report.diagnosis import Doctor
from .report.loggers import METRICS_FILE, MetricsError, Reporter, read_jsonl
from .report.progress import Phase, Progress, duration
from .rollout.collector import CollectionError, Collector
from .rollout.environments import Backend
from .rollout.renderer import Renderer, RendererError
from .rollout.stats import TraceFile
from .update import Update

#: Expected errors, shown without a traceback. Any other is a bug of this package, or of a library.
EXPECTED = (
    *(SetupError, CheckpointError, CollectionError, DemonstrationError, FloatingPointError),
    *(MetricsError, PlanError, PolicyError, RankError, RendererError, TermsError),
)
#: Seconds that the environment's scripts may take before the first iteration.
_SCRIPTS_S = 5.0


@dataclass
class Run:
    """The parts of a run, and its state."""

    config: PPOConfig
    folder: Path
    learner: Learner | LearnerGroup
    engine: Engine
    publisher: Publisher
    collector: Collector
    validation: Mapping[str, Backend]  # by component
    validation_tasks: Mapping[str, Sequence[int]]
    update: Update
    reporter: Reporter
    saved: Checkpoints
    tokenizer: Any
    learning: LearnerThread  # computes all that a learner in this process does
    stop_token_ids: Sequence[int] = ()  # a reply that ends with one of them is complete
    sleepers: Sequence[Any] = ()  # engine and reward models that free memory while the learner learns
    reward_models: RewardModels | None = None
    trace: TraceFile | None = None
    resumed_from: Path | None = None  # the checkpoint
    reward_stats: Mapping[str, Callable[[], Mapping[str, float]]] = field(default_factory=dict)  # of delayed rewards
    made_here: bool = True  # this run created or warmed up the model, so it is not an unchanged model.path
    data: Mapping[str, Any] = field(default_factory=dict)  # the tasks that it plays, as in its checkpoints
    iteration: int = 0  # iterations done
    validated: int = 0  # iteration of the last validation; 0 also before any
    trained_s: float = 0.0  # seconds of training, over all resumptions
    stop: asyncio.Event = field(default_factory=asyncio.Event)  # a stop was requested
    given_up: threading.Event = field(default_factory=threading.Event)  # threads of the run must end
    publishing: asyncio.Future[None] | None = None  # an engine update in progress
    failure: Exception | None = None  # the error that ended collecting or learning
    warned: set[str] = field(default_factory=set)  # causes of failed episodes that were reported
    doctor: Doctor = field(default_factory=lambda: Doctor(CHECKS, {}))
    references: Mapping[str, float] = field(default_factory=dict)  # rewards of scripts

    def collecting(self) -> contextlib.AbstractContextManager[Phase]:
        """Show the progress of the next batch."""
        section, collector = self.config.rollout, self.collector
        episodes = section.groups_per_batch * section.n
        return self.reporter.progress.phase("collecting", episodes, "episodes", lambda: collector.collected)


# ------------------ assembly


@contextlib.asynccontextmanager
async def assemble(config: PPOConfig) -> AsyncIterator[Run]:
    """Build all parts, warm the policy up or resume, and close all parts at the end; the folder is locked."""
    async with contextlib.AsyncExitStack() as stack:
        yield await _assembled(config, stack)


async def _assembled(config: PPOConfig, stack: contextlib.AsyncExitStack) -> Run:
    with nothing_started():
        environments.check_environments(config)
        check_engine(config)
        check_rewards(config)
    folder = run_folder(config.trainer)
    stack.enter_context(held(folder))
    refuse_sft_folder(folder)
    saved = Checkpoints(folder / "checkpoints", config.trainer.keep_last_n)
    checkpoint = checkpoint_to_resume(config.trainer, saved)
    if checkpoint is not None:
        refuse_checkpoint(config, checkpoint)
    data = data_of(config)
    other_data = [] if checkpoint is None else list(check_data(config, checkpoint, data))
    console = ConsoleLogger(config.trainer.total_iterations) if "console" in config.trainer.logger else None
    progress = Progress.silent() if console is None else console.progress
    if console is not None:
        stack.callback(console.close)
    setting_up = progress.enter("setup")
    plan = plan_of(config)
    config = with_replicas(config, len(plan.engines))
    config, notes = with_available_scripts(config)
    credit = collection.redistribution_of(config.algorithm)
    components, seed, context = environments.played(config), config.trainer.seed, config.engine.max_context
    with progress.phase("loading the model"):
        policy = policy_of(
            config.model, components, config.warm_start, max_context=context, seed=seed, checkpoint=checkpoint
        )
    check_learner(config.model, config.trainer, policy, config.cluster.learner_ranks)
    set_threads(policy, config.trainer.threads)
    renderer = renderer_of(policy, config.data.chat_template_kwargs)
    environments.check_tools(config, renderer)
    trace = trace_of(config)
    reporter = Reporter(
        logged_run(config, folder, first_step_of(config, checkpoint)),
        config.trainer.logger,
        total=config.trainer.total_iterations,
        episodes=episode_files(config, folder, policy.tokenizer),
        on_phase=None if trace is None else trace.phase,
        console=console,
    )
    if policy.unused_token_ids:
        reporter.say(unused_line(policy))
    stack.callback(saved.wait)  # finish writing in the background, or report its failure
    stack.callback(reporter.close)
    if not config.trainer.val_only:  # val_only leaves the folder unchanged
        write_config(folder, config)
    if trace is not None:
        stack.callback(trace.close)
    learning, given_up = LearnerThread(), threading.Event()
    stack.callback(learning.close)
    stack.callback(given_up.set)  # cancelling a waiter does not cancel its thread: signal it to end
    scores = collection.own_scores(config, stack)
    for line in (*notes, *environments.described(config), *environments.other_validation(config)):
        reporter.say(line)
    longest = None if config.model.path == "tiny" else policy.skeleton.config.get_text_config()
    with nothing_started(), progress.phase("first openings of the environment"):
        await environments.try_openings(config, renderer, getattr(longest, "max_position_embeddings", None))
    with progress.phase("measuring the openings"):
        overlong = await environments.overlong_of(config, renderer, reporter.say)
    await collection.try_multiturn(config)
    first_step = first_step_of(config, checkpoint)
    scripts: Mapping[str, float] = {}
    if first_step == 0:
        playing = in_new_thread(partial(environments.references, config))  # abandoned if it hangs
        await asyncio.wait([playing], timeout=_SCRIPTS_S)
        scripts = playing.result() if playing.done() else {}
    doctor = Doctor(CHECKS, config.model_dump(mode="json"))
    if first_step and "jsonl" in config.trainer.logger:
        for step, metrics in read_jsonl(folder / METRICS_FILE):
            if step < first_step:
                doctor.observe(step, metrics)
    models: RewardModels | None = None
    if start_early(config):  # find errors before anything is trained
        models = await stack.enter_async_context(reward_models_of(config, plan))
    if checkpoint is not None:
        reporter.say(f"resuming from {checkpoint.path}")
        for line in other_data:
            reporter.say(line)
        if not config.trainer.val_only:
            policy.link_to(folder / START)  # later checkpoints replace it
        for change in changes(checkpoint.state["config"], config.model_dump(mode="json")):
            reporter.say(f"the configuration differs from the checkpoint's: {change}")
    elif warm_start_enabled(config):
        if models is None:
            await try_served(config)
        sleeper = None if models is None else models.sleeper
        if sleeper is not None:  # the learner spans its GPUs
            await sleeper.sleep()
        await learning(warm_up, config, policy, renderer, reporter.say, given_up, progress)
        await asyncio.to_thread(empty_heap)  # free the memory of the warm start's learner
        if sleeper is not None:
            await sleeper.wake()
    cluster = stack.enter_context(cluster_of(config, plan))
    with progress.phase("starting the learner"):
        learner = await learning(learner_of, config, policy, cluster)
    if isinstance(learner, LearnerGroup):
        stack.callback(learner.close)
        stack.callback(saved.wait)  # closed ranks cannot write: finish a save in the background first
    if checkpoint is None:  # the model of a checkpoint has its adapter merged already
        start_from_adapter(config, policy)
    version = 0 if checkpoint is None else checkpoint.iteration
    with progress.phase(f"starting the engine ({config.engine.name})"):
        engine = await engine_of(config, policy, renderer, version=version, cluster=cluster, learner=learner)
    stack.push_async_callback(engine.close)
    policy.release()
    reward_stats: dict[str, Callable[[], Mapping[str, float]]] = {}
    if config.multiturn_reward.enable:
        ahead = scores["multiturn"] = collection.multiturn_reward(config, policy.tokenizer)
        reward_stats["multiturn"] = ahead.stats
    if models is None:
        models = await stack.enter_async_context(reward_models_of(config, plan, cluster, learner))
    if models is not None:
        scores |= models.scores
        reward_stats |= {name: partial(models.stats, name) for name in models.scores}
    training, validation = dict[str, Backend](), dict[str, Backend]()
    for backends in (training, validation):
        for component in components:
            first, held_out = next(iter(backends.values()), None), backends is validation
            backend = environments.backend_of(config, component, validation=held_out, beside=first)
            backends[component.name] = await stack.enter_async_context(backend)
    without = {name: indices.training for name, indices in overlong.items()}
    collector = await stack.enter_async_context(
        collector_of(config, engine, renderer, training, trace, scores, credit, without)
    )
    sleepers: list[Any] = [engine] if sleeps(config) else []
    if models is not None:
        models.service.watch(collector.generating_s)
        if models.sleeper is not None:
            sleepers.append(models.sleeper)
    run = Run(
        config=config,
        folder=folder,
        learner=learner,
        engine=engine,
        publisher=Publisher(learner, config),
        collector=collector,
        validation=validation,
        validation_tasks={
            component.name: [
                task
                for task in environments.validation_tasks(config, component)
                if task not in overlong[component.name].validation
            ]
            for component in components
        },
        update=Update(config),
        reporter=reporter,
        saved=saved,
        tokenizer=policy.tokenizer,
        stop_token_ids=renderer.stop_token_ids,
        sleepers=sleepers,
        reward_models=models,
        trace=trace,
        resumed_from=None if checkpoint is None else checkpoint.path,
        reward_stats=reward_stats,
        learning=learning,
        given_up=given_up,
        made_here=config.model.path == "tiny" or warm_start_enabled(config),
        data=data,
        doctor=doctor,
        references=scripts,
    )
    stack.push_async_callback(_withdraw, run)
    if checkpoint is not None:
        with progress.phase("resuming from the checkpoint"):
            resume(run, checkpoint)
    progress.leave(setting_up)
    stack.enter_context(tuned_gc())
    return run


async def _withdraw(run: Run) -> None:
    """Cancel an engine update in progress when the run ends for another reason."""
    if run.publishing is not None:
        run.publishing.cancel()
        await asyncio.gather(run.publishing, return_exceptions=True)


def first_step_of(config: PPOConfig, checkpoint: Checkpoint | None) -> int | None:
    """Return the first step that this run logs (again, if an earlier run did); ``None`` for a validation only."""
    if config.trainer.val_only:
        return None
    return 0 if checkpoint is None or checkpoint.iteration == 0 else checkpoint.iteration + 1


# ------------------ the warm start


def warm_up(
    config: PPOConfig,
    policy: Policy,
    renderer: Renderer,
    say: Callable[[str], None],
    given_up: threading.Event,
    progress: Progress,
) -> None:
    """Train on demonstrations before PPO, in place; stop early when ``given_up`` is set."""
    section, seed = config.warm_start, config.trainer.seed
    parts = [("warm start", section, seed, experts_of(config))]
    if section.careless_steps:
        changed = {
            "files": None,
            "demonstrations": section.careless_steps * section.batch_size,
            "steps": section.careless_steps,
            "lr": section.careless_lr,
            "mistake_rate": section.careless_rate,
            "mistake_weight": 1.0,
        }
        parts.append(("careless", section.model_copy(update=changed), seed + 1, careless_of(config)))
    # Prepare all parts first, to find errors before anything is trained.
    options = learner_options(config.model, config.trainer)
    if config.model.path == "tiny":
        options["lora"] = None  # a model from scratch has no weights worth an adapter yet
    if config.cluster.learner_ranks > 1:
        options["parallel"] = Parallel()  # only this process trains
    examples_of_parts = [
        sft.examples_of(components, part, policy, renderer, part_seed, given_up.is_set, progress)
        for _, part, part_seed, components in parts
    ]
    for (name, part, part_seed, _), examples in zip(parts, examples_of_parts, strict=True):
        began = time.perf_counter()
        with progress.phase(name, part.steps, "steps") as phase:
            on_step, device = _watched(given_up, phase), driver_device(config)
            sft.fit(policy, examples, part, seed=part_seed, on_step=on_step, device=device, options=options)
        say(f"{name}: {part.steps} steps, {phase.detail}, {duration(time.perf_counter() - began)}")


def _watched(given_up: threading.Event, phase: Phase) -> sft.OnStep:
    def on_step(step: int, metrics: Mapping[str, float]) -> None:
        if given_up.is_set():
            raise asyncio.CancelledError
        phase.advance(detail=f"loss {metrics['loss']:.4f}")

    return on_step


def unused_line(policy: Policy) -> str:
    unused = policy.unused_token_ids
    size = policy.skeleton.config.get_text_config().vocab_size
    return (
        f"{len(unused)} of the model's {size} token ids have no token in its tokenizer: they are never sampled, and "
        "log-probabilities are over the others"
    )


def warm_start_enabled(config: PPOConfig) -> bool:
    """Return whether to warm up: as configured, else for a model from scratch, which knows no words yet."""
    enabled = config.warm_start.enable
    return config.model.path == "tiny" if enabled is None else enabled


# ------------------ resuming from a checkpoint


def resume(run: Run, checkpoint: Checkpoint) -> None:
    state = checkpoint.state
    try:
        if not state.get("weights_only"):  # otherwise this validates the model, which is loaded
            run.learner.load(checkpoint.path / "learner")
        run.collector.restore(state["frontier"])
        run.update.load_state_dict(state)
        run.iteration, run.trained_s = int(state["iteration"]), float(state["trained_s"])
    except (RankError, torch.OutOfMemoryError):
        raise
    except (OSError, ValueError, TypeError, LookupError, RuntimeError) as error:
        if type(error) is ValueError:  # for example, other tasks are left out now
            raise CheckpointError(f"{checkpoint.path} cannot be resumed from: {error}") from error
        raise damaged(checkpoint.path, error) from error
    run.validated = int(state.get("validated", run.iteration))  # older checkpoints do not say: assume that it was done
