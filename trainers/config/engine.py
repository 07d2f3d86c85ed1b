"""The sections of the engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator

from ..section import Names, Section
from .variants import Variants

#: Below it (and above 0) a float32 logit divided by the temperature may overflow.
MIN_TEMPERATURE = 1e-5
#: vLLM's server raises lower ones to this, and would report log-probabilities of that.
VLLM_MIN_TEMPERATURE = 0.01
# These have their own options, or are decided by the conventions of the engine protocol.
_TAKEN = (
    *("model", "tokenizer", "skip_tokenizer_init", "load_format", "dtype", "quantization", "generation_config"),
    *("max_model_len", "max_num_seqs", "seed", "logprobs_mode", "max_logprobs", "enable_prefix_caching"),
    *("gpu_memory_utilization", "kv_cache_memory_bytes", "block_size", "enforce_eager", "enable_sleep_mode"),
    *("worker_extension_cls", "weight_transfer_config", "disable_log_stats", "host", "port"),
)
_COPIES = "a server has one copy of the model, on tensor-parallel ranks: use engine.tensor_parallel_size and "
_REASONS = {
    **dict.fromkeys(_TAKEN, "is decided by other options, or by the engine protocol: leave it out"),
    "tensor_parallel_size": "give engine.tensor_parallel_size instead",
    **dict.fromkeys(("pipeline_parallel_size", "data_parallel_size"), _COPIES + "engine.replicas"),
}


def refused_arguments(args: Mapping[str, Any]) -> dict[str, str]:
    """Return the engine arguments that must not be set, each with the reason and the alternative."""
    return {name: _REASONS[name] for name in args if name in _REASONS}


class ServerSection(Section):
    """Options that vLLM and SGLang servers share."""

    python: str | None = Field(None, min_length=1)
    """Python executable with the server's package, for example .venv-vllm/bin/python (`make venv-vllm`) or
    .venv-sglang/bin/python (`make venv-sglang`); null is that of the trainer."""
    base_url: Names | None = None
    """Address of a running server, for example http://127.0.0.1:8000; several are replicas; null starts one."""
    bucket_mib: int = Field(256, ge=1, description="MiB of weights per transfer, but by `disk`.")
    update_folder: str | None = None
    """Folder for weights on their way by `disk`, which both sides see; null is a temporary one on this machine."""
    master_address: str | None = None
    """This machine's address as the server sees it, for `engine.weight_transport=ipc` and `process_group`; null
    finds it."""
    sleep_mode: bool = False
    """Give the GPU's memory back while the learner learns, if they share GPUs: of weights, keys and values."""
    verify: bool = Field(True, description="Compare the server's checksums with the weights after every update.")
    start_timeout_s: float = Field(600.0, gt=0, description="Seconds that the server may take to be ready.")
    health_timeout_s: float = Field(5.0, gt=0, description="Seconds that the server may take to answer a health check.")

    @field_validator("base_url")
    @classmethod
    def _are_addresses(cls, urls: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if not all(url.startswith(("http://", "https://")) for url in urls or ()):
            raise ValueError("an address must begin with http:// or https://")
        return urls


class VLLMSection(ServerSection):
    """Options of vLLM servers (`engine.name=vllm`), started by the run or already running. See docs/engines.md."""

    gpu_memory_utilization: float = Field(0.5, gt=0, le=1)
    """Share of the GPU's memory that vLLM takes, weights included."""
    block_size: int | None = Field(None, ge=1)
    """Tokens of a block, the unit of prefix reuse; null is vLLM's choice (on a CPU 128; others are multiples of 32
    there)."""
    enforce_eager: bool | None = None
    """Neither compile nor capture graphs; null is true on a CPU, false on a GPU."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Additional engine arguments of vLLM, by its own names; `engine.vllm.args.NAME=value` sets one."""


class SGLangSection(ServerSection):
    """Options of SGLang servers (`engine.name=sglang`), started by the run or already running. See docs/engines.md."""

    seeds: bool = True
    """Start the server in deterministic mode: it honours seeds, is slower on a GPU and has no `min_p`."""
    server_args: tuple[str, ...] = ()
    """Additional arguments of the server's command line, for example `[--mem-fraction-static, '0.6']`."""


class EngineSection(Section):
    """The inference engine. Each has its own keys."""

    name: str
    """`torch`: embedded, with continuous batching. `vllm`, `sglang`: its server. A service that returns no token ids
    (OpenAI's) is none of them; `textenvs evaluate` uses such services."""
    max_context: int = Field(512, ge=16, le=2**24)
    """Maximum tokens of a conversation, replies included; the default for a given language model is 2,048, or its own
    context length if that is less. `trainers.generate` has as many as its prompts and replies may have."""
    replicas: int | None = Field(None, ge=1, le=2**12)
    """Engine replicas, each with a copy of the weights and its own thread or server; a lost one is replaced. null is as
    many as the GPUs allow, and one on a CPU. Several addresses in `base_url` are as many replicas without this key."""
    max_slots: int | None = Field(None, ge=1, le=2**20)
    """Requests decoded concurrently (in each replica); more wait. null is the most that the run can have, or 1.5 times
    a replica's share of it; `trainers.generate` has at most 128."""
    threads: int | None = Field(None, ge=1, le=2**12)
    """CPU threads of the engine; null is 1 for a model below 5 million parameters (more only slow it down), else
    torch's choice."""
    stall_timeout_s: float = Field(60.0, gt=20)
    """Seconds that a server or replica with work may make no progress; then it counts as lost, unless it answers a
    probe within 20 s."""

    @property
    def base_urls(self) -> tuple[str, ...]:
        """Addresses of servers that run already."""
        return ()

    @property
    def engines(self) -> int:
        """The number of engines: one for each running server, else ``replicas``, which a plan may count."""
        return len(self.base_urls) or self.replicas or 1

    @property
    def gpus(self) -> int:
        """GPUs (on a CPU, processes) that share each matrix of one engine."""
        return 1

    @property
    def sleeps(self) -> bool:
        """True if the engine releases its GPU's memory while a learner on the same GPU learns."""
        return False

    @property
    def kv_cache_bytes(self) -> int | None:
        """Bytes of keys and values of one engine; ``None`` is the engine's choice."""
        return None


class _SizedCache(EngineSection):
    """An engine whose cache of keys and values has a size of the user's."""

    kv_cache_gib: float | None = Field(None, gt=0)
    """GiB of keys and values (in each replica); requests that do not fit wait. null is 1 on a CPU; on a GPU, a quarter
    of the free memory that decoding steps leave for `torch`, and what `engine.vllm.gpu_memory_utilization` leaves for
    `vllm`."""

    @property
    def kv_cache_bytes(self) -> int | None:
        return None if self.kv_cache_gib is None else int(self.kv_cache_gib * 2**30)


class TorchEngineSection(_SizedCache):
    """The embedded engine."""

    name: Literal["torch"] = "torch"
    cuda_graphs: bool = True
    """Decode with static shapes on a GPU: each step is one CUDA graph, whose draws are read while the next is under
    way. Needs Triton. On a CPU it changes nothing."""


class ServedEngineSection(EngineSection):
    """An engine in a server."""

    tensor_parallel_size: int = Field(1, ge=1, le=2**12)
    """GPUs (on a CPU, processes) that share each matrix of one server that is started."""
    weight_transport: Literal["auto", "ipc", "process_group", "disk", "http"] = "auto"
    """Transport of weights to the server: memory that it shares with the learner (`ipc`; on GPUs, CUDA IPC), a process
    group (NCCL between GPUs, else gloo), a folder that both sides can read (`disk`), or the bodies of HTTP requests.
    `auto` is the first of them that can work: `ipc` where the server computes on the learner's GPUs, or on the CPUs of
    its machine; the last two only for a running server that cannot connect to the learner. The run says which, and
    why."""

    @property
    @abstractmethod
    def server(self) -> ServerSection:
        """The options of the server."""

    @property
    def sleeps(self) -> bool:
        return self.server.sleep_mode

    @property
    def base_urls(self) -> tuple[str, ...]:
        return self.server.base_url or ()

    @property
    def gpus(self) -> int:
        return self.tensor_parallel_size


class VLLMEngineSection(_SizedCache, ServedEngineSection):
    """An engine in a server of vLLM."""

    name: Literal["vllm"] = "vllm"
    vllm: VLLMSection = VLLMSection()

    @property
    def server(self) -> VLLMSection:
        return self.vllm


class SGLangEngineSection(ServedEngineSection):
    """An engine in a server of SGLang."""

    name: Literal["sglang"] = "sglang"
    sglang: SGLangSection = SGLangSection()

    @property
    def server(self) -> SGLangSection:
        return self.sglang


ENGINES: Mapping[str, type[EngineSection]] = {
    "torch": TorchEngineSection,
    "vllm": VLLMEngineSection,
    "sglang": SGLangEngineSection,
}
#: The section `engine` of a command.
Engine: TypeAlias = Annotated[EngineSection, Variants("engine", "name", "torch", ENGINES)]
