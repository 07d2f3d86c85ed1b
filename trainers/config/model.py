"""The sections of the model and of learning it from examples."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import Field

from textenvs.bounded_files import UnreadableFile, read_json_object

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
    """Type to compute in, of learner and engines; the learner's own weights are float32, and those that LoRA freezes
    are in this type. null is `bfloat16` for a given model where the GPU or the processor multiplies in it
    (`avx512_bf16`, `amx_bf16`), except for one below 5 million parameters."""
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


#: Parameters below which a model is a toy: rounding makes it no faster, and it learns as `tiny` does.
_TOY = 5_000_000
#: What families call the four numbers of a shape in their config.json.
_SHAPE = {
    "vocab": ("vocab_size",),
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
}


def is_language_model(path: str | None) -> bool:
    """Whether a model is given that was made to talk: neither `tiny` nor a folder with one below 5 million parameters.

    The shape decides, that config.json says: a folder may have no weights yet. One that says no shape was made to talk.
    """
    if path is None or path == "tiny":
        return False
    folder = Path(path).expanduser()
    found = _described(folder) if folder.is_dir() else {}
    text = found.get("text_config")
    shape = {**found, **(text if isinstance(text, dict) else {})}
    numbers = {name: next((shape[key] for key in keys if key in shape), None) for name, keys in _SHAPE.items()}
    vocab, width, layers = (number if isinstance(number, int) else None for number in numbers.values())
    if vocab is None or width is None or layers is None:
        return True
    inner = shape.get("intermediate_size")
    units = inner if isinstance(inner, int) else 4 * width
    return vocab * width + layers * (4 * width * width + 3 * width * units) >= _TOY


def _described(folder: Path) -> dict[str, Any]:
    """What a model's config.json says; empty where it cannot be read."""
    try:
        return read_json_object(folder / "config.json")
    except UnreadableFile:
        return {}


def positions_of(path: str) -> int | None:
    """The longest context that a model in a folder was made for; ``None`` where it does not say so itself."""
    found = _described(Path(path).expanduser())
    text = found.get("text_config")
    shape = {**found, **(text if isinstance(text, dict) else {})}
    longest = next((shape[key] for key in ("max_position_embeddings", "n_positions") if key in shape), None)
    return longest if isinstance(longest, int) and longest > 0 else None


def newest_model_of(run: str) -> str:
    """What an error about ``model.path`` adds where it names the folder of a run: the run's newest model."""
    found = max(Path(run).expanduser().glob("checkpoints/iteration_*/model"), default=None)
    return "" if found is None else f"; this is a run's folder, whose newest model is {found}"


#: Says whether a machine multiplies in bfloat16 with a `model.device`.
Bfloat16: TypeAlias = Callable[[str], bool]
#: Under which name the context of a validation has it, where a configuration is for another machine than this one.
BFLOAT16 = "multiplies_bfloat16"


@cache
def multiplies_bfloat16(device: str) -> bool:
    """:data:`Bfloat16` of this machine."""
    if device != "cpu":
        import torch  # only for a given model, which needs it soon: without, a configuration is read in no time

        if torch.cuda.is_available():
            return torch.cuda.get_device_capability()[0] >= 8
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def planned_bfloat16(device: str) -> bool:
    """:data:`Bfloat16` of the machine of ``--plan-for``: its GPUs do, and its processors are not known."""
    return device != "cpu"


def native_dtype(
    path: str | None, device: str, bfloat16: Bfloat16 = multiplies_bfloat16
) -> Literal["float32", "bfloat16"]:
    """What a model computes in by default, by ``model.path`` and ``model.device``."""
    return "bfloat16" if is_language_model(path) and bfloat16(device) else "float32"


class SupervisedSection(Section):
    """Supervised training on demonstrations: the loss is on the assistant's tokens alone."""

    files: Names | None = None
    """Conversations to imitate, .jsonl or .parquet with a column `messages`, and `tools` where the chat template is to
    show a row's own; null plays the scripted expert of the environment."""
    demonstrations: int = Field(20000, ge=1)
    """Episodes that the scripted expert plays at most: no more than `steps` times `batch_size` are needed."""
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


class ServerSection(Section):
    """Options that vLLM and SGLang servers share."""

    bucket_mib: int = Field(256, ge=1, description="MiB of weights that travel at once by `process_group` and `http`.")
    update_folder: str | None = None
    """Folder of `engine.weight_transport=disk`; null is a temporary one."""
    master_address: str | None = None
    """This machine's address as the server sees it, for `engine.weight_transport=process_group`; null finds it."""
    verify: bool = Field(True, description="Compare the server's checksums with the weights after every update.")
    start_timeout_s: float = Field(600.0, gt=0, description="Seconds that the server may take to be ready.")
    health_timeout_s: float = Field(5.0, gt=0, description="Seconds that the server may take to say that it lives.")


