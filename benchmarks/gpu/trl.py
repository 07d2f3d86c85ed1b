"""One iteration of training against TRL's GRPOTrainer, as :mod:`benchmarks.against_trl` measures it, on this device.

The same work, the same loss (which is compared first), the same precision, in turns; ``ratio`` is our seconds over
TRL's. ``large``, SmolLM2's shape, is measured with TRL's vLLM in the same process, too (``trl_engine``). On a CPU the
work is tiny. Needs that benchmark's requirements, Gymnasium and TRL.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.gpu.job import Job

#: The command-line options of ``benchmarks.against_trl``. A GPU takes larger micro-batches.
FULL_OPTIONS = {"rounds": 3, "micro_batch": 65536, "trl_micro_batch": 64, "trl_generation_batch": 256, "running": 256}
TOY_OPTIONS = {"rounds": 1, "micro_batch": 4096, "trl_micro_batch": 4, "trl_generation_batch": 4, "running": 4}
_GUESS_S, _VLLM_S = 20.0, 60.0


def run(job: Job) -> None:
    """Measure each kind of work; good if the losses were the same."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    try:
        import gymnasium  # noqa: F401 - for an error here
        import trl  # noqa: F401
    except ImportError as error:
        job.cannot(f"{error.name} is not installed here, so there is nothing to compare with", what="trl")
        return
    from benchmarks.against_trl.work import WORKS

    names = ["single", *(name for name in WORKS if name != "single")]  # the first is a claim
    for name in names:
        if name in WORKS:
            what = {"what": name, "trl_engine": "transformers"}
            job.try_to(0.0 if job.toy else _GUESS_S, partial(measure, job, **what), **what)
    what = {"what": "large", "trl_engine": "vllm"}
    if job.device.type == "cpu" or importlib.util.find_spec("vllm") is None:
        job.cannot("TRL's vLLM needs a GPU, and vllm in this Python", **what)
        return
    job.try_to(_VLLM_S, partial(measure, job, **what), **what)


def measure(job: Job, what: str, trl_engine: str) -> None:
    """Measure one kind of work."""
    import trl

    from benchmarks.against_trl.times import clock_of, compare
    from benchmarks.against_trl.work import LARGE, TINY, WORKS, Shape

    device, large = job.device.type, what == "large"
    options: dict[str, Any] = {"threads": 1, "tolerance": 1e-4, "device": device, "clock": clock_of(device)}
    options |= {"trl_vllm": trl_engine == "vllm", **(TOY_OPTIONS if job.toy else FULL_OPTIONS)}
    shape = replace(TINY, bfloat16=large) if job.toy else LARGE if large else Shape()
    work = replace(WORKS[what], tasks=2, group=2) if job.toy else WORKS[what]
    described = {"what": what, "trl_engine": trl_engine, "trl_version": trl.__version__}
    try:
        figures = compare(work, shape, argparse.Namespace(**options))
    except SystemExit as error:  # it says that the losses are apart
        job.emit(**described, good=False, wrong=str(error))
    else:
        job.emit(**{**described, **figures})
