"""One iteration of training against TRL's GRPOTrainer, as :mod:`benchmarks.against_trl` measures it, on this device.

The same work, the same loss (which is compared first), the same precision (float32), in turns; ``ratio`` is our seconds
over TRL's. On a CPU the work is tiny. Needs that benchmark's requirements, Gymnasium and TRL: where one is missing, the
part says so in its result and ends well.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.gpu.job import TOY, Job

#: The command-line options of ``benchmarks.against_trl``. A GPU takes larger micro-batches.
FULL_OPTIONS = {"rounds": 3, "micro_batch": 65536, "trl_micro_batch": 64, "trl_generation_batch": 256, "running": 256}
TOY_OPTIONS = {"rounds": 1, "micro_batch": 4096, "trl_micro_batch": 4, "trl_generation_batch": 4, "running": 4}


def run(job: Job) -> None:
    """Measure each kind of work; good if the losses were the same."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    try:
        import gymnasium  # noqa: F401 - for an error here
        import trl
    except ImportError as error:
        job.emit(what="skipped", why=f"{error.name} is not installed here, so there is nothing to compare with")
        return
    from benchmarks.against_trl.times import clock_of, compare
    from benchmarks.against_trl.work import LARGE, TINY, WORKS, Shape, Work

    toy, device = job.sizes == TOY, job.device.type
    options: dict[str, Any] = {"threads": 1, "tolerance": 1e-4, "device": device, "clock": clock_of(device)}
    options |= TOY_OPTIONS if toy else FULL_OPTIONS

    def measure(work: Work, shape: Shape) -> None:
        try:
            figures = compare(work, shape, argparse.Namespace(**options))
        except SystemExit as error:  # it says that the losses are apart
            job.emit(what=work.name, good=False, wrong=str(error), trl_version=trl.__version__)
        else:
            job.emit(what=work.name, trl_version=trl.__version__, **figures)

    for name, work in WORKS.items():
        large = name == "large"
        shape = replace(TINY, bfloat16=large) if toy else LARGE if large else Shape()
        work = replace(work, tasks=2, group=2) if toy else work
        job.try_to(0.0 if toy else 30.0, partial(measure, work, shape), what=name)
