"""One iteration of training against TRL's GRPOTrainer: the same work and the same loss, in one process, in turns.

An iteration is 256 episodes of a Qwen2 with 3 M random weights (32 tasks, groups of 8), their advantages, one step of
AdamW on all of them, and the new weights in use for the next. The kinds of work:

* ``single``: one turn of exactly 48 new tokens.
* ``turns``: four turns; each reply has a length of its own, from 8 to 64 tokens, and the environment answers it.
* ``large``: 64 episodes of SmolLM2's shape (135 M random weights, 49,152 words) in bfloat16: two such turns. TRL's
  model is in bfloat16 as a whole, its optimizer too, its fastest way; this side's optimizer keeps float32 weights.

Both sides have the same model, prompts, lengths of replies, rewards (a function of the text), advantages (``R -
mean(R)`` in a group), loss (PPO's clipped ratio, mean over the batch's tokens: TRL's ``dapo``), optimizer, number of
threads and precision (float32, but for ``large``). Neither computes old log-probabilities in a pass of its own: TRL
takes those of the update itself, this side those that the engine sampled with. Nothing is sampled to a stop token;
lengths are forced.

TRL has its fastest settings: no gradient checkpointing, no reference model, ``num_iterations=1`` (it then skips old
log-probabilities), fused AdamW, SDPA, and the sizes of micro-batches and of generation batches that
``--trl-micro-batch`` and ``--trl-generation-batch`` say (``--tune`` measures several, and TRL's continuous batching and
bfloat16). For ``single`` it generates by itself. For ``turns`` it is given a ``rollout_func`` that does what its own
loop over tool calls does: one ``generate`` a turn for all its episodes, padded, with the whole conversation as its
prompt; each row ends at its own length, and the call when the longest has ended. The loop's other costs, for
templates and parsing replies, are left out. This side is the collector with an environment, the torch engine and the
learner, as a run has them. It reads a prompt that siblings share once (both the engine and the learner do), which TRL
does not.

First the losses are compared: four groups of this side's episodes go through TRL's own scoring, and with the same old
log-probabilities (those of the engine, with noise, so that the clipping bites) the losses and all gradients must be
equal (``--tolerance``).

Then the sides take turns. ``ratio`` is the median over the rounds of this side's seconds over TRL's, with the parts
``generate`` and ``update`` shown apart; on TRL's side, ``update`` is all that is not generation.

``memory`` is the peak of one update with a vocabulary of 150,000 tokens and one micro-batch of 32 samples
(``large-memory``: of the model of ``large``), each side in
a process of its own: how far the resident set grows, from just before an iteration's update (weights and the
optimizer's moments are there, gradients are not) to its highest point (``VmHWM``, reset before; Linux). An update
before it has warmed everything up, and freed memory was given back (``malloc_trim``). Both sides are given the same
episodes, so nothing is generated. On a GPU it is the peak of what torch allocates, likewise.

    python -m benchmarks.against_trl [single] [turns] [memory] [large] [large-memory] [--rounds 5] [--threads 2]
        [--device cpu]

Needs ``pip install trl``. On a machine that others use too, two threads wait for each other: measure with ``nice -n
-5``, or with one thread and ``--cpu-time``, which counts the CPU seconds of this process in place of seconds.

A smaller ``--trl-generation-batch`` is faster for ``turns`` (64: 71 s in place of 92 on one thread), since fewer rows
wait for the longest. TRL then takes the mean over the tokens of each such part, and the mean of those: not quite the
same loss. ``--trl-micro-batch 16 --trl-generation-batch 64`` shows it.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import torch

from .memory import compare_memory, memory_of
from .times import clock_of, compare, tune
from .work import LARGE, TINY, WANTED, WORKS, Shape


def main() -> None:
    """Print one line for each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="*", choices=[*WANTED, []], help="all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="for both sides")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="for both sides")
    parser.add_argument("--micro-batch", type=int, default=4096, help="tokens of one of ours")
    parser.add_argument("--trl-micro-batch", type=int, default=32, help="episodes of one of TRL's")
    parser.add_argument("--trl-generation-batch", type=int, default=256, help="episodes that TRL generates together")
    parser.add_argument("--trl-vllm", action="store_true", help="TRL generates with vLLM, in this process (cuda)")
    parser.add_argument("--running", type=int, default=256, help="episodes that ours has in flight")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="how far losses and gradients may be apart")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU seconds (one thread, on a shared machine)")
    parser.add_argument("--tune", action="store_true", help="TRL alone, with several settings")
    parser.add_argument("--smoke", action="store_true", help="a tiny model and little work: does it run?")
    parser.add_argument("--memory-of", choices=["ours", "trl"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cpu_time and options.threads > 1:
        parser.error("--cpu-time adds up all threads, those that only wait included: use it with --threads 1")
    if options.device == "cuda" and (options.cpu_time or not torch.cuda.is_available()):
        parser.error("--device cuda needs a GPU that torch sees, and its time is not that of the CPU (--cpu-time)")
    options.clock = time.process_time if options.cpu_time else clock_of(options.device)
    torch.set_num_threads(options.threads)
    small: dict[str, Any] = {"tasks": 2, "group": 2} if options.smoke else {}
    if options.memory_of:
        work = replace(WORKS["single"], **{"tasks": 4, **small})
        large = options.what == ["large-memory"]
        shape = LARGE if large else Shape(vocabulary=150_000)
        shape = replace(TINY, vocabulary=2000, bfloat16=large) if options.smoke else shape
        print(json.dumps(memory_of(options.memory_of, work, shape, options)))
        return
    for what in options.what or list(WANTED):
        large = what == "large"
        shape = replace(TINY, bfloat16=large) if options.smoke else LARGE if large else Shape()
        if what.endswith("memory"):
            result = compare_memory(what, options)
        elif options.tune:
            tune(replace(WORKS[what], **small), shape, options)
            continue
        else:
            result = compare(replace(WORKS[what], **small), shape, options)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
