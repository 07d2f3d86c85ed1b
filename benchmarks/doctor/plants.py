"""25 faults to plant in a run, and configurations that are sound.

A fault is in the environment (:data:`~.environment.BROKEN`), the engine, the learner or the configuration. It begins
after ``begins`` iterations, so that there is a healthy run to compare with; those of the configuration or the
environment's construction begin with the run. Each names the verdicts of which one must come within five iterations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainers.config import PPOConfig
from trainers.engines.transport import LocalSource
from trainers.rollout.batch import Batch
from trainers.run import Run
from trainers.trajectory import Trajectory

from .environment import BROKEN

BEGINS = 8
ENV = "env.id=benchmarks.doctor.environment:benchmarks/repeat"
COMMON = (
    *(ENV, "rollout.groups_per_batch=8", "rollout.n=8", "rollout.max_response_length=8", "engine.max_context=96"),
    *("engine.max_slots=64", "engine.threads=1", "trainer.threads=1", "data.val_size=64", "trainer.save_freq=-1"),
    *("actor.lr=5e-4", "actor.lr_schedule=constant", "trainer.test_freq=5", "actor.lr_warmup_steps=4"),
    *("trainer.logger=jsonl", "trainer.keep_rollouts=0", "trainer.resume_mode=disable"),
)

Change = Callable[[Run], None]


@dataclass(frozen=True)
class Plant:
    """A fault: what to change in a run when it begins, or how to configure it; and verdicts that name it."""

    name: str
    where: str
    expected: tuple[str, ...]
    change: Change | None = None
    options: tuple[str, ...] = ()
    begins: int = BEGINS
    planted: int | None = None  # the iterations before it is planted, where that is earlier


def broken(name: str) -> Change:
    return lambda run: BROKEN.add(name)


def option(section: str, **values: Any) -> Change:
    """Change what the loop reads of the configuration."""

    def change(run: Run) -> None:
        config: PPOConfig = run.config
        new = getattr(config, section).model_copy(update=values)
        run.config = config.model_copy(update={section: new})

    return change


def optimizer(**values: Any) -> Change:
    def change(run: Run) -> None:
        adamw = run.learner.actor_optimizer  # type: ignore[union-attr]
        adamw.section = adamw.section.model_copy(update=values)

    return change


def episodes(edit: Callable[[Trajectory, np.random.Generator], Trajectory]) -> Change:
    """Change every episode between rollout and learner."""

    def change(run: Run) -> None:
        take, rng = run.collector.next_batch, np.random.default_rng(0)

        async def next_batch() -> Batch:
            batch = await take()
            return replace(batch, episodes=[e.changed(edit(e.trajectory, rng)) for e in batch.episodes])

        run.collector.next_batch = next_batch  # type: ignore[method-assign]

    return change


def _with_rewards(episode: Trajectory, rewards: np.ndarray[Any, Any]) -> Trajectory:
    return replace(episode, turn_rewards=rewards, turn_terms=({},) * len(rewards))


def _noisy(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """Add noise to log-probabilities, as of an engine with an arithmetic of its own."""
    noise = rng.normal(0, 0.25, len(episode.token_ids)) * episode.action_mask
    return replace(episode, logprobs=np.minimum(episode.logprobs + noise, 0).astype(np.float32))


def _tempered(run: Run) -> None:
    """Have the engine sample at another temperature, and report log-probabilities of the requested one."""
    generate = run.collector._engine.generate

    async def hot(token_ids: Any, sampling: Any, *rest: Any, **options: Any) -> Any:
        return await generate(token_ids, replace(sampling, temperature=1.5), *rest, **options)

    run.collector._engine.generate = hot  # type: ignore[method-assign]


def _unpublished(run: Run) -> None:
    """Keep updates of the weights from the engine, which reports that it has them."""
    source, _ = run.publisher.take()
    assert isinstance(source, LocalSource)
    copies = [(names, value.clone()) for names, value in source.read()]
    stale = LocalSource(source.specs, lambda: iter(copies))
    run.publisher.take = lambda: (stale, 0)  # type: ignore[method-assign]


def _update(run: Run, edit: Callable[[dict[str, Any], Any], dict[str, Any]]) -> None:
    update = run.learner.update_actor

    def edited(part: Any, columns: Any, *rest: Any) -> Any:
        return update(part, edit(dict(columns), part), *rest)

    run.learner.update_actor = edited  # type: ignore[method-assign, assignment]


def _last(part: Any) -> np.ndarray[Any, Any]:
    """Return which action tokens of a mini-batch end a reply."""
    ends = []
    for episode in part:
        end = np.zeros(len(episode.token_ids), np.bool_)
        end[episode.turn_ends()] = True
        ends.append(end[episode.action_mask])
    return np.concatenate(ends)


def _endless(run: Run) -> None:
    """Have the loss punish tokens that end a reply, whatever they earned: a mask off by one."""
    _update(run, lambda columns, part: columns | {"advantages": np.where(_last(part), -3.0, 0.0)})


def _summed(run: Run) -> None:
    """Have the loss add up its tokens without an average."""
    _update(run, lambda columns, part: columns | {"weight": columns["weight"] * len(columns["weight"])})


def both(*changes: Change) -> Change:
    def change(run: Run) -> None:
        for apply in changes:
            apply(run)

    return change


def _hurt(run: Run) -> None:
    """Multiply the reward of one episode of a batch by a thousand."""
    episodes(lambda e, rng: _with_rewards(e, e.turn_rewards * (1000.0 if rng.random() < 0.02 else 1.0)))(run)


def _train_only(run: Run) -> None:
    """Add a growing reward in training alone, whatever the reply: by 0.15 an iteration."""
    begun = run.iteration
    episodes(lambda e, rng: _with_rewards(e, e.turn_rewards + 0.15 * (run.iteration - begun + 1) / e.num_turns))(run)


def _shuffled(run: Run) -> None:
    """Give rewards to other episodes of the batch."""
    take, rng = run.collector.next_batch, np.random.default_rng(0)

    async def next_batch() -> Batch:
        batch = await take()
        earned = rng.permutation([episode.total_reward for episode in batch.trajectories]).tolist()

        def earning(episode: Trajectory) -> Trajectory:
            return _with_rewards(episode, np.eye(episode.num_turns)[-1] * earned.pop())

        return replace(batch, episodes=[e.changed(earning(e.trajectory)) for e in batch.episodes])

    run.collector.next_batch = next_batch  # type: ignore[method-assign]


def _slow_learner(run: Run) -> None:
    """Slow learning down by a second, so that the rollout is always ahead."""

    def slow(columns: dict[str, Any], part: Any) -> dict[str, Any]:
        time.sleep(0.5)
        return columns

    _update(run, slow)


#: Names that a policy which falls apart may have.
_APART = ("kl", "entropy", "reward falls", "gradient", "template")
KL = ("actor.use_kl_loss=true", "actor.kl_loss_coef=0")

PLANTS = (
    Plant(
        "every reward is the same",
        "environment",
        ("no signal",),
        episodes(lambda e, rng: _with_rewards(e, 0 * e.turn_rewards)),
    ),
    Plant("nothing can be solved", "environment", ("no signal", "expert"), None, ("env.kwargs.fault=impossible",), 0),
    Plant("silence is paid", "environment", ("null policy",), None, ("env.kwargs.fault='pays silence'",), 0),
    Plant("right answers are judged wrong", "environment", ("expert",), None, ("env.kwargs.fault=misjudged",), 0),
    Plant(
        "rewards go to other episodes",
        "reward",
        ("learns nothing",),
        _shuffled,
        ("rollout.groups_per_batch=12", "rollout.n=12"),
        begins=20,  # the first iteration at which it can be said
        planted=0,
    ),
    Plant("environments raise", "environment", ("dead environments",), broken("raises"), ("rollout.retries=0",)),
    Plant(
        "environments hang",
        "environment",
        ("dead environments",),
        broken("hangs"),
        ("rollout.step_timeout_s=2", "rollout.retries=0", "trainer.test_freq=-1"),
    ),
    Plant("environments are slow", "environment", ("slow environments",), broken("slow"), ("trainer.test_freq=-1",)),
    Plant("the checker wants another form", "environment", ("reward falls", "no signal"), broken("format")),
    Plant("openings lost their task", "environment", ("template",), broken("opening")),
    Plant(
        "cut replies are paid",
        "environment",
        ("cut replies",),
        None,
        ("env.kwargs.fault=prefix", "rollout.max_response_length=2"),
        0,
    ),
    Plant("a training reward grows by itself", "reward", ("held-out check",), _train_only, ("trainer.test_freq=2",)),
    Plant("one reward is huge", "reward", ("gradient",), _hurt, ("algorithm.norm_by_std=false",)),
    Plant(
        "rewards change their sign",
        "reward",
        ("reward falls",),
        episodes(lambda e, rng: _with_rewards(e, -e.turn_rewards)),
    ),
    Plant("the engine keeps old weights", "engine", ("mismatch",), _unpublished, ("actor.lr=1e-3",)),
    Plant("the engine samples hotter", "engine", ("mismatch",), _tempered),
    Plant("the engine rounds", "engine", ("mismatch",), episodes(_noisy)),
    Plant("a learning rate 100 times as large", "learner", _APART, optimizer(lr=5e-2, grad_clip=1e9)),
    Plant("a learning rate of 0", "learner", ("policy stands still",), optimizer(lr=0.0)),
    Plant(
        "an entropy bonus that swamps the reward",
        "learner",
        ("entropy",),
        both(option("actor", entropy_coeff=3.0), optimizer(lr=2e-3)),
    ),
    Plant(
        "a negative entropy bonus",
        "learner",
        ("entropy",),
        both(option("actor", entropy_coeff=-3.0), optimizer(lr=3e-3)),
    ),
    Plant(
        "ends of replies are punished",
        "learner",
        ("length",),
        both(_endless, optimizer(lr=3e-3)),
        ("rollout.max_response_length=16",),
    ),
    Plant("the loss is a sum", "learner", ("gradient",), _summed),
    Plant("the reference is left", "learner", ("kl",), optimizer(lr=1e-2), KL),
    Plant("the learner is slow", "learner", ("staleness",), _slow_learner, ("rollout.staleness=3",), planted=0),
)

HEALTHY: dict[str, tuple[str, ...]] = {
    "turn_grpo, seed 1": ("trainer.seed=1",),
    "turn_grpo, seed 2": ("trainer.seed=2",),
    "grpo": ("algorithm.adv_estimator=grpo",),
    "rloo, KL to the reference": ("algorithm.adv_estimator=rloo", "actor.use_kl_loss=true"),
    "dr_grpo": ("algorithm.adv_estimator=dr_grpo",),
    "staleness 1": ("rollout.staleness=1",),
    "recomputed log-probabilities, gspo": (
        *("algorithm.adv_estimator=rloo", "actor.old_logprobs=recompute", "actor.policy_loss=gspo"),
        *("actor.clip_ratio_low=0.0003", "actor.clip_ratio_high=0.0004"),
    ),
    "groups without a signal replaced": ("rollout.filter_zero_variance=true",),
    "two epochs, entropy bonus": ("actor.ppo_epochs=2", "actor.entropy_coeff=0.01"),
}
