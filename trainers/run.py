"""A run: assembly of its parts from a configuration, warm start, and resuming from a checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from textenvs.event_loop import in_new_thread

from . import sft
from .algorithms.batch import TermsError
from .algorithms.reaction import MovesError
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
from .builders.learner import check_learner, learner_of, start_from_adapter
from .builders.policy import (
    careless_of,
    experts_of,
    loading_phase,
    policy_of,
    renderer_of,
    set_threads,
    with_available_scripts,
)
from .builders.reward_model import RewardModels, check_rewards, reward_models_of, start_early, try_served
from .chat_template import RendererError
from .checkpoints import Checkpoint, CheckpointError, Checkpoints, changes, damaged, refuse_checkpoint
from .cli import tuned_gc
from .cluster.group import LearnerGroup, RankError
from .cluster.memory import PlanError
from .cluster.plan import with_replicas
from .cluster.publisher import Publisher
from .cluster.ray.runtime import captures
from .config import PPOConfig
from .config.sizes import episodes_per_batch
from .engines.base import Engine
from .learner import Learner
from .learner.memory import LearnerThread, empty_heap
from .models.policy import Policy, PolicyError
from .report.checks import CHECKS
from .report.console import ConsoleLogger
from .report.diagnosis import Doctor
from .report.loggers import METRICS_FILE, MetricsError, Reporter, profiled, read_jsonl
from .report.progress import Phase, Progress, duration
from .rollout.collector import Collector
from .rollout.demonstrations import DemonstrationError
from .rollout.environments import Backend
from .rollout.group_scheduler import CollectionError
from .rollout.renderer import Renderer
from .rollout.trace import TraceFile
from .update import Update

#: Expected errors, shown without a traceback. Any other is a bug of this package, or of a library.
EXPECTED = (
    *(SetupError, CheckpointError, CollectionError, DemonstrationError, FloatingPointError),
    *(MetricsError, MovesError, PlanError, PolicyError, RankError, RendererError, TermsError),
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

    @property
    def finished(self) -> bool:
        """True after the last configured iteration."""
        return self.iteration >= self.config.trainer.total_iterations

    def collecting(self) -> contextlib.AbstractContextManager[Phase]:
        """Show the progress of the next batch."""
        episodes, collector = episodes_per_batch(self.config.rollout), self.collector
        return self.reporter.progress.phase("collecting", episodes, "episodes", lambda: collector.collected)


@contextlib.asynccontextmanager
async def profiling(run: Run) -> AsyncIterator[None]:
    """Profile the iteration of the block, if configured: with torch's profiler, or on ranks that Nsight watches."""
    step = run.iteration + 1
    if step not in run.config.trainer.profile_steps:
        yield
    elif captures(run.config.cluster.nsight):
        assert isinstance(run.learner, LearnerGroup)  # the configuration was checked
        await asyncio.to_thread(run.learner.capture, True)
        try:
            yield
        finally:
            await asyncio.to_thread(run.learner.capture, False)
    else:
        with profiled(run.folder, step):
            yield


@contextlib.contextmanager
def traced(run: Run, name: str) -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    finally:
        if run.trace is not None:
            run.trace.phase(name, began, time.monotonic())


async def until_stopped(work: Any, stop: asyncio.Event, beside: asyncio.Future[None] | None = None) -> Any:
    """Return the result of ``work``, or cancel it and return ``None`` when ``stop`` is set first.

    If ``beside``, which ``work`` may wait for, fails first, raise its error. A result that is ready is returned.
    """
    task, waiter = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    waited: set[asyncio.Future[Any]] = {task, waiter} if beside is None else {task, waiter, beside}
    try:
        while not (task.done() or waiter.done()):
            done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if beside in done and not task.done():
                beside.result()
            waited -= done
        return task.result() if task.done() else None
    finally:
        for pending in (task, waiter):
            pending.cancel()
        await asyncio.gather(task, waiter, return_exceptions=True)


# ------------------ assembly


@contextlib.asynccontextmanager
async def assemble(config: PPOConfig) -> AsyncIterator[Run]:
    """Build all parts, warm the policy up or resume, and close all parts at the end; the folder is locked."""
    async with contextlib.AsyncExitStack() as stack:
        yield await _assembled(config, stack)


