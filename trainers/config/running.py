"""The sections of the run itself and of the machines it runs on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .section import Frequency, Loggers, Section


class RunSection(Section):
    """The run."""

    seed: int = Field(0, ge=0, le=2**63 - 1, description="Decides weights, tasks, sampling and order.")
    project_name: str = Field("textenvs", min_length=1, description="Names the folder above the run.")
    experiment_name: str = Field("run", min_length=1, description="Names the run.")
    default_local_dir: str | None = None
    """Folder of the run; null is outputs/`project_name`/`experiment_name`."""
    logger: Loggers = Field(("console", "jsonl", "tensorboard"), description="Where metrics go.")
    threads: int | None = Field(None, ge=1)
    """CPU threads of torch; null is one for a model below 5 million parameters, which more only slow down, and torch's
    choice for others."""
    fsdp: Literal["auto", "always", "never"] = "auto"
    """Shard the model with FSDP2; `auto` does with more than one process."""
    fsdp_size: int | None = Field(None, ge=1)
    """Shard over so many ranks, and keep copies beyond them (HSDP); null is all ranks."""
    tensor_parallel_size: int = Field(1, ge=1, description="Ranks that share each matrix; divides the model's heads.")
    ulysses_sequence_parallel_size: int = Field(1, ge=1)
    """Ranks that share each sequence; divides the model's heads."""
    offload: bool = False
    """Keep parameters, gradients and optimizer states on the CPU between uses; for cuda."""
    use_torch_compile: bool = Field(False, description="Compile the learner's layers with torch.compile.")
    peak_tflops: float | None = Field(None, gt=0)
    """The device's peak in TFLOP/s, for `mfu`; null is its data sheet's, where known."""


class SFTRunSection(RunSection):
    """The run."""

    experiment_name: str = Field("sft", min_length=1, description="Names the run.")


class TrainerSection(RunSection):
    """The run: how long, what it writes, where it starts."""

    total_iterations: int = Field(120, ge=1, description="Batches to train on.")
    time_limit_s: float | None = Field(None, gt=0, description="Stop after so many seconds of training, if earlier.")
    val_before_train: bool = Field(True, description="Validate before the first iteration.")
    val_only: bool = Field(False, description="Validate the policy (that of a checkpoint, if resumed), and stop.")
    test_freq: Frequency = Field(20, description="Validate every so many iterations; -1 only at the end.")
    save_freq: Frequency = Field(50, description="Save a checkpoint every so many iterations; -1 only at the end.")
    keep_last_n: int = Field(2, ge=1, description="Checkpoints to keep.")
    save_weights_only: bool = False
    """Checkpoints have the model alone, as a folder for `model.path`, and neither optimizer nor critic: a fraction of
    the size. A run cannot resume from one, but another can begin with it."""
    async_save: bool = False
    """Write checkpoints in the background, from a copy on the CPU, while training continues."""
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    """Go on from the run's last checkpoint if there is one, start afresh, or from a given one."""
    resume_from_path: str | None = Field(None, description="The checkpoint that `resume_mode=resume_path` means.")
    resume_other_data: bool = False
    """Resume although the tasks to train on are not the checkpoint's: what changed is said, and tasks may come twice or
    not at all. Otherwise that is refused."""
    trace_file: str | None = None
    """Write a trace of episodes and phases here (.json), for ui.perfetto.dev or chrome://tracing."""
    profile_steps: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Profile these iterations with torch's profiler; a Chrome trace each, in the run's folder. Or with Nsight: see
    `cluster.nsight`."""
    keep_rollouts: int = Field(5, ge=0)
    """The episodes of so many of the last iterations, with what the learner made of each token, stay as Parquet in
    `rollouts/` of the run's folder; and those after a checkpoint, and all validations. 0 writes none."""
    rollout_data_dir: str | None = None
    """Write the episodes of every iteration here, and none to the run's folder."""
    validation_data_dir: str | None = Field(None, description="Write the episodes of every validation here instead.")


class ClusterSection(Section):
    """Where the run's parts are. See docs/cluster.md."""

    backend: Literal["local", "ray"] | None = None
    """`local`: learner and engines in this process, or servers beside it. `ray`: learner ranks and engines are Ray
    actors. null is `ray` where there are several ranks or machines."""
    nnodes: int = Field(1, ge=1, description="Machines; more than one are used through Ray.")
    n_gpus_per_node: int | None = Field(None, ge=0)
    """GPUs to use of each machine; null is what torch sees here."""
    learner_ranks: int = Field(1, ge=1, description="Processes that train, with a GPU each where there are GPUs.")
    colocate: bool = True
    """Engines share GPUs (or, on Ray, the places) of the learner; otherwise they have their own."""
    cpus_per_actor: int = Field(1, ge=1, description="With Ray: CPUs that a learner rank and an engine take each.")
    cpus_per_env: float = Field(0.0, ge=0)
    """With `env.backend=ray`: CPUs that an environment takes; 0 does not count them."""
    bucket_mib: int = Field(256, ge=1, description="With Ray: MiB of weights that an embedded engine takes at a time.")
    nsight: dict[str, Any] = Field(default_factory=dict)
    """With Ray: options of Nsight Systems (`nsys profile`), under which learner ranks then run;
    `cluster.nsight.NAME=value` sets one. With `capture-range=cudaProfilerApi`, the iterations of
    `trainer.profile_steps` are captured."""
    silence_s: float = Field(30.0, gt=0)
    """Seconds without a sign of life after which a learner rank is taken to be lost."""
    stall_s: float = Field(300.0, gt=0)
    """Seconds that a learner rank may stand at one place before the run gives up."""
    start_timeout_s: float = Field(300.0, gt=0, description="Seconds that actors and ranks may take to start.")


class RayInitSection(Section):
    """Ray itself; for `cluster.backend=ray` and `env.backend=ray`."""

    address: str | None = None
    """Cluster to join, `auto` for the one of this machine; null is what RAY_ADDRESS says, and else a Ray of the run's
    own."""
    num_cpus: int | None = Field(None, ge=1)
    """CPUs of a Ray of the run's own (under SLURM, those of the allocation); null is what the machine has, or what the
    run needs, where that is more."""
    timeline_json_file: str | None = None
    """Write Ray's timeline here at the end, for ui.perfetto.dev or chrome://tracing."""
