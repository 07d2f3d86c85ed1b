"""Supervised training on conversations: the warm start of a PPO run, or a run of its own.

    python -m trainers.sft                      a tiny model from scratch imitates the expert of textenv/gsm8k-interact
    python -m trainers.sft sft.files=talks.parquet model.path=FOLDER ...

Only the assistant's tokens are learned, exactly as a rollout would record them.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from .command_line import check_arguments, load_config
from .config import SFTConfig

if __name__ == "__main__":
    check_arguments(sys.argv[1:], SFTConfig, "python -m trainers.sft")

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("training needs torch: pip install 'textenvs[train]'") from error
from transformers.utils.logging import disable_progress_bar

from textenvs.startup import INTERRUPTED
from textenvs.text import plural

from .builders import SetupError, nothing_started
from .builders.environments import Component, components_of
from .builders.folder import held, logged_run, refuse_ppo_folder, run_folder, write_config
from .builders.learner import check_learner
from .builders.policy import (
    careless_left_out,
    demonstrations_needed,
    demonstrations_of,
    loading_phase,
    policy_of,
    renderer_of,
    set_threads,
    tokenizer_texts,
)
from .chat_template import RendererError
from .cli import Interrupts, run_command
from .config.model import ModelSection, SupervisedSection
from .config.running import RunSection
from .config.schema import SFTSection
from .learner import Learner
from .learner.checkpoint import replace_folder
from .learner.fsdp import Ranks
from .learner.system_errors import system_errors
from .models.policy import Policy, PolicyError, end_token_ids_of, load_tokenizer, resolve_device
from .report.console import ConsoleLogger
from .report.loggers import MetricsError, open_loggers
from .report.progress import Progress
from .rollout.demonstrations import DemonstrationError, Example, encode
from .rollout.renderer import Renderer

log = logging.getLogger("trainers")

OnStep = Callable[[int, Mapping[str, float]], None]


def fit(
    policy: Policy,
    examples: Sequence[Example],
    section: SupervisedSection,
    model: ModelSection,
    run: RunSection,
    *,
    seed: int,
    on_step: OnStep,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Train ``policy.model`` in place on examples, in a new order in every epoch; ``seed`` decides the order.

    ``on_step`` receives the number (from 1) and the metrics of each step; ``stop`` is called after each, and true ends
    the training. Adapters are merged in the end.
    """
    if not any(example.weights.any() for example in examples):
        raise DemonstrationError("there is no demonstration with a reply to imitate")
    learner = Learner(policy.source, model, run, section, total_steps=section.steps)
    order: list[int] = []
    epoch = 0
    for step in range(1, section.steps + 1):
        while len(order) < section.batch_size:
            order += np.random.default_rng((seed, epoch)).permutation(len(examples)).tolist()
            epoch += 1
        chosen, order = [examples[i] for i in order[: section.batch_size]], order[section.batch_size :]
        weights = np.concatenate([example.weights for example in chosen])
        metrics = learner.update_sft([example.trajectory for example in chosen], weights / max(weights.sum(), 1.0))
        on_step(step, metrics)
        if stop():
            break
    policy.own().load_state_dict(learner.weights())


