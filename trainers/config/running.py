"""The sections of the run and of its machines."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ..section import Frequency, Loggers, Section


class RunSection(Section):
    """The run."""

    seed: int = Field(0, ge=0, le=2**63 - 1, description="Random seed of weights, tasks, sampling and order.")
    project_name: str = Field("textenvs", min_length=1, description="Name of the folder above the run's.")
    experiment_name: str = Field("run", min_length=1, description="Name of the run.")
    default_local_dir: str | None = None
    """Folder of the run; null is outputs/`project_name`/`experiment_name`."""
    logger: Loggers = Field(("console", "jsonl", "tensorboard"), description="Destinations of metrics.")
    threads: int | None = Field(None, ge=1, le=2**12)
    """CPU threads of torch; null is 1 for a model below 5 million parameters (more only slow it down), else torch's
    choice."""
    fsdp: Literal["auto", "always", "never"] = "auto"
    """Shard the model with FSDP2; `auto` shards it with more than one process."""
    fsdp_size: int | None = Field(None, ge=1, le=2**12)
    """Ranks to shard over; more ranks hold copies (HSDP). null is all ranks."""
    tensor_parallel_size: int = Field(
        1, ge=1, le=2**12, description="Ranks that share each matrix; divides the model's heads."
    )
    ulysses_sequence_parallel_size: int = Field(1, ge=1, le=2**12)
    """Ranks that share each sequence; divides the model's heads."""
    offload: bool = False
    """Keep parameters, gradients and optimizer states on the CPU between uses; for cuda."""
    peak_tflops: float | None = Field(None, gt=0)
    """The device's peak in TFLOP/s, for `mfu`; null is the data sheet's value, if known."""


class SFTRunSection(RunSection):
    """The run."""

    experiment_name: str = Field("sft", min_length=1, description="Name of the run.")


class TrainerSection(RunSection):
    """The run: its length, output and starting point."""

    total_iterations: int = Field(120, ge=1, description="Iterations; each trains on one batch.")
    time_limit_s: float | None = Field(None, gt=0, description="Stop after this many seconds of training, if earlier.")
    val_before_train: bool = Field(True, description="Validate before the first iteration.")
    val_only: bool = Field(False, description="Validate the policy (that of a checkpoint, if resumed), and stop.")
    test_freq: Frequency = Field(20, description="Iterations between validations; -1: only at the end.")
    save_freq: Frequency = Field(50, description="Iterations between checkpoints; -1: only at the end.")
    keep_last_n: int = Field(2, ge=1, description="Checkpoints to keep.")
    save_weights_only: bool = False
    """Save only the model, as a folder for `model.path`, without optimizer and critic: a fraction of the size. A run
    cannot resume from such a checkpoint, but another run can start from it."""
    async_save: bool = False
    """Write checkpoints in the background, from a copy on the CPU, while training continues."""
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    """`auto`: resume from the run's last checkpoint, if there is one. `disable`: start anew. `resume_path`: resume from
    `resume_from_path`."""
    resume_from_path: str | None = Field(None, description="Checkpoint folder for `resume_mode=resume_path`.")
    resume_other_data: bool = False
    """Resume although the training tasks are not the checkpoint's: the changes are reported, and tasks may be repeated
    or skipped. Otherwise this is an error."""
    trace_file: str | None = None
    """File (.json) for a trace of episodes and phases, for ui.perfetto.dev or chrome://tracing."""
    profile_steps: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Iterations to profile with torch's profiler; a Chrome trace each, in the run's folder. Or with Nsight: see
    `cluster.nsight`."""
    keep_rollouts: int = Field(5, ge=0)
    """Number of last iterations whose episodes are kept as Parquet in `rollouts/` of the run's folder, with the
    learner's numbers for each token. The iteration after each checkpoint, and validations, stay too. 0 writes none."""
    rollout_data_dir: str | None = None
    """Folder for the episodes of every iteration; then none are written to the run's folder."""
    validation_data_dir: str | None = Field(None, description="Folder for the episodes of every validation.")


class ClusterSection(Section):
    """Placement of the run's parts. See docs/cluster.md."""

    backend: Literal["local", "ray"] | None = None
    """`local`: learner and engines in this process, or servers beside it. `ray`: learner ranks and engines are Ray
    actors. null is `ray` with several ranks or machines."""
    nnodes: int = Field(1, ge=1, le=2**12, description="Machines; several need Ray.")
    n_gpus_per_node: int | None = Field(None, ge=0, le=2**12)
    """GPUs to use on each machine; null is the number that torch sees here."""
    learner_ranks: int = Field(
        1, ge=1, le=2**12, description="Processes that train, each with a GPU if there are GPUs."
    )
    colocate: bool = True
    """Engines share GPUs (or, on Ray, the places) of the learner; otherwise they have their own."""
    cpus_per_actor: int = Field(1, ge=1, le=2**12, description="With Ray: CPUs of each learner rank and each engine.")
    cpus_per_env: float = Field(0.0, ge=0)
    """With `env.backend=ray`: CPUs of an environment; 0 does not count them."""
    bucket_mib: int = Field(256, ge=1, description="With Ray: MiB of weights per transfer to an embedded engine.")
    nsight: dict[str, Any] = Field(default_factory=dict)
    """With Ray: options of Nsight Systems (`nsys profile`), under which learner ranks then run;
    `cluster.nsight.NAME=value` sets one. With `capture-range=cudaProfilerApi`, the iterations of
    `trainer.profile_steps` are captured."""
    silence_s: float = Field(30.0, gt=0)
    """Seconds without a heartbeat after which a learner rank counts as lost."""
    stall_s: float = Field(300.0, gt=0)
    """Seconds that a learner rank may make no progress before the run aborts."""
    start_timeout_s: float = Field(300.0, gt=0, description="Seconds that actors and ranks may take to start.")


class RayInitSection(Section):
    """Options of Ray, for `cluster.backend=ray` and `env.backend=ray`."""

    address: str | None = None
    """Cluster to join; `auto` is this machine's. null is RAY_ADDRESS, or if that is not set, a Ray of the run's own."""
    num_cpus: int | None = Field(None, ge=1, le=2**20)
    """CPUs of a Ray of the run's own (under SLURM, those of the allocation); null is the machine's number, or what the
    run needs if that is more."""
    timeline_json_file: str | None = None
    """File for Ray's timeline, written at the end, for ui.perfetto.dev or chrome://tracing."""
