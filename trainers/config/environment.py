"""The sections of tasks: environments and their rows."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .section import Names, Section


class EnvSection(Section):
    """The environment."""

    id: str = "textenv/gsm8k-interact"
    """Gymnasium id of the environment; `module:id` imports the module of your own that registers it."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment; `env.kwargs.NAME=value` sets one."""


class PlayedEnvSection(EnvSection):
    """The environment, and where it runs."""

    val_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments for validation alone, laid over `env.kwargs`. Where the environment has an option `split` and neither
    that nor `tasks` is given here, it is `test`."""
    backend: Literal["inline", "thread", "process", "ray"] = "inline"
    """Where environments step: in the collector's event loop, in threads (for those that block), in processes (for
    those that may hang or crash), or in Ray actors (on the machines of a cluster)."""
    workers: int | None = Field(None, ge=1)
    """Environments at a time; null is as many as episodes (one a CPU for processes); `backend=ray` needs a number."""


class TrainDataSection(Section):
    """The tasks."""

    train_files: Names | None = None
    """Tasks to train on: .jsonl or .parquet files, `generated:LEVEL`, `hub:REPOSITORY`, or a list of these; null takes
    the environment's own."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the tokenizer's chat template, in every rendering; `data.chat_template_kwargs.NAME=value` sets one
    (`enable_thinking=false` of Qwen3). One that the template never reads is an error."""


class DataSection(TrainDataSection):
    """The tasks, to train and to validate on."""

    val_files: Names | None = None
    """Tasks to validate on, likewise; null takes the environment's own: those of its split `test`, or, without splits,
    those after `train_size`, or else those of training."""
    train_size: int | None = Field(None, ge=1, description="Train on the first so many tasks; null is all of them.")
    val_size: int = Field(256, ge=1, description="Validate on so many tasks, the first ones.")
    shuffle: bool = Field(True, description="A new order of the training tasks in every epoch.")
    filter_overlong_prompts: bool = False
    """Leave out tasks whose opening is longer than `longest_prompt`, of those that `train_size` and `val_size` take.
    Before a run starts or goes on, each task is reset and rendered once, which takes its time with many; the others
    keep their order. Not for tasks that never end."""
    longest_prompt: int | None = Field(None, ge=1)
    """With `filter_overlong_prompts`: tokens of an opening at most; null leaves room for a whole reply,
    `engine.max_context` - `rollout.max_response_length`."""
