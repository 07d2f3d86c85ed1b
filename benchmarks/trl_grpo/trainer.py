"""TRL's ``GRPOTrainer`` on our configuration, playing the tasks that our own loop would play.

Group number ``g`` has the task, and its environment the seed, that group ``g`` of ``ppo`` has; the warm start is the
same; advantages are those of ``algorithm.adv_estimator``. Generation is the embedded engine's, the loss, the optimizer
and the loop are TRL's. The translation of keys is :mod:`.config`.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from textenvs.integrations import EpisodeSpec
from textenvs.integrations.trl import dataset_of
from trainers.builders import SetupError
from trainers.builders.environments import (
    check_environments,
    played,
    task_count,
    validation_tasks,
)
from trainers.builders.folder import held, logged_run, run_folder, would_replace
from trainers.builders.learner import actor_steps
from trainers.builders.policy import policy_of, set_threads, threads_for, with_available_scripts
from trainers.checkpoints import refuse_other_run
from trainers.config import PPOConfig
from trainers.config.model import ModelSection
from trainers.config.sizes import slots
from trainers.integrations.trl import textenv_reward
from trainers.learner.optim import lr_at
from trainers.models.policy import Policy
from trainers.registry import Result
from trainers.report.loggers import open_loggers
from trainers.report.metrics import episode_metrics
from trainers.report.progress import Progress
from trainers.rollout.curriculum import TaskOrder
from trainers.rollout.renderer import Renderer
from trainers.rollout.seeds import derive_seed, environment_seed
from trainers.run import warm_start_enabled, warm_up

from .config import FIXED, grpo_arguments, resolved, steps_an_iteration

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from .validating import ValidatingRollout

log = logging.getLogger("trainers")

_CONFIG = "config.json"  # beside the checkpoints: which run they are of

#: TRL's names of metrics with the same meaning for every trainer.
_NAMES = {
    "reward": "train/reward",
    "episodes/solved": "train/solved",
    "episodes/turns": "train/turns",
}
_CONSOLE_METRICS = (*_NAMES.values(), "val/reward", "val/solved", "val/turns")  # on the console


class TRLGRPOTrainer:
    """One run of TRL's trainer.

    Args:
        config: Arguments as of ``python -m trainers.ppo``, or a ``PPOConfig``.

    Raises:
        ConfigError: They have problems, or set a key that has no meaning here; all are named.
        ModuleNotFoundError: TRL is not installed.
        SetupError: The process is one of several.
    """

    def __init__(self, config: PPOConfig | Sequence[str] = ()) -> None:
        self.config = resolved(config)
        try:
            import trl  # noqa: F401 - not for use here: for an error that says how to get it
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "benchmarks.trl_grpo needs TRL: pip install 'textenvs[trl]'", name="trl"
            ) from error
        refuse_processes(int(os.environ.get("WORLD_SIZE") or 1))
        self.folder: Path = run_folder(self.config.trainer)
        self._trainer: Any = None
        self._rollout: ValidatingRollout | None = None
        self._report: Any = None
        self._held = contextlib.ExitStack()  # the folder, from the first call to close()

    def fit(self) -> Result:
        """See :class:`trainers.Trainer`.

        Raises:
            SetupError: The model, the environment or the checkpoint is not available.
            CheckpointError: The checkpoint is of another run.
            RolloutError: A batch could not be played.
        """
        checkpoint, newest = self._checkpoint(), self._newest()
        if checkpoint is not None and newest is not None and checkpoint.resolve().parent != self.folder.resolve():
            raise SetupError(would_replace(self.folder, newest, checkpoint))
        trainer = self._made()
        self._remove_after(checkpoint)
        (self.folder / _CONFIG).write_text(json.dumps(self.config.model_dump(mode="json"), indent=1), encoding="utf-8")
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        done = trainer.state.global_step
        if not any(row["step"] == done and "val/episodes" in row for row in trainer.state.log_history):
            trainer.evaluate()
        _write_model(trainer, self.folder / "model")
        return Result(
            metrics=dict(self._report.latest),
            model=self.folder / "model",
            checkpoint=self._newest(),
            iterations=done // steps_an_iteration(self.config),
            stopped=done < trainer.args.max_steps,
        )

    def evaluate(self) -> Mapping[str, float]:
        """See :class:`trainers.Trainer`: ``val/...``.

        Raises:
            SetupError, CheckpointError: As :meth:`fit`.
        """
        trainer, fresh = self._made(), self._trainer.state.global_step == 0
        if fresh and (checkpoint := self._checkpoint()) is not None:
            trainer._load_from_checkpoint(str(checkpoint))
        trainer.evaluate()
        return {name: value for name, value in self._report.latest.items() if name.startswith("val/")}

    def close(self) -> None:
        if self._rollout is not None:
            self._rollout.close()
        if self._report is not None:
            self._report.loggers.close()
        self._trainer = self._rollout = self._report = None
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ its parts

    def _made(self) -> Any:
        if self._trainer is None:
            self._trainer = self._make()
        return self._trainer

    def _make(self) -> Any:
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental: docs/adapters/trl.md
        from transformers import PrinterCallback
        from transformers.utils.logging import disable_progress_bar
        from trl import GRPOConfig

        from .validating import ValidatingGRPOTrainer, ValidatingRollout

        self._held.close()
        self._held.enter_context(held(self.folder))
        config, checkpoint = self.config, self._checkpoint()
        if checkpoint is not None and (checkpoint.parent / _CONFIG).is_file():
            before = json.loads((checkpoint.parent / _CONFIG).read_text(encoding="utf-8"))
            refuse_other_run(before, config.model_dump(mode="json"), checkpoint, FIXED)
        disable_progress_bar()
        arguments = GRPOConfig(**grpo_arguments(config))
        refuse_processes(arguments.world_size, arguments.n_gpu)
        check_environments(config)
        policy = self._policy()
        self._rollout = ValidatingRollout(
            engine="torch",
            backend=config.env.backend,
            workers=None if config.env.backend == "inline" else config.env.workers,
            max_running=slots(config),
            max_turn_tokens=config.rollout.max_response_length,
            max_context=config.engine.max_context,
            threads=threads_for(policy, config.engine.threads),
            retries=config.rollout.retries,
            step_timeout=config.rollout.step_timeout_s,
            generation_timeout=config.rollout.generation_timeout_s,
            episode_timeout=config.rollout.episode_timeout_s,
            environments={component.id: [component.training, component.validation] for component in played(config)},
        )
        done = 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2]) // steps_an_iteration(config)
        self._report = _report_of(config, self.folder, first_step=0 if checkpoint is None else done + 1)
        validation = dataset_of(validation_episodes(config))
        trainer = ValidatingGRPOTrainer(
            policy.model,
            reward_funcs=textenv_reward,
            args=arguments,
            train_dataset=dataset_of(training_episodes(config)),
            eval_dataset=validation,
            processing_class=policy.tokenizer,
            callbacks=[self._report],
            rollout_func=self._rollout,
            peft_config=_adapters(config.model),
            algorithm=config.algorithm,
            validation=partial(_validate, config, self._rollout, [row["prompt"] for row in validation]),
            schedule=partial(lr_at, config.actor.model_copy(update={"lr": 1.0}), total_steps=actor_steps(config)),
        )
        trainer.remove_callback(PrinterCallback)
        return trainer

    def _policy(self) -> Policy:
        runnable, notes = with_available_scripts(self.config)
        for note in notes:
            log.info("%s", note)
        # TRL computes in bfloat16 by autocast; a warm start needs no autocast.
        model = runnable.model.model_copy(update={"dtype": "float32"})
        config = runnable.model_copy(update={"model": model})
        policy = policy_of(
            config.model,
            played(config),
            config.warm_start,
            max_context=config.engine.max_context,
            seed=config.trainer.seed,
        )
        set_threads(policy, config.trainer.threads)
        if warm_start_enabled(config) and self._checkpoint() is None:
            say = log.info if "console" in config.trainer.logger else log.debug
            renderer = Renderer(policy.tokenizer, template_kwargs=config.data.chat_template_kwargs)
            warm_up(config, policy, renderer, say, threading.Event(), Progress.silent())
        return policy

    def _checkpoint(self) -> Path | None:
        """Return the checkpoint to resume from.

        Raises:
            SetupError: The requested one does not exist.
        """
        mode, requested = self.config.trainer.resume_mode, self.config.trainer.resume_from_path
        if mode == "disable":
            return None
        if mode == "auto":
            return self._newest()
        path = Path(requested or "").expanduser()
        if requested is None or not (path / "trainer_state.json").is_file():
            raise SetupError(f"trainer.resume_from_path={requested}: not a checkpoint of TRL's (no trainer_state.json)")
        return path

    def _remove_after(self, checkpoint: Path | None) -> None:
        """Remove an earlier run's checkpoints in the folder after the start of this one: it would resume from them."""
        inside = checkpoint is not None and checkpoint.resolve().parent == self.folder.resolve()
        start = _step(checkpoint) if checkpoint is not None and inside else 0
        later = [path for path in self.folder.glob("checkpoint-*") if _step(path) > start]
        for path in later:
            shutil.rmtree(path)
        if later:
            names = ", ".join(path.name for path in sorted(later, key=_step))
            log.warning("%s: removed %s, which an earlier run had left there", self.folder, names)

    def _newest(self) -> Path | None:
        checkpoints = [path for path in self.folder.glob("checkpoint-*") if (path / "trainer_state.json").is_file()]
        return max(checkpoints, key=_step, default=None)