def examples_of(
    components: Sequence[Component],
    section: SupervisedSection,
    policy: Policy,
    renderer: Renderer,
    seed: int,
    stop: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> list[Example]:
    """Return the demonstrations in tokens; raise ``CancelledError`` when ``stop``, called after each, is true."""
    examples = []
    count = None if section.files is not None else demonstrations_needed(section)
    try:
        tools = {entry.name: entry.tools() for entry in components}
        with (progress or Progress.silent()).phase("demonstrations", count, "played") as phase:
            for component, demonstration in demonstrations_of(components, section, seed):
                examples.append(encode(demonstration, renderer, policy.tokenizer, tools[component.name]))
                phase.advance()
                if stop():
                    raise asyncio.CancelledError
        return examples
    except DemonstrationError as error:
        raise SetupError(str(error)) from error


def run(config: SFTConfig) -> bool:
    """Run supervised training, write metrics and the model; return whether no signal ended it before its last step."""
    components, folder = components_of(config.env, config.data), run_folder(config.trainer)
    with nothing_started():
        for component in components:
            component.make().close()
    with held(folder), ExitStack() as stack:
        refuse_ppo_folder(folder)
        progress = Progress.silent()
        if "console" in config.trainer.logger:
            console = ConsoleLogger(1)
            stack.callback(console.close)
            progress = console.progress
        return _run(config, components, folder, progress)


def rehearse(config: SFTConfig, machine: str | None = None) -> str:
    """Try what a run reads before it trains, without weights: environments, model folder and the first conversation.

    ``ValueError`` says what could not be read.
    """
    components = components_of(config.env, config.data)
    for component in components:
        component.make().close()
    section, seed = _section(config, components), config.trainer.seed
    tokenizer = load_tokenizer(config.model, lambda: tokenizer_texts(components, section, seed))
    ends = end_token_ids_of(config.model)
    resolve_device(config.model.device)
    renderer = Renderer(tokenizer, template_kwargs=config.data.chat_template_kwargs, stop_token_ids=ends)
    first = next(demonstrations_of(components, section, seed), None)
    if first is None:
        raise DemonstrationError("there is no demonstration with a reply to imitate")
    component, demonstration = first
    tokens = len(encode(demonstration, renderer, tokenizer, component.tools()).trajectory.token_ids)
    return f"the first conversation to imitate has {tokens} tokens"


def _section(config: SFTConfig, components: Sequence[Component]) -> SFTSection:
    """Return the section without careless replies, if no environment has any and none were asked for."""
    left_out = [careless_left_out(config.sft, component) for component in components]
    return config.sft.model_copy(update=left_out[0] if all(left_out) else {})


def _run(config: SFTConfig, components: Sequence[Component], folder: Path, progress: Progress) -> bool:
    seed = config.trainer.seed
    section = _section(config, components)
    config = config.model_copy(update={"sft": section})
    write_config(folder, config)
    with progress.phase(loading_phase(config.model)):
        policy = policy_of(config.model, components, section, max_context=section.max_context, seed=seed)
    check_learner(config.model, config.trainer, policy)
    set_threads(policy, config.trainer.threads)
    renderer = renderer_of(policy, config.data.chat_template_kwargs)
    examples = examples_of(components, section, policy, renderer, seed, progress=progress)
    log.info("%s to imitate", plural(len(examples), "conversation"))
    logger = open_loggers(config.trainer.logger, logged_run(config, folder))
    stop, done = threading.Event(), 0

    refuse_full_disk(folder, policy)
    with logger, Interrupts() as interrupts, progress.phase("training", section.steps, "steps") as phase:
        interrupts.save_first(stop, "after this step, with the model as it is")

        def on_step(step: int, metrics: Mapping[str, float]) -> None:
            nonlocal done
            done = step
            logger.log(step, {f"sft/{name}": value for name, value in metrics.items()})
            phase.advance(detail=f"loss {metrics['loss']:.4f}")
            if "console" in config.trainer.logger and (step % 100 == 0 or step == section.steps):
                progress.spoke()
                log.info("step %d/%d  loss %.4f", step, section.steps, metrics["loss"])

        fit(policy, examples, section, config.model, config.trainer, seed=seed, on_step=on_step, stop=stop.is_set)
    with (
        progress.phase("writing the model"),
        replace_folder(folder / "model", Ranks(None)) as written,
        system_errors(folder / "model"),
    ):
        policy.model.save_pretrained(written)
        policy.tokenizer.save_pretrained(written)
    whole = not stop.is_set() or done == section.steps
    log.info("model%s: %s", "" if whole else f" after step {done} of {section.steps}", folder / "model")
    return whole


def refuse_full_disk(folder: Path, policy: Policy) -> None:
    """Raise ``SetupError`` if the model does not fit; an old one stays until the new one is complete."""
    needed = sum(parameter.numel() * parameter.element_size() for parameter in policy.skeleton.parameters())
    if (free := shutil.disk_usage(folder).free) < needed:
        raise SetupError(
            f"{folder}: the model needs {needed / 2**20:.0f} MiB there, and {free / 2**20:.0f} MiB are free: make room"
        )


def main(argv: Sequence[str] | None = None) -> int:
    config, _ = load_config(
        sys.argv[1:] if argv is None else argv, schema=SFTConfig, usage="python -m trainers.sft", rehearse=rehearse
    )
    disable_progress_bar()  # transformers' own, for every file it writes
    if config.sft.files is not None:  # the environment only provides tools, not tasks
        logging.getLogger("textenvs").setLevel(logging.WARNING)
    return run_command(
        lambda: 0 if run(config) else INTERRUPTED,
        stopped="stopped; no model was written",
        expected=(SetupError, DemonstrationError, FloatingPointError, MetricsError, PolicyError, RendererError),
        folder=run_folder(config.trainer),
        advice=lambda full: "the model was not written; an older one there is whole",
    )


if __name__ == "__main__":
    raise SystemExit(main())