async def _assembled(config: PPOConfig, stack: contextlib.AsyncExitStack) -> Run:
    parts = _Parts(config, stack)
    parts.open_folder()
    parts.load_policy()
    parts.open_reports()
    await parts.try_environments()
    await parts.warm_up_or_resume()
    await parts.start_engine()
    await parts.start_rewards()
    await parts.start_collector()
    return parts.finish()


class _Parts:
    """The parts of a run; each step needs what those before it have built, and closes it with the stack."""

    folder: Path
    saved: Checkpoints
    checkpoint: Checkpoint | None
    policy: Policy
    reporter: Reporter
    learner: Learner | LearnerGroup
    engine: Engine
    collector: Collector

    def __init__(self, config: PPOConfig, stack: contextlib.AsyncExitStack) -> None:
        self.config, self.stack = config, stack
        self.learning, self.given_up = LearnerThread(), threading.Event()
        self.models: RewardModels | None = None
        self.references: Mapping[str, float] = {}
        self.reward_stats: dict[str, Callable[[], Mapping[str, float]]] = {}

    def open_folder(self) -> None:
        """Check what is installed, lock the folder, and find the checkpoint to resume from."""
        config, trainer = self.config, self.config.trainer
        with nothing_started():
            environments.check_environments(config)
            check_engine(config)
            check_rewards(config)
        self.folder = run_folder(trainer)
        self.stack.enter_context(held(self.folder))
        refuse_sft_folder(self.folder)
        self.saved = Checkpoints(self.folder / "checkpoints", trainer.keep_last_n)
        self.checkpoint = checkpoint_to_resume(trainer, self.saved)
        if self.checkpoint is not None:
            refuse_checkpoint(config, self.checkpoint)
        self.data = data_of(config)
        self.other_data = [] if self.checkpoint is None else list(check_data(config, self.checkpoint, self.data))
        self.console = ConsoleLogger(trainer.total_iterations) if "console" in trainer.logger else None
        self.progress = Progress.silent() if self.console is None else self.console.progress
        if self.console is not None:
            self.stack.callback(self.console.close)

    def load_policy(self) -> None:
        """Plan where everything runs, load the model and its tokenizer, and check what the model can do."""
        self.setting_up = self.progress.enter("setup")
        self.plan = plan_of(self.config)
        self.config, self.notes = with_available_scripts(with_replicas(self.config, len(self.plan.engines)))
        config = self.config
        self.credit = collection.redistribution_of(config.algorithm)
        self.components = environments.played(config)
        with self.progress.phase(loading_phase(config.model, self.checkpoint)):
            self.policy = policy_of(
                config.model,
                self.components,
                config.warm_start,
                max_context=config.engine.max_context,
                seed=config.trainer.seed,
                checkpoint=self.checkpoint,
            )
        check_learner(config.model, config.trainer, self.policy, config.cluster.learner_ranks)
        set_threads(self.policy, config.trainer.threads)
        self.renderer = renderer_of(self.policy, config.data.chat_template_kwargs, config.actor)
        environments.check_tools(config, self.renderer)

    def open_reports(self) -> None:
        """Open the loggers and the files of the run's folder; later parts are closed before them."""
        config, stack = self.config, self.stack
        self.trace = trace_of(config)
        self.reporter = Reporter(
            logged_run(config, self.folder, first_step_of(config, self.checkpoint)),
            config.trainer.logger,
            episodes=episode_files(config, self.folder, self.policy.tokenizer),
            on_phase=None if self.trace is None else self.trace.phase,
            console=self.console,
        )
        if self.policy.unused_token_ids:
            self.reporter.say(unused_line(self.policy))
        stack.callback(self.saved.wait)  # finish writing in the background, or report its failure
        stack.callback(self.reporter.close)
        if not config.trainer.val_only:  # val_only leaves the folder unchanged
            write_config(self.folder, config)
        if self.trace is not None:
            stack.callback(self.trace.close)
        stack.callback(self.learning.close)
        stack.callback(self.given_up.set)  # cancelling a waiter does not cancel its thread: signal it to end
        self.scores = collection.own_scores(config, stack)
        for line in (*self.notes, *environments.described(config), *environments.other_validation(config)):
            self.reporter.say(line)

    async def try_environments(self) -> None:
        """Render openings, measure them, play the scripts, and read the metrics of an earlier run."""
        config, renderer = self.config, self.renderer
        longest = None if config.model.path == "tiny" else self.policy.skeleton.config.get_text_config()
        with nothing_started(), self.progress.phase("first openings of the environment"):
            await environments.try_openings(config, renderer, getattr(longest, "max_position_embeddings", None))
        with self.progress.phase("measuring the openings"):
            self.overlong = await environments.overlong_of(config, renderer, self.reporter.say)
        await collection.try_multiturn(config)
        first_step = first_step_of(config, self.checkpoint)
        if first_step == 0:
            playing = in_new_thread(partial(environments.references, config))  # abandoned if it hangs
            await asyncio.wait([playing], timeout=_SCRIPTS_S)
            self.references = playing.result() if playing.done() else {}
        self.doctor = Doctor(CHECKS, config.model_dump(mode="json"))
        if first_step and "jsonl" in config.trainer.logger:
            for step, metrics in read_jsonl(self.folder / METRICS_FILE):
                if step < first_step:
                    self.doctor.observe(step, metrics)

    async def warm_up_or_resume(self) -> None:
        """Warm the policy up, or say what differs from the checkpoint that the run resumes from."""
        config, checkpoint, say = self.config, self.checkpoint, self.reporter.say
        if start_early(config):  # find errors before anything is trained
            self.models = await self.stack.enter_async_context(reward_models_of(config, self.plan))
        if checkpoint is not None:
            say(f"resuming from {checkpoint.path}")
            for line in self.other_data:
                say(line)
            if not config.trainer.val_only:
                self.policy.link_to(self.folder / START)  # later checkpoints replace it
            for change in changes(checkpoint.state["config"], config.model_dump(mode="json")):
                say(f"the configuration differs from the checkpoint's: {change}")
        elif warm_start_enabled(config):
            if self.models is None:
                await try_served(config)
            sleeper = None if self.models is None else self.models.sleeper
            if sleeper is not None:  # the learner spans its GPUs
                await sleeper.sleep()
            await self.learning(warm_up, config, self.policy, self.renderer, say, self.given_up, self.progress)
            await asyncio.to_thread(empty_heap)  # free the memory of the warm start's learner
            if sleeper is not None:
                await sleeper.wake()

    async def start_engine(self) -> None:
        """Start the learner, and the engine with its weights."""
        config, policy, stack = self.config, self.policy, self.stack
        self.cluster = stack.enter_context(cluster_of(config, self.plan))
        with self.progress.phase("starting the learner"):
            self.learner = learner = await self.learning(learner_of, config, policy, self.cluster)
        if isinstance(learner, LearnerGroup):
            stack.callback(learner.close)
            stack.callback(self.saved.wait)  # closed ranks cannot write: finish a save in the background first
        if self.checkpoint is None:  # the model of a checkpoint has its adapter merged already
            start_from_adapter(config, policy)
        version = 0 if self.checkpoint is None else self.checkpoint.iteration
        with self.progress.phase(f"starting the engine ({config.engine.name})"):
            self.engine = await engine_of(
                config, policy, self.renderer, version=version, cluster=self.cluster, learner=learner
            )
        stack.push_async_callback(self.engine.close)
        policy.release()

    async def start_rewards(self) -> None:
        """Start what scores episodes beside generation."""
        config = self.config
        if config.multiturn_reward.enable:
            ahead = self.scores["multiturn"] = collection.multiturn_reward(config, self.policy.tokenizer)
            self.reward_stats["multiturn"] = ahead.stats
        if self.models is None:
            started = reward_models_of(config, self.plan, self.cluster, self.learner)
            self.models = await self.stack.enter_async_context(started)
        if self.models is not None:
            self.scores |= self.models.scores
            self.reward_stats |= {name: partial(self.models.stats, name) for name in self.models.scores}

    async def start_collector(self) -> None:
        """Start the environments and the collector, and note who gives memory back while the learner learns."""
        config, models = self.config, self.models
        training, self.validation = dict[str, Backend](), dict[str, Backend]()
        for backends in (training, self.validation):
            for component in self.components:
                first, held_out = next(iter(backends.values()), None), backends is self.validation
                backend = environments.backend_of(config, component, validation=held_out, beside=first)
                backends[component.name] = await self.stack.enter_async_context(backend)
        without = {name: indices.training for name, indices in self.overlong.items()}
        self.collector = await self.stack.enter_async_context(
            collector_of(config, self.engine, self.renderer, training, self.trace, self.scores, self.credit, without)
        )
        self.sleepers: list[Any] = [self.engine] if sleeps(config) else []
        if models is not None:
            models.service.watch(self.collector.generating_s)
            if models.sleeper is not None:
                self.sleepers.append(models.sleeper)

    def finish(self) -> Run:
        """Return the run, at its checkpoint if it has one."""
        config, checkpoint = self.config, self.checkpoint
        run = Run(
            config=config,
            folder=self.folder,
            learner=self.learner,
            engine=self.engine,
            publisher=Publisher(self.learner, config),
            collector=self.collector,
            validation=self.validation,
            validation_tasks={
                component.name: [
                    task
                    for task in environments.validation_tasks(config, component)
                    if task not in self.overlong[component.name].validation
                ]
                for component in self.components
            },
            update=Update(config),
            reporter=self.reporter,
            saved=self.saved,
            tokenizer=self.policy.tokenizer,
            stop_token_ids=self.renderer.stop_token_ids,
            sleepers=self.sleepers,
            reward_models=self.models,
            trace=self.trace,
            resumed_from=None if checkpoint is None else checkpoint.path,
            reward_stats=self.reward_stats,
            learning=self.learning,
            given_up=self.given_up,
            made_here=config.model.path == "tiny" or warm_start_enabled(config),
            data=self.data,
            doctor=self.doctor,
            references=self.references,
        )
        self.stack.push_async_callback(_withdraw, run)
        if checkpoint is not None:
            with self.progress.phase("resuming from the checkpoint"):
                resume(run, checkpoint)
        self.progress.leave(self.setting_up)
        self.stack.enter_context(tuned_gc())
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
    model = config.model.model_copy(update={"device": driver_device(config).type})
    if model.path == "tiny":
        model = model.model_copy(update={"lora_rank": 0})  # a model from scratch has no weights worth an adapter yet
    run = config.trainer
    if config.cluster.learner_ranks > 1:  # only this process trains
        alone = {"fsdp_size": None, "tensor_parallel_size": 1, "ulysses_sequence_parallel_size": 1}
        run = run.model_copy(update=alone)
    examples_of_parts = [
        sft.examples_of(components, part, policy, renderer, part_seed, given_up.is_set, progress)
        for _, part, part_seed, components in parts
    ]
    for (name, part, part_seed, _), examples in zip(parts, examples_of_parts, strict=True):
        began = time.perf_counter()
        with progress.phase(name, part.steps, "steps") as phase:
            sft.fit(policy, examples, part, model, run, seed=part_seed, on_step=_watched(given_up, phase))
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


