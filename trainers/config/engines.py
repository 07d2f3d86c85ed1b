"""The sections of what generates."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .section import Names, Section


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
    """More words of the server's command line, for example `[--mem-fraction-static, '0.6']`."""


class ServingSection(Section):
    """What generates."""

    name: Literal["torch", "vllm", "sglang", "openai"] = "torch"
    """`torch`: embedded, continuous batching. `vllm`, `sglang`: such a server beside the run. `openai` has no token ids
    and is refused here; `textenvs evaluate` uses such services."""
    replicas: int = Field(1, ge=1)
    """Engines side by side, each with a copy of the weights and a thread or servers of its own; a lost one is replaced.
    Several addresses in `base_url` are so many replicas without this."""
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
        """How many there are: one for each server that runs already, else ``replicas``."""
        return len(self.base_urls) or self.replicas


class EngineSection(ServingSection):
    """What generates."""

    max_context: int = Field(512, ge=16)
    """Longest conversation in tokens, reply included. For a given language model 2,048, or what it was made for, where
    that is less, if it is not said."""
