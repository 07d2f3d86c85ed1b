"""The keys of ``python -m trainers.generate`` and ``python -m trainers.evaluate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from ..section import Problems, Section
from . import unread
from .base import RunConfig
from .checks import engine_checks, template_checks
from .engine import Engine, TorchEngineSection
from .model import Bfloat16, multiplies_bfloat16, native_dtype
from .reward_model import RewardFunctionSection
from .running import RayInitSection


class PromptsSection(Section):
    """The prompts, and the file for their replies."""

    path: str | None = Field(None, min_length=1, description="Parquet file with the prompts; needed.")
    prompt_key: str = Field("prompt", min_length=1, description="Column of the prompts: chat messages.")
    n_samples: int = Field(5, ge=1, le=2**16, description="Replies per prompt.")
    output_path: str | None = Field(None, min_length=1)
    """Parquet file to write: all columns of `path`, and `responses`; needed."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the tokenizer's chat template, in every rendering; `data.chat_template_kwargs.NAME=value` sets one
    (`enable_thinking=false` of Qwen3). One that the template never reads is an error."""
    batch_size: int = Field(
        128, ge=1, le=2**20, description="Prompts between two saves; a kill loses at most this many."
    )


class LoadedModelSection(Section):
    """The model that replies."""

    path: str | None = Field(None, min_length=1)
    """Folder of a Hugging Face model, or its name on the hub; needed."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type to compute in; null is `bfloat16` where the GPU or the processor multiplies in it (except for a model
    below 5 million parameters), else `float32`."""
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto` is cuda if available.")


class ReplySection(Section):
    """Sampling of replies."""

    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_k: int = Field(0, ge=0, description="Sample from the k likeliest tokens; 0 is all.")
    top_p: float = Field(1.0, gt=0, le=1, description="Sample from the smallest set with this probability; 1 is all.")
    max_prompt_length: int = Field(
        512, ge=1, le=2**24, description="Maximum tokens of a prompt; a longer one is an error."
    )
    max_response_length: int = Field(512, ge=1, le=2**24, description="Maximum tokens of a reply.")
    ignore_eos: bool = Field(False, description="Continue past the end token, to the maximum length.")


class ServingClusterSection(Section):
    """Placement of the engines. See docs/cluster.md."""

    backend: Literal["local", "ray"] = "local"
    """`local`: in this process, or servers beside it. `ray`: each replica is a Ray actor."""
    nnodes: int = Field(1, ge=1, le=2**12, description="Machines; more than one needs `backend=ray`.")
    n_gpus_per_node: int | None = Field(None, ge=0, le=2**12)
    """With Ray: GPUs to use on each machine; null is the number that torch sees here."""
    cpus_per_actor: int = Field(1, ge=1, le=2**12, description="With Ray: CPUs of an engine.")
    start_timeout_s: float = Field(300.0, gt=0, description="With Ray: seconds that actors may take to start.")


class GenerateRunSection(Section):
    """The run."""

    seed: int = Field(0, ge=0, le=2**63 - 1)
    """Random seed: the same seed, prompts and engine give the same replies."""
    threads: int | None = Field(None, ge=1, le=2**12, description="CPU threads of torch; null is torch's choice.")


class GenerateConfig(RunConfig):
    """Configuration of `python -m trainers.generate`."""

    reads = unread.GENERATE

    data: PromptsSection = PromptsSection()
    model: LoadedModelSection = LoadedModelSection()
    engine: Engine = TorchEngineSection()
    rollout: ReplySection = ReplySection()
    cluster: ServingClusterSection = ServingClusterSection()
    ray_init: RayInitSection = RayInitSection()
    trainer: GenerateRunSection = GenerateRunSection()

    def chosen_defaults(self, bfloat16: Bfloat16 = multiplies_bfloat16) -> Mapping[str, Any]:
        longest = self.rollout.max_prompt_length + self.rollout.max_response_length
        return {
            "model.dtype": native_dtype(self.model.path, self.model.device, bfloat16),
            "engine.max_context": max(16, longest),
        }

    def checks(self) -> Problems:
        yield from template_checks(self.data.chat_template_kwargs)
        yield from engine_checks(self.engine)
        if self.cluster.backend == "ray" and self.engine.base_urls:
            text = "names servers that run already, and with cluster.backend=ray every replica starts its own"
            yield f"engine.{self.engine.name}.base_url", text
        if self.model.path is None or self.model.path == "tiny":
            yield "model.path", "must be given, as a model's folder: a model from scratch has no words"
        for name in ("path", "output_path"):
            if getattr(self.data, name) is None:
                yield f"data.{name}", "must be given"


class RepliesSection(Section):
    """The file with the replies, and its columns."""

    path: str | None = Field(None, min_length=1, description="Parquet file with the replies; needed.")
    response_key: str = Field("responses", min_length=1, description="Column of the replies: text, or a list of texts.")
    data_source_key: str = Field("data_source", min_length=1, description="Column with the data source of a row.")
    reward_model_key: str = Field("reward_model", min_length=1, description="Column with `{style, ground_truth}`.")


class ScoreSection(Section):
    """The report."""

    pass_threshold: float = Field(0.5, description="Minimum score of a reply that passes.")
    output_path: str | None = Field(None, min_length=1)
    """JSON Lines file to write, a line per reply: its row, and its score or error."""


class EvaluateConfig(RunConfig):
    """Configuration of `python -m trainers.evaluate`."""

    reads = unread.FUNCTION

    data: RepliesSection = RepliesSection()
    custom_reward_function: RewardFunctionSection = RewardFunctionSection()
    report: ScoreSection = ScoreSection()

    def checks(self) -> Problems:
        if self.data.path is None:
            yield "data.path", "must be given"