class VLLMSection(ServerSection):
    """Of `engine.name=vllm`: a vLLM server, started by the run or running already. See docs/engines.md."""

    python: str | None = Field(None, min_length=1)
    """Python that has vLLM, for example .venv-vllm/bin/python (`make venv-vllm`); null is the one that runs the
    trainer."""
    base_url: Names | None = None
    """Address of a `vllm serve` that runs already, for example http://127.0.0.1:8000; several are replicas; null starts
    a server."""
    gpu_memory_utilization: float = Field(0.5, gt=0, le=1)
    """Share of the GPU's memory that vLLM takes, weights included."""
    block_size: int | None = Field(None, ge=1)
    """Tokens of a block, the unit of prefix reuse; null is vLLM's choice (on a CPU 128; others are multiples of 32
    there)."""
    enforce_eager: bool | None = None
    """Neither compile nor capture graphs; null does on a GPU and not on a CPU."""
    sleep_mode: bool = False
    """Give the GPU's memory back while the learner learns, where they share GPUs."""
    args: dict[str, Any] = Field(default_factory=dict)
    """More engine arguments of vLLM, under its own names; `engine.vllm.args.NAME=value` sets one."""


class SGLangSection(ServerSection):
    """Of `engine.name=sglang`: an SGLang server, started by the run or running already. See docs/engines.md."""

    python: str | None = Field(None, min_length=1)
    """Python that has SGLang, for example .venv-sglang/bin/python (`make venv-sglang`); null is the one that runs the
    trainer."""
    base_url: Names | None = None
    """Address of a server that runs already, for example http://127.0.0.1:30000; several are replicas; null starts
    one."""
    seeds: bool = True
    """Start the server in deterministic mode: it honours seeds, is slower on a GPU and has no `min_p`."""
    server_args: tuple[str, ...] = ()
    """More arguments of the server's command line, for example `[--mem-fraction-static, '0.6']`."""


class ServingSection(Section):
    """What generates."""

    name: Literal["torch", "vllm", "sglang", "openai"] = "torch"
    """`torch`: embedded, continuous batching. `vllm`, `sglang`: such a server beside the run. `openai` has no token ids
    and is refused here; `textenvs evaluate` uses such services."""
    replicas: int | None = Field(None, ge=1)
    """Engines side by side, each with a copy of the weights and a thread or servers of its own; a lost one is replaced.
    null is as many as there are GPUs for, and one on a CPU. Several addresses in `base_url` are so many replicas
    without this."""
    tensor_parallel_size: int = Field(1, ge=1)
    """GPUs (on a CPU, processes) that share each matrix of one `vllm` or `sglang` server that is started."""
    max_slots: int | None = Field(None, ge=1)
    """Requests decoded at a time (in each replica); more wait. null is as many as the run can have, or half as many
    again as a replica's share; `trainers.generate` has 128 at most."""
    kv_cache_gib: float | None = Field(None, gt=0)
    """GiB of keys and values (in each replica); requests beyond what fits wait. null is 1 on a CPU; on a GPU a quarter
    of what is free for `torch`, and what `engine.vllm.gpu_memory_utilization` leaves for `vllm`."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of the engine; null is one for a model below 5 million parameters, which more only slow down, and
    torch's choice for others."""
    weight_transport: Literal["auto", "process_group", "disk", "http"] = "auto"
    """How weights travel to a `vllm` or `sglang` server: through a process group (gloo; NCCL to other GPUs), through a
    folder that both sides see, or by value over HTTP. `auto` is `process_group` to a server that the run starts, `http`
    to one in `base_url`."""
    stall_timeout_s: float = Field(60.0, gt=20)
    """Seconds that a server or a replica may have work and show no progress; then it is lost, unless it answers a probe
    within 20 s."""
    vllm: VLLMSection = VLLMSection()
    sglang: SGLangSection = SGLangSection()

    @property
    def base_urls(self) -> tuple[str, ...]:
        return {"vllm": self.vllm.base_url, "sglang": self.sglang.base_url}.get(self.name) or ()

    @property
    def engines(self) -> int:
        """How many there are: one for each server that runs already, else ``replicas``, which a plan may count."""
        return len(self.base_urls) or self.replicas or 1


class EngineSection(ServingSection):
    """What generates."""

    max_context: int = Field(512, ge=16)
    """Longest conversation in tokens, reply included. For a given language model 2,048, or what it was made for, where
    that is less, if it is not said."""
