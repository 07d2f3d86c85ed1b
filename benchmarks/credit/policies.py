"""The tasks, and two policies of each: one that imitates the scripted expert, with mistakes, and one after some RL."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fork_credit.runs import FAMILIES, Start, make_start
from trainers.command_line import resolve
from trainers.ppo import iterate
from trainers.run import Run, assemble

#: The policies of a task, by name; the value is the number of training iterations.
POLICIES = {"imitated": 0, "trained": 12}
#: Settings of all runs.
COMMON = (
    *("trainer.threads=1", "trainer.logger=[jsonl]", "trainer.resume_mode=disable", "model.device=cpu"),
    *("actor.lr_schedule=constant", "actor.lr_warmup_steps=0", "actor.mini_batches=1", "data.val_size=1"),
)
#: How the second policy is trained, and the critic: with episodes of as many tasks as in the measurement.
TRAIN = ("rollout.groups_per_batch=16", "rollout.n=4", "actor.lr=2e-4", "trainer.seed=7")
#: Iterations in which the critic learns alone; its policy stays as it is.
CRITIC = 30


@dataclass(frozen=True)
class Setting:
    """A task with one of its policies."""

    task: str
    policy: str

    @property
    def name(self) -> str:
        return f"{self.task}-{self.policy}"

    def overrides(self, folder: Path) -> tuple[str, ...]:
        """Return the settings of the environment and of this policy, which is in ``folder``."""
        return (*COMMON, *of_task(self.task), f"model.path={self.path(folder)}", "warm_start.enable=false")

    def path(self, folder: Path) -> Path:
        return folder / f"{self.name}-policy"


TASKS = tuple(FAMILIES)


def of_task(task: str) -> tuple[str, ...]:
    return (*FAMILIES[task].env, *FAMILIES[task].common)


def policy(setting: Setting, folder: Path) -> Path:
    """Return the policy's model, made unless it is there: about 5 minutes for the first of a task, then 1."""
    path = setting.path(folder)
    if path.exists():
        return path
    if setting.policy == "imitated":
        starts = folder / "starts"
        for start in (Start(setting.task, None), Start(setting.task, 0)):
            if not start.path(starts).exists():
                make_start(start, starts)
        keep(Start(setting.task, 0).path(starts), path)
        return path
    before = Setting(setting.task, "imitated")
    policy(before, folder)
    asyncio.run(_trained([*before.overrides(folder), *TRAIN], POLICIES[setting.policy], path))
    return path


async def _trained(overrides: Sequence[str], iterations: int, path: Path) -> None:
    """Train a policy, and leave it at ``path``."""
    with tempfile.TemporaryDirectory() as temporary:
        async with started([*overrides, "algorithm.adv_estimator=turn_grpo"], temporary) as run:
            await train(run, iterations)
            run.learner.export_hf(Path(temporary) / "model", tokenizer=run.tokenizer)
        keep(Path(temporary) / "model", path)


def started(overrides: Sequence[str], folder: str) -> AbstractAsyncContextManager[Run]:
    """Return the parts of a run whose files are in ``folder``, as a context manager."""
    logging.getLogger("trainers").setLevel(logging.WARNING)
    return assemble(resolve([*overrides, f"trainer.default_local_dir={folder}/run"])[0])


async def train(run: Run, iterations: int) -> None:
    """Take so many iterations; the critic alone learns in the first ``critic.warmup``."""
    for _ in range(iterations):
        phases = run.reporter.phases()
        with phases("rollout"):
            batch = await run.collector.next_batch()
        await iterate(run, batch, phases)
        run.iteration += 1


def keep(model: Path, path: Path) -> None:
    """Copy a model to its place; a kill leaves no half of one."""
    new = path.with_suffix(".new")
    shutil.copytree(model, new, dirs_exist_ok=True)
    new.replace(path)
