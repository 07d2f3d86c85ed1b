"""Credit assignment by forks with the torch engine: the cost of sampling forks, and an update of trees with weights.

Roots of three turns are sampled, then a fork of each before each turn. Per sampled token a fork should cost no more
than a root: of its prompt, which its root had, only what is behind the last whole block of keys and values is computed
again. The update is that of roots and forks as token trees, with the weights and the advantages of the
estimator ``fork``, against one of the roots alone.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.job import Job
from benchmarks.gpu.learners import make_learner, policy_gradient
from benchmarks.gpu.shapes import from_turns, make_model
from trainers.algorithms.batch import ActionBatch
from trainers.algorithms.estimators import Fork
from trainers.algorithms.losses import token_weights
from trainers.config.engine import TorchEngineSection
from trainers.engines.base import Sampling
from trainers.engines.decoder import SIZE
from trainers.engines.torch_engine import TorchEngine
from trainers.trajectory import Trajectory

_TURNS, _OBSERVED = 3, 8
_GUESS_S = 40.0


def run(job: Job) -> None:
    for shape in job.shapes:
        job.try_to(0 if shape == "toy" else _GUESS_S, partial(forks, job, shape), what="forks", shape=shape)


def forks(job: Job, shape: str) -> None:
    """Measure one shape; good if prompts of forks came from the cache."""
    model = make_model(shape, job.device)
    batch = job.sizes.batches[-1] // 8 or 2
    roots, forked, sampled = asyncio.run(_sampled(job, model, batch))
    good = sampled["forks"]["computed"] <= len(forked) * SIZE
    made = ActionBatch.from_trajectories([*roots, *forked])
    result = Fork(baseline="group").advantages(made)
    assert result.weights is not None
    seconds: dict[str, float] = {}
    size = max(job.sizes.micro, *(len(root.token_ids) for root in roots))
    for name, some in (("roots", roots), ("trees", [*roots, *forked])):
        count = int(made.token_offsets[len(some)])
        mask, tree = np.ones(count, np.bool_), made.tree[: len(some)]
        weight = token_weights(
            "seq-mean-token-sum", made.token_offsets[: len(some) + 1], mask, weights=result.weights[:count], tree=tree
        )
        columns = {"weight": weight, "advantage": weight * result.advantages[:count]}
        learner = make_learner(job, model, "bfloat16", max_tokens_per_micro_batch=size, chunk_size=job.sizes.chunk)
        learner.update_actor(some, columns, policy_gradient)
        started = job.now()
        learner.update_actor(some, columns, policy_gradient)
        seconds[name] = job.now() - started
        del learner
        job.free()
    job.emit(what="forks", shape=shape, good=good, sampling=sampled, update_s=seconds)


async def _sampled(
    job: Job, model: Any, batch: int
) -> tuple[list[Trajectory], list[Trajectory], dict[str, dict[str, float]]]:
    """Sample roots and their forks; return them, and the tokens and seconds of both."""
    new, vocabulary = job.sizes.new[-1], model.config.vocab_size
    rng = np.random.default_rng(0)
    longest = job.sizes.prompt + _TURNS * (new + _OBSERVED)
    dtype = torch.bfloat16 if job.device.type == "cuda" else torch.float32
    slots = batch * (1 + _TURNS)  # so that nothing that a root had is dropped
    engine = TorchEngine(
        model, TorchEngineSection(max_slots=slots, max_context=longest), device=job.device, dtype=dtype
    )
    sampling = Sampling(max_new_tokens=new, ignore_stop=True)
    counts = {name: {"tokens": 0, "computed": 0.0, "s": 0.0} for name in ("roots", "forks")}

    async def play(
        name: str, tokens: list[int], turn: int, session: str | None = None
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Play to the end from before this turn; return all tokens, and the spans of the replies."""
        replies = []
        for number in range(turn, _TURNS):
            reply = await engine.generate(tokens, sampling, session)
            if number == turn:
                counts[name]["computed"] += len(tokens) - reply.metrics["cached_tokens"]
            counts[name]["tokens"] += new
            replies.append((len(tokens), len(tokens) + new))
            tokens = [*tokens, *reply.token_ids.tolist(), *observed[number]]
        return tokens[: replies[-1][1]], replies

    observed = rng.integers(0, vocabulary, (_TURNS, _OBSERVED)).tolist()
    prompts = rng.integers(0, vocabulary, (batch, job.sizes.prompt)).tolist()
    try:
        started = job.now()
        # In sessions, as a run's: what they computed is kept until their forks are played.
        played = await asyncio.gather(
            *(play("roots", prompt, 0, f"root-{number}") for number, prompt in enumerate(prompts))
        )
        counts["roots"]["s"] = job.now() - started
        points = [(root, turn) for root in range(batch) for turn in range(_TURNS)]
        started = job.now()
        continuations = await asyncio.gather(
            *(play("forks", played[root][0][: played[root][1][turn][0]], turn) for root, turn in points)
        )
        counts["forks"]["s"] = job.now() - started
    finally:
        await engine.close()
    roots = [_trajectory(*episode, rng, f"root-{number}") for number, episode in enumerate(played)]
    forked = [
        _trajectory(*episode, rng, f"fork-{root}-{turn}", forked_from=f"root-{root}", forked_turn=turn)
        for episode, (root, turn) in zip(continuations, points, strict=True)
    ]
    return roots, forked, counts


def _trajectory(
    tokens: list[int], replies: list[tuple[int, int]], rng: np.random.Generator, name: str, **forked: Any
) -> Trajectory:
    turn = np.full(len(tokens), -1, np.int32)
    for number, (begin, end) in enumerate(replies):
        turn[begin:end] = number
    rewards = rng.normal(size=len(replies))
    return from_turns(tokens, turn, turn_rewards=rewards, group_id="group", episode_id=name, **forked)
