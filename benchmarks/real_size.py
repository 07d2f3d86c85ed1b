"""The memory that each learner rank takes, at its peak, of a model that is no toy.

    python -m benchmarks.real_size                  # a Qwen2 of 0.5 GB in float32; 1, 2 and 4 ranks through Ray

A folder with random weights is loaded, trained on for two steps, published, saved and exported. During each,
the memory of every rank is read every few milliseconds: what is the process's own or mapped from files, and apart from
it Ray's shared memory. A publication goes from rank 0 to the driver, through a process group, as it would to an
engine's worker. What a rank with next to no model takes is subtracted. Beside the peak stands what a rank cannot do
without:

* loading: its shards, two moments of the optimizer, and one tensor;
* training: those, gradients, and what the step computes with: one
  block's gathered parameters and gradients, and activations (as :mod:`trainers.cluster.memory` counts them);
* after that: shards, moments and one tensor.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.gpu.shapes import from_tokens
from trainers.cluster.group import LearnerGroup, RayRanks
from trainers.cluster.memory import Machine
from trainers.cluster.plan import make_plan
from trainers.cluster.ray.runtime import RayCluster
from trainers.command_line import load_config
from trainers.config.model import ModelSection
from trainers.config.running import ClusterSection, RayInitSection, RunSection
from trainers.models.tiny import build_tokenizer
from trainers.section import ActorSection
from trainers.trajectory import Trajectory

SHAPES = {
    "real": {"hidden_size": 1024, "num_hidden_layers": 8, "intermediate_size": 3072, "vocab_size": 32_000},
    "small": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 512},
}
NONE = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16, "vocab_size": 512}
TOKENS = 64  #: of a sequence
SEQUENCES = 4


def write_model(folder: Path, shape: Mapping[str, Any]) -> Qwen2Config:
    """Write a model with random weights and tied embeddings, in float32; made once, and not kept."""
    config = Qwen2Config(num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=True, **shape)
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return config


def some_trajectories(vocab: int) -> list[Trajectory]:
    """Make trajectories of random tokens, of which the last half are actions."""
    rng = np.random.default_rng(0)
    return [
        replace(from_tokens(rng.integers(0, vocab, TOKENS).astype(np.int32), TOKENS // 2), episode_id=str(number))
        for number in range(SEQUENCES)
    ]


def memory_of(pid: int) -> tuple[int, int]:
    """Return the bytes of a process that are resident: its own with those of files, and those that are shared."""
    sizes = dict.fromkeys(("RssAnon", "RssFile", "RssShmem"), 0)
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name in sizes:
            sizes[name] = int(rest.split()[0]) * 1024
    return sizes["RssAnon"] + sizes["RssFile"], sizes["RssShmem"]


class Watch:
    """The peaks of some processes, phase by phase."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.peaks: dict[str, list[int]] = {}
        self.shared: dict[str, int] = {}

    def phase(self, name: str, work: Callable[[], Any]) -> Any:
        """Do something, and note how much memory each process had at most meanwhile."""
        peaks: dict[int, int] = {}
        shared, over = [0], threading.Event()

        def look() -> None:
            while True:
                for pid in list(self.pids):
                    own, common = memory_of(pid)
                    peaks[pid], shared[0] = max(peaks.get(pid, 0), own), max(shared[0], common)
                if over.wait(0.003):
                    return

        thread = threading.Thread(target=look)
        thread.start()
        try:
            return work()
        finally:
            over.set()
            thread.join()
            self.peaks[name], self.shared[name] = list(peaks.values()), shared[0]