def refuse_processes(processes: int, devices: int = 1) -> None:
    """Raise ``SetupError`` where TRL would multiply the batch: it counts episodes for each process and each device."""
    if processes > 1:
        raise SetupError(
            f"this is one process, and this is one of {processes} (WORLD_SIZE, as `accelerate launch` and torchrun "
            "set it): start it with plain python. For several, use TRL's own trainer with trainers.integrations.trl, "
            "which works with them (docs/adapters/trl.md)"
        )
    if devices > 1:
        raise SetupError(f"it uses one GPU, and torch sees {devices}: choose one, CUDA_VISIBLE_DEVICES=0")


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _write_model(trainer: Any, folder: Path) -> None:
    """Write a folder that transformers loads; adapters are merged into the weights."""
    from trainers.integrations.trl.generation import adapters_of

    if (adapters := adapters_of(trainer)) is None:
        trainer.save_model(str(folder))
        return
    copy.deepcopy(adapters).merge_and_unload().save_pretrained(folder)
    trainer.processing_class.save_pretrained(folder)


# ------------------------------------------------------------------ what is played


def training_episodes(config: PPOConfig) -> Iterator[EpisodeSpec]:
    """Yield one for each group, in the order of ``ppo``'s groups, with its tasks and seeds."""
    (component,), seed = played(config), config.trainer.seed
    order = TaskOrder(task_count(component), seed=seed, shuffle=config.data.shuffle)
    for group in range(config.trainer.total_iterations * config.rollout.groups_per_batch):
        yield EpisodeSpec(component.id, environment_seed(seed, group), component.training, order(group))


