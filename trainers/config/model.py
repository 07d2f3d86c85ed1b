"""The sections of the model and of learning it from examples."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from .section import Names, Section


class ModelSection(Section):
    """The policy. The keys from `family` to `vocab_size` give the shape of `path=tiny`."""

    path: str = "tiny"
    """Folder of a Hugging Face model, or its name on the hub (`OWNER/NAME`), from which missing files are downloaded;
    or `smollm2`: SmolLM2-135M-Instruct, as `make model` makes it; or `tiny`: one from scratch, tokenizer included."""
    family: Literal["qwen2", "qwen3", "llama"] = Field("qwen2", description="Architecture.")
    hidden: int = Field(128, ge=8, description="Width.")
    intermediate: int | None = Field(None, ge=8, description="Width of the feed-forward part; null is 4 * hidden.")
    layers: int = Field(3, ge=1, description="Blocks.")
    heads: int = Field(4, ge=1, description="Attention heads.")
    kv_heads: int = Field(2, ge=1, description="Key/value heads; divides `heads`.")
    vocab_size: int = Field(512, ge=300, description="Tokens at most; 256 are bytes.")
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type to compute in, of learner and engines; the learner's own weights are float32. null is `bfloat16` for a given
    model where the GPU or the processor multiplies in it (`avx512_bf16`, `amx_bf16`), except for files below 20 MiB."""
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto` is cuda where there is one.")
    lora_rank: int = Field(0, ge=0)
    """Train LoRA adapters of this rank instead of all parameters (`textenvs[lora]`); 0 does not."""
    lora_alpha: float = Field(16.0, gt=0, description="Adapters count `lora_alpha` / `lora_rank`.")
    target_modules: tuple[str, ...] | str = "all-linear"
    """Names of the linear layers that get an adapter, or `all-linear`."""
    exclude_modules: tuple[str, ...] = Field((), description="Names of linear layers that get none.")
    lora_adapter_path: str | None = Field(None, min_length=1)
    """Begin with this adapter instead of a new one: a folder that peft saved, for all ranks to see. `lora_rank`,
    `lora_alpha` and the modules must be its own. The KL's reference is the model without it."""
    lora_publish: Literal["merged", "adapter"] = "merged"
    """What engines get of a LoRA run: `merged` matrices, which every engine takes, or the `adapter` alone, which they
    merge into matrices that they keep (engines `torch` and `vllm`)."""
    enable_gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    enable_activation_offload: bool = False
    """Keep what gradient checkpointing keeps on the CPU; for cuda."""
    use_remove_padding: bool = False
    """Pack sequences instead of padding them, where they are not read as token trees. For cuda."""
    attn_implementation: str | None = Field(None, min_length=1)
    """The learner's attention, by transformers' name (`sdpa`, `flash_attention_2`, `flex_attention`, ...); null is the
    learner's own, which reads token trees, for families that it fits, and transformers' choice for others."""

    @property
    def precision(self) -> Literal["float32", "bfloat16"]:
        """What is computed in; a section of no run's says it itself."""
        return self.dtype or "float32"


#: Bytes of the files of a model that is a toy: rounding makes it no faster, and it learns as `tiny` does.
_SMALL = 20 * 2**20


def is_language_model(path: str | None) -> bool:
    """Whether a model is given that was made to talk: neither `tiny` nor a folder with files below 20 MiB."""
    if path is None or path == "tiny":
        return False
    folder = Path(path).expanduser()
    return not folder.is_dir() or sum(file.stat().st_size for file in folder.glob("*.safetensors")) >= _SMALL


def positions_of(path: str) -> int | None:
    """The longest context that a model in a folder was made for; ``None`` where it does not say so itself."""
    try:
        found = json.loads(Path(path).expanduser().joinpath("config.json").read_text(encoding="utf-8"))
        return int(found["max_position_embeddings"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def native_dtype(path: str | None, device: str) -> Literal["float32", "bfloat16"]:
    """What a model computes in where nobody says it, by ``model.path`` and ``model.device``."""
    return "bfloat16" if is_language_model(path) and _multiplies_bfloat16(device) else "float32"


@cache
def _multiplies_bfloat16(device: str) -> bool:
    if device != "cpu":
        import torch  # only for a given model, which needs it soon: without, a configuration is read in no time

        if torch.cuda.is_available():
            return torch.cuda.get_device_capability()[0] >= 8
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


class SupervisedSection(Section):
    """Supervised training on demonstrations: the loss is on the assistant's tokens alone."""

    files: Names | None = None
    """Conversations to imitate, .jsonl or .parquet with a column `messages`; null plays the scripted expert of the
    environment."""
    demonstrations: int = Field(20000, ge=1, description="Episodes that the scripted expert plays.")
    mistake_rate: float = Field(0.3, ge=0, lt=1)
    """Share of the expert's turns that are careless replies instead, to show what to do after one."""
    mistake_weight: float = Field(0.0, ge=0)
    """How much the careless replies are imitated, where the expert's replies count 1."""
    step_timeout_s: float = Field(60.0, gt=0)
    """Seconds that a reset or a step of the environment may take while its expert plays."""
    steps: int = Field(1000, ge=1, description="Optimizer steps.")
    batch_size: int = Field(64, ge=1, description="Conversations a step.")
    lr: float = Field(2e-3, gt=0)
    """Peak learning rate; falls to a tenth along a cosine. 5e-5 for a given language model, if it is not said."""
    lr_warmup_steps: int = Field(20, ge=0, description="Steps of linear rise to `lr`.")
    weight_decay: float = Field(0.3, ge=0)
    """AdamW's weight decay; much, because few demonstrations must do for unseen tasks."""
    grad_clip: float = Field(1.0, gt=0, description="Largest norm of the gradient.")
    max_tokens_per_micro_batch: int = Field(2048, ge=1, description="Tokens in one forward and backward pass at most.")


class WarmStartSection(SupervisedSection):
    """Supervised steps before PPO; a model from scratch knows no words yet."""

    enable: bool | None = None
    """Do the warm start; null does it for `model.path=tiny` and not for a model that can talk."""
    careless_steps: int = Field(60, ge=0)
    """More steps at the end on careless demonstrations: the policy keeps what it can do, and gets a habit of not doing
    it, for PPO to break."""
    careless_rate: float = Field(0.85, ge=0, lt=1, description="Share of careless replies in those; they are imitated.")
    careless_lr: float = Field(2e-4, gt=0, description="Learning rate of those steps.")