def measure(folder: Path, config: Qwen2Config, ranks: int, where: Path) -> Watch:
    """Run the phases of a group of ranks, and return their peaks in bytes."""
    sections: dict[str, Any] = {
        "model": ModelSection(device="cpu"),
        "run": RunSection(threads=1, fsdp="always"),
        "actor": ActorSection(lr=1e-5, max_tokens_per_micro_batch=TOKENS),
    }
    keys = ["cluster.backend=ray", f"cluster.learner_ranks={ranks}", "model.device=cpu"]
    plan = make_plan(load_config(keys)[0], Machine(0))
    from benchmarks.real_size import loss  # by a name that ranks can import, also when this is the main program

    trajectories = some_trajectories(config.vocab_size)
    numbers = {"advantage": np.ones(SEQUENCES * TOKENS // 2, np.float32)}
    tokenizer = build_tokenizer(["a b"])
    with RayCluster(plan, RayInitSection(), timeout=300.0) as cluster:
        watch, actors = Watch(), RayRanks(cluster)
        watch.pids = [pid for _, pid, _ in actors.info]
        group = watch.phase("loading", lambda: LearnerGroup(actors, ClusterSection(), str(folder), **sections))
        try:
            watch.phase("training", lambda: [group.update_actor(trajectories, numbers, loss) for _ in range(2)])
            watch.phase("publishing", group.weights)
            watch.phase("saving", lambda: group.save(where / "saved"))
            watch.phase("exporting", lambda: group.export_hf(where / "exported", tokenizer))
        finally:
            group.close()
    return watch


def loss(logprobs: torch.Tensor, entropy: torch.Tensor, batch: Any) -> tuple[torch.Tensor, dict[str, float]]:
    """Compute the loss of REINFORCE."""
    return -(batch["advantage"] * logprobs).sum() / SEQUENCES, {}


def needed(config: Qwen2Config, ranks: int) -> dict[str, int]:
    """Return the bytes that a rank cannot do without, in each phase."""
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    sizes = [4 * parameter.numel() for parameter in model.parameters()]
    block = sum(4 * parameter.numel() for parameter in model.model.layers[0].parameters())
    shards, tensor = sum(sizes) // ranks, max(sizes)
    activations = 2 * 34 * TOKENS * config.num_hidden_layers * config.hidden_size + 3 * 4 * TOKENS * config.vocab_size
    return {
        "loading": 3 * shards + tensor,
        "training": 4 * shards + tensor + 2 * block + activations,
        "publishing": 3 * shards + tensor,
        "saving": 3 * shards + tensor,
        "exporting": 3 * shards + tensor,
    }


def compare(ranks: int, shape: Mapping[str, int], folder: Path) -> list[dict[str, Any]]:
    """Return a row for each phase: what the rank that took most took, and what it needed; bytes."""
    seen = {}
    for name, size in (("none", NONE), ("real", shape)):
        model = folder / name
        config = write_model(model, size) if not model.exists() else Qwen2Config.from_pretrained(model)
        with tempfile.TemporaryDirectory(dir=folder) as written:
            seen[name] = measure(model, config, ranks, Path(written))
    return [
        {
            "ranks": ranks,
            "phase": phase,
            "peak": (peak := max(seen["real"].peaks[phase]) - min(seen["none"].peaks[phase])),
            "needed": least,
            "ratio": round(peak / least, 2),
            "shared": seen["real"].shared[phase],
        }
        for phase, least in needed(config, ranks).items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--shape", choices=SHAPES, default="real")
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in arguments.ranks:
            began = time.perf_counter()
            for row in compare(ranks, SHAPES[arguments.shape], Path(folder)):
                rows.append(row)
                peak, least, shared = (row[key] / 2**20 for key in ("peak", "needed", "shared"))
                print(
                    f"{ranks} ranks  {row['phase']:<10}  {peak:5.0f} MiB, needed {least:5.0f}: {row['ratio']:.2f} times"
                    f"  (and shared {shared:.0f})",
                    flush=True,
                )
            print(f"{time.perf_counter() - began:.0f} s")
    if arguments.results is not None:
        machine = f"{platform.machine()}, {torch.get_num_threads()} cores, CPU"
        arguments.results.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
