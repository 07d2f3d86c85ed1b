"""Train a policy in a text environment with PPO: one process, read from top to bottom.

    python -m trainers.ppo                      a tiny model from scratch learns textenv/gsm8k-interact
    python -m trainers.ppo key=value ...        anything else; --help lists the keys, --dry-run shows what would be used

An iteration: the collector gives a batch of episodes (:mod:`trainers.rollout.collector`), turn rewards become the
advantages of the tokens that earned them (:mod:`trainers.algorithms`), the learner takes its steps
(:mod:`trainers.learner`), and the engine receives the new weights. With ``rollout.staleness=0`` these follow each
other; otherwise episodes continue while the learner learns, and the engine receives a snapshot of the weights.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial

from .command_line import check_arguments, load_config
from .config import PPOConfig
from .config.sizes import optimizer_steps

if __name__ == "__main__":
    check_arguments(sys.argv[1:], PPOConfig, "python -m trainers.ppo")

try:
    import torch  # noqa: F401 - not used here: for an error that says how to install it
except ImportError as error:
    raise ImportError("training needs torch: pip install 'textenvs[train]'") from error
from transformers.utils.logging import disable_progress_bar

from textenvs.text import excerpt, plural

from .algorithms.batch import TermsError
from .algorithms.reaction import MovesError
from .builders.folder import resume_advice, run_folder
from .builders.rehearsal import placed, rehearse
from .builders.reward_model import reward_problems
from .cli import Interrupts, leave, run_command
from .engines.base import EngineError, Sampling
from .learner.memory import empty_heap
from .report.episodes import Explained
from .report.metrics import Phases, episode_metrics, groups_tied, health_metrics, mixture_metrics, tied_tasks
from .rollout.batch import Batch
from .rollout.group_scheduler import CollectionError
from .rollout.stats import ended
from .run import EXPECTED, Run, assemble, profiling, save, traced, until_stopped
from .trajectory import Trajectory
from .update import UpdateResult

log = logging.getLogger("trainers")

_SHOWN = 4000  # characters of an episode's error on the console: a traceback, without megabytes of quoted text
_COLLECTING = (CollectionError, EngineError)  # collecting failed; the learner is intact
_LEARNING = (FloatingPointError, MovesError, TermsError, EngineError)  # no step was taken with a batch


# ------------------ the loop


async def train(run: Run) -> None:
    """Iterate until the configured end, or a request to stop; save a checkpoint in any case, also on failure."""
    config = run.config.trainer
    if run.iteration == 0:
        diagnose(run, run.references)
        if run.made_here:
            save(run)  # do not repeat the warm start
        if config.val_before_train:
            await validate(run)
    elif every(config.test_freq, run.iteration) and run.validated != run.iteration and not run.finished:
        await validate(run)  # this was interrupted
    saved_at = run.iteration
    while run.iteration < config.total_iterations and not run.stop.is_set() and run.failure is None:
        if config.time_limit_s is not None and run.trained_s >= config.time_limit_s:
            log.info("the time limit of %g s is reached", config.time_limit_s)
            break
        began = time.perf_counter()
        phases = run.reporter.phases()
        async with profiling(run):
            try:
                with phases("rollout"), run.collecting():
                    batch = await until_stopped(run.collector.next_batch(), run.stop, run.publishing)
            except _COLLECTING as error:
                run.failure = error
                break
            if batch is None:
                break
            warn(run, batch)
            try:
                metrics, explained = await iterate(run, batch, phases)
            except _LEARNING as error:
                run.failure = error
                break
        run.trained_s += time.perf_counter() - began
        run.iteration += 1
        if run.iteration == 1:
            metrics = {**run.references, **metrics}
        components = None
        if run.config.env.mixture:
            components = {episode.trajectory.group_id: episode.choice.component for episode in batch.episodes}
        run.reporter.iteration(run.iteration, metrics, batch.trained, explained, batch.version, components)
        diagnose(run, metrics, tied_tasks(batch.groups))
        validating, saving = (every(frequency, run.iteration) for frequency in (config.test_freq, config.save_freq))
        if validating or saving:
            await published(run)
        if validating and run.failure is None:
            try:
                await validate(run)
            except _COLLECTING as error:
                run.failure = error
        if saving:
            save(run)
            saved_at = run.iteration
    await published(run)
    if saved_at != run.iteration:
        save(run)
    run.saved.wait()
    if run.failure is not None:
        if run.iteration:
            log.warning("the run cannot continue; what was learned in %s is saved", plural(run.iteration, "iteration"))
        raise run.failure
    if run.validated != run.iteration and not run.stop.is_set():
        await validate(run)
        if run.validated == run.iteration:  # not stopped meanwhile
            run.saved.amend(run.iteration, {"validated": run.validated})


async def published(run: Run) -> None:
    """Wait until the engine has the weights that are on their way; an error ends the run."""
    publishing, run.publishing = run.publishing, None
    if publishing is not None:
        try:
            await publishing
        except _COLLECTING as error:  # the learner is intact: train() saves it
            run.failure = run.failure or error


def warn(run: Run, batch: Batch) -> None:
    """Log why episodes failed: each cause once; further occurrences are counted in the metrics."""
    for cause, message in batch.problems.items():
        if cause not in run.warned:
            run.warned.add(cause)
            log.warning("an episode ended as %s: %s", cause, excerpt(message, _SHOWN))


def diagnose(run: Run, metrics: Mapping[str, float], tied: Sequence[str] = ()) -> None:
    """Log the problems that this row of metrics shows for the first time."""
    for finding in run.doctor.observe(run.iteration, metrics, tied):
        log.warning("from iteration %d on, %s", finding.step, finding)


async def iterate(run: Run, batch: Batch, phases: Phases) -> tuple[dict[str, float], Explained | None]:
    """Learn from one batch: credit, steps, new weights to the engine. Return metrics, and explanations of tokens."""
    if run.sleepers:
        with phases("sleep"):
            await published(run)  # a sleeping engine takes no weights
            await asyncio.gather(*(sleeper.sleep() for sleeper in run.sleepers))
    # The learner computes in a thread of its own, so that episodes continue meanwhile.
    with phases("learn"):
        result = await learn(run, batch)
    with phases("publish"):
        size = await publish(run, batch)
    times, tokens = phases.finish(), sum(int(t.action_mask.sum()) for t in batch.trained)
    metrics = {
        **batch_metrics(run, batch),
        **result.metrics,
        **{f"rollout/{name}": value for name, value in batch.stats.items()},
        **{f"reward/{name}_{key}": value for name, stats in run.reward_stats.items() for key, value in stats().items()},
        **times,
        "perf/published_mib": size / 2**20,
        "perf/sampled_tokens": tokens,
        "perf/tokens_per_s": tokens / times["time/iteration_s"],
        "perf/rollout_tokens_per_s": tokens / max(times["time/rollout_s"], 1e-9),
    }
    return metrics, result.explained


async def learn(run: Run, batch: Batch) -> UpdateResult:
    """Compute advantages from the rewards as credited, and take the optimizer steps."""
    await asyncio.to_thread(empty_heap)  # free the engine's memory, which another thread could not use
    forward = await run.learning(run.update.forward, batch.episodes, run.learner)
    if run.publisher.live:
        await published(run)  # the optimizer is about to change what engines still read
    with run.reporter.progress.phase("learning", optimizer_steps(run.config), "steps") as phase:
        step = partial(run.update.step, iteration=run.iteration, forward=forward, explain=run.reporter.explains())
        progress = {"on_step": phase.advance, "given_up": run.given_up}
        result = await run.learning(step, batch.episodes, run.learner, **progress)
    await asyncio.to_thread(empty_heap)
    return result


async def publish(run: Run, batch: Batch) -> int:
    """Give the engine the new weights; return the bytes that the learner sent."""
    await published(run)  # one update at a time
    weights, size = await run.learning(run.publisher.take)
    if run.sleepers:
        await run.learning(run.learner.free_cache)  # the engine takes memory for its weights
    update = run.collector.update_weights(weights, batch.version + 1, run.config.rollout.update_mode)
    run.publishing = asyncio.ensure_future(update)
    if run.sleepers or not run.config.rollout.staleness:  # the engine reads the parameters, or has no room for more
        await published(run)
    if run.sleepers:
        await run.learning(run.learner.free_cache)  # and for keys and values
    await asyncio.gather(*(sleeper.wake() for sleeper in run.sleepers))  # also keys and values: there is room now
    return size


def batch_metrics(run: Run, batch: Batch) -> dict[str, float]:
    """Return metrics of the episodes that were played."""
    config, groups = run.config, batch.groups
    by_agent = [episode_metrics(episodes, f"train/{agent}") for agent, episodes in batch.by_agent.items()]
    return {
        **episode_metrics(batch.trajectories, "train", ended=ended(batch.stats)),
        "train/groups_tied": groups_tied(groups, by_term="terms" in config.algorithm.needs),
        **health_metrics(groups, config.rollout.max_response_length, run.stop_token_ids),
        **{name: value for metrics in by_agent for name, value in metrics.items()},
        **played_metrics(config, batch),
    }


def played_metrics(config: PPOConfig, batch: Batch) -> dict[str, float]:
    """Return metrics by component of a mixture, and of groups that began at their opening or in the middle."""
    by_term, metrics = "terms" in config.algorithm.needs, dict[str, float]()
    at_opening: dict[str, list[list[Trajectory]]] = {}
    if config.env.mixture:
        by_name: dict[str, list[list[Trajectory]]] = {name: [] for name in config.env.mixture}
        for choice, group in zip(batch.choices, batch.groups, strict=True):
            by_name[choice.component].append(group)
        metrics |= mixture_metrics(by_name, "train/mixture", by_term=by_term)
    if config.env.curriculum.reverse_share:
        for choice, group in zip(batch.choices, batch.groups, strict=True):
            at_opening.setdefault("middle" if choice.start else "opening", []).append(group)
        metrics |= mixture_metrics(at_opening, "train/begun", by_term=by_term)
    return metrics


async def validate(run: Run) -> str | None:
    """Play the validation tasks with the current weights and report; report nothing if a stop is requested.

    If no episode could be scored, return their number, and why the first failed; else ``None``.
    """
    config = run.config.validation
    began = time.perf_counter()
    sampling = Sampling(
        temperature=config.temperature, top_p=config.top_p, max_new_tokens=run.config.rollout.max_response_length
    )
    seed = run.config.trainer.seed
    count = config.n * sum(map(len, run.validation_tasks.values()))
    with traced(run, "validate"), run.reporter.progress.phase("validation", count, "episodes") as phase:
        episodes = (
            run.collector.evaluate(
                tasks,
                samples=config.n,
                sampling=sampling,
                seed=seed,
                backend=run.validation[name],
                on_end=phase.advance,
            )
            for name, tasks in run.validation_tasks.items()
        )
        of_components = await until_stopped(asyncio.gather(*episodes), run.stop)
    if of_components is None:
        return None
    trajectories = [episode for component in of_components for episode in component]
    failed = [episode for episode in trajectories if not episode.status.trainable]
    message = None
    if failed:
        first = failed[0]
        message = (
            f"{len(failed)} of {len(trajectories)} validation episodes could not be scored: {first.status.value}: "
            f"{excerpt(first.error or first.stop or 'no reason given', _SHOWN)}"
        )
        log.warning("%s", message)
    metrics = episode_metrics(trajectories, "val") | {"time/validation_s": time.perf_counter() - began}
    components = None
    if run.config.env.mixture:
        by_name = dict(zip(run.validation_tasks, of_components, strict=True))
        metrics |= mixture_metrics(
            {name: [[trajectory] for trajectory in component] for name, component in by_name.items()}, "val/mixture"
        )
        components = {episode.group_id: name for name, component in by_name.items() for episode in component}
    run.reporter.validation(run.iteration, metrics, trajectories, components)
    diagnose(run, metrics)
    run.validated = run.iteration
    return message if len(failed) == len(trajectories) else None


def every(frequency: int, iteration: int) -> bool:
    """Return whether something that happens every ``frequency`` iterations (-1: never) happens after this one."""
    return frequency > 0 and iteration % frequency == 0


# ------------------ the command


async def run_all(config: PPOConfig, interrupts: Interrupts) -> int:
    async with assemble(config) as run:
        interrupts.save_first(run.stop)
        return await play(run)


async def play(run: Run) -> int:
    config = run.config
    if config.trainer.val_only:
        unscored = await validate(run)
        run.reporter.conclude(run.trained_s, conversations=not run.stop.is_set())
        if unscored is not None:
            raise CollectionError(unscored)
        return 130 if run.stop.is_set() else 0
    if run.finished and run.validated == run.iteration:
        run.reporter.say(
            f"this run is finished ({plural(run.iteration, 'iteration')}). Continue with a larger "
            "trainer.total_iterations, start another with trainer.experiment_name=NAME, or start it afresh with "
            "trainer.resume_mode=disable"
        )
    await train(run)
    run.reporter.conclude(run.trained_s, conversations=not run.stop.is_set())
    if not run.stop.is_set():
        return 0
    run.reporter.say(f"saved:   {run.saved.newest_path() or 'no checkpoint'}")
    run.reporter.say(
        f"stopped after iteration {run.iteration} of {config.trainer.total_iterations}: {resume_advice(config.trainer)}"
    )
    return 130


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    config, flags = load_config(words, plan=placed, rehearse=rehearse, check=reward_problems)
    disable_progress_bar()  # transformers' own, for every file it reads or writes
    interrupts = Interrupts()

    def advice(full: bool) -> str:
        todo = "make room" if full else "see to it that the run's folder can be written"
        return f"{todo} and {resume_advice(config.trainer)}"

    return run_command(
        lambda: interrupts.run(run_all(config, interrupts)),
        stopped=f"stopped at once; nothing was saved since the last checkpoint: {resume_advice(config.trainer)}",
        expected=EXPECTED,
        folder=run_folder(config.trainer),
        advice=advice,
        as_written=flags.as_written,
    )


if __name__ == "__main__":
    leave(main())
