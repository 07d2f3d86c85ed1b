"""The sections of the model, its training on demonstrations, and the engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from textenvs.bounded_files import UnreadableFile, read_json_object

from ..section import ActorSection, Betas, LearningRate, Names, Problems, Schedule, Section

#: Dimensions of a head of a model that copies, at least: with fewer, few of the tokens can be told apart.
_SMALLEST_HEAD = 32
COPYING_NEEDS = f"a qwen2 with at least two layers, and two heads of at least {_SMALLEST_HEAD} dimensions"


def can_copy(family: str, layers: int, heads: int, hidden: int) -> bool:
    """Return whether a model of this shape is what :data:`COPYING_NEEDS` says."""
    return family == "qwen2" and min(layers, heads) >= 2 and hidden // heads >= _SMALLEST_HEAD


class ModelSection(Section):
    """The policy. The keys from `family` to `copying` shape the model of `path=tiny`."""

    path: str = "tiny"
    """Folder of a Hugging Face model, or its name on the hub (`OWNER/NAME`), from which missing files are downloaded;
    or `smollm2`: SmolLM2-135M-Instruct, as `make model` builds it; or `tiny`: a new model, tokenizer included."""
    family: Literal["qwen2", "qwen3", "llama"] = Field("qwen2", description="Architecture.")
    hidden: int = Field(128, ge=8, le=2**16, description="Width.")
    intermediate: int | None = Field(
        None, ge=8, le=2**20, description="Width of the feed-forward part; null is 4 * hidden."
    )
    layers: int = Field(3, ge=1, le=1024, description="Blocks.")
    heads: int = Field(4, ge=1, le=1024, description="Attention heads.")
    kv_heads: int = Field(2, ge=1, le=1024, description="Key/value heads; divides `heads`.")
    vocab_size: int = Field(512, ge=300, le=2**24, description="Maximum size of the vocabulary; 256 tokens are bytes.")
    copying: bool = False
    """Begin with two attention heads that copy: a model from scratch then continues repeated text before any training,
    and learns to use names that it reads. For `family=qwen2`, two or more layers, and two or more heads of at least 32
    dimensions."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type to compute in, of learner and engines; the learner's own weights are float32, and those that LoRA freezes
    are in this type. null is `bfloat16` for a given model where the GPU or the processor multiplies in it
    (`avx512_bf16`, `amx_bf16`), except for a model below 5 million parameters, else `float32`."""
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto` is cuda if available.")
    lora_rank: int = Field(0, ge=0, le=2**16)
    """Rank of LoRA adapters to train instead of all parameters (`textenvs[lora]`); 0 trains all parameters."""
    lora_alpha: float = Field(16.0, gt=0, description="Adapters are scaled by `lora_alpha` / `lora_rank`.")
    target_modules: tuple[str, ...] | str = "all-linear"
    """Names of the linear layers with an adapter, or `all-linear`."""
    exclude_modules: tuple[str, ...] = Field((), description="Names of linear layers without an adapter.")
    lora_adapter_path: str | None = Field(None, min_length=1)
    """Folder of an adapter to start from, saved by peft, that all ranks can read. `lora_rank`, `lora_alpha` and the
    modules must be its own. The KL's reference is the model without it."""
    lora_publish: Literal["merged", "adapter"] = "merged"
    """Weights that engines receive in a LoRA run: `merged` matrices, which every engine takes, or only the `adapter`,
    which they merge into the matrices that they keep (engines `torch` and `vllm`)."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of storing them."""
    enable_activation_offload: bool = False
    """Store the activations of gradient checkpointing on the CPU; for cuda."""
    compile: Literal["auto"] | bool = "auto"
    """Compile the learner's blocks, and its arithmetic on logits, with torch.compile; a run's first updates take up to
    a minute longer. `auto`: on cuda, for a model from 50 million parameters on and a run from 20 updates on."""
    use_remove_padding: bool = False
    """Pack sequences instead of padding them, unless they are read as token trees. For cuda."""
    attn_implementation: str | None = Field(None, min_length=1)
    """The learner's attention, by transformers' name (`sdpa`, `flash_attention_2`, `flex_attention`, ...); null is the
    learner's own, which reads token trees, for the families that it supports, and transformers' choice for others."""

    @property
    def lora_scale(self) -> float:
        """Factor of the adapters' products; 0 without adapters."""
        return self.lora_alpha / self.lora_rank if self.lora_rank else 0.0

    @property
    def publishes_adapter(self) -> bool:
        """True if engines receive the adapter alone."""
        return bool(self.lora_rank) and self.lora_publish == "adapter"

    @property
    def precision(self) -> Literal["float32", "bfloat16"]:
        """Type to compute in; float32 while `dtype` is null."""
        return self.dtype or "float32"


def model_checks(model: ModelSection) -> Problems:
    """Yield what is wrong with the shape of a tiny model."""
    if model.path != "tiny":
        return
    if model.hidden % (2 * model.heads):
        text = f"2 * model.heads = {2 * model.heads} (rotary embeddings pair the dimensions of a head)"
        yield "model.hidden", f"is {model.hidden}; it must be a multiple of {text}"
    if model.heads % model.kv_heads:
        yield "model.kv_heads", f"is {model.kv_heads}, which does not divide model.heads={model.heads}"
    if model.copying and not can_copy(model.family, model.layers, model.heads, model.hidden):
        yield "model.copying", f"is true; such a model is {COPYING_NEEDS}"


#: A model with fewer parameters is a toy: bfloat16 makes it no faster, and it learns as `tiny` does.
_TOY = 5_000_000
#: Names of a shape's numbers in the families' config.json.
_SHAPE = {
    "vocab": ("vocab_size",),
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
}