# ------------------ checkpoints


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


def save(run: Run) -> None:
    """Write a checkpoint: all that exact resuming needs, or only the model (``trainer.save_weights_only``)."""
    learner, section = run.learner, run.config.trainer
    state = {
        "iteration": run.iteration,
        "trained_s": run.trained_s,
        "validated": run.validated,
        "frontier": run.collector.frontier(),
        **run.update.state_dict(),
        "config": run.config.model_dump(mode="json"),
        "data": dict(run.data),
        "weights_only": section.save_weights_only,
    }
    write_state: Callable[[Path], Any] = learner.save
    write_model: Callable[[Path], Any] = partial(learner.export_hf, tokenizer=run.tokenizer)
    with traced(run, "save"), run.reporter.progress.phase("saving a checkpoint"):
        if section.async_save:
            run.saved.wait()  # before copying: there is never more than one copy
            write_model = learner.prepare_export(run.tokenizer)
            if not section.save_weights_only:
                write_state = learner.prepare_save()
        writers: list[Callable[[Path], Any]] = [lambda folder: write_model(folder / "model")]
        if not section.save_weights_only:
            writers.insert(0, lambda folder: write_state(folder / "learner"))
        keep = run.saved.save_in_background if section.async_save else run.saved.save
        keep(run.iteration, state, *writers)