def validation_episodes(config: PPOConfig) -> Iterator[EpisodeSpec]:
    """Yield the episodes of ``ppo``'s validations."""
    (component,) = played(config)
    kwargs = component.validation
    for task in validation_tasks(config, component):
        env_seed = derive_seed(config.trainer.seed, "evaluate environment", task, bits=32)
        yield EpisodeSpec(config.env.id, env_seed, kwargs, task)


def _validate(
    config: PPOConfig, rollout: ValidatingRollout, prompts: Sequence[Any], trainer: Any
) -> Mapping[str, float]:
    section = config.validation
    played = rollout.validate(
        [prompt for prompt in prompts for _ in range(section.n)],
        trainer,
        temperature=section.temperature,
        top_p=section.top_p,
    )
    return episode_metrics(played, "val")


def _adapters(model: ModelSection) -> Any:
    if not model.lora_rank:
        return None
    try:
        from peft import LoraConfig
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("model.lora_rank needs peft: pip install 'textenvs[lora]'", name="peft") from error
    targets = model.target_modules
    return LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,  # type: ignore[arg-type]  # a divisor's numerator: any number does
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=list(model.exclude_modules) or None,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


# ------------------------------------------------------------------ what is reported


def _report_of(config: PPOConfig, folder: Path, first_step: int) -> TrainerCallback:
    """Return a callback that gives TRL's metrics to our loggers, with an iteration as the step.

    Logs of an earlier run from ``first_step`` on are dropped.
    """
    from transformers import TrainerCallback

    steps, total = steps_an_iteration(config), config.trainer.total_iterations
    console = "console" in config.trainer.logger

    class Report(TrainerCallback):
        def __init__(self) -> None:
            self.latest: dict[str, float] = {}
            self.loggers = open_loggers(config.trainer.logger, logged_run(config, folder, first_step))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if not state.is_world_process_zero:
                return
            metrics = named(logs or {})
            self.latest.update(metrics)
            self.loggers.log(state.global_step // steps, metrics)
            if console and (parts := [f"{name} {metrics[name]:.3f}" for name in _CONSOLE_METRICS if name in metrics]):
                log.info("iteration %d/%d  %s", state.global_step // steps, total, "  ".join(parts))

    return Report()


def named(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return TRL's metrics by our names where they mean the same, else as ``trl/...``, without those without a value.

    Those of our own validation have their names already.
    """
    return {
        name if name.startswith("val/") else _NAMES.get(name, f"trl/{name}"): float(value)
        for name, value in logs.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