def is_language_model(path: str | None) -> bool:
    """Return whether a model is a language model: neither `tiny` nor a folder with one below 5 million parameters.

    The shape in config.json decides: a folder may have no weights yet. A model without a shape counts as one.
    """
    if path is None or path == "tiny":
        return False
    folder = Path(path).expanduser()
    described = _described(folder) if folder.is_dir() else {}
    text = described.get("text_config")
    shape = {**described, **(text if isinstance(text, dict) else {})}
    numbers = {name: next((shape[key] for key in keys if key in shape), None) for name, keys in _SHAPE.items()}
    vocab, width, layers = (number if isinstance(number, int) else None for number in numbers.values())
    if vocab is None or width is None or layers is None:
        return True
    inner = shape.get("intermediate_size")
    units = inner if isinstance(inner, int) else 4 * width
    return vocab * width + layers * (4 * width * width + 3 * width * units) >= _TOY


def _described(folder: Path) -> dict[str, Any]:
    """Return the content of a model's config.json; empty where it cannot be read."""
    try:
        return read_json_object(folder / "config.json")
    except UnreadableFile:
        return {}


def positions_of(path: str) -> int | None:
    """Return the longest context that a model in a folder was made for; ``None`` if its files do not say."""
    described = _described(Path(path).expanduser())
    text = described.get("text_config")
    shape = {**described, **(text if isinstance(text, dict) else {})}
    longest = next((shape[key] for key in ("max_position_embeddings", "n_positions") if key in shape), None)
    return longest if isinstance(longest, int) and longest > 0 else None


def newest_model_of(run: str) -> str:
    """Return the end of an error about ``model.path``: the newest model, if it is the folder of a run."""
    newest = max(Path(run).expanduser().glob("checkpoints/iteration_*/model"), default=None)
    return "" if newest is None else f"; this is a run's folder, whose newest model is {newest}"


#: Predicate: a machine multiplies in bfloat16 with a `model.device`.
Bfloat16: TypeAlias = Callable[[str], bool]
#: Its name in the context of a validation, for a configuration of another machine.
BFLOAT16 = "multiplies_bfloat16"


@cache
def multiplies_bfloat16(device: str) -> bool:
    """Return whether this machine multiplies in bfloat16 (a :data:`Bfloat16`)."""
    if device != "cpu":
        import torch  # slow; only for a given model, which needs it soon anyway

        if torch.cuda.is_available():
            return torch.cuda.get_device_capability()[0] >= 8
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def planned_bfloat16(device: str) -> bool:
    """Return whether the machine of ``--plan-for`` does: its GPUs do, and its processors are unknown."""
    return device != "cpu"


def native_dtype(
    path: str | None, device: str, bfloat16: Bfloat16 = multiplies_bfloat16
) -> Literal["float32", "bfloat16"]:
    """Return the type that a model computes in by default, by ``model.path`` and ``model.device``."""
    return "bfloat16" if is_language_model(path) and bfloat16(device) else "float32"


class DemonstrationSection(Section):
    """Demonstrations to imitate."""

    files: Names | None = None
    """Conversations to imitate: .jsonl or .parquet with a column `messages`, `tools` for rows with tools of their own,
    and `weights` for the loss weight of each assistant message (1 without); null plays the environment's scripted
    expert."""
    demonstrations: int = Field(20000, ge=1)
    """Maximum conversations of the scripted expert; no more than `steps` times `batch_size` are needed."""
    mistake_rate: float = Field(0.3, ge=0, lt=1)
    """Share of the expert's turns replaced by careless replies, to show how to continue after one."""
    mistake_weight: float = Field(0.0, ge=0)
    """Loss weight of the careless replies; the expert's replies have 1."""
    step_timeout_s: float = Field(60.0, gt=0)
    """Seconds that a reset or a step of the environment may take during demonstrations."""


class SupervisedSection(ActorSection, DemonstrationSection):
    """Supervised training on demonstrations; the loss is on the assistant's tokens only."""

    lr_schedule: ClassVar[Schedule] = "cosine"  # type: ignore[misc]
    betas: ClassVar[Betas] = (0.9, 0.99)  # type: ignore[misc]
    steps: int = Field(1000, ge=1, description="Optimizer steps.")
    batch_size: int = Field(64, ge=1, le=2**16, description="Conversations per step.")
    lr: LearningRate = 2e-3
    """Peak learning rate, falling to a tenth along a cosine; the default for a given language model is 5e-5."""
    lr_warmup_steps: int = Field(20, ge=0, description="Steps of linear rise to `lr`.")
    weight_decay: float = Field(0.3, ge=0)
    """AdamW's weight decay; high, because a few demonstrations must generalize to unseen tasks."""


class WarmStartSection(SupervisedSection):
    """Supervised steps before PPO; a model from scratch knows no words yet."""

    enable: bool | None = None
    """Run the warm start; null runs it only for `model.path=tiny`."""
    steps: int = Field(800, ge=1, description="Optimizer steps.")
    lr: LearningRate = 3e-3
    """Learning rate; the default for a given language model is 5e-5."""
    careless_steps: int = Field(30, ge=0)
    """Additional steps at the end, on careless demonstrations: the policy keeps its skills, but acquires a habit of not
    using them, for PPO to break."""
    careless_rate: float = Field(
        0.85, ge=0, lt=1, description="Share of careless replies in those, which are imitated."
    )
    careless_lr: float = Field(2e-4, gt=0, description="Learning rate of those steps.")
