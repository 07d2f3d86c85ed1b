"""Which way an update points: the default's estimator and its alternatives against the true policy gradient.

The policy and the tasks are small enough to enumerate every episode, so the gradient of the expected reward is exact. A
reply has a style (short or long), a length (a decision after each token, at most 6 or 40 tokens) and an answer, which
is right or wrong; a wrong first reply leads to a second one, which pays less. Ten logits decide, shared by tasks of
four difficulties. As in real batches, lengths differ by an order of magnitude, the hard tasks have the long episodes,
and some groups earn the same throughout.

An update is the sum of its mini-batches' gradients, all at the policy that sampled (the first-order update; clipping
and AdamW come after it). For each way of normalizing, aggregating and cutting a batch, and each size of a batch:

* ``bias``: cosine of the *mean* update to the true gradient. 1 is an update whose direction is right on average.
* ``noise``: mean cosine of *single* updates to the true gradient. What one step is worth; more episodes raise it.

    python benchmarks/gradient_direction.py [--sizes 16,32,64,128,256,512] [--episodes 1000000] [--seed 0]
        [--baseline mixed] [--group 8] [--json F]
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.algorithms.advantages import ESTIMATORS, normalize
from trainers.algorithms.aggregation import token_weights
from trainers.algorithms.batch import ActionBatch

Floats = NDArray[np.float64]

LONGEST = (6, 40)  # tokens of a short and of a long reply
DIFFICULTY = (2.0, 0.5, -1.0, -2.5)  # added to the logit of a right answer
REWARD = (1.0, 0.5)  # of a right first and second reply
# Logits: style of each turn, to continue a short and a long reply, a right short and long answer, one a difficulty.
STYLE, CONTINUE, RIGHT, TASK = 0, 2, 4, 6
LOGITS = np.array([-0.4, 0.6, 0.3, 2.5, -0.3, 0.4, 0.0, 0.0, 0.0, 0.0])
PER_TOKEN = 0.04  # added to the logit of a right answer by each token before it

#: Names of the aggregations compared. ``seq-mean-token-sum-norm`` differs by a constant factor from the second.
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
SPLITS = (1, 2)


@dataclass(frozen=True)
class Task:
    """Every episode of a task: ``P`` of them, of one or two turns.

    Args:
        probability: ``[P]``.
        turns: int ``[P]``.
        tokens: int ``[P, 2]``; 0 where there is no such turn.
        rewards: ``[P, 2]``.
        scores: ``[P, 2, logits]``; the gradient of each turn's log-probability.
    """

    probability: Floats
    turns: NDArray[np.int64]
    tokens: NDArray[np.int64]
    rewards: Floats
    scores: Floats


def replies(task: int, turn: int) -> tuple[Floats, NDArray[np.int64], NDArray[np.bool_], Floats]:
    """Every reply: log-probability ``[R]``, tokens ``[R]``, whether it is right ``[R]``, score ``[R, logits]``."""
    logprobs, tokens, rights, scores = [], [], [], []
    for style, right in itertools.product((0, 1), (0, 1)):
        for length in range(1, LONGEST[style] + 1):
            decisions = [(STYLE + turn, LOGITS[STYLE + turn], style)]
            decisions += [(CONTINUE + style, LOGITS[CONTINUE + style], 1)] * (length - 1)
            if length < LONGEST[style]:
                decisions.append((CONTINUE + style, LOGITS[CONTINUE + style], 0))
            answer = LOGITS[RIGHT + style] + LOGITS[TASK + task] + DIFFICULTY[task] + PER_TOKEN * length
            logprob, score = 0.0, np.zeros(len(LOGITS))
            for at, logit, drawn in [*decisions, (RIGHT + style, answer, right), (TASK + task, answer, right)]:
                if at < TASK:  # the answer is one decision, of two logits
                    logprob -= float(np.logaddexp(0.0, -logit if drawn else logit))
                score[at] += drawn - 1.0 / (1.0 + np.exp(-logit))
            logprobs.append(logprob)
            tokens.append(length + 1)  # and the answer
            rights.append(bool(right))
            scores.append(score)
    return np.array(logprobs), np.array(tokens), np.array(rights), np.array(scores)


def enumerated(task: int) -> Task:
    """Every episode of the task of this difficulty."""
    first, second = replies(task, 0), replies(task, 1)
    rows = []
    for logprob, tokens, right, score in zip(*first, strict=True):
        if right:
            rows.append((logprob, 1, (tokens, 0), (REWARD[0], 0.0), (score, np.zeros_like(score))))
            continue
        for logprob2, tokens2, right2, score2 in zip(*second, strict=True):
            rows.append((logprob + logprob2, 2, (tokens, tokens2), (0.0, REWARD[1] * right2), (score, score2)))
    logprobs, *columns = zip(*rows, strict=True)
    return Task(np.exp(np.array(logprobs)), *(np.array(column) for column in columns))


def true_gradient(tasks: list[Task]) -> Floats:
    """The gradient of the expected reward of an episode, over the tasks."""
    terms = [(task.probability * task.rewards.sum(1)) @ task.scores.sum(1) for task in tasks]
    gradient: Floats = np.mean(terms, axis=0)
    return gradient


def sampled(tasks: list[Task], episodes: int, size: int, rng: np.random.Generator) -> tuple[ActionBatch, Floats]:
    """A batch in groups of ``size``, and the score of each of its turns ``[K, logits]``."""
    drawn = np.repeat(rng.integers(len(tasks), size=episodes // size), size)
    paths = np.array([rng.choice(len(tasks[t].turns), p=tasks[t].probability) for t in drawn])
    turns = np.array([tasks[t].turns[p] for t, p in zip(drawn, paths, strict=True)])
    there = np.arange(2) < turns[:, None]
    tokens = np.array([tasks[t].tokens[p] for t, p in zip(drawn, paths, strict=True)])
    rewards = np.array([tasks[t].rewards[p] for t, p in zip(drawn, paths, strict=True)])
    scores = np.array([tasks[t].scores[p] for t, p in zip(drawn, paths, strict=True)])
    batch = ActionBatch(
        token_offsets=np.concatenate([[0], np.cumsum(tokens.sum(1))]),
        turn_offsets=np.concatenate([[0], np.cumsum(turns)]),
        turn_index=np.concatenate([np.repeat(np.arange(n), row[:n]) for n, row in zip(turns, tokens, strict=True)]),
        turn_rewards=rewards[there],
        terminated=np.ones(episodes, np.bool_),
        truncated=np.zeros(episodes, np.bool_),
        group=np.repeat(np.arange(episodes // size), size),
    )
    return batch, scores[there]


def updates(
    batch: ActionBatch, scores: Floats, rng: np.random.Generator, baseline: str
) -> dict[tuple[bool, str, int], Floats]:
    """The update that each way makes of a batch: by ``norm_adv``, aggregation and mini-batches."""
    plain = ESTIMATORS["turn_grpo"](batch, baseline=baseline)
    lengths, starts = np.diff(batch.token_offsets), batch.turn_starts
    order = rng.permutation(batch.num_episodes)
    found = {}
    for parts, mode in itertools.product(SPLITS, AGGREGATIONS):
        weight = np.zeros(batch.num_tokens)
        for part in np.array_split(order, parts):
            where = np.isin(batch.episode_of_token, part)
            offsets = np.concatenate([[0], np.cumsum(lengths[np.sort(part)])])
            weight[where] = token_weights(mode, offsets)
        for norm_adv, result in ((False, plain), (True, normalize(plain))):
            found[norm_adv, mode, parts] = (weight * result.advantages)[starts] @ scores
    return found


def cosine(a: Floats, b: Floats) -> float:
    """Of the angle between two vectors."""
    return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-300))


def measured(
    tasks: list[Task], size: int, batches: int, seed: int, baseline: str, group: int
) -> dict[tuple[bool, str, int], tuple[float, float]]:
    """``(bias, noise)`` of every way at batches of ``size`` episodes."""
    rng, truth = np.random.default_rng((seed, size)), true_gradient(tasks)
    sums: dict[tuple[bool, str, int], Floats] = {}
    cosines: dict[tuple[bool, str, int], float] = {}
    for _ in range(batches):
        for way, update in updates(*sampled(tasks, size, group, rng), rng, baseline).items():
            sums[way] = sums.get(way, np.zeros_like(truth)) + update
            cosines[way] = cosines.get(way, 0.0) + cosine(update, truth)
    return {way: (cosine(total, truth), cosines[way] / batches) for way, total in sums.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="16,32,64,128,256,512", help="episodes a batch")
    parser.add_argument("--episodes", type=int, default=1_000_000, help="in all, for each size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--group", type=int, default=8, help="episodes a group")
    parser.add_argument("--baseline", choices=("group", "mixed", "shrunk"), default="mixed", help="of turn_grpo")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tasks = [enumerated(task) for task in range(len(DIFFICULTY))]
    sizes = [int(size) for size in options.sizes.split(",")]
    how = (options.seed, options.baseline, options.group)
    found = {size: measured(tasks, size, options.episodes // size, *how) for size in sizes}
    print(f"{'':43}" + "".join(f"{size:>15}" for size in sizes))
    print(f"{'norm_adv  aggregation          mini-batches':43}" + f"{'bias  noise':>15}" * len(sizes))
    rows: list[dict[str, Any]] = []
    for way in found[sizes[0]]:
        norm_adv, mode, parts = way
        cells = [found[size][way] for size in sizes]
        shown = "".join(f"{bias:>9.4f} {noise:5.3f}" for bias, noise in cells)
        print(f"{norm_adv!s:9} {mode:20} {parts:>12} {shown}")
        for size, (bias, noise) in zip(sizes, cells, strict=True):
            rows.append(
                {"norm_adv": norm_adv, "mode": mode, "parts": parts, "episodes": size, "bias": bias, "noise": noise}
            )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
