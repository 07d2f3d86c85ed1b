"""The run of the part ``curve`` with a vLLM server on the learner's GPU, which gets its weights by ``ipc``."""

from __future__ import annotations

from benchmarks.gpu.curve import learn
from benchmarks.gpu.job import Job


def run(job: Job) -> None:
    """Run it with vLLM, if that is here."""
    if job.vllm is None:
        what = {"what": "run", "engine": "vllm"}
        job.cannot("vllm is not installed here; --vllm names a Python that has it", **what)
        return
    keys = ["engine.name=vllm", f"engine.vllm.python={job.vllm}", "engine.weight_transport=ipc"]
    keys += ["cluster.colocate=true", f"engine.kv_cache_gib={0.25 if job.toy else 8}"]
    if not job.toy:  # sleeping gives the learner its memory; compiling would take half of the time that there is
        keys += ["engine.vllm.sleep_mode=true", "engine.vllm.enforce_eager=true"]
    learn(job, "vllm", keys)
